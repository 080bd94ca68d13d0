//! The first hour with it: what stood in a new user's way, each as a test.

use crate::fsck::kill;
use crate::guard::{err, out};
use crate::mounts::{Mounted, bimetal, copy_program, need_fuse, once_free, skip};
use crate::nfhybrid::{Volume, settled, unmount};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn tool(name: &str, args: &[&str]) -> Option<Output> {
    Command::new(name).args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().ok()
}

#[test]
fn a_device_that_is_exported_is_unmounted_without_a_word() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (image, served) = (home.path().join("disk.img"), home.path().join("served"));
    fs::create_dir(&served).unwrap();
    let mut export = bimetal();
    export.args(["export", "--device", "hdd-7200", "--size", "64MiB"]).arg(&image).arg("--file").arg(&served);
    let export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !served.join("device").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let unmounted = once_free(Command::new("umount").arg(&served));
    assert!(unmounted.status.success(), "{}", err(&unmounted));
    let ended = export.wait_with_output().unwrap();
    assert!(ended.status.success() && err(&ended).is_empty(), "{}", err(&ended));
}

#[test]
fn lsattr_shows_the_flags_and_generation_that_the_disk_half_has() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1s");
    fs::write(mounted.path().join("f"), "x").unwrap();
    settled(&mounted);
    unmount(mounted);
    let disk = volume.disk.to_str().unwrap();
    // No dump, beside the extents that it has.
    let Some(set) = tool("debugfs", &["-w", "-R", "set_inode_field f flags 0x80040", disk]) else {
        return skip("no debugfs");
    };
    assert!(set.status.success(), "{}", err(&set));
    let stat = out(&tool("debugfs", &["-R", "stat f", disk]).unwrap());
    let generation = stat.split("Generation: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let generation = generation.unwrap_or_else(|| panic!("{stat}")).to_string();
    let mounted = volume.mount("lag=1s");
    let file = mounted.path().join("f");
    let shown = tool("lsattr", &["-v", file.to_str().unwrap()]).unwrap();
    assert!(shown.status.success(), "{}", err(&shown));
    let shown = out(&shown);
    let mut words = shown.split_whitespace();
    assert_eq!(words.next(), Some(&*generation), "{shown}");
    let flags = words.next().unwrap();
    assert!(flags.contains('d') && flags.contains('e') && !flags.contains('i'), "{shown}");
    // Others are not changed, and that is said.
    let change = tool("chattr", &["+A", file.to_str().unwrap()]).unwrap();
    assert!(!change.status.success() && err(&change).contains("not supported"), "{}", err(&change));
    let memfs = Mounted::memfs("size=32MiB");
    let none = tool("lsattr", &["-d", memfs.path().to_str().unwrap()]).unwrap();
    assert!(err(&none).contains("not supported"), "{}", err(&none));
    unmount(mounted);
}

/// What the image of the SSD half takes of its file system, bytes.
fn ssd_bytes(volume: &Volume) -> u64 {
    fs::metadata(&volume.ssd).unwrap().blocks() * 512
}

/// Makes a file to be kept and one that is removed again, both on the SSD half; what that took with both.
fn filled(mounted: &Mounted, volume: &Volume) -> u64 {
    let big = mounted.path().join("big");
    for (file, bytes) in [(&big, 24 << 20), (&mounted.path().join("kept"), 1 << 20)] {
        fs::write(file, vec![9; bytes]).unwrap();
        fs::File::open(file).unwrap().sync_all().unwrap();
    }
    settled(mounted);
    let full = ssd_bytes(volume);
    fs::remove_file(&big).unwrap();
    full
}

/// With the option the SSD half is told by and by; a file of it gives its blocks back.
#[test]
fn a_mount_that_discards_tells_the_ssd_half_what_it_need_not_keep() {
    need_fuse!();
    let volume = Volume::new(64, 256, &[]);
    let mounted = volume.mount("lag=1s,discard");
    let full = filled(&mounted, &volume);
    let told = (0..300).any(|number| {
        fs::write(mounted.path().join("fsynced"), number.to_string()).unwrap();
        fs::File::open(mounted.path().join("fsynced")).unwrap().sync_all().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        ssd_bytes(&volume) + (16 << 20) < full
    });
    if !told {
        // Where even this gives nothing back the host is to blame.
        let asked = tool("fstrim", &[mounted.path().to_str().unwrap()]);
        assert!(asked.is_none() || ssd_bytes(&volume) + (16 << 20) > full, "it was not told by itself");
        skip("holes: images lie on a file system that has none");
    }
    let last = fs::read(mounted.path().join("fsynced")).unwrap();
    kill(mounted);
    let mounted = volume.mount("lag=1s");
    assert!(fs::read(mounted.path().join("kept")).unwrap() == vec![9; 1 << 20]);
    assert_eq!(fs::read(mounted.path().join("fsynced")).unwrap(), last);
    unmount(mounted);
    let checked = volume.bimetal(&["fsck"], &["-n", "--deep"]);
    assert!(checked.status.success(), "{}{}", out(&checked), err(&checked));
}

