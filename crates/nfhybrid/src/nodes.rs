//! The inodes in use, by number; and those without a name that are too large to be freed in one transaction.
//!
//! Invariant: a node made anew never repeats a version that an earlier one of its inode had.

use super::node::Node;
use bimetal_base::units::Ino;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The inodes in use.
#[derive(Default)]
pub struct Nodes {
    table: FxHashMap<Ino, Node>,
    made: u64,
    releasing: BTreeSet<Ino>,
}

impl Nodes {
    /// The node of an inode, if it is in use.
    pub fn get(&self, ino: Ino) -> Option<&Node> {
        self.table.get(&ino)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.table.get_mut(&ino)
    }

    /// The node of an inode, made if need be as one reached through `parent`.
    pub fn of(&mut self, ino: Ino, parent: Ino) -> &mut Node {
        self.table.entry(ino).or_insert_with(|| {
            self.made += 1;
            Node::new(parent, self.made << 32)
        })
    }

    /// Drops a node nobody needs any more.
    pub fn drop_if_idle(&mut self, ino: Ino) {
        if self.get(ino).is_some_and(Node::is_idle) {
            self.table.remove(&ino);
        }
    }

    /// The inode is gone.
    pub fn remove(&mut self, ino: Ino) {
        self.table.remove(&ino);
    }

    /// Those in use that have no name.
    pub fn orphans(&self) -> Vec<Ino> {
        self.table.iter().filter(|(_, node)| node.is_orphan()).map(|(&ino, _)| ino).collect()
    }

    /// The rest of an inode is to be freed in later transactions.
    pub fn free_later(&mut self, ino: Ino) {
        self.releasing.insert(ino);
    }

    /// Nothing of an inode is left, and its number may be another's.
    pub fn freed(&mut self, ino: Ino) {
        self.releasing.remove(&ino);
    }

    /// Takes the inodes that are still to be freed.
    pub fn take_half_freed(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.releasing).into_iter().collect()
    }

    /// Whether inodes are still to be freed.
    pub fn has_half_freed(&self) -> bool {
        !self.releasing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_made_anew_repeats_no_version() {
        let mut nodes = Nodes::default();
        let node = nodes.of(Ino(5), Ino(2));
        (0..1000).for_each(|_| node.changed());
        let (version, moved) = (node.version(), node.moved());
        nodes.drop_if_idle(Ino(5));
        assert!(nodes.get(Ino(5)).is_none());
        let node = nodes.of(Ino(5), Ino(2));
        assert!(node.version() > version && node.moved() > moved);
    }
}
