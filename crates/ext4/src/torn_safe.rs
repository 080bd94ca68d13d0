//! A superblock that can be torn without harm.
//!
//! **Problem.** The superblock has 1024 bytes and one checksum at its end. A disk with sectors of 512 bytes
//! may write one half and lose the other at a power cut. Then the checksum is wrong, and Linux refuses to
//! mount before it has so much as looked at the journal that would heal it. (A group descriptor, an inode
//! and the journal's own superblock lie within one sector each.)
//!
//! **Answer.** CRC-32C is linear: four free bytes in a message can bring its checksum to any value. Each
//! half has four bytes that nobody reads (`s_snapshot_id`, of a feature that no kernel has, and the
//! reserved bytes before the caller's area). They are chosen such that each half's part in the checksum
//! stays what it was when the file system was opened. So the stored checksum never changes, and every
//! mixture of halves of two images is valid.
//!
//! Cost: two checksums of half a sector each and 64 XORs an image; 64 checksums at open.

use super::le::put32;
use bimetal_base::checksum::crc32c_raw;

/// Bytes of the checksum's field and of what it covers.
const COVERED: usize = 0x3FC;
const SECTOR: usize = 512;
const PAD_FIRST: usize = 0x184;
const PAD_SECOND: usize = 0x3C0;

/// A stretch of the superblock whose part in the checksum stays the same.
#[derive(Clone)]
struct Half {
    range: std::ops::Range<usize>,
    pad: usize,
    /// The part it had at the beginning.
    want: u32,
    /// For each bit of a part, the pad that makes just this bit.
    makes: [u32; 32],
}

impl Half {
    fn new(raw: &[u8], range: std::ops::Range<usize>, pad: usize) -> Half {
        let mut message = vec![0; range.end - pad];
        let part_of = |bit: u32| {
            put32(&mut message, 0, 1 << bit);
            crc32c_raw(0, &message)
        };
        let makes = invert((0..32).map(part_of));
        Half { want: crc32c_raw(0, &raw[range.clone()]), range, pad, makes }
    }

    fn settle(&self, raw: &mut [u8]) {
        put32(raw, self.pad, 0);
        let missing = crc32c_raw(0, &raw[self.range.clone()]) ^ self.want;
        let bits = (0..32).filter(|bit| missing >> bit & 1 != 0);
        let pad = bits.fold(0, |pad, bit| pad ^ self.makes[bit]);
        put32(raw, self.pad, pad);
    }
}

/// Inverts the linear map whose value for bit `i` is the `i`-th of `values`.
fn invert(values: impl Iterator<Item = u32>) -> [u32; 32] {
    let mut rows: Vec<(u32, u32)> = values.zip(0..).map(|(value, bit)| (value, 1 << bit)).collect();
    for bit in 0..32 {
        let pivot = (bit..32).find(|row| rows[*row].0 >> bit & 1 != 0).expect("a checksum loses no bit");
        rows.swap(bit, pivot);
        let (value, made_of) = rows[bit];
        for (other, row) in rows.iter_mut().enumerate() {
            if other != bit && row.0 >> bit & 1 != 0 {
                *row = (row.0 ^ value, row.1 ^ made_of);
            }
        }
    }
    std::array::from_fn(|bit| rows[bit].1)
}

/// Keeps the checksum of a superblock what it was.
#[derive(Clone)]
pub(super) struct TornSafeChecksum {
    halves: [Half; 2],
}

impl TornSafeChecksum {
    /// For a superblock as it was read.
    pub fn new(raw: &[u8]) -> TornSafeChecksum {
        TornSafeChecksum {
            halves: [Half::new(raw, 0..SECTOR, PAD_FIRST), Half::new(raw, SECTOR..COVERED, PAD_SECOND)],
        }
    }

    /// Sets the free bytes so that both halves fit to those of all other images.
    pub fn settle(&self, raw: &mut [u8]) {
        self.halves.iter().for_each(|half| half.settle(raw));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn halves_of_any_two_images_fit_together() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut raw: Vec<u8> = (0..1024).map(|_| rng.random()).collect();
        let steady = TornSafeChecksum::new(&raw);
        let sum = |raw: &[u8]| crc32c_raw(!0, &raw[..COVERED]);
        let first = raw.clone();
        let mut images = vec![first.clone()];
        for _ in 0..20 {
            let at = rng.random_range(0..COVERED);
            raw[at] = rng.random();
            steady.settle(&mut raw);
            images.push(raw.clone());
        }
        for a in &images {
            for b in &images {
                let mixed = [&a[..SECTOR], &b[SECTOR..]].concat();
                assert_eq!(sum(&mixed), sum(&first));
            }
        }
    }
}
