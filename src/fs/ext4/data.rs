//! Where file data lies: looking it up, giving it blocks, taking them away. All in file system blocks.
//!
//! Delayed allocation works in three steps: [`Ext4::reserve`] when data is written to memory,
//! [`Ext4::place`] and [`Ext4::unreserve`] when it gets its blocks, just before [`Ext4::freeze`].

use super::Ext4;
use super::credits::PREALLOCATE_RUNS;
use super::extents::{EXTENT_MAX, Extent, Spot, UNWRITTEN_MAX};
use super::inode::{Inode, flag};
use super::space::{Claim, Goal, SHORT_FILE_BYTES};
use super::store::Store;
use crate::fs::Kind;
use crate::time::Stamp;
use crate::units::{DiskBlock, Ino};
use crate::{Error, Result};
use smallvec::SmallVec;

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
    /// unwritten extents need no promise, but one for each keeps a full disk from refusing their place.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; see [`Ext4::held_blocks`].
    pub fn reserve(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        if blocks == 0 {
            return Ok(());
        }
        self.store.promise(blocks, self.store.geometry.root_blocks)
    }

    /// As [`Ext4::reserve`], on behalf of root: the blocks kept for root count too.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn reserve_as_root(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        self.store.promise(blocks, 0)
    }

    /// As [`Ext4::reserve`], for data that is to move when it is overwritten ([`Ext4::relocate_promised`]): that needs
    /// blocks only for a while, so a part in 16 of the disk must stay free for what has none yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn reserve_to_move(&mut self, blocks: u64) -> Result<()> {
        self.store.check_writable()?;
        let keep = self.store.geometry.root_blocks + self.store.geometry.blocks / 16;
        self.store.promise(blocks, keep)
    }

    /// Takes back a promise: the data has its place, or is gone.
    pub fn unreserve(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.store.count.promised, "more is taken back than was promised");
        self.store.count.promised = self.store.count.promised.saturating_sub(blocks);
    }

    /// Gives blocks to `len` blocks of data from `block` on: holes get new ones, unwritten space becomes
    /// data. The blocks taken must have been promised, or [`Error::NoSpace`] may come now. The runs are in
    /// order and cover the whole range.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], as [`Ext4::inode_mut`]; nothing has changed then.
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
    /// commit and call again, with the inode out of everybody's reach. A crash in between does no harm.
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

    /// Sets the size of a cached inode, marked as changed, and frees what is past it; `false` if not all.
    pub(super) fn resize(&mut self, slot: u32, size: u64) -> Result<bool> {
        if size > self.size_max() {
            return Err(Error::TooLarge);
        }
        let step = self.step_blocks();
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        self.store.tree_mut(inode)?;
        let ino = inode.ino;
        let kept = size.div_ceil(u64::from(self.store.geometry.block_bytes));
        self.store.maps_to_cut(inode, kept, step)?;
        inode.size = size;
        self.store.note_size(size);
        let done = self.free_from(slot, size.div_ceil(u64::from(self.block_bytes())))?;
        let entry = self.inodes.entry(slot);
        match (done, entry.orphan, entry.inode.nlink) {
            (false, false, _) => self.add_orphan(ino)?,
            (true, true, 1..) => self.remove_orphan(ino)?,
            _ => {}
        }
        Ok(done)
    }

    /// Frees the blocks from `from` on, the last ones first; `false` if that was enough for one transaction.
    pub(super) fn free_from(&mut self, slot: u32, from: u64) -> Result<bool> {
        let limit = self.dirty_blocks() + self.step_blocks();
        while self.dirty_blocks() < limit {
            let inode = &mut self.inodes.entry(slot).inode;
            let Some(last) = self.store.tree(inode)?.last().filter(|last| last.end() > from) else {
                return Ok(true);
            };
            let first = from.max(u64::from(last.block)) as u32;
            self.store.cut(inode, first, last.end())?;
        }
        Ok(false)
    }

    /// Makes a hole of the `len` blocks from `block` on, as far as one step goes. The answer is the block up to
    /// which that is: if it is not the end, go on from there with credits of its own.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the map has to grow and cannot; as [`Ext4::inode_mut`].
    pub fn punch(&mut self, ino: Ino, block: u64, len: u64) -> Result<u64> {
        let (from, to) = clip(block, len);
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        let tree = self.store.tree_mut(inode)?;
        self.store.check_growth(tree, 1, 0, Claim::Promised)?;
        let limit = self.dirty_blocks() + self.step_blocks();
        let mut at = u64::from(from);
        while at < to {
            if self.dirty_blocks() >= limit {
                return Ok(at);
            }
            let inode = &mut self.inodes.entry(slot).inode;
            match self.store.tree(inode)?.spot(at as u32) {
                Spot::Hole(end) => at = end,
                Spot::Extent(extent) => {
                    let end = extent.end().min(to);
                    self.store.maps_of(extent.at, extent.len.into())?;
                    let inode = &mut self.inodes.entry(slot).inode;
                    self.store.cut(inode, at as u32, end)?;
                    at = end;
                }
            }
        }
        Ok(block.saturating_add(len))
    }

    /// Gives space without data to the holes among the `len` blocks from `block` on, as far as one step goes. The
    /// answer is the block up to which that is: if it is not the end, go on from there with credits of its own.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is not enough for all of it, [`Error::TooLarge`], as [`Ext4::inode_mut`]; this step
    /// has changed nothing then.
    pub fn preallocate(&mut self, ino: Ino, block: u64, len: u64) -> Result<u64> {
        let (from, to) = block_range(block, len)?;
        let slot = self.load_dirty(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        self.store.mapped_tree(inode)?;
        let mut holes = self.store.holes(inode, from, to)?;
        let blocks = holes.iter().map(|(from, to)| to - u64::from(*from)).sum();
        self.store.check_room(blocks, Claim::Ordinary)?;
        let later = holes.get(PREALLOCATE_RUNS).map_or(to, |hole| hole.0.into());
        holes.truncate(PREALLOCATE_RUNS);
        let found = self.store.take_for(inode, &holes, UNWRITTEN_MAX, PREALLOCATE_RUNS)?;
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

    /// The first block at or after `block` that holds no data.
    ///
    /// # Errors
    /// As [`Ext4::inode`].
    pub fn next_hole(&mut self, ino: Ino, block: u64) -> Result<u64> {
        let mut at = block;
        while let Mapping::Data { len, .. } = self.map(ino, at, u32::MAX)? {
            at += u64::from(len);
        }
        Ok(at)
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

/// Extents a search for blocks came back with.
type Found = SmallVec<[Extent; 4]>;

impl Store {
    /// The extents of an inode that can have some.
    fn mapped_tree<'i>(&self, inode: &'i mut Inode) -> Result<&'i mut super::extents::Extents> {
        match inode.kind() {
            Kind::File | Kind::Dir => self.tree(inode),
            Kind::Symlink if !inode.is_fast_link() => self.tree(inode),
            _ => Err(Error::BadArgument),
        }
    }

    /// Notes that a file of `size` bytes exists.
    pub fn note_size(&mut self, size: u64) {
        if size >= 1 << 31 {
            self.sb.set_large_file();
        }
    }

    /// The holes in `from..to`.
    fn holes(&self, inode: &mut Inode, from: u32, to: u64) -> Result<SmallVec<[(u32, u64); 4]>> {
        let tree = self.tree(inode)?;
        let (mut at, mut holes) = (u64::from(from), SmallVec::new());
        while at < to {
            match tree.spot(at as u32) {
                Spot::Extent(extent) => at = extent.end(),
                Spot::Hole(end) => {
                    holes.push((at as u32, end.min(to)));
                    at = end;
                }
            }
        }
        Ok(holes)
    }

    /// Takes blocks for holes, in runs of at most `most`; all or nothing, but no more than `runs` of them.
    fn take_for(&mut self, inode: &mut Inode, holes: &[(u32, u64)], most: u32, runs: usize) -> Result<Found> {
        let mut found = Found::new();
        let taken = self.take_all(inode, holes, (most, runs), &mut found);
        let sectors = found.iter().map(|extent| u64::from(extent.len)).sum::<u64>()
            * u64::from(self.geometry.block_bytes / 512);
        let fits = self.geometry.features.huge_file() || inode.blocks + sectors <= u64::from(u32::MAX);
        let growth = |tree| self.check_growth(tree, found.len() + 2, 0, Claim::Promised);
        let result = match (taken, fits, &inode.tree) {
            (Ok(()), true, Some(tree)) => growth(tree),
            (Ok(()), false, _) => Err(Error::TooLarge),
            (taken, ..) => taken,
        };
        if let Err(error) = result {
            self.give_found(&found)?;
            return Err(error);
        }
        Ok(found)
    }

    fn give_found(&mut self, found: &[Extent]) -> Result<()> {
        found.iter().try_for_each(|extent| self.give_blocks(extent.at, u32::from(extent.len), false))
    }

    fn take_all(
        &mut self,
        inode: &mut Inode,
        holes: &[(u32, u64)],
        (most, runs): (u32, usize),
        found: &mut Found,
    ) -> Result<()> {
        for (from, to) in holes {
            let mut block = *from;
            let mut goal = self.goal(inode, block)?;
            while u64::from(block) < *to {
                if found.len() >= runs {
                    return Ok(());
                }
                let want = (*to - u64::from(block)).min(u64::from(most.min(EXTENT_MAX))) as u32;
                let (at, len) = match self.is_short(*to) {
                    true => self.take_for_short(goal, want)?,
                    false => self.take_blocks(goal, want)?,
                };
                found.push(Extent::new(block, at, len, false));
                block += len;
                goal = Goal { at: at + u64::from(len), exact: true };
            }
        }
        Ok(())
    }

    /// Whether a file that reaches up to block `to` is a short one.
    fn is_short(&self, to: u64) -> bool {
        to.saturating_mul(self.geometry.block_bytes.into()) <= SHORT_FILE_BYTES.into()
    }

    /// Puts blocks that were taken into an inode's map.
    fn add(&mut self, inode: &mut Inode, found: &[Extent], unwritten: bool) -> Result<()> {
        let tree = self.tree_mut(inode)?;
        let mut blocks = 0;
        for extent in found {
            tree.insert(Extent { unwritten, ..*extent });
            blocks += u64::from(extent.len);
        }
        inode.blocks += blocks * u64::from(self.geometry.block_bytes / 512);
        self.settle(inode)
    }

    fn place(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<PlacedRuns> {
        self.mapped_tree(inode)?;
        let tree = self.tree_mut(inode)?;
        if tree.is_written(from, to) {
            return self.runs(inode, from, to, &[]);
        }
        let holes = self.holes(inode, from, to)?;
        let found = self.take_for(inode, &holes, EXTENT_MAX, usize::MAX)?;
        let runs = self.runs(inode, from, to, &found)?;
        self.add(inode, &found, false)?;
        self.tree(inode)?.write(from, to);
        self.settle(inode)?;
        Ok(runs)
    }

    fn relocate(
        &mut self,
        inode: &mut Inode,
        from: u32,
        to: u64,
        runs: usize,
        claim: Claim,
    ) -> Result<PlacedRuns> {
        self.mapped_tree(inode)?;
        self.tree_mut(inode)?;
        self.check_room(to - u64::from(from), claim)?;
        let found = self.take_for(inode, &[(from, to)], EXTENT_MAX, usize::MAX)?;
        if found.len() > runs {
            self.give_found(&found)?;
            return Err(Error::NoSpace("no long run of free blocks"));
        }
        self.cut(inode, from, to)?;
        self.add(inode, &found, false)?;
        let run = |extent: &Extent| Placed {
            block: extent.block.into(),
            at: DiskBlock(extent.at),
            len: extent.len.into(),
            fresh: true,
        };
        Ok(found.iter().map(run).collect())
    }

    /// The runs of a range: what the map says, and what was just found for its holes.
    fn runs(&self, inode: &mut Inode, from: u32, to: u64, found: &[Extent]) -> Result<PlacedRuns> {
        let tree = self.tree(inode)?;
        let (mut at, mut found, mut runs) = (u64::from(from), found.iter(), PlacedRuns::new());
        while at < to {
            let (extent, known) = match tree.spot(at as u32) {
                Spot::Extent(extent) => (extent, !extent.unwritten),
                Spot::Hole(_) => (*found.next().expect("blocks for every hole"), false),
            };
            let start = extent.at + (at - u64::from(extent.block));
            let len = (extent.end().min(to) - at) as u32;
            let (len, fresh) = if known { self.fresh_run(start, len) } else { (len, true) };
            runs.push(Placed { block: at, at: DiskBlock(start), len, fresh });
            at += u64::from(len);
        }
        Ok(runs)
    }

    /// Reads the bitmaps that giving back the blocks of a range changes, so that it cannot fail half-way; those of the
    /// last extents first, of so many at most.
    fn maps_to_cut(&mut self, inode: &mut Inode, from: u64, most: usize) -> Result<()> {
        let tree = self.tree(inode)?;
        let mut runs: SmallVec<[(u64, u32); 16]> = SmallVec::new();
        let mut next = tree.last();
        while let Some(extent) = next.filter(|extent| extent.end() > from && runs.len() < most) {
            next = tree.before(extent.block);
            runs.push((extent.at, extent.len.into()));
        }
        runs.into_iter().try_for_each(|(at, len)| self.maps_of(at, len))
    }

    /// Reads the bitmaps of the groups that a run of blocks lies in.
    fn maps_of(&mut self, at: u64, len: u32) -> Result<()> {
        let (first, _) = self.geometry.group_of(at);
        let (last, _) = self.geometry.group_of(at + u64::from(len) - 1);
        (first..=last).try_for_each(|group| self.block_map(group).map(drop))
    }

    /// Removes a range from an inode's map and gives back its blocks.
    pub fn cut(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<()> {
        let buffered = inode.kind() != Kind::File;
        let mut gone: SmallVec<[(u64, u32); 4]> = SmallVec::new();
        self.tree(inode)?.cut(from, to, |at, len| gone.push((at, len)));
        for (at, len) in gone {
            inode.blocks =
                inode.blocks.saturating_sub(u64::from(len) * u64::from(self.geometry.block_bytes / 512));
            self.give_blocks(at, len, buffered)?;
        }
        if inode.has(flag::EXTENTS) { self.settle(inode) } else { Ok(()) }
    }
}
