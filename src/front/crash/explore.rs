//! Many states of one run: which are made, each held against the run's history, and what was found.
//!
//! A state is made from its name alone ([`StateId`]), so that one that failed can be made again. Where a run has few
//! states all are looked at; of many, those at which an fsync had just returned come first, the rest is drawn.
//! Cost: memory for the history and the log, once; a state costs some mounts, on as many threads as are wanted.

use super::again;
use super::calls::Traced;
use super::check::{Checker, Verdict, failed, guarded, own};
use super::history::{Bounds, History};
use super::run::Run;
use super::snapshot::Snapshot;
use super::state::{Cut, StateId, Then};
use super::subject::Subject;
use crate::fs::FileSystem;
use crate::media::BlockDevice;
use crate::media::recorded::Recorder;
use crate::media::states::{States, Survival};
use crate::random::Random;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

type DeviceList = Vec<Arc<dyn BlockDevice>>;

/// How much to look at.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// States at most.
    pub states: usize,
    /// Draws.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// Of so many cuts one is looked at by somebody else's checker, too (0: none).
    pub examine: usize,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// States of all devices cut at once.
    pub cuts: usize,
    /// Of the device that is whole by itself.
    pub alone: usize,
    /// Cuts inside a recovery, at any depth.
    pub recovery_cuts: usize,
    /// Cuts of work done after a recovery.
    pub work_cuts: usize,
    /// A device older than the other.
    pub uneven: usize,
    /// Of those, refused.
    pub refused: usize,
    /// Seen by somebody else's checker.
    pub examined: usize,
    /// What was wrong.
    pub failures: Vec<Failure>,
}

/// A state that broke a promise.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// How to make it again.
    pub state: String,
    /// What is wrong.
    pub why: String,
}

impl Tally {
    /// All states looked at.
    pub fn states(&self) -> usize {
        self.cuts + self.recovery_cuts + self.work_cuts + self.uneven
    }

    fn add(&mut self, other: Tally) {
        self.cuts += other.cuts;
        self.alone += other.alone;
        self.recovery_cuts += other.recovery_cuts;
        self.work_cuts += other.work_cuts;
        self.uneven += other.uneven;
        self.refused += other.refused;
        self.examined += other.examined;
        self.failures.extend(other.failures);
    }
}

/// A run with everything that is worked out from it once.
pub struct Explorer<'a> {
    subject: &'a dyn Subject,
    states: States,
    history: Arc<History>,
    requests: usize,
}

/// A state on its way through what happens to it.
struct Stage {
    devices: DeviceList,
    history: Arc<History>,
    bounds: Bounds,
    /// The device alone need not be of one moment: a recovery was cut.
    mixed: bool,
}

