//! What `bimetal rescue` makes of what a volume may hold, and of a target that does not take all of it.

use crate::fsck::{ended, filled, kill, write_synced};
use crate::guard::{Volume, err, out, run};
use crate::mounts::{bimetal, need_fuse, skip};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn rescue(volume: &Volume, to: &Path) -> Output {
    run(&["rescue"], &[("--ssd", &volume.at("ssd"))], &[to.to_str().unwrap()])
}

/// A new volume with these directories, and their numbers; its log has nothing of them any more.
fn with_old_directories(names: &[&str]) -> (Volume, Vec<u64>) {
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    let made = names.iter().map(|name| {
        fs::create_dir(mounted.path().join(name)).unwrap();
        fs::metadata(mounted.path().join(name)).unwrap().ino()
    });
    let made = made.collect();
    drop(mounted);
    for _ in 0..5 {
        let mounted = volume.mount(&[]);
        assert!(mounted.unmount().status.success());
    }
    (volume, made)
}

/// A file system of its own in an image, as a target; unmounted at the end.
struct Target(PathBuf);

impl Target {
    fn made(volume: &Volume, name: &str, make: &[&str], mount: &[&str]) -> Option<Target> {
        let (image, at) = (volume.at(&format!("{name}.img")), volume.at(name));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(&at).unwrap();
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let done = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        let made = done(Command::new(make[0]).env("PATH", path).args(&make[1..]).arg(&image));
        let mounted = made && done(Command::new("mount").args(mount).arg(&image).arg(&at));
        mounted.then_some(Target(at))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = crate::mounts::once_free(Command::new("umount").arg(&self.0));
    }
}

#[test]
fn no_link_of_the_volume_leads_a_rescue_out_of_its_target() {
    need_fuse!();
    let (volume, old) = with_old_directories(&["sub", "other"]);
    let outside = volume.at("outside");
    fs::create_dir(&outside).unwrap();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    let at = |name: &str| mounted.path().join(name);
    let (link, file) = (format!("dir-{}", old[0]), format!("dir-{}", old[1]));
    symlink(&outside, at(&link)).unwrap();
    symlink("hello", at("sub/evil")).unwrap();
    write_synced(&at(&file), b"called as a directory");
    write_synced(&at("other/file"), b"in other");
    kill(mounted);
    let to = volume.at("to");
    ended(&rescue(&volume, &to), 0, &["whole files"]);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was made outside");
    assert_eq!(fs::read_link(to.join(&link)).unwrap(), outside);
    assert_eq!(fs::read_link(to.join(format!("{link}-2/evil"))).unwrap(), Path::new("hello"));
    assert_eq!(fs::read(to.join(&file)).unwrap(), b"called as a directory");
    assert_eq!(fs::read(to.join(format!("{file}-2/file"))).unwrap(), b"in other");
}

const LEVELS: usize = 25;

fn step(dir: &OwnedFd, name: &str) -> OwnedFd {
    rustix::fs::openat(dir, name, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
}

fn open_dir(path: &Path) -> OwnedFd {
    rustix::fs::openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
}

#[test]
fn one_file_that_cannot_be_written_is_counted_and_named_and_all_others_are_got_off() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    let at = |name: &str| mounted.path().join(name);
    let long = "d".repeat(200);
    let mut dir = open_dir(mounted.path());
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&dir, &long, Mode::RWXU).unwrap();
        dir = step(&dir, &long);
    }
    let flags = OFlags::CREATE | OFlags::RDWR;
    let mut deep = File::from(rustix::fs::openat(&dir, "deep", flags, Mode::RUSR).unwrap());
    deep.write_all(b"deep").unwrap();
    deep.sync_all().unwrap();
    drop((deep, dir));
    let huge = File::create(at("huge")).unwrap();
    huge.set_len(20 << 30).unwrap();
    huge.write_all_at(b"front", 0).unwrap();
    huge.write_all_at(b"back", (20 << 30) - 4).unwrap();
    huge.sync_all().unwrap();
    drop(huge);
    write_synced(&at("a:b"), b"with a colon");
    write_synced(&at("theirs"), b"of another");
    std::os::unix::fs::chown(at("theirs"), Some(1234), Some(1234)).unwrap();
    write_synced(&at("zlast"), b"the last");
    kill(mounted);
    // A file system with files of 16 GiB at most, and one without owners, links and colons.
    let ext2 = ["mke2fs", "-q", "-F", "-t", "ext2", "-b", "1024", "-m", "0"];
    let Some(target) = Target::made(&volume, "ext2", &ext2, &["-o", "loop"]) else {
        return skip("no ext2 can be mounted");
    };
    let to = target.0.join("to");
    let rescued = rescue(&volume, &to);
    ended(&rescued, 1, &["huge", "RESCUE.txt", "could not be written"]);
    let mut dir = open_dir(&to);
    for _ in 0..LEVELS {
        dir = step(&dir, &long);
    }
    let deep = File::from(rustix::fs::openat(&dir, "deep", OFlags::RDONLY, Mode::empty()).unwrap());
    assert_eq!(std::io::read_to_string(deep).unwrap(), "deep");
    drop(dir);
    let mut front = [0; 5];
    File::open(to.join("huge")).unwrap().read_exact_at(&mut front, 0).unwrap();
    assert_eq!(&front, b"front");
    assert_eq!(fs::read(to.join("a:b")).unwrap(), b"with a colon");
    assert_eq!(fs::read(to.join("zlast")).unwrap(), b"the last");
    let list = fs::read_to_string(to.join("RESCUE.txt")).unwrap();
    assert!(list.lines().any(|line| line.starts_with("huge: ")), "{list}");
    assert!(list.lines().any(|line| line.contains(" of 21474836480 huge")), "{list}");
    let Some(target) = Target::made(&volume, "vfat", &["mkfs.vfat"], &["-o", "loop"]) else {
        return skip("no vfat can be mounted");
    };
    let to = target.0.join("to");
    ended(&rescue(&volume, &to), 1, &["could not be written"]);
    assert_eq!(fs::read(to.join("zlast")).unwrap(), b"the last");
    assert_eq!(fs::read(to.join("theirs")).unwrap(), b"of another");
    let list = fs::read_to_string(to.join("RESCUE.txt")).unwrap();
    assert!(list.contains("the name a:b: ") && list.contains("theirs: its owner: "), "{list}");
    let kept = fs::read_dir(to.join("by-inode")).unwrap().flatten();
    assert!(kept.map(|entry| fs::read(entry.path()).unwrap()).any(|bytes| bytes == b"with a colon"));
}

