//! Blocks that are bad, or said to be: what is on them stays, and nothing is concluded from pages that nobody could program.

use super::*;
use flash::Flash;
use layout::PageKind;
use std::collections::BTreeSet;

/// Makes an object and flushes; what it holds is its number.
fn commit(store: &mut Store, model: &mut Model) {
    let id = store.create(0).unwrap();
    let bytes = [id.0 as u8; 300];
    store.write(id, 0, Content::Bytes(&bytes)).unwrap();
    store.flush().unwrap();
    model.insert(id.0, Thing { bytes: bytes.to_vec(), ..Thing::default() });
}

/// The erase block of the page that a stream of the log writes next.
fn next_of_the_log(store: &Store) -> u32 {
    let start = store.index.media.chains()[0];
    let flash = &store.index.media.flash;
    flash.place(flash.addr(start.segment, start.index)).0
}

/// The erase blocks that hold pages of some kinds.
fn blocks_with(store: &mut Store, kinds: &[PageKind]) -> BTreeSet<u32> {
    let flash = &mut store.index.media.flash;
    let all = (0..flash.segments() * flash.pages_per_segment()).map(flash::Addr);
    let is_one =
        |flash: &mut Flash, addr| flash.read_tag(addr).unwrap().is_some_and(|tag| kinds.contains(&tag.kind));
    let found: Vec<flash::Addr> = all.filter(|addr| is_one(flash, *addr)).collect();
    assert!(!found.is_empty());
    found.into_iter().map(|addr| flash.place(addr).0).collect()
}

#[test]
fn what_is_flushed_after_a_clean_end_is_there_where_the_log_goes_on_in_a_bad_block() {
    for placement in PLACEMENTS {
        for (segment_blocks, commits) in
            [2, 4].into_iter().flat_map(|blocks| (0..5).map(move |n| (blocks, n)))
        {
            let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
            (0..=commits).for_each(|_| commit(&mut store, &mut model));
            store.close().unwrap();
            let block = next_of_the_log(&store);
            store.nand_mut().set_bad(block, true);
            let mut store = reopened(store);
            (0..3).for_each(|_| commit(&mut store, &mut model));
            let mut store = reopened(store);
            let at = format!("{placement}, segments of {segment_blocks}, {commits} commits");
            assert!(contents(&mut store) == model, "{at}");
            assert_sound(&mut store);
            // The end is clean again, and the log goes on.
            store.close().unwrap();
            let mut store = reopened(store);
            commit(&mut store, &mut model);
            assert!(contents(&mut reopened(store)) == model, "{at}, afterwards");
        }
    }
}

#[test]
fn the_log_is_read_from_blocks_that_are_said_to_be_bad() {
    for placement in PLACEMENTS {
        for segment_blocks in [1, 2] {
            let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
            store.checkpoint(false).unwrap();
            (0..20).for_each(|_| commit(&mut store, &mut model));
            let blocks = blocks_with(&mut store, &[PageKind::Log]);
            blocks.iter().for_each(|block| store.nand_mut().set_bad(*block, true));
            let mut store = reopened(store);
            assert!(contents(&mut store) == model, "{placement}, segments of {segment_blocks}");
            assert_sound(&mut store);
            commit(&mut store, &mut model);
            // The next opening is told that they are good.
            blocks.iter().for_each(|block| store.nand_mut().set_bad(*block, false));
            let mut store = reopened(store);
            assert!(contents(&mut store) == model, "{placement}, segments of {segment_blocks}, good again");
            assert_sound(&mut store);
            store.close().unwrap();
        }
    }
}

#[test]
fn commits_are_there_where_a_program_of_the_log_fails_and_the_power_goes_before_the_next_checkpoint() {
    for placement in PLACEMENTS {
        let mut cuts = 0;
        for (fails, cut) in (1..4).flat_map(|fails| (1..30).map(move |cut| (fails, cut))) {
            let (mut store, mut model) = (store(placement, 1), Model::new());
            store.checkpoint(false).unwrap();
            (0..5).for_each(|_| commit(&mut store, &mut model));
            store.nand_mut().fail_in(fails, 1);
            store.nand_mut().cut_power_in(fails + cut);
            let flushed = model.clone();
            let id = store.create(0).unwrap();
            let written = store.write(id, 0, Content::Bytes(&[77; 300])).and_then(|()| store.flush());
            cuts += u32::from(written.is_err());
            model.insert(id.0, Thing { bytes: vec![77; 300], ..Thing::default() });
            let mut store = reopened(store);
            let found = contents(&mut store);
            let is_right = found == model || written.is_err() && found == flushed;
            assert!(is_right, "{placement}, program {fails} fails, cut {cut}: {:?}", found.keys());
            assert_sound(&mut store);
        }
        assert!(cuts > 5, "{placement}: {cuts}");
    }
}

#[test]
fn what_a_lost_leaf_held_comes_back_from_blocks_that_are_said_to_be_bad() {
    for placement in PLACEMENTS {
        let (mut store, mut model) = (store(placement, 1), Model::new());
        for _ in 0..60 {
            let id = store.create(0).unwrap();
            let bytes = vec![id.0 as u8; 5000];
            store.write(id, 0, Content::Bytes(&bytes)).unwrap();
            model.insert(id.0, Thing { bytes, ..Thing::default() });
        }
        store.close().unwrap();
        let blocks = blocks_with(&mut store, &[PageKind::Data, PageKind::Pieces]);
        assert!(store.spoil_index(0));
        blocks.iter().for_each(|block| store.nand_mut().set_bad(*block, true));
        let mut store = reopened(store);
        assert!(store.loses_by_repair().unwrap(), "{placement}");
        store.repair().unwrap();
        let found = contents(&mut store);
        assert!(found == model, "{placement}: {} of {}", found.len(), model.len());
    }
}

