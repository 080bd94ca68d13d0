//! The limit of a file's length (`ulimit -f`): an error of the write, told as any other.
//!
//! The kernel sends SIGXFSZ to who writes past it, which ends a process without a word. Where the signal is handled, the
//! write fails with EFBIG. A handler, not `SIG_IGN`: programs that are run from here (mke2fs, e2fsck, those that are
//! recorded) have the default again.

use crate::{Error, Result};
use std::{io, mem, ptr};

extern "C" fn nothing(_: libc::c_int) {}

/// From here on a write past the limit of a file's length fails, for the whole process.
pub(super) fn heed() -> Result<()> {
    // SAFETY: a sigaction is plain data, of which zeros are valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing, which is safe at any moment; a null pointer says that the old one is not wanted.
    match unsafe { libc::sigaction(libc::SIGXFSZ, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::io("SIGXFSZ", io::Error::last_os_error())),
    }
}
