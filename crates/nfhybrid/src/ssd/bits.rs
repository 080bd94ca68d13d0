//! Sets of small numbers as bits, in chunks that are there only where something was set.
//!
//! [`Bits`] has range operations that work a word at a time. [`Pool`] is a set one takes members out of:
//! `take` goes on from where it last stopped (next fit), so that what is handed out moves over the whole
//! range in order. It keeps what was taken, so a full pool costs nothing.
//!
//! # Memory
//!
//! 8 bytes for each 4096 numbers below the limit, and 512 bytes for each of these stretches with a member; a chunk
//! that loses its last one is given back. A set for the 2^28 blocks of 1 TiB costs half a MiB when it is empty. A pool has a bit a chunk more, by which a search passes over what is taken wholly.

use super::pages::Page;
use std::ops::Range;

/// Numbers in a chunk.
const CHUNK_BITS: u32 = 4096;

const CHUNK_WORDS: usize = (CHUNK_BITS / 64) as usize;

type Chunk = Page<[u64; CHUNK_WORDS]>;

/// A set of the numbers below a fixed limit.
#[derive(Debug, Default)]
pub(super) struct Bits {
    chunks: Vec<Option<Chunk>>,
    in_use: usize,
    len: usize,
}

/// The words a range touches, each with the mask of its bits that lie in the range.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (range.start, range.end.max(range.start));
    let words = if start == end { 0..0 } else { start / 64..(end - 1) / 64 + 1 };
    words.map(move |word| {
        let low = start.saturating_sub(word * 64).min(63);
        let high = (end - word * 64).min(64);
        (word as usize, (u64::MAX >> (64 - high)) & (u64::MAX << low))
    })
}

/// The part of a range in each chunk it touches: the chunk, and the range counted from the chunk's first number.
fn by_chunk(range: Range<u32>) -> impl Iterator<Item = (usize, Range<u32>)> {
    let chunks =
        if range.is_empty() { 0..0 } else { range.start / CHUNK_BITS..(range.end - 1) / CHUNK_BITS + 1 };
    chunks.map(move |chunk| {
        let first = chunk * CHUNK_BITS;
        let end = range.end - first;
        (chunk as usize, range.start.saturating_sub(first)..end.min(CHUNK_BITS))
    })
}

fn chunk_of(index: u32) -> (usize, usize, u32) {
    ((index / CHUNK_BITS) as usize, (index % CHUNK_BITS / 64) as usize, index % 64)
}

impl Bits {
    /// An empty set for numbers below `limit`.
    pub(super) fn new(limit: u32) -> Bits {
        Bits::of_chunks(limit.div_ceil(CHUNK_BITS) as usize)
    }

    fn of_chunks(count: usize) -> Bits {
        let mut chunks = Vec::new();
        chunks.resize_with(count, || None);
        Bits { chunks, in_use: 0, len: 0 }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Option<Chunk>>() + self.in_use * Chunk::BYTES
    }

    pub(super) fn get(&self, index: u32) -> bool {
        let (chunk, word, bit) = chunk_of(index);
        self.chunks[chunk].as_ref().is_some_and(|chunk| chunk[word] >> bit & 1 == 1)
    }

    pub(super) fn set(&mut self, index: u32) {
        self.set_range(index..index + 1);
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.clear_range(index..index + 1);
    }

    pub(super) fn set_range(&mut self, range: Range<u32>) {
        for (number, part) in by_chunk(range) {
            let place = &mut self.chunks[number];
            if place.is_none() {
                self.in_use += 1;
            }
            let chunk = place.get_or_insert_with(Chunk::zeroed);
            for (word, mask) in masks(part) {
                self.len += (mask & !chunk[word]).count_ones() as usize;
                chunk[word] |= mask;
            }
        }
    }

    pub(super) fn clear_range(&mut self, range: Range<u32>) {
        for (number, part) in by_chunk(range) {
            let Some(chunk) = self.chunks[number].as_mut() else { continue };
            let mut left = 0;
            for (word, mask) in masks(part) {
                self.len -= (mask & chunk[word]).count_ones() as usize;
                chunk[word] &= !mask;
                left |= chunk[word];
            }
            if left == 0 && chunk.iter().all(|word| *word == 0) {
                self.chunks[number] = None;
                self.in_use -= 1;
            }
        }
    }

    /// Whether any number of the range is in the set.
    pub(super) fn any(&self, range: Range<u32>) -> bool {
        by_chunk(range).any(|(number, part)| {
            let chunk = self.chunks[number].as_ref();
            chunk.is_some_and(|chunk| masks(part).any(|(word, mask)| chunk[word] & mask != 0))
        })
    }

