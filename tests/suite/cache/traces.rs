//! Traces made from a seed, and a device that only counts.

use bimetal::Result;
use bimetal::cache::{Access, Below, Config, Nothing, PageAccess, Stats, build};
use bimetal::time::Time;
use bimetal::units::Lpn;

/// The linear congruential generator that every trace here is made with.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// Whether a die of `sides` sides shows the first.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.next().is_multiple_of(sides)
    }
}

/// One access to one page.
pub type Step = (Access, u64);

/// The trace of the vectors: `hot` of 1000 accesses to every eighth page, `writes` of 100 are writes.
pub fn skewed(seed: u64, count: usize, pages: u64, hot: u64, writes: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut one = || {
        let (a, b, c) = (random.next(), random.next(), random.next());
        let access = if c % 100 < writes { Access::Write } else { Access::Read };
        let page = if a % 1000 < hot { b % (pages / 8) * 8 } else { b % pages };
        (access, page)
    };
    (0..count).map(|_| one()).collect()
}

/// What reaches a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    Read(u64, u32),
    Write(u64, u32),
}

/// A device that remembers what was asked of it: since it was last cleared, and in all.
#[derive(Default)]
pub struct Log(pub Vec<Io>, pub Vec<Io>);

impl Log {
    fn note(&mut self, io: Io) {
        self.0.push(io);
        self.1.push(io);
    }
}

impl Below for Log {
    fn read(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        self.note(Io::Read(first.0, count));
        Ok(at)
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        self.note(Io::Write(first.0, count));
        Ok(at)
    }
}

/// Runs `trace` through a cache of `policy`, one access a nanosecond; both kinds of index must agree.
pub fn counts(policy: &str, config: &Config, trace: &[Step]) -> Stats {
    let run = |config: &Config| {
        let mut cache = build(policy, config).unwrap_or_else(|error| panic!("{policy}: {error}"));
        for (at, &(access, page)) in trace.iter().enumerate() {
            let one = [PageAccess::new(Lpn(page), access)];
            cache.run(Time(at as u64), &one, &mut Nothing).expect("nothing fails");
        }
        *cache.view().stats
    };
    let sparse = run(&Config { space: None, ..config.clone() });
    let highest = trace.iter().map(|&(_, page)| page).max().unwrap_or(0);
    let aligned = (highest / u64::from(config.block_pages) + 1) * u64::from(config.block_pages);
    let dense = run(&config.clone().space(aligned));
    assert_eq!(dense, sparse, "{policy}: the two kinds of index disagree");
    dense
}
