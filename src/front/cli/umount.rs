//! `bimetal umount`: the end of a mount, and of its server.

use super::progress::Progress;
use super::status;
use crate::front::fuse::{FAREWELL, Unmount, pid_namespace, unmount};
use crate::front::processes;
use crate::media::guard::{MountedAt, mounted_at};
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, XattrFlags, memfd_create, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal umount /mnt
  bimetal umount --lazy /mnt        from the tree of names now, for its users when they are done
Ends with 0 when the server has written everything and said so; with 1 when it is unmounted but something could not be
written, or the server died: the message says what is missing and where to look.";

/// Unmount, and wait until the server has written everything and is gone
///
/// Takes away mounts of bimetal only. Plain `umount` works as well, but returns while the server may still be writing; only after this one are the
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
        let place = whole(&self.mountpoint)?;
        let mounted = ours(&place)?;
        if !mounted.whole && !self.no_wait {
            let place = place.display();
            return Err(Error::invalid(format!(
                "{place}: a directory of a mount is mounted here by itself, where its server cannot be asked when it is done; nothing \
                 was unmounted; take it away with: umount {place}, or with --no-wait"
            )));
        }
        let mut dead = is_dead(&place);
        let server = match self.no_wait || dead {
            true => None,
            // It may die, or be found dead, just now.
            false => server_of(&place).or_else(|why| {
                dead = is_dead(&place);
                if dead { Ok(None) } else { Err(why) }
            })?,
        };
        // Through a read-only mount nothing was changed, so there is nothing to be said of it.
        let is_volume = mounted.kind == OURS[0];
        let farewell = match server.is_some() && is_volume && !mounted.read_only {
            true => ask_for_farewell(&place)?,
            false => None,
        };
        let how = if self.lazy { Unmount::Lazily } else { Unmount::IfIdle };
        unmount(&place, how).map_err(|why| match &why {
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
                Error::invalid(format!("{why}; see who with: fuser -vm {}, or use --lazy", place.display()))
            }
            _ => why,
        })?;
        if let Some((other, is_whole)) = mounted.elsewhere.first().filter(|_| server.is_some()) {
            let (other, command) = (other.display(), if *is_whole { "bimetal umount" } else { "umount" });
            let what = if *is_whole { "the same" } else { "a directory of it" };
            return Err(Error::invalid(format!(
                "{} is unmounted, but its server goes on: {what} is mounted on {other}, too; {command} {other} ends it",
                place.display(),
            )));
        }
        if let Some(server) = server {
            let progress = Progress::spinner("the server writes everything out");
            let ended = poll(&mut [PollFd::new(&server, PollFlags::IN)], None);
            progress.done();
            ended.map_err(|why| Error::io("waiting for the server", why.into()))?;
        }
        if dead && is_volume && !mounted.read_only {
            return Err(died(&place, "its server was dead already"));
        }
        farewell.map_or(Ok(()), |farewell| heed(&place, farewell))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Types of file system whose mounts are ours: of volumes, and of devices that are exported.
const OURS: [&str; 2] = ["fuse.bimetal", "fuse.bimetal-device"];

/// Whether nobody serves a mount any more.
fn is_dead(place: &Path) -> bool {
    rustix::fs::statvfs(place).err() == Some(Errno::NOTCONN)
}

/// The absolute path of a mount point, without links. One whose server is dead cannot be looked at itself.
fn whole(place: &Path) -> Result<PathBuf> {
    let failed = |why| Error::io(place.display(), why);
    match place.canonicalize() {
        Err(why) if why.kind() != io::ErrorKind::NotFound => {
            let path = std::path::absolute(place).map_err(failed)?;
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(failed(why));
            };
            Ok(parent.canonicalize().map_err(failed)?.join(name))
        }
        path => path.map_err(failed),
    }
}

/// What is mounted on `place`; an error if that is not ours to take away.
fn ours(place: &Path) -> Result<MountedAt> {
    let name = place.display();
    match mounted_at(place) {
        Some(mounted) if OURS.contains(&mounted.kind.as_str()) => Ok(mounted),
        // What an older version exports has no type of its own where root mounted it.
        Some(mounted) if mounted.kind == "fuse" && status::read(place).is_ok() => Ok(mounted),
        Some(MountedAt { kind, source, .. }) => Err(Error::invalid(format!(
            "{name}: no mount of bimetal, but {kind} ({source}) is mounted here; if that is meant: umount {name}"
        ))),
        None => Err(Error::invalid(format!(
            "{name}: nothing is mounted here; the mounts of bimetal are shown by: findmnt -t {}",
            OURS.join(",")
        ))),
    }
}

