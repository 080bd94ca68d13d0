//! cmfs for C: the functions of `include/cmfs.h`.
//!
//! What a caller has to keep to is in the header: pointers are valid, or null where that is allowed; a volume is
//! used by one thread at a time and not after `cmfs_unmount`.
#![no_std]

extern crate alloc;
#[cfg(not(target_os = "none"))]
extern crate std;

#[cfg(target_os = "none")]
mod bare;

use alloc::boxed::Box;
use cmfs_core::{
    Config, Error, Fs, Geometry, Kind, MountKind, Nand, NandError, NewObject, Nvram, NvramError,
};
use cmfs_core::{ROOT, Time};
use core::ffi::{CStr, c_char, c_int, c_void};

/// A NAND part, as `struct cmfs_nand`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CNand {
    context: *mut c_void,
    page_bytes: u32,
    spare_bytes: u32,
    pages_per_block: u32,
    blocks: u32,
    is_bad: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    mark_bad: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, u32, *mut u8, *mut u8) -> c_int,
    read_spare: unsafe extern "C" fn(*mut c_void, u32, *mut u8) -> c_int,
    program: unsafe extern "C" fn(*mut c_void, u32, *const u8, *const u8) -> c_int,
    erase: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    correctable: u32,
}

/// An NVRAM, as `struct cmfs_nvram`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CNvram {
    context: *mut c_void,
    size_bytes: usize,
    read: unsafe extern "C" fn(*mut c_void, usize, *mut u8, usize) -> c_int,
    write: unsafe extern "C" fn(*mut c_void, usize, *const u8, usize) -> c_int,
    persist: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// An open file system.
pub struct Volume(Fs<CNand, CNvram>);

/// Reads return the number of corrected bits.
fn bits(code: c_int) -> Result<u32, NandError> {
    u32::try_from(code).or_else(|_| nand_result(code).map(|()| 0))
}

fn nand_result(code: c_int) -> Result<(), NandError> {
    match code {
        0 => Ok(()),
        -1 => Err(NandError::Unreadable),
        -2 => Err(NandError::Failed),
        _ => Err(NandError::Gone),
    }
}

impl Nand for CNand {
    fn geometry(&self) -> Geometry {
        Geometry {
            page_bytes: self.page_bytes,
            spare_bytes: self.spare_bytes,
            pages_per_block: self.pages_per_block,
            blocks: self.blocks,
        }
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        // SAFETY: the header asks for callbacks that may be called with their context.
        match unsafe { (self.is_bad)(self.context, block) } {
            bad @ 0..=1 => Ok(bad == 1),
            code => nand_result(code).map(|()| false),
        }
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        // SAFETY: as above.
        nand_result(unsafe { (self.mark_bad)(self.context, block) })
    }

    fn correctable(&self) -> u32 {
        self.correctable
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        // SAFETY: as above; both buffers have the lengths of the geometry.
        bits(unsafe { (self.read)(self.context, page, data.as_mut_ptr(), spare.as_mut_ptr()) })
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        // SAFETY: as above.
        bits(unsafe { (self.read_spare)(self.context, page, spare.as_mut_ptr()) })
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        // SAFETY: as above.
        nand_result(unsafe { (self.program)(self.context, page, data.as_ptr(), spare.as_ptr()) })
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        // SAFETY: as above.
        nand_result(unsafe { (self.erase)(self.context, block) })
    }
}

fn nvram_result(code: c_int) -> Result<(), NvramError> {
    if code == 0 { Ok(()) } else { Err(NvramError) }
}

impl CNvram {
    fn check(&self, offset: usize, len: usize) -> Result<(), NvramError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(NvramError),
        }
    }
}

impl Nvram for CNvram {
    fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        // SAFETY: the header asks for callbacks that may be called with their context; the range is inside.
        nvram_result(unsafe { (self.read)(self.context, offset, bytes.as_mut_ptr(), bytes.len()) })
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        // SAFETY: as above.
        nvram_result(unsafe { (self.write)(self.context, offset, bytes.as_ptr(), bytes.len()) })
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        // SAFETY: as above.
        nvram_result(unsafe { (self.persist)(self.context) })
    }
}

