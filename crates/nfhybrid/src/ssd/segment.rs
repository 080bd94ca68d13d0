//! Extents cut into segments and sub-segments, and Algorithm 1 (`BITMAP`).
//!
//! The paper's section 3.2. An extent of `s = 2^n` blocks is cut into parts that double in size:
//!
//! ```text
//! small (s ≤ δ)   seg[-1] seg[0] seg[1]  seg[2]   …   seg[n-1]
//!  blocks         0       1      2-3     4-7          s/2 … s-1
//! large (s > δ)   seg[-1] seg[0] … seg[n-2]  seg[n-1]  subseg[0]  subseg[1]  …  subseg[n-2]
//!  blocks         0       1        s/4…      s/2       s/2+1      s/2+2, +3     s/2+s/4 … s-1
//! ```
//!
//! Two bits a part say free (00), first part of an allocation (11), or a later part of one (x: written as
//! 10, read as 01 or 10). A part is what is allocated: a file of 3 blocks at block 0 takes `seg[-1]`, `seg[0]`
//! and `seg[1]`, and block 3 stays unused until the file goes.
//!
//! Parts are numbered in the order of their positions: `seg[i]` is part `i + 1`, `subseg[j]` is part `n + 1 + j`.
//! All two-bit states of an extent are one `u64`, so a large extent can have 32 parts: 65 536 blocks.
//!
//! # Where this departs from the printed text
//!
//! - Definition 3.1 has small extents at `s = δ` only; smaller extents have the same structure here.
//! - Definition 3.4 gives `seg[n-1]` of a large extent the size `s/2`, the size formula below it counts one
//!   block. It *covers* `s/2` blocks and *owns* one, at `s/2`; the others are its sub-segments'.
//! - Algorithm 1 as printed sends a small extent's largest segment to lines 7–23, which need sub-segments.
//!   Lines 3–6 apply to every small extent here.
//! - The counts of lines 6, 11, 17 and 22 are right, but lines 6 and 17–22 leave the other count unset
//!   (zero is meant), lines 17 and 22 write `subseqnum` for `subsegnum`, and lines 25 and 29 do not say
//!   where the remaining parts start: after `p`, and, where segments come before them, at `subseg[0]`.
//! - Lines 10, 13 and 19 use the names `q` and `p` again for sub-segments; there `q = -1` means that the
//!   range ends with the block at `s/2`.
//! - A range that starts inside a part would free what lies before it; here it must start where a part does.
//! - After the front or middle of an allocation is freed, the rest would have no first part. [`Marks::settle`]
//!   makes the part that comes first again the first, so that 11 starts every run of x.

use bimetal_base::{Error, Result};

/// The largest extent, in blocks: 32 parts in two bits each fill a word.
pub const EXTENT_BLOCKS_MAX: u32 = 1 << 16;

/// One part of an extent (Definitions 3.1 and 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `seg[i]`; `seg[-1]` is the clean segment, the paper's `seg[c]`.
    Segment(i32),
    /// `subseg[j]`, of large extents.
    SubSegment(i32),
}

/// The two bits of a part (Definitions 3.2 and 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// 00: free.
    Free,
    /// 11: allocated, the first part of its allocation.
    First,
    /// 10 or 01, "x": allocated, not the first part.
    Rest,
}

/// How the extents of a section are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    log2: u8,
    large: bool,
}

impl Shape {
    /// The shape of extents of `blocks` blocks where those above `threshold` (the paper's δ) are large.
    ///
    /// # Errors
    /// `blocks` is not a power of two in 2..=[`EXTENT_BLOCKS_MAX`].
    pub fn new(blocks: u32, threshold: u32) -> Result<Shape> {
        if !blocks.is_power_of_two() || !(2..=EXTENT_BLOCKS_MAX).contains(&blocks) {
            return Err(Error::invalid(format!(
                "an extent of {blocks} blocks: it must be a power of two from 2 to {EXTENT_BLOCKS_MAX} blocks"
            )));
        }
        Ok(Shape { log2: blocks.trailing_zeros() as u8, large: blocks > threshold })
    }

