//! Generated traces: one file and one line of [`GENERATORS`] each, every one seeded.
//!
//! `gen:NAME:option=value:…` names one; what is not said has the default that `bimetal list` shows. The same
//! recipe gives the same requests on every machine and in every version: numbers come from
//! [`Random`](bimetal_base::random::Random) (streams by name), or, where a generator must agree with a
//! published sequence, from the generator stated there.

mod bonnie;
mod cachelib;
mod camera;
mod camera_vfat;
mod fio;
mod iometer;
mod iozone;
mod p2p;
mod postmark;
mod reference;
mod zipf;

use super::{BATCH, Record, Records, Tally};
use bimetal_base::options::{self, Entry, Named, OptionSpec, Registry};
use bimetal_base::time::Time;
use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use std::fmt;

/// One kind of generated trace; it refuses impossible values.
pub type Generator = options::Entry<MakeGenerator>;

/// Makes a generator from its options.
pub type MakeGenerator = fn(&Values) -> Result<Box<dyn Records>>;

/// All generators.
pub const GENERATORS: Registry<Entry<MakeGenerator>> = Registry {
    what: "generator",
    entries: &[
        &iometer::GENERATOR,
        &zipf::GENERATOR,
        &p2p::GENERATOR,
        &postmark::GENERATOR,
        &iozone::GENERATOR,
        &bonnie::GENERATOR,
        &fio::GENERATOR,
        &cachelib::GENERATOR,
        &camera::GENERATOR,
        &camera_vfat::GENERATOR,
        &reference::GENERATOR,
    ],
};

/// What makes a name a generator's.
pub const GENERATED: &str = "gen:";

const SEED: OptionSpec = OptionSpec::new("seed", "1", "number that all choices follow from");
const RATE: OptionSpec = OptionSpec::new("rate", "1000", "requests a second");

/// Refuses a generator, an option or a value that cannot be.
///
/// # Errors
/// [`Error::Invalid`] with the nearest name that there is.
pub fn check_generator(named: &Named) -> Result<()> {
    Recipe::of(named).map(drop)
}

/// What `text` names, with a seed: a generator whose text has none draws as `seed` says. Seed 1 is what it draws without one,
/// and each other seed something else.
///
/// # Errors
/// A generator that there is not, or a text that names none.
pub fn seeded(text: &str, seed: u64) -> Result<String> {
    let Some(recipe) = text.strip_prefix(GENERATED).filter(|_| seed != 1) else {
        return Ok(text.to_string());
    };
    let mut named: Named = recipe.parse()?;
    let spec = GENERATORS.find(&named.name)?.options.iter().find(|option| option.name == SEED.name);
    let Some(spec) = spec.filter(|_| named.get(SEED.name).is_none()) else { return Ok(text.to_string()) };
    let usual: u64 = spec.default.parse().unwrap_or(1);
    named.set(SEED.name, usual.wrapping_add(seed.wrapping_sub(1)).to_string());
    Ok(format!("{GENERATED}{named}"))
}

/// A generator with its parameters.
#[derive(Clone)]
pub(super) struct Recipe {
    generator: &'static Generator,
    values: Values,
}

impl Recipe {
    /// Reads `NAME:option=value:…`; refuses what does not exist or cannot be.
    pub fn parse(text: &str) -> Result<Recipe> {
        Recipe::of(&text.parse()?)
    }

    fn of(named: &Named) -> Result<Recipe> {
        let generator = GENERATORS.look_up(named)?;
        if let Some((name, value)) = named.options.iter().find(|(_, value)| value.contains(',')) {
            let why =
                format!("'{name}={value}': options are separated by colons, as in gen:zipf:pages=100:seed=2");
            return Err(Error::invalid(format!("generator {}: {why}", generator.name)));
        }
        let value =
            |parameter: &OptionSpec| named.get(parameter.name).unwrap_or(parameter.default).to_string();
        let values = generator.options.iter().map(|p| (p.name, value(p))).collect();
        let values = Values { generator: generator.name, values };
        (generator.make)(&values)?;
        Ok(Recipe { generator, values })
    }

