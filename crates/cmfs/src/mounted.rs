//! A cmfs as a [`FileSystem`]: one lock around the core, counts of who holds an inode, a clock, and the update of
//! the NVRAM every five seconds.
//!
//! An inode's number is its object's. The core removes nothing that is held: a file that loses its last name while
//! someone has it is kept without one, and discarded with the last reference.

use super::attributes::{attr, core_kind, kind, time, type_bits};
use super::error;
use bimetal_base::runtime::sync::Mutex;
use bimetal_base::runtime::{self, Clock};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::acl::Acl;
use bimetal_vfs::adapter::{self, BATCH, Listed, Mode, Objects, References, Ticker};
use bimetal_vfs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, Kind, NewNode, Rename, Seek, SetAttr,
    SetTime, SetXattr, explained_from,
};
use bytes::Bytes;
use cmfs_core::{Fs, MountKind, NewObject, Place, ROOT};
use std::sync::Arc;
use std::time::Duration;

/// The part under a mounted file system.
pub type Part = Box<dyn cmfs_core::Nand + Send>;
/// The memory beside it.
pub type Memory = Box<dyn cmfs_core::Nvram + Send>;

/// How often is looked whether an update is due.
const TICK: Duration = Duration::from_millis(500);

/// How a file system is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Nothing happens but what is asked for: no update on its own.
    pub manual: bool,
    /// The media cannot be written: the end, and a sync, find nothing to do.
    pub read_only: bool,
    /// Leave a checkpoint for YAFFS2 at the end, for machines with pointers of so many bytes.
    pub checkpoint: Option<usize>,
    /// Pages that are read each half second to see how they are; with 1 all 128 MiB of pages of 2 KiB in nine hours.
    pub scrub_pages: u32,
}

struct State {
    /// When the present call arrived, by the wall.
    now: Stamp,
    fs: Fs<Part, Memory>,
    references: References,
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
}

/// A cmfs that can be mounted.
pub struct CmfsFs {
    shared: Arc<Shared>,
    updater: Ticker,
    page_bytes: u32,
    checkpoint: Option<usize>,
    read_only: bool,
}

impl CmfsFs {
    /// Takes an open file system, live. See [`CmfsFs::new_on`].
    ///
    /// # Errors
    /// As those.
    pub fn new(fs: Fs<Part, Memory>, options: Options) -> Result<CmfsFs> {
        CmfsFs::new_on(runtime::live(), fs, options)
    }

    /// Takes an open file system.
    ///
    /// # Errors
    /// The task that updates the NVRAM cannot be started.
    pub fn new_on(clock: Clock, fs: Fs<Part, Memory>, options: Options) -> Result<CmfsFs> {
        let page_bytes = cmfs_core::Nand::geometry(fs.nand()).page_bytes;
        let state = Mutex::new(State { now: clock.wall(), fs, references: References::default() });
        let shared = Arc::new(Shared { clock, state });
        let updater = if options.manual || options.read_only {
            Ticker::default()
        } else {
            start_updater(shared.clone(), options.scrub_pages)?
        };
        let Options { checkpoint, read_only, .. } = options;
        Ok(CmfsFs { shared, updater, page_bytes, checkpoint, read_only })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.shared.state.lock();
        state.now = self.shared.clock.wall();
        let now = time(state.now);
        state.fs.set_now(now);
        work(&mut state)
    }

    /// The attributes of an object, one reference more.
    fn held(&self, state: &mut State, id: u32) -> Result<Attr> {
        let found = attr(&state.fs.attr(id).map_err(error)?, self.page_bytes);
        state.references.add(id.into());
        Ok(found)
    }
}

