//! The log run again: bringing the disk up to what the SSD's log promises.
//!
//! The disk says which operation N it has. Records after N are run through the code that ran them first. Contents that
//! only the SSD finished (10) are copied to the disk if the log is complete up to them (see
//! [`ssd::Ssd::append_complete`]); else nobody was promised them and they are dropped (as is everything that only the
//! disk finished, 01).
//!
//! What is known of the SSD is of the log's *end*, so nothing here reads a file from it or unbinds anything there: a
//! record of a file's removal must not take what a later file with its number bound. It stays as it was found, on the
//! medium and in memory. Which of its copies became old is noted ([`Touched`]), with the operation that made them so, and
//! applied once the disk has everything: then what that operation or a later one bound stays.
//!
//! Running recovery again after it was cut short gives the same result: N moves only with a commit, and the log still
//! says everything.

use super::Shared;
use super::aftermath::Touched;
use super::core::Core;
use super::frames::FRAME;
use super::plan::is_in_memory;
use super::record::{LOG_RECORD, Record, fallocate_of, kind_of, rename_of, stamp};
use super::superseded::{Superseded, join};
use super::unfit::Made;
use super::write::{frame_from, frame_of};
use crate::ssd::{Record as LogRecord, RecordBody, Run, Ssd};
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_base::{Error, Result};
use bimetal_ext4::{Create, Mapping};
use bimetal_vfs::Fallocate;
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What is to be run.
pub(super) struct Recovery<'a> {
    /// Of the log, by operation number.
    pub records: &'a [LogRecord],
    /// It holds everything that was promised up to this operation.
    pub complete: u64,
    /// No later operation is run; see [`ssd::Opened::until`](crate::ssd::Opened::until).
    pub until: u64,
    /// Contents that cannot be read are left out, with a note, instead of being an error.
    pub whole: bool,
    /// Something else checked the disk half, or wrote to it, since the log was written.
    pub others: bool,
    /// An earlier recovery was cut.
    pub was_cut: bool,
    /// The log lacks durable records, and whole groups behind them hold these operations.
    pub beyond: Option<&'a [(u64, Bytes)]>,
}

impl Shared {
    /// Brings the disk up to what the SSD's log promises. Returns the number of records applied.
    ///
    /// What does not fit one transaction is committed in between, at an operation whose earlier ones are all
    /// applied, so that a recovery cut short goes on from there.
    pub(super) fn replay(&self, log: &Recovery) -> Result<u64> {
        let &Recovery { records, complete, until, whole, .. } = log;
        let mut core = self.core.lock();
        let disk_has = core.ops.committed();
        core.ext4.keep_back(false);
        if let Some(ssd) = &mut core.ssd {
            ssd.trim(disk_has);
        }
        drop(core);
        let complete = complete.max(disk_has);
        let sizes = Sizes::of(records, complete, until, self.ssd_block_bytes as u64);
        let changes = changes_in(records);
        let superseded = Superseded::of(records, disk_has, complete, until, self.ssd_block_bytes as u64);
        let is_left = |record: &LogRecord| record.op > disk_has && record.op <= until;
        let mut made = Made::of(records, until, whole);
        if log.others {
            let when = (self.clock.wall().sec, log.was_cut);
            made.look_for(&mut self.core.lock(), records.iter().filter(|record| is_left(record)), when);
        }
        // Records that are not whole do not say what was removed since; nor those of which nothing is left to do.
        let tells_names = log.beyond.is_none() && records.iter().any(is_left);
        let mut applied = 0;
        for (number, record) in records.iter().enumerate() {
            if record.op > until {
                continue;
            }
            if record.op <= disk_has {
                made.saw(record, tells_names);
                continue;
            }
            let was_left_out = made.left_out();
            self.replay_record(record, complete, &mut made, &sizes)?;
            applied += u64::from(made.left_out() == was_left_out);
            let next = records.get(number + 1).map_or(u64::MAX, |next| next.op);
            let mut core = self.core.lock();
            core.ops.run_again_after(if next > record.op { record.op } else { record.op - 1 });
            // An operation beside contents of its number (in logs of earlier versions) cannot be run twice.
            let may_commit = next > record.op || !changes.contains(&record.op);
            let crowded = may_commit && self.cycle_wanted(&core) && !superseded.has_holes_after(record.op);
            drop(core);
            if crowded {
                self.cycle()?;
            }
        }
        let mut core = self.core.lock();
        made.end(&mut core);
        core.ext4.keep_back(true);
        core.ops.skip_to(records.iter().map(|record| record.op).max().unwrap_or(0));
        if log.beyond.is_some() {
            // Numbers that the tables may know, and no record tells of, are not used again.
            let last = core.ssd.as_ref().map_or(0, Ssd::last_op);
            core.ops.skip_to(last);
            self.note_missing(&mut core, log, disk_has)?;
        } else {
            self.check_contents(&mut core, log, disk_has)?;
        }
        Ok(applied)
    }

