//! nfhybrid as people use it: made by the command, mounted, driven by real programs, and its disk half then read
//! by tools that know nothing of it.

use crate::mounts::{Mounted, bimetal, no_fuse, once_free, skip};
use crate::programs;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Two image files that are one volume.
pub struct Volume {
    dir: TempDir,
    pub ssd: PathBuf,
    pub disk: PathBuf,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

impl Volume {
    /// Makes one with further arguments of `bimetal mkfs nfhybrid`.
    pub fn new(ssd_mib: u64, disk_mib: u64, args: &[&str]) -> Volume {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (ssd, disk) = (dir.path().join("ssd.img"), dir.path().join("disk.img"));
        for (path, mib) in [(&ssd, ssd_mib), (&disk, disk_mib)] {
            fs::File::create(path).and_then(|file| file.set_len(mib << 20)).expect("an image file");
        }
        let volume = Volume { dir, ssd, disk };
        let made = volume.bimetal(&["mkfs", "nfhybrid"], args);
        assert!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));
        volume
    }

    /// Runs a verb on it.
    pub fn bimetal(&self, verb: &[&str], args: &[&str]) -> Output {
        let halves = ["--ssd", text(&self.ssd), "--disk", text(&self.disk)];
        bimetal().args(verb).args(halves).args(args).output().expect("the command runs")
    }

    /// Mounts it with these mount options.
    pub fn mount(&self, options: &str) -> Mounted {
        Mounted::new(&["--ssd", text(&self.ssd), "--disk", text(&self.disk), "-o", options])
    }

    /// e2fsck finds nothing on the disk half.
    pub fn e2fsck(&self) {
        let run = Command::new("/usr/sbin/e2fsck").args(["-fn", text(&self.disk)]).output().expect("e2fsck");
        assert!(run.status.success(), "e2fsck: {}", String::from_utf8_lossy(&run.stdout));
    }

    /// The disk half, mounted read-only by the kernel.
    pub fn kernel(&self) -> KernelMount {
        let place = self.dir.path().join("kernel");
        fs::create_dir_all(&place).expect("a mount point");
        let run = Command::new("mount").args(["-o", "loop,ro", text(&self.disk), text(&place)]).output();
        let run = run.expect("mount(8)");
        assert!(run.status.success(), "kernel mount: {}", String::from_utf8_lossy(&run.stderr));
        KernelMount(place)
    }
}

/// A mount of the kernel's ext4, taken away on drop.
pub struct KernelMount(pub PathBuf);

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = once_free(Command::new("umount").arg(&self.0));
    }
}

/// The two trees are the same, byte by byte.
pub fn same_trees(a: &Path, b: &Path) {
    let run =
        Command::new("diff").args(["-r", "--no-dereference", text(a), text(b)]).output().expect("diff(1)");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{} and {} differ:\n{said}", a.display(), b.display());
}

/// Unmounts in order.
pub fn unmount(mounted: Mounted) {
    let run = mounted.unmount();
    assert!(run.status.success(), "umount: {}", String::from_utf8_lossy(&run.stderr));
}

