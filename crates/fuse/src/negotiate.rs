//! What is agreed with the kernel when a mount starts.

use fuser::{InitFlags, KernelConfig};
use std::time::Duration;

/// How long the kernel may remember names and attributes. Nobody else changes them, so for good; an hour
/// measures the same and forgives.
pub(super) const REMEMBER: Duration = Duration::from_secs(3600);

const MAX_WRITE_BYTES: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;

/// What is agreed on where the kernel has it. fuser 0.18 cannot speak `FUSE_SETXATTR_EXT`: see
/// [`super::caller::loses_sgid`]. `FUSE_POSIX_ACL` comes on top where the kernel checks permissions; agreeing to
/// it makes the kernel check them, asked or not, at a GETATTR for each creation and removal.
///
/// Not `FUSE_ASYNC_DIO`: after an asynchronous direct write the kernel leaves what others have read meanwhile in its
/// page cache, old (xfstests generic/451); after one that it waits for, it does not.
const WANTED: [InitFlags; 8] = [
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
];

/// Agrees with the kernel on the protocol's options.
pub(super) fn negotiate(config: &mut KernelConfig, writeback: bool, default_permissions: bool) {
    let offered = config.capabilities();
    let mut wanted = WANTED.into_iter().fold(InitFlags::empty(), InitFlags::union);
    wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, writeback);
    wanted.set(InitFlags::FUSE_POSIX_ACL, default_permissions);
    let missing = wanted & !offered;
    if !missing.is_empty() {
        tracing::info!("this kernel's FUSE lacks {missing:?}; the mount goes on without");
    }
    // These three can only fail for values out of range.
    let _ = config.add_capabilities(wanted & offered);
    let _ = config.set_max_write(MAX_WRITE_BYTES);
    let _ = config.set_max_background(MAX_BACKGROUND);
}
