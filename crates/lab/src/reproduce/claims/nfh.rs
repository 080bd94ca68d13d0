//! NF-hybrid: one file system over a small SSD and a large disk.
//!
//! The peers are ext2 and xfs of a Linux 6.1 kernel: the requests they made of a program, recorded, played on the same models
//! of the disk and the SSD. The paper's kernel, 2.6.18, sent no flushes for ext2: its disk ignored them, so to speak.

use super::tolerances::{LARGER, LITTLE, gain, times};
use super::{Check, Claim, Limits, Paper, Seeds, Way, alike, given, ratio, untestable};

const FIXED: Seeds = Seeds::Fixed("the program draws nothing, and the recorded peers are one draw");
const WAYS: &[Way] = &[given(
    "hdd-7200 and ssd-slc (eight K9KAG08U0M, the paper's part), flushes ignored as by the paper's kernel; no processor time",
)];

const fn claim(
    id: &'static str,
    figure: &'static str,
    says: &'static str,
    seeds: Seeds,
    checks: &'static [Check<'static>],
) -> Claim {
    Claim { id, paper: Paper::Nfh, figure, says, seeds, ways: WAYS, checks }
}

/// Not behind by what the paper would report.
const NO_LESS: Limits = Limits {
    least: 0.89,
    most: f64::INFINITY,
    reason: "11 % (figure 20) is the least difference that the paper reports as one",
};

/// Figure 7.
pub const FIG7: Claim = claim(
    "nfh-fig7",
    "figure 7",
    "IOzone write, 4 KiB records with an fsync each: at 256 MiB four times ext2 and xfs on the disk, about theirs on the SSD",
    FIXED,
    &[
        ratio(
            "over ext2 on the disk",
            "ignored/nfhybrid/write@256",
            "ignored/ext2 on the disk/write@64",
            times(4.0),
        ),
        ratio(
            "over xfs on the disk",
            "ignored/nfhybrid/write@256",
            "ignored/xfs on the disk/write@64",
            times(4.0),
        ),
        alike(
            "beside ext2 on the SSD",
            &["ignored/nfhybrid/write@256", "ignored/ext2 on the SSD/write@64"],
            LITTLE,
        ),
        alike(
            "beside xfs on the SSD",
            &["ignored/nfhybrid/write@256", "ignored/xfs on the SSD/write@64"],
            LITTLE,
        ),
    ],
);

/// Figure 8.
pub const FIG8: Claim = claim(
    "nfh-fig8",
    "figure 8",
    "IOzone rewrite: more than ext2 and xfs on the disk, about ext2's and a little more than xfs's on the SSD",
    FIXED,
    &[
        ratio(
            "16 KiB records, over ext2 on the disk",
            "ignored/nfhybrid/rewrite",
            "ignored/ext2 on the disk/rewrite",
            LARGER,
        ),
        ratio(
            "16 KiB records, over xfs on the disk",
            "ignored/nfhybrid/rewrite",
            "ignored/xfs on the disk/rewrite",
            LARGER,
        ),
        alike(
            "16 KiB records, beside ext2 on the SSD",
            &["ignored/nfhybrid/rewrite", "ignored/ext2 on the SSD/rewrite"],
            LITTLE,
        ),
        ratio(
            "16 KiB records, over xfs on the SSD",
            "ignored/nfhybrid/rewrite",
            "ignored/xfs on the SSD/rewrite",
            LARGER,
        ),
    ],
);

/// Figure 9.
pub const FIG9: Claim = claim(
    "nfh-fig9",
    "figure 9",
    "IOzone read: little difference to ext2 and xfs, memory and prefetching decide",
    FIXED,
    &[untestable(
        "read",
        "the paper measures the kernel's page cache and read-ahead, which a recording below them does not have",
    )],
);

/// Figure 10.
pub const FIG10: Claim = claim(
    "nfh-fig10",
    "figure 10",
    "random template, write: a larger advantage over the disk than in figure 7",
    super::FIVE,
    &[
        ratio(
            "advantage over ext2 on the disk, beside figure 7's",
            "ignored/advantage over ext2/random",
            "ignored/advantage over ext2/in order",
            LARGER,
        ),
        ratio(
            "advantage over xfs on the disk, beside figure 7's",
            "ignored/advantage over xfs/random",
            "ignored/advantage over xfs/in order",
            LARGER,
        ),
    ],
);

/// Figure 11.
pub const FIG11: Claim = claim(
    "nfh-fig11",
    "figure 11",
    "random template, rewrite: more than ext2 on the SSD from 1 MiB up",
    super::FIVE,
    &[ratio("over ext2 on the SSD", "ignored/nfhybrid/rewrite", "ignored/ext2 on the SSD/rewrite", LARGER)],
);

/// Figure 12.
pub const FIG12: Claim = claim(
    "nfh-fig12",
    "figure 12",
    "random template, read: more than ext2 and xfs on the disk",
    super::FIVE,
    &[
        ratio("over ext2 on the disk", "ignored/nfhybrid/read", "ignored/ext2 on the disk/read", LARGER),
        ratio("over xfs on the disk", "ignored/nfhybrid/read", "ignored/xfs on the disk/read", LARGER),
    ],
);

