//! Files off an SSD half alone, when the disk half is lost: what its log and its copies hold.
//!
//! Nothing is written to the SSD. The log's operations are run in their order, and each copy is written behind the operation as
//! of which it is: it holds what all before it left, and what came later is over it. Then the
//! files get the names the log has; those without are called by their inode numbers, in `by-inode`. What the SSD
//! never had, or has with a wrong checksum, is a hole; `RESCUE.txt` lists the files with holes. Where a file that is got off has
//! one of these two names, the directory or the list takes the next that is free, and [`Rescued`] says which. All is made by
//! [`Below`], which never leaves the target, and is closed to others until it has its owner and permissions. What of a file cannot be
//! written is counted and listed, and the rest goes on. Memory: a node and the spans of its data for each inode.

mod below;
mod names;
mod node;

use super::record::{Record, When, fallocate_of, kind_of, rename_of, when};
use super::ssd::{CopyState, DupInode, RecordBody, Resident, Ssd};
use below::Below;
use bimetal_base::checksum::crc32c;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_media::file::{FileDevice, Options};
use bimetal_media::guard::{self, Claim, Role};
use bimetal_vfs::{Fallocate, Kind, Rename};
use node::Node;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Where files without a name go.
const BY_INODE: &str = "by-inode";
/// Where it is said what is missing.
const LIST: &str = "RESCUE.txt";
/// Written over what was punched.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
/// Blocks read at once.
const BLOCKS: u32 = 256;
/// Type bits of a mode, and that of a regular file.
const TYPE: u16 = 0o170_000;
const REGULAR: u16 = 0o100_000;

/// What was got off.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rescued {
    /// Files, of which nothing is missing.
    pub whole: u64,
    /// Files with holes where the SSD has nothing, or nothing right.
    pub partial: u64,
    /// Directories and symbolic links.
    pub others: u64,
    /// Files without a name.
    pub nameless: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Files, directories and links of which something could not be written: contents, a name, the owner.
    pub failed: u64,
    /// Bytes on the SSD whose checksums are wrong, or that cannot be read.
    pub bad_bytes: u64,
    /// A part of the log, or of what only the SSD has, is damaged: files may be missing, or have older contents.
    pub damaged: bool,
    /// It was ended before its end: files are missing, or cut short, and none is called whole.
    pub ended: bool,
    /// What files without a name lie in, below the target.
    pub by_inode: String,
    /// What lists the files with holes, and what could not be written, below the target.
    pub list: String,
    /// What was noticed.
    pub notes: Vec<String>,
}

/// Something the SSD has beside its log.
struct Copy {
    /// The operation as of which it is.
    op: u64,
    ino: Ino,
    what: What,
}

enum What {
    /// From this block of the file on.
    Blocks(u32, Resident),
    /// Size, permissions and owner.
    Inode(Box<DupInode>),
}

struct Rescue<'a> {
    /// Whether it is to end now.
    stop: &'a dyn Fn() -> bool,
    device: Arc<FileDevice>,
    block_bytes: u64,
    below: Below,
    /// Where files are until they have their names.
    by_inode: Rc<OwnedFd>,
    /// What the log says of later operations the disk never had; nothing, where the log is not whole.
    disk_had: u64,
    nodes: BTreeMap<u64, Node>,
    /// What could not be written, or not as it was.
    problems: Vec<String>,
    done: Rescued,
}

/// Gets what an SSD half holds into the directory `to`, which must be new or empty; `progress` hears what is done, the
/// first time once something is made there. Where `stop` says so it ends: what it has by then gets names, and the list says that.
///
/// # Errors
/// The SSD is in use, is none, or cannot be read at all; `to` cannot be made or used. What of a file cannot be written is none:
/// [`Rescued::failed`].
pub fn rescue(ssd: &Path, to: &Path, progress: &dyn Fn(String), stop: &dyn Fn() -> bool) -> Result<Rescued> {
    let claim = guard::claim_path(ssd, Role::Read)?;
    check_empty(to)?;
    rescue_claimed(claim, to, progress, stop)
}

