//! The pairing, once more: in the copy of the superblock that e2fsck falls back to.
//!
//! **Problem.** Where the primary superblock or the descriptor table is damaged, e2fsck takes the first copy of the
//! superblock, in block group 1, replays the journal, and writes what the copy says over the primary. What exists in the
//! primary alone is gone then: with the caller's area, all that says which SSD's log belongs to this disk, and from where on.
//!
//! **Answer.** Each transaction that carries the primary carries this copy as well, so that both always are of the same
//! operation, also after a replay by others. Of the copy only this changes: the caller's area, and the mount's and the
//! check's time and the mount count, by which the other half tells whether it missed something. All else in it is as the
//! tools made it (they copy the primary over it, and keep the caller's area), so that what goes wrong with the primary does
//! not reach its copy.
//!
//! Who names another copy to e2fsck by hand (`-b`) brings back that one's area. [`Ext4::mark_copies`] once puts one there
//! that says no more than that there is a caller, and whose.
//!
//! A file system of one group has no copy; a copy that is not one of this file system, or is damaged, is left as it is.
//! Cost: one block a transaction, written home now and then.

use super::Ext4;
use super::le::{get16, get32, put32};
use super::open::{Identity, Look, read_superblock_at};
use super::store::Store;
use super::superblock::{CHECKSUM, Geometry, PAIRING, PAIRING_BYTES, SUPER_BYTES, Superblock, is_sound};
use super::torn_safe::TornSafeChecksum;
use bimetal_base::Result;
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::units::DiskBlock;
use bimetal_media::BlockDevice;
use bytes::Bytes;

/// So many copies are marked: as many as 16 TiB have, if not every group has one.
const MARKED_MAX: usize = 32;

/// The first copy of the superblock.
pub(super) struct Backup {
    place: DiskBlock,
    block: Vec<u8>,
    steady: TornSafeChecksum,
    summed: bool,
}

impl Backup {
    /// The first copy, as it is on the device; `None` if there is none that can be used.
    pub fn read(store: &Store) -> Option<Backup> {
        Backup::of_group(store, store.geometry.first_backup()?)
    }

    fn of_group(store: &Store, group: u32) -> Option<Backup> {
        let geometry = &store.geometry;
        let place = geometry.group_start(group);
        let block = store.buffers.read_device(place, 1).ok()?.to_vec();
        let raw = &block[..SUPER_BYTES];
        if !is_copy(raw, group, geometry) {
            tracing::debug!(group, "this copy of the superblock cannot be used");
            return None;
        }
        let (steady, summed) = (TornSafeChecksum::new(raw), geometry.features.csum());
        Some(Backup { place: DiskBlock(place), block, steady, summed })
    }

    /// The block as it is to be stored beside this primary.
    pub fn image(&mut self, primary: &Superblock) -> (DiskBlock, Bytes) {
        primary.carry_to(&mut self.block[..SUPER_BYTES]);
        self.sealed()
    }

    fn sealed(&mut self) -> (DiskBlock, Bytes) {
        let raw = &mut self.block[..SUPER_BYTES];
        if self.summed {
            self.steady.settle(raw);
            let sum = crc32c_raw(!0, &raw[..CHECKSUM]);
            put32(raw, CHECKSUM, sum);
        }
        (self.place, Bytes::copy_from_slice(&self.block))
    }
}

impl Ext4 {
    /// Puts an area of the caller into the copies of the superblock that transactions do not carry, durably.
    ///
    /// # Errors
    /// What the device says.
    pub fn mark_copies(&self, area: &[u8; PAIRING_BYTES]) -> Result<()> {
        let buffers = &self.store.buffers;
        let mut copies = self.other_copies();
        let first = copies.next();
        let mark = |mut copy: Backup| {
            copy.block[PAIRING].copy_from_slice(area);
            let (place, image) = copy.sealed();
            buffers.write_device(place, image)
        };
        copies.try_for_each(mark)?;
        buffers.flush_device()?;
        // The last one: whoever looks whether they are marked looks at it ([`Ext4::marked`]).
        first.map_or(Ok(()), |first| mark(first).and_then(|()| buffers.flush_device()))
    }

    /// The area of the caller in the first copy that transactions do not carry, if there is such a copy. Tools that change
    /// the superblock write all copies, and it is marked when all others are.
    pub fn marked(&self) -> Option<[u8; PAIRING_BYTES]> {
        let copy = self.other_copies().next()?;
        copy.block[PAIRING].try_into().ok()
    }

    fn other_copies(&self) -> impl Iterator<Item = Backup> {
        let (store, geometry) = (&self.store, &self.store.geometry);
        let first = geometry.first_backup().unwrap_or(geometry.groups);
        let others = (first + 1..geometry.groups).filter(|group| geometry.backups.has_super(*group));
        others.take(MARKED_MAX).filter_map(|group| Backup::of_group(store, group))
    }

    /// What the copy of the superblock says that e2fsck would fall back to, if there is one where it looks; the journal is
    /// not looked at.
    pub fn look_at_copy(disk: &dyn BlockDevice) -> Option<Look> {
        let copy = read_copy(disk)?;
        Some(Look { identity: Identity::of(&copy), pairing: copy.pairing(), journal_end: None })
    }
}

/// The copy of the superblock that e2fsck would fall back to, if there is one where it looks.
pub(super) fn read_copy(disk: &dyn BlockDevice) -> Option<Superblock> {
    let info = disk.info();
    (10..=12).find_map(|bits: u32| {
        let place = ((8 << bits) + u64::from(bits == 10)) << bits;
        let end = place + SUPER_BYTES as u64;
        let raw = (end <= info.size_bytes).then(|| read_superblock_at(disk, place).ok()).flatten()?;
        let copy = Superblock::read(&raw, info.size_bytes, &info.name).ok()?;
        (copy.geometry.block_bits == bits && is_copy(&raw, 1, &copy.geometry)).then_some(copy)
    })
}

/// Whether these bytes are the superblock's copy in a group.
fn is_copy(raw: &[u8], group: u32, geometry: &Geometry) -> bool {
    get16(raw, 0x38) == 0xEF53
        && u32::from(get16(raw, 0x5A)) == group & 0xFFFF
        && raw[0x68..0x78] == geometry.uuid
        && get32(raw, 0x18) + 10 == geometry.block_bits
        && is_sound(raw)
}
