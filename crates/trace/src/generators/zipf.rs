//! Pages by Zipf's law: the page of rank k is asked for with a probability in proportion to 1/k^alpha.
//!
//! Ranks are drawn by rejection-inversion (Hörmann and Derflinger: Rejection-inversion to generate variates
//! from monotone discrete distributions, ACM TOMACS 1996): no table, O(1) expected a draw, any number of
//! pages. Ranks are then scattered over the area by a permutation (multiplication by a number coprime with
//! the number of pages), so that neighbours in place are not neighbours in rank.

use super::{Generator, OptionSpec, RATE, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "zipf",
    about: "pages asked for by Zipf's law",
    options: &[
        OptionSpec::new("alpha", "1.0", "exponent; 0 is uniform"),
        OptionSpec::new("pages", "1000000", "different pages"),
        OptionSpec::new("page", "4KiB", "bytes of a page"),
        OptionSpec::new("requests", "1000000", "how many"),
        OptionSpec::new("read", "100", "percent reads"),
        RATE,
        SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let pages = values.count("pages")?;
    let page = values.some_size("page")?;
    if pages == 0 || pages.checked_mul(page).is_none() {
        return Err(values.wrong("pages", "a number of pages that can be"));
    }
    let zipf = Zipf::new(pages, values.number("alpha")?);
    let read = values.percent("read")?;
    let mut left = values.count("requests")?;
    let mut pace = values.pace()?;
    let mut random = Random::new(values.count("seed")?, "zipf");
    let factor = coprime(pages, &mut random);
    Ok(steps(move || {
        left = left.checked_sub(1)?;
        let rank = zipf.draw(&mut random) - 1;
        let place = (u128::from(rank) * u128::from(factor) % u128::from(pages)) as u64;
        let op = if random.chance(read) { Op::Read } else { Op::Write };
        Some(Record::new(pace.next(), op, place * page, page))
    }))
}

/// A number below `modulus` without a common divisor.
fn coprime(modulus: u64, random: &mut Random) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    loop {
        let candidate = 1 + random.below(modulus);
        if divisor(candidate, modulus) == 1 {
            return candidate;
        }
    }
}

/// Ranks from 1 to `count`.
struct Zipf {
    count: f64,
    alpha: f64,
    /// H(3/2) − 1, H(count + 1/2) and the width within which a rank is taken at once.
    low: f64,
    high: f64,
    sure: f64,
}

impl Zipf {
    fn new(count: u64, alpha: f64) -> Zipf {
        let mut zipf = Zipf { count: count as f64, alpha, low: 0.0, high: 0.0, sure: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-alpha));
        zipf
    }

    /// H(x): the integral of t^-alpha from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        if (1.0 - self.alpha).abs() < 1e-9 {
            log
        } else {
            ((1.0 - self.alpha) * log).exp_m1() / (1.0 - self.alpha)
        }
    }

    fn inverse(&self, y: f64) -> f64 {
        if (1.0 - self.alpha).abs() < 1e-9 {
            return y.exp();
        }
        let inner = ((1.0 - self.alpha) * y).max(-1.0);
        (inner.ln_1p() / (1.0 - self.alpha)).exp()
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let part = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            let u = self.high + part * (self.low - self.high);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.sure || u >= self.integral(rank + 0.5) - rank.powf(-self.alpha) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;

    #[test]
    fn ranks_follow_the_law() {
        for alpha in [0.0, 0.7, 1.0, 1.3] {
            let zipf = Zipf::new(100, alpha);
            let mut random = Random::new(7, "test");
            let mut counts = [0u32; 100];
            (0..200_000).for_each(|_| counts[zipf.draw(&mut random) as usize - 1] += 1);
            let weight = |rank: usize| (rank as f64).powf(-alpha);
            let total: f64 = (1..=100).map(weight).sum();
            for rank in [1, 2, 10, 100] {
                let expected = 200_000.0 * weight(rank) / total;
                let off = (f64::from(counts[rank - 1]) - expected).abs();
                assert!(
                    off < 5.0 * expected.sqrt(),
                    "alpha {alpha} rank {rank}: {} for {expected}",
                    counts[rank - 1]
                );
            }
        }
    }

    #[test]
    fn every_page_is_inside_and_scattered_ranks_stay_apart() {
        let records = generate("zipf:pages=1000:requests=50000:read=50");
        let mut pages: Vec<_> = records.iter().map(|record| record.offset / 4096).collect();
        assert!(pages.iter().all(|&page| page < 1000));
        pages.sort_unstable();
        pages.dedup();
        assert!(pages.len() > 990, "{}", pages.len());
        let reads = records.iter().filter(|record| record.op == Op::Read).count();
        assert!((24_000..26_000).contains(&reads), "{reads}");
    }
}
