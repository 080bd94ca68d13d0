//! Table blocks of a checkpoint that are partly as they are on the SSD.
//!
//! Not every duplicated inode and checksum is in memory. Where a block of the inode table or a checksum table has to
//! be written and something in it is not here, that has not changed since the last completed checkpoint; so it is
//! taken from the block as it is. The owner reads those blocks without its lock, between the log and the tables
//! ([`super::Checkpoint::merge`]). What turns out to be damaged stays damaged: a slot as it was, so that the next mount
//! finds it; a checksum as zero, so that its block is found not to fit when it is read.

use super::checkpoint::{BLOCK, Block, Checkpoint};
use super::layout::SUMS_PER_SECTOR;
use super::sector::{SECTOR_BYTES, SECTOR_PAYLOAD, Seal};
use super::slot;
use super::sums::{Known, is_known};
use bimetal_base::Result;
use bimetal_media::BlockDevice;
use bytes::Bytes;

/// A table block to be completed.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) offset: u64,
    pub(super) bytes: Block,
    pub(super) what: Lacking,
}

/// What of it comes from the SSD.
#[derive(Debug)]
pub(super) enum Lacking {
    /// The inodes of these head slots, a bit each, in slots of so many bytes.
    Inodes { slots: u16, slot_bytes: usize },
    /// The checksums but for these.
    Sums { known: Box<Known> },
}

impl Merge {
    fn fill(&mut self, seal: &Seal, media: &[u8]) {
        match &self.what {
            Lacking::Inodes { slots, slot_bytes } => {
                let pairs = self.bytes.chunks_exact_mut(*slot_bytes).zip(media.chunks_exact(*slot_bytes));
                for (index, (to, from)) in pairs.enumerate().filter(|(index, _)| slots >> index & 1 == 1) {
                    slot::take_inode(to, from, self.offset + (index * slot_bytes) as u64, seal);
                }
            }
            Lacking::Sums { known } => fill_sums(&mut self.bytes[..], self.offset, media, seal, known),
        }
    }
}

fn fill_sums(bytes: &mut [u8], offset: u64, media: &[u8], seal: &Seal, known: &Known) {
    let sectors = bytes.chunks_exact_mut(SECTOR_BYTES).zip(media.chunks_exact(SECTOR_BYTES));
    for (sector, (to, from)) in sectors.enumerate() {
        let Some(old) = seal.open(offset + (sector * SECTOR_BYTES) as u64, from) else { continue };
        let pairs = to[..SECTOR_PAYLOAD].chunks_exact_mut(4).zip(old.chunks_exact(4));
        for (index, (to, from)) in (sector * SUMS_PER_SECTOR as usize..).zip(pairs) {
            if !is_known(known, index) {
                to.copy_from_slice(from);
            }
        }
    }
    seal.close(offset, bytes);
}

impl Checkpoint {
    /// Whether some of its tables have to be [completed](Checkpoint::merge) first.
    #[cfg(test)]
    pub fn needs_merge(&self) -> bool {
        !self.merges.is_empty()
    }

    /// Completes the tables with what is only on the SSD, which is read; before they are written. Does nothing where
    /// everything is in memory.
    ///
    /// # Errors
    /// Those of the device; then the checkpoint must not be written, and can be begun anew.
    pub fn merge(&mut self, device: &dyn BlockDevice) -> Result<()> {
        for mut merge in std::mem::take(&mut self.merges) {
            let media = device.read(merge.offset, BLOCK)?;
            merge.fill(&self.seal, &media);
            self.tables.push((merge.offset, Bytes::from_owner(merge.bytes)));
        }
        Ok(())
    }
}
