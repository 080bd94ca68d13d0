//! What a commit cycle has frozen, while it is on its way: no contents change, only what is known of them.
//!
//! Invariants. A file's frozen frames can be read until the cycle is over, but for those that are cut off meanwhile. What
//! the SSD had older contents of was settled at the freeze: whatever happens to the file since, those are stale once the
//! disk has this cycle.

use super::dirty::Began;
use super::frames::{Frozen, Known, runs};
use super::node::Taken;
use bimetal_base::time::Time;
use bimetal_base::units::Ino;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// Stretches of a file that are forgotten one by one.
const RUNS_MAX: usize = 64;

/// Frozen frames of a file, by number.
pub type FrozenFrames = BTreeMap<u64, Frozen>;

/// A commit cycle under way.
pub struct Cycle {
    frames: FxHashMap<Ino, FrozenFrames>,
    /// Stretches, as first frame and count.
    stale: BTreeMap<Ino, Vec<(u64, u64)>>,
    /// Of each file at the freeze, in bytes.
    sizes: FxHashMap<Ino, u64>,
    /// Where the frames lie that the log may lack.
    touched: FxHashMap<Ino, Range<u64>>,
    bytes: u64,
    since: Option<Time>,
    carried: Vec<Ino>,
    images: u64,
    /// Blocks promised to trees that stay so until it is done, see [`Core::tie_needs`](super::core::Core::tie_needs).
    tied_nodes: u64,
    began: Time,
}

impl Cycle {
    /// A cycle that begins at `now` and takes what was dirty, with the inodes whose data is to go into the log with
    /// the operations.
    pub fn new(Began { bytes, since, .. }: &Began, carried: Vec<Ino>, now: Time) -> Cycle {
        let (bytes, since) = (*bytes, *since);
        let (frames, stale, sizes, touched) = Default::default();
        Cycle { frames, stale, sizes, touched, bytes, since, carried, images: 0, tied_nodes: 0, began: now }
    }

    /// Keeps so many blocks promised to trees until it is done.
    pub fn tie_nodes(&mut self, blocks: u64) {
        self.tied_nodes += blocks;
    }

    /// Blocks that are promised to trees until it is done.
    pub fn tied_nodes(&self) -> u64 {
        self.tied_nodes
    }

    /// Takes the frames of a file of `size` bytes, and the stretches of which the SSD has older contents.
    pub fn take_in(&mut self, ino: Ino, size: u64, taken: Taken, stale: Vec<(u64, u64)>) {
        self.frames.insert(ino, taken.frames);
        self.sizes.insert(ino, size);
        self.touched.insert(ino, taken.touched);
        if !stale.is_empty() {
            self.stale.insert(ino, stale);
        }
    }

    /// How many bytes a file had at the freeze, if any of its frames are on their way.
    pub fn size_of(&self, ino: Ino) -> Option<u64> {
        self.sizes.get(&ino).copied()
    }

    /// Bytes that the disk does not have before this cycle ends.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the first operation in it was done.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// When it began.
    pub fn began(&self) -> Time {
        self.began
    }

    /// Images it puts into the journal, once that is known.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// It puts so many images into the journal.
    pub fn set_images(&mut self, images: u64) {
        self.images = images;
    }

    /// Inodes whose data must be in the log with the operations.
    pub fn carried(&self) -> &[Ino] {
        &self.carried
    }

    /// The log has their data.
    pub fn carried_along(&mut self) {
        self.carried.clear();
    }

    /// Where the frames of a file lie that the log may lack.
    pub fn touched(&self, ino: Ino) -> Range<u64> {
        self.touched.get(&ino).cloned().unwrap_or(0..0)
    }

    /// The log has all of a file's frames.
    pub fn all_logged(&mut self, ino: Ino) {
        self.touched.remove(&ino);
    }

    /// Frozen frames of a file.
    pub fn count_of(&self, ino: Ino) -> usize {
        self.frames.get(&ino).map_or(0, BTreeMap::len)
    }

    /// Whether a frame is on its way.
    pub fn holds(&self, ino: Ino, index: u64) -> bool {
        self.frames.get(&ino).is_some_and(|frames| frames.contains_key(&index))
    }

    /// The contents of a frozen frame.
    pub fn frame(&self, ino: Ino, index: u64) -> Option<Bytes> {
        Some(self.frames.get(&ino)?.get(&index)?.bytes().clone())
    }

    /// Whether a frame is on its way and in no data section of the SSD.
    pub fn is_unplaced(&self, ino: Ino, index: u64) -> bool {
        let frame = self.frames.get(&ino).and_then(|frames| frames.get(&index));
        frame.is_some_and(|frame| !frame.known().placed)
    }

    /// The first frozen frame at or after `index`.
    pub fn next_frame(&self, ino: Ino, index: u64) -> Option<u64> {
        self.frames.get(&ino)?.range(index..).next().map(|(&found, _)| found)
    }

    /// Whether anything of a file is on its way.
    pub fn has_frames(&self, ino: Ino) -> bool {
        self.frames.contains_key(&ino)
    }

    /// Frozen frames of a file in a range.
    pub fn frames_of(&self, ino: Ino, range: Range<u64>) -> impl Iterator<Item = (u64, &Frozen)> {
        let frames = self.frames.get(&ino).into_iter().flat_map(move |frames| frames.range(range.clone()));
        frames.map(|(&index, frame)| (index, frame))
    }

