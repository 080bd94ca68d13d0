//! The contents of files: reading, writing, cutting, holes, reservations, and getting them onto flash.

use super::Fs;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::object::{Kind, NONE, Object, ROOT};
use crate::tags::Packed;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most pages of a file: what the tags have bits for.
pub(super) const PAGES_MAX: u64 = 1 << 28;
/// Objects that may wait for their header.
const DIRTY_MAX: usize = 32;

/// What [`Fs::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may not be zero.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

impl Object {
    /// Promised pages that are not there yet.
    pub(super) fn reserved_left(&self) -> u64 {
        let there = |from: u32, to: u32| (from..to).filter(|index| self.map.get(*index).is_some()).count();
        self.reserved.iter().map(|&(from, to)| u64::from(to - from) - there(from, to) as u64).sum()
    }

    fn is_reserved(&self, index: u32) -> bool {
        self.reserved.iter().any(|(from, to)| (*from..*to).contains(&index))
    }

    /// Adds pages to those promised; ranges stay apart from each other.
    fn reserve(&mut self, mut from: u32, mut to: u32) {
        self.reserved.retain(|&(start, end)| {
            let touches = start <= to && from <= end;
            if touches {
                (from, to) = (from.min(start), to.max(end));
            }
            !touches
        });
        self.reserved.push((from, to));
    }

    /// Takes promises back.
    fn unreserve(&mut self, from: u32, to: u32) {
        let cut = |(start, end): (u32, u32)| [(start, end.min(from)), (start.max(to), end)];
        let left: Vec<(u32, u32)> =
            self.reserved.iter().copied().flat_map(cut).filter(|r| r.0 < r.1).collect();
        self.reserved = left;
    }
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    fn page_bytes(&self) -> u64 {
        u64::from(self.geometry.page_bytes)
    }

    /// The number of the page that byte `offset` is in.
    fn index_of(&self, offset: u64) -> u32 {
        (offset / self.page_bytes()) as u32
    }

    /// How many pages `size` bytes take.
    pub(crate) fn pages_of(&self, size: u64) -> u32 {
        size.div_ceil(self.page_bytes()).min(PAGES_MAX) as u32
    }

    pub(super) fn file(&self, id: u32) -> Result<&Object> {
        let object = self.object(id)?;
        match object.kind {
            Kind::File => Ok(object),
            Kind::Dir => Err(Error::IsDir),
            _ => Err(Error::BadArgument),
        }
    }

