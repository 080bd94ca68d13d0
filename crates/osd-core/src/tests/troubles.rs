//! One operation of the flash that does not go well, at each place of a life: work, flushes, checkpoints, cleaning, the end,
//! the opening after a cut, a repair. What was flushed is there; what was not can be read on, or its error was told to who
//! asked; a store that takes no more changes says so, and so does its end.

use super::*;
use flash::{Flash, Trouble};

/// What may be found after a cut: a state since the last flush that succeeded.
struct Life {
    store: Store,
    model: Model,
    states: Vec<Model>,
    at: String,
}

/// What one call ended with.
fn is_read_only(why: &Error) -> bool {
    why.to_string().contains("takes no more changes")
}

impl Life {
    fn new(placement: &str, at: String) -> Life {
        let store = store(placement, 1 + u32::from(placement.len().is_multiple_of(2)));
        Life { store, model: Model::new(), states: vec![Model::new()], at }
    }

    /// What is in memory is as its users believe, whatever happened.
    fn look(&mut self) {
        for id in self.model.keys().copied().collect::<Vec<_>>() {
            let mut read = super::faults::thing(&mut self.store, id);
            if read.is_none() {
                // The trouble may come while it is looked at, and is over then.
                read = super::faults::thing(&mut self.store, id);
            }
            let expected = self.model.get(&id);
            assert!(read.as_ref() == expected, "{}: object {id}: {:?}", self.at, self.store.failed);
        }
    }

    /// One call; false: no more of them.
    fn call(&mut self, random: &mut Random) -> bool {
        let before = self.model.clone();
        let done = match random.below(24) {
            0..3 => self.store.flush().map(|()| self.states.clear()),
            3 => self.store.sync().map(|()| self.states.clear()),
            4 => self.store.checkpoint_now(false).map(|()| self.states.clear()),
            5 => self.store.clean_all().map(drop),
            _ => step(&mut self.store, &mut self.model, random),
        };
        if let Err(why) = &done {
            assert!(!matches!(why, Error::NoSpace(_)), "{}: {why}", self.at);
            // What was asked may be there, where it reached the buffer and could not be written out: of one object.
            assert!(self.model == before, "{}: {why}", self.at);
            let found = self.all();
            let ids: std::collections::BTreeSet<u64> = found.keys().chain(before.keys()).copied().collect();
            let differ: Vec<u64> = ids.into_iter().filter(|id| found.get(id) != before.get(id)).collect();
            assert!(differ.len() <= 1, "{}: {why}: objects {differ:?}", self.at);
            self.model = found;
        }
        self.states.push(self.model.clone());
        done.is_ok()
    }

    fn all(&mut self) -> Model {
        let ids: Vec<u64> = {
            let mut ids = Vec::new();
            let listed = self.store.list(ObjectId(0), &mut |id| {
                ids.push(id.0);
                true
            });
            listed.unwrap_or_else(|why| panic!("{}: {why}", self.at));
            ids
        };
        let thing = |id| (id, super::faults::thing(&mut self.store, id).unwrap_or_default());
        ids.into_iter().map(thing).collect()
    }
}

