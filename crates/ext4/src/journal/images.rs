//! What the log has of each block: the newest image, until the transaction it came with leaves the log.
//!
//! An image that is home gives up its memory and keeps its place: as long as the log has it, a block that is
//! freed has to be revoked, or a replay would put the image over what the block holds then.

use super::Transaction;
use bimetal_base::units::DiskBlock;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};

/// The newest image of a block in the log.
struct Image {
    /// The transaction it came with.
    tid: u32,
    /// `None` once it is home.
    bytes: Option<Bytes>,
}

/// Images that are in the log or on the way there.
#[derive(Default)]
pub(super) struct Images {
    committed: FxHashMap<DiskBlock, Image>,
    /// Those of the transaction being committed.
    committing: FxHashMap<DiskBlock, Bytes>,
    /// Blocks that a checkpoint is writing home now.
    homing: FxHashSet<DiskBlock>,
}

impl Images {
    /// The newest image that is not home yet, committed or being committed.
    pub fn latest(&self, block: DiskBlock) -> Option<Bytes> {
        let committed = || self.committed.get(&block).and_then(|image| image.bytes.as_ref());
        self.committing.get(&block).or_else(committed).cloned()
    }

    /// Whether the log has an image, home or not.
    pub fn holds(&self, block: DiskBlock) -> bool {
        self.committing.contains_key(&block) || self.committed.contains_key(&block)
    }

    /// A transaction's images are on their way into the log.
    pub fn begin(&mut self, images: &[(DiskBlock, Bytes)]) {
        self.committing.extend(images.iter().cloned());
    }

    /// The transaction being committed is committed, and has freed these blocks. Whether one of those is just being
    /// written home: it must not be used before that is over.
    pub fn settle(&mut self, tid: u32, freed: &[u64]) -> bool {
        for block in freed {
            self.committed.remove(&DiskBlock(*block));
        }
        let images = self.committing.drain().map(|(block, bytes)| (block, Image { tid, bytes: Some(bytes) }));
        self.committed.extend(images);
        freed.iter().any(|block| self.homing.contains(&DiskBlock(*block)))
    }

    /// The image of a block that transaction `tid` brought, if it is the newest and not home: it goes home now.
    pub fn send_home(&mut self, tid: u32, block: DiskBlock) -> Option<Bytes> {
        let image = self.committed.get(&block).filter(|image| image.tid == tid)?;
        let bytes = image.bytes.clone()?;
        self.homing.insert(block);
        Some(bytes)
    }

    /// What [`send_home`](Self::send_home) gave is home, durably.
    pub fn came_home(&mut self, sent: &[(u32, DiskBlock)]) {
        for (tid, block) in sent {
            if let Some(image) = self.committed.get_mut(block).filter(|image| image.tid == *tid) {
                image.bytes = None;
            }
        }
        self.homing.clear();
    }

    /// A transaction has left the log, with its images of these blocks.
    pub fn leave(&mut self, tid: u32, blocks: &[DiskBlock]) {
        for block in blocks {
            if self.committed.get(block).is_some_and(|image| image.tid == tid) {
                self.committed.remove(block);
            }
        }
    }

    /// The freed blocks of which the log has an image, in order; not those written again by the transaction.
    pub fn to_revoke(&self, transaction: &Transaction) -> Vec<u64> {
        let held = &self.committed;
        if held.is_empty() || transaction.freed.is_empty() {
            return Vec::new();
        }
        let mut found = FxHashSet::default();
        for (first, count) in &transaction.freed {
            let range = first.0..first.0.saturating_add(u64::from(*count));
            if (*count as usize) < held.len() {
                found.extend(range.filter(|block| held.contains_key(&DiskBlock(*block))));
            } else {
                found.extend(held.keys().map(|home| home.0).filter(|home| range.contains(home)));
            }
        }
        for (home, _) in &transaction.metadata {
            found.remove(&home.0);
        }
        let mut revokes: Vec<u64> = found.into_iter().collect();
        revokes.sort_unstable();
        revokes
    }
}
