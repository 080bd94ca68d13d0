//! The live runtime: threads and the machine's clocks.

use super::{Runtime, Task, panicked};
use crate::random::Random;
use crate::time::{Stamp, Time};
use crate::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Threads, the monotonic clock for deadlines and the wall clock for stamps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live;

impl Live {
    /// The machine's monotonic clock, in nanoseconds since it was started.
    pub fn monotonic() -> Time {
        let now = clock_gettime(ClockId::Monotonic);
        Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    /// The machine's wall clock.
    pub fn wall_clock() -> Stamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Stamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
            Err(before) => {
                let ago = before.duration();
                let part = ago.subsec_nanos();
                let sec = -(ago.as_secs() as i64) - i64::from(part > 0);
                Stamp { sec, nsec: if part > 0 { 1_000_000_000 - part } else { 0 } }
            }
        }
    }
}

impl Runtime for Live {
    fn now(&self) -> Time {
        Live::monotonic()
    }

    fn wall(&self) -> Stamp {
        Live::wall_clock()
    }

    fn sleep_until(&self, due: Time) {
        thread::sleep(due.since(Live::monotonic()));
    }

    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Result<Task> {
        let builder = thread::Builder::new().name(name.into());
        let thread = builder.spawn(task).map_err(|error| Error::io(format!("thread {name}"), error))?;
        let name = name.to_string();
        Ok(Task::new(move || thread.join().map_err(|_| panicked(&name))))
    }

    fn random(&self, stream: &str) -> Random {
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Random::new(seed, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_runs_beside_and_a_panic_shows_when_it_is_joined() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let task = Live.spawn("t", Box::new(move || sender.send(7).unwrap())).unwrap();
        assert_eq!(receiver.recv(), Ok(7));
        task.join().unwrap();
        let task = Live.spawn("u", Box::new(|| panic!("as intended"))).unwrap();
        assert!(task.join().unwrap_err().to_string().contains("task u"));
    }

    #[test]
    fn sleeping_until_the_past_returns_and_time_moves_on() {
        let before = Live.now();
        Live.sleep_until(Time::ZERO);
        assert!(Live.now() >= before);
        assert!(Live.wall().sec > 1_700_000_000);
    }
}
