//! A block device with a page cache in front of it: the cache decides, this keeps the contents.
//!
//! Every policy of the registry can stand here, under a file system or an export. The promises are those of
//! [`media`](bimetal_media): a write is durable after the next flush; until then it may live in memory alone. A read
//! sees every write that completed before it.
//!
//! What the device promises about a write that fails (old, new or mixed contents) holds here for a request that fails,
//! and for no other page: a dirty page whose write-back failed stays and is tried again.
//!
//! A request is served before its ticket is returned: one that misses waits for the device inside
//! [`submit`](BlockDevice::submit). Requests are served one at a time, but for the device's own flush: while that runs,
//! others are served.
//!
//! What nobody flushed is gone when the device is dropped.
//!
//! *Placement handles*: a page is written back with the handle of the request that wrote it last, or, if that had none,
//! with [`HOT_HANDLE`] from its fourth write-back on: what comes back again and again through a cache dies soon below
//! it. A device that keeps no handles apart is told of none, and nothing is counted for it.
//!
//! Over a device that keeps no contents the cache keeps none either; then requests may begin and end at any byte.
//!
//! Cost: a copy of each page in and out, one hash look-up a page beside the cache's own; without contents, one lock.

use super::outside::{MakeOutside, build_outside};
use super::{Below, Config, PageCache, PageRequest, Resident, Stats, build};
use bimetal_base::runtime::sync::Mutex;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::completed;
use bimetal_media::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check, check_range};
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;
use serde::Serialize;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a page, unless the configuration says otherwise.
pub const PAGE_BYTES: u64 = 4096;

/// Write-backs after which a page is hot.
const HOT_WRITES: u8 = 4;
/// The placement handle of hot pages.
const HOT_HANDLE: u8 = 1;

/// The pages that a write of bytes touches, in the order in which a cache is told of them: those it replaces, then those
/// it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// All of them.
    pub all: Range<u64>,
    /// Those that it covers.
    pub whole: Range<u64>,
    /// Those that it covers in part: its first, its last, or neither.
    pub parts: SmallVec<[u64; 2]>,
}

impl Covered {
    /// By `bytes` bytes, at least one, from `offset` on; `page_bytes` is a power of two.
    pub fn by(offset: u64, bytes: u64, page_bytes: u64) -> Covered {
        let (shift, end) = (page_bytes.ilog2(), offset + bytes);
        let rounded_up = |at: u64| (at >> shift) + u64::from(at & (page_bytes - 1) != 0);
        let all = offset >> shift..rounded_up(end);
        let whole = rounded_up(offset)..end >> shift;
        let ends = [all.start, all.end - 1];
        let ends = &ends[..if all.start + 1 == all.end { 1 } else { 2 }];
        let parts = ends.iter().copied().filter(|page| !whole.contains(page)).collect();
        Covered { all, whole, parts }
    }
}

/// A block device behind a page cache.
pub struct CachedDevice {
    info: DeviceInfo,
    device: Arc<dyn BlockDevice>,
    page_bytes: u64,
    keeps_contents: bool,
    state: Mutex<State>,
}

/// What a [`CachedDevice`] says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStatus {
    /// The policy with all its options.
    pub policy: String,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The most it holds.
    pub capacity_bytes: u64,
    /// What it holds.
    pub resident_bytes: u64,
    /// What of that is not on the device.
    pub dirty_bytes: u64,
    /// Memory beside the contents.
    pub overhead_bytes: u64,
    /// The share of accesses that hit, 0 to 1.
    pub hit_ratio: f64,
    /// The counts so far, in pages.
    pub counts: Stats,
}

struct State {
    cache: Box<dyn PageCache>,
    durable_syncs: bool,
    store: Store,
}

impl CachedDevice {
    /// Puts a cache of `policy` (a name with options, as in `cflru:window=0.5`) in front of `device`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a policy or option that does not exist, or a device that is not made of whole pages.
    pub fn new(device: Arc<dyn BlockDevice>, policy: &str, config: &Config) -> Result<CachedDevice> {
        CachedDevice::with(device, config, |config| build(policy, config))
    }

