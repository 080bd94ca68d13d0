//! The file system: what users call, and the owners that it is made of. Each keeps its fields to itself, in a file that says
//! its invariant; a line knows the lines below it.
//!
//! | owner | what is its own |
//! |---|---|
//! | [`Fs`] | what users call: files (`data`), names (`names`), `attributes`, opening (`mount`) |
//! | `Cache`, `Reservations` | contents that wait, and room promised to files |
//! | `Replay` | a scan or a recovery under way |
//! | `Volume` | objects with their headers (`headers`), entries of directories (`entries`) and cleaning (`clean`) |
//! | `Log` | where the next page goes, and what must happen before the first |
//! | `Session`, `Checkpoint` | the part's format records, a checkpoint of YAFFS2 |
//! | `Watch`, `Scrubber` | how often blocks are read and corrected; looking through all of them (`refresh`) |
//! | `Flash`, `Memory` | the part, and the NVRAM that may not be there |
//! | `Blocks`, `Objects`, `Dir` | tables in memory, beside this folder |

mod attributes;
mod cache;
mod check;
mod checkpoint;
mod clean;
mod copies;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod damage;
mod data;
mod entries;
#[cfg(test)]
mod faults;
mod flash;
#[cfg(test)]
mod full;
mod headers;
mod log;
mod memory;
mod mount;
mod names;
mod refresh;
mod replay;
mod reservations;
#[cfg(test)]
mod scans;
mod session;
#[cfg(test)]
mod tests;
mod volume;
#[cfg(test)]
mod walks;
mod watch;
#[cfg(test)]
mod world;

pub use attributes::{Attr, SetAttr};
pub use check::Problem;
pub use data::{Place, Seek};
pub use mount::{MountKind, MountReport};
pub use names::{Entry, NewObject};
pub use session::{ERASED, identity_of_nand};

use crate::blocks::Wear;
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand, Nvram};
use crate::nvram::Store;
use crate::object::Time;
use alloc::vec::Vec;
use cache::Cache;
use refresh::Scrubber;
use reservations::Reservations;
use volume::Volume;

/// How metadata lies in NVRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Ours: each map in the code that suits it, updates that a power cut cannot tear.
    #[default]
    Compact,
    /// The paper's: validity marker, device record under LZO, object records under hybrid coding.
    Paper,
}

/// Whether names and attributes lie in NVRAM too, so that a listing reads no NAND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// As far as there is room.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// What can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How metadata lies in NVRAM.
    pub layout: Layout,
    /// Names in NVRAM.
    pub names: Names,
    /// The last page of a full block repeats the tags of the others, where the feature is there. An NVRAM written otherwise costs a
    /// scan.
    pub summaries: bool,
    /// Partly written pages that wait in memory.
    pub cache_pages: usize,
    /// Time between updates of the NVRAM, milliseconds.
    pub update_ms: u64,
    /// Blocks kept free for cleaning.
    pub reserve_blocks: u32,
    /// Pages that cleaning copies for one page written, at most: bounds the pause.
    pub copies_max: u32,
    /// Erases that the most worn block may be ahead of the least worn.
    pub wear_limit: u32,
    /// Reads of a block after which it is rewritten, since reading disturbs what is beside; 0: however many.
    pub refresh_reads: u32,
    /// Pages of tired blocks that are rewritten for one page written, and in an [`update_if_due`](Fs::update_if_due),
    /// at most; 0: none ever.
    pub refresh_copies: u32,
    /// Bytes of memory that objects, page tables, names, and what is known of the NVRAM's records may take; 0: any. With a bound
    /// objects are fetched from the NVRAM when they are asked for, and go again. Beside it come `cache_pages` pages
    /// and what [`fixed_bytes`](Config::fixed_bytes) says. [`Layout::Compact`] only, and at least
    /// [`MEMORY_MIN`](Config::MEMORY_MIN).
    pub memory_bytes: usize,
    /// Open a part that has no format record, as YAFFS2 and image makers leave it: from the NAND alone.
    pub plain: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            layout: Layout::Compact,
            names: Names::Auto,
            summaries: cfg!(feature = "summaries"),
            cache_pages: 64,
            update_ms: 5000,
            reserve_blocks: 5,
            copies_max: 16,
            wear_limit: 32,
            refresh_reads: 100_000,
            refresh_copies: 64,
            memory_bytes: 0,
            plain: false,
        }
    }
}

