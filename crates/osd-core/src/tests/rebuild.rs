//! Stores of which so much is damaged that they do not open, put together again. What a page of the index or the log, or a
//! segment, says must come back, byte by byte; what does not is named.

use super::damage::{names, pages_of};
use super::*;
use flash::{Addr, Fault, Flash};
use layout::PageKind;
use node::Node;
use std::collections::BTreeSet;

const PLACES: [PageKind; 3] = [PageKind::Anchor, PageKind::Checkpoint, PageKind::Table];

/// A store that has been worked on in every way, closed or cut off after a flush, and what it holds.
fn made(placement: &str, segment_blocks: u32, seed: u64, ends: bool) -> (Nand, Model) {
    let (nand, mut history) = made_with_history(placement, segment_blocks, seed, ends);
    (nand, history.pop().unwrap())
}

/// The same, and what it held after each step, the last of all.
fn made_with_history(placement: &str, segment_blocks: u32, seed: u64, ends: bool) -> (Nand, Vec<Model>) {
    let mut history = vec![Model::new()];
    let (mut store, mut model) = (store(placement, segment_blocks), Model::new());
    let mut random = Random::new(seed, placement);
    for round in 0..500 {
        step(&mut store, &mut model, &mut random).unwrap();
        history.push(model.clone());
        if random.chance(0.3) {
            store.flush().unwrap();
        }
        if round % 120 == 119 {
            store.checkpoint(false).unwrap();
        }
        if round == 250 {
            // A cut in the middle, with something that was never flushed.
            store.flush().unwrap();
            let kept = model.clone();
            for _ in 0..10 {
                step(&mut store, &mut model, &mut random).unwrap();
            }
            store.write_out().unwrap();
            store = reopened(store);
            model = kept;
        }
    }
    store.flush().unwrap();
    if ends {
        store.close().unwrap();
    }
    history.push(model);
    (store.into_nand(), history)
}

/// A store of objects that were only ever written to, over and over, and moved by the cleaner.
fn written(placement: &str, segment_blocks: u32, ends: bool) -> (Nand, Model) {
    let mut store = store(placement, segment_blocks);
    let mut random = Random::new(6, placement);
    let ids: Vec<ObjectId> = (0..60).map(|_| store.create(0).unwrap()).collect();
    for round in 0..900 {
        let id = ids[random.below(60) as usize];
        let (offset, len) = (random.below(12_000), 1 + random.below(4000));
        store.write(id, offset, Content::Bytes(&vec![random.next() as u8; len as usize])).unwrap();
        if random.chance(0.1) {
            store.flush().unwrap();
        }
        if round == 600 {
            store.clean_all().unwrap();
        }
    }
    store.flush().unwrap();
    let model = contents(&mut store);
    if ends {
        store.close().unwrap();
    }
    (store.into_nand(), model)
}

/// Damages all pages of these kinds; how many.
fn destroy(nand: Nand, kinds: &[PageKind]) -> (Flash, usize) {
    let (pages, nand) = pages_of(nand);
    let mut flash = Flash::new(nand, 1);
    flash.nand_mut().power_on();
    let mut count = 0;
    for (addr, _) in pages.into_iter().filter(|page| kinds.contains(&page.1)) {
        match count % 3 {
            0 => flash.damage(addr, Fault::Unreadable),
            1 => flash.turn_bit(addr, count as u32 % 16_000),
            _ => flash.damage(addr, Fault::SpareBit(3 + count as u32 % 60)),
        }
        count += 1;
    }
    (flash, count)
}

