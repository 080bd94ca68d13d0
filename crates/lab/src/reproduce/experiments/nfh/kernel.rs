//! What a kernel's file systems made of a program, played on a device: recorded below each, from mount to unmount.
//!
//! A recording of several passes is told apart where the reads begin: its first part is played, then all of it, and the
//! difference is the second one's.

use super::super::super::ExperimentContext;
use super::bed::SSD;
use bimetal_base::Result;
use bimetal_trace::Op;

/// The paper's peers.
pub(super) const PEERS: [&str; 2] = ["ext2", "xfs"];

/// Where a peer's file system is.
#[derive(Clone, Copy)]
pub(super) enum On {
    /// On a disk of this profile.
    Disk(&'static str),
    /// On the SSD half's profile.
    Ssd,
}

impl On {
    /// As figures name it.
    pub fn name(self) -> &'static str {
        match self {
            On::Disk(_) => "on the disk",
            On::Ssd => "on the SSD",
        }
    }
}

/// Nanoseconds that a recording takes, or its first `requests`.
pub(super) fn took(setting: &ExperimentContext, name: &str, on: On, requests: Option<u64>) -> Result<u64> {
    let path = setting.trace_path(&format!("block/{name}.dev.csv.zst"))?;
    // Data that is read lay there before: no flash answers without being read.
    let device = match on {
        On::Disk(profile) => format!("--device {profile}"),
        On::Ssd => format!("--device {SSD} --precondition fill"),
    };
    let limit = requests.map_or_else(String::new, |requests| format!("--requests {requests}"));
    let runs = setting.replay(&format!("{} {device} --no-drain --jobs 1 {limit}", path.display()))?;
    Ok(runs.iter().map(|run| run.sim_time_ns).sum())
}

/// Nanoseconds of the two passes of a recording, of which the second one reads.
pub(super) fn two_passes(setting: &ExperimentContext, name: &str, on: On, reads: f64) -> Result<[u64; 2]> {
    let first = reads_begin(setting, name, reads)?;
    let both = took(setting, name, on, None)?;
    let alone = took(setting, name, on, Some(first))?;
    Ok([alone, both.saturating_sub(alone)])
}

/// How many requests to look at.
const WINDOW: usize = 400;
/// Before so many flushes nothing is told apart: mounting reads, too.
const FLUSHES_MIN: usize = 4096;

/// The first request from which on a part of the requests reads.
fn reads_begin(setting: &ExperimentContext, name: &str, reads: f64) -> Result<u64> {
    let source = setting.trace(&format!("block/{name}.dev.csv.zst"))?;
    let ops = source.open()?.map(|record| record.map(|record| record.op)).collect::<Result<Vec<Op>>>()?;
    Ok(split(&ops, reads) as u64)
}

fn split(ops: &[Op], reads: f64) -> usize {
    let mut flushes = 0;
    for (at, op) in ops.iter().enumerate() {
        flushes += usize::from(*op == Op::Flush);
        if *op == Op::Read && flushes >= FLUSHES_MIN {
            let ahead = &ops[at..ops.len().min(at + WINDOW)];
            let share = ahead.iter().filter(|op| **op == Op::Read).count() as f64 / ahead.len() as f64;
            if share >= reads {
                return at;
            }
        }
    }
    ops.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_told_apart_where_many_reads_begin() {
        let mut ops = vec![Op::Read; 20];
        (0..5000).for_each(|_| ops.extend([Op::Write, Op::Flush]));
        ops[9000] = Op::Read;
        let from = ops.len();
        (0..500).for_each(|_| ops.extend([Op::Read, Op::Write, Op::Write]));
        assert_eq!(split(&ops, 0.2), from);
        assert_eq!(split(&ops, 0.9), ops.len());
    }
}
