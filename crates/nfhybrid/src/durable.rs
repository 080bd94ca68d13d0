//! fsync: onto the SSD by its log, or onto the disk by the commit cycle.
//!
//! An fsync appends, in one hold of the core's lock, what makes its promise true: the data that has to go along with the
//! operations so far (see [`Core::carry`]), those operations, its own data, and the mark that everything up to here is in
//! the log. Then it joins the [line](super::line): one thread writes what all appended, those who wait share its write.
//! A small fsync alone is one device write on its caller's thread. A large one writes its data to a section first, beside
//! the others; the log then names it, and both become durable with one flush.
//!
//! Whatever goes wrong on the way leaves one of three verdicts. The log has it: done. The log has no room, an inode cannot
//! be described, the SSD is lost: the disk must do, and the caller waits for it. The disk failed: its error.
//!
//! Invariants. An fsync returns success only when the batch of the log with its mark is durable, or the disk has its
//! operation. Nothing is marked complete whose data is not appended before the mark.
//!
//! Lock order: gate, then core, then the line.

use super::Shared;
use super::core::Core;
use super::frames::{FRAME, runs};
use super::line::Gate;
use super::place::Placement;
use super::policy::Durability;
use super::record::{Record, when};
use super::room::Demand;
use super::unlogged::{bytes_in_log, mark, unlogged_bytes, unlogged_frames};
use crate::ssd::{Binding, CopyState, Ssd};
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::{Deferred, Kind};
use bytes::Bytes;
use std::sync::Arc;

/// Dirty bytes of a file up to which an fsync puts them into the log itself. What is more goes to its section at once: a
/// request more under the same flush, and the SSD gets it once instead of twice.
const INLINE_MAX: usize = 8 << 10;

/// How full the log may get, in sixteenths of it, by what; each leaves room for what comes below it. A group that does
/// not fit before the log's end leaves a gap of one sixteenth at most.
pub(super) mod fill {
    /// Binds of a commit cycle, and of what reads brought.
    pub const BINDS: u64 = 9;
    /// Fsyncs, with the binds of their data.
    pub const FSYNCS: u64 = 10;
    /// A restart, with the live records it writes again.
    pub const RESTART: u64 = 12;
    /// Unbinds of a commit cycle; one record for everything takes their place then.
    pub const UNBINDS: u64 = 13;
    /// What has to be in the log before the tables are written.
    pub const TABLES: u64 = 14;
}

/// How an attempt to make an inode durable on the SSD ended.
#[derive(Clone, Copy, PartialEq)]
enum Logged {
    /// It is.
    Done,
    /// There is no SSD, or no room on it: the disk must do.
    Disk,
}

/// What became of appending all that an fsync promises.
enum Appended {
    /// It is in the log up to this batch.
    Batch(u64),
    /// The log has no room for it.
    Full,
    /// It cannot go into the log.
    Not,
}

impl Shared {
    /// See [`bimetal_vfs::FileSystem::fsync`].
    pub(super) fn fsync(self: &Arc<Shared>, ino: Ino) -> Result<Deferred<()>> {
        let mut core = self.core.lock();
        core.state.check_readable()?;
        let is_dir = core.ext4.inode(ino)?.kind() == Kind::Dir;
        let policy = core.policy(ino);
        let target = core.ops.last();
        if core.ops.are_on_disk(target) {
            return Ok(Deferred::Now(()));
        }
        let by_log = core.ssd.is_some() && (policy.section.is_some() || is_dir);
        drop(core);
        let both = policy.durability == Durability::Both;
        let shared = self.clone();
        Ok(Deferred::Wait(Box::new(move || match by_log && shared.log_inode(ino) == Logged::Done && !both {
            true => Ok(()),
            false => shared.await_disk(target),
        })))
    }

    /// Makes an inode durable on the SSD, if that can be.
    fn log_inode(&self, ino: Ino) -> Logged {
        let logged = self.try_log_inode(ino).unwrap_or_else(|error| {
            self.ssd_failed(&error);
            Logged::Disk
        });
        let mut core = self.core.lock();
        match logged {
            Logged::Done => core.counters.fsync_ssd += 1,
            Logged::Disk => core.counters.fsync_disk += 1,
        }
        logged
    }

    /// Appends and joins the line; if the log is full, once more after it was emptied.
    ///
    /// # Errors
    /// Those of the SSD's device.
    fn try_log_inode(&self, ino: Ino) -> Result<Logged> {
        let mut full_at = None;
        for _ in 0..2 {
            let carried = self.core.lock().carried(ino);
            let mut placements = self.place_large(ino)?;
            for other in carried {
                placements.extend(self.place_large(other)?);
            }
            let gate = match full_at {
                Some(used) => self.gate_to_empty_log(used)?,
                None => self.gate_if_due()?,
            };
            let mut core = self.core.lock();
            self.bind_placed(&mut core, placements);
            match self.append_promise(&mut core, ino) {
                Appended::Batch(batch) => return self.write_joined(core, gate, batch),
                Appended::Full => full_at = core.ssd.as_ref().map(Ssd::used),
                Appended::Not => break,
            }
        }
        Ok(Logged::Disk)
    }

