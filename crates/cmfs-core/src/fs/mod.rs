//! The file system: what it keeps in memory, how it is made and opened.

mod attributes;
mod cache;
mod check;
mod checkpoint;
mod clean;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod damage;
mod data;
mod log;
mod mount;
mod names;
mod replay;
mod scan;
mod session;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use attributes::{Attr, SetAttr};
pub use check::Problem;
pub use data::Seek;
pub use mount::{MountKind, MountReport};
pub use names::{Entry, NewObject};

use crate::blocks::{Blocks, Wear};
use crate::error::{Error, Result};
use crate::media::{Geometry, Nand, NandError, Nvram};
use crate::nvram::Store;
use crate::object::{Object, Objects, Time};
use crate::summary;
use crate::tags::{Packed, TagPlace};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use cache::Cache;
use clean::Cleaning;
use session::Session;

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
    /// The last page of a full block repeats the tags of the others.
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
    /// Open a part that has no format record, as YAFFS2 and image makers leave it: from the NAND alone.
    pub plain: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            layout: Layout::Compact,
            names: Names::Auto,
            summaries: true,
            cache_pages: 64,
            update_ms: 5000,
            reserve_blocks: 5,
            copies_max: 16,
            wear_limit: 32,
            plain: false,
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

/// The block that pages are written to.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub block: u32,
    /// The next page in it.
    pub next: u32,
    /// The tags of the pages before it, for the summary; `None` where they are not all known.
    pub tags: Option<Vec<Packed>>,
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
    pub(crate) nand: N,
    pub(crate) geometry: Geometry,
    pub(crate) place: TagPlace,
    pub(crate) config: Config,
    pub(crate) blocks: Blocks,
    pub(crate) objects: Objects,
    pub(crate) open: Option<Open>,
    /// The last sequence number given.
    pub(crate) sequence: u32,
    /// The last block opened.
    pub(crate) last_block: u32,
    cache: Cache,
    /// Objects whose header on flash is out of date.
    dirty: BTreeSet<u32>,
    /// Objects that pages are promised to, or were.
    reserving: BTreeSet<u32>,
    /// Counts objects made: what was not written to between two of them is taken for finished.
    creations: u64,
    now: Time,
    pub(crate) store: Option<Store<V>>,
    pub(crate) stats: Stats,
    cleaning: Option<Cleaning>,
    /// Full blocks since wear was last looked at.
    since_levelling: u32,
    last_update_ms: u64,
    /// Ties NAND and NVRAM.
    pub(crate) identity: [u8; 16],
    pub(crate) report: MountReport,
    /// The sessions of the part; `None`: it has no format record.
    session: Option<Session>,
    /// Blocks of a checkpoint, to be erased before anything is written.
    checkpoint: Vec<u32>,
    page: Vec<u8>,
    spare: Vec<u8>,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// A state in memory that knows nothing of the medium yet.
    fn blank(nand: N, config: Config) -> Result<Self> {
        let geometry = nand.geometry();
        geometry.check()?;
        let usable = geometry.pages_per_block - summary::pages(&geometry, config.summaries);
        Ok(Fs {
            geometry,
            place: TagPlace::for_spare(geometry.spare_bytes),
            config,
            blocks: Blocks::new(geometry, usable),
            objects: Objects::default(),
            open: None,
            sequence: crate::tags::SEQUENCE_FIRST - 1,
            last_block: geometry.blocks - 1,
            cache: Cache::default(),
            dirty: BTreeSet::new(),
            reserving: BTreeSet::new(),
            creations: 0,
            now: Time::default(),
            store: None,
            stats: Stats::default(),
            cleaning: None,
            since_levelling: 0,
            last_update_ms: 0,
            identity: [0; 16],
            report: MountReport::default(),
            session: None,
            checkpoint: Vec::new(),
            page: alloc::vec![0; geometry.page_bytes as usize],
            spare: alloc::vec![0; geometry.spare_bytes as usize],
            nand,
        })
    }

    /// Says what time it is: what objects that are changed from now on are stamped with.
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// The part.
    pub fn nand(&self) -> &N {
        &self.nand
    }

    /// The part, to be watched or tampered with.
    pub fn nand_mut(&mut self) -> &mut N {
        &mut self.nand
    }

    /// The NVRAM, if there is one.
    pub fn nvram_mut(&mut self) -> Option<&mut V> {
        self.store.as_mut().map(Store::device_mut)
    }

    /// Gives the media back, as they are: nothing is written any more.
    pub fn into_media(self) -> (N, Option<V>) {
        (self.nand, self.store.map(Store::into_device))
    }

    /// What was done since it was opened.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How it was opened.
    pub fn report(&self) -> &MountReport {
        &self.report
    }

    /// What was chosen.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How erases are spread, as far as known: without NVRAM counts begin with the mount.
    pub fn wear(&self) -> Wear {
        self.blocks.wear()
    }

    /// Bytes of the NVRAM that records take, and its size.
    pub fn nvram_used(&self) -> Option<(usize, usize)> {
        self.store.as_ref().map(|store| (store.used_bytes(), store.size_bytes()))
    }

    /// Whether records did not fit the NVRAM, so that a mount would scan.
    pub fn nvram_overflows(&self) -> bool {
        self.store.as_ref().is_some_and(Store::overflows)
    }

    /// How many objects there are, names of links among them.
    pub fn object_count(&self) -> u32 {
        self.objects.count()
    }

    fn object(&self, id: u32) -> Result<&Object> {
        self.objects.get(id).ok_or(Error::Stale)
    }

    fn object_mut(&mut self, id: u32) -> Result<&mut Object> {
        self.objects.get_mut(id).ok_or(Error::Stale)
    }

    /// The object's record in NVRAM is out of date.
    pub(crate) fn note_object(&mut self, id: u32) {
        if let Some(store) = &mut self.store {
            store.note_object(id);
        }
    }

    /// Its header was written anew.
    pub(crate) fn note_header(&mut self, id: u32) {
        if let Some(store) = &mut self.store {
            store.note_header(id);
        }
    }

    /// The record of one segment of its map is out of date.
    pub(crate) fn note_page(&mut self, id: u32, index: u32) {
        if let Some(store) = &mut self.store {
            store.note_segment(id, index / crate::map::SEGMENT);
        }
    }
}

/// What a failed NAND read means to the one who asked for a page's contents.
pub(crate) fn read_error(error: NandError, page: u32) -> Error {
    match error {
        NandError::Gone | NandError::Failed => Error::Gone,
        NandError::Unreadable => Error::Corrupt {
            what: "page",
            why: "more bits are wrong than can be corrected",
            at: u64::from(page),
        },
    }
}
