//! Pictures: curves, bars and dots, as SVG or PNG.
//!
//! Text in an SVG is text; in a PNG it is drawn with the DejaVu font, which is built in, so that neither
//! needs anything installed.

use super::rows::write_whole;
use bimetal_base::{Error, Result};
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::io::Write;
use std::path::Path;

/// Pixels.
const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";
const TITLE: (&str, u32) = (FONT, 20);
const LABEL: (&str, u32) = (FONT, 13);

/// What a picture is drawn on.
pub(crate) type Area<B> = DrawingArea<B, plotters::coord::Shift>;

/// Something to draw.
pub(crate) trait Picture {
    /// Draws it all.
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()>;
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::io("drawing", std::io::Error::other(why.to_string()))
}

/// The picture as the text of an SVG.
pub(super) fn svg(picture: &impl Picture) -> Result<String> {
    let mut text = String::new();
    paint(SVGBackend::with_string(&mut text, SIZE).into_drawing_area(), picture)?;
    Ok(text)
}

/// The picture as the bytes of a PNG.
fn png(picture: &impl Picture) -> Result<Vec<u8>> {
    let (width, height) = SIZE;
    let mut pixels = vec![0; (width * height * 3) as usize];
    paint(BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area(), picture)?;
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(::png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

fn paint<B: DrawingBackend>(area: Area<B>, picture: &impl Picture) -> Result<()> {
    // The font is a valid one, and registering it again changes nothing.
    let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    area.fill(&WHITE).map_err(failed)?;
    picture.draw(&area)?;
    area.present().map_err(failed)
}

/// Whether [`save`] knows what to make of a file of this name.
pub(super) fn is_known(path: &Path) -> bool {
    matches!(path.extension().and_then(|ext| ext.to_str()), Some("svg" | "png"))
}

/// Writes the picture to a .svg file, or as PNG to any other.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn save(path: &Path, picture: &impl Picture) -> Result<()> {
    let bytes = match path.extension().and_then(|ext| ext.to_str()) {
        Some("svg") => svg(picture)?.into_bytes(),
        _ => png(picture)?,
    };
    write_whole(path, |file| file.write_all(&bytes).map_err(|why| Error::io(path.display(), why)))
}

/// A number on an axis, without needless zeros.
pub(super) fn plain(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// The end of an axis that shows values up to `top`.
fn above(top: f64) -> f64 {
    if top > 0.0 { top * 1.05 } else { 1.0 }
}

/// Lines through points, each with a name; the ordinate begins at 0.
pub(crate) struct Curves<'a> {
    pub title: &'a str,
    pub abscissa: &'a str,
    /// How a value of the abscissa is written.
    pub label: fn(f64) -> String,
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

impl Picture for Curves<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let points = || self.curves.iter().flat_map(|(_, points)| points.iter().copied());
        let ends = |(low, high): (f64, f64), (x, _): (f64, f64)| (low.min(x), high.max(x));
        let (left, right) = points().fold((f64::MAX, f64::MIN), ends);
        let top = points().fold(0.0, |high: f64, (_, y)| high.max(y));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, TITLE)
            .margin(16)
            .margin_right(36)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(left..right.max(left + 1e-9), 0.0..above(top))
            .map_err(failed)?;
        let (x_label, y_label) = (|x: &f64| (self.label)(*x), |y: &f64| plain(*y));
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.abscissa).x_labels(6).x_label_formatter(&x_label).y_label_formatter(&y_label);
        mesh.label_style(LABEL).light_line_style(WHITE).draw().map_err(failed)?;
        for (number, (name, points)) in self.curves.iter().enumerate() {
            let colour = Palette99::pick(number).to_rgba();
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
            let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
            chart.draw_series(line).map_err(failed)?.label(name).legend(key);
        }
        let mut legend = chart.configure_series_labels();
        legend.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).label_font(LABEL);
        legend.position(SeriesLabelPosition::UpperRight).draw().map_err(failed)
    }
}

/// Bars from left to right, one below the other, each with a name.
pub(crate) struct Bars<'a> {
    pub title: &'a str,
    pub bars: Vec<(String, f64)>,
}

