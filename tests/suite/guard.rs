//! Commands do not touch what is in use, and do not destroy what they were not told to.

use crate::mounts::{Mounted, bimetal, copy_program, need_fuse, once_free, skip};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;

/// A volume in two image files.
pub struct Volume {
    home: TempDir,
}

impl Volume {
    /// Two empty files.
    pub fn images() -> Volume {
        let home = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in [("ssd", 32 << 20), ("disk", 128 << 20)] {
            File::create(home.path().join(name)).unwrap().set_len(bytes).unwrap();
        }
        Volume { home }
    }

    /// Made, and not mounted.
    pub fn new() -> Volume {
        let volume = Volume::images();
        volume.done(&["mkfs", "nfhybrid"]);
        volume
    }

    /// A place beside the halves.
    pub fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// What SSD and disk half hold.
    pub fn bytes(&self) -> [Vec<u8>; 2] {
        ["ssd", "disk"].map(|name| fs::read(self.at(name)).unwrap())
    }

    /// Mounts it.
    pub fn mount(&self, more: &[&str]) -> Mounted {
        let (ssd, disk) = (self.at("ssd"), self.at("disk"));
        let halves = ["--ssd", ssd.to_str().unwrap(), "--disk", disk.to_str().unwrap()];
        Mounted::new(&[&halves[..], more].concat())
    }

    /// Runs a verb on both halves.
    pub fn run(&self, verb: &[&str]) -> Output {
        run(verb, &[("--ssd", &self.at("ssd")), ("--disk", &self.at("disk"))], &[])
    }

    pub fn done(&self, verb: &[&str]) -> String {
        let done = self.run(verb);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
        out(&done)
    }
}

/// Runs a verb on named places.
pub fn run(verb: &[&str], places: &[(&str, &Path)], rest: &[&str]) -> Output {
    let mut command = bimetal();
    for name in ["BIMETAL_SSD", "BIMETAL_DISK", "BIMETAL_NAND", "BIMETAL_NVRAM"] {
        command.env_remove(name);
    }
    command.args(verb);
    for (name, path) in places {
        command.arg(name).arg(path);
    }
    command.args(rest).stdin(Stdio::null()).output().expect("the command runs")
}

/// What a command printed.
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it complained of.
pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command failed, and said all of `parts`.
pub fn refused(output: &Output, parts: &[&str]) {
    assert!(!output.status.success(), "it was done: {}", out(output));
    for part in parts {
        assert!(err(output).contains(part), "'{part}' in: {}", err(output));
    }
}

/// A loop device over a file; detached at the end.
pub struct Loop(pub String);

impl Loop {
    pub fn over(file: &Path, more: &[&str]) -> Option<Loop> {
        let made = Command::new("losetup").args(["-f", "--show"]).args(more).arg(file).output().ok()?;
        let name = out(&made).trim().to_string();
        made.status.success().then_some(Loop(name))
    }

    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A mount by the kernel; unmounted at the end.
struct Kernel(PathBuf);

impl Kernel {
    fn mount(device: &Path, at: PathBuf, options: &str) -> Option<Kernel> {
        fs::create_dir_all(&at).unwrap();
        let done = Command::new("mount").args(["-o", options]).arg(device).arg(&at).output().ok()?;
        done.status.success().then_some(Kernel(at))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = once_free(Command::new("umount").arg(&self.0));
    }
}

#[test]
fn nothing_that_writes_or_checks_touches_a_mounted_volume_not_even_by_force() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::write(mounted.path().join("f"), b"precious").unwrap();
    let verbs: &[&[&str]] = &[
        &["fsck"],
        &["fsck", "-n"],
        &["mkfs", "nfhybrid"],
        &["mkfs", "nfhybrid", "--force"],
        &["adopt", "--force"],
    ];
    for verb in verbs {
        let done = volume.run(verb);
        refused(&done, &["in use", "bimetal umount"]);
    }
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    refused(&run(&["put"], both, &["/etc/hostname", "/"]), &["in use"]);
    refused(&run(&["mount", "-o", "ro"], both, &["/mnt"]), &["in use"]);
    refused(&run(&["mount"], &[("--disk", &disk)], &["/mnt"]), &["in use"]);
    for half in [&ssd, &disk] {
        refused(&run(&["mkfs", "osd", "--force"], &[("--nand", half)], &[]), &["in use"]);
        refused(&run(&["mkfs", "cmfs", "--force"], &[("--nand", half)], &[]), &["in use"]);
        let served = run(&["export"], &[], &[half.to_str().unwrap(), "--nbd", "/tmp/never"]);
        refused(&served, &["in use"]);
    }
    assert_eq!(fs::read(mounted.path().join("f")).unwrap(), b"precious");
    assert!(mounted.unmount().status.success());
    assert!(volume.run(&["fsck"]).status.success());
    assert!(out(&run(&["cat"], both, &["/f"])).contains("precious"));
}

