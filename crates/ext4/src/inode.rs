//! Inodes: the fields of `stat`, kept as numbers while cached, and their on-disk form.
//!
//! Source: `Documentation/filesystems/ext4/inodes.rst` of Linux. Times beyond 128-byte inodes have 34 bits
//! of seconds and nanoseconds; without that room, 32 bits of seconds. The 60 bytes of `i_block` are kept
//! as they are and interpreted (as extents, block pointers, a link's target, a device number) when asked.

use super::extent_disk;
use super::extents::Extents;
use super::le::{get16, get32, high16, low16, put16, put32};
use super::superblock::{Geometry, OLD_INODE_BYTES, Superblock};
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::Kind;

/// Bits of [`Inode::flags`] with a meaning here.
pub mod flag {
    /// Every write is to be synchronous.
    pub const SYNC: u32 = 0x8;
    /// Nothing about the inode may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// The file may only be appended to.
    pub const APPEND: u32 = 0x20;
    /// Backup programs skip it.
    pub const NODUMP: u32 = 0x40;
    /// Reading does not change the access time.
    pub const NOATIME: u32 = 0x80;
    /// The directory has a hash index.
    pub const INDEX: u32 = 0x1000;
    /// Contents go through the journal.
    pub const JOURNAL_DATA: u32 = 0x4000;
    /// Changes of the directory are to be synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// Subdirectories are spread over the device.
    pub const TOPDIR: u32 = 0x2_0000;
    /// The block count is in blocks, not in 512 bytes.
    pub const HUGE_FILE: u32 = 0x4_0000;
    /// Blocks are mapped by extents.
    pub const EXTENTS: u32 = 0x8_0000;
}

/// Flags of formats that are refused as features already.
const FOREIGN: [(u32, &str); 5] = [
    (0x800, "encrypted"),
    (0x10_0000, "sealed by verity"),
    (0x20_0000, "an attribute value"),
    (0x1000_0000, "stored inline"),
    (0x4000_0000, "a directory without case"),
];

/// Bytes of `i_block`.
pub(super) const BODY_BYTES: usize = 60;
const FILE_TYPE: u16 = 0xF000;
const CHECKSUM_LOW: usize = 0x7C;
const CHECKSUM_HIGH: usize = 0x82;

/// An inode in memory.
#[derive(Clone, Debug)]
pub struct Inode {
    /// File type and permission bits, as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Names; for directories, 1 stands for "too many to count".
    pub nlink: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of contents.
    pub mtime: Stamp,
    /// Last change of the inode.
    pub ctime: Stamp,
    /// Creation; zero if the inode has no room for it.
    pub crtime: Stamp,
    /// Bits of [`flag`] and others, kept as they are.
    pub flags: u32,
    /// Distinguishes two uses of one number. Fixed when the inode is made: checksums depend on it.
    pub generation: u32,
    /// Device number of a device file, as `makedev` encodes it.
    pub rdev: u32,
    /// Space taken, in units of 512 bytes, metadata blocks included.
    pub blocks: u64,
    /// When it was deleted, seconds; on the orphan list, the number of the next orphan.
    pub dtime: u32,
    pub(super) ino: Ino,
    pub(super) body: [u8; BODY_BYTES],
    /// The interpreted `body` of an inode with extents, once it was needed.
    pub(super) tree: Option<Extents>,
    /// `tree` differs from `body`.
    pub(super) tree_changed: bool,
    /// Blocks of the block map `tree` was read from, of an inode without extents.
    pub(super) legacy: Vec<u64>,
    /// Block of extended attributes, or 0.
    pub(super) attr_block: u64,
    /// Bytes in use beyond the first 128.
    pub(super) extra_isize: u32,
    /// There are extended attributes inside the inode.
    pub(super) inner_attrs: bool,
    /// Its checksums start from it.
    pub(super) seed: u32,
}

/// What `mode` says an inode is.
pub(super) fn kind_of_mode(mode: u16) -> Option<Kind> {
    Some(match mode & FILE_TYPE {
        0x1000 => Kind::Fifo,
        0x2000 => Kind::CharDevice,
        0x4000 => Kind::Dir,
        0x6000 => Kind::BlockDevice,
        0x8000 => Kind::File,
        0xA000 => Kind::Symlink,
        0xC000 => Kind::Socket,
        _ => return None,
    })
}

/// The mode of an object of this kind with these permission bits.
pub(super) fn mode_of(kind: Kind, perm: u16) -> u16 {
    let high = match kind {
        Kind::Fifo => 0x1000,
        Kind::CharDevice => 0x2000,
        Kind::Dir => 0x4000,
        Kind::BlockDevice => 0x6000,
        Kind::File => 0x8000,
        Kind::Symlink => 0xA000,
        Kind::Socket => 0xC000,
    };
    high | perm & 0o7777
}

