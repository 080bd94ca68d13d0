//! What was written to a segment: the entries that gather while it is open, and its summary when it is closed.
//!
//! A checkpoint says of each open segment what was written to it since the one before (a summary *so far*), so that a
//! power cut leaves nothing that only the index knows of: what came after the checkpoint is in the log.

use super::layout::{Fork, Input, Key, Output, varint_len};
use bimetal_base::Result;

/// Something that was written to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEntry {
    /// Bytes of an object, from byte `at` of the segment on; of two that were written, the one with the greater
    /// `when` is the newer.
    Data { object: u64, fork: Fork, offset: u64, len: u32, at: u32, when: u64 },
    /// A node of the tree, on page `index`.
    Node { id: u32, index: u32 },
}

impl LogEntry {
    /// Bytes in a summary, behind an entry that was written at `before`.
    fn bytes(&self, before: u64) -> usize {
        match *self {
            LogEntry::Data { object, fork, offset, len, at, when } => {
                let key = Key::extent(object, fork, offset).encoded_len();
                1 + key + varint_len(len.into()) + varint_len(at.into()) + varint_len(when - before)
            }
            LogEntry::Node { id, index } => 1 + varint_len(id.into()) + varint_len(index.into()),
        }
    }

    /// The most bytes that it takes, wherever it goes.
    pub fn bytes_most(&self) -> usize {
        match *self {
            LogEntry::Data { object, fork, offset, len, .. } => {
                LogEntry::Data { object, fork, offset, len, at: u32::MAX, when: u64::MAX }.bytes(0)
            }
            LogEntry::Node { id, .. } => LogEntry::Node { id, index: u32::MAX }.bytes(0),
        }
    }
}

/// What moving an extent costs beside its bytes: its records in the log, and its share of the leaf that is written again.
const MOVING: u32 = 64;

/// Bytes of the flash that an extent takes beside its own: in a page's directory, in a summary, and where the cleaner
/// moves it. A store is full when there is no room left to move what is in it.
pub(super) fn bytes_beside(key: Key, len: u32) -> u32 {
    let named = key.encoded_len() + varint_len(len.into());
    // Its kind, and mostly small differences of place and time.
    2 * named as u32 + 4 + MOVING
}

/// The entries of a segment, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    all: Vec<LogEntry>,
    /// Bytes that they take in a summary.
    bytes: usize,
    /// When the last entry of data was begun, and its last page written.
    begun: u64,
    last: u64,
    /// Entries that are on the flash already.
    said: usize,
}

impl Entries {
    pub fn all(&self) -> &[LogEntry] {
        &self.all
    }

    /// Bytes that they take in a summary.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entries of data that are not on the flash yet, as a summary has them; none if there are none.
    pub fn unsaid(&self) -> Option<Vec<u8>> {
        let data = |entry: &&LogEntry| matches!(entry, LogEntry::Data { .. });
        let mut unsaid = self.all[self.said..].iter().filter(data).peekable();
        unsaid.peek()?;
        Some(written(unsaid))
    }

    /// All entries are on the flash.
    pub fn are_said(&mut self) {
        self.said = self.all.len();
    }

    /// Notes an entry; goes on with the last one where it can: where nothing else was written in between.
    pub fn note(&mut self, entry: LogEntry) {
        let last = self.last;
        if let LogEntry::Data { when, .. } = entry {
            self.last = when;
        }
        if let (
            Some(LogEntry::Data { object, fork, offset, len, at, .. }),
            LogEntry::Data { object: other, fork: its, offset: from, len: more, at: place, when },
        ) = (self.all.last_mut(), entry)
            && (*object, *fork) == (other, its)
            && *offset + u64::from(*len) == from
            && *at + *len == place
            && when - last <= 1
        {
            self.bytes += varint_len((*len + more).into()) - varint_len((*len).into());
            *len += more;
            self.said = self.said.min(self.all.len() - 1);
            return;
        }
        self.push(entry);
    }

    fn push(&mut self, entry: LogEntry) {
        self.bytes += entry.bytes(self.begun);
        if let LogEntry::Data { when, .. } = entry {
            (self.begun, self.last) = (when, when);
        }
        self.all.push(entry);
    }

    /// The entries as a summary has them.
    pub fn write(&self) -> Vec<u8> {
        written(self.all.iter())
    }

    pub fn read(bytes: &[u8]) -> Result<Entries> {
        let (entries, whole) = Self::read_some(bytes);
        whole.map(|()| entries)
    }

    /// Reads the entries up to the first that cannot be read, and whether there is one.
    pub fn read_some(bytes: &[u8]) -> (Entries, Result<()>) {
        let mut input = Input::new("the summary of a segment", bytes);
        let mut entries = Entries::default();
        while !input.is_empty() {
            match read_entry(&mut input, entries.begun) {
                Ok(entry) => entries.push(entry),
                Err(why) => return (entries, Err(why)),
            }
        }
        entries.are_said();
        (entries, Ok(()))
    }
}

