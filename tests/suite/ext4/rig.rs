//! An image, the file system on it, and what stands in for the caller: data written in place or through
//! the journal, commits, crashes.

use crate::mounts::once_free;
use bimetal::fs::Kind;
use bimetal::fs::ext4::{CacheLimits, Create, Ext4, Frozen, Mapping, OpenOptions, PlacedRuns, ROOT_INO};
use bimetal::media::BlockDevice;
use bimetal::media::file::FileDevice;
use bimetal::time::{Stamp, Time};
use bimetal::units::{DiskBlock, Ino};
use bimetal::{Error, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;

/// A moment of the tests' own time line.
pub fn at(sec: i64) -> Stamp {
    Stamp { sec: 1_700_000_000 + sec, nsec: (sec as u32 * 7_919) % 1_000_000_000 }
}

/// Runs a program and returns what it said.
pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// A file system under test.
pub struct Rig {
    pub dir: TempDir,
    pub image: PathBuf,
    pub disk: Arc<dyn BlockDevice>,
    pub fs: Ext4,
    pub clock: i64,
    pub commits: usize,
    /// Frozen transactions that may wait before they are committed.
    pub lag: usize,
    /// Runs of live data that got new blocks.
    pub relocated: usize,
    waiting: VecDeque<(Frozen, Staged)>,
    staged: Staged,
}

/// New contents of blocks that hold live data: they go through the journal.
type Staged = BTreeMap<u64, Vec<u8>>;

/// Makes an image of `size_kib` with the options given to `mke2fs`.
pub fn make(size_kib: u64, options: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder for the image");
    let image = dir.path().join("disk.img");
    let file = std::fs::File::create(&image).expect("the image");
    file.set_len(size_kib << 10).expect("its size");
    let path = image.to_str().expect("a plain path");
    let mut args = vec!["-q", "-F"];
    args.extend(options.split_whitespace());
    args.push(path);
    let made = run("mke2fs", &args);
    assert!(made.status.success(), "mke2fs {options}: {}", String::from_utf8_lossy(&made.stderr));
    (dir, image)
}

pub fn open(image: &Path, read_only: bool, now: Stamp) -> Result<(Arc<dyn BlockDevice>, Ext4)> {
    let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, !read_only)?);
    let fs = Ext4::open(Arc::clone(&disk), OpenOptions { read_only, now, ..OpenOptions::default() })?;
    Ok((disk, fs))
}

impl Rig {
    pub fn new(size_kib: u64, options: &str) -> Rig {
        let (dir, image) = make(size_kib, options);
        Rig::of(dir, image)
    }

    pub fn of(dir: TempDir, image: PathBuf) -> Rig {
        let (disk, fs) = open(&image, false, at(0)).expect("a file system that opens");
        Rig {
            dir,
            image,
            disk,
            fs,
            clock: 0,
            commits: 0,
            lag: 0,
            relocated: 0,
            waiting: VecDeque::new(),
            staged: Staged::new(),
        }
    }

    /// Over a device that stands in for the image.
    pub fn over(disk: Arc<dyn BlockDevice>, dir: TempDir, image: PathBuf) -> Result<Rig> {
        let fs = Ext4::open(Arc::clone(&disk), OpenOptions { now: at(0), ..OpenOptions::default() })?;
        Ok(Rig {
            dir,
            image,
            disk,
            fs,
            clock: 0,
            commits: 0,
            lag: 0,
            relocated: 0,
            waiting: VecDeque::new(),
            staged: Staged::new(),
        })
    }

    pub fn now(&mut self) -> Stamp {
        self.clock += 1;
        at(self.clock)
    }

    /// Freezes what has changed, and commits what has waited long enough.
    pub fn commit(&mut self) {
        let (now, estimate) = (self.now(), self.fs.dirty_blocks());
        let frozen = self.fs.freeze(now, None).expect("a freeze");
        let images = frozen.transaction.metadata.len();
        // Where nothing changed, what is in every transaction.
        let estimate = estimate.max(self.fs.super_blocks());
        assert!(images <= estimate, "{images} images, {estimate} expected");
        let mut staged = std::mem::take(&mut self.staged);
        for (at, len) in &frozen.transaction.freed {
            let gone: Vec<u64> =
                staged.range(at.0..at.0 + u64::from(*len)).map(|(block, _)| *block).collect();
            gone.iter().for_each(|block| drop(staged.remove(block)));
        }
        self.waiting.push_back((frozen, staged));
        while self.waiting.len() > self.lag {
            self.commit_first();
        }
    }

    /// Commits the transaction that has waited longest.
    fn commit_first(&mut self) {
        let Some((mut frozen, staged)) = self.waiting.pop_front() else { return };
        let staged = staged.into_iter().map(|(block, data)| (DiskBlock(block), Bytes::from(data)));
        frozen.transaction.metadata.extend(staged);
        let len = frozen.transaction.metadata.len();
        let commit = self.fs.journal().commit(Time::ZERO, frozen.transaction);
        commit.unwrap_or_else(|error| panic!("a commit of {len} blocks: {error}"));
        self.fs.committed(frozen.tid);
        self.commits += 1;
    }

