//! The ext4 superblock: read, checked, and kept as its 1024 raw bytes so that no field we do not know is
//! lost; and [`Geometry`], everything that follows from it and does not change while it is open.
//!
//! Source: `Documentation/filesystems/ext4/super.rst` of Linux (offsets and checksum), and the checks the
//! kernel makes at mount time. The last 56 bytes of `s_reserved` (0x3C4..0x3FC), which Linux and
//! e2fsprogs leave alone, hold an opaque area of the caller: the *pairing*.

use super::features::{self, compat, incompat, ro_compat};
use super::inode::BODY_BYTES;
use super::le::{get16, get32, put16, put32, put64};
use super::torn_safe::TornSafeChecksum;
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::time::Stamp;
use bimetal_base::units::{DiskBlock, Ino, show_size};
use bimetal_base::{Error, Result};
use std::ops::Range;

/// Where the superblock lies on the device, bytes.
pub(super) const SUPER_OFFSET: u64 = 1024;
/// How long it is, bytes.
pub(super) const SUPER_BYTES: usize = 1024;
/// Length of the caller's opaque area in the superblock, bytes.
pub const PAIRING_BYTES: usize = 56;
/// The root directory.
pub const ROOT_INO: Ino = Ino(2);

/// Where that is in the superblock.
pub(super) const PAIRING: Range<usize> = 0x3C4..0x3FC;
/// What the first copy shares with the primary at all times: mount time, mount count, check time (low and high parts), and
/// the caller's area.
const CARRIED: [Range<usize>; 6] = [0x2C..0x30, 0x34..0x36, 0x40..0x44, 0x275..0x276, 0x277..0x278, PAIRING];
/// Where the superblock's checksum is.
pub(super) const CHECKSUM: usize = 0x3FC;
const MAGIC: u16 = 0xEF53;
const STATE_CLEAN: u16 = 1;
const STATE_ERRORS: u16 = 2;
const CRC32C: u8 = 1;
/// Where the copy of what the journal's inode maps is, and what kind of copy that is.
const JOURNAL_COPY: usize = 0x10C;
const JOURNAL_COPY_KIND: usize = 0xFD;
/// Bytes of an inode every revision has.
pub(super) const OLD_INODE_BYTES: u32 = 128;

/// What never changes while a file system is open.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    /// Bytes of a block: 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Base-2 logarithm of `block_bytes`.
    pub block_bits: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// The block that holds the superblock: 1 with 1 KiB blocks, else 0.
    pub first_data_block: u64,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Inodes in all.
    pub inodes: u32,
    /// Bytes of an inode on disk.
    pub inode_bytes: u32,
    /// Bytes of a group descriptor on disk.
    pub desc_bytes: u32,
    /// Groups.
    pub groups: u32,
    /// First inode number for ordinary use.
    pub first_ino: u32,
    /// Base-2 logarithm of the groups that keep their tables together.
    pub flex_bits: u32,
    /// Blocks kept for root.
    pub root_blocks: u64,
    /// Bytes new inodes use beyond the first 128.
    pub extra_isize: u32,
    /// Every metadata checksum starts from it.
    pub seed: u32,
    /// Feature words as they were at open.
    pub features: Features,
    /// Where the block group descriptors and backups lie.
    pub backups: Backups,
    /// Identity.
    pub uuid: [u8; 16],
    /// For the directory hash.
    pub hash_seed: [u32; 4],
    /// Default directory hash version.
    pub hash_version: u8,
    /// Characters were signed on the machine that made the hashes.
    pub hash_unsigned: bool,
    /// The journal's inode.
    pub journal_ino: Ino,
    /// The orphan file's inode, with that feature.
    pub orphan_ino: Option<Ino>,
}

/// The feature words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub compat: u32,
    pub incompat: u32,
    pub ro_compat: u32,
}

