//! An [`Error`] on its way to the kernel.

use bimetal_base::Error;
use bimetal_vfs::errno::{is_trouble, number};
use fuser::Errno;

/// The number for an error; what a program cannot have caused is logged with the operation it happened in.
pub(super) fn errno(operation: &'static str, error: &Error) -> Errno {
    let number = number(error);
    if is_trouble(error) {
        tracing::warn!(operation, errno = number, "{error}");
    }
    Errno::from_i32(number)
}
