//! Credits: how many blocks an operation adds to the running transaction at most, said before it begins.
//!
//! [`Ext4::dirty_blocks`] says what the transaction holds; an operation is begun only if that and its credits
//! fit what the journal takes at once. So no transaction is ever too large, and nothing fails half-way for want of
//! room in the journal. What an operation did not use is free again when it ends: the count is of what is there.
//!
//! The bounds, in blocks (`G(n)`: what `n` blocks taken or given back anywhere dirty, two bitmaps and a share of the
//! descriptor table for each of at most `n` groups; `T(n)`: nodes of a file's tree that `n` changes of it write):
//!
//! | operation | bound |
//! |---|---|
//! | attributes | its table block, the superblock |
//! | a name more | the directory's table block, the path to its leaf and the blocks of splits (16), `T(8) + G(8 + …)` |
//! | a name less | two table blocks, two of the directory, two neighbours on the orphan list; and one step of freeing |
//! | a step of freeing | a quarter of what a transaction carries, and the last extent: at most five groups (32 of 1024 blocks), its leaf, the index; or all that a file of one leaf has |
//! | data of `n` blocks | `n` images of its own where it overwrites, or `T(n) + G(2 n + …)` where it gets new places |
//!
//! A test runs operations at random and compares.

use super::Ext4;
use super::data::STEP_SHARE;
use super::indirect;
use super::inode::{Inode, flag};
use super::space::GRANT;
use bimetal_base::Result;
use bimetal_base::units::Ino;
use bimetal_vfs::Kind;

/// Blocks of a directory that a name more changes: the way to its leaf, and those made by splits.
const DIR_PATH: u64 = 16;
/// Table blocks and neighbours on the orphan list that losing a name changes.
const UNLINK: u64 = 7;
/// Places that freeing gives back beside data and nodes: the inode, attributes, and the ends of an extent in other groups.
const OTHER_PLACES: u64 = 9;
/// Runs that one step of preallocation takes.
pub const PREALLOCATE_RUNS: usize = 16;

/// What giving places to data will dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeChange {
    /// Nodes of the file's tree, written.
    pub nodes: u64,
    /// Blocks taken or given back, each of which may lie in another group; see [`Ext4::group_blocks`].
    pub places: u64,
}

impl Ext4 {
    /// Bitmaps and descriptor blocks that `places` blocks, taken or given back anywhere, dirty at most.
    pub fn group_blocks(&self, places: u64) -> u64 {
        let geometry = &self.store.geometry;
        let groups = places.min(geometry.groups.into());
        2 * groups + groups.min(geometry.desc_blocks().into())
    }

