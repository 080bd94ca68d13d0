//! Pages grouped by erase block: for each block that has members, how many and which, as a bit map.
//!
//! What membership means (resident, dirty) is the policy's choice. Blocks are nodes of a slab, found through
//! an index of the same kind as the pages', and policies string them on lists. A block without members is
//! given back by [`Blocks::free`] after the policy has taken it off its lists.
//!
//! Cost: O(1) an entry or exit; the slab grows to the most blocks ever in use at once.

use super::Config;
use super::index::{Index, NIL};
use super::links::{Link, List, Slab};

/// No block has this number.
const NO_BLOCK: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Block {
    number: u64,
    link: Link,
    members: u32,
    tag: u32,
}

/// How pages fall into erase blocks.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pages: u32,
    /// For a power of two, its exponent: a shift is ten times faster than a division.
    shift: Option<u32>,
}

impl Geometry {
    /// Blocks of `block_pages` pages, at least one.
    pub fn new(block_pages: u32) -> Geometry {
        let pages = block_pages.max(1);
        Geometry { pages, shift: pages.is_power_of_two().then(|| pages.trailing_zeros()) }
    }

    /// Pages of a block.
    #[inline]
    pub fn pages(self) -> u32 {
        self.pages
    }

    /// The block of `page`.
    #[inline]
    pub fn block(self, page: u64) -> u64 {
        match self.shift {
            Some(shift) => page >> shift,
            None => page / u64::from(self.pages),
        }
    }

    /// The place of `page` in its block.
    #[inline]
    pub fn offset(self, page: u64) -> u32 {
        (page - self.first(self.block(page))) as u32
    }

    /// The first page of `block`.
    #[inline]
    pub fn first(self, block: u64) -> u64 {
        block * u64::from(self.pages)
    }
}

/// The blocks that have members.
pub struct Blocks<X> {
    geometry: Geometry,
    index: X,
    blocks: Vec<Block>,
    bits: Vec<u64>,
    words: usize,
    free: u32,
}

impl<X> Slab for Blocks<X> {
    #[inline]
    fn link(&self, node: u32) -> Link {
        self.blocks[node as usize].link
    }

    #[inline]
    fn link_mut(&mut self, node: u32) -> &mut Link {
        &mut self.blocks[node as usize].link
    }
}

impl<X: Index> Blocks<X> {
    /// No blocks, with room for `lists` lists.
    pub fn new(config: &Config, lists: u32) -> Blocks<X> {
        let geometry = Geometry::new(config.block_pages);
        let space = config.space.map(|pages| geometry.block(pages) + 1);
        let words = geometry.pages.div_ceil(64) as usize;
        let mut blocks = Blocks {
            geometry,
            index: X::new(config.capacity as usize + lists as usize, space),
            blocks: Vec::new(),
            bits: Vec::new(),
            words,
            free: NIL,
        };
        for _ in 0..=lists {
            blocks.push();
        }
        blocks
    }

    fn push(&mut self) -> u32 {
        self.blocks.push(Block { number: NO_BLOCK, link: Link::default(), members: 0, tag: 0 });
        self.bits.resize(self.bits.len() + self.words, 0);
        (self.blocks.len() - 1) as u32
    }

    /// A list through the blocks: number `which` of those that [`new`](Blocks::new) was told of.
    pub fn list(&mut self, which: u32) -> List {
        List::new(self, 1 + which)
    }

    /// How pages fall into blocks.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The node of block `number`, or [`NIL`].
    #[inline]
    pub fn find(&self, number: u64) -> u32 {
        self.index.find(number, |node| self.blocks[node as usize].number == number)
    }

    /// The node of the block of `page`, or [`NIL`].
    #[inline]
    pub fn find_page(&self, page: u64) -> u32 {
        self.find(self.geometry.block(page))
    }

    /// The number of a block.
    #[inline]
    pub fn number(&self, node: u32) -> u64 {
        self.blocks[node as usize].number
    }

    /// How many members a block has.
    #[inline]
    pub fn members(&self, node: u32) -> u32 {
        self.blocks[node as usize].members
    }

    /// The policy's own word at a block; zero when it gets its first member.
    #[inline]
    pub fn tag(&self, node: u32) -> u32 {
        self.blocks[node as usize].tag
    }

    /// Changes the policy's own word.
    #[inline]
    pub fn set_tag(&mut self, node: u32, tag: u32) {
        self.blocks[node as usize].tag = tag;
    }

    /// How many nodes there are: the size of an array beside them.
    pub fn node_count(&self) -> usize {
        self.blocks.len()
    }

    fn bit(&self, node: u32, page: u64) -> (usize, u64) {
        let offset = self.geometry.offset(page);
        (node as usize * self.words + offset as usize / 64, 1 << (offset % 64))
    }

    /// Makes `page` a member of its block. The block's node, and whether it had no members before.
    pub fn enter(&mut self, page: u64) -> (u32, bool) {
        let number = self.geometry.block(page);
        let found = self.find(number);
        let node = if found == NIL { self.take(number) } else { found };
        let (word, bit) = self.bit(node, page);
        debug_assert!(self.bits[word] & bit == 0, "page {page} is a member already");
        self.bits[word] |= bit;
        self.blocks[node as usize].members += 1;
        (node, found == NIL)
    }

