//! What mount options of several kinds have in common.

use bimetal_base::options::{OptionSpec, unknown};
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};

/// Memory touched in advance; of whatever is served from memory.
pub const PREALLOC: OptionSpec = OptionSpec {
    name: "prealloc",
    value: Some("SIZE"),
    default: "64MiB",
    help: "memory touched in advance, so that no request has to wait for it",
};

/// Default of `prealloc`, bytes.
const PREALLOC_BYTES: u64 = 64 << 20;

/// The value of the last `name=value` among the options.
pub fn value_of<'a>(options: &'a [String], name: &str) -> Option<&'a str> {
    options.iter().rev().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

/// The refusal of `option`, as `name` or `name=value`, by a kind that has `known`: of a name that it has the value is wrong.
pub fn no_option(kind: &str, option: &str, known: &[OptionSpec]) -> Error {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let names = known.iter().map(|spec| spec.name);
    let Some(spec) = known.iter().find(|spec| spec.name == name) else {
        return unknown(&format!("{kind} has no mount option"), name, names);
    };
    Error::invalid(match (spec.value, value) {
        (Some(wanted), None) => format!("mount option {name} needs a value: {name}={wanted}"),
        (Some(wanted), Some(_)) => {
            format!("mount option {option}: there is no such value; it is {name}={wanted}")
        }
        (None, _) => format!("mount option {name} takes no value; say {name} alone, or leave it out"),
    })
}

/// The most memory that an option may ask for, bytes.
pub fn memory_max() -> u64 {
    half_of_memory()
}

/// The most that mount options may ask for of memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit {
    bytes: u64,
    whose: &'static str,
}

impl MemoryLimit {
    /// That of a mount.
    pub fn of_this_machine() -> MemoryLimit {
        MemoryLimit { bytes: memory_max(), whose: "half of this machine's memory" }
    }

    /// That of a replay: the same on every machine, so that its reports are. What is never written takes no memory.
    pub const SIMULATED: MemoryLimit = MemoryLimit { bytes: 1 << 40, whose: "the most of a replay" };

    /// Bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

impl std::fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.whose, show_size(self.bytes))
    }
}

/// A size that a mount option gives, of what it takes in memory.
pub fn in_memory(name: &str, text: &str, least: u64, example: &str) -> Result<u64> {
    within(MemoryLimit::of_this_machine(), name, text, least, example)
}

/// The same up to another limit.
pub fn within(most: MemoryLimit, name: &str, text: &str, least: u64, example: &str) -> Result<u64> {
    let bytes = parse_size(text).map_err(|error| {
        Error::invalid(format!("mount option {name}: {error}; write for example {name}={example}"))
    })?;
    let limit = |words: String| Err(Error::invalid(format!("mount option {name}: {text} is too {words}")));
    match bytes {
        less if less < least => limit(format!("little; it takes at least {}", show_size(least))),
        more if more > most.bytes => {
            limit(format!("much; it takes at most {}, {}", most.whose, show_size(most.bytes)))
        }
        fits => Ok(fits),
    }
}

/// What `prealloc` asks for, bytes.
pub fn prealloc(options: &[String]) -> Result<u64> {
    let given = value_of(options, "prealloc");
    given.map_or(Ok(PREALLOC_BYTES), |text| in_memory("prealloc", text, 0, "64MiB"))
}

/// Bytes of half of this machine's memory.
pub fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit) / 2
}
