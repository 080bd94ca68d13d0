//! Making a file system, and the ways to open one.
//!
//! 1. *Clean*: the NVRAM says where everything is and that nothing was written since. Read: the NVRAM, and of the
//!    NAND one page (the format record: are identity and session the same?) and five or six spare areas (was it written
//!    without us, by ourselves or by others? is there a checkpoint that must go before a write?).
//! 2. *Recovered*: pages were written since. They are in the block that the NVRAM names (compact), or in blocks
//!    whose sequence numbers differ (paper); these are read and replayed.
//! 3. *Checkpoint*: as below, but the NAND holds a checkpoint of YAFFS2 that is whole.
//! 4. *Scanned*: the NVRAM is missing, spoilt, or older than the NAND. Every block's summary is read, or every
//!    spare area where there is none. Where memory is bounded, this is done in place of the third.
//!
//! A part without a format record is refused, unless [`Config::plain`](super::Config::plain) asks for it; then the
//! NVRAM is left alone, since nothing ties it to the part.

use super::Fs;
use super::log::{DIFFER, Log};
use super::replay::Replay;
use super::session::Match;
use super::volume::Volume;
use super::{Cache, Config, Reservations, Scrubber};
use crate::UpdateReport;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::nvram::{Refusal, State, Store};
use crate::object::{Details, Kind, LOST_FOUND, Object, Objects, ROOT, Rest};
use alloc::boxed::Box;
use alloc::vec::Vec;

const WITHOUT: &str = "the NAND was written without this NVRAM";

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
    /// Those of them that were lost for certain: of what they held an older state counts, or none.
    pub lost: Vec<u32>,
}

/// Makes a directory that is there without a header, too.
fn make_dir(objects: &mut Objects, id: u32, name: &[u8], mode: u32) {
    let mut dir = Object::new(Kind::Dir, ROOT);
    let rest = Some(Rest::default());
    dir.details = Some(Box::new(Details { name: name.into(), mode, rest, ..Details::default() }));
    objects.insert(id, dir);
}

fn make_lost_found(objects: &mut Objects) {
    make_dir(objects, LOST_FOUND, b"lost+found", 0o40_700);
}

