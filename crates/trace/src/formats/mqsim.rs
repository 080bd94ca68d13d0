//! MQSim and SSDSim ASCII traces.
//!
//! `nanoseconds device sector sectors operation`, separated by blanks; sectors of 512 bytes, operation 0 a
//! write and 1 a read. The unit is the device number.

use super::super::fields::{BLANKS, Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::{Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;

const SECTOR_BYTES: u64 = 512;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "mqsim",
    about: "MQSim, SSDSim ASCII: ns device sector512 sectors 0(write)|1(read)",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(MqSim, head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, MqSim)),
    },
};

struct MqSim;

impl LineFormat for MqSim {
    const NAME: &'static str = "mqsim";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<BLANKS>::of(line);
        let at = Time(fields.u64("time")?);
        let unit = fields.u32("device")?;
        let offset = fields.scaled("address", SECTOR_BYTES)?;
        let len = fields.scaled("sectors", SECTOR_BYTES)?;
        let op = match fields.u64("operation")? {
            0 => Op::Write,
            1 => Op::Read,
            other => return Err(Wrong::new(5, "operation", format!("is {other}, neither 0 nor 1"))),
        };
        Ok(Some(Record { unit, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn zero_is_a_write_and_one_a_read() {
        let records = read("mqsim", "938513000 4 264719034 16 0\n938828000\t3 197570570 8 1").unwrap();
        let first = Record::new(Time(938_513_000), Op::Write, 264719034 * 512, 8192);
        assert_eq!(records[0], Record { unit: 4, ..first });
        assert_eq!((records[1].op, records[1].len), (Op::Read, 4096));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("mqsim", "1 0 2 3 4\n").unwrap_err().to_string();
        assert!(error.contains("field 5 (operation) is 4"), "{error}");
    }
}
