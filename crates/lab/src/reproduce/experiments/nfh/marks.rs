//! Figures 19 and 20: PostMark, and Bonnie++'s chunks.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::append::REWRITE_READS;
use super::bed::{FLUSHES, Hybrid, SSD, rate, stack};
use super::kernel::{On, PEERS, took, two_passes};
use super::programs::{Pass, one_file};
use bimetal_base::Result;
use bimetal_trace::ReadOptions;
use bimetal_trace::calls::Workload;

/// Registry lines.
pub(in super::super) const FIG19: Experiment = Experiment {
    id: "nfh-fig19",
    about: "PostMark with 1 000 and 20 000 files by size of the extents, beside ext2 and xfs",
    seconds: 3.2,
    measure: fig19,
};
pub(in super::super) const FIG20: Experiment = Experiment {
    id: "nfh-fig20",
    about: "chunks of 16 KiB with an fsync each by size of the extents, beside ext2 and xfs",
    seconds: 1.8,
    measure: fig20,
};

/// Transactions of the recorded peers; the paper's are 100 000.
const RECORDED: u64 = 20_000;
const PAPER: u64 = 100_000;
const EXTENTS_KIB: [u64; 2] = [16, 512];

/// What is to be on the devices at the end is part of it: nobody else asks for it.
fn fig19(setting: &ExperimentContext) -> Result<Measured> {
    let transactions = if setting.full { PAPER } else { RECORDED };
    let disk = FLUSHES[0].1;
    let mut measured = Measured::with(serde_json::json!({
        "ssd": SSD, "disk": disk, "transactions": transactions, "peers_transactions": RECORDED,
    }))
    .on(stack(&FLUSHES[..1]));
    for files in [1000u32, 20_000] {
        let program = format!("gen:postmark:files={files}:transactions={transactions}");
        for kib in EXTENTS_KIB {
            let workload = Workload::open(&setting.seeded(&program), &ReadOptions::default(), 1)?;
            let hybrid = Hybrid { extent_bytes: kib << 10, ..Hybrid::new(disk) };
            let report = hybrid.play(setting, workload, true)?;
            let a_second = transactions as f64 * 1e9 / report.sim_time_ns as f64;
            measured.add(format!("{files} files/{kib} KiB"), "transactions/s", a_second);
        }
        for peer in PEERS {
            for on in [On::Disk(disk), On::Ssd] {
                let name = format!("{peer}-pm{}k", files / 1000);
                // Its calls take what ours do at least: a microsecond each, some three to a transaction.
                let ns = took(setting, &name, on, None)? + RECORDED * 3 * 1000;
                let a_second = RECORDED as f64 * 1e9 / ns as f64;
                measured.add(format!("{files} files/{peer} {}", on.name()), "transactions/s", a_second);
            }
        }
    }
    Ok(measured)
}

fn fig20(setting: &ExperimentContext) -> Result<Measured> {
    const RECORDED_BYTES: u64 = 256 << 20;
    let bytes: u64 = if setting.full { 1 << 30 } else { RECORDED_BYTES };
    let disk = FLUSHES[0].1;
    let mut measured = Measured::with(serde_json::json!({ "ssd": SSD, "disk": disk, "bytes": bytes }))
        .on(stack(&FLUSHES[..1]));
    for kib in EXTENTS_KIB {
        let hybrid =
            Hybrid { extent_bytes: kib << 10, ssd_bytes: bytes + bytes / 2 + (1 << 28), ..Hybrid::new(disk) };
        let ours = hybrid.mb_per_s(setting, one_file(Pass::Write, bytes, 16 << 10))?;
        measured.add(format!("{kib} KiB/write"), "MB/s", ours);
    }
    for peer in PEERS {
        for on in [On::Disk(disk), On::Ssd] {
            let [written, _] = two_passes(setting, &format!("{peer}-chunkf"), on, REWRITE_READS)?;
            measured.add(format!("{peer} {}/write", on.name()), "MB/s", rate(RECORDED_BYTES, written));
        }
    }
    Ok(measured)
}