fn errno(error: Error) -> c_int {
    -match error {
        Error::NotFound | Error::NoAttribute => 2,
        Error::Gone | Error::Corrupt { .. } => 5,
        Error::Exists => 17,
        Error::Mismatch(_) | Error::Foreign(_) => 19,
        Error::NotDir => 20,
        Error::IsDir => 21,
        Error::BadArgument | Error::NoOffset => 22,
        Error::TooLarge => 27,
        Error::NoSpace | Error::AttributesFull => 28,
        Error::NameTooLong => 36,
        Error::NotEmpty => 39,
        Error::Unsupported(_) => 95,
        Error::Stale => 116,
    }
}

fn code(result: Result<(), Error>) -> c_int {
    result.map_or_else(errno, |()| 0)
}

const EINVAL: c_int = -22;

/// Makes a file system.
///
/// # Safety
/// `nand` and `identity` are valid, `nvram` is or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_format(
    nand: *const CNand,
    nvram: *const CNvram,
    identity: *const [u8; 16],
) -> c_int {
    // SAFETY: the caller promises that they are valid or null.
    let (nand, nvram, identity) = unsafe { (nand.as_ref(), nvram.as_ref(), identity.as_ref()) };
    let (Some(nand), Some(identity)) = (nand, identity) else { return EINVAL };
    let made = Fs::format(*nand, nvram.copied(), Config::default(), *identity, true);
    code(made.and_then(Fs::close).map(drop))
}

/// Opens a file system.
///
/// # Safety
/// `nand` and `volume` are valid, `nvram` is or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mount(
    nand: *const CNand,
    nvram: *const CNvram,
    volume: *mut *mut Volume,
) -> c_int {
    // SAFETY: the caller promises that they are valid or null.
    let (nand, nvram, volume) = unsafe { (nand.as_ref(), nvram.as_ref(), volume.as_mut()) };
    let (Some(nand), Some(volume)) = (nand, volume) else { return EINVAL };
    let opened = Fs::open(*nand, nvram.copied(), Config::default());
    code(opened.map(|fs| *volume = Box::into_raw(Box::new(Volume(fs)))))
}

/// How it was opened: 0 clean, 1 recovered, 2 scanned, 3 from a checkpoint of YAFFS2.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mounted_how(volume: *const Volume) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let Some(volume) = (unsafe { volume.as_ref() }) else { return EINVAL };
    match volume.0.report().kind {
        MountKind::Made | MountKind::Clean => 0,
        MountKind::Recovered => 1,
        MountKind::Scanned => 2,
        MountKind::Checkpoint => 3,
    }
}

/// Ends cleanly and frees the volume.
///
/// # Safety
/// `volume` is one that was mounted, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_unmount(volume: *mut Volume) -> c_int {
    if volume.is_null() {
        return EINVAL;
    }
    // SAFETY: it came from `Box::into_raw` in `cmfs_mount`.
    let volume = unsafe { Box::from_raw(volume) };
    code(volume.0.close().map(drop))
}

/// Runs `work` on a volume.
///
/// # Safety
/// `volume` is one that was mounted, or null.
unsafe fn with(volume: *mut Volume, work: impl FnOnce(&mut Fs<CNand, CNvram>) -> Result<(), Error>) -> c_int {
    // SAFETY: the caller promises that it is valid and used by nobody else.
    match unsafe { volume.as_mut() } {
        Some(volume) => code(work(&mut volume.0)),
        None => EINVAL,
    }
}

/// The bytes of a C string.
///
/// # Safety
/// `path` is null or ends with a NUL.
unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a [u8], Error> {
    if path.is_null() {
        return Err(Error::BadArgument);
    }
    // SAFETY: the caller promises that it ends.
    Ok(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// The directory that a path's last name is in, and that name.
fn split<'a>(fs: &mut Fs<CNand, CNvram>, path: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    let mut dir = ROOT;
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            return Ok((dir, name));
        }
        dir = fs.lookup(dir, name)?;
    }
    Err(Error::BadArgument)
}

fn make(fs: &mut Fs<CNand, CNvram>, path: &[u8], kind: Kind, mode: u32) -> Result<u32, Error> {
    let (dir, name) = split(fs, path)?;
    fs.create(dir, name, &NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] })
}

