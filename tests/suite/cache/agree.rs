//! The policies against the plain models, access by access, on traces of many seeds and shapes.

use super::block_models::*;
use super::counting_models::{Lecar, S4Fifo, TinyLfu, TwoQ};
use super::models::*;
use super::traces::{Io, Log, Random, Step, skewed};
use bimetal::cache::{Access, Config, PageAccess, build};
use bimetal::time::Time;
use bimetal::units::Lpn;

/// How a model of a policy is made for a cache of so many pages, erase blocks of so many, a device of so many.
type Make = fn(usize, u64, u64) -> Box<dyn Model>;

const MODELS: &[(&str, Make)] = &[
    ("lru", |c, _, _| Box::new(One::new(c, Lru::default()))),
    ("clock", |c, _, _| Box::new(One::new(c, Clock { queue: Vec::new(), used_max: 1 }))),
    ("clock:bits=2", |c, _, _| Box::new(One::new(c, Clock { queue: Vec::new(), used_max: 3 }))),
    ("sieve", |c, _, _| Box::new(One::new(c, Sieve::default()))),
    ("s3fifo", |c, _, _| Box::new(One::new(c, S3Fifo::new(c)))),
    ("arc", |c, _, _| Box::new(One::new(c, Arc::new(c)))),
    ("lirs", |c, _, _| Box::new(One::new(c, Lirs::new(c, (c / 100).max(1))))),
    ("lirs:hir=1/4", |c, _, _| Box::new(One::new(c, Lirs::new(c, (c / 4).max(1))))),
    ("s3fifo:skip=0.3", |c, _, _| Box::new(One::new(c, S4Fifo::new(c, 0.3, 1)))),
    ("s3fifo:skip=1/2:returns=3", |c, _, _| Box::new(One::new(c, S4Fifo::new(c, 0.5, 3)))),
    ("2q", |c, _, _| Box::new(One::new(c, TwoQ::new(c / 4, c / 2)))),
    ("2q:in=1/2:out=2p", |c, _, _| Box::new(One::new(c, TwoQ::new(c / 2, 2)))),
    ("lecar", |c, _, _| Box::new(One::new(c, Lecar::new(c)))),
    ("tinylfu", |c, _, _| Box::new(One::new(c, TinyLfu::new(c)))),
    ("cflru", |c, _, _| Box::new(One::new(c, Cflru { order: Vec::new(), window: c / 3 }))),
    ("cflru:window=0", |c, _, _| Box::new(One::new(c, Cflru { order: Vec::new(), window: 0 }))),
    ("cflru:window=1", |c, _, _| Box::new(One::new(c, Cflru { order: Vec::new(), window: c }))),
    ("lru-wsr", |c, _, _| Box::new(One::new(c, LruWsr { order: Vec::new(), moves: true }))),
    ("lru-wsr:second=stay", |c, _, _| Box::new(One::new(c, LruWsr { order: Vec::new(), moves: false }))),
    ("casa", |c, _, _| Box::new(One::new(c, casa(c, 8.0)))),
    ("casa:ratio=1", |c, _, _| Box::new(One::new(c, casa(c, 1.0)))),
    ("cfdc", |c, _, _| Box::new(One::new(c, Cfdc::new(c / 2, 16)))),
    ("cfdc:window=1/4:cluster=64", |c, _, _| Box::new(One::new(c, Cfdc::new(c / 4, 64)))),
    ("fab", |c, b, e| Box::new(Grouped::new(Group::Fab, c, b, e))),
    ("bplru", |c, b, e| Box::new(Grouped::new(Group::Bplru { pads: true }, c, b, e))),
    ("bplru:padding=no", |c, b, e| Box::new(Grouped::new(Group::Bplru { pads: false }, c, b, e))),
    ("wow", |c, b, e| Box::new(Grouped::new(Group::Wow { bits: true }, c, b, e))),
    ("wow:bits=no", |c, b, e| Box::new(Grouped::new(Group::Wow { bits: false }, c, b, e))),
    ("cswlru", |c, b, e| Box::new(Cswlru::new(c, b, e))),
    ("cswlru:reach=all", |c, b, e| Box::new(Cswlru::new(c, b, e))),
    ("cswlru:dense=1/8", |c, b, e| Box::new(Cswlru::new(c, b, e).dense(0.125))),
    ("cswlru:near=aligned", |c, b, e| Box::new(Cswlru::new(c, b, e).near(None))),
    ("cswlru:near=full", |c, b, e| Box::new(Cswlru::new(c, b, e).near(Some(b - 1)))),
    ("cswlru:evict=distance", |c, b, e| Box::new(Cswlru::new(c, b, e).rules(true, false))),
    ("cswlru:evict=frequency", |c, b, e| Box::new(Cswlru::new(c, b, e).rules(false, true))),
    ("cswlru:evict=lru", |c, b, e| Box::new(Cswlru::new(c, b, e).rules(false, false))),
    ("tide:pad=no", |c, b, e| Box::new(Tide::new(c, b, e))),
    ("tide", |c, b, e| Box::new(Tide::new(c, b, e).padded())),
];

