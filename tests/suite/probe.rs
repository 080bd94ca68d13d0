//! What `bimetal probe` says of devices and images, and the rules by which udev(7) asks it.

use crate::guard::{Loop, Volume, err, out, refused};
use crate::mounts::{bimetal, need_fuse, skip};
use bimetal::checksum::crc32c;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Where the superblock of the disk half is, and in it the pairing.
const SUPERBLOCK: u64 = 1024;
const PAIRING: u64 = SUPERBLOCK + 0x3C4;

fn probe(options: &[&str], device: &Path) -> Output {
    bimetal().arg("probe").args(options).arg(device).output().expect("the command runs")
}

fn found(device: &Path) -> Value {
    let done = probe(&["--json"], device);
    assert!(done.status.success(), "{}: {}", device.display(), err(&done));
    serde_json::from_str(&out(&done)).expect("JSON")
}

/// It ends with 1, and says nothing, or in JSON that there is none of ours.
fn is_foreign(device: &Path) {
    let done = probe(&["--json"], device);
    assert_eq!((done.status.code(), &*err(&done)), (Some(1), ""), "{}", device.display());
    let said: Value = serde_json::from_str(&out(&done)).expect("JSON");
    assert_eq!(said, serde_json::json!({ "device": device.to_str(), "type": null }));
    for options in [&[][..], &["--udev"]] {
        let done = probe(options, device);
        let said = out(&done) + &err(&done);
        assert_eq!((done.status.code(), &*said), (Some(1), ""), "{} {options:?}", device.display());
    }
}

fn change(image: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}

