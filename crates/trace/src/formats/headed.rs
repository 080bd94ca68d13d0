//! Lines whose columns a header names, in any order.

use super::super::fields::{Fields, Wrong};
use super::super::lines::Confidence;
use super::Head;

/// The columns that a format reads, by their names; the first of them a trace must have.
pub(super) struct Columns<const N: usize> {
    pub names: [&'static str; N],
    pub needed: usize,
}

/// A trace whose first line is its header.
pub(super) struct Headed<const N: usize> {
    columns: &'static Columns<N>,
    header: Option<Header<N>>,
}

impl<const N: usize> Columns<N> {
    /// Whether a file that begins so has a header with what is needed.
    pub fn are_in(&self, head: &Head) -> Confidence {
        Confidence::full_if(Header::of(head.first_line(), self).is_some())
    }
}

impl<const N: usize> Headed<N> {
    /// A trace of which nothing was read.
    pub fn new(columns: &'static Columns<N>) -> Headed<N> {
        Headed { columns, header: None }
    }

    /// The columns of a line; none of the first, which is the header.
    ///
    /// # Errors
    /// The header lacks what is needed.
    pub fn line<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Picked<'a, N>>, Wrong> {
        if self.header.is_some() {
            return Ok(self.header.as_ref().map(|header| header.pick(line)));
        }
        let Columns { names, needed } = self.columns;
        self.header = Header::of(line, self.columns);
        match self.header {
            Some(_) => Ok(None),
            None => Err(Wrong::new(1, "header", format!("lacks one of {}", names[..*needed].join(", ")))),
        }
    }
}

/// Where the columns are that a format reads.
struct Header<const N: usize> {
    names: [&'static str; N],
    /// The column of each, from 0; none: the trace does not have it.
    columns: [Option<usize>; N],
    separator: u8,
}

/// The columns of one line that a format reads.
pub(super) struct Picked<'a, const N: usize> {
    header: &'a Header<N>,
    texts: [Option<&'a [u8]>; N],
}

impl<const N: usize> Header<N> {
    /// Reads a header: names between commas or blanks. None if one of the needed columns is not there.
    fn of(line: &[u8], wanted: &Columns<N>) -> Option<Header<N>> {
        let (names, needed) = (wanted.names, wanted.needed);
        let line = line.strip_prefix(b"#").unwrap_or(line).trim_ascii();
        let separator = if line.contains(&b',') { b',' } else { b' ' };
        let told: Vec<&[u8]> = line.split(|byte| *byte == separator).collect();
        let columns =
            names.map(|name| told.iter().position(|told| told.eq_ignore_ascii_case(name.as_bytes())));
        columns[..needed].iter().all(Option::is_some).then_some(Header { names, columns, separator })
    }

    /// The columns of `line`.
    fn pick<'a>(&'a self, line: &'a [u8]) -> Picked<'a, N> {
        let mut texts = [None; N];
        for (at, text) in line.split(|byte| *byte == self.separator).enumerate() {
            if let Some(which) = self.columns.iter().position(|column| *column == Some(at)) {
                texts[which] = Some(text);
            }
        }
        Picked { header: self, texts }
    }
}

impl<'a, const N: usize> Picked<'a, N> {
    /// The number of a column in its line, from 1, for an error.
    fn number(&self, which: usize) -> u32 {
        self.header.columns[which].map_or(0, |column| column as u32 + 1)
    }

    /// Column `which` as it stands.
    ///
    /// # Errors
    /// The line has ended before.
    pub fn text(&self, which: usize) -> Result<&'a [u8], Wrong> {
        self.texts[which].ok_or_else(|| self.wrong(which, "is missing"))
    }

    /// Column `which` as a field by itself.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn field(&self, which: usize) -> Result<Fields<'a, b','>, Wrong> {
        Ok(Fields::of(self.text(which)?).from(self.number(which)))
    }

    /// Column `which` as a whole number.
    ///
    /// # Errors
    /// It is none.
    pub fn u64(&self, which: usize) -> Result<u64, Wrong> {
        self.field(which)?.u64(self.header.names[which])
    }

    /// Column `which`, of a trace that has it.
    pub fn has(&self, which: usize) -> bool {
        self.header.columns[which].is_some()
    }

    /// Why column `which` makes no sense.
    pub fn wrong(&self, which: usize, why: impl std::fmt::Display) -> Wrong {
        Wrong::new(self.number(which), self.header.names[which], why)
    }
}

/// The most requests that one line may stand for.
const REPEATS_MAX: u64 = 1 << 20;

/// How many requests a line stands for by its column `which`: one where there is no such column.
///
/// # Errors
/// It is no number, or too many.
pub(super) fn repeated<const N: usize>(picked: &Picked<'_, N>, which: usize) -> Result<usize, Wrong> {
    match picked.has(which).then(|| picked.u64(which)).transpose()? {
        None => Ok(1),
        Some(count @ ..=REPEATS_MAX) => Ok(count as usize),
        Some(count) => {
            Err(picked.wrong(which, format!("is {count}, more than {REPEATS_MAX} requests in one")))
        }
    }
}
