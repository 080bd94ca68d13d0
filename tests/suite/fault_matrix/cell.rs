//! One cell: its fault placed at some or all requests, and what was there afterwards.

use super::phases::{Phase, Prepared, Rig, Story, live_through, options, prepared};
use super::{Fault, Half, Promise};
use bimetal::front::crash::check::{Checker, own};
use bimetal::front::crash::history::{Bounds, History};
use bimetal::front::crash::snapshot::Snapshot;
use bimetal::front::crash::subject::Hybrid;
use bimetal::fs::FileSystem;
use bimetal::fs::nfhybrid::{NfHybrid, Options};
use bimetal::media::BlockDevice;
use bimetal::media::counted::Counts;
use bimetal::media::faulty::{Effect, Kind, When};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// For how many requests a device that comes back is away.
const AWAY: u64 = 5;

/// What a cell showed.
#[derive(Default)]
pub struct Outcome {
    /// Requests of its kind in the phase.
    pub requests: u64,
    /// Runs in which the fault was placed, and struck.
    pub placed: usize,
    /// Of those: a program heard an error.
    pub told: usize,
    /// The mount went on without the SSD.
    pub given_up: usize,
    /// Broken promises.
    pub failures: Vec<String>,
}

impl Outcome {
    pub fn hangs() -> Outcome {
        Outcome { requests: 1, failures: vec!["it hangs".into()], ..Outcome::default() }
    }

    /// As the table shows it.
    pub fn show(&self) -> String {
        if self.requests == 0 {
            return "–".into();
        }
        let mut text = match self.failures.len() {
            0 => "kept".to_string(),
            bad => format!("**{bad} lost**"),
        };
        text += &format!(" {}", self.placed);
        if self.told > 0 {
            text += &format!(", {} told", self.told);
        }
        if self.given_up > 0 {
            text += &format!(", {} without SSD", self.given_up);
        }
        text
    }
}

fn plan(fault: Fault, n: u64) -> (Kind, When, Effect) {
    match fault {
        Fault::Once => (Kind::Any, When::Nth(n), Effect::Error(libc::EIO)),
        Fault::FromNowOn => (Kind::Any, When::FromNth(n), Effect::Error(libc::EIO)),
        Fault::NoSpace => (Kind::Write, When::Nth(n), Effect::Error(libc::ENOSPC)),
        Fault::TornWrite => (Kind::Write, When::Nth(n), Effect::TornError(libc::EIO)),
        Fault::BitFlip => (Kind::Read, When::Nth(n), Effect::FlipBit(n)),
        Fault::Vanishes => (Kind::Any, When::Nth(n), Effect::Vanish),
        Fault::Blinks => (Kind::Any, When::Nth(n), Effect::Blink(AWAY)),
        Fault::Zeros => (Kind::Read, When::Nth(n), Effect::Zeros),
        Fault::LostWrite => (Kind::Write, When::Nth(n), Effect::Lose),
    }
}

fn of_kind(kind: Kind, counts: Counts) -> u64 {
    match kind {
        Kind::Read => counts.reads,
        Kind::Write => counts.writes,
        Kind::Flush => counts.flushes,
        Kind::Discard => counts.discards,
        Kind::Any => counts.reads + counts.writes + counts.flushes + counts.discards,
    }
}

/// How many requests of the fault's kind the phase makes on a half, without any fault.
fn count(phase: Phase, half: Half, fault: Fault, unmount: bool) -> u64 {
    let rig = Rig::over(prepared(phase));
    let (_, counted) = rig.of(half);
    let (mut before, mut requests) = (Counts::default(), 0);
    live_through(phase, &rig, unmount, &mut |begins| match begins {
        true => before = counted.counts(),
        false => requests = of_kind(plan(fault, 1).0, counted.counts() - before),
    });
    requests
}

/// Places: the first, the last, and others evenly between.
fn places(requests: u64, most: usize) -> Vec<u64> {
    if requests <= most as u64 {
        return (1..=requests).collect();
    }
    let last = most as u64 - 1;
    (0..most as u64).map(|index| 1 + index * (requests - 1) / last).collect()
}

/// Sees a cell: its fault at up to `most` places, each run ended by a power cut and by an unmount.
pub fn see(phase: Phase, half: Half, fault: Fault, promise: Promise, most: usize) -> Outcome {
    let mut outcome = Outcome::default();
    for unmount in [false, true] {
        let requests = count(phase, half, fault, unmount);
        outcome.requests = outcome.requests.max(requests);
        for n in places(requests, most) {
            let seen = catch_unwind(AssertUnwindSafe(|| strike(phase, half, fault, promise, n, unmount)));
            let seen = seen.unwrap_or_else(|_| Err("it panicked".into()));
            outcome.placed += 1;
            let end = if unmount { "unmounted" } else { "cut" };
            match seen {
                Ok(story) => {
                    outcome.told += usize::from(story.errors > 0);
                    outcome.given_up += usize::from(story.given_up);
                }
                Err(why) => outcome.failures.push(format!("request {n} of {requests}, then {end}: {why}")),
            }
        }
    }
    outcome
}

