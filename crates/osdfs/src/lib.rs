//! osdfs: files on an object store. The file system keeps names; everything else is the store's.
//!
//! An inode is an object, and its number is the object's. What a file system knows of it is an attribute of the
//! object (`inode`), a directory is an object with entries as its contents (`dir`). Object 1 is the root; object 2
//! is a directory of what has no name any more and is still held, so that the next mount removes it. Kang, Yang and
//! Miller, MASCOTS 2010, section 3.1: the file system above an object store maps names to ids, and no more.
//!
//! **Promises.** An operation on names happens whole or not at all, whatever cuts the power: its changes are held
//! together in the store. `fsync` makes everything durable that was done before; without it, everything is durable
//! after five seconds. Reading notes the access every time, as the store promises it.
//!
//! One lock, which is held neither while pages of files are fetched and checked nor while the host of an image writes for an fsync. Directories in use stay in memory, up to [`CACHED_ENTRIES`] entries.

mod check;
mod dir;
mod inode;
mod names;
mod repair;
mod salvage;
#[cfg(test)]
mod tests;
pub mod volume;

pub use check::{Checked, check};
pub use repair::repair;

use bimetal_base::runtime::sync::{Mutex, MutexGuard};
use bimetal_base::runtime::{self, Clock, Live};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::kept::Unsynced;
use bimetal_osd_core::{Content, ObjectId, Place, SetTimes, Store};
use bimetal_vfs::adapter::{self, Mode, Objects, References, Ticker};
use bimetal_vfs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, Kind, NewNode, Rename, Seek, SetAttr,
    SetTime, SetXattr, explained_from,
};
use bytes::Bytes;
use dir::{Dir, Target};
use inode::{BLOCK_BYTES, Inode, has_files, is_users};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// The object of the root directory.
const ROOT: u64 = 1;
/// The directory of what is held and has no name.
const NAMELESS: u64 = 2;
/// Entries of directories kept in memory.
const CACHED_ENTRIES: usize = 1 << 20;
/// How often what nobody asked to be durable is made durable.
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// How often an fsync gives way to what others wrote while it waited for the host.
const PATIENCE: u32 = 1;
/// The store's hint for directories: their bytes are soon replaced.
const DIRECTORY_HINT: u8 = 1;
/// Most stretches of one answer of where a file is: some 40 KiB.
const STRETCHES_MAX: usize = 256;
/// Room that an operation on names must find.
const NAME_ROOM: u64 = 64 << 10;

/// What the lock is around.
struct State {
    store: Store,
    references: References,
    dirs: FxHashMap<u64, Dir>,
    cached: usize,
    /// Reads whose pages were not what they had been looked up for.
    reads_again: u64,
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
}

/// A file system on an object store.
pub struct OsdFs {
    shared: Arc<Shared>,
    committer: Ticker,
}

impl OsdFs {
    /// Puts an empty file system on an empty store; the root is the caller's.
    ///
    /// # Errors
    /// The store has objects, or cannot be written.
    pub fn make(store: &mut Store, caller: &Caller) -> Result<()> {
        OsdFs::make_at(store, caller, Live::wall_clock())
    }

    /// The same, made at `now`.
    ///
    /// # Errors
    /// As [`OsdFs::make`].
    pub fn make_at(store: &mut Store, caller: &Caller, now: Stamp) -> Result<()> {
        store.arrive(now.into());
        store.hold()?;
        let made = [ROOT, NAMELESS].into_iter().try_for_each(|object| {
            store.create_as(ObjectId(object), DIRECTORY_HINT)?;
            let root = Inode {
                mode: Mode {
                    kind: Kind::Dir,
                    perm: if object == ROOT { 0o755 } else { 0 },
                    uid: caller.uid,
                    gid: caller.gid,
                },
                nlink: 2,
                rdev: 0,
                parent: object,
            };
            root.write(store, object)
        });
        store.release();
        made?;
        store.flush()
    }

