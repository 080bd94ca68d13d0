//! The object store for C: the functions of `include/bimetal_osd.h`.
//!
//! What a caller has to keep to is in the header: pointers are valid, or null where that is allowed; a store is used by
//! one thread at a time and not after `bimetal_osd_close`.

use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Content, Format, ObjectId, Store};
use bimetal_osdfs::volume::{self, Plan};
use bimetal_vfs::Caller;
use bimetal_vfs::errno::number as errno_of;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An instant, as `struct bimetal_osd_time`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CTime {
    sec: i64,
    nsec: u32,
}

/// As `struct bimetal_osd_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CStat {
    size: u64,
    stored: u64,
    created: CTime,
    modified: CTime,
    changed: CTime,
    accessed: CTime,
    hint: u8,
}

/// As `struct bimetal_osd_capacity`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CCapacity {
    total: u64,
    used: u64,
    objects: u64,
}

/// An open store.
pub struct Handle {
    store: Store,
    writable: bool,
}

fn time(stamp: Stamp) -> CTime {
    CTime { sec: stamp.sec, nsec: stamp.nsec }
}

fn code(done: Result<()>) -> c_int {
    done.map_or_else(|why| -errno_of(&why), |()| 0)
}

fn count(done: Result<usize>) -> i64 {
    done.map_or_else(|why| -i64::from(errno_of(&why)), |count| count as i64)
}

/// Runs `work` on a store that may be null.
///
/// # Safety
/// `store` is one that was opened, or null.
unsafe fn with<T>(store: *mut Handle, work: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
    // SAFETY: the caller promises that it is valid and used by nobody else.
    let handle = unsafe { store.as_mut() }.ok_or(Error::BadArgument)?;
    handle.store.arrive(bimetal_base::runtime::live().now());
    work(&mut handle.store)
}

/// As [`with`], for what changes something.
///
/// # Safety
/// As [`with`].
unsafe fn change(store: *mut Handle, work: impl FnOnce(&mut Store) -> Result<()>) -> c_int {
    // SAFETY: the caller promises that it is valid and used by nobody else.
    match unsafe { store.as_ref() } {
        Some(handle) if !handle.writable => -errno_of(&Error::ReadOnly),
        // SAFETY: as above.
        _ => code(unsafe { with(store, work) }),
    }
}

/// The bytes of a C string; none if it is null.
///
/// # Safety
/// `text` is null or ends with a NUL.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller promises that it ends.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A word of a C string, or a default.
///
/// # Safety
/// As [`text`].
unsafe fn word(given: *const c_char, default: &str) -> Result<String> {
    // SAFETY: the caller promises that it ends.
    match unsafe { text(given) } {
        None => Ok(default.into()),
        Some(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| Error::BadArgument),
    }
}

/// # Safety
/// As [`text`].
unsafe fn path(given: *const c_char) -> Result<PathBuf> {
    // SAFETY: the caller promises that it ends.
    Ok(PathBuf::from(OsStr::from_bytes(unsafe { text(given) }.ok_or(Error::BadArgument)?)))
}

