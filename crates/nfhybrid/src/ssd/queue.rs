//! The replacement queue of a section: the paper's multilevel circular queue (section 3.5), without links.
//!
//! An accessed inode goes to the highest level; victims come from the lowest. The paper does not say how inodes
//! sink. Here the levels are a ring: when as many inodes came up to the highest level as an even share (one
//! level's worth of the members, at least [`QUOTA_MIN`]), the ring turns by one. Every level becomes the next lower
//! one, and what the lowest held joins its neighbour, as the new lowest; its emptied place becomes the highest level.
//! So an inode that is not accessed while everything else is sinks one level a turn and is a victim after
//! [`LEVELS`] turns, and a scan of many inodes once each cannot hold the upper levels for longer.
//!
//! What differs from the paper: within a level there is no list. A hand goes round over the slots of the inode table
//! and takes the next member of the lowest level that has any; one that was accessed again while it was in the
//! highest level is passed over once. (The paper takes the tail of a list, which costs two links an inode.)
//!
//! An inode is known by its head slot, and has a *home*: the section whose ring it is in. Of one with blocks in
//! further sections these know as of a *guest*; guests are victims when no member of the section has sunk.
//!
//! Memory: two bytes for each slot of a stretch of 2048 with a member, and for each stretch and section. Cost: insert, touch and remove O(1); a victim
//! is found by looking at up to all slots of stretches in which the section has members, at two bytes a slot, but on
//! average at no more than members there are for each of the lowest level. Every [`STAMPS`]/2 turns of a ring all its
//! members are looked at.

use super::pages::Page;
use std::collections::BTreeSet;

/// Number of levels.
pub(super) const LEVELS: usize = 8;

/// The ring does not turn before this many inodes came up.
const QUOTA_MIN: u32 = 64;

/// Turns that a member's stamp tells apart.
const STAMPS: u16 = 512;

const CHUNK_SLOTS: u32 = 2048;

/// A slot's state: bit 15 a member, bit 14 accessed again, bits 9–13 the section, bits 0–8 the turn it came up in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u16);

const MEMBER: u16 = 1 << 15;
const AGAIN: u16 = 1 << 14;

impl Entry {
    fn new(section: u8, turn: u64) -> Entry {
        Entry(MEMBER | u16::from(section) << 9 | (turn as u16 % STAMPS))
    }

    fn section(self) -> Option<u8> {
        (self.0 & MEMBER != 0).then_some((self.0 >> 9 & 31) as u8)
    }

    fn age(self, turn: u64) -> u16 {
        (turn as u16).wrapping_sub(self.0) % STAMPS
    }

    fn level(self, turn: u64) -> usize {
        usize::from(self.age(turn)).min(LEVELS - 1)
    }
}

type Chunk = Page<[u16; CHUNK_SLOTS as usize]>;

/// The ring of one section.
#[derive(Debug, Default)]
struct Ring {
    /// Members of each level, the highest first.
    levels: [u32; LEVELS],
    turn: u64,
    came_up: u32,
    /// The next slot to look at for a victim.
    hand: u32,
    /// Head slots of inodes that have blocks here and are at home elsewhere.
    guests: BTreeSet<u32>,
    guest_hand: u32,
}

impl Ring {
    fn members(&self) -> u32 {
        self.levels.iter().sum()
    }
}

/// The queues of all sections.
#[derive(Debug)]
pub(super) struct Queues {
    chunks: Vec<Option<Chunk>>,
    /// Members of each section in each chunk: those of the first chunk's sections, then of the second's, and so on.
    members: Vec<u16>,
    held: usize,
    rings: Vec<Ring>,
}

fn place(slot: u32) -> (usize, usize) {
    ((slot / CHUNK_SLOTS) as usize, (slot % CHUNK_SLOTS) as usize)
}

