//! A directory's blocks as [`super::dir`] wants them: found by the inode's extents, in the buffer cache.

use super::buffers::Seal;
use super::dir::{self, DirBlocks, DirParams};
use super::extents::{Extent, Spot};
use super::inode::{Inode, flag};
use super::space::{Claim, GRANT};
use super::store::Store;
use bimetal_base::{Error, Result};

/// The first read of a directory's extent, bytes.
const FIRST_READ: u64 = 32 << 10;

/// A directory that is being looked at or changed.
pub(super) struct DirView<'a> {
    store: &'a mut Store,
    inode: &'a mut Inode,
    /// This operation has appended a block already: it may go on into the slack, so as not to stop half way.
    granted: bool,
    /// Checksum seed of the directory's blocks.
    seed: u32,
}

impl<'a> DirView<'a> {
    /// A view for one operation. To change it, the inode must be marked as changed.
    pub fn new(store: &'a mut Store, inode: &'a mut Inode) -> DirView<'a> {
        let seed = inode.seed;
        DirView { store, inode, granted: false, seed }
    }

    /// The buffer of a block, read and checked if need be.
    fn slot(&mut self, n: u32) -> Result<u32> {
        let Spot::Extent(extent) = self.store.tree(self.inode)?.spot(n) else {
            return Err(Error::corrupt("a directory", "it has a hole", self.place(n)));
        };
        if extent.unwritten {
            return Err(Error::corrupt("a directory", "a block was never written", self.place(n)));
        }
        let at = extent.at + u64::from(n - extent.block);
        let bounds = extent.at..extent.at + u64::from(extent.len);
        let slot = self.store.buffers.load_among(
            at,
            &bounds,
            (FIRST_READ >> self.store.geometry.block_bits).max(1),
        )?;
        if !self.store.buffers.is_checked(slot) {
            if self.store.dirs.checksums {
                dir::verify(self.store.buffers.bytes(slot), self.seed, self.place(n))?;
            }
            self.store.buffers.set_checked(slot);
        }
        Ok(slot)
    }

    fn append_block(&mut self) -> Result<u32> {
        let n = self.count();
        if n == u32::MAX || n >= 1 << (31 - self.store.geometry.block_bits) && !self.store.dirs.large_dir {
            return Err(Error::NoSpace("the directory can hold no more names"));
        }
        if !self.granted {
            self.store.space.check_room(GRANT, Claim::Ordinary)?;
            self.granted = true;
        }
        let goal = self.store.goal(self.inode, n)?;
        let (at, _) = self.store.take_blocks(goal, 1)?;
        let tree = self.store.tree_mut(self.inode)?;
        tree.insert(Extent::new(n, at, 1, false));
        self.store.settle(self.inode)?;
        self.store.buffers.blank(at, Seal::Dir(self.seed));
        self.inode.size += u64::from(self.store.geometry.block_bytes);
        self.inode.blocks += u64::from(self.store.geometry.block_bytes / 512);
        Ok(n)
    }
}

impl DirBlocks for DirView<'_> {
    fn params(&self) -> DirParams {
        self.store.dirs
    }

    fn block_bytes(&self) -> usize {
        self.store.buffers.block_bytes()
    }

    fn count(&self) -> u32 {
        (self.inode.size >> self.store.geometry.block_bits) as u32
    }

    fn read(&mut self, n: u32) -> Result<&[u8]> {
        let slot = self.slot(n)?;
        Ok(self.store.buffers.bytes(slot))
    }

    fn edit(&mut self, n: u32) -> Result<&mut [u8]> {
        let slot = self.slot(n)?;
        Ok(self.store.buffers.edit(slot, Seal::Dir(self.seed)))
    }

    fn append(&mut self) -> Result<u32> {
        self.append_block()
    }

    fn indexed(&self) -> bool {
        self.inode.has(flag::INDEX)
    }

    fn set_indexed(&mut self, on: bool) {
        self.inode.flags = if on { self.inode.flags | flag::INDEX } else { self.inode.flags & !flag::INDEX };
    }

    fn place(&self, n: u32) -> String {
        format!("inode {}, directory block {n}", self.inode.ino)
    }
}
