//! What can be said of a whole trace of page accesses at once: the misses of LRU at every size in one pass, and the
//! fewest misses that any policy could have.
//!
//! *LRU* is a stack algorithm: a cache of `c` pages holds the `c` pages used last. An access hits in every cache that is
//! larger than the number of other pages used since the last access to its page, its stack distance; so the distances
//! of one pass give the misses at every size (Mattson, Gecsei, Slutz, Traiger, IBM Systems Journal 9(2), 1970). Those
//! used since are counted in a tree of partial sums over the accesses (Bennett and Kruskal, 1975).
//!
//! *MIN* lets that page go whose next access is farthest away (Belady, IBM Systems Journal 5(2), 1966). It has to know
//! the future and always takes a missed page in, as the policies here do; its misses agree with libCacheSim's exactly.
//!
//! Cost: O(log n) an access; 4 bytes an access and some 20 a page.

use super::PageAccess;
use rustc_hash::FxHashMap;
use std::collections::BinaryHeap;

/// No access to the page follows.
const NEVER: u32 = u32::MAX;

/// The most accesses: they are numbered in 32 bits.
pub const ACCESSES_MAX: usize = NEVER as usize;

/// A trace of page accesses whose pages are numbered from 0 on in the order in which they are first used.
pub struct Numbered {
    ids: Vec<u32>,
    pages: u32,
}

impl Numbered {
    /// Numbers the pages of up to [`ACCESSES_MAX`] accesses.
    pub fn new(accesses: &[PageAccess]) -> Numbered {
        assert!(accesses.len() <= ACCESSES_MAX, "more accesses than can be numbered");
        let mut known = FxHashMap::default();
        let ids = accesses.iter().map(|access| {
            let next = known.len() as u32;
            *known.entry(access.page()).or_insert(next)
        });
        let ids = ids.collect();
        Numbered { ids, pages: known.len() as u32 }
    }

    /// How many different pages there are.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// How many accesses hit at each stack distance.
    pub fn lru(&self) -> Distances {
        let mut last = vec![NEVER; self.pages as usize];
        let mut latest = Sums::new(self.ids.len());
        let mut hits = vec![0u64; self.pages as usize];
        for (now, &id) in self.ids.iter().enumerate() {
            let before = std::mem::replace(&mut last[id as usize], now as u32);
            if before != NEVER {
                // Each page used since has its latest access since.
                let distance = latest.total() - latest.up_to(before as usize);
                hits[distance as usize] += 1;
                latest.add(before as usize, -1);
            }
            latest.add(now, 1);
        }
        Distances { accesses: self.ids.len() as u64, hits }
    }

    /// When the page of each access is used next.
    fn next_uses(&self) -> Vec<u32> {
        let mut next = vec![NEVER; self.ids.len()];
        let mut last = vec![NEVER; self.pages as usize];
        for (now, &id) in self.ids.iter().enumerate() {
            let before = std::mem::replace(&mut last[id as usize], now as u32);
            if before != NEVER {
                next[before as usize] = now as u32;
            }
        }
        next
    }

    /// The fewest misses in a cache of `capacity` pages that takes in each page it misses: those of MIN.
    pub fn fewest_misses(&self, capacity: u32) -> u64 {
        let next = self.next_uses();
        // When each resident page is used next; nothing for one that is not resident.
        let mut resident: Vec<Option<u32>> = vec![None; self.pages as usize];
        let mut count = 0;
        // By next use, the farthest first; entries of earlier accesses to a page are passed over.
        let mut farthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
        let mut misses = 0;
        for (&id, &next) in self.ids.iter().zip(&next) {
            if resident[id as usize].is_none() {
                misses += 1;
                count += 1;
            }
            while count > capacity {
                let Some((when, page)) = farthest.pop() else { break };
                if resident[page as usize] == Some(when) {
                    resident[page as usize] = None;
                    count -= 1;
                }
            }
            resident[id as usize] = Some(next);
            farthest.push((next, id));
            if farthest.len() > 64 + 4 * count as usize {
                farthest.retain(|(when, page)| resident[*page as usize] == Some(*when));
            }
        }
        misses
    }
}

/// The stack distances of a trace: what LRU does at every size.
pub struct Distances {
    accesses: u64,
    /// By distance.
    hits: Vec<u64>,
}