    /// Puts a cache under a policy from outside in front of `device`.
    ///
    /// # Errors
    /// As [`new`](Self::new); the policy cannot be made.
    pub fn under(
        device: Arc<dyn BlockDevice>,
        policy: &dyn MakeOutside,
        config: &Config,
    ) -> Result<CachedDevice> {
        CachedDevice::with(device, config, |config| build_outside(policy, config))
    }

    fn with(
        device: Arc<dyn BlockDevice>,
        config: &Config,
        make: impl FnOnce(&Config) -> Result<Box<dyn PageCache>>,
    ) -> Result<CachedDevice> {
        let mut info = device.info().clone();
        let (page_bytes, keeps_contents) = (config.page_bytes, device.keeps_contents());
        if !page_bytes.is_power_of_two() {
            return Err(Error::invalid(format!("a page of {page_bytes} bytes: it must be a power of two")));
        }
        let divides = page_bytes.is_multiple_of(u64::from(info.block_bytes));
        if keeps_contents && !(divides && info.size_bytes.is_multiple_of(page_bytes)) {
            return Err(Error::invalid(format!(
                "{}: {} bytes in blocks of {} are not whole pages of {page_bytes} bytes",
                info.name, info.size_bytes, info.block_bytes
            )));
        }
        if !keeps_contents {
            info.block_bytes = 1;
        }
        let space = info.size_bytes.div_ceil(page_bytes);
        let cache = make(&Config { space: Some(space), ..config.clone() })?;
        info.name = format!("{} behind {}", info.name, cache.view().name);
        let store = Store {
            device: Arc::clone(&device),
            page_bytes,
            shift: page_bytes.ilog2(),
            keeps_contents,
            frames: FxHashMap::default(),
            passing: FxHashMap::default(),
            handles: (device.handles() > 1).then(Handles::default),
            owes_flush: false,
        };
        Ok(CachedDevice {
            info,
            device,
            page_bytes,
            keeps_contents,
            state: Mutex::new(State { cache, durable_syncs: config.durable_syncs, store }),
        })
    }

    /// What it holds and how well it does.
    pub fn status(&self) -> CacheStatus {
        let state = self.state.lock();
        let cache = state.cache.view();
        CacheStatus {
            policy: cache.name.to_string(),
            page_bytes: self.page_bytes,
            capacity_bytes: u64::from(cache.capacity) * self.page_bytes,
            resident_bytes: u64::from(cache.resident) * self.page_bytes,
            dirty_bytes: u64::from(cache.dirty) * self.page_bytes,
            overhead_bytes: cache.overhead_bytes as u64,
            hit_ratio: cache.stats.hit_ratio(),
            counts: *cache.stats,
        }
    }

    /// The cache's counts so far.
    pub fn stats(&self) -> Stats {
        *self.state.lock().cache.view().stats
    }

    /// How many pages it holds, and how many of them are dirty.
    pub fn held(&self) -> (u32, u32) {
        let state = self.state.lock();
        let frames = state.store.frames.len();
        debug_assert!(!state.store.keeps_contents || frames == state.cache.view().resident as usize);
        (state.cache.view().resident, state.cache.view().dirty)
    }

    /// Serves a request without contents; nothing is copied or allocated for it.
    fn serve_blind(&self, at: Time, request: &Request) -> Result<Time> {
        check_range(&self.info, request)?;
        let (served, owes_flush) = {
            let mut state = self.state.lock();
            let served = match *request {
                Request::Read { offset, len } => state.touch(at, offset, len as u64),
                Request::Write { offset, ref data, durable } => {
                    state.write(at, offset, Gather::absent(data.bytes()).placed(data.handle()), durable)
                }
                Request::Flush => state.flush(at),
                Request::Discard { offset, len } => state.discard(at, offset, len),
            };
            (served, std::mem::take(&mut state.store.owes_flush))
        };
        let at = served?;
        if !owes_flush {
            return Ok(at);
        }
        let Completion { at, result } = self.device.run(at, Request::Flush);
        result.map(|_| at)
    }

