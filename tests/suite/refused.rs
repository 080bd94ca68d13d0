//! What is refused, fails for something that has nothing to do with the volume, or only looks, has changed no byte.

use crate::crashed::{check, check_old, crashed};
use crate::fsck::{ended, filled, marked, resident_bytes};
use crate::guard::{Loop, Volume, err, out, refused, run};
use crate::mounts::{Mounted, bimetal, need_fuse, once_free, skip};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Runs a verb with both halves, and with the disk alone and the words that drop the SSD's log.
fn in_every_way(volume: &Volume, verb: &[&str], rest: &[&str]) -> Vec<std::process::Output> {
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    let mut all = vec![run(verb, both, rest), run(&[verb, &["--without-ssd"]].concat(), &both[1..], rest)];
    if verb[0] == "mount" {
        all.push(run(&[verb, &["-o", "recover=disk"]].concat(), both, rest));
        all.push(run(&[verb, &["-o", "without-ssd"]].concat(), &both[1..], rest));
    }
    all
}

#[test]
fn a_mount_refused_for_its_mount_point_or_its_log_file_has_changed_no_byte() {
    need_fuse!();
    let volume = crashed();
    let before = volume.bytes();
    let place = volume.at("mnt");
    fs::create_dir(&place).unwrap();
    let (place, none) = (place.to_str().unwrap(), volume.at("none"));
    let none = none.to_str().unwrap();
    let cases: [(&[&str], &[&str], &str); 4] = [
        (&["mount"], &[none], "mount point"),
        (&["mount"], &["/etc/hostname"], "not a directory"),
        (&["mount", "-f"], &[none], "mount point"),
        (&["mount", "--log", "/nonexistent/log"], &[place], "/nonexistent/log"),
    ];
    for (verb, rest, part) in cases {
        for done in in_every_way(&volume, verb, rest) {
            refused(&done, &[part]);
            assert!(volume.bytes() == before, "{verb:?} {rest:?} changed it: {}", err(&done));
        }
    }
    check(volume.mount(&[]).path());
}

#[test]
fn a_put_that_cannot_be_done_has_changed_no_byte() {
    need_fuse!();
    let volume = crashed();
    let before = volume.bytes();
    let cases: [(&[&str], &str); 6] = [
        (&["/tmp", "/f1"], "f1 in the volume is no directory"),
        (&["/nonexistent", "/"], "/nonexistent"),
        (&["/etc/hostname", "/no/such/dir/x"], "/no/such/dir"),
        (&["/etc/hostname", "/etc/passwd", "/f1"], "several sources need one"),
        (&["/etc/hostname", "/nonexistent", "/"], "/nonexistent"),
        (&["-", "/"], "name a file"),
    ];
    for (rest, part) in cases {
        for done in in_every_way(&volume, &["put"], rest) {
            refused(&done, &[part]);
            assert!(volume.bytes() == before, "put {rest:?} changed it: {}", err(&done));
        }
    }
    volume.done(&["scrub"]);
    check(volume.mount(&[]).path());
}

#[test]
fn a_disk_half_alone_that_is_only_read_costs_its_ssd_no_copy() {
    need_fuse!();
    let volume = filled();
    let before = volume.bytes();
    let disk = volume.at("disk");
    refused(&run(&["scrub"], &[("--disk", &disk)], &[]), &["--ssd", "mounted"]);
    let alone = Mounted::new(&["--disk", disk.to_str().unwrap()]);
    assert!(fs::read(alone.path().join("f3")).unwrap() == marked(3));
    assert_eq!(fs::read_dir(alone.path()).unwrap().count(), 11);
    assert!(alone.unmount().status.success());
    assert!(volume.bytes() == before, "it was written to");
    let mounted = volume.mount(&[]);
    assert!(resident_bytes(&mounted) >= 10 * (16 << 10));
}

#[test]
fn crash_does_not_copy_halves_that_are_mounted() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    refused(&run(&["crash"], both, &["--", "true"]), &["in use", "bimetal umount"]);
    drop(mounted);
    let looked = run(&["crash", "--states", "5"], both, &["--", "true"]);
    assert!(looked.status.success(), "{}{}", out(&looked), err(&looked));
}

