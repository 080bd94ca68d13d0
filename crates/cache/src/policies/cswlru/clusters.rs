//! The dirty pages and their clusters.
//!
//! The dirty pages are kept by erase block, the blocks in order. Their clusters are those of k-means over all of
//! them, a block's pages, or each page alone ([`Grouping`]).
//!
//! # One cluster of k-means without all the others
//!
//! To make room only the cluster of one page is wanted, but k-means is defined over all pages, and a cache may hold a
//! hundred thousand. In one dimension a mean depends only on itself and its two neighbours in the iteration before. So
//! the iteration is run on the blocks around the page alone (a window): the clusters at an open end of the window
//! are wrong after the first step, their neighbours after the second, and so on; the others are exact. The cluster
//! is taken when it and so many neighbours on each side are exact and have not changed in the last step. If the wrong
//! ends come too near first, the window is doubled.
//!
//! This differs from k-means over everything only if a change from afar arrives after all is still around the
//! page. [`Reach::All`] runs it over everything.
//!
//! Cost: that of a window of a few blocks, whatever the cache's size; with [`Reach::All`] that of all dirty pages.

use super::super::kit::*;
use crate::kmeans::{Lloyd, lloyd};
use std::ops::Range;

/// How dirty pages are grouped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Grouping {
    /// By k-means.
    KMeans,
    /// By erase block.
    Block,
    /// Not at all.
    Page,
}

/// How much of the dirty pages k-means looks at to find one cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// The blocks around the page, until so many clusters on each side have settled.
    Near(usize),
    /// All of them, until no mean changes.
    All,
}

/// Blocks on each side of the page in the first window, beside those that must settle.
const WINDOW_MARGIN: usize = 4;

/// The dirty pages.
pub struct Dirty<X: Index> {
    pub blocks: Blocks<X>,
    /// The numbers of the blocks: asked only for the place of a new block in the list.
    order: X::Ordered,
    /// The blocks in ascending order.
    sorted: List,
    points: Vec<u64>,
    seeds: Vec<u64>,
    lloyd: Lloyd,
}

/// The clusters of a window that are exact, as a range.
#[derive(Clone, Copy)]
struct Exact {
    from: usize,
    to: usize,
    open_below: bool,
    open_above: bool,
}

impl Exact {
    /// After a step: a cluster is exact if the mean it was assigned to and those beside it were.
    fn step(&mut self, lloyd: &Lloyd, means_before: usize) {
        let low = if self.open_below { self.from + 1 } else { 0 };
        let high = if self.open_above { self.to.saturating_sub(1) } else { means_before };
        self.from = lloyd.survivors_below(low);
        self.to = lloyd.survivors_below(high);
    }

    /// Whether the clusters from `low` to `high` are exact.
    fn covers(&self, low: usize, high: usize) -> bool {
        self.from <= low && high < self.to
    }
}

impl<X: Index> Dirty<X> {
    /// No dirty pages; `blocks` has room for one list.
    pub fn new(mut blocks: Blocks<X>) -> Dirty<X> {
        let sorted = blocks.list(0);
        let order = X::Ordered::default();
        Dirty { blocks, order, sorted, points: Vec::new(), seeds: Vec::new(), lloyd: Lloyd::default() }
    }

    pub fn add(&mut self, page: u64) {
        let (block, is_new) = self.blocks.enter(page);
        if is_new {
            let number = self.blocks.number(block);
            match self.order.below(number) {
                None => self.sorted.push_front(&mut self.blocks, block),
                Some(below) => {
                    let below = self.blocks.find(below);
                    self.sorted.insert_after(&mut self.blocks, block, below);
                }
            }
            self.order.add(number);
        }
    }

    pub fn take(&mut self, page: u64) {
        let (block, left) = self.blocks.exit(page);
        if left == 0 {
            self.order.take(self.blocks.number(block));
            self.sorted.remove(&mut self.blocks, block);
            self.blocks.free(block);
        }
    }

