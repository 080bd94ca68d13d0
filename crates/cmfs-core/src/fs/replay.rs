//! Replaying the log: what each page, in the order in which they were written, means for the state; and the full scan,
//! which replays all of it.
//!
//! A scan replays blocks in the order of their sequence numbers (ties by place, as image makers leave them). Of a
//! block with a summary that is whole two spare areas and one page are read, of others all spare areas.
//!
//! A replay knows objects by number only: their directories are built when it is over.
//!
//! A scan in bounded memory writes what it found to the NVRAM whenever a quarter of the memory is not free, and fetches
//! it again when a page of it is met. The NVRAM says nothing of it to a later mount before the scan is over. Where it is
//! too small for that, all has to fit memory. Cost: some records of the NVRAM read for each page of what is not in
//! memory, and each written several times.

use super::entries::HalfMoves;
use super::flash::BlockTail;
use super::log::Log;
use super::{Layout, MountReport};
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::media::{Nand, Nvram};
use crate::object::{
    DELETED, GROUP, Kind, LOST_FOUND, MAX_ID, NONE, Object, Objects, PAGES_MAX, ROOT, UNLINKED,
};
use crate::sorted;
use crate::tags::{
    Extra, Packed, PageKind, SEQUENCE_CHECKPOINT, SEQUENCE_FORMAT, SEQUENCE_LAST, SEQUENCE_LOWEST, SpareState,
};
use alloc::vec::Vec;

/// About what a step that may have to be finished takes beside its name.
const HALF_MOVE_BYTES: usize = 48;

/// A replay under way.
pub(super) struct Replay<'a, N, V> {
    log: &'a mut Log<N, V>,
    objects: &'a mut Objects,
    report: &'a mut MountReport,
    moves: HalfMoves,
    /// What was found may go to the NVRAM.
    writes_down: bool,
}

impl<'a, N: Nand, V: Nvram> Replay<'a, N, V> {
    pub fn new(log: &'a mut Log<N, V>, objects: &'a mut Objects, report: &'a mut MountReport) -> Self {
        Replay { log, objects, report, moves: HalfMoves::new(), writes_down: false }
    }

    /// After a crash: reads what was written since the NVRAM was last updated.
    pub fn recover(mut self, layout: Layout) -> Result<HalfMoves> {
        let open = self.log.take_open();
        match layout {
            Layout::Compact => {
                if let Some((block, next)) = open {
                    self.replay_tail(block, next, None, true)?;
                }
            }
            Layout::Paper => self.recover_by_sequence(open.map(|(block, _)| block))?,
        }
        Ok(self.finish())
    }

    /// Reads all blocks. `firsts` is what is known of their first pages already. With bounded memory and an NVRAM that
    /// was formatted for it, what was found goes there; one that turns out too small is put into `device`.
    pub fn scan(mut self, firsts: &[SpareState], device: &mut Option<V>) -> Result<HalfMoves> {
        self.writes_down = self.objects.is_bounded() && self.log.memory.store().is_some();
        self.objects.set_scanning(self.writes_down);
        let order = self.order_of_blocks(firsts)?;
        let newest = order.last().map(|(_, block)| *block);
        for (sequence, block) in order {
            self.scan_block(sequence, block, newest == Some(block), device)?;
            self.objects.check_room()?;
        }
        self.bring_headerless()?;
        self.objects.set_scanning(false);
        Ok(self.finish())
    }

    /// Before a page is replayed: what was found so far is written down and may go, if a quarter of the memory is not
    /// free.
    fn find_memory(&mut self, device: &mut Option<V>) -> Result<()> {
        if !self.writes_down {
            return Ok(());
        }
        self.objects.begin();
        if self.objects.room() >= self.wanted_bytes() {
            return Ok(());
        }
        if self.log.commit(self.objects, false)?.overflow {
            self.log.memory.bring_all(self.objects)?;
            *device = self.log.memory.take_device();
            self.writes_down = false;
            return Ok(());
        }
        let (wanted, memory) = (self.wanted_bytes(), &self.log.memory);
        if !self.objects.make_room(wanted, |id| memory.is_told(id)) {
            let own = self.wanted_bytes() - self.objects.bound_bytes() / 4;
            if self.objects.room() <= own {
                return Err(Error::NoMemory);
            }
        }
        Ok(())
    }

    /// A quarter of the memory, and what tables beside the objects take.
    fn wanted_bytes(&self) -> usize {
        let moves: usize = self.moves.values().map(|(_, name)| HALF_MOVE_BYTES + name.len()).sum();
        self.objects.bound_bytes() / 4 + self.log.memory.table_bytes() + moves
    }

