//! One grammar of names with options, and one way to look names up.
//!
//! What can be chosen by name (policies, translation layers, placements, generators, …) is written
//! `name:option=value:option=value`, as in `cflru:window=0.5:adapt=yes`; in a stack file also as a table with the same
//! keys, `{ name = "cflru", window = 0.5, adapt = "yes" }`. A name or an option that there is not is refused with the
//! nearest one that there is.

use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A choice by name, with the options that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Values by option.
    pub options: BTreeMap<String, String>,
}

impl Named {
    /// The name alone.
    pub fn plain(name: impl Into<String>) -> Named {
        Named { name: name.into(), options: BTreeMap::new() }
    }

    /// The value of an option, where it was given.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.options.get(option).map(String::as_str)
    }

    /// Sets an option.
    pub fn set(&mut self, option: &str, value: impl Into<String>) {
        self.options.insert(option.to_string(), value.into());
    }

    /// Refuses options that are none of `known`; `of` is what has them, in words.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the nearest option that there is.
    pub fn check<'a>(&self, of: &str, known: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let strange = self.options.keys().find(|option| !known.clone().any(|name| name == *option));
        strange.map_or(Ok(()), |option| Err(unknown(&format!("{of} has no option"), option, known)))
    }
}

impl FromStr for Named {
    type Err = Error;

    fn from_str(text: &str) -> Result<Named> {
        let mut parts = text.split(':').map(str::trim);
        let mut named = Named::plain(parts.next().unwrap_or_default());
        for part in parts {
            if part.is_empty() {
                return Err(Error::invalid(format!(
                    "'{text}': a colon has no option after it; write name, or name:option=value"
                )));
            }
            let (option, value) = part.split_once('=').ok_or_else(|| {
                Error::invalid(format!("'{part}' in '{text}' is not option=value; write name:option=value"))
            })?;
            let option = option.trim();
            if named.get(option).is_some() {
                return Err(Error::invalid(format!("'{text}': {option} is set twice")));
            }
            named.set(option, value.trim());
        }
        Ok(named)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.options.iter().try_for_each(|(option, value)| write!(f, ":{option}={value}"))
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Named, D::Error> {
        struct TextOrTable;
        impl<'de> de::Visitor<'de> for TextOrTable {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("text as \"name:option=value\", or a table { name = \"…\", option = … }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Named, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let mut named = Named::plain("");
                while let Some((key, Scalar(value))) = map.next_entry::<String, Scalar>()? {
                    match key.as_str() {
                        "name" => named.name = value,
                        _ => named.set(&key, value),
                    }
                }
                if named.name.is_empty() {
                    return Err(de::Error::missing_field("name"));
                }
                Ok(named)
            }
        }
        from.deserialize_any(TextOrTable)
    }
}

/// The value of an option in a table, as the text that it would be after `option=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar(pub String);

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        struct Any;
        impl de::Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("text, a number, true or false")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_bool<E: de::Error>(self, yes: bool) -> Result<Scalar, E> {
                Ok(Scalar(if yes { "yes" } else { "no" }.to_string()))
            }
        }
        from.deserialize_any(Any)
    }
}

/// One option of something that is chosen by name.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// What stands for its value; `None` for a plain switch.
    pub value: Option<&'static str>,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

impl OptionSpec {
    /// An option with values such as its default.
    pub const fn new(name: &'static str, default: &'static str, help: &'static str) -> OptionSpec {
        OptionSpec { name, value: Some("VALUE"), default, help }
    }

    /// One that takes `values`, as `1..8` or `greedy|cost-benefit`.
    pub const fn of(
        name: &'static str,
        values: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> OptionSpec {
        OptionSpec { name, value: Some(values), default, help }
    }
}

/// Something that is chosen by name.
pub struct Entry<M: 'static> {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What can be set.
    pub options: &'static [OptionSpec],
    /// What makes it, or does it.
    pub make: M,
}

/// What a [`Registry`] holds.
pub trait Registered {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it is, in a line.
    fn about(&self) -> Cow<'static, str>;

    /// What can be set.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }
}

impl<M> Registered for Entry<M> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> Cow<'static, str> {
        self.about.into()
    }

    fn options(&self) -> &'static [OptionSpec] {
        self.options
    }
}

/// All of a sort that can be chosen by name. To add one is a file with one, and a line here.
pub struct Registry<T: 'static> {
    /// What each is, in words.
    pub what: &'static str,
    /// They, in the order in which they are listed.
    pub entries: &'static [&'static T],
}

