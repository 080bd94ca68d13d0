//! Frames that change in part, and so have to be read before. They are read with the lock given back, ahead of the change;
//! under it only if they changed or moved all the time, which `reads_locked` counts.

use super::Shared;
use super::core::Core;
use super::fetch::Trouble;
use super::frames::{FRAME, Frame};
use super::plan::{Plan, is_in_memory};
use super::read::ATTEMPTS;
use super::write::frame_of;
use bimetal_base::Result;
use bimetal_base::runtime::sync::MutexGuard;
use bimetal_base::units::Ino;
use bimetal_ext4::Mapping;
use smallvec::SmallVec;

impl Shared {
    /// Reads, with the lock given back, frames that are about to change in part and are not in memory. They stay with the
    /// node until its contents change; what could not be read so is read by the change itself.
    pub(super) fn warm(&self, core: &mut MutexGuard<'_, Core>, ino: Ino, frames: &[u64]) {
        for &index in frames {
            for _ in 0..ATTEMPTS {
                let Ok(Some(mut plan)) = self.cold_plan(core, ino, index) else { break };
                let fetched = MutexGuard::unlocked(core, || self.fetch(&mut plan));
                let holds = plan.holds(core, self.ssd_blocks_per_frame);
                let Some(node) = core.nodes.get_mut(ino).filter(|_| holds) else { continue };
                if node.version() == plan.version {
                    if let Ok(mut parts) = fetched {
                        node.keep_warm(index, parts.swap_remove(0));
                    }
                    break;
                }
            }
        }
    }

    /// How to read a frame from a device; nothing if that is not needed.
    fn cold_plan(&self, core: &mut Core, ino: Ino, index: u64) -> Result<Option<Plan>> {
        let start = index * FRAME as u64;
        let there = is_in_memory(core, ino, index)
            || core.nodes.get(ino).is_some_and(|node| node.warm_frame(index).is_some());
        if there || start >= core.inode_of_file(ino)?.size {
            return Ok(None);
        }
        Ok(Some(self.plan(core, ino, start, start + 1)?).filter(Plan::is_from_device))
    }

    /// Whether a change of parts of these frames has to read a device.
    pub(super) fn lacks_any(&self, core: &mut Core, ino: Ino, frames: &[u64]) -> bool {
        frames.iter().any(|&index| matches!(self.cold_plan(core, ino, index), Ok(Some(_))))
    }
}

/// Frames of which a byte range holds only a part: its first and its last.
pub(super) fn frames_in_part(start: u64, end: u64) -> SmallVec<[u64; 2]> {
    let mut frames = SmallVec::new();
    if !start.is_multiple_of(FRAME as u64) {
        frames.push(frame_of(start));
    }
    if !end.is_multiple_of(FRAME as u64) && !frames.contains(&frame_of(end)) {
        frames.push(frame_of(end));
    }
    frames
}

/// A frame's present contents as a dirty frame: from memory, SSD or disk; zeros past the end of the file.
pub(super) fn load_frame(shared: &Shared, core: &mut Core, ino: Ino, index: u64) -> Result<Frame> {
    let start = index * FRAME as u64;
    let size = core.ext4.inode(ino)?.size;
    if start >= size {
        return Ok(Frame::zeroed(&shared.pool));
    }
    let rest = |mut frame: Frame| {
        if size - start < FRAME as u64 {
            frame.bytes_mut()[(size - start) as usize..].fill(0);
        }
        frame
    };
    if let Some(bytes) = core.nodes.get(ino).and_then(|node| node.warm_frame(index)) {
        return Ok(rest(Frame::copy_of(&shared.pool, bytes)));
    }
    let mut plan = shared.plan(core, ino, start, start + 1)?;
    core.counters.reads_locked += u64::from(plan.is_from_device());
    let fetched = match shared.fetch(&mut plan) {
        Err(Trouble::Ssd(piece, error)) => {
            shared.distrust(core, &plan, piece, error)?;
            plan = shared.plan(core, ino, start, start + 1)?;
            shared.fetch(&mut plan)
        }
        other => other,
    };
    let parts = fetched.map_err(|trouble| match trouble {
        Trouble::Ssd(_, error) | Trouble::Disk(error) => error,
    })?;
    Ok(rest(Frame::copy_of(&shared.pool, &parts[0][..FRAME])))
}

/// Whether any block of a frame holds data, in memory or on the disk.
pub(super) fn has_data(shared: &Shared, core: &mut Core, ino: Ino, index: u64) -> Result<bool> {
    if is_in_memory(core, ino, index) {
        return Ok(true);
    }
    for block in index * shared.blocks_per_frame..(index + 1) * shared.blocks_per_frame {
        if matches!(core.ext4.map(ino, block, 1)?, Mapping::Data { .. }) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_part_are_the_first_and_the_last_where_they_are_not_whole() {
        let in_part = |start, end| frames_in_part(start, end).to_vec();
        assert_eq!((in_part(0, 8192), in_part(1, 8192), in_part(0, 8193)), (vec![], vec![0], vec![2]));
        assert_eq!((in_part(5, 9), in_part(4095, 8200)), (vec![0], vec![0, 2]));
    }
}