    /// Serves a request; the flush of the device that it may end with comes when others may go on.
    fn serve(&self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        check(&self.info, &request)?;
        let (served, owes_flush) = {
            let mut state = self.state.lock();
            let served = state.serve(at, request);
            (served, std::mem::take(&mut state.store.owes_flush))
        };
        let (at, bytes) = served?;
        if !owes_flush {
            return Ok((at, bytes));
        }
        let Completion { at, result } = self.device.run(at, Request::Flush);
        result.map(|_| (at, bytes))
    }

    /// Writes what has been dirty for too long, as of `at`; for an owner with a timer.
    pub fn tick(&self, at: Time) -> Result<Time> {
        let State { cache, store, .. } = &mut *self.state.lock();
        cache.serve(at, PageRequest::Tick, store)
    }
}

impl BlockDevice for CachedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn status(&self) -> Option<serde_json::Value> {
        serde_json::to_value(CachedDevice::status(self)).ok()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.run(at, request))
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        if self.keeps_contents {
            return completed(at, self.serve(at, request));
        }
        match self.serve_blind(at, &request) {
            Ok(at) => Completion { at, result: Ok(request.nothing_read()) },
            Err(error) => Completion { at, result: Err(error) },
        }
    }

    fn keeps_contents(&self) -> bool {
        self.keeps_contents
    }

    fn handles(&self) -> u8 {
        self.device.handles()
    }
}

impl State {
    fn serve(&mut self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        let result = match request {
            Request::Read { offset, len } => self.read(at, offset, len),
            Request::Write { offset, data, durable } => {
                self.write(at, offset, data, durable).map(|at| (at, Bytes::new()))
            }
            Request::Flush => self.flush(at).map(|at| (at, Bytes::new())),
            Request::Discard { offset, len } => self.discard(at, offset, len).map(|at| (at, Bytes::new())),
        };
        self.settle(result.is_ok());
        result
    }

    fn flush(&mut self, at: Time) -> Result<Time> {
        self.cache.serve(at, PageRequest::Flush, &mut self.store)
    }

    /// Brings in the pages that a read touches.
    fn touch(&mut self, at: Time, offset: u64, len: u64) -> Result<Time> {
        let (first, end) = (offset >> self.store.shift, ((offset + len - 1) >> self.store.shift) + 1);
        self.cache.serve(at, PageRequest::Read(Lpn(first), count(first, end)?), &mut self.store)
    }

    /// After a request: contents that passed by become frames where the page is resident now.
    fn settle(&mut self, succeeded: bool) {
        for (page, passing) in self.store.passing.drain() {
            let resident = self.cache.page(Lpn(page));
            let is_current = succeeded || passing.is_on_device || resident == Some(Resident::Dirty);
            if is_current && resident.is_some() {
                // A copy of its own: a slice would keep the whole request's buffer alive.
                self.store.frames.insert(page, Bytes::copy_from_slice(&passing.bytes));
            }
        }
    }

    fn read(&mut self, at: Time, offset: u64, len: usize) -> Result<(Time, Bytes)> {
        let page_bytes = self.store.page_bytes;
        let end = offset + len as u64;
        let (first, last) = (offset / page_bytes, (end - 1) / page_bytes);
        // What is resident now may have to make room for the rest of the range.
        let held: SmallVec<[Option<Bytes>; 4]> =
            (first..=last).map(|page| self.store.frames.get(&page).cloned()).collect();
        let at =
            self.cache.serve(at, PageRequest::Read(Lpn(first), count(first, last + 1)?), &mut self.store)?;
        let mut bytes = BytesMut::with_capacity(len);
        for (page, held) in (first..=last).zip(&held) {
            let start = page * page_bytes;
            let contents = match held {
                Some(contents) => contents,
                None => self.store.contents(page)?,
            };
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(page_bytes) as usize;
            bytes.extend_from_slice(&contents[from..to]);
        }
        Ok((at, bytes.freeze()))
    }

