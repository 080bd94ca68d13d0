//! Operations on names. Each runs on the disk half's structures in memory and leaves one record.

use super::Shared;
use super::core::Core;
use super::credits::Credits;
use super::node::Node;
use super::record::{Record, kind_code, rename_code, when};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::acl::Acl;
use bimetal_ext4::{Create, Removed};
use bimetal_vfs::{Attr, Caller, DirEntry, Kind, NAME_MAX, NewNode, Rename, VisitAttrs};

/// Names that are looked at together.
const READDIR_BATCH: usize = 64;

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Shared {
    /// See [`bimetal_vfs::FileSystem::lookup`].
    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let (mut core, attr) = self.look(|core| {
            core.state.check_readable()?;
            let ino = match name {
                b"." => parent,
                _ => core.ext4.lookup(parent, checked(name)?)?.ok_or(Error::NotFound)?.0,
            };
            core.attr(ino)
        })?;
        let ino = attr.ino;
        match name {
            b"." | b".." => core.node_of(ino).refer(),
            _ => core.reference(ino, parent),
        }
        Ok(attr)
    }

    /// See [`bimetal_vfs::FileSystem::forget`].
    pub(super) fn forget(&self, ino: Ino, count: u64) {
        let mut core = self.core.lock();
        let Some(node) = core.nodes.get_mut(ino) else { return };
        if !node.forget(count) {
            return;
        }
        if node.is_orphan() {
            if core.state.is_running()
                && let Err(error) = self.release(&mut core, ino)
            {
                tracing::error!(ino = ino.0, %error, "an unnamed inode could not be freed; recovery will");
            }
        } else {
            core.nodes.drop_if_idle(ino);
        }
        self.wake_if_due(&mut core);
    }

    /// See [`bimetal_vfs::FileSystem::readdir`].
    pub(super) fn readdir(
        &self,
        dir: Ino,
        mut from: u64,
        visit: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let mut noted = false;
        loop {
            let (mut core, batch) = self.look(|core| {
                let batch = core.list(dir, from)?;
                if !noted {
                    self.note_access(core, dir)?;
                }
                Ok(batch)
            })?;
            noted = true;
            self.wake_if_due(&mut core);
            drop(core);
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.next;
            for listed in &batch {
                if !visit(listed.entry()) {
                    return Ok(());
                }
            }
        }
    }

    /// See [`bimetal_vfs::FileSystem::readdir_attrs`].
    pub(super) fn readdir_attrs(&self, dir: Ino, mut from: u64, visit: &mut VisitAttrs) -> Result<()> {
        let mut noted = false;
        loop {
            let (mut core, batch) = self.look(|core| {
                core.state.check_readable()?;
                let batch = core.list(dir, from)?;
                let attrs =
                    batch.iter().map(|listed| core.listed_attr(listed)).collect::<Result<Vec<_>>>()?;
                batch.iter().filter(|listed| listed.kind == Kind::Dir).for_each(|listed| {
                    core.ext4.hint_entries(listed.ino);
                });
                if !noted {
                    self.note_access(core, dir)?;
                }
                Ok((batch, attrs))
            })?;
            noted = true;
            self.wake_if_due(&mut core);
            let (batch, attrs) = batch;
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.next;
            for (listed, attr) in batch.iter().zip(attrs) {
                if !visit(listed.entry(), attr.as_ref()) {
                    return Ok(());
                }
                if attr.is_some() {
                    core.reference(listed.ino, dir);
                }
            }
        }
    }

    /// See [`bimetal_vfs::FileSystem::create`].
    pub(super) fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let name = checked(name)?;
        drop(self.ready(|core| {
            core.default_acl(parent)?;
            core.look_at_name(parent, name)
        }));
        let mut core = self.admitted(parent, |core| {
            let records = (1024 + node.target.len()) as u64;
            Ok(Credits { records, ..Credits::blocks(core.ext4.credits_for_create(parent)?) })
        })?;
        let now = core.wall();
        let directory = core.ext4.inode(parent)?;
        let (parent_mode, parent_gid) = (directory.mode, directory.gid);
        let inherited = core.inherited_acl(parent, node, caller.umask)?;
        let setgid = parent_mode & 0o2000 != 0;
        let mut perm = inherited.perm;
        if setgid && node.kind == Kind::Dir {
            perm |= 0o2000;
        }
        let spec = Create {
            parent,
            name,
            kind: node.kind,
            perm,
            uid: caller.uid,
            gid: if setgid { parent_gid } else { caller.gid },
            rdev: node.rdev,
            target: node.target,
            now,
            ino: None,
            generation: None,
        };
        let ino = self.make(&mut core, &spec)?;
        for (attribute, value) in inherited.acls() {
            if let Err(error) = self.store_xattr(&mut core, ino, attribute, Some(value), None, now) {
                self.remove_name(&mut core, parent, name, node.kind == Kind::Dir, now)?;
                return Err(error);
            }
        }
        core.reference(ino, parent);
        let attr = core.attr(ino)?;
        self.wake_if_due(&mut core);
        Ok(attr)
    }

    /// Makes an inode and lists the record, also for recovery.
    pub(super) fn make(&self, core: &mut Core, spec: &Create) -> Result<Ino> {
        let ino = core.ext4.create(spec)?;
        // The number may have been another file's, freed as an orphan at a mount: nothing of that is this one's.
        self.drop_copies(core, ino, 0..u64::MAX);
        core.ssd.iter_mut().for_each(|ssd| ssd.forget_evicted(ino));
        let generation = core.ext4.inode(ino)?.generation;
        core.record(&Record::Create {
            parent: spec.parent.0,
            name: spec.name,
            ino: ino.0,
            generation,
            kind: kind_code(spec.kind),
            perm: spec.perm,
            owner: (spec.uid, spec.gid),
            rdev: spec.rdev,
            target: spec.target,
            at: when(spec.now),
        });
        Ok(ino)
    }

    /// See [`bimetal_vfs::FileSystem::unlink`] and [`bimetal_vfs::FileSystem::rmdir`].
    pub(super) fn remove(&self, parent: Ino, name: &[u8], dir: bool) -> Result<()> {
        let name = checked(name)?;
        drop(self.ready(|core| core.look_at_name(parent, name)));
        let credits = |core: &mut Core| Ok(Credits::blocks(core.ext4.credits_for_remove(parent, name)?));
        let mut core = self.admitted(parent, credits)?;
        let now = core.wall();
        self.remove_name(&mut core, parent, name, dir, now)?;
        self.wake_if_due(&mut core);
        Ok(())
    }

    /// The work of `unlink` and `rmdir`, also for recovery.
    pub(super) fn remove_name(
        &self,
        core: &mut Core,
        parent: Ino,
        name: &[u8],
        dir: bool,
        now: Stamp,
    ) -> Result<()> {
        let removed =
            if dir { core.ext4.rmdir(parent, name, now)? } else { core.ext4.unlink(parent, name, now)? };
        let was = Some((removed.ino.0, removed.generation));
        core.record(&Record::Remove { parent: parent.0, name, dir, at: when(now), was });
        self.removed(core, removed)
    }

    /// What follows when a name is gone: the inode is freed, or waits for its last reference.
    fn removed(&self, core: &mut Core, removed: Removed) -> Result<()> {
        if !removed.last {
            return Ok(());
        }
        let stays = core.nodes.get_mut(removed.ino).is_some_and(Node::lose_name);
        if stays { Ok(()) } else { self.release(core, removed.ino) }
    }

    /// Frees an inode that has neither names nor references.
    pub(super) fn release(&self, core: &mut Core, ino: Ino) -> Result<()> {
        self.drop_frames(core, ino, 0..u64::MAX);
        core.forget_needs(ino);
        core.nodes.remove(ino);
        core.promised.forget(ino);
        core.record(&Record::Release { ino: ino.0 });
        self.release_step(core, ino)
    }

    /// Frees what one step does, if the journal has room for it; what is left goes later. What cannot be freed is on the list of
    /// orphans, and the name is gone: only a replay must tell.
    fn release_step(&self, core: &mut Core, ino: Ino) -> Result<()> {
        let freed = core.ext4.credits_to_free(ino).and_then(|credits| {
            // What no transaction has room for by its credits has one of its own: it takes fewer, or the commit is an error.
            let never_fits = credits > self.transaction_limit() && core.journal_need() == 0;
            Ok((never_fits || self.has_journal_room(core, credits)) && core.ext4.release(ino)?)
        });
        match freed {
            Ok(true) => core.nodes.freed(ino),
            Ok(false) => core.nodes.free_later(ino),
            Err(error) if core.state.is_mounting() => return Err(error),
            Err(error) => {
                tracing::warn!(ino = ino.0, %error, "what an unlinked file had is not freed before the next mount, which may ask for e2fsck")
            }
        }
        Ok(())
    }

    /// Goes on freeing inodes that are too large to go in one transaction. Called after each commit.
    pub(super) fn release_more(&self, core: &mut Core) -> Result<()> {
        for ino in core.nodes.take_half_freed() {
            core.begin();
            self.release_step(core, ino)?;
        }
        Ok(())
    }

    /// See [`bimetal_vfs::FileSystem::rename`].
    pub(super) fn rename(&self, from: Ino, name: &[u8], to: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        let (name, new_name) = (checked(name)?, checked(new_name)?);
        drop(self.ready(|core| {
            core.look_at_name(from, name)?;
            core.look_at_name(to, new_name)
        }));
        let mut core = self.admitted(to, |core| {
            let moved = core.ext4.credits_for_rename(to, new_name)?;
            let white = if how == Rename::Whiteout { core.ext4.credits_for_create(from)? } else { 0 };
            Ok(Credits::blocks(moved + white))
        })?;
        if how == Rename::Whiteout && core.ext4.statfs().inodes_free == 0 {
            return Err(Error::NoSpace("no free inodes"));
        }
        let now = core.wall();
        self.move_name(&mut core, from, name, to, new_name, how, now)?;
        self.wake_if_due(&mut core);
        Ok(())
    }

    /// The work of `rename`, also for recovery.
    #[allow(clippy::too_many_arguments)] // the arguments of the system call
    pub(super) fn move_name(
        &self,
        core: &mut Core,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        how: Rename,
        now: Stamp,
    ) -> Result<()> {
        let moved = core.ext4.lookup(from, name)?.ok_or(Error::NotFound)?.0;
        let whiteout = how == Rename::Whiteout;
        let how = if whiteout { Rename::Replace } else { how };
        let other = core.ext4.lookup(to, new_name)?.map(|(other, _)| other);
        let whose = |core: &mut Core, ino: Ino| core.ext4.inode(ino).map(|inode| (ino.0, inode.generation));
        // What cannot be looked at is an error of the rename, which says more of it.
        let were = match (whose(core, moved), other.map(|other| whose(core, other)).transpose()) {
            (Ok(moved), Ok(other)) => Some((moved, other)),
            _ => None,
        };
        let removed = core.ext4.rename(from, name, to, new_name, how, now)?;
        core.record(&Record::Rename {
            from: from.0,
            name,
            to: to.0,
            new_name,
            how: rename_code(how),
            at: when(now),
            were,
        });
        if from != to {
            core.moved(moved, to);
            if how == Rename::Exchange
                && let Some(other) = other
            {
                core.moved(other, from);
            }
        }
        if removed.is_some() {
            core.carry(moved);
        }
        if whiteout {
            // An operation of its own, so that it gets the same inode number when it is run again.
            self.make(core, &whiteout_at(from, name, now))?;
        }
        removed.map_or(Ok(()), |removed| self.removed(core, removed))
    }

    /// See [`bimetal_vfs::FileSystem::link`].
    pub(super) fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = checked(name)?;
        drop(self.ready(|core| {
            core.look_at(ino)?;
            core.look_at_name(parent, name)
        }));
        let credits = |core: &mut Core| Ok(Credits::blocks(core.ext4.credits_for_link(parent)?));
        let mut core = self.admitted(parent, credits)?;
        let now = core.wall();
        if core.nodes.get(ino).is_some_and(Node::is_orphan) {
            return Err(Error::NotFound);
        }
        self.add_link(&mut core, ino, parent, name, now)?;
        core.node_of(ino).refer();
        let attr = core.attr(ino)?;
        self.wake_if_due(&mut core);
        Ok(attr)
    }

    /// The work of `link`, also for recovery.
    pub(super) fn add_link(
        &self,
        core: &mut Core,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        now: Stamp,
    ) -> Result<()> {
        core.ext4.link(ino, parent, name, now)?;
        core.record(&Record::Link { ino: ino.0, parent: parent.0, name, at: when(now) });
        Ok(())
    }
}

