//! `SEEK_DATA` and `SEEK_HOLE` of files that the kernel has newer contents of.
//!
//! Pages that a program changed through a shared mapping, or with the kernel's write-back cache in any way, reach the
//! server when the kernel likes. It does not send them before it asks where data and holes are, so the server would call
//! a hole what holds data, and who copies the file would leave it out. So before a hole is believed, the kernel is told
//! to let go of the pages there; it writes back those that were changed, and returns when that is done.
//!
//! Cost: a message to the kernel for each hole that is named, and its pages, which are zeros. Nothing for data.

use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::{FileSystem, Seek};
use fuser::{INodeNo, Notifier};
use std::ops::Range;
use std::sync::Arc;

/// Looks for data and holes in one file.
pub(super) struct Seeker {
    pub fs: Arc<dyn FileSystem>,
    pub ino: Ino,
    /// The kernel may have more past the end that the server knows of, as with its write-back cache.
    pub may_grow: bool,
}

/// What was found.
pub(super) enum Look {
    /// It is so whatever the kernel has.
    Sure(Result<u64>),
    /// It is so unless the kernel has something in this hole.
    Unless(Range<u64>, Result<u64>),
}

impl Seeker {
    /// What the server alone knows.
    pub fn look(&self, offset: u64, what: Seek) -> Look {
        let found = self.fs.seek(self.ino, offset, what);
        let hole = match (what, &found) {
            (Seek::Data, Ok(data)) => offset..*data,
            (_, Err(Error::NoOffset)) => offset..self.end(),
            (Seek::Hole, Ok(hole)) => {
                *hole..self.fs.seek(self.ino, *hole, Seek::Data).unwrap_or_else(|_| self.end())
            }
            (_, Err(_)) => return Look::Sure(found),
        };
        if hole.is_empty() { Look::Sure(found) } else { Look::Unless(hole, found) }
    }

    /// Nothing that the kernel has lies beyond.
    fn end(&self) -> u64 {
        match self.may_grow {
            true => u64::MAX,
            false => self.fs.getattr(self.ino).map_or(0, |attr| attr.size),
        }
    }

    /// What is true once `write_back` had the kernel write what it has in a hole; `hole` is the first in question.
    pub fn find(
        &self,
        hole: Range<u64>,
        offset: u64,
        what: Seek,
        write_back: impl Fn(Range<u64>),
    ) -> Result<u64> {
        let mut clean = hole;
        write_back(clean.clone());
        loop {
            match self.look(offset, what) {
                Look::Sure(found) => return found,
                Look::Unless(hole, found) if clean.start <= hole.start && hole.end <= clean.end => {
                    return found;
                }
                // That one was filled, or what follows it was cut off: the next is in question.
                Look::Unless(hole, _) => {
                    clean = hole;
                    write_back(clean.clone());
                }
            }
        }
    }
}

/// Has the kernel write back what it changed in `hole`, and forget it.
pub(super) fn written_back(notifier: &Notifier, node: INodeNo, hole: Range<u64>) {
    let signed = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    // 0: to the end of the file.
    let len = if hole.end == u64::MAX { 0 } else { signed(hole.end - hole.start) };
    if let Err(why) = notifier.inval_inode(node, signed(hole.start), len) {
        tracing::debug!(%why, "the kernel keeps what it has of a hole");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_memfs::MemFs;
    use bimetal_vfs::{Caller, Kind, NewNode};

    /// A file of 64 KiB with data at 0 and at 32 KiB.
    fn file() -> Seeker {
        let fs = MemFs::new(1 << 20, &Caller::default());
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
        let ino = fs.create(&Caller::default(), fs.root(), b"file", &node).unwrap().ino;
        let seeker = Seeker { fs: Arc::new(fs), ino, may_grow: true };
        for offset in [0, 32 << 10] {
            seeker.write(offset);
        }
        let set = bimetal_vfs::SetAttr { size: Some(64 << 10), ..Default::default() };
        seeker.fs.setattr(ino, &set).unwrap();
        seeker
    }

    impl Seeker {
        fn write(&self, offset: u64) {
            self.fs.write(self.ino, offset, &[1; 4096], false).unwrap().get().unwrap();
        }

        /// What is found when the kernel has changed the pages at `dirty`.
        fn with(&self, dirty: &[u64], offset: u64, what: Seek) -> Option<u64> {
            let found = match self.look(offset, what) {
                Look::Sure(found) => found,
                Look::Unless(hole, _) => self.find(hole, offset, what, |hole| {
                    dirty.iter().filter(|at| hole.contains(at)).for_each(|at| self.write(*at));
                }),
            };
            found.ok()
        }
    }

    #[test]
    fn what_only_the_kernel_has_is_data() {
        let kib = |kib: u64| Some(kib << 10);
        assert_eq!(file().with(&[], 4096, Seek::Data), kib(32));
        assert_eq!(file().with(&[16 << 10], 4096, Seek::Data), kib(16));
        assert_eq!(file().with(&[], 40 << 10, Seek::Data), None);
        assert_eq!(file().with(&[48 << 10], 40 << 10, Seek::Data), kib(48));
        // Past the end that the server knows of, too.
        assert_eq!(file().with(&[128 << 10], 40 << 10, Seek::Data), kib(128));
        assert_eq!(file().with(&[128 << 10], 100 << 10, Seek::Data), kib(128));
        assert_eq!(file().with(&[], 100 << 10, Seek::Data), None);
        assert_eq!(file().with(&[], 0, Seek::Hole), kib(4));
        assert_eq!(file().with(&[4096, 8192], 0, Seek::Hole), kib(12));
        // Without a write-back cache nothing lies past the end, and the kernel is not asked there.
        let sure = |seeker: Seeker, offset, what| matches!(seeker.look(offset, what), Look::Sure(_));
        let grown = || Seeker { may_grow: false, ..file() };
        assert!(sure(grown(), 100 << 10, Seek::Data) && !sure(grown(), 40 << 10, Seek::Data));
        // A hole that is filled to its end, and the beginning of the next.
        let filled: Vec<u64> = (1..8).chain([9]).map(|page| page * 4096).collect();
        assert_eq!(file().with(&filled, 0, Seek::Hole), kib(40));
    }
}
