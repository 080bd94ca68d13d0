//! Numbers to look at.

use super::{Memory, Ssd};

/// The numbers of one section.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SectionStatus {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its extents' size in bytes.
    pub extent_bytes: u64,
    /// Extents in all.
    pub extents: u32,
    /// Clean ones.
    pub extents_clean: u32,
    /// Ones with some free part.
    pub extents_partly: u32,
    /// Ones without a free part.
    pub extents_full: u32,
    /// Partly used ones that wait for files.
    pub extents_waiting: u32,
    /// Bytes of files in it.
    pub resident_bytes: u64,
    /// Inodes in its replacement queue.
    pub inodes: u32,
    /// Inodes evicted since the mount.
    pub evicted_inodes: u64,
    /// Reads since the mount of what belongs into it that the SSD answered alone; what memory has counts nowhere.
    pub hits: u64,
    /// Those that needed the disk.
    pub misses: u64,
}

/// The numbers of an SSD.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Status {
    /// Its sections.
    pub sections: Vec<SectionStatus>,
    /// Inodes with blocks on it.
    pub inodes: u64,
    /// Slots of the inode table in use.
    pub slots_used: u32,
    /// Slots of the inode table.
    pub slots: u32,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Blocks that can be allocated again when the log is durable.
    pub blocks_freed_soon: u64,
    /// Memory in use for all this, and its limit.
    pub memory: Memory,
}

impl Ssd {
    /// The numbers as they are now.
    pub fn status(&self) -> Status {
        Status {
            sections: (0..self.data.len()).map(|index| self.section_status(index)).collect(),
            inodes: self.residency.len() as u64,
            slots_used: self.residency.slots.used(),
            slots: self.residency.slots.count(),
            log_used_bytes: self.used(),
            log_bytes: self.capacity(),
            blocks_freed_soon: self.freed.iter().map(|freed| u64::from(freed.len)).sum(),
            memory: self.memory(),
        }
    }

    fn section_status(&self, index: usize) -> SectionStatus {
        let (data, layout) = (&self.data[index], &self.superblock.layout.sections[index]);
        let (counts, block) = (data.section.counts(), u64::from(self.block_bytes()));
        SectionStatus {
            name: layout.name.clone(),
            size_bytes: u64::from(layout.blocks()) * block,
            extent_bytes: u64::from(layout.extent_blocks) * block,
            extents: layout.extents,
            extents_clean: counts.clean,
            extents_partly: layout.extents - counts.clean - counts.full,
            extents_full: counts.full,
            extents_waiting: data.section.waiting(),
            resident_bytes: counts.live_blocks * block,
            inodes: self.queues.len(index),
            evicted_inodes: data.evicted_inodes,
            hits: data.hits,
            misses: data.misses,
        }
    }
}
