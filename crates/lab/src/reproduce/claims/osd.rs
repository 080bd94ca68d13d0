//! Object-based flash: placements of an object store, by what is cleaned.

use super::tolerances::reduction;
use super::{Check, Claim, FIVE, Limits, Paper, Way, given, within};

const WAYS: &[Way] = &[given(
    "cost-benefit cleaning, a commit each 5 s; utilisation and segment size are not in the paper: the largest change of several",
)];

/// Of a bar that is normalised to 100.
const NO_LOSS: Limits = Limits {
    least: f64::NEG_INFINITY,
    most: 1.0,
    reason: "bars normalised to 100 cannot be read closer than 1",
};

/// Less than the least gain that the paper reports as one.
const LITTLE_GAIN: Limits = Limits { least: -9.0, ..NO_LOSS };

const READS: &[Check<'static>] = &[
    within("split: segments cleaned, largest change", "split/segments, best", reduction(-9.0)),
    within("split+atime: segments cleaned, largest change", "split-atime/segments, best", reduction(-23.0)),
    within("split: bytes copied, largest change", "split/bytes, best", reduction(-28.0)),
];

const WRITES: &[Check<'static>] = &[
    within("split: segments cleaned, every change", "split/segments, */change", LITTLE_GAIN),
    within("split+atime: segments cleaned, every change", "split-atime/segments, */change", LITTLE_GAIN),
];

/// Figure 2(a).
pub const FIG2A: Claim = Claim {
    id: "osd-fig2a",
    paper: Paper::Osd,
    figure: "figure 2(a)",
    says: "read-heavy: split cleans up to 9 % fewer segments than combined, split+atime up to 23 %; split copies 28 % fewer bytes",
    seeds: FIVE,
    ways: WAYS,
    checks: READS,
};

/// Figure 2(b).
pub const FIG2B: Claim = Claim {
    id: "osd-fig2b",
    paper: Paper::Osd,
    figure: "figure 2(b)",
    says: "write-heavy: little gain, no loss",
    seeds: FIVE,
    ways: WAYS,
    checks: WRITES,
};
