//! How fast commit cycles bring bytes to the disk: learnt at once where it became slower, bit by bit where faster.

use std::time::Duration;

/// Bytes of a cycle from which on its speed means something.
const BYTES_MIN: u64 = 1 << 20;

/// Bytes a second, once that is known.
#[derive(Default)]
pub struct Pace(Option<u64>);

impl Pace {
    /// A cycle brought so many bytes to the disk, and took so long.
    pub fn note(&mut self, bytes: u64, took: Duration) {
        let micros = took.as_micros() as u64;
        if bytes >= BYTES_MIN && micros > 0 {
            let now = bytes.saturating_mul(1_000_000) / micros;
            self.0 = Some(self.0.map_or(now, |pace| now.min((pace * 3 + now) / 4)));
        }
    }

    /// Bytes the disk may lack so that it has them within `lag`: in half of it, as what is frozen and what is not, and
    /// once more half, as paces change.
    pub fn within(&self, lag: Duration) -> u64 {
        let millis = lag.as_millis() as u64;
        self.0.map_or(u64::MAX, |pace| pace.saturating_mul(millis) / 4000).max(BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_cycle_counts_at_once_and_a_fast_one_bit_by_bit() {
        let (mut pace, second) = (Pace::default(), Duration::from_secs(1));
        pace.note(BYTES_MIN - 1, second);
        assert_eq!(pace.within(second), u64::MAX, "too little to tell");
        pace.note(80 << 20, second);
        assert_eq!(pace.within(second * 4), 80 << 20);
        pace.note(40 << 20, second);
        assert_eq!(pace.within(second * 4), 40 << 20);
        pace.note(80 << 20, second);
        assert_eq!(pace.within(second * 4), 50 << 20);
        assert_eq!(pace.within(Duration::from_millis(1)), BYTES_MIN);
    }
}
