//! fsync, and the SSD's log.
//!
//! One thread at a time writes the log (it holds the *gate*), so that a record is durable only after every
//! record before it. A small fsync is one device write: the pending operation records and the file's data ride
//! in it together. A large one writes the data to its section first.
//!
//! When the log is half full and the disk has not caught up, it is started anew: data that lay in the log goes
//! to its section, the live records are written again, the old ones are dropped. The disk's speed never
//! limits an fsync; only the lag bound does. All of it rides with the fsync that found the log half full, and costs
//! no flush of its own: the tables are written after it and count from the next flush on.
//!
//! Lock order: gate, then core.

use super::Shared;
use super::core::Core;
use super::frames::{FRAME, runs};
use super::place::{Placement, submit_gathered};
use super::policy::Durability;
use super::record::{Record, when};
use super::room::Demand;
use crate::fs::nfhybrid::ssd::{Binding, LogWrite, Ssd, WrDone};
use crate::fs::{Kind, Later};
use crate::media::{Request, wait_all};
use crate::runtime::sync::MutexGuard;
use crate::units::{Ino, show_size};
use crate::{Error, Result};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Dirty bytes of a file up to which an fsync puts them into the log itself.
const INLINE_MAX: usize = 64 << 10;

/// What the headers of a few records and groups take at most.
const RECORDS_BYTES: u64 = 4 << 10;

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
enum Logged {
    /// It is.
    Done,
    /// There is no SSD, or no room on it: the disk must do.
    Disk,
}

impl Shared {
    /// See [`crate::fs::FileSystem::fsync`].
    pub(super) fn fsync(self: &Arc<Shared>, ino: Ino) -> Result<Later<()>> {
        let mut core = self.core.lock();
        core.alive()?;
        let is_dir = core.ext4.inode(ino)?.kind() == Kind::Dir;
        let policy = core.policy(ino);
        let target = core.op;
        if core.committed >= target {
            return Ok(Later::Now(()));
        }
        let by_log = core.ssd.is_some() && (policy.section.is_some() || is_dir);
        let large = unlogged_bytes(&core, ino) > INLINE_MAX;
        drop(core);
        let shared = self.clone();
        if !by_log {
            return Ok(Later::Wait(Box::new(move || shared.await_disk(target))));
        }
        let both = policy.durability == Durability::Both;
        if large || both {
            return Ok(Later::Wait(Box::new(move || shared.fsync_waiting(ino, target, both))));
        }
        match self.log_inode(ino) {
            Logged::Done => Ok(Later::Now(())),
            Logged::Disk => Ok(Later::Wait(Box::new(move || shared.await_disk(target)))),
        }
    }

    fn fsync_waiting(&self, ino: Ino, target: u64, both: bool) -> Result<()> {
        match self.log_inode(ino) {
            Logged::Done if !both => Ok(()),
            Logged::Done | Logged::Disk => self.await_disk(target),
        }
    }

    /// Makes an inode durable on the SSD, if that can be.
    fn log_inode(&self, ino: Ino) -> Logged {
        match self.try_log_inode(ino) {
            Ok(logged) => {
                let mut core = self.core.lock();
                match logged {
                    Logged::Done => core.counters.fsync_ssd += 1,
                    Logged::Disk => core.counters.fsync_disk += 1,
                }
                logged
            }
            Err(error) => {
                self.lose_ssd(&error);
                Logged::Disk
            }
        }
    }

