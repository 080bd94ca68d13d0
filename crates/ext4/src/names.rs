//! Names: looking up, making, linking and removing them.
//!
//! Every call does what can fail first (reading, checking, taking numbers and blocks) and takes it back if
//! a later step fails, so that it happens whole or not at all.

use super::dir_view::DirView;
use super::extents::{Extent, Extents};
use super::inode::{BODY_BYTES, Inode, flag, mode_of};
use super::space::Placement;
use super::space::{Claim, Goal};
use super::superblock::ROOT_INO;
use super::{Ext4, LINK_MAX, buffers::Seal, dir};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::{DirEntry, Kind};
use smallvec::SmallVec;

/// What a new inode inherits from its directory.
const INHERITED: u32 = flag::SYNC | flag::NODUMP | flag::NOATIME | flag::JOURNAL_DATA | flag::DIRSYNC;
/// Of those, what a file can have.
const FOR_FILES: u32 = INHERITED & !flag::DIRSYNC;
/// Of those, what anything else can have.
const FOR_OTHERS: u32 = flag::NODUMP | flag::NOATIME;
/// Names read at once from a directory that does not tell the kinds.
const BATCH: usize = 64;
/// Blocks of a directory that are hinted at: longer ones are read in long reads anyway.
const HINTED: usize = 64;

/// A new inode and its name.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// The directory.
    pub parent: Ino,
    /// The name, which must be free.
    pub name: &'a [u8],
    /// What to make.
    pub kind: Kind,
    /// Permission bits, 0..0o7777.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of device files.
    pub rdev: u32,
    /// Target, of symbolic links.
    pub target: &'a [u8],
    /// The present.
    pub now: Stamp,
    /// Exactly this number, when an operation is repeated; else the best one.
    pub ino: Option<Ino>,
    /// Exactly this generation, when an operation is repeated; else a random one.
    pub generation: Option<u32>,
}

/// What lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// It was its last: the inode is on the orphan list until [`Ext4::release`].
    pub last: bool,
}

