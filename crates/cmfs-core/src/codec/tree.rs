//! Prefix codes as trees: made by Huffman's rule or by Shannon's and Fano's, written in front of what they code.

use crate::bits::{BitReader, BitWriter};
use crate::sorted::{self, Map};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// No tree made from fewer than 2^32 symbols by these rules is deeper.
const DEPTH_MAX: u32 = 64;

#[derive(Clone, Debug)]
pub(super) enum Tree {
    Leaf(u32),
    Node(Box<Tree>, Box<Tree>),
}

/// How often each symbol occurs.
pub(super) fn counts(symbols: impl Iterator<Item = u32>) -> Map<u32, u64> {
    let mut counts = Map::new();
    for symbol in symbols {
        *counts.or_default(symbol) += 1;
    }
    counts
}

impl Tree {
    /// Huffman's: the two rarest are joined, again and again. `None` for no symbols.
    pub fn huffman(counts: &Map<u32, u64>) -> Option<Tree> {
        let mut queue: Map<(u64, u32), Tree> = Map::new();
        for (number, (symbol, count)) in (0u32..).zip(counts.iter()) {
            queue.insert((*count, number), Tree::Leaf(*symbol));
        }
        let mut number = counts.len() as u32;
        while queue.len() > 1 {
            let ((first_count, _), first) = queue.pop_first()?;
            let ((second_count, _), second) = queue.pop_first()?;
            queue.insert((first_count + second_count, number), Tree::Node(first.into(), second.into()));
            number += 1;
        }
        queue.pop_first().map(|(_, tree)| tree)
    }

    /// Shannon's and Fano's: the symbols by frequency are split where the halves are most even, again and again.
    pub fn shannon_fano(counts: &Map<u32, u64>) -> Option<Tree> {
        let mut sorted: Vec<(u64, u32)> = counts.iter().map(|(symbol, count)| (*count, *symbol)).collect();
        sorted::sort(&mut sorted);
        sorted.reverse();
        Tree::split(&sorted)
    }

    fn split(sorted: &[(u64, u32)]) -> Option<Tree> {
        match sorted {
            [] => None,
            [(_, symbol)] => Some(Tree::Leaf(*symbol)),
            _ => {
                let total: u64 = sorted.iter().map(|(count, _)| count).sum();
                let mut before = 0;
                let uneven = |at: usize| {
                    before += sorted[at - 1].0;
                    (before.abs_diff(total - before), at)
                };
                let (_, at) = (1..sorted.len()).map(uneven).min()?;
                let (left, right) = sorted.split_at(at);
                Some(Tree::Node(Tree::split(left)?.into(), Tree::split(right)?.into()))
            }
        }
    }

    /// A one and the symbol for a leaf, a zero and both sides for a node.
    pub fn write(&self, to: &mut BitWriter, width: u32) {
        match self {
            Tree::Leaf(symbol) => {
                to.bit(true);
                to.bits(u64::from(*symbol), width);
            }
            Tree::Node(left, right) => {
                to.bit(false);
                left.write(to, width);
                right.write(to, width);
            }
        }
    }

    /// What [`write`](Tree::write) wrote.
    pub fn read(from: &mut BitReader, width: u32) -> Option<Tree> {
        Tree::read_below(from, width, 0)
    }

    fn read_below(from: &mut BitReader, width: u32, depth: u32) -> Option<Tree> {
        if depth > DEPTH_MAX {
            return None;
        }
        if from.bit()? {
            return Some(Tree::Leaf(from.bits(width)? as u32));
        }
        let left = Tree::read_below(from, width, depth + 1)?;
        let right = Tree::read_below(from, width, depth + 1)?;
        Some(Tree::Node(left.into(), right.into()))
    }

    /// The code of each symbol: bits, and how many.
    pub fn codes(&self) -> Map<u32, (u64, u32)> {
        let mut codes = Map::new();
        self.collect(0, 0, &mut codes);
        codes
    }

    fn collect(&self, code: u64, len: u32, codes: &mut Map<u32, (u64, u32)>) {
        match self {
            Tree::Leaf(symbol) => drop(codes.insert(*symbol, (code, len))),
            Tree::Node(left, right) => {
                left.collect(code << 1, len + 1, codes);
                right.collect(code << 1 | 1, len + 1, codes);
            }
        }
    }

    /// The symbol whose code comes next.
    pub fn decode(&self, from: &mut BitReader) -> Option<u32> {
        let mut at = self;
        loop {
            match at {
                Tree::Leaf(symbol) => return Some(*symbol),
                Tree::Node(left, right) => at = if from.bit()? { right } else { left },
            }
        }
    }
}
