//! The paper's PAT, "physical address translation": which page of the part holds which page of a file, as a tree.
//!
//! Section 3.2 and figure 2: a leaf has 16 page numbers of 16 bits, every other node eight pointers in 32 bytes. The
//! lowest four bits of a file's page number are the place in the leaf, each three bits above them the place in a node,
//! the highest in the root: page 2762 is place 10 of the leaf that is 4 in the node that is 5 in the node that is 2 in
//! the root. How many levels there are depends on the file, and tells which node is a leaf. The NVRAM has the leaves
//! alone, each with its position; a mount makes the tree of them.
//!
//! 1. *Look*: from the root down, three bits a level.
//! 2. *Put*: levels are added above the root until the number fits; nodes are made on the way.
//! 3. *Cut*: leaves behind the cut are emptied, and a node with nothing in it is free for the next one that is made.
//!
//! Nodes are in two tables and pointers are places in these, so that a node takes what it does in the paper on
//! any machine. Numbers beyond 16 bits, which the paper's parts have not, have their upper halves in a third table.
//!
//! Always: a node that is in the tree leads to a page. Cost: a step for each level, 32 bytes a leaf and a node.

use crate::object::NONE;
use alloc::vec::Vec;

/// Page numbers of a leaf, and bits of a place in it.
pub(crate) const LEAF: u32 = 16;
const LEAF_BITS: u32 = 4;
/// Pointers of a node, and bits of a place in it.
const FAN: u32 = 8;
const FAN_BITS: u32 = 3;
/// No page: all ones in both halves.
const NO_HALF: u16 = u16::MAX;
/// No node.
const NO_NODE: u32 = u32::MAX;
/// More levels than any file has: 28 bits of a page number.
const LEVELS_MAX: u32 = 8;

/// The tree of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    nodes: Vec<[u32; FAN as usize]>,
    leaves: Vec<[u16; LEAF as usize]>,
    /// Upper halves of the leaves' numbers; none while all fit 16 bits.
    upper: Vec<[u16; LEAF as usize]>,
    /// The first node and leaf that are free; each says in its front which is next.
    free_node: u32,
    free_leaf: u32,
    root: u32,
    /// Levels of nodes above the leaves.
    levels: u32,
    count: u32,
}

/// Which pointer of a node at a level (1: right above leaves) leads to a page.
fn place(index: u32, level: u32) -> usize {
    (index >> (LEAF_BITS + (level - 1) * FAN_BITS) & (FAN - 1)) as usize
}

/// Pages below a node of a level; 0: a leaf.
fn span(level: u32) -> u64 {
    u64::from(LEAF) << (level * FAN_BITS)
}

/// Most files are small: a table has room for one more, or for half as many.
fn push<T>(table: &mut Vec<T>, entry: T) {
    if table.len() == table.capacity() {
        table.reserve_exact((table.len() / 2).max(1));
    }
    table.push(entry);
}

impl Tree {
    /// A tree of no pages.
    pub fn new() -> Tree {
        Tree {
            nodes: Vec::new(),
            leaves: Vec::new(),
            upper: Vec::new(),
            free_node: NO_NODE,
            free_leaf: NO_NODE,
            root: NO_NODE,
            levels: 0,
            count: 0,
        }
    }

    /// How many pages there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the tables.
    pub fn heap_bytes(&self) -> usize {
        let leaf = size_of::<[u16; LEAF as usize]>();
        self.nodes.capacity() * size_of::<[u32; FAN as usize]>()
            + (self.leaves.capacity() + self.upper.capacity()) * leaf
    }

    /// The leaf that has a page, if it is there.
    fn leaf_of(&self, index: u32) -> Option<usize> {
        if self.root == NO_NODE || u64::from(index) >= span(self.levels) {
            return None;
        }
        let mut at = self.root;
        for level in (1..=self.levels).rev() {
            at = self.nodes[at as usize][place(index, level)];
            if at == NO_NODE {
                return None;
            }
        }
        Some(at as usize)
    }

    fn number(&self, leaf: usize, at: usize) -> Option<u32> {
        let low = self.leaves[leaf][at];
        let high = self.upper.get(leaf).map_or(if low == NO_HALF { NO_HALF } else { 0 }, |upper| upper[at]);
        Some(u32::from(high) << 16 | u32::from(low)).filter(|page| *page != NONE)
    }

