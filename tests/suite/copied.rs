//! What `get`, `put` and the outputs of other commands may take the place of.

use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::{bimetal, need_fuse, skip};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A volume with a file of six bytes, made without a mount.
pub fn with_a_file() -> Volume {
    let volume = Volume::new();
    fs::write(volume.at("six"), "6 byte").unwrap();
    put(&volume, "six", "/f");
    volume
}

pub fn both(volume: &Volume, verb: &str, rest: &[&str]) -> Output {
    run(&[verb], &[("--ssd", &volume.at("ssd")), ("--disk", &volume.at("disk"))], rest)
}

pub fn put(volume: &Volume, source: &str, target: &str) {
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
    for what in ["--csv", "--html", "--parquet", "--request-log"] {
        refused(&replay(what, &volume.at("disk")), &["name another"]);
    }
    let series = |to: &Path| {
        run(&["replay", "gen:zipf:requests=9", "--device", "none", "--every", "1s"], &[("--series", to)], &[])
    };
    refused(&series(&volume.at("disk")), &["name another"]);
    assert!(volume.bytes() == before);
    let [link, file] = ["link.csv", "file.csv"].map(|name| volume.at(name));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    let done = replay("--csv", &link);
    assert!(done.status.success(), "{}", err(&done));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let rows = fs::read_to_string(&file).unwrap();
    assert!(rows.lines().count() == 2, "{rows}");
    assert!(
        replay("--request-log", &link).status.success() && fs::symlink_metadata(&link).unwrap().is_symlink()
    );
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 101);
    refused(&replay("--request-log", &volume.at("")), &["Is a directory"]);
    // To a device, as standard output may be one.
    let to_device = volume.at("null.csv");
    symlink("/dev/null", &to_device).unwrap();
    for what in ["--csv", "--request-log"] {
        assert!(replay(what, &to_device).status.success());
        assert!(fs::metadata(&to_device).unwrap().file_type().is_char_device());
        let said = replay(what, Path::new("/dev/stdout"));
        assert!(said.status.success() && out(&said).contains(','), "{}", err(&said));
    }
    // A short volume is one.
    let tiny = volume.at("tiny");
    fs::File::create(&tiny).unwrap().set_len(60 << 10).unwrap();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-b", "1024", "-N", "16"])
        .arg(&tiny)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .status();
    assert!(made.unwrap().success());
    refused(&replay("--csv", &tiny), &["ext2/3/4", "name another"]);
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

/// Names in a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

#[test]
fn get_takes_no_source_whose_name_leads_out_of_its_target() {
    let volume = Volume::new();
    let [tree, home] = ["tree", "home"].map(|name| volume.at(name));
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("keep"), "the volume's").unwrap();
    put(&volume, "tree", "/");
    fs::create_dir_all(home.join("dl")).unwrap();
    fs::write(home.join("keep"), "own").unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    for source in ["/tree/below/..", "/tree/below/../", "/.."] {
        refused(
            &both(&volume, "get", &[source, home.join("dl").to_str().unwrap()]),
            &["has no name", source],
        );
    }
    assert_eq!(fs::read_to_string(home.join("keep")).unwrap(), "own");
    assert_eq!(
        (fs::metadata(&home).unwrap().mode() & 0o777, names(&home)),
        (0o700, vec!["dl".into(), "keep".into()])
    );
    assert!(names(&home.join("dl")).is_empty());
    // Under a name that is given it is what it leads to.
    let named = home.join("dl/new");
    let done = both(&volume, "get", &["/tree/below/..", named.to_str().unwrap()]);
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(names(&named), ["below", "keep"]);
}

