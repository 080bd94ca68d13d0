//! The plain models of the policies that work by erase block; see [`models`](super::models).

use super::models::{Model, without};
use super::traces::Io;
use bimetal::cache::Access;
use std::collections::{BTreeSet, HashMap};

/// Writes `pages`, ascending, neighbours together.
fn write_runs(pages: &[u64], io: &mut Vec<Io>) {
    for run in pages.chunk_by(|a, b| a + 1 == *b) {
        io.push(Io::Write(run[0], run.len() as u32));
    }
}

/// Reads what `kept` lacks of the range, then writes all of it.
fn write_padded(first: u64, end: u64, kept: impl Fn(u64) -> bool, io: &mut Vec<Io>) {
    let missing: Vec<u64> = (first..end).filter(|&page| !kept(page)).collect();
    for run in missing.chunk_by(|a, b| a + 1 == *b) {
        io.push(Io::Read(run[0], run.len() as u32));
    }
    io.push(Io::Write(first, (end - first) as u32));
}

/// FAB, BPLRU and WOW: whole erase blocks leave.
pub struct Grouped {
    pub kind: Group,
    capacity: usize,
    block: u64,
    end: u64,
    kept: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
    /// Blocks by use, the most recent last.
    order: Vec<u64>,
    /// BPLRU: the offset that goes on in order. WOW: 1 for a set recency bit.
    state: HashMap<u64, u64>,
    hand: u64,
    last: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Group {
    Fab,
    Bplru { pads: bool },
    Wow { bits: bool },
}

impl Grouped {
    pub fn new(kind: Group, capacity: usize, block: u64, end: u64) -> Grouped {
        Grouped {
            kind,
            capacity,
            block,
            end,
            kept: BTreeSet::new(),
            dirty: BTreeSet::new(),
            order: Vec::new(),
            state: HashMap::new(),
            hand: 0,
            last: u64::MAX,
        }
    }

    fn members(&self, block: u64) -> Vec<u64> {
        self.kept.range(block * self.block..(block + 1) * self.block).copied().collect()
    }

    fn touch(&mut self, page: u64, is_write: bool, was_there: bool) {
        let block = page / self.block;
        if self.kind == Group::Fab || is_write {
            without(&mut self.order, block);
            self.order.push(block);
        }
        match self.kind {
            Group::Bplru { .. } if is_write => {
                let next = self.state.entry(block).or_insert(0);
                let offset = page % self.block;
                *next = if offset == 0 || *next == offset { offset + 1 } else { u64::MAX };
                if *next == self.block {
                    without(&mut self.order, block);
                    self.order.insert(0, block);
                }
            }
            Group::Wow { .. } if is_write => {
                if !was_there {
                    self.state.insert(block, 0);
                } else if page != self.last.wrapping_add(1) {
                    self.state.insert(block, 1);
                }
                self.last = page;
            }
            _ => {}
        }
    }

    fn victim(&mut self) -> u64 {
        match self.kind {
            Group::Fab => {
                let counts: Vec<usize> = self.order.iter().map(|&block| self.members(block).len()).collect();
                let most = *counts.iter().max().unwrap();
                self.order[counts.iter().position(|&count| count == most).unwrap()]
            }
            Group::Bplru { .. } => self.order[0],
            Group::Wow { bits } => loop {
                let above = self.order.iter().filter(|&&block| block >= self.hand).min();
                let block = *above.or(self.order.iter().min()).unwrap();
                self.hand = block + 1;
                if !bits || self.state[&block] == 0 {
                    return block;
                }
                self.state.insert(block, 0);
            },
        }
    }

