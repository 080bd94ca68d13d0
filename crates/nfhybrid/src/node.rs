//! An inode in use: the kernel knows it, or it has dirty data.
//!
//! Two things in one place, as both live as long as the inode is in use. What it is called by: references, the directory it
//! was reached through, what it inherits. And its contents in memory: dirty frames, and what is accounted for them.
//!
//! Invariants of the contents:
//! - the disk blocks promised to the file are those promised to its frames, one by one;
//! - dirty frames stand in [`super::dirty::Dirty`]'s list, once; the list may hold a file that has none any more;
//! - whatever the log may lack of them lies in `touched`;
//! - the version rises with every change of the contents, and never repeats: a read in flight compares it;
//! - `moved` rises before blocks of the disk are taken from the file: a read in flight compares that, too;
//! - frames kept warm are as of this version, and not dirty.
//!
//! Cost: 200 bytes, and the frames.

use super::dirty::Needs;
use super::frames::{Blocks, Claimed, Frame, Frames, Frozen, Known};
use super::policy::Policy;
use bimetal_base::units::Ino;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Frames that a file keeps for changes of a part of them: two for each of a few at once.
const WARM_MAX: usize = 8;

/// An inode in use.
pub struct Node {
    lookups: u64,
    parent: Ino,
    orphan: bool,
    /// The policy and the turn of the rules it was worked out in.
    policy: Option<(u32, Policy)>,
    /// A directory's default ACL, once looked for.
    default_acl: Option<Option<Box<[u8]>>>,
    frames: Frames,
    reserved: u64,
    needs: Needs,
    touched: Range<u64>,
    stretch: Range<u64>,
    listed: bool,
    version: u64,
    moved: u64,
    warm: Vec<(u64, Bytes)>,
}

/// A file's dirty data, taken for a commit cycle.
pub struct Taken {
    /// The frames.
    pub frames: BTreeMap<u64, Frozen>,
    /// Disk blocks promised to them.
    pub reserved: u64,
    /// Where the frames lie that the log may lack.
    pub touched: Range<u64>,
}

/// What dirty frames that were dropped, or parts of them, do not need any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Disk blocks promised to them.
    pub reserved: u64,
    /// Their blocks of live data.
    pub live: u64,
    /// Their blocks that were to get places.
    pub placing: u64,
}

impl Dropped {
    fn of(dropped: impl IntoIterator<Item = Claimed>) -> Dropped {
        dropped.into_iter().fold(Dropped::default(), |sum, claimed| Dropped {
            reserved: sum.reserved + u64::from(claimed.reserved),
            live: sum.live + u64::from(claimed.live),
            placing: sum.placing + u64::from(claimed.placing),
        })
    }
}

impl Node {
    /// An inode reached through `parent` that nobody refers to yet; `version` is higher than any the inode had.
    pub(super) fn new(parent: Ino, version: u64) -> Node {
        Node {
            lookups: 0,
            parent,
            orphan: false,
            policy: None,
            default_acl: None,
            frames: Frames::new(),
            reserved: 0,
            needs: Needs::default(),
            touched: 0..0,
            stretch: 0..0,
            listed: false,
            version,
            moved: version,
            warm: Vec::new(),
        }
    }

    /// The kernel refers to it once more.
    pub fn refer(&mut self) {
        self.lookups += 1;
    }

    /// The kernel gives `count` references back; whether it was the last.
    pub fn forget(&mut self, count: u64) -> bool {
        self.lookups = self.lookups.saturating_sub(count);
        self.lookups == 0
    }

    /// Its last name is gone. Whether it goes on without one, as somebody refers to it.
    pub fn lose_name(&mut self) -> bool {
        self.orphan |= self.lookups > 0;
        self.lookups > 0
    }

    /// It has no name left, and is freed with the last reference.
    pub fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// Nobody needs it.
    pub fn is_idle(&self) -> bool {
        self.lookups == 0 && self.frames.is_empty() && self.needs.nodes == 0 && !self.orphan
    }

