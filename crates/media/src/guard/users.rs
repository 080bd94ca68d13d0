//! Who uses a file or device, and the refusals that say so.
//!
//! The kernel tells of mounts in `/proc/self/mountinfo` ([`super::mounts`]), of swap in `/proc/swaps`, of device mapper and RAID in
//! `/sys/dev/block/*/holders`, of locks in `/proc/locks`. What a user of another mount namespace mounted is not in
//! these; taking the device for exclusive use fails then, see [`held`].

use super::mounts::{mounts_of, unescape};
use super::place::{self, Place};
use super::{PATIENCE, PAUSE, Target};
use bimetal_base::{Error, Result};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

/// An error if the kernel uses this place in a way that forbids what `target` is to undergo.
pub(super) fn refuse(place: &Place, target: &Target) -> Result<()> {
    let mut found = refusal(place, target);
    // A loop device that goes away after its last user stays for a moment.
    for _ in 0..PATIENCE {
        if !matches!(&found, Some((_, true))) {
            break;
        }
        thread::sleep(PAUSE);
        found = refusal(place, target);
    }
    found.map_or(Ok(()), |(why, _)| Err(Error::InUse(why)))
}

/// Why the target cannot be had, and whether it may go away by itself.
fn refusal(place: &Place, target: &Target) -> Option<(String, bool)> {
    let name = target.path.display();
    let writes = target.role.writes();
    let loops = place::loops_over(place);
    let through = loops.iter().flat_map(|(device, place)| {
        place.numbers.iter().map(move |number| (*number, format!(" (through {device})")))
    });
    let numbers: Vec<(u64, String)> =
        place.numbers.iter().map(|number| (*number, String::new())).chain(through).collect();
    for (number, through) in &numbers {
        if let Some(mount) = mounts_of(*number).into_iter().find(|mount| writes || !mount.read_only) {
            let at = mount.at.display();
            return Some((
                format!(
                    "{name} is in use by the kernel: it is mounted on {at}{through}; unmount it first: umount {at}"
                ),
                false,
            ));
        }
    }
    if is_swap(place, &numbers) {
        return Some((format!("{name} is in use as swap; take it away first: swapoff {name}"), false));
    }
    if !writes {
        // Two loop devices over a file may be read, but not below somebody who has one for himself.
        let mut busy = loops.iter().filter(|(device, place)| !is_mounted(place) && is_held(device));
        let why = busy.next().map(|(device, _)| {
            format!("{name} is in use by another program through {device}; see lsblk and fuser {device}")
        });
        return why.map(|why| (why, true));
    }
    for (number, _) in &numbers {
        if let Some(holder) = holder_of(*number) {
            return Some((
                format!(
                    "{name} is in use by {holder} (LVM, RAID or device mapper; see lsblk); take that apart first"
                ),
                false,
            ));
        }
    }
    // A device that it lies on is no user of it, but somebody else may have all of that one.
    let is_user = |(device, over): &&(String, Place)| {
        !over.numbers.first().is_some_and(|number| place.through.contains(number)) || is_held(device)
    };
    let (device, _) = loops.iter().find(is_user)?;
    Some((
        format!("{name} is in use by {device}; detach it first: losetup -d {device} (losetup -l shows all)"),
        true,
    ))
}

/// Whether somebody has a device for exclusive use.
fn is_held(device: &str) -> bool {
    let taken = fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
    taken.is_err_and(|why| why.raw_os_error() == Some(libc::EBUSY))
}

/// Whether the kernel has mounted some of it.
pub(super) fn is_mounted(place: &Place) -> bool {
    place.numbers.iter().any(|number| !mounts_of(*number).is_empty())
}

/// The refusal of what another bimetal has locked.
pub(super) fn locked(path: &Path, file: &File) -> Error {
    let by = file.metadata().ok().and_then(|found| lock_owner(path, (found.dev(), found.ino())));
    if let Some((pid, _)) = by.as_ref().filter(|(pid, _)| *pid == std::process::id()) {
        let name = path.display();
        return Error::InUse(format!(
            "{name} is in use by this command itself (process {pid}); name another"
        ));
    }
    let by = by.map_or("another program".to_string(), |(pid, command)| format!("process {pid} ({command})"));
    Error::InUse(format!(
        "{} is in use by {by}; if it is mounted (see findmnt -t fuse.bimetal), unmount it first: bimetal umount MOUNTPOINT",
        path.display()
    ))
}

/// The refusal of a device that cannot be had for exclusive use.
pub(super) fn held(path: &Path) -> Error {
    Error::InUse(format!(
        "{} is in use by another program or another mount namespace; see lsblk and fuser {0}",
        path.display()
    ))
}

fn is_swap(place: &Place, numbers: &[(u64, String)]) -> bool {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let paths = lines.filter_map(|line| line.split(|byte| b" \t".contains(byte)).next()).map(unescape);
    let mut found = paths.filter_map(|path| fs::metadata(path).ok());
    found.any(|found| {
        numbers.iter().any(|(number, _)| *number == found.rdev()) || Place::of(&found).is_same(place)
    })
}

/// What device mapper or RAID built on a device.
fn holder_of(number: u64) -> Option<String> {
    let holders = fs::read_dir(place::node(number).join("holders")).ok()?;
    let name = holders.flatten().next()?.file_name().to_string_lossy().into_owned();
    let mapped = fs::read_to_string(format!("/sys/block/{name}/dm/name"));
    Some(mapped.map_or(format!("/dev/{name}"), |name| format!("/dev/mapper/{}", name.trim())))
}

/// Process and command of who holds a flock on an inode.
fn lock_owner(path: &Path, (device, inode): (u64, u64)) -> Option<(u32, String)> {
    let of = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/locks").ok()?;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.get(1) == Some(&"FLOCK") && line.get(5) == Some(&of.as_str()))?;
    let pid: u32 = line.get(4)?.parse().ok()?;
    // Who took the lock may have been killed, and a program that it was passed on to goes on.
    command_of(pid).or_else(|| opener(path))
}

/// A process that has a file open, and its command. Names are compared: to look at what others have open may wait for a dead
/// server.
fn opener(path: &Path) -> Option<(u32, String)> {
    let path = path.canonicalize().ok()?;
    let numbers = fs::read_dir("/proc").ok()?.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|name| name == path);
    let mut others = numbers.filter(|pid: &u32| *pid != std::process::id());
    let pid = others
        .find(|pid| fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|files| files.flatten().any(is_it)))?;
    command_of(pid)
}

fn command_of(pid: u32) -> Option<(u32, String)> {
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, command.trim().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockExclusive).unwrap();
        let said = locked(file.path(), file.as_file()).to_string();
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    }
}
