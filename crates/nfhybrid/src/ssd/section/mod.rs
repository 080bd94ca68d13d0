//! The allocator of one data section: marks, the extent table, clean extents (Algorithm 2, `MOVE`).
//!
//! The two-bit marks say what `MOVE` may allocate. Below them each block is in one of four states:
//!
//! ```text
//! free ── allocate ─→ reserved ── bind ─→ live ── unbind ─→ dying ── log durable ─→ free
//!                        └────────── release ──────────────────────────────────────┘
//! ```
//!
//! A dying block is bound to nothing any more, but the record that says so is not durable yet; were the
//! block written again now, a power cut could leave the old binding with the new contents. A part is freed
//! when its last block is.
//!
//! Invariants: a part is marked free exactly when none of its blocks is reserved, live or dying; an extent
//! is in the clean pool exactly when it is clean, in the table when it waits or is past its time, in neither
//! when it is full.

mod adopt;
mod clean;

use super::bits::Bits;
use super::marks::MarkTable;
use super::segment::{Mark, Marks, Shape};
use super::table::Table;
use super::{Runs, add_run};
use bimetal_base::time::Time;
use clean::Clean;
use smallvec::SmallVec;
use std::ops::Range;
use std::time::Duration;

/// Extents whose marks share one 4 KiB block of a bitmap: 8 sectors of 508 bytes, 4 extents a byte.
pub(super) const EXTENTS_PER_BITMAP_BLOCK: u32 = 8 * 508 * 4;

/// The allocator's numbers, in extents and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) clean: u32,
    /// Clean, or clean as soon as the log is durable.
    pub(super) clean_soon: u32,
    pub(super) full: u32,
    pub(super) live_blocks: u64,
}

/// One section. Block numbers are the device's; extents are numbered from 0.
#[derive(Debug)]
pub(super) struct Section {
    shape: Shape,
    first: u32,
    extents: u32,
    marks: MarkTable,
    reserved: Bits,
    live: Bits,
    dying: Bits,
    clean: Clean,
    table: Table,
    counts: Counts,
    now: Time,
    dirty: Bits,
}

