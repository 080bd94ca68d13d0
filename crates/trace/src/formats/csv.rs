//! CSV with a header that names its columns, or with columns described by hand.
//!
//! The form our own tools write, and the default where nothing else is said, is
//! `time_s,op,offset_bytes,length_bytes,flags`: op one of `R W F D A T C X` (read, write, flush, discard,
//! allocate, truncate, create, delete) or the word, flags any of `P U S M A` or `-`. A first line that
//! begins with `#` or a letter is the header; known names are listed at [`role_of`]. Lines beginning with
//! `#` are comments.
//!
//! Cost: one pass over a line, one match a column.

use super::super::fields::{BLANKS, Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace, bare, reads_as};
use super::super::units::Units;
use super::super::{Flags, Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;
use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use std::str::FromStr;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "csv",
    about: "CSV, columns by header or --columns; by default time_s,op,offset_bytes,length_bytes,flags",
    options: &[],
    make: Make {
        detects: |head: &Head| match likely_separator(head.bytes) {
            b';' => looks_like::<b';'>(head),
            b'\t' => looks_like::<b'\t'>(head),
            _ => looks_like::<b','>(head),
        },
        open: |mut input, options| {
            let columns = options.columns.clone();
            let separator = match &columns {
                Some(columns) => columns.separator,
                None => likely_separator(&input.peek(4096)?),
            };
            Ok(match separator {
                b';' => TextTrace::open(input, Csv::<b';'>::new(columns)),
                b'\t' => TextTrace::open(input, Csv::<b'\t'>::new(columns)),
                BLANKS => TextTrace::open(input, Csv::<BLANKS>::new(columns)),
                _ => TextTrace::open(input, Csv::<b','>::new(columns)),
            })
        },
    },
};

/// A header that names the columns says what it is, however its first lines are.
fn looks_like<const SEPARATOR: u8>(head: &Head) -> Confidence {
    let reads = reads_as(Csv::<SEPARATOR>::new(None), head.bytes, head.whole);
    match has_header::<SEPARATOR>(head.bytes) {
        true => reads.max(Confidence::Damaged(1)),
        false => reads,
    }
}

/// Whether the first line, or the first after comments, names the columns of a trace.
fn has_header<const SEPARATOR: u8>(head: &[u8]) -> bool {
    let mut comments = true;
    let mut lines = head.split(|&byte| byte == b'\n').take_while(|line| {
        // Comments, and the line after them.
        std::mem::replace(&mut comments, line.starts_with(b"#"))
    });
    lines.any(|line| Columns::of_header::<SEPARATOR>(bare(line, true)).is_ok())
}

/// The separator that the first line has most of.
fn likely_separator(head: &[u8]) -> u8 {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let count = |separator| memchr::memchr_iter(separator, line).count();
    [b'\t', b';', b','].into_iter().max_by_key(|&separator| count(separator)).unwrap_or(b',')
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Ignored,
    /// The instant, in seconds times 10^-x: the field times 10^`scale` is nanoseconds.
    Time {
        scale: u32,
    },
    Op(Coding),
    Offset {
        factor: u64,
    },
    Length {
        factor: u64,
    },
    Flags,
    Unit,
}

/// How operations are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    /// Letters or words.
    Words,
    /// 0 a write, 1 a read.
    Write0,
    /// 0 a read, 1 a write.
    Read0,
}

/// Which column holds what, as `--columns` says it:
/// `time=1:us,op=2,offset=3:512,length=4:512,unit=5,flags=6,separator=;`.
///
/// Columns count from 1. After a colon: of the time its unit (`s`, `ms`, `us`, `ns`), of offset and length
/// the bytes of one (`512`, `4KiB`), of the operation `w0` or `r0` where it is 0 or 1 (which one is the
/// write or the read). The separator is one of `,` `;` `tab` `blank`; `comma` and `semicolon` too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    roles: Vec<Role>,
    separator: u8,
}

const COLUMNS_MAX: usize = 64;

impl FromStr for Columns {
    type Err = Error;

