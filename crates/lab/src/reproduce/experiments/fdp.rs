//! A flash cache's two kinds of writes under placement handles: what Allison and others measured of CacheLib on an SSD with flexible
//! data placement (EuroSys 2025).
//!
//! Small objects rewrite buckets at random places of 4 % of the cache, large ones fill the rest round and round. In one stream
//! their pages share erase blocks: what is small dies soon, what is large is copied. With a handle for each, blocks of large
//! objects die as a whole, and what is small has all the over-provision to itself. Amplification is that of the last passes of
//! writing as much as the cache has, when it has settled.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::replay::RunReport;
use crate::stack::layers::Layers;
use bimetal_base::Result;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fdp-cachelib",
    about: "write amplification of a flash cache, small and large objects in one stream and with a placement handle each",
    seconds: 2.0,
    measure,
};

/// Over-provision of the flash, percent.
const OVER_PROVISION: u32 = 7;
/// Bytes of the flash, MiB.
const FLASH_MIB: u64 = 2048;
/// What the flash has for a host, MiB.
const HOST_MIB: u64 = 1880;
/// Percent of the device that the cache uses.
const USED: [u64; 2] = [50, 100];
/// Percent of the bytes written that are small objects'. The paper does not say its traces'.
const SMALL: [u32; 3] = [25, 50, 75];
/// Passes before amplification is counted, and passes with those in which it is.
const PASSES: [u32; 2] = [4, 8];

/// Bytes programmed and written in a run of so many passes.
fn replay(
    setting: &ExperimentContext,
    measured: &mut Measured,
    (used, small, handles): (u64, u32, u32),
    passes: u32,
) -> Result<[f64; 2]> {
    let trace = setting
        .seeded(&format!("gen:cachelib:size={}MiB:written={small}:passes={passes}", HOST_MIB * used / 100));
    let line = format!(
        "{trace} --ftl page:over-provision={OVER_PROVISION}:handles={handles} --device slc-4k --device-size {FLASH_MIB}MiB \
         --timing off --precondition fill --jobs 1"
    );
    let reports = setting.replay(&line)?;
    measured.stack = Layers::of_runs(&reports);
    let bytes = |run: &RunReport| {
        run.flash.map(|flash| [flash.done.total.programmed_bytes, flash.host_bytes.written])
    };
    Ok(reports.first().and_then(bytes).unwrap_or_default().map(|bytes| bytes as f64))
}

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let config = serde_json::json!({
        "over_provision_percent": OVER_PROVISION, "part": "slc-4k", "flash_mib": FLASH_MIB, "small_objects_percent": 4,
        "passes_before": PASSES[0], "passes": PASSES[1],
    });
    let mut measured = Measured::with(config);
    for used in USED {
        for small in SMALL {
            for (name, handles) in [("one stream", 1), ("a handle each", 2)] {
                let case = (used, small, handles);
                let [before, after] = [
                    replay(setting, &mut measured, case, PASSES[0])?,
                    replay(setting, &mut measured, case, PASSES[1])?,
                ];
                let amplification = (after[0] - before[0]) / (after[1] - before[1]);
                measured.add(format!("{used} % used, {small} % small/{name}"), "", amplification);
            }
        }
    }
    Ok(measured)
}