/// Asks the server to say how it went into a file in memory; `None` if it is too old to know how.
fn ask_for_farewell(place: &Path) -> Result<Option<File>> {
    let file = memfd_create("farewell", MemfdFlags::CLOEXEC);
    let file: File = file.map_err(|why| Error::io("a file in memory", why.into()))?.into();
    let number = file.as_raw_fd().to_string();
    match setxattr(place, FAREWELL, number.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(Some(file)),
        Err(why) => {
            tracing::warn!(
                "{}: its server will not say whether everything was written: {why}",
                place.display()
            );
            Ok(None)
        }
    }
}

/// An error if the server could not write everything out, or died.
fn heed(place: &Path, mut farewell: File) -> Result<()> {
    let mut text = String::new();
    let read = farewell.seek(SeekFrom::Start(0)).and_then(|_| farewell.read_to_string(&mut text));
    read.map_err(|why| Error::io("a file in memory", why))?;
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    if said["written"] == true {
        return Ok(());
    }
    let Some(why) = said["why"].as_str() else {
        return Err(died(place, "its server died before it said that everything was written"));
    };
    let place = place.display();
    let lost = match (said["operations"][0].as_u64(), said["operations"][1].as_u64()) {
        (Some(last), Some(disk)) if last > disk => format!(
            "the disk half lacks the last {} operations and {} of data",
            last - disk,
            show_size(said["at_risk_bytes"].as_u64().unwrap_or(0))
        ),
        _ => "what was not fsynced may be lost".to_string(),
    };
    let held = match said["ssd_lost"].as_str() {
        // Only a volume of two halves counts operations.
        None if !said["operations"].is_array() => "What was fsynced before that is on its medium".to_string(),
        None => {
            "What was fsynced is in the SSD's log: mount both halves again to have it on the disk".to_string()
        }
        Some(why) => format!(
            "The SSD half had been given up before that ({why}): of what was fsynced since then the disk half has what could be written"
        ),
    };
    Err(Error::invalid(format!(
        "{place} is unmounted, but not everything could be written out: {why}; {lost}. {held}. See the server's log (journalctl -t bimetal, or what --log named), dmesg, and bimetal fsck -n"
    )))
}

fn died(place: &Path, how: &str) -> Error {
    Error::invalid(format!(
        "{} is unmounted, but {how}; mount it again (what was fsynced is recovered then), and look at its log (journalctl -t bimetal, or what --log named) and at dmesg",
        place.display()
    ))
}

/// The process that serves a mount; none where it has ended meanwhile.
///
/// # Errors
/// It does not say who it is, and could not be waited for.
fn server_of(mountpoint: &Path) -> Result<Option<OwnedFd>> {
    let status = status::read(mountpoint).map_err(|why| {
        Error::invalid(format!(
            "{}: its server does not say who it is, so nobody would know when it is done ({why}); nothing was unmounted; take \
             it away without waiting with --no-wait",
            mountpoint.display()
        ))
    })?;
    let front = &status["front"];
    if front["pid_namespace"]
        .as_str()
        .is_some_and(|theirs| pid_namespace().is_some_and(|ours| ours != theirs))
    {
        return Err(Error::invalid(format!(
            "{}: its server runs where processes have other numbers (in a container), so it cannot be waited for from here; nothing \
             was unmounted; unmount it there, or take it away without waiting with --no-wait",
            mountpoint.display()
        )));
    }
    // What is exported has nothing to write out, and its server says nothing of itself.
    let number = front["pid"].as_i64().and_then(|number| i32::try_from(number).ok());
    // A server that waits for us (`crash`, for its command) goes on for as long as we do.
    let pid = number.and_then(Pid::from_raw).filter(|pid| !processes::is_above(*pid));
    match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        None | Some(Err(Errno::SRCH)) => Ok(None),
        Some(server) => server.map(Some).map_err(|why| Error::io("waiting for the server", why.into())),
    }
}
