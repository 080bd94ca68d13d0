//! The replacement queue of a section: the paper's multilevel circular queue (section 3.5).
//!
//! An accessed inode goes to the head of the highest level; victims come from the tail of the lowest. The
//! paper does not say how inodes sink. Here the levels are a ring: when as many inodes came up to the
//! highest level as an even share (one level's worth of the members, at least [`QUOTA_MIN`]), the ring
//! turns by one. Every level becomes the next lower one, and what the lowest held joins the tail of its
//! neighbour, as the new lowest; its emptied place becomes the highest level. So an inode that is not
//! accessed while everything else is sinks one level a turn and is a victim after [`LEVELS`] turns, and a
//! scan of many inodes once each cannot hold the upper levels for longer.
//!
//! All links live in one slab shared by the queues of all sections. Every operation is O(1).

/// Number of levels.
pub(super) const LEVELS: usize = 8;

/// The ring does not turn before this many inodes came up.
const QUOTA_MIN: u32 = 64;

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    ino: u64,
    previous: u32,
    next: u32,
    /// Turn of the ring at which it came to the highest level, and that level's place then.
    turn: u64,
    place: u8,
    section: u8,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    head: u32,
    tail: u32,
}

const EMPTY: Level = Level { head: NONE, tail: NONE };

/// The ring of one section.
#[derive(Clone, Debug)]
struct Ring {
    levels: [Level; LEVELS],
    /// Place of the highest level; the next lower is the one after it, going round.
    top: usize,
    turn: u64,
    came_up: u32,
    members: u32,
}

/// The queues of all sections. A handle (a node's number) is valid from `insert` to `remove`.
#[derive(Debug)]
pub(super) struct Queues {
    nodes: Vec<Node>,
    free: Vec<u32>,
    rings: Vec<Ring>,
}

impl Queues {
    pub(super) fn new(sections: usize) -> Queues {
        let ring = Ring { levels: [EMPTY; LEVELS], top: 0, turn: 0, came_up: 0, members: 0 };
        Queues { nodes: Vec::new(), free: Vec::new(), rings: vec![ring; sections] }
    }

    /// Members of a section's queue.
    pub(super) fn len(&self, section: usize) -> u32 {
        self.rings[section].members
    }

    /// The section whose queue a handle is in.
    pub(super) fn section(&self, handle: u32) -> u8 {
        self.nodes[handle as usize].section
    }

