//! Claims of this project, and the papers' on further beds.

use super::tolerances::{LARGER, times};
use super::{Claim, FIVE, Limits, Paper, Parameters, Seeds, Tolerance, Way, given, part, ratio, within};

/// Figure 2 of the FTL paper, on the whole stack.
pub const FTL_FIG2_STACK: Claim = Claim {
    id: "ftl-fig2-stack",
    paper: Paper::Own,
    figure: "003, figure 2",
    says: "ftl-fig2 of our own VFAT",
    ..super::ftl::FIG2
};

/// Table 1 of the FTL paper, on the whole stack.
pub const FTL_TABLE1_STACK: Claim = Claim {
    id: "ftl-table1-stack",
    paper: Paper::Own,
    figure: "003, table 1",
    says: "ftl-table1 on VFAT, non-volatile cache, FTL and NAND in simulated time",
    seeds: FIVE,
    ways: &[
        Way {
            prefix: "camera-data-sheet/",
            parameters: Parameters::Given(
                "devices/camera-data-sheet.toml: K9F1208 data sheet, 250 us of software a sector",
            ),
        },
        Way {
            prefix: "camera-paper/",
            parameters: Parameters::Searched(
                "devices/camera-paper.toml: costs of a write, a copy and the mapping, the volume's first sector, FAST's closing",
            ),
        },
    ],
    ..super::ftl::TABLE1
};

const NONE: Limits = Limits { least: 0.0, most: 0.0, reason: "none at all" };
const QUICKER: Limits = Limits { least: f64::NEG_INFINITY, most: 1.0, reason: "no slower than the peer" };

/// Mounting beside peers.
pub const CMFS_MOUNT: Claim = Claim {
    id: "cmfs-mount",
    paper: Paper::Own,
    figure: "beside YAFFS2 and littlefs",
    says: "mounting, clean and after a crash, the first write and a listing are quicker than with YAFFS2 and littlefs, and the \
           first write erases nothing",
    seeds: Seeds::Fixed("nothing is drawn"),
    ways: &[given(
        "slc-2k: read 15 us, program 200 us, erase 2 ms, 25 ns a byte; FeRAM 70 ns a byte, a thousandth of the NAND",
    )],
    checks: &[
        ratio("clean, over YAFFS2", "*/mount, clean", "*/YAFFS2 (measured peer): clean", QUICKER),
        ratio("after a crash, over YAFFS2", "*/mount, crashed", "*/YAFFS2 (measured peer): crashed", QUICKER),
        ratio("ls -lR, over YAFFS2", "*/ls -lR", "*/YAFFS2 (measured peer): ls -lR", QUICKER),
        ratio("clean, over littlefs", "*/mount, clean", "*/littlefs (measured peer): mount", QUICKER),
        ratio(
            "first write, over littlefs",
            "*/first write",
            "*/littlefs (measured peer): first write",
            QUICKER,
        ),
        ratio("ls -lR, over littlefs", "*/ls -lR", "*/littlefs (measured peer): ls -lR", QUICKER),
        within("erases of the first write", "*/first write: erases", NONE),
        within(
            "NAND read after a crash, pages and spare areas",
            "*/mount, crashed: NAND reads",
            Limits {
                least: f64::NEG_INFINITY,
                most: 69.0,
                reason: "a block of 64 spare areas, two for the volume, three pages",
            },
        ),
    ],
};

const NO_WORSE: Limits = Limits { least: f64::NEG_INFINITY, most: 1.0, reason: "no worse" };

/// Placement handles.
pub const OSD_BLOCK: Claim = Claim {
    id: "osd-block",
    paper: Paper::Own,
    figure: "002, figure 2, by placement handles",
    says: "a second placement handle copies no more pages, on any file system's trace",
    seeds: Seeds::Fixed("recorded traces; nothing is drawn"),
    ways: &[given("page map, 10 % over-provision, flash filled first")],
    checks: &[
        ratio(
            "copies, metadata apart over one handle",
            "*/metadata apart/copied",
            "*/one handle/copied",
            NO_WORSE,
        ),
        ratio(
            "copies, hot pages apart over one handle",
            "*/hot pages apart/copied",
            "*/one handle/copied",
            NO_WORSE,
        ),
    ],
};

