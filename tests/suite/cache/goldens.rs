//! What every policy of the registry counts on the trace in the repository. A policy without a line here fails; the
//! failure prints the line to add.

use bimetal::cache::registry::POLICIES;
use bimetal::cache::{Config, Nothing, PageRequest, Stats, build};
use bimetal::time::Time;
use bimetal::units::Lpn;

const TRACE: &str = include_str!("../../data/cache.trace");

/// Policy, then: read hits, write hits, read misses, write misses, pages read, pages padded, pages written, write
/// commands, pages synced, clean evictions, dirty evictions.
const GOLDENS: &[(&str, [u64; 11])] = &[
    ("lru", [556, 7575, 9451, 6879, 9451, 0, 14286, 9282, 8359, 9891, 5927]),
    ("clock", [544, 7561, 9463, 6893, 9463, 0, 14285, 9358, 8227, 9786, 6058]),
    ("sieve", [236, 539, 9771, 13915, 9771, 0, 14318, 12627, 3987, 12843, 10331]),
    ("s3fifo", [110, 4470, 9897, 9984, 9897, 0, 14370, 12007, 3769, 8768, 10601]),
    ("arc", [392, 7614, 9615, 6840, 9615, 0, 14312, 11424, 5461, 7092, 8851]),
    ("lirs", [0, 595, 10007, 13859, 10007, 0, 14368, 11983, 3394, 12380, 10974]),
    ("2q", [452, 7504, 9555, 6950, 9555, 0, 14308, 11151, 6048, 7733, 8260]),
    ("lecar", [537, 7520, 9470, 6934, 9470, 0, 14285, 9373, 8257, 9864, 6028]),
    ("tinylfu", [37, 728, 9970, 13726, 9970, 0, 14356, 13587, 2233, 11061, 12123]),
    ("cflru", [564, 7574, 9443, 6880, 9443, 0, 14286, 9078, 8597, 10122, 5689]),
    ("lru-wsr", [592, 7174, 9415, 7280, 9415, 0, 14286, 9024, 8657, 10554, 5629]),
    ("casa", [616, 2320, 9391, 12134, 9391, 0, 14286, 8857, 8827, 15554, 5459]),
    ("fab", [0, 117, 10007, 14337, 10007, 0, 14422, 7005, 2072, 11483, 12350]),
    ("bplru", [912, 254, 9095, 14200, 25993, 16898, 31880, 3437, 6792, 6126, 7578]),
    ("cfdc", [580, 7547, 9427, 6907, 9427, 0, 14285, 9109, 8640, 10177, 5645]),
    ("wow", [1000, 433, 9007, 14021, 9007, 0, 14372, 3789, 7158, 6300, 7214]),
    ("cswlru", [643, 7377, 9364, 7077, 9484, 120, 14547, 3824, 7154, 15475, 454]),
    ("tide", [612, 7426, 9395, 7028, 9447, 52, 14361, 3645, 8409, 15911, 0]),
];

fn run(policy: &str, config: &Config) -> Stats {
    let mut cache = build(policy, config).unwrap();
    let mut at = Time::ZERO;
    for line in TRACE.lines().filter(|line| !line.starts_with('#')) {
        at.0 += 1;
        let mut words = line.split(' ');
        let op = words.next().unwrap();
        let first = Lpn(words.next().map_or(0, |word| word.parse().unwrap()));
        let count = words.next().map_or(1, |word| word.parse().unwrap());
        match op {
            "R" => cache.serve(at, PageRequest::Read(first, count), &mut Nothing),
            "W" => cache.serve(at, PageRequest::Write(first, count), &mut Nothing),
            "F" => cache.serve(at, PageRequest::Flush, &mut Nothing),
            _ => panic!("{line}"),
        }
        .unwrap();
    }
    *cache.view().stats
}

fn columns(s: &Stats) -> [u64; 11] {
    [
        s.read_hits,
        s.write_hits,
        s.read_misses,
        s.write_misses,
        s.pages_read,
        s.pages_padded,
        s.pages_written,
        s.write_commands,
        s.pages_synced,
        s.clean_evictions,
        s.dirty_evictions,
    ]
}

#[test]
fn every_policy_counts_what_it_always_counted() {
    let config = Config::new(512).block_pages(64);
    let mut wrong = String::new();
    for entry in POLICIES {
        let dense = columns(&run(entry.name, &config.clone().space(500_000)));
        assert_eq!(
            columns(&run(entry.name, &config)),
            dense,
            "{}: the two kinds of index disagree",
            entry.name
        );
        let known = GOLDENS.iter().find(|(name, _)| *name == entry.name);
        if known.is_none_or(|(_, golden)| *golden != dense) {
            wrong += &format!("    (\"{}\", {dense:?}),\n", entry.name);
        }
    }
    assert!(wrong.is_empty(), "these lines differ or are missing:\n{wrong}");
    let strange = GOLDENS.iter().find(|(name, _)| POLICIES.iter().all(|entry| entry.name != *name));
    assert!(strange.is_none(), "not in the registry: {strange:?}");
}