#[test]
fn two_read_only_mounts_live_together_and_keep_writers_away() {
    need_fuse!();
    let volume = Volume::new();
    let (first, second) = (volume.mount(&["-o", "ro"]), volume.mount(&["-o", "ro"]));
    assert!(fs::read_dir(first.path()).is_ok() && fs::read_dir(second.path()).is_ok());
    refused(&volume.run(&["adopt", "--force"]), &["in use"]);
    drop((first, second));
    volume.done(&["fsck"]);
}

#[test]
fn what_the_kernel_has_mounted_is_refused_with_its_mount_point() {
    need_fuse!();
    let volume = Volume::new();
    let Some(device) = Loop::over(&volume.at("disk"), &[]) else { return skip("no loop devices") };
    let at = volume.at("kernel");
    let Some(kernel) = Kernel::mount(device.path(), at.clone(), "rw") else { return skip("no mount") };
    let ssd = volume.at("ssd");
    let names: [PathBuf; 2] = [device.path().into(), volume.at("disk")];
    for disk in &names {
        let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", disk)];
        let mounted_at = at.to_str().unwrap();
        for verb in [&["mkfs", "nfhybrid", "--force"][..], &["adopt", "--force"], &["fsck"], &["fsck", "-n"]]
        {
            refused(&run(verb, both, &[]), &["mounted on", mounted_at, "umount"]);
        }
        refused(&run(&["mount", "-o", "ro"], both, &["/mnt"]), &["mounted on"]);
        // The other way round: it is the SSD half that is mounted.
        let swapped: &[(&str, &Path)] = &[("--ssd", disk), ("--disk", &ssd)];
        refused(&run(&["mkfs", "nfhybrid", "--force"], swapped, &[]), &["mounted on"]);
    }
    drop(kernel);
    // A file below a loop device is not written past it.
    refused(&volume.run(&["mkfs", "nfhybrid", "--force"]), &["losetup -d"]);
}

/// The name of a loop device's file may lead elsewhere by now, or be no text; the device knows its file.
#[test]
fn a_mounted_image_is_known_whatever_its_name_leads_to_by_now() {
    need_fuse!();
    let volume = Volume::new();
    let (ssd, abc) = (volume.at("ssd"), volume.at("abc"));
    fs::write(&abc, "abc").unwrap();
    let put = |disk: &Path| {
        let abc = abc.to_str().unwrap();
        run(&["put"], &[("--ssd", &ssd), ("--disk", disk)], &[abc, "/x"])
    };
    let names: [&[u8]; 3] = [b"n\xff.img", b"n.img\n", b"plain.img"];
    let mut image = volume.at("disk");
    for name in names {
        let now = volume.at("").join(OsStr::from_bytes(name));
        fs::rename(&image, &now).unwrap();
        image = now;
        let Some(device) = Loop::over(&image, &[]) else { return skip("no loop devices") };
        let Some(kernel) = Kernel::mount(device.path(), volume.at("kernel"), "rw") else {
            return skip("no mount");
        };
        refused(&put(&image), &["mounted on", "kernel", &device.0]);
        let [ssd, disk] = [&ssd, &image];
        let both: &[(&str, &Path)] = &[("--ssd", ssd), ("--disk", disk)];
        for verb in [&["fsck"][..], &["fsck", "-n"], &["adopt", "--force"], &["mount", "-o", "ro"]] {
            let place = if verb[0] == "mount" { &["/mnt"][..] } else { &[] };
            refused(&run(verb, both, place), &["mounted on", "kernel"]);
        }
        // Another name of it, where the one that the device was told is gone, and where it is another file's.
        let other = volume.at("other");
        fs::hard_link(&image, &other).unwrap();
        fs::remove_file(&image).unwrap();
        refused(&put(&other), &["mounted on", "kernel"]);
        fs::copy(ssd, &image).unwrap();
        refused(&put(&other), &["mounted on", "kernel"]);
        fs::rename(&other, &image).unwrap();
        drop(kernel);
    }
    // Nothing was written past the kernel.
    let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().unwrap();
    assert!(checked.status.success(), "{}", out(&checked));
    refused(&run(&["cat"], &[("--ssd", &ssd), ("--disk", &image)], &["/x"]), &["/x"]);
}

