//! The journal of an ext4 file system: jbd2's format, written and replayed.
//!
//! A transaction is a set of block images that reach the disk together or not at all. It is first written to the
//! *log*, a ring of blocks inside the file system, and closed by a commit block; any time later the images are
//! written *home*, to the blocks they belong to. After a crash whoever mounts the disk (this code, the Linux
//! kernel, `e2fsck`) writes the images of all closed transactions home.
//!
//! **Order on the disk**, and why a crash at any point leaves a prefix of the transactions:
//!
//! 1. Before the first transaction in an empty log: the superblock, durable, with the place where it will be.
//! 2. Revoke blocks, descriptors and images: one gathered write for each run of neighbouring log blocks.
//! 3. A flush. It also makes durable what the caller wrote in place before the commit.
//! 4. The commit block, durable. Where the device may tear a block, step 2 has already written zeros in its
//!    place, so that only its first sector changes.
//! 5. *Checkpoint*, in steps beside the commits (`checkpoint.rs`): images of the oldest transactions home, a flush, the
//!    superblock, durable, with the log's new beginning. Only then is log space used again.
//!
//! So a steady stream of commits costs two writes and one flush each. A commit that finds no room in the log makes
//! as many steps as it needs; who calls [`Journal::step`] while [`Journal::wants_step`] keeps it from having to.
//!
//! **Revokes.** Once a transaction has freed a block, the block may hold file data that never sees the log, and an
//! older image in the log must not overwrite it. The freeing transaction carries a revoke for every freed block of
//! which the log has an image, home or not (and for no other); it is dropped from memory too, so it never goes home.
//!
//! **Errors.** A write or flush that fails leaves unknown what is on the disk: the journal is *aborted*, that
//! call and all later ones fail, nothing more is written. What was reported as committed stays committed.
//!
//! Memory: the newest image of every block in the log that is not home, at most the log's size.
//! Locks: one for the log, held through the I/O of a commit; one for the images and one for the counts, held for
//! look-ups only. How much of the log is in use can be seen without any.

mod checkpoint;
mod format;
mod images;
mod recovery;
#[cfg(test)]
mod tests;
mod write;

pub use recovery::Recovery;

use bimetal_base::runtime::sync::Mutex;
use bimetal_base::time::{Stamp, Time};
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_media::{BlockDevice, Gather, Request};
use bytes::Bytes;
use checkpoint::{Live, STEP_MAX};
use format::Superblock;
use images::Images;
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use write::{records, records_len, write_blocks};

/// What one commit carries.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// New contents of blocks, each a whole block; the last of several images of one block counts.
    pub metadata: Vec<(DiskBlock, Bytes)>,
    /// Runs of blocks that are free once this transaction is on the disk: first block and number of blocks.
    pub freed: Vec<(DiskBlock, u32)>,
    /// The wall's time, for the commit block.
    pub stamp: Stamp,
}

/// Counts since the journal was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JournalStats {
    /// Transactions committed.
    pub transactions: u64,
    /// Images written to the log, blocks.
    pub blocks: u64,
    /// Blocks revoked.
    pub revokes: u64,
    /// Times a checkpoint moved the log's beginning.
    pub checkpoints: u64,
    /// Images written home by checkpoints, blocks.
    pub home_blocks: u64,
    /// When the last request was done.
    #[serde(skip)]
    pub done_at: Time,
}

/// A loaded journal. One thread commits; any thread may look.
pub struct Journal {
    disk: Arc<dyn BlockDevice>,
    block_bytes: u32,
    /// Where each block of the journal lies on the disk.
    blocks: Box<[DiskBlock]>,
    /// Blocks of the ring.
    ring: u32,
    log: Mutex<Log>,
    /// Held through a step of a checkpoint; taken before `log`.
    home: Mutex<()>,
    images: RwLock<Images>,
    stats: Mutex<JournalStats>,
    /// Blocks of the ring in use, as of the last commit or step.
    used: AtomicU32,
}

/// The state of the ring.
struct Log {
    superblock: Superblock,
    /// The superblock on the disk says where the next transaction begins.
    started: bool,
    /// There is something to replay first.
    unreplayed: bool,
    /// The next free block of the ring.
    head: u32,
    /// Blocks between the oldest live transaction and the head.
    used: u32,
    next_tid: u32,
    /// Commit times never go back: replayers take an older one for a leftover.
    last_commit: Stamp,
    aborted: Option<String>,
    /// The transactions in it, oldest first.
    live: VecDeque<Live>,
}

