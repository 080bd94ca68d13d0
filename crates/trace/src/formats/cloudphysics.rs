//! CloudPhysics virtual disk traces as libCacheSim ships them in CSV (Waldspurger and others: SHARDS,
//! FAST 2015).
//!
//! `version,seconds,opcode,bytes,block` under a header of these names: the opcode is the SCSI command in
//! hexadecimal (28, 8, a8, 88 reads; 2a, a, aa, 8a, 2e writes; 35, 91 cache flushes; 42 unmap), the block
//! is of 512 bytes. Other commands move no data and are skipped. Time counts from the first request.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::{Format, Head, Make};

const BLOCK_BYTES: u64 = 512;
const HEADER: &[u8] = b"version,time,op,size,lbn";

/// Registry line.
pub const FORMAT: Format = Format {
    name: "cloudphysics",
    about: "CloudPhysics CSV of libCacheSim: version,seconds,SCSI opcode,bytes,block512",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(head.bytes.starts_with(HEADER)),
        open: |input, _| Ok(TextTrace::open(input, CloudPhysics::default())),
    },
};

#[derive(Default)]
struct CloudPhysics {
    zero: Zero,
}

/// What a SCSI command does to data, if anything (SBC-4, table of operation codes).
pub(super) const fn operation(opcode: u8) -> Option<Op> {
    match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        0x42 => Some(Op::Discard),
        _ => None,
    }
}

impl LineFormat for CloudPhysics {
    const NAME: &'static str = "cloudphysics";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if line == HEADER {
            return Ok(None);
        }
        let mut fields = Fields::<b','>::of(line);
        fields.skip(1);
        let seconds = fields.u64("time")?;
        let text = fields.text("op")?;
        let opcode = std::str::from_utf8(text).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
        let Some(opcode) = opcode else {
            let why = format!("is '{}', not a SCSI command in hexadecimal", text.escape_ascii());
            return Err(Wrong::new(3, "op", why));
        };
        let len = fields.u64("size")?;
        let offset = fields.scaled("lbn", BLOCK_BYTES)?;
        let (at, flags) = self.zero.since(seconds, 1_000_000_000);
        Ok(operation(opcode).map(|op| Record { flags, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use bimetal_base::time::Time;

    #[test]
    fn scsi_commands_become_operations() {
        let text =
            "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633899,28,6656,10\n1,5633899,0,0,0\n";
        let records = read("cloudphysics", text).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 42932745 * 512, 512));
        assert_eq!(records[1], Record::new(Time(1_000_000_000), Op::Read, 5120, 6656));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("cloudphysics", "version,time,op,size,lbn\n1,2,xy,4,5\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("field 3 (op) is 'xy'"), "{error}");
    }
}
