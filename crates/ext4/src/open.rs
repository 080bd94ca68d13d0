//! Opening: superblock, journal replay, descriptors, orphans.
//!
//! 1. The superblock is read and checked. If only its checksum is wrong and the journal is in use, it may
//!    be torn (not by us, see `torn_safe.rs`); the replay heals it. Whatever else goes wrong before that is put down
//!    to the damaged superblock.
//! 2. The journal's inode is read by the descriptor of its group alone, and the journal replayed if there
//!    is anything in it. Then the superblock is read again.
//! 3. All descriptors are read and checked.
//! 4. For writing: the superblock says, in place, that the journal is in use from now on; orphans of the last mount
//!    are freed. With [`OpenOptions::lazily`] only once something is about to change.

use super::Ext4;
use super::backup::{Backup, read_copy};
use super::inode::Inode;
use super::inodes::Inodes;
use super::journal::Journal;
use super::store::Store;
use super::superblock::{PAIRING_BYTES, ROOT_INO, SUPER_BYTES, SUPER_OFFSET, Superblock, has_magic};
use bimetal_base::time::Stamp;
use bimetal_base::units::DiskBlock;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_vfs::Kind;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Journals of more blocks are refused as senseless (4 TiB with 4 KiB blocks).
const JOURNAL_BLOCKS_MAX: u64 = 1 << 30;

/// How to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Change nothing on the device.
    pub read_only: bool,
    /// Change nothing on the device before [`Ext4::mark_in_use`], if the file system was left in order.
    pub lazily: bool,
    /// The present, for the superblock's write time.
    pub now: Stamp,
    /// What stays in memory.
    pub cache: CacheLimits,
    /// Where the journal ended when it was looked at, see [`Look::journal_end`].
    pub journal_end: Option<u32>,
}

/// What stays in memory although it could be read again. What changed stays in any case, until it is on the disk.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Blocks of metadata, bytes.
    pub buffer_bytes: usize,
    /// Inodes.
    pub inodes: usize,
    /// Groups whose bitmaps are kept.
    pub groups: usize,
}

impl Default for CacheLimits {
    fn default() -> CacheLimits {
        CacheLimits { buffer_bytes: 64 << 20, inodes: 65_536, groups: 4096 }
    }
}

/// What tells one mount of one file system from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file system.
    pub uuid: [u8; 16],
    /// Mounts so far.
    pub mount_count: u16,
    /// When it was last mounted, seconds since the epoch.
    pub mount_time: u64,
    /// When it was last written, seconds since the epoch.
    pub write_time: u64,
    /// When it was last checked, seconds since the epoch.
    pub check_time: u64,
    /// The journal was in use: the last mount did not end cleanly (or has not ended).
    pub in_use: bool,
}

impl Identity {
    pub(super) fn of(sb: &Superblock) -> Identity {
        Identity {
            uuid: sb.geometry.uuid,
            mount_count: sb.mount_count(),
            mount_time: sb.mount_time(),
            write_time: sb.write_time(),
            check_time: sb.check_time(),
            in_use: sb.needs_recovery(),
        }
    }
}

/// What a file system says of itself before it is opened, as it will be once its journal is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Who it is.
    pub identity: Identity,
    /// The caller's opaque area; `None` if it was never set.
    pub pairing: Option<[u8; PAIRING_BYTES]>,
    /// The transaction that a replay of the journal ends before, if there is one to do.
    pub journal_end: Option<u32>,
}

impl Ext4 {
    /// Looks at the file system on `disk` as opening it for writing would find it; nothing is written.
    ///
    /// # Errors
    /// As [`Ext4::open`], as far as the superblock and the journal show.
    pub fn look(disk: &Arc<dyn BlockDevice>) -> Result<Look> {
        let mut sb = read_super(&**disk)?;
        let name = &disk.info().name;
        if sb.sound || !sb.needs_recovery() {
            sb.check_state(name)?;
        }
        let (journal, _) = load_journal(disk, &sb).map_err(|error| sb.doubted(error, name))?;
        let (place, offset) = sb.geometry.super_place();
        let (block, journal_end) = journal.preview(place).map_err(|error| sb.doubted(error, name))?;
        if let Some(block) = block {
            sb = Superblock::read(&block[offset..offset + SUPER_BYTES], disk.info().size_bytes, name)?;
        }
        sb.check_state(name)?;
        Ok(Look { identity: Identity::of(&sb), pairing: sb.pairing(), journal_end })
    }

    /// Whether e2fsck will replay all of the journal of a file system that cannot be opened: it goes by the superblock, its
    /// copy, the journal's inode and the copy of that, as this does, and empties a journal that it cannot replay. Only reads.
    ///
    /// # Errors
    /// What is wrong with the journal, or that it cannot be found.
    pub fn check_journal(disk: &Arc<dyn BlockDevice>) -> Result<()> {
        let sb = read_super(&**disk).or_else(|why| read_copy(&**disk).ok_or(why))?;
        let found = find_journal(disk, &sb, Whose::Inode);
        let (journal, _) =
            found.or_else(|why| find_journal(disk, &sb, Whose::Superblock).map_err(|_| why))?;
        journal.preview(sb.geometry.super_place().0).map(|_| ())
    }

