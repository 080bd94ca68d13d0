//! Making room: when commits, checkpoints and cleanings happen by themselves.
//!
//! Before an operation the store sees to it that enough segments are free for everything that waits in memory,
//! a checkpoint included. If not, it cleans: of a victim's contents (its summary says what was written to
//! it) what the tree still points to is read and appended again, nodes are marked to be written by the
//! next checkpoint, and the segment is free after the commit or checkpoint that follows. A victim without a
//! summary (it was open when the power went) has its contents found by one walk over the tree.
//!
//! **A full store.** What moving an extent costs counts as used with it (`summary`), so that there is always room to clean;
//! what gives room back may use segments that everything else leaves free.
//!
//! Cost of a cleaning: a look-up an entry, a read a page with something alive, a program a page's worth.

use super::buffer::Piece;
use super::extents::Index;
use super::layout::{Fork, Key, Value};
use super::placement::DataClass;
use super::segments::{Segment, State};
use super::summary::LogEntry;
use super::write_out::Part;
use super::{Capacity, Cleaning, Store, is_damage};
use bimetal_base::{Error, Result};

/// Bytes of flash alive: fork, offset, place.
struct Survivor {
    object: u64,
    fork: Fork,
    offset: u64,
    len: u64,
    at: u64,
}

/// Checks for uneven wear happen every so many cleanings.
const WEAR_CHECK: u64 = 64;
/// Segments that only what gives room back may use, and the checkpoints and cleanings that it needs.
const GIVING_SEGMENTS: usize = 8;
/// With fewer of these what gives room back cleans, too: several victims at once, since each time costs a checkpoint.
const GIVING_SEGMENTS_LEAST: usize = 5;

impl Store {
    /// Segments that a commit or a checkpoint may need now.
    fn checkpoint_segments(&self) -> usize {
        let nodes = self.index.tree.dirty() as u64 * self.index.media.flash.page_bytes() as u64;
        // Each node that is written replaces one that the checkpoint names; a log page repeats the one before it.
        let nodes = nodes + self.checkpoints.retired().len() as u64 * 4 + self.index.tree.dirty() as u64 * 4;
        let items = self.index.log.waiting_bytes() + self.index.media.segments.count() as u64 * 16;
        let tables = self.index.tree.table_len() as u64 * 8;
        let accesses = if self.journal_is_crowded() { self.access.renewed_bytes() } else { 0 };
        // What waits may be more than a buffer-full where room is given back.
        let waiting = if self.is_giving() { self.buffer.cost() } else { 0 };
        ((nodes + items + tables + accesses + waiting) * 9 / 8).div_ceil(self.index.media.segment_bytes())
            as usize
            + 1
    }

    /// Free segments that nothing but a commit, a checkpoint and the cleaner may use.
    pub(super) fn reserve(&self) -> usize {
        if self.is_giving() {
            // Cleaning what is nearly full costs room before it gains some: not as long as there is enough.
            return self.least_segments() + GIVING_SEGMENTS_LEAST;
        }
        let waiting = self.buffer_max.div_ceil(self.index.media.segment_bytes()) as usize;
        self.least_segments() + waiting + GIVING_SEGMENTS
    }

    /// Free segments with which a checkpoint can be made and a segment cleaned.
    pub(super) fn least_segments(&self) -> usize {
        self.checkpoint_segments() + self.placement.streams_now()
    }

    /// Checkpoints when one is due, and cleans until enough segments are free.
    pub(super) fn make_room(&mut self) -> Result<()> {
        let made = self.make_room_now();
        match made {
            // To be full is no failure of the store.
            Err(Error::NoSpace(why)) => Err(Error::NoSpace(why)),
            other => self.or_fail(other),
        }
    }

