//! What the authors could not see: merges, copies and erases of the SSD's translation layer with extents along its erase blocks
//! and across them.
//!
//! Extents are as large as an erase block. Aligned, the SSD half begins with the SSD, across, it begins at its sector 63, as the
//! first partition of a disk did for twenty years. Files are removed and written anew, so that extents are written over and over.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, SSD, stack};
use super::programs::churn;
use crate::chart::Chart;
use crate::replay::files::FilesReport;
use crate::replay::plot;
use bimetal_base::Result;
use bimetal_ftl::SCHEMES;

/// Registry line.
pub(in super::super) const ALIGN: Experiment = Experiment {
    id: "nfh-align",
    about: "merges, copies and erases of each translation layer with extents along the erase blocks and across them",
    seconds: 2.5,
    measure: align,
};

/// Bytes of the part's erase block.
const ERASE_BLOCK: u64 = 256 << 10;
const SSD_BYTES: u64 = 96 << 20;
const FILES: u32 = 64;
const WRITTEN: u64 = 512 << 20;
/// Schemes that map page by page: an erase block's border is no border to them.
const PAGE_MAPPED: [&str; 2] = ["page", "dftl"];
const SECTOR_63: u64 = 63 * 512;
/// How extents lie to erase blocks, and the byte at which the SSD half begins.
const LAID: [(&str, u64); 2] = [("aligned", 0), ("unaligned", SECTOR_63)];

fn align(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "ssd": SSD, "ssd_bytes": SSD_BYTES, "extent_bytes": ERASE_BLOCK, "written_bytes": WRITTEN, "files": FILES,
        "unaligned_from": SECTOR_63,
    }))
    .on(stack(&FLUSHES[..1]));
    for ftl in SCHEMES.names() {
        let kind = if PAGE_MAPPED.contains(&ftl) { "page-mapped" } else { "block-mapped" };
        let mut reports = Vec::new();
        for (name, begins_at) in LAID {
            let hybrid = Hybrid {
                ssd_bytes: SSD_BYTES,
                ftl: Some(ftl),
                extent_bytes: ERASE_BLOCK,
                begins_at,
                ..Hybrid::new(FLUSHES[0].1)
            };
            let report = hybrid.play(setting, churn(FILES, WRITTEN, setting.seed), true)?;
            let flash = report.devices.get("ssd").map(|device| &device.model["flash"]);
            let count =
                |path: &str| flash.and_then(|flash| flash.pointer(path)).and_then(serde_json::Value::as_f64);
            let mut add = |what: &str, path: &str| {
                if let Some(count) = count(path) {
                    measured.add(format!("{kind}, {ftl}/{name}/{what}"), "", count);
                }
            };
            add("copies", "/nand/copies");
            add("erases", "/nand/erases");
            add("full merges", "/full_merges");
            add("partial merges", "/partial_merges");
            add("switch merges", "/switch_merges");
            add("programs", "/nand/programs");
            reports.push((name, report));
        }
        if setting.first {
            measured.charts.extend(charts(ftl, &reports));
        }
    }
    Ok(measured)
}

/// Where the erases of a layer fell with extents along erase blocks and across them, and when its merges were made.
fn charts(ftl: &str, reports: &[(&str, FilesReport)]) -> Vec<Chart> {
    let ssds = reports.iter().filter_map(|(name, report)| Some((*name, report.devices.get("ssd")?)));
    let maps: Vec<(&str, &[u32])> =
        ssds.clone().map(|(name, ssd)| (name, ssd.erases_by_block.as_slice())).collect();
    let maps = plot::erase_maps(&format!("{ftl}, extents along erase blocks and across them"), &maps);
    let merges = ssds.filter_map(|(name, ssd)| {
        let chart = plot::merges_in_time(&format!("{ftl}, {name} extents,"), &ssd.flow)?;
        Some(Chart { part: format!("-{ftl}-{name}{}", chart.part), ..chart })
    });
    maps.map(|chart| Chart { part: format!("-{ftl}{}", chart.part), ..chart })
        .into_iter()
        .chain(merges)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Body;

    #[test]
    fn erases_of_all_blocks_are_those_counted_and_every_layer_has_its_maps_and_time_lines() {
        let setting = ExperimentContext::of_seed(1);
        let measured = align(&setting).unwrap();
        for ftl in SCHEMES.names() {
            let chart = |part: String| measured.charts.iter().find(|chart| chart.part == part);
            let Some(Chart { body: Body::Maps(maps), .. }) = chart(format!("-{ftl}-erase-map")) else {
                panic!("{ftl}: no maps")
            };
            let kind = if PAGE_MAPPED.contains(&ftl) { "page-mapped" } else { "block-mapped" };
            assert_eq!(maps.len(), LAID.len());
            for ((name, _), (title, cells)) in LAID.iter().zip(maps) {
                let erases = measured.get(&format!("{kind}, {ftl}/{name}/erases")).unwrap();
                assert_eq!(cells.iter().sum::<f64>(), erases, "{ftl}, {name}");
                assert!(title.starts_with(name) && title.contains(&format!(" {erases} erases")), "{title}");
                let line = chart(format!("-{ftl}-{name}-merges")).unwrap();
                let Body::Curves { curves, .. } = &line.body else { panic!("{ftl}: no curves") };
                let erased = curves.iter().find(|curve| curve.name == "blocks erased").unwrap();
                // The run's own; making the file system erases, too.
                let last = erased.points.last().unwrap().1.mean;
                assert!(last > erases / 2.0 && last <= erases, "{ftl}, {name}: {last} of {erases}");
            }
        }
        let later = align(&ExperimentContext { first: false, ..setting }).unwrap();
        assert!(later.charts.is_empty() && later.figures == measured.figures);
    }
}
