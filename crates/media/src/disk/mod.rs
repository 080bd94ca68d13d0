//! A simulated disk: one arm, a turning platter, a write cache and read-ahead, in virtual time.
//!
//! 1. *Idle time.* What the arm could do since the last request it did: write out cached pieces, nearest
//!    ahead first (C-LOOK), one track at most at a time, each begun before the new request arrived.
//! 2. *The command* takes its overhead. What memory answers (a write the cache has room for, a read of
//!    cached writes or of what was read ahead) takes the bus and nothing else.
//! 3. *The arm* takes the rest. Of the oldest `queue` requests that wait for it, it does next the one whose place it
//!    reaches first: seek, then the angle. One that was passed over 128 times its turn comes. A write that
//!    waits for room in memory is where the next cached piece lies. Then the transfer; then it reads ahead until
//!    something else needs it. The platter's angle follows virtual time.
//! 4. *A flush* waits until the cache is on the platter, or returns at once from a disk that lies. What came before it
//!    is done before it, what came after it after it. A durable write goes to the platter itself.
//!
//! Data lives in any other device, which holds it at once; only time is modelled here. Wrap the disk in
//! [`Crash`](super::crash) to lose what was not flushed. Left out: head switches apart from seeks, defects. Cost: O(log
//! pieces + queue) a request.

mod cache;
mod platter;
mod profile;

pub use profile::{DiskProfile, Zone};

use super::profile::us;
use super::under_way::{Simulated, UnderWay};
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check_range};
use bimetal_base::time::Time;
use bytes::Bytes;
use cache::{Piece, ReadAhead, WriteCache};
use parking_lot::Mutex;
use platter::Platter;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How often a request is passed over by others at most.
const PASSED_MAX: u32 = 128;

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

impl DiskStats {
    /// Where it went since `before`.
    pub fn since(&self, before: &DiskStats) -> DiskStats {
        DiskStats {
            seeks: self.seeks - before.seeks,
            seek_ns: self.seek_ns - before.seek_ns,
            rotate_ns: self.rotate_ns - before.rotate_ns,
            transfer_ns: self.transfer_ns - before.transfer_ns,
            read_hits: self.read_hits - before.read_hits,
            write_backs: self.write_backs - before.write_backs,
            dirty_flushes: self.dirty_flushes - before.dirty_flushes,
        }
    }
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

    fn serve(&self, at: Time, request: Request) -> Ticket {
        if let Err(error) = check_range(&self.info, &request) {
            return Ticket::Done(Completion { at, result: Err(error) });
        }
        // The storage holds everything at once; what a power cut leaves is not its business.
        let result = match request.clone() {
            Request::Flush => Ok(Bytes::new()),
            Request::Write { offset, data, .. } => {
                self.storage.run(at, Request::Write { offset, data, durable: false }).result
            }
            other => self.storage.run(at, other).result,
        };
        let mut model = self.model.lock();
        match model.request(at, &request) {
            Ok(at) => Ticket::Done(Completion { at, result }),
            Err(number) => {
                model.under_way.answer(number, result);
                Ticket::Pending(number)
            }
        }
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.serve(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => self.model.lock().wait(number),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        match ticket {
            Ticket::Done(_) => true,
            Ticket::Pending(number) => self.model.lock().under_way.is_done(*number),
        }
    }

    fn next_done(&self, until: Time) -> Option<u64> {
        self.model.lock().next_done(until)
    }

    fn next_event(&self) -> Option<Time> {
        self.model.lock().next_time()
    }

    fn keeps_contents(&self) -> bool {
        self.storage.keeps_contents()
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
    /// Requests that wait for the arm, in the order they came; so many of them the drive chooses from.
    queue: VecDeque<Queued>,
    depth: usize,
    under_way: UnderWay,
    stats: DiskStats,
}

/// A request that waits for the arm.
#[derive(Clone, Copy)]
struct Queued {
    number: u64,
    ready: Time,
    what: Wanted,
    /// How often another one was done first that came later.
    passed: u32,
}

/// What is wanted of the arm.
#[derive(Clone, Copy)]
enum Wanted {
    Read(u64, u64),
    /// To the platter itself.
    Write(u64, u64),
    /// Into memory, which was full.
    Room(u64, u64),
    Flush,
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
            queue: VecDeque::new(),
            depth: profile.queue as usize,
            under_way: UnderWay::default(),
            stats: DiskStats::default(),
        }
    }

