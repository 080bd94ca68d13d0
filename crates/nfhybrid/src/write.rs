//! Changing file contents: into dirty frames, with the disk's space promised at once and given out at the freeze.
//! A write that finds its credits, and in memory what it changes in part, waits for no device; another one is copied and
//! waits, and reads, where that hurts nobody and without the lock.

use super::Shared;
use super::core::Core;
use super::credits::Credits;
use super::dirty::Needs;
use super::frames::{FRAME, Frame, Pages};
use super::freeze::RELOCATE_BYTES;
use super::partial::{frames_in_part, load_frame};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Mapping;
use bimetal_vfs::Deferred;
use smallvec::SmallVec;
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
    /// See [`bimetal_vfs::FileSystem::write`].
    pub(super) fn write(
        self: &Arc<Shared>,
        ino: Ino,
        offset: u64,
        data: &[u8],
        kill_suid: bool,
    ) -> Result<Deferred<usize>> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
        let mut pages = Pages::copied(&self.pool, offset, data);
        let mut core = self.ready(|core| core.look_at_data(ino));
        core.writable()?;
        core.check_write(ino, offset, end)?;
        if data.is_empty() {
            return Ok(Deferred::Now(0));
        }
        let need = self.credits_to_write(&mut core, ino, offset, data.len())?;
        let here = !self.lacks_any(&mut core, ino, &frames_in_part(offset, end));
        if here && data.len() <= self.part_bytes() && self.has_credits(&core, ino, &need) {
            match self.write_part(&mut core, ino, (offset, data), &mut pages, kill_suid) {
                Err(Error::NoSpace(_)) => {}
                done => return done.map(|()| Deferred::Now(data.len())),
            }
        }
        drop(core);
        let (shared, data) = (self.clone(), data.to_vec());
        Ok(Deferred::Wait(Box::new(move || shared.write_waiting(ino, offset, &data, kill_suid))))
    }

    /// Writes in parts, each with credits of its own. The answer is how much was written before the disk was full.
    pub(super) fn write_waiting(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<usize> {
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
            let end = offset + data.len() as u64;
            self.warm(&mut self.core.lock(), ino, &frames_in_part(offset, end));
            let mut pages = Pages::copied(&self.pool, offset, data);
            let credits = |core: &mut Core| self.credits_to_write(core, ino, offset, data.len());
            let mut core = self.admitted(ino, credits)?;
            core.check_write(ino, offset, end)?;
            self.write_part(&mut core, ino, (offset, data), &mut pages, kill_suid)
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
    fn write_part(
        &self,
        core: &mut Core,
        ino: Ino,
        (offset, data): (u64, &[u8]),
        pages: &mut Pages,
        kill_suid: bool,
    ) -> Result<()> {
        let now = core.wall();
        self.put_pages(core, ino, (offset, data), pages, offset + data.len() as u64)?;
        core.begin();
        core.dirty.add(data.len() as u64);
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

    /// Copies whole frames from the log into the file, each all or nothing. What of them is zeros to their end is not promised
    /// blocks: it may lie past the end of the file, which did not ask for any.
    pub(super) fn put(&self, core: &mut Core, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        for (at, frame) in (offset..).step_by(FRAME).zip(data.chunks(FRAME)) {
            let zeros = frame.iter().rev().take_while(|byte| **byte == 0).count();
            let reaches = at + (frame.len() - zeros).max(1) as u64;
            self.put_pages(core, ino, (at, frame), &mut Pages::none(), reaches)?;
        }
        Ok(())
    }

    /// Copies data into the file's frames, all or nothing; blocks are promised up to byte `reaches`. `pages` hold what of it
    /// was copied before.
    fn put_pages(
        &self,
        core: &mut Core,
        ino: Ino,
        (offset, data): (u64, &[u8]),
        pages: &mut Pages,
        reaches: u64,
    ) -> Result<()> {
        let last = frame_from(offset + data.len() as u64);
        let overwritten = offset..offset + data.len() as u64;
        self.make_dirty(core, ino, frame_of(offset)..last, Some(overwritten), reaches)?;
        self.plan_to_move(core, ino, frame_of(offset)..last);
        let node = core.node_of(ino);
        node.changed();
        let mut done = 0;
        for (index, frame) in node.frames_mut(frame_of(offset)..last) {
            let start = (offset.saturating_sub(index * FRAME as u64)) as usize;
            let len = (FRAME - start).min(data.len() - done);
            if !pages.set(index, frame) {
                frame.bytes_mut()[start..start + len].copy_from_slice(&data[done..done + len]);
            }
            done += len;
        }
        debug_assert_eq!(done, data.len());
        Ok(())
    }

    /// Makes a range of frames dirty with their present contents, promising disk blocks for what has none before byte
    /// `reaches`, up to which there will be data.
    ///
    /// `overwritten` is a range of bytes the caller is about to set: what lies in it need not be read.
    pub(super) fn make_dirty(
        &self,
        core: &mut Core,
        ino: Ino,
        frames: Range<u64>,
        overwritten: Option<Range<u64>>,
        reaches: u64,
    ) -> Result<()> {
        core.node_of(ino).touch(&frames);
        let Promised { missing, reaching } = self.promise(core, ino, frames, reaches)?;
        let reserved = missing.iter().chain(&reaching).map(|(_, blocks)| u64::from(blocks.reserved)).sum();
        let made = self.fill_frames(core, ino, &missing, overwritten);
        if made.is_err() {
            core.ext4.unreserve(reserved);
            return made;
        }
        core.node_of(ino)
            .cover(reaching.iter().map(|(index, blocks)| (*index, blocks.covered, blocks.reserved)));
        core.list_dirty(ino);
        Ok(())
    }

    /// The frames of the range that are not dirty yet, and those that are and into which data will reach further, with what
    /// blocks each has and needs; those are promised.
    fn promise(&self, core: &mut Core, ino: Ino, frames: Range<u64>, reaches: u64) -> Result<Promised> {
        let per_frame = self.blocks_per_frame;
        let wanted = reaches.div_ceil(self.disk_block_bytes as u64);
        let mut promised = Promised::default();
        let node = core.node_of(ino);
        for index in frames {
            let covered = wanted.saturating_sub(index * per_frame).min(per_frame) as u32;
            match node.frames().get(&index).map(Frame::covered) {
                None => promised.missing.push((index, Blocks { covered, ..Blocks::default() })),
                Some(less) if less < covered => {
                    promised.reaching.push((index, Blocks { covered, already: less, ..Blocks::default() }));
                }
                Some(_) => {}
            }
        }
        let mut total = 0;
        let mut known: Option<(Range<u64>, Mapping)> = None;
        for (index, blocks) in promised.missing.iter_mut().chain(&mut promised.reaching) {
            let (start, mut holes) = (*index * per_frame, 0);
            // Of a frame that is dirty, what is behind what was covered has no data on the disk.
            for block in start + u64::from(blocks.already)..start + per_frame {
                if !known.as_ref().is_some_and(|(range, _)| range.contains(&block)) {
                    let mapping = core.ext4.map(ino, block, u32::MAX)?;
                    known = Some((block..block + mapping.blocks().max(1), mapping));
                }
                match known.as_ref().map(|(_, mapping)| mapping) {
                    Some(Mapping::Hole { .. }) => holes += 1,
                    Some(Mapping::Data { .. }) => {
                        blocks.live += 1;
                        blocks.covered = blocks.covered.max((block + 1 - start) as u32);
                    }
                    Some(Mapping::Unwritten { .. }) | None => {}
                }
                if block + 1 - start <= u64::from(blocks.covered) {
                    blocks.reserved += std::mem::take(&mut holes);
                }
            }
            total += u64::from(blocks.reserved);
        }
        core.ext4.reserve(total)?;
        Ok(promised)
    }

    /// What is written one after the other for long enough is to get new places on the disk, if blocks can be promised
    /// to it; then none of it counts towards the journal.
    fn plan_to_move(&self, core: &mut Core, ino: Ino, written: Range<u64>) {
        let node = core.node_of(ino);
        let long = RELOCATE_BYTES.div_ceil(FRAME as u64);
        let Some(range) = node.goes_on(written, long, SWAPPED_FRAMES) else { return };
        let blocks = node.live_in(range.clone());
        let Needs { overwrites, placing, .. } = node.needs();
        let (overwrites, placing) = (overwrites - blocks, placing + blocks);
        let fits = blocks > 0 && self.may_need(core, ino, overwrites, placing).unwrap_or(false);
        if !fits || core.ext4.reserve_to_move(blocks).is_err() {
            return;
        }
        if core.set_needs(ino, overwrites, placing).is_err() {
            return core.ext4.unreserve(blocks);
        }
        core.node_of(ino).promise_to_move(range);
    }

    fn fill_frames(
        &self,
        core: &mut Core,
        ino: Ino,
        missing: &FrameList,
        overwritten: Option<Range<u64>>,
    ) -> Result<()> {
        let mut made = SmallVec::<[(u64, Frame); 8]>::new();
        for &(index, Blocks { covered, reserved, live, .. }) in missing {
            let bytes = index * FRAME as u64..(index + 1) * FRAME as u64;
            let whole =
                overwritten.as_ref().is_some_and(|set| set.start <= bytes.start && bytes.end <= set.end);
            let frame = if whole { Frame::unset(&self.pool) } else { load_frame(self, core, ino, index)? };
            made.push((index, frame.with_blocks(covered, reserved, live)));
        }
        let live = missing.iter().map(|(_, blocks)| u64::from(blocks.live)).sum::<u64>();
        let placing = missing.len() as u64 * self.blocks_per_frame - live;
        let Needs { overwrites: old_live, placing: old_placing, .. } = core.node_of(ino).needs();
        core.set_needs(ino, old_live + live, old_placing + placing)?;
        core.node_of(ino).add(made);
        Ok(())
    }
}

/// Frames and what was promised to them.
#[derive(Default)]
struct Promised {
    /// Those that are not dirty yet.
    missing: FrameList,
    /// Those that are, and of which more blocks are to be placed than were.
    reaching: FrameList,
}

/// Blocks of a frame that is about to become dirty.
#[derive(Clone, Copy, Default)]
struct Blocks {
    /// Its first ones, which are to be placed.
    covered: u32,
    /// Those of them that were before.
    already: u32,
    /// Promised, as there is a hole.
    reserved: u32,
    /// Overwritten where they are.
    live: u32,
}

/// Bytes of a part that begins at `offset` and ends where a frame does, `part` bytes or less.
fn part_at(offset: u64, part: usize) -> usize {
    part - (offset % FRAME as u64) as usize
}

type FrameList = SmallVec<[(u64, Blocks); 8]>;

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
