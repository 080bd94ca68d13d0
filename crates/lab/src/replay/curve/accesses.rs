//! A trace as the page accesses that a cache sees: all of them, or those to a sample of the pages.

use super::super::address::AddressMapper;
use super::super::progress::Shown;
use super::Args;
use bimetal_base::random::Random;
use bimetal_base::units::{Lpn, show_size};
use bimetal_base::{Error, Result};
use bimetal_cache::device::Covered;
use bimetal_cache::{Access, PageAccess};
use bimetal_trace::{Op, Source};

/// The accesses of a trace, in memory.
pub(super) struct Accesses {
    /// Those to pages of the sample, in order.
    pub sampled: Vec<PageAccess>,
    /// How many there are in all.
    pub all: u64,
    /// Requests of the trace.
    pub requests: u64,
}

/// More accesses are not kept: 2 GiB of memory.
const MOST: usize = 1 << 28;

impl Accesses {
    /// Reads the trace once.
    ///
    /// # Errors
    /// A malformed trace, requests of several units, more accesses than are kept.
    pub fn read(args: &Args, source: &Source) -> Result<Accesses> {
        let mut placer = AddressMapper::new(args.fit, None, args.unit, args.chunk);
        let mut accesses = Accesses { sampled: Vec::new(), all: 0, requests: 0 };
        let sample = Sample { share: args.sample, seed: args.seed };
        let shown = Shown::new(1);
        for (number, record) in source.open_watched(shown.of(0))?.enumerate() {
            shown.draw_sometimes(number);
            if args.requests.is_some_and(|limit| accesses.requests >= limit) {
                break;
            }
            let asked = placer.place(&record?)?;
            accesses.requests += u64::from(!asked.is_nothing());
            if !matches!(asked.op, Op::Read | Op::Write) {
                continue;
            }
            for (offset, bytes) in asked.spans {
                accesses.touch(asked.op, Covered::by(offset, bytes, args.page), sample).map_err(|why| {
                    let pages = show_size(args.page);
                    Error::invalid(format!(
                        "{}: {why} accesses to pages of {pages}; choose a sample of the pages, as --sample 0.01, or --requests",
                        source.name()
                    ))
                })?;
            }
        }
        Ok(accesses)
    }

    /// Notes the accesses of a read or a write.
    ///
    /// # Errors
    /// What cannot be kept, as the beginning of a sentence.
    fn touch(&mut self, op: Op, pages: Covered, sample: Sample) -> std::result::Result<(), String> {
        let (access, in_order) = match op {
            Op::Write => (Access::Write, pages.whole),
            _ => (Access::Read, pages.all),
        };
        let parts = if access == Access::Write { &pages.parts[..] } else { &[] };
        for page in in_order.chain(parts.iter().copied()) {
            self.all += 1;
            if sample.has(page) {
                if self.sampled.len() == MOST {
                    return Err(format!("there are more than {MOST}"));
                }
                if self.sampled.try_reserve(1).is_err() {
                    return Err(format!("no memory can be had for more than {}", self.sampled.len()));
                }
                self.sampled.push(PageAccess::new(Lpn(page), access));
            }
        }
        Ok(())
    }
}

/// A share of all pages: always the same ones for one seed.
#[derive(Clone, Copy)]
struct Sample {
    share: f64,
    seed: u64,
}

impl Sample {
    fn has(self, page: u64) -> bool {
        let spread = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.share >= 1.0 || Random::new(page ^ spread, "sample").chance(self.share)
    }
}
