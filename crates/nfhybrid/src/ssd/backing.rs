//! Whether the data that the last groups of the log bind is there.
//!
//! A group that binds data blocks is made durable by one flush, together with those blocks; so a power cut can
//! leave the group whole and a block it binds old. Nobody was told that such a group is durable. A mount therefore
//! reads what the groups at the log's end bind, as far as no later record that counts unbinds it (an unbound block may
//! be in use again), and compares it with the checksums in the records. Which records count is what it is for the whole
//! log ([`Limits`]): an unbind past the last mark hides nothing. Groups that something durable vouches for are
//! not looked at: their damage is found when it is read.
//!
//! Cost: one read of what those groups bind, at most what one commit cycle wrote.

use super::record::{self, Body, Limits};
use super::{CopyState, tag_reached};
use bimetal_base::checksum::crc32c;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most blocks in one read.
const READ_BLOCKS: usize = 256;

/// A block that a group binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bound {
    at: u32,
    sum: u32,
    /// The group's sequence number.
    sequence: u64,
    /// The tag of a block in state 10.
    fresh: Option<u32>,
}

impl Bound {
    /// Whether only the SSD has it, from an operation after the one `tag` stands for.
    fn is_newer(&self, tag: u32) -> bool {
        self.fresh.is_some_and(|fresh| !tag_reached(fresh, tag.into()))
    }
}

/// What some groups bind, when all of them are played in order.
#[derive(Default)]
pub(super) struct Backing {
    /// By inode and file block.
    files: FxHashMap<u64, BTreeMap<u64, Bound>>,
}

impl Backing {
    /// What records bind, each with the sequence number of its group and the number of its operation.
    pub(super) fn of(records: Vec<(u64, u64, record::Read)>, limits: Limits) -> Backing {
        let mut counting: Vec<(u64, u64, record::Read)> = Vec::new();
        for (sequence, op, body) in records {
            if let Body::Undone { limits } = body {
                counting.retain(|(_, op, body)| body.counts(*op, limits));
            }
            counting.push((sequence, op, body));
        }
        counting.retain(|(_, op, body)| body.counts(*op, limits));
        let mut backing = Backing::default();
        counting.into_iter().for_each(|(sequence, _, body)| backing.play(sequence, body));
        backing
    }

    fn play(&mut self, sequence: u64, body: record::Read) {
        match body {
            Body::Bind { ino, piece, sums, .. } => {
                let blocks = u64::from(piece.file_block)..piece.end();
                let sums =
                    sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
                let fresh = (piece.state() == CopyState::Ssd).then_some(piece.tag);
                let bound = (piece.at..).zip(sums).map(|(at, sum)| Bound { at, sum, sequence, fresh });
                self.files.entry(ino).or_default().extend(blocks.zip(bound));
            }
            Body::Unbind { ino, from, end } => self.unbind(ino, from, end),
            Body::UnbindOnDisk { ino, from, end, tag } => self.unbind_up_to(ino, from..end, tag),
            Body::UnbindAll { ino } => drop(self.files.remove(&ino)),
            Body::Forget => self.files.clear(),
            Body::ForgetOnDisk { tag } => self.forget_up_to(tag),
            _ => {}
        }
    }

    fn forget_up_to(&mut self, tag: u32) {
        self.files.values_mut().for_each(|blocks| blocks.retain(|_, bound| bound.is_newer(tag)));
    }

    fn unbind_up_to(&mut self, ino: u64, range: Range<u64>, tag: u32) {
        if let Some(blocks) = self.files.get_mut(&ino) {
            blocks.retain(|block, bound| !range.contains(block) || bound.is_newer(tag));
        }
    }

    fn unbind(&mut self, ino: u64, from: u64, end: u64) {
        if let Some(blocks) = self.files.get_mut(&ino) {
            let mut tail = blocks.split_off(&from);
            blocks.append(&mut tail.split_off(&end));
        }
    }

    /// The sequence number of the first group that binds a block with other contents; `None` if all is there. A
    /// block that cannot be read counts as there: no cut leaves one, and its reader will be told.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub(super) fn first_missing(self, device: &dyn BlockDevice, block_bytes: usize) -> Result<Option<u64>> {
        let mut all: Vec<Bound> = self.files.into_values().flat_map(BTreeMap::into_values).collect();
        all.sort_unstable();
        let mut first = None;
        for run in all.chunk_by(|a, b| b.at == a.at + 1).flat_map(|run| run.chunks(READ_BLOCKS)) {
            let offset = u64::from(run[0].at) * block_bytes as u64;
            let mut here = None;
            // A bit that flipped on the way is right the second time.
            for _ in 0..2 {
                let bytes = match device.read(offset, run.len() * block_bytes) {
                    Ok(bytes) => bytes,
                    Err(gone @ Error::Gone { .. }) => return Err(gone),
                    Err(_) => break,
                };
                let blocks = run.iter().zip(bytes.chunks(block_bytes));
                let wrong = blocks.filter(|(bound, block)| crc32c(block) != bound.sum);
                here = wrong.map(|(bound, _)| bound.sequence).min();
                if here.is_none() {
                    break;
                }
            }
            first = [first, here].into_iter().flatten().min();
        }
        Ok(first)
    }
}
