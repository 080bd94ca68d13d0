//! What of the device is free and who has it: the block groups, their descriptors and bitmaps, and the promises on free
//! space. [`blocks`] takes and gives back runs of blocks, [`inodes`] inode numbers.
//!
//! Bitmaps are read through the [`Buffers`], which callers hand along: they know what of them
//! is in the journal and not home yet. They are not kept there, though; a group keeps its own, as bits.

mod bitmap;
mod blocks;
mod group;
mod inodes;

pub(super) use blocks::{Claim, GRANT, Goal, SHORT_FILE_BYTES};
pub(super) use inodes::Placement;

use super::buffers::Buffers;
use super::superblock::Geometry;
use bimetal_base::units::{DiskBlock, Ino};
use bimetal_base::{Error, Result};
use blocks::BlockMap;
use bytes::Bytes;
use group::{Desc, INODE_UNINIT, SystemZones, bitmap_sum};
use inodes::InodeMap;
use std::sync::Arc;

/// A group: its descriptor and what of it is in memory.
#[derive(Default)]
struct Group {
    desc: Desc,
    blocks: Option<Box<BlockMap>>,
    inodes: Option<Box<InodeMap>>,
    /// The descriptor differs from the table.
    dirty: bool,
    /// The transaction its last images went into.
    frozen: u64,
}

/// Free space and promises on it, blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Free blocks once the running transaction is on the disk.
    pub blocks: u64,
    /// Those of them that were freed in a transaction that is not on the disk yet.
    pub held: u64,
    /// Promised to data that has no place yet.
    pub promised: u64,
    /// Promised to the extent trees of files that such data is in.
    pub nodes: u64,
    /// Free inodes.
    pub inodes: u32,
}

/// The groups of a file system.
pub(super) struct Space {
    geometry: Arc<Geometry>,
    groups: Vec<Group>,
    /// The descriptor table, raw.
    table: Vec<u8>,
    /// Groups changed in the running transaction.
    dirty: Vec<u32>,
    /// Groups whose bitmaps are in memory.
    loaded: Vec<u32>,
    /// How many of them stay when nothing of theirs waits for the journal.
    loaded_max: usize,
    zones: SystemZones,
    count: Counters,
    /// The block after those of the last short file.
    short_files: Option<u64>,
    /// Short files that the running transaction continued apart from its other blocks.
    continued: u32,
    /// Blocks freed in the running transaction.
    freed: Vec<(DiskBlock, u32)>,
    /// Promises leave something to root and to what cannot be foreseen.
    keeps_back: bool,
}

impl Space {
    /// Groups that are still to be [read](Self::read); at most `loaded_max` idle ones keep their bitmaps in memory.
    pub fn new(geometry: Arc<Geometry>, loaded_max: usize) -> Space {
        Space {
            geometry,
            groups: Vec::new(),
            table: Vec::new(),
            dirty: Vec::new(),
            loaded: Vec::new(),
            loaded_max,
            zones: SystemZones::default(),
            count: Counters::default(),
            short_files: None,
            continued: 0,
            freed: Vec::new(),
            keeps_back: true,
        }
    }

    /// Whether promises leave something to root and to what cannot be foreseen.
    pub fn keep_back(&mut self, keeps: bool) {
        self.keeps_back = keeps;
    }

    /// Reads the descriptor of one group, before the journal was replayed.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; what the device says.
    pub fn read_one(&mut self, buffers: &Buffers, group: u32) -> Result<()> {
        let per_block = self.geometry.descs_per_block();
        let bytes = self.descriptors(buffers, self.geometry.desc_block(group / per_block), 1)?;
        let at = (group % per_block * self.geometry.desc_bytes) as usize;
        let raw = &bytes[at..at + self.geometry.desc_bytes as usize];
        let desc = Desc::read(raw, group, &self.geometry, true)?;
        self.groups.resize_with(group as usize + 1, Group::default);
        self.groups[group as usize].desc = desc;
        Ok(())
    }

    fn descriptors(&self, buffers: &Buffers, block: u64, count: u32) -> Result<Bytes> {
        if block + u64::from(count) > self.geometry.blocks {
            let at = format!("block {block}");
            return Err(Error::corrupt("the descriptor table", "it ends past the device", at));
        }
        buffers.read_device(block, count)
    }

