//! Walks: work, a cut of the power somewhere, a look at what is there, more work, another cut, and so on, by seed, over
//! geometries and placements. What is there after each cut must be a state that was passed since the last flush; a cut may come
//! while the one before is being recovered from, and a repair between must find nothing to do.
//!
//! In a third of the walks one or two pages are damaged with a cut. Then every object that is not named is as it was at some
//! time, what is named can be removed, and it goes on; a store that does not open is put together again.

use super::damage::names;
use super::*;
use flash::{Addr, Fault, Flash};
use std::collections::BTreeSet;

/// A part, and the blocks of a segment: bytes and spare bytes of a page, pages of a block, blocks of a unit, units, blocks.
struct Shape {
    page: u64,
    spare: u64,
    pages: u32,
    blocks: u32,
    chips: u32,
    segment_blocks: u32,
}

const SHAPES: [Shape; 7] = [
    Shape { page: 2048, spare: 64, pages: 16, blocks: 128, chips: 1, segment_blocks: 1 },
    Shape { page: 2048, spare: 64, pages: 16, blocks: 256, chips: 1, segment_blocks: 2 },
    Shape { page: 2048, spare: 64, pages: 64, blocks: 96, chips: 1, segment_blocks: 1 },
    Shape { page: 4096, spare: 128, pages: 16, blocks: 96, chips: 1, segment_blocks: 1 },
    Shape { page: 4096, spare: 224, pages: 8, blocks: 128, chips: 2, segment_blocks: 2 },
    Shape { page: 2048, spare: 64, pages: 8, blocks: 128, chips: 4, segment_blocks: 4 },
    Shape { page: 8192, spare: 448, pages: 32, blocks: 72, chips: 1, segment_blocks: 1 },
];

/// What came of a walk.
#[derive(Debug, Default)]
struct Outcome {
    cuts: u32,
    damages: u32,
    /// Damages that named an object or more, and openings that were refused.
    named: u32,
    refused: u32,
}

impl Shape {
    fn store(&self, placement: &str) -> Store {
        let nand = nand(self.blocks, |part| {
            (part.page, part.spare, part.pages, part.chips) = (self.page, self.spare, self.pages, self.chips);
        });
        let format = Format { segment_blocks: self.segment_blocks, placement: placement.into() };
        Store::format(nand, &format, options()).unwrap()
    }
}

/// The flash of a store after a cut of the power, with what is damaged on it.
fn flash_of(store: Store) -> Flash {
    let mut flash = store.index.media.flash.with_segments(1);
    flash.nand_mut().power_on();
    flash
}

/// Damages a page or two that were programmed.
fn damage(flash: &mut Flash, random: &mut Random) {
    let all: Vec<Addr> = (0..flash.segments() * flash.pages_per_segment())
        .map(Addr)
        .filter(|addr| flash.is_programmed(*addr))
        .collect();
    for _ in 0..1 + random.below(2) {
        let addr = all[random.below(all.len() as u64) as usize];
        match random.below(3) {
            0 => flash.damage(addr, Fault::Unreadable),
            1 => flash.turn_bit(addr, random.below(2048 * 8) as u32),
            _ => flash.damage(addr, Fault::SpareBit(random.below(95) as u32)),
        }
    }
}

