//! blktrace's own binary records (`struct blk_io_trace` of `include/uapi/linux/blktrace_api.h`, version 7).
//!
//! Either byte order, told by the first magic. Accepted are the merged stream (`blktrace -o -`,
//! `blkparse -d`) and the files that blktrace writes one a CPU: naming one `X.blktrace.N` reads all of
//! them. Events of several CPUs are put in order of time within a window of [`WINDOW`] events. One kind of
//! event is read (see [`Event`]); the unit is the device, in the order of their first events; time counts
//! from the first request.

use super::super::input::Input;
use super::super::lines::Confidence;
use super::super::window::Window;
use super::super::{BATCH, Flags, Op, Record, Records, Tally};
use super::{Format, Head, Make};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

/// Registry line.
pub const FORMAT: Format = Format {
    name: "blktrace",
    about: "blktrace binary, merged or one file a CPU; --event chooses among Q, D and C",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(ByteOrder::of(head.bytes).is_some()),
        open: |input, options| Ok(Box::new(BlkTrace::new(input, options.event))),
    },
};

/// The kernel's sector.
pub(super) const SECTOR_BYTES: u64 = 512;
/// How many events may be out of place: what one CPU's buffers hold (4 of 512 KiB) is fewer.
const WINDOW: usize = 1 << 16;
const EVENT_BYTES: usize = 48;
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;

/// Bits of an event's category (`enum blktrace_cat`).
mod category {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 1 << 1;
    pub const FLUSH: u32 = 1 << 2;
    pub const SYNC: u32 = 1 << 3;
    pub const PC: u32 = 1 << 9;
    pub const NOTIFY: u32 = 1 << 10;
    pub const AHEAD: u32 = 1 << 11;
    pub const META: u32 = 1 << 12;
    pub const DISCARD: u32 = 1 << 13;
    pub const FUA: u32 = 1 << 15;
}

/// Where in its life a request is recorded.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
pub enum Event {
    /// As the file system submitted it, before merging
    #[value(name = "Q")]
    #[serde(rename = "Q")]
    Queue,
    /// As the device got it
    #[default]
    #[value(name = "D")]
    #[serde(rename = "D")]
    Issue,
    /// When the device had done it
    #[value(name = "C")]
    #[serde(rename = "C")]
    Complete,
}

impl Event {
    const ALL: [Event; 3] = [Event::Queue, Event::Issue, Event::Complete];

    /// blkparse's letter.
    const fn letter(self) -> char {
        match self {
            Event::Queue => 'Q',
            Event::Issue => 'D',
            Event::Complete => 'C',
        }
    }

    pub(super) fn of_letter(letter: &[u8]) -> Option<Event> {
        match letter {
            b"Q" => Some(Event::Queue),
            b"D" => Some(Event::Issue),
            b"C" => Some(Event::Complete),
            _ => None,
        }
    }

    /// Of an action's low half (`enum blktrace_act`; bit 8 only says that a cgroup follows).
    fn of_action(action: u32) -> Option<Event> {
        match action & 0xff {
            1 => Some(Event::Queue),
            7 => Some(Event::Issue),
            8 => Some(Event::Complete),
            _ => None,
        }
    }
}

/// How many events of each kind a trace has, to tell what to choose when it lacks one.
#[derive(Default)]
pub(super) struct EventCounts([u64; 3]);

