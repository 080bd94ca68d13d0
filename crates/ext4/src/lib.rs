//! ext4 in user space: the file system of the disk half, driven by our own code on the disk's own format.
//!
//! [`Ext4`] works on structures in memory and moves the disk from one exact state to the next, one jbd2
//! transaction at a time. Every call changes memory only and is all or nothing; [`Ext4::freeze`] turns what
//! has changed since the last one into block images, which the caller hands to the [`journal`];
//! [`Ext4::committed`] says that they are on the disk, and only then may blocks freed in it be used again.
//!
//! ```text
//! names, renames       lookup, create, link, unlink, rename, readdir    dir, htree, hash, dirent
//! data                 map, reserve, place, truncate, punch, …          extents, extent_disk, indirect
//! attributes           extended attributes and access lists             xattr
//! orphans              inodes without names, until released
//! commit, open         freeze, committed, close; open and recovery      journal
//! credits              what an operation adds to a transaction at most
//! store                space (groups: blocks, inodes), buffers (cache, journal, device), superblock
//! ```
//!
//! **Locking.** None: all methods take `&mut self`, the caller has the lock. Only the journal is shared with
//! the thread that commits. No method starts a thread or keeps time.
//!
//! **File data** is not read or written here: [`Ext4::map`] and [`Ext4::place`] say where it lies.
//!
//! **Trust.** Everything read from the device is checked (range, order, checksum) before it is used; what is
//! wrong comes back as [`bimetal_base::Error::Corrupt`]. Features that are not driven are refused by name at open.
//!
//! **Cost.** Warm: a handful of hash lookups and bit operations an operation, no I/O, no allocation but a
//! new inode's entry. Cold: a read for each stretch of an inode table or directory (`buffers/ahead.rs`), one for each bitmap;
//! without the caller's lock, if the caller likes (`buffers/misses.rs`). Memory:
//! [`CacheLimits`], and what changed until it is on the disk.

pub mod acl;
pub mod dir;
mod dirent;
pub mod hash;
mod htree;
pub mod journal;
pub mod xattr;

mod attributes;
mod backup;
mod buffers;
mod commit;
mod credits;
mod data;
mod dir_view;
mod extent_disk;
mod extents;
mod features;
mod indirect;
mod inode;
mod inodes;
mod le;
mod mapping;
mod names;
mod open;
mod orphans;
mod renames;
mod space;
mod store;
mod superblock;
mod torn_safe;

pub use buffers::Wanted;
pub use commit::Frozen;
pub use credits::{PREALLOCATE_RUNS, TreeChange};
pub use data::{Mapping, Placed, PlacedRuns};
pub use inode::{Inode, flag};
pub use names::{Create, Removed};
pub use open::{CacheLimits, Identity, Look, OpenOptions};
pub use superblock::{PAIRING_BYTES, ROOT_INO};

use backup::Backup;
use bimetal_base::time::Stamp;
use bimetal_base::units::{DiskBlock, Ino};
use bimetal_base::{Error, Result};
use bimetal_vfs::FsStat;
use inodes::Inodes;
use journal::Journal;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use store::Store;

/// Names an inode that is not a directory can have.
const LINK_MAX: u32 = 65_000;
/// What begins the attributes inside an inode.
const XATTR_MAGIC: u32 = 0xEA02_0000;

/// An open ext4 file system.
pub struct Ext4 {
    store: Store,
    inodes: Inodes,
    /// Neighbours on the orphan list: the one before (0: it is the head) and the one after.
    orphans: FxHashMap<u32, (u32, u32)>,
    /// Orphans of an earlier mount that were freed by this one.
    adopted: Vec<Ino>,
    /// Blocks freed in transactions that are frozen but not on the disk.
    pending: VecDeque<(u64, Vec<(DiskBlock, u32)>)>,
    /// The whole block the superblock is in.
    super_block: Vec<u8>,
    /// The copy of the superblock that goes with each transaction.
    backup: Option<Backup>,
    /// As the superblock was before this mount.
    found: Identity,
    /// Images one transaction may carry.
    capacity: usize,
    /// The caller's area or something else of the superblock alone changed.
    super_dirty: bool,
    /// The device does not say yet that this is in use.
    unmarked: bool,
}

