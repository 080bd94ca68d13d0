//! From an inode's number to its head slot: a hash table of pages that are cut in two when they are full.
//!
//! A page is a small hash table by itself: four bytes and a tag, one of a hash, for each of [`PLACES`]; the number itself
//! is compared in the slot. Which page an inode belongs to say the upper bits of its *position*, by a directory that
//! doubles when a page with as many bits as it has is cut (extendible hashing). So nothing is ever moved but the
//! entries of one page, and an insert never takes longer than that.
//!
//! Were positions even, all pages would be full and be cut at the same time, and at some numbers of inodes the table
//! would take twice what it takes at others. Positions are twice as dense at one end as at the other instead (the
//! logarithm of an even hash), so that at any time as many pages are nearly full as have just been cut: 7 to 8.5 bytes an
//! inode, whatever their number.
//!
//! Pages that inodes left are not joined again: they fill up with the next.
//!
//! Cost: a look-up reads the directory (4 bytes a page), a group of 16 tags or two, and a slot; a cut computes the hashes
//! of 765 inodes. Whoever makes up inode numbers so that more than that share a position finds them in a map beside.

use super::pages::Page;
use rustc_hash::FxHashMap;
use zerocopy::FromZeros;

/// Groups of places in a page.
const GROUPS: usize = 51;

/// Places in a group.
const GROUP: usize = 16;

/// Places in a page.
const PLACES: usize = GROUPS * GROUP;

/// A page with so many places that are not empty is cut, or put in order if many of them were given back.
const FULL: u16 = (PLACES * 15 / 16) as u16;

/// Bits of a position that the directory can have.
const DEPTH_MAX: u8 = 20;

/// Steps of the table of logarithms.
const STEPS: usize = 256;

/// The tag of a place that was never used.
const EMPTY: u8 = 0;

/// The tag of a place that was given back, in a group that others passed over when they looked for theirs.
const GONE: u8 = 1;

/// One in each of eight bytes.
const EACH: u64 = u64::MAX / 255;

/// A page of the table.
#[derive(Debug, FromZeros)]
struct Bucket {
    tags: [[u64; 2]; GROUPS],
    slots: [u32; PLACES],
    used: u16,
    /// Places that are not empty.
    filled: u16,
    /// Upper bits of the position that all in it share.
    depth: u8,
}

/// See the file's documentation.
#[derive(Debug)]
pub(super) struct Index {
    /// For each value of the upper `depth` bits of a position, its page.
    directory: Vec<u32>,
    depth: u8,
    pages: Vec<Page<Bucket>>,
    /// What found no place in a page that cannot be cut.
    beside: FxHashMap<u64, u32>,
    /// Logarithms, in 2^-32.
    logarithms: Box<[u64; STEPS + 1]>,
    len: usize,
}