impl Features {
    /// All metadata carries CRC-32C.
    pub fn csum(&self) -> bool {
        self.ro_compat & ro_compat::METADATA_CSUM != 0
    }
    /// Group descriptors carry a checksum, and groups may be uninitialised.
    pub fn desc_csum(&self) -> bool {
        self.ro_compat & (ro_compat::METADATA_CSUM | ro_compat::GDT_CSUM) != 0
    }
    /// Descriptors have 64 bytes and block numbers 48 bits.
    pub fn bits64(&self) -> bool {
        self.incompat & incompat::BITS64 != 0
    }
    /// Inodes may map blocks by extents.
    pub fn extents(&self) -> bool {
        self.incompat & incompat::EXTENTS != 0
    }
    /// Block counts of inodes may pass 32 bits.
    pub fn huge_file(&self) -> bool {
        self.ro_compat & ro_compat::HUGE_FILE != 0
    }
    /// Directories may have more than 65 000 subdirectories.
    pub fn dir_nlink(&self) -> bool {
        self.ro_compat & ro_compat::DIR_NLINK != 0
    }
    /// Directories may be indexed.
    pub fn dir_index(&self) -> bool {
        self.compat & compat::DIR_INDEX != 0
    }
    /// Directory entries carry file types.
    pub fn filetype(&self) -> bool {
        self.incompat & incompat::FILETYPE != 0
    }
    /// Directory indexes may have three levels.
    pub fn large_dir(&self) -> bool {
        self.incompat & incompat::LARGEDIR != 0
    }
}

/// Which groups hold copies of the superblock and descriptors, and how many blocks those take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backups {
    sparse: bool,
    sparse2: Option<[u32; 2]>,
    first_meta_group: Option<u32>,
    table_blocks: u32,
    reserved_blocks: u32,
}

impl Backups {
    fn read(raw: &[u8], features: Features, table_blocks: u32) -> Backups {
        let has = |word: u32, bit: u32| word & bit != 0;
        let sparse2 = has(features.compat, compat::SPARSE_SUPER2);
        Backups {
            sparse: has(features.ro_compat, ro_compat::SPARSE_SUPER),
            sparse2: sparse2.then(|| [get32(raw, 0x24C), get32(raw, 0x250)]),
            first_meta_group: has(features.incompat, incompat::META_BG)
                .then(|| get32(raw, 0x104).min(table_blocks)),
            table_blocks,
            reserved_blocks: u32::from(get16(raw, 0xCE)),
        }
    }

    /// Whether `group` starts with the superblock or a copy of it.
    pub fn has_super(&self, group: u32) -> bool {
        let power_of = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        match (group, self.sparse2) {
            (0, _) => true,
            (_, Some(copies)) => copies.contains(&group),
            (1, None) => true,
            _ if !self.sparse => true,
            _ => group % 2 == 1 && (power_of(3) || power_of(5) || power_of(7)),
        }
    }
}

impl Geometry {
    /// Reads and checks everything that has to hold before any other block can be interpreted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for senseless values, [`Error::Unsupported`] for what is not driven.
    fn read(raw: &[u8], device_bytes: u64, device: &str) -> Result<Geometry> {
        let bad = |why: String| Error::corrupt("the ext4 superblock", why, device);
        if get16(raw, 0x38) != MAGIC {
            return Err(bad(format!("magic {:#x} instead of {MAGIC:#x}", get16(raw, 0x38))));
        }
        let dynamic = get32(raw, 0x4C) >= 1;
        let word = |at: usize| if dynamic { get32(raw, at) } else { 0 };
        let features = Features { compat: word(0x5C), incompat: word(0x60), ro_compat: word(0x64) };
        features::check(features.compat, features.incompat, features.ro_compat)?;
        if features.csum() && raw[0x175] != CRC32C {
            return Err(Error::unsupported(
                format!("ext4 checksum type {}", raw[0x175]),
                "only CRC-32C is known",
            ));
        }
        let block_bits = get32(raw, 0x18).saturating_add(10);
        if block_bits > 12 {
            return Err(Error::unsupported(
                format!("ext4 with blocks of 2^{block_bits} bytes"),
                "blocks of 1, 2 or 4 KiB are driven",
            ));
        }
        let mut geometry = Geometry::counts(raw, block_bits, features).map_err(bad)?;
        geometry.check_counts(raw, device_bytes).map_err(bad)?;
        let table = u64::from(geometry.groups) * u64::from(geometry.desc_bytes);
        geometry.backups =
            Backups::read(raw, features, table.div_ceil(u64::from(geometry.block_bytes)) as u32);
        if geometry.backups.reserved_blocks > geometry.block_bytes / 4 {
            return Err(bad(format!("{} reserved descriptor blocks", geometry.backups.reserved_blocks)));
        }
        Ok(geometry)
    }