impl Queues {
    /// Empty queues of so many sections, for head slots below `slots`.
    pub(super) fn new(sections: usize, slots: u32) -> Queues {
        let mut chunks = Vec::new();
        chunks.resize_with(slots.div_ceil(CHUNK_SLOTS) as usize, || None);
        let mut rings = Vec::new();
        rings.resize_with(sections, Ring::default);
        Queues { members: vec![0; chunks.len() * sections], chunks, held: 0, rings }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let guests: usize = self.rings.iter().map(|ring| ring.guests.len() * 6).sum();
        let directory = self.chunks.len() * size_of::<Option<Chunk>>() + self.members.len() * 2;
        directory + self.held * Chunk::BYTES + guests
    }

    /// Members of a section's queue, guests included.
    pub(super) fn len(&self, section: usize) -> u32 {
        self.rings[section].members() + self.rings[section].guests.len() as u32
    }

    fn entry(&self, slot: u32) -> Entry {
        let (chunk, index) = place(slot);
        Entry(self.chunks[chunk].as_ref().map_or(0, |chunk| chunk[index]))
    }

    /// Puts an inode into a section's queue, at the highest level; if it is there, it is accessed.
    pub(super) fn enter(&mut self, section: u8, slot: u32) {
        match self.entry(slot).section() {
            None => {
                self.insert(section, slot);
                self.came_up(section);
            }
            Some(home) if home != section && self.rings[usize::from(section)].guests.insert(slot) => {}
            Some(_) => self.touch(slot),
        }
    }

    fn insert(&mut self, section: u8, slot: u32) {
        let (number, index) = place(slot);
        let place = &mut self.chunks[number];
        self.held += usize::from(place.is_none());
        let chunk = place.get_or_insert_with(Chunk::zeroed);
        self.members[number * self.rings.len() + usize::from(section)] += 1;
        let ring = &mut self.rings[usize::from(section)];
        chunk[index] = Entry::new(section, ring.turn).0;
        ring.levels[0] += 1;
    }

    /// An access: to the highest level.
    pub(super) fn touch(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let Some(section) = entry.section() else { return };
        let ring = &mut self.rings[usize::from(section)];
        let (level, turn) = (entry.level(ring.turn), ring.turn);
        let (chunk, index) = place(slot);
        let Some(chunk) = self.chunks[chunk].as_mut() else { return };
        if level == 0 {
            chunk[index] |= AGAIN;
            return;
        }
        chunk[index] = Entry::new(section, turn).0;
        ring.levels[level] -= 1;
        ring.levels[0] += 1;
        self.came_up(section);
    }

    /// Takes an inode out of a section's queue. If it is in another's as a guest, it is at home there now.
    pub(super) fn leave(&mut self, section: u8, slot: u32) {
        if self.entry(slot).section() != Some(section) {
            self.rings[usize::from(section)].guests.remove(&slot);
            return;
        }
        self.remove(section, slot);
        let other = self.rings.iter_mut().position(|ring| ring.guests.remove(&slot));
        if let Some(other) = other {
            self.insert(other as u8, slot);
        }
    }

    /// Takes an inode out of every queue.
    pub(super) fn leave_all(&mut self, slot: u32) {
        while let Some(section) = self.entry(slot).section() {
            self.leave(section, slot);
        }
    }

    fn remove(&mut self, section: u8, slot: u32) {
        let (number, index) = place(slot);
        let Some(chunk) = self.chunks[number].as_mut() else { return };
        let ring = &mut self.rings[usize::from(section)];
        ring.levels[Entry(chunk[index]).level(ring.turn)] -= 1;
        chunk[index] = 0;
        let sections = self.rings.len();
        let members = &mut self.members[number * sections..(number + 1) * sections];
        members[usize::from(section)] -= 1;
        if members.iter().all(|members| *members == 0) {
            self.chunks[number] = None;
            self.held -= 1;
        }
    }

    /// The head slot of the next victim of a section.
    pub(super) fn victim(&mut self, section: usize) -> Option<u32> {
        let ring = &self.rings[section];
        let lowest = (0..LEVELS).rev().find(|level| ring.levels[*level] > 0);
        match lowest {
            Some(sunk) if sunk > 0 => self.sweep(section as u8, sunk),
            _ => self.next_guest(section).or_else(|| self.sweep(section as u8, lowest?)),
        }
    }

