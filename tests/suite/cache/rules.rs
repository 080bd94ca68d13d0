//! Rules that hold whatever the numbers are.

use super::ftl::{Bast, Fast, Flash, Layer, PageMap};
use super::traces::{Io, Log, Random, Step, counts, skewed};
use bimetal::cache::registry::POLICIES;
use bimetal::cache::{Access, Config, Nothing, PageAccess, PageCache, PageRequest, Resident, Stats, build};
use bimetal::time::Time;
use bimetal::units::Lpn;
use std::time::Duration;

fn reads_only(seed: u64) -> Vec<Step> {
    skewed(seed, 4000, 512, 800, 0)
}

fn writes_only(seed: u64) -> Vec<Step> {
    skewed(seed, 4000, 512, 800, 100)
}

fn config() -> Config {
    Config::new(64).block_pages(16)
}

#[test]
fn hits_and_misses_add_up_and_the_bound_is_kept_under_every_policy() {
    for entry in POLICIES {
        let mut cache = build(entry.name, &config()).unwrap();
        let trace = skewed(3, 4000, 512, 800, 60);
        for &(access, page) in &trace {
            cache.run(Time::ZERO, &[PageAccess::new(Lpn(page), access)], &mut Nothing).unwrap();
            assert!(
                cache.view().resident <= 64 && cache.view().dirty <= cache.view().resident,
                "{}",
                entry.name
            );
        }
        assert_eq!(cache.view().stats.accesses(), 4000, "{}", entry.name);
    }
}

#[test]
fn reading_alone_writes_nothing_under_any_policy() {
    for entry in POLICIES {
        assert_eq!(counts(entry.name, &config(), &reads_only(4)).pages_written, 0, "{}", entry.name);
    }
}

#[test]
fn policies_that_differ_from_lru_only_for_dirty_pages_are_lru_when_nothing_is_written() {
    let lru = counts("lru", &config(), &reads_only(5));
    for policy in ["lru-wsr", "cflru", "cflru:window=1", "casa", "cswlru", "tide"] {
        assert_eq!(counts(policy, &config(), &reads_only(5)), lru, "{policy}");
    }
}

#[test]
fn policies_that_prefer_clean_pages_are_lru_when_nothing_is_read() {
    let lru = counts("lru", &config(), &writes_only(6));
    for policy in ["cflru", "cflru:window=0", "cflru:window=1", "casa"] {
        assert_eq!(counts(policy, &config(), &writes_only(6)), lru, "{policy}");
    }
    let mixed = skewed(6, 4000, 512, 800, 60);
    assert_eq!(counts("cflru:window=0", &config(), &mixed), counts("lru", &config(), &mixed));
}

#[test]
fn a_batch_counts_the_same_as_its_accesses_one_by_one() {
    for entry in POLICIES {
        let accesses: Vec<PageAccess> = skewed(8, 5000, 512, 800, 60)
            .iter()
            .map(|&(access, page)| PageAccess::new(Lpn(page), access))
            .collect();
        let (mut batch, mut single) =
            (build(entry.name, &config()).unwrap(), build(entry.name, &config()).unwrap());
        batch.run(Time::ZERO, &accesses, &mut Nothing).unwrap();
        for access in accesses {
            match access.access() {
                Access::Read => single.serve(Time::ZERO, PageRequest::Read(access.page(), 1), &mut Nothing),
                Access::Write => single.serve(Time::ZERO, PageRequest::Write(access.page(), 1), &mut Nothing),
            }
            .unwrap();
        }
        assert_eq!(batch.view().stats, single.view().stats, "{}", entry.name);
    }
}

#[test]
fn every_page_written_left_was_synced_or_was_written_beside_others() {
    for entry in POLICIES {
        let mut cache = build(entry.name, &config()).unwrap();
        let mut log = Log::default();
        for (round, (access, page)) in (0..).zip(skewed(7, 4000, 512, 800, 80)) {
            let request = match access {
                _ if round % 501 == 500 => PageRequest::Sync,
                Access::Read => PageRequest::Read(Lpn(page), 1),
                Access::Write if round % 7 == 0 => PageRequest::Modify(Lpn(page)),
                Access::Write => PageRequest::Write(Lpn(page), 1 + (round % 3) as u32),
            };
            cache.serve(Time(round), request, &mut log).unwrap();
        }
        let stats = *cache.view().stats;
        let all = stats.pages_synced + stats.dirty_evictions + stats.pages_beside;
        assert!(stats.pages_written > 500 && all == stats.pages_written, "{}: {stats:?}", entry.name);
    }
}

