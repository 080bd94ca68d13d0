//! The extents of a file beside a list of its blocks.

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

const BLOCKS: u32 = 600;

/// One entry a block: where it lies and whether it was written.
type Model = BTreeMap<u32, (u64, bool)>;

fn check(extents: &Extents, model: &Model) {
    let mut flat = Model::new();
    let mut end = 0;
    for extent in extents.iter() {
        assert!(u64::from(extent.block) >= end && extent.len > 0);
        end = extent.end();
        for i in 0..u32::from(extent.len) {
            flat.insert(extent.block + i, (extent.at + u64::from(i), extent.unwritten));
        }
    }
    assert_eq!(&flat, model);
    assert!(extents.leaves.len() == 1 || extents.leaves.iter().all(|leaf| !leaf.extents.is_empty()));
    assert!(extents.leaves.iter().all(|leaf| leaf.extents.len() <= extents.node_entries()));
    assert_eq!(extents.missing_nodes(), 0);
    for block in 0..BLOCKS {
        match (extents.spot(block), model.get(&block)) {
            (Spot::Hole(to), None) => assert!(model.range(block..to.min(700) as u32).next().is_none()),
            (Spot::Extent(e), Some((at, _))) => assert_eq!(e.at + u64::from(block - e.block), *at),
            other => panic!("{other:?} at {block}"),
        }
    }
}

fn settle(extents: &mut Extents, next: &mut u64, live: &mut Vec<u64>) {
    while extents.missing_nodes() > 0 {
        *next += 1;
        extents.give_node(*next);
        live.push(*next);
    }
    for node in extents.spare_nodes() {
        let at = live.iter().position(|known| *known == node).expect("a node given before");
        live.swap_remove(at);
    }
    let mut held: Vec<u64> = extents.nodes().collect();
    held.sort_unstable();
    live.sort_unstable();
    assert_eq!(&held, live);
}

#[test]
fn random_changes_agree_with_a_list_of_blocks() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut extents = Extents::new(6);
    let (mut model, mut next, mut live) = (Model::new(), 1 << 40, Vec::new());
    for step in 0..4000 {
        let from = rng.random_range(0..BLOCKS - 20);
        let to = from + rng.random_range(1..20);
        let bias = if step / 500 % 2 == 0 { 6 } else { 2 };
        let (leaves, index) = (extents.leaves.len(), extents.index.len());
        let could = extents.nodes_to_take(2 * (to - from) as usize + 2);
        match rng.random_range(0..8) {
            kind if kind < bias => {
                let unwritten = kind == 0;
                for block in from..to {
                    let at = u64::from(block) * 3 / 2 + 1000;
                    model.entry(block).or_insert_with(|| {
                        extents.insert(Extent::new(block, at, 1, unwritten));
                        (at, unwritten)
                    });
                }
            }
            6 => {
                extents.write(from, u64::from(to));
                model.range_mut(from..to).for_each(|(_, value)| value.1 = false);
            }
            _ => {
                let mut count = 0;
                extents.cut(from, u64::from(to), |_, len| count += len);
                let gone: Vec<u32> = model.range(from..to).map(|(block, _)| *block).collect();
                assert_eq!(gone.len() as u32, count);
                model.retain(|block, _| !gone.contains(block));
            }
        }
        assert!(extents.missing_nodes() <= could, "{leaves} {index} {could}");
        settle(&mut extents, &mut next, &mut live);
        check(&extents, &model);
    }
    assert!(extents.leaves.len() > 4);
}

#[test]
fn appending_fills_leaves_whole() {
    let mut extents = Extents::new(340);
    for i in 0..34_000 {
        extents.insert(Extent::new(i * 2, u64::from(i) * 2 + 50, 1, false));
    }
    assert!(extents.leaves.len() <= 101, "{}", extents.leaves.len());
}

/// Nodes of a transaction under way: what was taken in it is free again when it is given back, what is older is held.
#[derive(Default)]
struct Nodes {
    next: u64,
    fresh: Vec<u64>,
    free: usize,
    taken: usize,
}