    fn make_room_now(&mut self) -> Result<()> {
        if self.checkpoint_is_due() {
            self.checkpoint(false)?;
        }
        let (mut stuck, mut most) = (0, self.index.media.segments.free());
        while self.index.media.segments.free() < self.reserve() {
            let before = self.index.media.segments.free();
            let short = before <= self.checkpoint_segments() + self.placement.streams_now() + 2;
            if short && (self.index.tree.dirty() > 0 || self.index.media.segments.emptied().1 > 0) {
                // What waits for a checkpoint takes the room that cleaning needs.
                self.checkpoint(false)?;
            }
            // Pages half empty may be why nothing is gained.
            self.index.tight |= stuck > 0;
            self.clean_some(stuck > 0)?;
            self.commit_all()?;
            // What was emptied may be named by the last checkpoint and the one before it.
            for _ in 0..1 + u32::from(short) {
                let segments = &self.index.media.segments;
                if segments.free() < self.reserve() && segments.emptied().1 > 0 {
                    self.checkpoint(false)?;
                }
            }
            stuck = if self.index.media.segments.free() > most { 0 } else { stuck + 1 };
            most = most.max(self.index.media.segments.free());
            if stuck > 4 {
                let kept = if self.is_giving() { 0 } else { GIVING_SEGMENTS };
                let enough = self.index.media.segments.free() > self.least_segments() + kept;
                return if enough { Ok(()) } else { Err(Error::NoSpace("the object store's flash is full")) };
            }
        }
        Ok(())
    }

    fn checkpoint_is_due(&self) -> bool {
        let pages =
            self.index.media.segments.count() as u64 * u64::from(self.index.media.flash.pages_per_segment());
        let dirty_bytes = self.index.tree.dirty() as u64 * self.index.media.flash.page_bytes() as u64;
        let log = self.index.log.pages() > (pages / 256).max(32);
        let pinned = self.index.media.segments.pinned() > (self.index.media.segments.count() / 16).max(4);
        let crowded = self.index.tree.dirty_bytes() as u64 > self.options.cache_bytes / 2;
        let dirty = crowded || dirty_bytes * 32 > self.capacity().flash;
        log || pinned || dirty || self.access.is_due() || self.journal_is_crowded()
    }

    /// Whether the journal of access times takes more room than its placement lets it.
    pub(super) fn journal_is_crowded(&self) -> bool {
        self.placement.journal_share().is_some_and(|share| {
            let Capacity { flash, live, .. } = self.capacity();
            let journal = self.access.pages().len() as u64 * self.index.media.flash.page_bytes() as u64;
            // A journal of a segment or two is never the reason.
            journal > 2 * self.index.media.segment_bytes() && journal * share > flash.saturating_sub(live)
        })
    }

    /// Cleans victims until some more segments are free than are needed, or the free ones run out.
    /// What gains most is cleaned first where little is left, and where `gaining` is what counts.
    fn clean_some(&mut self, gaining: bool) -> Result<()> {
        let wanted = self.reserve() + 2 + self.index.media.segments.count() / 256;
        let least = self.placement.streams_now() + 2;
        let (mut cleaned, mut moved) = (0, 0);
        loop {
            let floor = self.checkpoint_segments() + 1;
            let (commit, checkpoint) = self.index.media.segments.emptied();
            let free = self.index.media.segments.free();
            if free + commit + checkpoint >= wanted {
                return Ok(());
            }
            let cleaning = if gaining || free <= least { Cleaning::Greedy } else { self.options.cleaning };
            let Some(victim) = self.index.media.segments.victim(cleaning, self.index.media.clock) else {
                return Ok(());
            };
            // What is empty takes no room before it gives some.
            let takes = self.index.media.segments.alive_in(victim);
            // Where little is left, what is moved at once goes into half a segment.
            let room = free.saturating_sub(floor) as u64 * self.index.media.segment_bytes();
            let fits = takes <= room || moved + takes <= self.index.media.segment_bytes() / 2;
            if takes > 0 && (cleaned > 0 && !fits || free < 2) {
                return Ok(());
            }
            moved += takes;
            self.clean(victim)?;
            cleaned += 1;
            if self.index.media.counts.segments_cleaned.is_multiple_of(WEAR_CHECK)
                && let Some(lagging) =
                    self.index.media.segments.lagging(&self.index.media.flash, self.options.spread)
            {
                self.index.media.counts.wear_moves += 1;
                self.clean(lagging)?;
            }
        }
    }

