//! The processes: each makes its calls one after the other, and waits for each.
//!
//! Calls of a recording are begun in its order, and a call waits for those before it that are still under way on the
//! same names: what one process makes another one finds. A generator's processes have nothing to do with each other.
//! Cost: a look-up or two in a hash table a call, and a switch of tasks.

use super::report::{CallReport, Config, DeviceReport, FilesReport};
use super::tree::Target;
use super::windows::{CallWindow, Devices, Windows};
use crate::replay::Moment;
use crate::replay::brought::Brought;
use crate::replay::ending::Ended;
use crate::replay::flow::Looks;
use crate::replay::report::Spread;
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_trace::calls::{Call, Deed, Was, Workload};
use rustc_hash::FxHashMap;
use serde_json::Value;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are written, over and over: they do not pack.
const CONTENTS_BYTES: usize = 1 << 20;

/// Everything the processes share.
pub(super) struct Player {
    clock: Clock,
    target: Arc<dyn Target>,
    workload: Workload,
    /// The calls of each process, by number.
    own: Vec<Vec<u32>>,
    software: Duration,
    /// How much faster than recorded, if calls come when they were recorded.
    speed: Option<f64>,
    contents: Vec<u8>,
    brought: Brought,
    order: Mutex<CallOrder>,
    /// One for each process: it may be its turn.
    turns: Vec<Condvar>,
    tally: parking_lot::Mutex<Tally>,
    /// Where windows of time are asked for.
    windows: parking_lot::Mutex<Option<Windows>>,
    /// The devices, and what was seen of each.
    flash: parking_lot::Mutex<Option<(Devices, Vec<Looks>)>>,
}

/// What is told of a run beside its calls.
pub(super) struct Outcome<'a> {
    pub fs: &'a str,
    pub processes: u32,
    pub sim_time: Duration,
    pub ended: Ended,
    pub file_system: Value,
    pub devices: BTreeMap<&'static str, DeviceReport>,
    pub series: Vec<CallWindow>,
    pub config: Config,
}

/// Which call comes next, and what is under way.
#[derive(Default)]
struct CallOrder {
    next: usize,
    /// Calls under way by path: those that use it, those that change what it names.
    under_way: FxHashMap<u32, (u32, u32)>,
}

/// Paths that a call uses, and whether it changes what they name.
type Claims = SmallVec<[(u32, bool); 4]>;

