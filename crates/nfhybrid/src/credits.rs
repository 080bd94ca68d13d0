//! Reservations: an operation takes credits before it changes anything, and waits for them without any lock.
//!
//! **What is limited**, and what an operation says it takes of it at most ([`Credits`]):
//!
//! - *The journal.* What the running transaction holds ([`bimetal_ext4::Ext4::dirty_blocks`]), the data that
//!   overwrites live blocks, and what placing the dirty data will add ([`Needs`]) never exceed what one transaction
//!   carries, nor what the log has room for now. So no freeze makes a transaction too large, and no commit waits for
//!   a checkpoint.
//! - *The lag*, in bytes of data and in time.
//! - *The log.* Records of operations never exceed half of the SSD's log, so that an fsync finds room for them.
//!
//! Room on the disk is promised apart from this, block by block ([`bimetal_ext4::Ext4::reserve`]).
//!
//! What was taken and not used is back when the operation ends, because the account is of what is there.
//!
//! **Order.** First come, first served; but a file may have at most [`SHARE`] times as many bytes under way as the lag
//! leaves to all others (dynamic thresholds, Choudhury & Hahne 1998), and who waits for that alone is passed by. So
//! `n` streams leave one part in `SHARE * n + 1` of the lag to everybody else, and a small write does not queue
//! behind them.

use super::Shared;
use super::core::Core;
use super::dirty::Needs;
use super::frames::FRAME;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::FsStat;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many times the bytes that the lag leaves one file may have under way.
const SHARE: u64 = 8;
/// Journal blocks that no operation may take: the superblock and its copy, and what ends a mount.
const KEPT: u64 = 8;
/// Images that the first step of the checkpointer writes home.
const STEP_FIRST: usize = 64;
/// Images a step writes home, at least and at most.
const STEP: std::ops::RangeInclusive<usize> = 16..=1024;
/// How long a step may take of what a commit has.
const STEP_TIME: Duration = Duration::from_millis(250);

/// What an operation takes at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credits {
    /// Blocks of the journal.
    pub journal: u64,
    /// Bytes of data the disk will lack.
    pub bytes: u64,
    /// Bytes of operation records.
    pub records: u64,
}

impl Credits {
    /// Of the journal, and for records of one operation or two.
    pub fn blocks(journal: u64) -> Credits {
        Credits { journal, bytes: 0, records: 1024 }
    }
}

/// Who waits for credits, in the order they came.
#[derive(Default)]
pub struct Queue {
    waiting: BTreeMap<u64, (Ino, Credits)>,
    next: u64,
    /// What the first of them lacks comes with a commit.
    commit: bool,
    /// An operation that no transaction can carry was logged.
    told_too_large: bool,
}

impl Queue {
    /// Tells the log of the first operation that no transaction can carry: the caller learns no more than a number.
    fn tell_too_large(&mut self, error: &Error) -> bool {
        let is_first = !std::mem::replace(&mut self.told_too_large, true);
        if is_first {
            tracing::warn!("{error}");
        }
        is_first
    }

    /// Whether somebody waits for a commit.
    pub fn wants_commit(&self) -> bool {
        self.commit && !self.waiting.is_empty()
    }

    /// A commit is done; who needs another says so again.
    pub fn commit_is_done(&mut self) {
        self.commit = false;
    }
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// What a commit gives.
    Commit,
    /// What a step of the checkpoint gives.
    Step,
    /// A share of the lag: others may pass.
    Share,
}

impl Core {
    /// Blocks that the running transaction will put into the journal at most, if frozen now, with these needs.
    fn journal_blocks(&self, needs: &Needs) -> u64 {
        let metadata = self.ext4.dirty_blocks() as u64;
        let data = needs.tree.nodes + needs.overwrites + self.ext4.group_blocks(needs.tree.places);
        // The superblock and its first copy are in every transaction; where metadata changed they are counted already.
        let always = if metadata == 0 && data > 0 { self.ext4.super_blocks() as u64 } else { 0 };
        metadata + data + always
    }

    /// The same as things are.
    pub fn journal_need(&self) -> u64 {
        self.journal_blocks(&self.dirty.needs())
    }

    /// Bytes of a file that the disk does not have.
    fn bytes_under_way(&self, ino: Ino) -> u64 {
        let dirty = self.nodes.get(ino).map_or(0, |node| node.frames().len());
        let frozen = self.cycle.as_ref().map_or(0, |cycle| cycle.count_of(ino));
        ((dirty + frozen) * FRAME) as u64
    }
}

impl Shared {
    /// Blocks the running transaction may put into the journal: as many as one carries, and as the log has room for.
    pub(super) fn journal_limit(&self, core: &Core) -> u64 {
        let moving = core.cycle.as_ref().map_or(0, |cycle| self.journal.log_blocks(cycle.images()));
        let room = u64::from(self.journal.room()).saturating_sub(moving);
        self.journal.images_in(room).min(self.transaction_limit())
    }

