//! NF-hybrid, figures 7 to 20, and what its authors could not see. The paper draws bandwidths without numbers; its text gives
//! quotients.

use super::{Beside, Of, Plot, Plots, bars, beside, quotient};
use crate::chart::Scale;

const MB_S: &str = "bandwidth (MB/s)";
const OVER: &str = "times as much";

const fn sizes(part: &'static str, title: &'static str, patterns: &'static [&'static str]) -> Plot {
    Plot {
        part,
        title,
        quantity: MB_S,
        of: Of::Curves { patterns, x: "file size (MiB)", scale: Scale::Log2 },
    }
}

/// A claim of the text that is a quotient of two extent sizes.
const fn extents(part: &'static str, title: &'static str, all: &'static [Beside]) -> Plot {
    beside(part, title, OVER, all)
}

pub(super) const PLOTS: &[Plots] = &[
    (
        "nfh-fig7",
        &[
            sizes(
                "ignored",
                "000, figure 7: IOzone write, a disk that ignores flushes",
                &["ignored/{series}/write@{x}"],
            ),
            sizes(
                "honoured",
                "000, figure 7: IOzone write, a disk that honours flushes",
                &["honoured/{series}/write@{x}"],
            ),
            beside(
                "over-peers",
                "000, figure 7: nfhybrid at 256 MiB over peers at 64 MiB",
                OVER,
                &[
                    quotient(
                        "over ext2 on the disk, flushes ignored",
                        "ignored/nfhybrid/write@256",
                        "ignored/ext2 on the disk/write@64",
                        Some(4.0),
                    ),
                    quotient(
                        "over xfs on the disk, flushes ignored",
                        "ignored/nfhybrid/write@256",
                        "ignored/xfs on the disk/write@64",
                        Some(4.0),
                    ),
                    quotient(
                        "over ext2 on the disk, honoured",
                        "honoured/nfhybrid/write@256",
                        "honoured/ext2 on the disk/write@64",
                        None,
                    ),
                    quotient(
                        "over xfs on the disk, honoured",
                        "honoured/nfhybrid/write@256",
                        "honoured/xfs on the disk/write@64",
                        None,
                    ),
                ],
            ),
        ],
    ),
    (
        "nfh-fig8",
        &[bars(
            "",
            "000, figure 8: IOzone rewrite; the disk ignores or honours flushes",
            MB_S,
            &["{group}/{series}/rewrite"],
        )],
    ),
    (
        "nfh-fig10",
        &[
            bars("", "000, figure 10: random template, write", MB_S, &["{group}/{series}/write"]),
            bars(
                "advantage",
                "000, figure 10: nfhybrid over a file system on the disk that ignores flushes",
                OVER,
                &["ignored/advantage over {group}/{series}"],
            ),
        ],
    ),
    (
        "nfh-fig11",
        &[bars("", "000, figure 11: random template, rewrite", MB_S, &["{group}/{series}/rewrite"])],
    ),
    ("nfh-fig12", &[bars("", "000, figure 12: random template, read", MB_S, &["{group}/{series}/read"])]),
    (
        "nfh-fig13",
        &[
            bars(
                "",
                "000, figure 13: IOzone write by size of the extents; a large file and one of 64 KiB",
                MB_S,
                &["{series}/write, {group}"],
            ),
            extents(
                "over-16",
                "000, figure 13: extents of 512 KiB over 16 KiB",
                &[
                    quotient("large file", "512 KiB/write, large", "16 KiB/write, large", Some(1.23)),
                    quotient("file of 64 KiB", "512 KiB/write, small", "16 KiB/write, small", None),
                ],
            ),
        ],
    ),
    (
        "nfh-fig14",
        &[bars(
            "",
            "000, figure 14: IOzone rewrite by size of the extents",
            MB_S,
            &["{series}/rewrite, {group}"],
        )],
    ),
    (
        "nfh-fig15",
        &[bars("", "000, figure 15: IOzone read by size of the extents", MB_S, &["{series}/read, {group}"])],
    ),
    (
        "nfh-fig16",
        &[
            bars(
                "",
                "000, figure 16: random template, write by size of the extents",
                MB_S,
                &["{group}/write"],
            ),
            extents(
                "over-16",
                "000, figure 16: extents of 512 KiB over 16 KiB",
                &[quotient("write", "512 KiB/write", "16 KiB/write", Some(1.28))],
            ),
        ],
    ),
    (
        "nfh-fig17",
        &[bars(
            "",
            "000, figure 17: random template, rewrite by size of the extents",
            MB_S,
            &["{group}/rewrite"],
        )],
    ),
    (
        "nfh-fig18",
        &[bars("", "000, figure 18: random template, read by size of the extents", MB_S, &["{group}/read"])],
    ),
    (
        "nfh-fig19",
        &[
            bars("", "000, figure 19: PostMark", "transactions a second", &["{group} files/{series}"]),
            beside(
                "over-peers",
                "000, figure 19: extents of 512 KiB over what the text compares them with",
                OVER,
                &[
                    quotient(
                        "ext2 on the SSD, 1 000 files",
                        "1000 files/512 KiB",
                        "1000 files/ext2 on the SSD",
                        Some(1.18),
                    ),
                    quotient(
                        "ext2 on the SSD, 20 000 files",
                        "20000 files/512 KiB",
                        "20000 files/ext2 on the SSD",
                        Some(1.28),
                    ),
                    quotient(
                        "extents of 16 KiB, 20 000 files",
                        "20000 files/512 KiB",
                        "20000 files/16 KiB",
                        Some(1.20),
                    ),
                ],
            ),
        ],
    ),
    (
        "nfh-fig20",
        &[
            bars("", "000, figure 20: chunks of 16 KiB with an fsync each", MB_S, &["{group}/write"]),
            beside(
                "over-peers",
                "000, figure 20: what the text compares",
                OVER,
                &[
                    quotient(
                        "extents of 512 KiB over ext2 on the SSD",
                        "512 KiB/write",
                        "ext2 on the SSD/write",
                        Some(1.11),
                    ),
                    quotient(
                        "ext2 on the SSD over ext2 on the disk",
                        "ext2 on the SSD/write",
                        "ext2 on the disk/write",
                        Some(1.76),
                    ),
                ],
            ),
        ],
    ),
    (
        "nfh-align",
        &[
            bars(
                "copies",
                "Extents along erase blocks and across them: copies",
                "pages copied",
                &["{group}/{series}/copies"],
            ),
            bars(
                "erases",
                "Extents along erase blocks and across them: erases",
                "blocks erased",
                &["{group}/{series}/erases"],
            ),
            bars(
                "merges",
                "Extents along erase blocks and across them: full merges",
                "full merges",
                &["{group}/{series}/full merges"],
            ),
        ],
    ),
];
