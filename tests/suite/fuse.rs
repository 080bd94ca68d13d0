//! The FUSE front over memfs and over file systems that misbehave.

use crate::mounts::{Mounted, bimetal, copy_program, need_fuse};
use bimetal::front::fuse::{Mount, MountOptions, STATUS};
use bimetal::fs::memfs::MemFs;
use bimetal::fs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, NewNode, Rename, Seek, SetAttr, SetXattr,
};
use bimetal::units::Ino;
use bimetal::{Error, Result};
use bytes::Bytes;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// A memfs that answers in unusual ways: its root is inode 2 (and 1 is a file's number), reads and fsyncs are
/// left for later, an fsync takes as long as the test wants, a file called `panic` panics, and directories with
/// attributes are walked by the provided method.
struct Odd {
    inner: MemFs,
    fsync_may_end: Mutex<Option<Receiver<()>>>,
}

fn swap(ino: Ino) -> Ino {
    match ino.0 {
        1 => Ino(2),
        2 => Ino(1),
        _ => ino,
    }
}

fn swapped(attr: Result<Attr>) -> Result<Attr> {
    attr.map(|attr| Attr { ino: swap(attr.ino), ..attr })
}

impl Odd {
    fn new() -> (Odd, Sender<()>) {
        let (sender, receiver) = channel();
        let inner = MemFs::new(64 << 20, &Caller::default());
        (Odd { inner, fsync_may_end: Mutex::new(Some(receiver)) }, sender)
    }
}

impl FileSystem for Odd {
    fn root(&self) -> Ino {
        swap(self.inner.root())
    }
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        assert!(name != b"panic", "as intended");
        swapped(self.inner.lookup(swap(parent), name))
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.inner.forget(swap(ino), count);
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        swapped(self.inner.getattr(swap(ino)))
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        swapped(self.inner.setattr(swap(ino), set))
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(swap(ino))
    }
    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        swapped(self.inner.create(caller, swap(parent), name, node))
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.inner.unlink(swap(parent), name)
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.inner.rmdir(swap(parent), name)
    }
    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        self.inner.rename(swap(parent), name, swap(new_parent), new_name, how)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        swapped(self.inner.link(swap(ino), swap(parent), name))
    }
    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        let whole = self.inner.read(swap(ino), offset, len)?.get()?.concat();
        Ok(Deferred::Wait(Box::new(move || Ok(whole.chunks(1000).map(Bytes::copy_from_slice).collect()))))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        self.inner.write(swap(ino), offset, data, kill_suid)
    }
    fn fsync(&self, _ino: Ino, data_only: bool) -> Result<Deferred<()>> {
        let wait = self.fsync_may_end.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Deferred::Wait(Box::new(move || match (wait, data_only) {
            (Some(wait), _) => wait.recv().map_err(|_| Error::Gone { device: "the test".into() }),
            (None, true) => panic!("as intended"),
            (None, false) => Err(Error::Gone { device: "the SSD".into() }),
        })))
    }
    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.inner.readdir(swap(ino), from, &mut |entry| visit(DirEntry { ino: swap(entry.ino), ..entry }))
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.getxattr(swap(ino), name)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.inner.setxattr(swap(ino), name, value, how, kill_sgid)
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inner.listxattr(swap(ino))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.inner.removexattr(swap(ino), name)
    }
    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.inner.fallocate(swap(ino), offset, len, what)
    }
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.inner.seek(swap(ino), offset, what)
    }
    fn statfs(&self) -> Result<FsStat> {
        self.inner.statfs()
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn shutdown(&self) -> Result<()> {
        self.inner.shutdown()
    }
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

fn names(dir: &Path) -> BTreeSet<String> {
    let list = fs::read_dir(dir).expect("a listing");
    list.map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII")).collect()
}

fn requests(mounted: &Mounted, kind: &str) -> u64 {
    mounted.status()["front"]["requests"][kind].as_u64().unwrap_or(0)
}

#[test]
fn a_mount_serves_until_it_is_dropped() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    let fs = Arc::new(MemFs::new(1 << 20, &Caller::default()));
    let mount = Mount::new(fs.clone(), home.path(), &MountOptions::for_me()).unwrap();
    fs::write(&file, "served").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "served");
    let still_open = File::open(&file).unwrap();
    drop(mount);
    assert!(!file.exists(), "the mount is gone, although a file is open");
    drop(still_open);
    let again = Mount::new(fs, home.path(), &MountOptions::for_me()).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "served");
    again.unmount().unwrap();
}

