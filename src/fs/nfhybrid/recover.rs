//! Mounting: which SSD may speak for which disk, and what of its log the disk does not have yet.
//!
//! The disk's own journal is replayed first; it says which operation N it has. Records after N are then run
//! through the code that ran them first. Contents that only the SSD finished (10) are copied to the disk if the
//! log is complete up to them (see [`ssd::Ssd::append_complete`]); else nobody was promised them and they are
//! dropped (as is everything that only the disk finished, 01). One commit cycle later the mount is an ordinary
//! one. Running recovery again after it was cut short gives the same result: N moves only with the commit.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use super::record::{Record, fallocate_of, kind_of, rename_of, stamp};
use super::tie::Tie;
use crate::fs::ext4::{Create, Ext4};
use crate::fs::nfhybrid::ssd::{self, Record as LogRecord, RecordBody, Run};
use crate::units::Ino;
use crate::{Error, Result};

/// What an SSD is to a disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the disk's own and has missed nothing.
    Current,
    /// Its log counts, its cached contents may be old: the disk was checked or repaired meanwhile.
    LogOnly(&'static str),
    /// The disk was used without it: nothing on it counts.
    Stale(&'static str),
}

/// Compares an SSD's tie with the disk; an error if the two do not belong together.
///
/// `disk_had`: the last operation the SSD knows the disk to have had.
pub fn judge(
    ssd: &ssd::Ssd,
    disk: &Ext4,
    tie: Option<Tie>,
    disk_had: u64,
    names: (&str, &str),
) -> Result<Verdict> {
    let seen = ssd.tie();
    let (ssd_name, disk_name) = names;
    if seen.disk_uuid != disk.identity().uuid {
        return Err(Error::Mismatch(format!(
            "{ssd_name} belongs to the disk {}, not to {disk_name} ({}); give the right SSD, or mount without one",
            uuid::Uuid::from_bytes(seen.disk_uuid),
            uuid::Uuid::from_bytes(disk.identity().uuid),
        )));
    }
    let Some(tie) = tie else {
        return Ok(Verdict::Stale("the disk's record of this SSD is gone"));
    };
    if tie.ssd != ssd.uuid() {
        return Err(Error::Mismatch(format!(
            "{disk_name} was since joined with another SSD ({}), {ssd_name} is {}; give the right one, or mount without",
            uuid::Uuid::from_bytes(tie.ssd),
            uuid::Uuid::from_bytes(ssd.uuid()),
        )));
    }
    if tie.epoch != seen.epoch {
        return Ok(Verdict::Stale("the disk was used after this SSD was lost or left out"));
    }
    if tie.op < disk_had {
        return Ok(Verdict::Stale("the disk is older than the SSD: it lost what it once had"));
    }
    let identity = disk.identity_found();
    if (identity.mount_count, identity.mount_time) != (seen.mount_count, seen.mount_time) {
        return Ok(Verdict::Stale("the disk was mounted without this SSD"));
    }
    if identity.check_time != seen.last_check {
        return Ok(Verdict::LogOnly("the disk was checked since"));
    }
    if ssd.is_clean() && identity.write_time != seen.write_time {
        return Ok(Verdict::LogOnly("the disk was written to since"));
    }
    Ok(Verdict::Current)
}

impl Shared {
    /// Brings the disk up to what the SSD's log promises. Returns the number of records applied.
    ///
    /// What does not fit one transaction is committed in between, at an operation whose earlier ones are all
    /// applied, so that a recovery cut short goes on from there.
    pub(super) fn replay(&self, records: &[LogRecord], complete: u64) -> Result<u64> {
        let mut core = self.core.lock();
        let disk_has = core.committed;
        if let Some(ssd) = &mut core.ssd {
            ssd.trim(disk_has);
        }
        drop(core);
        let complete = complete.max(disk_has);
        let mut applied = 0;
        for (number, record) in records.iter().enumerate() {
            if record.op <= disk_has {
                continue;
            }
            while !self.replay_one(record, complete)? {
                self.core.lock().op = record.op - 1;
                self.cycle()?;
            }
            applied += 1;
            let next = records.get(number + 1).map_or(u64::MAX, |next| next.op);
            let mut core = self.core.lock();
            core.op = if next > record.op { record.op } else { record.op - 1 };
            let crowded = self.cycle_wanted(&core);
            drop(core);
            if crowded {
                self.cycle()?;
            }
        }
        let mut core = self.core.lock();
        core.op = records.iter().map(|record| record.op).fold(core.op, u64::max);
        Ok(applied)
    }

    /// Applies one record; `false` if it has to be applied again after a commit.
    fn replay_one(&self, record: &LogRecord, complete: u64) -> Result<bool> {
        let mut core = self.core.lock();
        core.op = record.op - 1;
        match &record.body {
            RecordBody::Operation(bytes) => return self.apply(&mut core, record.op, bytes),
            RecordBody::Fresh { ino, file_block, run, inode } if record.op <= complete => {
                self.copy_back(&mut core, record.op, *ino, *file_block, *run, inode.size)?;
            }
            RecordBody::Fresh { ino, file_block, run, .. } => {
                self.drop_copy(&mut core, record.op, *ino, *file_block, *run);
            }
        }
        Ok(true)
    }

    fn drop_copy(&self, core: &mut Core, op: u64, ino: Ino, file_block: u32, run: Run) {
        if let Some(ssd) = &mut core.ssd {
            ssd.unbind(op, ino, file_block.into(), run.len.into());
        }
    }

    /// State 10: the SSD's copy is written on to the disk.
    fn copy_back(
        &self,
        core: &mut Core,
        op: u64,
        ino: Ino,
        file_block: u32,
        run: Run,
        size: u64,
    ) -> Result<()> {
        let Some(mut sums) = core.ssd.as_ref().map(|ssd| ssd.sums(run.at, run.len)) else {
            return Err(Error::invalid("no SSD"));
        };
        if !is_live(core, ino)? {
            self.drop_copy(core, op, ino, file_block, run);
            return Ok(());
        }
        let bytes = match self.read_ssd(run.at, &mut sums) {
            Ok(bytes) => bytes,
            Err(error @ Error::Corrupt { .. }) => {
                // The flush that would have promised it never finished, or the SSD lost it since.
                tracing::warn!(ino = ino.0, op, %error, "not copied to the disk");
                self.drop_copy(core, op, ino, file_block, run);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let offset = u64::from(file_block) * self.ssd_block_bytes as u64;
        self.put(core, ino, offset, &bytes)?;
        let reach = size.min(offset + bytes.len() as u64);
        let inode = core.ext4.inode_mut(ino)?;
        inode.size = inode.size.max(reach);
        let first = offset / FRAME as u64;
        let frames = first..first + (bytes.len() / FRAME) as u64;
        for (_, frame) in core.node_of(ino).frames.range_mut(frames) {
            frame.placed = true;
        }
        core.dirty.bytes += bytes.len() as u64;
        core.dirty.since.get_or_insert(self.clock.now());
        Ok(())
    }

    fn apply(&self, core: &mut Core, op: u64, bytes: &[u8]) -> Result<bool> {
        let record = Record::decode(bytes, op)?;
        self.apply_record(core, op, &record).map_err(|error| match error {
            Error::Io { .. } | Error::Gone { .. } => error,
            other => Error::corrupt(
                "SSD log",
                format!("operation {op} does not fit the disk: {other}; mount with -o recover=disk to drop the log"),
                format!("{record:?}").chars().take(200).collect::<String>(),
            ),
        })
    }

    fn apply_record(&self, core: &mut Core, op: u64, record: &Record) -> Result<bool> {
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
                self.make(core, &spec).map(drop)
            }
            Record::Link { ino, parent, name, at } => {
                self.add_link(core, Ino(ino), Ino(parent), name, stamp(at))
            }
            Record::Remove { parent, name, dir, at } => {
                self.remove_name(core, Ino(parent), name, dir, stamp(at))
            }
            Record::Rename { from, name, to, new_name, how, at } => {
                let how = rename_of(how, op)?;
                self.move_name(core, Ino(from), name, Ino(to), new_name, how, stamp(at))
            }
            Record::Release { ino } => match core.ext4.inode(Ino(ino)) {
                Ok(inode) if inode.nlink == 0 => self.release(core, Ino(ino)),
                _ => Ok(()),
            },
            Record::Attributes { ino, .. }
            | Record::Truncate { ino, .. }
            | Record::Xattr { ino, .. }
            | Record::Fallocate { ino, .. }
            | Record::Data { ino, .. }
            | Record::Contents { ino, .. } => match is_live(core, Ino(ino))? {
                true => return self.apply_to_inode(core, op, record),
                // Unlinked later but still open then: nothing of it is left to change.
                false => Ok(()),
            },
        };
        done.map(|()| true)
    }

    fn apply_to_inode(&self, core: &mut Core, op: u64, record: &Record) -> Result<bool> {
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
                let size = if size < old { size.min(here) } else { size };
                return self.set_size(core, Ino(ino), size, stamp(at));
            }
            Record::Xattr { ino, name, value, perm, at } => {
                self.store_xattr(core, Ino(ino), name, value, Some(perm), stamp(at))
            }
            Record::Fallocate { ino, what, offset, len, at, .. } => {
                let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
                self.allocate_range(core, Ino(ino), offset..end, fallocate_of(what, op)?, stamp(at))
            }
            Record::Data { ino, offset, bytes } => {
                offset.checked_add(bytes.len() as u64).ok_or(Error::TooLarge)?;
                self.put(core, Ino(ino), offset, bytes)?;
                core.dirty.bytes += bytes.len() as u64;
                Ok(())
            }
            Record::Contents { ino, size, perm, mtime, ctime, .. } => {
                if size < core.ext4.inode(Ino(ino))?.size
                    && !self.set_size(core, Ino(ino), size, stamp(ctime))?
                {
                    return Ok(false);
                }
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

fn is_live(core: &mut Core, ino: Ino) -> Result<bool> {
    match core.ext4.inode(ino) {
        Ok(inode) => Ok(inode.nlink > 0),
        Err(Error::Stale | Error::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}