    /// Applies one record, in parts that fit a transaction. What does not fit the disk half is left out, or an error.
    fn replay_record(&self, record: &LogRecord, complete: u64, made: &mut Made, sizes: &Sizes) -> Result<()> {
        let op = record.op;
        match &record.body {
            RecordBody::Operation(bytes) => {
                let operation = Record::decode(bytes, op)?;
                let unlike = made.concerns_unlike(&mut self.core.lock(), &operation);
                made.see(&operation, op);
                let applied = match unlike {
                    Some(unlike) => Err(unlike.error()),
                    None => self.applied(op, |core| self.apply(core, op, &operation, sizes))?,
                };
                match applied {
                    Err(error) if made.leaves_out(&error) => {
                        made.leave_out(&mut self.core.lock(), &operation, &error);
                        Ok(())
                    }
                    applied => applied.map_err(|error| self.unfit(error, &operation.in_words(), op)),
                }
            }
            RecordBody::Fresh { ino, file_block, run, inode } => {
                let fresh =
                    UncommittedBinding { ino: *ino, file_block: *file_block, run: *run, size: inode.size };
                let is_complete = op <= complete;
                let unlike = made.unlike(&mut self.core.lock(), ino.0).filter(|_| is_complete);
                let copied = match unlike {
                    Some(unlike) => Err(unlike.error()),
                    None => self.bring(op, fresh, is_complete, made.is_whole(), sizes)?,
                };
                match copied {
                    Err(error) if made.leaves_out(&error) => {
                        let mut core = self.core.lock();
                        self.drop_copy(&mut core, op, fresh);
                        made.leave_out_contents(&mut core, *ino, &error);
                        Ok(())
                    }
                    copied => copied
                        .map_err(|error| self.unfit(error, &format!("bringing contents to inode {ino}"), op)),
                }
            }
        }
    }

    /// Applies something of operation `op`; what says that it does not fit is applied again after a commit. So is what finds the
    /// disk full: it found room when a commit had given some back that is still promised, held, or to be freed, here.
    /// Returns what the operation met.
    ///
    /// # Errors
    /// Of a commit: that is no word about the operation, and what was applied so far may be in no transaction any more.
    fn applied(&self, op: u64, mut apply: impl FnMut(&mut Core) -> Result<bool>) -> Result<Result<()>> {
        let mut found_full = None;
        loop {
            let mut core = self.core.lock();
            core.ops.run_again_after(op - 1);
            match apply(&mut core) {
                Ok(true) => return Ok(Ok(())),
                Ok(false) => {}
                Err(Error::NoSpace(_)) if core.may_have_room_after(found_full) => {
                    found_full = Some(core.ext4.statfs().free);
                }
                Err(error) => return Ok(Err(error)),
            }
            // A part of it may be done, and have counted it.
            core.ops.run_again_after(op - 1);
            drop(core);
            self.cycle()?;
        }
    }

    /// Brings contents that only the SSD finished, in parts that fit a transaction, or drops them; as [`applied`](Shared::applied).
    fn bring(
        &self,
        op: u64,
        fresh: UncommittedBinding,
        is_complete: bool,
        whole: bool,
        sizes: &Sizes,
    ) -> Result<Result<()>> {
        for part in fresh.parts((self.part_bytes() / self.ssd_block_bytes) as u32) {
            let brought = self.applied(op, |core| match is_complete {
                true => self.copy_if_it_fits(core, op, part, whole, sizes),
                false => {
                    self.drop_copy(core, op, part);
                    Ok(true)
                }
            })?;
            if brought.is_err() {
                return Ok(brought);
            }
        }
        Ok(Ok(()))
    }

