//! The command under the names by which mount(8), umount(8) and fsck(8) find what knows a type of file system.
//!
//! mount(8) calls `mount.TYPE SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type.subtype]`. The source is
//! the disk half; `ssd=DEVICE` among the options is the SSD half. umount(8) calls `umount.TYPE DIR [-flnrv]`, and so
//! waits until the server has written everything. fsck(8), at boot, calls `fsck.TYPE [-a] DEVICE`; the SSD half is
//! found by the line that fstab(5) has for the disk half:
//!
//! ```text
//! /dev/sda1       /data   bimetal  ssd=/dev/nvme0n1p3,nofail   0  2
//! /srv/nand.img   /flash  bimetal  nvram=/srv/nvram.img        0  2
//! ```
//!
//! The source is a NAND where it holds a cmfs or an osd, or the line has an option that only these have ([`PARTS`]).

use super::mount::SLOPPY;
use crate::front::kinds::probe;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options that are for mount(8), fstab(5) and systemd, not for us, or mean what is done anyway.
const NOT_OURS: [&str; 30] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "_rnetdev",
    "async",
    "comment",
    "silent",
    "loud",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "nomand",
    "atime",
    "diratime",
    "norelatime",
    "nostrictatime",
    "loop",
    "uhelper",
    "helper",
    "nodirsync",
];

/// What a mount that fails ends with, for mount(8); a command line without sense is its 1.
pub(super) const FAILED: u8 = 32;

/// Names for devices that do not change, and where udev has them.
const TAGS: [(&str, &str); 5] = [
    ("UUID=", "/dev/disk/by-uuid"),
    ("LABEL=", "/dev/disk/by-label"),
    ("PARTUUID=", "/dev/disk/by-partuuid"),
    ("PARTLABEL=", "/dev/disk/by-partlabel"),
    ("ID=", "/dev/disk/by-id"),
];

/// Options of a line that name more of a volume than its source, beside `ssd=` and `log=`: flags of `bimetal mount` for one on NAND,
/// and whether it is a path.
pub(super) const PARTS: [(&str, bool); 3] = [("nvram", true), ("device", false), ("yaffs2", false)];

/// What the command is to do when it was called as a helper.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// The same as this line.
    As(Vec<OsString>),
    /// Nothing, and that well: `mount -f`.
    Idle,
    /// `mount -o remount` of a directory, with these options.
    Remount(OsString, Vec<OsString>),
    /// Nothing, as the line has a flag that says nothing here: what is to be said, and the exit code.
    Senseless(String, u8),
}

/// Whether the command was called to mount, by mount(8).
pub(super) fn mounts(args: &[OsString]) -> bool {
    let called = args.first().and_then(|called| Path::new(called).file_name());
    called.is_some_and(|called| called == "mount.bimetal" || called == "mount.fuse.bimetal")
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
        "mount.bimetal" | "mount.fuse.bimetal" => Some(mount(rest, is_nand)),
        "umount.bimetal" | "umount.fuse.bimetal" => Some(umount(rest)),
        "fsck.bimetal" | "fsck.fuse.bimetal" => {
            Some(fsck(rest, |source| options_in_fstab("--source", source), is_nand))
        }
        _ => None,
    }
}

/// What a helper is told. `-o`, `-t` and `-N` have a value, in the same word or the next; it is of interest for `-o` only.
struct Told {
    flags: Vec<u8>,
    /// Flags of several letters, whole.
    long: Vec<String>,
    options: Vec<OsString>,
    places: Vec<OsString>,
}