fn bytes_at(image: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(image).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// As UUIDs are written.
fn uuid(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[test]
fn each_half_names_the_volume_and_itself_and_how_it_was_left() {
    need_fuse!();
    let volume = Volume::new();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let of_disk = uuid(&bytes_at(&disk, SUPERBLOCK + 0x68, 16));
    let of_ssd = uuid(&bytes_at(&ssd, 16, 16));
    let are = |state: &str| {
        for (half, role, own) in [(&ssd, "ssd", &of_ssd), (&disk, "disk", &of_disk)] {
            let expected = json!({
                "device": half, "type": "nfhybrid", "role": role, "volume": of_disk, "uuid": own, "state": state,
            });
            assert_eq!(found(half), expected);
        }
    };
    let before = volume.bytes();
    are("clean");
    let said = out(&probe(&[], &ssd));
    let expected = format!(
        "{}: the SSD half of nfhybrid\n  volume  {of_disk}\n  UUID    {of_ssd}\n  state   clean: left in order\n",
        ssd.display()
    );
    assert_eq!(said, expected);
    let said = out(&probe(&["--udev"], &disk));
    let expected = format!(
        "BIMETAL_TYPE=nfhybrid\nBIMETAL_ROLE=disk\nBIMETAL_VOLUME={of_disk}\nBIMETAL_UUID={of_disk}\n"
    );
    assert_eq!(said, expected);
    assert!(volume.bytes() == before, "it was written to");
    // While it is mounted nobody is disturbed.
    let mounted = volume.mount(&[]);
    fs::write(mounted.path().join("f"), b"something").unwrap();
    File::open(mounted.path().join("f")).unwrap().sync_all().unwrap();
    are("open");
    assert!(mounted.unmount().status.success());
    are("clean");
    // The disk goes on without its SSD.
    let mounted = crate::mounts::Mounted::new(&["--disk", disk.to_str().unwrap(), "-o", "without-ssd"]);
    fs::write(mounted.path().join("g"), b"more").unwrap();
    assert!(mounted.unmount().status.success());
    assert_eq!(found(&disk)["state"], "degraded");
}

#[test]
fn images_of_nand_and_nvram_are_told_too() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for layout in ["compact", "paper"] {
        let (nand, nvram) = (at(&format!("{layout}.nand")), at(&format!("{layout}.nvram")));
        let mut mkfs = bimetal();
        mkfs.args(["mkfs", "cmfs", "--size", "16MiB", "--layout", layout, "--nand"]);
        let made = mkfs.arg(&nand).arg("--nvram").arg(&nvram).output().unwrap();
        assert!(made.status.success(), "{}", err(&made));
        let (of_nand, of_nvram) = (found(&nand), found(&nvram));
        for (said, role) in [(&of_nand, "nand"), (&of_nvram, "nvram")] {
            assert_eq!((&said["type"], &said["role"]), (&json!("cmfs"), &json!(role)), "{layout}");
        }
        assert!(of_nand["uuid"].is_string() && of_nand["uuid"] == of_nvram["uuid"], "{of_nand} {of_nvram}");
    }
    let made = bimetal().args(["mkfs", "osd", "--size", "16MiB", "--nand"]).arg(at("osd")).output().unwrap();
    assert!(made.status.success(), "{}", err(&made));
    let said = out(&probe(&[], &at("osd")));
    assert_eq!(said, format!("{}: the NAND of osd\n", at("osd").display()));
}

#[test]
fn what_is_not_ours_or_not_any_more_is_nothing() {
    let volume = Volume::new();
    let other = volume.at("other");
    for contents in [&b""[..], b"x", &[0; 4096], &[0xA5; 70_000]] {
        fs::write(&other, contents).unwrap();
        is_foreign(&other);
    }
    fs::write(&other, b"").unwrap();
    File::options().write(true).open(&other).unwrap().set_len(256 << 20).unwrap();
    is_foreign(&other);
    let mke2fs = |image: &Path| {
        let done =
            Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(image).output().expect("mke2fs");
        assert!(done.status.success(), "{}", err(&done));
    };
    mke2fs(&other);
    is_foreign(&other);
    // Made anew as something else, or wiped: what is left at its end does not count.
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    mke2fs(&disk);
    is_foreign(&disk);
    change(&ssd, 0, &[0; 8]);
    is_foreign(&ssd);
    // Long, and of another kind that begins as an SSD half does not.
    change(&ssd, 0, b"XFSB\0\0\x10\0");
    is_foreign(&ssd);
}

#[test]
fn what_cannot_be_looked_at_is_said_at_once() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let begun = Instant::now();
    refused(&probe(&[], home.path()), &["is a directory; name a device or an image"]);
    refused(&probe(&["--udev"], &at("fifo")), &["neither a file nor a block device"]);
    refused(&probe(&[], Path::new("/dev/null")), &["neither a file nor a block device"]);
    refused(&probe(&[], &at("absent")), &["absent", "No such file"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "somebody was waited for");
    assert_eq!(probe(&["--json", "--udev"], &at("fifo")).status.code(), Some(2));
}

#[test]
fn a_damaged_half_is_known_as_one() {
    let volume = Volume::images();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    // Of more than one block group, so that there is a copy of the superblock.
    File::options().write(true).open(&disk).unwrap().set_len(300 << 20).unwrap();
    volume.done(&["mkfs", "nfhybrid"]);
    let [of_ssd, _] = volume.bytes();
    let superblock = bytes_at(&disk, 0, 4096);
    let whose = found(&disk)["volume"].clone();
    let is = |half: &Path, state: &str, uuid: bool| {
        let said = found(half);
        assert_eq!((&said["state"], said["uuid"].is_string()), (&json!(state), uuid), "{said}");
    };
    let flip = |half: &Path, at: u64| change(half, at, &[bytes_at(half, at, 1)[0] ^ 4]);

    // Either superblock of an SSD half does.
    flip(&ssd, 100);
    assert_eq!(found(&ssd)["volume"], whose);
    is(&ssd, "clean", true);
    flip(&ssd, of_ssd.len() as u64 - 4096 + 100);
    is(&ssd, "damaged", false);
    let shown = probe(&["--udev"], &ssd);
    assert_eq!(out(&shown), "BIMETAL_TYPE=nfhybrid\nBIMETAL_ROLE=ssd\n");
    // Cut short, so that the copy is not there either.
    fs::write(&ssd, &of_ssd[..8192]).unwrap();
    is(&ssd, "damaged", false);
    // Of a version that is not known, in both.
    let mut later = of_ssd[..4096].to_vec();
    later[8] = 9;
    let sum = crc32c(&later[..4092]);
    later[4092..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&ssd, &of_ssd).unwrap();
    [0, of_ssd.len() as u64 - 4096].into_iter().for_each(|at| change(&ssd, at, &later));
    is(&ssd, "unknown", false);

    // The pairing, its absence, the checksum over it, a number that makes no sense.
    flip(&disk, PAIRING + 20);
    is(&disk, "damaged", true);
    change(&disk, PAIRING, &[0; 56]);
    is(&disk, "damaged", true);
    change(&disk, 0, &superblock);
    flip(&disk, SUPERBLOCK + 0x3FC);
    is(&disk, "damaged", true);
    change(&disk, 0, &superblock);
    change(&disk, SUPERBLOCK + 0x20, &[0; 4]);
    is(&disk, "damaged", false);
    change(&disk, 0, &superblock);
    let mut later = superblock[PAIRING as usize..][..56].to_vec();
    later[4] = 9;
    let sum = crc32c(&later[..52]);
    later[52..].copy_from_slice(&sum.to_le_bytes());
    change(&disk, PAIRING, &later);
    is(&disk, "unknown", true);
    change(&disk, 0, &superblock);
    is(&disk, "clean", true);
}

/// What udev(7) makes of a device by Debian's rules and ours: its properties and links. In a mount namespace with a `/dev` and a
/// `/run` of its own, so that nothing is left.
const UDEVADM: &str = r#"
    mount --make-rprivate /
    mount -t tmpfs run /run
    mkdir -p /run/udev/rules.d "$HOME/dev"
    cp "$RULES" /run/udev/rules.d/
    mount -t tmpfs dev "$HOME/dev"
    cp -a "$DEVICE" /dev/null "$HOME/dev/"
    mount --move "$HOME/dev" /dev
    udevadm test "/sys/class/block/${DEVICE##*/}" >/run/out 2>/run/err || { cat /run/err >&2; exit 1; }
    grep '^[A-Z_]*=' /run/out
    find /dev/disk -type l | sed 's/^/LINK=/'
"#;

fn by_udev(rules: &Path, device: &Loop) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-euc", UDEVADM]).env("HOME", home.path());
    let done = shell.env("RULES", rules).env("DEVICE", &device.0).output().expect("unshare(1)");
    assert!(done.status.success(), "{}", err(&done));
    out(&done).lines().map(str::to_string).collect()
}

