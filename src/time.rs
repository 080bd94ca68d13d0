//! Instants and spans, in nanoseconds.
//!
//! Time is a value handed along, never a global clock: a simulated device answers with the instant its
//! own time line reaches, a real one with the instant its completion was seen. Both speak [`Time`].

use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant: nanoseconds since the start of a run (simulated) or of the epoch (live).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of a run.
    pub const ZERO: Time = Time(0);

    /// The wall clock, for live stacks.
    pub fn now() -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(since.as_nanos() as u64)
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0 + span.as_nanos() as u64)
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

/// A time stamp of a file: seconds since the epoch (may be negative) and nanoseconds below one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Whole seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds, 0..1_000_000_000.
    pub nsec: u32,
}

impl From<Time> for Stamp {
    fn from(time: Time) -> Stamp {
        Stamp { sec: (time.0 / 1_000_000_000) as i64, nsec: (time.0 % 1_000_000_000) as u32 }
    }
}
