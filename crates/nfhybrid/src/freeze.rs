//! The freeze, the first step of a commit cycle: under the lock, delayed data gets its disk blocks, dirty frames become
//! immutable, dirty metadata is copied, and the operation number is stamped. No device is read or written.
//!
//! New data is written in place: nothing refers to its blocks yet. Data that overwrites live blocks travels through the
//! journal, or gets new blocks where that costs the disk less; `credits` accounted for either.
//!
//! Cost: a walk of the dirty frames and of the changed blocks of metadata; see "What the lock is held for" in
//! docs/DESIGN.md.

use super::Shared;
use super::core::Core;
use super::cycle::Work;
use super::frames::{Frozen, runs};
use super::frozen::{Cycle, FrozenFrames};
use super::node::Node;
use super::place::Placement;
use bimetal_base::units::{DiskBlock, Ino};
use bimetal_base::{Error, Result};
use bimetal_ext4::{Placed, PlacedRuns};
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;

/// Live data that is overwritten in a stretch of at least so many bytes gets a new place on the disk.
pub(super) const RELOCATE_BYTES: u64 = 1 << 20;

/// The stretches of blocks, before block `end`, that frames of `per_frame` blocks are to have on the disk.
fn covered_blocks(frozen: &FrozenFrames, per_frame: u64, end: u64) -> SmallVec<[Range<u64>; 2]> {
    let mut stretches = SmallVec::<[Range<u64>; 2]>::new();
    for (&index, frame) in frozen {
        for within in (0..per_frame).filter(|within| frame.covers() >> within & 1 == 1) {
            let block = index * per_frame + within;
            match stretches.last_mut() {
                _ if block >= end => break,
                Some(last) if last.end == block => last.end += 1,
                _ => stretches.push(block..block + 1),
            }
        }
    }
    stretches
}

/// Where the frozen frames go.
#[derive(Default)]
struct Files {
    /// Device offset and contents of blocks written in place on the disk.
    ordered: Vec<(u64, Bytes)>,
    /// Blocks that travel through the journal.
    journaled: Vec<(DiskBlock, Bytes)>,
    /// What goes to the SSD.
    placements: Vec<Placement>,
    /// Blocks the transaction may have.
    limit: u64,
}

