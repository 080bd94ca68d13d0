//! Recording what programs ask of a mount, as a system-call trace.
//!
//! Every mount passes its requests through a [`Recorded`], which costs one look at a flag each until somebody sets the
//! root's attribute `bimetal.record` to a file's path (`bimetal record` does): from then on each request that
//! succeeded is a line of that file, `time_s,pid,op,path_id,offset,length,result`, and when the attribute is set to
//! nothing the paths follow in the list beside it (`NAME.paths.csv`: number, kind, size when first seen, path).
//! Openings do not reach a file system here; what the kernel's cache answers is not seen either. A file that was known
//! to the kernel before the recording began has a path of its number.

use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use bimetal_vfs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, Kind, NewNode, Rename, Seek, SetAttr,
    SetXattr, Trim, VisitAttrs,
};
use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// The attribute of the root that begins and ends a recording.
pub const RECORD: &str = "bimetal.record";
const HEAD: &str = "#time_s,pid,op,path_id,offset,length,result";

/// A file system whose requests can be recorded.
pub(crate) struct Recorded {
    fs: Arc<dyn FileSystem>,
    on: AtomicBool,
    log: Arc<Mutex<Option<Log>>>,
}

/// A path by its number.
struct Seen {
    kind: char,
    size: i64,
    path: Vec<u8>,
}

struct Log {
    out: BufWriter<File>,
    name: PathBuf,
    began: Instant,
    paths: Vec<Seen>,
    /// The path an inode was last reached by.
    numbers: FxHashMap<Ino, u32>,
    by_name: FxHashMap<Vec<u8>, u32>,
    failed: Option<std::io::Error>,
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::File => 'f',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        _ => 'o',
    }
}

/// The list of paths beside a recording.
fn list_beside(name: &Path) -> PathBuf {
    let text = name.as_os_str().as_bytes();
    let stem = text.strip_suffix(b".csv").unwrap_or(text);
    PathBuf::from(std::ffi::OsStr::from_bytes(&[stem, b".paths.csv"].concat()))
}

impl Log {
    fn begin(name: &Path, root: Ino) -> Result<Log> {
        if !name.is_absolute() || name.extension().is_none_or(|extension| extension != "csv") {
            return Err(Error::invalid(format!(
                "{}: a recording has an absolute path that ends in .csv",
                name.display()
            )));
        }
        let file = guard::output(name)?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        writeln!(out, "{HEAD}").map_err(|why| Error::io(name.display(), why))?;
        let mut log = Log {
            out,
            name: name.into(),
            began: Instant::now(),
            paths: Vec::new(),
            numbers: FxHashMap::default(),
            by_name: FxHashMap::default(),
            failed: None,
        };
        let number = log.path(b"/".to_vec(), Some((Kind::Dir, 0)));
        log.numbers.insert(root, number);
        Ok(log)
    }

    fn path(&mut self, path: Vec<u8>, what: Option<(Kind, u64)>) -> u32 {
        if let Some(number) = self.by_name.get(&path) {
            return *number;
        }
        let number = self.paths.len() as u32;
        let (kind, size) = what.map_or(('?', -1), |(kind, size)| (letter(kind), size as i64));
        self.by_name.insert(path.clone(), number);
        self.paths.push(Seen { kind, size, path });
        number
    }

    fn of(&mut self, ino: Ino) -> u32 {
        if let Some(number) = self.numbers.get(&ino) {
            return *number;
        }
        let number = self.path(format!("/?/{ino}").into_bytes(), None);
        self.numbers.insert(ino, number);
        number
    }

    fn below(&mut self, parent: Ino, name: &[u8], what: Option<(Kind, u64)>) -> u32 {
        let parent = self.of(parent) as usize;
        let mut path = self.paths[parent].path.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        self.path(path, what)
    }

    fn line(&mut self, op: &str, path: u32, offset: u64, len: u64, result: u64) {
        let time = self.began.elapsed();
        let (sec, micros) = (time.as_secs(), time.subsec_micros());
        let written = writeln!(self.out, "{sec}.{micros:06},0,{op},{path},{offset},{len},{result}");
        if let Err(why) = written {
            self.failed.get_or_insert(why);
        }
    }

