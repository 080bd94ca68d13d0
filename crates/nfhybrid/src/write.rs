//! Changing file contents: into dirty frames, with the disk's space promised at once and given out at the freeze.
//! A write that finds its credits, and in memory what it changes in part, waits for no device; another one is copied and
//! waits, and reads, where that hurts nobody and without the lock.

use super::Shared;
use super::core::Core;
use super::credits::Credits;
use super::dirty::Needs;
use super::fill_out::Extents;
use super::frames::{Blocks, Claimed, FRAME, Frame, Pages, blocks_within};
use super::freeze::RELOCATE_BYTES;
use super::partial::{frames_in_part, load_frame};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Mapping;
use bimetal_vfs::Deferred;
use bimetal_vfs::adapter::without_set_id;
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
        let here =
            !core.ext4.is_being_cut(ino)? && !self.lacks_any(&mut core, ino, &frames_in_part(offset, end));
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
            let mut core = self.admitted_whole(ino, credits)?;
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
        // Where blocks are smaller than frames, those beside reserved space may come along ([`Shared::edges_to_fill`]).
        let beside = if self.blocks_per_frame > 1 { 2 } else { 0 };
        let journal = core.ext4.credits_for_data(ino, (frames + beside) * self.blocks_per_frame)?;
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
        let end = offset + data.len() as u64;
        let block_bytes = self.disk_block_bytes as u64;
        let written = offset / block_bytes..end.div_ceil(block_bytes);
        let per_frame = self.blocks_per_frame;
        let blocks = |index: u64| blocks_within(index * per_frame, per_frame, &written);
        core.ext4.let_reach(ino, end)?;
        self.put_pages(core, ino, (offset, data), pages, Reach { blocks: &blocks, file: end })?;
        core.begin();
        core.dirty.add(data.len() as u64);
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = inode.size.max(offset + data.len() as u64);
        inode.mtime = now;
        inode.ctime = now;
        if kill_suid {
            inode.mode = without_set_id(inode.kind(), inode.mode);
        }
        self.wake_if_due(core);
        Ok(())
    }

    /// Copies whole frames from the log into a file that has `size` bytes in the end, each all or nothing. Blocks of zeros are
    /// not promised a place: nobody may have asked for one.
    pub(super) fn put(&self, core: &mut Core, ino: Ino, offset: u64, data: &[u8], size: u64) -> Result<()> {
        for (at, frame) in (offset..).step_by(FRAME).zip(data.chunks(FRAME)) {
            let blocks = frame.chunks(self.disk_block_bytes).zip(0..);
            let filled = blocks.filter(|(block, _)| block.iter().any(|byte| *byte != 0));
            let blocks = filled.fold(0, |blocks, (_, within)| blocks | 1 << within);
            let reach = Reach { blocks: &|_| blocks, file: size };
            self.put_pages(core, ino, (at, frame), &mut Pages::none(), reach)?;
        }
        Ok(())
    }

    /// Copies data into the file's frames, all or nothing. `pages` hold what of it was copied before.
    fn put_pages(
        &self,
        core: &mut Core,
        ino: Ino,
        (offset, data): (u64, &[u8]),
        pages: &mut Pages,
        reach: Reach<'_>,
    ) -> Result<()> {
        let last = frame_from(offset + data.len() as u64);
        let overwritten = offset..offset + data.len() as u64;
        self.make_dirty(core, ino, frame_of(offset)..last, Some(overwritten), reach)?;
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

    /// Makes a range of frames dirty with their present contents, promising disk blocks for what has none and will hold data, and
    /// for the file's tree.
    ///
    /// `overwritten` is a range of bytes the caller is about to set: what lies in it need not be read.
    pub(super) fn make_dirty(
        &self,
        core: &mut Core,
        ino: Ino,
        frames: Range<u64>,
        overwritten: Option<Range<u64>>,
        reach: Reach<'_>,
    ) -> Result<()> {
        core.node_of(ino).touch(&frames);
        let grown = self.promise(core, ino, frames, reach.blocks)?;
        let kept = self.keep_promise(core, ino, &grown, overwritten, reach.file);
        if kept.is_err() {
            core.ext4.unreserve(grown.sum(|claimed| claimed.reserved));
            return kept;
        }
        core.list_dirty(ino);
        Ok(())
    }

    /// Makes frames dirty whose data was promised blocks. Nothing has changed after an error.
    fn keep_promise(
        &self,
        core: &mut Core,
        ino: Ino,
        grown: &Grown,
        overwritten: Option<Range<u64>>,
        file: u64,
    ) -> Result<()> {
        let mut made = self.frames_made(core, ino, &grown.missing, overwritten)?;
        let mut reaching = grown.reaching.clone();
        let mut needs = core.node_of(ino).needs();
        needs.overwrites += grown.sum(|claimed| claimed.live);
        let placing = grown.sum(|claimed| claimed.placing);
        let mut filled = Extents::new();
        match core.set_needs(ino, Needs { placing: needs.placing + placing, ..needs }) {
            Err(Error::NoSpace(_)) if placing > 0 => {
                filled = self.extents_to_fill(core, ino, grown, file)?;
                let edges = self.edges_to_fill(core, ino, grown, &filled)?;
                needs.overwrites += edges.iter().map(|(_, _, claimed)| u64::from(claimed.live)).sum::<u64>();
                needs.filled += filled.len() as u64;
                core.set_needs(ino, needs)?;
                let claims = made.iter_mut().map(|(_, _, claimed)| claimed);
                claims.chain(reaching.iter_mut().map(|(_, claimed)| claimed)).for_each(|c| c.placing = 0);
                // Over a frame of the cycle under way they are the newest, and what the log may lack.
                edges.iter().for_each(|(index, ..)| core.node_of(ino).touch(&(*index..*index + 1)));
                made.extend(edges);
            }
            done => done?,
        }
        let node = core.node_of(ino);
        node.add(made.into_iter().map(|(index, frame, claimed)| (index, frame.with_blocks(claimed))));
        node.cover(reaching);
        self.fill_out(core, ino, &filled);
        Ok(())
    }

    /// The frames of the range that are not dirty yet, and those that are and of which more blocks will hold data, with what
    /// these blocks are; holes are promised blocks. Of a frame those blocks get places that will hold data (`wanted`) or do.
    fn promise(
        &self,
        core: &mut Core,
        ino: Ino,
        frames: Range<u64>,
        wanted: &dyn Fn(u64) -> Blocks,
    ) -> Result<Grown> {
        let per_frame = self.blocks_per_frame;
        let mut grown = Grown::default();
        let node = core.node_of(ino);
        for index in frames {
            let wanted = wanted(index);
            match node.frames().get(&index).map(Frame::covers) {
                None => grown.missing.push((index, Claimed { covers: wanted, ..Claimed::default() })),
                Some(covers) if wanted & !covers != 0 => {
                    let covers = wanted & !covers;
                    grown.reaching.push((index, Claimed { covers, ..Claimed::default() }));
                }
                Some(_) => {}
            }
        }
        let mut known: Option<(Range<u64>, Mapping)> = None;
        let claims = [(&mut grown.missing, true), (&mut grown.reaching, false)];
        for ((index, claimed), is_new) in claims
            .into_iter()
            .flat_map(|(claims, is_new)| claims.iter_mut().map(move |claim| (claim, is_new)))
        {
            for within in 0..per_frame {
                let (block, bit) = (*index * per_frame + within, 1 << within);
                // Of a frame that is dirty, what gets no place has no data on the disk.
                if !is_new && claimed.covers & bit == 0 {
                    continue;
                }
                if !known.as_ref().is_some_and(|(range, _)| range.contains(&block)) {
                    let mapping = core.ext4.map(ino, block, u32::MAX)?;
                    known = Some((block..block + mapping.blocks().max(1), mapping));
                }
                match known.as_ref().map(|(_, mapping)| mapping) {
                    Some(Mapping::Data { .. }) => {
                        claimed.live += 1;
                        claimed.covers |= bit;
                    }
                    Some(Mapping::Hole { .. }) if claimed.covers & bit != 0 => claimed.reserved += 1,
                    _ => {}
                }
            }
            claimed.placing = claimed.covers.count_ones() - claimed.live;
        }
        core.ext4.reserve(grown.sum(|claimed| claimed.reserved))?;
        Ok(grown)
    }

    /// What is written one after the other for long enough is to get new places on the disk, if blocks can be promised
    /// to it; then none of it counts towards the journal.
    fn plan_to_move(&self, core: &mut Core, ino: Ino, written: Range<u64>) {
        let node = core.node_of(ino);
        let long = RELOCATE_BYTES.div_ceil(FRAME as u64);
        let Some(range) = node.goes_on(written, long, SWAPPED_FRAMES) else { return };
        let blocks = node.live_in(range.clone());
        let mut needs = node.needs();
        needs.overwrites -= blocks;
        needs.placing += blocks;
        needs.moving = true;
        let fits = blocks > 0 && self.may_need(core, ino, needs).unwrap_or(false);
        if !fits || core.ext4.reserve_to_move(blocks).is_err() {
            return;
        }
        if core.set_needs(ino, needs).is_err() {
            return core.ext4.unreserve(blocks);
        }
        core.node_of(ino).promise_to_move(range);
    }

    /// The frames that are not dirty yet, with their contents as far as these will not be set.
    fn frames_made(
        &self,
        core: &mut Core,
        ino: Ino,
        missing: &Claims,
        overwritten: Option<Range<u64>>,
    ) -> Result<Made> {
        let mut made = Made::new();
        for &(index, claimed) in missing {
            let bytes = index * FRAME as u64..(index + 1) * FRAME as u64;
            let whole =
                overwritten.as_ref().is_some_and(|set| set.start <= bytes.start && bytes.end <= set.end);
            let frame = if whole { Frame::unset(&self.pool) } else { load_frame(self, core, ino, index)? };
            made.push((index, frame, claimed));
        }
        Ok(made)
    }
}

