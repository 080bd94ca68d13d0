//! nfhybrid on simulated devices, and how fast programs are on it.

use super::super::super::ExperimentContext;
use crate::kinds::nfhybrid::play::{SsdHalf, play_laid_out};
use crate::replay::Args;
use crate::replay::files::{FilesReport, replay_on};
use crate::stack::layers::Layers;
use bimetal_base::Result;
use bimetal_nfhybrid::ssd::{Config, SectionConfig};
use bimetal_trace::calls::Workload;

/// Whether the disk writes its memory when it is asked to, and its profile.
pub(super) const FLUSHES: [(&str, &str); 2] = [("ignored", "hdd-7200-lying"), ("honoured", "hdd-7200")];
/// The profile of the SSD half, and of the SSD that the kernel's file systems are on.
pub(super) const SSD: &str = "ssd-slc";

/// Which nfhybrid.
#[derive(Clone, Debug)]
pub(super) struct Hybrid {
    /// The disk's profile.
    pub disk: &'static str,
    /// The SSD's bytes.
    pub ssd_bytes: u64,
    /// The SSD's translation layer, if not its profile's.
    pub ftl: Option<&'static str>,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Where on the SSD its half begins.
    pub begins_at: u64,
}

/// The layers, on these disks in turn.
pub(super) fn stack(disks: &[(&str, &str)]) -> Layers {
    let disk = |(flushes, profile): &(&str, &str)| format!("{profile}, flushes {flushes}");
    let disks: Vec<String> = disks.iter().map(disk).collect();
    Layers::of(&[
        &[("program", "the paper's, as calls")],
        &[("file system", "nfhybrid; of the peers the kernel's ext2 and xfs, as recorded requests")],
        &[("SSD half", SSD), ("disk half", &disks.join("; "))],
    ])
}

impl Hybrid {
    /// One large section of 16 KiB extents, as the paper has it in figures 7 to 12.
    pub fn new(disk: &'static str) -> Hybrid {
        Hybrid { disk, ssd_bytes: 1 << 30, ftl: None, extent_bytes: 16 << 10, begins_at: 0 }
    }

    /// Plays a program; at the end all is made durable if `drained`.
    pub fn play(
        &self,
        setting: &ExperimentContext,
        workload: Workload,
        drained: bool,
    ) -> Result<FilesReport> {
        let Hybrid { disk, ssd_bytes, ftl, extent_bytes, begins_at } = self.clone();
        let ftl = ftl.map_or_else(String::new, |ftl| format!("--ftl {ftl}"));
        let drain = if drained { "" } else { "--no-drain" };
        let line = format!(
            "program --fs nfhybrid --ssd {SSD} --ssd-size {ssd_bytes} --disk {disk} --disk-size 2GiB {ftl} {drain} --seed {}",
            setting.seed
        );
        let section = SectionConfig { name: "default".into(), extent_bytes, size_bytes: None };
        let config = Config { sections: vec![section], ..Config::default() };
        let half = SsdHalf { config, begins_at };
        let report =
            replay_on(&Args::parse(&line)?, workload, move |clock, args| play_laid_out(clock, args, &half))?;
        setting.note_calls(
            &report,
            &serde_json::json!({ "extent_bytes": extent_bytes, "ssd_begins_at": begins_at }),
        );
        Ok(report)
    }

    /// MB/s of a program's writes or reads, until its last call returned.
    pub fn mb_per_s(&self, setting: &ExperimentContext, workload: Workload) -> Result<f64> {
        let report = self.play(setting, workload, false)?;
        let bytes = report.bytes_written.max(report.bytes_read);
        Ok(rate(bytes, report.sim_time_ns))
    }
}

/// MB/s.
pub(super) fn rate(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 1e3 / ns.max(1) as f64
}