#[test]
fn the_root_may_have_any_inode_number() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let mount = Mount::new(Arc::new(Odd::new().0), home.path(), &MountOptions::for_me()).unwrap();
    let root = home.path();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/f"), vec![5; 300_000]).unwrap();
    drop_caches();
    assert_eq!(fs::read(root.join("a/b/../../a/b/f")).unwrap(), vec![5; 300_000]);
    assert_eq!(fs::metadata(root).unwrap().ino(), fs::metadata(root.join("a/..")).unwrap().ino());
    let inodes: BTreeSet<u64> =
        ["", "a", "a/b", "a/b/f"].iter().map(|path| fs::metadata(root.join(path)).unwrap().ino()).collect();
    assert_eq!(inodes.len(), 4);
    mount.unmount().unwrap();
}

#[test]
fn an_answer_that_waits_holds_up_nobody_else() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (odd, let_it_end) = Odd::new();
    let mount = Mount::new(Arc::new(odd), home.path(), &MountOptions::for_me()).unwrap();
    let file = File::create(home.path().join("f")).unwrap();
    let syncing = std::thread::spawn(move || (file.sync_all(), file));
    // Goes through only if the serving thread is free, as the fsync ends when we say so.
    fs::create_dir(home.path().join("meanwhile")).unwrap();
    assert!(!syncing.is_finished());
    let_it_end.send(()).unwrap();
    let (synced, file) = syncing.join().unwrap();
    synced.unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO), "the SSD is gone");
    drop(file);
    mount.unmount().unwrap();
}

#[test]
fn a_panic_fails_its_request_and_the_mount_goes_on() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let (odd, let_it_end) = Odd::new();
    let mount = Mount::new(Arc::new(odd), home.path(), &MountOptions::for_me()).unwrap();
    let failed = fs::metadata(home.path().join("panic")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    let file = File::create(home.path().join("f")).unwrap();
    let_it_end.send(()).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO), "panics while it waits");
    file.write_all_at(b"on it goes", 0).unwrap();
    let panics = || {
        let mut status = vec![0; 65536];
        let len = rustix::fs::getxattr(home.path(), STATUS, &mut status[..]).unwrap();
        let status: serde_json::Value = serde_json::from_slice(&status[..len]).unwrap();
        status["front"]["panics"].as_u64().unwrap()
    };
    // The failure is answered before it is counted.
    while panics() < 2 {
        std::thread::yield_now();
    }
    drop(file);
    mount.unmount().unwrap();
}

#[test]
fn what_the_kernel_remembers_is_not_asked_again() {
    need_fuse!();
    let mounted = Mounted::memfs("root_only");
    let file = mounted.path().join("f");
    fs::write(&file, "x").unwrap();
    fs::metadata(&file).unwrap();
    let missing = mounted.path().join("missing");
    assert!(fs::metadata(&missing).is_err());
    let asked = |kinds: &[&str]| kinds.iter().map(|kind| requests(&mounted, kind)).sum::<u64>();
    let kinds = ["lookup", "getattr", "read", "release", "other"];
    fs::read(&file).unwrap();
    let before = asked(&kinds);
    for _ in 0..100 {
        fs::metadata(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"x");
        assert!(fs::metadata(&missing).is_err());
    }
    // Not zero: a read makes the access time uncertain, and other tests drop all caches meanwhile.
    let more = asked(&kinds) - before;
    assert!(more < 50, "{more} requests for 300 calls");
    fs::write(&missing, "there now").unwrap();
    assert_eq!(fs::read(&missing).unwrap(), b"there now");
}

