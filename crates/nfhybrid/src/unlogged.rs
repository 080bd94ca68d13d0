//! What of a file's data in memory the SSD's log lacks, and what its sections lack.
//!
//! A frame is *logged* when the log holds it, *placed* when a section does; changing it undoes both. A frame that was
//! frozen by the commit cycle under way counts as long as nothing newer stands over it.
//!
//! Cost: a walk of the file's frames that were touched since they were last logged.

use super::core::Core;
use super::frames::{FRAME, Known};
use super::frozen::Cycle;
use super::node::Node;
use bimetal_base::units::Ino;
use bytes::Bytes;
use std::ops::Range;

/// What the headers of a few records and groups take at most.
const RECORDS_BYTES: u64 = 4 << 10;

/// What a file's size and times take in the log, with their share of its headers, at most.
const CONTENTS_BYTES: u64 = 96;

/// Bytes that the log takes for so many files with so many bytes of data, at most.
pub(super) fn bytes_in_log(files: usize, data: usize) -> u64 {
    files as u64 * CONTENTS_BYTES + (data + data / 64) as u64
}

/// Frames of a file that an fsync still has to log: dirty ones, and frozen ones the SSD does not have.
pub(super) fn unlogged_frames(core: &mut Core, ino: Ino) -> Vec<(u64, Bytes)> {
    let ranges = touched(core, ino);
    frames_where(core, ino, ranges, |known| !known.placed && !known.logged)
}

pub(super) fn unplaced_frames(core: &mut Core, ino: Ino) -> Vec<(u64, Bytes)> {
    frames_where(core, ino, EVERYWHERE, |known| !known.placed)
}

/// Where to look among a file's dirty frames, and among its frozen ones.
type Ranges = (Range<u64>, Range<u64>);

const EVERYWHERE: Ranges = (0..u64::MAX, 0..u64::MAX);

/// Where the frames lie that the log may lack.
fn touched(core: &Core, ino: Ino) -> Ranges {
    let dirty = core.nodes.get(ino).map_or(0..0, Node::touched);
    let frozen = core.cycle.as_ref().map_or(0..0, |cycle| cycle.touched(ino));
    (dirty, frozen)
}

fn frames_where(
    core: &mut Core,
    ino: Ino,
    (dirty, frozen): Ranges,
    wanted: impl Fn(Known) -> bool,
) -> Vec<(u64, Bytes)> {
    let mut found = Vec::new();
    if let Some(node) = core.nodes.get_mut(ino) {
        found.extend(node.share_where(dirty, &wanted));
    }
    let before = found.len();
    let frozen = frozen_where(core, ino, frozen, wanted);
    found.extend(frozen.map(|(index, bytes)| (index, bytes.clone())));
    if before != found.len() {
        found.sort_by_key(|&(index, _)| index);
    }
    found
}

/// Frozen frames that nothing newer covers.
fn frozen_where(
    core: &Core,
    ino: Ino,
    range: Range<u64>,
    wanted: impl Fn(Known) -> bool,
) -> impl Iterator<Item = (u64, &Bytes)> {
    let node = core.nodes.get(ino);
    let frames = core.cycle.as_ref().into_iter().flat_map(move |cycle| cycle.frames_of(ino, range.clone()));
    let frames = frames.filter(move |(_, frame)| wanted(frame.known()));
    let frames = frames.filter(move |(index, _)| !node.is_some_and(|node| node.frames().contains_key(index)));
    frames.map(|(index, frame)| (index, frame.bytes()))
}

impl Core {
    /// Whether the log takes the operations it lacks, and `more` bytes (see [`bytes_in_log`]), within so many sixteenths.
    pub(super) fn has_room(&self, more: u64, sixteenths: u64) -> bool {
        let Some(ssd) = &self.ssd else { return false };
        let records = self.ops.records().unlogged_bytes() as u64;
        !ssd.is_filled(records + more + RECORDS_BYTES, sixteenths)
    }

    /// The log has all of an inode's dirty data.
    pub(super) fn all_logged(&mut self, ino: Ino) {
        self.promised.promise(ino, self.ops.last());
        if let Some(node) = self.nodes.get_mut(ino) {
            node.all_logged();
        }
        if let Some(cycle) = &mut self.cycle {
            cycle.all_logged(ino);
        }
    }

    /// Appends the mark that everything so far is in the log, as far as it was promised.
    pub(super) fn append_complete(&mut self) {
        if let Some(ssd) = &mut self.ssd {
            ssd.append_complete(self.ops.last());
        }
    }

    /// The data of this inode, and its size, go into the log with the next operations: a file that takes the place of
    /// another, or of its own old contents, is found after a crash as the old or the new one.
    pub(super) fn carry(&mut self, ino: Ino) {
        if self.ssd.is_some() {
            self.promised.carry(ino);
        }
    }

    /// The inodes whose data, or at least size, is to go along, `but` one. They stay on the list until [`Core::carried_along`].
    pub(super) fn carried(&self, but: Ino) -> Vec<Ino> {
        let frozen = self.cycle.iter().flat_map(Cycle::carried);
        let mut carried: Vec<Ino> = self.promised.carried().iter().chain(frozen).copied().collect();
        carried.sort_unstable();
        carried.dedup();
        carried.retain(|&ino| ino != but);
        carried
    }

    /// What was appended has the data of all inodes that were to go along.
    pub(super) fn carried_along(&mut self) {
        self.promised.take_carried();
        if let Some(cycle) = &mut self.cycle {
            cycle.carried_along();
        }
    }
}

pub(super) fn unlogged_bytes(core: &Core, ino: Ino) -> usize {
    bytes_where(core, ino, touched(core, ino), |known| !known.placed && !known.logged)
}

pub(super) fn unplaced_bytes(core: &Core, ino: Ino) -> usize {
    bytes_where(core, ino, EVERYWHERE, |known| !known.placed)
}

fn bytes_where(
    core: &Core,
    ino: Ino,
    (dirty, frozen): Ranges,
    wanted: impl Fn(Known) -> bool + Copy,
) -> usize {
    let dirty = core
        .nodes
        .get(ino)
        .map_or(0, |node| node.frames().range(dirty).filter(|(_, frame)| wanted(frame.known())).count());
    (dirty + frozen_where(core, ino, frozen, wanted).count()) * FRAME
}

/// Sets what is known of frames, dirty and frozen.
pub(super) fn mark(core: &mut Core, ino: Ino, frames: Range<u64>, set: impl Fn(&mut Known)) {
    if let Some(node) = core.nodes.get_mut(ino) {
        node.note(frames.clone(), &set);
    }
    if let Some(cycle) = &mut core.cycle {
        cycle.note(ino, frames, &set);
    }
}
