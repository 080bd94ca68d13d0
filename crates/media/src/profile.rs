//! Device profiles: one small file a kind of device, each figure with its source.
//!
//! The files of the folder `devices/` are built into the program and known by their names; any other
//! text of the same form can be given as a path. A field that is missing, unknown or impossible is
//! refused by its name.

use bimetal_base::options::unknown;
use bimetal_base::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::path::Path;

/// The built-in profiles: name and text.
const BUILT_IN: &[(&str, &str)] = &[
    ("camera-data-sheet", include_str!("../../../devices/camera-data-sheet.toml")),
    ("camera-paper", include_str!("../../../devices/camera-paper.toml")),
    ("feram", include_str!("../../../devices/feram.toml")),
    ("hdd-7200", include_str!("../../../devices/hdd-7200.toml")),
    ("hdd-7200-lying", include_str!("../../../devices/hdd-7200-lying.toml")),
    ("hdd-7200-zoned", include_str!("../../../devices/hdd-7200-zoned.toml")),
    ("qlc", include_str!("../../../devices/qlc.toml")),
    ("slc-2k", include_str!("../../../devices/slc-2k.toml")),
    ("slc-4k", include_str!("../../../devices/slc-4k.toml")),
    ("slc-512", include_str!("../../../devices/slc-512.toml")),
    ("slc-512-board", include_str!("../../../devices/slc-512-board.toml")),
    ("slc-4k-x8", include_str!("../../../devices/slc-4k-x8.toml")),
    ("ssd-slc", include_str!("../../../devices/ssd-slc.toml")),
    ("ssd-tlc", include_str!("../../../devices/ssd-tlc.toml")),
    ("tlc", include_str!("../../../devices/tlc.toml")),
];

/// What a profile describes.
pub trait Described: DeserializeOwned {
    /// The `kind` its file states.
    const KIND: &'static str;

    /// Refuses impossible values.
    fn check(&self) -> Result<(), InvalidField>;
}

/// A field with a value that cannot be.
#[derive(Debug)]
pub struct InvalidField {
    /// The field's name.
    pub field: &'static str,
    /// Why it cannot be.
    pub why: String,
}

impl InvalidField {
    /// Passes if `holds`, else names the field and what it must be.
    pub fn unless(holds: bool, field: &'static str, why: impl Display) -> Result<(), InvalidField> {
        if holds { Ok(()) } else { Err(InvalidField { field, why: why.to_string() }) }
    }
}

/// One line of the list of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What to call it by.
    pub name: &'static str,
    /// `disk`, …
    pub kind: String,
    /// The device in words.
    pub model: String,
}

/// What every profile file states.
#[derive(Deserialize)]
struct Head {
    kind: String,
    model: String,
}

/// All built-in profiles.
pub fn list() -> Vec<Listed> {
    BUILT_IN
        .iter()
        .filter_map(|(name, text)| {
            let head: Head = toml::from_str(text).ok()?;
            Some(Listed { name, kind: head.kind, model: head.model })
        })
        .collect()
}

/// The kind of device that the profile called `name` (built in, or a path) describes.
pub fn kind_of(name: &str) -> Result<String> {
    let head: Head = toml::from_str(&text_of(name)?).map_err(|error| malformed(name, &error))?;
    Ok(head.kind)
}

/// The profile called `name`: a built-in one, or the file at that path.
pub fn load<P: Described>(name: &str) -> Result<P> {
    parse(name, &text_of(name)?)
}

/// The profile in `text`; `name` is what messages call it.
pub fn parse<P: Described>(name: &str, text: &str) -> Result<P> {
    let head: Head = toml::from_str(text).map_err(|error| malformed(name, &error))?;
    if head.kind != P::KIND {
        return Err(Error::invalid(format!("profile {name} describes a {}, not a {}", head.kind, P::KIND)));
    }
    let profile: P = toml::from_str(text).map_err(|error| malformed(name, &error))?;
    profile.check().map_err(|bad| Error::invalid(format!("profile {name}: {} {}", bad.field, bad.why)))?;
    Ok(profile)
}

fn text_of(name: &str) -> Result<String> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_string());
    }
    std::fs::read_to_string(Path::new(name)).map_err(|error| {
        let problem = format!("there is no file to read ({error}) and no built-in profile");
        unknown(&problem, name, BUILT_IN.iter().map(|(known, _)| *known))
    })
}

fn malformed(name: &str, error: &toml::de::Error) -> Error {
    Error::invalid(format!("profile {name}: {}", error.to_string().trim_end()))
}

/// Reads a size such as `"32MiB"`.
pub fn size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    bimetal_base::units::parse_size(&text).map_err(serde::de::Error::custom)
}

/// Nanoseconds in a number of milliseconds.
pub(super) fn ms(value: f64) -> u64 {
    (value * 1e6).round() as u64
}

/// Nanoseconds in a number of microseconds.
pub fn us(value: f64) -> u64 {
    (value * 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskProfile;
    use crate::nand::NandProfile;
    use crate::nvram::NvramProfile;

    #[test]
    fn every_built_in_profile_is_listed_and_holds() {
        let listed = list();
        assert_eq!(listed.len(), BUILT_IN.len());
        for profile in listed {
            match profile.kind.as_str() {
                DiskProfile::KIND => drop(load::<DiskProfile>(profile.name).unwrap()),
                NandProfile::KIND => drop(load::<NandProfile>(profile.name).unwrap()),
                NvramProfile::KIND => drop(load::<NvramProfile>(profile.name).unwrap()),
                // Checked with the layers that read them.
                "ssd" | "camera" => {}
                other => panic!("{}: unknown kind {other}", profile.name),
            }
        }
    }

    #[test]
    fn wrong_profiles_are_refused_by_field() {
        let good = include_str!("../../../devices/hdd-7200.toml");
        for (from, to, told) in [
            ("rpm = 7200", "rpm = 0", "rpm"),
            ("rpm = 7200", "", "rpm"),
            ("rpm = 7200", "rpm = 7200\nspeed = 3", "speed"),
            ("settle_ms = 0.8", "settle_ms = 9.0", "settle_ms"),
            ("settle_ms = 0.8", "settle_ms = -1.0", "settle_ms"),
            ("mb_per_s = 120.0", "mb_per_s = 0.0", "zones"),
            ("from = 0.0", "from = 0.5", "zones"),
            ("\"32MiB\"", "\"lots\"", "'lots' is not a size"),
            ("\"512\"", "\"100\"", "sector"),
            ("bus_mb_per_s = 300.0", "bus_mb_per_s = nan", "bus_mb_per_s"),
            ("kind = \"disk\"", "kind = \"tape\"", "describes a tape, not a disk"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = parse::<DiskProfile>("mine", &text).unwrap_err().to_string();
            assert!(error.contains("profile mine") && error.contains(told), "{to}: {error}");
        }
        let error = load::<DiskProfile>("/no/such").unwrap_err().to_string();
        assert!(error.contains("hdd-7200"), "{error}");
    }

    #[test]
    fn a_file_of_ones_own_is_a_profile() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = include_str!("../../../devices/hdd-7200.toml").replace("rpm = 7200", "rpm = 5400");
        std::fs::write(file.path(), text).unwrap();
        let profile: DiskProfile = load(&file.path().to_string_lossy()).unwrap();
        assert_eq!(profile.rpm, 5400);
    }
}
