//! Figures 7 and 8: IOzone's write and rewrite, each record made durable.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, SSD, rate, stack};
use super::kernel::{On, PEERS, took, two_passes};
use super::programs::{Pass, RECORD, one_file};
use bimetal_base::Result;

const MIB: u64 = 1 << 20;

/// Registry lines.
pub(in super::super) const FIG7: Experiment = Experiment {
    id: "nfh-fig7",
    about: "4 KiB appends with an fsync each, 64 KiB to 256 MiB, flushes ignored and honoured, beside ext2 and xfs",
    seconds: 4.0,
    measure: fig7,
};
pub(in super::super) const FIG8: Experiment = Experiment {
    id: "nfh-fig8",
    about: "16 KiB of a file of 256 MiB written again with an fsync each, beside ext2 and xfs",
    seconds: 3.6,
    measure: fig8,
};

/// The recorded appends.
const RECORDED: [(&str, u64); 2] = [("seq16", 16), ("seq64", 64)];

fn fig7(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "ssd": SSD, "disks": FLUSHES, "peers": "recorded at 16 and 64 MiB; none at 256 MiB",
    }))
    .on(stack(&FLUSHES));
    for (flushes, disk) in FLUSHES {
        for kib in [64u64, 1 << 10, 16 << 10, 64 << 10, 256 << 10] {
            let workload = one_file(Pass::Write, kib << 10, RECORD);
            let ours = Hybrid::new(disk).mb_per_s(setting, workload)?;
            measured.at(&format!("{flushes}/nfhybrid/write"), kib as f64 / 1024.0, "MB/s", ours);
        }
        for peer in PEERS {
            for on in [On::Disk(disk), On::Ssd] {
                for (program, mib) in RECORDED {
                    let ns = took(setting, &format!("{peer}-{program}"), on, None)?;
                    let name = format!("{flushes}/{peer} {}/write", on.name());
                    measured.at(&name, mib as f64, "MB/s", rate(mib * MIB, ns));
                }
            }
        }
    }
    Ok(measured)
}

/// Of the requests of a rewrite so many read: a chunk is read, changed and written.
pub(super) const REWRITE_READS: f64 = 0.02;

fn fig8(setting: &ExperimentContext) -> Result<Measured> {
    const BYTES: u64 = 256 * MIB;
    let mut measured = Measured::with(serde_json::json!({ "ssd": SSD, "disks": FLUSHES, "bytes": BYTES }))
        .on(stack(&FLUSHES));
    for (flushes, disk) in FLUSHES {
        let ours = Hybrid::new(disk).mb_per_s(setting, one_file(Pass::Rewrite, BYTES, 16 << 10))?;
        measured.add(format!("{flushes}/nfhybrid/rewrite"), "MB/s", ours);
        for peer in PEERS {
            for on in [On::Disk(disk), On::Ssd] {
                let [_, again] = two_passes(setting, &format!("{peer}-chunkf"), on, REWRITE_READS)?;
                measured.add(format!("{flushes}/{peer} {}/rewrite", on.name()), "MB/s", rate(BYTES, again));
            }
        }
    }
    Ok(measured)
}
