//! Copies, erases and merges of the known streams, against the counts of other programs.
//!
//! The streams are those of [`streams`], on one die of 512 blocks of 64 pages of which the host sees 400.
//! The columns and their sources: an independent BAST (ftlsim: first in, first out, merged as soon as full);
//! FlashSim's BAST with its random victim made LRU; and a counter written from the papers alone, which agrees
//! with these programs where they are right.

use super::*;
use streams::Stream;

/// Copies, erases, and switch, partial and full merges.
type Counts = (u64, u64, [u64; 3]);

/// One die of 512 blocks of 64 pages; in any order, where the reference does not know of an order.
fn reference_nand(order: PageOrder) -> Nand {
    new_nand(&small(|profile| (profile.blocks, profile.pages, profile.page_order) = (512, 64, order)))
}

/// Runs a stream, checks every page, and counts.
pub(super) fn run(scheme: &'static str, settings: &str, stream: Stream, order: PageOrder) -> Counts {
    let settings = both("logical=50MiB", settings);
    let mut checked = Checked::new(scheme, &settings, reference_nand(order));
    for page in stream.pages(400, 64) {
        checked.write(page).unwrap();
    }
    checked.check();
    let Report { nand, ftl, .. } = report(&*checked.ftl, HostBytes::default());
    assert_eq!(nand.programs, checked.writes + nand.copies + ftl.map_writes);
    (nand.copies, nand.erases, [ftl.switch_merges, ftl.partial_merges, ftl.full_merges])
}

/// The streams the published counts are of.
const PUBLISHED: [Stream; 4] =
    [Stream::Sequential, Stream::Uniform, Stream::HotSequential, Stream::WholeBlocks];

fn check_published(scheme: &'static str, settings: &str, published: &[(u64, [Counts; 4])]) {
    for (logs, expected) in published {
        let settings = both(settings, &format!("logs={logs}"));
        let found = PUBLISHED.map(|stream| run(scheme, &settings, stream, PageOrder::Any));
        assert_eq!(found, *expected, "{scheme} {settings}");
    }
}

