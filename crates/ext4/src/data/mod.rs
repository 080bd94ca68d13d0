//! Where file data lies: looking it up, giving it blocks, taking them away. All in file system blocks.
//!
//! Delayed allocation works in three steps: [`Ext4::reserve`] and [`Ext4::reserve_nodes`] when data is written to memory,
//! [`Ext4::place`] and [`Ext4::unreserve`], [`Ext4::unreserve_nodes`] when it gets its blocks, just before [`Ext4::freeze`].

mod tree;

use super::Ext4;
use super::credits::{PREALLOCATE_RUNS, has_tree};
use super::extents::{EXTENT_MAX, Extent, Spot, UNWRITTEN_MAX};
use super::indirect;
use super::inode::flag;
use super::space::{Claim, SHORT_FILE_BYTES};
use bimetal_base::time::Stamp;
use bimetal_base::units::{DiskBlock, Ino};
use bimetal_base::{Error, Result};
use smallvec::SmallVec;
use std::ops::Range;

/// What is at a block of a file, and for how many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Nothing; reads as zeros.
    Hole {
        /// Blocks.
        len: u32,
    },
    /// Data.
    Data {
        /// First block on the device.
        at: DiskBlock,
        /// Blocks.
        len: u32,
    },
    /// Space without data; reads as zeros.
    Unwritten {
        /// First block on the device.
        at: DiskBlock,
        /// Blocks.
        len: u32,
    },
}

impl Mapping {
    /// Blocks it holds for.
    pub fn blocks(self) -> u64 {
        match self {
            Mapping::Hole { len } | Mapping::Data { len, .. } | Mapping::Unwritten { len, .. } => len.into(),
        }
    }
}

/// A run of blocks that data was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// First block of the file.
    pub block: u64,
    /// First block on the device.
    pub at: DiskBlock,
    /// Blocks.
    pub len: u32,
    /// Nothing on the disk refers to the run as data yet: it may be written in place before the commit. If
    /// not, it holds live data, and its new contents have to go through the journal.
    pub fresh: bool,
}

/// Runs that data was given.
pub type PlacedRuns = SmallVec<[Placed; 4]>;

/// Blocks an operation may change before it lets the caller commit, as a part of what a transaction holds.
pub(super) const STEP_SHARE: usize = 4;

