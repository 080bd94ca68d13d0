//! Requests a second of the cache policies, beside libCacheSim on the same trace in the same run.
//!
//! `bench-cache [--requests N] [--ids N] [--cache N] [--rounds N] [--writes PERCENT] [--python PATH] [POLICY…]`
//!
//! A Zipf(1.0) trace over scrambled ids is written in libCacheSim's oracleGeneral format. Each round runs every
//! policy with dense ids, with sparse ids, and the peer's program (`--python`, a Python with libcachesim), one after the
//! other on one thread. What counts is CPU time of the loop: a shared machine's wall clock says nothing. The medians
//! of all rounds and their ratios are printed.

mod peer;
mod zipf;

use bimetal::Result;
use bimetal::cache::{Access, Below, Config, PageAccess, build};
use bimetal::time::Time;
use bimetal::units::Lpn;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Bytes of a record of the trace: time u32, id u64, size u32, next access i64.
const RECORD: usize = 24;

/// Accesses decoded at a time.
const BATCH: usize = 4096;

struct Settings {
    requests: usize,
    ids: u64,
    cache: u32,
    rounds: usize,
    writes: u8,
    python: Option<PathBuf>,
    policies: Vec<String>,
}

struct Nothing;

impl Below for Nothing {
    fn read(&mut self, at: Time, _: Lpn, _: u32) -> Result<Time> {
        Ok(at)
    }

    fn write(&mut self, at: Time, _: Lpn, _: u32) -> Result<Time> {
        Ok(at)
    }
}

fn settings() -> std::result::Result<Settings, String> {
    let mut s = Settings {
        requests: 20_000_000,
        ids: 1_000_000,
        cache: 100_000,
        rounds: 3,
        writes: 0,
        python: None,
        policies: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        match arg.as_str() {
            "--requests" => s.requests = number(value()?)? as usize,
            "--ids" => s.ids = number(value()?)?,
            "--cache" => s.cache = number(value()?)? as u32,
            "--rounds" => s.rounds = number(value()?)? as usize,
            "--writes" => s.writes = number(value()?)?.min(100) as u8,
            "--python" => s.python = Some(value()?.into()),
            _ if arg.starts_with('-') => return Err(format!("no option {arg}")),
            _ => s.policies.push(arg),
        }
    }
    if s.policies.is_empty() {
        let default = ["lru", "clock", "sieve", "s3fifo", "arc", "lirs", "cflru", "cswlru"];
        s.policies = default.map(String::from).to_vec();
    }
    Ok(s)
}

/// CPU seconds of this thread so far.
fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
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

struct Outcome {
    million_a_second: f64,
    miss_ratio: f64,
    overhead_a_page: f64,
}

fn run_ours(policy: &str, s: &Settings, trace: &[u8], sparse: bool) -> Result<Outcome> {
    let config = Config::new(s.cache);
    let config = if sparse { config } else { config.space(s.ids + 1) };
    let mut cache = build(policy, &config)?;
    let mut batch = Vec::with_capacity(BATCH);
    let start = cpu_seconds();
    for records in trace.chunks(BATCH * RECORD) {
        batch.clear();
        batch.extend(records.chunks_exact(RECORD).map(|record| decode(record, s.writes, sparse)));
        cache.run(Time::ZERO, &batch, &mut Nothing)?;
    }
    let seconds = cpu_seconds() - start;
    Ok(Outcome {
        million_a_second: cache.stats().accesses() as f64 / seconds / 1e6,
        miss_ratio: 1.0 - cache.stats().hit_ratio(),
        overhead_a_page: cache.overhead_bytes() as f64 / f64::from(cache.capacity()),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// The median over the rounds of ours over the peer's in the same round.
fn ratio(ours: &[f64], peers: &[f64]) -> f64 {
    median(ours.iter().zip(peers).map(|(ours, peer)| ours / peer).collect())
}

#[derive(Default)]
struct Row {
    dense: Vec<f64>,
    sparse: Vec<f64>,
    peer: Vec<f64>,
    overhead: (f64, f64),
    miss: f64,
    peer_miss: f64,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let s = settings()?;
    let path = std::env::temp_dir().join(format!("bench-cache-{}.oracleGeneral", std::process::id()));
    let trace = zipf::trace(s.requests, s.ids, 20_240_101);
    std::fs::write(&path, &trace)?;
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for _ in 0..s.rounds {
        for policy in &s.policies {
            let row = rows.entry(policy).or_default();
            let dense = run_ours(policy, &s, &trace, false)?;
            let sparse = run_ours(policy, &s, &trace, true)?;
            row.dense.push(dense.million_a_second);
            row.sparse.push(sparse.million_a_second);
            row.overhead = (dense.overhead_a_page, sparse.overhead_a_page);
            row.miss = dense.miss_ratio;
            if let Some(python) = &s.python {
                // Its own policy or, in the row of LRU, what the others are measured against.
                if let Some(peer) = peer::run(python, policy, &path, s.cache)? {
                    row.peer.push(peer.million_a_second);
                    row.peer_miss = peer.miss_ratio;
                }
            }
        }
    }
    std::fs::remove_file(&path)?;
    print(&s, &rows);
    Ok(())
}

fn print(s: &Settings, rows: &BTreeMap<&str, Row>) {
    println!(
        "{} requests, Zipf(1.0) over {} ids, {} pages cached, {} % writes, {} rounds; M requests a CPU second",
        s.requests, s.ids, s.cache, s.writes, s.rounds
    );
    println!(
        "{:<24}{:>16}{:>16}{:>16}{:>8}{:>9}{:>10}{:>10}{:>12}",
        "median (best)", "dense", "sparse", "libCacheSim", "dense×", "sparse×", "miss", "its miss", "bytes/page"
    );
    let both = |values: &[f64]| format!("{:.1} ({:.1})", median(values.to_vec()), best(values));
    for policy in &s.policies {
        let Some(row) = rows.get(policy.as_str()) else { continue };
        let base = if row.peer.is_empty() { rows.get("lru").map_or(&row.peer, |lru| &lru.peer) } else { &row.peer };
        println!(
            "{policy:<24}{:>16}{:>16}{:>16}{:>8.1}{:>9.1}{:>10.5}{:>10.5}{:>12}",
            both(&row.dense),
            both(&row.sparse),
            both(&row.peer),
            ratio(&row.dense, base),
            ratio(&row.sparse, base),
            row.miss,
            row.peer_miss,
            format!("{:.0} / {:.0}", row.overhead.0, row.overhead.1)
        );
    }
    println!("×: median over the rounds, against the same policy of libCacheSim, or its LRU where it has none");
}
