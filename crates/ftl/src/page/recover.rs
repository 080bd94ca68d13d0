//! What a page map finds on a used array.

use super::{PageMap, State, UNMAPPED};
use crate::{LOST, error_of, newer, write_of};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Page;

impl PageMap {
    /// Reads all tags and makes the map of them.
    pub(super) fn find_pages(&mut self) -> Result<()> {
        if !self.nand.is_new() {
            if !self.nand.keeps_sequences() {
                return Err(Error::unsupported(
                    "opening a used array without sequence numbers",
                    "make it with them",
                ));
            }
            for block in 0..self.states.len() as u32 {
                self.find_in_block(block)?;
            }
        }
        let lost =
            self.map.iter().filter(|entry| **entry != UNMAPPED && self.is_lost(self.place_of(**entry)));
        self.counts.lost_pages = lost.count() as u64;
        self.sort_blocks();
        Ok(())
    }

    fn find_in_block(&mut self, block: u32) -> Result<()> {
        for page in 0..self.pages_per_block {
            let read = self.nand.read_spare(Time::ZERO, block, page);
            let (found, _) = read.map_err(|failure| error_of(&self.nand, failure, Lpn(0)))?;
            let tag = match found {
                Page::Programmed(tag) => tag,
                Page::Torn => continue,
                // Pages are programmed one after the other: the rest is erased, too.
                Page::Erased => break,
            };
            self.sequence = self.sequence.max(write_of(tag.sequence));
            let (owner, here) = (tag.owner & !LOST, self.entry(block, page));
            let known = self.map.get(owner as usize).filter(|_| u64::from(owner) < self.host_pages);
            match known.copied() {
                // Of a layer above, or written when the host could address more.
                None => continue,
                Some(UNMAPPED) => {}
                Some(other) if !newer(tag.sequence, self.sequence_at(other)) => continue,
                Some(other) => {
                    let block = self.block_of(other) as usize;
                    self.valid[block] -= 1;
                }
            }
            self.any_lost |= tag.owner & LOST != 0;
            self.map[owner as usize] = here;
            self.valid[block as usize] += 1;
        }
        Ok(())
    }

    /// Sorts the blocks into free, open and closed by what was found in them.
    fn sort_blocks(&mut self) {
        for block in 0..self.states.len() as u32 {
            let unit = self.nand.geometry().unit_of(block) as usize;
            let erases = self.nand.erases(block);
            self.units[unit].erases += u64::from(erases);
            self.units[unit].most = self.units[unit].most.max(erases);
            let used = self.nand.next_page(block) > 0 || self.nand.page(block, 0) != Page::Erased;
            self.states[block as usize] = match (self.nand.is_bad(block), used) {
                (true, _) => State::Bad,
                (false, true) => State::Closed,
                (false, false) => {
                    self.units[unit].free.give(block, self.nand.erases(block));
                    State::Free
                }
            };
            // Go on where it was left, with what has the most room for copies. What holds nothing valid is
            // better erased.
            let next = self.nand.next_page(block);
            let partly = self.valid[block as usize] > 0 && next < self.pages_per_block;
            if self.states[block as usize] == State::Closed && partly {
                if let Some(closed) = self.units[unit].reopen(block, next, self.one_stream) {
                    self.states[closed as usize] = State::Closed;
                }
                if self.units[unit].is_open(block) {
                    self.states[block as usize] = State::Open;
                }
            }
        }
        self.find_ahead();
    }
}