impl Ext4 {
    /// What is at `block`, for at most `max` blocks.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn map(&mut self, ino: Ino, block: u64, max: u32) -> Result<Mapping> {
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        let tree = self.store.mapped_tree(inode)?;
        let Some(first) = u32::try_from(block).ok().filter(|block| *block != u32::MAX) else {
            return Ok(Mapping::Hole { len: max });
        };
        Ok(match tree.spot(first) {
            Spot::Hole(end) => {
                let open_end = end >= u64::from(u32::MAX);
                Mapping::Hole { len: if open_end { max } else { max.min((end - block) as u32) } }
            }
            Spot::Extent(extent) => {
                let at = DiskBlock(extent.at + (block - u64::from(extent.block)));
                let len = max.min((extent.end() - block) as u32);
                match extent.unwritten {
                    true => Mapping::Unwritten { at, len },
                    false => Mapping::Data { at, len },
                }
            }
        })
    }

    /// Promises `blocks` to data that will be placed later, on behalf of an ordinary user. Blocks in
    /// unwritten extents need no promise.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; see [`Ext4::is_room_awaited`].
    pub fn reserve(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        if blocks == 0 {
            return Ok(());
        }
        self.store.space.promise(blocks, self.store.geometry.root_blocks)
    }

    /// As [`Ext4::reserve`], on behalf of root: the blocks kept for root count too.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn reserve_as_root(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        self.store.space.promise(blocks, 0)
    }

    /// As [`Ext4::reserve`], for data that is to move when it is overwritten ([`Ext4::relocate_promised`]): that needs
    /// blocks only for a while, so a part in 16 of the disk must stay free for what has none yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn reserve_to_move(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        self.store.space.promise_to_move(blocks)
    }

    /// Takes back a promise: the data has its place, or is gone.
    pub fn unreserve(&mut self, blocks: u64) {
        self.store.space.unpromise(blocks);
    }

    /// Blocks that the extent tree of a file can come to need for places of `blocks` blocks, one after the other in whatever
    /// order, and for `extents` more extents; `moving`: of data that has places, too. What of the file is cut off or freed
    /// meanwhile does not raise it. A block map of ext2 needs nodes for what it has, too.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn nodes_to_place(&mut self, ino: Ino, blocks: u64, extents: usize, moving: bool) -> Result<u64> {
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        let converted = !inode.has(flag::EXTENTS);
        if !has_tree(inode) || blocks == 0 && extents == 0 {
            return Ok(0);
        }
        let tree = self.store.tree(inode)?;
        let more = tree.extents_to_add(blocks, moving).saturating_add(extents);
        let bare = if converted { tree.missing_nodes() } else { 0 };
        Ok((tree.nodes_to_take(more) + bare) as u64)
    }

    /// Promises `blocks` to extent trees.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; see [`Ext4::is_room_awaited`].
    pub fn reserve_nodes(&mut self, blocks: u64) -> Result<()> {
        self.store.space.promise_nodes(blocks)
    }

    /// Takes back a promise to extent trees.
    pub fn unreserve_nodes(&mut self, blocks: u64) {
        self.store.space.unpromise_nodes(blocks);
    }

    /// The blocks of the extent without data that `block` lies in.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn unwritten_around(&mut self, ino: Ino, block: u64) -> Result<Option<Range<u64>>> {
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        let Ok(block) = u32::try_from(block) else { return Ok(None) };
        Ok(match self.store.mapped_tree(inode)?.spot(block) {
            Spot::Extent(extent) if extent.unwritten => Some(extent.block.into()..extent.end()),
            _ => None,
        })
    }

    /// Gives blocks to `len` blocks of data from `block` on: holes get new ones, unwritten space becomes
    /// data; where all of an unwritten extent does, that takes no node. The blocks taken, and those for the
    /// file's tree, must have been promised, or [`Error::NoSpace`] may come now. The runs are in order and cover the
    /// whole range.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], as [`Ext4::inode_mut`].
    pub fn place(&mut self, ino: Ino, block: u64, len: u32) -> Result<PlacedRuns> {
        let range = block_range(block, u64::from(len))?;
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.place(inode, range.0, range.1)
    }

    /// Gives `len` blocks of data from `block` on new blocks in the place of those they have, in at most `runs`
    /// runs: data that is overwritten as a whole need not travel through the journal then. The old blocks are
    /// free once the next transaction is on the disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], also without such long runs of free blocks; as [`Ext4::inode_mut`]; nothing has
    /// changed then.
    pub fn relocate(&mut self, ino: Ino, block: u64, len: u32, runs: usize) -> Result<PlacedRuns> {
        let range = block_range(block, u64::from(len))?;
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.relocate(inode, range.0, range.1, runs, Claim::Ordinary)
    }

    /// As [`Ext4::relocate`], of data that blocks were promised to ([`Ext4::reserve_to_move`]), in as many runs as
    /// it takes.
    ///
    /// # Errors
    /// As [`Ext4::inode_mut`]; nothing has changed then.
    pub fn relocate_promised(&mut self, ino: Ino, block: u64, len: u32) -> Result<PlacedRuns> {
        let range = block_range(block, u64::from(len))?;
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.relocate(inode, range.0, range.1, usize::MAX, Claim::Promised)
    }

    /// Whether a file is so short, and its map so simple, that overwritten blocks can as well get a new place.
    ///
    /// # Errors
    /// As [`Ext4::inode_mut`].
    pub fn is_short_file(&mut self, ino: Ino) -> Result<bool> {
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        let short = inode.size <= SHORT_FILE_BYTES.into();
        Ok(short && self.store.mapped_tree(inode)?.has_room(2))
    }

    /// Cuts or extends a file. Blocks past the end are freed; the rest of the last block is the caller's
    /// to fill with zeros. `false` means that so much has to be freed that it takes several transactions:
    /// commit and call again. A crash in between does no harm; what is to be written in between must wait
    /// ([`Ext4::is_being_cut`]).
    ///
    /// # Errors
    /// [`Error::TooLarge`]; as [`Ext4::inode_mut`].
    pub fn truncate(&mut self, ino: Ino, size: u64, now: Stamp) -> Result<bool> {
        let slot = self.load_dirty(ino)?;
        let now = self.note_time(now);
        let done = self.resize(slot, size)?;
        let inode = &mut self.inodes.entry(slot).inode;
        (inode.mtime, inode.ctime) = (now, now);
        Ok(done)
    }

    /// Makes sure that a file may have `size` bytes, of which the caller is to tell its inode: a block map that does not reach that
    /// far gives way to extents.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the file system has no extents; [`Error::NoSpace`]; as [`Ext4::inode_mut`].
    pub fn let_reach(&mut self, ino: Ino, size: u64) -> Result<()> {
        let slot = self.load(ino)?;
        let block_bytes = self.block_bytes();
        if !indirect::is_outgrown(&self.inodes.entry(slot).inode, size, block_bytes) {
            return Ok(());
        }
        let slot = self.load_dirty(ino)?;
        self.store.let_reach(&mut self.inodes.entry(slot).inode, size)
    }

    /// Sets the size of a cached inode, marked as changed, and frees what is past it; `false` if not all. Nothing has changed if
    /// it fails.
    pub(super) fn resize(&mut self, slot: u32, size: u64) -> Result<bool> {
        if size > self.size_max() {
            return Err(Error::TooLarge);
        }
        let entry = self.inodes.entry(slot);
        let before = entry.inode.size;
        if size > before {
            // What was cut and is not free yet must not come back.
            if entry.being_cut && !self.resize(slot, before)? {
                return Ok(false);
            }
            let inode = &mut self.inodes.entry(slot).inode;
            self.store.let_reach(inode, size)?;
            // What was reserved past the end stays, as with the kernel's driver.
            inode.size = size;
            self.store.note_size(size);
            return Ok(true);
        }
        self.store.mapped_tree(&mut entry.inode)?;
        let ino = entry.inode.ino;
        self.hold_neighbour(ino)?;
        self.inodes.entry(slot).inode.size = size;
        let freed = self.free_from(slot, size.div_ceil(u64::from(self.block_bytes())));
        let entry = self.inodes.entry(slot);
        let done = freed.inspect_err(|_| entry.inode.size = before)?;
        entry.being_cut = !done;
        self.store.note_size(size);
        match (done, entry.orphan, entry.inode.nlink) {
            (false, false, _) => self.add_orphan(ino)?,
            (true, true, 1..) => self.remove_orphan(ino)?,
            _ => {}
        }
        Ok(done)
    }

    /// Frees the blocks from `from` on, the last ones first; `false` if that was enough for one transaction. So is what was freed
    /// before an error on the way: it comes again with the next step. Nothing has changed if this fails.
    pub(super) fn free_from(&mut self, slot: u32, from: u64) -> Result<bool> {
        let limit = self.dirty_blocks() + self.step_blocks();
        let mut changed = false;
        while self.dirty_blocks() < limit {
            let inode = &mut self.inodes.entry(slot).inode;
            let cut = match inode.has(flag::EXTENTS) {
                true => self.store.cut_last(inode, from),
                false => self.store.cut_block_map(inode, from),
            };
            match cut {
                Ok(false) => return Ok(true),
                Ok(true) => changed = true,
                Err(_) if changed => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Makes a hole of the `len` blocks from `block` on, as far as one step goes: a step ends at a multiple of `unit` blocks of
    /// the file. The answer is the block up to which that is: if it is not the end, go on from there with credits of its own.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the map has to grow and cannot, [`Error::Corrupt`] if it leads to free blocks; as
    /// [`Ext4::inode_mut`]. What comes after a part is done ends the step early, and comes again with the next.
    pub fn punch(&mut self, ino: Ino, block: u64, len: u64, unit: u64) -> Result<u64> {
        let (from, to) = clip(block, len);
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        let tree = self.store.tree_mut(inode)?;
        self.store.check_growth(tree, 1, 0, Claim::Promised)?;
        let limit = self.dirty_blocks() + self.step_blocks();
        let mut at = u64::from(from);
        while at < to {
            if at > u64::from(from) && self.dirty_blocks() >= limit {
                return Ok(at);
            }
            let inode = &mut self.inodes.entry(slot).inode;
            let end = self.store.tree(inode)?.spot(at as u32).end().next_multiple_of(unit).min(to);
            match self.store.punch_whole(inode, at as u32, end) {
                // What was done so far is a step.
                Err(_) if at > u64::from(from) => return Ok(at),
                done => done?,
            }
            at = end;
        }
        Ok(block.saturating_add(len))
    }

    /// Blocks that have no place among the `len` blocks from `block` on.
    ///
    /// # Errors
    /// [`Error::TooLarge`], as [`Ext4::inode`].
    pub fn holes_in(&mut self, ino: Ino, block: u64, len: u64) -> Result<u64> {
        let (from, to) = block_range(block, len)?;
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        let holes = self.store.holes(inode, from, to)?;
        Ok(holes.iter().map(|(from, to)| to - u64::from(*from)).sum())
    }

    /// Gives space without data to the holes among the `len` blocks from `block` on, as far as one step goes. The
    /// answer is the block up to which that is: if it is not the end, go on from there with credits of its own. `promised`
    /// blocks of the range were promised before; the promise of those that have their place now is to be taken back. So were
    /// nodes for as many extents as there are holes, [`PREALLOCATE_RUNS`] at most.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is not enough for all of it, [`Error::TooLarge`], as [`Ext4::inode_mut`]; this step
    /// has changed nothing then.
    pub fn preallocate(&mut self, ino: Ino, block: u64, len: u64, promised: u64) -> Result<u64> {
        let (from, to) = block_range(block, len)?;
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        let mut holes = self.store.holes(inode, from, to)?;
        let blocks: u64 = holes.iter().map(|(from, to)| to - u64::from(*from)).sum();
        self.store.space.check_data(blocks.saturating_sub(promised), self.store.geometry.root_blocks)?;
        let later = holes.get(PREALLOCATE_RUNS).map_or(to, |hole| hole.0.into());
        holes.truncate(PREALLOCATE_RUNS);
        let found = self.store.take_for(
            inode,
            &holes,
            (UNWRITTEN_MAX, PREALLOCATE_RUNS),
            Some((Claim::Promised, 0)),
        )?;
        self.store.add(inode, &found, true)?;
        let wanted: u64 = holes.iter().map(|(from, to)| to - u64::from(*from)).sum();
        let taken: u64 = found.iter().map(|extent| u64::from(extent.len)).sum();
        Ok(match found.last() {
            Some(last) if taken < wanted => last.end(),
            _ => later,
        })
    }

    /// The first block at or after `block` that holds data.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn next_data(&mut self, ino: Ino, block: u64) -> Result<Option<u64>> {
        let mut at = block;
        loop {
            match self.map(ino, at, u32::MAX)? {
                Mapping::Data { .. } => return Ok(Some(at)),
                Mapping::Unwritten { len, .. } | Mapping::Hole { len } => at += u64::from(len),
            }
            if at >= u64::from(u32::MAX) {
                return Ok(None);
            }
        }
    }
}

/// The range as block numbers of a file.
fn block_range(block: u64, len: u64) -> Result<(u32, u64)> {
    let end = block.checked_add(len).filter(|end| *end <= u64::from(u32::MAX)).ok_or(Error::TooLarge)?;
    Ok((block as u32, end))
}

/// The part of a range that a file can have.
fn clip(block: u64, len: u64) -> (u32, u64) {
    let max = u64::from(u32::MAX);
    (block.min(max) as u32, block.saturating_add(len).min(max))
}
