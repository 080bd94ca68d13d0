//! Alibaba cloud block traces (Li and others: An In-depth Analysis of Cloud Block Storage Workloads,
//! IISWC 2020).
//!
//! `volume,R|W,offset,length,microseconds`: offset and length in bytes, the instant since the epoch.
//! The unit is the volume. Time counts from the first request.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::{Format, Head, Make};

/// What a file may begin with.
const HEADER: &[u8] = b"device_id,opcode,offset,length,timestamp";

/// Registry line.
pub const FORMAT: Format = Format {
    name: "alibaba",
    about: "Alibaba block storage: volume,R|W,offset,bytes,microseconds",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Alibaba::default(), head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Alibaba::default())),
    },
};

#[derive(Default)]
struct Alibaba {
    zero: Zero,
}

impl LineFormat for Alibaba {
    const NAME: &'static str = "alibaba";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if line == HEADER {
            return Ok(None);
        }
        let mut fields = Fields::<b','>::of(line);
        let unit = fields.u32("volume")?;
        let op = match fields.text("operation")? {
            b"R" => Op::Read,
            b"W" => Op::Write,
            other => {
                return Err(Wrong::new(
                    2,
                    "operation",
                    format!("is '{}', neither R nor W", other.escape_ascii()),
                ));
            }
        };
        let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
        let (at, flags) = self.zero.since(fields.u64("time")?, 1000);
        Ok(Some(Record { unit, flags, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use crate::Flags;
    use bimetal_base::time::Time;

    #[test]
    fn lines_of_the_published_traces_are_read() {
        let text = "419,W,5869752320,12288,1577808000000047\n419,R,0,4096,1577808000000050\n\
                    420,R,0,4096,1577808000000046\n";
        let records = read("alibaba", text).unwrap();
        let header = "device_id,opcode,offset,length,timestamp\n";
        assert_eq!(read("alibaba", format!("{header}{text}")).unwrap(), records);
        assert_eq!((records[2].at, records[2].flags), (Time::ZERO, Flags::EARLY), "dated before the first");
        assert_eq!(records[0], Record { unit: 419, ..Record::new(Time::ZERO, Op::Write, 5869752320, 12288) });
        assert_eq!((records[1].at, records[1].op), (Time(3000), Op::Read));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("alibaba", "419,X,0,1,2\n").unwrap_err().to_string();
        assert!(error.contains("field 2 (operation) is 'X'"), "{error}");
    }
}