    /// Blocks in an extent: `s`.
    pub fn blocks(self) -> u32 {
        1 << self.log2
    }

    /// Number of segments, the clean one included: `log2 s + 1`.
    pub fn segments(self) -> u32 {
        u32::from(self.log2) + 1
    }

    /// Number of sub-segments: `log2 s − 1` in large extents, none in small ones.
    pub fn sub_segments(self) -> u32 {
        if self.large { u32::from(self.log2) - 1 } else { 0 }
    }

    /// Number of parts, which is the number of bitmaps of a section: `log2 s + 1` or `2 log2 s`.
    pub fn parts(self) -> u32 {
        self.segments() + self.sub_segments()
    }

    /// `pos` of Definitions 3.1 and 3.4: the part's first block in the extent.
    pub fn pos(self, part: Part) -> u32 {
        match part {
            Part::Segment(i) => floor_pow2(i),
            Part::SubSegment(j) => self.blocks() / 2 + floor_pow2(j),
        }
    }

    /// `size` of Definitions 3.1 and 3.4, in blocks: what the part covers.
    pub fn size(self, part: Part) -> u32 {
        match part {
            Part::Segment(i) | Part::SubSegment(i) => floor_pow2(i).max(1),
        }
    }

    /// The part with number `index` in the order of positions.
    pub fn part(self, index: u32) -> Part {
        match index.checked_sub(self.segments()) {
            None => Part::Segment(index as i32 - 1),
            Some(j) => Part::SubSegment(j as i32),
        }
    }

    /// The number of a part in the order of positions.
    pub fn index(self, part: Part) -> u32 {
        match part {
            Part::Segment(i) => (i + 1) as u32,
            Part::SubSegment(j) => self.segments() + j as u32,
        }
    }

    /// First block of part `index`; of the part after the last: the extent's end.
    pub fn start(self, index: u32) -> u32 {
        if index >= self.parts() { self.blocks() } else { self.pos(self.part(index)) }
    }

    /// The number of the part that owns `block` of the extent.
    pub fn part_at(self, block: u32) -> u32 {
        let half = self.blocks() / 2;
        if !self.large || block <= half {
            (floor_log2(block) + 1) as u32
        } else {
            self.segments() + floor_log2(block - half) as u32
        }
    }

    /// Bytes of all bitmaps of a section of `extents` extents, without their checksums: two bits a part.
    pub fn bitmap_bytes(self, extents: u64) -> u64 {
        u64::from(self.parts()) * extents.div_ceil(4)
    }
}

/// `⌊2^i⌋`: zero for `i = -1`.
fn floor_pow2(i: i32) -> u32 {
    if i < 0 { 0 } else { 1 << i }
}

/// The `p` with `⌊2^p⌋ ≤ x < 2^(p+1)`; −1 for zero.
fn floor_log2(x: u32) -> i32 {
    31 - x.leading_zeros() as i32
}

/// Adjacent free parts of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Number of the first free part.
    pub first: u32,
    /// Number of the last one.
    pub last: u32,
    /// The first block.
    pub pos: u32,
    /// Number of blocks.
    pub blocks: u32,
}

/// The two-bit states of all parts of one extent; part `i` in bits `2i` and `2i + 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub u64);

/// Bit `2i` for every `i`.
const EVEN: u64 = 0x5555_5555_5555_5555;

impl Marks {
    /// The state of part `index`.
    pub fn get(self, index: u32) -> Mark {
        match self.0 >> (2 * index) & 3 {
            0 => Mark::Free,
            3 => Mark::First,
            _ => Mark::Rest,
        }
    }

    /// Changes the state of part `index`.
    pub fn set(&mut self, index: u32, mark: Mark) {
        let bits = match mark {
            Mark::Free => 0,
            Mark::First => 3,
            Mark::Rest => 2,
        };
        self.0 = self.0 & !(3 << (2 * index)) | bits << (2 * index);
    }

    /// All parts are free: the clean extent.
    pub fn is_clean(self) -> bool {
        self.0 == 0
    }