impl Told {
    /// Reads a line of flags of one letter, alone or in groups, of which these are known, and of long ones, of which those are.
    ///
    /// # Errors
    /// The first flag that is not known, or has no value.
    fn of(args: &[OsString], known: &[u8], long: &[&str]) -> Result<Told, String> {
        let mut told = Told { flags: Vec::new(), long: Vec::new(), options: Vec::new(), places: Vec::new() };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let letters = match arg.as_bytes() {
                b"--" => {
                    told.places.extend(rest.cloned());
                    break;
                }
                [b'-', b'-', ..] => match arg.to_str().filter(|flag| long.contains(flag)) {
                    Some(flag) => {
                        told.long.push(flag.to_string());
                        continue;
                    }
                    None => return Err(arg.display().to_string()),
                },
                [b'-', letters @ ..] if !letters.is_empty() => letters,
                _ => {
                    told.places.push(arg.clone());
                    continue;
                }
            };
            for (at, letter) in letters.iter().enumerate() {
                let named = || format!("-{}", char::from(*letter));
                match letter {
                    b'o' | b't' | b'N' | b'C' if known.contains(letter) => {
                        let within =
                            Some(OsStr::from_bytes(&letters[at + 1..])).filter(|value| !value.is_empty());
                        let value = within.or_else(|| rest.next().map(OsString::as_os_str));
                        let value = value.ok_or_else(|| format!("{} without a value", named()))?;
                        if *letter == b'o' {
                            told.options.extend(split(value));
                        }
                        break;
                    }
                    letter if known.contains(letter) => told.flags.push(*letter),
                    _ => return Err(named()),
                }
            }
        }
        Ok(told)
    }

    fn has(&self, letter: u8) -> bool {
        self.flags.contains(&letter)
    }
}

/// That a helper does not know a flag.
fn senseless(helper: &str, flag: &str, code: u8) -> Called {
    Called::Senseless(
        format!("{helper}: it has no flag {flag}; nothing was done; see: {helper} --help"),
        code,
    )
}

fn mount(args: &[OsString], is_nand: impl Fn(&Path) -> bool) -> Called {
    let told = match Told::of(args, b"sfnvrwotN", &[]) {
        Ok(told) => told,
        Err(flag) => return senseless("mount.bimetal", &flag, 1),
    };
    if told.has(b'f') {
        return Called::Idle;
    }
    let mut options = told.options;
    // The one that allows less counts.
    for (flag, option) in [(b's', SLOPPY), (b'w', "rw"), (b'r', "ro")] {
        options.extend(told.flags.contains(&flag).then(|| option.into()));
    }
    if let (Some(place), true) = (told.places.get(1), options.iter().any(|option| option == "remount")) {
        return Called::Remount(place.clone(), options);
    }
    let mut line = words("bimetal mount");
    if let Some(source) = told.places.first() {
        line.extend(source_of(source, &options, is_nand));
        // mount(8) knows by the source what is mounted already.
        line.extend(["-o".into(), joined("fsname=", source)]);
    }
    line.extend(told.places.into_iter().skip(1));
    for option in options {
        match (part_of(&option), option.as_bytes().strip_prefix(b"log=")) {
            (Some(part), _) => line.extend(part),
            (_, Some(log)) => line.extend(["--log".into(), unquoted(log).into()]),
            _ => line.extend(["-o".into(), option]),
        }
    }
    Called::As(line)
}

fn umount(args: &[OsString]) -> Called {
    let told = match Told::of(args, b"flnrvtN", &[]) {
        Ok(told) => told,
        Err(flag) => return senseless("umount.bimetal", &flag, 1),
    };
    let mut line = words("bimetal umount");
    line.extend(told.has(b'l').then(|| "--lazy".into()));
    line.extend(told.places);
    Called::As(line)
}

/// `options_of` tells what the line of a source in fstab has for options.
fn fsck(
    args: &[OsString],
    options_of: impl Fn(&OsStr) -> Vec<OsString>,
    is_nand: impl Fn(&Path) -> bool,
) -> Called {
    // -C has the number of where fsck(8) wants to be told how far it is; -f is what is done anyway.
    let told = match Told::of(args, b"apnyfvVCt", &["--json", "--deep", "--yes", "--dry-run"]) {
        Ok(told) => told,
        Err(flag) => return senseless("fsck.bimetal", &flag, super::fsck::SENSELESS),
    };
    let mut line = words("bimetal fsck");
    if told.has(b'n') {
        line.push("-n".into());
    } else if told.has(b'y') {
        line.push("--yes".into());
    }
    line.extend(told.long.iter().map(OsString::from));
    for source in &told.places {
        let options = options_of(source);
        line.extend(source_of(source, &options, &is_nand));
        line.extend(options.iter().filter_map(|option| part_of(option)).flatten());
    }
    Called::As(line)
}