    /// Takes a store with a file system, live. See [`OsdFs::new_on`].
    ///
    /// # Errors
    /// As those.
    pub fn new(store: Store, manual: bool) -> Result<OsdFs> {
        OsdFs::new_on(runtime::live(), store, manual)
    }

    /// Takes a store with a file system. Unless `manual`, a thread makes changes durable after five seconds, and what
    /// was left without a name is removed.
    ///
    /// # Errors
    /// There is no file system on the store; it cannot be read.
    pub fn new_on(clock: Clock, mut store: Store, manual: bool) -> Result<OsdFs> {
        store.arrive(clock.wall().into());
        check_root(&mut store)?;
        let mut state = State {
            store,
            references: References::default(),
            dirs: FxHashMap::default(),
            cached: 0,
            reads_again: 0,
        };
        if !manual {
            state.remove_nameless()?;
        }
        let shared = Arc::new(Shared { clock, state: Mutex::new(state) });
        let committer = if manual { Ticker::default() } else { start_committer(shared.clone())? };
        Ok(OsdFs { shared, committer })
    }

    /// How long its flash, where that is a model, still works on what was asked of it so far.
    pub fn busy_for(&self) -> Duration {
        let state = self.shared.state.lock();
        state.store.done().since(self.shared.clock.wall().into())
    }

    /// Ends without making anything durable, as a cut of the power does; the store.
    #[cfg(test)]
    fn into_store(self) -> Store {
        self.committer.stop();
        let shared = self.shared.clone();
        drop(self);
        Arc::into_inner(shared).expect("the thread has ended").state.into_inner().store
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.shared.with(work)
    }
}

/// The state, of which a panic may leave memory ahead of the flash: nothing more is written then.
struct Whole<'a>(MutexGuard<'a, State>);

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store.give_up("a fault of bimetal's");
        }
    }
}

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = Whole(self.state.lock());
        state.0.store.arrive(self.clock.wall().into());
        work(&mut state.0)
    }

    /// Makes everything durable that was done before, without the lock while the host of an image writes: of those who ask
    /// together one has it write for all.
    fn flush(&self) -> Result<()> {
        let commit = self.with(|state| state.store.begin_flush())?;
        self.flush_on(commit)
    }

    fn flush_on(&self, commit: u64) -> Result<()> {
        for tries in 0.. {
            let at_once = tries > PATIENCE;
            match self.with(|state| state.store.flush_on(commit, at_once))? {
                Some(unsynced) => self.keep(&unsynced)?,
                None => break,
            }
        }
        Ok(())
    }

    fn keep(&self, unsynced: &Unsynced) -> Result<()> {
        let kept = unsynced.keep();
        if kept.is_ok() { Ok(()) } else { self.with(|state| state.store.waited(kept)) }
    }

    /// As [`flush`](Shared::flush), and access times.
    fn sync(&self) -> Result<()> {
        self.flush()?;
        let accesses = self.with(|state| state.store.begin_sync_accesses())?;
        self.keep(&accesses)
    }
}

fn start_committer(shared: Arc<Shared>) -> Result<Ticker> {
    let clock = shared.clock.clone();
    Ticker::start(&clock, "osd-commit", COMMIT_EVERY, move || {
        if let Err(why) = shared.sync() {
            tracing::error!("osd: changes could not be made durable: {why}");
        }
    })
}

impl Objects for State {
    fn mode(&mut self, id: u64) -> Result<Mode> {
        Ok(Inode::read(&mut self.store, id)?.mode)
    }

    fn set_perm(&mut self, id: u64, perm: u16) -> Result<()> {
        let mut inode = Inode::read(&mut self.store, id)?;
        inode.mode.perm = perm;
        inode.write(&mut self.store, id)
    }

    fn attribute(&mut self, id: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.store.get_attribute(ObjectId(id), name) {
            Err(Error::NoAttribute) => Ok(None),
            found => found.map(Some).map_err(stale),
        }
    }

