//! Copies within the array: page by page, or many at once where nothing can go wrong on the way.

use super::clock::Clock;
use super::{ERASED, FIRST_OWNER, Failure, Nand, OpKind, PageOrder, Tag};
use bimetal_base::time::Time;
use std::ops::Range;

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
        let done = self.time(at, OpKind::Copy, to, from);
        let work = self.done();
        work.reads += 1;
        work.copies += 1;
        self.sense(from.0, from.1)?;
        self.settle(to.0, to.1, tag)?;
        if self.payload.is_kept() {
            let bytes = self.bytes(from.0, from.1)?;
            let put = self.payload.put(self.place(to.0, to.1), &bytes);
            put.map_err(|error| Failure::Storage(Box::new(error)))?;
        }
        Ok(done)
    }

    /// Whether nothing can go wrong when pages are copied within a unit, and nothing but their tags is to be moved:
    /// no bit errors, failing programs or planned power cut, no bytes, and no need of the bus (or nobody who times it
    /// here).
    pub fn copies_surely(&self) -> bool {
        !self.has_bit_errors
            && !self.can_fail
            && self.until_cut == u64::MAX
            && !self.payload.is_kept()
            && (self.profile.copy_back && self.profile.slc_pages().is_none()
                || !matches!(self.clock, Clock::Lanes(_)))
    }

    /// Copies many pages at once: physical page `sources[i] − 1` to page `to.1 + i` of block `to.0`, except where
    /// `sources[i]` is 0 or in that block already. What becomes of a page's sequence number is what `renumber`
    /// says. The same as [`copy`](Nand::copy) for one after the other, and several times as fast.
    ///
    /// Does nothing and returns false unless it [`copies_surely`](Nand::copies_surely), within the unit of the target.
    ///
    /// # Panics
    /// If a target is not erased or out of order.
    pub fn copy_many(
        &mut self,
        at: Time,
        sources: &[u32],
        (to, begin): (u32, u32),
        renumber: impl Fn(u64) -> u64,
    ) -> bool {
        if !self.copies_surely() || self.is_bad(to) || !self.are_near(sources, to) {
            return false;
        }
        let pages = self.geometry.pages_per_block;
        let first = to * pages;
        let is_copied = |source: &u32| *source != 0 && source.wrapping_sub(1).wrapping_sub(first) >= pages;
        let (owners, mut copies) = (&mut self.owners[..], 0);
        for (target, source) in (first + begin..).zip(sources) {
            if !is_copied(source) {
                continue;
            }
            let owner = owners[*source as usize - 1];
            assert!(owner >= FIRST_OWNER, "there is nothing to copy on physical page {}", source - 1);
            let target = &mut owners[target as usize];
            assert!(*target == ERASED, "a page of block {to} that is copied to is not erased");
            *target = owner;
            copies += 1;
        }
        if !self.sequences.is_empty() {
            for (target, source) in (first + begin..).zip(sources).filter(|(_, source)| is_copied(source)) {
                self.sequences[target as usize] = renumber(self.sequences[*source as usize - 1]);
            }
        }
        let ends = (sources.iter().position(is_copied), sources.iter().rposition(is_copied));
        if let (Some(least), Some(last)) = ends {
            self.note_copies(at, to, begin + least as u32..begin + last as u32 + 1, copies);
            self.record_copies(at, sources, (to, begin));
        }
        true
    }

    /// Whether all `sources` that are no zeros lie in the unit of block `to`.
    fn are_near(&self, sources: &[u32], to: u32) -> bool {
        let in_unit = self.geometry.blocks_per_unit * self.geometry.pages_per_block;
        let first = self.geometry.unit_of(to) * in_unit;
        // All are looked at, many at a time, since nearly always all are near.
        sources.iter().fold(true, |near, source| {
            near & ((*source == 0) | (source.wrapping_sub(1).wrapping_sub(first) < in_unit))
        })
    }

    /// Puts the copies down, where operations are.
    fn record_copies(&mut self, at: Time, sources: &[u32], (to, begin): (u32, u32)) {
        if !matches!(self.clock, Clock::Recorded(_)) {
            return;
        }
        let pages = self.geometry.pages_per_block;
        for (page, source) in (begin..).zip(sources) {
            let from = source.wrapping_sub(1);
            if *source != 0 && from / pages != to {
                self.time(at, OpKind::Copy, (to, page), (from / pages, from % pages));
            }
        }
    }

    /// What so many copies to pages from the first to the last of `copied_to` of a block took.
    fn note_copies(&mut self, at: Time, block: u32, copied_to: Range<u32>, copies: u64) {
        let state = &mut self.blocks[block as usize];
        let ascending = self.profile.page_order == PageOrder::Ascending;
        assert!(
            !ascending || copied_to.start >= u32::from(state.next_page),
            "page {} of block {block} is out of order",
            copied_to.start
        );
        state.next_page = state.next_page.max(copied_to.end as u16);
        let unit = self.geometry.unit_of(block);
        if let Clock::Lanes(lanes) = &mut self.clock {
            let takes = self.timing.many_copied_back(copies, copied_to.start);
            lanes.occupy(unit, at.0.max(lanes.unit_free(unit)) + takes);
        }
        let work = self.done();
        work.reads += copies;
        work.copies += copies;
        work.programs += copies;
    }
}
