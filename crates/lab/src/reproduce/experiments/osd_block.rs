//! The object-flash paper's idea over a block interface: what placement handles bring on a page map, beside what
//! placement brings in an object store (`osd-fig2a`, `osd-fig2b`).
//!
//! Block traces recorded below ext4, ext2 and VFAT are replayed on a page-mapped layer, filled first, with one handle
//! and with two. What carries the second handle: on ext4 what the file system itself marks as metadata; on VFAT the
//! FATs and the root directory; on any of them pages written again and again, which is all that a cache or a device
//! can know. The traces wrap around a flash so small that cleaning is at work all the time.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::replay::RunReport;
use bimetal_base::Result;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "osd-block",
    figure: "002, figure 2, by placement handles",
    about: "the same hints over a block interface: copies and erases of a page map with placement handles",
    seed: 1,
    run,
};

/// Trace, size of the device, and who tells which writes are metadata: the trace, or a range of bytes.
const CASES: [(&str, &str, Option<&str>); 5] = [
    ("block/ext4-pm20kd.bio.csv.zst", "480MiB", None),
    ("block/ext4-chunkf.bio.csv.zst", "400MiB", None),
    ("block/ext4-rnd.bio.csv.zst", "128MiB", None),
    ("block/ext2-pm20kd.bio.csv.zst", "240MiB", None),
    ("block/vfat-camera500.dev.csv.zst", "38MiB", Some("0-82KiB")),
];
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
    case: &(&str, &str, Option<&str>),
    place: Option<&str>,
    handles: u32,
) -> Result<Found> {
    let (trace, size, _) = case;
    let path = setting.traces_dir()?.join(trace);
    let place = place.map(|what| format!("--place {what}")).unwrap_or_default();
    let line = format!(
        "{} --ftl page:over-provision={OVER_PROVISION}:handles={handles} --device slc-4k --device-size {size} \
         --fit compact --chunk 64KiB --precondition fill --jobs 1 {place}",
        path.display()
    );
    let reports = setting.replay(&line)?;
    Ok(reports.first().map(found).unwrap_or(Found { copied: 0.0, erases: 0.0 }))
}

fn run(setting: &ExperimentContext) -> Result<Findings> {
    let (mut rows, mut gains, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for case in &CASES {
        let name = case.0.split(['/', '.']).nth(1).unwrap_or(case.0);
        let one = replay(setting, case, case.2, 1)?;
        let told = if case.2.is_some() { "metadata by its place" } else { "metadata as the trace marks it" };
        for (what, place) in [(told, case.2), ("hot pages", Some("heat:3/16384"))] {
            let two = replay(setting, case, place, 2)?;
            let change =
                |with: f64, without: f64| if without > 0.0 { (with / without - 1.0) * 100.0 } else { 0.0 };
            let (copied, erases) = (change(two.copied, one.copied), change(two.erases, one.erases));
            rows.push(Row::ours(format!("{name}, {what}: pages copied, change"), "%", copied));
            rows.push(Row::ours(format!("{name}, {what}: erases, change"), "%", erases));
            let line = format!("{name} ({what}): copied {copied:+.1} %, erases {erases:+.1} %");
            if copied > 1.0 { &mut losses } else { &mut gains }.push(line);
        }
        rows.push(Row::ours(format!("{name}: pages copied with one handle"), "pages", one.copied));
    }
    let holds = losses.is_empty();
    let why = format!(
        "handles change cleaning without objects: {}{}{}",
        gains.join("; "),
        if holds { "" } else { "; and lose: " },
        losses.join("; ")
    );
    let config = serde_json::json!({ "over_provision_percent": OVER_PROVISION, "part": "slc-4k" });
    Ok(Findings { rows, holds, why, config })
}