impl Picture for Bars<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let top = self.bars.iter().fold(0.0, |high: f64, (_, value)| high.max(*value));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, TITLE)
            .margin(16)
            .margin_right(36)
            .x_label_area_size(30)
            .y_label_area_size(260)
            .build_cartesian_2d(0.0..above(top), 0.0..self.bars.len() as f64)
            .map_err(failed)?;
        let x_label = |x: &f64| plain(*x);
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().y_labels(0).x_labels(6).x_label_formatter(&x_label);
        mesh.label_style(LABEL).light_line_style(WHITE).draw().map_err(failed)?;
        let right = TextStyle::from(LABEL.into_font()).pos(Pos::new(HPos::Right, VPos::Center));
        for (number, (name, value)) in self.bars.iter().enumerate() {
            let y = (self.bars.len() - 1 - number) as f64;
            let bar = Rectangle::new([(0.0, y + 0.15), (*value, y + 0.85)], Palette99::pick(number).filled());
            chart.draw_series([bar]).map_err(failed)?;
            let (left, middle) = chart.plotting_area().map_coordinate(&(0.0, y + 0.5));
            area.draw(&Text::new(name.as_str(), (left - 8, middle), right.clone())).map_err(failed)?;
        }
        Ok(())
    }
}

/// Dots; those that fall on the same pixel are drawn once.
pub(crate) struct Dots<'a> {
    pub title: &'a str,
    pub abscissa: &'a str,
    pub ordinate: &'a str,
    pub points: &'a [(f64, f64)],
}

impl Dots<'_> {
    /// One point a pixel, for axes that end at `right` and `top`.
    fn distinct(&self, right: f64, top: f64) -> Vec<(f64, f64)> {
        let (width, height) = (f64::from(SIZE.0), f64::from(SIZE.1));
        let pixel = |(x, y): &(f64, f64)| ((x / right * width) as u32, (y / top * height) as u32);
        let mut pixels: Vec<_> = self.points.iter().map(pixel).collect();
        pixels.sort_unstable();
        pixels.dedup();
        pixels.into_iter().map(|(x, y)| (f64::from(x) * right / width, f64::from(y) * top / height)).collect()
    }
}

impl Picture for Dots<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let ends = |(right, top): (f64, f64), (x, y): &(f64, f64)| (right.max(*x), top.max(*y));
        let (right, top) = self.points.iter().fold((0.0, 0.0), ends);
        let (right, top) = (above(right), above(top));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, TITLE)
            .margin(16)
            .margin_right(36)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(failed)?;
        let label = |value: &f64| plain(*value);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.abscissa).y_desc(self.ordinate).x_label_formatter(&label).y_label_formatter(&label);
        mesh.label_style(LABEL).light_line_style(WHITE).draw().map_err(failed)?;
        let dot = |(x, y)| Circle::new((x, y), 1, BLUE.filled());
        chart.draw_series(self.distinct(right, top).into_iter().map(dot)).map_err(failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_svg_has_its_words_and_a_png_is_one() {
        let curves = Curves {
            title: "miss ratio",
            abscissa: "cache size",
            label: plain,
            curves: vec![("lru".into(), vec![(1.0, 0.5), (2.0, 0.25)])],
        };
        let text = svg(&curves).unwrap();
        assert!(text.contains("miss ratio") && text.contains("lru") && text.contains("cache size"));
        let bars = Bars { title: "erases", bars: vec![("page".into(), 10.0), ("log".into(), 0.0)] };
        assert!(svg(&bars).unwrap().contains("page"));
        let bytes = png(&bars).unwrap();
        let reader = ::png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), SIZE);
    }

    #[test]
    fn dots_on_the_same_pixel_are_drawn_once() {
        let points: Vec<_> = (0..100_000).map(|n| (f64::from(n), f64::from(n % 2))).collect();
        let dots = Dots { title: "writes", abscissa: "write", ordinate: "sector", points: &points };
        let drawn = svg(&dots).unwrap().matches("<circle").count();
        assert!((900..2000).contains(&drawn), "{drawn}");
    }

    #[test]
    fn nothing_is_still_a_picture() {
        assert!(svg(&Bars { title: "none", bars: vec![("a".into(), 0.0)] }).is_ok());
        assert!(svg(&Dots { title: "none", abscissa: "", ordinate: "", points: &[] }).is_ok());
    }
}
