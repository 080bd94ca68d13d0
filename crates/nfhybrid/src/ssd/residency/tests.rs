//! The residency map beside a map of blocks, and what it does without slots.

use super::*;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

const INODE: PackedInode = PackedInode([0; 64]);

fn residency(slots: u32) -> Residency {
    Residency::new(Slots::new(slots, 16, 8, 11))
}

/// Every bound file block with its SSD block and state.
fn blocks(residency: &Residency, ino: u64) -> BTreeMap<u64, (u32, CopyState)> {
    let pieces = residency.node(ino).map(|node| node.pieces.iter().collect::<Vec<_>>());
    let each = |piece: Piece| {
        (0..piece.len()).map(move |i| (u64::from(piece.file_block + i), (piece.at + i, piece.state())))
    };
    pieces.into_iter().flatten().flat_map(each).collect()
}

#[test]
fn random_binding_and_unbinding_agrees_with_a_map_of_blocks() {
    let mut random = SmallRng::seed_from_u64(5);
    let mut residency = residency(4096);
    let mut model: BTreeMap<u64, (u32, CopyState)> = BTreeMap::new();
    let mut next = 0;
    for _ in 0..6000 {
        let from = random.random_range(0..2000u64);
        let end = from + random.random_range(1..30u64);
        let mut changes = Changes::default();
        match random.random_range(0..4) {
            0 | 1 => {
                residency.carve(1, from, end, &mut changes);
                let state = if random.random() { CopyState::Ssd } else { CopyState::Both };
                let piece = Piece::new(from as u32, next, (end - from) as u32, state, 0);
                residency.bind(1, INODE, piece, 0).unwrap();
                model.extend((from..end).map(|b| (b, (next + (b - from) as u32, state))));
                next += (end - from) as u32;
            }
            2 => {
                residency.carve(1, from, end, &mut changes);
                let gone: u32 = changes.removed.iter().map(Piece::len).sum();
                let before = model.len();
                model.retain(|block, _| !(from..end).contains(block));
                assert_eq!(gone as usize, before - model.len());
                residency.forget_if_empty(1);
            }
            _ => {
                residency.set_state(1, (from, end), CopyState::Both, &mut changes);
                model.range_mut(from..end).for_each(|(_, block)| block.1 = CopyState::Both);
            }
        }
    }
    assert_eq!(blocks(&residency, 1), model);
    residency.check();
}

#[test]
fn sequential_binding_makes_one_piece_and_never_joins_two_old_ones() {
    let mut residency = residency(64);
    for at in [0, 1, 3, 2] {
        residency.bind(1, INODE, Piece::new(at, 100 + at, 1, CopyState::Both, 0), 0).unwrap();
    }
    let pieces: Vec<_> =
        residency.node(1).unwrap().pieces.iter().map(|piece| (piece.file_block, piece.len())).collect();
    assert_eq!(pieces, [(0, 3), (3, 1)]);
}

#[test]
fn a_remainder_stays_in_its_slot_or_is_reported_as_moved() {
    let mut residency = residency(64);
    for i in 0..8 {
        residency.bind(1, INODE, Piece::new(i * 10, i * 100, 5, CopyState::Both, 0), 0).unwrap();
    }
    let mut changes = Changes::default();
    residency.carve(1, 0, 1, &mut changes);
    assert!(changes.moved.is_empty(), "the right part takes over the entry");
    residency.carve(1, 12, 13, &mut changes);
    let moved: Vec<_> = changes.moved.iter().map(|piece| (piece.file_block, piece.len())).collect();
    assert_eq!(moved, [(13, 2)], "the head slot holds eight entries");
    residency.check();
}

#[test]
fn without_slots_new_inodes_are_refused_and_remainders_go() {
    let mut residency = residency(65);
    let mut ino = 0;
    while residency.bind(ino, INODE, Piece::new(0, ino as u32 * 10, 8, CopyState::Both, 0), 0).is_ok() {
        ino += 1;
    }
    assert_eq!((ino, residency.slots.used()), (64, 64), "one slot is kept in reserve");
    for extra in 1..20 {
        residency.bind(0, INODE, Piece::new(extra * 20, 5000 + extra * 10, 3, CopyState::Both, 0), 0).ok();
    }
    assert_eq!(residency.slots.used(), 65);
    let mut changes = Changes::default();
    let pieces = residency.node(0).unwrap().pieces.len();
    residency.carve(0, 2, 3, &mut changes);
    assert_eq!(changes.removed.iter().map(Piece::len).sum::<u32>(), 6, "block 2 and the remainder 3-7");
    assert_eq!(residency.node(0).unwrap().pieces.len(), pieces);
    residency.check();
}
