//! Colours, marks, dashes and hatches.

use plotters::prelude::*;
use plotters::style::RGBAColor;

/// Colours that the colour-blind tell apart (Okabe and Ito), neighbours light and dark by turns.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x1a, 0x1a, 0x1a),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x8c, 0x8c, 0x8c),
];
/// What the paper's figures are filled with.
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xd4, 0x00);
/// Lines that only guide the eye.
pub(super) const GUIDE: RGBColor = RGBColor(0xe2, 0xe4, 0xe8);
pub(super) const INK: RGBColor = RGBColor(0x1d, 0x21, 0x29);
/// Pixels of a dash and of the gap after it; no gap is a line.
const DASHES: [(u32, u32); 5] = [(1, 0), (8, 4), (3, 3), (14, 4), (6, 8)];
const MARKS: [Mark; 7] =
    [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Cross, Mark::Wedge, Mark::Ring, Mark::Box];
const HATCHES: [&[Hatch]; 7] = [
    &[],
    &[Hatch::Rising],
    &[Hatch::Falling],
    &[Hatch::Across],
    &[Hatch::Rising, Hatch::Falling],
    &[Hatch::Upright],
    &[Hatch::Upright, Hatch::Across],
];

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Square,
    Triangle,
    Cross,
    /// A triangle on its tip.
    Wedge,
    Ring,
    Box,
    /// The paper's alone.
    Diamond,
}

/// Lines over a filled bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hatch {
    Rising,
    Falling,
    Across,
    Upright,
}

/// What a series is drawn with. Colours repeat after eight series, marks and hatches after seven: no two of 56 are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub colour: RGBAColor,
    pub mark: Mark,
    pub dash: (u32, u32),
    pub hatch: &'static [Hatch],
}

impl Look {
    pub fn of(number: usize) -> Look {
        Look {
            colour: COLOURS[number % COLOURS.len()].to_rgba(),
            mark: MARKS[number % MARKS.len()],
            dash: DASHES[number % DASHES.len()],
            hatch: HATCHES[number % HATCHES.len()],
        }
    }
}

/// The colour of a square, from 0, nearly white, to 1, nearly black; in grey, too, the darker the more.
pub(super) fn shade(part: f64) -> RGBColor {
    const STEPS: [(f64, f64, f64); 4] =
        [(242.0, 246.0, 252.0), (140.0, 184.0, 220.0), (26.0, 103.0, 164.0), (5.0, 30.0, 74.0)];
    let at = part.clamp(0.0, 1.0) * (STEPS.len() - 1) as f64;
    let low = (at as usize).min(STEPS.len() - 2);
    let between = |a: f64, b: f64| (a + (b - a) * (at - low as f64)).round() as u8;
    let ((r, g, b), (to_r, to_g, to_b)) = (STEPS[low], STEPS[low + 1]);
    RGBColor(between(r, to_r), between(g, to_g), between(b, to_b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a grey printer sees it.
    fn grey(colour: RGBColor) -> f64 {
        0.299 * f64::from(colour.0) + 0.587 * f64::from(colour.1) + 0.114 * f64::from(colour.2)
    }

    #[test]
    fn no_two_series_look_alike_in_colour_or_in_grey() {
        let looks: Vec<Look> = (0..56).map(Look::of).collect();
        for (number, one) in looks.iter().enumerate() {
            assert!(looks[..number].iter().all(|other| other != one), "{number}");
        }
        // Seven have a mark and a hatch of their own, whatever colours become.
        for (number, one) in looks[..7].iter().enumerate() {
            let alike = |other: &Look| other.mark == one.mark || other.hatch == one.hatch;
            assert!(!looks[..number].iter().any(alike), "{number}");
        }
    }

    #[test]
    fn more_is_darker_in_grey_too() {
        let greys: Vec<f64> = (0..=20).map(|step| grey(shade(f64::from(step) / 20.0))).collect();
        assert!(greys.windows(2).all(|pair| pair[0] > pair[1]), "{greys:?}");
    }
}