impl Journal {
    /// Reads and checks the superblock of a journal whose block `k` lies at `blocks[k]` on the disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a superblock that is wrong, [`Error::Unsupported`] for features that are not known
    /// by name (and for a journal shared by several file systems), or what reading says.
    pub fn load(disk: Arc<dyn BlockDevice>, block_bytes: u32, blocks: Vec<DiskBlock>) -> Result<Journal> {
        let info = disk.info();
        if block_bytes < 1024 || !block_bytes.is_multiple_of(info.block_bytes) {
            return Err(Error::invalid(format_args!(
                "{}: journal blocks of {block_bytes} bytes do not fit blocks of {}",
                info.name, info.block_bytes
            )));
        }
        let on_disk = info.size_bytes / u64::from(block_bytes);
        if let Some(outside) = blocks.iter().find(|block| block.0 >= on_disk) {
            return Err(Error::corrupt(
                "the journal",
                "a block of it lies past the end of the disk",
                outside,
            ));
        }
        let Some(first) = blocks.first() else {
            return Err(Error::corrupt("the journal", "it has no blocks", &info.name));
        };
        let block = disk.read(first.0 * u64::from(block_bytes), block_bytes as usize)?;
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let superblock = Superblock::parse(&block, count)?;
        let log = Log {
            started: false,
            unreplayed: superblock.start() != 0,
            head: superblock.first(),
            used: 0,
            next_tid: superblock.sequence().wrapping_add(1),
            last_commit: Stamp::default(),
            aborted: None,
            live: VecDeque::new(),
            superblock,
        };
        Ok(Journal {
            disk,
            block_bytes,
            blocks: blocks.into_boxed_slice(),
            ring: log.len(),
            log: Mutex::new(log),
            home: Mutex::new(()),
            images: RwLock::default(),
            stats: Mutex::default(),
            used: AtomicU32::new(0),
        })
    }

    /// Whether the log holds transactions of an earlier use; nothing can be committed before [`Self::recover`].
    pub fn needs_recovery(&self) -> bool {
        self.log.lock().unreplayed
    }

    /// Whether an earlier user, such as the kernel, aborted this journal after an error: what it had in memory
    /// never reached the disk, and the file system should be checked. It stays noted until `e2fsck` clears it.
    pub fn was_aborted(&self) -> bool {
        self.log.lock().superblock.error() != 0
    }

    /// What a block will hold once [`Self::recover`] is done, if that changes it, and the transaction that a replay ends
    /// before, if there is one to do. Nothing is written.
    ///
    /// # Errors
    /// As [`Self::recover`], as far as reading shows.
    pub fn preview(&self, home: DiskBlock) -> Result<(Option<Bytes>, Option<u32>)> {
        let log = self.log.lock();
        match log.unreplayed {
            false => Ok((None, None)),
            true => {
                let (image, end) = recovery::image_of(&*self.disk, &log.superblock, &self.blocks, home)?;
                Ok((image, Some(end)))
            }
        }
    }

    /// Writes the images of all closed transactions home and marks the log empty.
    ///
    /// A crash in the middle does no harm: the log is still there. Nothing is written if the log is damaged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a transaction before the last is damaged, [`Error::Unsupported`] if there are fast
    /// commits or asynchronous commits to replay, or what reading and writing say.
    pub fn recover(&self) -> Result<Recovery> {
        self.recover_to(None)
    }

    /// The same for a log that was looked at before: it must end where it did then. A log that reads shorter than it is
    /// (a disk that answers with zeros) looks like one that was cut, and would be emptied.
    ///
    /// # Errors
    /// As [`Self::recover`]; [`Error::Corrupt`] if it ends elsewhere, with nothing written.
    pub fn recover_to(&self, end: Option<u32>) -> Result<Recovery> {
        let mut log = self.log.lock();
        log.check_alive()?;
        if !log.unreplayed {
            return Ok(Recovery::default());
        }
        let replayed = recovery::replay(&*self.disk, Time::ZERO, &log.superblock, &self.blocks, end)?;
        let at = self.flush(replayed.done)?;
        log.next_tid = replayed.end.wrapping_add(1);
        log.last_commit = Stamp { sec: replayed.committed as i64, nsec: 0 };
        let next_tid = log.next_tid;
        log.superblock.set_log(0, next_tid);
        let done_at = self.write_superblock(&mut log, at)?;
        self.count(|stats| stats.done_at = done_at);
        log.unreplayed = false;
        Ok(replayed.recovery)
    }