fn start_updater(shared: Arc<Shared>, scrub_pages: u32) -> Result<Ticker> {
    let clock = shared.clock.clone();
    let started = clock.now();
    let mut overflows = false;
    Ticker::start(&clock, "cmfs-update", TICK, move || {
        let now_ms = shared.clock.now().since(started).as_millis() as u64;
        let fs = &mut shared.state.lock().fs;
        if let Err(why) = fs.scrub(scrub_pages) {
            tracing::error!("cmfs: scrubbing ended: {why}");
        }
        match fs.update_if_due(now_ms) {
            Ok(Some(report)) => {
                if report.overflow && !overflows {
                    tracing::warn!(
                        "cmfs: the NVRAM is too small for what is on the NAND: the next mount will scan"
                    );
                }
                overflows = report.overflow;
            }
            Ok(None) => {}
            Err(why) => tracing::error!("cmfs: the NVRAM could not be updated: {why}"),
        }
    })
}

/// Most stretches of one answer: each takes less than 200 bytes, and an attribute has 64 KiB at most.
const STRETCHES_MAX: usize = 256;

/// The object of an inode number.
fn id(ino: Ino) -> Result<u32> {
    number(ino.0)
}

fn number(id: u64) -> Result<u32> {
    u32::try_from(id).map_err(|_| Error::Stale)
}

impl Objects for State {
    fn mode(&mut self, id: u64) -> Result<Mode> {
        let attr = self.fs.attr(number(id)?).map_err(error)?;
        let perm = (attr.mode & 0o7777) as u16;
        Ok(Mode { kind: kind(attr.kind, attr.mode), perm, uid: attr.uid, gid: attr.gid })
    }

    fn set_perm(&mut self, id: u64, perm: u16) -> Result<()> {
        let set = cmfs_core::SetAttr { perm: Some(perm.into()), ..cmfs_core::SetAttr::default() };
        self.fs.set_attr(number(id)?, &set).map_err(error)
    }

    fn attribute(&mut self, id: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.fs.attribute(number(id)?, name) {
            Err(cmfs_core::Error::NoAttribute) => Ok(None),
            found => found.map(Some).map_err(error),
        }
    }

    fn set_attribute(&mut self, id: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.fs.set_attribute(number(id)?, name, value).map_err(error)
    }

    fn size(&mut self, id: u64) -> Result<u64> {
        Ok(self.fs.attr(number(id)?).map_err(error)?.size)
    }

    fn resize(&mut self, id: u64, size: u64) -> Result<()> {
        self.fs.truncate(number(id)?, size).map_err(error)
    }

    fn punch(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        self.fs.punch(number(id)?, from, to).map_err(error)
    }

    fn reserve(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        self.fs.reserve(number(id)?, from, to).map_err(error)
    }

    /// One that cannot be read is none: a directory whose header is damaged goes on taking names.
    fn list(&mut self, id: u64, name: &[u8]) -> Result<Option<Acl>> {
        let value = self.fs.attribute(number(id)?, name).ok();
        Ok(value.and_then(|value| Acl::from_wire(&value).ok().flatten()))
    }
}

impl State {
    /// Whether what a name stands for is held.
    fn holds_name(&mut self, dir: u32, name: &[u8]) -> bool {
        self.fs.lookup(dir, name).is_ok_and(|id| self.references.is_held(id.into()))
    }

    fn create(&mut self, caller: &Caller, dir: u32, name: &[u8], node: &NewNode) -> Result<u32> {
        let (mode, lists) = self.shape(caller, dir.into(), node)?;
        let new = NewObject {
            kind: core_kind(node.kind),
            mode: type_bits(node.kind) | u32::from(mode.perm),
            uid: mode.uid,
            gid: mode.gid,
            rdev: node.rdev,
            target: node.target,
        };
        let made = self.fs.create(dir, name, &new).map_err(error)?;
        for (name, value) in &lists {
            self.fs.set_attribute(made, name, Some(value)).map_err(error)?;
        }
        Ok(made)
    }