#[test]
fn a_loop_device_over_a_loop_device_is_followed_down() {
    need_fuse!();
    let volume = Volume::new();
    let ssd = volume.at("ssd");
    let Some(lower) = Loop::over(&volume.at("disk"), &[]) else { return skip("no loop devices") };
    let Some(upper) = Loop::over(lower.path(), &[]) else { return skip("no loop devices") };
    let Some(kernel) = Kernel::mount(upper.path(), volume.at("kernel"), "rw") else {
        return skip("no mount");
    };
    let check = |disk: &Path| run(&["fsck"], &[("--ssd", &ssd), ("--disk", disk)], &[]);
    for disk in [lower.path(), upper.path(), &volume.at("disk")] {
        refused(&check(disk), &["mounted on", "kernel"]);
    }
    drop(kernel);
    refused(&check(lower.path()), &[&upper.0]);
    let both: &[(&str, &Path)] = &[("--ssd", lower.path()), ("--disk", upper.path())];
    refused(&run(&["mkfs", "nfhybrid", "--force"], both, &[]), &["are the same"]);
    // What it lies on is no user of it.
    let checked = check(upper.path());
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{}", err(&checked));
}

#[test]
fn a_mount_point_whose_name_is_no_text_hides_no_mount() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (odd, plain) = (home.path().join(OsStr::from_bytes(b"p\xff\n")), home.path().join("plain"));
    for place in [&odd, &plain] {
        fs::create_dir(place).unwrap();
        let mounted = bimetal().args(["mount", "-t", "memfs"]).arg(place).output().unwrap();
        assert!(mounted.status.success(), "{}", err(&mounted));
    }
    let ended = [&plain, &odd].map(|place| once_free(bimetal().arg("umount").arg(place)));
    for (place, ended) in [&plain, &odd].into_iter().zip(ended) {
        let _ = Command::new("umount").args(["-q", "-l"]).arg(place).status();
        assert!(ended.status.success(), "{}: {}", place.display(), err(&ended));
    }
}

#[test]
fn mkfs_makes_a_volume_on_block_devices_and_fsck_checks_it_there() {
    need_fuse!();
    let volume = Volume::images();
    let (Some(ssd), Some(disk)) = (Loop::over(&volume.at("ssd"), &[]), Loop::over(&volume.at("disk"), &[]))
    else {
        return skip("no loop devices");
    };
    let both: &[(&str, &Path)] = &[("--ssd", ssd.path()), ("--disk", disk.path())];
    for verb in [&["mkfs", "nfhybrid"][..], &["fsck"], &["fsck", "-n"]] {
        let done = run(verb, both, &[]);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
    }
    let mounted = Mounted::new(&["--ssd", &ssd.0, "--disk", &disk.0]);
    refused(&run(&["fsck"], both, &[]), &["in use"]);
    // The files below the devices are in use as well.
    refused(&volume.run(&["fsck", "-n"]), &["in use"]);
    drop(mounted);
}

#[test]
fn devices_with_sectors_of_4096_bytes_are_halves_like_others() {
    need_fuse!();
    let volume = Volume::images();
    let wide = ["--sector-size", "4096"];
    let (Some(ssd), Some(disk)) =
        (Loop::over(&volume.at("ssd"), &wide), Loop::over(&volume.at("disk"), &wide))
    else {
        return skip("no loop devices with such sectors");
    };
    let both: &[(&str, &Path)] = &[("--ssd", ssd.path()), ("--disk", disk.path())];
    let done = |verb: &[&str]| {
        let done = run(verb, both, &[]);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
    };
    done(&["mkfs", "nfhybrid"]);
    let mounted = Mounted::new(&["--ssd", &ssd.0, "--disk", &disk.0]);
    fs::write(mounted.path().join("f"), [7; 10_000]).unwrap();
    File::open(mounted.path().join("f")).unwrap().sync_all().unwrap();
    crate::fsck::kill(mounted);
    done(&["fsck", "-y"]);
    done(&["fsck", "-n"]);
    let checked = Command::new("/usr/sbin/e2fsck").args(["-fn", &disk.0]).output();
    assert!(checked.is_ok_and(|done| done.status.success()));
    let mounted = Mounted::new(&["--ssd", &ssd.0, "--disk", &disk.0]);
    assert!(fs::read(mounted.path().join("f")).unwrap() == [7; 10_000]);
}

