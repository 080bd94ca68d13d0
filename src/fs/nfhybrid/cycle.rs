//! The commit cycle: one background thread that brings both halves from one exact state to the next.
//!
//! 1. Freeze, under the lock: give delayed data its disk blocks, take the dirty frames, copy the dirty
//!    metadata, stamp the operation number.
//! 2. Data to both halves at once.
//! 3. The SSD durably forgets what it held of the changed blocks and learns what it now holds.
//! 4. Only then the disk: journal, flush, commit record. The operations are no longer at risk.
//!
//! At most one cycle is under way; the next freezes only after it. An SSD that fails is left behind (its epoch
//! is raised in the very transaction that is about to commit); a disk that fails ends changes, not reading.
//! While the log is replayed at a mount, step 3 and the SSD's part of step 2 are left out, and what was changed is
//! remembered.

use super::Shared;
use super::core::{Core, Dirty};
use super::durable::fill;
use super::frames::{FRAME, Frames, Frozen as FrozenFrame, runs};
use super::mount::Touched;
use super::place::{Placement, submit_gathered};
use super::promote::Promotion;
use super::room::Demand;
use super::tie::{Saved, Tie};
use crate::fs::ext4::{Frozen, Placed, PlacedRuns};
use crate::fs::nfhybrid::ssd::{Binding, WrDone};
use crate::media::{Ticket, wait_all};
use crate::runtime::sync::MutexGuard;
use crate::time::Time;
use crate::units::{DiskBlock, Ino};
use crate::{Error, Result};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Live data that is overwritten in a stretch of at least so many bytes gets a new place on the disk.
pub(super) const RELOCATE_BYTES: u64 = 1 << 20;

/// Stretches of a file that are forgotten one by one.
const RUNS_MAX: usize = 64;

/// Bytes of the log that forgetting a stretch takes at most, with the move of what it cuts off.
const UNBIND_BYTES: u64 = 96;

/// Offers to the SSD wait at most this long for company.
const PROMOTE_WAIT: Duration = Duration::from_millis(500);

/// Frozen frames while they are on their way.
#[derive(Default)]
pub struct Cycle {
    frames: FxHashMap<Ino, BTreeMap<u64, FrozenFrame>>,
    /// Stretches, as first frame and count, of which the SSD had older contents at the freeze: whatever happens to the
    /// file meanwhile, those are stale once the disk has this cycle.
    stale: BTreeMap<Ino, Vec<(u64, u64)>>,
    /// As in [`super::core::Node::touched`].
    pub touched: FxHashMap<Ino, Range<u64>>,
    /// Bytes that the disk does not have before this cycle ends.
    pub bytes: u64,
    /// When the first operation in it was done.
    pub since: Option<Time>,
    /// See [`Core::carry`].
    pub carried: Vec<Ino>,
    /// Images it puts into the journal.
    pub images: u64,
    /// When it began.
    began: Time,
}

impl Cycle {
    /// Frozen frames of a file.
    pub fn count_of(&self, ino: Ino) -> usize {
        self.frames.get(&ino).map_or(0, BTreeMap::len)
    }

    /// The contents of a frozen frame.
    pub fn frame(&self, ino: Ino, index: u64) -> Option<Bytes> {
        Some(self.frames.get(&ino)?.get(&index)?.bytes.clone())
    }

    /// The first frozen frame at or after `index`.
    pub fn next_frame(&self, ino: Ino, index: u64) -> Option<u64> {
        self.frames.get(&ino)?.range(index..).next().map(|(&found, _)| found)
    }

    /// Whether anything of a file is on its way.
    pub fn has_frames(&self, ino: Ino) -> bool {
        self.frames.contains_key(&ino)
    }

    /// Frozen frames of a file in a range.
    pub fn frames_of(&self, ino: Ino, range: Range<u64>) -> impl Iterator<Item = (u64, &FrozenFrame)> {
        let frames = self.frames.get(&ino).into_iter().flat_map(move |frames| frames.range(range.clone()));
        frames.map(|(&index, frame)| (index, frame))
    }

