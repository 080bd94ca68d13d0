//! A half that is damaged, read-only or gone: nothing that was fsynced is lost by it without the user's word, and the remedy
//! that a message names does what it says.

use crate::crashed::{LATE, check, check_old, check_older, crash, crashed, late};
use crate::fsck::{ended, filled, kill, marked, write_synced};
use crate::guard::{Loop, Volume, err, out, refused, run};
use crate::mounts::{Mounted, bimetal, need_fuse, once_free, skip};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tool(name: &str, args: &[&str], image: &Path) -> Output {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    Command::new(name).args(args).arg(image).env("PATH", path).env("LC_ALL", "C").output().unwrap()
}

fn put_at(image: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}

fn flip(image: &Path, at: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

/// Where the inode of a file lies on a disk half of blocks of 1 KiB.
fn inode_at(disk: &Path, name: &str) -> u64 {
    let said = out(&tool("debugfs", &["-R", &format!("imap {name}")], disk));
    let number = |text: &str| {
        let digits = text.trim_start_matches("0x");
        let until = digits.find(|one: char| !one.is_ascii_hexdigit()).unwrap_or(digits.len());
        u64::from_str_radix(&digits[..until], if text.starts_with("0x") { 16 } else { 10 }).unwrap()
    };
    let after =
        |word: &str| said.split(word).nth(1).map(number).unwrap_or_else(|| panic!("{word} in {said}"));
    after("located at block ") * 1024 + after("offset ")
}

/// Flips a bit in both superblocks of an SSD half.
fn damage_superblocks(ssd: &Path) {
    let len = fs::metadata(ssd).unwrap().len();
    [100, len / 4096 * 4096 - 4096 + 100].into_iter().for_each(|at| flip(ssd, at, 0));
}

fn place(volume: &Volume) -> String {
    let place = volume.at("mnt");
    let _ = fs::create_dir(&place);
    place.to_str().unwrap().into()
}

/// What a mount of both halves says that is refused.
fn refused_mount(volume: &Volume, verb: &[&str], parts: &[&str]) {
    let before = volume.bytes();
    let halves = [("--ssd", &*volume.at("ssd")), ("--disk", &*volume.at("disk"))];
    refused(&run(&[&["mount"], verb].concat(), &halves, &[&place(volume)]), parts);
    assert!(volume.bytes() == before, "the refused mount changed it");
}

/// Bytes and bits of the disk half whose damage sends e2fsck to a copy of the superblock: the first group's descriptor, the
/// revision, feature words, the magic number. (Most other bits of the superblock are healed by the journal.)
const TO_THE_COPY: [(u64, u8); 5] = [(2050, 3), (1100, 0), (1124, 2), (1120, 3), (1080, 0)];

#[test]
fn what_was_fsynced_is_not_lost_where_e2fsck_falls_back_to_a_copy_of_the_superblock() {
    need_fuse!();
    for (at, bit) in TO_THE_COPY {
        let volume = crashed();
        let disk = volume.at("disk");
        flip(&disk, at, bit);
        let remedies = ["the disk half is corrupt", "e2fsck -f", "is not lost", "bimetal fsck --yes"];
        refused_mount(&volume, &[], &remedies);
        let checked = tool("e2fsck", &["-fy"], &disk);
        let said = out(&checked) + &err(&checked);
        assert!(checked.status.code().unwrap() < 4, "byte {at}: {said}");
        refused(
            &run(&["mount"], &[("--disk", &disk)], &[&place(&volume)]),
            &["was not unmounted", "--without-ssd"],
        );
        check(volume.mount(&[]).path());
    }
}

#[test]
fn fsck_yes_repairs_a_disk_half_that_cannot_be_opened_and_then_applies_the_log() {
    need_fuse!();
    for (at, bit) in TO_THE_COPY.into_iter().chain([(2302, 0)]) {
        let volume = crashed();
        flip(&volume.at("disk"), at, bit);
        let before = volume.bytes();
        ended(&volume.run(&["fsck", "-n"]), 4, &["It cannot be opened", "With --yes e2fsck repairs it"]);
        assert!(volume.bytes() == before, "fsck -n changed it");
        // What e2fsck would take away cannot be told.
        let first =
            ["It cannot be opened", "Nothing was changed", "First `bimetal rescue", "repair with --yes"];
        ended(&volume.run(&["fsck"]), 4, &first);
        assert!(volume.bytes() == before, "fsck changed what it cannot look at");
        ended(&volume.run(&["fsck", "--yes"]), 1, &["It cannot be opened", "Repaired.", "operations"]);
        ended(&volume.run(&["fsck", "-n"]), 0, &["clean"]);
        check(volume.mount(&[]).path());
    }
}

/// Where the descriptor is of the oldest transaction in the journal of an ext4, of blocks of this size.
fn oldest_in_journal(disk: &Path, block_bytes: usize) -> usize {
    let bytes = fs::read(disk).unwrap();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let is = |at: usize, kind: u32| word(at) == 0xC03B_3998 && word(at + 4) == kind;
    let blocks = || (0..bytes.len()).step_by(block_bytes);
    let log = blocks().find(|at| is(*at, 4)).expect("a journal");
    let (oldest, start) = (word(log + 24), word(log + 28));
    assert!(start > 0, "the journal has nothing to replay");
    let mut descriptors = blocks().filter(|at| is(*at, 1) && word(at + 8) == oldest);
    descriptors.next().expect("a transaction")
}

#[test]
fn a_journal_that_cannot_be_replayed_is_not_emptied_without_a_word() {
    need_fuse!();
    for with_superblock in [false, true] {
        let volume = filled();
        let mounted = volume.mount(&["-o", "lag=1h,1MiB"]);
        (0..LATE).map(late).for_each(|(name, _)| write_synced(&mounted.path().join(name), &[9; 300_000]));
        (0..LATE).map(late).for_each(|(name, bytes)| write_synced(&mounted.path().join(name), &bytes));
        kill(mounted);
        let disk = volume.at("disk");
        let at = oldest_in_journal(&disk, 1024);
        flip(&disk, at as u64 + 100, 3);
        if with_superblock {
            flip(&disk, 1080, 0);
        }
        refused_mount(&volume, &[], &["journal cannot be replayed", "a repair loses", "bimetal rescue"]);
        let before = volume.bytes();
        ended(&volume.run(&["fsck", "-n"]), 4, &["journal cannot be replayed", "bimetal rescue"]);
        let told = ["a repair loses", "bimetal rescue", "Nothing was changed", "--yes"];
        ended(&volume.run(&["fsck"]), 4, &told);
        assert!(volume.bytes() == before, "fsck without --yes changed it");
        let to = volume.at("rescued");
        let rescued = run(&["rescue"], &[("--ssd", &volume.at("ssd"))], &[to.to_str().unwrap()]);
        ended(&rescued, 0, &["files"]);
        let repaired = volume.run(&["fsck", "--yes"]);
        ended(&repaired, 4, &["bimetal rescue", "recover=disk"]);
        assert!(!out(&repaired).contains("othing was changed"), "{}", out(&repaired));
        refused_mount(&volume, &[], &["can no longer be applied", "bimetal rescue", "recover=disk"]);
        check_older(volume.mount(&["-o", "recover=disk"]).path());
        ended(&volume.run(&["fsck"]), 0, &["clean"]);
    }
}

#[test]
fn a_flipped_feature_bit_of_a_volume_left_in_order_is_damage_and_repaired() {
    need_fuse!();
    for (at, bit) in [(1124, 2), (1125, 2), (1116, 2), (1120, 6), (1400, 1), (1960, 1), (2050, 3)] {
        let volume = filled();
        flip(&volume.at("disk"), at, bit);
        refused_mount(&volume, &[], &["the disk half is corrupt", "e2fsck -f"]);
        let repaired = volume.run(&["fsck", "--yes"]);
        ended(&repaired, 1, &["Repaired."]);
        let said = out(&repaired);
        assert!(!(said.contains("is dropped") && said.contains("they stay")), "{said}");
        ended(&volume.run(&["fsck"]), 0, &["clean"]);
    }
}

#[test]
fn the_copy_of_the_superblock_follows_each_commit_whatever_the_disk_half_was_made_with() {
    need_fuse!();
    let made: [(&[&str], u64); 6] = [
        (&["-b", "1024"], 8193 << 10),
        (&["-b", "2048", "-g", "16384"], 16384 << 11),
        (&["-b", "4096", "-g", "32768"], 32768 << 12),
        (&["-b", "1024", "-O", "sparse_super2"], 8193 << 10),
        (&["-b", "1024", "-O", "^sparse_super,^resize_inode"], 8193 << 10),
        (&["-b", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum"], 8193 << 10),
    ];
    for (options, at) in made {
        let volume = Volume::images();
        let disk = volume.at("disk");
        File::options().write(true).open(&disk).unwrap().set_len(192 << 20).unwrap();
        let done = tool("mke2fs", &[&["-q", "-F", "-t", "ext4", "-m", "0"], options].concat(), &disk);
        assert!(done.status.success(), "{options:?}: {}", err(&done));
        volume.done(&["adopt"]);
        let mounted = volume.mount(&[]);
        (0..10).for_each(|number| write_synced(&mounted.path().join(format!("f{number}")), &marked(number)));
        drop(mounted);
        let bytes = fs::read(&disk).unwrap();
        let pairing = |at: usize| &bytes[at + 0x3C4..at + 0x3FC];
        assert_eq!(pairing(1024), pairing(at as usize), "{options:?}");
        ended(&tool("e2fsck", &["-fn"], &disk), 0, &[]);
        crash(&volume);
        put_at(&disk, 1024, &[0; 1024]);
        refused_mount(&volume, &[], &["the disk half is corrupt", "e2fsck -f"]);
        let checked = tool("e2fsck", &["-fy"], &disk);
        assert!(checked.status.code().unwrap() < 4, "{options:?}: {}{}", out(&checked), err(&checked));
        check(volume.mount(&[]).path());
    }
}

#[test]
fn a_disk_half_whose_record_of_its_ssd_was_brought_back_from_an_old_copy_is_not_mounted_alone_without_a_word()
{
    need_fuse!();
    let volume = crashed();
    let disk = volume.at("disk");
    put_at(&disk, 1024, &[0; 1024]);
    // The copy that e2fsck would take is gone, too.
    put_at(&disk, 8193 << 10, &[0; 1024]);
    refused_mount(&volume, &[], &["superblock"]);
    let block = (3 * 8192 + 1).to_string();
    let checked = tool("e2fsck", &["-fy", "-b", &block, "-B", "1024"], &disk);
    assert!(checked.status.code().unwrap() < 4, "{}{}", out(&checked), err(&checked));
    refused(&run(&["mount"], &[("--disk", &disk)], &[&place(&volume)]), &["--without-ssd"]);
    refused_mount(&volume, &[], &["can no longer be applied", "bimetal rescue", "recover=disk"]);
}

#[test]
fn an_ssd_half_without_a_superblock_is_left_out_by_the_words_that_its_refusal_names() {
    need_fuse!();
    for blank in [false, true] {
        for word in ["recover=disk", "without-ssd"] {
            let volume = crashed();
            let ssd = volume.at("ssd");
            if blank {
                File::create(&ssd).unwrap();
            } else {
                damage_superblocks(&ssd);
            }
            let before = fs::read(&ssd).unwrap();
            refused_mount(&volume, &[], &["without-ssd", "recover=disk", "drop what was fsynced"]);
            let checked = volume.run(&["fsck", "-y"]);
            ended(&checked, 4, &["cannot be opened", "mount --without-ssd", "adopt --force"]);
            let mounted = volume.mount(&["-o", word]);
            check_old(mounted.path());
            write_synced(&mounted.path().join("more"), b"more");
            drop(mounted);
            assert!(fs::read(&ssd).unwrap() == before, "the SSD was written");
            let alone = Mounted::new(&["--disk", volume.at("disk").to_str().unwrap()]);
            assert_eq!(fs::read(alone.path().join("more")).unwrap(), b"more");
        }
    }
}

#[test]
fn a_check_of_a_volume_left_in_order_whose_ssd_half_has_no_superblock_says_what_to_do() {
    need_fuse!();
    let volume = filled();
    damage_superblocks(&volume.at("ssd"));
    ended(&volume.run(&["fsck", "-y"]), 4, &["Nothing is lost", "without --ssd", "adopt --force"]);
    ended(&run(&["fsck"], &[("--disk", &volume.at("disk"))], &[]), 0, &["clean"]);
    volume.done(&["adopt", "--force"]);
    for number in 0..10 {
        assert!(fs::read(volume.mount(&[]).path().join(format!("f{number}"))).unwrap() == marked(number));
    }
}

#[test]
fn one_damaged_superblock_of_an_ssd_half_is_not_said_to_be_on_the_disk() {
    need_fuse!();
    let volume = crashed();
    flip(&volume.at("ssd"), 100, 0);
    let checked = volume.run(&["fsck", "-n"]);
    assert!(out(&checked).contains("nothing is lost by it"), "{}", out(&checked));
    assert!(!out(&checked).contains("the disk half has it all"), "{}", out(&checked));
}

#[test]
fn an_ssd_that_takes_no_writes_any_more_gives_what_its_log_holds_to_the_disk() {
    need_fuse!();
    for with_fsck in [false, true] {
        let volume = crashed();
        let before = fs::read(volume.at("ssd")).unwrap();
        let Some(device) = Loop::over(&volume.at("ssd"), &["-r"]) else { return skip("no loop devices") };
        let disk = volume.at("disk");
        let halves: &[(&str, &Path)] = &[("--ssd", device.path()), ("--disk", &disk)];
        let whole = volume.bytes();
        let tried = run(&["mount"], halves, &[&place(&volume)]);
        refused(&tried, &["read-only device", "-o recover=whole", "fsck --yes", "blockdev --setrw"]);
        ended(&run(&["fsck"], halves, &[]), 8, &["read-only device", "fsck --yes"]);
        assert!(volume.bytes() == whole);
        if with_fsck {
            ended(&run(&["fsck", "-y"], halves, &[]), 0, &["operations", "takes no writes"]);
        } else {
            let args = ["-o", "recover=whole", "--ssd", &device.0, "--disk", disk.to_str().unwrap()];
            let mounted = Mounted::new(&args);
            check(mounted.path());
            write_synced(&mounted.path().join("more"), b"more");
            assert_eq!(mounted.status()["health"]["state"], "degraded");
        }
        assert!(fs::read(volume.at("ssd")).unwrap() == before, "the SSD was written");
        check(Mounted::new(&["--disk", disk.to_str().unwrap()]).path());
        drop(device);
        // Written again after all, it is stale.
        check(volume.mount(&[]).path());
    }
}

#[test]
fn an_ssd_that_takes_no_writes_and_cannot_be_read_is_left_out_by_the_users_word() {
    need_fuse!();
    for word in ["recover=disk", "without-ssd"] {
        let volume = crashed();
        let bytes = fs::metadata(volume.at("ssd")).unwrap().len();
        fs::write(volume.at("ssd"), vec![0; bytes as usize]).unwrap();
        let Some(device) = Loop::over(&volume.at("ssd"), &["-r"]) else { return skip("no loop devices") };
        let disk = volume.at("disk");
        let mounted = Mounted::new(&["-o", word, "--ssd", &device.0, "--disk", disk.to_str().unwrap()]);
        write_synced(&mounted.path().join("more"), b"more");
    }
}

#[test]
fn an_image_on_a_read_only_file_system_is_refused_with_what_to_do() {
    need_fuse!();
    let volume = crashed();
    let home = volume.at("read-only");
    fs::create_dir(&home).unwrap();
    fs::copy(volume.at("ssd"), home.join("ssd")).unwrap();
    let bind = |args: &[&str]| Command::new("mount").args(args).arg(&home).status().unwrap().success();
    if !bind(&["--bind", home.to_str().unwrap()]) || !bind(&["-o", "remount,bind,ro"]) {
        return skip("no bind mounts");
    }
    let (ssd, disk) = (home.join("ssd"), volume.at("disk"));
    let halves: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    let tried = run(&["mount"], halves, &[&place(&volume)]);
    let swapped = run(&["mount"], &[("--ssd", &disk), ("--disk", &ssd)], &[&place(&volume)]);
    let repaired = run(&["fsck", "-y"], halves, &[]);
    once_free(Command::new("umount").arg(&home));
    refused(&tried, &["read-only", "-o recover=whole"]);
    refused(&swapped, &["mounted read-only", "-o ro"]);
    ended(&repaired, 0, &["operations"]);
    check(Mounted::new(&["--disk", disk.to_str().unwrap()]).path());
}

#[test]
fn an_older_copy_of_an_ssd_half_left_in_order_is_called_that_and_not_damaged() {
    need_fuse!();
    let volume = filled();
    let old = fs::read(volume.at("ssd")).unwrap();
    let mounted = volume.mount(&[]);
    (0..10).for_each(|number| write_synced(&mounted.path().join(format!("f{number}")), &marked(number + 1)));
    drop(mounted);
    fs::write(volume.at("ssd"), old).unwrap();
    let checked = volume.run(&["fsck", "-n"]);
    let said = out(&checked);
    assert!(said.contains("older copy of the SSD half") && !said.contains("is damaged"), "{said}");
    let mounted = volume.mount(&["-o", "ro"]);
    let notes = mounted.status()["notes"].to_string();
    assert!(notes.contains("older copy of the SSD half") && !notes.contains("damaged"), "{notes}");
}

#[test]
fn fsck_yes_leaves_alone_what_is_another_file_system_by_now() {
    need_fuse!();
    let volume = filled();
    let disk = volume.at("disk");
    // The copy of the old superblock survives behind the new one's first blocks.
    put_at(&disk, 0, &[0; 4096]);
    put_at(&disk, 0, b"XFSB\0\0\x10\0");
    put_at(&disk, 100, b"\xB4\xA5\x02\0\x02\0\0\x08");
    let before = volume.bytes();
    ended(&volume.run(&["fsck", "-y"]), 4, &["holds an xfs file system", "no ext4"]);
    assert!(volume.bytes() == before, "it was written");
}

#[test]
fn what_is_in_the_way_is_named_with_what_takes_it_away() {
    need_fuse!();
    let volume = filled();
    let mounted = volume.mount(&[]);
    let place = mounted.path().to_str().unwrap().to_string();
    let pid = mounted.status()["front"]["pid"].as_i64().unwrap() as i32;
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let remedy = format!("bimetal umount {place}");
    let halves = [("--ssd", &*volume.at("ssd")), ("--disk", &*volume.at("disk"))];
    refused(&run(&["mount"], &halves, &[&place]), &[&remedy]);
    refused(&run(&["map"], &[], &[&place, "/"]), &[&remedy]);
    refused(&run(&["scrub"], &[], &[&place]), &[&remedy]);
    let done = once_free(bimetal().args(["umount", &place]));
    refused(&done, &["is unmounted", "its server was dead already"]);
}

#[test]
fn adopting_a_disk_half_whose_log_is_open_says_that_and_whose_it_is() {
    need_fuse!();
    let volume = crashed();
    let before = volume.bytes();
    let new = volume.at("new");
    File::create(&new).unwrap().set_len(32 << 20).unwrap();
    let halves: &[(&str, &Path)] = &[("--ssd", &new), ("--disk", &volume.at("disk"))];
    refused(&run(&["adopt"], halves, &[]), &["was not unmounted", "only the log of its SSD", "--force"]);
    assert!(volume.bytes() == before);
    assert!(run(&["adopt", "--force"], halves, &[]).status.success());
    let mounted =
        Mounted::new(&["--ssd", new.to_str().unwrap(), "--disk", volume.at("disk").to_str().unwrap()]);
    check_old(mounted.path());
}

#[test]
fn a_command_line_without_a_disk_half_or_with_one_that_is_too_small_is_told_what_to_give() {
    need_fuse!();
    ended(&run(&["fsck"], &[], &[]), 16, &["--disk"]);
    ended(&run(&["fsck"], &[], &["-t", "cmfs"]), 16, &["--nand"]);
    let volume = Volume::images();
    File::create(volume.at("disk")).unwrap().set_len(1 << 20).unwrap();
    refused(&volume.run(&["mkfs", "nfhybrid"]), &["1.0 MiB", "at least 2.0 MiB"]);
}

#[test]
fn damaged_tables_of_an_ssd_half_are_not_called_its_log() {
    need_fuse!();
    let volume = filled();
    // From the next mount on the log does not say again what the tables say.
    write_synced(&volume.mount(&[]).path().join("more"), b"more");
    let ssd = volume.at("ssd");
    let bytes = fs::read(&ssd).unwrap();
    let table = u64::from_le_bytes(bytes[104..112].try_into().unwrap());
    (0..64).for_each(|sector| flip(&ssd, table + sector * 512 + 7, 1));
    let said = out(&volume.run(&["fsck", "-n"]));
    let parts = ["the SSD's tables: ", "slots of the inode table are damaged", "Nothing is lost"];
    assert!(parts.iter().all(|part| said.contains(part)) && !said.contains("the SSD's log:"), "{said}");
    let mounted = volume.mount(&[]);
    (0..10).for_each(|number| {
        assert!(fs::read(mounted.path().join(format!("f{number}"))).unwrap() == marked(number))
    });
}

#[test]
fn a_file_that_e2fsck_took_away_does_not_stand_in_the_way_of_the_log() {
    need_fuse!();
    let volume = filled();
    let disk = volume.at("disk");
    // The log has contents of it, which nothing can be done with any more.
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    write_synced(&mounted.path().join("f3"), b"other contents");
    (0..LATE).map(late).for_each(|(name, bytes)| write_synced(&mounted.path().join(name), &bytes));
    kill(mounted);
    let at = inode_at(&disk, "/f3");
    let noise: Vec<u8> = (0..128_u8).map(|byte| byte.wrapping_mul(37) ^ 0xB5).collect();
    put_at(&disk, at, &noise);
    put_at(&disk, at + 128, &[0xFF; 16]);
    // A file that is gone is a loss, which is named.
    ended(&volume.run(&["fsck", "--yes"]), 4, &["/f3 (inode", "Lost."]);
    ended(&volume.run(&["fsck"]), 0, &["clean"]);
    let mounted = volume.mount(&[]);
    for (name, bytes) in (0..LATE).map(late) {
        assert!(fs::read(mounted.path().join(&name)).unwrap() == bytes, "{name}");
    }
    for number in (0..10).filter(|number| *number != 3) {
        assert!(fs::read(mounted.path().join(format!("f{number}"))).unwrap() == marked(number), "f{number}");
    }
}

#[test]
fn fsck_yes_makes_no_ssd_half_of_a_copy_current() {
    need_fuse!();
    let volume = filled();
    let [ssd, disk] = volume.bytes();
    // The copy goes on, and its power fails.
    crash(&volume);
    let of_copy = fs::read(volume.at("ssd")).unwrap();
    // The volume goes on, too, and is left in order.
    fs::write(volume.at("ssd"), ssd).unwrap();
    fs::write(volume.at("disk"), disk).unwrap();
    let mounted = volume.mount(&[]);
    write_synced(&mounted.path().join("own"), b"own");
    assert!(mounted.unmount().status.success());
    fs::write(volume.at("ssd"), &of_copy).unwrap();
    flip(&volume.at("disk"), TO_THE_COPY[0].0, TO_THE_COPY[0].1);
    let checked = volume.run(&["fsck", "--yes"]);
    assert!(checked.status.code() > Some(1), "{}{}", out(&checked), err(&checked));
    assert!(fs::read(volume.at("ssd")).unwrap() == of_copy, "the SSD half of the copy was changed");
    refused_mount(&volume, &[], &["of a copy of the volume", "bimetal rescue"]);
    let disk = volume.at("disk");
    let alone = Mounted::new(&["--disk", disk.to_str().unwrap()]);
    check_old(alone.path());
    assert_eq!(fs::read(alone.path().join("own")).unwrap(), b"own");
}

#[test]
fn adopting_a_disk_half_whose_record_of_its_ssd_is_damaged_takes_the_users_word() {
    need_fuse!();
    let volume = Volume::images();
    let disk = volume.at("disk");
    assert!(tool("mke2fs", &["-q", "-t", "ext4", "-O", "^metadata_csum"], &disk).status.success());
    volume.done(&["adopt"]);
    crash(&volume);
    let bytes = fs::read(&disk).unwrap();
    let ties = bytes.windows(4).enumerate().filter(|(_, word)| word == b"BiMt");
    ties.for_each(|(at, _)| flip(&disk, at as u64 + 30, 1));
    let new = volume.at("new");
    File::create(&new).unwrap().set_len(32 << 20).unwrap();
    let (before, halves) = (volume.bytes(), [("--ssd", &*new), ("--disk", &*disk)]);
    refused(&run(&["adopt"], &halves, &[]), &["the pairing to the SSD", "damaged", "--force"]);
    assert!(volume.bytes() == before, "it was changed");
    assert!(run(&["adopt", "--force"], &halves, &[]).status.success());
}

#[test]
fn fsck_without_yes_changes_nothing_where_e2fsck_would_take_files_away_and_with_it_names_them() {
    need_fuse!();
    for log_needs_them in [false, true] {
        let volume = filled();
        let disk = volume.at("disk");
        let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
        if log_needs_them {
            let file = File::options().write(true).open(mounted.path().join("f3")).unwrap();
            file.write_all_at(b"other contents", 4096).unwrap();
            file.sync_all().unwrap();
        }
        (0..LATE).map(late).for_each(|(name, bytes)| write_synced(&mounted.path().join(name), &bytes));
        kill(mounted);
        for name in ["/f3", "/f5"] {
            put_at(&disk, inode_at(&disk, name), &[0; 256]);
        }
        let before = volume.bytes();
        let first = format!("bimetal rescue --ssd {} DIRECTORY", volume.at("ssd").display());
        ended(&volume.run(&["fsck", "-n"]), 4, &["/f3 (inode", "/f5 (inode", &first, "--yes"]);
        ended(
            &volume.run(&["fsck"]),
            4,
            &["/f3 (inode", "/f5 (inode", "Nothing was changed", &first, "--yes"],
        );
        assert!(volume.bytes() == before, "fsck without --yes changed it");
        let to = volume.at("rescued");
        ended(
            &run(&["rescue"], &[("--ssd", &volume.at("ssd"))], &[to.to_str().unwrap()]),
            0,
            &["whole files"],
        );
        let nameless: Vec<_> = fs::read_dir(to.join("by-inode")).unwrap().flatten().collect();
        assert!(
            nameless.iter().any(|entry| fs::read(entry.path()).unwrap() == marked(5)),
            "/f5 is not rescued"
        );
        let repaired = volume.run(&["fsck", "--yes"]);
        ended(&repaired, 4, &["/f3 (inode", "/f5 (inode", "Lost.", "Entry 'f3' in / ", "Entry 'f5' in / "]);
        assert!(!out(&repaired).contains(" left. Looked"), "{}", out(&repaired));
        ended(&volume.run(&["fsck"]), 0, &["clean"]);
        let mounted = volume.mount(&[]);
        for (name, bytes) in (0..LATE).map(late) {
            assert!(fs::read(mounted.path().join(&name)).unwrap() == bytes, "{name}");
        }
        for number in (0..10).filter(|number| ![3, 5].contains(number)) {
            assert!(
                fs::read(mounted.path().join(format!("f{number}"))).unwrap() == marked(number),
                "f{number}"
            );
        }
    }
}

/// A file system of one block group has no copy of its descriptors: e2fsck takes the journal away, and the log fits nothing then.
#[test]
fn where_there_is_no_copy_of_what_is_damaged_a_repair_is_said_to_cost_the_log_and_does_not_come_first() {
    need_fuse!();
    let volume = Volume::new();
    let disk = volume.at("disk");
    File::create(&disk).unwrap().set_len(48 << 20).unwrap();
    assert!(tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096"], &disk).status.success());
    ended(&volume.run(&["adopt", "--force"]), 0, &[]);
    let mounted = volume.mount(&["-o", "lag=1h,1GiB"]);
    (0..LATE).map(late).for_each(|(name, bytes)| write_synced(&mounted.path().join(name), &bytes));
    kill(mounted);
    put_at(&disk, 4096, &[0; 4096]);
    let before = volume.bytes();
    let says = ["no copy", "SSD's log holds cannot be applied", "First get off", "bimetal rescue"];
    refused_mount(&volume, &[], &says);
    ended(&volume.run(&["fsck", "-n"]), 4, &says);
    ended(&volume.run(&["fsck"]), 4, &[&says[..], &["Nothing was changed"]].concat());
    assert!(volume.bytes() == before, "it was changed without --yes");
    let to = volume.at("rescued");
    ended(&run(&["rescue"], &[("--ssd", &volume.at("ssd"))], &[to.to_str().unwrap()]), 0, &["whole files"]);
    let repaired = volume.run(&["fsck", "--yes"]);
    ended(&repaired, 4, &["no copy", "the SSD's log: What it holds could not be brought", "journal"]);
    let whole: Vec<_> = walk(&to).iter().map(|path| fs::read(path).unwrap()).collect();
    for (name, bytes) in (0..LATE).map(late) {
        assert!(whole.contains(&bytes), "{name} is not rescued");
    }
}

/// The files under a directory.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(walk(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

#[test]
fn what_e2fsck_takes_away_unseen_is_lost_and_not_repaired() {
    need_fuse!();
    let volume = crashed();
    let disk = volume.at("disk");
    put_at(&disk, inode_at(&disk, "/f3"), &[0; 256]);
    flip(&disk, 1080, 0);
    let before = volume.bytes();
    ended(
        &volume.run(&["fsck"]),
        4,
        &["It cannot be opened", "Nothing was changed", "First `bimetal rescue"],
    );
    assert!(volume.bytes() == before, "it was changed without --yes");
    ended(&volume.run(&["fsck", "--yes"]), 4, &["took something away", "Lost.", "Entry 'f3' in / "]);
    ended(&volume.run(&["fsck"]), 0, &["clean"]);
}

#[test]
fn of_many_names_that_lead_nowhere_a_check_names_a_hundred_and_counts_the_rest() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::create_dir(mounted.path().join("d")).unwrap();
    (0..119).for_each(|number| fs::write(mounted.path().join(format!("d/f{number}")), b"").unwrap());
    fs::hard_link(mounted.path().join("d/f0"), mounted.path().join("second")).unwrap();
    assert!(mounted.unmount().status.success());
    let disk = volume.at("disk");
    let (first, last) = (inode_at(&disk, "/d/f0"), inode_at(&disk, "/d/f118"));
    assert_eq!(last, first + 118 * 256, "the inodes are not beside each other");
    put_at(&disk, first, &[0; 119 * 256]);
    let checked = volume.run(&["fsck"]);
    ended(&checked, 4, &["/second (inode", "20 more names", "Nothing was changed"]);
    assert_eq!(out(&checked).matches("cannot be read: ").count(), 100, "{}", out(&checked));
    ended(&volume.run(&["fsck", "--yes"]), 4, &["20 more names"]);
    ended(&volume.run(&["fsck"]), 0, &["clean"]);
}
