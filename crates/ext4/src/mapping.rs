//! An inode's block map in memory: read when first needed, changed, and kept supplied with node blocks.

use super::buffers::Seal;
use super::extent_disk::{Reader, Writer, node_entries};
use super::extents::{Extents, Spot};
use super::indirect;
use super::inode::{BODY_BYTES, Inode, flag};
use super::space::{Claim, Goal};
use super::store::Store;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use std::sync::Arc;

impl Store {
    /// Reads an inode from its table.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none, [`Error::Corrupt`]; what reading says.
    pub fn read_inode(&mut self, ino: Ino) -> Result<Inode> {
        if self.space.is_never_used(ino) {
            return Err(Error::Stale);
        }
        let (slot, offset) = self.load_slot(ino)?;
        let raw = &self.buffers.bytes(slot)[offset..offset + self.geometry.inode_bytes as usize];
        match Inode::read(raw, ino, &self.geometry) {
            // A table block that was read as zeros has no inodes, and no checksum that would say so.
            Err(Error::Stale) if self.space.is_taken(&self.buffers, ino)? => {
                let why = "its slot is blank, and the bitmap says that it is in use";
                Err(Error::corrupt("an inode", why, format!("inode {ino}")))
            }
            // One that e2fsck took away, because it was damaged, keeps its bytes.
            Err(Error::Corrupt { .. }) if !self.space.is_taken(&self.buffers, ino)? => Err(Error::Stale),
            read => read,
        }
    }

    /// Stores an inode, whose table block is in a buffer, into its slot.
    ///
    /// # Errors
    /// None unless that buffer is gone.
    pub fn write_inode(&mut self, inode: &Inode) -> Result<()> {
        let (slot, offset) = self.load_slot(inode.ino)?;
        let geometry = Arc::clone(&self.geometry);
        let raw = &mut self.buffers.edit(slot, Seal::Plain)[offset..offset + geometry.inode_bytes as usize];
        inode.write(raw, &geometry);
        Ok(())
    }

    /// Fills the slot of a new inode with zeros: an old one may have left attributes there.
    ///
    /// # Errors
    /// As [`Store::write_inode`].
    pub fn clear_slot(&mut self, ino: Ino) -> Result<()> {
        let (slot, offset) = self.load_slot(ino)?;
        let bytes = self.geometry.inode_bytes as usize;
        self.buffers.edit(slot, Seal::Plain)[offset..offset + bytes].fill(0);
        Ok(())
    }