/// A name of a directory that is being listed.
struct Listed {
    ino: Ino,
    kind: Kind,
    next: u64,
    name: Box<[u8]>,
}

impl Listed {
    fn entry(&self) -> DirEntry<'_> {
        DirEntry { ino: self.ino, kind: self.kind, name: &self.name, next: self.next }
    }
}

impl Core {
    /// The next names of a directory, whose inodes are likely to be asked for.
    fn list(&mut self, dir: Ino, from: u64) -> Result<Vec<Listed>> {
        let mut batch = Vec::with_capacity(READDIR_BATCH);
        self.ext4.readdir(dir, from, &mut |entry| {
            let name = entry.name.into();
            batch.push(Listed { ino: entry.ino, kind: entry.kind, next: entry.next, name });
            batch.len() < READDIR_BATCH
        })?;
        batch.iter().for_each(|listed| self.ext4.hint_inode(listed.ino));
        Ok(batch)
    }

    /// The attributes that go with a name; none with `.` and `..`. All that are missing are missed at once.
    fn listed_attr(&mut self, listed: &Listed) -> Result<Option<Attr>> {
        match &*listed.name {
            b"." | b".." => Ok(None),
            _ => match self.attr(listed.ino) {
                Err(_) if self.ext4.has_missed() => Ok(None),
                attr => attr.map(Some),
            },
        }
    }

