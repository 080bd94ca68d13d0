//! Changing file contents: into dirty frames, with the disk's space promised at once and given out at the
//! freeze. Nothing here waits for a device except to read the rest of a frame that is only partly written.

use super::core::{Core, Node};
use super::cycle::RELOCATE_BYTES;
use super::frames::{FRAME, Frame};
use super::record::{Record, fallocate_code, when};
use super::{Shared, read};
use crate::fs::ext4::Mapping;
use crate::fs::{Fallocate, Later};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

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
    ) -> Result<Later<()>> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
        if data.len() > self.write_limit {
            // More than one transaction can carry, should all of it overwrite live data: in parts.
            let (first, rest) = data.split_at(self.write_limit);
            self.write(ino, offset, first, kill_suid)?.get()?;
            return self.write(ino, offset + self.write_limit as u64, rest, kill_suid);
        }
        let mut core = self.core.lock();
        core.alive()?;
        core.inode_of_file(ino)?;
        if end > core.ext4.size_max() {
            return Err(Error::TooLarge);
        }
        let now = core.clock.wall();
        self.put(&mut core, ino, offset, data)?;
        core.begin();
        core.dirty.bytes += data.len() as u64;
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = inode.size.max(end);
        inode.mtime = now;
        inode.ctime = now;
        if kill_suid {
            inode.mode = without_suid(inode.mode);
        }
        self.admit(core)
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
        let made = self.fill_frames(core, ino, &missing, overwritten);
        if made.is_err() {
            core.ext4.unreserve(missing.iter().map(|&(_, blocks)| u64::from(blocks)).sum());
            return made;
        }
        core.list_dirty(ino);
        Ok(())
    }

    /// The frames of the range that are not dirty yet, with the blocks reserved for each.
    fn promise(&self, core: &mut Core, ino: Ino, frames: Range<u64>) -> Result<FrameList> {
        let per_frame = self.blocks_per_frame;
        let mut missing = FrameList::new();
        let node = core.node_of(ino);
        missing.extend(frames.filter(|index| !node.frames.contains_key(index)).map(|index| (index, 0)));
        let mut total = 0;
        let mut known: Option<(Range<u64>, bool)> = None;
        for (index, blocks) in &mut missing {
            for block in *index * per_frame..(*index + 1) * per_frame {
                if !known.as_ref().is_some_and(|(range, _)| range.contains(&block)) {
                    let mapping = core.ext4.map(ino, block, u32::MAX)?;
                    let hole = matches!(mapping, Mapping::Hole { .. });
                    known = Some((block..block + mapping.blocks().max(1), hole));
                }
                *blocks += u32::from(known.as_ref().is_some_and(|(_, hole)| *hole));
            }
            total += u64::from(*blocks);
        }
        core.ext4.reserve(total)?;
        core.dirty.overwrites += missing.len() as u64 * per_frame - total;
        Ok(missing)
    }

    /// What is written one after the other for long enough is to get new places on the disk, if blocks can be promised
    /// to it; then none of it counts towards the journal.
    fn plan_to_move(&self, core: &mut Core, ino: Ino, written: Range<u64>) {
        let node = core.node_of(ino);
        let stretch = &mut node.stretch;
        let long = |frames: &Range<u64>| (frames.end - frames.start) * FRAME as u64 >= RELOCATE_BYTES;
        let goes_on = (stretch.start..=stretch.end).contains(&written.start);
        let was_long = goes_on && long(stretch);
        let begin = if goes_on { stretch.clone() } else { written.clone() };
        *stretch = begin.start..begin.end.max(written.end);
        if !long(stretch) {
            return;
        }
        let range = if was_long { written } else { stretch.clone() };
        let per_frame = self.blocks_per_frame as u32;
        let live = |frame: &Frame| if frame.moves { 0 } else { per_frame - frame.reserved };
        let blocks = node.frames.range(range.clone()).map(|(_, frame)| u64::from(live(frame))).sum();
        if blocks == 0 || core.ext4.reserve_to_move(blocks).is_err() {
            return;
        }
        core.dirty.overwrites = core.dirty.overwrites.saturating_sub(blocks);
        let node = core.node_of(ino);
        node.reserved += blocks;
        for frame in node.frames.range_mut(range).map(|(_, frame)| frame) {
            frame.reserved += live(frame);
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
        for &(index, reserved) in missing {
            let bytes = index * FRAME as u64..(index + 1) * FRAME as u64;
            let whole =
                overwritten.as_ref().is_some_and(|set| set.start <= bytes.start && bytes.end <= set.end);
            let mut frame =
                if whole { Frame::unset(&self.pool) } else { read::load_frame(self, core, ino, index)? };
            frame.reserved = reserved;
            made.push((index, frame));
        }
        let node = core.node_of(ino);
        node.reserved += missing.iter().map(|&(_, blocks)| u64::from(blocks)).sum::<u64>();
        node.frames.extend(made);
        Ok(())
    }

    /// Lets an operation that made more to lose return at once, or once the disk has caught up.
    pub(super) fn admit(
        self: &Arc<Shared>,
        mut core: crate::runtime::sync::MutexGuard<'_, Core>,
    ) -> Result<Later<()>> {
        self.wake_if_due(&mut core);
        if !self.over_lag(&core) {
            return Ok(Later::Now(()));
        }
        core.counters.throttled += 1;
        drop(core);
        let shared = self.clone();
        Ok(Later::Wait(Box::new(move || shared.await_lag())))
    }

    /// Sets a file's size: drops what lies past it, zeroes the rest of its last frame. `false`: so many blocks
    /// have to be freed that it takes several transactions; commit and call again.
    pub(super) fn set_size(&self, core: &mut Core, ino: Ino, size: u64, now: Stamp) -> Result<bool> {
        let old = core.inode_of_file(ino)?.size;
        if size > core.ext4.size_max() {
            return Err(Error::TooLarge);
        }
        if size < old {
            self.zero(core, ino, size..frame_from(size) * FRAME as u64)?;
            self.drop_frames(core, ino, frame_from(size)..u64::MAX);
        }
        let done = core.ext4.truncate(ino, size, now)?;
        if size == 0 && old > 0 && core.ssd.is_some() {
            core.carried.push(ino);
        }
        core.record(&Record::Truncate { ino: ino.0, size, old, at: when(now) });
        Ok(done)
    }

    /// Zeroes a range inside one frame, if it holds anything.
    fn zero(&self, core: &mut Core, ino: Ino, range: Range<u64>) -> Result<()> {
        if range.is_empty() || !read::has_data(self, core, ino, frame_of(range.start))? {
            return Ok(());
        }
        let index = frame_of(range.start);
        self.make_dirty(core, ino, index..index + 1, None)?;
        let node = core.node_of(ino);
        node.version += 1;
        if let Some(frame) = node.frames.get_mut(&index) {
            let start = (range.start - index * FRAME as u64) as usize;
            let end = (range.end - index * FRAME as u64) as usize;
            frame.bytes_mut()[start..end].fill(0);
        }
        core.dirty.bytes += FRAME as u64;
        Ok(())
    }

    /// Forgets frames in memory, in the cycle under way and on the SSD.
    pub(super) fn drop_frames(&self, core: &mut Core, ino: Ino, frames: Range<u64>) {
        let node = core.node_of(ino);
        node.version += 1;
        let dropped = take_range(node, frames.clone());
        core.ext4.unreserve(dropped);
        if let Some(cycle) = &mut core.cycle {
            cycle.forget(ino, frames.clone());
        }
        let op = core.op + 1;
        if let Some(ssd) = &mut core.ssd {
            self.unbind(ssd, op, ino, frames);
        }
    }

    /// See [`crate::fs::FileSystem::fallocate`].
    pub(super) fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
        let mut core = self.core.lock();
        core.alive()?;
        if len == 0 {
            return Err(Error::BadArgument);
        }
        if end > core.ext4.size_max() {
            return Err(Error::TooLarge);
        }
        let now = core.clock.wall();
        self.allocate_range(&mut core, ino, offset..end, what, now)?;
        self.settle(core);
        Ok(())
    }

    /// The work of `fallocate`, also for recovery.
    pub(super) fn allocate_range(
        &self,
        core: &mut Core,
        ino: Ino,
        bytes: Range<u64>,
        what: Fallocate,
        now: Stamp,
    ) -> Result<()> {
        let old = core.inode_of_file(ino)?.size;
        if !matches!(what, Fallocate::Reserve { .. }) {
            self.clear_range(core, ino, bytes.clone())?;
        }
        if what != Fallocate::Punch {
            let per_frame = self.blocks_per_frame;
            let first = bytes.start / (FRAME as u64 / per_frame);
            let last = bytes.end.div_ceil(FRAME as u64 / per_frame);
            core.ext4.preallocate(ino, first, last - first)?;
        }
        let grows =
            matches!(what, Fallocate::Reserve { keep_size: false } | Fallocate::Zero { keep_size: false });
        let size = if grows { old.max(bytes.end) } else { old };
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = size;
        inode.mtime = now;
        inode.ctime = now;
        inode.mode = without_suid(inode.mode);
        let (offset, len) = (bytes.start, bytes.end - bytes.start);
        let what = fallocate_code(what);
        core.record(&Record::Fallocate { ino: ino.0, what, offset, len, size, at: when(now) });
        Ok(())
    }

    /// Makes a range read as zeros and frees its whole blocks.
    fn clear_range(&self, core: &mut Core, ino: Ino, bytes: Range<u64>) -> Result<()> {
        let first = frame_from(bytes.start);
        let last = frame_of(bytes.end);
        if first > last {
            return self.zero(core, ino, bytes);
        }
        self.zero(core, ino, bytes.start..first * FRAME as u64)?;
        self.zero(core, ino, last * FRAME as u64..bytes.end)?;
        if first < last {
            self.drop_frames(core, ino, first..last);
            let per_frame = self.blocks_per_frame;
            core.ext4.punch(ino, first * per_frame, (last - first) * per_frame)?;
        }
        Ok(())
    }
}

type FrameList = smallvec::SmallVec<[(u64, u32); 8]>;

/// Removes a range of a node's frames; the reserved blocks among them.
fn take_range(node: &mut Node, frames: Range<u64>) -> u64 {
    let mut dropped = node.frames.split_off(&frames.start);
    if frames.end < u64::MAX {
        node.frames.append(&mut dropped.split_off(&frames.end));
    }
    let reserved = dropped.values().map(|frame| u64::from(frame.reserved)).sum();
    node.reserved -= reserved;
    reserved
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
