//! Giving files space and taking it: sizes, holes, space reserved ahead. What takes more than one transaction goes in steps.
//!
//! Invariant: what can fail comes before anything has changed, and a part of a frame is zeroed in a frame that was made
//! dirty before.

use super::Shared;
use super::aftermath::Touched;
use super::core::Core;
use super::credits::Credits;
use super::frames::{FRAME, Frame, blocks_within};
use super::node::Dropped;
use super::partial::{frames_in_part, has_data};
use super::read::STRETCHES_MAX;
use super::record::{Record, fallocate_code, when};
use super::unlogged::unlogged_bytes;
use super::write::{Reach, frame_from, frame_of};
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Mapping, PREALLOCATE_RUNS};
use bimetal_vfs::{Fallocate, Seek};
use std::ops::Range;

/// What is to be zeroed cannot have its blocks.
const UNPLACED: Error = Error::NoSpace("no room for what the range lacks, or is to have beside what it has");

impl Shared {
    /// Sets a file's size: drops what lies past it, zeroes the rest of its last frame. `false`: so many blocks
    /// have to be freed that it takes several transactions; commit and call again.
    pub(super) fn set_size(&self, core: &mut Core, ino: Ino, size: u64, now: Stamp) -> Result<bool> {
        let old = core.inode_of_file(ino)?.size;
        if size > core.ext4.size_max() {
            return Err(Error::TooLarge);
        }
        let rest = size..frame_from(size) * FRAME as u64;
        // What can fail comes before anything has changed.
        let held = size < old && self.hold(core, ino, &rest)?;
        core.node_of(ino).moves();
        let done = core.ext4.truncate(ino, size, now)?;
        if held {
            self.blank(core, ino, &rest);
        }
        if size < old {
            self.drop_frames(core, ino, frame_from(size)..u64::MAX);
            self.end_frame(core, ino, size)?;
        }
        if size == 0 && old > 0 {
            core.carry(ino);
        }
        core.record(&Record::Truncate { ino: ino.0, size, old, at: when(now) });
        Ok(done)
    }

