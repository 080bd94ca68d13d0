//! Single pages that cannot be read: what it costs, and what it must not cost. The rows are those of docs/damage.md.

use super::*;

/// A store whose nodes hardly stay in memory.
fn forgetful(placement: &str) -> Store {
    let format = Format { segment_blocks: 1, placement: placement.into() };
    let options = Options { cache_bytes: 0, ..options() };
    Store::format(nand(256, |_| ()), &format, options).unwrap()
}

fn is_corrupt<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Corrupt { .. }))
}

#[test]
fn a_rotten_page_costs_only_the_bytes_on_it() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let (rotten, healthy) = (store.create(0).unwrap(), store.create(0).unwrap());
        store.write(rotten, 0, Content::Bytes(&[1; 300])).unwrap();
        store.flush().unwrap();
        store.spoil(rotten, 0);
        store.write(healthy, 0, Content::Bytes(&[2; 3000])).unwrap();
        // The write-out would keep this together with what cannot be read.
        store.write(rotten, 300, Content::Bytes(&[3; 100])).unwrap();
        store.sync().unwrap();
        let mut store = reopened(store);
        assert_eq!(store.read(healthy, 0, 9000).unwrap(), [2; 3000], "{placement}");
        assert_eq!(store.read(rotten, 300, 100).unwrap(), [3; 100], "{placement}");
        assert!(is_corrupt(store.read(rotten, 299, 1)), "{placement}");
        let problems = store.check(true).unwrap().problems;
        assert!(problems.len() == 1 && problems[0].contains("object 1"), "{placement}: {problems:?}");
        // Overwritten, it is whole again.
        store.write(rotten, 0, Content::Bytes(&[4; 300])).unwrap();
        store.flush().unwrap();
        assert_eq!(store.read(rotten, 0, 300).unwrap(), [4; 300], "{placement}");
        store.remove(rotten).unwrap();
        store.close().unwrap();
        assert_sound(&mut reopened(store));
    }
}

#[test]
fn the_cleaner_leaves_what_it_cannot_read_and_the_rest_goes_on() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let ids: Vec<ObjectId> = (0..40).map(|_| store.create(0).unwrap()).collect();
        for (byte, id) in (0..).zip(&ids) {
            store.write(*id, 0, Content::Bytes(&[byte; 9000])).unwrap();
        }
        store.flush().unwrap();
        store.spoil(ids[7], 4096);
        for _ in 0..3 {
            store.clean_all().unwrap();
        }
        assert_eq!(store.index.media.segments.rotten(), 1, "{placement}");
        let mut store = reopened(store);
        for (byte, id) in (0..).zip(&ids).filter(|(_, id)| **id != ids[7]) {
            assert_eq!(store.read(*id, 0, 9000).unwrap(), [byte; 9000], "{placement}");
        }
        assert_eq!(store.read(ids[7], 0, 4096).unwrap(), [7; 4096], "{placement}");
        assert!(is_corrupt(store.read(ids[7], 4096, 2048)), "{placement}");
        assert_eq!(store.read(ids[7], 6144, 9000).unwrap(), [7; 2856], "{placement}");
        store.clean_all().unwrap();
        store.remove(ids[7]).unwrap();
        store.flush().unwrap();
        store.clean_all().unwrap();
        assert_eq!(store.index.media.segments.rotten(), 0, "{placement}");
        assert_sound(&mut store);
    }
}

/// Damages a leaf of the index that is not in memory; the objects in it.
fn spoil_leaf(store: &mut Store, ids: &[ObjectId], wanted: ObjectId) -> Vec<ObjectId> {
    let pages: Vec<_> = store.index.tree.pages().filter(|(id, _)| *id != 0).collect();
    for (id, addr) in pages {
        let page = store.index.media.flash.read(addr, layout::PageKind::Node).unwrap();
        let node = node::Node::decode(id, &page).unwrap();
        let holds = |object: &ObjectId| node.search(layout::Key::onode(object.0)).is_ok();
        if node.is_leaf() && holds(&wanted) {
            store.index.media.flash.turn_bit(addr, 99);
            return ids.iter().copied().filter(holds).collect();
        }
    }
    panic!("no leaf has object {wanted}");
}

