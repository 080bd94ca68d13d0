//! osd: an object store on flash, one translation layer from objects to pages.
//!
//! Objects have a 64-bit number, contents of any size with holes, times, and attributes. They lie on a NAND
//! array that the store drives by itself: it decides where bytes go ([`placement`]), finds them (`tree`), and
//! makes room (`clean`). Kang, Yang and Miller: Efficient Storage Management for Object-based Flash Memory,
//! MASCOTS 2010, is where the three placements `combined`, `split` and `split-atime` come from; `lifetime` is
//! ours.
//!
//! **How it works.** Writes gather in a buffer. A *write-out* packs them into pages, whole pages by
//! themselves and fragments together, and appends those to the open segment of their stream; the tree of
//! extents then says where they lie. A *commit* ([`Store::flush`]) is a write-out and a few log pages with
//! every item of the tree that changed since the last one. A *checkpoint* writes the tree's changed nodes,
//! the node table and the segments' state, then an anchor page that names them; the log before it is dead.
//! Opening reads the newest anchor and applies the log after it.
//!
//! **What a power cut leaves.** The store as it was at some instant between two operations, at or after the
//! last [`Store::flush`]: automatic commits happen between operations only (a long write counts as several,
//! one for each buffer-full). Access times follow their own promise, see `access`.
//!
//! **Invariants.** Nothing durable points into a segment that is erased; a segment's count of live bytes is
//! the sum of the extents in it; the tree in memory never points to a page that was not programmed.
//!
//! | owner | what is its own |
//! |---|---|
//! | [`Store`] | what users call; when to write out, commit, clean and make a checkpoint |
//! | `Buffer`, `Access`, `Steps` | writes that wait, access times, what operations under way replaced |
//! | `Checkpoints` | where the last checkpoint and the node table lie |
//! | `Index` | the tree, with the counts that hang on its items; packing and moving what it maps (`extents`) |
//! | `Log` | items that changed since the last commit |
//! | `Media` | the open segment of each stream, over `Flash` and `Segments` (`append`) |
//!
//! One thread at a time.

mod access;
mod anchors;
mod append;
mod attributes;
mod buffer;
mod check;
mod checkpoint;
mod clean;
mod extents;
mod flash;
mod found;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod layout;
mod log;
mod mend;
mod node;
mod objects;
mod pieces;
pub mod placement;
mod places;
mod read_back;
mod reading;
mod rebuild;
mod recover;
mod segments;
mod summary;
#[cfg(test)]
mod tests;
mod tree;
mod undo;
mod write_out;

pub use buffer::Content;
pub use check::Checked;
pub use mend::Mended;
pub use places::{Place, Stretch};
pub use reading::Reading;
pub use segments::Cleaning;

use access::Access;
use bimetal_base::time::{Stamp, Time};
use bimetal_base::{Error, Result};
use bimetal_media::kept::Unsynced;
use bimetal_media::nand::Nand;
use buffer::Buffer;
use checkpoint::Checkpoints;
use extents::Index;
#[cfg(any(test, feature = "testing"))]
use flash::Addr;
#[cfg(any(test, feature = "testing"))]
use layout::{Fork, PageKind};
use placement::Placement;
use serde::Serialize;
use tree::Tree;

/// The number of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectId(pub u64);

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a new store is to be.
#[derive(Clone, Debug)]
pub struct Format {
    /// Erase blocks of a segment, 1 to 64.
    pub segment_blocks: u32,
    /// The placement, with its settings: `split-atime:entries=4096`.
    pub placement: String,
}

impl Default for Format {
    fn default() -> Format {
        Format { segment_blocks: 1, placement: "lifetime".into() }
    }
}

/// How a store is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which segment is cleaned.
    pub cleaning: Cleaning,
    /// Bytes of writes that may gather in memory; at most 1/32 of the flash is used.
    pub buffer_bytes: u64,
    /// Bytes of memory that nodes of the tree may take; those that changed since the last checkpoint stay beyond it.
    pub cache_bytes: u64,
    /// Erases a segment may lag behind before its contents move.
    pub spread: u32,
    /// Reading an object sets its access time.
    pub access_times: bool,
    /// The bytes of objects are kept; otherwise they are only counted, and read as zeros.
    pub keep_bytes: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cleaning: Cleaning::CostBenefit,
            buffer_bytes: 1 << 20,
            cache_bytes: 64 << 20,
            spread: 64,
            access_times: true,
            keep_bytes: true,
        }
    }
}

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of it that are on the flash or reserved there.
    pub stored: u64,
    /// What its owner said about the lifetime of its bytes.
    pub hint: u8,
    /// When it was made.
    #[serde(skip)]
    pub created: Stamp,
    /// Last change of contents.
    #[serde(skip)]
    pub modified: Stamp,
    /// Last change of anything.
    #[serde(skip)]
    pub changed: Stamp,
    /// Last read.
    #[serde(skip)]
    pub accessed: Stamp,
}