impl Ext4 {
    /// The journal, to commit with.
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(self.store.buffers.journal())
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.store.geometry.block_bytes
    }

    /// The largest size a file can have, bytes.
    pub fn size_max(&self) -> u64 {
        self.store.geometry.size_max()
    }

    /// An inode, read if it is not in memory.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode; [`Error::Corrupt`]; what reading says.
    pub fn inode(&mut self, ino: Ino) -> Result<&Inode> {
        self.make_room();
        let slot = self.load(ino)?;
        Ok(&self.inodes.entry(slot).inode)
    }

    /// An inode to change; it will be in the next transaction. The caller changes the fields that `stat`
    /// shows, never `generation`.
    ///
    /// # Errors
    /// As [`Ext4::inode`]; [`Error::ReadOnly`].
    pub fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.make_room();
        let slot = self.load_dirty(ino)?;
        Ok(&mut self.inodes.entry(slot).inode)
    }

    /// The nearest time this file system can store in its inodes.
    pub fn representable(&self, time: Stamp) -> Stamp {
        inode::clamp(time, self.store.geometry.extra_isize >= 24)
    }

    /// Notes a time a caller gave, for superblock and deletion times; the answer is what an inode can store.
    fn note_time(&mut self, now: Stamp) -> Stamp {
        self.store.clock = self.store.clock.max(now);
        self.representable(now)
    }

    /// Space and inodes. Promised blocks do not count as free; of the free ones, those kept for root and
    /// for metadata are not available.
    pub fn statfs(&self) -> FsStat {
        let (count, geometry) = (self.store.space.count(), &self.store.geometry);
        FsStat {
            block_bytes: geometry.block_bytes,
            blocks: geometry.blocks - self.store.space.overhead(),
            free: count.blocks.saturating_sub(count.promised + count.nodes),
            available: self.store.space.promisable(geometry.root_blocks),
            inodes: u64::from(geometry.inodes),
            inodes_free: u64::from(count.inodes),
        }
    }

    /// Whether a commit may give room back: what is held until then, and what was promised in case of need.
    pub fn is_room_awaited(&self) -> bool {
        let count = self.store.space.count();
        count.held > 0 || count.promised > 0 || count.nodes > 0
    }

    /// Whether promises leave something to root and to what cannot be foreseen, as they do unless said otherwise. What is
    /// repeated found room once, and is refused none that there is.
    pub fn keep_back(&mut self, keeps: bool) {
        self.store.space.keep_back(keeps);
    }

    /// From now on what is not in memory is not read: operations fail for it, and [`Ext4::missed`] tells.
    /// Only for operations that change nothing.
    pub fn shun_reads(&mut self) {
        self.store.buffers.shun_reads();
    }

    /// Ends what [`Ext4::shun_reads`] began. If anything was missing, what to read; all answers since mean nothing then.
    pub fn missed(&mut self) -> Option<Wanted> {
        self.store.buffers.missed(self.store.tid)
    }

    /// Whether anything was missing since [`Ext4::shun_reads`]: what failed since tells nothing.
    pub fn has_missed(&self) -> bool {
        self.store.buffers.has_missed()
    }

    /// Takes in what read number `number` of [`Wanted::reads`] gave, unless there may be newer contents by now.
    pub fn supply(&mut self, wanted: &Wanted, number: usize, bytes: &bytes::Bytes) {
        let taken = self.store.buffers.supply(wanted, number, bytes);
        (0..taken.div_ceil(64)).for_each(|_| self.make_room());
    }

    /// Drops what is cached beyond the limits. Only between operations: inside one, what was found valid
    /// stays in memory.
    fn make_room(&mut self) {
        self.store.buffers.shrink(self.store.committed);
        self.inodes.shrink(self.store.committed);
    }

    /// The slot of a cached inode that has, or had, a name.
    fn load(&mut self, ino: Ino) -> Result<u32> {
        if let Some(slot) = self.inodes.find(ino) {
            return Ok(slot);
        }
        if !self.store.geometry.is_ordinary(ino) {
            return Err(Error::Stale);
        }
        let inode = self.store.read_inode(ino)?;
        if inode.nlink == 0 {
            return Err(Error::Stale);
        }
        Ok(self.inodes.insert(inode))
    }

    /// As [`Ext4::load`], marked as changed; its table block is in a buffer that stays.
    fn load_dirty(&mut self, ino: Ino) -> Result<u32> {
        self.store.check_writable()?;
        let slot = self.load(ino)?;
        self.mark(slot)?;
        Ok(slot)
    }

    /// Marks a cached inode as changed.
    fn mark(&mut self, slot: u32) -> Result<()> {
        let entry = self.inodes.entry(slot);
        if !entry.dirty {
            let ino = entry.inode.ino;
            let (buffer, _) = self.store.load_slot(ino)?;
            self.store.buffers.edit(buffer, buffers::Seal::Plain);
            self.inodes.mark(slot);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_system_can_move_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Ext4>();
    }
}
