//! Instants and spans, in nanoseconds.
//!
//! Time is a value handed along, never a global clock: a simulated device answers with the instant its
//! own time line reaches, a real one with the instant its completion was seen. Both speak [`Time`]. What has to know the
//! present asks its [`crate::runtime::Runtime`].

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// An instant: nanoseconds since the start of a run (simulated) or of the machine (live).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of a run.
    pub const ZERO: Time = Time(0);

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

/// A stamp counted in nanoseconds since the epoch, the epoch itself for one before it: for stores that keep one clock.
impl From<Stamp> for Time {
    fn from(stamp: Stamp) -> Time {
        Time((stamp.sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(stamp.nsec.into()))
    }
}

impl From<Time> for Stamp {
    fn from(time: Time) -> Stamp {
        Stamp { sec: (time.0 / 1_000_000_000) as i64, nsec: (time.0 % 1_000_000_000) as u32 }
    }
}
