//! One step of a walk: something is done to the tree, and what must have come of it is done to the model.

use super::model::{Id, Inode, Moment, TOP};
use super::*;

/// No file gets longer.
const LONGEST: usize = 600_000;
/// So many files and directories are immutable or may only grow, at most.
const FIXED: usize = 3;

/// When a step is done. In a commit none may have to wait for one.
#[derive(Clone, Copy, PartialEq)]
pub enum When {
    Between,
    InCommit,
}

impl Walk {
    pub fn step(&mut self, fs: &NfHybrid, when: When) {
        self.counts.steps += 1;
        match self.pick(if when == When::Between { 106 } else { 82 }) {
            0..14 => self.make(fs, Kind::File, 0),
            14..18 => self.make(fs, Kind::Dir, 0),
            18..20 => {
                let len = [5, 59, 60, 61, 200, 900][self.pick(6)];
                self.make(fs, Kind::Symlink, len);
            }
            20..26 => self.remove(fs),
            26..36 => self.rename(fs),
            36..40 => self.link(fs),
            40..46 => self.set_attributes(fs),
            46..53 => self.set_flags(fs),
            53..70 => self.write(fs, when),
            70..76 => self.set_size(fs),
            76..82 => self.set_space(fs),
            82..94 => self.fsync(fs, when),
            94..100 => self.set_xattr(fs),
            100..102 => self.set_rule(fs),
            102..104 => self.read(fs),
            _ => self.sync(fs),
        }
    }

    fn now(&self) -> &Moment {
        self.model.now()
    }

    fn inode(&self, id: Id) -> &Inode {
        &self.now().inodes[&id]
    }

    /// A name that there is: its directory, the name, and whose it is.
    fn some_name(&mut self) -> Option<(Id, String, Id)> {
        let count = self.now().names.len();
        let chosen = self.pick(count.max(1));
        self.now().names.iter().nth(chosen).map(|((dir, name), id)| (*dir, name.clone(), *id))
    }

    fn some_of(&mut self, kind: Kind) -> Option<Id> {
        let is_it = |id: &&Id| self.inode(**id).kind == kind;
        let all: Vec<Id> = self.now().inodes.keys().filter(is_it).copied().collect();
        let chosen = self.pick(all.len().max(1));
        all.get(chosen).copied()
    }

    fn some_dir(&mut self) -> Id {
        self.some_of(Kind::Dir).unwrap_or(TOP)
    }

    /// A file or a directory, but not the root.
    fn some_inode(&mut self) -> Option<Id> {
        self.some_name().map(|(_, _, id)| id).filter(|id| self.inode(*id).kind != Kind::Symlink)
    }

    /// A place for a name, free or not.
    fn some_place(&mut self) -> (Id, String) {
        (self.some_dir(), format!("n{}", self.pick(7)))
    }