    /// Replaces the pages that the write covers, then changes those it covers in part; all of them arrive at `at`.
    fn write(&mut self, at: Time, offset: u64, data: Gather, durable: bool) -> Result<Time> {
        let page_bytes = self.store.page_bytes;
        let (end, handle) = (offset + data.bytes(), data.handle());
        let Covered { all, whole, parts } = Covered::by(offset, data.bytes(), page_bytes);
        let (first, last) = (all.start, all.end);
        if let Some(handles) = &mut self.store.handles {
            handles.told(first..last, handle);
        }
        let bytes = if self.store.keeps_contents { data.joined() } else { Bytes::new() };
        let part = |from: u64, to: u64| match bytes.is_empty() {
            true => Bytes::new(),
            false => bytes.slice((from - offset) as usize..(to - offset) as usize),
        };
        let mut done = at;
        if whole.start < whole.end {
            let data = part(whole.start * page_bytes, whole.end * page_bytes);
            done = done.max(self.replace(at, whole.clone(), data)?);
        }
        for page in parts {
            let (from, to) = (offset.max(page * page_bytes), end.min((page + 1) * page_bytes));
            done = done.max(self.change(at, from, &part(from, to))?);
        }
        if durable && self.durable_syncs {
            done = self.flush(done)?;
        } else if durable {
            done = self.cache.serve(
                done,
                PageRequest::WriteOut(Lpn(first), count(first, last)?),
                &mut self.store,
            )?;
            done = self.store.flush(done)?;
        }
        Ok(done)
    }

    /// Writes whole pages. Their new contents pass by while the cache makes room, so that whatever it writes of them is
    /// new.
    fn replace(&mut self, at: Time, pages: Range<u64>, data: Bytes) -> Result<Time> {
        if self.store.keeps_contents {
            let page_bytes = self.store.page_bytes as usize;
            for (index, page) in pages.clone().enumerate() {
                let bytes = data.slice(index * page_bytes..(index + 1) * page_bytes);
                self.store.passing.insert(page, Passing { bytes, is_on_device: false });
            }
        }
        self.cache.serve(
            at,
            PageRequest::Write(Lpn(pages.start), count(pages.start, pages.end)?),
            &mut self.store,
        )
    }

    /// Changes part of one page, which is read first if it is not there.
    fn change(&mut self, at: Time, offset: u64, data: &[u8]) -> Result<Time> {
        let page = offset / self.store.page_bytes;
        let at = self.cache.serve(at, PageRequest::Modify(Lpn(page)), &mut self.store)?;
        if self.store.keeps_contents {
            let mut contents = BytesMut::from(&self.store.contents(page)?[..]);
            let from = (offset % self.store.page_bytes) as usize;
            contents[from..from + data.len()].copy_from_slice(data);
            self.store.passing.remove(&page);
            self.store.frames.insert(page, contents.freeze());
        }
        Ok(at)
    }

    /// Discards the whole pages of a range; parts of pages keep their contents.
    fn discard(&mut self, at: Time, offset: u64, len: u64) -> Result<Time> {
        let page_bytes = self.store.page_bytes;
        let (first, end) = (offset.div_ceil(page_bytes), (offset + len) / page_bytes);
        if first >= end {
            return Ok(at);
        }
        self.cache.serve(at, PageRequest::Discard(Lpn(first), count(first, end)?), &mut self.store)
    }
}

/// How many pages there are from `first` to before `end`.
fn count(first: u64, end: u64) -> Result<u32> {
    u32::try_from(end - first)
        .map_err(|_| Error::invalid(format!("a request of {} pages is too long", end - first)))
}

/// The contents of the resident pages, and the device below them.
struct Store {
    device: Arc<dyn BlockDevice>,
    page_bytes: u64,
    /// Its logarithm.
    shift: u32,
    /// Without them `frames` and `passing` stay empty.
    keeps_contents: bool,
    frames: FxHashMap<u64, Bytes>,
    /// Contents that are on their way during a request: written by it, or read from the device for it.
    passing: FxHashMap<u64, Passing>,
    /// Over a device that keeps placement handles apart.
    handles: Option<Handles>,
    /// The request ends with a flush of the device.
    owes_flush: bool,
}

