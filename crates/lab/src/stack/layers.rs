//! A stack as boxes, from what asks down to the media: what a page draws of a configuration.

use super::file::{DeviceKeys, StackFile};
use crate::page::escaped;
use crate::replay::{RunConfig, RunReport};
use bimetal_base::units::show_size;
use serde::{Deserialize, Serialize};

/// Layers from above to below; boxes of a layer stand side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layers(Vec<Vec<(String, String)>>);

impl Layers {
    /// Of boxes that are known: what each is, and which.
    pub fn of(layers: &[&[(&str, &str)]]) -> Layers {
        let own = |(what, which): &(&str, &str)| (what.to_string(), which.to_string());
        Layers(layers.iter().map(|layer| layer.iter().map(own).collect()).collect())
    }

    /// Of a run, with what it found by default.
    pub fn of_run(run: &RunConfig) -> Layers {
        let sized = |what: &Option<String>, bytes: Option<u64>| {
            let size = bytes.map_or_else(String::new, |bytes| format!(", {}", show_size(bytes)));
            what.as_ref().map(|what| format!("{what}{size}"))
        };
        let device = sized(&Some(run.device.clone()), run.device_bytes);
        let layers = [
            ("trace", Some(run.trace.clone())),
            ("page cache", sized(&run.cache, run.cache_bytes)),
            ("non-volatile write cache", sized(&run.nvram, run.nvram_bytes)),
            ("translation layer", run.ftl.clone()),
            ("device", device),
        ];
        let there = layers.into_iter().filter_map(|(what, which)| Some(vec![(what.to_string(), which?)]));
        Layers(there.collect())
    }

    /// Of several runs that differ in what some layers are: of each layer what it was, and its sizes.
    pub fn of_runs(runs: &[RunReport]) -> Layers {
        let mut all: Vec<(String, [Vec<String>; 2])> = Vec::new();
        for (what, which) in runs.iter().flat_map(|run| Layers::of_run(&run.config).0).flatten() {
            let (which, size) = which.rsplit_once(", ").unwrap_or((&which, ""));
            if !all.iter().any(|(known, _)| *known == what) {
                all.push((what.clone(), Default::default()));
            }
            for (_, parts) in all.iter_mut().filter(|(known, _)| *known == what) {
                for (known, new) in parts.iter_mut().zip([which, size]) {
                    if !new.is_empty() && !known.iter().any(|known| known == new) {
                        known.push(new.to_string());
                    }
                }
            }
        }
        let joined = |parts: [Vec<String>; 2]| {
            let told = parts.map(|part| part.join("; "));
            if told[1].is_empty() { told[0].clone() } else { told.join(" · ") }
        };
        Layers(all.into_iter().map(|(what, parts)| vec![(what, joined(parts))]).collect())
    }

    /// Of a stack file.
    pub fn of_file(file: &StackFile) -> Layers {
        let named = |what: &str, which: Option<String>| which.map(|which| (what.to_string(), which));
        let media = |what: &str, device: &DeviceKeys| {
            let profile = device.profile.clone().filter(|profile| profile != super::NONE);
            let layer = device.ftl.as_ref().map(|ftl| ("translation layer".to_string(), ftl.to_string()));
            (layer, named(what, profile))
        };
        let trace = file.trace.file.clone().or(file.trace.generator.as_ref().map(ToString::to_string));
        let cache = file.cache.as_ref().and_then(|cache| serde_json::to_value(cache).ok());
        let nvram = file.nvram.as_ref().and_then(|nvram| serde_json::to_value(nvram).ok());
        let fs = file.fs.as_ref().and_then(|fs| serde_json::to_value(fs).ok());
        let halves =
            [media("device", &file.device), media("SSD half", &file.ssd), media("disk half", &file.disk)];
        let (layers, devices): (Vec<_>, Vec<_>) = halves.into_iter().unzip();
        let rows = [
            vec![named("trace", trace)],
            vec![named("file system", fs.as_ref().map(plain))],
            vec![named("page cache", cache.as_ref().map(plain))],
            vec![named("non-volatile memory", nvram.as_ref().map(plain))],
            layers,
            devices,
        ];
        let there = rows.into_iter().map(|row| row.into_iter().flatten().collect::<Vec<_>>());
        Layers(there.filter(|row| !row.is_empty()).collect())
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As HTML.
    pub fn html(&self) -> String {
        let one = |(what, which): &(String, String)| {
            format!("<span><b>{}</b>{}</span>", escaped(what), escaped(which))
        };
        let layer =
            |boxes: &Vec<(String, String)>| format!("<li>{}</li>", boxes.iter().map(one).collect::<String>());
        format!("<ol class=\"stack\">{}</ol>", self.0.iter().map(layer).collect::<String>())
    }
}

/// The keys of a table that say something, as people write them.
fn plain(table: &serde_json::Value) -> String {
    let serde_json::Value::Object(keys) = table else {
        return table.as_str().map_or_else(|| table.to_string(), str::to_string);
    };
    let told = keys.iter().filter(|(_, value)| !value.is_null());
    told.map(|(key, value)| format!("{key} {}", plain(value))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_drawn_from_its_trace_down_to_its_device_without_what_is_not_there() {
        let run = RunConfig {
            trace: "gen:<x>".into(),
            cache: Some("lru".into()),
            cache_bytes: Some(4 << 20),
            device: "slc-4k".into(),
            ..RunConfig::default()
        };
        let html = Layers::of_run(&run).html();
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}: {html}"));
        assert!(at("gen:&lt;x&gt;") < at("lru, 4.0 MiB") && at("lru") < at("slc-4k"));
        assert!(!html.contains("translation layer") && html.matches("<li>").count() == 3, "{html}");
    }

    #[test]
    fn runs_that_differ_in_a_layer_are_drawn_once_with_all_that_it_was() {
        let run = |policy: &str, bytes| RunReport {
            config: RunConfig {
                trace: "t".into(),
                cache: Some(policy.into()),
                cache_bytes: Some(bytes),
                device: "slc-4k".into(),
                ..RunConfig::default()
            },
            ..RunReport::default()
        };
        let runs = [run("lru", 1 << 20), run("fab", 1 << 20), run("lru", 2 << 20), run("fab", 2 << 20)];
        let html = Layers::of_runs(&runs).html();
        assert!(html.contains("</b>lru; fab · 1.0 MiB; 2.0 MiB</span>"), "{html}");
        assert_eq!(html.matches("slc-4k").count(), 1);
    }
}
