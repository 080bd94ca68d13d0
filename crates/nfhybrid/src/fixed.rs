//! Files that may not change: `chattr +i` (immutable) and `chattr +a` (append only), as Linux obeys them.
//!
//! Names are looked after where they change ([`bimetal_ext4`]). A file that may only grow can be told from the
//! place it is written at; whether it was opened to append is not known here.

use super::core::Core;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::flag;
use bimetal_vfs::{Fallocate, SetAttr, SetTime};

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
