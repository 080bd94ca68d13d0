//! Requests a second of the cache policies beside libCacheSim, on the same trace in the same run; bytes of memory a
//! cached page; and how fast traces in text are parsed.
//!
//! `make bench-cache`, or `cargo bench --bench cache -- --help`. A Zipf(1.0) trace over scrambled ids is written in
//! libCacheSim's oracleGeneral format. Each round runs every policy with dense ids, with sparse ids, and the peer's
//! (`--python`, a Python with libcachesim), one after the other on one thread. What counts is CPU time of the loop: a
//! shared machine's wall clock says nothing. Ours decodes the records of the trace in that loop, as the peer's does.

mod ours;
mod peer;
mod text;
mod zipf;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Requests a second of the page cache beside libCacheSim
#[derive(Debug, Parser)]
struct Options {
    /// Requests of the trace
    #[arg(long, default_value_t = 20_000_000)]
    requests: usize,
    /// Different pages it asks for
    #[arg(long, default_value_t = 1_000_000)]
    ids: u64,
    /// Pages of the cache
    #[arg(long, default_value_t = 100_000)]
    cache: u32,
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Percent of the requests that are writes (libCacheSim knows no writes)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    writes: u8,
    /// A Python that has libcachesim; without it ours alone are measured
    #[arg(long)]
    python: Option<PathBuf>,
    /// Megabytes of each text trace that is parsed; 0 for none
    #[arg(long, default_value_t = 64)]
    text: usize,
    /// Policies
    #[arg(default_values = ["lru", "clock", "sieve", "s3fifo", "arc", "lirs", "cflru", "cswlru", "tide"])]
    policies: Vec<String>,
    /// Given by `cargo bench`; without meaning
    #[arg(long, hide = true)]
    bench: bool,
}

/// CPU seconds of this thread so far.
fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
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

/// What was measured of one policy, a value a round.
struct Row {
    policy: String,
    dense: Vec<f64>,
    sparse: Vec<f64>,
    peer: Vec<f64>,
    /// Bytes a page, dense and sparse.
    overhead: (f64, f64),
    miss: f64,
    peer_miss: Option<f64>,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let home = tempfile::tempdir()?;
    let path = home.path().join("zipf.oracleGeneral");
    let trace = zipf::trace(options.requests, options.ids, 20_240_101);
    std::fs::write(&path, &trace)?;
    let row = |policy: &String| Row {
        policy: policy.clone(),
        dense: Vec::new(),
        sparse: Vec::new(),
        peer: Vec::new(),
        overhead: (0.0, 0.0),
        miss: 0.0,
        peer_miss: None,
    };
    let mut rows: Vec<Row> = options.policies.iter().map(row).collect();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for row in &mut rows {
            measure(row, options, &trace, &path)?;
        }
    }
    print(options, &rows);
    if options.text > 0 {
        print!("{}", text::measure(home.path(), options.text, options.rounds)?);
    }
    Ok(())
}

/// One round of one policy.
fn measure(row: &mut Row, options: &Options, trace: &[u8], path: &std::path::Path) -> Result<(), Failure> {
    let dense = ours::run(&row.policy, options, trace, false)?;
    let sparse = ours::run(&row.policy, options, trace, true)?;
    row.dense.push(dense.million_a_second);
    row.sparse.push(sparse.million_a_second);
    row.overhead = (dense.overhead_a_page, sparse.overhead_a_page);
    row.miss = dense.miss_ratio;
    if let Some(python) = &options.python
        && let Some(peer) = peer::run(python, &row.policy, path, options.cache)?
    {
        row.peer.push(peer.million_a_second);
        row.peer_miss = Some(peer.miss_ratio);
    }
    Ok(())
}

fn print(options: &Options, rows: &[Row]) {
    println!(
        "{} requests, Zipf(1.0) over {} ids, {} pages cached, {} % writes, {} rounds; million requests a CPU second",
        options.requests, options.ids, options.cache, options.writes, options.rounds
    );
    println!(
        "{:<12}{:>16}{:>16}{:>16}{:>8}{:>9}{:>10}{:>10}{:>12}",
        "median (best)",
        "dense",
        "sparse",
        "libCacheSim",
        "dense×",
        "sparse×",
        "miss",
        "its miss",
        "bytes/page"
    );
    let lru = rows.iter().find(|row| row.policy == "lru").map_or(&[][..], |row| &row.peer);
    let both = |values: &[f64]| match values {
        [] => "-".to_string(),
        values => format!("{:.1} ({:.1})", median(values.to_vec()), best(values)),
    };
    for row in rows {
        let base = if row.peer.is_empty() { lru } else { &row.peer };
        println!(
            "{:<13}{:>16}{:>16}{:>16}{:>8.1}{:>9.1}{:>10.5}{:>10}{:>12}",
            row.policy,
            both(&row.dense),
            both(&row.sparse),
            both(&row.peer),
            ratio(&row.dense, base),
            ratio(&row.sparse, base),
            row.miss,
            row.peer_miss.map_or("-".into(), |miss| format!("{miss:.5}")),
            format!("{:.0} / {:.0}", row.overhead.0, row.overhead.1)
        );
    }
    println!(
        "×: median over the rounds, against the same policy of libCacheSim, or its LRU where it has none"
    );
    println!(
        "bytes/page: memory beside the contents, dense ids / sparse ids; dense counts a table of all ids"
    );
}
