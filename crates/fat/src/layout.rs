//! Where things lie on a FAT volume, from its boot sector (Microsoft: FAT File System Specification, 2000).
//!
//! Sector 0 holds the BIOS parameter block; then come reserved sectors, the FATs, the root directory (FAT12
//! and FAT16), and the clusters. The number of clusters alone says which width the FAT has.

use super::SECTOR_BYTES;
use bimetal_base::{Error, Result};
use serde::Serialize;
use std::ops::Range;

/// The width of a FAT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Width {
    /// 12 bits.
    Fat12,
    /// 16 bits.
    Fat16,
    /// 32 bits, of which 28 count.
    Fat32,
}

impl Width {
    /// Bits of an entry.
    fn bits(self) -> usize {
        match self {
            Width::Fat12 => 12,
            Width::Fat16 => 16,
            Width::Fat32 => 32,
        }
    }

    /// What the FAT `bytes` says of a cluster: the next one; 0 for a free one, `u32::MAX` at the end of a chain.
    pub fn entry(self, bytes: &[u8], cluster: u32) -> u32 {
        let at = cluster as usize * self.bits() / 8;
        let byte = |index: usize| bytes.get(at + index).copied().map_or(0, u32::from);
        let word = byte(0) | byte(1) << 8;
        let (value, end) = match self {
            Width::Fat12 if cluster.is_multiple_of(2) => (word & 0xFFF, 0xFF8),
            Width::Fat12 => (word >> 4, 0xFF8),
            Width::Fat16 => (word, 0xFFF8),
            Width::Fat32 => ((word | byte(2) << 16 | byte(3) << 24) & 0x0FFF_FFFF, 0x0FFF_FFF8),
        };
        if value >= end { u32::MAX } else { value }
    }

    /// The clusters whose entries lie in these bytes of the FAT, wholly or in part.
    pub fn entries_in(self, bytes: Range<usize>) -> Range<u32> {
        (bytes.start * 8 / self.bits()) as u32..(bytes.end * 8).div_ceil(self.bits()) as u32
    }
}

/// What a sector is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// In a cluster.
    Cluster,
    /// In this FAT, counted from 0.
    Fat(u32),
    /// In the root directory of FAT12 and FAT16.
    Root,
    /// Boot sector, FS info and what else is reserved.
    Reserved,
}

/// Where things lie. All numbers are sectors of 512 bytes from the start of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// The width of a FAT entry.
    pub width: Width,
    /// All sectors.
    pub sectors: u64,
    /// The first FAT; the others follow.
    pub fat: Range<u64>,
    /// How many FATs there are.
    pub fats: u32,
    /// The root directory; empty on FAT32.
    pub root: Range<u64>,
    /// The first sector of cluster 2.
    pub data: u64,
    /// Sectors of a cluster.
    pub sectors_per_cluster: u64,
    /// Clusters, numbered from 2.
    pub clusters: u32,
    /// FAT32: the first cluster of the root directory; else 0.
    pub root_cluster: u32,
}

