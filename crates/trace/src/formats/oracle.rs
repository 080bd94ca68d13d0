//! libCacheSim's `oracleGeneral` records: requests for objects by number.
//!
//! 24 bytes each, little endian: u32 seconds, u64 object, u32 bytes, i64 index of the object's next
//! request (-1: none; not used here). An object is taken for one page of [`PAGE_BYTES`], read whole, so
//! that object n is page n. Numbers of 2⁵⁰ and more (hashes of names, mostly) are no pages of anything: their upper bits
//! are laid over the lower ones, which takes two of a million hashes for one once in two thousand traces.

use super::super::input::Input;
use super::super::lines::Confidence;
use super::super::window::Window;
use super::super::zero::Zero;
use super::super::{BATCH, Op, Record, Records, Tally};
use super::{Format, Head, Make};
use bimetal_base::{Error, Result};

const RECORD_BYTES: usize = 24;
const PAGE_BYTES: u64 = 4096;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "oracle",
    about: "libCacheSim oracleGeneral binary: objects read, one page of 4 KiB each",
    options: &[],
    make: Make { detects, open: |input, _| Ok(Box::new(Oracle::new(input))) },
};

/// Bits of a page's number.
const PAGE_BITS: u32 = 50;

/// The page that an object is.
fn page_of(object: u64) -> u64 {
    (object ^ object >> PAGE_BITS) & ((1 << PAGE_BITS) - 1)
}

/// One record's fields.
struct Raw {
    seconds: u32,
    object: u64,
    bytes: u32,
    next: i64,
}

impl Raw {
    fn of(bytes: &[u8; RECORD_BYTES]) -> Raw {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = *bytes;
        Raw {
            seconds: u32::from_le_bytes([a, b, c, d]),
            object: u64::from_le_bytes([e, f, g, h, i, j, k, l]),
            bytes: u32::from_le_bytes([m, n, o, p]),
            next: i64::from_le_bytes([q, r, s, t, u, v, w, x]),
        }
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

struct Oracle {
    name: String,
    window: Window,
    zero: Zero,
    tally: Tally,
}

impl Oracle {
    fn new(input: Input) -> Oracle {
        Oracle {
            name: input.name,
            window: Window::new(input.bytes),
            zero: Zero::default(),
            tally: Tally::default(),
        }
    }

    fn corrupt(&self, why: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("oracle trace {}", self.name), why, format!("record {}", self.tally.lines + 1))
    }
}

impl Records for Oracle {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        for _ in 0..BATCH {
            if !self.window.has(RECORD_BYTES).map_err(|why| Error::io(&self.name, why))? {
                return match self.window.bytes() {
                    [] => Ok(()),
                    _ => Err(self.corrupt("the file ends within a record")),
                };
            }
            let Some(bytes) = self.window.bytes().first_chunk() else { return Ok(()) };
            let raw = Raw::of(bytes);
            self.window.use_up(RECORD_BYTES);
            self.tally.lines += 1;
            let (at, flags) = self.zero.since(u64::from(raw.seconds), 1_000_000_000);
            batch.push(Record {
                flags,
                ..Record::new(at, Op::Read, page_of(raw.object) * PAGE_BYTES, PAGE_BYTES)
            });
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        self.tally
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
