//! Huffman's code of bytes, and Shannon's and Fano's, each with its tree in front.

use super::tree::{Tree, counts};
use crate::bits::{BitReader, BitWriter};
use alloc::vec::Vec;

/// Huffman's.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    write(bytes, Tree::huffman(&counts(bytes.iter().map(|byte| u32::from(*byte)))))
}

/// Shannon's and Fano's.
pub fn encode_shannon_fano(bytes: &[u8]) -> Vec<u8> {
    write(bytes, Tree::shannon_fano(&counts(bytes.iter().map(|byte| u32::from(*byte)))))
}

fn write(bytes: &[u8], tree: Option<Tree>) -> Vec<u8> {
    let mut to = BitWriter::default();
    if let Some(tree) = tree {
        tree.write(&mut to, 8);
        let codes = tree.codes();
        for byte in bytes {
            let (code, len) = codes.get(&u32::from(*byte)).copied().unwrap_or((0, 0));
            to.bits(code, len);
        }
    }
    to.into_bytes()
}

/// `count` bytes of either.
pub fn decode(bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let mut from = BitReader::new(bytes);
    let tree = Tree::read(&mut from, 8)?;
    (0..count).map(|_| Some(tree.decode(&mut from)? as u8)).collect()
}
