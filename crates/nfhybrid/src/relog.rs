//! The log started anew, and the tables that take the place of its residency records.
//!
//! When the log is half full and the disk has not caught up, it is started anew: data that lay in the log goes
//! to its section, the live records are written again, the old ones are dropped. The disk's speed never
//! limits an fsync; only the lag bound does. All of it rides with the fsync that found the log half full, and costs
//! no flush of its own: the tables are written after it and count from the next flush on.
//!
//! Files come and go while data is on its way to a section: which files the log speaks of is settled in the same hold of
//! the core's lock that appends what it goes on to say.

use super::Shared;
use super::core::Core;
use super::durable::{contents_record, data_record, fill};
use super::frames::FRAME;
use super::line::Gate;
use super::place::submit_gathered;
use super::unlogged::{bytes_in_log, mark, unlogged_bytes, unplaced_bytes, unplaced_frames};
use crate::ssd::Ssd;
use bimetal_base::Result;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::units::Ino;
use bimetal_media::wait_all;

impl Shared {
    /// Starts the log anew if it is half full.
    ///
    /// Where that cannot be done, fsyncs fill it up to three quarters, and wait for the disk then.
    ///
    /// # Errors
    /// Those of the SSD's device.
    pub(super) fn make_room(&self, gate: &Gate) -> Result<()> {
        if self.is_restart_due() { self.relog(gate) } else { Ok(()) }
    }

    /// Whether the log is to be started anew.
    pub(super) fn is_restart_due(&self) -> bool {
        let core = self.core.lock();
        !core.state.is_mounting() && core.ssd.as_ref().is_some_and(|ssd| restart_due(&core, ssd))
    }

    /// Appends what the log must go on to say; the next write of the log takes it along.
    ///
    /// # Errors
    /// Those of the SSD's device.
    pub(super) fn relog(&self, _gate: &Gate) -> Result<()> {
        let mut core = self.core.lock();
        let mut placements = Vec::new();
        for ino in files_to_keep(&core) {
            if let Some(section) = core.policy(ino).section {
                let frames = unplaced_frames(&mut core, ino);
                placements.extend(self.room_for(&mut core, section, ino, frames));
            }
        }
        drop(core);
        self.write_placements(&placements)?;
        let mut core = self.core.lock();
        self.bind_placed(&mut core, placements);
        // Others may have fsynced, written and removed files meanwhile.
        let files = files_to_keep(&core);
        let left: usize = files.iter().map(|&ino| unplaced_bytes(&core, ino)).sum();
        let live = bytes_in_log(files.len(), left) + core.ops.records().len_bytes() as u64;
        if core.ssd.as_ref().is_none_or(|ssd| ssd.is_filled(live, fill::RESTART)) {
            // More to say than the log has room for: the disk must catch up.
            return Ok(());
        }
        if let Err(error) = self.restart(&mut core, &files) {
            tracing::debug!(%error, "the SSD's log cannot be started anew: the disk must catch up");
        }
        Ok(())
    }

    /// Appends a restart with everything the log must still say, complete.
    ///
    /// # Errors
    /// What keeps an inode from being read, or a record from being logged: the old records go on counting.
    fn restart(&self, core: &mut Core, files: &[Ino]) -> Result<()> {
        core.number_contents();
        let live = live_records(core, files)?;
        let Core { ssd: Some(ssd), .. } = core else { return Ok(()) };
        ssd.restart(live)?;
        core.ops.all_logged();
        for &ino in files {
            for (index, _) in unplaced_frames(core, ino) {
                mark(core, ino, index..index + 1, |known| known.logged = true);
            }
            core.all_logged(ino);
        }
        core.counters.relogs += 1;
        core.tables.put_off();
        core.carried_along();
        core.append_complete();
        Ok(())
    }

    /// Writes the SSD's tables in place, so that the log's residency records are not needed any more once the
    /// next flush is done. The caller holds the gate.
    ///
    /// What the tables say must not depend on anything that a crash could take back: the log is made complete
    /// first, and a cycle under way ends before.
    ///
    /// # Errors
    /// Those of the SSD's device, which is lost then.
    pub(super) fn write_tables(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.cycle.is_some() {
            core.tables.put_off();
            return Ok(());
        }
        // What the disk has no crash takes back.
        let on_disk = core.ops.all_on_disk();
        if !on_disk && (!core.has_room(0, fill::TABLES) || !self.complete_log(&mut core)) {
            let filled = core.ssd.as_ref().is_some_and(|ssd| ssd.is_filled(0, fill::RESTART));
            core.tables.block(filled);
            return Ok(());
        }
        core.tables.unblock();
        self.checkpoint(core)
    }

