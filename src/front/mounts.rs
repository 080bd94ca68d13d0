//! What processes see mounted, as the kernel's mount tables tell it: who keeps a mount in a namespace of its own, what holds a
//! path, and with which options.

use crate::error::shown;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
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
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let holder = |pid: i32| {
        let theirs = space(&pid.to_string()).ok().filter(|theirs| !seen.contains(theirs))?;
        seen.push(theirs);
        let mount = table(&pid.to_string()).into_iter().find(|mount| mount.number == number)?;
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(Holder { pid, name: shown(name.trim_ascii_end()), at: mount.at })
    };
    pids.into_iter().filter_map(holder).collect()
}

/// The options that the kernel shows of what is mounted on `place`, an absolute path without links.
pub(super) fn options_at(place: &Path) -> Vec<String> {
    let found = table("self").into_iter().rfind(|mount| mount.at == place);
    found.map_or(Vec::new(), |mount| mount.options)
}

/// Where what holds `path` is mounted; it is not looked at itself.
pub(super) fn mount_point_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let around = table("self").into_iter().map(|mount| mount.at).filter(|at| path.starts_with(at));
    around.max_by_key(|at| at.components().count())
}

/// A line of a mount table.
struct Line {
    /// The device, as `major:minor`.
    number: String,
    at: PathBuf,
    /// Those of the mount, then those of its file system.
    options: Vec<String>,
}

/// All mounts that a process sees; none where it may not be looked at.
fn table(process: &str) -> Vec<Line> {
    let table = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// A line of mountinfo, as proc(5) has it.
fn parse(line: &[u8]) -> Option<Line> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let number = text(words.next()?);
    let at = unescaped(words.nth(1)?);
    let of_mount = text(words.next()?);
    // There may be any number of fields before a dash.
    let of_fs = text(words.skip_while(|word| *word != b"-").nth(3)?);
    let options = of_mount.split(',').chain(of_fs.split(',')).map(String::from).collect();
    Some(Line { number, at, options })
}

/// Blanks, line ends and backslashes are octal in the kernel's tables.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut rest, mut place) = (text, Vec::new());
    while let [first, after @ ..] = rest {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        place.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(place).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_mount_table_tells_device_place_and_options() {
        let line = br"36 35 0:98 / /my\040mnt rw,noatime shared:7 - fuse.bimetal x rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!((mount.number.as_str(), mount.at.as_path()), ("0:98", Path::new("/my mnt")));
        assert_eq!(mount.options, ["rw", "noatime", "rw", "user_id=0"]);
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn a_path_is_held_by_the_innermost_mount_around_it() {
        assert_eq!(mount_point_of(Path::new("/proc/self/no/such")).as_deref(), Some(Path::new("/proc")));
    }
}