fn rebuilt(flash: Flash, at: &str) -> (Store, Vec<String>) {
    let (store, done) = Store::rebuild_on(flash, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
    (store, words(done))
}

/// What the store holds stays so through more work and another opening.
fn works_on(mut store: Store, at: &str) {
    let mut model = contents(&mut store);
    let mut random = Random::new(5, "after");
    for round in 0..60 {
        step(&mut store, &mut model, &mut random).unwrap_or_else(|why| panic!("{at}: {why}"));
        if round % 20 == 19 {
            store.checkpoint(false).unwrap();
        }
    }
    store.flush().unwrap();
    let mut store = reopened(store);
    assert_sound(&mut store);
    let found = contents(&mut store);
    let differs: Vec<_> =
        model.keys().chain(found.keys()).filter(|id| model.get(id) != found.get(id)).collect();
    assert!(differs.is_empty(), "{at}, afterwards: {differs:?}");
    store.close().unwrap();
    assert!(contents(&mut reopened(store)) == model, "{at}, closed");
}

fn grid(mut visit: impl FnMut(&str, u32, bool)) {
    for placement in PLACEMENTS {
        for segment_blocks in [1, 2] {
            for ends in [false, true] {
                visit(placement, segment_blocks, ends);
            }
        }
    }
}

#[test]
fn without_any_checkpoint_anchor_and_table_everything_comes_back() {
    grid(|placement, blocks, ends| {
        for with_record in [true, false] {
            let at = format!("{placement}, {blocks} blocks, ends {ends}, record {with_record}");
            let (nand, model) = made(placement, blocks, 3, ends);
            let mut twin = Store::open(made(placement, blocks, 3, ends).0, options()).unwrap();
            let stats: Vec<Stat> = model.keys().map(|id| twin.stat(ObjectId(*id)).unwrap()).collect();
            let kinds = [&PLACES[..], if with_record { &[] } else { &[PageKind::Format] }].concat();
            let (flash, count) = destroy(nand, &kinds);
            assert!(count > 5, "{at}");
            let nand = destroy(made(placement, blocks, 3, ends).0, &kinds).0;
            let refused = Store::open_on(nand, options()).err();
            assert!(refused.is_some(), "{at}");
            let (mut store, reports) = rebuilt(flash, &at);
            assert_sound(&mut store);
            assert!(contents(&mut store) == model, "{at}: {reports:?}");
            let found: Vec<Stat> = model.keys().map(|id| store.stat(ObjectId(*id)).unwrap()).collect();
            let ids: Vec<u64> = model.keys().copied().collect();
            for ((id, found), stat) in ids.iter().zip(&found).zip(&stats) {
                assert_eq!(found, stat, "{at}: object {id}");
            }
            assert_eq!(store.placement() == placement, with_record || placement == "lifetime", "{at}");
            let mut store = reopened(store);
            assert!(contents(&mut store) == model, "{at}, opened again");
            assert!(store.repair().unwrap().is_empty(), "{at}");
            works_on(store, &at);
        }
    });
}

#[test]
fn a_store_that_does_not_open_says_what_to_do() {
    let (nand, _) = made("split", 1, 3, true);
    let (pages, mut nand) = pages_of(nand);
    for (addr, _) in pages.iter().filter(|page| page.1 == PageKind::Checkpoint) {
        let flash = Flash::new(nand, 1);
        let mut flash = flash;
        flash.turn_bit(*addr, 5);
        nand = flash.into_nand();
    }
    let why = Store::open(nand, options()).err().unwrap().to_string();
    assert!(why.contains("bimetal fsck --yes"), "{why}");
    let blank = Store::rebuild(super::nand(96, |_| ()), options(), Time::ZERO).err().unwrap().to_string();
    assert!(blank.contains("no object store"), "{blank}");
}

#[test]
fn without_any_index_what_the_segments_say_comes_back() {
    grid(|placement, blocks, ends| {
        let at = format!("{placement}, {blocks} blocks, ends {ends}");
        let (nand, model) = written(placement, blocks, ends);
        let kinds = [&PLACES[..], &[PageKind::Node]].concat();
        let (mut store, reports) = rebuilt(destroy(nand, &kinds).0, &at);
        assert_sound(&mut store);
        let found = contents(&mut store);
        for (id, thing) in &model {
            let bytes = found.get(id).map(|thing| &thing.bytes);
            let none = thing.bytes.is_empty() && bytes.is_none();
            assert!(none || bytes == Some(&thing.bytes), "{at}: object {id}: {reports:?}");
            assert!(none || names(&reports, *id) || found.get(id) == Some(thing), "{at}: object {id}");
        }
        works_on(store, &at);
    });
}

#[test]
fn without_index_and_log_what_was_written_before_the_last_checkpoint_comes_back() {
    grid(|placement, blocks, ends| {
        let at = format!("{placement}, {blocks} blocks, ends {ends}");
        let (nand, _) = written(placement, blocks, ends);
        let mut store = Store::open(nand, options()).unwrap();
        let id = store.create(0).unwrap();
        store.write(id, 0, Content::Bytes(&[7; 5000])).unwrap();
        store.checkpoint(false).unwrap();
        let model = contents(&mut store);
        let kinds = [&PLACES[..], &[PageKind::Node, PageKind::Log]].concat();
        let (mut store, reports) = rebuilt(destroy(store.into_nand(), &kinds).0, &at);
        assert_sound(&mut store);
        let found = contents(&mut store);
        for (id, thing) in model.iter().filter(|(_, thing)| !thing.bytes.is_empty()) {
            assert!(found.get(id).is_some_and(|found| found.bytes == thing.bytes), "{at}: {id}: {reports:?}");
        }
        works_on(store, &at);
    });
}

#[test]
fn with_two_pages_of_the_log_gone_only_what_is_named_differs() {
    let (mut refused, mut lost) = (0, 0);
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 2, 1, 2]) {
        let flash = Flash::new(made(placement, blocks, 3, false).0, 1);
        let (pages, nand) = pages_of(flash.into_nand());
        let mut flash = Flash::new(nand, 1).with_segments(blocks);
        let mut log: Vec<(u64, Addr)> = Vec::new();
        for block in pages.iter().filter(|page| page.1 == PageKind::Log) {
            // By the place in the segment, which has several blocks.
            let pages_per_block = flash.pages_per_block();
            let (number, page) = (block.0.0 / pages_per_block, block.0.0 % pages_per_block);
            let addr = flash.addr(number / blocks, page * blocks + number % blocks);
            log.push((flash.read_tag(addr).unwrap().unwrap().serial, addr));
        }
        log.sort_unstable();
        for pair in log.windows(2).rev().take(60 * scale() as usize) {
            let at = format!("{placement}, pages {:?}", pair);
            let (nand, history) = made_with_history(placement, blocks, 3, false);
            let model = history.last().unwrap();
            let mut flash = Flash::new(nand, 1).with_segments(blocks);
            pair.iter().for_each(|page| flash.damage(page.1, Fault::Unreadable));
            let mut flash = flash.with_segments(1);
            let (mut store, reports) = match Store::open_on(flash, options()) {
                Ok(store) => (store, Vec::new()),
                Err(_) => {
                    refused += 1;
                    flash = Flash::new(made(placement, blocks, 3, false).0, 1).with_segments(blocks);
                    pair.iter().for_each(|page| flash.damage(page.1, Fault::Unreadable));
                    rebuilt(flash.with_segments(1), &at)
                }
            };
            let found = contents_past(&mut store);
            let is_last = pair[1] == *log.last().unwrap();
            let ids: BTreeSet<u64> = model.keys().chain(found.keys()).copied().collect();
            for id in ids.into_iter().filter(|id| !names(&reports, *id)) {
                let its = found.get(&id).and_then(Option::as_ref);
                assert_ne!(found.get(&id), Some(&None), "{at}: object {id} cannot be read: {reports:?}");
                lost += u32::from(its != model.get(&id));
                // What was said of an object, and not written, is in the log alone: it is as it was before.
                let was_so = history.iter().any(|model| model.get(&id) == its);
                let is_told =
                    reports.iter().any(|report| report.contains("cannot be read: what they removed"));
                assert!(
                    its == model.get(&id) || was_so && (is_last || is_told),
                    "{at}: object {id}, {reports:?}"
                );
            }
            // What cannot be read any more can be removed.
            let bad: Vec<u64> =
                found.iter().filter(|thing| thing.1.is_none()).map(|thing| *thing.0).collect();
            for id in bad {
                store.remove(ObjectId(id)).unwrap_or_else(|why| panic!("{at}: object {id}: {why}"));
            }
            works_on(store, &at);
        }
    }
    eprintln!("{refused} refused and put together again, {lost} objects not as they were");
    assert!(refused > 10);
}

