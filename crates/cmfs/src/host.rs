//! What the host said of a medium in a file. The core is told only that the medium is gone: it needs no more, whoever called it does.

use bimetal_base::Error;
use cmfs_core::NandError;
use std::cell::RefCell;

thread_local! {
    /// Of this thread's last operation that met an error of the host. The core answers in the thread that calls it.
    static SAID: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Keeps an error of the host for whoever called the core.
pub(crate) fn said(why: Error) {
    SAID.set(Some(why));
}

/// As [`said`], of a NAND.
pub(crate) fn gone(why: Error) -> NandError {
    said(why);
    NandError::Gone
}

/// The error that the host said last, once.
pub(crate) fn take() -> Option<Error> {
    SAID.take()
}
