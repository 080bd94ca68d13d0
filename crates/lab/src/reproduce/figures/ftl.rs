//! Translation layers under VFAT: table 1, and figure 2 in numbers (its dots are drawn by the experiment).

use super::{Plot, Plots, bars};

const SECONDS: &str = "time (s)";
const GAIN: &str = "times as fast without hot metadata";

const SHARES: &[Plot] = &[bars(
    "",
    "003, figure 2: writes to metadata, and writes saved by a cache for it",
    "of all writes (%)",
    &["{series}/to metadata", "{series}/fewer"],
)];

pub(super) const PLOTS: &[Plots] = &[
    ("ftl-fig2", SHARES),
    ("ftl-fig2-stack", SHARES),
    (
        "ftl-table1",
        &[
            bars(
                "data-sheet",
                "003, table 1: Camera-MS500 with a data sheet's costs",
                SECONDS,
                &["data sheet/{group}/hot", "data sheet/{group}/cold"],
            ),
            bars(
                "fitted",
                "003, table 1: Camera-MS500 with costs fitted to the table",
                SECONDS,
                &["fitted/{group}/hot", "fitted/{group}/cold"],
            ),
            bars(
                "gain",
                "003, table 1: what taking hot metadata away gains",
                GAIN,
                &["{series}/{group}/gain"],
            ),
        ],
    ),
    (
        "ftl-table1-stack",
        &[
            bars(
                "data-sheet",
                "003, table 1, on the whole stack with a data sheet's costs",
                SECONDS,
                &["camera-data-sheet/{group}/hot", "camera-data-sheet/{group}/cold"],
            ),
            bars(
                "fitted",
                "003, table 1, on the whole stack with fitted costs",
                SECONDS,
                &["camera-paper/{group}/hot", "camera-paper/{group}/cold"],
            ),
            bars(
                "gain",
                "003, table 1, on the whole stack: what taking hot metadata away gains",
                GAIN,
                &["{series}/{group}/gain"],
            ),
        ],
    ),
];
