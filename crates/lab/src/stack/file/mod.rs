//! A stack as a file: what is played, on what, through which layers, in TOML.
//!
//! One text serves `mount`, `replay`, `export` and `reproduce`; each takes what concerns it. Keys are typed, a key that
//! there is not is refused with its line and the nearest one that there is, and a size has a unit. Names (policies,
//! translation layers, generators) are written as [`options`] says, as text or as tables. Paths are
//! as on the command line: from the current directory.

use super::admission_rule::{AdmissionRule, parse_range};
use super::profiles;
use crate::kinds::nfhybrid::mkfs::SectionSpec;
use crate::kinds::{KINDS, LiesOn};
use crate::replay::{Fit, PaceName, Precondition, Timing};
use bimetal_base::options::{self, Named, Scalar};
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_cache::registry::POLICIES;
use bimetal_ftl as ftl;
use bimetal_media::{guard, profile};
use bimetal_trace::{Columns, Event, check_generator, files_of};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::{Table, Value};

/// No stack file is longer.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// What a stack file says, with every default filled in that does not depend on who reads it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case", default)]
pub struct StackFile {
    /// What it shows, in a line.
    pub about: Option<String>,
    /// Everything random follows from it.
    pub seed: u64,
    /// What is played.
    pub trace: TraceKeys,
    /// How it is played.
    pub run: RunKeys,
    /// The device, where there is one.
    pub device: DeviceKeys,
    /// The page cache over it; with a file system of two halves, over the disk.
    pub cache: Option<CacheKeys>,
    /// Non-volatile memory: a write cache; of a cmfs, where its metadata is.
    pub nvram: Option<NvramKeys>,
    /// The file system over the devices.
    pub fs: Option<FsKeys>,
    /// The SSD half of an nfhybrid.
    pub ssd: DeviceKeys,
    /// Its disk half.
    pub disk: DeviceKeys,
    /// Figures that `reproduce` compares with.
    pub expect: Vec<Expectation>,
}

/// `[trace]`: what is played.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case", default)]
pub struct TraceKeys {
    /// A recorded trace.
    pub file: Option<String>,
    /// Or a generator, with its options.
    pub generator: Option<Named>,
    /// The file's format; told from its contents without it.
    pub format: Option<String>,
    /// Of a CSV: what its columns are.
    pub columns: Option<String>,
    /// Of blktrace and blkparse: which event is the request.
    pub event: Event,
    /// Only requests to this device or file.
    pub unit: Option<u32>,
    /// Only the first so many.
    pub requests: Option<u64>,
}

/// `[run]`: how it is played.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case", default)]
pub struct RunKeys {
    /// When requests arrive.
    pub pace: PaceName,
    /// Closed: requests under way at most.
    pub queue_depth: u32,
    /// Open: how much faster than recorded.
    pub speed: f64,
    /// In which order bare flash does what its translation layer decides on.
    pub timing: Timing,
    /// What software takes for each request.
    pub overhead: Span,
    /// All requests to this range end above the device.
    pub absorb: Option<Text<ByteRange>>,
    /// Which writes carry placement handle 1.
    pub place: Option<Text<AdmissionRule>>,
    /// Whether flushes are passed on.
    pub flush: bool,
    /// Whether what is dirty at the end is written.
    pub drain: bool,
    /// What becomes of offsets past the device's end.
    pub fit: Fit,
    /// With `fit = "compact"`: what stays together.
    pub chunk: Size,
    /// What flash holds before.
    pub precondition: Precondition,
    /// With a file system: so many processes.
    pub processes: u32,
}

/// `[device]`, `[ssd]`, `[disk]`: a medium.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case", default)]
pub struct DeviceKeys {
    /// What it is like: a profile by name or path. A mount takes the image as it is where none is named.
    pub profile: Option<String>,
    /// Its size.
    pub size: Option<Size>,
    /// Its translation layer, instead of the profile's.
    pub ftl: Option<Named>,
    /// Where mount and export keep its bytes: a file or a device. A replay is in memory.
    pub image: Option<PathBuf>,
}

/// `[cache]`: a page cache.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case")]
pub struct CacheKeys {
    /// The policy, with its options.
    pub policy: Named,
    /// Bytes it holds.
    pub size: Size,
    /// Bytes of a page.
    #[serde(default = "page")]
    pub page: Size,
}

