//! Settings of a scheme, as text: `name=value:name=value`.
//!
//! A scheme takes what it knows; what is left over is refused by name. So a setting that does nothing
//! cannot be given.

use bimetal_base::options::{Named, OptionSpec};
use bimetal_base::{Error, Result, units};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Settings that several schemes have.
pub(super) const LEVEL: OptionSpec =
    OptionSpec::of("level", "dynamic|none|static", "dynamic", "wear levelling");
pub(super) const SPREAD: OptionSpec = OptionSpec::of(
    "spread",
    "1..",
    "16",
    "erases a block may be ahead before static levelling moves cold data",
);
pub(super) const OVER_PROVISION: OptionSpec = OptionSpec::of(
    "over-provision",
    "0..90",
    "7",
    "percent of the pages the host cannot address; the page map's: of those beside its reserve and what open blocks hold",
);
pub(super) const LOGICAL: OptionSpec =
    OptionSpec::of("logical", "SIZE", "none", "what the host can address, instead of over-provision");

/// Settings not yet taken.
#[derive(Clone, Debug)]
pub struct Settings {
    scheme: String,
    given: BTreeMap<String, String>,
}

impl Settings {
    /// Reads `text` for the scheme called `scheme`. It may be joined of several settings, of which some are empty.
    pub fn parse(scheme: &str, text: &str) -> Result<Settings> {
        let given = text.split(':').map(str::trim).filter(|setting| !setting.is_empty());
        let named: Named = [scheme].into_iter().chain(given).collect::<Vec<_>>().join(":").parse()?;
        Ok(Settings { scheme: named.name, given: named.options })
    }

    /// The name of the scheme they are for.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    fn wrong(&self, name: &str, value: &str, wanted: &str) -> Error {
        Error::invalid(format!("{}: {name}={value} must be {wanted}", self.scheme))
    }

    /// Takes one of several named values; the first is the default.
    pub fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let Some(value) = self.given.remove(name) else { return Ok(choices[0].1) };
        let known = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        let found = choices.iter().find(|(choice, _)| *choice == value);
        found.map(|(_, chosen)| *chosen).ok_or_else(|| self.wrong(name, &value, &known()))
    }

    /// Takes a whole number.
    pub fn number(&mut self, name: &str, range: RangeInclusive<u64>, default: u64) -> Result<u64> {
        let Some(value) = self.given.remove(name) else { return Ok(default) };
        value
            .parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.wrong(name, &value, &format!("from {} to {}", range.start(), range.end())))
    }

    /// Takes a number with a fraction.
    pub fn fraction(&mut self, name: &str, range: RangeInclusive<f64>, default: f64) -> Result<f64> {
        let Some(value) = self.given.remove(name) else { return Ok(default) };
        value
            .parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.wrong(name, &value, &format!("from {} to {}", range.start(), range.end())))
    }

    /// Takes a size such as `64MiB`, if it was given.
    pub fn size(&mut self, name: &str) -> Result<Option<u64>> {
        self.given.remove(name).map(|value| units::parse_size(&value)).transpose()
    }

    /// Takes a size, or none if the word that stands for none was given or nothing was.
    pub fn size_or(&mut self, name: &str, word: &str) -> Result<Option<u64>> {
        let Some(value) = self.given.remove(name).filter(|value| value != word) else { return Ok(None) };
        let size = units::parse_size(&value);
        size.map(Some).map_err(|_| self.wrong(name, &value, &format!("{word} or a size")))
    }

    /// Refuses what nobody took.
    pub fn finish(self, known: &[OptionSpec]) -> Result<()> {
        let left = Named { name: self.scheme, options: self.given };
        left.check(&left.name, known.iter().map(|option| option.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_once_and_the_rest_is_refused() {
        let mut settings = Settings::parse("page", "a=1: b=two:c=2.5:d=4KiB:e=0").unwrap();
        assert_eq!(settings.number("a", 0..=10, 5).unwrap(), 1);
        assert_eq!(settings.choice("b", &[("one", 1), ("two", 2)]).unwrap(), 2);
        assert_eq!(settings.fraction("c", 0.0..=5.0, 1.0).unwrap(), 2.5);
        assert_eq!(settings.size("d").unwrap(), Some(4096));
        assert_eq!(settings.number("f", 0..=10, 5).unwrap(), 5);
        assert_eq!(settings.choice("b", &[("one", 1), ("two", 2)]).unwrap(), 1, "taken: the default");
        let error = settings
            .finish(&[OptionSpec::new("a", "", ""), OptionSpec::new("b", "", "")])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "page has no option 'e'; there are a, b");
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (text, told) in
            [("a", "not option=value"), ("a=1:a=2", "set twice"), ("a=11", "a=11"), ("a=x", "a=x")]
        {
            let taken = Settings::parse("page", text).and_then(|mut s| s.number("a", 0..=10, 5));
            let error = taken.unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let mut settings = Settings::parse("page", "b=three").unwrap();
        let error = settings.choice("b", &[("one", 1), ("two", 2)]).unwrap_err().to_string();
        assert_eq!(error, "page: b=three must be one or two");
    }
}
