//! The store against a model: what it holds, and what it holds after a power cut anywhere.

mod bad;
mod damage;
mod faults;
mod foreign;
mod full;
mod places;
mod rebuild;
mod troubles;
mod walks;

use super::*;
use bimetal_base::random::Random;
use bimetal_media::nand::{NandProfile, Payload};
use bimetal_media::profile;
use std::collections::BTreeMap;

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Thing {
    bytes: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Model = BTreeMap<u64, Thing>;

const PLACEMENTS: [&str; 4] = ["combined", "split", "split-atime:entries=64", "lifetime:entries=64"];

fn nand(blocks: u32, change: impl FnOnce(&mut NandProfile)) -> Nand {
    let profile = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
    let mut profile = NandProfile { blocks, pages: 16, ..profile };
    change(&mut profile);
    Nand::new(profile, 1, true, Payload::memory())
}

fn options() -> Options {
    Options { buffer_bytes: 16 << 10, cache_bytes: 64 << 10, ..Options::default() }
}

fn store(placement: &str, segment_blocks: u32) -> Store {
    let format = Format { segment_blocks, placement: placement.into() };
    Store::format(nand(128 * segment_blocks, |_| ()), &format, options()).unwrap()
}

fn reopened(store: Store) -> Store {
    let mut nand = store.into_nand();
    nand.power_on();
    Store::open(nand, options()).unwrap()
}

fn contents(store: &mut Store) -> Model {
    let mut ids = Vec::new();
    store
        .list(ObjectId(0), &mut |id| {
            ids.push(id);
            true
        })
        .unwrap();
    let mut model = Model::new();
    for id in ids {
        let size = store.stat(id).unwrap().size;
        let bytes = store.read_fork(id.0, layout::Fork::Data, 0, size).unwrap();
        let names = store.list_attributes(id).unwrap();
        let attributes =
            names.into_iter().map(|name| (name.clone(), store.get_attribute(id, &name).unwrap()));
        model.insert(id.0, Thing { bytes, attributes: attributes.collect() });
    }
    model
}

fn words(mended: Vec<Mended>) -> Vec<String> {
    mended.into_iter().map(|one| one.what).collect()
}

fn assert_sound(store: &mut Store) {
    let checked = store.check(true).unwrap();
    assert!(checked.problems.is_empty(), "{:#?}", checked.problems);
}

/// One random operation on both; an error of the store ends it.
fn step(store: &mut Store, model: &mut Model, random: &mut Random) -> Result<()> {
    store.arrive(store.done());
    let ids: Vec<u64> = model.keys().copied().collect();
    let some = || ids.get(random.clone().below(ids.len() as u64) as usize).copied();
    let Some(id) = some().filter(|_| !random.chance(0.12)) else {
        let id = store.create(random.below(3) as u8)?;
        assert!(model.insert(id.0, Thing::default()).is_none());
        return Ok(());
    };
    let thing = model.get_mut(&id).unwrap();
    let (id, size) = (ObjectId(id), thing.bytes.len() as u64);
    let offset = random.below(size + 3000).min(30_000);
    match random.below(20) {
        0..8 => {
            let most = if random.chance(0.3) { 9000 } else { 600 };
            let len = 1 + random.below(most);
            let offset = if random.chance(0.5) { offset / 2048 * 2048 } else { offset };
            let bytes: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(7) ^ random.next() as u8).collect();
            store.write(id, offset, Content::Bytes(&bytes))?;
            let end = (offset + len) as usize;
            thing.bytes.resize(thing.bytes.len().max(end), 0);
            thing.bytes[offset as usize..end].copy_from_slice(&bytes);
        }
        8 => {
            let at = store.append_to(id, Content::Bytes(b"appended"))?;
            assert_eq!(at, size);
            thing.bytes.extend_from_slice(b"appended");
        }
        9..11 => {
            store.truncate(id, offset)?;
            thing.bytes.resize(offset as usize, 0);
        }
        11 => {
            let len = random.below(5000);
            store.punch(id, offset, len)?;
            let end = thing.bytes.len().min((offset + len) as usize);
            if (offset as usize) < end {
                thing.bytes[offset as usize..end].fill(0);
            }
        }
        12 => {
            store.reserve_range(id, offset, 1 + random.below(3000))?;
        }
        13..15 => {
            let len = if random.chance(0.2) { 3000 } else { 20 };
            let (name, value) =
                (format!("user.{}", random.below(3)).into_bytes(), vec![random.next() as u8; len]);
            store.set_attribute(id, &name, &value)?;
            thing.attributes.insert(name, value);
        }
        15 => {
            if let Some(name) = thing.attributes.keys().next().cloned() {
                store.remove_attribute(id, &name)?;
                thing.attributes.remove(&name);
            }
        }
        16 => {
            store.remove(id)?;
            model.remove(&id.0);
        }
        17 => {
            let read = store.read(id, offset, 4000)?;
            let end = thing.bytes.len().min(offset as usize + 4000);
            assert_eq!(read, thing.bytes.get(offset as usize..end).unwrap_or_default());
        }
        _ => store.touch(id)?,
    }
    Ok(())
}

