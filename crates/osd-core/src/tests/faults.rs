//! Single faults everywhere: every page of a small store, with its spare area, unreadable or one bit of it wrong, one at a
//! time, and pairs of them. What must hold for one: the store opens; every object that the check does not name, or the
//! repair, is as it was; what is named can be removed; the store works on; what it holds then is there after the next
//! opening.
//!
//! For two, the store may be refused, with the reason, and is put together again then: no object that is not named has other
//! bytes than it had.

use super::damage::{names, pages_of};
use super::*;
use flash::{Addr, Fault, Flash};
use layout::PageKind;
use std::collections::BTreeSet;

/// A fault of a page: the array cannot read it, a bit of its bytes is wrong, or one of its spare area.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Unreadable,
    Bit(u32),
    Spare(u32),
}

fn inflict(flash: &mut Flash, addr: Addr, kind: Kind) {
    match kind {
        Kind::Unreadable => flash.damage(addr, Fault::Unreadable),
        Kind::Bit(bit) => flash.turn_bit(addr, bit),
        Kind::Spare(bit) => flash.damage(addr, Fault::SpareBit(bit)),
    }
}

/// A store that has been worked on, closed or not, and what it holds.
fn made(placement: &str, ends: bool) -> (Nand, Model) {
    let (mut store, mut model) = (store(placement, 1), Model::new());
    let mut random = Random::new(3, placement);
    for round in 0..220 {
        step(&mut store, &mut model, &mut random).unwrap();
        if round % 3 == 0 {
            store.flush().unwrap();
        }
        if round % 70 == 69 {
            store.checkpoint(false).unwrap();
        }
    }
    store.flush().unwrap();
    if ends {
        store.close().unwrap();
    }
    (store.into_nand(), model)
}

/// What of an object can be read: all of it, or that it cannot be.
pub(super) fn thing(store: &mut Store, id: u64) -> Option<Thing> {
    let id = ObjectId(id);
    let size = store.stat(id).ok()?.size;
    let bytes = store.read_fork(id.0, layout::Fork::Data, 0, size).ok()?;
    let mut attributes = BTreeMap::new();
    for name in store.list_attributes(id).ok()? {
        let value = store.get_attribute(id, &name).ok()?;
        attributes.insert(name, value);
    }
    Some(Thing { bytes, attributes })
}

/// The objects that a check and a repair name.
fn named(store: &mut Store, model: &Model) -> (BTreeSet<u64>, Vec<String>) {
    let mut reports = store.check(true).unwrap().problems;
    reports.extend(words(store.repair().unwrap()));
    reports.extend(store.check(true).unwrap().problems);
    (model.keys().copied().filter(|id| names(&reports, *id)).collect(), reports)
}

/// What came of a fault.
#[derive(Debug, Default)]
struct Outcome {
    faults: u32,
    /// With nothing lost, with objects that are named, and with the last commit gone.
    harmless: u32,
    named: u32,
    cut: u32,
    objects: usize,
}

fn one_fault(placement: &str, ends: bool, addr: Addr, last_log: bool, kind: Kind, outcome: &mut Outcome) {
    let at = format!("{placement}, ends {ends}, page {}, {kind:?}", addr.0);
    let (nand, model) = made(placement, ends);
    let mut flash = Flash::new(nand, 1);
    inflict(&mut flash, addr, kind);
    let mut store = Store::open_on(flash, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
    let (bad, reports) = named(&mut store, &model);
    let whole: Vec<u64> = model.keys().copied().filter(|id| !bad.contains(id)).collect();
    outcome.faults += 1;
    outcome.objects += bad.len();
    let differs = whole.iter().find(|id| thing(&mut store, **id).as_ref() != model.get(id));
    match differs {
        None if bad.is_empty() => outcome.harmless += 1,
        None => outcome.named += 1,
        // The last page of the log: the power went before it, as far as anybody can tell.
        Some(_) if last_log && !ends => outcome.cut += 1,
        Some(id) => panic!("{at}: object {id} is not named: {reports:?}"),
    }
    for id in &bad {
        match store.remove(ObjectId(*id)) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(why) => panic!("{at}: object {id} cannot be removed: {why}"),
        }
    }
    let mut now = contents(&mut store);
    let mut random = Random::new(5, "after");
    for _ in 0..12 {
        step(&mut store, &mut now, &mut random).unwrap_or_else(|why| panic!("{at}: {why}"));
    }
    store.close().unwrap();
    let mut store = reopened(store);
    assert_sound(&mut store);
    assert!(contents(&mut store) == now, "{at}, afterwards");
}

