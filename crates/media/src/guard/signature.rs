//! What a file or device holds, as far as its bytes tell.
//!
//! Our own formats and a table of magic numbers are looked for first, then libblkid is asked by its program
//! (`blkid -p`), which knows some hundred more. Where there is no blkid, the table is what there is; so it is of a file
//! shorter than a page, and of one that is no whole number of sectors: what blkid knows is longer, and made of sectors, and a
//! copy of a tree would start a process for each file that it replaces. Nor do the table's magic numbers of two bytes count in
//! such a file. Whatever has no signature but begins with anything else than zeros (or ones, as erased flash reads) is
//! data.

use super::{Claim, LENT};
use bimetal_base::checksum::crc32c;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use memchr::memmem::Finder;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Bytes at the beginning that are looked at for anything at all.
const LOOK_BYTES: u64 = 1 << 20;

/// Where a magic number lies.
#[derive(Clone, Copy, Debug)]
enum At {
    /// So many bytes from the beginning.
    Start(u64),
    /// So many bytes before the end, down to a multiple of the second number.
    End(u64, u64),
}

/// How an SSD half is called.
const SSD_HALF: &str = "an SSD half of bimetal";

/// How a physical volume of LVM2 is called.
pub(super) const LVM: &str = "an LVM2 volume";

/// Magic numbers: what has them, where, and which bytes. The more telling first.
const TABLE: &[(&str, At, &[u8])] = &[
    (SSD_HALF, At::Start(0), b"BIMETSSD"),
    (SSD_HALF, At::End(4096, 4096), b"BIMETSSD"),
    ("an object store of bimetal", At::Start(0), b"bimetalN"),
    ("LUKS encryption", At::Start(0), b"LUKS\xba\xbe"),
    ("BitLocker encryption", At::Start(3), b"-FVE-FS-"),
    (LVM, At::Start(0), b"LABELONE"),
    (LVM, At::Start(512), b"LABELONE"),
    (LVM, At::Start(1024), b"LABELONE"),
    (LVM, At::Start(1536), b"LABELONE"),
    ("a member of a Linux RAID", At::Start(0), b"\xfc\x4e\x2b\xa9"),
    ("a member of a Linux RAID", At::Start(4096), b"\xfc\x4e\x2b\xa9"),
    ("a member of a Linux RAID", At::End(8192, 4096), b"\xfc\x4e\x2b\xa9"),
    ("a member of a Linux RAID", At::End(65536, 65536), b"\xfc\x4e\x2b\xa9"),
    (
        "a bcache or bcachefs device",
        At::Start(4120),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "a bcachefs file system",
        At::Start(4120),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("an ext2/3/4 file system (keep its files with `bimetal adopt`)", At::Start(0x438), b"\x53\xef"),
    ("a btrfs file system", At::Start(0x10040), b"_BHRfS_M"),
    ("an xfs file system", At::Start(0), b"XFSB"),
    ("an f2fs file system", At::Start(0x400), b"\x10\x20\xf5\xf2"),
    ("an erofs file system", At::Start(0x400), b"\xe2\xe1\xf5\xe0"),
    ("a squashfs file system", At::Start(0), b"hsqs"),
    ("a romfs file system", At::Start(0), b"-rom1fs-"),
    ("a cramfs file system", At::Start(0), b"\x45\x3d\xcd\x28"),
    ("a cramfs file system", At::Start(0), b"\x28\xcd\x3d\x45"),
    ("a jfs file system", At::Start(0x8000), b"JFS1"),
    ("a reiserfs file system", At::Start(0x10034), b"ReIsEr"),
    ("an NTFS file system", At::Start(3), b"NTFS    "),
    ("an exFAT file system", At::Start(3), b"EXFAT   "),
    ("a FAT file system", At::Start(0x52), b"FAT32"),
    ("a FAT file system", At::Start(0x36), b"FAT1"),
    ("an APFS container", At::Start(32), b"NXSB"),
    ("an HFS+ file system", At::Start(0x400), b"H+"),
    ("an ISO 9660 file system", At::Start(0x8001), b"CD001"),
    ("swap space", At::Start(4086), b"SWAPSPACE2"),
    ("swap space", At::Start(4086), b"SWAP-SPACE"),
    ("swap space", At::Start(16374), b"SWAPSPACE2"),
    ("swap space", At::Start(65526), b"SWAPSPACE2"),
    ("an image of a sleeping machine", At::Start(4086), b"S1SUSPEND"),
    ("a Ceph volume", At::Start(0), b"bluestore block device"),
    ("a qcow2 image", At::Start(0), b"QFI\xfb"),
    ("a VHDX image", At::Start(0), b"vhdxfile"),
    ("a VMDK image", At::Start(0), b"KDMV"),
    ("a GPT partition table", At::Start(512), b"EFI PART"),
    ("a GPT partition table", At::Start(4096), b"EFI PART"),
    ("a GPT partition table", At::End(512, 512), b"EFI PART"),
    ("an MBR partition table or a boot sector", At::Start(510), b"\x55\xaa"),
];

/// A NAND image of cmfs has format records in its last blocks: this, then the version of the format, 32 bits, little-endian. Where
/// blocks are bad they lie further to the front, and pages are as long as the part has them.
const CMFS_NAND: &[u8; 8] = b"CMFSNAND";
/// Bytes at the end of an image in which these are looked for, and bytes that are read at once.
const CMFS_NAND_BYTES: u64 = 48 << 20;
const PIECE_BYTES: u64 = 1 << 20;
/// Of files that are shorter, or no whole number of sectors, blkid is not asked, and in the latter magic numbers of two bytes are
/// taken for chance.
const SHORT_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// What the two slots of an NVRAM of cmfs begin with, before the version; the second while its contents are written anew.
const CMFS_NVRAM: [&[u8; 4]; 2] = [b"CMFS", b"CMF-"];
const CMFS_NVRAM_SLOTS: [u64; 2] = [0, 96];
/// Where an NVRAM in the paper's layout has the number it is known by, the CRC-32C of that and the part's name, and the name.
const CMFS_PAPER_AT: u64 = 16;

/// ZFS keeps rings of uberblocks in labels of 256 KiB; any of them tells.
const ZFS_LABELS: [u64; 2] = [0, 256 << 10];
const ZFS_RING: std::ops::Range<u64> = 128 << 10..256 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// A file or device that is looked at.
#[derive(Clone, Copy)]
pub(super) struct Looked<'a> {
    pub file: &'a File,
    /// How messages call it.
    pub name: &'a Path,
}

