//! Plots of several runs, as SVG or PNG.
//!
//! With several cache sizes the abscissa is the size and each stack is a curve (so `miss-ratio` is the
//! miss-ratio curve); otherwise every run is a bar. `latency` has the percentiles as abscissa. Text in an
//! SVG is text; in a PNG it is drawn with the DejaVu font, which is built in.

use super::report::RunReport;
use super::rows::write_whole;
use crate::units::show_size;
use crate::{Error, Result};
use clap::ValueEnum;
use plotters::prelude::*;
use plotters::style::register_font;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// Pixels.
const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";

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
        match path.extension().and_then(|ext| ext.to_str()) {
            Some("svg" | "png") => Ok(Wanted { kind, path }),
            _ => Err(Error::invalid(format!(
                "'{text}': a plot goes to a .svg or .png file, as erases=out.svg"
            ))),
        }
    }
}

impl Wanted {
    /// Draws it.
    ///
    /// # Errors
    /// The runs have nothing to draw, or the file cannot be written.
    pub(super) fn draw(&self, runs: &[RunReport]) -> Result<()> {
        let bytes = match self.path.extension().and_then(|ext| ext.to_str()) {
            Some("png") => png(self.kind, runs)?,
            _ => svg(self.kind, runs)?.into_bytes(),
        };
        write_whole(&self.path, |file| {
            file.write_all(&bytes).map_err(|why| Error::io(self.path.display(), why))
        })
    }
}

/// The plot as the text of an SVG.
pub(super) fn svg(kind: Kind, runs: &[RunReport]) -> Result<String> {
    prepare(kind, runs)?;
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE).into_drawing_area(), kind, runs)?;
    Ok(text)
}

/// The plot as a PNG file's bytes.
fn png(kind: Kind, runs: &[RunReport]) -> Result<Vec<u8>> {
    prepare(kind, runs)?;
    let (width, height) = SIZE;
    let mut pixels = vec![0; (width * height * 3) as usize];
    draw(BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area(), kind, runs)?;
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(::png::ColorType::Rgb);
    let failed = |why| Error::io("PNG", std::io::Error::other(why));
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

fn prepare(kind: Kind, runs: &[RunReport]) -> Result<()> {
    // The font is a valid one; registering it again changes nothing.
    let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    if runs.iter().any(|run| kind.value(run).is_some()) {
        return Ok(());
    }
    Err(Error::invalid(format!("there is nothing to draw: these runs have no {}", kind.title())))
}

/// One curve: its name and its points.
type Curve = (String, Vec<(f64, f64)>);

type Area<B> = DrawingArea<B, plotters::coord::Shift>;

fn failed(why: impl std::fmt::Display) -> Error {
    Error::io("plot", std::io::Error::other(why.to_string()))
}

fn draw<B: DrawingBackend>(area: Area<B>, kind: Kind, runs: &[RunReport]) -> Result<()> {
    area.fill(&WHITE).map_err(failed)?;
    let sizes: std::collections::BTreeSet<_> = runs.iter().filter_map(|run| run.config.cache_bytes).collect();
    if kind == Kind::Latency {
        draw_curves(&area, kind, &percentiles(runs), "percentile", |nines| match nines {
            n if n < 0.15 => "0".to_string(),
            n => format!("{}", 100.0 - 100.0 * 10f64.powf(-n)).chars().take(6).collect(),
        })?;
    } else if sizes.len() > 1 {
        let label = |log: f64| show_size(2f64.powf(log).round() as u64);
        draw_curves(&area, kind, &by_size(kind, runs), "cache size", label)?;
    } else {
        draw_bars(&area, kind, runs)?;
    }
    area.present().map_err(failed)
}

/// The runs' percentiles, over −log₁₀ of the part above: each nine is a step.
fn percentiles(runs: &[RunReport]) -> Vec<Curve> {
    let curve = |run: &RunReport| {
        let latency = &run.latency_ns;
        let points = [
            (0.0, latency.min),
            (0.301, latency.p50),
            (1.0, latency.p90),
            (1.301, latency.p95),
            (2.0, latency.p99),
            (3.0, latency.p99_9),
            (4.0, latency.p99_99),
        ];
        (run.config.label(), points.map(|(nines, ns)| (nines, ns as f64 / 1e6)).to_vec())
    };
    runs.iter().map(curve).collect()
}

/// One curve a stack, over the logarithm of the cache's size.
fn by_size(kind: Kind, runs: &[RunReport]) -> Vec<Curve> {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs {
        if let (Some(bytes), Some(value)) = (run.config.cache_bytes, kind.value(run)) {
            curves.entry(run.config.series()).or_default().push(((bytes as f64).log2(), value));
        }
    }
    for points in curves.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves.into_iter().collect()
}

/// The end of an axis that shows values up to `top`.
fn above(top: f64) -> f64 {
    if top > 0.0 { top * 1.05 } else { 1.0 }
}

fn draw_curves<B: DrawingBackend>(
    area: &Area<B>,
    kind: Kind,
    curves: &[Curve],
    abscissa: &str,
    label: impl Fn(f64) -> String,
) -> Result<()> {
    let points = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(x), high.max(x)));
    let top = points().fold(0.0, |high: f64, (_, y)| high.max(y));
    let mut chart = ChartBuilder::on(area)
        .caption(kind.title(), (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(left..right.max(left + 1e-9), 0.0..above(top))
        .map_err(failed)?;
    let shown = |x: &f64| label(*x);
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(abscissa).x_label_formatter(&shown).label_style((FONT, 13)).light_line_style(WHITE);
    mesh.draw().map_err(failed)?;
    for (number, (name, points)) in curves.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut legend = chart.configure_series_labels();
    legend.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).label_font((FONT, 13));
    legend.position(SeriesLabelPosition::UpperRight).draw().map_err(failed)
}