#[test]
fn a_rotten_leaf_of_the_index_costs_the_objects_in_it_and_no_sync() {
    let mut store = forgetful("lifetime");
    let ids: Vec<ObjectId> = (0..2000).map(|_| store.create(0).unwrap()).collect();
    ids.iter().for_each(|id| store.write(*id, 0, Content::Bytes(&id.0.to_le_bytes())).unwrap());
    store.checkpoint(false).unwrap();
    let (waiting, other) = (ids[1000], ids[100]);
    store.write(waiting, 8, Content::Bytes(b"waits")).unwrap();
    store.write(other, 8, Content::Bytes(b"waits")).unwrap();
    let lost = spoil_leaf(&mut store, &ids, waiting);
    // Its leaf leaves memory.
    ids[..500].iter().for_each(|id| drop(store.read(*id, 0, 8).unwrap()));
    store.index.tree.trim();
    assert!(is_corrupt(store.stat(waiting)));
    store.sync().unwrap();
    assert!(is_corrupt(store.check_written(waiting)));
    store.check_written(other).unwrap();
    store.clean_all().unwrap();
    let fresh = store.create(0).unwrap();
    store.write(fresh, 0, Content::Bytes(&[5; 5000])).unwrap();
    assert!(is_corrupt(store.close()), "what waits is lost, and that is said");
    let mut store = reopened(store);
    assert_eq!(store.read(fresh, 0, 5000).unwrap(), [5; 5000]);
    assert_eq!(store.read(other, 8, 9).unwrap(), b"waits");
    for id in &ids {
        let read = store.read(*id, 0, 8);
        assert_eq!(is_corrupt(read), lost.contains(id), "object {id}");
    }
    assert!(lost.len() < 100 && !store.check(true).unwrap().problems.is_empty());
    store.close().unwrap();
}

#[test]
fn an_operation_on_an_object_that_fails_at_any_of_its_changes_has_changed_nothing() {
    type Operation = fn(&mut Store, ObjectId) -> Result<()>;
    let operations: [(&str, Operation); 8] = [
        ("remove", |store, id| store.remove(id)),
        ("truncate", |store, id| store.truncate(id, 3000)),
        ("extend", |store, id| store.truncate(id, 30_000)),
        ("punch", |store, id| store.punch(id, 1000, 9000)),
        ("reserve", |store, id| store.reserve_range(id, 0, 40_000)),
        ("long attribute", |store, id| store.set_attribute(id, b"user.a", &[3; 3000])),
        ("short attribute", |store, id| store.set_attribute(id, b"user.long", b"short")),
        ("times", |store, id| {
            let set = Some(Stamp { sec: 5, nsec: 6 });
            store.set_times(id, &SetTimes { accessed: set, created: set, ..SetTimes::default() })
        }),
    ];
    for (name, operation) in operations {
        for placement in PLACEMENTS {
            let mut store = store(placement, 1);
            let (id, other) = (store.create(0).unwrap(), store.create(0).unwrap());
            store.arrive(Time(7_000_000_000));
            for (at, byte) in [(0, 1), (9000, 2), (15_000, 3)] {
                store.write(id, at, Content::Bytes(&[byte; 5000])).unwrap();
                store.write(other, at, Content::Bytes(&[byte; 500])).unwrap();
                store.set_attribute(id, b"user.long", &[byte; 2500]).unwrap();
                store.touch(id).unwrap();
                // Something of it is on the flash, and something waits.
                if byte < 3 {
                    store.flush().unwrap();
                }
            }
            store.write(id, 4000, Content::Bytes(&[9; 20])).unwrap();
            let before = (contents(&mut store), store.stat(id).unwrap(), store.buffer.bytes());
            for changes in 1.. {
                store.fail_in(changes);
                let done = operation(&mut store, id);
                if store.has_not_failed() {
                    done.unwrap();
                    break;
                }
                assert!(done.is_err(), "{name}, {placement}, change {changes}");
                let after = (contents(&mut store), store.stat(id).unwrap(), store.buffer.bytes());
                assert!(after == before, "{name}, {placement}, change {changes}");
            }
            let after = contents(&mut store);
            store.sync().unwrap();
            let mut store = reopened(store);
            assert!(contents(&mut store) == after, "{name}, {placement}");
            assert_sound(&mut store);
        }
    }
}

