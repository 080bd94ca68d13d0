//! The text that `blkparse` prints in its default format (blktrace user guide).
//!
//! `major,minor cpu sequence seconds.nanoseconds pid action rwbs sector + sectors [process]`. One kind of
//! action is read (see [`Event`]); the others, messages and the summary at the end are skipped. The unit is
//! the device, in the order of their first lines. Time is that of the line.

use super::super::fields::{BLANKS, Fields, Wrong};
use super::super::lines::{Confidence, LineFormat, TextTrace, reads_as};
use super::super::{Flags, Op, Record};
use super::blktrace::{Event, EventCounts, SECTOR_BYTES, Units};
use super::{Format, Head, Make};
use bimetal_base::time::Time;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "blkparse",
    about: "blkparse text, default format; --event chooses among Q, D and C",
    options: &[],
    make: Make {
        detects: |head: &Head| {
            let kinds = [Event::Issue, Event::Queue, Event::Complete];
            let confidence = |event| reads_as(BlkParse::new(event), head.bytes, head.whole);
            kinds.into_iter().map(confidence).max().unwrap_or(Confidence::None)
        },
        open: |input, options| Ok(TextTrace::open(input, BlkParse::new(options.event))),
    },
};

struct BlkParse {
    event: Event,
    seen: EventCounts,
    units: Units,
    /// The summary has begun.
    over: bool,
}

impl BlkParse {
    fn new(event: Event) -> BlkParse {
        BlkParse { event, seen: EventCounts::default(), units: Units::default(), over: false }
    }
}

/// The operation and flags in blkparse's letters: `[F]` before, one of `R W D F N`, then `F A S M`.
/// `None`: nothing is asked for.
pub(super) fn operation(letters: &[u8], sectors: u64) -> Result<Option<(Op, Flags)>, String> {
    let unknown = || format!("is '{}', not the letters of blkparse", letters.escape_ascii());
    let kind = |byte: &u8| b"RWDFN".contains(byte);
    let (preflush, op, rest) = match letters {
        [b'F', op, rest @ ..] if kind(op) => (true, *op, rest),
        [op, rest @ ..] if kind(op) => (false, *op, rest),
        _ => return Err(unknown()),
    };
    let mut flags = Flags::NONE.with(Flags::PREFLUSH, preflush && sectors > 0);
    for letter in rest {
        flags = flags
            | match letter {
                b'F' => Flags::FUA,
                b'A' => Flags::AHEAD,
                b'S' => Flags::SYNC,
                b'M' => Flags::META,
                // A secure erase is a discard; B was the barrier of old kernels.
                b'E' | b'V' => Flags::NONE,
                b'B' => Flags::PREFLUSH | Flags::FUA,
                _ => return Err(unknown()),
            };
    }
    Ok(match op {
        b'F' => Some((Op::Flush, flags)),
        _ if sectors == 0 && preflush => Some((Op::Flush, flags)),
        _ if sectors == 0 => None,
        b'R' => Some((Op::Read, flags)),
        b'W' => Some((Op::Write, flags)),
        b'D' => Some((Op::Discard, flags)),
        _ => None,
    })
}

impl LineFormat for BlkParse {
    const NAME: &'static str = "blkparse";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        self.over |= line.starts_with(b"CPU") || line.starts_with(b"Total (");
        if self.over || line.starts_with(b"Input file ") {
            return Ok(None);
        }
        let mut fields = Fields::<BLANKS>::of(line);
        let device = fields.text("device")?;
        if !device.iter().all(|byte| byte.is_ascii_digit() || *byte == b',') || !device.contains(&b',') {
            return Err(Wrong::new(1, "device", format!("is '{}', not major,minor", device.escape_ascii())));
        }
        fields.skip(2);
        let at = Time(fields.decimal("time", 9)?);
        fields.skip(1);
        let action = fields.text("action")?;
        let Some(event) = Event::of_letter(action) else {
            return Ok(None);
        };
        self.seen.count(event);
        if event != self.event {
            return Ok(None);
        }
        let letters = fields.text("rwbs")?;
        let (offset, sectors) = range(&mut fields)?;
        let operation = operation(letters, sectors).map_err(|why| Wrong::new(7, "rwbs", why))?;
        let Some((op, flags)) = operation else {
            return Ok(None);
        };
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, sectors * SECTOR_BYTES) };
        Ok(Some(Record { unit: self.units.of(device), flags, ..Record::new(at, op, offset, len) }))
    }

    fn lacks(&self) -> Option<String> {
        self.seen.lacks(self.event)
    }
}