/// Figure 13.
pub const FIG13: Claim = claim(
    "nfh-fig13",
    "figure 13",
    "extents of 16 to 512 KiB, IOzone write: at 256 MiB 512 KiB is 23 % above 16 KiB, 256 about 512; at 64 KiB 512 KiB is a little slower",
    FIXED,
    &[
        ratio("512 over 16 KiB, large file", "512 KiB/write, large", "16 KiB/write, large", gain(0.23)),
        alike("256 beside 512 KiB", &["256 KiB/write, large", "512 KiB/write, large"], LITTLE),
        ratio("16 over 512 KiB, file of 64 KiB", "16 KiB/write, small", "512 KiB/write, small", LARGER),
    ],
);

/// Figure 14.
pub const FIG14: Claim = claim(
    "nfh-fig14",
    "figure 14",
    "extents, IOzone rewrite: more with larger extents from 1 MiB up",
    FIXED,
    &[ratio("512 over 16 KiB", "512 KiB/rewrite, large", "16 KiB/rewrite, large", LARGER)],
);

/// Figure 15.
pub const FIG15: Claim = claim(
    "nfh-fig15",
    "figure 15",
    "extents, IOzone read: no difference",
    FIXED,
    &[alike(
        "16 to 512 KiB",
        &["16 KiB/read, large", "64 KiB/read, large", "256 KiB/read, large", "512 KiB/read, large"],
        LITTLE,
    )],
);

/// Figure 16.
pub const FIG16: Claim = claim(
    "nfh-fig16",
    "figure 16",
    "extents, random template, write: 512 KiB is 28 % above 16 KiB",
    super::FIVE,
    &[ratio("512 over 16 KiB", "512 KiB/write", "16 KiB/write", gain(0.28))],
);

/// Figure 17.
pub const FIG17: Claim = claim(
    "nfh-fig17",
    "figure 17",
    "extents, random template, rewrite: more with large extents",
    super::FIVE,
    &[ratio("512 over 16 KiB", "512 KiB/rewrite", "16 KiB/rewrite", LARGER)],
);

/// Figure 18.
pub const FIG18: Claim = claim(
    "nfh-fig18",
    "figure 18",
    "extents, random template, read: a little more with large extents",
    super::FIVE,
    &[ratio("512 over 16 KiB", "512 KiB/read", "16 KiB/read", NO_LESS)],
);

/// Figure 19.
pub const FIG19: Claim = claim(
    "nfh-fig19",
    "figure 19",
    "PostMark, 100 000 transactions: 512 KiB is 18 % (1 000 files) and 28 % (20 000) over ext2 on the SSD, 20 % over 16 KiB at \
     20 000; ext2 on the disk about as on the SSD",
    super::FIVE,
    &[
        ratio(
            "1 000 files, over ext2 on the SSD",
            "1000 files/512 KiB",
            "1000 files/ext2 on the SSD",
            gain(0.18),
        ),
        ratio(
            "20 000 files, over ext2 on the SSD",
            "20000 files/512 KiB",
            "20000 files/ext2 on the SSD",
            gain(0.28),
        ),
        ratio("20 000 files, over 16 KiB", "20000 files/512 KiB", "20000 files/16 KiB", gain(0.20)),
        alike(
            "ext2 on disk and SSD, 20 000 files",
            &["20000 files/ext2 on the disk", "20000 files/ext2 on the SSD"],
            LITTLE,
        ),
    ],
);

/// Figure 20.
pub const FIG20: Claim = claim(
    "nfh-fig20",
    "figure 20",
    "Bonnie++, 16 KiB chunks with an fsync each: 512 KiB writes 11 % more than ext2 on the SSD, ext2 on the disk is 76 % behind; \
     reads a little better",
    FIXED,
    &[
        ratio("write, over ext2 on the SSD", "512 KiB/write", "ext2 on the SSD/write", gain(0.11)),
        ratio(
            "write, ext2 on the SSD over the disk",
            "ext2 on the SSD/write",
            "ext2 on the disk/write",
            gain(0.76),
        ),
    ],
);

const FEWER: Limits = Limits {
    least: f64::NEG_INFINITY,
    most: 1.0,
    reason: "the paper aligns extents so that whole blocks are replaced: that is to cost less, not as much",
};

/// What the authors could not see.
pub const ALIGN: Claim = claim(
    "nfh-align",
    "section 3",
    "extents along the flash's erase blocks cost fewer copies, erases and full merges where blocks are mapped, and make no difference \
     where pages are (the paper could not measure it)",
    super::FIVE,
    &[
        ratio(
            "copies, aligned over not",
            "block-mapped, */aligned/copies",
            "block-mapped, */unaligned/copies",
            FEWER,
        ),
        ratio(
            "erases, aligned over not",
            "block-mapped, */aligned/erases",
            "block-mapped, */unaligned/erases",
            FEWER,
        ),
        ratio(
            "full merges, aligned over not",
            "block-mapped, */aligned/full merges",
            "block-mapped, */unaligned/full merges",
            FEWER,
        ),
        alike(
            "copies of a page map",
            &["page-mapped, */aligned/copies", "page-mapped, */unaligned/copies"],
            LITTLE,
        ),
        alike(
            "erases of a page map",
            &["page-mapped, */aligned/erases", "page-mapped, */unaligned/erases"],
            LITTLE,
        ),
    ],
);