    pub fn get(&self, index: u32) -> Option<u32> {
        self.number(self.leaf_of(index)?, (index % LEAF) as usize)
    }

    fn write(&mut self, leaf: usize, at: usize, page: u32) {
        let (high, low) = ((page >> 16) as u16, page as u16);
        // All ones of 16 bits are no page where there are no upper halves.
        if self.upper.is_empty() && page != NONE && (high != 0 || low == NO_HALF) {
            let half = |low: &u16| if *low == NO_HALF { NO_HALF } else { 0 };
            self.upper = self.leaves.iter().map(|leaf| core::array::from_fn(|at| half(&leaf[at]))).collect();
        }
        self.leaves[leaf][at] = low;
        if let Some(upper) = self.upper.get_mut(leaf) {
            upper[at] = high;
        }
    }

    fn new_leaf(&mut self) -> u32 {
        if let Some(leaf) = self.leaves.get_mut(self.free_leaf as usize) {
            let next = u32::from(leaf[1]) << 16 | u32::from(leaf[0]);
            let free = core::mem::replace(&mut self.free_leaf, next);
            self.empty_leaf(free);
            return free;
        }
        push(&mut self.leaves, [NO_HALF; LEAF as usize]);
        if !self.upper.is_empty() {
            push(&mut self.upper, [NO_HALF; LEAF as usize]);
        }
        self.leaves.len() as u32 - 1
    }

    fn empty_leaf(&mut self, leaf: u32) {
        self.leaves[leaf as usize] = [NO_HALF; LEAF as usize];
        self.upper.get_mut(leaf as usize).into_iter().for_each(|upper| *upper = [NO_HALF; LEAF as usize]);
    }

    fn free_leaf(&mut self, leaf: u32) {
        let next = core::mem::replace(&mut self.free_leaf, leaf);
        (self.leaves[leaf as usize][0], self.leaves[leaf as usize][1]) = (next as u16, (next >> 16) as u16);
    }

    fn new_node(&mut self) -> u32 {
        if let Some(node) = self.nodes.get_mut(self.free_node as usize) {
            let next = core::mem::replace(&mut node[0], NO_NODE);
            return core::mem::replace(&mut self.free_node, next);
        }
        push(&mut self.nodes, [NO_NODE; FAN as usize]);
        self.nodes.len() as u32 - 1
    }

    fn free_node(&mut self, node: u32) {
        self.nodes[node as usize][0] = core::mem::replace(&mut self.free_node, node);
    }

    /// The leaf for a page, made if need be with what leads to it.
    fn make_leaf(&mut self, index: u32) -> usize {
        if self.root == NO_NODE {
            // The first leaf may be anywhere: no level has to be added above it.
            self.levels = (0..LEVELS_MAX).find(|level| u64::from(index) < span(*level)).unwrap_or(LEVELS_MAX);
            self.root = if self.levels == 0 { self.new_leaf() } else { self.new_node() };
        }
        while u64::from(index) >= span(self.levels) {
            let above = self.new_node();
            self.nodes[above as usize][0] = self.root;
            self.root = above;
            self.levels += 1;
        }
        let mut at = self.root;
        for level in (1..=self.levels).rev() {
            let pointer = place(index, level);
            let mut below = self.nodes[at as usize][pointer];
            if below == NO_NODE {
                below = if level == 1 { self.new_leaf() } else { self.new_node() };
                self.nodes[at as usize][pointer] = below;
            }
            at = below;
        }
        at as usize
    }

    /// Puts a page at `index`; what was there.
    pub fn set(&mut self, index: u32, page: u32) -> Option<u32> {
        let (leaf, at) = (self.make_leaf(index), (index % LEAF) as usize);
        let old = self.number(leaf, at);
        self.write(leaf, at, page);
        self.count += u32::from(old.is_none());
        old
    }

    /// Makes a hole at `index`; what was there.
    pub fn clear(&mut self, index: u32) -> Option<u32> {
        let (leaf, at) = (self.leaf_of(index)?, (index % LEAF) as usize);
        let old = self.number(leaf, at)?;
        self.write(leaf, at, NONE);
        self.count -= 1;
        if self.pages_of(leaf).next().is_none() {
            self.prune(index - index % LEAF, index - index % LEAF + LEAF);
        }
        Some(old)
    }

