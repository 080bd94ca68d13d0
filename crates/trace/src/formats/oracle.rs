//! libCacheSim's `oracleGeneral` records: requests for objects by number.
//!
//! 24 bytes each, little endian: u32 seconds, u64 object, u32 bytes, i64 index of the object's next
//! request (-1: none; not used here). An object is a [page](super::keys) that is read.

use super::super::lines::Confidence;
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::fixed::{FixedFormat, FixedTrace, part, u32_at, u64_at};
use super::keys::of_object;
use super::{Format, Head, Make};

const RECORD_BYTES: usize = 24;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "oracle",
    about: "libCacheSim oracleGeneral binary: objects read, one page of 4 KiB each",
    options: &[],
    make: Make { detects, open: |input, _| FixedTrace::open(input, 0, |_| Ok(Oracle::default())) },
};

/// What of a record tells that it is one.
struct Raw {
    seconds: u32,
    bytes: u32,
    next: i64,
}

impl Raw {
    fn of(bytes: &[u8]) -> Raw {
        let next = i64::from_le_bytes(part(bytes, 16));
        Raw { seconds: u32_at(bytes, 0), bytes: u32_at(bytes, 12), next }
    }
}

/// Binary records have no magic; what they hold must be in order and within reason.
fn detects(head: &Head) -> Confidence {
    let (records, rest) = head.bytes.as_chunks::<RECORD_BYTES>();
    let mut last = 0;
    let sound = |(number, bytes): (usize, &[u8; RECORD_BYTES])| {
        let raw = Raw::of(bytes);
        let in_order = raw.seconds >= last;
        last = raw.seconds;
        in_order && raw.bytes > 0 && raw.bytes < 1 << 30 && (raw.next == -1 || raw.next > number as i64)
    };
    let whole = !records.is_empty() && (rest.is_empty() || !head.whole);
    Confidence::full_if(whole && records.iter().enumerate().all(sound))
}

#[derive(Default)]
struct Oracle {
    zero: Zero,
}

impl FixedFormat for Oracle {
    const NAME: &'static str = "oracle";

    fn bytes(&self) -> usize {
        RECORD_BYTES
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Record>, String> {
        let at = self.zero.since(u32_at(bytes, 0).into(), 1_000_000_000);
        Ok(Some(of_object(at, Op::Read, u64_at(bytes, 4))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use crate::Flags;
    use bimetal_base::time::Time;

    fn record(seconds: u32, object: u64, next: i64) -> Vec<u8> {
        let parts: [&[u8]; 4] =
            [&seconds.to_le_bytes(), &object.to_le_bytes(), &4096u32.to_le_bytes(), &next.to_le_bytes()];
        parts.concat()
    }

    #[test]
    fn an_object_is_a_page() {
        let records =
            read("oracle", [record(5, 7, 2), record(6, 1 << 40, -1), record(6, 7, -1)].concat()).unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Read, 7 * 4096, 4096));
        assert_eq!((records[1].at, records[1].offset), (Time(1_000_000_000), 1 << 52));
        assert_eq!(records[2].offset, 7 * 4096);
    }

    #[test]
    fn objects_named_by_hashes_are_pages_too_and_stay_apart() {
        let hashes = [u64::MAX, 1 << 60, (1 << 60) + 1, 0xfedc_ba98_7654_3210, (1 << 50) - 1];
        let bytes = hashes.iter().flat_map(|hash| record(5, *hash, -1)).collect::<Vec<_>>();
        let mut offsets: Vec<_> = read("oracle", bytes).unwrap().iter().map(|record| record.offset).collect();
        assert_eq!(offsets[4], ((1 << 50) - 1) * 4096);
        assert!(offsets.iter().all(|offset| *offset < 1 << 62));
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), hashes.len());
    }

    #[test]
    fn an_object_dated_before_the_first_is_out_of_order() {
        let bytes = [record(7, 1, -1), record(6, 2, -1)].concat();
        let records = super::super::tests::open("oracle", bytes, &Default::default()).unwrap();
        assert_eq!((records[1].at, records[1].flags), (Time::ZERO, Flags::EARLY));
    }

    #[test]
    fn a_cut_record_is_placed() {
        let mut bytes = [record(5, 7, -1), record(6, 8, -1)].concat();
        bytes.pop();
        let error = read("oracle", bytes).unwrap_err().to_string();
        assert!(error.contains("record 2") && error.contains("ends within"), "{error}");
    }
}
