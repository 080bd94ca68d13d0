//! Copies within the array: page by page, or many at once where nothing can go wrong on the way.

use super::{ERASED, FIRST_OWNER, Failure, Nand, PageOrder, Tag};
use crate::time::Time;

impl Nand {
    /// Copies a page to an erased one, which gets `tag`; when it is done. Within a unit of a part that
    /// can, without the bus.
    ///
    /// # Panics
    /// If the target is not erased or out of order.
    pub fn copy(&mut self, at: Time, from: (u32, u32), to: (u32, u32), tag: Tag) -> Result<Time, Failure> {
        if self.until_cut == 0 {
            return Err(Failure::PowerOff);
        }
        let (source, target) = (self.geometry.unit_of(from.0), self.geometry.unit_of(to.0));
        let sensed = at.0.max(self.lanes.unit_free(source)) + self.timing.command + self.timing.read;
        let programmable = if self.profile.copy_back && source == target {
            sensed + self.timing.command
        } else {
            let transfer = self.timing.page_transfer;
            let read = self.lanes.transfer(source, sensed, transfer) + transfer;
            self.lanes.occupy(source, read);
            let ready = read.max(self.lanes.unit_free(target));
            let write = self.timing.command + transfer;
            self.lanes.transfer(target, ready, write) + write
        };
        let done = programmable + self.timing.program;
        self.lanes.occupy(target, done);
        self.counts.reads += 1;
        self.counts.copies += 1;
        self.sense(from.0, from.1)?;
        self.settle(to.0, to.1, tag)?;
        if self.payload.is_kept() {
            let bytes = self.bytes(from.0, from.1)?;
            let put = self.payload.put(self.place(to.0, to.1), &bytes);
            put.map_err(|error| Failure::Storage(Box::new(error)))?;
        }
        Ok(Time(done))
    }

    /// Copies many pages at once: physical page `sources[i] − 1` to page `to.1 + i` of block `to.0`, except where
    /// `sources[i]` is 0 or in that block already. What becomes of a page's sequence number is what `renumber`
    /// says. The same as [`copy`](Nand::copy) for one after the other, and several times as fast.
    ///
    /// Does nothing and returns false if a copy could fail (bit errors, failing programs, a planned power
    /// cut), has bytes to move, or needs the bus.
    ///
    /// # Panics
    /// If a target is not erased or out of order.
    pub fn copy_in_place(
        &mut self,
        at: Time,
        sources: &[u32],
        (to, begin): (u32, u32),
        renumber: impl Fn(u64) -> u64,
    ) -> bool {
        let unit = self.geometry.unit_of(to);
        let pages = self.geometry.pages_per_block;
        let in_unit = self.geometry.blocks_per_unit * pages;
        let first = to * pages;
        let near = |source: u32| source == 0 || (source - 1).wrapping_sub(unit * in_unit) < in_unit;
        let sure = !self.has_bit_errors
            && self.profile.grown_bad_per_million == 0.0
            && self.until_cut == u64::MAX
            && !self.payload.is_kept()
            && self.profile.copy_back;
        if !sure || self.is_bad(to) || !sources.iter().all(|source| near(*source)) {
            return false;
        }
        let (mut copies, mut next_page) = (0u64, self.blocks[to as usize].next_page);
        for (offset, source) in (begin as usize..).zip(sources) {
            let from = source.wrapping_sub(1);
            if *source == 0 || from.wrapping_sub(first) < pages {
                continue;
            }
            let (from, target) = (from as usize, first as usize + offset);
            let owner = self.owners[from];
            assert!(owner >= FIRST_OWNER, "there is nothing to copy on physical page {from}");
            assert!(self.owners[target] == ERASED, "page {offset} of block {to} is not erased");
            let ascending = self.profile.page_order == PageOrder::Ascending;
            assert!(
                !ascending || offset >= usize::from(next_page),
                "page {offset} of block {to} is out of order"
            );
            self.owners[target] = owner;
            if !self.sequences.is_empty() {
                self.sequences[target] = renumber(self.sequences[from]);
            }
            next_page = next_page.max(offset as u16 + 1);
            copies += 1;
        }
        self.blocks[to as usize].next_page = next_page;
        let each = 2 * self.timing.command + self.timing.read + self.timing.program;
        if copies > 0 {
            self.lanes.occupy(unit, at.0.max(self.lanes.unit_free(unit)) + copies * each);
        }
        self.counts.reads += copies;
        self.counts.copies += copies;
        self.counts.programs += copies;
        true
    }
}