    /// Moves what is alive in a segment elsewhere. What cannot be read stays where it is, and the segment with it: its
    /// bytes are those of an object, which says so when it is read and may be removed.
    fn clean(&mut self, victim: u32) -> Result<()> {
        let segment = *self.index.media.segments.get(victim);
        self.index.media.counts.segments_cleaned += 1;
        self.index.media.counts.empty_segments +=
            u64::from(segment.live_bytes == 0 && segment.live_pages == 0);
        let by_checkpoint = segment.live_pages > 0;
        let mut stays = false;
        if segment.live_bytes > 0 || segment.live_pages > 0 {
            let entries = self.index.contents_of(victim)?;
            if segment.live_pages > 0 {
                stays |= !self.renew_pages(victim, &entries)?;
                self.index.media.counts.index_copied +=
                    u64::from(segment.live_pages) * self.index.media.flash.page_bytes() as u64;
            }
            if segment.live_bytes > 0 {
                let stream = self.placement.place(DataClass::Survivor);
                self.index.move_survivors(stream, victim, &entries)?;
            }
            if stays || self.index.media.segments.get(victim).live_bytes > 0 {
                tracing::warn!(
                    "osd: segment {victim} holds something that cannot be read; it stays as it is"
                );
                self.index.media.segments.set_rotten(victim);
                return Ok(());
            }
        }
        self.index.media.segments.set_emptied(victim, by_checkpoint);
        Ok(())
    }

    /// Moves what is alive in segments that were open when the power went, if there is room: where it is no segment says so,
    /// and the log will not for long.
    pub(super) fn move_unsaid(&mut self) -> Result<()> {
        while let Some(segment) = self.unsaid.pop() {
            let Segment { state, live_bytes, rotten, .. } = *self.index.media.segments.get(segment);
            if state != State::Closed || live_bytes == 0 || rotten {
                continue;
            }
            if self.index.media.segments.free() <= self.reserve() {
                self.unsaid.push(segment);
                break;
            }
            let entries = self.index.contents_of(segment)?;
            let stream = self.placement.place(DataClass::Survivor);
            self.index.move_survivors(stream, segment, &entries)?;
        }
        Ok(())
    }

    /// Has the next checkpoint write the store's own pages that lie in a segment; false if one cannot be read.
    fn renew_pages(&mut self, segment: u32, entries: &[LogEntry]) -> Result<bool> {
        let whole = self.index.renew_nodes(segment, entries)?;
        self.checkpoints.renew_tables(&self.index.media.segments, segment);
        let segments = &self.index.media.segments;
        if self.access.pages().iter().any(|addr| segments.of(*addr) == segment) {
            self.access.merge(&mut self.index)?;
        }
        Ok(whole)
    }

    /// Cleans the whole store once, for tests and measurements; how many segments that was.
    #[cfg(test)]
    pub(super) fn clean_all(&mut self) -> Result<u64> {
        let before = self.index.media.counts.segments_cleaned;
        let candidates: Vec<u32> = (0..self.index.media.segments.count() as u32).collect();
        for number in candidates {
            let segment = self.index.media.segments.get(number);
            if segment.state == super::segments::State::Closed && segment.pinned == super::segments::Pin::No {
                self.make_room()?;
                if self.index.media.segments.get(number).state == super::segments::State::Closed
                    && self.index.media.segments.get(number).pinned == super::segments::Pin::No
                {
                    self.clean(number)?;
                }
            }
        }
        self.checkpoint(false)?;
        Ok(self.index.media.counts.segments_cleaned - before)
    }

    /// Which segment is cleaned.
    pub fn cleaning(&self) -> Cleaning {
        self.options.cleaning
    }
}

impl Index {
    /// What was written to a segment: by its summary, or by what is alive in it.
    pub(super) fn contents_of(&mut self, segment: u32) -> Result<Vec<LogEntry>> {
        match self.media.summary(segment)? {
            Some(entries) => Ok(entries),
            None => self.search(segment),
        }
    }

