//! The disk's times by hand-computed cases, and its rates.

use super::*;
use crate::ram::Ram;
use crate::void::Void;
use crate::{Gather, profile};
use bimetal_base::random::Random;

const SIZE: u64 = 64 << 20;
const TURN: u64 = 8_333_333;
const COMMAND: u64 = 60_000;

fn disk_of(size_bytes: u64, change: impl FnOnce(&mut DiskProfile)) -> Disk {
    let mut profile = profile::load("hdd-7200").unwrap();
    change(&mut profile);
    Disk::new(&profile, Arc::new(Void::new("void", size_bytes, 512)))
}

fn disk() -> Disk {
    disk_of(SIZE, |_| ())
}

fn read(disk: &Disk, at: u64, offset: u64, len: usize) -> u64 {
    let done = disk.run(Time(at), Request::Read { offset, len });
    done.result.unwrap();
    done.at.0
}

fn write(disk: &Disk, at: u64, offset: u64, len: usize, durable: bool) -> u64 {
    let data = Gather::from_iter([Bytes::from(vec![0; len])]);
    let done = disk.run(Time(at), Request::Write { offset, data, durable });
    done.result.unwrap();
    done.at.0
}

fn flush(disk: &Disk, at: u64) -> u64 {
    disk.run(Time(at), Request::Flush).at.0
}

/// Streaming time, as the platter rounds it.
fn stream(from: u64, to: u64) -> u64 {
    to * TURN / 999_999 - from * TURN / 999_999
}

/// Bus time at 300 MB/s.
fn bus(len: u64) -> u64 {
    (len as f64 * 1e3 / 300.0) as u64
}

#[test]
fn a_first_read_waits_for_its_angle() {
    let at = read(&disk(), 0, 40_960, 4096);
    // The command is over long before byte 40 960 passes: no seek within the first track.
    assert_eq!(at, 40_960 * TURN / 999_999 + stream(40_960, 45_056));
    let late = read(&disk(), 1_000_000, 0, 4096);
    assert_eq!(late, TURN + stream(0, 4096), "byte 0 has passed: it comes again after a turn");
}

#[test]
fn a_read_elsewhere_seeks_first() {
    let disk = disk();
    // A quarter of the disk: √¼ of the stroke, 0.8 + 7.7 · 15/8 · ½ = 8.01875 ms.
    let offset = SIZE / 4;
    let arrived = COMMAND + 8_018_750;
    let angle = offset * TURN / 999_999 % TURN;
    let expected = arrived + (angle + TURN - arrived % TURN) % TURN + stream(offset, offset + 4096);
    assert_eq!(read(&disk, 0, offset, 4096), expected);
    let stats = disk.stats();
    assert_eq!((stats.seeks, stats.seek_ns), (1, 8_018_750));
}

#[test]
fn reading_on_comes_from_memory_at_the_medias_rate() {
    let disk = disk();
    let first = read(&disk, 0, 0, 65_536);
    let second = read(&disk, first + 1, 65_536, 65_536);
    assert_eq!(second, first + stream(65_536, 131_072), "the head has not lost a nanosecond");
    // A quarter of a turn later that much has been read ahead: the bus alone is left.
    let later = second + TURN / 4;
    assert_eq!(read(&disk, later, 131_072, 65_536), later + COMMAND + bus(65_536));
    assert_eq!(disk.stats().read_hits, 2);
}

#[test]
fn a_cached_write_takes_the_bus_and_a_flush_the_platter() {
    let disk = disk();
    let written = write(&disk, 0, 0, 4096, false);
    assert_eq!(written, COMMAND + bus(4096));
    assert_eq!(flush(&disk, written), TURN + stream(0, 4096));
    assert_eq!(flush(&disk, 20_000_000), 20_000_000 + COMMAND, "nothing left to write");
}

#[test]
fn the_cache_is_written_out_while_nobody_asks() {
    let disk = disk();
    write(&disk, 0, 0, 4096, false);
    assert_eq!(flush(&disk, 50_000_000), 50_000_000 + COMMAND);
    assert_eq!(disk.stats().write_backs, 1);
}

#[test]
fn a_disk_that_lies_flushes_at_once_and_writes_later() {
    let disk = disk_of(SIZE, |profile| profile.honour_flush = false);
    let written = write(&disk, 0, 0, 4096, true);
    assert_eq!(written, COMMAND + bus(4096));
    assert_eq!(flush(&disk, written), written + COMMAND);
    flush(&disk, 50_000_000);
    assert_eq!(disk.stats().write_backs, 1, "and yet it gets there");
}

