//! Files off an SSD half alone, when the disk half is lost: what its log and its copies hold.
//!
//! Nothing is written to the SSD. The log's operations are run in their order, and each copy is written behind the operation as
//! of which it is: it holds what all before it left, and what came later is over it. Then the
//! files get the names the log has; those without are called by their inode numbers, in `by-inode`. What the SSD
//! never had, or has with a wrong checksum, is a hole; `RESCUE.txt` lists the files with holes. Where a file that is got off has
//! one of these two names, the directory or the list takes the next that is free, and [`Rescued`] says which. Memory: a node and the
//! spans of its data for each inode.

mod names;

use super::record::{Record, fallocate_of, kind_of, rename_of};
use super::ssd::{CopyState, DupInode, RecordBody, Resident, Ssd};
use bimetal_base::checksum::crc32c;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_media::file::{FileDevice, Options};
use bimetal_media::guard::{self, Claim, Role};
use bimetal_vfs::{Fallocate, Kind, Rename};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    /// Bytes on the SSD whose checksums are wrong, or that cannot be read.
    pub bad_bytes: u64,
    /// A part of the log, or of what only the SSD has, is damaged: files may be missing, or have older contents.
    pub damaged: bool,
    /// What files without a name lie in, below the target.
    pub by_inode: String,
    /// What lists the files with holes, below the target.
    pub list: String,
    /// What was noticed.
    pub notes: Vec<String>,
}

/// An inode as far as it is known.
#[derive(Debug, Default)]
struct Node {
    kind: Option<Kind>,
    size: u64,
    perm: Option<u16>,
    owner: Option<(u32, u32)>,
    target: Vec<u8>,
    names: Vec<(u64, Vec<u8>)>,
    /// Bytes that are known, by where they begin: where they end.
    spans: BTreeMap<u64, u64>,
    /// The log says that it was removed.
    gone: bool,
}

