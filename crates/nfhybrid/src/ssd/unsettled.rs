//! Inodes that have something again after a crash which they do not have now.
//!
//! What an operation unbinds is unbound at once, and bound again by a recovery that does not have the operation. Forgetting the
//! rest of such an inode counts whatever happens, and would take along what is to come back: perhaps the only copy of what was
//! promised. So these are not evicted, and a slot that has lost its last entry is free when no entry of it can come back: not
//! when the last one cannot.

use super::Cause;
use rustc_hash::FxHashMap;

/// By inode, the last operations that unbound something of it.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    inodes: FxHashMap<u64, Last>,
}

/// The last operation of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    /// Of those that count once the log is complete up to them.
    kept: u64,
    /// Of those that count once the disk has them.
    on_disk: u64,
}

impl Last {
    /// Whether there is none.
    pub(super) fn is_none(self) -> bool {
        self.kept == 0 && self.on_disk == 0
    }

    /// The last that counts once the disk has it, if that is not settled.
    pub(super) fn of_disk(self, is_settled: impl Fn(Cause) -> bool) -> Option<Cause> {
        let cause = Cause { op: self.on_disk, on_disk: true };
        (cause.op > 0 && !is_settled(cause)).then_some(cause)
    }

    /// Whether one of them is not settled.
    pub(super) fn waits(self, is_settled: impl Fn(Cause) -> bool) -> bool {
        let causes = [Cause::of(self.kept), Cause { op: self.on_disk, on_disk: true }];
        causes.into_iter().any(|cause| cause.op > 0 && !is_settled(cause))
    }
}

impl Unsettled {
    /// Something of an inode was unbound.
    pub(super) fn unbound(&mut self, ino: u64, cause: Cause) {
        if cause.op == 0 {
            return;
        }
        let last = self.inodes.entry(ino).or_default();
        let of_kind = if cause.on_disk { &mut last.on_disk } else { &mut last.kept };
        *of_kind = cause.op.max(*of_kind);
    }

    /// What something of an inode may wait for.
    pub(super) fn last(&self, ino: u64) -> Last {
        self.inodes.get(&ino).copied().unwrap_or_default()
    }

    /// Whether something of an inode may come back.
    pub(super) fn waits(&self, ino: u64, is_settled: impl Fn(Cause) -> bool) -> bool {
        self.last(ino).waits(is_settled)
    }

    /// Forgets those of which nothing comes back.
    pub(super) fn settle(&mut self, is_settled: impl Fn(Cause) -> bool) {
        self.inodes.retain(|_, last| last.waits(&is_settled));
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.inodes.capacity() * (size_of::<(u64, Last)>() + 1)
    }
}
