//! The drawing: axes, ticks and logarithms are plotters'; what stands around them is laid out here.
//!
//! Text in an SVG is text; in a PNG it is drawn with the DejaVu font, which is built in, so that neither needs anything
//! installed.

use super::style::{GUIDE, Hatch, INK, Look, Mark, PAPER, shade};
use super::{Body, Chart, Curve, Group, Scale, Value, short};
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, DefaultFormatting, KeyPointHint, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{RGBAColor, register_font};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// Pixels of a column of a paper.
const WIDTH: u32 = 460;
/// Pixels of what is between the axes of curves and dots.
const HEIGHT: u32 = 240;
/// A PNG has so many pixels for one of the SVG's.
const FINE: u32 = 3;
const FONT: &str = "sans-serif";
/// Of a font's line; its letters are a fifth smaller.
const TITLE_POINTS: f64 = 17.0;
const TEXT_POINTS: f64 = 15.0;
/// Pixels of a line of text.
const LINE: i32 = 17;
const MARGIN: i32 = 10;
/// Of what is written beside an axis.
const TICKS_LEFT: i32 = 46;
const TICKS_BELOW: i32 = 22;
/// Of what a legend's entry is drawn beside.
const KEY: i32 = 30;
/// Bars: their thickness, the gap between groups, the number at their end.
const BAR: i32 = 12;
const GAP: i32 = 9;
const NUMBER: i32 = 44;
/// More bars than this have no numbers at their ends.
const NUMBERED_MOST: usize = 40;
/// Of a square.
const CELLS_A_ROW: usize = 48;
const CELL_SIDE: i32 = (WIDTH as i32 - 2 * MARGIN) / CELLS_A_ROW as i32;

/// By this part of itself an axis of logarithms ends beyond its last tick.
const WIDER: f64 = 1e-9;

type Area<B> = DrawingArea<B, Shift>;

fn failed(why: impl std::fmt::Display) -> Error {
    Error::io("drawing", std::io::Error::other(why.to_string()))
}

/// The chart as the text of an SVG.
pub(crate) fn svg(chart: &Chart) -> Result<String> {
    let mut text = String::new();
    let sheet = Sheet::of(chart, 1)?;
    sheet.paint(SVGBackend::with_string(&mut text, sheet.size()).into_drawing_area())?;
    Ok(text)
}

/// The chart as the bytes of a PNG.
pub(crate) fn png(chart: &Chart) -> Result<Vec<u8>> {
    let sheet = Sheet::of(chart, FINE)?;
    let (width, height) = sheet.size();
    let mut pixels = vec![0; (width * height * 3) as usize];
    sheet.paint(BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area())?;
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(::png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

/// Writes the chart to a .svg file, or as PNG to any other.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn save(path: &Path, chart: &Chart) -> Result<()> {
    let bytes = match path.extension().and_then(|ext| ext.to_str()) {
        Some("svg") => svg(chart)?.into_bytes(),
        _ => png(chart)?,
    };
    guard::whole(path, |file| file.write_all(&bytes).map_err(|why| Error::io(path.display(), why)))
}

/// Writes the chart into a folder, as SVG and as PNG, under the name of what it belongs to.
///
/// # Errors
/// The files cannot be written.
pub(crate) fn save_both(dir: &Path, of: &str, chart: &Chart) -> Result<()> {
    ["svg", "png"].iter().try_for_each(|ext| save(&dir.join(format!("{of}{}.{ext}", chart.part)), chart))
}

/// An entry of a legend.
struct Key {
    name: String,
    look: Option<Look>,
}

/// A chart with a place for everything; lengths are in pixels of an SVG, `scale` of them in the picture.
struct Sheet<'a> {
    chart: &'a Chart,
    scale: i32,
    title: Vec<String>,
    /// Rows of the legend: where an entry begins, and what it is.
    legend: Vec<Vec<(i32, Key)>>,
    /// Names of groups, in lines.
    names: Vec<Vec<String>>,
    /// Left of what is drawn.
    left: i32,
    /// What is drawn is so high.
    height: i32,
}

