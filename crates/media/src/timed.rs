//! A device in the time of a runtime: whoever waits for a request waits there.
//!
//! Two ways to know how long one takes. A model of a device answers with the instant its own time line reaches; a
//! device without time (memory, an overlay, a power supply) gets times drawn from the runtime's stream. Drawn ones also
//! decide *when* the request takes effect, as real hardware may: when it arrives, or only when it is done. So a cut of
//! the power between the two finds it whole or not at all, and a read sees the device as it was before or after what
//! was under way beside it.

use super::answers::wake_sharply;
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::random::Random;
use bimetal_base::runtime::{self, Clock};
use bimetal_base::time::Time;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long requests take, drawn evenly from each range, nanoseconds.
#[derive(Clone, Debug)]
pub struct Service {
    /// A read.
    pub read_ns: Range<u64>,
    /// A write that need not be durable.
    pub write_ns: Range<u64>,
    /// A flush, or a durable write.
    pub flush_ns: Range<u64>,
}

impl Service {
    /// Of an SSD.
    pub const SSD: Service =
        Service { read_ns: 40_000..120_000, write_ns: 15_000..60_000, flush_ns: 60_000..900_000 };
    /// Of a disk.
    pub const DISK: Service = Service {
        read_ns: 200_000..14_000_000,
        write_ns: 50_000..9_000_000,
        flush_ns: 4_000_000..16_000_000,
    };

    fn draw(&self, request: &Request, draws: &mut Random) -> Duration {
        let range = match request {
            Request::Read { .. } => &self.read_ns,
            Request::Flush | Request::Write { durable: true, .. } => &self.flush_ns,
            Request::Write { .. } | Request::Discard { .. } => &self.write_ns,
        };
        Duration::from_nanos(range.start + draws.below(range.end - range.start))
    }
}

/// A device served in a runtime's time.
pub struct Timed {
    inner: Arc<dyn BlockDevice>,
    clock: Clock,
    /// The instant of the clock that is the device's zero.
    origin: Time,
    kind: Kind,
}

enum Kind {
    Model(Model),
    Drawn(Drawn),
}

/// Requests of a model that are under way. Its time goes on no further than the clock's, since what arrives next may
/// overtake what is under way. So one of those who wait sleeps until something happens in the model next, has that
/// happen, and tells the others whose requests are done by it.
#[derive(Default)]
struct Model {
    ends: runtime::sync::Mutex<Ends>,
    changed: runtime::sync::Condvar,
}

#[derive(Default)]
struct Ends {
    /// Requests that are done and have not been waited for.
    done: FxHashMap<u64, Completion>,
    /// Until when one of those who wait sleeps, in the device's time.
    sleeps_until: Option<Time>,
}

struct Drawn {
    service: Service,
    state: Mutex<State>,
}

struct State {
    draws: Random,
    count: u64,
    /// Requests that take effect when they are done, and when that is.
    late: FxHashMap<u64, (Time, Request)>,
}

impl Timed {
    /// A model, at its own pace; the clock's instants are its own.
    pub fn model(clock: Clock, inner: Arc<dyn BlockDevice>) -> Timed {
        Timed { inner, clock, origin: Time::ZERO, kind: Kind::Model(Model::default()) }
    }

    /// A model in real time: its time begins now.
    pub fn live(inner: Arc<dyn BlockDevice>) -> Timed {
        let clock = runtime::live();
        Timed { origin: clock.now(), ..Timed::model(clock, inner) }
    }

    /// A device without time of its own; `stream` names what its times are drawn from.
    pub fn drawn(clock: Clock, inner: Arc<dyn BlockDevice>, service: Service, stream: &str) -> Timed {
        let draws = clock.random(stream);
        let state = Mutex::new(State { draws, count: 0, late: FxHashMap::default() });
        Timed { inner, clock, origin: Time::ZERO, kind: Kind::Drawn(Drawn { service, state }) }
    }

    /// The present, in the device's time.
    fn now(&self) -> Time {
        Time(self.clock.now().0.saturating_sub(self.origin.0))
    }

    /// When an instant of the device's is, by the clock.
    fn by_clock(&self, at: Time) -> Time {
        Time(self.origin.0.saturating_add(at.0))
    }

