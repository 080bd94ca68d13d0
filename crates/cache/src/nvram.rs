//! A write cache in non-volatile memory above a block device: it takes the writes to hot blocks, and they are
//! safe there as soon as they are written.
//!
//! Which blocks: named by the layer above ([`NvramCache::write_absorbed`], as a file system does for its own
//! metadata), in given ranges, named by somebody who watches what is written ([`Select`]), or written again and again
//! ([`Admission::Heat`]); and whatever the memory holds already.
//! When it is full, the block written least recently goes to the device.
//!
//! The memory is a row of records: a tag (block, number of the write, checksum of both and of the bytes), then
//! the bytes of one block. A write takes an unused record: bytes, then tag, then the tag of the block's old
//! record is cleared. So a power cut at any word leaves the old version or the new one, and opening the cache
//! again is reading all tags. A block is written to the device durably before its record is cleared.
//!
//! Cost: one lock, O(1) a block, O(log n) for the order of writes.

use bimetal_base::checksum::crc32c_raw;
use bimetal_base::runtime::sync::Mutex;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Lane;
use bimetal_media::nvram::{Nvram, WORD_BYTES};
use bimetal_media::{
    BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check, check_range, completed,
};
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a tag: block, number of the write, checksum with [`IN_USE`]; a word each.
const TAG_BYTES: usize = 24;
/// Set in the last word of a tag; a record is unused when that word is zero.
const IN_USE: u64 = 1 << 32;

/// What the cache takes or leaves, at least, bytes.
const BLOCK_BYTES_MIN: u32 = 512;

/// Which writes the cache takes by itself.
pub enum Admission {
    /// None but those it is told to.
    Told,
    /// Those to these ranges of bytes.
    Ranges(Vec<Range<u64>>),
    /// Those to the blocks that this names.
    Selected(Box<dyn Select>),
    /// Those to blocks that were written so often within so many writes.
    Heat {
        /// Writes that make a block hot.
        writes: u32,
        /// Block writes within which they must fall.
        within: u64,
    },
}

/// Somebody who knows from what is written which blocks are hot.
pub trait Select: Send {
    /// Whether the cache takes writes to `block`.
    fn takes(&self, block: u64) -> bool;

    /// `block` was written.
    fn written(&mut self, block: u64, bytes: &[u8]);
}

/// What the cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AbsorbCounts {
    /// Blocks written to the memory.
    pub absorbed: u64,
    /// Of those, blocks that were there already.
    pub overwritten: u64,
    /// Blocks passed on to the device at once.
    pub passed: u64,
    /// Blocks moved from the memory to the device.
    pub written_back: u64,
}

/// A block device with a non-volatile write cache.
pub struct NvramCache {
    info: DeviceInfo,
    below: Arc<dyn BlockDevice>,
    block: usize,
    state: Mutex<State>,
}

struct State {
    nvram: Nvram,
    /// When it is in use: one access after the other.
    lane: Lane,
    choice: Admission,
    /// Bytes of a block.
    block: usize,
    /// The record of each block here.
    records: FxHashMap<u64, Record>,
    /// Blocks by their last write.
    order: BTreeMap<u64, u64>,
    unused: Vec<usize>,
    /// The number of the last write.
    sequence: u64,
    /// How often blocks were written lately, and when last; kept for [`Choice::Heat`].
    heat: FxHashMap<u64, (u32, u64)>,
    writes: u64,
    counts: AbsorbCounts,
}

#[derive(Clone, Copy)]
struct Record {
    index: usize,
    sequence: u64,
    /// The placement handle that it was written with; not remembered over power loss.
    handle: u8,
}