    /// Whether every number of the range is in the set.
    pub(super) fn all(&self, range: Range<u32>) -> bool {
        by_chunk(range).all(|(number, part)| {
            let chunk = self.chunks[number].as_ref();
            chunk.is_some_and(|chunk| masks(part).all(|(word, mask)| chunk[word] & mask == mask))
        })
    }

    /// Members in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let chunks =
            self.chunks.iter().zip(0u32..).filter_map(|(chunk, number)| Some((chunk.as_ref()?, number)));
        let words = chunks.flat_map(|(chunk, number)| {
            chunk.iter().zip(0u32..).map(move |(&bits, word)| (bits, number * CHUNK_BITS + word * 64))
        });
        words.flat_map(|(bits, first)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(first + bit)
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many members there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Empties the set; what was in it.
    pub(super) fn take(&mut self) -> Bits {
        let empty = Bits::of_chunks(self.chunks.len());
        std::mem::replace(self, empty)
    }

    /// Adds every member of `other`, which has the same limit.
    pub(super) fn add_all(&mut self, other: &Bits) {
        for (to, from) in self.chunks.iter_mut().zip(&other.chunks) {
            let Some(from) = from else { continue };
            self.in_use += usize::from(to.is_none());
            for (to, from) in to.get_or_insert_with(Chunk::zeroed).iter_mut().zip(from.iter()) {
                self.len += (from & !*to).count_ones() as usize;
                *to |= from;
            }
        }
    }

    /// The first number at or after `from` in its chunk that is not in the set.
    fn first_absent_in_chunk(&self, from: u32) -> Option<u32> {
        let (number, start, bit) = chunk_of(from);
        let Some(chunk) = &self.chunks[number] else { return Some(from) };
        let absent = |word: usize| {
            let mask = if word == start { u64::MAX << bit } else { u64::MAX };
            !chunk[word] & mask
        };
        let word = (start..CHUNK_WORDS).find(|&word| absent(word) != 0)?;
        Some(number as u32 * CHUNK_BITS + word as u32 * 64 + absent(word).trailing_zeros())
    }

    /// Whether the chunk with `index` holds `CHUNK_BITS` members.
    fn chunk_is_full(&self, index: u32) -> bool {
        let (chunk, word, _) = chunk_of(index);
        let full = |chunk: &Chunk| chunk[word] == u64::MAX && chunk.iter().all(|word| *word == u64::MAX);
        self.chunks[chunk].as_ref().is_some_and(full)
    }
}

/// A set of numbers below a fixed limit, to take members from in a rotating order.
#[derive(Debug)]
pub(super) struct Pool {
    /// What is not in the pool, the numbers from the limit to the end of its chunk included.
    taken: Bits,
    /// A bit for each chunk that is wholly taken.
    full: Vec<u64>,
    members: u32,
    limit: u32,
    cursor: u32,
    /// No member is lower.
    lowest: u32,
}

impl Pool {
    /// All numbers below `limit`.
    pub(super) fn full(limit: u32) -> Pool {
        let chunks = limit.div_ceil(CHUNK_BITS);
        let mut taken = Bits::new(limit);
        taken.set_range(limit..chunks.saturating_mul(CHUNK_BITS));
        Pool {
            taken,
            full: vec![0; chunks.div_ceil(64) as usize],
            members: limit,
            limit,
            cursor: 0,
            lowest: 0,
        }
    }

    /// Another with the same members.
    pub(super) fn copy(&self) -> Pool {
        let mut copy = Pool::full(self.limit);
        for index in self.taken.iter().take_while(|index| *index < self.limit) {
            copy.remove(index);
        }
        copy
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.taken.heap_bytes() + self.full.len() * 8
    }

    pub(super) fn len(&self) -> u32 {
        self.members
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        !self.taken.get(index)
    }

    pub(super) fn insert(&mut self, index: u32) {
        debug_assert!(index < self.limit && !self.contains(index), "{index} is in the pool already");
        self.taken.clear(index);
        let chunk = index / CHUNK_BITS;
        self.full[(chunk / 64) as usize] &= !(1 << (chunk % 64));
        self.members += 1;
        self.lowest = self.lowest.min(index);
    }