    /// Goes on freeing what is left of a cut of a live file, if there is room; whether nothing is left.
    fn finishes_cut(&self, core: &mut Core, ino: Ino) -> Result<bool> {
        if !core.ext4.is_being_cut(ino)? {
            return Ok(true);
        }
        let step = self.credits_to_cut(core, ino, 0)?.journal;
        Ok(self.has_room_for(core, step) && core.ext4.finish_cut(ino)?)
    }

    /// Frees an inode without names, if there is room; whether the number is free now, or another inode's.
    fn frees(&self, core: &mut Core, ino: Ino) -> Result<bool> {
        let is_nameless = |core: &mut Core| core.ext4.inode(ino).is_ok_and(|inode| inode.nlink == 0);
        if is_nameless(core) {
            self.release(core, ino)?;
        }
        Ok(!is_nameless(core))
    }

    /// Blocks of the journal that an operation takes at most, as when it was run first; what asks itself, and what fails before
    /// it changes anything, takes none.
    fn credits_to_apply(&self, core: &mut Core, record: &Record) -> u64 {
        let attributes = core.ext4.credits_for_attributes();
        let credits = match *record {
            Record::Create { parent, .. } => core.ext4.credits_for_create(Ino(parent)),
            Record::Link { parent, .. } => core.ext4.credits_for_link(Ino(parent)),
            Record::Remove { parent, name, .. } => core.ext4.credits_for_remove(Ino(parent), name),
            // What a whiteout leaves is an operation of its own.
            Record::Rename { to, new_name, .. } => core.ext4.credits_for_rename(Ino(to), new_name),
            Record::Attributes { .. } | Record::Flags { .. } => Ok(attributes),
            Record::Xattr { .. } => Ok(attributes + core.ext4.credits_for_xattrs()),
            Record::Truncate { ino, size, .. } | Record::Contents { ino, size, .. } => {
                self.credits_to_cut(core, Ino(ino), size).map(|cut| attributes + cut.journal)
            }
            Record::Fallocate { ino, what, .. } => fallocate_of(what, 0)
                .and_then(|what| Ok(attributes + self.credits_to_allocate(core, Ino(ino), what)?.journal)),
            Record::Data { .. } | Record::Release { .. } => Ok(0),
        };
        credits.unwrap_or(0)
    }

    /// `false` if the copy does not fit what the transaction has room for.
    fn copy_if_it_fits(
        &self,
        core: &mut Core,
        op: u64,
        fresh: UncommittedBinding,
        whole: bool,
        sizes: &Sizes,
    ) -> Result<bool> {
        let blocks = u64::from(fresh.run.len) * self.ssd_block_bytes as u64 / self.disk_block_bytes as u64;
        if is_live(core, fresh.ino)?
            && !(self.finishes_cut(core, fresh.ino)? && self.has_room_to_copy(core, fresh.ino, blocks)?)
        {
            return Ok(false);
        }
        match self.copy_back(core, op, fresh, sizes) {
            Err(Error::Ssd(_)) if whole => self.salvage(core, op, fresh, sizes)?,
            copied => copied?,
        }
        Ok(true)
    }

    /// Whether so many blocks of a live file fit the transaction beside what is in it.
    fn has_room_to_copy(&self, core: &mut Core, ino: Ino, blocks: u64) -> Result<bool> {
        let credits = core.ext4.credits_for_data(ino, blocks)?;
        Ok(self.has_room_for(core, credits))
    }

    /// Copies of a run what can be read, frame by frame; the rest is lost, and noted.
    fn salvage(&self, core: &mut Core, op: u64, fresh: UncommittedBinding, sizes: &Sizes) -> Result<()> {
        fresh.parts(self.ssd_blocks_per_frame as u32).try_for_each(|frame| {
            match self.copy_back(core, op, frame, sizes) {
                Err(error @ Error::Ssd(_)) => {
                    core.aftermath.lose(frame.ino, error.to_string());
                    self.drop_copy(core, op, frame);
                    Ok(())
                }
                copied => copied,
            }
        })
    }

    /// What operation `op` bound is not to be used.
    fn drop_copy(
        &self,
        core: &mut Core,
        op: u64,
        UncommittedBinding { ino, file_block, run, .. }: UncommittedBinding,
    ) {
        let (first, unit) = (u64::from(file_block), self.ssd_blocks_per_frame);
        let frames = first / unit..(first + u64::from(run.len)).div_ceil(unit);
        core.aftermath.touch(Touched { ino, frames, before: op + 1 });
    }