    /// The numbers as they stand in the superblock.
    fn counts(raw: &[u8], block_bits: u32, features: Features) -> Result<Geometry, String> {
        let high = |at: usize| if features.bits64() { u64::from(get32(raw, at)) << 32 } else { 0 };
        let dynamic = get32(raw, 0x4C) >= 1;
        let uuid: [u8; 16] = std::array::from_fn(|i| raw[0x68 + i]);
        let stored_seed = features.incompat & incompat::CSUM_SEED != 0;
        let inode_bytes = if dynamic { u32::from(get16(raw, 0x58)) } else { OLD_INODE_BYTES };
        let want = u32::from(get16(raw, 0x15E)).max(u32::from(get16(raw, 0x15C)));
        let has_extra = features.ro_compat & ro_compat::EXTRA_ISIZE != 0;
        let room = inode_bytes.saturating_sub(OLD_INODE_BYTES);
        let extra_isize = if has_extra && want <= room { want.max(32).min(room) } else { room.min(32) };
        let has_orphans = features.compat & compat::ORPHAN_FILE != 0;
        let flex = features.incompat & incompat::FLEX_BG != 0 && raw[0x174] < 32;
        Ok(Geometry {
            block_bytes: 1 << block_bits,
            block_bits,
            blocks: u64::from(get32(raw, 0x04)) | high(0x150),
            first_data_block: u64::from(get32(raw, 0x14)),
            blocks_per_group: get32(raw, 0x20),
            inodes_per_group: get32(raw, 0x28),
            inodes: get32(raw, 0x00),
            inode_bytes,
            desc_bytes: if features.bits64() { u32::from(get16(raw, 0xFE)) } else { 32 },
            groups: 0,
            first_ino: if dynamic { get32(raw, 0x54) } else { 11 },
            flex_bits: if flex { u32::from(raw[0x174]) } else { 0 },
            root_blocks: u64::from(get32(raw, 0x08)) | high(0x154),
            extra_isize: extra_isize & !3,
            seed: if stored_seed { get32(raw, 0x270) } else { crc32c_raw(!0, &uuid) },
            features,
            backups: Backups::read(raw, features, 0),
            uuid,
            hash_seed: std::array::from_fn(|i| get32(raw, 0xEC + 4 * i)),
            hash_version: raw[0xFC],
            hash_unsigned: get32(raw, 0x160) & 2 != 0,
            journal_ino: Ino(u64::from(get32(raw, 0xE0))),
            orphan_ino: has_orphans.then(|| Ino(u64::from(get32(raw, 0x280)))),
        })
    }

