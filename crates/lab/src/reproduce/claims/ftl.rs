//! Doh and others, IEICE 2010: translation layers under VFAT, with and without a non-volatile cache for its metadata.

use super::tolerances::{NEGLIGIBLE, WHOLE};
use super::{
    Check, Claim, Limits, Paper, Parameters, Seeds, Way, absolute, alike, ascending, draw, given, is, within,
};

/// Every draw of the workload is another set of photo sizes and of deleted photos.
const SIXTEEN: Seeds = Seeds::Drawn(16);

/// Of both beds of figure 2.
pub(super) const REFERENCES: &[Check<'static>] = &[
    is("writes that go to FATs and directories", "*/to metadata", 60.0, WHOLE),
    is(
        "sectors these go to, of all",
        "*/of all sectors",
        0.2,
        absolute(0.05, "the paper prints tenths of a percent"),
    ),
    is("writes fewer with the cache", "*/fewer", 60.0, WHOLE),
    within(
        "what is left of the line: writes a metadata sector with the cache",
        "*/left a sector",
        Limits {
            least: f64::NEG_INFINITY,
            most: 1.0,
            reason: "a cache that is emptied at the end writes each of its sectors once",
        },
    ),
    draw(
        "data written",
        "*/data written",
        79.67,
        0.80,
        "200 sizes drawn evenly from 300 to 500 KiB: 57.7 KiB each, 0.80 MiB together",
    ),
];

/// Of both beds of Table 1.
pub(super) const TABLE: &[Check<'static>] = &[
    ascending("with hot metadata", &["Log/hot", "FAST/hot", "Repl/hot"]),
    ascending("without", &["Repl/cold", "FAST/cold", "Log/cold"]),
    alike("the three without", &["Repl/cold", "FAST/cold", "Log/cold"], NEGLIGIBLE),
    is("gain of Repl", "Repl/gain", 9731.15 / 324.65, NEGLIGIBLE),
    is("gain of Log", "Log/gain", 1116.10 / 350.33, NEGLIGIBLE),
    is("gain of FAST", "FAST/gain", 2200.72 / 331.29, NEGLIGIBLE),
];

/// Figure 2.
pub const FIG2: Claim = Claim {
    id: "ftl-fig2",
    paper: Paper::Ftl,
    figure: "figure 2",
    says: "60 % of the writes go to 0.2 % of the sectors; with the cache their line disappears and there are 60 % fewer; \
           79.67 MB are written",
    seeds: SIXTEEN,
    ways: &[given("FAT16 on 65 536 sectors with 2 KiB clusters; recorded: Linux 6.1's VFAT, one draw")],
    checks: REFERENCES,
};

/// Table 1.
pub const TABLE1: Claim = Claim {
    id: "ftl-table1",
    paper: Paper::Ftl,
    figure: "table 1",
    says: "with hot metadata Log < FAST < Repl, without it Repl < FAST < Log within 8 %; gains 30, 3.2 and 6.6 times",
    seeds: SIXTEEN,
    ways: &[
        Way {
            prefix: "data sheet/",
            parameters: Parameters::Given(
                "K9F1208 data sheet, 250 us of software a sector, the schemes as published",
            ),
        },
        Way {
            prefix: "fitted/",
            parameters: Parameters::Searched(
                "the costs of a write, a copy and an erase, the cost of the mapping in each scheme, the volume's first sector, \
                 directory entries a photo, the schemes' variants",
            ),
        },
    ],
    checks: TABLE,
};