fn check_empty(to: &Path) -> Result<()> {
    match fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::invalid(format!("{} is not empty; name a new directory", to.display()))),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(why) if why.kind() == io::ErrorKind::NotADirectory => {
            Err(Error::invalid(format!("{} is no directory; name a new one", to.display())))
        }
        Err(why) => Err(Error::io(to.display(), why)),
    }
}

fn rescue_claimed(
    claim: Arc<Claim>,
    to: &Path,
    progress: &dyn Fn(String),
    stop: &dyn Fn() -> bool,
) -> Result<Rescued> {
    let device = Arc::new(FileDevice::over(claim, &Options::of_ssd(false))?);
    let opened = Ssd::open_everything(device.as_ref()).map_err(|error| match error {
        Error::Corrupt { .. } => error.explained(
            "nothing can be got off without a whole superblock, of which an SSD half has two; what the disk half has can be read \
             without it (bimetal ls --disk DISK)",
        ),
        other => other,
    })?;
    // Only now: an SSD that cannot be opened leaves no directory behind.
    let (failed, made) = (|why| Error::io(to.display(), why), !to.exists());
    fs::create_dir_all(to).map_err(failed)?;
    let below = Below::new(to).map_err(failed)?;
    let by_inode = below.dir(Path::new(BY_INODE)).map_err(failed)?;
    progress("the log".into());
    let mut rescue = Rescue {
        stop,
        block_bytes: opened.ssd.block_bytes().into(),
        device,
        below,
        by_inode,
        disk_had: if opened.lost.is_none() { opened.disk_had } else { u64::MAX },
        nodes: BTreeMap::new(),
        problems: Vec::new(),
        done: Rescued {
            damaged: opened.lost.is_some(),
            by_inode: BY_INODE.into(),
            list: LIST.into(),
            notes: opened.notes,
            ..Rescued::default()
        },
    };
    let mut copies = rescue.copies(&opened.ssd)?.into_iter().peekable();
    for record in &opened.records {
        if stop() {
            break;
        }
        while let Some(copy) = copies.next_if(|copy| copy.op < record.op) {
            progress(format!("copies of inode {}", copy.ino));
            rescue.copy(&opened.ssd, copy);
        }
        progress(format!("operation {} of the log", record.op));
        match &record.body {
            RecordBody::Operation(bytes) => {
                let decoded = Record::decode(bytes, record.op);
                if let Err(why) = decoded.and_then(|operation| rescue.apply(&operation, record.op)) {
                    rescue.done.damaged = true;
                    rescue.done.notes.push(why.to_string());
                }
            }
            RecordBody::Fresh { ino, file_block, run, .. } => {
                let found = Resident { at: run.at, len: run.len, state: CopyState::Ssd };
                rescue.stretch(&opened.ssd, *ino, *file_block, found);
            }
        }
    }
    for copy in copies {
        if stop() {
            break;
        }
        progress(format!("copies of inode {}", copy.ino));
        rescue.copy(&opened.ssd, copy);
    }
    rescue.done.ended = stop();
    progress("names".into());
    rescue.name_all(made);
    Ok(rescue.done)
}

