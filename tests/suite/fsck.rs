//! Checking, scrubbing and rescuing volumes in image files, by the commands.

use crate::guard::{Loop, Volume, err, out, refused, run};
use crate::mounts::{Mounted, bimetal, need_fuse, once_free, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

pub const MARK: &[u8] = b"the block that this test looks for, ";

/// Contents that are found again in an image.
pub fn marked(number: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; 16 << 10];
    bytes[..MARK.len()].copy_from_slice(MARK);
    bytes[MARK.len()..MARK.len() + 4].copy_from_slice(format!("{number:04}").as_bytes());
    bytes
}

/// A volume with ten marked files on both halves, left in order.
pub fn filled() -> Volume {
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    for number in 0..10 {
        write_synced(&mounted.path().join(format!("f{number}")), &marked(number));
    }
    let ended = mounted.unmount();
    assert!(ended.status.success(), "{}", err(&ended));
    volume
}

pub fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

pub fn resident_bytes(mounted: &Mounted) -> u64 {
    let status = mounted.status();
    let sections = status["ssd_half"]["sections"].as_array().unwrap().clone();
    sections.iter().map(|section| section["resident_bytes"].as_u64().unwrap()).sum()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}{}", out(output), err(output)))
}

/// A command ended with `wanted` and said all of `parts`.
pub fn ended(output: &Output, wanted: i32, parts: &[&str]) {
    let said = out(output) + &err(output);
    assert_eq!(code(output), wanted, "{said}");
    for part in parts {
        assert!(said.contains(part), "'{part}' in: {said}");
    }
}

/// Changes a byte of each place in an image that holds the marked contents of a file.
fn damage(image: &Path, number: usize) -> usize {
    let bytes = fs::read(image).unwrap();
    let wanted = &marked(number)[..MARK.len() + 4];
    let file = File::options().write(true).open(image).unwrap();
    let places = (0..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(wanted));
    places.map(|at| file.write_all_at(b"X", at as u64 + 100).unwrap()).count()
}

/// Ends the server of a mount as a power cut does.
pub fn kill(mounted: Mounted) {
    let pid = mounted.status()["front"]["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let _ = Command::new("umount").arg("-l").arg(mounted.path()).output();
}

/// Flips a bit of a group of the SSD's log, the last but so many.
pub fn flip_in_log(ssd: &Path, before_last: usize) {
    let bytes = fs::read(ssd).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let log = word(64)..word(64) + word(72);
    let groups = log.step_by(512).filter(|at| bytes[*at..].starts_with(b"BMLG") && word(at + 8) == word(80));
    let mut groups: Vec<(usize, usize)> = groups.map(|at| (word(at + 16), at)).collect();
    groups.sort_unstable();
    let (_, at) = groups[groups.len() - 1 - before_last];
    let file = File::options().write(true).open(ssd).unwrap();
    file.write_all_at(&[bytes[at + 100] ^ 4], at as u64 + 100).unwrap();
}

#[test]
fn a_check_of_a_healthy_volume_changes_no_byte_and_keeps_its_copies() {
    need_fuse!();
    let volume = filled();
    let before = volume.bytes();
    for verb in [&["fsck"][..], &["fsck", "-n"], &["fsck", "--deep"], &["fsck", "-y"]] {
        ended(&volume.run(verb), 0, &["The file system is clean."]);
        assert!(volume.bytes() == before, "{verb:?} wrote to it");
    }
    let mounted = volume.mount(&[]);
    assert!(resident_bytes(&mounted) >= 10 * (16 << 10));
}

#[test]
fn what_a_damaged_log_lost_is_an_error_and_nothing_is_repaired_at_its_cost_without_a_word() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    for number in 0..120 {
        write_synced(&mounted.path().join(format!("late{number}")), &[7; 1000]);
    }
    kill(mounted);
    flip_in_log(&volume.at("ssd"), 39);
    let before = volume.bytes();
    for verb in [&["fsck", "-n"][..], &["fsck"]] {
        let checked = volume.run(verb);
        ended(&checked, 4, &["the SSD's log: It is damaged", "40 groups", "operations", "not clean"]);
        assert!(volume.bytes() == before, "{verb:?} wrote to it");
    }
    assert!(out(&volume.run(&["fsck"])).contains("bimetal rescue"));
}