fn written<'a>(entries: impl Iterator<Item = &'a LogEntry>) -> Vec<u8> {
    let (mut out, mut before) = (Output::default(), 0);
    for entry in entries {
        match entry {
            LogEntry::Data { object, fork, offset, len, at, when } => {
                out.byte(1);
                Key::extent(*object, *fork, *offset).write(&mut out);
                out.varint(u64::from(*len));
                out.varint(u64::from(*at));
                out.varint(when - before);
                before = *when;
            }
            LogEntry::Node { id, index } => {
                out.byte(2);
                out.varint(u64::from(*id));
                out.varint(u64::from(*index));
            }
        }
    }
    out.0
}

fn read_entry(input: &mut Input, before: u64) -> Result<LogEntry> {
    Ok(match input.byte()? {
        1 => {
            let key = Key::read(input)?;
            let (fork, offset) = key.fork().ok_or_else(|| input.wrong("not the place of an extent"))?;
            let len = input.below(1 << 32, "a length")? as u32;
            let at = input.below(1 << 32, "a place")? as u32;
            let when = before.checked_add(input.varint()?);
            let when = when.ok_or_else(|| input.wrong("a time is out of range"))?;
            LogEntry::Data { object: key.object, fork, offset, len, at, when }
        }
        2 => LogEntry::Node {
            id: input.below(1 << 32, "a node")? as u32,
            index: input.below(1 << 32, "a page")? as u32,
        },
        other => return Err(input.wrong(format_args!("there is no entry of kind {other}"))),
    })
}

/// One page of a summary.
pub(super) struct SummaryPage<'a> {
    pub part: u16,
    pub parts: u16,
    /// It says what was written since the one before, in a segment that was still open; else all that ever was.
    pub so_far: bool,
    /// Erase blocks of a segment.
    pub segment_blocks: u32,
    pub bytes: &'a [u8],
}

/// The bit of a page of a summary so far; the number of a segment's blocks is from bit 8 on.
pub(super) const SO_FAR: u32 = 1;

pub(super) fn read_page(page: &[u8]) -> Result<SummaryPage<'_>> {
    let mut input = Input::new("the summary of a segment", page);
    let both = input.u32()?;
    // Which segment goes on with the chain: of use to who looks at a flash by hand.
    let (_, _, len) = (input.u32()?, input.u64()?, input.u32()?);
    let what = input.u32()?;
    let bytes = input.take(len as usize)?;
    let (so_far, segment_blocks) = (what & SO_FAR != 0, what >> 8);
    Ok(SummaryPage { part: both as u16, parts: (both >> 16) as u16, so_far, segment_blocks, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_neighbours_are_one() {
        let mut entries = Entries::default();
        let data =
            |offset, at, when| LogEntry::Data { object: 9, fork: Fork::Data, offset, len: 2048, at, when };
        // The third is another place, and something else was written before the fourth.
        let some = [data(0, 0, 5), data(2048, 2048, 6), data(8192, 4096, 7), data(10_240, 6144, 9)];
        for entry in some.into_iter().chain([LogEntry::Node { id: 3, index: 5 }]) {
            entries.note(entry);
        }
        assert_eq!(entries.all().len(), 4);
        let bytes = entries.write();
        assert_eq!(Entries::read(&bytes).unwrap().all(), entries.all());
        assert_eq!(bytes.len(), entries.bytes());
        assert!(entries.all().iter().all(|entry| entry.bytes(0) <= entry.bytes_most()));
        assert!(Entries::read(&bytes[..bytes.len() - 1]).is_err());
        assert!(Entries::read(&[7]).is_err());
    }

    #[test]
    fn what_was_said_is_not_said_again_unless_it_has_grown() {
        let mut entries = Entries::default();
        let data =
            |offset, at, when| LogEntry::Data { object: 9, fork: Fork::Data, offset, len: 2048, at, when };
        assert_eq!(entries.unsaid(), None);
        entries.note(data(0, 0, 5));
        entries.are_said();
        entries.note(LogEntry::Node { id: 3, index: 1 });
        assert_eq!(entries.unsaid(), None);
        entries.note(data(9000, 4096, 8));
        let said = Entries::read(&entries.unsaid().unwrap()).unwrap();
        assert_eq!(said.all(), [data(9000, 4096, 8)]);
        entries.are_said();
        entries.note(data(9000 + 2048, 6144, 9));
        let said = Entries::read(&entries.unsaid().unwrap()).unwrap();
        assert_eq!(
            said.all(),
            [LogEntry::Data { object: 9, fork: Fork::Data, offset: 9000, len: 4096, at: 4096, when: 8 }]
        );
    }
}
