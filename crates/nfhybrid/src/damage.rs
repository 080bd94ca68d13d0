//! What a damaged log has lost, by files: for whoever said that the rest is to go to the disk.
//!
//! The log's operations up to the last mark of completeness before the damage were run. Of those, an fsync's `Contents` say
//! that a file had a size and contents, and its contents may have been in what is gone. So each such file is looked at: what
//! of it is a hole, and whether the log or the SSD had anything for it at all. A file with holes of its own is named, too.
//! Then the whole groups behind the damage say which files were fsynced later, and which names made.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use super::mount::SSD_HALF;
use super::partial::load_frame;
use super::record::{Record, stamp};
use super::recover::Recovery;
use super::ssd::{RecordBody, Run};
use bimetal_base::error::shown;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Inode;
use bimetal_vfs::Kind;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Files that the log speaks of.
#[derive(Default)]
struct Told {
    /// Their contents were made durable.
    contents: BTreeSet<Ino>,
    /// Contents of them were found.
    data: FxHashSet<Ino>,
    /// They were made since the disk's last commit.
    made: FxHashSet<Ino>,
    /// Their size was set, or space of theirs reserved or punched.
    shaped: FxHashSet<Ino>,
    /// Contents of later operations that were found, and left out.
    later: Vec<LateRun>,
}

/// Contents from behind the last mark of completeness.
struct LateRun {
    ino: Ino,
    generation: u32,
    file_block: u32,
    run: Run,
}

impl Told {
    fn of(log: &Recovery, disk_had: u64) -> Told {
        let mut told = Told::default();
        for record in log.records.iter().filter(|record| record.op > disk_had) {
            let counts = record.op <= log.complete;
            match &record.body {
                RecordBody::Fresh { ino, .. } if counts => drop(told.data.insert(*ino)),
                RecordBody::Fresh { ino, inode, file_block, run } => told.later.push(LateRun {
                    ino: *ino,
                    generation: inode.generation,
                    file_block: *file_block,
                    run: *run,
                }),
                RecordBody::Operation(bytes) if record.op <= log.until => told.operation(bytes, record.op),
                RecordBody::Operation(_) => {}
            }
        }
        told
    }

    fn operation(&mut self, bytes: &[u8], op: u64) {
        match Record::decode(bytes, op) {
            Ok(Record::Contents { ino, .. }) => drop(self.contents.insert(Ino(ino))),
            Ok(Record::Data { ino, .. }) => drop(self.data.insert(Ino(ino))),
            Ok(Record::Create { ino, .. }) => {
                // The number may have been another file's before.
                let ino = Ino(ino);
                self.contents.remove(&ino);
                self.data.remove(&ino);
                self.shaped.remove(&ino);
                self.made.insert(ino);
            }
            Ok(Record::Truncate { ino, .. } | Record::Fallocate { ino, .. }) => {
                self.shaped.insert(Ino(ino));
            }
            _ => {}
        }
    }
}

impl Shared {
    /// A file that was made since the disk's last commit, and fsynced with a size, has contents in the log or on the SSD,
    /// unless its size was set. If there are none, a table of the SSD has lost them without a trace (a write that was
    /// acknowledged and not done, for example). Everything that counts was run.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is such a file.
    pub(super) fn check_contents(&self, core: &mut Core, log: &Recovery, disk_had: u64) -> Result<()> {
        let told = Told::of(log, disk_had);
        let mut empty = Vec::new();
        for &ino in told.contents.iter().filter(|ino| told.made.contains(ino) && !told.data.contains(ino)) {
            let Some(size) = size_of_live(core, ino).filter(|_| !told.shaped.contains(&ino)) else {
                continue;
            };
            if size > 0 && self.holes(core, ino, size)? == size {
                empty.push(ino);
            }
        }
        let Some(first) = empty.first() else { return Ok(()) };
        if log.whole {
            let why = "none of its bytes were found, and it reads as zeros";
            empty.into_iter().for_each(|ino| core.aftermath.lose(ino, why.into()));
            return Ok(());
        }
        let path = core.paths_of(&FxHashSet::from_iter([*first])).remove(first).unwrap_or_default();
        Err(Error::corrupt(
            SSD_HALF,
            format!(
                "its log tells of {} files that were fsynced and whose contents it does not have ({path} among them); nothing was \
                 changed: get off it what it holds (bimetal rescue), then say -o recover=whole to bring to the disk what is \
                 whole of it",
                empty.len()
            ),
            "its inode table",
        ))
    }

