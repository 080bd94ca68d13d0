//! Files that may not change: `chattr +i` (immutable) and `chattr +a` (append only), as Linux obeys them.
//!
//! Names are looked after where they change ([`bimetal_ext4`]). A file that may only grow can be told from the
//! place it is written at; whether it was opened to append is not known here.

use super::Shared;
use super::core::Core;
use super::credits::Credits;
use super::record::{Record, when};
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::flag;
use bimetal_vfs::{Fallocate, SetAttr, SetTime};

/// Flags that `chattr` may set and clear: those that are obeyed, and what backup programs ask for.
pub const SETTABLE: u32 = flag::IMMUTABLE | flag::APPEND | flag::NODUMP;
/// Flags that lsattr(1) shows (`EXT4_FL_USER_VISIBLE` of Linux).
const VISIBLE: u32 = 0x725B_DFFF;

impl Shared {
    /// See [`bimetal_vfs::FileSystem::flags`].
    pub(super) fn flags(&self, ino: Ino) -> Result<u32> {
        self.look(|core| Ok(core.ext4.inode(ino)?.flags & VISIBLE)).map(|(_, flags)| flags)
    }

    /// See [`bimetal_vfs::FileSystem::set_flags`].
    ///
    /// # Errors
    /// [`Error::NotSupported`] if one changes that is none of [`SETTABLE`], [`Error::NotPermitted`] for what stays immutable.
    pub(super) fn set_flags(&self, ino: Ino, flags: u32) -> Result<()> {
        drop(self.ready(|core| core.look_at(ino)));
        let mut core = self.admitted(ino, |core| Ok(Credits::blocks(core.ext4.credits_for_attributes())))?;
        let old = core.ext4.inode(ino)?.flags & VISIBLE;
        if (old ^ flags) & !SETTABLE != 0 {
            return Err(Error::NotSupported);
        }
        if old != flags && old & flags & flag::IMMUTABLE != 0 {
            return Err(Error::NotPermitted);
        }
        let now = core.wall();
        self.store_flags(&mut core, ino, flags & SETTABLE, now)?;
        self.wake_if_due(&mut core);
        Ok(())
    }

    /// Sets those of [`SETTABLE`], and lists the record; also for recovery.
    pub(super) fn store_flags(&self, core: &mut Core, ino: Ino, flags: u32, now: Stamp) -> Result<()> {
        let inode = core.ext4.inode_mut(ino)?;
        inode.flags = inode.flags & !SETTABLE | flags & SETTABLE;
        inode.ctime = now;
        core.record(&Record::Flags { ino: ino.0, flags, at: when(now) });
        Ok(())
    }
}

impl Core {
    /// An error unless bytes from `offset` to `end` of a file may be written.
    pub(super) fn check_write(&mut self, ino: Ino, offset: u64, end: u64) -> Result<()> {
        let inode = self.inode_of_file(ino)?;
        if inode.has(flag::IMMUTABLE) || inode.has(flag::APPEND) && offset < inode.size {
            return Err(Error::NotPermitted);
        }
        if end > self.ext4.size_max() { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// An error unless these attributes may be set.
    pub(super) fn check_setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<()> {
        let inode = self.ext4.inode(ino)?;
        let to = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
        let fixed = set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
        let fixed = fixed || to(set.atime) || to(set.mtime);
        let touched = set.atime.is_some() || set.mtime.is_some();
        if inode.has(flag::IMMUTABLE) && (fixed || touched) || inode.has(flag::APPEND) && fixed {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// An error unless extended attributes may change.
    pub(super) fn check_tag(&mut self, ino: Ino) -> Result<()> {
        let fixed = self.ext4.inode(ino)?.has(flag::IMMUTABLE | flag::APPEND);
        if fixed { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// An error unless space may be given or taken.
    pub(super) fn check_fallocate(&mut self, ino: Ino, what: Fallocate) -> Result<()> {
        let inode = self.inode_of_file(ino)?;
        let grows = matches!(what, Fallocate::Reserve { .. });
        if inode.has(flag::IMMUTABLE) || inode.has(flag::APPEND) && !grows {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }
}
