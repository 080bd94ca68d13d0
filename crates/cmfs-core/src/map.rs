//! Where the pages of a file are: page number by index, in segments of 512.
//!
//! Pages of a file lie one behind the other mostly, so a segment is a list of runs, 8 bytes each; one that is so scattered
//! that all numbers take less is all numbers. A far page costs one segment. With the paper's layout of the NVRAM it is
//! the paper's tree instead.

use crate::object::NONE;
use crate::pat::Tree;
use crate::sorted::Map;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Pages of a segment.
pub(crate) const SEGMENT: u32 = 512;

/// Pages that follow each other, at neighbouring places of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    at: u16,
    len: u16,
    page: u32,
}

impl Run {
    fn end(&self) -> u16 {
        self.at + self.len
    }

    fn get(&self, at: u16) -> Option<u32> {
        (self.at..self.end()).contains(&at).then(|| self.page + u32::from(at - self.at))
    }

    /// Whether `page` at `at` goes on where this run ends.
    fn goes_on(&self, at: u16, page: u32) -> bool {
        self.end() == at && self.page.checked_add(u32::from(self.len)) == Some(page)
    }
}

/// Runs of a segment that may become all numbers: twice as many bytes as 512 of these.
const RUNS_MAX: usize = 128;

/// The pages of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// In order, each apart from the others.
    Runs(Vec<Run>),
    /// By place; [`NONE`] for holes.
    Numbers(Box<[u32; SEGMENT as usize]>),
}

impl Default for Segment {
    fn default() -> Segment {
        Segment::Runs(Vec::new())
    }
}

impl Segment {
    /// Of entries from the first place on, [`NONE`] for holes.
    fn of(entries: &[u32]) -> Segment {
        let mut runs: Vec<Run> = Vec::new();
        for (at, page) in (0u16..).zip(entries.iter().copied()) {
            match runs.last_mut() {
                _ if page == NONE => {}
                Some(last) if last.goes_on(at, page) => last.len += 1,
                _ => runs.push(Run { at, len: 1, page }),
            }
        }
        let mut segment = Segment::Runs(runs);
        segment.spread();
        if let Segment::Runs(runs) = &mut segment {
            runs.shrink_to_fit();
        }
        segment
    }

    /// All numbers, if runs take more.
    fn spread(&mut self) {
        let Segment::Runs(runs) = self else { return };
        if runs.len() <= RUNS_MAX {
            return;
        }
        let mut numbers = Box::new([NONE; SEGMENT as usize]);
        for run in runs.iter() {
            let places = numbers.iter_mut().skip(usize::from(run.at)).take(usize::from(run.len));
            places.zip(run.page..).for_each(|(place, page)| *place = page);
        }
        *self = Segment::Numbers(numbers);
    }

    fn get(&self, at: u16) -> Option<u32> {
        match self {
            Segment::Runs(runs) => {
                let behind = runs.partition_point(|run| run.at <= at);
                runs.get(behind.checked_sub(1)?)?.get(at)
            }
            Segment::Numbers(numbers) => numbers.get(usize::from(at)).copied().filter(|page| *page != NONE),
        }
    }

    /// Takes out what is at a place; what was there.
    fn clear(&mut self, at: u16) -> Option<u32> {
        let old = self.get(at)?;
        match self {
            Segment::Runs(runs) => {
                let number = runs.partition_point(|run| run.at <= at) - 1;
                let run = runs[number];
                let before = Run { len: at - run.at, ..run };
                let behind = Run { at: at + 1, len: run.end() - at - 1, page: old.wrapping_add(1) };
                let left = [before, behind].into_iter().filter(|run| run.len > 0);
                runs.splice(number..=number, left);
            }
            Segment::Numbers(numbers) => numbers[usize::from(at)] = NONE,
        }
        self.spread();
        Some(old)
    }

