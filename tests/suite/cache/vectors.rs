//! Exact counts of every policy with a published or derived vector, from an independent executable model:
//! 5000 accesses, a cache of 64 pages, erase blocks of 16.

use super::traces::{counts, skewed};
use bimetal::cache::{Access, Config};

/// Policy, then: read hits, write hits, read misses, write misses, pages read, pages written, write
/// commands, pages padded.
const VECTORS: &[(&str, [u64; 8])] = &[
    ("lru", [1199, 1815, 778, 1208, 778, 1432, 1432, 0]),
    ("cflru:window=21p", [1224, 1837, 753, 1186, 753, 1286, 1286, 0]),
    ("cflru:window=64p", [1257, 1890, 720, 1133, 720, 1087, 1087, 0]),
    ("lru-wsr", [1235, 1843, 742, 1180, 742, 1272, 1272, 0]),
    ("casa:ratio=1", [1202, 1831, 775, 1192, 775, 1340, 1340, 0]),
    ("casa:ratio=10", [1255, 1884, 722, 1139, 722, 1105, 1105, 0]),
    ("cfdc:window=32p:cluster=16", [1225, 1816, 752, 1207, 752, 1268, 1268, 0]),
    ("fab", [1239, 1849, 738, 1174, 738, 1397, 1284, 0]),
    ("bplru", [1066, 1624, 911, 1399, 8343, 8768, 548, 7432]),
    ("wow", [1019, 1566, 958, 1457, 958, 1393, 1275, 0]),
    ("arc", [1452, 2194, 525, 829, 525, 890, 890, 0]),
    ("cswlru", [1168, 1735, 809, 1288, 809, 1974, 1875, 0]),
    ("cswlru:dense=1/8", [1157, 1727, 820, 1296, 9088, 10731, 1136, 8268]),
    ("cswlru:trigger=clean", [1159, 1757, 818, 1266, 818, 1857, 1734, 0]),
    ("cswlru:near=aligned", [1137, 1710, 840, 1313, 840, 1917, 1814, 0]),
    ("cswlru:evict=frequency", [1199, 1815, 778, 1208, 778, 1744, 1626, 0]),
];

#[test]
fn the_trace_of_the_vectors_is_the_published_one() {
    let trace = skewed(42, 5000, 512, 800, 60);
    let head: Vec<String> = trace[..6]
        .iter()
        .map(|(access, page)| format!("{}{page}", if *access == Access::Write { "W" } else { "R" }))
        .collect();
    assert_eq!(head, ["W144", "W176", "R406", "R64", "R370", "R16"]);
}

#[test]
fn every_vector_is_met_exactly() {
    let trace = skewed(42, 5000, 512, 800, 60);
    let config = Config::new(64).block_pages(16);
    let mut wrong = Vec::new();
    for (policy, expected) in VECTORS {
        let s = counts(policy, &config, &trace);
        let got = [
            s.read_hits,
            s.write_hits,
            s.read_misses,
            s.write_misses,
            s.pages_read,
            s.pages_written,
            s.write_commands,
            s.pages_padded,
        ];
        if got != *expected {
            wrong.push(format!("{policy}\n  expected {expected:?}\n  got      {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
