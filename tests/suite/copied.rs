//! What `get`, `put` and the outputs of other commands may take the place of.

use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::{bimetal, need_fuse};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};

/// A volume with a file of six bytes, made without a mount.
fn with_a_file() -> Volume {
    let volume = Volume::new();
    fs::write(volume.at("six"), "6 byte").unwrap();
    put(&volume, "six", "/f");
    volume
}

fn both(volume: &Volume, verb: &str, rest: &[&str]) -> Output {
    run(&[verb], &[("--ssd", &volume.at("ssd")), ("--disk", &volume.at("disk"))], rest)
}

fn put(volume: &Volume, source: &str, target: &str) {
    let done = both(volume, "put", &[volume.at(source).to_str().unwrap(), target]);
    assert!(done.status.success(), "{}", err(&done));
}

fn get(volume: &Volume, target: &Path) -> Output {
    both(volume, "get", &["/f", target.to_str().unwrap()])
}

#[test]
fn get_replaces_files_and_nothing_that_is_a_volume_a_link_or_a_device() {
    let (volume, other) = (with_a_file(), Volume::new());
    let [before, others] = [volume.bytes(), other.bytes()];
    for half in ["ssd", "disk"] {
        refused(&get(&volume, &volume.at(half)), &[half]);
        refused(&get(&volume, &other.at(half)), &["name another"]);
    }
    assert!(volume.bytes() == before && other.bytes() == others);
    let fifo = volume.at("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    refused(&get(&volume, &fifo), &["is no file"]);
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    refused(&get(&volume, Path::new("/dev/full")), &["is no file"]);
    assert!(fs::symlink_metadata("/dev/full").unwrap().file_type().is_char_device());
    let [link, file] = ["link", "file"].map(|name| volume.at(name));
    for to in ["/dev/full", "disk", "file", "nothing"] {
        symlink(volume.at(to), &link).unwrap();
        refused(&get(&volume, &link), &["is a link"]);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::remove_file(&link).unwrap();
    }
    fs::write(&file, "longer than it was").unwrap();
    let done = get(&volume, &file);
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(fs::read_to_string(&file).unwrap(), "6 byte");
    assert!(volume.bytes() == before);
    let shown = get(&volume, Path::new("-"));
    assert_eq!((out(&shown).as_str(), shown.status.code()), ("6 byte", Some(0)));
    let left = fs::read_dir(volume.at(".")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".bimetal")));
}

#[test]
fn what_put_has_no_room_for_replaces_nothing_and_leaves_nothing() {
    let volume = with_a_file();
    let large = volume.at("large");
    // Random, and so nothing packs it.
    let mut random = File::open("/dev/urandom").unwrap();
    std::io::copy(&mut std::io::Read::take(&mut random, 160 << 20), &mut File::create(&large).unwrap())
        .unwrap();
    for target in ["/f", "/new"] {
        let done = both(&volume, "put", &[large.to_str().unwrap(), target]);
        refused(&done, &["no space left"]);
    }
    assert_eq!(out(&both(&volume, "cat", &["/f"])), "6 byte");
    let names = out(&both(&volume, "ls", &["-a", "/"]));
    assert!(!names.contains("new") && !names.contains(".bimetal"), "{names}");
    let room = volume.done(&["fsck", "-n"]);
    assert!(room.contains("clean"), "{room}");
    refused(&both(&volume, "put", &[volume.at("six").to_str().unwrap(), "/none/"]), &["no such directory"]);
    refused(&both(&volume, "put", &[volume.at("six").to_str().unwrap(), "f"]), &["say /f"]);
}

#[test]
fn a_file_that_does_not_say_how_long_it_is_is_put_whole() {
    let volume = with_a_file();
    for (source, target) in
        [("/proc/version", "/version"), ("/sys/kernel/mm/transparent_hugepage/enabled", "/enabled")]
    {
        let Ok(bytes) = fs::read(source) else { continue };
        let done = both(&volume, "put", &[source, target]);
        assert!(done.status.success(), "{}", err(&done));
        assert!(both(&volume, "cat", &[target]).stdout == bytes, "{source}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_no_repair() {
    let volume = with_a_file();
    let mut disk = fs::read(volume.at("disk")).unwrap();
    // The number of free blocks that the superblock has.
    disk[1024 + 0xC] ^= 0x5A;
    fs::write(volume.at("disk"), disk).unwrap();
    let check = |stdout: Stdio| {
        let mut command = bimetal();
        command.args(["fsck", "-n", "--ssd"]).arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
        command.stdout(stdout).stderr(Stdio::piped()).output().unwrap()
    };
    assert_eq!(check(Stdio::null()).status.code(), Some(4));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let untold = check(full.into());
    assert_eq!(untold.status.code(), Some(4 | 8), "{}", err(&untold));
    assert!(err(&untold).contains("standard output"), "{}", err(&untold));
}

#[test]
fn reports_are_written_to_what_is_named_and_over_no_volume() {
    let volume = with_a_file();
    let before = volume.bytes();
    let replay = |what: &str, to: &Path| {
        run(&["replay", "gen:zipf:requests=100", "--device", "none"], &[(what, to)], &[])
    };
    for what in ["--csv", "--html", "--parquet"] {
        refused(&replay(what, &volume.at("disk")), &["name another"]);
    }
    assert!(volume.bytes() == before);
    let [link, file] = ["link.csv", "file.csv"].map(|name| volume.at(name));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    let done = replay("--csv", &link);
    assert!(done.status.success(), "{}", err(&done));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let rows = fs::read_to_string(&file).unwrap();
    assert!(rows.lines().count() == 2, "{rows}");
    // To a device, as standard output may be one.
    let to_device = volume.at("null.csv");
    symlink("/dev/null", &to_device).unwrap();
    assert!(replay("--csv", &to_device).status.success());
    assert!(fs::metadata(&to_device).unwrap().file_type().is_char_device());
}

#[test]
fn the_log_of_a_server_is_appended_to_no_volume() {
    need_fuse!();
    let (volume, other) = (Volume::new(), Volume::new());
    let others = other.bytes();
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    for log in [other.at("disk"), other.at("ssd")] {
        let log = log.to_str().unwrap();
        let done = both(&volume, "mount", &["--log", log, place.to_str().unwrap()]);
        refused(&done, &["--log", "name another"]);
    }
    assert!(
        other.bytes() == others
            && fs::metadata(&place).unwrap().dev() == fs::metadata(volume.at(".")).unwrap().dev()
    );
    let log = volume.at("log");
    fs::write(&log, "before\n").unwrap();
    let mounted = volume.mount(&["--log", log.to_str().unwrap()]);
    let again = Volume::new().mount(&["--log", log.to_str().unwrap()]);
    drop((mounted, again));
    assert!(fs::read_to_string(&log).unwrap().starts_with("before\n"));
}