    fn set_attr(&mut self, id: u32, set: &SetAttr) -> Result<()> {
        if let Some(size) = set.size {
            self.fs.truncate(id, size).map_err(error)?;
        }
        if set.kill_suid {
            self.kill_set_id(id.into())?;
        }
        if let Some(perm) = set.perm {
            self.follow_perm(id.into(), perm)?;
        }
        let now = time(self.now);
        let at = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(stamp) => time(stamp),
        };
        let rest = cmfs_core::SetAttr {
            perm: set.perm.map(|perm| u32::from(perm & 0o7777)),
            uid: set.uid,
            gid: set.gid,
            atime: set.atime.map(at),
            mtime: set.mtime.map(at),
            ctime: set.ctime.map(time),
        };
        self.fs.set_attr(id, &rest).map_err(error)
    }

    fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), how: Rename) -> Result<()> {
        if how == Rename::Exchange {
            return self.fs.exchange(from.0, from.1, to.0, to.1).map_err(error);
        }
        if to.1.len() > bimetal_vfs::NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if how == Rename::NoReplace && self.fs.lookup(to.0, to.1).is_ok() {
            return Err(Error::Exists);
        }
        let keep = self.holds_name(to.0, to.1);
        self.fs.rename(from.0, from.1, to.0, to.1, keep).map_err(error)?;
        if how == Rename::Whiteout {
            let (owner, mark) = self.whiteout(from.0.into())?;
            self.create(&owner, from.0, from.1, &mark)?;
        }
        Ok(())
    }

    fn status(&mut self) -> serde_json::Value {
        let report = self.fs.report().clone();
        let kind = match report.kind {
            MountKind::Made => "made",
            MountKind::Clean => "clean",
            MountKind::Recovered => "recovered",
            MountKind::Checkpoint => "checkpoint",
            MountKind::Scanned => "scanned",
        };
        let (stats, wear) = (self.fs.stats(), self.fs.wear());
        let shape = cmfs_core::Nand::geometry(self.fs.nand());
        let (used, size) = self.fs.nvram_used().unwrap_or((0, 0));
        serde_json::json!({
            "type": "cmfs",
            "mounted": kind, "scanned_because": report.why,
            "replayed_pages": report.replayed_pages, "unreadable_pages": report.unreadable_pages,
            "capacity_bytes": self.fs.capacity_pages() * u64::from(shape.page_bytes),
            "used_bytes": self.fs.used_pages() * u64::from(shape.page_bytes),
            "objects": self.fs.object_count(),
            "nvram": {
                "size_bytes": size, "used_bytes": used, "overflows": self.fs.nvram_overflows(),
                "updates": stats.commits, "written_bytes": stats.commit_bytes,
            },
            "nand": {
                "page_bytes": shape.page_bytes, "pages_a_block": shape.pages_per_block, "blocks": shape.blocks,
                "programs": stats.programs, "erases": stats.erases, "copies": stats.copies,
                "most_copies_in_a_pause": stats.copies_in_a_pause,
                "failures": stats.failures, "lost_pages": stats.lost_pages, "levelled": stats.levelled,
                "corrected_bits": stats.corrected_bits, "refreshed": stats.refreshed, "to_refresh": stats.tired_blocks,
                "scrubbed_pages": stats.scrubbed, "scrub_failures": stats.scrub_failures,
            },
            "wear": { "min": wear.min, "max": wear.max, "erases": wear.total },
        })
    }
}

