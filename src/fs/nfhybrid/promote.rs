//! What was read from the disk and waits to be copied to the SSD.
//!
//! Bounded: past [`LIMIT`] bytes new offers are dropped, they are only copies. Offers gather until there is
//! enough for one large write or a commit cycle comes by.

use super::frames::FRAME;
use crate::units::Ino;
use bytes::Bytes;

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

/// The waiting promotions, each with the version of the file it was read at.
#[derive(Default)]
pub struct Promotions {
    waiting: Vec<(Promotion, u64)>,
    bytes: usize,
}

impl Promotions {
    /// Adds one, unless too much waits already.
    pub fn offer(&mut self, promotion: Promotion, version: u64) {
        if self.bytes + promotion.bytes.len() <= LIMIT {
            self.bytes += promotion.bytes.len();
            self.waiting.push((promotion, version));
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
