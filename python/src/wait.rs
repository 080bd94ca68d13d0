//! Work without the interpreter's lock, which Ctrl-C ends.

use crate::Error;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// How often to look for signals; what ends is told at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Does `work` on a thread of its own, and waits for it without the interpreter's lock. Ctrl-C sets `stop` and waits for
/// the work to end; a second one leaves it to itself.
///
/// # Errors
/// The signal's exception (`KeyboardInterrupt`); the work panicked.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (tell, mut told) = sync_channel(1);
    let work = move || {
        // Where nobody waits any more nobody is told.
        let _ = tell.send(catch_unwind(AssertUnwindSafe(work)));
    };
    thread::Builder::new().name("bimetal".into()).spawn(work)?;
    let mut interrupted: Option<PyErr> = None;
    loop {
        let heard;
        (heard, told) = py.detach(move || (told.recv_timeout(LOOK_EVERY), told));
        match (heard, interrupted.take()) {
            (Ok(_), Some(why)) => return Err(why),
            (Ok(Ok(given)), None) => return Ok(given),
            (Ok(Err(panic)), None) => return Err(panicked(&*panic)),
            (Err(RecvTimeoutError::Disconnected), _) => {
                return Err(Error::new_err("the run's thread is gone"));
            }
            (Err(RecvTimeoutError::Timeout), before) => match (py.check_signals(), before) {
                (Ok(()), before) => interrupted = before,
                (Err(why), Some(_)) => return Err(why),
                (Err(why), None) => {
                    stop.store(true, Relaxed);
                    interrupted = Some(why);
                }
            },
        }
    }
}

/// A panic, which is a fault of bimetal, as an error.
fn panicked(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
    Error::new_err(format!("the run panicked: {text}; please report it"))
}
