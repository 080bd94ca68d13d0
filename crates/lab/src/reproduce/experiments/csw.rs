//! The CSWLRU paper, figures 10 to 13: page cache policies over an SSD under mixed, sequential and random
//! Iometer writes and a peer-to-peer download.
//!
//! Every policy of the registry over every translation layer of the registry, at two cache sizes. The
//! paper's plots have no numbers in its text; what is checked is its claim: under mixed, random and P2P
//! writes CSWLRU leads to the fewest erases of the policies it is compared with (LRU, CFLRU, CFDC, FAB),
//! and under sequential ones all are alike. A claim holds if it does so for every layer and size; the
//! reason names those where it does not.
//!
//! Scaled down from the paper's 9.1 GB SSD and caches of up to 512 MiB by 32, so that it takes minutes:
//! policies see the same ratio of cache to area. The flash is filled before, so that every write is an
//! overwrite.

use super::super::{Experiment, ExperimentContext, Findings, Row};
use crate::replay::RunReport;
use bimetal_base::Result;
use bimetal_cache::registry::POLICIES;
use bimetal_ftl::SCHEMES;

/// Figure 10.
pub(super) const MIXED: Experiment = Experiment {
    id: "csw-fig10",
    figure: "004, figure 10",
    about: "cache policies over an SSD, 60 % random 4 KiB writes",
    seed: 1,
    run: |setting| {
        compare(
            setting,
            &Workload { recipe: "gen:iometer:size=288MiB:requests=131072:random=60", alike: false },
        )
    },
};

/// Figure 11.
pub(super) const SEQUENTIAL: Experiment = Experiment {
    id: "csw-fig11",
    figure: "004, figure 11",
    about: "cache policies over an SSD, sequential 4 KiB writes",
    seed: 1,
    run: |setting| {
        compare(
            setting,
            &Workload { recipe: "gen:iometer:size=288MiB:requests=131072:random=0", alike: true },
        )
    },
};

/// Figure 12.
pub(super) const RANDOM: Experiment = Experiment {
    id: "csw-fig12",
    figure: "004, figure 12",
    about: "cache policies over an SSD, random 4 KiB writes",
    seed: 1,
    run: |setting| {
        compare(
            setting,
            &Workload { recipe: "gen:iometer:size=288MiB:requests=131072:random=100", alike: false },
        )
    },
};

/// Figure 13.
pub(super) const P2P: Experiment = Experiment {
    id: "csw-fig13",
    figure: "004, figure 13",
    about: "cache policies over an SSD, a peer-to-peer download",
    seed: 1,
    run: |setting| {
        compare(setting, &Workload { recipe: "gen:p2p:size=268435456:piece=256KiB", alike: false })
    },
};

/// The policy whose paper it is, and those it is compared with there.
const OURS: &str = "cswlru";
const COMPARED: [&str; 4] = ["lru", "cflru", "cfdc", "fab"];
const CACHES: &str = "4MiB,16MiB";
const DEVICE: &str = "--device slc-4k --precondition fill";
/// What the merges say when it loses.
const REASON: &str =
    "What erases less has gathered more pages of an erase block when it writes them (pages a merge).";
/// Erases that differ by less are alike.
const ALIKE: f64 = 0.02;

struct Workload {
    recipe: &'static str,
    /// The paper has all policies alike.
    alike: bool,
}

fn compare(setting: &ExperimentContext, workload: &Workload) -> Result<Findings> {
    let names = |names: Vec<&str>| names.join(",");
    let policies = names(POLICIES.iter().map(|entry| entry.name).collect());
    let schemes = names(SCHEMES.iter().map(|scheme| scheme.name).collect());
    let recipe = setting.seeded(workload.recipe);
    let line = format!("{recipe} --cache {policies} --cache-size {CACHES} --ftl {schemes} {DEVICE}");
    let runs = setting.replay(&line)?;
    let verdicts: Vec<_> = groups(&runs).into_iter().map(|group| verdict(&group, workload.alike)).collect();
    let failed: Vec<_> = verdicts.iter().filter(|(holds, _)| !holds).map(|(_, why)| why.as_str()).collect();
    let claim = match workload.alike {
        true => "all policies of the paper lead to as many erases",
        false => "CSWLRU leads to the fewest erases of the policies of the paper",
    };
    let all: Vec<_> = verdicts.iter().map(|(_, why)| why.as_str()).collect();
    let why = match failed.is_empty() {
        true => format!("{claim}. {}", all.join(" | ")),
        false => format!("claimed: {claim}. {REASON} Not so with {}", failed.join(" | ")),
    };
    let config = serde_json::json!({ "replay": line });
    Ok(Findings { rows: runs.iter().flat_map(rows).collect(), holds: failed.is_empty(), why, config })
}

