//! What an experiment measured: figures by name, one set a seed.
//!
//! A name is a path, `layer and size/policy/erases`; the figures of a curve end in `@` and where on the abscissa they are,
//! `mount@50`. So a check names one figure, the same figure of every setting (`*/cswlru/erases`), or a curve (`mount`).

use crate::chart::Chart;
use crate::stack::layers::Layers;
use bimetal_base::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// Separates the name of a curve from a place on its abscissa.
const PLACE: char = '@';
/// Stands for any setting in what a check names.
const ANY: char = '*';

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What is measured.
    pub name: String,
    /// In what.
    pub unit: Cow<'static, str>,
    /// The paper's figure, where its text gives one (of the inventory: the recorded one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// Ours, or a peer's if the name says so.
    pub value: f64,
}

/// Everything measured with one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The figures, in the order they are shown in.
    pub figures: Vec<Figure>,
    /// With what they were found: presets, sizes, sources.
    #[serde(default)]
    pub config: Value,
    /// On what: the boxes of the stack.
    #[serde(default)]
    pub(super) stack: Layers,
    /// Why nothing was: a trace is not here, and what would help.
    #[serde(default)]
    pub(super) lacking: Option<String>,
    /// What its runs were, with all that they had by default, of the first seed alone.
    #[serde(default)]
    pub(super) runs: Vec<Value>,
    /// What is drawn of it that figures do not tell, of the first seed alone.
    #[serde(default)]
    pub(super) charts: Vec<Chart>,
}

impl Measured {
    /// Nothing yet, found with `config`.
    pub fn with(config: Value) -> Measured {
        Measured { config, ..Measured::default() }
    }

    /// The same, found on this stack.
    pub(super) fn on(self, stack: Layers) -> Measured {
        Measured { stack, ..self }
    }

    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, unit: impl Into<Cow<'static, str>>, value: f64) {
        self.figures.push(Figure { name: name.into(), unit: unit.into(), paper: None, value });
    }

    /// Adds a figure that the paper's text gives, too.
    pub fn beside(
        &mut self,
        name: impl Into<String>,
        unit: impl Into<Cow<'static, str>>,
        paper: f64,
        value: f64,
    ) {
        self.figures.push(Figure { name: name.into(), unit: unit.into(), paper: Some(paper), value });
    }

    /// Adds a point of the curve `name`.
    pub fn at(&mut self, name: &str, place: impl Into<f64>, unit: impl Into<Cow<'static, str>>, value: f64) {
        self.add(format!("{name}{PLACE}{}", place.into()), unit, value);
    }

    /// A figure by its whole name.
    ///
    /// # Errors
    /// It was not measured.
    pub fn get(&self, name: &str) -> Result<f64> {
        let found = self.figures.iter().find(|figure| figure.name == name);
        found.map(|figure| figure.value).ok_or_else(|| Error::invalid(format!("not measured: {name}")))
    }

    /// In what a figure is; of a pattern, the first one that fits.
    pub fn unit(&self, pattern: &str) -> &str {
        let fits = |figure: &&Figure| setting(pattern, &figure.name).is_some() || figure.name == pattern;
        self.figures.iter().find(fits).map_or("", |figure| figure.unit.as_ref())
    }

    /// The points of a curve, by their places.
    pub fn curve(&self, name: &str) -> Vec<(f64, f64)> {
        let place = |figure: &Figure| figure.name.strip_prefix(name)?.strip_prefix(PLACE)?.parse().ok();
        let mut points: Vec<(f64, f64)> =
            self.figures.iter().filter_map(|figure| Some((place(figure)?, figure.value))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// The settings for which there is a figure of this pattern, in the order measured; one without a name where the pattern
    /// has no `*`.
    pub fn settings(&self, pattern: &str) -> Vec<String> {
        if !pattern.contains(ANY) {
            return vec![String::new()];
        }
        let mut found: Vec<String> = Vec::new();
        for name in self.figures.iter().filter_map(|figure| setting(pattern, &figure.name)) {
            if !found.iter().any(|known| known == name) {
                found.push(name.to_string());
            }
        }
        found
    }
}

/// What the `*` of a pattern stands for in a name, if it fits.
fn setting<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    let (before, after) = pattern.split_once(ANY)?;
    name.strip_prefix(before)?.strip_suffix(after)
}