/// What is known of pages that were written; those of which nothing is may be missing.
#[derive(Default)]
struct Handles {
    /// The handle of the request that wrote each last.
    told: Vec<u8>,
    /// How often each was written back so far, up to [`HOT_WRITES`].
    written: Vec<u8>,
}

impl Handles {
    fn told(&mut self, pages: Range<u64>, handle: u8) {
        if handle != 0 && self.told.len() < pages.end as usize {
            self.told.resize(pages.end as usize, 0);
        }
        let known = pages.start.min(self.told.len() as u64)..pages.end.min(self.told.len() as u64);
        self.told[known.start as usize..known.end as usize].fill(handle);
    }

    /// The handle that a page is written back with, which is one write-back more.
    fn write_back(&mut self, page: u64) -> u8 {
        let page = page as usize;
        if self.written.len() <= page {
            self.written.resize(page + 1, 0);
        }
        let count = &mut self.written[page];
        *count = (*count + 1).min(HOT_WRITES);
        match self.told.get(page).copied().unwrap_or(0) {
            0 if *count == HOT_WRITES => HOT_HANDLE,
            told => told,
        }
    }
}

struct Passing {
    bytes: Bytes,
    is_on_device: bool,
}

impl Store {
    /// The newest contents of `page`.
    fn contents(&self, page: u64) -> Result<&Bytes> {
        let passing = self.passing.get(&page).map(|passing| &passing.bytes);
        passing.or_else(|| self.frames.get(&page)).ok_or_else(|| {
            let name = &self.device.info().name;
            Error::corrupt("the page cache", "a page without contents", format!("{name}, page {page}"))
        })
    }

    /// The first byte of a run of pages, and their bytes; the last page may end behind the device.
    fn extent(&self, first: u64, count: u32) -> (u64, u64) {
        let offset = first * self.page_bytes;
        let left = self.device.info().size_bytes.saturating_sub(offset);
        (offset, (u64::from(count) * self.page_bytes).min(left))
    }

    /// Writes pages under one handle, one command.
    fn write_run(&mut self, at: Time, pages: Range<u64>, handle: u8) -> Result<Time> {
        let (offset, len) = self.extent(pages.start, (pages.end - pages.start) as u32);
        let data: Gather = match self.keeps_contents {
            true => pages.clone().map(|page| self.contents(page).cloned()).collect::<Result<_>>()?,
            false => Gather::absent(len),
        };
        let (at, _) = self.run(at, Request::Write { offset, data: data.placed(handle), durable: false })?;
        for page in pages.filter(|_| self.keeps_contents) {
            if let Some(passing) = self.passing.get_mut(&page) {
                passing.is_on_device = true;
            }
        }
        Ok(at)
    }

    fn run(&self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        let Completion { at, result } = self.device.run(at, request);
        result.map(|bytes| (at, bytes))
    }
}

impl Below for Store {
    fn read(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let (offset, len) = self.extent(first.0, count);
        let (at, bytes) = self.run(at, Request::Read { offset, len: len as usize })?;
        for page in (0..u64::from(count)).filter(|_| self.keeps_contents) {
            let from = (page * self.page_bytes) as usize;
            let bytes = bytes.slice(from..from + self.page_bytes as usize);
            let passing = Passing { bytes, is_on_device: true };
            self.passing.entry(first.0 + page).or_insert(passing);
        }
        Ok(at)
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let mut pages = first.0..first.0 + u64::from(count);
        let Some(handles) = &mut self.handles else { return self.write_run(at, pages, 0) };
        let each: SmallVec<[u8; 8]> = pages.clone().map(|page| handles.write_back(page)).collect();
        let mut done = at;
        for alike in each.chunk_by(|a, b| a == b) {
            let end = pages.start + alike.len() as u64;
            done = done.max(self.write_run(at, pages.start..end, alike[0])?);
            pages.start = end;
        }
        Ok(done)
    }

    fn flush(&mut self, at: Time) -> Result<Time> {
        self.owes_flush = true;
        Ok(at)
    }

