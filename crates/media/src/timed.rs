//! A device in the time of a runtime: whoever waits for a request waits there.
//!
//! Two ways to know how long one takes. A model of a device answers with the instant its own time line reaches; a
//! device without time (memory, an overlay, a power supply) gets times drawn from the runtime's stream. Drawn ones also
//! decide *when* the request takes effect, as real hardware may: when it arrives, or only when it is done. So a cut of
//! the power between the two finds it whole or not at all, and a read sees the device as it was before or after what
//! was under way beside it.

use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
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
    drawn: Option<Drawn>,
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
    /// A model, at its own pace.
    pub fn model(clock: Clock, inner: Arc<dyn BlockDevice>) -> Timed {
        Timed { inner, clock, drawn: None }
    }

    /// A device without time of its own; `stream` names what its times are drawn from.
    pub fn drawn(clock: Clock, inner: Arc<dyn BlockDevice>, service: Service, stream: &str) -> Timed {
        let draws = clock.random(stream);
        let state = Mutex::new(State { draws, count: 0, late: FxHashMap::default() });
        Timed { inner, clock, drawn: Some(Drawn { service, state }) }
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
        let now = self.clock.now();
        let Some(drawn) = &self.drawn else { return Ticket::Done(self.inner.run(now, request)) };
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

    fn wait(&self, ticket: Ticket) -> Completion {
        let number = match ticket {
            Ticket::Done(completion) => {
                self.clock.sleep_until(completion.at);
                return completion;
            }
            Ticket::Pending(number) => number,
        };
        let late = self.drawn.as_ref().and_then(|drawn| drawn.state.lock().late.remove(&number));
        let (due, request) = late.expect("a ticket is this device's and waited for once");
        self.clock.sleep_until(due);
        let done = self.inner.run(due, request);
        Completion { at: due, ..done }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        let due = match ticket {
            Ticket::Done(completion) => completion.at,
            Ticket::Pending(number) => {
                let late = |drawn: &Drawn| drawn.state.lock().late.get(number).map(|(due, _)| *due);
                self.drawn.as_ref().and_then(late).unwrap_or(Time::ZERO)
            }
        };
        due <= self.clock.now()
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
}
