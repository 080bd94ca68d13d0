//! Block group descriptors: where a group's bitmaps and inode table lie, and what is free in it.
//!
//! Source: `Documentation/filesystems/ext4/group_descr.rst` of Linux. Checksums: CRC-32C cut to 16 bits
//! with `metadata_csum`, CRC-16 with `uninit_bg` (`gdt_csum`), none otherwise.

use crate::le::{get16, get32, high16, low16, put16};
use crate::superblock::Geometry;
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};

/// The inode bitmap and table were never written.
pub(super) const INODE_UNINIT: u16 = 1;
/// The block bitmap was never written.
pub(super) const BLOCK_UNINIT: u16 = 2;
/// The whole inode table is zeroed on disk.
pub(super) const TABLE_ZEROED: u16 = 4;

const CHECKSUM: usize = 0x1E;

/// A group descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Desc {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub table: u64,
    /// Free blocks on disk.
    pub free_blocks: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories among the inodes.
    pub dirs: u32,
    /// Inodes at the end of the table that were never used.
    pub unused_inodes: u32,
    /// [`INODE_UNINIT`], [`BLOCK_UNINIT`], [`TABLE_ZEROED`].
    pub flags: u16,
    /// Checksum of the block bitmap.
    pub block_sum: u32,
    /// Checksum of the inode bitmap.
    pub inode_sum: u32,
}

/// CRC-16 (ANSI, reflected) as the kernel's `crc16()`.
fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 != 0 { 0xA001 } else { 0 })
    })
}

/// The checksum a descriptor should carry; `None` without that feature.
fn checksum(raw: &[u8], group: u32, geometry: &Geometry) -> Option<u16> {
    let number = group.to_le_bytes();
    if geometry.features.csum() {
        let crc = crc32c_raw(crc32c_raw(geometry.seed, &number), &raw[..CHECKSUM]);
        let crc = crc32c_raw(crc32c_raw(crc, &[0, 0]), &raw[CHECKSUM + 2..]);
        return Some(low16(crc));
    }
    geometry.features.desc_csum().then(|| {
        let crc = crc16(crc16(!0, &geometry.uuid), &number);
        crc16(crc16(crc, &raw[..CHECKSUM]), &raw[CHECKSUM + 2..])
    })
}

impl Desc {
    /// Reads and checks the descriptor of `group` from its raw bytes (the length of a descriptor).
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a wrong checksum (if `verify`) or senseless values.
    pub fn read(raw: &[u8], group: u32, geometry: &Geometry, verify: bool) -> Result<Desc> {
        let bad = |why: String| Error::corrupt("a group descriptor", why, format!("group {group}"));
        if verify && checksum(raw, group, geometry).is_some_and(|sum| sum != get16(raw, CHECKSUM)) {
            return Err(bad("the checksum is wrong".into()));
        }
        let desc = Desc::fields(raw, geometry);
        let lowest = geometry.first_data_block + 1;
        let table_end = desc.table.saturating_add(u64::from(geometry.table_blocks()));
        for (what, from, end) in [
            ("block bitmap", desc.block_bitmap, desc.block_bitmap.saturating_add(1)),
            ("inode bitmap", desc.inode_bitmap, desc.inode_bitmap.saturating_add(1)),
            ("inode table", desc.table, table_end),
        ] {
            if from < lowest || end > geometry.blocks {
                return Err(bad(format!("the {what} lies at block {from}")));
            }
        }
        let inodes = geometry.inodes_per_group;
        if desc.free_blocks > geometry.group_blocks(group) || desc.free_inodes > inodes {
            return Err(bad(format!("{} blocks and {} inodes free", desc.free_blocks, desc.free_inodes)));
        }
        if desc.unused_inodes > inodes || desc.dirs > inodes - desc.free_inodes {
            return Err(bad(format!("{} inodes unused, {} directories", desc.unused_inodes, desc.dirs)));
        }
        Ok(desc)
    }

