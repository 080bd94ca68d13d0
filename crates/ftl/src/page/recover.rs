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
        if !self.array.nand().is_new() {
            if !self.array.nand().keeps_sequences() {
                return Err(Error::unsupported(
                    "opening a used array without sequence numbers",
                    "make it with them",
                ));
            }
            // Of a superblock that was being erased the copies count that were made of it: they leave it with nothing
            // valid, and so the room to go on.
            for half_erased in [false, true] {
                for block in 0..self.states.len() as u32 {
                    if self.array.is_half_erased(block) == half_erased {
                        self.find_in_block(block, half_erased)?;
                    }
                }
            }
        }
        let lost =
            self.map.iter().filter(|entry| **entry != UNMAPPED && self.is_lost(self.place_of(**entry)));
        self.counts.lost_pages = lost.count() as u64;
        self.sort_blocks();
        Ok(())
    }

    fn find_in_block(&mut self, block: u32, half_erased: bool) -> Result<()> {
        (0..self.array.width()).try_for_each(|lane| self.find_in_member(block, lane, half_erased))
    }

    /// The same in one member of a superblock.
    fn find_in_member(&mut self, block: u32, lane: u32, half_erased: bool) -> Result<()> {
        for page in self.array.pages_on(lane) {
            let (member, number) = self.array.place(block, page);
            // The tags of a page's units lie in one spare area.
            if page.is_multiple_of(self.array.page_units()) {
                let read = self.array.nand_mut().read_spare(Time::ZERO, member, number);
                read.map_err(|failure| error_of(self.array.nand(), failure, Lpn(0)))?;
            }
            let tag = match self.array.page(block, page) {
                Page::Programmed(tag) => tag,
                Page::Torn => continue,
                // Word lines may have been left out before pages that are programmed.
                Page::Erased if number < self.array.nand().next_page(member) => continue,
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
                Some(other) if half_erased && write_of(tag.sequence) == write_of(self.sequence_at(other)) => {
                    continue;
                }
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
            let unit = self.array.geometry().unit_of(block) as usize;
            let erases = self.array.erases(block);
            self.units[unit].erases += u64::from(erases);
            self.units[unit].most = self.units[unit].most.max(erases);
            let used = self.array.is_used(block);
            let state = match (self.array.is_bad(block), used) {
                (true, _) => State::Bad,
                (false, true) => State::Closed,
                (false, false) => {
                    self.array.use_as_slc(block, false);
                    self.units[unit].free.give(block, self.array.erases(block));
                    self.units[unit].lacking += self.array.lacks(block);
                    State::Free
                }
            };
            self.set_state(block, state);
            // Go on where it was left, with what has the most room for copies. What holds nothing valid is
            // better erased.
            if self.states[block as usize] == State::Closed && self.find_cached(unit, block) {
                continue;
            }
            // What was left of a word line cannot be programmed any more.
            let next = self.array.next_page(block).next_multiple_of(self.array.whole(block));
            let next = self.array.usable_from(block, next);
            let next = next.filter(|_| self.valid[block as usize] > 0 && !self.array.is_torn(block));
            if let Some(next) = next.filter(|_| self.states[block as usize] == State::Closed) {
                if let Some(closed) = self.units[unit].reopen(block, next, self.one_stream) {
                    self.set_state(closed, State::Closed);
                }
                if self.units[unit].is_open(block) {
                    self.set_state(block, State::Open);
                }
            }
        }
        self.find_ahead();
    }
}