#[test]
fn pages_that_are_dirty_for_too_long_are_written_and_no_others() {
    let config =
        Config { dirty_age: Some(Duration::from_secs(30)), tick: Duration::from_secs(5), ..config() };
    for entry in POLICIES {
        let mut cache = build(entry.name, &config).unwrap();
        let mut log = Log::default();
        let second = |n: u64| Time(n * 1_000_000_000);
        cache.serve(second(1), PageRequest::Write(Lpn(7), 2), &mut log).unwrap();
        cache.serve(second(20), PageRequest::Write(Lpn(100), 1), &mut log).unwrap();
        cache.serve(second(30), PageRequest::Tick, &mut log).unwrap();
        assert_eq!(cache.view().dirty, 3, "{}", entry.name);
        cache.serve(second(36), PageRequest::Read(Lpn(100), 1), &mut log).unwrap();
        assert_eq!(
            (cache.view().dirty, cache.page(Lpn(100)) == Some(Resident::Dirty)),
            (1, true),
            "{}",
            entry.name
        );
        assert_eq!(cache.view().stats.pages_synced, 2, "{}", entry.name);
        assert_eq!(log.1, [super::traces::Io::Write(7, 2)], "{}", entry.name);
        cache.serve(second(51), PageRequest::Tick, &mut log).unwrap();
        assert_eq!(cache.view().dirty, 0, "{}", entry.name);
    }
}

#[test]
fn a_sequential_reader_is_read_ahead_and_a_random_one_is_not() {
    let config = Config { read_ahead: 32, ..config() };
    let mut cache = build("lru", &config).unwrap();
    for page in 0..200 {
        cache.serve(Time::ZERO, PageRequest::Read(Lpn(page), 1), &mut Nothing).unwrap();
    }
    let sequential = *cache.view().stats;
    assert!(sequential.read_misses < 20, "{} misses", sequential.read_misses);
    assert_eq!(sequential.pages_read, sequential.read_misses + sequential.pages_read_ahead);
    let mut random = Random(9);
    let mut cache = build("lru", &config).unwrap();
    for _ in 0..200 {
        cache
            .serve(Time::ZERO, PageRequest::Read(Lpn(random.next() % 100_000 * 2), 1), &mut Nothing)
            .unwrap();
    }
    assert_eq!(cache.view().stats.pages_read_ahead, 0);
}

#[test]
fn discarded_pages_leave_without_being_written() {
    for entry in POLICIES {
        let mut cache = build(entry.name, &config()).unwrap();
        let mut log = Log::default();
        cache.serve(Time::ZERO, PageRequest::Write(Lpn(10), 20), &mut log).unwrap();
        cache.serve(Time::ZERO, PageRequest::Discard(Lpn(12), 5), &mut log).unwrap();
        assert_eq!((cache.view().resident, cache.view().dirty), (15, 15), "{}", entry.name);
        cache.serve(Time::ZERO, PageRequest::Discard(Lpn(0), u32::MAX), &mut log).unwrap();
        assert_eq!((cache.view().resident, log.1.len()), (0, 0), "{}", entry.name);
    }
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    let error =
        |policy: &str| build(policy, &config()).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error("nonsense").contains("cflru"), "{}", error("nonsense"));
    assert!(error("cflru:size=3").contains("window"), "{}", error("cflru:size=3"));
    assert!(error("cflru:window=3").contains("fraction up to 1"), "{}", error("cflru:window=3"));
    assert!(error("cswlru:near=far").contains("aligned"), "{}", error("cswlru:near=far"));
    assert!(error("cflru:window").contains("option=value"), "{}", error("cflru:window"));
    assert!(build("lru", &Config::new(0)).is_err());
}

#[test]
fn every_option_of_the_registry_has_a_default_that_builds() {
    for entry in POLICIES {
        let options: Vec<String> =
            entry.options.iter().map(|option| format!(":{}={}", option.name, option.default)).collect();
        let text = format!("{}{}", entry.name, options.concat());
        assert_eq!(
            build(&text, &config()).unwrap().view().name,
            build(entry.name, &config()).unwrap().view().name
        );
        assert!(!entry.about.is_empty() && !entry.make.source.is_empty());
    }
}

