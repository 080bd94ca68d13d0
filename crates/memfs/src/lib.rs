//! memfs: a file system that lives in memory and ends with the mount.
//!
//! It is the ceiling every measurement of a mount is compared with: all that a front end costs, and nearly
//! nothing below. It is also the shortest complete example of a [`FileSystem`]: hard links, special files,
//! all rename flags, extended attributes, access control lists, holes, reservations, unlinked files in use.
//!
//! Inodes lie in one vector, an inode's number is its place plus one, and places are used again under a new
//! generation. Directories are in `dir`, contents in `data`. One lock guards it all: an operation is
//! shorter than the contention it could save. Freed memory stays with the process to be used again.
//!
//! Invariants: an inode with names or references has a live node; `nlink` counts its names (a directory's: two,
//! plus one for each subdirectory); a directory that was removed is empty and takes no names.

mod check;
mod data;
mod dir;
mod nodes;
#[cfg(test)]
mod tests;

use self::data::PAGE;
use self::dir::{Dir, Target};
use self::nodes::{Body, Node, Nodes, now};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::adapter::{Mode, Objects};
use bimetal_vfs::{
    Attr, Caller, Deferred, DirEntry, Fallocate, FileSystem, FsStat, Kind, NAME_MAX, NewNode, Rename, Seek,
    SetAttr, SetTime, SetXattr, VisitAttrs,
};
use bytes::Bytes;
use parking_lot::Mutex;

/// The largest file: 16 TiB, as on ext4 with 4 KiB blocks.
const SIZE_MAX: u64 = 1 << 44;
const LINKS_MAX: u32 = 65_000;

/// A place in the inode vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id(u32);

const ROOT: Id = Id(0);

impl From<Id> for Ino {
    fn from(id: Id) -> Ino {
        Ino(u64::from(id.0) + 1)
    }
}

/// The file system. See the module's page.
pub struct MemFs {
    state: Mutex<State>,
    pages_max: u64,
}

struct State {
    nodes: Nodes,
    pages_used: u64,
}

impl MemFs {
    /// An empty file system that holds up to `capacity_bytes` of file contents. Its root belongs to `owner`
    /// and is open to all to read (mode 755).
    pub fn new(capacity_bytes: u64, owner: &Caller) -> Self {
        let mode = Mode { kind: Kind::Dir, perm: 0o755, uid: owner.uid, gid: owner.gid };
        let root = Node::new(ROOT, mode, Body::Dir(Box::new(Dir::new())));
        let state = State { nodes: Nodes::new(root), pages_used: 0 };
        MemFs { state: Mutex::new(state), pages_max: (capacity_bytes / PAGE).max(1) }
    }

