//! Everything of an open ext4 but its inodes: the device, the journal, the superblock, the groups and the
//! buffer cache. Inodes stand beside it ([`super::Ext4`]), so that one can be changed while blocks are
//! read, taken and given back.

use super::buffers::{Buffers, Seal};
use super::dir::DirParams;
use super::group::{Desc, SystemZones};
use super::journal::Journal;
use super::open::CacheLimits;
use super::space::Group;
use super::superblock::{Geometry, Superblock};
use crate::media::BlockDevice;
use crate::time::Stamp;
use crate::units::DiskBlock;
use crate::{Error, Result};
use bytes::Bytes;
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

    /// The newest committed contents of a block.
    pub fn fetch(&self, block: u64) -> Result<Bytes> {
        match self.newer(block) {
            Some(bytes) => Ok(bytes),
            None => self.read_device(block, 1),
        }
    }

    /// The image of a block that is in the journal and not home yet.
    fn newer(&self, block: u64) -> Option<Bytes> {
        self.journal.as_ref().and_then(|journal| journal.latest(DiskBlock(block)))
    }

    /// The buffer of a block, read if need be together with up to `ahead` blocks after it.
    pub fn load(&mut self, block: u64, ahead: u32) -> Result<u32> {
        if let Some(slot) = self.buffers.find(block) {
            return Ok(slot);
        }
        if block >= self.geometry.blocks {
            return Err(Error::corrupt("a block number", "it is past the end", format!("block {block}")));
        }
        if let Some(bytes) = self.newer(block) {
            return Ok(self.buffers.insert(block, Arc::from(&bytes[..])));
        }
        let end = (block + 1 + u64::from(ahead)).min(self.geometry.blocks);
        // Asked before the read: what the journal has home meanwhile, the read sees.
        let stale = |at: u64| self.buffers.has(at) || self.newer(at).is_some();
        let wanted: Vec<u64> = (block + 1..end).take_while(|at| !stale(*at)).collect();
        let bytes = self.read_device(block, 1 + wanted.len() as u32)?;
        let size = self.block_bytes();
        for (at, chunk) in wanted.iter().zip(bytes[size..].chunks_exact(size)) {
            self.buffers.insert(*at, Arc::from(chunk));
        }
        Ok(self.buffers.insert(block, Arc::from(&bytes[..size])))
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
