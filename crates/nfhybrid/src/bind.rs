//! The SSD's part of a commit cycle: it learns what it now holds of the changed blocks, and durably forgets what it held of
//! them, before the disk commits.
//!
//! Invariants. Which copies are stale was settled at the freeze, and is said with the cycle's operation number, whatever
//! happens to the files meanwhile. What was written and is not current any more is given back; what the log has no room to
//! name is named after the cycle, when the log has been emptied.
//!
//! Cost under the lock: a walk of what was placed. Data is written, and its checksums are worked out, without it.

use super::Shared;
use super::aftermath::Touched;
use super::core::Core;
use super::durable::fill;
use super::frames::FRAME;
use super::node::Node;
use super::place::Placement;
use super::room::Demand;
use super::ssd::{Binding, CopyState, DupInode};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// Bytes of the log that forgetting a stretch takes at most, with the move of what it cuts off.
const UNBIND_BYTES: u64 = 96;

/// What was written to the SSD and lies on the disk, too: bound as long as the file is as it was then.
pub(super) struct DeferredBinding {
    pub placement: Placement,
    /// See [`Node::version`].
    pub version: u64,
}

impl Shared {
    /// Step 2 and 3 on the SSD: data, then the records of what it holds and no longer holds, durable.
    ///
    /// Returns what was written and found the log too full to be bound.
    pub(super) fn finish_ssd(&self, op: u64, placements: Vec<Placement>) -> Result<Vec<DeferredBinding>> {
        if self.ssd_device.is_none() {
            return Ok(Vec::new());
        }
        let mut core = self.core.lock();
        if core.state.ssd_is_fixed() {
            core.touch_frozen(op);
            return Ok(Vec::new());
        }
        drop(core);
        self.write_placements(&placements)?;
        let gate = self.line.claim();
        match self.make_room(&gate) {
            Err(error @ Error::Ssd(_)) => return Err(error),
            Err(error) => tracing::error!(%error, "the log could not be started anew"),
            Ok(()) => {}
        }
        let mut core = self.core.lock();
        if core.ssd.is_none() {
            return Ok(Vec::new());
        }
        let late = self.bind_frozen(&mut core, op, placements);
        self.unbind_frozen(&mut core, op);
        self.evict(&mut core, &Demand::default());
        self.write_log(core).map(|()| late)
    }

    /// Binds what this cycle wrote, unless newer data stands over it or it was cut off meanwhile. Returns what the log
    /// has no room for.
    fn bind_frozen(&self, core: &mut Core, op: u64, placements: Vec<Placement>) -> Vec<DeferredBinding> {
        let unit = self.ssd_blocks_per_frame as u32;
        let mut late = Vec::new();
        for placement in placements {
            let is_current = |number: usize| core.is_current(placement.ino, placement.index + number as u64);
            let current: SmallVec<[bool; 64]> = (0..placement.frames.len()).map(is_current).collect();
            let mut at = 0;
            for alike in current.chunk_by(|one, next| one == next) {
                let part = placement.part(at..at + alike.len(), unit);
                at += alike.len();
                match alike[0] {
                    true => late.extend(self.bind_part(core, op, part)),
                    false => core.ssd.iter_mut().for_each(|ssd| ssd.release(part.run)),
                }
            }
        }
        late
    }

    /// Binds a stretch of frozen frames that nothing newer covers; gives it back if the log has no room for that.
    fn bind_part(&self, core: &mut Core, op: u64, placement: Placement) -> Option<DeferredBinding> {
        let ino = placement.ino;
        let copy = self.dup_inode(core, ino).map(|inode| core.as_frozen(op, ino, inode));
        let ssd = core.ssd.as_mut()?;
        let inode = match (copy, core.nodes.get(ino)) {
            (Some(inode), _) if !ssd.is_filled(0, fill::BINDS) => inode,
            (Some(_), Some(node)) => return Some(DeferredBinding { placement, version: node.version() }),
            _ => {
                ssd.release(placement.run);
                return None;
            }
        };
        let Placement { index, run, ref frames, .. } = placement;
        let file_block = (index * self.ssd_blocks_per_frame) as u32;
        let sums = placement.sums(self.ssd_block_bytes);
        let binding = Binding { file_block, run, sums, state: CopyState::Ssd, inode: &inode };
        if ssd.bind(op, ino, &binding).is_ok()
            && let Some(cycle) = &mut core.cycle
        {
            cycle.bind(ino, index..index + frames.len() as u64);
        }
        None
    }

