//! Which sectors of a volume hold metadata: the FATs and all directories, for a write cache below the file system.
//!
//! Directories are found by walking the volume's own tree once ([`Metadata::read`]). From then on the writes that pass
//! say what changes ([`Select::written`]): an entry of a directory in a directory's sector, a cluster that a FAT appends
//! to a directory's chain, one that becomes free. A new directory is known once an entry names it: the first write to
//! its cluster may come before that.
//!
//! It only guides a cache: a cluster that a file takes over before its FAT entry was seen free goes on counting as a
//! directory's, which costs room and no data. Cost: a copy of one FAT in memory, O(1) to ask, O(entries of the
//! sector) a write to metadata.

use super::check::{self, ENTRY_BYTES};
use super::disk::Disk;
use super::layout::{Layout, Use};
use super::{SECTOR_BYTES, Time};
use bimetal_base::Result;
use bimetal_cache::nvram::Select;
use bimetal_media::{BlockDevice, Request};
use rustc_hash::FxHashSet;
use std::ops::Range;
use std::sync::Arc;

/// The metadata of one volume.
pub struct Metadata {
    layout: Layout,
    /// The first FAT, as last written.
    fat: Vec<u8>,
    /// Clusters of directories.
    directories: FxHashSet<u32>,
}

impl Metadata {
    /// Finds the directories of the volume on `device`.
    ///
    /// Fails with [`Error::Corrupt`](bimetal_base::Error::Corrupt) if FAT and directories contradict each other.
    pub fn read(device: Arc<dyn BlockDevice>) -> Result<Metadata> {
        let boot = device.run(Time::ZERO, Request::Read { offset: 0, len: SECTOR_BYTES as usize });
        let layout = Layout::read(&boot.result?, device.info().size_bytes)?;
        let mut disk = Disk::new(device, None, layout.clone(), Time::ZERO);
        let (fat, directories) = check::survey(&mut disk, &layout)?;
        Ok(Metadata { layout, fat, directories: directories.into_iter().collect() })
    }

    /// The bytes of the FATs and of all directories as they are now.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let directories = self.directories.iter().map(|cluster| self.layout.cluster(*cluster));
        let sectors = std::iter::once(self.layout.fat.start..self.layout.data).chain(directories);
        sectors.map(|range| range.start * SECTOR_BYTES..range.end * SECTOR_BYTES).collect()
    }

    fn next(&self, cluster: u32) -> u32 {
        self.layout.width.entry(&self.fat, cluster)
    }

    /// Counts the clusters from `first` on as a directory's.
    fn follow(&mut self, first: u32) {
        let mut cluster = first;
        while self.layout.has_cluster(cluster) && self.directories.insert(cluster) {
            cluster = self.next(cluster);
        }
    }

    /// A sector of the first FAT was written.
    fn fat_written(&mut self, sector: u64, bytes: &[u8]) {
        let from = ((sector - self.layout.fat.start) * SECTOR_BYTES) as usize;
        let Some(old) = self.fat.get(from..from + bytes.len()).map(<[u8]>::to_vec) else { return };
        let clusters = self.layout.width.entries_in(from..from + bytes.len());
        let clusters = clusters.filter(|cluster| self.layout.has_cluster(*cluster));
        let before: Vec<(u32, u32)> = clusters.map(|cluster| (cluster, self.next(cluster))).collect();
        if old == bytes {
            return;
        }
        self.fat[from..from + bytes.len()].copy_from_slice(bytes);
        for (cluster, old) in before {
            let new = self.next(cluster);
            if new == old || !self.directories.contains(&cluster) {
                continue;
            }
            match new {
                0 => drop(self.directories.remove(&cluster)),
                next => self.follow(next),
            }
        }
    }

    /// A sector of a directory was written.
    fn directory_written(&mut self, bytes: &[u8]) {
        for entry in bytes.chunks_exact(ENTRY_BYTES).take_while(|entry| entry[0] != 0) {
            if let Some(first) = check::directory_at(entry, self.layout.width) {
                self.follow(first);
            }
        }
    }
}

impl Select for Metadata {
    fn takes(&self, block: u64) -> bool {
        match self.layout.use_of(block) {
            Use::Fat(_) | Use::Root => true,
            Use::Reserved => false,
            Use::Cluster => {
                self.layout.cluster_of(block).is_some_and(|cluster| self.directories.contains(&cluster))
            }
        }
    }

    fn written(&mut self, block: u64, bytes: &[u8]) {
        match self.layout.use_of(block) {
            Use::Fat(0) => self.fat_written(block, bytes),
            Use::Root => self.directory_written(bytes),
            Use::Cluster if self.takes(block) => self.directory_written(bytes),
            _ => {}
        }
    }
}
