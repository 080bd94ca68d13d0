//! One request of a trace.

use bimetal_base::time::Time;
use std::fmt;
use std::ops::BitOr;

/// What is asked. The first four are a block device's; the others occur in traces of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read the range.
    Read,
    /// Write the range.
    Write,
    /// Make what was written durable: a device's cache flush, a file's fsync.
    Flush,
    /// The range's contents are of no use any more (TRIM).
    Discard,
    /// A file's range was given space.
    Allocate,
    /// A file's size became `offset`.
    Truncate,
    /// A file came to be, empty.
    Create,
    /// A file is gone, its space free.
    Delete,
}

impl Op {
    /// All of them, in the order of their letters' table in `docs/traces.md`.
    pub const ALL: [Op; 8] =
        [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::Allocate, Op::Truncate, Op::Create, Op::Delete];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::Allocate => "allocate",
            Op::Truncate => "truncate",
            Op::Create => "create",
            Op::Delete => "delete",
        }
    }

    /// Whether it moves data.
    pub const fn is_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a request says about itself, any of five; and what its place in the trace says.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// Nothing said.
    pub const NONE: Flags = Flags(0);
    /// Somebody waits for it (REQ_SYNC, or a file opened so).
    pub const SYNC: Flags = Flags(1);
    /// Complete only when durable (REQ_FUA).
    pub const FUA: Flags = Flags(2);
    /// What was written before must be durable before it (REQ_PREFLUSH).
    pub const PREFLUSH: Flags = Flags(4);
    /// A file system's own structures (REQ_META).
    pub const META: Flags = Flags(8);
    /// Read ahead of what a program asked for (REQ_RAHEAD).
    pub const AHEAD: Flags = Flags(16);

    /// It is dated before the first request of its trace, with which it arrives.
    pub const EARLY: Flags = Flags(32);

    /// The letters of the five, as traces write them.
    pub const LETTERS: [(u8, Flags); 5] = [
        (b'P', Flags::PREFLUSH),
        (b'U', Flags::FUA),
        (b'S', Flags::SYNC),
        (b'M', Flags::META),
        (b'A', Flags::AHEAD),
    ];

    /// Whether all of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`, where `condition` holds.
    #[must_use]
    pub fn with(self, other: Flags, condition: bool) -> Flags {
        if condition { self | other } else { self }
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Flags::NONE {
            return f.write_str("-");
        }
        let set = Flags::LETTERS.iter().filter(|(_, flag)| self.has(*flag));
        set.map(|(letter, _)| char::from(*letter)).try_for_each(|letter| fmt::Write::write_char(f, letter))
    }
}

/// No request of a trace comes later: a hundred years, so that no sum of instants overflows.
pub const TIME_MAX_NS: u64 = 100 * 365 * 86_400 * 1_000_000_000;
/// What no system moves by one request.
pub const DATA_BYTES_MAX: u64 = 1 << 32;

/// One request: 32 bytes, copied freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it arrived, since the trace's own zero. Formats that write absolute instants (MSR, blktrace,
    /// Tencent, …) count from their first request.
    pub at: Time,
    /// First byte, in the device or file `unit`; of a truncation, the new size.
    pub offset: u64,
    /// Number of bytes; zero where the operation has no range.
    pub len: u64,
    /// Which device or file of the trace; 0 where there is but one.
    pub unit: u32,
    /// What is asked.
    pub op: Op,
    /// What it says about itself.
    pub flags: Flags,
}

impl Record {
    /// A request for a range of unit 0, without flags.
    pub const fn new(at: Time, op: Op, offset: u64, len: u64) -> Record {
        Record { at, offset, len, unit: 0, op, flags: Flags::NONE }
    }

    /// What makes the request impossible, if anything: an instant beyond [`TIME_MAX_NS`], data of
    /// [`DATA_BYTES_MAX`] and more at once, or an end past the last byte that has an address.
    pub fn flaw(&self) -> Option<String> {
        if self.at.0 > TIME_MAX_NS {
            return Some(format!("its time is {} s, more than a hundred years", self.at.0 / 1_000_000_000));
        }
        if self.op.is_data() && self.len >= DATA_BYTES_MAX {
            return Some(format!("a {} of {} bytes is 4 GiB or more", self.op, self.len));
        }
        if self.offset.checked_add(self.len).is_none() {
            return Some(format!(
                "a {} of {} bytes at {} ends past the last address, 2^64",
                self.op, self.len, self.offset
            ));
        }
        None
    }

    /// The byte after the range; at most `u64::MAX`.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_written_with_their_letters() {
        assert_eq!(format!("{:?}", Flags::NONE), "-");
        assert_eq!(format!("{:?}", Flags::SYNC | Flags::META | Flags::PREFLUSH), "PSM");
        assert!((Flags::SYNC | Flags::FUA).has(Flags::FUA) && !Flags::SYNC.has(Flags::FUA));
    }

    #[test]
    fn impossible_requests_are_told() {
        let possible =
            Record::new(Time(TIME_MAX_NS), Op::Read, u64::MAX - DATA_BYTES_MAX, DATA_BYTES_MAX - 1);
        assert_eq!(possible.flaw(), None);
        assert!(Record { at: Time(TIME_MAX_NS + 1), ..possible }.flaw().unwrap().contains("hundred years"));
        assert!(Record { len: DATA_BYTES_MAX, ..possible }.flaw().unwrap().contains("4 GiB"));
        let all = Record { op: Op::Discard, offset: 0, len: u64::MAX, ..possible };
        assert_eq!(all.flaw(), None);
        for past in [Record { offset: 1, ..all }, Record { offset: u64::MAX, len: 1, ..possible }] {
            assert!(past.flaw().unwrap().contains("ends past the last address"));
        }
    }

    #[test]
    fn a_record_stays_small() {
        assert_eq!(size_of::<Record>(), 32);
    }
}
