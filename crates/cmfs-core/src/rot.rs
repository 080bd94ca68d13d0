//! A part whose bits rot: with every read of a block those of its other pages, and with time all of them. It has error
//! correction that the wrong bits count against: of so many a codeword a read says how many they were, of more the page
//! is unreadable until its block is erased.
//!
//! Any part can be below, in memory or in an image. The correction is perfect up to its strength and finds all beyond,
//! so that no bit needs to be turned over: it is a model of what BCH codes of controllers do, not a code. Which codeword
//! loses a bit after how many reads depends on the seed, the page, and how often its block was erased, and on nothing
//! else. Counts begin with the model, not with the image below.

use crate::media::{Geometry, Nand, NandError};
use alloc::vec::Vec;

/// How fast a part rots, and how much of it can be corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rot {
    /// What is random comes from it.
    pub seed: u64,
    /// Bytes of data that a codeword is of.
    pub codeword_bytes: u32,
    /// Wrong bits of a codeword that are corrected.
    pub correctable: u32,
    /// Reads of a block between two wrong bits of a codeword, in the mean; 0: reads do no harm.
    pub reads_per_bit: u32,
    /// Ticks between two wrong bits of a codeword, in the mean; 0: time does no harm.
    pub ticks_per_bit: u32,
}

impl Default for Rot {
    /// BCH-8 over 512 bytes, as parts with 2048 + 64 bytes a page ask for.
    fn default() -> Rot {
        Rot { seed: 1, codeword_bytes: 512, correctable: 8, reads_per_bit: 100_000, ticks_per_bit: 0 }
    }
}

/// What happened to a block since it was erased.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    erases: u32,
    reads: u32,
    /// When it was erased.
    since: u64,
}

/// A part that rots.
#[derive(Clone, Debug)]
pub struct Rotting<N> {
    nand: N,
    rot: Rot,
    past: Vec<Past>,
    now: u64,
}

impl<N: Nand> Rotting<N> {
    /// Lets what is on `nand` rot from now on.
    pub fn new(nand: N, rot: Rot) -> Rotting<N> {
        let past = alloc::vec![Past::default(); nand.geometry().blocks as usize];
        Rotting { nand, rot, past, now: 0 }
    }

    /// Lets time pass.
    pub fn age(&mut self, ticks: u32) {
        self.now += u64::from(ticks);
    }

    /// Returns how often a block was read since it was erased.
    pub fn reads(&self, block: u32) -> u32 {
        self.past[block as usize].reads
    }

    /// The part itself.
    pub fn inner_mut(&mut self) -> &mut N {
        &mut self.nand
    }

    /// Wrong bits of a codeword of a page, no more than one too many.
    fn wrong_bits(&self, page: u32, codeword: u32) -> u32 {
        let past = &self.past[self.nand.geometry().block_of(page) as usize];
        let age = self.now - past.since;
        let word = u64::from(page) << 32 | u64::from(past.erases) << 8 | u64::from(codeword);
        let (mut reads, mut ticks) = (0, 0);
        let mut bits = 0;
        while bits <= self.rot.correctable {
            let chance = mix(self.rot.seed ^ mix(word ^ u64::from(bits) << 56));
            // From half of the mean to one and a half.
            reads += gap(self.rot.reads_per_bit, chance);
            ticks += gap(self.rot.ticks_per_bit, chance >> 32);
            if u64::from(past.reads) < reads && age < ticks {
                break;
            }
            bits += 1;
        }
        bits
    }

    /// A read of some codewords of a page: how many bits of the worst were wrong.
    fn sense(&mut self, page: u32, codewords: core::ops::Range<u32>) -> Result<u32, NandError> {
        let worst = codewords.map(|codeword| self.wrong_bits(page, codeword)).max().unwrap_or(0);
        let past = &mut self.past[self.nand.geometry().block_of(page) as usize];
        past.reads = past.reads.saturating_add(1);
        if worst > self.rot.correctable { Err(NandError::Unreadable) } else { Ok(worst) }
    }

    /// Codewords of a page's data; the one behind is of its spare area.
    fn codewords(&self) -> u32 {
        self.nand.geometry().page_bytes.div_ceil(self.rot.codeword_bytes)
    }
}

/// From half of a mean to one and a half; no end where it is 0.
fn gap(mean: u32, chance: u64) -> u64 {
    match u64::from(mean) {
        0 => 1 << 40,
        mean => (mean / 2 + (chance & 0xffff_ffff) % (mean + 1)).max(1),
    }
}

