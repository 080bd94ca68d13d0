//! Cleaning: what is live in a block moves to the log's end, so that the block can be erased.
//!
//! The block with the fewest live pages is cleaned, a few pages for every page written: as many as it takes to
//! gain more than is written, at most [`Config::copies_max`](super::Config::copies_max). With each copy taking a
//! read and a program, and one erase at most, that bounds the pause. When the least worn full block is
//! [`Config::wear_limit`](super::Config::wear_limit) erases behind the most worn, it is cleaned too, so that its
//! cold pages do not keep it from being used.

use super::Stats;
use super::volume::Volume;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::tags::{Packed, PageKind};
use alloc::vec::Vec;

/// A block being cleaned.
#[derive(Clone, Debug)]
struct Cleaning {
    block: u32,
    /// Its sequence number: with another it is another block.
    sequence: u32,
    /// Its pages still to be looked at, with their tags, the last first.
    pages: Vec<(u32, Packed)>,
    /// Copies for each page written.
    pace: u32,
}

/// What is being cleaned, and what was.
#[derive(Clone, Debug, Default)]
pub(super) struct Cleaner {
    cleaning: Option<Cleaning>,
    /// How many blocks had been opened when wear was last looked at.
    looked_at: u32,
    copies: u64,
    most_copies: u32,
    levelled: u64,
    refreshed: u64,
    lost_pages: u64,
}

impl Cleaner {
    pub fn count(&self, stats: &mut Stats) {
        (stats.copies, stats.copies_in_a_pause) = (self.copies, self.most_copies);
        (stats.levelled, stats.lost_pages) = (self.levelled, self.lost_pages);
        stats.refreshed = self.refreshed;
    }
}

impl<N: Nand, V: Nvram> Volume<N, V> {
    /// Cleans and erases a little, before a page is written: never more than `copies_max` copies and an erase,
    /// unless there is nothing else left.
    pub fn make_room(&mut self) -> Result<()> {
        // Cleaning must not move what is about to be removed.
        self.reap()?;
        let low = self.config.reserve_blocks as usize + 2;
        let mut copies = 0;
        let opened = self.log.opened();
        if self.cleaner.cleaning.is_some() || self.log.blocks.free() < low {
            copies += self.clean(self.config.copies_max)?;
        } else if self.next_tired().is_some() {
            copies += self.rewrite_tired(self.config.refresh_copies.min(self.config.copies_max))?;
        } else if opened - self.cleaner.looked_at >= self.config.wear_limit {
            self.cleaner.looked_at = opened;
            if let Some(block) = self.log.blocks.coldest(self.config.wear_limit)
                && self.begin_cleaning(block).is_ok()
            {
                self.cleaner.levelled += 1;
            }
        }
        while self.log.blocks.free() < 2 {
            let more = self.clean(self.log.flash.geometry().pages_per_block)?;
            copies += more;
            if more == 0 && self.cleaner.cleaning.is_none() {
                break;
            }
        }
        self.cleaner.most_copies = self.cleaner.most_copies.max(copies);
        self.log.erase_ahead(&self.objects)
    }

    /// Copies a few pages, at most `limit`; how many.
    pub fn clean(&mut self, limit: u32) -> Result<u32> {
        if self.cleaner.cleaning.is_none() {
            let Some(block) = self.log.blocks.cheapest() else { return Ok(0) };
            self.begin_cleaning(block)?;
        }
        let Some(mut cleaning) = self.cleaner.cleaning.take() else { return Ok(0) };
        if self.log.blocks.get(cleaning.block).sequence != cleaning.sequence {
            return Ok(0);
        }
        let budget = if limit > self.config.copies_max { limit } else { cleaning.pace.min(limit) };
        let mut copies = 0;
        while copies < budget {
            let Some((page, tags)) = cleaning.pages.pop() else {
                self.end_cleaning(cleaning.block)?;
                return Ok(copies);
            };
            if self.is_live(page, &tags)? {
                self.move_page(page, &tags)?;
                copies += 1;
            }
        }
        if cleaning.pages.is_empty() {
            self.end_cleaning(cleaning.block)?;
        } else {
            self.cleaner.cleaning = Some(cleaning);
        }
        Ok(copies)
    }

    /// A block that was read often, or had to be corrected, and holds something.
    pub fn next_tired(&self) -> Option<u32> {
        let holds = |block: &u32| {
            let entry = self.log.blocks.get(*block);
            matches!(entry.state, BlockState::Full | BlockState::Open) && entry.live > 0
        };
        self.log.flash.watch().tired().find(holds)
    }

    /// Copies pages of tired blocks to the log's end, at most `limit`; how many.
    pub fn rewrite_tired(&mut self, limit: u32) -> Result<u32> {
        let mut copies = 0;
        while copies < limit {
            if self.cleaner.cleaning.is_none() {
                let Some(block) = self.next_tired() else { break };
                self.log.leave(block);
                self.begin_cleaning(block)?;
                self.cleaner.refreshed += 1;
            }
            copies += self.clean((limit - copies).min(self.config.copies_max))?;
        }
        Ok(copies)
    }

    pub fn begin_cleaning(&mut self, block: u32) -> Result<()> {
        let entry = self.log.blocks.get(block);
        let mut pages = self.log.flash.tags_of(block)?;
        pages.reverse();
        let gain = self.log.blocks.usable().saturating_sub(entry.live).max(1);
        let pace = entry.live.div_ceil(gain) + 1;
        self.cleaner.cleaning = Some(Cleaning { block, sequence: entry.sequence, pages, pace });
        Ok(())
    }

    /// A block that still has live pages holds some that cannot be read: it is given up with them.
    fn end_cleaning(&mut self, block: u32) -> Result<()> {
        let entry = self.log.blocks.get(block);
        if entry.live > 0 && entry.state == BlockState::Full {
            self.cleaner.lost_pages += u64::from(entry.live);
            self.log.mark_bad(block)?;
        }
        Ok(())
    }

    /// Whether memory points at a page with these tags.
    fn is_live(&mut self, page: u32, tags: &Packed) -> Result<bool> {
        Ok(match tags.kind() {
            PageKind::Header { object, .. } => {
                self.bring(object)?;
                self.objects.get(object).is_some_and(|o| o.header == page)
            }
            PageKind::Data { object, index, .. } => {
                self.bring(object)?;
                self.objects.get(object).is_some_and(|object| object.map.get(index) == Some(page))
            }
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => false,
        })
    }

    /// Moves a live page to the log's end.
    fn move_page(&mut self, page: u32, tags: &Packed) -> Result<()> {
        self.cleaner.copies += 1;
        match tags.kind() {
            PageKind::Header { object, .. } => match self.rewrite_header(object) {
                Err(Error::Corrupt { .. }) => Ok(()),
                done => done,
            },
            PageKind::Data { object, index, bytes } => {
                // A page that a truncation shortened says so where it goes: behind the header that cut the file.
                self.ensure_size(object)?;
                let begins = u64::from(index) * self.page_bytes();
                let known = self.objects.find(object)?.flash_size.saturating_sub(begins).max(1);
                let bytes = u64::from(bytes).min(known) as u32;
                if self.log.flash.read(page)?.is_none() || !self.log.flash.is_whole() {
                    return Ok(());
                }
                let data = self.log.flash.lend();
                let done = self.put_page(object, index, bytes, &data);
                self.log.flash.give_back(data);
                done
            }
            PageKind::Summary | PageKind::Checkpoint | PageKind::Format | PageKind::Unknown => Ok(()),
        }
    }
}
