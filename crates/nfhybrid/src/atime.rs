//! Access times: when a read renews one, as Linux says it for `relatime`, `strictatime`, `noatime` and `nodiratime`.
//!
//! The kernel leaves them to a FUSE server. A renewed time alone is no reason to write: it goes with the next
//! commit; so many of them that they fill half a transaction bring one about.

use super::Shared;
use super::core::Core;
use bimetal_base::Result;
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_ext4::{Inode, flag};
use bimetal_vfs::Kind;

/// `relatime`: an access time older than this is renewed whatever the other times say, seconds.
const AGE_MAX: i64 = 24 * 3600;

/// Which reads renew access times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Renew {
    /// None (`noatime`).
    Never,
    /// Those that find a time not after the file's other times, or a day old (`relatime`).
    #[default]
    Relative,
    /// All (`strictatime`).
    Always,
}

/// Which access times are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessTimes {
    /// Which reads renew them.
    pub renew: Renew,
    /// Directories have them, too (not with `nodiratime`).
    pub dirs: bool,
}

impl Default for AccessTimes {
    fn default() -> AccessTimes {
        AccessTimes { renew: Renew::default(), dirs: true }
    }
}

impl AccessTimes {
    /// Whether an access at `now` is to be noted in `inode`.
    fn is_due(self, inode: &Inode, now: Stamp) -> bool {
        if inode.has(flag::NOATIME) || inode.kind() == Kind::Dir && !self.dirs {
            return false;
        }
        match self.renew {
            Renew::Never => false,
            Renew::Always => inode.atime != now,
            Renew::Relative => {
                inode.atime <= inode.mtime
                    || inode.atime <= inode.ctime
                    || now.sec.saturating_sub(inode.atime.sec) >= AGE_MAX
            }
        }
    }
}

impl Shared {
    /// Notes that an inode was read, if the journal has room for it and changes still reach the disk. Changes nothing if
    /// something it needs is missing.
    pub(super) fn note_access(&self, core: &mut Core, ino: Ino) -> Result<()> {
        // What finds no room in the journal is not stored; the committer makes some.
        // A disk that is not written yet is not written for them alone.
        if !core.state.is_running() || core.ext4.is_unmarked() || !self.has_credits_for_access(core) {
            return Ok(());
        }
        core.touch_atime(ino)
    }
}

impl Core {
    /// Notes that an inode was read. Changes nothing if something it needs is missing.
    fn touch_atime(&mut self, ino: Ino) -> Result<()> {
        if self.is_read_only() || self.access_times().renew == Renew::Never {
            return Ok(());
        }
        let now = self.ext4.representable(self.wall());
        let access_times = self.access_times();
        if access_times.is_due(self.ext4.inode(ino)?, now) {
            self.ext4.inode_mut(ino)?.atime = now;
        }
        Ok(())
    }
}
