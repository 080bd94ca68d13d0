//! The registry: every policy by name, with its options, and how to make a cache from a line of text.
//!
//! Adding a policy is one file in `policies/` and one line in [`POLICIES`], beside it. The command line, the
//! documentation and the tests read the registry; nothing else knows the policies.
//!
//! A policy is written as [`options`] says, as in `cflru:window=0.5`. Options that are not given have the
//! default that the registry states.

use super::engine::Engine;
use super::index::{DENSE_PAGES_MAX, Index};
use super::pages::Pages;
pub use super::policies::POLICIES;
use super::policy::{Needs, Policy};
use super::{Config, PageCache};
use bimetal_base::options::{self, Named};
use bimetal_base::{Error, Result};
use std::fmt::Write;
use std::str::FromStr;

/// A policy as the registry knows it.
pub type Entry = options::Entry<Make>;

/// Where a policy is from, and what makes a cache of it.
pub struct Make {
    /// Where it was published.
    pub source: &'static str,
    /// Makes a cache over dense page numbers.
    pub dense: fn(&BuildContext) -> Result<Box<dyn PageCache>>,
    /// Makes a cache over any page numbers.
    pub sparse: fn(&BuildContext) -> Result<Box<dyn PageCache>>,
}

/// All policies and their options as a Markdown list: what `docs/cache.md` holds.
pub fn markdown() -> String {
    let mut text = String::new();
    for entry in POLICIES {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- **{}**: {} ({}).", entry.name, entry.about, entry.make.source);
        for option in entry.options {
            let _ = writeln!(text, "  - `{}={}`: {}", option.name, option.default, option.help);
        }
    }
    text
}

/// Makes a cache: `policy` is a name with options, as in `cflru:window=0.5`.
///
/// # Errors
/// [`Error::Invalid`] for a policy, option or value that does not exist, or a cache of no pages.
pub fn build(policy: &str, config: &Config) -> Result<Box<dyn PageCache>> {
    let named: Named = policy.parse()?;
    let entry = POLICIES.look_up(&named)?;
    check_config(config)?;
    let order = BuildContext { entry, named: &named, config };
    match config.space {
        Some(space) if space <= DENSE_PAGES_MAX => (entry.make.dense)(&order),
        _ => (entry.make.sparse)(&order),
    }
}

/// Refuses a cache that cannot be, whatever its policy.
pub(super) fn check_config(config: &Config) -> Result<()> {
    if config.capacity == 0 || config.block_pages == 0 {
        return Err(Error::invalid("a cache needs room for one page, an erase block one page"));
    }
    match config.capacity > 1 << 30 {
        true => Err(Error::invalid(format!("a cache of {} pages is more than 2^30", config.capacity))),
        false => Ok(()),
    }
}

/// What a policy is made from: its options and the cache's configuration.
pub struct BuildContext<'a> {
    entry: &'static Entry,
    named: &'a Named,
    config: &'a Config,
}

impl BuildContext<'_> {
    /// The cache's configuration.
    pub fn config(&self) -> &Config {
        self.config
    }

    /// The text of option `name`, given or default.
    pub fn text(&self, name: &str) -> &str {
        let default =
            || self.entry.options.iter().find(|option| option.name == name).map_or("", |o| o.default);
        self.named.get(name).unwrap_or_else(default)
    }

    fn wrong(&self, name: &str, wanted: &str) -> Error {
        Error::invalid(format!("{}: {name}={} is not {wanted}", self.entry.name, self.text(name)))
    }

    /// Option `name` as a number of type `T`.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        self.text(name).parse().map_err(|_| self.wrong(name, "a number it takes"))
    }

    /// Option `name` as a whole number from `low` to `high`.
    pub fn number_within(&self, name: &str, low: u32, high: u32) -> Result<u32> {
        let number = self.number(name)?;
        if !(low..=high).contains(&number) {
            return Err(self.wrong(name, &format!("between {low} and {high}")));
        }
        Ok(number)
    }

    /// Option `name`, `yes` or `no`.
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.one_of(name, &[("yes", true), ("no", false)])
    }

    /// Option `name`, one of several words.
    pub fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T> {
        let found = words.iter().find(|(word, _)| *word == self.text(name));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(name, &format!("one of {}", list.join(", ")))
        })
    }

    /// Option `name` as a fraction: `0.25` or `1/4`.
    pub fn fraction(&self, name: &str) -> Result<f64> {
        let text = self.text(name);
        let value = match text.split_once('/') {
            Some((over, under)) => {
                over.parse::<f64>().ok().zip(under.parse::<f64>().ok()).map(|(a, b)| a / b)
            }
            None => text.parse().ok(),
        };
        value.filter(|value| value.is_finite() && *value >= 0.0).ok_or_else(|| self.wrong(name, "a fraction"))
    }

    /// Option `name` as a fraction up to `high`.
    pub fn fraction_to(&self, name: &str, high: f64) -> Result<f64> {
        let value = self.fraction(name)?;
        if value > high {
            return Err(self.wrong(name, &format!("at most {high}")));
        }
        Ok(value)
    }

    /// Option `name` as a share of the cache, in pages: a fraction up to 1, or pages as in `21p`.
    pub fn share(&self, name: &str) -> Result<u32> {
        if let Some(pages) = self.text(name).strip_suffix('p') {
            return pages.parse().map_err(|_| self.wrong(name, "a number of pages"));
        }
        let share = self.fraction(name)?;
        if share > 1.0 {
            return Err(self.wrong(name, "a fraction up to 1 or a number of pages such as 21p"));
        }
        // A hair more, so that a third of 300 pages is 100 and not 99.
        Ok((f64::from(self.config.capacity) * share + 1e-9) as u32)
    }

    /// The policy's name with every option.
    pub fn name(&self) -> String {
        let mut name = self.entry.name.to_string();
        for option in self.entry.options {
            // Writing to a string cannot fail.
            let _ = write!(name, ":{}={}", option.name, self.text(option.name));
        }
        name
    }

    /// The cache itself; `make` sets up the policy and its lists.
    pub fn cache<X: Index, P: Policy<X>>(
        &self,
        needs: Needs,
        make: impl FnOnce(&mut Pages<X>) -> P,
    ) -> Result<Box<dyn PageCache>> {
        Ok(Box::new(Engine::new(self.name(), self.config, needs, make)))
    }
}