impl<'a> Sheet<'a> {
    fn of(chart: &'a Chart, scale: u32) -> Result<Sheet<'a>> {
        // The font is a valid one, and registering it again changes nothing.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
        let _ = register_font(FONT, FontStyle::Bold, dejavu::sans::bold());
        let inside = WIDTH as i32 - 2 * MARGIN;
        let title = wrapped(&chart.title, inside, |text| wide(text, TITLE_POINTS, FontStyle::Bold))?;
        let (mut names, mut left, mut height) = (Vec::new(), TICKS_LEFT + LINE, HEIGHT as i32);
        match &chart.body {
            Body::Bars { groups, .. } => {
                let most = inside * 2 / 5;
                let plain = |text: &str| wide(text, TEXT_POINTS, FontStyle::Normal);
                names = groups
                    .iter()
                    .map(|group| wrapped(&group.name, most, plain))
                    .collect::<Result<Vec<_>>>()?;
                left = 8;
                for name in names.iter().flatten() {
                    left = left.max(plain(name)? + 8);
                }
                height = (0..groups.len()).map(|at| group_height(groups, &names, at)).sum::<i32>() + GAP;
            }
            Body::Cells(cells) => (left, height) = (0, map_height(cells)),
            Body::Maps(maps) => {
                left = 0;
                height = maps.iter().map(|(_, cells)| LINE + map_height(cells) + GAP).sum();
            }
            Body::Curves { .. } | Body::Dots(_) => {}
        }
        let legend = laid_out(keys(chart), inside)?;
        Ok(Sheet { chart, scale: scale as i32, title, legend, names, left, height })
    }

    /// Where what is drawn begins, from above.
    fn top(&self) -> i32 {
        MARGIN + LINE * self.title.len() as i32 + LINE / 2
    }

    /// Where the legend begins.
    fn legend_top(&self) -> i32 {
        let axis =
            if matches!(self.chart.body, Body::Cells(_) | Body::Maps(_)) { LINE } else { TICKS_BELOW + LINE };
        self.top() + self.height + axis + LINE / 2
    }

    /// Pixels of the picture.
    fn size(&self) -> (u32, u32) {
        let height = self.legend_top() + LINE * self.legend.len() as i32 + MARGIN;
        (WIDTH * self.scale as u32, (height * self.scale) as u32)
    }

    fn px(&self, length: i32) -> i32 {
        length * self.scale
    }

    fn paint<B: DrawingBackend>(&self, area: Area<B>) -> Result<()> {
        area.fill(&WHITE).map_err(failed)?;
        for (number, line) in self.title.iter().enumerate() {
            let place = (self.px(MARGIN), self.px(MARGIN + LINE * number as i32));
            let style = self.text(TITLE_POINTS, FontStyle::Bold, HPos::Left, VPos::Top);
            area.draw(&Text::new(line.as_str(), place, style)).map_err(failed)?;
        }
        match &self.chart.body {
            Body::Curves { curves, paper } => self.curves(&area, curves, paper)?,
            Body::Bars { groups, .. } => self.bars(&area, groups)?,
            Body::Dots(dots) => self.dots(&area, dots)?,
            Body::Cells(cells) => self.cells(&area, cells)?,
            Body::Maps(maps) => self.maps(&area, maps)?,
        }
        self.draw_legend(&area)?;
        area.present().map_err(failed)
    }

    fn text(&self, points: f64, weight: FontStyle, across: HPos, down: VPos) -> TextStyle<'static> {
        let font: FontDesc<'static> = (FONT, points * f64::from(self.scale), weight).into_font();
        TextStyle::from(font).color(&INK).pos(Pos::new(across, down))
    }