#[test]
fn get_fills_a_directory_that_is_there_and_leaves_it_its_mode_owner_list_and_times() {
    let volume = Volume::new();
    let [tree, home] = ["tree", "home"].map(|name| volume.at(name));
    fs::create_dir_all(tree.join("sub/new")).unwrap();
    fs::write(tree.join("sub/f"), "the volume's").unwrap();
    for dir in ["", "sub", "sub/new"] {
        fs::set_permissions(tree.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
    }
    put(&volume, "tree", "/");
    // A list that gives user 7 what the owner has: version, then tag, rights and number of each entry.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 7, !0),
        entry(2, 7, 7),
        entry(4, 0, !0),
        entry(0x10, 7, !0),
        entry(0x20, 0, !0),
    ]
    .concat();
    let own = |dir: &Path| {
        let found = fs::metadata(dir).unwrap();
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(dir, "system.posix_acl_access", &mut value).unwrap_or(0);
        (found.mode() & 0o7777, found.uid(), found.gid(), value[..len].to_vec())
    };
    let there = |dir: &Path| {
        fs::create_dir_all(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
        let _ = std::os::unix::fs::chown(dir, Some(1234), Some(1235));
        let flags = rustix::fs::XattrFlags::empty();
        let _ = rustix::fs::setxattr(dir, "system.posix_acl_access", &list, flags);
        own(dir)
    };
    // The root of the volume, into a directory; a directory, over one of its name; and one below both.
    for (source, inside) in [("/", "tree"), ("/tree", "tree"), ("/tree/sub", "sub")] {
        let target = home.join(source.replace('/', "-"));
        let before = [&target, &target.join(inside), &target.join("tree/sub")].map(|dir| there(dir));
        let done = both(&volume, "get", &[source, target.to_str().unwrap()]);
        assert!(done.status.success(), "{source}: {}", err(&done));
        let after = [&target, &target.join(inside), &target.join("tree/sub")].map(|dir| own(dir));
        assert_eq!(after, before, "{source}");
        let sub = if inside == "tree" { target.join("tree/sub") } else { target.join("sub") };
        assert_eq!(fs::read_to_string(sub.join("f")).unwrap(), "the volume's");
        assert_eq!(
            fs::metadata(sub.join("new")).unwrap().mode() & 0o7777,
            0o777,
            "what is made is as it was"
        );
    }
}

#[test]
fn images_of_a_cmfs_are_no_place_for_a_file_a_report_or_a_log() {
    let volume = with_a_file();
    let [nand, nvram, paper] = ["nand", "nvram", "paper"].map(|name| volume.at(name));
    let other = volume.at("nand2");
    for (nand, nvram, more) in [(&nand, &nvram, &[][..]), (&other, &paper, &["--layout", "paper"])] {
        let parts: &[(&str, &Path)] = &[("--nand", nand), ("--nvram", nvram)];
        let made = run(&["mkfs", "cmfs", "--device", "slc-2k", "--size", "16MiB"], parts, more);
        assert!(made.status.success(), "{}", err(&made));
    }
    let images = [&nand, &nvram, &paper, &other];
    let before = images.map(|image| fs::read(image).unwrap());
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    for image in images {
        refused(&get(&volume, image), &["of a cmfs", "name another"]);
        let report = run(&["replay", "gen:zipf:requests=100", "--device", "none"], &[("--html", image)], &[]);
        refused(&report, &["of a cmfs", "name another"]);
        let log = image.to_str().unwrap();
        refused(&both(&volume, "mount", &["--log", log, place.to_str().unwrap()]), &["of a cmfs"]);
    }
    assert!(images.map(|image| fs::read(image).unwrap()) == before);
}

/// What is not root's to keep must not lend the rights of another owner.
#[test]
fn set_id_bits_go_with_their_owner() {
    const NOBODY: u32 = 65534;
    let volume = Volume::new();
    let file = volume.at("lends");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
    put(&volume, "lends", "/");
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    if chown(&place, Some(NOBODY), Some(NOBODY)).is_err() {
        return skip("not root");
    }
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(&volume.at("."), 0o755);
    ["ssd", "disk"].iter().for_each(|half| open(&volume.at(half), 0o644));
    let mut command = bimetal();
    command.uid(NOBODY).gid(NOBODY).arg("get").arg("--ssd").arg(volume.at("ssd")).arg("--disk");
    let Ok(done) = command.arg(volume.at("disk")).arg("/lends").arg(&place).output() else {
        return skip("where the command is, nobody else can run it");
    };
    assert!(done.status.success(), "{}", err(&done));
    let found = fs::metadata(place.join("lends")).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o755));
    let done = both(&volume, "get", &["/lends", volume.at("kept").to_str().unwrap()]);
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(fs::metadata(volume.at("kept")).unwrap().mode() & 0o7777, 0o6755);
}

/// An access control list that gives user 1234 everything, as the kernel takes it.
fn list_for_another() -> Vec<u8> {
    let none = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, none), (2, 7, 1234), (4, 5, none), (16, 7, none), (32, 5, none)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn has_list(path: &Path) -> bool {
    rustix::fs::lgetxattr(path, "system.posix_acl_access", &mut [0_u8; 256][..]).is_ok()
}

#[test]
fn copies_have_no_access_control_list_of_the_directory_around_them() {
    let volume = Volume::new();
    let [lists, plain] = ["lists", "plain"].map(|name| volume.at(name));
    [&lists, &plain].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&lists, "system.posix_acl_default", &list_for_another(), flags).is_err() {
        return skip("the file system has no access control lists");
    }
    fs::create_dir(volume.at("tree")).unwrap();
    let inner = volume.at("tree/inner");
    fs::write(&inner, "x").unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o640)).unwrap();
    put(&volume, "tree", "/");
    put(&volume, "lists", "/");
    // Into a directory of the volume that has one.
    put(&volume, "tree", "/lists");
    for (source, target) in [("/tree", &lists), ("/lists/tree", &plain)] {
        let done = both(&volume, "get", &[source, target.to_str().unwrap()]);
        assert!(done.status.success(), "{}", err(&done));
        let copy = target.join("tree/inner");
        assert!(!has_list(&copy) && !has_list(&target.join("tree")), "{source}");
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o640, "{source}");
    }
    // Its own it keeps.
    let own = plain.join("own");
    fs::write(&own, "x").unwrap();
    rustix::fs::setxattr(&own, "system.posix_acl_access", &list_for_another(), flags).unwrap();
    put(&volume, "plain/own", "/own");
    assert!(both(&volume, "get", &["/own", lists.to_str().unwrap()]).status.success());
    assert!(has_list(&lists.join("own")));
}

