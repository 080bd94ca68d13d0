//! The mount options of nfhybrid: the table they are listed from, their meaning, and their limits.

use crate::kinds::options::{MemoryLimit, PREALLOC, no_option, within};
use bimetal_base::options::OptionSpec;
use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use bimetal_nfhybrid::admission::Budget;
use bimetal_nfhybrid::{self as nfhybrid, Lag, Recover, Renew};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Options of nfhybrid.
pub const NFHYBRID_OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "lag",
        value: Some("TIME[,SIZE]"),
        default: "5s,64MiB",
        help: "how far the disk half may be behind, in time and in bytes",
    },
    OptionSpec {
        name: "durability",
        value: Some("either|both"),
        default: "either",
        help: "what fsync waits for where no directory says otherwise: one half, or both",
    },
    PREALLOC,
    OptionSpec {
        name: "memory",
        value: Some("SIZE"),
        default: "256MiB",
        help: "memory for what is cached on the SSD, at 22 bytes a file of one piece; beyond it files are evicted",
    },
    OptionSpec {
        name: "direct",
        value: None,
        default: "off",
        help: "go round the kernel's page cache on both halves, also to read: less memory, slower for cold reads; an SSD that is a block device is always used so",
    },
    OptionSpec {
        name: "discard",
        value: None,
        default: "off",
        help: "tell the SSD by and by of what it need not keep any more; `fstrim` does so at once",
    },
    OptionSpec {
        name: "recover",
        value: Some("log|whole|disk"),
        default: "log",
        help: "apply what only the SSD's log holds; apply what is whole of a damaged one; or drop it and go by the disk alone",
    },
    OptionSpec {
        name: "without-ssd",
        value: None,
        default: "off",
        help: "mount the disk half alone although its SSD's log is open, which drops for ever what only that holds",
    },
    OptionSpec {
        name: "promote",
        value: Some("second|first|never"),
        default: "second",
        help: "what reads bring to the SSD: what is read twice while as much is read as the SSD holds, no streams, no backups; whatever the disk was read for, at once, as the paper has it; nothing",
    },
    OptionSpec {
        name: "promote-budget",
        value: Some("SIZE|none"),
        default: "what the SSD holds, 1GiB at least",
        help: "how many bytes a day reads may bring to the SSD",
    },
    OptionSpec {
        name: "cache",
        value: Some("POLICY[:OPTION=VALUE...]"),
        default: "none",
        help: "a page cache under the disk half, as cache=cflru:window=0.5; `bimetal list cache` shows the policies",
    },
    OptionSpec {
        name: "cache-size",
        value: Some("SIZE"),
        default: "64MiB",
        help: "how much that page cache holds",
    },
];

/// What `lag` may be: the tie has room for 109 minutes.
const LAG_TIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
const LAG_BYTES_MIN: u64 = 1 << 20;

/// The options of a mount of nfhybrid; those that are not the file system's own are passed over.
pub fn nfhybrid_options(options: &[String]) -> Result<nfhybrid::Options> {
    options_within(MemoryLimit::of_this_machine(), options)
}

/// The same, where they may ask for so much memory.
pub(crate) fn options_within(most: MemoryLimit, options: &[String]) -> Result<nfhybrid::Options> {
    let mut parsed = nfhybrid::Options::default();
    for option in options {
        match option.split_once('=') {
            Some(("lag", value)) => parsed.lag = parse_lag(value, most)?,
            Some(("durability", value)) => parsed.durability = parse_named("durability", value)?,
            Some(("promote", value)) => parsed.promote = parse_named("promote", value)?,
            Some(("promote-budget", value)) => parsed.promote_budget = Some(parse_budget(value)?),
            Some(("prealloc" | "cache" | "cache-size", _)) => {}
            Some(("memory", value)) => {
                let least = nfhybrid::ssd::MEMORY_MIN;
                parsed.memory = Some(within(most, "memory", value, least, "256MiB")?);
            }
            None if option == "direct" => {}
            None if option == "noatime" => parsed.access_times.renew = Renew::Never,
            None if option == "relatime" => parsed.access_times.renew = Renew::Relative,
            None if option == "strictatime" => parsed.access_times.renew = Renew::Always,
            None if option == "nodiratime" => parsed.access_times.dirs = false,
            Some(("recover", "log")) => parsed.recover = Recover::Log,
            Some(("recover", "whole")) => parsed.recover = Recover::Whole,
            Some(("recover", "disk")) => parsed.recover = Recover::Disk,
            Some(("recover", other)) => {
                return Err(Error::invalid(format!(
                    "mount option recover: '{other}' is none of log (apply what only the SSD's log holds), whole (what is \
                     whole of a damaged one) and disk (drop it)"
                )));
            }
            None if option == "discard" => parsed.discard = true,
            None if option == "without-ssd" => parsed.without_ssd = true,
            _ => return Err(no_option("nfhybrid", option, NFHYBRID_OPTIONS)),
        }
    }
    Ok(parsed)
}

/// `5s`, `64MiB`, or both with a comma between.
fn parse_lag(text: &str, most: MemoryLimit) -> Result<Lag> {
    let mut lag = Lag::default();
    for part in text.split(',') {
        match (humantime::parse_duration(part), parse_size(part)) {
            (Ok(time), _) if LAG_TIME.contains(&time) => lag.time = time,
            (_, Ok(bytes)) if (LAG_BYTES_MIN..=most.bytes()).contains(&bytes) => lag.bytes = bytes,
            _ => {
                return Err(Error::invalid(format!(
                    "mount option lag: '{part}' is neither a time from 100ms to 1h nor a size from 1MiB to {most}; write for \
                     example lag=5s,64MiB"
                )));
            }
        }
    }
    Ok(lag)
}

/// A value of the option `name`.
fn parse_named<T: FromStr<Err = Error>>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|why: Error| Error::invalid(format!("mount option {name}: {why}")))
}

/// Bytes a day, or `none` for no limit.
fn parse_budget(text: &str) -> Result<Budget> {
    match (text, parse_size(text)) {
        ("none", _) => Ok(Budget::new(None)),
        (_, Ok(bytes)) => Ok(Budget::new(Some(bytes))),
        (_, Err(_)) => Err(Error::invalid(format!(
            "mount option promote-budget: '{text}' is neither a size nor none; write for example promote-budget=20GiB"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replay_may_ask_for_is_the_same_on_every_machine() {
        let of = |text: &str| options_within(MemoryLimit::SIMULATED, &[format!("lag={text}")]);
        assert_eq!(of("1s,1TiB").unwrap().lag.bytes, 1 << 40);
        let why = of("1s,2TiB").map(drop).unwrap_err().to_string();
        assert!(why.contains("1.0 TiB") && !why.contains("machine"), "{why}");
        let why = nfhybrid_options(&["memory=1EiB".into()]).map(drop).unwrap_err().to_string();
        assert!(why.contains("half of this machine's memory"), "{why}");
    }
}