    /// Gets into memory what has contents and no header, of what was written down.
    fn bring_headerless(&mut self) -> Result<()> {
        let (mut found, objects) = (Vec::new(), &*self.objects);
        self.log.memory.for_each(objects, false, &mut |id, object| {
            if object.header == NONE && objects.is_stored(id) {
                found.push(id);
            }
        })?;
        for id in found {
            self.bring(id)?;
            self.objects.check_room()?;
        }
        Ok(())
    }

    /// Replays a block from page `from` on. What follows the last page is not used again before an erase: it may
    /// have been begun.
    fn replay_tail(&mut self, block: u32, from: u32, sequence: Option<u32>, is_newest: bool) -> Result<()> {
        let tail = self.log.flash.read_tail(block, from)?;
        self.report.replayed_pages += tail.pages.len() as u32;
        self.replay(block, sequence, tail, is_newest, &mut None)
    }

    /// Replays what was read of a block; with a sequence number, of one that is another than was known.
    fn replay(
        &mut self,
        block: u32,
        sequence: Option<u32>,
        mut tail: BlockTail,
        is_newest: bool,
        device: &mut Option<V>,
    ) -> Result<()> {
        if is_newest {
            self.log.flash.find_torn(&mut tail)?;
        }
        self.report.blocks_read += 1;
        self.report.unreadable_pages += tail.unreadable;
        self.report.lost.extend_from_slice(&tail.lost);
        let guards = self.apply_all(&tail, device)?;
        self.log.blocks.replayed(block, sequence, tail.end, guards);
        sequence.into_iter().for_each(|sequence| self.log.replayed(block, sequence));
        Ok(())
    }

    /// The paper's recovery: a block was touched since if its sequence number on NAND is not the one in NVRAM, or
    /// if it was open then. A spare area is read for each block, three where that is erased, and the pages of those that were
    /// touched.
    fn recover_by_sequence(&mut self, open: Option<u32>) -> Result<()> {
        let mut touched = Vec::new();
        for block in 0..self.log.flash.geometry().blocks {
            let known = self.log.blocks.get(block);
            if known.state == BlockState::Bad {
                continue;
            }
            let is_in_log = |sequence: &u32| (SEQUENCE_LOWEST..=SEQUENCE_LAST).contains(sequence);
            let now = self.first_sequence(block, None)?.filter(is_in_log).unwrap_or(0);
            if now != 0 && (now != known.sequence || Some(block) == open) {
                touched.push((now, block));
            } else if now == 0 {
                // Any of them may have been opened when the power went: nothing here says which.
                self.log.blocks.blank(block);
            }
        }
        sorted::sort(&mut touched);
        let newest = touched.last().map(|(_, block)| *block);
        for (sequence, block) in touched {
            self.replay_tail(block, 0, Some(sequence), newest == Some(block))?;
        }
        Ok(())
    }

    /// The blocks that hold something, oldest first. What looks erased is erased again before it is used. `firsts` is
    /// what is known of first pages already.
    fn order_of_blocks(&mut self, firsts: &[SpareState]) -> Result<Vec<(u32, u32)>> {
        let mut order = Vec::new();
        for block in 0..self.log.flash.geometry().blocks {
            if self.log.holds_records(block) || self.log.flash.is_bad(block)? {
                self.log.blocks.mark_bad(block);
                continue;
            }
            match self.first_sequence(block, firsts.get(block as usize).copied())? {
                Some(SEQUENCE_CHECKPOINT) => self.log.met_checkpoint(block),
                Some(sequence) if sequence != SEQUENCE_FORMAT => order.push((sequence, block)),
                // Erased; or what was a block of records once.
                _ => self.log.blocks.blank(block),
            }
        }
        sorted::sort(&mut order);
        Ok(order)
    }

    /// The sequence number of a block: of its first page, or where that cannot be read, or reads as erased and is not, of
    /// the next.
    fn first_sequence(&mut self, block: u32, mut known: Option<SpareState>) -> Result<Option<u32>> {
        let first = self.log.flash.geometry().first_page(block);
        let mut unreadable = 0;
        for page in first..first + self.log.flash.geometry().pages_per_block {
            let tags = match known.take() {
                Some(tags) => tags,
                None => self.log.flash.read_tags(page)?,
            };
            match tags {
                SpareState::Erased if !self.log.flash.goes_on(block, page - first, false)? => break,
                SpareState::Tagged(tags) => return Ok(Some(tags.sequence)),
                SpareState::Erased | SpareState::Unreadable => unreadable += 1,
            }
        }
        self.report.unreadable_pages += unreadable;
        Ok(None)
    }

