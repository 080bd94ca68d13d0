//! Attributes of objects, plain and extended.

use crate::{Volume, done, resolve, slice, slice_mut, text, with};
use cmfs_core::{Error, SetAttr, Time};
use core::ffi::{c_char, c_int};

/// What an object is like, as `struct cmfs_stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStat {
    size: u64,
    pages: u64,
    atime: i64,
    mtime: i64,
    ctime: i64,
    crtime: i64,
    atime_ns: u32,
    mtime_ns: u32,
    ctime_ns: u32,
    crtime_ns: u32,
    object: u32,
    kind: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    rdev: u32,
    reserved: u32,
}

fn stat(volume: &mut Volume, object: u32, to: Option<&mut CStat>) -> Result<(), Error> {
    let to = to.ok_or(Error::BadArgument)?;
    let attr = volume.fs.attr(object)?;
    *to = CStat {
        size: attr.size,
        pages: attr.pages,
        atime: attr.atime.sec,
        mtime: attr.mtime.sec,
        ctime: attr.ctime.sec,
        crtime: attr.crtime.sec,
        atime_ns: attr.atime.nsec,
        mtime_ns: attr.mtime.nsec,
        ctime_ns: attr.ctime.nsec,
        crtime_ns: attr.crtime.nsec,
        object: attr.id,
        kind: attr.kind.code(),
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        links: attr.links,
        rdev: attr.rdev,
        reserved: 0,
    };
    Ok(())
}

/// What the object of a path is like.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_stat(volume: *mut Volume, path: *const c_char, to: *mut CStat) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (path, to) = unsafe { (text(path), to.as_mut()) };
    let work = |volume: &mut Volume| {
        let object = resolve(&mut volume.fs, path?)?;
        stat(volume, object, to)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// What an object is like.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_fstat(volume: *mut Volume, object: u32, to: *mut CStat) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let to = unsafe { to.as_mut() };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| stat(volume, object, to)) }
}

/// Changes permission bits.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_chmod(volume: *mut Volume, object: u32, mode: u32) -> c_int {
    let set = SetAttr { perm: Some(mode), ..SetAttr::default() };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.set_attr(object, &set)) }
}

/// Changes owner and group.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_chown(volume: *mut Volume, object: u32, uid: u32, gid: u32) -> c_int {
    let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.set_attr(object, &set)) }
}

/// Changes the times of access and change.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_utime(volume: *mut Volume, object: u32, atime: i64, mtime: i64) -> c_int {
    let time = |sec: i64| Some(Time { sec, nsec: 0 });
    let set = SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.set_attr(object, &set)) }
}

/// The value of an extended attribute; how many bytes there are.
///
/// # Safety
/// `value` has room for `len`, the rest is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_getxattr(
    volume: *mut Volume,
    object: u32,
    name: *const c_char,
    value: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (name, buffer) = unsafe { (text(name), slice_mut(value, len)) };
    let work = |volume: &mut Volume| {
        let (value, buffer) = (volume.fs.attribute(object, name?)?, buffer?);
        let part = value.len().min(buffer.len());
        buffer[..part].copy_from_slice(&value[..part]);
        Ok(value.len() as i64)
    };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}

/// Sets an extended attribute.
///
/// # Safety
/// `value` holds `len`, the rest is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_setxattr(
    volume: *mut Volume,
    object: u32,
    name: *const c_char,
    value: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (name, value) = unsafe { (text(name), slice(value, len)) };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.set_attribute(object, name?, Some(value?))) }
}

/// Removes an extended attribute.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_removexattr(volume: *mut Volume, object: u32, name: *const c_char) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let name = unsafe { text(name) };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.set_attribute(object, name?, None)) }
}

/// The names of all extended attributes, each with its NUL; how many bytes there are.
///
/// # Safety
/// `names` has room for `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_listxattr(
    volume: *mut Volume,
    object: u32,
    names: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that there is room.
    let buffer = unsafe { slice_mut(names, len) };
    let work = |volume: &mut Volume| {
        let (all, buffer) = (volume.fs.attributes(object)?, buffer?);
        let bytes = all.iter().flat_map(|name| name.iter().copied().chain([0]));
        buffer.iter_mut().zip(bytes.clone()).for_each(|(to, byte)| *to = byte);
        Ok(bytes.count() as i64)
    };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}
