//! The dirty pages and their clusters.
//!
//! The dirty pages are kept by erase block, the blocks in order. A cluster is found by k-means over all dirty pages
//! ([`Grouping::KMeans`]), or is simply a block's, or the page alone.

use super::super::kit::*;
use crate::cache::kmeans::lloyd;

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

/// The dirty pages.
pub struct Dirty<X: Index> {
    pub blocks: Blocks<X>,
    order: X::Ordered,
    points: Vec<u64>,
    seeds: Vec<u64>,
}

impl<X: Index> Dirty<X> {
    pub fn new(blocks: Blocks<X>) -> Dirty<X> {
        Dirty { blocks, order: X::Ordered::default(), points: Vec::new(), seeds: Vec::new() }
    }

    pub fn add(&mut self, page: u64) {
        let (block, is_new) = self.blocks.enter(page);
        if is_new {
            self.order.add(self.blocks.number(block));
        }
    }

    pub fn take(&mut self, page: u64) {
        let (block, left) = self.blocks.exit(page);
        if left == 0 {
            self.order.take(self.blocks.number(block));
            self.blocks.free(block);
        }
    }

    /// Collects all dirty pages, ascending, and the first of each block.
    fn collect(&mut self) {
        self.points.clear();
        self.seeds.clear();
        let mut from = 0;
        while let Some(number) = self.order.at_or_above(from) {
            let start = self.points.len();
            self.points.extend(self.blocks.pages(self.blocks.find(number)));
            self.seeds.push(self.points[start]);
            from = number + 1;
        }
    }

    /// The cluster of the dirty page `page`, ascending, in `cluster`.
    pub fn cluster_of(&mut self, page: u64, grouping: Grouping, cluster: &mut Vec<u64>) {
        cluster.clear();
        match grouping {
            Grouping::Page => cluster.push(page),
            Grouping::Block => cluster.extend(self.blocks.pages(self.blocks.find_page(page))),
            Grouping::KMeans => {
                self.collect();
                let at = self.points.partition_point(|&point| point < page);
                let range = lloyd(&self.points, &self.seeds).range_of(at);
                cluster.extend_from_slice(&self.points[range]);
            }
        }
    }

    /// All clusters, ascending.
    pub fn all(&mut self, grouping: Grouping) -> Vec<Vec<u64>> {
        self.collect();
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
