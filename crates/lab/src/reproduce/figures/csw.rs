//! CSWLRU, figures 10 to 13. The paper draws bars and states no number.

use super::{Plot, Plots, bars};

const PAGES: &str = "pages written to the SSD";
const ERASES: &str = "blocks erased";
const MERGES: &str = "full merges";

/// The six of a figure of Iometer.
macro_rules! iometer {
    ($figure:literal, $what:literal) => {
        &[
            bars(
                "erases",
                concat!("004, figure ", $figure, ": ", $what, " writes, erases"),
                ERASES,
                &["writes only, {group}/{series}/erases"],
            ),
            bars(
                "pages",
                concat!("004, figure ", $figure, ": ", $what, " writes, page writes"),
                PAGES,
                &["writes only, {group}/{series}/page writes"],
            ),
            bars(
                "merges",
                concat!("004, figure ", $figure, ": ", $what, " writes, full merges"),
                MERGES,
                &["writes only, {group}/{series}/full merges"],
            ),
            bars(
                "reads-erases",
                concat!("004, figure ", $figure, ": ", $what, " requests, half of them reads, erases"),
                ERASES,
                &["half reads, {group}/{series}/erases"],
            ),
            bars(
                "reads-pages",
                concat!("004, figure ", $figure, ": ", $what, " requests, half of them reads, page writes"),
                PAGES,
                &["half reads, {group}/{series}/page writes"],
            ),
            bars(
                "reads-merges",
                concat!("004, figure ", $figure, ": ", $what, " requests, half of them reads, full merges"),
                MERGES,
                &["half reads, {group}/{series}/full merges"],
            ),
        ]
    };
}

const MIXED: &[Plot] = iometer!("10", "60 % random");
const SEQUENTIAL: &[Plot] = iometer!("11", "sequential");
const RANDOM: &[Plot] = iometer!("12", "random");

pub(super) const PLOTS: &[Plots] = &[
    ("csw-fig10", MIXED),
    ("csw-fig11", SEQUENTIAL),
    ("csw-fig12", RANDOM),
    (
        "csw-fig13",
        &[
            bars(
                "erases",
                "004, figure 13: a download of 739 MB, erases",
                ERASES,
                &["download, {group}/{series}/erases"],
            ),
            bars(
                "pages",
                "004, figure 13: a download of 739 MB, page writes",
                PAGES,
                &["download, {group}/{series}/page writes"],
            ),
            bars(
                "merges",
                "004, figure 13: a download of 739 MB, full merges",
                MERGES,
                &["download, {group}/{series}/full merges"],
            ),
        ],
    ),
];
