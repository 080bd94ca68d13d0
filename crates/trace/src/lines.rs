//! Text traces: lines found with `memchr`, each decoded by its format, errors placed by line and field.

use super::fields::Wrong;
use super::input::Input;
use super::window::Window;
use super::{BATCH, Record, Records, Tally};
use bimetal_base::{Error, Result};
use memchr::memchr;

/// No trace has longer lines; a file that does is not a trace.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What an editor may put before the first line: U+FEFF.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A line without what stands before the first one and ends those of other systems.
#[inline]
pub(super) fn bare(line: &[u8], first: bool) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if first { line.strip_prefix(MARK).unwrap_or(line) } else { line }
}

/// How one format reads a line.
pub(super) trait LineFormat: Send {
    /// Its name in the registry.
    const NAME: &'static str;

    /// Decodes a line (never empty, without its end). `None`: a line that carries no request.
    ///
    /// # Errors
    /// Which field is not what it should be.
    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong>;

    /// How many requests the line that was decoded last stands for, each the same.
    fn repeats(&self) -> usize {
        1
    }

    /// At the end of the trace: what is missing to make sense of it, in words.
    fn lacks(&self) -> Option<String> {
        None
    }
}

/// A text trace.
pub(super) struct TextTrace<F> {
    name: String,
    window: Window,
    format: F,
    tally: Tally,
    ended: bool,
}

impl<F: LineFormat + 'static> TextTrace<F> {
    /// Reads `input` as `format` says.
    pub fn open(input: Input, format: F) -> Box<dyn Records> {
        let window = Window::new(input.bytes);
        Box::new(TextTrace { name: input.name, window, format, tally: Tally::default(), ended: false })
    }
}

impl<F: LineFormat> TextTrace<F> {
    /// The error of a line, with its place.
    fn placed(&self, why: impl std::fmt::Display) -> Error {
        let what = format!("{} trace {}", F::NAME, self.name);
        Error::corrupt(what, why, format!("line {}", self.tally.lines))
    }

    /// Moves past the next line; gives its length with and without its end. `None`: there is none.
    fn advance(&mut self) -> Result<Option<(usize, usize)>> {
        let mut searched = 0;
        loop {
            let bytes = self.window.bytes();
            if let Some(found) = memchr(b'\n', &bytes[searched..]) {
                let len = searched + found;
                self.window.use_up(len + 1);
                return Ok(Some((len + 1, len)));
            }
            searched = bytes.len();
            if searched > LINE_BYTES_MAX {
                self.tally.lines += 1;
                return Err(self.placed(format!("longer than {LINE_BYTES_MAX} bytes: not a text trace")));
            }
            if !self.window.read_on().map_err(|why| Error::io(&self.name, why))? {
                self.window.use_up(searched);
                return Ok((searched > 0).then_some((searched, searched)));
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        match self.format.lacks() {
            Some(why) => Err(Error::corrupt(format!("{} trace {}", F::NAME, self.name), why, "its end")),
            None => Ok(()),
        }
    }
}

impl<F: LineFormat> Records for TextTrace<F> {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let full = batch.len() + BATCH;
        while !self.ended && batch.len() < full {
            let Some((passed, len)) = self.advance()? else {
                return self.end();
            };
            self.tally.lines += 1;
            let line = bare(self.window.passed(passed, len), self.tally.lines == 1);
            if line.is_empty() {
                self.tally.skipped += 1;
                continue;
            }
            match self.format.line(line) {
                Ok(Some(record)) => match record.flaw() {
                    None => batch.extend(std::iter::repeat_n(record, self.format.repeats())),
                    Some(why) => return Err(self.placed(why)),
                },
                Ok(None) => self.tally.skipped += 1,
                Err(wrong) => return Err(self.placed(wrong)),
            }
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

/// How much a file looks like being in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Confidence {
    /// Not at all.
    None,
    /// So many of its first lines make sense, and fewer do not: damaged, perhaps.
    Damaged(usize),
    /// All of them do.
    Full,
}

impl Confidence {
    /// Full or none.
    pub fn full_if(holds: bool) -> Confidence {
        if holds { Confidence::Full } else { Confidence::None }
    }
}

/// How much `head`, the beginning of a file, reads as this format, by its first lines. `whole`: the file
/// ends with it, so that its last line counts.
pub(super) fn reads_as<F: LineFormat>(mut format: F, head: &[u8], whole: bool) -> Confidence {
    const LINES: usize = 32;
    let mut lines: Vec<&[u8]> = head.split(|&byte| byte == b'\n').take(LINES + 1).collect();
    if lines.len() > LINES || !whole {
        lines.pop();
    }
    let (mut requests, mut wrong) = (0, 0);
    for (number, line) in lines.into_iter().enumerate() {
        let line = bare(line, number == 0);
        match if line.is_empty() { Ok(None) } else { format.line(line) } {
            Ok(record) => requests += usize::from(record.is_some()),
            Err(_) => wrong += 1,
        }
    }
    match (requests, wrong) {
        (0, _) => Confidence::None,
        (_, 0) => Confidence::Full,
        (requests, wrong) if requests > wrong => Confidence::Damaged(requests),
        _ => Confidence::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use crate::fields::Fields;
    use bimetal_base::time::Time;

    /// `number number`: offset and length of a read.
    struct Pairs;

    impl LineFormat for Pairs {
        const NAME: &'static str = "pairs";
        fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
            if line[0] == b'#' {
                return Ok(None);
            }
            let mut fields = Fields::<b' '>::of(line);
            let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
            Ok(Some(Record::new(Time::ZERO, Op::Read, offset, len)))
        }
    }

    fn all(text: &str) -> (Result<Vec<Record>>, Tally) {
        let mut trace = TextTrace::open(Input::of("mine", text), Pairs);
        let mut records = Vec::new();
        loop {
            let before = records.len();
            match trace.fill(&mut records) {
                Ok(()) if records.len() == before => return (Ok(records), trace.tally()),
                Ok(()) => {}
                Err(why) => return (Err(why), trace.tally()),
            }
        }
    }

    #[test]
    fn lines_end_in_any_of_three_ways_and_the_last_needs_no_end() {
        let (records, tally) = all("# head\r\n1 2\n\n3 4\r\n5 6");
        let pairs: Vec<_> = records.unwrap().iter().map(|record| (record.offset, record.len)).collect();
        assert_eq!(pairs, [(1, 2), (3, 4), (5, 6)]);
        assert_eq!(tally, Tally { lines: 5, skipped: 2 });
    }

    #[test]
    fn many_lines_cross_the_reads() {
        let text: String = (0..100_000).map(|n| format!("{n} {}\n", n * 3)).collect();
        let (records, _) = all(&text);
        let records = records.unwrap();
        assert_eq!(records.len(), 100_000);
        assert!((0..).zip(&records).all(|(n, record)| record.offset == n && record.len == n * 3));
    }

    #[test]
    fn a_wrong_line_is_placed_by_file_line_and_field() {
        let (records, _) = all("1 2\n3 x4\n");
        let error = records.unwrap_err().to_string();
        for part in ["pairs trace mine", "line 2", "field 2", "length", "x4"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_file_without_lines_is_not_a_trace() {
        let (records, _) = all(&"1".repeat(1 << 20));
        assert!(records.unwrap_err().to_string().contains("longer than"));
        assert!(all("").0.unwrap().is_empty());
    }
}
