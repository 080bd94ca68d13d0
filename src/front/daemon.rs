//! Going into the background, and telling the shell how it went.
//!
//! The process forks while it has one thread. The child becomes the server; the parent waits on a pipe until the
//! child says that it is ready, or why it is not, and ends with that. A child that dies unheard closes the pipe.

use super::messages;
use crate::media::guard;
use crate::{Error, Result};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What the child writes first.
const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Which of the two processes this is.
pub(super) enum Side {
    /// The one the shell waits for.
    Parent(Child),
    /// The one that serves.
    Child(Parent),
}

/// The serving process, as its parent sees it.
pub(super) struct Child(File);

/// The waiting process, as the serving one sees it.
pub(super) struct Parent(File);

/// Splits the process in two. Must be called while it has a single thread and has opened nothing itself.
pub(super) fn split() -> Result<Side> {
    close_inherited();
    let (from_child, to_parent) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|why| Error::io("a pipe to the background process", why.into()))?;
    // SAFETY: the caller promises a single thread, so that no lock is held in the child by a thread it lacks.
    match unsafe { libc::fork() } {
        -1 => Err(Error::io("a background process", io::Error::last_os_error())),
        0 => {
            drop(from_child);
            rustix::process::setsid().map_err(|why| Error::io("a session of its own", why.into()))?;
            Ok(Side::Child(Parent(to_parent.into())))
        }
        _ => {
            drop(to_parent);
            Ok(Side::Parent(Child(from_child.into())))
        }
    }
}

/// Closes what a shell or make left open: whoever waits for the other end must not wait for the server.
fn close_inherited() {
    // SAFETY: the caller promises that nothing in this process owns a descriptor beyond the standard three. Where
    // the kernel has no such call (before 5.9), they stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// What a process in the background has instead of a terminal.
pub(super) struct Messages {
    nowhere: OwnedFd,
    said: OwnedFd,
    /// The log, if it was not there before.
    made: Option<PathBuf>,
}

impl Messages {
    /// Opens `log` to append to, or else the system's log: to be done before anything that a log that cannot be made should not
    /// stop, and before anything worth a message.
    pub fn open(log: Option<&Path>) -> Result<Messages> {
        let nowhere = open(Path::new("/dev/null"), OFlags::RDWR)?;
        let copy = |of: &OwnedFd| of.try_clone().map_err(|why| Error::io("the log of the server", why));
        let mut made = None;
        let said = match log {
            Some(path) => {
                let is_there = path.exists();
                let file = guard::log(path).map_err(|why| why.explained("the log of the server (--log)"))?;
                // A link leads to what was made.
                made = if is_there { None } else { path.canonicalize().ok() };
                let file = OwnedFd::from(file);
                messages::log_to_file(copy(&file)?.into());
                file
            }
            None => {
                messages::log_to_system()?;
                copy(&nowhere)?
            }
        };
        Ok(Messages { nowhere, said, made })
    }

    /// Nobody is going to say anything: a log that was made for it, and has nothing, goes.
    pub fn take_back(self) {
        if let Some(made) = self.made.filter(|made| made.metadata().is_ok_and(|found| found.len() == 0)) {
            // Why nobody does is what is reported.
            let _ = std::fs::remove_file(made);
        }
    }
}

impl Child {
    /// Waits until the child serves; its error, as text, if it does not.
    pub fn wait(mut self) -> Result<()> {
        let mut said = Vec::new();
        self.0.read_to_end(&mut said).map_err(|why| Error::io("the background process", why))?;
        match said.split_first() {
            Some((&READY, _)) => Ok(()),
            Some((&FAILED, text)) => Err(Error::Invalid(String::from_utf8_lossy(text).into_owned())),
            _ => Err(Error::invalid("the background process died; run with --foreground to see why")),
        }
    }
}

impl Parent {
    /// Lets the parent end well. From here on nothing is written to the terminal, but to the log.
    pub fn ready(mut self, messages: Messages) -> Result<()> {
        let Messages { nowhere, said, .. } = messages;
        let failed = |why: rustix::io::Errno| Error::io("leaving the terminal", why.into());
        rustix::stdio::dup2_stdin(&nowhere).map_err(failed)?;
        rustix::stdio::dup2_stdout(&said).map_err(failed)?;
        rustix::stdio::dup2_stderr(&said).map_err(failed)?;
        messages::leave_terminal();
        // A directory that someone may want to unmount is no place to stay.
        std::env::set_current_dir("/").map_err(|why| Error::io("/", why))?;
        // The parent may have been killed meanwhile; the mount is there all the same.
        let _ = self.0.write_all(&[READY]);
        Ok(())
    }

    /// Hands the parent the error to print.
    pub fn failed(mut self, why: &Error) {
        let _ = self.0.write_all(&[FAILED]).and_then(|()| write!(self.0, "{why}"));
    }
}

fn open(path: &Path, how: OFlags) -> Result<OwnedFd> {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::open(path, how | OFlags::CLOEXEC, mode).map_err(|why| Error::io(path.display(), why.into()))
}