#[test]
fn opening_truncates_although_opens_are_not_told() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let file = mounted.path().join("f");
    fs::write(&file, vec![1; 10_000]).unwrap();
    File::options().write(true).truncate(true).open(&file).unwrap().write_all(b"short").unwrap();
    drop_caches();
    assert_eq!(fs::read(&file).unwrap(), b"short");
}

#[test]
fn a_file_removed_while_open_keeps_its_contents() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let path = mounted.path().join("f");
    let file = File::create_new(&path).unwrap();
    file.write_all_at(&[8; 200_000], 0).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    drop_caches();
    let reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut bytes = Vec::new();
    reader.unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, vec![8; 200_000]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn rename_has_all_its_flags() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let (a, b) = (mounted.path().join("a"), mounted.path().join("b"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert_eq!(fs::symlink_metadata(&a).unwrap().rdev(), 0);
}

#[test]
fn ranges_are_reserved_punched_and_zeroed_and_holes_found() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let file =
        File::options().create_new(true).read(true).write(true).open(mounted.path().join("f")).unwrap();
    file.write_all_at(&[1; 40960], 0).unwrap();
    let allocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    allocate(FallocateFlags::ZERO_RANGE, 20_480, 100).unwrap();
    allocate(FallocateFlags::KEEP_SIZE, 40_960, 40_960).unwrap();
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let stat = file.metadata().unwrap();
    assert_eq!((stat.len(), stat.blocks()), (40_960, (10 - 2 + 10) * 8));
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(12_288));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(40_960)), Err(Errno::NXIO));
    let mut bytes = [9; 40_960];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0);
    assert!(zero(4096..12_288) && zero(20_480..20_580) && bytes[20_580] == 1);
}

#[test]
fn a_large_directory_is_listed_whole_while_it_changes() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let dir = mounted.path();
    for number in 0..5000 {
        File::create_new(dir.join(format!("f{number:04}"))).unwrap();
    }
    assert_eq!(names(dir).len(), 5000);
    drop_caches();
    let mut seen = BTreeSet::new();
    for (count, entry) in fs::read_dir(dir).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if count % 2 == 0 {
            fs::remove_file(dir.join(&name)).unwrap();
        }
        assert!(seen.insert(name), "an entry twice");
    }
    assert_eq!(seen.len(), 5000);
    assert_eq!(names(dir).len(), 2500);
}

/// A mount that anybody can reach, through parents that a temporary directory keeps to its owner; and a path in it.
fn reachable_by_all() -> (Mounted, std::path::PathBuf) {
    let mounted = Mounted::memfs("size=64MiB");
    fs::set_permissions(mounted.scratch(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = mounted.path().join("f");
    (mounted, path)
}

#[test]
fn set_id_bits_go_with_changes_by_others() {
    need_fuse!();
    let (_mounted, path) = reachable_by_all();
    let as_nobody = |script: &str| {
        fs::write(&path, "contents").unwrap();
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script];
        let done = Command::new("setpriv").args(user).env("F", &path).status().unwrap();
        assert!(done.success(), "{script}");
        fs::metadata(&path).unwrap().mode() & 0o7777
    };
    for script in [
        "echo more >> $F",
        "echo less > $F",
        "truncate -s 3 $F",
        "fallocate -l 100000 $F",
        "fallocate -p -o 0 -l 4096 $F",
        "fallocate -z -o 0 -l 4096 $F",
    ] {
        assert_eq!(as_nobody(script), 0o777, "{script}");
    }
    assert_eq!(as_nobody("chown : $F"), 0o777, "who may write may take them");
    assert_eq!(as_nobody("cat $F > /dev/null"), 0o6777);
    fs::write(&path, "root keeps them").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "a change of owner clears them for all");
}