impl NvramCache {
    /// Opens the cache that `nvram` holds (a memory of zeros: none yet) above `below`.
    ///
    /// Fails with [`Error::Invalid`] if not even two blocks fit into the memory.
    pub fn open(below: Arc<dyn BlockDevice>, nvram: Nvram, choice: Admission) -> Result<NvramCache> {
        let mut info = below.info().clone();
        info.block_bytes = info.block_bytes.max(BLOCK_BYTES_MIN);
        info.size_bytes -= info.size_bytes % u64::from(info.block_bytes);
        let block = info.block_bytes as usize;
        let count = nvram.size_bytes() / (TAG_BYTES + block);
        if count < 2 {
            return Err(Error::invalid(format!(
                "a write cache of {} bytes holds no two blocks of {block} bytes",
                nvram.size_bytes()
            )));
        }
        let choice = match choice {
            Admission::Ranges(ranges) => Admission::Ranges(in_order(ranges)),
            other => other,
        };
        let mut state = State {
            nvram,
            lane: Lane::default(),
            choice,
            block,
            records: FxHashMap::default(),
            order: BTreeMap::new(),
            unused: Vec::new(),
            sequence: 0,
            heat: FxHashMap::default(),
            writes: 0,
            counts: AbsorbCounts::default(),
        };
        state.find_records(count)?;
        Ok(NvramCache { info, below, block, state: Mutex::new(state) })
    }

    /// What it did so far.
    pub fn counts(&self) -> AbsorbCounts {
        self.state.lock().counts
    }

    /// Blocks in the memory.
    pub fn blocks(&self) -> usize {
        self.state.lock().records.len()
    }

    /// Writes whole blocks to the memory, whatever the choice says; when they are safe there.
    ///
    /// Fails as the device does when a block must make room, and with [`Error::Gone`] without power.
    pub fn write_absorbed(&self, at: Time, offset: u64, data: &[u8]) -> Result<Time> {
        let whole = Request::Read { offset, len: data.len() };
        check(&self.info, &whole)?;
        let mut state = self.state.lock();
        let mut now = at;
        for (index, bytes) in data.chunks(self.block).enumerate() {
            let block = offset / self.block as u64 + index as u64;
            now = state.absorb(now, block, (bytes, 0), &*self.below)?;
        }
        Ok(now)
    }

    /// Moves all blocks to the device; when they are there.
    pub fn write_back(&self, at: Time) -> Result<Time> {
        let mut state = self.state.lock();
        let mut now = at;
        while let Some((_, &block)) = state.order.first_key_value() {
            now = state.evict(now, block, &*self.below)?;
        }
        Ok(now)
    }

    /// Plans a power cut in the write of the `count`-th word from now.
    pub fn cut_power_in(&self, count: u64) {
        self.state.lock().nvram.cut_power_in(count);
    }

    /// Gives up everything but the device and the memory, as power loss does.
    pub fn into_parts(self) -> (Arc<dyn BlockDevice>, Nvram) {
        (self.below, self.state.into_inner().nvram)
    }

    fn serve(&self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        match self.below.keeps_contents() {
            true => check(&self.info, &request)?,
            false => check_range(&self.info, &request)?,
        }
        match request {
            Request::Read { offset, len } => self.read(at, offset, len),
            Request::Write { offset, data, durable } => {
                self.write(at, offset, data, durable).map(|done| (done, Bytes::new()))
            }
            Request::Discard { offset, len } => {
                let block = self.block as u64;
                let mut state = self.state.lock();
                let mut forgotten = at;
                for block in offset / block..(offset + len) / block {
                    forgotten = state.forget(forgotten, block)?;
                }
                drop(state);
                let (done, bytes) = run(&*self.below, at, Request::Discard { offset, len })?;
                Ok((done.max(forgotten), bytes))
            }
            // The memory is safe already.
            Request::Flush => run(&*self.below, at, Request::Flush),
        }
    }

    fn read(&self, at: Time, offset: u64, len: usize) -> Result<(Time, Bytes)> {
        let first = offset / self.block as u64;
        let mut state = self.state.lock();
        let here = |state: &State, index: usize| state.records.contains_key(&(first + index as u64));
        let count = len / self.block;
        let mut bytes = BytesMut::zeroed(len);
        let (mut done, mut fetched) = (at, at);
        if !(0..count).all(|index| here(&state, index)) {
            let (read, below) = run(&*self.below, at, Request::Read { offset, len })?;
            done = read;
            bytes.copy_from_slice(&below);
        }
        for (index, target) in bytes.chunks_mut(self.block).enumerate() {
            if let Some(record) = state.records.get(&(first + index as u64)).copied() {
                fetched = state.fetch(fetched, record, target)?;
            }
        }
        Ok((done.max(fetched), bytes.freeze()))
    }