    /// Blocks a transaction carries at most.
    pub(super) fn transaction_limit(&self) -> u64 {
        u64::from(self.journal.capacity()).saturating_sub(KEPT)
    }

    /// Bytes that the disk may lack: the lag's, or fewer if it could not write as many in time.
    fn bytes_limit(&self, core: &Core) -> u64 {
        self.lag.bytes.min(core.pace.within(self.lag.time))
    }

    /// Whether the needs of a file may become these, as far as the journal goes.
    pub(super) fn may_need(&self, core: &mut Core, ino: Ino, data: Needs) -> Result<bool> {
        let new = core.needs_of(ino, data)?;
        let old = core.node_of(ino).needs();
        let all = core.dirty.needs().with(&old, &new);
        let limit = self.journal_limit(core);
        Ok(core.journal_blocks(&all) <= limit)
    }

    /// Whether an access time may be stored: half of the journal is for what changes.
    pub(super) fn has_credits_for_access(&self, core: &Core) -> bool {
        core.journal_need() + core.ext4.credits_for_attributes() <= self.journal_limit(core) / 2
    }

    /// Whether blocks of the journal are there for something that nobody waits for.
    pub(super) fn has_journal_room(&self, core: &Core, blocks: u64) -> bool {
        core.journal_need() + blocks <= self.journal_limit(core)
    }

    /// Whether so many blocks of the journal are there beside what the transaction holds; a transaction of its own always has them.
    pub(super) fn has_room_for(&self, core: &Core, blocks: u64) -> bool {
        core.journal_need() == 0 || self.has_journal_room(core, blocks)
    }

    /// What of these credits is missing, `ahead` being taken already.
    fn lack(&self, core: &Core, ino: Ino, need: &Credits, ahead: &Credits) -> Option<Lack> {
        let now = self.clock.now();
        if core.tables.are_blocked() && core.ssd.is_some() {
            return Some(Lack::Commit);
        }
        if core.at_risk_since().is_some_and(|since| now.since(since) > self.lag.time) {
            return Some(Lack::Commit);
        }
        if core.dirty.zeros() > self.lag.bytes {
            return Some(Lack::Commit);
        }
        let under_way = core.at_risk_bytes();
        let free = self.bytes_limit(core).saturating_sub(under_way);
        if need.bytes > 0 && under_way > 0 {
            let left = free.saturating_sub(need.bytes);
            if core.bytes_under_way(ino) + need.bytes > SHARE.saturating_mul(left) {
                return Some(Lack::Share);
            }
            if need.bytes + ahead.bytes > free {
                return Some(Lack::Commit);
            }
        }
        let records = core.ops.records().len_bytes() as u64;
        if records > 0 && records + need.records + ahead.records > self.records_limit {
            return Some(Lack::Commit);
        }
        let blocks = core.journal_need() + need.journal + ahead.journal;
        match blocks {
            _ if blocks <= self.journal_limit(core) => None,
            _ if blocks > self.transaction_limit() => Some(Lack::Commit),
            _ => Some(Lack::Step),
        }
    }

    /// What whoever came before ticket `ticket` takes, but for those who wait for their share alone.
    fn ahead_of(&self, core: &Core, ticket: u64) -> Credits {
        let mut ahead = Credits::default();
        for (ino, credits) in core.queue.waiting.range(..ticket).map(|(_, waiter)| waiter) {
            if self.lack(core, *ino, credits, &Credits::default()) != Some(Lack::Share) {
                ahead.journal += credits.journal;
                ahead.bytes += credits.bytes;
                ahead.records += credits.records;
            }
        }
        ahead
    }

    /// Whether credits can be had now, before nobody who waits.
    pub(super) fn has_credits(&self, core: &Core, ino: Ino, need: &Credits) -> bool {
        let ahead = self.ahead_of(core, u64::MAX);
        self.lack(core, ino, need, &ahead).is_none()
    }

