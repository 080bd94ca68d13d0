//! `bimetal umount`: the end of a mount, and of its server.

use super::progress::Progress;
use super::status;
use crate::error::shown;
use crate::front::farewell::{Farewell, Waiter};
use crate::front::fuse::{Unmount, pid_namespace, unmount};
use crate::front::mounts::{self, Holder};
use crate::front::processes;
use crate::media::guard::{MountedAt, mounted_at};
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, PidfdFlags, Uid, getuid, pidfd_open};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use rustix::time::Timespec;
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal umount /mnt
  bimetal umount --lazy /mnt        from the tree of names now, for its users when they are done
Ends with 0 when the server has written everything and said so; with 1 when it is unmounted but something could not be
written, or the server died: the message says what is missing and where to look. With 1 also where the mount lives on (in another
mount namespace, as a container has, below an overlay, as an open copy), which keeps the server and its devices.";

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
    /// Do not wait for the server, nor ask it anything: also where it does not answer
    #[arg(long)]
    no_wait: bool,
    /// How it went, as one JSON object
    #[arg(long)]
    json: bool,
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
        // Who does not wait asks nothing: a server that does not answer would be waited for.
        let mut dead = !self.no_wait && status::waiting_for(&place, || is_dead(&place));
        let Asked { server, farewell } = match self.no_wait || dead {
            true => Asked::default(),
            // It may die, or be found dead, just now.
            false => Asked::of(&place, &mounted, is_volume).or_else(|why| {
                dead = is_dead(&place);
                if dead { Ok(Asked::default()) } else { Err(why) }
            })?,
        };
        // The directory of whoever calls it may be in the mount, which would be waited for.
        std::env::set_current_dir("/").map_err(|why| Error::io("/", why))?;
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
            self.wait(&place, &mounted, &server, farewell.as_ref())?;
        }
        if dead && is_volume {
            let read_only = "its server was dead already, which costs nothing if it was mounted read-only";
            let how = if mounted.read_only { read_only } else { "its server was dead already" };
            return Err(died(&place, how));
        }
        let written = farewell.map(|farewell| heed(&place, &farewell)).transpose()?.map(|()| true);
        if self.json {
            super::say(&super::as_line(&json!({ "unmounted": true, "written": written })))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Waits until the server is gone, and says what for.
    ///
    /// # Errors
    /// It goes on, as what is unmounted here lives on elsewhere.
    fn wait(
        &self,
        place: &Path,
        mounted: &MountedAt,
        server: &Server,
        farewell: Option<&std::result::Result<Farewell, String>>,
    ) -> Result<()> {
        let progress = Progress::spinner("the server writes everything out");
        let second = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        let is_quiet = !io::stderr().is_terminal();
        let (mut watch, mut told) = (Watch::default(), None);
        let ended = loop {
            match poll(&mut [PollFd::new(&server.running, PollFlags::IN)], Some(&second)) {
                Ok(0) => {}
                Ok(_) => break Ok(()),
                Err(Errno::INTR) => continue,
                Err(why) => break Err(Error::io("waiting for the server", why.into())),
            }
            let said = farewell.and_then(|farewell| farewell.as_ref().ok()).map(Farewell::said);
            let state = watch.look(processes::is_stopped(server.pid), said.unwrap_or_default());
            // Some have it for a moment only, such as a service that is just being started.
            if state == State::Serves && watch.since >= LOOKS {
                let holder = mounts::holder(mounted);
                // Who started this waits for its end, most likely, and would be waited for.
                let ends_not = |holder: &Holder| {
                    holder.at.is_some() || Pid::from_raw(holder.pid).is_some_and(processes::is_above)
                };
                if !self.lazy || holder.as_ref().is_some_and(ends_not) {
                    break Err(lives_on(place, server, &watch.said, holder));
                }
            }
            if watch.since < SOON {
                continue;
            }
            let what = || self.waits_for(state, server, mounted, &watch.said);
            if told != Some(state) && (is_quiet || state == State::Stopped) {
                told = Some(state);
                progress.aside(&format!("{} is unmounted, but {}", place.display(), what()));
            }
            if !is_quiet {
                progress.now(what());
            }
        };
        progress.done();
        ended
    }

    /// What the server is waited for with, in words.
    fn waits_for(&self, state: State, server: &Server, mounted: &MountedAt, said: &Value) -> String {
        let pid = server.pid;
        match state {
            State::Stopped => format!(
                "its server (process {pid}) is stopped and writes nothing; let it go on with: kill -CONT {pid}"
            ),
            State::Silent => {
                format!("its server (process {pid}) does not say how far it is; it is waited for")
            }
            State::Writes => {
                format!("its server (process {pid}) writes everything out; {}", written_by(said))
            }
            State::Serves if !self.lazy => {
                format!("its server (process {pid}) still serves it elsewhere; it has some seconds to end")
            }
            State::Serves => {
                let user = mounts::holder(mounted);
                let user = user
                    .map_or(String::new(), |user| format!(", such as process {} ({})", user.pid, user.name));
                format!("its server (process {pid}) still serves those who use it{user}; they are waited for")
            }
        }
    }
}