#[test]
fn fsck_ends_with_the_codes_of_e2fsck() {
    need_fuse!();
    ended(&run(&["fsck", "--fast"], &[], &[]), 16, &["--fast"]);
    ended(&run(&["fsck"], &[("--disk", Path::new("/no/such/disk"))], &[]), 8, &["/no/such/disk"]);
    ended(&run(&["fsck", "--help"], &[], &[]), 0, &["16"]);
}

#[test]
fn after_e2fsck_repaired_the_disk_half_the_copies_that_are_right_stay() {
    need_fuse!();
    let volume = filled();
    let wrong = ["-w", "-R", "set_inode_field /f3 blocks 4242"];
    let debugfs = Command::new("/usr/sbin/debugfs").args(wrong).arg(volume.at("disk")).output().unwrap();
    assert!(debugfs.status.success(), "{}", err(&debugfs));
    ended(&volume.run(&["fsck", "-n"]), 4, &["the disk half: e2fsck found errors", "i_blocks is 4242"]);
    ended(&volume.run(&["fsck"]), 1, &["Repaired.", "they stay"]);
    ended(&volume.run(&["fsck", "--deep"]), 0, &["clean"]);
    let mounted = volume.mount(&[]);
    assert!(resident_bytes(&mounted) >= 10 * (16 << 10));
    assert_eq!(fs::read(mounted.path().join("f3")).unwrap(), marked(3));
}

#[test]
fn a_deep_check_finds_a_damaged_copy_and_one_that_is_not_what_the_disk_has() {
    need_fuse!();
    for half in ["ssd", "disk"] {
        let volume = filled();
        assert!(damage(&volume.at(half), 4) > 0, "not on the {half}");
        ended(&volume.run(&["fsck"]), 0, &["clean"]);
        let why = if half == "ssd" { "its checksum is wrong" } else { "it is not what the disk has" };
        ended(&volume.run(&["fsck", "-n", "--deep"]), 4, &[why, "the disk half has it"]);
        ended(&volume.run(&["fsck", "--deep"]), 1, &[why, "Repaired."]);
        ended(&volume.run(&["fsck", "-n", "--deep"]), 0, &["clean"]);
        let mounted = volume.mount(&[]);
        assert!(resident_bytes(&mounted) >= 9 * (16 << 10), "the others stay");
        let mut expected = marked(4);
        if half == "disk" {
            expected[100] = b'X';
        }
        assert!(fs::read(mounted.path().join("f4")).unwrap() == expected);
    }
}

