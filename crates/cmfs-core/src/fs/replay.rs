//! Replaying the log: what each page, in the order in which they were written, means for the state.

use super::Fs;
use super::data::PAGES_MAX;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::media::{Nand, Nvram};
use crate::object::{DELETED, Kind, LOST_FOUND, MAX_ID, NONE, Object, ROOT, UNLINKED};
use crate::tags::{Extra, Packed, PageKind, SpareState};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// After a crash: reads what was written since the NVRAM was last updated.
    pub(super) fn recover(&mut self) -> Result<()> {
        match self.config.layout {
            super::Layout::Compact => {
                if let Some(open) = self.open.take() {
                    self.replay_tail(open.block, open.next)?;
                }
            }
            super::Layout::Paper => self.recover_by_sequence()?,
        }
        self.drop_unborn();
        self.finish_mount();
        self.finish_moves()
    }

    /// Replays a block from page `from` on. What follows the last page is not used again before an erase: it may
    /// have been begun.
    fn replay_tail(&mut self, block: u32, from: u32) -> Result<()> {
        let (pages, end) = self.read_tail(block, from)?;
        self.report.blocks_read += 1;
        self.report.replayed_pages += pages.len() as u32;
        let guards = self.apply_all(&pages)?;
        let usable = self.blocks.usable;
        self.blocks.change(block, |entry| {
            entry.state = BlockState::Full;
            entry.written = end.min(usable);
            entry.guards |= guards;
        });
        Ok(())
    }

    /// The tags of a block's pages from `from` on, the last one checked to be whole, and the first page that is
    /// erased.
    pub(super) fn read_tail(&mut self, block: u32, from: u32) -> Result<(Vec<(u32, Packed)>, u32)> {
        let first = self.geometry.first_page(block);
        let mut pages = Vec::new();
        let mut end = from;
        for page in from..self.geometry.pages_per_block {
            match self.read_tags(first + page)? {
                SpareState::Erased => break,
                SpareState::Tagged(tags) => pages.push((first + page, tags)),
                SpareState::Unreadable => self.report.unreadable_pages += 1,
            }
            end = page + 1;
        }
        if let Some((last, _)) = pages.last().copied() {
            match self.fetch(last) {
                Ok(_) => {}
                Err(Error::Gone) => return Err(Error::Gone),
                Err(_) => {
                    self.report.unreadable_pages += 1;
                    pages.pop();
                }
            }
        }
        Ok((pages, end))
    }

    /// Applies pages in order; whether the block they are in keeps older pages dead.
    pub(super) fn apply_all(&mut self, pages: &[(u32, Packed)]) -> Result<bool> {
        let mut guards = false;
        for (page, tags) in pages {
            guards |= self.apply(*page, tags)?;
        }
        Ok(guards)
    }

    /// Applies one page; whether it keeps older pages dead.
    fn apply(&mut self, page: u32, tags: &Packed) -> Result<bool> {
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

    fn apply_data(&mut self, id: u32, index: u32, bytes: u32, page: u32) {
        if self.objects.get(id).is_none() {
            // Its header may follow.
            self.objects.insert(id, Object::new(Kind::File, 0));
        }
        let page_bytes = u64::from(self.geometry.page_bytes);
        let Some(object) = self.objects.get_mut(id) else { return };
        if bytes == 0 {
            object.map.clear(index);
        } else {
            object.map.set(index, page);
            let end = u64::from(index) * page_bytes + u64::from(bytes).min(page_bytes);
            object.flash_size = object.flash_size.max(end);
            object.size = object.flash_size;
        }
        self.note_object(id);
        self.note_page(id, index);
    }

    fn apply_header(&mut self, id: u32, extra: Option<Extra>, page: u32) -> Result<bool> {
        let whole = match extra {
            Some(extra) if !extra.shadows => None,
            _ => match self.fetch(page) {
                Err(Error::Gone) => return Err(Error::Gone),
                Err(_) => {
                    self.report.unreadable_pages += 1;
                    return Ok(false);
                }
                Ok(_) => Header::read(&self.page, u64::from(page)).ok(),
            },
        };
        let told = extra.or_else(|| whole.as_ref().map(extra_of));
        let Some(told) = told else { return Ok(false) };
        if let Some(header) = &whole
            && header.shadows != 0
        {
            self.shadow_replayed(header.shadows);
        }
        if told.parent == DELETED && id != ROOT {
            self.drop_replayed(id);
            return Ok(true);
        }
        let size = match &whole {
            Some(header) if extra.is_none() => header.size,
            _ => u64::from(told.size_or_target),
        };
        self.place_header(id, &told, size, page);
        self.report.to_move.remove(&id);
        if let Some(together) = whole.and_then(|header| header.together) {
            self.report.to_move.insert(together.object, (together.parent, together.name));
        }
        Ok(told.shrink)
    }

    fn place_header(&mut self, id: u32, told: &Extra, size: u64, page: u32) {
        if self.objects.get(id).is_none_or(|object| object.kind != told.kind) {
            self.objects.insert(id, Object::new(told.kind, told.parent));
        }
        let pages = self.pages_of(size);
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
                    if let Some(store) = &mut self.store {
                        store.note_segments_from(id, pages / crate::map::SEGMENT);
                    }
                }
            }
            Kind::HardLink => object.target = told.size_or_target,
            _ => {}
        }
        self.note_header(id);
    }

    /// An object was replaced. Flash may not say yet that it is gone: until it does, the NVRAM goes on knowing the object,
    /// without a name, and it is removed before anything else is written.
    fn shadow_replayed(&mut self, id: u32) {
        self.report.to_move.remove(&id);
        match self.objects.get_mut(id).filter(|_| id > LOST_FOUND) {
            Some(object) if object.header != NONE => object.parent = UNLINKED,
            _ => return self.drop_replayed(id),
        }
        self.note_object(id);
    }

    fn drop_replayed(&mut self, id: u32) {
        self.report.to_move.remove(&id);
        if id != ROOT
            && id != LOST_FOUND
            && self.objects.remove(id).is_some()
            && let Some(store) = &mut self.store
        {
            store.note_segments_from(id, 0);
            store.note_object(id);
        }
    }

    /// Finishes steps of two moves of which one got to flash. On media that cannot be written, in memory only.
    pub(super) fn finish_moves(&mut self) -> Result<()> {
        for (id, (to, name)) in core::mem::take(&mut self.report.to_move) {
            let is_dir = self.objects.get(to).is_some_and(|dir| dir.kind == Kind::Dir);
            if !is_dir || id <= LOST_FOUND || self.objects.get(id).is_none_or(|o| !o.is_named()) {
                continue;
            }
            match self.finish_move(id, to, name) {
                // Its header cannot be read: it stays where it was.
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn finish_move(&mut self, id: u32, to: u32, name: Box<[u8]>) -> Result<()> {
        self.load_details(id, true)?;
        let from = self.object(id)?.parent;
        if from == to && self.details(id)?.name == name {
            return Ok(());
        }
        self.remove_entry(from, id)?;
        self.details(id)?.name = name;
        match self.make_room().and_then(|()| self.write_header_in(id, to, false, 0)) {
            Ok(()) => {}
            Err(Error::Gone | Error::NoSpace) => {
                self.object_mut(id)?.parent = to;
                self.touch(id)?;
            }
            Err(error) => return Err(error),
        }
        self.add_entry(to, id)
    }

    /// Pages of objects whose header was never written belong to nobody.
    pub(super) fn drop_unborn(&mut self) {
        for id in self.objects.ids() {
            let unborn = self.objects.get(id).is_some_and(|object| object.header == NONE && id > LOST_FOUND);
            if unborn {
                self.drop_replayed(id);
            }
        }
    }

    /// The paper's recovery: a block was touched since if its sequence number on NAND is not the one in NVRAM, or
    /// if it was open then. One spare area is read for each block, and the pages of those that were touched.
    fn recover_by_sequence(&mut self) -> Result<()> {
        let open = self.open.take().map(|open| open.block);
        let mut touched = Vec::new();
        for block in 0..self.geometry.blocks {
            let known = self.blocks.get(block);
            if known.state == BlockState::Bad {
                continue;
            }
            let now = match self.read_tags(self.geometry.first_page(block))? {
                SpareState::Tagged(tags) if tags.in_log() => tags.sequence,
                _ => 0,
            };
            if now != 0 && (now != known.sequence || Some(block) == open) {
                touched.push((now, block));
            } else if now == 0 {
                // Any of them may have been opened when the power went: nothing here says which.
                self.blank_block(block);
            }
        }
        touched.sort_unstable();
        for (sequence, block) in touched {
            self.blocks.change(block, |entry| {
                entry.sequence = sequence;
                entry.guards = false;
            });
            if sequence > self.sequence {
                (self.sequence, self.last_block) = (sequence, block);
            }
            self.replay_tail(block, 0)?;
        }
        Ok(())
    }

    /// A block that looks erased, but may not be.
    pub(super) fn blank_block(&mut self, block: u32) {
        self.blocks.change(block, |entry| {
            let erases = entry.erases;
            *entry = crate::blocks::Block { state: BlockState::Erasable, erases, ..Default::default() };
        });
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
