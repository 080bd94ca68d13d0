//! Making a file system, and the ways to open one.
//!
//! 1. *Clean*: the NVRAM says where everything is and that nothing was written since. Read: the NVRAM, and of the
//!    NAND one page (the format record: are identity and session the same?) and four spare areas (was it written
//!    without us, by ourselves or by others? is there a checkpoint that must go before a write?).
//! 2. *Recovered*: pages were written since. They are in the block that the NVRAM names (compact), or in blocks
//!    whose sequence numbers differ (paper); these are read and replayed.
//! 3. *Checkpoint*: as below, but the NAND holds a checkpoint of YAFFS2 that is whole.
//! 4. *Scanned*: the NVRAM is missing, spoilt, or older than the NAND. Every block's summary is read, or every
//!    spare area where there is none.
//!
//! A part without a format record is refused, unless [`Config::plain`](super::Config::plain) asks for it; then the
//! NVRAM is left alone, since nothing ties it to the part.

use super::session::Match;
use super::{Config, Fs, Layout, Open};
use crate::UpdateReport;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::media::{Nand, NandError, Nvram};
use crate::nvram::{Refusal, Snapshot, State, Store, Tie};
use crate::object::{DELETED, Details, Kind, LOST_FOUND, NONE, Object, ROOT, Rest, UNLINKED};
use crate::tags::{PageKind, SpareState};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// How a file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountKind {
    /// It was just made.
    #[default]
    Made,
    /// From the NVRAM.
    Clean,
    /// From the NVRAM, and what was written since from the NAND.
    Recovered,
    /// From a checkpoint that YAFFS2, or this file system for it, left in the NAND.
    Checkpoint,
    /// From the NAND alone.
    Scanned,
}

