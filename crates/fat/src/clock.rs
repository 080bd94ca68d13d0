//! The time that new directory entries get: that of the operation on this thread.
//!
//! The library asks one provider for all volumes, so an operation sets the time before it runs. DOS counts
//! from 1980; instants of a simulated run, which begin at zero, are taken as counted from then.

use bimetal_base::time::Time;
use fatfs::{Date, DateTime, TimeProvider};
use std::cell::Cell;

/// 1980-01-01 in seconds since the epoch.
const DOS_EPOCH: u64 = 315_532_800;
/// The last year DOS can state.
const YEAR_MAX: u64 = 2107;

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time::ZERO) };
}

/// The provider.
pub(super) static CLOCK: Clock = Clock;

/// The time of the operation on this thread.
#[derive(Debug)]
pub(super) struct Clock;

/// Sets the time of the operation that follows on this thread.
pub(super) fn set(now: Time) {
    NOW.set(now);
}

impl TimeProvider for Clock {
    fn get_current_date(&self) -> Date {
        self.get_current_date_time().date
    }

    fn get_current_date_time(&self) -> DateTime {
        let seconds = NOW.get().0 / 1_000_000_000;
        date_time(if seconds < DOS_EPOCH { seconds + DOS_EPOCH } else { seconds })
    }
}

/// The date and time of a second since the epoch, in UTC.
fn date_time(seconds: u64) -> DateTime {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years from March on, so that leap days come last (Hinnant: chrono-compatible low-level date algorithms).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u16;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u16;
    let year = (era * 400 + year_of_era + u64::from(month <= 2)).min(YEAR_MAX) as u16;
    DateTime {
        date: Date { year, month, day },
        // Even seconds, as an entry states them.
        time: fatfs::Time {
            hour: (second / 3600) as u16,
            min: (second / 60 % 60) as u16,
            sec: ((second % 60) & !1) as u16,
            millis: 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_become_dates() {
        for (second, date, time) in [
            (0, (1970, 1, 1), (0, 0, 0)),
            (DOS_EPOCH, (1980, 1, 1), (0, 0, 0)),
            (951_827_696, (2000, 2, 29), (12, 34, 56)),
            (1_735_689_599, (2024, 12, 31), (23, 59, 58)),
        ] {
            let DateTime { date: d, time: t } = date_time(second);
            assert_eq!(((d.year, d.month, d.day), (t.hour, t.min, t.sec)), (date, time));
        }
        set(Time(3_600_000_000_000));
        let now = CLOCK.get_current_date_time();
        assert_eq!((now.date.year, now.time.hour), (1980, 1), "an hour into a simulated run");
    }
}
