//! What a mount finds in a section, taken over: first its live runs, then the marks where they agree with these.

use super::{EXTENTS_PER_BITMAP_BLOCK, Section};
use crate::ssd::segment::{Mark, Marks};
use std::ops::Range;

impl Section {
    /// Takes a run found at mount as live; `false` (and nothing done) if a block of it is live already.
    pub(in crate::ssd) fn adopt(&mut self, at: u32, len: u32) -> bool {
        if self.live.any(at - self.first..at - self.first + len) {
            return false;
        }
        self.counts.live_blocks += u64::from(len);
        self.by_extent(at, len, |section, extent, range| section.adopt_in(extent, range));
        true
    }

    fn adopt_in(&mut self, extent: u32, range: Range<u32>) {
        let base = extent * self.shape.blocks();
        self.live.set_range(range.clone());
        if self.clean.remove(extent) {
            self.counts.clean_soon -= 1;
        }
        let mut marks = self.marks.get(extent);
        let parts = self.shape.part_at(range.start - base)..=self.shape.part_at(range.end - 1 - base);
        for (step, part) in parts.enumerate() {
            if marks.get(part) == Mark::Free {
                marks.set(part, if step == 0 { Mark::First } else { Mark::Rest });
            }
        }
        self.marks.set(extent, marks);
    }

    /// Whether the extents of a stretch are all clean.
    pub(in crate::ssd) fn is_clean(&self, mut extents: Range<u32>) -> bool {
        let step = self.marks.chunk_extents();
        extents.start = extents.start / step * step;
        extents.step_by(step as usize).all(|extent| self.marks.chunk_is_clean(extent))
    }

    /// Takes the marks of the media for an extent where they agree with what was adopted. Otherwise they
    /// are wrong: the extent's marks will be written again, and the answer is `false`.
    pub(in crate::ssd) fn compare(&mut self, extent: u32, media: Marks) -> bool {
        let own = self.marks.get(extent);
        let mut settled = media;
        settled.settle(self.shape);
        let same = settled == media
            && (0..self.shape.parts()).all(|p| (own.get(p) == Mark::Free) == (media.get(p) == Mark::Free));
        if same {
            self.marks.set(extent, media);
        } else {
            self.dirty.set(extent / EXTENTS_PER_BITMAP_BLOCK);
        }
        same
    }

    /// Ends a mount: partly used extents are set aside until something in them is freed or room is short.
    pub(in crate::ssd) fn adopted(&mut self) {
        for extent in 0..self.extents {
            if self.marks.chunk_is_clean(extent) {
                continue;
            }
            let mut marks = self.marks.get(extent);
            marks.settle(self.shape);
            self.marks.set(extent, marks);
            match marks.largest_hole(self.shape) {
                None => self.counts.full += 1,
                Some(hole) if !marks.is_clean() => self.table.set_aside(extent, hole),
                Some(_) => {}
            }
        }
    }
}
