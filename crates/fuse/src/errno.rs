//! An [`Error`] on its way to the kernel.

use bimetal_base::Error;
use bimetal_vfs::errno::{is_trouble, number};
use fuser::Errno;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After so long without one, the next error of a kind is the first of a burst again.
const QUIET: Duration = Duration::from_secs(60);

static BURSTS: Mutex<Bursts> = Mutex::new(Bursts(BTreeMap::new()));

/// How many errors of an operation with a number came in this burst, and when the last of them did.
struct Bursts(BTreeMap<(&'static str, i32), (u64, Instant)>);

impl Bursts {
    /// Counts one: its place in the burst if it is to be logged, which the first, the second, the fourth, … are.
    fn count(&mut self, operation: &'static str, number: i32, now: Instant) -> Option<u64> {
        let (count, last) = self.0.entry((operation, number)).or_insert((0, now));
        if now.saturating_duration_since(*last) > QUIET {
            *count = 0;
        }
        (*count, *last) = (*count + 1, now);
        count.is_power_of_two().then_some(*count)
    }
}

/// The number for an error; what a program cannot have caused is logged with the operation it happened in, of many that come
/// one after another some.
pub(super) fn errno(operation: &'static str, error: &Error) -> Errno {
    let number = number(error);
    if is_trouble(error)
        && let Some(count) = BURSTS.lock().count(operation, number, Instant::now())
    {
        tracing::warn!(operation, errno = number, count, "{error}");
    }
    Errno::from_i32(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_burst_of_errors_the_first_and_then_powers_of_two_are_logged_with_their_count() {
        let mut bursts = Bursts(BTreeMap::new());
        let began = Instant::now();
        let mut count = |operation, number, seconds| {
            bursts.count(operation, number, began + Duration::from_secs(seconds))
        };
        let told: Vec<u64> = (0..1000).filter_map(|second| count("create", libc::EROFS, second)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        // What is of another kind has a burst of its own.
        assert_eq!(count("write", libc::EROFS, 1000), Some(1));
        assert_eq!(count("create", libc::EIO, 1000), Some(1));
        assert_eq!(count("create", libc::EROFS, 1001), None);
        assert_eq!(count("create", libc::EROFS, 1062), Some(1), "it was quiet for a minute");
    }
}
