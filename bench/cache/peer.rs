//! libCacheSim, through its Python package: the loop is its C code.

use std::path::Path;
use std::process::Command;

/// What a run gave.
pub struct Outcome {
    /// Million requests a CPU second.
    pub million_a_second: f64,
    /// Share of the requests that missed.
    pub miss_ratio: f64,
}

const SCRIPT: &str = r#"
import sys, time, libcachesim as lcs
name, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
params = lcs.ReaderInitParam()
params.ignore_obj_size = True
reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE, params)
cache = getattr(lcs, name)(size)
n = reader.get_num_of_req()
start = time.process_time()
miss, _ = cache.process_trace(reader)
spent = time.process_time() - start
print(n / spent / 1e6, miss)
"#;

/// What libCacheSim calls `policy`, if it has it.
fn name_of(policy: &str) -> Option<&'static str> {
    match policy {
        "lru" => Some("LRU"),
        "clock" => Some("Clock"),
        "sieve" => Some("Sieve"),
        "s3fifo" => Some("S3FIFO"),
        "arc" => Some("ARC"),
        "lirs" => Some("LIRS"),
        _ => None,
    }
}

/// Runs the trace through libCacheSim's policy of that name; none if it has none.
pub fn run(python: &Path, policy: &str, trace: &Path, cache: u32) -> Result<Option<Outcome>, String> {
    let Some(name) = name_of(policy) else { return Ok(None) };
    let output = Command::new(python)
        .args(["-c", SCRIPT, name])
        .arg(trace)
        .arg(cache.to_string())
        .output()
        .map_err(|error| format!("{}: {error}", python.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [.., million_a_second, miss_ratio] => Ok(Some(Outcome { million_a_second, miss_ratio })),
        _ => Err(format!("libCacheSim said: {text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}