/// The checksum seed of everything that belongs to an inode.
pub(super) fn inode_seed(fs_seed: u32, ino: Ino, generation: u32) -> u32 {
    crc32c_raw(crc32c_raw(fs_seed, &(ino.0 as u32).to_le_bytes()), &generation.to_le_bytes())
}

/// The checksum of a raw inode; the flag says whether it has room for the upper half.
fn checksum(raw: &[u8], seed: u32) -> (u32, bool) {
    let wide = raw.len() > OLD_INODE_BYTES as usize && get16(raw, 0x80) >= 4;
    let crc = crc32c_raw(crc32c_raw(seed, &raw[..CHECKSUM_LOW]), &[0, 0]);
    let crc = if wide {
        let crc = crc32c_raw(crc32c_raw(crc, &raw[CHECKSUM_LOW + 2..CHECKSUM_HIGH]), &[0, 0]);
        crc32c_raw(crc, &raw[CHECKSUM_HIGH + 2..])
    } else {
        crc32c_raw(crc, &raw[CHECKSUM_LOW + 2..])
    };
    (if wide { crc } else { crc & 0xFFFF }, wide)
}

/// Where the parts of a time lie: seconds, and the extra word.
const TIMES: [(usize, usize); 4] = [(0x8, 0x8C), (0x10, 0x88), (0xC, 0x84), (0x90, 0x94)];

impl Inode {
    /// What it is.
    pub fn kind(&self) -> Kind {
        kind_of_mode(self.mode).unwrap_or(Kind::File)
    }

    /// Its number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Permission bits with set-ID and sticky bits.
    pub fn perm(&self) -> u16 {
        self.mode & 0o7777
    }

    /// Whether it may have extended attributes at all: false answers most questions without a search.
    pub fn may_have_xattrs(&self) -> bool {
        self.inner_attrs || self.attr_block != 0
    }

    /// Whether any of the given bits is set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// A new inode with nothing in it.
    pub(super) fn new(ino: Ino, generation: u32, mode: u16, now: Stamp, geometry: &Geometry) -> Inode {
        let epoch = Stamp::default();
        Inode {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            nlink: 1,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: if geometry.extra_isize >= 24 { now } else { epoch },
            flags: 0,
            generation,
            rdev: 0,
            blocks: 0,
            dtime: 0,
            ino,
            body: [0; BODY_BYTES],
            tree: None,
            tree_changed: false,
            legacy: Vec::new(),
            attr_block: 0,
            extra_isize: geometry.extra_isize,
            inner_attrs: false,
            seed: inode_seed(geometry.seed, ino, generation),
        }
    }

    /// The journal's inode, as the superblock's copy of it says.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such copy.
    pub(super) fn journal(ino: Ino, sb: &Superblock) -> Result<Inode> {
        let Some((map, size)) = sb.journal_map() else {
            return Err(Error::corrupt(
                "the journal",
                "the superblock has no copy of its inode",
                format!("inode {ino}"),
            ));
        };
        let mode = mode_of(Kind::File, 0o600);
        let mut inode = Inode::new(ino, 0, mode, Stamp::default(), &sb.geometry);
        inode.size = size;
        inode.body.copy_from_slice(map);
        if get16(map, 0) == extent_disk::MAGIC {
            inode.flags = flag::EXTENTS;
        }
        Ok(inode)
    }

    /// Reads an inode from its slot in the inode table.
    ///
    /// # Errors
    /// [`Error::Stale`] for a slot that holds no inode, [`Error::Corrupt`] for one that makes no sense.
    pub(super) fn read(raw: &[u8], ino: Ino, geometry: &Geometry) -> Result<Inode> {
        let bad = |why: &str| Error::corrupt("an inode", why, format!("inode {ino}"));
        let mode = get16(raw, 0);
        if mode == 0 && get16(raw, 0x1A) == 0 {
            return Err(Error::Stale);
        }
        let mut inode = Inode::new(ino, get32(raw, 0x64), mode, Stamp::default(), geometry);
        if geometry.features.csum() {
            let (sum, wide) = checksum(raw, inode.seed);
            let high = if wide { u32::from(get16(raw, CHECKSUM_HIGH)) << 16 } else { 0 };
            if sum != u32::from(get16(raw, CHECKSUM_LOW)) | high {
                return Err(bad("the checksum is wrong"));
            }
        }
        inode.read_fields(raw, geometry);
        inode.check(raw, geometry).map_err(|why| bad(&why))?;
        inode.read_times(raw);
        if inode.inner_room(raw.len()) >= 4 {
            let start = OLD_INODE_BYTES as usize + inode.extra_isize as usize;
            inode.inner_attrs = get32(raw, start) == super::XATTR_MAGIC;
        }
        Ok(inode)
    }

