//! Where the blocks of a file lie: a sorted list of extents in memory, cut into *leaves* that are the
//! leaves of ext4's extent tree on disk.
//!
//! Up to four extents live in the inode itself (one leaf without a block of its own). Beyond that every
//! leaf has a block (a *node*), and so has every node of the index above the leaves. Leaves split when
//! they are full (in half, or at the end if the file is appended to) and join with their neighbour when
//! they empty. `Store::settle` ([`super::mapping`]) takes and returns node blocks right after a change, so that writing the
//! tree at freeze time ([`super::extent_disk`]) needs no space any more.
//!
//! Invariants: extents are sorted, disjoint and not empty; leaves are not empty unless there is only one;
//! two neighbours in one leaf are never mergeable.
//!
//! Cost: a lookup is two binary searches; a change moves at most one leaf's tail (340 extents).

mod nodes;

use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// The longest extent, blocks.
pub(super) const EXTENT_MAX: u32 = 32768;
/// The longest extent without data, blocks.
pub(super) const UNWRITTEN_MAX: u32 = 32767;
/// Extents (or index entries) in an inode.
pub(super) const ROOT_ENTRIES: usize = 4;

/// A run of blocks of a file that lie one after the other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// First block of the file.
    pub block: u32,
    /// Blocks; at most [`EXTENT_MAX`].
    pub len: u16,
    /// Allocated, but never written: reads as zeros.
    pub unwritten: bool,
    /// First block on the device.
    pub at: u64,
}

impl Spot {
    /// The block of the file up to which it is so.
    pub fn end(&self) -> u64 {
        match self {
            Spot::Extent(extent) => extent.end(),
            Spot::Hole(end) => *end,
        }
    }
}

impl Extent {
    /// A run; `len` is at most [`EXTENT_MAX`].
    pub fn new(block: u32, at: u64, len: u32, unwritten: bool) -> Extent {
        Extent { block, len: len as u16, unwritten, at }
    }

    /// The block of the file after the last.
    pub fn end(&self) -> u64 {
        u64::from(self.block) + u64::from(self.len)
    }

    /// The part from block `from` of the file on.
    fn tail(&self, from: u32) -> Extent {
        let skip = from - self.block;
        let len = u32::from(self.len) - skip;
        Extent::new(from, self.at + u64::from(skip), len, self.unwritten)
    }

    /// The part before block `to` of the file.
    fn head(&self, to: u32) -> Extent {
        Extent { len: (to - self.block) as u16, ..*self }
    }

    fn takes(&self, next: &Extent) -> bool {
        let limit = if self.unwritten { UNWRITTEN_MAX } else { EXTENT_MAX };
        self.end() == u64::from(next.block)
            && self.at + u64::from(self.len) == next.at
            && self.unwritten == next.unwritten
            && u32::from(self.len) + u32::from(next.len) <= limit
    }
}

/// What is at a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// This extent.
    Extent(Extent),
    /// Nothing, up to (not including) this block.
    Hole(u64),
}

/// Extents that share a node of the tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    pub extents: SmallVec<[Extent; 2]>,
    /// The block it is stored in; 0 while it has none.
    pub node: u64,
    /// It differs from what was last written.
    pub changed: bool,
    /// First block of the file as the index above it says.
    pub key: u32,
}

/// All extents of a file.
#[derive(Clone, Debug)]
pub(super) struct Extents {
    pub leaves: SmallVec<[Leaf; 1]>,
    /// Blocks of the index nodes below the root, the lowest level first.
    pub index: Vec<u64>,
    /// The index differs from what was last written.
    pub index_changed: bool,
    /// Entries in a node.
    node_entries: u16,
    /// Nodes that are not needed any more and not yet given back.
    dropped: Vec<u64>,
    /// An error left it without the blocks for some of its nodes.
    pub lacks_nodes: bool,
    /// Changed nodes that were counted for the size of the running transaction.
    pub counted: usize,
}

impl Extents {
    /// No extents; a node holds `node_entries`.
    pub fn new(node_entries: u16) -> Extents {
        let leaves = SmallVec::from_iter([Leaf::default()]);
        Extents {
            leaves,
            index: Vec::new(),
            index_changed: false,
            node_entries,
            dropped: Vec::new(),
            lacks_nodes: false,
            counted: 0,
        }
    }

    /// Entries in a node.
    pub fn node_entries(&self) -> usize {
        usize::from(self.node_entries)
    }

    /// Whether everything fits in the inode.
    pub fn is_flat(&self) -> bool {
        self.leaves.len() == 1 && self.leaves[0].extents.len() <= ROOT_ENTRIES
    }