/// The times to set; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetTimes {
    /// When it was made.
    pub created: Option<Stamp>,
    /// Last change of contents.
    pub modified: Option<Stamp>,
    /// Last change of anything.
    pub changed: Option<Stamp>,
    /// Last read.
    pub accessed: Option<Stamp>,
}

/// Space of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// What objects and what is known about them can fill.
    pub total: u64,
    /// What they do fill, reservations and what waits in memory included.
    pub used: u64,
    /// All bytes of all good segments.
    pub flash: u64,
    /// Bytes of objects alive on the flash, and of what is said of them beside the index.
    pub live: u64,
    /// Objects.
    pub objects: u64,
}

/// What a store did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Bytes that users wrote (attributes too long for the tree included), as they came to the flash.
    pub data_bytes: u64,
    /// Of these: bytes of their neighbours that were read and written again to keep them together.
    pub gathered_bytes: u64,
    /// Pages of data programmed, those of the cleaner included.
    pub data_pages: u64,
    /// Pages of the log.
    pub log_pages: u64,
    /// Nodes and other pages of checkpoints.
    pub index_pages: u64,
    /// Pages of access times.
    pub access_pages: u64,
    /// Pages that say what a segment holds.
    pub summary_pages: u64,
    /// Commits.
    pub commits: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Times that access times were merged.
    pub merges: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Of these: segments with nothing alive in them.
    pub empty_segments: u64,
    /// Bytes of objects that the cleaner copied.
    pub data_copied: u64,
    /// Bytes of the store's own pages that the cleaner found alive and had written again.
    pub index_copied: u64,
    /// Segments cleaned only to spread wear.
    pub wear_moves: u64,
}

impl Counts {
    /// Everything the cleaner copied, bytes.
    pub fn bytes_copied(&self) -> u64 {
        self.data_copied + self.index_copied
    }

    /// All pages programmed.
    pub fn pages(&self) -> u64 {
        self.data_pages + self.log_pages + self.index_pages + self.access_pages + self.summary_pages
    }

    /// These less what was counted before.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            data_bytes: self.data_bytes - before.data_bytes,
            gathered_bytes: self.gathered_bytes - before.gathered_bytes,
            data_pages: self.data_pages - before.data_pages,
            log_pages: self.log_pages - before.log_pages,
            index_pages: self.index_pages - before.index_pages,
            access_pages: self.access_pages - before.access_pages,
            summary_pages: self.summary_pages - before.summary_pages,
            commits: self.commits - before.commits,
            checkpoints: self.checkpoints - before.checkpoints,
            merges: self.merges - before.merges,
            segments_cleaned: self.segments_cleaned - before.segments_cleaned,
            empty_segments: self.empty_segments - before.empty_segments,
            data_copied: self.data_copied - before.data_copied,
            index_copied: self.index_copied - before.index_copied,
            wear_moves: self.wear_moves - before.wear_moves,
        }
    }
}

/// An object store on a NAND array. See the module's page.
pub struct Store {
    index: Index,
    checkpoints: Checkpoints,
    buffer: Buffer,
    access: Access,
    placement: Box<dyn Placement>,
    placement_text: String,
    options: Options,
    buffer_max: u64,
    next_object: u64,
    /// Operations that belong together are under way; so many of them give room back.
    held: u32,
    giving: u32,
    /// A repair is under way.
    mending: bool,
    /// Why nothing can be changed any more.
    failed: Option<String>,
    /// Objects of which something could not be written out when that was tried last.
    left: Vec<u64>,
    /// Segments that do not say all that was written to them, since the power went before.
    unsaid: Vec<u32>,
    /// What was found damaged when it was opened.
    damage: Vec<Mended>,
}

impl Store {
    /// Says when the calls that follow arrive. What they do on the flash begins then.
    pub fn arrive(&mut self, at: Time) {
        self.index.media.flash.now = at;
    }

    /// When the calls arrive, as objects' times tell it.
    pub fn arrived(&self) -> Stamp {
        self.now()
    }

    /// When everything asked for so far is done.
    pub fn done(&self) -> Time {
        self.index.media.flash.done.max(self.index.media.flash.now)
    }

    fn now(&self) -> Stamp {
        self.index.media.flash.now.into()
    }

    /// What it did since it was opened.
    pub fn counts(&self) -> Counts {
        self.index.media.counts
    }

    /// The array.
    pub fn nand(&self) -> &Nand {
        self.index.media.flash.nand()
    }

