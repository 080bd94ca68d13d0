//! From a page (or erase block) number to the node that stands for it.
//!
//! Two kinds, chosen once a run so that the hot path is compiled for each:
//!
//! - [`Dense`]: a table with one `u32` a number, for address spaces up to 2²⁸ pages (1 TiB of 4 KiB
//!   pages). One load a look-up.
//! - [`Sparse`]: open addressing with linear probing for any numbers, at most a quarter full. An entry is four bytes:
//!   the node, and in the bits that the nodes leave over a part of the hash, which spares nearly all looks at wrong
//!   nodes. Deletion closes the gap (backward shift), so there are no tombstones.
//!
//! Node 0 is never used: zero means "nothing" in both, so that tables start as untouched zero pages.
//! Each kind also says how to keep a sorted set of numbers ([`Ordered`]): a tree of bit maps when dense,
//! a B-tree when sparse.

use super::ordered::{BitTree, Ordered};
use std::collections::BTreeSet;

/// "No node": index 0 of every slab is reserved for it.
pub const NIL: u32 = 0;

/// The largest address space, in pages, that is indexed by a table.
pub const DENSE_PAGES_MAX: u64 = 1 << 28;

/// A map from numbers to nodes. Numbers are below 2⁶³; a number has at most one node.
pub trait Index: Send + 'static {
    /// The sorted set that suits the same kind of numbers.
    type Ordered: Ordered;

    /// A map for at most `keys` numbers at a time, all below `space` if that is known. Nodes are 1 to `keys`.
    fn new(keys: usize, space: Option<u64>) -> Self;

    /// A node that may be the one of `key`, found with as few loads as possible and without asking the
    /// nodes; the caller compares. A wrong guess is harmless.
    fn guess(&self, key: u64) -> u32;

    /// The node of `key`, or [`NIL`]. `is` tells whether a node is the one of `key`.
    fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> u32;

    /// Enters `key`, which must not be in the map.
    fn insert(&mut self, key: u64, node: u32);

    /// Takes out `key`, which must be in the map with `node`. `key_of` tells the number of a node in the map.
    fn remove(&mut self, key: u64, node: u32, key_of: impl Fn(u32) -> u64);

    /// Bytes of memory it takes when every entry is used.
    fn bytes(&self) -> usize;
}

/// One `u32` a number.
pub struct Dense {
    nodes: Vec<u32>,
}

impl Index for Dense {
    type Ordered = BitTree;

    fn new(_: usize, space: Option<u64>) -> Dense {
        Dense { nodes: vec![NIL; space.unwrap_or(0).min(DENSE_PAGES_MAX) as usize] }
    }

    #[inline]
    fn guess(&self, key: u64) -> u32 {
        self.nodes.get(key as usize).copied().unwrap_or(NIL)
    }

    #[inline]
    fn find(&self, key: u64, _: impl Fn(u32) -> bool) -> u32 {
        self.guess(key)
    }

    #[inline]
    fn insert(&mut self, key: u64, node: u32) {
        let at = key as usize;
        if at >= self.nodes.len() {
            self.nodes.resize((at + 1).next_power_of_two(), NIL);
        }
        debug_assert_eq!(self.nodes[at], NIL);
        self.nodes[at] = node;
    }

    #[inline]
    fn remove(&mut self, key: u64, node: u32, _: impl Fn(u32) -> u64) {
        debug_assert_eq!(self.nodes[key as usize], node);
        self.nodes[key as usize] = NIL;
    }

    fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<u32>()
    }
}

/// Open addressing; an entry is a part of the hash above `node_bits` and the node below.
pub struct Sparse {
    entries: Vec<u32>,
    /// A 64-bit hash shifted right by this is its home.
    shift: u32,
    node_mask: u32,
}

/// 64 well-mixed bits: the two halves of a 128-bit product folded together.
#[inline]
fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

