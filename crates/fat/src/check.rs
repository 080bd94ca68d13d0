//! Whether FAT and directories of a volume agree: before the volume is used, since what uses it follows every
//! number it finds.
//!
//! Every chain that a directory entry begins must lead over clusters there are to an end, meet no other chain,
//! and be long enough for the file. Clusters in use that no entry leads to are lost, and harmless: a power cut
//! leaves them. Cost: one pass over the FAT and the directories; 4 bytes and a bit a cluster.

use super::disk::Disk;
use super::layout::{Layout, Width};
use super::{SECTOR_BYTES, from_io};
use bimetal_base::{Error, Result};
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom};

/// Bytes of a directory entry.
pub(super) const ENTRY_BYTES: usize = 32;
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
    let fat = read_fat(disk, layout)?;
    let mut walk = Walk::new(disk, layout, &fat);
    walk.everything()?;
    let clusters = 2..layout.clusters.saturating_add(2);
    let used = clusters.filter(|cluster| layout.width.entry(&fat, *cluster) != 0).count() as u64;
    let seen = walk.seen.iter().filter(|seen| **seen).count() as u64;
    Ok(Usage { used_clusters: used, lost_clusters: used - seen, ..walk.usage })
}

/// The first FAT, and the clusters of all directories. Fails as [`check`].
pub(super) fn survey(disk: &mut Disk, layout: &Layout) -> Result<(Vec<u8>, Vec<u32>)> {
    let fat = read_fat(disk, layout)?;
    let mut walk = Walk::new(disk, layout, &fat);
    walk.everything()?;
    let directories = walk.directories;
    Ok((fat, directories))
}

/// The bytes of the first FAT.
fn read_fat(disk: &mut Disk, layout: &Layout) -> Result<Vec<u8>> {
    let mut bytes = vec![0; ((layout.fat.end - layout.fat.start) * SECTOR_BYTES) as usize];
    disk.seek(SeekFrom::Start(layout.fat.start * SECTOR_BYTES)).map_err(from_io)?;
    disk.read_exact(&mut bytes).map_err(from_io)?;
    Ok(bytes)
}

/// The number in `len` bytes of a directory entry.
fn number(entry: &[u8], at: usize, len: usize) -> u32 {
    entry[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The first cluster that a directory entry names.
fn first_cluster(entry: &[u8], width: Width) -> u32 {
    let high = if width == Width::Fat32 { number(entry, 20, 2) } else { 0 };
    high << 16 | number(entry, 26, 2)
}

/// Whether an entry is in use and of a file or directory, and not of this directory or the one above.
fn is_shown(entry: &[u8]) -> bool {
    // Long names and labels have the bit of a volume.
    !matches!(entry[0], 0 | 0xE5 | b'.') && entry[11] & VOLUME == 0
}

/// The first cluster of the directory that `entry` (of [`ENTRY_BYTES`]) names, if it does.
pub(super) fn directory_at(entry: &[u8], width: Width) -> Option<u32> {
    (is_shown(entry) && entry[11] & DIRECTORY != 0).then(|| first_cluster(entry, width))
}

struct Walk<'a> {
    disk: &'a mut Disk,
    layout: &'a Layout,
    /// The first FAT.
    fat: &'a [u8],
    /// Clusters of chains followed so far.
    seen: Vec<bool>,
    /// Clusters of directories.
    directories: Vec<u32>,
    usage: Usage,
}

impl<'a> Walk<'a> {
    fn new(disk: &'a mut Disk, layout: &'a Layout, fat: &'a [u8]) -> Walk<'a> {
        let seen = vec![false; layout.clusters as usize + 2];
        Walk { disk, layout, fat, seen, directories: Vec::new(), usage: Usage::default() }
    }

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
            let chain = self.chain(cluster, &path)?;
            self.directories.extend(&chain);
            'directory: for cluster in chain {
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
            let next = self.layout.width.entry(self.fat, cluster);
            if next == 0 {
                return wrong("its chain leads to a cluster that is not in use");
            }
            chain.push(cluster);
            cluster = next;
        }
        Ok(chain)
    }

    /// Looks at the entries of a sector; directories are added to `left`. False at the end of the directory.
    fn entries(&mut self, sector: u64, path: &str, left: &mut Vec<(u32, String)>) -> Result<bool> {
        let mut bytes = [0; SECTOR_BYTES as usize];
        self.disk.seek(SeekFrom::Start(sector * SECTOR_BYTES)).map_err(from_io)?;
        self.disk.read_exact(&mut bytes).map_err(from_io)?;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            if entry[0] == 0 {
                return Ok(false);
            }
            if !is_shown(entry) {
                continue;
            }
            let name = String::from_utf8_lossy(&entry[..11]);
            let path = format!("{path}/{}", name.trim_end());
            let (first, len) = (first_cluster(entry, self.layout.width), number(entry, 28, 4));
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