    /// Puts an inode at the head of a section's highest level.
    pub(super) fn insert(&mut self, section: u8, ino: u64) -> u32 {
        let node = Node { ino, previous: NONE, next: NONE, section, turn: 0, place: 0 };
        let handle = match self.free.pop() {
            Some(handle) => {
                self.nodes[handle as usize] = node;
                handle
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.rings[usize::from(section)].members += 1;
        self.push_top(handle);
        self.came_up(section);
        handle
    }

    /// An access: to the head of the highest level.
    pub(super) fn touch(&mut self, handle: u32) {
        let section = self.section(handle);
        let ring = &self.rings[usize::from(section)];
        let in_top = self.place_of(handle) == ring.top;
        if in_top && ring.levels[ring.top].head == handle {
            return;
        }
        self.unlink(handle);
        self.push_top(handle);
        if !in_top {
            self.came_up(section);
        }
    }

    /// Takes an inode out.
    pub(super) fn remove(&mut self, handle: u32) {
        self.unlink(handle);
        self.rings[usize::from(self.nodes[handle as usize].section)].members -= 1;
        self.free.push(handle);
    }

    /// The next victim: the tail of the lowest level that has anything.
    pub(super) fn victim(&self, section: usize) -> Option<(u32, u64)> {
        let ring = &self.rings[section];
        (1..=LEVELS)
            .map(|step| ring.levels[(ring.top + LEVELS - step) % LEVELS].tail)
            .find(|tail| *tail != NONE)
            .map(|tail| (tail, self.nodes[tail as usize].ino))
    }

    fn push_top(&mut self, handle: u32) {
        let section = usize::from(self.nodes[handle as usize].section);
        let ring = &mut self.rings[section];
        let level = &mut ring.levels[ring.top];
        let second = std::mem::replace(&mut level.head, handle);
        if second == NONE {
            level.tail = handle;
        } else {
            self.nodes[second as usize].previous = handle;
        }
        let node = &mut self.nodes[handle as usize];
        (node.previous, node.next) = (NONE, second);
        (node.turn, node.place) = (ring.turn, ring.top as u8);
    }

    /// The level a node is in now. A node sinks with its level; in the lowest, which also takes in what
    /// was below, it stays.
    fn place_of(&self, handle: u32) -> usize {
        let node = &self.nodes[handle as usize];
        let ring = &self.rings[usize::from(node.section)];
        if ring.turn - node.turn < LEVELS as u64 {
            usize::from(node.place)
        } else {
            (ring.top + LEVELS - 1) % LEVELS
        }
    }

    fn unlink(&mut self, handle: u32) {
        let place = self.place_of(handle);
        let Node { previous, next, section, .. } = self.nodes[handle as usize];
        let level = &mut self.rings[usize::from(section)].levels[place];
        if previous == NONE {
            level.head = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next == NONE {
            level.tail = previous;
        } else {
            self.nodes[next as usize].previous = previous;
        }
    }

    /// Counts an inode that came up; turns the ring when the quota is reached.
    fn came_up(&mut self, section: u8) {
        let ring = &mut self.rings[usize::from(section)];
        ring.came_up += 1;
        if ring.came_up < QUOTA_MIN.max(ring.members / LEVELS as u32) {
            return;
        }
        ring.came_up = 0;
        ring.turn += 1;
        let lowest = (ring.top + LEVELS - 1) % LEVELS;
        let neighbour = (ring.top + LEVELS - 2) % LEVELS;
        let sunk = std::mem::replace(&mut ring.levels[lowest], EMPTY);
        ring.top = lowest;
        if sunk.head == NONE {
            return;
        }
        let level = &mut ring.levels[neighbour];
        let before = std::mem::replace(&mut level.tail, sunk.tail);
        if before == NONE {
            level.head = sunk.head;
        } else {
            self.nodes[before as usize].next = sunk.head;
            self.nodes[sunk.head as usize].previous = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    /// The plain model: levels as vectors, head first.
    struct Model {
        levels: Vec<Vec<u32>>,
        came_up: u32,
    }

    impl Model {
        fn top(&mut self, handle: u32) {
            let was_top = self.levels[0].contains(&handle);
            self.levels.iter_mut().for_each(|level| level.retain(|&member| member != handle));
            self.levels[0].insert(0, handle);
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

    fn levels(queues: &Queues) -> Vec<Vec<u32>> {
        let ring = &queues.rings[0];
        (0..LEVELS)
            .map(|step| {
                let mut found = Vec::new();
                let mut at = ring.levels[(ring.top + step) % LEVELS].head;
                while at != NONE {
                    found.push(at);
                    at = queues.nodes[at as usize].next;
                }
                found
            })
            .collect()
    }

    #[test]
    fn levels_sink_and_accesses_rise_as_in_the_plain_model() {
        let mut random = SmallRng::seed_from_u64(3);
        let mut queues = Queues::new(1);
        let mut model = Model { levels: vec![Vec::new(); LEVELS], came_up: 0 };
        let mut members = Vec::new();
        for step in 0..20_000u64 {
            match random.random_range(0..10) {
                0..3 => {
                    let handle = queues.insert(0, step);
                    model.top(handle);
                    members.push(handle);
                }
                3..9 if !members.is_empty() => {
                    let handle = members[random.random_range(0..members.len())];
                    queues.touch(handle);
                    model.top(handle);
                }
                _ if !members.is_empty() => {
                    let victim = queues.victim(0).unwrap().0;
                    let expected = model.levels.iter().rev().find_map(|level| level.last().copied());
                    assert_eq!(Some(victim), expected);
                    queues.remove(victim);
                    model.levels.iter_mut().for_each(|level| level.retain(|&member| member != victim));
                    members.retain(|&member| member != victim);
                }
                _ => {}
            }
            if step % 500 == 0 {
                assert_eq!(levels(&queues), model.levels);
                assert_eq!(queues.len(0) as usize, members.len());
            }
        }
    }

    #[test]
    fn what_is_accessed_again_outlives_what_is_not() {
        let mut queues = Queues::new(2);
        let handles: Vec<u32> = (0..1000).map(|ino| queues.insert(1, ino)).collect();
        for _ in 0..20 {
            handles[500..].iter().for_each(|&handle| queues.touch(handle));
        }
        for _ in 0..500 {
            let (handle, ino) = queues.victim(1).unwrap();
            assert!(ino < 500, "{ino} was accessed again");
            queues.remove(handle);
        }
        assert_eq!((queues.len(1), queues.victim(0)), (500, None));
    }
}