    fn read_fields(&mut self, raw: &[u8], geometry: &Geometry) {
        let wide = |low: usize, high: usize| u32::from(get16(raw, low)) | u32::from(get16(raw, high)) << 16;
        self.uid = wide(0x02, 0x78);
        self.gid = wide(0x18, 0x7A);
        self.nlink = u32::from(get16(raw, 0x1A));
        self.dtime = get32(raw, 0x14);
        self.flags = get32(raw, 0x20);
        self.size = u64::from(get32(raw, 0x04));
        if self.has_long_size(geometry) {
            self.size |= u64::from(get32(raw, 0x6C)) << 32;
        }
        self.blocks = u64::from(get32(raw, 0x1C));
        if geometry.features.huge_file() {
            self.blocks |= u64::from(get16(raw, 0x74)) << 32;
            if self.has(flag::HUGE_FILE) {
                self.blocks = self.blocks.saturating_mul(u64::from(geometry.block_bytes / 512));
            }
        }
        self.attr_block = u64::from(get32(raw, 0x68));
        if geometry.features.bits64() {
            self.attr_block |= u64::from(get16(raw, 0x76)) << 32;
        }
        self.body.copy_from_slice(&raw[0x28..0x28 + BODY_BYTES]);
        if matches!(self.kind(), Kind::CharDevice | Kind::BlockDevice) {
            let old = get32(&self.body, 0);
            self.rdev = if old != 0 { old } else { get32(&self.body, 4) };
        }
        let inner = raw.len() > OLD_INODE_BYTES as usize;
        self.extra_isize = if inner { u32::from(get16(raw, 0x80)) } else { 0 };
    }

    /// Whether the size has 64 bits; other inodes have had another field there.
    fn has_long_size(&self, geometry: &Geometry) -> bool {
        self.kind() == Kind::File || self.kind() == Kind::Dir && geometry.features.large_dir()
    }

    fn check(&self, raw: &[u8], geometry: &Geometry) -> Result<(), String> {
        let Some(kind) = kind_of_mode(self.mode) else {
            return Err(format!("the mode is {:#o}", self.mode));
        };
        if let Some((_, what)) = FOREIGN.iter().find(|(bit, _)| self.has(*bit)) {
            return Err(format!("it claims to be {what}, a feature the file system does not have"));
        }
        let room = raw.len() as u32 - OLD_INODE_BYTES;
        if self.extra_isize > room || !self.extra_isize.is_multiple_of(4) {
            return Err(format!("{} extra bytes", self.extra_isize));
        }
        if kind == Kind::Dir && !self.size.is_multiple_of(u64::from(geometry.block_bytes)) {
            return Err(format!("a directory of {} bytes", self.size));
        }
        if self.size > geometry.size_max() {
            return Err(format!("a size of {} bytes", self.size));
        }
        if kind == Kind::Symlink && self.size >= u64::from(geometry.block_bytes) {
            return Err(format!("a symbolic link of {} bytes", self.size));
        }
        if self.attr_block != 0
            && (self.attr_block <= geometry.first_data_block || self.attr_block >= geometry.blocks)
        {
            return Err(format!("attributes in block {}", self.attr_block));
        }
        Ok(())
    }

    /// Whether the extra word at `at` is inside what this inode uses.
    fn has_extra(&self, at: usize) -> bool {
        OLD_INODE_BYTES as usize + self.extra_isize as usize >= at + 4
    }

    fn read_times(&mut self, raw: &[u8]) {
        let mut times = [Stamp::default(); 4];
        for (time, (low, extra)) in times.iter_mut().zip(TIMES) {
            if low >= 0x90 && !self.has_extra(low) {
                continue;
            }
            time.sec = i64::from(get32(raw, low) as i32);
            if self.has_extra(extra) {
                let word = get32(raw, extra);
                time.sec += i64::from(word & 3) << 32;
                time.nsec = (word >> 2).min(999_999_999);
            }
        }
        [self.atime, self.mtime, self.ctime, self.crtime] = times;
    }

    /// Bytes for extended attributes inside the inode, of an inode of `inode_bytes`.
    pub(super) fn inner_room(&self, inode_bytes: usize) -> usize {
        match self.extra_isize {
            0 => 0,
            extra => inode_bytes - OLD_INODE_BYTES as usize - extra as usize,
        }
    }