#[test]
fn a_chain_that_leads_back_is_no_end_of_the_log() {
    let mut store = store("split", 1);
    let id = store.create(0).unwrap();
    store.flush().unwrap();
    let open = store.index.media.open()[store.placement.place(placement::DataClass::Log)].clone().unwrap();
    let mut page = layout::Output::default();
    page.u32(1 << 16);
    page.u32(open.segment);
    page.u64(open.serial);
    page.u64(0);
    let addr = store.index.media.flash.addr(open.segment, open.next);
    assert!(store.index.media.flash.program(addr, layout::PageKind::Summary, open.serial, &page.0).unwrap());
    assert!(reopened(store).exists(id).unwrap());
}

/// A store with checkpoints behind it, and after them commits in more than one segment of the log; and what it holds.
fn worked_on(placement: &str, seed: u64, ends: bool) -> (Nand, Model) {
    let (mut store, mut model) = (store(placement, 1), Model::new());
    for n in 0..150 {
        let id = store.create(0).unwrap();
        store.set_attribute(id, b"user.filled", &[n; 20]).unwrap();
        store.write(id, u64::from(n), Content::Bytes(&[n; 30])).unwrap();
        let attributes = [(b"user.filled".to_vec(), vec![n; 20])].into();
        let bytes = [vec![0; n as usize], vec![n; 30]].concat();
        model.insert(id.0, Thing { bytes, attributes });
    }
    let mut random = Random::new(seed, placement);
    for round in 0..200 {
        step(&mut store, &mut model, &mut random).unwrap();
        if round % 2 == 0 {
            store.flush().unwrap();
        }
        if round == 60 || round == 120 {
            store.checkpoint(false).unwrap();
        }
    }
    store.flush().unwrap();
    if ends {
        store.close().unwrap();
    }
    (store.into_nand(), model)
}

/// All pages of a flash that were programmed and say of themselves that they are of a store.
pub(super) fn pages_of(nand: Nand) -> (Vec<(Addr, layout::PageKind)>, Nand) {
    let mut flash = flash::Flash::new(nand, 1);
    let all = (0..flash.segments() * flash.pages_per_segment()).map(Addr);
    let kinds: Vec<_> = all.filter_map(|addr| Some((addr, flash.read_tag(addr).unwrap()?.kind))).collect();
    (kinds, flash.into_nand())
}

/// The page of the log that no other came after.
fn last_of_the_log(
    pages: &[(Addr, layout::PageKind)],
    placement: &str,
    seed: u64,
    ends: bool,
) -> Option<Addr> {
    let mut flash = flash::Flash::new(worked_on(placement, seed, ends).0, 1);
    let log = pages.iter().filter(|page| page.1 == layout::PageKind::Log);
    log.max_by_key(|page| (flash.read_tag(page.0).unwrap().unwrap().serial, page.0)).map(|page| page.0)
}