#[test]
fn umount_takes_away_what_is_ours_only() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let place = home.path().to_str().unwrap();
    refused(&run(&["umount"], &[], &[place]), &[place, "nothing is mounted here", "findmnt"]);
    let foreign = Command::new("mount").args(["-t", "tmpfs", "bimetal-test", place]).status();
    if !foreign.is_ok_and(|status| status.success()) {
        return skip("no tmpfs can be mounted");
    }
    let tried = run(&["umount"], &[], &[place]);
    let still = fs::read_to_string("/proc/self/mountinfo").unwrap().contains(place);
    Command::new("umount").arg(place).status().unwrap();
    refused(&tried, &["no mount of bimetal", "tmpfs", "bimetal-test"]);
    assert!(still, "it was taken away");
    refused(&run(&["umount"], &[], &["/proc"]), &["no mount of bimetal", "proc"]);
}

#[test]
fn a_read_only_mount_is_unmounted_without_a_warning() {
    need_fuse!();
    let volume = filled();
    let before = volume.bytes();
    let mounted = volume.mount(&["-o", "ro"]);
    let ended = mounted.unmount();
    assert!(ended.status.success());
    assert_eq!(err(&ended), "");
    assert!(volume.bytes() == before);
}

#[test]
fn a_read_only_device_is_refused_with_what_to_do() {
    need_fuse!();
    let volume = filled();
    let Some(device) = Loop::over(&volume.at("disk"), &["-r"]) else { return skip("no loop devices") };
    let place = volume.at("mnt");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    let tried = run(&["mount"], &[("--disk", device.path())], &[place]);
    refused(&tried, &["read-only device", "-o ro", "blockdev --setrw"]);
    let mounted = Mounted::new(&["-o", "ro", "--disk", device.0.as_str()]);
    assert!(fs::read(mounted.path().join("f2")).unwrap() == marked(2));
}

/// Flips a bit of the bitmap of blocks of every group of an ext4.
fn damage_bitmaps(image: &Path) {
    let bytes = fs::read(image).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (blocks, first, block_bytes) = (word(1024 + 4), word(1024 + 20), 1024 << word(1024 + 24));
    let (per_group, desc_bytes) = (word(1024 + 32), word(1024 + 0xFC) >> 16);
    let file = File::options().write(true).open(image).unwrap();
    for group in 0..(blocks - first).div_ceil(per_group) {
        let bitmap = word((first + 1) * block_bytes + group * desc_bytes) * block_bytes + 500;
        file.write_all_at(&[bytes[bitmap] ^ 4], bitmap as u64).unwrap();
    }
}

#[test]
fn a_damaged_disk_half_is_repaired_by_fsck_and_nothing_that_was_fsynced_is_lost_by_it() {
    need_fuse!();
    let volume = crashed();
    damage_bitmaps(&volume.at("disk"));
    let before = volume.bytes();
    let place = volume.at("mnt");
    fs::create_dir(&place).unwrap();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    let tried = run(&["mount"], both, &[place.to_str().unwrap()]);
    refused(&tried, &["the disk half is corrupt", "block bitmap", "e2fsck -f", "is not lost"]);
    for no in ["SSD log", "recover=disk", "parent:"] {
        assert!(!err(&tried).contains(no), "'{no}' in {}", err(&tried));
    }
    assert!(volume.bytes() == before, "the refused mount changed it");
    ended(&volume.run(&["fsck", "-n"]), 4, &["the disk half", "block bitmap", "e2fsck"]);
    assert!(volume.bytes() == before, "fsck -n changed it");
    ended(
        &volume.run(&["fsck", "--yes"]),
        1,
        &["the disk half", "Repaired.", "e2fsck repaired", "operations"],
    );
    ended(&volume.run(&["fsck", "-n"]), 0, &["clean"]);
    check(volume.mount(&[]).path());
}

#[test]
fn a_disk_half_that_is_marked_as_having_errors_is_repaired_by_fsck_and_the_log_applied_then() {
    need_fuse!();
    let volume = crashed();
    let disk = volume.at("disk");
    let tool = |name: &str, args: &[&str]| {
        let done = Command::new(name).args(args).arg(&disk).output();
        done.is_ok_and(|output| output.status.code().is_some_and(|code| code < 2))
    };
    // Its journal replayed by another, which then met errors.
    let replayed = tool("/usr/sbin/e2fsck", &["-y", "-E", "journal_only"]);
    if !replayed || !tool("/usr/sbin/debugfs", &["-w", "-R", "ssv state 2"]) {
        return skip("no e2fsck or debugfs");
    }
    damage_bitmaps(&disk);
    let before = volume.bytes();
    ended(&volume.run(&["fsck", "-n"]), 4, &["marked as having errors"]);
    assert!(volume.bytes() == before, "fsck -n changed it");
    ended(&volume.run(&["fsck", "--yes"]), 1, &["marked as having errors", "Repaired.", "operations"]);
    check(volume.mount(&[]).path());
}

