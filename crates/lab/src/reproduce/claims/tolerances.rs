//! Tolerances that several claims share. Each reason is there without our results.

use super::{Limits, Tolerance, absolute, part};

/// The paper prints whole percent.
pub const WHOLE: Tolerance<'static> = absolute(0.5, "the paper prints whole percent");
/// The paper prints tenths.
pub const TENTHS: Tolerance<'static> = absolute(0.05, "the paper prints tenths");
/// Of the FTL paper.
pub const NEGLIGIBLE: Tolerance<'static> =
    part(0.08, "the paper itself calls 7.9 % (324.65 s to 350.33 s) negligible");
/// Of the NF-hybrid paper.
pub const LITTLE: Tolerance<'static> =
    part(0.11, "11 % (figure 20) is the least difference that the paper reports as one");
/// Of bars without numbers.
pub const UNREAD: Tolerance<'static> =
    part(0.05, "the paper gives no number; bars a twentieth apart cannot be told apart");
/// Of a curve called linear.
pub const LINEAR: Tolerance<'static> =
    part(0.1, "the paper plots six to ten points; a tenth of the rise is what a plot shows");

/// What is larger than another, by whatever.
pub const LARGER: Limits =
    Limits { least: 1.0, most: f64::INFINITY, reason: "the paper says more, not how much" };

/// A gain that the paper puts in a number, in parts: 0.23 is 23 % more. From half of it to twice.
pub const fn gain(paper: f64) -> Limits {
    Limits {
        least: 1.0 + paper / 2.0,
        most: 1.0 + paper * 2.0,
        reason: "another machine than the paper's: a gain is the same from half to twice its size",
    }
}

/// A ratio that the paper puts in a number: from half of it to twice.
pub const fn times(paper: f64) -> Limits {
    Limits {
        least: paper / 2.0,
        most: paper * 2.0,
        reason: "another machine than the paper's: a ratio is the same from half to twice its size",
    }
}

/// A reduction that the paper puts in a number, percent and negative: from half of it to twice.
pub const fn reduction(paper_percent: f64) -> Limits {
    Limits {
        least: paper_percent * 2.0,
        most: paper_percent / 2.0,
        reason: "another trace than the paper's: a reduction is the same from half to twice its size",
    }
}