    /// State 10: the SSD's copy is written on to the disk.
    fn copy_back(&self, core: &mut Core, op: u64, fresh: UncommittedBinding, sizes: &Sizes) -> Result<()> {
        let UncommittedBinding { ino, file_block, run, size } = fresh;
        let Some(mut sums) = core.ssd.as_ref().map(|ssd| ssd.sums(run.at, run.len)) else {
            return Err(Error::invalid("no SSD"));
        };
        if !is_live(core, ino)? {
            self.drop_copy(core, op, fresh);
            return Ok(());
        }
        let offset = u64::from(file_block) * self.ssd_block_bytes as u64;
        let (end, what) = (offset + u64::from(run.len) * self.ssd_block_bytes as u64, "only the SSD has");
        let bytes = self.read_ssd(run.at, &mut sums).map_err(|error| {
            error.explained(format!("bytes {offset} to {end} of inode {ino}, which {what}"))
        })?;
        let here = core.ext4.inode(ino)?.size;
        if size.min(end) > here && !sizes.may_grow(op, ino, here..size) {
            // Nobody was promised this data, and not all of it is there: the file stays as long as it is.
            let mut kept = bytes[..here.saturating_sub(offset) as usize].to_vec();
            kept.resize(kept.len().next_multiple_of(FRAME), 0);
            self.put(core, ino, offset, &kept, here)?;
            core.dirty.add(kept.len() as u64);
            core.dirty.begin(self.clock.now());
            self.drop_copy(core, op, fresh);
            return Ok(());
        }
        self.put_as_of(core, ino, offset, &bytes, size)?;
        let first = offset / FRAME as u64;
        let frames = first..first + (bytes.len() / FRAME) as u64;
        core.node_of(ino).note(frames, |known| known.placed = true);
        core.dirty.begin(self.clock.now());
        Ok(())
    }

    /// Brings data to a file that has `size` bytes once its operation is applied in full. The file reaches as far as its
    /// data at once: a commit in between leaves out what lies past the end.
    fn put_as_of(&self, core: &mut Core, ino: Ino, offset: u64, bytes: &[u8], size: u64) -> Result<()> {
        self.put(core, ino, offset, bytes, size)?;
        let reach = size.min(offset + bytes.len() as u64);
        core.ext4.let_reach(ino, reach)?;
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = inode.size.max(reach);
        core.dirty.add(bytes.len() as u64);
        Ok(())
    }

    fn apply(&self, core: &mut Core, op: u64, record: &Record, sizes: &Sizes) -> Result<bool> {
        let credits = self.credits_to_apply(core, record);
        if !self.has_room_for(core, credits) {
            return Ok(false);
        }
        let done = match *record {
            Record::Create { parent, name, ino, generation, kind, perm, owner, rdev, target, at } => {
                let spec = Create {
                    parent: Ino(parent),
                    name,
                    kind: kind_of(kind, op)?,
                    perm,
                    uid: owner.0,
                    gid: owner.1,
                    rdev,
                    target,
                    now: stamp(at),
                    ino: Some(Ino(ino)),
                    generation: Some(generation),
                };
                let is_held = |core: &mut Core| core.ext4.inode(Ino(ino)).is_ok();
                match self.make(core, &spec) {
                    // What had the number before is not freed in full, or is now.
                    Err(Error::Exists)
                        if is_held(core) && (!self.frees(core, Ino(ino))? || !is_held(core)) =>
                    {
                        return Ok(false);
                    }
                    Err(Error::Exists) if self.make_way(core, Ino(ino), &sizes.made)? => return Ok(false),
                    made => made.map(drop),
                }
            }
            Record::Link { ino, parent, name, at } => {
                self.add_link(core, Ino(ino), Ino(parent), name, stamp(at))
            }
            Record::Remove { parent, name, dir, at, .. } => {
                self.remove_name(core, Ino(parent), name, dir, stamp(at))
            }
            Record::Rename { from, name, to, new_name, how, at, .. } => {
                let how = rename_of(how, op)?;
                self.move_name(core, Ino(from), name, Ino(to), new_name, how, stamp(at))
            }
            // The number may be another file's with the next operation.
            Record::Release { ino } => return self.frees(core, Ino(ino)),
            Record::Attributes { ino, .. }
            | Record::Truncate { ino, .. }
            | Record::Xattr { ino, .. }
            | Record::Flags { ino, .. }
            | Record::Fallocate { ino, .. }
            | Record::Data { ino, .. }
            | Record::Contents { ino, .. } => match is_live(core, Ino(ino))? {
                // What an earlier mount left of a cut goes first: nothing of it must come back.
                true if !self.finishes_cut(core, Ino(ino))? => return Ok(false),
                true => return self.apply_to_inode(core, op, record, sizes),
                // Unlinked later but still open then: nothing of it is left to change.
                false => Ok(()),
            },
        };
        done.map(|()| true)
    }

