//! Plots of several runs, as SVG or PNG.
//!
//! With several cache sizes the abscissa is the size and each stack is a curve (so `miss-ratio` is the
//! miss-ratio curve); otherwise every run is a bar. `latency` has the percentiles as abscissa.

use super::picture::{Area, Bars, Curves, Picture, is_known, plain, save, svg};
use super::report::RunReport;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use clap::ValueEnum;
use plotters::prelude::DrawingBackend;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
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

    const fn title(self) -> &'static str {
        match self {
            Kind::MissRatio => "miss ratio",
            Kind::Latency => "latency, ms",
            Kind::Erases => "erases",
            Kind::Writes => "pages written",
            Kind::Amplification => "write amplification",
            Kind::Time => "simulated time, s",
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
        if is_known(&path) {
            return Ok(Wanted { kind, path });
        }
        Err(Error::invalid(format!("'{text}': a plot goes to a .svg or .png file, as erases=out.svg")))
    }
}

impl Wanted {
    /// Draws it.
    ///
    /// # Errors
    /// The runs have nothing to draw, or the file cannot be written.
    pub(super) fn draw(&self, runs: &[RunReport]) -> Result<()> {
        if runs.iter().all(|run| self.kind.value(run).is_none()) {
            let title = self.kind.title();
            return Err(Error::invalid(format!("there is nothing to draw: these runs have no {title}")));
        }
        save(&self.path, &Of { kind: self.kind, runs })
    }
}

/// A plot of runs.
struct Of<'a> {
    kind: Kind,
    runs: &'a [RunReport],
}

impl Picture for Of<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let title = self.kind.title();
        let sizes: BTreeSet<_> = self.runs.iter().filter_map(|run| run.config.cache_bytes).collect();
        if self.kind == Kind::Latency {
            let label = |nines: f64| plain(100.0 - 100.0 * 10f64.powf(-nines));
            let curves = self.runs.iter().map(percentiles).collect();
            return Curves { title, abscissa: "percentile", label, curves }.draw(area);
        }
        if sizes.len() > 1 {
            let label = |log: f64| show_size(2f64.powf(log).round() as u64);
            return Curves { title, abscissa: "cache size", label, curves: self.by_size() }.draw(area);
        }
        let bar = |run: &RunReport| Some((run.config.run.clone(), self.kind.value(run)?));
        Bars { title, bars: self.runs.iter().filter_map(bar).collect() }.draw(area)
    }
}

impl Of<'_> {
    /// One curve a stack, over the logarithm of the cache's size.
    fn by_size(&self) -> Vec<(String, Vec<(f64, f64)>)> {
        let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for run in self.runs {
            if let (Some(bytes), Some(value)) = (run.config.cache_bytes, self.kind.value(run)) {
                curves.entry(run.config.series.clone()).or_default().push(((bytes as f64).log2(), value));
            }
        }
        for points in curves.values_mut() {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        curves.into_iter().collect()
    }
}

/// A run's percentiles, ms, over −log₁₀ of the part above: each nine is a step.
fn percentiles(run: &RunReport) -> (String, Vec<(f64, f64)>) {
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
    (run.config.run.clone(), points.map(|(nines, ns)| (nines, ns as f64 / 1e6)).to_vec())
}

/// All plots in which some run has more than nothing, for a report.
pub(super) fn all_svg(runs: &[RunReport]) -> Result<Vec<(Kind, String)>> {
    let shows = |kind: &Kind| runs.iter().any(|run| kind.value(run).is_some_and(|value| value > 0.0));
    let shown = Kind::ALL.into_iter().filter(shows);
    shown.map(|kind| svg(&Of { kind, runs }).map(|text| (kind, text))).collect()
}
