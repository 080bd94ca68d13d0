//! `bimetal umount`: the end of a mount, and of its server.

use super::progress::Progress;
use super::status;
use crate::error::shown;
use crate::front::fuse::{self, FAREWELL, Unmount, pid_namespace, unmount};
use crate::front::mounts::{self, Holder};
use crate::front::processes;
use crate::media::guard::{MountedAt, mounted_at};
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, getxattr, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal umount /mnt
  bimetal umount --lazy /mnt        from the tree of names now, for its users when they are done
Ends with 0 when the server has written everything and said so; with 1 when it is unmounted but something could not be
written, or the server died: the message says what is missing and where to look. With 1 also where another mount namespace
(a container, unshare -m) has a copy of the mount, which keeps the server and its devices: the message names its process.";

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
        let place = status::waiting_for(&self.mountpoint, || whole(&self.mountpoint))?;
        let mounted = ours(&place)?;
        if !mounted.whole && !self.no_wait {
            let place = place.display();
            return Err(Error::invalid(format!(
                "{place}: a directory of a mount is mounted here by itself, where its server cannot be asked when it is done; nothing \
                 was unmounted; take it away with: umount {place}, or with --no-wait"
            )));
        }
        let is_volume = mounted.kind == OURS[0];
        let mut dead = status::waiting_for(&place, || is_dead(&place));
        let Asked { server, farewell } = match self.no_wait || dead {
            true => Asked::default(),
            // It may die, or be found dead, just now.
            false => Asked::of(&place, is_volume).or_else(|why| {
                dead = is_dead(&place);
                if dead { Ok(Asked::default()) } else { Err(why) }
            })?,
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
            self.wait(&place, &server)?;
        }
        if dead && is_volume {
            let read_only = "its server was dead already, which costs nothing if it was mounted read-only";
            let how = if mounted.read_only { read_only } else { "its server was dead already" };
            return Err(died(&place, how));
        }
        farewell.map_or(Ok(()), |farewell| heed(&place, farewell))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Waits until the server is gone.
    ///
    /// # Errors
    /// It goes on, as what is unmounted here is mounted elsewhere.
    fn wait(&self, place: &Path, server: &Server) -> Result<()> {
        let progress = Progress::spinner("the server writes everything out");
        let second = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        let (mut is_told, mut looks) = (false, 0);
        let ended = loop {
            match poll(&mut [PollFd::new(&server.running, PollFlags::IN)], Some(&second)) {
                Ok(0) => looks += 1,
                Ok(_) => break Ok(()),
                Err(Errno::INTR) => continue,
                Err(why) => break Err(Error::io("waiting for the server", why.into())),
            }
            // Some have it for a moment only, such as a service that is just being started.
            if looks < LOOKS {
                continue;
            }
            if let Some(why) = self.held(server.device) {
                let (place, pid) = (place.display(), server.pid);
                break Err(Error::invalid(format!(
                    "{place} is unmounted here, but its server (process {pid}) goes on, and its devices stay in use: {why}"
                )));
            }
            if !is_told && processes::is_stopped(server.pid) {
                is_told = true;
                let (place, pid) = (place.display(), server.pid);
                progress.aside(&format!(
                    "{place} is unmounted, but its server (process {pid}) is stopped and writes nothing; let it go on with: \
                     kill -CONT {pid}"
                ));
            }
        };
        progress.done();
        ended
    }

    /// Who keeps the file system with this device number mounted, although it is mounted nowhere here.
    fn held(&self, device: u64) -> Option<String> {
        let holders = mounts::holders(device);
        let Some(Holder { pid, name, at }) = holders.first() else {
            // Without a look at the processes of others: the kernel has the connection for as long as anything is mounted, or
            // open after --lazy.
            let connection = format!("/sys/fs/fuse/connections/{}", rustix::fs::minor(device));
            let is_there = !self.lazy && Path::new(&connection).exists();
            return is_there.then(|| {
                "a process that may not be looked at has it mounted in a mount namespace of its own (a container, or unshare -m); root \
                 is told which; it may not be known that everything is written"
                    .to_string()
            });
        };
        let (more, at_shown) = (holders.len() - 1, shown(at.as_os_str().as_bytes()));
        let more = if more > 0 { format!(", and so have {more} other namespaces") } else { String::new() };
        let root = format!("/proc/{pid}/root");
        let written = written_by(&Path::new(&root).join(at.strip_prefix("/").unwrap_or(at)));
        Some(format!(
            "process {pid} ({name}) has it mounted on {at_shown} in a mount namespace of its own (a container, or unshare -m){more}; \
             {written}; end that process, or: nsenter -t {pid} -m umount {at_shown}"
        ))
    }
}

