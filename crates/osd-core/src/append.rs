//! Appending pages to segments: one open segment a stream, and what it holds at its end.
//!
//! A segment ends with its *summary*: which extents and nodes were written to it, in order, so that the
//! cleaner need not search the tree. The summary of a segment of a chain also names the segment that goes on
//! with it. Where a program fails, the page is written to the next position in a good block.

use super::Counts;
use super::anchors::ChainStart;
use super::flash::{Addr, Flash};
use super::layout::{Key, Output, PageKind};
use super::segments::{Segments, State};
use super::summary::{Entries, LogEntry, SO_FAR};
use bimetal_base::{Error, Result};

/// The open segment of a stream.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub segment: u32,
    pub serial: u64,
    /// The next page.
    pub next: u32,
    pub entries: Entries,
}

/// Pages that may be written between the openings of two segments, in bits.
const WHEN_BITS: u32 = 20;
/// Bytes of a summary page before its part of the entries.
pub(super) const SUMMARY_HEADER: usize = 24;
/// The next segment of a chain that has none.
const NONE: u32 = u32::MAX;

/// The flash and its segments, and where each stream goes on.
///
/// **Invariant.** What follows the last checkpoint in the chains of the log and of access times can be found from
/// its anchor, or the chains are *broken*, and the next commit must be a checkpoint.
pub(super) struct Media {
    pub(super) flash: Flash,
    pub(super) segments: Segments,
    pub(super) counts: Counts,
    /// Bytes that users wrote, since the store was made: the clock of ages.
    pub(super) clock: u64,
    /// The open segment of each stream.
    open: Vec<Option<Open>>,
    /// Streams whose segments are read again after a power cut: those of the log and of access times.
    chains: Vec<usize>,
    /// The number of the last use of a segment.
    serial: u64,
    /// The number of the last use when the last page was written, and pages since it was given out.
    written: (u64, u64),
    broken: bool,
    kept: u32,
}

impl Media {
    pub(super) fn new(flash: Flash, kept: u32, streams: usize, chains: Vec<usize>) -> Media {
        Media {
            segments: Segments::new(&flash, kept),
            flash,
            counts: Counts::default(),
            clock: 0,
            open: (0..streams).map(|_| None).collect(),
            chains,
            serial: 0,
            written: (0, 0),
            broken: true,
            kept,
        }
    }

    /// Goes on where a checkpoint was made.
    pub(super) fn set_clocks(&mut self, clock: u64, serial: u64) {
        (self.clock, self.serial) = (clock, serial);
    }

    /// Numbers of uses go on past any that were given out, by `gap`: also after a clean end, since segments may have been
    /// opened after it, of which nothing durable says so.
    pub(super) fn skip_serials(&mut self, gap: u64) {
        self.serial += gap;
        self.written = (self.serial, 0);
    }