    fn try_log_inode(&self, ino: Ino) -> Result<Logged> {
        let carried = self.core.lock().take_carried(ino);
        let mut placements = self.place_large(ino)?;
        for &other in &carried {
            placements.extend(self.place_large(other)?);
        }
        let gate = self.gate.lock();
        self.make_room(&gate)?;
        let mut core = self.core.lock();
        self.bind_placed(&mut core, placements);
        let data: usize = carried.iter().chain([&ino]).map(|&one| unlogged_bytes(&core, one)).sum();
        if !core.has_room(data, fill::FSYNCS) {
            core.carried.extend(carried);
            return Ok(Logged::Disk);
        }
        if carried.iter().chain([&ino]).any(|&one| unlogged_bytes(&core, one) > self.inline_limit) {
            core.carried.extend(carried);
            return Ok(Logged::Disk);
        }
        for other in carried {
            self.append_data(&mut core, other)?;
        }
        self.append_operations(&mut core)?;
        self.append_data(&mut core, ino)?;
        core.append_complete();
        match self.write_log(core) {
            Err(Error::NoSpace(_)) => Ok(Logged::Disk),
            written => written.map(|()| Logged::Done),
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
        let op = core.op;
        for placement in placements {
            let Placement { ino, index, run, ref frames } = placement;
            let same =
                frames.iter().enumerate().all(|(n, bytes)| core.still_holds(ino, index + n as u64, bytes));
            let sums = placement.sums(self.ssd_block_bytes);
            let copy = self.dup_inode(core, ino);
            let Some(ssd) = &mut core.ssd else { return };
            let room = !ssd.is_filled(0, fill::FSYNCS);
            match copy.filter(|_| same && room) {
                None => ssd.release(run),
                Some(inode) => {
                    let file_block = (index * self.ssd_blocks_per_frame) as u32;
                    let binding = Binding { file_block, run, sums: &sums, state: WrDone::Ssd, inode: &inode };
                    // A full inode table only means that there is no copy on the SSD.
                    if ssd.bind(op, ino, &binding).is_ok() {
                        core.in_log.insert(ino, op);
                        mark(core, ino, index..index + frames.len() as u64, |placed, _| *placed = true);
                    }
                }
            }
        }
    }

    /// Appends the records of all operations the log lacks.
    pub(super) fn append_operations(&self, core: &mut Core) -> Result<()> {
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        let mut appended = Ok(());
        core.ops.take_unlogged(|op, bytes| {
            if appended.is_ok() {
                appended = ssd.append(op, bytes);
            }
        });
        appended
    }

    /// Appends a file's unlogged data, its size and times.
    fn append_data(&self, core: &mut Core, ino: Ino) -> Result<()> {
        let op = core.op;
        let mut scratch = std::mem::take(&mut core.scratch);
        let frames = unlogged_frames(core, ino);
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        for (index, bytes) in &frames {
            data_record(ino, *index, bytes, &mut scratch);
            ssd.append(op, &scratch)?;
        }
        for (index, _) in frames {
            mark(core, ino, index..index + 1, |_, logged| *logged = true);
        }
        core.all_logged(ino);
        core.scratch = scratch;
        let Some(record) = contents_record(core, ino)? else { return Ok(()) };
        core.scratch.clear();
        record.encode(&mut core.scratch);
        match &mut core.ssd {
            Some(ssd) => ssd.append(op, &core.scratch),
            None => Ok(()),
        }
    }

    /// Writes what was appended and waits until it is durable. The caller holds the gate.
    ///
    /// [`Error::NoSpace`]: the log is full; what was appended stays and goes with a later write.
    pub(super) fn write_log(&self, mut core: MutexGuard<'_, Core>) -> Result<()> {
        let mut writes = Vec::new();
        let mut full = Ok(());
        while let Some(ssd) = &mut core.ssd {
            match ssd.seal() {
                Ok(Some(write)) => writes.push(write),
                Ok(None) => break,
                Err(error) => {
                    full = Err(error);
                    break;
                }
            }
        }
        drop(core);
        self.write_groups(writes)?;
        if std::mem::take(&mut self.core.lock().tables_due) {
            self.write_tables()?;
        }
        full
    }

    /// Writes sealed groups durably, in order, and tells the SSD half so.
    fn write_groups(&self, writes: Vec<LogWrite>) -> Result<()> {
        let (Some(device), Some(last)) = (&self.ssd_device, writes.last()) else { return Ok(()) };
        let upto = last.upto;
        let tables = self.core.lock().tables_wait;
        let alone = writes.len() == 1 && !writes.iter().any(|write| write.binds) && !tables;
        let mut requests = writes.into_iter().map(|write| Request::Write {
            offset: write.offset,
            data: write.data,
            durable: alone,
        });
        if alone {
            // `run` stays on this thread: the fsync path.
            requests.try_for_each(|request| device.run(self.clock.now(), request).result.map(drop))?;
        } else {
            let tickets: Vec<_> = requests.map(|request| device.submit(self.clock.now(), request)).collect();
            wait_all(device.as_ref(), tickets).result?;
            device.flush()?;
        }
        let mut core = self.core.lock();
        if let Some(ssd) = &mut core.ssd {
            ssd.sealed(upto);
            core.reuse += 1;
        }
        if tables {
            core.tables_durable();
        }
        Ok(())
    }

    /// Starts the log anew if it is half full. The caller holds the gate.
    ///
    /// Where that cannot be done, fsyncs fill it up to three quarters, and wait for the disk then.
    pub(super) fn make_room(&self, gate: &MutexGuard<'_, ()>) -> Result<()> {
        let core = self.core.lock();
        let due = !core.recovering && core.ssd.as_ref().is_some_and(|ssd| restart_due(ssd, core.tables_wait));
        drop(core);
        if due { self.relog(gate) } else { Ok(()) }
    }

    /// Appends what the log must go on to say; the caller's next write of the log takes it along.
    fn relog(&self, _gate: &MutexGuard<'_, ()>) -> Result<()> {
        let mut core = self.core.lock();
        let files = files_in_log(&core);
        let mut placements = Vec::new();
        for &ino in &files {
            if let Some(section) = core.policy(ino).section {
                let frames = unplaced_frames(&mut core, ino);
                placements.extend(self.room_for(&mut core, section, ino, frames));
            }
        }
        drop(core);
        self.write_placements(&placements)?;
        let mut core = self.core.lock();
        self.bind_placed(&mut core, placements);
        let left: usize = files.iter().map(|&ino| unplaced_bytes(&core, ino)).sum();
        let live = (left + core.ops.len_bytes()) as u64;
        if core.ssd.as_ref().is_none_or(|ssd| ssd.is_filled(live, fill::RESTART)) {
            // More to say than the log has room for: the disk must catch up.
            return Ok(());
        }
        core.counters.relogs += 1;
        core.tables_due = true;
        let live = self.live_records(&mut core, &files)?;
        if let Some(ssd) = &mut core.ssd {
            ssd.restart(live)?;
        }
        core.append_complete();
        Ok(())
    }

    /// Everything the log must still say, in the order it would be applied.
    fn live_records(&self, core: &mut Core, files: &[Ino]) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut live = Vec::new();
        core.ops.forget_logged();
        core.ops.take_unlogged(|op, bytes| live.push((op, bytes.to_vec())));
        let op = core.op;
        for &ino in files {
            for (index, bytes) in unplaced_frames(core, ino) {
                let mut record = Vec::with_capacity(FRAME + 32);
                data_record(ino, index, &bytes, &mut record);
                live.push((op, record));
                mark(core, ino, index..index + 1, |_, logged| *logged = true);
            }
            core.all_logged(ino);
            if let Some(record) = contents_record(core, ino)? {
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                live.push((op, bytes));
            }
        }
        Ok(live)
    }

