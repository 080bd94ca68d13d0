//! Plots of several runs, as SVG or PNG, and of one: where it erased, and when it merged.
//!
//! With several cache sizes the abscissa is the size and each stack is a curve (so `miss-ratio` is the
//! miss-ratio curve); otherwise every run is a bar. `latency` has the percentiles as abscissa and logarithms of milliseconds.

use super::report::RunReport;
use crate::chart::{Axis, Body, Chart, Curve, Scale, save};
use bimetal_base::{Error, Result};
use clap::ValueEnum;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Part of the page accesses that missed the cache
    MissRatio,
    /// Latency by percentile
    Latency,
    /// Blocks erased
    Erases,
    /// Pages written to the device
    Writes,
    /// Pages programmed for a page written
    Amplification,
    /// Simulated time of the whole trace
    Time,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::MissRatio, Kind::Writes, Kind::Erases, Kind::Amplification, Kind::Time, Kind::Latency];

    /// What is shown, and the quantity with its unit.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::MissRatio => ("Misses of the page cache", "part of the page accesses that missed"),
            Kind::Latency => ("Latency of requests", "latency (ms)"),
            Kind::Erases => ("Blocks erased", "erases"),
            Kind::Writes => ("Pages written to the device", "pages"),
            Kind::Amplification => ("Write amplification", "pages programmed for a page written"),
            Kind::Time => ("Simulated time of the whole trace", "time (s)"),
        }
    }

    fn value(self, run: &RunReport) -> Option<f64> {
        match self {
            Kind::MissRatio => run.hit_ratio.map(|hits| 1.0 - hits),
            Kind::Latency => Some(run.latency_ns.mean / 1e6),
            Kind::Erases => run.erases.map(|erases| erases as f64),
            Kind::Writes => Some(run.pages_written as f64),
            Kind::Amplification => run.write_amplification,
            Kind::Time => Some(run.sim_time_ns as f64 / 1e9),
        }
    }
}

/// A plot asked for on the command line: `KIND=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    kind: Kind,
    path: PathBuf,
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Wanted> {
        let names = || Kind::ALL.iter().filter_map(Kind::to_possible_value).map(|v| v.get_name().to_string());
        let known = || names().collect::<Vec<_>>().join(", ");
        let (kind, path) = text.split_once('=').unwrap_or((text, ""));
        let kind = Kind::from_str(kind, false)
            .map_err(|_| Error::invalid(format!("there is no plot '{kind}'; there are {}", known())))?;
        let path = PathBuf::from(path);
        match can_be_drawn(&path) {
            true => Ok(Wanted { kind, path }),
            false => Err(Error::invalid(format!(
                "'{text}': a plot goes to a .svg or .png file, as erases=out.svg"
            ))),
        }
    }
}

/// Whether a file's name says how a plot is drawn into it.
pub(super) fn can_be_drawn(path: &Path) -> bool {
    matches!(path.extension().and_then(|ext| ext.to_str()), Some("svg" | "png"))
}

impl Wanted {
    /// The file that it is drawn into.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Draws it.
    ///
    /// # Errors
    /// The runs have nothing to draw, or the file cannot be written.
    pub(super) fn draw(&self, runs: &[RunReport]) -> Result<()> {
        if runs.iter().all(|run| self.kind.value(run).is_none()) {
            let (title, _) = self.kind.words();
            let title = title.to_lowercase();
            return Err(Error::invalid(format!("there is nothing to draw: these runs have no {title}")));
        }
        save(&self.path, &chart(self.kind, runs))
    }
}

/// A plot of runs.
fn chart(kind: Kind, runs: &[RunReport]) -> Chart {
    let (title, quantity) = kind.words();
    let values = || runs.iter().filter_map(|run| kind.value(run));
    let sizes: BTreeSet<_> = runs.iter().filter_map(|run| run.config.cache_bytes).collect();
    let of_curves = |curves: Vec<Curve>, x: Axis| {
        let all = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, value)| value.mean));
        let scale = if kind == Kind::Latency { Scale::Log10 } else { Scale::for_values(all) };
        let y = Axis::scaled(quantity, scale);
        Chart {
            part: String::new(),
            title: title.into(),
            x,
            y,
            body: Body::Curves { curves, paper: Vec::new() },
        }
    };
    if kind == Kind::Latency {
        let curves = runs.iter().map(percentiles).collect();
        return of_curves(curves, Axis::scaled("percentile of the requests", Scale::Nines));
    }
    if sizes.len() > 1 {
        return of_curves(by_size(kind, runs), Axis::scaled("size of the cache", Scale::Bytes));
    }
    let bar = |run: &RunReport| Some((run.config.run.clone(), kind.value(run)?.into()));
    Chart {
        part: String::new(),
        title: title.into(),
        x: Axis::scaled(quantity, Scale::for_values(values())),
        y: Axis::default(),
        body: Body::bars(runs.iter().filter_map(bar)),
    }
}