#[test]
fn bad_copies_are_counted_in_the_status_make_the_mount_degraded_and_are_healed_by_a_scrub() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&[]);
    let place = mounted.path().to_str().unwrap().to_string();
    let scrub = || bimetal().args(["scrub", "--rate", "1GiB/s", &place]).output().unwrap();
    ended(&scrub(), 0, &["Every copy on the SSD is right"]);
    // Two at once would each be told of a part, from whatever name space.
    let scrubbed = || mounted.status()["counters"]["scrubbed_bytes"].as_u64().unwrap();
    let before = scrubbed();
    let mut slow = bimetal().args(["scrub", "--rate", "1KiB/s", &place]).spawn().unwrap();
    while scrubbed() == before {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    refused(&scrub(), &["it is being scrubbed", "wait for the other one's end"]);
    let elsewhere =
        Command::new("unshare").args(["-n", env!("CARGO_BIN_EXE_bimetal"), "scrub", &place]).output();
    if let Ok(other) = elsewhere.map_err(|why| skip(&format!("unshare: {why}"))) {
        refused(&other, &["it is being scrubbed"]);
    }
    slow.kill().unwrap();
    slow.wait().unwrap();
    // What is started, waited for or ended by somebody else is refused; who started it ends it.
    let order = |order: &str| {
        rustix::fs::setxattr(&*place, "bimetal.scrub", order.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    for of_another in ["start b", "wait b", "100 b", "end b", "end"] {
        assert_eq!(order(of_another), Err(rustix::io::Errno::BUSY), "{of_another}");
    }
    // One that was killed is forgotten once it has been silent for long enough.
    while err(&scrub()).contains("it is being scrubbed") {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    // Who has not said that it is done has the results for itself.
    assert_eq!(
        (order("start a"), order("1000000000 a"), order("start b")),
        (Ok(()), Ok(()), Err(rustix::io::Errno::BUSY))
    );
    assert_eq!((order("end a"), order("start b"), order("end b")), (Ok(()), Ok(()), Ok(())));
    assert_eq!(mounted.status()["health"]["state"], "ok");
    assert!(damage(&volume.at("ssd"), 5) > 0 && damage(&volume.at("ssd"), 6) > 0);
    // One is met by a read, which the disk serves; the other by the scrub.
    assert!(fs::read(mounted.path().join("f5")).unwrap() == marked(5));
    let status = mounted.status();
    assert_eq!(status["health"]["state"], "degraded");
    assert!(
        status["health"]["why"][0].as_str().unwrap().contains("checksums were wrong"),
        "{}",
        status["health"]
    );
    let shown = bimetal().args(["status", &place]).output().unwrap();
    assert!(out(&shown).contains("! degraded"), "{}", out(&shown));
    ended(&scrub(), 1, &["its checksum is wrong; dropped; the disk has it", "are dropped"]);
    assert_eq!(mounted.status()["counters"]["scrub_bad"], 1);
    ended(&scrub(), 0, &["Every copy on the SSD is right"]);
    assert!(fs::read(mounted.path().join("f6")).unwrap() == marked(6));
    drop(mounted);
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let halves: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    assert!(damage(&ssd, 7) > 0);
    ended(&run(&["scrub", "--rate", "1GiB/s"], halves, &[]), 1, &["dropped"]);
    ended(&run(&["scrub", "--rate", "1GiB/s"], halves, &[]), 0, &["is right"]);
    ended(&volume.run(&["fsck", "--deep"]), 0, &["clean"]);
}

#[test]
fn a_scrub_verifies_the_medium_and_not_what_the_host_has_of_it_in_memory() {
    need_fuse!();
    let volume = filled();
    let Some(ssd) = Loop::over(&volume.at("ssd"), &[]) else { return skip("no loop devices") };
    let disk = volume.at("disk");
    let mounted = Mounted::new(&["--ssd", &ssd.0, "--disk", disk.to_str().unwrap()]);
    // Now the page cache of the device has all of it, and what becomes of the medium does not show there.
    assert!(fs::read(ssd.path()).is_ok());
    assert!(damage(&volume.at("ssd"), 5) > 0);
    let place = mounted.path().to_str().unwrap();
    let scrub = || bimetal().args(["scrub", "--rate", "1GiB/s", place]).output().unwrap();
    ended(&scrub(), 1, &["its checksum is wrong; dropped; the disk has it"]);
    ended(&scrub(), 0, &["Every copy on the SSD is right"]);
    drop(mounted);
    let halves: &[(&str, &Path)] = &[("--ssd", ssd.path()), ("--disk", &disk)];
    assert!(fs::read(ssd.path()).is_ok());
    assert!(damage(&volume.at("ssd"), 6) > 0);
    ended(&run(&["fsck", "-n", "--deep"], halves, &[]), 4, &["checksum"]);
    ended(&run(&["scrub", "--rate", "1GiB/s"], halves, &[]), 1, &["dropped"]);
    ended(&run(&["fsck", "--deep"], halves, &[]), 0, &["clean"]);
}

#[test]
fn an_ssd_half_alone_gives_back_what_was_fsynced_and_what_it_has_copies_of() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    fs::create_dir(mounted.path().join("dir")).unwrap();
    write_synced(&mounted.path().join("dir/new"), b"only in the log");
    write_synced(&mounted.path().join("large"), &marked(77).repeat(40));
    fs::hard_link(mounted.path().join("dir/new"), mounted.path().join("second")).unwrap();
    std::os::unix::fs::symlink("dir/new", mounted.path().join("link")).unwrap();
    write_synced(&mounted.path().join("last"), b"so that all before is in the log");
    kill(mounted);
    let before = volume.bytes();
    let ssd = volume.at("ssd");
    let to = volume.at("rescued");
    let rescued = run(&["rescue"], &[("--ssd", &ssd)], &[to.to_str().unwrap()]);
    ended(&rescued, 0, &["whole files", "by-inode"]);
    assert!(volume.bytes() == before, "it is only read");
    assert_eq!(fs::read(to.join("dir/new")).unwrap(), b"only in the log");
    assert_eq!(fs::read(to.join("second")).unwrap(), b"only in the log");
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("dir/new"));
    assert!(fs::read(to.join("large")).unwrap() == marked(77).repeat(40));
    // The names of the older files are on the disk half only.
    let nameless = fs::read_dir(to.join("by-inode")).unwrap().flatten();
    let found: Vec<Vec<u8>> = nameless.map(|entry| fs::read(entry.path()).unwrap()).collect();
    for number in 0..10 {
        assert!(found.contains(&marked(number)), "f{number}");
    }
    assert!(to.join("RESCUE.txt").exists());
    let again = run(&["rescue"], &[("--ssd", &ssd)], &[to.to_str().unwrap()]);
    ended(&again, 1, &["is not empty"]);
}

#[test]
fn a_rescue_keeps_files_that_are_called_as_what_it_makes_itself() {
    need_fuse!();
    for as_directory in [false, true] {
        let volume = filled();
        let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
        let at = |name: &str| mounted.path().join(name);
        if as_directory {
            fs::create_dir(at("RESCUE.txt")).unwrap();
            fs::create_dir(at("by-inode")).unwrap();
            write_synced(&at("RESCUE.txt/inner"), b"mine");
            write_synced(&at("by-inode/inner"), b"mine");
        } else {
            write_synced(&at("RESCUE.txt"), b"mine");
            write_synced(&at("by-inode"), b"mine");
        }
        write_synced(&at("RESCUE-2.txt"), b"mine, too");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        write_synced(&at("last"), b"so that all before is in the log");
        kill(mounted);
        let to = volume.at("rescued");
        let rescued = run(&["rescue"], &[("--ssd", &volume.at("ssd"))], &[to.to_str().unwrap()]);
        ended(&rescued, 0, &["see RESCUE-3.txt", "are in by-inode-2", "left out (pipe)"]);
        let inner = if as_directory { "/inner" } else { "" };
        for name in ["RESCUE.txt", "by-inode"] {
            assert_eq!(fs::read(to.join(format!("{name}{inner}"))).unwrap(), b"mine", "{name}");
        }
        assert_eq!(fs::read(to.join("RESCUE-2.txt")).unwrap(), b"mine, too");
        assert!(fs::read_to_string(to.join("RESCUE-3.txt")).unwrap().starts_with("Files with holes"));
        assert!(fs::read_dir(to.join("by-inode-2")).unwrap().count() > 0);
    }
}

#[test]
fn a_check_without_the_ssd_half_says_what_works_and_what_is_in_the_environment_is_not_said() {
    need_fuse!();
    let volume = crate::crashed::crashed();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let before = volume.bytes();
    for how in [&[][..], &["-n"], &["--yes"]] {
        let checked = run(&[&["fsck"], how].concat(), &[("--disk", &disk)], &[]);
        ended(&checked, 4, &["was not named", "--ssd", "mount both halves once", "--without-ssd"]);
        assert!(!out(&checked).contains("--yes"), "{}", out(&checked));
    }
    assert!(volume.bytes() == before);
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    let with_variable = |args: &[&str]| {
        let mut command = bimetal();
        command.env("BIMETAL_SSD", &ssd).env("BIMETAL_DISK", &disk).args(args).output().unwrap()
    };
    let both = ["fsck", "-n", "--without-ssd", "--ssd", ssd.to_str().unwrap()];
    ended(&with_variable(&both), 16, &["cannot be used with"]);
    ended(&with_variable(&["fsck", "-n"]), 0, &["Nothing wrong was found"]);
    ended(&with_variable(&["fsck", "-n", "--without-ssd"]), 4, &["dropped for ever, as asked"]);
    ended(&with_variable(&["mount", "-o", "ro,without-ssd", place.to_str().unwrap()]), 0, &[]);
    assert!(crate::mounts::once_free(bimetal().arg("umount").arg(&place)).status.success());
    assert!(volume.bytes() == before);
}

#[test]
fn a_scrub_without_an_ssd_says_so_and_verifies_nothing() {
    need_fuse!();
    let volume = filled();
    let scrub = |place: &Path| bimetal().arg("scrub").arg(place).output().unwrap();
    // Without it there is nothing to compare, which is no error of a check.
    let alone: &[(&str, &Path)] = &[("--disk", &volume.at("disk"))];
    ended(&run(&["fsck", "-n", "--deep"], alone, &[]), 0, &[]);
    let mounted = volume.mount(&[]);
    // The SSD half fails while it is used.
    File::options().write(true).open(volume.at("ssd")).unwrap().set_len(1 << 20).unwrap();
    fs::write(mounted.path().join("new"), [1; 100_000]).unwrap();
    File::open(mounted.path().join("new")).unwrap().sync_all().unwrap();
    assert_eq!(mounted.status()["health"]["state"], "degraded");
    refused(&scrub(mounted.path()), &["nothing was verified", "the SSD is lost"]);
    drop(mounted);
    let disk = volume.at("disk");
    let alone = Mounted::new(&["--disk", disk.to_str().unwrap(), "--without-ssd"]);
    refused(&scrub(alone.path()), &["nothing was verified", "without its SSD half"]);
}

/// Damages the checksum of the first group's descriptor, which stands in the way of the log, and of nothing else.
fn damage_first_group(disk: &Path) {
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let mut word = [0; 4];
    file.read_exact_at(&mut word, 1024 + 24).unwrap();
    let at = if word == [0; 4] { 2048 } else { 1024_u64 << u32::from_le_bytes(word) };
    let mut byte = [0; 1];
    file.read_exact_at(&mut byte, at + 0x1e).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55], at + 0x1e).unwrap();
}

