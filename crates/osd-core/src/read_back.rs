//! What segments say when they are read back: what was written to each, and where the log and the access times go on.
//!
//! A closed segment ends with its summary. One that was open when the power went has what checkpoints had it say so far, and
//! its pages of pieces; pages of data do not say whose they are. Pages of the log are found by the serials of their segments.

use super::anchors::ChainStart;
use super::append::Media;
use super::flash::{Addr, PageTag};
use super::layout::{Key, PageKind, Value};
use super::log::{self, Record};
use super::node::{self, Node};
use super::segments::State;
use super::summary::{self, Entries, LogEntry};
use super::{is_damage, pieces};
use bimetal_base::Result;
use std::collections::BTreeMap;

/// A page of a chain.
struct Chained {
    addr: Addr,
    kind: PageKind,
    serial: u64,
}

/// What can be read; none if it is damaged.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(why) if is_damage(&why) => Ok(None),
        read => read.map(Some),
    }
}

impl Media {
    /// What pages of the index and the log in a segment say of an item, of whatever time they are.
    pub(super) fn said_of(&mut self, segment: u32, key: Key) -> Result<Vec<Value>> {
        let mut said = Vec::new();
        for index in 0..self.flash.pages_per_segment() {
            let addr = self.flash.addr(segment, index);
            let Some(Some(tag)) = readable(self.flash.read_tag(addr))? else { continue };
            if !matches!(tag.kind, PageKind::Node | PageKind::Log) {
                continue;
            }
            let Some(page) = readable(self.flash.read(addr, tag.kind))? else { continue };
            if tag.kind == PageKind::Log {
                let Ok((_, before, its)) = log::read_page(&page) else { continue };
                let records = before.into_iter().chain([its]).flat_map(|part| part.records);
                said.extend(records.filter_map(|record| match record {
                    Record::Put(its, value) if its == key => Some(value),
                    _ => None,
                }));
            } else if let Ok(node) = node::read_by(&page).and_then(|(id, _)| Node::decode(id, &page))
                && node.is_leaf()
                && let Ok(index) = node.search(key)
            {
                said.push(node.leaf_item(index).1);
            }
        }
        Ok(said)
    }

    /// Everything that a segment says was written to it, whether it was closed or not: what its summary says, and if that is
    /// not there what the summaries so far do, and pages of pieces. With it, pages of data that nothing there names.
    pub(super) fn said(&mut self, segment: u32) -> Result<(Vec<LogEntry>, u32)> {
        if let Some(entries) = self.summary(segment)? {
            return Ok((entries, 0));
        }
        let (mut all, mut data, mut so_far) = (Vec::new(), Vec::new(), Vec::new());
        let page_bytes = self.flash.page_bytes() as u32;
        let serial = self.serial_of(segment)?;
        for index in 0..self.flash.pages_per_segment() {
            let addr = self.flash.addr(segment, index);
            if self.flash.is_bad(addr) && !self.flash.is_programmed(addr) {
                continue;
            }
            let tag = match self.flash.read_tag(addr) {
                Err(why) if is_damage(&why) => None,
                tag => tag?,
            };
            match tag.filter(|tag| !self.is_left_over(addr, tag, serial)).map(|tag| tag.kind) {
                Some(PageKind::Data) => data.push(index),
                Some(PageKind::Pieces) => {
                    let Some(page) = readable(self.flash.read(addr, PageKind::Pieces))? else { continue };
                    let Ok((when, pieces)) = pieces::read_all(&page) else { continue };
                    all.extend(pieces.into_iter().filter_map(|(at, key, len)| {
                        let (fork, offset) = key.fork()?;
                        let at = index * page_bytes + at as u32;
                        Some(LogEntry::Data { object: key.object, fork, offset, len: len as u32, at, when })
                    }));
                }
                Some(PageKind::Summary) => {
                    let Some(page) = readable(self.flash.read(addr, PageKind::Summary))? else { continue };
                    let Ok(page) = summary::read_page(&page) else { continue };
                    so_far.push((page.part, page.parts, page.bytes.to_vec()));
                }
                _ => {}
            }
        }
        // What is behind a part that is missing cannot be told apart.
        let (mut bytes, mut due) = (Vec::new(), (0, 0));
        for (part, parts, body) in so_far {
            if part == 0 {
                all.extend(Entries::read_some(&std::mem::take(&mut bytes)).0.all());
            } else if (part, parts) != due {
                due = (0, 0);
                continue;
            }
            bytes.extend_from_slice(&body);
            due = (part + 1, parts);
        }
        all.extend(Entries::read_some(&bytes).0.all());
        let named = |index: &u32| {
            all.iter().any(|entry| match entry {
                LogEntry::Data { at, len, .. } => (*at..at + len).contains(&(index * page_bytes)),
                LogEntry::Node { .. } => false,
            })
        };
        let unnamed = data.iter().filter(|index| !named(index)).count() as u32;
        Ok((all, unnamed))
    }