/// The flags with which a server has `path` open, each time it has.
fn flags_of(server: u64, path: &Path) -> Vec<i32> {
    let of = |entry: fs::DirEntry| {
        let info =
            fs::read_to_string(format!("/proc/{server}/fdinfo/{}", entry.file_name().to_str()?)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_string();
        (fs::read_link(entry.path()).ok()? == path).then_some(i32::from_str_radix(&flags, 8).ok()?)
    };
    fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten().filter_map(of).collect()
}

/// An SSD that is a block device is used round the page cache of the device, in which the kernel leaves what others read while
/// something was written: nobody who reads the device changes what a mount or a recovery finds on it.
#[test]
fn an_ssd_that_is_a_block_device_is_used_round_its_page_cache_whoever_reads_it() {
    need_fuse!();
    let volume = Volume::images();
    let (Some(ssd), disk) = (Loop::over(&volume.at("ssd"), &[]), volume.at("disk")) else {
        return skip("no loop devices");
    };
    let both: &[(&str, &Path)] = &[("--ssd", ssd.path()), ("--disk", &disk)];
    let done = |verb: &[&str]| {
        let done = run(verb, both, &[]);
        assert!(done.status.success(), "{verb:?}: {}", err(&done));
    };
    done(&["mkfs", "nfhybrid"]);
    let mount = |options| Mounted::new(&["--ssd", &ssd.0, "--disk", disk.to_str().unwrap(), "-o", options]);
    let stop = AtomicBool::new(false);
    let backup = File::open(ssd.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 20];
            for at in (0..32).cycle() {
                if stop.load(Relaxed) {
                    return;
                }
                backup.read_at(&mut buffer, at << 20).unwrap();
            }
        });
        // Whatever is found, the other ends.
        let found = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for (round, options) in [(0, "lag=20s"), (1, "direct"), (2, "lag=500ms"), (3, "rw")] {
                let mounted = mount(options);
                let server = mounted.status()["front"]["pid"].as_u64().unwrap();
                let flags = flags_of(server, ssd.path());
                let open = |way| {
                    flags.iter().filter(|flags| *flags & (libc::O_ACCMODE | libc::O_DIRECT) == way).count()
                };
                // What keeps others away neither reads nor writes.
                let ways = [libc::O_RDWR | libc::O_DIRECT, libc::O_RDONLY].map(open);
                assert_eq!(ways, [1, 1], "{options}: {flags:?}");
                let contents =
                    |n: usize| vec![(n + round * 16) as u8; [3_000, 72 << 10, 96 << 10, 300_000][n % 4]];
                for n in 0..12 {
                    let mut file = File::create(mounted.path().join(n.to_string())).unwrap();
                    file.write_all(&contents(n)).unwrap();
                    file.sync_all().unwrap();
                }
                assert_eq!(mounted.status()["health"]["state"], "ok", "{options}");
                crate::fsck::kill(mounted);
                done(&["fsck", "-n"]);
                let mounted = mount("rw");
                for n in 0..12 {
                    let found = fs::read(mounted.path().join(n.to_string())).unwrap();
                    assert!(found == contents(n), "{options}: {n}");
                }
                drop(mounted);
                done(&["fsck", "-n", "--deep"]);
            }
        }));
        stop.store(true, Relaxed);
        found.unwrap_or_else(|found| std::panic::resume_unwind(found));
    });
}

#[test]
fn no_output_in_a_directory_goes_through_a_link_to_a_mounted_half() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    let halves = ["ssd", "disk"].map(|half| volume.at(half));
    let sizes = || halves.each_ref().map(|half| fs::metadata(half).unwrap().len());
    let before = sizes();
    let pages = volume.at("pages");
    fs::create_dir(&pages).unwrap();
    let page = pages.join("bimetal-probe.1");
    std::os::unix::fs::symlink(&halves[1], &page).unwrap();
    refused(&bimetal().arg("man").arg(&pages).output().unwrap(), &["disk", "in use"]);
    fs::remove_file(&page).unwrap();
    fs::hard_link(&halves[0], &page).unwrap();
    refused(&bimetal().arg("man").arg(&pages).output().unwrap(), &["bimetal-probe.1", "in use"]);
    let results = volume.at("results");
    fs::create_dir(&results).unwrap();
    std::os::unix::fs::symlink(&halves[1], results.join("cmfs-fig9-1-short.json")).unwrap();
    let reproduced =
        bimetal().args(["reproduce", "cmfs-fig9", "--seed", "1", "--out"]).arg(&results).output().unwrap();
    refused(&reproduced, &["disk is in use"]);
    let (stack, rows) = (volume.at("stack.toml"), volume.at("rows"));
    fs::write(&stack, "[trace]\nfile = 'gen:zipf:requests=10'\n[cache]\npolicy = 'lru'\nsize = '1MiB'\n")
        .unwrap();
    // The folder is taken for a grid's if that has begun.
    let grid = || {
        let mut grid = bimetal();
        grid.arg("replay").arg("--stack").arg(&stack).args(["--set", "seed=1,2", "--out"]).arg(&rows);
        grid.output().unwrap()
    };
    let first = grid();
    assert!(first.status.success(), "{}", err(&first));
    let _ = fs::remove_dir_all(rows.join("runs"));
    for rest in fs::read_dir(&rows).unwrap().flatten() {
        if ["times.jsonl", "rows.jsonl", "rows.parquet"].iter().any(|name| rest.file_name() == *name) {
            fs::remove_file(rest.path()).unwrap();
        }
    }
    std::os::unix::fs::symlink(&halves[1], rows.join("times.jsonl")).unwrap();
    refused(&grid(), &["in use"]);
    assert_eq!(sizes(), before, "a half was written over");
    drop(mounted);
    volume.done(&["fsck", "-n"]);
}