    fn fields(raw: &[u8], geometry: &Geometry) -> Desc {
        let wide = geometry.desc_bytes >= 64;
        let high = |at: usize| if wide { u64::from(get32(raw, at)) << 32 } else { 0 };
        let half = |low: usize, high: usize| {
            u32::from(get16(raw, low)) | if wide { u32::from(get16(raw, high)) << 16 } else { 0 }
        };
        let sums = geometry.features.desc_csum();
        Desc {
            block_bitmap: u64::from(get32(raw, 0x0)) | high(0x20),
            inode_bitmap: u64::from(get32(raw, 0x4)) | high(0x24),
            table: u64::from(get32(raw, 0x8)) | high(0x28),
            free_blocks: half(0xC, 0x2C),
            free_inodes: half(0xE, 0x2E),
            dirs: half(0x10, 0x30),
            unused_inodes: if sums { half(0x1C, 0x32) } else { 0 },
            flags: if sums { get16(raw, 0x12) } else { TABLE_ZEROED },
            block_sum: half(0x18, 0x38),
            inode_sum: half(0x1A, 0x3A),
        }
    }

    /// Stores what changes into the raw descriptor, checksum included.
    pub fn write(&self, raw: &mut [u8], group: u32, geometry: &Geometry) {
        let wide = geometry.desc_bytes >= 64;
        let mut half = |low: usize, high: usize, value: u32| {
            put16(raw, low, low16(value));
            if wide {
                put16(raw, high, high16(value));
            }
        };
        half(0xC, 0x2C, self.free_blocks);
        half(0xE, 0x2E, self.free_inodes);
        half(0x10, 0x30, self.dirs);
        if geometry.features.desc_csum() {
            half(0x1C, 0x32, self.unused_inodes);
            put16(raw, 0x12, self.flags);
        }
        if geometry.features.csum() {
            let mut half = |low: usize, high: usize, value: u32| {
                put16(raw, low, low16(value));
                if wide {
                    put16(raw, high, high16(value));
                }
            };
            half(0x18, 0x38, self.block_sum);
            half(0x1A, 0x3A, self.inode_sum);
        }
        if let Some(sum) = checksum(raw, group, geometry) {
            put16(raw, CHECKSUM, sum);
        }
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The checksum of the first `bits` bits of a bitmap, as a descriptor stores it (`None`: it stores none).
pub(super) fn bitmap_sum(bytes: &[u8], bits: u32, geometry: &Geometry) -> Option<u32> {
    geometry.features.csum().then(|| {
        let sum = crc32c_raw(geometry.seed, &bytes[..bits as usize / 8]);
        if geometry.desc_bytes >= 64 { sum } else { sum & 0xFFFF }
    })
}

/// Blocks that hold the file system itself: superblocks, descriptors, bitmaps, inode tables, journal. No
/// file's block may be one of them. Sorted, merged ranges; one binary search a question.
#[derive(Default)]
pub(super) struct SystemZones {
    ranges: Vec<(u64, u64)>,
}

impl SystemZones {
    /// From all descriptors and the blocks of the journal.
    pub fn new<'a>(
        geometry: &Geometry,
        descs: impl Iterator<Item = &'a Desc>,
        journal: &[DiskBlock],
    ) -> SystemZones {
        let mut ranges: Vec<(u64, u64)> = journal.iter().map(|block| (block.0, block.0 + 1)).collect();
        for (group, desc) in descs.enumerate() {
            let start = geometry.group_start(group as u32);
            ranges.push((start, start + u64::from(geometry.head_blocks(group as u32))));
            ranges.push((desc.block_bitmap, desc.block_bitmap + 1));
            ranges.push((desc.inode_bitmap, desc.inode_bitmap + 1));
            ranges.push((desc.table, desc.table + u64::from(geometry.table_blocks())));
        }
        ranges.retain(|(from, to)| from < to);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        SystemZones { ranges: merged }
    }

    /// Whether any of the `len` blocks from `at` is the file system's own.
    pub fn touches(&self, at: u64, len: u64) -> bool {
        self.within(at, at + len).next().is_some()
    }

    /// Blocks in all ranges together.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|(from, to)| to - from).sum()
    }

    /// The parts of the ranges that lie in `from..to`.
    pub fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.partition_point(|range| range.1 <= from);
        self.ranges[first..]
            .iter()
            .take_while(move |range| range.0 < to)
            .map(move |range| (range.0.max(from), range.1.min(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_matches_its_published_check_value() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }
}