/// `chown(-1, -1)` asks for nothing but that; its caller needs no permission of the file.
#[test]
fn set_id_bits_stay_when_somebody_asks_who_neither_owns_nor_writes_the_file() {
    need_fuse!();
    let (_mounted, path) = reachable_by_all();
    fs::write(&path, "").unwrap();
    let asks = |(owner, group, mode): (u32, u32, u32), groups: &str, list: Option<&str>| {
        let _ = Command::new("setfacl").arg("-b").arg(&path).status().unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(group)).unwrap();
        if let Some(list) = list {
            assert!(Command::new("setfacl").args(["-m", list]).arg(&path).status().unwrap().success());
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let user = ["--reuid", "65534", "--regid", "65534", groups, "chown", ":"];
        let done = Command::new("setpriv").args(user).arg(&path).output().unwrap();
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.success(), !said.contains("not permitted"), "{said}");
        (done.status.success(), mode)
    };
    let alone = "--clear-groups";
    assert_eq!(asks((0, 0, 0o4755), alone, None), (false, 0o4755));
    assert_eq!(asks((0, 0, 0o2755), alone, None), (false, 0o2755));
    assert_eq!(asks((0, 24, 0o6775), alone, None), (false, 0o6775));
    assert_eq!(asks((0, 24, 0o6775), "--groups=24", None), (true, 0o775), "its group may write");
    assert_eq!(asks((65534, 0, 0o4555), alone, None), (true, 0o555), "its owner may");
    assert_eq!(asks((0, 0, 0o4775), alone, Some("u:65534:rw")), (true, 0o775), "the list lets them write");
    assert_eq!(asks((0, 0, 0o4777), "--groups=24", Some("g:24:r")), (false, 0o4777), "the list does not");
    assert_eq!(asks((0, 0, 0o755), alone, None), (true, 0o755), "there is nothing to take");
}

#[test]
fn a_set_group_id_bit_without_execution_stays_for_members_of_the_group_alone() {
    need_fuse!();
    let (_mounted, path) = reachable_by_all();
    let after = |script: &str, user: u32, groups: &str| {
        let _ = fs::remove_file(&path);
        fs::write(&path, "contents").unwrap();
        std::os::unix::fs::chown(&path, Some(65534), Some(24)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2646)).unwrap();
        let user = user.to_string();
        let args = ["--reuid", &user, "--regid", &user, groups, "sh", "-ec", script];
        let done = Command::new("setpriv").args(args).env("F", &path).status().unwrap();
        assert!(done.success(), "{script}");
        fs::metadata(&path).unwrap().mode() & 0o7777
    };
    for script in
        ["echo more >> $F", "truncate -s 3 $F", "fallocate -l 100000 $F", "chown 65534 $F", "chown : $F"]
    {
        assert_eq!(after(script, 65534, "--clear-groups"), 0o646, "{script}");
        assert_eq!(after(script, 65534, "--groups=24"), 0o2646, "{script}");
    }
    assert_eq!(after("chgrp 65534 $F", 65534, "--clear-groups"), 0o646);
    assert_eq!(after("echo more >> $F", 7, "--clear-groups"), 0o646, "others may write");
    assert_eq!(after("chown 65534 $F; echo more >> $F", 0, "--clear-groups"), 0o2646, "root keeps it");
}

