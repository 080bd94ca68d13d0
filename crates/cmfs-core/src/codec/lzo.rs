//! LZO1X, which the paper codes its device record with, by the `lzokay` library.

use alloc::vec::Vec;

/// Bytes to fewer.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    // It fails only when an output it was given is too small, and it was given none.
    lzokay::compress::compress(bytes).unwrap_or_default()
}

/// `count` bytes.
pub fn decode(bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let mut out = alloc::vec![0; count];
    let len = lzokay::decompress::decompress(bytes, &mut out).ok()?;
    (len == count).then_some(out)
}

/// As [`decode`], of bytes that were filled up with zeros to whole words.
pub(crate) fn decode_padded(bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    let least = bytes.len().saturating_sub(8);
    (least..=bytes.len()).rev().find_map(|len| decode(bytes.get(..len)?, count))
}