    /// The directory it was last reached through; 0 if it is not known.
    pub fn parent(&self) -> Ino {
        self.parent
    }

    /// It is found in this directory now, and inherits from there.
    pub fn moved_to(&mut self, parent: Ino) {
        if self.parent != parent {
            self.parent = parent;
            self.policy = None;
        }
    }

    /// Its policy, if it was worked out in this turn of the rules.
    pub fn policy(&self, turn: u32) -> Option<Policy> {
        self.policy.filter(|(known, _)| *known == turn).map(|(_, policy)| policy)
    }

    /// Remembers what was worked out in a turn of the rules.
    pub fn set_policy(&mut self, turn: u32, policy: Policy) {
        self.policy = Some((turn, policy));
    }

    /// A directory's default ACL, if it was looked for.
    pub fn default_acl(&self) -> Option<&Option<Box<[u8]>>> {
        self.default_acl.as_ref()
    }

    /// Remembers a directory's default ACL, or forgets what is known of it.
    pub fn set_default_acl(&mut self, acl: Option<Option<Box<[u8]>>>) {
        self.default_acl = acl;
    }
}

impl Node {
    /// Its dirty frames.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The contents of a dirty frame, shared and not copied.
    pub fn share(&mut self, index: u64) -> Option<Bytes> {
        self.frames.get_mut(&index).map(Frame::share)
    }

    /// Those of its dirty frames in a range that `wanted` picks, shared and not copied.
    pub fn share_where(
        &mut self,
        range: Range<u64>,
        wanted: impl Fn(Known) -> bool,
    ) -> impl Iterator<Item = (u64, Bytes)> {
        let frames = self.frames.range_mut(range).filter(move |(_, frame)| wanted(frame.known()));
        frames.map(|(&index, frame)| (index, frame.share()))
    }

    /// Dirty frames in a range, to change what they hold; follows [`Node::changed`].
    pub fn frames_mut(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut Frame)> {
        self.frames.range_mut(range).map(|(&index, frame)| (index, frame))
    }

    /// Notes what is known of dirty frames in a range.
    pub fn note(&mut self, range: Range<u64>, set: impl Fn(&mut Known)) {
        self.frames.range_mut(range).for_each(|(_, frame)| frame.note(&set));
    }

    /// Disk blocks promised to its frames.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// What freezing its frames takes of the journal.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Sets what freezing its frames takes of the journal; what that was.
    pub(super) fn set_needs(&mut self, needs: Needs) -> Needs {
        std::mem::replace(&mut self.needs, needs)
    }

    /// Where the frames lie that the log may lack.
    pub fn touched(&self) -> Range<u64> {
        self.touched.clone()
    }

    /// Frames in this range are about to change.
    pub fn touch(&mut self, frames: &Range<u64>) {
        self.touched = match self.touched.is_empty() {
            true => frames.clone(),
            false => self.touched.start.min(frames.start)..self.touched.end.max(frames.end),
        };
    }

    /// The log has all of its dirty data.
    pub fn all_logged(&mut self) {
        self.touched = 0..0;
    }

    /// Rises whenever contents change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The contents change.
    pub fn changed(&mut self) {
        self.version += 1;
        self.warm.clear();
    }

    /// Rises whenever blocks of the disk may have been taken from the file.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Blocks of the disk may be taken from the file now.
    pub fn moves(&mut self) {
        self.moved += 1;
    }

    /// Blocks promised to frames that get all of their places within these blocks; so many are a frame.
    pub fn promised_in(&self, blocks: &Range<u64>, per_frame: u64) -> u64 {
        let frames = self.frames.range(blocks.start.div_ceil(per_frame)..blocks.end.div_ceil(per_frame));
        let within = frames.filter(|(index, frame)| frame.is_placed_by(*index * per_frame, blocks.end));
        within.map(|(_, frame)| u64::from(frame.reserved())).sum()
    }