    /// The extents of an inode that has blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; what reading says.
    pub fn tree<'i>(&self, inode: &'i mut Inode) -> Result<&'i mut Extents> {
        if inode.tree.is_none() {
            let (tree, legacy) = self.read_tree(inode)?;
            inode.legacy = legacy;
            inode.tree = Some(tree);
        }
        Ok(inode.tree.as_mut().expect("just read"))
    }

    fn read_tree(&self, inode: &Inode) -> Result<(Extents, Vec<u64>)> {
        let entries = node_entries(self.geometry.block_bytes);
        if !inode.has(flag::EXTENTS) {
            return indirect::read(self, inode.ino.0, &inode.body, inode.blocks, entries);
        }
        let mut reader = Reader {
            block_bytes: self.geometry.block_bytes,
            seed: self.geometry.features.csum().then_some(inode.seed),
            ino: inode.ino.0,
            read: &mut |at| self.buffers.fetch(at),
            soon: &|at| self.buffers.announce(at),
            allowed: &|at, len| self.space.may_hold_data(at, len),
        };
        Ok((reader.tree(&inode.body)?, Vec::new()))
    }

    /// The extents of an inode, to change. A block map of ext2 becomes extents first, and the blocks it was
    /// in are given back.
    ///
    /// # Errors
    /// As [`Store::tree`]; [`Error::Unsupported`] if the file system has no extents.
    pub fn tree_mut<'i>(&mut self, inode: &'i mut Inode) -> Result<&'i mut Extents> {
        self.tree(inode)?;
        if !inode.has(flag::EXTENTS) {
            if !self.geometry.features.extents() {
                let why = "the file system has no extents; run `tune2fs -O extents`";
                return Err(Error::unsupported("writing to files with ext2 block maps", why));
            }
            inode.legacy.iter().try_for_each(|node| self.check_taken(*node, 1))?;
            inode.flags |= flag::EXTENTS;
            for node in std::mem::take(&mut inode.legacy) {
                self.give_node(inode, node)?;
            }
            self.settle(inode)?;
        }
        Ok(inode.tree.as_mut().expect("read above"))
    }

    /// Takes and gives back node blocks after a change of the extents; the inode must be marked as changed.
    ///
    /// # Errors
    /// [`Error::NoSpace`], unless the caller made sure of room; a bitmap that cannot be read.
    pub fn settle(&mut self, inode: &mut Inode) -> Result<()> {
        inode.tree_changed = true;
        let Some(tree) = &mut inode.tree else { return Ok(()) };
        if tree.has_room(0) && !tree.has_nodes() {
            return Ok(());
        }
        let missing = tree.missing_nodes();
        tree.lacks_nodes = missing > 0;
        let near = tree.iter().next().map_or(0, |extent| extent.at);
        for _ in 0..missing {
            let (at, _) = self.take_blocks(Goal { at: near, exact: false }, 1)?;
            self.buffers.forget(at);
            inode.blocks += u64::from(self.geometry.block_bytes / 512);
            inode.tree.iter_mut().for_each(|tree| tree.give_node(at));
        }
        inode.tree.iter_mut().for_each(|tree| tree.lacks_nodes = false);
        let spare = inode.tree.as_mut().map(Extents::spare_nodes).unwrap_or_default();
        for node in spare {
            self.give_node(inode, node)?;
        }
        if let Some(tree) = &mut inode.tree {
            let changed = tree.changed_nodes();
            self.changed_nodes += changed.saturating_sub(tree.counted);
            tree.counted = tree.counted.max(changed);
        }
        Ok(())
    }

    /// Gives a tree the nodes that an earlier error left it without.
    ///
    /// # Errors
    /// As [`Store::settle`]; nothing else has changed.
    pub fn complete_tree(&mut self, inode: &mut Inode) -> Result<()> {
        match &inode.tree {
            Some(tree) if tree.lacks_nodes => self.settle(inode),
            _ => Ok(()),
        }
    }

    /// Gives back a block of an inode's map.
    pub fn give_node(&mut self, inode: &mut Inode, node: u64) -> Result<()> {
        inode.blocks = inode.blocks.saturating_sub(u64::from(self.geometry.block_bytes / 512));
        self.give_blocks(node, 1, true)
    }

    /// Makes sure that the extents of an inode can grow by `extents` and `blocks` more be taken.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn check_growth(&self, tree: &Extents, extents: usize, blocks: u64, claim: Claim) -> Result<()> {
        self.space.check_room(blocks + tree.nodes_to_take(extents) as u64, claim)
    }

    /// Where block `block` of an inode's file would lie best: after the block before it, else in the
    /// inode's group.
    pub fn goal(&self, inode: &mut Inode, block: u32) -> Result<Goal> {
        let (group, _) = self.geometry.group_of_inode(inode.ino);
        let start = self.geometry.group_start(group);
        let tree = self.tree(inode)?;
        Ok(match tree.before(block) {
            Some(extent) if extent.end() == u64::from(block) => {
                Goal { at: extent.at + u64::from(extent.len), exact: true }
            }
            Some(extent) => Goal { at: extent.at + u64::from(block - extent.block), exact: false },
            None => Goal { at: start, exact: false },
        })
    }

    /// Brings `body` and the tree's node blocks up to date.
    ///
    /// # Errors
    /// As [`Store::settle`], if a node that an earlier error left out cannot be had now either.
    pub fn write_tree(&mut self, inode: &mut Inode) -> Result<()> {
        if !inode.tree_changed {
            return Ok(());
        }
        self.complete_tree(inode)?;
        inode.tree_changed = false;
        let Some(mut tree) = inode.tree.take() else { return Ok(()) };
        tree.counted = 0;
        let mut nodes = Vec::new();
        let mut writer = Writer {
            block_bytes: self.geometry.block_bytes,
            seed: self.geometry.features.csum().then_some(inode.seed),
            put: &mut |at, node| nodes.push((at, node)),
        };
        let mut body = [0; BODY_BYTES];
        writer.tree(&mut tree, &mut body);
        inode.body = body;
        inode.tree = Some(tree);
        for (at, node) in nodes {
            self.buffers.put(at, &node);
        }
        Ok(())
    }

    /// The blocks of an internal file (the journal, the orphan file), each of which must be there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one is missing; as [`Store::tree`].
    pub fn blocks_of(&self, inode: &mut Inode, what: &str) -> Result<Vec<u64>> {
        let ino = inode.ino;
        let count = inode.size >> self.geometry.block_bits;
        let bad = |why: &str| Error::corrupt(what, why, format!("inode {ino}"));
        if count > self.geometry.blocks {
            return Err(bad("it is larger than the device"));
        }
        let tree = self.tree(inode)?;
        let mut blocks = Vec::with_capacity(count as usize);
        while (blocks.len() as u64) < count {
            let block = blocks.len() as u32;
            match tree.spot(block) {
                Spot::Extent(extent) if !extent.unwritten => {
                    let skip = u64::from(block - extent.block);
                    let left = (u64::from(extent.len) - skip).min(count - blocks.len() as u64);
                    blocks.extend((extent.at + skip..).take(left as usize));
                }
                _ => return Err(bad("it has a hole")),
            }
        }
        Ok(blocks)
    }
}