/// Whether a name is of a pattern, in any setting and at any place of a curve.
pub(super) fn is_of(pattern: &str, name: &str) -> bool {
    let curve = name.split_once(PLACE).map(|(curve, _)| curve);
    let fits = |name: &str| name == pattern || setting(pattern, name).is_some();
    fits(name) || curve.is_some_and(fits)
}

/// The name that a pattern is in a setting.
pub(super) fn named(pattern: &str, setting: &str) -> String {
    pattern.replace(ANY, setting)
}

/// Several seeds' figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Of each seed.
    pub seeds: Vec<(u64, Measured)>,
}

/// One figure over all seeds that have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What is measured.
    pub name: String,
    /// In what.
    pub unit: Cow<'static, str>,
    /// The paper's figure, where its text gives one.
    pub paper: Option<f64>,
    /// Ours, the mean.
    pub ours: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// How many seeds.
    pub seeds: usize,
}

impl Found {
    /// Every figure, in the order of the first seed that has it.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut known = rustc_hash::FxHashMap::default();
        for figure in self.seeds.iter().flat_map(|(_, measured)| &measured.figures) {
            let index = *known.entry(figure.name.as_str()).or_insert_with(|| {
                let Figure { name, unit, paper, .. } = figure.clone();
                rows.push(Row { name, unit, paper, ours: 0.0, least: f64::MAX, most: f64::MIN, seeds: 0 });
                rows.len() - 1
            });
            let row = &mut rows[index];
            row.ours += figure.value;
            row.least = row.least.min(figure.value);
            row.most = row.most.max(figure.value);
            row.seeds += 1;
        }
        rows.iter_mut().for_each(|row| row.ours /= row.seeds as f64);
        rows
    }

    /// A figure's mean over the seeds that have it.
    pub fn mean(&self, name: &str) -> Option<f64> {
        let values: Vec<f64> =
            self.seeds.iter().filter_map(|(_, measured)| measured.get(name).ok()).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

/// Up to four figures after the point, no zeros at the end.
pub(super) fn number(value: f64) -> String {
    let text = match value.abs() {
        0.0..1.0 => format!("{value:.4}"),
        1.0..100.0 => format!("{value:.2}"),
        100.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// A number and its unit.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    let space = if unit.is_empty() { "" } else { " " };
    format!("{}{space}{unit}", number(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(figures: &[(&str, f64)]) -> Measured {
        let mut measured = Measured::default();
        figures.iter().for_each(|(name, value)| measured.add(*name, "", *value));
        measured
    }

    #[test]
    fn figures_are_found_by_name_setting_and_place() {
        let mut measured = measured(&[("a/x/erases", 1.0), ("b 2/x/erases", 2.0), ("b 2/y/erases", 3.0)]);
        assert_eq!(measured.settings("*/x/erases"), ["a", "b 2"]);
        assert_eq!(measured.settings("x"), [""]);
        assert_eq!(measured.get(&named("*/y/erases", "b 2")).unwrap(), 3.0);
        assert!(measured.get("z").unwrap_err().to_string().contains("not measured: z"));
        measured.at("mount", 90, "ms", 9.0);
        measured.at("mount", 10, "ms", 1.0);
        assert_eq!(measured.curve("mount"), [(10.0, 1.0), (90.0, 9.0)]);
        assert_eq!(measured.unit("mount@10"), "ms");
    }

    #[test]
    fn rows_are_means_over_the_seeds_that_have_them() {
        let seeds = vec![(1, measured(&[("a", 1.0), ("b", 5.0)])), (2, measured(&[("a", 3.0)]))];
        let rows = Found { seeds }.rows();
        assert_eq!((rows[0].ours, rows[0].least, rows[0].most, rows[0].seeds), (2.0, 1.0, 3.0, 2));
        assert_eq!((rows[1].ours, rows[1].seeds), (5.0, 1));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [60.1, 0.25, 397500.0, 0.0, 1234.5678].map(number),
            ["60.1", "0.25", "397500", "0", "1235"]
        );
    }
}