fn hash(ino: u64) -> u64 {
    let mixed = (ino ^ ino >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn tag(hash: u64) -> u8 {
    (hash as u8).max(GONE + 1)
}

/// The group in which an inode's place is looked for first.
fn first_group(hash: u64) -> usize {
    ((hash >> 8 & 0xffff) as usize * GROUPS) >> 16
}

/// The group after one.
fn next_group(group: usize) -> usize {
    if group + 1 == GROUPS { 0 } else { group + 1 }
}

/// The high bit of each byte that is zero, and perhaps of bytes above one that is.
fn zeros(bytes: u64) -> u64 {
    bytes.wrapping_sub(EACH) & !bytes & EACH << 7
}

/// Whether a place of a group was never used.
fn has_empty(tags: [u64; 2]) -> bool {
    zeros(tags[0]) | zeros(tags[1]) != 0
}

impl Bucket {
    /// The place of the entry with this hash for which `is` holds.
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<usize> {
        let (tag, mut group) = (tag(hash), first_group(hash));
        let wanted = u64::from(tag) * EACH;
        for _ in 0..GROUPS {
            let tags = self.tags[group];
            for (half, tags) in tags.into_iter().enumerate() {
                let mut marks = zeros(tags ^ wanted);
                while marks != 0 {
                    let place = group * GROUP + half * 8 + marks.trailing_zeros() as usize / 8;
                    // A mark above a true one can be false.
                    if self.tag_at(place) == tag && is(self.slots[place]) {
                        return Some(place);
                    }
                    marks &= marks - 1;
                }
            }
            if has_empty(tags) {
                return None;
            }
            group = next_group(group);
        }
        None
    }

    fn tag_at(&self, place: usize) -> u8 {
        (self.tags[place / GROUP][place / 8 % 2] >> (place % 8 * 8)) as u8
    }

    fn set_tag(&mut self, place: usize, tag: u8) {
        let shift = place % 8 * 8;
        let half = &mut self.tags[place / GROUP][place / 8 % 2];
        *half = *half & !(0xff << shift) | u64::from(tag) << shift;
    }

    /// The first place for an entry that is not there.
    fn vacant(&self, hash: u64) -> Option<usize> {
        let mut group = first_group(hash);
        for _ in 0..GROUPS {
            // Empty or gone: all but the lowest bit is zero.
            let marks = self.tags[group].map(|tags| zeros(tags & !EACH));
            if let Some(half) = marks.iter().position(|marks| *marks != 0) {
                return Some(group * GROUP + half * 8 + marks[half].trailing_zeros() as usize / 8);
            }
            group = next_group(group);
        }
        None
    }

    /// Puts an entry that is not there into the first place for it; whether there was one.
    fn put(&mut self, hash: u64, slot: u32) -> bool {
        let Some(place) = self.vacant(hash) else { return false };
        self.filled += u16::from(self.tag_at(place) == EMPTY);
        self.used += 1;
        self.set_tag(place, tag(hash));
        self.slots[place] = slot;
        true
    }

    fn take(&mut self, place: usize) {
        // Nobody passed over a group that has an empty place.
        let ends_here = has_empty(self.tags[place / GROUP]);
        self.set_tag(place, if ends_here { EMPTY } else { GONE });
        self.filled -= u16::from(ends_here);
        self.used -= 1;
    }

    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..PLACES).filter(|place| self.tag_at(*place) > GONE).map(|place| self.slots[place])
    }
}