/// Halves exchanged, cut short, without superblocks, a place that is no directory: each is named, with what to do.
#[test]
fn mistaken_halves_are_named_with_what_to_do_and_stay_as_they_are() {
    let volume = Volume::new();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let before = volume.bytes();
    let exchanged = [("--ssd", &*disk), ("--disk", &*ssd)];
    for verb in [&["adopt"][..], &["adopt", "--force"]] {
        let remedy = format!("--ssd {} --disk {}", ssd.display(), disk.display());
        refused(&run(verb, &exchanged, &[]), &["is an SSD half", "exchange them", &remedy]);
    }
    let file = volume.at("file");
    fs::write(&file, b"a file").unwrap();
    refused(
        &run(&["rescue"], &[("--ssd", &ssd)], &[file.to_str().unwrap()]),
        &["no directory", "name a new one"],
    );
    assert_eq!(fs::read(&file).unwrap(), b"a file");

    let short = volume.at("short");
    fs::copy(&disk, &short).unwrap();
    File::options().write(true).open(&short).unwrap().set_len(50 << 20).unwrap();
    let halves = [("--ssd", &*ssd), ("--disk", &*short)];
    let remedy = format!("--size {}", 128 << 20);
    for verb in [&["ls"][..], &["fsck", "-n"]] {
        let done = run(verb, &halves, if verb[0] == "ls" { &["/"] } else { &[] });
        let said = out(&done) + &err(&done);
        assert!(!done.status.success(), "{verb:?}: {said}");
        for part in ["128.0 MiB", "50.0 MiB", "cut short", &remedy] {
            assert!(said.contains(part), "'{part}' in: {said}");
        }
        assert!(!said.contains("no ext4"), "{said}");
    }
    assert_eq!(fs::metadata(&short).unwrap().len(), 50 << 20);

    let bad = volume.at("bad");
    let mut bytes = before[0].clone();
    let end = bytes.len() - 4096;
    bytes[..4096].fill(0);
    bytes[end..].fill(0);
    fs::write(&bad, bytes).unwrap();
    let to = volume.at("to");
    refused(
        &run(&["rescue"], &[("--ssd", &bad)], &[to.to_str().unwrap()]),
        &["superblock", "of which an SSD half has two", "bimetal ls --disk"],
    );
    assert!(!to.exists(), "a rescue of nothing left a directory");
    assert!(volume.bytes() == before);
}

#[test]
fn adopt_names_what_only_a_log_holds_before_it_asks_for_force_and_what_it_drops_with_it() {
    need_fuse!();
    let volume = crashed();
    let before = volume.bytes();
    refused(&volume.run(&["adopt"]), &["was not unmounted", "would be lost", "mount it with that SSD once"]);
    assert!(volume.bytes() == before, "a refused command changed a half");
    let said = volume.done(&["adopt", "--force"]);
    assert!(said.contains("dropped for ever, as asked: what was fsynced"), "{said}");
}

#[test]
fn an_ssd_half_whose_log_another_disk_needs_is_named_before_it_is_overwritten() {
    need_fuse!();
    let (volume, other) = (crashed(), Volume::new());
    let before = volume.bytes();
    let (ssd, disk) = (volume.at("ssd"), other.at("disk"));
    let places: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    let held = ["was not left in order", "which only the log of", "would be lost", "bimetal rescue --ssd"];
    for verb in [&["adopt"][..], &["mkfs", "nfhybrid"]] {
        refused(&run(verb, places, &[]), &held);
        assert!(volume.bytes() == before, "{verb:?} changed a half");
    }
    let done = run(&["adopt", "--force"], places, &[]);
    assert!(done.status.success() && out(&done).contains("dropped for ever, as asked"), "{}", err(&done));
    // One that was left in order is refused for what it is, as before.
    let clean = Volume::new();
    let done = run(&["adopt"], &[("--ssd", &clean.at("ssd")), ("--disk", &disk)], &[]);
    refused(&done, &["SSD half", "--force"]);
}