#[test]
fn a_durable_write_is_on_the_platter_when_it_is_done() {
    let disk = disk();
    let done = write(&disk, 0, 0, 4096, true);
    assert_eq!(done, TURN + stream(0, 4096));
    assert_eq!(flush(&disk, done), done + COMMAND);
    let uncached = disk_of(SIZE, |profile| profile.write_cache = 0);
    assert_eq!(write(&uncached, 0, 0, 4096, false), done);
}

#[test]
fn pieces_are_written_in_one_sweep_and_neighbours_as_one() {
    let disk = disk_of(SIZE, |profile| profile.settle_ms = 0.0);
    // The arm is busy with a far read while these arrive.
    read(&disk, 0, SIZE / 2, 512);
    for track in [3, 1, 2] {
        write(&disk, 1, track << 21, 4096, false);
        write(&disk, 2, (track << 21) + 4096, 4096, false);
    }
    let before = disk.stats();
    flush(&disk, 3);
    let after = disk.stats();
    assert_eq!(after.write_backs - before.write_backs, 3);
    assert_eq!(after.seeks - before.seeks, 3, "back once, then forward twice");
}

#[test]
fn a_full_cache_makes_the_next_write_wait() {
    let disk = disk_of(SIZE, |profile| profile.write_cache = 8192);
    read(&disk, 0, SIZE / 2, 512);
    let quick = write(&disk, 1, 0, 8192, false);
    let slow = write(&disk, quick, 1 << 20, 4096, false);
    assert!(quick < 200_000 && slow > 8_000_000, "{quick} {slow}");
}

/// Each mean is what the parts add up to: 60 µs + 8.5 ms + half a turn + 0.03 ms for a random read,
/// one turn for a small write and flush that follows the last, the media rate for a stream.
#[test]
fn rates_are_what_the_figures_of_the_profile_add_up_to() {
    const BIG: u64 = 4 << 30;
    let mut random = Random::new(1, "offsets");
    let disk = disk_of(BIG, |_| ());
    let mut now = 0;
    for _ in 0..2000 {
        now = read(&disk, now, random.below(BIG / 4096) * 4096, 4096);
    }
    let iops = 2000.0 * 1e9 / now as f64;
    assert!((77.0..80.0).contains(&iops), "random 4 KiB reads a second: {iops}");

    let start = now;
    (0..256).for_each(|mib| now = read(&disk, now, mib << 20, 1 << 20));
    let rate = 256.0 * (1 << 20) as f64 * 1e3 / (now - start) as f64;
    assert!((118.0..120.1).contains(&rate), "MB/s of sequential reads: {rate}");

    let start = now;
    for index in 0..200 {
        now = write(&disk, now, BIG / 2 + index * 4096, 4096, false);
        now = flush(&disk, now);
    }
    let rate = 200.0 * 1e9 / (now - start) as f64;
    assert!((118.0..120.1).contains(&rate), "sequential 4 KiB write + flush a second: {rate}");

    let start = now;
    for _ in 0..200 {
        now = write(&disk, now, random.below(BIG / 4096) * 4096, 4096, false);
        now = flush(&disk, now);
    }
    let rate = 200.0 * 1e9 / (now - start) as f64;
    assert!((70.0..78.0).contains(&rate), "random 4 KiB write + flush a second: {rate}");

    let start = now;
    for _ in 0..4000 {
        now = write(&disk, now, random.below(BIG / 4096) * 4096, 4096, false);
    }
    now = flush(&disk, now);
    let rate = 4000.0 * 1e9 / (now - start) as f64;
    assert!((140.0..170.0).contains(&rate), "random cached 4 KiB writes a second: {rate}");

    let start = now;
    (0..256).for_each(|mib| now = write(&disk, now, BIG / 4 + (mib << 20), 1 << 20, false));
    now = flush(&disk, now);
    let rate = 256.0 * (1 << 20) as f64 * 1e3 / (now - start) as f64;
    assert!((110.0..121.0).contains(&rate), "MB/s of sequential writes: {rate}");
}

/// Submits reads of 4 KiB at these places at once; the order in which they were done.
fn order_of(disk: &Disk, places: &[u64]) -> Vec<u64> {
    let submit = |offset: &u64| match disk.submit(Time(0), Request::Read { offset: *offset, len: 4096 }) {
        Ticket::Pending(number) => (number, *offset),
        Ticket::Done(_) => panic!("nothing is in memory"),
    };
    let asked: Vec<_> = places.iter().map(submit).collect();
    std::iter::from_fn(|| {
        let number = disk.next_done(Time(u64::MAX))?;
        disk.wait(Ticket::Pending(number)).result.unwrap();
        asked.iter().find(|(ticket, _)| *ticket == number).map(|(_, offset)| *offset)
    })
    .collect()
}