    /// Attributes of an inode, its dirty data counted in.
    pub(super) fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let promised = self.nodes.get(ino).map_or(0, Node::reserved);
        let block_bytes = self.ext4.block_bytes();
        let inode = self.ext4.inode(ino)?;
        Ok(Attr {
            ino,
            generation: inode.generation,
            size: inode.size,
            blocks: inode.blocks + promised * u64::from(block_bytes / 512),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            crtime: inode.crtime,
            kind: inode.kind(),
            perm: inode.perm(),
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            blksize: 4096,
        })
    }

    /// A directory's default ACL; looked for once.
    fn default_acl(&mut self, dir: Ino) -> Result<Option<Box<[u8]>>> {
        if let Some(known) = self.node_of(dir).default_acl() {
            return Ok(known.clone());
        }
        let found = match self.ext4.get_xattr(dir, DEFAULT_ACL) {
            Ok(value) => Some(value.into_boxed_slice()),
            Err(Error::NoAttribute) => None,
            Err(error) => return Err(error),
        };
        self.node_of(dir).set_default_acl(Some(found.clone()));
        Ok(found)
    }

    fn inherited_acl(&mut self, dir: Ino, node: &NewNode, umask: u32) -> Result<Inherited> {
        let perm = node.perm & 0o7777;
        let masked = Inherited { perm: perm & !(umask as u16 & 0o777), access: None, default: None };
        if node.kind == Kind::Symlink {
            return Ok(Inherited { perm: 0o777, ..masked });
        }
        let Some(default) = self.default_acl(dir)? else { return Ok(masked) };
        let Some(default) = Acl::from_wire(&default)? else { return Ok(masked) };
        let inherited = default.inherit(perm, node.kind == Kind::Dir);
        Ok(Inherited {
            perm: inherited.perm,
            access: inherited.access.map(|acl| acl.to_wire()),
            default: inherited.default.map(|acl| acl.to_wire()),
        })
    }

    fn moved(&mut self, ino: Ino, parent: Ino) {
        let is_dir = self.ext4.inode(ino).is_ok_and(|inode| inode.kind() == Kind::Dir);
        let Some(node) = self.nodes.get_mut(ino) else { return };
        node.moved_to(parent);
        if is_dir {
            // What lies below inherits from another place now.
            self.rules.changed();
        }
    }

    /// An error if nothing may change.
    pub(super) fn writable(&self) -> Result<()> {
        self.state.check_changeable()?;
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// What a new inode takes from its directory's default ACL.
struct Inherited {
    perm: u16,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Inherited {
    fn acls(&self) -> impl Iterator<Item = (&'static [u8], &[u8])> {
        let access = self.access.as_deref().map(|value| (ACCESS_ACL, value));
        access.into_iter().chain(self.default.as_deref().map(|value| (DEFAULT_ACL, value)))
    }
}

/// What `RENAME_WHITEOUT` leaves under the old name.
fn whiteout_at(parent: Ino, name: &[u8], now: Stamp) -> Create<'_> {
    Create {
        parent,
        name,
        kind: Kind::CharDevice,
        perm: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        now,
        ino: None,
        generation: None,
    }
}

fn checked(name: &[u8]) -> Result<&[u8]> {
    match name.len() {
        0 => Err(Error::NotFound),
        1..=NAME_MAX => Ok(name),
        _ => Err(Error::NameTooLong),
    }
}
