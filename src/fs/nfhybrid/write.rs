//! Changing file contents: into dirty frames, with the disk's space promised at once and given out at the freeze.
//! A write that finds its credits waits for no device except to read the rest of a frame that is only partly
//! written; one that does not is copied and waits where that hurts nobody.

use super::core::{Core, Node};
use super::credits::{Credits, Needs};
use super::cycle::RELOCATE_BYTES;
use super::frames::{FRAME, Frame};
use super::mount::Touched;
use super::record::{Record, fallocate_code, when};
use super::{Shared, read};
use crate::fs::ext4::Mapping;
use crate::fs::{Fallocate, Later};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Frames by which a write may begin before the end of the stretch it goes on: one write of the kernel's.
const SWAPPED_FRAMES: u64 = 256;

/// Frame that holds byte `offset`.
pub fn frame_of(offset: u64) -> u64 {
    offset / FRAME as u64
}

/// First frame that lies wholly at or after byte `offset`.
pub fn frame_from(offset: u64) -> u64 {
    offset.div_ceil(FRAME as u64)
}

impl Shared {
    /// See [`crate::fs::FileSystem::write`].
    pub(super) fn write(
        self: &Arc<Shared>,
        ino: Ino,
        offset: u64,
        data: &[u8],
        kill_suid: bool,
    ) -> Result<Later<usize>> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
        let mut core = self.ready(|core| core.look_at_data(ino));
        core.writable()?;
        core.check_write(ino, offset, end)?;
        if data.is_empty() {
            return Ok(Later::Now(0));
        }
        let need = self.credits_to_write(&mut core, ino, offset, data.len())?;
        if data.len() <= self.part_bytes() && self.has_credits(&core, ino, &need) {
            match self.write_part(&mut core, ino, offset, data, kill_suid) {
                Err(Error::NoSpace(_)) => {}
                done => return done.map(|()| Later::Now(data.len())),
            }
        }
        drop(core);
        let (shared, data) = (self.clone(), data.to_vec());
        Ok(Later::Wait(Box::new(move || shared.write_waiting(ino, offset, &data, kill_suid))))
    }

    /// Writes in parts, each with credits of its own. The answer is how much was written before the disk was full.
    fn write_waiting(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<usize> {
        let mut done = 0;
        let mut part = self.part_bytes();
        while done < data.len() {
            let at = offset + done as u64;
            let len = part_at(at, part).min(data.len() - done);
            match self.write_admitted(ino, at, &data[done..done + len], kill_suid) {
                Ok(()) => done += len,
                Err(Error::NoSpace(_) | Error::Unsupported { .. })
                    if part > FRAME && len > part_at(at, FRAME) =>
                {
                    part = (part / 2).next_multiple_of(FRAME);
                }
                Err(Error::NoSpace(_)) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_admitted(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<()> {
        self.with_room(|| {
            let credits = |core: &mut Core| self.credits_to_write(core, ino, offset, data.len());
            let mut core = self.admitted(ino, credits)?;
            core.check_write(ino, offset, offset + data.len() as u64)?;
            self.write_part(&mut core, ino, offset, data, kill_suid)
        })
    }

    /// Bytes that one operation brings at most.
    pub(super) fn part_bytes(&self) -> usize {
        let by_lag = usize::try_from(self.lag.bytes / 8).unwrap_or(usize::MAX);
        let by_journal = self.transaction_limit() as usize / 4 * self.disk_block_bytes;
        (by_lag.min(by_journal) / FRAME).max(1) * FRAME
    }

    fn credits_to_write(&self, core: &mut Core, ino: Ino, offset: u64, len: usize) -> Result<Credits> {
        let frames = frame_from(offset + len as u64) - frame_of(offset);
        let journal = core.ext4.credits_for_data(ino, frames * self.blocks_per_frame)?;
        Ok(Credits { journal, bytes: len as u64, records: 0 })
    }

    /// The work of a write that has its credits.
    fn write_part(&self, core: &mut Core, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<()> {
        let now = core.clock.wall();
        self.put(core, ino, offset, data)?;
        core.begin();
        core.dirty.bytes += data.len() as u64;
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = inode.size.max(offset + data.len() as u64);
        inode.mtime = now;
        inode.ctime = now;
        if kill_suid {
            inode.mode = without_suid(inode.mode);
        }
        self.wake_if_due(core);
        Ok(())
    }

    /// Copies `data` into the file's frames, all or nothing.
    pub(super) fn put(&self, core: &mut Core, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let last = frame_from(offset + data.len() as u64);
        self.make_dirty(core, ino, frame_of(offset)..last, Some(offset..offset + data.len() as u64))?;
        self.plan_to_move(core, ino, frame_of(offset)..last);
        let node = core.node_of(ino);
        node.version += 1;
        let mut done = 0;
        for (&index, frame) in node.frames.range_mut(frame_of(offset)..last) {
            let start = (offset.saturating_sub(index * FRAME as u64)) as usize;
            let len = (FRAME - start).min(data.len() - done);
            frame.bytes_mut()[start..start + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        debug_assert_eq!(done, data.len());
        Ok(())
    }

    /// Makes a range of frames dirty with their present contents, promising disk blocks for what has none.
    ///
    /// `overwritten` is a range of bytes the caller is about to set: what lies in it need not be read.
    pub(super) fn make_dirty(
        &self,
        core: &mut Core,
        ino: Ino,
        frames: Range<u64>,
        overwritten: Option<Range<u64>>,
    ) -> Result<()> {
        core.node_of(ino).touch(&frames);
        let missing = self.promise(core, ino, frames)?;
        let reserved = missing.iter().map(|(_, blocks)| u64::from(blocks.reserved)).sum();
        let made = self.fill_frames(core, ino, &missing, overwritten);
        if made.is_err() {
            core.ext4.unreserve(reserved);
            return made;
        }
        core.node_of(ino).reserved += reserved;
        core.list_dirty(ino);
        Ok(())
    }

    /// The frames of the range that are not dirty yet, with what blocks each has and needs; those are promised.
    fn promise(&self, core: &mut Core, ino: Ino, frames: Range<u64>) -> Result<FrameList> {
        let per_frame = self.blocks_per_frame;
        let mut missing = FrameList::new();
        let node = core.node_of(ino);
        let absent = frames.filter(|index| !node.frames.contains_key(index));
        missing.extend(absent.map(|index| (index, Blocks::default())));
        let mut total = 0;
        let mut known: Option<(Range<u64>, Mapping)> = None;
        for (index, blocks) in &mut missing {
            for block in *index * per_frame..(*index + 1) * per_frame {
                if !known.as_ref().is_some_and(|(range, _)| range.contains(&block)) {
                    let mapping = core.ext4.map(ino, block, u32::MAX)?;
                    known = Some((block..block + mapping.blocks().max(1), mapping));
                }
                match known.as_ref().map(|(_, mapping)| mapping) {
                    Some(Mapping::Hole { .. }) => blocks.reserved += 1,
                    Some(Mapping::Data { .. }) => blocks.live += 1,
                    Some(Mapping::Unwritten { .. }) | None => {}
                }
            }
            total += u64::from(blocks.reserved);
        }
        core.ext4.reserve(total)?;
        Ok(missing)
    }

    /// What is written one after the other for long enough is to get new places on the disk, if blocks can be promised
    /// to it; then none of it counts towards the journal.
    fn plan_to_move(&self, core: &mut Core, ino: Ino, written: Range<u64>) {
        let node = core.node_of(ino);
        let stretch = &mut node.stretch;
        let long = |frames: &Range<u64>| (frames.end - frames.start) * FRAME as u64 >= RELOCATE_BYTES;
        // Threads of one writer may swap; a write elsewhere in the stretch is not the writer's next one.
        let near = stretch.end.saturating_sub(SWAPPED_FRAMES).max(stretch.start)..=stretch.end;
        let goes_on = near.contains(&written.start);
        let was_long = goes_on && long(stretch);
        let begin = if goes_on { stretch.clone() } else { written.clone() };
        *stretch = begin.start..begin.end.max(written.end);
        if !long(stretch) {
            return;
        }
        let range = if was_long { written } else { stretch.clone() };
        let blocks = node.frames.range(range.clone()).map(|(_, frame)| u64::from(frame.live)).sum();
        let Needs { overwrites, placing, .. } = node.needs;
        let (overwrites, placing) = (overwrites - blocks, placing + blocks);
        let fits = blocks > 0 && self.may_need(core, ino, overwrites, placing).unwrap_or(false);
        if !fits || core.ext4.reserve_to_move(blocks).is_err() {
            return;
        }
        if core.set_needs(ino, overwrites, placing).is_err() {
            return core.ext4.unreserve(blocks);
        }
        let node = core.node_of(ino);
        node.reserved += blocks;
        for frame in node.frames.range_mut(range).map(|(_, frame)| frame) {
            frame.reserved += std::mem::take(&mut frame.live);
            frame.moves = true;
        }
    }

    fn fill_frames(
        &self,
        core: &mut Core,
        ino: Ino,
        missing: &FrameList,
        overwritten: Option<Range<u64>>,
    ) -> Result<()> {
        let mut made = smallvec::SmallVec::<[(u64, Frame); 8]>::new();
        for &(index, Blocks { reserved, live }) in missing {
            let bytes = index * FRAME as u64..(index + 1) * FRAME as u64;
            let whole =
                overwritten.as_ref().is_some_and(|set| set.start <= bytes.start && bytes.end <= set.end);
            let mut frame =
                if whole { Frame::unset(&self.pool) } else { read::load_frame(self, core, ino, index)? };
            (frame.reserved, frame.live) = (reserved, live);
            made.push((index, frame));
        }
        let live = missing.iter().map(|(_, blocks)| u64::from(blocks.live)).sum::<u64>();
        let placing = missing.len() as u64 * self.blocks_per_frame - live;
        let Needs { overwrites: old_live, placing: old_placing, .. } = core.node_of(ino).needs;
        core.set_needs(ino, old_live + live, old_placing + placing)?;
        core.node_of(ino).frames.extend(made);
        Ok(())
    }

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
        let done = core.ext4.truncate(ino, size, now)?;
        if held {
            self.blank(core, ino, &rest);
        }
        if size < old {
            self.drop_frames(core, ino, frame_from(size)..u64::MAX);
        }
        if size == 0 && old > 0 && core.ssd.is_some() {
            core.carried.push(ino);
        }
        core.record(&Record::Truncate { ino: ino.0, size, old, at: when(now) });
        Ok(done)
    }

    /// Makes the frame around a range inside it dirty, with its contents as they are, to be [`blank`](Shared::blank)ed.
    /// `false`: there is nothing to blank.
    fn hold(&self, core: &mut Core, ino: Ino, range: &Range<u64>) -> Result<bool> {
        if range.is_empty() || !read::has_data(self, core, ino, frame_of(range.start))? {
            return Ok(false);
        }
        let index = frame_of(range.start);
        self.make_dirty(core, ino, index..index + 1, None)?;
        Ok(true)
    }

    /// Zeroes a range inside a frame that is dirty.
    fn blank(&self, core: &mut Core, ino: Ino, range: &Range<u64>) {
        let index = frame_of(range.start);
        let node = core.node_of(ino);
        node.version += 1;
        if let Some(frame) = node.frames.get_mut(&index) {
            let start = (range.start - index * FRAME as u64) as usize;
            let end = (range.end - index * FRAME as u64) as usize;
            frame.bytes_mut()[start..end].fill(0);
        }
        core.dirty.bytes += FRAME as u64;
    }

    /// Forgets frames in memory, in the cycle under way and on the SSD.
    pub(super) fn drop_frames(&self, core: &mut Core, ino: Ino, frames: Range<u64>) {
        let node = core.node_of(ino);
        node.version += 1;
        let dropped = take_range(node, frames.clone());
        let Needs { overwrites, placing, .. } = node.needs;
        core.ext4.unreserve(dropped.reserved);
        let placed = dropped.count * self.blocks_per_frame - dropped.live;
        // If it cannot be worked out, what was noted is more than enough.
        let _ = core.set_needs(ino, overwrites - dropped.live, placing - placed);
        if let Some(cycle) = &mut core.cycle {
            cycle.forget(ino, frames.clone());
        }
        self.drop_copies(core, ino, frames);
    }

    /// Forgets what the SSD has of frames, for the operation about to be recorded.
    pub(super) fn drop_copies(&self, core: &mut Core, ino: Ino, frames: Range<u64>) {
        let op = core.op + 1;
        if core.state.ssd_is_fixed() {
            core.touched.push(Touched { ino, frames, before: op });
        } else if let Some(ssd) = &mut core.ssd {
            self.unbind(ssd, op, ino, frames);
        }
    }

    /// See [`crate::fs::FileSystem::fallocate`]. What takes more than one transaction is done in steps, each an
    /// operation of its own.
    pub(super) fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
        if len == 0 {
            return Err(Error::BadArgument);
        }
        drop(self.ready(|core| core.look_at_data(ino)));
        let mut at = offset;
        while at < end {
            at = self.with_room(|| {
                let mut core = self.admitted(ino, |core| self.credits_to_allocate(core, ino))?;
                if end > core.ext4.size_max() {
                    return Err(Error::TooLarge);
                }
                core.check_fallocate(ino, what)?;
                if at == offset && what != Fallocate::Punch {
                    self.check_room(&mut core, ino, offset..end, what)?;
                }
                let now = core.clock.wall();
                let reached = self.allocate_range(&mut core, ino, at..end, what, now)?;
                self.wake_if_due(&mut core);
                Ok(reached)
            })?;
        }
        Ok(())
    }

    fn credits_to_allocate(&self, core: &mut Core, ino: Ino) -> Result<Credits> {
        let edges = core.ext4.credits_for_data(ino, 2 * self.blocks_per_frame)?;
        let steps = core.ext4.credits_to_free(ino)? + core.ext4.credits_to_preallocate(ino)?;
        Ok(Credits { bytes: 2 * FRAME as u64, ..Credits::blocks(edges + steps) })
    }

    /// An error if a range cannot have the space it is to get; before anything changes.
    fn check_room(&self, core: &mut Core, ino: Ino, bytes: Range<u64>, what: Fallocate) -> Result<()> {
        if matches!(what, Fallocate::Reserve { .. }) {
            return Ok(()); // Its first step looks at all of it.
        }
        core.inode_of_file(ino)?;
        let block_bytes = self.disk_block_bytes as u64;
        let blocks = bytes.end.div_ceil(block_bytes) - bytes.start / block_bytes;
        core.ext4.reserve(blocks)?;
        core.ext4.unreserve(blocks);
        Ok(())
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
        let old = core.inode_of_file(ino)?.size;
        let mut reached = bytes.end;
        if !matches!(what, Fallocate::Reserve { .. }) {
            reached = self.clear_range(core, ino, bytes.clone())?;
        }
        if what != Fallocate::Punch {
            let block_bytes = FRAME as u64 / self.blocks_per_frame;
            let first = bytes.start / block_bytes;
            let last = reached.div_ceil(block_bytes);
            let to = core.ext4.preallocate(ino, first, last - first)?;
            if to < last {
                reached = to * block_bytes;
            }
            let Needs { overwrites, placing, .. } = core.node_of(ino).needs;
            core.set_needs(ino, overwrites, placing)?;
        }
        let grows =
            matches!(what, Fallocate::Reserve { keep_size: false } | Fallocate::Zero { keep_size: false });
        let size = if grows { old.max(reached) } else { old };
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = size;
        inode.mtime = now;
        inode.ctime = now;
        inode.mode = without_suid(inode.mode);
        let (offset, len) = (bytes.start, reached - bytes.start);
        let what = fallocate_code(what);
        core.record(&Record::Fallocate { ino: ino.0, what, offset, len, size, at: when(now) });
        Ok(reached)
    }

    /// Makes a range read as zeros and frees its whole blocks, as far as one step goes: the byte up to which that is.
    fn clear_range(&self, core: &mut Core, ino: Ino, bytes: Range<u64>) -> Result<u64> {
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
            let mut to = core.ext4.punch(ino, first * per_frame, (last - first) * per_frame)?;
            // No frame keeps a part of its blocks.
            to = core.ext4.punch(ino, to, to.next_multiple_of(per_frame) - to)?;
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

/// Blocks of a frame that is about to become dirty.
#[derive(Clone, Copy, Default)]
struct Blocks {
    /// Promised, as there is a hole.
    reserved: u32,
    /// Overwritten where they are.
    live: u32,
}

/// Frames that are dropped.
struct Dropped {
    count: u64,
    reserved: u64,
    live: u64,
}

/// Bytes of a part that begins at `offset` and ends where a frame does, `part` bytes or less.
fn part_at(offset: u64, part: usize) -> usize {
    part - (offset % FRAME as u64) as usize
}

type FrameList = smallvec::SmallVec<[(u64, Blocks); 8]>;

/// Removes a range of a node's frames.
fn take_range(node: &mut Node, frames: Range<u64>) -> Dropped {
    let mut dropped = node.frames.split_off(&frames.start);
    if frames.end < u64::MAX {
        node.frames.append(&mut dropped.split_off(&frames.end));
    }
    let reserved = dropped.values().map(|frame| u64::from(frame.reserved)).sum();
    let live = dropped.values().map(|frame| u64::from(frame.live)).sum();
    node.reserved -= reserved;
    Dropped { count: dropped.len() as u64, reserved, live }
}

/// A mode after a write by an ordinary user: set-user-ID gone, set-group-ID too if group-executable.
pub fn without_suid(mode: u16) -> u16 {
    let mode = mode & !0o4000;
    if mode & 0o010 != 0 { mode & !0o2000 } else { mode }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_go_as_posix_asks() {
        assert_eq!(without_suid(0o104755), 0o100755);
        assert_eq!(without_suid(0o106755), 0o100755);
        assert_eq!(without_suid(0o102644), 0o102644);
    }

    #[test]
    fn frames_around_an_offset() {
        assert_eq!((frame_of(4095), frame_of(4096)), (0, 1));
        assert_eq!((frame_from(0), frame_from(1), frame_from(4096)), (0, 1, 1));
    }
}