/// How many times as much is tried as in an ordinary run.
fn scale() -> u32 {
    std::env::var("CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn it_holds_what_the_model_holds_through_cleanings_and_openings() {
    let runs = (1..=scale()).flat_map(|seed| PLACEMENTS.iter().zip([1, 2, 1, 1]).map(move |run| (seed, run)));
    for (seed, (placement, segment_blocks)) in runs {
        let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
        let (mut random, mut cleaned) = (Random::new(seed.into(), placement), 0);
        for round in 0..8000 {
            step(&mut store, &mut model, &mut random).unwrap();
            if random.chance(0.05) {
                store.flush().unwrap();
            }
            if round % 2000 == 1999 {
                assert!(contents(&mut store) == model, "{placement}");
                cleaned += store.counts().segments_cleaned;
                store.close().unwrap();
                assert_sound(&mut store);
                store = reopened(store);
                assert!(contents(&mut store) == model, "{placement}, opened again");
                assert_sound(&mut store);
            }
        }
        assert!(cleaned > 5, "{placement}: {cleaned}");
        let all = store.clean_all();
        assert!(all.is_ok(), "{placement}, seed {seed}: {all:?}");
        assert_sound(&mut store);
        assert!(contents(&mut store) == model, "{placement}, seed {seed}, cleaned");
    }
}

/// Runs `steps` with the power cut in the `cut`-th program or erase; false if it was never reached.
fn cut_run(placement: &str, seed: u64, steps: u32, cut: u64) -> bool {
    let (mut store, mut model) = (store(placement, 1), Model::new());
    let mut random = Random::new(seed, placement);
    store.nand_mut().cut_power_in(cut);
    // The states it may be in: that of the last flush, and each after it.
    let mut states = vec![model.clone()];
    let mut cut_off = false;
    for _ in 0..steps {
        if step(&mut store, &mut model, &mut random).is_err() {
            // What was under way may have happened, too.
            cut_off = true;
            states.push(model.clone());
            break;
        }
        states.push(model.clone());
        if random.chance(0.15) {
            if store.flush().is_err() {
                cut_off = true;
                break;
            }
            states = vec![model.clone()];
        }
    }
    let mut store = reopened(store);
    assert_sound(&mut store);
    let found = contents(&mut store);
    assert!(
        states.contains(&found),
        "{placement}, seed {seed}, cut {cut}: in none of {} states",
        states.len()
    );
    // It goes on from there, and ends well.
    let mut model = found;
    for _ in 0..10 {
        step(&mut store, &mut model, &mut random).unwrap();
    }
    store.close().unwrap();
    let mut store = reopened(store);
    assert_sound(&mut store);
    assert!(contents(&mut store) == model, "{placement}, seed {seed}, cut {cut}: afterwards");
    cut_off
}

#[test]
fn after_a_power_cut_at_any_operation_it_is_as_it_was_at_an_instant_since_the_last_flush() {
    let scale = scale();
    for placement in PLACEMENTS {
        for seed in 0..u64::from(scale) {
            let mut cut = 1;
            while cut_run(placement, seed, 90 * scale.min(20), cut) {
                cut += 1;
            }
            assert!(cut > 30, "{placement}: the power went {cut} times");
        }
    }
}

#[test]
fn the_power_may_go_again_and_again_while_it_fills_and_is_cleaned() {
    for placement in PLACEMENTS {
        let mut random = Random::new(9, placement);
        let (mut store, mut model) = (store(placement, 1), Model::new());
        let mut states = vec![model.clone()];
        let mut cleaned = 0;
        for _ in 0..40 {
            store.nand_mut().cut_power_in(1 + random.below(400));
            while step(&mut store, &mut model, &mut random).is_ok() {
                states.push(model.clone());
                if random.chance(0.1) {
                    if store.flush().is_err() {
                        break;
                    }
                    states = vec![model.clone()];
                }
            }
            states.push(model.clone());
            cleaned += store.counts().segments_cleaned;
            store = reopened(store);
            assert_sound(&mut store);
            model = contents(&mut store);
            assert!(states.contains(&model), "{placement}");
            states = vec![model.clone()];
        }
        assert!(cleaned > 5, "{placement}: {cleaned}");
    }
}

#[test]
fn access_times_are_right_after_a_cut_but_for_one_page_of_entries() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let ids: Vec<ObjectId> = (0..200).map(|_| store.create(0).unwrap()).collect();
        store.flush().unwrap();
        let journaled = store.access.is_used();
        let mut random = Random::new(3, placement);
        // Every access in order: object, time; and how many of them were before the last flush.
        let (mut accesses, mut flushed) = (Vec::new(), 0);
        store.nand_mut().cut_power_in(150);
        for n in 1.. {
            let id = ids[random.below(200) as usize];
            store.arrive(Time(n * 1_000_000_007));
            accesses.push((id, Stamp::from(Time(n * 1_000_000_007))));
            if store.touch(id).is_err() {
                break;
            }
            if random.chance(0.02) {
                if store.flush().is_err() {
                    break;
                }
                flushed = accesses.len();
            }
        }
        let mut store = reopened(store);
        let mut lost = 0;
        for id in ids {
            let seen = store.stat(id).unwrap().accessed;
            let its: Vec<_> = accesses.iter().enumerate().filter(|(_, access)| access.0 == id).collect();
            let newest = its.last().map_or(seen, |(_, access)| access.1);
            assert!(its.is_empty() || seen.sec == 0 || its.iter().any(|(_, access)| access.1 == seen));
            lost += usize::from(seen != newest);
            if !journaled {
                let promised =
                    its.iter().rev().find(|(index, _)| *index < flushed).map(|(_, access)| access.1);
                assert!(promised.is_none_or(|at| seen >= at), "{placement}: {id} as of the last flush");
            }
        }
        if journaled {
            let a_page = 2048 / 8;
            assert!(
                lost <= a_page && accesses.len() > 2 * a_page,
                "{placement}: {lost} of {}",
                accesses.len()
            );
        }
    }
}