impl Section {
    /// A section of `extents` clean extents whose data begins at block `first`.
    pub(super) fn new(shape: Shape, first: u32, extents: u32, wait: Duration) -> Section {
        let blocks = extents * shape.blocks();
        Section {
            shape,
            first,
            extents,
            marks: MarkTable::new(shape, extents),
            reserved: Bits::new(blocks),
            live: Bits::new(blocks),
            dying: Bits::new(blocks),
            clean: Clean::full(extents),
            table: Table::new(shape, wait),
            counts: Counts { clean: extents, clean_soon: extents, full: 0, live_blocks: 0 },
            now: Time::ZERO,
            dirty: Bits::new(extents.div_ceil(EXTENTS_PER_BITMAP_BLOCK)),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn extents(&self) -> u32 {
        self.extents
    }

    /// The section's blocks on the device.
    pub(super) fn range(&self) -> Range<u32> {
        self.first..self.first + self.extents * self.shape.blocks()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let bits = [&self.reserved, &self.live, &self.dying, &self.dirty].map(Bits::heap_bytes);
        bits.iter().sum::<usize>()
            + self.marks.heap_bytes()
            + self.clean.heap_bytes()
            + self.table.heap_bytes()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { clean: self.clean.len(), ..self.counts }
    }

    pub(super) fn waiting(&self) -> u32 {
        self.table.waiting()
    }

    /// The device block at which the extent with `block` begins, and the block's place in it.
    pub(super) fn extent_address(&self, block: u32) -> (u32, u32) {
        let start = (block - self.first) % self.shape.blocks();
        (block - start, start)
    }

    /// Algorithm 2: finds room for `blocks` blocks, or `None` when something must be evicted first.
    pub(super) fn allocate(&mut self, blocks: u32, now: Time) -> Option<Runs> {
        self.now = self.now.max(now);
        self.table.expire(self.now);
        if blocks >= self.shape.blocks() { self.allocate_whole(blocks) } else { self.allocate_part(blocks) }
    }

    /// Lines 1–15: whole clean extents, the last one perhaps in part.
    fn allocate_whole(&mut self, blocks: u32) -> Option<Runs> {
        let size = self.shape.blocks();
        if self.clean.len() < blocks.div_ceil(size) {
            return None;
        }
        let mut runs = Runs::new();
        let mut left = blocks;
        while left > 0 {
            let extent = self.clean.take()?;
            let here = left.min(size);
            self.reserve(extent, 0, here);
            add_run(&mut runs, self.first + extent * size, here);
            left -= here;
        }
        Some(runs)
    }

    /// Lines 16–29: a hole of a waiting extent, else a clean extent, else one past its waiting time.
    fn allocate_part(&mut self, blocks: u32) -> Option<Runs> {
        let extent = match self.table.choose(blocks) {
            Some(extent) => extent,
            None => self.clean.take().or_else(|| self.table.choose_past(blocks))?,
        };
        let pos = self.marks.get(extent).largest_hole(self.shape)?.pos;
        self.reserve(extent, pos, blocks);
        let mut runs = Runs::new();
        add_run(&mut runs, self.first + extent * self.shape.blocks() + pos, blocks);
        Some(runs)
    }

    /// Reserves the first clean extents in a range of the device's blocks, as many as follow one another, have no more than `most`
    /// blocks, and are half of all clean ones at most; where they begin, and their blocks. At least one, if there are two.
    pub(super) fn reserve_clean(&mut self, range: Range<u32>, most: u32) -> Option<(u32, u32)> {
        let size = self.shape.blocks();
        let end = (range.end.saturating_sub(self.first) / size).min(self.extents);
        let begin = self.clean.next_from(range.start.saturating_sub(self.first).div_ceil(size))?;
        self.reserve_whole(begin..end, most, |_, _| true)
    }

    /// From now on the device is told of extents that are clean.
    pub(super) fn tell_of_clean(&mut self) {
        self.clean.tell();
    }

    /// Blocks of clean extents that the device has not been told of.
    pub(super) fn untold_blocks(&self) -> u64 {
        u64::from(self.clean.count_untold()) * u64::from(self.shape.blocks())
    }

    /// As [`reserve_clean`](Section::reserve_clean), extents that the device has not been told of.
    pub(super) fn reserve_untold(&mut self, most: u32) -> Option<(u32, u32)> {
        let begin = self.clean.next_untold()?;
        self.reserve_whole(begin..self.extents, most, Clean::is_untold)
    }

    /// Gives back whole extents that the device has been told of.
    pub(super) fn release_told(&mut self, at: u32, len: u32) {
        self.release(at, len);
        let size = self.shape.blocks();
        let first = (at - self.first) / size;
        (first..first + len / size).for_each(|extent| self.clean.told(extent));
    }

    /// Reserves clean extents from the first of some on, see [`reserve_clean`](Section::reserve_clean).
    fn reserve_whole(
        &mut self,
        extents: Range<u32>,
        most: u32,
        of: fn(&Clean, u32) -> bool,
    ) -> Option<(u32, u32)> {
        let size = self.shape.blocks();
        let count = (most / size).max(1).min(self.clean.len() / 2);
        let (begin, mut extent) = (extents.start, extents.start);
        while extent < extents.end.min(begin + count) && of(&self.clean, extent) && self.clean.remove(extent)
        {
            self.reserve(extent, 0, size);
            extent += 1;
        }
        (extent > begin).then_some((self.first + begin * size, (extent - begin) * size))
    }

    /// Marks `blocks` blocks at `pos` allocated and puts the extent where it now belongs.
    fn reserve(&mut self, extent: u32, pos: u32, blocks: u32) {
        let all = self.extent_blocks(extent);
        if !self.reserved.any(all.clone()) && !self.live.any(all.clone()) {
            self.counts.clean_soon -= 1;
        }
        self.reserved.set_range(all.start + pos..all.start + pos + blocks);
        let mut marks = self.marks.get(extent);
        let was_clean = marks.is_clean();
        marks.bitmap(self.shape, pos, pos + blocks - 1, true);
        self.marks.set(extent, marks);
        match marks.largest_hole(self.shape) {
            None => {
                self.counts.full += 1;
                self.table.leave(extent);
            }
            Some(hole) if was_clean || self.table.is_past(extent) => self.table.join(extent, hole, self.now),
            hole => self.table.moved(extent, hole),
        }
    }

    /// The blocks of an extent, counted from the section's first.
    fn extent_blocks(&self, extent: u32) -> Range<u32> {
        let size = self.shape.blocks();
        extent * size..(extent + 1) * size
    }

    /// Calls `each` with the part of `at..at + len` in each extent, counted from the section's first block.
    fn by_extent(&mut self, at: u32, len: u32, mut each: impl FnMut(&mut Section, u32, Range<u32>)) {
        let size = self.shape.blocks();
        let (mut from, end) = (at - self.first, at - self.first + len);
        while from < end {
            let extent = from / size;
            let to = end.min((extent + 1) * size);
            each(self, extent, from..to);
            from = to;
        }
    }

    /// Whether every block of the run was allocated and is bound to nothing yet.
    pub(super) fn is_reserved(&self, at: u32, len: u32) -> bool {
        self.reserved.all(at - self.first..at - self.first + len)
    }

    /// Reserved blocks become live.
    pub(super) fn bind(&mut self, at: u32, len: u32) {
        let range = at - self.first..at - self.first + len;
        self.reserved.clear_range(range.clone());
        self.live.set_range(range);
        self.counts.live_blocks += u64::from(len);
        self.mark_dirty(at, len);
    }

    /// Live blocks become dying.
    pub(super) fn unbind(&mut self, at: u32, len: u32) {
        self.counts.live_blocks -= u64::from(len);
        self.mark_dirty(at, len);
        self.by_extent(at, len, |section, extent, range| {
            section.live.clear_range(range.clone());
            section.dying.set_range(range);
            section.count_clean_soon(extent);
        });
    }

    /// Dying blocks become free.
    pub(super) fn free(&mut self, at: u32, len: u32) {
        self.by_extent(at, len, |section, extent, range| {
            section.dying.clear_range(range.clone());
            section.free_parts(extent, range);
        });
    }

    /// Reserved blocks become free.
    pub(super) fn release(&mut self, at: u32, len: u32) {
        self.by_extent(at, len, |section, extent, range| {
            section.reserved.clear_range(range.clone());
            section.count_clean_soon(extent);
            section.free_parts(extent, range);
        });
    }

    fn count_clean_soon(&mut self, extent: u32) {
        let all = self.extent_blocks(extent);
        if !self.reserved.any(all.clone()) && !self.live.any(all) {
            self.counts.clean_soon += 1;
        }
    }

    /// Frees the parts that hold blocks of `range` (counted from the section's first) and are empty now.
    fn free_parts(&mut self, extent: u32, range: Range<u32>) {
        let base = extent * self.shape.blocks();
        let (first, last) =
            (self.shape.part_at(range.start - base), self.shape.part_at(range.end - 1 - base));
        let before = self.marks.get(extent);
        let mut after = before;
        for part in first..=last {
            let blocks = base + self.shape.start(part)..base + self.shape.start(part + 1);
            if after.get(part) != Mark::Free && !self.in_use(blocks.clone()) {
                after.bitmap(self.shape, blocks.start - base, blocks.end - 1 - base, false);
            }
        }
        if after != before {
            after.settle(self.shape);
            self.marks.set(extent, after);
            self.rejoin(extent, before);
        }
    }

    fn in_use(&self, blocks: Range<u32>) -> bool {
        self.live.any(blocks.clone()) || self.reserved.any(blocks.clone()) || self.dying.any(blocks)
    }

    /// Parts of an extent were freed: it joins the table again, or the clean ones.
    fn rejoin(&mut self, extent: u32, before: Marks) {
        if before.is_full(self.shape) {
            self.counts.full -= 1;
        }
        let marks = self.marks.get(extent);
        if marks.is_clean() {
            self.table.leave(extent);
            self.clean.insert(extent);
        } else if self.table.is_waiting(extent) {
            self.table.moved(extent, marks.largest_hole(self.shape));
        } else if let Some(hole) = marks.largest_hole(self.shape) {
            self.table.join(extent, hole, self.now);
        }
    }

    /// The marks as the media should have them: parts without a live block are free.
    pub(super) fn media_marks(&self, extent: u32) -> Marks {
        let mut marks = self.marks.get(extent);
        let all = self.extent_blocks(extent);
        if marks.is_clean() || !self.reserved.any(all.clone()) && !self.dying.any(all.clone()) {
            return marks;
        }
        for part in 0..self.shape.parts() {
            if !self.live.any(all.start + self.shape.start(part)..all.start + self.shape.start(part + 1)) {
                marks.set(part, Mark::Free);
            }
        }
        marks.settle(self.shape);
        marks
    }

    /// Which of `count` blocks from `start` on are live, counted from `start`; block numbers of the section.
    pub(super) fn live_in(&self, start: u32, count: u32) -> SmallVec<[usize; 64]> {
        let end = (self.extents * self.shape.blocks()).min(start + count);
        (start..end).filter(|block| self.live.get(*block)).map(|block| (block - start) as usize).collect()
    }

    fn mark_dirty(&mut self, at: u32, len: u32) {
        let first = (at - self.first) / self.shape.blocks();
        let last = (at + len - 1 - self.first) / self.shape.blocks();
        self.dirty.set_range(first / EXTENTS_PER_BITMAP_BLOCK..last / EXTENTS_PER_BITMAP_BLOCK + 1);
    }

    /// How many blocks of all bitmaps changed.
    pub(super) fn dirty_blocks(&self) -> usize {
        self.dirty.len() * self.shape.parts() as usize
    }

    /// Blocks of the bitmaps (each class has as many) whose marks changed since they were last taken.
    pub(super) fn dirty(&mut self) -> &mut Bits {
        &mut self.dirty
    }

    /// Whether a block is live; for tests.
    #[cfg(test)]
    pub(super) fn is_live(&self, block: u32) -> bool {
        self.live.get(block - self.first)
    }

    /// Checks the invariants of the file header against every block; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut full, mut soon) = (0, 0);
        for extent in 0..self.extents {
            let (marks, all) = (self.marks.get(extent), self.extent_blocks(extent));
            for part in 0..self.shape.parts() {
                let blocks = all.start + self.shape.start(part)..all.start + self.shape.start(part + 1);
                assert_eq!(marks.get(part) != Mark::Free, self.in_use(blocks), "part {part} of {extent}");
            }
            let mut settled = marks;
            settled.settle(self.shape);
            assert_eq!(settled, marks, "extent {extent}");
            assert_eq!(self.clean.contains(extent), marks.is_clean(), "extent {extent}");
            full += u32::from(marks.is_full(self.shape));
            soon += u32::from(!self.live.any(all.clone()) && !self.reserved.any(all));
            let in_table = self.table.is_waiting(extent) || self.table.is_past(extent);
            assert_eq!(in_table, !marks.is_clean() && !marks.is_full(self.shape), "extent {extent}");
        }
        let live = self.live.iter().count() as u64;
        assert_eq!(
            self.counts(),
            Counts { clean: self.clean.len(), clean_soon: soon, full, live_blocks: live }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    const WAIT: u64 = 30;

    /// Algorithm 2 as it is written, by looking at everything.
    struct Model {
        shape: Shape,
        /// For each extent, whether each part is allocated.
        parts: Vec<Vec<bool>>,
        /// Extents with the time they joined, the one that has waited longest first.
        waiting: Vec<(u32, u64)>,
        past: Vec<u32>,
    }

    impl Model {
        fn largest_hole(&self, extent: u32) -> (u32, u32) {
            let (parts, mut best) = (&self.parts[extent as usize], (0, 0));
            for first in 0..parts.len() as u32 {
                for last in first..parts.len() as u32 {
                    let blocks = self.shape.start(last + 1) - self.shape.start(first);
                    if parts[first as usize..=last as usize].iter().all(|used| !used) && blocks > best.1 {
                        best = (self.shape.start(first), blocks);
                    }
                }
            }
            best
        }

        fn is_clean(&self, extent: u32) -> bool {
            self.parts[extent as usize].iter().all(|used| !used)
        }

        fn expire(&mut self, now: u64) {
            while let Some((extent, _)) = self.waiting.first().filter(|(_, since)| now - since >= WAIT) {
                self.past.push(*extent);
                self.waiting.remove(0);
            }
        }

        /// The extent and block that must be taken; `Err(true)` for any clean extent, `Err(false)` for none.
        fn choose(&self, blocks: u32) -> Result<(u32, u32), bool> {
            let fits = |extent: &u32| self.largest_hole(*extent).1 >= blocks;
            let place = |extent: u32| (extent, self.largest_hole(extent).0);
            if let Some((extent, _)) = self.waiting.iter().find(|(extent, _)| fits(extent)) {
                return Ok(place(*extent));
            }
            if (0..self.parts.len() as u32).any(|extent| self.is_clean(extent)) {
                return Err(true);
            }
            self.past.iter().find(|extent| fits(extent)).map(|extent| place(*extent)).ok_or(false)
        }

        fn set(&mut self, extent: u32, pos: u32, blocks: u32, used: bool, now: u64) {
            let was_clean = self.is_clean(extent);
            for part in self.shape.part_at(pos)..=self.shape.part_at(pos + blocks - 1) {
                self.parts[extent as usize][part as usize] = used;
            }
            let waits = self.waiting.iter().any(|(other, _)| *other == extent);
            let gone = self.is_clean(extent) || self.largest_hole(extent).1 == 0;
            if gone || !waits {
                self.waiting.retain(|(other, _)| *other != extent);
                self.past.retain(|other| *other != extent);
            }
            if !gone && (!waits || used && was_clean) {
                self.waiting.push((extent, now));
            }
        }
    }

    #[test]
    fn allocation_agrees_with_algorithm_2_as_written() {
        for (seed, blocks, delta) in [(1, 16, 16), (2, 32, 16), (3, 8, 4), (4, 64, 16)] {
            let shape = Shape::new(blocks, delta).unwrap();
            let extents = 12;
            let mut section = Section::new(shape, 1000, extents, Duration::from_nanos(WAIT));
            let parts = vec![vec![false; shape.parts() as usize]; extents as usize];
            let mut model = Model { shape, parts, waiting: Vec::new(), past: Vec::new() };
            let (mut random, mut held, mut now) = (SmallRng::seed_from_u64(seed), Vec::new(), 0);
            for _ in 0..4000 {
                now += random.random_range(0..4);
                if random.random_range(0..5) < 3 {
                    let size = random.random_range(1..blocks);
                    model.expire(now);
                    let expected = model.choose(size);
                    let found = section.allocate(size, Time(now));
                    let Some(runs) = found else {
                        assert_eq!(expected, Err(false));
                        continue;
                    };
                    let at = runs[0].at.0 as u32 - 1000;
                    let place = (at / blocks, at % blocks);
                    match expected {
                        Ok(expected) => assert_eq!(place, expected),
                        Err(clean) => assert!(clean && model.is_clean(place.0) && place.1 == 0),
                    }
                    model.set(place.0, place.1, size, true, now);
                    held.push((at + 1000, size));
                } else if !held.is_empty() {
                    let (at, size) = held.swap_remove(random.random_range(0..held.len()));
                    section.release(at, size);
                    model.set((at - 1000) / blocks, (at - 1000) % blocks, size, false, section.now.0);
                }
                section.check();
            }
        }
    }

    #[test]
    fn a_large_file_takes_whole_clean_extents_and_the_rest_of_the_last_one_waits() {
        let shape = Shape::new(16, 16).unwrap();
        let mut section = Section::new(shape, 0, 8, Duration::from_secs(1));
        let run = |at: u64, len| super::super::Run { at: bimetal_base::units::SsdBlock(at), len };
        assert_eq!(section.allocate(35, Time(0)).unwrap()[..], [run(0, 35)]);
        assert_eq!(section.counts(), Counts { clean: 5, clean_soon: 5, full: 2, live_blocks: 0 });
        assert_eq!(section.allocate(12, Time(0)).unwrap()[..], [run(36, 12)], "behind the third block");
        assert_eq!(section.allocate(80, Time(0)).unwrap()[..], [run(48, 80)], "an exact multiple");
        assert_eq!((section.waiting(), section.allocate(1, Time(0))), (0, None));
        section.check();
    }

    #[test]
    fn clean_extents_are_reserved_in_order_and_half_of_them_are_left() {
        let shape = Shape::new(32, 16).unwrap();
        let mut section = Section::new(shape, 64, 9, Duration::from_secs(1));
        section.allocate(32, Time(0)).unwrap();
        section.allocate(5, Time(0)).unwrap();
        section.check();
        // Seven are clean, from the third on.
        assert_eq!(section.reserve_clean(0..u32::MAX, 64), Some((128, 64)));
        section.check();
        assert_eq!(section.reserve_clean(192..u32::MAX, 1), Some((192, 32)), "one, however long it is");
        assert_eq!(section.reserve_clean(200..320, 1 << 20), Some((224, 64)), "half of four");
        assert_eq!(section.reserve_clean(224..289, 1 << 20), None, "none lies in it whole");
        assert_eq!((section.reserve_clean(0..64, 64), section.reserve_clean(400..9000, 64)), (None, None));
        section.check();
        for (at, len) in [(128, 64), (192, 32), (224, 64)] {
            section.release(at, len);
            section.check();
        }
        assert_eq!(section.counts().clean, 7);
    }

    #[test]
    fn every_block_state_leads_back_to_free() {
        let shape = Shape::new(32, 16).unwrap();
        let mut section = Section::new(shape, 64, 4, Duration::from_secs(1));
        section.allocate(20, Time(0)).unwrap();
        section.bind(64, 17);
        section.release(81, 3);
        section.check();
        section.unbind(64, 8);
        assert_eq!(section.media_marks(0).get(0), Mark::Free, "dying blocks are free on the media");
        assert_eq!(section.media_marks(0).get(4), Mark::First, "and the first part left is a first part");
        section.check();
        section.free(64, 8);
        section.check();
        section.unbind(72, 9);
        assert_eq!((section.counts().clean, section.counts().clean_soon), (3, 4));
        section.free(72, 9);
        assert_eq!(section.counts(), Counts { clean: 4, clean_soon: 4, full: 0, live_blocks: 0 });
        section.check();
    }
}
