//! SPC traces (Storage Performance Council trace file specification 1.0.1; the UMass Financial and
//! WebSearch traces).
//!
//! `unit,address,bytes,opcode,seconds[,…]`: the address in blocks of 512 bytes of the application storage
//! unit, the opcode `r` or `w` in either case. Further fields are not read.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::{Op, Record};
use super::{Format, Head, Make};
use bimetal_base::time::Time;

const BLOCK_BYTES: u64 = 512;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "spc",
    about: "SPC (UMass Financial, WebSearch): unit,block512,bytes,R|W,seconds",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Spc, head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Spc)),
    },
};

struct Spc;

impl LineFormat for Spc {
    const NAME: &'static str = "spc";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<b','>::of(line);
        let unit = fields.u32("unit")?;
        let offset = fields.scaled("address", BLOCK_BYTES)?;
        let len = fields.u64("size")?;
        let op = match fields.text("opcode")? {
            b"r" | b"R" => Op::Read,
            b"w" | b"W" => Op::Write,
            other => {
                return Err(Wrong::new(
                    4,
                    "opcode",
                    format!("is '{}', neither r nor w", other.escape_ascii()),
                ));
            }
        };
        let at = Time(fields.decimal("time", 9)?);
        Ok(Some(Record { unit, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    #[test]
    fn lines_of_the_published_traces_are_read() {
        let records = read("spc", "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214,7\n").unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 303567 * 512, 3584));
        let second = Record::new(Time(26_214_000), Op::Read, 55590 * 512, 3072);
        assert_eq!(records[1], Record { unit: 1, ..second });
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("spc", "0,1,512,x,0.0\n").unwrap_err().to_string();
        assert!(error.contains("field 4 (opcode) is 'x'"), "{error}");
        let error = read("spc", "0,18446744073709551615,512,r,0.0\n").unwrap_err().to_string();
        assert!(error.contains("field 2 (address)"), "{error}");
    }
}
