//! What file systems on a store of objects do the same: who holds an inode, listings with their dots, access lists in
//! step with mode bits, extended attributes, `fallocate`, the mark that a rename leaves, work every few seconds.
//!
//! A store says what it can in [`Objects`]; the rest follows here, in the order in which the kernel's file systems do it.

use super::acl::{self, Acl, Inherited};
use super::{Caller, DirEntry, Fallocate, Kind, NewNode, SetXattr};
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::runtime::{Clock, Task};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

/// Kind, mode and owner of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// What kind of object it is.
    pub kind: Kind,
    /// Permission and set-ID bits.
    pub perm: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Mode {
    /// What a write by someone without privilege does to set-ID bits.
    pub fn kill_set_id(&mut self) {
        self.perm = without_set_id(self.kind, self.perm);
    }
}

/// The mode of an inode after a write or a change of owner by someone without privilege. A directory's set-group-ID
/// bit says whose group new files get, and stays.
pub fn without_set_id(kind: Kind, mode: u16) -> u16 {
    match kind {
        Kind::Dir => mode,
        _ if mode & GROUP_EXECUTES != 0 => mode & !(S_ISUID | S_ISGID),
        _ => mode & !S_ISUID,
    }
}

/// Access control lists that a new inode begins with, by name.
pub type Lists = Vec<(&'static [u8], Vec<u8>)>;

/// A store of objects, by number.
pub trait Objects {
    /// Kind, permission bits and owner.
    fn mode(&mut self, id: u64) -> Result<Mode>;

    /// Sets permission and set-ID bits.
    fn set_perm(&mut self, id: u64, perm: u16) -> Result<()>;

    /// The value of an extended attribute; `None` if there is none of the name.
    fn attribute(&mut self, id: u64, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Sets an extended attribute, or takes away one that is there.
    fn set_attribute(&mut self, id: u64, name: &[u8], value: Option<&[u8]>) -> Result<()>;

    /// The size, bytes.
    fn size(&mut self, id: u64) -> Result<u64>;

    /// Sets the size, bytes.
    fn resize(&mut self, id: u64, size: u64) -> Result<()>;

    /// Makes a hole from one byte to another; the size stays.
    fn punch(&mut self, id: u64, from: u64, to: u64) -> Result<()>;

    /// Promises room from one byte to another; the size stays.
    fn reserve(&mut self, id: u64, from: u64, to: u64) -> Result<()>;

    /// An access control list.
    fn list(&mut self, id: u64, name: &[u8]) -> Result<Option<Acl>> {
        self.attribute(id, name)?.map_or(Ok(None), |value| Acl::from_wire(&value))
    }

    /// Sets a list, or takes the one away that is there.
    fn set_list(&mut self, id: u64, name: &[u8], list: Option<&Acl>) -> Result<()> {
        match list {
            Some(list) => self.set_attribute(id, name, Some(&list.to_wire())),
            None if self.attribute(id, name)?.is_some() => self.set_attribute(id, name, None),
            None => Ok(()),
        }
    }

    /// How a new object begins, by its directory: set-group-ID and default access control list.
    fn shape(&mut self, caller: &Caller, dir: u64, new: &NewNode) -> Result<(Mode, Lists)> {
        let parent = self.mode(dir)?;
        let inherits = parent.perm & S_ISGID != 0;
        let gid = if inherits { parent.gid } else { caller.gid };
        let mut mode = Mode { kind: new.kind, perm: new.perm & 0o7777, uid: caller.uid, gid };
        let mut lists = Lists::new();
        if new.kind != Kind::Symlink {
            match self.list(dir, acl::DEFAULT)? {
                None => mode.perm &= !(caller.umask as u16 & 0o777),
                Some(list) => {
                    let Inherited { perm, access, default } = list.inherit(new.perm, new.kind == Kind::Dir);
                    mode.perm = perm;
                    lists.extend(access.map(|list| (acl::ACCESS, list.to_wire())));
                    lists.extend(default.map(|list| (acl::DEFAULT, list.to_wire())));
                }
            }
        }
        if inherits && new.kind == Kind::Dir {
            mode.perm |= S_ISGID;
        }
        Ok((mode, lists))
    }

    /// Takes away the set-ID bits that a write by someone without privilege does.
    fn kill_set_id(&mut self, id: u64) -> Result<()> {
        let mut mode = self.mode(id)?;
        let before = mode.perm;
        mode.kill_set_id();
        if mode.perm == before { Ok(()) } else { self.set_perm(id, mode.perm) }
    }

    /// Brings the access list in step with permission bits that are about to be set.
    fn follow_perm(&mut self, id: u64, perm: u16) -> Result<()> {
        match self.list(id, acl::ACCESS)? {
            Some(list) => self.set_list(id, acl::ACCESS, Some(&list.with_mode(perm & 0o7777))),
            None => Ok(()),
        }
    }

    /// Sets an access list, and the mode with it; one that says no more than the mode is not kept. None at all leaves
    /// the mode.
    fn set_access(&mut self, id: u64, list: Option<Acl>, kill_sgid: bool) -> Result<()> {
        let old = self.mode(id)?.perm;
        let (perm, kept) = list.map_or((old, None), |list| list.set_on(old));
        self.set_list(id, acl::ACCESS, kept.as_ref())?;
        self.set_perm(id, if kill_sgid { perm & !S_ISGID } else { perm })
    }

    /// Whether an extended attribute may be set so.
    fn check_xattr(&mut self, id: u64, name: &[u8], how: SetXattr) -> Result<()> {
        match (how, self.attribute(id, name)?) {
            (SetXattr::Create, Some(_)) => Err(Error::Exists),
            (SetXattr::Replace, None) => Err(Error::NoAttribute),
            _ => Ok(()),
        }
    }

    /// Sets an extended attribute; an access list sets the mode, too.
    fn set_xattr(&mut self, id: u64, name: &[u8], value: &[u8], kill_sgid: bool) -> Result<()> {
        let list = || Acl::from_wire(value).map_err(|_| Error::BadArgument);
        match name {
            acl::ACCESS => self.set_access(id, list()?, kill_sgid),
            acl::DEFAULT if self.mode(id)?.kind != Kind::Dir => Err(Error::Denied),
            acl::DEFAULT => self.set_list(id, name, list()?.as_ref()),
            _ => self.set_attribute(id, name, Some(value)),
        }
    }

    /// Reserves, zeroes or punches bytes `from` to `to`.
    fn fallocate(&mut self, id: u64, from: u64, to: u64, what: Fallocate) -> Result<()> {
        let keeps = match what {
            Fallocate::Punch => return self.punch(id, from, to),
            Fallocate::Reserve { keep_size } => keep_size,
            Fallocate::Zero { keep_size } => {
                self.punch(id, from, to)?;
                keep_size
            }
        };
        self.reserve(id, from, to)?;
        if !keeps && to > self.size(id)? { self.resize(id, to) } else { Ok(()) }
    }

    /// What a rename leaves behind in a directory, and whose it is: the mark of an overlay.
    fn whiteout(&mut self, dir: u64) -> Result<(Caller, NewNode<'static>)> {
        let Mode { uid, gid, .. } = self.mode(dir)?;
        let mark = NewNode { kind: Kind::CharDevice, perm: 0, rdev: 0, target: &[] };
        Ok((Caller { uid, gid, umask: 0 }, mark))
    }
}

/// Who holds an inode: references by number, none of them zero.
#[derive(Default)]
pub struct References(FxHashMap<u64, u64>);

impl References {
    /// One more reference.
    pub fn add(&mut self, id: u64) {
        *self.0.entry(id).or_insert(0) += 1;
    }

    /// Gives references back; whether that were the last.
    pub fn give_back(&mut self, id: u64, count: u64) -> bool {
        let Some(references) = self.0.get_mut(&id) else { return false };
        *references = references.saturating_sub(count);
        *references == 0 && self.0.remove(&id).is_some()
    }

    /// Whether anyone holds it.
    pub fn is_held(&self, id: u64) -> bool {
        self.0.contains_key(&id)
    }

    /// Takes all; who they were of.
    pub fn take(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.0).into_keys().collect()
    }
}

/// Names of a listing taken at once.
pub const BATCH: usize = 256;

/// An entry of a listing: inode, kind, name, where to go on.
pub type Listed = (Ino, Kind, Vec<u8>, u64);

/// Lists a directory: the dots, and what `batch` takes behind a place, up to [`BATCH`] entries. The visitor may ask for
/// attributes: names are handed on without any lock.
pub fn list(
    (dir, parent): (Ino, Ino),
    from: u64,
    mut batch: impl FnMut(u64) -> Result<Vec<Listed>>,
    visit: &mut dyn FnMut(DirEntry) -> bool,
) -> Result<()> {
    for (ino, name, next) in [(dir, &b"."[..], 1), (parent, b"..", 2)] {
        if next > from && !visit(DirEntry { ino, kind: Kind::Dir, name, next }) {
            return Ok(());
        }
    }
    // Cookies leave room for the dots.
    let mut at = from.saturating_sub(2);
    loop {
        let entries = batch(at)?;
        for (ino, kind, name, next) in &entries {
            if !visit(DirEntry { ino: *ino, kind: *kind, name, next: next + 2 }) {
                return Ok(());
            }
            at = *next;
        }
        if entries.len() < BATCH {
            return Ok(());
        }
    }
}

/// Work that is done every so often until it is stopped.
#[derive(Default)]
pub struct Ticker {
    ended: Arc<(Mutex<bool>, Condvar)>,
    task: Mutex<Option<Task>>,
}

impl Ticker {
    /// Starts the work.
    ///
    /// # Errors
    /// The task cannot be started.
    pub fn start(
        clock: &Clock,
        name: &str,
        every: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> Result<Ticker> {
        let ticker = Ticker::default();
        let (its, ended) = (clock.clone(), ticker.ended.clone());
        let run = move || {
            loop {
                let due = its.now() + every;
                let mut over = ended.0.lock();
                if !*over {
                    ended.1.wait_until(&mut over, &*its, due);
                }
                if *over {
                    return;
                }
                drop(over);
                work();
            }
        };
        *ticker.task.lock() = Some(clock.spawn(name, Box::new(run))?);
        Ok(ticker)
    }

    /// Ends the work; whether there was any.
    pub fn stop(&self) -> bool {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
        // One that panicked has said so already.
        self.task.lock().take().map(Task::join).is_some()
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop();
    }
}
