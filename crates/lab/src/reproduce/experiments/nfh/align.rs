//! What the authors could not see: merges, copies and erases of the SSD's translation layer with extents along its erase blocks
//! and across them.
//!
//! Extents are as large as an erase block. Aligned, the SSD half begins with the SSD, across, it begins at its sector 63, as the
//! first partition of a disk did for twenty years. Files are removed and written anew, so that extents are written over and over.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, SSD, stack};
use super::programs::churn;
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

fn align(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "ssd": SSD, "ssd_bytes": SSD_BYTES, "extent_bytes": ERASE_BLOCK, "written_bytes": WRITTEN, "files": FILES,
        "unaligned_from": SECTOR_63,
    })).on(stack(&FLUSHES[..1]));
    for ftl in SCHEMES.names() {
        let kind = if PAGE_MAPPED.contains(&ftl) { "page-mapped" } else { "block-mapped" };
        for (name, begins_at) in [("aligned", 0), ("unaligned", SECTOR_63)] {
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
        }
    }
    Ok(measured)
}
