//! The in-memory extent table: which partly used extents wait for more files (Definition 3.6).
//!
//! The paper links an extent's descriptor to the entry of `segTab` or `subsegTab` where its largest hole
//! starts, each list in decreasing size of that hole; Algorithm 2 takes, among the extents whose largest
//! hole holds the file, the one that has waited longest. Here an entry is kept as one list for each size
//! the hole can have (a hole is a run of parts, so there are few), each in the order of waiting; then both
//! orders hold at once, inserting needs no walk, and choosing looks at the heads of the lists of fitting
//! sizes alone.
//!
//! An extent joins the table when a file takes part of a clean extent. It leaves when it is full, when it
//! is clean again, or when it has waited for the section's waiting time. It joins again, as a newcomer,
//! when something in it is freed, or when the section has no clean extent left and nothing that waits has
//! room (the paper leaves both open). Extents past their time are kept in lists of the same kind, so that
//! the second case need not search.
//!
//! Where Algorithm 2 is silent or wrong: line 2 must round up; a file that ends exactly at an extent's end
//! leaves no `hole[0]`; line 18's candidates do not include clean extents as long as a waiting one fits
//! (all of them have waited longer, and nothing would ever be packed); the extent chosen is taken out of its
//! entry before line 22; a full extent is not linked again.
//!
//! Cost: choosing O(log² s) at most (one comparison for each non-empty list of a fitting size); joining and
//! moving O(log n) for n extents in one list.

#[cfg(test)]
use super::segment::Part;
use super::segment::{Hole, Shape};
use bimetal_base::time::Time;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The lists of one kind of waiting: one for each (first part, last part) of a hole, by decreasing size.
#[derive(Debug)]
struct Lists {
    /// Extents with their turn, the one that has waited longest first.
    lists: Vec<BTreeSet<(u64, u32)>>,
    /// The first turn of each list; `u64::MAX` for an empty one.
    heads: Vec<u64>,
}

impl Lists {
    fn new(count: usize) -> Lists {
        Lists { lists: vec![BTreeSet::new(); count], heads: vec![u64::MAX; count] }
    }

    fn insert(&mut self, list: u16, turn: u64, extent: u32) {
        let list = usize::from(list);
        self.lists[list].insert((turn, extent));
        self.heads[list] = self.heads[list].min(turn);
    }

    fn remove(&mut self, list: u16, turn: u64, extent: u32) {
        let list = usize::from(list);
        self.lists[list].remove(&(turn, extent));
        self.heads[list] = self.lists[list].first().map_or(u64::MAX, |(turn, _)| *turn);
    }

    /// The extent with the first turn among the first `count` lists.
    fn first_of(&self, count: usize) -> Option<u32> {
        let (list, turn) = self.heads[..count].iter().enumerate().min_by_key(|(_, turn)| **turn)?;
        if *turn == u64::MAX { None } else { self.lists[list].first().map(|(_, extent)| *extent) }
    }
}

/// The descriptor of an extent in the table.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    list: u16,
    past: bool,
    turn: u64,
}

/// `segTab` and `subsegTab` of a section, the clean extents (`tb_0^c`) excepted.
#[derive(Debug)]
pub(super) struct Table {
    /// Rank of the list of (first part, last part), by decreasing hole size.
    rank: Vec<u16>,
    /// First part and hole size of each list, in rank order.
    kinds: Vec<(u32, u32)>,
    waiting: Lists,
    past: Lists,
    descriptors: FxHashMap<u32, Descriptor>,
    /// Waiting extents by turn, with the time they joined.
    joined: BTreeMap<u64, (u32, Time)>,
    next_turn: u64,
    wait: Duration,
    shape: Shape,
}