    fn from_str(text: &str) -> Result<Columns> {
        let mut columns = Columns { roles: Vec::new(), separator: b',' };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(Error::invalid(format!("columns: '{part}' is not of the form time=1:us")));
            };
            if name == "separator" {
                columns.separator = separator(value)?;
                continue;
            }
            let (number, detail) = value.split_once(':').unwrap_or((value, ""));
            let number: usize =
                number.parse().ok().filter(|n| (1..=COLUMNS_MAX).contains(n)).ok_or_else(|| {
                    Error::invalid(format!(
                        "columns: '{number}' of {name} is not a column from 1 to {COLUMNS_MAX}"
                    ))
                })?;
            if columns.roles.len() < number {
                columns.roles.resize(number, Role::Ignored);
            }
            columns.roles[number - 1] = described(name, detail)?;
        }
        columns.check().map_err(|lacks| Error::invalid(format!("columns: {lacks}")))?;
        Ok(columns)
    }
}

impl Columns {
    fn check(&self) -> Result<(), String> {
        let has = |wanted: fn(&Role) -> bool| self.roles.iter().any(wanted);
        for (there, name) in [
            (has(|role| matches!(role, Role::Op(_))), "op"),
            (has(|role| matches!(role, Role::Offset { .. })), "offset"),
            (has(|role| matches!(role, Role::Length { .. })), "length"),
        ] {
            if !there {
                return Err(format!("no column is the {name}"));
            }
        }
        Ok(())
    }

    fn ours() -> Columns {
        let roles = vec![
            Role::Time { scale: 9 },
            Role::Op(Coding::Words),
            Role::Offset { factor: 1 },
            Role::Length { factor: 1 },
            Role::Flags,
        ];
        Columns { roles, separator: b',' }
    }

    /// From the fields of a header.
    fn of_header<const SEPARATOR: u8>(line: &[u8]) -> Result<Columns, Wrong> {
        let mut fields = Fields::<SEPARATOR>::of(line.strip_prefix(b"#").unwrap_or(line));
        let mut columns = Columns { roles: Vec::new(), separator: SEPARATOR };
        while !fields.is_over() && columns.roles.len() < COLUMNS_MAX {
            columns.roles.push(role_of(fields.text("header")?));
        }
        columns.check().map_err(|lacks| Wrong::new(1, "header", format!("is not enough: {lacks}")))?;
        Ok(columns)
    }
}

fn separator(text: &str) -> Result<u8> {
    match text {
        "" | "comma" => Ok(b','),
        ";" | "semicolon" => Ok(b';'),
        "tab" => Ok(b'\t'),
        "blank" => Ok(BLANKS),
        other => {
            Err(Error::invalid(format!("columns: '{other}' is no separator: comma, semicolon, tab or blank")))
        }
    }
}

fn described(name: &str, detail: &str) -> Result<Role> {
    let bad = |what: &str| Error::invalid(format!("columns: '{detail}' of {name} is not {what}"));
    let factor = || match detail {
        "" => Ok(1),
        size => parse_size(size).ok().filter(|&size| size > 0).ok_or_else(|| bad("a size such as 512")),
    };
    Ok(match name {
        "time" => {
            let scale = match detail {
                "" | "s" => 9,
                "ms" => 6,
                "us" => 3,
                "ns" => 0,
                _ => return Err(bad("s, ms, us or ns")),
            };
            Role::Time { scale }
        }
        "op" => Role::Op(match detail {
            "" => Coding::Words,
            "w0" => Coding::Write0,
            "r0" => Coding::Read0,
            _ => return Err(bad("w0 or r0")),
        }),
        "offset" => Role::Offset { factor: factor()? },
        "length" => Role::Length { factor: factor()? },
        "flags" => Role::Flags,
        "unit" => Role::Unit,
        other => {
            let known = "time, op, offset, length, unit, flags, separator";
            return Err(Error::invalid(format!("columns: there is no '{other}'; there are {known}")));
        }
    })
}

/// What a column of this name holds; unknown names are passed over.
fn role_of(name: &[u8]) -> Role {
    let name = name.trim_ascii().to_ascii_lowercase();
    match &name[..] {
        b"time_s" | b"time" | b"timestamp" | b"seconds" => Role::Time { scale: 9 },
        b"time_ms" | b"timestamp_ms" => Role::Time { scale: 6 },
        b"time_us" | b"timestamp_us" => Role::Time { scale: 3 },
        b"time_ns" | b"timestamp_ns" => Role::Time { scale: 0 },
        b"op" | b"operation" | b"opcode" | b"type" | b"rw" => Role::Op(Coding::Words),
        b"offset" | b"offset_bytes" => Role::Offset { factor: 1 },
        b"lba" | b"sector" | b"sector512" | b"block512" => Role::Offset { factor: 512 },
        b"length" | b"length_bytes" | b"len" | b"bytes" | b"size" | b"size_bytes" => {
            Role::Length { factor: 1 }
        }
        b"sectors" => Role::Length { factor: 512 },
        b"flags" => Role::Flags,
        b"unit" | b"device" | b"device_id" | b"dev" | b"disk" | b"disk_id" | b"volume" | b"volume_id"
        | b"lun" | b"asu" | b"path_id" | b"file" => Role::Unit,
        _ => Role::Ignored,
    }
}

