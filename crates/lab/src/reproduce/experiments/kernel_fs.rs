//! The kernel's ext2, ext4 and xfs beside nfhybrid, on the same models: 4 KiB appended and fsynced, again and again.
//!
//! Theirs are the requests that the kernel made of this program (recorded below each file system by blktrace, from mount to
//! unmount), played on the model of a disk and on that of an SSD, one at a time, with their barriers. Ours are the
//! program's calls on nfhybrid over both models. Programs compute in no time in either, so this is what the devices cost.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::stack::layers::Layers;
use bimetal_base::Result;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "kernel-fsync",
    about: "appends with an fsync each: ext2, ext4 and xfs on a disk or an SSD, and nfhybrid on both",
    seconds: 0.4,
    measure,
};

const DISK: &str = "hdd-7200";
const SSD: &str = "ssd-slc";
/// Its records, and how large the file gets, MiB.
const PROGRAMS: [(&str, u64); 2] = [("seq16", 16), ("seq64", 64)];
const KERNEL: [&str; 3] = ["ext2", "ext4", "xfs"];
const RECORD_BYTES: u64 = 4096;

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let config = serde_json::json!({ "disk": DISK, "ssd": SSD, "seed": setting.seed });
    let mut measured = Measured::with(config).on(Layers::of(&[
        &[("program", "4 KiB appended and fsynced")],
        &[("file system", "nfhybrid over both; ext2, ext4 and xfs, as recorded requests, over one")],
        &[("SSD", SSD), ("disk", DISK)],
    ]));
    for (program, mib) in PROGRAMS {
        let fsyncs = (mib << 20) / RECORD_BYTES;
        let a_sync = |ns: u64| 1e-6 * ns as f64 / fsyncs as f64;
        let calls = format!(
            "gen:fio-job:size={mib}MiB:block=4KiB:requests={fsyncs}:random=0:fsync=1:seed=1 --fs nfhybrid --disk {DISK} --ssd {SSD}"
        );
        let ours = a_sync(setting.replay_calls(&calls)?.sim_time_ns);
        for fs in KERNEL {
            let path = setting.trace_path(&format!("block/{fs}-{program}.bio.csv.zst"))?;
            let took = |device: &str| -> Result<f64> {
                let runs = setting.replay(&format!("{} --device {device}", path.display()))?;
                Ok(a_sync(runs.iter().map(|run| run.sim_time_ns).sum()))
            };
            measured.add(format!("{program}, {fs}/on the disk"), "ms a sync", took(DISK)?);
            measured.add(format!("{program}, {fs}/on the SSD"), "ms a sync", took(SSD)?);
            measured.add(format!("{program}, {fs}/nfhybrid"), "ms a sync", ours);
        }
    }
    Ok(measured)
}