    /// Checks the numbers against each other and the device, and fills in the number of groups.
    fn check_counts(&mut self, raw: &[u8], device_bytes: u64) -> Result<(), String> {
        let bits = 8 * self.block_bytes;
        let rules = [
            (self.first_data_block == u64::from(self.block_bits == 10), "the first data block"),
            (
                self.blocks_per_group <= bits
                    && self.blocks_per_group >= 256
                    && self.blocks_per_group.is_multiple_of(8),
                "the blocks per group",
            ),
            (
                self.inode_bytes.is_power_of_two()
                    && (OLD_INODE_BYTES..=self.block_bytes.min(1024)).contains(&self.inode_bytes),
                "the inode size",
            ),
            (
                match self.features.bits64() {
                    true => self.desc_bytes.is_power_of_two() && (64..=1024).contains(&self.desc_bytes),
                    false => self.desc_bytes == 32,
                },
                "the descriptor size",
            ),
            (get32(raw, 0x1C) == get32(raw, 0x18) || get32(raw, 0x4C) == 0, "the cluster size"),
            (self.first_ino >= 11, "the first inode"),
            (self.blocks > self.first_data_block + 8 && self.blocks < 1 << 48, "the number of blocks"),
            (self.root_blocks <= self.blocks, "the number of blocks kept for root"),
        ];
        if let Some((_, what)) = rules.iter().find(|(holds, _)| !holds) {
            return Err(format!("{what} makes no sense"));
        }
        if self.blocks > device_bytes >> self.block_bits {
            return Err(format!(
                "the file system has {}, its device {}: it was cut short, or is not all of it; give it its size back (an image: \
                 truncate --size {}), with what it held there",
                show_size(self.blocks << self.block_bits),
                show_size(device_bytes),
                self.blocks << self.block_bits
            ));
        }
        let per_block = self.block_bytes / self.inode_bytes;
        let per_group = self.inodes_per_group;
        let whole = per_group.is_multiple_of(8) && per_group.is_multiple_of(per_block);
        if per_group < per_block || per_group > bits || !whole {
            return Err(format!("{per_group} inodes per group"));
        }
        let groups = (self.blocks - self.first_data_block).div_ceil(u64::from(self.blocks_per_group));
        if groups.checked_mul(u64::from(per_group)) != Some(u64::from(self.inodes)) {
            return Err(format!("{} inodes in {groups} groups of {per_group}", self.inodes));
        }
        if self.first_ino > self.inodes {
            return Err("the first inode is past the last".into());
        }
        self.groups = groups as u32;
        Ok(())
    }

    /// First block of a group.
    pub fn group_start(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group (the last may be shorter).
    pub fn group_blocks(&self, group: u32) -> u32 {
        (self.blocks - self.group_start(group)).min(u64::from(self.blocks_per_group)) as u32
    }

    /// The group of a block and the block's place in it.
    pub fn group_of(&self, block: u64) -> (u32, u32) {
        let from = block.saturating_sub(self.first_data_block);
        let per = u64::from(self.blocks_per_group);
        ((from / per) as u32, (from % per) as u32)
    }

    /// The group of an inode and the inode's place in it.
    pub fn group_of_inode(&self, ino: Ino) -> (u32, u32) {
        let from = (ino.0 as u32).saturating_sub(1);
        (from / self.inodes_per_group, from % self.inodes_per_group)
    }

    /// Blocks of a group's inode table.
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group / (self.block_bytes / self.inode_bytes)
    }

    /// Descriptors in one block.
    pub fn descs_per_block(&self) -> u32 {
        self.block_bytes / self.desc_bytes
    }

    /// Where the `index`-th block of the descriptor table lies.
    pub fn desc_block(&self, index: u32) -> u64 {
        match self.backups.first_meta_group {
            Some(first) if index >= first => {
                let group = index * self.descs_per_block();
                self.group_start(group) + u64::from(self.backups.has_super(group))
            }
            _ => self.first_data_block + 1 + u64::from(index),
        }
    }

    /// Blocks of the descriptor table.
    pub fn desc_blocks(&self) -> u32 {
        self.backups.table_blocks
    }

    /// Blocks at the start of a group taken by the superblock, the descriptors and their copies.
    pub fn head_blocks(&self, group: u32) -> u32 {
        let own = u32::from(self.backups.has_super(group));
        let per = self.descs_per_block();
        match self.backups.first_meta_group {
            Some(first) if group / per >= first => {
                own + u32::from(matches!(group % per, 0 | 1) || group % per == per - 1)
            }
            first if own == 1 => {
                own + first.unwrap_or(self.backups.table_blocks) + self.backups.reserved_blocks
            }
            _ => 0,
        }
    }

    /// Whether an inode number is one a name may stand for.
    pub fn is_ordinary(&self, ino: Ino) -> bool {
        let special = ino == self.journal_ino || Some(ino) == self.orphan_ino;
        (ino == ROOT_INO || ino.0 >= u64::from(self.first_ino)) && ino.0 <= u64::from(self.inodes) && !special
    }