struct Csv<const SEPARATOR: u8> {
    columns: Columns,
    /// The first line may still be a header; `true`: and says what the columns are.
    header: Option<bool>,
    units: Units,
}

impl<const SEPARATOR: u8> Csv<SEPARATOR> {
    fn new(columns: Option<Columns>) -> Self {
        let header = Some(columns.is_none());
        Csv { columns: columns.unwrap_or_else(Columns::ours), header, units: Units::default() }
    }

    fn first_line(&mut self, line: &[u8], names_columns: bool) -> Result<bool, Wrong> {
        let is_header = line[0] == b'#' || line[0].is_ascii_alphabetic() || line[0] == b'"';
        if is_header && names_columns {
            match Columns::of_header::<SEPARATOR>(line) {
                Ok(columns) => self.columns = columns,
                // A comment before the header, or before columns in the default order.
                Err(_) if line[0] == b'#' => {
                    self.header = Some(true);
                    return Ok(true);
                }
                Err(why) => return Err(why),
            }
        }
        Ok(is_header)
    }
}

impl<const SEPARATOR: u8> LineFormat for Csv<SEPARATOR> {
    const NAME: &'static str = "csv";

    #[inline]
    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if let Some(names_columns) = self.header.take()
            && self.first_line(line, names_columns)?
        {
            return Ok(None);
        }
        if line[0] == b'#' {
            return Ok(None);
        }
        let mut fields = Fields::<SEPARATOR>::of(line);
        let mut record = Record::new(Time::ZERO, Op::Read, 0, 0);
        for role in &self.columns.roles {
            match *role {
                Role::Ignored => fields.skip(1),
                Role::Time { scale } => record.at = Time(fields.decimal("time", scale)?),
                Role::Op(coding) => record.op = operation(&mut fields, coding)?,
                Role::Offset { factor } => record.offset = fields.scaled("offset", factor)?,
                Role::Length { factor } => record.len = fields.scaled("length", factor)?,
                Role::Unit => record.unit = self.units.of(fields.number(), fields.text("unit")?)?,
                Role::Flags if fields.is_over() => {}
                Role::Flags => record.flags = flags(&mut fields)?,
            }
        }
        Ok(Some(record))
    }
}

#[inline]
fn operation<const SEPARATOR: u8>(fields: &mut Fields<SEPARATOR>, coding: Coding) -> Result<Op, Wrong> {
    let number = fields.number();
    let text = fields.text("op")?;
    let op = match (coding, text) {
        (Coding::Words, _) => word(text),
        (Coding::Write0, b"0") | (Coding::Read0, b"1") => Some(Op::Write),
        (Coding::Write0, b"1") | (Coding::Read0, b"0") => Some(Op::Read),
        _ => None,
    };
    op.ok_or_else(|| {
        let hint = match text {
            b"0" | b"1" => "; say with --columns op=N:w0 or op=N:r0 which is the write",
            _ => "",
        };
        Wrong::new(number, "op", format!("is '{}', not an operation{hint}", text.escape_ascii()))
    })
}

/// The operation that a letter or a word stands for, as in a CSV.
#[inline]
pub fn word(text: &[u8]) -> Option<Op> {
    match text {
        b"R" | b"r" => Some(Op::Read),
        b"W" | b"w" => Some(Op::Write),
        b"F" | b"f" => Some(Op::Flush),
        b"D" | b"d" => Some(Op::Discard),
        b"A" => Some(Op::Allocate),
        b"T" => Some(Op::Truncate),
        b"C" => Some(Op::Create),
        b"X" => Some(Op::Delete),
        b"trim" | b"Trim" | b"TRIM" => Some(Op::Discard),
        _ => Op::ALL.into_iter().find(|op| text.eq_ignore_ascii_case(op.name().as_bytes())),
    }
}