    /// Opens the file system on `disk`; for writing, replays its journal and marks it as in use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names a feature that is not driven; [`Error::Corrupt`] says what is wrong, or
    /// that the file system needs e2fsck; [`Error::Invalid`] if it needs a replay and `read_only` forbids
    /// it; what the device says.
    pub fn open(disk: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Ext4> {
        let mut sb = read_super(&*disk)?;
        let name = disk.info().name.clone();
        if !options.read_only && sb.forbids_writing() {
            return Err(sb.doubted(Error::ReadOnly, &name));
        }
        if !options.read_only && !sb.geometry.features.extents() {
            let why = "run `tune2fs -O extents` first";
            let error = Error::unsupported("writing to ext4 without the extent feature", why);
            return Err(sb.doubted(error, &name));
        }
        if sb.sound || !sb.needs_recovery() {
            sb.check_state(&name)?;
        }
        let (journal, journal_blocks) = load_journal(&disk, &sb).map_err(|error| sb.doubted(error, &name))?;
        if journal.needs_recovery() {
            if options.read_only {
                return Err(Error::invalid(format!(
                    "{name}: it was not unmounted, and its journal has to be replayed, which changes it: mount it once with the kernel, or \
                     run e2fsck -p {name}"
                )));
            }
            journal.recover_to(options.journal_end)?;
            sb = read_super(&*disk)?;
        }
        sb.check_state(&name)?;
        let found = Identity::of(&sb);
        let store = Store::new(disk, sb, options.cache, options.read_only);
        let mut fs =
            Ext4::assemble((store, Inodes::new(options.cache.inodes)), journal, &journal_blocks, found)?;
        let in_order = !found.in_use && fs.store.sb.last_orphan() == 0 && !fs.store.sb.orphan_present();
        fs.unmarked = options.lazily && in_order && !options.read_only;
        fs.check_root()?;
        if !options.read_only && !fs.unmarked {
            fs.begin_writing(options.now)?;
        }
        Ok(fs)
    }

    /// Without its root nothing can be reached.
    fn check_root(&mut self) -> Result<()> {
        let damaged = |why: String| Error::corrupt("the root directory", why, format!("inode {ROOT_INO}"));
        match self.inode(ROOT_INO) {
            Ok(root) if root.kind() == Kind::Dir => Ok(()),
            Ok(_) => Err(damaged("its inode is of another kind".into())),
            Err(error @ (Error::Stale | Error::Corrupt { .. })) => Err(damaged(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn assemble(
        (mut store, inodes): (Store, Inodes),
        journal: Journal,
        journal_blocks: &[DiskBlock],
        found: Identity,
    ) -> Result<Ext4> {
        let features = store.geometry.features;
        if !store.read_only {
            journal.choose_format(features.csum(), features.bits64())?;
        }
        let capacity = journal.capacity() as usize;
        store.buffers.set_journal(Arc::new(journal));
        store.space.read(&store.buffers, journal_blocks)?;
        let (place, _) = store.geometry.super_place();
        let super_block = store.buffers.read_device(place.0, 1)?.to_vec();
        let backup = if store.read_only { None } else { Backup::read(&store) };
        Ok(Ext4 {
            inodes,
            store,
            orphans: FxHashMap::default(),
            adopted: Vec::new(),
            pending: VecDeque::new(),
            super_block,
            backup,
            found,
            capacity,
            super_dirty: false,
            unmarked: false,
        })
    }

    /// Opened lazily, and nothing was written since.
    pub fn is_unmarked(&self) -> bool {
        self.unmarked
    }

    /// Marks a file system that was opened lazily as in use: something is about to change.
    ///
    /// # Errors
    /// What the device says.
    pub fn mark_in_use(&mut self, now: Stamp) -> Result<()> {
        if !self.unmarked {
            return Ok(());
        }
        // What changed in memory since goes with its transaction; there were no orphans to adopt.
        let as_found = read_super(self.store.buffers.device())?;
        let changed = std::mem::replace(&mut self.store.sb, as_found);
        self.store.sb.set_needs_recovery(true);
        let now = self.note_time(now);
        let written = self.write_super(now);
        self.store.sb = changed;
        self.store.sb.set_needs_recovery(true);
        written?;
        self.unmarked = false;
        Ok(())
    }

    fn begin_writing(&mut self, now: Stamp) -> Result<()> {
        let now = self.note_time(now);
        self.store.sb.set_needs_recovery(true);
        self.write_super(now)?;
        self.adopt_orphans()
    }

    /// The identity of the file system on `disk`, read without opening it: what [`Ext4::identity_found`] would say.
    ///
    /// # Errors
    /// As [`Ext4::open`], as far as the superblock alone shows.
    pub fn peek(disk: &dyn BlockDevice) -> Result<Identity> {
        read_super(disk).map(|sb| Identity::of(&sb))
    }

    /// What the superblock says as it stands, and whether its checksum holds. The journal, which may have a later one, is not
    /// looked at: one small read, of a file system in use, too.
    ///
    /// # Errors
    /// As [`Ext4::peek`].
    pub fn look_at_super(disk: &dyn BlockDevice) -> Result<(Look, bool)> {
        let sb = read_super(disk)?;
        Ok((Look { identity: Identity::of(&sb), pairing: sb.pairing(), journal_end: None }, sb.sound))
    }

    /// Whether there is the magic number of an ext4, whatever is with it; `false` if it cannot be read.
    pub fn is_one(disk: &dyn BlockDevice) -> bool {
        read_raw(disk).is_ok_and(|raw| has_magic(&raw))
    }

    /// The superblock's identity before this mount.
    pub fn identity_found(&self) -> Identity {
        self.found
    }

    /// The superblock's identity now.
    pub fn identity(&self) -> Identity {
        Identity::of(&self.store.sb)
    }
}

fn read_super(disk: &dyn BlockDevice) -> Result<Superblock> {
    let info = disk.info();
    let sb = Superblock::read(&read_raw(disk)?, info.size_bytes, &info.name)?;
    let (block, sector) = (1_u32 << sb.geometry.block_bits, info.block_bytes);
    if !block.is_multiple_of(sector) {
        return Err(Error::Unsupported {
            what: format!(
                "an ext4 with blocks of {block} bytes on {}, whose sectors have {sector}",
                info.name
            ),
            why: "copy it to a device with smaller sectors".into(),
        });
    }
    Ok(sb)
}

fn read_raw(disk: &dyn BlockDevice) -> Result<Bytes> {
    let info = disk.info();
    if info.size_bytes < SUPER_OFFSET + SUPER_BYTES as u64 {
        return Err(Error::corrupt("the ext4 superblock", "the device is too small for it", &info.name));
    }
    read_superblock_at(disk, SUPER_OFFSET)
}

/// The bytes of a superblock, which may be a part of a block of the device.
pub(super) fn read_superblock_at(disk: &dyn BlockDevice, place: u64) -> Result<Bytes> {
    let block = u64::from(disk.info().block_bytes);
    let (first, end) = (place / block * block, (place + SUPER_BYTES as u64).next_multiple_of(block));
    let within = (place - first) as usize;
    Ok(disk.read(first, (end - first) as usize)?.slice(within..within + SUPER_BYTES))
}

/// Finds and loads the journal with nothing but the superblock: all else may have to be replayed first.
/// The answer has its blocks, too.
fn load_journal(disk: &Arc<dyn BlockDevice>, sb: &Superblock) -> Result<(Journal, Vec<DiskBlock>)> {
    let (journal, blocks) = find_journal(disk, sb, Whose::Inode)?;
    if journal.was_aborted() {
        // The kernel would copy the mark to the superblock at its next mount, where `check_state` looks for it.
        let why = "its last user stopped at an error, and what it had in memory is lost; run e2fsck";
        return Err(Error::corrupt("the journal", why, &disk.info().name));
    }
    Ok((journal, blocks))
}

/// Who says where the journal is.
#[derive(Clone, Copy)]
enum Whose {
    /// Its inode.
    Inode,
    /// The superblock, which has a copy of what the inode maps.
    Superblock,
}

fn find_journal(
    disk: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    whose: Whose,
) -> Result<(Journal, Vec<DiskBlock>)> {
    let geometry = &sb.geometry;
    let ino = geometry.journal_ino;
    if ino.0 == 0 || ino.0 > u64::from(geometry.inodes) {
        return Err(Error::corrupt(
            "the ext4 superblock",
            format!("the journal is inode {ino}"),
            &disk.info().name,
        ));
    }
    let mut store = Store::new(Arc::clone(disk), sb.clone(), CacheLimits::default(), true);
    let mut inode = match whose {
        Whose::Inode => {
            let (group, _) = geometry.group_of_inode(ino);
            store.space.read_one(&store.buffers, group)?;
            store.read_inode(ino)?
        }
        Whose::Superblock => Inode::journal(ino, sb)?,
    };
    if inode.size >> geometry.block_bits > JOURNAL_BLOCKS_MAX {
        return Err(Error::corrupt("the journal", "its size makes no sense", format!("inode {ino}")));
    }
    let blocks = store.blocks_of(&mut inode, "the journal")?;
    let blocks: Vec<DiskBlock> = blocks.into_iter().map(DiskBlock).collect();
    let journal = Journal::load(Arc::clone(disk), geometry.block_bytes, blocks.clone())?;
    Ok((journal, blocks))
}