impl Node {
    fn cover(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        while let Some((&start, &end)) = self.spans.range(..=to).next_back().filter(|(_, end)| **end >= from)
        {
            self.spans.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.spans.insert(from, to);
    }

    fn cut(&mut self, size: u64) {
        self.spans.split_off(&size);
        if let Some((_, end)) = self.spans.range_mut(..size).next_back() {
            *end = (*end).min(size);
        }
    }

    fn missing(&self) -> u64 {
        let known = self.spans.iter().map(|(from, to)| to.min(&self.size).saturating_sub(*from));
        self.size.saturating_sub(known.sum())
    }
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

struct Rescue {
    device: Arc<FileDevice>,
    block_bytes: u64,
    to: PathBuf,
    nodes: BTreeMap<u64, Node>,
    done: Rescued,
}

/// Gets what an SSD half holds into the directory `to`, which must be new or empty; `progress` hears what is done.
///
/// # Errors
/// The SSD is in use, is none, or cannot be read at all; something cannot be written below `to`.
pub fn rescue(ssd: &Path, to: &Path, progress: &dyn Fn(String)) -> Result<Rescued> {
    let claim = guard::claim_path(ssd, Role::Read)?;
    check_empty(to)?;
    rescue_claimed(claim, to, progress)
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

fn rescue_claimed(claim: Arc<Claim>, to: &Path, progress: &dyn Fn(String)) -> Result<Rescued> {
    let device = Arc::new(FileDevice::over(claim, &Options::default())?);
    let opened = Ssd::open_everything(device.as_ref()).map_err(|error| match error {
        Error::Corrupt { .. } => error.explained(
            "nothing can be got off without a whole superblock, of which an SSD half has two; what the disk half has can be read \
             without it (bimetal ls --disk DISK)",
        ),
        other => other,
    })?;
    // Only now: an SSD that cannot be opened leaves no directory behind.
    fs::create_dir_all(to.join(BY_INODE)).map_err(|why| Error::io(to.display(), why))?;
    let mut rescue = Rescue {
        block_bytes: opened.ssd.block_bytes().into(),
        device,
        to: to.into(),
        nodes: BTreeMap::new(),
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
        while let Some(copy) = copies.next_if(|copy| copy.op < record.op) {
            progress(format!("copies of inode {}", copy.ino));
            rescue.copy(&opened.ssd, copy)?;
        }
        progress(format!("operation {} of the log", record.op));
        match &record.body {
            RecordBody::Operation(bytes) => match Record::decode(bytes, record.op) {
                Ok(operation) => rescue.apply(&operation, record.op)?,
                Err(why) => rescue.done.notes.push(why.to_string()),
            },
            RecordBody::Fresh { ino, file_block, run, .. } => {
                let found = Resident { at: run.at, len: run.len, state: CopyState::Ssd };
                rescue.stretch(&opened.ssd, *ino, *file_block, found)?;
            }
        }
    }
    for copy in copies {
        progress(format!("copies of inode {}", copy.ino));
        rescue.copy(&opened.ssd, copy)?;
    }
    progress("names".into());
    rescue.name_all()?;
    Ok(rescue.done)
}

impl Rescue {
    fn file_of(&self, ino: u64) -> PathBuf {
        self.to.join(&self.done.by_inode).join(ino.to_string())
    }

    fn open(&self, ino: u64) -> Result<File> {
        let path = self.file_of(ino);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        file.map_err(|why| Error::io(path.display(), why))
    }

    /// The copies that the disk had, too, the oldest first; behind the last of an inode's what its slot says of it.
    fn copies(&mut self, ssd: &Ssd) -> Result<Vec<Copy>> {
        let mut copies = Vec::new();
        let mut inodes: Vec<Ino> = ssd.inodes().collect();
        inodes.sort_unstable();
        for ino in inodes {
            let Some(inode) = ssd.read_dup_inode(self.device.as_ref(), ino)? else {
                let note = format!("what the SSD has of inode {ino} is left out: its slot cannot be read");
                self.done.notes.push(note);
                continue;
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

    fn copy(&mut self, ssd: &Ssd, Copy { ino, what, .. }: Copy) -> Result<()> {
        match what {
            What::Blocks(file_block, found) => self.stretch(ssd, ino, file_block, found),
            What::Inode(inode) => {
                self.resize(ino.0, inode.size)?;
                let node = self.nodes.entry(ino.0).or_default();
                node.kind = Some(Kind::File);
                (node.perm, node.owner) = (Some(inode.mode & 0o777), Some((inode.uid, inode.gid)));
                Ok(())
            }
        }
    }

    /// Writes blocks that lie one behind the other.
    fn stretch(&mut self, ssd: &Ssd, ino: Ino, file_block: u32, found: Resident) -> Result<()> {
        let (size, mut done) = (self.block_bytes, 0);
        let file = self.open(ino.0)?;
        self.nodes.entry(ino.0).or_default().kind.get_or_insert(Kind::File);
        while done < found.len {
            let len = BLOCKS.min(found.len - done);
            let mut sums = ssd.sums(bimetal_base::units::SsdBlock(found.at.0 + u64::from(done)), len);
            let sums = sums.read_each(self.device.as_ref())?;
            for (index, sum) in (0u64..).zip(sums) {
                let device: &dyn BlockDevice = self.device.as_ref();
                let block = found.at.0 + u64::from(done) + index;
                let read = device.read(block * size, size as usize);
                let Some(bytes) = read.ok().filter(|bytes| sum == Some(crc32c(bytes))) else {
                    self.done.bad_bytes += size;
                    continue;
                };
                let at = (u64::from(file_block) + u64::from(done) + index) * size;
                self.put(&file, ino.0, at, &bytes)?;
            }
            done += len;
        }
        Ok(())
    }

    fn put(&mut self, file: &File, ino: u64, at: u64, bytes: &[u8]) -> Result<()> {
        file.write_all_at(bytes, at).map_err(|why| Error::io(self.file_of(ino).display(), why))?;
        self.nodes.entry(ino).or_default().cover(at, at + bytes.len() as u64);
        Ok(())
    }

    /// Applies an operation of the log to what is known.
    fn apply(&mut self, record: &Record, op: u64) -> Result<()> {
        match *record {
            Record::Create { parent, name, ino, kind, perm, owner, target, .. } => {
                let node = self.anew(ino)?;
                node.kind = kind_of(kind, op).ok();
                (node.perm, node.owner, node.target) = (Some(perm), Some(owner), target.to_vec());
                node.names.push((parent, name.to_vec()));
            }
            Record::Link { ino, parent, name, .. } => {
                self.nodes.entry(ino).or_default().names.push((parent, name.to_vec()));
            }
            Record::Remove { parent, name, .. } => {
                self.take_name(parent, name);
            }
            Record::Rename { from, name, to, new_name, how, .. } => {
                let moved = self.take_name(from, name);
                let replaced = self.take_name(to, new_name);
                self.give_name(moved, to, new_name);
                if rename_of(how, op)? == Rename::Exchange {
                    self.give_name(replaced, from, name);
                }
            }
            Record::Release { ino } => self.anew(ino)?.gone = true,
            Record::Attributes { ino, perm, owner, .. } => {
                let node = self.nodes.entry(ino).or_default();
                (node.perm, node.owner) = (Some(perm), Some(owner));
            }
            Record::Truncate { ino, size, .. } => self.resize(ino, size)?,
            Record::Contents { ino, size, perm, .. } => {
                self.resize(ino, size)?;
                let node = self.nodes.entry(ino).or_default();
                node.kind.get_or_insert(Kind::File);
                node.perm = Some(perm);
            }
            Record::Fallocate { ino, what, offset, len, size, .. } => {
                if !matches!(fallocate_of(what, op)?, Fallocate::Reserve { .. }) {
                    self.zero(ino, offset, offset.saturating_add(len))?;
                }
                self.nodes.entry(ino).or_default().size = size;
            }
            Record::Data { ino, offset, bytes } => {
                // Whole frames are logged; what is past the end is cut off with the size.
                let file = self.open(ino)?;
                self.put(&file, ino, offset, bytes)?;
                self.nodes.entry(ino).or_default().kind.get_or_insert(Kind::File);
            }
            Record::Xattr { .. } | Record::Flags { .. } => {}
        }
        Ok(())
    }

    /// An inode whose number is used anew: nothing of what it was before is its own.
    fn anew(&mut self, ino: u64) -> Result<&mut Node> {
        let path = self.file_of(ino);
        if path.exists() {
            fs::remove_file(&path).map_err(|why| Error::io(path.display(), why))?;
        }
        let node = self.nodes.entry(ino).or_default();
        *node = Node::default();
        Ok(node)
    }

    fn resize(&mut self, ino: u64, size: u64) -> Result<()> {
        let node = self.nodes.entry(ino).or_default();
        if size < node.size {
            node.cut(size);
            let path = self.file_of(ino);
            if path.exists() {
                self.open(ino)?.set_len(size).map_err(|why| Error::io(path.display(), why))?;
            }
        }
        self.nodes.entry(ino).or_default().size = size;
        Ok(())
    }

    /// Bytes of a file are zeros, and known to be.
    fn zero(&mut self, ino: u64, from: u64, end: u64) -> Result<()> {
        let path = self.file_of(ino);
        let failed = |why| Error::io(path.display(), why);
        let file = self.open(ino)?;
        let there = file.metadata().map_err(failed)?.len();
        for at in (from..end.min(there)).step_by(ZEROS.len()) {
            let len = ZEROS.len().min((end.min(there) - at) as usize);
            file.write_all_at(&ZEROS[..len], at).map_err(failed)?;
        }
        self.nodes.entry(ino).or_default().cover(from, end);
        Ok(())
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

    /// Writes the list of what is missing.
    fn list(&mut self, lines: &[String]) -> Result<()> {
        let path = self.to.join(&self.done.list);
        let mut text = String::from("Files with holes: bytes missing, of how many, path\n");
        text.extend(lines.iter().map(|line| format!("{line}\n")));
        let written = File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|why| Error::io(path.display(), why))
    }
}