    /// Where a zeroing goes on of which earlier steps are done, before a commit or an earlier recovery's cut: free blocks may lie
    /// apart where the run had them together. What is done has space without data, and before it the rest of a frame that is
    /// zeroed again. Its last frame is always left to do.
    fn zeroed_up_to(&self, core: &mut Core, ino: Ino, bytes: Range<u64>) -> Result<u64> {
        let (first, last) = (frame_from(bytes.start), frame_of(bytes.end.saturating_sub(1)));
        let mut index = first;
        while index < last && !is_in_memory(core, ino, index) {
            match core.ext4.map(ino, index * self.blocks_per_frame, u32::MAX)? {
                Mapping::Unwritten { len, .. } if u64::from(len) >= self.blocks_per_frame => index += 1,
                _ => break,
            }
        }
        let head = bytes.start..first * FRAME as u64;
        let block = bytes.start / self.disk_block_bytes as u64;
        if index == first || core.ext4.holes_in(ino, block, first * self.blocks_per_frame - block)? > 0 {
            return Ok(bytes.start);
        }
        if !head.is_empty() {
            self.clear_range(core, ino, head)?;
        }
        Ok(index * FRAME as u64)
    }

    fn apply_to_inode(&self, core: &mut Core, op: u64, record: &Record, sizes: &Sizes) -> Result<bool> {
        let done = match *record {
            Record::Attributes { ino, perm, owner, atime, mtime, ctime } => {
                let inode = core.ext4.inode_mut(Ino(ino))?;
                inode.mode = inode.mode & !0o7777 | perm & 0o7777;
                (inode.uid, inode.gid) = owner;
                (inode.atime, inode.mtime, inode.ctime) = (stamp(atime), stamp(mtime), stamp(ctime));
                core.record_attributes(Ino(ino))
            }
            Record::Truncate { ino, size, old, at } => {
                // Where the cut-off data never arrived there is nothing to cut, and nothing to fill with zeros.
                let here = core.ext4.inode(Ino(ino))?.size;
                if size >= old && here < old {
                    // Nor do zeros take the place of data that never arrived: who has it says how long the file is.
                    return Ok(true);
                }
                let size = if size < old { size.min(here) } else { size };
                return self.set_size(core, Ino(ino), size, stamp(at));
            }
            Record::Flags { ino, flags, at } => self.store_flags(core, Ino(ino), flags, stamp(at)),
            Record::Xattr { ino, name, value, perm, at } => {
                self.store_xattr(core, Ino(ino), name, value, Some(perm), stamp(at))
            }
            Record::Fallocate { ino, what, offset, len, size, at } => {
                let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
                let what = fallocate_of(what, op)?;
                let grows = matches!(
                    what,
                    Fallocate::Reserve { keep_size: false } | Fallocate::Zero { keep_size: false }
                );
                if op <= sizes.complete && grows {
                    core.ext4.let_reach(Ino(ino), size)?;
                    let inode = core.ext4.inode_mut(Ino(ino))?;
                    inode.size = inode.size.max(size);
                }
                let from = match what {
                    Fallocate::Zero { .. } => self.zeroed_up_to(core, Ino(ino), offset..end)?,
                    Fallocate::Reserve { .. } | Fallocate::Punch => offset,
                };
                return Ok(self.allocate_range(core, Ino(ino), from..end, what, stamp(at))? == end);
            }
            Record::Data { ino, offset, bytes } => {
                offset.checked_add(bytes.len() as u64).ok_or(Error::TooLarge)?;
                let blocks = bytes.len().div_ceil(self.disk_block_bytes) as u64;
                if !self.has_room_to_copy(core, Ino(ino), blocks)? {
                    return Ok(false);
                }
                // Without a word about its size the file keeps the one it has.
                self.put_as_of(
                    core,
                    Ino(ino),
                    offset,
                    bytes,
                    sizes.by_contents.get(&(op, ino)).copied().unwrap_or(0),
                )
            }
            Record::Contents { ino, size, perm, mtime, ctime, .. } => {
                let is_cut = size < core.ext4.inode(Ino(ino))?.size;
                if is_cut && !self.set_size(core, Ino(ino), size, stamp(ctime))? {
                    return Ok(false);
                }
                core.ext4.let_reach(Ino(ino), size)?;
                let inode = core.ext4.inode_mut(Ino(ino))?;
                inode.size = size;
                inode.mode = inode.mode & !0o7777 | perm & 0o7777;
                (inode.mtime, inode.ctime) = (stamp(mtime), stamp(ctime));
                Ok(())
            }
            _ => Ok(()),
        };
        done.map(|()| true)
    }
}