    /// What new places for `blocks` blocks of a file's data change at most.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn tree_change(&mut self, ino: Ino, blocks: u64) -> Result<TreeChange> {
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        let converted = !inode.has(flag::EXTENTS);
        if !has_tree(inode) || blocks == 0 {
            return Ok(TreeChange::default());
        }
        let tree = self.store.tree(inode)?;
        let (mut nodes, mut taken) = tree.nodes_to_change(blocks);
        if converted {
            let all = tree.missing_nodes() as u64;
            nodes += all;
            taken += all + inode.legacy.len() as u64;
        }
        Ok(TreeChange { nodes, places: 2 * blocks + taken })
    }

    fn tree_blocks(&mut self, ino: Ino, blocks: u64) -> Result<u64> {
        let change = self.tree_change(ino, blocks)?;
        Ok(change.nodes + self.group_blocks(change.places))
    }

    /// What the first change of a transaction brings with it.
    fn always(&self) -> u64 {
        self.super_blocks() as u64
    }

    /// Credits to change what an inode's table entry says, its times for example.
    pub fn credits_for_attributes(&self) -> u64 {
        1 + self.always()
    }

    /// Credits to change extended attributes: a block more, and the one it takes the place of.
    pub fn credits_for_xattrs(&self) -> u64 {
        3 + self.always() + self.group_blocks(2)
    }

    /// Credits to give a directory one name more.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_for_name(&mut self, dir: Ino) -> Result<u64> {
        Ok(1 + self.always() + DIR_PATH + self.tree_blocks(dir, GRANT)?)
    }

    /// Credits to make an inode in a directory, with its first block and inherited access lists.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_for_create(&mut self, dir: Ino) -> Result<u64> {
        let own = 3 + self.group_blocks(2);
        Ok(self.credits_for_name(dir)? + own + self.credits_for_xattrs())
    }

    /// Credits to give an inode another name.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_for_link(&mut self, dir: Ino) -> Result<u64> {
        Ok(self.credits_for_name(dir)? + UNLINK)
    }

    /// Credits to take a name away, and for the first step of freeing the inode.
    ///
    /// # Errors
    /// As [`Ext4::lookup`].
    pub fn credits_for_remove(&mut self, dir: Ino, name: &[u8]) -> Result<u64> {
        match self.lookup(dir, name)? {
            Some((ino, _)) => Ok(self.always() + UNLINK + self.credits_to_free(ino)?),
            None => Ok(0),
        }
    }

    /// Credits to move a name: one more, one less, two inodes, the `..` of a directory; a whiteout is extra.
    ///
    /// # Errors
    /// As [`Ext4::lookup`].
    pub fn credits_for_rename(&mut self, to: Ino, new_name: &[u8]) -> Result<u64> {
        Ok(self.credits_for_name(to)? + UNLINK + 4 + self.credits_for_remove(to, new_name)?)
    }

    /// Credits for one step of freeing what a file has, and the inode itself.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_to_free(&mut self, ino: Ino) -> Result<u64> {
        let step = self.step_blocks() as u64;
        let slot = match self.inodes.find(ino) {
            Some(slot) => slot,
            None => self.load(ino)?,
        };
        let inode = &mut self.inodes.entry(slot).inode;
        let geometry = &self.store.geometry;
        // An extent, or what one node of a block map leads to: a step writes that node, or gives one back.
        let has_extents = inode.has(flag::EXTENTS);
        let at_once = match has_extents {
            true => super::extents::EXTENT_MAX,
            false => geometry.block_bytes / 4,
        };
        let (mut nodes, mut places) = (1, u64::from(at_once / geometry.blocks_per_group) + OTHER_PLACES);
        let mut all = None;
        if has_tree(inode) {
            // A map that is damaged is told before a name is gone.
            let tree = self.store.tree(inode)?;
            let change = tree.nodes_to_change(1);
            if has_extents {
                nodes += change.0;
                places += change.1;
                let few = tree.places_if_few(self.store.geometry.blocks_per_group);
                all = few.map(|few| few + change.1 + OTHER_PLACES);
            }
        }
        let most = step + self.group_blocks(places);
        let bound = all.map_or(most, |all| most.min(self.group_blocks(all)));
        Ok(bound + nodes + self.always() + UNLINK + 3)
    }

    /// Credits for one step of [`Ext4::truncate`].
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_to_resize(&mut self, ino: Ino, size: u64) -> Result<u64> {
        let step = self.credits_to_free(ino)?;
        let slot = self.load(ino)?;
        let block_bytes = self.block_bytes();
        let outgrown = indirect::is_outgrown(&self.inodes.entry(slot).inode, size, block_bytes);
        Ok(step + if outgrown { self.tree_blocks(ino, 1)? } else { 0 })
    }

    /// Credits for data of `blocks` blocks, wherever it will lie.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_for_data(&mut self, ino: Ino, blocks: u64) -> Result<u64> {
        Ok(1 + self.always() + blocks.max(self.tree_blocks(ino, blocks)?))
    }

    /// Credits for data that is overwritten where it lies, `blocks` blocks, or that lies in space without data.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_to_overwrite(&mut self, ino: Ino, blocks: u64) -> Result<u64> {
        let slot = self.load(ino)?;
        match self.inodes.entry(slot).inode.has(flag::EXTENTS) {
            true => self.credits_for_data(ino, blocks),
            // All of a block map is data.
            false => Ok(1 + self.always() + blocks),
        }
    }

    /// Credits for one step of [`Ext4::preallocate`].
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn credits_to_preallocate(&mut self, ino: Ino) -> Result<u64> {
        // Each run is one extent in a hole, and no more than half of what blocks anywhere would change.
        Ok(1 + self.always()
            + self.tree_blocks(ino, PREALLOCATE_RUNS as u64 / 2)?
            + self.group_blocks(PREALLOCATE_RUNS as u64))
    }

    /// Blocks that one step of freeing dirties, beside its last extent.
    pub(super) fn step_blocks(&self) -> usize {
        (self.capacity / STEP_SHARE).max(16)
    }
}

pub(super) fn has_tree(inode: &Inode) -> bool {
    match inode.kind() {
        Kind::File | Kind::Dir => true,
        Kind::Symlink => !inode.is_fast_link(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
