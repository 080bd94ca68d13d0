//! A simulated device in real time: a request takes as long as the model says.
//!
//! The model's clock starts with the wrapper and follows the machine's monotonic clock; `submit` tells
//! the model the present instant (the caller's `at` is not used) and `wait` sleeps until the one the
//! model answered with. Instants are absolute, so many requests under way do not add up their delays.

use super::timer::wake_sharply;
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal_base::runtime::Live;
use bimetal_base::time::Time;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device served at its model's pace.
pub struct Paced {
    inner: Arc<dyn BlockDevice>,
    clock: Clock,
    under_way: Mutex<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    count: u64,
    requests: FxHashMap<u64, Completion>,
}

/// Virtual time that runs with real time from the moment it is made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock at zero.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The present instant.
    pub fn now(self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }

    /// When `time` is, was or will be.
    pub fn instant(self, time: Time) -> Instant {
        self.0 + Duration::from_nanos(time.0)
    }
}

impl Paced {
    /// `inner`, at its own pace from now on.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Paced {
        Paced { inner, clock: Clock::start(), under_way: Mutex::default() }
    }
}

/// Sleeps until `due`; returns at once if that has passed.
fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    wake_sharply();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let Ok(left) = rustix::time::Timespec::try_from(left) else { return };
    let Some(until) = now.checked_add(left) else { return };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
}

impl BlockDevice for Paced {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }

    fn submit(&self, _at: Time, request: Request) -> Ticket {
        let completion = self.inner.run(self.clock.now(), request);
        let mut under_way = self.under_way.lock();
        under_way.count += 1;
        let number = under_way.count;
        under_way.requests.insert(number, completion);
        Ticket::Pending(number)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        let Ticket::Pending(number) = ticket else { return ticket.done() };
        let found = self.under_way.lock().requests.remove(&number);
        let completion = found.expect("a ticket is this device's and waited for once");
        sleep_until(self.clock.instant(completion.at));
        Completion { at: Live::monotonic(), result: completion.result }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        let Ticket::Pending(number) = ticket else { return true };
        let due = self.under_way.lock().requests.get(number).map(|completion| completion.at);
        due.is_none_or(|due| due <= self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::profile;
    use crate::ram::Ram;

    fn paced() -> Paced {
        let profile = profile::load("hdd-7200").unwrap();
        Paced::new(Arc::new(Disk::new(&profile, Arc::new(Ram::new("ram", 1 << 20)))))
    }

    #[test]
    fn a_flush_takes_at_least_as_long_as_the_platter() {
        let paced = paced();
        let device: &dyn BlockDevice = &paced;
        let begin = Instant::now();
        for _ in 0..3 {
            device.write(0, vec![7; 4096]).unwrap();
            device.flush().unwrap();
        }
        // The first write may find its place at once, the others have to wait for it to come round.
        assert!(begin.elapsed() >= Duration::from_micros(2 * 8333));
        assert_eq!(device.read(0, 4096).unwrap(), vec![7; 4096]);
    }

    #[test]
    fn requests_under_way_wait_side_by_side() {
        let paced = paced();
        let read = |offset| paced.submit(Time::ZERO, Request::Read { offset, len: 512 });
        let tickets: Vec<Ticket> = (0..8).map(|index| read(index * 512)).collect();
        for ticket in tickets.into_iter().rev() {
            paced.wait(ticket).result.unwrap();
        }
        let before = Instant::now();
        let ticket = read(0);
        while !paced.is_done(&ticket) {}
        paced.wait(ticket).result.unwrap();
        assert!(before.elapsed() >= Duration::from_micros(60), "the command alone takes that long");
    }
}
