//! What of an experiment is drawn, as data: a paper's figure again, ours beside what the paper's text says.
//!
//! A plot names figures by patterns: `{group}`, `{series}` and `{x}` stand for a part of the name without `/`, `{}` for one that
//! does not matter. Where a pattern has no `{series}` (or no `{group}`), what is written in it behind the last hole (or all of
//! it) is the name. The paper's numbers are those that its text states; where it only draws, ours stand alone.

mod beyond;
mod cmfs;
mod csw;
mod ftl;
mod nfh;
mod osd;

use super::Row;
use crate::chart::{Axis, Body, Chart, Curve, Group, Scale, Value};

/// A plot.
#[derive(Debug)]
pub(super) struct Plot {
    /// Ends the file's name, where an experiment has several.
    pub part: &'static str,
    /// What is shown.
    pub title: &'static str,
    /// The quantity, and its unit in brackets.
    pub quantity: &'static str,
    /// Of which figures.
    pub of: Of,
}

/// Which figures, and how they are drawn.
#[derive(Debug)]
pub(super) enum Of {
    /// Curves over `{x}`.
    Curves {
        patterns: &'static [&'static str],
        /// What `{x}` is, with its unit.
        x: &'static str,
        scale: Scale,
    },
    /// Bars in groups, beside the paper's figures where a row has one.
    Bars(&'static [&'static str]),
    /// Figures, or one over another, by name.
    Beside(&'static [Beside]),
    /// One figure over another in every `{group}`, from the least quotient to the largest.
    Ranked(&'static [(&'static str, &'static str, &'static str)]),
}

/// A figure, or one over another, and what the paper's text says of it.
#[derive(Debug)]
pub(super) struct Beside {
    pub name: &'static str,
    pub figure: &'static str,
    pub over: Option<&'static str>,
    pub paper: Option<f64>,
}

/// A quotient beside the paper's.
pub(super) const fn quotient(
    name: &'static str,
    figure: &'static str,
    over: &'static str,
    paper: Option<f64>,
) -> Beside {
    Beside { name, figure, over: Some(over), paper }
}

const fn bars(
    part: &'static str,
    title: &'static str,
    quantity: &'static str,
    patterns: &'static [&'static str],
) -> Plot {
    Plot { part, title, quantity, of: Of::Bars(patterns) }
}

const fn beside(
    part: &'static str,
    title: &'static str,
    quantity: &'static str,
    all: &'static [Beside],
) -> Plot {
    Plot { part, title, quantity, of: Of::Beside(all) }
}

/// The plots of an experiment.
type Plots = (&'static str, &'static [Plot]);

/// Those of all experiments.
const PLOTS: [&[Plots]; 6] = [nfh::PLOTS, cmfs::PLOTS, osd::PLOTS, ftl::PLOTS, csw::PLOTS, beyond::PLOTS];

/// What is drawn of an experiment.
pub(super) fn plots(id: &str) -> &'static [Plot] {
    let all = PLOTS.iter().flat_map(|plots| plots.iter());
    all.filter(|(of, _)| *of == id).map(|(_, plots)| *plots).next().unwrap_or_default()
}

/// The charts of an experiment that its rows suffice for.
pub(super) fn charts(id: &str, rows: &[Row]) -> Vec<Chart> {
    plots(id).iter().filter_map(|plot| plot.chart(rows)).collect()
}

impl Plot {
    /// The chart of these rows; none where they have nothing of it.
    fn chart(&self, rows: &[Row]) -> Option<Chart> {
        let (body, x) = match &self.of {
            Of::Curves { patterns, x, scale } => (curves(patterns, rows)?, Axis::scaled(*x, *scale)),
            Of::Bars(patterns) => (grouped(patterns, rows)?, Axis::default()),
            Of::Beside(all) => (named(all, rows)?, Axis::default()),
            Of::Ranked(all) => (ranked(all, rows)?, Axis::linear("settings, in order (%)")),
        };
        let scale = Scale::for_values(values(&body).into_iter());
        let quantity = Axis::scaled(self.quantity, scale);
        let (x, y) = match body {
            Body::Curves { .. } => (x, quantity),
            _ => (quantity, Axis::default()),
        };
        let part = if self.part.is_empty() { String::new() } else { format!("-{}", self.part) };
        Some(Chart { part, title: self.title.into(), x, y, body })
    }
}

/// All values of a body, the paper's among them.
fn values(body: &Body) -> Vec<f64> {
    match body {
        Body::Curves { curves, paper } => {
            let ours = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, value)| value.mean));
            ours.chain(paper.iter().map(|(_, y)| *y)).collect()
        }
        Body::Bars { groups, .. } => {
            let bars = groups.iter().flat_map(|group| group.bars.iter().flatten());
            bars.flat_map(|(value, paper)| [value.mean, paper.unwrap_or(value.mean)]).collect()
        }
        Body::Dots(_) | Body::Cells(_) | Body::Maps(_) => Vec::new(),
    }
}

fn value(row: &Row) -> Value {
    Value { mean: row.ours, least: row.least, most: row.most }
}

