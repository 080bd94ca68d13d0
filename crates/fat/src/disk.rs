//! The sectors of a volume, as the FAT library reads and writes them.
//!
//! The library reads and writes single entries. Here an operation's changes are gathered sector by sector and
//! written together at its end ([`Disk::sync`]), each sector once, with a request of its own: the data, then
//! the FATs, then directories; or directories first, where something is taken away. An operation that fails
//! leaves no trace ([`Disk::undo`]).
//!
//! A cluster's sectors belong to a directory if they are touched while no file's contents are
//! ([`Disk::in_contents`]). Sectors of FATs and directories that were read stay in memory.

use super::SECTOR_BYTES;
use super::layout::{Layout, Use};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_cache::nvram::NvramCache;
use bimetal_media::{BlockDevice, Gather, Request};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// Metadata sectors in memory at most; beyond that the unchanged ones are dropped.
const KEPT_MAX: usize = 65_536;

type Sector = [u8; SECTOR_BYTES as usize];

/// Sectors written, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VolumeCounts {
    /// Of files' contents.
    pub data: u64,
    /// Of the FATs.
    pub fat: u64,
    /// Of directories.
    pub directory: u64,
    /// Of boot sector and FS info.
    pub reserved: u64,
}

/// What is written first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateOrder {
    /// The data, the FATs, then the directories that lead there.
    Add,
    /// The directories, then the FATs.
    Remove,
}

/// The sectors of a volume.
pub(super) struct Disk {
    device: Arc<dyn BlockDevice>,
    /// Takes the metadata, if there is one; it is `device`, too.
    cache: Option<Arc<NvramCache>>,
    layout: Layout,
    position: u64,
    pub now: Time,
    kept: FxHashMap<u64, Sector>,
    /// Changed sectors with what they held before; nothing where that was not read.
    changed: BTreeMap<u64, Option<Sector>>,
    /// A file's contents are being read or written.
    pub in_contents: bool,
    directories: FxHashSet<u64>,
    /// The device failed: nothing more is written.
    failed: bool,
    pub counts: VolumeCounts,
}

impl Disk {
    pub fn new(
        device: Arc<dyn BlockDevice>,
        cache: Option<Arc<NvramCache>>,
        layout: Layout,
        now: Time,
    ) -> Disk {
        Disk {
            device,
            cache,
            layout,
            position: 0,
            now,
            kept: FxHashMap::default(),
            changed: BTreeMap::new(),
            in_contents: false,
            directories: FxHashSet::default(),
            failed: false,
            counts: VolumeCounts::default(),
        }
    }

    /// Reads sectors from the device.
    fn fetch(&mut self, sector: u64, count: u64) -> Result<Bytes> {
        let request = Request::Read { offset: sector * SECTOR_BYTES, len: (count * SECTOR_BYTES) as usize };
        let done = self.device.run(self.now, request);
        self.now = self.now.max(done.at);
        done.result
    }

    /// A sector's contents.
    fn load(&mut self, sector: u64) -> Result<Sector> {
        if let Some(kept) = self.kept.get(&sector) {
            return Ok(*kept);
        }
        let bytes = self.fetch(sector, 1)?;
        let mut loaded = [0; SECTOR_BYTES as usize];
        loaded.copy_from_slice(&bytes);
        self.note_use(sector);
        if !self.in_contents || sector < self.layout.data {
            self.keep(sector, loaded);
        }
        Ok(loaded)
    }

    fn keep(&mut self, sector: u64, bytes: Sector) {
        if self.kept.len() >= KEPT_MAX {
            let changed = &self.changed;
            self.kept.retain(|sector, _| changed.contains_key(sector));
        }
        self.kept.insert(sector, bytes);
    }

    /// Notes whether a cluster's sector is of a directory.
    fn note_use(&mut self, sector: u64) {
        if sector < self.layout.data {
            return;
        }
        match self.in_contents {
            true => self.directories.remove(&sector),
            false => self.directories.insert(sector),
        };
    }

    /// Changes a part of a sector in memory.
    fn change(&mut self, sector: u64, from: usize, bytes: &[u8]) -> Result<()> {
        let whole = bytes.len() == SECTOR_BYTES as usize;
        let known = !whole || self.kept.contains_key(&sector);
        let mut new = if known { self.load(sector)? } else { [0; SECTOR_BYTES as usize] };
        self.note_use(sector);
        self.changed.entry(sector).or_insert(known.then_some(new));
        new[from..from + bytes.len()].copy_from_slice(bytes);
        self.keep(sector, new);
        Ok(())
    }

    fn is_data(&self, sector: u64) -> bool {
        sector >= self.layout.data && !self.directories.contains(&sector)
    }

    /// Where a sector comes in the order of writing.
    fn rank(&self, sector: u64, order: UpdateOrder) -> u32 {
        let rank = match self.layout.use_of(sector) {
            Use::Cluster if self.is_data(sector) => 0,
            Use::Reserved => 1,
            Use::Fat(number) => 2 + number,
            Use::Cluster | Use::Root => 9,
        };
        if order == UpdateOrder::Remove { 9 - rank } else { rank }
    }