/// A store of 60 objects that were written whole in one commit, and then again: each in a commit of its own, or all in one;
/// closed or cut off, and what it holds.
fn written_again(placement: &str, blocks: u32, is_each: bool, ends: bool) -> (Nand, Model) {
    let mut store = store(placement, blocks);
    let ids: Vec<ObjectId> = (0..60).map(|_| store.create(0).unwrap()).collect();
    for (round, is_each) in [(0, false), (1, is_each)] {
        for (number, id) in (0..).zip(&ids) {
            // A page of pieces says what it holds; one that is all of one object's does not, until the next checkpoint.
            let len = 500 + usize::from(number) * 20;
            store.write(*id, 0, Content::Bytes(&vec![number * 4 + round; len])).unwrap();
            if is_each {
                store.flush().unwrap();
            }
        }
        store.flush().unwrap();
        if !is_each {
            store.checkpoint(false).unwrap();
        }
    }
    let model = contents(&mut store);
    if ends {
        store.close().unwrap();
    }
    (store.into_nand(), model)
}

/// What differs from a model is named, or as it was before the commits that are lost, and where something does the report
/// says that not all is there.
fn differs_only_in_what_is_named(flash: Flash, model: &Model, at: &str) -> usize {
    let (mut store, done) = Store::rebuild_on(flash, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
    let found = contents_past(&mut store);
    let (is_less, reports) = (done.iter().any(|one| one.lost), words(done));
    let ids: BTreeSet<u64> = model.keys().chain(found.keys()).copied().collect();
    let differs: Vec<u64> =
        ids.into_iter().filter(|id| found.get(id).and_then(Option::as_ref) != model.get(id)).collect();
    assert!(differs.is_empty() || is_less, "{at}: {differs:?}, {reports:?}");
    let is_told = reports.iter().any(|report| report.contains("cannot be read: what they removed"));
    for id in &differs {
        let its = found.get(id).and_then(Option::as_ref);
        let is_old = its.is_some_and(|thing| thing.bytes.iter().all(|byte| byte % 4 == 0));
        assert!(is_told && is_old || names(&reports, *id), "{at}: object {id} of {differs:?}, {reports:?}");
    }
    differs.len()
}

/// Damages the last pages of the log, their spare areas too or not.
fn without_the_last_of_the_log(flash: Flash, blocks: u32, last: usize, with_tags: bool) -> Flash {
    let mut flash = flash.with_segments(blocks);
    let mut log = Vec::new();
    for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
        match flash.read_tag(addr) {
            Ok(Some(tag)) if tag.kind == PageKind::Log => log.push((tag.serial, addr)),
            _ => {}
        }
    }
    log.sort_unstable();
    for (_, addr) in log.iter().rev().take(last) {
        match with_tags {
            true => flash.damage(*addr, Fault::Unreadable),
            false => flash.turn_bit(*addr, 100),
        }
    }
    flash.with_segments(1)
}