    fn set_attribute(&mut self, id: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.store.set_attribute(ObjectId(id), name, value),
            None => self.store.remove_attribute(ObjectId(id), name),
        }
    }

    fn size(&mut self, id: u64) -> Result<u64> {
        Ok(self.store.stat(ObjectId(id))?.size)
    }

    fn resize(&mut self, id: u64, size: u64) -> Result<()> {
        self.store.truncate(ObjectId(id), size)
    }

    fn punch(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        self.store.punch(ObjectId(id), from, to - from)
    }

    /// Promises whole blocks, as space is counted.
    fn reserve(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        let from = from / BLOCK_BYTES * BLOCK_BYTES;
        self.store.reserve_range(ObjectId(id), from, to.div_ceil(BLOCK_BYTES) * BLOCK_BYTES - from)
    }
}

impl State {
    fn attr(&mut self, object: u64) -> Result<Attr> {
        let inode = Inode::read(&mut self.store, object)?;
        let stat = self.store.stat(ObjectId(object))?;
        Ok(inode.attr(object, &stat))
    }

    /// The attributes of an object, one reference more.
    fn held(&mut self, object: u64) -> Result<Attr> {
        let attr = self.attr(object)?;
        self.references.add(object);
        Ok(attr)
    }

    /// The inode of a directory.
    fn dir_inode(&mut self, object: u64) -> Result<Inode> {
        let inode = Inode::read(&mut self.store, object)?;
        if inode.mode.kind == Kind::Dir { Ok(inode) } else { Err(Error::NotDir) }
    }

    /// Reads a directory into memory if it is not there.
    fn load(&mut self, object: u64) -> Result<()> {
        if !self.dirs.contains_key(&object) {
            self.dir_inode(object)?;
            if self.cached > CACHED_ENTRIES {
                self.dirs.clear();
                self.cached = 0;
            }
            let dir = Dir::read(&mut self.store, object)?;
            self.cached += dir.len();
            self.dirs.insert(object, dir);
        }
        Ok(())
    }

    /// A directory and the store.
    fn dir(&mut self, object: u64) -> Result<(&mut Dir, &mut Store)> {
        self.load(object)?;
        let dir = self.dirs.get_mut(&object).ok_or(Error::Stale)?;
        Ok((dir, &mut self.store))
    }

    fn find(&mut self, object: u64, name: &[u8]) -> Result<Target> {
        if name.len() > bimetal_vfs::NAME_MAX {
            return Err(Error::NameTooLong);
        }
        self.dir(object)?.0.get(name).ok_or(Error::NotFound)
    }

    /// Runs an operation on names: whole or not at all.
    fn together<T>(&mut self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.store.hold()?;
        let capacity = self.store.capacity();
        let done = match capacity.used + NAME_ROOM > capacity.total {
            true => Err(Error::NoSpace("the object store is full")),
            false => work(self),
        };
        self.end(done)
    }

    /// As [`together`](State::together), for what must work on a full store, too.
    fn giving<T>(&mut self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.store.hold_giving()?;
        let done = work(self);
        self.end(done)
    }

    /// The end of an operation: where it failed, what it did so far is taken back, here and in the store.
    fn end<T>(&mut self, done: Result<T>) -> Result<T> {
        if done.is_ok() {
            self.store.release();
        } else if self.store.take_back() {
            self.dirs.clear();
            self.cached = 0;
        }
        done
    }

