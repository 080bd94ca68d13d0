//! Where the pages of a file are: page number by index, in segments of 512.
//!
//! A small file is one vector as long as the file; a far page costs one segment.

use crate::object::NONE;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Pages of a segment.
pub(crate) const SEGMENT: u32 = 512;

/// The pages of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageMap {
    first: Vec<u32>,
    rest: BTreeMap<u32, Vec<u32>>,
    count: u32,
}

impl PageMap {
    /// How many pages there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The entries of a segment, [`NONE`] for holes; what is missing at its end is holes too.
    pub fn segment(&self, number: u32) -> &[u32] {
        if number == 0 { &self.first } else { self.rest.get(&number).map_or(&[], |segment| &segment[..]) }
    }

    /// Puts a whole segment.
    pub fn put_segment(&mut self, number: u32, entries: Vec<u32>) {
        let count = |entries: &[u32]| entries.iter().filter(|page| **page != NONE).count() as u32;
        self.count = self.count - count(self.segment(number)) + count(&entries);
        match number {
            0 => self.first = entries,
            _ => drop(self.rest.insert(number, entries)),
        }
    }

    /// The numbers of segments that may hold pages.
    pub fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        (!self.first.is_empty()).then_some(0).into_iter().chain(self.rest.keys().copied())
    }

    pub fn get(&self, index: u32) -> Option<u32> {
        let page = *self.segment(index / SEGMENT).get((index % SEGMENT) as usize)?;
        (page != NONE).then_some(page)
    }

    /// Puts a page at `index`; what was there.
    pub fn set(&mut self, index: u32, page: u32) -> Option<u32> {
        let at = (index % SEGMENT) as usize;
        let segment = match index / SEGMENT {
            0 => &mut self.first,
            number => self.rest.entry(number).or_default(),
        };
        if segment.len() <= at {
            segment.resize(at + 1, NONE);
        }
        let old = core::mem::replace(&mut segment[at], page);
        match old {
            NONE => {
                self.count += 1;
                None
            }
            old => Some(old),
        }
    }

    /// Makes a hole at `index`; what was there.
    pub fn clear(&mut self, index: u32) -> Option<u32> {
        let segment = match index / SEGMENT {
            0 => &mut self.first,
            number => self.rest.get_mut(&number)?,
        };
        let slot = segment.get_mut((index % SEGMENT) as usize)?;
        let old = core::mem::replace(slot, NONE);
        if old == NONE {
            return None;
        }
        self.count -= 1;
        Some(old)
    }

    /// Drops everything from `index` on; the pages that were there.
    pub fn truncate(&mut self, index: u32) -> Vec<u32> {
        let (number, within) = (index / SEGMENT, (index % SEGMENT) as usize);
        let keep = |segment: &mut Vec<u32>, gone: &mut Vec<u32>| {
            if segment.len() > within {
                gone.extend(segment.drain(within..));
            }
        };
        let mut gone = Vec::new();
        let later = self.rest.split_off(&number.saturating_add(1).max(1));
        match number {
            0 => keep(&mut self.first, &mut gone),
            _ => {
                if let Some(segment) = self.rest.get_mut(&number) {
                    keep(segment, &mut gone);
                }
            }
        }
        later.into_values().for_each(|segment| gone.extend(segment));
        gone.retain(|page| *page != NONE);
        self.count -= gone.len() as u32;
        gone
    }

    /// The pages with their indices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.segments().flat_map(|number| {
            let entries = self.segment(number).iter().enumerate();
            entries
                .filter(|(_, page)| **page != NONE)
                .map(move |(at, page)| (number * SEGMENT + at as u32, *page))
        })
    }

    /// The first index from `from` on that has a page.
    pub fn next_page(&self, from: u32) -> Option<u32> {
        let numbers = self.segments().filter(|number| *number >= from / SEGMENT);
        numbers
            .flat_map(|number| {
                let base = number * SEGMENT;
                let skip = from.saturating_sub(base) as usize;
                let entries = self.segment(number).iter().enumerate().skip(skip);
                entries.filter(|(_, page)| **page != NONE).map(move |(at, _)| base + at as u32).take(1)
            })
            .next()
    }

    /// One past the last index that has a page; 0 if none has.
    pub fn end(&self) -> u32 {
        let last = |number: u32| {
            let at = self.segment(number).iter().rposition(|page| *page != NONE)?;
            Some(number * SEGMENT + at as u32 + 1)
        };
        self.rest.keys().rev().copied().find_map(last).or_else(|| last(0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_a_plain_map() {
        let (mut map, mut model) = (PageMap::default(), BTreeMap::new());
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % below) as u32
        };
        for step in 0..5000 {
            let index = random(3000);
            match random(10) {
                0 => assert_eq!(map.clear(index), model.remove(&index)),
                1 if step % 50 == 0 => {
                    let mut gone = map.truncate(index);
                    gone.sort_unstable();
                    let mut expected: Vec<u32> = model.split_off(&index).into_values().collect();
                    expected.sort_unstable();
                    assert_eq!(gone, expected);
                }
                _ => assert_eq!(map.set(index, step), model.insert(index, step)),
            }
            assert_eq!(map.get(index), model.get(&index).copied());
            assert_eq!(map.count() as usize, model.len());
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), model.clone().into_iter().collect::<Vec<_>>());
        assert_eq!(map.end(), model.keys().next_back().map_or(0, |last| last + 1));
        for from in 0..3000 {
            assert_eq!(map.next_page(from), model.range(from..).next().map(|(index, _)| *index));
        }
        map.set(8_000_000, 5);
        assert_eq!((map.end(), map.next_page(4_000_000)), (8_000_001, Some(8_000_000)));
    }
}