#[test]
fn a_set_group_id_bit_goes_when_an_outsider_sets_a_list() {
    need_fuse!();
    let (_mounted, path) = reachable_by_all();
    fs::write(&path, "").unwrap();
    let set = |groups: &str| {
        std::os::unix::fs::chown(&path, Some(65534), Some(24)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        let user = ["--reuid", "65534", "--regid", "65534", groups, "setfacl", "-m", "u:1:rwx"];
        assert!(Command::new("setpriv").args(user).arg(&path).status().unwrap().success());
        fs::metadata(&path).unwrap().mode() & 0o7000
    };
    assert_eq!(set("--clear-groups"), 0);
    assert_eq!(set("--groups=24"), 0o2000);
}

#[test]
fn trusted_attributes_are_shown_to_root_only_and_ours_to_nobody() {
    need_fuse!();
    let (_mounted, path) = reachable_by_all();
    fs::write(&path, "").unwrap();
    for name in ["user.a", "trusted.b"] {
        rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty()).unwrap();
    }
    let list = |user: &str| {
        let args = ["--reuid", user, "--clear-groups", "getfattr", "-m", "-", "--absolute-names"];
        let shown = Command::new("setpriv").args(args).arg(&path).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        text.lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(list("0"), ["trusted.b", "user.a"]);
    assert_eq!(list("65534"), ["user.a"]);
    let set = |name: &str| rustix::fs::setxattr(&path, name, b"x", XattrFlags::empty());
    assert_eq!(set("bimetal.section"), Err(Errno::OPNOTSUPP), "memfs has no sections");
    let get = rustix::fs::getxattr(&path, STATUS, &mut [0u8; 10][..]);
    assert_eq!(get, Err(Errno::NODATA), "only the root has a status");
}

#[test]
fn times_are_kept_to_the_nanosecond_also_before_1970() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let file = File::create(mounted.path().join("f")).unwrap();
    for time in [
        UNIX_EPOCH - Duration::new(12_345, 678),
        UNIX_EPOCH - Duration::from_secs(60),
        UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321),
        UNIX_EPOCH + Duration::from_secs(1 << 34),
    ] {
        file.set_modified(time).unwrap();
        drop_caches();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), time);
    }
}

#[test]
fn a_file_handle_finds_its_file_after_the_caches_are_dropped() {
    need_fuse!();
    const ROOM: usize = 128;
    let mounted = Mounted::memfs("size=64MiB");
    let dir = mounted.path().join("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "found").unwrap();
    let path = CString::new(dir.join("f").as_os_str().as_bytes()).unwrap();
    let mut handle = [0u32; ROOM / 4 + 2];
    handle[0] = ROOM as u32;
    let handle_ptr: *mut libc::file_handle = handle.as_mut_ptr().cast();
    let mut mount_id = 0;
    // SAFETY: `handle` has its size in front and that much room behind its two words; the path ends with NUL.
    let named =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle_ptr, &mut mount_id, 0) };
    assert_eq!(named, 0, "{}", std::io::Error::last_os_error());
    drop_caches();
    let root = File::open(mounted.path()).unwrap();
    // SAFETY: the handle was filled in above; the descriptor is open.
    let opened = unsafe { libc::open_by_handle_at(root.as_raw_fd(), handle_ptr, libc::O_RDONLY) };
    assert!(opened >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else's.
    let mut file = unsafe { File::from_raw_fd(opened) };
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "found");
    fs::remove_file(dir.join("f")).unwrap();
    drop(file);
    // The kernel lets go of the inode some time after its last user; until then the handle still finds it.
    let stale = (0..500).any(|_| {
        drop_caches();
        // SAFETY: as above.
        let opened = unsafe { libc::open_by_handle_at(root.as_raw_fd(), handle_ptr, libc::O_RDONLY) };
        let why = std::io::Error::last_os_error().raw_os_error();
        if opened >= 0 {
            // SAFETY: the descriptor is new and nobody else's.
            drop(unsafe { File::from_raw_fd(opened) });
        }
        opened < 0 && why == Some(libc::ESTALE)
    });
    assert!(stale, "a removed file is still found by its handle");
}

#[test]
fn write_back_caching_gathers_small_writes() {
    need_fuse!();
    let mounted = Mounted::memfs("writeback");
    let mut file = File::create(mounted.path().join("f")).unwrap();
    for number in 0..1000u32 {
        file.write_all(&number.to_le_bytes()).unwrap();
    }
    file.sync_all().unwrap();
    assert!(requests(&mounted, "write") < 20);
    let expected: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
    drop_caches();
    assert_eq!(fs::read(mounted.path().join("f")).unwrap(), expected);
}

