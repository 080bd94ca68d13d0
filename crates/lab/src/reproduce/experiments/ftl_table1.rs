//! Doh and others (IEICE 2010), Table 1: Camera-MS500 over three translation layers, with hot metadata and
//! with a non-volatile cache that takes it, from streams of sectors.
//!
//! - *data sheet*: simulated time on the K9F1208 class of part, 250 µs of software a request, and the schemes as they were
//!   published, on a volume that begins with the flash;
//! - *fitted*: operation counts of the variants, times the costs, of the preset `ftl-paper.toml`, which were searched until the
//!   table came out;
//! - *kernel, data sheet*: the first on the recorded trace of a real kernel's VFAT.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::replay::RunReport;
use crate::stack::layers::Layers;
use bimetal_base::{Error, Result};
use serde::Deserialize;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "ftl-table1",
    about: "time of Camera-MS500 over three FTLs, with and without hot metadata",
    seconds: 0.9,
    measure,
};

const PRESET: &str = include_str!("../presets/ftl-paper.toml");
const RECORDED: &str = "block/vfat-camera500.dev.csv.zst";
/// Bytes before the data, of the recorded volume and of the modelled one.
const RECORDED_HOT_BYTES: u64 = 164 * 512;
const MODELLED_HOT_BYTES: u64 = 161 * 512;
/// What the software takes for each request that reaches the data-sheet part.
const OVERHEAD: &str = "--overhead 250us";
const DEVICE: &str = "--device slc-512";
/// The schemes as published: the replacement scheme of Linux 2.6.21, Kim and others' log blocks, Lee and others' FAST.
const PUBLISHED: &str =
    "nftl:logs=64:logical=33MiB,bast:logs=64:victim=lru:merge=lazy:logical=33MiB,fast:logs=64:logical=33MiB";

/// The paper's rows: its name, our scheme, seconds with hot metadata and without.
pub(super) const PAPER: [(&str, &str, f64, f64); 3] =
    [("Repl", "nftl", 9731.15, 324.65), ("Log", "bast", 1116.10, 350.33), ("FAST", "fast", 2200.72, 331.29)];

/// The preset file.
#[derive(Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    write_ms: f64,
    copy_ms: f64,
    erase_ms: f64,
    mapping_ms: Each<f64>,
    schemes: Each<String>,
    volume: Volume,
}

/// Something a scheme.
#[derive(Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct Each<T> {
    nftl: T,
    bast: T,
    fast: T,
}

#[derive(Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    start: u64,
    slots: u64,
}

/// Seconds with hot metadata and without, in the order of [`PAPER`].
type Times = [(f64, f64); 3];

impl Preset {
    fn load() -> Result<Preset> {
        toml::from_str(PRESET).map_err(|why| Error::invalid(format!("ftl-paper.toml: {why}")))
    }

    /// All schemes as `--ftl` takes them, in the order of [`PAPER`].
    fn ftls(&self) -> String {
        [&self.schemes.nftl, &self.schemes.bast, &self.schemes.fast].map(String::as_str).join(",")
    }

    /// Seconds that a run's operations cost.
    fn seconds(&self, run: &RunReport, mapping_ms: f64) -> f64 {
        let writes = run.pages_written as f64 * (self.write_ms + mapping_ms);
        let copies = run.pages_copied.unwrap_or(0) as f64 * self.copy_ms;
        let erases = run.erases.unwrap_or(0) as f64 * self.erase_ms;
        (writes + copies + erases) / 1e3
    }

    fn times(&self, [hot, cold]: &[Vec<RunReport>; 2]) -> Result<Times> {
        let mapping = [self.mapping_ms.nftl, self.mapping_ms.bast, self.mapping_ms.fast];
        let of =
            |index: usize, runs: &[RunReport]| runs.get(index).map(|run| self.seconds(run, mapping[index]));
        pairs(|index| of(index, hot).zip(of(index, cold)))
    }
}

fn pairs(of: impl Fn(usize) -> Option<(f64, f64)>) -> Result<Times> {
    let missing = || Error::invalid("a scheme gave no run");
    Ok([of(0).ok_or_else(missing)?, of(1).ok_or_else(missing)?, of(2).ok_or_else(missing)?])
}

