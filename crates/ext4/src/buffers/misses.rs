//! Metadata that is not in memory: read at once, or named so that the caller reads it without holding the lock.
//!
//! A caller that shares an [`Ext4`](crate::Ext4) under a lock does not want to hold it while a disk turns. It calls
//! [`Ext4::shun_reads`](crate::Ext4::shun_reads) before an operation that changes nothing: whatever is missing then is noted instead of read,
//! and the operation fails. [`Ext4::missed`](crate::Ext4::missed) says what to read; with the lock given back the caller reads it, hands it
//! in with [`Ext4::supply`](crate::Ext4::supply), and runs the operation again.
//!
//! **What is handed in may be old.** A block may have been read, changed, committed, written home and dropped from
//! memory again while it was read without the lock. A block that is in memory or in the journal is newer than what is
//! handed in, and stays. One that is in neither was changed meanwhile only if a buffer frozen since the miss was
//! dropped; then nothing is taken, and the caller asks again. Blocks that were freed meanwhile do no harm: whoever
//! takes a block for metadata fills it without looking at what was there.

use super::Buffers;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Reads one miss may ask for; what else is missing shows at the next try.
const RUNS_MAX: usize = 16;

/// What was missing since [`Ext4::shun_reads`](crate::Ext4::shun_reads).
#[derive(Default)]
pub(super) struct Misses {
    /// Note what is missing, read nothing.
    shun: bool,
    missed: bool,
    /// Each the blocks to take of one read, in order.
    runs: Vec<Vec<u64>>,
}

impl Misses {
    fn has(&self, block: u64) -> bool {
        self.runs.iter().any(|run| run.binary_search(&block).is_ok())
    }

    fn note(&mut self, run: Vec<u64>) {
        self.missed = true;
        if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
        }
    }
}

/// Blocks that an operation needs and memory does not have.
#[derive(Debug)]
pub struct Wanted {
    runs: Vec<Vec<u64>>,
    block_bits: u32,
    /// The transaction that was running.
    since: u64,
}

impl Wanted {
    /// Where to read, bytes.
    pub fn reads(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|run| {
            let end = run.last().map_or(run[0], |last| last + 1);
            run[0] << self.block_bits..end << self.block_bits
        })
    }

    /// Whether more may be missing than this names.
    pub fn is_cut(&self) -> bool {
        self.runs.len() >= RUNS_MAX
    }

    /// Whether nothing can be read that would help.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

impl Buffers {
    /// From now on what is not in memory is noted, not read.
    pub fn shun_reads(&mut self) {
        *self.misses.get_mut() = Misses { shun: true, ..Misses::default() };
    }

    /// Ends what [`Buffers::shun_reads`] began. If anything was missing, what to read; `tid` is the running transaction.
    pub fn missed(&mut self, tid: u64) -> Option<Wanted> {
        let misses = std::mem::take(self.misses.get_mut());
        misses.missed.then_some(Wanted { runs: misses.runs, block_bits: self.block_bits, since: tid })
    }

    /// Whether anything was missing since [`Buffers::shun_reads`].
    pub fn has_missed(&self) -> bool {
        self.misses.borrow().missed
    }

    /// Takes in what read number `number` of [`Wanted::reads`] gave, unless there may be newer contents by now; how many
    /// blocks that were at most.
    pub fn supply(&mut self, wanted: &Wanted, number: usize, bytes: &Bytes) -> usize {
        if self.gone() >= wanted.since {
            return 0;
        }
        let run = &wanted.runs[number];
        let size = self.block_bytes();
        for &block in run {
            if !self.is_absent(block) {
                continue;
            }
            let at = (block - run[0]) as usize * size;
            self.insert(block, Arc::from(&bytes[at..at + size]));
        }
        run.len()
    }

    /// Neither in memory nor in the journal: the device has the newest contents.
    fn is_absent(&self, block: u64) -> bool {
        !self.has(block) && !self.journal.as_ref().is_some_and(|journal| journal.holds(DiskBlock(block)))
    }

    /// Reads a block that is absent into a buffer, with what is likely to be wanted next of the blocks in `bounds`.
    pub(super) fn read_in(&mut self, block: u64, bounds: &Range<u64>, least: u64) -> Result<u32> {
        if self.misses.get_mut().has(block) {
            return Err(absent(block));
        }
        let mut run = self.ahead.get_mut().choose(block, bounds, least);
        run.retain(|at| *at == block || self.is_absent(*at));
        if self.misses.get_mut().shun {
            self.misses.get_mut().note(run);
            return Err(absent(block));
        }
        let (first, end) = (run[0], run[run.len() - 1] + 1);
        let bytes = match self.read_device(first, (end - first) as u32) {
            Ok(bytes) => bytes,
            // A neighbour that cannot be read is no reason to fail.
            Err(_) if run.len() > 1 => return self.read_alone(block),
            Err(error) => return Err(error),
        };
        let size = self.block_bytes();
        for at in run {
            let from = (at - first) as usize * size;
            self.insert(at, Arc::from(&bytes[from..from + size]));
        }
        Ok(self.find(block).expect("it was among them"))
    }

    fn read_alone(&mut self, block: u64) -> Result<u32> {
        let bytes = self.read_device(block, 1)?;
        Ok(self.insert(block, Arc::from(&bytes[..])))
    }

    /// Notes that a block of metadata will be wanted soon: see [`super::ahead`].
    pub fn hint(&self, block: u64) {
        if self.is_absent(block) && block < self.blocks {
            self.ahead.borrow_mut().hint(block);
        }
    }

    /// Notes that a block will be fetched for certain.
    pub fn announce(&self, block: u64) {
        let shunned = self.misses.borrow().shun;
        match shunned && self.is_absent(block) {
            true => drop(self.fetch_absent(block)),
            false => self.hint(block),
        }
    }

    /// Whether reading is shunned; notes that something was missing that nobody can hand in.
    pub(super) fn is_shunned(&self) -> bool {
        let mut misses = self.misses.borrow_mut();
        misses.missed |= misses.shun;
        misses.shun
    }

    /// As [`Buffers::fetch`], of a block that is in no buffer.
    pub(super) fn fetch_absent(&self, block: u64) -> Result<Bytes> {
        let mut misses = self.misses.borrow_mut();
        if !misses.shun {
            return self.read_device(block, 1);
        }
        if !misses.has(block) {
            let mut run = self.ahead.borrow_mut().choose(block, &(block..block + 1), 1);
            run.retain(|at| self.is_absent(*at));
            misses.note(run);
        }
        Err(absent(block))
    }
}

/// What an operation fails with while reading is shunned.
pub(super) fn absent(block: u64) -> Error {
    Error::io(format!("block {block}"), std::io::Error::other("it is not in memory"))
}
