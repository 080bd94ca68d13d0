//! CMFS: metadata in a small non-volatile memory beside NAND.

use super::tolerances::{LINEAR, times};
use super::{Check, Claim, Limits, Paper, Seeds, Way, given, least, ratio, straight, untestable, within};

const NOTHING_DRAWN: Seeds = Seeds::Fixed("nothing is drawn: the same files in the same order");
const WAYS: &[Way] =
    &[given("slc-2k: read 15 us, program 200 us, erase 2 ms, 25 ns a byte; FeRAM 70 ns a byte")];
const MODELLED: &[Way] = &[given(
    "slc-2k and FeRAM 70 ns a byte; a processor of 806 MHz that codes Huffman at 100 cycles a byte, LZO at 30, decodes at 60 and 8",
)];

/// 1 : 1000.
const THOUSAND: Limits = Limits { least: 1000.0, most: f64::INFINITY, reason: "the paper's own 1 : 1000" };
/// An order of magnitude.
const ORDER: Limits = Limits { least: 10.0, most: f64::INFINITY, reason: "an order of magnitude" };
/// What the paper calls insignificant.
const SLIGHT: Limits = Limits {
    least: f64::NEG_INFINITY,
    most: 1.026,
    reason: "the paper calls its 2.6 % (13 ms in 5 s) a slight loss",
};

/// Section 1.
pub const RATIO: Claim = Claim {
    id: "cmfs-ratio",
    paper: Paper::Cmfs,
    figure: "section 1",
    says: "a byte of NVRAM is enough for 1000 of NAND",
    seeds: super::FIVE,
    ways: WAYS,
    checks: &[
        within("the paper's layout: bytes of NAND a byte of NVRAM", "paper's layout/*/ratio", THOUSAND),
        within("the compact layout", "compact/*/ratio", THOUSAND),
    ],
};

/// Figure 9.
pub const FIG9: Claim = Claim {
    id: "cmfs-fig9",
    paper: Paper::Cmfs,
    figure: "figure 9",
    says: "above 16 KB the hybrid coding is the shortest of six",
    seeds: NOTHING_DRAWN,
    ways: WAYS,
    checks: &[least(
        "coded bytes, of 2 a page",
        "above 16 KB, */hybrid",
        &[
            "above 16 KB, */huffman",
            "above 16 KB, */rice",
            "above 16 KB, */shannon-fano",
            "above 16 KB, */rle",
            "above 16 KB, */lzo",
        ],
    )],
};

/// Figure 10.
pub const FIG10: Claim = Claim {
    id: "cmfs-fig10",
    paper: Paper::Cmfs,
    figure: "figure 10",
    says: "mounting YAFFS takes time in proportion to utilisation, CMFS nearly none: an order of magnitude",
    seeds: NOTHING_DRAWN,
    ways: WAYS,
    checks: &[
        straight("YAFFS2 without summaries, measured", "YAFFS2 (measured peer)/mount", LINEAR),
        ratio(
            "growth from empty to 90 %, YAFFS2's over CMFS's",
            "YAFFS2 (measured peer)/growth",
            "paper's layout/growth",
            ORDER,
        ),
        ratio(
            "at 90 %, YAFFS2 over CMFS",
            "YAFFS2 (measured peer)/mount@90",
            "paper's layout/mount@90",
            ORDER,
        ),
    ],
};

/// Figure 11.
pub const FIG11: Claim = Claim {
    id: "cmfs-fig11",
    paper: Paper::Cmfs,
    figure: "figure 11",
    says: "LZO of the device record takes time in proportion to the part",
    seeds: Seeds::Fixed("nothing is drawn; times are this machine's, the fastest of 200"),
    ways: WAYS,
    checks: &[straight("time to code", "coding", LINEAR), straight("bytes coded", "coded", LINEAR)],
};

/// Figure 12.
pub const FIG12: Claim = Claim {
    id: "cmfs-fig12",
    paper: Paper::Cmfs,
    figure: "figure 12",
    says: "mounting takes time in proportion to the objects; 500 of 1 KB: 126 ms at 806 MHz",
    seeds: NOTHING_DRAWN,
    ways: MODELLED,
    checks: &[
        straight("files of 1 KB", "paper's layout, 1 KB/mount", LINEAR),
        straight("files of 100 KB", "paper's layout, 100 KB/mount", LINEAR),
        within("500 files of 1 KB, media and processor", "paper's layout, 1 KB/mount@500", times(126.0)),
    ],
};