/// `[nvram]`: non-volatile memory.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case", default)]
pub struct NvramKeys {
    /// Which writes it takes, as a write cache.
    pub takes: Option<Text<AdmissionRule>>,
    /// Its bytes.
    pub size: Option<Size>,
    /// Of a cmfs that is mounted: its image.
    pub image: Option<PathBuf>,
}

/// `[fs]`: a file system.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case")]
pub struct FsKeys {
    /// Its kind.
    pub kind: String,
    /// Its mount options.
    #[serde(default)]
    pub options: BTreeMap<String, Scalar>,
    /// Sections of the SSD half that a replay makes, as `mkfs nfhybrid --section` says them.
    #[serde(default)]
    pub sections: Vec<Text<SectionSpec>>,
}

/// `[[expect]]`: a figure of the paper.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table", rename_all = "kebab-case")]
pub struct Expectation {
    /// Which of the run's figures, as `latency_ns.p50`.
    pub figure: String,
    /// What it is to be.
    pub is: f64,
    /// By what part it may differ.
    #[serde(default = "within")]
    pub within: f64,
    /// In what it is measured.
    #[serde(default)]
    pub unit: String,
}

impl FsKeys {
    /// Refuses yes and no of an option that has a value, and a value of one that is on or off: it would be dropped.
    fn check_values(&self) -> Result<()> {
        let specs = KINDS.find(&self.kind)?.options;
        for (name, Scalar(value)) in &self.options {
            let Some(spec) = specs.iter().find(|spec| spec.name == name) else { continue };
            let wanted = match (spec.value, matches!(value.as_str(), "yes" | "no")) {
                (Some(value), true) => format!("{value}, or leave it out"),
                (None, false) => "true or false".to_string(),
                _ => continue,
            };
            return Err(Error::invalid(format!(
                "fs.options.{name}: '{value}' is no value of it; write {wanted}"
            )));
        }
        Ok(())
    }
}

impl Expectation {
    /// Refuses what every figure, or none, would be.
    fn check(&self) -> Result<()> {
        let wrong = |key: &str, value: f64, wanted: &str| {
            Err(Error::invalid(format!(
                "expect.{key}: {value} is expected of '{}'; write a number{wanted}",
                self.figure
            )))
        };
        match (self.is.is_finite(), self.within.is_finite() && self.within >= 0.0) {
            (false, _) => wrong("is", self.is, ""),
            (_, false) => wrong("within", self.within, " from 0, as 0.05 for 5 %"),
            _ => Ok(()),
        }
    }
}

fn page() -> Size {
    Size(4096)
}

fn within() -> f64 {
    0.05
}

impl Default for StackFile {
    fn default() -> StackFile {
        StackFile {
            about: None,
            seed: 1,
            trace: TraceKeys::default(),
            run: RunKeys::default(),
            device: DeviceKeys::default(),
            cache: None,
            nvram: None,
            fs: None,
            ssd: DeviceKeys::default(),
            disk: DeviceKeys::default(),
            expect: Vec::new(),
        }
    }
}

impl Default for RunKeys {
    fn default() -> RunKeys {
        RunKeys {
            pace: PaceName::default(),
            queue_depth: 1,
            speed: 1.0,
            timing: Timing::Part,
            overhead: Span(Duration::ZERO),
            absorb: None,
            place: None,
            flush: true,
            drain: true,
            fit: Fit::default(),
            chunk: Size(64 << 10),
            precondition: Precondition::default(),
            processes: 1,
        }
    }
}

/// Bytes, written with a unit: `"16MiB"`; in results a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        let Scalar(text) = Scalar::deserialize(from)?;
        if text.parse::<f64>().is_ok() {
            let why = format!(
                "a size has a unit: write \"{text}B\", \"{text}KiB\" or \"{text}MiB\" instead of {text}"
            );
            return Err(de::Error::custom(why));
        }
        parse_size(&text).map(Size).map_err(de::Error::custom)
    }
}

/// A span of time, written with a unit: `"250us"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        let Scalar(text) = Scalar::deserialize(from)?;
        let wrong = |why| {
            de::Error::custom(format!("'{text}' is not a span of time ({why}); write for example \"250us\""))
        };
        humantime::parse_duration(&text).map(Span).map_err(wrong)
    }
}

/// What is read from text as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: std::fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err = Error>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<T>, D::Error> {
        String::deserialize(from)?.parse().map(Text).map_err(de::Error::custom)
    }
}

/// `FROM-END`, sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteRange(pub Range<u64>);

impl FromStr for ByteRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteRange> {
        parse_range(text).map(ByteRange)
    }
}

