//! The one judge: a claim and what was measured, and what follows. What it says is made of measured figures.
//!
//! A check holds if it does for every seed and every setting it names; a claim if all its checks do. Parameters that were
//! searched until the claim's figures came out cannot do better than *holds only with fitted parameters*.

use super::claims::{Check, Claim, Parameters, Relation, Way};
use super::measured::{Found, Measured, named, number, quantity};
use bimetal_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// What is to be said of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It holds with parameters that were searched for it, and not with given ones.
    HoldsFitted,
    /// It does not hold.
    Fails,
    /// It cannot be tested here.
    NotTestable,
    /// There is no experiment of this id.
    Missing,
    /// There is one; it was not done.
    NotDone,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::HoldsFitted => "holds only with fitted parameters",
            Verdict::Fails => "fails",
            Verdict::NotTestable => "not testable here",
            Verdict::Missing => "missing",
            Verdict::NotDone => "not done",
        }
    }
}

/// A verdict and what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// From which figures it follows.
    pub why: String,
    /// Every check, under every set of parameters.
    pub checks: Vec<Checked>,
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// What the parameters' figures begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub way: String,
    /// What was checked.
    pub what: String,
    /// What is wanted.
    pub wanted: String,
    /// What was measured.
    pub got: String,
    /// How often it does not hold, of how many seeds and settings.
    pub failed: (usize, usize),
    /// It can be tested.
    pub testable: bool,
}

impl Checked {
    /// It does hold.
    pub fn holds(&self) -> bool {
        self.failed.0 == 0
    }

    fn told(&self) -> String {
        let Checked { what, wanted, got, failed: (failed, all), .. } = self;
        match (self.testable, *failed) {
            (false, _) => format!("{what}: {got}"),
            (_, 0) => format!("{what}: {got} ({wanted})"),
            (_, failed) if *all > 1 => {
                format!("{what}: {got} (wanted: {wanted}; not so in {failed} of {all})")
            }
            _ => format!("{what}: {got} (wanted: {wanted})"),
        }
    }
}

/// Of one seed in one setting.
struct Outcome {
    /// The figure it is decided by.
    decisive: f64,
    /// How far beyond what is allowed; not above 0 if it holds.
    excess: f64,
    /// The figures behind it, where there are several.
    detail: String,
    setting: String,
    seed: u64,
}

/// Judges a claim by what was found.
///
/// # Errors
/// A figure that a check names was measured with no seed.
pub fn judge(claim: &Claim, found: &Found) -> Result<Judgement> {
    judge_by(claim, claim.checks, found)
}