    /// Reads into `buffer` from `offset` on; how many bytes there were.
    pub fn read(&mut self, id: u32, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.ensure_size(id)?;
        let size = self.file(id)?.size;
        let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, within) = (self.index_of(at), (at % self.page_bytes()) as usize);
            let part = (self.page.len() - within).min(len - done);
            self.read_part(id, index, within, &mut buffer[done..done + part])?;
            done += part;
        }
        Ok(len)
    }

    fn read_part(&mut self, id: u32, index: u32, within: usize, to: &mut [u8]) -> Result<()> {
        if let Some(bytes) = self.cache.get(id, index) {
            to.copy_from_slice(&bytes[within..within + to.len()]);
            return Ok(());
        }
        match self.file(id)?.map.get(index) {
            None => to.fill(0),
            Some(page) => {
                self.fetch_data(page, id, index)?;
                to.copy_from_slice(&self.page[within..within + to.len()]);
            }
        }
        Ok(())
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
        if end.div_ceil(self.page_bytes()) > PAGES_MAX {
            return Err(Error::TooLarge);
        }
        self.ensure_size(id)?;
        self.ensure_whole(id)?;
        let size = self.file(id)?.size;
        if data.is_empty() {
            return Ok(());
        }
        self.check_room(self.new_pages(id, offset, end)?)?;
        if offset > size {
            self.zero_tail(id)?;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (index, within) = (self.index_of(at), (at % self.page_bytes()) as usize);
            let part = (self.page.len() - within).min(data.len() - done);
            self.write_part(id, index, within, &data[done..done + part])?;
            done += part;
            let object = self.object_mut(id)?;
            object.size = object.size.max(at + part as u64);
        }
        self.touch_contents(id)
    }

    /// Pages that do not exist yet of those between two offsets.
    fn new_pages(&self, id: u32, from: u64, to: u64) -> Result<u64> {
        let object = self.file(id)?;
        let is_new = |index: &u32| {
            object.map.get(*index).is_none()
                && self.cache.get(id, *index).is_none()
                && !object.is_reserved(*index)
        };
        Ok((self.index_of(from)..self.pages_of(to)).filter(is_new).count() as u64)
    }

    fn write_part(&mut self, id: u32, index: u32, within: usize, data: &[u8]) -> Result<()> {
        if data.len() == self.page.len() {
            self.make_room()?;
            self.put_page(id, index, data.len() as u32, data)?;
            self.cache.take(id, index);
            return Ok(());
        }
        self.load_page(id, index)?;
        if let Some(bytes) = self.cache.get_mut(id, index) {
            bytes[within..within + data.len()].copy_from_slice(data);
        }
        while self.cache.len() > self.config.cache_pages.max(1) {
            let Some((id, index)) = self.cache.oldest() else { break };
            self.flush_page(id, index)?;
        }
        Ok(())
    }

    /// Gets a page into the cache, zeros behind the end of the file.
    fn load_page(&mut self, id: u32, index: u32) -> Result<()> {
        if self.cache.get(id, index).is_some() {
            return Ok(());
        }
        let object = self.file(id)?;
        let (size, page) = (object.size, object.map.get(index));
        let mut bytes: Box<[u8]> = alloc::vec![0; self.page.len()].into();
        if let Some(page) = page {
            self.fetch_data(page, id, index)?;
            let valid =
                size.saturating_sub(u64::from(index) * self.page_bytes()).min(bytes.len() as u64) as usize;
            bytes[..valid].copy_from_slice(&self.page[..valid]);
        }
        self.cache.put(id, index, bytes);
        Ok(())
    }

    /// Before a file grows: what its last page has behind the end becomes zeros.
    fn zero_tail(&mut self, id: u32) -> Result<()> {
        let size = self.file(id)?.size;
        let index = self.index_of(size);
        if size.is_multiple_of(self.page_bytes()) || self.cache.get(id, index).is_some() {
            return Ok(());
        }
        let Some(page) = self.file(id)?.map.get(index) else { return Ok(()) };
        self.fetch(page)?;
        let valid = (size % self.page_bytes()) as usize;
        if self.page[valid..].iter().any(|byte| *byte != 0) {
            self.load_page(id, index)?;
        }
        Ok(())
    }

    /// Writes a page of a file to the log.
    pub(super) fn put_page(&mut self, id: u32, index: u32, bytes: u32, data: &[u8]) -> Result<()> {
        let page = self.append(Packed::data(0, id, index, bytes), data)?;
        let end = u64::from(index) * self.page_bytes() + u64::from(bytes);
        let object = self.object_mut(id)?;
        let old = object.map.set(index, page);
        let grows = end > object.flash_size;
        object.flash_size = object.flash_size.max(end);
        self.release(old.unwrap_or(NONE));
        self.note_page(id, index);
        if grows {
            self.note_object(id);
        }
        Ok(())
    }

    fn flush_page(&mut self, id: u32, index: u32) -> Result<()> {
        let size = self.file(id)?.size;
        let valid = size.saturating_sub(u64::from(index) * self.page_bytes()).min(self.page_bytes());
        let Some(bytes) = self.cache.get(id, index) else { return Ok(()) };
        let copy: Vec<u8> = bytes.to_vec();
        self.make_room()?;
        // A page of no valid bytes would be the mark of a hole.
        if valid > 0 {
            self.put_page(id, index, valid as u32, &copy)?;
        }
        self.cache.take(id, index);
        Ok(())
    }

    fn flush_data(&mut self, id: u32) -> Result<()> {
        let indices: Vec<u32> = self.cache.indices(id, 0).collect();
        indices.into_iter().try_for_each(|index| self.flush_page(id, index))
    }

    /// Cuts or extends a file.
    pub fn truncate(&mut self, id: u32, size: u64) -> Result<()> {
        if size.div_ceil(self.page_bytes()) > PAGES_MAX {
            return Err(Error::TooLarge);
        }
        self.ensure_size(id)?;
        self.ensure_whole(id)?;
        let old = self.file(id)?.size;
        if size > old {
            self.zero_tail(id)?;
            self.object_mut(id)?.size = size;
        }
        if size < old {
            self.cut(id, size)?;
        }
        self.touch_contents(id)
    }

    fn cut(&mut self, id: u32, size: u64) -> Result<()> {
        let first_gone = self.pages_of(size);
        if !size.is_multiple_of(self.page_bytes()) {
            let index = self.index_of(size);
            let there = self.file(id)?.map.get(index).is_some() || self.cache.get(id, index).is_some();
            if there {
                self.load_page(id, index)?;
            }
            let valid = (size % self.page_bytes()) as usize;
            if let Some(bytes) = self.cache.get_mut(id, index) {
                bytes[valid..].fill(0);
            }
        }
        self.cache.truncate(id, first_gone);
        let object = self.object_mut(id)?;
        object.size = size;
        object.reserved.retain_mut(|(from, to)| {
            *to = (*to).min(first_gone);
            from < to
        });
        if object.map.end() > first_gone {
            // Flash has to say that the pages are dead before they are.
            self.make_room()?;
            self.ensure_parent(id)?;
            self.write_header(id, true, 0)?;
            let gone = self.object_mut(id)?.map.truncate(first_gone);
            gone.into_iter().for_each(|page| self.release(page));
            if let Some(store) = &mut self.store {
                store.note_segments_from(id, first_gone / crate::map::SEGMENT);
            }
        }
        let object = self.object_mut(id)?;
        object.flash_size = object.flash_size.min(size);
        self.note_object(id);
        Ok(())
    }

    /// Makes the bytes from `from` to `to` zeros, and a hole where whole pages are.
    pub fn punch(&mut self, id: u32, from: u64, to: u64) -> Result<()> {
        self.ensure_size(id)?;
        self.ensure_whole(id)?;
        let size = self.file(id)?.size;
        let to = to.min(size);
        if from >= to {
            return Ok(());
        }
        if to == size {
            self.cut(id, from)?;
            self.object_mut(id)?.size = size;
            return self.touch_contents(id);
        }
        let (first, last) = (self.pages_of(from), self.index_of(to));
        if first > last {
            self.zero_part(id, from, to)?;
            return self.touch_contents(id);
        }
        self.zero_part(id, from, u64::from(first) * self.page_bytes())?;
        self.zero_part(id, u64::from(last) * self.page_bytes(), to)?;
        for index in first..last {
            self.cache.take(id, index);
            if self.file(id)?.map.get(index).is_some() {
                self.mark_hole(id, index)?;
            }
        }
        self.object_mut(id)?.unreserve(first, last);
        self.touch_contents(id)
    }

    /// Zeros a part of one page, if it exists.
    fn zero_part(&mut self, id: u32, from: u64, to: u64) -> Result<()> {
        let index = self.index_of(from);
        let there = self.file(id)?.map.get(index).is_some() || self.cache.get(id, index).is_some();
        if from >= to || !there {
            return Ok(());
        }
        self.load_page(id, index)?;
        let base = u64::from(index) * self.page_bytes();
        if let Some(bytes) = self.cache.get_mut(id, index) {
            bytes[(from - base) as usize..(to - base) as usize].fill(0);
        }
        Ok(())
    }

    /// A page of no valid bytes tells a scan that older pages of this index are dead; to other drivers it is a
    /// page of zeros.
    fn mark_hole(&mut self, id: u32, index: u32) -> Result<()> {
        self.make_room()?;
        let zeros = alloc::vec![0; self.page.len()];
        let page = self.append(Packed::data(0, id, index, 0), &zeros)?;
        self.blocks.change(self.geometry.block_of(page), |entry| entry.guards = true);
        self.release(page);
        let old = self.object_mut(id)?.map.clear(index);
        self.release(old.unwrap_or(NONE));
        self.note_page(id, index);
        Ok(())
    }

    /// Promises room for the bytes from `from` to `to`, in this mount.
    pub fn reserve(&mut self, id: u32, from: u64, to: u64) -> Result<()> {
        if to.div_ceil(self.page_bytes()) > PAGES_MAX {
            return Err(Error::TooLarge);
        }
        self.check_room(self.new_pages(id, from, to)?)?;
        let (first, last) = (self.index_of(from), self.pages_of(to));
        self.object_mut(id)?.reserve(first, last);
        self.reserving.insert(id);
        Ok(())
    }

    /// The next data or hole at or behind `offset`.
    pub fn seek(&mut self, id: u32, offset: u64, what: Seek) -> Result<u64> {
        self.ensure_size(id)?;
        let object = self.file(id)?;
        if offset >= object.size {
            return Err(Error::NoOffset);
        }
        let start = self.index_of(offset);
        let next = |from: u32| {
            let cached = self.cache.indices(id, from).next();
            object.map.next_page(from).into_iter().chain(cached).min()
        };
        let place = |index: u32| (u64::from(index) * self.page_bytes()).max(offset);
        match what {
            Seek::Data => next(start).map(place).filter(|at| *at < object.size).ok_or(Error::NoOffset),
            Seek::Hole => {
                let mut index = start;
                while place(index) < object.size && next(index) == Some(index) {
                    index += 1;
                }
                Ok(place(index).min(object.size))
            }
        }
    }

    /// Pages that a file takes, cached and promised ones included.
    pub(super) fn pages_taken(&self, id: u32) -> Result<u64> {
        let object = self.object(id)?;
        let new = |index: &u32| object.map.get(*index).is_none() && !object.is_reserved(*index);
        let cached = self.cache.indices(id, 0).filter(new).count() as u64;
        Ok(u64::from(object.map.count()) + cached + object.reserved_left())
    }

    fn touch_contents(&mut self, id: u32) -> Result<()> {
        self.load_details(id, false)?;
        let now = self.now;
        if let Some(details) = self.object_mut(id)?.details.as_deref_mut() {
            (details.mtime, details.ctime) = (now, now);
        }
        self.touch(id)
    }

    /// The header of an object is out of date.
    pub(super) fn touch(&mut self, id: u32) -> Result<()> {
        let creations = self.creations;
        let object = self.object_mut(id)?;
        if object.damaged {
            return Ok(());
        }
        object.dirty = true;
        object.touched = creations;
        self.dirty.insert(id);
        self.note_object(id);
        Ok(())
    }

    /// Objects that were not written to since one before the last was made are finished, most likely: their
    /// headers go next to their data.
    pub(super) fn flush_idle(&mut self) -> Result<()> {
        let before = self.creations;
        self.creations += 1;
        let touched = |id: &u32| self.objects.get(*id).map_or(0, |object| object.touched);
        let mut waiting: Vec<(u64, u32)> = self.dirty.iter().map(|id| (touched(id), *id)).collect();
        waiting.sort_unstable();
        let too_many = waiting.len().saturating_sub(DIRTY_MAX);
        for (number, (touched, id)) in waiting.into_iter().enumerate() {
            if touched < before || number < too_many {
                match self.flush_object(id) {
                    // Its own error: a sync says so.
                    Ok(()) | Err(Error::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Gets an object onto flash: what leads to it, its data, its header.
    pub(super) fn flush_object(&mut self, id: u32) -> Result<()> {
        self.ensure_parent(id)?;
        let object = self.object(id)?;
        match object.kind {
            Kind::File => self.flush_data(id)?,
            // A link to what flash does not know would be dropped by a scan.
            Kind::HardLink => {
                let target = object.target;
                if self.object(target)?.header == NONE {
                    self.flush_object(target)?;
                }
            }
            _ => {}
        }
        if self.object(id)?.dirty {
            self.make_room()?;
            self.write_header(id, false, 0)?;
        }
        Ok(())
    }

    /// Makes sure that flash knows the directories above an object.
    pub(super) fn ensure_parent(&mut self, id: u32) -> Result<()> {
        let parent = self.object(id)?.parent;
        self.ensure_dir(parent)
    }

    /// Makes sure that flash knows a directory, and those above it.
    pub(super) fn ensure_dir(&mut self, dir: u32) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir;
        while at != ROOT
            && let Some(object) = self.objects.get(at)
            && object.header == NONE
            && at > crate::object::LOST_FOUND
        {
            missing.push(at);
            at = object.parent;
        }
        for dir in missing.into_iter().rev() {
            self.make_room()?;
            self.write_header(dir, false, 0)?;
        }
        Ok(())
    }

    /// Makes an object durable, with the names that lead to it.
    pub fn sync_object(&mut self, id: u32) -> Result<()> {
        self.flush_object(id)?;
        if self.object(id)?.links > 0 {
            let leads_here = |id_of: &u32| {
                self.objects.get(*id_of).is_some_and(|o| o.kind == Kind::HardLink && o.target == id)
            };
            let links: Vec<u32> = self.dirty.iter().copied().filter(leads_here).collect();
            links.into_iter().try_for_each(|link| self.flush_object(link))?;
        }
        self.sync_nand()
    }

    /// Makes everything durable. What cannot be for an error of its own keeps nothing else from it.
    pub fn sync(&mut self) -> Result<()> {
        self.reap()?;
        for id in self.cache.objects() {
            self.flush_data(id)?;
        }
        let (mut done, mut from) = (Ok(()), 0);
        while let Some(id) = self.dirty.range(from..).next().copied() {
            match self.flush_object(id) {
                Ok(()) => {}
                Err(error @ Error::Corrupt { .. }) => done = done.and(Err(error)),
                Err(error) => return Err(error),
            }
            from = id + 1;
        }
        self.sync_nand()?;
        done
    }

    /// The NAND pages of a file, in order, holes left out.
    pub fn pages(&self, id: u32) -> Vec<u32> {
        self.objects
            .get(id)
            .map(|object| object.map.iter().map(|(_, page)| page).collect())
            .unwrap_or_default()
    }
}
