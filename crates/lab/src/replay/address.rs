//! Where a trace's requests fall on the device: as recorded, wrapped around, or packed together.
//!
//! - *refuse*: at their own offsets; one past the end of the device is an error. The trace must be of one
//!   device or file.
//! - *wrap*: offsets modulo the device's size, in whole pages; a request over the end goes on at the start, as often as
//!   its length asks for.
//! - *compact*: the space of all units is cut into chunks, and a chunk gets the next free place of the
//!   device when it is first touched. Sparse and many-unit traces then fit a small device, order and
//!   closeness within a chunk are kept, and a deleted or truncated file gives its places back, discarded.
//!   Memory: about 24 bytes a chunk touched.

use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_trace::{Op, Record};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What becomes of offsets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// As recorded; past the end of the device is an error
    #[default]
    Refuse,
    /// Modulo the device's size
    Wrap,
    /// Chunk by chunk onto the next free place, several devices or files side by side
    Compact,
}

/// More chunks are not kept account of: some 40 bytes each.
const CHUNKS_MAX: u64 = 1 << 26;

/// The granularity of wrapping.
const WRAP_BYTES: u64 = 4096;

/// Ranges of a device: first byte, bytes.
pub(super) type Spans = SmallVec<[(u64, u64); 2]>;

/// What a record asks of the device: one request, or several where it is in several places.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Read, write, discard or flush.
    pub op: Op,
    /// Where; a flush is nowhere.
    pub spans: Spans,
}

impl Asked {
    fn at(op: Op, spans: impl IntoIterator<Item = (u64, u64)>) -> Asked {
        Asked { op, spans: spans.into_iter().collect() }
    }

    /// Whether there is nothing to ask.
    pub fn is_nothing(&self) -> bool {
        self.op != Op::Flush && self.spans.is_empty()
    }
}

/// Places records.
pub(super) struct AddressMapper {
    fit: Fit,
    /// The device's bytes; none: it has no end.
    size_bytes: Option<u64>,
    /// Only this unit counts.
    only: Option<u32>,
    /// The unit seen, where only one may be.
    unit: Option<u32>,
    chunks: Chunks,
}

impl AddressMapper {
    /// For a device of `size_bytes`; compact with chunks of `chunk_bytes`.
    pub fn new(fit: Fit, size_bytes: Option<u64>, only: Option<u32>, chunk_bytes: u64) -> AddressMapper {
        let chunks = Chunks {
            bytes: chunk_bytes,
            limit: size_bytes.map(|size| size / chunk_bytes),
            ..Chunks::default()
        };
        AddressMapper { fit, size_bytes, only, unit: None, chunks }
    }

    /// What `record` asks of the device; nothing if it is of another unit or moves nothing.
    ///
    /// # Errors
    /// It does not fit, or is of a second unit where only one can be.
    pub fn place(&mut self, record: &Record) -> Result<Asked> {
        if self.only.is_some_and(|only| only != record.unit) {
            return Ok(Asked::at(Op::Read, []));
        }
        if record.op == Op::Flush {
            return Ok(Asked::at(Op::Flush, []));
        }
        match self.fit {
            Fit::Compact => self.compact(record),
            Fit::Refuse | Fit::Wrap => {
                self.check_unit(record)?;
                self.pieces(record)
            }
        }
    }

    fn check_unit(&mut self, record: &Record) -> Result<()> {
        let first = *self.unit.get_or_insert(record.unit);
        if first == record.unit {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the trace has requests of units {first} and {} (devices or files); choose one with --unit or lay \
             them side by side with --fit compact",
            record.unit
        )))
    }

    fn pieces(&self, record: &Record) -> Result<Asked> {
        let moves = matches!(record.op, Op::Read | Op::Write | Op::Discard) && record.len > 0;
        let mut asked = Asked { op: record.op, spans: Spans::new() };
        if !moves {
            return Ok(Asked::at(Op::Read, []));
        }
        let fits = |size| record.offset.checked_add(record.len).is_some_and(|end| end <= size);
        let Some(size) = self.size_bytes.filter(|size| !fits(*size)) else {
            asked.spans.push((record.offset, record.len));
            return Ok(asked);
        };
        if self.fit == Fit::Refuse {
            return Err(Error::invalid(format!(
                "a request of {} bytes at {} ends past the device's {}; choose --fit wrap or compact, or a \
                 larger --device-size",
                record.len,
                record.offset,
                show_size(size)
            )));
        }
        let space = size / WRAP_BYTES * WRAP_BYTES;
        // What is given up twice is given up; what is moved is moved, round after round.
        let mut left = if record.op == Op::Discard { record.len.min(space) } else { record.len };
        if space == 0 {
            return Err(Error::invalid("the device is too small to wrap a trace onto"));
        }
        let mut offset = record.offset % space;
        while left > 0 {
            let len = left.min(space - offset);
            asked.spans.push((offset, len));
            left -= len;
            offset = 0;
        }
        Ok(asked)
    }

    fn compact(&mut self, record: &Record) -> Result<Asked> {
        if record.op.is_data() {
            return Ok(Asked { op: record.op, spans: self.chunks.map(record)? });
        }
        let spans = match record.op {
            Op::Discard => self.chunks.discard(record),
            Op::Delete => self.chunks.free(record.unit, 0),
            Op::Truncate => self.chunks.free(record.unit, record.offset.div_ceil(self.chunks.bytes)),
            _ => Spans::new(),
        };
        Ok(Asked { op: Op::Discard, spans })
    }
}

