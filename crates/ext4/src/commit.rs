//! The running transaction: what it holds, turning it into block images, and what follows once the journal
//! has it.

use super::Ext4;
use super::buffers::Seal;
use super::dir;
use super::journal::Transaction;
use super::store::Store;
use super::superblock::{PAIRING_BYTES, SUPER_BYTES};
use bimetal_base::Result;
use bimetal_base::time::{Stamp, Time};
use bimetal_base::units::DiskBlock;
use bytes::Bytes;

/// A transaction that was taken out of memory, for the journal.
#[derive(Debug)]
pub struct Frozen {
    /// Its number, for [`Ext4::committed`].
    pub tid: u64,
    /// What the journal gets. Images of file data that must not be torn may be added.
    pub transaction: Transaction,
}

type Images = Vec<(DiskBlock, Bytes)>;

impl Ext4 {
    /// The caller's opaque area in the superblock; `None` if it was never set.
    pub fn pairing(&self) -> Option<[u8; PAIRING_BYTES]> {
        self.store.sb.pairing()
    }

    /// Blocks the running transaction would write, at most. To be kept below the journal's capacity by
    /// freezing early; an operation adds a few dozen, [`Ext4::release`] and [`Ext4::truncate`] up to a
    /// quarter of the capacity. 0 if nothing has changed.
    pub fn dirty_blocks(&self) -> usize {
        let store = &self.store;
        let groups = store.space.dirty_groups();
        let tables = groups.min(store.geometry.desc_blocks() as usize);
        let sum = store.buffers.dirty_count() + store.changed_nodes + 2 * groups + tables;
        if sum > 0 || self.super_dirty { sum + self.super_blocks() } else { 0 }
    }

    /// Blocks that are in every transaction: the superblock's, and that of its first copy.
    pub fn super_blocks(&self) -> usize {
        1 + usize::from(self.backup.is_some())
    }

    /// Ends the running transaction and begins a new one. All that changed is in the answer, the superblock
    /// always; `now` becomes its write time, `pairing` (if given) the caller's area.
    ///
    /// # Errors
    /// A table block that had to be read again and could not be; a directory block, or a file's tree, left half made
    /// by an earlier error. The file system is not to be used further.
    pub fn freeze(&mut self, now: Stamp, pairing: Option<&[u8; PAIRING_BYTES]>) -> Result<Frozen> {
        self.store.check_writable()?;
        let now = self.note_time(now);
        let tid = self.store.tid;
        for slot in self.inodes.freeze(tid) {
            let inode = &mut self.inodes.entry(slot).inode;
            self.store.write_tree(inode)?;
            self.store.write_inode(inode)?;
        }
        let mut images = Images::with_capacity(self.dirty_blocks());
        self.store.space.freeze(tid, &mut images);
        self.store.freeze_buffers(tid, &mut images)?;
        if let Some(pairing) = pairing {
            self.store.sb.set_pairing(pairing);
        }
        let blocks = (images.len() + self.super_blocks()) as u64;
        let kib = (blocks << self.store.geometry.block_bits) >> 10;
        self.store.sb.add_written(kib);
        images.push(self.super_image(now));
        images.extend(self.backup.as_mut().map(|backup| backup.image(&self.store.sb)));
        self.super_dirty = false;
        self.store.changed_nodes = 0;
        images.sort_unstable_by_key(|(block, _)| *block);
        let freed = join_runs(self.store.space.take_freed());
        self.pending.push_back((tid, freed.clone()));
        self.store.tid += 1;
        Ok(Frozen { tid, transaction: Transaction { metadata: images, freed, stamp: now } })
    }

    /// Puts another area of the caller into a frozen transaction that was not handed to the journal yet.
    pub fn refresh_pairing(&mut self, frozen: &mut Frozen, pairing: &[u8; PAIRING_BYTES]) {
        let (place, offset) = self.store.geometry.super_place();
        self.store.sb.set_pairing(pairing);
        for (block, image) in &mut frozen.transaction.metadata {
            if *block == place {
                let mut bytes = image.to_vec();
                self.store.sb.refresh_pairing(&mut bytes[offset..offset + SUPER_BYTES], pairing);
                *image = bytes.into();
            }
        }
        if let Some((place, copy)) = self.backup.as_mut().map(|backup| backup.image(&self.store.sb)) {
            let images = frozen.transaction.metadata.iter_mut();
            images.filter(|(block, _)| *block == place).for_each(|(_, image)| *image = copy.clone());
        }
    }