#[test]
fn access_times_are_right_after_a_cut_while_the_journal_is_renewed() {
    const OBJECTS: u64 = 500;
    /// Touches objects until the journal was renewed or the power went; the accesses, and operations of the flash.
    fn touched(store: &mut Store, ids: &[ObjectId]) -> (Vec<(ObjectId, Stamp)>, u64, bool) {
        let (mut random, mut accesses, before) =
            (Random::new(8, "renewed"), Vec::new(), store.nand().counts());
        for n in 1.. {
            let id = ids[random.below(OBJECTS) as usize];
            store.arrive(Time(n * 1_000_000_007));
            accesses.push((id, Stamp::from(Time(n * 1_000_000_007))));
            let pages = store.access.pages().len();
            let cut = store.touch(id).is_err();
            let is_renewed = store.access.pages().len() < pages && store.access.unmerged() > 0;
            if cut || is_renewed {
                let now = store.nand().counts();
                let operations = now.programs + now.erases - before.programs - before.erases;
                return (accesses, operations, is_renewed);
            }
        }
        unreachable!("the journal is full some time")
    }
    let filled = || {
        let mut store = store("lifetime", 1);
        let ids: Vec<ObjectId> = (0..OBJECTS).map(|_| store.create(0).unwrap()).collect();
        let bytes = vec![7; (store.capacity().total * 6 / 10 / OBJECTS) as usize];
        ids.iter().for_each(|id| store.write(*id, 0, Content::Bytes(&bytes)).unwrap());
        store.flush().unwrap();
        (store, ids)
    };
    let (mut whole, ids) = filled();
    let (_, operations, is_renewed) = touched(&mut whole, &ids);
    assert!(is_renewed);
    for cut in operations - 16..=operations {
        let (mut store, ids) = filled();
        store.nand_mut().cut_power_in(cut);
        let (accesses, ..) = touched(&mut store, &ids);
        let mut store = reopened(store);
        assert_sound(&mut store);
        let wrong = ids.iter().filter(|id| {
            let its: Vec<_> =
                accesses.iter().filter(|access| access.0 == **id).map(|access| access.1).collect();
            let seen = store.stat(**id).unwrap().accessed;
            assert!(its.is_empty() || seen.sec == 0 || its.contains(&seen), "cut {cut}");
            its.last().is_some_and(|newest| *newest != seen)
        });
        let wrong = wrong.count();
        assert!(wrong <= 2048 / 8, "cut {cut}: {wrong} of {}", accesses.len());
    }
}

