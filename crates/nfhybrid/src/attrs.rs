//! Attributes, extended attributes and ACLs, and the attributes of our own that control a live mount.

use super::Shared;
use super::core::Core;
use super::credits::Credits;
use super::partial::frames_in_part;
use super::policy::{BYPASS, DURABILITY_XATTR, Durability, SECTION_XATTR};
use super::record::{Record, when};
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::acl::Acl;
use bimetal_vfs::adapter::without_set_id;
use bimetal_vfs::{Attr, Kind, SetAttr, SetTime, SetXattr};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Shared {
    /// See [`bimetal_vfs::FileSystem::setattr`].
    pub(super) fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut core = self.ready(|core| core.look_at(ino));
        if let Some(size) = set.size {
            self.warm(&mut core, ino, &frames_in_part(size, size));
        }
        drop(core);
        let mut core = self.admitted_to_set(ino, set)?;
        core.check_setattr(ino, set)?;
        let now = core.wall();
        if let Some(size) = set.size
            && !self.set_size(&mut core, ino, size, now)?
        {
            // It has its size; what comes to it now comes after the cut.
            drop(core);
            self.finish_cut(ino)?;
            core = self.admitted_to_set(ino, set)?;
        }
        self.set_attributes(&mut core, ino, set, now)?;
        let attr = core.attr(ino)?;
        self.wake_if_due(&mut core);
        Ok(attr)
    }

    fn admitted_to_set(&self, ino: Ino, set: &SetAttr) -> Result<MutexGuard<'_, Core>> {
        let need = |core: &mut Core| {
            let blocks = core.ext4.credits_for_attributes() + core.ext4.credits_for_xattrs();
            let cut = match set.size {
                Some(size) => self.credits_to_cut(core, ino, size)?,
                None => Credits::default(),
            };
            Ok(Credits { journal: blocks + cut.journal, ..cut })
        };
        if set.size.is_some() { self.admitted_whole(ino, need) } else { self.admitted(ino, need) }
    }

    /// The credits of a change of extended attributes, of so many bytes.
    fn admitted_to_tag(&self, ino: Ino, bytes: usize) -> Result<MutexGuard<'_, Core>> {
        drop(self.ready(|core| core.look_at(ino)));
        let mut core = self.admitted(ino, |core| {
            let blocks = core.ext4.credits_for_attributes() + core.ext4.credits_for_xattrs();
            Ok(Credits { records: 1024 + bytes as u64, ..Credits::blocks(blocks) })
        })?;
        core.check_tag(ino)?;
        Ok(core)
    }

    fn set_attributes(&self, core: &mut Core, ino: Ino, set: &SetAttr, now: Stamp) -> Result<()> {
        let [atime, mtime] = [set.atime, set.mtime].map(|set| match set? {
            SetTime::Now => Some(now),
            SetTime::To(stamp) => Some(core.ext4.representable(stamp)),
        });
        let ctime = set.ctime.map_or(now, |stamp| core.ext4.representable(stamp));
        let before = core.ext4.inode(ino)?;
        let mut perm = before.mode & 0o7777;
        if set.kill_suid {
            perm = without_set_id(before.kind(), perm);
        }
        if let Some(said) = set.perm {
            perm = said;
            // What can fail comes first.
            self.follow_chmod(core, ino, perm, now)?;
        }
        let inode = core.ext4.inode_mut(ino)?;
        inode.mode = inode.mode & !0o7777 | perm & 0o7777;
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = ctime;
        core.record_attributes(ino)
    }

    /// `chmod` on a file with an access ACL changes the ACL's owner, mask and other entries.
    fn follow_chmod(&self, core: &mut Core, ino: Ino, perm: u16, now: Stamp) -> Result<()> {
        match core.ext4.get_xattr(ino, ACCESS_ACL) {
            Ok(old) => {
                let Some(acl) = Acl::from_wire(&old)? else { return Ok(()) };
                let new = acl.with_mode(perm).to_wire();
                self.store_xattr(core, ino, ACCESS_ACL, Some(&new), Some(perm), now)
            }
            Err(Error::NoAttribute) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets or removes an attribute, with the permission bits that follow from it, and lists the record.
    pub(super) fn store_xattr(
        &self,
        core: &mut Core,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        perm: Option<u16>,
        now: Stamp,
    ) -> Result<()> {
        match value {
            Some(value) => core.ext4.set_xattr(ino, name, value, SetXattr::Either, now)?,
            None => core.ext4.remove_xattr(ino, name, now)?,
        }
        let inode = core.ext4.inode_mut(ino)?;
        inode.ctime = now;
        if let Some(perm) = perm {
            inode.mode = inode.mode & !0o7777 | perm & 0o7777;
        }
        let perm = inode.mode & 0o7777;
        core.record(&Record::Xattr { ino: ino.0, name, value, perm, at: when(now) });
        if name == DEFAULT_ACL {
            core.node_of(ino).set_default_acl(None);
        }
        if name == SECTION_XATTR || name == DURABILITY_XATTR {
            core.rules.changed();
        }
        Ok(())
    }

    /// See [`bimetal_vfs::FileSystem::setxattr`].
    pub(super) fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        kill_sgid: bool,
    ) -> Result<()> {
        let mut core = self.admitted_to_tag(ino, value.len())?;
        let there = match core.ext4.get_xattr(ino, name) {
            Ok(_) => true,
            Err(Error::NoAttribute) => false,
            Err(error) => return Err(error),
        };
        match (how, there) {
            (SetXattr::Create, true) => return Err(Error::Exists),
            (SetXattr::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        let now = core.wall();
        let is_dir = core.ext4.inode(ino)?.kind() == Kind::Dir;
        if name == DEFAULT_ACL && !is_dir {
            return Err(Error::Denied);
        }
        if name != ACCESS_ACL {
            self.store_xattr(&mut core, ino, name, Some(value), None, now)?;
        } else {
            self.set_access_acl(&mut core, ino, value, kill_sgid, now)?;
        }
        self.wake_if_due(&mut core);
        Ok(())
    }

    /// An access ACL sets the permission bits; one that says no more than they do is not stored.
    fn set_access_acl(
        &self,
        core: &mut Core,
        ino: Ino,
        value: &[u8],
        kill_sgid: bool,
        now: Stamp,
    ) -> Result<()> {
        let old = core.ext4.inode(ino)?.mode;
        let (mut perm, stored) = match Acl::from_wire(value).map_err(|_| Error::BadArgument)? {
            Some(acl) => acl.set_on(old & 0o7777),
            None => (old & 0o7777, None),
        };
        if kill_sgid {
            perm &= !0o2000;
        }
        if let Some(acl) = stored {
            return self.store_xattr(core, ino, ACCESS_ACL, Some(&acl.to_wire()), Some(perm), now);
        }
        match self.store_xattr(core, ino, ACCESS_ACL, None, Some(perm), now) {
            Err(Error::NoAttribute) => {
                let inode = core.ext4.inode_mut(ino)?;
                inode.mode = inode.mode & !0o7777 | perm;
                inode.ctime = now;
                core.record_attributes(ino)
            }
            other => other,
        }
    }

    /// See [`bimetal_vfs::FileSystem::removexattr`].
    pub(super) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut core = self.admitted_to_tag(ino, 0)?;
        self.store_xattr(&mut core, ino, name, None, None, self.clock.wall())?;
        self.wake_if_due(&mut core);
        Ok(())
    }

    /// Maps a directory to a section, to `bypass`, or back to what it inherits. No data moves.
    pub(super) fn map_directory(&self, ino: Ino, rule: &str) -> Result<()> {
        let mut core = self.admitted_to_tag(ino, 0)?;
        if core.ext4.inode(ino)?.kind() != Kind::Dir {
            return Err(Error::NotDir);
        }
        if rule == "inherit" {
            return self.clear_rule(&mut core, ino, SECTION_XATTR);
        }
        let Some(ssd) = &core.ssd else {
            return Err(Error::invalid("there is no SSD to map to; this mount works from the disk alone"));
        };
        if rule != BYPASS && ssd.section_named(rule).is_none() {
            let names: Vec<String> = ssd.config().sections.into_iter().map(|section| section.name).collect();
            return Err(Error::invalid(format!(
                "no section is called '{rule}'; this SSD has {}; or say bypass or inherit",
                names.join(", ")
            )));
        }
        self.store_xattr(&mut core, ino, SECTION_XATTR, Some(rule.as_bytes()), None, self.clock.wall())
    }

    /// Sets what an fsync below a directory waits for, or lets it inherit again.
    pub(super) fn set_durability(&self, ino: Ino, rule: &str) -> Result<()> {
        let mut core = self.admitted_to_tag(ino, 0)?;
        if core.ext4.inode(ino)?.kind() != Kind::Dir {
            return Err(Error::NotDir);
        }
        if rule == "inherit" {
            return self.clear_rule(&mut core, ino, DURABILITY_XATTR);
        }
        rule.parse::<Durability>()?;
        self.store_xattr(&mut core, ino, DURABILITY_XATTR, Some(rule.as_bytes()), None, self.clock.wall())
    }

    fn clear_rule(&self, core: &mut Core, ino: Ino, name: &[u8]) -> Result<()> {
        match self.store_xattr(core, ino, name, None, None, self.clock.wall()) {
            Err(Error::NoAttribute) => Ok(()),
            other => other,
        }
    }
}

impl Core {
    /// Lists the record of an inode's attributes as they are now.
    pub(super) fn record_attributes(&mut self, ino: Ino) -> Result<()> {
        let inode = self.ext4.inode(ino)?;
        let time = |stamp: Stamp| when(stamp);
        let record = Record::Attributes {
            ino: ino.0,
            perm: inode.mode & 0o7777,
            owner: (inode.uid, inode.gid),
            atime: time(inode.atime),
            mtime: time(inode.mtime),
            ctime: time(inode.ctime),
        };
        self.record(&record);
        Ok(())
    }
}
