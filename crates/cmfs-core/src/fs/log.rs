//! The log: pages go one after the other into the open block, and headers are among them.

use super::{Fs, Open, read_error};
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::header::{Header, Together};
use crate::media::{Nand, NandError, Nvram};
use crate::object::{DELETED, Details, Kind, NONE, ROOT, Rest, UNLINKED};
use crate::summary;
use crate::tags::{Extra, Packed, PageKind, SEQUENCE_LAST, SUMMARY_OBJECT, SpareState};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A name that moves together with another.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub id: u32,
    pub to: u32,
    pub name: Box<[u8]>,
    /// What goes in the same step; 0: nothing.
    pub shadows: u32,
}

const ANOTHER: &str = "it is another one by its tags";

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Writes a page to the log and counts it live; where it went. The sequence number is filled in.
    pub(super) fn append(&mut self, tags: Packed, data: &[u8]) -> Result<u32> {
        self.begin_session()?;
        self.reap()?;
        self.drop_checkpoint()?;
        loop {
            let (block, page) = self.next_page()?;
            let tags = Packed { sequence: self.blocks.get(block).sequence, ..tags };
            self.place.write(&tags, data, &mut self.spare);
            self.announce_change()?;
            match self.nand.program(page, data, &self.spare) {
                Ok(()) => {
                    self.stats.programs += 1;
                    self.blocks.change(block, |entry| {
                        entry.live += 1;
                        entry.written += 1;
                    });
                    self.advance(tags)?;
                    return Ok(page);
                }
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(NandError::Failed | NandError::Unreadable) => self.give_up_open(block),
            }
        }
    }

    /// The block is not written to any more; what it holds is moved, then it is marked bad.
    fn give_up_open(&mut self, block: u32) {
        self.stats.failures += 1;
        self.open = None;
        self.blocks.change(block, |entry| {
            entry.retire = true;
            entry.written += 1;
        });
        self.blocks.close(block);
    }

    /// Where the next page goes: opens a block if none is.
    fn next_page(&mut self) -> Result<(u32, u32)> {
        if self.open.is_none() {
            self.open_block()?;
        }
        let open = self.open.as_ref().ok_or(Error::NoSpace)?;
        Ok((open.block, self.geometry.first_page(open.block) + open.next))
    }

    /// Takes note of a page written; a full block gets its summary and is closed.
    fn advance(&mut self, tags: Packed) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.next += 1;
        if let Some(all) = &mut open.tags {
            all.push(tags);
        }
        if open.next >= self.blocks.usable {
            return self.finish_block();
        }
        Ok(())
    }

    fn finish_block(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let block = open.block;
        if let (true, Some(tags)) = (self.config.summaries, open.tags) {
            self.write_summary(block, &tags)?;
        }
        self.blocks.close(block);
        Ok(())
    }

    fn write_summary(&mut self, block: u32, tags: &[Packed]) -> Result<()> {
        let sequence = self.blocks.get(block).sequence;
        let bytes = summary::encode(block, sequence, tags);
        let page_bytes = self.geometry.page_bytes as usize;
        for (part, chunk) in bytes.chunks(page_bytes).zip(1..) {
            let mut page = alloc::vec![0xff; page_bytes];
            page[..part.len()].copy_from_slice(part);
            let tags = Packed { sequence, object: SUMMARY_OBJECT, chunk, bytes: part.len() as u32 };
            self.place.write(&tags, &page, &mut self.spare);
            let at = self.geometry.first_page(block) + self.blocks.usable + chunk - 1;
            match self.nand.program(at, &page, &self.spare) {
                Ok(()) => self.stats.programs += 1,
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(_) => {
                    self.stats.failures += 1;
                    self.blocks.change(block, |entry| entry.retire = true);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Opens the next block. The NVRAM knows it before the first page is in it, and knows all before it, so that
    /// recovery has one block to read.
    fn open_block(&mut self) -> Result<()> {
        let block = match self.blocks.next_erased(self.last_block) {
            Some(block) => block,
            None => self.erase_one()?,
        };
        if self.sequence >= SEQUENCE_LAST {
            return Err(Error::Unsupported("the sequence numbers of this part are used up"));
        }
        self.sequence += 1;
        let sequence = self.sequence;
        self.blocks.change(block, |entry| {
            entry.state = BlockState::Open;
            entry.sequence = sequence;
            entry.live = 0;
            entry.written = 0;
            entry.guards = false;
        });
        self.last_block = block;
        self.open = Some(Open { block, next: 0, tags: Some(Vec::new()) });
        self.since_levelling += 1;
        if self.commits_per_block() {
            self.commit(false)?;
        }
        Ok(())
    }

    /// Erases one block; which.
    pub(super) fn erase_one(&mut self) -> Result<u32> {
        self.begin_session()?;
        self.drop_checkpoint()?;
        loop {
            if self.blocks.next_erasable(self.last_block).is_none() {
                if self.blocks.waiting() == 0 {
                    return Err(Error::NoSpace);
                }
                self.commit(false)?;
            }
            let Some(block) = self.blocks.next_erasable(self.last_block) else { return Err(Error::NoSpace) };
            if self.blocks.get(block).retire {
                self.mark_bad(block)?;
                continue;
            }
            match self.nand.erase(block) {
                Ok(()) => {
                    self.stats.erases += 1;
                    self.blocks.change(block, |entry| {
                        let erases = entry.erases + 1;
                        *entry = crate::blocks::Block { erases, ..Default::default() };
                    });
                    return Ok(block);
                }
                Err(NandError::Gone) => return Err(Error::Gone),
                Err(_) => {
                    self.stats.failures += 1;
                    self.mark_bad(block)?;
                }
            }
        }
    }

    /// A block is given up for good.
    pub(super) fn mark_bad(&mut self, block: u32) -> Result<()> {
        self.begin_session()?;
        // A block that cannot even be marked will fail again when it is tried after a scan.
        if self.nand.mark_bad(block) == Err(NandError::Gone) {
            return Err(Error::Gone);
        }
        self.blocks.change(block, |entry| entry.state = BlockState::Bad);
        Ok(())
    }

    /// Reads a page of the log into the page buffer; its tags.
    pub(super) fn fetch(&mut self, page: u32) -> Result<Packed> {
        self.nand.read(page, &mut self.page, &mut self.spare).map_err(|error| read_error(error, page))?;
        let torn = |why| Error::Corrupt { what: "page", why, at: u64::from(page) };
        match self.place.read(&self.spare) {
            SpareState::Tagged(tags) if self.place.data_is_whole(&self.page, &self.spare) => Ok(tags),
            SpareState::Tagged(_) => Err(torn("its checksum is wrong")),
            SpareState::Erased | SpareState::Unreadable => Err(torn("it has no tags")),
        }
    }

    /// As [`fetch`](Fs::fetch), of a page that must be this one of this file.
    pub(super) fn fetch_data(&mut self, page: u32, id: u32, index: u32) -> Result<()> {
        match self.fetch(page)?.kind() {
            PageKind::Data { object, index: own, bytes: 1.. } if (object, own) == (id, index) => Ok(()),
            _ => Err(Error::Corrupt { what: "page", why: ANOTHER, at: u64::from(page) }),
        }
    }

    /// As [`fetch`](Fs::fetch), of a page that must be this object's header.
    fn fetch_header(&mut self, page: u32, id: u32) -> Result<()> {
        match self.fetch(page)?.kind() {
            PageKind::Header { object, .. } if object == id => Ok(()),
            _ => Err(Error::Corrupt { what: "page", why: ANOTHER, at: u64::from(page) }),
        }
    }

    /// Loads what only the header says; with `rest`, what only the header page says.
    pub(super) fn load_details(&mut self, id: u32, rest: bool) -> Result<()> {
        let there = self.object(id)?.details.as_ref().map(|details| details.rest.is_some());
        match there {
            Some(has_rest) if !rest || has_rest => return Ok(()),
            None if !rest && self.details_from_store(id)? => return Ok(()),
            _ => {}
        }
        let (page, old) = (self.object(id)?.header, self.object(id)?.details.clone());
        if page == NONE {
            let details = old.unwrap_or_default();
            let filled = Details { rest: Some(details.rest.clone().unwrap_or_default()), ..*details };
            self.object_mut(id)?.details = Some(Box::new(filled));
            return Ok(());
        }
        let header = match self.fetch_header(page, id) {
            Ok(()) => Header::read(&self.page, u64::from(page)),
            Err(error) => Err(error),
        };
        let header = match header {
            Err(Error::Corrupt { .. }) => return self.stand_in(id),
            header => header?,
        };
        if self.object(id)?.size_unknown {
            self.learn_size(id, &header)?;
        }
        let mut loaded = Details::from_header(header);
        // What is newer in memory stays.
        if let Some(old) = old {
            loaded = Details { rest: loaded.rest, ..*old };
        }
        self.object_mut(id)?.details = Some(Box::new(loaded));
        Ok(())
    }

    /// An object whose header cannot be read stays to be seen, read and removed: the error is its own alone.
    fn stand_in(&mut self, id: u32) -> Result<()> {
        if self.object(id)?.details.is_none() && !self.details_from_store(id)? {
            let kind = self.object(id)?.kind;
            self.object_mut(id)?.details = Some(Box::new(Details::stand_in(id, kind)));
        }
        if self.object(id)?.size_unknown {
            self.learn_size(id, &Header::default())?;
        }
        let object = self.object_mut(id)?;
        object.damaged = true;
        if let Some(details) = object.details.as_deref_mut() {
            details.rest = Some(Rest::default());
        }
        Ok(())
    }

    /// Fails for an object whose header cannot be read: what is not known of it would be lost if it was changed.
    pub(super) fn ensure_whole(&mut self, id: u32) -> Result<()> {
        let object = self.object(id)?;
        match object.damaged {
            true => Err(Error::Corrupt {
                what: "object header",
                why: "it cannot be read; the object can be read, renamed and removed",
                at: u64::from(object.header),
            }),
            false => Ok(()),
        }
    }

    /// Gives every object whose header cannot be read a new one, under the name it goes by now; how many.
    ///
    /// # Errors
    /// The media are gone or full.
    pub fn repair(&mut self) -> Result<u32> {
        let mut repaired = 0;
        for id in self.objects.ids() {
            if self.objects.get(id).is_none() {
                continue;
            }
            self.load_details(id, true)?;
            if self.object(id)?.damaged {
                self.make_room()?;
                self.ensure_parent(id)?;
                self.write_header(id, false, 0)?;
                repaired += 1;
            }
        }
        Ok(repaired)
    }

    /// What the paper's records leave to the header. Pages may have been written behind the end that it knows;
    /// then the last one says where the end is.
    fn learn_size(&mut self, id: u32, header: &Header) -> Result<()> {
        let object = self.object(id)?;
        let (end, mut size) = (object.map.end(), header.size.max(object.flash_size));
        if end > self.pages_of(size)
            && let Some(page) = object.map.get(end - 1)
        {
            let valid = match self.read_tags(page)? {
                SpareState::Tagged(tags) => tags.bytes.min(self.geometry.page_bytes),
                SpareState::Erased | SpareState::Unreadable => self.geometry.page_bytes,
            };
            size = u64::from(end - 1) * u64::from(self.geometry.page_bytes) + u64::from(valid);
        }
        let object = self.object_mut(id)?;
        (object.size, object.flash_size, object.target) = (size, size, header.target);
        object.size_unknown = false;
        Ok(())
    }

    /// Makes sure that the size of a file is known.
    pub(super) fn ensure_size(&mut self, id: u32) -> Result<()> {
        if self.object(id)?.size_unknown { self.load_details(id, true) } else { Ok(()) }
    }

    /// The header of an object as it is now.
    fn header_of(&mut self, id: u32, parent: u32, shrink: bool, shadows: u32) -> Result<Header> {
        self.load_details(id, true)?;
        let object = self.object(id)?;
        let details = object.details.as_deref().cloned().unwrap_or_default();
        let Rest { alias, attributes } = details.rest.unwrap_or_default();
        Ok(Header {
            kind: object.kind,
            parent: if id == ROOT { 0 } else { parent },
            name: details.name,
            mode: details.mode,
            uid: details.uid,
            gid: details.gid,
            atime: details.atime,
            mtime: details.mtime,
            ctime: details.ctime,
            crtime: details.crtime,
            size: object.size,
            target: object.target,
            alias,
            rdev: details.rdev,
            shadows,
            shrink,
            together: None,
            attributes,
        })
    }

    /// Writes an object's header, with what it replaces; the old one is dead then.
    pub(super) fn write_header(&mut self, id: u32, shrink: bool, shadows: u32) -> Result<()> {
        let parent = self.object(id)?.parent;
        self.write_header_in(id, parent, shrink, shadows)
    }

    /// As [`write_header`](Fs::write_header), in another directory. Until the header is on flash the NVRAM, which
    /// may be updated on the way, goes on saying where the object was; then what it replaces has no name any more.
    pub(super) fn write_header_in(&mut self, id: u32, parent: u32, shrink: bool, shadows: u32) -> Result<()> {
        let header = self.header_of(id, parent, shrink, shadows)?;
        let page = self.append_header(id, &header)?;
        self.take_header(id, parent, page, shadows)
    }

    /// An object's header is on a new page now, in a directory.
    fn take_header(&mut self, id: u32, parent: u32, page: u32, shadows: u32) -> Result<()> {
        if let Some(replaced) = self.objects.get_mut(shadows) {
            replaced.parent = UNLINKED;
            self.note_object(shadows);
        }
        let object = self.object_mut(id)?;
        object.parent = parent;
        let old = core::mem::replace(&mut object.header, page);
        object.flash_size = object.size;
        object.dirty = false;
        object.damaged = false;
        self.dirty.remove(&id);
        self.release(old);
        self.note_header(id);
        Ok(())
    }

    /// Writes the headers of two objects that move in one step. Memory, and with it the NVRAM, goes on saying where
    /// both were until both are on flash; a replay that finds only one of them finishes the step.
    pub(super) fn write_together(&mut self, moves: [&Move; 2]) -> Result<()> {
        let [one, two] = moves;
        let first = self.header_of_move(one, two)?;
        let second = self.header_of_move(two, one)?;
        let page = self.append_header(one.id, &first)?;
        let other = match self.append_header(two.id, &second) {
            Ok(other) => other,
            Err(error) => {
                self.release(page);
                return Err(error);
            }
        };
        for (moved, page) in [(one, page), (two, other)] {
            self.details(moved.id)?.name = moved.name.clone();
            self.take_header(moved.id, moved.to, page, moved.shadows)?;
        }
        Ok(())
    }

    fn header_of_move(&mut self, own: &Move, other: &Move) -> Result<Header> {
        let together = Together { object: other.id, parent: other.to, name: other.name.clone() };
        Ok(Header {
            name: own.name.clone(),
            together: Some(together),
            ..self.header_of(own.id, own.to, false, own.shadows)?
        })
    }

    fn append_header(&mut self, id: u32, header: &Header) -> Result<u32> {
        let mut page = alloc::vec![0; self.geometry.page_bytes as usize];
        header.write(&mut page)?;
        let extra = Extra {
            parent: header.parent,
            kind: header.kind,
            size_or_target: match header.kind {
                Kind::File => header.size as u32,
                Kind::HardLink => header.target,
                _ => 0,
            },
            shrink: header.shrink,
            // Whoever scans has to read this page.
            shadows: header.shadows != 0 || header.together.is_some(),
        };
        let size = if header.kind == Kind::File { header.size } else { 0 };
        let at = self.append(Packed::header(0, id, &extra, size), &page)?;
        if header.shrink {
            self.blocks.change(self.geometry.block_of(at), |entry| entry.guards = true);
        }
        Ok(at)
    }

    /// Says on flash that an object is gone. The header is dead at once, and keeps what is older dead.
    pub(super) fn write_deletion(&mut self, id: u32) -> Result<()> {
        let kind = self.object(id)?.kind;
        let header = Header {
            kind,
            parent: DELETED,
            name: b"deleted"[..].into(),
            shrink: true,
            mtime: self.now,
            ctime: self.now,
            ..Header::default()
        };
        let page = self.append_header(id, &header)?;
        self.release(page);
        Ok(())
    }

    /// A page is of no use any more.
    pub(super) fn release(&mut self, page: u32) {
        if page != NONE {
            self.blocks.page_dies(self.geometry.block_of(page));
        }
    }
}
