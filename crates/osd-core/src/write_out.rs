//! Write-out: what waits in memory is packed into pages and appended.
//!
//! A piece is cut at multiples of the page size of its object's offsets, so that later writes of aligned
//! blocks replace whole pages. Whole pages go out as they are. What is shorter (*fragments*) is packed, several
//! to a page. A write that begins or ends within a block whose neighbouring bytes are a fragment takes those
//! along, so that a block is not scattered over ever more pages; of an object whose bytes are soon replaced all of the
//! block.
//!
//! Cost: one program a page; two look-ups in the tree for a piece that is not aligned.

use super::buffer::{Dirty, Piece};
use super::extents::Index;
use super::layout::{Extent, Fork, Key, PageKind};
use super::pieces::Pieces;
use super::placement::DataClass;
use super::summary::LogEntry;
use super::{Capacity, Store, is_damage};
use bimetal_base::Result;
use std::collections::VecDeque;

/// What an owner says of bytes that are replaced soonest: those of a directory.
pub(super) const SHORTEST: u8 = 1;
/// The room of a page that is filled with a part of a piece, where every page counts.
const LEAST_PIECE: u64 = 32;

/// Bytes of a fork on their way to a page.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub object: u64,
    pub fork: Fork,
    pub piece: Piece,
}

/// A part of a piece.
#[derive(Clone, Copy)]
struct Slice<'a> {
    object: u64,
    fork: Fork,
    offset: u64,
    len: u64,
    /// Empty where none are kept.
    bytes: &'a [u8],
}

impl<'a> Slice<'a> {
    fn of(part: &'a Part) -> Slice<'a> {
        let Part { object, fork, piece } = part;
        Slice { object: *object, fork: *fork, offset: piece.offset, len: piece.len, bytes: &piece.bytes }
    }

    /// Its first `len` bytes, and the rest.
    fn split(self, len: u64) -> (Slice<'a>, Slice<'a>) {
        let (first, rest) = self.bytes.split_at(if self.bytes.is_empty() { 0 } else { len as usize });
        let first = Slice { len, bytes: first, ..self };
        (first, Slice { offset: self.offset + len, len: self.len - len, bytes: rest, ..self })
    }

    fn key(self) -> Key {
        Key::extent(self.object, self.fork, self.offset)
    }

    /// What a summary says of it, `at` byte of its page.
    fn entry(self, at: u32) -> LogEntry {
        let Slice { object, fork, offset, len, .. } = self;
        LogEntry::Data { object, fork, offset, len: len as u32, at, when: 0 }
    }
}

/// Pages that follow one another in a segment and in an object.
struct Run {
    object: u64,
    fork: Fork,
    offset: u64,
    extent: Extent,
}

impl Store {
    /// Writes everything that waits; nothing of it is durable before the next commit.
    ///
    /// After an error of the flash all of it waits as before: it can still be read.
    pub(super) fn write_out(&mut self) -> Result<()> {
        let mut waiting = VecDeque::from(self.buffer.take());
        let mut parts: Vec<Vec<Part>> = (0..self.placement.streams()).map(|_| Vec::new()).collect();
        let written = self.write_out_all(&mut waiting, &mut parts);
        if written.is_err() {
            let taken = parts.into_iter().flatten().map(|part| (part.object, part.fork, part.piece));
            taken.for_each(|(object, fork, piece)| self.buffer.wait_again(object, fork, piece));
            waiting.into_iter().for_each(|(key, dirty)| self.buffer.put_back(key, dirty));
        }
        self.left = self.buffer.objects().collect();
        written
    }

    /// Takes what waits, object by object, makes parts of it and writes them.
    fn write_out_all(
        &mut self,
        waiting: &mut VecDeque<((u64, Fork), Dirty)>,
        parts: &mut [Vec<Part>],
    ) -> Result<()> {
        self.tell_room()?;
        while let Some(((object, fork), dirty)) = waiting.front_mut() {
            let (object, fork) = (*object, *fork);
            match self.index.check_index(object, fork, dirty) {
                Ok(()) => {}
                Err(why) if is_damage(&why) => {
                    tracing::error!("osd: what was written to object {object} stays in memory: {why}");
                    waiting.pop_front().into_iter().for_each(|(key, dirty)| self.buffer.put_back(key, dirty));
                    continue;
                }
                Err(why) => return Err(why),
            }
            let hint = self.index.settle_onode(object, fork, dirty)?;
            let ends: Vec<(u64, u64)> =
                dirty.pieces.iter().map(|piece| (piece.offset, piece.end())).collect();
            for (number, piece) in dirty.pieces.iter_mut().enumerate() {
                // What other pieces replace must not come back with this one.
                let before = if number == 0 { 0 } else { ends[number - 1].1 };
                let after = ends.get(number + 1).map_or(u64::MAX, |next| next.0);
                self.index.gather(object, fork, piece, (before, after), hint == SHORTEST)?;
            }
            let stream = self.placement.place(DataClass::Data { hint });
            let bytes = ends.iter().map(|(from, to)| to - from).sum::<u64>();
            self.index.media.clock += bytes;
            self.index.media.counts.data_bytes += bytes;
            let taken = waiting.pop_front().into_iter().flat_map(|(_, dirty)| dirty.pieces);
            for (number, piece) in taken.enumerate() {
                match parts[stream].last_mut() {
                    // What they took along has brought them together.
                    Some(last) if number > 0 && last.piece.end() == piece.offset => last.piece.join(piece),
                    _ => parts[stream].push(Part { object, fork, piece }),
                }
            }
        }
        share_a_page(parts, self.index.media.flash.page_bytes());
        for (stream, parts) in parts.iter().enumerate() {
            self.index.pack(stream, parts)?;
        }
        Ok(())
    }

