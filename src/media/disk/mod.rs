//! A simulated disk: one arm, a turning platter, a write cache and read-ahead, in virtual time.
//!
//! A request's completion is known when it is submitted. In order:
//!
//! 1. *Idle time.* What the arm could do since the last request it did: write out cached pieces, nearest
//!    ahead first (C-LOOK), one track at most at a time, each begun before the new request arrived.
//! 2. *The command* takes its overhead. What memory answers (a write the cache has room for, a read of
//!    cached writes or of what was read ahead) takes the bus and nothing else.
//! 3. *The arm* takes the rest, first come first served: seek, wait for the angle, transfer. Then it
//!    reads ahead until something else needs it. The platter's angle follows virtual time.
//! 4. *A flush* waits until the cache is on the platter, or returns at once from a disk that lies.
//!    A durable write goes to the platter itself.
//!
//! Data lives in any other device, which holds it at once; only time is modelled here. Wrap the disk in
//! [`Crash`](super::crash) to lose what was not flushed. Left out: reordering of queued reads, head
//! switches apart from seeks, defects. Cost: O(log pieces) a request.

mod cache;
mod platter;
mod profile;

pub use profile::{DiskProfile, Zone};

use super::profile::us;
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use crate::time::Time;
use bytes::Bytes;
use cache::{Piece, ReadAhead, WriteCache};
use parking_lot::Mutex;
use platter::Platter;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// A simulated disk over the device that holds its data.
pub struct Disk {
    info: DeviceInfo,
    storage: Arc<dyn BlockDevice>,
    model: Mutex<Model>,
}

/// Where a disk's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskStats {
    /// Times the arm had to move to another track.
    pub seeks: u64,
    /// Moving and settling, ns.
    pub seek_ns: u64,
    /// Waiting for the angle, ns.
    pub rotate_ns: u64,
    /// Reading and writing the platter (not reading ahead), ns.
    pub transfer_ns: u64,
    /// Reads answered from memory.
    pub read_hits: u64,
    /// Transfers that wrote cached pieces.
    pub write_backs: u64,
    /// Flushes that found something to write.
    pub dirty_flushes: u64,
}

impl Disk {
    /// A disk as `profile` says, of the size of `storage`, which holds its data.
    pub fn new(profile: &DiskProfile, storage: Arc<dyn BlockDevice>) -> Disk {
        let below = storage.info();
        let sector = (profile.sector as u32).max(below.block_bytes);
        let info = DeviceInfo {
            name: format!("{} ({})", below.name, profile.model),
            size_bytes: below.size_bytes / u64::from(sector) * u64::from(sector),
            block_bytes: sector,
            atomic_bytes: sector,
            rotational: true,
        };
        let model = Mutex::new(Model::new(profile, info.size_bytes));
        Disk { info, storage, model }
    }

    /// Where time went so far.
    pub fn stats(&self) -> DiskStats {
        self.model.lock().stats
    }

    fn serve(&self, at: Time, request: Request) -> Completion {
        if let Err(error) = check(&self.info, &request) {
            return Completion { at, result: Err(error) };
        }
        let done = self.model.lock().request(at, &request);
        let result = match request {
            // The storage holds everything at once; what a power cut leaves is not its business.
            Request::Flush => Ok(Bytes::new()),
            Request::Write { offset, data, .. } => {
                self.storage.run(at, Request::Write { offset, data, durable: false }).result
            }
            other => self.storage.run(at, other).result,
        };
        Completion { at: done, result }
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.serve(at, request))
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        ticket.done()
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

/// The time lines of arm and bus.
struct Model {
    platter: Platter,
    command: Duration,
    bus_ns_per_byte: f64,
    read_ahead_bytes: u64,
    cache_bytes: u64,
    cache_pieces: usize,
    honour_flush: bool,
    /// The byte under the head's path: where the last transfer ended.
    head: u64,
    arm_free: Time,
    bus_free: Time,
    /// The end of the last write to the platter.
    written: Time,
    cache: WriteCache,
    ahead: Option<ReadAhead>,
    stats: DiskStats,
}

impl Model {
    fn new(profile: &DiskProfile, size_bytes: u64) -> Model {
        Model {
            platter: Platter::new(profile, size_bytes),
            command: Duration::from_nanos(us(profile.command_us)),
            bus_ns_per_byte: 1e3 / profile.bus_mb_per_s,
            read_ahead_bytes: profile.read_ahead,
            cache_bytes: profile.write_cache,
            cache_pieces: profile.write_cache_pieces,
            honour_flush: profile.honour_flush,
            head: 0,
            arm_free: Time::ZERO,
            bus_free: Time::ZERO,
            written: Time::ZERO,
            cache: WriteCache::default(),
            ahead: None,
            stats: DiskStats::default(),
        }
    }