    /// What was written to a closed segment; none if it does not say.
    pub(super) fn summary(&mut self, segment: u32) -> Result<Option<Vec<LogEntry>>> {
        let mut index = self.flash.pages_per_segment();
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let serial = self.serial_of(segment)?;
        while index > 0 {
            index -= 1;
            let addr = self.flash.addr(segment, index);
            if self.flash.is_bad(addr) && !self.flash.is_programmed(addr) {
                continue;
            }
            let tag = match self.flash.read_tag(addr) {
                Err(why) if is_damage(&why) => return Ok(None),
                tag => tag?,
            };
            match tag {
                None if parts.is_empty() => continue,
                Some(tag) if self.is_left_over(addr, &tag, serial) => continue,
                Some(tag) if tag.kind == PageKind::Summary => {}
                _ => return Ok(None),
            }
            let Ok(page) = self.flash.read(addr, PageKind::Summary) else { return Ok(None) };
            let Ok(page) = summary::read_page(&page) else { return Ok(None) };
            if page.so_far {
                return Ok(None);
            }
            let due = page.parts.checked_sub(parts.len() as u16 + 1);
            if due != Some(page.part) {
                return Ok(None);
            }
            parts.push(page.bytes.to_vec());
            if page.part == 0 {
                parts.reverse();
                return Ok(Entries::read(&parts.concat()).ok().map(|entries| entries.all().to_vec()));
            }
        }
        Ok(None)
    }

    /// Log and access pages written after the chains were where a checkpoint says, in order.
    pub(super) fn pages_after(&mut self, starts: &[ChainStart]) -> Result<Vec<(Addr, PageKind)>> {
        let found = self.search_pages(starts)?;
        // What is read again after a power cut stays.
        for chained in &found {
            let segment = self.segments.of(chained.addr);
            self.pass(chained.serial);
            self.segments.set_used(&self.flash, segment, State::Closed);
            self.segments.pin(segment);
        }
        Ok(found.into_iter().map(|chained| (chained.addr, chained.kind)).collect())
    }

    /// Finds the log and access pages in all segments that were opened after the chains were there, by the use of their
    /// segments. All of them, whether something leads to them or not: a commit that is there once is there at each
    /// opening that follows.
    ///
    /// Cost: a spare area or two a segment, and those of the segments written since.
    fn search_pages(&mut self, starts: &[ChainStart]) -> Result<Vec<Chained>> {
        let (Some(log), Some(access)) = (starts.first(), starts.last()) else { return Ok(Vec::new()) };
        let first = log.serial.min(access.serial);
        let mut found = Vec::new();
        // What is in a bad block can be read.
        for segment in self.kept()..self.segments.count() as u32 {
            let serial = self.serial_of(segment)?;
            if serial < first {
                continue;
            }
            for index in 0..self.flash.pages_per_segment() {
                let addr = self.flash.addr(segment, index);
                let tag = match self.flash.read_tag(addr) {
                    Err(why) if is_damage(&why) => None,
                    tag => tag?,
                };
                let Some(tag) = tag.filter(|tag| !self.is_left_over(addr, tag, serial)) else { continue };
                let kind = tag.kind;
                let start = match kind {
                    PageKind::Log => log,
                    PageKind::Access => access,
                    _ => continue,
                };
                let begin = if serial == start.serial { start.index } else { 0 };
                if serial >= start.serial && index >= begin {
                    found.push(Chained { addr, kind, serial });
                }
            }
        }
        found.sort_unstable_by_key(|chained| (chained.serial, chained.addr));
        Ok(found)
    }

