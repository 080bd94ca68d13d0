//! What was read from the disk, was admitted and waits to be copied to the SSD.
//!
//! What the disk had to be read for is put before the mount's [`Admission`], then before its [`Budget`]. Bounded: past
//! [`LIMIT`] bytes new offers are dropped, they are only copies. Offers gather until there is enough for one large
//! write or a commit cycle comes by.

use super::admission::{Admission, Budget, DiskRead, Promote, Tally};
use super::frames::FRAME;
use crate::time::Time;
use crate::units::Ino;
use bytes::Bytes;
use std::ops::Range;

/// Most bytes kept waiting.
const LIMIT: usize = 32 << 20;
/// Bytes at which copying starts.
const BATCH: usize = 1 << 20;

/// Frames as the disk has them.
pub struct Promotion {
    /// The file.
    pub ino: Ino,
    /// First frame.
    pub index: u64,
    /// Whole frames.
    pub bytes: Bytes,
}

impl Promotion {
    /// Number of frames.
    pub fn frames(&self) -> u64 {
        (self.bytes.len() / FRAME) as u64
    }
}

/// The waiting promotions, each with the version of the file it was read at, and what decides about new ones.
pub struct Promotions {
    policy: Promote,
    admission: Box<dyn Admission>,
    budget: Budget,
    tally: Tally,
    waiting: Vec<(Promotion, u64)>,
    bytes: usize,
}

impl Promotions {
    /// Nothing waits yet; the SSD half holds `capacity` bytes of data.
    pub fn new(policy: Promote, budget: Budget, capacity: u64) -> Promotions {
        let admission = policy.make(capacity);
        Promotions { policy, admission, budget, tally: Tally::default(), waiting: Vec::new(), bytes: 0 }
    }

    /// Notes bytes that were read without the disk.
    pub fn pass(&mut self, bytes: u64) {
        self.admission.pass(bytes);
    }

    /// Judges what the disk was read for, whose contents `bytes` are, and queues what is admitted.
    pub fn offer(&mut self, read: &DiskRead, bytes: &Bytes, version: u64, now: Time) {
        let judgement = self.admission.judge(read);
        self.tally.add(read, &judgement);
        for frames in &judgement.admitted {
            let slice = |at: u64| (at - read.frames.start) as usize * FRAME;
            let bytes = bytes.slice(slice(frames.start)..slice(frames.end));
            self.queue(read.ino, frames, bytes, version, now);
        }
    }

    fn queue(&mut self, ino: Ino, frames: &Range<u64>, bytes: Bytes, version: u64, now: Time) {
        let len = bytes.len() as u64;
        if self.bytes + bytes.len() > LIMIT {
            self.tally.refused_busy_bytes += len;
        } else if !self.budget.take(len, now) {
            self.tally.refused_budget_bytes += len;
        } else {
            self.tally.admitted_bytes += len;
            self.bytes += bytes.len();
            self.waiting.push((Promotion { ino, index: frames.start, bytes }, version));
        }
    }

    /// Notes bytes of a file that changed while they were read.
    pub fn too_late(&mut self, bytes: u64) {
        self.tally.offered_bytes += bytes;
        self.tally.refused_busy_bytes += bytes;
    }

    /// What became of all that the disk was read for.
    pub fn status(&self) -> super::status::Promotion {
        super::status::Promotion {
            policy: self.policy.name(),
            budget_left_bytes: self.budget.left(),
            tally: self.tally,
        }
    }

    /// Whether enough waits to be worth a write.
    pub fn is_due(&self) -> bool {
        self.bytes >= BATCH
    }

    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Files and numbers of frames.
    pub fn waiting(&self) -> impl Iterator<Item = (Ino, u64)> + '_ {
        self.waiting.iter().map(|(promotion, _)| (promotion.ino, promotion.frames()))
    }

    /// Takes all.
    pub fn take(&mut self) -> Vec<(Promotion, u64)> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}
