//! Room on the SSD, made before it is needed: for what a commit cycle, a large fsync or reads from the disk are
//! about to put there.
//!
//! Evicting moves no data (the SSD forgets what it had, the disk has it), but what is forgotten may be used again
//! only when the log says so durably. So room is made by one write of the log, ahead of those who need it, and
//! only where it lacks. What was not used for the longest time goes; what has dirty or moving data stays.

use super::Shared;
use super::core::Core;
use super::frames::FRAME;
use crate::ssd::Ssd;
use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// What is about to be put on the SSD.
#[derive(Default)]
pub(super) struct Demand {
    /// Of each section, in thirds of extents.
    thirds: SmallVec<[u64; 4]>,
    /// Files that may be new there.
    inodes: u32,
}

impl Demand {
    /// Adds so many frames of a file. Short pieces share extents: three that take at most a quarter of one.
    pub fn add(&mut self, ssd: &Ssd, section: usize, frames: u64) {
        let blocks = frames * (FRAME as u64 / u64::from(ssd.block_bytes()));
        let extent = u64::from(ssd.extent_blocks(section));
        let thirds = if blocks * 4 <= extent { 1 } else { blocks.div_ceil(extent) * 3 };
        self.thirds.resize(ssd.sections(), 0);
        self.thirds[section] += thirds;
        self.inodes += 1;
    }

    /// Extents of a section that should be clean: never more than half of it, since what just came is worth as much.
    fn extents(&self, ssd: &Ssd, section: usize) -> u32 {
        let wanted = self.thirds.get(section).map_or(0, |thirds| thirds.div_ceil(3));
        wanted.min(u64::from(ssd.extents(section) / 2)) as u32
    }
}

impl Shared {
    /// Makes room for `demand` where it lacks, with one durable write of the log.
    ///
    /// # Errors
    /// As those of the SSD.
    pub(super) fn make_room_on_ssd(&self, demand: &Demand) -> Result<()> {
        let core = self.core.lock();
        let is_there = |ssd: &Ssd| {
            let has = |section| ssd.has_clean(section, demand.extents(ssd, section));
            (0..ssd.sections()).all(has) && ssd.has_slots(demand.inodes)
        };
        if core.state.is_mounting() || core.ssd.as_ref().is_none_or(is_there) {
            return Ok(());
        }
        drop(core);
        let gate = self.line.claim();
        self.make_room(&gate)?;
        let mut core = self.core.lock();
        self.evict(&mut core, demand);
        match self.write_log(core) {
            // The log is full: it goes with a later write.
            Err(Error::NoSpace(_)) => Ok(()),
            written => written,
        }
    }

    /// Evicts where a section runs short of clean extents, or the table of inodes of slots, for `demand` or at all.
    pub(super) fn evict(&self, core: &mut Core, demand: &Demand) {
        let Core { ssd: Some(ssd), nodes, cycle, .. } = core else { return };
        let moving = |ino| cycle.as_ref().is_some_and(|cycle| cycle.has_frames(ino));
        let busy = |ino| moving(ino) || nodes.get(ino).is_some_and(|node| !node.frames().is_empty());
        for section in 0..ssd.sections() {
            let room = demand.extents(ssd, section);
            ssd.evict(section, room, busy);
        }
        ssd.evict_for_slots(demand.inodes, busy);
    }
}

impl Core {
    /// What the next commit cycle will put on the SSD, if all of it finds room.
    pub(super) fn demand_of_dirty(&mut self) -> Demand {
        let mut demand = Demand::default();
        for at in 0..self.dirty.files().len() {
            let ino = self.dirty.files()[at];
            let section = self.policy(ino).section;
            let node = self.nodes.get(ino).filter(|node| !node.frames().is_empty());
            let (Some(section), Some(ssd), Some(node)) = (section, &self.ssd, node) else {
                continue;
            };
            demand.add(ssd, section, node.frames().len() as u64);
        }
        demand
    }

    /// What the promotions that wait will.
    pub(super) fn demand_of_promotions(&mut self) -> Demand {
        let mut demand = Demand::default();
        let waiting: Vec<_> = self.promotions.waiting().collect();
        for (ino, frames) in waiting {
            let section = self.policy(ino).section;
            if let (Some(section), Some(ssd)) = (section, &self.ssd) {
                demand.add(ssd, section, frames);
            }
        }
        demand
    }
}