    /// These blocks have their places now; how many of them were promised, and are no more.
    pub fn placed_in(&mut self, blocks: &Range<u64>, per_frame: u64) -> u64 {
        let frames = self.frames.range_mut(blocks.start.div_ceil(per_frame)..blocks.end.div_ceil(per_frame));
        let within = frames.filter(|(index, frame)| frame.is_placed_by(*index * per_frame, blocks.end));
        let placed = within.map(|(_, frame)| u64::from(frame.forgo())).sum();
        self.reserved -= placed;
        placed
    }

    /// Adds frames that were clean, with what was promised to each.
    pub fn add(&mut self, made: impl IntoIterator<Item = (u64, Frame)>) {
        let Node { frames, reserved, .. } = self;
        frames.extend(made.into_iter().inspect(|(_, frame)| *reserved += u64::from(frame.reserved())));
    }

    /// Data comes to more blocks of dirty frames: of each its number, which of its blocks are to be placed now, and what else of
    /// them is more than it was.
    pub fn cover(&mut self, reaching: impl IntoIterator<Item = (u64, Claimed)>) {
        for (index, more) in reaching {
            if let Some(frame) = self.frames.get_mut(&index) {
                frame.cover(more);
                self.reserved += u64::from(more.reserved);
            }
        }
    }

    /// The file ends in this frame now, of whose blocks these are left; so many that are to be placed have no place, and so many
    /// hold live data.
    pub fn end_at(&mut self, index: u64, kept: Blocks, holes: u32, data: u32) -> Dropped {
        let Some(frame) = self.frames.get_mut(&index) else { return Dropped::default() };
        let dropped = Dropped::of([frame.end_at(kept, holes, data)]);
        self.reserved -= dropped.reserved;
        dropped
    }

    /// It is to stand in the list of dirty files; whether it did not.
    pub(super) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Takes all its dirty data, and it off the list.
    pub fn take(&mut self) -> Option<Taken> {
        self.listed = false;
        self.moves();
        let frames = std::mem::take(&mut self.frames);
        if frames.is_empty() {
            return None;
        }
        let promised: u64 = frames.values().map(|frame| u64::from(frame.reserved())).sum();
        debug_assert_eq!(promised, self.reserved, "what is promised to a file is promised to its frames");
        Some(Taken {
            frames: frames.into_iter().map(|(index, frame)| (index, frame.freeze())).collect(),
            reserved: std::mem::take(&mut self.reserved),
            touched: std::mem::take(&mut self.touched),
        })
    }

    /// Drops the dirty frames of a range: cut off, punched or freed.
    pub fn cut(&mut self, range: &Range<u64>) -> Dropped {
        self.changed();
        self.moves();
        let mut dropped = self.frames.split_off(&range.start);
        if range.end < u64::MAX {
            self.frames.append(&mut dropped.split_off(&range.end));
        }
        let dropped = Dropped::of(dropped.values().map(Frame::claimed));
        self.reserved -= dropped.reserved;
        dropped
    }

    /// Notes that a range was written. What of it belongs to a stretch of at least `long` frames that were written one
    /// after the other; a write may begin up to `swapped` frames before the end of the stretch it goes on.
    pub fn goes_on(&mut self, written: Range<u64>, long: u64, swapped: u64) -> Option<Range<u64>> {
        let is_long = |frames: &Range<u64>| frames.end - frames.start >= long;
        let stretch = &mut self.stretch;
        // Threads of one writer may swap; a write elsewhere in the stretch is not the writer's next one.
        let near = stretch.end.saturating_sub(swapped).max(stretch.start)..=stretch.end;
        let goes_on = near.contains(&written.start);
        let was_long = goes_on && is_long(stretch);
        let begin = if goes_on { stretch.clone() } else { written.clone() };
        *stretch = begin.start..begin.end.max(written.end);
        is_long(stretch).then(|| if was_long { written } else { stretch.clone() })
    }

