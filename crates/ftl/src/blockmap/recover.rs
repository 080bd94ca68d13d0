//! What is found on a used array: the newest version of each page, and what is in each block.

use super::{BlockMap, NONE, Place, UNMAPPED, is_lost};
use crate::{LOST, error_of, newer, write_of};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Page, Tag};
use rustc_hash::FxHashSet;

/// What is in a block, found after power loss.
pub(crate) enum Contents {
    /// Pages of this logical block only, all in place.
    InPlace(u32),
    /// Pages of this logical block only, not all in place.
    Log(u32),
    /// Pages of several.
    Mixed,
}

impl BlockMap {
    /// Reads all tags and notes the newest version of each page.
    pub(super) fn find_pages(&mut self) -> Result<()> {
        if !self.nand.keeps_sequences() {
            let why = "make it with them";
            return Err(Error::unsupported("opening a used array without sequence numbers", why));
        }
        for block in 0..self.valid.len() as u32 {
            for page in 0..self.pages_per_block {
                let read = self.nand.read_spare(Time::ZERO, block, page);
                let (found, _) = read.map_err(|failure| error_of(&self.nand, failure, Lpn(0)))?;
                if let Page::Programmed(tag) = found {
                    self.find_version(tag, (block, page));
                }
            }
        }
        let lost = |entry: &&u32| {
            let place = (**entry != UNMAPPED).then(|| self.split(**entry - 1));
            place.is_some_and(|place| is_lost(&self.nand, place))
        };
        self.counts.lost_pages = self.newest.iter().filter(lost).count() as u64;
        Ok(())
    }

    fn find_version(&mut self, tag: Tag, place: Place) {
        self.sequence = self.sequence.max(write_of(tag.sequence));
        let page = tag.owner & !LOST;
        if u64::from(page) >= self.logical_pages {
            // Written when the host could address more.
            return;
        }
        let older = self.place_of(page).is_some_and(|other| {
            let Page::Programmed(found) = self.nand.page(other.0, other.1) else { return false };
            let (here, there) = (self.nand.is_bad(place.0), self.nand.is_bad(other.0));
            match write_of(tag.sequence) == write_of(found.sequence) && here != there {
                true => here,
                false => !newer(tag.sequence, found.sequence),
            }
        });
        if !older {
            self.point(page, place);
        }
    }

    /// Whether a block holds a valid page.
    pub fn holds_valid(&self, block: u32) -> bool {
        self.valid[block as usize] > 0
    }

    /// Erases the used blocks without valid pages, data blocks included.
    pub fn erase_unused(&mut self) -> Result<()> {
        for logical in 0..self.data.len() {
            if self.data[logical] != NONE && !self.holds_valid(self.data[logical]) {
                self.data[logical] = NONE;
            }
        }
        for block in 0..self.valid.len() as u32 {
            if !self.holds_valid(block) && self.is_used(block) {
                self.erase(Time::ZERO, block)?;
            }
        }
        Ok(())
    }

    /// The blocks with valid pages.
    pub fn blocks_in_use(&self) -> Vec<u32> {
        (0..self.valid.len() as u32).filter(|block| self.holds_valid(*block)).collect()
    }

    /// What is in a block with valid pages.
    pub fn contents(&self, block: u32) -> Contents {
        let (mut owner, mut in_place) = (None, true);
        for page in 0..self.pages_per_block {
            let Page::Programmed(tag) = self.nand.page(block, page) else { continue };
            let (logical, offset) = self.split(tag.owner & !LOST);
            if logical as usize >= self.data.len() || owner.is_some_and(|other| other != logical) {
                return Contents::Mixed;
            }
            owner = Some(logical);
            in_place &= offset == page;
        }
        match owner {
            Some(logical) if in_place => Contents::InPlace(logical),
            Some(logical) => Contents::Log(logical),
            None => Contents::Mixed,
        }
    }

    /// The number of the write that the youngest page of a block comes from.
    pub fn youngest_in(&self, block: u32) -> u64 {
        let writes = (0..self.pages_per_block).map(|page| match self.nand.page(block, page) {
            Page::Programmed(tag) => write_of(tag.sequence),
            _ => 0,
        });
        writes.max().unwrap_or(0)
    }

    /// The logical blocks with a page in `block`; only those with a valid one there if `valid`.
    pub fn logical_blocks_in(&self, block: u32, valid: bool) -> Vec<u32> {
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        for number in 0..self.pages_per_block {
            let Page::Programmed(tag) = self.nand.page(block, number) else { continue };
            let page = tag.owner & !LOST;
            let logical = self.split(page).0;
            let counts = !valid || self.is_newest_in(page, block);
            if counts && u64::from(page) < self.logical_pages && seen.insert(logical) {
                found.push(logical);
            }
        }
        found
    }
}
