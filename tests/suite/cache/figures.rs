//! The worked examples of Ramasamy and Karantharaj, figures 5, 6 and 7, and the distances between them: erase blocks of
//! ten pages. (Their two k-means examples are with `cache::kmeans`.)

use super::traces::{Io, Log};
use bimetal::cache::{Config, PageCache, PageRequest, build};
use bimetal::time::Time;
use bimetal::units::Lpn;

/// A page far from all others.
const FAR: u64 = 100_000;

fn cache(policy: &str, capacity: u32) -> Box<dyn PageCache> {
    build(policy, &Config::new(capacity).block_pages(10)).expect("a policy of the registry")
}

fn read(cache: &mut dyn PageCache, page: u64, log: &mut Log) {
    cache.serve(Time::ZERO, PageRequest::Read(Lpn(page), 1), log).expect("nothing fails");
}

fn write(cache: &mut dyn PageCache, page: u64, log: &mut Log) {
    cache.serve(Time::ZERO, PageRequest::Write(Lpn(page), 1), log).expect("nothing fails");
}

/// Figure 5, its pages 1 to 10 counted from 0: what is written when the eight dirty ones must leave.
fn figure_5(policy: &str) -> Vec<Io> {
    let (mut cache, mut log) = (cache(policy, 8), Log::default());
    for page in [0, 1, 3, 4, 6, 7, 8, 9] {
        write(&mut *cache, page, &mut log);
    }
    write(&mut *cache, FAR, &mut log);
    log.0
}

#[test]
fn the_two_missing_pages_are_read_and_the_block_is_written_as_one() {
    assert_eq!(figure_5("cswlru"), [Io::Read(2, 1), Io::Read(5, 1), Io::Write(0, 10)]);
    assert_eq!(figure_5("cswlru:pad=span"), [Io::Read(2, 1), Io::Read(5, 1), Io::Write(0, 10)]);
    assert_eq!(figure_5("cswlru:dense=0.8"), [Io::Read(2, 1), Io::Read(5, 1), Io::Write(0, 10)]);
}

#[test]
fn without_padding_the_dirty_pages_are_written_in_three_runs() {
    let runs = [Io::Write(0, 2), Io::Write(3, 2), Io::Write(6, 4)];
    assert_eq!(figure_5("cswlru:pad=none"), runs);
    assert_eq!(figure_5("cswlru:dense=0.81"), runs);
}

/// The clean pages of figures 6 and 7 that leave, one miss after the other, before a dirty page is written.
fn victims(cache: &mut dyn PageCache, log: &mut Log) -> Vec<u64> {
    let clean = [9, 20, 30, 50];
    let mut gone = Vec::new();
    for miss in 0.. {
        log.0.clear();
        read(cache, FAR + 100 * miss, log);
        if log.0.iter().any(|io| matches!(io, Io::Write(..))) {
            break;
        }
        gone.extend(
            clean
                .iter()
                .filter(|&&page| cache.page(Lpn(page)).is_none() && !gone.contains(&page))
                .copied()
                .collect::<Vec<_>>(),
        );
    }
    gone
}

fn touch_in_order(cache: &mut dyn PageCache, log: &mut Log) {
    for page in [9, 20, 30, 50] {
        read(cache, page, log);
    }
    for page in [5, 8, 35, 70] {
        write(cache, page, log);
    }
}

fn figure_6(policy: &str) -> Vec<u64> {
    let (mut cache, mut log) = (cache(policy, 8), Log::default());
    touch_in_order(&mut *cache, &mut log);
    victims(&mut *cache, &mut log)
}

#[test]
fn clean_pages_near_dirty_ones_stay() {
    assert_eq!(figure_6("cswlru"), [20, 50]);
    assert_eq!(figure_6("cswlru:evict=distance"), [20, 50]);
    assert_eq!(figure_6("lru"), [9, 20, 30, 50]);
}

/// Figure 7: the clean pages were written 4, 2, 3 and 1 times to fill a gap. A dirty page in the same block, written by a
/// sync with `dense` low enough, makes it so.
fn figure_7(policy: &str) -> Vec<u64> {
    let (mut cache, mut log) = (cache(&format!("{policy}:dense=0.1"), 8), Log::default());
    for (clean, dirty, times) in [(9, 5, 4), (20, 25, 2), (30, 35, 3), (50, 55, 1)] {
        read(&mut *cache, clean, &mut log);
        for _ in 0..times {
            write(&mut *cache, dirty, &mut log);
            cache.serve(Time::ZERO, PageRequest::Sync, &mut log).expect("nothing fails");
        }
        cache.serve(Time::ZERO, PageRequest::Discard(Lpn(dirty), 1), &mut log).expect("nothing fails");
    }
    touch_in_order(&mut *cache, &mut log);
    victims(&mut *cache, &mut log)
}

#[test]
fn of_the_others_the_one_that_was_written_least_often_leaves() {
    assert_eq!(figure_7("cswlru"), [50, 20]);
    assert_eq!(figure_7("cswlru:evict=frequency"), [50, 20, 30, 9]);
    assert_eq!(figure_7("cswlru:evict=distance"), [20, 50]);
    assert_eq!(figure_7("cswlru:evict=lru"), [9, 20, 30, 50]);
}

/// Whether a clean page stays because of a dirty one.
fn is_protected(near: &str, clean: u64, dirty: u64) -> bool {
    let (mut cache, mut log) = (cache(&format!("cswlru:pad=none:near={near}"), 2), Log::default());
    read(&mut *cache, clean, &mut log);
    write(&mut *cache, dirty, &mut log);
    read(&mut *cache, FAR, &mut log);
    cache.page(Lpn(clean)).is_some()
}

#[test]
fn the_three_readings_of_the_distance_differ_where_they_should() {
    for (clean, dirty, half, aligned, full) in [
        (12, 8, true, false, true),
        (3, 8, true, true, true),
        (19, 10, false, true, true),
        (30, 24, false, false, true),
        (30, 35, true, true, true),
        (30, 36, false, true, true),
        (30, 39, false, true, true),
    ] {
        assert_eq!(is_protected("half", clean, dirty), half, "half, {clean} and {dirty}");
        assert_eq!(is_protected("aligned", clean, dirty), aligned, "aligned, {clean} and {dirty}");
        assert_eq!(is_protected("full", clean, dirty), full, "full, {clean} and {dirty}");
    }
}