/// The same by checks that are not in the claim's row.
pub(super) fn judge_by(claim: &Claim, wanted: &[Check<'_>], found: &Found) -> Result<Judgement> {
    let mut checks = Vec::new();
    let mut fitted = None;
    let mut holds = false;
    for way in claim.ways {
        let of_way = checked(way, wanted, found)?;
        let all = of_way.iter().all(Checked::holds);
        match way.parameters {
            Parameters::Given(_) => holds |= all,
            Parameters::Searched(which) if all => fitted = fitted.or(Some(which)),
            Parameters::Searched(_) => {}
        }
        checks.extend(of_way);
    }
    let testable = checks.iter().any(|check| check.testable);
    let verdict = match (testable, holds, fitted) {
        (false, ..) => Verdict::NotTestable,
        (_, true, _) => Verdict::Holds,
        (_, false, Some(_)) => Verdict::HoldsFitted,
        _ => Verdict::Fails,
    };
    Ok(Judgement { verdict, why: why(verdict, &checks, fitted), checks })
}

/// What decided, in a sentence.
fn why(verdict: Verdict, checks: &[Checked], fitted: Option<&str>) -> String {
    let told = |check: &Checked| match check.way.trim_end_matches('/') {
        "" => check.told(),
        way => format!("{way}: {}", check.told()),
    };
    let failed = checks.iter().filter(|check| !check.holds()).map(told);
    let others =
        checks.iter().filter(|check| check.holds() && (verdict == Verdict::Holds || !check.testable));
    let held = checks.iter().filter(|check| check.holds() && check.testable);
    let held = held.map(|check| format!("holds: {}", told(check)));
    let all: Vec<String> = match verdict {
        Verdict::Fails => failed.chain(held).chain(others.map(told)).collect(),
        Verdict::HoldsFitted => {
            fitted.map(|which| format!("searched: {which}")).into_iter().chain(failed).collect()
        }
        _ => others.map(told).collect(),
    };
    all.join("; ")
}

fn checked(way: &Way, checks: &[Check<'_>], found: &Found) -> Result<Vec<Checked>> {
    checks.iter().map(|check| one(way, check, found)).collect()
}

pub(super) fn one(way: &Way, check: &Check<'_>, found: &Found) -> Result<Checked> {
    let made = |wanted, got, failed, testable| Checked {
        way: way.prefix.into(),
        what: check.what.to_string(),
        wanted,
        got,
        failed,
        testable,
    };
    if let Relation::Untestable(reason) = check.relation {
        return Ok(made(String::new(), reason.to_string(), (0, 0), false));
    }
    let relation = &check.relation;
    let mut outcomes = draws(way.prefix, relation, found);
    let mut missing = None;
    let of_a_seed = !matches!(relation, Relation::Draw { .. });
    for (seed, measured) in found.seeds.iter().filter(|_| of_a_seed) {
        for setting in measured.settings(&format!("{}{}", way.prefix, relation.first())) {
            let name = |pattern: &str| named(&format!("{}{pattern}", way.prefix), &setting);
            match relation.outcome(measured, &name) {
                Ok((decisive, excess, detail)) => {
                    outcomes.push(Outcome { decisive, excess, detail, setting, seed: *seed });
                }
                Err(why) => missing = missing.or(Some(why)),
            }
        }
    }
    if outcomes.is_empty() {
        let what =
            format!("{}: nothing was measured for it ({}{})", check.what, way.prefix, relation.first());
        return Err(missing.unwrap_or_else(|| Error::invalid(what)));
    }
    let unit = found.seeds.iter().map(|(_, measured)| relation.unit(measured, way.prefix)).next();
    let unit = unit.unwrap_or_default();
    let failed = outcomes.iter().filter(|outcome| outcome.excess > 0.0).count();
    let wanted = relation.wanted(&unit);
    Ok(made(wanted, told(&outcomes, &unit), (failed, outcomes.len()), true))
}

/// What came of a check that is on all seeds together, in each setting.
fn draws(prefix: &str, relation: &Relation<'_>, found: &Found) -> Vec<Outcome> {
    let Relation::Draw { figure, paper, sigma, .. } = relation else { return Vec::new() };
    let pattern = format!("{prefix}{figure}");
    let mut settings: Vec<String> = Vec::new();
    for (_, measured) in &found.seeds {
        let new: Vec<String> =
            measured.settings(&pattern).into_iter().filter(|one| !settings.contains(one)).collect();
        settings.extend(new);
    }
    let of = |setting: String| {
        let name = named(&pattern, &setting);
        let values: Vec<f64> = found.seeds.iter().filter_map(|(_, one)| one.get(&name).ok()).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let unit = found.seeds.iter().map(|(_, one)| one.unit(&name)).find(|unit| !unit.is_empty());
        let excess = (mean - paper).abs() - 1.96 * sigma * (1.0 + 1.0 / count).sqrt();
        let detail = format!("mean {} of {count} draws", quantity(mean, unit.unwrap_or_default()));
        (count > 0.0).then_some(Outcome { decisive: mean, excess, detail, setting, seed: 0 })
    };
    settings.into_iter().filter_map(of).collect()
}

/// The figures that decided: their mean and range, and the worst one.
fn told(outcomes: &[Outcome], unit: &str) -> String {
    let values = || outcomes.iter().map(|outcome| outcome.decisive);
    let mean = values().sum::<f64>() / outcomes.len() as f64;
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let range = match number(least) == number(most) {
        true => String::new(),
        false => format!(", {} to {}", number(least), number(most)),
    };
    let seeds: std::collections::BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.seed).collect();
    let worst = outcomes.iter().max_by(|a, b| a.excess.total_cmp(&b.excess));
    let worst = worst.filter(|worst| !worst.detail.is_empty() || !worst.setting.is_empty()).map(|worst| {
        let setting = match worst.setting.as_str() {
            "" if outcomes.len() == 1 => String::new(),
            "" if worst.seed == 0 => String::new(),
            "" => format!("seed {}: ", worst.seed),
            setting if worst.seed == 0 || seeds.len() == 1 => format!("{setting}: "),
            setting => format!("{setting}, seed {}: ", worst.seed),
        };
        let detail =
            if worst.detail.is_empty() { quantity(worst.decisive, unit) } else { worst.detail.clone() };
        format!("; {}{setting}{detail}", if outcomes.len() == 1 { "" } else { "at worst " })
    });
    format!("{}{range}{}", quantity(mean, unit), worst.unwrap_or_default())
}

/// How far apart the largest and the least are, as a part of the least.
fn spread(values: &[f64]) -> f64 {
    let (least, most) =
        (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(f64::MIN, f64::max));
    match (least, most) {
        (least, most) if least == most => 0.0,
        (0.0, _) => f64::INFINITY,
        (least, most) => most / least - 1.0,
    }
}

/// The largest residual of the least squares' line through points, as a part of its rise; infinite if it does not rise.
pub(super) fn crookedness(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let over = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>();
    let under = points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>();
    let slope = over / under;
    let reach = points.iter().map(|p| p.0).fold(f64::MIN, f64::max)
        - points.iter().map(|p| p.0).fold(f64::MAX, f64::min);
    let rise = slope * reach;
    if points.len() < 3 || !rise.is_finite() || rise <= 0.0 {
        return f64::INFINITY;
    }
    points.iter().map(|p| (p.1 - y - slope * (p.0 - x)).abs()).fold(0.0, f64::max) / rise
}

/// What an order's neighbours, the first the less, are apart at least: the part that the second is more.
fn ascent(values: &[f64]) -> f64 {
    let steps = values.windows(2).map(|pair| if pair[0] == pair[1] { 0.0 } else { pair[1] / pair[0] - 1.0 });
    steps.fold(f64::INFINITY, f64::min)
}

/// The last part of a name, which tells figures of one check apart.
fn short(name: &str, among: &[String]) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    let differs = |at: usize| among.iter().any(|other| other.split('/').nth(at) != parts.get(at).copied());
    let told: Vec<&str> =
        parts.iter().enumerate().filter(|(at, _)| differs(*at)).map(|(_, part)| *part).collect();
    if told.is_empty() { name.to_string() } else { told.join(" ") }
}