    fn make_room(&mut self, io: &mut Vec<Io>) {
        let block = self.victim();
        let members = self.members(block);
        if self.kind == (Group::Bplru { pads: true }) {
            let end = ((block + 1) * self.block).min(self.end);
            write_padded(block * self.block, end, |page| self.kept.contains(&page), io);
        } else {
            let dirty: Vec<u64> = members.iter().copied().filter(|page| self.dirty.contains(page)).collect();
            write_runs(&dirty, io);
        }
        for page in members {
            self.kept.remove(&page);
            self.dirty.remove(&page);
        }
        without(&mut self.order, block);
        self.state.remove(&block);
    }
}

impl Model for Grouped {
    fn access(&mut self, access: Access, page: u64, io: &mut Vec<Io>) {
        let is_write = access == Access::Write;
        let is_kept = self.kept.contains(&page);
        if !is_kept && !is_write && self.kind != Group::Fab {
            return io.push(Io::Read(page, 1));
        }
        if !is_kept {
            if self.kept.len() == self.capacity {
                self.make_room(io);
            }
            if !is_write {
                io.push(Io::Read(page, 1));
            }
        }
        let was_there = self.order.contains(&(page / self.block));
        self.kept.insert(page);
        if is_write {
            self.dirty.insert(page);
        }
        self.touch(page, is_write, was_there);
    }
}

/// The cluster of `wanted` among `points` by Lloyd's k-means from `seeds`, point by point.
fn cluster_of(wanted: u64, points: &[u64], seeds: &[u64]) -> Vec<u64> {
    // Sum and count of each cluster; the distance of x to its mean is |x·count - sum| / count.
    let mut means: Vec<(i128, i128)> = seeds.iter().map(|&seed| (seed.into(), 1)).collect();
    loop {
        let mut groups = vec![Vec::new(); means.len()];
        for &point in points {
            let distance = |&(sum, count): &(i128, i128)| ((i128::from(point) * count - sum).abs(), count);
            let nearest = (0..means.len()).reduce(|a, b| {
                let ((far_a, under_a), (far_b, under_b)) = (distance(&means[a]), distance(&means[b]));
                if far_b * under_a < far_a * under_b { b } else { a }
            });
            groups[nearest.unwrap()].push(point);
        }
        groups.retain(|group| !group.is_empty());
        let sum = |group: &Vec<u64>| group.iter().map(|&point| i128::from(point)).sum::<i128>();
        let moved: Vec<(i128, i128)> = groups.iter().map(|group| (sum(group), group.len() as i128)).collect();
        let same = |(a, b): (&(i128, i128), &(i128, i128))| a.0 * b.1 == b.0 * a.1;
        if moved.len() == means.len() && moved.iter().zip(&means).all(same) {
            return groups.into_iter().find(|group| group.contains(&wanted)).unwrap();
        }
        means = moved;
    }
}

/// CSWLRU with `trigger=lru`, `cluster=kmeans`, `pad=block`, `density=occupancy`.
pub struct Cswlru {
    capacity: usize,
    block: u64,
    end: u64,
    dense: f64,
    /// The distance at which a dirty page protects a clean one; none: same erase block.
    near: Option<u64>,
    by_distance: bool,
    by_frequency: bool,
    order: Vec<u64>,
    dirty: BTreeSet<u64>,
    times: HashMap<u64, u32>,
}

impl Cswlru {
    pub fn new(capacity: usize, block: u64, end: u64) -> Cswlru {
        Cswlru {
            capacity,
            block,
            end,
            dense: 0.5,
            near: Some(block / 2),
            by_distance: true,
            by_frequency: true,
            order: Vec::new(),
            dirty: BTreeSet::new(),
            times: HashMap::new(),
        }
    }

    pub fn dense(self, dense: f64) -> Cswlru {
        Cswlru { dense, ..self }
    }

    pub fn near(self, near: Option<u64>) -> Cswlru {
        Cswlru { near, ..self }
    }

    pub fn rules(self, by_distance: bool, by_frequency: bool) -> Cswlru {
        Cswlru { by_distance, by_frequency, ..self }
    }

    fn is_protected(&self, page: u64) -> bool {
        self.by_distance
            && self.dirty.iter().any(|&dirty| match self.near {
                Some(near) => dirty.abs_diff(page) <= near,
                None => dirty / self.block == page / self.block,
            })
    }

    fn write_cluster(&mut self, page: u64, io: &mut Vec<Io>) {
        let points: Vec<u64> = self.dirty.iter().copied().collect();
        let mut seeds: Vec<u64> = Vec::new();
        for &point in &points {
            if seeds.last().is_none_or(|last| last / self.block != point / self.block) {
                seeds.push(point);
            }
        }
        let cluster = cluster_of(page, &points, &seeds);
        let touched: BTreeSet<u64> = cluster.iter().map(|page| page / self.block).collect();
        let (first, last) = (cluster[0] / self.block, cluster[cluster.len() - 1] / self.block);
        if cluster.len() as f64 / (self.block as f64 * touched.len() as f64) >= self.dense {
            let range = first * self.block..((last + 1) * self.block).min(self.end);
            write_padded(range.start, range.end, |page| self.order.contains(&page), io);
            for page in range {
                if self.order.contains(&page) && !self.dirty.remove(&page) {
                    *self.times.get_mut(&page).unwrap() += 1;
                }
            }
        } else {
            write_runs(&cluster, io);
            for page in &cluster {
                self.dirty.remove(page);
            }
        }
    }