    /// The first group with a copy of the superblock, if there is one: where e2fsck looks if the primary is damaged.
    pub fn first_backup(&self) -> Option<u32> {
        let first = match self.backups.sparse2 {
            Some(copies) => copies.into_iter().filter(|group| *group > 0).min()?,
            None => 1,
        };
        (first < self.groups).then_some(first)
    }

    /// The block of the superblock and the superblock's offset in it.
    pub fn super_place(&self) -> (DiskBlock, usize) {
        if self.block_bits == 10 { (DiskBlock(1), 0) } else { (DiskBlock(0), SUPER_OFFSET as usize) }
    }
}

/// The superblock: its bytes, and what follows from them.
#[derive(Clone)]
pub(super) struct Superblock {
    raw: Box<[u8]>,
    pub geometry: Geometry,
    steady: TornSafeChecksum,
    /// Its checksum held when it was read.
    pub sound: bool,
}

/// Whether the checksum of a superblock holds, if it has one. Where the feature word says that it has none, a flipped bit may
/// have made it say so: the checksum tells, as it holds with that bit set.
pub(super) fn is_sound(raw: &[u8]) -> bool {
    let holds = |raw: &[u8]| crc32c_raw(!0, &raw[..CHECKSUM]) == get32(raw, CHECKSUM);
    let features = get32(raw, 0x64);
    if features & ro_compat::METADATA_CSUM != 0 {
        return holds(raw);
    }
    let mut with_bit = raw.to_vec();
    put32(&mut with_bit, 0x64, features | ro_compat::METADATA_CSUM);
    raw[0x175] != CRC32C || !holds(&with_bit)
}

/// Whether these bytes have the magic number of a superblock.
pub(super) fn has_magic(raw: &[u8]) -> bool {
    get16(raw, 0x38) == MAGIC
}

fn damaged(device: &str) -> Error {
    Error::corrupt("the ext4 file system", "the superblock's checksum is wrong; run e2fsck", device)
}

impl Superblock {
    /// Interprets the 1024 bytes read from a device of `device_bytes`. A wrong checksum is only noted, in
    /// `sound`: a torn superblock is healed by the journal.
    ///
    /// # Errors
    /// As [`Geometry::read`].
    pub fn read(raw: &[u8], device_bytes: u64, device: &str) -> Result<Superblock> {
        let geometry = Geometry::read(raw, device_bytes, device).map_err(|error| {
            let is_damaged = get16(raw, 0x38) == MAGIC && !is_sound(raw);
            if is_damaged { damaged(device) } else { error }
        })?;
        Ok(Superblock { raw: raw.into(), geometry, steady: TornSafeChecksum::new(raw), sound: is_sound(raw) })
    }

    /// An error met while going by this superblock: what a damaged one says is not to be believed, its features least of all.
    pub fn doubted(&self, error: Error, device: &str) -> Error {
        match error {
            Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Invalid(_) | Error::ReadOnly
                if !self.sound =>
            {
                damaged(device)
            }
            other => other,
        }
    }

    /// Refuses what must be repaired first.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a wrong checksum, recorded errors, or an unclean file system without journal.
    pub fn check_state(&self, device: &str) -> Result<()> {
        let state = get16(&self.raw, 0x3A);
        let bad = |why: &str| Err(Error::corrupt("the ext4 file system", why, device));
        if !self.sound {
            return Err(damaged(device));
        }
        if state & STATE_ERRORS != 0 {
            return bad("it is marked as having errors; run e2fsck");
        }
        if self.geometry.features.compat & compat::HAS_JOURNAL == 0 {
            if state & STATE_CLEAN == 0 {
                return bad("it was not unmounted and has no journal; run e2fsck");
            }
            return Err(Error::unsupported("ext4 without a journal", "run `tune2fs -O has_journal` first"));
        }
        if get32(&self.raw, 0xE4) != 0 || self.geometry.journal_ino.0 == 0 {
            return Err(Error::unsupported("an external ext4 journal", "run `tune2fs -O has_journal` again"));
        }
        Ok(())
    }

