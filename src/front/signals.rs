//! Signals that ask a server or a command to end, as ordinary events.

use crate::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::{io, mem, ptr, thread};

/// SIGINT from a terminal, SIGTERM from a system that shuts down, SIGHUP from a terminal that closes.
const ASK_TO_END: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Those that end a command which leaves nothing half done: SIGQUIT, too, which a server leaves to the system.
const END: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals that are held back for [`watch`](Self::watch).
pub(super) struct Held(libc::sigset_t);

/// Holds the signals back in this thread and all it starts from now on, so that only [`Held::watch`] sees them. What whoever
/// started this process has it ignore (nohup, a script's `&`) is ignored: held back it would be kept for the watch.
pub(super) fn hold() -> Result<Held> {
    hold_back(&ASK_TO_END)
}

fn hold_back(signals: &[i32]) -> Result<Held> {
    let heeded: Vec<i32> = signals.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
    block(&heeded).map(Held)
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: a sigaction is plain data; a null pointer says that nothing is to be changed.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Blocks signals in this thread and all it starts from now on.
fn block(signals: &[i32]) -> Result<libc::sigset_t> {
    // SAFETY: a sigset_t is plain data, and sigemptyset makes it a valid empty set before anything reads it.
    let set = unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    };
    // SAFETY: `set` is valid, and a null pointer says that the old mask is not wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => Ok(set),
        code => Err(Error::io("holding signals back", io::Error::from_raw_os_error(code))),
    }
}

/// For a command of which nothing is to stay half done, and that nobody waits for: a signal takes away what is half written, has
/// `also` do the rest, and ends it.
pub(super) fn end_whole(also: impl Fn() + Send + 'static) -> Result<()> {
    hold_back(&END)?.watch(move |signal| {
        crate::media::guard::give_up();
        also();
        std::process::exit(exit_code(signal).into());
    })
}

/// Has a command that is started heed them, whatever is held back here: what is started has the mask of who starts it.
pub(super) fn heed(command: &mut Command) -> &mut Command {
    let open = || {
        // SAFETY: a sigset_t is plain data, made valid by sigemptyset; a null pointer says that the old mask is not wanted.
        let failed = unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in END {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut())
        };
        match failed {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    };
    // SAFETY: between fork and exec it calls nothing but what is safe there, and allocates nothing.
    unsafe { command.pre_exec(open) }
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
                    libc::SIGQUIT => "SIGQUIT",
                    _ => "SIGHUP",
                });
            }
        };
        let named = thread::Builder::new().name("signals".into());
        named.spawn(wait).map_err(|why| Error::io("a thread", why)).map(drop)
    }
}

/// How far a command is that takes back what is half done when it is asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is nothing to take back.
    Before,
    /// It looks again and again whether it was asked.
    Works,
    /// It was asked, by this signal.
    Asked(&'static str),
}

/// What a command that copies asks whether it is to end: the first signal while it copies asks, any other ends it at once.
#[derive(Clone)]
pub(super) struct Ending {
    stage: Arc<Mutex<Stage>>,
    /// Readable once it was asked.
    woken: Arc<OwnedFd>,
}

impl Ending {
    /// Begins to listen; to be called before the command starts a thread.
    pub fn watched() -> Result<Ending> {
        let woken = eventfd(0, EventfdFlags::CLOEXEC).map_err(|why| Error::io("an eventfd", why.into()))?;
        let ending = Ending { stage: Arc::new(Mutex::new(Stage::Before)), woken: Arc::new(woken) };
        let heard = ending.clone();
        hold()?.watch(move |signal| heard.hear(signal))?;
        Ok(ending)
    }

    /// One that was asked by this signal while it copied.
    #[cfg(test)]
    pub fn asked_by(signal: &'static str) -> Ending {
        let woken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let ending = Ending { stage: Arc::new(Mutex::new(Stage::Works)), woken: Arc::new(woken) };
        ending.hear(signal);
        ending
    }

    /// From here on something may be half done.
    pub fn begin(&self) {
        *self.stage.lock() = Stage::Works;
    }

    /// The signal that asked the command to end.
    pub fn asked(&self) -> Option<&'static str> {
        match *self.stage.lock() {
            Stage::Asked(signal) => Some(signal),
            Stage::Before | Stage::Works => None,
        }
    }

    /// Waits until something can be read; an error if the command is asked to end first.
    pub fn wait_for(&self, input: impl AsFd) -> io::Result<()> {
        let mut both = [PollFd::new(&input, PollFlags::IN), PollFd::new(&*self.woken, PollFlags::IN)];
        while let Err(why) = poll(&mut both, None) {
            if why != rustix::io::Errno::INTR {
                return Err(why.into());
            }
        }
        match self.asked() {
            Some(signal) => Err(io::Error::other(format!("{signal} came before its end"))),
            None => Ok(()),
        }
    }

    fn hear(&self, signal: &'static str) {
        let mut stage = self.stage.lock();
        if *stage != Stage::Works {
            std::process::exit(exit_code(signal).into());
        }
        *stage = Stage::Asked(signal);
        // Nothing waits for this but `wait_for`, which asks what came.
        let _ = rustix::io::write(&*self.woken, &1_u64.to_ne_bytes());
    }
}

/// What a shell says of a command that a signal ended.
pub(super) fn exit_code(signal: &str) -> u8 {
    128 + match signal {
        "SIGINT" => libc::SIGINT as u8,
        "SIGTERM" => libc::SIGTERM as u8,
        "SIGQUIT" => libc::SIGQUIT as u8,
        _ => libc::SIGHUP as u8,
    }
}