impl Distances {
    /// The misses of LRU with `capacity` pages.
    pub fn misses(&self, capacity: u32) -> u64 {
        self.accesses - self.hits.iter().take(capacity as usize).sum::<u64>()
    }
}

/// Counts by place, of which sums from the first place on are asked: each entry is a sum over as many places before it
/// as its number's lowest bit says (Fenwick, 1994).
struct Sums {
    sums: Vec<u32>,
    total: u32,
}

impl Sums {
    fn new(places: usize) -> Sums {
        Sums { sums: vec![0; places + 1], total: 0 }
    }

    fn total(&self) -> u32 {
        self.total
    }

    fn add(&mut self, place: usize, change: i32) {
        self.total = self.total.wrapping_add_signed(change);
        let mut at = place + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of the places up to and with `place`.
    fn up_to(&self, place: usize) -> u32 {
        let (mut at, mut sum) = (place + 1, 0);
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Config, Nothing, build};
    use super::*;
    use bimetal_base::random::Random;
    use bimetal_base::time::Time;
    use bimetal_base::units::Lpn;

    fn accesses(seed: u64, count: usize, pages: u64) -> Vec<PageAccess> {
        let mut random = Random::new(seed, "accesses");
        let mut all = Vec::new();
        while all.len() < count {
            let page = random.below(pages) * random.below(pages) / pages;
            let run = if random.chance(0.1) { random.below(30) } else { 1 };
            all.extend((page..page + run).map(|page| PageAccess::new(Lpn(page), Access::Read)));
        }
        all.truncate(count);
        all
    }

    #[test]
    fn one_pass_gives_the_misses_of_lru_at_every_size() {
        for seed in 0..4 {
            let accesses = accesses(seed, 5000, 300);
            let numbered = Numbered::new(&accesses);
            let distances = numbered.lru();
            for capacity in (1..=numbered.pages() + 2).step_by(7) {
                let mut cache = build("lru", &Config::new(capacity)).expect("a policy");
                cache.run(Time::ZERO, &accesses, &mut Nothing).expect("nothing fails");
                assert_eq!(
                    distances.misses(capacity),
                    cache.view().stats.misses(),
                    "{seed}, {capacity} pages"
                );
            }
            assert_eq!(distances.misses(u32::MAX), u64::from(numbered.pages()));
        }
    }

    /// Every way to choose who leaves, of which the best counts.
    fn best(ids: &[u32], resident: &mut Vec<u32>, capacity: usize) -> u64 {
        let Some((id, rest)) = ids.split_first() else { return 0 };
        if resident.contains(id) {
            return best(rest, resident, capacity);
        }
        if resident.len() < capacity {
            resident.push(*id);
            let misses = 1 + best(rest, resident, capacity);
            resident.pop();
            return misses;
        }
        let choices = (0..capacity).map(|at| {
            let mut resident = resident.clone();
            resident[at] = *id;
            1 + best(rest, &mut resident, capacity)
        });
        choices.min().expect("a page to let go")
    }

    #[test]
    fn no_choice_of_who_leaves_has_fewer_misses() {
        for seed in 0..40 {
            let accesses = accesses(seed, 12, 7);
            let numbered = Numbered::new(&accesses);
            for capacity in 1..=3 {
                let fewest = best(&numbered.ids, &mut Vec::new(), capacity as usize);
                assert_eq!(numbered.fewest_misses(capacity), fewest, "{seed}, {capacity} pages");
            }
        }
    }

    #[test]
    fn no_policy_has_fewer_misses() {
        let accesses = accesses(9, 20_000, 2000);
        let numbered = Numbered::new(&accesses);
        for capacity in [10, 100, 500] {
            let fewest = numbered.fewest_misses(capacity);
            for policy in ["lru", "clock", "sieve", "s3fifo", "arc", "lirs", "2q", "lecar", "tinylfu"] {
                let mut cache = build(policy, &Config::new(capacity)).expect("a policy");
                cache.run(Time::ZERO, &accesses, &mut Nothing).expect("nothing fails");
                assert!(cache.view().stats.misses() >= fewest, "{policy}, {capacity} pages");
            }
        }
    }
}