impl<'a> Explorer<'a> {
    /// Works out the history of `run`.
    pub fn new(subject: &'a dyn Subject, run: &Run) -> Explorer<'a> {
        let history = History::new(&run.start, &run.first, run.calls.clone());
        Explorer {
            subject,
            states: States::new(&run.log, &run.bases),
            history: Arc::new(history),
            requests: run.log.entries.len(),
        }
    }

    /// The run's history.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Every first state there is, without those behind it: cuts by every rule, and one device older than the other.
    pub fn all_states(&self) -> Vec<StateId> {
        let mut all = Vec::new();
        for at in 0..=self.requests {
            let rules: &[Survival] =
                if self.states.is_open(at) { &Survival::EVERY_WAY } else { &[Survival::All] };
            all.extend(rules.iter().map(|&rule| StateId {
                cut: Cut { at, rule, seed: 0 },
                other: None,
                then: Vec::new(),
            }));
        }
        if self.subject.devices().len() == 2 {
            let uneven = |at, other| StateId {
                cut: Cut { at, rule: Survival::All, seed: 0 },
                other: Some(other),
                then: Vec::new(),
            };
            all.extend(
                (0..self.requests).flat_map(|at| [uneven(at, self.requests), uneven(self.requests, at)]),
            );
        }
        all
    }

    /// The states to look at: all, or as many as the plan wants.
    fn chosen(&self, plan: &Plan) -> Vec<StateId> {
        let mut random = Random::new(plan.seed, "states");
        let mut all = self.all_states();
        if all.len() > plan.states {
            let returned: std::collections::BTreeSet<usize> =
                self.history.calls().iter().filter_map(|call| call.done).collect();
            // Where an fsync had just returned, then anything; uneven halves a sixth.
            let mut key = |state: &StateId| match state.other {
                Some(_) => random.below(6 << 20),
                None if returned.contains(&state.cut.at) => random.below(1 << 20) / 2,
                None => random.below(1 << 20),
            };
            all.sort_by_cached_key(|state| key(state));
            all.truncate(plan.states);
        }
        let mut random = Random::new(plan.seed, "seeds");
        all.iter_mut().for_each(|state| state.cut.seed = random.below(1000));
        all.sort_by_key(|state| state.cut.at);
        all
    }

    /// Looks at as many states as the plan says; `progress` hears how many of how many are done.
    pub fn explore(&self, plan: &Plan, progress: &(dyn Fn(usize, usize) + Sync)) -> Tally {
        let chosen = self.chosen(plan);
        let (next, whole) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
        let work = || {
            // What recovery has to say of each state is of no interest.
            tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let Some(state) = chosen.get(number) else { return };
                    let mut random = Random::new(plan.seed ^ number as u64, "then");
                    let examine = plan.examine > 0 && number.is_multiple_of(plan.examine);
                    let tally = self.one(state, &mut random, examine);
                    whole.lock().add(tally);
                    progress(number + 1, chosen.len());
                }
            });
        };
        std::thread::scope(|scope| {
            (1..plan.jobs.max(1)).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let mut tally = whole.into_inner();
        tally.failures.sort_by(|a, b| a.state.len().cmp(&b.state.len()).then(a.state.cmp(&b.state)));
        tally
    }

    /// A state, and some of what may happen after it.
    fn one(&self, id: &StateId, random: &mut Random, examine: bool) -> Tally {
        let mut tally = Tally::default();
        let mut id = id.clone();
        match self.first(&id, examine, &mut tally) {
            Ok(Some(stage)) => {
                if let Err(why) = self.onward(stage, &mut id, random, &mut tally) {
                    tally.failures.push(Failure { state: id.to_string(), why });
                }
            }
            Ok(None) => {}
            Err(why) => tally.failures.push(Failure { state: id.to_string(), why }),
        }
        tally
    }

    /// Looks at one state by its name.
    pub fn look(&self, id: &StateId) -> Tally {
        let mut tally = Tally::default();
        let looked = self.reach(id, &mut tally);
        if let Err(why) = looked {
            tally.failures.push(Failure { state: id.to_string(), why });
        }
        tally
    }

    fn reach(&self, id: &StateId, tally: &mut Tally) -> Verdict {
        let begun = StateId { then: Vec::new(), ..id.clone() };
        let Some(mut stage) = self.first(&begun, true, tally)? else { return Ok(()) };
        for then in &id.then {
            stage = self.then(&stage, *then)?.0;
            self.check(&mut stage)?;
            count(*then, tally);
        }
        Ok(())
    }

    /// The first cut, looked at. Nothing comes after uneven halves.
    fn first(&self, id: &StateId, examine: bool, tally: &mut Tally) -> Verdict<Option<Stage>> {
        let Cut { at, rule, seed } = id.cut;
        if id.is_beyond(self.requests) {
            return Err(format!("there are only {} requests", self.requests));
        }
        let device = |place: usize| {
            let at = if place == 0 { at } else { id.other.unwrap_or(at) };
            self.states.device_at(place, at, rule, seed) as Arc<dyn BlockDevice>
        };
        let devices: DeviceList = (0..self.subject.devices().len()).map(device).collect();
        if id.other.is_some() {
            tally.uneven += 1;
            let opened = self.checker(&self.history).uneven(&own(&devices))?;
            tally.refused += usize::from(!opened);
            return Ok(None);
        }
        tally.cuts += 1;
        let bounds = self.history.bounds(at);
        let mut stage = Stage { devices, history: self.history.clone(), bounds, mixed: false };
        self.check(&mut stage)?;
        if let Some(place) = self.subject.whole_alone() {
            tally.alone += 1;
            if examine {
                tally.examined += 1;
                let alone = stage.devices[place].clone();
                guarded(|| self.subject.examine(&*alone).map_err(|why| why.to_string()))?;
            }
        }
        Ok(Some(stage))
    }

    /// Some of what may happen after a state: a recovery cut once or twice, or more work.
    fn onward(&self, mut stage: Stage, id: &mut StateId, random: &mut Random, tally: &mut Tally) -> Verdict {
        while random.chance(0.35) && id.then.len() < 3 {
            let rule = Survival::EVERY_WAY[random.below(6) as usize];
            // Any number: it is taken modulo what there is.
            let cut = Cut { at: random.below(1 << 40) as usize, rule, seed: random.below(1000) };
            let then = match random.chance(0.7) {
                true => Then::Recovery(cut),
                false => Then::Work(random.below(1000), cut),
            };
            id.then.push(then);
            let (next, exactly) = self.then(&stage, then)?;
            *id.then.last_mut().expect("just pushed") = exactly;
            stage = next;
            self.check(&mut stage)?;
            count(exactly, tally);
        }
        Ok(())
    }

    fn checker<'b>(&'b self, history: &'b History) -> Checker<'b> {
        Checker { subject: self.subject, history }
    }

    /// Holds a stage against its history.
    fn check(&self, stage: &mut Stage) -> Verdict {
        let checker = self.checker(&stage.history);
        if stage.mixed {
            checker.alone_mixed(&stage.devices, &stage.bounds)?;
        } else if let Some(moment) = checker.alone(&stage.devices, &stage.bounds)? {
            stage.bounds.raise(moment);
        }
        let devices = own(&stage.devices);
        let (fs, found) = checker.together(&devices, &stage.bounds)?;
        checker.end(fs, &found, &devices)
    }

    /// What happens next to a state, and its exact name.
    fn then(&self, stage: &Stage, then: Then) -> Verdict<(Stage, Then)> {
        guarded(|| match then {
            Then::Recovery(cut) => {
                let (recorder, devices) = recorded(&stage.devices);
                let fs = self.subject.open(&devices).map_err(failed("recovering"))?;
                drop(fs);
                let log = recorder.log();
                let cut = Cut { at: cut.at % (log.entries.len() + 1), ..cut };
                let devices = cut_at(&States::new(&log, &stage.devices), cut, stage.devices.len());
                let (history, bounds) = (stage.history.clone(), stage.bounds.clone());
                Ok((Stage { devices, history, bounds, mixed: true }, Then::Recovery(cut)))
            }
            Then::Work(seed, cut) => self.work(stage, seed, cut),
        })
    }

    fn work(&self, stage: &Stage, seed: u64, cut: Cut) -> Verdict<(Stage, Then)> {
        let (recorder, devices) = recorded(&stage.devices);
        let fs: Arc<dyn FileSystem> = self.subject.open(&devices).map_err(failed("recovering"))?.into();
        let (start, first) = start_of(&*fs).map_err(failed("recovered"))?;
        let ready = recorder.position();
        let traced = Traced::new(fs, recorder.clone());
        again::work(&traced, &start, seed).map_err(failed("working on"))?;
        let history = Arc::new(History::new(&start, &first, traced.calls()));
        drop(traced);
        let log = recorder.log();
        let at = if cut.at > log.entries.len() {
            ready + cut.at % (log.entries.len() + 1 - ready)
        } else {
            cut.at
        };
        let cut = Cut { at: at.max(ready), ..cut };
        let devices = cut_at(&States::new(&log, &stage.devices), cut, stage.devices.len());
        let bounds = history.bounds(cut.at);
        Ok((Stage { devices, history, bounds, mixed: false }, Then::Work(seed, cut)))
    }
}