    fn plain(&self, across: HPos, down: VPos) -> TextStyle<'static> {
        self.text(TEXT_POINTS, FontStyle::Normal, across, down)
    }

    fn stroke(&self, colour: impl Into<RGBAColor>, width: i32) -> ShapeStyle {
        ShapeStyle { color: colour.into(), filled: false, stroke_width: self.px(width) as u32 }
    }

    /// The place of what is drawn, with its axes.
    fn place<B: DrawingBackend>(&self, area: &Area<B>, right: i32) -> Area<B> {
        let below = area.dim_in_pixel().1 as i32 - self.px(self.top() + self.height + TICKS_BELOW + LINE);
        area.margin(self.px(self.top()), below, self.px(MARGIN), self.px(right))
    }

    /// Axes with their ticks and labels.
    fn axes<B: DrawingBackend, X: AsRangedCoord<Value = f64>, Y: AsRangedCoord<Value = f64>>(
        &self,
        area: &Area<B>,
        right: i32,
        (x, y): (X, Y),
    ) -> Result<Plane<'a, B, X, Y>>
    where
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let bars = matches!(self.chart.body, Body::Bars { .. });
        let place = self.place(area, right);
        let mut plane = ChartBuilder::on(&place)
            .x_label_area_size(self.px(TICKS_BELOW + LINE))
            .y_label_area_size(self.px(self.left))
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        let (x_axis, y_axis) = (&self.chart.x, &self.chart.y);
        let (x_tick, y_tick) = (|x: &f64| x_axis.scale.tick(*x), |y: &f64| y_axis.scale.tick(*y));
        let mut mesh = plane.configure_mesh();
        mesh.x_desc(&*x_axis.label).y_desc(&*y_axis.label);
        mesh.x_labels(if x_axis.scale == Scale::Linear { 6 } else { 9 }).y_labels(6);
        mesh.x_label_formatter(&x_tick).y_label_formatter(&y_tick);
        mesh.label_style(self.plain(HPos::Left, VPos::Top))
            .axis_desc_style(self.plain(HPos::Left, VPos::Top));
        mesh.axis_style(self.stroke(INK, 1))
            .light_line_style(TRANSPARENT)
            .bold_line_style(self.stroke(GUIDE, 1));
        mesh.set_all_tick_mark_size(self.px(3));
        if bars {
            mesh.disable_y_mesh().y_labels(0).disable_y_axis();
        }
        mesh.draw().map_err(failed)?;
        Ok(plane)
    }

    fn curves<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        curves: &[Curve],
        paper: &[(f64, f64)],
    ) -> Result<()> {
        let (x_scale, y_scale) = (self.chart.x.scale, self.chart.y.scale);
        let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
        let xs = points().map(|(x, _)| x).chain(paper.iter().map(|(x, _)| *x));
        let ys = points().flat_map(|(_, value)| [value.least, value.most]);
        let ys = ys.chain(paper.iter().map(|(_, y)| *y));
        let (x, y) = (x_scale.places(xs), y_scale.heights(ys));
        match (x_scale, y_scale) {
            (Scale::Linear, Scale::Log10) => self.lines(area, (x, y.log_scale()), curves, paper),
            (Scale::Nines, Scale::Log10) => self.lines(area, (Nines::from(x), y.log_scale()), curves, paper),
            (Scale::Nines, _) => self.lines(area, (Nines::from(x), y), curves, paper),
            (Scale::Log10, Scale::Log10) => self.lines(area, (x.log_scale(), y.log_scale()), curves, paper),
            (Scale::Log2 | Scale::Bytes, Scale::Log10) => {
                self.lines(area, (x.log_scale().base(2.0), y.log_scale()), curves, paper)
            }
            (Scale::Log10, _) => self.lines(area, (x.log_scale(), y), curves, paper),
            (Scale::Log2 | Scale::Bytes, _) => self.lines(area, (x.log_scale().base(2.0), y), curves, paper),
            (Scale::Linear, _) => self.lines(area, (x, y), curves, paper),
        }
    }

    fn lines<B: DrawingBackend, X: AsRangedCoord<Value = f64>, Y: AsRangedCoord<Value = f64>>(
        &self,
        area: &Area<B>,
        axes: (X, Y),
        curves: &[Curve],
        paper: &[(f64, f64)],
    ) -> Result<()>
    where
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut plane = self.axes(area, MARGIN + 8, axes)?;
        let shown = |y: f64| self.chart.y.scale == Scale::Linear || y > 0.0;
        for (number, curve) in curves.iter().enumerate() {
            let look = Look::of(number);
            let points: Vec<(f64, Value)> =
                curve.points.iter().copied().filter(|(_, value)| shown(value.mean)).collect();
            let means = || points.iter().map(|(x, value)| (*x, value.mean)).collect::<Vec<_>>();
            let style = self.stroke(look.colour, 2);
            let (dash, gap) = (self.px(look.dash.0 as i32), self.px(look.dash.1 as i32));
            match gap {
                0 => drop(plane.draw_series(LineSeries::new(means(), style)).map_err(failed)?),
                _ => drop(
                    plane.draw_series(DashedLineSeries::new(means(), dash, gap, style)).map_err(failed)?,
                ),
            }
            for (x, value) in points {
                let at = |y: f64| plane.plotting_area().map_coordinate(&(x, y));
                if value.least < value.most && shown(value.least) {
                    self.whisker(area, at(value.least), at(value.most))?;
                }
                self.mark(area, look.mark, at(value.mean), look.colour)?;
            }
        }
        for (x, y) in paper {
            self.mark(area, Mark::Diamond, plane.plotting_area().map_coordinate(&(*x, *y)), PAPER)?;
        }
        Ok(())
    }

    fn dots<B: DrawingBackend>(&self, area: &Area<B>, dots: &[(f64, f64)]) -> Result<()> {
        let x = self.chart.x.scale.heights(dots.iter().map(|(x, _)| *x));
        let y = self.chart.y.scale.heights(dots.iter().map(|(_, y)| *y));
        let plane = self.axes(area, MARGIN + 8, (x, y))?;
        let colour = Look::of(0).colour;
        for dot in dots {
            let (x, y) = plane.plotting_area().map_coordinate(dot);
            let square = [(x, y), (x + self.px(1) - 1, y + self.px(1) - 1)];
            area.draw(&Rectangle::new(square, colour.filled())).map_err(failed)?;
        }
        Ok(())
    }

    fn bars<B: DrawingBackend>(&self, area: &Area<B>, groups: &[Group]) -> Result<()> {
        let bars = || groups.iter().flat_map(|group| group.bars.iter().flatten());
        let values = bars().flat_map(|(value, paper)| [value.least, value.most, paper.unwrap_or(value.mean)]);
        let scale = self.chart.x.scale;
        let x = match scale {
            Scale::Linear => scale.heights(values),
            _ => scale.places(values),
        };
        let numbered = bars().count() <= NUMBERED_MOST;
        let right = MARGIN + if numbered { NUMBER } else { 8 };
        // From above to below, in pixels.
        let y = f64::from(self.height)..0.0;
        match scale {
            Scale::Linear => self.grouped(area, right, (x, y), groups, numbered),
            _ => self.grouped(area, right, (x.log_scale(), y), groups, numbered),
        }
    }

    fn grouped<B: DrawingBackend, X: AsRangedCoord<Value = f64>>(
        &self,
        area: &Area<B>,
        right: i32,
        axes: (X, Range<f64>),
        groups: &[Group],
        numbered: bool,
    ) -> Result<()>
    where
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let plane = self.axes(area, right, axes)?;
        let linear = self.chart.x.scale == Scale::Linear;
        let at = |x: f64, y: i32| plane.plotting_area().map_coordinate(&(x, f64::from(y)));
        let edge = plane.plotting_area().get_pixel_range().0.start;
        let mut top = GAP;
        for (number, group) in groups.iter().enumerate() {
            let high = group_height(groups, &self.names, number) - GAP;
            let lines = &self.names[number];
            for (line, text) in lines.iter().enumerate() {
                let y = top + high / 2 + LINE * line as i32 - LINE * (lines.len() as i32 - 1) / 2;
                let place = (edge - self.px(6), at(1.0, y).1);
                let style = self.plain(HPos::Right, VPos::Center);
                area.draw(&Text::new(text.as_str(), place, style)).map_err(failed)?;
            }
            let first = top + (high - BAR * group.bars.len() as i32) / 2;
            for (series, bar) in group.bars.iter().enumerate() {
                let Some((value, paper)) = bar else { continue };
                let (above, below) = (first + BAR * series as i32 + 1, first + BAR * (series as i32 + 1) - 1);
                let middle = (above + below) / 2;
                let look = Look::of(series);
                if linear {
                    self.bar(area, [at(0.0, above), at(value.mean, below)], &look)?;
                } else if value.mean > 0.0 {
                    let end = at(value.mean, middle);
                    let line = PathElement::new([(edge, end.1), end], self.stroke(look.colour.mix(0.5), 1));
                    area.draw(&line).map_err(failed)?;
                    self.mark(area, look.mark, end, look.colour)?;
                }
                if value.least < value.most && (linear || value.least > 0.0) {
                    self.whisker(area, at(value.least, middle), at(value.most, middle))?;
                }
                let beside = paper.filter(|paper| linear || *paper > 0.0);
                if let Some(paper) = beside {
                    self.mark(area, Mark::Diamond, at(paper, middle), PAPER)?;
                }
                if numbered {
                    // Beside its own bar, unless the paper's mark is there.
                    let place =
                        |x: f64| if linear || x > 0.0 { at(x, middle) } else { (edge, at(1.0, middle).1) };
                    let (x, y) = place(value.most.max(0.0));
                    let taken = beside.map(|paper| at(paper, middle).0);
                    let room = x - self.px(8)..x + self.px(NUMBER);
                    let x = taken.filter(|taken| room.contains(taken)).map_or(x, |taken| x.max(taken));
                    let style = self.text(TEXT_POINTS - 2.0, FontStyle::Normal, HPos::Left, VPos::Center);
                    let text = Text::new(short(value.mean), (x + self.px(8), y), style);
                    area.draw(&text).map_err(failed)?;
                }
            }
            top += high + GAP;
        }
        Ok(())
    }

    /// A filled and hatched bar between two corners.
    fn bar<B: DrawingBackend>(&self, area: &Area<B>, [a, b]: [(i32, i32); 2], look: &Look) -> Result<()> {
        let (left, right) = (a.0.min(b.0), a.0.max(b.0));
        let corners = [(left, a.1), (right, b.1)];
        area.draw(&Rectangle::new(corners, look.colour.filled())).map_err(failed)?;
        let (wide, high) = (right - left, b.1 - a.1);
        let thin = self.stroke(WHITE, 1);
        let step = self.px(6).max(1);
        for hatch in look.hatch {
            let lines: Vec<[(i32, i32); 2]> = match hatch {
                Hatch::Across => vec![[(left, a.1 + high / 2), (right, a.1 + high / 2)]],
                Hatch::Upright => {
                    (step..wide).step_by(step as usize).map(|x| [(left + x, a.1), (left + x, b.1)]).collect()
                }
                Hatch::Rising | Hatch::Falling => {
                    // From the foot at x up to x + high, cut at both ends.
                    let cut = |x: i32| {
                        let (from, to) = (x.max(0), (x + high).min(wide));
                        let (low, up) = (from - x, to - x);
                        match hatch {
                            Hatch::Rising => [(left + from, b.1 - low), (left + to, b.1 - up)],
                            _ => [(left + from, a.1 + low), (left + to, a.1 + up)],
                        }
                    };
                    (-high..wide).step_by(step as usize).map(cut).collect()
                }
            };
            for line in lines {
                area.draw(&PathElement::new(line, thin)).map_err(failed)?;
            }
        }
        area.draw(&Rectangle::new(corners, self.stroke(INK, 1))).map_err(failed)
    }

    fn cells<B: DrawingBackend>(&self, area: &Area<B>, cells: &[f64]) -> Result<()> {
        let scale = ends(cells.iter().copied());
        self.squares(area, self.top(), cells, scale)?;
        self.shades(area, scale)
    }

    fn maps<B: DrawingBackend>(&self, area: &Area<B>, maps: &[(String, Vec<f64>)]) -> Result<()> {
        let scale = ends(maps.iter().flat_map(|(_, cells)| cells.iter().copied()));
        let mut top = self.top();
        for (name, cells) in maps {
            let place = (self.px(MARGIN), self.px(top));
            let style = self.plain(HPos::Left, VPos::Top);
            area.draw(&Text::new(name.as_str(), place, style)).map_err(failed)?;
            self.squares(area, top + LINE, cells, scale)?;
            top += LINE + map_height(cells) + GAP;
        }
        self.shades(area, scale)
    }

    /// Squares from `top` on, shaded from the least to the most.
    fn squares<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        top: i32,
        cells: &[f64],
        (least, most): (f64, f64),
    ) -> Result<()> {
        let part = |value: f64| if most > least { (value - least) / (most - least) } else { 0.0 };
        for (number, value) in cells.iter().enumerate() {
            let (column, row) = ((number % CELLS_A_ROW) as i32, (number / CELLS_A_ROW) as i32);
            let (x, y) = (self.px(MARGIN + CELL_SIDE * column), self.px(top + CELL_SIDE * row));
            let square = [(x, y), (x + self.px(CELL_SIDE - 1), y + self.px(CELL_SIDE - 1))];
            area.draw(&Rectangle::new(square, shade(part(*value)).filled())).map_err(failed)?;
        }
        Ok(())
    }

    /// What shades stand for, below all.
    fn shades<B: DrawingBackend>(&self, area: &Area<B>, (least, most): (f64, f64)) -> Result<()> {
        let (left, y) = (MARGIN, self.top() + self.height + 4);
        let ends = format!("{} to {}", short(least), short(most));
        let steps: i32 = 24;
        for step in 0..steps {
            let x = self.px(left + 5 * step);
            let square = [(x, self.px(y + 2)), (x + self.px(5), self.px(y + 12))];
            let colour = shade(f64::from(step) / f64::from(steps - 1));
            area.draw(&Rectangle::new(square, colour.filled())).map_err(failed)?;
        }
        let text = format!("{ends}: {}", self.chart.x.label);
        let place = (self.px(left + 5 * steps + 8), self.px(y + 7));
        area.draw(&Text::new(text, place, self.plain(HPos::Left, VPos::Center))).map_err(failed)
    }

    /// A line from the least to the most, with ends.
    fn whisker<B: DrawingBackend>(&self, area: &Area<B>, from: (i32, i32), to: (i32, i32)) -> Result<()> {
        let style = self.stroke(INK, 1);
        let reach = self.px(3);
        let cap = |(x, y): (i32, i32)| match from.1 == to.1 {
            true => [(x, y - reach), (x, y + reach)],
            false => [(x - reach, y), (x + reach, y)],
        };
        for line in [[from, to], cap(from), cap(to)] {
            area.draw(&PathElement::new(line, style)).map_err(failed)?;
        }
        Ok(())
    }

    fn mark<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        mark: Mark,
        (x, y): (i32, i32),
        colour: impl Into<RGBAColor>,
    ) -> Result<()> {
        let colour: RGBAColor = colour.into();
        let r = self.px(4);
        let outline = self.stroke(colour, 2);
        let drawn = match mark {
            Mark::Circle => area.draw(&Circle::new((x, y), r, colour.filled())),
            Mark::Ring => area
                .draw(&Circle::new((x, y), r, WHITE.filled()))
                .and_then(|()| area.draw(&Circle::new((x, y), r, outline))),
            Mark::Square => area.draw(&Rectangle::new([(x - r, y - r), (x + r, y + r)], colour.filled())),
            Mark::Box => area
                .draw(&Rectangle::new([(x - r, y - r), (x + r, y + r)], WHITE.filled()))
                .and_then(|()| area.draw(&Rectangle::new([(x - r, y - r), (x + r, y + r)], outline))),
            Mark::Triangle => {
                area.draw(&Polygon::new([(x - r, y + r), (x + r, y + r), (x, y - r)], colour.filled()))
            }
            Mark::Wedge => {
                area.draw(&Polygon::new([(x - r, y - r), (x + r, y - r), (x, y + r)], colour.filled()))
            }
            Mark::Cross => area
                .draw(&PathElement::new([(x - r, y - r), (x + r, y + r)], outline))
                .and_then(|()| area.draw(&PathElement::new([(x - r, y + r), (x + r, y - r)], outline))),
            Mark::Diamond => {
                let r = self.px(6);
                let corners = [(x, y - r), (x + r, y), (x, y + r), (x - r, y), (x, y - r)];
                area.draw(&Polygon::new(corners, colour.filled()))
                    .and_then(|()| area.draw(&PathElement::new(corners, self.stroke(BLACK, 1))))
            }
        };
        drawn.map_err(failed)
    }

    fn draw_legend<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        for (row, keys) in self.legend.iter().enumerate() {
            let y = self.legend_top() + LINE * row as i32 + LINE / 2;
            for (x, key) in keys {
                let (left, right) = (self.px(MARGIN + x), self.px(MARGIN + x + KEY - 6));
                let (middle, y) = ((left + right) / 2, self.px(y));
                match (&key.look, &self.chart.body) {
                    (None, _) => self.mark(area, Mark::Diamond, (middle, y), PAPER)?,
                    (Some(look), Body::Bars { .. }) if self.chart.x.scale == Scale::Linear => {
                        let half = self.px(BAR / 2 - 1);
                        self.bar(area, [(left, y - half), (right, y + half)], look)?;
                    }
                    (Some(look), Body::Bars { .. }) => {
                        self.mark(area, look.mark, (middle, y), look.colour)?
                    }
                    (Some(look), _) => {
                        let (dash, gap) = (self.px(look.dash.0 as i32), self.px(look.dash.1 as i32));
                        let mut x = left;
                        while x < right {
                            let end = if gap == 0 { right } else { (x + dash).min(right) };
                            let line = PathElement::new([(x, y), (end, y)], self.stroke(look.colour, 2));
                            area.draw(&line).map_err(failed)?;
                            x = end + gap.max(1);
                        }
                        self.mark(area, look.mark, (middle, y), look.colour)?;
                    }
                }
                let place = (self.px(MARGIN + x + KEY), y);
                let style = self.plain(HPos::Left, VPos::Center);
                area.draw(&Text::new(key.name.as_str(), place, style)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Axes that something can be drawn between.
type Plane<'a, B, X, Y> = ChartContext<
    'a,
    B,
    Cartesian2d<<X as AsRangedCoord>::CoordDescType, <Y as AsRangedCoord>::CoordDescType>,
>;

/// Pixels of a map of squares.
fn map_height(cells: &[f64]) -> i32 {
    CELL_SIDE * cells.len().div_ceil(CELLS_A_ROW) as i32
}

/// Pixels of a group of bars and the gap after it.
fn group_height(groups: &[Group], names: &[Vec<String>], at: usize) -> i32 {
    (BAR * groups[at].bars.len() as i32).max(LINE * names[at].len() as i32) + GAP
}

/// What a legend says of a chart: nothing where there is one thing alone.
fn keys(chart: &Chart) -> Vec<Key> {
    let (names, paper): (Vec<&str>, bool) = match &chart.body {
        Body::Curves { curves, paper } => {
            (curves.iter().map(|curve| curve.name.as_str()).collect(), !paper.is_empty())
        }
        Body::Bars { series, groups } => {
            let paper =
                groups.iter().any(|group| group.bars.iter().flatten().any(|(_, paper)| paper.is_some()));
            (series.iter().map(String::as_str).collect(), paper)
        }
        Body::Dots(_) | Body::Cells(_) | Body::Maps(_) => (Vec::new(), false),
    };
    let named = names.len() > 1 || paper || names.first().is_some_and(|name| !name.is_empty());
    let key = |(number, name): (usize, &&str)| {
        let name = if name.is_empty() { "measured here" } else { name };
        Key { name: name.into(), look: Some(Look::of(number)) }
    };
    let mut keys: Vec<Key> = names.iter().enumerate().filter(|_| named).map(key).collect();
    keys.extend(paper.then(|| Key { name: "the paper's text".into(), look: None }));
    keys
}

/// A legend in rows no wider than `most`.
fn laid_out(keys: Vec<Key>, most: i32) -> Result<Vec<Vec<(i32, Key)>>> {
    let mut rows: Vec<Vec<(i32, Key)>> = Vec::new();
    let mut x = 0;
    for key in keys {
        let width = KEY + wide(&key.name, TEXT_POINTS, FontStyle::Normal)? + 14;
        match rows.last_mut() {
            Some(row) if x + width <= most => row.push((x, key)),
            _ => {
                x = 0;
                rows.push(vec![(0, key)]);
            }
        }
        x += width;
    }
    Ok(rows)
}

/// Pixels of a text.
fn wide(text: &str, points: f64, weight: FontStyle) -> Result<i32> {
    let font: FontDesc<'_> = (FONT, points, weight).into_font();
    font.box_size(text).map(|(width, _)| width as i32).map_err(failed)
}

/// A text in lines no wider than `most`, words whole.
fn wrapped(text: &str, most: i32, wide: impl Fn(&str) -> Result<i32>) -> Result<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    // Parts of words, and whether a space is before them.
    let mut parts: Vec<(&str, &str)> = Vec::new();
    for word in text.split(' ') {
        match wide(word)? <= most {
            true => parts.push((word, " ")),
            // What is chosen by name and options has no spaces, and may end a line after each.
            false => {
                let options = word.split_inclusive(':').enumerate();
                parts.extend(options.map(|(number, part)| (part, if number == 0 { " " } else { "" })));
            }
        }
    }
    for (part, space) in parts {
        match lines.last_mut() {
            Some(line) if wide(&format!("{line}{space}{part}"))? <= most => {
                *line = format!("{line}{space}{part}");
            }
            _ => lines.push(part.to_string()),
        }
    }
    Ok(lines)
}

/// The least and the most; 0 and 0 of nothing.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low <= high { (low, high) } else { (0.0, 0.0) }
}

/// An axis in equal steps whose ticks are whole numbers, each a nine.
struct Nines(RangedCoordf64);

impl From<Range<f64>> for Nines {
    fn from(range: Range<f64>) -> Nines {
        Nines(range.into())
    }
}

impl Ranged for Nines {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.0.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let range = self.0.range();
        (range.start.ceil() as i32..=range.end.floor() as i32).map(f64::from).collect()
    }

    fn range(&self) -> Range<f64> {
        self.0.range()
    }
}