    /// Puts a page at a place; what was there.
    fn set(&mut self, at: u16, page: u32) -> Option<u32> {
        let old = self.clear(at);
        match self {
            Segment::Runs(runs) => {
                let number = runs.partition_point(|run| run.at < at);
                if let Some(before) = number.checked_sub(1)
                    && runs[before].goes_on(at, page)
                {
                    runs[before].len += 1;
                    let joins = runs.get(number).is_some_and(|next| runs[before].goes_on(next.at, next.page));
                    if joins {
                        runs[before].len += runs.remove(number).len;
                    }
                } else if let Some(next) = runs.get_mut(number)
                    && (Run { at, len: 1, page }).goes_on(next.at, next.page)
                {
                    *next = Run { at, len: next.len + 1, page };
                } else {
                    runs.insert(number, Run { at, len: 1, page });
                }
            }
            Segment::Numbers(numbers) => numbers[usize::from(at)] = page,
        }
        self.spread();
        old
    }

    /// The pages from a place on, with their places.
    fn pages(&self, from: u16) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (runs, numbers): (&[Run], &[u32]) = match self {
            Segment::Runs(runs) => (&runs[runs.partition_point(|run| run.end() <= from)..], &[]),
            Segment::Numbers(numbers) => (&[], &numbers[..]),
        };
        let of_run = move |run: &Run| {
            let skipped = from.saturating_sub(run.at);
            let (at, page) = (u32::from(run.at + skipped), run.page + u32::from(skipped));
            (at..u32::from(run.end())).zip(page..)
        };
        let all = (0u32..).zip(numbers.iter().copied()).skip(usize::from(from));
        runs.iter().flat_map(of_run).chain(all.filter(|(_, page)| *page != NONE))
    }

    /// One past the last place that has a page.
    fn end(&self) -> Option<u32> {
        match self {
            Segment::Runs(runs) => runs.last().map(|run| u32::from(run.end())),
            Segment::Numbers(numbers) => {
                numbers.iter().rposition(|page| *page != NONE).map(|at| at as u32 + 1)
            }
        }
    }

    /// Drops everything from a place on; the pages that were there go behind `gone`.
    fn truncate(&mut self, from: u16, gone: &mut Vec<u32>) {
        gone.extend(self.pages(from).map(|(_, page)| page));
        match self {
            Segment::Runs(runs) => {
                runs.truncate(runs.partition_point(|run| run.at < from));
                if let Some(last) = runs.last_mut() {
                    last.len = last.len.min(from - last.at);
                }
            }
            Segment::Numbers(numbers) => numbers[usize::from(from)..].fill(NONE),
        }
    }

    /// Bytes beside those of the segment itself.
    fn heap_bytes(&self) -> usize {
        match self {
            Segment::Runs(runs) => runs.capacity() * size_of::<Run>(),
            Segment::Numbers(_) => SEGMENT as usize * 4,
        }
    }
}

/// The pages of one file, in segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Segments {
    first: Segment,
    rest: Map<u32, Segment>,
    count: u32,
}

/// The pages of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageMap(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Segments(Segments),
    #[cfg_attr(not(feature = "paper"), expect(dead_code, reason = "nobody makes one"))]
    Tree(Box<Tree>),
}

impl Default for PageMap {
    fn default() -> PageMap {
        PageMap(Form::Segments(Segments::default()))
    }
}

/// Segment of an index, and the place in it.
fn place_of(index: u32) -> (u32, u16) {
    (index / SEGMENT, (index % SEGMENT) as u16)
}

impl Segments {
    fn segment(&self, number: u32) -> Option<&Segment> {
        if number == 0 { Some(&self.first) } else { self.rest.get(&number) }
    }

    fn segment_mut(&mut self, number: u32) -> Option<&mut Segment> {
        if number == 0 { Some(&mut self.first) } else { self.rest.get_mut(&number) }
    }

    /// The first `count` entries of a segment, [`NONE`] for holes.
    fn entries(&self, number: u32, count: usize) -> Vec<u32> {
        let mut entries = alloc::vec![NONE; count];
        for (at, page) in self.segment(number).into_iter().flat_map(|segment| segment.pages(0)) {
            if let Some(entry) = entries.get_mut(at as usize) {
                *entry = page;
            }
        }
        entries
    }

    /// Puts a whole segment: at most [`SEGMENT`] entries, [`NONE`] for holes.
    fn put_segment(&mut self, number: u32, entries: &[u32]) {
        let count = |segment: &Segment| segment.pages(0).count() as u32;
        let new = Segment::of(entries);
        self.count = self.count - self.segment(number).map_or(0, count) + count(&new);
        match number {
            0 => self.first = new,
            _ => drop(self.rest.insert(number, new)),
        }
    }