    /// Pages that cannot be read and may be of the log, after the last page of it that can, or after where its chain
    /// began; what stands at the end of a segment may be what a power cut tore, and `others` are no pages of the log.
    pub(super) fn hidden_after(
        &mut self,
        starts: &[ChainStart],
        last: Option<Addr>,
        others: &[Addr],
    ) -> Result<Vec<Addr>> {
        let Some(start) = starts.first() else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        let begin = match last {
            Some(addr) => (self.serial_of(self.segments.of(addr))?, self.flash.index_of(addr) + 1),
            None => (start.serial, start.index),
        };
        for segment in self.kept()..self.segments.count() as u32 {
            let serial = self.serial_of(segment)?;
            if serial < begin.0 {
                continue;
            }
            let (mut hidden, mut is_its, mut follows) = (Vec::new(), false, false);
            for index in (0..self.flash.pages_per_segment()).rev() {
                let addr = self.flash.addr(segment, index);
                let tag = match self.flash.read_tag(addr) {
                    Err(why) if is_damage(&why) => None,
                    tag => tag?,
                };
                let is_read = match tag.map(|tag| tag.kind) {
                    Some(PageKind::Log) => {
                        is_its = true;
                        readable(self.flash.read(addr, PageKind::Log))?.is_some()
                    }
                    Some(kind) => {
                        is_its |= matches!(kind, PageKind::Node | PageKind::Table | PageKind::Checkpoint);
                        true
                    }
                    None => self.flash.is_bad(addr) || self.flash.is_blank(addr).unwrap_or(false),
                };
                let is_hidden = !is_read && follows && (serial, index) >= begin && !others.contains(&addr);
                // A block of which nothing can be read is one whose erasing the power cut off.
                if is_hidden && self.flash.has_readable(addr) {
                    hidden.push(addr);
                }
                follows |= is_read && tag.is_some();
            }
            if is_its {
                all.extend(hidden.into_iter().rev());
            }
        }
        Ok(all)
    }

    /// Whether the log goes on in a segment of which several pages were written and none can be read: what came after them may
    /// be lost.
    pub(super) fn is_chain_lost(&mut self, starts: &[ChainStart]) -> Result<bool> {
        let Some(start) = starts.first().filter(|start| start.segment < self.flash.segments()) else {
            return Ok(false);
        };
        // One page that is damaged takes nothing along.
        if start.index < 2 {
            return Ok(false);
        }
        for index in 0..self.flash.pages_per_segment() {
            let tag = readable(self.flash.read_tag(self.flash.addr(start.segment, index)))?.flatten();
            if tag.is_some_and(|tag| tag.serial == start.serial) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a page is of an earlier use of its segment than the one with this number: a block that could not be erased is bad,
    /// and keeps what was on it.
    fn is_left_over(&self, addr: Addr, tag: &PageTag, serial: u64) -> bool {
        tag.serial < serial && self.flash.is_bad(addr)
    }

    /// The number of the use of a segment, as the first two pages have it that can be read, and those of bad blocks; 0 if they
    /// have none. Where these differ, all pages of it tell.
    fn serial_of(&mut self, segment: u32) -> Result<u64> {
        let mut found = None;
        let mut pages = 0;
        for index in 0..self.flash.pages_per_segment() {
            let addr = self.flash.addr(segment, index);
            if self.flash.is_bad(addr) && !self.flash.is_programmed(addr) {
                continue;
            }
            match self.flash.read_tag(addr) {
                // Others tell.
                Err(why) if is_damage(&why) => continue,
                Err(why) => return Err(why),
                Ok(Some(tag)) if found.is_some_and(|serial| serial != tag.serial) => {
                    return self.serial_among(segment);
                }
                Ok(Some(tag)) => found = Some(tag.serial),
                Ok(None) => {}
            }
            pages += u32::from(!self.flash.is_bad(addr));
            if pages == 2 {
                break;
            }
        }
        Ok(found.unwrap_or(0))
    }

    /// The number of the use of a segment whose pages do not all have the same: the greatest that more than one has, or one
    /// that can be read or, of a page of data, is in a good block where all others are in bad ones.
    fn serial_among(&mut self, segment: u32) -> Result<u64> {
        let mut all = BTreeMap::<u64, Vec<(Addr, PageKind)>>::new();
        for index in 0..self.flash.pages_per_segment() {
            let addr = self.flash.addr(segment, index);
            if let Some(tag) = readable(self.flash.read_tag(addr))?.flatten() {
                all.entry(tag.serial).or_default().push((addr, tag.kind));
            }
        }
        let others_are_left = |media: &Media, serial: u64| {
            let others = all.iter().filter(|(its, _)| **its != serial).flat_map(|(_, pages)| pages);
            others.into_iter().all(|(addr, _)| media.flash.is_bad(*addr))
        };
        for (serial, pages) in all.iter().rev() {
            let (addr, kind) = pages[0];
            let is_right = pages.len() > 1
                || match kind {
                    PageKind::Data => !self.flash.is_bad(addr) && others_are_left(self, *serial),
                    kind => readable(self.flash.read(addr, kind))?.is_some(),
                };
            if is_right {
                return Ok(*serial);
            }
        }
        Ok(all.into_keys().next_back().unwrap_or(0))
    }
}