    /// The instant a checked request that arrives at `at` is done, if memory answers it; else its number.
    fn request(&mut self, at: Time, request: &Request) -> Result<Time, u64> {
        self.go_on(at);
        if self.queue.is_empty() {
            self.write_back_until(at);
        }
        let ready = at + self.command;
        let what = match request {
            Request::Read { offset, len } => {
                let (start, end) = (*offset, offset + *len as u64);
                if self.is_here(ready, start, end) {
                    return Ok(self.read(ready, start, end));
                }
                Wanted::Read(start, end)
            }
            Request::Write { offset, data, durable } => {
                let (start, end) = (*offset, offset + data.bytes());
                let through = *durable && self.honour_flush || end - start > self.cache_bytes;
                match through {
                    true => Wanted::Write(start, end),
                    false if self.has_room(end - start) => return Ok(self.write_cached(ready, start, end)),
                    false => Wanted::Room(start, end),
                }
            }
            // Nothing to wait for.
            Request::Flush if !self.honour_flush => return Ok(ready),
            Request::Flush => Wanted::Flush,
            Request::Discard { .. } => return Ok(ready),
        };
        let number = self.under_way.begin(ready, 1);
        self.queue.push_back(Queued { number, ready, what, passed: 0 });
        Err(number)
    }

    /// Whether memory has all of a range that is to be read.
    fn is_here(&self, ready: Time, start: u64, end: u64) -> bool {
        let is_ahead =
            |ahead: &ReadAhead| start >= ahead.start && end <= self.reached(ahead, ready) && start < end;
        self.cache.holds(start, end) || self.ahead.as_ref().is_some_and(is_ahead)
    }

    fn has_room(&self, len: u64) -> bool {
        self.cache.bytes() + len <= self.cache_bytes && self.cache.pieces() < self.cache_pieces
    }

    /// The requests that the drive chooses from: the oldest, up to the first flush.
    fn choice(&self) -> impl Iterator<Item = (usize, &Queued)> {
        let queued = self.queue.iter().enumerate().take(self.depth);
        queued.take_while(|(index, queued)| *index == 0 || !matches!(queued.what, Wanted::Flush))
    }

    /// Which of them the arm does next at `now`: the one it reaches first, or one that was passed over too often.
    fn next_of_queue(&self, now: Time) -> Option<usize> {
        let head = match self.ahead.filter(|ahead| ahead.stopped.is_none()) {
            Some(ahead) => self.reached(&ahead, now),
            None => self.head,
        };
        let access = |queued: &Queued| {
            let (start, write) = match queued.what {
                Wanted::Read(start, _) => (start, false),
                Wanted::Write(start, _) => (start, true),
                Wanted::Room(..) => (self.cache.next(head).map_or(head, |piece| piece.start), true),
                Wanted::Flush => return 0,
            };
            let seek = self.platter.seek_ns(head, start, write);
            seek + self.platter.rotate_ns(now.0 + seek, start)
        };
        let (first, oldest) = self.choice().next()?;
        if oldest.passed >= PASSED_MAX || matches!(oldest.what, Wanted::Flush) {
            return Some(first);
        }
        let ready = self.choice().filter(|(_, queued)| queued.ready <= now);
        ready.min_by_key(|(_, queued)| access(queued)).map(|(index, _)| index)
    }

    /// The arm does what was chosen at `now`; who waited until then is not answered sooner, even if memory has it by now.
    fn dispatch(&mut self, index: usize, now: Time) {
        let Some(Queued { number, ready, what, .. }) = self.queue.remove(index) else { return };
        self.queue.iter_mut().take(index).for_each(|queued| queued.passed += 1);
        let done = match what {
            Wanted::Read(start, end) => self.read(ready, start, end),
            Wanted::Write(start, end) => self.write_through(ready, start, end),
            Wanted::Room(start, end) => self.write_cached(ready, start, end),
            Wanted::Flush => self.flush(ready),
        };
        self.under_way.end(number, done.max(now));
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

impl Simulated for Model {
    fn under_way(&mut self) -> &mut UnderWay {
        &mut self.under_way
    }

    /// When the arm is free for what waits for it.
    fn next_event(&mut self) -> Option<Time> {
        let first = self.choice().map(|(_, queued)| queued.ready).min()?;
        Some(first.max(self.arm_free))
    }

    fn step(&mut self) -> bool {
        let next = self.next_event().and_then(|now| Some((self.next_of_queue(now)?, now)));
        next.is_some_and(|(index, now)| {
            self.dispatch(index, now);
            true
        })
    }
}

#[cfg(test)]
mod tests;