/// One curve a stack, over the cache's size.
fn by_size(kind: Kind, runs: &[RunReport]) -> Vec<Curve> {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs {
        if let (Some(bytes), Some(value)) = (run.config.cache_bytes, kind.value(run)) {
            curves.entry(run.config.series.clone()).or_default().push((bytes as f64, value));
        }
    }
    let curve = |(name, mut points): (String, Vec<(f64, f64)>)| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { name, points: points.into_iter().map(|(x, y)| (x, y.into())).collect() }
    };
    curves.into_iter().map(curve).collect()
}

/// A run's percentiles, ms, over −log₁₀ of the part above: each nine is a step.
fn percentiles(run: &RunReport) -> Curve {
    let latency = &run.latency_ns;
    let points = [
        (0.0, latency.min),
        (2f64.log10(), latency.p50),
        (1.0, latency.p90),
        (20f64.log10(), latency.p95),
        (2.0, latency.p99),
        (3.0, latency.p99_9),
        (4.0, latency.p99_99),
    ];
    let points = points.map(|(nines, ns)| (nines, (ns as f64 / 1e6).into())).to_vec();
    Curve { name: run.config.run.clone(), points }
}

/// All plots in which some run has more than nothing, for a page.
pub(super) fn all(runs: &[RunReport]) -> Vec<Chart> {
    let shows = |kind: &Kind| runs.iter().any(|run| kind.value(run).is_some_and(|value| value > 0.0));
    Kind::ALL.into_iter().filter(shows).map(|kind| chart(kind, runs)).collect()
}

/// What is counted of a moment.
type Count = fn(&super::Moment) -> u64;

impl RunReport {
    /// Where the run's flash was erased and when it merged, where there is flash.
    pub(crate) fn charts(&self) -> Vec<Chart> {
        self.erase_map().into_iter().chain(self.merges_in_time()).collect()
    }

    /// The same of one of several runs of a workload of this name.
    pub(crate) fn charts_of(&self, name: &str) -> Vec<Chart> {
        let mut charts = self.charts();
        for chart in &mut charts {
            let whose = format!("{name} {}", self.config.run);
            let words = whose.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
            chart.part = format!("-{}{}", words.collect::<Vec<_>>().join("-"), chart.part);
            let name = name.trim_start_matches(", ");
            if !name.is_empty() {
                chart.title = format!("{}, {name}", chart.title);
            }
        }
        charts
    }

    /// Erases of each block, the darker the more.
    fn erase_map(&self) -> Option<Chart> {
        let total: u64 = self.erases_by_block.iter().map(|erases| u64::from(*erases)).sum();
        if total == 0 {
            return None;
        }
        let (body, each) = Body::cells(&self.erases_by_block);
        let count = self.erases_by_block.len();
        let title =
            format!("Erase map of {}: {count} blocks by number, {total} erases since new", self.config.run);
        let (x, y) = (Axis::linear(erases_label(each)), Axis::default());
        Some(Chart { part: "-erase-map".into(), title, x, y, body })
    }

    /// Merges, copies and erases until each instant.
    fn merges_in_time(&self) -> Option<Chart> {
        merges_in_time(&self.config.run, &self.flow)
    }
}

/// What the shade of a square of so many blocks is.
fn erases_label(each: usize) -> String {
    match each {
        1 => "erases of a block".to_string(),
        _ => format!("erases, the mean of {each} blocks a square"),
    }
}

/// Erases of each block of several runs that stand beside each other, each with its name; none where nothing was erased.
pub(crate) fn erase_maps(of: &str, runs: &[(&str, &[u32])]) -> Option<Chart> {
    let total = |erases: &[u32]| erases.iter().map(|erases| u64::from(*erases)).sum::<u64>();
    if runs.iter().all(|(_, erases)| total(erases) == 0) {
        return None;
    }
    // One square is as many blocks in all of them.
    let longest =
        runs.iter().map(|(_, erases)| *erases).max_by_key(|erases| erases.len()).unwrap_or_default();
    let (_, each) = Body::cells(longest);
    let map = |(name, erases): &(&str, &[u32])| {
        let name = format!("{name}: {} blocks by number, {} erases since new", erases.len(), total(erases));
        (name, Body::squares(erases, each))
    };
    Some(Chart {
        part: "-erase-map".into(),
        title: format!("Erase maps of {of}"),
        x: Axis::linear(erases_label(each)),
        y: Axis::default(),
        body: Body::Maps(runs.iter().map(map).collect()),
    })
}

