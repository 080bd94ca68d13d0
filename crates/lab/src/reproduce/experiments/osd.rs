//! The object-flash paper, figure 2: segments cleaned and bytes copied under three placements, on a read-heavy
//! and a write-heavy trace of system calls, with a fourth placement of ours beside them.
//!
//! The traces are recorded from programs on a real kernel (the paper's, LASR, are not to be had). They are
//! turned into object requests ([`ObjectTrace`]) and run pass after pass on a store, whose flash is as large as
//! the utilisation says, until what is cleaned a pass no longer changes; then everything is counted a pass. The seed draws what
//! changes between passes. The paper gives neither utilisation nor segment size: the long form has several of both.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::objects::{Measured as Passes, Setup, measure as run_passes};
use crate::replay::parallel::run_all;
use crate::stack::layers::Layers;
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
    about: "cleaning of an object store, read-heavy trace, by placement",
    seconds: 30.0,
    measure: |setting| measure(setting, "syscall/readheavy.csv.zst"),
};

/// Figure 2b.
pub(super) const WRITES: Experiment = Experiment {
    id: "osd-fig2b",
    about: "cleaning of an object store, write-heavy trace, by placement",
    seconds: 22.0,
    measure: |setting| measure(setting, "syscall/writeheavy.csv.zst"),
};

const PLACEMENTS: [&str; 4] = ["combined", "split", "split-atime", "lifetime"];
const UTILISATIONS: [f64; 3] = [0.7, 0.8, 0.9];
/// Erase blocks of a segment.
const SEGMENTS: [u32; 3] = [1, 2, 4];
/// Of the short form: where most is copied.
const SHORT: [(f64, u32); 1] = [(0.9, 4)];
const PART: &str = "slc-4k";
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// The placements on one flash, what each cleans and copies a pass.
struct Group {
    name: String,
    segment_bytes: f64,
    cleaned: [f64; PLACEMENTS.len()],
    copied: [f64; PLACEMENTS.len()],
}

/// Percent more or less; infinite where something is more than nothing.
fn change(value: f64, base: f64) -> f64 {
    match value == base {
        true => 0.0,
        false => (value / base - 1.0) * 100.0,
    }
}

/// Measures everything, on all processors.
fn groups(setting: &ExperimentContext, trace: &ObjectTrace) -> Result<Vec<Group>> {
    let part: NandProfile = profile::load(PART)?;
    let all = || UTILISATIONS.iter().flat_map(|full| SEGMENTS.iter().map(|blocks| (*full, *blocks)));
    let shapes: Vec<(f64, u32)> = if setting.full { all().collect() } else { SHORT.to_vec() };
    let one = |number: usize, _: &AtomicBool| {
        let (utilisation, segment_blocks) = shapes[number / PLACEMENTS.len()];
        let setup = Setup {
            placement: PLACEMENTS[number % PLACEMENTS.len()].to_string(),
            segment_blocks,
            utilisation,
            cleaning: Cleaning::CostBenefit,
            commit_every: COMMIT_EVERY,
        };
        run_passes(trace, &part, &setup, setting.seed)
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = run_all(shapes.len() * PLACEMENTS.len(), jobs, one, || ())?;
    let a_pass = |passes: &Passes, all: u64| all as f64 / f64::from(passes.passes.1);
    let group = |((utilisation, blocks), measured): (&(f64, u32), &[Passes])| Group {
        name: format!("{:.0} % full, segments of {} KiB", utilisation * 100.0, blocks * 256),
        segment_bytes: f64::from((blocks * 256) << 10),
        cleaned: std::array::from_fn(|at| a_pass(&measured[at], measured[at].counts.segments_cleaned)),
        copied: std::array::from_fn(|at| a_pass(&measured[at], measured[at].counts.bytes_copied())),
    };
    Ok(shapes.iter().zip(measured.chunks(PLACEMENTS.len())).map(group).collect())
}

fn measure(setting: &ExperimentContext, name: &str) -> Result<Measured> {
    let trace = ObjectTrace::of_calls(&setting.trace_path(name)?)?;
    let groups = groups(setting, &trace)?;
    let (most_bytes, read_share) = trace.shape();
    let mut measured = Measured::with(serde_json::json!({
        "trace": name, "read_share": read_share, "most_bytes": most_bytes, "part": PART,
        "cleaning": Cleaning::CostBenefit, "commit_every_s": COMMIT_EVERY.as_secs(),
    }))
    .on(Layers::of(&[
        &[("program", "recorded calls, as object requests")],
        &[("object store", "combined, split, split-atime or lifetime")],
        &[("NAND", PART)],
    ]));
    for group in &groups {
        for (at, placement) in PLACEMENTS.into_iter().enumerate() {
            let of = |what: &str| format!("{placement}/{what}, {}", group.name);
            measured.add(of("segments"), "a pass", group.cleaned[at]);
            measured.add(of("bytes"), "MB a pass", group.copied[at] / 1e6);
            if at > 0 {
                let against = |values: &[f64; PLACEMENTS.len()]| change(values[at], values[0]);
                measured.add(format!("{}/change", of("segments")), "%", against(&group.cleaned));
                measured.add(format!("{}/change", of("bytes")), "%", against(&group.copied));
            }
        }
    }
    // The largest reductions; of bytes where combined copies a segment a pass or more, since a part of nothing says nothing.
    for (at, placement) in PLACEMENTS.into_iter().enumerate().skip(1) {
        let best = |changes: Vec<f64>| changes.into_iter().fold(f64::INFINITY, f64::min);
        let cleaned = groups.iter().map(|group| change(group.cleaned[at], group.cleaned[0])).collect();
        let copying = groups.iter().filter(|group| group.copied[0] >= group.segment_bytes);
        let copied: Vec<f64> = copying.map(|group| change(group.copied[at], group.copied[0])).collect();
        measured.add(format!("{placement}/segments, best"), "%", best(cleaned));
        if !copied.is_empty() {
            measured.add(format!("{placement}/bytes, best"), "%", best(copied));
        }
    }
    Ok(measured)
}