/// That what is unmounted is not over.
fn lives_on(place: &Path, server: &Server, said: &Value, holder: Option<Holder>) -> Error {
    let who = match holder {
        Some(Holder { pid, name, at: Some(at) }) => {
            let at = shown(at.as_os_str().as_bytes());
            format!(
                "process {pid} ({name}) has it mounted on {at} in its mount namespace (a container, or unshare -m); end that process, \
                 or: nsenter -t {pid} -m umount {at}"
            )
        }
        Some(Holder { pid, name, at: None }) => format!("process {pid} ({name}) is in it"),
        None => "what keeps it is in another mount namespace (a container, unshare -m, one kept without a process), an overlay above it, \
                 an open copy, or a process that is in it; no process that may be looked at shows it"
            .to_string(),
    };
    Error::invalid(format!(
        "{} is unmounted here, but its server (process {}) goes on, and its devices stay in use: the same mount lives on elsewhere; \
         {}; {who}",
        place.display(),
        server.pid,
        written_by(said),
    ))
}

/// How far the server has come with writing, in words.
fn written_by(said: &Value) -> String {
    match (said["operations"][0].as_u64(), said["operations"][1].as_u64()) {
        (Some(last), Some(disk)) if last > disk => format!(
            "the disk half lacks the last {} operations and {} of data so far",
            last - disk,
            show_size(said["at_risk_bytes"].as_u64().unwrap_or(0))
        ),
        (Some(_), Some(_)) => "its server says that the disk half has every operation".into(),
        _ => "what was not fsynced may not be written yet".into(),
    }
}

/// How far apart a server that does not end is looked at, after how many looks it is told of, and how many it has before it is taken
/// to go on.
const LOOK: Duration = Duration::from_secs(1);
const SOON: u32 = 3;
const LOOKS: u32 = 10;

/// What a server that is waited for does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    Stopped,
    /// It says nothing, or nothing new.
    #[default]
    Silent,
    Serves,
    Writes,
}

/// What the looks at a server gave.
#[derive(Default)]
struct Watch {
    state: State,
    /// Looks since it is in that state.
    since: u32,
    /// What it said last, and for how many looks it has said nothing new.
    said: Value,
    silent: u32,
}

impl Watch {
    /// Another look at a server, which is stopped or not and says this.
    fn look(&mut self, is_stopped: bool, said: Value) -> State {
        self.silent =
            if said["beat"].is_u64() && said["beat"] != self.said["beat"] { 0 } else { self.silent + 1 };
        if self.silent == 0 {
            self.said = said;
        }
        let state = match self.said["state"].as_str() {
            _ if is_stopped => State::Stopped,
            // It may take long to work out what is left; a server that hangs, or is frozen, says nothing new at all.
            Some("writes") if self.silent < LOOKS => State::Writes,
            Some("serves") if self.silent < SOON => State::Serves,
            _ => State::Silent,
        };
        self.since = if state == self.state { self.since + 1 } else { 1 };
        self.state = state;
        state
    }
}

/// A server that runs.
struct Server {
    pid: i32,
    /// Can be read when it has ended.
    running: OwnedFd,
}

/// What was found out before the end.
#[derive(Default)]
struct Asked {
    /// Who is waited for.
    server: Option<Server>,
    /// Where the server says how far it is, or why it does not.
    farewell: Option<std::result::Result<Farewell, String>>,
}