/// The bytes at a pointer; it may be null for none.
///
/// # Safety
/// `bytes` is valid for reads of `len` bytes, or `len` is 0.
unsafe fn slice<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8]> {
    match len {
        0 => Ok(&[]),
        _ if bytes.is_null() || len > isize::MAX as usize => Err(Error::BadArgument),
        // SAFETY: it is not null, and the caller promises the rest.
        _ => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// Copies to a pointer.
///
/// # Safety
/// `to` is valid for writes of `room` bytes, or `room` is 0.
unsafe fn copy(from: &[u8], to: *mut c_void, room: usize) -> Result<usize> {
    if from.len() > room {
        return Err(Error::Range);
    }
    if !from.is_empty() {
        if to.is_null() {
            return Err(Error::BadArgument);
        }
        // SAFETY: it is not null and has the room, and the source is memory of our own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
    }
    Ok(from.len())
}

/// Makes an image with an empty store.
///
/// # Safety
/// Strings are null or end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_make(
    image: *const c_char,
    device: *const c_char,
    size: u64,
    placement: *const c_char,
) -> c_int {
    // SAFETY: the caller promises that strings end.
    let (nand, device, placement) =
        unsafe { (path(image), word(device, volume::DEVICE), word(placement, "lifetime")) };
    let make = || {
        let format = Format { segment_blocks: 1, placement: placement? };
        let size_bytes = (size > 0).then_some(size);
        let plan = Plan { nand: nand?, device: device?, size_bytes, format, bare: true, force: false };
        volume::make(&plan, &Caller::default()).map(drop)
    };
    code(make())
}

/// Opens a store.
///
/// # Safety
/// Strings are null or end with a NUL; `store` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_open(
    image: *const c_char,
    device: *const c_char,
    writable: c_int,
    store: *mut *mut Handle,
) -> c_int {
    // SAFETY: the caller promises that strings end.
    let (nand, device) = unsafe { (path(image), word(device, volume::DEVICE)) };
    let writable = writable != 0;
    let open = || {
        if store.is_null() {
            return Err(Error::BadArgument);
        }
        let opened = volume::open(&nand?, &device?, writable)?;
        let handle = Box::into_raw(Box::new(Handle { store: opened, writable }));
        // SAFETY: it is not null, and the caller promises that it can be written to.
        unsafe { store.write(handle) };
        Ok(())
    };
    code(open())
}

/// Ends cleanly and frees the store.
///
/// # Safety
/// `store` is one that was opened, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_close(store: *mut Handle) -> c_int {
    if store.is_null() {
        return code(Err(Error::BadArgument));
    }
    // SAFETY: it came from `Box::into_raw` in `bimetal_osd_open`.
    let mut handle = unsafe { Box::from_raw(store) };
    code(if handle.writable { handle.store.close() } else { Ok(()) })
}

/// Makes an empty object.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_create(store: *mut Handle, hint: u8, id: *mut u64) -> c_int {
    let work = |store: &mut Store| {
        // SAFETY: the caller promises that it is valid.
        let id = unsafe { id.as_mut() }.ok_or(Error::BadArgument)?;
        *id = store.create(hint)?.0;
        Ok(())
    };
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, work) }
}

/// Makes an empty object under a number.
///
/// # Safety
/// The store is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_create_as(store: *mut Handle, id: u64, hint: u8) -> c_int {
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.create_as(ObjectId(id), hint)) }
}

/// Removes an object.
///
/// # Safety
/// The store is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_remove(store: *mut Handle, id: u64) -> c_int {
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.remove(ObjectId(id))) }
}

/// The state of an object.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_stat(store: *mut Handle, id: u64, stat: *mut CStat) -> c_int {
    let work = |store: &mut Store| {
        let found = store.stat(ObjectId(id))?;
        // SAFETY: the caller promises that it is valid.
        let stat = unsafe { stat.as_mut() }.ok_or(Error::BadArgument)?;
        *stat = CStat {
            size: found.size,
            stored: found.stored,
            created: time(found.created),
            modified: time(found.modified),
            changed: time(found.changed),
            accessed: time(found.accessed),
            hint: found.hint,
        };
        Ok(())
    };
    // SAFETY: the caller promises that the store is valid.
    code(unsafe { with(store, work) })
}

/// Reads.
///
/// # Safety
/// The store is valid, and `bytes` for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_read(
    store: *mut Handle,
    id: u64,
    offset: u64,
    bytes: *mut c_void,
    len: usize,
) -> i64 {
    let work = |store: &mut Store| {
        let read = store.read(ObjectId(id), offset, len)?;
        // SAFETY: the caller promises that there is room for `len` bytes.
        unsafe { copy(&read, bytes, len) }
    };
    // SAFETY: the caller promises that the store is valid.
    count(unsafe { with(store, work) })
}