#[test]
fn one_damaged_page_of_the_stores_own_closes_nothing_and_loses_nothing() {
    use layout::PageKind;
    let faults = [
        Some(flash::Fault::Unreadable),
        None,
        Some(flash::Fault::SpareBit(3)),
        Some(flash::Fault::SpareBit(30)),
    ];
    let mut damaged = std::collections::BTreeMap::new();
    for placement in PLACEMENTS {
        for (seed, ends) in [(1, false), (2, true)] {
            let (nand, _) = worked_on(placement, seed, ends);
            let (pages, _) = pages_of(nand);
            let own = |kind: PageKind| !matches!(kind, PageKind::Data | PageKind::Pieces | PageKind::Node);
            let last_log = last_of_the_log(&pages, placement, seed, ends);
            for (number, (addr, kind)) in pages.iter().copied().enumerate().filter(|page| own(page.1.1)) {
                let fault = faults[number % faults.len()];
                *damaged.entry(kind as u8).or_insert(0) += 1;
                let (nand, model) = worked_on(placement, seed, ends);
                let mut flash = flash::Flash::new(nand, 1);
                match fault {
                    Some(fault) => flash.damage(addr, fault),
                    None => flash.turn_bit(addr, number as u32 % 16_000),
                }
                let opened = Store::open_on(flash, options());
                let at = format!("{placement}, {kind:?} page {}, {fault:?}, ends {ends}", addr.0);
                let mut store = opened.unwrap_or_else(|why| panic!("{at}: {why}"));
                let found = contents(&mut store);
                // The last page of the log, damaged, is a commit that the power cut off.
                assert!(found == model || !ends && Some(addr) == last_log, "{at}");
                let mut model = found;
                let mut random = Random::new(seed, "after");
                for _ in 0..30 {
                    step(&mut store, &mut model, &mut random).unwrap_or_else(|why| panic!("{at}: {why}"));
                }
                store.close().unwrap();
                let mut store = reopened(store);
                assert_sound(&mut store);
                assert!(contents(&mut store) == model, "{at}, afterwards");
            }
        }
    }
    eprintln!("pages damaged, by kind: {damaged:?}");
    assert_eq!(damaged.len(), 7, "{damaged:?}");
}

#[test]
fn the_checkpoint_of_a_large_flash_is_as_long_as_it_needs_to_be() {
    // As many segments as 16 GiB of blocks of 128 KiB have; what is said of each grows with the bytes written.
    let format = Format { segment_blocks: 1, placement: "lifetime".into() };
    let mut store = Store::format(nand(131_072, |_| ()), &format, Options::default()).unwrap();
    let id = store.create(0).unwrap();
    let bytes: Vec<u8> = (0..8u32 << 20).map(|n| (n >> 9) as u8).collect();
    for round in 0..3 {
        store.write(id, 0, Content::Bytes(&bytes)).unwrap();
        if round == 1 {
            store.close().unwrap();
        } else {
            store.checkpoint(false).unwrap();
        }
        assert!(store.checkpoints.pages().len() > 2048 / 4, "an anchor has no room for its pages");
        let mut nand = store.into_nand();
        nand.power_on();
        store = Store::open(nand, Options::default()).unwrap();
        assert!(store.read(id, 0, bytes.len()).unwrap() == bytes);
        assert_sound(&mut store);
    }
}

/// Whether one of the reports is about an object.
pub(super) fn names(reports: &[String], id: u64) -> bool {
    reports.iter().any(|report| {
        let numbers = report.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
        let numbers: Vec<u64> = numbers.collect();
        match numbers[..] {
            [from, to, ..] if report.contains("with objects") || report.starts_with("objects") => {
                (from..=to).contains(&id)
            }
            [its, ..] => report.starts_with("object") && its == id,
            [] => false,
        }
    })
}