/// Changes that the kernel has and did not send yet are no hole to whoever copies the file.
#[test]
fn what_only_the_kernel_has_is_no_hole() {
    need_fuse!();
    for options in ["writeback,threads=1", "writeback", "threads=1", "threads=4"] {
        let mounted = Mounted::memfs(options);
        let path = mounted.path().join("f");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.set_len(3 << 20).unwrap();
        let mapped = Mapping::of(&file, 3 << 20);
        let expected = |at: usize| if at % 700_000 < 5000 { 1 + (at / 700_000) as u8 } else { 0 };
        for at in 0..3 << 20 {
            if expected(at) != 0 {
                mapped.put(at, expected(at));
            }
        }
        if options.starts_with("writeback") {
            file.write_all_at(b"past the end that the server knows", (3 << 20) + 4000).unwrap();
        }
        let copy = mounted.path().join("copy");
        assert!(
            Command::new("cp").args(["--sparse=always"]).arg(&path).arg(&copy).status().unwrap().success()
        );
        let (copied, here) = (fs::read(&copy).unwrap(), fs::read(&path).unwrap());
        assert!((0..3 << 20).all(|at| copied[at] == expected(at)), "{options}");
        assert!(copied == here, "{options}");
        // Holes that really are some stay holes, and the mapping stays.
        let seek = |from| rustix::fs::seek(&file, from);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(8192)), Ok(700_000 / 4096 * 4096), "{options}");
        mapped.put(1 << 20, 9);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(800_000)), Ok(1 << 20), "{options}");
    }
}

/// A shared mapping of a file.
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn of(file: &File, bytes: usize) -> Mapping {
        use rustix::mm::{MapFlags, ProtFlags};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a file that is as long and stays so.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        Mapping { start: start.expect("a mapping").cast(), bytes }
    }

    fn put(&self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        // SAFETY: inside the mapping, which nobody else in this process refers to.
        unsafe { self.start.add(at).write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `of` mapped, once.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}

/// A program that is being started closes the files of the one that starts it, which writes their times out; and the
/// kernel lets nobody read its `/proc/PID/stat` before it has started.
#[test]
fn programs_are_started_while_a_file_is_open_and_dirty() {
    need_fuse!();
    let mounted = Mounted::memfs("writeback");
    let mut file = File::create(mounted.path().join("f")).unwrap();
    for number in 0..1000u32 {
        file.write_all(&number.to_le_bytes()).unwrap();
        assert!(Command::new("true").status().unwrap().success());
    }
    // How many times are written depends on the clock the kernel stamps files with.
    assert!(requests(&mounted, "setattr") > 20, "the programs did write the times out");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    need_fuse!();
    let mounted = Mounted::memfs("ro");
    assert_eq!(File::create(mounted.path().join("f")).unwrap_err().raw_os_error(), Some(libc::EROFS));
}

#[test]
fn a_mount_in_use_stays_and_says_how_to_go_on() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let file = File::create(mounted.path().join("f")).unwrap();
    let refused = mounted.unmount();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("--lazy"), "{said}");
    drop(file);
    assert!(mounted.unmount().status.success());
}

