//! The nodes of a file's tree: how many there are to be, which blocks they have, what a change needs of them.

use super::*;

/// Nodes of an index that one cut makes spare, of trees that others made half full, too.
const SPARE_MAX: usize = 64;

/// Leaves behind the last of a cut that are joined with it at most, one by each extent that it loses.
const JOINED_MAX: usize = 8;

impl Extents {
    /// Nodes of the index between the root and `leaves` leaves.
    fn index_nodes(&self, leaves: usize) -> usize {
        let (mut level, mut nodes) = (leaves, 0);
        while level > ROOT_ENTRIES {
            level = level.div_ceil(self.node_entries());
            nodes += level;
        }
        nodes
    }

    /// How many node blocks are missing. Each must be given with [`Extents::give_node`].
    pub fn missing_nodes(&self) -> usize {
        if self.is_flat() {
            return 0;
        }
        let bare = self.leaves.iter().filter(|leaf| leaf.node == 0).count();
        bare + self.index_nodes(self.leaves.len()).saturating_sub(self.index.len())
    }

    /// Levels of the index between the root and `leaves` leaves.
    fn index_levels(&self, leaves: usize) -> usize {
        let (mut level, mut levels) = (leaves, 0);
        while level > ROOT_ENTRIES {
            level = level.div_ceil(self.node_entries());
            levels += 1;
        }
        levels
    }

    /// Leaves that come of others as they get `extents` more: each that is full is cut in two by the first it gets, one that was
    /// cut or joined by a quarter of what it holds.
    fn splits(&self, extents: usize) -> usize {
        if self.leaves.len() == 1
            && self.leaves[0].extents.len().saturating_add(extents) <= self.node_entries()
        {
            return 0;
        }
        extents.min(self.leaves.len()) + extents.saturating_mul(4).div_ceil(self.node_entries()) + 2
    }

    /// Node blocks that changes take at most, one after the other, which make `extents` extents more; what is given back
    /// meanwhile is not counted on, since it stays held until a commit. Fewer or shorter extents never need more.
    pub fn nodes_to_take(&self, extents: usize) -> usize {
        if extents == 0 || self.has_room(extents) && !self.has_nodes() {
            return 0;
        }
        let splits = self.splits(extents);
        if splits == 0 {
            return 1;
        }
        // Index nodes that were given back when leaves were joined are taken again when others are cut.
        let index = splits.max(extents).div_ceil(self.node_entries());
        1 + splits + 2 * (index + self.index_levels(self.leaves.len() + splits))
    }

    /// Nodes that changing `blocks` blocks, each anywhere, writes at most; and node blocks taken or given back.
    pub fn nodes_to_change(&self, blocks: u64) -> (u64, u64) {
        let extents = self.extents_to_add(blocks, true);
        if self.has_room(extents) && !self.has_nodes() {
            return (0, 0);
        }
        let splits = self.splits(extents);
        if splits == 0 && self.index.is_empty() {
            return (1, 2);
        }
        let touched = extents.saturating_mul(2).min(self.leaves.len());
        let grown = splits.max(1);
        let index = self.index_nodes(self.leaves.len() + grown).max(self.index.len());
        let nodes = (touched + grown + index) as u64;
        (nodes, nodes)
    }

    /// Groups of `group_blocks` blocks that all extents and nodes lie in at most, each counted for itself; `None` where counting takes
    /// a while.
    pub fn places_if_few(&self, group_blocks: u32) -> Option<u64> {
        let nodes = 1 + self.index.len() + self.dropped.len();
        let of = |extent: &Extent| u64::from(u32::from(extent.len) / group_blocks) + 2;
        (self.leaves.len() == 1).then(|| nodes as u64 + self.iter().map(of).sum::<u64>())
    }

    /// Extents that changes of `blocks` blocks add at most. Each makes two more in the middle of one, which happens to data that
    /// moves (`moving`) and to space without data; where there is neither, each makes one.
    pub fn extents_to_add(&self, blocks: u64, moving: bool) -> usize {
        let plain = |extent: &Extent| !moving && !extent.unwritten;
        let most = if self.is_flat() && self.leaves[0].extents.iter().all(plain) {
            blocks
        } else {
            blocks.saturating_mul(2)
        };
        usize::try_from(most).unwrap_or(usize::MAX / 8)
    }

    /// Whether a few more extents can never need a node, the common case.
    pub fn has_room(&self, extents: usize) -> bool {
        self.leaves.len() == 1 && self.leaves[0].extents.len().saturating_add(extents) <= ROOT_ENTRIES
    }

    /// Whether there is, or was until now, a node block.
    pub fn has_nodes(&self) -> bool {
        self.leaves[0].node != 0 || !self.index.is_empty() || !self.dropped.is_empty()
    }

    /// Puts a new block in the first place one is missing.
    pub fn give_node(&mut self, node: u64) {
        self.index_changed = true;
        match self.leaves.iter_mut().find(|leaf| leaf.node == 0) {
            Some(leaf) => {
                leaf.node = node;
                leaf.changed = true;
            }
            None => self.index.push(node),
        }
    }

    /// Takes out every node block that is not needed any more.
    pub fn spare_nodes(&mut self) -> Vec<u64> {
        if self.is_flat() && self.leaves[0].node != 0 {
            self.dropped.push(self.leaves[0].node);
            self.leaves[0].node = 0;
            self.index_changed = true;
        }
        let wanted = if self.is_flat() { 0 } else { self.index_nodes(self.leaves.len()) };
        if wanted < self.index.len() {
            self.dropped.extend(self.index.drain(wanted..));
            self.index_changed = true;
        }
        std::mem::take(&mut self.dropped)
    }

    /// Blocks of nodes that may be spare once the last extent is cut.
    pub fn nodes_at_end(&self) -> impl Iterator<Item = u64> + '_ {
        let leaves = self.leaves.iter().rev().take(2).map(|leaf| leaf.node).filter(|node| *node != 0);
        leaves.chain(self.index.iter().rev().take(SPARE_MAX).copied())
    }

    /// Blocks of nodes that may be spare once `from..to` is cut: of its leaves, and of those that may be joined with them, one
    /// by each extent of a few.
    pub fn nodes_around(&self, from: u32, to: u64) -> impl Iterator<Item = u64> + '_ {
        let last = self.leaf_of(to.saturating_sub(1).min(u32::MAX.into()) as u32) + JOINED_MAX;
        let leaves = &self.leaves[self.leaf_of(from).saturating_sub(1)..=last.min(self.leaves.len() - 1)];
        let leaves = leaves.iter().map(|leaf| leaf.node).filter(|node| *node != 0);
        leaves.chain(self.index.iter().rev().take(SPARE_MAX).copied())
    }

    /// Blocks of nodes in use.
    pub fn nodes(&self) -> impl Iterator<Item = u64> + '_ {
        let leaves = self.leaves.iter().map(|leaf| leaf.node).filter(|node| *node != 0);
        leaves.chain(self.index.iter().copied())
    }

    /// Nodes that writing the tree now would store.
    pub fn changed_nodes(&self) -> usize {
        let leaves = self.leaves.iter().filter(|leaf| leaf.changed && leaf.node != 0).count();
        let moved = |leaf: &Leaf| leaf.extents.first().is_some_and(|first| first.block != leaf.key);
        let index = !self.index.is_empty() && (self.index_changed || self.leaves.iter().any(moved));
        leaves + if index { self.index.len() } else { 0 }
    }
}