#[test]
fn a_repair_puts_the_index_together_again_wherever_it_is_damaged() {
    let (mut inner, mut leaves) = (0, 0);
    for placement in PLACEMENTS {
        for (seed, ends) in [(1, false), (2, true)] {
            let opened = Store::open(worked_on(placement, seed, ends).0, options()).unwrap();
            let pages: Vec<_> = opened.index.tree.pages().collect();
            for (id, addr) in pages {
                let at = format!("{placement}, node {id}, ends {ends}");
                let (nand, model) = worked_on(placement, seed, ends);
                let mut flash = flash::Flash::new(nand, 1);
                let page = flash.read(addr, layout::PageKind::Node).unwrap();
                let is_leaf = node::Node::decode(id, &page).unwrap().is_leaf();
                flash.turn_bit(addr, 77);
                let mut store = Store::open_on(flash, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
                let reports = words(store.repair().unwrap_or_else(|why| panic!("{at}: {why}")));
                assert!(!reports.is_empty(), "{at}");
                let mut store = reopened(store);
                assert_sound(&mut store);
                assert!(store.repair().unwrap().is_empty(), "{at}");
                let found = contents(&mut store);
                if !is_leaf {
                    inner += 1;
                    assert!(found == model, "{at}");
                }
                leaves += u32::from(is_leaf);
                let ids: std::collections::BTreeSet<u64> =
                    model.keys().chain(found.keys()).copied().collect();
                for id in ids.into_iter().filter(|id| !names(&reports, *id)) {
                    assert!(found.get(&id) == model.get(&id), "{at}: object {id}, {reports:?}");
                }
                let (mut model, mut random) = (found, Random::new(seed, "after"));
                for _ in 0..30 {
                    step(&mut store, &mut model, &mut random).unwrap();
                }
                store.close().unwrap();
                let mut store = reopened(store);
                assert_sound(&mut store);
                assert!(contents(&mut store) == model, "{at}, afterwards");
            }
        }
    }
    eprintln!("{inner} inner nodes, {leaves} leaves");
    assert!(inner > 0 && leaves > 20, "{inner} {leaves}");
}

#[test]
fn contents_whose_index_is_lost_come_back_from_what_the_segments_say() {
    for placement in PLACEMENTS {
        for spoilt in 0.. {
            let mut store = store(placement, 1);
            let mut random = Random::new(6, placement);
            let ids: Vec<ObjectId> = (0..60).map(|_| store.create(0).unwrap()).collect();
            // Written over and over, and moved by the cleaner: the newest counts.
            for _ in 0..700 {
                let id = ids[random.below(60) as usize];
                let (offset, len) = (random.below(12_000), 1 + random.below(4000));
                store.write(id, offset, Content::Bytes(&vec![random.next() as u8; len as usize])).unwrap();
                if random.chance(0.1) {
                    store.flush().unwrap();
                }
            }
            store.clean_all().unwrap();
            store.close().unwrap();
            let model = contents(&mut store);
            let pages: Vec<_> = store.index.tree.pages().collect();
            let Some((_, addr)) = pages.get(spoilt).copied() else { break };
            store.index.media.flash.turn_bit(addr, 99);
            let mut nand = store.into_nand();
            nand.power_on();
            let mut store = Store::open(nand, options()).unwrap();
            let reports = words(store.repair().unwrap());
            let mut store = reopened(store);
            assert_sound(&mut store);
            let found = contents(&mut store);
            for (id, thing) in &model {
                let bytes = found.get(id).map(|thing| &thing.bytes);
                let none = thing.bytes.is_empty() && bytes.is_none();
                assert!(
                    none || bytes == Some(&thing.bytes),
                    "{placement}, page {}: object {id}: {reports:?}",
                    addr.0
                );
            }
        }
    }
}

/// A store with objects of 60 000 bytes among small ones that the last checkpoint knows, and of which parts were removed, cut off
/// or made holes since; cut off after a flush. What it holds.
fn cut_and_punched(placement: &str, ids: &mut Vec<ObjectId>) -> (Nand, Model) {
    const LEN: u64 = 60_000;
    let mut store = store(placement, 1);
    ids.clear();
    for number in 0..200u8 {
        let id = store.create(0).unwrap();
        if number % 25 == 12 {
            store.write(id, 0, Content::Bytes(&vec![number; LEN as usize])).unwrap();
            ids.push(id);
        } else {
            store.write(id, 0, Content::Bytes(&[number; 700])).unwrap();
        }
    }
    store.write(ids[4], 10_000, Content::Bytes(&[9; 10_000])).unwrap();
    store.checkpoint(false).unwrap();
    store.truncate(ids[0], 0).unwrap();
    store.truncate(ids[0], LEN).unwrap();
    store.punch(ids[1], 0, LEN - 8192).unwrap();
    store.remove(ids[2]).unwrap();
    store.truncate(ids[3], 0).unwrap();
    store.write(ids[3], 0, Content::Bytes(b"new")).unwrap();
    store.truncate(ids[3], LEN).unwrap();
    // What was written over since has a place of its own, and what is behind it, too.
    store.punch(ids[4], 0, 10_000).unwrap();
    store.flush().unwrap();
    // Written after the checkpoint, and cut off again.
    store.write(ids[5], 5000, Content::Bytes(&[7; 30_000])).unwrap();
    store.flush().unwrap();
    store.punch(ids[5], 4000, 40_000).unwrap();
    store.truncate(ids[6], 30_000).unwrap();
    store.truncate(ids[6], LEN).unwrap();
    store.flush().unwrap();
    let model = contents(&mut store);
    (store.into_nand(), model)
}

#[test]
fn what_the_log_says_is_gone_does_not_come_back_with_a_lost_leaf() {
    for placement in PLACEMENTS {
        let mut ids = Vec::new();
        let opened = Store::open(cut_and_punched(placement, &mut ids).0, options()).unwrap();
        let pages: Vec<_> = opened.index.tree.pages().filter(|(id, _)| *id != 0).collect();
        assert!(pages.len() > 3, "{}", pages.len());
        for (node, addr) in pages {
            let at = format!("{placement}, node {node}");
            let (nand, model) = cut_and_punched(placement, &mut ids);
            let mut flash = flash::Flash::new(nand, 1);
            flash.nand_mut().power_on();
            flash.turn_bit(addr, 77);
            let mut store = Store::open_on(flash, options()).unwrap();
            let mut reports = words(store.repair().unwrap());
            reports.extend(store.check(true).unwrap().problems);
            let found = contents(&mut store);
            for id in &ids {
                let bytes = |model: &Model| model.get(&id.0).map(|thing| thing.bytes.clone());
                assert!(bytes(&found) == bytes(&model), "{at}: object {id}, {reports:?}");
            }
            for id in model.keys().chain(found.keys()).filter(|id| !names(&reports, **id)) {
                assert!(found.get(id) == model.get(id), "{at}: object {id}, {reports:?}");
            }
            assert_sound(&mut reopened(store));
        }
    }
}

#[test]
fn inner_nodes_that_cannot_be_read_with_those_above_them_cost_nothing() {
    let made = || {
        let format = Format { segment_blocks: 1, placement: "lifetime".into() };
        let mut store = Store::format(nand(512, |_| ()), &format, options()).unwrap();
        let ids: Vec<ObjectId> = (0..5000).map(|_| store.create(0).unwrap()).collect();
        for id in &ids {
            store.set_attribute(*id, b"user.is", &[id.0 as u8; 150]).unwrap();
            if id.0.is_multiple_of(100) {
                store.write(*id, 0, Content::Bytes(&[1; 100])).unwrap();
            }
        }
        store.close().unwrap();
        ids.iter().filter(|id| id.0 % 5 == 1).for_each(|id| store.remove(*id).unwrap());
        store.close().unwrap();
        store
    };
    let mut whole = made();
    let model = contents(&mut whole);
    let mut whole = reopened(whole);
    let mut inner = Vec::new();
    for (id, addr) in whole.index.tree.pages().collect::<Vec<_>>() {
        let page = whole.index.media.flash.read(addr, layout::PageKind::Node).unwrap();
        let level = node::Node::decode(id, &page).unwrap().level;
        assert_eq!(id == 0, level == 2, "node {id} is on level {level}");
        if level == 1 {
            inner.push(addr);
        }
    }
    let root = Addr(whole.index.tree.addr(0));
    assert!(inner.len() > 2, "{inner:?}");
    let each = inner.iter().map(|addr| vec![*addr]);
    for (number, below) in each.chain([inner.clone(), vec![inner[0], inner[1]]]).enumerate() {
        let mut store = made();
        for addr in below.iter().chain([&root]) {
            store.index.media.flash.turn_bit(*addr, 99);
        }
        let mut store = reopened(store);
        let is_alone = below.len() == 1;
        assert!(store.is_mended_by_repair().unwrap() || !is_alone, "case {number}");
        let reports = store.repair().unwrap();
        assert!(!is_alone || reports.iter().all(|report| !report.lost), "case {number}: {reports:?}");
        let mut store = reopened(store);
        assert_sound(&mut store);
        let found = contents(&mut store);
        assert!(found == model, "case {number}: {} of {}", found.len(), model.len());
        let id = store.create(0).unwrap();
        store.write(id, 0, Content::Bytes(&[5; 500])).unwrap();
        store.close().unwrap();
    }
}

#[test]
fn objects_to_come_are_not_given_the_number_of_one_that_came_back_with_a_lost_leaf() {
    for (placement, is_logged) in PLACEMENTS.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let at = format!("{placement}, in the log {is_logged}");
        let mut store = store(placement, 1);
        let ids: Vec<ObjectId> = (0..300).map(|_| store.create(0).unwrap()).collect();
        ids.iter().for_each(|id| store.write(*id, 0, Content::Bytes(&[1; 300])).unwrap());
        store.checkpoint(false).unwrap();
        let last = *ids.last().unwrap();
        // What is alive in a segment has it looked at.
        store.write(if is_logged { last } else { ids[0] }, 0, Content::Bytes(&[2; 20_000])).unwrap();
        store.flush().unwrap();
        let never = store.create(0).unwrap();
        store.write(never, 0, Content::Bytes(&vec![3; 60_000])).unwrap();
        store.write_out().unwrap();
        spoil_leaf(&mut store, &ids, last);
        let mut store = reopened(store);
        let reports = words(store.repair().unwrap());
        assert!(store.exists(never).unwrap(), "{at}: it did not come back: {reports:?}");
        assert_sound(&mut store);
        let fresh = store.create(0).unwrap_or_else(|why| panic!("{at}: {why}"));
        assert!(fresh > never, "{at}");
        store.close().unwrap();
        // A store that a version before left so.
        let mut store = reopened(store);
        store.next_object = never.0;
        assert!(matches!(store.create(0), Err(Error::Exists)), "{at}");
        let problems = store.check(true).unwrap().problems;
        assert!(problems.len() == 1 && problems[0].contains("the next object"), "{at}: {problems:?}");
        assert_eq!(store.repair().unwrap().len(), 1, "{at}");
        let mut store = reopened(store);
        assert!(store.create(0).unwrap() > fresh, "{at}");
        assert_sound(&mut store);
    }
}