#[test]
fn what_the_end_of_the_log_said_comes_back_from_the_segments() {
    grid(|placement, blocks, _| {
        for (last, with_tags) in [1, 2, 3, 10, 40].into_iter().flat_map(|last| [(last, false), (last, true)])
        {
            let at = format!("{placement}, {blocks} blocks, the last {last} pages, with tags {with_tags}");
            let (nand, model) = written_again(placement, blocks, true, false);
            let flash = destroy(nand, &PLACES).0;
            let flash = without_the_last_of_the_log(flash, blocks, last, with_tags);
            let (mut store, done) = Store::rebuild_on(flash, options()).unwrap();
            assert!(done.iter().any(|one| one.lost), "{at}: {done:?}");
            assert_sound(&mut store);
            assert!(contents(&mut store) == model, "{at}: {done:?}");
            works_on(store, &at);
        }
    });
}

#[test]
fn a_store_whose_log_ends_with_several_damaged_pages_does_not_go_on_without_them() {
    grid(|placement, blocks, _| {
        for last in [1, 2, 3, 10] {
            let at = format!("{placement}, {blocks} blocks, the last {last} pages");
            let made = || {
                let (nand, model) = written_again(placement, blocks, true, false);
                let mut flash = Flash::new(nand, 1);
                flash.nand_mut().power_on();
                (without_the_last_of_the_log(flash, blocks, last, false), model)
            };
            match Store::open_on(made().0, options()) {
                Ok(mut store) => {
                    assert_eq!(last, 1, "{at}");
                    let problems = store.check(true).unwrap().problems;
                    assert!(problems[0].contains("the last commit may be lost"), "{at}: {problems:?}");
                }
                Err(why) => assert!(last > 1 && is_damage(&why), "{at}: {why}"),
            }
            let (flash, model) = made();
            let (mut store, reports) = rebuilt(flash, &at);
            assert!(contents(&mut store) == model, "{at}: {reports:?}");
            works_on(store, &at);
        }
    });
}

#[test]
fn a_segment_that_is_lost_as_a_whole_takes_nothing_along_that_is_not_named() {
    let (mut refused, mut differ) = (0, 0);
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 2, 2, 1]) {
        for (is_each, ends) in [(false, true), (false, false), (true, true), (true, false)] {
            let made = || written_again(placement, blocks, is_each, ends);
            let (pages, nand) = pages_of(made().0);
            let per_block = Flash::new(nand, 1).pages_per_block();
            let used: BTreeSet<u32> = pages.iter().map(|page| page.0.0 / per_block).collect();
            for block in used {
                let at = format!("{placement}, each {is_each}, ends {ends}, block {block}");
                let lost = || {
                    let mut flash = Flash::new(made().0, 1);
                    flash.nand_mut().power_on();
                    let its = pages.iter().filter(|page| page.0.0 / per_block == block);
                    its.for_each(|page| flash.turn_bit(page.0, 100));
                    flash
                };
                if Store::open_on(lost(), options()).is_err() {
                    refused += 1;
                    differ += differs_only_in_what_is_named(lost(), &made().1, &at);
                }
            }
        }
    }
    eprintln!("{refused} put together again, {differ} objects not as they were");
    assert!(refused > 5, "{refused}");
}

/// What all objects hold; none of one that cannot be read.
fn contents_past(store: &mut Store) -> BTreeMap<u64, Option<Thing>> {
    let mut ids = Vec::new();
    store
        .list(ObjectId(0), &mut |id| {
            ids.push(id);
            true
        })
        .unwrap();
    ids.into_iter().map(|id| (id.0, super::faults::thing(store, id.0))).collect()
}

