//! A NAND part that Linux drives: `/dev/mtdN`.
//!
//! Its driver corrects errors and keeps bad-block marks; spare areas are read and written as they are on the chip
//! (*placed*), so that tags lie where YAFFS2 on the same device has them (byte 2 on). The driver's own bytes in the
//! spare area must leave 2 to 33 alone, which is asked where the kernel tells.
//!
//! The calls are those of `<mtd/mtd-abi.h>`: MEMGETINFO, MEMREADOOB64, MEMWRITE, MEMERASE64, MEMGETBADBLOCK,
//! MEMSETBADBLOCK, ECCGETSTATS, ECCGETLAYOUT. A read of a page that could not be corrected returns its bytes all the
//! same; that it could not is seen by the count of failures.

use bimetal_base::{Error, Result};
use bimetal_media::guard::{self, Claim, Role};
use cmfs_core::{Geometry, NandError};
use std::fs::File;
use std::io::{Error as IoError, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the spare area that must be ours: tags, their correction, the page's checksum.
const OWN: std::ops::Range<u32> = 2..34;
/// Kinds of device: NAND with one bit a cell, and with several.
const NAND: u8 = 4;
const MLC_NAND: u8 = 8;
/// Spare bytes of a write lie where they are given.
const PLACE_OOB: u8 = 0;

/// `struct mtd_info_user`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Info {
    kind: u8,
    flags: u32,
    size: u32,
    erase_size: u32,
    write_size: u32,
    oob_size: u32,
    padding: u64,
}

/// `struct mtd_oob_buf64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OobBuffer {
    start: u64,
    pad: u32,
    length: u32,
    pointer: u64,
}

/// `struct mtd_write_req`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct WriteRequest {
    start: u64,
    len: u64,
    oob_len: u64,
    data: u64,
    oob: u64,
    mode: u8,
    padding: [u8; 7],
}

/// `struct erase_info_user64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct EraseInfo {
    start: u64,
    length: u64,
}

/// `struct mtd_ecc_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct EccStats {
    corrected: u32,
    failed: u32,
    bad_blocks: u32,
    table_blocks: u32,
}

/// `struct nand_ecclayout_user`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct EccLayout {
    code_bytes: u32,
    code_places: [u32; 64],
    free_bytes: u32,
    /// Offset and length.
    free: [[u32; 2]; 8],
}

const READ: u32 = 2;
const WRITE: u32 = 1;

/// The number of a call: direction, size of what it takes, `M`, number.
const fn call<T>(direction: u32, number: u32) -> libc::Ioctl {
    (direction << 30 | (size_of::<T>() as u32) << 16 | (b'M' as u32) << 8 | number) as libc::Ioctl
}

const MEMGETINFO: libc::Ioctl = call::<Info>(READ, 1);
const MEMGETBADBLOCK: libc::Ioctl = call::<u64>(WRITE, 11);
const MEMSETBADBLOCK: libc::Ioctl = call::<u64>(WRITE, 12);
const ECCGETLAYOUT: libc::Ioctl = call::<EccLayout>(READ, 17);
const ECCGETSTATS: libc::Ioctl = call::<EccStats>(READ, 18);
const MEMERASE64: libc::Ioctl = call::<EraseInfo>(WRITE, 20);
const MEMREADOOB64: libc::Ioctl = call::<OobBuffer>(READ | WRITE, 22);
const MEMWRITE: libc::Ioctl = call::<WriteRequest>(READ | WRITE, 24);

