//! How many bytes a day reads may bring to the SSD: flash wears by what is written.
//!
//! A bucket that holds a day's bytes, full at the mount, filled evenly. Whoever reads more than that is served from
//! the disk, and copied later, if it is still read then.

use bimetal_base::time::Time;

const DAY_NS: u128 = 24 * 3600 * 1_000_000_000;
/// No SSD is so small that less than this a day would be sensible, bytes.
const LEAST: u64 = 1 << 30;

/// Bytes that may be copied now, and how fast they come back.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes a day; none: no limit.
    a_day: Option<u64>,
    left: u64,
    /// Up to when `left` was filled.
    at: Option<Time>,
}

impl Budget {
    /// So many bytes a day, or no limit.
    pub fn new(a_day: Option<u64>) -> Budget {
        Budget { a_day, left: a_day.unwrap_or(0), at: None }
    }

    /// The default for an SSD half that holds `capacity` bytes of data: all of it once a day, 1 GiB at least.
    pub fn of(capacity: u64) -> Budget {
        Budget::new(Some(capacity.max(LEAST)))
    }

    /// Takes bytes for a copy, if there are so many.
    pub fn take(&mut self, bytes: u64, now: Time) -> bool {
        let Some(a_day) = self.a_day else { return true };
        self.fill(a_day, now);
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Bytes that could be taken now, if there is a limit.
    pub fn left(&self) -> Option<u64> {
        self.a_day.map(|_| self.left)
    }

    fn fill(&mut self, a_day: u64, now: Time) {
        let Some(since) = self.at else {
            self.at = Some(now);
            return;
        };
        let passed = now.since(since).as_nanos();
        let more = passed * u128::from(a_day) / DAY_NS;
        if more > 0 {
            // Only whole bytes: what is left of the time counts next time.
            let used = more * DAY_NS / u128::from(a_day.max(1));
            self.at = Some(Time(since.0 + used.min(passed) as u64));
            self.left = a_day.min(u64::try_from(u128::from(self.left) + more).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_days_bytes_can_be_taken_at_once_and_come_back_evenly() {
        let mut budget = Budget::new(Some(24_000));
        let start = Time(5);
        assert!(budget.take(24_000, start) && !budget.take(1, start));
        assert!(!budget.take(1001, start + HOUR) && budget.take(1000, start + HOUR));
        assert!(!budget.take(1, start + HOUR) && budget.take(500, start + HOUR * 3 / 2));
        // However long nobody read, a day's bytes are the most.
        let later = start + HOUR * 24 * 30;
        assert!(!budget.take(24_001, later) && budget.take(24_000, later) && !budget.take(1, later));
    }

    #[test]
    fn many_short_waits_give_as_much_as_one_long_one() {
        let mut budget = Budget::new(Some(86_400_000));
        assert!(budget.take(86_400_000, Time::ZERO));
        (1..=7_000).for_each(|step| assert!(!budget.take(86_400_000, Time(step * 333_333))));
        assert_eq!(budget.left(), Some(2_333));
    }

    #[test]
    fn without_a_limit_there_is_always_more_and_with_none_a_day_nothing() {
        let mut free = Budget::new(None);
        assert!(free.take(u64::MAX, Time::ZERO) && free.take(u64::MAX, Time::ZERO));
        let mut nothing = Budget::new(Some(0));
        assert!(!nothing.take(1, Time::ZERO) && !nothing.take(1, Time(u64::MAX / 2)));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_and_takes_nothing() {
        let mut budget = Budget::new(Some(24_000));
        assert!(budget.take(23_000, Time::ZERO + HOUR * 5));
        assert!(budget.take(500, Time::ZERO) && !budget.take(501, Time::ZERO + HOUR));
    }
}
