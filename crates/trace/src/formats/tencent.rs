//! Tencent cloud block storage traces (Zhang and others: OSCA, USENIX ATC 2020; SNIA IOTTA).
//!
//! `seconds,offset,size,operation,volume`: offset and size in sectors of 512 bytes, operation 0 a read and
//! 1 a write. The unit is the volume. Time has whole seconds only and counts from the first request; the
//! published files are not quite in order, so that an earlier one arrives at zero and counts as out of order.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::{Format, Head, Make};

const SECTOR_BYTES: u64 = 512;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "tencent",
    about: "Tencent block storage: seconds,sector512,sectors,0(read)|1(write),volume",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Tencent::default(), head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Tencent::default())),
    },
};

#[derive(Default)]
struct Tencent {
    zero: Zero,
}

impl LineFormat for Tencent {
    const NAME: &'static str = "tencent";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<b','>::of(line);
        let seconds = fields.u64("time")?;
        let offset = fields.scaled("offset", SECTOR_BYTES)?;
        let len = fields.scaled("size", SECTOR_BYTES)?;
        let op = match fields.u64("operation")? {
            0 => Op::Read,
            1 => Op::Write,
            other => return Err(Wrong::new(4, "operation", format!("is {other}, neither 0 nor 1"))),
        };
        let unit = fields.u32("volume")?;
        let (at, flags) = self.zero.since(seconds, 1_000_000_000);
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
    fn zero_is_a_read_and_time_counts_from_the_first() {
        let text = "1538323199,4247200,128,1,1058\n1538323200,13896880,8,0,1063\n1538323198,0,8,0,1\n";
        let records = read("tencent", text).unwrap();
        assert_eq!(
            records[0],
            Record { unit: 1058, ..Record::new(Time::ZERO, Op::Write, 4247200 * 512, 65536) }
        );
        assert_eq!((records[1].at, records[1].op), (Time(1_000_000_000), Op::Read));
        assert_eq!((records[2].at, records[2].flags), (Time::ZERO, Flags::EARLY));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("tencent", "1,2,3,2,4\n").unwrap_err().to_string();
        assert!(error.contains("field 4 (operation) is 2"), "{error}");
    }
}
