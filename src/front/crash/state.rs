//! The names of states: short texts that say how a state is made, so that one line makes it again.
//!
//! `412-torn-7`: the power went before request 412, and what no flush had made durable survived by the rule `torn`
//! and seed 7. `412/380-all-0`: the disk as of request 412, the SSD as of 380. Behind it, what happened then:
//! `+r35-durable-3`: the power went again, before the 35th request of the recovery; `+w9-60-torn-3`: the work of
//! seed 9 was done after the recovery, and the power went before its 60th request.

use crate::media::states::Survival;
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A cut of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Requests before this one were submitted.
    pub at: usize,
    /// What survives of those that were not durable.
    pub rule: Survival,
    /// Draws for the rule.
    pub seed: u64,
}

/// What happened after the first cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// The recovery was cut, too.
    Recovery(Cut),
    /// It was used again, by the work of this seed, and cut.
    Work(u64, Cut),
}

/// How a state is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// The first cut.
    pub cut: Cut,
    /// The second device was cut here instead.
    pub other: Option<usize>,
    /// And then.
    pub then: Vec<Then>,
}

impl StateId {
    /// Whether its first cut is behind the last of so many requests.
    pub fn is_beyond(&self, requests: usize) -> bool {
        self.cut.at.max(self.other.unwrap_or(0)) > requests
    }
}

const RULES: [(&str, Survival); 6] = [
    ("all", Survival::All),
    ("durable", Survival::Durable),
    ("subset", Survival::Subset),
    ("torn", Survival::Torn),
    ("without", Survival::Without),
    ("only", Survival::Only),
];

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.at, name(self.rule), self.seed)
    }
}

fn name(rule: Survival) -> &'static str {
    RULES.iter().find(|(_, known)| *known == rule).map_or("all", |(name, _)| name)
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.other {
            Some(other) => write!(f, "{}/{other}-{}-{}", self.cut.at, name(self.cut.rule), self.cut.seed)?,
            None => write!(f, "{}", self.cut)?,
        }
        self.then.iter().try_for_each(|then| match then {
            Then::Recovery(cut) => write!(f, "+r{cut}"),
            Then::Work(seed, cut) => write!(f, "+w{seed}-{cut}"),
        })
    }
}

fn cut(text: &str) -> Option<Cut> {
    let mut parts = text.split('-');
    let (at, rule, seed) = (parts.next()?, parts.next()?, parts.next()?);
    let rule = RULES.iter().find(|(name, _)| *name == rule)?.1;
    let cut = Cut { at: at.parse().ok()?, rule, seed: seed.parse().ok()? };
    parts.next().is_none().then_some(cut)
}

fn then(text: &str) -> Option<Then> {
    if let Some(rest) = text.strip_prefix('r') {
        return cut(rest).map(Then::Recovery);
    }
    let (seed, rest) = text.strip_prefix('w')?.split_once('-')?;
    Some(Then::Work(seed.parse().ok()?, cut(rest)?))
}

fn parse(text: &str) -> Option<StateId> {
    let mut parts = text.split('+');
    let first = parts.next()?;
    let (first, other) = match first.split_once('/') {
        Some((at, rest)) => {
            let (other, rule) = rest.split_once('-')?;
            (format!("{at}-{rule}"), Some(other.parse().ok()?))
        }
        None => (first.to_string(), None),
    };
    Some(StateId { cut: cut(&first)?, other, then: parts.map(then).collect::<Option<_>>()? })
}

impl FromStr for StateId {
    type Err = Error;

    fn from_str(text: &str) -> Result<StateId> {
        parse(text).ok_or_else(|| {
            Error::invalid(format!(
                "state '{text}': write it as a failure shows it, for example 412-torn-7 or 412-all-0+r35-durable-3"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_is_written_and_anything_else_is_refused_with_an_example() {
        for text in ["412-torn-7", "3/80-all-0", "0-only-1+r35-durable-3+r2-all-0", "9-all-0+w9-60-without-3"]
        {
            assert_eq!(text.parse::<StateId>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "4",
            "4-some-1",
            "4-all-1-",
            "4-all-x",
            "4/-all-1",
            "4-all-1+",
            "4-all-1+r",
            "4-all-1+w3-all-1",
        ] {
            let why = text.parse::<StateId>().unwrap_err().to_string();
            assert!(why.contains("412-torn-7"), "{text}: {why}");
        }
    }
}