impl CmfsFs {
    /// Says where what lies from a byte of a file on is, and why.
    fn explain(&self, ino: Ino, from: u64) -> Result<serde_json::Value> {
        let attr = self.getattr(ino)?;
        let page_bytes = u64::from(self.page_bytes);
        let pages = if attr.kind == Kind::File { attr.size.div_ceil(page_bytes) } else { 0 };
        let (mut extents, mut next_bytes) = (Vec::new(), None);
        let mut index = from / page_bytes;
        self.with(|state| {
            let a_block = cmfs_core::Nand::geometry(state.fs.nand()).pages_per_block;
            while index < pages {
                if extents.len() == STRETCHES_MAX {
                    next_bytes = Some(index * page_bytes);
                    break;
                }
                let max = u32::try_from(pages - index).unwrap_or(u32::MAX);
                let at = u32::try_from(index).map_err(|_| Error::TooLarge)?;
                let (place, count) = state.fs.place(id(ino)?, at, max).map_err(error)?;
                let (state, why) = match place {
                    Place::Memory => {
                        ("memory", "written and not fsynced; it goes to the flash within five seconds")
                    }
                    Place::Flash(_) => ("flash", "written to the block that was open"),
                    Place::Reserved => ("reserved", "reserved ahead (fallocate); reads as zeros"),
                    Place::Hole => ("hole", "never written, or punched; reads as zeros"),
                };
                let flash = match place {
                    Place::Flash(page) => {
                        serde_json::json!({ "block": page / a_block, "page": page % a_block })
                    }
                    _ => serde_json::Value::Null,
                };
                extents.push(serde_json::json!({
                    "offset_bytes": index * page_bytes, "bytes": u64::from(count) * page_bytes,
                    "state": state, "flash": flash, "why": why,
                }));
                index += u64::from(count);
            }
            Ok(())
        })?;
        Ok(serde_json::json!({
            "type": "cmfs", "inode": ino.0, "kind": attr.kind.in_words(), "size_bytes": attr.size,
            "extents": extents, "next_bytes": next_bytes,
        }))
    }
}

