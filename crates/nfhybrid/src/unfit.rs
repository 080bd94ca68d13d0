//! Operations of the log that do not fit the disk half: it was repaired, and e2fsck took away what they are about, or gave a
//! number of theirs to something of its own.
//!
//! A directory that e2fsck makes for what it finds makes way for a file of the log that has its number. Else a mount is refused,
//! unless the user wants what fits (`recover=whole`): then such operations are left out. Operations on an inode that is not the
//! one they are about do not fit, either. What tells:
//!
//! - the number and the generation, which the log says of each inode that it makes, has contents of, or takes a name away from;
//! - where something else changed the disk half since ([`Made::look_for`]): that an inode is not there, and the time of change of
//!   one of generation 0.
//!
//! A recovery that goes on where an earlier one was cut asks the generations and the times again, and not what is there, since the
//! earlier one may have freed it.

use super::Shared;
use super::core::Core;
use super::record::{Record, Whose, rename_code, rename_of};
use super::recover::is_unfit;
use super::ssd::{Record as LogRecord, RecordBody};
use bimetal_base::error::shown;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Create, Inode, ROOT_INO};
use bimetal_vfs::{Kind, Rename};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where e2fsck puts what has no name.
const FOUND: &[u8] = b"lost+found";
/// What that becomes while it moves.
const NEW_FOUND: &[u8] = b"lost+found.bimetal";
/// So many entries move before a commit, or as many as a transaction has room for.
const MOVED_AT_ONCE: usize = 256;
/// What notes of operations say that were not run.
pub(super) const LEFT_OUT: &str = "left out, as it does not fit the disk half";
/// So many operations that were left out are named; the rest is counted.
const NAMED: u64 = 20;

/// What the disk half has in the place of an inode that the log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlike {
    /// Another one.
    Another,
    /// Another one has the name.
    AnothersName,
    /// None, since something else changed it. (A file without a name that was open may go on being written to, and is freed by
    /// whoever finds it.)
    Gone,
}

impl Unlike {
    /// What to say of it.
    pub fn error(self) -> Error {
        Error::Mismatch(match self {
            Unlike::Another => "the disk half has another file under that number".into(),
            Unlike::AnothersName => "the disk half has another file under that name".into(),
            Unlike::Gone => "the disk half has no file under that number any more: e2fsck took it away, resize2fs gave it another, or \
                             it had no name left when the volume stopped"
                .into(),
        })
    }
}

/// Whether an operation changes no more than attributes, or a size, of an inode.
fn is_slight(record: &Record) -> bool {
    matches!(
        record,
        Record::Attributes { .. }
            | Record::Truncate { .. }
            | Record::Xattr { .. }
            | Record::Fallocate { .. }
            | Record::Flags { .. }
    )
}

/// Whether an inode, and no directory, in which others are made and removed, was changed in these seconds.
fn changed_in(inode: &Inode, since: Option<&Range<i64>>) -> bool {
    inode.kind() != Kind::Dir && since.is_some_and(|since| since.contains(&inode.ctime.sec))
}

/// The inode that an operation is about, and another; making one says itself what number it has, and freeing one looks for itself.
fn concerned(record: &Record) -> [Option<u64>; 2] {
    match *record {
        Record::Create { parent, .. } | Record::Remove { parent, .. } => [Some(parent), None],
        Record::Link { ino, parent, .. } => [Some(ino), Some(parent)],
        Record::Rename { from, to, .. } => [Some(from), Some(to)],
        Record::Release { .. } => [None, None],
        Record::Attributes { ino, .. }
        | Record::Truncate { ino, .. }
        | Record::Xattr { ino, .. }
        | Record::Flags { ino, .. }
        | Record::Fallocate { ino, .. }
        | Record::Data { ino, .. }
        | Record::Contents { ino, .. } => [Some(ino), None],
    }
}

/// What the log has said so far of the inodes it makes, and what of it was left out.
pub(super) struct Made {
    /// What does not fit is left out, instead of being an error.
    whole: bool,
    /// Which use of its number an inode is.
    generations: FxHashMap<u64, u32>,
    /// Seconds after the last operation, where something else changed the disk half then.
    since: Option<Range<i64>>,
    /// Inodes that the log is about and that the disk half did not have as they were before it was run.
    strange: FxHashMap<u64, Unlike>,
    /// Their names, where what does not fit is left out.
    names: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Whose names these are.
    inodes: FxHashMap<(u64, Vec<u8>), u64>,
    left_out: u64,
    /// Inodes of which it was told that their contents were left out.
    told: FxHashSet<u64>,
}