impl Config {
    /// The smallest bound of memory, bytes: a group of objects being written, and what an operation or two use.
    pub const MEMORY_MIN: usize = 24 << 10;

    /// Bytes of memory that are taken beside [`memory_bytes`](Config::memory_bytes) on such a part: for each block what is
    /// known of it, pages that wait, and what an operation needs while it is under way, records of a group among it.
    pub fn fixed_bytes(&self, geometry: &Geometry) -> usize {
        let page = geometry.page_bytes as usize;
        let blocks = geometry.blocks as usize * (size_of::<crate::blocks::Block>() + 40);
        let group = crate::object::GROUP as usize * (size_of::<crate::object::Object>() + 48);
        blocks + group + (self.cache_pages + 4) * (page + 64) + geometry.pages_per_block as usize * 64
    }

    fn check(&self) -> Result<()> {
        if self.layout == Layout::Paper && !cfg!(feature = "paper") {
            return Err(Error::Unsupported("the paper's layout was left out of this build (feature paper)"));
        }
        if self.plain && !cfg!(feature = "yaffs2") {
            return Err(Error::Unsupported(
                "parts without a format record were left out of this build (feature yaffs2)",
            ));
        }
        match self.memory_bytes {
            0 => Ok(()),
            _ if self.layout == Layout::Paper => Err(Error::Unsupported(
                "the paper's layout needs all objects in memory: leave memory_bytes at 0",
            )),
            // Tests bound it to less, so that small volumes do not fit.
            1..Config::MEMORY_MIN if !cfg!(test) => {
                Err(Error::Unsupported("memory_bytes must be 0, or 24 KiB or more"))
            }
            _ => Ok(()),
        }
    }
}

/// What was done since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that cleaning copied.
    pub copies: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages programmed, all kinds.
    pub programs: u64,
    /// Most copies made for one page written.
    pub copies_in_a_pause: u32,
    /// Programs and erases that failed.
    pub failures: u64,
    /// Blocks cleaned only because they are little worn.
    pub levelled: u64,
    /// Live pages that could not be read any more.
    pub lost_pages: u64,
    /// Wrong bits that were corrected in what was read, as far as the part tells.
    pub corrected_bits: u64,
    /// Blocks that were rewritten because they had been read often, or had to be corrected.
    pub refreshed: u64,
    /// Blocks that are to be.
    pub tired_blocks: u32,
    /// Pages that [`scrub`](Fs::scrub) read.
    pub scrubbed: u64,
    /// Pages that it could not read.
    pub scrub_failures: u64,
    /// Objects that were fetched from the NVRAM, since memory is bounded.
    pub fetched: u64,
    /// Updates of the NVRAM.
    pub commits: u64,
    /// Bytes of records written by them.
    pub commit_bytes: u64,
}

/// What one update of the NVRAM did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// Objects whose records were made anew.
    pub records: u32,
    /// Bytes written.
    pub bytes: u64,
    /// The NVRAM is too small: a mount will have to scan.
    pub overflow: bool,
}

/// A file system on a NAND part, with or without NVRAM.
///
/// Objects are named by numbers, [`ROOT`](crate::ROOT) is the root directory. Whoever uses it checks permissions,
/// counts who has an object open ([`unlink`](Fs::unlink) can keep it until [`discard`](Fs::discard)), says what
/// time it is, and calls [`update_if_due`](Fs::update_if_due) now and then.
///
/// Durable are: what [`sync`](Fs::sync) or [`sync_object`](Fs::sync_object) returned for, and names that were
/// removed or moved. A rename that replaces writes the moved file first.
pub struct Fs<N: Nand, V: Nvram> {
    volume: Volume<N, V>,
    cache: Cache,
    reservations: Reservations,
    last_update_ms: u64,
    report: MountReport,
    scrubber: Scrubber,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Says what time it is: what objects that are changed from now on are stamped with.
    pub fn set_now(&mut self, now: Time) {
        self.volume.now = now;
    }

    /// The part.
    pub fn nand(&self) -> &N {
        self.volume.log.flash.nand()
    }

    /// The part, to be watched or tampered with.
    pub fn nand_mut(&mut self) -> &mut N {
        self.volume.log.flash.nand_mut()
    }

    /// The NVRAM, if there is one.
    pub fn nvram_mut(&mut self) -> Option<&mut V> {
        self.volume.log.memory.device_mut()
    }

    /// Gives the media back, as they are: nothing is written any more.
    pub fn into_media(self) -> (N, Option<V>) {
        let log = self.volume.log;
        (log.flash.into_nand(), log.memory.into_device())
    }