#[inline]
fn flags<const SEPARATOR: u8>(fields: &mut Fields<SEPARATOR>) -> Result<Flags, Wrong> {
    let number = fields.number();
    let text = fields.text("flags")?;
    let mut flags = Flags::NONE;
    for &letter in text {
        match Flags::LETTERS.iter().find(|(known, _)| *known == letter) {
            Some((_, flag)) => flags = flags | *flag,
            None if letter == b'-' => {}
            None => {
                let why = format!("is '{}', not letters of PUSMA or -", text.escape_ascii());
                return Err(Wrong::new(number, "flags", why));
            }
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::super::super::ReadOptions;
    use super::super::tests::{open, read};
    use super::*;

    #[test]
    fn our_own_columns_need_no_header() {
        let with =
            "#time_s,op,offset_bytes,length_bytes,flags\n0.000000,R,0,512,-\n0.003995,W,67584,512,PSM\n";
        let without = with.split_once('\n').unwrap().1;
        for text in [with, without] {
            let records = read("csv", text).unwrap();
            assert_eq!(records[0], Record::new(Time::ZERO, Op::Read, 0, 512));
            let flags = Flags::PREFLUSH | Flags::SYNC | Flags::META;
            assert_eq!(records[1], Record { flags, ..Record::new(Time(3_995_000), Op::Write, 67584, 512) });
        }
    }

    #[test]
    fn a_header_says_what_the_columns_are() {
        for (text, separator) in
            [("note,lba,sectors,Op,time_us,volume\n", ","), ("a;sector;sectors;rw;time_us;disk\n", ";")]
        {
            let line = ["x", "8", "16", "write", "1.5", "3"].join(separator);
            let records = read("csv", format!("{text}{line}\n")).unwrap();
            assert_eq!(records, [Record { unit: 3, ..Record::new(Time(1500), Op::Write, 4096, 8192) }]);
        }
        let text =
            "device_id,timestamp,op,offset,length\nvol-a,1700000000,R,0,512\nvol-b,1700000001,W,0,512\n";
        let units: Vec<_> = read("csv", text).unwrap().iter().map(|record| record.unit).collect();
        assert_eq!(units, [0, 1], "two volumes are not one");
        let error = open("csv", "time,op,length\n1,R,2\n", &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("no column is the offset"), "{error}");
    }

    #[test]
    fn columns_are_described_by_hand() {
        let columns = "time=5:ms,op=2:w0,offset=1:4KiB,length=3:512,separator=blank".parse().unwrap();
        let options = ReadOptions { columns: Some(columns), ..ReadOptions::default() };
        let records = open("csv", "where what many x when\n2 0 8 x 1.25\n3 1 8 x 2\n", &options).unwrap();
        assert_eq!(records[0], Record::new(Time(1_250_000), Op::Write, 8192, 4096));
        assert_eq!(records[1].op, Op::Read);
        for (text, told) in [
            ("op=1,length=2", "offset"),
            ("op=0,offset=1,length=2", "'0' of op"),
            ("op=1:x,offset=1,length=2", "w0 or r0"),
            ("op=1,offset=2:0,length=3", "a size"),
            ("op=1,place=2", "no 'place'"),
            ("op", "not of the form"),
            ("time=1:h", "s, ms, us or ns"),
        ] {
            let error = text.parse::<Columns>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn wrong_fields_are_named_by_their_column() {
        for (line, told) in [
            ("x,R,0,512,-", "field 1 (time) is 'x'"),
            ("1,Q,0,512,-", "field 2 (op) is 'Q'"),
            ("1,1,0,512,-", "which is the write"),
            ("1,R,-1,512,-", "field 3 (offset) is '-1'"),
            ("1,R,0", "field 4 (length) is missing"),
            ("1,R,0,512,Z", "field 5 (flags) is 'Z'"),
        ] {
            let error =
                open("csv", format!("0,R,0,1\n{line}\n"), &ReadOptions::default()).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(told), "{line}: {error}");
        }
    }

    #[test]
    fn every_letter_and_word_is_an_operation() {
        for (letter, op) in b"RWFDATCX".iter().zip(Op::ALL) {
            assert_eq!(word(&[*letter]), Some(op));
            assert_eq!(word(op.name().as_bytes()), Some(op));
        }
    }
}