    /// Writes the SSD's tables in place, so that the log's residency records are not needed any more once the
    /// next flush is done. The caller holds the gate.
    ///
    /// What the tables say must not depend on anything that a crash could take back: the log is made complete
    /// first, and a cycle under way ends before.
    pub(super) fn write_tables(&self) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        let mut core = self.core.lock();
        if core.cycle.is_some() || !core.has_room(0, fill::TABLES) {
            core.tables_due = true;
            return Ok(());
        }
        for ino in core.take_carried(Ino(0)) {
            if unlogged_bytes(&core, ino) <= self.inline_limit {
                self.append_data(&mut core, ino)?;
            }
        }
        self.append_operations(&mut core)?;
        core.append_complete();
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        let mut checkpoint = ssd.checkpoint_begin()?;
        drop(core);
        self.write_groups(std::mem::take(&mut checkpoint.log))?;
        checkpoint.merge(device.as_ref())?;
        let tickets = submit_gathered(device.as_ref(), self.clock.now(), checkpoint.tables);
        wait_all(device.as_ref(), tickets).result?;
        self.core.lock().tables_wait = true;
        Ok(())
    }

    /// The same, durable at the end.
    pub(super) fn flush_tables(&self) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        self.write_tables()?;
        device.flush()?;
        self.core.lock().tables_durable();
        Ok(())
    }

    /// The same, and frees the room in the log that the tables take the place of.
    pub(super) fn empty_log(&self) -> Result<()> {
        self.flush_tables()?;
        let write = self.core.lock().ssd.as_mut().and_then(Ssd::advance);
        self.write_groups(write.into_iter().collect())
    }

    /// Waits until the disk half has operation `target`.
    pub(super) fn await_disk(&self, target: u64) -> Result<()> {
        let mut core = self.core.lock();
        core.wanted = core.wanted.max(target);
        self.work.notify_one();
        while core.committed < target {
            core.alive()?;
            self.await_progress(&mut core);
        }
        Ok(())
    }

    /// Goes on without the SSD. Everything it alone had is still in memory.
    pub(super) fn lose_ssd(&self, error: &Error) {
        let mut core = self.core.lock();
        let Some(ssd) = core.ssd.take() else { return };
        let log = format!("{} of {} of its log in use", show_size(ssd.used()), show_size(ssd.capacity()));
        tracing::error!(%error, "the SSD failed; going on from the disk alone");
        core.ssd_lost = Some(format!("{error} ({log})"));
        core.epoch += 1;
        core.policy_turn += 1;
        core.reuse += 1;
        core.ops.clear();
        core.promotions.take();
        core.begin();
        core.wanted = core.op;
        self.work.notify_one();
    }
}