    /// Commits everything that was frozen.
    pub fn commit_waiting(&mut self) {
        while !self.waiting.is_empty() {
            self.commit_first();
        }
    }

    /// Commits if the transaction has grown large.
    pub fn commit_if_large(&mut self) {
        let capacity = self.fs.journal().capacity() as usize;
        if self.fs.dirty_blocks() + self.staged.len() + 16 > capacity / 2 {
            self.commit();
        }
    }

    /// Makes a hole, in as many steps as it takes.
    pub fn punch(&mut self, ino: Ino, block: u64, len: u64) -> Result<()> {
        let mut at = block;
        while at < block + len {
            at = self.fs.punch(ino, at, block + len - at, 1)?;
            self.commit_if_large();
        }
        Ok(())
    }

    /// Gives space to holes, in as many steps as it takes.
    pub fn preallocate(&mut self, ino: Ino, block: u64, len: u64) -> Result<()> {
        let mut at = block;
        while at < block + len {
            at = self.fs.preallocate(ino, at, block + len - at, 0)?;
        }
        Ok(())
    }

    /// Ends cleanly.
    pub fn close(&mut self) {
        self.commit();
        self.commit_waiting();
        let now = self.now();
        self.fs.close(now).expect("a clean end");
    }

    /// Opens again what was closed, or what a crash left.
    pub fn reopen(&mut self) {
        self.reopen_with(CacheLimits::default());
    }

    /// Opens again, with this much memory.
    pub fn reopen_with(&mut self, cache: CacheLimits) {
        self.staged.clear();
        self.waiting.clear();
        let now = self.now();
        self.disk = Arc::new(FileDevice::open(&self.image, true).expect("the image"));
        let options = OpenOptions { now, cache, ..OpenOptions::default() };
        self.fs = Ext4::open(Arc::clone(&self.disk), options).expect("a file system that opens again");
    }

    pub fn create(&mut self, parent: Ino, name: &[u8], kind: Kind) -> Result<Ino> {
        let now = self.now();
        self.fs.create(&Create { parent, name, kind, ..plain(now) })
    }

    /// A file without a name, as one that is open and was removed.
    pub fn create_orphan(&mut self, now: Stamp) -> Result<Ino> {
        let ino = self.fs.create(&Create { name: b"removed", ..plain(now) })?;
        self.fs.unlink(ROOT_INO, b"removed", now)?;
        Ok(ino)
    }

