//! Objects of a cache as pages of a device: what stands for an object, by number or by key.
//!
//! An object is taken for one page of [`PAGE_BYTES`], read or written whole, so that object n is page n. Numbers of 2⁵⁰ and
//! more (hashes of names, mostly) are no pages of anything: their upper bits are laid over the lower ones, which takes two of
//! a million hashes for one once in two thousand traces. A key that is a text stands for its hash.

use super::super::{Flags, Op, Record};
use bimetal_base::time::Time;

/// Bytes of an object.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Bits of a page's number.
const PAGE_BITS: u32 = 50;

/// The page that an object is.
fn page_of(object: u64) -> u64 {
    (object ^ object >> PAGE_BITS) & ((1 << PAGE_BITS) - 1)
}

/// What is done to an object.
pub(super) fn of_object(at: (Time, Flags), op: Op, object: u64) -> Record {
    Record { flags: at.1, ..Record::new(at.0, op, page_of(object) * PAGE_BYTES, PAGE_BYTES) }
}

/// The object that a key stands for: itself if it is a number, else its hash (FNV-1a, mixed).
pub(super) fn object_of(key: &[u8]) -> u64 {
    let number = std::str::from_utf8(key).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
