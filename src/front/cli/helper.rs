//! The command under the names by which mount(8), umount(8) and fsck(8) find what knows a type of file system.
//!
//! mount(8) calls `mount.TYPE SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type.subtype]`. The source is
//! the disk half; `ssd=DEVICE` among the options is the SSD half. umount(8) calls `umount.TYPE DIR [-flnrv]`, and so
//! waits until the server has written everything. fsck(8), at boot, calls `fsck.TYPE [-a] DEVICE`; the SSD half is
//! found by the line that fstab(5) has for the disk half:
//!
//! ```text
//! /dev/sda1  /data  bimetal  ssd=/dev/nvme0n1p3,nofail  0  2
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Options that are for mount(8), fstab(5) and systemd, not for us, or mean what is done anyway.
const NOT_OURS: [&str; 15] = [
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "noowner", "group", "nogroup",
    "nofail", "_netdev", "_rnetdev", "async", "comment",
];

/// Names for devices that do not change, and where udev has them.
const TAGS: [(&str, &str); 5] = [
    ("UUID=", "/dev/disk/by-uuid"),
    ("LABEL=", "/dev/disk/by-label"),
    ("PARTUUID=", "/dev/disk/by-partuuid"),
    ("PARTLABEL=", "/dev/disk/by-partlabel"),
    ("ID=", "/dev/disk/by-id"),
];

/// What the command is to do when it was called as a helper.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// The same as this line.
    As(Vec<OsString>),
    /// Nothing, and that well: `mount -f`.
    Idle,
    /// `mount -o remount` of a directory, with these options.
    Remount(OsString, Vec<OsString>),
}

/// What `bimetal` would have been called with; `None` if the command was called by its own name.
pub(super) fn translate(args: &[OsString]) -> Option<Called> {
    let (called, rest) = args.split_first()?;
    let called = Path::new(called).file_name()?.to_str()?;
    if let Some((verb, "bimetal" | "fuse.bimetal")) = called.split_once('.')
        && rest.iter().any(|arg| arg == "-h" || arg == "--help")
    {
        return Some(Called::As(words(&format!("bimetal {verb} --help"))));
    }
    match called {
        "mount.bimetal" | "mount.fuse.bimetal" => Some(mount(rest)),
        "umount.bimetal" | "umount.fuse.bimetal" => Some(umount(rest)),
        "fsck.bimetal" => Some(fsck(rest, ssd_in_fstab)),
        _ => None,
    }
}

/// What a helper is told. `-o`, `-t` and `-N` have a value, which is of interest for `-o` only.
struct Told {
    flags: Vec<OsString>,
    options: Vec<OsString>,
    places: Vec<OsString>,
}

impl Told {
    fn of(args: &[OsString]) -> Told {
        let mut told = Told { flags: Vec::new(), options: Vec::new(), places: Vec::new() };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            match arg.as_bytes() {
                b"-o" => told.options.extend(rest.next().into_iter().flat_map(|list| split(list))),
                b"-t" | b"-N" => drop(rest.next()),
                [b'-', _, ..] => told.flags.push(arg.clone()),
                _ => told.places.push(arg.clone()),
            }
        }
        told
    }

    /// Whether a flag of one letter is among them, alone or in a group.
    fn has(&self, letter: u8) -> bool {
        self.flags.iter().any(|flag| flag.as_bytes()[1..].contains(&letter))
    }
}

fn mount(args: &[OsString]) -> Called {
    let told = Told::of(args);
    if told.has(b'f') {
        return Called::Idle;
    }
    if let (Some(place), true) = (told.places.get(1), told.options.iter().any(|option| option == "remount")) {
        return Called::Remount(place.clone(), told.options);
    }
    let mut line = words("bimetal mount");
    if let Some(disk) = told.places.first() {
        // mount(8) knows by the source what is mounted already.
        line.extend(["--disk".into(), device(disk), "-o".into(), joined("fsname=", disk)]);
    }
    line.extend(told.places.into_iter().skip(1));
    for option in told.options {
        let bytes = option.as_bytes();
        match (bytes.strip_prefix(b"ssd="), bytes.strip_prefix(b"log=")) {
            (Some(ssd), _) => line.extend(["--ssd".into(), device(OsStr::from_bytes(ssd))]),
            (_, Some(log)) => line.extend(["--log".into(), OsStr::from_bytes(log).into()]),
            _ => line.extend(["-o".into(), option]),
        }
    }
    Called::As(line)
}

fn umount(args: &[OsString]) -> Called {
    let told = Told::of(args);
    let mut line = words("bimetal umount");
    line.extend(told.has(b'l').then(|| "--lazy".into()));
    line.extend(told.places);
    Called::As(line)
}