#[test]
fn a_time_that_was_set_back_stays_so_whatever_the_journal_says() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let (id, other) = (store.create(0).unwrap(), store.create(0).unwrap());
        store.arrive(Time(50_000_000_000));
        for _ in 0..2000 {
            store.touch(id).unwrap();
            store.touch(other).unwrap();
        }
        let early = Stamp { sec: -9, nsec: 1 };
        store.set_times(id, &SetTimes { accessed: Some(early), ..SetTimes::default() }).unwrap();
        store.flush().unwrap();
        let mut store = reopened(store);
        assert_eq!(store.stat(id).unwrap().accessed, early, "{placement}");
        store.arrive(Time(60_000_000_000));
        store.touch(id).unwrap();
        store.close().unwrap();
        let mut store = reopened(store);
        assert_eq!(store.stat(id).unwrap().accessed.sec, 60, "{placement}");
    }
}

#[test]
fn it_fills_up_says_so_and_is_usable_again_when_something_is_removed() {
    for (placement, segment_blocks) in PLACEMENTS.iter().zip([1, 2, 2, 1]) {
        let mut store = store(placement, segment_blocks);
        let mut ids = Vec::new();
        let full = loop {
            let id = match store.create(0) {
                Ok(id) => id,
                Err(why) => break why,
            };
            if let Err(why) = store.write(id, 0, Content::Bytes(&[ids.len() as u8; 20_000])) {
                break why;
            }
            ids.push(id);
        };
        assert!(matches!(full, Error::NoSpace(_)), "{placement}: {full}");
        let Capacity { total, used, flash, .. } = store.capacity();
        assert!(
            used <= total && used * 10 > total * 9 && total * 10 > flash * 7,
            "{placement}: {used} {total} {flash}"
        );
        for id in ids.drain(..).step_by(2) {
            store.remove(id).unwrap();
        }
        for _ in 0..40 {
            let id = store.create(0).unwrap();
            store.write(id, 0, Content::Bytes(&[9; 10_000])).unwrap();
            store.flush().unwrap();
        }
        assert_sound(&mut store);
    }
}

#[test]
fn failing_programs_and_worn_blocks_lose_nothing_until_the_flash_is_used_up() {
    for placement in PLACEMENTS {
        let format = Format { segment_blocks: 2, placement: placement.into() };
        let change = |profile: &mut NandProfile| {
            profile.grown_bad_per_million = 2000.0;
            profile.factory_bad_percent = 3.0;
        };
        let mut store = Store::format(nand(128, change), &format, options()).unwrap();
        let (mut model, mut random) = (Model::new(), Random::new(4, placement));
        for _ in 0..4000 {
            match step(&mut store, &mut model, &mut random) {
                Ok(()) => {}
                Err(Error::NoSpace(_) | Error::Io { .. }) => break,
                Err(why) => panic!("{placement}: {why}"),
            }
        }
        assert!(store.nand().counts().failures > 0, "{placement}");
        if store.flush().is_ok() {
            let mut store = reopened(store);
            assert_sound(&mut store);
            assert!(contents(&mut store) == model, "{placement}");
        }
    }
}

#[test]
fn operations_held_together_are_seen_whole_or_not_at_all() {
    for cut in 1..200 {
        let mut store = store("lifetime", 1);
        let counter = store.create(0).unwrap();
        store.write(counter, 0, Content::Bytes(&0u64.to_le_bytes())).unwrap();
        store.flush().unwrap();
        store.nand_mut().cut_power_in(cut);
        let mut done = || -> Result<()> {
            for n in 1..100u64 {
                store.hold()?;
                let id = store.create(0)?;
                store.write(id, 0, Content::Bytes(&[n as u8; 3000]))?;
                store.write(counter, 0, Content::Bytes(&n.to_le_bytes()))?;
                store.release();
                if n % 7 == 0 {
                    store.flush()?;
                }
            }
            Ok(())
        };
        let _ = done();
        let mut store = reopened(store);
        let count = store.read(counter, 0, 8).unwrap();
        let count = u64::from_le_bytes(count.try_into().unwrap());
        assert_eq!(store.capacity().objects, count + 1, "cut {cut}");
    }
}

