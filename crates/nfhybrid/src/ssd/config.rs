//! What a user chooses when an SSD is formatted, and what ties it to its disk.

use std::time::Duration;

/// The longest name of a section, in bytes.
pub const SECTION_NAME_MAX: usize = 32;

/// The most sections an SSD can have.
pub const SECTIONS_MAX: usize = 32;

/// One data section to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionConfig {
    /// What people call it: 1 to [`SECTION_NAME_MAX`] bytes.
    pub name: String,
    /// Size of its extents in bytes: a power of two, 2 to 65 536 blocks.
    pub extent_bytes: u64,
    /// Its size; rounded down to whole extents. `None` shares what the others leave evenly.
    pub size_bytes: Option<u64>,
}

/// How an SSD is to be laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Block size in bytes: 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Size of the circular log: a multiple of 4 KiB, at least 64 KiB.
    pub log_bytes: u64,
    /// The flash block size, if known: a power of two. Sections begin at multiples of it, and so do their
    /// extents where they are not smaller.
    pub flash_block_bytes: Option<u64>,
    /// The data sections, 1 to [`SECTIONS_MAX`].
    pub sections: Vec<SectionConfig>,
    /// Index of the section that takes what no rule sends elsewhere.
    pub default_section: usize,
    /// How long a partly used extent waits for more files.
    pub wait: Duration,
    /// The paper's δ: extents of more blocks have sub-segments.
    pub threshold_blocks: u32,
    /// Eviction begins when fewer extents of a section are clean: in thousandths of its extents.
    pub evict_below: u16,
    /// Eviction ends when so many are clean: in thousandths.
    pub evict_to: u16,
    /// Size of a slot of the duplicated inode table: 256 or 512.
    pub slot_bytes: u32,
    /// One slot is made for so many bytes of data (but never more than a section has segments).
    pub bytes_per_slot: u64,
}

impl Default for Config {
    fn default() -> Config {
        let section = SectionConfig { name: "default".into(), extent_bytes: 64 << 10, size_bytes: None };
        Config {
            block_bytes: 4096,
            log_bytes: 4 << 20,
            flash_block_bytes: None,
            sections: vec![section],
            default_section: 0,
            wait: Duration::from_secs(5),
            threshold_blocks: 16,
            evict_below: 50,
            evict_to: 100,
            slot_bytes: 256,
            bytes_per_slot: 16 << 10,
        }
    }
}

/// What the SSD knows of the disk it belongs to, as of the last write of its superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pairing {
    /// The disk file system's UUID.
    pub disk_uuid: [u8; 16],
    /// Raised on the disk whenever it goes on without this SSD; its lower half is drawn by each mount of both.
    pub epoch: u64,
    /// The lower half of the epoch that the disk said before this one: the SSD is told first, and power can fail between.
    pub before: u32,
    /// The last operation that the disk had then.
    pub disk_op: u64,
    /// The disk's mount count.
    pub mount_count: u16,
    /// The disk's last mount, seconds since 1970.
    pub mount_time: u64,
    /// The disk's last check, seconds since 1970.
    pub last_check: u64,
    /// The disk's last write, seconds since 1970.
    pub write_time: u64,
}
