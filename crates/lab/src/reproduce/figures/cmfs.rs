//! CMFS, figures 9 to 16, and its ratio of NVRAM to NAND.

use super::{Of, Plot, Plots, bars};
use crate::chart::Scale;

const fn curves(
    part: &'static str,
    title: &'static str,
    quantity: &'static str,
    patterns: &'static [&'static str],
    x: &'static str,
    scale: Scale,
) -> Plot {
    Plot { part, title, quantity, of: Of::Curves { patterns, x, scale } }
}

const MS: &str = "time (ms)";

pub(super) const PLOTS: &[Plots] = &[
    (
        "cmfs-table2",
        &[
            bars(
                "compressed",
                "001, table 2: the records of 400 files, as the paper lays them out and as they lie in the NVRAM",
                "bytes",
                &["compressed/{group}"],
            ),
            bars(
                "reads",
                "001, table 2: pages of NAND read by a mount",
                "pages",
                &[
                    "in memory/NAND pages read",
                    "synchronised/NAND pages read by the next mount",
                    "recovered/NAND pages and spare areas read",
                ],
            ),
        ],
    ),
    (
        "cmfs-ratio",
        &[bars(
            "",
            "001, section 1: NAND for a byte of NVRAM, on parts that are 80 % full",
            "bytes of NAND a byte of NVRAM",
            &["{series}/{group}/ratio"],
        )],
    ),
    (
        "cmfs-fig9",
        &[curves(
            "",
            "001, figure 9: page tables of ten files, coded",
            "coded length (% of 2 bytes a page)",
            &["{}, {x} KB/{series}"],
            "file size (KB)",
            Scale::Log2,
        )],
    ),
    (
        "cmfs-fig10",
        &[curves(
            "",
            "001, figure 10: mounting 128 MB by what is in use",
            MS,
            &["{series}/mount@{x}"],
            "in use (%)",
            Scale::Linear,
        )],
    ),
    (
        "cmfs-fig11",
        &[
            curves(
                "",
                "001, figure 11: LZO of the device record by size of the part, on this machine",
                "time (µs)",
                &["coding@{x}", "decoding@{x}"],
                "part (MB)",
                Scale::Log2,
            ),
            curves(
                "bytes",
                "001, figure 11: the device record before and after LZO",
                "bytes",
                &["record@{x}", "coded@{x}"],
                "part (MB)",
                Scale::Log2,
            ),
        ],
    ),
    (
        "cmfs-fig12",
        &[curves(
            "",
            "001, figure 12: mounting 50 MB by number of files, media and processor",
            MS,
            &["{series}/mount@{x}"],
            "files",
            Scale::Linear,
        )],
    ),
    (
        "cmfs-fig13",
        &[
            curves(
                "",
                "001, figure 13: recovery by what was written since the last update",
                MS,
                &["{series}/recovery@{x}"],
                "written (MB)",
                Scale::Linear,
            ),
            bars(
                "parts",
                "001, figure 13: parts of a recovery, the paper's layout",
                "part of the time (%)",
                &["paper's layout, {group}/{series}"],
            ),
        ],
    ),
    (
        "cmfs-fig14",
        &[curves(
            "",
            "001, figure 14: an update of the NVRAM by what was modified",
            MS,
            &["{series}/update@{x}"],
            "modified (MB)",
            Scale::Linear,
        )],
    ),
    (
        "cmfs-fig15",
        &[
            bars("create", "001, figure 15: creating a file", "time (µs)", &["{series}/{group}/create"]),
            bars("delete", "001, figure 15: deleting a file", "time (µs)", &["{series}/{group}/delete"]),
        ],
    ),
    ("cmfs-fig16", &[bars("", "001, figure 16: writing 16 MiB by 4 KiB", MS, &["{series}/{group}"])]),
    (
        "cmfs-mount",
        &[
            bars(
                "clean",
                "Mounting after an unmount, beside YAFFS2 and littlefs",
                MS,
                &[
                    "{group}/mount, clean",
                    "{group}/YAFFS2 (measured peer): clean",
                    "{group}/littlefs (measured peer): mount",
                ],
            ),
            bars(
                "crashed",
                "Mounting after a crash, beside YAFFS2",
                MS,
                &["{group}/mount, crashed", "{group}/YAFFS2 (measured peer): crashed"],
            ),
            bars(
                "listing",
                "The first ls -lR, beside YAFFS2 and littlefs",
                MS,
                &[
                    "{group}/ls -lR",
                    "{group}/YAFFS2 (measured peer): ls -lR",
                    "{group}/littlefs (measured peer): ls -lR",
                ],
            ),
        ],
    ),
];
