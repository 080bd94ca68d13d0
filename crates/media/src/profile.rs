//! Device profiles: one small file a kind of device, each figure with its source.
//!
//! The files of the folder `devices/` are built into the program and known by their names; any other
//! text of the same form can be given as a path. A field that is missing, unknown or impossible is
//! refused by its name.

use crate::guard;
use bimetal_base::options::{Registered, Registry, unknown};
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

/// No profile is longer, bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A built-in profile.
pub struct Profile {
    name: &'static str,
    text: &'static str,
}

/// The profile `devices/NAME.toml`.
macro_rules! built_in {
    ($name:literal) => {
        &Profile { name: $name, text: include_str!(concat!("../../../devices/", $name, ".toml")) }
    };
}

/// The built-in profiles.
pub const PROFILES: Registry<Profile> = Registry {
    what: "built-in profile",
    entries: &[
        built_in!("camera-data-sheet"),
        built_in!("camera-paper"),
        built_in!("feram"),
        built_in!("hdd-7200"),
        built_in!("hdd-7200-lying"),
        built_in!("hdd-7200-zoned"),
        built_in!("mlc-20nm"),
        built_in!("qlc"),
        built_in!("slc-2k"),
        built_in!("slc-4k"),
        built_in!("slc-512"),
        built_in!("slc-512-board"),
        built_in!("slc-4k-x8"),
        built_in!("ssd-p3700"),
        built_in!("ssd-slc"),
        built_in!("ssd-tlc"),
        built_in!("ssd-tlc-slc"),
        built_in!("tlc"),
        built_in!("tlc-b17a"),
    ],
};

impl Registered for Profile {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> Cow<'static, str> {
        self.head().map_or_else(String::new, |head| format!("{}: {}", head.kind, head.model)).into()
    }
}

impl Profile {
    fn head(&self) -> Option<Head> {
        toml::from_str(self.text).ok()
    }

    /// What it describes: `disk`, …
    pub fn kind(&self) -> String {
        self.head().map_or_else(String::new, |head| head.kind)
    }
}

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

/// What every profile file states.
#[derive(Deserialize)]
struct Head {
    kind: String,
    model: String,
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

/// The text of the profile called `name`: a built-in one, or the file at that path.
///
/// # Errors
/// There is neither; it is no file, or longer than 1 MiB.
pub fn text_of(name: &str) -> Result<String> {
    if let Ok(built_in) = PROFILES.find(name) {
        return Ok(built_in.text.to_string());
    }
    let mut text = String::new();
    let read = guard::input(Path::new(name)).and_then(|file| {
        file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).map_err(|why| Error::io(name, why))
    });
    match read {
        Err(Error::Io { source, .. }) => {
            let problem = format!("there is no file to read ({source}) and no built-in profile");
            Err(unknown(&problem, name, PROFILES.names()))
        }
        Ok(_) if text.len() as u64 > TEXT_BYTES_MAX => {
            let most = show_size(TEXT_BYTES_MAX);
            Err(Error::invalid(format!("profile {name}: longer than {most}, so it is no profile")))
        }
        read => read
            .map(|_| text)
            .map_err(|why| Error::invalid(format!("profile {name}: {why}, or a profile that is built in"))),
    }
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
        for profile in PROFILES {
            match profile.kind().as_str() {
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
    fn what_is_no_file_is_no_profile_and_is_not_read() {
        for name in ["/dev/zero", "/", "/proc/self/fd"] {
            let why = kind_of(name).unwrap_err().to_string();
            assert!(
                why.contains(name) && why.contains("name a file, or a profile that is built in"),
                "{why}"
            );
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(TEXT_BYTES_MAX + 1).unwrap();
        let why = kind_of(file.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(why.contains("longer than 1.0 MiB"), "{why}");
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