    /// Takes `index` out; whether it was in.
    pub(super) fn remove(&mut self, index: u32) -> bool {
        if !self.contains(index) {
            return false;
        }
        self.taken.set(index);
        if self.taken.chunk_is_full(index) {
            let chunk = index / CHUNK_BITS;
            self.full[(chunk / 64) as usize] |= 1 << (chunk % 64);
        }
        self.members -= 1;
        true
    }

    /// Takes out the next member at or after the one taken last, going round.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.members == 0 {
            return None;
        }
        let index = self.next_from(self.cursor).or_else(|| self.next_from(0))?;
        self.remove(index);
        self.cursor = if index + 1 == self.limit { 0 } else { index + 1 };
        Some(index)
    }

    /// Takes out the lowest member.
    pub(super) fn take_lowest(&mut self) -> Option<u32> {
        let index = self.next_from(self.lowest)?;
        self.remove(index);
        self.lowest = index;
        Some(index)
    }

    /// The lowest member that is not below `from`.
    pub(super) fn next_from(&self, from: u32) -> Option<u32> {
        if from >= self.limit {
            return None;
        }
        let here = self.taken.first_absent_in_chunk(from);
        here.or_else(|| self.taken.first_absent_in_chunk(self.next_open(from / CHUNK_BITS + 1)? * CHUNK_BITS))
    }

    /// The first chunk at or after `from` that is not wholly taken.
    fn next_open(&self, from: u32) -> Option<u32> {
        let chunks = self.limit.div_ceil(CHUNK_BITS);
        let start = (from / 64) as usize;
        let words = self.full.get(start..)?;
        let open = words.iter().enumerate().find_map(|(step, &full)| {
            let bits = !full & if step == 0 { u64::MAX << (from % 64) } else { u64::MAX };
            (bits != 0).then(|| (start + step) as u32 * 64 + bits.trailing_zeros())
        });
        open.filter(|chunk| *chunk < chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    use std::collections::BTreeSet;

    #[test]
    fn ranges_do_what_single_bits_do() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut bits, mut model) = (Bits::new(300), BTreeSet::new());
        for _ in 0..2000 {
            let start = random.random_range(0..300u32);
            let range = start..random.random_range(start..=300);
            assert_eq!(bits.any(range.clone()), range.clone().any(|i| model.contains(&i)));
            assert_eq!(bits.all(range.clone()), range.clone().all(|i| model.contains(&i)));
            if random.random() {
                bits.set_range(range.clone());
                model.extend(range);
            } else {
                bits.clear_range(range.clone());
                model.retain(|i| !range.contains(i));
            }
        }
        assert!(bits.iter().eq(model.iter().copied()));
        assert_eq!((bits.is_empty(), bits.len()), (model.is_empty(), model.len()));
    }

    #[test]
    fn what_is_not_set_costs_nothing_and_what_was_cleared_no_more() {
        let mut bits = Bits::new(1 << 28);
        let empty = bits.heap_bytes();
        assert_eq!(empty, (1 << 28) / CHUNK_BITS as usize * 8);
        bits.set_range(70_000_000..70_100_000);
        let held = bits.heap_bytes() - empty;
        assert!((100_000 / 8..100_000 / 7).contains(&held), "{held}");
        let taken = bits.take();
        assert_eq!((bits.heap_bytes(), taken.iter().count(), taken.len()), (empty, 100_000, 100_000));
        bits.set_range(70_050_000..70_100_001);
        bits.add_all(&taken);
        assert_eq!(bits.len(), 100_001);
        bits.clear(70_100_000);
        bits.clear_range(70_000_000..70_100_000);
        assert_eq!((bits.heap_bytes(), bits.is_empty()), (empty, true));
        let pool = Pool::full(1 << 24);
        assert!(pool.heap_bytes() < 64 << 10, "{}", pool.heap_bytes());
    }

    #[test]
    fn a_pool_hands_out_every_member_once_and_goes_round() {
        for limit in [1, 63, 64, 65, 5000, 4096, 300_000] {
            let mut pool = Pool::full(limit);
            assert!(std::iter::from_fn(|| pool.take()).eq(0..limit));
            pool.insert(limit / 2);
            assert_eq!((pool.len(), pool.take(), pool.take()), (1, Some(limit / 2), None));
        }
        let mut pool = Pool::full(200);
        assert_eq!((pool.take(), pool.take()), (Some(0), Some(1)));
        pool.insert(0);
        assert_eq!(pool.take(), Some(2), "next fit, not first fit");
        assert!(pool.remove(150) && !pool.remove(150));
        assert_eq!((pool.take_lowest(), pool.take_lowest()), (Some(0), Some(3)));
    }
}