    /// All extents in order.
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.leaves.iter().flat_map(|leaf| leaf.extents.iter())
    }

    /// The last extent.
    pub fn last(&self) -> Option<Extent> {
        self.leaves.last().and_then(|leaf| leaf.extents.last().copied())
    }

    /// The leaf in which `block` is, or would be.
    fn leaf_of(&self, block: u32) -> usize {
        if self.leaves.len() == 1 {
            return 0;
        }
        let after =
            self.leaves.partition_point(|leaf| leaf.extents.first().is_some_and(|e| e.block <= block));
        after.saturating_sub(1)
    }

    /// What is at `block`.
    pub fn spot(&self, block: u32) -> Spot {
        let leaf = self.leaf_of(block);
        let extents = &self.leaves[leaf].extents;
        let after = extents.partition_point(|extent| extent.block <= block);
        if let Some(extent) = after.checked_sub(1).map(|at| extents[at])
            && u64::from(block) < extent.end()
        {
            return Spot::Extent(extent);
        }
        let next = extents.get(after).or_else(|| self.leaves.get(leaf + 1).and_then(|l| l.extents.first()));
        Spot::Hole(next.map_or(u64::from(u32::MAX), |extent| u64::from(extent.block)))
    }

    /// Whether every block in `from..to` holds data.
    pub fn is_written(&self, from: u32, to: u64) -> bool {
        let mut at = u64::from(from);
        while at < to {
            match self.spot(at as u32) {
                Spot::Extent(extent) if !extent.unwritten => at = extent.end(),
                _ => return false,
            }
        }
        true
    }

    /// The last extent that begins before `block`.
    pub fn before(&self, block: u32) -> Option<Extent> {
        let prior = block.checked_sub(1)?;
        let extents = &self.leaves[self.leaf_of(prior)].extents;
        let after = extents.partition_point(|extent| extent.block <= prior);
        after.checked_sub(1).map(|at| extents[at])
    }

    /// Adds an extent where there is a hole.
    pub fn insert(&mut self, extent: Extent) {
        let at = self.leaf_of(extent.block);
        let last = at + 1 == self.leaves.len();
        let limit = self.node_entries();
        let leaf = &mut self.leaves[at];
        leaf.changed = true;
        let place = leaf.extents.partition_point(|other| other.block < extent.block);
        if place > 0 && leaf.extents[place - 1].takes(&extent) {
            leaf.extents[place - 1].len += extent.len;
            if place < leaf.extents.len() && leaf.extents[place - 1].takes(&leaf.extents[place]) {
                leaf.extents[place - 1].len += leaf.extents[place].len;
                leaf.extents.remove(place);
            }
            return;
        }
        if place < leaf.extents.len() && extent.takes(&leaf.extents[place]) {
            let len = extent.len + leaf.extents[place].len;
            leaf.extents[place] = Extent { len, ..extent };
            return;
        }
        if leaf.extents.len() < limit {
            leaf.extents.insert(place, extent);
            return;
        }
        self.split(at, if last && place == limit { limit } else { limit / 2 });
        self.insert(extent);
    }

    /// Moves the extents of a leaf from `keep` on into a new leaf behind it. With `keep` at the end the new
    /// leaf takes the last extent along, because no leaf may be empty.
    fn split(&mut self, at: usize, keep: usize) {
        let leaf = &mut self.leaves[at];
        let keep = keep.min(leaf.extents.len() - 1);
        let extents = leaf.extents.drain(keep..).collect();
        leaf.changed = true;
        self.leaves.insert(at + 1, Leaf { extents, changed: true, ..Leaf::default() });
        self.index_changed = true;
    }

    /// Removes what lies in `from..to`; the runs on the device go to `freed`. An extent that loses its beginning or its end stays
    /// where it is: only one that loses its middle may need a node.
    pub fn cut(&mut self, from: u32, to: u64, mut freed: impl FnMut(u64, u32)) {
        while let Some((leaf, place)) = self.first_in(from, to) {
            let extent = self.leaves[leaf].extents[place];
            let (begins, ends) = (extent.block < from, extent.end() > to);
            if begins != ends {
                let (kept, gone) = match begins {
                    true => (extent.head(from), extent.tail(from)),
                    false => (extent.tail(to as u32), extent.head(to as u32)),
                };
                self.leaves[leaf].extents[place] = kept;
                self.leaves[leaf].changed = true;
                freed(gone.at, u32::from(gone.len));
                continue;
            }
            self.take_out(leaf, place);
            let mut middle = extent;
            if extent.block < from {
                self.insert(extent.head(from));
                middle = extent.tail(from);
            }
            if extent.end() > to {
                let end = to as u32;
                self.insert(extent.tail(end));
                middle = middle.head(end);
            }
            freed(middle.at, u32::from(middle.len));
        }
    }

    /// Where the first extent that overlaps `from..to` is.
    fn first_in(&self, from: u32, to: u64) -> Option<(usize, usize)> {
        let mut leaf = self.leaf_of(from);
        let mut place = self.leaves[leaf].extents.partition_point(|extent| extent.end() <= u64::from(from));
        if place == self.leaves[leaf].extents.len() {
            (leaf, place) = (leaf + 1, 0);
        }
        let extent = self.leaves.get(leaf)?.extents.get(place)?;
        (u64::from(extent.block) < to).then_some((leaf, place))
    }

    /// Removes one extent, and its leaf if it was the last.
    fn take_out(&mut self, at: usize, place: usize) {
        let leaf = &mut self.leaves[at];
        leaf.extents.remove(place);
        leaf.changed = true;
        if leaf.extents.is_empty() && self.leaves.len() > 1 {
            self.drop_leaf(at);
        } else if self.leaves.len() > 1 {
            self.join(at);
        }
    }

    fn drop_leaf(&mut self, at: usize) {
        let leaf = self.leaves.remove(at);
        if leaf.node != 0 {
            self.dropped.push(leaf.node);
        }
        self.index_changed = true;
    }

    /// Joins a leaf with the one after it (or before it) if both fit well into one.
    fn join(&mut self, at: usize) {
        let first = if at + 1 < self.leaves.len() { at } else { at - 1 };
        let together = self.leaves[first].extents.len() + self.leaves[first + 1].extents.len();
        if together * 4 > self.node_entries() * 3 {
            return;
        }
        let moved = std::mem::take(&mut self.leaves[first + 1].extents);
        self.leaves[first].extents.extend(moved);
        self.leaves[first].changed = true;
        self.drop_leaf(first + 1);
    }

    /// Marks what is unwritten in `from..to` as written.
    pub fn write(&mut self, from: u32, to: u64) {
        let mut at = u64::from(from);
        while at < to {
            match self.spot(at as u32) {
                Spot::Hole(end) => at = end,
                Spot::Extent(extent) if !extent.unwritten => at = extent.end(),
                Spot::Extent(extent) => {
                    let (from, to) = (at.max(u64::from(extent.block)) as u32, to.min(extent.end()));
                    if from == extent.block && to == extent.end() {
                        self.write_whole(from);
                        at = to;
                        continue;
                    }
                    let part = extent.tail(from);
                    let part = if to < extent.end() { part.head(to as u32) } else { part };
                    self.cut(from, to, |_, _| ());
                    self.insert(Extent { unwritten: false, ..part });
                    at = to;
                }
            }
        }
    }

    /// Marks the extent that begins at `block` as written, where it stands: that takes no node, and gives none back.
    fn write_whole(&mut self, block: u32) {
        let leaf = self.leaf_of(block);
        let leaf = &mut self.leaves[leaf];
        let mut place = leaf.extents.partition_point(|extent| extent.block < block);
        leaf.extents[place].unwritten = false;
        leaf.changed = true;
        if place > 0 && leaf.extents[place - 1].takes(&leaf.extents[place]) {
            let joined = leaf.extents.remove(place);
            place -= 1;
            leaf.extents[place].len += joined.len;
        }
        if let Some(next) = leaf.extents.get(place + 1).copied()
            && leaf.extents[place].takes(&next)
        {
            leaf.extents[place].len += next.len;
            leaf.extents.remove(place + 1);
        }
    }

    /// Makes sure that no block on the device is named twice, by the extents or among `nodes`; the error is the block.
    pub fn check_apart(&self, nodes: &[u64]) -> std::result::Result<(), u64> {
        let nodes = nodes.iter().map(|node| (*node, 1));
        let mut runs: SmallVec<[(u64, u64); 8]> =
            self.iter().map(|extent| (extent.at, extent.len.into())).chain(nodes).collect();
        runs.sort_unstable();
        match runs.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            None => Ok(()),
            Some(pair) => Err(pair[1].0),
        }
    }

    /// Checks the invariants of a list that came from a device.
    ///
    /// # Errors
    /// [`Error::Corrupt`], at `place`.
    pub fn push_checked(&mut self, leaf: Leaf, place: &dyn Fn() -> String) -> Result<()> {
        let mut end = self.last().map_or(0, |extent| extent.end());
        for extent in &leaf.extents {
            if u64::from(extent.block) < end || extent.len == 0 || extent.end() > u64::from(u32::MAX) {
                return Err(Error::corrupt("an extent tree", "its extents are not in order", place()));
            }
            end = extent.end();
        }
        if self.leaves.len() == 1 && self.leaves[0].extents.is_empty() && self.leaves[0].node == 0 {
            self.leaves[0] = leaf;
        } else {
            self.leaves.push(leaf);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