/// The status once the disk half, and the cache that may lie over it, have caught up.
pub fn settled(mounted: &Mounted) -> serde_json::Value {
    loop {
        let status = mounted.status();
        assert!(status["failure"].is_null(), "{status}");
        let on_both = status["at_risk"]["bytes"] == 0 && status["operations"][0] == status["operations"][1];
        // What goes home from the disk's journal is written after the operation and flushed a moment later.
        if on_both && status["disk_cache"]["dirty_bytes"].as_u64().unwrap_or(0) == 0 {
            return status;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A script for `sh -eu`, which must succeed.
pub fn sh(script: &str, dir: &Path) {
    let run = Command::new("sh").args(["-euc", script]).current_dir(dir).output().expect("sh(1)");
    assert!(
        run.status.success(),
        "{script}:\n{}",
        String::from_utf8_lossy(&[run.stdout, run.stderr].concat())
    );
}

#[test]
fn real_programs_are_content_with_nfhybrid() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let volume =
        Volume::new(128, 4096, &["--section", "small=extent:16KiB", "--section", "large=extent:512KiB"]);
    let mounted = volume.mount("lag=2s");
    programs::check("nfhybrid", mounted.path(), mounted.scratch());
    let status = mounted.status();
    assert_eq!(status["front"]["panics"], 0, "{status}");
    assert!(status["failure"].is_null() && status["ssd_lost"].is_null(), "{status}");
    unmount(mounted);
    volume.e2fsck();
}

#[test]
fn a_tree_larger_than_the_ssd_reads_the_same_through_the_mount_again_and_from_the_disk_alone() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    // What compilers include is on every machine that builds this; the rest is thousands of small files more.
    let megabytes = |tree: &&Path| {
        let du = Command::new("du").args(["-sm", text(tree)]).output().expect("du(1)");
        let said = String::from_utf8_lossy(&du.stdout).into_owned();
        said.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    let trees = ["/usr/include", "/usr/share"].map(Path::new);
    let Some(tree) = trees.into_iter().find(|tree| megabytes(tree) > 48) else {
        return skip("no tree of more than 48 MB in /usr/include and /usr/share");
    };
    let volume = Volume::new(32, 4096, &[]);
    let mounted = volume.mount("lag=2s");
    sh(&format!("cp -a {} tree", tree.display()), mounted.path());
    same_trees(tree, &mounted.path().join("tree"));
    unmount(mounted);
    volume.e2fsck();
    let mounted = volume.mount("lag=2s");
    same_trees(tree, &mounted.path().join("tree"));
    unmount(mounted);
    volume.e2fsck();
    let kernel = volume.kernel();
    same_trees(tree, &kernel.0.join("tree"));
}

#[test]
fn direct_io_and_a_page_cache_below_make_no_difference_to_files() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let tree = Path::new("/usr/share/perl");
    let volume = Volume::new(16, 1024, &[]);
    let ways = ["direct,lag=1s", "cache=cswlru,cache-size=4MiB,lag=1s", "direct,cache=lru,cache-size=1MiB"];
    let probe = volume.dir.path().join("probe");
    let probed = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={}", text(&probe)), "oflag=direct", "bs=4096", "count=1"])
        .output();
    let has_direct = probed.is_ok_and(|run| run.status.success());
    if !has_direct {
        skip("direct I/O: images lie on a file system that has none");
    }
    for (round, options) in ways.into_iter().enumerate() {
        let mounted = volume.mount(if has_direct { options } else { options.trim_start_matches("direct,") });
        sh(&format!("cp -a {} tree{round}", tree.display()), mounted.path());
        sh(
            "for i in 1 2 3 4 5 6 7 8 9; do dd if=/dev/urandom of=f$i bs=5000 count=9 conv=fsync; done",
            mounted.path(),
        );
        sh("md5sum f? > sums", mounted.path());
        (0..=round).for_each(|round| same_trees(tree, &mounted.path().join(format!("tree{round}"))));
        unmount(mounted);
        volume.e2fsck();
        let kernel = volume.kernel();
        sh("md5sum --quiet -c sums", &kernel.0);
        (0..=round).for_each(|round| same_trees(tree, &kernel.0.join(format!("tree{round}"))));
    }
}

#[test]
fn remapping_a_directory_moves_no_data_and_counts_for_what_is_written_next() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let args =
        ["--section", "small=extent:16KiB", "--section", "large=extent:64KiB", "--map", "/media=large"];
    let volume = Volume::new(64, 512, &[&args[..], &["--bypass", "/backup"]].concat());
    let mounted = volume.mount("lag=200ms");
    sh(
        "for d in . media backup; do dd if=/dev/urandom of=$d/f bs=1M count=2 status=none; done; mkdir media/deep",
        mounted.path(),
    );
    let resident = |status: &serde_json::Value, section: usize| {
        status["ssd_half"]["sections"][section]["resident_bytes"].as_u64().expect("a number")
    };
    let before = settled(&mounted);
    assert_eq!((resident(&before, 0), resident(&before, 1)), (2 << 20, 2 << 20), "{before}");
    for (dir, rule) in [("/", "large"), ("/media", "bypass"), ("/backup", "small")] {
        let run =
            bimetal().arg("map").arg(mounted.path()).args([dir, rule]).output().expect("the command runs");
        assert!(run.status.success(), "map: {}", String::from_utf8_lossy(&run.stderr));
    }
    let after = settled(&mounted);
    assert_eq!((resident(&after, 0), resident(&after, 1)), (2 << 20, 2 << 20), "data moved: {after}");
    sh(
        "for d in . media/deep backup; do dd if=/dev/urandom of=$d/g bs=1M count=1 status=none; done",
        mounted.path(),
    );
    let last = settled(&mounted);
    assert_eq!((resident(&last, 0), resident(&last, 1)), (3 << 20, 3 << 20), "{last}");
    unmount(mounted);
    volume.e2fsck();
}