    pub fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let now = self.now();
        let removed = self.fs.unlink(parent, name, now)?;
        if removed.last { self.release(removed.ino) } else { Ok(()) }
    }

    pub fn rmdir(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let now = self.now();
        let removed = self.fs.rmdir(parent, name, now)?;
        assert!(removed.last);
        self.release(removed.ino)
    }

    pub fn release(&mut self, ino: Ino) -> Result<()> {
        while !self.fs.release(ino)? {
            self.commit();
        }
        Ok(())
    }

    /// One block of a file's data as a reader sees it.
    pub fn read_block(&mut self, ino: Ino, block: u64) -> Result<Vec<u8>> {
        let bytes = self.fs.block_bytes() as usize;
        match self.fs.map(ino, block, 1)? {
            Mapping::Data { at, .. } => self.read_at(at),
            _ => Ok(vec![0; bytes]),
        }
    }

    fn read_at(&self, at: DiskBlock) -> Result<Vec<u8>> {
        let bytes = self.fs.block_bytes() as usize;
        let waiting = self.waiting.iter().rev().map(|(_, staged)| staged);
        if let Some(data) = std::iter::once(&self.staged).chain(waiting).find_map(|staged| staged.get(&at.0))
        {
            return Ok(data.clone());
        }
        if let Some(image) = self.fs.journal().latest(at) {
            return Ok(image.to_vec());
        }
        Ok(self.disk.read(at.0 * bytes as u64, bytes)?.to_vec())
    }

    /// Writes data at an offset: new blocks in place, live ones through the journal.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let bytes = u64::from(self.fs.block_bytes());
        let (first, last) = (offset / bytes, (offset + data.len() as u64).div_ceil(bytes));
        self.fs.reserve_as_root(last - first)?;
        let mut blocks = Vec::new();
        for block in first..last {
            let mut old = self.read_block(ino, block)?;
            for (i, byte) in old.iter_mut().enumerate() {
                let at = (block * bytes + i as u64).checked_sub(offset);
                if let Some(new) = at.and_then(|at| data.get(at as usize)) {
                    *byte = *new;
                }
            }
            blocks.push(old);
        }
        let placed = self.fs.place(ino, first, (last - first) as u32);
        self.fs.unreserve(last - first);
        for run in self.moved(ino, placed?)? {
            for i in 0..u64::from(run.len) {
                let content = std::mem::take(&mut blocks[(run.block + i - first) as usize]);
                self.put(run.at.0 + i, content, run.fresh);
            }
        }
        let now = self.now();
        let inode = self.fs.inode_mut(ino)?;
        inode.size = inode.size.max(offset + data.len() as u64);
        (inode.mtime, inode.ctime) = (now, now);
        Ok(())
    }

    /// Some of the longer runs of live data get new blocks.
    fn moved(&mut self, ino: Ino, placed: PlacedRuns) -> Result<PlacedRuns> {
        let mut runs = PlacedRuns::new();
        for run in placed {
            if run.fresh || run.len < 3 || run.block % 2 == 0 {
                runs.push(run);
                continue;
            }
            match self.fs.relocate(ino, run.block, run.len, run.len as usize / 2) {
                Ok(new) => {
                    (run.at.0..run.at.0 + u64::from(run.len)).for_each(|at| drop(self.staged.remove(&at)));
                    assert_eq!(new.iter().map(|run| run.len).sum::<u32>(), run.len);
                    self.relocated += 1;
                    runs.extend(new);
                }
                Err(Error::NoSpace(_)) => runs.push(run),
                Err(error) => return Err(error),
            }
        }
        Ok(runs)
    }

    fn put(&mut self, at: u64, content: Vec<u8>, fresh: bool) {
        if fresh {
            self.staged.remove(&at);
            assert!(!self.fs.journal().holds(DiskBlock(at)), "block {at} is new and still in the journal");
            self.disk.write(at * content.len() as u64, content).expect("a write");
        } else {
            self.staged.insert(at, content);
        }
    }

    /// Cuts or extends, with the rest of the last block zeroed, as a caller must.
    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        let bytes = u64::from(self.fs.block_bytes());
        let tail = size % bytes;
        let old = self.fs.inode(ino)?.size;
        if size < old && tail != 0 && matches!(self.fs.map(ino, size / bytes, 1)?, Mapping::Data { .. }) {
            let zeros = vec![0; (bytes - tail) as usize];
            self.write(ino, size, &zeros)?;
        }
        let now = self.now();
        while !self.fs.truncate(ino, size, now)? {
            self.commit();
        }
        Ok(())
    }

    /// The whole contents of a file.
    pub fn contents(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let size = self.fs.inode(ino)?.size;
        let bytes = u64::from(self.fs.block_bytes());
        let mut data = Vec::new();
        for block in 0..size.div_ceil(bytes) {
            data.extend(self.read_block(ino, block)?);
        }
        data.truncate(size as usize);
        Ok(data)
    }

    /// Closes and lets `e2fsck` judge.
    pub fn check(&mut self) {
        self.close();
        fsck(&self.image);
    }
}

/// `e2fsck -fn` must find nothing at all.
pub fn fsck(image: &Path) {
    let path = image.to_str().expect("a plain path");
    let checked = run("e2fsck", &["-fn", path]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    if checked.status.code() != Some(0) {
        let keep = std::env::temp_dir().join("bimetal-ext4-failed.img");
        let _ = std::fs::copy(image, &keep);
        panic!("e2fsck: {:?}\n{text}\nkept as {}", checked.status, keep.display());
    }
    for word in ["invalid", "wrong", "error"] {
        assert!(!text.contains(word), "{text}");
    }
}

/// What tests that do not care about ownership create with.
pub fn plain(now: Stamp) -> Create<'static> {
    Create {
        parent: ROOT_INO,
        name: b"",
        kind: Kind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        now,
        ino: None,
        generation: None,
    }
}

/// A mount by the kernel, gone when dropped.
pub struct Mount {
    point: TempDir,
}

impl Mount {
    /// Mounts for reading; `None` (with a word why) where the kernel will not.
    pub fn new(image: &Path) -> Option<Mount> {
        Mount::with(image, "loop,ro")
    }

    /// Mounts with these options.
    pub fn with(image: &Path, options: &str) -> Option<Mount> {
        let point = tempfile::tempdir().expect("a mount point");
        let (from, to) =
            (image.to_str().expect("a path"), point.path().to_str().expect("a path").to_string());
        let mounted = run("mount", &["-t", "ext4", "-o", options, from, &to]);
        if mounted.status.success() {
            return Some(Mount { point });
        }
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(
            why.contains("permission denied") || why.contains("loop"),
            "the kernel does not mount: {why}"
        );
        println!("skipped: {why}");
        None
    }

    pub fn path(&self) -> &Path {
        self.point.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let point = self.point.path().to_str().expect("a path");
        if !once_free(Command::new("umount").arg(point)).status.success() {
            run("umount", &["-l", point]);
        }
    }
}

/// Whether an error says that space or inodes are used up.
pub fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace(_))
}