#[test]
fn no_number_that_is_chosen_for_an_object_leaves_none_for_those_to_come() {
    let mut store = store("lifetime", 1);
    for number in [1 << 63, u64::MAX - 1, u64::MAX] {
        let why = store.create_as(ObjectId(number), 0).unwrap_err().to_string();
        assert!(why.contains(&number.to_string()) && why.contains(&(u64::MAX / 2).to_string()), "{why}");
    }
    store.create_as(ObjectId(u64::MAX / 2), 0).unwrap();
    assert_eq!(store.create(0).unwrap(), ObjectId(1 << 63));
    store.remove(ObjectId(u64::MAX / 2)).unwrap();
    assert_sound(&mut store);
    // Versions before took any, and a store of theirs has none left, whether the object is still there or not.
    for is_there in [true, false] {
        store.next_object = u64::MAX - 1;
        let last = store.create(0).unwrap();
        if !is_there {
            store.remove(last).unwrap();
        }
        store.close().unwrap();
        store = reopened(store);
        let why = store.create(0).unwrap_err().to_string();
        assert!(why.contains("fsck --yes"), "{why}");
        assert_eq!(store.check(true).unwrap().problems.len(), 1);
        assert_eq!(store.repair().unwrap().len(), 1);
        store = reopened(store);
        assert_sound(&mut store);
        let fresh = store.create(0).unwrap();
        assert!((1 << 63..1 << 63 | 9).contains(&fresh.0), "{fresh}");
        if is_there {
            store.remove(last).unwrap();
        }
        store.close().unwrap();
        store = reopened(store);
    }
}
