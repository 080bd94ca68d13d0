//! A directory in memory: names in the order they were made, found by hash, listed by a cookie that stays true.
//!
//! `slots` holds the entries in order of their cookie, which only grows; a removed one leaves a gap until half
//! of the slots are gaps. The table maps a name's hash to its slot. So `readdir` goes on after any cookie by one
//! binary search, whatever was made or removed meanwhile, and no name is kept twice.
//!
//! Cost: one probe for a look-up, one probe and one push for an insertion, one probe for a removal; closing the
//! gaps is paid by the removals that made them.

use super::Id;
use bimetal_vfs::Kind;
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::hash::Hasher;

/// The cookie of the first entry; smaller ones stand for `.` and `..`.
const FIRST_COOKIE: u64 = 3;
/// Gaps that are not worth closing.
const FEW_GAPS: usize = 32;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The inode.
    pub id: Id,
    /// What it is.
    pub kind: Kind,
}

/// One name.
#[derive(Debug)]
pub(super) struct Slot {
    name: SmallVec<[u8; 24]>,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// `None`: a gap.
    target: Option<Target>,
}

/// The names in a directory.
#[derive(Debug)]
pub(super) struct Dir {
    slots: Vec<Slot>,
    by_name: HashTable<u32>,
    next_cookie: u64,
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

impl Dir {
    /// An empty directory.
    pub fn new() -> Self {
        Dir { slots: Vec::new(), by_name: HashTable::new(), next_cookie: FIRST_COOKIE }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// What `name` stands for.
    pub fn get(&self, name: &[u8]) -> Option<Target> {
        let slot = self.by_name.find(hash(name), |&slot| self.slots[slot as usize].name[..] == *name)?;
        self.slots[*slot as usize].target
    }

    /// Adds a name that is not there yet.
    pub fn insert(&mut self, name: &[u8], target: Target) {
        let slots = &mut self.slots;
        let index = slots.len() as u32;
        slots.push(Slot { name: name.into(), cookie: self.next_cookie, target: Some(target) });
        self.next_cookie += 1;
        self.by_name.insert_unique(hash(name), index, |&slot| hash(&slots[slot as usize].name));
    }

    /// Lets a name that is there stand for something else.
    pub fn replace(&mut self, name: &[u8], target: Target) {
        if let Some(slot) = self.by_name.find(hash(name), |&slot| self.slots[slot as usize].name[..] == *name)
        {
            self.slots[*slot as usize].target = Some(target);
        }
    }

    /// Removes a name, if it is there.
    pub fn remove(&mut self, name: &[u8]) -> Option<Target> {
        let slots = &mut self.slots;
        let found =
            self.by_name.find_entry(hash(name), |&slot| slots[slot as usize].name[..] == *name).ok()?;
        let (index, _) = found.remove();
        let slot = &mut slots[index as usize];
        slot.name = SmallVec::new();
        let target = slot.target.take();
        let gaps = self.slots.len() - self.by_name.len();
        if gaps > FEW_GAPS && gaps > self.slots.len() / 2 {
            self.close_gaps();
        }
        target
    }

    /// The entries after `cookie`, in order.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (&[u8], u64, Target)> {
        let start = self.slots.partition_point(|slot| slot.cookie <= cookie);
        self.slots[start..].iter().filter_map(|slot| Some((&slot.name[..], slot.cookie, slot.target?)))
    }

    fn close_gaps(&mut self) {
        self.slots.retain(|slot| slot.target.is_some());
        self.by_name.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            let slots = &self.slots;
            self.by_name
                .insert_unique(hash(&slot.name), index as u32, |&slot| hash(&slots[slot as usize].name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    fn target(id: u32) -> Target {
        Target { id: Id(id), kind: Kind::File }
    }

    #[test]
    fn it_agrees_with_a_plain_map_under_random_changes() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut dir, mut model) = (Dir::new(), BTreeMap::new());
        for step in 0..20_000u32 {
            let name = format!("name-{}", random.random_range(0..500)).into_bytes();
            if random.next_u32() % 2 == 0 {
                if model.insert(name.clone(), target(step)).is_none() {
                    dir.insert(&name, target(step));
                } else {
                    dir.replace(&name, target(step));
                }
            } else {
                assert_eq!(dir.remove(&name), model.remove(&name));
            }
            assert_eq!(dir.get(&name), model.get(&name).copied());
            assert_eq!(dir.len(), model.len());
        }
        let listed: BTreeMap<Vec<u8>, Target> =
            dir.after(0).map(|(name, _, target)| (name.to_vec(), target)).collect();
        assert_eq!(listed, model);
    }

    #[test]
    fn a_listing_goes_on_after_its_cookie_while_others_come_and_go() {
        let mut dir = Dir::new();
        for number in 0..1000u32 {
            dir.insert(format!("{number}").as_bytes(), target(number));
        }
        let (_, cookie, last) = dir.after(0).nth(499).unwrap();
        assert_eq!(last, target(499));
        for number in (0..900).filter(|number| number % 3 != 0) {
            dir.remove(format!("{number}").as_bytes());
        }
        dir.insert(b"new", target(5000));
        let rest: Vec<u32> = dir.after(cookie).map(|(_, _, target)| target.id.0).collect();
        let expected: Vec<u32> =
            (500..1000).filter(|number| number % 3 == 0 || *number >= 900).chain([5000]).collect();
        assert_eq!(rest, expected);
    }
}