/// What stands in a name for the holes of a pattern.
#[derive(Debug, Default, PartialEq)]
struct Fit<'n> {
    group: Option<&'n str>,
    series: Option<&'n str>,
    x: Option<f64>,
}

/// Whether a name is of a pattern, and what it has in its holes.
fn fit<'n>(pattern: &str, name: &'n str) -> Option<Fit<'n>> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return (pattern == name).then(Fit::default);
    };
    let (hole, after) = rest.split_once('}')?;
    let name = name.strip_prefix(before)?;
    let next = after.split('{').next().unwrap_or_default();
    let end = if next.is_empty() { name.len() } else { name.find(next)? };
    let (inside, left) = name.split_at(end);
    if inside.is_empty() || inside.contains('/') || (hole != "x" && inside.contains('@')) {
        return None;
    }
    let found = fit(after, left)?;
    Some(match hole {
        "group" => Fit { group: Some(inside), ..found },
        "series" => Fit { series: Some(inside), ..found },
        "x" => Fit { x: Some(inside.parse().ok()?), ..found },
        _ => found,
    })
}

/// What a pattern without a hole for a name is called.
fn written(pattern: &str) -> &str {
    let last = pattern.rsplit('}').next().unwrap_or(pattern);
    let name = if last.is_empty() { pattern.split('{').next().unwrap_or(pattern) } else { last };
    name.trim_matches(['/', ' ', '@', ','])
}

/// The place of a name among those known, which it joins.
fn place(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_string());
        names.len() - 1
    })
}