    /// The array, to plan a power cut or turn the power on.
    pub fn nand_mut(&mut self) -> &mut Nand {
        self.index.media.flash.nand_mut()
    }

    /// Gives up everything but the array, as power loss does.
    pub fn into_nand(self) -> Nand {
        self.index.media.flash.into_nand()
    }

    /// The placement, with its settings.
    pub fn placement(&self) -> &str {
        &self.placement_text
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.index.media.segments.segment_bytes()
    }

    /// Bytes of memory that grow with the number of objects, roughly: nodes, their table, access times.
    pub fn memory_bytes(&self) -> usize {
        self.index.tree.memory_bytes() + self.access.memory_bytes()
    }

    /// Space.
    pub fn capacity(&self) -> Capacity {
        let (live, pages) = self.index.media.segments.live();
        let unplaced = self.index.tree.unplaced() as u64 * self.index.media.flash.page_bytes() as u64;
        let good = self.index.media.segments.good() as u64;
        let total = self.room(good.saturating_sub(self.index.media.segments.rotten() as u64));
        let used = live + pages + unplaced + self.index.reserved_bytes() + self.buffer.cost();
        Capacity {
            total,
            // The index may take a page more or less from one checkpoint to the next: full is full.
            used: used.min(total),
            flash: good * self.segment_bytes(),
            live,
            objects: self.index.objects(),
        }
    }

    /// What can be filled of `good` segments: all but what cleaning needs to go on, a page of each for its summary,
    /// and one part in 32.
    fn room(&self, good: u64) -> u64 {
        let waiting = self.buffer_max.div_ceil(self.segment_bytes());
        let kept = self.placement.streams() as u64 + waiting + 12;
        let pages = u64::from(self.index.media.flash.pages_per_segment()) - 1;
        good.saturating_sub(kept) * pages * self.index.media.flash.page_bytes() as u64 / 32 * 31
    }

    /// Begins an operation that changes something and writes `bytes`: makes room where that is needed.
    fn begin(&mut self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        if self.held == 0 {
            self.index.tree.trim();
            if self.buffer.cost() >= self.buffer_max {
                // What was held together is not written out before it is over.
                let written = self.write_out();
                self.or_fail(written)?;
            }
            self.make_room()?;
        }
        if bytes > 0 && !self.is_giving() {
            let capacity = self.capacity();
            if capacity.used + bytes > capacity.total {
                return Err(Error::NoSpace("the object store is full"));
            }
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(why) => {
                let what = format!("the object store takes no more changes: {why}");
                Err(Error::io(what, std::io::Error::from_raw_os_error(libc::EROFS)))
            }
        }
    }