impl std::fmt::Display for ByteRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0.start, self.0.end)
    }
}

/// A stack file that was read, to be changed here and there before it is taken for what it says.
#[derive(Clone, Debug)]
pub struct StackText {
    name: String,
    table: Table,
}

impl StackText {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is longer than 1 MiB or no TOML, has keys that there are not or values that do not fit; the message has the line.
    pub fn read(path: &Path) -> Result<StackText> {
        let mut text = String::new();
        let read = guard::input(path)?.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text);
        if read.map_err(|why| Error::io(path.display(), why))? as u64 > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{}: longer than {}, so it is no stack file",
                path.display(),
                show_size(TEXT_BYTES_MAX)
            )));
        }
        StackText::parse(&path.display().to_string(), &text)
    }

    /// The same of a text; `name` is what messages call it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(name: &str, text: &str) -> Result<StackText> {
        let stack: StackFile = toml::from_str(text).map_err(|why| misfit(name, text, &why))?;
        let table = toml::from_str(text).map_err(|why| misfit(name, text, &why))?;
        stack.check().map_err(|why| Error::invalid(format!("{name}: {why}")))?;
        Ok(StackText { name: name.to_string(), table })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says, with some keys set to other values (or set at all).
    ///
    /// # Errors
    /// A key that there is not, a value that does not fit; the message has the setting.
    pub fn with(&self, settings: &[Setting]) -> Result<StackFile> {
        let all: Vec<&Setting> = settings.iter().collect();
        self.with_all(&all).map_err(|why| {
            // Only together they are wrong or right. If it is one that makes them wrong, that one is told.
            let without = |one: usize| [&all[..one], &all[one + 1..]].concat();
            let wrong =
                (0..all.len()).rev().find(|one| all.len() > 1 && self.with_all(&without(*one)).is_ok());
            let said = wrong.map_or_else(|| all.clone(), |one| vec![all[one]]);
            let said: Vec<String> = said.into_iter().map(Setting::to_string).collect();
            let said = if said.is_empty() { self.name.clone() } else { said.join(" ") };
            Error::invalid(format!("{said}: {why}"))
        })
    }

    /// What it says with all of these settings, taken together.
    fn with_all(&self, settings: &[&Setting]) -> Result<StackFile, String> {
        let mut table = self.table.clone();
        // A name before its options.
        let mut ordered = settings.to_vec();
        ordered.sort_by_key(|setting| setting.key.matches('.').count());
        for setting in ordered {
            let path: Vec<&str> = setting.key.split('.').collect();
            make_way(&mut table, &path, settings);
            put(&mut table, &path, setting.value())?;
        }
        let stack: StackFile = table.try_into().map_err(|why: toml::de::Error| kindly(why.message()))?;
        stack.check().map_err(|why| why.to_string())?;
        Ok(stack)
    }
}

/// One key set to one value, as `--set` says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The key, its tables in front: `cache.size`.
    pub key: String,
    /// The value as it was written.
    pub text: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--set {}={}", self.key, self.text)
    }
}

impl Setting {
    /// As TOML would have it: a number, true or false, or quoted text; anything else is text as it is.
    fn value(&self) -> Value {
        let read = toml::from_str::<Table>(&format!("value = {}", self.text));
        match read.ok().and_then(|mut table| table.remove("value")) {
            Some(value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::String(_))) => {
                value
            }
            _ => Value::String(self.text.clone()),
        }
    }
}

/// The settings that `KEY=VALUE,VALUE,…` stands for, one a value. A value with a comma in it is quoted.
///
/// # Errors
/// It is not of that form, or has a value of nothing, or one twice.
pub fn parse_axis(text: &str) -> Result<Vec<Setting>> {
    let wrong = |why: &str| {
        Error::invalid(format!("--set {text}: {why}; write for example --set cache.size=16MiB,64MiB"))
    };
    let (key, values) = text.split_once('=').ok_or_else(|| wrong("there is no '='"))?;
    if key.split('.').any(|part| part.trim().is_empty()) {
        return Err(wrong("there is no key before the '='"));
    }
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in values.chars() {
        quoted ^= c == '"';
        match (c, parts.last_mut()) {
            (',', _) if !quoted => parts.push(String::new()),
            (_, Some(last)) => last.push(c),
            _ => {}
        }
    }
    if parts.iter().any(|part| part.trim().is_empty()) {
        return Err(wrong("a value is missing"));
    }
    let parts: Vec<String> = parts.iter().map(|part| part.trim().to_string()).collect();
    let mut seen = BTreeSet::new();
    if let Some(twice) = parts.iter().find(|part| !seen.insert(part.as_str())) {
        return Err(wrong(&format!("{twice} is there twice")));
    }
    Ok(parts.into_iter().map(|text| Setting { key: key.trim().to_string(), text }).collect())
}