    fn set_attr(&mut self, object: u64, set: &SetAttr) -> Result<()> {
        let mut inode = Inode::read(&mut self.store, object)?;
        if let Some(size) = set.size {
            if inode.mode.kind == Kind::Dir {
                return Err(Error::IsDir);
            }
            self.store.truncate(ObjectId(object), size)?;
        }
        let before = inode;
        if set.kill_suid {
            inode.mode.kill_set_id();
        }
        if let Some(perm) = set.perm {
            inode.mode.perm = perm & 0o7777;
            self.follow_perm(object, perm)?;
        }
        inode.mode.uid = set.uid.unwrap_or(inode.mode.uid);
        inode.mode.gid = set.gid.unwrap_or(inode.mode.gid);
        if inode != before {
            inode.write(&mut self.store, object)?;
        }
        let now = self.store.arrived();
        let at = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(stamp) => stamp,
        };
        let times = SetTimes {
            accessed: set.atime.map(at),
            modified: set.mtime.map(at),
            changed: Some(set.ctime.unwrap_or(now)),
            created: None,
        };
        self.store.set_times(ObjectId(object), &times)
    }

    fn seek(&mut self, object: u64, offset: u64, what: Seek) -> Result<u64> {
        let size = self.store.stat(ObjectId(object))?.size;
        if offset >= size {
            return Err(Error::NoOffset);
        }
        let (mut at, mut data) = (offset, None);
        self.store.stored(ObjectId(object), offset / BLOCK_BYTES * BLOCK_BYTES, &mut |from, to| {
            let (from, to) = (from / BLOCK_BYTES * BLOCK_BYTES, to.div_ceil(BLOCK_BYTES) * BLOCK_BYTES);
            if to <= at {
                return true;
            }
            match what {
                Seek::Data => {
                    data = Some(from.max(at));
                    false
                }
                Seek::Hole if from > at => false,
                Seek::Hole => {
                    at = to;
                    true
                }
            }
        })?;
        match what {
            Seek::Hole => Ok(at.min(size)),
            Seek::Data => data.filter(|at| *at < size).ok_or(Error::NoOffset),
        }
    }

    /// Says where what lies from a byte of a file on is, and why.
    fn explain(&mut self, object: u64, from: u64) -> Result<serde_json::Value> {
        let inode = Inode::read(&mut self.store, object)?;
        let size = self.store.stat(ObjectId(object)).map_err(stale)?.size;
        let (stretches, next_bytes) = match inode.mode.kind {
            Kind::File => self.store.places(ObjectId(object), from, STRETCHES_MAX).map_err(stale)?,
            _ => (Vec::new(), None),
        };
        let extents = stretches.into_iter().map(|stretch| {
            let (state, why) = match stretch.place {
                Place::Memory => ("memory", "written and not fsynced; it goes to the flash within five seconds"),
                Place::Flash { .. } => ("flash", "written to the segment that was open for such bytes"),
                Place::Reserved => ("reserved", "reserved ahead (fallocate); reads as zeros"),
                Place::Hole => ("hole", "never written, or punched; reads as zeros"),
            };
            let flash = match stretch.place {
                Place::Flash { segment, block, page, byte } => {
                    serde_json::json!({ "segment": segment, "block": block, "page": page, "byte": byte })
                }
                _ => serde_json::Value::Null,
            };
            serde_json::json!({
                "offset_bytes": stretch.offset, "bytes": stretch.bytes, "state": state, "flash": flash, "why": why,
            })
        });
        Ok(serde_json::json!({
            "type": "osd", "inode": object, "kind": inode.mode.kind.in_words(), "size_bytes": size,
            "extents": extents.collect::<Vec<_>>(), "next_bytes": next_bytes,
        }))
    }

    fn status(&mut self) -> serde_json::Value {
        let (capacity, nand) = (self.store.capacity(), self.store.nand());
        let mut of_nand = serde_json::json!(nand.counts());
        of_nand["page_bytes"] = nand.geometry().page_bytes.into();
        serde_json::json!({
            "type": "osd",
            "placement": self.store.placement(),
            "capacity_bytes": capacity.total,
            "used_bytes": capacity.used,
            "objects": capacity.objects,
            "memory_bytes": self.store.memory_bytes(),
            "since_mount": self.store.counts(),
            "nand": of_nand,
            "reads_again": self.reads_again,
            "wear": nand.wear(),
        })
    }
}

