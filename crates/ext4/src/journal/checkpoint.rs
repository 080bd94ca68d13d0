//! Writing images home, in steps, beside the commits.
//!
//! A step takes the images of the oldest transactions, at most as many as it is allowed, writes those home that no later
//! transaction has brought anew and none has revoked, in the order of their blocks, flushes, and then moves the
//! log's beginning past everything that has nothing left to write. Only the last of it, one durable write of the
//! superblock, holds up a commit. The next step goes on where this one ended.
//!
//! **The beginning may lie inside a transaction**, at any of its descriptors: a replay takes what follows for the
//! whole of it, and its commit block still closes it (not so with checksums of the first version, which sum up the
//! whole). So room is free as soon as the images of one descriptor are home, however large the transaction. The
//! revokes, which come first, are needed no longer than the transactions before.
//!
//! **A crash** at any point finds the old beginning or the new one. With the old one, images that are home already
//! are written home once more; with the new one, everything before it is home, or comes again in a later transaction.
//!
//! **A block that is freed** while a step writes it home may be used for data as soon as its transaction is on the
//! disk. So that commit waits until the step is over, and the step's write cannot come after the data's.
//!
//! Locks: `home`, held through a step, before `log`, held only to choose and to move the beginning.

use super::format::{Format, Sums};
use super::write::write_blocks;
use super::{Journal, Log};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::DiskBlock;
use bytes::Bytes;
use std::sync::atomic::Ordering;

/// Images that a step writes home where nobody says how many.
pub(super) const STEP_MAX: usize = 256;

/// A part of the log at which it may begin: a descriptor and its images, with the revokes before the first and the
/// commit block after the last.
pub(super) struct Live {
    pub tid: u32,
    /// Its first log block.
    pub start: u32,
    /// Its log blocks.
    pub len: u32,
    /// The blocks it has images of, in order.
    pub homes: Vec<DiskBlock>,
    /// So many of them were looked at by steps.
    pub seen: usize,
}

impl Live {
    /// Where the parts of a transaction lie that begins at the head: `len` log blocks, of which `revokes` come first.
    pub fn parts(
        log: &Log,
        format: &Format,
        revokes: u32,
        len: u32,
        metadata: &[(DiskBlock, Bytes)],
    ) -> Vec<Live> {
        let chunk = if format.sums == Sums::V1 { usize::MAX } else { format.tags_max() };
        let mut parts = Vec::new();
        let mut at = 0;
        for images in metadata.chunks(chunk) {
            let mut homes: Vec<DiskBlock> = images.iter().map(|(home, _)| *home).collect();
            homes.sort_unstable();
            homes.dedup();
            let descriptors = images.len().div_ceil(format.tags_max());
            let own = (images.len() + descriptors) as u32 + if at == 0 { revokes } else { 0 };
            parts.push(Live { tid: log.next_tid, start: log.ring(at), len: own, homes, seen: 0 });
            at += own;
        }
        match parts.last_mut() {
            Some(last) => last.len += len - at,
            None => parts.push(Live { tid: log.next_tid, start: log.head, len, homes: Vec::new(), seen: 0 }),
        }
        parts
    }
}

/// What a step writes home: transaction, block and image.
type Batch = Vec<(u32, DiskBlock, Bytes)>;

impl Journal {
    /// Whether so much of the log is live that images should go home: a quarter of it.
    pub fn wants_step(&self) -> bool {
        self.used() >= self.ring / 4
    }

    /// Blocks of the log that are free for the next transactions; see [`Journal::log_blocks`].
    pub fn room(&self) -> u32 {
        self.ring - 1 - self.used().min(self.ring - 1)
    }

    /// Blocks of the log in use.
    fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// Writes at most `max` images home, the oldest first, and frees what room in the log that allows. The answer
    /// is how many were written; nothing happens if the log is empty.
    ///
    /// # Errors
    /// The error that aborted the journal; [`bimetal_base::Error::Invalid`] before [`Self::recover`].
    pub fn step(&self, at: Time, max: usize) -> Result<usize> {
        self.run_step(at, max, false)
    }