fn casa(capacity: usize, ratio: f64) -> Casa {
    Casa { capacity, ratio, clean: Vec::new(), dirty: Vec::new(), tau: 0.0 }
}

/// Sequential laps, random pages and pieces written in order, one after the other.
fn shifting(seed: u64, count: usize, pages: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut trace = Vec::new();
    while trace.len() < count {
        let access = if random.one_in(3) { Access::Read } else { Access::Write };
        let (start, len) = (random.next() % pages, random.next() % 90);
        match random.next() % 3 {
            0 => trace.extend((start..pages.min(start + len)).map(|page| (access, page))),
            1 => trace.extend((0..len).map(|_| (access, random.next() % pages))),
            _ => trace.extend((start / 16 * 16..).take(32).map(|page| (Access::Write, page % pages))),
        }
    }
    trace.truncate(count);
    trace
}

/// Runs both and compares what reaches the device, access by access.
fn agrees(policy: &str, make: Make, capacity: u32, block: u32, trace: &[Step], what: &str) {
    let end = trace.iter().map(|&(_, page)| page + 1).max().unwrap_or(1);
    for space in [None, Some(end)] {
        let config = Config { space, ..Config::new(capacity).block_pages(block) };
        let mut cache = build(policy, &config).expect("a policy of the registry");
        let mut model = make(capacity as usize, block.into(), space.unwrap_or(u64::MAX));
        let mut log = Log::default();
        for (at, &(access, page)) in trace.iter().enumerate() {
            let mut expected = Vec::new();
            model.access(access, page, &mut expected);
            log.0.clear();
            cache.run(Time::ZERO, &[PageAccess::new(Lpn(page), access)], &mut log).expect("nothing fails");
            assert_eq!(
                log.0, expected,
                "{policy}, {what}, {capacity} pages, blocks of {block}: access {at}: {access:?} {page}"
            );
            assert!(cache.view().resident <= capacity);
        }
        let sums = |kind: fn(&Io) -> bool| log.1.iter().filter(|io| kind(io)).count() as u64;
        assert_eq!(cache.view().stats.write_commands, sums(|io| matches!(io, Io::Write(..))), "{policy}");
        assert_eq!(cache.view().stats.accesses(), trace.len() as u64, "{policy}");
    }
}

#[test]
fn every_policy_does_what_its_plain_model_does() {
    for &(policy, make) in MODELS {
        for seed in [1, 7] {
            agrees(policy, make, 64, 16, &skewed(seed, 3000, 512, 800, 60), "skewed");
            agrees(policy, make, 50, 10, &skewed(seed, 2000, 400, 500, 90), "skewed writes");
            agrees(policy, make, 80, 16, &shifting(seed, 3000, 700), "shifting");
            agrees(policy, make, 33, 128, &shifting(seed, 1500, 300), "shifting, large blocks");
        }
    }
}

#[test]
fn every_policy_does_so_with_hundreds_of_pages() {
    // Point by point, k-means over hundreds of pages takes too long.
    for &(policy, make) in MODELS.iter().filter(|(policy, _)| !policy.starts_with("cswlru")) {
        agrees(policy, make, 400, 16, &skewed(11, 5000, 6000, 700, 70), "large");
        agrees(policy, make, 300, 8, &shifting(12, 4000, 3000), "large, shifting");
    }
}

#[test]
fn every_policy_does_so_in_the_smallest_caches() {
    for &(policy, make) in
        MODELS.iter().filter(|(policy, _)| !policy.starts_with("lirs") && !policy.starts_with("s3fifo"))
    {
        for capacity in [1, 2, 3] {
            agrees(policy, make, capacity, 4, &skewed(5, 600, 40, 300, 50), "tiny");
        }
    }
}
