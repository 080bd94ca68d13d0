//! The object-flash paper, figure 2: segments cleaned and bytes copied under three placements, on a read-heavy
//! and a write-heavy trace of system calls, with a fourth placement of ours beside them.
//!
//! The traces are recorded from programs on a real kernel (the paper's, LASR, are not to be had). They are
//! turned into object requests ([`ObjectTrace`]) and run pass after pass on a store, whose flash is as large as
//! the utilisation says, until what is cleaned a pass no longer changes; then everything is counted a pass, and the mean taken over three
//! draws of what changes between passes.
//! The paper gives neither utilisation nor segment size: all of several are shown.
//!
//! What is claimed, and judged over all utilisations and segment sizes: *split* cleans up to 9 % fewer segments and
//! copies up to 28 % fewer bytes than *combined* on the read-heavy trace, *split+atime* cleans up to 23 %
//! fewer; on the write-heavy one neither loses. Of ours: that it cleans no more segments and copies no more
//! bytes than *split+atime* anywhere.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::objects::{Measured, Setup, measure};
use crate::replay::parallel::run_all;
use crate::replay::picture::{Bars, save};
use bimetal_base::Result;
use bimetal_media::nand::NandProfile;
use bimetal_media::profile;
use bimetal_osd_core::Cleaning;
use bimetal_trace::objects::ObjectTrace;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Figure 2a.
pub(super) const READS: Experiment = Experiment {
    id: "osd-fig2a",
    figure: "002, figure 2(a)",
    about: "cleaning of an object store, read-heavy trace, by placement",
    seed: 1,
    run: |setting| run(setting, "syscall/readheavy.csv.zst", true),
};

/// Figure 2b.
pub(super) const WRITES: Experiment = Experiment {
    id: "osd-fig2b",
    figure: "002, figure 2(b)",
    about: "cleaning of an object store, write-heavy trace, by placement",
    seed: 1,
    run: |setting| run(setting, "syscall/writeheavy.csv.zst", false),
};

const PLACEMENTS: [&str; 4] = ["combined", "split", "split-atime", "lifetime"];
const UTILISATIONS: [f64; 3] = [0.7, 0.8, 0.9];
/// Erase blocks of a segment.
const SEGMENTS: [u32; 3] = [1, 2, 4];
const PART: &str = "slc-4k";
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// The paper's changes against combined, percent: segments cleaned by split and by split+atime, bytes copied
/// by split.
const PAPER: [(&str, bool, f64); 3] =
    [("split", true, -9.0), ("split-atime", true, -23.0), ("split", false, -28.0)];
/// What differs by less is no loss.
const ALIKE: f64 = 1.0;

/// Draws of the turnover between passes: what is shown is their mean.
const DRAWS: u64 = 3;

/// The four placements on one flash.
struct Group {
    utilisation: f64,
    segment_blocks: u32,
    /// Of each placement, with each draw.
    measured: Vec<Vec<Measured>>,
}

impl Group {
    /// What a placement cleans (or copies) a pass, in percent more or less than `other`.
    fn change(&self, placement: &str, other: &str, segments: bool) -> f64 {
        let value = |name: &str| {
            let index = PLACEMENTS.iter().position(|known| *known == name).unwrap_or(0);
            let a_pass = |Measured { counts, passes, .. }: &Measured| {
                let all = if segments { counts.segments_cleaned } else { counts.bytes_copied() };
                all as f64 / f64::from(passes.1)
            };
            self.measured[index].iter().map(a_pass).sum::<f64>() / DRAWS as f64
        };
        match value(other) {
            0.0 if value(placement) == 0.0 => 0.0,
            0.0 => f64::INFINITY,
            base => (value(placement) / base - 1.0) * 100.0,
        }
    }

    fn name(&self) -> String {
        format!("{:.0} % full, segments of {} KiB", self.utilisation * 100.0, self.segment_blocks * 256)
    }
}