impl FileSystem for OsdFs {
    fn root(&self) -> Ino {
        Ino(ROOT)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.with(|state| {
            let found = match name {
                b"." => parent.0,
                b".." => {
                    let inode = state.dir_inode(parent.0)?;
                    if inode.nlink == 0 {
                        return Err(Error::NotFound);
                    }
                    inode.parent
                }
                _ => state.find(parent.0, name)?.object,
            };
            state.held(found).map_err(|why| match why {
                // It was removed by another of its names while nobody could tell how many it had.
                Error::Stale => Error::corrupt("a name", "what it led to is gone", format!("object {found}")),
                why => why,
            })
        })
    }

    fn lookup_damaged(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        self.with(|state| {
            let target = state.find(parent.0, name)?;
            state.references.add(target.object);
            Ok(Some((Ino(target.object), target.kind)))
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        let forgotten = self.with(|state| state.forget(ino.0, count));
        if let Err(why) = forgotten {
            tracing::warn!("osd: a removed file could not be freed: {why}");
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.with(|state| state.attr(ino.0))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.with(|state| {
            state.giving(|state| state.set_attr(ino.0, set))?;
            state.attr(ino.0)
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.with(|state| {
            if state.mode(ino.0)?.kind != Kind::Symlink {
                return Err(Error::BadArgument);
            }
            let size = state.store.stat(ObjectId(ino.0))?.size;
            state.store.read(ObjectId(ino.0), 0, size as usize)
        })
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        names::check(name)?;
        self.with(|state| {
            let made = state.together(|state| state.create(caller, parent.0, name, node))?;
            state.held(made)
        })
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| state.giving(|state| state.unlink(parent.0, name)))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| state.giving(|state| state.rmdir(parent.0, name)))
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        names::check(name)?;
        names::check(new_name)?;
        self.with(|state| {
            state.together(|state| state.rename((parent.0, name), (new_parent.0, new_name), how))
        })
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        names::check(name)?;
        self.with(|state| {
            state.together(|state| state.link(ino.0, parent.0, name))?;
            state.held(ino.0)
        })
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        let id = ObjectId(ino.0);
        let reading = self.with(|state| state.store.begin_read(id, offset, len).map_err(stale))?;
        let bytes = match reading.end() {
            // What it holds may have been moved, and its block erased, since it was looked up.
            Err(Error::Corrupt { .. }) => self.with(|state| {
                state.reads_again += 1;
                state.store.peek(id, offset, len).map_err(stale)
            })?,
            bytes => bytes?,
        };
        Ok(Deferred::Now(if bytes.is_empty() { Vec::new() } else { vec![bytes.into()] }))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        self.with(|state| {
            state.store.write(ObjectId(ino.0), offset, Content::Bytes(data)).map_err(stale)?;
            if kill_suid {
                state.giving(|state| state.kill_set_id(ino.0))?;
            }
            Ok(Deferred::Now(data.len()))
        })
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Deferred<()>> {
        // What need not wait for a host is done at once.
        let (commit, waits) = self.with(|state| {
            let commit = state.store.begin_flush()?;
            Ok((commit, state.store.flush_on(commit, false)?))
        })?;
        let check = move |state: &mut State| state.store.check_written(ObjectId(ino.0));
        let Some(unsynced) = waits else { return self.with(check).map(Deferred::Now) };
        let shared = self.shared.clone();
        Ok(Deferred::Wait(Box::new(move || {
            shared.keep(&unsynced)?;
            shared.flush_on(commit)?;
            shared.with(check)
        })))
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let parent = self.with(|state| state.dir_inode(ino.0))?.parent;
        let batch = |at| self.with(|state| state.batch(ino.0, at));
        adapter::list((ino, Ino(parent)), from, batch, visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|state| match is_users(name) {
            true => state.store.get_attribute(ObjectId(ino.0), name).map_err(stale),
            false => Err(Error::NoAttribute),
        })
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        if !is_users(name) {
            return Err(Error::NotPermitted);
        }
        self.with(|state| {
            state.check_xattr(ino.0, name, how)?;
            state.together(|state| state.set_xattr(ino.0, name, value, kill_sgid))
        })
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with(|state| {
            let mut names = state.store.list_attributes(ObjectId(ino.0)).map_err(stale)?;
            names.retain(|name| is_users(name));
            Ok(names)
        })
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| match is_users(name) {
            true => state.giving(|state| state.store.remove_attribute(ObjectId(ino.0), name)).map_err(stale),
            false => Err(Error::NoAttribute),
        })
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= 1 << 62 && len > 0).ok_or(Error::TooLarge)?;
        let work = |state: &mut State| state.fallocate(ino.0, offset, end, what);
        self.with(|state| match what {
            Fallocate::Punch => state.giving(work).map_err(stale),
            _ => state.together(work).map_err(stale),
        })
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.with(|state| state.seek(ino.0, offset, what).map_err(stale))
    }

    fn statfs(&self) -> Result<FsStat> {
        self.with(|state| {
            let capacity = state.store.capacity();
            let free = capacity.total.saturating_sub(capacity.used) / BLOCK_BYTES;
            let inodes = u64::from(u32::MAX);
            Ok(FsStat {
                block_bytes: BLOCK_BYTES as u32,
                blocks: capacity.total / BLOCK_BYTES,
                free,
                available: free,
                inodes,
                inodes_free: inodes.saturating_sub(capacity.objects),
            })
        })
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        if name == "bimetal.status" && ino == self.root() {
            return self.with(|state| Ok(state.status().to_string().into_bytes()));
        }
        let from = explained_from(name).ok_or(Error::NoAttribute)?;
        self.with(|state| state.explain(ino.0, from)).map(|said| said.to_string().into_bytes())
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    fn shutdown(&self) -> Result<()> {
        let ticks = self.committer.stop();
        self.with(|state| {
            if !ticks {
                // It was only looked at.
                return Ok(());
            }
            state.references.take();
            let removed = state.remove_nameless();
            // Whatever became of those, the rest is to be on the flash.
            state.store.close().and(removed)
        })
    }
}

/// Whether an object is one of a file system's.
///
/// # Errors
/// Its attributes cannot be read.
pub fn is_a_file(store: &mut Store, id: ObjectId) -> Result<bool> {
    match store.list_attributes(id) {
        Ok(names) => Ok(names.iter().any(|name| !is_users(name))),
        Err(Error::NotFound) => Ok(false),
        Err(why) => Err(why),
    }
}

/// Whether there is a file system on a store, by its root directory; one that lost that is not looked for.
pub fn has_root(store: &mut Store) -> bool {
    Inode::read(store, ROOT).is_ok_and(|root| root.mode.kind == Kind::Dir && root.parent == ROOT)
}

/// Refuses a store whose root is no directory that can be used.
fn check_root(store: &mut Store) -> Result<()> {
    let why = match Inode::read(store, ROOT) {
        Ok(inode) if inode.mode.kind == Kind::Dir => return Ok(()),
        Ok(_) => "it is no directory".into(),
        Err(Error::Stale) => "it is gone".into(),
        Err(Error::Corrupt { why, .. }) => why,
        Err(why) => return Err(why),
    };
    if !has_files(store)? {
        return Err(Error::invalid(
            "there is no file system on the object store; `bimetal osd` has what it holds by number",
        ));
    }
    let why = format!(
        "{why}; `bimetal fsck` says what is damaged, and mends what costs nothing; `bimetal fsck --yes` puts together what can be"
    );
    Err(Error::corrupt("the root directory", why, format!("object {ROOT}")))
}

/// An object that is gone is a number that means nothing any more.
fn stale(error: Error) -> Error {
    match error {
        Error::NotFound => Error::Stale,
        error => error,
    }
}