#[test]
fn one_thing_under_two_names_is_refused_before_anything_is_written() {
    need_fuse!();
    let volume = Volume::images();
    let (disk, hard) = (volume.at("disk"), volume.at("hard"));
    fs::hard_link(&disk, &hard).unwrap();
    let mut names = vec![disk.clone(), hard.clone()];
    let whole = Loop::over(&disk, &[]);
    names.extend(whole.iter().map(|device| device.path().to_path_buf()));
    for ssd in &names {
        let both: &[(&str, &Path)] = &[("--ssd", ssd), ("--disk", &hard)];
        refused(&run(&["mkfs", "nfhybrid", "--force"], both, &[]), &["--ssd", "--disk", "are the same"]);
        let parts: &[(&str, &Path)] = &[("--nand", ssd), ("--nvram", &hard)];
        refused(&run(&["mkfs", "cmfs", "--force"], parts, &[]), &["--nand", "--nvram", "are the same"]);
    }
    drop(whole);
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 0), "something was written");
    // Two halves of one file are two things; half of it and all of it are not.
    let half = ["--sizelimit", "67108864"];
    let (Some(front), Some(back)) =
        (Loop::over(&disk, &half), Loop::over(&disk, &["-o", "67108864", "--sizelimit", "67108864"]))
    else {
        return skip("no loop devices");
    };
    let Some(all) = Loop::over(&hard, &[]) else { return skip("no loop devices") };
    let over: &[(&str, &Path)] = &[("--ssd", front.path()), ("--disk", all.path())];
    refused(&run(&["mkfs", "nfhybrid", "--force"], over, &[]), &["lie over each other"]);
    drop(all);
    let apart: &[(&str, &Path)] = &[("--ssd", front.path()), ("--disk", back.path())];
    let made = run(&["mkfs", "nfhybrid"], apart, &[]);
    assert!(made.status.success(), "{}", err(&made));
}

#[test]
fn mkfs_names_what_it_would_destroy_and_leaves_it_alone() {
    let volume = Volume::images();
    let signatures: &[(&str, u64, &[u8])] = &[
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("xfs", 0, b"XFSB"),
        ("LUKS", 0, b"LUKS\xba\xbe\0\x01"),
        ("LVM2", 512, b"LABELONE"),
        ("data", 700_000, b"letters"),
    ];
    for (name, at, magic) in signatures {
        for half in ["ssd", "disk"] {
            let volume = Volume::images();
            let file = File::options().write(true).open(volume.at(half)).unwrap();
            file.write_all_at(magic, *at).unwrap();
            let before = volume.bytes();
            refused(&volume.run(&["mkfs", "nfhybrid"]), &[name, "--force"]);
            assert!(volume.bytes() == before, "{name} on the {half} was touched");
        }
    }
    // Those of the parts of raw flash, too.
    let letter = volume.at("letter");
    fs::write(&letter, b"dear all").unwrap();
    let nand = volume.at("nand");
    let parts: &[(&str, &Path)] = &[("--nand", &nand), ("--nvram", &letter)];
    refused(&run(&["mkfs", "cmfs", "--size", "16MiB"], parts, &[]), &["letter", "data", "--force"]);
    for kind in ["cmfs", "osd"] {
        refused(&run(&["mkfs", kind], &[("--nand", &letter)], &[]), &["letter", "--force"]);
    }
    assert_eq!(fs::read(&letter).unwrap(), b"dear all");
    assert!(!nand.exists(), "what a refused command made is gone");
}