    /// No part is free.
    pub fn is_full(self, shape: Shape) -> bool {
        self.free(shape) == 0
    }

    /// Bit `2i` is set for every free part `i`.
    fn free(self, shape: Shape) -> u64 {
        !(self.0 | self.0 >> 1) & EVEN & (u64::MAX >> (64 - 2 * shape.parts()))
    }

    /// Algorithm 1: allocates (`allocate`) or frees the parts that hold blocks `a..=b` of the extent.
    ///
    /// `a` is the first block of a part, `a ≤ b < s`. O(log s).
    pub fn bitmap(&mut self, shape: Shape, a: u32, b: u32, allocate: bool) {
        debug_assert!(a <= b && b < shape.blocks() && shape.start(shape.part_at(a)) == a);
        let half = shape.blocks() / 2;
        let last = i32::from(shape.log2) - 1;
        let (p, q) = (floor_log2(a), floor_log2(b));
        let none = 0..0;
        let (first, segments, sub_segments) = if !shape.large || q < last {
            (Part::Segment(p), p + 1..q + 1, none)
        } else if p < last {
            (Part::Segment(p), p + 1..last + 1, 0..floor_log2(b - half) + 1)
        } else if a == half {
            (Part::Segment(p), none, 0..floor_log2(b - half) + 1)
        } else {
            let p = floor_log2(a - half);
            (Part::SubSegment(p), none, p + 1..floor_log2(b - half) + 1)
        };
        let (one, x) = if allocate { (Mark::First, Mark::Rest) } else { (Mark::Free, Mark::Free) };
        self.set(shape.index(first), one);
        segments.for_each(|i| self.set(shape.index(Part::Segment(i)), x));
        sub_segments.for_each(|j| self.set(shape.index(Part::SubSegment(j)), x));
    }

    /// Makes every later part that follows a free one (or nothing) the first of its allocation.
    pub fn settle(&mut self, shape: Shape) {
        let mut before = Mark::Free;
        for index in 0..shape.parts() {
            if self.get(index) == Mark::Rest && before == Mark::Free {
                self.set(index, Mark::First);
            }
            before = self.get(index);
        }
    }

    /// The holes, in the order of positions.
    pub fn holes(self, shape: Shape) -> impl Iterator<Item = Hole> {
        let mut free = self.free(shape);
        std::iter::from_fn(move || {
            if free == 0 {
                return None;
            }
            let first = free.trailing_zeros() / 2;
            let run = (free >> (2 * first) | !EVEN).trailing_ones() / 2;
            let last = first + run - 1;
            free &= u64::MAX.checked_shl(2 * (last + 1)).unwrap_or(0);
            let pos = shape.start(first);
            Some(Hole { first, last, pos, blocks: shape.start(last + 1) - pos })
        })
    }