    /// Chooses the look of new transactions, as the kernel does at mount: with checksums (v3) or without, with
    /// 64-bit block numbers or 32-bit ones. A version 1 superblock becomes version 2. Written with the next
    /// commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the log is not empty; the error that aborted the journal.
    pub fn choose_format(&self, checksums: bool, bits64: bool) -> Result<()> {
        let mut log = self.log.lock();
        log.check_ready()?;
        if log.used > 0 {
            return Err(Error::invalid("the journal's format can be chosen only while its log is empty"));
        }
        log.superblock.choose(checksums, bits64);
        log.started = false;
        Ok(())
    }

    /// Makes a transaction durable and returns its number.
    ///
    /// What the caller wrote in place and waited for before the call is durable too when it returns. While
    /// [`Self::holds`] says so, a block may be changed through transactions only. A transaction without images
    /// that revokes nothing is a flush; its number is that of the last one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`Self::capacity`] images, for images that are not a block long, for
    /// block numbers the format has no room for, and before [`Self::recover`]; the error that aborted the
    /// journal.
    pub fn commit(&self, at: Time, transaction: Transaction) -> Result<u32> {
        loop {
            let mut log = self.log.lock();
            log.check_ready()?;
            self.check(&log, &transaction)?;
            let revokes = self.images.read().to_revoke(&transaction);
            let needed = records_len(&log.superblock.format(), revokes.len(), &transaction);
            let unsaid = !revokes.is_empty() && !log.superblock.can_revoke();
            if log.used > 0 && (unsaid || u64::from(log.used) + needed >= u64::from(self.ring)) {
                // Nobody made the room ahead.
                drop(log);
                self.step(at, STEP_MAX)?;
                continue;
            }
            let result = self.commit_locked(&mut log, at, &transaction, &revokes);
            let (tid, homing) = log.note(result)?;
            drop(log);
            if homing {
                drop(self.home.lock());
            }
            return Ok(tid);
        }
    }

    /// The answer is the transaction's number, and whether a block it has freed is just being written home.
    fn commit_locked(
        &self,
        log: &mut Log,
        at: Time,
        transaction: &Transaction,
        revokes: &[u64],
    ) -> Result<(u32, bool)> {
        let metadata = &transaction.metadata;
        if metadata.is_empty() && revokes.is_empty() {
            let done_at = self.flush(at)?;
            self.count(|stats| stats.done_at = done_at);
            return Ok((log.next_tid.wrapping_sub(1), false));
        }
        self.images.write().begin(metadata);
        let done_at = self.write_transaction(log, at, transaction, revokes)?;
        let tid = log.next_tid;
        let homing = self.images.write().settle(tid, revokes);
        self.used.store(log.used, Ordering::Release);
        log.next_tid = tid.wrapping_add(1);
        self.count(|stats| {
            stats.transactions += 1;
            stats.blocks += metadata.len() as u64;
            stats.revokes += revokes.len() as u64;
            stats.done_at = done_at;
        });
        Ok((tid, homing))
    }

    /// Steps 1 to 4 of a commit.
    fn write_transaction(
        &self,
        log: &mut Log,
        at: Time,
        transaction: &Transaction,
        revokes: &[u64],
    ) -> Result<Time> {
        let Transaction { metadata, stamp, .. } = transaction;
        let (format, tid, mut at) = (log.superblock.format(), log.next_tid, at);
        if !log.started {
            let head = log.head;
            log.superblock.note_revokes();
            log.superblock.set_log(head, tid);
            at = self.write_superblock(log, at)?;
            log.started = true;
        }
        let mut blocks = records(&format, tid, revokes, metadata);
        let commit_at = blocks.len() as u32;
        if self.disk.info().atomic_bytes < self.block_bytes {
            blocks.push(vec![0; self.block_bytes as usize].into());
        }
        let placed = blocks.into_iter().zip(0..).map(|(block, index)| (self.ring_block(log, index), block));
        let at = write_blocks(&*self.disk, at, self.block_bytes as usize, placed)?;
        let at = self.flush(at)?;
        log.last_commit = log.last_commit.max(*stamp);
        let commit = format.commit(tid, log.last_commit);
        let done = self.write_durable(at, self.ring_block(log, commit_at), commit)?;
        let revoked = revokes.len().div_ceil(format.revokes_max()) as u32;
        let parts = Live::parts(log, &format, revoked, commit_at + 1, metadata);
        log.live.extend(parts);
        log.head = log.ring(commit_at + 1);
        log.used += commit_at + 1;
        Ok(done)
    }

