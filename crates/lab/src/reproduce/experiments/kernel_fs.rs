//! The kernel's ext2, ext4 and xfs beside nfhybrid, on the same models: 4 KiB appended and fsynced, again and again.
//!
//! Theirs are the requests that the kernel made of this program (recorded below each file system by blktrace, from mount to
//! unmount), played on the model of a disk and on that of an SSD, one at a time, with their barriers. Ours are the
//! program's calls on nfhybrid over both models. Programs compute in no time in either, so this is what the devices cost.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::replay::{self, Args};
use bimetal_base::{Error, Result};

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "kernel-fsync",
    figure: "beside the kernel",
    about: "appends with an fsync each: ext2, ext4 and xfs on a disk or an SSD, and nfhybrid on both",
    seed: 1,
    run,
};

const DISK: &str = "hdd-7200";
const SSD: &str = "ssd-slc";
/// Its records, and how large the file gets, MiB.
const PROGRAMS: [(&str, u64); 2] = [("seq16", 16), ("seq64", 64)];
const KERNEL: [&str; 3] = ["ext2", "ext4", "xfs"];
const RECORD_BYTES: u64 = 4096;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn run(setting: &ExperimentContext) -> Result<Findings> {
    let (mut rows, mut beaten, mut alone) = (Vec::new(), true, Vec::new());
    for (program, mib) in PROGRAMS {
        let fsyncs = (mib << 20) / RECORD_BYTES;
        let calls = format!(
            "gen:fio-job:size={mib}MiB:block=4KiB:requests={fsyncs}:random=0:fsync=1 --fs nfhybrid --disk {DISK} --ssd {SSD} \
             --seed {}",
            setting.seed
        );
        let hybrid = replay::files::replay(&Args::parse(&calls)?)?;
        let ours = seconds(hybrid.sim_time_ns);
        let mut row = |of: &str, on: &str, took: f64| {
            rows.push(Row::ours(format!("{program}: {of} on {on}"), "ms/fsync", 1e3 * took / fsyncs as f64));
        };
        row("nfhybrid", "both", ours);
        for fs in KERNEL {
            let trace = format!("block/{fs}-{program}.bio.csv.zst");
            setting.trace(&trace)?;
            let path = setting.traces_dir()?.join(&trace);
            let path =
                path.to_str().ok_or_else(|| Error::invalid("the folder of traces has a strange name"))?;
            let took = |device: &str| -> Result<f64> {
                let runs = setting.replay(&format!("{path} --device {device}"))?;
                Ok(seconds(runs.iter().map(|run| run.sim_time_ns).sum()))
            };
            let (on_disk, on_ssd) = (took(DISK)?, took(SSD)?);
            row(fs, "the disk", on_disk);
            row(fs, "the SSD", on_ssd);
            beaten &= ours * 10.0 < on_disk;
            alone.push(format!("{:.1} of {fs}'s on the SSD alone ({program})", ours / on_ssd));
        }
    }
    let word = if beaten { "is" } else { "is not" };
    let why = format!(
        "an fsync through nfhybrid {word} over ten times as fast as through each of them on the disk; it takes {}",
        alone.join(", ")
    );
    let config = serde_json::json!({ "disk": DISK, "ssd": SSD, "seed": setting.seed });
    Ok(Findings { rows, holds: beaten, why, config })
}