    /// The number of the last use of a segment.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Segments at the beginning that hold anchors.
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Bytes of a segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segments.segment_bytes()
    }

    pub(super) fn byte_of(&self, addr: Addr) -> u64 {
        u64::from(addr.0) * self.flash.page_bytes() as u64
    }

    /// Where the streams are, as a checkpoint after a clean end says it.
    pub(super) fn open(&self) -> Vec<Option<Open>> {
        self.open.clone()
    }

    /// Opens a segment for each chain that has none: after a checkpoint they go on from there.
    pub(super) fn open_chains(&mut self) -> Result<()> {
        for chain in self.chains.clone() {
            if self.open[chain].is_none() {
                self.open_segment(chain)?;
            }
        }
        Ok(())
    }

    /// Where the chains go on.
    pub(super) fn chains(&self) -> Vec<ChainStart> {
        let start = |stream: &usize| {
            self.open[*stream].as_ref().map(|open| ChainStart {
                stream: *stream as u32,
                segment: open.segment,
                serial: open.serial,
                index: open.next,
            })
        };
        self.chains.iter().filter_map(start).collect()
    }

    /// A checkpoint is there: nothing before it is read again, and what was emptied is free.
    pub(super) fn settle_checkpoint(&mut self) {
        let chained: Vec<u32> = self.chains().iter().map(|chain| chain.segment).collect();
        self.segments.unpin_all_but(&chained);
        self.broken = false;
        self.segments.settle(&self.flash, true);
    }

    /// Appends a page of the store's own, which is alive.
    pub(super) fn append_own(
        &mut self,
        stream: usize,
        kind: PageKind,
        data: &[u8],
        entries: &[LogEntry],
    ) -> Result<Addr> {
        let addr = self.append(stream, kind, data, entries)?;
        self.segments.add_page(self.segments.of(addr));
        Ok(addr)
    }

    /// Closes the streams from `first` on.
    pub(super) fn close_from(&mut self, first: usize) -> Result<()> {
        for stream in first..self.open.len() {
            if let Some(open) = self.open[stream].take() {
                self.close_segment(stream, open)?;
            }
        }
        Ok(())
    }

    /// Appends a page to a stream, with what is on it; where it went. An entry's place is counted from the
    /// beginning of the page.
    pub(super) fn append(
        &mut self,
        stream: usize,
        kind: PageKind,
        data: &[u8],
        entries: &[LogEntry],
    ) -> Result<Addr> {
        let when = self.when();
        self.append_at(stream, kind, when, data, entries)
    }

    /// As [`append`](Media::append), a page that has a number of [`when`](Media::when) already.
    pub(super) fn append_at(
        &mut self,
        stream: usize,
        kind: PageKind,
        when: u64,
        data: &[u8],
        entries: &[LogEntry],
    ) -> Result<Addr> {
        loop {
            let open = self.open_for(stream, entries.iter().map(LogEntry::bytes_most).sum())?;
            let (addr, serial) = (self.flash.addr(open.0, open.1), open.2);
            let slot = self.open[stream].as_mut().expect("opened above");
            slot.next += 1;
            let done = match (kind, entries) {
                (PageKind::Data, [LogEntry::Data { object, fork, offset, .. }]) => {
                    self.flash.program_data(addr, Key::extent(*object, *fork, *offset), serial, data)?
                }
                _ => self.flash.program(addr, kind, serial, data)?,
            };
            if !done {
                continue;
            }
            self.note_entries(stream, addr, when, entries);
            self.segments.touch(open.0, self.clock);
            count(&mut self.counts, kind);
            return Ok(addr);
        }
    }

    /// A number for a page that is greater than those of all before it: of the last use of a segment, and of pages since.
    pub(super) fn when(&mut self) -> u64 {
        let (serial, pages) = self.written;
        self.written = (self.serial, if serial == self.serial { pages + 1 } else { 0 });
        self.last_when()
    }

    /// The last of these numbers.
    pub(super) fn last_when(&self) -> u64 {
        self.written.0 << WHEN_BITS | self.written.1
    }

    fn note_entries(&mut self, stream: usize, addr: Addr, when: u64, entries: &[LogEntry]) {
        let index = self.flash.index_of(addr);
        let base = index * self.flash.page_bytes() as u32;
        let open = self.open[stream].as_mut().expect("a page was appended to it");
        for entry in entries {
            open.entries.note(match *entry {
                LogEntry::Data { object, fork, offset, len, at, .. } => {
                    LogEntry::Data { object, fork, offset, len, at: base + at, when }
                }
                LogEntry::Node { id, .. } => LogEntry::Node { id, index },
            });
        }
    }

    /// The segment, page and serial number to write to next, with room for `more` bytes of entries in its summary.
    fn open_for(&mut self, stream: usize, more: usize) -> Result<(u32, u32, u64)> {
        loop {
            match self.open[stream].take() {
                None => self.open_segment(stream)?,
                Some(mut open) => {
                    let pages = self.flash.pages_per_segment();
                    while open.next < pages && self.flash.is_bad(self.flash.addr(open.segment, open.next)) {
                        open.next += 1;
                    }
                    let bytes = open.entries.bytes() + more;
                    let summary = bytes.div_ceil(self.flash.page_bytes() - SUMMARY_HEADER).max(1) as u32;
                    if open.next < pages && self.flash.good_pages_from(open.segment, open.next) > summary {
                        let found = (open.segment, open.next, open.serial);
                        self.open[stream] = Some(open);
                        return Ok(found);
                    }
                    self.close_segment(stream, open)?;
                }
            }
        }
    }

    /// Takes a free segment, erased.
    fn fresh_segment(&mut self) -> Result<u32> {
        loop {
            let Some(segment) = self.segments.take(false, self.clock) else {
                return Err(Error::NoSpace("no segment of the object store is free"));
            };
            if !self.flash.is_erased(segment) {
                self.flash.erase(segment)?;
            }
            if self.flash.good_pages(segment) > 0 {
                return Ok(segment);
            }
            self.segments.set_bad(segment);
        }
    }

    fn open_segment(&mut self, stream: usize) -> Result<()> {
        let segment = self.fresh_segment()?;
        self.serial += 1;
        self.set_open(stream, segment, self.serial);
        if self.chains.contains(&stream) {
            // Nothing says that the chain goes on here.
            self.broken = true;
        }
        Ok(())
    }

    fn set_open(&mut self, stream: usize, segment: u32, serial: u64) {
        if self.chains.contains(&stream) {
            self.segments.pin(segment);
        }
        self.open[stream] = Some(Open { segment, serial, next: 0, entries: Entries::default() });
    }

    /// Writes a segment's summary; a chain goes on with a new segment.
    fn close_segment(&mut self, stream: usize, open: Open) -> Result<()> {
        let next = if self.chains.contains(&stream) {
            match self.fresh_segment() {
                Ok(segment) => {
                    self.serial += 1;
                    Some((segment, self.serial))
                }
                Err(why) => {
                    self.open[stream] = Some(open);
                    return Err(why);
                }
            }
        } else {
            None
        };
        let bytes = open.entries.write();
        let written = self.write_summary(&open, open.next, &bytes, 0, next)?;
        self.segments.close(open.segment);
        if let Some((segment, serial)) = next {
            self.set_open(stream, segment, serial);
            self.broken |= written.is_none();
        }
        Ok(())
    }

    /// Says in each open segment what data was written to it and is not said yet; one that has no room for it is closed,
    /// which says so, too.
    pub(super) fn say_so_far(&mut self) -> Result<()> {
        for stream in 0..self.open.len() {
            let Some(open) = self.open[stream].take() else { continue };
            let Some(bytes) = open.entries.unsaid() else {
                self.open[stream] = Some(open);
                continue;
            };
            let room = self.flash.page_bytes() - SUMMARY_HEADER;
            // Its own summary must go behind it.
            let pages = bytes.len().div_ceil(room) + open.entries.bytes().div_ceil(room);
            let left = match open.next < self.flash.pages_per_segment() {
                true => self.flash.good_pages_from(open.segment, open.next) as usize,
                false => 0,
            };
            let written = match left > pages {
                true => self.write_summary(&open, open.next, &bytes, SO_FAR, None)?,
                false => None,
            };
            match written {
                Some(next) => {
                    let mut open = Open { next, ..open };
                    open.entries.are_said();
                    self.open[stream] = Some(open);
                }
                // Blocks of it went bad: what is left of it is for its summary.
                None => {
                    let next = self.first_erased(&open);
                    self.close_segment(stream, Open { next, ..open })?;
                }
            }
        }
        Ok(())
    }

    /// The first page of an open segment from where it goes on that can be programmed, or its end.
    fn first_erased(&self, open: &Open) -> u32 {
        let pages = self.flash.pages_per_segment();
        (open.next..pages)
            .find(|index| self.flash.can_program(self.flash.addr(open.segment, *index)))
            .unwrap_or(pages)
    }

    /// Writes entries to a segment from page `index` on; the page behind them, none if they are not there as a whole.
    fn write_summary(
        &mut self,
        open: &Open,
        mut index: u32,
        bytes: &[u8],
        what: u32,
        next: Option<(u32, u64)>,
    ) -> Result<Option<u32>> {
        let room = self.flash.page_bytes() - SUMMARY_HEADER;
        let parts = bytes.len().div_ceil(room).max(1);
        for part in 0..parts {
            let body = &bytes[part * room..bytes.len().min((part + 1) * room)];
            let mut page = Output::default();
            page.u32(part as u32 | (parts as u32) << 16);
            page.u32(next.map_or(NONE, |next| next.0));
            page.u64(next.map_or(0, |next| next.1));
            page.u32(body.len() as u32);
            page.u32(what | self.flash.segment_blocks() << 8);
            page.0.extend_from_slice(body);
            loop {
                if index >= self.flash.pages_per_segment() {
                    return Ok(None);
                }
                let addr = self.flash.addr(open.segment, index);
                index += 1;
                if !self.flash.is_bad(addr)
                    && self.flash.program(addr, PageKind::Summary, open.serial, &page.0)?
                {
                    self.counts.summary_pages += 1;
                    break;
                }
            }
        }
        Ok(Some(index))
    }

    /// What was written to a segment, open or closed, as far as it says.
    pub(super) fn entries_of(&mut self, segment: u32) -> Result<Vec<LogEntry>> {
        match self.open.iter().flatten().find(|open| open.segment == segment) {
            Some(open) => Ok(open.entries.all().to_vec()),
            None => Ok(self.said(segment)?.0),
        }
    }

    /// A number of a use was given out.
    pub(super) fn pass(&mut self, serial: u64) {
        self.serial = self.serial.max(serial);
    }

    /// Closes the segments of the chains without a summary, or those of all streams, as a power cut does.
    pub(super) fn abandon(&mut self, all: bool) {
        let streams = if all { (0..self.open.len()).collect() } else { self.chains.clone() };
        for stream in streams {
            let Some(open) = self.open[stream].take() else { continue };
            if self.segments.get(open.segment).state == State::Open {
                self.segments.close(open.segment);
            }
        }
    }

    /// What a checkpoint or the log says something of is in use.
    pub(super) fn close_what_is_used(&mut self) {
        for number in 0..self.segments.count() as u32 {
            let segment = self.segments.get(number);
            if segment.state == State::Free && (segment.live_bytes > 0 || segment.live_pages > 0) {
                self.segments.set_used(&self.flash, number, State::Closed);
            }
        }
    }

    /// After a clean end: goes on with the segments that were open, where nothing was written to them since.
    pub(super) fn go_on(
        &mut self,
        chains: &[ChainStart],
        open: Vec<Option<Open>>,
        checkpoint: &[Addr],
    ) -> Result<()> {
        for (stream, open) in open.into_iter().enumerate().take(self.open.len()) {
            let Some(mut open) = open else { continue };
            if open.segment as usize >= self.segments.count() {
                continue;
            }
            // The checkpoint itself came after what it says.
            for addr in checkpoint {
                if self.segments.of(*addr) == open.segment {
                    open.next = open.next.max(self.flash.index_of(*addr) + 1);
                }
            }
            let pages = self.flash.pages_per_segment();
            if self.segments.get(open.segment).state == State::Bad || open.next >= pages {
                continue;
            }
            // Whoever wrote since passed over pages of bad blocks: one that is blank says nothing of those behind it.
            let is_blank = |index| self.flash.is_blank(self.flash.addr(open.segment, index)).unwrap_or(false);
            if (open.next..pages).all(is_blank) {
                self.segments.set_used(&self.flash, open.segment, State::Open);
                self.open[stream] = Some(open);
            }
        }
        let at = |stream: usize| self.open[stream].as_ref().map(|open| (open.segment, open.next));
        let follows = |chain: &ChainStart| {
            self.open.len() > chain.stream as usize
                && at(chain.stream as usize) == Some((chain.segment, chain.index))
        };
        self.broken = chains.len() != self.chains.len() || !chains.iter().all(follows);
        Ok(())
    }
}

fn count(counts: &mut Counts, kind: PageKind) {
    *match kind {
        PageKind::Data | PageKind::Pieces => &mut counts.data_pages,
        PageKind::Log => &mut counts.log_pages,
        PageKind::Access => &mut counts.access_pages,
        PageKind::Summary => &mut counts.summary_pages,
        PageKind::Node | PageKind::Table | PageKind::Checkpoint | PageKind::Anchor | PageKind::Format => {
            &mut counts.index_pages
        }
    } += 1;
}