    /// The SSD forgets its copies of everything that changes on the disk and was not bound anew by this cycle; what later
    /// operations bound stays. What would take more of the log than there is room for is said with one record, which
    /// forgets everything else, too.
    fn unbind_frozen(&self, core: &mut Core, op: u64) {
        let Core { ssd: Some(ssd), cycle: Some(cycle), promised, counters, .. } = core else { return };
        let mut full = false;
        for (ino, stale) in cycle.take_stale() {
            let stale = cycle.stretches_to_forget(ino, &stale, promised.is_settled(ino, op));
            full = ssd.is_filled(stale.len() as u64 * UNBIND_BYTES, fill::UNBINDS);
            if full {
                break;
            }
            for (first, count) in stale {
                let (from, len) = self.ssd_range(&(first..first + count));
                ssd.unbind_on_disk(op, ino, from, len);
            }
        }
        if full {
            counters.forgotten += 1;
            ssd.forget_on_disk(op);
            let per_frame = self.ssd_blocks_per_frame;
            cycle.copies_were_forgotten(|ino, index| {
                let block = u32::try_from(index * per_frame).ok();
                block.is_some_and(|block| ssd.resident(ino, block).is_some())
            });
        }
    }

    /// Binds what a cycle found no room for in the log, emptying that as often as it takes.
    pub(super) fn bind_late(&self, late: Vec<DeferredBinding>) -> Result<()> {
        let _gate = self.line.claim();
        let mut late = late.into_iter().peekable();
        while late.peek().is_some() {
            self.empty_log()?;
            let mut core = self.core.lock();
            let is_full = |core: &Core| core.ssd.as_ref().is_none_or(|ssd| ssd.is_filled(0, fill::BINDS));
            if is_full(&core) {
                late.for_each(|settled| {
                    self.bind_settled(&mut core, settled);
                });
                return Ok(());
            }
            while !is_full(&core)
                && let Some(settled) = late.next()
            {
                core.counters.bound_late += self.bind_settled(&mut core, settled);
            }
            if let Err(error) = self.write_log(core) {
                let mut core = self.core.lock();
                late.for_each(|settled| {
                    core.ssd.iter_mut().for_each(|ssd| ssd.release(settled.placement.run))
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// Binds a copy of what the disk has, unless the file changed since; how many bytes.
    pub(super) fn bind_settled(
        &self,
        core: &mut Core,
        DeferredBinding { placement, version }: DeferredBinding,
    ) -> u64 {
        let Placement { ino, index, run, ref frames, .. } = placement;
        let unchanged = core.is_unchanged(ino, version);
        let copy = if unchanged { self.dup_inode(core, ino) } else { None };
        let sums = placement.sums(self.ssd_block_bytes);
        let committed = core.ops.committed();
        let Some(ssd) = &mut core.ssd else { return 0 };
        let Some(inode) = copy.filter(|_| !ssd.is_filled(0, fill::BINDS)) else {
            ssd.release(run);
            return 0;
        };
        let file_block = (index * self.ssd_blocks_per_frame) as u32;
        let binding = Binding { file_block, run, sums, state: CopyState::Both, inode: &inode };
        ssd.bind(committed, ino, &binding).map_or(0, |()| (frames.len() * FRAME) as u64)
    }
}

impl Core {
    /// A frozen frame that nothing newer covers.
    fn is_current(&self, ino: Ino, index: u64) -> bool {
        let newer = self.nodes.get(ino).is_some_and(|node| node.frames().contains_key(&index));
        self.cycle.as_ref().is_some_and(|cycle| cycle.is_unplaced(ino, index)) && !newer
    }

    /// An inode as it was when the cycle of operation `op` froze its data, unless more was promised since: a size that it got
    /// meanwhile does not go with that data.
    fn as_frozen(&self, op: u64, ino: Ino, inode: DupInode) -> DupInode {
        let size = self.cycle.as_ref().and_then(|cycle| cycle.size_of(ino));
        let size = size.filter(|_| self.promised.is_settled(ino, op)).unwrap_or(inode.size);
        DupInode { size, ..inode }
    }

    /// A file whose contents are as they were at `version`, with nothing dirty or on its way.
    pub(super) fn is_unchanged(&self, ino: Ino, version: u64) -> bool {
        let node = self.nodes.get(ino);
        let moving = self.cycle.as_ref().is_some_and(|cycle| cycle.has_frames(ino));
        let as_it_was =
            |node: &Node| node.version() == version && node.frames().is_empty() && !node.is_orphan();
        node.is_some_and(as_it_was) && !moving
    }

    /// In recovery: the SSD's copies of what this cycle brings to the disk, and the SSD does not have, are old.
    fn touch_frozen(&mut self, op: u64) {
        let is_over_copies = self.is_over_copies();
        let Core { cycle: Some(cycle), aftermath, .. } = self else { return };
        if is_over_copies {
            aftermath.copied(cycle.bytes(), cycle.stretches(|_| true));
        }
        for (ino, (first, count)) in cycle.unplaced() {
            aftermath.touch(Touched { ino, frames: first..first + count, before: op + 1 });
        }
    }
}