#[test]
fn what_is_put_together_is_so_wherever_the_power_goes_meanwhile() {
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 2, 2, 1]) {
        for ends in [false, true] {
            let (_, model) = made(placement, blocks, 3, ends);
            let mut cut = 1;
            loop {
                let (mut flash, _) = destroy(made(placement, blocks, 3, ends).0, &PLACES);
                flash.nand_mut().cut_power_in(cut);
                let at = format!("{placement}, {blocks} blocks, ends {ends}, cut {cut}");
                let done = Store::rebuild_on(flash, options());
                let Err(why) = done else { break };
                assert!(matches!(why, Error::Gone { .. }), "{at}: {why}");
                // The damage, and what the first attempt wrote.
                let mut flash = destroy_and_rebuild_until(placement, blocks, ends, cut);
                flash.nand_mut().power_on();
                let (mut store, reports) = match Store::open_on(flash, options()) {
                    Ok(store) => (store, Vec::new()),
                    Err(_) => {
                        let mut flash = destroy_and_rebuild_until(placement, blocks, ends, cut);
                        flash.nand_mut().power_on();
                        rebuilt(flash, &at)
                    }
                };
                assert!(contents(&mut store) == model, "{at}: {reports:?}");
                assert_sound(&mut store);
                cut += 1;
            }
            assert!(cut > 4, "{placement}: {cut}");
        }
    }
}

/// The flash after a rebuilding that the power cut off; what was damaged is so still.
fn destroy_and_rebuild_until(placement: &str, blocks: u32, ends: bool, cut: u64) -> Flash {
    let (mut flash, _) = destroy(made(placement, blocks, 3, ends).0, &PLACES);
    flash.nand_mut().cut_power_in(cut);
    Store::rebuild_then(flash, options())
}

#[test]
fn a_rebuilding_after_the_end_of_the_log_was_lost_ends_the_same_wherever_it_was_cut_off() {
    let mut again = 0;
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 2, 1, 2]) {
        let damaged = || {
            let mut store = store(placement, blocks);
            let ids: Vec<ObjectId> = (0..300).map(|_| store.create(0).unwrap()).collect();
            for round in 0..2 {
                // What was committed last is many pages of the log.
                ids.iter().for_each(|id| store.write(*id, 0, Content::Bytes(&[round; 100])).unwrap());
                store.flush().unwrap();
                if round == 0 {
                    store.checkpoint(false).unwrap();
                }
            }
            let model = contents(&mut store);
            (without_the_last_of_the_log(Flash::new(store.into_nand(), 1), blocks, 2, false), model)
        };
        for cut in 1.. {
            let at = format!("{placement}, cut at {cut}");
            let cut_off = || {
                let mut flash = damaged().0;
                flash.nand_mut().cut_power_in(cut);
                let mut flash = Store::rebuild_then(flash, options());
                flash.nand_mut().power_on();
                flash
            };
            let mut whole = damaged().0;
            whole.nand_mut().cut_power_in(cut);
            let is_whole = Store::rebuild_on(whole, options()).is_ok();
            let (mut store, reports) = match Store::open_on(cut_off(), options()) {
                Ok(store) => (store, Vec::new()),
                Err(_) => {
                    again += 1;
                    let (store, done) = Store::rebuild_on(cut_off(), options()).unwrap();
                    assert!(done.iter().any(|one| one.lost), "{at}: {done:?}");
                    (store, words(done))
                }
            };
            assert!(contents(&mut store) == damaged().1, "{at}: {reports:?}");
            assert_sound(&mut store);
            if is_whole {
                break;
            }
        }
    }
    eprintln!("{again} put together again");
    assert!(again > 20, "{again}");
}

#[test]
fn what_was_never_committed_is_no_sign_that_the_log_lost_something() {
    grid(|placement, blocks, _| {
        let at = format!("{placement}, {blocks} blocks");
        let made = || {
            let (nand, _) = written_again(placement, blocks, true, false);
            let mut store = Store::open(nand, options()).unwrap();
            let id = store.create(0).unwrap();
            store.write(id, 0, Content::Bytes(&[7; 20_000])).unwrap();
            store.flush().unwrap();
            let model = contents(&mut store);
            store.write(id, 0, Content::Bytes(&vec![8; 90_000])).unwrap();
            store.write(ObjectId(3), 0, Content::Bytes(&[9; 700])).unwrap();
            store.write_out().unwrap();
            (store.into_nand(), model)
        };
        let (nand, model) = made();
        let (pages, nand) = pages_of(nand);
        let mut flash = Flash::new(nand, 1);
        let its = pages.iter().filter(|page| page.1 == PageKind::Checkpoint);
        its.for_each(|page| flash.turn_bit(page.0, 99));
        let (mut store, done) = Store::rebuild_on(flash, options()).unwrap();
        assert!(done.iter().all(|one| !one.lost), "{at}: {done:?}");
        assert!(contents(&mut store) == model, "{at}: {done:?}");
        assert_sound(&mut store);
    });
}