impl Made {
    /// What is known of inodes before the first of these: what is said later of those that the log does not make, up to the
    /// operation that counts last.
    pub fn of(records: &[LogRecord], until: u64, whole: bool) -> Made {
        let mut made = Made {
            whole,
            generations: FxHashMap::default(),
            since: None,
            strange: FxHashMap::default(),
            names: BTreeMap::new(),
            inodes: FxHashMap::default(),
            left_out: 0,
            told: FxHashSet::default(),
        };
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

    /// Notes which inodes that these records are about the disk half has others in the place of, at time `now`; and, unless an earlier
    /// recovery was cut, which may have freed them itself, which it does not have before they are run. What is freed in the end needs
    /// none; nor do attributes and sizes alone, as of a file without a name that somebody had open, but they are told.
    pub fn look_for<'a>(
        &mut self,
        core: &mut Core,
        records: impl Iterator<Item = &'a LogRecord> + Clone,
        (now, was_cut): (i64, bool),
    ) {
        let changed = |record: &LogRecord| match &record.body {
            RecordBody::Operation(bytes) => Record::decode(bytes, record.op).ok()?.changed(),
            RecordBody::Fresh { .. } => None,
        };
        self.since = records.clone().filter_map(changed).max().map(|newest| newest + 1..now + 1);
        let (mut made, mut slight) = (FxHashSet::default(), FxHashSet::default());
        for record in records {
            let (concerned, is_slight) = match &record.body {
                // Contents of a file without a name: nobody can miss them.
                RecordBody::Fresh { inode, .. } if inode.nlink == 0 => continue,
                RecordBody::Fresh { ino, .. } => ([Some(ino.0), None], false),
                RecordBody::Operation(bytes) => match Record::decode(bytes, record.op) {
                    Ok(Record::Release { ino }) => {
                        slight.remove(&ino);
                        self.strange.remove(&ino);
                        continue;
                    }
                    Ok(operation) => {
                        if let Record::Create { ino, .. } = operation {
                            made.insert(ino);
                        }
                        (concerned(&operation), is_slight(&operation))
                    }
                    Err(_) => continue,
                },
            };
            for ino in concerned.into_iter().flatten().filter(|ino| !made.contains(ino)) {
                match core.ext4.inode(Ino(ino)) {
                    Err(Error::Stale | Error::NotFound) if was_cut => {}
                    Err(Error::Stale | Error::NotFound) if is_slight => drop(slight.insert(ino)),
                    Err(Error::Stale | Error::NotFound) => drop(self.strange.insert(ino, Unlike::Gone)),
                    // All of an image that mke2fs filled are of generation 0, and so is what debugfs makes.
                    Ok(inode) if inode.generation == 0 && changed_in(inode, self.since.as_ref()) => {
                        self.strange.insert(ino, Unlike::Another);
                    }
                    _ => {}
                }
            }
        }
        slight.retain(|ino| !self.strange.contains_key(ino));
        if let Some(first) = slight.iter().min() {
            core.aftermath.note(format!(
                "attributes and sizes that the log has of {} inodes ({first} the first) were dropped, as the disk half does not have them any \
                 more: e2fsck took them away, or they had no name left when the volume stopped",
                slight.len()
            ));
        }
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
        // What has the number has the name.
        if self.unlike(core, ino.0).is_none() {
            core.aftermath.lose(ino, format!("what only the SSD has of it was {LEFT_OUT}: {why}"));
        } else if self.told.insert(ino.0) {
            core.aftermath.note(format!("what only the SSD has of inode {ino} was {LEFT_OUT}: {why}"));
        }
    }