#[test]
fn what_mkfs_refuses_makes_no_image_and_with_force_destroys_none() {
    let volume = Volume::images();
    let (nand, nvram) = (volume.at("nand"), volume.at("nvram"));
    let places: &[(&str, &Path)] = &[("--nand", &nand), ("--nvram", &nvram)];
    let wrong: &[(&str, &[&str], &str)] = &[
        ("osd", &["--device", "slc-2q"], "slc-2k"),
        ("osd", &["--placement", "lifetimes"], "lifetime"),
        ("osd", &["--segment", "0"], "segment"),
        ("osd", &["--segment", "64", "--size", "16MiB"], "segments"),
        ("cmfs", &["--device", "slc-2q"], "slc-2k"),
        ("cmfs", &["--size", "10KiB"], "blocks"),
        ("cmfs", &["--size", "16MiB", "--nvram-size", "16"], "--nvram: 16 B are too little"),
    ];
    for (kind, options, why) in wrong {
        let places = if *kind == "osd" { &places[..1] } else { places };
        refused(&run(&["mkfs", kind], places, options), &[why]);
        assert!(!nand.exists() && !nvram.exists(), "{kind} {options:?} left a file");
    }
    for (kind, good) in [("osd", &["--size", "16MiB"][..]), ("cmfs", &["--size", "16MiB"])] {
        let places = if kind == "osd" { &places[..1] } else { places };
        let made = run(&["mkfs", kind, "--force"], places, good);
        assert!(made.status.success(), "{}", err(&made));
        let before = fs::read(&nand).unwrap();
        for (_, options, why) in wrong.iter().filter(|(of, ..)| *of == kind) {
            refused(&run(&["mkfs", kind, "--force"], places, options), &[why]);
            assert!(fs::read(&nand).unwrap() == before, "{kind} {options:?} changed the image");
        }
    }
}

#[test]
fn an_export_takes_no_file_away_and_only_a_stale_socket_of_its_own() {
    let volume = Volume::images();
    let image = volume.at("disk");
    let serve = |socket: &Path| {
        let places: &[(&str, &Path)] = &[("--nbd", socket)];
        run(&["export", "--profile", "ssd-tlc", image.to_str().unwrap()], places, &["--no-latency"])
    };
    let letter = volume.at("letter");
    fs::write(&letter, b"dear all").unwrap();
    refused(&serve(&letter), &["letter is there already"]);
    assert_eq!(fs::read(&letter).unwrap(), b"dear all");
    // A socket that another program left.
    let foreign = volume.at("foreign");
    drop(UnixListener::bind(&foreign).unwrap());
    refused(&serve(&foreign), &["foreign is there already"]);
    assert!(foreign.exists());
    // A pair that an export left which was killed.
    let own = volume.at("own");
    let beside = volume.at("own.status");
    for socket in [&own, &beside] {
        drop(UnixListener::bind(socket).unwrap());
    }
    let mut server = bimetal()
        .args(["export", "--profile", "ssd-tlc", "--no-latency"])
        .arg(&image)
        .arg("--nbd")
        .arg(&own)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut line)
        .unwrap();
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&server),
        rustix::process::Signal::TERM,
    );
    server.wait().unwrap();
    assert!(line.starts_with("nbd+unix"), "{line}");
    assert!(!own.exists() && !beside.exists());
}