/// The flags for what is mounted or checked itself.
fn source_of(source: &OsStr, options: &[OsString], is_nand: impl Fn(&Path) -> bool) -> [OsString; 2] {
    let path = device(source);
    let names_part = |option: &OsString| {
        let name = option.as_bytes().split(|byte| *byte == b'=').next();
        PARTS.iter().any(|(part, _)| Some(part.as_bytes()) == name)
    };
    let flag = if options.iter().any(names_part) || is_nand(Path::new(&path)) { "--nand" } else { "--disk" };
    [flag.into(), path]
}

/// Whether a cmfs or an osd lies in a file, or it is raw flash (MTD, a character device).
fn is_nand(path: &Path) -> bool {
    let is_character = || path.metadata().is_ok_and(|found| found.file_type().is_char_device());
    is_character() || probe::probe(path).is_ok_and(|found| found.is_some_and(|(_, part)| part.role == "nand"))
}

/// The flags that an option is which names a part of the volume.
fn part_of(option: &OsStr) -> Option<Vec<OsString>> {
    let bytes = option.as_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=');
    let (name, value) = equals.map_or((bytes, None), |at| (&bytes[..at], Some(unquoted(&bytes[at + 1..]))));
    let name = std::str::from_utf8(name).ok()?;
    let is_path = match PARTS.iter().find(|(part, _)| *part == name) {
        Some((_, is_path)) => *is_path,
        None if name == "ssd" => true,
        None => return None,
    };
    // A flag that needs a value and has none is told of by that.
    let value = value.map(|value| if is_path { device(value) } else { value.to_owned() });
    Some([OsString::from(format!("--{name}"))].into_iter().chain(value).collect())
}

/// The options that a line of fstab has for this `--source` or `--target`: findmnt(8) knows a device by all its names.
pub(super) fn options_in_fstab(by: &str, what: &OsStr) -> Vec<OsString> {
    let mut findmnt = Command::new("findmnt");
    findmnt.args(["--fstab", "--noheadings", "--types", "bimetal,fuse.bimetal", "--output", "OPTIONS", by]);
    let found =
        findmnt.arg(what).stderr(Stdio::null()).output().map(|found| found.stdout).unwrap_or_default();
    split(OsStr::from_bytes(found.split(|byte| *byte == b'\n').next().unwrap_or_default()))
}

/// The options of a list that are ours.
fn split(list: &OsStr) -> Vec<OsString> {
    let ours = |option: &&[u8]| {
        let name = option.split(|byte| *byte == b'=').next().unwrap_or_default();
        let is_of_others = NOT_OURS.iter().any(|other| other.as_bytes() == name);
        !name.is_empty() && !is_of_others && !name.starts_with(b"x-") && !name.starts_with(b"X-")
    };
    // A value in quotes may have commas.
    let mut is_quoted = false;
    let ends = |byte: &u8| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    };
    let options = list.as_bytes().split(ends).filter(ours);
    options.map(|option| OsStr::from_bytes(option).to_owned()).collect()
}

/// The path of a device that is named by a tag, as in fstab(5), or by its path.
fn device(name: &OsStr) -> OsString {
    let tagged = TAGS.iter().find_map(|(tag, dir)| {
        let value = unquoted(name.as_bytes().strip_prefix(tag.as_bytes())?);
        Some(Path::new(dir).join(as_link(value)).into_os_string())
    });
    tagged.unwrap_or_else(|| name.to_owned())
}

/// How udev names the link of a label: what is no letter, number or one of a few signs is written by its number.
fn as_link(label: &OsStr) -> OsString {
    let mut link = Vec::new();
    for byte in label.as_bytes() {
        match byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(byte) || !byte.is_ascii() {
            true => link.push(*byte),
            false => link.extend(format!("\\x{byte:02x}").into_bytes()),
        }
    }
    OsString::from_vec(link)
}