/// Figure 13.
pub const FIG13: Claim = Claim {
    id: "cmfs-fig13",
    paper: Paper::Cmfs,
    figure: "figure 13",
    says: "recovery: 83 to 89 % NAND reads and changes, 10 to 15 % coding and comparing, below 1 % NVRAM; 10 MB: 131 ms",
    seeds: NOTHING_DRAWN,
    ways: MODELLED,
    checks: &[
        within(
            "NAND's part",
            "paper's layout, * MB/NAND",
            Limits { least: 83.0, most: 89.0, reason: "the paper's own range" },
        ),
        within(
            "coding's and comparing's part",
            "paper's layout, * MB/coding and comparing",
            Limits { least: 10.0, most: 15.0, reason: "the paper's own range" },
        ),
        within(
            "NVRAM's part",
            "paper's layout, * MB/NVRAM",
            Limits { least: f64::NEG_INFINITY, most: 1.0, reason: "the paper's own limit" },
        ),
        within("10 MB", "paper's layout/recovery@10", times(131.0)),
        straight("time against what is to be recovered", "paper's layout/recovery", LINEAR),
    ],
};

/// Figure 14.
pub const FIG14: Claim = Claim {
    id: "cmfs-fig14",
    paper: Paper::Cmfs,
    figure: "figure 14",
    says: "an update takes 13 ms at most, after 12 MB in 5 s",
    seeds: NOTHING_DRAWN,
    ways: MODELLED,
    checks: &[
        within(
            "12 MB, media and processor",
            "paper's layout/update@12",
            Limits { least: f64::NEG_INFINITY, most: 13.0, reason: "the paper's own worst case" },
        ),
        straight("time against what was changed", "paper's layout/update", LINEAR),
    ],
};

const AGAINST_YAFFS2: &str =
    "YAFFS2 was counted with the same calls on the same latencies, without its caches' processor time";

/// Figure 15.
pub const FIG15: Claim = Claim {
    id: "cmfs-fig15",
    paper: Paper::Cmfs,
    figure: "figure 15",
    says: "lmbench: creating and deleting files of 0, 1, 4, 10 KB costs no more than with YAFFS",
    seeds: NOTHING_DRAWN,
    ways: WAYS,
    checks: &[
        ratio("create", "paper's layout/*/create", "YAFFS2 (measured peer)/*/create", SLIGHT),
        ratio("delete", "paper's layout/*/delete", "YAFFS2 (measured peer)/*/delete", SLIGHT),
        untestable("the processor's part", AGAINST_YAFFS2),
    ],
};

/// Figure 16.
pub const FIG16: Claim = Claim {
    id: "cmfs-fig16",
    paper: Paper::Cmfs,
    figure: "figure 16",
    says: "IOzone: writing in order and at random costs no more than with YAFFS",
    seeds: super::FIVE,
    ways: WAYS,
    checks: &[
        ratio("in order", "paper's layout/in order", "YAFFS2 (measured peer)/in order", SLIGHT),
        ratio("at random", "paper's layout/at random", "YAFFS2 (measured peer)/at random", SLIGHT),
        untestable("the processor's part", AGAINST_YAFFS2),
    ],
};

const EXACTLY: Limits = Limits { least: 0.0, most: 0.0, reason: "the feature is there or it is not" };
const SOME: Limits = Limits { least: 1.0, most: f64::INFINITY, reason: "the feature is there or it is not" };

const FEATURES: &[Check<'static>] = &[
    within(
        "metadata in memory: NAND pages read to find every page of every file",
        "in memory/NAND pages read",
        EXACTLY,
    ),
    ratio(
        "metadata compressed: bytes before over bytes after",
        "compressed/before",
        "compressed/after",
        SOME,
    ),
    within(
        "synchronised by itself: records behind the flash after 5 s",
        "synchronised/NAND pages read by the next mount",
        EXACTLY,
    ),
    within("crash recovery: files lost", "recovered/files lost", EXACTLY),
    within("crash recovery: whole scans", "recovered/scans", EXACTLY),
];

/// Table 2.
pub const TABLE2: Claim = Claim {
    id: "cmfs-table2",
    paper: Paper::Cmfs,
    figure: "table 2",
    says: "of MiNVFS, FRASH, MRAMFS and CMFS only CMFS has all: metadata in memory, compressed, synchronised, recovered",
    seeds: NOTHING_DRAWN,
    ways: WAYS,
    checks: FEATURES,
};
