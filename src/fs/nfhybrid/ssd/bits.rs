//! Sets of small numbers as bits.
//!
//! [`Bits`] has range operations that work a word at a time. [`Pool`] is a set one takes members out of:
//! `take` goes on from where it last stopped (next fit), so that what is handed out moves over the whole
//! range in order. A summary bit a word keeps the search short: a set of two million is 512 words to look at.

use std::ops::Range;

/// A set of the numbers below a fixed limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
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

impl Bits {
    /// An empty set for numbers below `limit`.
    pub(super) fn new(limit: u32) -> Bits {
        Bits { words: vec![0; limit.div_ceil(64) as usize] }
    }

    pub(super) fn get(&self, index: u32) -> bool {
        self.words[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, index: u32) {
        self.words[(index / 64) as usize] |= 1 << (index % 64);
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.words[(index / 64) as usize] &= !(1 << (index % 64));
    }

    pub(super) fn set_range(&mut self, range: Range<u32>) {
        masks(range).for_each(|(word, mask)| self.words[word] |= mask);
    }

    pub(super) fn clear_range(&mut self, range: Range<u32>) {
        masks(range).for_each(|(word, mask)| self.words[word] &= !mask);
    }

    /// Whether any number of the range is in the set.
    pub(super) fn any(&self, range: Range<u32>) -> bool {
        masks(range).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// Whether every number of the range is in the set.
    pub(super) fn all(&self, range: Range<u32>) -> bool {
        masks(range).all(|(word, mask)| self.words[word] & mask == mask)
    }

    /// Members in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(word, &bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(word as u32 * 64 + bit)
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Empties the set; what was in it.
    pub(super) fn take(&mut self) -> Bits {
        let empty = vec![0; self.words.len()];
        Bits { words: std::mem::replace(&mut self.words, empty) }
    }

    /// Adds every member of `other`, which has the same limit.
    pub(super) fn add_all(&mut self, other: &Bits) {
        self.words.iter_mut().zip(&other.words).for_each(|(to, from)| *to |= from);
    }
}

/// A set of numbers below a fixed limit, to take members from in a rotating order.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    bits: Bits,
    summary: Bits,
    members: u32,
    limit: u32,
    cursor: u32,
}

impl Pool {
    /// All numbers below `limit`.
    pub(super) fn full(limit: u32) -> Pool {
        let mut pool = Pool {
            bits: Bits::new(limit),
            summary: Bits::new(limit.div_ceil(64)),
            members: limit,
            limit,
            cursor: 0,
        };
        pool.bits.set_range(0..limit);
        pool.summary.set_range(0..limit.div_ceil(64));
        pool
    }

    pub(super) fn len(&self) -> u32 {
        self.members
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.bits.get(index)
    }

    pub(super) fn insert(&mut self, index: u32) {
        debug_assert!(index < self.limit && !self.contains(index), "{index} is in the pool already");
        self.bits.set(index);
        self.summary.set(index / 64);
        self.members += 1;
    }

    /// Takes `index` out; whether it was in.
    pub(super) fn remove(&mut self, index: u32) -> bool {
        if !self.contains(index) {
            return false;
        }
        self.bits.clear(index);
        if self.bits.words[(index / 64) as usize] == 0 {
            self.summary.clear(index / 64);
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
        let index = self.next_from(0)?;
        self.remove(index);
        Some(index)
    }

    fn next_from(&self, from: u32) -> Option<u32> {
        let word = (from / 64) as usize;
        let here = self.bits.words[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word as u32 * 64 + here.trailing_zeros());
        }
        let next = self.next_word(word as u32 + 1)?;
        Some(next * 64 + self.bits.words[next as usize].trailing_zeros())
    }

    /// The first word at or after `from` with a member in it.
    fn next_word(&self, from: u32) -> Option<u32> {
        let start = (from / 64) as usize;
        let words = self.summary.words.get(start..)?;
        words.iter().enumerate().find_map(|(step, &bits)| {
            let bits = if step == 0 { bits & (u64::MAX << (from % 64)) } else { bits };
            (bits != 0).then(|| (start + step) as u32 * 64 + bits.trailing_zeros())
        })
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
        assert_eq!(bits.is_empty(), model.is_empty());
    }

    #[test]
    fn a_pool_hands_out_every_member_once_and_goes_round() {
        for limit in [1, 63, 64, 65, 5000] {
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
