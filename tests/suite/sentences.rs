//! What commands say: the thing, the limit and the remedy, in sentences.

use crate::crashed::{check_old, crash, crashed};
use crate::fsck::{MARK, ended, filled, flip_in_log, kill, write_synced};
use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::{Mounted, need_fuse, once_free, skip};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;

#[test]
fn a_size_beyond_this_machine_or_this_volume_is_refused_with_its_limit() {
    let volume = Volume::new();
    let before = volume.bytes();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let cases = [
        ("prealloc=99TiB", "half of this machine's memory"),
        ("memory=99TiB", "half of this machine's memory"),
        ("memory=1KiB", "at least"),
        ("cache=lru,cache-size=99TiB", "half of this machine's memory"),
        ("lag=5s,99TiB", "half of this machine's memory"),
        ("lag=1000h", "100ms to 1h"),
        ("lag=1ms", "100ms to 1h"),
        ("threads=65", "1 to 64"),
        ("promote-budget=x", "mount option promote-budget"),
        ("promote=x", "mount option promote"),
        ("durability=x", "mount option durability"),
        ("lag=64MiB,5x", "neither a time"),
        ("lag=64MiB,1000h", "100ms to 1h"),
        ("recover=x", "whole"),
    ];
    for (option, part) in cases {
        let tried = run(&["mount", "-o", option], &[("--ssd", &ssd), ("--disk", &disk)], &["/nonexistent"]);
        let name = option.rsplit(',').next().unwrap().split('=').next().unwrap();
        let name = if option.starts_with("lag") { "lag" } else { name };
        refused(&tried, &[name, part]);
    }
    refused(&run(&["mount", "-t", "memfs", "-o", "size=99TiB"], &[], &["/nonexistent"]), &["size", "memory"]);
    for (option, value) in
        [("--log", "99TiB"), ("--log", "1KiB"), ("--log", "31MiB"), ("--flash-block", "3MiB")]
    {
        let tried = volume.run(&["mkfs", "nfhybrid", "--force", option, value]);
        refused(&tried, &[]);
        assert!(err(&tried).len() > 40, "{option} {value}: {}", err(&tried));
    }
    assert!(volume.bytes() == before);
}

#[test]
fn umount_of_a_disk_half_that_failed_by_itself_speaks_of_no_log() {
    need_fuse!();
    let volume = Volume::new();
    let small = volume.at("small");
    fs::create_dir(&small).unwrap();
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&small).status();
    if !tmpfs.is_ok_and(|status| status.success()) {
        return skip("no tmpfs can be mounted");
    }
    let disk = small.join("disk");
    let copied = Command::new("cp").arg("--sparse=always").arg(volume.at("disk")).arg(&disk).status();
    let mounted = Mounted::new(&["--disk", disk.to_str().unwrap()]);
    let mut filler = File::create(small.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);
    let mut file = File::create(mounted.path().join("file")).unwrap();
    // How far it comes is no matter.
    let _ = file.write_all(&[7; 8 << 20]).and_then(|()| file.sync_all());
    drop(file);
    let ended = mounted.unmount();
    assert!(once_free(Command::new("umount").arg(&small)).status.success());
    assert!(copied.unwrap().success());
    refused(&ended, &["not everything could be written out", "No space left", "on its medium"]);
    for no in ["SSD", "both halves"] {
        assert!(!err(&ended).contains(no), "{no} in {}", err(&ended));
    }
}

#[test]
fn map_wants_a_directory_as_seen_from_the_root_of_the_mount() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::create_dir(mounted.path().join("dir")).unwrap();
    let place = mounted.path().to_str().unwrap();
    refused(&run(&["map"], &[], &[place, "dir"]), &["write /dir"]);
    assert!(run(&["map"], &[], &[place, "/dir"]).status.success());
}

