//! Directories and names.

use crate::files::make;
use crate::{Volume, done, resolve, slice_mut, split, text, with};
use cmfs_core::{Error, Kind};
use core::ffi::{c_char, c_int};

/// Makes a directory.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mkdir(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let path = unsafe { text(path) };
    let work = |volume: &mut Volume| make(volume, path?, Kind::Dir, 0o40_755, &[]).map(drop);
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Makes a symbolic link.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_symlink(
    volume: *mut Volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (target, path) = unsafe { (text(target), text(path)) };
    let work = |volume: &mut Volume| make(volume, path?, Kind::Symlink, 0o120_777, target?).map(drop);
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// What a symbolic link points at; how many bytes there were.
///
/// # Safety
/// `bytes` has room for `len`, the rest is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_readlink(
    volume: *mut Volume,
    path: *const c_char,
    bytes: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let (path, buffer) = unsafe { (text(path), slice_mut(bytes, len)) };
    let work = |volume: &mut Volume| {
        let object = resolve(&mut volume.fs, path?)?;
        let target = volume.fs.read_link(object)?;
        let buffer = buffer?;
        let part = target.len().min(buffer.len());
        buffer[..part].copy_from_slice(&target[..part]);
        Ok(target.len() as i64)
    };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}

/// Gives an object another name.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_link(volume: *mut Volume, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (from, to) = unsafe { (text(from), text(to)) };
    let work = |volume: &mut Volume| {
        let object = resolve(&mut volume.fs, from?)?;
        let (dir, name) = split(&mut volume.fs, to?)?;
        volume.fs.link(object, dir, name)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Removes a name, or a directory that is empty. What is open stays until it is closed.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_remove(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let path = unsafe { text(path) };
    let work = |volume: &mut Volume| {
        let (dir, name) = split(&mut volume.fs, path?)?;
        let object = volume.fs.lookup(dir, name)?;
        let keep = volume.is_open(object);
        match volume.fs.unlink(dir, name, keep) {
            Err(Error::IsDir) => volume.fs.rmdir(dir, name, keep).map(drop),
            done => done.map(drop),
        }
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Moves a name, in place of what stands there.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_rename(volume: *mut Volume, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (from, to) = unsafe { (text(from), text(to)) };
    let work = |volume: &mut Volume| {
        let (dir, name) = split(&mut volume.fs, from?)?;
        let (new_dir, new_name) = split(&mut volume.fs, to?)?;
        let keep = match volume.fs.lookup(new_dir, new_name) {
            Ok(replaced) => volume.is_open(replaced),
            Err(Error::NotFound) => false,
            Err(error) => return Err(error),
        };
        volume.fs.rename(dir, name, new_dir, new_name, keep)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Swaps two names, in one step.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_exchange(volume: *mut Volume, one: *const c_char, two: *const c_char) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (one, two) = unsafe { (text(one), text(two)) };
    let work = |volume: &mut Volume| {
        let (dir, name) = split(&mut volume.fs, one?)?;
        let (other_dir, other_name) = split(&mut volume.fs, two?)?;
        volume.fs.exchange(dir, name, other_dir, other_name)
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// A name in a directory, as `struct cmfs_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CEntry {
    position: u64,
    object: u32,
    kind: u32,
    name: [u8; 256],
}

/// The next entry of a directory: 1, or 0 behind the last.
///
/// # Safety
/// `entry` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_readdir(volume: *mut Volume, dir: u32, entry: *mut CEntry) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let entry = unsafe { entry.as_mut() };
    let work = |volume: &mut Volume| {
        let entry = entry.ok_or(Error::BadArgument)?;
        let mut found = 0;
        volume.fs.list(dir, entry.position, &mut |next| {
            let mut name = [0; 256];
            let len = next.name.len().min(255);
            name[..len].copy_from_slice(&next.name[..len]);
            *entry = CEntry { position: next.next, object: next.id, kind: next.kind.code(), name };
            found = 1;
            false
        })?;
        Ok(found)
    };
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}
