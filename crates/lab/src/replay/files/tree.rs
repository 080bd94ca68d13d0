//! What calls are made on: a tree of files, by numbered paths.

use super::names::Names;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_trace::calls::{Deed, Place};
use bimetal_vfs::{Caller, Fallocate, FileSystem, Kind, NewNode, Rename, SetAttr, SetTime};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::Value;
use std::sync::Arc;

/// Gives up to so many bytes that a file is to hold from an offset on.
pub(crate) type Contents<'a> = dyn Fn(u64, usize) -> &'a [u8] + 'a;

/// A file system that calls are made on.
pub(crate) trait Target: Send + Sync {
    /// Does what a call asks of a path; the bytes it moved.
    fn call(&self, places: &[Place], path: u32, deed: Deed, contents: &Contents) -> Result<u64>;

    /// The last call on a file without a name was made: it is closed.
    fn release(&self, path: u32) -> Result<()>;

    /// Waits until the devices have done what was asked for, where calls do not.
    fn settle(&self);

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Ends it.
    fn close(&self) -> Result<()>;

    /// Its counters.
    fn status(&self) -> Result<Value>;
}

/// A [`FileSystem`], and the inodes its callers know, as a kernel's cache of names does.
pub(crate) struct Tree {
    fs: Arc<dyn FileSystem>,
    /// The inode of each path that was used; each has a reference.
    known: Mutex<Names>,
    /// Files that have no name and are open, each with a reference.
    open: Mutex<FxHashMap<u32, Ino>>,
    settle: Box<dyn Fn() + Send + Sync>,
}

/// The most bytes read at once.
const READ_BYTES: u64 = 64 << 20;

/// Who calls.
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

impl Tree {
    /// Over `fs`; `settle` waits for devices that calls do not wait for.
    pub fn new(fs: Arc<dyn FileSystem>, settle: impl Fn() + Send + Sync + 'static) -> Tree {
        Tree { fs, known: Mutex::default(), open: Mutex::default(), settle: Box::new(settle) }
    }

    /// The inode of a path: from the first directory above it that is known, each name is looked up.
    fn ino(&self, places: &[Place], path: u32) -> Result<Ino> {
        if let Some(ino) = self.open.lock().get(&path) {
            return Ok(*ino);
        }
        let (mut unknown, mut at) = (Vec::new(), path);
        let mut ino = loop {
            let known = if at == 0 { Some(self.fs.root()) } else { self.known.lock().get(at) };
            if let Some(ino) = known {
                break ino;
            }
            unknown.push(at);
            at = places[at as usize].parent;
        };
        for path in unknown.into_iter().rev() {
            ino = self.fs.lookup(ino, &places[path as usize].name)?.ino;
            self.learn(places, path, ino);
        }
        Ok(ino)
    }

    fn place<'p>(&self, places: &'p [Place], path: u32) -> Result<(Ino, &'p [u8])> {
        let place = &places[path as usize];
        Ok((self.ino(places, place.parent)?, &place.name))
    }

    /// A path has an inode, of which the caller has a reference.
    fn learn(&self, places: &[Place], path: u32, ino: Ino) {
        let old = self.known.lock().put(places, path, ino);
        if let Some(old) = old {
            self.fs.forget(old, 1);
        }
    }

    fn forget(&self, places: &[Place], path: u32) {
        let known = self.known.lock().take(places, path);
        if let Some(ino) = known {
            self.fs.forget(ino, 1);
        }
    }

    /// Removes a name whose file is open as the path `open`.
    fn unlink_open(&self, places: &[Place], path: u32, open: u32) -> Result<()> {
        let (ino, (parent, name)) = (self.ino(places, path)?, self.place(places, path)?);
        self.fs.unlink(parent, name)?;
        // The reference of the name is that of the open file now; another call may have taken it with the name.
        if self.known.lock().take(places, path).is_some() {
            self.open.lock().insert(open, ino);
        }
        Ok(())
    }

    fn make(&self, places: &[Place], path: u32, (kind, target): (Kind, &[u8])) -> Result<()> {
        let (parent, name) = self.place(places, path)?;
        let perm = if kind == Kind::Dir { 0o777 } else { 0o666 };
        let attr = self.fs.create(&CALLER, parent, name, &NewNode { kind, perm, rdev: 0, target })?;
        self.learn(places, path, attr.ino);
        Ok(())
    }

    fn write(&self, ino: Ino, offset: u64, len: u64, contents: &Contents) -> Result<u64> {
        let mut done = 0;
        while done < len {
            let part = contents(offset + done, (len - done) as usize);
            let written = self.fs.write(ino, offset + done, part, false)?.get()? as u64;
            if written == 0 {
                return Err(Error::NoSpace("for what is written"));
            }
            done += written;
        }
        Ok(done)
    }

    fn rename(&self, places: &[Place], path: u32, to: u32) -> Result<()> {
        let ((from, name), (into, new)) = (self.place(places, path)?, self.place(places, to)?);
        self.fs.rename(from, name, into, new, Rename::Replace)?;
        if path != to {
            let (below, moved) = {
                let mut known = self.known.lock();
                (known.take_below(path), known.take(places, path))
            };
            below.into_iter().for_each(|ino| self.fs.forget(ino, 1));
            match moved {
                Some(ino) => self.learn(places, to, ino),
                None => self.forget(places, to),
            }
        }
        Ok(())
    }

    /// Reads a range in parts, so that no more of it is in memory at a time; the bytes there were.
    fn read(&self, ino: Ino, offset: u64, len: u64) -> Result<u64> {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(READ_BYTES) as usize;
            let parts = self.fs.read(ino, offset + done, part)?.get()?;
            let read: usize = parts.iter().map(|part| part.len()).sum();
            done += read as u64;
            if read < part {
                break;
            }
        }
        Ok(done)
    }

    fn list(&self, ino: Ino) -> Result<()> {
        let mut from = 0;
        loop {
            let before = from;
            self.fs.readdir(ino, from, &mut |entry| {
                from = entry.next;
                true
            })?;
            if from == before {
                return Ok(());
            }
        }
    }
}