    fn discard(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let (offset, len) = self.extent(first.0, count);
        self.run(at, Request::Discard { offset, len }).map(|(at, _)| at)
    }

    fn dropped(&mut self, page: Lpn) {
        if self.keeps_contents {
            self.frames.remove(&page.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_ftl::device::FtlDevice;
    use bimetal_media::nand::{Nand, Payload};
    use bimetal_media::{counted::Counted, profile, void::Void};

    fn cached(handles: &str) -> (Arc<dyn BlockDevice>, Arc<FtlDevice>) {
        let nand = Nand::new(profile::load("slc-4k").unwrap(), 1, false, Payload::None);
        let flash = Arc::new(FtlDevice::new(bimetal_ftl::open("page", nand, handles).unwrap()));
        (Arc::new(CachedDevice::new(flash.clone(), "lru", &Config::new(4)).unwrap()), flash)
    }

    fn write(device: &dyn BlockDevice, (offset, len): (u64, u64), durable: bool, handle: u8) {
        let data = Gather::absent(len).placed(handle);
        device.run(Time::ZERO, Request::Write { offset, data, durable }).result.unwrap();
    }

    #[test]
    fn without_contents_parts_of_pages_are_read_first_and_whole_ones_are_not() {
        let counted = Arc::new(Counted::new(Arc::new(Void::new("void", 5 * 4096 - 1000, 1))));
        let device: &dyn BlockDevice = &CachedDevice::new(counted.clone(), "lru", &Config::new(8)).unwrap();
        let done = || (counted.counts().reads, counted.counts().writes);
        write(device, (4096, 8192), false, 0);
        write(device, (100, 8000), false, 0);
        assert_eq!(done(), (1, 0), "page 0; page 1 was there");
        write(device, (10_000, 10), false, 0);
        assert_eq!(done(), (1, 0), "page 2 was there");
        // What must be durable is written at once, and nothing else.
        write(device, (4096, 4096), true, 0);
        assert_eq!(done(), (1, 1));
        device.flush().unwrap();
        assert_eq!((done(), counted.counts().write_bytes), ((1, 3), 3 * 4096));
        // The last page ends where the device does.
        write(device, (4 * 4096 + 100, 96), false, 0);
        device.flush().unwrap();
        assert_eq!((done(), counted.counts().read_bytes), ((2, 4), 4096 + 3096));
        assert_eq!(device.read(0, 300).unwrap(), vec![0; 300]);
        write(device, (0, 4096), false, 0);
        device.run(Time::ZERO, Request::Discard { offset: 0, len: 4096 }).result.unwrap();
        device.flush().unwrap();
        assert_eq!(done(), (2, 4));
    }

    #[test]
    fn pages_are_written_back_with_the_handle_of_their_last_request_or_as_hot() {
        for (handles, apart) in [("handles=1", false), ("handles=2", true)] {
            let (device, flash) = cached(handles);
            write(&*device, (0, 4096), false, 1);
            write(&*device, (4096, 8192), false, 0);
            device.flush().unwrap();
            let block = |page| flash.block_of(Lpn(page)).unwrap();
            assert_eq!(block(0) != block(1), apart, "{handles}");
            assert_eq!(block(1), block(2));
            for _ in 0..3 {
                write(&*device, (4096, 4096), false, 0);
                device.flush().unwrap();
            }
            assert_eq!(block(1) != block(2), apart, "{handles}");
        }
    }

    #[test]
    fn a_write_without_its_bytes_does_not_reach_a_device_that_keeps_them() {
        let ram = Arc::new(bimetal_media::ram::Ram::from_bytes("ram", vec![7; 65536]));
        let device: &dyn BlockDevice = &CachedDevice::new(ram, "lru", &Config::new(4)).unwrap();
        let write = Request::Write { offset: 0, data: Gather::absent(4096), durable: true };
        let why = device.run(Time::ZERO, write).result.unwrap_err().to_string();
        assert!(why.contains("without its bytes"), "{why}");
        assert_eq!(device.read(0, 4096).unwrap(), vec![7; 4096]);
    }
}