    fn frames_of_mut(&mut self, ino: Ino, frames: Range<u64>) -> impl Iterator<Item = &mut Frozen> {
        self.frames.get_mut(&ino).into_iter().flat_map(move |of| of.range_mut(frames.clone())).map(|(_, f)| f)
    }

    /// Notes what is known of frames in a range.
    pub fn note(&mut self, ino: Ino, frames: Range<u64>, set: impl Fn(&mut Known)) {
        self.frames_of_mut(ino, frames).for_each(|frame| frame.note(&set));
    }

    /// This cycle put frames into a data section, and bound them there.
    pub fn bind(&mut self, ino: Ino, frames: Range<u64>) {
        self.frames_of_mut(ino, frames).for_each(Frozen::bind);
    }

    /// Frames that were cut off, punched or freed meanwhile: the media may get them, nobody reads them.
    pub fn forget(&mut self, ino: Ino, range: Range<u64>) {
        if let Some(frames) = self.frames.get_mut(&ino) {
            let mut cut = frames.split_off(&range.start);
            let mut rest = cut.split_off(&range.end);
            frames.append(&mut rest);
        }
    }

    /// Stretches of each file that no data section of the SSD has, as first frame and count.
    pub fn unplaced(&self) -> impl Iterator<Item = (Ino, (u64, u64))> {
        self.stretches(|known| !known.placed)
    }

    /// Stretches of each file of which this is known, as first frame and count.
    pub fn stretches(&self, is: impl Fn(Known) -> bool + Copy) -> impl Iterator<Item = (Ino, (u64, u64))> {
        self.frames.iter().flat_map(move |(&ino, frames)| {
            let found = frames.iter().filter(move |(_, frame)| is(frame.known())).map(|(&index, _)| index);
            runs(found).map(move |run| (ino, run))
        })
    }

    /// All copies on the SSD were forgotten but those that `is_there` still finds.
    pub fn copies_were_forgotten(&mut self, is_there: impl Fn(Ino, u64) -> bool) {
        for (&ino, frames) in &mut self.frames {
            for (index, frame) in frames.iter_mut().filter(|(_, frame)| frame.known().placed) {
                frame.note(|known| known.placed = is_there(ino, *index));
            }
        }
    }

    /// Takes the stretches of which the SSD had older contents at the freeze, by file.
    pub fn take_stale(&mut self) -> BTreeMap<Ino, Vec<(u64, u64)>> {
        std::mem::take(&mut self.stale)
    }

    /// Stretches of a file whose copies on the SSD go, without what this cycle bound anew: many of them are joined, if
    /// nothing of the file that is promised lies between (`settled`).
    pub fn stretches_to_forget(&mut self, ino: Ino, stale: &[(u64, u64)], settled: bool) -> Vec<(u64, u64)> {
        let frames = self.frames.get_mut(&ino);
        let is_bound =
            |index: &u64| frames.as_ref().and_then(|of| of.get(index)).is_some_and(Frozen::is_bound);
        let left =
            stale.iter().flat_map(|&(first, count)| first..first + count).filter(|index| !is_bound(index));
        let left: Vec<(u64, u64)> = runs(left).collect();
        match (left.first(), left.last()) {
            (Some(first), Some(last)) if settled && left.len() > RUNS_MAX => {
                // What lies between loses its copy, too, once the disk has it; until then the log must not take this
                // cycle's copies for promised ones.
                let all = first.0..last.0 + last.1;
                let between = frames.into_iter().flat_map(|of| of.range_mut(all.clone()));
                between.for_each(|(_, frame)| frame.note(|known| known.placed = false));
                vec![(all.start, all.end - all.start)]
            }
            _ => left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dirty::Dirty;
    use super::super::frames::{Frame, Pool};
    use super::*;

    const FILE: Ino = Ino(11);

    fn with_frames(count: u64) -> Cycle {
        let pool = Pool::new(4, 0);
        let mut cycle = Cycle::new(&Dirty::default().take(), Vec::new(), Time::ZERO);
        let frames = (0..count).map(|index| (index, Frame::zeroed(&pool).freeze())).collect();
        cycle.take_in(FILE, count * 4096, Taken { frames, reserved: 0, touched: 0..count }, Vec::new());
        cycle
    }

    #[test]
    fn what_is_cut_off_is_not_read_any_more() {
        let mut cycle = with_frames(10);
        cycle.forget(FILE, 3..5);
        assert_eq!((cycle.count_of(FILE), cycle.next_frame(FILE, 3)), (8, Some(5)));
        assert!(cycle.frame(FILE, 4).is_none() && cycle.holds(FILE, 2));
    }

    #[test]
    fn what_the_cycle_bound_is_not_forgotten_and_many_stretches_are_joined() {
        let mut cycle = with_frames(200);
        cycle.bind(FILE, 4..6);
        assert_eq!(cycle.stretches_to_forget(FILE, &[(0, 8)], true), [(0, 4), (6, 2)]);
        (0..200).step_by(2).for_each(|index| cycle.bind(FILE, index..index + 1));
        let each = cycle.stretches_to_forget(FILE, &[(0, 200)], false);
        assert!(each.len() > RUNS_MAX && !cycle.is_unplaced(FILE, 100));
        assert_eq!(cycle.stretches_to_forget(FILE, &[(0, 200)], true), [(1, 199)]);
        assert!(cycle.is_unplaced(FILE, 100), "it lies between, and loses its copy");
    }
}