/// Goes a life with trouble in its `count`-th operation; false: it has not so many.
fn life(placement: &str, seed: u64, count: u64, trouble: Trouble) -> bool {
    let mut random = Random::new(seed, placement);
    let mut life = Life::new(placement, format!("{placement}, seed {seed}, operation {count}, {trouble:?}"));
    life.store.index.media.flash.plan(count, trouble);
    let mut errors = 0;
    for round in 0..150 {
        let went_well = life.call(&mut random);
        if !went_well {
            errors += 1;
            life.look();
            if life.store.failed.is_some() {
                let why = life.store.create(0).unwrap_err();
                assert!(is_read_only(&why), "{}: {why}", life.at);
                let why = life.store.close().unwrap_err();
                assert!(is_read_only(&why), "{}: {why}", life.at);
                life.look();
                break;
            }
        }
        if round % 40 == 39 {
            life.look();
        }
    }
    let reached = !life.store.index.media.flash.calm();
    let closed = life.store.failed.is_none() && life.store.close().is_ok();
    let (at, states, model) = (life.at.clone(), life.states, life.model);
    let mut nand = life.store.into_nand();
    nand.power_on();
    let mut store = Store::open(nand, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
    assert_sound(&mut store);
    let found = contents(&mut store);
    if closed {
        assert!(found == model, "{at}: closed, and not as it was");
    } else {
        assert!(errors > 0 || !reached, "{at}: it ended badly and nobody was told");
        assert!(states.contains(&found), "{at}: a state that never was, of {}", states.len());
    }
    reached
}

/// About how many places are tried.
fn most(ordinary: u64) -> u64 {
    std::env::var("TROUBLES").ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
}

#[test]
fn one_operation_that_fails_loses_nothing_that_was_flushed_and_nothing_in_silence() {
    let most = most(40);
    for placement in PLACEMENTS {
        for (trouble, seed) in [Trouble::Io, Trouble::Unreadable, Trouble::Bad].into_iter().zip([13, 14, 15])
        {
            let mut all = 1;
            while life(placement, seed, all, trouble) && all < 1 << 20 {
                all *= 2;
            }
            let mut tried = 0;
            for count in (1..all).step_by((all / most).max(1) as usize) {
                tried += u64::from(life(placement, seed, count, trouble));
            }
            eprintln!("{placement}, {trouble:?}: {tried} of up to {all} operations tried");
            assert!(tried > 10, "{placement}: {tried}");
        }
    }
}

/// The flash of a store that was cut off, what it holds, and what it held before the last commit.
fn cut_off(placement: &str) -> (Nand, Model, Model) {
    let (mut store, mut model) = (store(placement, 1), Model::new());
    let mut random = Random::new(12, placement);
    for round in 0..120 {
        step(&mut store, &mut model, &mut random).unwrap();
        if round % 4 == 3 {
            store.flush().unwrap();
        }
        if round == 60 {
            store.checkpoint(false).unwrap();
        }
    }
    let before = model.clone();
    let id = store.create(0).unwrap();
    store.write(id, 0, Content::Bytes(&[5; 500])).unwrap();
    store.flush().unwrap();
    model.insert(id.0, Thing { bytes: vec![5; 500], ..Thing::default() });
    (store.into_nand(), model, before)
}

#[test]
fn an_opening_or_a_repair_in_which_an_operation_fails_changes_nothing_that_was_flushed() {
    for placement in PLACEMENTS {
        for trouble in [Trouble::Io, Trouble::Unreadable, Trouble::Bad] {
            let (mut opened, mut refused, mut count) = (0, 0, 0);
            loop {
                count += (900 / most(50)).max(1);
                let at = format!("{placement}, operation {count}, {trouble:?}");
                let (nand, model, before) = cut_off(placement);
                let mut flash = Flash::new(nand, 1);
                flash.plan(count, trouble);
                // What cannot be opened is not held back: the flash is as it was.
                let mut reports = Vec::new();
                let (nand, reached) = match Store::open_on(flash, options()) {
                    Err(why) => {
                        assert!(matches!(why, Error::Corrupt { .. } | Error::Io { .. }), "{at}: {why}");
                        refused += 1;
                        (cut_off(placement).0, true)
                    }
                    Ok(mut store) => {
                        opened += 1;
                        let repaired = store.repair();
                        let worked = store.create(0).and_then(|id| {
                            store.write(id, 0, Content::Bytes(&[1; 3000]))?;
                            store.flush()?;
                            store.remove(id)?;
                            store.flush()
                        });
                        let failed = store.failed.is_some();
                        reports = words(repaired.as_ref().cloned().unwrap_or_default());
                        assert_eq!(
                            failed,
                            repaired.is_err() || worked.is_err(),
                            "{at}: {repaired:?} {worked:?}"
                        );
                        let reached = !store.index.media.flash.calm();
                        (store.into_nand(), reached)
                    }
                };
                let mut store = Store::open(nand, options()).unwrap_or_else(|why| panic!("{at}: {why}"));
                assert_sound(&mut store);
                let mut found = contents(&mut store);
                found.retain(|id, thing| {
                    model.contains_key(id)
                        || *thing != Thing { bytes: vec![1; 3000], ..Thing::default() }
                            && !thing.bytes.is_empty()
                });
                let is_told = reports.iter().any(|report| report.contains("the last commit may be lost"));
                assert!(found == model || is_told && found == before, "{at}, opened again: {reports:?}");
                if !reached {
                    break;
                }
            }
            eprintln!("{placement}, {trouble:?}: {opened} opened, {refused} refused");
            assert!(opened > 1, "{placement}: {opened}");
        }
    }
}
