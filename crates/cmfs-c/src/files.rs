//! Opening files, their contents, and closing them.

use crate::{Volume, done, resolve, slice, slice_mut, split, text, with};
use cmfs_core::{Error, Kind, NewObject, Seek};
use core::ffi::{c_char, c_int};

const CREATE: c_int = 1;
const EXCLUSIVE: c_int = 2;
const TRUNCATE: c_int = 4;

/// Makes an object of this kind at a path.
pub(crate) fn make(
    volume: &mut Volume,
    path: &[u8],
    kind: Kind,
    mode: u32,
    target: &[u8],
) -> Result<u32, Error> {
    let (dir, name) = split(&mut volume.fs, path)?;
    volume.fs.create(dir, name, &NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target })
}

/// Opens the object of a path.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_open(
    volume: *mut Volume,
    path: *const c_char,
    flags: c_int,
    object: *mut u32,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (path, object) = unsafe { (text(path), object.as_mut()) };
    let work = |volume: &mut Volume| {
        let (path, object) = (path?, object.ok_or(Error::BadArgument)?);
        if flags & !(CREATE | EXCLUSIVE | TRUNCATE) != 0 {
            return Err(Error::BadArgument);
        }
        let id = match resolve(&mut volume.fs, path) {
            Err(Error::NotFound) if flags & CREATE != 0 => make(volume, path, Kind::File, 0o100_644, &[])?,
            Ok(_) if flags & CREATE != 0 && flags & EXCLUSIVE != 0 => return Err(Error::Exists),
            found => found?,
        };
        if flags & TRUNCATE != 0 && volume.fs.attr(id)?.size > 0 {
            volume.fs.truncate(id, 0)?;
        }
        match volume.open.iter_mut().find(|(other, _)| *other == id) {
            Some((_, count)) => *count += 1,
            None => volume.open.push((id, 1)),
        }
        *object = id;
        Ok(())
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Makes what was written durable and ends the use of an object.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_close(volume: *mut Volume, object: u32) -> c_int {
    let work = |volume: &mut Volume| {
        let at = volume.open.iter().position(|(other, _)| *other == object).ok_or(Error::Stale)?;
        volume.open[at].1 -= 1;
        if volume.open[at].1 == 0 {
            volume.open.swap_remove(at);
            if volume.fs.attr(object)?.links == 0 {
                return volume.fs.discard(object);
            }
        }
        volume.fs.sync_object(object)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// The size of an object, bytes.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_size(volume: *mut Volume, object: u32) -> i64 {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |volume| volume.fs.attr(object).map(|attr| attr.size as i64)) }
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
    // SAFETY: the caller promises that there is room.
    let buffer = unsafe { slice_mut(bytes, len) };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, |volume| volume.fs.read(object, offset, buffer?).map(|count| count as i64)) })
        as i32
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
    // SAFETY: the caller promises that they are there.
    let data = unsafe { slice(bytes, len) };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, |volume| volume.fs.write(object, offset, data?).map(|()| len as i64)) }) as i32
}

/// Cuts or extends a file.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_truncate(volume: *mut Volume, object: u32, size: u64) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.truncate(object, size)) }
}

/// Makes a hole.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_punch(volume: *mut Volume, object: u32, from: u64, to: u64) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.punch(object, from, to)) }
}

/// Promises room.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_reserve(volume: *mut Volume, object: u32, from: u64, to: u64) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.reserve(object, from, to)) }
}

/// The next data, or hole, from an offset on.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_seek(volume: *mut Volume, object: u32, offset: u64, hole: c_int) -> i64 {
    let what = if hole != 0 { Seek::Hole } else { Seek::Data };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { with(volume, |volume| volume.fs.seek(object, offset, what).map(|at| at as i64)) }
}

/// Makes one object durable.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_sync(volume: *mut Volume, object: u32) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.sync_object(object)) }
}
