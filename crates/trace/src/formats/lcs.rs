//! libCacheSim's own binary format, `lcs`, versions 1 to 8: requests for objects by number.
//!
//! A header of 8192 bytes with [`MAGIC`] at its beginning and its end, the version in its second word and counts of the
//! trace between them, then records, little endian: u32 seconds, u64 object, its size (u32; i64 from version 3 on), from
//! version 2 on a word with the operation (8 bits) and the tenant (24), from version 3 on a u32 time to live, i64 index of
//! the object's next request, from version 4 on 1, 2, 4, 8 or 16 words of features. An object is a [page](super::keys), the
//! unit is the tenant. Only seconds, object, operation and tenant are read.

use super::super::lines::Confidence;
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::fixed::{FixedFormat, FixedTrace, u32_at, u64_at};
use super::keys::of_object;
use super::{Format, Head, Make};

/// The first and the last word of the header.
const MAGIC: u64 = 0x1234_5678_9abc_def0;
const HEADER_BYTES: usize = 8192;
/// Bytes of a record by version, from 1.
const RECORD_BYTES: [usize; 8] = [24, 28, 36, 40, 44, 52, 68, 100];

/// Registry line.
pub const FORMAT: Format = Format {
    name: "lcs",
    about: "libCacheSim lcs binary, versions 1 to 8: objects, one page of 4 KiB each; the unit is the tenant",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(head.bytes.starts_with(&MAGIC.to_le_bytes())),
        open: |input, _| FixedTrace::open(input, HEADER_BYTES, Lcs::begin),
    },
};

struct Lcs {
    version: usize,
    zero: Zero,
}

impl Lcs {
    fn begin(header: &[u8]) -> Result<Lcs, String> {
        if [0, HEADER_BYTES - 8].iter().any(|at| u64_at(header, *at) != MAGIC) {
            return Err(format!("does not begin and end with {MAGIC:#x}"));
        }
        match u64_at(header, 8) {
            version @ 1..=8 => Ok(Lcs { version: version as usize, zero: Zero::default() }),
            other => Err(format!("is of version {other}; 1 to 8 are known")),
        }
    }

    /// What a number of libCacheSim's says (`req_op_e`); none of what touches no contents.
    fn operation(number: u8) -> Option<Op> {
        match number {
            // get, gets, read
            1 | 2 | 12 => Some(Op::Read),
            // set, add, cas, replace, append, prepend; incr, decr; write, update
            3..=8 | 10 | 11 | 13 | 14 => Some(Op::Write),
            // delete
            9 => Some(Op::Discard),
            _ => None,
        }
    }
}

impl FixedFormat for Lcs {
    const NAME: &'static str = "lcs";

    fn bytes(&self) -> usize {
        RECORD_BYTES[self.version - 1]
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Record>, String> {
        let at = self.zero.since(u32_at(bytes, 0).into(), 1_000_000_000);
        // Behind the size, which is of 4 bytes in the first two versions.
        let word = match self.version {
            1 => None,
            2 => Some(u32_at(bytes, 16)),
            _ => Some(u32_at(bytes, 20)),
        };
        let op = word.map_or(Some(Op::Read), |word| Lcs::operation(word as u8));
        let unit = word.map_or(0, |word| word >> 8);
        Ok(op.map(|op| Record { unit, ..of_object(at, op, u64_at(bytes, 4)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use crate::Flags;
    use bimetal_base::time::Time;

    fn header(version: u64) -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&version.to_le_bytes());
        header[HEADER_BYTES - 8..].copy_from_slice(&MAGIC.to_le_bytes());
        header
    }

    fn record(version: usize, seconds: u32, object: u64, op: u8, tenant: u32) -> Vec<u8> {
        let mut record = vec![0; RECORD_BYTES[version - 1]];
        record[..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..12].copy_from_slice(&object.to_le_bytes());
        let at = if version == 2 { 16 } else { 20 };
        if version > 1 {
            record[at..at + 4].copy_from_slice(&(u32::from(op) | tenant << 8).to_le_bytes());
        }
        record
    }

    #[test]
    fn every_version_gives_the_same_requests() {
        for version in 1..=8 {
            let bytes = [
                header(version as u64),
                record(version, 5, 7, 1, 3),
                record(version, 6, 8, 3, 4),
                record(version, 6, 8, 0, 4),
                record(version, 7, 9, 9, 4),
            ];
            let records = read("lcs", bytes.concat()).unwrap();
            let second = Time(1_000_000_000);
            if version == 1 {
                assert_eq!(records.len(), 4);
                assert_eq!(records[1], Record::new(second, Op::Read, 8 * 4096, 4096));
                continue;
            }
            assert_eq!(records.len(), 3, "what touches nothing is no request");
            assert_eq!(records[0], Record { unit: 3, ..Record::new(Time::ZERO, Op::Read, 7 * 4096, 4096) });
            assert_eq!(records[1], Record { unit: 4, ..Record::new(second, Op::Write, 8 * 4096, 4096) });
            assert_eq!((records[2].op, records[2].flags), (Op::Discard, Flags::NONE));
        }
    }

    #[test]
    fn a_header_or_a_record_that_is_damaged_is_placed() {
        let told = |bytes: Vec<u8>| read("lcs", bytes).unwrap_err().to_string();
        assert!(told(header(9)).contains("its header") && told(header(9)).contains("version 9"));
        assert!(told(header(1)[..100].to_vec()).contains("shorter than 8192"));
        let mut cut = [header(2), record(2, 5, 7, 1, 3), record(2, 5, 7, 1, 3)].concat();
        cut.pop();
        assert!(told(cut.clone()).contains("record 2"), "{}", told(cut));
    }
}