    /// The next guest; `None` once at the end of each round, so that others have their turn.
    fn next_guest(&mut self, section: usize) -> Option<u32> {
        let ring = &mut self.rings[section];
        let next = ring.guests.range(ring.guest_hand..).next().copied();
        ring.guest_hand = next.map_or(0, |slot| slot.saturating_add(1));
        next
    }

    /// Turns the hand to the next member of a level that was not accessed again.
    fn sweep(&mut self, section: u8, level: usize) -> Option<u32> {
        let sections = self.rings.len();
        let ring = &mut self.rings[usize::from(section)];
        let (first, skip) = place(ring.hand);
        let count = self.chunks.len();
        // Twice round, and the part of the first chunk before the hand.
        for step in 0..=2 * count {
            let number = (first + step) % count;
            let Some(chunk) = &mut self.chunks[number] else { continue };
            if self.members[number * sections + usize::from(section)] == 0 {
                continue;
            }
            let from = if step == 0 { skip } else { 0 };
            for (index, raw) in chunk.iter_mut().enumerate().skip(from) {
                let entry = Entry(*raw);
                if entry.section() != Some(section) || entry.level(ring.turn) != level {
                    continue;
                }
                if *raw & AGAIN != 0 {
                    *raw &= !AGAIN;
                    continue;
                }
                let slot = number as u32 * CHUNK_SLOTS + index as u32;
                let next = (number + usize::from(index + 1 == CHUNK_SLOTS as usize)) % count;
                ring.hand = next as u32 * CHUNK_SLOTS + (index as u32 + 1) % CHUNK_SLOTS;
                return Some(slot);
            }
        }
        None
    }

    /// Counts an inode that came up; turns the ring when the quota is reached.
    fn came_up(&mut self, section: u8) {
        let ring = &mut self.rings[usize::from(section)];
        ring.came_up += 1;
        if ring.came_up < QUOTA_MIN.max(ring.members() / LEVELS as u32) {
            return;
        }
        ring.came_up = 0;
        ring.turn += 1;
        let sunk = ring.levels[LEVELS - 1];
        ring.levels.rotate_right(1);
        ring.levels[0] = 0;
        ring.levels[LEVELS - 1] += sunk;
        if ring.turn.is_multiple_of(u64::from(STAMPS / 2)) {
            self.renew_stamps(section);
        }
    }

