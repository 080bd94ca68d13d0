//! `mount -t bimetal` and `/etc/fstab`: the command under the name `mount.bimetal`.
//!
//! mount(8) calls `mount.TYPE SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type.subtype]`. The source is
//! the disk half; `ssd=DEVICE` among the options is the SSD half:
//!
//! ```text
//! /dev/sda1  /data  bimetal  ssd=/dev/nvme0n1p3,nofail  0  0
//! ```

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name under which mount(8) finds the command.
const NAME: &str = "mount.bimetal";

/// Options that are for mount(8), fstab(5) and systemd, not for us.
const NOT_OURS: [&str; 10] =
    ["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"];

/// What `bimetal` would have been called with; `None` if the command was called by its own name.
pub(super) fn translate(args: &[OsString]) -> Option<Vec<OsString>> {
    let called = Path::new(args.first()?).file_name()?;
    if called != NAME && called != "mount.fuse.bimetal" {
        return None;
    }
    let mut places = Vec::new();
    let mut options = Vec::new();
    let mut rest = args[1..].iter();
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-o") => options.extend(rest.next().into_iter().flat_map(|list| split(list))),
            Some("-t" | "-N") => drop(rest.next()),
            Some(flag) if flag.starts_with('-') => {}
            _ => places.push(arg.clone()),
        }
    }
    let mut line: Vec<OsString> = vec!["bimetal".into(), "mount".into()];
    for (option, place) in ["--disk", ""].into_iter().zip(places) {
        line.extend([OsString::from(option)].into_iter().filter(|option| !option.is_empty()));
        line.push(place);
    }
    for option in options {
        match option.strip_prefix("ssd=") {
            Some(ssd) => line.extend(["--ssd".into(), ssd.into()]),
            None => line.extend(["-o".into(), option.into()]),
        }
    }
    Some(line)
}

fn split(list: &OsStr) -> Vec<String> {
    let list = list.to_string_lossy();
    let ours = |option: &&str| {
        !option.is_empty()
            && !NOT_OURS.contains(option)
            && !option.starts_with("x-")
            && !option.starts_with("comment=")
    };
    list.split(',').filter(ours).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_ascii_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_line_of_fstab_becomes_a_mount() {
        let given =
            "/sbin/mount.bimetal /dev/sda1 /data -n -o rw,nofail,ssd=/dev/nvme0n1p3,x-systemd.automount";
        let meant = "bimetal mount --disk /dev/sda1 /data -o rw --ssd /dev/nvme0n1p3";
        assert_eq!(translate(&words(given)), Some(words(meant)));
        assert_eq!(translate(&words("bimetal mount --disk d /mnt")), None);
    }
}