    /// Notes which files lack what was fsynced. Everything that counts was run.
    pub(super) fn note_missing(&self, core: &mut Core, log: &Recovery, disk_had: u64) -> Result<()> {
        let Some(beyond) = log.beyond else { return Ok(()) };
        let told = Told::of(log, disk_had);
        for &ino in &told.contents {
            let Some(size) = size_of_live(core, ino) else { continue };
            let missing = self.holes(core, ino, size)?;
            if missing > 0 {
                let why = format!("{missing} of its {size} bytes were not found and read as zeros");
                core.aftermath.lose(ino, why);
            } else if size > 0 && !told.data.contains(&ino) && !told.made.contains(&ino) {
                core.aftermath.lose(ino, "none of it was found, and the file is as it was before".into());
            }
        }
        for later in &told.later {
            if is_same(core, later) && !self.is_there(core, later) {
                core.aftermath
                    .lose(later.ino, "what was written to it after the damaged part is left out".into());
            }
        }
        Beyond::default().run(core, beyond.iter().filter(|(op, _)| *op > disk_had));
        Ok(())
    }

    /// Whether a file has these contents, wherever they came from: the log may have said them before.
    fn is_there(&self, core: &mut Core, later: &LateRun) -> bool {
        let Some(mut sums) = core.ssd.as_ref().map(|ssd| ssd.sums(later.run.at, later.run.len)) else {
            return false;
        };
        let Ok(found) = self.read_ssd(later.run.at, &mut sums) else { return false };
        let from = u64::from(later.file_block) * self.ssd_block_bytes as u64;
        let size = core.inode_of_file(later.ino).map_or(0, |inode| inode.size);
        let end = size.min(from + found.len() as u64);
        (from / FRAME as u64..end.div_ceil(FRAME as u64)).all(|index| {
            let start = (index * FRAME as u64).max(from);
            let stop = ((index + 1) * FRAME as u64).min(end);
            let Ok(frame) = load_frame(self, core, later.ino, index) else { return false };
            let in_frame = (start % FRAME as u64) as usize..(stop - index * FRAME as u64) as usize;
            frame.bytes()[in_frame] == found[(start - from) as usize..(stop - from) as usize]
        })
    }

    /// Bytes of a file that nothing was ever written to.
    fn holes(&self, core: &mut Core, ino: Ino, size: u64) -> Result<u64> {
        let (mut index, mut missing) = (0, 0);
        while index * (FRAME as u64) < size {
            let (data, frames) = self.stretch(core, ino, index, size)?;
            let end = ((index + frames) * FRAME as u64).min(size);
            missing += if data { 0 } else { end - index * FRAME as u64 };
            index += frames;
        }
        Ok(missing)
    }
}

/// The size of a regular file that has a name.
fn size_of_live(core: &mut Core, ino: Ino) -> Option<u64> {
    let is_live = |inode: &&Inode| inode.nlink > 0 && inode.kind() == Kind::File;
    core.inode_of_file(ino).ok().filter(is_live).map(|inode| inode.size)
}

/// Whether the file that contents belong to is the one that has its number.
fn is_same(core: &mut Core, later: &LateRun) -> bool {
    core.ext4.inode(later.ino).is_ok_and(|inode| inode.generation == later.generation && inode.nlink > 0)
}