#[test]
fn a_check_of_a_damaged_disk_half_alone_promises_no_log_and_does_not_deny_what_it_repaired() {
    need_fuse!();
    let volume = crate::crashed::crashed();
    let disk = volume.at("disk");
    damage_first_group(&disk);
    let before = volume.bytes();
    let looked = run(&["fsck", "-n"], &[("--disk", &disk)], &[]);
    ended(&looked, 4, &["With --yes e2fsck repairs it."]);
    assert!(!out(&looked).contains("log is applied"), "{}", out(&looked));
    assert!(volume.bytes() == before);
    ended(&volume.run(&["fsck", "-n"]), 4, &["then the SSD's log is applied to it"]);
    let repaired = run(&["fsck", "--yes"], &[("--disk", &disk)], &[]);
    ended(&repaired, 4, &["e2fsck repaired the disk half", "No more was changed."]);
    assert!(!out(&repaired).contains("Nothing was changed"), "{}", out(&repaired));
}

#[test]
fn a_check_in_which_the_ssd_half_fails_says_so_and_everything_is_on_the_disk_half() {
    need_fuse!();
    let volume = crate::crashed::crashed();
    let small = volume.at("small");
    fs::create_dir(&small).unwrap();
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&small).status();
    if !tmpfs.is_ok_and(|status| status.success()) {
        return skip("no tmpfs can be mounted");
    }
    // The host's file system is full: what the image has not yet cannot be written.
    let (ssd, disk) = (small.join("ssd"), volume.at("disk"));
    let copied = Command::new("cp").arg("--sparse=always").arg(volume.at("ssd")).arg(&ssd).status();
    let mut filler = File::create(small.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);
    let check = || run(&["fsck"], &[("--ssd", &ssd), ("--disk", &disk)], &[]);
    let full = check();
    fs::remove_file(small.join("filler")).unwrap();
    let (stale, clean) = (check(), check());
    assert!(once_free(Command::new("umount").arg(&small)).status.success());
    assert!(copied.unwrap().success());
    ended(
        &full,
        4,
        &[
            "failed while the volume was put in order",
            "No space left",
            "Nothing is lost",
            "are on the disk half now",
        ],
    );
    ended(&stale, 1, &["the SSD half", "Repaired."]);
    ended(&clean, 0, &["The file system is clean"]);
}
