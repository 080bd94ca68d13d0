//! The block map of ext2 and ext3 files: twelve block numbers in the inode, then blocks of numbers, blocks
//! of those, and blocks of those again. It is read and cut from its end, which takes no room and may stop between any
//! two steps; such a file gets extents when its map changes in another way.
//!
//! Source: `Documentation/filesystems/ext4/ifork.rst` of Linux. A map that points back into itself is found
//! out because no file may have more blocks than its inode counts.

use crate::buffers::Seal;
use crate::extents::{EXTENT_MAX, Extent, Extents};
use crate::inode::{Inode, flag};
use crate::le::{get32, put32};
use crate::space::Claim;
use crate::store::Store;
use bimetal_base::{Error, Result};

const DIRECT: usize = 12;
/// Pointers in the inode.
const ROOTS: usize = DIRECT + 3;

/// Levels of nodes under a pointer in the inode.
fn depth_of(index: usize) -> u32 {
    index.saturating_sub(DIRECT - 1) as u32
}

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

/// Where a pointer stands.
#[derive(Clone, Copy)]
struct Place {
    /// The node, or the inode itself.
    node: Option<u64>,
    index: usize,
}

/// What a map has last.
enum Last {
    /// Pointers to data up to block `end` of the file, in a place that stands for its blocks from `first` on.
    Data { node: Option<u64>, first: u64, end: u64 },
    /// A node without any pointer, which stands for the file's blocks from `start` on.
    Empty { node: u64, place: Place, start: u64 },
}

/// Whether a file has a block map that does not reach as far as `size` bytes.
pub(super) fn is_outgrown(inode: &Inode, size: u64, block_bytes: u32) -> bool {
    !inode.has(flag::EXTENTS) && size > size_max(block_bytes)
}

/// The size that a file with a block map can have at most, bytes.
fn size_max(block_bytes: u32) -> u64 {
    let per_node = u64::from(block_bytes / 4);
    let blocks: u64 = (0..ROOTS).map(|index| per_node.pow(depth_of(index))).sum();
    blocks.min(u64::from(u32::MAX)) * u64::from(block_bytes)
}

impl Store {
    /// Makes sure that a file may have `size` bytes: one with a block map that does not reach that far gets extents.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the file system has no extents; [`Error::NoSpace`], [`Error::Corrupt`]; what reading says.
    pub fn let_reach(&mut self, inode: &mut Inode, size: u64) -> Result<()> {
        if !is_outgrown(inode, size, self.geometry.block_bytes) {
            return Ok(());
        }
        if !self.geometry.features.extents() {
            return Err(Error::TooLarge);
        }
        let nodes = self.tree(inode)?.missing_nodes() as u64;
        self.space.check_room(nodes, Claim::Ordinary)?;
        self.tree_mut(inode).map(drop)
    }

    /// Takes off the end of a block map what one node of it holds at or after block `from` of the file, or a node that holds
    /// nothing: at most one extent of data. `false` if there was nothing. Nothing has changed if it fails.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the map is not what it was when it was read, or blocks of it are marked as free; what reading says.
    pub fn cut_block_map(&mut self, inode: &mut Inode, from: u64) -> Result<bool> {
        let last = self.tree(inode)?.last();
        let changed =
            |ino| Error::corrupt("a block map", "it changed since it was read", format!("inode {ino}"));
        match self.last_of_map(inode, from)? {
            None if last.is_some_and(|last| last.end() > from) => Err(changed(inode.ino)),
            None => Ok(false),
            Some(Last::Empty { node, place, start }) => {
                if inode.legacy.last() != Some(&node) || last.is_some_and(|last| last.end() > start) {
                    return Err(changed(inode.ino));
                }
                self.check_taken(node, 1)?;
                self.clear_pointers(inode, place, 1)?;
                inode.legacy.pop();
                self.give_node(inode, node)?;
                Ok(true)
            }
            Some(Last::Data { node, first, end }) => {
                let last = last.filter(|last| last.end() == end).ok_or_else(|| changed(inode.ino))?;
                let start = from.max(first).max(last.block.into());
                let (at, count) = (last.at + (start - u64::from(last.block)), (end - start) as u32);
                let place = Place { node, index: (start - first) as usize };
                if !self.leads_to(inode, place, at, count)? {
                    return Err(changed(inode.ino));
                }
                self.check_taken(at, count)?;
                self.clear_pointers(inode, place, count as usize)?;
                self.cut(inode, start as u32, end)?;
                Ok(true)
            }
        }
    }