impl EventCounts {
    pub fn count(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub fn lacks(&self, wanted: Event) -> Option<String> {
        if self.0[wanted as usize] > 0 {
            return None;
        }
        let there = Event::ALL.iter().filter(|event| self.0[**event as usize] > 0);
        let there: Vec<_> =
            there.map(|event| format!("{} of {}", self.0[*event as usize], event.letter())).collect();
        let remedy = match there.is_empty() {
            true => "nor of Q or C".to_string(),
            false => format!("but {}: choose with --event", there.join(" and ")),
        };
        Some(format!("there are no {} events, {remedy}", wanted.letter()))
    }
}

/// Devices by the order of their first requests.
#[derive(Default)]
pub(super) struct Units(FxHashMap<Vec<u8>, u32>);

impl Units {
    pub fn of(&mut self, device: &[u8]) -> u32 {
        if let Some(&unit) = self.0.get(device) {
            return unit;
        }
        let unit = self.0.len() as u32;
        self.0.insert(device.to_vec(), unit);
        unit
    }
}

/// The files blktrace wrote beside `path`, one a CPU, itself included; only itself when it is none.
pub(in super::super) fn siblings(path: &Path) -> Vec<PathBuf> {
    let own = || vec![path.to_path_buf()];
    let Some((stem, cpu)) = path.to_str().and_then(|name| name.rsplit_once(".blktrace.")) else {
        return own();
    };
    if !cpu.bytes().all(|byte| byte.is_ascii_digit()) {
        return own();
    }
    let file = |cpu: u32| PathBuf::from(format!("{stem}.blktrace.{cpu}"));
    let all: Vec<_> = (0..4096).map(file).filter(|file| file.exists()).collect();
    if all.is_empty() { own() } else { all }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn of(head: &[u8]) -> Option<ByteOrder> {
        let magic: [u8; 4] = head.get(..4)?.try_into().ok()?;
        if u32::from_le_bytes(magic) == MAGIC | VERSION {
            Some(ByteOrder::Little)
        } else if u32::from_be_bytes(magic) == MAGIC | VERSION {
            Some(ByteOrder::Big)
        } else {
            None
        }
    }

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let field = [bytes[at], bytes[at + 1]];
        if self == ByteOrder::Little { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let (first, second) = (u32::from(self.u16(bytes, at)), u32::from(self.u16(bytes, at + 2)));
        if self == ByteOrder::Little { second << 16 | first } else { first << 16 | second }
    }

    fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let (first, second) = (u64::from(self.u32(bytes, at)), u64::from(self.u32(bytes, at + 4)));
        if self == ByteOrder::Little { second << 32 | first } else { first << 32 | second }
    }
}

/// What is used of an event. Ordered by time, then by the order of reading.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Raw {
    time_ns: u64,
    read: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
}

/// One file.
struct Stream {
    name: String,
    window: Window,
    events: u64,
    place: u64,
    next: Option<Raw>,
}

impl Stream {
    fn new(name: String, bytes: Box<dyn std::io::Read + Send>) -> Stream {
        Stream { name, window: Window::new(bytes), events: 0, place: 0, next: None }
    }

    fn corrupt(&self, why: &str) -> Error {
        let what = format!("blktrace trace {}", self.name);
        Error::corrupt(what, why, format!("event {}, byte {}", self.events + 1, self.place))
    }

    /// Reads the next event into `next`.
    fn advance(&mut self) -> Result<()> {
        self.next = None;
        let failed = |why| Error::io(&self.name, why);
        if !self.window.has(EVENT_BYTES).map_err(failed)? {
            return match self.window.bytes() {
                [] => Ok(()),
                _ => Err(self.corrupt("the file ends within an event")),
            };
        }
        let bytes = self.window.bytes();
        let Some(order) = ByteOrder::of(bytes) else {
            return Err(self.corrupt("field 1 (magic) is not that of blktrace version 7"));
        };
        let raw = Raw {
            time_ns: order.u64(bytes, 8),
            read: 0,
            sector: order.u64(bytes, 16),
            bytes: order.u32(bytes, 24),
            action: order.u32(bytes, 28),
            device: order.u32(bytes, 36),
        };
        let len = EVENT_BYTES + usize::from(order.u16(bytes, 46));
        if !self.window.has(len).map_err(|why| Error::io(&self.name, why))? {
            return Err(self.corrupt("field 12 (pdu_len) is more than the file has"));
        }
        self.window.use_up(len);
        self.events += 1;
        self.place += len as u64;
        self.next = Some(raw);
        Ok(())
    }
}