    /// Writes run by run: what is absorbed, and what is passed on.
    fn write(&self, at: Time, offset: u64, data: Gather, durable: bool) -> Result<Time> {
        let (handle, data) = (data.handle(), data.joined());
        let block_bytes = self.block as u64;
        let first = offset / block_bytes;
        let count = data.len() / self.block;
        let mut state = self.state.lock();
        let taken: Vec<bool> = (0..count).map(|index| state.takes(first + index as u64)).collect();
        let (mut done, mut from) = (at, 0);
        while from < count {
            let run_len = taken[from..].iter().take_while(|took| **took == taken[from]).count();
            let bytes = data.slice(from * self.block..(from + run_len) * self.block);
            if taken[from] {
                let mut now = at;
                for (index, bytes) in bytes.chunks(self.block).enumerate() {
                    let block = first + (from + index) as u64;
                    now = state.absorb(now, block, (bytes, handle), &*self.below)?;
                }
                done = done.max(now);
            } else {
                state.counts.passed += run_len as u64;
                let offset = (first + from as u64) * block_bytes;
                let data = Gather::from_iter([bytes]).placed(handle);
                done = done.max(run(&*self.below, at, Request::Write { offset, data, durable })?.0);
            }
            from += run_len;
        }
        if let Admission::Selected(select) = &mut state.choice {
            for (index, bytes) in data.chunks(self.block).enumerate() {
                select.written(first + index as u64, bytes);
            }
        }
        Ok(done)
    }
}

impl State {
    /// Reads all tags.
    fn find_records(&mut self, count: usize) -> Result<()> {
        for index in 0..count {
            let (bytes, _) = self.nvram.read(Time::ZERO, self.start(index), TAG_BYTES + self.block)?;
            let (tag, data) = bytes.split_at(TAG_BYTES);
            let Some((block, sequence)) = read_tag(tag, data) else {
                self.unused.push(index);
                continue;
            };
            self.sequence = self.sequence.max(sequence);
            let old = match self.records.get(&block) {
                Some(other) if other.sequence > sequence => Some(index),
                other => {
                    let old = other.map(|record| record.index);
                    self.records.insert(block, Record { index, sequence, handle: 0 });
                    old
                }
            };
            if let Some(old) = old {
                self.clear(Time::ZERO, old)?;
            }
        }
        // That was while it was opened: nobody waits for it.
        self.lane = Lane::default();
        self.order = self.records.iter().map(|(block, record)| (record.sequence, *block)).collect();
        Ok(())
    }

    /// Whether the cache takes a write to `block`, which counts as one.
    fn takes(&mut self, block: u64) -> bool {
        self.writes += 1;
        let chosen = match &self.choice {
            Admission::Told => false,
            Admission::Selected(select) => select.takes(block),
            Admission::Ranges(ranges) => {
                let (start, end) = (block * self.block as u64, (block + 1) * self.block as u64);
                let after = ranges.partition_point(|range| range.start <= start);
                ranges[..after].last().is_some_and(|range| end <= range.end)
            }
            &Admission::Heat { writes, within } => {
                let (count, last) = self.heat.get(&block).copied().unwrap_or((0, self.writes));
                let count = if self.writes - last > within { 1 } else { count + 1 };
                self.heat.insert(block, (count, self.writes));
                self.forget_cold(within);
                count >= writes
            }
        };
        chosen || self.records.contains_key(&block)
    }

    /// Drops what was not written lately from the table of heat, now and then.
    fn forget_cold(&mut self, within: u64) {
        if self.writes.is_multiple_of(within.max(1)) {
            let now = self.writes;
            self.heat.retain(|_, (_, last)| now - *last <= within);
        }
    }

    /// When an access that arrives at `at` is done, if it takes as long as from the beginning of time to `took`.
    fn occupy(&mut self, at: Time, took: Time) -> Time {
        Time(self.lane.take(at.0, took.0) + took.0)
    }

