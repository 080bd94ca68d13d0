//! Signals that ask a server to end, as ordinary events.

use crate::{Error, Result};
use std::{io, mem, ptr, thread};

/// SIGINT from a terminal, SIGTERM from a system that shuts down, SIGHUP from a terminal that closes.
const ASK_TO_END: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals that are held back for [`watch`](Self::watch).
pub(super) struct Held(libc::sigset_t);

/// Holds the signals back in this thread and all it starts from now on, so that only [`Held::watch`] sees them.
pub(super) fn hold() -> Result<Held> {
    // SAFETY: a sigset_t is plain data, and sigemptyset makes it a valid empty set before anything reads it.
    let set = unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ASK_TO_END {
            libc::sigaddset(&mut set, signal);
        }
        set
    };
    // SAFETY: `set` is valid, and a null pointer says that the old mask is not wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => Ok(Held(set)),
        code => Err(Error::io("holding signals back", io::Error::from_raw_os_error(code))),
    }
}

impl Held {
    /// Calls `heard` with the name of each signal that comes, on a thread that lasts as long as the process.
    pub fn watch(self, mut heard: impl FnMut(&'static str) + Send + 'static) -> Result<()> {
        let wait = move || {
            loop {
                let mut signal = 0;
                // SAFETY: the set is valid and `signal` can be written to.
                if unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {
                    continue;
                }
                heard(match signal {
                    libc::SIGINT => "SIGINT",
                    libc::SIGTERM => "SIGTERM",
                    _ => "SIGHUP",
                });
            }
        };
        let named = thread::Builder::new().name("signals".into());
        named.spawn(wait).map_err(|why| Error::io("a thread", why)).map(drop)
    }
}