impl Scale {
    /// What an abscissa shows of values.
    fn places(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        match self {
            Scale::Linear | Scale::Nines => {
                let (low, high) = ends(values);
                low..if high > low { high } else { low + 1.0 }
            }
            Scale::Log10 => decades(values),
            Scale::Log2 | Scale::Bytes => {
                let (low, high) = ends(values.filter(|value| *value > 0.0));
                let low = low.max(f64::MIN_POSITIVE);
                low * (1.0 - WIDER)..if high > low { high * (1.0 + WIDER) } else { low * 2.0 }
            }
        }
    }

    /// What an ordinate shows of values: from 0 on, or whole decades.
    fn heights(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        if self == Scale::Log10 {
            return decades(values);
        }
        let (low, high) = ends(values);
        let top = if high > 0.0 { high * 1.05 } else { 0.0 };
        let bottom = low.min(0.0) * 1.05;
        bottom..if top > bottom { top } else { bottom + 1.0 }
    }

    /// How a value is written at the axis.
    fn tick(self, value: f64) -> String {
        match self {
            Scale::Bytes => show_size(value.round() as u64).replace(".0 ", " "),
            Scale::Nines => {
                let figures = (value.round() - 2.0).max(0.0) as usize;
                format!("{:.figures$}", 100.0 - 100.0 * 10f64.powf(-value))
            }
            Scale::Linear | Scale::Log10 | Scale::Log2 => short(value),
        }
    }
}