    /// Frozen frames of a file in a range, to mark.
    pub fn frames_of_mut(&mut self, ino: Ino, frames: Range<u64>) -> impl Iterator<Item = &mut FrozenFrame> {
        self.frames.get_mut(&ino).into_iter().flat_map(move |of| of.range_mut(frames.clone())).map(|(_, f)| f)
    }

    /// Frames that were cut off, punched or freed meanwhile: the media may get them, nobody reads them.
    pub fn forget(&mut self, ino: Ino, range: Range<u64>) {
        if let Some(frames) = self.frames.get_mut(&ino) {
            let mut cut = frames.split_off(&range.start);
            let mut rest = cut.split_off(&range.end);
            frames.append(&mut rest);
        }
    }
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

/// What was written to the SSD and lies on the disk, too: bound as long as the file is as it was then.
struct Settled {
    placement: Placement,
    /// See [`super::core::Node::version`].
    version: u64,
}

/// What one cycle writes.
struct Work {
    op: u64,
    frozen: Frozen,
    ordered: Vec<(u64, Bytes)>,
    placements: Vec<Placement>,
    /// The tie that was frozen with it.
    tie: Tie,
}

impl Shared {
    /// The background thread: until told to stop, waits for a reason and runs a cycle.
    pub(super) fn run_cycles(self: &Arc<Shared>) {
        loop {
            let mut core = self.core.lock();
            while !core.stop && !self.cycle_due(&core) && !self.promotion_due(&core) {
                match self.next_deadline(&core) {
                    Some(wait) => {
                        self.work.wait_until(&mut core, &*self.clock, wait);
                    }
                    None => self.work.wait(&mut core),
                }
            }
            if core.stop {
                return;
            }
            let due = self.cycle_due(&core);
            drop(core);
            if due {
                self.cycle_or_stop();
            }
            self.promote();
        }
    }

    fn cycle_or_stop(&self) {
        if let Err(error) = self.cycle() {
            self.stop_with(&error);
        }
        self.progress.notify_all();
    }

    /// Nothing can be changed any more: the disk failed.
    pub(super) fn stop_with(&self, error: &Error) {
        tracing::error!(%error, "the disk half failed; files can be read, not changed");
        self.core.lock().state.disk_failed(error);
    }

    fn cycle_due(&self, core: &Core) -> bool {
        self.cycle_wanted(core)
            || core.state.is_running()
                && core.dirty.since.is_some_and(|since| self.clock.now().since(since) >= self.lag.time / 2)
    }

    /// Reasons for a cycle other than time.
    pub(super) fn cycle_wanted(&self, core: &Core) -> bool {
        core.state.is_running()
            && (core.wanted > core.committed
                || core.dirty.bytes >= self.lag.bytes / 4
                || core.journal_need() >= self.transaction_limit() / 2
                || core.queue.wants_commit()
                || core.ops.len_bytes() >= self.ops_limit)
    }

    fn promotion_due(&self, core: &Core) -> bool {
        core.promotions.is_due() || (!core.promotions.is_empty() && core.promote_at <= self.clock.now())
    }

