//! Metadata that is not in memory is read without the core's lock.
//!
//! An operation that only looks ([`Shared::look`]) is tried under the lock with what is in memory. What it lacks is
//! named by [`bimetal_ext4::Ext4::missed`], read with the lock given back, handed in, and the operation tried
//! again; after [`TRIES`] it reads what it still lacks under the lock. A try that lacked more than is read at once does not
//! count: the many leaves of one file's map are found by the first, and come in a few. An operation that changes something first looks
//! at what it will need in the same way ([`Shared::ready`]) and then runs as if all were in memory: it never is done
//! half and then tried again.
//!
//! So a look-up that waits for the disk holds up nobody whose data is in memory. Cost where nothing is missing: two
//! stores and a test.

use super::Shared;
use super::core::Core;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Wanted;
use bimetal_media::{Request, Ticket};
use bimetal_vfs::Kind;
use bytes::Bytes;

/// How often an operation is tried without the lock while it reads. A path of blocks that each name the next: a
/// directory's inode, three levels of its index, a leaf, the inode it names, its attributes and its extents.
const TRIES: u32 = 10;

/// The same with those that lacked more than is read at once: the leaves of five million extents.
const TRIES_MAX: u32 = 1000;

impl Shared {
    /// Runs an operation that changes nothing; the lock comes with the answer.
    pub(super) fn look<T>(
        &self,
        mut op: impl FnMut(&mut Core) -> Result<T>,
    ) -> Result<(MutexGuard<'_, Core>, T)> {
        let mut core = self.core.lock();
        let mut tries = Tries::default();
        while tries.are_left() {
            match attempt(&mut core, &mut op) {
                Ok(answer) => return answer.map(|answer| (core, answer)),
                Err(wanted) if self.read_wanted(&mut core, &wanted) => tries.count(&wanted),
                Err(_) => break,
            }
        }
        core.counters.metadata_locked += 1;
        let answer = op(&mut core)?;
        Ok((core, answer))
    }

    /// As [`Shared::look`], if nothing has to be read; else nothing.
    pub(super) fn glance<T>(
        &self,
        mut op: impl FnMut(&mut Core) -> Result<T>,
    ) -> Result<Option<(MutexGuard<'_, Core>, T)>> {
        let mut core = self.core.lock();
        match attempt(&mut core, &mut op) {
            Ok(answer) => answer.map(|answer| Some((core, answer))),
            Err(_) => Ok(None),
        }
    }

    /// The lock, for an operation that will need what `look` looks at. What `look` says is of no matter: the
    /// operation will meet it itself.
    pub(super) fn ready(&self, mut look: impl FnMut(&mut Core) -> Result<()>) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        let mut tries = Tries::default();
        while tries.are_left() {
            match attempt(&mut core, &mut look) {
                Err(wanted) if self.read_wanted(&mut core, &wanted) => tries.count(&wanted),
                _ => break,
            }
        }
        core
    }

    /// Reads what was missing, with the lock given back; `false` if that is of no use.
    fn read_wanted(&self, core: &mut MutexGuard<'_, Core>, wanted: &Wanted) -> bool {
        let read = MutexGuard::unlocked(core, || self.read_all(wanted));
        core.counters.metadata_reads += read.len() as u64;
        let whole = !wanted.is_empty() && read.iter().all(Result::is_ok);
        for (number, bytes) in read.iter().enumerate() {
            if let Ok(bytes) = bytes {
                core.ext4.supply(wanted, number, bytes);
            }
        }
        whole
    }

    /// All reads at once: the disk may choose their order.
    fn read_all(&self, wanted: &Wanted) -> Vec<Result<Bytes>> {
        let submit = |read: std::ops::Range<u64>| {
            let request = Request::Read { offset: read.start, len: (read.end - read.start) as usize };
            self.disk.submit(self.clock.now(), request)
        };
        let tickets: Vec<Ticket> = wanted.reads().map(submit).collect();
        tickets.into_iter().map(|ticket| self.disk.wait(ticket).result).collect()
    }
}

/// How often an operation was tried.
#[derive(Default)]
struct Tries {
    counted: u32,
    all: u32,
}

impl Tries {
    fn are_left(&self) -> bool {
        self.counted < TRIES && self.all < TRIES_MAX
    }

    /// One that lacked this.
    fn count(&mut self, wanted: &Wanted) {
        self.counted += u32::from(!wanted.is_cut());
        self.all += 1;
    }
}

/// Tries an operation with what is in memory.
fn attempt<T>(core: &mut Core, op: &mut impl FnMut(&mut Core) -> Result<T>) -> Result<Result<T>, Wanted> {
    core.ext4.shun_reads();
    let answer = op(core);
    core.ext4.missed().map_or(Ok(answer), Err)
}

impl Core {
    /// Looks at what changing an inode needs: its attributes, and where its data lies.
    pub(super) fn look_at(&mut self, ino: Ino) -> Result<()> {
        self.ext4.xattrs(ino)?;
        if self.ext4.inode(ino)?.kind() == Kind::File {
            self.ext4.map(ino, 0, 1)?;
        }
        Ok(())
    }

    /// Looks at what changing a file's data needs: its inode, and where its data lies.
    pub(super) fn look_at_data(&mut self, ino: Ino) -> Result<()> {
        self.inode_of_file(ino)?;
        self.ext4.map(ino, 0, 1).map(drop)
    }

    /// Looks at what changing a name needs: its place in the directory, and the inode behind it.
    pub(super) fn look_at_name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        match self.ext4.lookup(parent, name)? {
            Some((ino, _)) => self.look_at(ino),
            None => Err(Error::NotFound),
        }
    }
}