    /// Writes what was changed.
    ///
    /// Fails as the device does; from then on the volume is read-only.
    pub fn sync(&mut self, order: UpdateOrder) -> Result<()> {
        let mut sectors: Vec<u64> = self.changed.keys().copied().collect();
        sectors.sort_by_key(|sector| (self.rank(*sector, order), *sector));
        for sector in sectors {
            if let Err(error) = self.write_sector(sector) {
                self.failed = true;
                return Err(error);
            }
        }
        self.changed.clear();
        Ok(())
    }

    fn write_sector(&mut self, sector: u64) -> Result<()> {
        let Some(bytes) = self.kept.get(&sector).copied() else { return Ok(()) };
        let is_data = self.is_data(sector);
        let offset = sector * SECTOR_BYTES;
        match &self.cache {
            Some(cache) if !is_data => self.now = cache.write_absorbed(self.now, offset, &bytes)?,
            _ => {
                let data = Gather::from_iter([Bytes::copy_from_slice(&bytes)]);
                let done = self.device.run(self.now, Request::Write { offset, data, durable: true });
                self.now = self.now.max(done.at);
                done.result?;
            }
        }
        let count = match self.layout.use_of(sector) {
            _ if is_data => &mut self.counts.data,
            Use::Fat(_) => &mut self.counts.fat,
            Use::Reserved => &mut self.counts.reserved,
            Use::Cluster | Use::Root => &mut self.counts.directory,
        };
        *count += 1;
        if is_data {
            self.kept.remove(&sector);
        }
        Ok(())
    }

    /// Puts the entries `.` and `..` of a directory just made where they belong: first, without long names,
    /// and with cluster 0 for the root. The library (up to 0.3.6) writes a long name before each of them.
    pub fn straighten_new_directory(&mut self) {
        const ENTRY: usize = 32;
        let is_new = |bytes: &Sector| {
            let is_long = |at: usize| bytes[at * ENTRY + 11] == 0x0F;
            is_long(0)
                && is_long(2)
                && bytes[ENTRY..].starts_with(b". ")
                && bytes[3 * ENTRY..].starts_with(b".. ")
        };
        let found = self.changed.keys().copied().find(|sector| self.kept.get(sector).is_some_and(is_new));
        let Some(bytes) = found.and_then(|sector| self.kept.get_mut(&sector)) else { return };
        bytes.copy_within(ENTRY..2 * ENTRY, 0);
        bytes.copy_within(3 * ENTRY..4 * ENTRY, ENTRY);
        bytes[2 * ENTRY..4 * ENTRY].fill(0);
        let parent = &mut bytes[ENTRY..2 * ENTRY];
        let cluster = u32::from_le_bytes([parent[26], parent[27], parent[20], parent[21]]);
        if cluster == self.layout.root_cluster {
            parent[20..22].fill(0);
            parent[26..28].fill(0);
        }
    }

    /// Forgets what was changed.
    pub fn undo(&mut self) {
        for (sector, old) in std::mem::take(&mut self.changed) {
            match old {
                Some(old) if !self.is_data(sector) => drop(self.kept.insert(sector, old)),
                _ => drop(self.kept.remove(&sector)),
            }
        }
    }

    /// Refuses writes from now on.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    fn size(&self) -> u64 {
        self.layout.sectors * SECTOR_BYTES
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let left = (self.size().saturating_sub(self.position)).min(buffer.len() as u64);
        let (sector, from) = (self.position / SECTOR_BYTES, self.position % SECTOR_BYTES);
        // Whole sectors of contents come at once.
        let run = match self.in_contents && from == 0 {
            true => {
                let sectors = sector..sector + left / SECTOR_BYTES;
                sectors.take_while(|sector| !self.kept.contains_key(sector)).count() as u64
            }
            false => 0,
        };
        let len = if run > 0 {
            let bytes = self.fetch(sector, run)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        } else {
            let len = left.min(SECTOR_BYTES - from) as usize;
            if len > 0 {
                let bytes = self.load(sector)?;
                buffer[..len].copy_from_slice(&bytes[from as usize..from as usize + len]);
            }
            len
        };
        self.position += len as u64;
        Ok(len)
    }

    fn write_some(&mut self, data: &[u8]) -> Result<usize> {
        if self.failed {
            return Err(Error::ReadOnly);
        }
        let left = self.size().saturating_sub(self.position).min(data.len() as u64) as usize;
        let mut done = 0;
        while done < left {
            let (sector, from) = (self.position / SECTOR_BYTES, (self.position % SECTOR_BYTES) as usize);
            let len = (left - done).min(SECTOR_BYTES as usize - from);
            self.change(sector, from, &data[done..done + len])?;
            self.position += len as u64;
            done += len;
        }
        Ok(done)
    }
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_some(buffer).map_err(io::Error::other)
    }
}

impl Write for Disk {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_some(data).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.size(), by),
        };
        let to = base.checked_add_signed(by);
        self.position = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