    /// Tells the placement how much room objects leave, and closes what it writes to no more.
    fn tell_room(&mut self) -> Result<()> {
        let Capacity { flash, live, total, used, .. } = self.capacity();
        self.index.tight = used > total / 8 * 7;
        self.placement.room(flash.saturating_sub(live) / self.index.media.segment_bytes());
        self.index.media.close_from(self.placement.streams_now())
    }
}

/// What fits one page goes into one, in the stream of most of it: a page that is mostly empty costs more than
/// a neighbour that lives longer.
fn share_a_page(parts: &mut [Vec<Part>], page_bytes: usize) {
    let bytes = |parts: &Vec<Part>| parts.iter().map(|part| part.piece.len).sum::<u64>();
    if parts.iter().map(bytes).sum::<u64>() >= page_bytes as u64 {
        return;
    }
    let Some(most) = (0..parts.len()).max_by_key(|stream| bytes(&parts[*stream])) else { return };
    for stream in (0..parts.len()).filter(|stream| *stream != most) {
        let moved = std::mem::take(&mut parts[stream]);
        parts[most].extend(moved);
    }
}

impl Index {
    /// Reads all of the index that mapping these pieces will need, so that it cannot fail half-way.
    pub(super) fn check_index(&mut self, object: u64, fork: Fork, dirty: &Dirty) -> Result<()> {
        self.onode(object)?;
        let block = self.media.flash.page_bytes() as u64;
        for piece in &dirty.pieces {
            let (from, to) = (piece.offset / block * block, piece.end().div_ceil(block) * block);
            self.overlapping(object, fork, from.saturating_sub(1), to + 1)?;
        }
        Ok(())
    }

    /// Brings an onode up to what was written; what its owner said of its lifetime.
    pub(super) fn settle_onode(&mut self, object: u64, fork: Fork, dirty: &Dirty) -> Result<u8> {
        let mut onode = self.onode(object)?;
        let hint = onode.hint;
        if fork == Fork::Data {
            let grown = onode.size.max(dirty.end);
            if grown != onode.size || dirty.modified.is_some() {
                onode.size = grown;
                onode.modified = dirty.modified.unwrap_or(onode.modified);
                onode.changed = dirty.modified.unwrap_or(onode.changed);
                self.set_onode(object, onode)?;
            }
        }
        Ok(hint)
    }

    /// Takes along the fragments between `before` and `after` that a piece touches within its first and last
    /// block; `whole`: all that is in these blocks, so that small changes leave the object in as few extents as before.
    pub(super) fn gather(
        &mut self,
        object: u64,
        fork: Fork,
        piece: &mut Piece,
        (before, after): (u64, u64),
        whole: bool,
    ) -> Result<()> {
        let block = self.media.flash.page_bytes() as u64;
        let first = (piece.offset / block * block).max(before);
        let last = (piece.end().div_ceil(block) * block).min(after);
        if first < piece.offset {
            for (from, extent) in self.overlapping(object, fork, first, piece.offset)?.into_iter().rev() {
                let end = from + u64::from(extent.len);
                if from < first && !whole || end < piece.offset || extent.is_reserved() {
                    break;
                }
                let (from, skip) = (from.max(first), first.saturating_sub(from));
                let len = piece.offset - from;
                let key = Key::extent(object, fork, from);
                let Some(mut bytes) = self.fetched(key, extent.at + skip, len)? else { break };
                bytes.append(&mut piece.bytes);
                *piece = Piece { offset: from, len: piece.len + len, bytes };
            }
        }
        if piece.end() < last {
            for (from, extent) in self.overlapping(object, fork, piece.end(), last)? {
                let (at, end) = (piece.end(), from + u64::from(extent.len));
                if from > at || end > last && !whole || extent.is_reserved() {
                    break;
                }
                let (key, end) = (Key::extent(object, fork, at), end.min(last));
                let Some(mut bytes) = self.fetched(key, extent.at + (at - from), end - at)? else { break };
                piece.len += end - at;
                piece.bytes.append(&mut bytes);
            }
        }
        Ok(())
    }