fn draw_bars<B: DrawingBackend>(area: &Area<B>, kind: Kind, runs: &[RunReport]) -> Result<()> {
    let bars: Vec<(String, f64)> =
        runs.iter().filter_map(|run| Some((run.config.label(), kind.value(run)?))).collect();
    let top = bars.iter().fold(0.0, |high: f64, (_, value)| high.max(*value));
    let mut chart = ChartBuilder::on(area)
        .caption(kind.title(), (FONT, 20))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(220)
        .build_cartesian_2d(0.0..above(top), 0.0..bars.len() as f64)
        .map_err(failed)?;
    let name = |y: &f64| {
        bars.get(bars.len() - 1 - (*y as usize).min(bars.len() - 1)).map_or("", |bar| &bar.0).to_string()
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh()
        .y_labels(0)
        .label_style((FONT, 13))
        .light_line_style(WHITE)
        .draw()
        .map_err(failed)?;
    let bar = |(number, (_, value)): (usize, &(String, f64))| {
        let y = (bars.len() - 1 - number) as f64;
        Rectangle::new([(0.0, y + 0.15), (*value, y + 0.85)], Palette99::pick(number).filled())
    };
    chart.draw_series(bars.iter().enumerate().map(bar)).map_err(failed)?;
    let plane = chart.plotting_area();
    for row in 0..bars.len() {
        let (x, y) = plane.map_coordinate(&(0.0, row as f64 + 0.5));
        let style = TextStyle::from((FONT, 13).into_font()).pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Right,
            plotters::style::text_anchor::VPos::Center,
        ));
        area.draw(&Text::new(name(&(row as f64)), (x - 8, y), style)).map_err(failed)?;
    }
    Ok(())
}

/// All plots in which some run has more than nothing, for a report.
pub(super) fn all_svg(runs: &[RunReport]) -> Result<Vec<(Kind, String)>> {
    let shows = |kind: &Kind| runs.iter().any(|run| kind.value(run).is_some_and(|value| value > 0.0));
    let shown = Kind::ALL.into_iter().filter(shows);
    shown.map(|kind| svg(kind, runs).map(|text| (kind, text))).collect()
}
