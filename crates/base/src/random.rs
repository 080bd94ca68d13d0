//! Seeded random numbers, the same on every machine and in every version.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): one
//! addition and three mixing steps a number. Everything random in a model or a fault wrapper comes from a
//! [`Random`] made of a seed and the name of its stream, so that one use more never shifts another's.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream called `name` of `seed`.
    pub fn new(seed: u64, name: &str) -> Random {
        Random(u64::from(crate::checksum::crc32c(name.as_bytes())) << 32 ^ seed).split()
    }

    /// Another stream that starts from this one's next number.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    /// The next number, uniform over all of `u64`.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is not an iterator to adapt")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit` (0 if that is 0), uniform to within 2⁻⁶⁴.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True with the given probability (never at 0, always at 1).
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // The first outputs of SplitMix64 from state 0, as its authors' reference code prints them.
        let mut random = Random(0);
        assert_eq!([random.next(), random.next()], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        assert_eq!(Random::new(1, "a").next(), Random::new(1, "a").next());
        assert_ne!(Random::new(1, "a").next(), Random::new(1, "b").next());
    }

    #[test]
    fn numbers_below_a_limit_and_chances_are_even() {
        let mut random = Random::new(1, "test");
        let mut counts = [0u32; 10];
        (0..10_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|&count| (900..1100).contains(&count)), "{counts:?}");
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
        assert!(!(0..100).any(|_| random.chance(0.0)) && (0..100).all(|_| random.chance(1.0)));
    }
}