    /// What a call gave that is done if it `may` be; nothing where it was refused, found no room, or the power went.
    fn given<T>(&mut self, what: &str, may: bool, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) if may => return Some(value),
            Err(Error::NotPermitted) if !may => self.counts.refused += 1,
            Err(Error::NoSpace(_)) => {}
            Err(_) if self.power.is_off() => {}
            Ok(_) => self.wrong(&format!("{what} was done though a flag forbids it")),
            Err(error) => self.wrong(&format!("{what}: {error}")),
        }
        None
    }

    fn make(&mut self, fs: &NfHybrid, kind: Kind, target: usize) {
        let (dir, name) = self.some_place();
        if self.now().named(dir, &name).is_some() {
            return;
        }
        self.tell(format!("make {kind:?} {dir}/{name}"));
        let (perm, target) = (if kind == Kind::Symlink { 0o777 } else { 0o755 }, "t".repeat(target));
        let node = NewNode { kind, perm, rdev: 0, target: target.as_bytes() };
        let parent = self.inode(dir).clone();
        let done = fs.create(&Caller { uid: 5, gid: 6, umask: 0 }, parent.ino, name.as_bytes(), &node);
        let Some(attr) = self.given("create", !parent.has(flag::IMMUTABLE), done) else { return };
        fs.forget(attr.ino, 1);
        let flags = parent.flags & flag::NODUMP;
        let xattrs = BTreeMap::new();
        let inode = Inode { ino: attr.ino, kind, perm, owner: (5, 6), flags, xattrs, target };
        self.model.make(dir, &name, inode);
    }

    fn remove(&mut self, fs: &NfHybrid) {
        let Some((dir, name, id)) = self.some_name() else { return };
        let (parent, inode) = (self.inode(dir).clone(), self.inode(id).clone());
        if !self.now().is_empty(id) {
            return;
        }
        self.tell(format!("remove {dir}/{name} ({id}, inode {})", inode.ino));
        let done = match inode.kind {
            Kind::Dir => fs.rmdir(parent.ino, name.as_bytes()),
            _ => fs.unlink(parent.ino, name.as_bytes()),
        };
        if self.given("remove", !parent.is_fixed() && !inode.is_fixed(), done).is_some() {
            self.model.change(|moment| moment.remove(dir, &name));
        }
    }

    fn rename(&mut self, fs: &NfHybrid) {
        let Some((from, old, id)) = self.some_name() else { return };
        let (to, new) = self.some_place();
        let how = if self.pick(3) == 0 { Rename::Exchange } else { Rename::Replace };
        let over = self.now().named(to, &new);
        if over == Some(id) || self.now().is_below(to, id) || !self.fits(how, id, over, from) {
            return;
        }
        self.tell(format!("rename {how:?} {from}/{old} ({id}) to {to}/{new} ({over:?})"));
        let parents = [from, to].map(|dir| self.inode(dir).ino);
        let may = self.may_rename(how, (from, id), (to, over));
        let done = fs.rename(parents[0], old.as_bytes(), parents[1], new.as_bytes(), how);
        if self.given("rename", may, done).is_none() {
            return;
        }
        self.model.change(|moment| {
            let (old, new) = ((from, old), (to, new));
            if let (Rename::Exchange, Some(over)) = (how, over) {
                moment.names.insert(old, over);
                moment.names.insert(new, id);
            } else {
                moment.names.remove(&old);
                moment.set(new.0, &new.1, id);
            }
        });
    }

    /// Whether an inode can take the place of another, or change places with it.
    fn fits(&self, how: Rename, id: Id, over: Option<Id>, from: Id) -> bool {
        let now = self.now();
        match (how, over) {
            (Rename::Exchange, Some(over)) => !now.is_below(from, over),
            (Rename::Exchange, None) => false,
            (_, Some(over)) => {
                let [is_dir, over_dir] = [id, over].map(|id| self.inode(id).kind == Kind::Dir);
                is_dir == over_dir && now.is_empty(over)
            }
            (_, None) => true,
        }
    }

    /// Whether flags allow it.
    fn may_rename(&self, how: Rename, from: (Id, Id), to: (Id, Option<Id>)) -> bool {
        let is_fixed = |id: Id| self.inode(id).is_fixed();
        let loses = to.1.is_some() || how == Rename::Exchange;
        let into = if loses { is_fixed(to.0) } else { self.inode(to.0).has(flag::IMMUTABLE) };
        !is_fixed(from.0) && !is_fixed(from.1) && !into && !to.1.is_some_and(is_fixed)
    }

    fn link(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_of(Kind::File) else { return };
        let (dir, name) = self.some_place();
        if self.now().named(dir, &name).is_some() {
            return;
        }
        self.tell(format!("link {id} {dir}/{name}"));
        let (inode, parent) = (self.inode(id).clone(), self.inode(dir).clone());
        let done = fs.link(inode.ino, parent.ino, name.as_bytes());
        let may = !inode.is_fixed() && !parent.has(flag::IMMUTABLE);
        let Some(attr) = self.given("link", may, done) else { return };
        fs.forget(attr.ino, 1);
        self.model.change(|moment| moment.set(dir, &name, id));
    }

    fn set_attributes(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_inode() else { return };
        let mut inode = self.inode(id).clone();
        let mut set = SetAttr::default();
        match self.pick(3) {
            0 => inode.perm = *set.perm.insert(0o600 + self.pick(0o100) as u16),
            1 => inode.owner.0 = *set.uid.insert(self.pick(100_000) as u32),
            _ => inode.owner.1 = *set.gid.insert(self.pick(100_000) as u32),
        }
        self.tell(format!("attributes of {id}: {:o}, {:?}", inode.perm, inode.owner));
        let done = fs.setattr(inode.ino, &set);
        if self.given("setattr", !inode.is_fixed(), done).is_some() {
            self.model.change(|moment| *moment.inode_mut(id) = inode);
        }
    }

    /// Sets or clears flags; what is fixed is so for a while.
    fn set_flags(&mut self, fs: &NfHybrid) {
        let Some(mut id) = self.some_inode() else { return };
        let now = self.now();
        let fixed: Vec<Id> = now.inodes.keys().copied().filter(|id| self.inode(*id).is_fixed()).collect();
        if fixed.len() == FIXED {
            id = fixed[self.pick(FIXED)];
        }
        let inode = self.inode(id).clone();
        let flags = match self.pick(3) {
            _ if inode.is_fixed() => inode.flags & flag::NODUMP,
            0 => inode.flags ^ flag::NODUMP,
            1 => inode.flags | flag::IMMUTABLE,
            _ => inode.flags | flag::APPEND,
        };
        self.tell(format!("flags of {id}: {flags:#x}"));
        let done = fs.flags(inode.ino).and_then(|old| fs.set_flags(inode.ino, old & !SETTABLE | flags));
        if self.given("set_flags", true, done).is_some() {
            self.model.change(|moment| moment.inode_mut(id).flags = flags);
        }
    }

    fn set_xattr(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_inode() else { return };
        let mut inode = self.inode(id).clone();
        let may = !inode.is_fixed();
        let name = format!("user.k{}", self.pick(4)).into_bytes();
        let done = if inode.xattrs.contains_key(&name) && self.pick(3) == 0 {
            self.tell(format!("no attribute {} of {id}", name.escape_ascii()));
            inode.xattrs.remove(&name);
            fs.removexattr(inode.ino, &name)
        } else {
            let value = noise(self.counts.steps, [0, 10, 60, 300, 700][self.pick(5)]);
            self.tell(format!("attribute {} of {id}: {} bytes", name.escape_ascii(), value.len()));
            inode.xattrs.insert(name.clone(), value.clone());
            fs.setxattr(inode.ino, &name, &value, SetXattr::Either, false)
        };
        if self.given("an extended attribute", may, done).is_some() {
            self.model.change(|moment| *moment.inode_mut(id) = inode);
        }
    }

    fn write(&mut self, fs: &NfHybrid, when: When) {
        let Some(id) = self.some_of(Kind::File) else { return };
        let old = self.model.contents[&id].now().clone();
        let at = match self.pick(4) {
            0 => 0,
            1 => old.len(),
            2 => self.pick(60) * 4096,
            _ => self.pick(100_000),
        };
        let lengths = [1, 100, 1024, 4096, 8192, 20_000, 120_000];
        let len = lengths[self.pick(if when == When::Between { 7 } else { 5 })];
        if at + len > LONGEST {
            return;
        }
        self.tell(format!("write {id}: {len} bytes at {at}"));
        let new = noise(self.seed * 100_000 + self.counts.steps, len);
        let inode = self.inode(id);
        let may = !inode.has(flag::IMMUTABLE) && (!inode.has(flag::APPEND) || at >= old.len());
        let done = write(fs, inode.ino, at as u64, &new);
        let with = |part: &[u8]| {
            let mut bytes = old.clone();
            bytes.resize(bytes.len().max(at + part.len()), 0);
            bytes[at..at + part.len()].copy_from_slice(part);
            bytes
        };
        if let Some(written) = self.given("write", may, done) {
            self.model.contents_mut(id).push(with(&new[..written]));
        } else if self.power.is_off() && may {
            // Parts of it may be there.
            let ends = (4096 - at % 4096..len).step_by(4096).chain([len]);
            ends.for_each(|end| self.model.contents_mut(id).push(with(&new[..end])));
        }
    }

    fn set_size(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_of(Kind::File) else { return };
        let mut bytes = self.model.contents[&id].now().clone();
        let size = match self.pick(4) {
            0 => 0,
            1 => self.pick(bytes.len() + 20_000),
            _ => self.pick(bytes.len() + 1),
        };
        self.tell(format!("size of {id}: {size}"));
        bytes.resize(size, 0);
        let inode = self.inode(id);
        let may = !inode.is_fixed();
        let done = fs.setattr(inode.ino, &SetAttr { size: Some(size as u64), ..SetAttr::default() });
        if self.given("a size", may, done).is_some() || self.power.is_off() && may {
            self.model.contents_mut(id).push(bytes);
        }
    }

    fn set_space(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_of(Kind::File) else { return };
        let mut bytes = self.model.contents[&id].now().clone();
        let (at, len) = (self.pick(bytes.len() + 1), 1 + self.pick(40_000));
        let what = match self.pick(4) {
            0 => Fallocate::Reserve { keep_size: false },
            1 => Fallocate::Reserve { keep_size: true },
            2 => Fallocate::Zero { keep_size: false },
            _ => Fallocate::Punch,
        };
        if at + len > LONGEST {
            return;
        }
        self.tell(format!("{what:?} {id}: {len} bytes at {at}"));
        if matches!(what, Fallocate::Reserve { keep_size: false } | Fallocate::Zero { keep_size: false }) {
            bytes.resize(bytes.len().max(at + len), 0);
        }
        let reserves = matches!(what, Fallocate::Reserve { .. });
        if !reserves {
            let end = bytes.len().min(at + len);
            bytes[at..end].fill(0);
        }
        let inode = self.inode(id).clone();
        let may = !inode.has(flag::IMMUTABLE) && (!inode.has(flag::APPEND) || reserves);
        let done = fs.fallocate(inode.ino, at as u64, len as u64, what);
        if self.given("fallocate", may, done).is_some() || self.power.is_off() && may {
            self.model.contents_mut(id).push(bytes);
        }
    }

    fn set_rule(&mut self, fs: &NfHybrid) {
        let rule = ["bypass", "inherit", "default"][self.pick(3)];
        let dir = self.some_dir();
        if !self.has_rules {
            return;
        }
        self.tell(format!("rule of {dir}: {rule}"));
        let inode = self.inode(dir);
        let (may, done) = (!inode.is_fixed(), fs.map(inode.ino, rule));
        self.given("a rule", may, done);
    }

    fn read(&mut self, fs: &NfHybrid) {
        let Some(id) = self.some_of(Kind::File) else { return };
        let done = fs.read(self.inode(id).ino, 0, LONGEST).and_then(|read| read.get());
        if let Some(found) = self.given("read", true, done)
            && found.concat() != *self.model.contents[&id].now()
        {
            self.wrong(&format!("{id} reads as something else"));
        }
        fs.promote();
    }

    pub fn fsync(&mut self, fs: &NfHybrid, when: When) {
        let file = self.some_of(Kind::File);
        let id = file.filter(|_| self.pick(6) > 0).unwrap_or_else(|| self.some_dir());
        let data_only = self.pick(2) == 0;
        if when != When::Between && (self.has_rules || !has_room_in_log(fs)) {
            return;
        }
        self.tell(format!("fsync {id}"));
        let done = fs.fsync(self.inode(id).ino, data_only).and_then(|done| done.get());
        if self.given("fsync", true, done).is_some() {
            self.model.promise_file(id);
            self.counts.synced_in_commit += u32::from(when != When::Between);
        }
    }

    fn sync(&mut self, fs: &NfHybrid) {
        self.tell("sync".into());
        if self.given("sync", true, fs.sync()).is_some() {
            self.model.promise_all();
        }
    }
}

/// Whether an fsync finds room in the log: else it waits for the disk.
fn has_room_in_log(fs: &NfHybrid) -> bool {
    let core = fs.shared.core.lock();
    core.ssd.as_ref().is_some_and(|ssd| ssd.used() < ssd.capacity() / 4)
}