#[test]
fn a_recording_does_not_go_over_an_image() {
    need_fuse!();
    let volume = Volume::new();
    let image = volume.at("disk.csv");
    fs::rename(volume.at("disk"), &image).unwrap();
    let before = fs::read(&image).unwrap();
    let mounted = Mounted::memfs("size=32MiB");
    let place = mounted.path().to_str().unwrap();
    let recorded = run(&["record", place, "-o", image.to_str().unwrap(), "--", "true"], &[], &[]);
    assert!(!recorded.status.success(), "{}", out(&recorded));
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn umount_of_a_mount_that_could_not_write_everything_out_says_so_and_fails() {
    need_fuse!();
    let volume = Volume::new();
    // A disk half that goes away: it is served by a process that is killed.
    let served = Served::new(&volume.at("disk"), volume.at("served"));
    let (ssd, log) = (volume.at("ssd"), volume.at("log"));
    let device = served.place.join("device");
    let halves = ["--ssd", ssd.to_str().unwrap(), "--disk", device.to_str().unwrap()];
    let mounted = Mounted::new(&[&halves[..], &["--log", log.to_str().unwrap()]].concat());
    let mut file = File::create(mounted.path().join("f")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    drop(served);
    let ended = mounted.unmount();
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    for part in ["not everything could be written out", "mount both halves again", "dmesg"] {
        assert!(err(&ended).contains(part), "{part} in {}", err(&ended));
    }
    assert!(fs::read_to_string(&log).unwrap().contains("ERROR"));
    let again = volume.mount(&[]);
    assert_eq!(fs::read(again.path().join("f")).unwrap(), vec![7; 100_000]);
    assert!(again.unmount().status.success());
}

/// An image served as a device; at the end the server is killed.
struct Served {
    server: std::process::Child,
    place: PathBuf,
}

impl Served {
    fn new(image: &Path, place: PathBuf) -> Served {
        fs::create_dir(&place).unwrap();
        let mut server = bimetal()
            .args(["export", "--profile", "hdd-7200", "--no-latency"])
            .arg(image)
            .arg("--file")
            .arg(&place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(server.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert!(line.contains("device"), "{line}");
        Served { server, place }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.place).status();
    }
}

#[test]
fn umount_says_that_the_server_died() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let pid = mounted.status()["front"]["pid"].as_i64().unwrap() as i32;
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // It is stopped while it is asked, and killed while it is waited for.
    let place = mounted.path().to_path_buf();
    let busy = File::create(place.join("open")).unwrap();
    let waiting =
        std::thread::spawn(move || bimetal().args(["umount", "--lazy"]).arg(place).output().unwrap());
    while fs::metadata(mounted.path().join("open")).is_ok() {
        std::thread::yield_now();
    }
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let ended = waiting.join().unwrap();
    drop(busy);
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    assert!(err(&ended).contains("its server died"), "{}", err(&ended));
}

/// A volume whose disk half goes away below it, with something to be written out; how its `umount` ends after `between`.
fn unmounted_without_its_disk(mount: &[&str], between: impl Fn(&Path)) -> Output {
    let volume = Volume::new();
    let mounted = volume.mount(&[&["-o", "lag=1h"][..], mount].concat());
    fs::write(mounted.path().join("f"), vec![7; 5 << 20]).unwrap();
    between(mounted.path());
    File::options().write(true).open(volume.at("disk")).unwrap().set_len(1 << 20).unwrap();
    mounted.unmount()
}

#[test]
fn umount_of_what_was_made_read_only_since_it_was_written_to_tells_what_is_missing_all_the_same() {
    need_fuse!();
    for options in ["remount,ro", "remount,bind,ro"] {
        let ended = unmounted_without_its_disk(&[], |place| {
            // The kernel's own, for the second; through it nothing can be set.
            assert!(Command::new("mount").args(["-i", "-o", options]).arg(place).status().unwrap().success());
        });
        assert_eq!(ended.status.code(), Some(1), "{options}: {}", err(&ended));
        let words = "not everything could be written out";
        assert!(err(&ended).contains(words), "{options}: {}", err(&ended));
    }
}

#[test]
fn umount_of_a_dead_server_fails_also_where_the_mount_was_made_read_only_since() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let pid = mounted.status()["front"]["pid"].to_string();
    let remounted = Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(mounted.path()).status();
    assert!(remounted.unwrap().success());
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    while rustix::fs::statvfs(mounted.path()).is_ok() {
        std::thread::yield_now();
    }
    let ended = mounted.unmount();
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    assert!(err(&ended).contains("dead already"), "{}", err(&ended));
}

#[test]
fn umount_by_who_mounted_tells_what_is_missing_although_he_may_not_change_the_root() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    let dir = mounted.path().join("u");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    assert!(mounted.unmount().status.success());
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&home.path().join("bimetal"));
    let place = home.path().join("mnt");
    fs::create_dir(&place).unwrap();
    for path in [&volume.at("ssd"), &volume.at("disk"), &place] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    let above = volume.at("ssd").parent().unwrap().to_path_buf();
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    // In a mount namespace of its own: the device open to all, as distributions have it.
    let script = r#"
awk -v under="$TESTS/" 'index($2, under) == 1 { print $2 }' /proc/mounts | xargs -r umount -l || true
mknod $H/fuse c 10 229; chmod 666 $H/fuse; mount --bind $H/fuse /dev/fuse
user="setpriv --reuid 65534 --regid 65534 --clear-groups"
$user $H/bimetal mount -o lag=1h --ssd $SSD --disk $DISK $H/mnt
trap 'umount -ql $H/mnt || true' EXIT
$user sh -ec 'head -c 5M /dev/urandom > $H/mnt/u/a'
truncate -s 1M $DISK
$user $H/bimetal umount $H/mnt || echo "it ended with $?"
"#;
    let mut run = Command::new("unshare");
    run.args(["-m", "--propagation", "private", "sh", "-euc", script]).env("H", home.path());
    run.env("SSD", volume.at("ssd")).env("DISK", volume.at("disk"));
    let done = run.env("TESTS", home.path().parent().unwrap()).output().unwrap();
    let said = format!("{}{}", out(&done), err(&done));
    assert!(done.status.success() && said.contains("it ended with 1"), "{said}");
    assert!(said.contains("not everything could be written out"), "{said}");
}

