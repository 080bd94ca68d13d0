//! Reading: from memory, else from the SSD if it has a finished copy, else from the disk and up to the SSD.
//!
//! A plan is made under the lock, the devices are read without it, and the answer is taken only if nothing
//! that was planned from can have been reused meanwhile ([`Plan::holds`]); else it is planned again. The lock is held while
//! a device is read only after [`ATTEMPTS`] of these, which `reads_locked` counts.

use super::Shared;
use super::admission::{DiskRead, PATH};
use super::core::Core;
use super::fetch::Trouble;
use super::frames::FRAME;
use super::node::Node;
use super::partial::has_data;
use super::plan::{Piece, Plan, Source, is_in_memory};
use super::write::frame_of;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::Mapping;
use bimetal_vfs::{Deferred, Kind, Seek};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;

/// Attempts without the lock before a read is done under it. Each fails only if a commit cycle, a truncation or a move on
/// the SSD took away just what it read.
pub(super) const ATTEMPTS: u32 = 10;

/// Stretches of a file's map that are looked at in one hold of the lock.
pub(super) const STRETCHES_MAX: u32 = 64;

impl Shared {
    /// See [`bimetal_vfs::FileSystem::read`].
    pub(super) fn read(
        self: &Arc<Shared>,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Deferred<Vec<Bytes>>> {
        let Some((mut core, begun)) = self.glance(|core| self.begin_read(core, ino, offset, len))? else {
            let shared = self.clone();
            return Ok(Deferred::Wait(Box::new(move || {
                let (mut core, begun) = shared.look(|core| shared.begin_read(core, ino, offset, len))?;
                shared.wake_if_due(&mut core);
                drop(core);
                begun.map_or(Ok(Vec::new()), |(plan, end)| shared.read_planned(plan, offset, end))
            })));
        };
        self.wake_if_due(&mut core);
        drop(core);
        let Some((plan, end)) = begun else { return Ok(Deferred::Now(Vec::new())) };
        if plan.is_from_disk() {
            let shared = self.clone();
            return Ok(Deferred::Wait(Box::new(move || shared.read_planned(plan, offset, end))));
        }
        self.read_planned(plan, offset, end).map(Deferred::Now)
    }

    /// Plans a read and notes the access, in this order: what is missing shows before anything changes. Nothing past
    /// the end of the file; else the plan, and where the read ends.
    fn begin_read(&self, core: &mut Core, ino: Ino, offset: u64, len: usize) -> Result<Option<(Plan, u64)>> {
        core.state.check_readable()?;
        let size = core.inode_of_file(ino)?.size;
        let end = size.min(offset.saturating_add(len as u64));
        let plan = if offset < end { Some((self.plan(core, ino, offset, end)?, end)) } else { None };
        self.note_access(core, ino)?;
        Ok(plan)
    }

    fn read_planned(&self, mut plan: Plan, offset: u64, mut end: u64) -> Result<Vec<Bytes>> {
        for _ in 0..ATTEMPTS {
            let fetched = self.fetch(&mut plan);
            let mut core = self.core.lock();
            let holds = plan.holds(&core, self.ssd_blocks_per_frame);
            match fetched {
                Ok(parts) if holds => {
                    plan.count(&mut core);
                    if plan.reuse == core.reuse() {
                        core.ssd.iter_mut().for_each(|ssd| plan.learn(ssd));
                    }
                    if plan.section.is_some() && plan.is_from_disk() {
                        self.offer(&mut core, &plan, &parts);
                    }
                    return Ok(cut(&plan, parts, offset, end));
                }
                Ok(_) => {}
                // A sum that was read, too, may be of what lies there now, or no more: nothing is dropped for that.
                Err(Trouble::Ssd(piece, error)) if plan.reuse == core.reuse() => {
                    self.distrust(&mut core, &plan, piece, error)?;
                }
                Err(Trouble::Disk(error)) if holds => return Err(error),
                // Another file may have the blocks by now.
                Err(Trouble::Ssd(..) | Trouble::Disk(_)) => {}
            }
            end = end.min(core.inode_of_file(plan.ino)?.size);
            if offset >= end {
                return Ok(Vec::new());
            }
            plan = self.plan(&mut core, plan.ino, offset, end)?;
        }
        let mut core = self.core.lock();
        end = end.min(core.inode_of_file(plan.ino)?.size);
        if offset >= end {
            return Ok(Vec::new());
        }
        core.counters.reads_locked += 1;
        loop {
            let mut plan = self.plan(&mut core, plan.ino, offset, end)?;
            match self.fetch(&mut plan) {
                Ok(parts) => {
                    plan.count(&mut core);
                    return Ok(cut(&plan, parts, offset, end));
                }
                // Each time less of the file is on the SSD.
                Err(Trouble::Ssd(piece, error)) => self.distrust(&mut core, &plan, piece, error)?,
                Err(Trouble::Disk(error)) => return Err(error),
            }
        }
    }

    /// Hands what came from the disk to the committer, to be copied to the SSD if it is worth it.
    fn offer(&self, core: &mut Core, plan: &Plan, parts: &[Bytes]) {
        let from_disk = |piece: &Piece| matches!(piece.source, Source::Disk { .. });
        let unchanged = core.nodes.get(plan.ino).map(Node::version) == Some(plan.version);
        let path = core.path_above(plan.ino);
        let file_frames = plan.size.div_ceil(FRAME as u64);
        for (piece, bytes) in plan.pieces.iter().zip(parts).filter(|(piece, _)| from_disk(piece)) {
            if !unchanged {
                core.promotions.too_late(bytes.len() as u64);
                continue;
            }
            let frames = piece.index..piece.index + (bytes.len() / FRAME) as u64;
            let read = DiskRead { ino: plan.ino, path, frames, file_frames };
            core.promotions.offer(&read, bytes, plan.version, self.clock.now());
        }
        if core.promotions.is_due() {
            self.work.notify_one();
        }
    }

    /// See [`bimetal_vfs::FileSystem::seek`].
    pub(super) fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let mut index = frame_of(offset);
        loop {
            let (_core, found) = self.look(|core| {
                core.look_at_data(ino)?;
                let size = core.inode_of_file(ino)?.size;
                if offset >= size {
                    return Err(Error::NoOffset);
                }
                for _ in 0..STRETCHES_MAX {
                    if index * FRAME as u64 >= size {
                        return if what == Seek::Hole { Ok(Some(size)) } else { Err(Error::NoOffset) };
                    }
                    let (data, frames) = self.stretch(core, ino, index, size)?;
                    if data == (what == Seek::Data) {
                        return Ok(Some(offset.max(index * FRAME as u64)));
                    }
                    index += frames;
                }
                Ok(None)
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Whether a frame holds data, and how many frames after it are known to be alike.
    pub(super) fn stretch(&self, core: &mut Core, ino: Ino, index: u64, size: u64) -> Result<(bool, u64)> {
        if is_in_memory(core, ino, index) {
            return Ok((true, 1));
        }
        let max = self.until_memory(core, ino, index, size.div_ceil(FRAME as u64) - index);
        let per_frame = self.blocks_per_frame;
        let mapping = core.ext4.map(ino, index * per_frame, u32::MAX)?;
        let frames = (mapping.blocks() / per_frame).clamp(1, max);
        let whole = mapping.blocks() >= per_frame;
        let data = matches!(mapping, Mapping::Data { .. }) || (!whole && has_data(self, core, ino, index)?);
        Ok((data, frames))
    }
}

/// Cuts whole frames down to the bytes asked for.
fn cut(plan: &Plan, parts: SmallVec<[Bytes; 4]>, offset: u64, end: u64) -> Vec<Bytes> {
    let mut answer = Vec::with_capacity(parts.len());
    for (piece, bytes) in plan.pieces.iter().zip(parts) {
        let start = piece.index * FRAME as u64;
        let from = offset.saturating_sub(start).min(bytes.len() as u64) as usize;
        let to = (end - start).min(bytes.len() as u64) as usize;
        answer.push(bytes.slice(from..to));
    }
    debug_assert!(end <= plan.size);
    answer
}

impl Core {
    /// The directories above a file, as far as they were walked through.
    fn path_above(&self, ino: Ino) -> [Ino; PATH] {
        let mut path = [Ino(0); PATH];
        let mut at = ino;
        for slot in &mut path {
            match self.nodes.get(at).map(Node::parent) {
                Some(parent) if parent != at => (*slot, at) = (parent, parent),
                _ => break,
            }
        }
        path
    }

    /// An inode that holds contents; an error for directories and the rest.
    pub(super) fn inode_of_file(&mut self, ino: Ino) -> Result<&bimetal_ext4::Inode> {
        let inode = self.ext4.inode(ino)?;
        if inode.kind() == Kind::Dir {
            return Err(Error::IsDir);
        }
        Ok(inode)
    }
}