#[test]
fn adopt_with_a_rule_that_cannot_be_changes_neither_half_not_even_by_force() {
    need_fuse!();
    let volume = crashed();
    File::create(volume.at("new")).unwrap().set_len(32 << 20).unwrap();
    let (disk, new) = (volume.at("disk"), volume.at("new"));
    let before = (volume.bytes(), fs::read(&new).unwrap());
    for ssd in [volume.at("ssd"), new.clone()] {
        let places: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
        let rules: [([&str; 2], &str); 3] = [
            (["--map", "/x=nowhere"], "nowhere"),
            (["--map", "/f0=default"], "not a directory"),
            (["--bypass", "/f1/x"], "not a directory"),
        ];
        for (rule, why) in rules {
            refused(&run(&["adopt", "--force"], places, &rule), &[why]);
            assert!((volume.bytes(), fs::read(&new).unwrap()) == before, "{rule:?} changed a half");
        }
    }
    check(volume.mount(&[]).path());
}

#[test]
fn adopt_says_what_a_disk_is_that_is_no_ext4() {
    let volume = Volume::images();
    File::options().write(true).open(volume.at("disk")).unwrap().write_all_at(b"XFSB", 0).unwrap();
    refused(&volume.run(&["adopt"]), &["xfs", "what is adopted is an ext4"]);
    // One that is to be repaired first is an ext4 all the same.
    let disk = volume.at("disk");
    let tool = |name: &str, args: &[&str]| {
        let done = Command::new(format!("/usr/sbin/{name}")).args(args).arg(&disk).output().unwrap();
        assert!(done.status.code().unwrap() < 4, "{}", err(&done));
    };
    tool("mke2fs", &["-q", "-F", "-t", "ext4"]);
    tool("debugfs", &["-w", "-R", "set_super_value state 3"]);
    let tried = volume.run(&["adopt"]);
    refused(&tried, &["errors", "e2fsck"]);
    assert!(!err(&tried).contains("mkfs"), "{}", err(&tried));
    tool("e2fsck", &["-fy"]);
    volume.done(&["adopt"]);
    let volume = Volume::new();
    let (ssd, link) = (volume.at("ssd"), volume.at("link"));
    fs::hard_link(&ssd, &link).unwrap();
    let places: &[(&str, &Path)] = &[("--ssd", &link), ("--disk", &ssd)];
    refused(&run(&["adopt"], places, &[]), &["are the same"]);
}

#[test]
fn a_log_dropped_by_word_stays_dropped_after_a_check_that_had_nothing_to_write() {
    need_fuse!();
    let volume = crashed();
    let disk = volume.at("disk");
    let done = Command::new("e2fsck").arg("-fp").arg(&disk).output().unwrap();
    assert!(done.status.code() < Some(2), "{done:?}");
    let alone: &[(&str, &Path)] = &[("--disk", &disk)];
    refused(&run(&["ls"], alone, &["/"]), &["was not unmounted"]);
    let checked = run(&["fsck", "--without-ssd"], alone, &[]);
    // It was asked for, and is a loss all the same.
    ended(&checked, 4, &["dropped for ever, as asked", "Lost."]);
    let listed = run(&["ls"], alone, &["/"]);
    assert!(listed.status.success(), "{}", err(&listed));
    check_old(volume.mount(&[]).path());
}

#[test]
fn umount_takes_an_exported_device_away() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let served = home.path().join("served");
    fs::create_dir(&served).unwrap();
    let mut export = Command::new(env!("CARGO_BIN_EXE_bimetal"));
    export.args(["export", "--size", "16MiB", "--no-latency"]).arg(home.path().join("image"));
    let mut server = export.arg("--file").arg(&served).stdout(std::process::Stdio::null()).spawn().unwrap();
    for _ in 0..500 {
        if served.join("device").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let is_served = served.join("device").exists();
    let done = run(&["umount"], &[], &[served.to_str().unwrap()]);
    if !done.status.success() {
        let _ = Command::new("umount").arg("-l").arg(&served).status();
    }
    assert!(server.wait().unwrap().success());
    assert!(is_served && done.status.success(), "{}", err(&done));
}

