//! DiskSim ASCII traces (the `ascii` format of the DiskSim 4.0 manual, section 3.2).
//!
//! `milliseconds device block blocks flags`, separated by blanks; blocks of 512 bytes; bit 0 of the flags,
//! which are hexadecimal, is set for a read. The unit is the device number. A request of no blocks asks
//! for nothing and is skipped.

use super::super::fields::{BLANKS, Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace, reads_as};
use super::super::{Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;
use memchr::memchr;

const BLOCK_BYTES: u64 = 512;
const READ: u64 = 1;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "disksim",
    about: "DiskSim ASCII: ms device block512 blocks flags (bit 0: read)",
    // Without a decimal point it may as well be MQSim's.
    options: &[],
    make: Make {
        detects: |head: &Head| match memchr(b'.', head.bytes) {
            Some(_) => reads_as(DiskSim, head.bytes, head.whole),
            None => Confidence::None,
        },
        open: |input, _| Ok(TextTrace::open(input, DiskSim)),
    },
};

struct DiskSim;

impl LineFormat for DiskSim {
    const NAME: &'static str = "disksim";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<BLANKS>::of(line);
        let at = Time(fields.decimal("time", 6)?);
        let unit = fields.u32("device")?;
        let offset = fields.scaled("block", BLOCK_BYTES)?;
        let len = fields.scaled("blocks", BLOCK_BYTES)?;
        let text = fields.text("flags")?;
        let flags = std::str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let Some(flags) = flags else {
            return Err(Wrong::new(5, "flags", format!("is '{}', not hexadecimal", text.escape_ascii())));
        };
        let op = if flags & READ != 0 { Op::Read } else { Op::Write };
        Ok((len > 0).then_some(Record { unit, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn odd_flags_are_reads() {
        let records = read("disksim", "13.191135\t30\t0\t5\t1\n17.829285\t20\t576560\t6\tA\n").unwrap();
        assert_eq!(records[0], Record { unit: 30, ..Record::new(Time(13_191_135), Op::Read, 0, 2560) });
        assert_eq!((records[1].op, records[1].offset), (Op::Write, 576560 * 512));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("disksim", "1.0 0 2 3\n").unwrap_err().to_string();
        assert!(error.contains("field 5 (flags) is missing"), "{error}");
        let error = read("disksim", "1.0 0 2 3 z\n").unwrap_err().to_string();
        assert!(error.contains("'z', not hexadecimal"), "{error}");
    }
}