    /// Stamps that would soon be taken for new ones become the newest of the lowest level.
    fn renew_stamps(&mut self, section: u8) {
        let turn = self.rings[usize::from(section)].turn;
        let lowest = Entry::new(section, turn.wrapping_sub(LEVELS as u64 - 1)).0;
        let members = self.members.chunks(self.rings.len()).map(|members| members[usize::from(section)]);
        let chunks = self.chunks.iter_mut().zip(members).filter(|(_, members)| *members > 0);
        for raw in chunks.flat_map(|(chunk, _)| chunk).flat_map(|chunk| chunk.iter_mut()) {
            let entry = Entry(*raw);
            if entry.section() == Some(section) && entry.age(turn) >= LEVELS as u16 {
                *raw = lowest | *raw & AGAIN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    /// The plain model: levels as vectors, of which the order means nothing.
    struct Model {
        levels: Vec<Vec<u32>>,
        came_up: u32,
    }

    impl Model {
        fn top(&mut self, slot: u32) {
            let was_top = self.levels[0].contains(&slot);
            self.levels.iter_mut().for_each(|level| level.retain(|&member| member != slot));
            self.levels[0].push(slot);
            if was_top {
                return;
            }
            self.came_up += 1;
            let members: usize = self.levels.iter().map(Vec::len).sum();
            if self.came_up >= QUOTA_MIN.max(members as u32 / LEVELS as u32) {
                self.came_up = 0;
                self.levels.insert(0, Vec::new());
                let sunk = self.levels.pop().unwrap();
                self.levels.last_mut().unwrap().extend(sunk);
            }
        }
    }

    fn levels(queues: &Queues, slots: u32) -> Vec<Vec<u32>> {
        let turn = queues.rings[0].turn;
        let mut found = vec![Vec::new(); LEVELS];
        for slot in (0..slots).filter(|slot| queues.entry(*slot).section() == Some(0)) {
            found[queues.entry(slot).level(turn)].push(slot);
        }
        found
    }

    #[test]
    fn levels_sink_and_accesses_rise_as_in_the_plain_model() {
        const SLOTS: u32 = 5000;
        let mut random = SmallRng::seed_from_u64(3);
        let mut queues = Queues::new(1, SLOTS);
        let mut model = Model { levels: vec![Vec::new(); LEVELS], came_up: 0 };
        let (mut free, mut members): (Vec<u32>, Vec<u32>) = ((0..SLOTS).collect(), Vec::new());
        for step in 0..120_000u64 {
            match random.random_range(0..10) {
                0 if !free.is_empty() => {
                    let slot = free.swap_remove(random.random_range(0..free.len()));
                    queues.enter(0, slot);
                    model.top(slot);
                    members.push(slot);
                }
                1..9 if !members.is_empty() => {
                    let slot = members[random.random_range(0..members.len())];
                    queues.touch(slot);
                    model.top(slot);
                }
                9 if members.len() > 200 => {
                    let victim = queues.victim(0).unwrap();
                    let lowest = model.levels.iter().rev().find(|level| !level.is_empty()).unwrap();
                    assert!(lowest.contains(&victim), "{victim} is not of the lowest level");
                    queues.leave_all(victim);
                    model.levels.iter_mut().for_each(|level| level.retain(|&member| member != victim));
                    members.retain(|&member| member != victim);
                    free.push(victim);
                }
                _ => {}
            }
            if step % 5000 == 0 {
                model.levels.iter_mut().for_each(|level| level.sort_unstable());
                assert_eq!(levels(&queues, SLOTS), model.levels);
                let counts: Vec<usize> = queues.rings[0].levels.iter().map(|count| *count as usize).collect();
                assert_eq!(counts, model.levels.iter().map(Vec::len).collect::<Vec<_>>());
                assert_eq!(queues.len(0) as usize, members.len());
            }
        }
        assert!(queues.rings[0].turn > u64::from(STAMPS), "{} turns", queues.rings[0].turn);
    }

    #[test]
    fn what_is_accessed_again_outlives_what_is_not() {
        let mut queues = Queues::new(2, 1000);
        (0..1000).for_each(|slot| queues.enter(1, slot));
        for _ in 0..20 {
            (500..1000).for_each(|slot| queues.touch(slot));
        }
        for _ in 0..500 {
            let slot = queues.victim(1).unwrap();
            assert!(slot < 500, "{slot} was accessed again");
            queues.leave_all(slot);
        }
        assert_eq!((queues.len(1), queues.victim(0)), (500, None));
    }

    #[test]
    fn a_guest_is_found_where_it_is_and_goes_home_when_its_home_is_gone() {
        let mut queues = Queues::new(3, 100);
        for section in [0, 1, 2] {
            queues.enter(section, 7);
        }
        queues.enter(1, 8);
        assert_eq!([0, 1, 2].map(|section| queues.len(section)), [1, 2, 1]);
        assert_eq!((queues.victim(0), queues.victim(1), queues.victim(2)), (Some(7), Some(7), Some(7)));
        queues.leave(0, 7);
        assert_eq!([0, 1, 2].map(|section| queues.len(section)), [0, 2, 1]);
        queues.leave_all(7);
        assert_eq!([0, 1, 2].map(|section| queues.len(section)), [0, 1, 0]);
        assert_eq!(queues.victim(1), Some(8));
        queues.leave_all(8);
        assert_eq!(queues.held, 0);
    }
}