    /// The next operation of the log, whether the disk has it or not.
    pub fn see(&mut self, record: &Record, op: u64) {
        match *record {
            Record::Create { parent, name, ino, generation, .. } => {
                self.generations.insert(ino, generation);
                self.strange.remove(&ino);
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
        if !self.whole {
            return None;
        }
        let name = (dir, name.to_vec());
        let ino = self.inodes.remove(&name)?;
        let names = self.names.entry(ino).or_default();
        names.retain(|one| *one != name);
        if names.is_empty() {
            self.names.remove(&ino);
        }
        Some(ino)
    }

    /// What the disk half has in the place of an inode that the log is about, if it is not that.
    pub fn unlike(&self, core: &mut Core, ino: u64) -> Option<Unlike> {
        if let Some(unlike) = self.strange.get(&ino) {
            return Some(*unlike);
        }
        let generation = self.generations.get(&ino)?;
        let is_other = core.ext4.inode(Ino(ino)).is_ok_and(|inode| inode.generation != *generation);
        is_other.then_some(Unlike::Another)
    }

    /// The same of those that an operation is about.
    pub fn concerns_unlike(&self, core: &mut Core, record: &Record) -> Option<Unlike> {
        let unlike = concerned(record).into_iter().flatten().find_map(|ino| self.unlike(core, ino));
        unlike.or_else(|| self.takes_anothers_name(core, record))
    }

    /// Whether an operation takes away a name that is another inode's than it was.
    fn takes_anothers_name(&self, core: &mut Core, record: &Record) -> Option<Unlike> {
        // Each with whose it was, and whether that loses it for good.
        let names = match *record {
            Record::Remove { parent, name, was, .. } => [Some((parent, name, was, true)), None],
            Record::Rename { from, name, to, new_name, how, were, .. } => {
                let moved = were.map(|(moved, _)| moved);
                // A name that was nobody's was no inode's of any number.
                let replaced = were.map(|(_, replaced)| replaced.unwrap_or_default());
                let goes = how != rename_code(Rename::Exchange);
                [Some((from, name, moved, false)), Some((to, new_name, replaced, goes))]
            }
            _ => [None, None],
        };
        let is_anothers = |(dir, name, was, goes): (u64, &[u8], Option<Whose>, bool)| {
            let Ok(Some((ino, kind))) = core.ext4.lookup(Ino(dir), name) else { return false };
            let Ok(inode) = core.ext4.inode(ino) else { return false };
            match was {
                // A directory that goes is empty.
                _ if goes && kind == Kind::Dir => false,
                // resize2fs numbers files anew.
                Some((_, generation)) if generation != 0 => inode.generation != generation,
                Some((was, _)) if was != ino.0 || inode.generation != 0 => true,
                // Of generation 0, or not known.
                _ => !self.generations.contains_key(&ino.0) && changed_in(inode, self.since.as_ref()),
            }
        };
        names.into_iter().flatten().any(is_anothers).then_some(Unlike::AnothersName)
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
            if has_name && self.unlike(core, ino).is_none() {
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
        while (core.ext4.inode(Ino(parent)).is_err() || self.unlike(core, parent).is_some())
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
    /// moved out of the way as far as the transaction has room. `made` are the numbers that the log makes.
    pub(super) fn make_way(&self, core: &mut Core, ino: Ino, made: &FxHashSet<u64>) -> Result<bool> {
        let old = core.ext4.lookup(ROOT_INO, FOUND)?.map(|(found, _)| found);
        if old != Some(ino) || core.ext4.inode(ino)?.kind() != Kind::Dir {
            return Ok(false);
        }
        let now = core.ext4.inode(ino)?.mtime;
        let Some((new, _)) = core.ext4.lookup(ROOT_INO, NEW_FOUND)? else {
            let credits = core.ext4.credits_for_create(ROOT_INO)?;
            if !self.has_room_for(core, credits) {
                return Ok(true);
            }
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
            let credits = core.ext4.credits_for_rename(new, name)?;
            if !self.has_room_for(core, credits) {
                return Ok(true);
            }
            self.move_name(core, ino, name, new, name, Rename::NoReplace, now)?;
        }
        let credits =
            core.ext4.credits_for_remove(ROOT_INO, FOUND)? + core.ext4.credits_for_rename(ROOT_INO, FOUND)?;
        if names.is_empty() && self.has_room_for(core, credits) {
            self.remove_name(core, ROOT_INO, FOUND, true, now)?;
            self.move_name(core, ROOT_INO, NEW_FOUND, ROOT_INO, FOUND, Rename::Replace, now)?;
        }
        Ok(true)
    }
}