    fn with<T>(&self, ino: Ino, read: impl FnOnce(&Node, &State) -> Result<T>) -> Result<T> {
        let state = self.state.lock();
        read(state.nodes.get(state.nodes.id(ino)?), &state)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] | b"." | b".." => Err(Error::BadArgument),
        _ if name.len() > NAME_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

impl State {
    fn dir(&self, id: Id) -> Result<&Dir> {
        match &self.nodes.get(id).body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::NotDir),
        }
    }

    fn dir_mut(&mut self, id: Id) -> Result<&mut Dir> {
        match &mut self.nodes.get_mut(id).body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::NotDir),
        }
    }

    fn find(&self, parent: Id, name: &[u8]) -> Result<Target> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        self.dir(parent)?.get(name).ok_or(Error::NotFound)
    }

    /// A directory that takes new names.
    fn living_dir(&self, ino: Ino) -> Result<Id> {
        let id = self.nodes.id(ino)?;
        self.dir(id)?;
        if self.nodes.get(id).nlink == 0 { Err(Error::NotFound) } else { Ok(id) }
    }

    fn changed(&mut self, dir: Id) {
        self.nodes.get_mut(dir).changed();
    }

    /// Takes one name from an inode; the last one frees it, unless it is in use.
    fn drop_name(&mut self, target: Target) {
        let node = self.nodes.get_mut(target.id);
        node.nlink = if target.kind == Kind::Dir { 0 } else { node.nlink - 1 };
        node.ctime = now();
        self.free_if_unused(target.id);
    }

    fn free_if_unused(&mut self, id: Id) {
        let node = self.nodes.get(id);
        if node.nlink == 0 && node.refs == 0 {
            self.pages_used -= node.pages();
            self.nodes.free(id);
        }
    }

    fn is_below(&self, mut dir: Id, ancestor: Id) -> bool {
        while dir != ancestor && dir != ROOT {
            dir = self.nodes.get(dir).parent;
        }
        dir == ancestor
    }

    /// Checks that `from` may take the place of what stands at `to`.
    fn check_replace(&self, from: Target, to: Target) -> Result<()> {
        match (from.kind == Kind::Dir, to.kind == Kind::Dir) {
            (true, false) => Err(Error::NotDir),
            (false, true) => Err(Error::IsDir),
            (true, true) if self.dir(to.id)?.len() > 0 => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Books that a directory now hangs below `new` and no longer below `old`.
    fn move_parent(&mut self, moved: Target, old: Id, new: Id) {
        if moved.kind == Kind::Dir && old != new {
            self.nodes.get_mut(moved.id).parent = new;
            self.nodes.get_mut(old).nlink -= 1;
            self.nodes.get_mut(new).nlink += 1;
        }
        self.nodes.get_mut(moved.id).ctime = now();
    }

    fn add(&mut self, node: Node, parent: Id, name: &[u8]) -> Result<Id> {
        let kind = node.mode.kind;
        let id = self.nodes.add(node)?;
        self.dir_mut(parent)?.insert(name, Target { id, kind });
        if kind == Kind::Dir {
            self.nodes.get_mut(parent).nlink += 1;
        }
        self.changed(parent);
        Ok(id)
    }

    fn exchange(&mut self, from: (Id, &[u8], Target), to: (Id, &[u8], Target)) -> Result<()> {
        self.dir_mut(from.0)?.replace(from.1, to.2);
        self.dir_mut(to.0)?.replace(to.1, from.2);
        self.move_parent(from.2, from.0, to.0);
        self.move_parent(to.2, to.0, from.0);
        Ok(())
    }

    fn replace(&mut self, from: (Id, &[u8], Target), to: (Id, &[u8], Option<Target>)) -> Result<()> {
        match to.2 {
            Some(old) => {
                self.dir_mut(to.0)?.replace(to.1, from.2);
                if old.kind == Kind::Dir {
                    self.nodes.get_mut(to.0).nlink -= 1;
                }
                self.drop_name(old);
            }
            None => self.dir_mut(to.0)?.insert(to.1, from.2),
        }
        self.dir_mut(from.0)?.remove(from.1);
        self.move_parent(from.2, from.0, to.0);
        Ok(())
    }

    /// The node of a new object, shaped by its parent.
    fn shaped(&mut self, caller: &Caller, parent: Id, new: &NewNode) -> Result<Node> {
        let (mode, lists) = self.shape(caller, parent.0.into(), new)?;
        let body = match new.kind {
            Kind::Dir => Body::Dir(Box::new(Dir::new())),
            Kind::File => Body::File(Default::default()),
            Kind::Symlink => Body::Link(new.target.into()),
            _ => Body::Device(new.rdev),
        };
        let mut node = Node::new(parent, mode, body);
        lists.iter().for_each(|(name, list)| node.set_xattr(name, list));
        Ok(node)
    }

    fn object(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(Id(id as u32))
    }

    /// Changes the contents of a file, and counts its pages.
    fn reshape(&mut self, id: u64, change: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
        let node = self.object(id);
        let before = node.pages();
        let changed = change(node);
        let after = node.pages();
        self.pages_used = self.pages_used + after - before;
        changed
    }
}

impl Objects for State {
    fn mode(&mut self, id: u64) -> Result<Mode> {
        Ok(self.object(id).mode)
    }

    fn set_perm(&mut self, id: u64, perm: u16) -> Result<()> {
        self.object(id).mode.perm = perm;
        Ok(())
    }

    fn attribute(&mut self, id: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.object(id).xattr(name).map(<[u8]>::to_vec))
    }

    fn set_attribute(&mut self, id: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let node = self.object(id);
        match value {
            Some(value) => node.set_xattr(name, value),
            None => drop(node.remove_xattr(name)),
        }
        Ok(())
    }

    fn size(&mut self, id: u64) -> Result<u64> {
        Ok(self.object(id).size)
    }

    fn resize(&mut self, id: u64, size: u64) -> Result<()> {
        self.reshape(id, |node| node.resize(size))
    }

    fn punch(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        self.reshape(id, |node| node.data_mut().map(|data| data.punch(from..to)))
    }

    fn reserve(&mut self, id: u64, from: u64, to: u64) -> Result<()> {
        self.reshape(id, |node| node.data_mut().map(|data| data.reserve(from..to)))
    }
}