    /// Starts the log anew if that is due; then the gate is the caller's, whose next write takes the restart along.
    fn gate_if_due(&self) -> Result<Option<Gate<'_>>> {
        if !self.is_restart_due() {
            return Ok(None);
        }
        let gate = self.line.claim();
        if !self.is_restart_due() {
            // Another one did it meanwhile: its company is worth more than the gate.
            return Ok(None);
        }
        self.make_room(&gate)?;
        Ok(Some(gate))
    }

    /// Makes all the room in the log that can be made without the disk, at the price of a few flushes; the gate goes with
    /// it. Whoever finds that others made it, since so many bytes were `used`, needs no gate.
    fn gate_to_empty_log(&self, used: u64) -> Result<Option<Gate<'_>>> {
        self.await_tables();
        let gate = self.line.claim();
        if self.core.lock().ssd.as_ref().is_none_or(|ssd| ssd.used() + ssd.capacity() / 8 <= used) {
            return Ok(None);
        }
        self.relog(&gate)?;
        match self.write_log(self.core.lock()) {
            Ok(()) | Err(Error::NoSpace(_)) => self.empty_log().map(|()| Some(gate)),
            Err(error) => Err(error),
        }
    }

    /// Where only the tables can make room in the log, waits for the end of the cycle that keeps them from being written.
    fn await_tables(&self) {
        let mut core = self.core.lock();
        let cycle = core.counters.cycles;
        while core.cycle.is_some() && core.counters.cycles == cycle && core.is_log_held() {
            if core.state.check_running().is_err() {
                return;
            }
            self.await_progress(&mut core);
        }
    }

    /// Appends all that an fsync of `ino` promises.
    fn append_promise(&self, core: &mut Core, ino: Ino) -> Appended {
        let mut files = core.carried(ino);
        files.push(ino);
        let sizes = files.iter().map(|&one| unlogged_bytes(core, one));
        let (data, most) = sizes.fold((0, 0), |(sum, most), bytes| (sum + bytes, most.max(bytes)));
        if core.ssd.is_none() {
            return Appended::Not;
        }
        if !core.has_room(bytes_in_log(files.len(), data), fill::FSYNCS) || most > self.inline_limit {
            return Appended::Full;
        }
        core.number_contents();
        // What goes along comes before the operations: of several groups a crash may leave the first ones.
        files.pop();
        let along = files.into_iter().try_for_each(|other| self.append_data(core, other));
        let appended =
            along.and_then(|()| self.append_operations(core)).and_then(|()| self.append_data(core, ino));
        if let Err(error) = appended {
            tracing::debug!(ino = ino.0, %error, "not for the SSD's log");
            return Appended::Not;
        }
        core.carried_along();
        core.append_complete();
        core.ssd.as_ref().map_or(Appended::Not, |ssd| Appended::Batch(ssd.last_batch()))
    }

    /// Waits until `batch` is durable, or writes the log for all who wait.
    fn write_joined<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        gate: Option<Gate<'a>>,
        batch: u64,
    ) -> Result<Logged> {
        let standing = self.line.stand(batch);
        let (_gate, core) = match gate.or_else(|| standing.lead()) {
            Some(gate) => (gate, core),
            None => {
                drop(core);
                let Some(gate) = standing.join() else { return Ok(Logged::Done) };
                (gate, self.core.lock())
            }
        };
        match self.write_log(core) {
            Ok(()) | Err(Error::NoSpace(_)) if standing.is_served() => Ok(Logged::Done),
            Ok(()) | Err(Error::NoSpace(_)) => Ok(Logged::Disk),
            Err(error) => Err(error),
        }
    }

    /// Writes a large file's unlogged frames to its section. No gate: other fsyncs go on meanwhile.
    fn place_large(&self, ino: Ino) -> Result<Vec<Placement>> {
        let mut core = self.core.lock();
        let total = unlogged_bytes(&core, ino);
        let Some(section) = core.policy(ino).section else { return Ok(Vec::new()) };
        if total <= INLINE_MAX {
            return Ok(Vec::new());
        }
        let mut demand = Demand::default();
        if let Some(ssd) = &core.ssd {
            demand.add(ssd, section, total.div_ceil(FRAME) as u64);
        }
        drop(core);
        self.make_room_on_ssd(&demand)?;
        let mut core = self.core.lock();
        let frames = unlogged_frames(&mut core, ino);
        let placements = self.room_for(&mut core, section, ino, frames);
        drop(core);
        self.write_placements(&placements)?;
        Ok(placements)
    }

    /// Room for frames that need not follow one another.
    pub(super) fn room_for(
        &self,
        core: &mut Core,
        section: usize,
        ino: Ino,
        frames: Vec<(u64, Bytes)>,
    ) -> Vec<Placement> {
        let Some(ssd) = &mut core.ssd else { return Vec::new() };
        let now = self.clock.now();
        let mut placements = Vec::new();
        // The SSD counts a file's blocks in 32 bits; what lies beyond stays on the disk alone.
        let end = u64::from(u32::MAX) / self.ssd_blocks_per_frame;
        let frames: Vec<_> = frames.into_iter().filter(|&(index, _)| index < end).collect();
        let stretches: Vec<_> = runs(frames.iter().map(|&(index, _)| index)).collect();
        let mut frames = frames.into_iter();
        for (first, count) in stretches {
            let part = frames.by_ref().take(count as usize).map(|(_, bytes)| bytes).collect();
            placements.extend(self.find_room(ssd, section, ino, first, part, now));
        }
        placements
    }

    /// Binds what was written to a section, where the file still holds it; the rest is released.
    pub(super) fn bind_placed(&self, core: &mut Core, placements: Vec<Placement>) {
        if placements.is_empty() {
            return;
        }
        let op = core.number_contents();
        for placement in placements {
            let Placement { ino, index, run, ref frames, .. } = placement;
            let same =
                frames.iter().enumerate().all(|(n, bytes)| core.still_holds(ino, index + n as u64, bytes));
            let copy = self.dup_inode(core, ino);
            let Some(ssd) = &mut core.ssd else { return };
            let room = !ssd.is_filled(0, fill::FSYNCS);
            match copy.filter(|_| same && room) {
                None => ssd.release(run),
                Some(inode) => {
                    let file_block = (index * self.ssd_blocks_per_frame) as u32;
                    let sums = placement.sums(self.ssd_block_bytes);
                    let binding = Binding { file_block, run, sums, state: CopyState::Ssd, inode: &inode };
                    // A full inode table only means that there is no copy on the SSD.
                    if ssd.bind(op, ino, &binding).is_ok() {
                        core.promised.promise(ino, op);
                        mark(core, ino, index..index + frames.len() as u64, |known| known.placed = true);
                    }
                }
            }
        }
    }

    /// Appends the records of all operations the log lacks.
    pub(super) fn append_operations(&self, core: &mut Core) -> Result<()> {
        let Core { ssd: Some(ssd), ops, .. } = core else { return Ok(()) };
        ops.log(|op, bytes| ssd.append(op, bytes))
    }

    /// Appends a file's unlogged data, its size and times. Of a file that is gone there is nothing to say.
    ///
    /// # Errors
    /// What keeps its inode from being read: nothing is appended then.
    pub(super) fn append_data(&self, core: &mut Core, ino: Ino) -> Result<()> {
        let contents = contents_record(core, ino)?;
        let op = core.ops.last();
        let mut scratch = core.take_scratch();
        let frames = unlogged_frames(core, ino);
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        for (index, bytes) in &frames {
            data_record(ino, *index, bytes, &mut scratch);
            ssd.append(op, &scratch)?;
        }
        if let Some(record) = contents {
            scratch.clear();
            record.encode(&mut scratch);
            ssd.append(op, &scratch)?;
        }
        for (index, _) in frames {
            mark(core, ino, index..index + 1, |known| known.logged = true);
        }
        core.all_logged(ino);
        core.keep_scratch(scratch);
        Ok(())
    }

    /// Waits until the disk half has operation `target`.
    pub(super) fn await_disk(&self, target: u64) -> Result<()> {
        let mut core = self.core.lock();
        core.ops.want(target);
        self.work.notify_one();
        while !core.ops.are_on_disk(target) {
            core.state.check_running()?;
            self.await_progress(&mut core);
        }
        Ok(())
    }
}

/// The record of a frame of a file, in place of what `out` held.
pub(super) fn data_record(ino: Ino, index: u64, bytes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    Record::Data { ino: ino.0, offset: index * FRAME as u64, bytes }.encode(out);
}

/// A file's size, times and mode, as of now; nothing for what has no contents or is gone.
pub(super) fn contents_record(core: &mut Core, ino: Ino) -> Result<Option<Record<'static>>> {
    let inode = match core.ext4.inode(ino) {
        Err(Error::Stale | Error::NotFound) => return Ok(None),
        inode => inode?,
    };
    let record = Record::Contents {
        ino: ino.0,
        generation: inode.generation,
        size: inode.size,
        perm: inode.perm(),
        mtime: when(inode.mtime),
        ctime: when(inode.ctime),
    };
    Ok((inode.kind() == Kind::File).then_some(record))
}