/// Writes.
///
/// # Safety
/// The store is valid, and `bytes` for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_write(
    store: *mut Handle,
    id: u64,
    offset: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let bytes = unsafe { slice(bytes, len) };
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.write(ObjectId(id), offset, Content::Bytes(bytes?))) }
}

/// Writes behind the end.
///
/// # Safety
/// The store is valid, `bytes` for reads of `len` bytes, and `offset` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_append(
    store: *mut Handle,
    id: u64,
    bytes: *const c_void,
    len: usize,
    offset: *mut u64,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (bytes, offset) = unsafe { (slice(bytes, len), offset.as_mut()) };
    let work = |store: &mut Store| {
        let at = store.append_to(ObjectId(id), Content::Bytes(bytes?))?;
        if let Some(offset) = offset {
            *offset = at;
        }
        Ok(())
    };
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, work) }
}

/// Cuts an object, or makes it longer with zeros.
///
/// # Safety
/// The store is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_truncate(store: *mut Handle, id: u64, size: u64) -> c_int {
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.truncate(ObjectId(id), size)) }
}

/// Frees a range.
///
/// # Safety
/// The store is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_punch(store: *mut Handle, id: u64, offset: u64, len: u64) -> c_int {
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.punch(ObjectId(id), offset, len)) }
}

/// The value of an attribute.
///
/// # Safety
/// All pointers are valid, `value` for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_get_attribute(
    store: *mut Handle,
    id: u64,
    name: *const c_char,
    value: *mut c_void,
    room: usize,
) -> i64 {
    // SAFETY: the caller promises that it ends.
    let name = unsafe { text(name) }.ok_or(Error::BadArgument);
    let work = |store: &mut Store| {
        let found = store.get_attribute(ObjectId(id), name?)?;
        // SAFETY: the caller promises that there is the room.
        unsafe { copy(&found, value, room) }
    };
    // SAFETY: the caller promises that the store is valid.
    count(unsafe { with(store, work) })
}

/// Sets an attribute.
///
/// # Safety
/// All pointers are valid, `value` for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_set_attribute(
    store: *mut Handle,
    id: u64,
    name: *const c_char,
    value: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises that they are valid.
    let (name, value) = unsafe { (text(name).ok_or(Error::BadArgument), slice(value, len)) };
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.set_attribute(ObjectId(id), name?, value?)) }
}

/// Removes an attribute.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_remove_attribute(
    store: *mut Handle,
    id: u64,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller promises that it ends.
    let name = unsafe { text(name) }.ok_or(Error::BadArgument);
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, |store| store.remove_attribute(ObjectId(id), name?)) }
}

/// Shows objects.
///
/// # Safety
/// The store is valid, and `visit` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_list(
    store: *mut Handle,
    from: u64,
    visit: Option<unsafe extern "C" fn(*mut c_void, u64) -> c_int>,
    context: *mut c_void,
) -> c_int {
    let work = |store: &mut Store| {
        let visit = visit.ok_or(Error::BadArgument)?;
        // SAFETY: the caller promises that it may be called so.
        store.list(ObjectId(from), &mut |id| unsafe { visit(context, id.0) } == 0)
    };
    // SAFETY: the caller promises that the store is valid.
    code(unsafe { with(store, work) })
}

/// Makes everything durable.
///
/// # Safety
/// The store is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_flush(store: *mut Handle) -> c_int {
    // SAFETY: the caller promises that the store is valid.
    unsafe { change(store, Store::flush) }
}

/// Space.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bimetal_osd_capacity(store: *mut Handle, capacity: *mut CCapacity) -> c_int {
    let work = |store: &mut Store| {
        let found = store.capacity();
        // SAFETY: the caller promises that it is valid.
        let capacity = unsafe { capacity.as_mut() }.ok_or(Error::BadArgument)?;
        *capacity = CCapacity { total: found.total, used: found.used, objects: found.objects };
        Ok(())
    };
    // SAFETY: the caller promises that the store is valid.
    code(unsafe { with(store, work) })
}