    /// What was done since it was opened.
    pub fn stats(&self) -> Stats {
        let mut stats = self.volume.stats();
        stats.fetched = self.volume.objects.fetched();
        self.scrubber.count(&mut stats);
        stats
    }

    /// How it was opened.
    pub fn report(&self) -> &MountReport {
        &self.report
    }

    /// What was chosen.
    pub fn config(&self) -> &Config {
        &self.volume.config
    }

    /// The number of the session that is under way, or of the last one; 0 of a part without a format record.
    pub fn session(&self) -> u32 {
        self.volume.log.session()
    }

    /// How erases are spread, as far as known: without NVRAM counts begin with the mount.
    pub fn wear(&self) -> Wear {
        self.volume.log.blocks.wear()
    }

    /// Bytes of the NVRAM that records take, and its size.
    pub fn nvram_used(&self) -> Option<(usize, usize)> {
        self.volume.log.memory.store().map(|store| (store.used_bytes(), store.size_bytes()))
    }

    /// Whether records did not fit the NVRAM, so that a mount would scan.
    pub fn nvram_overflows(&self) -> bool {
        self.volume.log.memory.store().is_some_and(Store::overflows)
    }

    /// Bytes of memory that objects, page tables, names, and what is known of the NVRAM's records take, about: what
    /// [`Config::memory_bytes`] bounds.
    pub fn memory_bytes(&mut self) -> usize {
        self.volume.objects.bytes() + self.volume.log.memory.table_bytes()
    }

    /// How many objects there are, names of links among them.
    pub fn object_count(&self) -> u32 {
        self.volume.objects.count()
    }

    /// Pages that can be live at once.
    pub fn capacity_pages(&self) -> u64 {
        self.volume.log.blocks.capacity(self.volume.config.reserve_blocks)
    }

    /// Pages that are live or promised.
    pub fn used_pages(&self) -> u64 {
        self.pages_in_use() + self.reservations.pages(&self.volume.objects)
    }

    fn pages_in_use(&self) -> u64 {
        self.volume.log.blocks.live() + self.cache.len() as u64
    }

    /// Fails if so many more pages do not fit.
    fn check_room(&self, pages: u64) -> Result<()> {
        let free = self.capacity_pages().saturating_sub(self.pages_in_use());
        // Promises are rare, and counting them is not free.
        let fits =
            free >= pages && free >= pages.saturating_add(self.reservations.pages(&self.volume.objects));
        let is_told = !self.volume.objects.is_bounded() || self.volume.log.memory.has_room();
        if fits && is_told { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// An operation begins, on these objects, which are in memory until it ends. Where memory is bounded, what is not
    /// used goes first; what the NVRAM was not told of yet, after it was.
    fn begin<const COUNT: usize>(&mut self, objects: [u32; COUNT]) -> Result<()> {
        if self.volume.objects.is_bounded() {
            self.volume.objects.begin();
            self.find_memory();
        }
        self.bring(objects)
    }

    fn bring<const COUNT: usize>(&mut self, objects: [u32; COUNT]) -> Result<()> {
        objects.into_iter().try_for_each(|id| self.volume.bring(id))
    }

    /// Whether a quarter of the memory is free, or could be made so.
    fn find_memory(&mut self) -> bool {
        if !self.volume.make_memory() && self.has_changed() {
            // Its own errors are for whoever asks for an update.
            let _ = self.update();
            // Objects whose headers it wrote were used by it, not by the operation.
            self.volume.objects.begin();
        }
        self.volume.make_memory()
    }

    /// As [`begin`](Fs::begin), of an operation after which there is more to know than before.
    fn begin_more<const COUNT: usize>(&mut self, objects: [u32; COUNT]) -> Result<()> {
        self.begin(objects)?;
        if self.find_memory() { self.bring(objects) } else { Err(Error::NoMemory) }
    }

    /// Gives every object whose header cannot be read a new one, under the name it goes by now; how many.
    ///
    /// # Errors
    /// The media are gone or full.
    pub fn repair(&mut self) -> Result<u32> {
        let mut repaired = 0;
        for id in self.volume.objects.all_ids().collect::<Vec<u32>>() {
            self.begin([id])?;
            if self.volume.objects.get(id).is_some() {
                repaired += u32::from(self.volume.repair(id)?);
            }
        }
        Ok(repaired)
    }
}
