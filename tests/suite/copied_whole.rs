//! What belongs to a file that is copied: all of it comes along, or it is told; signals that are ignored; what a refused command
//! must not empty.

use crate::copied::{both, names, put, with_a_file};
use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::{bimetal, skip};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const NOBODY: u32 = 65534;
const NOTE: &str = "user.note";

fn noted(path: &Path) -> bool {
    rustix::fs::setxattr(path, NOTE, b"here", rustix::fs::XattrFlags::empty()).is_ok()
}

fn note_of(path: &Path) -> Vec<u8> {
    let mut note = [0; 16];
    rustix::fs::getxattr(path, NOTE, &mut note[..]).map_or(Vec::new(), |len| note[..len].to_vec())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `get` in another way than as whoever runs the tests.
fn get_by(mut command: Command, volume: &Volume, source: &str, target: &Path) -> Option<Output> {
    command.arg("get").arg("--ssd").arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
    command.arg(source).arg(target).output().ok()
}

#[test]
fn who_is_not_root_gets_attributes_and_times_of_what_may_not_be_written() {
    let volume = Volume::new();
    let [tree, place] = ["tree", "place"].map(|name| volume.at(name));
    fs::create_dir(&tree).unwrap();
    let file = tree.join("f");
    fs::write(&file, "x").unwrap();
    if !noted(&file) || !noted(&tree) {
        return skip("the file system has no attributes of users");
    }
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(&file).unwrap().set_modified(time).unwrap();
    fs::File::open(&tree).unwrap().set_modified(time).unwrap();
    set_mode(&file, 0o444);
    set_mode(&tree, 0o555);
    put(&volume, "tree", "/");
    set_mode(&tree, 0o755);
    fs::create_dir(&place).unwrap();
    if chown(&place, Some(NOBODY), Some(NOBODY)).is_err() {
        return skip("not root");
    }
    set_mode(&volume.at("."), 0o755);
    ["ssd", "disk"].iter().for_each(|half| set_mode(&volume.at(half), 0o644));
    let mut command = bimetal();
    command.uid(NOBODY).gid(NOBODY);
    let Some(done) = get_by(command, &volume, "/tree", &place) else {
        return skip("where the command is, nobody else can run it");
    };
    assert!(done.status.success(), "{}", err(&done));
    for (name, mode) in [("tree", 0o555), ("tree/f", 0o444)] {
        let path = place.join(name);
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (mode, 1_000_000_000), "{name}");
        assert_eq!(note_of(&path), b"here", "{name}");
    }
}

/// Root that may do everything but give files away.
fn without_chown() -> Option<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-chown", "--inh-caps=-chown"]);
    let mut probe = Command::new("setpriv");
    probe.args(["--bounding-set=-chown", "--inh-caps=-chown", "true"]);
    probe.output().is_ok_and(|done| done.status.success()).then(|| {
        command.arg(bimetal().get_program());
        command
    })
}

#[test]
fn what_does_not_get_its_owner_replaces_nothing_and_new_it_is_told() {
    let volume = Volume::new();
    let file = volume.at("f");
    fs::write(&file, "new").unwrap();
    set_mode(&file, 0o6755);
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(&file).unwrap().set_modified(time).unwrap();
    if chown(&file, Some(NOBODY), Some(NOBODY)).is_err() {
        return skip("not root");
    }
    set_mode(&file, 0o6755);
    put(&volume, "f", "/");
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    let target = place.join("f");
    let Some(done) = without_chown().and_then(|command| get_by(command, &volume, "/f", &target)) else {
        return skip("no setpriv");
    };
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    let said = err(&done);
    assert!(said.contains("f: copied, but not its owner: Operation not permitted"), "{said}");
    assert!(said.contains("one was copied without all that belongs to it"), "{said}");
    let found = fs::metadata(&target).unwrap();
    // The rest is there, but for the bits that would lend root's rights.
    assert_eq!((found.uid(), found.mode() & 0o7777, found.mtime()), (0, 0o755, 1_000_000_000));
    assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    fs::write(&target, "old").unwrap();
    set_mode(&target, 0o644);
    let before = fs::metadata(&target).unwrap();
    let done = get_by(without_chown().unwrap(), &volume, "/f", &target).unwrap();
    refused(&done, &["its owner cannot be copied", "what is there under its name stays", "was not copied"]);
    let after = fs::metadata(&target).unwrap();
    assert_eq!((before.ino(), before.mode(), before.mtime()), (after.ino(), after.mode(), after.mtime()));
    assert_eq!(fs::read_to_string(&target).unwrap(), "old");
    assert_eq!(names(&place), ["f"]);
}

/// As nohup does it, and a script for what it starts with `&`.
#[test]
fn a_signal_that_is_ignored_ends_nothing() {
    let volume = with_a_file();
    for signal in ["HUP", "INT"] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("trap '' {signal}; exec \"$@\""), "sh"]).arg(bimetal().get_program());
        command.arg("put").arg("--ssd").arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
        command.args(["-", &format!("/{signal}")]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // More than a pipe holds: it copies by now.
        input.write_all(&vec![7; 1 << 20]).unwrap();
        assert!(
            Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success()
        );
        // One that had been heard would have ended it here.
        input.write_all(&vec![7; 1 << 20]).unwrap();
        drop(input);
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{signal}: {}", err(&done));
        assert_eq!(both(&volume, "cat", &[&format!("/{signal}")]).stdout.len(), 2 << 20);
    }
}

