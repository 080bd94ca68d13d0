//! A block device with a page cache in front of it: the cache decides, this keeps the contents.
//!
//! Every policy of the registry can stand here, under a file system or an export. The promises are those of
//! [`media`](crate::media): a write is durable after the next flush; until then it may live in memory alone. A read
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
//! Cost: a copy of each page in and out, one hash look-up a page beside the cache's own.

use super::{Below, Config, PageCache, Stats, build};
use crate::media::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket};
use crate::runtime::sync::Mutex;
use crate::time::Time;
use crate::units::Lpn;
use crate::{Error, Result};
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;
use serde::Serialize;
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// A block device behind a page cache.
pub struct CachedDevice {
    info: DeviceInfo,
    device: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

/// What a [`CachedDevice`] says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStatus {
    /// The policy with all its options.
    pub policy: String,
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
    store: Store,
}

impl CachedDevice {
    /// Puts a cache of `policy` (a name with options, as in `cflru:window=0.5`) in front of `device`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a policy or option that does not exist, or a device that is not made of whole pages.
    pub fn new(device: Arc<dyn BlockDevice>, policy: &str, config: &Config) -> Result<CachedDevice> {
        let mut info = device.info().clone();
        let divides = PAGE_BYTES.is_multiple_of(u64::from(info.block_bytes));
        if !divides || !info.size_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::invalid(format!(
                "{}: {} bytes in blocks of {} are not whole pages of {PAGE_BYTES} bytes",
                info.name, info.size_bytes, info.block_bytes
            )));
        }
        let space = Some(info.size_bytes / PAGE_BYTES);
        let cache = build(policy, &Config { space, ..config.clone() })?;
        info.name = format!("{} behind {}", info.name, cache.name());
        let store = Store {
            device: Arc::clone(&device),
            frames: FxHashMap::default(),
            passing: FxHashMap::default(),
            written: Vec::new(),
            owes_flush: false,
        };
        Ok(CachedDevice { info, device, state: Mutex::new(State { cache, store }) })
    }

    /// What it holds and how well it does.
    pub fn status(&self) -> CacheStatus {
        let State { cache, .. } = &*self.state.lock();
        CacheStatus {
            policy: cache.name().to_string(),
            capacity_bytes: u64::from(cache.capacity()) * PAGE_BYTES,
            resident_bytes: u64::from(cache.resident()) * PAGE_BYTES,
            dirty_bytes: u64::from(cache.dirty()) * PAGE_BYTES,
            overhead_bytes: cache.overhead_bytes() as u64,
            hit_ratio: cache.stats().hit_ratio(),
            counts: *cache.stats(),
        }
    }

    /// The cache's counts so far.
    pub fn stats(&self) -> Stats {
        *self.state.lock().cache.stats()
    }

    /// How many pages it holds, and how many of them are dirty.
    pub fn held(&self) -> (u32, u32) {
        let state = self.state.lock();
        debug_assert_eq!(state.store.frames.len(), state.cache.resident() as usize);
        (state.cache.resident(), state.cache.dirty())
    }

    /// Serves a request; the flush of the device that it may end with comes when others may go on.
    fn serve(&self, at: Time, request: Request) -> Result<(Time, Bytes)> {
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
        let State { cache, store } = &mut *self.state.lock();
        cache.tick(at, store)
    }
}

impl BlockDevice for CachedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn status(&self) -> Option<serde_json::Value> {
        serde_json::to_value(CachedDevice::status(self)).ok()
    }

    fn place(&self, offset: u64, len: u64, handle: u8) {
        self.device.place(offset, len, handle);
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let served = crate::media::check(&self.info, &request).and_then(|()| self.serve(at, request));
        Ticket::Done(match served {
            Ok((at, bytes)) => Completion { at, result: Ok(bytes) },
            Err(error) => Completion { at, result: Err(error) },
        })
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => unreachable!("ticket {number} is not of this device"),
        }
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

