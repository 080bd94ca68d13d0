//! Tide, the page cache policy of our own, beside CSWLRU: erases and I/O time at equal memory on every recorded trace
//! and the generated workloads of the CSWLRU paper.
//!
//! Every trace runs at three cache sizes over three translation layers with both policies; block traces once with
//! their flushes and once without. A flush leaves a policy no choice: where every write is followed by one, the two
//! write the same. What is compared is the sum over the nine stacks; a trace on which CSWLRU is ahead in erases or in
//! time is named, and so is how many of the single stacks go to CSWLRU.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::replay::RunReport;
use bimetal_base::Result;
use std::io::IsTerminal;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "cache-tide",
    figure: "beyond 004",
    about: "our own page cache policy beside CSWLRU, on every trace (column paper: CSWLRU)",
    seed: 1,
    run,
};

const POLICIES: [&str; 2] = ["cswlru", "tide"];
const STACK: &str = "--cache cswlru,tide --cache-size 4MiB,16MiB,64MiB --ftl bast,fast,page --device slc-4k \
                     --precondition fill --fit compact";

/// Recorded below a file system: with their flushes, and without.
const BLOCK: [&str; 20] = [
    "block/ext2-rnd.dev.csv.zst",
    "block/ext2-rndre.dev.csv.zst",
    "block/ext2-seq64.dev.csv.zst",
    "block/ext2-pm20k.dev.csv.zst",
    "block/ext2-pm20kd.dev.csv.zst",
    "block/ext2-chunkf.dev.csv.zst",
    "block/ext2-bonnie.dev.csv.zst",
    "block/ext4-rnd.dev.csv.zst",
    "block/ext4-rndre.dev.csv.zst",
    "block/ext4-seq64.dev.csv.zst",
    "block/ext4-pm20k.dev.csv.zst",
    "block/ext4-pm20kd.dev.csv.zst",
    "block/ext4-chunkf.dev.csv.zst",
    "block/ext4-bonnie.dev.csv.zst",
    "block/xfs-pm20k.dev.csv.zst",
    "block/xfs-pm20kd.dev.csv.zst",
    "block/xfs-chunkf.dev.csv.zst",
    "p2p/G1.dev.csv.zst",
    "p2p/G4.dev.csv.zst",
    "fio/f60.dev.csv.zst",
];

/// Recorded above the page cache, or without flushes.
const FILES: [&str; 10] = [
    "p2p/G1.file.csv.zst",
    "p2p/G4.file.csv.zst",
    "p2p/G5.file.csv.zst",
    "fio/f0.file.csv.zst",
    "fio/f60.file.csv.zst",
    "fio/f100.file.csv.zst",
    "public/cloudPhysicsIO.csv.zst",
    "public/disksim-ascii.trace.zst",
    "public/ssdsim-financial1-10k.ascii",
    "public/tencent-cbs-sample.csv.bz2",
];

const GENERATED: [&str; 5] = [
    "gen:iometer:size=288MiB:requests=131072:random=60",
    "gen:iometer:size=288MiB:requests=131072:random=0",
    "gen:iometer:size=288MiB:requests=131072:random=100",
    "gen:p2p:size=268435456:piece=256KiB",
    "gen:zipf:pages=60000:requests=200000",
];

/// Both policies on one trace.
#[derive(Debug, Default)]
struct Outcome {
    trace: String,
    /// Erases, CSWLRU's and Tide's, over all stacks.
    erases: [f64; 2],
    /// Seconds.
    time: [f64; 2],
    /// Stacks on which Tide is ahead, level and behind.
    stacks: [usize; 3],
}

fn run(setting: &ExperimentContext) -> Result<Findings> {
    let generated = GENERATED.map(|recipe| (recipe.to_string(), setting.seeded(recipe), ""));
    let folder = setting.traces_dir()?.display();
    let recorded = |name: &&str| (name.to_string(), format!("{folder}/{name}"), "");
    let unflushed = |name: &str| (format!("{name}, no flushes"), format!("{folder}/{name}"), "--no-flush");
    let recorded = BLOCK.iter().chain(&FILES).map(recorded);
    let traces: Vec<_> = generated.into_iter().chain(recorded).chain(BLOCK.map(unflushed)).collect();
    let mut outcomes = Vec::with_capacity(traces.len());
    for (number, (name, trace, options)) in traces.iter().enumerate() {
        if std::io::stderr().is_terminal() {
            eprintln!("trace {} of {}: {name}", number + 1, traces.len());
        }
        outcomes.push(judge(name, &setting.replay(&format!("{trace} {STACK} {options}"))?));
    }
    let (holds, why) = verdict(&outcomes);
    let rows = outcomes.iter().flat_map(rows).collect();
    Ok(Findings { rows, holds, why, config: serde_json::json!({ "stacks": STACK }) })
}