#[test]
fn a_store_does_not_go_on_without_the_segment_that_its_log_went_on_in() {
    let mut refused = 0;
    grid(|placement, blocks, _| {
        for is_unreadable in [true, false] {
            let at = format!("{placement}, {blocks} blocks, unreadable {is_unreadable}");
            let made = || {
                let (nand, _) = written_again(placement, blocks, true, false);
                let mut store = Store::open(nand, options()).unwrap();
                store.flush().unwrap();
                for round in 0..3 {
                    store.write(ObjectId(5), 0, Content::Bytes(&[round; 300])).unwrap();
                    store.flush().unwrap();
                }
                store.checkpoint(false).unwrap();
                let chain = store.index.media.chains()[0];
                for id in 10..12 {
                    store.write(ObjectId(id), 0, Content::Bytes(&[id as u8; 300])).unwrap();
                    store.flush().unwrap();
                }
                let model = contents(&mut store);
                let mut flash = store.index.media.flash;
                for index in 0..flash.pages_per_segment() {
                    let addr = flash.addr(chain.segment, index);
                    if flash.read_tag(addr).unwrap().is_some() {
                        match is_unreadable {
                            true => flash.damage(addr, Fault::Unreadable),
                            false => flash.damage(addr, Fault::Torn),
                        }
                    }
                }
                (flash.with_segments(1), chain.index, model)
            };
            let (flash, index, model) = made();
            if index < 2 {
                continue;
            }
            match Store::open_on(flash, options()) {
                Ok(mut store) => assert!(
                    contents_past(&mut store).len() == model.len() && contents(&mut store) == model,
                    "{at}"
                ),
                Err(why) => {
                    assert!(is_damage(&why), "{at}: {why}");
                    refused += 1;
                }
            }
            let (mut store, done) = Store::rebuild_on(made().0, options()).unwrap();
            let (is_less, reports) = (done.iter().any(|one| one.lost), words(done));
            let found = contents_past(&mut store);
            let ids = model.keys().chain(found.keys());
            let differs: Vec<&u64> =
                ids.filter(|id| found.get(id).and_then(Option::as_ref) != model.get(id)).collect();
            // What is told to be lost may be as it was before.
            let is_told = reports.iter().any(|report| report.contains("cannot be read: what they removed"));
            let was_so = |id: &u64| {
                let found = found.get(id).and_then(Option::as_ref);
                found.is_some_and(|thing| thing.bytes.iter().all(|byte| *byte == (*id as u8 - 1) * 4 + 1))
            };
            assert!(
                is_less && differs.iter().all(|id| names(&reports, **id) || is_told && was_so(id)),
                "{at}: {differs:?}, {reports:?}"
            );
        }
    });
    assert!(refused > 7, "{refused}");
}

#[test]
fn a_wrong_bit_in_an_old_page_of_the_log_does_not_make_it_the_last() {
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 1, 1, 2]) {
        for damaged in [1, 2, 3] {
            let at = format!("{placement}, {damaged} pages");
            let (mut store, mut log) = (store(placement, blocks), Vec::new());
            let id = store.create(0).unwrap();
            for round in 0..120u8 {
                store.write(id, 0, Content::Bytes(&[round; 300])).unwrap();
                store.flush().unwrap();
            }
            store.checkpoint(false).unwrap();
            store.checkpoint(false).unwrap();
            store.write(id, 0, Content::Bytes(&[200; 300])).unwrap();
            store.flush().unwrap();
            let model = contents(&mut store);
            let mut flash = store.index.media.flash;
            for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
                if let Ok(Some(tag)) = flash.read_tag(addr)
                    && tag.kind == PageKind::Log
                {
                    log.push((tag.serial, addr));
                }
            }
            log.sort_unstable();
            // In the first segment that is still there.
            let first = log[0].1;
            let its: Vec<Addr> = log.iter().filter(|page| page.0 == log[0].0).map(|page| page.1).collect();
            flash.damage(flash.addr(flash.segment_of(first), 0), Fault::SpareBit(58));
            its.iter().rev().take(damaged - 1).for_each(|addr| flash.turn_bit(*addr, 100));
            for _ in 0..2 {
                let mut store = Store::open_on(flash.with_segments(1), options())
                    .unwrap_or_else(|why| panic!("{at}: {why}"));
                assert_sound(&mut store);
                assert!(contents(&mut store) == model, "{at}");
                flash = store.index.media.flash;
            }
        }
    }
}