impl Ext4 {
    /// The inode a name stands for; `.` and `..` are names too.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NameTooLong`], [`Error::Corrupt`]; as [`Ext4::inode`].
    pub fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        self.make_room();
        self.load_dir(parent)?;
        let Some(entry) = self.view(parent, |view| dir::lookup(view, name))? else { return Ok(None) };
        let ino = self.named(entry.ino, parent)?;
        if ino == parent && name != b"." && name != b".." {
            return Err(bad_entry(parent, ino));
        }
        match entry.kind {
            Some(kind) => Ok(Some((ino, kind))),
            None => {
                let slot = self.load(ino)?;
                Ok(Some((ino, self.inodes.entry(slot).inode.kind())))
            }
        }
    }

    /// Makes an inode and gives it a name. The caller adds inherited access lists.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::TooManyLinks`], [`Error::NotPermitted`] in a
    /// directory that may not change; [`Error::NameTooLong`] for names and targets; as [`Ext4::inode_mut`].
    pub fn create(&mut self, spec: &Create) -> Result<Ino> {
        self.make_room();
        let parent = self.load_changing_dir(spec.parent)?;
        let now = self.note_time(spec.now);
        if spec.kind == Kind::Dir {
            self.check_subdirs(parent)?;
        }
        let slot = self.new_inode(spec)?;
        let ino = self.inodes.entry(slot).inode.ino;
        let named = self.view(spec.parent, |view| dir::insert(view, spec.name, ino.0 as u32, spec.kind));
        if let Err(error) = named {
            self.discard_new(slot)?;
            return Err(error);
        }
        let parent = &mut self.inodes.entry(parent).inode;
        (parent.mtime, parent.ctime) = (now, now);
        if spec.kind == Kind::Dir {
            count_up(parent);
        }
        Ok(ino)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for directories and for inodes that may not change, [`Error::TooManyLinks`],
    /// [`Error::Exists`], [`Error::NoSpace`]; as [`Ext4::inode_mut`].
    pub fn link(&mut self, ino: Ino, parent: Ino, name: &[u8], now: Stamp) -> Result<()> {
        self.make_room();
        let parent_slot = self.load_changing_dir(parent)?;
        let now = self.note_time(now);
        let slot = self.load_dirty(ino)?;
        let entry = self.inodes.entry(slot);
        let kind = entry.inode.kind();
        if kind == Kind::Dir || entry.inode.has(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if entry.inode.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let orphan = entry.orphan && entry.inode.nlink == 0;
        self.view(parent, |view| dir::insert(view, name, ino.0 as u32, kind))?;
        if orphan {
            self.remove_orphan(ino)?;
        }
        let inode = &mut self.inodes.entry(slot).inode;
        inode.nlink += 1;
        inode.ctime = now;
        let parent = &mut self.inodes.entry(parent_slot).inode;
        (parent.mtime, parent.ctime) = (now, now);
        Ok(())
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`], [`Error::NotPermitted`]; as [`Ext4::inode_mut`].
    pub fn unlink(&mut self, parent: Ino, name: &[u8], now: Stamp) -> Result<Removed> {
        self.remove_name(parent, name, now, false)
    }

    /// Removes the name of an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NotEmpty`], [`Error::NotPermitted`]; as
    /// [`Ext4::inode_mut`].
    pub fn rmdir(&mut self, parent: Ino, name: &[u8], now: Stamp) -> Result<Removed> {
        self.remove_name(parent, name, now, true)
    }

    fn remove_name(&mut self, parent: Ino, name: &[u8], now: Stamp, is_dir: bool) -> Result<Removed> {
        self.make_room();
        if name == b"." || name == b".." {
            return Err(if is_dir { Error::BadArgument } else { Error::IsDir });
        }
        let parent_slot = self.load_changing_dir(parent)?;
        let now = self.note_time(now);
        let (victim, place) = self.load_victim(parent, name)?.ok_or(Error::NotFound)?;
        self.check_victim(parent_slot, victim, is_dir)?;
        self.view(parent, |view| dir::remove_at(view, &place))?;
        let parent = &mut self.inodes.entry(parent_slot).inode;
        (parent.mtime, parent.ctime) = (now, now);
        if is_dir {
            count_down(parent);
        }
        self.lose_name(victim, now)
    }

    /// The inode behind a name that is to go, marked as changed, and where the name is.
    pub(super) fn load_victim(&mut self, parent: Ino, name: &[u8]) -> Result<Option<(u32, dir::Place)>> {
        let Some((entry, place)) = self.view(parent, |view| dir::find(view, name))? else { return Ok(None) };
        let ino = self.named(entry.ino, parent)?;
        let slot = self.load_dirty(ino).map_err(|error| dangling(error, parent, ino))?;
        let actual = self.inodes.entry(slot).inode.kind();
        if entry.kind.is_some_and(|kind| kind != actual) || self.inodes.entry(slot).inode.nlink == 0 {
            let at = format!("inode {parent}, entry of inode {ino}");
            return Err(Error::corrupt("a directory", "an entry does not agree with its inode", at));
        }
        Ok(Some((slot, place)))
    }

    /// Whether a name may be taken away from an inode by `rmdir` (`is_dir`) or `unlink`.
    pub(super) fn check_victim(&mut self, parent: u32, victim: u32, is_dir: bool) -> Result<()> {
        if self.inodes.entry(parent).inode.has(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        let inode = &self.inodes.entry(victim).inode;
        if inode.has(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        match (inode.kind() == Kind::Dir, is_dir) {
            (true, false) => return Err(Error::IsDir),
            (false, true) => return Err(Error::NotDir),
            _ => {}
        }
        let ino = inode.ino;
        if is_dir && !self.view(ino, |view| dir::is_empty(view))? {
            return Err(Error::NotEmpty);
        }
        Ok(())
    }

    /// Counts a name less; without names the inode becomes an orphan.
    pub(super) fn lose_name(&mut self, slot: u32, now: Stamp) -> Result<Removed> {
        let inode = &mut self.inodes.entry(slot).inode;
        let (ino, generation) = (inode.ino, inode.generation);
        inode.ctime = now;
        inode.nlink = if inode.kind() == Kind::Dir { 0 } else { inode.nlink - 1 };
        let last = inode.nlink == 0;
        if last {
            self.add_orphan(ino)?;
        }
        Ok(Removed { ino, generation, last })
    }

    /// Notes that an inode will be wanted soon: a read that is made anyway may bring it along.
    pub fn hint_inode(&mut self, ino: Ino) {
        if self.inodes.find(ino).is_none() && self.store.geometry.is_ordinary(ino) {
            self.store.space.hint_inode(&self.store.buffers, ino);
        }
    }

    /// Notes that the entries of a directory whose inode is in memory will be wanted soon.
    pub fn hint_entries(&mut self, ino: Ino) {
        let Some(slot) = self.inodes.find(ino) else { return };
        let inode = &mut self.inodes.entry(slot).inode;
        if inode.kind() != Kind::Dir || !inode.has_flat_tree() {
            return;
        }
        // What is wrong with it will be said when it is used.
        let Ok(tree) = self.store.tree(inode) else { return };
        let blocks = tree.iter().flat_map(|extent| extent.at..extent.at + u64::from(extent.len));
        let blocks: SmallVec<[u64; HINTED]> = blocks.take(HINTED).collect();
        blocks.iter().for_each(|block| self.store.buffers.hint(*block));
    }

    /// Shows the entries after `from` (0 at the start), `.` and `..` first, until `visit` says `false`.
    ///
    /// # Errors
    /// As [`Ext4::lookup`].
    pub fn readdir(&mut self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.make_room();
        self.load_dir(ino)?;
        if from == 0 {
            self.hint_entries(ino);
        }
        if !self.store.dirs.filetype {
            return self.readdir_by_inode(ino, from, visit);
        }
        let geometry = std::sync::Arc::clone(&self.store.geometry);
        let mut wrong = None;
        let mut show = |entry: dir::Visited| {
            let at = Ino(u64::from(entry.ino));
            match entry.kind {
                Some(kind) if geometry.is_ordinary(at) => {
                    visit(DirEntry { ino: at, kind, name: entry.name, next: entry.next })
                }
                _ => {
                    wrong = Some(at);
                    false
                }
            }
        };
        self.view(ino, |view| dir::visit(view, from, &mut show))?;
        match wrong {
            None => Ok(()),
            Some(at) => Err(bad_entry(ino, at)),
        }
    }

    /// As [`Ext4::readdir`], for directories that do not tell what their entries are.
    fn readdir_by_inode(
        &mut self,
        ino: Ino,
        from: u64,
        visit: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let mut from = from;
        loop {
            let mut batch: Vec<(u32, u64, Vec<u8>)> = Vec::new();
            let mut gather = |entry: dir::Visited| {
                batch.push((entry.ino, entry.next, entry.name.to_vec()));
                batch.len() < BATCH
            };
            self.view(ino, |view| dir::visit(view, from, &mut gather))?;
            let more = batch.len() == BATCH;
            for (number, next, name) in batch {
                let at = self.named(number, ino)?;
                let slot = self.load(at).map_err(|error| dangling(error, ino, at))?;
                let kind = self.inodes.entry(slot).inode.kind();
                if !visit(DirEntry { ino: at, kind, name: &name, next }) {
                    return Ok(());
                }
                from = next;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for anything else; as [`Ext4::inode`].
    pub fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>> {
        self.make_room();
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        if inode.kind() != Kind::Symlink {
            return Err(Error::BadArgument);
        }
        let len = inode.size as usize;
        if inode.is_fast_link() {
            return Ok(inode.body[..len].to_vec());
        }
        let bad = |why: &str| Error::corrupt("a symbolic link", why, format!("inode {ino}"));
        let super::extents::Spot::Extent(extent) = self.store.tree(inode)?.spot(0) else {
            return Err(bad("it has no block"));
        };
        let buffer = self.store.buffers.load(extent.at)?;
        let target = self.store.buffers.bytes(buffer).get(..len).ok_or_else(|| bad("it is too long"))?;
        Ok(target.to_vec())
    }

    /// Runs a directory operation on a cached directory.
    pub(super) fn view<T>(&mut self, ino: Ino, work: impl FnOnce(&mut DirView) -> Result<T>) -> Result<T> {
        let slot = self.load(ino)?;
        let inode = &mut self.inodes.entry(slot).inode;
        work(&mut DirView::new(&mut self.store, inode))
    }

    /// The slot of a directory.
    pub(super) fn load_dir(&mut self, ino: Ino) -> Result<u32> {
        let slot = self.load(ino)?;
        match self.inodes.entry(slot).inode.kind() {
            Kind::Dir => Ok(slot),
            _ => Err(Error::NotDir),
        }
    }

    /// The slot of a directory whose entries are about to change, marked as changed.
    pub(super) fn load_changing_dir(&mut self, ino: Ino) -> Result<u32> {
        self.store.check_writable()?;
        let slot = self.load_dir(ino)?;
        let inode = &self.inodes.entry(slot).inode;
        if inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        if inode.has(flag::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        self.mark(slot)?;
        Ok(slot)
    }

    /// Checks a number that a directory gave.
    pub(super) fn named(&self, ino: u32, parent: Ino) -> Result<Ino> {
        let ino = Ino(u64::from(ino));
        if self.store.geometry.is_ordinary(ino) { Ok(ino) } else { Err(bad_entry(parent, ino)) }
    }

    /// Whether a directory can have one more subdirectory.
    pub(super) fn check_subdirs(&mut self, parent: u32) -> Result<()> {
        let many = self.store.geometry.features.dir_nlink();
        let inode = &self.inodes.entry(parent).inode;
        if inode.nlink >= LINK_MAX && !(many && inode.has(flag::INDEX)) {
            return Err(Error::TooManyLinks);
        }
        Ok(())
    }

    /// Makes an inode with its first block, if it needs one, but no name.
    pub(super) fn new_inode(&mut self, spec: &Create) -> Result<u32> {
        if spec.kind == Kind::Symlink {
            match spec.target.len() {
                0 => return Err(Error::NotFound),
                len if len >= self.store.buffers.block_bytes() => return Err(Error::NameTooLong),
                _ => {}
            }
        }
        let parent = self.load(spec.parent)?;
        let parent = &self.inodes.entry(parent).inode;
        let spread = spec.parent == ROOT_INO || parent.has(flag::TOPDIR);
        let inherited = parent.flags;
        let is_dir = spec.kind == Kind::Dir;
        let placement = Placement { parent: spec.parent, is_dir, spread, exactly: spec.ino };
        let ino = self.store.take_inode(&placement)?;
        let generation = spec.generation.unwrap_or_else(|| self.store.next_generation());
        let now = self.representable(spec.now);
        let mode = mode_of(spec.kind, spec.perm);
        let mut inode = Inode::new(ino, generation, mode, now, &self.store.geometry);
        (inode.uid, inode.gid) = (spec.uid, spec.gid);
        inode.flags = match spec.kind {
            Kind::Dir => inherited & INHERITED,
            Kind::File => inherited & FOR_FILES,
            _ => inherited & FOR_OTHERS,
        };
        if let Err(error) = self.fill(&mut inode, spec) {
            self.store.give_inode(ino, is_dir)?;
            return Err(error);
        }
        let slot = self.inodes.insert(inode);
        self.mark(slot)?;
        self.store.clear_slot(ino)?;
        Ok(slot)
    }

    /// Gives a new inode what it holds from the start.
    fn fill(&mut self, inode: &mut Inode, spec: &Create) -> Result<()> {
        match spec.kind {
            Kind::File => self.start_extents(inode),
            Kind::Dir => {
                self.start_extents(inode);
                inode.nlink = 2;
                let at = self.first_block(inode, Seal::Dir(inode.seed))?;
                let params = self.store.dirs;
                let block = self.store.buffers.edit(at, Seal::Dir(inode.seed));
                dir::init(block, inode.ino.0 as u32, spec.parent.0 as u32, &params);
                inode.size = u64::from(self.store.geometry.block_bytes);
            }
            Kind::Symlink => {
                inode.size = spec.target.len() as u64;
                if spec.target.len() < BODY_BYTES {
                    inode.body[..spec.target.len()].copy_from_slice(spec.target);
                    return Ok(());
                }
                self.start_extents(inode);
                let at = self.first_block(inode, Seal::Plain)?;
                self.store.buffers.edit(at, Seal::Plain)[..spec.target.len()].copy_from_slice(spec.target);
            }
            Kind::CharDevice | Kind::BlockDevice => inode.set_rdev(spec.rdev),
            Kind::Fifo | Kind::Socket => {}
        }
        Ok(())
    }

    fn start_extents(&self, inode: &mut Inode) {
        inode.flags |= flag::EXTENTS;
        inode.tree = Some(Extents::new(super::extent_disk::node_entries(self.store.geometry.block_bytes)));
        inode.tree_changed = true;
    }

    /// Takes block 0 of a new inode; the answer is its buffer.
    fn first_block(&mut self, inode: &mut Inode, seal: Seal) -> Result<u32> {
        self.store.space.check_room(1, Claim::Ordinary)?;
        let (group, _) = self.store.geometry.group_of_inode(inode.ino);
        let near = self.store.geometry.group_start(group);
        let (at, _) = self.store.take_blocks(Goal { at: near, exact: false }, 1)?;
        if let Some(tree) = &mut inode.tree {
            tree.insert(Extent::new(0, at, 1, false));
        }
        inode.blocks = u64::from(self.store.geometry.block_bytes / 512);
        Ok(self.store.buffers.blank(at, seal))
    }

    /// Takes back an inode that got no name.
    pub(super) fn discard_new(&mut self, slot: u32) -> Result<()> {
        let inode = &mut self.inodes.entry(slot).inode;
        let (ino, is_dir) = (inode.ino, inode.kind() == Kind::Dir);
        if let Some(tree) = inode.tree.take() {
            for extent in tree.iter() {
                self.store.give_blocks(extent.at, u32::from(extent.len), true)?;
            }
        }
        self.inodes.remove(ino);
        self.store.give_inode(ino, is_dir)
    }
}

/// One more subdirectory; past the limit a directory counts one link for "many".
pub(super) fn count_up(dir: &mut Inode) {
    dir.nlink = if dir.nlink == 1 || dir.nlink >= LINK_MAX { 1 } else { dir.nlink + 1 };
}

/// One subdirectory less.
pub(super) fn count_down(dir: &mut Inode) {
    if dir.nlink > 2 {
        dir.nlink -= 1;
    }
}

fn bad_entry(parent: Ino, ino: Ino) -> Error {
    Error::corrupt("a directory", format!("an entry names inode {ino}"), format!("inode {parent}"))
}

/// An inode that a name leads to must exist.
fn dangling(error: Error, parent: Ino, ino: Ino) -> Error {
    match error {
        Error::Stale => bad_entry(parent, ino),
        other => other,
    }
}