    /// Writes a block, under its placement handle, to the memory; when it is safe.
    fn absorb(
        &mut self,
        at: Time,
        block: u64,
        (bytes, handle): (&[u8], u8),
        below: &dyn BlockDevice,
    ) -> Result<Time> {
        let old = self.records.get(&block).copied();
        let mut now = at;
        // One record stays unused, so that a block can be overwritten.
        if old.is_none() && self.unused.len() < 2 {
            let coldest = self.order.first_key_value().map(|(_, block)| *block);
            if let Some(coldest) = coldest {
                now = self.evict(now, coldest, below)?;
            }
        }
        let Some(index) = self.unused.pop() else {
            return Err(Error::NoSpace("in the non-volatile write cache"));
        };
        self.sequence += 1;
        let start = self.start(index);
        let took = self.nvram.write(Time::ZERO, start + TAG_BYTES, bytes)?;
        let took = self.nvram.write(took, start, &tag(block, self.sequence, bytes))?;
        now = self.occupy(now, took);
        self.records.insert(block, Record { index, sequence: self.sequence, handle });
        self.order.insert(self.sequence, block);
        self.counts.absorbed += 1;
        if let Some(old) = old {
            self.counts.overwritten += 1;
            self.order.remove(&old.sequence);
            now = self.clear(now, old.index)?;
        }
        Ok(now)
    }

    /// Where a record begins.
    fn start(&self, index: usize) -> usize {
        index * (TAG_BYTES + self.block)
    }

    /// Makes a record unused.
    fn clear(&mut self, at: Time, index: usize) -> Result<Time> {
        let took = self.nvram.write(Time::ZERO, self.start(index) + 16, &[0; WORD_BYTES])?;
        self.unused.push(index);
        Ok(self.occupy(at, took))
    }

    /// Copies a record's bytes.
    fn fetch(&mut self, at: Time, record: Record, target: &mut [u8]) -> Result<Time> {
        let (bytes, took) = self.nvram.read(Time::ZERO, self.start(record.index) + TAG_BYTES, self.block)?;
        target.copy_from_slice(bytes);
        Ok(self.occupy(at, took))
    }

    /// Moves a block to the device; when it is there.
    fn evict(&mut self, at: Time, block: u64, below: &dyn BlockDevice) -> Result<Time> {
        let Some(record) = self.records.get(&block).copied() else { return Ok(at) };
        let mut bytes = BytesMut::zeroed(self.block);
        let now = self.fetch(at, record, &mut bytes)?;
        let offset = block * self.block as u64;
        let data = Gather::from_iter([bytes.freeze()]).placed(record.handle);
        let (now, _) = run(below, now, Request::Write { offset, data, durable: true })?;
        self.counts.written_back += 1;
        self.records.remove(&block);
        self.order.remove(&record.sequence);
        self.clear(now, record.index)
    }

    /// Drops a block that is of no use any more; when it is dropped.
    fn forget(&mut self, at: Time, block: u64) -> Result<Time> {
        let Some(record) = self.records.remove(&block) else { return Ok(at) };
        self.order.remove(&record.sequence);
        self.clear(at, record.index)
    }
}

