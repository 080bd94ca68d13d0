//! The commit cycle: it brings both halves from one exact state to the next.
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
use super::core::Core;
use super::pairing::{Pairing, Saved};
use super::place::{Placement, submit_gathered};
use super::ssd::Ssd;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::{Error, Result};
use bimetal_ext4::Frozen;
use bimetal_media::{Ticket, wait_all};
use bytes::Bytes;

/// What one cycle writes.
pub(super) struct Work {
    pub op: u64,
    pub frozen: Frozen,
    pub ordered: Vec<(u64, Bytes)>,
    pub placements: Vec<Placement>,
    /// The pairing that was frozen with it.
    pub pairing: Pairing,
}

impl Shared {
    pub(super) fn cycle_or_stop(&self) {
        if let Err(error) = self.cycle() {
            self.stop_with(&error);
        }
        self.progress.notify_all();
    }

    /// Nothing can be changed any more: the disk failed, or a commit found less room than was promised.
    pub(super) fn stop_with(&self, error: &Error) {
        match error {
            Error::NoSpace(_) => tracing::error!(
                %error,
                "a commit found less room on the disk half than was promised, which is a fault of bimetal's; files can be read, \
                 not changed; the SSD's log has what was fsynced: mount both halves again"
            ),
            _ => tracing::error!(%error, "the disk half failed; files can be read, not changed"),
        }
        self.core.lock().state.disk_failed(error);
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
        let Work { op, mut frozen, ordered, placements, pairing } = self.freeze()?;
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
        self.refresh_pairing(&mut frozen, pairing);
        let tid = frozen.tid;
        self.finish_disk(disk, frozen)?;
        self.committed(op, tid)?;
        self.use_ssd(|| if late.is_empty() { self.trim_log() } else { self.bind_late(late) });
        let mut core = self.core.lock();
        core.begin_if_behind(op);
        let alone = self.manual || core.state.is_mounting() || core.is_stopping();
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
        core.ops.committed_up_to(op);
        core.space_freed();
        core.promised.committed_up_to(op);
        core.queue.commit_is_done();
        let Some(cycle) = core.cycle.take() else { return Ok(()) };
        let took = self.clock.now().since(cycle.began());
        core.pace.note(cycle.bytes(), took);
        core.ext4.unreserve_nodes(cycle.tied_nodes());
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
        self.clean_work.notify_all();
        released
    }

    /// If the log is still half full, or what changed fills memory, the residency records go to the tables; the next flush
    /// lets go of them.
    fn trim_log(&self) -> Result<()> {
        let mut core = self.core.lock();
        let waited = core.tables.take_due();
        let full = core.tables.are_blocked();
        let is_due = |ssd: &Ssd| ssd.needs_restart() || ssd.changes_fill_memory();
        let due = !core.state.is_mounting() && core.ssd.as_ref().is_some_and(|ssd| waited || is_due(ssd));
        if !due {
            // Another one may have made the room meanwhile.
            core.tables.unblock();
        }
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
}

impl Shared {
    /// What the disk is to say with a transaction that ends with `op`.
    pub(super) fn pairing_of(&self, core: &Core, op: u64) -> Pairing {
        let lag_tenths = u16::try_from(self.lag.time.as_millis().div_ceil(100)).unwrap_or(u16::MAX);
        let (epoch, state) = (core.state.epoch(), core.state.saved());
        let reached = core.state.given_up().map_or_else(|| core.log_reached(), Pairing::reached_without_ssd);
        Pairing { ssd: self.ssd_uuid, epoch, op, state, reached, lag_tenths }
    }

    /// Replaces the pairing in a frozen transaction: the SSD's log has gone on since, or the SSD is gone.
    fn refresh_pairing(&self, frozen: &mut Frozen, frozen_pairing: Pairing) {
        let mut core = self.core.lock();
        let mut pairing = self.pairing_of(&core, frozen_pairing.op);
        if pairing.epoch != frozen_pairing.epoch {
            // Its log may hold what was fsynced after the freeze; the next transaction has that, and raises the epoch.
            pairing = Pairing { state: Saved::Recovering, ..frozen_pairing };
        }
        if pairing != frozen_pairing {
            core.ext4.refresh_pairing(frozen, &pairing.encode());
        }
    }
}
