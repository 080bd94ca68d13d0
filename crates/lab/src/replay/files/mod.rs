//! `bimetal replay --fs`: system calls played on a file system over simulated devices, in virtual time.
//!
//! ```text
//! calls of processes → file system, its tasks → models of its devices        one thread, one seed
//! ```
//!
//! Every process is a task of a simulated runtime ([`Sim`]), and so are the file system's own: who waits for a device
//! waits in virtual time, and the seed says who goes on first where several could. So a run depends on its command
//! line alone and can be repeated to the byte. While a program computes no time passes but [`SOFTWARE_MIN`] a call.
//!
//! What the calls need that they do not make is made first, and is not counted.

mod fat;
#[cfg(test)]
mod mirror;
mod names;
mod player;
mod report;
mod subject;
mod tree;
mod windows;

pub(crate) use fat::FatTree;
#[cfg(test)]
pub(crate) use mirror::Mirrored;
pub use report::{CallReport, DeviceReport, FilesReport};
pub use subject::Subject;
pub(crate) use subject::{Device, FLASH_BYTES, caching, device, ftl, identifier, part};
pub(crate) use tree::Tree;
pub use windows::{CallWindow, DeviceWindow};
pub(super) use windows::{table as window_table, write as write_windows};

use super::args::{Args, PaceName};
use super::driver::{TIME_MAX, too_late};
use super::ending::Ended;
use bimetal_base::runtime::{Clock, Sim};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_trace::ReadOptions;
use bimetal_trace::calls::Workload;
use player::{Outcome, Player};
use report::Config;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use windows::Windows;

/// What a call takes at least, beside the devices: programs do not run in no time, and two of them in turn.
const SOFTWARE_MIN: Duration = Duration::from_micros(1);

/// More processes are not played: each has a stack of its own.
const PROCESSES_MAX: u32 = 10_000;

/// Plays the calls that `args` name on the file system they name.
///
/// # Errors
/// Options that do not go together, a malformed trace, a file system that cannot be made, or no call that succeeded.
pub fn replay(args: &Args) -> Result<FilesReport> {
    args.check()?;
    let options = ReadOptions { format: args.format.clone(), ..ReadOptions::default() };
    let mut workload = match args.brought.requests() {
        Some(source) => Workload::of_source(source, args.processes)?,
        None => Workload::open(&args.seeded_trace()?, &options, args.processes)?,
    };
    if let Some(limit) = args.requests {
        workload.calls.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    if workload.calls.is_empty() {
        return Err(Error::invalid(format!(
            "{}: there is no call in it that asks for something",
            args.trace()
        )));
    }
    if workload.processes > PROCESSES_MAX {
        return Err(Error::invalid(format!(
            "{}: it has {} processes; {PROCESSES_MAX} are played at most",
            args.trace(),
            workload.processes
        )));
    }
    replay_on(args, workload, Subject::make)
}

/// Plays `workload` on the file system that `make` makes, at the pace that `args` say.
///
/// # Errors
/// As [`replay`].
pub(crate) fn replay_on(
    args: &Args,
    workload: Workload,
    make: impl FnOnce(&Clock, &Args) -> Result<Subject> + Send + 'static,
) -> Result<FilesReport> {
    args.check()?;
    let sim = Sim::new(args.seed);
    let (clock, args): (Clock, _) = (Arc::new(sim.clone()), args.clone());
    sim.run(move || {
        let subject = make(&clock, &args)?;
        play_on(&clock, &args, workload, subject)
    })
}

fn play_on(clock: &Clock, args: &Args, workload: Workload, subject: Subject) -> Result<FilesReport> {
    let speed = (args.pace == PaceName::Open).then_some(args.speed);
    let software = args.overhead.max(SOFTWARE_MIN);
    check_time(&workload, software, speed)?;
    let config = Config {
        trace: args.seeded_trace()?,
        options: args.options.clone(),
        sections: args.sections.iter().map(ToString::to_string).collect(),
        cache: args.cache.first().cloned(),
        cache_bytes: args.cache_size.first().copied(),
        ftl: args.ftl.first().cloned(),
        pace: if speed.is_some() { "open" } else { "closed" },
        speed,
        overhead_ns: software.as_nanos() as u64,
        fsync: !args.no_flush,
        synced: !args.no_drain,
        seed: args.seed,
        version: env!("CARGO_PKG_VERSION"),
    };
    let processes = workload.processes;
    let target = subject.target.clone();
    let mut player =
        Arc::new(Player::new(clock.clone(), target, workload, software, speed, args.brought.clone()));
    player.furnish(args.seed)?;
    subject.target.sync()?;
    let before = subject.counts();
    let started = clock.now();
    if let Some(every) = args.every {
        player.watch(Windows::new(every, subject.devices.clone(), started));
    }
    player.watch_flash(subject.devices.clone(), started);
    player.run(!args.no_flush)?;
    args.brought.go_on()?;
    // What was measured is told, however it ends.
    let synced = if args.no_drain { Ok(()) } else { subject.target.sync() };
    let sim_time = clock.now().since(started);
    let series = player.windows()?;
    let (status, devices) = (subject.target.status(), subject.devices(&before, player.flows()));
    let closed = subject.target.close();
    let (file_system, asked) = match status {
        Ok(status) => (status, Ok(())),
        Err(why) => (Value::Null, Err(why)),
    };
    let ended = synced.and(asked).and(closed).map_or_else(|why| Ended::after(&why), |()| Ended::default());
    player.report(Outcome {
        fs: args.fs_kind(),
        processes,
        sim_time,
        ended,
        file_system,
        devices,
        series,
        config,
    })
}

/// Refuses calls that would be made, or return, later than virtual time can say.
fn check_time(workload: &Workload, software: Duration, speed: Option<f64>) -> Result<()> {
    let computed = software.as_nanos().saturating_mul(workload.calls.len() as u128);
    let first = workload.calls.first().map_or(Time::ZERO, |call| call.at);
    let last = workload.calls.iter().map(|call| call.at).max().unwrap_or(first);
    let recorded = speed.map_or(0, |speed| (last.since(first).as_nanos() as f64 / speed) as u128);
    match computed.max(recorded) <= u128::from(TIME_MAX.0) {
        true => Ok(()),
        false => Err(too_late()),
    }
}

#[cfg(test)]
mod tests;