/// `ssd_of` tells what a disk half's own line of fstab has as `ssd=`.
fn fsck(args: &[OsString], ssd_of: impl Fn(&OsStr) -> Option<OsString>) -> Called {
    let mut told = Told::of(args);
    // The number that comes with it is where fsck(8) wants to be told how far it is.
    told.flags.retain(|flag| !flag.as_bytes().starts_with(b"-C"));
    let mut line = words("bimetal fsck");
    if told.has(b'n') {
        line.push("-n".into());
    } else if told.has(b'y') {
        line.push("--yes".into());
    }
    for disk in &told.places {
        line.extend(["--disk".into(), device(disk)]);
        line.extend(ssd_of(disk).into_iter().flat_map(|ssd| ["--ssd".into(), device(&ssd)]));
    }
    Called::As(line)
}

/// findmnt(8) knows a device by all its names.
fn ssd_in_fstab(disk: &OsStr) -> Option<OsString> {
    let mut findmnt = Command::new("findmnt");
    findmnt.args([
        "--fstab",
        "--noheadings",
        "--types",
        "bimetal,fuse.bimetal",
        "--output",
        "OPTIONS",
        "--source",
    ]);
    let found = findmnt.arg(disk).stderr(Stdio::null()).output().ok()?.stdout;
    let options = found.split(|byte| *byte == b'\n').next()?;
    split(OsStr::from_bytes(options)).into_iter().find_map(|option| {
        let ssd = option.as_bytes().strip_prefix(b"ssd=")?;
        Some(OsString::from_vec(ssd.to_vec()))
    })
}

/// The options of a list that are ours.
fn split(list: &OsStr) -> Vec<OsString> {
    let ours = |option: &&[u8]| {
        let name = option.split(|byte| *byte == b'=').next().unwrap_or_default();
        let is_of_others = NOT_OURS.iter().any(|other| other.as_bytes() == name);
        !name.is_empty() && !is_of_others && !name.starts_with(b"x-") && !name.starts_with(b"X-")
    };
    let options = list.as_bytes().split(|byte| *byte == b',').filter(ours);
    options.map(|option| OsStr::from_bytes(option).to_owned()).collect()
}

/// The path of a device that is named by a tag, as in fstab(5), or by its path.
fn device(name: &OsStr) -> OsString {
    let tagged = TAGS.iter().find_map(|(tag, dir)| {
        let value = name.as_bytes().strip_prefix(tag.as_bytes())?;
        Some(Path::new(dir).join(OsStr::from_bytes(value)).into_os_string())
    });
    tagged.unwrap_or_else(|| name.to_owned())
}

fn joined(front: &str, name: &OsStr) -> OsString {
    let mut all = OsString::from(front);
    all.push(name);
    all
}

fn words(line: &str) -> Vec<OsString> {
    line.split_ascii_whitespace().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(given: &str, meant: &str) {
        assert_eq!(translate(&words(given)), Some(Called::As(words(meant))), "{given}");
    }

    #[test]
    fn a_line_of_fstab_becomes_a_mount() {
        same(
            "/sbin/mount.bimetal /dev/sda1 /data -n -o rw,nofail,ssd=/dev/nvme0n1p3,x-systemd.automount,user=me",
            "bimetal mount --disk /dev/sda1 -o fsname=/dev/sda1 /data -o rw --ssd /dev/nvme0n1p3",
        );
        same(
            "mount.fuse.bimetal /dev/sda1 /data -s -o ssd=PARTUUID=12-3,lag=5s,64MiB,log=/var/log/b -t fuse.bimetal",
            "bimetal mount --disk /dev/sda1 -o fsname=/dev/sda1 /data --ssd /dev/disk/by-partuuid/12-3 -o lag=5s -o 64MiB \
             --log /var/log/b",
        );
        assert_eq!(translate(&words("mount.bimetal /dev/sda1 /data -f -o rw")), Some(Called::Idle));
        assert_eq!(
            translate(&words("mount.bimetal /dev/sda1 /data -o rw,nofail,remount,ro")),
            Some(Called::Remount("/data".into(), words("rw remount ro")))
        );
        assert_eq!(translate(&words("bimetal mount --disk d /mnt")), None);
        assert_eq!(translate(&words("bimetal mount --help")), None);
    }

    #[test]
    fn umount_waits_and_fsck_finds_the_ssd_half() {
        same("/sbin/mount.bimetal -h", "bimetal mount --help");
        same("umount.fuse.bimetal --help", "bimetal umount --help");
        same("fsck.bimetal --help", "bimetal fsck --help");
        same("/sbin/umount.fuse.bimetal /data -n -l", "bimetal umount --lazy /data");
        same("umount.bimetal /data -f -t fuse.bimetal", "bimetal umount /data");
        let ssd_of = |disk: &OsStr| (disk == "/dev/sda1").then(|| "UUID=ab".into());
        let line = |given: &str| match fsck(&words(given), ssd_of) {
            Called::As(line) => line,
            Called::Idle | Called::Remount(..) => Vec::new(),
        };
        let both = "bimetal fsck --disk /dev/sda1 --ssd /dev/disk/by-uuid/ab";
        assert_eq!(line("-a -C7 /dev/sda1"), words(both));
        assert_eq!(line("-n /dev/sdb"), words("bimetal fsck -n --disk /dev/sdb"));
        assert_eq!(line("-y /dev/sdb"), words("bimetal fsck --yes --disk /dev/sdb"));
    }
}
