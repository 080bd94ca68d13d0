//! Room: how much there is, and making it ahead of need.

use super::Fs;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};

/// Erased blocks kept ready.
const ERASED_AHEAD: usize = 2;

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Pages that can be live at once.
    pub fn capacity_pages(&self) -> u64 {
        self.blocks.capacity(self.config.reserve_blocks)
    }

    /// Pages that are live or promised.
    pub fn used_pages(&self) -> u64 {
        let reserved: u64 = self.reserved_pages();
        self.blocks.live + self.cache.len() as u64 + reserved
    }

    fn reserved_pages(&self) -> u64 {
        let objects = self.reserving.iter().filter_map(|id| self.objects.get(*id));
        objects.map(|object| object.reserved_left()).sum()
    }

    /// Fails if so many more pages do not fit.
    pub(super) fn check_room(&self, pages: u64) -> Result<()> {
        let free = self.capacity_pages().saturating_sub(self.blocks.live + self.cache.len() as u64);
        if free < pages {
            return Err(Error::NoSpace);
        }
        // Promises are rare, and counting them is not free.
        if free < pages.saturating_add(self.reserved_pages()) {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Cleans and erases a little, before a page is written: never more than `copies_max` copies and an erase,
    /// unless there is nothing else left.
    pub(super) fn make_room(&mut self) -> Result<()> {
        // Cleaning must not move what is about to be removed.
        self.reap()?;
        let low = self.config.reserve_blocks as usize + 2;
        let mut copies = 0;
        if self.cleaning.is_some() || self.free_blocks() < low {
            copies += self.clean(self.config.copies_max)?;
        } else if self.since_levelling >= self.config.wear_limit {
            self.since_levelling = 0;
            self.level_wear();
        }
        while self.free_blocks() < 2 {
            let more = self.clean(self.geometry.pages_per_block)?;
            copies += more;
            if more == 0 && self.cleaning.is_none() {
                break;
            }
        }
        self.stats.copies_in_a_pause = self.stats.copies_in_a_pause.max(copies);
        if self.blocks.erased_count() < ERASED_AHEAD && self.blocks.next_erasable(self.last_block).is_some() {
            self.erase_one()?;
        }
        Ok(())
    }

    /// Blocks that are erased, or can be after an update of the NVRAM.
    fn free_blocks(&mut self) -> usize {
        self.blocks.free()
    }
}