#[test]
fn umount_by_another_user_is_refused_with_who_can() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    fs::set_permissions(mounted.scratch(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = mounted.scratch().join("bimetal");
    copy_program(&program);
    let tried = Command::new(&program).uid(65534).gid(65534).arg("umount").arg(mounted.path()).output();
    refused(&tried.unwrap(), &["only root, and who mounted it", "nothing was unmounted"]);
    assert!(mounted.unmount().status.success());
}

#[test]
fn umount_names_who_keeps_a_copy_of_the_mount_in_another_mount_namespace() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::write(mounted.path().join("f"), "x").unwrap();
    // What other tests have mounted is taken out of it first; here it would live on after they unmount it.
    let script = r#"
awk -v under="$TESTS/" -v own="$H/" 'index($2, under) == 1 && index($2, own) != 1 { print $2 }' /proc/mounts | xargs -r umount -l || true
echo ready; exec sleep 120"#;
    let mut other = Command::new("unshare");
    other.args(["-m", "--propagation", "private", "sh", "-c", script]).env("H", mounted.scratch());
    let other = other.env("TESTS", mounted.scratch().parent().unwrap());
    let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(other.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let began = std::time::Instant::now();
    let ended = mounted.unmount();
    let took = began.elapsed();
    let gone = !fs::read_to_string("/proc/self/mounts").unwrap().contains(mounted.path().to_str().unwrap());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(ended.status.code() == Some(1) && gone, "{}", err(&ended));
    for part in [&format!("process {} (", other.id()), "mount namespace", "nsenter"] {
        assert!(err(&ended).contains(part), "{part} in {}", err(&ended));
    }
    assert!(took.as_secs() < 60, "{took:?}");
}

#[test]
fn a_server_that_is_stopped_is_named_with_what_lets_it_go_on() {
    need_fuse!();
    let mounted = Mounted::memfs("size=32MiB");
    let pid = mounted.status()["front"]["pid"].to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    let mut asked = bimetal();
    let asked = asked.arg("status").arg(mounted.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut asked = asked.spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(asked.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    signal("-CONT");
    assert!(asked.wait().unwrap().success());
    assert!(line.contains("stopped") && line.contains("kill -CONT") && line.contains(&pid), "{line}");
    assert!(mounted.unmount().status.success());
}

#[test]
fn a_volume_belongs_to_who_made_it() {
    need_fuse!();
    const NOBODY: u32 = 65534;
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let by_nobody = |args: &[&str]| {
        let mut command = bimetal();
        command.uid(NOBODY).gid(NOBODY).current_dir(home.path()).args(args).output()
    };
    if by_nobody(&["--version"]).is_err() {
        return skip("where the command is, nobody else can run it");
    }
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    let [ssd, disk, nand, nvram, store] = ["ssd", "disk", "nand", "nvram", "store"].map(at);
    for (image, bytes) in [(&ssd, 64 << 20), (&disk, 256 << 20)] {
        File::create(image).unwrap().set_len(bytes).unwrap();
        std::os::unix::fs::chown(image, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let place = at("mnt");
    fs::create_dir(&place).unwrap();
    for (kind, volume, options) in [
        ("nfhybrid", &["--ssd", &ssd, "--disk", &disk][..], &[][..]),
        ("cmfs", &["--nand", &nand, "--nvram", &nvram], &["--size", "32MiB"]),
        ("osd", &["--nand", &store], &["--size", "32MiB"]),
    ] {
        let made = by_nobody(&[&["mkfs", kind][..], volume, options].concat()).unwrap();
        assert!(made.status.success(), "{}", err(&made));
        let mounted = bimetal().args(["mount", "-t", kind]).args(volume).arg(&place).output().unwrap();
        assert!(mounted.status.success(), "{}", err(&mounted));
        let root = fs::metadata(&place).unwrap();
        assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
        assert_eq!((root.uid(), root.gid()), (NOBODY, NOBODY), "{kind}");
    }
}

/// No driver is there for it: what is refused is refused by its kind, before it is opened.
#[test]
fn no_output_goes_to_a_character_device_that_keeps_it() {
    need_fuse!();
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let home = tempfile::tempdir().unwrap();
    let (part, place) = (home.path().join("mtd0"), home.path().join("mnt"));
    fs::create_dir(&place).unwrap();
    if mknodat(CWD, &part, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(90, 0)).is_err() {
        return skip("no device can be made");
    }
    let mount =
        |log: &Path| bimetal().args(["mount", "-t", "memfs", "--log"]).arg(log).arg(&place).output().unwrap();
    refused(&mount(&part), &["mtd0 is a device", "name a file"]);
    assert!(mount(Path::new("/dev/null")).status.success());
    assert!(once_free(bimetal().arg("umount").arg(&place)).status.success());
}