    /// Writes everything out, and the list of paths.
    fn end(mut self) -> Result<()> {
        let failed = |why| Error::io(self.name.display(), why);
        self.failed.take().map_or(Ok(()), Err).map_err(failed)?;
        self.out.flush().map_err(failed)?;
        let list = list_beside(&self.name);
        let failed = |why| Error::io(list.display(), why);
        let mut out = BufWriter::new(guard::output(&list)?);
        writeln!(out, "#path_id,type,size_at_first_open,path").map_err(failed)?;
        for (number, Seen { kind, size, path }) in self.paths.iter().enumerate() {
            // A name with a line end would be two lines.
            let path: Vec<u8> = path.iter().map(|byte| if *byte == b'\n' { b'?' } else { *byte }).collect();
            write!(out, "{number},{kind},{size},").map_err(failed)?;
            out.write_all(&path).and_then(|()| out.write_all(b"\n")).map_err(failed)?;
        }
        out.flush().map_err(failed)
    }
}

impl Recorded {
    pub fn new(fs: Arc<dyn FileSystem>) -> Recorded {
        Recorded { fs, on: AtomicBool::new(false), log: Arc::default() }
    }

    fn note(&self, work: impl FnOnce(&mut Log)) {
        if self.on.load(Relaxed)
            && let Some(log) = &mut *self.log.lock()
        {
            work(log);
        }
    }

    /// The answer of an operation on an inode, noted if it succeeded.
    fn on<T>(&self, ino: Ino, op: &str, done: Result<T>) -> Result<T> {
        if done.is_ok() {
            self.note(|log| {
                let path = log.of(ino);
                log.line(op, path, 0, 0, 0);
            });
        }
        done
    }

    fn turn(&self, value: &[u8]) -> Result<()> {
        let mut log = self.log.lock();
        if let (Some(log), false) = (&*log, value.is_empty()) {
            return Err(Error::InUse(format!("it is being recorded into {}", log.name.display())));
        }
        self.on.store(false, Relaxed);
        log.take().map_or(Ok(()), Log::end)?;
        if !value.is_empty() {
            let path = Path::new(std::ffi::OsStr::from_bytes(value));
            *log = Some(Log::begin(path, self.fs.root())?);
            self.on.store(true, Relaxed);
        }
        Ok(())
    }

    fn known(&self, parent: Ino, name: &[u8], attr: &Attr) {
        self.note(|log| {
            if name != b"." && name != b".." {
                let path = log.below(parent, name, Some((attr.kind, attr.size)));
                log.numbers.insert(attr.ino, path);
            }
        });
    }
}

impl FileSystem for Recorded {
    fn root(&self) -> Ino {
        self.fs.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.lookup(parent, name)?;
        self.known(parent, name, &attr);
        Ok(attr)
    }