/// Takes out what the file says is played, if one of the settings says something else is: a file and a generator exclude
/// each other.
fn make_way(table: &mut Table, path: &[&str], settings: &[&Setting]) {
    let other = match path {
        ["trace", "file"] => "generator",
        ["trace", "generator"] | ["trace", "generator", "name"] => "file",
        _ => return,
    };
    let key = format!("trace.{other}");
    let said = |setting: &&Setting| setting.key == key || setting.key.starts_with(&format!("{key}."));
    if let Some(Value::Table(trace)) = table.get_mut("trace").filter(|_| !settings.iter().any(said)) {
        trace.remove(other);
    }
}

/// Puts a value at a path of tables, which are made where they are missing; a name with options becomes a table.
fn put(table: &mut Table, path: &[&str], value: Value) -> Result<(), String> {
    let (key, rest) = match path {
        [] => return Ok(()),
        [key] => {
            table.insert((*key).to_string(), value);
            return Ok(());
        }
        [key, rest @ ..] => (*key, rest),
    };
    let inner = table.entry(key).or_insert_with(|| Value::Table(Table::new()));
    if let Some(named) = inner.as_str().and_then(|text| text.parse::<Named>().ok()) {
        let pairs = named.options.into_iter().chain([("name".to_string(), named.name)]);
        *inner = Value::Table(pairs.map(|(key, value)| (key, Value::String(value))).collect());
    }
    match inner {
        Value::Table(inner) => put(inner, rest, value),
        _ => Err(format!("{key} is a value, not a table with keys")),
    }
}

/// An error of the text, with its line and, of a key or a word that there is not, the nearest one.
fn misfit(name: &str, text: &str, why: &toml::de::Error) -> Error {
    let why_in_words = kindly(why.message());
    let Some(at) = why.span().map(|span| span.start.min(text.len())) else {
        return Error::invalid(format!("{name}: {why_in_words}"));
    };
    let number = text[..text.floor_char_boundary(at)].matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    let above: Vec<&str> = text.lines().take(number).map(str::trim).collect();
    // A table is in none.
    let table = above.into_iter().rev().find(|above| above.starts_with('[') && !line.starts_with('['));
    let place = table.map(|table| format!(" in {table}")).unwrap_or_default();
    Error::invalid(format!("{name}:{}: '{line}'{place}: {why_in_words}", number + 1))
}

/// serde's message, with the nearest of what it expected.
fn kindly(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let problem = match message {
        m if m.starts_with("unknown field") => "there is no key",
        m if m.starts_with("unknown variant") => "there is no choice",
        m if m.starts_with("missing field") => {
            return format!("the key '{}' is missing", words.next().unwrap_or_default());
        }
        m if m.contains("u64 value was too large") => return "a whole number here is less than 2^63".into(),
        _ => return message.trim_end().to_string(),
    };
    options::unknown(problem, words.next().unwrap_or_default(), words).to_string()
}