/// Whole decades around the positive ones of values.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = ends(values.filter(|value| *value > 0.0 && value.is_finite()));
    let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 1.0) };
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    // A little more, or rounding loses the ticks at the ends.
    10f64.powi(from) * (1.0 - WIDER)..10f64.powi(to.max(from + 1)) * (1.0 + WIDER)
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    fn chart(body: Body, y: Scale) -> Chart {
        Chart {
            part: String::new(),
            title: "miss ratio".into(),
            x: Axis::linear("cache size (MiB)"),
            y: Axis::scaled("misses (%)", y),
            body,
        }
    }

    fn curve(name: &str, values: &[f64]) -> Curve {
        let points = values.iter().zip(1..).map(|(value, x)| (f64::from(x), (*value).into()));
        Curve { name: name.into(), points: points.collect() }
    }

    #[test]
    fn an_svg_has_its_words_and_a_png_is_one() {
        let curves = vec![curve("lru", &[0.5, 0.25]), curve("fab", &[0.4, 0.3])];
        let chart = chart(Body::Curves { curves, paper: vec![(1.0, 0.3)] }, Scale::Linear);
        let text = svg(&chart).unwrap();
        for word in ["miss ratio", "lru", "fab", "cache size (MiB)", "misses (%)", "text"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let bytes = png(&chart).unwrap();
        let reader = ::png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        assert_eq!(reader.info().width, WIDTH * FINE);
    }

    /// The texts of an SVG with their ordinates.
    fn texts(svg: &str) -> Vec<(f64, String)> {
        let one = |element: &str| {
            let y = element.split(" y=\"").nth(1)?.split('"').next()?.parse().ok()?;
            Some((y, element.split('>').nth(1)?.split('<').next()?.trim().to_string()))
        };
        svg.split("<text").skip(1).filter_map(one).collect()
    }

    #[test]
    fn a_legend_is_below_the_data() {
        let names = ["lru", "cflru", "a policy with a long name", "another policy with a long name"];
        let curves = names.map(|name| curve(name, &[1.0, 2.0])).to_vec();
        let text = svg(&chart(Body::Curves { curves, paper: vec![] }, Scale::Linear)).unwrap();
        let texts = texts(&text);
        let of = |name: &str| texts.iter().find(|(_, text)| text == name).unwrap().0;
        let axis = of("cache size (MiB)");
        assert!(names.iter().all(|name| of(name) > axis), "{texts:?}");
    }

    #[test]
    fn a_logarithm_shows_decades_and_leaves_zeros_out() {
        let curves = vec![curve("one", &[0.0, 0.02, 300.0])];
        let text = svg(&chart(Body::Curves { curves, paper: vec![] }, Scale::Log10)).unwrap();
        let texts: Vec<String> = texts(&text).into_iter().map(|(_, text)| text).collect();
        for tick in ["0.01", "0.1", "1", "10", "100", "1000"] {
            assert!(texts.iter().any(|text| text == tick), "{tick}: {texts:?}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn nothing_and_less_than_nothing_are_still_a_picture() {
        let bars = |value: f64| Body::bars([("a".to_string(), value.into())]);
        for value in [0.0, -30.0, 5.0] {
            for scale in [Scale::Linear, Scale::Log10] {
                let mut chart = chart(bars(value), Scale::Linear);
                chart.x.scale = scale;
                assert!(svg(&chart).is_ok_and(|text| text.contains(">\na\n<")), "{value} {scale:?}");
            }
        }
        let curves = Body::Curves { curves: vec![], paper: vec![] };
        for body in [Body::Dots(vec![]), Body::Cells(vec![]), Body::Maps(vec![]), curves] {
            assert!(svg(&chart(body, Scale::Linear)).is_ok());
        }
    }

    #[test]
    fn maps_that_stand_below_each_other_have_their_names_and_one_scale() {
        let squares = |text: &str, shade: RGBColor| {
            let RGBColor(red, green, blue) = shade;
            text.matches(&format!("fill=\"#{red:02X}{green:02X}{blue:02X}\"")).count()
        };
        let body = |least: f64| {
            Body::Maps(vec![("one".into(), vec![2.0; 100]), ("two".into(), vec![least, 8.0, 2.0])])
        };
        let text = svg(&chart(body(2.0), Scale::Linear)).unwrap();
        assert!(
            text.contains(">\none\n<") && text.contains(">\ntwo\n<") && text.contains(">\n2 to 8"),
            "{text}"
        );
        // The scale's own ends, and the squares: all of the first map is the least of both.
        assert_eq!((squares(&text, shade(0.0)), squares(&text, shade(1.0))), (1 + 102, 1 + 1));
        let text = svg(&chart(body(0.0), Scale::Linear)).unwrap();
        assert_eq!((squares(&text, shade(0.0)), squares(&text, shade(1.0))), (1 + 1, 1 + 1));
    }

    #[test]
    fn every_nine_is_told() {
        let told = [0.0, 1.0, 2.0, 3.0, 4.0].map(|nines| Scale::Nines.tick(nines));
        assert_eq!(told, ["0", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn long_names_are_in_several_lines_and_all_words_are_there() {
        let of = |text: &str| wrapped(text, 9, |text| Ok(text.len() as i32)).unwrap();
        assert_eq!(of("one two three four"), ["one two", "three", "four"]);
        assert_eq!(of("of bast:a=1:b=2:c=345 it"), ["of bast:", "a=1:b=2:", "c=345 it"]);
        assert_eq!(of("bast: 8 of"), ["bast: 8", "of"]);
    }
}