/// Opens a damaged store, or puts it together again; what was said, and whether it was refused.
fn opened(flash: Flash, at: &str) -> (Store, Vec<String>, bool) {
    let mut place = Some(flash);
    match Store::open_in(&mut place, options()) {
        Ok(store) => (store, Vec::new(), false),
        Err(why) => {
            assert!(matches!(why, Error::Corrupt { .. }), "{at}: {why}");
            let flash = place.unwrap().with_segments(1);
            let (store, reports) =
                Store::rebuild_on(flash, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
            (store, words(reports), true)
        }
    }
}

/// Looks at a damaged store and goes on from what it holds; whether an object was named.
fn mend(store: &mut Store, mut reports: Vec<String>, history: &[Model], at: &str) -> bool {
    reports.extend(store.check(true).unwrap().problems);
    reports.extend(words(store.repair().unwrap_or_else(|why| panic!("{at}: {why}"))));
    let mut ids: BTreeSet<u64> = history.iter().flat_map(|model| model.keys().copied()).collect();
    store
        .list(ObjectId(0), &mut |id| {
            ids.insert(id.0);
            true
        })
        .unwrap();
    let (bad, good): (Vec<u64>, Vec<u64>) = ids.into_iter().partition(|id| names(&reports, *id));
    for id in good {
        let found = super::faults::thing(store, id);
        assert_eq!(found.is_some(), store.exists(ObjectId(id)).unwrap(), "{at}: object {id}: {reports:?}");
        assert!(
            history.iter().any(|model| model.get(&id) == found.as_ref()),
            "{at}: object {id}: {reports:?}"
        );
    }
    for id in &bad {
        match store.remove(ObjectId(*id)) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(why) => panic!("{at}: object {id} cannot be removed: {why}"),
        }
    }
    store.flush().unwrap();
    !bad.is_empty()
}

/// Goes one walk.
fn walk(seed: u64, outcome: &mut Outcome) {
    let placement = PLACEMENTS[seed as usize % 4];
    let shape = &SHAPES[(seed / 4) as usize % SHAPES.len()];
    let mut random = Random::new(seed, "walk");
    let is_damaged = random.chance(0.33);
    let mut store = shape.store(placement);
    let mut model = Model::new();
    let mut history = vec![Model::new()];
    for part in 0..2 + random.below(5) {
        // The sooner, the more of it strikes what comes first after an opening.
        let most = if random.chance(0.5) { 12 } else { 300 };
        store.nand_mut().cut_power_in(1 + random.below(most));
        let mut states = vec![model.clone()];
        for _ in 0..random.below(120) {
            let done = step(&mut store, &mut model, &mut random);
            // What was under way may have happened.
            states.push(model.clone());
            if is_damaged {
                history.push(model.clone());
            }
            let stops = done.is_err()
                || match random.below(30) {
                    0..4 => store.flush().map(|()| states = vec![model.clone()]).is_err(),
                    4 => store.checkpoint(false).map(|()| states = vec![model.clone()]).is_err(),
                    5 => store.close().map(|()| states = vec![model.clone()]).is_err(),
                    _ => false,
                };
            if stops {
                break;
            }
        }
        outcome.cuts += u32::from(store.nand().is_off());
        let at = format!("walk {seed}, part {part}, {placement}");
        let mut flash = flash_of(store);
        if is_damaged && random.chance(0.5) {
            outcome.damages += 1;
            damage(&mut flash, &mut random);
        }
        let reports;
        let was_refused;
        (store, reports, was_refused) = opened(flash, &at);
        if is_damaged {
            history.append(&mut states);
            outcome.refused += u32::from(was_refused);
            outcome.named += u32::from(mend(&mut store, reports, &history, &at));
            model = contents(&mut store);
            history.push(model.clone());
            continue;
        }
        assert!(!was_refused, "{at}: it does not open: {reports:?}");
        let found = contents(&mut store);
        assert!(states.contains(&found), "{at}: a state that never was");
        assert_sound(&mut store);
        if random.chance(0.1) {
            assert_eq!(store.repair().unwrap(), [], "{at}");
        }
        model = found;
    }
}

/// A commit before a checkpoint that the power cut off was there at one opening and not at another: it was found only where
/// the checkpoint before counted.
#[test]
fn a_commit_that_no_chain_leads_to_is_there_at_each_opening_or_at_none() {
    walk(394, &mut Outcome::default());
}

#[test]
fn whatever_cuts_the_power_again_and_again_the_contents_are_those_of_an_instant() {
    let walks = std::env::var("WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let from = std::env::var("WALKS_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut outcome = Outcome::default();
    (from..from + walks).for_each(|seed| walk(seed, &mut outcome));
    eprintln!("{walks} walks over {} geometries: {outcome:?}", SHAPES.len());
    assert!(u64::from(outcome.cuts) > walks / 2, "{outcome:?}");
}