impl Table {
    pub(super) fn new(shape: Shape, wait: Duration) -> Table {
        let parts = shape.parts();
        let mut kinds: Vec<(u32, u32, u32)> = (0..parts)
            .flat_map(|first| (first..parts).map(move |last| (first, last)))
            .map(|(first, last)| (shape.start(last + 1) - shape.start(first), first, last))
            .collect();
        kinds.sort_by_key(|&(size, first, _)| (u32::MAX - size, first));
        let mut rank = vec![0; (parts * parts) as usize];
        for (at, &(_, first, last)) in kinds.iter().enumerate() {
            rank[(first * parts + last) as usize] = at as u16;
        }
        Table {
            rank,
            waiting: Lists::new(kinds.len()),
            past: Lists::new(kinds.len()),
            kinds: kinds.iter().map(|&(size, first, _)| (first, size)).collect(),
            descriptors: FxHashMap::default(),
            joined: BTreeMap::new(),
            next_turn: 0,
            wait,
            shape,
        }
    }

    /// Bytes on the heap, as far as they grow with the extents in the table: a descriptor and an entry of a list for
    /// each, and one of the order of joining for those that wait. Trees are reckoned two thirds full.
    pub(super) fn heap_bytes(&self) -> usize {
        let descriptor = size_of::<(u32, Descriptor)>() + 1;
        let entry = size_of::<(u64, u32)>() * 3 / 2;
        let joined = size_of::<(u64, (u32, Time))>() * 3 / 2;
        self.descriptors.capacity() * descriptor + self.descriptors.len() * entry + self.joined.len() * joined
    }

    /// Lists whose holes have at least `blocks` blocks: they are the first so many.
    fn fitting(&self, blocks: u32) -> usize {
        self.kinds.partition_point(|&(_, size)| size >= blocks)
    }

    /// The waiting extent with room for `blocks` that has waited longest.
    pub(super) fn choose(&self, blocks: u32) -> Option<u32> {
        self.waiting.first_of(self.fitting(blocks))
    }

    /// An extent past its waiting time with room for `blocks`.
    pub(super) fn choose_past(&self, blocks: u32) -> Option<u32> {
        self.past.first_of(self.fitting(blocks))
    }

    /// Joins the table as a newcomer, or begins a new wait.
    pub(super) fn join(&mut self, extent: u32, hole: Hole, now: Time) {
        self.leave(extent);
        let turn = self.next_turn;
        self.next_turn += 1;
        let list = self.list_of(hole);
        self.waiting.insert(list, turn, extent);
        self.joined.insert(turn, (extent, now));
        self.descriptors.insert(extent, Descriptor { list, past: false, turn });
    }

    /// The largest hole of a waiting extent changed: it moves to another entry and keeps its turn. Without
    /// a hole it leaves. Nothing happens to an extent that does not wait.
    pub(super) fn moved(&mut self, extent: u32, hole: Option<Hole>) {
        let Some(hole) = hole else { return self.leave(extent) };
        let list = self.list_of(hole);
        let Some(found) = self.descriptors.get_mut(&extent) else { return };
        let lists = if found.past { &mut self.past } else { &mut self.waiting };
        if found.list != list {
            lists.remove(found.list, found.turn, extent);
            lists.insert(list, found.turn, extent);
            found.list = list;
        }
    }

    /// Takes an extent out of the table.
    pub(super) fn leave(&mut self, extent: u32) {
        let Some(found) = self.descriptors.remove(&extent) else { return };
        if found.past {
            self.past.remove(found.list, found.turn, extent);
        } else {
            self.waiting.remove(found.list, found.turn, extent);
            self.joined.remove(&found.turn);
        }
    }

    /// Sets aside an extent that is not in the table as one that is past its time (found so at mount).
    pub(super) fn set_aside(&mut self, extent: u32, hole: Hole) {
        let turn = self.next_turn;
        self.next_turn += 1;
        let list = self.list_of(hole);
        self.past.insert(list, turn, extent);
        self.descriptors.insert(extent, Descriptor { list, past: true, turn });
    }

