//! Figures 10 to 12: the random template written, written again and read.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, SSD, rate, stack};
use super::kernel::{On, PEERS, took, two_passes};
use super::programs::{FILE_BYTES, FILES, Pass, RECORD, one_file, template};
use bimetal_base::Result;

/// Registry lines.
pub(in super::super) const FIG10: Experiment = Experiment {
    id: "nfh-fig10",
    about: "32 files of 1 MiB in 128 directories written 16 KiB at a time, and the advantage over a disk beside appends'",
    seconds: 1.6,
    measure: fig10,
};
pub(in super::super) const FIG11: Experiment = Experiment {
    id: "nfh-fig11",
    about: "the same files written again in another order",
    seconds: 1.5,
    measure: |setting| again(setting, Pass::Rewrite, "rewrite"),
};
pub(in super::super) const FIG12: Experiment = Experiment {
    id: "nfh-fig12",
    about: "the same files read at random",
    seconds: 1.5,
    measure: |setting| again(setting, Pass::Read, "read"),
};

const BYTES: u64 = FILES as u64 * FILE_BYTES;
/// Of the requests of a pass that reads.
const ALL_READ: f64 = 0.8;

fn config() -> serde_json::Value {
    serde_json::json!({ "ssd": SSD, "disks": FLUSHES, "files": FILES, "file_bytes": FILE_BYTES })
}

fn fig10(setting: &ExperimentContext) -> Result<Measured> {
    const APPENDED: u64 = 64 << 20;
    let mut measured = Measured::with(config()).on(stack(&FLUSHES));
    for (flushes, disk) in FLUSHES {
        let hybrid = Hybrid::new(disk);
        let ours = hybrid.mb_per_s(setting, template(Pass::Write, setting.seed))?;
        let appended = hybrid.mb_per_s(setting, one_file(Pass::Write, APPENDED, RECORD))?;
        measured.add(format!("{flushes}/nfhybrid/write"), "MB/s", ours);
        for peer in PEERS {
            for on in [On::Disk(disk), On::Ssd] {
                let theirs = rate(BYTES, took(setting, &format!("{peer}-rnd"), on, None)?);
                measured.add(format!("{flushes}/{peer} {}/write", on.name()), "MB/s", theirs);
            }
            let on_disk = measured.get(&format!("{flushes}/{peer} on the disk/write"))?;
            let in_order = rate(APPENDED, took(setting, &format!("{peer}-seq64"), On::Disk(disk), None)?);
            measured.add(format!("{flushes}/advantage over {peer}/random"), "x", ours / on_disk);
            measured.add(format!("{flushes}/advantage over {peer}/in order"), "x", appended / in_order);
        }
    }
    Ok(measured)
}

fn again(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let mut measured = Measured::with(config()).on(stack(&FLUSHES));
    for (flushes, disk) in FLUSHES {
        let ours = Hybrid::new(disk).mb_per_s(setting, template(pass, setting.seed))?;
        measured.add(format!("{flushes}/nfhybrid/{name}"), "MB/s", ours);
        for peer in PEERS {
            for on in [On::Disk(disk), On::Ssd] {
                let passes = two_passes(setting, &format!("{peer}-rndre"), on, ALL_READ)?;
                let theirs = rate(BYTES, passes[usize::from(pass == Pass::Read)]);
                measured.add(format!("{flushes}/{peer} {}/{name}", on.name()), "MB/s", theirs);
            }
        }
    }
    Ok(measured)
}