    /// Reads all descriptors, and counts what is free; `journal` are the journal's blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; what the device says.
    pub fn read(&mut self, buffers: &Buffers, journal: &[DiskBlock]) -> Result<()> {
        let geometry = Arc::clone(&self.geometry);
        let (mut index, blocks) = (0, geometry.desc_blocks());
        while index < blocks {
            let start = geometry.desc_block(index);
            let run = (1..blocks - index)
                .take_while(|ahead| geometry.desc_block(index + ahead) == start + u64::from(*ahead))
                .count() as u32;
            let bytes = self.descriptors(buffers, start, run + 1)?;
            self.table.extend_from_slice(&bytes);
            index += run + 1;
        }
        let raws = self.table.chunks_exact(geometry.desc_bytes as usize);
        for (group, raw) in (0..geometry.groups).zip(raws) {
            let desc = Desc::read(raw, group, &geometry, true)?;
            self.count.blocks += u64::from(desc.free_blocks);
            self.count.inodes += desc.free_inodes;
            self.groups.push(Group { desc, ..Group::default() });
        }
        self.zones = SystemZones::new(&geometry, self.groups.iter().map(|group| &group.desc), journal);
        Ok(())
    }

    /// Free space and promises on it.
    pub fn count(&self) -> Counters {
        self.count
    }

    /// Blocks of the file system itself, which `statfs` does not count.
    pub fn overhead(&self) -> u64 {
        self.zones.blocks()
    }

    /// Whether a run of blocks may belong to a file.
    pub fn may_hold_data(&self, at: u64, len: u64) -> bool {
        let end = at.checked_add(len);
        at > self.geometry.first_data_block
            && len > 0
            && end.is_some_and(|end| end <= self.geometry.blocks)
            && !self.zones.touches(at, len)
    }

    /// Whether the slot of an inode in its group's table was never used, so that it need not be read.
    pub fn is_never_used(&self, ino: Ino) -> bool {
        let (group, place) = self.geometry.group_of_inode(ino);
        let desc = self.desc(group);
        place >= self.geometry.inodes_per_group - desc.unused_inodes || desc.has(INODE_UNINIT)
    }

    /// Groups changed in the running transaction.
    pub fn dirty_groups(&self) -> usize {
        self.dirty.len()
    }

    /// The blocks that the running transaction freed; a new list begins.
    pub fn take_freed(&mut self) -> Vec<(DiskBlock, u32)> {
        std::mem::take(&mut self.freed)
    }

    /// Takes the images of changed bitmaps and descriptors for transaction `tid`.
    pub fn freeze(&mut self, tid: u64, images: &mut Vec<(DiskBlock, Bytes)>) {
        let (geometry, mut tables) = (Arc::clone(&self.geometry), Vec::new());
        self.continued = 0;
        for group in std::mem::take(&mut self.dirty) {
            let entry = &mut self.groups[group as usize];
            entry.dirty = false;
            entry.frozen = tid;
            if let Some(image) = entry.blocks.as_mut().and_then(|map| map.freeze()) {
                if let Some(sum) = bitmap_sum(&image, geometry.blocks_per_group, &geometry) {
                    entry.desc.block_sum = sum;
                }
                images.push((DiskBlock(entry.desc.block_bitmap), image.into()));
            }
            if let Some(image) = entry.inodes.as_mut().and_then(|map| map.freeze()) {
                if let Some(sum) = bitmap_sum(&image, geometry.inodes_per_group, &geometry) {
                    entry.desc.inode_sum = sum;
                }
                images.push((DiskBlock(entry.desc.inode_bitmap), image.into()));
            }
            let bytes = geometry.desc_bytes as usize;
            let raw = &mut self.table[group as usize * bytes..][..bytes];
            entry.desc.write(raw, group, &geometry);
            tables.push(group / geometry.descs_per_block());
        }
        tables.sort_unstable();
        tables.dedup();
        for index in tables {
            let bytes = geometry.block_bytes as usize;
            let block = Bytes::copy_from_slice(&self.table[index as usize * bytes..][..bytes]);
            images.push((DiskBlock(geometry.desc_block(index)), block));
        }
    }

    /// Drops bitmaps that are clean, if many are in memory; `committed` is the last transaction that is on the disk.
    pub fn shrink(&mut self, committed: u64) {
        if self.loaded.len() <= self.loaded_max {
            return;
        }
        let groups = &mut self.groups;
        self.loaded.retain(|group| {
            let entry = &mut groups[*group as usize];
            let idle = entry.blocks.as_ref().is_none_or(|map| map.is_idle());
            if entry.dirty || !idle || entry.frozen > committed {
                return true;
            }
            entry.blocks = None;
            entry.inodes = None;
            false
        });
    }

    /// The descriptor of a group.
    fn desc(&self, group: u32) -> &Desc {
        &self.groups[group as usize].desc
    }

    /// Notes that a group has to be written.
    fn touch(&mut self, group: u32) {
        let entry = &mut self.groups[group as usize];
        if !std::mem::replace(&mut entry.dirty, true) {
            self.dirty.push(group);
        }
    }
}
