//! The page cache between a file system (or a trace) and the device below: one policy a file.
//!
//! ```text
//! read · write · modify · sync · flush · tick · discard          PageCache (what is asked of a cache)
//!         │
//!     engine: clean and dirty pages, write-back, read-ahead, the memory bound
//!         │        └── policy: who leaves, what is written with it            (policies/, registry.rs)
//!         ▼
//! read · write · flush · discard · dropped                        Below (what a cache asks of a device)
//! ```
//!
//! [`build`] makes a cache from a policy's name and options. The cache keeps no contents: it decides. A
//! [`device::CachedDevice`] puts it in front of any block device, under a mount or in a replay, and keeps the
//! contents of the pages, or none over a device that keeps none. Time is handed along: a request says when it arrives, the answer when it is done.
//!
//! Units: pages (4096 bytes unless a front end says otherwise), erase blocks of `block_pages` pages.

pub mod blocks;
pub mod device;
mod engine;
pub mod ghosts;
pub mod index;
pub mod kmeans;
pub mod links;
pub mod nvram;
pub mod offline;
pub mod ordered;
pub mod outside;
pub mod pages;
pub mod policies;
pub mod policy;
pub mod recency;
pub mod registry;

use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use std::time::Duration;

pub use policy::Access;
pub use registry::build;

/// The device below, as a cache sees it. All calls are made in the order in which the device must see them;
/// each says when it arrives and returns when it is done.
pub trait Below {
    /// Reads `count` pages from `first`.
    fn read(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time>;

    /// Writes `count` pages from `first`, one command. Every one of them is resident, or was read since the
    /// last write to fill a gap in this one.
    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time>;

    /// Makes everything written so far durable.
    fn flush(&mut self, at: Time) -> Result<Time> {
        Ok(at)
    }

    /// The contents of the pages are of no use any more.
    fn discard(&mut self, at: Time, _first: Lpn, _count: u32) -> Result<Time> {
        Ok(at)
    }

    /// The cache let go of a page; it is clean, or was discarded.
    fn dropped(&mut self, _page: Lpn) {}
}

/// A device that takes everything at once and keeps nothing: below a cache of which only counts are asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Below for Nothing {
    fn read(&mut self, at: Time, _: Lpn, _: u32) -> Result<Time> {
        Ok(at)
    }

    fn write(&mut self, at: Time, _: Lpn, _: u32) -> Result<Time> {
        Ok(at)
    }
}

/// One access to one page, in eight bytes: what a batch is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageAccess(u64);

impl PageAccess {
    /// An access to `page`, which is below 2⁶³.
    pub fn new(page: Lpn, access: Access) -> PageAccess {
        PageAccess(page.0 << 1 | u64::from(access == Access::Write))
    }

    /// The page.
    #[inline]
    pub fn page(self) -> Lpn {
        Lpn(self.0 >> 1)
    }

    /// What is done to it.
    #[inline]
    pub fn access(self) -> Access {
        if self.0 & 1 == 1 { Access::Write } else { Access::Read }
    }
}

/// What a cache is asked to do; pages by the first and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequest {
    /// Reads pages; done when the last is there.
    Read(Lpn, u32),
    /// Replaces pages; done when they are in the cache.
    Write(Lpn, u32),
    /// Changes part of a page: as a write, but a miss reads the page first.
    Modify(Lpn),
    /// Writes what is dirty of these pages; they stay.
    WriteOut(Lpn, u32),
    /// The contents of these pages are of no use any more: they leave without being written.
    Discard(Lpn, u32),
    /// Writes everything dirty; the pages stay.
    Sync,
    /// [`Sync`](PageRequest::Sync), then a flush of the device: everything written so far survives a power cut.
    Flush,
    /// Writes what has been dirty for [`Config::dirty_age`]. Every request does this for itself; a live stack also asks
    /// when idle.
    Tick,
}

/// What a cache shows of itself.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The policy with every option, as [`build`] would take it.
    pub name: &'a str,
    /// The most pages it holds.
    pub capacity: u32,
    /// How many pages it holds.
    pub resident: u32,
    /// How many of them are dirty.
    pub dirty: u32,
    /// The counts so far.
    pub stats: &'a Stats,
    /// Bytes of memory beside the contents of the pages.
    pub overhead_bytes: usize,
}