impl Asked {
    /// Asks the server of a mount who it is, and to say how it goes. Where root may not ask, as somebody has it mounted for himself
    /// alone, he is asked for.
    ///
    /// # Errors
    /// It does not say who it is, and could not be waited for; or who asks may not unmount.
    fn of(place: &Path, mounted: &MountedAt, is_volume: bool) -> Result<Asked> {
        let waiter = Waiter::new();
        let ask = || -> Result<_> {
            let Some(pid) = server_of(place)? else { return Ok(None) };
            Ok(Some((pid, is_volume.then(|| ask_for_farewell(place, &waiter)).transpose()?)))
        };
        let asked = match (ask(), owner_of(mounted)) {
            (Err(_), Some(owner)) if getuid().is_root() && !owner.0.is_root() => as_user(owner, ask),
            (asked, _) => asked,
        }?;
        let Some((pid, number)) = asked else { return Ok(Asked::default()) };
        let farewell = number.map(|number| waiter.take(pid.as_raw_nonzero().get(), number?));
        let server = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(running) => Some(Server { pid: pid.as_raw_nonzero().get(), running }),
            // Then it will not have said anything.
            Err(Errno::SRCH) => None,
            Err(why) => return Err(Error::io("waiting for the server", why.into())),
        };
        Ok(Asked { server, farewell })
    }
}

/// Who mounted, user and group.
fn owner_of(mounted: &MountedAt) -> Option<(Uid, Gid)> {
    let number =
        |name: &str| mounted.options.iter().find_map(|option| option.strip_prefix(name)?.parse().ok());
    Some((Uid::from_raw(number("user_id=")?), Gid::from_raw(number("group_id=")?)))
}

/// Does something as another user, in a thread of its own that ends with it.
fn as_user<T: Send>((user, group): (Uid, Gid), what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let done = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_res_gid(group, group, group)
                .and_then(|()| set_thread_res_uid(user, user, user))
                .map_err(|why| Error::io("another user", why.into()))?;
            what()
        });
        thread.join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Types of file system whose mounts are ours: of volumes, and of devices that are exported.
const OURS: [&str; 2] = ["fuse.bimetal", "fuse.bimetal-device"];

/// Whether nobody serves a mount any more.
fn is_dead(place: &Path) -> bool {
    rustix::fs::statvfs(place).err() == Some(Errno::NOTCONN)
}

/// The absolute path of a mount point, without links, as the kernel tells it: its server is not asked.
fn whole(place: &Path) -> Result<PathBuf> {
    let failed = |why: io::Error| Error::io(place.display(), why);
    let open = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let open = open.map_err(|why| failed(why.into()))?;
    std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).map_err(failed)
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

/// Asks the server to say how it goes; the number of its file, or why it does not say.
///
/// # Errors
/// The server is dead; who asks may not unmount.
fn ask_for_farewell(place: &Path, waiter: &Waiter) -> Result<std::result::Result<u32, String>> {
    match waiter.ask(place) {
        Ok(number) => Ok(Ok(number)),
        Err(Errno::NOTCONN) => Err(status::dead(place)),
        Err(Errno::PERM) => Err(Error::invalid(format!(
            "{}: only root, and who mounted it, can unmount it; nothing was unmounted",
            place.display()
        ))),
        Err(why) => Ok(Err(why.to_string())),
    }
}

/// An error if the server could not write everything out, died, or would not say.
fn heed(place: &Path, farewell: &std::result::Result<Farewell, String>) -> Result<()> {
    let farewell = farewell.as_ref().map_err(|why| {
        Error::invalid(format!(
            "{} is unmounted, but its server did not say whether everything was written ({why}); look at its log (journalctl -t \
             bimetal, or what --log named), and at the volume with: bimetal fsck -n",
            place.display()
        ))
    })?;
    let said = farewell.said();
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_server_is_taken_to_serve_only_while_it_goes_on_saying_so() {
        let says = |state: &str, beat: u64| json!({"state": state, "beat": beat});
        let mut watch = Watch::default();
        for beat in 1..=4 {
            assert_eq!(watch.look(false, says("serves", beat)), State::Serves);
            assert_eq!(watch.since, beat as u32);
        }
        // Stopped, it has said what it says now before.
        assert_eq!(watch.look(true, says("serves", 4)), State::Stopped);
        assert_eq!(watch.look(false, says("serves", 5)), State::Serves);
        assert_eq!(watch.since, 1);
        for _ in 0..SOON {
            watch.look(false, says("serves", 5));
        }
        assert_eq!(watch.state, State::Silent);
        assert_eq!(watch.look(false, Value::Null), State::Silent);
        assert_eq!(watch.look(false, says("writes", 6)), State::Writes);
        for _ in 1..LOOKS {
            assert_eq!(watch.look(false, says("writes", 6)), State::Writes);
        }
        assert_eq!(watch.look(false, says("writes", 6)), State::Silent);
        assert_eq!(watch.look(false, says("writes", 7)), State::Writes);
    }
}
