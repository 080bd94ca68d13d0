//! What is mounted where, from `/proc/PID/mountinfo`: the one reader of it.
//!
//! The table is bytes. A name in it is any bytes but 0, with blanks, line ends and backslashes in octal; one that is no
//! UTF-8 is a name as any other, and hides no line.

use super::place;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, PartialEq, Eq)]
pub struct MountLine {
    /// The kernel's number of this mount.
    id: Option<u64>,
    /// The number of its device, as stat(2) has it.
    pub number: Option<u64>,
    /// The type of file system, as `fuse.bimetal`.
    pub kind: String,
    /// The source that `mount` shows.
    pub source: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    /// All of it is mounted, not a directory of it alone.
    whole: bool,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Its options, then those of its file system.
    pub options: Vec<String>,
}

/// All mounts that a process sees, by its number or `self`, in the kernel's order: the last of several on one place is what is
/// seen there. None where it may not be looked at.
pub fn mounts_seen_by(process: &str) -> Vec<MountLine> {
    let table = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

fn all() -> Vec<MountLine> {
    mounts_seen_by("self")
}

/// The mounts of a device.
pub(super) fn mounts_of(number: u64) -> Vec<MountLine> {
    let is_of = |mount: &MountLine| {
        let by_source = || fs::metadata(&mount.source).is_ok_and(|found| found.rdev() == number);
        mount.number == Some(number) || mount.source.starts_with("/dev") && by_source()
    };
    all().into_iter().filter(is_of).collect()
}

/// What is mounted on a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedAt {
    /// The type of file system, as `fuse.bimetal`.
    pub kind: String,
    /// The source that `mount` shows.
    pub source: String,
    /// The number of its device, as stat(2) has it.
    pub number: Option<u64>,
    /// Its options, then those of its file system.
    pub options: Vec<String>,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// All of it is, not a directory of it alone, as `mount --bind` does.
    pub whole: bool,
    /// Where else the same, or a directory of it, is mounted, and whether that is all of it; what is comes first.
    pub elsewhere: Vec<(PathBuf, bool)>,
}

/// What is mounted on `place`, an absolute path without links: the last of several.
pub fn mounted_at(place: &Path) -> Option<MountedAt> {
    let all = all();
    let here = all.iter().rposition(|mount| mount.at == place)?;
    let MountLine { number, kind, source, options, read_only, whole, .. } = &all[here];
    let others = all.iter().enumerate().rev();
    let others = others.filter(|(index, mount)| *index != here && mount.number == *number);
    let mut elsewhere: Vec<_> = others.map(|(_, mount)| (mount.at.clone(), mount.whole)).collect();
    elsewhere.sort_by_key(|(_, whole)| !whole);
    Some(MountedAt {
        kind: kind.clone(),
        source: source.to_string_lossy().into_owned(),
        number: *number,
        options: options.clone(),
        read_only: *read_only,
        whole: *whole,
        elsewhere,
    })
}

/// Whether the mount with this number of the kernel is in the tree of names.
pub fn has_mount(id: u64) -> bool {
    all().iter().any(|mount| mount.id == Some(id))
}

/// A line of mountinfo, as proc(5) has it.
fn parse(line: &[u8]) -> Option<MountLine> {
    let mut words = line.split(|byte| *byte == b' ');
    let front = words.by_ref();
    let text = |word: &[u8]| std::str::from_utf8(word).ok().map(str::to_string);
    let id = text(front.next()?).and_then(|word| word.parse().ok());
    let number = text(front.nth(1)?).and_then(|word| place::parse_number(&word));
    let whole = front.next()? == b"/";
    let at = unescape(front.next()?);
    let options =
        |word: &[u8]| String::from_utf8_lossy(word).split(',').map(String::from).collect::<Vec<_>>();
    let of_mount = options(front.next().unwrap_or_default());
    // Fields of which there may be any number end with a dash.
    let mut back = words.skip_while(|word| *word != b"-").skip(1);
    let kind = unescape(back.next()?).to_string_lossy().into_owned();
    let source = unescape(back.next()?);
    let of_fs = options(back.next().unwrap_or_default());
    let read_only = of_fs.iter().any(|option| option == "ro");
    Some(MountLine { id, number, kind, source, at, whole, read_only, options: [of_mount, of_fs].concat() })
}

/// Blanks, line ends and backslashes are octal in the kernel's tables.
pub(super) fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_of_mountinfo_says_what_is_mounted_where_and_whether_it_can_be_written() {
        let line =
            br"36 35 98:0 /mnt1 /my\040disk rw,noatime master:1 - ext3 /dev/my\134root ro,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.id, Some(36));
        assert_eq!(mount.number, Some(rustix::fs::makedev(98, 0)));
        assert_eq!((mount.at.as_path(), mount.read_only), (Path::new("/my disk"), true));
        assert_eq!(mount.source, Path::new(r"/dev/my\root"));
        assert_eq!(mount.options, ["rw", "noatime", "ro", "errors=continue"]);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn a_name_that_is_no_utf_8_is_a_name() {
        let mount = parse(b"36 35 0:40 / /m\xff\\012\xe9 rw - tmpfs \xfe rw").unwrap();
        assert_eq!(mount.at.as_os_str(), OsStr::from_bytes(b"/m\xff\n\xe9"));
        assert_eq!(mount.source.as_os_str(), OsStr::from_bytes(b"\xfe"));
        assert_eq!((mount.kind.as_str(), mount.whole, mount.read_only), ("tmpfs", true, false));
    }
}