    /// The instant a checked request that arrives at `at` is done.
    fn request(&mut self, at: Time, request: &Request) -> Time {
        self.write_back_until(at);
        let ready = at + self.command;
        match request {
            Request::Read { offset, len } => self.read(ready, *offset, offset + *len as u64),
            Request::Write { offset, data, durable } => {
                let end = offset + data.iter().map(|part| part.len() as u64).sum::<u64>();
                let through = *durable && self.honour_flush || end - offset > self.cache_bytes;
                match through {
                    true => self.write_through(ready, *offset, end),
                    false => self.write_cached(ready, *offset, end),
                }
            }
            Request::Flush if self.honour_flush => self.flush(ready),
            Request::Flush | Request::Discard { .. } => ready,
        }
    }

    /// Takes the bus for `len` bytes, not before `ready`.
    fn bus(&mut self, ready: Time, len: u64) -> Time {
        let transfer = Duration::from_nanos((len as f64 * self.bus_ns_per_byte) as u64);
        self.bus_free = ready.max(self.bus_free) + transfer;
        self.bus_free
    }

    fn read(&mut self, ready: Time, start: u64, end: u64) -> Time {
        if self.cache.holds(start, end) {
            self.stats.read_hits += 1;
            return self.bus(ready, end - start);
        }
        match self.read_from_ahead(ready, start, end) {
            Some(done) => done,
            None => {
                let done = self.transfer(ready, start, end, false);
                self.read_on(start, end, done);
                done.max(ready + Duration::from_nanos(((end - start) as f64 * self.bus_ns_per_byte) as u64))
            }
        }
    }

    /// A read that begins in what was or is being read ahead.
    fn read_from_ahead(&mut self, ready: Time, start: u64, end: u64) -> Option<Time> {
        let ahead = self.ahead?;
        let reached = self.reached(&ahead, ready);
        if start < ahead.start || start > reached {
            return None;
        }
        if end <= reached {
            self.stats.read_hits += 1;
            self.extend(start, ready);
            return Some(self.bus(ready, end - start));
        }
        if ahead.stopped.is_some() || end > ahead.limit {
            // The rest has to be fetched by a transfer of its own.
            if start == reached {
                return None;
            }
            let done = self.transfer(ready, reached, end, false);
            self.read_on(ahead.start, end, done);
            return Some(done);
        }
        self.stats.read_hits += 1;
        let done = ahead.at + Duration::from_nanos(self.platter.stream_ns(ahead.from, end));
        self.arm_free = self.arm_free.max(done);
        self.head = end;
        self.read_on(ahead.start, end, done);
        Some(done.max(self.bus(ready, 0)))
    }

    /// The byte that reading ahead has reached by `now`.
    fn reached(&self, ahead: &ReadAhead, now: Time) -> u64 {
        let until = ahead.stopped.unwrap_or(now).min(now);
        self.platter.reached(ahead.from, until.since(ahead.at).as_nanos() as u64).min(ahead.limit)
    }

    /// Begins to read ahead after a read that ended at `end` at the instant `at`.
    fn read_on(&mut self, start: u64, end: u64, at: Time) {
        let limit = end + self.read_ahead_bytes;
        let start = start.max(end.saturating_sub(self.read_ahead_bytes));
        self.ahead = Some(ReadAhead { start, from: end, at, limit, stopped: None });
    }