/// fstrim tells the SSD half what it need not keep; a file of it gives its blocks back.
#[test]
fn fstrim_discards_what_is_free_on_the_ssd_half() {
    need_fuse!();
    let volume = Volume::new(64, 256, &[]);
    let mounted = volume.mount("lag=1s");
    let place = mounted.path().to_str().unwrap().to_string();
    let full = filled(&mounted, &volume);
    fs::write(mounted.path().join("fsynced"), "x").unwrap();
    fs::File::open(mounted.path().join("fsynced")).unwrap().sync_all().unwrap();
    settled(&mounted);
    let Some(done) = tool("fstrim", &["-v", &place]) else { return skip("no fstrim") };
    assert!(done.status.success() && out(&done).contains("bytes) trimmed"), "{}{}", out(&done), err(&done));
    // Whoever is root in a name space of users of its own is not the administrator of the machine.
    let other = tool("unshare", &["-U", "-r", "fstrim", &place]);
    assert!(other.is_none_or(|other| !other.status.success()));
    if ssd_bytes(&volume) + (16 << 20) > full {
        skip("holes: images lie on a file system that has none");
    }
    kill(mounted);
    let mounted = volume.mount("lag=1s");
    assert!(fs::read(mounted.path().join("kept")).unwrap() == vec![9; 1 << 20]);
    assert_eq!(fs::read_to_string(mounted.path().join("fsynced")).unwrap(), "x");
    unmount(mounted);
    let checked = volume.bimetal(&["fsck"], &["-n", "--deep"]);
    assert!(checked.status.success(), "{}{}", out(&checked), err(&checked));
    // What does not change changes nothing; what has no SSD, and others, have nothing to tell.
    let mounted = volume.mount("ro");
    let refused = |place: &Path| {
        let tried = tool("fstrim", &[place.to_str().unwrap()]).unwrap();
        assert!(!tried.status.success(), "{}", out(&tried));
        err(&tried)
    };
    assert!(refused(mounted.path()).contains("Read-only"));
    unmount(mounted);
    let alone = Mounted::new(&["--disk", volume.disk.to_str().unwrap(), "-o", "without-ssd"]);
    assert!(refused(alone.path()).contains("not supported"));
    unmount(alone);
    assert!(refused(Mounted::memfs("size=32MiB").path()).contains("not supported"));
}

/// An SSD half on a file system that makes no holes takes no discards: what a disk is exported as.
#[test]
fn fstrim_of_an_ssd_half_that_takes_no_discards_says_so() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (image, served, disk) =
        (home.path().join("image"), home.path().join("served"), home.path().join("disk"));
    fs::create_dir(&served).unwrap();
    let mut export = bimetal();
    export.args(["export", "--device", "hdd-7200", "--no-latency", "--size", "64MiB"]).arg(&image);
    let export = export.arg("--file").arg(&served).stdout(Stdio::piped()).spawn().unwrap();
    let ssd = served.join("device");
    while !ssd.exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let [ssd, disk] = [&ssd, &disk].map(|path| path.to_str().unwrap());
    let made = bimetal().args(["mkfs", "nfhybrid", "--ssd", ssd, "--disk", disk]).output().unwrap();
    assert!(made.status.success(), "{}", err(&made));
    let mounted = Mounted::new(&["--ssd", ssd, "--disk", disk, "-o", "discard"]);
    let tried = tool("fstrim", &["-v", mounted.path().to_str().unwrap()]);
    let status = bimetal().args(["status", "--json"]).arg(mounted.path()).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    unmount(mounted);
    assert!(once_free(Command::new("umount").arg(&served)).status.success());
    assert!(export.wait_with_output().unwrap().status.success());
    assert_eq!((&status["health"]["state"], &status["ssd_lost"]), (&"ok".into(), &serde_json::Value::Null));
    let Some(tried) = tried else { return skip("no fstrim") };
    assert!(
        !tried.status.success() && err(&tried).contains("not supported"),
        "{}{}",
        out(&tried),
        err(&tried)
    );
}