#[test]
fn map_touches_nothing_outside_the_mount_it_was_told() {
    need_fuse!();
    let (one, other) = (Volume::new(), Volume::new());
    let (here, there) = (one.mount(&[]), other.mount(&[]));
    for mounted in [&here, &there] {
        fs::create_dir(mounted.path().join("dir")).unwrap();
    }
    let outside = there.path().join("dir");
    std::os::unix::fs::symlink(&outside, here.path().join("link")).unwrap();
    std::os::unix::fs::symlink("dir", here.path().join("inside")).unwrap();
    let place = here.path().to_str().unwrap();
    let above = format!("/../{}", outside.strip_prefix("/tmp").unwrap_or(&outside).display());
    let up = format!("/dir/../..{}", outside.display());
    for path in ["/link", &above, &up, "/../../../../../../../../etc"] {
        refused(&run(&["map"], &[], &[place, path, "bypass"]), &[path, "leads out of what is mounted"]);
    }
    let shown = run(&["map"], &[], &[there.path().to_str().unwrap(), "/dir"]);
    assert!(!out(&shown).contains("bypass"), "{}", out(&shown));
    for path in ["/inside", "/dir/../dir", "//dir/", "/"] {
        let done = run(&["map"], &[], &[place, path, "bypass"]);
        assert!(done.status.success(), "{path}: {}", err(&done));
        assert!(out(&run(&["map"], &[], &[place, "/dir"])).contains("bypass"), "{path}");
        assert!(run(&["map"], &[], &[place, path, "inherit"]).status.success());
    }
    let told = run(&["map", "--json"], &[], &[place, "/dir"]);
    let told: serde_json::Value = serde_json::from_str(&out(&told)).unwrap();
    assert!(told["section"].is_string(), "{told}");
}

#[test]
fn a_path_below_a_dead_mount_is_told_with_the_mount_point_to_take_away() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    fs::create_dir(mounted.path().join("dir")).unwrap();
    let pid = mounted.status()["front"]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    while rustix::fs::statvfs(mounted.path()).is_ok() {
        std::thread::yield_now();
    }
    let place = mounted.path().to_str().unwrap();
    let told = run(&["explain"], &[], &[&format!("{place}/dir")]);
    assert!(err(&told).trim_end().ends_with(&format!("bimetal umount {place}")), "{}", err(&told));
}

#[test]
fn an_error_is_told_as_json_where_that_was_asked_for() {
    let json = |args: &[&str]| -> serde_json::Value {
        let done = run(args, &[], &[]);
        assert!(!done.status.success() && !err(&done).is_empty(), "{args:?}");
        serde_json::from_str(&out(&done)).unwrap_or_else(|why| panic!("{args:?}: {why}: {}", out(&done)))
    };
    for args in [
        &["status", "--json", "/"][..],
        &["ls", "--json", "--disk", "/no/such"],
        &["fsck", "--json", "--disk", "/no/such"],
        &["probe", "--json", "/no/such"],
        &["map", "--json", "/", "/etc"],
    ] {
        assert!(json(args)["error"].as_str().is_some_and(|why| why.len() > 5), "{args:?}");
    }
}

#[test]
fn nvram_beside_an_object_store_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    let (nand, nvram) = (at("nand"), at("nvram"));
    let made = run(&["mkfs", "osd", "--size", "32MiB", "--nand", &nand], &[], &[]);
    assert!(made.status.success(), "{}", err(&made));
    fs::write(&nvram, [0; 4096]).unwrap();
    let before = fs::read(&nand).unwrap();
    for (verb, rest) in [("mount", &["/nonexistent"][..]), ("ls", &["/"]), ("fsck", &[])] {
        let tried = run(&[&[verb, "--nand", &nand, "--nvram", &nvram][..], rest].concat(), &[], &[]);
        assert!(!tried.status.success(), "{verb}");
        for part in ["no NVRAM", "--nvram"] {
            assert!(err(&tried).contains(part), "{verb}: {}", err(&tried));
        }
    }
    assert!(fs::read(&nand).unwrap() == before);
}