    /// The same with another seed for each process but the first.
    pub fn of_process(mut self, process: u32) -> Result<Recipe> {
        if process > 0 && self.values.values.iter().any(|(name, _)| *name == SEED.name) {
            let seed = self.values.count(SEED.name)?.wrapping_add(u64::from(process)).to_string();
            let there = self.values.values.iter_mut().find(|(name, _)| *name == SEED.name);
            there.into_iter().for_each(|(_, value)| value.clone_from(&seed));
        }
        Ok(self)
    }

    /// Begins the trace.
    pub fn begin(&self) -> Result<Box<dyn Records>> {
        (self.generator.make)(&self.values)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.generator.name)?;
        self.values.values.iter().try_for_each(|(name, value)| write!(f, ":{name}={value}"))
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The values of a recipe's parameters.
#[derive(Clone)]
pub struct Values {
    generator: &'static str,
    values: Vec<(&'static str, String)>,
}

impl Values {
    /// The text of a parameter that the generator has.
    fn text(&self, name: &str) -> &str {
        self.values.iter().find(|(there, _)| *there == name).map_or("", |(_, value)| value)
    }

    fn wrong(&self, name: &str, what: &str) -> Error {
        let text = self.text(name);
        Error::invalid(format!("generator {}: {name} is '{text}', which is not {what}", self.generator))
    }

    fn size(&self, name: &str) -> Result<u64> {
        parse_size(self.text(name)).map_err(|_| self.wrong(name, "a size such as 4KiB"))
    }

    /// A size of at least one byte.
    fn some_size(&self, name: &str) -> Result<u64> {
        self.size(name)?
            .checked_sub(1)
            .map(|less| less + 1)
            .ok_or_else(|| self.wrong(name, "more than nothing"))
    }

    fn count(&self, name: &str) -> Result<u64> {
        self.text(name).parse().map_err(|_| self.wrong(name, "a whole number"))
    }

    fn number(&self, name: &str) -> Result<f64> {
        let number: f64 = self.text(name).parse().map_err(|_| self.wrong(name, "a number"))?;
        if number.is_finite() && number >= 0.0 {
            Ok(number)
        } else {
            Err(self.wrong(name, "a number from 0"))
        }
    }

    /// A percentage as a probability.
    fn percent(&self, name: &str) -> Result<f64> {
        let number = self.number(name)?;
        if number <= 100.0 { Ok(number / 100.0) } else { Err(self.wrong(name, "a percentage")) }
    }

    fn yes(&self, name: &str) -> Result<bool> {
        match self.text(name) {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(self.wrong(name, "yes or no")),
        }
    }

    /// The pace that `rate` says.
    fn pace(&self) -> Result<Pace> {
        let rate = self.number(RATE.name)?;
        if rate > 0.0 {
            Ok(Pace { gap_ns: 1e9 / rate, count: 0 })
        } else {
            Err(self.wrong(RATE.name, "above 0"))
        }
    }
}

/// Instants at a steady rate.
struct Pace {
    gap_ns: f64,
    count: u64,
}

impl Pace {
    fn next(&mut self) -> Time {
        let at = Time((self.count as f64 * self.gap_ns) as u64);
        self.count += 1;
        at
    }
}

/// A trace from a function that gives one request at a time.
struct Steps<F> {
    step: F,
    tally: Tally,
}

/// The trace of what `step` gives until it gives nothing.
fn steps(step: impl FnMut() -> Option<Record> + Send + 'static) -> Box<dyn Records> {
    Box::new(Steps { step, tally: Tally::default() })
}

impl<F: FnMut() -> Option<Record> + Send> Records for Steps<F> {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let before = batch.len();
        batch.extend(std::iter::from_fn(&mut self.step).take(BATCH));
        self.tally.lines += (batch.len() - before) as u64;
        Ok(())
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReadOptions, Source};

    /// The requests of `gen:{recipe}`.
    pub(super) fn generate(recipe: &str) -> Vec<Record> {
        let source = Source::parse(&format!("gen:{recipe}"), ReadOptions::default()).unwrap();
        source.open().unwrap().collect::<Result<_>>().unwrap()
    }