impl<'a> From<&'a Claim> for Looked<'a> {
    fn from(claim: &'a Claim) -> Looked<'a> {
        Looked { file: &claim.file, name: &claim.path }
    }
}

impl Looked<'_> {
    pub fn size(self) -> u64 {
        let mut file = self.file;
        // A character device has no end that can be sought.
        file.seek(SeekFrom::End(0)).unwrap_or(0)
    }

    fn is_file(self) -> bool {
        self.file.metadata().is_ok_and(|found| found.is_file())
    }
}

/// Everything that would be lost: a signature, or data without one.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub(super) fn contents(looked: Looked) -> Result<Option<String>> {
    if let Some(what) = signature(looked)? {
        return Ok(Some(what));
    }
    let front = read(looked, 0, LOOK_BYTES)?;
    let blank = front.iter().all(|byte| *byte == 0) || front.iter().all(|byte| *byte == 0xff);
    Ok((!blank).then(|| "data".to_string()))
}

/// What the thing is marked to hold, with its size.
///
/// # Errors
/// As [`contents`].
pub(super) fn signature(looked: Looked) -> Result<Option<String>> {
    let (size, is_file) = (looked.size(), looked.is_file());
    let is_odd = is_file && !size.is_multiple_of(SECTOR_BYTES);
    let counts = |_: &str, magic: &[u8]| !is_odd || magic.len() > 2;
    let name = match from_table(looked, size, &counts)? {
        Some(name) => Some(name),
        None => of_cmfs(looked, size)?,
    };
    let name = match name {
        Some(name) => Some(name.to_string()),
        None if is_odd || is_file && size < SHORT_BYTES => None,
        None => from_blkid(looked),
    };
    Ok(name.map(|name| format!("{name} ({})", show_size(size))))
}

/// What the thing is marked to hold besides an SSD half, with its size. What is looked for anywhere in it, and may be the
/// contents of a file, does not count.
///
/// # Errors
/// As [`contents`].
pub(super) fn other_than_ssd_half(looked: Looked) -> Result<Option<String>> {
    let size = looked.size();
    let name = match from_table(looked, size, &|name, _| name != SSD_HALF)? {
        Some(name) => Some(name.to_string()),
        None => from_blkid(looked),
    };
    Ok(name.map(|name| format!("{name} ({})", show_size(size))))
}