    /// The numbers of segments that may hold pages.
    fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.first.end().map(|_| 0).into_iter().chain(self.rest.keys().copied())
    }

    fn get(&self, index: u32) -> Option<u32> {
        let (number, at) = place_of(index);
        self.segment(number)?.get(at)
    }

    /// Puts a page at `index`; what was there.
    fn set(&mut self, index: u32, page: u32) -> Option<u32> {
        let (number, at) = place_of(index);
        let segment = match number {
            0 => &mut self.first,
            number => self.rest.or_default(number),
        };
        let old = segment.set(at, page);
        self.count += u32::from(old.is_none());
        old
    }

    /// Makes a hole at `index`; what was there.
    fn clear(&mut self, index: u32) -> Option<u32> {
        let (number, at) = place_of(index);
        let old = self.segment_mut(number)?.clear(at)?;
        self.count -= 1;
        Some(old)
    }

    /// Drops everything from `index` on; the pages that were there.
    fn truncate(&mut self, index: u32) -> Vec<u32> {
        let (number, at) = place_of(index);
        let mut gone = Vec::new();
        let later = self.rest.split_off(&number.saturating_add(1).max(1));
        if let Some(segment) = self.segment_mut(number) {
            segment.truncate(at, &mut gone);
        }
        gone.extend(later.values().flat_map(|segment| segment.pages(0)).map(|(_, page)| page));
        self.count -= gone.len() as u32;
        gone
    }

    /// The pages from an index on with their indices, in order.
    fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (first, at) = place_of(index);
        let numbers =
            (first == 0).then_some(0).into_iter().chain(self.rest.range(first..).map(|(number, _)| *number));
        numbers.flat_map(move |number| {
            let from = if number == first { at } else { 0 };
            let pages = self.segment(number).into_iter().flat_map(move |segment| segment.pages(from));
            pages.map(move |(at, page)| (number * SEGMENT + at, page))
        })
    }

    /// One past the last index that has a page; 0 if none has.
    fn end(&self) -> u32 {
        let last = |(number, segment): (&u32, &Segment)| segment.end().map(|end| number * SEGMENT + end);
        self.rest.iter().rev().find_map(last).or_else(|| self.first.end()).unwrap_or(0)
    }

    /// Bytes beside those of the map itself.
    fn heap_bytes(&self) -> usize {
        let segments = self.rest.values().map(Segment::heap_bytes).sum::<usize>();
        self.first.heap_bytes() + self.rest.heap_bytes() + segments
    }
}

impl PageMap {
    /// Makes the paper's tree of it.
    #[cfg(feature = "paper")]
    pub fn become_tree(&mut self) {
        let Form::Segments(segments) = &self.0 else { return };
        let mut tree = Tree::new();
        for (index, page) in segments.iter_from(0) {
            tree.set(index, page);
        }
        self.0 = Form::Tree(Box::new(tree));
    }

    /// How many pages there are.
    pub fn count(&self) -> u32 {
        match &self.0 {
            Form::Segments(segments) => segments.count,
            Form::Tree(tree) => tree.count(),
        }
    }

    /// The first `count` entries of a segment, [`NONE`] for holes.
    pub fn entries(&self, number: u32, count: usize) -> Vec<u32> {
        match &self.0 {
            Form::Segments(segments) => segments.entries(number, count),
            Form::Tree(tree) => {
                let first = number.saturating_mul(SEGMENT);
                (first..).take(count).map(|index| tree.get(index).unwrap_or(NONE)).collect()
            }
        }
    }

    /// Puts a whole segment: at most [`SEGMENT`] entries, [`NONE`] for holes.
    pub fn put_segment(&mut self, number: u32, entries: &[u32]) {
        match &mut self.0 {
            Form::Segments(segments) => segments.put_segment(number, entries),
            Form::Tree(tree) => {
                let indices = number * SEGMENT..(number + 1) * SEGMENT;
                for (index, page) in indices.zip(entries.iter().copied().chain(core::iter::repeat(NONE))) {
                    if page == NONE {
                        tree.clear(index)
                    } else {
                        tree.set(index, page)
                    };
                }
            }
        }
    }