/// What opening took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// How it was opened.
    pub kind: MountKind,
    /// Why it had to be scanned; empty where it had not.
    pub why: &'static str,
    /// Pages written since the last update of the NVRAM.
    pub replayed_pages: u32,
    /// Blocks that were read.
    pub blocks_read: u32,
    /// Pages of the log that could not be read: cut off by a power loss, or lost.
    pub unreadable_pages: u32,
    pub(crate) to_reap: Vec<u32>,
    /// Where objects go whose half of a step of two moves did not get to flash: directory and name.
    pub(crate) to_move: BTreeMap<u32, (u32, Box<[u8]>)>,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Makes an empty file system. `identity` ties NAND and NVRAM and should be random. With `erase` every good
    /// block is erased; without, all must be erased already.
    pub fn format(
        nand: N,
        nvram: Option<V>,
        config: Config,
        identity: [u8; 16],
        erase: bool,
    ) -> Result<Self> {
        let mut fs = Self::blank(nand, config)?;
        fs.identity = identity;
        for block in 0..fs.geometry.blocks {
            if fs.nand.is_bad(block).map_err(|_| Error::Gone)? {
                fs.blocks.change(block, |entry| entry.state = BlockState::Bad);
            } else if erase {
                fs.blocks.change(block, |entry| entry.state = BlockState::Erasable);
                while fs.blocks.get(block).state == BlockState::Erasable {
                    match fs.erase_one() {
                        Ok(_) => {}
                        Err(Error::NoSpace) => break,
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        fs.plan_sessions()?;
        fs.make_root();
        fs.build_dirs();
        let memory = fs.session();
        fs.store = nvram.map(|device| fs.format_store(device, memory)).transpose()?;
        fs.write_header(ROOT, false, 0)?;
        fs.update()?;
        fs.write_first_record()?;
        fs.sync_nand()?;
        Ok(fs)
    }

    fn format_store(&self, device: V, memory: u32) -> Result<Store<V>> {
        let tie = Tie { identity: self.identity, memory, ..Tie::default() };
        Store::format(device, self.config.layout, self.config.names, &self.geometry, tie)
    }

    pub(super) fn make_root(&mut self) {
        for (id, name, mode) in [(ROOT, &b""[..], 0o40_755), (LOST_FOUND, b"lost+found", 0o40_700)] {
            let mut dir = Object::new(Kind::Dir, ROOT);
            let (now, rest) = (self.now, Some(Rest::default()));
            let details =
                Details { name: name.into(), mode, mtime: now, ctime: now, rest, ..Details::default() };
            dir.details = Some(Box::new(details));
            self.objects.insert(id, dir);
        }
    }

    /// Opens a file system: from the NVRAM if it can be, else by a scan.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a part without a format record, [`Error::Mismatch`] for the NVRAM of another one.
    pub fn open(nand: N, nvram: Option<V>, config: Config) -> Result<Self> {
        let mut fs = Self::blank(nand, config)?;
        let Some(device) = nvram else {
            fs.find_session()?;
            fs.scan("there is no NVRAM", false)?;
            return Ok(fs);
        };
        match Store::open(device, config.layout, config.names, &fs.geometry) {
            Ok((store, state)) => fs.open_with(store, state),
            Err((device, refusal)) => fs.open_without(device, refusal.why(), false),
        }
    }

    /// Opens by a scan whatever the NVRAM or a checkpoint says; the NVRAM is written anew.
    pub fn open_scanning(nand: N, nvram: Option<V>, config: Config) -> Result<Self> {
        let fs = Self::blank(nand, config)?;
        match nvram {
            Some(device) => fs.open_without(device, "it was asked for", true),
            None => {
                let mut fs = fs;
                fs.find_session()?;
                fs.scan("it was asked for", true)?;
                Ok(fs)
            }
        }
    }

    fn open_with(mut self, mut store: Store<V>, state: State) -> Result<Self> {
        let modified = state.modified;
        match self.match_memory(&state.tie)? {
            Match::Holds => {}
            Match::Foreign => return Err(Error::Mismatch("their identities differ")),
            Match::Stale => return self.open_without(store.into_device(), WITHOUT, false),
            Match::Plain => return self.open_without(store.into_device(), "it has no format record", false),
        }
        if let Err(refusal) = self.take_state(state) {
            return self.open_without(store.into_device(), refusal.why(), false);
        }
        self.load_link_targets()?;
        if self.others_wrote(modified)? {
            return self.open_without(store.into_device(), WITHOUT, false);
        }
        self.report.kind = if modified { MountKind::Recovered } else { MountKind::Clean };
        if modified {
            store.keep_modified();
            self.store = Some(store);
            self.recover()?;
        } else {
            self.store = Some(store);
            self.drop_unborn();
            self.finish_mount();
            self.find_checkpoint()?;
        }
        Ok(self)
    }

    /// Opens by a scan; the NVRAM is written anew. A session begins with that, so that no NVRAM the part had before is
    /// taken for this one.
    fn open_without(self, device: V, why: &'static str, all: bool) -> Result<Self> {
        let session = self.session;
        let mut fs = Self { session, identity: self.identity, ..Self::blank(self.nand, self.config)? };
        fs.find_session()?;
        fs.scan(why, all)?;
        if fs.session.is_none() {
            return Ok(fs);
        }
        // Where one of the two cannot even be written, the file system goes on without the NVRAM.
        if let Ok(store) = fs.format_store(device, fs.next_memory()) {
            fs.store = Some(store);
            match fs.begin_session() {
                Ok(()) => drop(fs.commit(false)?),
                Err(_) => fs.store = None,
            }
        }
        Ok(fs)
    }

    /// Makes what the NVRAM says the state in memory.
    fn take_state(&mut self, state: State) -> Result<(), Refusal> {
        self.objects = state.objects;
        self.sequence = state.sequence;
        self.last_block = state.last_block;
        for (block, entry) in (0u32..).zip(state.blocks) {
            self.blocks.change(block, |old| *old = entry);
        }
        self.reserve_record_blocks();
        let open = state.open;
        self.open = open.map(|(block, next)| Open { block, next, tags: None });
        if self.objects.get(ROOT).is_none() {
            return Err(Refusal::Damaged);
        }
        if self.objects.get(LOST_FOUND).is_none() {
            self.make_lost_found();
        }
        self.blocks.take_changed();
        Ok(())
    }

    /// The paper's records do not say what links stand for.
    fn load_link_targets(&mut self) -> Result<()> {
        let is_link = |object: &Object| object.kind == Kind::HardLink && object.size_unknown;
        let links: Vec<u32> = self.objects.iter().filter(|(_, o)| is_link(o)).map(|(id, _)| id).collect();
        for id in links {
            match self.load_details(id, true) {
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn make_lost_found(&mut self) {
        let mut dir = Object::new(Kind::Dir, ROOT);
        let details = Details {
            name: b"lost+found"[..].into(),
            mode: 0o40_700,
            rest: Some(Rest::default()),
            ..Details::default()
        };
        dir.details = Some(Box::new(details));
        self.objects.insert(LOST_FOUND, dir);
    }

    /// Whether another driver, which begins no session, wrote the NAND since the NVRAM did.
    fn others_wrote(&mut self, modified: bool) -> Result<bool> {
        let open = self.open.as_ref().map(|open| (open.block, open.next));
        if let Some((block, next)) = open
            && !modified
            && next < self.blocks.usable
            && self.read_tags(self.geometry.first_page(block) + next)? != SpareState::Erased
        {
            return Ok(true);
        }
        Ok(self.config.layout == Layout::Compact && self.was_gone_on()?)
    }

    /// Whether the NAND was written behind the last block: any other driver, and a scan of ours, would have gone on
    /// in the first erased block there. What a checkpoint takes, which a write would have erased, is passed over.
    fn was_gone_on(&mut self) -> Result<bool> {
        let mut after = self.last_block;
        for _ in 0..self.geometry.blocks {
            let Some(block) = self.blocks.next_erased_in_place(after) else { return Ok(false) };
            match self.read_tags(self.geometry.first_page(block))? {
                SpareState::Erased => return Ok(false),
                SpareState::Tagged(tags) if tags.kind() == PageKind::Checkpoint => after = block,
                SpareState::Tagged(_) | SpareState::Unreadable => return Ok(true),
            }
        }
        Ok(true)
    }

    /// Brings the rest of memory in line with objects and blocks.
    pub(super) fn finish_mount(&mut self) {
        self.hang_up_orphans();
        self.build_dirs();
        let pages: Vec<u32> = self
            .objects
            .iter()
            .flat_map(|(_, object)| {
                let header = (object.header != NONE).then_some(object.header);
                header.into_iter().chain(object.map.iter().map(|(_, page)| page))
            })
            .collect();
        self.blocks.recount(pages.into_iter());
    }

    /// What has no directory goes to `lost+found`, a link to nothing goes; what had no name is to be reaped.
    fn hang_up_orphans(&mut self) {
        for id in self.objects.ids() {
            let Some(object) = self.objects.get(id) else { continue };
            let (parent, target) = (object.parent, object.target);
            if object.kind == Kind::HardLink
                && !self.objects.get(target).is_some_and(|o| o.kind != Kind::HardLink)
            {
                self.objects.remove(id);
                continue;
            }
            if parent == UNLINKED || parent == DELETED {
                self.report.to_reap.push(id);
                continue;
            }
            let has_dir = self.objects.get(parent).is_some_and(|dir| dir.kind == Kind::Dir);
            if id != ROOT
                && id != LOST_FOUND
                && (!has_dir || parent == id)
                && let Some(object) = self.objects.get_mut(id)
            {
                object.parent = LOST_FOUND;
            }
        }
        self.note_everything_in_lost_found();
    }

    fn note_everything_in_lost_found(&mut self) {
        let lost: Vec<u32> =
            self.objects.iter().filter(|(_, object)| object.parent == LOST_FOUND).map(|(id, _)| id).collect();
        lost.into_iter().for_each(|id| self.note_object(id));
    }

    fn build_dirs(&mut self) {
        for id in self.objects.ids() {
            let Some(object) = self.objects.get(id) else { continue };
            let (kind, parent, target) = (object.kind, object.parent, object.target);
            if id != ROOT
                && let Some(dir) = self.objects.get_mut(parent).and_then(|object| object.dir.as_deref_mut())
            {
                dir.children.insert(id);
                dir.subdirs += u32::from(kind == Kind::Dir && id != LOST_FOUND);
            }
            if kind == Kind::HardLink
                && parent != UNLINKED
                && let Some(object) = self.objects.get_mut(target)
            {
                object.links += 1;
            }
        }
    }

    /// Makes everything durable on the NAND, and the NVRAM agree.
    pub fn update(&mut self) -> Result<UpdateReport> {
        self.sync()?;
        self.commit(true)
    }

    /// Updates, if something changed and [`Config::update_ms`] passed since the last time. `now_ms` is any clock.
    pub fn update_if_due(&mut self, now_ms: u64) -> Result<Option<UpdateReport>> {
        let changed = !self.dirty.is_empty()
            || self.cache.len() > 0
            || self.store.as_ref().is_some_and(Store::is_modified);
        if now_ms.saturating_sub(self.last_update_ms) < self.config.update_ms {
            return Ok(None);
        }
        self.last_update_ms = now_ms;
        if changed { self.update().map(Some) } else { Ok(None) }
    }

    /// Ends cleanly; the media.
    pub fn close(mut self) -> Result<(N, Option<V>)> {
        self.update()?;
        Ok(self.into_media())
    }

    /// Writes to NVRAM what changed since the last time. `clean` says that flash and memory agree.
    pub(crate) fn commit(&mut self, clean: bool) -> Result<UpdateReport> {
        // What the NVRAM speaks of is there before it does, and copies are before what they are of is erased.
        self.sync_nand()?;
        let Some(store) = &mut self.store else {
            self.blocks.committed();
            return Ok(UpdateReport::default());
        };
        let changed = self.blocks.take_changed();
        let report = store.commit(&Snapshot {
            objects: &self.objects,
            blocks: &self.blocks,
            changed_blocks: changed,
            geometry: &self.geometry,
            open: self.open.as_ref().map(|open| (open.block, open.next)),
            sequence: self.sequence,
            last_block: self.last_block,
            clean,
        })?;
        self.stats.commits += 1;
        self.stats.commit_bytes += report.bytes;
        self.blocks.committed();
        Ok(report)
    }

    /// Returns when what was programmed and erased stays.
    pub(super) fn sync_nand(&mut self) -> Result<()> {
        self.nand.sync().map_err(|_| Error::Gone)
    }

    /// Whether the NVRAM is brought up to date whenever a block is opened.
    pub(super) fn commits_per_block(&self) -> bool {
        self.store.is_some() && self.config.layout == Layout::Compact
    }

    /// Before the NAND changes for the first time after an update, the NVRAM says so.
    pub(super) fn announce_change(&mut self) -> Result<()> {
        match &mut self.store {
            Some(store) => store.announce(),
            None => Ok(()),
        }
    }

    /// Loads an object's name and attributes from NVRAM, with those of its neighbours; whether they were there.
    pub(super) fn details_from_store(&mut self, id: u32) -> Result<bool> {
        let Some(store) = &mut self.store else { return Ok(false) };
        let Some(found) = store.names(id)? else { return Ok(false) };
        for (id, details) in found {
            if let Some(object) = self.objects.get_mut(id)
                && object.details.is_none()
            {
                object.details = Some(Box::new(details));
            }
        }
        Ok(self.object(id)?.details.is_some())
    }

    /// Reads whether a block is marked bad.
    pub(super) fn is_marked_bad(&mut self, block: u32) -> Result<bool> {
        match self.nand.is_bad(block) {
            Ok(bad) => Ok(bad),
            Err(NandError::Gone) => Err(Error::Gone),
            Err(_) => Ok(true),
        }
    }
}

const WITHOUT: &str = "the NAND was written without this NVRAM";
