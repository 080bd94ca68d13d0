//! Where requests come from: a file in some format, a generator, or memory.

use super::formats::{self, Columns, Event, Head, blktrace};
use super::generators::GENERATED;
use super::input::{Input, Progress, STDIN};
use super::{BATCH, Record, Records, Tally, Trace, generators};
use bimetal_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much of a file its format is told from.
const HEAD_BYTES: usize = 64 << 10;

/// How to read a file.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The format's name; told from the file without it.
    pub format: Option<String>,
    /// Of CSV: what the columns are; told from the header without it.
    pub columns: Option<Columns>,
    /// Of blktrace and blkparse: which event is the request.
    pub event: Event,
}

/// A source of requests that can be opened any number of times (standard input: once).
#[derive(Clone, Debug)]
pub struct Source {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    File {
        path: PathBuf,
        options: ReadOptions,
    },
    Generated(generators::Recipe),
    /// With where each batch ends and what was read until then, of what was decoded.
    Given {
        name: String,
        records: Arc<[Record]>,
        batches: Arc<[(usize, Tally)]>,
    },
}

impl Source {
    /// From a command line: a path, `-` for standard input, or `gen:NAME:option=value:…`.
    ///
    /// # Errors
    /// A generator or a parameter that there is not.
    pub fn parse(text: &str, options: ReadOptions) -> Result<Source> {
        let kind = match text.strip_prefix(GENERATED) {
            Some(recipe) => Kind::Generated(generators::Recipe::parse(recipe)?),
            None => Kind::File { path: PathBuf::from(text), options },
        };
        Ok(Source { kind })
    }

    /// The file at `path`, its format told from its contents.
    pub fn file(path: impl Into<PathBuf>) -> Source {
        Source { kind: Kind::File { path: path.into(), options: ReadOptions::default() } }
    }

    /// Requests that are in memory already; messages and reports call them `name`.
    pub fn given(name: impl Into<String>, records: Arc<[Record]>) -> Source {
        Source { kind: Kind::Given { name: name.into(), records, batches: Arc::default() } }
    }

    /// The same trace, decoded and kept in memory if it has at most `most` requests. It is read in the same batches, with
    /// the same tallies, as from where it comes from.
    ///
    /// # Errors
    /// It cannot be read to its end.
    pub fn in_memory(&self, most: usize) -> Result<Option<Source>> {
        let mut trace = self.open()?;
        let (mut records, mut batches) = (Vec::new(), Vec::new());
        loop {
            let before = records.len();
            trace.records.fill(&mut records)?;
            batches.push((records.len(), trace.tally()));
            if records.len() == before {
                break;
            }
            if records.len() > most {
                return Ok(None);
            }
        }
        let (records, batches) = (records.into(), batches.into());
        Ok(Some(Source { kind: Kind::Given { name: self.name(), records, batches } }))
    }

    /// How many requests of it are in memory.
    pub fn records(&self) -> usize {
        match &self.kind {
            Kind::Given { records, .. } => records.len(),
            Kind::File { .. } | Kind::Generated(_) => 0,
        }
    }

    /// Whether it can be opened more than once.
    pub fn is_repeatable(&self) -> bool {
        !matches!(&self.kind, Kind::File { path, .. } if path.as_os_str() == STDIN)
    }