#[test]
fn the_documentation_lists_every_policy_as_the_registry_has_it() {
    let page = include_str!("../../../docs/cache.md");
    let list = bimetal::cache::registry::markdown();
    assert!(page.contains(&list), "docs/cache.md must hold this list:\n\n{list}");
}

fn erases_and_time<L: Layer>(policy: &str, trace: &[Step], config: &Config, layer: L) -> (u64, u64, Stats) {
    let mut flash = Flash::new(layer);
    let mut cache = build(policy, config).unwrap();
    let accesses: Vec<PageAccess> =
        trace.iter().map(|&(access, page)| PageAccess::new(Lpn(page), access)).collect();
    let at = cache.run(Time::ZERO, &accesses, &mut flash).unwrap();
    cache.serve(at, PageRequest::Sync, &mut flash).unwrap();
    (flash.done.erases, flash.done.busy_us(), *cache.view().stats)
}

/// Laps over the whole device; 60 % random, a third of it reads; uniformly random; pieces that fill in any order.
fn workload(name: &str, pages: u64) -> Vec<Step> {
    let mut random = Random(11);
    let mut place = 0;
    (0..60_000u64)
        .map(|at| match name {
            "sequential" => (Access::Write, at % pages),
            "random" => (Access::Write, random.next() % pages),
            "mixed" => {
                place = if random.next() % 100 < 60 { random.next() % pages } else { (place + 1) % pages };
                (if random.one_in(3) { Access::Read } else { Access::Write }, place)
            }
            _ => {
                let piece = (at / 1920 * 30 + random.next() % 30) % (pages / 64);
                (Access::Write, piece * 64 + random.next() % 64)
            }
        })
        .collect()
}

#[test]
fn tide_erases_less_and_takes_less_time_than_cswlru_on_every_workload_and_translation_layer() {
    let (block, blocks) = (64, 256);
    let pages = block * blocks;
    let config = Config::new(1024).block_pages(block as u32).space(pages);
    for name in ["sequential", "random", "mixed", "pieces"] {
        let trace = workload(name, pages);
        let both = |run: &dyn Fn(&str) -> (u64, u64, Stats), layer: &str| {
            let (tide, csw) = (run("tide"), run("cswlru"));
            assert!(tide.0 < csw.0, "{name} on {layer}: {} erases, CSWLRU {}", tide.0, csw.0);
            assert!(tide.1 < csw.1, "{name} on {layer}: {} µs, CSWLRU {}", tide.1, csw.1);
        };
        both(&|policy| erases_and_time(policy, &trace, &config, Bast::new(block, 16)), "BAST");
        both(&|policy| erases_and_time(policy, &trace, &config, Fast::new(block, 16)), "FAST");
        both(&|policy| erases_and_time(policy, &trace, &config, PageMap::new(block, blocks, 18)), "page map");
    }
}

/// What a sync writes after `writes`, in order.
fn synced(cache: &mut dyn PageCache, writes: &[(u64, u32)]) -> Vec<Io> {
    let mut log = Log::default();
    for &(first, count) in writes {
        cache.serve(Time::ZERO, PageRequest::Write(Lpn(first), count), &mut log).unwrap();
    }
    cache.serve(Time::ZERO, PageRequest::Sync, &mut log).unwrap();
    log.1
}

#[test]
fn a_sync_of_many_blocks_by_tide_goes_back_the_way_the_last_one_came_but_keeps_a_stream() {
    let mut cache = build("tide:turn=2", &config()).unwrap();
    // Blocks of 16 pages; the last write crosses a border.
    let many = [(40, 1), (0, 1), (78, 5)];
    let ascending = vec![Io::Write(0, 1), Io::Write(40, 1), Io::Write(78, 5)];
    let descending: Vec<Io> = ascending.iter().rev().copied().collect();
    assert_eq!(synced(&mut *cache, &many), ascending);
    assert_eq!(synced(&mut *cache, &many), descending);
    assert_eq!(synced(&mut *cache, &many[..2]), ascending[..2], "few blocks ascend");
    assert_eq!(synced(&mut *cache, &many), ascending);
}