/// What whole groups behind the damage tell of names, run in order over what the disk half has.
#[derive(Default)]
struct Beyond {
    /// Inodes that were made, or got another name: the last one.
    named: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Of those that were made: which use of the number it was.
    generations: FxHashMap<u64, u32>,
    /// Files whose contents were made durable: their sizes.
    written: BTreeMap<u64, u64>,
}

impl Beyond {
    fn run<'a>(mut self, core: &mut Core, operations: impl Iterator<Item = &'a (u64, Bytes)>) {
        for (op, bytes) in operations {
            if let Ok(record) = Record::decode(bytes, *op) {
                self.operation(core, &record);
            }
        }
        let Beyond { named, written, .. } = &self;
        for (&ino, (parent, name)) in named {
            if !self.is_there(core, ino, (*parent, name)) {
                let (dir, path) = self.path(core, *parent, name);
                core.aftermath.lose_name(dir, path, "that name was given after the damaged part".into());
            }
        }
        for (&ino, size) in written.iter().filter(|(ino, _)| !named.contains_key(ino)) {
            if core.ext4.inode(Ino(ino)).is_ok_and(|inode| inode.nlink > 0) {
                let why = format!("it was written again, {size} bytes long, after the damaged part");
                core.aftermath.lose(Ino(ino), why);
            }
        }
    }

    /// Whether the disk half has an inode under this name, and in the use that was told of.
    fn is_there(&self, core: &mut Core, ino: u64, (parent, name): (u64, &[u8])) -> bool {
        let found = core.ext4.lookup(Ino(parent), name).ok().flatten().map(|(found, _)| found.0);
        let is_same = |generation: &u32| core.ext4.inode(Ino(ino)).is_ok_and(|i| i.generation == *generation);
        found == Some(ino) && self.generations.get(&ino).is_none_or(is_same)
    }

    fn operation(&mut self, core: &mut Core, record: &Record) {
        match *record {
            Record::Create { parent, name, ino, generation, .. } => {
                self.named.insert(ino, (parent, name.to_vec()));
                self.generations.insert(ino, generation);
            }
            Record::Link { parent, name, ino, .. } => {
                self.named.insert(ino, (parent, name.to_vec()));
            }
            Record::Rename { from, name, to, new_name, .. } => {
                let is_it = |(_, (dir, one)): &(&u64, &(u64, Vec<u8>))| *dir == from && one == name;
                let made = self.named.iter().find(is_it).map(|(ino, _)| *ino);
                let found = || core.ext4.lookup(Ino(from), name).ok().flatten().map(|(ino, _)| ino.0);
                self.named.retain(|_, (dir, one)| *dir != to || one != new_name);
                // What cannot be found under its old name has the new one already.
                if let Some(ino) = made.or_else(found) {
                    self.named.insert(ino, (to, new_name.to_vec()));
                }
            }
            Record::Remove { parent, name, .. } => {
                self.named.retain(|_, (dir, one)| *dir != parent || one != name);
            }
            Record::Contents { ino, size, mtime, .. } => {
                // It may have been said before, and is said again.
                let is_so =
                    core.ext4.inode(Ino(ino)).is_ok_and(|i| i.size == size && i.mtime == stamp(mtime));
                if !is_so {
                    self.written.insert(ino, size);
                }
            }
            _ => {}
        }
    }

    /// The nearest directory that the disk half has, and the way from it.
    fn path(&self, core: &mut Core, mut parent: u64, name: &[u8]) -> (Ino, String) {
        let (mut path, mut steps) = (shown(name), 0);
        while core.ext4.inode(Ino(parent)).is_err()
            && let Some((above, name)) = self.named.get(&parent).filter(|_| steps < 1000)
        {
            (parent, path, steps) = (*above, format!("{}/{path}", shown(name)), steps + 1);
        }
        (Ino(parent), path)
    }
}