/// What was counted so far.
#[derive(Default)]
struct Tally {
    latencies: [Option<Spread>; Deed::NAMES.len()],
    failed: [u64; Deed::NAMES.len()],
    first_failure: Option<String>,
    /// What was there before the trace, and cannot be here.
    not_made: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Player {
    pub fn new(
        clock: Clock,
        target: Arc<dyn Target>,
        workload: Workload,
        software: Duration,
        speed: Option<f64>,
        brought: Brought,
    ) -> Player {
        let mut own = vec![Vec::new(); workload.processes as usize];
        for (number, call) in workload.calls.iter().enumerate() {
            own[call.process as usize].push(number as u32);
        }
        Player {
            clock,
            target,
            turns: (0..workload.processes).map(|_| Condvar::new()).collect(),
            workload,
            own,
            software,
            speed,
            contents: Vec::new(),
            brought,
            order: Mutex::default(),
            tally: parking_lot::Mutex::default(),
            windows: parking_lot::Mutex::default(),
            flash: parking_lot::Mutex::default(),
        }
    }

    /// Makes what was there before the first call. What cannot be there (a name that the file system does not have, a file
    /// below a file) is counted, and calls on it fail.
    ///
    /// # Errors
    /// It does not fit.
    pub fn furnish(self: &mut Arc<Player>, seed: u64) -> Result<()> {
        let player = Arc::get_mut(self).ok_or_else(|| Error::invalid("the processes run already"))?;
        let mut random = Random::new(seed, "contents");
        player.contents = (0..CONTENTS_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        for (path, was) in &player.workload.initial {
            player.brought.go_on()?;
            let deed = match was {
                Was::Dir => Deed::Mkdir,
                Was::Symlink => Deed::Symlink(1),
                Was::File(_) => Deed::Create,
            };
            let size = if let Was::File(size) = was { *size } else { 0 };
            let parts = (0..size).step_by(CONTENTS_BYTES);
            let parts = parts.map(|at| Deed::Write(at, (size - at).min(CONTENTS_BYTES as u64)));
            let made =
                [deed].into_iter().chain(parts).try_for_each(|deed| player.call(*path, deed).map(drop));
            made.or_else(|why| player.not_made(*path, deed, why))?;
        }
        Ok(())
    }

    /// Looks at what is done from now on, window by window.
    pub fn watch(&self, windows: Windows) {
        *self.windows.lock() = Some(windows);
    }

    /// Looks at what the flash of these devices does from now on.
    pub fn watch_flash(&self, devices: Devices, now: Time) {
        let looks = devices.iter().map(|(_, device)| Looks::from(device.model(), now)).collect();
        *self.flash.lock() = Some((devices, looks));
    }

    /// What was seen of it since, device by device.
    pub fn flows(&self) -> Vec<Vec<Moment>> {
        let Some((devices, looks)) = self.flash.lock().take() else { return Vec::new() };
        let now = self.clock.now();
        looks
            .into_iter()
            .zip(&*devices)
            .map(|(looks, (_, device))| looks.finish(device.model(), now))
            .collect()
    }

    /// What was seen since.
    ///
    /// # Errors
    /// There are more windows than can be kept.
    pub fn windows(&self) -> Result<Vec<CallWindow>> {
        let windows = self.windows.lock().take();
        windows.map_or(Ok(Vec::new()), Windows::finish)
    }

    /// Notes that something which was there before cannot be here.
    ///
    /// # Errors
    /// There is no room for it: then nothing that is measured would be of this trace.
    fn not_made(&self, path: u32, deed: Deed, why: Error) -> Result<()> {
        let path = self.workload.shown(path);
        if matches!(&why, Error::NoSpace(_)) {
            return Err(Error::invalid(format!(
                "{path}, which the trace finds there, does not fit: {why}; choose a larger --device-size (of nfhybrid --disk-size)"
            )));
        }
        let tally = &mut *self.tally.lock();
        tally.not_made += 1;
        let call = Deed::NAMES[deed.index()];
        tally.first_failure.get_or_insert_with(|| format!("before the first call: {call} {path}: {why}"));
        Ok(())
    }

    fn call(&self, path: u32, deed: Deed) -> Result<u64> {
        // Other bytes at another place of another file, the same ones each time the run is made.
        let shift = (u64::from(path).wrapping_mul(0x9E37_79B9) % 4096) as usize;
        self.target.call(&self.workload.places, path, deed, &|offset, len| {
            let from = ((offset as usize) + shift) % (self.contents.len() / 2);
            let part = &self.contents[from..];
            &part[..part.len().min(len)]
        })
    }

    /// Runs all processes to their ends; `fsync`: fsyncs are made.
    ///
    /// # Errors
    /// The runtime has no task left.
    pub fn run(self: &Arc<Player>, fsync: bool) -> Result<()> {
        let began = self.clock.now();
        let tasks: Result<Vec<_>> = (0..self.own.len())
            .map(|number| {
                let player = self.clone();
                let body = move || player.process(number, began, fsync);
                self.clock.spawn(&format!("process {number}"), Box::new(body))
            })
            .collect();
        tasks?.into_iter().try_for_each(|task| task.join())
    }

    fn process(&self, number: usize, began: Time, fsync: bool) {
        // Instants count from the first call, whatever the recording counts from.
        let first = self.workload.calls.first().map_or(Time::ZERO, |call| call.at);
        for &index in &self.own[number] {
            let call = self.workload.calls[index as usize];
            if let Some(speed) = self.speed {
                self.clock.sleep_until(
                    began + Duration::from_nanos((call.at.since(first).as_nanos() as f64 / speed) as u64),
                );
            }
            let closes = self.workload.last_uses.get(&index).copied();
            let claims = self.begin(number, index as usize, &call, closes);
            // Once the run is to end nothing is done any more; each still has its turn, so that nobody waits for ever.
            if (fsync || call.deed != Deed::Fsync) && !self.brought.is_stopped() {
                self.make(&call);
            }
            if let Some(path) = closes {
                self.close(path);
            }
            self.end(&claims);
        }
    }

    /// Makes a call and counts it.
    fn make(&self, call: &Call) {
        let arrived = self.clock.now();
        if let Some(windows) = &mut *self.windows.lock() {
            windows.see(arrived);
        }
        if let Some((devices, looks)) = &mut *self.flash.lock() {
            let devices = devices.iter().map(|(_, device)| device.model());
            looks.iter_mut().zip(devices).for_each(|(looks, model)| looks.arrived(model, arrived));
        }
        self.clock.sleep_until(arrived + self.software);
        let done = self.call(call.path, call.deed);
        self.target.settle();
        let now = self.clock.now();
        let took = now.since(arrived).as_nanos() as u64;
        if let Some(windows) = &mut *self.windows.lock() {
            let bytes = done.as_ref().ok().map(|bytes| match call.deed {
                Deed::Read(..) => (*bytes, 0),
                Deed::Write(..) => (0, *bytes),
                _ => (0, 0),
            });
            windows.returned(now, took, bytes);
        }
        let tally = &mut *self.tally.lock();
        let index = call.deed.index();
        match done {
            Ok(bytes) => {
                tally.latencies[index].get_or_insert_default().record(took);
                match call.deed {
                    Deed::Read(..) => tally.bytes_read += bytes,
                    Deed::Write(..) => tally.bytes_written += bytes,
                    _ => {}
                }
            }
            Err(why) => {
                tally.failed[index] += 1;
                tally.first_failure.get_or_insert_with(|| {
                    format!("{} {}: {why}", Deed::NAMES[index], self.workload.shown(call.path))
                });
            }
        }
    }

    /// Closes a file without a name.
    fn close(&self, path: u32) {
        let closed = self.target.release(path);
        self.target.settle();
        if let Err(why) = closed {
            let tally = &mut *self.tally.lock();
            tally.failed[Deed::Unlink.index()] += 1;
            let path = self.workload.shown(path);
            tally.first_failure.get_or_insert_with(|| format!("closing {path}: {why}"));
        }
    }

    /// Waits until it is this call's turn, and nothing under way is in its way; of a call after which a file is closed
    /// nothing that uses that.
    fn begin(&self, process: usize, index: usize, call: &Call, closes: Option<u32>) -> Claims {
        if !self.workload.ordered {
            return Claims::new();
        }
        let claims = self.claims(call, closes);
        let mut order = self.order.lock();
        while order.next != index || claims.iter().any(|claim| order.is_in_the_way(*claim)) {
            self.turns[process].wait(&mut order);
        }
        order.next += 1;
        for (path, changes) in &claims {
            let (uses, changing) = order.under_way.entry(*path).or_default();
            *(if *changes { changing } else { uses }) += 1;
        }
        self.tell_next(&order);
        claims
    }

    fn end(&self, claims: &Claims) {
        if !self.workload.ordered {
            return;
        }
        let mut order = self.order.lock();
        for (path, changes) in claims {
            let Some((uses, changing)) = order.under_way.get_mut(path) else { continue };
            *(if *changes { &mut *changing } else { &mut *uses }) -= 1;
            if (*uses, *changing) == (0, 0) {
                order.under_way.remove(path);
            }
        }
        self.tell_next(&order);
    }

    fn tell_next(&self, order: &CallOrder) {
        if let Some(call) = self.workload.calls.get(order.next) {
            self.turns[call.process as usize].notify_one();
        }
    }

    fn claims(&self, call: &Call, closes: Option<u32>) -> Claims {
        let parent = |path: u32| (self.workload.places[path as usize].parent, false);
        let changes = call.deed.changes_names();
        let mut claims = Claims::from_iter([(call.path, changes || closes.is_some()), parent(call.path)]);
        if let Deed::UnlinkOpen(open) = call.deed {
            claims.push((open, true));
        }
        if let Deed::Rename(to) | Deed::Link(to) = call.deed {
            claims.extend([(to, true), parent(to)]);
        }
        claims
    }

    /// What the calls took and did.
    ///
    /// # Errors
    /// Not one of them succeeded.
    pub fn report(&self, outcome: Outcome) -> Result<FilesReport> {
        let Outcome { fs, processes, sim_time, ended, file_system, devices, series, config } = outcome;
        let tally = self.tally.lock();
        let mut all = Spread::default();
        let mut by_call = BTreeMap::new();
        for (index, name) in Deed::NAMES.into_iter().enumerate() {
            let (latencies, failed) = (&tally.latencies[index], tally.failed[index]);
            if latencies.is_none() && failed == 0 {
                continue;
            }
            if let Some(latencies) = latencies {
                all.add(latencies);
            }
            let latency_ns = latencies.as_ref().map(Spread::figures).unwrap_or_default();
            by_call.insert(name, CallReport { latency_ns, failed });
        }
        let latency_ns = all.figures();
        if latency_ns.count == 0 && !by_call.is_empty() {
            let why = tally.first_failure.clone().unwrap_or_default();
            return Err(Error::invalid(format!("{}: no call succeeded; the first: {why}", config.trace)));
        }
        Ok(FilesReport {
            fs: fs.to_string(),
            ended,
            processes,
            calls: latency_ns.count,
            failed: tally.failed.iter().sum(),
            first_failure: tally.first_failure.clone(),
            not_made: tally.not_made,
            left_out: self.workload.left_out.clone(),
            bytes_read: tally.bytes_read,
            bytes_written: tally.bytes_written,
            sim_time_ns: sim_time.as_nanos() as u64,
            latency_ns,
            by_call,
            devices,
            file_system,
            series,
            config,
        })
    }
}

impl CallOrder {
    /// Whether a call under way keeps another one from a path: one that changes it from all, one that uses it from
    /// those that change it.
    fn is_in_the_way(&self, (path, changes): (u32, bool)) -> bool {
        let (uses, changing) = self.under_way.get(&path).copied().unwrap_or_default();
        changing > 0 || changes && uses > 0
    }
}