    /// A hit at `start` lets reading ahead go on further; if it had come to its limit, it resumes there
    /// (after waiting for the angle) once half of what it had read is used up.
    fn extend(&mut self, start: u64, now: Time) {
        let wanted = start + self.read_ahead_bytes;
        let Some(mut ahead) = self.ahead.filter(|ahead| ahead.stopped.is_none() && wanted > ahead.limit)
        else {
            return;
        };
        if self.reached(&ahead, now) == ahead.limit {
            if wanted - ahead.limit < self.read_ahead_bytes / 2 {
                return;
            }
            ahead.from = ahead.limit;
            ahead.at = now + Duration::from_nanos(self.platter.rotate_ns(now.0, ahead.from));
        }
        ahead.limit = wanted;
        ahead.start = ahead.start.max(start.saturating_sub(self.read_ahead_bytes));
        self.ahead = Some(ahead);
    }

    fn write_cached(&mut self, ready: Time, start: u64, end: u64) -> Time {
        let mut done = self.bus(ready, end - start);
        while self.cache.bytes() + (end - start) > self.cache_bytes
            || self.cache.pieces() >= self.cache_pieces
        {
            let Some(piece) = self.cache.next(self.head) else { break };
            self.write_back(piece);
            done = done.max(self.arm_free);
        }
        self.cache.insert(Piece { start, end, since: done });
        done
    }

    fn write_through(&mut self, ready: Time, start: u64, end: u64) -> Time {
        let arrived = self.bus(ready, end - start);
        self.cache.remove(start, end);
        self.transfer(ready, start, end, true).max(arrived)
    }

    fn flush(&mut self, ready: Time) -> Time {
        self.stats.dirty_flushes += u64::from(!self.cache.is_empty());
        while let Some(piece) = self.cache.next(self.head) {
            self.write_back(piece);
        }
        ready.max(self.written)
    }

    /// What the arm wrote back in its idle time before `now`.
    fn write_back_until(&mut self, now: Time) {
        while let Some(piece) = self.cache.next(self.head) {
            if self.arm_free.max(piece.since) >= now {
                return;
            }
            self.write_back(piece);
        }
    }

    /// Writes a cached piece, one track of it at most.
    fn write_back(&mut self, piece: Piece) {
        let most = self.platter.track_bytes(piece.start);
        if let Some(piece) = self.cache.take(piece.start, most) {
            self.stats.write_backs += 1;
            self.transfer(piece.since, piece.start, piece.end, true);
        }
    }

    /// Moves the arm, waits for the angle and streams `start..end`, not before `ready`; the end of it.
    fn transfer(&mut self, ready: Time, start: u64, end: u64, write: bool) -> Time {
        let begin = ready.max(self.arm_free);
        if let Some(mut ahead) = self.ahead.filter(|ahead| ahead.stopped.is_none()) {
            self.head = self.reached(&ahead, begin);
            ahead.stopped = Some(begin);
            self.ahead = Some(ahead);
        }
        let seek = self.platter.seek_ns(self.head, start, write);
        let rotate = self.platter.rotate_ns(begin.0 + seek, start);
        let stream = self.platter.stream_ns(start, end);
        self.stats.seeks += u64::from(seek > 0);
        self.stats.seek_ns += seek;
        self.stats.rotate_ns += rotate;
        self.stats.transfer_ns += stream;
        self.head = end;
        self.arm_free = Time(begin.0 + seek + rotate + stream);
        if write {
            self.written = self.arm_free;
        }
        self.arm_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::ram::Ram;
    use crate::media::random::Random;
    use crate::media::{Gather, profile};

    const SIZE: u64 = 64 << 20;
    const TURN: u64 = 8_333_333;
    const COMMAND: u64 = 60_000;

    /// No data is kept: time alone is looked at.
    struct Void(DeviceInfo);

    impl BlockDevice for Void {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }
        fn submit(&self, at: Time, _: Request) -> Ticket {
            Ticket::Done(Completion { at, result: Ok(Bytes::new()) })
        }
        fn wait(&self, ticket: Ticket) -> Completion {
            ticket.done()
        }
        fn is_done(&self, _: &Ticket) -> bool {
            true
        }
    }

    fn disk_of(size_bytes: u64, change: impl FnOnce(&mut DiskProfile)) -> Disk {
        let mut profile = profile::load("hdd-7200").unwrap();
        change(&mut profile);
        let info = Ram::new("void", 0).info().clone();
        Disk::new(&profile, Arc::new(Void(DeviceInfo { size_bytes, ..info })))
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
}