/// A root with an empty `lost+found`.
fn make_root(config: &Config) -> Objects {
    let mut objects = Objects::bounded(config.memory_bytes);
    #[cfg(feature = "paper")]
    if config.layout == super::Layout::Paper {
        objects = objects.with_trees(true);
    }
    make_dir(&mut objects, ROOT, b"", 0o40_755);
    make_lost_found(&mut objects);
    objects
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    fn new(volume: Volume<N, V>, report: MountReport) -> Self {
        let (cache, reservations) = (Cache::default(), Reservations::default());
        Fs { volume, cache, reservations, last_update_ms: 0, report, scrubber: Scrubber::default() }
    }

    /// Makes an empty file system. `identity` ties NAND and NVRAM and should be random. With `erase` every good
    /// block is erased; without, all must be erased already.
    pub fn format(
        nand: N,
        nvram: Option<V>,
        config: Config,
        identity: [u8; 16],
        erase: bool,
    ) -> Result<Self> {
        config.check()?;
        let mut log = Log::new(nand, config)?;
        for block in 0..log.flash.geometry().blocks {
            if log.flash.is_bad(block)? {
                log.blocks.mark_bad(block);
            } else if erase {
                log.erase(block)?;
            }
        }
        log.plan_sessions(identity)?;
        if let Some(device) = nvram {
            log.format_memory(device, log.session())?;
        }
        let mut objects = make_root(&config);
        objects.build_dirs();
        let mut fs = Self::new(Volume::new(log, objects, config), MountReport::default());
        fs.volume.write_header(ROOT, false, 0)?;
        fs.update()?;
        fs.volume.log.write_first_record()?;
        fs.volume.log.flash.sync()?;
        Ok(fs)
    }

    /// Opens a file system: from the NVRAM if it can be, else by a scan.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a part without a format record, [`Error::Mismatch`] for the NVRAM of another one.
    pub fn open(nand: N, nvram: Option<V>, config: Config) -> Result<Self> {
        config.check()?;
        let log = Log::new(nand, config)?;
        let Some(device) = nvram else { return Self::scan(log, None, "there is no NVRAM", false) };
        match Store::open(device, config.layout, config.names, &log.flash.geometry(), config.memory_bytes) {
            Ok((store, state)) => Self::open_with(log, store, state),
            Err((device, refusal)) => Self::scan(log, Some(device), refusal.why(), false),
        }
    }

    /// Opens by a scan whatever the NVRAM or a checkpoint says; the NVRAM is written anew.
    pub fn open_scanning(nand: N, nvram: Option<V>, config: Config) -> Result<Self> {
        config.check()?;
        Self::scan(Log::new(nand, config)?, nvram, "it was asked for", true)
    }

    fn open_with(mut log: Log<N, V>, store: Store<V>, mut state: State) -> Result<Self> {
        let (modified, config) = (state.modified, log.config());
        let stale = match log.match_memory(&state.pairing)? {
            Match::Holds => None,
            Match::Foreign => return Err(Error::Mismatch(DIFFER)),
            Match::Stale => Some(WITHOUT),
            Match::Plain => Some("it has no format record"),
        };
        // Records number pages by how many of a block hold data.
        let differs = config.layout == super::Layout::Compact && state.usable != log.blocks.usable();
        let stale =
            stale.or(differs.then_some("the NVRAM was written with, or without, summaries of blocks"));
        if let Some(why) = stale {
            drop(state);
            return Self::scan(log, Some(store.into_device()), why, false);
        }
        let headerless = core::mem::take(&mut state.headerless);
        let mut objects = log.adopt(state);
        log.blocks.take_changed();
        let is_dir = |id| objects.get(id).is_some_and(|object| object.kind == Kind::Dir);
        if !is_dir(ROOT) || objects.get(LOST_FOUND).is_some() && !is_dir(LOST_FOUND) {
            drop(objects);
            return Self::scan(log, Some(store.into_device()), Refusal::Damaged.why(), false);
        }
        if objects.get(LOST_FOUND).is_none() {
            make_lost_found(&mut objects);
        }
        let mut volume = Volume::new(log, objects, config);
        volume.load_link_targets()?;
        if volume.log.others_wrote(modified)? {
            return Self::scan(volume.into_log(), Some(store.into_device()), WITHOUT, false);
        }
        volume.log.memory.set(Some(store));
        // A replay looks at what may have got no header.
        headerless.into_iter().try_for_each(|id| volume.bring(id))?;
        let kind = if modified { MountKind::Recovered } else { MountKind::Clean };
        let mut report = MountReport { kind, ..MountReport::default() };
        let replay = Replay::new(&mut volume.log, &mut volume.objects, &mut report);
        let moves = if modified { replay.recover(config.layout)? } else { replay.finish() };
        volume.finish_mount()?;
        volume.finish_moves(moves)?;
        if !modified {
            volume.log.find_checkpoint()?;
        }
        Ok(Self::new(volume, report))
    }

    /// Opens by a scan: from a checkpoint of YAFFS2 unless `all` is to be scanned, else from all blocks. The NVRAM is
    /// written anew; a session begins with that, so that no NVRAM the part had before is taken for this one. Where memory
    /// is bounded a checkpoint, which says all at once, is not read, and the NVRAM takes what the scan finds.
    fn scan(log: Log<N, V>, mut device: Option<V>, why: &'static str, all: bool) -> Result<Self> {
        let config = log.config();
        let mut log = log.start_over()?;
        log.find_session()?;
        if let Some(device) = &mut device {
            log.refuse_anothers(device)?;
        }
        let mut report = MountReport { kind: MountKind::Scanned, why, ..MountReport::default() };
        let (mut objects, mut firsts) = (make_root(&config), Vec::new());
        let found = if all || objects.is_bounded() { None } else { log.load_checkpoint(&mut firsts)? };
        for (id, object) in found.iter().flat_map(Objects::iter) {
            objects.insert(id, object.clone());
        }
        if objects.is_bounded()
            && let Some(device) = device.take()
            && log.format_memory(device, log.session().wrapping_add(1)) == Ok(true)
        {
            log.memory.begin_scan();
        }
        let replay = Replay::new(&mut log, &mut objects, &mut report);
        let moves = if found.is_some() { replay.finish() } else { replay.scan(&firsts, &mut device)? };
        if found.is_some() {
            report.kind = MountKind::Checkpoint;
        }
        let mut volume = Volume::new(log, objects, config);
        volume.finish_mount()?;
        volume.finish_moves(moves)?;
        volume.log.memory.end_scan();
        // Where one of the two cannot even be written, the file system goes on without the NVRAM.
        let number = volume.log.session().wrapping_add(1);
        let has_memory = match device {
            Some(device) => volume.log.format_memory(device, number) == Ok(true),
            None => volume.log.memory.store().is_some(),
        };
        if has_memory {
            match volume.log.begin_session() {
                Ok(()) => volume.commit_scan()?,
                Err(error) if volume.objects.has_stored() => return Err(error),
                Err(_) => volume.log.memory.set(None),
            }
        }
        Ok(Self::new(volume, report))
    }

    /// Makes everything durable on the NAND, and the NVRAM agree.
    pub fn update(&mut self) -> Result<UpdateReport> {
        self.sync()?;
        self.volume.commit(true)
    }

    /// Updates, if something changed and [`Config::update_ms`] passed since the last time. `now_ms` is any clock.
    pub fn update_if_due(&mut self, now_ms: u64) -> Result<Option<UpdateReport>> {
        if now_ms.saturating_sub(self.last_update_ms) < self.volume.config.update_ms {
            return Ok(None);
        }
        self.last_update_ms = now_ms;
        self.refresh()?;
        if self.has_changed() { self.update().map(Some) } else { Ok(None) }
    }

    /// Whether an update would write something.
    pub(super) fn has_changed(&self) -> bool {
        self.volume.objects.dirty_from(0).next().is_some()
            || self.cache.len() > 0
            || self.volume.log.memory.is_modified()
    }

    /// Makes all durable and leaves a checkpoint for YAFFS2 on a machine whose pointers have `pointer_bytes` (4 or 8);
    /// whether there was room for it. The next write erases it. The NVRAM, if there is one, is as good as without.
    ///
    /// # Errors
    /// As [`update`](Fs::update)'s; [`Error::BadArgument`] for other sizes of pointers.
    pub fn checkpoint(&mut self, pointer_bytes: usize) -> Result<bool> {
        if !matches!(pointer_bytes, 4 | 8) {
            return Err(Error::BadArgument);
        }
        self.update()?;
        for id in self.volume.objects.all_ids().collect::<Vec<u32>>() {
            self.volume.bring(id)?;
            if self.volume.objects.room() == 0 {
                return Err(Error::NoMemory);
            }
        }
        if self.volume.log.drop_checkpoint(&self.volume.objects)? {
            self.update()?;
        }
        self.volume.log.leave_checkpoint(&self.volume.objects, pointer_bytes)
    }

    /// Ends cleanly; the media.
    pub fn close(mut self) -> Result<(N, Option<V>)> {
        self.update()?;
        Ok(self.into_media())
    }
}