fn count(then: Then, tally: &mut Tally) {
    match then {
        Then::Recovery(_) => tally.recovery_cuts += 1,
        Then::Work(..) => tally.work_cuts += 1,
    }
}

/// Devices for one use that is recorded.
fn recorded(devices: &[Arc<dyn BlockDevice>]) -> (Arc<Recorder>, DeviceList) {
    let recorder = Recorder::new();
    let wrap = |device| Arc::new(recorder.wrap(device)) as Arc<dyn BlockDevice>;
    let wrapped = own(devices).into_iter().map(wrap).collect();
    (recorder, wrapped)
}

fn cut_at(states: &States, cut: Cut, devices: usize) -> DeviceList {
    let device = |place| states.device_at(place, cut.at, cut.rule, cut.seed) as Arc<dyn BlockDevice>;
    (0..devices).map(device).collect()
}

/// The bytes of files, by inode and offset.
pub type FirstBytes = Vec<(crate::units::Ino, u64, Bytes)>;

/// A tree with the contents of its files; zeros are left out.
pub fn start_of(fs: &dyn FileSystem) -> crate::Result<(Snapshot, FirstBytes)> {
    let mut first = Vec::new();
    let start = Snapshot::read(fs, &mut |ino, at, bytes| {
        if bytes.iter().any(|&byte| byte != 0) {
            first.push((ino, at, Bytes::copy_from_slice(bytes)));
        }
    })?;
    Ok((start, first))
}