    /// The newest image of a block that is not home yet, of a committed transaction or the one being committed.
    pub fn latest(&self, block: DiskBlock) -> Option<Bytes> {
        self.images.read().latest(block)
    }

    /// Whether the log has an image of a block, home or not.
    pub fn holds(&self, block: DiskBlock) -> bool {
        self.images.read().holds(block)
    }

    /// The most images one transaction may carry: a quarter of the log.
    pub fn capacity(&self) -> u32 {
        self.ring / 4
    }

    /// Log blocks that a transaction of `images` images takes at most, whatever it revokes.
    pub fn log_blocks(&self, images: u64) -> u64 {
        // No look has fewer tags or block numbers in a block.
        let per_block = u64::from(self.block_bytes) / 32;
        images + images / per_block + u64::from(self.ring) / per_block + 3
    }

    /// The most images for which [`Self::log_blocks`] is no more than `room`.
    pub fn images_in(&self, room: u64) -> u64 {
        let per_block = u64::from(self.block_bytes) / 32;
        let images = room.saturating_sub(u64::from(self.ring) / per_block + 3);
        images - images.div_ceil(per_block + 1)
    }

    /// Counts since the journal was loaded. Never waits for a request under way.
    pub fn stats(&self) -> JournalStats {
        *self.stats.lock()
    }

    fn count(&self, change: impl FnOnce(&mut JournalStats)) {
        change(&mut self.stats.lock());
    }

    fn check(&self, log: &Log, transaction: &Transaction) -> Result<()> {
        let images = &transaction.metadata;
        if images.len() as u64 > u64::from(self.capacity()) {
            return Err(Error::invalid(format_args!(
                "a transaction of {} blocks is more than a quarter of the journal",
                images.len()
            )));
        }
        let format = log.superblock.format();
        let fits = |home: &DiskBlock| format.bits64 || u32::try_from(home.0).is_ok();
        match images.iter().find(|(home, image)| image.len() != format.block_bytes || !fits(home)) {
            None => Ok(()),
            Some((home, image)) => Err(Error::invalid(format_args!(
                "the journal has no room for an image of {} bytes of block {home}",
                image.len()
            ))),
        }
    }

    /// Where the `index`th block after the head lies on the disk.
    fn ring_block(&self, log: &Log, index: u32) -> DiskBlock {
        self.blocks[log.ring(index) as usize]
    }

    fn write_superblock(&self, log: &mut Log, at: Time) -> Result<Time> {
        self.write_durable(at, self.blocks[0], log.superblock.sealed())
    }

    fn write_durable(&self, at: Time, block: DiskBlock, bytes: Bytes) -> Result<Time> {
        let (offset, data) = (block.0 * u64::from(self.block_bytes), Gather::from_iter([bytes]));
        let done = self.disk.run(at, Request::Write { offset, data, durable: true });
        done.result.map(|_| done.at)
    }

    fn flush(&self, at: Time) -> Result<Time> {
        let done = self.disk.run(at, Request::Flush);
        done.result.map(|_| done.at)
    }
}

impl Log {
    /// Blocks of the ring.
    fn len(&self) -> u32 {
        self.superblock.end() - self.superblock.first()
    }

    /// The log block `index` blocks after the head.
    fn ring(&self, index: u32) -> u32 {
        let first = self.superblock.first();
        let offset = u64::from(self.head - first) + u64::from(index);
        first + (offset % u64::from(self.len())) as u32
    }

    fn check_alive(&self) -> Result<()> {
        match &self.aborted {
            None => Ok(()),
            Some(why) => Err(Error::io("the journal is aborted", io::Error::other(why.clone()))),
        }
    }

    fn check_ready(&self) -> Result<()> {
        self.check_alive()?;
        match self.unreplayed {
            false => Ok(()),
            true => Err(Error::invalid("the journal has transactions to replay first")),
        }
    }

    /// Aborts the journal if a request to the disk failed.
    fn note<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.aborted = Some(error.to_string());
        }
        result
    }
}