    /// Bytes of an object from `key` on, to be written again with others; none if they cannot be read: they stay where
    /// they are.
    fn fetched(&mut self, key: Key, at: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; if self.keep_bytes { len as usize } else { 0 }];
        match self.read_bytes(key, at, len, &mut bytes) {
            Ok(()) => {
                self.media.counts.gathered_bytes += len;
                Ok(Some(bytes))
            }
            Err(why) if is_damage(&why) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Appends parts to a stream: whole pages first, then the fragments.
    pub(super) fn pack(&mut self, stream: usize, parts: &[Part]) -> Result<()> {
        let page = self.media.flash.page_bytes() as u64;
        let mut fragments = Vec::new();
        for mut piece in parts.iter().map(Slice::of) {
            if piece.len < page {
                fragments.push(piece);
                continue;
            }
            let head = (page - piece.offset % page) % page;
            if head > 0 {
                let (first, rest) = piece.split(head);
                fragments.push(first);
                piece = rest;
            }
            let (whole, tail) = piece.split(piece.len / page * page);
            self.write_pages(stream, whole)?;
            if tail.len > 0 {
                fragments.push(tail);
            }
        }
        self.write_fragments(stream, fragments)
    }

    /// Appends a piece of whole pages.
    fn write_pages(&mut self, stream: usize, mut rest: Slice) -> Result<()> {
        let page = self.media.flash.page_bytes() as u64;
        let mut run: Option<Run> = None;
        while rest.len > 0 {
            let (one, others) = rest.split(page);
            rest = others;
            let addr = self.media.append(stream, PageKind::Data, one.bytes, &[one.entry(0)])?;
            let extent = Extent { len: page as u32, at: self.media.byte_of(addr) };
            run = Some(match run {
                Some(mut run) if self.goes_on(&run, extent) => {
                    run.extent.len += extent.len;
                    run
                }
                other => {
                    self.map_run(other)?;
                    Run { object: one.object, fork: one.fork, offset: one.offset, extent }
                }
            });
        }
        self.map_run(run)
    }

    fn goes_on(&self, run: &Run, extent: Extent) -> bool {
        run.extent.at + u64::from(run.extent.len) == extent.at
            && self.media.segments.of_byte(run.extent.at) == self.media.segments.of_byte(extent.at)
    }

    fn map_run(&mut self, run: Option<Run>) -> Result<()> {
        match run {
            Some(run) => self.map(run.object, run.fork, run.offset, run.extent),
            None => Ok(()),
        }
    }

    /// Packs fragments into pages, one behind the other; one is split only where much room would be lost.
    fn write_fragments(&mut self, stream: usize, fragments: Vec<Slice>) -> Result<()> {
        let page = self.media.flash.page_bytes();
        let least = if self.tight { LEAST_PIECE } else { page as u64 / 4 };
        let (mut bytes, mut pieces, mut entries) = (Vec::new(), Pieces::default(), Vec::new());
        for mut piece in fragments {
            while piece.len > 0 {
                let room = pieces.room(page, piece.key(), piece.len);
                if entries.is_empty() && room < piece.len && piece.len <= page as u64 {
                    // With a directory it would take two.
                    self.write_alone(stream, piece)?;
                    break;
                }
                if piece.len > room && room < least {
                    self.write_page(stream, &bytes, &pieces, &entries)?;
                    (pieces, entries) = (Pieces::default(), Vec::new());
                    bytes.clear();
                    continue;
                }
                let (first, rest) = piece.split(piece.len.min(room));
                entries.push(first.entry(pieces.used() as u32));
                pieces.add(first.key(), first.len);
                bytes.extend_from_slice(first.bytes);
                piece = rest;
            }
        }
        if entries.is_empty() { Ok(()) } else { self.write_page(stream, &bytes, &pieces, &entries) }
    }

    /// Appends a piece that nearly fills a page.
    fn write_alone(&mut self, stream: usize, piece: Slice) -> Result<()> {
        let addr = self.media.append(stream, PageKind::Data, piece.bytes, &[piece.entry(0)])?;
        let extent = Extent { len: piece.len as u32, at: self.media.byte_of(addr) };
        self.map(piece.object, piece.fork, piece.offset, extent)
    }

    /// Appends a page of fragments.
    fn write_page(
        &mut self,
        stream: usize,
        bytes: &[u8],
        pieces: &Pieces,
        entries: &[LogEntry],
    ) -> Result<()> {
        let when = self.media.when();
        let page = match self.keep_bytes {
            true => pieces.page(bytes, self.media.flash.page_bytes(), when),
            false => Vec::new(),
        };
        let addr = self.media.append_at(stream, PageKind::Pieces, when, &page, entries)?;
        let base = self.media.byte_of(addr);
        for entry in entries {
            if let LogEntry::Data { object, fork, offset, len, at, .. } = *entry {
                self.map(object, fork, offset, Extent { len, at: base + u64::from(at) })?;
            }
        }
        Ok(())
    }
}