fn curves(patterns: &[&str], rows: &[Row]) -> Option<Body> {
    let (mut names, mut curves, mut paper) = (Vec::new(), Vec::<Curve>::new(), Vec::new());
    for pattern in patterns {
        for (row, fit) in rows.iter().filter_map(|row| Some((row, fit(pattern, &row.name)?))) {
            let Some(x) = fit.x else { continue };
            let at = place(&mut names, fit.series.unwrap_or(written(pattern.split('{').next()?)));
            if at == curves.len() {
                curves.push(Curve { name: names[at].clone(), points: Vec::new() });
            }
            curves[at].points.push((x, value(row)));
            paper.extend(row.paper.map(|paper| (x, paper)));
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves.iter().any(|curve| curve.points.len() > 1).then_some(Body::Curves { curves, paper })
}

fn grouped(patterns: &[&str], rows: &[Row]) -> Option<Body> {
    let (mut series, mut names, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for pattern in patterns {
        for (row, fit) in rows.iter().filter_map(|row| Some((row, fit(pattern, &row.name)?))) {
            let own = written(pattern);
            let (of, group) = match (fit.series, fit.group) {
                (None, None) => ("", own),
                (series, group) => (series.unwrap_or(own), group.unwrap_or(own)),
            };
            found.push((place(&mut names, group), place(&mut series, of), (value(row), row.paper)));
        }
    }
    // One thing a group needs no name of its own.
    if series.len() == 1 && patterns.iter().all(|pattern| !pattern.contains("{series}")) {
        series = vec![String::new()];
    }
    let mut groups: Vec<Group> =
        names.into_iter().map(|name| Group { name, bars: vec![None; series.len()] }).collect();
    for (group, series, bar) in found {
        groups[group].bars[series] = Some(bar);
    }
    (!groups.is_empty()).then_some(Body::Bars { series, groups })
}

fn named(all: &[Beside], rows: &[Row]) -> Option<Body> {
    let row = |name: &str| rows.iter().find(|row| row.name == name);
    let one = |wanted: &Beside| {
        let value = match (value(row(wanted.figure)?), wanted.over) {
            (figure, None) => figure,
            // Seeds are drawn apart, so that only means are one over the other.
            (figure, Some(over)) => Value::from(figure.mean / row(over)?.ours),
        };
        Some(Group { name: wanted.name.into(), bars: vec![Some((value, wanted.paper))] })
    };
    let groups: Vec<Group> = all.iter().filter_map(one).collect();
    (!groups.is_empty()).then(|| Body::Bars { series: vec![String::new()], groups })
}

fn ranked(all: &[(&str, &str, &str)], rows: &[Row]) -> Option<Body> {
    let curve = |(name, of, over): &(&str, &str, &str)| {
        let group = |pattern: &str, row: &Row| fit(pattern, &row.name)?.group.map(str::to_string);
        let quotient = |row: &Row| {
            let group = group(of, row)?;
            let below = rows
                .iter()
                .find(|row| self::fit(over, &row.name).is_some_and(|fit| fit.group == Some(&group)))?;
            (below.ours > 0.0).then(|| row.ours / below.ours)
        };
        let mut quotients: Vec<f64> = rows.iter().filter_map(quotient).collect();
        quotients.sort_by(f64::total_cmp);
        let last = quotients.len().saturating_sub(1).max(1) as f64;
        let point = |(at, value): (usize, f64)| (100.0 * at as f64 / last, value.into());
        Curve { name: (*name).into(), points: quotients.into_iter().enumerate().map(point).collect() }
    };
    let curves: Vec<Curve> = all.iter().map(curve).filter(|curve| !curve.points.is_empty()).collect();
    (!curves.is_empty()).then(|| Body::Curves { curves, paper: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::claims::Paper;
    use super::super::{CLAIMS, EXPERIMENTS};
    use super::*;

    fn row(name: &str, ours: f64, paper: Option<f64>) -> Row {
        Row { name: name.into(), unit: "".into(), paper, ours, least: ours, most: ours, seeds: 1 }
    }

    #[test]
    fn names_fit_patterns_by_their_holes() {
        let fits = |pattern, name| fit(pattern, name);
        let found = fits("w, {group}/{series}/erases", "w, bast at 4 MiB/lru/erases").unwrap();
        assert_eq!((found.group, found.series), (Some("bast at 4 MiB"), Some("lru")));
        assert_eq!(fits("{series}/mount@{x}", "YAFFS2/mount@90").unwrap().x, Some(90.0));
        assert_eq!(fits("{}, {x} KB/{series}", "above 16 KB, 64 KB/rice").unwrap().series, Some("rice"));
        for (pattern, name) in [
            ("{series}/erases", "a/b/erases"),
            ("{series}/mount", "a/mount@3"),
            ("{series}/erases", "a/copies"),
            ("{series}/mount@{x}", "a/mount@high"),
        ] {
            assert_eq!(fits(pattern, name), None, "{pattern} {name}");
        }
        assert_eq!(
            ["{group}/mount, clean", "coding@{x}", "{series}/to metadata"].map(written),
            ["mount, clean", "coding", "to metadata"]
        );
    }

    #[test]
    fn rows_become_groups_of_series_and_what_is_missing_stays_out() {
        let rows = [
            row("a/lru/erases", 1.0, None),
            row("a/fab/erases", 2.0, Some(3.0)),
            row("b/fab/erases", 4.0, None),
        ];
        let Some(Body::Bars { series, groups }) = grouped(&["{group}/{series}/erases"], &rows) else {
            panic!()
        };
        assert_eq!(series, ["lru", "fab"]);
        assert_eq!(groups[1].bars[0], None);
        assert_eq!(groups[0].bars[1], Some((2.0.into(), Some(3.0))));
        assert!(grouped(&["{group}/{series}/copies"], &rows).is_none());
    }

    #[test]
    fn quotients_stand_beside_the_papers_and_in_order() {
        let rows = [
            row("a/tide/erases", 1.0, None),
            row("a/lru/erases", 4.0, None),
            row("b/tide/erases", 1.0, None),
            row("b/lru/erases", 8.0, None),
        ];
        let all = [
            quotient("of a", "a/lru/erases", "a/tide/erases", Some(3.0)),
            quotient("none", "c", "a/tide/erases", None),
        ];
        let Some(Body::Bars { groups, .. }) = named(&all, &rows) else { panic!() };
        assert_eq!((groups.len(), groups[0].bars[0]), (1, Some((4.0.into(), Some(3.0)))));
        let Some(Body::Curves { curves, .. }) =
            ranked(&[("erases", "{group}/tide/erases", "{group}/lru/erases")], &rows)
        else {
            panic!()
        };
        assert_eq!(curves[0].points, [(0.0, 0.125.into()), (100.0, 0.25.into())]);
    }

    #[test]
    fn every_experiment_draws_what_it_found() {
        for experiment in &*EXPERIMENTS {
            let id = experiment.id;
            assert!(!plots(id).is_empty(), "{id}");
            let mut parts: Vec<_> = plots(id).iter().map(|plot| plot.part).collect();
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len(), plots(id).len(), "{id}: two of one name");
            // A quantity with its unit, or a plain count.
            assert!(plots(id).iter().all(|plot| plot.title.len() > 10 && !plot.quantity.is_empty()), "{id}");
        }
        let of_none: Vec<_> = PLOTS
            .iter()
            .flat_map(|plots| plots.iter())
            .filter(|(id, _)| EXPERIMENTS.iter().all(|e| e.id != *id))
            .collect();
        assert!(of_none.is_empty(), "{of_none:?}");
        for claim in
            CLAIMS.iter().filter(|claim| claim.paper != Paper::Own && claim.figure.contains("figure"))
        {
            // What the paper measured of a page cache is not to be measured here.
            assert!(!plots(claim.id).is_empty() || claim.id == "nfh-fig9", "{}", claim.id);
        }
    }

    #[test]
    fn every_plot_is_of_figures_that_were_recorded_or_says_none() {
        let recorded = super::super::claim_table::recorded_figures().unwrap();
        let mut drawn = 0;
        for (id, measured) in &recorded {
            let found = super::super::Found { seeds: vec![(1, measured.clone())] };
            for chart in charts(id, &found.rows()) {
                assert!(crate::chart::svg(&chart).is_ok_and(|svg| svg.contains("<text")), "{id}");
                drawn += 1;
            }
        }
        assert!(drawn > 50, "{drawn}");
    }
}