impl Rescue<'_> {
    fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.entry(ino).or_default()
    }

    fn open(&self, ino: u64) -> io::Result<File> {
        below::open_in(&self.by_inode, &ino.to_string())
    }

    /// The copies that the disk had, too, the oldest first; behind the last of an inode's what its slot says of it.
    fn copies(&mut self, ssd: &Ssd) -> Result<Vec<Copy>> {
        let mut copies = Vec::new();
        let mut inodes: Vec<Ino> = ssd.inodes().collect();
        inodes.sort_unstable();
        for ino in inodes {
            let inode = match ssd.read_dup_inode(self.device.as_ref(), ino) {
                Ok(Some(inode)) => inode,
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                Ok(None) | Err(_) => {
                    let note =
                        format!("what the SSD has of inode {ino} is left out: its slot cannot be read");
                    self.done.damaged = true;
                    self.done.notes.push(note);
                    continue;
                }
            };
            if inode.mode & TYPE != REGULAR {
                continue;
            }
            let mut last = 0;
            for (op, file_block, found) in ssd.residents_as_of(ino) {
                last = last.max(op);
                if found.state == CopyState::Both {
                    copies.push(Copy { op, ino, what: What::Blocks(file_block, found) });
                }
            }
            copies.push(Copy { op: last, ino, what: What::Inode(Box::new(inode)) });
        }
        copies.sort_by_key(|copy| copy.op);
        Ok(copies)
    }

    fn copy(&mut self, ssd: &Ssd, Copy { ino, what, .. }: Copy) {
        match what {
            What::Blocks(file_block, found) => self.stretch(ssd, ino, file_block, found),
            What::Inode(inode) => {
                self.resize(ino.0, inode.size);
                let node = self.node(ino.0);
                node.kind = Some(Kind::File);
                (node.perm, node.owner) = (Some(inode.mode & 0o7777), Some((inode.uid, inode.gid)));
                (node.atime, node.mtime) = (Some(when(inode.atime)), Some(when(inode.mtime)));
            }
        }
    }

    /// Writes blocks that lie one behind the other.
    fn stretch(&mut self, ssd: &Ssd, ino: Ino, file_block: u32, found: Resident) {
        let (size, mut done) = (self.block_bytes, 0);
        self.node(ino.0).kind.get_or_insert(Kind::File);
        while done < found.len && !(self.stop)() {
            let len = BLOCKS.min(found.len - done);
            let mut sums = ssd.sums(bimetal_base::units::SsdBlock(found.at.0 + u64::from(done)), len);
            let sums = sums.read_each(self.device.as_ref());
            let sums = sums.unwrap_or_else(|_| vec![None; len as usize]);
            for (index, sum) in (0u64..).zip(sums) {
                let device: &dyn BlockDevice = self.device.as_ref();
                let block = found.at.0 + u64::from(done) + index;
                let at = (u64::from(file_block) + u64::from(done) + index) * size;
                let read = device.read(block * size, size as usize);
                match read.ok().filter(|bytes| sum == Some(crc32c(bytes))) {
                    Some(bytes) => self.put(ino.0, at, &bytes),
                    None => {
                        self.done.bad_bytes += size;
                        self.node(ino.0).uncover(at, at + size);
                    }
                }
            }
            done += len;
        }
    }

    /// Writes contents.
    fn put(&mut self, ino: u64, at: u64, bytes: &[u8]) {
        let end = at.saturating_add(bytes.len() as u64);
        let written = self.open(ino).and_then(|file| file.write_all_at(bytes, at));
        let node = self.node(ino);
        match written {
            Ok(()) => node.cover(at, end),
            Err(why) => {
                node.uncover(at, end);
                node.trouble(why);
            }
        }
    }

    /// Applies an operation of the log to what is known.
    fn apply(&mut self, record: &Record, op: u64) -> Result<()> {
        let is_new = op > self.disk_had;
        match *record {
            Record::Create { parent, name, ino, kind, perm, owner, target, at, .. } => {
                self.anew(ino);
                let is_whole = self.disk_had != u64::MAX;
                let mut node = if is_whole { Node::made(is_new) } else { Node::default() };
                node.kind = Some(kind_of(kind, op)?);
                (node.perm, node.owner, node.target) = (Some(perm), Some(owner), target.to_vec());
                (node.atime, node.mtime) = (Some(at), Some(at));
                node.names.push((parent, name.to_vec()));
                node.troubles = std::mem::take(&mut self.node(ino).troubles);
                self.nodes.insert(ino, node);
                self.touch(parent, at);
            }
            Record::Link { ino, parent, name, at } => {
                self.node(ino).names.push((parent, name.to_vec()));
                self.touch(parent, at);
            }
            Record::Remove { parent, name, at, .. } => {
                self.take_name(parent, name);
                self.touch(parent, at);
            }
            Record::Rename { from, name, to, new_name, how, at, .. } => {
                let how = rename_of(how, op)?;
                let moved = self.take_name(from, name);
                let replaced = self.take_name(to, new_name);
                self.give_name(moved, to, new_name);
                if how == Rename::Exchange {
                    self.give_name(replaced, from, name);
                }
                self.touch(from, at);
                self.touch(to, at);
            }
            Record::Release { ino } => {
                self.anew(ino);
                self.node(ino).gone = true;
            }
            Record::Attributes { ino, perm, owner, atime, mtime, .. } => {
                let node = self.node(ino);
                (node.perm, node.owner) = (Some(perm), Some(owner));
                (node.atime, node.mtime) = (Some(atime), Some(mtime));
            }
            Record::Truncate { ino, size, old, at } => {
                self.resize(ino, size);
                let node = self.node(ino);
                node.mtime = Some(at);
                if is_new {
                    // What it grows by is zeros.
                    node.cover(size.min(old), u64::MAX);
                }
            }
            Record::Contents { ino, size, perm, mtime, .. } => {
                self.resize(ino, size);
                let node = self.node(ino);
                node.kind.get_or_insert(Kind::File);
                (node.perm, node.mtime) = (Some(perm), Some(mtime));
            }
            Record::Fallocate { ino, what, offset, len, size, at } => {
                if !matches!(fallocate_of(what, op)?, Fallocate::Reserve { .. }) {
                    self.zero(ino, offset, offset.saturating_add(len));
                }
                let node = self.node(ino);
                (node.size, node.mtime) = (size, Some(at));
            }
            Record::Data { ino, offset, bytes } => {
                // Whole frames are logged; what is past the end is cut off with the size.
                self.put(ino, offset, bytes);
                self.node(ino).kind.get_or_insert(Kind::File);
            }
            Record::Xattr { ino, name, value, perm, .. } => {
                let node = self.node(ino);
                node.perm = Some(perm);
                match value {
                    Some(value) => node.attributes.insert(name.to_vec(), value.to_vec()),
                    None => node.attributes.remove(name),
                };
            }
            Record::Flags { ino, flags, .. } => self.node(ino).flagged = flags != 0,
        }
        Ok(())
    }

    /// Names in a directory changed.
    fn touch(&mut self, dir: u64, at: When) {
        let node = self.node(dir);
        node.kind.get_or_insert(Kind::Dir);
        node.mtime = Some(at);
    }

    /// An inode whose number is used anew: nothing of what it was before is its own.
    fn anew(&mut self, ino: u64) {
        let removed = below::remove_in(&self.by_inode, &ino.to_string());
        let node = self.node(ino);
        *node = Node::default();
        if let Err(why) = removed {
            node.trouble(format!("it may have contents of another: {why}"));
        }
    }

    fn resize(&mut self, ino: u64, size: u64) {
        let cut = match size < self.node(ino).size {
            true => self.open(ino).and_then(|file| file.set_len(size)),
            false => Ok(()),
        };
        let node = self.node(ino);
        if size < node.size {
            node.cut(size);
        }
        node.size = size;
        if let Err(why) = cut {
            node.trouble(why);
        }
    }

    /// Bytes of a file are zeros, and known to be.
    fn zero(&mut self, ino: u64, from: u64, end: u64) {
        let zeroed = self.open(ino).and_then(|file| {
            let there = file.metadata()?.len().min(end);
            if there <= from || below::punch(&file, from, there - from).is_ok() {
                return Ok(());
            }
            for at in (from..there).step_by(ZEROS.len()) {
                let len = ZEROS.len().min((there - at) as usize);
                file.write_all_at(&ZEROS[..len], at)?;
            }
            Ok(())
        });
        let node = self.node(ino);
        match zeroed {
            Ok(()) => node.cover(from, end),
            Err(why) => {
                node.uncover(from, end);
                node.trouble(why);
            }
        }
    }

    fn give_name(&mut self, ino: Option<u64>, dir: u64, name: &[u8]) {
        if let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.names.push((dir, name.to_vec()));
        }
    }

    /// Takes a name away from the inode that has it.
    fn take_name(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let is_it = |(dir, one): &(u64, Vec<u8>)| *dir == parent && one == name;
        let (ino, node) = self.nodes.iter_mut().find(|(_, node)| node.names.iter().any(is_it))?;
        node.names.retain(|one| !is_it(one));
        Some(*ino)
    }
}
