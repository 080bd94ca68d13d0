//! Everything of an open ext4 but its inodes: the device, the journal, the superblock, the groups and the
//! buffer cache. Inodes stand beside it ([`super::Ext4`]), so that one can be changed while blocks are
//! read, taken and given back.

use super::ahead::Ahead;
use super::buffers::{Buffers, Seal};
use super::dir::DirParams;
use super::group::{Desc, SystemZones};
use super::journal::Journal;
use super::misses::Misses;
use super::open::CacheLimits;
use super::space::Group;
use super::superblock::{Geometry, Superblock};
use bimetal_base::time::Stamp;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Free space and promises on it, blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Free blocks once the running transaction is on the disk.
    pub blocks: u64,
    /// Those of them that were freed in a transaction that is not on the disk yet.
    pub held: u64,
    /// Promised to data that has no place yet.
    pub promised: u64,
    /// Free inodes.
    pub inodes: u32,
}

/// The parts that do not belong to one inode.
pub(super) struct Store {
    pub disk: Arc<dyn BlockDevice>,
    pub journal: Option<Arc<Journal>>,
    pub geometry: Arc<Geometry>,
    pub sb: Superblock,
    pub dirs: DirParams,
    pub buffers: Buffers,
    pub groups: Vec<Group>,
    /// The descriptor table, raw.
    pub table: Vec<u8>,
    /// Groups changed in the running transaction.
    pub dirty_groups: Vec<u32>,
    /// Groups whose bitmaps are in memory.
    pub loaded_groups: Vec<u32>,
    pub zones: SystemZones,
    pub count: Counters,
    /// The block after those of the last short file.
    pub short_files: Option<u64>,
    /// Blocks freed in the running transaction.
    pub freed: Vec<(DiskBlock, u32)>,
    /// Number of the running transaction.
    pub tid: u64,
    /// The last transaction that is on the disk.
    pub committed: u64,
    /// The latest time anyone told us.
    pub clock: Stamp,
    /// State of the generator of inode generations.
    pub random: u64,
    pub read_only: bool,
    pub limits: CacheLimits,
    /// Extent tree nodes that freezing now would write.
    pub changed_nodes: usize,
    /// What is read together.
    pub ahead: RefCell<Ahead>,
    /// What was missing while reading is shunned.
    pub misses: RefCell<Misses>,
}

impl Store {
    /// A store whose groups are still to be read.
    pub fn new(disk: Arc<dyn BlockDevice>, sb: Superblock, limits: CacheLimits, read_only: bool) -> Store {
        let geometry = Arc::new(sb.geometry.clone());
        let features = geometry.features;
        let dirs = DirParams {
            hash_seed: geometry.hash_seed,
            hash_version: geometry.hash_version,
            unsigned: geometry.hash_unsigned,
            checksums: features.csum(),
            indexed_allowed: features.dir_index(),
            filetype: features.filetype(),
            large_dir: features.large_dir(),
        };
        let uuid = geometry.uuid.iter().fold(0_u64, |sum, byte| sum.rotate_left(7) ^ u64::from(*byte));
        let clock = Stamp { sec: sb.write_time().max(sb.made_time()) as i64, nsec: 0 };
        Store {
            buffers: Buffers::new(limits.buffer_bytes >> geometry.block_bits),
            ahead: RefCell::new(Ahead::new(geometry.block_bits, limits.buffer_bytes >> geometry.block_bits)),
            misses: RefCell::default(),
            random: uuid ^ (sb.write_time() << 20) ^ u64::from(sb.mount_count()),
            groups: Vec::new(),
            table: Vec::new(),
            dirty_groups: Vec::new(),
            loaded_groups: Vec::new(),
            zones: SystemZones::default(),
            count: Counters::default(),
            short_files: None,
            freed: Vec::new(),
            tid: 1,
            committed: 0,
            journal: None,
            disk,
            geometry,
            changed_nodes: 0,
            sb,
            dirs,
            clock,
            limits,
            read_only,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// Reads `count` blocks from the device, whatever the journal holds.
    pub fn read_device(&self, block: u64, count: u32) -> Result<Bytes> {
        let bits = self.geometry.block_bits;
        self.disk.read(block << bits, (count as usize) << bits)
    }

    /// The newest contents of a block: of its buffer, else as committed.
    pub fn fetch(&self, block: u64) -> Result<Bytes> {
        match self.buffers.peek(block).or_else(|| self.newer(block)) {
            Some(bytes) => Ok(bytes),
            None => self.fetch_absent(block),
        }
    }

    /// The newest committed contents of a bitmap, which never is in a buffer.
    pub fn fetch_bitmap(&self, block: u64) -> Result<Bytes> {
        match self.newer(block) {
            Some(bytes) => Ok(bytes),
            None if self.is_shunned() => Err(super::misses::absent(block)),
            None => self.read_device(block, 1),
        }
    }

    /// The image of a block that is in the journal and not home yet.
    fn newer(&self, block: u64) -> Option<Bytes> {
        self.journal.as_ref().and_then(|journal| journal.latest(DiskBlock(block)))
    }

    /// The buffer of a block, read if need be.
    pub fn load(&mut self, block: u64) -> Result<u32> {
        self.load_among(block, &(block..block + 1), 1)
    }

    /// The buffer of a block, read if need be with others of the blocks in `bounds`, which are of its kind: `least` of
    /// them to begin with, more if they are read one after the other.
    pub fn load_among(&mut self, block: u64, bounds: &Range<u64>, least: u64) -> Result<u32> {
        if let Some(slot) = self.buffers.find(block) {
            return Ok(slot);
        }
        if block >= self.geometry.blocks {
            return Err(Error::corrupt("a block number", "it is past the end", format!("block {block}")));
        }
        if let Some(bytes) = self.newer(block) {
            return Ok(self.buffers.insert(block, Arc::from(&bytes[..])));
        }
        let bounds = bounds.start..bounds.end.min(self.geometry.blocks);
        self.read_in(block, &bounds, least)
    }

    /// A buffer of zeros for a block whose old contents are of no matter; dirty.
    pub fn blank(&mut self, block: u64, seal: Seal) -> u32 {
        let slot = match self.buffers.find(block) {
            Some(slot) => {
                self.buffers.edit(slot, seal).fill(0);
                slot
            }
            None => {
                let zeros = Arc::from(vec![0; self.block_bytes()]);
                let slot = self.buffers.insert(block, zeros);
                self.buffers.edit(slot, seal);
                slot
            }
        };
        self.buffers.set_checked(slot);
        slot
    }

    /// Puts finished contents of a block into the running transaction.
    pub fn put(&mut self, block: u64, bytes: &[u8]) {
        let slot = self.blank(block, Seal::Plain);
        self.buffers.edit(slot, Seal::Plain).copy_from_slice(bytes);
    }

    /// The next generation number.
    pub fn next_generation(&mut self) -> u32 {
        // SplitMix64: enough to make two uses of an inode differ.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as u32
    }

    /// Whether a run of blocks may belong to a file.
    pub fn may_hold_data(&self, at: u64, len: u64) -> bool {
        let end = at.checked_add(len);
        at > self.geometry.first_data_block
            && len > 0
            && end.is_some_and(|end| end <= self.geometry.blocks)
            && !self.zones.touches(at, len)
    }

    /// The descriptor of a group.
    pub fn desc(&self, group: u32) -> &Desc {
        &self.groups[group as usize].desc
    }

    /// Refuses changes of a file system opened for reading.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}