/// A number that looks like chance (the finaliser of SplitMix64).
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl<N: Nand> Nand for Rotting<N> {
    fn geometry(&self) -> Geometry {
        self.nand.geometry()
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        self.nand.is_bad(block)
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.nand.mark_bad(block)
    }

    fn correctable(&self) -> u32 {
        self.rot.correctable
    }

    fn cell_bits(&self) -> u32 {
        self.nand.cell_bits()
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        self.nand.read(page, data, spare)?;
        match spare.iter().all(|byte| *byte == 0xff) {
            // Nothing was written that could rot.
            true => self.sense(page, 0..0),
            false => self.sense(page, 0..self.codewords() + 1),
        }
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.nand.read_spare(page, spare)?;
        match spare.iter().all(|byte| *byte == 0xff) {
            true => self.sense(page, 0..0),
            false => self.sense(page, self.codewords()..self.codewords() + 1),
        }
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        self.nand.program(page, data, spare)
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        self.nand.erase(block)?;
        let past = &mut self.past[block as usize];
        *past = Past { erases: past.erases + 1, reads: 0, since: self.now };
        Ok(())
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.nand.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamNand;
    use crate::{Config, Error, Fs, Kind, NewObject, NoNvram, ROOT};
    use std::format;

    const GEOMETRY: Geometry =
        Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 16, blocks: 24 };
    const FAST: Rot =
        Rot { seed: 7, codeword_bytes: 512, correctable: 8, reads_per_bit: 40, ticks_per_bit: 0 };
    type Rotten = Fs<Rotting<RamNand>, NoNvram>;

    fn contents(file: u8) -> Vec<u8> {
        (0..30_000u32).map(|at| (at / 5) as u8 ^ file).collect()
    }

    /// Some files on a part that rots.
    fn files(rot: Rot, config: Config) -> Rotten {
        let nand = Rotting::new(RamNand::new(GEOMETRY), rot);
        let mut fs = Fs::format(nand, None, config, [1; 16], true).unwrap();
        for file in 0..6 {
            let new = NewObject { kind: Kind::File, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: &[] };
            let id = fs.create(ROOT, format!("f{file}").as_bytes(), &new).unwrap();
            fs.write(id, 0, &contents(file)).unwrap();
        }
        fs.update().unwrap();
        fs
    }

    /// Reads all files; how many had an error. What is read is never wrong.
    fn read_all(fs: &mut Rotten) -> u32 {
        let mut lost = 0;
        for file in 0..6 {
            let mut read = alloc::vec![0; 30_000];
            let done =
                fs.lookup(ROOT, format!("f{file}").as_bytes()).and_then(|id| fs.read(id, 0, &mut read));
            match done {
                Ok(_) => assert!(read == contents(file), "file {file} differs"),
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                    lost += 1;
                }
            }
        }
        lost
    }

    fn read_for_ever(config: Config, rot: Rot) -> (Rotten, u32) {
        let mut fs = files(rot, config);
        let mut lost = 0;
        for round in 1..=1500 {
            lost += read_all(&mut fs);
            if lost > 0 {
                break;
            }
            fs.update_if_due(round * 5000).unwrap();
        }
        (fs, lost)
    }

    #[test]
    fn a_volume_that_is_read_for_ever_loses_nothing_and_does_without_the_refresh() {
        for (seed, refresh_reads) in [(1, 0), (2, 0), (3, 100), (4, 100)] {
            let (rot, config) = (Rot { seed, ..FAST }, Config { refresh_reads, ..Config::default() });
            let (fs, lost) = read_for_ever(config, rot);
            let stats = fs.stats();
            assert_eq!((lost, stats.lost_pages), (0, 0), "seed {seed}, refresh after {refresh_reads} reads");
            assert!(stats.refreshed > 50, "{stats:?}");
            assert!(stats.corrected_bits > 0, "{stats:?}");
            let mut fs: Rotten = Fs::open(fs.into_media().0, None, config).unwrap();
            assert_eq!(read_all(&mut fs), 0, "after a scan");
        }
        let (_, lost) = read_for_ever(Config { refresh_copies: 0, ..Config::default() }, FAST);
        assert!(lost > 0, "the part rots so that it can be lost");
    }

    #[test]
    fn what_nobody_reads_is_found_by_scrubbing_before_time_loses_it() {
        let slow = Rot { reads_per_bit: 0, ticks_per_bit: 1000, ..FAST };
        for scrubs in [true, false] {
            let mut fs = files(slow, Config::default());
            for round in 1..=200 {
                fs.nand_mut().age(100);
                if scrubs {
                    while !fs.scrub(64).unwrap() {}
                    fs.update_if_due(round * 5000).unwrap();
                }
            }
            let stats = fs.stats();
            assert_eq!(read_all(&mut fs) == 0, scrubs, "{stats:?}");
            assert_eq!(stats.refreshed > 0, scrubs, "{stats:?}");
            assert_eq!(stats.scrub_failures, 0);
        }
    }

    #[test]
    fn parts_with_more_than_one_bit_a_cell_are_refused_by_name() {
        struct Mlc(RamNand);
        impl Nand for Mlc {
            fn geometry(&self) -> Geometry {
                self.0.geometry()
            }
            fn is_bad(&mut self, _: u32) -> Result<bool, NandError> {
                Ok(false)
            }
            fn mark_bad(&mut self, _: u32) -> Result<(), NandError> {
                panic!("it is written")
            }
            fn cell_bits(&self) -> u32 {
                2
            }
            fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
                self.0.read(page, data, spare)
            }
            fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
                self.0.read_spare(page, spare)
            }
            fn program(&mut self, _: u32, _: &[u8], _: &[u8]) -> Result<(), NandError> {
                panic!("it is written")
            }
            fn erase(&mut self, _: u32) -> Result<(), NandError> {
                panic!("it is written")
            }
        }
        let part = || Mlc(RamNand::new(GEOMETRY));
        let made = Fs::<_, NoNvram>::format(part(), None, Config::default(), [1; 16], true);
        let opened = Fs::<_, NoNvram>::open(part(), None, Config::default());
        for refused in [made.err(), opened.err()] {
            assert!(matches!(refused, Some(Error::Unsupported(why)) if why.contains("MLC")), "{refused:?}");
        }
    }
}
