//! What a program without an operating system needs of its surroundings: memory from C's allocator, and somewhere
//! to go when something is broken.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::panic::PanicInfo;

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(pointer: *mut c_void);
    fn cmfs_panic() -> !;
}

/// C's allocator, which gives memory aligned for anything up to 8 bytes.
struct Heap;

const ALIGN_MAX: usize = 8;

// SAFETY: malloc gives memory of the size asked for, aligned to 8 bytes or null, until free takes it back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGN_MAX {
            return core::ptr::null_mut();
        }
        // SAFETY: any size may be asked for.
        unsafe { malloc(layout.size()).cast() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: it came from malloc.
        unsafe { free(pointer.cast()) }
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    // SAFETY: the firmware provides it, and it does not return.
    unsafe { cmfs_panic() }
}