/// How far the server behind a place has come with writing, in words.
fn written_by(place: &Path) -> String {
    let status = fuse::ask(place).unwrap_or_default();
    match (status["operations"][0].as_u64(), status["operations"][1].as_u64()) {
        (Some(last), Some(disk)) if last > disk => format!(
            "the disk half lacks the last {} operations so far, and gets them within its lag",
            last - disk
        ),
        (Some(_), Some(_)) => "its server says that everything is written to the disk half".into(),
        _ => "what was not fsynced may not be written yet".into(),
    }
}

/// How far apart a server that does not end is looked at, and how many looks it has for it first.
const LOOK: Duration = Duration::from_secs(1);
const LOOKS: u32 = 10;

/// A server that runs.
struct Server {
    pid: i32,
    /// The number of its file system, as stat(2) shows it.
    device: u64,
    /// Can be read when it has ended.
    running: OwnedFd,
}

/// What was found out before the end.
#[derive(Default)]
struct Asked {
    /// Who is waited for.
    server: Option<Server>,
    /// Where the server will say how it went, or why it will not.
    farewell: Option<std::result::Result<File, Errno>>,
}

impl Asked {
    /// Asks the server of a mount who it is, and to say at its end how it went.
    ///
    /// # Errors
    /// It does not say who it is, and could not be waited for; or who asks may not unmount.
    fn of(place: &Path, is_volume: bool) -> Result<Asked> {
        let Some(pid) = server_of(place)? else { return Ok(Asked::default()) };
        let farewell = is_volume.then(|| ask_for_farewell(place)).transpose()?;
        let device = place.metadata().map_err(|why| Error::io(place.display(), why))?.dev();
        let server = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(running) => Some(Server { pid: pid.as_raw_nonzero().get(), device, running }),
            // Then it will not have said anything.
            Err(Errno::SRCH) => None,
            Err(why) => return Err(Error::io("waiting for the server", why.into())),
        };
        Ok(Asked { server, farewell })
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

/// Asks the server to say how it went into a file in memory. Whether it will is known when it is over.
///
/// # Errors
/// There is no such file; the server is dead; who asks may not unmount.
fn ask_for_farewell(place: &Path) -> Result<std::result::Result<File, Errno>> {
    let file = memfd_create("farewell", MemfdFlags::CLOEXEC);
    let file: File = file.map_err(|why| Error::io("a file in memory", why.into()))?.into();
    let name = format!("{FAREWELL}{}", file.as_raw_fd());
    match getxattr(place, &name, &mut [0; 64]) {
        Ok(_) => Ok(Ok(file)),
        Err(Errno::NOTCONN) => Err(status::dead(place)),
        Err(Errno::PERM) => Err(Error::invalid(format!(
            "{}: only root, and who mounted it, can unmount it; nothing was unmounted",
            place.display()
        ))),
        Err(why) => Ok(Err(why)),
    }
}

/// An error if the server could not write everything out, died, or would not say.
fn heed(place: &Path, farewell: std::result::Result<File, Errno>) -> Result<()> {
    let mut farewell = farewell.map_err(|why| {
        Error::invalid(format!(
            "{} is unmounted, but its server did not say whether everything was written ({why}); look at its log (journalctl -t \
             bimetal, or what --log named), and at the volume with: bimetal fsck -n",
            place.display()
        ))
    })?;
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
        // Only a volume of two halves has one; it may be mounted from the disk half alone.
        None if said["ssd"].is_null() => "What was fsynced before that is on its medium".to_string(),
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

/// The process that serves a mount; none where nothing is to be waited for.
///
/// # Errors
/// It does not say who it is, and could not be waited for.
fn server_of(mountpoint: &Path) -> Result<Option<Pid>> {
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
    Ok(number.and_then(Pid::from_raw).filter(|pid| !processes::is_above(*pid)))
}