/// A page that is in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// The device has its contents.
    Clean,
    /// The device lacks its contents.
    Dirty,
}

/// A page cache. Made by [`build`]; one thread at a time.
///
/// # Errors
/// Whatever the device below returns. After an error the cache is as it was but for the order of its pages:
/// a dirty page whose write failed stays, dirty.
pub trait PageCache: Send {
    /// Serves a request that arrives at `at`; when it is done.
    fn serve(&mut self, at: Time, request: PageRequest, below: &mut dyn Below) -> Result<Time>;

    /// Runs `accesses` one after the other, each arriving when the one before is done: the fast way to
    /// replay a trace of single pages. Returns when the last is done.
    fn run(&mut self, at: Time, accesses: &[PageAccess], below: &mut dyn Below) -> Result<Time>;

    /// Looks for a page.
    fn page(&self, page: Lpn) -> Option<Resident>;

    /// Returns its counts and sizes.
    fn view(&self) -> View<'_>;
}

/// What a cache is made with, beside its policy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most pages it holds; at least 1.
    pub capacity: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of an erase block of the device below: what the policies group by.
    pub block_pages: u32,
    /// The device's size in pages, if it is known: up to 2²⁸ the index is then a table.
    pub space: Option<u64>,
    /// The most pages read ahead of a sequential reader; 0 for none.
    pub read_ahead: u32,
    /// A page dirty for longer is written at the next look; none: only when room or a sync asks for it.
    pub dirty_age: Option<Duration>,
    /// How long between two looks for such pages.
    pub tick: Duration,
    /// A durable write makes all that is dirty durable, as an fsync of everything would, and not its own pages only.
    pub durable_syncs: bool,
}

impl Config {
    /// A cache of `capacity` pages over erase blocks of 128 pages, with nothing else switched on.
    pub fn new(capacity: u32) -> Config {
        Config {
            capacity,
            page_bytes: device::PAGE_BYTES,
            block_pages: 128,
            space: None,
            read_ahead: 0,
            dirty_age: None,
            tick: Duration::from_secs(5),
            durable_syncs: false,
        }
    }

    /// With erase blocks of `block_pages` pages.
    pub fn block_pages(self, block_pages: u32) -> Config {
        Config { block_pages, ..self }
    }

    /// Over a device of `space` pages.
    pub fn space(self, space: u64) -> Config {
        Config { space: Some(space), ..self }
    }
}

/// What a cache counts. Pages unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Reads of resident pages.
    pub read_hits: u64,
    /// Writes to resident pages.
    pub write_hits: u64,
    /// Reads of other pages.
    pub read_misses: u64,
    /// Writes to other pages.
    pub write_misses: u64,
    /// Pages read from the device, for whatever reason.
    pub pages_read: u64,
    /// Of these, read only to fill gaps in a write.
    pub pages_padded: u64,
    /// Of these, read ahead of a sequential reader.
    pub pages_read_ahead: u64,
    /// Read commands.
    pub read_commands: u64,
    /// Pages written to the device.
    pub pages_written: u64,
    /// Write commands.
    pub write_commands: u64,
    /// Of the pages written, those that a sync or their age asked for.
    pub pages_synced: u64,
    /// Of the pages written, those that were written because others had to leave, and stayed, or filled a gap. With
    /// `pages_synced` and `dirty_evictions` they are all that was written.
    pub pages_beside: u64,
    /// Pages that left clean.
    pub clean_evictions: u64,
    /// Pages that were written in order to leave.
    pub dirty_evictions: u64,
    /// Flushes passed on.
    pub flushes: u64,
}

impl Stats {
    /// All accesses to pages.
    pub fn accesses(&self) -> u64 {
        self.hits() + self.misses()
    }

    /// Accesses to resident pages.
    pub fn hits(&self) -> u64 {
        self.read_hits + self.write_hits
    }

    /// Accesses to other pages.
    pub fn misses(&self) -> u64 {
        self.read_misses + self.write_misses
    }

    /// The share of accesses that hit, 0 to 1.
    pub fn hit_ratio(&self) -> f64 {
        self.hits() as f64 / self.accesses().max(1) as f64
    }
}