    fn submit_drawn(&self, drawn: &Drawn, request: Request) -> Ticket {
        let now = self.now();
        let mut state = drawn.state.lock();
        let due = now + drawn.service.draw(&request, &mut state.draws);
        if state.draws.chance(0.5) {
            drop(state);
            let done = self.inner.run(now, request);
            return Ticket::Done(Completion { at: due, ..done });
        }
        state.count += 1;
        let number = state.count;
        state.late.insert(number, (due, request));
        Ticket::Pending(number)
    }

    fn wait_drawn(&self, drawn: &Drawn, number: u64) -> Completion {
        let late = drawn.state.lock().late.remove(&number);
        let (due, request) = late.expect("a ticket is this device's and waited for once");
        self.clock.sleep_until(due);
        let done = self.inner.run(due, request);
        Completion { at: due, ..done }
    }

    fn submit_to_model(&self, model: &Model, request: Request) -> Ticket {
        let ticket = self.inner.submit(self.now(), request);
        if let Ticket::Done(done) = ticket {
            return Ticket::Done(Completion { at: self.by_clock(done.at), ..done });
        }
        let ends = model.ends.lock();
        // Something may happen sooner now.
        if ends.sleeps_until.is_some_and(|due| self.inner.next_event().is_some_and(|next| next < due)) {
            model.changed.notify_all();
        }
        ticket
    }

    fn wait_for_model(&self, model: &Model, number: u64) -> Completion {
        let mut ends = model.ends.lock();
        loop {
            self.go_on(model, &mut ends);
            if let Some(done) = ends.done.remove(&number) {
                // If it was this one that slept, another one does now.
                model.changed.notify_all();
                return Completion { at: self.by_clock(done.at), ..done };
            }
            if ends.sleeps_until.is_some() {
                model.changed.wait(&mut ends);
                continue;
            }
            let Some(next) = self.inner.next_event() else {
                // Not a model that can be let go on: it knows the end by itself.
                drop(ends);
                let done = self.inner.wait(Ticket::Pending(number));
                self.clock.sleep_until(self.by_clock(done.at));
                return Completion { at: self.by_clock(done.at), ..done };
            };
            if !runtime::sim::is_inside() {
                wake_sharply();
            }
            ends.sleeps_until = Some(next);
            model.changed.wait_until(&mut ends, &*self.clock, self.by_clock(next));
            ends.sleeps_until = None;
        }
    }

    /// Has all happen in the model that does until now.
    fn go_on(&self, model: &Model, ends: &mut Ends) {
        let now = self.now();
        while let Some(number) = self.inner.next_done(now) {
            ends.done.insert(number, self.inner.wait(Ticket::Pending(number)));
            model.changed.notify_all();
        }
    }
}