impl Target for Tree {
    fn call(&self, places: &[Place], path: u32, deed: Deed, contents: &Contents) -> Result<u64> {
        let ino = || self.ino(places, path);
        let mut bytes = 0;
        match deed {
            Deed::Create => self.make(places, path, (Kind::File, b""))?,
            Deed::Mkdir => self.make(places, path, (Kind::Dir, b""))?,
            Deed::Symlink(len) => self.make(places, path, (Kind::Symlink, &vec![b'x'; len as usize]))?,
            Deed::Read(offset, len) => bytes = self.read(ino()?, offset, len)?,
            Deed::Write(offset, len) => bytes = self.write(ino()?, offset, len, contents)?,
            Deed::Fsync => self.fs.fsync(ino()?, false)?.get()?,
            Deed::Truncate(size) => {
                self.fs.setattr(ino()?, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            Deed::Allocate { offset, len, keep_size } => {
                self.fs.fallocate(ino()?, offset, len, Fallocate::Reserve { keep_size })?;
            }
            Deed::Zero { offset, len, keep_size } => {
                self.fs.fallocate(ino()?, offset, len, Fallocate::Zero { keep_size })?;
            }
            Deed::Punch(offset, len) => self.fs.fallocate(ino()?, offset, len, Fallocate::Punch)?,
            Deed::Unlink => {
                let (parent, name) = self.place(places, path)?;
                self.fs.unlink(parent, name)?;
                self.forget(places, path);
            }
            Deed::UnlinkOpen(open) => self.unlink_open(places, path, open)?,
            Deed::Rmdir => {
                let (parent, name) = self.place(places, path)?;
                self.fs.rmdir(parent, name)?;
                self.forget(places, path);
            }
            Deed::Rename(to) => self.rename(places, path, to)?,
            Deed::Link(to) => {
                let (parent, name) = self.place(places, to)?;
                let attr = self.fs.link(ino()?, parent, name)?;
                self.learn(places, to, attr.ino);
            }
            Deed::List => self.list(ino()?)?,
            Deed::Stat => {
                self.fs.getattr(ino()?)?;
            }
            Deed::SetAttributes => {
                let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
                self.fs.setattr(ino()?, &set)?;
            }
            Deed::Readlink => drop(self.fs.readlink(ino()?)?),
        }
        Ok(bytes)
    }

    fn release(&self, path: u32) -> Result<()> {
        let open = self.open.lock().remove(&path);
        if let Some(ino) = open {
            self.fs.forget(ino, 1);
        }
        Ok(())
    }

    fn settle(&self) {
        (self.settle)();
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()?;
        self.settle();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.fs.shutdown()
    }

    fn status(&self) -> Result<Value> {
        let text = self.fs.control_get(self.fs.root(), "bimetal.status")?;
        serde_json::from_slice(&text).map_err(|why| Error::corrupt("the status", why, "bimetal.status"))
    }
}