#[test]
fn a_checkpoint_that_an_anchor_names_counts_though_many_of_its_nodes_cannot_be_read() {
    for (placement, kinds) in PLACEMENTS
        .into_iter()
        .flat_map(|one| [(one, [PageKind::Checkpoint; 2]), (one, [PageKind::Checkpoint, PageKind::Table])])
    {
        let mut store = store(placement, 1);
        for _ in 0..200 {
            let id = store.create(0).unwrap();
            store.set_attribute(id, b"user.a", &[1; 20]).unwrap();
        }
        store.checkpoint(false).unwrap();
        // Something in each leaf.
        for id in (1..200).step_by(10) {
            store.set_attribute(ObjectId(id), b"user.a", &[2; 20]).unwrap();
        }
        store.checkpoint(false).unwrap();
        let model = contents(&mut store);
        let at = format!("{placement}, {kinds:?}");
        let nodes: Vec<Addr> = store.index.tree.pages().map(|page| page.1).collect();
        let mut flash = store.index.media.flash;
        let mark = |flash: &mut Flash, addr: Addr| {
            node::read_by(&flash.read(addr, PageKind::Node).unwrap()).unwrap().1.mark
        };
        let marks: Vec<u64> = nodes.iter().map(|addr| mark(&mut flash, *addr)).collect();
        let newest = marks.iter().max().copied().unwrap();
        let its: Vec<&Addr> =
            nodes.iter().zip(&marks).filter(|one| *one.1 == newest).map(|one| one.0).collect();
        assert!(its.len() > 3, "{at}: {}", its.len());
        its.iter().skip(2).take(1).for_each(|addr| flash.turn_bit(**addr, 99));
        for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
            let tag = flash.read_tag(addr).unwrap();
            if tag.is_some_and(|tag| kinds.contains(&tag.kind) || tag.kind == PageKind::Log) {
                flash.turn_bit(addr, 100);
            }
        }
        let (mut store, done) = Store::rebuild_on(flash.with_segments(1), options()).unwrap();
        let reports = words(done);
        let found = contents_past(&mut store);
        let is_same = |id: &u64| found.get(id).is_some_and(|its| its.as_ref() == model.get(id));
        let changed: Vec<u64> = (1..200).step_by(10).filter(is_same).collect();
        assert!(changed.len() > 9, "{at}: {changed:?}, {reports:?}");
        let unnamed: Vec<&u64> = model.keys().filter(|id| !is_same(id) && !names(&reports, **id)).collect();
        assert!(unnamed.is_empty(), "{at}: {unnamed:?}, {reports:?}");
        assert_sound(&mut store);
    }
}

#[test]
fn nodes_that_the_index_does_not_lead_to_are_found_and_given_up() {
    let (mut store, model) = written_node_by_node("split", 1);
    let pages = store.index.tree.pages().count();
    // One that a repair of a version before left.
    let mut leaf = Node::empty_leaf();
    let value = layout::Value::Attributes(b"stale"[..].into());
    leaf.put(layout::Key::attributes(7), &value);
    store.index.tree.add(leaf);
    store.close().unwrap();
    let mut store = reopened(store);
    assert_eq!(store.index.tree.pages().count(), pages + 1);
    let problems = store.check(true).unwrap().problems;
    assert!(problems.len() == 1 && problems[0].contains("does not lead to"), "{problems:?}");
    let done = store.repair().unwrap();
    assert!(done.len() == 1 && !done[0].lost, "{done:?}");
    let mut store = reopened(store);
    assert_sound(&mut store);
    assert_eq!(store.index.tree.pages().count(), pages);
    assert!(contents(&mut store) == model);
}

/// A store whose nodes were written by different checkpoints, of which the segments do not say it yet; what it holds.
fn written_node_by_node(placement: &str, blocks: u32) -> (Store, Model) {
    let mut store = store(placement, blocks);
    let ids: Vec<ObjectId> = (0..400).map(|_| store.create(0).unwrap()).collect();
    for id in &ids {
        store.write(*id, 0, Content::Bytes(&[1; 60])).unwrap();
        store.set_attribute(*id, b"user.a", &[1; 20]).unwrap();
    }
    store.checkpoint(false).unwrap();
    for (round, at) in (2..).zip([390, 30, 200, 80, 280]) {
        for id in &ids[at..at + 5] {
            store.write(*id, 0, Content::Bytes(&[round; 50])).unwrap();
            store.set_attribute(*id, b"user.a", &[round; 20]).unwrap();
        }
        // The tree becomes wider, too.
        for _ in 0..30 * u32::from(round % 2 == 0) {
            let id = store.create(0).unwrap();
            store.set_attribute(id, b"user.a", &[round; 20]).unwrap();
        }
        store.checkpoint(false).unwrap();
    }
    store.flush().unwrap();
    let model = contents(&mut store);
    (store, model)
}