    /// Ends the wait of every extent that joined at least the waiting time ago.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(first) = self.joined.first_entry() {
            let (extent, since) = *first.get();
            if now.since(since) < self.wait {
                return;
            }
            let turn = *first.key();
            first.remove();
            if let Some(found) = self.descriptors.get_mut(&extent) {
                found.past = true;
                self.waiting.remove(found.list, turn, extent);
                self.past.insert(found.list, turn, extent);
            }
        }
    }

    /// Whether the extent waits for files.
    pub(super) fn is_waiting(&self, extent: u32) -> bool {
        self.descriptors.get(&extent).is_some_and(|found| !found.past)
    }

    /// Whether the extent has free parts and is past its waiting time.
    pub(super) fn is_past(&self, extent: u32) -> bool {
        self.descriptors.get(&extent).is_some_and(|found| found.past)
    }

    /// Number of extents that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.joined.len() as u32
    }

    /// The entry of Definition 3.6 a waiting extent is linked to: the part its largest hole starts with.
    #[cfg(test)]
    pub(super) fn entry(&self, extent: u32) -> Option<Part> {
        let found = self.descriptors.get(&extent).filter(|found| !found.past)?;
        Some(self.shape.part(self.kinds[usize::from(found.list)].0))
    }

    fn list_of(&self, hole: Hole) -> u16 {
        self.rank[(hole.first * self.shape.parts() + hole.last) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::segment::Marks;

    const WAIT: Duration = Duration::from_secs(5);

    fn hole(shape: Shape, first: u32, last: u32) -> Hole {
        let pos = shape.start(first);
        Hole { first, last, pos, blocks: shape.start(last + 1) - pos }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn among_those_that_fit_the_one_waiting_longest_is_chosen() {
        let shape = Shape::new(16, 16).unwrap();
        let mut table = Table::new(shape, WAIT);
        table.join(7, hole(shape, 1, 1), at(0));
        table.join(8, hole(shape, 3, 4), at(1));
        table.join(9, hole(shape, 2, 4), at(2));
        assert_eq!(table.choose(1), Some(7));
        assert_eq!(table.choose(2), Some(8), "7 has one block");
        assert_eq!(table.choose(13), Some(9));
        assert_eq!(table.choose(15), None);
    }

    #[test]
    fn an_extent_keeps_its_turn_when_it_moves_to_another_entry() {
        let shape = Shape::new(16, 16).unwrap();
        let mut table = Table::new(shape, WAIT);
        table.join(1, hole(shape, 1, 4), at(0));
        table.join(2, hole(shape, 4, 4), at(1));
        table.moved(1, Some(hole(shape, 4, 4)));
        assert_eq!(table.choose(8), Some(1));
        table.moved(1, None);
        assert_eq!(table.choose(8), Some(2));
    }

    #[test]
    fn the_wait_ends_and_the_extent_can_still_be_found() {
        let shape = Shape::new(16, 16).unwrap();
        let mut table = Table::new(shape, WAIT);
        table.join(1, hole(shape, 1, 4), at(0));
        table.join(2, hole(shape, 1, 4), at(3));
        table.expire(at(4));
        assert_eq!((table.waiting(), table.choose(1)), (2, Some(1)));
        table.expire(at(5));
        assert_eq!((table.waiting(), table.choose(1), table.choose_past(1)), (1, Some(2), Some(1)));
        table.join(1, hole(shape, 4, 4), at(6));
        assert_eq!((table.choose(1), table.choose_past(1)), (Some(2), None), "a newcomer again");
    }

    /// Figure 5: a clean extent whose use leaves blocks from 2^i on is linked to entry i of the first
    /// table; used again up to sub-segment r it moves to entry r of the second.
    #[test]
    fn extents_are_linked_where_their_largest_hole_starts() {
        let shape = Shape::new(64, 16).unwrap();
        let mut table = Table::new(shape, WAIT);
        let mut marks = Marks::default();
        marks.bitmap(shape, 0, 6, true);
        table.join(0, marks.largest_hole(shape).unwrap(), at(0));
        assert_eq!(table.entry(0), Some(Part::Segment(3)));
        marks.bitmap(shape, 8, 38, true);
        table.moved(0, marks.largest_hole(shape));
        assert_eq!(table.entry(0), Some(Part::SubSegment(3)));
    }
}
