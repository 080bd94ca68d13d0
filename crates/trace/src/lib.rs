//! Traces: recorded or generated requests, as one stream of [`Record`]s.
//!
//! A [`Source`] says where the requests come from (a file, or a generator and its parameters) and can be
//! opened as often as needed; a [`Trace`] is one pass over it, in bounded memory. A recorded trace is one
//! of the [`formats`], detected by its first bytes or named; zstd, gzip and bzip2 are seen through. A
//! generated one is one of the [`generators`], each seeded. Both are one file and one line in a registry.
//!
//! A malformed line ends the pass with an error that names the file, the line and the field; nothing is
//! guessed. Lines that carry no request (headers, completions, system calls that touch no data) are counted
//! in the [`Tally`].
//!
//! Cost: records are decoded in batches of [`BATCH`], one dynamic call a batch, no allocation a record.

pub mod calls;
mod descriptors;
mod fields;
pub mod formats;
pub mod generators;
mod input;
mod lines;
pub mod objects;
mod objects_made;
mod parquet;
mod record;
mod source;
mod strace;
mod summary;
mod units;
mod unlinked;
mod window;
mod zero;

pub use formats::{Columns, Event, FORMATS, Format};
pub use generators::{GENERATED, GENERATORS, Generator, check_generator, seeded};
pub use input::Progress;
pub use record::{Flags, Op, Record};
pub use source::{ReadOptions, Source, files_of};
pub use summary::{Summary, summarise};

use bimetal_base::{Error, Result};

/// How many records are decoded at once.
pub const BATCH: usize = 1024;

/// What was read so far, beside the records themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Lines (of a text) or events (of a binary trace) read; requests made, of a generator.
    pub lines: u64,
    /// Lines or events that carry no request: headers, comments, completions, calls that failed.
    pub skipped: u64,
}

/// What a format or a generator gives: batches of records.
pub trait Records: Send {
    /// Appends up to [`BATCH`] records to `batch`; nothing appended means the end.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not what its format says.
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()>;

    /// What was read so far.
    fn tally(&self) -> Tally;
}

/// One pass over a trace.
pub struct Trace {
    name: String,
    records: Box<dyn Records>,
    batch: Vec<Record>,
    next: usize,
    /// Records in earlier batches.
    passed: u64,
    ended: bool,
}

impl Trace {
    fn new(name: String, records: Box<dyn Records>) -> Trace {
        Trace { name, records, batch: Vec::with_capacity(BATCH), next: 0, passed: 0, ended: false }
    }

    /// The file or the generator, as messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was read so far.
    pub fn tally(&self) -> Tally {
        self.records.tally()
    }

    fn refill(&mut self) -> Result<()> {
        self.passed += self.batch.len() as u64;
        self.batch.clear();
        self.next = 0;
        let filled = self.records.fill(&mut self.batch).and_then(|()| self.check());
        self.ended = filled.is_err() || self.batch.is_empty();
        filled
    }

    /// Refuses what no layer below could serve.
    fn check(&self) -> Result<()> {
        match self.batch.iter().zip(1..).find_map(|(record, number)| Some((number, record.flaw()?))) {
            None => Ok(()),
            Some((number, why)) => {
                Err(Error::corrupt(&self.name, why, format!("request {}", self.passed + number)))
            }
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    #[inline]
    fn next(&mut self) -> Option<Result<Record>> {
        if self.next == self.batch.len() {
            if self.ended {
                return None;
            }
            if let Err(why) = self.refill() {
                self.batch.clear();
                return Some(Err(why));
            }
        }
        let record = self.batch.get(self.next).copied()?;
        self.next += 1;
        Some(Ok(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_traces_has_every_format_and_every_generator_with_its_parameters() {
        let page = include_str!("../../../docs/traces.md");
        for format in FORMATS {
            assert!(page.contains(&format!("| `{}` |", format.name)), "format {}", format.name);
        }
        for generator in GENERATORS {
            let start = format!("| `{}` |", generator.name);
            let line = page.lines().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("generator {}", generator.name));
            for parameter in generator.options {
                assert!(
                    line.contains(&format!("`{}`", parameter.name)),
                    "{} {}",
                    generator.name,
                    parameter.name
                );
            }
        }
    }
}