/// Measures everything, on all processors.
fn groups(setting: &ExperimentContext, trace: &ObjectTrace) -> Result<Vec<Group>> {
    let part: NandProfile = profile::load(PART)?;
    let shapes: Vec<(f64, u32)> =
        UTILISATIONS.iter().flat_map(|full| SEGMENTS.iter().map(|blocks| (*full, *blocks))).collect();
    let draws = DRAWS as usize;
    let one = |number: usize, _: &AtomicBool| {
        let (utilisation, segment_blocks) = shapes[number / draws / PLACEMENTS.len()];
        let setup = Setup {
            placement: PLACEMENTS[number / draws % PLACEMENTS.len()].to_string(),
            segment_blocks,
            utilisation,
            cleaning: Cleaning::CostBenefit,
            commit_every: COMMIT_EVERY,
        };
        measure(trace, &part, &setup, setting.seed + (number % draws) as u64)
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = run_all(shapes.len() * PLACEMENTS.len() * draws, jobs, one, || ())?;
    let mut draws = measured.chunks(draws).map(<[Measured]>::to_vec);
    let group = |(utilisation, segment_blocks)| {
        let measured = draws.by_ref().take(PLACEMENTS.len()).collect();
        Group { utilisation, segment_blocks, measured }
    };
    Ok(shapes.into_iter().map(group).collect())
}

/// The largest reduction that a placement brings over all groups, in percent (negative).
fn best(groups: &[Group], placement: &str, segments: bool) -> f64 {
    groups.iter().map(|group| group.change(placement, "combined", segments)).fold(f64::MAX, f64::min)
}

fn rows(groups: &[Group], reads: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (placement, segments, paper) in PAPER {
        let what = if segments { "segments cleaned" } else { "bytes copied" };
        let name = format!("{placement}: {what}, largest change");
        let ours = best(groups, placement, segments);
        rows.push(if reads { Row::compared(name, "%", paper, ours) } else { Row::ours(name, "%", ours) });
    }
    for group in groups {
        for placement in &PLACEMENTS[1..] {
            for (segments, what) in [(true, "segments cleaned"), (false, "bytes copied")] {
                let name = format!("{}: {placement}, {what}", group.name());
                rows.push(Row::ours(
                    name,
                    "% of combined",
                    100.0 + group.change(placement, "combined", segments),
                ));
            }
        }
    }
    rows
}

/// Groups in which ours does worse than split+atime, named.
fn losses(groups: &[Group]) -> Vec<String> {
    let loses = |group: &&Group| {
        [true, false].iter().any(|what| group.change("lifetime", "split-atime", *what) > 0.0)
    };
    groups.iter().filter(loses).map(Group::name).collect()
}

fn run(setting: &ExperimentContext, name: &str, reads: bool) -> Result<Findings> {
    let path = setting.traces_dir()?.join(name);
    let trace = ObjectTrace::of_calls(&path)?;
    let groups = groups(setting, &trace)?;
    draw(setting, &groups, reads)?;
    let (most_bytes, read_share) = trace.shape();
    let losses = losses(&groups);
    let claimed = if reads {
        PAPER.iter().all(|(placement, segments, paper)| best(&groups, placement, *segments) <= *paper)
    } else {
        let worst =
            |name: &str| groups.iter().map(|g| g.change(name, "combined", true)).fold(f64::MIN, f64::max);
        worst("split") <= ALIKE && worst("split-atime") <= ALIKE
    };
    let why = format!("{}; {}", verdict(&groups, reads, claimed), ours_in_words(&losses, groups.len()));
    let config = serde_json::json!({
        "trace": name, "read_share": read_share, "most_bytes": most_bytes, "part": PART,
        "cleaning": Cleaning::CostBenefit, "commit_every_s": COMMIT_EVERY.as_secs(),
        "measured": groups.iter().map(|group| serde_json::json!({
            "utilisation": group.utilisation, "segment_blocks": group.segment_blocks,
            "placements": PLACEMENTS.iter().zip(&group.measured).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    });
    Ok(Findings { rows: rows(&groups, reads), holds: claimed && losses.is_empty(), why, config })
}

fn verdict(groups: &[Group], reads: bool, claimed: bool) -> String {
    let holds = if claimed { "holds" } else { "does not hold as a whole" };
    let changes = PAPER.map(|(placement, segments, paper)| {
        let what = if segments { "segments" } else { "bytes" };
        format!("{placement} {what} {:+.1} % (paper {paper:+.0} %)", best(groups, placement, segments))
    });
    let claim = if reads { "the paper's reductions" } else { "little gain and no loss" };
    format!("claimed: {claim}: {holds}; largest changes: {}", changes.join(", "))
}

fn ours_in_words(losses: &[String], groups: usize) -> String {
    match losses {
        [] => format!("lifetime cleans and copies no more than split+atime in all {groups} settings"),
        some => format!(
            "lifetime does worse than split+atime in {} of {groups} settings: {}",
            some.len(),
            some.join("; ")
        ),
    }
}

fn draw(setting: &ExperimentContext, groups: &[Group], reads: bool) -> Result<()> {
    let Some(folder) = &setting.plots else { return Ok(()) };
    for (segments, what) in [(true, "segments"), (false, "bytes")] {
        let bar = |group: &Group, placement: &&str| {
            (format!("{}, {placement}", group.name()), 100.0 + group.change(placement, "combined", segments))
        };
        let bars =
            groups.iter().flat_map(|group| PLACEMENTS.iter().map(move |placement| bar(group, placement)));
        let title = if segments { "segments cleaned, % of combined" } else { "bytes copied, % of combined" };
        let file = format!("osd-fig2{}-{what}.svg", if reads { "a" } else { "b" });
        save(&folder.join(file), &Bars { title, bars: bars.collect() })?;
    }
    Ok(())
}