/// `sector + sectors`, in bytes and sectors; nothing (a bare process name) for a request without data.
fn range(fields: &mut Fields<BLANKS>) -> Result<(u64, u64), Wrong> {
    if !fields.next_byte().is_some_and(|byte| byte.is_ascii_digit()) {
        return Ok((0, 0));
    }
    let offset = fields.scaled("sector", SECTOR_BYTES)?;
    if fields.is_over() || fields.text("plus")? != b"+" {
        return Ok((offset, 0));
    }
    Ok((offset, u64::from(fields.u32("sectors")?)))
}

#[cfg(test)]
mod tests {
    use super::super::super::ReadOptions;
    use super::super::tests::{open, read};
    use super::*;

    const TEXT: &str = "  8,0    1        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
                        \x20 8,0    1        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n\
                        \x20 8,0    1        3     0.000002197   697  P   N [kjournald]\n\
                        \x20 8,0    1        5     0.000011000   697  D   R 223490 + 8 [kjournald]\n\
                        \x20 8,16   0        6     0.000012500     0  D WSM 8 + 16 [kworker/0:1H]\n\
                        \x20 8,0    0        7     0.000013000     0  D  FN [swapper/0]\n\
                        \x20 8,0    0        8     0.000013500     0  D FWFS 0 + 1 [swapper/0]\n\
                        \x20 8,0    0        9     0.000014000     0  m   N cfq idle\n\
                        \x20 8,0    0       10     0.000015000     0  C   R 223490 + 8 [0]\n\
                        Input file sda.blktrace.0 added\nCPU0 (sda):\n Reads Queued:           1,        4KiB\n";

    #[test]
    fn one_kind_of_action_is_read() {
        let records = read("blkparse", TEXT).unwrap();
        let ops: Vec<_> = records.iter().map(|r| (r.op, r.offset, r.len, r.unit)).collect();
        let expected = [
            (Op::Read, 223490 * 512, 4096, 0),
            (Op::Write, 4096, 8192, 1),
            (Op::Flush, 0, 0, 0),
            (Op::Write, 0, 512, 0),
        ];
        assert_eq!(ops, expected);
        assert_eq!(records[1].flags, Flags::SYNC | Flags::META);
        assert_eq!(records[3].flags, Flags::SYNC | Flags::PREFLUSH | Flags::FUA);
        assert_eq!(records[3].at, Time(13_500));
        for (event, count) in [(Event::Queue, 1), (Event::Complete, 1)] {
            let options = ReadOptions { event, ..ReadOptions::default() };
            assert_eq!(open("blkparse", TEXT, &options).unwrap().len(), count);
        }
    }

    #[test]
    fn a_trace_without_the_event_says_which_it_has() {
        let text = TEXT.lines().next().unwrap();
        let error = open("blkparse", text, &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("no D") && error.contains("1 of Q"), "{error}");
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("blkparse", "8,0 1 1 0.1 697 D ZZ 1 + 8 [x]\n").unwrap_err().to_string();
        assert!(error.contains("field 7 (rwbs) is 'ZZ'"), "{error}");
        let error = read("blkparse", "8,0 1 1 zero 697 D R 1 + 8 [x]\n").unwrap_err().to_string();
        assert!(error.contains("field 4 (time) is 'zero'"), "{error}");
    }
}
