//! Memory: what the caller gave, or where nothing was given what the system, or in firmware `malloc`, gives.
//!
//! All of the library's memory comes from here. What was given is kept in a list of free pieces, first fit. Before a call
//! begins it is asked whether there is enough for it, so that none ends in the middle for want of memory.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use linked_list_allocator::Heap;

/// The memory that was given, if any.
struct Given {
    heap: Heap,
    from: usize,
    bytes: usize,
    /// The least that was free.
    least: usize,
}

struct Memory {
    given: UnsafeCell<Given>,
    #[cfg(not(target_os = "none"))]
    taken: core::sync::atomic::AtomicBool,
}

// SAFETY: `with` lets one thread at a time in; without an operating system there is one, as the header says.
unsafe impl Sync for Memory {}

#[global_allocator]
static MEMORY: Memory = Memory {
    given: UnsafeCell::new(Given { heap: Heap::empty(), from: 0, bytes: 0, least: 0 }),
    #[cfg(not(target_os = "none"))]
    taken: core::sync::atomic::AtomicBool::new(false),
};

impl Memory {
    fn with<T>(&self, work: impl FnOnce(&mut Given) -> T) -> T {
        #[cfg(not(target_os = "none"))]
        while self.taken.swap(true, core::sync::atomic::Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: nobody else is here, and `work` neither allocates nor comes here again.
        let done = work(unsafe { &mut *self.given.get() });
        #[cfg(not(target_os = "none"))]
        self.taken.store(false, core::sync::atomic::Ordering::Release);
        done
    }
}

// SAFETY: both allocators keep to the layout, and what one gave goes back to it.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let given = self.with(|given| {
            if given.bytes == 0 {
                return None;
            }
            let found = given.heap.allocate_first_fit(layout);
            given.least = given.least.min(given.heap.free());
            Some(found.map_or(core::ptr::null_mut(), NonNull::as_ptr))
        });
        match given {
            Some(found) => found,
            // SAFETY: as the caller promises.
            None => unsafe { system::alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let is_given = self.with(|given| {
            let is_given = (pointer as usize).wrapping_sub(given.from) < given.bytes;
            if is_given && let Some(pointer) = NonNull::new(pointer) {
                // SAFETY: it is in the memory that was given, so it came from there, with this layout.
                unsafe { given.heap.deallocate(pointer, layout) };
            }
            is_given
        });
        if !is_given {
            // SAFETY: it came from there.
            unsafe { system::dealloc(pointer, layout) }
        }
    }
}

/// Takes memory; false if some was given before, or it is of no use.
///
/// # Safety
/// The memory is nobody else's, for ever.
pub unsafe fn give(memory: *mut u8, bytes: usize) -> bool {
    MEMORY.with(|given| {
        if given.bytes > 0 || memory.is_null() || bytes < 1024 {
            return false;
        }
        // SAFETY: as the caller promises; it is done once.
        unsafe { given.heap.init(memory, bytes) };
        (given.from, given.bytes, given.least) = (memory as usize, bytes, given.heap.free());
        true
    })
}

/// Bytes that are free of those that were given; `None`: none were.
pub fn free() -> Option<usize> {
    MEMORY.with(|given| (given.bytes > 0).then(|| given.heap.free()))
}

/// The most that was in use of what was given, bytes; what is asked anew from here on if `forget`.
pub fn most_used(forget: bool) -> usize {
    MEMORY.with(|given| {
        let most = given.bytes.saturating_sub(given.least);
        if forget && given.bytes > 0 {
            given.least = given.heap.free();
        }
        most
    })
}

#[cfg(not(target_os = "none"))]
mod system {
    use core::alloc::{GlobalAlloc, Layout};
    use std::alloc::System;

    /// # Safety
    /// As [`GlobalAlloc::alloc`].
    pub unsafe fn alloc(layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// As [`GlobalAlloc::dealloc`].
    pub unsafe fn dealloc(pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// C's allocator, which gives memory aligned for anything up to 8 bytes.
#[cfg(all(target_os = "none", feature = "malloc"))]
mod system {
    use core::alloc::Layout;
    use core::ffi::c_void;

    unsafe extern "C" {
        fn malloc(size: usize) -> *mut c_void;
        fn free(pointer: *mut c_void);
    }

    const ALIGN_MAX: usize = 8;

    /// # Safety
    /// As [`core::alloc::GlobalAlloc::alloc`].
    pub unsafe fn alloc(layout: Layout) -> *mut u8 {
        if layout.align() > ALIGN_MAX {
            return core::ptr::null_mut();
        }
        // SAFETY: any size may be asked for.
        unsafe { malloc(layout.size()).cast() }
    }

    /// # Safety
    /// As [`core::alloc::GlobalAlloc::dealloc`].
    pub unsafe fn dealloc(pointer: *mut u8, _: Layout) {
        // SAFETY: it came from malloc.
        unsafe { free(pointer.cast()) }
    }
}

/// Nothing but what was given.
#[cfg(all(target_os = "none", not(feature = "malloc")))]
mod system {
    use core::alloc::Layout;

    /// # Safety
    /// None.
    pub unsafe fn alloc(_: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    /// # Safety
    /// None: nothing came from here.
    pub unsafe fn dealloc(_: *mut u8, _: Layout) {}
}