#[test]
fn halves_the_wrong_way_round_are_named() {
    let volume = Volume::new();
    let before = volume.bytes();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    for verb in ["mount", "ls", "fsck"] {
        let rest: &[&str] = if verb == "fsck" { &[] } else { &["/nonexistent"] };
        let tried = run(&[verb], &[("--ssd", &disk), ("--disk", &ssd)], rest);
        refused(&tried, &["is an SSD half", "exchange them"]);
    }
    assert!(volume.bytes() == before);
}

#[test]
fn an_older_copy_of_an_ssd_half_is_not_called_corrupt() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    write_synced(&mounted.path().join("one"), &[1; 100]);
    let older = fs::read(volume.at("ssd")).unwrap();
    for number in 0..30 {
        write_synced(&mounted.path().join(format!("more{number}")), &[2; 3000]);
    }
    kill(mounted);
    // What the disk half says of the log comes with its own commits.
    let again = volume.mount(&["-o", "lag=1h,1GiB"]);
    write_synced(&again.path().join("last"), &[3; 100]);
    kill(again);
    fs::write(volume.at("ssd"), older).unwrap();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let tried = run(&["mount"], &[("--ssd", &ssd), ("--disk", &disk)], &["/nonexistent"]);
    refused(&tried, &["nothing was changed", "older"]);
    assert!(!err(&tried).contains("corrupt"), "{}", err(&tried));
}

#[test]
fn a_read_only_look_at_a_stale_ssd_says_that_it_changes_nothing() {
    need_fuse!();
    let volume = filled();
    let disk = volume.at("disk");
    let alone = Mounted::new(&["--disk", disk.to_str().unwrap()]);
    write_synced(&alone.path().join("new"), &[1; 100]);
    assert!(alone.unmount().status.success());
    let before = volume.bytes();
    let listed = run(&["ls"], &[("--ssd", &volume.at("ssd")), ("--disk", &disk)], &["/"]);
    ended(&listed, 0, &["stale", "this only reads: neither half is changed"]);
    assert!(volume.bytes() == before);
}

#[test]
fn a_stale_ssd_half_is_something_wrong_that_a_check_tells_before_it_drops_it() {
    need_fuse!();
    for log_is_open in [false, true] {
        let volume = filled();
        if log_is_open {
            crash(&volume);
        }
        let disk = volume.at("disk");
        let alone = Mounted::new(&["--without-ssd", "--disk", disk.to_str().unwrap()]);
        write_synced(&alone.path().join("new"), &[1; 100]);
        assert!(alone.unmount().status.success());
        let before = volume.bytes();
        let rescue = format!("bimetal rescue --ssd {} DIRECTORY", volume.at("ssd").display());
        for verb in [&["fsck", "-n"][..], &["fsck", "-n", "--deep"]] {
            let looked = volume.run(verb);
            ended(&looked, 4, &["the SSD half: It is stale", "would be dropped", &rescue, "not clean"]);
            assert!(!out(&looked).contains("are dropped"), "{}", out(&looked));
            assert!(volume.bytes() == before, "{verb:?} wrote to it");
        }
        ended(&volume.run(&["fsck"]), 1, &["It is stale", "what it holds is dropped. Repaired."]);
        ended(&volume.run(&["fsck", "-n"]), 0, &["clean"]);
    }
}

#[test]
fn copies_that_count_no_more_since_others_wrote_to_the_disk_are_something_wrong() {
    need_fuse!();
    let volume = filled();
    let as_checked = ["-w", "-R", "set_super_value lastcheck 20300101"];
    let checked = Command::new("/usr/sbin/debugfs").args(as_checked).arg(volume.at("disk")).output().unwrap();
    assert!(checked.status.success(), "{}", err(&checked));
    ended(
        &volume.run(&["fsck", "-n"]),
        4,
        &["the SSD's copies: ", "checked, or something else wrote to it, since", "would be dropped"],
    );
    ended(&volume.run(&["fsck"]), 1, &["wrote to it, since", "all of them are dropped", "Repaired."]);
    ended(&volume.run(&["fsck", "-n"]), 0, &["clean"]);
}