#[test]
fn what_is_left_on_a_block_that_could_not_be_erased_is_not_taken_for_what_its_segment_holds() {
    for placement in PLACEMENTS {
        for segment_blocks in [2, 4] {
            let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
            let first = store.index.media.kept();
            let fill = |store: &mut Store, model: &mut Model| {
                for _ in 0..150 {
                    let id = store.create(0).unwrap();
                    let bytes = vec![id.0 as u8; 3000];
                    store.write(id, 0, Content::Bytes(&bytes)).unwrap();
                    model.insert(id.0, Thing { bytes, ..Thing::default() });
                }
                store.flush().unwrap();
            };
            fill(&mut store, &mut model);
            let count = store.index.media.segments.count() as u32;
            let mut closed = Vec::new();
            for segment in first..count {
                if store.index.media.summary(segment).unwrap().is_some() {
                    closed.push(segment);
                }
            }
            assert!(closed.len() > 2, "{placement}: {closed:?}");
            for id in std::mem::take(&mut model).into_keys() {
                store.remove(ObjectId(id)).unwrap();
            }
            (0..3).for_each(|_| store.checkpoint(false).unwrap());
            store.clean_all().unwrap();
            (0..3).for_each(|_| store.checkpoint(false).unwrap());
            // Their summaries are on their last pages.
            let flash = &store.index.media.flash;
            let last = |segment: &u32| flash.place(flash.addr(*segment, flash.pages_per_segment() - 1)).0;
            let blocks: Vec<u32> = closed.iter().map(last).collect();
            blocks.iter().for_each(|block| store.nand_mut().set_bad(*block, true));
            while model.len() < 150 * 128 / 16 {
                fill(&mut store, &mut model);
            }
            store.close().unwrap();
            let mut store = reopened(store);
            store.clean_all().unwrap();
            assert_eq!(store.index.media.segments.rotten(), 0, "{placement}, segments of {segment_blocks}");
            assert_sound(&mut store);
            assert!(contents(&mut store) == model, "{placement}, segments of {segment_blocks}");
        }
    }
}

#[test]
fn a_check_says_when_too_many_blocks_are_said_to_be_bad_for_any_change() {
    for placement in PLACEMENTS {
        for (what, segment_blocks) in [("anchors", 1), ("anchors", 2), ("unused", 1), ("unused", 2)] {
            let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
            (0..20).for_each(|_| commit(&mut store, &mut model));
            store.close().unwrap();
            assert_sound(&mut store);
            let blocks = match what {
                "anchors" => blocks_with(&mut store, &[PageKind::Anchor, PageKind::Format]),
                _ => (0..128 * segment_blocks).filter(|block| store.nand().next_page(*block) == 0).collect(),
            };
            let at = format!("{placement}, {what}, segments of {segment_blocks}");
            // With one of them left there is nothing to say.
            let left: Vec<u32> = blocks.iter().copied().collect();
            let keep = if what == "anchors" { 1 } else { 40 };
            left[keep..].iter().for_each(|block| store.nand_mut().set_bad(*block, true));
            let mut store = reopened(store);
            assert_sound(&mut store);
            left.iter().for_each(|block| store.nand_mut().set_bad(*block, true));
            let mut store = reopened(store);
            let problems = store.check(true).unwrap().problems;
            assert!(
                problems.len() == 1 && problems[0].contains("no change can be kept"),
                "{at}: {problems:?}"
            );
            assert!(contents(&mut store) == model, "{at}");
            let id = store.create(0);
            let changed =
                id.and_then(|id| store.write(id, 0, Content::Bytes(&[1; 300]))).and_then(|()| store.close());
            assert!(changed.is_err(), "{at}");
        }
    }
}

#[test]
fn where_a_check_says_nothing_of_bad_blocks_something_can_be_removed() {
    let (mut told, mut untold) = (0, 0);
    for placement in PLACEMENTS {
        for left in 2..16 {
            for ends in [true, false] {
                let (mut store, mut model) = (store(placement, 1), Model::new());
                (0..20).for_each(|_| commit(&mut store, &mut model));
                if ends {
                    store.close().unwrap();
                }
                let unused: Vec<u32> = (0..128).filter(|block| store.nand().next_page(*block) == 0).collect();
                unused[left..].iter().for_each(|block| store.nand_mut().set_bad(*block, true));
                let mut store = reopened(store);
                if !store.check(true).unwrap().problems.is_empty() {
                    told += 1;
                    continue;
                }
                untold += 1;
                let id = ObjectId(*model.keys().next().unwrap());
                let removed = store.remove(id).and_then(|()| store.flush()).and_then(|()| store.close());
                assert!(removed.is_ok(), "{placement}, {left} left, ends {ends}: {removed:?}");
            }
        }
    }
    assert!(told > 10 && untold > 10, "{told}, {untold}");
}
