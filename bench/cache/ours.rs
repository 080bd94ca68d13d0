//! Our policies on a trace in memory.

use super::{Options, cpu_seconds};
use bimetal::Result;
use bimetal::cache::{Access, Config, Nothing, PageAccess, build};
use bimetal::time::Time;
use bimetal::units::Lpn;

/// Bytes of a record of the trace: time u32, id u64, size u32, next access i64.
pub const RECORD: usize = 24;

/// Accesses decoded at a time.
const BATCH: usize = 4096;

/// What a run gave.
pub struct Outcome {
    /// Million requests a CPU second.
    pub million_a_second: f64,
    /// Share of the requests that missed.
    pub miss_ratio: f64,
    /// Bytes of memory a page that the cache can hold.
    pub overhead_a_page: f64,
}

/// The access of a record; `sparse` spreads the ids over 63 bits.
fn decode(record: &[u8], writes: u8, sparse: bool) -> PageAccess {
    let mut id = [0; 8];
    id.copy_from_slice(&record[4..12]);
    let id = u64::from_le_bytes(id);
    let access = if record[16] < writes { Access::Write } else { Access::Read };
    let page = if sparse { id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1 } else { id };
    PageAccess::new(Lpn(page), access)
}

/// Runs the trace through `policy`.
pub fn run(policy: &str, options: &Options, trace: &[u8], sparse: bool) -> Result<Outcome> {
    let config = Config::new(options.cache);
    let config = if sparse { config } else { config.space(options.ids + 1) };
    let mut cache = build(policy, &config)?;
    let mut batch = Vec::with_capacity(BATCH);
    let start = cpu_seconds();
    for records in trace.chunks(BATCH * RECORD) {
        batch.clear();
        batch.extend(records.chunks_exact(RECORD).map(|record| decode(record, options.writes, sparse)));
        cache.run(Time::ZERO, &batch, &mut Nothing)?;
    }
    let seconds = cpu_seconds() - start;
    Ok(Outcome {
        million_a_second: cache.view().stats.accesses() as f64 / seconds / 1e6,
        miss_ratio: 1.0 - cache.view().stats.hit_ratio(),
        overhead_a_page: cache.view().overhead_bytes as f64 / f64::from(cache.view().capacity),
    })
}
