//! Tide, the page cache policy of our own, beside CSWLRU, at equal memory: misses, page writes, erases and time.
//!
//! Its thresholds were chosen on the traces of [`TUNED`]: what it does there proves nothing. It is judged on those of
//! [`HELD_OUT`], which were recorded or published as those were, and looked at only when it was done. Every trace runs at three
//! cache sizes over three translation layers with both policies. The long form shows the tuned ones, too, block traces also
//! without their flushes.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::replay::RunReport;
use crate::stack::layers::Layers;
use bimetal_base::Result;
use bimetal_base::units::show_size;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "cache-tide",
    about: "our own page cache policy beside CSWLRU, on traces that it was not tuned on",
    seconds: 18.0,
    measure,
};

const STACK: &str = "--cache cswlru,tide --cache-size 4MiB,16MiB,64MiB --ftl bast,fast,page --device slc-4k \
                     --precondition fill --fit compact";

/// Recorded, and not looked at while Tide was made.
const HELD_OUT: [&str; 13] = [
    "gen:p2p:seed=2",
    "gen:p2p:piece=1MiB:peers=60:seed=3",
    "p2p/hostC.file.csv.zst",
    "fio/f0.dev.csv.zst",
    "block/ext2-bonnieb.dev.csv.zst",
    "block/ext4-bonnieb.dev.csv.zst",
    "block/xfs-bonnieb.dev.csv.zst",
    "block/ext2-pm1kd.dev.csv.zst",
    "block/ext4-pm1kd.dev.csv.zst",
    "block/xfs-pm1kd.dev.csv.zst",
    "block/xfs-rnd.dev.csv.zst",
    "public/mqsim-tpcc-small.trace.zst",
    "public/msr-hm_0-sample.csv",
];

/// Of these the thresholds are.
const TUNED: [&str; 35] = [
    "gen:iometer:size=288MiB:requests=131072:random=60:seed=1",
    "gen:iometer:size=288MiB:requests=131072:random=0:seed=1",
    "gen:iometer:size=288MiB:requests=131072:random=100:seed=1",
    "gen:p2p:size=268435456:piece=256KiB:seed=1",
    "gen:zipf:pages=60000:requests=200000:seed=1",
    "block/ext2-rnd.dev.csv.zst",
    "block/ext2-rndre.dev.csv.zst",
    "block/ext2-seq64.dev.csv.zst",
    "block/ext2-pm20k.dev.csv.zst",
    "block/ext2-pm20kd.dev.csv.zst",
    "block/ext2-chunkf.dev.csv.zst",
    "block/ext2-bonnie.dev.csv.zst",
    "block/ext4-rnd.dev.csv.zst",
    "block/ext4-rndre.dev.csv.zst",
    "block/ext4-seq64.dev.csv.zst",
    "block/ext4-pm20k.dev.csv.zst",
    "block/ext4-pm20kd.dev.csv.zst",
    "block/ext4-chunkf.dev.csv.zst",
    "block/ext4-bonnie.dev.csv.zst",
    "block/xfs-pm20k.dev.csv.zst",
    "block/xfs-pm20kd.dev.csv.zst",
    "block/xfs-chunkf.dev.csv.zst",
    "p2p/G1.dev.csv.zst",
    "p2p/G4.dev.csv.zst",
    "fio/f60.dev.csv.zst",
    "p2p/G1.file.csv.zst",
    "p2p/G4.file.csv.zst",
    "p2p/G5.file.csv.zst",
    "fio/f0.file.csv.zst",
    "fio/f60.file.csv.zst",
    "fio/f100.file.csv.zst",
    "public/cloudPhysicsIO.csv.zst",
    "public/disksim-ascii.trace.zst",
    "public/ssdsim-financial1-10k.ascii",
    "public/tencent-cbs-sample.csv.bz2",
];

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "stacks": STACK, "held out": HELD_OUT.as_slice(), "tuned on": TUNED.as_slice(),
    }));
    for name in HELD_OUT {
        compare(setting, &mut measured, "held out", name, "")?;
    }
    if setting.full {
        for name in TUNED {
            compare(setting, &mut measured, "tuned on", name, "")?;
            if name.contains(".dev.") {
                compare(setting, &mut measured, "tuned on", name, "--no-flush")?;
            }
        }
    }
    Ok(measured)
}

/// Both policies on one trace, over all stacks.
fn compare(
    setting: &ExperimentContext,
    measured: &mut Measured,
    set: &str,
    name: &str,
    options: &str,
) -> Result<()> {
    let trace = match name.starts_with("gen:") {
        true => name.to_string(),
        false => setting.trace_path(name)?.display().to_string(),
    };
    let short = name.split(".csv").next().unwrap_or(name).replace('/', "-");
    let flushes = if options.is_empty() { "" } else { ", no flushes" };
    let runs = setting.replay(&format!("{trace} {STACK} {options}"))?;
    measured.stack = Layers::of_runs(&runs);
    runs.iter().for_each(|run| add(measured, &format!("{set}/{short}{flushes}"), run));
    Ok(())
}

fn add(measured: &mut Measured, of: &str, run: &RunReport) {
    let first = |text: &str| text.split([' ', ':']).next().unwrap_or_default().to_string();
    let layer = run.config.ftl.as_deref().map(first).unwrap_or_default();
    let size = run.config.cache_bytes.map(show_size).unwrap_or_default();
    let of = format!("{of}, {layer} at {size}/{}", first(&run.config.run));
    measured.add(format!("{of}/misses"), "%", 100.0 - run.hit_ratio.unwrap_or(0.0) * 100.0);
    measured.add(format!("{of}/page writes"), "", run.pages_written as f64);
    measured.add(format!("{of}/erases"), "", run.erases.unwrap_or(0) as f64);
    measured.add(format!("{of}/time"), "s", run.sim_time_ns as f64 / 1e9);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_trace_is_both_tuned_on_and_held_out() {
        assert!(HELD_OUT.iter().all(|name| !TUNED.contains(name)));
    }

    #[test]
    fn every_generator_is_one() {
        let setting = ExperimentContext::of_seed(1);
        for recipe in TUNED.iter().chain(&HELD_OUT).filter(|name| name.starts_with("gen:")) {
            let replayed = setting.replay(&format!("{recipe} --requests 100 --device none"));
            assert!(replayed.is_ok_and(|runs| runs[0].requests == 100), "{recipe}");
        }
    }
}