#[test]
fn bast_has_the_counts_of_ftlsim() {
    let published = [
        (
            8,
            [
                (0, 1600, [1600, 0, 0]),
                (6_272_313, 194_515, [0, 1543, 96_486]),
                (49_920, 2341, [781, 0, 780]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
        (
            32,
            [
                (0, 1600, [1600, 0, 0]),
                (5_883_974, 182_578, [0, 1338, 90_620]),
                (49_920, 2341, [781, 0, 780]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1600, [1600, 0, 0]),
                (5_371_101, 166_761, [0, 1121, 82_820]),
                (49_920, 2341, [781, 0, 780]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
    ];
    check_published("bast", "", &published);
}

#[test]
fn bast_has_the_counts_of_the_reference_with_lazy_merges_and_lru() {
    let published = [
        (
            8,
            [
                (0, 1592, [1592, 0, 0]),
                (6_272_249, 194_513, [0, 1543, 96_485]),
                (49_920, 2337, [777, 0, 780]),
                (0, 1992, [1992, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1536, [1536, 0, 0]),
                (5_373_194, 166_807, [0, 1141, 82_833]),
                (49_920, 2281, [721, 0, 780]),
                (0, 1936, [1936, 0, 0]),
            ],
        ),
    ];
    check_published("bast", "victim=lru:merge=lazy", &published);
}

#[test]
fn bast_has_the_counts_of_flashsim_without_partial_merges() {
    let published = [
        (
            8,
            [
                (0, 1592, [1992, 0, 0]),
                (6_273_792, 196_056, [400, 0, 98_028]),
                (49_920, 2337, [1177, 0, 780]),
                (0, 1992, [2392, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1536, [1936, 0, 0]),
                (5_374_336, 167_948, [400, 0, 83_974]),
                (49_920, 2281, [1121, 0, 780]),
                (0, 1936, [2336, 0, 0]),
            ],
        ),
    ];
    check_published("bast", "victim=lru:merge=lazy:partial=no:first=log", &published);
}

#[test]
fn fast_has_the_counts_of_the_reference() {
    let published = [
        (
            8,
            [
                (0, 1600, [1600, 0, 0]),
                (3_123_126, 50_485, [0, 1479, 47_343]),
                (0, 1556, [781, 0, 0]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
        (
            32,
            [
                (0, 1600, [1600, 0, 0]),
                (1_099_420, 18_753, [0, 1569, 15_634]),
                (0, 1532, [781, 0, 0]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1600, [1600, 0, 0]),
                (604_546, 10_963, [0, 1595, 7876]),
                (0, 1500, [781, 0, 0]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
    ];
    check_published("fast", "", &published);
}

#[test]
fn fast_that_merges_stale_blocks_has_the_counts_of_the_reference() {
    let published = [
        (
            8,
            [
                (0, 1600, [1600, 0, 0]),
                (5_887_511, 93_774, [0, 1382, 90_632]),
                (148_800, 3881, [781, 0, 2325]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1600, [1600, 0, 0]),
                (5_678_629, 90_406, [0, 1432, 87_319]),
                (138_048, 3657, [781, 0, 2157]),
                (0, 2000, [2000, 0, 0]),
            ],
        ),
    ];
    check_published("fast", "merge=stale", &published);
}

#[test]
fn nftl_has_the_counts_of_the_reference() {
    let published = [
        (
            8,
            [
                (0, 1592, [1582, 0, 0]),
                (6_180_375, 98_271, [0, 98_107, 0]),
                (4_686_885, 74_988, [383, 74_395, 0]),
                (0, 1992, [1952, 0, 0]),
            ],
        ),
        (
            64,
            [
                (0, 1536, [1442, 0, 0]),
                (5_305_984, 85_739, [0, 84_240, 0]),
                (4_256_280, 71_460, [327, 67_560, 0]),
                (0, 1936, [1615, 0, 0]),
            ],
        ),
    ];
    check_published("nftl", "", &published);
}

#[test]
fn half_a_block_in_order_is_completed_or_copied() {
    let half = |settings| run("bast", settings, Stream::HalfBlocks, PageOrder::Any);
    assert_eq!(half("logs=8"), (50_944, 1592, [0, 1592, 0]));
    assert_eq!(half("logs=8:partial=no"), (101_888, 3184, [0, 0, 1592]));
}

/// The counts of each stream (in the order of [`Stream::ALL`]) with a scheme's defaults, on NAND whose pages
/// are programmed in order.
fn goldens(scheme: &str) -> [Counts; 7] {
    let none = [0; 3];
    match scheme {
        // A reference counter with one stream and the lowest of equals has 134,416 copies and 3,553 erases for
        // `Uniform`, and as many as here for `Sequential` and `WholeBlocks`.
        "page" => [
            (0, 1490, none),
            (135_931, 3577, none),
            (83_712, 2761, none),
            (140_156, 3643, none),
            (5824, 781, none),
            (0, 1890, none),
            (84_274, 2758, none),
        ],
        "bast" => [
            (0, 1600, [1600, 0, 0]),
            (5_371_101, 166_761, [0, 1121, 82_820]),
            (49_920, 2341, [781, 0, 780]),
            (3_555_349, 110_633, [0, 487, 55_073]),
            (49_152, 1536, [0, 1536, 0]),
            (0, 2000, [2000, 0, 0]),
            (379_949, 11_229, [0, 999, 5115]),
        ],
        "fast" => [
            (0, 1600, [1600, 0, 0]),
            (604_546, 10_963, [0, 1595, 7876]),
            (0, 1500, [781, 0, 0]),
            (518_178, 9609, [0, 1550, 6571]),
            (51_168, 1599, [0, 1599, 0]),
            (0, 2000, [2000, 0, 0]),
            (259_614, 5551, [0, 1496, 2827]),
        ],
        // Where pages are programmed in order, a chain cannot be folded into a block that was begun high.
        "nftl" => [
            (0, 1536, [1442, 0, 0]),
            (5_391_380, 176_049, [0, 1452, 82_811]),
            (4_323_448, 138_628, [327, 392, 67_168]),
            (6_100_257, 191_614, [0, 1501, 93_839]),
            (46_144, 1536, [0, 1442, 0]),
            (0, 1936, [1615, 0, 0]),
            (382_949, 11_946, [0, 1327, 4890]),
        ],
        // Beside the page map's copies there are writes of 50 translation pages: 4096 of 25,600 entries are
        // cached.
        "dftl" => [
            (0, 1494, none),
            (158_121, 4654, none),
            (77_862, 2690, none),
            (173_684, 4750, none),
            (6071, 791, none),
            (0, 1904, none),
            (97_833, 3146, none),
        ],
        other => panic!("{other} has no golden counts"),
    }
}

#[test]
fn counts_of_the_known_streams_do_not_change() {
    let mut changed = Vec::new();
    for scheme in SCHEMES {
        let counts = Stream::ALL.map(|stream| run(scheme.name, "", stream, PageOrder::Ascending));
        if counts != goldens(scheme.name) {
            changed.push(format!("{}: {counts:?}", scheme.name));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}