#[test]
fn udev_gives_each_half_links_and_keeps_desktops_from_mounting_one_alone() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root");
    }
    if Command::new("udevadm").arg("--version").output().is_err() {
        return skip("no udevadm(8)");
    }
    if !Path::new("/usr/lib/udev/rules.d/60-persistent-storage.rules").exists() {
        return skip("no rules of udev for storage");
    }
    let volume = Volume::new();
    let rules = volume.at("64-bimetal.rules");
    let written =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/udev/64-bimetal.rules"));
    let written = written.unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_bimetal")).parent().unwrap().to_str().unwrap();
    fs::write(&rules, written.replace("@BINDIR@", program)).unwrap();
    let (of_volume, of_ssd) =
        (found(&volume.at("disk"))["uuid"].clone(), found(&volume.at("ssd"))["uuid"].clone());
    let [of_volume, of_ssd] = [&of_volume, &of_ssd].map(|uuid| uuid.as_str().unwrap());
    let plain = volume.at("plain");
    File::create(&plain).unwrap().set_len(64 << 20).unwrap();
    assert!(Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&plain).status().unwrap().success());
    let device = |name: &str| Loop::over(&volume.at(name), &[]);
    let (Some(ssd), Some(disk), Some(plain)) = (device("ssd"), device("disk"), device("plain")) else {
        return skip("no loop devices");
    };
    let has = |all: &[String], line: &str| {
        assert!(all.iter().any(|found| found == line), "{line} in\n{}", all.join("\n"));
    };
    let said = by_udev(&rules, &ssd);
    has(&said, "ID_FS_TYPE=bimetal");
    has(&said, "UDISKS_IGNORE=1");
    has(&said, &format!("ID_FS_UUID={of_ssd}"));
    has(&said, &format!("LINK=/dev/disk/by-uuid/{of_ssd}"));
    has(&said, &format!("LINK=/dev/disk/bimetal/{of_volume}-ssd"));
    let said = by_udev(&rules, &disk);
    has(&said, "ID_FS_TYPE=bimetal");
    has(&said, "UDISKS_IGNORE=1");
    has(&said, &format!("LINK=/dev/disk/by-uuid/{of_volume}"));
    has(&said, &format!("LINK=/dev/disk/bimetal/{of_volume}-disk"));
    let said = by_udev(&rules, &plain);
    has(&said, "ID_FS_TYPE=ext4");
    assert!(!said.iter().any(|line| line.contains("bimetal") || line.contains("UDISKS")), "{said:?}");
}

