//! `mount -o remount`: what of a mount the kernel keeps by itself is changed, and all else is said to stay.
//!
//! The kernel tells no FUSE server of a remount. So `ro`, `rw` and what may be run or trusted can be changed, not what the server
//! works by (`lag`, `durability`, access times, …).

use super::status;
use crate::front::mounts;
use crate::{Error, Result};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, mount_remount};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Options that change a flag, and whether they set it.
const CHANGES: [(&str, MountFlags, bool); 8] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
];

/// Flags as statvfs(2) shows them and as mount(2) takes them.
const KEPT: [(StatVfsMountFlags, MountFlags); 7] = [
    (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
    (StatVfsMountFlags::NODEV, MountFlags::NODEV),
    (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
    (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
];

/// Options that say what is mounted, as fstab(5) has them, and not how.
const NAMES: [&str; 4] = ["remount", "ssd", "log", "fsname"];

/// Changes a mount as far as that is possible.
///
/// # Errors
/// Nothing of ours is mounted there; it is to become writable and its server never writes; what the kernel says.
pub(super) fn remount(place: &Path, options: &[OsString]) -> Result<ExitCode> {
    let name = place.display();
    let status = status::read(place)?;
    let failed = |why: rustix::io::Errno| Error::io(format!("{name}: remount"), why.into());
    let now = rustix::fs::statvfs(place).map_err(failed)?.f_flag;
    let kept = KEPT.iter().filter(|(shown, _)| now.contains(*shown));
    let mut flags = kept.fold(MountFlags::empty(), |all, (_, flag)| all | *flag);
    // mount(8) passes on what it finds of the mount, beside what it was told.
    let shown = place.canonicalize().map_or(Vec::new(), |place| mounts::options_at(&place));
    let mut stay: Vec<String> = Vec::new();
    for option in options.iter().map(|option| option.to_string_lossy()) {
        let word = option.split('=').next().unwrap_or_default();
        match CHANGES.iter().find(|(change, ..)| *change == option) {
            Some((_, flag, set)) => flags.set(*flag, *set),
            None if NAMES.contains(&word) || shown.iter().any(|shown| *shown == option) => {}
            None => stay.push(option.into_owned()),
        }
    }
    if !flags.contains(MountFlags::RDONLY) && status["front"]["options"]["read_only"] == true {
        return Err(Error::invalid(format!(
            "{name}: it was mounted read-only, and its server writes nothing; unmount it, and mount it without ro"
        )));
    }
    mount_remount(place, flags, c"").map_err(failed)?;
    if !stay.is_empty() {
        tracing::warn!("{name}: only a new mount changes these, which stay as they are: {}", stay.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}