/// Ranges sorted, and those that touch as one.
fn in_order(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// The tag of a record.
fn tag(block: u64, sequence: u64, bytes: &[u8]) -> [u8; TAG_BYTES] {
    let mut tag = [0; TAG_BYTES];
    tag[..8].copy_from_slice(&block.to_le_bytes());
    tag[8..16].copy_from_slice(&sequence.to_le_bytes());
    let sum = checksum(&tag[..16], bytes);
    tag[16..].copy_from_slice(&sum.to_le_bytes());
    tag
}

/// Block and number of the write of a record; none if it is unused or torn.
fn read_tag(tag: &[u8], bytes: &[u8]) -> Option<(u64, u64)> {
    let word = |from: usize| tag.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (block, sequence, sum) = (word(0)?, word(8)?, word(16)?);
    (sum == checksum(&tag[..16], bytes)).then_some((block, sequence))
}

/// The last word of a tag.
fn checksum(head: &[u8], bytes: &[u8]) -> u64 {
    u64::from(crc32c_raw(crc32c_raw(!0, head), bytes)) | IN_USE
}

/// Runs a request on the device.
fn run(device: &dyn BlockDevice, at: Time, request: Request) -> Result<(Time, Bytes)> {
    let Completion { at, result } = device.run(at, request);
    result.map(|bytes| (at, bytes))
}

impl BlockDevice for NvramCache {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.run(at, request))
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        completed(at, self.serve(at, request))
    }

    fn handles(&self) -> u8 {
        self.below.handles()
    }

    fn keeps_contents(&self) -> bool {
        self.below.keeps_contents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::nvram::NvramProfile;
    use bimetal_media::profile;
    use bimetal_media::ram::Ram;
    use bimetal_media::void::Void;
    use proptest::prelude::*;

    /// A memory for so many blocks above a device of 64.
    fn parts(blocks: usize) -> (Arc<dyn BlockDevice>, Nvram) {
        let profile: NvramProfile = profile::load("feram").unwrap();
        (Arc::new(Ram::new("ram", 64 * 512)), Nvram::new(profile, blocks * (TAG_BYTES + 512)))
    }

    fn in_range(blocks: Range<u64>) -> Admission {
        Admission::Ranges(std::iter::once(blocks.start * 512..blocks.end * 512).collect())
    }

    fn open(blocks: usize, choice: Admission) -> NvramCache {
        let (below, nvram) = parts(blocks);
        NvramCache::open(below, nvram, choice).unwrap()
    }

    fn write(cache: &NvramCache, block: u64, value: u8) -> Result<Bytes> {
        let data = Gather::from_iter([Bytes::from(vec![value; 512])]);
        cache.run(Time::ZERO, Request::Write { offset: block * 512, data, durable: true }).result
    }

    fn value(device: &dyn BlockDevice, block: u64) -> u8 {
        device.read(block * 512, 512).unwrap()[0]
    }

    #[test]
    fn writes_to_the_ranges_stay_in_memory_until_they_make_room() {
        let cache = open(4, in_range(0..8));
        (0..3).for_each(|block| drop(write(&cache, block, 10 + block as u8).unwrap()));
        write(&cache, 20, 7).unwrap();
        assert_eq!([0, 1, 20].map(|block| value(&*cache.below, block)), [0, 0, 7]);
        write(&cache, 0, 30).unwrap();
        write(&cache, 5, 40).unwrap();
        assert_eq!([0, 1, 2, 5].map(|block| value(&*cache.below, block)), [0, 11, 0, 0], "1 made room");
        assert_eq!([0, 1, 2, 5].map(|block| value(&cache, block)), [30, 11, 12, 40]);
        let counts = AbsorbCounts { absorbed: 5, overwritten: 1, passed: 1, written_back: 1 };
        assert_eq!(cache.counts(), counts);
        cache.write_back(Time::ZERO).unwrap();
        assert_eq!([0, 2, 5].map(|block| value(&*cache.below, block)), [30, 12, 40]);
        assert_eq!(cache.blocks(), 0);
    }

    #[test]
    fn a_request_across_the_edge_of_a_range_is_split() {
        let cache = open(8, in_range(1..3));
        let data: Vec<u8> = (0..5).flat_map(|block| vec![block + 1; 512]).collect();
        (&cache as &dyn BlockDevice).write(0, data.clone()).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|block| value(&*cache.below, block)), [1, 0, 0, 4, 5]);
        assert_eq!((&cache as &dyn BlockDevice).read(0, 5 * 512).unwrap(), data);
        cache.run(Time::ZERO, Request::Discard { offset: 512, len: 512 }).result.unwrap();
        assert_eq!([1, 2].map(|block| value(&cache, block)), [0, 3]);
    }

    #[test]
    fn ranges_may_come_in_any_order_and_overlap() {
        let ranges = [4096..6144, 0..512, 512..1024, 5000..5632].to_vec();
        let cache = open(8, Admission::Ranges(ranges));
        (0..14).for_each(|block| drop(write(&cache, block, 1).unwrap()));
        let absorbed: Vec<u64> = (0..14).filter(|block| value(&*cache.below, *block) == 0).collect();
        assert_eq!(absorbed, [0, 1, 8, 9, 10, 11]);
    }

    #[test]
    fn blocks_written_again_soon_are_hot() {
        let cache = open(8, Admission::Heat { writes: 3, within: 6 });
        for round in 0..4 {
            write(&cache, 1, round).unwrap();
            write(&cache, 10 + u64::from(round), 1).unwrap();
            write(&cache, 20 + u64::from(round), 1).unwrap();
        }
        assert_eq!((value(&*cache.below, 1), value(&cache, 1)), (1, 3), "from the third on");
        for at in 0..10 {
            write(&cache, 30, at).unwrap();
            (0..7).for_each(|other| drop(write(&cache, 40 + other, 1).unwrap()));
        }
        assert_eq!(value(&*cache.below, 30), 9, "never twice within six writes");
    }

    #[test]
    fn an_absorbed_write_takes_the_memorys_time() {
        let cache = open(8, Admission::Told);
        let done = cache.write_absorbed(Time(1000), 512, &[1; 512]).unwrap();
        assert_eq!(done, Time(1000 + (512 + 24) * 55));
        let again = cache.write_absorbed(done, 512, &[2; 512]).unwrap();
        assert_eq!(again, done + std::time::Duration::from_nanos((512 + 24 + 8) * 55));
        assert!(cache.write_absorbed(Time(0), 64 * 512, &[0; 512]).is_err());
        let (below, nvram) = parts(1);
        assert!(NvramCache::open(below, nvram, Admission::Told).is_err());
    }

    #[test]
    fn one_access_after_the_other_has_the_memory() {
        let cache = open(8, in_range(0..64));
        let data = |blocks: usize| Gather::from_iter([Bytes::from(vec![1; blocks * 512])]);
        let write = |at, block: u64, blocks: usize| {
            cache.run(at, Request::Write { offset: block * 512, data: data(blocks), durable: false }).at
        };
        let one = write(Time(1000), 0, 1).0 - 1000;
        assert_eq!(write(Time(1000), 1, 1), Time(1000 + 2 * one), "the second waits for the first");
        assert_eq!(write(Time(1_000_000), 2, 4), Time(1_000_000 + 4 * one));
        let read = |at, blocks: usize| cache.run(at, Request::Read { offset: 0, len: blocks * 512 }).at;
        let short = read(Time(2_000_000), 1).0 - 2_000_000;
        assert_eq!(read(Time(3_000_000), 4).0 - 3_000_000, 4 * short);
        assert!(cache.run(Time(4_000_000), Request::Discard { offset: 0, len: 512 }).at > Time(4_000_000));
    }

    #[test]
    fn what_makes_room_keeps_its_placement_handle() {
        struct Handles(Mutex<Vec<u8>>, Void);
        impl BlockDevice for Handles {
            fn info(&self) -> &DeviceInfo {
                self.1.info()
            }
            fn handles(&self) -> u8 {
                3
            }
            fn submit(&self, at: Time, request: Request) -> Ticket {
                if let Request::Write { data, .. } = &request {
                    self.0.lock().push(data.handle());
                }
                self.1.submit(at, request)
            }
        }
        let device = Arc::new(Handles(Mutex::default(), Void::new("void", 64 * 512, 512)));
        let (_, nvram) = parts(8);
        let cache = NvramCache::open(device.clone(), nvram, in_range(0..64)).unwrap();
        for block in 0..6u64 {
            let data = Gather::from_iter([Bytes::from(vec![1; 512])]).placed(block as u8 % 3);
            cache
                .run(Time::ZERO, Request::Write { offset: block * 512, data, durable: false })
                .result
                .unwrap();
        }
        cache.write_back(Time::ZERO).unwrap();
        assert_eq!(*device.0.lock(), [0, 1, 2, 0, 1, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn an_acknowledged_write_survives_a_power_cut_at_any_word(
            writes in proptest::collection::vec((0u64..12, 0u64..400), 1..120), blocks in 2usize..9
        ) {
            let mut cache = open(blocks, in_range(0..8));
            let mut last = [0; 12];
            for (number, (block, cut)) in writes.into_iter().enumerate() {
                let new = (number % 250 + 1) as u8;
                // Now and then the power goes some words later.
                if cut < 100 {
                    cache.cut_power_in(cut + 1);
                }
                match write(&cache, block, new) {
                    Ok(_) => last[block as usize] = new,
                    Err(_) => {
                        let (below, mut nvram) = cache.into_parts();
                        nvram.power_on();
                        let choice = in_range(0..8);
                        cache = NvramCache::open(below, nvram, choice).unwrap();
                        let shown = value(&cache, block);
                        prop_assert!(shown == new || shown == last[block as usize]);
                        last[block as usize] = shown;
                    }
                }
                cache.state.lock().nvram.power_on();
                for block in 0..12 {
                    prop_assert_eq!(value(&cache, block), last[block as usize]);
                }
            }
        }
    }
}