impl Shared {
    /// Step 1.
    pub(super) fn freeze(&self) -> Result<Work> {
        let mut core = self.core.lock();
        // What goes to the SSD's log with a commit is no part of the operation before it. While the log is run again, numbers are
        // those of what is run.
        let has_contents = !core.dirty.files().is_empty() && core.ssd.is_some() && !core.state.ssd_is_fixed();
        let op = if has_contents { core.number_contents() } else { core.ops.last() };
        let account = core.journal_need();
        let mut files = Files { limit: self.journal_limit(&core), ..Files::default() };
        let began = core.dirty.take();
        let carried = core.promised.take_carried();
        core.cycle = Some(Cycle::new(&began, carried, self.clock.now()));
        for ino in began.files {
            self.freeze_file(&mut core, ino, &mut files)?;
        }
        let pairing = self.pairing_of(&core, op);
        core.ext4.note_written(files.ordered.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        let mut frozen = core.ext4.freeze(self.clock.wall(), Some(&pairing.encode()))?;
        frozen.transaction.metadata.append(&mut files.journaled);
        let images = frozen.transaction.metadata.len() as u64;
        // Live data that gets a new place changes more than it was accounted for, within what the journal takes.
        let most = account.max(files.limit).max(1);
        debug_assert!(images <= most, "{images} images, {account} accounted for, {} allowed", files.limit);
        core.cycle.iter_mut().for_each(|cycle| cycle.set_images(images));
        core.counters.cycles += 1;
        let Files { ordered, placements, .. } = files;
        Ok(Work { op, frozen, ordered, placements, pairing })
    }

    fn freeze_file(&self, core: &mut Core, ino: Ino, files: &mut Files) -> Result<()> {
        let Some(taken) = core.nodes.get_mut(ino).and_then(Node::take) else {
            core.tie_needs(ino);
            core.nodes.drop_if_idle(ino);
            return Ok(());
        };
        let stale = self.stale_copies(core, ino, &taken.frames);
        let size = core.ext4.inode(ino).map_or(0, |inode| inode.size);
        let placed = self.place_frozen(core, ino, &taken.frames, files);
        core.tie_needs(ino);
        core.ext4.unreserve(taken.reserved);
        // Whatever failed: what is in the cycle can be read.
        if let Some(cycle) = &mut core.cycle {
            cycle.take_in(ino, size, taken, stale);
        }
        core.nodes.drop_if_idle(ino);
        placed
    }

    /// Stretches of frozen frames of which the SSD has older contents.
    fn stale_copies(&self, core: &Core, ino: Ino, frozen: &FrozenFrames) -> Vec<(u64, u64)> {
        let Some(ssd) = &core.ssd else { return Vec::new() };
        let unplaced = frozen.iter().filter(|(_, frame)| !frame.known().placed).map(|(&index, _)| index);
        let older = |&(first, count): &(u64, u64)| {
            let (from, len) = self.ssd_range(&(first..first + count));
            ssd.is_any_resident(ino, from, len)
        };
        runs(unplaced).filter(older).collect()
    }

    /// Gives a file's frozen frames their places on both halves.
    fn place_frozen(
        &self,
        core: &mut Core,
        ino: Ino,
        frozen: &FrozenFrames,
        files: &mut Files,
    ) -> Result<()> {
        self.place_on_disk(core, ino, frozen, files)?;
        if let Some(section) = core.policy(ino).section.filter(|_| !core.state.ssd_is_fixed()) {
            let unplaced = frozen.iter().filter(|(_, frame)| !frame.known().placed);
            let unplaced = unplaced.map(|(&index, frame)| (index, frame.bytes().clone())).collect();
            files.placements.extend(self.room_for(core, section, ino, unplaced));
        }
        Ok(())
    }

    /// Gives a file's frozen frames their disk blocks: new ones are written in place, live ones journaled.
    fn place_on_disk(
        &self,
        core: &mut Core,
        ino: Ino,
        frozen: &FrozenFrames,
        files: &mut Files,
    ) -> Result<()> {
        let block_bytes = self.disk_block_bytes as u64;
        let per_frame = self.blocks_per_frame;
        let end = core.ext4.inode(ino)?.size.div_ceil(block_bytes);
        let slice = |block: u64| -> Option<Bytes> {
            let within = (block % per_frame * block_bytes) as usize;
            Some(frozen.get(&(block / per_frame))?.bytes().slice(within..within + block_bytes as usize))
        };
        for Range { start, end } in covered_blocks(frozen, per_frame, end) {
            let moves = |block: u64| frozen.get(&(block / per_frame)).is_some_and(Frozen::moves);
            for placed in self.place_run(core, ino, start, (end - start) as u32, moves, files)? {
                for number in 0..u64::from(placed.len) {
                    let Some(bytes) = slice(placed.block + number) else { continue };
                    let at = DiskBlock(placed.at.0 + number);
                    match placed.fresh {
                        true => files.ordered.push((at.0 * block_bytes, bytes)),
                        false => files.journaled.push((at, bytes)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a run of a file's data its disk blocks. Long stretches of live data, and those of short files, get new
    /// ones: written in place, they cost the disk one write, through the journal two; and short ones then lie beside
    /// what else the cycle writes.
    /// `moves` says of a block whether it was promised a new place, and so does not count towards the journal.
    fn place_run(
        &self,
        core: &mut Core,
        ino: Ino,
        start: u64,
        len: u32,
        moves: impl Fn(u64) -> bool,
        files: &Files,
    ) -> Result<PlacedRuns> {
        let long = (RELOCATE_BYTES / self.disk_block_bytes as u64) as u32;
        let mut runs = PlacedRuns::new();
        for placed in core.ext4.place(ino, start, len)? {
            let mut pieces = (placed.len / long) as usize;
            if !placed.fresh && pieces == 0 && core.ext4.is_short_file(ino)? {
                pieces = 1;
            }
            if placed.fresh {
                runs.push(placed);
                continue;
            }
            if pieces == 0 || !self.fits_to_move(core, ino, placed.len, files)? {
                self.move_promised(core, ino, placed, &moves, &mut runs)?;
                continue;
            }
            // Each of the new extents, and what is left of the old one at both ends.
            let promised = core.promise_growth(ino, 2 * pieces + 2);
            match promised.and_then(|()| core.ext4.relocate(ino, placed.block, placed.len, pieces)) {
                Ok(new) => {
                    core.counters.relocated_bytes += u64::from(placed.len) * self.disk_block_bytes as u64;
                    runs.extend(new);
                }
                Err(Error::NoSpace(_)) => self.move_promised(core, ino, placed, &moves, &mut runs)?,
                Err(error) => return Err(error),
            }
        }
        Ok(runs)
    }

    /// Whether the transaction has room for what a new place for live data changes, beside all else.
    fn fits_to_move(&self, core: &mut Core, ino: Ino, len: u32, files: &Files) -> Result<bool> {
        let change = core.ext4.tree_change(ino, len.into())?;
        let change = change.nodes + core.ext4.group_blocks(change.places);
        Ok(core.journal_need() + files.journaled.len() as u64 + change <= files.limit)
    }

    /// Live data without a long run of free blocks: what was promised new places gets them one by one, the rest goes
    /// through the journal.
    fn move_promised(
        &self,
        core: &mut Core,
        ino: Ino,
        placed: Placed,
        moves: &impl Fn(u64) -> bool,
        runs: &mut PlacedRuns,
    ) -> Result<()> {
        let mut at = 0;
        while at < placed.len {
            let block = |number: u32| placed.block + u64::from(number);
            let moving = moves(block(at));
            let len = (at..placed.len).take_while(|number| moves(block(*number)) == moving).count() as u32;
            let from = DiskBlock(placed.at.0 + u64::from(at));
            let stays = Placed { block: block(at), at: from, len, fresh: false };
            at += len;
            if !moving {
                runs.push(stays);
                continue;
            }
            match core.ext4.relocate_promised(ino, stays.block, len) {
                Ok(new) => {
                    core.counters.relocated_bytes += u64::from(len) * self.disk_block_bytes as u64;
                    runs.extend(new);
                }
                Err(Error::NoSpace(_)) => runs.push(stays),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