/// Merges, copies and erases of a run until each instant; none where there were none.
pub(crate) fn merges_in_time(of: &str, flow: &[super::Moment]) -> Option<Chart> {
    let last = flow.last()?;
    let kinds: [(&str, Count); 5] = [
        ("switch merges", |moment| moment.switch_merges),
        ("partial merges", |moment| moment.partial_merges),
        ("full merges", |moment| moment.full_merges),
        ("pages copied", |moment| moment.copies),
        ("blocks erased", |moment| moment.erases),
    ];
    let curve = |(name, count): (&str, Count)| {
        // A mark at each of two hundred points would hide the line.
        const POINTS: usize = 24;
        let step = flow.len().div_ceil(POINTS);
        let end = flow.len() - 1;
        let seen = flow.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == end);
        let points = seen.map(|(_, moment)| (moment.at_ns as f64 / 1e9, (count(moment) as f64).into()));
        Curve { name: name.into(), points: points.collect() }
    };
    let curves: Vec<Curve> = kinds.into_iter().filter(|(_, count)| count(last) > 0).map(curve).collect();
    if curves.is_empty() {
        return None;
    }
    let all = curves.iter().filter_map(|curve| curve.points.last()).map(|(_, value)| value.mean);
    let y = Axis::scaled("until then", Scale::for_values(all));
    Some(Chart {
        part: "-merges".into(),
        title: format!("Merges, copies and erases of {of} as the run went on"),
        x: Axis::linear("simulated time (s)"),
        y,
        body: Body::Curves { curves, paper: Vec::new() },
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Args, replay};
    use super::*;

    fn runs(line: &str) -> Vec<RunReport> {
        replay(&Args::parse(line).unwrap()).unwrap()
    }

    #[test]
    fn latencies_lie_on_a_logarithm_over_nines() {
        let runs = runs("gen:iometer:size=4MiB:requests=2000:read=50 --ftl page,bast --device slc-2k");
        let chart = chart(Kind::Latency, &runs);
        assert_eq!((chart.x.scale, chart.y.scale), (Scale::Nines, Scale::Log10));
        let Body::Curves { curves, .. } = chart.body else { panic!("no curves") };
        for (curve, run) in curves.iter().zip(&runs) {
            let at = |nines: f64| curve.points.iter().find(|(x, _)| *x == nines).unwrap().1.mean;
            assert_eq!(
                (at(2.0), at(4.0)),
                (run.latency_ns.p99 as f64 / 1e6, run.latency_ns.p99_99 as f64 / 1e6)
            );
        }
    }

    #[test]
    fn several_sizes_are_curves_and_one_size_is_bars() {
        let grid = "gen:zipf:pages=2000:requests=4000 --cache lru,fab --cache-size";
        let of = |sizes: &str| chart(Kind::MissRatio, &runs(&format!("{grid} {sizes}"))).body;
        let Body::Curves { curves, .. } = of("64KiB,256KiB,1MiB") else { panic!("no curves") };
        assert_eq!((curves.len(), curves[0].points.len()), (2, 3));
        let Body::Bars { groups, .. } = of("64KiB") else { panic!("no bars") };
        assert_eq!(groups.len(), 2);
    }

    #[test]
    fn a_run_with_flash_has_a_map_of_its_erases_and_its_merges_in_time() {
        let line = "gen:iometer:size=8MiB:requests=4000:random=100 --ftl bast --device slc-2k --device-size 10MiB --precondition fill";
        let run = &runs(line)[0];
        let charts = run.charts();
        let parts: Vec<&str> = charts.iter().map(|chart| chart.part.as_str()).collect();
        assert_eq!(parts, ["-erase-map", "-merges"]);
        let Body::Curves { curves, .. } = &charts[1].body else { panic!("no curves") };
        let full = curves.iter().find(|curve| curve.name == "full merges").unwrap();
        assert_eq!(full.points.last().unwrap().1.mean, run.merges.unwrap().full as f64);
        assert!(runs("gen:iometer:size=1MiB:requests=50 --device hdd-7200")[0].charts().is_empty());
    }
}