fn strike(
    phase: Phase,
    half: Half,
    fault: Fault,
    promise: Promise,
    n: u64,
    unmount: bool,
) -> Result<Story, String> {
    let volume = prepared(phase);
    let rig = Rig::over(volume);
    let story = live_through(phase, &rig, unmount, &mut |begins| {
        let (faulty, _) = rig.of(half);
        let (kind, when, effect) = plan(fault, n);
        match begins {
            true => faulty.plan(kind, when, effect),
            false => {
                faulty.forget();
                faulty.come_back();
            }
        }
    });
    if rig.of(half).0.struck() == 0 {
        return Err("the fault did not strike".into());
    }
    if let (true, Some(name)) = (promise == Promise::Kept, story.misread.first()) {
        return Err(format!("{name} was read with other bytes, and no error"));
    }
    match phase {
        Phase::Fsck => unchanged(&rig)?,
        Phase::Adopt | Phase::Mkfs => return made(volume, &rig, promise, story),
        _ => {}
    }
    held(volume, &rig, promise, &story)?;
    Ok(story)
}

/// A check writes nothing.
fn unchanged(rig: &Rig) -> Result<(), String> {
    match rig.media.iter().all(|medium| medium.changed_blocks() == 0) {
        true => Ok(()),
        false => Err("a check without --repair wrote to a half".into()),
    }
}

/// What was made can be used, or it can be made again; the files are there either way.
fn made(volume: &Prepared, rig: &Rig, promise: Promise, story: Story) -> Result<Story, String> {
    let devices = own(&rig.found());
    let whole = |fs: &dyn FileSystem, what: &str| {
        let found = Snapshot::of(fs).map_err(|why| format!("{what}: {why}"))?;
        match found.fingerprint() == volume.start.fingerprint() {
            true => Ok(()),
            false => Err(format!("{what}: other files than before")),
        }
    };
    let alone = NfHybrid::open(devices[0].clone(), None, Options { without_ssd: true, ..options() });
    match (alone, promise) {
        (Ok(fs), Promise::Answer) => drop(whole(&fs, "the disk alone")),
        (Ok(fs), _) => whole(&fs, "the disk alone")?,
        (Err(_), Promise::Answer) => return Ok(story),
        (Err(why), _) => return Err(format!("the disk alone: {why}")),
    }
    let devices = own(&rig.found());
    match NfHybrid::open(devices[0].clone(), Some(devices[1].clone()), options()) {
        Ok(fs) if promise != Promise::Answer => whole(&fs, "both halves")?,
        Ok(_) => {}
        Err(why) if story.made && promise == Promise::Kept => return Err(format!("made, and then: {why}")),
        Err(_) => {}
    }
    Ok(story)
}

/// Mounted with healthy devices, everything promised is there.
fn held(volume: &Prepared, rig: &Rig, promise: Promise, story: &Story) -> Result<(), String> {
    let calls = [&volume.calls[..], &story.calls].concat();
    let history = History::new(&volume.start, &volume.first, calls);
    let subject = Hybrid { options: options() };
    let checker = Checker { subject: &subject, history: &history };
    let mut bounds = match promise {
        Promise::Kept | Promise::Names => history.bounds(1),
        Promise::OldOrNew | Promise::Answer => Bounds::anything(history.end()),
    };
    // An unmount without an error has everything on the disk.
    let complete = story.ended_well && promise == Promise::Kept;
    if complete && !story.calls.is_empty() {
        bounds.raise(history.end());
    }
    let devices = rig.found();
    match promise {
        Promise::Kept => kept(&checker, &devices, bounds, story.calls.is_empty()),
        Promise::Names => names(&checker, &devices, &bounds),
        Promise::OldOrNew => checker.uneven(&own(&devices)).map(drop),
        Promise::Answer => {
            let opened =
                NfHybrid::open(own(&devices)[0].clone(), None, Options { without_ssd: true, ..options() });
            if let Ok(fs) = opened {
                // An error is an answer.
                let _ = Snapshot::of(&fs);
            }
            Ok(())
        }
    }
}

/// `recovered`: what was done to the halves is a recovery, which may have got anywhere.
fn kept(
    checker: &Checker,
    devices: &[Arc<dyn BlockDevice>],
    mut bounds: Bounds,
    recovered: bool,
) -> Result<(), String> {
    if recovered {
        checker.alone_mixed(devices, &bounds)?;
    } else if let Some(moment) = checker.alone(devices, &bounds)? {
        bounds.raise(moment);
    }
    let devices = own(devices);
    let (fs, found) = checker.together(&devices, &bounds)?;
    checker.end(fs, &found, &devices)
}

/// Names and attributes only.
fn names(checker: &Checker, devices: &[Arc<dyn BlockDevice>], bounds: &Bounds) -> Result<(), String> {
    let devices = own(devices);
    let fs = NfHybrid::open(devices[0].clone(), Some(devices[1].clone()), options());
    let fs = fs.map_err(|why| format!("both halves: {why}"))?;
    let found = Snapshot::of(&fs).map_err(|why| format!("both halves: {why}"))?;
    let moments = checker.history.moments_shaped_like(found.fingerprint());
    match moments.iter().any(|moment| (bounds.names..=bounds.begun).contains(moment)) {
        true => Ok(()),
        false => Err("names or attributes are of no moment since the last fsync".into()),
    }
}