#[test]
fn what_the_host_takes_no_more_of_leaves_nothing_behind() {
    let volume = Volume::new();
    fs::write(volume.at("large"), vec![7; 3 << 20]).unwrap();
    put(&volume, "large", "/");
    let place = volume.at("place");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("old"), "old").unwrap();
    for name in ["new", "old"] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 2048 && exec \"$@\"", "sh"]).arg(bimetal().get_program());
        command.arg("get").arg("--ssd").arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
        let done = command.arg("/large").arg(place.join(name)).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{:?}: {}", done.status, err(&done));
        assert!(err(&done).contains("File too large"), "{}", err(&done));
        assert_eq!(names(&place), ["old"]);
    }
    assert_eq!(fs::read_to_string(place.join("old")).unwrap(), "old");
}

#[test]
fn a_put_that_a_signal_ends_leaves_the_volume_in_order_and_nothing_half_in_it() {
    let volume = with_a_file();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        for target in ["/f", "/new"] {
            // However these tests were started: what is ignored, as by nohup, ends nothing.
            let mut command = Command::new("env");
            command.arg("--default-signal=INT,TERM,HUP").arg(bimetal().get_program());
            command.arg("put").arg("--ssd").arg(volume.at("ssd")).arg("--disk").arg(volume.at("disk"));
            command.args(["-", target]).stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // More than a pipe holds: it reads by now, and waits for the rest.
            // It has no end that could come before the signal.
            let mut input = child.stdin.take().unwrap();
            input.write_all(&vec![7; 3 << 20]).unwrap();
            let pid = child.id().to_string();
            assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
            let status = child.wait().unwrap();
            drop(input);
            assert_eq!(status.code(), Some(code), "{signal} {target}: {status}");
            let listed = out(&both(&volume, "ls", &["-a", "/"]));
            assert!(!listed.contains("new") && !listed.contains(".bimetal"), "{listed}");
            assert_eq!(out(&both(&volume, "cat", &["/f"])), "6 byte");
            assert!(volume.done(&["fsck", "-n"]).contains("clean"));
        }
    }
}

#[test]
fn a_link_that_leads_nowhere_is_put_into_a_directory_as_any_other() {
    let volume = Volume::new();
    symlink("nowhere", volume.at("dang")).unwrap();
    put(&volume, "dang", "/");
    let copy = volume.at("copy");
    assert!(both(&volume, "get", &["/dang", copy.to_str().unwrap()]).status.success());
    assert_eq!(fs::read_link(copy).unwrap(), Path::new("nowhere"));
}

#[test]
fn names_of_one_file_stay_names_of_one_also_as_several_sources() {
    let volume = Volume::new();
    let [a, b, place] = ["a", "b", "place"].map(|name| volume.at(name));
    fs::write(&a, "one").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let done = both(&volume, "put", &[a.to_str().unwrap(), b.to_str().unwrap(), "/"]);
    assert!(done.status.success(), "{}", err(&done));
    fs::create_dir(&place).unwrap();
    let done = both(&volume, "get", &["/a", "/b", place.to_str().unwrap()]);
    assert!(done.status.success(), "{}", err(&done));
    let [first, second] = ["a", "b"].map(|name| fs::metadata(place.join(name)).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
}

#[test]
fn nobody_waits_for_the_reader_of_a_fifo() {
    let volume = with_a_file();
    let [fifo, place] = ["fifo", "place"].map(|name| volume.at(name));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::create_dir(&place).unwrap();
    let bounded = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(bimetal().get_program()).args(args).stdin(Stdio::null()).output().unwrap()
    };
    let at = |name: &str| volume.at(name).to_str().unwrap().to_string();
    let (ssd, disk, fifo, place) = (at("ssd"), at("disk"), at("fifo"), at("place"));
    let mount = bounded(&["mount", "--ssd", &ssd, "--disk", &disk, "--log", &fifo, &place]);
    refused(&mount, &["--log", "is a FIFO"]);
    refused(&bounded(&["crash", "--save", &fifo, "--", "true"]), &["is a FIFO"]);
    let report = bounded(&["replay", "gen:zipf:requests=100", "--device", "none", "--csv", &fifo]);
    refused(&report, &["is a FIFO that nobody reads"]);
}

#[test]
fn get_takes_names_that_are_no_text_and_says_that_an_image_is_its_own() {
    use std::os::unix::ffi::OsStrExt;
    let volume = Volume::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    fs::write(volume.at(".").join(name), "x").unwrap();
    let with = |verb: &str| {
        let mut command = bimetal();
        command.arg(verb).arg("--ssd").arg(&ssd).arg("--disk").arg(&disk);
        command
    };
    assert!(with("put").arg(volume.at(".").join(name)).arg("/").status().unwrap().success());
    let place = volume.at("place");
    let done = with("get").arg(Path::new("/").join(name)).arg(&place).output().unwrap();
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(with("cat").arg(Path::new("/").join(name)).output().unwrap().stdout, b"x");
    refused(
        &with("get").arg(Path::new("/").join(name)).arg(&ssd).output().unwrap(),
        &["this command itself"],
    );
}
