//! Charts: what is to be drawn as data, and the drawing of it as SVG or PNG.
//!
//! Figures of papers (`reproduce`), plots of runs (`replay`) and the pages of both are drawn here, by plotters, so that they
//! look the same: sized for a column of a paper, the legend below the data, each series with a colour that the colour-blind tell
//! apart and a mark, dash or hatch that is told apart in grey, logarithms where an axis says so.

mod draw;
mod style;

pub(crate) use draw::{png, save, save_both, svg};

use serde::{Deserialize, Serialize};

/// Something to draw, with all that is written at it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// Ends the name of its file, after what it belongs to.
    pub part: String,
    /// What is shown.
    pub title: String,
    /// What lies from left to right; of bars and marks, their length.
    pub x: Axis,
    /// What lies from bottom to top; of bars nothing.
    pub y: Axis,
    /// What is drawn.
    pub body: Body,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Axis {
    /// A quantity, and its unit in brackets.
    pub label: String,
    /// How values lie on it.
    pub scale: Scale,
}

impl Axis {
    /// From 0 on in equal steps.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear }
    }

    /// As `scale` says.
    pub fn scaled(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale }
    }
}

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scale {
    /// In equal steps, from 0 on if it is an ordinate.
    #[default]
    Linear,
    /// Each step ten times the one before.
    Log10,
    /// Each step twice the one before.
    Log2,
    /// The same of bytes.
    Bytes,
    /// Percentiles by −log₁₀ of the part above: each nine is a step.
    Nines,
}

impl Scale {
    /// [`Log10`](Scale::Log10) for values so far apart that equal steps would lay most of them on the axis.
    pub fn for_values(values: impl Iterator<Item = f64>) -> Scale {
        /// Times the least.
        const FAR: f64 = 50.0;
        let positive = |(low, high): (f64, f64), value: f64| match value > 0.0 {
            true => (low.min(value), high.max(value)),
            false => (low, high),
        };
        let (low, high) = values.fold((f64::INFINITY, 0.0), positive);
        if high > FAR * low { Scale::Log10 } else { Scale::Linear }
    }
}

/// A value with what it was at least and at most, over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Value {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl From<f64> for Value {
    fn from(mean: f64) -> Value {
        Value { mean, least: mean, most: mean }
    }
}

/// Points in the order of their abscissas, with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// As the legend has it.
    pub name: String,
    /// Abscissa and value.
    pub points: Vec<(f64, Value)>,
}

/// Bars that stand together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Beside them.
    pub name: String,
    /// One a series, where there is one: ours, and the paper's.
    pub bars: Vec<Option<(Value, Option<f64>)>>,
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// Lines through points.
    Curves {
        /// Ours and peers'.
        curves: Vec<Curve>,
        /// Points that the paper's text gives.
        paper: Vec<(f64, f64)>,
    },
    /// Bars from left to right; marks where the axis has no zero.
    Bars {
        /// Of each group's bars.
        series: Vec<String>,
        /// From above to below.
        groups: Vec<Group>,
    },
    /// Dots.
    Dots(Vec<(f64, f64)>),
    /// Squares row by row, the darker the more.
    Cells(Vec<f64>),
    /// Several such maps below each other, each with its name, all on one scale.
    Maps(Vec<(String, Vec<f64>)>),
}

impl Body {
    /// Bars without series.
    pub fn bars(bars: impl IntoIterator<Item = (String, Value)>) -> Body {
        let group = |(name, value)| Group { name, bars: vec![Some((value, None))] };
        Body::Bars { series: vec![String::new()], groups: bars.into_iter().map(group).collect() }
    }

    /// Dots, one for all that lie on the same place of a raster.
    pub fn dots(points: impl Iterator<Item = (f64, f64)> + Clone) -> Body {
        const RASTER: (f64, f64) = (720.0, 400.0);
        let ends = |(right, top): (f64, f64), (x, y): (f64, f64)| (right.max(x), top.max(y));
        let (right, top) = points.clone().fold((f64::MIN_POSITIVE, f64::MIN_POSITIVE), ends);
        let place = |(x, y): (f64, f64)| ((x / right * RASTER.0) as u32, (y / top * RASTER.1) as u32);
        let mut places: Vec<(u32, u32)> = points.map(place).collect();
        places.sort_unstable();
        places.dedup();
        let point = |(x, y): (u32, u32)| (f64::from(x) * right / RASTER.0, f64::from(y) * top / RASTER.1);
        Body::Dots(places.into_iter().map(point).collect())
    }

    /// Squares, each the mean of as many values as it takes for no more than a thousand.
    pub fn cells(values: &[u32]) -> (Body, usize) {
        const MOST: usize = 1024;
        let each = values.len().div_ceil(MOST).max(1);
        (Body::Cells(Body::squares(values, each)), each)
    }

    /// The means of so many values each.
    pub fn squares(values: &[u32], each: usize) -> Vec<f64> {
        let mean =
            |values: &[u32]| values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
        values.chunks(each).map(mean).collect()
    }

    /// Whether an SVG of it would be longer than a PNG.
    pub fn is_dense(&self) -> bool {
        matches!(self, Body::Dots(_))
    }
}

/// A number on an axis: few figures, thousands and millions as `k` and `M`.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let figures = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.01.. => 4,
        _ => 6,
    };
    let text = format!("{value:.figures$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        let shown = [0.0, -0.0, 0.25, 0.0625, 12.5, 1234.0, 240_000.0, 1.25e6, 0.0005, 2e9].map(short);
        assert_eq!(shown, ["0", "0", "0.25", "0.0625", "12.5", "1234", "240k", "1.25M", "0.0005", "2G"]);
    }

    #[test]
    fn an_axis_is_a_logarithm_where_values_are_far_apart() {
        assert_eq!(Scale::for_values([0.0, 1.0, 40.0].into_iter()), Scale::Linear);
        assert_eq!(Scale::for_values([0.0, 1.0, 60.0].into_iter()), Scale::Log10);
        assert_eq!(Scale::for_values(std::iter::empty()), Scale::Linear);
    }

    #[test]
    fn dots_on_the_same_place_are_one_and_cells_are_means() {
        let Body::Dots(dots) = Body::dots((0..100_000).map(|n| (f64::from(n), f64::from(n % 2)))) else {
            panic!("no dots")
        };
        assert!((1400..1500).contains(&dots.len()), "{}", dots.len());
        let (Body::Cells(cells), each) = Body::cells(&[1, 3].repeat(1024)) else { panic!("no cells") };
        assert_eq!((cells.len(), each), (1024, 2));
        assert!(cells.iter().all(|cell| *cell == 2.0));
    }
}
