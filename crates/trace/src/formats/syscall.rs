//! System-call traces of whole programs, as `shared` tools record them with strace: reads and writes of
//! files, and what brings files into being and ends them.
//!
//! `time_s,pid,op,path_id,offset,length,result` under a header of these names; offsets are explicit. The
//! unit is the file's *contents*: a rename keeps it, a second name shares it, and the last name's end is
//! the file's end. Calls that failed or touch no contents (stat, open, close, …) are skipped.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace};
use super::super::{Flags, Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;
use rustc_hash::FxHashMap;

/// How such a file begins.
pub(crate) const HEADER: &[u8] = b"#time_s,pid,op,path_id,offset,length,result";

/// Registry line.
pub const FORMAT: Format = Format {
    name: "syscall",
    about: "system calls on files: time_s,pid,op,path_id,offset,length,result",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(head.bytes.starts_with(HEADER)),
        open: |input, _| Ok(TextTrace::open(input, Syscall::default())),
    },
};

#[derive(Default)]
struct Syscall {
    /// Which contents a path has.
    contents: FxHashMap<u32, u32>,
    /// Names beyond the first of contents that have several.
    further_names: FxHashMap<u32, u32>,
    count: u32,
}

/// One call that succeeded.
pub(crate) struct Call<'a> {
    pub at: Time,
    pub process: u32,
    pub name: &'a [u8],
    pub path: u32,
    pub offset: u64,
    pub len: u64,
    pub result: u64,
}

/// The call on a line; none if it failed.
pub(crate) fn parse(line: &[u8]) -> Result<Option<Call<'_>>, Wrong> {
    let mut fields = Fields::<b','>::of(line);
    let at = Time(fields.decimal("time", 9)?);
    let process = fields.u32("process")?;
    let name = fields.text("op")?;
    let path = fields.u32("path")?;
    let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
    if fields.next_byte() == Some(b'-') {
        return Ok(None);
    }
    let result = fields.u64("result")?;
    Ok(Some(Call { at, process, name, path, offset, len, result }))
}

impl Syscall {
    fn contents(&mut self, path: u32) -> u32 {
        let next = self.count;
        let unit = *self.contents.entry(path).or_insert(next);
        self.count += u32::from(unit == next);
        unit
    }

    /// A path names nothing any more. The contents, if it was their last name.
    fn unname(&mut self, path: u32) -> Option<u32> {
        let unit = self.contents(path);
        self.contents.remove(&path);
        match self.further_names.get_mut(&unit) {
            Some(names) if *names > 0 => {
                *names -= 1;
                None
            }
            _ => Some(unit),
        }
    }

    /// `path` becomes `new`; what was there before may end.
    fn rename(&mut self, path: u32, new: u32) -> Option<u32> {
        if path == new {
            return None;
        }
        let replaced = self.contents.contains_key(&new).then(|| self.unname(new)).flatten();
        let unit = self.contents(path);
        self.contents.remove(&path);
        self.contents.insert(new, unit);
        replaced
    }

    fn link(&mut self, path: u32, new: u32) {
        let unit = self.contents(path);
        self.contents.insert(new, unit);
        *self.further_names.entry(unit).or_default() += 1;
    }

    fn record(&mut self, call: &Call) -> Option<Record> {
        let on = |unit, op, offset, len| Some(Record { unit, ..Record::new(call.at, op, offset, len) });
        match call.name {
            b"read" | b"write" => {
                let op = if call.name == b"read" { Op::Read } else { Op::Write };
                (call.result > 0)
                    .then(|| on(self.contents(call.path), op, call.offset, call.result))
                    .flatten()
            }
            b"fsync" | b"fdatasync" => {
                let flushed = Record::new(call.at, Op::Flush, 0, 0);
                Some(Record { unit: self.contents(call.path), flags: Flags::SYNC, ..flushed })
            }
            b"create" => on(self.contents(call.path), Op::Create, 0, 0),
            b"opentrunc" => on(self.contents(call.path), Op::Truncate, 0, 0),
            b"truncate" => on(self.contents(call.path), Op::Truncate, call.len, 0),
            b"fallocate" | b"fallocate-keep" | b"zero" | b"zero-keep" => {
                on(self.contents(call.path), Op::Allocate, call.offset, call.len)
            }
            b"punch" => on(self.contents(call.path), Op::Discard, call.offset, call.len),
            b"unlink" => self.unname(call.path).and_then(|unit| on(unit, Op::Delete, 0, 0)),
            b"rename" => {
                let replaced = self.rename(call.path, u32::try_from(call.offset).ok()?);
                replaced.and_then(|unit| on(unit, Op::Delete, 0, 0))
            }
            b"link" => {
                self.link(call.path, u32::try_from(call.offset).ok()?);
                None
            }
            _ => None,
        }
    }
}

impl LineFormat for Syscall {
    const NAME: &'static str = "syscall";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if line[0] == b'#' {
            return Ok(None);
        }
        Ok(parse(line)?.and_then(|call| self.record(&call)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    const HEAD: &str = "#time_s,pid,op,path_id,offset,length,result\n";

    #[test]
    fn only_what_was_done_to_contents_counts() {
        let text = "0.0,0,open,2,0,0,0\n0.1,0,read,2,0,100,60\n0.2,0,read,2,60,100,0\n0.3,0,read,9,0,1,-9\n\
                    0.4,1,create,5,0,1,0\n0.5,1,write,5,0,10,10\n0.6,1,fsync,5,0,0,0\n0.7,1,truncate,5,0,4,0\n";
        let records = read("syscall", format!("{HEAD}{text}")).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.op, r.unit, r.offset, r.len)).collect();
        let expected = [
            (Op::Read, 0, 0, 60),
            (Op::Create, 1, 0, 0),
            (Op::Write, 1, 0, 10),
            (Op::Flush, 1, 0, 0),
            (Op::Truncate, 1, 4, 0),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn contents_follow_renames_and_end_with_their_last_name() {
        let text = "0,0,write,1,0,8,8\n0,0,write,2,0,8,8\n0,0,rename,1,2,0,0\n0,0,write,2,8,8,8\n\
                    0,0,link,2,3,0,0\n0,0,unlink,2,0,0,0\n0,0,write,3,0,1,1\n0,0,unlink,3,0,0,0\n";
        let records = read("syscall", format!("{HEAD}{text}")).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.op, r.unit)).collect();
        let expected = [
            (Op::Write, 0),
            (Op::Write, 1),
            (Op::Delete, 1),
            (Op::Write, 0),
            (Op::Write, 0),
            (Op::Delete, 0),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("syscall", format!("{HEAD}0,0,read,x,0,0,0\n")).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("field 4 (path)"), "{error}");
    }
}
