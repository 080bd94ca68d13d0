//! Where bytes lie on a turning platter, and how long the arm takes to get there.
//!
//! A place is told by the time the head needs to stream from byte 0 to it, in nanoseconds: that number
//! modulo one revolution is its angle. So a track is what passes in one revolution, streaming on over a
//! track's end costs nothing (tracks are skewed just so), and a transfer that continues where the last
//! one ended meets its angle to the nanosecond.

use super::profile::DiskProfile;
use crate::profile::ms;

/// Bytes, places and times of one disk.
pub(super) struct Platter {
    zones: Vec<Zone>,
    /// One revolution, ns.
    rotation_ns: u64,
    settle_ns: u64,
    write_settle_ns: u64,
    /// Seek over the whole disk beyond settling, ns.
    stroke_ns: f64,
    size_bytes: u64,
}

struct Zone {
    /// First byte.
    start: u64,
    /// Streaming time from byte 0 to `start`, ns.
    start_ns: u64,
    /// Bytes that pass in one revolution.
    track_bytes: u64,
}

impl Platter {
    /// Of a disk that `size_bytes` are used of.
    pub fn new(profile: &DiskProfile, size_bytes: u64) -> Platter {
        let size_bytes = profile.platter.map_or(size_bytes, |platter| platter.max(size_bytes));
        let rotation_ns = 60_000_000_000 / u64::from(profile.rpm);
        let mut platter = Platter {
            zones: Vec::new(),
            rotation_ns,
            settle_ns: ms(profile.settle_ms),
            write_settle_ns: ms(profile.write_settle_ms),
            // The mean of √d over two uniform places is 8/15 (d is the distance over the stroke).
            stroke_ns: (profile.seek_average_ms - profile.settle_ms) * 1e6 * 15.0 / 8.0,
            size_bytes: size_bytes.max(1),
        };
        for zone in &profile.zones {
            let start = (zone.from * size_bytes as f64) as u64;
            let start_ns = if platter.zones.is_empty() { 0 } else { platter.place_ns(start) };
            let track_bytes = (zone.mb_per_s * 1e6 * rotation_ns as f64 / 1e9).max(1.0) as u64;
            platter.zones.push(Zone { start, start_ns, track_bytes });
        }
        platter
    }

    /// Streaming time from byte 0 to `offset`, ns.
    fn place_ns(&self, offset: u64) -> u64 {
        let after = self.zones.partition_point(|zone| zone.start <= offset);
        let zone = &self.zones[after.saturating_sub(1)];
        zone.start_ns + scale(offset - zone.start, self.rotation_ns, zone.track_bytes)
    }

    /// The byte that streaming for `place_ns` from byte 0 has reached.
    fn byte_at(&self, place_ns: u64) -> u64 {
        let after = self.zones.partition_point(|zone| zone.start_ns <= place_ns);
        let zone = &self.zones[after.saturating_sub(1)];
        zone.start + scale(place_ns - zone.start_ns, zone.track_bytes, self.rotation_ns)
    }

    /// Time to stream `from..to`, ns.
    pub fn stream_ns(&self, from: u64, to: u64) -> u64 {
        self.place_ns(to) - self.place_ns(from)
    }

    /// The byte reached by streaming from `from` for `time_ns`.
    pub fn reached(&self, from: u64, time_ns: u64) -> u64 {
        self.byte_at(self.place_ns(from) + time_ns).min(self.size_bytes)
    }

    /// Bytes in the track that `offset` is in.
    pub fn track_bytes(&self, offset: u64) -> u64 {
        let after = self.zones.partition_point(|zone| zone.start <= offset);
        self.zones[after.saturating_sub(1)].track_bytes
    }

    /// Time to move the arm from `from` to `to`, ns. None to where it is or within a track; else it has
    /// to settle, and longer for a write.
    pub fn seek_ns(&self, from: u64, to: u64, write: bool) -> u64 {
        let track = |offset| self.place_ns(offset) / self.rotation_ns;
        if from == to || track(from) == track(to) {
            return 0;
        }
        let distance = from.abs_diff(to) as f64 / self.size_bytes as f64;
        let settle = self.settle_ns + if write { self.write_settle_ns } else { 0 };
        settle + (self.stroke_ns * distance.sqrt()) as u64
    }

    /// Time from the instant `now_ns` until `offset` is under the head, ns.
    pub fn rotate_ns(&self, now_ns: u64, offset: u64) -> u64 {
        let angle = self.place_ns(offset) % self.rotation_ns;
        (angle + self.rotation_ns - now_ns % self.rotation_ns) % self.rotation_ns
    }
}

/// `value × to ÷ from` without overflow.
fn scale(value: u64, to: u64, from: u64) -> u64 {
    match value.checked_mul(to) {
        Some(product) => product / from,
        None => (u128::from(value) * u128::from(to) / u128::from(from)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;
    use bimetal_base::random::Random;

    const SIZE: u64 = 4 << 30;

    fn platter() -> Platter {
        Platter::new(&profile::load("hdd-7200").unwrap(), SIZE)
    }

    #[test]
    fn a_track_is_one_revolution() {
        let platter = platter();
        assert_eq!(platter.rotation_ns, 8_333_333);
        assert_eq!(platter.track_bytes(0), 999_999);
        assert_eq!(platter.stream_ns(999_999 * 7, 999_999 * 8), 8_333_333);
        assert_eq!(platter.rotate_ns(8_333_333 * 3, 0), 0);
        assert_eq!(platter.rotate_ns(8_333_333 * 3 + 1, 0), 8_333_332);
    }

    #[test]
    fn seeks_over_random_pairs_average_what_the_profile_says() {
        let platter = platter();
        let mut random = Random::new(1, "pairs");
        let total: u64 =
            (0..100_000).map(|_| platter.seek_ns(random.below(SIZE), random.below(SIZE), false)).sum();
        assert!((8_400_000..8_600_000).contains(&(total / 100_000)), "{}", total / 100_000);
        assert_eq!(platter.seek_ns(5, 500_000, false), 0, "the same track");
        let next = platter.seek_ns(0, 999_999, false);
        assert!((800_000..1_100_000).contains(&next), "{next}");
        assert_eq!(platter.seek_ns(0, 999_999, true) - next, 500_000);
    }

    #[test]
    fn places_and_bytes_turn_into_each_other_in_every_zone() {
        let profile = DiskProfile { platter: None, ..profile::load("hdd-7200-zoned").unwrap() };
        let zoned = Platter::new(&profile, SIZE);
        for offset in (0..SIZE).step_by(98_765_432) {
            let back = zoned.byte_at(zoned.place_ns(offset));
            assert!(offset - back <= 1, "{offset} {back}");
            assert!(zoned.reached(offset, 1_000_000) > offset);
        }
        assert!(zoned.track_bytes(0) > zoned.track_bytes(SIZE - 1));
        assert!(zoned.stream_ns(SIZE - (1 << 20), SIZE) > zoned.stream_ns(0, 1 << 20));
    }
}