#[test]
fn a_check_that_drops_what_only_the_log_holds_as_asked_says_so_and_calls_it_lost() {
    need_fuse!();
    let volume = crashed();
    let disk = volume.at("disk");
    let check = |how: &[&str]| run(&[&["fsck", "--without-ssd"], how].concat(), &[("--disk", &disk)], &[]);
    let before = volume.bytes();
    let held = "What was fsynced within up to 1h before the crash, which only the log of its SSD";
    ended(&check(&["-n"]), 4, &["would be dropped for ever, as asked", held, "bimetal rescue", "not clean"]);
    assert!(volume.bytes() == before);
    let dropped = check(&[]);
    ended(&dropped, 4, &["dropped for ever, as asked", held, "Lost."]);
    assert!(!out(&dropped).contains("would be"), "{}", out(&dropped));
    ended(&check(&[]), 0, &["clean"]);
    check_old(Mounted::new(&["--disk", disk.to_str().unwrap()]).path());
}

#[test]
fn a_damaged_log_of_a_volume_left_in_order_costs_copies_only_and_that_is_said() {
    need_fuse!();
    let fresh = || {
        let volume = filled();
        let mounted = volume.mount(&[]);
        for number in 0..5 {
            write_synced(&mounted.path().join(format!("more{number}")), &[7; 1000]);
        }
        assert!(mounted.unmount().status.success());
        flip_in_log(&volume.at("ssd"), 0);
        volume
    };
    let volume = fresh();
    ended(&volume.run(&["fsck", "-n"]), 4, &["Nothing is lost", "the disk half has everything"]);
    let repaired = volume.run(&["fsck"]);
    ended(&repaired, 1, &["Nothing is lost", "is repaired"]);
    ended(&volume.run(&["fsck"]), 0, &["clean"]);
    let volume = fresh();
    let scrubbed = volume.run(&["scrub"]);
    ended(&scrubbed, 1, &["nothing is lost", "copies", "are dropped", "What is left of the copies"]);
    assert!(!out(&scrubbed).contains("Every copy"), "{}", out(&scrubbed));
    ended(&volume.run(&["scrub"]), 0, &["Every copy on the SSD is right"]);
}

#[test]
fn a_deep_check_counts_every_bad_copy_and_names_files_by_their_paths() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&[]);
    let mut contents = vec![5; 1 << 20];
    contents.chunks_mut(4096).for_each(|block| block[..MARK.len()].copy_from_slice(MARK));
    write_synced(&mounted.path().join("large"), &contents);
    assert!(mounted.unmount().status.success());
    let bytes = fs::read(volume.at("ssd")).unwrap();
    let ssd = File::options().write(true).open(volume.at("ssd")).unwrap();
    let wanted = &contents[..4096];
    let places = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..*at + 4096] == *wanted);
    let bad = places.map(|at| ssd.write_all_at(b"X", at as u64 + 2000).unwrap()).count();
    assert!(bad > 150, "{bad} copies");
    let checked = volume.run(&["fsck", "--deep"]);
    ended(&checked, 1, &["/large: Block ", &format!("What was wrong ({bad}) is repaired")]);
    ended(&volume.run(&["fsck", "--deep"]), 0, &["clean"]);
}

#[test]
fn a_check_that_only_applies_the_log_ends_with_0_and_says_what_it_did() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    write_synced(&mounted.path().join("late"), &[7; 1000]);
    kill(mounted);
    let before = volume.bytes();
    ended(&volume.run(&["fsck", "-n"]), 0, &["Nothing wrong was found", "e2fsck was not run"]);
    assert!(volume.bytes() == before);
    ended(
        &volume.run(&["fsck"]),
        0,
        &["operations that only the SSD's log held are on the disk half now", "clean"],
    );
    let help = out(&run(&["fsck", "--help"], &[], &[]));
    assert!(help.contains("as after any mount"), "{help}");
}