    fn take(&mut self, number: u64) -> u32 {
        let node = if self.free == NIL { self.push() } else { self.free };
        if node == self.free {
            self.free = self.blocks[node as usize].link.next;
        }
        self.blocks[node as usize] = Block { number, link: Link::default(), members: 0, tag: 0 };
        self.index.insert(number, node);
        node
    }

    /// Ends the membership of `page`, which is a member. The block's node and how many members are left; at
    /// none, the caller takes it off its lists and calls [`free`](Blocks::free).
    pub fn exit(&mut self, page: u64) -> (u32, u32) {
        let node = self.find_page(page);
        let (word, bit) = self.bit(node, page);
        debug_assert!(self.bits[word] & bit != 0, "page {page} is not a member");
        self.bits[word] &= !bit;
        self.blocks[node as usize].members -= 1;
        (node, self.blocks[node as usize].members)
    }

    /// Gives back a block without members.
    pub fn free(&mut self, node: u32) {
        debug_assert_eq!(self.blocks[node as usize].members, 0);
        let Blocks { index, blocks, .. } = self;
        index.remove(blocks[node as usize].number, node, |other| blocks[other as usize].number);
        self.blocks[node as usize].number = NO_BLOCK;
        self.blocks[node as usize].link.next = self.free;
        self.free = node;
    }

    /// Whether `page` is a member of its block.
    pub fn has(&self, page: u64) -> bool {
        let node = self.find_page(page);
        let (word, bit) = self.bit(node, page);
        node != NIL && self.bits[word] & bit != 0
    }

    /// Whether any page from `first` to `last` of the block `node` is a member; both lie in it.
    fn any_in_block(&self, node: u32, first: u64, last: u64) -> bool {
        let (low, high) = (self.geometry.offset(first), self.geometry.offset(last));
        let words = &self.bits[node as usize * self.words..][..self.words];
        let (low_word, high_word) = (low as usize / 64, high as usize / 64);
        (low_word..=high_word).any(|at| {
            let from = if at == low_word { u64::MAX << (low % 64) } else { u64::MAX };
            let to = if at == high_word { u64::MAX >> (63 - high % 64) } else { u64::MAX };
            words[at] & from & to != 0
        })
    }

    /// Whether any page from `first` to `last` is a member.
    pub fn any_within(&self, first: u64, last: u64) -> bool {
        (self.geometry.block(first)..=self.geometry.block(last)).any(|number| {
            let node = self.find(number);
            let start = self.geometry.first(number);
            let end = start + u64::from(self.geometry.pages) - 1;
            node != NIL && self.any_in_block(node, first.max(start), last.min(end))
        })
    }

    /// The members of a block, ascending.
    pub fn pages(&self, node: u32) -> impl Iterator<Item = u64> + '_ {
        let first = self.geometry.first(self.number(node));
        let words = &self.bits[node as usize * self.words..][..self.words];
        words.iter().enumerate().flat_map(move |(at, &word)| {
            std::iter::successors((word != 0).then_some(word), |&rest| {
                let rest = rest & (rest - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |rest| first + at as u64 * 64 + u64::from(rest.trailing_zeros()))
        })
    }

    /// The members from `first` to `last`, ascending.
    pub fn pages_within(&self, first: u64, last: u64) -> impl Iterator<Item = u64> + '_ {
        (self.geometry.block(first)..=self.geometry.block(last))
            .map(|number| self.find(number))
            .filter(|&node| node != NIL)
            .flat_map(|node| self.pages(node))
            .filter(move |page| (first..=last).contains(page))
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>() + self.bits.len() * 8 + self.index.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{Dense, Sparse};
    use super::*;
    use std::collections::BTreeSet;

    fn agrees_with_a_set<X: Index>(block_pages: u32) {
        let config = Config::new(200).block_pages(block_pages);
        let mut blocks = Blocks::<X>::new(&config, 0);
        let mut model = BTreeSet::new();
        let mut x = u64::from(block_pages);
        for _ in 0..5_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = (x >> 33) % 600;
            if model.remove(&page) {
                let (node, left) = blocks.exit(page);
                if left == 0 {
                    blocks.free(node);
                }
            } else if model.len() < 200 {
                blocks.enter(page);
                model.insert(page);
            }
            let probe = (x >> 20) % 600;
            let last = probe + (x >> 10) % 300;
            assert_eq!(blocks.has(probe), model.contains(&probe));
            assert_eq!(blocks.any_within(probe, last), model.range(probe..=last).next().is_some());
            let node = blocks.find_page(probe);
            if node != NIL {
                let number = probe / u64::from(block_pages);
                let range = number * u64::from(block_pages)..(number + 1) * u64::from(block_pages);
                let members: Vec<u64> = model.range(range).copied().collect();
                assert_eq!(blocks.pages(node).collect::<Vec<_>>(), members);
                assert_eq!(blocks.members(node) as usize, members.len());
            }
        }
    }

    #[test]
    fn membership_agrees_with_a_set_for_any_block_size() {
        for block_pages in [1, 10, 16, 64, 100, 128, 256] {
            agrees_with_a_set::<Dense>(block_pages);
            agrees_with_a_set::<Sparse>(block_pages);
        }
    }
}
