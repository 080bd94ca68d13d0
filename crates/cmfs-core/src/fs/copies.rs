//! The way out where no page can be written: a block that holds nothing but copies is given up.
//!
//! A block that was cleaned is erased only after all copies of its pages are there. So what the power left of a cleaning
//! that it cut off is a block of copies whose originals are still there: these count again, and the block is erased.

use super::clean::Mark;
use super::volume::Volume;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::media::{Nand, Nvram};
use crate::tags::{Packed, PageKind};
use alloc::vec::Vec;

/// How many blocks are tried.
const TRIED: usize = 3;

/// A live page, and the newest of the other pages with its name.
struct Copy {
    page: u32,
    tags: Packed,
    object: u32,
    index: Option<u32>,
    original: Option<(u32, Packed)>,
}

impl<N: Nand, V: Nvram> Volume<N, V> {
    /// Where not even one block can be written: finds a block whose live pages are all copies of what is there still, the
    /// newest first, and goes back to that; whether there was one, which can be erased then. Cost: the summaries of all
    /// blocks for each that is tried.
    pub fn give_up_copies(&mut self) -> Result<bool> {
        if self.log.room() >= u64::from(self.log.blocks.usable()) {
            return Ok(false);
        }
        let mut all: Vec<(u32, u32)> = Vec::new();
        for (block, entry) in self.log.blocks.iter() {
            if entry.state == BlockState::Full && !entry.guards && !entry.kept && !entry.retire {
                all.push((entry.sequence, block));
            }
        }
        crate::sorted::sort(&mut all);
        // What was cut off is in the blocks that were opened last.
        for (_, block) in all.into_iter().rev().take(TRIED) {
            if let Some(copies) = self.copies_in(block)? {
                self.go_back(&copies)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The live pages of a block, if each of them has its original.
    fn copies_in(&mut self, block: u32) -> Result<Option<Vec<Copy>>> {
        let mut copies = Vec::new();
        for (page, tags) in self.log.flash.tags_of(block)? {
            if let Some((object, index)) = self.owner(page, &tags)? {
                copies.push(Copy { page, tags, object, index, original: None });
            }
        }
        if copies.len() != self.log.blocks.get(block).live as usize {
            return Ok(None);
        }
        self.find_originals(block, &mut copies)?;
        for copy in &copies {
            if !self.is_original(copy)? {
                return Ok(None);
            }
        }
        Ok(Some(copies))
    }

    /// The newest page of each name outside the block, unless a later one there keeps it dead.
    fn find_originals(&mut self, block: u32, copies: &mut [Copy]) -> Result<()> {
        let geometry = self.log.flash.geometry();
        let mut others = Vec::new();
        for (other, entry) in self.log.blocks.iter() {
            if !matches!(entry.state, BlockState::Erased | BlockState::Bad)
                && entry.sequence != 0
                && other != block
            {
                others.push((entry.sequence, other));
            }
        }
        crate::sorted::sort(&mut others);
        for (_, other) in others {
            for (page, tags) in self.log.flash.tags_of(other)? {
                let mark = Mark::of(&tags, &geometry);
                for copy in copies.iter_mut() {
                    let has_its_name = match (tags.kind(), copy.index) {
                        (PageKind::Header { object, .. }, None) => object == copy.object,
                        (PageKind::Data { object, index, .. }, Some(own)) => {
                            (object, index) == (copy.object, own)
                        }
                        _ => false,
                    };
                    if has_its_name {
                        copy.original = Some((page, tags));
                    } else if mark.is_some_and(|mark| mark.keeps_dead(&copy.tags)) {
                        copy.original = None;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the newest other page of a copy's name says the same.
    fn is_original(&mut self, copy: &Copy) -> Result<bool> {
        let Some((original, tags)) = copy.original else { return Ok(false) };
        let flash = &mut self.log.flash;
        let mut fetch = |page| match flash.fetch(page) {
            Ok(_) => Ok(Some(Vec::from(flash.page()))),
            Err(Error::Gone) => Err(Error::Gone),
            Err(_) => Ok(None),
        };
        let (Some(one), Some(two)) = (fetch(copy.page)?, fetch(original)?) else { return Ok(false) };
        if copy.index.is_some() {
            return Ok(tags.bytes == copy.tags.bytes && one == two);
        }
        // What a header did beside saying what its object is was done, and is not in its copy.
        let read = |bytes: &[u8], page: u32| {
            let header = Header::read(bytes, u64::from(page)).ok()?;
            Some(Header { shadows: 0, shrink: false, together: None, ..header })
        };
        let (one, two) = (read(&one, copy.page), read(&two, original));
        Ok(one.is_some() && one == two)
    }

    /// The originals count again.
    fn go_back(&mut self, copies: &[Copy]) -> Result<()> {
        let geometry = self.log.flash.geometry();
        for copy in copies {
            let Some((original, _)) = copy.original else { continue };
            self.bring(copy.object)?;
            let object = self.objects.find_mut(copy.object)?;
            if let Some(index) = copy.index {
                object.map.set(index, original);
                self.log.memory.note_page(copy.object, index);
            } else {
                object.header = original;
                self.log.memory.note_header(copy.object);
            }
            self.log.blocks.page_revives(geometry.block_of(original));
            self.log.release(copy.page);
        }
        // The pages that came back were passed by.
        self.cleaner.cleaning = None;
        Ok(())
    }
}