/// Simulated seconds.
fn simulated([hot, cold]: &[Vec<RunReport>; 2]) -> Result<Times> {
    let of = |index: usize, runs: &[RunReport]| runs.get(index).map(|run| run.sim_time_ns as f64 / 1e9);
    pairs(|index| of(index, hot).zip(of(index, cold)))
}

/// The same runs with all writes and with the hot range absorbed.
fn both(
    setting: &ExperimentContext,
    trace: &str,
    ftls: &str,
    hot: (u64, u64),
) -> Result<[Vec<RunReport>; 2]> {
    let line = format!("{trace} {DEVICE} --ftl {ftls} {OVERHEAD}");
    let (from, end) = hot;
    Ok([setting.replay(&line)?, setting.replay(&format!("{line} --absorb {from}-{end}"))?])
}

/// Adds times, and the gains that follow, beside the paper's.
pub(super) fn add(measured: &mut Measured, of: &str, times: &Times) {
    for ((name, _, hot, cold), (our_hot, our_cold)) in PAPER.iter().zip(times) {
        measured.beside(format!("{of}/{name}/hot"), "s", *hot, *our_hot);
        measured.beside(format!("{of}/{name}/cold"), "s", *cold, *our_cold);
        measured.beside(format!("{of}/{name}/gain"), "x", hot / cold, our_hot / our_cold);
    }
}

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let preset = Preset::load()?;
    let Volume { start, slots } = preset.volume;
    let given = setting.seeded("gen:camera-vfat:format=yes");
    let searched = setting.seeded(&format!("gen:camera-vfat:format=yes:start={start}:slots={slots}"));
    let mut measured = Measured::with(serde_json::json!({
        "preset": preset, "given": given, "searched": searched, "device": DEVICE, "overhead": OVERHEAD, "published": PUBLISHED,
    }));
    let published = both(setting, &given, PUBLISHED, (0, MODELLED_HOT_BYTES))?;
    add(&mut measured, "data sheet", &simulated(&published)?);
    measured.stack = Layers::of_runs(&published[0]);
    if setting.first {
        measured.charts.extend(published[0].iter().flat_map(|run| run.charts_of("")));
    }
    let hot = (start * 512, start * 512 + MODELLED_HOT_BYTES);
    add(&mut measured, "fitted", &preset.times(&both(setting, &searched, &preset.ftls(), hot)?)?);
    if setting.first {
        let trace = format!("{} --no-flush", setting.trace_path(RECORDED)?.display());
        let kernel = both(setting, &trace, PUBLISHED, (0, RECORDED_HOT_BYTES))?;
        add(&mut measured, "kernel, data sheet", &simulated(&kernel)?);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::super::super::judge::{Verdict, judge};
    use super::super::super::{Found, claims::CLAIMS};
    use super::*;

    /// The claim on the paper's own figures, as if both presets had given them, changed by `change`.
    fn verdict(change: impl Fn(&mut Times)) -> Verdict {
        let mut times = PAPER.map(|(_, _, hot, cold)| (hot, cold));
        change(&mut times);
        let mut measured = Measured::default();
        add(&mut measured, "fitted", &times);
        add(&mut measured, "data sheet", &[(1.0, 1.0); 3]);
        judge(CLAIMS.find("ftl-table1").unwrap(), &Found { seeds: vec![(1, measured)] }).unwrap().verdict
    }

    #[test]
    fn the_papers_own_figures_hold_and_no_two_of_them_may_change_places() {
        assert_eq!(verdict(|_| ()), Verdict::HoldsFitted);
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            assert_eq!(verdict(|times| times.swap(a, b)), Verdict::Fails);
        }
        assert_eq!(verdict(|times| times[2].0 *= 1.1), Verdict::Fails, "a gain that is off");
    }

    #[test]
    fn every_seed_is_another_table_and_some_break_the_fitted_order() {
        let claim = CLAIMS.find("ftl-table1").unwrap();
        let of = |seed| (seed, measure(&ExperimentContext::of_seed(seed)).unwrap());
        let (first, seventh) = (of(1), of(7));
        assert_ne!(first.1.get("fitted/FAST/hot").unwrap(), seventh.1.get("fitted/FAST/hot").unwrap());
        let judged = judge(claim, &Found { seeds: vec![first, seventh] }).unwrap();
        assert_eq!(judged.verdict, Verdict::Fails, "{}", judged.why);
    }
}
