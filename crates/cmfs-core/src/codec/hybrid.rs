//! The paper's hybrid coding: Huffman's code for the upper bits of each page number, the lower eight as they are.
//!
//! Pages of one block share their upper bits, so these shrink to almost nothing; the lower ones are all different,
//! and cannot shrink. Parts of more than 65 536 pages have upper parts of 24 bits instead of 8.

use super::tree::{Tree, counts};
use crate::bits::{BitReader, BitWriter};
use alloc::vec::Vec;

fn width(is_narrow: bool) -> u32 {
    if is_narrow { 8 } else { 24 }
}

/// Page numbers to bytes.
pub fn encode(pages: &[u32], is_narrow: bool) -> Vec<u8> {
    let mut to = BitWriter::default();
    write(pages, is_narrow, &mut to);
    to.into_bytes()
}

pub(crate) fn write(pages: &[u32], is_narrow: bool, to: &mut BitWriter) {
    let Some(tree) = Tree::huffman(&counts(pages.iter().map(|page| page >> 8))) else { return };
    tree.write(to, width(is_narrow));
    let codes = tree.codes();
    for page in pages {
        let (code, len) = codes.get(&(page >> 8)).copied().unwrap_or((0, 0));
        to.bits(code, len);
        to.bits(u64::from(page & 0xff), 8);
    }
}

/// Bytes to so many page numbers.
pub fn decode(bytes: &[u8], count: usize, is_narrow: bool) -> Option<Vec<u32>> {
    read(&mut BitReader::new(bytes), count, is_narrow)
}

pub(crate) fn read(from: &mut BitReader, count: usize, is_narrow: bool) -> Option<Vec<u32>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let tree = Tree::read(from, width(is_narrow))?;
    (0..count).map(|_| Some(tree.decode(from)? << 8 | from.bits(8)? as u32)).collect()
}
