//! CSWLRU: LRU that writes dirty pages in clusters, fills the gaps of dense ones, and keeps the clean pages
//! that may soon be such a gap.
//!
//! Its three parts, each of which can be switched off:
//!
//! 1. *Clustering* (`cluster`): the dirty pages are grouped by k-means over their numbers. k is the number of
//!    erase blocks they touch; the first means are the lowest dirty page of each.
//! 2. *Read-ahead write cache* (`pad`): a cluster that is dense, that is, fills at least `dense` of the erase
//!    blocks it touches, is written as one command from block border to block border. What is missing is read
//!    from the device, or taken from clean pages in the cache, which are counted as written.
//! 3. *Clean eviction by distance and frequency* (`evict`): a clean page with a dirty page near it stays; of the
//!    others the one that was written least often leaves, the least recently used among equals.
//!
//! Room is made from the LRU end: of the clean pages before the first dirty page one leaves by rule 3. If all
//! of them are to stay (or there is none), the cluster of that first dirty page is written, and the page leaves.
//!
//! Source: Ramasamy and Karantharaj, "SSD Aware File System Page Cache Algorithms Designs and Implementation to
//! Increase Switch Merge and Reduce Full Merge". The text leaves much open; each reading is an option, and
//! `docs/cache.md` lists them.
//!
//! Cost: a hit is O(1), the choice of a clean page O(log n), amortised; for that of a cluster see [`clusters`].

mod clean;
mod clusters;

use super::kit::*;
use clean::{Candidates, FREE_TAG_BIT, Near, Rules};
use clusters::{Dirty, Grouping, Reach};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// CSWLRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "cswlru",
    about: "k-means clusters of dirty pages, gap filling, clean eviction by distance and frequency",
    options: &[
        OptionSpec::new("cluster", "kmeans", "kmeans, block (erase blocks) or page (none)"),
        OptionSpec::new(
            "reach",
            "8",
            "k-means near the page: until so many clusters on each side have settled; or all",
        ),
        OptionSpec::new("pad", "block", "fill dense clusters: to block borders, their span, or none"),
        OptionSpec::new("dense", "1/2", "density from which a cluster is filled"),
        OptionSpec::new(
            "density",
            "occupancy",
            "of the blocks touched (occupancy), of the span (fill), or the paper's (last - first) / count",
        ),
        OptionSpec::new("keep-padding", "no", "yes: pages read to fill gaps stay, for clean LRU pages"),
        OptionSpec::new("evict", "combined", "clean page: combined, distance, frequency or lru"),
        OptionSpec::new("near", "half", "distance: half a block, aligned (same block) or full block"),
        OptionSpec::new("trigger", "lru", "clean pages before the first dirty one (lru) or all (clean)"),
        OptionSpec::new("order", "density", "order of a sync: density then wait, or score (product)"),
    ],
    make: Make { source: "Ramasamy and Karantharaj 2014", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let writing = Writing::new(order)?;
    let near =
        order.one_of("near", &[("half", Near::Half), ("aligned", Near::Aligned), ("full", Near::Full)])?;
    let (distance, frequency, by_lru) = order.one_of(
        "evict",
        &[
            ("combined", (true, true, false)),
            ("distance", (true, false, false)),
            ("frequency", (false, true, false)),
            ("lru", (false, false, true)),
        ],
    )?;
    let passes_dirty = order.one_of("trigger", &[("lru", false), ("clean", true)])?;
    let rules = Rules { distance: distance.then_some(near), frequency, passes_dirty };
    let config = order.config();
    order.cache::<X, _>(Needs::lists(1), |pages| Cswlru {
        list: pages.list(0),
        clean: Candidates::new(rules, pages.node_count(), Blocks::new(config, 0)),
        dirty: Dirty::new(Blocks::new(config, 1)),
        writing,
        by_lru,
        passes_dirty,
        has_written: false,
        cluster: Vec::new(),
    })
}

/// Tag bit: the page is among the dirty ones.
const AMONG_DIRTY: u32 = FREE_TAG_BIT;

#[derive(Clone, Copy, PartialEq)]
enum Pad {
    Block,
    Span,
    None,
}

#[derive(Clone, Copy, PartialEq)]
enum Density {
    Occupancy,
    Fill,
    Paper,
}

/// How clusters are written.
struct Writing {
    grouping: Grouping,
    reach: Reach,
    pad: Pad,
    density: Density,
    dense: f64,
    keeps_padding: bool,
    by_score: bool,
    /// The device's size in pages.
    end: u64,
}