/// Up to `len` bytes; fewer where the thing ends.
pub(super) fn read(looked: Looked, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    let mut done = 0;
    while done < bytes.len() {
        match looked.file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) => return Err(Error::io(format!("{}: read at {offset}", looked.name.display()), why)),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// What has a magic number of the table that counts, by its name and itself.
fn from_table(
    looked: Looked,
    size: u64,
    counts: &dyn Fn(&str, &[u8]) -> bool,
) -> Result<Option<&'static str>> {
    for (name, at, magic) in TABLE.iter().filter(|(name, _, magic)| counts(name, magic)) {
        let offset = match at {
            At::Start(offset) => Some(*offset),
            At::End(back, unit) => (size / unit * unit).checked_sub(*back),
        };
        if let Some(offset) = offset.filter(|offset| offset + magic.len() as u64 <= size)
            && read(looked, offset, magic.len() as u64)? == *magic
        {
            return Ok(Some(name));
        }
    }
    for label in ZFS_LABELS {
        let ring = read(looked, label + ZFS_RING.start, ZFS_RING.end - ZFS_RING.start)?;
        let is_magic = |block: &[u8]| {
            let word = block.first_chunk().map(|bytes: &[u8; 8]| u64::from_le_bytes(*bytes));
            word.is_some_and(|word| word == ZFS_MAGIC || word.swap_bytes() == ZFS_MAGIC)
        };
        if ring.chunks(1024).any(is_magic) {
            return Ok(Some("a ZFS pool"));
        }
    }
    Ok(None)
}

/// What these first bytes of a thing are marked to hold but an SSD half or LVM, and where its magic number lies. One of two bytes,
/// such as that of a boot sector, is none.
pub(super) fn known_within(front: &[u8]) -> Option<(&'static str, u64)> {
    TABLE.iter().filter(|(name, _, magic)| ![SSD_HALF, LVM].contains(name) && magic.len() > 2).find_map(
        |(name, at, magic)| match at {
            At::Start(at) => front.get(*at as usize..)?.starts_with(magic).then_some((*name, *at)),
            At::End(..) => None,
        },
    )
}

/// Which part of a cmfs it is.
fn of_cmfs(looked: Looked, size: u64) -> Result<Option<&'static str>> {
    if is_cmfs_nvram(looked)? {
        return Ok(Some("an NVRAM of a cmfs"));
    }
    Ok(is_cmfs_nand(looked, size)?.then_some("a NAND image of a cmfs"))
}

/// A version as the formats of ours have them: small, and not 0.
fn is_version(bytes: &[u8]) -> bool {
    matches!(bytes, [version, 0, 0, 0] if *version != 0)
}

fn is_cmfs_nvram(looked: Looked) -> Result<bool> {
    for slot in CMFS_NVRAM_SLOTS {
        let head = read(looked, slot, 8)?;
        let begins = |magic: &&[u8; 4]| head.starts_with(*magic);
        // What is being written anew has no version yet.
        if CMFS_NVRAM.iter().any(begins) && (is_version(&head[4..]) || head[4..] == [0; 4]) {
            return Ok(true);
        }
    }
    let pairing = read(looked, CMFS_PAPER_AT, 24)?;
    let Some((number, rest)) = pairing.split_first_chunk::<4>().filter(|_| pairing.len() == 24) else {
        return Ok(false);
    };
    let (sum, identity) = rest.split_at(4);
    Ok(crc32c(&[&number[..], identity].concat()).to_le_bytes() == *sum)
}

fn is_cmfs_nand(looked: Looked, size: u64) -> Result<bool> {
    let record = CMFS_NAND.len() + 4;
    let magic = Finder::new(CMFS_NAND);
    let mut at = size.saturating_sub(CMFS_NAND_BYTES);
    while at < size {
        // A record may lie over the end of a piece.
        let piece = read(looked, at, PIECE_BYTES + record as u64 - 1)?;
        let version = |start: usize| piece.get(start + CMFS_NAND.len()..start + record);
        if magic.find_iter(&piece).any(|start| version(start).is_some_and(is_version)) {
            return Ok(true);
        }
        at += PIECE_BYTES;
    }
    Ok(false)
}

/// What blkid says; nothing where there is none, or it finds nothing.
fn from_blkid(looked: Looked) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let lent = looked.file.try_clone().ok()?;
    let output =
        Command::new("blkid").env("PATH", path).args(["-p", "-o", "export", LENT]).stdin(lent).output();
    let output = output.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    match (output.status.code(), value("TYPE"), value("PTTYPE")) {
        (Some(0), Some(kind), _) => Some(format!("{kind} (says blkid)")),
        (Some(0), None, Some(table)) => Some(format!("a {table} partition table (says blkid)")),
        // More than one signature: it will not choose.
        (Some(8), ..) => Some("several signatures (says blkid)".into()),
        _ => None,
    }
}