    /// Writes a checkpoint of the SSD's tables, with what waits for the log; they are durable with the next flush
    /// ([`Shared::tables_flushed`]). If the log is full they are due later. The caller holds the gate.
    ///
    /// # Errors
    /// Those of the SSD's device, which is lost then.
    pub(super) fn checkpoint(&self, mut core: MutexGuard<'_, Core>) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        let (mut sealed, full) = core.seal_all();
        let mut checkpoint = match (&mut core.ssd, full) {
            (Some(ssd), Ok(())) => Some(ssd.checkpoint_begin()?),
            _ => None,
        };
        core.tables.put_together(checkpoint.is_some());
        drop(core);
        if let Some(checkpoint) = &mut checkpoint {
            sealed.groups.append(&mut checkpoint.log);
        }
        self.write_groups(sealed)?;
        let Some(mut checkpoint) = checkpoint else { return Ok(()) };
        self.of_ssd(checkpoint.merge(device.as_ref()))?;
        let tickets = submit_gathered(device.as_ref(), self.clock.now(), checkpoint.tables);
        self.of_ssd(wait_all(device.as_ref(), tickets).result)?;
        self.core.lock().tables.written();
        Ok(())
    }

    /// Appends all that the log lacks to be complete; `false` if that cannot be.
    fn complete_log(&self, core: &mut Core) -> bool {
        let carried = core.carried(Ino(0));
        let data: usize = carried.iter().map(|&ino| unlogged_bytes(core, ino)).sum();
        if !core.has_room(bytes_in_log(carried.len(), data), fill::TABLES) {
            return false;
        }
        if !carried.is_empty() {
            core.number_contents();
        }
        let along = carried.into_iter().try_for_each(|ino| self.append_data(core, ino));
        let appended = along.and_then(|()| self.append_operations(core));
        if appended.is_ok() {
            core.carried_along();
            core.append_complete();
        }
        appended.is_ok()
    }

    /// The same, durable at the end.
    pub(super) fn flush_tables(&self) -> Result<()> {
        self.write_tables()?;
        self.tables_flushed()
    }

    /// Makes tables that were written durable.
    pub(super) fn tables_flushed(&self) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        self.of_ssd(device.flush())?;
        self.core.lock().tables_durable();
        Ok(())
    }

    /// The same, and frees the room in the log that the tables take the place of.
    pub(super) fn empty_log(&self) -> Result<()> {
        self.flush_tables()?;
        self.advance_log()
    }

    /// Frees the room in the log that tables took the place of.
    pub(super) fn advance_log(&self) -> Result<()> {
        let sealed = self.core.lock().advance_log();
        self.write_groups(sealed).map(drop)
    }
}

impl Core {
    /// Whether a restart would free next to nothing of the log: residency records hold it, and the tables that would take
    /// their place cannot be written before the cycle under way is over.
    pub(super) fn is_log_held(&self) -> bool {
        let held = |ssd: &Ssd| ssd.freed_by_restart() < ssd.capacity() / 8;
        self.cycle.is_some() && self.ssd.as_ref().is_some_and(held)
    }
}

/// Files the log must go on to speak of: those with promised contents that the disk does not have, and those whose data
/// is to go along with the operations.
fn files_to_keep(core: &Core) -> Vec<Ino> {
    let mut files = core.promised.files();
    files.extend(core.carried(Ino(0)));
    files.sort_unstable();
    files.dedup();
    files
}

/// Whether the log is to be started anew. Tables on their way will make room without that.
fn restart_due(core: &Core, ssd: &Ssd) -> bool {
    ssd.needs_restart()
        && !(core.tables.are_waiting() && ssd.used() < ssd.capacity() / 4 * 3)
        && !core.is_log_held()
}

/// Everything the log must still say, in the order it would be applied.
fn live_records(core: &mut Core, files: &[Ino]) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut live = Vec::new();
    core.ops.records().show_all(|op, bytes| live.push((op, bytes.to_vec())));
    let op = core.ops.last();
    for &ino in files {
        for (index, bytes) in unplaced_frames(core, ino) {
            let mut record = Vec::with_capacity(FRAME + 32);
            data_record(ino, index, &bytes, &mut record);
            live.push((op, record));
        }
        if let Some(record) = contents_record(core, ino)? {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            live.push((op, bytes));
        }
    }
    Ok(live)
}
