//! cmfs for C: the functions of `include/cmfs.h`, which says what each promises.
//!
//! What a caller has to keep to is there, too: pointers are valid, or null where that is allowed; a volume is used by one
//! thread at a time and not after `cmfs_unmount`. Every function returns an error number in place of a panic: where there is an
//! operating system a panic is caught, and the volume answers `CMFS_EIO` from then on.
#![no_std]

extern crate alloc;
#[cfg(not(target_os = "none"))]
extern crate std;

mod attributes;
mod files;
mod media;
mod memory;
mod names;
mod volume;

pub use attributes::*;
pub use files::*;
pub use media::{CNand, CNvram, Part};
pub use names::*;
pub use volume::*;

use alloc::vec::Vec;
use cmfs_core::{Error, Fs, ROOT};
use core::ffi::{CStr, c_char, c_int};

/// An open file system.
pub struct Volume {
    fs: Fs<Part, CNvram>,
    /// Objects that are open, and how often.
    open: Vec<(u32, u32)>,
    /// Something panicked: nothing is trusted any more.
    broken: bool,
}

impl Volume {
    /// What is open keeps its contents when its last name goes.
    fn is_open(&self, object: u32) -> bool {
        self.open.iter().any(|(other, _)| *other == object)
    }
}

const EIO: c_int = -5;
const ENOMEM: c_int = -12;
const EINVAL: c_int = -22;

fn errno(error: Error) -> c_int {
    -match error {
        Error::NotFound => 2,
        Error::Gone | Error::Corrupt { .. } => 5,
        Error::NoMemory => 12,
        Error::Exists => 17,
        Error::Mismatch(_) | Error::Foreign(_) => 19,
        Error::NotDir => 20,
        Error::IsDir => 21,
        Error::BadArgument => 22,
        Error::TooLarge => 27,
        Error::NoSpace | Error::AttributesFull => 28,
        Error::NameTooLong => 36,
        Error::NotEmpty => 39,
        Error::NoAttribute => 61,
        Error::NoOffset => 6,
        Error::Unsupported(_) => 95,
        Error::Stale => 116,
    }
}

/// Runs what may not end the program, whatever it does; `None`: it panicked.
fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    #[cfg(not(target_os = "none"))]
    return std::panic::catch_unwind(core::panic::AssertUnwindSafe(work)).ok();
    #[cfg(target_os = "none")]
    Some(work())
}

/// As an error number, or what there was.
fn code(result: Result<i64, Error>) -> i64 {
    result.unwrap_or_else(|error| i64::from(errno(error)))
}

/// Runs `work` on a volume.
///
/// # Safety
/// `volume` is one that was mounted, or null.
unsafe fn with(volume: *mut Volume, work: impl FnOnce(&mut Volume) -> Result<i64, Error>) -> i64 {
    // SAFETY: the caller promises that it is valid and used by nobody else.
    let Some(volume) = (unsafe { volume.as_mut() }) else { return i64::from(EINVAL) };
    if volume.broken {
        return i64::from(EIO);
    }
    if memory::free().is_some_and(|free| free < needed_by_a_call(&volume.fs)) {
        return i64::from(ENOMEM);
    }
    match caught(|| work(volume)) {
        Some(result) => code(result),
        None => {
            volume.broken = true;
            i64::from(EIO)
        }
    }
}

/// Bytes that a call may take while it is under way: what objects may grow by, and pages.
fn needed_by_a_call(fs: &Fs<Part, CNvram>) -> usize {
    use cmfs_core::Nand;
    let page = fs.nand().geometry().page_bytes as usize;
    fs.config().memory_bytes / 8 + 4 * page
}

/// Runs `work` on a volume, for functions that return no more than 0 or an error.
///
/// # Safety
/// As [`with`]'s.
unsafe fn done(volume: *mut Volume, work: impl FnOnce(&mut Volume) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller promises.
    (unsafe { with(volume, |volume| work(volume).map(|()| 0)) }) as c_int
}

/// The bytes of a C string.
///
/// # Safety
/// `text` is null or ends with a NUL.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8], Error> {
    if text.is_null() {
        return Err(Error::BadArgument);
    }
    // SAFETY: the caller promises that it ends.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The bytes at a pointer, which may be null if there are none.
///
/// # Safety
/// `bytes` holds `len`, or is null.
unsafe fn slice<'a>(bytes: *const u8, len: usize) -> Result<&'a [u8], Error> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::BadArgument),
        _ if len > i32::MAX as usize => Err(Error::BadArgument),
        // SAFETY: the caller promises that they are there.
        _ => Ok(unsafe { core::slice::from_raw_parts(bytes, len) }),
    }
}

/// As [`slice`], to be written to.
///
/// # Safety
/// `bytes` has room for `len`, or is null.
unsafe fn slice_mut<'a>(bytes: *mut u8, len: usize) -> Result<&'a mut [u8], Error> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Error::BadArgument),
        _ if len > i32::MAX as usize => Err(Error::BadArgument),
        // SAFETY: the caller promises that there is room.
        _ => Ok(unsafe { core::slice::from_raw_parts_mut(bytes, len) }),
    }
}

/// The directory that a path's last name is in, and that name.
fn split<'a>(fs: &mut Fs<Part, CNvram>, path: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
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

/// The object of a path; the root's is its own.
fn resolve(fs: &mut Fs<Part, CNvram>, path: &[u8]) -> Result<u32, Error> {
    if path.iter().all(|byte| *byte == b'/') && !path.is_empty() {
        return Ok(ROOT);
    }
    let (dir, name) = split(fs, path)?;
    fs.lookup(dir, name)
}

/// Firmware says what is to happen.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    unsafe extern "C" {
        fn cmfs_panic() -> !;
    }
    // SAFETY: the firmware provides it, and it does not return.
    unsafe { cmfs_panic() }
}