/// A binary trace of one or more files.
struct BlkTrace {
    streams: Vec<Stream>,
    begun: bool,
    event: Event,
    seen: EventCounts,
    units: Units,
    waiting: BinaryHeap<Reverse<Raw>>,
    zero_ns: Option<u64>,
    tally: Tally,
    ended: bool,
}

impl BlkTrace {
    fn new(input: Input, event: Event) -> BlkTrace {
        let mut streams = vec![Stream::new(input.name, input.bytes)];
        streams.extend(input.others.into_iter().map(|other| Stream::new(other.name, other.bytes)));
        BlkTrace {
            streams,
            begun: false,
            event,
            seen: EventCounts::default(),
            units: Units::default(),
            waiting: BinaryHeap::new(),
            zero_ns: None,
            tally: Tally::default(),
            ended: false,
        }
    }

    /// The earliest event of all files.
    fn read(&mut self) -> Result<Option<Raw>> {
        if !self.begun {
            self.begun = true;
            self.streams.iter_mut().try_for_each(Stream::advance)?;
        }
        let time = |stream: &&mut Stream| stream.next.map_or(u64::MAX, |raw| raw.time_ns);
        let Some(first) = self.streams.iter_mut().filter(|stream| stream.next.is_some()).min_by_key(time)
        else {
            return Ok(None);
        };
        let raw = first.next;
        first.advance()?;
        self.tally.lines += 1;
        Ok(raw.map(|raw| Raw { read: self.tally.lines, ..raw }))
    }

    /// Takes in an event that may be a request of the wanted kind.
    fn sift(&mut self, raw: Raw) {
        let kind = raw.action >> 16;
        let event = Event::of_action(raw.action).filter(|_| kind & (category::NOTIFY | category::PC) == 0);
        if let Some(event) = event {
            self.seen.count(event);
        }
        if event == Some(self.event) && operation(kind, raw.bytes).is_some() {
            self.waiting.push(Reverse(raw));
        } else {
            self.tally.skipped += 1;
        }
    }

    fn record(&mut self, raw: Raw) -> Option<Record> {
        let (op, flags) = operation(raw.action >> 16, raw.bytes)?;
        let since = raw.time_ns.saturating_sub(*self.zero_ns.get_or_insert(raw.time_ns));
        let unit = self.units.of(&raw.device.to_le_bytes());
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (raw.sector.saturating_mul(SECTOR_BYTES), u64::from(raw.bytes)),
        };
        Some(Record { unit, flags, ..Record::new(Time(since), op, offset, len) })
    }
}

/// What an event of this category asks for; `None`: nothing.
fn operation(kind: u32, bytes: u32) -> Option<(Op, Flags)> {
    let has = |bit| kind & bit != 0;
    let flags = Flags::NONE
        .with(Flags::SYNC, has(category::SYNC))
        .with(Flags::META, has(category::META))
        .with(Flags::AHEAD, has(category::AHEAD))
        .with(Flags::FUA, has(category::FUA));
    if bytes == 0 {
        return has(category::FLUSH).then_some((Op::Flush, flags));
    }
    let op = if has(category::DISCARD) {
        Op::Discard
    } else if has(category::WRITE) {
        Op::Write
    } else if has(category::READ) {
        Op::Read
    } else {
        return None;
    };
    Some((op, flags.with(Flags::PREFLUSH, has(category::FLUSH))))
}

