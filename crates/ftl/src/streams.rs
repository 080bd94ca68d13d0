//! Deterministic streams of page writes, to compare schemes by and to check counts against other programs.
//!
//! All begin by writing every page once, in order. The random ones draw from the linear congruential
//! generator `x ← 6364136223846793005·x + 1442695040888963407`, value `x >> 33`, from a fixed seed.

/// A named stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Four more times through all pages in order.
    Sequential,
    /// 100,000 pages drawn uniformly.
    Uniform,
    /// 50,000 times the next page in order, and one of three hot pages.
    HotSequential,
    /// 100,000 pages, 80 % of them of the first fifth.
    HotCold,
    /// Four times the first half of every block.
    HalfBlocks,
    /// 2,000 whole blocks drawn uniformly.
    WholeBlocks,
    /// 6,000 runs of 1 to 32 pages from anywhere.
    Runs,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 7] = [
        Stream::Sequential,
        Stream::Uniform,
        Stream::HotSequential,
        Stream::HotCold,
        Stream::HalfBlocks,
        Stream::WholeBlocks,
        Stream::Runs,
    ];

    /// The pages written, over `blocks` logical blocks of `pages` pages.
    pub fn pages(self, blocks: u64, pages: u64) -> Vec<u64> {
        let all = blocks * pages;
        let mut list: Vec<u64> = (0..all).collect();
        match self {
            Stream::Sequential => list.extend((0..4).flat_map(|_| 0..all)),
            Stream::Uniform => {
                let mut random = Generator(1);
                list.extend((0..100_000).map(|_| random.next() % all));
            }
            Stream::HotSequential => {
                let (mut next, first) = (10 * pages, 10 * pages);
                for round in 0..50_000 {
                    list.extend([next, [1, pages + 1, 2 * pages + 2][round % 3]]);
                    next = if next + 1 == all { first } else { next + 1 };
                }
            }
            Stream::HotCold => {
                let (mut random, hot) = (Generator(2), all / 5);
                list.extend((0..100_000).map(|_| {
                    let (a, b) = (random.next(), random.next());
                    if a % 100 < 80 { b % hot } else { hot + b % (all - hot) }
                }));
            }
            Stream::HalfBlocks => {
                let half = |block| block * pages..block * pages + pages / 2;
                list.extend((0..4).flat_map(|_| (0..blocks).flat_map(half)));
            }
            Stream::WholeBlocks => {
                let mut random = Generator(3);
                for _ in 0..2000 {
                    let first = random.next() % blocks * pages;
                    list.extend(first..first + pages);
                }
            }
            Stream::Runs => {
                let mut random = Generator(4);
                for _ in 0..6000 {
                    let (start, len) = (random.next() % all, 1 + random.next() % 32);
                    list.extend((start..start + len).map(|page| page % all));
                }
            }
        }
        list
    }
}

/// The linear congruential generator, from its seed.
pub struct Generator(pub u64);

impl Generator {
    /// The next number, below 2³¹.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is not an iterator to adapt")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// FNV-1a over whole numbers: tells whether two lists are the same.
pub fn fingerprint(list: &[u64]) -> u64 {
    list.iter().fold(1_469_598_103_934_665_603, |hash, value| (hash ^ value).wrapping_mul(1_099_511_628_211))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_the_published_ones() {
        let lists = Stream::ALL.map(|stream| stream.pages(400, 64));
        assert_eq!(lists[1][25_600..25_604], [9174, 4953, 8396, 23270]);
        assert_eq!(
            lists.each_ref().map(Vec::len),
            [128_000, 125_600, 125_600, 125_600, 76_800, 153_600, 124_845]
        );
        let expected = [
            0x3122_6900_91cf_9b83,
            0x01d8_81d7_5af0_2d48,
            0x77e6_90a7_76ea_24ff,
            0x8ddb_3644_d8a8_8338,
            0xdc7e_28a4_7249_fb83,
            0x9b92_ebeb_1331_5c83,
            0x51e2_f0c1_fe95_ca2d,
        ];
        assert_eq!(lists.map(|list| fingerprint(&list)), expected);
    }
}
