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
        let could = extents.nodes_to_add(to as usize - from as usize + 2);
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
