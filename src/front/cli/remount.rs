//! `mount -o remount`: what of a mount the kernel keeps by itself is changed, and all else is said to stay.
//!
//! The kernel tells no FUSE server of a remount. So `ro`, `rw` and what may be run or trusted can be changed, not what the server
//! works by (`lag`, `durability`, access times, …).

use super::mount::{SLOPPY, strange};
use super::{helper, status};
use crate::front::fuse::{OPTIONS, OptionSpec};
use crate::front::kinds::mountable;
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

/// Changes a mount as far as that is possible; what stays, beside something that changed or was `written` in fstab, is told.
///
/// # Errors
/// Nothing of ours is mounted there; there is no such option; nothing would change; it is to become writable and its server never
/// writes; what the kernel says.
pub(super) fn remount(place: &Path, options: &[OsString]) -> Result<ExitCode> {
    remount_beside(place, options, &helper::options_in_fstab("--target", place.as_os_str()))
}

fn remount_beside(place: &Path, options: &[OsString], written: &[OsString]) -> Result<ExitCode> {
    let name = place.display();
    let status = status::read(place)?;
    let failed = |why: rustix::io::Errno| Error::io(format!("{name}: remount"), why.into());
    let now = rustix::fs::statvfs(place).map_err(failed)?.f_flag;
    let kept = KEPT.iter().filter(|(shown, _)| now.contains(*shown));
    let before = kept.fold(MountFlags::empty(), |all, (_, flag)| all | *flag);
    let mut flags = before;
    // mount(8) passes on what it finds of the mount, beside what it was told.
    let shown = place.canonicalize().map_or(Vec::new(), |place| mounts::options_at(&place));
    let (mut stay, mut is_asked): (Vec<String>, bool) = (Vec::new(), false);
    let is_sloppy = options.iter().any(|option| option == SLOPPY);
    for given in options.iter().filter(|option| *option != SLOPPY) {
        let option = given.to_string_lossy();
        let word = option.split('=').next().unwrap_or_default();
        match CHANGES.iter().find(|(change, ..)| *change == option) {
            Some((_, flag, set)) => flags.set(*flag, *set),
            None if NAMES.contains(&word) || shown.iter().any(|shown| *shown == option) => {}
            None if is_known(word) => {
                is_asked |= !written.contains(given);
                stay.push(option.into_owned());
            }
            None if is_sloppy => {}
            None => return Err(strange(word, all().map(|spec| spec.name))),
        }
    }
    if !flags.contains(MountFlags::RDONLY) && status["front"]["options"]["read_only"] == true {
        return Err(Error::invalid(format!(
            "{name}: it was mounted read-only, and its server writes nothing; unmount it, and mount it without ro"
        )));
    }
    let stays = format!("only a new mount changes these, which stay as they are: {}", stay.join(", "));
    if flags == before && is_asked {
        return Err(Error::invalid(format!("{name}: nothing was changed; {stays}")));
    }
    mount_remount(place, flags, c"").map_err(failed)?;
    if !stay.is_empty() {
        super::complain(&format!("{name}: {stays}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// All mount options that there are, of any kind of file system.
fn all() -> impl Iterator<Item = &'static OptionSpec> + Clone {
    OPTIONS.iter().chain(mountable().flat_map(|kind| kind.options))
}

/// Whether there is such a mount option, a size or time behind the comma of one, or one of fstab's for a volume on NAND.
fn is_known(word: &str) -> bool {
    all().any(|spec| spec.name == word)
        || helper::PARTS.iter().any(|(name, _)| *name == word)
        || word.starts_with(|first: char| first.is_ascii_digit())
}
