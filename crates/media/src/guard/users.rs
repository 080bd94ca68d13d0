//! Who uses a file or device, and the refusals that say so.
//!
//! The kernel tells of mounts in `/proc/self/mountinfo`, of swap in `/proc/swaps`, of device mapper and RAID in
//! `/sys/dev/block/*/holders`, of locks in `/proc/locks`. What a user of another mount namespace mounted is not in
//! these; taking the device for exclusive use fails then, see [`held`].

use super::place::{self, Place};
use super::{PATIENCE, PAUSE, Target};
use bimetal_base::{Error, Result};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct MountLine {
    number: Option<u64>,
    kind: String,
    source: PathBuf,
    at: String,
    /// All of it is mounted, not a directory of it alone.
    whole: bool,
    read_only: bool,
}

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
            let at = mount.at;
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
    let (device, _) = loops.first()?;
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
    let by = file.metadata().ok().and_then(|found| lock_owner(found.dev(), found.ino()));
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

fn mounts_of(number: u64) -> Vec<MountLine> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_of = |mount: &MountLine| {
        let by_source = || fs::metadata(&mount.source).is_ok_and(|found| found.rdev() == number);
        mount.number == Some(number) || mount.source.starts_with("/dev") && by_source()
    };
    table.lines().filter_map(parse_mount).filter(is_of).collect()
}

/// What is mounted on a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedAt {
    /// The type of file system, as `fuse.bimetal`.
    pub kind: String,
    /// The source that `mount` shows.
    pub source: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// All of it is, not a directory of it alone, as `mount --bind` does.
    pub whole: bool,
    /// Where else the same, or a directory of it, is mounted, and whether that is all of it; what is comes first.
    pub elsewhere: Vec<(PathBuf, bool)>,
}

/// What is mounted on `place`, an absolute path without links: the last of several.
pub fn mounted_at(place: &Path) -> Option<MountedAt> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let all: Vec<MountLine> = table.lines().rev().filter_map(parse_mount).collect();
    let here = all.iter().position(|mount| Path::new(&mount.at) == place)?;
    let MountLine { number, kind, source, read_only, whole, .. } = &all[here];
    let others = all.iter().enumerate().filter(|(index, mount)| *index != here && mount.number == *number);
    let mut elsewhere: Vec<_> = others.map(|(_, mount)| (PathBuf::from(&mount.at), mount.whole)).collect();
    elsewhere.sort_by_key(|(_, whole)| !whole);
    Some(MountedAt {
        kind: kind.clone(),
        source: source.to_string_lossy().into_owned(),
        read_only: *read_only,
        whole: *whole,
        elsewhere,
    })
}

/// A line of mountinfo, as proc(5) has it.
fn parse_mount(line: &str) -> Option<MountLine> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(2);
    let number = place::parse_number(front.next()?);
    let whole = front.next()? == "/";
    let at = unescape(front.next()?);
    let mut back = back.split(' ');
    let kind = unescape(back.next()?);
    let source = unescape(back.next()?).into();
    let read_only = back.next().unwrap_or_default().split(',').any(|option| option == "ro");
    Some(MountLine { number, kind, source, at, whole, read_only })
}

/// Blanks and backslashes are octal in the kernel's tables.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_swap(place: &Place, numbers: &[(u64, String)]) -> bool {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescape);
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
fn lock_owner(device: u64, inode: u64) -> Option<(u32, String)> {
    let of = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/locks").ok()?;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.get(1) == Some(&"FLOCK") && line.get(5) == Some(&of.as_str()))?;
    let pid: u32 = line.get(4)?.parse().ok()?;
    // Who took the lock may have been killed, and a program that it was passed on to goes on.
    command_of(pid).or_else(|| opener(device, inode))
}

/// A process that has an inode open, and its command.
fn opener(device: u64, inode: u64) -> Option<(u32, String)> {
    let numbers =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |entry: fs::DirEntry| {
        fs::metadata(entry.path()).is_ok_and(|found| (found.dev(), found.ino()) == (device, inode))
    };
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
    fn a_line_of_mountinfo_says_what_is_mounted_where_and_whether_it_can_be_written() {
        let line =
            r"36 35 98:0 /mnt1 /my\040disk rw,noatime master:1 - ext3 /dev/my\134root ro,errors=continue";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.number, Some(rustix::fs::makedev(98, 0)));
        assert_eq!((mount.at.as_str(), mount.read_only), ("/my disk", true));
        assert_eq!(mount.source, Path::new(r"/dev/my\root"));
        assert_eq!(parse_mount("nonsense"), None);
    }

    #[test]
    fn who_holds_a_lock_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockExclusive).unwrap();
        let said = locked(file.path(), file.as_file()).to_string();
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    }
}
