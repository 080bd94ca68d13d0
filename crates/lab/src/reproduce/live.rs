//! `reproduce --live`: the same experiments on real mounts, over devices that `bimetal export` serves in real time.
//!
//! ```text
//! bimetal reproduce --live ─ setpriv ─ unshare (mounts, processes) ─ bimetal reproduce --live: measures
//!                                                                      ├─ bimetal export (a device each)
//!                                                                      └─ mkfs, mount, bimetal mount
//! ```
//!
//! All of it happens in mount and process namespaces of its own. Whoever ends it and however, SIGKILL among it: the first process
//! in them ends, all others with it, the mounts go with their last process, and the kernel lets go of the loop devices (they
//! are made by `mount -o loop`, which asks for that). Images lie in a folder of the process outside, which removes it unless it is killed.

use super::Experiment;
use super::temporary::{self, Temporary};
use bimetal_base::{Error, Result};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

/// What begins the names of figures that were measured on real mounts.
pub(super) const PREFIX: &str = "live/";
/// Tells the process inside which namespace it was started from.
const OUTSIDE: &str = "BIMETAL_LIVE_OUTSIDE";
/// The mount namespace of this process.
const NAMESPACE: &str = "/proc/self/ns/mnt";
/// Where programs are that make and mount file systems, beside what the environment says.
const SBIN: &str = ":/usr/sbin:/sbin";

/// What is called to make namespaces, before the program and its words.
const ENTER: [&str; 10] = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Where the measurement is made.
pub(super) enum Place {
    /// By this process, which has namespaces of its own.
    Here,
    /// Another process made it, and ended with this code.
    Elsewhere(i32),
    /// It cannot be made here: why, in a sentence.
    Nowhere(String),
}

/// Sees to it that the measurement is made in namespaces of its own.
///
/// # Errors
/// The process that makes it could not be started.
pub(super) fn place() -> Result<Place> {
    let own = namespace();
    if std::env::var_os(OUTSIDE).is_some_and(|outside| Some(outside) != own) {
        return Ok(Place::Here);
    }
    if let Some(why) = missing() {
        return Ok(Place::Nowhere(why));
    }
    // What is in it goes with this process, which outlives those inside.
    let folder = Temporary::new("bimetal-live-")?;
    let program = std::env::current_exe().map_err(|why| Error::io("this program", why))?;
    let mut inside = command(ENTER[0]);
    inside.args(&ENTER[1..]).arg(program).args(std::env::args_os().skip(1));
    let begun = inside.env(OUTSIDE, own.unwrap_or_default()).env("TMPDIR", folder.path()).spawn();
    let ended = begun.and_then(|mut child| temporary::wait(&mut child));
    let ended = ended.map_err(|why| Error::io("setpriv (from util-linux)", why))?;
    Ok(Place::Elsewhere(ended.code().unwrap_or(1)))
}

fn namespace() -> Option<OsString> {
    std::fs::read_link(NAMESPACE).ok().map(Into::into)
}

/// A program of the system, found where such programs are; nothing of ours in its environment.
pub(super) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", std::env::var("PATH").unwrap_or_default() + SBIN).env("LC_ALL", "C");
    for name in ["BIMETAL_SSD", "BIMETAL_DISK", "BIMETAL_NAND", "BIMETAL_NVRAM"] {
        command.env_remove(name);
    }
    command
}

/// What a measurement on real mounts needs and is not here.
fn missing() -> Option<String> {
    let can_open = |path: &str| OpenOptions::new().read(true).write(true).open(path).is_ok();
    if !rustix::process::geteuid().is_root() {
        return Some("skipped: real mounts and loop devices need root".into());
    }
    if !can_open("/dev/fuse") {
        return Some("skipped: there is no FUSE here (/dev/fuse cannot be opened)".into());
    }
    if !can_open("/dev/loop-control") {
        return Some("skipped: there are no loop devices here (/dev/loop-control cannot be opened)".into());
    }
    for program in ["setpriv", "unshare", "mount", "umount", "mke2fs", "mkfs.xfs"] {
        if !is_there(program) {
            return Some(format!("skipped: {program} is not here"));
        }
    }
    if let Some(kind) = ["ext2", "xfs"].into_iter().find(|kind| !kernel_has(kind)) {
        return Some(format!("skipped: this kernel has no {kind}"));
    }
    let mut tried = command(ENTER[0]);
    tried.args(&ENTER[1..]).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    match tried.status() {
        Ok(ended) if ended.success() => None,
        _ => Some("skipped: no mount and process namespaces can be made here (unshare)".into()),
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + SBIN;
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

/// Whether the kernel has a file system, or a module of it.
fn kernel_has(kind: &str) -> bool {
    let listed = || {
        let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        all.lines().any(|line| line.split_whitespace().last() == Some(kind))
    };
    let load = || command("modprobe").args(["--quiet", kind]).stderr(Stdio::null()).status();
    listed() || load().is_ok_and(|ended| ended.success() && listed())
}

/// What a live measurement is said to be about.
pub(super) fn about(experiment: &Experiment) -> String {
    format!("live, on real mounts over devices served in real time: {}", experiment.about)
}