impl State {
    fn serve(&mut self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        let result = match request {
            Request::Read { offset, len } => self.read(at, offset, len),
            Request::Write { offset, data, durable } => {
                self.write(at, offset, data, durable).map(|at| (at, Bytes::new()))
            }
            Request::Flush => self.cache.flush(at, &mut self.store).map(|at| (at, Bytes::new())),
            Request::Discard { offset, len } => self.discard(at, offset, len).map(|at| (at, Bytes::new())),
        };
        self.settle(result.is_ok());
        result
    }

    /// After a request: contents that passed by become frames where the page is resident now.
    fn settle(&mut self, succeeded: bool) {
        for (page, passing) in self.store.passing.drain() {
            let page = Lpn(page);
            let is_current = succeeded || passing.is_on_device || self.cache.is_dirty(page);
            if is_current && self.cache.contains(page) {
                // A copy of its own: a slice would keep the whole request's buffer alive.
                self.store.frames.insert(page.0, Bytes::copy_from_slice(&passing.bytes));
            }
        }
    }

    fn read(&mut self, at: Time, offset: u64, len: usize) -> Result<(Time, Bytes)> {
        let end = offset + len as u64;
        let (first, last) = (offset / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        // What is resident now may have to make room for the rest of the range.
        let held: SmallVec<[Option<Bytes>; 4]> =
            (first..=last).map(|page| self.store.frames.get(&page).cloned()).collect();
        let at = self.cache.read(at, Lpn(first), count(first, last + 1)?, &mut self.store)?;
        let mut bytes = BytesMut::with_capacity(len);
        for (page, held) in (first..=last).zip(&held) {
            let start = page * PAGE_BYTES;
            let contents = match held {
                Some(contents) => contents,
                None => self.store.contents(page)?,
            };
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(PAGE_BYTES) as usize;
            bytes.extend_from_slice(&contents[from..to]);
        }
        Ok((at, bytes.freeze()))
    }

    fn write(&mut self, at: Time, offset: u64, data: Gather, durable: bool) -> Result<Time> {
        let data = join(data);
        let end = offset + data.len() as u64;
        let (first_whole, end_whole) = (offset.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        let mut at = at;
        if first_whole > end_whole {
            at = self.change(at, offset, &data)?;
        } else {
            let (head, tail) = ((first_whole * PAGE_BYTES - offset) as usize, (end % PAGE_BYTES) as usize);
            let middle = data.slice(head..data.len() - tail);
            if head > 0 {
                at = self.change(at, offset, &data[..head])?;
            }
            if !middle.is_empty() {
                at = self.replace(at, first_whole, middle)?;
            }
            if tail > 0 {
                at = self.change(at, end_whole * PAGE_BYTES, &data[data.len() - tail..])?;
            }
        }
        if durable {
            let (first, end) = (offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            at = self.cache.write_out(at, Lpn(first), count(first, end)?, &mut self.store)?;
            at = self.store.flush(at)?;
        }
        Ok(at)
    }

    /// Writes whole pages from `first`. Their new contents pass by while the cache makes room, so that whatever it
    /// writes of them is new.
    fn replace(&mut self, at: Time, first: u64, data: Bytes) -> Result<Time> {
        let pages = data.len() as u64 / PAGE_BYTES;
        for page in 0..pages {
            let from = (page * PAGE_BYTES) as usize;
            let bytes = data.slice(from..from + PAGE_BYTES as usize);
            self.store.passing.insert(first + page, Passing { bytes, is_on_device: false });
        }
        self.cache.write(at, Lpn(first), count(first, first + pages)?, &mut self.store)
    }

    /// Changes part of one page, which is read first if it is not there.
    fn change(&mut self, at: Time, offset: u64, data: &[u8]) -> Result<Time> {
        let page = offset / PAGE_BYTES;
        let at = self.cache.modify(at, Lpn(page), &mut self.store)?;
        let mut contents = BytesMut::from(&self.store.contents(page)?[..]);
        let from = (offset % PAGE_BYTES) as usize;
        contents[from..from + data.len()].copy_from_slice(data);
        self.store.passing.remove(&page);
        self.store.frames.insert(page, contents.freeze());
        Ok(at)
    }

    /// Discards the whole pages of a range; parts of pages keep their contents.
    fn discard(&mut self, at: Time, offset: u64, len: u64) -> Result<Time> {
        let (first, end) = (offset.div_ceil(PAGE_BYTES), (offset + len) / PAGE_BYTES);
        if first >= end {
            return Ok(at);
        }
        self.cache.discard(at, Lpn(first), count(first, end)?, &mut self.store)
    }
}

/// How many pages there are from `first` to before `end`.
fn count(first: u64, end: u64) -> Result<u32> {
    u32::try_from(end - first)
        .map_err(|_| Error::invalid(format!("a request of {} pages is too long", end - first)))
}

/// The parts of a write in one piece.
fn join(mut data: Gather) -> Bytes {
    if data.len() == 1 {
        return data.swap_remove(0);
    }
    let mut whole = BytesMut::with_capacity(data.iter().map(Bytes::len).sum());
    for part in &data {
        whole.extend_from_slice(part);
    }
    whole.freeze()
}

/// Write-backs after which a page is hot, and the placement handle of hot pages.
const HOT_WRITES: u8 = 4;
const HOT_HANDLE: u8 = 1;

/// The contents of the resident pages, and the device below them.
struct Store {
    device: Arc<dyn BlockDevice>,
    frames: FxHashMap<u64, Bytes>,
    /// Contents that are on their way during a request: written by it, or read from the device for it.
    passing: FxHashMap<u64, Passing>,
    /// How often each page was written back so far, up to [`HOT_WRITES`]; pages that nobody wrote may be missing.
    written: Vec<u8>,
    /// The request ends with a flush of the device.
    owes_flush: bool,
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

    /// Counts what is written back, and tells the device which pages are hot from now on: what comes back again and
    /// again through a cache dies soon below it.
    fn tell_heat(&mut self, pages: std::ops::Range<u64>) {
        if self.written.len() < pages.end as usize {
            self.written.resize(pages.end as usize, 0);
        }
        for page in pages {
            let count = &mut self.written[page as usize];
            if *count < HOT_WRITES {
                *count += 1;
                if *count == HOT_WRITES {
                    self.device.place(page * PAGE_BYTES, PAGE_BYTES, HOT_HANDLE);
                }
            }
        }
    }

    fn run(&self, at: Time, request: Request) -> Result<(Time, Bytes)> {
        let Completion { at, result } = self.device.run(at, request);
        result.map(|bytes| (at, bytes))
    }
}

impl Below for Store {
    fn read(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let len = u64::from(count) * PAGE_BYTES;
        let (at, bytes) = self.run(at, Request::Read { offset: first.0 * PAGE_BYTES, len: len as usize })?;
        for page in 0..u64::from(count) {
            let from = (page * PAGE_BYTES) as usize;
            let bytes = bytes.slice(from..from + PAGE_BYTES as usize);
            let passing = Passing { bytes, is_on_device: true };
            self.passing.entry(first.0 + page).or_insert(passing);
        }
        Ok(at)
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let pages = first.0..first.0 + u64::from(count);
        let data: Result<Gather> = pages.clone().map(|page| self.contents(page).cloned()).collect();
        let offset = first.0 * PAGE_BYTES;
        self.tell_heat(pages.clone());
        let (at, _) = self.run(at, Request::Write { offset, data: data?, durable: false })?;
        for page in pages {
            if let Some(passing) = self.passing.get_mut(&page) {
                passing.is_on_device = true;
            }
        }
        Ok(at)
    }

    fn flush(&mut self, at: Time) -> Result<Time> {
        self.owes_flush = true;
        Ok(at)
    }

    fn discard(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        let (offset, len) = (first.0 * PAGE_BYTES, u64::from(count) * PAGE_BYTES);
        self.run(at, Request::Discard { offset, len }).map(|(at, _)| at)
    }

    fn dropped(&mut self, page: Lpn) {
        self.frames.remove(&page.0);
    }
}
