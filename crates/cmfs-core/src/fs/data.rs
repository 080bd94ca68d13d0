//! The contents of files: reading, writing, cutting, holes, reservations, and getting them onto flash.

use super::Fs;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::object::{Kind, NONE, Object, PAGES_MAX};
use alloc::vec::Vec;

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

/// Where a page of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory; not on the flash yet, or older there.
    Memory,
    /// In this page of the NAND.
    Flash(u32),
    /// Promised room and not written.
    Reserved,
    /// Nowhere: it reads as zeros.
    Hole,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// The number of the page that byte `offset` is in.
    fn index_of(&self, offset: u64) -> u32 {
        (offset / self.volume.page_bytes()) as u32
    }

    fn file(&self, id: u32) -> Result<&Object> {
        let object = self.volume.objects.find(id)?;
        match object.kind {
            Kind::File => Ok(object),
            Kind::Dir => Err(Error::IsDir),
            _ => Err(Error::BadArgument),
        }
    }

    /// The size of a file whose contents may be changed.
    fn changing(&mut self, id: u32) -> Result<u64> {
        self.volume.ensure_size(id)?;
        self.volume.ensure_whole(id)?;
        Ok(self.file(id)?.size)
    }

    fn check_size(&self, size: u64) -> Result<()> {
        if size.div_ceil(self.volume.page_bytes()) > PAGES_MAX { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// The page of a byte, where in it that is, and how many of `len` bytes are in it.
    fn part(&self, at: u64, len: usize) -> (u32, usize, usize) {
        let page_bytes = self.volume.page_bytes() as usize;
        let within = (at % self.volume.page_bytes()) as usize;
        (self.index_of(at), within, (page_bytes - within).min(len))
    }

    /// Reads into `buffer` from `offset` on; how many bytes there were.
    pub fn read(&mut self, id: u32, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.begin([id])?;
        self.volume.ensure_size(id)?;
        let size = self.file(id)?.size;
        let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let (index, within, part) = self.part(offset + done as u64, len - done);
            let to = &mut buffer[done..done + part];
            self.cache.read(&mut self.volume, (id, index), within, to)?;
            done += part;
        }
        Ok(len)
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
        self.check_size(end)?;
        self.begin_more([id])?;
        let size = self.changing(id)?;
        if data.is_empty() {
            return Ok(());
        }
        self.check_room(self.new_pages(id, offset, end)?)?;
        if offset > size {
            self.cache.zero_tail(&mut self.volume, id)?;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (index, within, part) = self.part(at, data.len() - done);
            self.cache.write(&mut self.volume, (id, index), within, &data[done..done + part])?;
            done += part;
            let object = self.volume.objects.find_mut(id)?;
            object.size = object.size.max(at + part as u64);
        }
        self.volume.touch_contents(id)
    }

    /// Pages that do not exist yet of those between two offsets.
    fn new_pages(&self, id: u32, from: u64, to: u64) -> Result<u64> {
        let object = self.file(id)?;
        let is_new = |index: &u32| {
            object.map.get(*index).is_none()
                && !self.cache.holds(id, *index)
                && !self.reservations.contain(id, *index)
        };
        Ok((self.index_of(from)..self.volume.pages_of(to)).filter(is_new).count() as u64)
    }

    /// Cuts or extends a file.
    pub fn truncate(&mut self, id: u32, size: u64) -> Result<()> {
        self.check_size(size)?;
        self.begin([id])?;
        let old = self.changing(id)?;
        if size > old {
            self.cache.zero_tail(&mut self.volume, id)?;
            self.volume.objects.find_mut(id)?.size = size;
        }
        if size < old {
            self.cut(id, size)?;
        }
        self.volume.touch_contents(id)
    }

    /// Drops what waits in memory behind a place in a file; what is left of the page there is zeros.
    fn drop_behind(&mut self, id: u32, size: u64) -> Result<()> {
        let first_gone = self.volume.pages_of(size);
        let end = u64::from(first_gone) * self.volume.page_bytes();
        self.cache.zero(&mut self.volume, id, size, end)?;
        self.cache.truncate(id, first_gone);
        self.reservations.remove(id, first_gone, u32::MAX);
        Ok(())
    }

    fn cut(&mut self, id: u32, size: u64) -> Result<()> {
        self.drop_behind(id, size)?;
        self.volume.objects.find_mut(id)?.size = size;
        self.volume.cut(id)?;
        let object = self.volume.objects.find_mut(id)?;
        object.flash_size = object.flash_size.min(size);
        self.volume.log.memory.note_object(id);
        Ok(())
    }

    /// Makes the bytes from `from` to `to` zeros, and a hole where whole pages are.
    pub fn punch(&mut self, id: u32, from: u64, to: u64) -> Result<()> {
        self.begin([id])?;
        let size = self.changing(id)?;
        let to = to.min(size);
        if from >= to {
            return Ok(());
        }
        let first = self.volume.pages_of(from);
        let gone = self.file(id)?.map.end().saturating_sub(first);
        if to == size && gone > self.volume.log.blocks.usable() {
            // More pages than a block has are dropped by a header that cuts. The size stays: the header that says so follows.
            self.cut(id, from)?;
            self.volume.objects.find_mut(id)?.size = size;
            self.volume.touch_contents(id)?;
            return self.flush_object(id);
        }
        if to == size {
            self.drop_behind(id, from)?;
        }
        // Behind the last page nothing is to be marked.
        let last = if to == size { self.file(id)?.map.end().max(first) } else { self.index_of(to) };
        let begins = |index: u32| u64::from(index) * self.volume.page_bytes();
        let (after, before) = (begins(first), begins(last));
        if first > last {
            self.cache.zero(&mut self.volume, id, from, to)?;
            return self.volume.touch_contents(id);
        }
        self.cache.zero(&mut self.volume, id, from, after)?;
        if to < size {
            self.cache.zero(&mut self.volume, id, before, to)?;
        }
        for index in first..last {
            self.cache.drop_page(id, index);
            self.volume.mark_hole(id, index)?;
        }
        self.reservations.remove(id, first, last);
        self.volume.touch_contents(id)
    }

    /// Promises room for the bytes from `from` to `to`, in this mount.
    pub fn reserve(&mut self, id: u32, from: u64, to: u64) -> Result<()> {
        self.check_size(to)?;
        self.begin_more([id])?;
        self.check_room(self.new_pages(id, from, to)?)?;
        self.volume.objects.pin(id);
        self.reservations.add(id, self.index_of(from), self.volume.pages_of(to));
        Ok(())
    }

    /// The next data or hole at or behind `offset`.
    pub fn seek(&mut self, id: u32, offset: u64, what: Seek) -> Result<u64> {
        self.begin([id])?;
        self.volume.ensure_size(id)?;
        let object = self.file(id)?;
        if offset >= object.size {
            return Err(Error::NoOffset);
        }
        let start = self.index_of(offset);
        let next = |from: u32| {
            let cached = self.cache.indices(id, from).next();
            object.map.next_page(from).into_iter().chain(cached).min()
        };
        let place = |index: u32| (u64::from(index) * self.volume.page_bytes()).max(offset);
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

    /// Where a page of a file is, by its number in the file, and of how many pages from there on, at most `max`, the same is to
    /// be said: of those on the NAND that one is behind the other.
    ///
    /// # Errors
    /// It is no file; what is known of it cannot be read.
    pub fn place(&mut self, id: u32, index: u32, max: u32) -> Result<(Place, u32)> {
        self.begin([id])?;
        self.volume.ensure_whole(id)?;
        let object = self.file(id)?;
        let place = |index: u32| match object.map.get(index) {
            _ if self.cache.holds(id, index) => Place::Memory,
            Some(page) => Place::Flash(page),
            None if self.reservations.contain(id, index) => Place::Reserved,
            None => Place::Hole,
        };
        let first = place(index);
        if first == Place::Hole && self.reservations.pages_of(id, object) == 0 {
            let cached = self.cache.indices(id, index).next();
            let next = object.map.next_page(index).into_iter().chain(cached).min();
            return Ok((first, next.map_or(max, |next| max.min(next - index))));
        }
        let goes_on = |count: &u32| match first {
            Place::Flash(page) => place(index + count) == Place::Flash(page + count),
            first => place(index + count) == first,
        };
        Ok((first, 1 + (1..max).take_while(goes_on).count() as u32))
    }

    /// Pages that a file takes, cached and promised ones included.
    pub(super) fn pages_taken(&self, id: u32) -> Result<u64> {
        let object = self.volume.objects.find(id)?;
        let new = |index: &u32| object.map.get(*index).is_none() && !self.reservations.contain(id, *index);
        let cached = self.cache.indices(id, 0).filter(new).count() as u64;
        Ok(u64::from(object.map.count()) + cached + self.reservations.pages_of(id, object))
    }

    /// Another object is about to be made: what is finished, most likely, gets its header next to its data.
    pub(super) fn flush_idle(&mut self) -> Result<()> {
        for id in self.volume.objects.idle(DIRTY_MAX) {
            match self.flush_object(id) {
                // Its own error: a sync says so.
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gets an object onto flash: what leads to it, its data, its header.
    pub(super) fn flush_object(&mut self, id: u32) -> Result<()> {
        self.volume.bring(id)?;
        self.volume.ensure_parent(id)?;
        let object = self.volume.objects.find(id)?;
        match object.kind {
            Kind::File => self.cache.flush(&mut self.volume, id)?,
            // A link to what flash does not know would be dropped by a scan.
            Kind::HardLink => {
                let target = object.target;
                self.volume.bring(target)?;
                if self.volume.objects.find(target)?.header == NONE {
                    self.flush_object(target)?;
                }
            }
            _ => {}
        }
        if self.volume.objects.is_dirty(id) {
            self.volume.make_room()?;
            self.volume.write_header(id, false, 0)?;
        }
        Ok(())
    }

    /// Makes an object durable, with the names that lead to it; a directory with what was made in it.
    pub fn sync_object(&mut self, id: u32) -> Result<()> {
        self.begin([id])?;
        self.flush_object(id)?;
        let objects = &self.volume.objects;
        if objects.find(id)?.links > 0 {
            let leads_here =
                |link: &u32| objects.get(*link).is_some_and(|o| o.kind == Kind::HardLink && o.target == id);
            let links: Vec<u32> = objects.dirty_from(0).filter(leads_here).collect();
            links.into_iter().try_for_each(|link| self.flush_object(link))?;
        }
        let objects = &self.volume.objects;
        if objects.find(id)?.dir.is_some() {
            let is_new = |entry: &u32| {
                objects.get(*entry).is_some_and(|o| o.header == NONE && o.parent == id && *entry != id)
            };
            let new: Vec<u32> = objects.dirty_from(0).filter(is_new).collect();
            new.into_iter().try_for_each(|entry| self.flush_object(entry))?;
        }
        self.volume.log.flash.sync()
    }

    /// Makes everything durable. What cannot be for an error of its own keeps nothing else from it.
    pub fn sync(&mut self) -> Result<()> {
        self.volume.reap()?;
        for id in self.cache.objects() {
            self.cache.flush(&mut self.volume, id)?;
        }
        let (mut done, mut from) = (Ok(()), 0);
        loop {
            let Some(id) = self.volume.objects.dirty_from(from).next() else { break };
            match self.flush_object(id) {
                Ok(()) => {}
                Err(error @ Error::Corrupt { .. }) => done = done.and(Err(error)),
                Err(error) => return Err(error),
            }
            from = id + 1;
        }
        self.volume.log.flash.sync()?;
        done
    }

    /// The NAND pages of a file, in order, holes left out.
    pub fn pages(&mut self, id: u32) -> Vec<u32> {
        if self.begin([id]).is_err() {
            return Vec::new();
        }
        let object = self.volume.objects.get(id);
        object.map(|object| object.map.iter().map(|(_, page)| page).collect()).unwrap_or_default()
    }
}
