//! Rice's code of 16-bit numbers: so many lower bits as they are, the rest as ones; the best number of bits is
//! looked for and stands in front.

use crate::bits::{BitReader, BitWriter};
use alloc::vec::Vec;

/// Page numbers to bytes.
pub fn encode(pages: &[u32]) -> Vec<u8> {
    let cost =
        |k: &u32| pages.iter().map(|page| u64::from((page & 0xffff) >> k) + u64::from(*k) + 1).sum::<u64>();
    let k = (0..16).min_by_key(cost).unwrap_or(0);
    let mut to = BitWriter::default();
    to.bits(u64::from(k), 4);
    for page in pages {
        let value = page & 0xffff;
        to.unary(value >> k);
        to.bits(u64::from(value), k);
    }
    to.into_bytes()
}

/// Bytes to so many page numbers.
pub fn decode(bytes: &[u8], count: usize) -> Option<Vec<u32>> {
    let mut from = BitReader::new(bytes);
    let k = from.bits(4)? as u32;
    (0..count).map(|_| Some(from.unary(0xffff >> k)? << k | from.bits(k)? as u32)).collect()
}