/// What chattr makes immutable or append-only is so, also after the server was killed, and can be undone.
#[test]
fn chattr_is_obeyed_and_outlives_a_crash() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let chattr = |change: &str, file: &Path| tool("chattr", &[change, file.to_str().unwrap()]).unwrap();
    let append = |file: &Path| fs::OpenOptions::new().append(true).open(file)?.write_all(b" new");
    let are_obeyed = |fixed: &Path, grows: &Path| {
        for change in [fs::write(fixed, "new"), append(fixed), fs::remove_file(fixed), fs::remove_file(grows)]
        {
            assert_eq!(change.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        }
        append(grows).unwrap();
        fs::File::open(grows).unwrap().sync_all().unwrap();
    };
    let mounted = volume.mount("lag=1h");
    let [fixed, grows] = ["fixed", "grows"].map(|name| mounted.path().join(name));
    for file in [&fixed, &grows] {
        fs::write(file, "old").unwrap();
    }
    assert!(chattr("+i", &fixed).status.success() && chattr("+ad", &grows).status.success());
    are_obeyed(&fixed, &grows);
    kill(mounted);
    let mounted = volume.mount("lag=1h");
    let [fixed, grows] = ["fixed", "grows"].map(|name| mounted.path().join(name));
    are_obeyed(&fixed, &grows);
    assert_eq!(fs::read_to_string(&grows).unwrap(), "old new new");
    let shown = out(&tool("lsattr", &[grows.to_str().unwrap()]).unwrap());
    let flags = shown.split_whitespace().next().unwrap();
    assert!(flags.contains('a') && flags.contains('d') && !flags.contains('i'), "{shown}");
    assert!(chattr("-i", &fixed).status.success() && chattr("-ad", &grows).status.success());
    fs::remove_file(&fixed).unwrap();
    fs::write(&grows, "new").unwrap();
    unmount(mounted);
    volume.e2fsck();
}

#[test]
fn a_remount_changes_what_the_kernel_keeps_and_says_what_stays() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let home = tempfile::tempdir().unwrap();
    let helper = home.path().join("mount.bimetal");
    symlink(env!("CARGO_BIN_EXE_bimetal"), &helper).unwrap();
    let remount = |place: &Path, options: &str| {
        // As mount(8) calls it.
        Command::new(&helper).arg(&volume.disk).arg(place).args(["-o", options]).output().unwrap()
    };
    let mounted = volume.mount("lag=1h");
    let file = mounted.path().join("f");
    let done = remount(mounted.path(), "remount,ro,ssd=/dev/x,x-systemd.automount");
    assert!(done.status.success() && err(&done).is_empty(), "{}", err(&done));
    let refused = fs::write(&file, "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    // mount(8) passes on what it finds of the mount.
    let found = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
    let done = remount(mounted.path(), found);
    assert!(done.status.success() && err(&done).is_empty(), "{}", err(&done));
    let done = remount(mounted.path(), "remount,rw,nosuid,lag=1s");
    assert!(done.status.success(), "{}", err(&done));
    assert!(err(&done).contains("lag=1s") && err(&done).contains("new mount"), "{}", err(&done));
    fs::write(&file, "x").unwrap();
    assert_eq!(mounted.status()["at_risk"]["limit_seconds"], 3600.0);
    // Where nothing changes it is no success, and an option that there is not changes nothing at all.
    let done = remount(mounted.path(), "remount,rw,lag=1s");
    assert_eq!(done.status.code(), Some(32), "{}", err(&done));
    for part in ["nothing was changed", "new mount", "lag=1s"] {
        assert!(err(&done).contains(part), "{part} in {}", err(&done));
    }
    let done = remount(mounted.path(), "remount,ro,nosuchopt");
    assert_eq!(done.status.code(), Some(32), "{}", err(&done));
    assert!(err(&done).contains("mount option nosuchopt: there is none"), "{}", err(&done));
    let mut sloppily = Command::new(&helper);
    sloppily.arg(&volume.disk).arg(mounted.path()).args(["-s", "-o", "remount,rw,nosuchopt"]);
    assert!(sloppily.output().unwrap().status.success());
    fs::write(&file, "x").unwrap();
    let shown = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = shown.lines().find(|line| line.contains(mounted.path().to_str().unwrap())).unwrap();
    assert!(line.contains("rw,nosuid"), "{line}");
    unmount(mounted);
    let mounted = volume.mount("ro");
    let refused = remount(mounted.path(), "remount,rw");
    assert!(!refused.status.success() && err(&refused).contains("mounted read-only"), "{}", err(&refused));
    // Whoever goes past the helper, and the kernel believes that it can write.
    let name = mounted.path().to_str().unwrap().to_string();
    if tool("mount", &["-i", "-o", "remount,rw", &name]).is_some_and(|done| done.status.success()) {
        let file = mounted.path().join("f");
        let is_refused =
            |done: std::io::Result<()>| assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EROFS));
        is_refused(fs::write(mounted.path().join("new"), "x"));
        is_refused(fs::write(&file, "other"));
        is_refused(fs::remove_file(&file));
        is_refused(fs::rename(&file, mounted.path().join("g")));
        is_refused(fs::create_dir(mounted.path().join("dir")));
        is_refused(fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)));
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }
    let elsewhere = remount(home.path(), "remount,ro");
    assert!(err(&elsewhere).contains("nothing of bimetal is mounted here"), "{}", err(&elsewhere));
    unmount(mounted);
}