    /// Drops everything from `index` on; the pages that were there.
    pub fn truncate(&mut self, index: u32) -> Vec<u32> {
        let gone: Vec<u32> = self.iter_from(index).map(|(_, page)| page).collect();
        if let Some(leaf) = self.leaf_of(index) {
            (index % LEAF..LEAF).for_each(|at| self.write(leaf, at as usize, NONE));
            if self.pages_of(leaf).next().is_none() {
                self.prune(index - index % LEAF, u32::MAX);
            } else {
                self.prune((index - index % LEAF).saturating_add(LEAF), u32::MAX);
            }
        } else {
            self.prune(index - index % LEAF, u32::MAX);
        }
        self.count -= gone.len() as u32;
        gone
    }

    /// Frees the leaves from one page up to another, both at the beginning of leaves, and the nodes that lead to
    /// nothing then.
    fn prune(&mut self, from: u32, to: u32) {
        if self.root != NO_NODE && self.prune_below(self.root, self.levels, 0, (from, to)) {
            self.root = NO_NODE;
            self.levels = 0;
        }
    }

    /// Whether nothing is left below, and the node itself is free.
    fn prune_below(&mut self, at: u32, level: u32, first: u64, gone: (u32, u32)) -> bool {
        let behind = first + span(level);
        if behind <= u64::from(gone.0) || first >= u64::from(gone.1) {
            return false;
        }
        if level == 0 {
            self.free_leaf(at);
            return true;
        }
        for pointer in 0..FAN as usize {
            let below = self.nodes[at as usize][pointer];
            let first = first + pointer as u64 * span(level - 1);
            if below != NO_NODE && self.prune_below(below, level - 1, first, gone) {
                self.nodes[at as usize][pointer] = NO_NODE;
            }
        }
        let is_empty = self.nodes[at as usize].iter().all(|below| *below == NO_NODE);
        if is_empty {
            self.free_node(at);
        }
        is_empty
    }