impl Nodes {
    fn settle(&mut self, extents: &mut Extents) {
        while extents.missing_nodes() > 0 {
            match self.free {
                0 => self.taken += 1,
                _ => self.free -= 1,
            }
            self.next += 1;
            self.fresh.push(self.next);
            extents.give_node(self.next);
        }
        for node in extents.spare_nodes() {
            if let Some(at) = self.fresh.iter().position(|fresh| *fresh == node) {
                self.fresh.swap_remove(at);
                self.free += 1;
            }
        }
    }

    fn commit(&mut self) {
        (self.fresh, self.free, self.taken) = (Vec::new(), 0, 0);
    }
}

#[test]
fn no_order_of_changes_takes_more_nodes_than_was_said_before() {
    let mut rng = StdRng::seed_from_u64(2);
    let mut most = 0;
    for round in 0..4000 {
        let mut extents = Extents::new(rng.random_range(5..12));
        let mut nodes = Nodes::default();
        // Leaves that are full, with a hole behind every extent, and some of space without data.
        let count = rng.random_range(0..if round % 4 == 0 { 12 } else { 90 });
        let without_data = rng.random_range(0..4);
        for number in 0..count {
            let (len, unwritten) = (rng.random_range(1..8), rng.random_range(0..4) < without_data);
            extents.insert(Extent::new(number * 10 + 1, u64::from(number) * 100 + 50, len, unwritten));
            nodes.settle(&mut extents);
        }
        nodes.commit();
        let changes = rng.random_range(1..if round % 3 == 0 { 6 } else { 60 });
        let moving = rng.random_range(0..2) == 0;
        let said = extents.nodes_to_take(extents.extents_to_add(changes, moving));
        let mut left = changes;
        while left > 0 {
            let block = rng.random_range(0..count * 10 + 20);
            match (rng.random_range(0..12), extents.spot(block)) {
                (0, _) if block > 0 => extents.cut(block, u64::MAX, |_, _| ()),
                (1, Spot::Extent(extent)) if extent.unwritten => extents.write(extent.block, extent.end()),
                (_, Spot::Hole(_)) => {
                    left -= 1;
                    let near = rng.random_range(0..2) == 0;
                    let at = if near { u64::from(block) * 10 + 40 } else { 1 << 30 | left << 8 };
                    extents.insert(Extent::new(block, at, 1, false));
                }
                (_, Spot::Extent(extent)) if extent.unwritten => {
                    let end = extent
                        .end()
                        .min(u64::from(block) + rng.random_range(1..4))
                        .min(u64::from(block) + left);
                    left -= end - u64::from(block);
                    extents.write(block, end);
                }
                (_, Spot::Extent(_)) if moving => {
                    left -= 1;
                    extents.cut(block, u64::from(block) + 1, |_, _| ());
                    extents.insert(Extent::new(block, 1 << 31 | left << 8, 1, false));
                }
                _ => {}
            }
            nodes.settle(&mut extents);
            assert!(nodes.taken <= said, "round {round}: {} of {said}", nodes.taken);
            // What is left needs no more than what was said for all of it.
            if rng.random_range(0..8) == 0 && extents.last().is_none() {
                break;
            }
        }
        most = most.max(nodes.taken * 100 / said.max(1));
    }
    assert!(most == 100, "{most} % at most: more is said than is needed");
}

/// A leaf that is full, and one behind it of which, once its last extent is gone, one is left and cut.
#[test]
fn a_cut_at_the_end_or_the_beginning_of_an_extent_takes_no_node() {
    for (from, to) in [(4 * 339 + 1, 1 << 32), (4 * 339, 4 * 339 + 1), (4 * 338 + 2, 1 << 32)] {
        let mut extents = Extents::new(340);
        let mut nodes = Nodes::default();
        for i in 0..341 {
            extents.insert(Extent::new(i * 4, u64::from(i) * 5 + 50, 3, false));
            nodes.settle(&mut extents);
        }
        extents.insert(Extent::new(3, 10_000, 1, false));
        nodes.settle(&mut extents);
        let lens: Vec<usize> = extents.leaves.iter().map(|leaf| leaf.extents.len()).collect();
        assert_eq!(lens, [340, 2]);
        extents.cut(4 * 340, 1 << 32, |_, _| {});
        nodes.settle(&mut extents);
        nodes.commit();
        extents.cut(from, to, |_, _| {});
        assert_eq!(extents.missing_nodes(), 0, "{from}..{to}");
    }
}