#[test]
fn who_makes_a_volume_owns_its_root_and_can_write_to_it() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let as_nobody = |script: &str| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-euc", script];
        let done = Command::new("setpriv").args(user).current_dir(home.path()).output().unwrap();
        assert!(done.status.success(), "{script}: {}", err(&done));
    };
    // The command lies where only root may look.
    let program = at("bimetal");
    copy_program(Path::new(&program));
    as_nobody(&format!(
        "truncate -s 32M ssd.img; truncate -s 128M disk.img
         {program} mkfs nfhybrid --ssd ssd.img --disk disk.img > out
         {program} mkfs cmfs --nand nand.img --nvram nvram.img > out"
    ));
    for images in [["--ssd", "ssd.img", "--disk", "disk.img"], ["--nand", "nand.img", "--nvram", "nvram.img"]]
    {
        let images = [images[0], &at(images[1]), images[2], &at(images[3])];
        let mounted = Mounted::new(&images);
        let root = fs::metadata(mounted.path()).unwrap();
        assert_eq!(
            (std::os::unix::fs::MetadataExt::uid(&root), std::os::unix::fs::MetadataExt::gid(&root)),
            (65534, 65534)
        );
        fs::set_permissions(mounted.scratch(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        as_nobody(&format!("date > {0}/file; mkdir {0}/dir", mounted.path().display()));
        unmount(mounted);
    }
}

#[test]
fn a_time_that_ext4_cannot_keep_is_shown_as_it_is_kept() {
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1s");
    let shown = |mounted: &Mounted| {
        let dir = fs::read_dir(mounted.path()).unwrap().flatten();
        let mut times: Vec<(String, i64)> = dir
            .filter(|entry| entry.file_name() != "lost+found")
            .map(|entry| {
                let of = fs::metadata(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), std::os::unix::fs::MetadataExt::mtime(&of))
            })
            .collect();
        times.sort();
        times
    };
    for (name, time) in [("old", "1890-01-01 UTC"), ("new", "2500-01-01 UTC"), ("now", "2026-01-01 UTC")] {
        let touched =
            Command::new("touch").args(["-d", time]).arg(mounted.path().join(name)).status().unwrap();
        assert!(touched.success());
    }
    let before = shown(&mounted);
    assert!(
        before[2] == ("old".into(), -(1 << 31)) && before[1] == ("now".into(), 1_767_225_600),
        "{before:?}"
    );
    assert!(before[0].1 < 15_032_385_536 && before[0].1 > 15_000_000_000, "{before:?}");
    unmount(mounted);
    let mounted = volume.mount("lag=1s");
    assert_eq!(shown(&mounted), before);
    unmount(mounted);
}