/// One call; what it returned.
///
/// # Safety
/// `T` is the structure that the call takes, and pointers in it are valid for as many bytes as it says.
unsafe fn ioctl<T>(file: &File, number: libc::Ioctl, argument: &mut T) -> std::io::Result<i32> {
    // SAFETY: the descriptor is open, and the caller promises that the argument is what the call takes.
    match unsafe { libc::ioctl(file.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
        -1 => Err(IoError::last_os_error()),
        value => Ok(value),
    }
}

/// What a failed call means: the medium failed, or it is gone.
fn failure(why: &IoError) -> NandError {
    match why.raw_os_error() {
        Some(libc::EIO | libc::EBADMSG) => NandError::Failed,
        _ => NandError::Gone,
    }
}

/// A NAND part behind an MTD character device.
#[derive(Debug)]
pub struct MtdNand {
    /// The device, and who keeps others away from it.
    claim: Arc<Claim>,
    geometry: Geometry,
    writable: bool,
    /// Bits that were corrected and reads that could not be so far, by the kernel's count.
    stats: EccStats,
    /// Wrong bits of a codeword that can be corrected; 0: the kernel does not tell.
    correctable: u32,
}

impl MtdNand {
    /// Opens a device; its shape is what it says.
    ///
    /// # Errors
    /// It cannot be opened, is in use, is no MTD device or no NAND, or its driver needs bytes of the spare area that
    /// the file system needs.
    pub fn open(path: &Path, writable: bool) -> Result<MtdNand> {
        MtdNand::over(guard::claim_path(path, Role::changed_if(writable))?)
    }

    /// [`open`](MtdNand::open) of what a command has claimed; writable if it was claimed for that.
    ///
    /// # Errors
    /// As [`open`](MtdNand::open)'s.
    pub fn over(claim: Arc<Claim>) -> Result<MtdNand> {
        let (mut file, name) = (claim.file(), claim.name());
        let mut info = Info::default();
        // SAFETY: the call fills an `mtd_info_user`.
        unsafe { ioctl(file, MEMGETINFO, &mut info) }
            .map_err(|why| Error::invalid(format!("{name}: it is no MTD device: MEMGETINFO: {why}")))?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(|why| Error::io(&name, why))?;
        let geometry = geometry_of(&info, bytes).map_err(|why| Error::invalid(format!("{name}: {why}")))?;
        geometry.check().map_err(super::error)?;
        let writable = claim.role() != Role::Read;
        let mut device = MtdNand {
            correctable: strength(claim.file()),
            claim,
            geometry,
            writable,
            stats: EccStats::default(),
        };
        device.check_layout(&name)?;
        device.stats = device.ecc_stats();
        Ok(device)
    }

    /// Old kernels and some drivers do not tell; then the usual layout is taken for granted.
    fn check_layout(&self, name: &str) -> Result<()> {
        let mut layout = EccLayout { code_bytes: 0, code_places: [0; 64], free_bytes: 0, free: [[0; 2]; 8] };
        // SAFETY: the call fills an `nand_ecclayout_user`.
        let told = unsafe { ioctl(self.claim.file(), ECCGETLAYOUT, &mut layout) }.is_ok();
        if told && !leaves_room(&layout) {
            return Err(Error::invalid(format!(
                "{name}: its driver does not leave bytes {} to {} of the spare area alone",
                OWN.start,
                OWN.end - 1
            )));
        }
        Ok(())
    }

    /// The kernel's counts; 0 where it keeps none.
    fn ecc_stats(&self) -> EccStats {
        let mut stats = EccStats::default();
        // SAFETY: the call fills an `mtd_ecc_stats`.
        match unsafe { ioctl(self.claim.file(), ECCGETSTATS, &mut stats) } {
            Ok(_) => stats,
            Err(_) => EccStats::default(),
        }
    }

    fn offset(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.geometry.page_bytes)
    }

    fn block_call(&self, number: libc::Ioctl, block: u32) -> std::io::Result<i32> {
        let mut at = self.offset(self.geometry.first_page(block));
        // SAFETY: both calls that are made so take an offset of 64 bits.
        unsafe { ioctl(self.claim.file(), number, &mut at) }
    }
}