#[test]
fn an_older_page_of_a_node_is_not_taken_for_one_that_cannot_be_read() {
    let (mut inner, mut leaves, mut doubts) = (0, 0, 0);
    for (placement, blocks) in PLACEMENTS.into_iter().zip([1, 2, 1, 1]) {
        let pages: Vec<(u32, Addr)> = written_node_by_node(placement, blocks).0.index.tree.pages().collect();
        for (id, addr) in pages {
            for (without_tables, both) in [(false, false), (true, false), (false, true), (true, true)] {
                let at = format!("{placement}, node {id}, tables {without_tables}, and a leaf {both}");
                let (store, model) = written_node_by_node(placement, blocks);
                let other = store.index.tree.pages().nth(3).unwrap().1;
                let mut flash = store.index.media.flash;
                let is_leaf = Node::decode(id, &flash.read(addr, PageKind::Node).unwrap()).unwrap().is_leaf();
                flash.turn_bit(addr, 99);
                if both && other != addr {
                    flash.turn_bit(other, 99);
                }
                for addr in (0..flash.segments() * flash.pages_per_segment()).map(Addr) {
                    match flash.read_tag(addr) {
                        Ok(Some(tag)) if tag.kind == PageKind::Checkpoint => flash.turn_bit(addr, 100),
                        Ok(Some(tag)) if without_tables && tag.kind == PageKind::Table => {
                            flash.turn_bit(addr, 100);
                        }
                        _ => {}
                    }
                }
                let (store, done) = Store::rebuild_on(flash.with_segments(1), options()).unwrap();
                let (is_less, reports) = (done.iter().any(|one| one.lost), words(done));
                let mut store = reopened(store);
                let found = contents_past(&mut store);
                let ids: BTreeSet<u64> = model.keys().chain(found.keys()).copied().collect();
                let differs: Vec<u64> = ids
                    .into_iter()
                    .filter(|id| found.get(id).and_then(Option::as_ref) != model.get(id))
                    .collect();
                let unnamed: Vec<&u64> = differs.iter().filter(|id| !names(&reports, **id)).collect();
                assert!(unnamed.is_empty(), "{at}: {unnamed:?}, {reports:?}");
                assert!(differs.is_empty() || is_less, "{at}: {reports:?}");
                // What lies in other leaves is there.
                assert!(
                    found.len() + 130 > model.len(),
                    "{at}: {} of {}, {reports:?}",
                    found.len(),
                    model.len()
                );
                if !without_tables && !both {
                    assert!(is_leaf || differs.is_empty(), "{at}: {differs:?}, {reports:?}");
                    let most = differs.len() < 60;
                    assert!(most, "{at}: {differs:?}, {reports:?}");
                }
                assert_sound(&mut store);
                inner += usize::from(!is_leaf);
                leaves += usize::from(is_leaf);
                doubts += usize::from(reports.iter().any(|one| one.contains("may be as they were before")));
                if id % 4 == 0 {
                    works_on(store, &at);
                }
            }
        }
    }
    eprintln!("{inner} inner nodes, {leaves} leaves, {doubts} in doubt");
    assert!(inner > 10 && leaves > 100 && doubts > 20, "{inner}, {leaves}, {doubts}");
}

#[test]
fn with_a_node_gone_as_well_only_what_is_named_differs() {
    let (mut whole, mut with_lost) = (0, 0);
    for (placement, ends) in PLACEMENTS.into_iter().zip([true, false, true, false]) {
        let nodes: Vec<Addr> = {
            let (pages, _) = pages_of(made(placement, 1, 3, ends).0);
            pages.into_iter().filter(|page| page.1 == PageKind::Node).map(|page| page.0).collect()
        };
        for addr in nodes.into_iter().rev().take(12 * scale() as usize) {
            let at = format!("{placement}, ends {ends}, node at {}", addr.0);
            let (nand, model) = made(placement, 1, 3, ends);
            let (mut flash, _) = destroy(nand, &PLACES);
            flash.damage(addr, Fault::Unreadable);
            let (mut store, reports) = rebuilt(flash, &at);
            let found = contents_past(&mut store);
            let ids: BTreeSet<u64> = model.keys().chain(found.keys()).copied().collect();
            let differs: Vec<u64> = ids
                .into_iter()
                .filter(|id| found.get(id).is_none_or(|found| found.as_ref() != model.get(id)))
                .collect();
            whole += u32::from(differs.is_empty());
            with_lost += u32::from(!differs.is_empty());
            for id in differs {
                assert!(names(&reports, id), "{at}: object {id}, {reports:?}");
            }
            let bad: Vec<u64> =
                found.iter().filter(|thing| thing.1.is_none()).map(|thing| *thing.0).collect();
            bad.into_iter().for_each(|id| store.remove(ObjectId(id)).unwrap());
            works_on(store, &at);
        }
    }
    eprintln!("{whole} whole, {with_lost} with something lost");
    assert!(whole > 10);
}