/// A value without the quotes around it.
fn unquoted(value: &[u8]) -> &OsStr {
    let within = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    OsStr::from_bytes(within.unwrap_or(value))
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
             --log /var/log/b -o sloppy",
        );
        assert_eq!(translate(&words("mount.bimetal /dev/sda1 /data -f -o rw")), Some(Called::Idle));
        assert_eq!(
            translate(&words("mount.bimetal /dev/sda1 /data -o rw,nofail,remount,ro")),
            Some(Called::Remount("/data".into(), words("rw remount ro")))
        );
        same(
            "mount.bimetal /n.img /flash -o rw,nvram=\"/v,1\",device=slc-4k,nofail",
            "bimetal mount --nand /n.img -o fsname=/n.img /flash -o rw --nvram /v,1 --device slc-4k",
        );
        same(
            "mount.bimetal /n.img /flash -o yaffs2,scan",
            "bimetal mount --nand /n.img -o fsname=/n.img /flash --yaffs2 -o scan",
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
        let options_of = |source: &OsStr| match source.as_bytes() {
            b"/dev/sda1" => words("lag=5s ssd=UUID=ab"),
            b"/n" => words("nvram=LABEL=v device=slc-4k ro"),
            _ => Vec::new(),
        };
        let line = |given: &str| match fsck(&words(given), options_of, |path| path == Path::new("/o")) {
            Called::As(line) => line,
            Called::Idle | Called::Remount(..) | Called::Senseless(..) => Vec::new(),
        };
        let both = "bimetal fsck --disk /dev/sda1 --ssd /dev/disk/by-uuid/ab";
        assert_eq!(line("-a -C7 /dev/sda1"), words(both));
        let flash = "bimetal fsck --nand /n --nvram /dev/disk/by-label/v --device slc-4k";
        assert_eq!(line("-a /n"), words(flash));
        assert_eq!(line("-a /o"), words("bimetal fsck --nand /o"));
        assert_eq!(line("-n /dev/sdb"), words("bimetal fsck -n --disk /dev/sdb"));
        assert_eq!(line("-y /dev/sdb"), words("bimetal fsck --yes --disk /dev/sdb"));
    }

    #[test]
    fn flags_are_read_as_getopt_reads_them_and_those_that_are_not_known_are_refused() {
        same(
            "mount.bimetal d /data -ossd=S,fsname=x",
            "bimetal mount --disk d -o fsname=d /data --ssd S -o fsname=x",
        );
        same("mount.bimetal -r d /data -o ssd=S", "bimetal mount --disk d -o fsname=d /data --ssd S -o ro");
        same("mount.bimetal -nvrtbimetal d /data", "bimetal mount --disk d -o fsname=d /data -o ro");
        same("fsck.fuse.bimetal -C 0 --json --deep -fy d", "bimetal fsck --yes --json --deep --disk d");
        for (line, flag, code) in [
            ("mount.bimetal --verify d /data", "--verify", 1),
            ("mount.bimetal -x d /data", "-x", 1),
            ("mount.bimetal d /data -o", "-o", 1),
            ("umount.bimetal -q /data", "-q", 1),
            ("fsck.bimetal -Z d", "-Z", 16),
        ] {
            let Some(Called::Senseless(said, ended)) = translate(&words(line)) else { panic!("{line}") };
            assert!(said.contains(flag) && ended == code, "{line}: {said}");
        }
    }

    #[test]
    fn a_comma_in_quotes_and_a_blank_in_a_label_are_part_of_the_value() {
        same(
            "mount.bimetal d /m -o ssd=\"/a,b\",rw",
            "bimetal mount --disk d -o fsname=d /m --ssd /a,b -o rw",
        );
        let label = device(OsStr::new("PARTLABEL=my ssd/1é"));
        assert_eq!(label, r"/dev/disk/by-partlabel/my\x20ssd\x2f1é");
        for option in ["silent", "lazytime", "iversion", "atime", "diratime", "norelatime", "nomand", "loop"]
        {
            assert!(split(OsStr::new(option)).is_empty(), "{option}");
        }
    }
}