    fn next_deadline(&self, core: &Core) -> Option<Time> {
        // A file system that has stopped has no cycle to wait for.
        let dirty =
            core.dirty.since.filter(|_| core.state.is_running()).map(|since| since + self.lag.time / 2);
        let promote = (!core.promotions.is_empty()).then(|| self.clock.now() + PROMOTE_WAIT);
        match (dirty, promote) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Wakes the committer if there is reason to run a cycle.
    pub(super) fn wake_if_due(&self, core: &mut Core) {
        if core.cycle.is_none() && self.cycle_wanted(core) {
            self.work.notify_one();
        }
    }

    /// Waits until a cycle has moved on; without a committer, runs one.
    pub(super) fn await_progress(&self, core: &mut MutexGuard<'_, Core>) {
        if self.manual {
            MutexGuard::unlocked(core, || self.cycle_or_stop());
        } else {
            self.progress.wait(core);
        }
    }

    /// One commit cycle, start to end.
    ///
    /// # Errors
    /// Of the disk half, which cannot be used further; of step 3 on an SSD that cannot be given up for it.
    pub(super) fn cycle(&self) -> Result<()> {
        let mut core = self.core.lock();
        core.ext4.mark_in_use(self.clock.wall())?;
        let demand = core.demand_of_dirty();
        drop(core);
        self.use_ssd(|| self.make_room_on_ssd(&demand));
        let Work { op, mut frozen, ordered, placements, tie } = self.freeze()?;
        let disk = submit_gathered(self.disk.as_ref(), self.clock.now(), ordered);
        let late = match self.finish_ssd(op, placements) {
            Ok(late) => late,
            Err(error) if self.ssd_overflowed(&error) || self.ssd_failed(&error) => Vec::new(),
            Err(error) => {
                // Without the SSD's word the disk must not go on.
                let _ = wait_all(self.disk.as_ref(), disk);
                return Err(error);
            }
        };
        self.retie(&mut frozen, tie);
        let tid = frozen.tid;
        self.finish_disk(disk, frozen)?;
        self.committed(op, tid)?;
        self.use_ssd(|| if late.is_empty() { self.trim_log() } else { self.bind_late(late) });
        let core = self.core.lock();
        let alone = self.manual || core.state.is_mounting() || core.stop;
        drop(core);
        // There is no checkpointer beside it.
        if alone { self.checkpoint_here() } else { Ok(()) }
    }

    /// Does something on the SSD that may as well not be done.
    pub(super) fn use_ssd(&self, with: impl FnOnce() -> Result<()>) {
        if let Err(error) = with() {
            self.ssd_failed(&error);
        }
    }

    /// Step 1.
    fn freeze(&self) -> Result<Work> {
        let mut core = self.core.lock();
        let (op, account) = (core.op, core.journal_need());
        let mut files = Files { limit: self.journal_limit(&core), ..Files::default() };
        let Dirty { bytes, since } = std::mem::take(&mut core.dirty);
        let carried = std::mem::take(&mut core.carried);
        core.cycle = Some(Cycle { bytes, since, carried, began: self.clock.now(), ..Cycle::default() });
        for ino in std::mem::take(&mut core.dirty_nodes) {
            self.freeze_file(&mut core, ino, &mut files)?;
        }
        let tie = self.tie_of(&core, op);
        core.ext4.note_written(files.ordered.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        let mut frozen = core.ext4.freeze(self.clock.wall(), Some(&tie.encode()))?;
        frozen.transaction.metadata.append(&mut files.journaled);
        let images = frozen.transaction.metadata.len() as u64;
        // Live data that gets a new place changes more than it was accounted for, within what the journal takes.
        let most = account.max(files.limit).max(1);
        debug_assert!(images <= most, "{images} images, {account} accounted for, {} allowed", files.limit);
        core.cycle.iter_mut().for_each(|cycle| cycle.images = images);
        core.counters.cycles += 1;
        let Files { ordered, placements, .. } = files;
        Ok(Work { op, frozen, ordered, placements, tie })
    }

    fn freeze_file(&self, core: &mut Core, ino: Ino, files: &mut Files) -> Result<()> {
        let Some(node) = core.nodes.get_mut(&ino) else { return Ok(()) };
        node.listed = false;
        let frames: Frames = std::mem::take(&mut node.frames);
        if frames.is_empty() {
            return Ok(());
        }
        let promised = std::mem::take(&mut node.reserved);
        let touched = std::mem::take(&mut node.touched);
        let frozen: BTreeMap<u64, FrozenFrame> =
            frames.into_iter().map(|(index, frame)| (index, frame.freeze())).collect();
        let stale = self.stale_copies(core, ino, &frozen);
        let placed = self.place_frozen(core, ino, &frozen, files);
        core.forget_needs(ino);
        core.ext4.unreserve(promised);
        // Whatever failed: what is in the cycle can be read.
        if let Some(cycle) = &mut core.cycle {
            cycle.frames.insert(ino, frozen);
            if !stale.is_empty() {
                cycle.stale.insert(ino, stale);
            }
            cycle.touched.insert(ino, touched);
        }
        core.drop_if_idle(ino);
        placed
    }

    /// Stretches of frozen frames of which the SSD has older contents.
    fn stale_copies(&self, core: &Core, ino: Ino, frozen: &BTreeMap<u64, FrozenFrame>) -> Vec<(u64, u64)> {
        let Some(ssd) = &core.ssd else { return Vec::new() };
        let unplaced = frozen.iter().filter(|(_, frame)| !frame.placed).map(|(&index, _)| index);
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
        frozen: &BTreeMap<u64, FrozenFrame>,
        files: &mut Files,
    ) -> Result<()> {
        self.place_on_disk(core, ino, frozen, files)?;
        if let Some(section) = core.policy(ino).section.filter(|_| !core.state.ssd_is_fixed()) {
            let unplaced = frozen.iter().filter(|(_, frame)| !frame.placed);
            let unplaced = unplaced.map(|(&index, frame)| (index, frame.bytes.clone())).collect();
            files.placements.extend(self.room_for(core, section, ino, unplaced));
        }
        Ok(())
    }

    /// Gives a file's frozen frames their disk blocks: new ones are written in place, live ones journaled.
    fn place_on_disk(
        &self,
        core: &mut Core,
        ino: Ino,
        frozen: &BTreeMap<u64, FrozenFrame>,
        files: &mut Files,
    ) -> Result<()> {
        let block_bytes = self.disk_block_bytes as u64;
        let per_frame = self.blocks_per_frame;
        let end = core.ext4.inode(ino)?.size.div_ceil(block_bytes);
        let slice = |block: u64| -> Option<Bytes> {
            let within = (block % per_frame * block_bytes) as usize;
            Some(frozen.get(&(block / per_frame))?.bytes.slice(within..within + block_bytes as usize))
        };
        for (first, count) in runs(frozen.keys().copied()) {
            let start = first * per_frame;
            let stop = ((first + count) * per_frame).min(end);
            let Some(len) = stop.checked_sub(start).filter(|&len| len > 0) else { continue };
            let moves = |block: u64| frozen.get(&(block / per_frame)).is_some_and(|frame| frame.moves);
            for placed in self.place_run(core, ino, start, len as u32, moves, files)? {
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
            match core.ext4.relocate(ino, placed.block, placed.len, pieces) {
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

    /// Step 2 and 3 on the SSD: data, then the records of what it holds and no longer holds, durable.
    ///
    /// Returns what was written and found the log too full to be bound.
    fn finish_ssd(&self, op: u64, placements: Vec<Placement>) -> Result<Vec<Settled>> {
        if self.ssd_device.is_none() {
            return Ok(Vec::new());
        }
        let mut core = self.core.lock();
        if core.state.ssd_is_fixed() {
            core.touch_frozen(op);
            return Ok(Vec::new());
        }
        drop(core);
        self.write_placements(&placements)?;
        let gate = self.line.claim();
        match self.make_room(&gate) {
            Err(error @ Error::Ssd(_)) => return Err(error),
            Err(error) => tracing::error!(%error, "the log could not be started anew"),
            Ok(()) => {}
        }
        let mut core = self.core.lock();
        if core.ssd.is_none() {
            return Ok(Vec::new());
        }
        let late = self.bind_frozen(&mut core, op, placements);
        self.unbind_frozen(&mut core, op);
        self.evict(&mut core, &Demand::default());
        self.write_log(core).map(|()| late)
    }

    /// Binds what this cycle wrote, unless newer data stands over it or it was cut off meanwhile. Returns what the log
    /// has no room for.
    fn bind_frozen(&self, core: &mut Core, op: u64, placements: Vec<Placement>) -> Vec<Settled> {
        let unit = self.ssd_blocks_per_frame as u32;
        let mut late = Vec::new();
        for placement in placements {
            let is_current = |number: usize| core.is_current(placement.ino, placement.index + number as u64);
            let current: SmallVec<[bool; 64]> = (0..placement.frames.len()).map(is_current).collect();
            let mut at = 0;
            for alike in current.chunk_by(|one, next| one == next) {
                let part = placement.part(at..at + alike.len(), unit);
                at += alike.len();
                match alike[0] {
                    true => late.extend(self.bind_part(core, op, part)),
                    false => core.ssd.iter_mut().for_each(|ssd| ssd.release(part.run)),
                }
            }
        }
        late
    }

    /// Binds a stretch of frozen frames that nothing newer covers; gives it back if the log has no room for that.
    fn bind_part(&self, core: &mut Core, op: u64, placement: Placement) -> Option<Settled> {
        let ino = placement.ino;
        let copy = self.dup_inode(core, ino);
        let ssd = core.ssd.as_mut()?;
        let inode = match (copy, core.nodes.get(&ino)) {
            (Some(inode), _) if !ssd.is_filled(0, fill::BINDS) => inode,
            (Some(_), Some(node)) => return Some(Settled { placement, version: node.version }),
            _ => {
                ssd.release(placement.run);
                return None;
            }
        };
        let Placement { index, run, ref frames, .. } = placement;
        let file_block = (index * self.ssd_blocks_per_frame) as u32;
        let sums = placement.sums(self.ssd_block_bytes);
        let binding = Binding { file_block, run, sums, state: WrDone::Ssd, inode: &inode };
        if ssd.bind(op, ino, &binding).is_ok()
            && let Some(cycle) = &mut core.cycle
        {
            let range = index..index + frames.len() as u64;
            cycle.frames_of_mut(ino, range).for_each(|frame| (frame.placed, frame.bound) = (true, true));
        }
        None
    }

    /// The SSD forgets its copies of everything that changes on the disk and was not bound anew by this cycle; what later
    /// operations bound stays. What would take more of the log than there is room for is said with one record, which
    /// forgets everything else, too.
    fn unbind_frozen(&self, core: &mut Core, op: u64) {
        let Core { ssd: Some(ssd), cycle: Some(cycle), in_log, counters, .. } = core else { return };
        let mut full = false;
        for (ino, stale) in std::mem::take(&mut cycle.stale) {
            let settled = in_log.get(&ino).is_none_or(|&promised| promised <= op);
            let stale = stale_stretches(&stale, cycle.frames.get_mut(&ino), settled);
            full = ssd.is_filled(stale.len() as u64 * UNBIND_BYTES, fill::UNBINDS);
            if full {
                break;
            }
            for (first, count) in stale {
                let (from, len) = self.ssd_range(&(first..first + count));
                ssd.unbind_on_disk(op, ino, from, len);
            }
        }
        if full {
            counters.forgotten += 1;
            ssd.forget_on_disk(op);
            let per_frame = self.ssd_blocks_per_frame;
            for (&ino, frames) in &mut cycle.frames {
                for (index, frame) in frames.iter_mut().filter(|(_, frame)| frame.placed) {
                    let block = u32::try_from(index * per_frame).ok();
                    frame.placed = block.is_some_and(|block| ssd.resident(ino, block).is_some());
                }
            }
        }
    }

    /// Step 2 and 4 on the disk.
    fn finish_disk(&self, ordered: Vec<Ticket>, frozen: Frozen) -> Result<()> {
        wait_all(self.disk.as_ref(), ordered).result?;
        self.journal.commit(self.clock.now(), frozen.transaction)?;
        Ok(())
    }

    /// The disk has everything up to `op`.
    fn committed(&self, op: u64, tid: u64) -> Result<()> {
        let mut core = self.core.lock();
        core.ext4.committed(tid);
        core.committed = op;
        core.reuse += 1;
        core.ops.trim(op);
        core.in_log.retain(|_, promised| *promised > op);
        core.queue.commit_is_done();
        let Some(cycle) = core.cycle.take() else { return Ok(()) };
        self.note_pace(&mut core, cycle.bytes, cycle.began);
        drop(cycle);
        // Until the SSD is told what recovery did, what is known of it stays as it was found.
        let told = !core.state.ssd_is_fixed();
        if let Some(ssd) = core.ssd.as_mut().filter(|_| told) {
            ssd.trim(op);
        }
        let released = self.release_more(&mut core);
        self.note_status(&core);
        drop(core);
        self.progress.notify_all();
        self.home_work.notify_all();
        released
    }

    /// If the log is still half full, its residency records go to the tables; the next flush lets go of them.
    fn trim_log(&self) -> Result<()> {
        let mut core = self.core.lock();
        let waited = std::mem::take(&mut core.tables_due);
        let full = core.log_full;
        let due =
            !core.state.is_mounting() && core.ssd.as_ref().is_some_and(|ssd| waited || ssd.needs_restart());
        // Another one may have made the room meanwhile.
        core.log_full &= due;
        drop(core);
        if due {
            let _gate = self.line.claim();
            if full { self.empty_log()? } else { self.write_tables()? }
        }
        if full {
            self.progress.notify_all();
        }
        Ok(())
    }

    /// Binds what a cycle found no room for in the log, emptying that as often as it takes.
    fn bind_late(&self, late: Vec<Settled>) -> Result<()> {
        let _gate = self.line.claim();
        let mut late = late.into_iter().peekable();
        while late.peek().is_some() {
            self.empty_log()?;
            let mut core = self.core.lock();
            let is_full = |core: &Core| core.ssd.as_ref().is_none_or(|ssd| ssd.is_filled(0, fill::BINDS));
            if is_full(&core) {
                late.for_each(|settled| {
                    self.bind_settled(&mut core, settled);
                });
                return Ok(());
            }
            while !is_full(&core)
                && let Some(settled) = late.next()
            {
                core.counters.bound_late += self.bind_settled(&mut core, settled);
            }
            if let Err(error) = self.write_log(core) {
                let mut core = self.core.lock();
                late.for_each(|settled| {
                    core.ssd.iter_mut().for_each(|ssd| ssd.release(settled.placement.run))
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// Copies to the SSD what reads brought from the disk.
    pub(super) fn promote(&self) {
        let demand = self.core.lock().demand_of_promotions();
        self.use_ssd(|| self.make_room_on_ssd(&demand));
        let mut core = self.core.lock();
        let mut placements = Vec::new();
        for (promotion, version) in core.promotions.take() {
            let room = self.room_for_promotion(&mut core, &promotion, version);
            placements.extend(room.map(|placement| Settled { placement, version }));
        }
        core.promote_at = self.clock.now() + PROMOTE_WAIT;
        drop(core);
        if placements.is_empty() {
            return;
        }
        if let Err(error) = self.write_placements(placements.iter().map(|settled| &settled.placement)) {
            self.ssd_failed(&error);
            return;
        }
        let mut core = self.core.lock();
        for settled in placements {
            core.counters.promoted_bytes += self.bind_settled(&mut core, settled);
        }
    }

    fn room_for_promotion(
        &self,
        core: &mut Core,
        promotion: &Promotion,
        version: u64,
    ) -> impl Iterator<Item = Placement> + use<> {
        let wanted = core.is_unchanged(promotion.ino, version);
        let section = if wanted { core.policy(promotion.ino).section } else { None };
        let frames = (0..promotion.frames()).map(|number| {
            let start = number as usize * FRAME;
            (promotion.index + number, promotion.bytes.slice(start..start + FRAME))
        });
        let placements = match section {
            Some(section) => self.room_for(core, section, promotion.ino, frames.collect()),
            None => Vec::new(),
        };
        placements.into_iter()
    }

    /// Binds a copy of what the disk has, unless the file changed since; how many bytes.
    fn bind_settled(&self, core: &mut Core, Settled { placement, version }: Settled) -> u64 {
        let Placement { ino, index, run, ref frames, .. } = placement;
        let unchanged = core.is_unchanged(ino, version);
        let copy = if unchanged { self.dup_inode(core, ino) } else { None };
        let sums = placement.sums(self.ssd_block_bytes);
        let committed = core.committed;
        let Some(ssd) = &mut core.ssd else { return 0 };
        let Some(inode) = copy.filter(|_| !ssd.is_filled(0, fill::BINDS)) else {
            ssd.release(run);
            return 0;
        };
        let file_block = (index * self.ssd_blocks_per_frame) as u32;
        let binding = Binding { file_block, run, sums, state: WrDone::Both, inode: &inode };
        ssd.bind(committed, ino, &binding).map_or(0, |()| (frames.len() * FRAME) as u64)
    }
}

/// Stretches whose copies on the SSD go, as first frame and count, without what the cycle bound anew: many of them are
/// joined, if nothing of the file that is promised lies between.
fn stale_stretches(
    stale: &[(u64, u64)],
    frames: Option<&mut BTreeMap<u64, FrozenFrame>>,
    settled: bool,
) -> Vec<(u64, u64)> {
    let is_bound =
        |index: &u64| frames.as_ref().and_then(|of| of.get(index)).is_some_and(|frame| frame.bound);
    let left = stale.iter().flat_map(|&(first, count)| first..first + count).filter(|index| !is_bound(index));
    let left: Vec<(u64, u64)> = runs(left).collect();
    match (left.first(), left.last()) {
        (Some(first), Some(last)) if settled && left.len() > RUNS_MAX => {
            // What lies between loses its copy, too, once the disk has it; until then the log must not take this
            // cycle's copies for promised ones.
            let all = first.0..last.0 + last.1;
            let between = frames.into_iter().flat_map(|of| of.range_mut(all.clone()));
            between.for_each(|(_, frame)| frame.placed = false);
            vec![(all.start, all.end - all.start)]
        }
        _ => left,
    }
}

impl Core {
    /// A frozen frame that nothing newer covers.
    fn is_current(&self, ino: Ino, index: u64) -> bool {
        let frozen = self.cycle.as_ref().and_then(|cycle| cycle.frames.get(&ino)?.get(&index));
        let newer = self.nodes.get(&ino).is_some_and(|node| node.frames.contains_key(&index));
        frozen.is_some_and(|frame| !frame.placed) && !newer
    }

    /// A file whose contents are as they were at `version`, with nothing dirty or on its way.
    fn is_unchanged(&self, ino: Ino, version: u64) -> bool {
        let node = self.nodes.get(&ino);
        let moving = self.cycle.as_ref().is_some_and(|cycle| cycle.frames.contains_key(&ino));
        node.is_some_and(|node| node.version == version && node.frames.is_empty() && !node.orphan) && !moving
    }
}

impl Core {
    /// In recovery: the SSD's copies of what this cycle brings to the disk, and the SSD does not have, are old.
    fn touch_frozen(&mut self, op: u64) {
        let Core { cycle: Some(cycle), touched, .. } = self else { return };
        for (&ino, frames) in &cycle.frames {
            let stale = frames.iter().filter(|(_, frame)| !frame.placed).map(|(&index, _)| index);
            let stale = runs(stale).map(|(first, count)| first..first + count);
            touched.extend(stale.map(|frames| Touched { ino, frames, before: op + 1 }));
        }
    }
}

impl Shared {
    /// What the disk is to say with a transaction that ends with `op`.
    fn tie_of(&self, core: &Core, op: u64) -> Tie {
        let lag_tenths = u16::try_from(self.lag.time.as_millis().div_ceil(100)).unwrap_or(u16::MAX);
        let (epoch, state) = (core.state.epoch(), core.state.saved());
        Tie { ssd: self.ssd_uuid, epoch, op, state, reached: core.log_reached(), lag_tenths }
    }

    /// Replaces the tie in a frozen transaction: the SSD's log has gone on since, or the SSD is gone.
    fn retie(&self, frozen: &mut Frozen, frozen_tie: Tie) {
        let mut core = self.core.lock();
        let mut tie = self.tie_of(&core, frozen_tie.op);
        if tie.epoch != frozen_tie.epoch {
            // Its log may hold what was fsynced after the freeze; the next transaction has that, and raises the epoch.
            tie = Tie { state: Saved::Recovering, ..frozen_tie };
        }
        if tie != frozen_tie {
            core.ext4.retie(frozen, &tie.encode());
        }
    }
}
