//! The object-flash paper's idea over a block interface: what placement handles bring on a page map, beside what
//! placement brings in an object store (`osd-fig2a`, `osd-fig2b`).
//!
//! Block traces recorded below ext4, ext2 and VFAT are replayed on a page-mapped layer, filled first, with one handle
//! and with two. What carries the second handle: on ext4 what the file system itself marks as metadata; on VFAT the
//! FATs and the root directory; on any of them pages written again and again, which is all that a cache or a device
//! can know. The traces wrap around a flash so small that cleaning is at work all the time.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::replay::RunReport;
use crate::stack::layers::Layers;
use bimetal_base::Result;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "osd-block",
    about: "the same hints over a block interface: copies and erases of a page map with placement handles",
    seconds: 0.6,
    measure,
};

/// Trace, size of the device, and who tells which writes are metadata: the trace, or a range of bytes.
const CASES: [(&str, &str, Option<&str>); 5] = [
    ("block/ext4-pm20kd.bio.csv.zst", "480MiB", None),
    ("block/ext4-chunkf.bio.csv.zst", "400MiB", None),
    ("block/ext4-rnd.bio.csv.zst", "128MiB", None),
    ("block/ext2-pm20kd.bio.csv.zst", "240MiB", None),
    ("block/vfat-camera500.dev.csv.zst", "38MiB", Some("0-82KiB")),
];
/// Pages written three times within so many page writes.
const HEAT: &str = "heat:3/16384";
/// Over-provision of the flash, percent.
const OVER_PROVISION: u32 = 10;

struct Found {
    copied: f64,
    erases: f64,
}

fn found(report: &RunReport) -> Found {
    let copied = report.pages_copied.unwrap_or(0) as f64;
    Found { copied, erases: report.erases.unwrap_or(0) as f64 }
}

fn replay(
    setting: &ExperimentContext,
    measured: &mut Measured,
    case: &(&str, &str, Option<&str>),
    place: Option<&str>,
    handles: u32,
) -> Result<Found> {
    let (trace, size, _) = case;
    let path = setting.trace_path(trace)?;
    let place = place.map(|what| format!("--place {what}")).unwrap_or_default();
    let line = format!(
        "{} --ftl page:over-provision={OVER_PROVISION}:handles={handles} --device slc-4k --device-size {size} \
         --fit compact --chunk 64KiB --precondition fill --jobs 1 {place}",
        path.display()
    );
    let reports = setting.replay(&line)?;
    measured.stack = Layers::of_runs(&reports);
    Ok(reports.first().map(found).unwrap_or(Found { copied: 0.0, erases: 0.0 }))
}

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let config = serde_json::json!({ "over_provision_percent": OVER_PROVISION, "part": "slc-4k" });
    let mut measured = Measured::with(config);
    for case in &CASES {
        let name = case.0.split(['/', '.']).nth(1).unwrap_or(case.0);
        let ways =
            [("one handle", case.2, 1), ("metadata apart", case.2, 2), ("hot pages apart", Some(HEAT), 2)];
        for (way, place, handles) in ways {
            let found = replay(setting, &mut measured, case, place, handles)?;
            measured.add(format!("{name}/{way}/copied"), "pages", found.copied);
            measured.add(format!("{name}/{way}/erases"), "", found.erases);
        }
    }
    Ok(measured)
}