    /// The bytes to store, checksum included.
    pub fn seal(&mut self) -> &[u8] {
        if self.geometry.features.csum() {
            self.steady.settle(&mut self.raw);
            let sum = crc32c_raw(!0, &self.raw[..CHECKSUM]);
            put32(&mut self.raw, CHECKSUM, sum);
        }
        &self.raw
    }

    /// Whether the journal has to be replayed.
    pub fn needs_recovery(&self) -> bool {
        get32(&self.raw, 0x60) & incompat::RECOVER != 0
    }

    /// Marks the journal as in use, or not.
    pub fn set_needs_recovery(&mut self, on: bool) {
        self.set_bit(0x60, incompat::RECOVER, on);
    }

    /// Whether a kernel left inodes in the orphan file.
    pub fn orphan_present(&self) -> bool {
        get32(&self.raw, 0x64) & ro_compat::ORPHAN_PRESENT != 0
    }

    /// The orphan file is empty.
    pub fn clear_orphan_present(&mut self) {
        self.set_bit(0x64, ro_compat::ORPHAN_PRESENT, false);
    }

    /// Whether the image is never to be written.
    pub fn forbids_writing(&self) -> bool {
        get32(&self.raw, 0x64) & ro_compat::READONLY != 0
    }

    /// Notes that there are extended attributes.
    pub fn set_ext_attr(&mut self) {
        self.set_bit(0x5C, compat::EXT_ATTR, true);
    }

    /// Notes that there is a file of 2 GiB or more.
    pub fn set_large_file(&mut self) {
        self.set_bit(0x64, ro_compat::LARGE_FILE, true);
    }

    fn set_bit(&mut self, at: usize, bit: u32, on: bool) {
        let word = get32(&self.raw, at);
        put32(&mut self.raw, at, if on { word | bit } else { word & !bit });
    }

    /// Marks the file system as cleanly unmounted.
    pub fn set_clean(&mut self) {
        let state = get16(&self.raw, 0x3A);
        put16(&mut self.raw, 0x3A, state | STATE_CLEAN);
    }

    /// Head of the list of orphaned inodes; 0 ends it.
    pub fn last_orphan(&self) -> u32 {
        get32(&self.raw, 0xE8)
    }

    /// Sets the head of the orphan list.
    pub fn set_last_orphan(&mut self, ino: u32) {
        put32(&mut self.raw, 0xE8, ino);
    }

    /// Stores the counts of free blocks and inodes.
    pub fn set_free(&mut self, blocks: u64, inodes: u32) {
        put32(&mut self.raw, 0x0C, blocks as u32);
        if self.geometry.features.bits64() {
            put32(&mut self.raw, 0x158, (blocks >> 32) as u32);
        }
        put32(&mut self.raw, 0x10, inodes);
    }

    /// Adds to the lifetime count of KiB written.
    pub fn add_written(&mut self, kib: u64) {
        let sum = super::le::get64(&self.raw, 0x178).wrapping_add(kib);
        put64(&mut self.raw, 0x178, sum);
    }

    /// How often it was mounted.
    pub fn mount_count(&self) -> u16 {
        get16(&self.raw, 0x34)
    }

    /// When it was last mounted, seconds since the epoch.
    pub fn mount_time(&self) -> u64 {
        self.time(0x2C, 0x275)
    }

    /// When it was last written, seconds since the epoch.
    pub fn write_time(&self) -> u64 {
        self.time(0x30, 0x274)
    }

    /// When it was last checked, seconds since the epoch.
    pub fn check_time(&self) -> u64 {
        self.time(0x40, 0x277)
    }

    /// When it was made, seconds since the epoch.
    pub fn made_time(&self) -> u64 {
        self.time(0x108, 0x276)
    }

    /// Puts another pairing into a sealed copy of a superblock.
    pub fn refresh_pairing(&self, raw: &mut [u8], pairing: &[u8; PAIRING_BYTES]) {
        raw[PAIRING].copy_from_slice(pairing);
        if self.geometry.features.csum() {
            self.steady.settle(raw);
            let sum = crc32c_raw(!0, &raw[..CHECKSUM]);
            put32(raw, CHECKSUM, sum);
        }
    }

