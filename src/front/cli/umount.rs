//! `bimetal umount`: the end of a mount, and of its server.

use super::progress::Progress;
use super::status;
use crate::front::fuse::{Unmount, unmount};
use crate::{Error, Result};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal umount /mnt
  bimetal umount --lazy /mnt        from the tree of names now, for its users when they are done";

/// Unmount, and wait until the server has written everything and is gone
///
/// Plain `umount` works as well, but returns while the server may still be writing; only after this one are the
/// devices free to be checked or mounted otherwise.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Umount {
    /// Do not refuse when the mount is in use: take it from the tree of names, and wait for its users
    #[arg(short, long)]
    lazy: bool,
    /// Do not wait for the server
    #[arg(long)]
    no_wait: bool,
    /// The directory that is mounted on
    mountpoint: PathBuf,
}

impl Umount {
    pub fn run(&self) -> Result<ExitCode> {
        let server = server_of(&self.mountpoint);
        let place = self.mountpoint.canonicalize().unwrap_or_else(|_| self.mountpoint.clone());
        let how = if self.lazy { Unmount::Lazily } else { Unmount::IfIdle };
        unmount(&place, how).map_err(|why| match &why {
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
                Error::invalid(format!("{why}; see who with: fuser -vm {}, or use --lazy", place.display()))
            }
            _ => why,
        })?;
        if let Some(server) = server.filter(|_| !self.no_wait) {
            let progress = Progress::spinner("the server writes everything out");
            let ended = poll(&mut [PollFd::new(&server, PollFlags::IN)], None);
            progress.done();
            ended.map_err(|why| Error::io("waiting for the server", why.into()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The process that serves a mount. A mount whose server is dead has none, and can be unmounted all the same.
fn server_of(mountpoint: &Path) -> Option<OwnedFd> {
    let status = status::read(mountpoint).ok()?;
    let pid = status.get("front")?.get("pid")?.as_i64()?;
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}