fn judge(trace: &str, runs: &[RunReport]) -> Outcome {
    let mut outcome = Outcome { trace: trace.to_string(), ..Outcome::default() };
    let of = |policy: &'static str| {
        let is_its = move |run: &&RunReport| run.config.run.split([' ', ':']).next() == Some(policy);
        runs.iter().filter(is_its).map(|run| [run.erases.unwrap_or(0) as f64, run.sim_time_ns as f64 / 1e9])
    };
    for (theirs, ours) in of(POLICIES[0]).zip(of(POLICIES[1])) {
        for (at, [erases, time]) in [theirs, ours].into_iter().enumerate() {
            outcome.erases[at] += erases;
            outcome.time[at] += time;
        }
        let place = match ours.into_iter().zip(theirs).any(|(ours, theirs)| ours > theirs) {
            true => 2,
            false => usize::from(ours == theirs),
        };
        outcome.stacks[place] += 1;
    }
    outcome
}

fn rows(outcome: &Outcome) -> [Row; 2] {
    let ([their_erases, erases], [their_time, time]) = (outcome.erases, outcome.time);
    [
        Row::compared(format!("{}: erases", outcome.trace), "", their_erases, erases),
        Row::compared(format!("{}: time", outcome.trace), "s", their_time, time),
    ]
}

/// Whether Tide is nowhere behind, and how often it is ahead.
fn verdict(outcomes: &[Outcome]) -> (bool, String) {
    let is_behind = |o: &&Outcome| o.erases[1] > o.erases[0] || o.time[1] > o.time[0];
    let is_level = |o: &&Outcome| o.erases[1] == o.erases[0] && o.time[1] == o.time[0];
    let behind: Vec<&str> = outcomes.iter().filter(is_behind).map(|o| o.trace.as_str()).collect();
    let level = outcomes.iter().filter(is_level).count();
    let stacks: [usize; 3] = std::array::from_fn(|at| outcomes.iter().map(|o| o.stacks[at]).sum());
    let why = format!(
        "on {} of {} traces Tide erases no more and takes less time than CSWLRU, on {level} they are level, on {} it \
         is behind in one of the two{}{}; of the single stacks {} go to Tide, {} are level, {} go to CSWLRU in erases \
         or time",
        outcomes.len() - level - behind.len(),
        outcomes.len(),
        behind.len(),
        if behind.is_empty() { "" } else { ": " },
        behind.join(", "),
        stacks[0],
        stacks[1],
        stacks[2]
    );
    (behind.is_empty(), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generator_is_one() {
        let setting = ExperimentContext { seed: 1, traces: None, plots: None };
        for recipe in GENERATED {
            let replayed =
                setting.replay(&format!("{} --requests 100 --device none", setting.seeded(recipe)));
            assert!(replayed.is_ok_and(|runs| runs[0].requests == 100), "{recipe}");
        }
    }

    #[test]
    fn a_trace_goes_to_the_policy_that_is_ahead_in_both() {
        let setting = ExperimentContext { seed: 1, traces: None, plots: None };
        let line = "gen:iometer:size=8MiB:requests=3000:random=100 --cache cswlru,tide --cache-size 256KiB,1MiB --ftl bast \
                    --device slc-2k --device-size 10MiB --precondition fill";
        let outcome = judge("random", &setting.replay(line).unwrap());
        assert_eq!(outcome.stacks.iter().sum::<usize>(), 2);
        assert!(outcome.erases[0] > 0.0 && outcome.time[1] > 0.0, "{outcome:?}");
        let (holds, why) = verdict(&[Outcome { erases: [2.0, 3.0], ..Outcome::default() }]);
        assert!(!holds && why.contains("on 1 it is behind"), "{why}");
        assert!(verdict(&[Outcome::default()]).0);
    }
}