    /// The pages of a leaf with their places.
    fn pages_of(&self, leaf: usize) -> impl DoubleEndedIterator<Item = (u32, u32)> + '_ {
        (0..LEAF).filter_map(move |at| Some((at, self.number(leaf, at as usize)?)))
    }

    /// The first leaf that ends behind `from`, with its first page's number.
    fn next_leaf(&self, from: u64) -> Option<(u64, usize)> {
        if self.root == NO_NODE { None } else { self.next_below(self.root, self.levels, 0, from) }
    }

    fn next_below(&self, at: u32, level: u32, first: u64, from: u64) -> Option<(u64, usize)> {
        if first + span(level) <= from {
            return None;
        }
        if level == 0 {
            return Some((first, at as usize));
        }
        let below = self.nodes[at as usize].iter().zip((first..).step_by(span(level - 1) as usize));
        below
            .filter(|(node, _)| **node != NO_NODE)
            .find_map(|(node, first)| self.next_below(*node, level - 1, first, from))
    }

    /// The pages from an index on with their indices, in order.
    pub fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = self.next_leaf(u64::from(index));
        let leaves = core::iter::successors(first, |(at, _)| self.next_leaf(at + u64::from(LEAF)));
        let pages = move |(first, leaf): (u64, usize)| {
            self.pages_of(leaf).map(move |(at, page)| (first as u32 + at, page))
        };
        leaves.flat_map(pages).skip_while(move |(at, _)| *at < index)
    }

    /// One past the last index that has a page; 0 if none has.
    pub fn end(&self) -> u32 {
        if self.root == NO_NODE {
            return 0;
        }
        let (mut at, mut first) = (self.root, 0);
        for level in (1..=self.levels).rev() {
            let node = &self.nodes[at as usize];
            // A node that is in the tree leads somewhere.
            let Some(last) = node.iter().rposition(|below| *below != NO_NODE) else { return 0 };
            first += last as u64 * span(level - 1);
            at = node[last];
        }
        self.pages_of(at as usize).next_back().map_or(0, |(last, _)| first as u32 + last + 1)
    }

    /// How many leaves and nodes are free.
    #[cfg(test)]
    fn free(&self) -> (usize, usize) {
        let next_leaf = |leaf: &u32| {
            let [low, high, ..] = self.leaves.get(*leaf as usize)?;
            Some(u32::from(*high) << 16 | u32::from(*low))
        };
        let leaves = core::iter::successors(Some(self.free_leaf), next_leaf);
        let nodes = core::iter::successors(Some(self.free_node), |node| {
            self.nodes.get(*node as usize).map(|node| node[0])
        });
        let count = |free: &mut dyn Iterator<Item = u32>| free.take_while(|place| *place != NO_NODE).count();
        (count(&mut { leaves }), count(&mut { nodes }))
    }

    /// The way to a page: the place in each node from the root on, then that in the leaf.
    #[cfg(test)]
    fn way(&self, index: u32) -> Vec<usize> {
        let nodes = (1..=self.levels).rev().map(|level| place(index, level));
        nodes.chain([(index % LEAF) as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn page_2762_is_where_the_paper_says() {
        let mut tree = Tree::new();
        for index in 0..=2762 {
            tree.set(index, 30_000 + index);
        }
        // 2762 = 10 101 100 1010 in binary.
        assert_eq!(tree.way(2762), [2, 5, 4, 10]);
        let mut at = tree.root as usize;
        for pointer in [2, 5, 4] {
            at = tree.nodes[at][pointer] as usize;
        }
        assert_eq!(tree.leaves[at][10], 32_762);
        // Two levels lead to 1024 pages, three to 8192; a leaf and a node take 32 bytes.
        assert_eq!((tree.levels, tree.leaves.len(), tree.nodes.len()), (3, 173, 22 + 3 + 1));
        assert_eq!((size_of_val(&tree.leaves[0]), size_of_val(&tree.nodes[0])), (32, 32));
        assert!(tree.upper.is_empty());
    }

    #[test]
    fn it_agrees_with_a_plain_map() {
        for page_max in [60_000, 0xffff_fff0] {
            let (mut tree, mut model) = (Tree::new(), BTreeMap::new());
            let mut seed = 1u64;
            let mut random = |below: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((seed >> 33) % below) as u32
            };
            for step in 0..20_000u32 {
                let index = if step / 500 % 2 == 0 { step % 700 } else { random(20_000) };
                match random(12) {
                    0..=2 => assert_eq!(tree.clear(index), model.remove(&index)),
                    3 if step % 40 == 0 => {
                        let mut gone = tree.truncate(index);
                        let mut expected: Vec<u32> = model.split_off(&index).into_values().collect();
                        gone.sort_unstable();
                        expected.sort_unstable();
                        assert_eq!(gone, expected, "step {step}");
                    }
                    _ => {
                        let page = random(page_max);
                        assert_eq!(tree.set(index, page), model.insert(index, page), "step {step}");
                    }
                }
                assert_eq!(tree.get(index), model.get(&index).copied());
                assert_eq!(tree.count() as usize, model.len());
                assert_eq!(tree.end(), model.keys().next_back().map_or(0, |last| last + 1), "step {step}");
            }
            let all: Vec<(u32, u32)> = tree.iter_from(0).collect();
            assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>());
            for from in (0..20_000).step_by(37) {
                let next = tree.iter_from(from).next();
                assert_eq!(next, model.range(from..).next().map(|(index, page)| (*index, *page)));
            }
            // What is in the tree is what there is: a leaf for each 16 pages with one.
            let mut positions: Vec<u32> = model.keys().map(|index| index / LEAF).collect();
            positions.dedup();
            assert_eq!(tree.leaves.len() - tree.free().0, positions.len());
            tree.truncate(0);
            assert_eq!((tree.root, tree.count()), (NO_NODE, 0));
            assert_eq!(tree.free(), (tree.leaves.len(), tree.nodes.len()));
        }
    }

    #[test]
    fn the_last_page_that_a_file_may_have_is_eight_levels_deep() {
        let mut tree = Tree::new();
        let last = crate::object::PAGES_MAX as u32 - 1;
        tree.set(last, 5);
        assert_eq!((tree.levels, tree.nodes.len(), tree.end()), (8, 8, last + 1));
        assert_eq!(tree.set(0, 7), None);
        assert_eq!(tree.iter_from(0).collect::<Vec<_>>(), [(0, 7), (last, 5)]);
        assert_eq!(tree.truncate(1), [5]);
        assert_eq!((tree.get(0), tree.count()), (Some(7), 1));
    }
}