/// A flash cache on placement handles, as others measured it.
pub const FDP_CACHELIB: Claim = Claim {
    id: "fdp-cachelib",
    paper: Paper::Own,
    figure: "EuroSys 2025, CacheLib on FDP",
    says: "with the whole device used, a handle each for small and large objects brings write amplification from 3.22 to 1.03",
    seeds: FIVE,
    ways: &[given(
        "page map, 7 % over-provision, filled first; small objects have 4 % of the cache, and a quarter, half and three quarters of \
         the bytes written, which the paper does not say",
    )],
    checks: &[
        within("in one stream", "100 % used, */one stream", times(3.22)),
        within(
            "with a handle each",
            "100 % used, */a handle each",
            Limits {
                least: 1.0,
                most: 1.06,
                reason: "another device than the paper's: what is above 1 is at most twice its 0.03",
            },
        ),
        ratio(
            "one stream over a handle each, half used",
            "50 % used, */one stream",
            "50 % used, */a handle each",
            LARGER,
        ),
    ],
};

/// Our own policy, on traces that it was not tuned on.
pub const TIDE: Claim = Claim {
    id: "cache-tide",
    paper: Paper::Own,
    figure: "beyond 004",
    says: "Tide has no more misses, page writes and erases and takes no longer than CSWLRU on traces it was not tuned on",
    seeds: Seeds::Fixed("recorded traces; nothing is drawn"),
    ways: &[given("both policies' defaults; BAST, FAST and page map under caches of 4, 16 and 64 MiB")],
    checks: &[
        ratio("misses", "held out/*/tide/misses", "held out/*/cswlru/misses", NO_WORSE),
        ratio("page writes", "held out/*/tide/page writes", "held out/*/cswlru/page writes", NO_WORSE),
        ratio("erases", "held out/*/tide/erases", "held out/*/cswlru/erases", NO_WORSE),
        ratio("time", "held out/*/tide/time", "held out/*/cswlru/time", NO_WORSE),
    ],
};

/// The kernel's file systems on the same devices.
pub const KERNEL_FSYNC: Claim = Claim {
    id: "kernel-fsync",
    paper: Paper::Own,
    figure: "beside the kernel",
    says: "an append with its fsync is ten times as fast through nfhybrid as through ext2, ext4 and xfs on the disk, and no slower \
           than through these on the SSD",
    seeds: Seeds::Fixed("the program draws nothing, and the recorded peers are one draw"),
    ways: &[given("hdd-7200 and ssd-slc, flushes honoured, no processor time")],
    checks: &[
        ratio(
            "on the disk, over nfhybrid's",
            "*/on the disk",
            "*/nfhybrid",
            Limits { least: 10.0, most: f64::INFINITY, reason: "ten times is the claim" },
        ),
        ratio("nfhybrid's, over theirs on the SSD", "*/nfhybrid", "*/on the SSD", NO_WORSE),
    ],
};

/// What the counts of a trace may be off.
const SAME: Tolerance<'static> =
    part(0.05, "the generator's parameters are whole numbers of peers and blocks, a twentieth apart");

/// The recorded traces.
pub const INVENTORY: Claim = Claim {
    id: "trace-inventory",
    paper: Paper::Own,
    figure: "the recorded traces' README",
    says: "the recorded traces are those that were written down",
    seeds: Seeds::Fixed("recorded traces; nothing is drawn"),
    ways: &[given("the folder's table of counts")],
    checks: &[within("figures that differ", "figures that differ", NONE)],
};

/// The generator of downloads.
pub const P2P: Claim = Claim {
    id: "trace-p2p",
    paper: Paper::Own,
    figure: "004, figure 13 (workload)",
    says: "the generated download writes as much, in as many pieces at once and as far from sequential as the recorded one",
    seeds: FIVE,
    ways: &[Way {
        prefix: "",
        parameters: Parameters::Searched("peers and burst of gen:p2p, fitted to the recorded download"),
    }],
    checks: &[
        super::alike("written", &["generated/written", "recorded/written"], SAME),
        super::alike("writes not sequential", &["generated/not sequential", "recorded/not sequential"], SAME),
        super::alike("distinct pieces in 100 writes", &["generated/pieces", "recorded/pieces"], SAME),
    ],
};