    fn make_room(&mut self, io: &mut Vec<Io>) {
        let clean = self.order.iter().take_while(|page| !self.dirty.contains(page));
        let candidates = clean.enumerate().filter(|(_, page)| !self.is_protected(**page));
        let best =
            candidates.min_by_key(|(at, page)| (if self.by_frequency { self.times[page] } else { 0 }, *at));
        let victim = match best {
            Some((_, &page)) => page,
            None => {
                let page = *self.order.iter().find(|page| self.dirty.contains(page)).unwrap();
                self.write_cluster(page, io);
                page
            }
        };
        without(&mut self.order, victim);
        self.times.remove(&victim);
    }
}

impl Model for Cswlru {
    fn access(&mut self, access: Access, page: u64, io: &mut Vec<Io>) {
        if !without(&mut self.order, page) {
            if self.order.len() == self.capacity {
                self.make_room(io);
            }
            self.times.insert(page, 0);
            if access == Access::Read {
                io.push(Io::Read(page, 1));
            }
        }
        self.order.push(page);
        if access == Access::Write {
            self.dirty.insert(page);
        }
    }
}

/// Tide with the default costs.
pub struct Tide {
    capacity: usize,
    block: u64,
    /// Blocks with so many dirty pages are filled up.
    pad_from: usize,
    end: u64,
    level: f64,
    /// Clean pages and the level at their last read, the lowest first.
    clean: Vec<(u64, f64)>,
    leaving: Vec<u64>,
    /// Dirty blocks: number, pages, level at the last write, offset that goes on in order; by their last write.
    dirty: Vec<(u64, BTreeSet<u64>, f64, u64)>,
}

impl Tide {
    /// On a device of `end` pages.
    pub fn new(capacity: usize, block: u64, end: u64) -> Tide {
        let (clean, leaving, dirty) = (Vec::new(), Vec::new(), Vec::new());
        Tide { capacity, block, pad_from: usize::MAX, end, level: 0.0, clean, leaving, dirty }
    }

    /// With blocks filled up that are three quarters full.
    pub fn padded(self) -> Tide {
        Tide { pad_from: (self.block * 3).div_ceil(4) as usize, ..self }
    }

    fn is_kept(&self, page: u64) -> bool {
        self.clean.iter().any(|entry| entry.0 == page) || self.leaving.contains(&page)
    }

    fn kept(&self) -> usize {
        self.clean.len() + self.leaving.len() + self.dirty.iter().map(|block| block.1.len()).sum::<usize>()
    }

    fn write_page(&mut self, page: u64) {
        let number = page / self.block;
        let at = self.dirty.iter().position(|block| block.0 == number);
        let (_, mut pages, _, next) =
            at.map_or((number, BTreeSet::new(), 0.0, 0), |at| self.dirty.remove(at));
        pages.insert(page);
        let offset = page % self.block;
        let is_complete = next == u64::MAX - 1;
        let next = match next {
            _ if offset == 0 => 1,
            next if next == offset && !is_complete => next + 1,
            _ => u64::MAX,
        };
        let complete = next == self.block && pages.len() as u64 == self.block;
        self.dirty.push((number, pages, self.level, if complete { u64::MAX - 1 } else { next }));
    }

    fn make_room(&mut self, io: &mut Vec<Io>) {
        if self.leaving.is_empty() {
            let merge = 9.0 * self.block as f64;
            let heights: Vec<f64> = (self.dirty.iter())
                .map(|block| {
                    if block.3 == u64::MAX - 1 {
                        block.2
                    } else {
                        block.2 + 8.0 + merge / block.1.len() as f64
                    }
                })
                .collect();
            // Of complete blocks only the last one counts.
            let last_complete = self.dirty.iter().rposition(|block| block.3 == u64::MAX - 1);
            let candidates = (0..self.dirty.len())
                .filter(|&at| self.dirty[at].3 != u64::MAX - 1 || Some(at) == last_complete)
                .map(|at| (heights[at], self.dirty[at].3 != u64::MAX - 1, self.dirty[at].1.len(), at));
            let lowest =
                candidates.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
            let clean = self.clean.first().map_or(f64::INFINITY, |&(_, level)| level + 1.0);
            match lowest {
                Some((height, _, _, at)) if height < clean => {
                    self.level = self.level.max(height);
                    let (number, dirty, ..) = self.dirty.remove(at);
                    let first = number * self.block;
                    let pages: Vec<u64> = dirty.iter().copied().collect();
                    if pages.len() >= self.pad_from {
                        let kept = |page| dirty.contains(&page) || self.is_kept(page);
                        write_padded(first, (first + self.block).min(self.end), kept, io);
                    } else {
                        write_runs(&pages, io);
                    }
                    self.leaving.extend(pages);
                }
                _ => {
                    self.level = self.level.max(clean);
                    self.clean.remove(0);
                    return;
                }
            }
        }
        self.leaving.remove(0);
    }
}

impl Model for Tide {
    fn access(&mut self, access: Access, page: u64, io: &mut Vec<Io>) {
        let is_dirty = self.dirty.iter().any(|block| block.1.contains(&page));
        if is_dirty && access == Access::Read {
            return;
        }
        let clean = self.clean.iter().position(|entry| entry.0 == page);
        let is_kept = is_dirty || clean.is_some() || self.leaving.contains(&page);
        if !is_kept && self.kept() == self.capacity {
            self.make_room(io);
        }
        if let Some(at) = self.clean.iter().position(|entry| entry.0 == page) {
            self.clean.remove(at);
        }
        without(&mut self.leaving, page);
        match access {
            Access::Write => self.write_page(page),
            Access::Read => {
                if !is_kept {
                    io.push(Io::Read(page, 1));
                }
                self.clean.push((page, self.level));
            }
        }
    }
}