#[test]
fn what_is_mounted_elsewhere_too_is_unmounted_here_and_said_to_go_on_there() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let other = tempfile::tempdir().unwrap();
    let bound =
        Command::new("mount").args(["--bind"]).arg(mounted.path()).arg(other.path()).output().unwrap();
    assert!(bound.status.success(), "{}", String::from_utf8_lossy(&bound.stderr));
    let told = mounted.unmount();
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    let ended = bimetal().arg("umount").arg(other.path()).output().unwrap();
    let remedy = format!("bimetal umount {} ends it", other.path().canonicalize().unwrap().display());
    assert!(told.status.code() == Some(1) && said.contains(&remedy), "{said}");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_directory_of_a_mount_that_is_mounted_elsewhere_is_named_with_what_takes_it_away() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let (other, dir) = (tempfile::tempdir().unwrap(), mounted.path().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    let bound = Command::new("mount").arg("--bind").args([&dir, other.path()]).output().unwrap();
    assert!(bound.status.success(), "{}", String::from_utf8_lossy(&bound.stderr));
    let told = mounted.unmount();
    let refused = bimetal().arg("umount").arg(other.path()).output().unwrap();
    let other = other.path().canonicalize().unwrap();
    let ended = Command::new("umount").arg(&other).output().unwrap();
    for (told, remedy) in [
        (told, format!("; umount {} ends it", other.display())),
        (refused, format!("with: umount {}", other.display())),
    ] {
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.code() == Some(1) && said.contains(&remedy), "{said}");
    }
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_termination_signal_unmounts_and_waits_for_those_who_still_use_it() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let serve = |place: &Path| {
        let args = ["mount", "-t", "memfs", "--foreground"];
        let mut server = bimetal().args(args).arg(place).stderr(Stdio::piped()).spawn().unwrap();
        while bimetal()
            .arg("status")
            .arg(place)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .unwrap()
            .code()
            != Some(0)
        {
            assert!(server.try_wait().unwrap().is_none(), "the server ended");
        }
        server
    };
    let term = |pid: u32| {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid as i32).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap()
    };
    let mut server = serve(home.path());
    term(server.id());
    assert!(server.wait().unwrap().success());
    let mut server = serve(home.path());
    let mut file = File::create(home.path().join("f")).unwrap();
    term(server.id());
    while home.path().join("f").exists() {
        std::thread::yield_now();
    }
    file.write_all(b"still served").unwrap();
    assert!(server.try_wait().unwrap().is_none());
    drop(file);
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_server_that_was_killed_leaves_a_mount_that_can_be_taken_away() {
    need_fuse!();
    let mounted = Mounted::memfs("size=64MiB");
    let pid = mounted.status()["front"]["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // Attributes stay in the kernel's cache; the numbers of the file system do not.
    while rustix::fs::statvfs(mounted.path()).is_ok() {
        std::thread::yield_now();
    }
    let status = bimetal().arg("status").arg(mounted.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&status.stderr).contains("its server is dead"));
    let done = mounted.unmount();
    assert_eq!(done.status.code(), Some(1), "nobody wrote out what was not fsynced");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("is unmounted, but its server was dead already"), "{said}");
    assert!(fs::metadata(mounted.path()).is_ok());
}

#[test]
fn an_ordinary_user_mounts_by_fusermount3() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = home.path().join("mnt");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(65534), Some(65534)).unwrap();
    copy_program(&home.path().join("bimetal"));
    // In a mount namespace of its own: the device open to all, as distributions have it. What other tests have mounted
    // is taken out of it first; here it would live on after they unmount it.
    let script = r#"
awk -v under="$TESTS/" 'index($2, under) == 1 { print $2 }' /proc/mounts | xargs -r umount -l || true
mknod $H/fuse c 10 229; chmod 666 $H/fuse; mount --bind $H/fuse /dev/fuse
user="setpriv --reuid 65534 --regid 65534 --clear-groups"
if $user $H/bimetal mount -t memfs -o allow_other $H/mnt; then exit 9; fi
$user $H/bimetal mount -t memfs $H/mnt
trap '$user $H/bimetal umount $H/mnt 2>/dev/null || true' EXIT
$user sh -ec 'echo mine > $H/mnt/f; cat $H/mnt/f'
$user stat -c '%U %a' $H/mnt
grep -o 'fuse.bimetal rw,nosuid,nodev.*user_id=65534.*default_permissions' /proc/mounts
$user $H/bimetal umount $H/mnt
test -z "$(ls $H/mnt)"
"#;
    let args = ["-m", "--propagation", "private", "sh", "-euc", script];
    let tests = home.path().parent().unwrap();
    let mut run = Command::new("unshare");
    let done = run.args(args).env("H", home.path()).env("TESTS", tests).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}{complained}");
    assert!(said.starts_with("mine\nnobody 755\nfuse.bimetal"), "{said}");
    assert!(complained.contains("user_allow_other"), "{complained}");
}