impl<T: Registered> Registry<T> {
    /// The one called `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the nearest one that there is.
    pub fn find(&self, name: &str) -> Result<&'static T> {
        let found = self.entries.iter().find(|entry| entry.name() == name).copied();
        found.ok_or_else(|| unknown(&format!("there is no {}", self.what), name, self.names()))
    }

    /// The one that `named` names, its options being some that it has.
    ///
    /// # Errors
    /// As [`find`](Self::find), of the name or an option.
    pub fn look_up(&self, named: &Named) -> Result<&'static T> {
        let entry = self.find(&named.name)?;
        named.check(
            &format!("{} {}", self.what, entry.name()),
            entry.options().iter().map(|option| option.name),
        )?;
        Ok(entry)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.entries.iter().map(|entry| entry.name())
    }
}

impl<T> std::ops::Deref for Registry<T> {
    type Target = [&'static T];

    fn deref(&self) -> &Self::Target {
        self.entries
    }
}

impl<T> IntoIterator for Registry<T> {
    type Item = &'static T;
    type IntoIter = std::iter::Copied<std::slice::Iter<'static, &'static T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().copied()
    }
}

/// The word of `known` that `word` is most likely meant to be, if any comes near.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = |known: &str| strsim::osa_distance(&word.to_lowercase(), &known.to_lowercase());
    let near = known.map(|known| (far(known), known)).min_by_key(|(far, _)| *far);
    near.filter(|(far, known)| *far * 2 <= known.chars().count().max(word.chars().count()))
        .map(|(_, known)| known)
}

/// The refusal of a word that there is not: `problem 'word'; did you mean …? there are …`.
pub fn unknown<'a>(problem: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Error {
    let list = known.clone().collect::<Vec<_>>().join(", ");
    let list = if list.is_empty() { "there are none".to_string() } else { format!("there are {list}") };
    Error::invalid(match nearest(word, known) {
        Some(near) => format!("{problem} '{word}'; did you mean '{near}'? {list}"),
        None => format!("{problem} '{word}'; {list}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Holder {
        policy: Named,
    }

    fn read(text: &str) -> Result<Named, String> {
        toml::from_str::<Holder>(text).map(|holder| holder.policy).map_err(|why| why.to_string())
    }

    #[test]
    fn a_line_and_a_table_say_the_same() {
        let line: Named = "cflru:window=0.5:adapt=yes".parse().unwrap();
        assert_eq!(read("policy = \"cflru:window=0.5:adapt=yes\"").unwrap(), line);
        assert_eq!(read("policy = { name = \"cflru\", window = 0.5, adapt = true }").unwrap(), line);
        assert_eq!(line.to_string(), "cflru:adapt=yes:window=0.5");
        assert_eq!(serde_json::to_string(&line).unwrap(), "\"cflru:adapt=yes:window=0.5\"");
        assert_eq!((line.get("window"), line.get("step")), (Some("0.5"), None));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for (text, told) in [
            ("policy = 5", "name:option=value"),
            ("policy = \"lru:window\"", "'window' in 'lru:window' is not option=value"),
            ("policy = \"lru:a=1:a=2\"", "a is set twice"),
            ("policy = \"lru:\"", "'lru:': a colon has no option after it"),
            ("policy = \"lru::a=1\"", "a colon has no option after it"),
            ("policy = { window = 0.5 }", "missing field `name`"),
            ("policy = { name = \"lru\", window = [1] }", "text, a number, true or false"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(told), "{text}: {why}");
        }
    }

    #[test]
    fn the_nearest_word_is_named_and_no_far_one() {
        let known = || ["policy", "size", "page"].into_iter();
        assert_eq!(nearest("polcy", known()), Some("policy"));
        assert_eq!(nearest("Sise", known()), Some("size"));
        assert_eq!(nearest("weather", known()), None);
        let why = unknown("there is no key", "polcy", known()).to_string();
        assert_eq!(why, "there is no key 'polcy'; did you mean 'policy'? there are policy, size, page");
        let named: Named = "lru:windo=1".parse().unwrap();
        assert!(named.check("lru", ["window"].into_iter()).unwrap_err().to_string().contains("'window'"));
        assert!(named.check("lru", [].into_iter()).unwrap_err().to_string().contains("there are none"));
    }
}