    /// Blocks of live data that dirty frames of a range hold.
    pub fn live_in(&self, range: Range<u64>) -> u64 {
        self.frames.range(range).map(|(_, frame)| u64::from(frame.live())).sum()
    }

    /// The live data in a range gets new places, which were promised.
    pub fn promise_to_move(&mut self, range: Range<u64>) {
        for frame in self.frames.range_mut(range).map(|(_, frame)| frame) {
            self.reserved += u64::from(frame.live());
            frame.promise_to_move();
        }
    }

    /// Keeps a frame that is as it is on a device.
    pub fn keep_warm(&mut self, index: u64, bytes: Bytes) {
        if self.warm.len() >= WARM_MAX {
            self.warm.remove(0);
        }
        self.warm.push((index, bytes));
    }

    /// A frame that was read for a change of a part of it.
    pub fn warm_frame(&self, index: u64) -> Option<&Bytes> {
        self.warm.iter().find(|(at, _)| *at == index).map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::Pool;
    use super::*;

    const BLOCKS: Claimed = Claimed { covers: 0b1111, reserved: 1, live: 3, placing: 1 };

    fn with_frames(frames: Range<u64>) -> Node {
        let pool = Pool::new(4, 0);
        let mut node = Node::new(Ino(2), 7 << 32);
        node.touch(&frames);
        let of = |index| (index, Frame::zeroed(&pool).with_blocks(BLOCKS));
        node.add(frames.map(of));
        node
    }

    #[test]
    fn what_is_promised_goes_with_the_frames() {
        let mut node = with_frames(0..10);
        assert_eq!((node.reserved(), node.live_in(2..4)), (10, 6));
        node.promise_to_move(2..4);
        assert_eq!((node.reserved(), node.live_in(0..10)), (16, 24));
        assert_eq!(node.cut(&(3..8)), Dropped { reserved: 8, live: 12, placing: 8 });
        assert_eq!(
            node.end_at(2, 0b111, 1, 1),
            Dropped { reserved: 2, live: 0, placing: 1 },
            "one that moves"
        );
        assert_eq!(node.end_at(1, 0b11, 0, 2), Dropped { reserved: 1, live: 1, placing: 1 });
        assert_eq!(node.end_at(1, 0b111, 0, 2), Dropped::default(), "it ends before that");
        let taken = node.take().unwrap();
        assert_eq!((taken.frames.len(), taken.reserved, taken.touched), (5, 5, 0..10));
        assert!(node.reserved() == 0 && node.take().is_none());
    }

    #[test]
    fn a_reader_sees_that_contents_changed_or_moved() {
        let mut node = with_frames(0..2);
        let (version, moved) = (node.version(), node.moved());
        node.keep_warm(5, Bytes::from_static(b"warm"));
        assert!(node.warm_frame(5).is_some());
        node.changed();
        assert!(node.version() > version && node.moved() == moved && node.warm_frame(5).is_none());
        node.take();
        assert!(node.moved() > moved);
    }

    #[test]
    fn it_stays_for_references_dirty_data_and_the_last_reference_to_no_name() {
        let mut node = with_frames(0..1);
        assert!(!node.is_idle());
        node.take();
        assert!(node.is_idle() && !node.lose_name());
        node.refer();
        assert!(!node.is_idle() && node.lose_name() && node.is_orphan());
        assert!(node.forget(1) && !node.is_idle());
    }

    #[test]
    fn a_stretch_is_what_is_written_one_after_the_other() {
        let mut node = with_frames(0..0);
        assert_eq!(node.goes_on(0..6, 10, 2), None);
        assert_eq!(node.goes_on(6..12, 10, 2), Some(0..12), "all of it, once it is long");
        assert_eq!(node.goes_on(12..13, 10, 2), Some(12..13));
        assert_eq!(node.goes_on(11..12, 10, 2), Some(11..12), "two threads that swapped");
        assert_eq!(node.goes_on(3..4, 10, 2), None, "elsewhere");
        assert_eq!(node.goes_on(4..5, 10, 2), None);
    }
}