impl Index {
    pub(super) fn new() -> Index {
        let logarithm = |step: usize| ((1.0 + step as f64 / STEPS as f64).log2() * 2f64.powi(32)) as u64;
        Index {
            directory: vec![0],
            depth: 0,
            pages: vec![Page::zeroed()],
            beside: FxHashMap::default(),
            logarithms: Box::new(std::array::from_fn(logarithm)),
            len: 0,
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.pages.len() * Page::<Bucket>::BYTES
            + (self.pages.capacity() * size_of::<Page<Bucket>>())
            + self.directory.capacity() * 4
            + self.beside.capacity() * size_of::<(u64, u32)>()
            + size_of_val(&*self.logarithms)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The position of an inode: where the logarithm of its hash lies between those of 1 and 2, in 2^-32.
    fn position(&self, hash: u64) -> u64 {
        let (step, rest) = ((hash >> 56) as usize, hash >> 32 & 0xff_ffff);
        let (from, to) = (self.logarithms[step], self.logarithms[step + 1]);
        from + (((to - from) * rest) >> 24)
    }

    /// The place in the directory of an inode.
    fn entry(&self, hash: u64) -> usize {
        (self.position(hash) >> (32 - self.depth)) as usize
    }

    fn page(&self, hash: u64) -> usize {
        self.directory[self.entry(hash)] as usize
    }

    /// The head slot of an inode; `number` gives the inode of a head slot.
    pub(super) fn get(&self, ino: u64, number: impl Fn(u32) -> u64) -> Option<u32> {
        let hash = hash(ino);
        let page = &self.pages[self.page(hash)];
        match page.find(hash, |slot| number(slot) == ino) {
            Some(place) => Some(page.slots[place]),
            None if self.beside.is_empty() => None,
            None => self.beside.get(&ino).copied(),
        }
    }

    /// Adds an inode that is not there.
    pub(super) fn insert(&mut self, ino: u64, slot: u32, number: impl Fn(u32) -> u64) {
        let hash = hash(ino);
        while self.pages[self.page(hash)].filled >= FULL && self.make_room(hash, &number) {}
        let page = self.page(hash);
        if !self.pages[page].put(hash, slot) {
            self.beside.insert(ino, slot);
        }
        self.len += 1;
    }

    /// Takes an inode with this head slot out.
    pub(super) fn remove(&mut self, ino: u64, slot: u32) {
        let hash = hash(ino);
        let page = self.page(hash);
        let page = &mut self.pages[page];
        if let Some(place) = page.find(hash, |other| other == slot) {
            page.take(place);
            self.len -= 1;
        } else if self.beside.remove(&ino).is_some() {
            self.len -= 1;
        }
    }

    /// Puts the page in order that belongs to a hash, or cuts it; `false` if it cannot be cut.
    fn make_room(&mut self, wanted: u64, number: &impl Fn(u32) -> u64) -> bool {
        let page = self.page(wanted);
        let depth = self.pages[page].depth;
        let in_order = self.pages[page].used < FULL / 8 * 7;
        if !in_order && depth == DEPTH_MAX {
            return false;
        }
        let old = std::mem::replace(&mut self.pages[page], Page::zeroed());
        self.pages[page].depth = depth;
        if !in_order {
            self.cut(wanted, page, depth);
        }
        for slot in old.slots() {
            let ino = number(slot);
            let hash = hash(ino);
            let page = self.page(hash);
            if !self.pages[page].put(hash, slot) {
                self.beside.insert(ino, slot);
            }
        }
        true
    }

    /// Gives an emptied page's upper half of positions to a new page.
    fn cut(&mut self, wanted: u64, page: usize, depth: u8) {
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|page| [*page, *page]).collect();
            self.depth += 1;
        }
        let span = 1 << (self.depth - depth);
        let first = self.entry(wanted) / span * span;
        self.directory[first + span / 2..first + span].fill(self.pages.len() as u32);
        self.pages[page].depth = depth + 1;
        let mut upper = Page::<Bucket>::zeroed();
        upper.depth = depth + 1;
        self.pages.push(upper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    use std::collections::BTreeMap;

    #[test]
    fn random_inserting_and_removing_agrees_with_a_map() {
        let mut random = SmallRng::seed_from_u64(11);
        let (mut index, mut model, mut numbers) =
            (Index::new(), BTreeMap::<u64, u32>::new(), Vec::<u64>::new());
        for _ in 0..200_000 {
            let ino = random.random_range(0..40_000u64) << (random.random_range(0..3u32) * 16);
            let found = index.get(ino, |slot| numbers[slot as usize]);
            assert_eq!(found, model.get(&ino).copied());
            match found {
                None => {
                    let slot = numbers.len() as u32;
                    numbers.push(ino);
                    index.insert(ino, slot, |slot| numbers[slot as usize]);
                    model.insert(ino, slot);
                }
                Some(slot) if random.random_range(0..3) > 0 => {
                    index.remove(ino, slot);
                    model.remove(&ino);
                }
                Some(_) => {}
            }
            assert_eq!(index.len(), model.len());
        }
        assert!(
            model.iter().all(|(ino, slot)| index.get(*ino, |slot| numbers[slot as usize]) == Some(*slot))
        );
        assert!(index.pages.len() > 50 && index.beside.is_empty());
    }

    #[test]
    fn an_inode_costs_less_than_nine_bytes_whatever_their_number() {
        let mut index = Index::new();
        for ino in 0..3_000_000u64 {
            index.insert(ino, ino as u32, u64::from);
            let each = index.heap_bytes() as f64 / (ino + 1) as f64;
            assert!(ino < 100_000 || (6.5..9.0).contains(&each), "{each} bytes at {ino}");
        }
    }

    #[test]
    fn inode_numbers_made_up_to_meet_are_found_and_cost_no_more_than_themselves() {
        // All with one upper half of the hash: its steps undone.
        let inverse =
            |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
        let ino_of = |hash: u64| {
            let mixed = hash.wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
            let mixed = mixed ^ mixed >> 29 ^ mixed >> 58;
            let ino = mixed.wrapping_mul(inverse(0x9e37_79b9_7f4a_7c15));
            ino ^ ino >> 32
        };
        let inos: Vec<u64> = (0..5000u64).map(|low| ino_of(0x1234_5678_0000_0000 | low << 5)).collect();
        assert!(inos.iter().all(|ino| hash(*ino) >> 32 == 0x1234_5678));
        let mut index = Index::new();
        for (slot, ino) in (0u32..).zip(&inos) {
            index.insert(*ino, slot, |slot| inos[slot as usize]);
        }
        assert!(
            (0u32..).zip(&inos).all(|(slot, ino)| index.get(*ino, |slot| inos[slot as usize]) == Some(slot))
        );
        assert!(index.heap_bytes() < 5 << 20, "{}", index.heap_bytes());
        (0u32..).zip(&inos).for_each(|(slot, ino)| index.remove(*ino, slot));
        assert_eq!((index.len(), index.get(inos[7], |slot| inos[slot as usize])), (0, None));
    }
}