    /// Takes the credits of an operation, waiting for them without the lock; then the lock.
    ///
    /// # Errors
    /// What `credits` says; that the file system has stopped; an operation that no transaction can carry.
    pub(super) fn admitted(
        &self,
        ino: Ino,
        credits: impl Fn(&mut Core) -> Result<Credits>,
    ) -> Result<MutexGuard<'_, Core>> {
        let mut core = self.core.lock();
        core.writable()?;
        let need = credits(&mut core)?;
        if self.has_credits(&core, ino, &need) {
            return Ok(core);
        }
        core.counters.throttled += 1;
        let ticket = core.queue.next;
        core.queue.next += 1;
        let waited = self.await_credits(&mut core, ino, ticket, &credits);
        core.queue.waiting.remove(&ticket);
        if !core.queue.waiting.is_empty() {
            // Whoever is next looks when this operation has left the lock, at what it really took.
            self.progress.notify_all();
        }
        waited.map(|()| core)
    }

    fn await_credits(
        &self,
        core: &mut MutexGuard<'_, Core>,
        ino: Ino,
        ticket: u64,
        credits: impl Fn(&mut Core) -> Result<Credits>,
    ) -> Result<()> {
        loop {
            core.writable()?;
            let need = credits(core)?;
            if need.journal > self.transaction_limit() {
                let error = too_large(need.journal, self.transaction_limit(), &core.ext4.statfs());
                core.queue.tell_too_large(&error);
                return Err(error);
            }
            core.queue.waiting.insert(ticket, (ino, need));
            let ahead = self.ahead_of(core, ticket);
            let Some(lack) = self.lack(core, ino, &need, &ahead) else { return Ok(()) };
            core.queue.commit |= lack != Lack::Step;
            self.work.notify_one();
            self.home_work.notify_all();
            self.await_progress(core);
        }
    }

    /// The task that writes the journal's images home, a step at a time, as long as a quarter of the log is in use.
    pub(super) fn run_checkpoints(&self) {
        let mut size = STEP_FIRST;
        loop {
            let mut core = self.core.lock();
            while !core.is_stopping() && !self.step_due(&core) {
                self.home_work.wait(&mut core);
            }
            if core.is_stopping() {
                return;
            }
            drop(core);
            let began = self.clock.now();
            if let Err(error) = self.journal.step(began, size) {
                self.stop_with(&error);
            }
            size = next_size(size, self.clock.now().since(began).min(self.lag.time), self.step_time());
            self.progress.notify_all();
        }
    }

    /// A step is due unless a commit is under way that needs the disk, and there is room enough for what comes next.
    fn step_due(&self, core: &Core) -> bool {
        let hurry = core.cycle.is_none() || self.journal.room() < 2 * self.journal.capacity();
        core.state.is_running() && self.journal.wants_step() && hurry
    }

    fn step_time(&self) -> Duration {
        STEP_TIME.min(self.lag.time / 16)
    }

    /// Steps until no more are due, on this thread; for a mount without tasks of its own.
    pub(super) fn checkpoint_here(&self) -> Result<()> {
        while self.journal.wants_step() {
            self.journal.step(self.clock.now(), *STEP.end())?;
        }
        Ok(())
    }
}

/// How many images the next step writes home, if the last one took so long.
fn next_size(size: usize, took: Duration, aim: Duration) -> usize {
    let next = match () {
        _ if took > aim => size / 2,
        _ if took < aim / 2 => size * 2,
        _ => size,
    };
    next.clamp(*STEP.start(), *STEP.end())
}

/// An eighth of a small disk is no journal that mke2fs would make, and as much as tune2fs takes.
fn too_large(blocks: u64, limit: u64, disk: &FsStat) -> Error {
    let mib = ((disk.blocks * u64::from(disk.block_bytes)) >> 23).clamp(4, 64);
    Error::unsupported(
        format_args!("an operation that may change {blocks} blocks at once"),
        format_args!(
            "the disk half's journal takes {limit}; give it a larger one: unmount, then `tune2fs -O ^has_journal` and `tune2fs -J size={mib}`"
        ),
    )
}

#[cfg(test)]
impl super::NfHybrid {
    /// Blocks that the running transaction will put into the journal at most, and what it may.
    pub fn journal_account(&self) -> (u64, u64) {
        let core = self.shared.core.lock();
        (core.journal_need(), self.shared.transaction_limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_no_transaction_can_carry_is_logged_once_with_the_remedy() {
        let mut queue = Queue::default();
        let disk = |blocks| FsStat { block_bytes: 1024, blocks, ..FsStat::default() };
        for (blocks, size) in [(1 << 12, "size=4`"), (1 << 17, "size=16`"), (1 << 30, "size=64`")] {
            let error = too_large(40_000, 200, &disk(blocks)).to_string();
            assert!(error.contains(size), "{error}");
        }
        let error = too_large(40_000, 200, &disk(0));
        assert!(queue.tell_too_large(&error) && !queue.tell_too_large(&error));
    }

    #[test]
    fn a_step_takes_as_long_as_it_may_and_no_longer() {
        let aim = Duration::from_millis(250);
        assert_eq!(next_size(64, Duration::from_millis(400), aim), 32);
        assert_eq!(next_size(64, Duration::from_millis(200), aim), 64);
        assert_eq!(next_size(64, Duration::from_millis(20), aim), 128);
        assert_eq!((next_size(16, aim * 2, aim), next_size(1024, Duration::ZERO, aim)), (16, 1024));
    }
}