/// Whether the log is to be started anew. Tables on their way will make room without that.
fn restart_due(ssd: &Ssd, tables_wait: bool) -> bool {
    ssd.needs_restart() && !(tables_wait && ssd.used() < ssd.capacity() / 4 * 3)
}

fn data_record(ino: Ino, index: u64, bytes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    Record::Data { ino: ino.0, offset: index * FRAME as u64, bytes }.encode(out);
}

/// A file's size, times and mode, as of now; nothing for what has no contents.
fn contents_record(core: &mut Core, ino: Ino) -> Result<Option<Record<'static>>> {
    let inode = core.ext4.inode(ino)?;
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

/// Frames of a file that an fsync still has to log: dirty ones, and frozen ones the SSD does not have.
fn unlogged_frames(core: &mut Core, ino: Ino) -> Vec<(u64, Bytes)> {
    let ranges = touched(core, ino);
    frames_where(core, ino, ranges, |placed, logged| !placed && !logged)
}

fn unplaced_frames(core: &mut Core, ino: Ino) -> Vec<(u64, Bytes)> {
    frames_where(core, ino, EVERYWHERE, |placed, _| !placed)
}

/// Where to look among a file's dirty frames, and among its frozen ones.
type Ranges = (Range<u64>, Range<u64>);

const EVERYWHERE: Ranges = (0..u64::MAX, 0..u64::MAX);

/// Where the frames lie that the log may lack.
fn touched(core: &Core, ino: Ino) -> Ranges {
    let dirty = core.nodes.get(&ino).map_or(0..0, |node| node.touched.clone());
    let frozen = core.cycle.as_ref().and_then(|cycle| cycle.touched.get(&ino)).cloned();
    (dirty, frozen.unwrap_or(0..0))
}

fn frames_where(
    core: &mut Core,
    ino: Ino,
    (dirty, frozen): Ranges,
    wanted: impl Fn(bool, bool) -> bool,
) -> Vec<(u64, Bytes)> {
    let mut found = Vec::new();
    if let Some(node) = core.nodes.get_mut(&ino) {
        let dirty = node.frames.range_mut(dirty).filter(|(_, frame)| wanted(frame.placed, frame.logged));
        found.extend(dirty.map(|(&index, frame)| (index, frame.share())));
    }
    let before = found.len();
    let frozen = frozen_where(core, ino, frozen, wanted);
    found.extend(frozen.map(|(index, bytes)| (index, bytes.clone())));
    if before != found.len() {
        found.sort_by_key(|&(index, _)| index);
    }
    found
}

