//! What processes see mounted, as the kernel's mount tables tell it: who keeps a mount in a namespace of its own, what holds a
//! path, and with which options.

use crate::error::shown;
use crate::media::guard::{MountedAt, mounts_seen_by};
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::fs;
use std::path::{Path, PathBuf};

/// A process that keeps a mount.
pub(super) struct Holder {
    pub pid: i32,
    pub name: String,
    /// Where it is mounted in its mount namespace; none where the process is in it itself.
    pub at: Option<PathBuf>,
}

/// A process that has what `mounted` was in its own mount table, or else one that is in it or has something of it open. It says
/// nothing that is needed: none where processes may not be looked at, or what keeps it is no process.
///
/// Its server must still serve it: from then on the kernel gives its number to another.
pub(super) fn holder(mounted: &MountedAt) -> Option<Holder> {
    let number = mounted.number?;
    let holder = |pid: i32, at: Option<PathBuf>| {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Holder { pid, name: shown(name.trim_ascii_end()), at }
    };
    let mut pids: Vec<i32> = super::processes::all().collect();
    pids.sort_unstable();
    let has = |pid: &i32| {
        let mut theirs = mounts_seen_by(&pid.to_string()).into_iter();
        let it = theirs.find(|it| {
            let source = it.source.to_string_lossy() == mounted.source;
            it.number == Some(number) && it.kind == mounted.kind && source
        });
        Some(holder(*pid, Some(it?.at)))
    };
    pids.iter()
        .find_map(has)
        .or_else(|| pids.iter().find(|pid| is_in(**pid, number)).map(|pid| holder(*pid, None)))
}

/// Whether a process is in the file system with this number, or has something of it open. No server is asked.
fn is_in(pid: i32, number: u64) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all = [process.join("cwd"), process.join("root")].into_iter().chain(open);
    all.any(|path| {
        let found = statx(CWD, &path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
        found.is_ok_and(|found| makedev(found.stx_dev_major, found.stx_dev_minor) == number)
    })
}

/// The options that the kernel shows of what is mounted on `place`, an absolute path without links.
pub(super) fn options_at(place: &Path) -> Vec<String> {
    let found = mounts_seen_by("self").into_iter().rfind(|mount| mount.at == place);
    found.map_or(Vec::new(), |mount| mount.options)
}

/// Where what holds `path` is mounted; it is not looked at itself.
pub(super) fn mount_point_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let around = mounts_seen_by("self").into_iter().map(|mount| mount.at).filter(|at| path.starts_with(at));
    around.max_by_key(|at| at.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_held_by_the_innermost_mount_around_it() {
        assert_eq!(mount_point_of(Path::new("/proc/self/no/such")).as_deref(), Some(Path::new("/proc")));
    }
}
