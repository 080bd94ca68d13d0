//! MSR Cambridge block traces (Narayanan, Donnelly, Rowstron: Write Off-Loading, FAST 2008; SNIA IOTTA).
//!
//! `filetime,host,disk,Read|Write,offset,length,response`: the first in units of 100 ns since 1601, the
//! others in bytes; the response time is the recorded machine's and is not read. The unit is the disk
//! number. Time counts from the first request; one earlier than it (there are some) arrives at zero.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::{Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "msr",
    about: "MSR Cambridge: filetime,host,disk,Read|Write,offset,bytes,response",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Msr::default(), head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Msr::default())),
    },
};

#[derive(Default)]
struct Msr {
    zero: Option<u64>,
}

impl LineFormat for Msr {
    const NAME: &'static str = "msr";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<b','>::of(line);
        let ticks = fields.u64("time")?;
        fields.skip(1);
        let unit = fields.u32("disk")?;
        let number = fields.number();
        let op = match fields.text("type")? {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            other => {
                let why = format!("is '{}', neither Read nor Write", other.escape_ascii());
                return Err(Wrong::new(number, "type", why));
            }
        };
        let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
        let since = ticks.saturating_sub(*self.zero.get_or_insert(ticks));
        let at = Time(since.saturating_mul(100));
        Ok(Some(Record { unit, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn lines_of_the_published_traces_are_read() {
        let text = "128166385295514663,hm,0,Write,9056014336,2048,2833\n\
                    128166385295514878,hm,1,Read,11855351808,512,2617\n\
                    128166385295514600,hm,0,Read,0,512,1\n";
        let records = read("msr", text).unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 9056014336, 2048));
        assert_eq!(records[1], Record { unit: 1, ..Record::new(Time(21_500), Op::Read, 11855351808, 512) });
        assert_eq!(records[2].at, Time::ZERO);
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("msr", "1,h,0,Trim,0,512,1\n").unwrap_err().to_string();
        assert!(error.contains("field 4 (type) is 'Trim'"), "{error}");
        let error = read("msr", "1,h,0,Read,0\n").unwrap_err().to_string();
        assert!(error.contains("field 6 (length) is missing"), "{error}");
    }
}