#[test]
fn what_the_arm_reaches_first_is_done_first() {
    // Within the first track there is no seek: the angle decides.
    let track = [900_096, 500_224, 700_416, 300_032];
    let mut sorted = track;
    sorted.sort_unstable();
    assert_eq!(order_of(&disk(), &track), sorted);
    assert_eq!(
        order_of(&disk_of(SIZE, |profile| profile.queue = 1), &track),
        track,
        "no queue: as they came"
    );
    // Only the oldest two can be chosen from.
    assert_eq!(
        order_of(&disk_of(SIZE, |profile| profile.queue = 2), &track),
        [500_224, 700_416, 900_096, 300_032]
    );
}

#[test]
fn a_flush_comes_between_what_came_before_and_after_it() {
    let disk = disk();
    write(&disk, 0, 900_096, 4096, false);
    let submit = |request| match disk.submit(Time(1_000_000), request) {
        Ticket::Pending(number) => number,
        Ticket::Done(_) => panic!("all of them need the arm"),
    };
    let far = submit(Request::Read { offset: SIZE / 2, len: 4096 });
    let flush = submit(Request::Flush);
    let near = submit(Request::Read { offset: 500_224, len: 4096 });
    let order: Vec<u64> = std::iter::from_fn(|| disk.next_done(Time(u64::MAX))).collect();
    assert_eq!(order, [far, flush, near]);
}

#[test]
fn nothing_is_passed_over_for_ever() {
    let disk = disk();
    let far = match disk.submit(Time(0), Request::Read { offset: SIZE - 4096, len: 4096 }) {
        Ticket::Pending(number) => number,
        Ticket::Done(_) => panic!("nothing is in memory"),
    };
    let mut random = Random::new(1, "near");
    // Seven near ones are always there.
    let mut near = |at| disk.submit(Time(at), Request::Read { offset: random.below(200) * 4096, len: 4096 });
    (0..7).for_each(|_| drop(near(0)));
    let mut done = 0;
    while let Some(number) = disk.next_done(Time(u64::MAX)).filter(|number| *number != far) {
        done += 1;
        let at = disk.wait(Ticket::Pending(number)).at.0;
        drop(near(at));
        assert!(done < 2 * PASSED_MAX, "{done} others were done first");
    }
    assert!(done >= 64, "and yet the nearer ones go first: {done}");
}

#[test]
fn nothing_is_done_before_an_instant_at_which_it_was_still_under_way() {
    let mut random = Random::new(1, "disk");
    for (pieces, cache) in [(4, 64 << 10), (64, 8 << 20)] {
        let disk = disk_of(SIZE, |profile| {
            profile.write_cache_pieces = pieces;
            profile.write_cache = cache;
        });
        let mut under_way = Vec::new();
        let mut ended = 0;
        for number in 0..4000_u64 {
            let at = Time(number * 900_000);
            while let Some(ticket) = disk.next_done(at) {
                let came = under_way.iter().position(|(other, _)| *other == ticket).unwrap();
                let (_, looked) = under_way.remove(came);
                let done = disk.wait(Ticket::Pending(ticket)).at;
                assert!(looked <= done && done <= at, "{looked:?} {done:?} {at:?}");
                ended += 1;
            }
            under_way.iter_mut().for_each(|(_, looked)| *looked = at);
            // Few places, so that what waits is in memory by the time it is its turn.
            let offset = random.below(200) * 40_960;
            let request = match random.below(3) {
                0 => Request::Read { offset, len: 4096 },
                1 => Request::Write { offset, data: Gather::absent(16384), durable: false },
                _ => Request::Write { offset, data: Gather::absent(4096), durable: number % 64 == 0 },
            };
            match disk.submit(at, request) {
                Ticket::Pending(ticket) => under_way.push((ticket, at)),
                Ticket::Done(done) => assert!(done.at >= at),
            }
        }
        assert!(ended > 500, "{ended} waited");
    }
}

#[test]
fn an_image_lies_at_the_outer_edge_of_larger_platters() {
    let disk = disk_of(SIZE, |profile| profile.platter = Some(SIZE * 100));
    // A quarter of the image is a 400th of the stroke: 0.8 + 7.7 · 15/8 · 1/20 ms.
    read(&disk, 0, SIZE / 4, 4096);
    assert_eq!(disk.stats().seek_ns, 1_521_875);
}

#[test]
fn data_is_kept_and_requests_are_checked() {
    let profile = profile::load("hdd-7200").unwrap();
    let disk = Disk::new(&profile, Arc::new(Ram::new("ram", 1 << 20)));
    let disk: &dyn BlockDevice = &disk;
    disk.write(4096, vec![7; 4096]).unwrap();
    assert_eq!(disk.read(4096, 4096).unwrap(), vec![7; 4096]);
    disk.flush().unwrap();
    assert!(disk.read(1 << 20, 512).is_err());
    assert!(disk.info().rotational && disk.info().name.contains("7200"));
}