    /// Passes a result on; after an error the store is read-only, since memory may be ahead of the flash.
    fn or_fail<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(why) = &result {
            self.failed.get_or_insert_with(|| why.to_string());
        }
        result
    }

    /// Makes everything done so far durable, access times of the last page excepted.
    pub fn flush(&mut self) -> Result<()> {
        self.prepare_flush()?;
        self.commit_now()
    }

    fn prepare_flush(&mut self) -> Result<()> {
        self.check_writable()?;
        if self.held == 0 {
            // What waits found its room when it came; a full store can be made durable, too.
            self.giving += 1;
            let made = self.make_room();
            self.giving -= 1;
            made?;
        }
        Ok(())
    }

    /// Begins a [`flush`](Store::flush) that others need not wait for while the host of an image writes: the number of the
    /// commit that is to be kept, which [`flush_on`](Store::flush_on) sees to.
    ///
    /// # Errors
    /// As `flush`.
    pub fn begin_flush(&mut self) -> Result<u64> {
        self.prepare_flush()?;
        let written = self.write_out();
        self.or_fail(written)?;
        Ok(self.index.log.commit() + u64::from(self.index.log.len() > 0))
    }

    /// The next step of a flush up to a commit: what the caller has to wait for ([`Unsynced::keep`]), in which time others may
    /// use the store, before it calls again; `None`: the flush is done. Pages of data are kept first, then the commit that
    /// names them, which is that of all who wait by then. `at_once` waits here for data that others wrote
    /// in between.
    ///
    /// # Errors
    /// As `flush`.
    pub fn flush_on(&mut self, commit: u64, at_once: bool) -> Result<Option<Unsynced>> {
        self.check_writable()?;
        let (complete, committed) = (self.index.log.complete(), self.index.media.flash.committed());
        // Each commit is kept before the next one is written.
        if complete > commit || complete == commit && committed.is_kept() {
            return Ok(None);
        }
        if !committed.is_kept() {
            return Ok(Some(committed.clone()));
        }
        // A commit is of one instant: what others did since goes along, names with what they name.
        let written = self.write_out();
        self.or_fail(written)?;
        let data = self.index.media.flash.written();
        if !data.is_kept() && !at_once {
            return Ok(Some(data));
        }
        let committed = self.commit_to_array();
        self.or_fail(committed)?;
        Ok(Some(self.index.media.flash.committed().clone()).filter(|committed| !committed.is_kept()))
    }

    /// Nothing can be changed any more, for a reason that did not show as an error.
    pub fn give_up(&mut self, why: &str) {
        self.failed.get_or_insert_with(|| why.to_string());
    }

    /// Says how waiting for the host ended. After an error of the host the store is read-only.
    ///
    /// # Errors
    /// What the host said.
    pub fn waited(&mut self, kept: Result<()>) -> Result<()> {
        self.or_fail(kept)
    }

    /// Writes the access times that wait; what the host is to keep then.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn begin_sync_accesses(&mut self) -> Result<Unsynced> {
        self.check_writable()?;
        let written = self.write_accesses();
        self.or_fail(written)?;
        Ok(self.index.media.flash.written())
    }

    /// Makes everything durable, access times too.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let kept = self.begin_sync_accesses()?.keep();
        self.or_fail(kept)
    }

    /// Ends cleanly: opening again has nothing to recover.
    ///
    /// # Errors
    /// Those of [`sync`](Store::sync); [`Error::Corrupt`] names an object of which something written could not be put
    /// on the flash, since its index cannot be read. All else is there then.
    pub fn close(&mut self) -> Result<()> {
        self.sync()?;
        self.checkpoint_now(true)?;
        let left = self.buffer.objects().next();
        left.map_or(Ok(()), |object| self.check_written(ObjectId(object)))
    }

    /// The change of an item from now that fails (1: the next).
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_in(&mut self, changes: u32) {
        self.index.fails_in = Some(changes);
    }

    /// Takes the plan back; whether no change failed.
    #[cfg(any(test, feature = "testing"))]
    pub fn has_not_failed(&mut self) -> bool {
        self.index.fails_in.take().is_some()
    }

    /// Turns a bit of the page that a byte of an object lies on, as damage does.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil(&mut self, id: ObjectId, offset: u64) {
        self.spoil_fork(id, Fork::Data, offset);
    }

    /// As [`spoil`](Store::spoil), of attributes that are too long for the index.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil_attributes(&mut self, id: ObjectId) {
        self.spoil_fork(id, Fork::Attributes, 0);
    }

    #[cfg(any(test, feature = "testing"))]
    fn spoil_fork(&mut self, id: ObjectId, fork: Fork, offset: u64) {
        let found = self.index.overlapping(id.0, fork, offset, offset + 1).expect("the index is whole");
        let (from, extent) = found[0];
        let at = extent.at + (offset - from);
        let page_bytes = self.index.media.flash.page_bytes() as u64;
        self.index.media.flash.turn_bit(Addr((at / page_bytes) as u32), (at % page_bytes) as u32 * 8);
    }

    /// Turns a bit of the page of a node of the index, as damage does; false if there is no such node on the flash.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil_index(&mut self, number: usize) -> bool {
        let found = self.index.tree.pages().nth(number);
        found.inspect(|(_, addr)| self.index.media.flash.turn_bit(*addr, 99)).is_some()
    }

    /// Turns a bit of every page that says where the index is: anchors, checkpoints, node tables.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil_checkpoints(&mut self) {
        let flash = &mut self.index.media.flash;
        for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
            let Ok(Some(tag)) = flash.read_tag(addr) else { continue };
            if matches!(tag.kind, PageKind::Anchor | PageKind::Checkpoint | PageKind::Table) {
                flash.turn_bit(addr, 99);
            }
        }
    }

    /// Turns a bit of two pages of the log, one after the other: the last ones but `later`; false if there are none.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil_log(&mut self, later: usize) -> bool {
        let flash = &mut self.index.media.flash;
        let mut log = Vec::new();
        for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
            if let Ok(Some(tag)) = flash.read_tag(addr)
                && tag.kind == PageKind::Log
            {
                log.push((tag.serial, addr));
            }
        }
        log.sort_unstable();
        let Some(first) = log.len().checked_sub(later + 2) else { return false };
        log[first..first + 2].iter().for_each(|(_, addr)| flash.turn_bit(*addr, 99));
        true
    }

    /// Whether all that had been written to an object by then went where the last flush put it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: its index cannot be read, so that what was written last stays in memory.
    pub fn check_written(&self, id: ObjectId) -> Result<()> {
        if !self.left.contains(&id.0) {
            return Ok(());
        }
        let why = "its index cannot be read, so what was written to it last cannot be kept";
        Err(Error::corrupt("an object", why, format!("object {id}")))
    }
}

/// Whether an error says that something on the flash cannot be read, and no more.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. })
}
