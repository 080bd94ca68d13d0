//! A bitmap as ext4 stores it (bit `i` in byte `i / 8`), held as 64-bit words so that ranges are set,
//! cleared and searched a word at a time: 512 steps at most for a group of 32 768 blocks.

/// Bits of a group's blocks or inodes.
#[derive(Clone, Debug)]
pub(super) struct Bitmap {
    words: Box<[u64]>,
}

/// The bits of word `index` that lie in `start..end`.
fn mask(index: usize, start: u32, end: u32) -> u64 {
    let first = index as u32 * 64;
    let from = start.saturating_sub(first).min(64);
    let to = end.saturating_sub(first).min(64);
    let below = |bits: u32| if bits >= 64 { !0 } else { (1_u64 << bits) - 1 };
    below(to) & !below(from)
}

impl Bitmap {
    /// All zeros, room for `bits` (rounded up to whole words).
    pub fn zeros(bits: u32) -> Bitmap {
        Bitmap { words: vec![0; bits.div_ceil(64) as usize].into() }
    }

    /// From a block of the device; its length is a multiple of eight.
    pub fn from_bytes(bytes: &[u8]) -> Bitmap {
        let word = |chunk: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| chunk[i]));
        Bitmap { words: bytes.chunks_exact(8).map(word).collect() }
    }

    /// As a block of the device.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The words, lowest bits first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether bit `at` is set.
    pub fn test(&self, at: u32) -> bool {
        self.words[at as usize / 64] >> (at % 64) & 1 != 0
    }

    fn span(start: u32, len: u32) -> std::ops::Range<usize> {
        start as usize / 64..(start as usize + len as usize).div_ceil(64)
    }

    /// Sets `len` bits from `start`.
    pub fn set(&mut self, start: u32, len: u32) {
        for index in Bitmap::span(start, len) {
            self.words[index] |= mask(index, start, start + len);
        }
    }

    /// Clears `len` bits from `start`.
    pub fn clear(&mut self, start: u32, len: u32) {
        for index in Bitmap::span(start, len) {
            self.words[index] &= !mask(index, start, start + len);
        }
    }

    /// How many of the `len` bits from `start` are set.
    pub fn count(&self, start: u32, len: u32) -> u32 {
        Bitmap::span(start, len)
            .map(|index| (self.words[index] & mask(index, start, start + len)).count_ones())
            .sum()
    }

    /// How many bits from `start` on (below `end`) have the same value as the first.
    pub fn run(&self, start: u32, end: u32) -> u32 {
        let flip = if self.test(start) { !0 } else { 0 };
        next_one(start, end, |index| self.words[index] ^ flip) - start
    }

    /// The first clear bit in `from..end`.
    pub fn next_zero(&self, from: u32, end: u32) -> Option<u32> {
        let found = next_one(from, end, |index| !self.words[index]);
        (found < end).then_some(found)
    }
}

/// The first set bit in `from..end` of the words `word` yields, else `end`.
pub(super) fn next_one(from: u32, end: u32, word: impl Fn(usize) -> u64) -> u32 {
    let mut at = from;
    while at < end {
        let rest = word(at as usize / 64) >> (at % 64);
        if rest != 0 {
            return (at + rest.trailing_zeros()).min(end);
        }
        at = (at / 64 + 1) * 64;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn ranges_behave_like_single_bits() {
        let mut rng = StdRng::seed_from_u64(7);
        let bits = 320;
        let mut map = Bitmap::zeros(bits);
        let mut model = vec![false; bits as usize];
        for _ in 0..2000 {
            let start = rng.random_range(0..bits);
            let len = rng.random_range(1..=bits - start);
            let on = rng.random_bool(0.5);
            let range = start as usize..(start + len) as usize;
            let ones = model[range.clone()].iter().filter(|bit| **bit).count() as u32;
            assert_eq!(map.count(start, len), ones);
            if on {
                map.set(start, len)
            } else {
                map.clear(start, len)
            }
            model[range].fill(on);
            let zero = model[start as usize..].iter().position(|bit| !bit).map(|at| at as u32 + start);
            assert_eq!(map.next_zero(start, bits), zero);
            let same = model[start as usize..].iter().take_while(|bit| **bit == on).count() as u32;
            assert_eq!(map.run(start, bits), same);
        }
        assert_eq!(Bitmap::from_bytes(&map.to_bytes()).words(), map.words());
    }
}
