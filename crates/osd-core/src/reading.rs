//! Reading in two steps: the store says which pages hold the bytes and senses them, then they are fetched and checked without it, so
//! that who waits for the store does not wait for that.
//!
//! Between the two the cleaner may move what a page holds, and its block be erased and used again. A page's checksum is of the use of
//! its segment, of the object and the place (`flash`), and the tag was taken when it was looked up: what the page holds by then
//! is either what it held, or an error. Whoever meets that reads again with the store, which finds it where it is now.

use super::buffer::Dirty;
use super::extents::{Index, of_object};
use super::flash::{Addr, Found};
use super::layout::{Fork, Key};
use super::{ObjectId, Store};
use bimetal_base::Result;
use smallvec::SmallVec;

/// A range of an object that was looked up and is not read yet.
#[derive(Debug)]
pub struct Reading {
    model: String,
    bytes: Vec<u8>,
    pages: Vec<Part>,
    /// Where what waited in memory belongs, and what that is.
    waiting: Vec<(usize, Vec<u8>)>,
}

/// Bytes of a page, and where they belong.
#[derive(Debug)]
struct Part {
    into: usize,
    len: usize,
    key: Key,
    /// The first of them in the page.
    skip: usize,
    page: Found,
}

impl Part {
    fn read(self, model: &str, into: &mut [u8]) -> Result<()> {
        let (skip, len) = (self.skip as u64, self.len as u64);
        let first = Key { object: self.key.object, place: self.key.place.wrapping_sub(skip) };
        let bytes = self.page.read_data(model, first, skip, len).map_err(|why| of_object(why, self.key))?;
        into.copy_from_slice(&bytes[self.skip..self.skip + self.len]);
        Ok(())
    }
}

impl Reading {
    /// The bytes, as they were when they were looked up.
    ///
    /// # Errors
    /// [`Error::Corrupt`](bimetal_base::Error::Corrupt) if they cannot be read, or are gone from where they were.
    pub fn end(mut self) -> Result<Vec<u8>> {
        for part in self.pages {
            let range = part.into..part.into + part.len;
            part.read(&self.model, &mut self.bytes[range])?;
        }
        for (at, bytes) in self.waiting {
            self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(self.bytes)
    }
}

impl Index {
    /// Looks up `len` bytes of the flash from `at` on, which are those of an object from `key` on and go to `into`.
    fn look_up(&mut self, key: Key, at: u64, len: usize, into: usize, pages: &mut Vec<Part>) -> Result<()> {
        let page_bytes = self.media.flash.page_bytes();
        let mut done = 0;
        while done < len {
            let from = at + done as u64;
            let addr = Addr((from / page_bytes as u64) as u32);
            let skip = (from % page_bytes as u64) as usize;
            let part = (page_bytes - skip).min(len - done);
            if self.keep_bytes {
                let key = Key { object: key.object, place: key.place + done as u64 };
                let page = self.media.flash.find(addr).map_err(|why| of_object(why, key))?;
                pages.push(Part { into: into + done, len: part, key, skip, page });
            } else {
                self.media.flash.sense(addr)?;
            }
            done += part;
        }
        Ok(())
    }
}

impl Store {
    /// Looks up to `len` bytes at `offset` up, fewer only at the end, and notes the access if accesses are noted; what is given back
    /// reads them without the store.
    ///
    /// # Errors
    /// As [`read`](Store::read).
    pub fn begin_read(&mut self, id: ObjectId, offset: u64, len: usize) -> Result<Reading> {
        let onode = self.index.onode(id.0)?;
        let len = self.size_of(id.0, &onode).saturating_sub(offset).min(len as u64);
        if self.options.access_times {
            self.touch_if_possible(id);
        }
        self.look_up(id.0, Fork::Data, offset, len)
    }

    /// What can be read of an object before byte `end`, in order: the places of stretches of it, and their bytes. What cannot
    /// be read, or was never written, is in none.
    ///
    /// Cost: each page is read once. Memory: all that is given back.
    ///
    /// # Errors
    /// [`Error::NotFound`](bimetal_base::Error::NotFound); the index cannot be read; those of the flash.
    pub fn peek_past(&mut self, id: ObjectId, end: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let onode = self.index.onode(id.0)?;
        let end = self.size_of(id.0, &onode).min(end);
        let mut all = Vec::new();
        for (from, extent) in self.index.overlapping(id.0, Fork::Data, 0, end)? {
            if extent.is_reserved() {
                continue;
            }
            let last = (from + u64::from(extent.len)).min(end);
            for (first, last) in uncovered(self.buffer.get(id.0, Fork::Data), from, last) {
                let key = Key::extent(id.0, Fork::Data, first);
                let read = self.index.readable(key, last - first, extent.at + (first - from))?;
                all.extend(read.into_iter().map(|piece| (piece.offset, piece.bytes)));
            }
        }
        for piece in self.buffer.get(id.0, Fork::Data).iter().flat_map(|dirty| &dirty.pieces) {
            let len = piece.bytes.len().min(end.saturating_sub(piece.offset) as usize);
            all.push((piece.offset, piece.bytes[..len].to_vec()));
        }
        all.retain(|(_, bytes)| !bytes.is_empty());
        all.sort_unstable_by_key(|piece| piece.0);
        Ok(all)
    }

    /// Looks up a range of a fork that is within it.
    pub(super) fn look_up(&mut self, object: u64, fork: Fork, offset: u64, len: u64) -> Result<Reading> {
        let model = self.index.media.flash.nand().profile().model.clone();
        let (mut pages, mut waiting) = (Vec::new(), Vec::new());
        let end = offset + len;
        for (from, extent) in self.index.overlapping(object, fork, offset, end)? {
            if extent.is_reserved() {
                continue;
            }
            let (first, last) = (from.max(offset), (from + u64::from(extent.len)).min(end));
            // What waits takes the place of what is there, be that readable or not.
            for (first, last) in uncovered(self.buffer.get(object, fork), first, last) {
                let (key, at) = (Key::extent(object, fork, first), extent.at + (first - from));
                self.index.look_up(
                    key,
                    at,
                    (last - first) as usize,
                    (first - offset) as usize,
                    &mut pages,
                )?;
            }
        }
        for piece in self.buffer.get(object, fork).iter().flat_map(|dirty| &dirty.pieces) {
            let (first, last) = (piece.offset.max(offset), piece.end().min(end));
            if first < last && !piece.bytes.is_empty() {
                let from = &piece.bytes[(first - piece.offset) as usize..(last - piece.offset) as usize];
                waiting.push(((first - offset) as usize, from.to_vec()));
            }
        }
        Ok(Reading { model, bytes: vec![0; len as usize], pages, waiting })
    }
}

/// The parts of a range that no piece covers.
fn uncovered(dirty: Option<&Dirty>, from: u64, to: u64) -> SmallVec<[(u64, u64); 2]> {
    let (mut parts, mut at) = (SmallVec::new(), from);
    let pieces = dirty.map_or(&[][..], |dirty| &dirty.pieces[dirty.first_after(from)..]);
    for piece in pieces.iter().take_while(|piece| piece.offset < to) {
        if piece.offset > at {
            parts.push((at, piece.offset));
        }
        at = piece.end();
    }
    if at < to {
        parts.push((at, to));
    }
    parts
}
