//! Page-aligned buffers that are used again.
//!
//! The first touch of fresh memory costs a page fault a page, several times the read that fills it, and
//! direct I/O wants aligned memory. So reads fill a [`Buffer`] from a [`Pool`], hand it out as
//! [`Bytes`], and the memory comes back when the last clone is dropped. Sizes are powers of two; each
//! size keeps at most [`KEPT_BYTES`] of idle memory, and what is larger than [`LARGEST`] is not kept.

use bytes::Bytes;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer, in bytes: enough for direct I/O on any device.
pub const ALIGN: usize = 4096;
/// The largest size a pool keeps, in bytes.
pub const LARGEST: usize = 4 << 20;
/// Idle bytes a pool keeps of each size.
pub const KEPT_BYTES: usize = 4 << 20;

const CLASSES: usize = (LARGEST / ALIGN).ilog2() as usize + 1;

/// Idle memory, by size.
pub struct Pool {
    idle: [Mutex<Vec<Region>>; CLASSES],
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Arc<Pool> {
        Arc::new(Pool { idle: std::array::from_fn(|_| Mutex::new(Vec::new())) })
    }

    /// A buffer of `len` bytes with whatever its last user left in it (zeros if it is new).
    pub fn take(self: &Arc<Pool>, len: usize) -> Buffer {
        let (class, capacity) = class_of(len);
        let idle = self.idle.get(class).and_then(|idle| idle.lock().pop());
        let region = idle.unwrap_or_else(|| Region::new(capacity));
        Buffer { region: Some(region), len, pool: Arc::clone(self) }
    }

    fn give_back(&self, region: Region) {
        let (class, capacity) = class_of(region.layout.size());
        if let Some(idle) = self.idle.get(class) {
            let mut idle = idle.lock();
            if (idle.len() + 1) * capacity <= KEPT_BYTES {
                idle.push(region);
            }
        }
    }
}

/// The size class that holds `len` bytes (past the last one: not kept) and its capacity.
fn class_of(len: usize) -> (usize, usize) {
    let capacity = len.max(ALIGN).next_power_of_two();
    if capacity > LARGEST {
        return (CLASSES, len.next_multiple_of(ALIGN));
    }
    ((capacity / ALIGN).ilog2() as usize, capacity)
}

/// One piece of aligned, initialised memory.
struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region owns its memory; nothing else points to it.
unsafe impl Send for Region {}
// SAFETY: a shared region is only read.
unsafe impl Sync for Region {}

impl Region {
    fn new(capacity: usize) -> Region {
        let layout = Layout::from_size_align(capacity, ALIGN).expect("buffer sizes fit the address space");
        // SAFETY: the layout's size is at least ALIGN, so never zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Region { start: start.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Aligned memory to fill; goes back to its pool when dropped.
pub struct Buffer {
    region: Option<Region>,
    len: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    fn region(&self) -> &Region {
        self.region.as_ref().expect("a buffer has its region until it is dropped")
    }

    /// The memory as bytes that may be shared; it returns to the pool after the last clone.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the region holds at least `len` initialised bytes and lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.region().start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.region().start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.give_back(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_after_the_last_clone() {
        let pool = Pool::new();
        let mut buffer = pool.take(5000);
        buffer.as_mut().fill(7);
        let address = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze();
        let part = bytes.slice(4096..);
        drop(bytes);
        assert_ne!(pool.take(8192).as_ref().as_ptr(), address, "still in use");
        assert_eq!(&part[..], &[7; 904]);
        drop(part);
        let again: Vec<*const u8> =
            [pool.take(8192), pool.take(8192)].iter().map(|b| b.as_ref().as_ptr()).collect();
        assert!(again.contains(&address));
    }

    #[test]
    fn every_buffer_is_aligned_and_as_long_as_asked() {
        let pool = Pool::new();
        for len in [1, 512, 4096, 4097, 1 << 20, LARGEST, LARGEST + 1] {
            let buffer = pool.take(len);
            assert_eq!(buffer.as_ref().len(), len);
            assert_eq!(buffer.as_ref().as_ptr() as usize % ALIGN, 0);
        }
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = Pool::new();
        let many: Vec<Buffer> = (0..20).map(|_| pool.take(1 << 20)).collect();
        drop(many);
        assert_eq!(pool.idle[8].lock().len(), KEPT_BYTES >> 20);
        drop(pool.take(LARGEST * 2));
    }
}
