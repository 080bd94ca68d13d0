//! Whether FAT and directories of a volume agree: before the volume is used, since what uses it follows every
//! number it finds.
//!
//! Every chain that a directory entry begins must lead over clusters there are to an end, meet no other chain,
//! and be long enough for the file. Clusters in use that no entry leads to are lost, and harmless: a power cut
//! leaves them. Cost: one pass over the FAT and the directories; 4 bytes and a bit a cluster.

use super::disk::Disk;
use super::layout::{Layout, Width};
use super::{SECTOR_BYTES, from_io};
use crate::{Error, Result};
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom};

/// Bytes of a directory entry.
const ENTRY_BYTES: usize = 32;
/// Attribute bits.
const VOLUME: u8 = 0x08;
const DIRECTORY: u8 = 0x10;

/// What a volume holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Files.
    pub files: u64,
    /// Directories, the root not counted.
    pub directories: u64,
    /// Clusters in use.
    pub used_clusters: u64,
    /// Of those, clusters that belong to nothing.
    pub lost_clusters: u64,
}

/// Checks a volume. Fails with [`Error::Corrupt`], naming the entry or the cluster.
pub(super) fn check(disk: &mut Disk, layout: &Layout) -> Result<Usage> {
    let mut walk = Walk {
        next: read_fat(disk, layout)?,
        seen: vec![false; layout.clusters as usize + 2],
        disk,
        layout,
        usage: Usage::default(),
    };
    walk.everything()?;
    let used = walk.next.iter().skip(2).filter(|next| **next != 0).count() as u64;
    let seen = walk.seen.iter().filter(|seen| **seen).count() as u64;
    Ok(Usage { used_clusters: used, lost_clusters: used - seen, ..walk.usage })
}

/// The first FAT: for each cluster the next; 0 for a free one, `u32::MAX` at the end of a chain.
fn read_fat(disk: &mut Disk, layout: &Layout) -> Result<Vec<u32>> {
    let mut bytes = vec![0; ((layout.fat.end - layout.fat.start) * SECTOR_BYTES) as usize];
    disk.seek(SeekFrom::Start(layout.fat.start * SECTOR_BYTES)).map_err(from_io)?;
    disk.read_exact(&mut bytes).map_err(from_io)?;
    let byte = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
    let entry = |cluster: usize| {
        let (value, end) = match layout.width {
            Width::Fat12 => {
                let pair = byte(cluster * 3 / 2) | byte(cluster * 3 / 2 + 1) << 8;
                (if cluster.is_multiple_of(2) { pair & 0xFFF } else { pair >> 4 }, 0xFF8)
            }
            Width::Fat16 => (byte(cluster * 2) | byte(cluster * 2 + 1) << 8, 0xFFF8),
            Width::Fat32 => {
                let value = (0..4).fold(0, |value, at| value | byte(cluster * 4 + at) << (8 * at));
                (value & 0x0FFF_FFFF, 0x0FFF_FFF8)
            }
        };
        if value >= end { u32::MAX } else { value }
    };
    Ok((0..layout.clusters as usize + 2).map(entry).collect())
}

struct Walk<'a> {
    disk: &'a mut Disk,
    layout: &'a Layout,
    next: Vec<u32>,
    /// Clusters of chains followed so far.
    seen: Vec<bool>,
    usage: Usage,
}

impl Walk<'_> {
    fn everything(&mut self) -> Result<()> {
        let mut left: Vec<(u32, String)> = Vec::new();
        match self.layout.root_cluster {
            0 => {
                for sector in self.layout.root.clone() {
                    if !self.entries(sector, "", &mut left)? {
                        break;
                    }
                }
            }
            cluster => left.push((cluster, String::new())),
        }
        while let Some((cluster, path)) = left.pop() {
            'directory: for cluster in self.chain(cluster, &path)? {
                for sector in self.layout.cluster(cluster) {
                    if !self.entries(sector, &path, &mut left)? {
                        break 'directory;
                    }
                }
            }
        }
        Ok(())
    }

    /// The clusters of a chain.
    fn chain(&mut self, first: u32, path: &str) -> Result<Vec<u32>> {
        let (mut chain, mut cluster) = (Vec::new(), first);
        while cluster != u32::MAX {
            let wrong = |why: &str| {
                Err(Error::corrupt("FAT volume", format!("{path}/: {why}"), format!("cluster {cluster}")))
            };
            if !self.layout.has_cluster(cluster) {
                return wrong("its chain leads to a cluster that does not exist");
            }
            let index = cluster as usize;
            if std::mem::replace(&mut self.seen[index], true) {
                return wrong("its chain meets another one, or itself");
            }
            if self.next[index] == 0 {
                return wrong("its chain leads to a cluster that is not in use");
            }
            chain.push(cluster);
            cluster = self.next[index];
        }
        Ok(chain)
    }

    /// Looks at the entries of a sector; directories are added to `left`. False at the end of the directory.
    fn entries(&mut self, sector: u64, path: &str, left: &mut Vec<(u32, String)>) -> Result<bool> {
        let mut bytes = [0; SECTOR_BYTES as usize];
        self.disk.seek(SeekFrom::Start(sector * SECTOR_BYTES)).map_err(from_io)?;
        self.disk.read_exact(&mut bytes).map_err(from_io)?;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let number = |at: usize, len: usize| {
                entry[at..at + len].iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte))
            };
            match entry[0] {
                0 => return Ok(false),
                0xE5 | b'.' => continue,
                // Long names and labels.
                _ if entry[11] & VOLUME != 0 => continue,
                _ => {}
            }
            let name = String::from_utf8_lossy(&entry[..11]);
            let path = format!("{path}/{}", name.trim_end());
            let high = if self.layout.width == Width::Fat32 { number(20, 2) } else { 0 };
            let (first, len) = (high << 16 | number(26, 2), number(28, 4));
            if entry[11] & DIRECTORY != 0 {
                self.usage.directories += 1;
                left.push((first, path));
            } else {
                self.usage.files += 1;
                self.file(first, len, &path)?;
            }
        }
        Ok(true)
    }

    fn file(&mut self, first: u32, len: u32, path: &str) -> Result<()> {
        let clusters = if first == 0 { 0 } else { self.chain(first, path)?.len() as u64 };
        let room = clusters * self.layout.sectors_per_cluster * SECTOR_BYTES;
        if room < u64::from(len) {
            let why = format!("{path} has {len} bytes and clusters for {room}");
            return Err(Error::corrupt("FAT volume", why, format!("cluster {first}")));
        }
        Ok(())
    }
}