    fn lookup_damaged(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        self.fs.lookup_damaged(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.fs.getattr(ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.fs.setattr(ino, set)?;
        self.note(|log| {
            let path = log.of(ino);
            match set.size {
                Some(size) => log.line("truncate", path, 0, size, 0),
                None => log.line("setattr", path, 0, 0, 0),
            }
        });
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.on(ino, "readlink", self.fs.readlink(ino))
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let attr = self.fs.create(caller, parent, name, node)?;
        self.note(|log| {
            let path = log.below(parent, name, Some((attr.kind, 0)));
            log.numbers.insert(attr.ino, path);
            match node.kind {
                Kind::Dir => log.line("mkdir", path, 0, 0, 0),
                Kind::Symlink => log.line("symlink", path, 0, node.target.len() as u64, 0),
                _ => log.line("create", path, 0, 0, 0),
            }
        });
        Ok(attr)
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.unlink(parent, name)?;
        self.note(|log| {
            let path = log.below(parent, name, None);
            log.line("unlink", path, 0, 0, 0);
        });
        Ok(())
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.rmdir(parent, name)?;
        self.note(|log| {
            let path = log.below(parent, name, None);
            log.line("rmdir", path, 0, 0, 0);
        });
        Ok(())
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        self.fs.rename(parent, name, new_parent, new_name, how)?;
        self.note(|log| {
            let (old, new) = (log.below(parent, name, None), log.below(new_parent, new_name, None));
            log.line("rename", old, new.into(), 0, 0);
            // Whoever holds the inode now reaches it by the new path.
            log.numbers.values_mut().filter(|number| **number == old).for_each(|number| *number = new);
        });
        Ok(())
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.link(ino, parent, name)?;
        self.note(|log| {
            let (old, new) = (log.of(ino), log.below(parent, name, Some((attr.kind, attr.size))));
            log.line("link", old, new.into(), 0, 0);
        });
        Ok(attr)
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        let answer = self.fs.read(ino, offset, len)?;
        if !self.on.load(Relaxed) {
            return Ok(answer);
        }
        let log = self.log.clone();
        let note = move |parts: &[Bytes]| {
            let done = parts.iter().map(Bytes::len).sum::<usize>() as u64;
            if let Some(log) = &mut *log.lock() {
                let path = log.of(ino);
                log.line("read", path, offset, len as u64, done);
            }
        };
        Ok(match answer {
            Deferred::Now(parts) => {
                note(&parts);
                Deferred::Now(parts)
            }
            Deferred::Wait(work) => Deferred::Wait(Box::new(move || work().inspect(|parts| note(parts)))),
        })
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        let answer = self.fs.write(ino, offset, data, kill_suid)?;
        self.note(|log| {
            let (path, len) = (log.of(ino), data.len() as u64);
            log.line("write", path, offset, len, len);
        });
        Ok(answer)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<Deferred<()>> {
        let op = if data_only { "fdatasync" } else { "fsync" };
        self.on(ino, op, self.fs.fsync(ino, data_only))
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let done = self.fs.readdir(ino, from, visit);
        self.note(|log| {
            let path = log.of(ino);
            log.line("getdents", path, 0, 0, u64::from(from == 0));
        });
        done
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        let mut shown = Vec::new();
        let on = self.on.load(Relaxed);
        let done = self.fs.readdir_attrs(ino, from, &mut |entry, attr| {
            let name = on.then(|| entry.name.to_vec());
            let taken = visit(entry, attr);
            if let (true, Some(name), Some(attr)) = (taken, name, attr) {
                shown.push((name, attr.clone()));
            }
            taken
        });
        shown.iter().for_each(|(name, attr)| self.known(ino, name, attr));
        self.note(|log| {
            let path = log.of(ino);
            log.line("getdents", path, 0, 0, u64::from(from == 0));
        });
        done
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.on(ino, "setattr", self.fs.setxattr(ino, name, value, how, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.on(ino, "setattr", self.fs.removexattr(ino, name))
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.fs.flags(ino)
    }

    fn set_flags(&self, ino: Ino, flags: u32) -> Result<()> {
        self.on(ino, "setattr", self.fs.set_flags(ino, flags))
    }

    fn trim(&self, trim: Trim) -> Result<Deferred<u64>> {
        self.fs.trim(trim)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.fs.fallocate(ino, offset, len, what)?;
        let op = match what {
            Fallocate::Reserve { keep_size: false } => "fallocate",
            Fallocate::Reserve { keep_size: true } => "fallocate-keep",
            Fallocate::Punch => "punch",
            Fallocate::Zero { keep_size: false } => "zero",
            Fallocate::Zero { keep_size: true } => "zero-keep",
        };
        self.note(|log| {
            let path = log.of(ino);
            log.line(op, path, offset, len, 0);
        });
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.fs.seek(ino, offset, what)
    }

    fn statfs(&self) -> Result<FsStat> {
        self.fs.statfs()
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        match name {
            RECORD if ino == self.fs.root() => match &*self.log.lock() {
                Some(log) => Ok(log.name.as_os_str().as_bytes().to_vec()),
                None => Err(Error::NoAttribute),
            },
            _ => self.fs.control_get(ino, name),
        }
    }

    fn control_set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        match name {
            RECORD if ino == self.fs.root() => self.turn(value),
            _ => self.fs.control_set(ino, name, value),
        }
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn shutdown(&self) -> Result<()> {
        let ended = self.turn(b"");
        self.fs.shutdown()?;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_memfs::MemFs;
    use bimetal_trace::ReadOptions;
    use bimetal_trace::calls::{Deed, Workload};
    use bimetal_trace::objects::{ObjectOp, ObjectTrace};

    #[test]
    fn what_is_asked_of_a_mount_comes_back_as_a_trace_of_objects() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        let fs = Recorded::new(Arc::new(MemFs::new(16 << 20, &Caller::default())));
        let caller = Caller::default();
        let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"" };
        let old = fs.create(&caller, fs.root(), b"old", &node(Kind::File)).unwrap().ino;
        fs.write(old, 0, &[1; 5000], false).unwrap();
        assert!(fs.control_set(fs.root(), RECORD, b"relative.csv").is_err());
        fs.control_set(fs.root(), RECORD, path.as_os_str().as_bytes()).unwrap();
        let second = dir.path().join("second.csv");
        fs.control_set(fs.root(), RECORD, second.as_os_str().as_bytes()).unwrap_err();
        assert!(!second.exists(), "one recording at a time");
        fs.lookup(fs.root(), b"old").unwrap();
        fs.read(old, 4000, 4096).unwrap();
        let new = fs.create(&caller, fs.root(), b"new", &node(Kind::File)).unwrap().ino;
        fs.write(new, 10, &[2; 100], false).unwrap();
        fs.rename(fs.root(), b"new", fs.root(), b"old", Rename::Replace).unwrap();
        fs.fsync(new, false).unwrap();
        fs.control_set(fs.root(), RECORD, b"").unwrap();
        fs.read(new, 0, 4096).unwrap();
        let trace = ObjectTrace::of_calls(&path).unwrap();
        assert!(trace.initial.contains(&(0, 5000)), "{:?}", trace.initial);
        let asks: Vec<_> = trace.requests.iter().filter(|one| one.object != 2).collect();
        let asks: Vec<_> = asks.into_iter().map(|one| (one.object, one.ask)).collect();
        let expected = [
            (0, ObjectOp::Read { offset: 4000, len: 1000 }),
            (1, ObjectOp::Create),
            (1, ObjectOp::Write { offset: 10, len: 100 }),
            (0, ObjectOp::Remove),
            (1, ObjectOp::Flush),
        ];
        assert_eq!(asks, expected);
    }

    #[test]
    fn what_is_given_space_and_what_gives_it_back_is_recorded_with_its_range() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        let fs = Recorded::new(Arc::new(MemFs::new(16 << 20, &Caller::default())));
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        fs.control_set(fs.root(), RECORD, path.as_os_str().as_bytes()).unwrap();
        let file = fs.create(&Caller::default(), fs.root(), b"f", &node).unwrap().ino;
        for (at, what) in [
            (0, Fallocate::Reserve { keep_size: false }),
            (4096, Fallocate::Reserve { keep_size: true }),
            (8192, Fallocate::Punch),
            (12_288, Fallocate::Zero { keep_size: false }),
            (16_384, Fallocate::Zero { keep_size: true }),
        ] {
            fs.fallocate(file, at, 100, what).unwrap();
        }
        assert!(fs.fallocate(file, 0, 0, Fallocate::Punch).is_err(), "what fails is not recorded");
        fs.control_set(fs.root(), RECORD, b"").unwrap();
        let workload = Workload::open(path.to_str().unwrap(), &ReadOptions::default(), 1).unwrap();
        let deeds: Vec<Deed> = workload.calls.iter().map(|call| call.deed).collect();
        let expected = [
            Deed::Create,
            Deed::Allocate { offset: 0, len: 100, keep_size: false },
            Deed::Allocate { offset: 4096, len: 100, keep_size: true },
            Deed::Punch(8192, 100),
            Deed::Zero { offset: 12_288, len: 100, keep_size: false },
            Deed::Zero { offset: 16_384, len: 100, keep_size: true },
        ];
        assert_eq!(deeds, expected);
    }
}