/// The places of chunks.
#[derive(Default)]
struct Chunks {
    bytes: u64,
    /// How many the device has room for.
    limit: Option<u64>,
    used: u64,
    freed: Vec<u64>,
    units: FxHashMap<u32, BTreeMap<u64, u64>>,
}

impl Chunks {
    /// Where a range lies. Chunks that have no place get one.
    fn map(&mut self, record: &Record) -> Result<Spans> {
        let bytes = self.bytes;
        let end = record.end();
        let mut pieces = Spans::new();
        let mut offset = record.offset;
        while offset < end {
            let (chunk, within) = (offset / bytes, offset % bytes);
            let len = (bytes - within).min(end - offset);
            offset += len;
            let at = self.place(record.unit, chunk)? * bytes + within;
            match pieces.last_mut() {
                Some((start, before)) if *start + *before == at => *before += len,
                _ => pieces.push((at, len)),
            }
        }
        Ok(pieces)
    }

    /// Where the parts of a range lie that have a place.
    fn discard(&self, record: &Record) -> Spans {
        let (bytes, end) = (self.bytes, record.end());
        let Some(chunks) = self.units.get(&record.unit) else { return Spans::new() };
        let touched = chunks.range(record.offset / bytes..end.div_ceil(bytes));
        let piece = |(chunk, place): (&u64, &u64)| {
            let from = record.offset.saturating_sub(chunk * bytes);
            let to = (end - chunk * bytes).min(bytes);
            (place * bytes + from, to - from)
        };
        touched.map(piece).collect()
    }

    fn place(&mut self, unit: u32, chunk: u64) -> Result<u64> {
        if let Some(&place) = self.units.get(&unit).and_then(|chunks| chunks.get(&chunk)) {
            return Ok(place);
        }
        let place = match self.freed.pop() {
            Some(place) => place,
            None if self.limit.is_some_and(|limit| self.used >= limit) => {
                return Err(Error::invalid(format!(
                    "the trace touches more than the device holds, {} chunks of {}; choose a larger \
                     --device-size or smaller --chunk",
                    self.used,
                    show_size(self.bytes)
                )));
            }
            None if self.used >= CHUNKS_MAX => {
                return Err(Error::invalid(format!(
                    "the trace touches more than {CHUNKS_MAX} chunks of {}, whose places are held in memory; choose a \
                     larger --chunk",
                    show_size(self.bytes)
                )));
            }
            None => {
                self.used += 1;
                self.used - 1
            }
        };
        self.units.entry(unit).or_default().insert(chunk, place);
        Ok(place)
    }