    /// Finds what is alive in a segment by a walk over the tree.
    fn search(&mut self, segment: u32) -> Result<Vec<LogEntry>> {
        let first = u64::from(segment) * self.media.segment_bytes();
        let mut entries = Vec::new();
        let all = (Key { object: 0, place: 0 }, Key { object: u64::MAX, place: u64::MAX });
        let segment_bytes = self.media.segments.segment_bytes();
        let lost = |_, why| tracing::warn!("osd: {why}");
        self.tree.range_past(&mut self.media.flash, all, lost, |key, value| {
            if let (Some((fork, offset)), Value::Extent(extent)) = (key.fork(), value)
                && !extent.is_reserved()
                && extent.at / segment_bytes * segment_bytes == first
            {
                let at = (extent.at - first) as u32;
                entries.push(LogEntry::Data {
                    object: key.object,
                    fork,
                    offset,
                    len: extent.len,
                    at,
                    when: 0,
                });
            }
        })?;
        let nodes: Vec<_> =
            self.tree.pages().filter(|(_, addr)| self.media.segments.of(*addr) == segment).collect();
        entries.extend(
            nodes
                .iter()
                .map(|(id, addr)| LogEntry::Node { id: *id, index: self.media.flash.index_of(*addr) }),
        );
        Ok(entries)
    }

    /// Has the next checkpoint write the nodes that lie in a segment; false if one cannot be read.
    pub(super) fn renew_nodes(&mut self, segment: u32, entries: &[LogEntry]) -> Result<bool> {
        let mut whole = true;
        for entry in entries {
            if let LogEntry::Node { id, index } = *entry
                && self.tree.addr(id) == self.media.flash.addr(segment, index).0
            {
                match self.tree.rewrite(&mut self.media.flash, id) {
                    Ok(()) => {}
                    Err(why) if is_damage(&why) => whole = false,
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(whole)
    }

    /// Reads what the tree still points to and appends it again.
    pub(super) fn move_survivors(&mut self, stream: usize, segment: u32, entries: &[LogEntry]) -> Result<()> {
        let first = u64::from(segment) * self.media.segment_bytes();
        let mut survivors = Vec::new();
        for entry in entries {
            let LogEntry::Data { object, fork, offset, len, at, .. } = *entry else { continue };
            let (from, to) = (first + u64::from(at), first + u64::from(at) + u64::from(len));
            // With what mapping it elsewhere will need.
            let around = (offset.saturating_sub(1), offset + u64::from(len) + 1);
            let found = match self.overlapping(object, fork, around.0, around.1) {
                Err(why) if is_damage(&why) => continue,
                found => found?,
            };
            for (start, extent) in found {
                let (low, high) =
                    (extent.at.max(from), (extent.at.wrapping_add(u64::from(extent.len))).min(to));
                if extent.is_reserved() || low >= high {
                    continue;
                }
                let offset = start + (low - extent.at);
                survivors.push(Survivor { object, fork, offset, len: high - low, at: low });
            }
        }
        survivors.sort_unstable_by_key(|survivor| survivor.at);
        // An extent that was written in pieces may be found by each of them.
        survivors.dedup_by_key(|survivor| (survivor.object, survivor.fork, survivor.offset, survivor.at));
        let mut parts = Vec::with_capacity(survivors.len());
        for Survivor { object, fork, offset, len, at } in survivors {
            for piece in self.readable(Key::extent(object, fork, offset), len, at)? {
                self.media.counts.data_copied += piece.len;
                parts.push(Part { object, fork, piece });
            }
        }
        self.pack(stream, &parts)
    }

    /// What can be read of `len` bytes of the flash at `at`, which are an object's from `key` on.
    pub(super) fn readable(&mut self, key: Key, len: u64, at: u64) -> Result<Vec<Piece>> {
        let offset = key.fork().map_or(0, |(_, offset)| offset);
        let page_bytes = self.media.flash.page_bytes() as u64;
        let (mut pieces, mut done) = (Vec::<Piece>::new(), 0);
        while done < len {
            let part = (page_bytes - (at + done) % page_bytes).min(len - done);
            let mut bytes = vec![0; if self.keep_bytes { part as usize } else { 0 }];
            let from = Key { place: key.place + done, ..key };
            match self.read_bytes(from, at + done, part, &mut bytes) {
                Ok(()) => match pieces.last_mut().filter(|last| last.end() == offset + done) {
                    Some(last) => {
                        last.len += part;
                        last.bytes.append(&mut bytes);
                    }
                    None => pieces.push(Piece { offset: offset + done, len: part, bytes }),
                },
                Err(why) if is_damage(&why) => {}
                Err(why) => return Err(why),
            }
            done += part;
        }
        Ok(pieces)
    }
}