    /// What reports call it: the path, or the generator with all of its parameters.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::File { path, .. } => path.display().to_string(),
            Kind::Generated(recipe) => format!("{GENERATED}{recipe}"),
            Kind::Given { name, .. } => name.clone(),
        }
    }

    /// The same for one of several processes: of a generator with a seed, another seed for each after the first.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of_process(self, process: u32) -> Result<Source> {
        Ok(match self.kind {
            Kind::Generated(recipe) => Source { kind: Kind::Generated(recipe.of_process(process)?) },
            kind => Source { kind },
        })
    }

    /// Begins a pass.
    ///
    /// # Errors
    /// The file cannot be opened, or is in no known format.
    pub fn open(&self) -> Result<Trace> {
        self.open_watched(&Arc::default())
    }

    /// Begins a pass whose progress somebody watches.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_watched(&self, progress: &Arc<Progress>) -> Result<Trace> {
        let records = match &self.kind {
            Kind::Generated(recipe) => recipe.begin()?,
            Kind::Given { records, batches, .. } => {
                progress.add_total(size_of_val(&**records) as u64);
                let (records, batches) = (Arc::clone(records), Arc::clone(batches));
                Box::new(Given { records, batches, next: 0, filled: 0, progress: Arc::clone(progress) })
            }
            Kind::File { path, options } => {
                let mut input = open_file(path, progress)?;
                let format = match &options.format {
                    Some(name) => formats::FORMATS.find(name)?,
                    None if options.columns.is_some() => &formats::csv::FORMAT,
                    None => {
                        let bytes = input.peek(HEAD_BYTES)?;
                        formats::detect(
                            &input.name,
                            &Head { bytes: &bytes, whole: bytes.len() < HEAD_BYTES },
                        )?
                    }
                };
                (format.make.open)(input, options)?
            }
        };
        Ok(Trace::new(self.name(), records))
    }
}

/// A pass over requests in memory.
struct Given {
    records: Arc<[Record]>,
    batches: Arc<[(usize, Tally)]>,
    next: usize,
    /// Batches so far.
    filled: usize,
    progress: Arc<Progress>,
}

impl Records for Given {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let end = self.batches.get(self.filled).map_or(self.next + BATCH, |(end, _)| *end);
        let records = &self.records[self.next..end.min(self.records.len())];
        batch.extend_from_slice(records);
        self.progress.add_read(size_of_val(records) as u64);
        self.next += records.len();
        self.filled += 1;
        Ok(())
    }

    fn tally(&self) -> Tally {
        let told = self.filled.min(self.batches.len()).checked_sub(1).map(|at| self.batches[at].1);
        told.unwrap_or(Tally { lines: self.next as u64, skipped: 0 })
    }
}

/// The files that a pass over what `text` names reads: of a trace all parts that were written beside it, and its list of
/// paths; of a generator none.
pub fn files_of(text: &str) -> Vec<PathBuf> {
    if text.starts_with(GENERATED) || text == STDIN {
        return Vec::new();
    }
    let path = Path::new(text);
    let mut files = blktrace::siblings(path);
    files.extend(list_of_paths(path));
    files
}

/// The list of paths beside a recording, if it is there: `NAME.paths.csv` of `NAME.csv`, packed as that is.
pub(super) fn list_of_paths(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let at = name.rfind(".csv")?;
    let list = path.with_file_name(format!("{}.paths{}", &name[..at], &name[at..]));
    list.exists().then_some(list)
}

fn open_file(path: &Path, progress: &Arc<Progress>) -> Result<Input> {
    let mut files = blktrace::siblings(path).into_iter();
    let first = files.next().ok_or_else(|| Error::invalid(format!("{}: no such file", path.display())))?;
    let mut input = Input::open(&first, progress)?;
    input.others = files.map(|file| Input::open(&file, progress)).collect::<Result<_>>()?;
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use bimetal_base::time::Time;

    #[test]
    fn requests_in_memory_are_a_trace_that_can_be_read_again() {
        let record = |number: u64| Record::new(Time(number), Op::Write, number * 512, 512);
        let records: Vec<Record> = (0..BATCH as u64 * 2 + 7).map(record).collect();
        let source = Source::given("mine", records.clone().into());
        assert_eq!(source.name(), "mine");
        for _ in 0..2 {
            let mut trace = source.open().unwrap();
            let read: Vec<Record> = trace.by_ref().map(Result::unwrap).collect();
            assert_eq!(read, records);
            assert_eq!(trace.tally().lines, records.len() as u64);
        }
        let flawed = Record { len: u64::MAX, ..record(1) };
        let why = Source::given("mine", vec![flawed].into()).open().unwrap().next().unwrap().unwrap_err();
        assert!(why.to_string().contains("mine") && why.to_string().contains("request 1"), "{why}");
    }
}