    /// Writes all images home and empties the log, step by step.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn checkpoint(&self, at: Time) -> Result<()> {
        self.log.lock().check_ready()?;
        while self.used() > 0 {
            self.run_step(at, STEP_MAX, false)?;
        }
        Ok(())
    }

    /// Writes all images home and marks the journal clean, as at unmount. It can be used again afterwards.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn close(&self, at: Time) -> Result<()> {
        loop {
            let mut log = self.log.lock();
            log.check_ready()?;
            if !log.started {
                return Ok(());
            }
            if log.used == 0 {
                let result = self.set_beginning(&mut log, at, 0);
                return log.note(result);
            }
            drop(log);
            self.run_step(at, STEP_MAX, true)?;
        }
    }

    /// A step; one that empties the log says so in the superblock if it is to be `clean`.
    fn run_step(&self, at: Time, max: usize, clean: bool) -> Result<usize> {
        let home = self.home.lock();
        let batch = {
            let mut log = self.log.lock();
            log.check_ready()?;
            self.choose(&mut log, max.max(1))
        };
        let written = self.write_home(at, &batch);
        let mut log = self.log.lock();
        log.check_alive()?;
        let result = written.and_then(|at| self.move_beginning(&mut log, at, &batch, clean));
        drop(home);
        log.note(result).map(|()| batch.len())
    }

    /// The images a step writes, noted as on their way.
    fn choose(&self, log: &mut Log, max: usize) -> Batch {
        let mut images = self.images.write();
        let mut batch = Batch::new();
        for live in &mut log.live {
            while live.seen < live.homes.len() && batch.len() < max {
                let block = live.homes[live.seen];
                batch.extend(images.send_home(live.tid, block).map(|bytes| (live.tid, block, bytes)));
                live.seen += 1;
            }
            if live.seen < live.homes.len() {
                break;
            }
        }
        batch.sort_unstable_by_key(|(_, block, _)| *block);
        batch
    }

    fn write_home(&self, at: Time, batch: &Batch) -> Result<Time> {
        if batch.is_empty() {
            return Ok(at);
        }
        let images = batch.iter().map(|(_, block, bytes)| (*block, bytes.clone()));
        let at = write_blocks(&*self.disk, at, self.block_bytes as usize, images)?;
        self.flush(at)
    }

    /// What is home is not needed any more: the log begins with the first transaction that has more to write.
    fn move_beginning(&self, log: &mut Log, at: Time, batch: &Batch, clean: bool) -> Result<()> {
        let sent: Vec<(u32, DiskBlock)> = batch.iter().map(|(tid, block, _)| (*tid, *block)).collect();
        self.images.write().came_home(&sent);
        self.count(|stats| stats.home_blocks += sent.len() as u64);
        let done = log.live.iter().take_while(|live| live.seen == live.homes.len()).count();
        if done == 0 {
            return Ok(());
        }
        let gone: Vec<Live> = log.live.drain(..done).collect();
        let start = log.live.front().map_or(if clean { 0 } else { log.head }, |live| live.start);
        self.set_beginning(log, at, start)?;
        let mut images = self.images.write();
        for live in gone {
            images.leave(live.tid, &live.homes);
            log.used -= live.len;
        }
        drop(images);
        self.used.store(log.used, Ordering::Release);
        self.count(|stats| stats.checkpoints += 1);
        Ok(())
    }

    /// Writes where the log begins and with which transaction; 0 says that there is nothing to replay.
    fn set_beginning(&self, log: &mut Log, at: Time, start: u32) -> Result<()> {
        let tid = log.live.front().map_or(log.next_tid, |live| live.tid);
        log.superblock.set_log(start, tid);
        let done = self.write_superblock(log, at)?;
        log.started = start != 0;
        self.count(|stats| stats.done_at = done);
        Ok(())
    }
}