#[test]
fn a_recording_that_would_record_itself_is_refused_and_hangs_nobody() {
    need_fuse!();
    let mount = Mounted::memfs("root_only");
    let cases = [
        (mount.path().join("r.csv"), "would be recorded itself"),
        (mount.scratch().join("none/r.csv"), "No such file"),
        (mount.scratch().join("r.txt"), "ends in .csv"),
    ];
    for (output, part) in cases {
        let mut record = bimetal();
        record.arg("record").arg(mount.path()).arg("-o").arg(&output).args(["--", "true"]);
        refused(&record.output().unwrap(), &[part, output.parent().unwrap().to_str().unwrap()]);
    }
    fs::write(mount.path().join("f"), b"it works on").unwrap();
    let output = mount.scratch().join("r.csv");
    let mut record = bimetal();
    record.arg("record").arg(mount.path()).arg("-o").arg(&output).args(["--", "sh", "-c", "exit 3"]);
    assert_eq!(record.output().unwrap().status.code(), Some(3), "the command's own");
    assert!(fs::read_to_string(output).unwrap().contains(",path_id,"), "it has its head");
}

#[test]
fn an_exploration_of_nothing_and_a_state_that_there_is_not_are_refused() {
    need_fuse!();
    let done = bimetal().args(["crash", "--states", "0", "--", "true"]).output().unwrap();
    refused(&done, &["--states"]);
    let home = tempfile::tempdir().unwrap();
    let saved = home.path().join("run.crash");
    let done = bimetal()
        .args(["crash", "--states", "3", "--save"])
        .arg(&saved)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", err(&done));
    let done = bimetal().args(["crash", "--state", "99999-all-0", "--replay"]).arg(&saved).output().unwrap();
    refused(&done, &["99999-all-0", "requests"]);
}

#[test]
fn a_mount_whose_server_was_just_killed_is_unmounted_at_once() {
    need_fuse!();
    let volume = crashed();
    for _ in 0..8 {
        let place = volume.at("mnt");
        let _ = fs::create_dir(&place);
        let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
        let mut mount = bimetal();
        mount.arg("mount").arg("--ssd").arg(&ssd).arg("--disk").arg(&disk).arg(&place);
        assert!(mount.output().unwrap().status.success());
        let status = bimetal().args(["status", "--json"]).arg(&place).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        fs::write(place.join("large"), vec![7; 20 << 20]).unwrap();
        let pid = status["front"]["pid"].to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        let done = once_free(bimetal().arg("umount").arg(&place));
        let words = err(&done);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(place.to_str().unwrap()), "still mounted: {words}");
        assert!(!words.contains("nothing was unmounted"), "{words}");
    }
}

#[test]
fn what_a_mount_noticed_is_in_its_log_too() {
    need_fuse!();
    let volume = crashed();
    let (place, log, disk) = (volume.at("mnt"), volume.at("log"), volume.at("disk"));
    fs::create_dir(&place).unwrap();
    let mut mount = bimetal();
    mount.args(["mount", "--without-ssd", "--log"]).arg(&log).arg("--disk").arg(&disk).arg(&place);
    let done = mount.output().unwrap();
    assert!(done.status.success() && err(&done).contains("dropped"), "{}", err(&done));
    assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("dropped"), "{logged}");
}

/// In a new PID namespace a process has another number than `/proc` of the old one shows: there that may be another process.
#[test]
fn what_is_claimed_is_what_is_opened_where_proc_is_of_another_pid_namespace() {
    let volume = Volume::new();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    for verb in [&["fsck"][..], &["ls", "/"], &["mkfs", "nfhybrid", "--force", "--bypass", "/backup"]] {
        let mut within = Command::new("unshare");
        within.args(["--pid", "--fork"]).arg(env!("CARGO_BIN_EXE_bimetal")).args(&verb[..1]);
        let (own, names) = if verb[0] == "ls" { (&[][..], &verb[1..]) } else { (&verb[1..], &[][..]) };
        let done = within.args(own).arg("--ssd").arg(&ssd).arg("--disk").arg(&disk).args(names).output();
        let done = done.expect("unshare(1)");
        if err(&done).starts_with("unshare") {
            return skip("no PID namespace");
        }
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
    }
}
