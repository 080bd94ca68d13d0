//! The block map of ext2 and ext3 files: twelve block numbers in the inode, then blocks of numbers, blocks
//! of those, and blocks of those again. Read only: such a file gets extents when its map first changes.
//!
//! Source: `Documentation/filesystems/ext4/ifork.rst` of Linux. A map that points back into itself is found
//! out because no file may have more blocks than its inode counts.

use super::extents::{EXTENT_MAX, Extent, Extents};
use super::le::get32;
use super::store::Store;
use bimetal_base::{Error, Result};

const DIRECT: usize = 12;

/// A map as it is read.
struct Walk<'a> {
    store: &'a Store,
    ino: u64,
    extents: Extents,
    /// Blocks of numbers.
    nodes: Vec<u64>,
    /// Blocks of the file that may still come.
    left: u64,
    /// The extent that is being put together.
    run: Option<Extent>,
}

impl Walk<'_> {
    fn check(&mut self, at: u64) -> Result<()> {
        let bad =
            |why: &str| Err(Error::corrupt("a block map", why, format!("inode {}, block {at}", self.ino)));
        if !self.store.space.may_hold_data(at, 1) {
            return bad("it points outside the file area");
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return bad("it has more blocks than the inode counts"),
        }
        Ok(())
    }

    fn data(&mut self, block: u64, at: u64) -> Result<()> {
        self.check(at)?;
        let Ok(block) = u32::try_from(block) else {
            return Err(Error::corrupt(
                "a block map",
                "it passes 2^32 blocks",
                format!("inode {}", self.ino),
            ));
        };
        match &mut self.run {
            Some(run)
                if run.end() == u64::from(block)
                    && run.at + u64::from(run.len) == at
                    && u32::from(run.len) < EXTENT_MAX =>
            {
                run.len += 1;
            }
            run => {
                if let Some(done) = run.replace(Extent::new(block, at, 1, false)) {
                    self.extents.insert(done);
                }
            }
        }
        Ok(())
    }

    /// A pointer of `depth` levels of pointer blocks, standing for the file's blocks from `block` on.
    fn pointer(&mut self, at: u64, depth: u32, block: u64) -> Result<()> {
        if at == 0 {
            return Ok(());
        }
        if depth == 0 {
            return self.data(block, at);
        }
        self.check(at)?;
        self.nodes.push(at);
        let node = self.store.buffers.fetch(at)?;
        let span = (node.len() as u64 / 4).pow(depth - 1);
        for (index, pointer) in node.chunks_exact(4).enumerate() {
            self.pointer(u64::from(get32(pointer, 0)), depth - 1, block + index as u64 * span)?;
        }
        Ok(())
    }
}

/// Reads the map in `body`; `sectors` is what the inode counts. The answer is the file's extents and the
/// blocks the map itself is in.
///
/// # Errors
/// [`Error::Corrupt`]; what reading says.
pub(super) fn read(
    store: &Store,
    ino: u64,
    body: &[u8],
    sectors: u64,
    node_entries: u16,
) -> Result<(Extents, Vec<u64>)> {
    let left = (sectors / u64::from(store.geometry.block_bytes / 512)).min(store.geometry.blocks);
    let extents = Extents::new(node_entries);
    let mut walk = Walk { store, ino, extents, nodes: Vec::new(), left, run: None };
    let per_node = u64::from(store.geometry.block_bytes / 4);
    let mut block = 0;
    for (index, pointer) in body.chunks_exact(4).enumerate() {
        let depth = index.saturating_sub(DIRECT - 1) as u32;
        walk.pointer(u64::from(get32(pointer, 0)), depth, block)?;
        block += per_node.pow(depth);
    }
    if let Some(run) = walk.run.take() {
        walk.extents.insert(run);
    }
    Ok((walk.extents, walk.nodes))
}
