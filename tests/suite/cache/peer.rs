//! Miss counts beside libCacheSim's, on the same traces: equal, request for request in sum.
//!
//! Needs Python with `libcachesim` in `target/libcachesim` (`make test-long` installs it) or in `$LIBCACHESIM`.
//! Differences in definition: libCacheSim's LIRS moves a LIR page out when a page only in Q is hit, which the paper
//! does not; it is not compared. Its S3-FIFO keeps nothing new when a tenth of the cache is one page or less.

use super::traces::Random;
use bimetal::cache::offline::Numbered;
use bimetal::cache::{Access, Config, Nothing, PageAccess, build};
use bimetal::time::Time;
use bimetal::units::Lpn;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = r#"
import sys, libcachesim as lcs
path, size = sys.argv[1], int(sys.argv[2])
for name in sys.argv[3:]:
    params = lcs.ReaderInitParam()
    params.ignore_obj_size = True
    reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE, params)
    ratio, _ = getattr(lcs, name)(size).process_trace(reader)
    print(round(ratio * reader.get_num_of_req()))
"#;

/// Our name and theirs.
const POLICIES: [(&str, &str); 7] = [
    ("lru", "LRU"),
    ("clock", "Clock"),
    ("sieve", "Sieve"),
    ("s3fifo", "S3FIFO"),
    ("arc", "ARC"),
    ("2q", "TwoQ"),
    ("belady", "Belady"),
];

fn python() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/libcachesim/bin/python");
    let python = std::env::var_os("LIBCACHESIM").map_or(installed, PathBuf::from);
    let works = Command::new(&python).args(["-c", "import libcachesim"]).output();
    works.is_ok_and(|output| output.status.success()).then_some(python)
}

/// Ids from 1 on; popular ones, runs and single ones.
fn ids(seed: u64, count: usize) -> Vec<u64> {
    let mut random = Random(seed);
    let mut ids = Vec::new();
    while ids.len() < count {
        match random.next() % 8 {
            0 => {
                let start = random.next() % 20_000;
                ids.extend((start..start + random.next() % 200).map(|id| id + 1));
            }
            // The product of two is skewed towards small numbers.
            1..7 => ids.push((random.next() % 200) * (random.next() % 100) + 1),
            _ => ids.push(random.next() % 30_000 + 1),
        }
    }
    ids.truncate(count);
    ids
}

fn our_misses(policy: &str, ids: &[u64], size: u32) -> u64 {
    let accesses: Vec<PageAccess> = ids.iter().map(|&id| PageAccess::new(Lpn(id), Access::Read)).collect();
    if policy == "belady" {
        return Numbered::new(&accesses).fewest_misses(size);
    }
    let mut cache = build(policy, &Config::new(size)).unwrap();
    cache.run(Time::ZERO, &accesses, &mut Nothing).unwrap();
    cache.view().stats.misses()
}

#[test]
fn miss_counts_are_those_of_libcachesim() {
    let Some(python) = python() else {
        println!("skipped: libcachesim is not installed; `make test-long` does it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.oracleGeneral");
    for seed in 1..=3 {
        let ids = ids(seed, 200_000);
        let mut next = vec![i64::MAX; ids.len()];
        let mut last = std::collections::HashMap::new();
        for (at, id) in ids.iter().enumerate() {
            if let Some(before) = last.insert(*id, at) {
                next[before] = at as i64;
            }
        }
        let records = ids.iter().enumerate().flat_map(|(at, id)| {
            let mut record = [0u8; 24];
            record[..4].copy_from_slice(&(at as u32).to_le_bytes());
            record[4..12].copy_from_slice(&id.to_le_bytes());
            record[12..16].copy_from_slice(&1u32.to_le_bytes());
            record[16..].copy_from_slice(&next[at].to_le_bytes());
            record
        });
        std::fs::write(&path, records.collect::<Vec<u8>>()).unwrap();
        for size in [25, 137, 1000, 5000] {
            let names = POLICIES.iter().map(|(_, theirs)| theirs);
            let mut command = Command::new(&python);
            let output =
                command.args(["-c", SCRIPT]).arg(&path).arg(size.to_string()).args(names).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let theirs: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
            assert_eq!(theirs.len(), POLICIES.len(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            for ((policy, _), theirs) in POLICIES.iter().zip(theirs) {
                assert_eq!(our_misses(policy, &ids, size), theirs, "{policy}, {size} pages, seed {seed}");
            }
        }
    }
}
