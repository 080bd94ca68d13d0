//! Memory that stays with a server once it has it.
//!
//! The first touch of a page is the dearest thing a small request can do: the kernel has to find and clear it,
//! and inside a virtual machine the host has to as well (a file's creation takes 37 µs instead of 11 while the
//! heap grows). So a server keeps what it frees, has one heap for all threads, and touches some in advance.

/// Makes this process keep freed memory, and touches `ahead_bytes` of it now. To be called once, before threads
/// are started. Without effect on systems whose C library is not glibc.
pub fn preallocate(ahead_bytes: usize) {
    #[cfg(target_env = "gnu")]
    {
        const HUGE: i32 = 1 << 30;
        let settings =
            [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, HUGE), (libc::M_MMAP_THRESHOLD, HUGE)];
        for (setting, value) in settings {
            // SAFETY: mallopt takes two integers and only changes how the allocator chooses; a setting it does
            // not accept is reported by a return value of 0, which leaves it as it was.
            unsafe { libc::mallopt(setting, value) };
        }
    }
    const BLOCK: usize = 1 << 20;
    const PAGE: usize = 4096;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for _ in 0..ahead_bytes / BLOCK {
        let mut block: Vec<u8> = Vec::with_capacity(BLOCK);
        for page in block.spare_capacity_mut().chunks_mut(PAGE) {
            page[0].write(1);
        }
        blocks.push(block);
    }
    // Without this the blocks, never read, need not exist at all.
    std::hint::black_box(&mut blocks);
}