#[test]
fn an_ext4_full_of_files_is_adopted_as_it_is() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let dir = tempfile::tempdir().unwrap();
    let (ssd, disk, place) =
        (dir.path().join("ssd.img"), dir.path().join("disk.img"), dir.path().join("old"));
    fs::create_dir(&place).unwrap();
    fs::File::create(&ssd).unwrap().set_len(64 << 20).unwrap();
    fs::File::create(&disk).unwrap().set_len(1 << 30).unwrap();
    sh(
        &format!(
            "/usr/sbin/mke2fs -q -t ext4 {disk}; mount -o loop {disk} {old}; cp -a /usr/include {old}/; umount {old}",
            disk = text(&disk),
            old = text(&place)
        ),
        dir.path(),
    );
    let volume = Volume { dir, ssd, disk };
    let adopted = volume.bimetal(&["adopt"], &[]);
    assert!(adopted.status.success(), "adopt: {}", String::from_utf8_lossy(&adopted.stderr));
    let mounted = volume.mount("lag=1s");
    same_trees(Path::new("/usr/include"), &mounted.path().join("include"));
    sh("cp -a include copy; rm -r include; mv copy include", mounted.path());
    unmount(mounted);
    volume.e2fsck();
    let kernel = volume.kernel();
    same_trees(Path::new("/usr/include"), &kernel.0.join("include"));
}

#[test]
fn fsck_tells_programs_whether_all_is_well_and_changes_nothing_when_asked_not_to() {
    let volume = Volume::new(32, 128, &[]);
    let fsck = |code| {
        let run = volume.bimetal(&["fsck", "-n", "--json"], &[]);
        assert_eq!(run.status.code(), Some(code), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice::<serde_json::Value>(&run.stdout).expect("one JSON object")
    };
    let well = fsck(0);
    assert_eq!(
        (&well["clean"], well["problems"].as_array().map(Vec::len)),
        (&true.into(), Some(0)),
        "{well}"
    );
    assert!(well["checked"]["inodes"].as_u64().is_some_and(|inodes| inodes >= 1), "{well}");
    // The inode of lost+found is wiped.
    let wiped =
        Command::new("/usr/sbin/debugfs").args(["-w", "-R", "clri <11>", text(&volume.disk)]).output();
    assert!(wiped.expect("debugfs").status.success());
    let before = fs::read(&volume.disk).expect("the disk half");
    let ill = fsck(4);
    assert_eq!(ill["clean"], false, "{ill}");
    let problem = &ill["problems"][0];
    assert!(problem["what"].as_str().is_some_and(|what| what.contains("disk")), "{ill}");
    assert!(
        problem["why"].as_str().is_some_and(|why| !why.is_empty()) && problem["repaired"] == false,
        "{ill}"
    );
    assert!(fs::read(&volume.disk).expect("the disk half") == before, "-n changed the disk");
}

#[test]
fn a_status_has_its_numbers_under_names_that_stay() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let volume = Volume::new(32, 128, &[]);
    let mounted = volume.mount("lag=10s");
    sh("dd if=/dev/zero of=f bs=4k count=10 oflag=dsync status=none", mounted.path());
    let status = mounted.status();
    for path in [
        "/at_risk/bytes",
        "/at_risk/limit_bytes",
        "/at_risk/seconds",
        "/operations/0",
        "/ssd_half/sections/0/resident_bytes",
        "/ssd_half/log_used_bytes",
        "/devices/ssd/requests/writes",
        "/devices/ssd/waits/durable_ns",
        "/devices/disk/size_bytes",
        "/front/mounted_seconds",
        "/front/pid",
    ] {
        assert!(status.pointer(path).is_some_and(serde_json::Value::is_number), "{path} in {status:#}");
    }
    assert_eq!(status["front"]["written_bytes"], 10 * 4096);
    let requests = &status["devices"]["ssd"]["requests"];
    let durable = requests["flushes"].as_u64().zip(requests["durable_writes"].as_u64());
    assert!(durable.is_some_and(|(flushes, writes)| flushes + writes >= 10), "{requests}");
    unmount(mounted);
}

/// What the kernel gathered it writes once, and of the answer it looks at errors only: a short count would lose the rest.
#[test]
fn what_does_not_fit_a_full_disk_is_told_by_fsync_where_the_kernel_gathers_writes() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let volume = Volume::new(32, 128, &[]);
    let mounted = volume.mount("writeback");
    let file = fs::File::create(mounted.path().join("all")).unwrap();
    let bytes = vec![b'x'; 64 << 10];
    let mut told = None;
    for part in 0..1800 {
        if let Err(error) = file.write_all_at(&bytes, part * bytes.len() as u64) {
            told = Some(error);
        }
    }
    if let Err(error) = file.sync_all() {
        told = Some(error);
    }
    drop(file);
    mounted.unmount();
    let mounted = volume.mount("rw");
    let found = fs::read(mounted.path().join("all")).unwrap();
    let lost =
        found.iter().filter(|byte| **byte != b'x').count() + (1800 * bytes.len()).saturating_sub(found.len());
    assert!(lost > 0, "all of it fitted: the test shows nothing");
    assert_eq!(told.and_then(|error| error.raw_os_error()), Some(libc::ENOSPC), "{lost} bytes are gone");
    mounted.unmount();
    volume.e2fsck();
}