#[test]
fn what_fuse_cannot_do_is_refused_and_leaves_the_file_as_it_was() {
    use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
    need_fuse!();
    let volume = Volume::new(32, 256, &[]);
    let mounted = volume.mount("lag=1h");
    let path = mounted.path().join("file");
    let contents: Vec<u8> = (0..65_536_u32).map(|byte| (byte / 4096) as u8).collect();
    fs::write(&path, &contents).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        let refused = rustix::fs::fallocate(&file, flags, 4096, 4096);
        assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP), "{flags:?}");
    }
    let unnamed = rustix::fs::open(mounted.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR);
    assert_eq!(unnamed.err(), Some(rustix::io::Errno::OPNOTSUPP));
    let found = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).unwrap();
    assert_eq!(found.stx_mask & StatxFlags::BTIME.bits(), 0, "a birth time that nobody asked the server for");
    if let Some(done) = tool("filefrag", &[path.to_str().unwrap()]) {
        assert!(!done.status.success() || out(&done).contains(" 0 extents"), "{}", out(&done));
    }
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), contents);
}

#[test]
fn an_ext4_with_what_is_not_driven_is_adopted_after_the_line_that_the_refusal_says() {
    let home = tempfile::tempdir().unwrap();
    let (ssd, disk) = (home.path().join("ssd"), home.path().join("disk"));
    for feature in ["fast_commit", "quota", "casefold"] {
        for (half, bytes) in [(&ssd, 32 << 20), (&disk, 128 << 20)] {
            let _ = fs::remove_file(half);
            fs::File::create(half).unwrap().set_len(bytes).unwrap();
        }
        let disk_name = disk.to_str().unwrap();
        let made = tool("mke2fs", &["-q", "-t", "ext4", "-O", feature, disk_name]).expect("mke2fs(8)");
        assert!(made.status.success(), "{}", err(&made));
        let before = fs::read(&disk).unwrap();
        let adopt =
            || bimetal().args(["adopt", "--ssd"]).arg(&ssd).arg("--disk").arg(&disk).output().unwrap();
        let refused = adopt();
        assert_eq!(refused.status.code(), Some(1), "{feature}");
        let line = format!("tune2fs -O ^{feature}");
        assert!(err(&refused).contains(&line), "{feature}: {}", err(&refused));
        assert!(fs::read(&disk).unwrap() == before, "{feature}: what was refused was changed");
        let taken = tool("tune2fs", &["-O", &format!("^{feature}"), disk_name]).expect("tune2fs(8)");
        assert!(taken.status.success(), "{}", err(&taken));
        let adopted = adopt();
        assert!(adopted.status.success(), "{feature}: {}", err(&adopted));
    }
}

#[test]
fn a_recording_into_a_directory_that_is_not_there_names_it() {
    need_fuse!();
    let mounted = Mounted::memfs("size=8MiB");
    let absent = mounted.scratch().join("absent");
    let mut record = bimetal();
    record.arg("record").arg(mounted.path()).arg("-o").arg(absent.join("x.csv")).args(["--", "true"]);
    let refused = record.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = err(&refused);
    assert!(said.contains(&format!("{}: No such file or directory", absent.display())), "{said}");
}

#[test]
fn an_ext4_that_was_not_unmounted_is_read_and_adopted_as_its_journal_says() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for (half, bytes) in [("ssd", 32 << 20), ("disk", 128 << 20)] {
        fs::File::create(at(half)).unwrap().set_len(bytes).unwrap();
    }
    fs::create_dir(at("mnt")).unwrap();
    let [disk, cut, mnt] = ["disk", "cut", "mnt"].map(|name| at(name).to_str().unwrap().to_string());
    assert!(tool("mke2fs", &["-q", "-t", "ext4", &disk]).expect("mke2fs(8)").status.success());
    if !tool("mount", &["-o", "loop", &disk, &mnt]).is_some_and(|done| done.status.success()) {
        return skip("no loop devices");
    }
    fs::write(at("mnt").join("file"), "contents").unwrap();
    // What a power cut leaves after a sync.
    let copied = tool("sync", &["-f", &mnt])
        .zip(tool("cp", &[&disk, &cut]))
        .is_some_and(|(_, done)| done.status.success());
    let ended = tool("umount", &[&mnt]).unwrap();
    assert!(copied && ended.status.success(), "{}", err(&ended));
    let features = out(&tool("debugfs", &["-R", "features", &cut]).expect("debugfs(8)"));
    assert!(features.contains("needs_recovery"), "{features}");
    let before = fs::read(&cut).unwrap();
    let read = || out(&bimetal().args(["cat", "--disk", &cut, "/file"]).output().unwrap());
    assert_eq!(read(), "contents");
    assert!(fs::read(&cut).unwrap() == before, "a look changed it");
    let adopted = bimetal().args(["adopt", "--disk", &cut, "--ssd"]).arg(at("ssd")).output().unwrap();
    assert!(adopted.status.success(), "{}", err(&adopted));
    assert_eq!(read(), "contents");
}