    fn scan_block(
        &mut self,
        sequence: u32,
        block: u32,
        is_newest: bool,
        device: &mut Option<V>,
    ) -> Result<()> {
        let summary = self.log.flash.read_summary(block)?;
        let first = self.log.flash.geometry().first_page(block);
        let tail = match summary {
            Some(tags) => {
                let end = tags.len() as u32;
                BlockTail { pages: (first..).zip(tags).collect(), end, ..BlockTail::default() }
            }
            None => self.log.flash.read_tail(block, 0)?,
        };
        self.replay(block, Some(sequence), tail, is_newest, device)
    }

    /// Applies pages in order; whether the block they are in keeps older pages dead.
    fn apply_all(&mut self, tail: &BlockTail, device: &mut Option<V>) -> Result<bool> {
        let mut guards = false;
        for (page, tags) in &tail.pages {
            self.find_memory(device)?;
            let is_over = tail.torn.contains(page) && self.pass_over(*page, tags)?;
            guards |= if is_over { false } else { self.apply(*page, tags)? };
        }
        Ok(guards)
    }

    /// Of a page without its data, which was never synced, an older state counts if there is one, from now on; whether there
    /// is. Else what the tags say counts, and reading it is an error: it may have been synced. A deletion is all in its tags.
    fn pass_over(&mut self, page: u32, tags: &Packed) -> Result<bool> {
        let (id, index, extra) = match tags.kind() {
            PageKind::Data { object, index, .. } => (object, Some(index), None),
            PageKind::Header { object, extra } => (object, None, extra),
            _ => return Ok(false),
        };
        self.report.lost.push(page);
        if id > MAX_ID || extra.is_some_and(|extra| extra.parent == DELETED) {
            return Ok(false);
        }
        self.bring(id)?;
        let Some(object) = self.objects.get(id) else { return Ok(false) };
        let header = Some(object.header).filter(|header| *header != NONE);
        match index.map_or(header, |index| object.map.get(index)) {
            None => return Ok(false),
            // The NVRAM was told of it, when it was synced.
            Some(known) if known == page => {}
            Some(_) => self.log.flash.pass_over(page, tags.sequence),
        }
        Ok(true)
    }

    /// Applies one page; whether it keeps older pages dead.
    fn apply(&mut self, page: u32, tags: &Packed) -> Result<bool> {
        if let PageKind::Data { object, .. } | PageKind::Header { object, .. } = tags.kind() {
            self.bring(object)?;
        }
        match tags.kind() {
            // No file system has such objects and pages: memory is not taken for them.
            PageKind::Data { object, .. } | PageKind::Header { object, .. } if object > MAX_ID => Ok(false),
            PageKind::Data { index, .. } if u64::from(index) >= PAGES_MAX => Ok(false),
            PageKind::Data { object, index, bytes } => {
                self.apply_data(object, index, bytes, page);
                Ok(bytes == 0)
            }
            PageKind::Header { object, extra } => self.apply_header(object, extra, page),
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => Ok(false),
        }
    }

    /// Gets an object into memory that the NVRAM alone has.
    fn bring(&mut self, id: u32) -> Result<()> {
        match self.objects.is_stored(id) {
            true => self.log.memory.bring(self.objects, id / GROUP, |other| other == id),
            false => Ok(()),
        }
    }

    fn apply_data(&mut self, id: u32, index: u32, bytes: u32, page: u32) {
        if self.objects.get(id).is_none() {
            // Its header may follow.
            self.objects.insert(id, Object::new(Kind::File, 0));
        }
        let page_bytes = u64::from(self.log.flash.geometry().page_bytes);
        let Some(object) = self.objects.get_mut(id) else { return };
        if bytes == 0 {
            object.map.clear(index);
        } else {
            object.map.set(index, page);
            let end = u64::from(index) * page_bytes + u64::from(bytes).min(page_bytes);
            object.flash_size = object.flash_size.max(end);
            object.size = object.flash_size;
        }
        self.log.memory.note_object(id);
        self.log.memory.note_page(id, index);
    }

