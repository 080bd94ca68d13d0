//! Operations of the log that do not fit the disk half: it was repaired, and e2fsck took away what they are about, or gave a
//! number of theirs to something of its own.
//!
//! A directory that e2fsck makes for what it finds makes way for a file of the log that has its number. Else a mount is refused,
//! unless the user wants what fits (`recover=whole`): then such operations are left out. Operations on an inode that is not the
//! one they are about do not fit, either. What tells is the generation, which the log says of each inode that is made; so a
//! recovery that is cut in between leaves out the same.

use super::Shared;
use super::core::Core;
use super::record::{Record, rename_of};
use super::recover::is_unfit;
use super::ssd::{Record as LogRecord, RecordBody};
use bimetal_base::error::shown;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Create, ROOT_INO};
use bimetal_vfs::{Kind, Rename};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Where e2fsck puts what has no name.
const FOUND: &[u8] = b"lost+found";
/// What that becomes while it moves.
const NEW_FOUND: &[u8] = b"lost+found.bimetal";
/// So many entries move in a transaction.
const MOVED_AT_ONCE: usize = 4;
/// What notes of operations say that were not run.
pub(super) const LEFT_OUT: &str = "left out, as it does not fit the disk half";
/// So many operations that were left out are named; the rest is counted.
const NAMED: u64 = 20;

/// An operation is about an inode that the disk half has another under the number of.
pub(super) fn anothers() -> Error {
    Error::Mismatch("the disk half has another file under that number".into())
}

/// What the log has said so far of the inodes it makes, and what of it was left out.
pub(super) struct Made {
    /// What does not fit is left out, instead of being an error.
    whole: bool,
    /// Which use of its number an inode is.
    generations: FxHashMap<u64, u32>,
    /// Their names, where what does not fit is left out.
    names: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Whose names these are.
    inodes: FxHashMap<(u64, Vec<u8>), u64>,
    left_out: u64,
}

impl Made {
    /// What is known of inodes before the first of these: what is said later of those that the log does not make, up to the
    /// operation that counts last.
    pub fn of(records: &[LogRecord], until: u64, whole: bool) -> Made {
        let (generations, names, inodes) = Default::default();
        let mut made = Made { whole, generations, names, inodes, left_out: 0 };
        let mut seen = FxHashSet::default();
        for record in records.iter().filter(|record| record.op <= until) {
            let RecordBody::Operation(bytes) = &record.body else { continue };
            match Record::decode(bytes, record.op) {
                Ok(Record::Create { ino, .. }) => drop(seen.insert(ino)),
                Ok(Record::Contents { ino, generation, .. }) if seen.insert(ino) => {
                    made.generations.insert(ino, generation);
                }
                _ => {}
            }
        }
        made
    }

    /// Whether what does not fit is left out, instead of being an error.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether what failed so is left out. What finds no room is not: what comes after it would put zeros in the place of what the
    /// disk half has.
    pub fn leaves_out(&self, error: &Error) -> bool {
        self.whole && is_unfit(error)
    }

    /// Operations, and contents, that were left out.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Contents that only the SSD has are left out.
    pub fn leave_out_contents(&mut self, core: &mut Core, ino: Ino, why: &Error) {
        self.left_out += 1;
        core.aftermath.lose(ino, format!("what only the SSD has of it was {LEFT_OUT}: {why}"));
    }

    /// The next operation of the log, whether the disk has it or not.
    pub fn see(&mut self, record: &Record, op: u64) {
        match *record {
            Record::Create { parent, name, ino, generation, .. } => {
                self.generations.insert(ino, generation);
                for old in self.names.remove(&ino).into_iter().flatten() {
                    self.inodes.remove(&old);
                }
                self.put(ino, parent, name);
            }
            Record::Link { ino, parent, name, .. } if self.names.contains_key(&ino) => {
                self.put(ino, parent, name);
            }
            Record::Remove { parent, name, .. } => drop(self.take(parent, name)),
            Record::Rename { from, name, to, new_name, how, .. } => {
                let (moved, replaced) = (self.take(from, name), self.take(to, new_name));
                if let Some(ino) = moved {
                    self.put(ino, to, new_name);
                }
                if let (Some(ino), Ok(Rename::Exchange)) = (replaced, rename_of(how, op)) {
                    self.put(ino, from, name);
                }
            }
            _ => {}
        }
    }

    /// A record of an operation that the disk has; of inodes that such ones made, it `tells` the names, too.
    pub fn saw(&mut self, record: &LogRecord, tells: bool) {
        let RecordBody::Operation(bytes) = &record.body else { return };
        match Record::decode(bytes, record.op) {
            Ok(operation) if tells => self.see(&operation, record.op),
            Ok(Record::Create { ino, generation, .. }) => drop(self.generations.insert(ino, generation)),
            _ => {}
        }
    }

    fn put(&mut self, ino: u64, dir: u64, name: &[u8]) {
        if !self.whole {
            return;
        }
        let name = (dir, name.to_vec());
        self.names.entry(ino).or_default().push(name.clone());
        self.inodes.insert(name, ino);
    }

