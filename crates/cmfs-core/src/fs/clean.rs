//! Cleaning: what is live in a block moves to the log's end, so that the block can be erased.
//!
//! The block with the fewest live pages is cleaned, a few pages for every page written: as many as it takes to
//! gain more than is written, at most [`Config::copies_max`](super::Config::copies_max). With each copy taking a
//! read and a program, and one erase at most, that bounds the pause. When the least worn full block is
//! [`Config::wear_limit`](super::Config::wear_limit) erases behind the most worn, it is cleaned too, so that its
//! cold pages do not keep it from being used.

use super::Fs;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::media::{Nand, NandError, Nvram};
use crate::summary;
use crate::tags::{Packed, PageKind, SpareState};
use alloc::vec::Vec;

/// A block being cleaned.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    block: u32,
    /// Its sequence number: with another it is another block.
    sequence: u32,
    /// Its pages still to be looked at, with their tags, the last first.
    pages: Vec<(u32, Packed)>,
    /// Copies for each page written.
    pace: u32,
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Copies a few pages, at most `limit`; how many.
    pub(super) fn clean(&mut self, limit: u32) -> Result<u32> {
        if self.cleaning.is_none() {
            let Some(block) = self.blocks.cheapest() else { return Ok(0) };
            self.begin_cleaning(block)?;
        }
        let Some(mut cleaning) = self.cleaning.take() else { return Ok(0) };
        if self.blocks.get(cleaning.block).sequence != cleaning.sequence {
            return Ok(0);
        }
        let budget = if limit > self.config.copies_max { limit } else { cleaning.pace.min(limit) };
        let mut copies = 0;
        while copies < budget {
            let Some((page, tags)) = cleaning.pages.pop() else {
                self.end_cleaning(cleaning.block)?;
                return Ok(copies);
            };
            if self.is_live(page, &tags) {
                self.move_page(page, &tags)?;
                copies += 1;
            }
        }
        if cleaning.pages.is_empty() {
            self.end_cleaning(cleaning.block)?;
        } else {
            self.cleaning = Some(cleaning);
        }
        Ok(copies)
    }

    /// Begins with the least worn block if it is far behind.
    pub(super) fn level_wear(&mut self) {
        if let Some(block) = self.blocks.coldest(self.config.wear_limit)
            && self.begin_cleaning(block).is_ok()
        {
            self.stats.levelled += 1;
        }
    }

    pub(super) fn begin_cleaning(&mut self, block: u32) -> Result<()> {
        let entry = self.blocks.get(block);
        let mut pages = self.tags_of(block)?;
        pages.reverse();
        let gain = self.blocks.usable.saturating_sub(entry.live).max(1);
        let pace = entry.live.div_ceil(gain) + 1;
        self.cleaning = Some(Cleaning { block, sequence: entry.sequence, pages, pace });
        Ok(())
    }

    /// A block that still has live pages holds some that cannot be read: it is given up with them.
    fn end_cleaning(&mut self, block: u32) -> Result<()> {
        let entry = self.blocks.get(block);
        if entry.live > 0 && entry.state == BlockState::Full {
            self.stats.lost_pages += u64::from(entry.live);
            self.mark_bad(block)?;
        }
        Ok(())
    }

    /// The tags of a block's pages: from its summary, or one by one.
    pub(crate) fn tags_of(&mut self, block: u32) -> Result<Vec<(u32, Packed)>> {
        let first = self.geometry.first_page(block);
        if let Some(tags) = self.read_summary(block)? {
            return Ok((first..).zip(tags).collect());
        }
        let mut found = Vec::new();
        for page in first..first + self.geometry.pages_per_block {
            if let SpareState::Tagged(tags) = self.read_tags(page)? {
                found.push((page, tags));
            }
        }
        Ok(found)
    }

    /// The tags of one page.
    pub(super) fn read_tags(&mut self, page: u32) -> Result<SpareState> {
        match self.nand.read_spare(page, &mut self.spare) {
            Ok(()) => Ok(self.place.read(&self.spare)),
            Err(NandError::Unreadable) => Ok(SpareState::Unreadable),
            Err(_) => Err(Error::Gone),
        }
    }

    /// The summary of a full block, if it has one that is whole.
    pub(super) fn read_summary(&mut self, block: u32) -> Result<Option<Vec<Packed>>> {
        let count = summary::pages(&self.geometry, true);
        let usable = self.geometry.pages_per_block - count;
        let first = self.geometry.first_page(block) + usable;
        let mut bytes = Vec::new();
        let mut sequence = 0;
        for page in first..first + count {
            match self.nand.read(page, &mut self.page, &mut self.spare) {
                Ok(()) => {}
                Err(NandError::Unreadable) => return Ok(None),
                Err(_) => return Err(Error::Gone),
            }
            let SpareState::Tagged(tags) = self.place.read(&self.spare) else { return Ok(None) };
            if tags.kind() != PageKind::Summary {
                return Ok(None);
            }
            sequence = tags.sequence;
            bytes.extend_from_slice(&self.page);
        }
        Ok(summary::decode(&bytes, sequence, usable))
    }

    /// Whether memory points at a page with these tags.
    pub(crate) fn is_live(&self, page: u32, tags: &Packed) -> bool {
        match tags.kind() {
            PageKind::Header { object, .. } => self.objects.get(object).is_some_and(|o| o.header == page),
            PageKind::Data { object, index, .. } => {
                self.objects.get(object).is_some_and(|object| object.map.get(index) == Some(page))
            }
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => false,
        }
    }

    /// Moves a live page to the log's end.
    fn move_page(&mut self, page: u32, tags: &Packed) -> Result<()> {
        self.stats.copies += 1;
        match tags.kind() {
            PageKind::Header { object, .. } => match self.rewrite_header(object) {
                Err(Error::Corrupt { .. }) => Ok(()),
                done => done,
            },
            PageKind::Data { object, index, bytes } => {
                // A page that a truncation shortened says so where it goes: behind the header that cut the file.
                self.ensure_size(object)?;
                let begins = u64::from(index) * u64::from(self.geometry.page_bytes);
                let known = self.object(object)?.flash_size.saturating_sub(begins).max(1);
                let bytes = u64::from(bytes).min(known) as u32;
                let mut data = core::mem::take(&mut self.page);
                let read = self.nand.read(page, &mut data, &mut self.spare);
                let whole = read.is_ok() && self.place.data_is_whole(&data, &self.spare);
                let done = match read {
                    Err(NandError::Gone) => Err(Error::Gone),
                    _ if whole => self.put_page(object, index, bytes, &data),
                    _ => Ok(()),
                };
                self.page = data;
                done
            }
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => Ok(()),
        }
    }

    /// Writes the header again as flash knows the object: a size that was not written yet must not get there
    /// before its data.
    pub(super) fn rewrite_header(&mut self, id: u32) -> Result<()> {
        self.load_details(id, true)?;
        self.ensure_whole(id)?;
        let (size, dirty) = (self.object(id)?.size, self.object(id)?.dirty);
        let flash_size = self.object(id)?.flash_size;
        self.object_mut(id)?.size = flash_size;
        let written = self.write_header(id, false, 0);
        let object = self.object_mut(id)?;
        object.size = size;
        object.dirty = dirty || size != flash_size;
        if object.dirty {
            self.dirty.insert(id);
        }
        written
    }
}
