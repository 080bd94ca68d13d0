//! Object-based flash, figure 2: cleaning by placement, normalised to one log of everything (*combined*), as the paper draws it.

use super::{Beside, Plots, bars, beside};

const fn best(name: &'static str, figure: &'static str, paper: f64) -> Beside {
    Beside { name, figure, over: None, paper: Some(paper) }
}

const CHANGE: &str = "change against combined (%)";

pub(super) const PLOTS: &[Plots] = &[
    (
        "osd-fig2a",
        &[
            beside(
                "",
                "002, figure 2(a), read-heavy: the largest changes",
                CHANGE,
                &[
                    best("split: segments cleaned", "split/segments, best", -9.0),
                    best("split+atime: segments cleaned", "split-atime/segments, best", -23.0),
                    best("split: bytes copied", "split/bytes, best", -28.0),
                ],
            ),
            bars(
                "segments",
                "002, figure 2(a), read-heavy: segments cleaned",
                CHANGE,
                &["{series}/segments, {group} KiB/change"],
            ),
            bars(
                "bytes",
                "002, figure 2(a), read-heavy: bytes copied",
                CHANGE,
                &["{series}/bytes, {group} KiB/change"],
            ),
        ],
    ),
    (
        "osd-fig2b",
        &[
            bars(
                "segments",
                "002, figure 2(b), write-heavy: segments cleaned",
                CHANGE,
                &["{series}/segments, {group} KiB/change"],
            ),
            bars(
                "bytes",
                "002, figure 2(b), write-heavy: bytes copied",
                CHANGE,
                &["{series}/bytes, {group} KiB/change"],
            ),
        ],
    ),
];