    /// The numbers of segments that may hold pages.
    pub fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        let (segments, tree) = self.both();
        let of_tree = 0..tree.map_or(0, |tree| tree.end().div_ceil(SEGMENT));
        segments.into_iter().flat_map(Segments::segments).chain(of_tree)
    }

    pub fn get(&self, index: u32) -> Option<u32> {
        match &self.0 {
            Form::Segments(segments) => segments.get(index),
            Form::Tree(tree) => tree.get(index),
        }
    }

    /// Puts a page at `index`; what was there.
    pub fn set(&mut self, index: u32, page: u32) -> Option<u32> {
        match &mut self.0 {
            Form::Segments(segments) => segments.set(index, page),
            Form::Tree(tree) => tree.set(index, page),
        }
    }

    /// Makes a hole at `index`; what was there.
    pub fn clear(&mut self, index: u32) -> Option<u32> {
        match &mut self.0 {
            Form::Segments(segments) => segments.clear(index),
            Form::Tree(tree) => tree.clear(index),
        }
    }

    /// Drops everything from `index` on; the pages that were there.
    pub fn truncate(&mut self, index: u32) -> Vec<u32> {
        match &mut self.0 {
            Form::Segments(segments) => segments.truncate(index),
            Form::Tree(tree) => tree.truncate(index),
        }
    }

    fn both(&self) -> (Option<&Segments>, Option<&Tree>) {
        match &self.0 {
            Form::Segments(segments) => (Some(segments), None),
            Form::Tree(tree) => (None, Some(tree)),
        }
    }

    /// The pages from an index on with their indices, in order.
    fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (segments, tree) = self.both();
        let of_segments = segments.into_iter().flat_map(move |segments| segments.iter_from(index));
        of_segments.chain(tree.into_iter().flat_map(move |tree| tree.iter_from(index)))
    }

    /// The pages with their indices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.iter_from(0)
    }

    /// The first index from `from` on that has a page.
    pub fn next_page(&self, from: u32) -> Option<u32> {
        self.iter_from(from).next().map(|(index, _)| index)
    }

    /// One past the last index that has a page; 0 if none has.
    pub fn end(&self) -> u32 {
        match &self.0 {
            Form::Segments(segments) => segments.end(),
            Form::Tree(tree) => tree.end(),
        }
    }

    /// Bytes beside those of the map itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Segments(segments) => segments.heap_bytes(),
            Form::Tree(tree) => size_of::<Tree>() + tree.heap_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_plain_map() {
        agrees_with_a_plain_map(PageMap::default());
    }

    #[test]
    #[cfg(feature = "paper")]
    fn the_papers_tree_does() {
        let mut map = PageMap::default();
        map.set(70, 7);
        map.become_tree();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(70, 7)]);
        map.clear(70);
        agrees_with_a_plain_map(map);
    }

    fn agrees_with_a_plain_map(mut map: PageMap) {
        let mut model = BTreeMap::new();
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % below) as u32
        };
        for step in 0..20_000 {
            // In stretches pages go one behind the other, in others anywhere.
            let index = if step / 500 % 2 == 0 { step % 700 } else { random(3000) };
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
        let (mut again, mut entries) = (PageMap::default(), Vec::new());
        for number in map.segments() {
            entries.push(map.entries(number, SEGMENT as usize));
            again.put_segment(number, &map.entries(number, SEGMENT as usize));
        }
        assert!(again.iter().eq(map.iter()) && again.count() == map.count());
        map.set(8_000_000, 5);
        assert_eq!((map.end(), map.next_page(4_000_000)), (8_000_001, Some(8_000_000)));
    }

    #[test]
    fn pages_one_behind_the_other_take_a_few_bytes_and_scattered_ones_four_each() {
        let mut map = PageMap::default();
        for index in 0..512 {
            map.set(index, index / 63 * 64 + index % 63);
        }
        assert!(map.heap_bytes() <= 16 * 8, "{}", map.heap_bytes());
        for index in (0..512).rev() {
            map.set(index, 7 * index);
        }
        assert!(map.heap_bytes() <= 512 * 4, "{}", map.heap_bytes());
        assert_eq!((map.count(), map.get(100), map.end()), (512, Some(700), 512));
    }
}