impl FileSystem for CmfsFs {
    fn root(&self) -> Ino {
        Ino(u64::from(ROOT))
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.with(|state| {
            let dir = id(parent)?;
            let found = match name {
                b"." => dir,
                b".." => state.fs.parent(dir).map_err(error)?,
                _ => state.fs.lookup(dir, name).map_err(error)?,
            };
            self.held(state, found)
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        let forgotten = self.with(|state| {
            if !state.references.give_back(ino.0, count) {
                return Ok(());
            }
            match state.fs.discard(id(ino)?) {
                Err(cmfs_core::Error::Stale) => Ok(()),
                done => done.map_err(error),
            }
        });
        if let Err(why) = forgotten {
            tracing::warn!("cmfs: a removed file could not be freed: {why}");
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.with(|state| Ok(attr(&state.fs.attr(id(ino)?).map_err(error)?, self.page_bytes)))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.with(|state| {
            state.set_attr(id(ino)?, set)?;
            Ok(attr(&state.fs.attr(id(ino)?).map_err(error)?, self.page_bytes))
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.with(|state| state.fs.read_link(id(ino)?).map_err(error))
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.with(|state| {
            let made = state.create(caller, id(parent)?, name, node)?;
            self.held(state, made)
        })
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| {
            let dir = id(parent)?;
            let keep = state.holds_name(dir, name);
            state.fs.unlink(dir, name, keep).map(drop).map_err(error)
        })
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| {
            let dir = id(parent)?;
            let keep = state.holds_name(dir, name);
            state.fs.rmdir(dir, name, keep).map(drop).map_err(error)
        })
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        self.with(|state| state.rename((id(parent)?, name), (id(new_parent)?, new_name), how))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.with(|state| {
            let target = id(ino)?;
            state.fs.link(target, id(parent)?, name).map_err(|why| match why {
                cmfs_core::Error::IsDir => Error::NotPermitted,
                why => error(why),
            })?;
            self.held(state, target)
        })
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        self.with(|state| {
            let target = id(ino)?;
            let size = state.fs.attr(target).map_err(error)?.size;
            let len = size.saturating_sub(offset).min(len as u64) as usize;
            let mut bytes = vec![0; len];
            let there = state.fs.read(target, offset, &mut bytes).map_err(error)?;
            bytes.truncate(there);
            Ok(Deferred::Now(if bytes.is_empty() { Vec::new() } else { vec![bytes.into()] }))
        })
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        self.with(|state| {
            state.fs.write(id(ino)?, offset, data).map_err(error)?;
            if kill_suid {
                state.kill_set_id(ino.0)?;
            }
            Ok(Deferred::Now(data.len()))
        })
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Deferred<()>> {
        self.with(|state| state.fs.sync_object(id(ino)?).map_err(error).map(Deferred::Now))
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let dir = id(ino)?;
        let parent = self.with(|state| match state.fs.parent(dir) {
            Err(cmfs_core::Error::NotFound) => Ok(dir),
            parent => parent.map_err(error),
        })?;
        // Objects that have names are numbered from 2 on.
        adapter::list((ino, Ino(parent.into())), from, |at| self.batch(dir, at), visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|state| state.fs.attribute(id(ino)?, name).map_err(error))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.with(|state| {
            state.check_xattr(ino.0, name, how)?;
            state.set_xattr(ino.0, name, value, kill_sgid)
        })
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with(|state| state.fs.attributes(id(ino)?).map_err(error))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.with(|state| state.fs.set_attribute(id(ino)?, name, None).map_err(error))
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Error::TooLarge)?;
        self.with(|state| state.fallocate(ino.0, offset, end, what))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let what = match what {
            Seek::Data => cmfs_core::Seek::Data,
            Seek::Hole => cmfs_core::Seek::Hole,
        };
        self.with(|state| state.fs.seek(id(ino)?, offset, what).map_err(error))
    }

    fn statfs(&self) -> Result<FsStat> {
        self.with(|state| {
            let blocks = state.fs.capacity_pages();
            let free = blocks.saturating_sub(state.fs.used_pages());
            let inodes = u64::from(cmfs_core::MAX_ID - cmfs_core::FIRST_ID);
            let used = u64::from(state.fs.object_count());
            let inodes_free = inodes.saturating_sub(used);
            Ok(FsStat { block_bytes: self.page_bytes, blocks, free, available: free, inodes, inodes_free })
        })
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        if name == "bimetal.status" && ino == self.root() {
            return self.with(|state| Ok(state.status().to_string().into_bytes()));
        }
        let from = explained_from(name).ok_or(Error::NoAttribute)?;
        self.explain(ino, from).map(|said| said.to_string().into_bytes())
    }

    fn sync(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.with(|state| state.fs.sync().map_err(error))
    }

    fn shutdown(&self) -> Result<()> {
        self.updater.stop();
        if self.read_only {
            return Ok(());
        }
        self.with(|state| {
            // What is still held without a name would only be reaped by the next mount.
            for id in state.references.take() {
                match state.fs.discard(number(id)?) {
                    Ok(()) | Err(cmfs_core::Error::Stale) => {}
                    Err(why) => return Err(error(why)),
                }
            }
            match self.checkpoint {
                None => state.fs.update().map(drop).map_err(error),
                Some(pointer_bytes) => {
                    if !state.fs.checkpoint(pointer_bytes).map_err(error)? {
                        tracing::warn!("cmfs: no room for a checkpoint");
                    }
                    Ok(())
                }
            }
        })
    }
}

impl CmfsFs {
    /// Some entries of a directory.
    fn batch(&self, dir: u32, from: u64) -> Result<Vec<Listed>> {
        self.with(|state| {
            let mut batch: Vec<Listed> = Vec::new();
            let mut specials = Vec::new();
            let take = &mut |entry: cmfs_core::Entry| {
                if entry.kind == cmfs_core::Kind::Special {
                    specials.push((batch.len(), entry.id));
                }
                let kind = kind(entry.kind, 0);
                batch.push((Ino(u64::from(entry.id)), kind, entry.name.to_vec(), entry.next));
                batch.len() < BATCH
            };
            state.fs.list(dir, from, take).map_err(error)?;
            for (at, id) in specials {
                let mode = state.fs.attr(id).map_err(error)?.mode;
                batch[at].1 = kind(cmfs_core::Kind::Special, mode);
            }
            Ok(batch)
        })
    }
}
