//! Everything of an open ext4 but its inodes: the superblock, the groups and the buffer cache with the device and the
//! journal below it. Inodes stand beside it ([`super::Ext4`]), so that one can be changed while blocks are read, taken
//! and given back.

use super::buffers::Buffers;
use super::dir::DirParams;
use super::open::CacheLimits;
use super::space::Goal;
use super::space::Placement;
use super::space::Space;
use super::superblock::{Geometry, Superblock};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use std::sync::Arc;

/// The parts that do not belong to one inode.
pub(super) struct Store {
    pub geometry: Arc<Geometry>,
    pub sb: Superblock,
    pub dirs: DirParams,
    pub buffers: Buffers,
    pub space: Space,
    /// Number of the running transaction.
    pub tid: u64,
    /// The last transaction that is on the disk.
    pub committed: u64,
    /// The latest time anyone told us.
    pub clock: Stamp,
    /// State of the generator of inode generations.
    random: u64,
    pub read_only: bool,
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
            buffers: Buffers::new(disk, (geometry.block_bits, geometry.blocks), limits.buffer_bytes),
            space: Space::new(Arc::clone(&geometry), limits.groups),
            random: uuid ^ (sb.write_time() << 20) ^ u64::from(sb.mount_count()),
            tid: 1,
            committed: 0,
            geometry,
            changed_nodes: 0,
            sb,
            dirs,
            clock,
            read_only,
        }
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

    /// Takes an inode number and makes its slot in the table ready, see [`Space::take_inode`].
    pub fn take_inode(&mut self, placement: &Placement) -> Result<Ino> {
        self.space.take_inode(&mut self.buffers, placement)
    }

    /// Gives back an inode number, see [`Space::give_inode`].
    pub fn give_inode(&mut self, ino: Ino, is_dir: bool) -> Result<()> {
        self.space.give_inode(&self.buffers, ino, is_dir)
    }

    /// Takes a run of at most `want` blocks near `goal`, see [`Space::take_blocks`].
    pub fn take_blocks(&mut self, goal: Goal, want: u32) -> Result<(u64, u32)> {
        self.space.take_blocks(&self.buffers, goal, want)
    }

    /// Gives back a run of blocks, see [`Space::give_blocks`].
    pub fn give_blocks(&mut self, at: u64, len: u32, buffered: bool) -> Result<()> {
        self.space.give_blocks(&mut self.buffers, at, len, buffered)
    }

    /// The buffer of the table block of an inode and where in it, see [`Space::load_slot`].
    pub fn load_slot(&mut self, ino: Ino) -> Result<(u32, usize)> {
        self.space.load_slot(&mut self.buffers, ino)
    }

    /// Refuses changes of a file system opened for reading.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}