/// The object of a path.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_open(
    volume: *mut Volume,
    path: *const c_char,
    create: c_int,
    object: *mut u32,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (path, object) = unsafe { (path_of(path), object.as_mut()) };
    let work = |fs: &mut Fs<CNand, CNvram>| {
        let (path, object) = (path?, object.ok_or(Error::BadArgument)?);
        let (dir, name) = split(fs, path)?;
        *object = match fs.lookup(dir, name) {
            Err(Error::NotFound) if create != 0 => make(fs, path, Kind::File, 0o100_644)?,
            found => found?,
        };
        Ok(())
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, work) }
}

/// Makes a directory.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mkdir(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let path = unsafe { path_of(path) };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |fs| make(fs, path?, Kind::Dir, 0o40_755).map(drop)) }
}

/// Removes a file, or a directory that is empty.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_remove(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let path = unsafe { path_of(path) };
    let work = |fs: &mut Fs<CNand, CNvram>| {
        let (dir, name) = split(fs, path?)?;
        match fs.unlink(dir, name, false) {
            Err(Error::IsDir) => fs.rmdir(dir, name, false).map(drop),
            done => done.map(drop),
        }
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, work) }
}

/// Moves a name, in place of what stands there.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_rename(volume: *mut Volume, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (from, to) = unsafe { (path_of(from), path_of(to)) };
    let work = |fs: &mut Fs<CNand, CNvram>| {
        let (dir, name) = split(fs, from?)?;
        let (new_dir, new_name) = split(fs, to?)?;
        fs.rename(dir, name, new_dir, new_name, false)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, work) }
}

/// The size of an object, bytes.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_size(volume: *mut Volume, object: u32) -> i64 {
    let mut size = 0;
    // SAFETY: the caller promises that the volume is valid.
    let done = unsafe { with(volume, |fs| fs.attr(object).map(|attr| size = attr.size as i64)) };
    if done == 0 { size } else { i64::from(done) }
}

/// Reads; how many bytes there were.
///
/// # Safety
/// `bytes` has room for `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_read(
    volume: *mut Volume,
    object: u32,
    offset: u64,
    bytes: *mut u8,
    len: usize,
) -> i32 {
    if bytes.is_null() || len > i32::MAX as usize {
        return EINVAL;
    }
    // SAFETY: the caller promises that there is room.
    let buffer = unsafe { core::slice::from_raw_parts_mut(bytes, len) };
    let mut there = 0;
    // SAFETY: the caller promises that the volume is valid.
    let done = unsafe { with(volume, |fs| fs.read(object, offset, buffer).map(|count| there = count)) };
    if done == 0 { there as i32 } else { done }
}

/// Writes all; how many bytes these were.
///
/// # Safety
/// `bytes` holds `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_write(
    volume: *mut Volume,
    object: u32,
    offset: u64,
    bytes: *const u8,
    len: usize,
) -> i32 {
    if bytes.is_null() || len > i32::MAX as usize {
        return EINVAL;
    }
    // SAFETY: the caller promises that they are there.
    let data = unsafe { core::slice::from_raw_parts(bytes, len) };
    // SAFETY: the caller promises that the volume is valid.
    let done = unsafe { with(volume, |fs| fs.write(object, offset, data)) };
    if done == 0 { len as i32 } else { done }
}

/// Cuts or extends a file.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_truncate(volume: *mut Volume, object: u32, size: u64) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |fs| fs.truncate(object, size)) }
}

/// Makes one object durable.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_sync(volume: *mut Volume, object: u32) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |fs| fs.sync_object(object)) }
}

/// Updates the NVRAM if five seconds have passed.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_tick(volume: *mut Volume, now_ms: u64) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |fs| fs.update_if_due(now_ms).map(drop)) }
}

/// Reads the next pages of the part in turn; 1 at its end.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_scrub(volume: *mut Volume, pages: u32) -> c_int {
    let mut ended = false;
    // SAFETY: the caller promises that the volume is valid.
    let scrubbed = unsafe { with(volume, |fs| fs.scrub(pages).map(|end| ended = end)) };
    if scrubbed == 0 { c_int::from(ended) } else { scrubbed }
}

/// Says what time it is, seconds since 1970.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_set_time(volume: *mut Volume, seconds: i64) {
    let work = |fs: &mut Fs<CNand, CNvram>| {
        fs.set_now(Time { sec: seconds, nsec: 0 });
        Ok(())
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, work) };
}