impl Layout {
    /// Reads a boot sector of a volume on a device of `size_bytes`.
    ///
    /// Fails with [`Error::Corrupt`] where it makes no sense, with [`Error::Unsupported`] on sectors that are
    /// not of 512 bytes.
    pub fn read(boot: &[u8], size_bytes: u64) -> Result<Layout> {
        let field = |at: usize, len: usize| -> u64 {
            boot.get(at..at + len)
                .map_or(0, |bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
        };
        let wrong = |why: String| Error::corrupt("FAT boot sector", why, "sector 0");
        if field(510, 2) != 0xAA55 {
            return Err(wrong(format!("its signature is {:#06x}, not 0xaa55", field(510, 2))));
        }
        if field(11, 2) != SECTOR_BYTES {
            let what = format!("a FAT volume with sectors of {} bytes", field(11, 2));
            return Err(Error::unsupported(what, "only 512 are"));
        }
        let either = |short: u64, long: u64| if short == 0 { long } else { short };
        let (sectors, fat_sectors) = (either(field(19, 2), field(32, 4)), either(field(22, 2), field(36, 4)));
        let (sectors_per_cluster, reserved, fats) = (field(13, 1), field(14, 2), field(16, 1));
        let root_sectors = (field(17, 2) * 32).div_ceil(SECTOR_BYTES);
        if sectors == 0 || sectors * SECTOR_BYTES > size_bytes {
            return Err(wrong(format!("{sectors} sectors on a device of {size_bytes} bytes")));
        }
        if !sectors_per_cluster.is_power_of_two()
            || reserved == 0
            || !(1..=2).contains(&fats)
            || fat_sectors == 0
        {
            return Err(wrong(format!(
                "{sectors_per_cluster} sectors a cluster, {reserved} reserved, {fats} FATs of {fat_sectors}"
            )));
        }
        let fat = reserved..reserved + fat_sectors;
        let root_start = reserved + fats * fat_sectors;
        let data = root_start + root_sectors;
        let clusters = sectors.saturating_sub(data) / sectors_per_cluster;
        let width = match clusters {
            0..4085 => Width::Fat12,
            4085..65_525 => Width::Fat16,
            _ => Width::Fat32,
        };
        let root_cluster = if width == Width::Fat32 { field(44, 4) as u32 } else { 0 };
        let layout = Layout {
            width,
            sectors,
            fat,
            fats: fats as u32,
            root: root_start..data,
            data,
            sectors_per_cluster,
            clusters: u32::try_from(clusters).unwrap_or(u32::MAX),
            root_cluster,
        };
        layout.check(fat_sectors).map_or(Ok(layout), |why| Err(wrong(why)))
    }

    /// What makes no sense, if anything.
    fn check(&self, fat_sectors: u64) -> Option<String> {
        let last = u64::from(self.clusters) + 2;
        let room = match self.width {
            Width::Fat12 => fat_sectors * SECTOR_BYTES * 2 / 3,
            Width::Fat16 => fat_sectors * SECTOR_BYTES / 2,
            Width::Fat32 => fat_sectors * SECTOR_BYTES / 4,
        };
        if self.clusters == 0 || self.clusters > 0x0FFF_FFF0 || room < last {
            return Some(format!("{} clusters, and FATs for {room}", self.clusters));
        }
        let has_root = match self.width {
            Width::Fat32 => self.root.is_empty() && self.has_cluster(self.root_cluster),
            _ => !self.root.is_empty(),
        };
        (!has_root).then(|| "it has no root directory".to_string())
    }

    /// Whether there is a cluster of that number.
    pub fn has_cluster(&self, cluster: u32) -> bool {
        (2..self.clusters.saturating_add(2)).contains(&cluster)
    }

    /// The sectors of a cluster.
    pub fn cluster(&self, cluster: u32) -> Range<u64> {
        let first = self.data + u64::from(cluster.saturating_sub(2)) * self.sectors_per_cluster;
        first..first + self.sectors_per_cluster
    }

    /// The cluster that a sector lies in.
    pub fn cluster_of(&self, sector: u64) -> Option<u32> {
        let index = sector.checked_sub(self.data)? / self.sectors_per_cluster;
        u32::try_from(index + 2).ok().filter(|cluster| self.has_cluster(*cluster))
    }

    /// What a sector is for.
    pub fn use_of(&self, sector: u64) -> Use {
        if sector >= self.data {
            Use::Cluster
        } else if self.root.contains(&sector) {
            Use::Root
        } else if sector >= self.fat.start {
            Use::Fat(((sector - self.fat.start) / (self.fat.end - self.fat.start)) as u32)
        } else {
            Use::Reserved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The boot sector that the paper's figures point to.
    fn boot() -> Vec<u8> {
        let mut boot = vec![0; 512];
        for (at, bytes) in [
            (11, &[0, 2][..]),
            (13, &[4]),
            (14, &[1, 0]),
            (16, &[2]),
            (17, &[0, 2]),
            (22, &[64, 0]),
            (32, &[0, 0, 1, 0]),
            (510, &[0x55, 0xAA]),
        ] {
            boot[at..at + bytes.len()].copy_from_slice(bytes);
        }
        boot
    }

    #[test]
    fn a_boot_sector_says_where_things_lie() {
        let layout = Layout::read(&boot(), 32 << 20).unwrap();
        assert_eq!((layout.width, layout.fat.clone(), layout.root.clone()), (Width::Fat16, 1..65, 129..161));
        assert_eq!((layout.data, layout.clusters, layout.cluster(3)), (161, 16_343, 165..169));
        let uses = [0, 1, 64, 65, 128, 129, 160, 161].map(|sector| layout.use_of(sector));
        let (fat0, fat1) = (Use::Fat(0), Use::Fat(1));
        assert_eq!(uses, [Use::Reserved, fat0, fat0, fat1, fat1, Use::Root, Use::Root, Use::Cluster]);
    }

    #[test]
    fn boot_sectors_without_sense_are_refused() {
        for (at, byte, told) in [
            (510, 0, "signature"),
            (12, 4, "1024 bytes"),
            (13, 3, "3 sectors a cluster"),
            (16, 0, "0 FATs"),
            (18, 0, "no root"),
            (22, 4, "FATs for 1024"),
            (34, 2, "131072 sectors"),
        ] {
            let mut boot = boot();
            boot[at] = byte;
            let error = Layout::read(&boot, 32 << 20).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(Layout::read(&[], 32 << 20).is_err());
    }
}