fn rows(run: &RunReport) -> Vec<Row> {
    let row = |what: &str, unit, ours| Row::ours(format!("{}: {what}", run.config.run), unit, ours);
    let mut rows = vec![
        row("erases", "", run.erases.unwrap_or(0) as f64),
        row("pages written", "", run.pages_written as f64),
        row("time", "s", run.sim_time_ns as f64 / 1e9),
        row("hits", "%", run.hit_ratio.unwrap_or(0.0) * 100.0),
    ];
    if let Some(gathered) = gathered(run) {
        rows.push(row("full merges", "", run.merges.map_or(0, |merges| merges.full) as f64));
        rows.push(row("pages written a merge", "", gathered));
    }
    rows
}

/// Pages written for each merge: how much of an erase block a policy gathers before it writes.
fn gathered(run: &RunReport) -> Option<f64> {
    let merges = run.merges.map(|merges| merges.switch + merges.partial + merges.full)?;
    (merges > 0).then(|| run.pages_written as f64 / merges as f64)
}

/// The runs that differ in the policy alone.
fn groups(runs: &[RunReport]) -> Vec<Vec<&RunReport>> {
    let key = |run: &RunReport| (run.config.ftl.clone(), run.config.cache_bytes);
    let mut keys: Vec<_> = runs.iter().map(key).collect();
    keys.sort();
    keys.dedup();
    keys.iter().map(|wanted| runs.iter().filter(|run| key(run) == *wanted).collect()).collect()
}

/// Whether the claim holds in a group, and the figures it is judged by.
fn verdict(group: &[&RunReport], alike: bool) -> (bool, String) {
    let policy = |run: &RunReport| run.config.run.split([' ', ':']).next().unwrap_or_default().to_string();
    let find = |name: &str| group.iter().find(|run| policy(run) == name).copied();
    let erases = |name: &str| find(name).and_then(|run| run.erases).unwrap_or(0) as f64;
    let ours = erases(OURS);
    let fewer =
        |best: &'static str, name: &'static str| if erases(name) < erases(best) { name } else { best };
    let best = COMPARED.into_iter().reduce(fewer).unwrap_or(OURS);
    let most = COMPARED.iter().map(|name| erases(name)).fold(ours, f64::max);
    let place = group.iter().filter(|run| run.erases.unwrap_or(0) as f64 + 0.5 < ours).count() + 1;
    let holds = match alike {
        true => most <= ours.min(erases(best)) * (1.0 + ALIKE) + 1.0,
        false => ours <= erases(best),
    };
    let stack = group.first().map_or(String::new(), |run| {
        let size = run.config.cache_bytes.map(bimetal_base::units::show_size).unwrap_or_default();
        format!("{} at {size}", run.config.ftl.as_deref().unwrap_or_default())
    });
    let figures = |name: &str| match find(name).and_then(gathered) {
        Some(pages) => format!("{name} {} erases, {pages:.1} pages a merge", erases(name)),
        None => format!("{name} {} erases", erases(name)),
    };
    (holds, format!("{stack}: {} (place {place} of {}); {}", figures(OURS), group.len(), figures(best)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_of_the_paper_are_all_there() {
        for name in COMPARED.iter().chain([&OURS]) {
            assert!(POLICIES.iter().any(|entry| entry.name == *name), "{name}");
        }
    }

    #[test]
    fn the_download_is_replayed_as_a_whole() {
        let setting = ExperimentContext { seed: P2P.seed, traces: None, plots: None };
        let findings = (P2P.run)(&setting).unwrap();
        assert!(findings.rows.len() > 5 * 4 * CACHES.split(',').count(), "{} rows", findings.rows.len());
        assert!(findings.why.contains("CSWLRU leads to the fewest erases"), "{}", findings.why);
    }

    #[test]
    fn policies_are_compared_at_the_same_size_over_the_same_layer() {
        let setting = ExperimentContext { seed: 1, traces: None, plots: None };
        let line = "gen:iometer:size=8MiB:requests=3000 --cache lru,cswlru,fab,cfdc,cflru --cache-size 64KiB,256KiB \
                    --ftl page --device slc-2k --device-size 10MiB --precondition fill";
        let runs = setting.replay(line).unwrap();
        let groups = groups(&runs);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
        let (_, why) = verdict(&groups[0], false);
        assert!(why.starts_with("page at 64.0 KiB: cswlru ") && why.contains("of 5"), "{why}");
    }
}
