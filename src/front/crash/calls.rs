//! Every call that changes a file system or makes it durable, written down with what was seen right after it.
//!
//! [`Traced`] is a file system over another. Calls that change something go one at a time, so that their order is
//! known; calls that wait (an fsync, a write that is held back) do not hold the others up. A call's place among the
//! requests to the devices is told by a [`Recorder`]: where it began, and where it had returned.
//!
//! What a call did is not worked out but looked up: after each the attributes of the inodes it touched are read. The
//! model of [`history`](super::history) is so one of what programs were shown.

use super::snapshot::{Shape, shape};
use crate::Result;
use crate::fs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, NewNode, Rename, Seek, SetAttr,
    SetXattr, Trim, VisitAttrs,
};
use crate::media::recorded::Recorder;
use crate::units::Ino;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// What was asked for, with inodes by their numbers at the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRequest {
    /// A new object under a name.
    Create {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// The number it got.
        ino: Ino,
    },
    /// One more name.
    Link {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// A name gone, of a file or a directory.
    Remove {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// A name moved.
    Rename {
        /// The old directory and name.
        from: (Ino, Vec<u8>),
        /// The new ones.
        to: (Ino, Vec<u8>),
        /// They were swapped.
        exchange: bool,
        /// What was left under the old name, if a whiteout was asked for.
        whiteout: Option<Ino>,
    },
    /// Bytes put into a file.
    Write {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A range that reads as zeros, inside the size.
    Zero {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Attributes, extended ones or the size of an inode.
    Attributes {
        /// The inode.
        ino: Ino,
    },
    /// An inode made durable, with the names that lead to it.
    Sync {
        /// The inode.
        ino: Ino,
    },
}

/// An inode after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Its number.
    pub ino: Ino,
    /// Its shape.
    pub shape: Shape,
    /// Its size, bytes.
    pub size: u64,
}

/// One call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What was asked for.
    pub ask: CallRequest,
    /// Log entries before this number were submitted before it began.
    pub begun: usize,
    /// It had returned before the entry of this number was submitted; `None`: it never did.
    pub done: Option<usize>,
    /// What was seen after it.
    pub after: Vec<After>,
}

/// The longest write that is one call, and what its ends are multiples of, bytes. A longer one is several operations to the
/// file system, and a cut may fall between any two of them.
const PART: u64 = 32 << 10;
/// Where a call that met a full disk may have come apart: it goes on in pieces that end at multiples of this, bytes, with
/// commits between them.
const PIECE: u64 = 4 << 10;
/// With less room than this, bytes, a call that waited for a device may have met a full disk, though all of it was written.
const CROWDED: u64 = 1 << 20;

/// A file system whose changes are written down.
pub struct Traced {
    fs: Arc<dyn FileSystem>,
    recorder: Arc<Recorder>,
    calls: Arc<Mutex<Vec<Call>>>,
    /// Held through a call that changes something.
    turn: Mutex<()>,
}

impl Traced {
    /// `fs`, written down from now on; `recorder` has its devices.
    pub fn new(fs: Arc<dyn FileSystem>, recorder: Arc<Recorder>) -> Traced {
        Traced { fs, recorder, calls: Arc::default(), turn: Mutex::new(()) }
    }

    /// What was called so far.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// A look at an inode; nothing if it is gone.
    fn look(&self, ino: Ino) -> Option<After> {
        let attr = self.fs.getattr(ino).ok()?;
        let shape = shape(&*self.fs, &attr).ok()?;
        Some(After { ino, shape, size: attr.size })
    }

    /// The inode behind a name, if there is one.
    fn behind(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let attr = self.fs.lookup(parent, name).ok()?;
        self.fs.forget(attr.ino, 1);
        Some(attr.ino)
    }

    /// Makes a call in its turn; `told` says what it was, and which inodes it may have touched.
    fn change<T>(
        &self,
        call: impl FnOnce() -> Result<T>,
        told: impl FnOnce(&T) -> (CallRequest, Vec<Ino>),
    ) -> Result<T> {
        let _turn = self.turn.lock();
        let begun = self.recorder.position();
        let answer = call()?;
        let (ask, touched) = told(&answer);
        self.write_down(ask, begun, &touched);
        Ok(answer)
    }

    fn write_down(&self, ask: CallRequest, begun: usize, touched: &[Ino]) {
        let done = Some(self.recorder.position());
        let after = touched.iter().filter_map(|&ino| self.look(ino)).collect();
        self.calls.lock().push(Call { ask, begun, done, after });
    }

    /// Writes down a write that met a full disk: one call for each piece of which a commit may have been the end.
    fn write_down_pieces(&self, ino: Ino, offset: u64, data: &Bytes, begun: usize, size_before: u64) {
        let done = Some(self.recorder.position());
        let after = self.look(ino);
        let mut from = 0;
        while from < data.len() {
            let at = offset + from as u64;
            let len = (PIECE - at % PIECE).min((data.len() - from) as u64) as usize;
            let (end, piece) = (at + len as u64, data.slice(from..from + len));
            let after = after
                .iter()
                .map(|after| After { size: size_before.max(end).min(after.size), ..after.clone() });
            let ask = CallRequest::Write { ino, offset: at, data: piece };
            self.calls.lock().push(Call { ask, begun, done, after: after.collect() });
            from += len;
        }
    }

    /// A write that the file system does as one operation, unless it meets a full disk.
    fn write_one(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<usize> {
        let _turn = self.turn.lock();
        let room = self.fs.statfs().map_or(0, |space| space.free * u64::from(space.block_bytes));
        let size_before = self.fs.getattr(ino).map_or(0, |attr| attr.size);
        let (begun, asked) = (self.recorder.position(), data.len());
        // Its place in the list is where it takes effect, so it is waited for here.
        let written = self.fs.write(ino, offset, data, kill_suid).and_then(Deferred::get);
        let data = match written {
            Ok(written) => Bytes::copy_from_slice(&data[..written]),
            // It may have done a part of its work: what is there now is what was written.
            Err(_) => {
                let there = self.fs.read(ino, offset, data.len()).and_then(Deferred::get);
                there.map(|parts| Bytes::from(parts.concat())).unwrap_or_default()
            }
        };
        let is_whole = written.as_ref().is_ok_and(|written| *written == asked);
        let waited_for_room = room < CROWDED && self.recorder.position() > begun;
        match is_whole && !waited_for_room {
            true => self.write_down(CallRequest::Write { ino, offset, data }, begun, &[ino]),
            false => self.write_down_pieces(ino, offset, &data, begun, size_before),
        }
        written
    }

    fn attributes<T>(&self, ino: Ino, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.change(call, |_| (CallRequest::Attributes { ino }, vec![ino]))
    }

    fn remove(&self, parent: Ino, name: &[u8], call: impl FnOnce() -> Result<()>) -> Result<()> {
        // Looked up outside its turn: another may take the name away before, and then the call fails.
        let victim = self.behind(parent, name);
        self.change(call, |()| {
            let touched = std::iter::once(parent).chain(victim).collect();
            (CallRequest::Remove { parent, name: name.to_vec() }, touched)
        })
    }
}

impl FileSystem for Traced {
    fn root(&self) -> Ino {
        self.fs.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.fs.lookup(parent, name)
    }

    fn lookup_damaged(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, crate::fs::Kind)>> {
        self.fs.lookup_damaged(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.fs.getattr(ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.attributes(ino, || self.fs.setattr(ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(ino)
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.change(
            || self.fs.create(caller, parent, name, node),
            |attr| {
                (CallRequest::Create { parent, name: name.to_vec(), ino: attr.ino }, vec![attr.ino, parent])
            },
        )
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, || self.fs.unlink(parent, name))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, || self.fs.rmdir(parent, name))
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        let both = [self.behind(parent, name), self.behind(new_parent, new_name)];
        self.change(
            || self.fs.rename(parent, name, new_parent, new_name, how),
            |()| {
                let whiteout = if how == Rename::Whiteout { self.behind(parent, name) } else { None };
                let ask = CallRequest::Rename {
                    from: (parent, name.to_vec()),
                    to: (new_parent, new_name.to_vec()),
                    exchange: how == Rename::Exchange,
                    whiteout,
                };
                let touched = [Some(parent), Some(new_parent), whiteout].into_iter().chain(both);
                (ask, touched.flatten().collect())
            },
        )
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.change(
            || self.fs.link(ino, parent, name),
            |_| (CallRequest::Link { ino, parent, name: name.to_vec() }, vec![ino, parent]),
        )
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        self.fs.read(ino, offset, len)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        let mut done = 0;
        loop {
            let at = offset.saturating_add(done as u64);
            let len = (PART - at % PART).min((data.len() - done) as u64) as usize;
            match self.write_one(ino, at, &data[done..done + len], kill_suid) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            }
            if at.saturating_add(len as u64) != offset.saturating_add(done as u64) || done == data.len() {
                break;
            }
        }
        Ok(Deferred::Now(done))
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<Deferred<()>> {
        // Its place in the list is what it covers: everything before.
        let turn = self.turn.lock();
        let begun = self.recorder.position();
        let place = {
            let mut calls = self.calls.lock();
            calls.push(Call { ask: CallRequest::Sync { ino }, begun, done: None, after: Vec::new() });
            calls.len() - 1
        };
        drop(turn);
        let (calls, recorder) = (self.calls.clone(), self.recorder.clone());
        let returned = move || calls.lock()[place].done = Some(recorder.position());
        Ok(match self.fs.fsync(ino, data_only)? {
            Deferred::Now(()) => {
                returned();
                Deferred::Now(())
            }
            Deferred::Wait(work) => Deferred::Wait(Box::new(move || work().inspect(|()| returned()))),
        })
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.fs.readdir(ino, from, visit)
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        self.fs.readdir_attrs(ino, from, visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.attributes(ino, || self.fs.setxattr(ino, name, value, how, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.attributes(ino, || self.fs.removexattr(ino, name))
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.fs.flags(ino)
    }

    fn set_flags(&self, ino: Ino, flags: u32) -> Result<()> {
        self.fs.set_flags(ino, flags)
    }

    fn trim(&self, trim: Trim) -> Result<Deferred<u64>> {
        self.fs.trim(trim)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.change(
            || self.fs.fallocate(ino, offset, len, what),
            |()| match what {
                Fallocate::Reserve { .. } => (CallRequest::Attributes { ino }, vec![ino]),
                Fallocate::Punch | Fallocate::Zero { .. } => {
                    (CallRequest::Zero { ino, offset, len }, vec![ino])
                }
            },
        )
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.fs.seek(ino, offset, what)
    }

    fn statfs(&self) -> Result<FsStat> {
        self.fs.statfs()
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.fs.control_get(ino, name)
    }

    fn control_set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        self.attributes(ino, || self.fs.control_set(ino, name, value))
    }

    fn sync(&self) -> Result<()> {
        let place = {
            let _turn = self.turn.lock();
            let begun = self.recorder.position();
            let mut calls = self.calls.lock();
            let ask = CallRequest::Sync { ino: self.fs.root() };
            calls.push(Call { ask, begun, done: None, after: Vec::new() });
            calls.len() - 1
        };
        self.fs.sync()?;
        self.calls.lock()[place].done = Some(self.recorder.position());
        Ok(())
    }

    fn shutdown(&self) -> Result<()> {
        self.fs.shutdown()
    }
}

/// Whether a mode is that of a file.
pub(super) fn is_file(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::fs::Kind;
    use crate::fs::memfs::MemFs;

    fn node(kind: Kind) -> NewNode<'static> {
        NewNode { kind, perm: 0o644, rdev: 0, target: b"" }
    }

    #[test]
    fn each_change_is_there_with_what_was_seen_after_it_and_a_failed_one_is_not() {
        let traced = Traced::new(Arc::new(MemFs::new(1 << 20, &Caller::default())), Recorder::new());
        let root = traced.root();
        let ino = traced.create(&Caller::default(), root, b"a", &node(Kind::File)).unwrap().ino;
        traced.write(ino, 10, b"abc", false).unwrap().get().unwrap();
        assert!(matches!(traced.unlink(root, b"none"), Err(Error::NotFound)));
        traced.fsync(ino, false).unwrap().get().unwrap();
        traced.unlink(root, b"a").unwrap();
        let calls = traced.calls();
        let asks: Vec<&CallRequest> = calls.iter().map(|call| &call.ask).collect();
        assert_eq!(
            asks,
            [
                &CallRequest::Create { parent: root, name: b"a".to_vec(), ino },
                &CallRequest::Write { ino, offset: 10, data: Bytes::from_static(b"abc") },
                &CallRequest::Sync { ino },
                &CallRequest::Remove { parent: root, name: b"a".to_vec() },
            ]
        );
        assert_eq!(calls[1].after[0].size, 13);
        assert_eq!(
            calls[3].after.iter().find(|after| after.ino == ino).map(|after| after.shape.nlink),
            Some(0)
        );
        assert!(calls.iter().all(|call| call.done == Some(0)));
    }

    #[test]
    fn a_long_write_is_several_calls_of_which_a_file_system_does_each_whole() {
        let traced = Traced::new(Arc::new(MemFs::new(1 << 20, &Caller::default())), Recorder::new());
        let ino = traced.create(&Caller::default(), traced.root(), b"a", &node(Kind::File)).unwrap().ino;
        let long = vec![7; 3 * PART as usize];
        assert_eq!(traced.write(ino, 5, &long, false).unwrap().get().unwrap(), long.len());
        let sizes: Vec<u64> = traced.calls().iter().skip(1).map(|call| call.after[0].size).collect();
        assert_eq!(sizes, [PART, 2 * PART, 3 * PART, 3 * PART + 5]);
        assert_eq!(traced.write(ino, 0, &[], false).unwrap().get().unwrap(), 0);
        assert!(traced.write(ino, u64::MAX - 1, &[1; 8], false).is_err());
        // One that met a full disk comes apart, at the borders of blocks and nowhere else.
        let before = traced.calls().len();
        traced.fs.write(ino, 4 * PART + 100, &long[..10_000], false).unwrap();
        let data = Bytes::copy_from_slice(&long[..10_000]);
        traced.write_down_pieces(ino, 4 * PART + 100, &data, 0, 3 * PART + 5);
        let sizes: Vec<u64> = traced.calls()[before..].iter().map(|call| call.after[0].size).collect();
        assert_eq!(sizes, [4096, 8192, 10_100].map(|end| 4 * PART + end));
        // More than there is room for: what was written is said.
        let most = vec![8; 2 << 20];
        let written = traced.write(ino, 0, &most, false).unwrap().get().unwrap();
        assert!(written > 0 && written < most.len() && (written as u64).is_multiple_of(PART), "{written}");
    }
}