/// Frozen frames that nothing newer covers.
fn frozen_where(
    core: &Core,
    ino: Ino,
    range: Range<u64>,
    wanted: impl Fn(bool, bool) -> bool,
) -> impl Iterator<Item = (u64, &Bytes)> {
    let node = core.nodes.get(&ino);
    let frames = core.cycle.as_ref().into_iter().flat_map(move |cycle| cycle.frames_of(ino, range.clone()));
    let frames = frames.filter(move |(_, frame)| wanted(frame.placed, frame.logged));
    let frames = frames.filter(move |(index, _)| !node.is_some_and(|node| node.frames.contains_key(index)));
    frames.map(|(index, frame)| (index, &frame.bytes))
}

impl Core {
    /// Whether the log takes the operations it lacks and `data` bytes more within so many sixteenths.
    fn has_room(&self, data: usize, sixteenths: u64) -> bool {
        let Some(ssd) = &self.ssd else { return false };
        let records = self.ops.unlogged_bytes() + data + data / 64;
        !ssd.is_filled(records as u64 + RECORDS_BYTES, sixteenths)
    }

    /// The log has all of an inode's dirty data.
    fn all_logged(&mut self, ino: Ino) {
        self.in_log.insert(ino, self.op);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.touched = 0..0;
        }
        if let Some(cycle) = &mut self.cycle {
            cycle.touched.remove(&ino);
        }
    }

    /// Appends the mark that everything so far is in the log, as far as it was promised.
    fn append_complete(&mut self) {
        if let Some(ssd) = &mut self.ssd {
            ssd.append_complete(self.op);
        }
    }

    /// The data of this inode goes into the log with the next operations: a file that takes the place of another,
    /// or of its own old contents, is found after a crash as the old or the new one.
    pub(super) fn carry(&mut self, ino: Ino) {
        if self.ssd.is_some() && unlogged_bytes(self, ino) > 0 && self.policy(ino).section.is_some() {
            self.carried.push(ino);
        }
    }

    /// The inodes whose data is to go along, `but` one.
    fn take_carried(&mut self, but: Ino) -> Vec<Ino> {
        let mut carried = std::mem::take(&mut self.carried);
        if let Some(cycle) = &mut self.cycle {
            carried.append(&mut cycle.carried);
        }
        carried.sort_unstable();
        carried.dedup();
        carried.retain(|&ino| ino != but && unlogged_bytes(self, ino) > 0);
        carried
    }
}

fn unlogged_bytes(core: &Core, ino: Ino) -> usize {
    bytes_where(core, ino, touched(core, ino), |placed, logged| !placed && !logged)
}

fn unplaced_bytes(core: &Core, ino: Ino) -> usize {
    bytes_where(core, ino, EVERYWHERE, |placed, _| !placed)
}

fn bytes_where(
    core: &Core,
    ino: Ino,
    (dirty, frozen): Ranges,
    wanted: impl Fn(bool, bool) -> bool + Copy,
) -> usize {
    let dirty = core.nodes.get(&ino).map_or(0, |node| {
        node.frames.range(dirty).filter(|(_, frame)| wanted(frame.placed, frame.logged)).count()
    });
    (dirty + frozen_where(core, ino, frozen, wanted).count()) * FRAME
}

/// Files of which the log holds promised contents that the disk does not have.
fn files_in_log(core: &Core) -> Vec<Ino> {
    let mut files: Vec<Ino> = core.in_log.keys().copied().collect();
    files.sort_unstable();
    files
}

/// Sets what is known of frames, dirty and frozen: `(placed, logged)`.
fn mark(core: &mut Core, ino: Ino, frames: Range<u64>, set: impl Fn(&mut bool, &mut bool)) {
    if let Some(node) = core.nodes.get_mut(&ino) {
        for frame in node.frames.range_mut(frames.clone()).map(|(_, frame)| frame) {
            set(&mut frame.placed, &mut frame.logged);
        }
    }
    if let Some(cycle) = &mut core.cycle {
        for frame in cycle.frames_of_mut(ino, frames) {
            set(&mut frame.placed, &mut frame.logged);
        }
    }
}