impl FileSystem for MemFs {
    fn root(&self) -> Ino {
        ROOT.into()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.state.lock();
        let id = state.nodes.id(parent)?;
        let found = match name {
            b"." => id,
            b".." if state.nodes.get(id).nlink == 0 => return Err(Error::NotFound),
            b".." => state.nodes.get(id).parent,
            _ => state.find(id, name)?.id,
        };
        let node = state.nodes.get_mut(found);
        node.refs += 1;
        Ok(node.attr(found))
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        if let Ok(id) = state.nodes.id(ino) {
            let node = state.nodes.get_mut(id);
            node.refs = node.refs.saturating_sub(count);
            state.free_if_unused(id);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let state = self.state.lock();
        let id = state.nodes.id(ino)?;
        Ok(state.nodes.get(id).attr(id))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let id = state.nodes.id(ino)?;
        let object = id.0.into();
        if let Some(size) = set.size {
            state.resize(object, size)?;
            state.changed(id);
        }
        if set.kill_suid {
            state.kill_set_id(object)?;
        }
        if let Some(perm) = set.perm {
            state.set_perm(object, perm & 0o7777)?;
            state.follow_perm(object, perm)?;
        }
        let node = state.nodes.get_mut(id);
        node.mode.uid = set.uid.unwrap_or(node.mode.uid);
        node.mode.gid = set.gid.unwrap_or(node.mode.gid);
        let stamp = |time: SetTime| match time {
            SetTime::Now => now(),
            SetTime::To(stamp) => stamp,
        };
        node.atime = set.atime.map_or(node.atime, stamp);
        node.mtime = set.mtime.map_or(node.mtime, stamp);
        node.ctime = set.ctime.unwrap_or_else(now);
        Ok(node.attr(id))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.with(ino, |node, _| match &node.body {
            Body::Link(target) => Ok(target.to_vec()),
            _ => Err(Error::BadArgument),
        })
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], new: &NewNode) -> Result<Attr> {
        check_name(name)?;
        let mut state = self.state.lock();
        let parent = state.living_dir(parent)?;
        if state.dir(parent)?.get(name).is_some() {
            return Err(Error::Exists);
        }
        if new.kind == Kind::Dir && state.nodes.get(parent).nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let mut node = state.shaped(caller, parent, new)?;
        node.refs = 1;
        let id = state.add(node, parent, name)?;
        Ok(state.nodes.get(id).attr(id))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let parent = state.nodes.id(parent)?;
        let target = state.find(parent, name)?;
        if target.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        state.dir_mut(parent)?.remove(name);
        state.drop_name(target);
        state.changed(parent);
        Ok(())
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let parent = state.nodes.id(parent)?;
        let target = state.find(parent, name)?;
        if state.dir(target.id)?.len() > 0 {
            return Err(Error::NotEmpty);
        }
        state.dir_mut(parent)?.remove(name);
        state.nodes.get_mut(parent).nlink -= 1;
        state.drop_name(target);
        state.changed(parent);
        Ok(())
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let mut state = self.state.lock();
        let from = state.nodes.id(parent)?;
        let to = state.living_dir(new_parent)?;
        let moved = state.find(from, name)?;
        let old = state.dir(to)?.get(new_name);
        if moved.kind == Kind::Dir && state.is_below(to, moved.id) {
            return Err(Error::BadArgument);
        }
        match (how, old) {
            (Rename::NoReplace, Some(_)) => return Err(Error::Exists),
            (Rename::Exchange, None) => return Err(Error::NotFound),
            (Rename::Exchange, Some(old)) => {
                if old.kind == Kind::Dir && state.is_below(from, old.id) {
                    return Err(Error::BadArgument);
                }
                state.exchange((from, name, moved), (to, new_name, old))?;
            }
            (_, Some(old)) if old.id == moved.id => return Ok(()),
            (_, old) => {
                if let Some(old) = old {
                    state.check_replace(moved, old)?;
                }
                state.replace((from, name, moved), (to, new_name, old))?;
            }
        }
        if how == Rename::Whiteout {
            let (owner, mark) = state.whiteout(from.0.into())?;
            let mode = Mode { kind: mark.kind, perm: mark.perm, uid: owner.uid, gid: owner.gid };
            state.add(Node::new(from, mode, Body::Device(mark.rdev)), from, name)?;
        }
        state.changed(from);
        state.changed(to);
        Ok(())
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        let parent = state.living_dir(parent)?;
        if state.dir(parent)?.get(name).is_some() {
            return Err(Error::Exists);
        }
        let node = state.nodes.get_mut(id);
        match node.nlink {
            _ if node.mode.kind == Kind::Dir => return Err(Error::NotPermitted),
            0 => return Err(Error::NotFound),
            LINKS_MAX.. => return Err(Error::TooManyLinks),
            _ => {}
        }
        node.nlink += 1;
        node.refs += 1;
        node.ctime = now();
        let kind = node.mode.kind;
        state.dir_mut(parent)?.insert(name, Target { id, kind });
        state.changed(parent);
        Ok(state.nodes.get(id).attr(id))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Deferred<Vec<Bytes>>> {
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        let node = state.nodes.get_mut(id);
        node.accessed();
        let end = offset.saturating_add(len as u64).min(node.size);
        let mut parts = Vec::new();
        if offset < end {
            node.data()?.read(offset..end, &mut parts);
        }
        Ok(Deferred::Now(parts))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Deferred<usize>> {
        let end =
            offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Error::TooLarge)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let id = state.nodes.id(ino)?;
        let node = state.nodes.get_mut(id);
        let missing = node.data()?.pages_missing(offset..end);
        if state.pages_used + missing > self.pages_max {
            return Err(Error::NoSpace("the memory given to this file system is used up"));
        }
        state.pages_used += missing;
        node.data_mut()?.write(offset, data);
        node.size = node.size.max(end);
        node.changed();
        if kill_suid {
            node.mode.kill_set_id();
        }
        Ok(Deferred::Now(data.len()))
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Deferred<()>> {
        self.with(ino, |_, _| Ok(Deferred::Now(())))
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        state.nodes.get_mut(id).accessed();
        let dir = state.dir(id)?;
        if !visit_dots(id, state.nodes.get(id).parent, from, visit) {
            return Ok(());
        }
        for (name, next, target) in dir.after(from.max(2)) {
            if !visit(DirEntry { ino: target.id.into(), kind: target.kind, name, next }) {
                break;
            }
        }
        Ok(())
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        state.nodes.get_mut(id).accessed();
        let dir = state.dir(id)?;
        if !visit_dots(id, state.nodes.get(id).parent, from, &mut |entry| visit(entry, None)) {
            return Ok(());
        }
        let mut taken = Vec::new();
        for (name, next, target) in dir.after(from.max(2)) {
            let attr = state.nodes.get(target.id).attr(target.id);
            if !visit(DirEntry { ino: attr.ino, kind: target.kind, name, next }, Some(&attr)) {
                break;
            }
            taken.push(target.id);
        }
        for id in taken {
            state.nodes.get_mut(id).refs += 1;
        }
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.with(ino, |node, _| node.xattr(name).map(<[u8]>::to_vec).ok_or(Error::NoAttribute))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        let object = id.0.into();
        state.check_xattr(object, name, how)?;
        state.set_xattr(object, name, value, kill_sgid)?;
        state.nodes.get_mut(id).ctime = now();
        Ok(())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with(ino, |node, _| Ok(node.xattr_names().map(<[u8]>::to_vec).collect()))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let id = state.nodes.id(ino)?;
        let node = state.nodes.get_mut(id);
        if !node.remove_xattr(name) {
            return Err(Error::NoAttribute);
        }
        node.ctime = now();
        Ok(())
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX && len > 0).ok_or(Error::TooLarge)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let id = state.nodes.id(ino)?;
        let node = state.nodes.get(id);
        let before = node.data()?.pages();
        if what != Fallocate::Punch {
            let most = (len / PAGE).saturating_sub(before);
            let free = self.pages_max.saturating_sub(state.pages_used);
            if most > free || node.data()?.pages_missing(offset..end) > free {
                return Err(Error::NoSpace("the memory given to this file system is used up"));
            }
        }
        Objects::fallocate(state, id.0.into(), offset, end, what)?;
        state.changed(id);
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.with(ino, |node, _| node.data()?.seek(offset, node.size, what).ok_or(Error::NoOffset))
    }

    fn statfs(&self) -> Result<FsStat> {
        let state = self.state.lock();
        let free = self.pages_max.saturating_sub(state.pages_used);
        let inodes = u64::from(u32::MAX);
        Ok(FsStat {
            block_bytes: PAGE as u32,
            blocks: self.pages_max,
            free,
            available: free,
            inodes,
            inodes_free: inodes - state.nodes.live(),
        })
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        if name != "bimetal.status" || ino != self.root() {
            return Err(Error::NoAttribute);
        }
        let state = self.state.lock();
        let status = serde_json::json!({
            "type": "memfs",
            "capacity_bytes": self.pages_max * PAGE,
            "used_bytes": state.pages_used * PAGE,
            "inodes": state.nodes.live(),
        });
        Ok(status.to_string().into_bytes())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

/// Shows `.` (cookie 1) and `..` (cookie 2) as far as they come after `from`; `false` if the visitor had enough.
fn visit_dots(dir: Id, parent: Id, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> bool {
    let dots = [(dir, &b"."[..]), (parent, b"..")];
    let mut ahead = dots.iter().zip(1..).filter(|(_, next)| *next > from);
    ahead.all(|((id, name), next)| visit(DirEntry { ino: (*id).into(), kind: Kind::Dir, name, next }))
}