/// What a change brings.
#[derive(Clone, Copy)]
pub(super) struct Reach<'a> {
    /// Which blocks of a frame, given by its number, will hold data.
    pub blocks: &'a dyn Fn(u64) -> Blocks,
    /// The file's size once it is done, if that is more than it has.
    pub file: u64,
}

/// Frames, and what their blocks are.
pub(super) type Claims = SmallVec<[(u64, Claimed); 8]>;

/// Frames with their contents, and what their blocks are.
pub(super) type Made = SmallVec<[(u64, Frame, Claimed); 8]>;

/// Frames that become dirty, or of which more blocks get data.
#[derive(Default)]
pub(super) struct Grown {
    /// Those that are not dirty yet.
    pub missing: Claims,
    /// Those that are, with how much more their blocks are.
    pub reaching: Claims,
}

impl Grown {
    fn sum(&self, of: impl Fn(&Claimed) -> u32) -> u64 {
        self.missing.iter().chain(&self.reaching).map(|(_, claimed)| u64::from(of(claimed))).sum()
    }
}

/// Bytes of a part that begins at `offset` and ends where a frame does, `part` bytes or less.
fn part_at(offset: u64, part: usize) -> usize {
    part - (offset % FRAME as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_around_an_offset() {
        assert_eq!((frame_of(4095), frame_of(4096)), (0, 1));
        assert_eq!((frame_from(0), frame_from(1), frame_from(4096)), (0, 1, 1));
    }
}