    fn apply_header(&mut self, id: u32, extra: Option<Extra>, page: u32) -> Result<bool> {
        let whole = match extra {
            Some(extra) if !extra.shadows => None,
            _ => match self.log.flash.fetch(page) {
                Err(Error::Gone) => return Err(Error::Gone),
                // Its tags say whose it is, but not what it replaced.
                Err(_) => {
                    self.report.unreadable_pages += 1;
                    self.report.lost.push(page);
                    None
                }
                Ok(_) => Header::read(self.log.flash.page(), u64::from(page)).ok(),
            },
        };
        let told = extra.or_else(|| whole.as_ref().map(extra_of));
        let Some(told) = told else { return Ok(false) };
        if matches!(id, ROOT | LOST_FOUND) && told.kind != Kind::Dir {
            // Neither is ever anything else: so says a page that is not what it seems.
            return Ok(false);
        }
        if let Some(header) = &whole
            && header.shadows != 0
        {
            self.bring(header.shadows)?;
            self.shadow(header.shadows);
        }
        if told.parent == DELETED && id != ROOT {
            self.drop_object(id);
            return Ok(true);
        }
        let size = match &whole {
            Some(header) if extra.is_none() => header.size,
            _ => u64::from(told.size_or_target),
        };
        self.place_header(id, &told, size, page);
        self.moves.remove(&id);
        if let Some(together) = whole.and_then(|header| header.together) {
            self.moves.insert(together.object, (together.parent, together.name));
        }
        Ok(told.shrink)
    }

    fn place_header(&mut self, id: u32, told: &Extra, size: u64, page: u32) {
        if self.objects.get(id).is_none_or(|object| object.kind != told.kind) {
            if self.objects.get(id).is_some_and(|object| object.map.count() > 0) {
                self.log.memory.note_gone(id);
            }
            self.objects.insert(id, Object::new(told.kind, told.parent));
        }
        let pages = self.log.flash.geometry().pages_of(size);
        let Some(object) = self.objects.get_mut(id) else { return };
        object.header = page;
        object.details = None;
        object.size_unknown = false;
        object.parent = match id {
            ROOT | LOST_FOUND => ROOT,
            _ => told.parent,
        };
        match told.kind {
            Kind::File => {
                object.size = size;
                object.flash_size = size;
                if object.map.end() > pages {
                    object.map.truncate(pages);
                    self.log.memory.note_pages_from(id, pages);
                }
            }
            Kind::HardLink => object.target = told.size_or_target,
            _ => {}
        }
        self.log.memory.note_header(id);
    }

    /// An object was replaced. Flash may not say yet that it is gone: until it does, the NVRAM goes on knowing the object,
    /// without a name, and it is removed before anything else is written.
    fn shadow(&mut self, id: u32) {
        self.moves.remove(&id);
        match self.objects.get_mut(id).filter(|_| id > LOST_FOUND) {
            Some(object) if object.header != NONE || object.map.count() > 0 => object.parent = UNLINKED,
            _ => return self.drop_object(id),
        }
        self.log.memory.note_object(id);
    }

    fn drop_object(&mut self, id: u32) {
        self.moves.remove(&id);
        if id != ROOT && id != LOST_FOUND && self.objects.remove(id).is_some() {
            self.log.memory.note_gone(id);
        }
    }

    /// Where pages of the log are lost, those may have been headers: what has contents and no header is kept in `lost+found`.
    /// Else pages of objects whose header was never written belong to nobody: those objects have no name, and flash says so before
    /// their numbers are given to others, whose holes would else show them in a scan. Returns the steps that are to be
    /// finished.
    pub fn finish(mut self) -> HalfMoves {
        for id in self.objects.ids() {
            let Some(object) = self.objects.get_mut(id) else { continue };
            match (object.header, object.map.count()) {
                (NONE, 0) if id > LOST_FOUND => self.drop_object(id),
                (NONE, _) if id > LOST_FOUND => {
                    self.moves.remove(&id);
                    // What was replaced has no name in any case.
                    let is_lost = object.parent != UNLINKED && !self.report.lost.is_empty();
                    object.damaged = object.parent == LOST_FOUND || is_lost;
                    object.parent = if object.damaged { LOST_FOUND } else { UNLINKED };
                    self.log.memory.note_object(id);
                }
                _ => {}
            }
        }
        self.moves
    }
}

/// What the tags of a live header would have said.
fn extra_of(header: &Header) -> Extra {
    let size_or_target = if header.kind == Kind::HardLink { header.target } else { header.size as u32 };
    Extra {
        parent: header.parent,
        kind: header.kind,
        size_or_target,
        shrink: header.shrink,
        shadows: header.shadows != 0,
    }
}