impl Relation<'_> {
    /// The figure or curve that says which settings there are.
    pub(super) fn first(&self) -> &str {
        match self {
            Relation::Is { figure, .. } | Relation::Draw { figure, .. } => figure,
            Relation::Within { figure, .. } => figure,
            Relation::Ratio { of, .. } | Relation::Least { of, .. } => of,
            Relation::Ascending(figures) | Relation::Alike { figures, .. } => figures.first().unwrap_or(&""),
            Relation::Straight { curve, .. } => curve,
            Relation::Untestable(_) => "",
        }
    }

    /// All figures and curves that it is about.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let (one, several): (Vec<&str>, &[&str]) = match self {
            Relation::Is { figure, .. } | Relation::Draw { figure, .. } | Relation::Within { figure, .. } => {
                (vec![figure], &[])
            }
            Relation::Ratio { of, to, .. } => (vec![of, to], &[]),
            Relation::Ascending(figures) | Relation::Alike { figures, .. } => (Vec::new(), figures),
            Relation::Least { of, others } => (vec![of], others),
            Relation::Straight { curve, .. } => (vec![curve], &[]),
            Relation::Untestable(_) => (Vec::new(), &[]),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// What the deciding figure is in.
    fn unit(&self, measured: &Measured, prefix: &str) -> String {
        match self {
            Relation::Is { .. } | Relation::Draw { .. } | Relation::Within { .. } => {
                measured.unit(&format!("{prefix}{}", self.first())).to_string()
            }
            Relation::Ratio { .. } | Relation::Least { .. } => "x".into(),
            _ => "%".into(),
        }
    }

    /// What is wanted, in words.
    pub(super) fn wanted(&self, unit: &str) -> String {
        match self {
            Relation::Is { paper, within, .. } => {
                format!("the paper's {} ± {}", quantity(*paper, unit), number(within.width.beside(*paper)))
            }
            Relation::Draw { paper, .. } => {
                format!("draws of which the paper's {} is one", quantity(*paper, unit))
            }
            Relation::Within { limits, .. } | Relation::Ratio { limits, .. } => {
                match (limits.least.is_finite(), limits.most.is_finite()) {
                    (true, true) => format!("{} to {}", number(limits.least), quantity(limits.most, unit)),
                    (true, false) => format!("at least {}", quantity(limits.least, unit)),
                    _ => format!("at most {}", quantity(limits.most, unit)),
                }
            }
            Relation::Ascending(figures) => {
                let names: Vec<String> = figures.iter().map(|name| (*name).to_string()).collect();
                names.iter().map(|name| short(name, &names)).collect::<Vec<_>>().join(" < ")
            }
            Relation::Alike { within, .. } => {
                format!("at most {} % apart", number(within.width.beside(1.0) * 100.0))
            }
            Relation::Least { others, .. } => {
                let names: Vec<String> = others.iter().map(|name| (*name).to_string()).collect();
                let told = names.iter().map(|name| short(name, &names)).collect::<Vec<_>>().join(", ");
                format!("no more than the least of {told}")
            }
            Relation::Straight { within, .. } => {
                format!(
                    "a rising line, off by at most {} % of its rise",
                    number(within.width.beside(1.0) * 100.0)
                )
            }
            Relation::Untestable(_) => String::new(),
        }
    }

    /// The deciding figure, how far it is beyond what is allowed, and the figures behind it.
    fn outcome(&self, measured: &Measured, name: &dyn Fn(&str) -> String) -> Result<(f64, f64, String)> {
        let get = |pattern: &str| measured.get(&name(pattern));
        let all =
            |patterns: &[&str]| patterns.iter().map(|pattern| get(pattern)).collect::<Result<Vec<f64>>>();
        let listed = |patterns: &[&str], values: &[f64]| {
            let names: Vec<String> = patterns.iter().map(|pattern| name(pattern)).collect();
            let told = names.iter().zip(values).map(|(name, value)| {
                format!("{} {}", short(name, &names), quantity(*value, measured.unit(name)))
            });
            told.collect::<Vec<_>>()
        };
        Ok(match self {
            Relation::Is { figure, paper, within } => {
                let ours = get(figure)?;
                (ours, (ours - paper).abs() - within.width.beside(*paper) * (1.0 + 1e-12), String::new())
            }
            Relation::Within { figure, limits } => {
                let ours = get(figure)?;
                (ours, (limits.least - ours).max(ours - limits.most), String::new())
            }
            Relation::Ratio { of, to, limits } => {
                let values = all(&[of, to])?;
                // Nothing over nothing is as much.
                let ratio = if values[0] == values[1] { 1.0 } else { values[0] / values[1] };
                let detail = listed(&[of, to], &values).join(" to ");
                let excess = (limits.least - ratio).max(ratio - limits.most);
                (ratio, excess, detail)
            }
            Relation::Ascending(figures) => {
                let values = all(figures)?;
                let mut told: Vec<(f64, String)> =
                    values.iter().copied().zip(listed(figures, &values)).collect();
                told.sort_by(|a, b| a.0.total_cmp(&b.0));
                let detail = told.into_iter().map(|(_, told)| told).collect::<Vec<_>>().join(" < ");
                let ascent = ascent(&values);
                (ascent * 100.0, if ascent > 0.0 { -ascent } else { f64::EPSILON - ascent }, detail)
            }
            Relation::Alike { figures, within } => {
                let values = all(figures)?;
                let spread = spread(&values);
                (spread * 100.0, spread - within.width.beside(1.0), listed(figures, &values).join(", "))
            }
            Relation::Least { of, others } => {
                let (ours, theirs) = (get(of)?, all(others)?);
                let best = theirs.iter().copied().fold(f64::MAX, f64::min);
                let at = theirs.iter().position(|value| *value == best).unwrap_or(0);
                let detail = listed(&[of, others[at]], &[ours, best]).join(" to ");
                let ratio = if ours == best { 1.0 } else { ours / best };
                (ratio, ratio - 1.0, detail)
            }
            Relation::Straight { curve, within } => {
                let points = measured.curve(&name(curve));
                if points.is_empty() {
                    return Err(Error::invalid(format!("not measured: {}", name(curve))));
                }
                let off = crookedness(&points);
                let ends = [points.first(), points.last()];
                let told =
                    ends.into_iter().flatten().map(|(x, y)| format!("{} at {}", number(*y), number(*x)));
                let told = told.collect::<Vec<_>>().join(" to ");
                (off * 100.0, off - within.width.beside(1.0), told)
            }
            Relation::Draw { .. } | Relation::Untestable(_) => (0.0, 0.0, String::new()),
        })
    }
}