    /// Notes a write at `now`.
    pub fn note_write(&mut self, now: Stamp) {
        self.set_time(0x30, 0x274, now);
    }

    fn time(&self, low: usize, high: usize) -> u64 {
        u64::from(get32(&self.raw, low)) | u64::from(self.raw[high]) << 32
    }

    fn set_time(&mut self, low: usize, high: usize, now: Stamp) {
        let sec = now.sec.clamp(0, (1 << 40) - 1) as u64;
        put32(&mut self.raw, low, sec as u32);
        self.raw[high] = (sec >> 32) as u8;
    }

    /// The caller's opaque area; `None` if it is all zeros (never written).
    pub fn pairing(&self) -> Option<[u8; PAIRING_BYTES]> {
        let pairing: [u8; PAIRING_BYTES] = std::array::from_fn(|i| self.raw[PAIRING.start + i]);
        (pairing != [0; PAIRING_BYTES]).then_some(pairing)
    }

    /// Brings a copy of the superblock up to what this one says of its caller, and of mounts and checks.
    pub fn carry_to(&self, copy: &mut [u8]) {
        for range in CARRIED {
            copy[range.clone()].copy_from_slice(&self.raw[range]);
        }
    }

    /// What the journal's inode maps and its size, bytes, as the copy kept here says, if there is one (`s_jnl_blocks`).
    pub fn journal_map(&self) -> Option<(&[u8], u64)> {
        let copy = &self.raw[JOURNAL_COPY..JOURNAL_COPY + BODY_BYTES + 8];
        let (map, size) = copy.split_at(BODY_BYTES);
        let size = u64::from(get32(size, 0)) << 32 | u64::from(get32(size, 4));
        (self.raw[JOURNAL_COPY_KIND] == 1).then_some((map, size))
    }

    /// Replaces the caller's opaque area.
    pub fn set_pairing(&mut self, pairing: &[u8; PAIRING_BYTES]) {
        self.raw[PAIRING].copy_from_slice(pairing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backups(sparse: bool, sparse2: Option<[u32; 2]>) -> Backups {
        Backups { sparse, sparse2, first_meta_group: None, table_blocks: 1, reserved_blocks: 0 }
    }

    #[test]
    fn backups_lie_in_groups_that_are_powers_of_three_five_and_seven() {
        let all = backups(true, None);
        let with: Vec<u32> = (0..130).filter(|group| all.has_super(*group)).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
        assert!(backups(false, None).has_super(6));
        let two = backups(true, Some([1, 77]));
        assert_eq!((0..130).filter(|group| two.has_super(*group)).collect::<Vec<_>>(), [0, 1, 77]);
        assert!(!all.has_super(u32::MAX - 1));
    }

    #[test]
    fn a_flipped_bit_that_hides_the_checksum_is_damage_and_a_checksum_that_was_turned_off_is_not() {
        let mut raw = vec![0x5A_u8; SUPER_BYTES];
        raw[0x175] = CRC32C;
        put32(&mut raw, 0x64, ro_compat::METADATA_CSUM | ro_compat::SPARSE_SUPER);
        let sum = crc32c_raw(!0, &raw[..CHECKSUM]);
        put32(&mut raw, CHECKSUM, sum);
        assert!(is_sound(&raw));
        for bit in 0..SUPER_BYTES * 8 {
            raw[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sound(&raw), "bit {bit}");
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        put32(&mut raw, 0x64, ro_compat::SPARSE_SUPER);
        assert!(!is_sound(&raw));
        raw[0x30] ^= 1;
        assert!(is_sound(&raw), "e2fsck wrote it after the feature was gone");
    }

    #[test]
    fn noise_is_never_a_superblock_and_never_a_panic() {
        let mut raw = vec![0xA5_u8; SUPER_BYTES];
        assert!(Superblock::read(&raw, 1 << 30, "noise").is_err());
        put16(&mut raw, 0x38, MAGIC);
        assert!(Superblock::read(&raw, 1 << 30, "noise").is_err());
    }
}