#[test]
fn a_time_that_the_volume_cannot_hold_is_told() {
    let volume = Volume::new();
    // What the volume cannot hold, another ext4 cannot, either.
    let Ok(home) = tempfile::tempdir_in("/dev/shm") else { return skip("no /dev/shm") };
    let old = home.path().join("old");
    fs::write(&old, "x").unwrap();
    let stamp = rustix::fs::Timespec { tv_sec: 16_725_225_600, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: stamp, last_modification: stamp };
    rustix::fs::utimensat(rustix::fs::CWD, &old, &times, rustix::fs::AtFlags::empty()).unwrap();
    if fs::metadata(&old).unwrap().mtime() != stamp.tv_sec {
        return skip("the file system of the tests cannot hold it either");
    }
    let done = both(&volume, "put", &[old.to_str().unwrap(), "/"]);
    refused(&done, &["copied, but not its time of modification: 2500-01-01", "became 2446-05-10"]);
    assert_eq!(out(&both(&volume, "cat", &["/old"])), "x");
}

#[test]
fn osd_put_that_can_read_nothing_empties_nothing() {
    let volume = Volume::images();
    let nand = volume.at("nand");
    let osd = |verb: &[&str], rest: &[&str]| run(verb, &[("--nand", &nand)], rest);
    let made = osd(&["mkfs", "osd"], &["--bare", "--size", "16MiB"]);
    assert!(made.status.success(), "{}", err(&made));
    let six = volume.at("six");
    fs::write(&six, "6 byte").unwrap();
    let done = osd(&["osd", "put"], &[six.to_str().unwrap()]);
    assert!(done.status.success(), "{}", err(&done));
    let id = out(&done).trim().to_string();
    refused(&osd(&["osd", "put"], &["--id", &id, volume.at(".").to_str().unwrap()]), &["is a directory"]);
    assert_eq!(out(&osd(&["osd", "get"], &[&id])), "6 byte");
    // What is empty may be written.
    fs::write(&six, "").unwrap();
    let done = osd(&["osd", "put"], &["--id", &id, six.to_str().unwrap()]);
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(out(&osd(&["osd", "get"], &[&id])), "");
}

#[test]
fn record_of_what_is_no_mount_empties_and_leaves_nothing() {
    let volume = Volume::images();
    let [old, new] = ["old.csv", "new.csv"].map(|name| volume.at(name));
    fs::write(&old, "yesterday").unwrap();
    for output in [&old, &new] {
        refused(
            &run(&["record"], &[("-o", output)], &["/proc", "--", "true"]),
            &["/proc", "nothing of bimetal is mounted here"],
        );
    }
    assert_eq!(fs::read_to_string(&old).unwrap(), "yesterday");
    assert!(!new.exists());
}

/// A process for each small file that is replaced is what a copy of a tree would take.
#[test]
fn blkid_is_asked_about_what_may_be_a_volume_and_not_about_each_small_file() {
    let volume = Volume::new();
    let [tree, place, bin, asked] = ["tree", "place", "bin", "asked"].map(|name| volume.at(name));
    for dir in [&tree, &place, &bin] {
        fs::create_dir(dir).unwrap();
    }
    for (name, len) in [("empty", 0), ("small", 100), ("short", 65_535), ("longer", 65_536)] {
        fs::write(tree.join(name), vec![b'x'; len]).unwrap();
    }
    put(&volume, "tree", "/");
    fs::write(bin.join("blkid"), format!("#!/bin/sh\necho asked >> {}\nexit 2\n", asked.display())).unwrap();
    set_mode(&bin.join("blkid"), 0o755);
    let get = || {
        let mut command = bimetal();
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        let _ = fs::write(&asked, "");
        let done = get_by(command, &volume, "/tree", &place).unwrap();
        assert!(done.status.success(), "{}", err(&done));
        fs::read_to_string(&asked).unwrap().lines().count()
    };
    let first = get();
    assert_eq!(get() - first, 1);
}

/// With delayed allocation a full host takes what is written, and loses it when it writes it out.
#[test]
fn what_the_host_cannot_write_out_takes_no_files_place() {
    let home = Volume::images();
    let (host, image, place) = (home.at("host"), home.at("host").join("image"), home.at("place"));
    [&host, &place].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let done = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|done| done.status.success())
    };
    let [host, image, place] = [&host, &image, &place].map(|path| path.to_str().unwrap());
    if !done("mount", &["-t", "tmpfs", "-o", "size=24m", "tmpfs", host]) {
        return skip("nothing can be mounted");
    }
    fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
    let made = done("/usr/sbin/mke2fs", &["-q", "-t", "ext4", "-F", image]) && done("mount", &[image, place]);
    if made {
        let man = || bimetal().args(["man", place]).output().unwrap();
        assert!(man().status.success());
        let page = Path::new(place).join("bimetal-mount.1");
        fs::write(&page, "an old page").unwrap();
        rustix::fs::sync();
        // The host has no room for anything that is not there yet.
        let mut filler = fs::File::create(Path::new(host).join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        let told = man();
        let kept = fs::read(&page);
        drop(filler);
        let _ = fs::remove_file(Path::new(host).join("filler"));
        let unmounted = done("umount", &[place]);
        assert!(done("umount", &[host]) && unmounted);
        assert!(!told.status.success(), "{}", out(&told));
        assert_eq!(kept.unwrap(), b"an old page");
        return;
    }
    assert!(done("umount", &[host]));
    skip("no ext4 can be mounted");
}
