//! Sorted sets of numbers: what the policies that work by address ask for the next higher or lower block.

use std::collections::BTreeSet;

/// A set that can be walked in order from anywhere.
pub trait Ordered: Default + Send + 'static {
    /// Adds `key`; it may be there already.
    fn add(&mut self, key: u64);
    /// Takes `key` out; it may be absent.
    fn take(&mut self, key: u64);
    /// The lowest member at or above `key`.
    fn at_or_above(&self, key: u64) -> Option<u64>;
    /// The highest member below `key`.
    fn below(&self, key: u64) -> Option<u64>;
}

impl Ordered for BTreeSet<u64> {
    fn add(&mut self, key: u64) {
        self.insert(key);
    }

    fn take(&mut self, key: u64) {
        self.remove(&key);
    }

    fn at_or_above(&self, key: u64) -> Option<u64> {
        self.range(key..).next().copied()
    }

    fn below(&self, key: u64) -> Option<u64> {
        self.range(..key).next_back().copied()
    }
}

/// A tree of bit maps with 64 children a node: level 0 has a bit a number, each level above a bit for each
/// word below that is not zero. A step costs a few word operations: its height is log₆₄ of the space.
#[derive(Default)]
pub struct BitTree {
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    fn grow(&mut self, key: u64) {
        let mut words = key as usize / 64 + 1;
        let mut level = 0;
        loop {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
                if level > 0 {
                    self.summarise(level);
                }
            }
            if self.levels[level].len() < words {
                self.levels[level].resize(words.next_power_of_two(), 0);
            }
            words = self.levels[level].len();
            if words == 1 {
                return;
            }
            words = words.div_ceil(64);
            level += 1;
        }
    }

    /// Fills a new top level from the one below it.
    fn summarise(&mut self, level: usize) {
        let used: Vec<usize> =
            (0..self.levels[level - 1].len()).filter(|&word| self.levels[level - 1][word] != 0).collect();
        let top = used.last().map_or(0, |&last| last / 64 + 1);
        self.levels[level].resize(top, 0);
        for word in used {
            self.levels[level][word / 64] |= 1 << (word % 64);
        }
    }

    fn lowest_under(&self, mut level: usize, mut at: u64) -> u64 {
        while level > 0 {
            level -= 1;
            at = at * 64 + u64::from(self.levels[level][at as usize].trailing_zeros());
        }
        at
    }

    fn highest_under(&self, mut level: usize, mut at: u64) -> u64 {
        while level > 0 {
            level -= 1;
            at = at * 64 + 63 - u64::from(self.levels[level][at as usize].leading_zeros());
        }
        at
    }
}

impl Ordered for BitTree {
    fn add(&mut self, key: u64) {
        if self.levels.first().is_none_or(|bits| key as usize / 64 >= bits.len()) {
            self.grow(key);
        }
        let mut at = key as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    fn take(&mut self, key: u64) {
        let mut at = key as usize;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(at / 64) else { return };
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    fn at_or_above(&self, key: u64) -> Option<u64> {
        let mut at = key;
        for (level, bits) in self.levels.iter().enumerate() {
            let word = *bits.get(at as usize / 64)?;
            let rest = word & (u64::MAX << (at % 64));
            if rest != 0 {
                let found = at / 64 * 64 + u64::from(rest.trailing_zeros());
                return Some(self.lowest_under(level, found));
            }
            at = at / 64 + 1;
        }
        None
    }

    fn below(&self, key: u64) -> Option<u64> {
        let mut at = key.min(self.levels.first()?.len() as u64 * 64).checked_sub(1)?;
        for (level, bits) in self.levels.iter().enumerate() {
            let rest = bits[at as usize / 64] & (u64::MAX >> (63 - at % 64));
            if rest != 0 {
                let found = at / 64 * 64 + 63 - u64::from(rest.leading_zeros());
                return Some(self.highest_under(level, found));
            }
            at = (at / 64).checked_sub(1)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_tree_agrees_with_a_b_tree() {
        for space in [1u64, 64, 65, 5000, 300_000] {
            let mut tree = BitTree::default();
            let mut model = BTreeSet::new();
            let mut x = space;
            for step in 0..20_000u64 {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let key = (x >> 33) % space.min(1 + step * 40);
                match x & 3 {
                    0 | 1 => {
                        tree.add(key);
                        model.add(key);
                    }
                    _ => {
                        tree.take(key);
                        Ordered::take(&mut model, key);
                    }
                }
                let probe = (x >> 20) % (space + 70);
                assert_eq!(tree.at_or_above(probe), model.at_or_above(probe), "at or above {probe}");
                assert_eq!(Ordered::below(&tree, probe), model.below(probe), "below {probe}");
            }
        }
    }
}
