//! The formats of recorded traces: one file and one line of [`FORMATS`] each.
//!
//! A format states how it is recognised and how it is opened. Text formats are recognised by their own
//! reader: the first lines must all make sense to it. Where two could read a file, the earlier line wins;
//! the order below puts the stricter ones first.

pub mod alibaba;
pub mod blkparse;
pub mod blktrace;
pub mod cloudphysics;
pub mod csv;
pub mod disksim;
pub mod fio;
pub mod mqsim;
pub mod msr;
pub mod oracle;
pub mod spc;
pub mod syscall;
pub mod tencent;

pub use blktrace::Event;
pub use csv::Columns;

use super::input::Input;
use super::{ReadOptions, Records};
use crate::{Error, Result};

/// One format of recorded traces.
pub struct Format {
    /// What `--format` calls it.
    pub name: &'static str,
    /// Whose traces these are and what a line holds.
    pub about: &'static str,
    /// Whether a file that begins so is one.
    pub(super) detects: fn(&Head) -> bool,
    /// Begins to read one.
    pub(super) open: fn(Input, &ReadOptions) -> Result<Box<dyn Records>>,
}

/// The first bytes of a file, unpacked.
pub(super) struct Head<'a> {
    /// They.
    pub bytes: &'a [u8],
    /// The file is no longer.
    pub whole: bool,
}

/// All formats, in the order in which they are tried.
pub const FORMATS: &[&Format] = &[
    &blktrace::FORMAT,
    &fio::FORMAT,
    &syscall::FORMAT,
    &csv::FORMAT,
    &cloudphysics::FORMAT,
    &msr::FORMAT,
    &spc::FORMAT,
    &alibaba::FORMAT,
    &tencent::FORMAT,
    &mqsim::FORMAT,
    &disksim::FORMAT,
    &blkparse::FORMAT,
    &oracle::FORMAT,
];

/// The format called `name`.
///
/// # Errors
/// There is none; the message lists those there are.
pub fn by_name(name: &str) -> Result<&'static Format> {
    FORMATS.iter().find(|format| format.name == name).copied().ok_or_else(|| {
        Error::invalid(format!(
            "there is no trace format '{name}'; there are {}",
            names(FORMATS.iter().copied())
        ))
    })
}

/// The first format that recognises `head`.
pub(super) fn detect(name: &str, head: &Head) -> Result<&'static Format> {
    if head.bytes.is_empty() {
        return Err(Error::invalid(format!("{name} is empty")));
    }
    FORMATS.iter().find(|format| (format.detects)(head)).copied().ok_or_else(|| {
        Error::invalid(format!(
            "{name} is in none of the formats known ({}); name one with --format to see the first line that \
             does not fit, or describe the columns of a CSV with --columns",
            names(FORMATS.iter().copied())
        ))
    })
}

fn names(formats: impl Iterator<Item = &'static Format>) -> String {
    formats.map(|format| format.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::trace::{Record, Trace};

    /// The records of `text` read by the format called `name`, which must also be the one detected.
    pub(super) fn read(name: &str, text: impl Into<Vec<u8>>) -> Result<Vec<Record>> {
        let text = text.into();
        if let Ok(found) = detect("mine", &Head { bytes: &text, whole: true }) {
            assert_eq!(found.name, name, "detected");
        }
        open(name, text, &ReadOptions::default())
    }

    pub(super) fn open(name: &str, text: impl Into<Vec<u8>>, options: &ReadOptions) -> Result<Vec<Record>> {
        let records = (by_name(name)?.open)(Input::of("mine", text), options)?;
        Trace::new("mine".to_string(), records).collect()
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused_with_the_list() {
        let mut names: Vec<_> = FORMATS.iter().map(|format| format.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FORMATS.len());
        let error = by_name("xml").err().unwrap().to_string();
        assert!(error.contains("xml") && error.contains("blktrace"), "{error}");
    }

    #[test]
    fn what_is_no_trace_is_no_format() {
        for text in ["hello world\n", "\u{1}\u{2}\u{3}\n", "1\n2\n", "{\"a\": 1}\n"] {
            let found = detect("mine", &Head { bytes: text.as_bytes(), whole: true });
            assert!(found.is_err(), "{text}: {}", found.unwrap().name);
        }
        assert!(
            detect("mine", &Head { bytes: b"", whole: true }).err().unwrap().to_string().contains("empty")
        );
    }
}
