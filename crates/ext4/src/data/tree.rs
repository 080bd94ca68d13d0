//! The blocks of one file's tree: which are missing, where new ones come from, what is taken out.

use super::{EXTENT_MAX, Extent, Placed, PlacedRuns, Spot};
use crate::extents::Extents;
use crate::inode::{Inode, flag};
use crate::space::{Claim, Goal, SHORT_FILE_BYTES};
use crate::store::Store;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_vfs::Kind;
use smallvec::SmallVec;

/// Extents a search for blocks came back with.
type Found = SmallVec<[Extent; 4]>;

impl Store {
    /// The extents of an inode that can have some.
    pub(super) fn mapped_tree<'i>(&self, inode: &'i mut Inode) -> Result<&'i mut Extents> {
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
    pub(super) fn holes(&self, inode: &mut Inode, from: u32, to: u64) -> Result<SmallVec<[(u32, u64); 4]>> {
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

    /// Takes blocks for holes, in runs of at most `most`; all or nothing, but no more than `runs` of them. Unless nodes for the
    /// file's tree were promised, `growth` says what they may use up, and how many extents more are to be added.
    pub(super) fn take_for(
        &mut self,
        inode: &mut Inode,
        holes: &[(u32, u64)],
        (most, runs): (u32, usize),
        growth: Option<(Claim, usize)>,
    ) -> Result<Found> {
        let mut found = Found::new();
        let taken = self.take_all(inode, holes, (most, runs), &mut found);
        let sectors = found.iter().map(|extent| u64::from(extent.len)).sum::<u64>()
            * u64::from(self.geometry.block_bytes / 512);
        let fits = self.geometry.features.huge_file() || inode.blocks + sectors <= u64::from(u32::MAX);
        let result = match (taken, fits, &inode.tree, growth) {
            (Ok(()), true, Some(tree), Some((claim, more))) => {
                self.check_growth(tree, found.len() + more, 0, claim)
            }
            (Ok(()), false, ..) => Err(Error::TooLarge),
            (taken, ..) => taken,
        };
        if let Err(error) = result {
            self.give_found(&found)?;
            return Err(error);
        }
        Ok(found)
    }

    pub(super) fn give_found(&mut self, found: &[Extent]) -> Result<()> {
        found.iter().try_for_each(|extent| self.give_blocks(extent.at, u32::from(extent.len), false))
    }

    pub(super) fn take_all(
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
                    true => self.space.take_for_short(&self.buffers, goal, want)?,
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
    pub(super) fn is_short(&self, to: u64) -> bool {
        to.saturating_mul(self.geometry.block_bytes.into()) <= SHORT_FILE_BYTES.into()
    }

    /// Puts blocks that were taken into an inode's map.
    pub(super) fn add(&mut self, inode: &mut Inode, found: &[Extent], unwritten: bool) -> Result<()> {
        let tree = self.tree_mut(inode)?;
        let mut blocks = 0;
        for extent in found {
            tree.insert(Extent { unwritten, ..*extent });
            blocks += u64::from(extent.len);
        }
        inode.blocks += blocks * u64::from(self.geometry.block_bytes / 512);
        self.settle(inode)
    }

    pub(super) fn place(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<PlacedRuns> {
        if self.mapped_tree(inode)?.is_written(from, to) {
            return self.runs(inode, from, to, &[]);
        }
        self.tree_mut(inode)?;
        let holes = self.holes(inode, from, to)?;
        let found = self.take_for(inode, &holes, (EXTENT_MAX, usize::MAX), None)?;
        let runs = self.runs(inode, from, to, &found)?;
        self.add(inode, &found, false)?;
        self.tree(inode)?.write(from, to);
        self.settle(inode)?;
        Ok(runs)
    }

    pub(super) fn relocate(
        &mut self,
        inode: &mut Inode,
        from: u32,
        to: u64,
        runs: usize,
        claim: Claim,
    ) -> Result<PlacedRuns> {
        self.mapped_tree(inode)?;
        self.tree_mut(inode)?;
        self.check_cut(inode, from, to)?;
        self.space.check_room(to - u64::from(from), claim)?;
        let growth = (claim == Claim::Ordinary).then_some((claim, 1));
        let found = self.take_for(inode, &[(from, to)], (EXTENT_MAX, usize::MAX), growth)?;
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
    pub(super) fn runs(&self, inode: &mut Inode, from: u32, to: u64, found: &[Extent]) -> Result<PlacedRuns> {
        let tree = self.tree(inode)?;
        let (mut at, mut found, mut runs) = (u64::from(from), found.iter(), PlacedRuns::new());
        while at < to {
            let (extent, known) = match tree.spot(at as u32) {
                Spot::Extent(extent) => (extent, !extent.unwritten),
                Spot::Hole(_) => (*found.next().expect("blocks for every hole"), false),
            };
            let start = extent.at + (at - u64::from(extent.block));
            let len = (extent.end().min(to) - at) as u32;
            let (len, fresh) = if known { self.space.fresh_run(start, len) } else { (len, true) };
            runs.push(Placed { block: at, at: DiskBlock(start), len, fresh });
            at += u64::from(len);
        }
        Ok(runs)
    }

    /// Makes sure that a run of blocks is marked as taken, so that giving it back cannot fail half-way.
    ///
    /// # Errors
    /// A bitmap that cannot be read or is wrong, [`Error::Corrupt`].
    pub fn check_taken(&mut self, at: u64, len: u32) -> Result<()> {
        self.space.check_taken(&self.buffers, at, len)
    }

    /// Makes sure that cutting `from..to` cannot fail half-way.
    ///
    /// # Errors
    /// As [`Store::check_taken`].
    fn check_cut(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<()> {
        self.complete_tree(inode)?;
        let mut at = u64::from(from);
        while at < to {
            at = match self.tree(inode)?.spot(at as u32) {
                Spot::Hole(end) => end,
                Spot::Extent(extent) => {
                    let end = extent.end().min(to);
                    self.check_taken(extent.at + (at - u64::from(extent.block)), (end - at) as u32)?;
                    end
                }
            };
        }
        let nodes: SmallVec<[u64; 8]> = self.tree(inode)?.nodes_around(from, to).collect();
        nodes.into_iter().try_for_each(|node| self.check_taken(node, 1))
    }

    /// Makes a hole of `from..to`: all of it, or nothing has changed.
    ///
    /// # Errors
    /// As [`Store::check_taken`].
    pub(super) fn punch_whole(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<()> {
        self.check_cut(inode, from, to)?;
        self.cut_blocks(inode, from, to)?;
        if let Err(error) = self.settle(inode) {
            tracing::warn!(ino = %inode.ino, %error, "a node for what is left of a file is to be found by the commit");
        }
        Ok(())
    }

    /// Removes the last extent, as far as it lies at or after block `from`; `false` if there is none. Nothing has changed if it
    /// fails.
    pub(super) fn cut_last(&mut self, inode: &mut Inode, from: u64) -> Result<bool> {
        let Some(last) = self.tree(inode)?.last().filter(|last| last.end() > from) else {
            return Ok(false);
        };
        let first = from.max(u64::from(last.block)) as u32;
        self.complete_tree(inode)?;
        self.check_taken(last.at + u64::from(first - last.block), (last.end() - u64::from(first)) as u32)?;
        let nodes: SmallVec<[u64; 8]> = self.tree(inode)?.nodes_at_end().collect();
        nodes.into_iter().try_for_each(|node| self.check_taken(node, 1))?;
        self.cut(inode, first, last.end())?;
        Ok(true)
    }

    /// Removes a range from an inode's map in memory and gives back its blocks; an extent tree is settled, too.
    pub fn cut(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<()> {
        self.cut_blocks(inode, from, to)?;
        if inode.has(flag::EXTENTS) { self.settle(inode) } else { Ok(()) }
    }

    fn cut_blocks(&mut self, inode: &mut Inode, from: u32, to: u64) -> Result<()> {
        let buffered = inode.kind() != Kind::File;
        let mut gone: SmallVec<[(u64, u32); 4]> = SmallVec::new();
        self.tree(inode)?.cut(from, to, |at, len| gone.push((at, len)));
        for (at, len) in gone {
            inode.blocks =
                inode.blocks.saturating_sub(u64::from(len) * u64::from(self.geometry.block_bytes / 512));
            self.give_blocks(at, len, buffered)?;
        }
        Ok(())
    }
}