    fn take(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let name = (dir, name.to_vec());
        let ino = self.inodes.remove(&name)?;
        let names = self.names.entry(ino).or_default();
        names.retain(|one| *one != name);
        if names.is_empty() {
            self.names.remove(&ino);
        }
        Some(ino)
    }

    /// Whether the disk half has another inode under a number than the one that the log made.
    pub fn is_another(&self, core: &mut Core, ino: u64) -> bool {
        let is_other =
            |generation: &u32| core.ext4.inode(Ino(ino)).is_ok_and(|inode| inode.generation != *generation);
        self.generations.get(&ino).is_some_and(is_other)
    }

    /// Whether an operation is about such a one.
    pub fn concerns_another(&self, core: &mut Core, record: &Record) -> bool {
        let (one, other) = match *record {
            Record::Create { parent, .. } | Record::Remove { parent, .. } => (parent, None),
            Record::Link { ino, parent, .. } => (ino, Some(parent)),
            Record::Rename { from, to, .. } => (from, Some(to)),
            Record::Release { ino }
            | Record::Attributes { ino, .. }
            | Record::Truncate { ino, .. }
            | Record::Xattr { ino, .. }
            | Record::Fallocate { ino, .. }
            | Record::Data { ino, .. }
            | Record::Contents { ino, .. } => (ino, None),
        };
        self.is_another(core, one) || other.is_some_and(|ino| self.is_another(core, ino))
    }

    /// An operation is left out.
    pub fn leave_out(&mut self, core: &mut Core, record: &Record, why: &Error) {
        self.left_out += 1;
        if self.left_out <= NAMED {
            core.aftermath.note(format!("{} was {LEFT_OUT}: {why}", record.in_words()));
        }
    }

    /// All of the log was run: what it made and the disk half does not have is lost.
    pub fn end(&self, core: &mut Core) {
        if self.left_out > NAMED {
            let more = self.left_out - NAMED;
            core.aftermath.note(format!("each of {more} more operations was {LEFT_OUT}"));
        }
        for (&ino, names) in &self.names {
            // One that could not be renamed is there, under the name it had.
            let has_name = core.ext4.inode(Ino(ino)).is_ok_and(|inode| inode.nlink > 0);
            if has_name && !self.is_another(core, ino) {
                continue;
            }
            for (parent, name) in names {
                let (dir, path) = self.path(core, *parent, name);
                core.aftermath.lose_name(dir, path, "making it did not fit the repaired disk half".into());
            }
        }
    }

    /// The nearest directory that the disk half has, and the way from it.
    fn path(&self, core: &mut Core, mut parent: u64, name: &[u8]) -> (Ino, String) {
        let (mut path, mut seen) = (shown(name), FxHashSet::default());
        while (core.ext4.inode(Ino(parent)).is_err() || self.is_another(core, parent))
            && seen.insert(parent)
            && let Some((above, name)) = self.names.get(&parent).and_then(|names| names.first())
        {
            (parent, path) = (*above, format!("{}/{path}", shown(name)));
        }
        (Ino(parent), path)
    }
}

impl Shared {
    /// Whether an inode that is to be made finds its number taken by the directory in which e2fsck puts what has no name, and that
    /// moved a step out of the way. `made` are the numbers that the log makes.
    pub(super) fn make_way(&self, core: &mut Core, ino: Ino, made: &FxHashSet<u64>) -> Result<bool> {
        let old = core.ext4.lookup(ROOT_INO, FOUND)?.map(|(found, _)| found);
        if old != Some(ino) || core.ext4.inode(ino)?.kind() != Kind::Dir {
            return Ok(false);
        }
        let now = core.ext4.inode(ino)?.mtime;
        let Some((new, _)) = core.ext4.lookup(ROOT_INO, NEW_FOUND)? else {
            let most = core.ext4.statfs().inodes;
            let is_free = |ino: &u64| !made.contains(ino) && core.ext4.inode(Ino(*ino)).is_err();
            let free = (1..=most).rev().find(is_free).ok_or(Error::NoSpace("no inode is free"))?;
            let inode = core.ext4.inode(ino)?;
            let (perm, uid, gid) = (inode.mode & 0o7777, inode.uid, inode.gid);
            let spec = Create {
                parent: ROOT_INO,
                name: NEW_FOUND,
                kind: Kind::Dir,
                perm,
                uid,
                gid,
                rdev: 0,
                target: &[],
                now,
                ino: Some(Ino(free)),
                generation: None,
            };
            self.make(core, &spec)?;
            return Ok(true);
        };
        let mut names = Vec::new();
        core.ext4.readdir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            names.len() < MOVED_AT_ONCE
        })?;
        for name in &names {
            self.move_name(core, ino, name, new, name, Rename::NoReplace, now)?;
        }
        if names.is_empty() {
            self.remove_name(core, ROOT_INO, FOUND, true, now)?;
            self.move_name(core, ROOT_INO, NEW_FOUND, ROOT_INO, FOUND, Rename::Replace, now)?;
        }
        Ok(true)
    }
}