    /// As [`Shared::admitted`], to change what a file holds: once nothing of it is left that was cut.
    pub(super) fn admitted_whole(
        &self,
        ino: Ino,
        need: impl Fn(&mut Core) -> Result<Credits>,
    ) -> Result<MutexGuard<'_, Core>> {
        loop {
            let mut core = self.admitted(ino, &need)?;
            if !core.ext4.is_being_cut(ino)? {
                return Ok(core);
            }
            drop(core);
            self.finish_cut(ino)?;
        }
    }

    /// Frees what is left of what was cut off a file, in steps with credits of their own. Nobody changes what it holds before that.
    pub(super) fn finish_cut(&self, ino: Ino) -> Result<()> {
        loop {
            let mut core = self.admitted(ino, |core| self.credits_to_cut(core, ino, 0))?;
            if !core.ext4.is_being_cut(ino)? {
                return Ok(());
            }
            core.begin();
            core.ext4.finish_cut(ino)?;
            self.wake_if_due(&mut core);
        }
    }

    /// Credits for a step of setting a file's size.
    pub(super) fn credits_to_cut(&self, core: &mut Core, ino: Ino, size: u64) -> Result<Credits> {
        let blocks = core.ext4.credits_to_resize(ino, size)?
            + core.ext4.credits_to_overwrite(ino, self.blocks_per_frame)?;
        // The end is filled with zeros.
        Ok(Credits { bytes: FRAME as u64, ..Credits::blocks(blocks) })
    }

    /// Makes the frame around a range inside it dirty, with its contents as they are, to be [`blank`](Shared::blank)ed.
    /// `false`: there is nothing to blank.
    fn hold(&self, core: &mut Core, ino: Ino, range: &Range<u64>) -> Result<bool> {
        if range.is_empty() || !has_data(self, core, ino, frame_of(range.start))? {
            return Ok(false);
        }
        let index = frame_of(range.start);
        self.make_dirty(core, ino, index..index + 1, None, Reach { blocks: &|_| 0, file: 0 })?;
        Ok(true)
    }

    /// Zeroes a range inside a frame that is dirty.
    fn blank(&self, core: &mut Core, ino: Ino, range: &Range<u64>) {
        let index = frame_of(range.start);
        let node = core.node_of(ino);
        node.changed();
        if let Some((_, frame)) = node.frames_mut(index..index + 1).next() {
            let start = (range.start - index * FRAME as u64) as usize;
            let end = (range.end - index * FRAME as u64) as usize;
            frame.bytes_mut()[start..end].fill(0);
        }
        core.dirty.add(FRAME as u64);
    }

    /// A file that was cut ends at byte `size`: a dirty frame it ends in has places as far as that, and no further.
    fn end_frame(&self, core: &mut Core, ino: Ino, size: u64) -> Result<()> {
        let index = frame_of(size);
        let first = index * self.blocks_per_frame;
        let end = size.div_ceil(self.disk_block_bytes as u64);
        let covers = core.node_of(ino).frames().get(&index).map_or(0, Frame::covers);
        let kept = blocks_within(first, self.blocks_per_frame, &(first..end));
        if covers & !kept == 0 {
            return Ok(());
        }
        let (mut holes, mut data) = (0, 0);
        for within in (0..self.blocks_per_frame).filter(|within| (covers & kept) >> within & 1 == 1) {
            match core.ext4.map(ino, first + within, 1)? {
                Mapping::Hole { .. } => holes += 1,
                Mapping::Data { .. } => data += 1,
                Mapping::Unwritten { .. } => {}
            }
        }
        let dropped = core.node_of(ino).end_at(index, kept, holes, data);
        self.need_less(core, ino, dropped);
        Ok(())
    }

    /// What was promised to dirty data is not needed any more.
    fn need_less(&self, core: &mut Core, ino: Ino, dropped: Dropped) {
        core.ext4.unreserve(dropped.reserved);
        let node = core.node_of(ino);
        let mut needs = node.needs();
        needs.overwrites -= dropped.live;
        needs.placing -= dropped.placing;
        if node.frames().is_empty() {
            (needs.filled, needs.moving) = (0, false);
        }
        // If it cannot be worked out, what was noted is more than enough.
        let _ = core.set_needs(ino, needs);
    }

    /// Forgets frames in memory, in the cycle under way and on the SSD.
    pub(super) fn drop_frames(&self, core: &mut Core, ino: Ino, frames: Range<u64>) {
        let dropped = core.node_of(ino).cut(&frames);
        self.need_less(core, ino, dropped);
        if let Some(cycle) = &mut core.cycle {
            cycle.forget(ino, frames.clone());
        }
        self.drop_copies(core, ino, frames);
    }

    /// Forgets what the SSD has of frames, for the operation about to be recorded.
    pub(super) fn drop_copies(&self, core: &mut Core, ino: Ino, frames: Range<u64>) {
        let op = core.ops.last() + 1;
        if core.state.ssd_is_fixed() {
            core.aftermath.touch(Touched { ino, frames, before: op });
        } else if let Some(ssd) = &mut core.ssd {
            self.unbind(ssd, op, ino, frames);
        }
    }

    /// See [`bimetal_vfs::FileSystem::fallocate`]. What takes more than one transaction is done in steps, each an
    /// operation of its own.
    pub(super) fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
        if len == 0 {
            return Err(Error::BadArgument);
        }
        self.warm(&mut self.ready(|core| core.look_at_data(ino)), ino, &frames_in_part(offset, end));
        let mut at = offset;
        while at < end {
            let step = self.with_room(|| {
                let mut core = self.admitted_whole(ino, |core| self.credits_to_allocate(core, ino, what))?;
                if end > core.ext4.size_max() {
                    return Err(Error::TooLarge);
                }
                core.check_fallocate(ino, what)?;
                if !matches!(what, Fallocate::Reserve { .. }) && self.would_lose_copies(&core, ino, at..end) {
                    // Once the disk has it, too, nothing is lost.
                    let op = core.ops.last();
                    drop(core);
                    self.await_disk(op)?;
                    return Ok(at);
                }
                let now = core.wall();
                let reached = self.allocate_range(&mut core, ino, at..end, what, now)?;
                self.wake_if_due(&mut core);
                Ok(reached)
            });
            at = match (step, what) {
                (Err(Error::NoSpace(_)), Fallocate::Zero { keep_size }) => {
                    return self.zero_in_place(ino, at..end, keep_size);
                }
                (step, _) => step?,
            };
        }
        Ok(())
    }

    /// Whether the SSD's table has no room to forget its copies of a range without those around it, which the disk lacks.
    fn would_lose_copies(&self, core: &Core, ino: Ino, bytes: Range<u64>) -> bool {
        let (from, len) = self.ssd_range(&(frame_from(bytes.start)..frame_of(bytes.end)));
        len > 0 && core.ssd.as_ref().is_some_and(|ssd| ssd.would_lose(ino, from, len))
    }

    /// Zeroes a range on a disk without room for new blocks, where it has its blocks already: by overwriting what holds data,
    /// which takes none. What was reserved reads as zeros, and stays so.
    fn zero_in_place(&self, ino: Ino, bytes: Range<u64>, keep_size: bool) -> Result<()> {
        if self.lacks_blocks(ino, &bytes)? {
            return Err(UNPLACED);
        }
        let size = self.core.lock().inode_of_file(ino)?.size;
        if !keep_size {
            self.write_zeros(ino, bytes.start.max(size)..bytes.end)?;
        }
        let end = bytes.end.min(size);
        let mut at = bytes.start;
        while at < end {
            at = match self.seek(ino, at, Seek::Data) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Error::NoOffset) => break,
                Err(error) => return Err(error),
            };
            let hole = self.seek(ino, at, Seek::Hole)?.min(end);
            self.write_zeros(ino, at..hole)?;
            at = hole;
        }
        Ok(())
    }

    fn write_zeros(&self, ino: Ino, bytes: Range<u64>) -> Result<()> {
        let zeros = vec![0; (1 << 20).min(bytes.end.saturating_sub(bytes.start)) as usize];
        let mut at = bytes.start;
        while at < bytes.end {
            let part = zeros.len().min((bytes.end - at) as usize);
            at += match self.write_waiting(ino, at, &zeros[..part], false)? {
                0 => return Err(UNPLACED),
                written => written as u64,
            };
        }
        Ok(())
    }

    /// Whether any block of a range has no place on the disk and is not promised one.
    fn lacks_blocks(&self, ino: Ino, bytes: &Range<u64>) -> Result<bool> {
        let block_bytes = self.disk_block_bytes as u64;
        let (mut block, end) = (bytes.start / block_bytes, bytes.end.div_ceil(block_bytes));
        while block < end {
            let (_core, lacks) = self.look(|core| {
                core.look_at_data(ino)?;
                for _ in 0..STRETCHES_MAX {
                    let frame = block / self.blocks_per_frame;
                    let dirty = core.nodes.get(ino).and_then(|node| node.frames().get(&frame));
                    let within = block % self.blocks_per_frame;
                    if dirty.is_some_and(|dirty| dirty.covers() >> within & 1 == 1) {
                        block += 1;
                    } else {
                        match core.ext4.map(ino, block, u32::MAX)? {
                            Mapping::Hole { .. } => return Ok(true),
                            mapping => block += mapping.blocks().max(1),
                        }
                    }
                    if block >= end {
                        break;
                    }
                }
                Ok(false)
            })?;
            if lacks {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Credits for a step of giving a range of a file space, or taking it.
    pub(super) fn credits_to_allocate(&self, core: &mut Core, ino: Ino, what: Fallocate) -> Result<Credits> {
        let mut blocks = 0;
        if what != Fallocate::Punch {
            blocks += core.ext4.credits_to_preallocate(ino)?;
        }
        if !matches!(what, Fallocate::Reserve { .. }) {
            let edges = core.ext4.credits_for_data(ino, 2 * self.blocks_per_frame)?;
            blocks += edges + core.ext4.credits_to_free(ino)?;
        }
        Ok(Credits { bytes: 2 * FRAME as u64, ..Credits::blocks(blocks) })
    }

    /// Blocks that are set aside for a range before anything of it changes: what is punched is not free before the next
    /// commit, and the tree may take some of what is.
    fn blocks_aside(&self, bytes: &Range<u64>, what: Fallocate) -> u64 {
        let block_bytes = self.disk_block_bytes as u64;
        match what {
            Fallocate::Zero { .. } => bytes.end.div_ceil(block_bytes) - bytes.start / block_bytes,
            // The first step of a reservation looks at all of it.
            Fallocate::Reserve { .. } | Fallocate::Punch => 0,
        }
    }

    /// The work of `fallocate`, also for recovery, as far as one step goes: the byte up to which that is.
    pub(super) fn allocate_range(
        &self,
        core: &mut Core,
        ino: Ino,
        bytes: Range<u64>,
        what: Fallocate,
        now: Stamp,
    ) -> Result<u64> {
        core.inode_of_file(ino)?;
        let extents = self.extents_to_allocate(core, ino, &bytes, what)?;
        core.grown(ino, extents, |core| {
            // Beside what its tree was promised now.
            let aside = self.blocks_aside(&bytes, what);
            core.ext4.reserve(aside)?;
            let done = self.allocate_promised(core, ino, bytes, what, aside, now);
            core.ext4.unreserve(aside);
            done
        })
    }

    fn allocate_promised(
        &self,
        core: &mut Core,
        ino: Ino,
        bytes: Range<u64>,
        what: Fallocate,
        aside: u64,
        now: Stamp,
    ) -> Result<u64> {
        let old = core.inode_of_file(ino)?.size;
        let mut reached = bytes.end;
        if !matches!(what, Fallocate::Reserve { .. }) {
            let unlogged = unlogged_bytes(core, ino);
            reached = self.clear_range(core, ino, bytes.clone())?;
            if unlogged_bytes(core, ino) < unlogged {
                // What went said how long the file is.
                core.carry(ino);
            }
        }
        if what != Fallocate::Punch {
            let block_bytes = FRAME as u64 / self.blocks_per_frame;
            let first = bytes.start / block_bytes;
            let last = reached.div_ceil(block_bytes);
            let per_frame = self.blocks_per_frame;
            let promised = core.node_of(ino).promised_in(&(first..last), per_frame);
            let to = core.ext4.preallocate(ino, first, last - first, promised + aside)?;
            let placed = core.node_of(ino).placed_in(&(first..to), per_frame);
            core.ext4.unreserve(placed);
            if to < last {
                reached = to * block_bytes;
            }
        }
        let grows =
            matches!(what, Fallocate::Reserve { keep_size: false } | Fallocate::Zero { keep_size: false });
        let size = if grows { old.max(reached) } else { old };
        if grows {
            // Its end is not known without what came before.
            core.carry(ino);
        }
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = size;
        inode.mtime = now;
        inode.ctime = now;
        let (offset, len) = (bytes.start, reached - bytes.start);
        let what = fallocate_code(what);
        core.record(&Record::Fallocate { ino: ino.0, what, offset, len, size, at: when(now) });
        Ok(reached)
    }

    /// Extents that one step of `fallocate` adds to the file's at most.
    fn extents_to_allocate(
        &self,
        core: &mut Core,
        ino: Ino,
        bytes: &Range<u64>,
        what: Fallocate,
    ) -> Result<usize> {
        let block_bytes = self.disk_block_bytes as u64;
        let (first, last) = (bytes.start / block_bytes, bytes.end.div_ceil(block_bytes));
        let hole = usize::from(!matches!(what, Fallocate::Reserve { .. }));
        let places = match what {
            Fallocate::Punch => 0,
            Fallocate::Zero { .. } => last - first,
            Fallocate::Reserve { .. } => core.ext4.holes_in(ino, first, last - first)?,
        };
        if places > 0 && core.node_of(ino).needs().filled > 0 {
            // It would go on in an extent that is to become data as a whole.
            return Err(Error::NoSpace("no room for more before what the file has is on the disk"));
        }
        Ok(hole + places.min(PREALLOCATE_RUNS as u64) as usize)
    }

    /// Makes a range read as zeros and frees its whole blocks, as far as one step goes: the byte up to which that is.
    pub(super) fn clear_range(&self, core: &mut Core, ino: Ino, bytes: Range<u64>) -> Result<u64> {
        let first = frame_from(bytes.start);
        let last = frame_of(bytes.end);
        // What can fail comes before anything has changed.
        let (head, tail) = match first > last {
            true => (bytes.clone(), bytes.end..bytes.end),
            false => (bytes.start..first * FRAME as u64, last * FRAME as u64..bytes.end),
        };
        let holds = (self.hold(core, ino, &head)?, self.hold(core, ino, &tail)?);
        let mut reached = last;
        if first < last {
            let per_frame = self.blocks_per_frame;
            core.node_of(ino).moves();
            // No frame keeps a part of its blocks.
            let to = core.ext4.punch(ino, first * per_frame, (last - first) * per_frame, per_frame)?;
            reached = (to / per_frame).clamp(first, last);
            self.drop_frames(core, ino, first..reached);
        }
        if holds.0 {
            self.blank(core, ino, &head);
        }
        if first <= last && reached < last {
            return Ok(reached * FRAME as u64);
        }
        if holds.1 {
            self.blank(core, ino, &tail);
        }
        Ok(bytes.end)
    }
}