/// Whether an operation failed because the disk half is not as the log has it, and not for an error of a device, or damage that was
/// read of the disk half; whoever mounts says what to do about those.
pub(super) fn is_unfit(error: &Error) -> bool {
    match error {
        Error::Io { .. } | Error::Gone { .. } | Error::Ssd(_) | Error::NoSpace(_) => false,
        Error::Corrupt { what, .. } => what == LOG_RECORD,
        _ => true,
    }
}

impl Shared {
    /// What it means that an operation could not be applied.
    fn unfit(&self, error: Error, what: &str, op: u64) -> Error {
        if !is_unfit(&error) {
            return error;
        }
        Error::Mismatch(format!(
            "the SSD's log does not fit the disk half {}: {what}: {error} (operation {op}); nothing is lost so far: get off the \
             SSD half what it holds (bimetal rescue), then say -o recover=whole to bring to the disk all that fits",
            self.disk.info().name,
        ))
    }
}

/// What operation `op` bound on the SSD alone.
#[derive(Clone, Copy)]
struct UncommittedBinding {
    ino: Ino,
    file_block: u32,
    run: Run,
    /// Of the file, bytes.
    size: u64,
}

impl UncommittedBinding {
    /// The same in parts of at most so many blocks.
    fn parts(self, blocks: u32) -> impl Iterator<Item = UncommittedBinding> {
        let len = self.run.len;
        (0..len).step_by(blocks as usize).map(move |from| {
            let run = Run { at: SsdBlock(self.run.at.0 + u64::from(from)), len: blocks.min(len - from) };
            UncommittedBinding { file_block: self.file_block + from, run, ..self }
        })
    }
}

/// What the log says of the sizes of files.
struct Sizes {
    /// After an operation, by operation and inode.
    by_contents: HashMap<(u64, u64), u64>,
    /// The last operation after which a file's size is told, by inode.
    told: HashMap<u64, u64>,
    /// What of each file was bound, in bytes, by place; none touches the next.
    bound: HashMap<Ino, Vec<Range<u64>>>,
    /// All contents up to this operation are there.
    complete: u64,
    /// Numbers of inodes that the log makes.
    made: FxHashSet<u64>,
}

impl Sizes {
    fn of(records: &[LogRecord], complete: u64, until: u64, ssd_block_bytes: u64) -> Sizes {
        let mut sizes = Sizes {
            by_contents: HashMap::new(),
            told: HashMap::new(),
            bound: HashMap::new(),
            complete,
            made: FxHashSet::default(),
        };
        for record in records {
            let op = record.op;
            match &record.body {
                RecordBody::Operation(bytes) => match Record::decode(bytes, op) {
                    Ok(Record::Contents { ino, size, .. }) => {
                        sizes.by_contents.insert((op, ino), size);
                        if op <= until {
                            let told = sizes.told.entry(ino).or_default();
                            *told = op.max(*told);
                        }
                        sizes.cut(Ino(ino), size);
                    }
                    Ok(Record::Truncate { ino, size, .. }) => sizes.cut(Ino(ino), size),
                    // The number was another file's before.
                    Ok(Record::Create { ino, .. }) => {
                        sizes.bound.remove(&Ino(ino));
                        sizes.made.insert(ino);
                    }
                    _ => {}
                },
                RecordBody::Fresh { ino, file_block, run, .. } if op <= complete => {
                    let first = u64::from(*file_block);
                    let bytes = first * ssd_block_bytes..(first + u64::from(run.len)) * ssd_block_bytes;
                    sizes.bound.entry(*ino).or_default().push(bytes);
                }
                RecordBody::Fresh { .. } => {}
            }
        }
        sizes.bound.values_mut().for_each(join);
        sizes
    }

