//! fio's I/O logs (`write_iolog`), versions 2 and 3 (fio documentation, "Trace file format").
//!
//! The first line is `fio version N iolog`. Version 2: `file action [offset length]`, no instants but
//! `wait` (microseconds); version 3: the same after the microseconds since the start. The unit is the file,
//! in the order of their first lines. `add`, `open` and `close` ask for nothing and are skipped.

use super::super::fields::{BLANKS, Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace};
use super::super::{Flags, Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;
use rustc_hash::FxHashMap;

const HEADER: &[u8] = b"fio version ";

/// Registry line.
pub const FORMAT: Format = Format {
    name: "fio",
    about: "fio iolog, versions 2 and 3: [microseconds] file action [offset bytes]",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(head.bytes.starts_with(HEADER)),
        open: |input, _| Ok(TextTrace::open(input, Fio::default())),
    },
};

#[derive(Default)]
struct Fio {
    /// 2 or 3; 0 before the header.
    version: u8,
    /// Version 2: what the waits so far add up to, ns.
    waited_ns: u64,
    files: FxHashMap<Vec<u8>, u32>,
}

impl Fio {
    fn header(&mut self, line: &[u8]) -> Result<(), Wrong> {
        self.version = match line {
            b"fio version 2 iolog" => 2,
            b"fio version 3 iolog" => 3,
            _ => {
                let why = "does not say 'fio version 2 iolog' or 'fio version 3 iolog'";
                return Err(Wrong::new(1, "header", why));
            }
        };
        Ok(())
    }

    fn unit(&mut self, file: &[u8]) -> u32 {
        if let Some(&unit) = self.files.get(file) {
            return unit;
        }
        let unit = self.files.len() as u32;
        self.files.insert(file.to_vec(), unit);
        unit
    }
}

impl LineFormat for Fio {
    const NAME: &'static str = "fio";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if self.version == 0 {
            return self.header(line).map(|()| None);
        }
        let mut fields = Fields::<BLANKS>::of(line);
        let at = match self.version {
            3 => fields.scaled("timestamp", 1000)?,
            _ => self.waited_ns,
        };
        let unit = self.unit(fields.text("file")?);
        let number = fields.number();
        let (op, flags) = match fields.text("action")? {
            b"read" => (Op::Read, Flags::NONE),
            b"write" => (Op::Write, Flags::NONE),
            b"sync" | b"datasync" => (Op::Flush, Flags::SYNC),
            b"trim" => (Op::Discard, Flags::NONE),
            b"add" | b"open" | b"close" => return Ok(None),
            b"wait" if self.version == 2 => {
                self.waited_ns = self.waited_ns.saturating_add(fields.scaled("wait", 1000)?);
                return Ok(None);
            }
            other => {
                let why = format!("is '{}', which is none of fio's", other.escape_ascii());
                return Err(Wrong::new(number, "action", why));
            }
        };
        if op == Op::Flush {
            return Ok(Some(Record { unit, flags, ..Record::new(Time(at), op, 0, 0) }));
        }
        let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
        Ok(Some(Record { unit, flags, ..Record::new(Time(at), op, offset, len) }))
    }

    fn lacks(&self) -> Option<String> {
        (self.version == 0).then(|| "there is no header line".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn version_3_has_its_microseconds() {
        let text = "fio version 3 iolog\n17 f add\n120 f open\n126 f read 0 4096\n300129 g write 32768 4096\n\
                    300171 f sync 32768 0\n700307 f close\n";
        let records = read("fio", text).unwrap();
        assert_eq!(records.len(), 3);
        assert_eq!(records[0], Record::new(Time(126_000), Op::Read, 0, 4096));
        assert_eq!((records[1].unit, records[1].op), (1, Op::Write));
        assert_eq!((records[2].unit, records[2].op, records[2].len), (0, Op::Flush, 0));
    }

    #[test]
    fn version_2_waits() {
        let text = "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb write 0 512\n/dev/sdb wait 150 0\n\
                    /dev/sdb trim 512 1024\n";
        let records = read("fio", text).unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 0, 512));
        assert_eq!(records[1], Record::new(Time(150_000), Op::Discard, 512, 1024));
    }

    #[test]
    fn wrong_headers_and_actions_are_named() {
        let error = read("fio", "fio version 4 iolog\n1 f read 0 1\n").unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("version 3"), "{error}");
        let error = read("fio", "fio version 3 iolog\n1 f wait 5\n").unwrap_err().to_string();
        assert!(error.contains("field 3 (action) is 'wait'"), "{error}");
    }
}