#[test]
fn what_is_given_as_another_part_is_called_what_it_is() {
    let volume = Volume::new();
    let [ssd, disk, nand, nvram, osd, ext4, fat, place] =
        ["ssd", "disk", "nand", "nvram", "osd", "ext4", "fat", "place"].map(|name| volume.at(name));
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let ok = |verb: &[&str], places: &[(&str, &Path)], rest: &[&str]| {
        let done = crate::guard::run(verb, places, rest);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
    };
    ok(&["mkfs", "cmfs"], &[("--nand", &nand), ("--nvram", &nvram)], &["--size", "16MiB"]);
    ok(&["mkfs", "osd"], &[("--nand", &osd)], &["--size", "16MiB"]);
    for (path, tool) in [(&ext4, &["mke2fs", "-q", "-t", "ext4"][..]), (&fat, &["mkfs.fat"])] {
        File::create(path).unwrap().set_len(40 << 20).unwrap();
        let made = Command::new(tool[0])
            .args(&tool[1..])
            .arg(path)
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            return skip(&format!("no {}", tool[0]));
        }
    }
    fs::create_dir(&place).unwrap();
    let [here, out_of] = [text(&place), text(&volume.at("out"))];
    let is = |places: &[(&str, &Path)], verb: &[&str], rest: &[&str], parts: &[&str]| {
        let done = crate::guard::run(verb, places, rest);
        assert_eq!(done.status.code(), Some(1), "{verb:?} {places:?}: {}", err(&done));
        refused(&done, parts);
        for wrong in ["corrupt", "magic", "try again", "whole number of blocks"] {
            assert!(!err(&done).contains(wrong), "{wrong} in {}", err(&done));
        }
    };
    for (path, kind) in [(&nand, "cmfs"), (&osd, "osd")] {
        let parts = [&*format!("is the NAND of {kind}, and was given as the disk half"), "--nand"];
        for (verb, rest) in [
            (&["ls"][..], &["/"][..]),
            (&["mount"], &[&here]),
            (&["put"], &[&text(&nvram), "/f"]),
            (&["get"], &["/f", &out_of]),
        ] {
            is(&[("--disk", path)], verb, rest, &parts);
        }
    }
    is(&[("--disk", &nvram)], &["ls"], &["/"], &["is the NVRAM of cmfs", "--nvram"]);
    is(
        &[("--ssd", &disk)],
        &["rescue"],
        &[&out_of],
        &["is the disk half of nfhybrid, and was given as the SSD half"],
    );
    is(&[("--ssd", &nand)], &["rescue"], &[&out_of], &["is the NAND of cmfs, and was given as the SSD half"]);
    for (path, what) in [(&nand, "is the NAND of cmfs"), (&fat, "holds a FAT"), (&ext4, "holds an ext2/3/4")]
    {
        let halves: &[(&str, &Path)] = &[("--ssd", path), ("--disk", &disk)];
        for (verb, rest) in [(&["ls"][..], &["/"][..]), (&["mount"], &[&here]), (&["scrub"], &[])] {
            is(halves, verb, rest, &[what, "was given as the SSD half"]);
        }
    }
    is(&[("--disk", &fat)], &["ls"], &["/"], &["holds a FAT", "was given as the disk half"]);
    is(
        &[("--nand", &ssd)],
        &["ls"],
        &["/"],
        &["is the SSD half of nfhybrid, and was given as the NAND", "--ssd"],
    );
    is(&[("--nand", &ext4)], &["mount"], &[&here], &["holds an ext2/3/4", "was given as the NAND"]);
    is(&[("--nand", &nand)], &["osd", "ls"], &[], &["is the NAND of cmfs, and was given as the NAND of osd"]);
    let files = text(&volume.at("files"));
    let export = &["export", &text(&osd), "--yaffs2-image", &files];
    is(&[], export, &[], &["is the NAND of osd, and was given as the NAND of cmfs"]);
    is(&[("--nand", &osd)], &["status"], &[], &["is the NAND of osd, and was given as the NAND of cmfs"]);
    // A part that is only damaged is none of these.
    change(&ssd, 0, &[0; 8]);
    let len = fs::metadata(&ssd).unwrap().len();
    change(&ssd, len - 4096, &[0; 8]);
    let damaged = crate::guard::run(&["ls"], &[("--ssd", &ssd), ("--disk", &disk)], &["/"]);
    assert!(!err(&damaged).contains("was given as"), "{}", err(&damaged));
}