    /// Whether so many pointers from a place on lead to the blocks from `at` on.
    fn leads_to(&mut self, inode: &Inode, place: Place, at: u64, count: u32) -> Result<bool> {
        let bytes = match place.node {
            None => &inode.body[..],
            Some(node) => {
                let slot = self.buffers.load(node)?;
                self.buffers.bytes(slot)
            }
        };
        let pointers = bytes.chunks_exact(4).skip(place.index).take(count as usize);
        Ok(pointers.map(|pointer| u64::from(get32(pointer, 0))).eq(at..at + u64::from(count)))
    }

    fn clear_pointers(&mut self, inode: &mut Inode, place: Place, count: usize) -> Result<()> {
        let bytes = match place.node {
            None => &mut inode.body[..],
            Some(node) => {
                let slot = self.buffers.load(node)?;
                self.buffers.edit(slot, Seal::Plain)
            }
        };
        (place.index..place.index + count).for_each(|index| put32(bytes, index * 4, 0));
        Ok(())
    }

    /// What the map in an inode has last, at or after block `from` of the file.
    fn last_of_map(&mut self, inode: &Inode, from: u64) -> Result<Option<Last>> {
        let per_node = u64::from(self.geometry.block_bytes / 4);
        let mut end: u64 = (0..ROOTS).map(|index| per_node.pow(depth_of(index))).sum();
        for index in (0..ROOTS).rev() {
            let depth = depth_of(index);
            let start = end - per_node.pow(depth);
            let at = u64::from(get32(&inode.body, index * 4));
            if end <= from {
                break;
            }
            end = start;
            if at == 0 {
                continue;
            }
            if depth == 0 {
                return Ok(Some(Last::Data { node: None, first: 0, end: index as u64 + 1 }));
            }
            let place = Place { node: None, index };
            if let Some(last) = self.last_under(at, depth, start, place, from)? {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// The same of a node with `depth` levels of nodes, itself the highest.
    fn last_under(
        &mut self,
        node: u64,
        depth: u32,
        start: u64,
        place: Place,
        from: u64,
    ) -> Result<Option<Last>> {
        let slot = self.buffers.load(node)?;
        let bytes = self.buffers.bytes(slot);
        let span = (bytes.len() as u64 / 4).pow(depth - 1);
        let Some(index) = bytes.chunks_exact(4).rposition(|pointer| get32(pointer, 0) != 0) else {
            return Ok((start >= from).then_some(Last::Empty { node, place, start }));
        };
        let child = u64::from(get32(bytes, index * 4));
        let first = start + index as u64 * span;
        if first + span <= from {
            return Ok(None);
        }
        if depth == 1 {
            return Ok(Some(Last::Data { node: Some(node), first: start, end: first + 1 }));
        }
        self.last_under(child, depth - 1, first, Place { node: Some(node), index }, from)
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
        let depth = depth_of(index);
        walk.pointer(u64::from(get32(pointer, 0)), depth, block)?;
        block += per_node.pow(depth);
    }
    if let Some(run) = walk.run.take() {
        walk.extents.insert(run);
    }
    walk.extents.check_apart(&walk.nodes).map_err(|at| {
        let why = "two pointers lead to one block";
        Error::corrupt("a block map", why, format!("inode {ino}, block {at}"))
    })?;
    Ok((walk.extents, walk.nodes))
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