impl BlockDevice for Timed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }

    fn submit(&self, _at: Time, request: Request) -> Ticket {
        match &self.kind {
            Kind::Model(model) => self.submit_to_model(model, request),
            Kind::Drawn(drawn) => self.submit_drawn(drawn, request),
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match (ticket, &self.kind) {
            (Ticket::Done(completion), _) => {
                self.clock.sleep_until(completion.at);
                completion
            }
            (Ticket::Pending(number), Kind::Model(model)) => self.wait_for_model(model, number),
            (Ticket::Pending(number), Kind::Drawn(drawn)) => self.wait_drawn(drawn, number),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        match (ticket, &self.kind) {
            (Ticket::Done(completion), _) => completion.at <= self.clock.now(),
            (Ticket::Pending(number), Kind::Model(model)) => {
                let mut ends = model.ends.lock();
                self.go_on(model, &mut ends);
                ends.done.contains_key(number)
            }
            (Ticket::Pending(number), Kind::Drawn(drawn)) => {
                let due = drawn.state.lock().late.get(number).map(|(due, _)| *due);
                due.is_none_or(|due| due <= self.clock.now())
            }
        }
    }

    /// None: this device's requests are waited for, and its time is the clock's.
    fn next_done(&self, _until: Time) -> Option<u64> {
        None
    }

    fn next_event(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;
    use bimetal_base::runtime::Sim;

    #[test]
    fn a_request_takes_its_time_and_takes_effect_at_either_end_of_it() {
        let sim = Sim::new(9);
        let clock: Clock = Arc::new(sim.clone());
        let counts = sim.run(move || {
            let (mut early, mut late) = (0, 0);
            for round in 1..=40u8 {
                let ram = Arc::new(Ram::new("ram", 4096));
                let timed = Timed::drawn(clock.clone(), ram.clone(), Service::SSD, &format!("{round}"));
                let before = clock.now();
                let data = super::super::Gather::from_iter([vec![round; 512].into()]);
                let ticket = timed.submit(Time::ZERO, Request::Write { offset: 0, data, durable: false });
                assert!(!timed.is_done(&ticket));
                let here = ram.image()[0] == round;
                (early, late) = if here { (early + 1, late) } else { (early, late + 1) };
                timed.wait(ticket).result.unwrap();
                assert_eq!(ram.image()[0], round);
                let took = clock.now().since(before).as_nanos() as u64;
                assert!(Service::SSD.write_ns.contains(&took), "{took}");
            }
            (early, late)
        });
        assert!(counts.0 > 5 && counts.1 > 5, "{counts:?}");
    }

    #[test]
    fn a_model_is_waited_for_as_long_as_it_says() {
        let sim = Sim::new(1);
        let clock: Clock = Arc::new(sim.clone());
        let took = sim.run(move || {
            let profile = crate::profile::load("hdd-7200").expect("a profile");
            let disk = crate::disk::Disk::new(&profile, Arc::new(Ram::new("disk", 64 << 20)));
            let timed = Timed::model(clock.clone(), Arc::new(disk));
            let timed: &dyn BlockDevice = &timed;
            timed.read(0, 4096).unwrap();
            timed.read(1 << 25, 4096).unwrap();
            clock.now()
        });
        assert!(took > Time(3_000_000), "a seek and a turn take milliseconds: {took:?}");
    }

    /// Reads of 4 KiB that arrive a nanosecond after each other.
    fn reads() -> Vec<(Time, Request)> {
        (0..16u64)
            .map(|i| (Time(1 + i), Request::Read { offset: (i * 7919 % 16384) << 12, len: 4096 }))
            .collect()
    }

    fn disk() -> Arc<crate::disk::Disk> {
        let profile = crate::profile::load("hdd-7200").expect("a profile");
        Arc::new(crate::disk::Disk::new(&profile, Arc::new(Ram::new("disk", 64 << 20))))
    }

    /// When each is done if all are handed in before any is waited for.
    fn driven() -> Vec<Time> {
        let disk = disk();
        let tickets: Vec<Ticket> =
            reads().into_iter().map(|(at, request)| disk.submit(at, request)).collect();
        tickets.into_iter().map(|ticket| disk.wait(ticket).at).collect()
    }

    #[test]
    fn requests_of_several_tasks_share_a_models_queue() {
        let (sim, device) = (Sim::new(3), disk());
        let clock: Clock = Arc::new(sim.clone());
        let done = sim.run(move || {
            let timed = Arc::new(Timed::model(clock.clone(), device));
            let done = Arc::new(Mutex::new(vec![Time::ZERO; 16]));
            let ask = |(index, (at, request)): (usize, (Time, Request))| {
                let (timed, done, clock_of_task) = (timed.clone(), done.clone(), clock.clone());
                let task = move || {
                    clock_of_task.sleep_until(at);
                    let completion = timed.run(at, request);
                    assert_eq!(
                        completion.at,
                        clock_of_task.now(),
                        "nobody goes on before or after it is done"
                    );
                    done.lock()[index] = completion.at;
                };
                clock.spawn("client", Box::new(task)).expect("a task")
            };
            let tasks: Vec<_> = reads().into_iter().enumerate().map(ask).collect();
            tasks.into_iter().for_each(|task| task.join().expect("it ends"));
            done.lock().clone()
        });
        assert_eq!(done, driven());
        let in_turn = reads().into_iter().fold(Time::ZERO, {
            let disk = disk();
            move |now, (at, request)| disk.run(now.max(at), request).at
        });
        assert!(done.iter().max() < Some(&in_turn), "the queue is a choice: {done:?}, in turn {in_turn:?}");
    }

    #[test]
    fn a_model_in_real_time_serves_threads_side_by_side() {
        let timed = Timed::live(Arc::new(crate::gate::Gate::new(16)));
        std::thread::scope(|scope| {
            for (at, request) in reads() {
                let timed = &timed;
                scope.spawn(move || timed.run(at, request).result.unwrap());
            }
        });
    }
}
