//! Company for a write of the log: whether those who wait to be written for wait for others first, and how long.
//!
//! A write makes durable what some fsyncs appended; others came meanwhile and wait for the next. If that begins at
//! once, the first ones are too late for it by the few microseconds they need to come back: of `n` clients that do
//! nothing but fsync, `k` share one write and `n − k` the next, and each waits for two. So after a write with so many
//! served and so many waiting the next one is due when as many have come again, and at the latest after half of
//! what a write takes.
//!
//! A client that is alone is never kept waiting: it has no company to expect. Who waited in vain has lost at most half a
//! write; where the wait cost those who were there more than it saved those who came, it is left out after the next
//! writes: one, three, up to 63 of them, until one pays again.

use super::pause::Pause;
use bimetal_base::time::Time;
use std::time::Duration;

/// Nobody waits longer than this for others.
const PATIENCE_MAX: Duration = Duration::from_millis(2);

/// What is expected of the next write.
#[derive(Default)]
pub(super) struct Company {
    /// How many should have come before it; nobody is waited for where that is zero.
    expected: usize,
    /// It goes at this time with those who are there.
    until: Time,
    /// How many were there first, and since when.
    first: usize,
    since: Option<Time>,
    /// How long a write takes, lately.
    took: Duration,
    pause: Pause,
}

impl Company {
    /// A write took so long.
    pub fn wrote(&mut self, took: Duration) {
        self.took = if self.took.is_zero() { took } else { (self.took * 3 + took) / 4 };
    }

    /// A write is over that served so many, while so many others had come.
    pub fn parted(&mut self, now: Time, served: usize, waiting: usize) {
        self.expected = 0;
        if served + waiting > 1 && self.pause.is_over() {
            self.expected = served + waiting;
            self.until = now + (self.took / 2).min(PATIENCE_MAX);
            self.first = waiting.max(1);
            self.since = (waiting > 0).then_some(now);
        }
    }

    /// Until when the `present` should wait for others; nothing if they should not.
    pub fn wait_until(&mut self, now: Time, present: usize) -> Option<Time> {
        if present >= self.expected || now >= self.until {
            return None;
        }
        self.since.get_or_insert(now);
        Some(self.until)
    }

    /// A write begins for the `present`.
    pub fn set_off(&mut self, now: Time, present: usize) {
        if std::mem::take(&mut self.expected) > 0 {
            let waited = self.since.map_or(Duration::ZERO, |since| now.since(since));
            let came = present.saturating_sub(self.first);
            // Who came saved the write it would have been late for; who was there lost the wait.
            self.pause.tried(self.took * came as u32 >= waited * present as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Duration = Duration::from_micros(1000);

    fn after_a_write_of(served: usize, waiting: usize) -> Company {
        let mut company = Company::default();
        company.wrote(WRITE);
        company.parted(Time(0), served, waiting);
        company
    }

    #[test]
    fn one_alone_waits_for_nobody_and_of_several_each_for_the_others() {
        assert_eq!(after_a_write_of(1, 0).wait_until(Time(0), 1), None);
        let mut four = after_a_write_of(1, 3);
        assert_eq!(four.wait_until(Time(10), 3), Some(Time(500_000)));
        assert_eq!(four.wait_until(Time(20), 4), None);
        assert_eq!(four.wait_until(Time(500_000), 3), None, "half a write is long enough");
    }

    #[test]
    fn waiting_in_vain_is_left_out_ever_more_often_and_comes_back_when_it_pays() {
        let (mut company, mut now, mut waits) = (after_a_write_of(1, 1), Time(0), 0);
        for _ in 0..100 {
            if let Some(until) = company.wait_until(now, 1) {
                (now, waits) = (until, waits + 1);
            }
            company.set_off(now, 1);
            now += WRITE;
            company.parted(now, 1, 1);
        }
        assert!((3..12).contains(&waits), "{waits} waits");
        let mut paid = 0;
        for _ in 0..200 {
            paid += u32::from(company.wait_until(now, 1).is_some());
            company.set_off(now, 2);
            now += WRITE;
            company.parted(now, 2, 0);
        }
        assert!(paid > 130, "{paid} waits");
    }
}