    /// The superblock's whole block, as it is to be stored.
    pub(super) fn super_image(&mut self, now: Stamp) -> (DiskBlock, Bytes) {
        let (place, offset) = self.store.geometry.super_place();
        let count = self.store.space.count();
        self.store.sb.set_free(count.blocks, count.inodes);
        self.store.sb.note_write(now);
        let raw = self.store.sb.seal();
        self.super_block[offset..offset + raw.len()].copy_from_slice(raw);
        (place, Bytes::copy_from_slice(&self.super_block))
    }

    /// The transaction `tid` and all before it are on the disk: blocks they freed may be used again.
    pub fn committed(&mut self, tid: u64) {
        while self.pending.front().is_some_and(|(frozen, _)| *frozen <= tid) {
            if let Some((_, runs)) = self.pending.pop_front() {
                self.store.space.release_held(&runs);
            }
        }
        self.store.committed = self.store.committed.max(tid);
        self.store.space.shrink(self.store.committed);
        self.make_room();
    }

    /// Counts file data written in place, for the superblock's lifetime sum.
    pub fn note_written(&mut self, bytes: u64) {
        self.store.sb.add_written(bytes >> 10);
    }

    /// Ends cleanly: commits what is left, writes everything home and marks the file system as unmounted.
    /// No other transaction may be under way. Only reading makes sense afterwards.
    ///
    /// # Errors
    /// What the journal or the device says.
    pub fn close(&mut self, now: Stamp) -> Result<()> {
        if self.store.read_only || self.unmarked {
            return Ok(());
        }
        let now = self.note_time(now);
        if self.dirty_blocks() > 0 {
            self.commit_here()?;
        }
        self.journal().close(Time::ZERO)?;
        self.store.sb.set_needs_recovery(false);
        self.store.sb.set_clean();
        self.write_super(now)?;
        self.store.read_only = true;
        Ok(())
    }

    /// Commits what has changed, on this thread. Only where no other commit can be under way.
    pub(super) fn commit_here(&mut self) -> Result<()> {
        let frozen = self.freeze(self.store.clock, None)?;
        self.journal().commit(Time::ZERO, frozen.transaction)?;
        self.committed(frozen.tid);
        Ok(())
    }

    /// Writes the superblock in place, durably.
    pub(super) fn write_super(&mut self, now: Stamp) -> Result<()> {
        let (place, image) = self.super_image(now);
        self.store.buffers.write_device(place, image)?;
        self.store.buffers.flush_device()
    }
}

impl Store {
    /// Takes the images of changed buffers.
    fn freeze_buffers(&mut self, tid: u64, images: &mut Images) -> Result<()> {
        let sums = self.dirs.checksums;
        let fs_seed = self.geometry.seed;
        let mut sealed = Ok(());
        let seal = |block: u64, kind: Seal, bytes: &mut [u8]| match kind {
            Seal::Dir(seed) if sums => {
                let shape = dir::block_kind(bytes);
                if let Err(error) = dir::seal(bytes, shape, seed) {
                    sealed = Err(error);
                }
            }
            Seal::Xattr if sums => super::xattr::seal_block(bytes, fs_seed, block),
            _ => {}
        };
        self.buffers.freeze(tid, seal, |block, image| images.push((DiskBlock(block), image)));
        sealed
    }
}

/// Sorts runs and joins neighbours.
fn join_runs(mut runs: Vec<(DiskBlock, u32)>) -> Vec<(DiskBlock, u32)> {
    runs.sort_unstable();
    let mut joined: Vec<(DiskBlock, u32)> = Vec::with_capacity(runs.len());
    for (at, len) in runs {
        match joined.last_mut() {
            Some((last, sum)) if last.0 + u64::from(*sum) == at.0 && sum.checked_add(len).is_some() => {
                *sum += len;
            }
            _ => joined.push((at, len)),
        }
    }
    joined
}