    /// What was bound past the end of a file that has `size` bytes now is none of its contents.
    fn cut(&mut self, ino: Ino, size: u64) {
        if let Some(bound) = self.bound.get_mut(&ino) {
            bound.retain(|range| range.start < size);
            bound.iter_mut().for_each(|range| range.end = range.end.min(size));
        }
    }

    /// Whether a file may become longer, by `added`, with what operation `op` bound: its size was told since, or all that is added
    /// was bound. Else some of it may have been cut off, written anew or without room on the SSD, before it was bound.
    fn may_grow(&self, op: u64, ino: Ino, added: Range<u64>) -> bool {
        let all = |range: &Range<u64>| range.start <= added.start && added.end <= range.end;
        self.told.get(&ino.0).is_some_and(|&told| told >= op)
            || self.bound.get(&ino).is_some_and(|bound| bound.iter().any(all))
    }
}

/// Numbers of what is no contents: operations that cannot be run again.
fn changes_in(records: &[LogRecord]) -> HashSet<u64> {
    let is_change = |record: &&LogRecord| match &record.body {
        RecordBody::Operation(bytes) => {
            !matches!(Record::decode(bytes, record.op), Ok(Record::Data { .. } | Record::Contents { .. }))
        }
        RecordBody::Fresh { .. } => false,
    };
    records.iter().filter(is_change).map(|record| record.op).collect()
}

fn is_live(core: &mut Core, ino: Ino) -> Result<bool> {
    match core.ext4.inode(ino) {
        Ok(inode) => Ok(inode.nlink > 0),
        Err(Error::Stale | Error::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::DupInode;

    fn bound(op: u64, file_block: u32, len: u32) -> LogRecord {
        let (run, inode) = (Run { at: SsdBlock(0), len }, DupInode::default());
        LogRecord { op, body: RecordBody::Fresh { ino: Ino(12), file_block, run, inode } }
    }

    fn done(op: u64, record: Record) -> LogRecord {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        LogRecord { op, body: RecordBody::Operation(bytes.into()) }
    }

    #[test]
    fn a_file_may_grow_by_what_is_bound_without_a_gap_since_it_was_cut_or_made() {
        let cut = Record::Truncate { ino: 12, size: 4096, old: 8192, at: (0, 0) };
        let made = Record::Create {
            parent: 2,
            name: b"f",
            ino: 12,
            generation: 1,
            kind: 0,
            perm: 0o644,
            owner: (0, 0),
            rdev: 0,
            target: b"",
            at: (0, 0),
        };
        let said = |size| {
            let (generation, perm, mtime, ctime) = (0, 0o644, (0, 0), (0, 0));
            Record::Contents { ino: 12, generation, size, perm, mtime, ctime }
        };
        let cases = [
            (vec![bound(1, 0, 2), bound(3, 2, 1)], true),
            (vec![bound(1, 0, 1), bound(3, 2, 1)], false),
            (vec![bound(1, 0, 2), done(2, cut), bound(3, 2, 1)], false),
            (vec![bound(1, 0, 2), done(2, made), bound(3, 2, 1)], false),
            (vec![bound(1, 0, 2), done(2, said(5000)), bound(3, 2, 1)], false),
            (vec![bound(1, 0, 2), done(2, said(8192)), bound(3, 2, 1)], true),
            (vec![bound(3, 2, 1), done(4, said(12_288))], true),
            (vec![bound(1, 0, 2), bound(5, 2, 1)], false),
            (vec![bound(1, 0, 1), bound(3, 2, 1), done(5, said(12_288))], false),
        ];
        for (case, (records, may)) in cases.iter().enumerate() {
            assert_eq!(Sizes::of(records, 4, 4, 4096).may_grow(3, Ino(12), 0..12_288), *may, "case {case}");
        }
    }
}
