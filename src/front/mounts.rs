//! What processes see mounted, as the kernel's mount tables tell it: who keeps a mount in a namespace of its own, what holds a
//! path, and with which options.

use crate::error::shown;
use crate::media::guard::mounts_seen_by;
use std::fs;
use std::path::{Path, PathBuf};

/// A process that has a file system mounted in a mount namespace of its own.
pub(super) struct Holder {
    pub pid: i32,
    pub name: String,
    /// Where it is mounted there.
    pub at: PathBuf,
}

/// Who has the file system with this device number, of stat(2), mounted in other mount namespaces than that of this process: a
/// process of each. Those that may not be looked at are left out.
pub(super) fn holders(device: u64) -> Vec<Holder> {
    let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
    let mut seen: Vec<PathBuf> = space("self").into_iter().collect();
    let mut pids: Vec<i32> = super::processes::all().collect();
    pids.sort_unstable();
    let holder = |pid: i32| {
        let theirs = space(&pid.to_string()).ok().filter(|theirs| !seen.contains(theirs))?;
        seen.push(theirs);
        let mount =
            mounts_seen_by(&pid.to_string()).into_iter().find(|mount| mount.number == Some(device))?;
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(Holder { pid, name: shown(name.trim_ascii_end()), at: mount.at })
    };
    pids.into_iter().filter_map(holder).collect()
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