/// Version 2; owner rwx, user 1234 rwx, group r-x, mask rwx, others r-x.
fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];
    let mut wire = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        wire.extend(tag.to_le_bytes());
        wire.extend(perm.to_le_bytes());
        wire.extend(id.to_le_bytes());
    }
    wire
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let len = rustix::fs::getxattr(path, name, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

const ACCESS: &str = "system.posix_acl_access";

#[test]
fn a_rescue_gives_nobody_more_than_they_had_and_brings_what_the_log_has_of_a_file() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    let at = |name: &str| mounted.path().join(name);
    fs::create_dir(at("private")).unwrap();
    fs::create_dir(at("shared")).unwrap();
    fs::set_permissions(at("private"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(at("shared"), Permissions::from_mode(0o1777)).unwrap();
    std::os::unix::fs::chown(at("private"), Some(1234), Some(1234)).unwrap();
    write_synced(&at("private/secret"), b"secret");
    fs::set_permissions(at("private/secret"), Permissions::from_mode(0o644)).unwrap();
    write_synced(&at("listed"), b"with a list");
    let lists = rustix::fs::setxattr(at("listed"), ACCESS, &list(), XattrFlags::empty()).is_ok();
    rustix::fs::setxattr(at("listed"), "user.note", b"mine", XattrFlags::empty()).unwrap();
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 5 };
    let times = Timestamps { last_access: time(1_000_000), last_modification: time(2_000_000) };
    for name in ["listed", "private"] {
        rustix::fs::utimensat(CWD, at(name), &times, AtFlags::empty()).unwrap();
    }
    let holed = File::create(at("holed")).unwrap();
    holed.set_len(1 << 20).unwrap();
    holed.write_all_at(&[7; 4096], 40_960).unwrap();
    holed.sync_all().unwrap();
    drop(holed);
    write_synced(&at("last"), b"so that all before is in the log");
    kill(mounted);
    let to = volume.at("to");
    let rescued = rescue(&volume, &to);
    ended(&rescued, 0, &[" 0 with holes", "older than the log"]);
    let of = |name: &str| {
        let found = fs::metadata(to.join(name)).unwrap();
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    assert_eq!(of("private"), (0o700, 1234, 1234));
    assert_eq!(of("private/secret"), (0o644, 0, 0));
    assert_eq!(of("shared").0, 0o1777);
    assert_eq!(of("by-inode").0, 0o700);
    for name in ["listed", "private"] {
        let found = fs::metadata(to.join(name)).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (2_000_000, 5), "{name}");
    }
    assert_eq!(attribute(&to.join("listed"), "user.note").as_deref(), Some(&b"mine"[..]));
    if lists {
        assert_eq!(attribute(&to.join("listed"), ACCESS), Some(list()));
        assert_eq!(of("listed").0, 0o775);
    }
    let mut wanted = vec![0; 1 << 20];
    wanted[40_960..45_056].fill(7);
    assert!(fs::read(to.join("holed")).unwrap() == wanted);
    let told = fs::read_to_string(to.join("RESCUE.txt")).unwrap();
    assert!(!told.contains("holed"), "{told}\n{}{}", out(&rescued), err(&rescued));
}

#[test]
fn a_rescue_that_is_ended_says_so_where_it_would_have_listed_what_is_missing() {
    need_fuse!();
    let volume = Volume::new();
    fs::write(volume.at("large"), vec![7; 20 << 20]).unwrap();
    let mounted = volume.mount(&["-o", "lag=60s,1GiB"]);
    fs::copy(volume.at("large"), mounted.path().join("large")).unwrap();
    File::open(mounted.path().join("large")).unwrap().sync_all().unwrap();
    kill(mounted);
    let mut ended = 0;
    for number in 0..20 {
        let target = volume.at(&format!("target{number}"));
        let mut rescue = bimetal();
        rescue.arg("rescue").arg("--ssd").arg(volume.at("ssd")).arg(&target);
        let mut rescue = rescue.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !target.join("by-inode").exists() && rescue.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = Command::new("kill").args(["-TERM", &rescue.id().to_string()]).status();
        let done = rescue.wait_with_output().unwrap();
        let list = fs::read_to_string(target.join("RESCUE.txt")).unwrap_or_default();
        if done.status.code() == Some(143) {
            ended += u32::from(list.contains("ended by a signal"));
            // What was still to come would have been of any of them.
            let none_is_whole = out(&done).lines().any(|line| line.starts_with("0 whole files"));
            assert!(!list.contains("ended by a signal") || none_is_whole, "{}", out(&done));
        } else {
            assert!(done.status.success(), "{}", err(&done));
        }
    }
    assert!(ended > 0, "none was ended before its end");
}