/// How many wrong bits of a codeword a device's driver corrects; 0 where the kernel does not tell.
fn strength(file: &File) -> u32 {
    let told = rustix::fs::fstat(file).ok().and_then(|stat| {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/ecc_strength")).ok()
    });
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The shape that a device tells.
fn geometry_of(info: &Info, bytes: u64) -> std::result::Result<Geometry, String> {
    match info.kind {
        NAND => {}
        MLC_NAND => {
            return Err("it is MLC NAND: a power cut while a page is programmed may destroy the one it is paired with; cmfs is \
                        for parts with one bit a cell"
                .into());
        }
        kind => return Err(format!("it is MTD, but no NAND (type {kind})")),
    }
    let whole = info.write_size > 0 && info.erase_size > 0 && info.erase_size.is_multiple_of(info.write_size);
    let blocks = bytes.checked_div(u64::from(info.erase_size)).and_then(|blocks| u32::try_from(blocks).ok());
    match blocks {
        Some(blocks) if whole => Ok(Geometry {
            page_bytes: info.write_size,
            spare_bytes: info.oob_size,
            pages_per_block: info.erase_size / info.write_size,
            blocks,
        }),
        _ => Err(format!("its shape makes no sense: {info:?}, {bytes} bytes")),
    }
}

/// Whether a driver's layout leaves the bytes alone that are needed.
fn leaves_room(layout: &EccLayout) -> bool {
    OWN.into_iter()
        .all(|byte| layout.free.iter().any(|[from, len]| (*from..from.saturating_add(*len)).contains(&byte)))
}

impl cmfs_core::Nand for MtdNand {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        match self.block_call(MEMGETBADBLOCK, block) {
            Ok(bad) => Ok(bad != 0),
            Err(why) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(why) => Err(failure(&why)),
        }
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.block_call(MEMSETBADBLOCK, block).map(drop).map_err(|why| failure(&why))
    }

    fn correctable(&self) -> u32 {
        self.correctable
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        match self.claim.file().read_exact_at(data, self.offset(page)) {
            Ok(()) => {}
            Err(why) if matches!(why.raw_os_error(), Some(libc::EIO | libc::EBADMSG)) => {
                return Err(NandError::Unreadable);
            }
            Err(_) => return Err(NandError::Gone),
        }
        let now = self.ecc_stats();
        let before = std::mem::replace(&mut self.stats, now);
        if now.failed != before.failed {
            return Err(NandError::Unreadable);
        }
        // Those of all codewords, and of other users of the device: too many, if anything.
        let corrected = now.corrected.wrapping_sub(before.corrected);
        Ok(self.read_spare(page, spare)?.max(corrected))
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        let mut request = OobBuffer {
            start: self.offset(page),
            pad: 0,
            length: spare.len() as u32,
            pointer: spare.as_mut_ptr() as u64,
        };
        // SAFETY: the call takes an `mtd_oob_buf64`, whose pointer is valid for its length.
        match unsafe { ioctl(self.claim.file(), MEMREADOOB64, &mut request) } {
            Ok(_) => Ok(0),
            Err(why) if matches!(why.raw_os_error(), Some(libc::EIO | libc::EBADMSG)) => {
                Err(NandError::Unreadable)
            }
            Err(_) => Err(NandError::Gone),
        }
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        if !self.writable {
            return Err(NandError::Gone);
        }
        let mut request = WriteRequest {
            start: self.offset(page),
            len: data.len() as u64,
            oob_len: spare.len() as u64,
            data: data.as_ptr() as u64,
            oob: spare.as_ptr() as u64,
            mode: PLACE_OOB,
            padding: [0; 7],
        };
        // SAFETY: the call takes an `mtd_write_req`, whose pointers are valid for their lengths.
        unsafe { ioctl(self.claim.file(), MEMWRITE, &mut request) }.map(drop).map_err(|why| failure(&why))
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        if !self.writable {
            return Err(NandError::Gone);
        }
        let length = u64::from(self.geometry.page_bytes) * u64::from(self.geometry.pages_per_block);
        let mut request = EraseInfo { start: self.offset(self.geometry.first_page(block)), length };
        // SAFETY: the call takes an `erase_info_user64`.
        unsafe { ioctl(self.claim.file(), MEMERASE64, &mut request) }.map(drop).map_err(|why| failure(&why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `<mtd/mtd-abi.h>` has them on machines of 64 bits.
    #[test]
    fn structures_and_calls_are_those_of_the_kernel() {
        let numbers = [
            (MEMGETINFO, 0x8020_4d01),
            (MEMGETBADBLOCK, 0x4008_4d0b),
            (MEMSETBADBLOCK, 0x4008_4d0c),
            (ECCGETLAYOUT, 0x8148_4d11),
            (ECCGETSTATS, 0x8010_4d12),
            (MEMERASE64, 0x4010_4d14),
            (MEMREADOOB64, 0xc018_4d16),
            (MEMWRITE, 0xc030_4d18),
        ];
        for (ours, theirs) in numbers {
            assert_eq!(ours as u32, theirs);
        }
        use std::mem::offset_of;
        assert_eq!(offset_of!(Info, oob_size), 20);
        assert_eq!((offset_of!(OobBuffer, length), offset_of!(OobBuffer, pointer)), (12, 16));
        assert_eq!((offset_of!(WriteRequest, oob), offset_of!(WriteRequest, mode)), (32, 40));
        assert_eq!(offset_of!(EccLayout, free), 264);
    }

    #[test]
    fn what_is_no_mtd_device_is_refused_with_the_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/dev/null")] {
            let why = MtdNand::open(path, false).unwrap_err().to_string();
            assert!(why.contains("no MTD device"), "{why}");
        }
    }

    #[test]
    fn a_shape_is_taken_from_what_the_device_tells() {
        let info = Info { kind: 4, erase_size: 131_072, write_size: 2048, oob_size: 64, ..Info::default() };
        let geometry = geometry_of(&info, 1 << 33).unwrap();
        assert_eq!((geometry.pages_per_block, geometry.blocks, geometry.spare_bytes), (64, 65_536, 64));
        assert!(geometry_of(&Info { kind: 3, ..info }, 1 << 27).unwrap_err().contains("no NAND"));
        assert!(geometry_of(&Info { kind: 8, ..info }, 1 << 27).unwrap_err().contains("MLC"));
        assert!(geometry_of(&Info { write_size: 0, ..info }, 1 << 27).is_err());
    }

    #[test]
    fn a_driver_must_leave_the_tags_alone() {
        let usual = [[2, 38], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2]];
        let layout = EccLayout { code_bytes: 24, code_places: [0; 64], free_bytes: 38, free: usual };
        assert!(leaves_room(&layout));
        let free = [[2, 20], [24, 30], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2]];
        assert!(!leaves_room(&EccLayout { free, ..layout }));
    }
}