    /// Gives back the places of a unit's chunks from `first` on.
    fn free(&mut self, unit: u32, first: u64) -> Spans {
        let Some(chunks) = self.units.get_mut(&unit) else { return Spans::new() };
        let gone = chunks.split_off(&first);
        if chunks.is_empty() {
            self.units.remove(&unit);
        }
        let bytes = self.bytes;
        let mut places: Vec<u64> = gone.into_values().collect();
        places.sort_unstable();
        self.freed.extend(places.iter().rev());
        places.into_iter().map(|place| (place * bytes, bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::time::Time;

    fn write(unit: u32, offset: u64, len: u64) -> Record {
        Record { unit, ..Record::new(Time::ZERO, Op::Write, offset, len) }
    }

    fn ranges(asked: Asked) -> Vec<(u64, u64)> {
        asked.spans.into_vec()
    }

    #[test]
    fn more_chunks_than_are_kept_account_of_are_refused() {
        let mut mapper = AddressMapper::new(Fit::Compact, None, None, 4096);
        mapper.chunks.used = CHUNKS_MAX - 1;
        mapper.place(&write(0, 0, 4096)).unwrap();
        let why = mapper.place(&write(0, 4096, 4096)).unwrap_err().to_string();
        assert!(why.contains("67108864 chunks of 4.0 KiB") && why.contains("--chunk"), "{why}");
    }

    #[test]
    fn past_the_end_is_refused_or_wrapped() {
        let mut strict = AddressMapper::new(Fit::Refuse, Some(1 << 20), None, 4096);
        assert_eq!(ranges(strict.place(&write(0, 4096, 512)).unwrap()), [(4096, 512)]);
        let error = strict.place(&write(0, (1 << 20) - 512, 1024)).unwrap_err().to_string();
        assert!(error.contains("1.0 MiB") && error.contains("--fit"), "{error}");
        let error = strict.place(&write(0, u64::MAX, 1024)).unwrap_err().to_string();
        assert!(error.contains("past"), "{error}");
        let mut wrap = AddressMapper::new(Fit::Wrap, Some(1 << 20), None, 4096);
        assert_eq!(
            ranges(wrap.place(&write(0, (1 << 20) - 512, 1024)).unwrap()),
            [((1 << 20) - 512, 512), (0, 512)]
        );
    }

    #[test]
    fn what_is_longer_than_the_device_goes_round_it_to_its_last_byte() {
        let mut wrap = AddressMapper::new(Fit::Wrap, Some(1 << 20), None, 4096);
        assert_eq!(
            ranges(wrap.place(&write(0, 4096, (2 << 20) + 512)).unwrap()),
            [(4096, (1 << 20) - 4096), (0, 1 << 20), (0, 4096 + 512)]
        );
    }

    #[test]
    fn a_second_unit_needs_a_decision() {
        let mut strict = AddressMapper::new(Fit::Refuse, None, None, 4096);
        strict.place(&write(3, 0, 1)).unwrap();
        let error = strict.place(&write(4, 0, 1)).unwrap_err().to_string();
        assert!(error.contains("units 3 and 4") && error.contains("--unit"), "{error}");
        let mut one = AddressMapper::new(Fit::Refuse, None, Some(4), 4096);
        assert!(one.place(&write(3, 0, 1)).unwrap().is_nothing());
        assert_eq!(one.place(&write(4, 0, 1)).unwrap().spans.len(), 1);
    }

    #[test]
    fn chunks_are_laid_one_after_the_other_and_given_back() {
        let mut placer = AddressMapper::new(Fit::Compact, Some(4 * 4096), None, 4096);
        assert_eq!(ranges(placer.place(&write(0, 1 << 40, 8192)).unwrap()), [(0, 8192)]);
        assert_eq!(ranges(placer.place(&write(1, 100, 50)).unwrap()), [(8192 + 100, 50)]);
        assert_eq!(ranges(placer.place(&write(0, (1 << 40) + 4000, 200)).unwrap()), [(4000, 200)]);
        assert_eq!(ranges(placer.place(&write(2, 0, 4096)).unwrap()), [(12288, 4096)]);
        let error = placer.place(&write(2, 4096, 1)).unwrap_err().to_string();
        assert!(error.contains("more than the device holds"), "{error}");
        let gone = Record { unit: 0, ..Record::new(Time::ZERO, Op::Delete, 0, 0) };
        assert_eq!(ranges(placer.place(&gone).unwrap()), [(0, 4096), (4096, 4096)]);
        assert_eq!(ranges(placer.place(&write(2, 4096, 1)).unwrap()), [(0, 1)]);
    }

    #[test]
    fn a_truncation_frees_what_is_wholly_past_it() {
        let mut placer = AddressMapper::new(Fit::Compact, None, None, 4096);
        placer.place(&write(0, 0, 3 * 4096)).unwrap();
        let cut = Record::new(Time::ZERO, Op::Truncate, 4097, 0);
        assert_eq!(ranges(placer.place(&cut).unwrap()), [(8192, 4096)]);
        assert!(placer.place(&cut).unwrap().is_nothing());
    }

    #[test]
    fn only_what_has_a_place_is_discarded_however_long_the_range() {
        let mut placer = AddressMapper::new(Fit::Compact, None, None, 4096);
        placer.place(&write(0, 4096, 8192)).unwrap();
        let mut discard = |offset, len| {
            let record = Record::new(Time::ZERO, Op::Discard, offset, len);
            ranges(placer.place(&record).unwrap())
        };
        assert_eq!(discard(0, u64::MAX), [(0, 4096), (4096, 4096)]);
        assert_eq!(discard(5000, 4000), [(904, 3192), (4096, 808)]);
        assert!(discard(1 << 30, 4096).is_empty());
        let mut wrap = AddressMapper::new(Fit::Wrap, Some(1 << 20), None, 4096);
        let all = Record::new(Time::ZERO, Op::Discard, 512, u64::MAX);
        assert_eq!(ranges(wrap.place(&all).unwrap()), [(512, (1 << 20) - 512), (0, 512)]);
    }
}