impl Writing {
    fn new(order: &BuildContext) -> Result<Writing> {
        let groupings = [("kmeans", Grouping::KMeans), ("block", Grouping::Block), ("page", Grouping::Page)];
        let densities =
            [("occupancy", Density::Occupancy), ("fill", Density::Fill), ("paper", Density::Paper)];
        Ok(Writing {
            grouping: order.one_of("cluster", &groupings)?,
            reach: match order.text("reach") {
                "all" => Reach::All,
                _ => Reach::Near(order.number_within("reach", 1, 1000)? as usize),
            },
            pad: order.one_of("pad", &[("block", Pad::Block), ("span", Pad::Span), ("none", Pad::None)])?,
            density: order.one_of("density", &densities)?,
            dense: order.fraction_to("dense", 1.0)?,
            keeps_padding: order.flag("keep-padding")?,
            by_score: order.one_of("order", &[("density", false), ("score", true)])?,
            end: order.config().space.unwrap_or(u64::MAX),
        })
    }
}

struct Cswlru<X: Index> {
    list: List,
    clean: Candidates<X>,
    dirty: Dirty<X>,
    writing: Writing,
    by_lru: bool,
    passes_dirty: bool,
    /// With `trigger=clean`: a cluster was written for the room that is being made.
    has_written: bool,
    cluster: Vec<u64>,
}

impl<X: Index> Cswlru<X> {
    /// How dense a cluster is: higher is denser, 1 is full. The paper's measure, (last - first) / count, falls
    /// as a cluster gets denser and is 0 for a single page, which is then the least dense here.
    fn density(&self, cluster: &[u64]) -> f64 {
        let (Some(&first), Some(&last)) = (cluster.first(), cluster.last()) else { return 0.0 };
        let count = cluster.len() as f64;
        match self.writing.density {
            Density::Occupancy => {
                let geometry = self.dirty.blocks.geometry();
                let touched = cluster.chunk_by(|&a, &b| geometry.block(a) == geometry.block(b)).count();
                count / (f64::from(geometry.pages()) * touched as f64)
            }
            Density::Fill => count / (last - first + 1) as f64,
            Density::Paper if cluster.len() < 2 => 0.0,
            Density::Paper => count / (last - first) as f64,
        }
    }

    /// The pages that a dense cluster is written with; none if it is not dense.
    fn enlarged(&self, cluster: &[u64]) -> Option<Range<u64>> {
        let (&first, &last) = cluster.first().zip(cluster.last())?;
        let dense = self.writing.pad != Pad::None && self.density(cluster) >= self.writing.dense;
        dense.then(|| match self.writing.pad {
            Pad::Block => {
                let geometry = self.dirty.blocks.geometry();
                let end = geometry.first(geometry.block(last) + 1);
                geometry.first(geometry.block(first))..end.min(self.writing.end)
            }
            Pad::Span | Pad::None => first..last + 1,
        })
    }

    /// Plans the writes of a cluster.
    fn plan_cluster(&mut self, pages: &mut Pages<X>, cluster: &[u64], plan: &mut Plan) {
        let Some(range) = self.enlarged(cluster) else {
            for &page in cluster {
                plan.write_page(pages, pages.find(page));
            }
            return;
        };
        let from = plan.write.len();
        super::plan_whole(pages, plan, range);
        for out in &plan.write[from..] {
            if out.node == NIL {
                if self.writing.keeps_padding {
                    plan.fetch.push(out.page);
                }
            } else if !pages.is_dirty(out.node) {
                self.clean.written_while_clean(pages, out.node);
            }
        }
    }

    /// Makes the clean pages at the LRU end leave for the pages that are kept after they filled gaps.
    fn plan_space_for_padding(&self, pages: &Pages<X>, plan: &mut Plan) {
        let mut node = self.list.back(pages);
        let mut wanted = plan.fetch.len();
        while wanted > 0 && node != NIL {
            let is_written = plan.write.iter().any(|out| out.node == node);
            if !pages.is_dirty(node) && !is_written && !plan.drop.contains(&node) {
                plan.drop.push(node);
                wanted -= 1;
            }
            node = self.list.before(pages, node);
        }
    }

    /// The mean instant since when the pages of a cluster are dirty: the lower, the longer they wait.
    fn mean_since(&self, pages: &Pages<X>, cluster: &[u64]) -> f64 {
        let sum: f64 = cluster.iter().map(|&page| pages.dirty_since(pages.find(page)).0 as f64).sum();
        sum / cluster.len() as f64
    }