    /// `hole[large]`, the largest hole, the first of equal ones.
    pub fn largest_hole(self, shape: Shape) -> Option<Hole> {
        self.holes(shape).reduce(|best, hole| if hole.blocks > best.blocks { hole } else { best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DELTA: u32 = 16;

    fn shape(blocks: u32) -> Shape {
        Shape::new(blocks, DELTA).unwrap()
    }

    #[test]
    fn a_small_extent_of_16_blocks_has_five_segments() {
        let small = shape(16);
        assert_eq!((small.segments(), small.sub_segments(), small.parts()), (5, 0, 5));
        let found: Vec<_> =
            (-1..4).map(|i| (small.pos(Part::Segment(i)), small.size(Part::Segment(i)))).collect();
        assert_eq!(found, [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8)]);
    }

    #[test]
    fn the_sizes_of_a_small_extent_add_up_to_s() {
        for blocks in [2, 4, 8, 16] {
            let small = shape(blocks);
            let sum: u32 = (0..small.parts()).map(|i| small.size(small.part(i))).sum();
            assert_eq!(sum, blocks);
        }
    }

    #[test]
    fn a_large_extent_has_sub_segments_in_its_last_half() {
        let large = shape(64);
        assert_eq!((large.segments(), large.sub_segments(), large.parts()), (7, 5, 12));
        let found: Vec<_> =
            (0..5).map(|j| (large.pos(Part::SubSegment(j)), large.size(Part::SubSegment(j)))).collect();
        assert_eq!(found, [(33, 1), (34, 2), (36, 4), (40, 8), (48, 16)]);
        assert_eq!(large.pos(Part::Segment(5)), 32);
        assert_eq!((large.start(6), large.start(7)), (32, 33), "the block at s/2 is the last segment's");
    }

    #[test]
    fn the_parts_of_every_extent_cover_it_once_and_number_2_log2_s() {
        for log2 in 1..=16 {
            let shape = shape(1 << log2);
            assert_eq!(shape.parts(), if log2 > 4 { 2 * log2 } else { log2 + 1 });
            let mut at = 0;
            for index in 0..shape.parts() {
                assert_eq!(shape.start(index), at);
                assert_eq!(shape.index(shape.part(index)), index);
                for block in at..shape.start(index + 1) {
                    assert_eq!(shape.part_at(block), index, "block {block} of {shape:?}");
                }
                at = shape.start(index + 1);
            }
            assert_eq!(at, shape.blocks());
        }
    }

    #[test]
    fn the_bitmaps_of_a_32_gib_section_take_the_printed_space() {
        let section = 32u64 << 30;
        assert_eq!(shape(16).bitmap_bytes(section / (16 << 10)), 5 << 19);
        assert_eq!(shape(64).bitmap_bytes(section / (64 << 10)), 12 << 17);
    }

    #[test]
    fn table_3_comes_out() {
        let section = 16u64 << 30;
        let rows: Vec<_> = [16u32, 64, 256, 512]
            .map(|kib| {
                let shape = shape(kib);
                let bytes = shape.bitmap_bytes(section / (u64::from(kib) << 10));
                (shape.segments(), shape.sub_segments(), bytes >> 10)
            })
            .to_vec();
        assert_eq!(rows, [(5, 0, 1280), (7, 5, 768), (9, 7, 256), (10, 8, 144)]);
    }

    #[test]
    fn extents_that_cannot_be_cut_are_refused() {
        for blocks in [0, 1, 3, 24, 1 << 17] {
            assert!(Shape::new(blocks, DELTA).is_err(), "{blocks}");
        }
    }

    /// Algorithm 1's three cases by hand, on an extent of 32 blocks (log2 s = 5).
    #[test]
    fn the_three_cases_of_algorithm_1_mark_the_printed_parts() {
        let large = shape(32);
        let marked = |a, b| {
            let mut marks = Marks::default();
            marks.bitmap(large, a, b, true);
            (0..large.parts())
                .map(|index| match marks.get(index) {
                    Mark::Free => '0',
                    Mark::First => '1',
                    Mark::Rest => 'x',
                })
                .collect::<String>()
        };
        // seg -1 0 1 2 3 4, subseg 0 1 2 3
        assert_eq!(marked(2, 9), "001xx00000", "segments only");
        assert_eq!(marked(4, 15), "0001x00000", "up to the end of the first half");
        assert_eq!(marked(4, 16), "0001xx0000", "to the block at s/2: no sub-segment");
        assert_eq!(marked(0, 31), "1xxxxxxxxx", "all of it");
        assert_eq!(marked(8, 20), "00001xxxx0", "both kinds");
        assert_eq!(marked(16, 16), "0000010000", "the block at s/2 alone");
        assert_eq!(marked(16, 19), "000001xx00", "the block at s/2 and sub-segments");
        assert_eq!(marked(18, 31), "00000001xx", "sub-segments only");
        assert_eq!(marked(24, 31), "0000000001", "one sub-segment");
    }

    #[test]
    fn a_small_extents_largest_segment_is_a_segment() {
        let mut marks = Marks::default();
        marks.bitmap(shape(16), 4, 15, true);
        assert_eq!((marks.get(3), marks.get(4)), (Mark::First, Mark::Rest));
        assert_eq!(marks.get(2), Mark::Free);
    }

    #[test]
    fn both_codes_of_x_read_as_x() {
        assert_eq!([1u64, 2].map(|bits| Marks(bits << 4).get(2)), [Mark::Rest; 2]);
    }

    #[test]
    fn the_largest_hole_is_the_first_of_equal_ones() {
        let large = shape(32);
        let mut marks = Marks::default();
        marks.bitmap(large, 8, 16, true);
        // Free: blocks 0-7 and 17-31.
        let hole = marks.largest_hole(large).unwrap();
        assert_eq!((hole.pos, hole.blocks, hole.first, hole.last), (17, 15, 6, 9));
        marks.bitmap(large, 24, 31, true);
        // Free: blocks 0-7 and 17-23.
        assert_eq!(marks.largest_hole(large).map(|hole| (hole.pos, hole.blocks)), Some((0, 8)));
    }

    /// The plain model: one state a block, parts found by looking.
    fn brute_force(shape: Shape, marks: Marks, a: u32, b: u32, allocate: bool) -> Marks {
        let mut after = marks;
        let mut first = true;
        for index in 0..shape.parts() {
            let (from, to) = (shape.start(index), shape.start(index + 1));
            if from <= b && a < to {
                let mark = if first { Mark::First } else { Mark::Rest };
                after.set(index, if allocate { mark } else { Mark::Free });
                first = false;
            }
        }
        after
    }

    proptest! {
        #[test]
        fn algorithm_1_agrees_with_looking_at_every_part(
            log2 in 1u32..=16, threshold in 0u32..=8, steps in prop::collection::vec(any::<(u16, u16, bool)>(), 1..40)
        ) {
            let shape = Shape::new(1 << log2, 1 << threshold).unwrap();
            let mut marks = Marks::default();
            for (part, length, allocate) in steps {
                let a = shape.start(u32::from(part) % shape.parts());
                let b = a + u32::from(length) % (shape.blocks() - a);
                let expected = brute_force(shape, marks, a, b, allocate);
                marks.bitmap(shape, a, b, allocate);
                prop_assert_eq!(marks, expected);
            }
        }

        #[test]
        fn holes_are_the_maximal_runs_of_free_parts(log2 in 1u32..=16, bits in any::<u64>()) {
            let shape = Shape::new(1 << log2, DELTA).unwrap();
            let marks = Marks(bits & (u64::MAX >> (64 - 2 * shape.parts())));
            let mut covered = vec![false; shape.parts() as usize];
            for hole in marks.holes(shape) {
                prop_assert_eq!(hole.pos, shape.start(hole.first));
                prop_assert_eq!(hole.pos + hole.blocks, shape.start(hole.last + 1));
                prop_assert!(hole.first == 0 || marks.get(hole.first - 1) != Mark::Free);
                prop_assert!(hole.last + 1 == shape.parts() || marks.get(hole.last + 1) != Mark::Free);
                (hole.first..=hole.last).for_each(|index| covered[index as usize] = true);
            }
            for index in 0..shape.parts() {
                prop_assert_eq!(covered[index as usize], marks.get(index) == Mark::Free);
            }
            let largest = marks.holes(shape).map(|hole| hole.blocks).max();
            prop_assert_eq!(marks.largest_hole(shape).map(|hole| hole.blocks), largest);
        }

        #[test]
        fn after_settling_every_run_of_x_follows_a_first(log2 in 1u32..=16, bits in any::<u64>()) {
            let shape = Shape::new(1 << log2, DELTA).unwrap();
            let mut marks = Marks(bits & (u64::MAX >> (64 - 2 * shape.parts())));
            let before = marks;
            marks.settle(shape);
            for index in 0..shape.parts() {
                let free = |marks: Marks, index| marks.get(index) == Mark::Free;
                prop_assert_eq!(free(marks, index), free(before, index));
                if marks.get(index) == Mark::Rest {
                    prop_assert!(index > 0 && !free(marks, index - 1));
                }
            }
        }
    }
}