impl Sparse {
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// The part of a hash that is kept with an entry: its low bits, which the home does not use.
    #[inline]
    fn part(&self, hash: u64) -> u32 {
        hash as u32 & !self.node_mask
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    /// Whether an entry at home `home` may stand at `hole` instead of at `at`: `hole` is on its way.
    fn may_move(&self, home: usize, hole: usize, at: usize) -> bool {
        let mask = self.entries.len() - 1;
        (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask)
    }
}

impl Index for Sparse {
    type Ordered = BTreeSet<u64>;

    fn new(keys: usize, _: Option<u64>) -> Sparse {
        let size = (keys.max(4) * 4).next_power_of_two();
        let node_mask = (keys.max(1) + 1).next_power_of_two() as u32 - 1;
        Sparse { entries: vec![0; size], shift: 64 - size.trailing_zeros(), node_mask }
    }

    #[inline]
    fn guess(&self, key: u64) -> u32 {
        self.entries[self.home(hash(key))] & self.node_mask
    }

    #[inline]
    fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> u32 {
        let hash = hash(key);
        let part = self.part(hash);
        let mut at = self.home(hash);
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return NIL;
            }
            let node = entry & self.node_mask;
            if entry & !self.node_mask == part && is(node) {
                return node;
            }
            at = self.next(at);
        }
    }

    #[inline]
    fn insert(&mut self, key: u64, node: u32) {
        debug_assert!(node != NIL && node <= self.node_mask);
        let hash = hash(key);
        let mut at = self.home(hash);
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = self.part(hash) | node;
    }

    fn remove(&mut self, key: u64, node: u32, key_of: impl Fn(u32) -> u64) {
        let hash_of_key = hash(key);
        let sought = self.part(hash_of_key) | node;
        let mut hole = self.home(hash_of_key);
        while self.entries[hole] != sought {
            assert!(self.entries[hole] != 0, "key {key} is not in the index");
            hole = self.next(hole);
        }
        let mut at = self.next(hole);
        while self.entries[at] != 0 {
            let home = self.home(hash(key_of(self.entries[at] & self.node_mask)));
            if self.may_move(home, hole, at) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.entries[hole] = 0;
    }

    fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Random inserts, removals and look-ups against a hash map; keys are kept in a side table by node.
    fn agrees_with_a_hash_map<X: Index>(space: u64) {
        let mut index = X::new(100, Some(space));
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut keys = vec![u64::MAX; 101];
        let mut free: Vec<u32> = (1..=100).collect();
        let (mut right, mut inserted) = (0, 0);
        let mut x = 7u64;
        for _ in 0..50_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (x >> 33) % space;
            let found = index.find(key, |node| keys[node as usize] == key);
            assert_eq!(found, model.get(&key).copied().unwrap_or(NIL));
            if found == NIL && !free.is_empty() && x & 1 == 0 {
                let node = free.pop().unwrap();
                keys[node as usize] = key;
                index.insert(key, node);
                model.insert(key, node);
                right += u32::from(keys[index.guess(key) as usize] == key);
                inserted += 1;
            } else if found != NIL && x & 2 == 0 {
                index.remove(key, found, |node| keys[node as usize]);
                keys[found as usize] = u64::MAX;
                model.remove(&key);
                free.push(found);
            }
        }
        assert!(right * 10 > inserted * 6, "{right} of {inserted} guesses were right");
    }

    #[test]
    fn a_dense_index_agrees_with_a_hash_map() {
        agrees_with_a_hash_map::<Dense>(300);
    }

    #[test]
    fn a_sparse_index_agrees_with_a_hash_map() {
        agrees_with_a_hash_map::<Sparse>(300);
        agrees_with_a_hash_map::<Sparse>(1 << 30);
    }

    #[test]
    fn a_dense_index_grows_past_the_space_it_was_told() {
        let mut index = Dense::new(4, Some(8));
        index.insert(1000, 3);
        assert_eq!(index.find(1000, |_| true), 3);
        assert_eq!(index.find(1_000_000, |_| true), NIL);
    }
}