#[test]
fn a_fault_anywhere_costs_only_the_objects_that_are_named() {
    let every = 40 / scale().min(40) as usize;
    for placement in PLACEMENTS {
        for ends in [false, true] {
            let (pages, nand) = pages_of(made(placement, ends).0);
            let mut flash = Flash::new(nand, 1);
            let log = pages.iter().filter(|page| page.1 == PageKind::Log);
            let last =
                log.max_by_key(|page| (flash.read_tag(page.0).unwrap().unwrap().serial, page.0)).unwrap().0;
            let mut random = Random::new(1, placement);
            let mut kinds = vec![Kind::Unreadable];
            kinds.extend((0..4).map(|_| Kind::Bit(random.below(2048 * 8) as u32)));
            kinds.extend((0..12).map(|n| Kind::Spare(n * 8 + random.below(8) as u32)).filter(|kind| {
                // The owner has 31 bits.
                !matches!(kind, Kind::Spare(95))
            }));
            let mut outcome = Outcome::default();
            let cases = pages.iter().flat_map(|page| kinds.iter().map(|kind| (page.0, *kind)));
            for (addr, kind) in cases.skip(usize::from(ends)).step_by(every.max(1)) {
                one_fault(placement, ends, addr, addr == last, kind, &mut outcome);
            }
            eprintln!("{placement}, ends {ends}, {} pages: {outcome:?}", pages.len());
            assert!(outcome.harmless > 0 && outcome.cut < 20);
        }
    }
}

#[test]
fn two_faults_end_in_an_answer_whatever_they_strike() {
    let mut refused = 0;
    let pairs = 25 * u64::from(scale().min(40));
    for placement in PLACEMENTS {
        let (pages, _) = pages_of(made(placement, true).0);
        let mut random = Random::new(2, placement);
        for _ in 0..pairs {
            let (nand, model) = made(placement, true);
            let mut flash = Flash::new(nand, 1);
            for _ in 0..2 {
                let addr = pages[random.below(pages.len() as u64) as usize].0;
                let kind = match random.below(3) {
                    0 => Kind::Unreadable,
                    1 => Kind::Bit(random.below(2048 * 8) as u32),
                    _ => Kind::Spare(random.below(95) as u32),
                };
                inflict(&mut flash, addr, kind);
            }
            let mut place = Some(flash);
            let (mut store, before) = match Store::open_in(&mut place, options()) {
                Ok(store) => (store, Vec::new()),
                Err(why) => {
                    assert!(matches!(why, Error::Corrupt { .. }), "{placement}: {why}");
                    refused += 1;
                    Store::rebuild_on(place.unwrap().with_segments(1), options()).unwrap()
                }
            };
            let (mut bad, reports) = named(&mut store, &model);
            let before = words(before);
            bad.extend(model.keys().filter(|id| names(&before, **id)));
            for id in model.keys().filter(|id| !bad.contains(id)) {
                assert!(thing(&mut store, *id).as_ref() == model.get(id), "{placement}: {id}: {reports:?}");
            }
            for id in bad {
                let gone = store.remove(ObjectId(id));
                assert!(matches!(gone, Ok(()) | Err(Error::NotFound)), "{placement}: {gone:?}");
            }
            store.close().unwrap();
        }
    }
    eprintln!("pairs: {}, of which refused: {refused}", 4 * pairs);
}