    /// FNV-1a over whole numbers, as the reference streams are checked.
    pub(super) fn fnv(values: impl Iterator<Item = u64>) -> u64 {
        values.fold(1469598103934665603, |hash, value| (hash ^ value).wrapping_mul(1099511628211))
    }

    #[test]
    fn every_generator_repeats_itself_and_moves_forward_in_time() {
        for generator in GENERATORS {
            let records = generate(generator.name);
            assert!(!records.is_empty(), "{}", generator.name);
            assert!(records.is_sorted_by_key(|record| record.at), "{}", generator.name);
            assert_eq!(records, generate(generator.name), "{}", generator.name);
        }
    }

    #[test]
    fn a_seed_reaches_what_has_none_of_its_own() {
        for (text, seed, expected) in [
            ("gen:zipf:pages=10", 1, "gen:zipf:pages=10"),
            ("gen:zipf:pages=10", 4, "gen:zipf:pages=10:seed=4"),
            ("gen:zipf:seed=9", 4, "gen:zipf:seed=9"),
            ("gen:camera", 3, "gen:camera:seed=15"),
            ("gen:reference", 3, "gen:reference"),
            ("a/file.csv", 3, "a/file.csv"),
        ] {
            assert_eq!(seeded(text, seed).unwrap(), expected);
        }
        assert!(seeded("gen:zpif", 2).unwrap_err().to_string().contains("did you mean 'zipf'"));
    }

    #[test]
    fn what_is_far_too_large_is_refused_by_its_option_or_told_piece_by_piece() {
        for (text, told) in [
            ("gen:p2p:size=16EiB", "size is '16EiB', which is not at most 16777216 pieces"),
            ("gen:p2p:size=16EiB:piece=16EiB", "piece is '16EiB', which is not at most 1048576 blocks"),
            ("gen:postmark:max=16EiB", "max is '16EiB', which is not at most 16777216 blocks"),
            ("gen:bonnie:files=4294967294", "files is '4294967294'"),
            ("gen:postmark:files=18446744073709551615", "files is"),
            ("gen:iozone:size=16EiB:record=1", "2^56 records"),
            ("gen:reference:page=16EiB", "page is '16EiB'"),
        ] {
            let error = Source::parse(text, ReadOptions::default()).map(drop).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        // Any option of any generator, as large as numbers go: refused, or the requests come one after the other.
        for generator in GENERATORS {
            for option in generator.options {
                for value in ["16EiB", "18446744073709551615", "1e308", "1"] {
                    let text = format!("gen:{}:{}={value}", generator.name, option.name);
                    let Ok(source) = Source::parse(&text, ReadOptions::default()) else { continue };
                    let some = source.open().unwrap().take(3000).map_while(Result::ok);
                    assert!(some.count() < 3001, "{text}");
                }
            }
        }
    }

    #[test]
    fn another_seed_is_another_trace() {
        for generator in GENERATORS.iter().filter(|g| g.options.iter().any(|p| p.name == SEED.name)) {
            let (one, two) = (generate(generator.name), generate(&format!("{}:seed=99", generator.name)));
            assert_ne!(one, two, "{}", generator.name);
        }
    }

    #[test]
    fn recipes_say_all_they_are_and_refuse_what_they_are_not() {
        let source = Source::parse("gen:iometer:random=60", ReadOptions::default()).unwrap();
        assert!(source.name().starts_with("gen:iometer:") && source.name().contains("random=60"));
        assert!(source.name().contains("seed=1"), "{}", source.name());
        for (text, told) in [
            ("gen:nothing", "there are iometer"),
            ("gen:iometer:colour=red", "no option 'colour'"),
            ("gen:iometer:random", "option=value"),
            ("gen:iometr", "did you mean 'iometer'"),
            ("gen:iometer:random=6,size=4KiB", "separated by colons"),
            ("gen:iometer:random=101", "a percentage"),
            ("gen:iometer:block=0", "more than nothing"),
            ("gen:iometer:rate=0", "above 0"),
            ("gen:zipf:requests=many", "a whole number"),
            ("gen:camera-vfat:metadata=maybe", "yes or no"),
        ] {
            let error = Source::parse(text, ReadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