#[test]
fn a_flash_without_a_store_and_damaged_stores_are_refused_with_the_reason() {
    let error = Store::open(nand(96, |_| ()), options()).err().unwrap().to_string();
    assert!(error.contains("no object store"), "{error}");
    let small = Store::format(nand(8, |_| ()), &Format::default(), options()).err().unwrap().to_string();
    assert!(small.contains("too few"), "{small}");
    let mut profile = profile::load::<NandProfile>("slc-512").unwrap();
    profile.blocks = 64;
    let pages = Nand::new(profile, 1, true, Payload::memory());
    let error = Store::format(pages, &Format::default(), options()).err().unwrap().to_string();
    assert!(error.contains("512 bytes"), "{error}");
}

#[test]
fn small_writes_to_one_block_do_not_scatter_it() {
    let mut store = store("lifetime", 1);
    let id = store.create(0).unwrap();
    for n in 0..200u64 {
        store.append_to(id, Content::Bytes(&[n as u8; 24])).unwrap();
        store.flush().unwrap();
    }
    let extents = store.index.overlapping(id.0, layout::Fork::Data, 0, 1 << 20).unwrap();
    assert!(extents.len() <= 3, "{extents:?}");
    assert_eq!(store.read(id, 24 * 150, 24).unwrap(), [150; 24]);
}

#[test]
fn the_state_of_an_object_is_told_without_a_look_at_its_extents() {
    let mut store = store("lifetime", 2);
    let (small, large) = (store.create(0).unwrap(), store.create(0).unwrap());
    for n in 0..4000 {
        store.write(large, n * 300, Content::Bytes(&[1; 60])).unwrap();
        if n % 50 == 49 {
            store.flush().unwrap();
        }
    }
    store.write(small, 0, Content::Bytes(&[1; 60])).unwrap();
    store.reserve_range(small, 0, 5000).unwrap();
    store.flush().unwrap();
    store.punch(large, 0, 30_000).unwrap();
    assert!(store.index.overlapping(large.0, layout::Fork::Data, 0, 1 << 40).unwrap().len() > 3000);
    let mut visits = |id| {
        let before = store.index.tree.visits();
        let stat = store.stat(id).unwrap();
        (stat.stored, store.index.tree.visits() - before)
    };
    let (of_small, of_large) = (visits(small), visits(large));
    assert_eq!((of_small.0, of_large.0), (5000, 3900 * 60));
    assert!(of_large.1 <= 4 && of_small.1 <= 4, "{of_small:?} {of_large:?}");
    // The next opening knows it, and so do a cut and a removal with the same number again.
    let mut store = reopened(store);
    assert_eq!(store.stat(large).unwrap().stored, 4000 * 60);
    store.remove(large).unwrap();
    store.create_as(large, 0).unwrap();
    store.write(large, 0, Content::Bytes(&[1; 70])).unwrap();
    assert_eq!(store.stat(large).unwrap().stored, 70);
    store.flush().unwrap();
    assert_eq!(store.stat(large).unwrap().stored, 70);
    assert_sound(&mut store);
}

#[test]
fn without_bytes_it_counts_the_same() {
    let run = |keep_bytes| {
        let format = Format { segment_blocks: 1, placement: "split".into() };
        let options = Options { keep_bytes, ..options() };
        let mut store = Store::format(nand(96, |_| ()), &format, options).unwrap();
        let mut random = Random::new(5, "void");
        let ids: Vec<ObjectId> = (0..60).map(|_| store.create(0).unwrap()).collect();
        for _ in 0..3000 {
            let id = ids[random.below(60) as usize];
            let (offset, len) = (random.below(20_000), 1 + random.below(5000));
            match keep_bytes {
                true => store.write(id, offset, Content::Bytes(&vec![1; len as usize])).unwrap(),
                false => store.write(id, offset, Content::Count(len)).unwrap(),
            }
            if random.chance(0.1) {
                store.flush().unwrap();
            }
        }
        assert!(store.check(false).unwrap().problems.is_empty());
        (store.counts(), store.nand().counts(), store.nand().wear())
    };
    let (with, without) = (run(true), run(false));
    assert_eq!(with, without);
    assert!(with.0.segments_cleaned > 20, "{:?}", with.0);
}

/// Versions before wrote settings of a placement with commas, and so they stand on flash.
#[test]
fn a_store_whose_placement_is_written_with_commas_opens() {
    let format = Format { placement: "split-atime,entries=64".into(), ..Format::default() };
    let store = Store::format(nand(128, |_| ()), &format, options()).unwrap();
    let again = reopened(store);
    assert_eq!(again.placement(), "split-atime,entries=64");
    assert_eq!(again.placement.journal_entries(), Some(64));
}