impl StackFile {
    /// Refuses names that there are not, and what is said twice.
    fn check(&self) -> Result<()> {
        let of =
            |key: &str, checked: Result<()>| checked.map_err(|why| Error::invalid(format!("{key}: {why}")));
        if let Some(cache) = &self.cache {
            of("cache.policy", POLICIES.look_up(&cache.policy).map(drop))?;
        }
        if let Some(generator) = &self.trace.generator {
            of("trace.generator", check_generator(generator))?;
        }
        if self.trace.file.is_some() && self.trace.generator.is_some() {
            return Err(Error::invalid("trace: file and generator exclude each other"));
        }
        for (key, value, most) in
            [("run.queue-depth", self.run.queue_depth, 65_536), ("run.processes", self.run.processes, 10_000)]
        {
            if !(1..=most).contains(&value) {
                return Err(Error::invalid(format!("{key}: {value} is not from 1 to {most}")));
            }
        }
        if let Some(columns) = &self.trace.columns {
            of("trace.columns", columns.parse::<Columns>().map(drop))?;
        }
        if let Some(fs) = &self.fs {
            let options = fs.options.keys().map(String::as_str);
            of("fs", KINDS.find(&fs.kind).and_then(|kind| kind.check_options(options)))?;
            fs.check_values()?;
        }
        if let Some(option) =
            self.fs.iter().flat_map(|fs| fs.options.keys()).find(|option| option.starts_with("cache"))
        {
            return Err(Error::invalid(format!(
                "fs.options.{option}: a stack file says it in [cache], policy and size"
            )));
        }
        if self.nvram.as_ref().is_some_and(|nvram| nvram.size.is_some() && nvram.takes.is_none()) {
            return Err(Error::invalid("nvram.size: it is a write cache's; say nvram.takes, too"));
        }
        if self.run.absorb.is_some() && self.nvram.as_ref().is_some_and(|nvram| nvram.takes.is_some()) {
            return Err(Error::invalid("run.absorb and nvram.takes exclude each other; leave one out"));
        }
        self.expect.iter().try_for_each(Expectation::check)?;
        for (name, device) in [("device", &self.device), ("ssd", &self.ssd), ("disk", &self.disk)] {
            if device.size == Some(Size(0)) {
                return Err(Error::invalid(format!(
                    "{name}.size: there is no device of 0 bytes; leave the key out for the usual size"
                )));
            }
            if let Some(profile) = device.profile.as_deref().filter(|profile| *profile != super::NONE) {
                of(&format!("{name}.profile"), profile::kind_of(profile).map(drop))?;
            }
            if let Some(scheme) = &device.ftl {
                of(&format!("{name}.ftl"), ftl::check(scheme))?;
            }
        }
        Ok(())
    }

    /// The files whose contents the result of a replay depends on: of the trace, of each profile, and the images that
    /// writes are told apart by. Each list is made by who opens the files.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let places = [self.run.place.as_ref(), self.nvram.as_ref().and_then(|nvram| nvram.takes.as_ref())];
        let images = places.into_iter().flatten().filter_map(|Text(takes)| match takes {
            AdmissionRule::Fat(image) => Some(image.clone()),
            _ => None,
        });
        let devices = [&self.device, &self.ssd, &self.disk];
        let profiles = devices.into_iter().filter_map(|device| device.profile.as_deref());
        let profiles = profiles.flat_map(profiles::files_of);
        let traces = self.trace.file.iter().flat_map(|trace| files_of(trace));
        let mut files: Vec<PathBuf> =
            traces.chain(profiles).chain(images).filter(|path| path.is_file()).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Refuses layers that are over no device of a file system, whoever reads the stack.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the key.
    pub fn check_layers(&self) -> Result<()> {
        let refused = |key: &str, why: &str| Err(Error::invalid(format!("{key}: {why}; leave it out")));
        if self.disk.ftl.is_some() {
            return refused("disk.ftl", "a disk has no translation layer");
        }
        let of_requests = [
            ("run.absorb", self.run.absorb.is_some()),
            ("run.place", self.run.place.is_some()),
            ("nvram.takes", self.nvram.as_ref().is_some_and(|nvram| nvram.takes.is_some())),
        ];
        match of_requests.iter().find(|(_, said)| *said && self.fs.is_some()) {
            Some((key, _)) => refused(key, "it is over a device without a file system"),
            None => Ok(()),
        }
    }

    /// Refuses layers over what drives its flash itself, or has no device.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the key.
    pub fn check_layers_of_kind(&self) -> Result<()> {
        self.check_layers()?;
        let Some(fs) = &self.fs else { return Ok(()) };
        let (of, key) = match KINDS.find(&fs.kind)?.lies_on {
            LiesOn::Halves | LiesOn::Block(_) => return Ok(()),
            LiesOn::Nand { .. } if self.device.ftl.is_some() => ("a translation layer", "device.ftl"),
            LiesOn::Nand { .. } | LiesOn::Nothing if self.cache.is_some() => ("a page cache", "cache"),
            LiesOn::Nand { .. } | LiesOn::Nothing => return Ok(()),
        };
        Err(Error::invalid(format!(
            "{key}: {} drives its flash or memory itself, without {of}; leave it out",
            fs.kind
        )))
    }

    /// The mount options, as `-o` says them.
    pub fn mount_options(&self) -> Vec<String> {
        let said = |(name, Scalar(value)): (&String, &Scalar)| match value.as_str() {
            "no" => None,
            "yes" => Some(name.clone()),
            value => Some(format!("{name}={value}")),
        };
        self.fs.iter().flat_map(|fs| fs.options.iter().filter_map(said)).collect()
    }
}

#[cfg(test)]
mod tests;