impl Records for BlkTrace {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let full = batch.len() + BATCH;
        while !self.ended && self.waiting.len() < WINDOW + BATCH {
            match self.read()? {
                Some(raw) => self.sift(raw),
                None => self.ended = true,
            }
        }
        if self.ended {
            let name = &self.streams[0].name;
            if let Some(why) = self.seen.lacks(self.event) {
                return Err(Error::corrupt(format!("blktrace trace {name}"), why, "its end"));
            }
        }
        while batch.len() < full {
            let Some(Reverse(raw)) = self.waiting.pop() else { break };
            batch.extend(self.record(raw));
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ReadOptions;
    use super::super::tests::{open, read};
    use super::*;

    /// An event as the kernel writes it, in either byte order.
    fn event(big: bool, time: u64, sector: u64, bytes: u32, kind: u32, action: u16, pdu: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            if big {
                bytes.reverse();
            }
            out.extend(bytes);
        };
        put(&(MAGIC | VERSION).to_le_bytes());
        put(&1u32.to_le_bytes());
        put(&time.to_le_bytes());
        put(&sector.to_le_bytes());
        put(&bytes.to_le_bytes());
        put(&(kind << 16 | u32::from(action)).to_le_bytes());
        put(&7u32.to_le_bytes());
        put(&0x0080_0000u32.to_le_bytes());
        put(&0u32.to_le_bytes());
        put(&0u16.to_le_bytes());
        put(&(pdu.len() as u16).to_le_bytes());
        out.extend(pdu);
        out
    }

    fn sample(big: bool) -> Vec<u8> {
        use category::*;
        [
            event(big, 900, 0, 0, NOTIFY, 1, b"process"),
            event(big, 2000, 8, 4096, WRITE | SYNC | META | FUA | FLUSH, 7, b""),
            event(big, 1000, 16, 512, READ | AHEAD, 7, b""),
            event(big, 2500, 0, 0, FLUSH | WRITE, 7, b""),
            event(big, 2600, 99, 1024, DISCARD | WRITE, 7, b""),
            event(big, 2700, 16, 512, READ, 8, b"x"),
            event(big, 2800, 16, 512, READ | PC, 7, b""),
        ]
        .concat()
    }

    #[test]
    fn events_of_either_byte_order_come_in_order_of_time() {
        for big in [false, true] {
            let records = read("blktrace", sample(big)).unwrap();
            assert_eq!(records.len(), 4);
            assert_eq!(
                records[0],
                Record { flags: Flags::AHEAD, ..Record::new(Time(0), Op::Read, 8192, 512) }
            );
            let flags = Flags::SYNC | Flags::META | Flags::FUA | Flags::PREFLUSH;
            assert_eq!(records[1], Record { flags, ..Record::new(Time(1000), Op::Write, 4096, 4096) });
            assert_eq!((records[2].op, records[2].len), (Op::Flush, 0));
            assert_eq!(records[3], Record::new(Time(1600), Op::Discard, 99 * 512, 1024));
        }
        let options = ReadOptions { event: Event::Complete, ..ReadOptions::default() };
        assert_eq!(open("blktrace", sample(false), &options).unwrap().len(), 1);
        let options = ReadOptions { event: Event::Queue, ..ReadOptions::default() };
        let error = open("blktrace", sample(false), &options).unwrap_err().to_string();
        assert!(error.contains("no Q events") && error.contains("4 of D and 1 of C"), "{error}");
    }

    #[test]
    fn a_cut_or_foreign_event_is_placed() {
        let mut bytes = sample(false);
        bytes.truncate(bytes.len() - 1);
        let error = read("blktrace", bytes).unwrap_err().to_string();
        assert!(error.contains("event 7") && error.contains("ends within"), "{error}");
        let mut bytes = sample(false);
        bytes[EVENT_BYTES + 7] = 0;
        let error = read("blktrace", bytes).unwrap_err().to_string();
        assert!(error.contains("event 2, byte 55") && error.contains("magic"), "{error}");
    }

    #[test]
    fn the_files_of_all_cpus_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sda.blktrace.0", "sda.blktrace.2", "sda.blktrace.x", "sdb.blktrace.0"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let found = siblings(&dir.path().join("sda.blktrace.2"));
        assert_eq!(found, ["sda.blktrace.0", "sda.blktrace.2"].map(|name| dir.path().join(name)));
        assert_eq!(siblings(Path::new("trace.csv")), [Path::new("trace.csv")]);
    }
}
