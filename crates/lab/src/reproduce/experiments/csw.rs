//! The CSWLRU paper, figures 10 to 13: page cache policies over an SSD under mixed, sequential and random
//! Iometer writes and a peer-to-peer download.
//!
//! Iometer's area and the caches are a 32nd of the paper's 9.1 GB SSD and its caches of up to 512 MiB, so that it takes minutes:
//! policies see the same ratio of cache to area. The download is the paper's, 739 MB, with the reads by which a client
//! checks each piece. Iometer's requests once only write, as the paper says of its own (*writes only*), and once half of them
//! read, since policies that prefer clean pages differ from LRU with reads alone. The flash is filled before, so that every
//! write is an overwrite.
//!
//! The short form has the paper's policies and [`Tide`](super::tide) on BAST, FAST and the page map; the long one every policy
//! on every layer of the registries.

use super::super::{Experiment, ExperimentContext, Measured};
use crate::replay::RunReport;
use crate::stack::layers::Layers;
use bimetal_base::Result;
use bimetal_base::units::show_size;
use bimetal_cache::registry::POLICIES;
use bimetal_ftl::SCHEMES;

/// Figure 10.
pub(super) const MIXED: Experiment = Experiment {
    id: "csw-fig10",
    about: "cache policies over an SSD, 60 % random 4 KiB requests",
    seconds: 6.0,
    measure: |setting| iometer(setting, 60),
};

/// Figure 11.
pub(super) const SEQUENTIAL: Experiment = Experiment {
    id: "csw-fig11",
    about: "cache policies over an SSD, sequential 4 KiB requests",
    seconds: 3.0,
    measure: |setting| iometer(setting, 0),
};

/// Figure 12.
pub(super) const RANDOM: Experiment = Experiment {
    id: "csw-fig12",
    about: "cache policies over an SSD, random 4 KiB requests",
    seconds: 8.0,
    measure: |setting| iometer(setting, 100),
};

/// Figure 13.
pub(super) const P2P: Experiment = Experiment {
    id: "csw-fig13",
    about: "cache policies over an SSD, a peer-to-peer download of 739 MB",
    seconds: 2.5,
    measure: download,
};

/// The policy whose paper it is, those it is compared with there, and ours.
const SHORT: &str = "cswlru,lru,cflru,cfdc,fab,tide";
/// Layers of the short form.
const LAYERS: &str = "bast,fast,page";
const DEVICE: &str = "--device slc-4k --precondition fill";
/// Percent of Iometer's requests that read.
const READS: [(&str, u32); 2] = [("writes only", 0), ("half reads", 50)];

fn iometer(setting: &ExperimentContext, random: u32) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut lines = Vec::new();
    for (name, reads) in READS {
        let recipe = format!("gen:iometer:size=288MiB:requests=131072:random={random}:read={reads}");
        lines.push(compare(setting, &mut measured, name, &setting.seeded(&recipe), "4MiB,16MiB")?);
    }
    measured.config = serde_json::json!({ "replay": lines });
    Ok(measured)
}

fn download(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::default();
    let caches = if setting.full { "16MiB,64MiB,256MiB" } else { "16MiB,64MiB" };
    let line = compare(setting, &mut measured, "download", &setting.seeded("gen:p2p"), caches)?;
    measured.config = serde_json::json!({ "replay": line });
    Ok(measured)
}

/// Replays a workload through every policy, size and layer, and adds what came of it; the line it is.
fn compare(
    setting: &ExperimentContext,
    measured: &mut Measured,
    name: &str,
    trace: &str,
    caches: &str,
) -> Result<String> {
    let names = |names: Vec<&str>| names.join(",");
    let (policies, layers) = match setting.full {
        true => (names(POLICIES.names().collect()), names(SCHEMES.names().collect())),
        false => (SHORT.to_string(), LAYERS.to_string()),
    };
    let line = format!("{trace} --cache {policies} --cache-size {caches} --ftl {layers} {DEVICE}");
    let runs = setting.replay(&line)?;
    runs.iter().for_each(|run| add(measured, name, run));
    measured.stack = Layers::of_runs(&runs);
    // Where erases fall and when merges are made: of the first run, CSWLRU's.
    if let Some(first) = runs.first().filter(|_| setting.first) {
        measured.charts.extend(first.charts_of(name));
    }
    Ok(line)
}

/// The figures of a run.
fn add(measured: &mut Measured, name: &str, run: &RunReport) {
    let first = |text: &str| text.split([' ', ':']).next().unwrap_or_default().to_string();
    let layer = run.config.ftl.as_deref().map(first).unwrap_or_default();
    let size = run.config.cache_bytes.map(show_size).unwrap_or_default();
    let of = format!("{name}, {layer} at {size}/{}", first(&run.config.run));
    measured.add(format!("{of}/page writes"), "", run.pages_written as f64);
    measured.add(format!("{of}/erases"), "", run.erases.unwrap_or(0) as f64);
    measured.add(format!("{of}/time"), "s", run.sim_time_ns as f64 / 1e9);
    measured.add(format!("{of}/hits"), "%", run.hit_ratio.unwrap_or(0.0) * 100.0);
    // A layer that merges nothing is no judge of merges.
    if let Some(merges) = run.merges.filter(|merges| merges.switch + merges.partial + merges.full > 0) {
        measured.add(format!("{of}/full merges"), "", merges.full as f64);
        let all = merges.switch + merges.partial + merges.full;
        measured.add(format!("{of}/pages a merge"), "", run.pages_written as f64 / all as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_and_layers_of_the_short_form_are_there() {
        SHORT.split(',').for_each(|name| assert!(POLICIES.find(name).is_ok(), "{name}"));
        LAYERS.split(',').for_each(|name| assert!(SCHEMES.find(name).is_ok(), "{name}"));
    }

    #[test]
    fn policies_are_compared_at_the_same_size_over_the_same_layer() {
        let setting = ExperimentContext::of_seed(1);
        let line = "gen:iometer:size=8MiB:requests=3000:read=50 --cache lru,cswlru --cache-size 64KiB,256KiB \
                    --ftl page,bast --device slc-2k --device-size 10MiB --precondition fill";
        let mut measured = Measured::default();
        setting.replay(line).unwrap().iter().for_each(|run| add(&mut measured, "small", run));
        let settings = measured.settings("*/cswlru/erases");
        assert_eq!(settings.len(), 4, "{settings:?}");
        assert_eq!(settings, measured.settings("*/lru/erases"));
        // Only BAST merges.
        assert_eq!(measured.settings("*/lru/full merges").len(), 2);
    }
}