    /// Collects the dirty pages of block `first` and the blocks after it, up to `count` blocks, ascending, and the first
    /// page of each. The block after them, or [`NIL`].
    fn collect(&mut self, first: u32, count: usize) -> u32 {
        self.points.clear();
        self.seeds.clear();
        let mut block = first;
        while block != NIL && self.seeds.len() < count {
            let start = self.points.len();
            self.points.extend(self.blocks.pages(block));
            self.seeds.push(self.points[start]);
            block = self.sorted.after(&self.blocks, block);
        }
        block
    }

    fn collect_all(&mut self) {
        self.collect(self.sorted.front(&self.blocks), usize::MAX);
    }

    /// Collects the dirty pages of up to `radius` blocks on each side of block `centre`. Whether there are more below
    /// and above.
    fn collect_around(&mut self, centre: u32, radius: usize) -> (bool, bool) {
        let (mut first, mut count) = (centre, 1 + radius);
        let mut below = self.sorted.before(&self.blocks, first);
        while below != NIL && count < 1 + 2 * radius {
            (first, count) = (below, count + 1);
            below = self.sorted.before(&self.blocks, first);
        }
        let above = self.collect(first, count);
        (below != NIL, above != NIL)
    }

    /// The cluster of `page` among the points if it is certain there: the range of its points.
    fn settle(
        &mut self,
        page: u64,
        reach: usize,
        open_below: bool,
        open_above: bool,
    ) -> Option<Range<usize>> {
        let at = self.points.partition_point(|&point| point < page);
        let mut exact = Exact { from: 0, to: self.seeds.len(), open_below, open_above };
        let mut means = self.seeds.len();
        self.lloyd.start(&self.points, &self.seeds);
        loop {
            let changed = self.lloyd.step(&self.points);
            exact.step(&self.lloyd, means);
            let starts = self.lloyd.starts();
            means = starts.len();
            let cluster = starts.partition_point(|&start| start <= at) - 1;
            let low = cluster.saturating_sub(reach);
            let high = (cluster + reach).min(means - 1);
            if !exact.covers(low, high) {
                return None;
            }
            if !changed || self.lloyd.are_steady(low, high) {
                return Some(starts[cluster]..starts.get(cluster + 1).copied().unwrap_or(self.points.len()));
            }
        }
    }

    /// The cluster of `page` by k-means around it.
    fn cluster_near(&mut self, page: u64, reach: usize) -> Range<usize> {
        let centre = self.blocks.find_page(page);
        let mut radius = reach + WINDOW_MARGIN;
        loop {
            let (open_below, open_above) = self.collect_around(centre, radius);
            if let Some(range) = self.settle(page, reach, open_below, open_above) {
                return range;
            }
            radius *= 2;
        }
    }

    /// The cluster of the dirty page `page`, ascending, in `cluster`.
    pub fn cluster_of(&mut self, page: u64, grouping: Grouping, reach: Reach, cluster: &mut Vec<u64>) {
        cluster.clear();
        match (grouping, reach) {
            (Grouping::Page, _) => cluster.push(page),
            (Grouping::Block, _) => cluster.extend(self.blocks.pages(self.blocks.find_page(page))),
            (Grouping::KMeans, Reach::Near(reach)) => {
                let range = self.cluster_near(page, reach);
                cluster.extend_from_slice(&self.points[range]);
            }
            (Grouping::KMeans, Reach::All) => {
                self.collect_all();
                let at = self.points.partition_point(|&point| point < page);
                let range = lloyd(&self.points, &self.seeds).range_of(at);
                cluster.extend_from_slice(&self.points[range]);
            }
        }
    }

    /// All clusters, ascending.
    pub fn all(&mut self, grouping: Grouping) -> Vec<Vec<u64>> {
        self.collect_all();
        match grouping {
            Grouping::KMeans => {
                lloyd(&self.points, &self.seeds).ranges().map(|range| self.points[range].to_vec()).collect()
            }
            Grouping::Block => {
                let geometry = self.blocks.geometry();
                let same = |a: &u64, b: &u64| geometry.block(*a) == geometry.block(*b);
                self.points.chunk_by(same).map(<[u64]>::to_vec).collect()
            }
            Grouping::Page => self.points.iter().map(|&page| vec![page]).collect(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + (self.points.capacity() + self.seeds.capacity()) * size_of::<u64>()
    }
}