    /// All clusters, those to be written first in front: the densest, among them the one that waits longest,
    /// then the lowest; or those with the highest product of density and wait.
    fn ordered_clusters(&mut self, pages: &Pages<X>) -> Vec<Vec<u64>> {
        let mut ranked: Vec<(f64, f64, Vec<u64>)> = Vec::new();
        for cluster in self.dirty.all(self.writing.grouping) {
            ranked.push((self.density(&cluster), self.mean_since(pages, &cluster), cluster));
        }
        if self.writing.by_score {
            let newest = ranked.iter().map(|(_, since, _)| *since).fold(0.0, f64::max);
            for (density, since, _) in &mut ranked {
                *density *= newest - *since;
            }
        }
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        ranked.into_iter().map(|(_, _, cluster)| cluster).collect()
    }

    /// Writes the cluster of the dirty page `node`, which then leaves.
    fn write_cluster_of(&mut self, pages: &mut Pages<X>, node: u32, plan: &mut Plan) -> Room {
        let mut cluster = std::mem::take(&mut self.cluster);
        self.dirty.cluster_of(pages.page(node), self.writing.grouping, self.writing.reach, &mut cluster);
        self.plan_cluster(pages, &cluster, plan);
        self.cluster = cluster;
        plan.drop.push(node);
        self.plan_space_for_padding(pages, plan);
        Room::Planned
    }

    /// With `trigger=clean`, when every clean page is to stay: the cluster that comes first is written, and a
    /// page chosen again; if still none may leave, the least recently used clean page does.
    fn clean_first(&mut self, pages: &mut Pages<X>, plan: &mut Plan) -> Room {
        if !self.has_written
            && let Some(cluster) = self.ordered_clusters(pages).first()
        {
            self.has_written = true;
            self.plan_cluster(pages, cluster, plan);
            return Room::Planned;
        }
        self.has_written = false;
        let mut node = self.list.back(pages);
        while pages.is_dirty(node) {
            node = self.list.before(pages, node);
        }
        Room::Drop(node)
    }

    fn became_dirty(&mut self, pages: &mut Pages<X>, node: u32) {
        pages.set_tag(node, pages.tag(node) | AMONG_DIRTY);
        self.dirty.add(pages.page(node));
    }

    fn no_longer_dirty(&mut self, pages: &mut Pages<X>, node: u32, stays: bool) {
        pages.set_tag(node, pages.tag(node) & !AMONG_DIRTY);
        let page = pages.page(node);
        self.dirty.take(page);
        self.clean.cleaned(pages, page, if stays { node } else { NIL }, &self.dirty.blocks);
    }
}

impl<X: Index> Policy<X> for Cswlru<X> {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, was_dirty: bool) {
        self.clean.unscan(pages, node, &self.list);
        self.list.touch(pages, node);
        if access == Access::Write && !was_dirty {
            self.became_dirty(pages, node);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, plan: &mut Plan) -> Room {
        let oldest = self.list.back(pages);
        if self.by_lru {
            return if pages.is_dirty(oldest) {
                self.write_cluster_of(pages, oldest, plan)
            } else {
                Room::Drop(oldest)
            };
        }
        let first_dirty = self.clean.scan(pages, &self.list, &self.dirty.blocks);
        let clean = self.clean.best(pages, &self.dirty.blocks);
        if clean != NIL {
            self.has_written = false;
            Room::Drop(clean)
        } else if self.passes_dirty {
            self.clean_first(pages, plan)
        } else {
            self.write_cluster_of(pages, first_dirty, plan)
        }
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, access: Access) {
        self.list.push_front(pages, node);
        if access == Access::Write {
            self.became_dirty(pages, node);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.clean.unscan(pages, node, &self.list);
        self.list.remove(pages, node);
        if pages.tag(node) & AMONG_DIRTY != 0 {
            self.no_longer_dirty(pages, node, false);
        }
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        self.no_longer_dirty(pages, node, true);
    }

    fn write_back(&mut self, pages: &mut Pages<X>, plan: &mut Plan) -> bool {
        let mut planned = FxHashSet::default();
        for cluster in self.ordered_clusters(pages) {
            let from = plan.write.len();
            self.plan_cluster(pages, &cluster, plan);
            let mut at = from;
            plan.write.retain(|out| {
                at += 1;
                at <= from || planned.insert(out.page)
            });
        }
        plan.fetch.clear();
        true
    }

    fn bytes(&self) -> usize {
        self.clean.bytes() + self.dirty.bytes()
    }
}