    /// Stores the inode into its slot, checksum included. `body` must be up to date.
    pub(super) fn write(&self, raw: &mut [u8], geometry: &Geometry) {
        let mut wide = |low: usize, high: usize, value: u32| {
            put16(raw, low, low16(value));
            put16(raw, high, high16(value));
        };
        wide(0x02, 0x78, self.uid);
        wide(0x18, 0x7A, self.gid);
        put16(raw, 0x00, self.mode);
        put16(raw, 0x1A, self.nlink as u16);
        put32(raw, 0x14, self.dtime);
        put32(raw, 0x64, self.generation);
        put32(raw, 0x04, self.size as u32);
        if self.has_long_size(geometry) {
            put32(raw, 0x6C, (self.size >> 32) as u32);
        }
        let flags = self.write_blocks(raw, geometry);
        put32(raw, 0x20, flags);
        put32(raw, 0x68, self.attr_block as u32);
        if geometry.features.bits64() {
            put16(raw, 0x76, (self.attr_block >> 32) as u16);
        }
        raw[0x28..0x28 + BODY_BYTES].copy_from_slice(&self.body);
        if raw.len() > OLD_INODE_BYTES as usize {
            put16(raw, 0x80, self.extra_isize as u16);
        }
        self.write_times(raw);
        if geometry.features.csum() {
            let (sum, wide) = checksum(raw, self.seed);
            put16(raw, CHECKSUM_LOW, low16(sum));
            if wide {
                put16(raw, CHECKSUM_HIGH, high16(sum));
            }
        }
    }

    /// Stores the block count; the answer is the flags that go with its unit.
    fn write_blocks(&self, raw: &mut [u8], geometry: &Geometry) -> u32 {
        let mut flags = self.flags & !flag::HUGE_FILE;
        let mut count = self.blocks;
        if count >= 1 << 48 {
            flags |= flag::HUGE_FILE;
            count /= u64::from(geometry.block_bytes / 512);
        }
        put32(raw, 0x1C, count as u32);
        if geometry.features.huge_file() {
            put16(raw, 0x74, (count >> 32) as u16);
        }
        flags
    }

    fn write_times(&self, raw: &mut [u8]) {
        let times = [self.atime, self.mtime, self.ctime, self.crtime];
        for (time, (low, extra)) in times.iter().zip(TIMES) {
            if low >= 0x90 && !self.has_extra(low) {
                continue;
            }
            let time = clamp(*time, self.has_extra(extra));
            put32(raw, low, time.sec as u32);
            if self.has_extra(extra) {
                let epoch = ((time.sec - i64::from(time.sec as i32)) >> 32) as u32 & 3;
                put32(raw, extra, epoch | time.nsec << 2);
            }
        }
    }

    /// Stores a device number where device files keep it.
    pub(super) fn set_rdev(&mut self, rdev: u32) {
        self.rdev = rdev;
        let (major, minor) = (rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xF_FF00);
        let old = major < 256 && minor < 256;
        put32(&mut self.body, 0, if old { rdev & 0xFFFF } else { 0 });
        put32(&mut self.body, 4, if old { 0 } else { rdev });
    }

    /// Its extents are in memory or in the inode itself: nothing has to be read to know them.
    pub(super) fn has_flat_tree(&self) -> bool {
        self.tree.is_some() || self.has(flag::EXTENTS) && self.body[6..8] == [0, 0]
    }

    /// Whether a symbolic link's target is in the inode.
    pub(super) fn is_fast_link(&self) -> bool {
        self.kind() == Kind::Symlink && self.size < BODY_BYTES as u64 && !self.has(flag::EXTENTS)
    }
}

/// The nearest time an inode can hold, with (`fine`) or without the extra word.
pub(super) fn clamp(time: Stamp, fine: bool) -> Stamp {
    let (low, high) = (i64::from(i32::MIN), i64::from(i32::MAX));
    let high = if fine { high + (3 << 32) } else { high };
    let nsec = if fine && (low..=high).contains(&time.sec) { time.nsec } else { 0 };
    Stamp { sec: time.sec.clamp(low, high), nsec }
}

impl Geometry {
    /// The largest size of a file, bytes: 2^32 - 1 blocks.
    pub(super) fn size_max(&self) -> u64 {
        u64::from(u32::MAX) << self.block_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_the_end_of_their_range() {
        assert_eq!(clamp(Stamp { sec: 1 << 40, nsec: 5 }, true), Stamp { sec: 0x3_7FFF_FFFF, nsec: 0 });
        assert_eq!(clamp(Stamp { sec: -5, nsec: 5 }, true), Stamp { sec: -5, nsec: 5 });
        assert_eq!(
            clamp(Stamp { sec: 1 << 31, nsec: 5 }, false),
            Stamp { sec: i64::from(i32::MAX), nsec: 0 }
        );
    }

    #[test]
    fn modes_and_kinds_are_one_to_one() {
        for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::CharDevice, Kind::BlockDevice, Kind::Fifo] {
            assert_eq!(kind_of_mode(mode_of(kind, 0o4755)), Some(kind));
        }
        assert_eq!(kind_of_mode(0o755), None);
    }
}
