//! A volume whose server ended without a word: its last files are in the log of its SSD half alone.

use crate::fsck::{filled, kill, marked, write_synced};
use crate::guard::{Volume, refused};
use crate::mounts::bimetal;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Files that only the log has.
pub const LATE: usize = 20;

/// One of them: its name and what is in it.
pub fn late(number: usize) -> (String, Vec<u8>) {
    (format!("late{number}"), vec![number as u8 + 1; 700 * number + 1])
}

/// Brings files to a volume that only the log of its SSD has, and kills its server.
pub fn crash(volume: &Volume) {
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    for (name, bytes) in (0..LATE).map(late) {
        write_synced(&mounted.path().join(name), &bytes);
    }
    kill(mounted);
}

/// A volume with files on both halves, and then such ones.
pub fn crashed() -> Volume {
    let volume = filled();
    crash(&volume);
    volume
}

/// An image of an SSD half that somebody cuts short or removes under the mount is noticed with the next fsync, which
/// the disk keeps instead: the SSD's log would not be found any more.
#[test]
fn an_ssd_image_that_is_cut_short_or_removed_under_a_mount_costs_no_file() {
    crate::mounts::need_fuse!();
    for cut in [true, false] {
        let volume = filled();
        let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
        let write = |(name, bytes): (String, Vec<u8>)| write_synced(&mounted.path().join(name), &bytes);
        (0..LATE / 2).map(late).for_each(write);
        match cut {
            true => fs::File::options().write(true).open(volume.at("ssd")).unwrap().set_len(0).unwrap(),
            false => fs::remove_file(volume.at("ssd")).unwrap(),
        }
        (LATE / 2..LATE).map(late).for_each(write);
        let status = mounted.status();
        assert_eq!(status["health"]["state"], "degraded", "{status}");
        let why = status["ssd_lost"].as_str().unwrap_or_default();
        assert!(
            why.contains(if cut { "somebody cut the file" } else { "somebody removed the file" }),
            "{status}"
        );
        kill(mounted);
        let disk = volume.at("disk");
        let alone = crate::mounts::Mounted::new(&["--disk", disk.to_str().unwrap(), "--without-ssd"]);
        check(alone.path());
    }
}

/// Everything that was fsynced is there.
pub fn check(place: &Path) {
    for (name, bytes) in (0..LATE).map(late) {
        let found = fs::read(place.join(&name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(found == bytes, "{name}");
    }
    check_older(place);
}

/// Nothing of what only the log held is there, but all that is older.
pub fn check_old(place: &Path) {
    assert!((0..LATE).all(|number| !place.join(late(number).0).exists()), "the log was applied");
    check_older(place);
}

/// What was there before is.
pub fn check_older(place: &Path) {
    for number in 0..10 {
        assert!(fs::read(place.join(format!("f{number}"))).unwrap() == marked(number), "f{number}");
    }
}

/// Killed while e2fsck works on the disk half, fsck leaves its lock to it: nobody else gets at the halves until it has ended.
#[test]
fn what_e2fsck_still_works_on_is_in_use_though_its_fsck_was_killed() {
    crate::mounts::need_fuse!();
    let volume = filled();
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    let [begun, go_on] = [volume.at("begun"), volume.at("go-on")];
    let slow = place.join("e2fsck");
    fs::write(&slow, format!(
        "#!/bin/sh\n: > {}\nwhile [ ! -e {} ]; do sleep 0.05; done\nPATH=/usr/sbin:/sbin exec e2fsck \"$@\"\n",
        begun.display(), go_on.display()
    )).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    let mut fsck = bimetal();
    fsck.env("PATH", path).args(["fsck", "--yes", "--deep"]);
    for half in ["ssd", "disk"] {
        fsck.arg(format!("--{half}")).arg(volume.at(half));
    }
    let mut fsck = fsck.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !begun.exists() {
        assert!(fsck.try_wait().unwrap().is_none(), "it has e2fsck look at the disk half");
        std::thread::sleep(Duration::from_millis(20));
    }
    fsck.kill().unwrap();
    fsck.wait().unwrap();
    refused(&volume.run(&["fsck", "-n"]), &["in use by process", "(e2fsck)"]);
    File::create(&go_on).unwrap();
    let mut tries = 0..200;
    while !volume.run(&["fsck", "-n"]).status.success() {
        assert!(tries.next().is_some(), "it is free once e2fsck has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
}