#[test]
fn a_cmfs_and_an_osd_stand_in_fstab() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let helper = |verb: &str| {
        let link = at(&format!("{verb}.bimetal"));
        let _ = symlink(env!("CARGO_BIN_EXE_bimetal"), &link);
        Command::new(link)
    };
    let place = at("mnt");
    fs::create_dir(&place).unwrap();
    let part = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices/slc-4k.toml");
    let part = part.to_str().unwrap();
    for (kind, options, flags) in [
        ("cmfs", format!("rw,nofail,nvram={},device={part}", at("v").display()), vec!["--device", part]),
        ("osd", "rw,nosuid".to_string(), vec![]),
    ] {
        let image = at(kind);
        let mut made = bimetal();
        made.args(["mkfs", kind, "--size", "32MiB", "--nand"]).arg(&image).args(&flags);
        if kind == "cmfs" {
            made.arg("--nvram").arg(at("v"));
        }
        let made = made.output().unwrap();
        assert!(made.status.success(), "{}", err(&made));
        // As mount(8) and fsck(8) call them.
        let mounted = helper("mount").arg(&image).arg(&place).args(["-o", &options]).output().unwrap();
        assert!(mounted.status.success(), "{kind}: {}", err(&mounted));
        fs::write(place.join("f"), kind).unwrap();
        let shown = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            shown.contains(&format!(" fuse.bimetal {} ", image.display())),
            "its source is that of the line"
        );
        let ended = once_free(helper("umount").arg(&place));
        assert!(ended.status.success(), "{kind}: {}", err(&ended));
        if kind == "osd" {
            let checked = helper("fsck").arg("-a").arg(&image).output().unwrap();
            assert_eq!(checked.status.code(), Some(0), "{}", err(&checked));
        }
        let mut read = bimetal();
        read.args(["cat", "--nand"]).arg(&image).args(&flags);
        if kind == "cmfs" {
            read.arg("--nvram").arg(at("v"));
        }
        assert_eq!(out(&read.arg("/f").output().unwrap()), kind);
    }
}

#[test]
fn a_mount_option_that_is_refused_is_refused_with_its_cause() {
    let volume = Volume::new(32, 256, &[]);
    let home = tempfile::tempdir().unwrap();
    let mount = |option: &str| {
        let mut mount = bimetal();
        mount.args(["mount", "-o", option, "--ssd"]).arg(&volume.ssd).arg("--disk").arg(&volume.disk);
        let done = mount.arg(home.path()).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{option}: {}", err(&done));
        err(&done)
    };
    for (option, part) in [
        ("prealloc", "needs a value: prealloc=SIZE"),
        ("direct=1", "takes no value"),
        ("discard=yes", "takes no value"),
        ("lga=1s", "did you mean lag?"),
        ("nosuchthing", "there is none; there are ro, rw,"),
    ] {
        let said = mount(option);
        assert!(said.contains(part), "{option}: {said}");
    }
    for option in [
        "errors=remount-ro",
        "data=ordered",
        "commit=60",
        "barrier",
        "nobarrier",
        "acl",
        "user_xattr",
        "journal_checksum",
    ] {
        let said = mount(option);
        assert!(said.contains("option of ext4's") && said.contains("leave it out"), "{option}: {said}");
    }
}

#[test]
fn an_export_of_no_whole_sectors_is_refused_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (image, served) = (home.path().join("ex.img"), home.path().join("sv"));
    fs::create_dir(&served).unwrap();
    let export = |more: &[&str]| {
        let mut export = Command::new("timeout");
        export.args(["20", env!("CARGO_BIN_EXE_bimetal"), "export", "--profile", "hdd-7200"]).args(more);
        export.arg(&image).arg("--file").arg(&served).output().unwrap()
    };
    for size in ["0", "1", "64", "513"] {
        let done = export(&["--size", size]);
        assert_eq!(done.status.code(), Some(1), "{size}: {}", err(&done));
        assert!(err(&done).contains("a multiple of 512 bytes"), "{size}: {}", err(&done));
        assert!(!image.exists(), "{size}");
    }
    fs::write(&image, [0; 64]).unwrap();
    let done = export(&[]);
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    assert!(err(&done).contains("64 bytes are too few"), "{}", err(&done));
}
