//! Commits: the log of changed items.
//!
//! A commit is a run of log pages with one number. Each page says which part it is and whether it is the
//! last; a commit whose last page is missing never happened. The records say what an item is now, not how
//! it changed: applying them in order gives the state after the commit, however often it is done.
//!
//! A page also *repeats* the records of the page before it, so that one that cannot be read costs nothing once
//! another came after it. Records take half of a page at most, and a commit is small mostly: that costs a page only
//! where a commit is longer than half a page.

use super::append::Media;
use super::extents::Index;
use super::flash::Addr;
use super::layout::{Input, Key, Output, PageKind, Value};
use super::placement::DataClass;
use super::tree::Tree;
use super::{Store, is_damage};
use bimetal_base::{Error, Result};
use rustc_hash::FxHashSet;

/// Bytes of a log page before its records, and before those that it repeats.
const LOG_HEADER: usize = 36;
const REPEATED_HEADER: usize = 12;
const LAST: u32 = 1 << 31;
/// Bytes of a record that most of them have no more than.
const MOST_ITEMS: usize = 40;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Numbers of the store: the next object, the next entry of the access journal, the clock.
    Numbers { next_object: u64, next_access: u64, clock: u64 },
    /// The item is so now.
    Put(Key, Value),
    /// The item is gone.
    Delete(Key),
}

impl Record {
    fn write(&self, out: &mut Output) {
        match self {
            Record::Numbers { next_object, next_access, clock } => {
                out.byte(1);
                out.varint(*next_object);
                out.varint(*next_access);
                out.varint(*clock);
            }
            Record::Put(key, value) => {
                out.byte(2);
                key.write(out);
                value.write(out);
            }
            Record::Delete(key) => {
                out.byte(3);
                key.write(out);
            }
        }
    }

    fn read(input: &mut Input) -> Result<Record> {
        Ok(match input.byte()? {
            1 => Record::Numbers {
                next_object: input.varint()?,
                next_access: input.varint()?,
                clock: input.varint()?,
            },
            2 => {
                let key = Key::read(input)?;
                Record::Put(key, Value::read(key, input)?)
            }
            3 => Record::Delete(Key::read(input)?),
            other => return Err(input.wrong(format_args!("there is no record of kind {other}"))),
        })
    }
}

/// When a page of the log was written, as summaries have it: after the page of data with that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub when: u64,
    /// The mark of the newest checkpoint that was complete then.
    pub base: u64,
}

/// Commits that cannot be read, between others that can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// Records before it.
    pub at: usize,
    /// The last commit before it, and the last one in it; none if nothing says which that is, or whether there was any.
    pub commits: (u64, Option<u64>),
    /// When the last page before it was written, and the first after it.
    pub when: (u64, u64),
}

/// A part of a commit as it is read back.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    pub commit: u64,
    pub part: u32,
    pub last: bool,
    pub records: Vec<Record>,
}

impl Part {
    fn read(commit: u64, part: u32, body: &[u8]) -> Result<Part> {
        let mut body = Input::new("a log page of the object store", body);
        let mut records = Vec::new();
        while !body.is_empty() {
            records.push(Record::read(&mut body)?);
        }
        Ok(Part { commit, part: part & !LAST, last: part & LAST != 0, records })
    }
}

/// Reads a log page: when it was written, the part before it, where it repeats one, and its own.
pub(super) fn read_page(page: &[u8]) -> Result<(Written, Option<Part>, Part)> {
    let mut input = Input::new("a log page of the object store", page);
    let written = Written { when: input.u64()?, base: input.u64()? };
    let (commit, part, len, repeated) = (input.u64()?, input.u32()?, input.u32()?, input.u32()?);
    let its = Part::read(commit, part, input.take(len as usize)?)?;
    if repeated == 0 {
        return Ok((written, None, its));
    }
    let (commit, part) = (input.u64()?, input.u32()?);
    let before = (repeated as usize).checked_sub(REPEATED_HEADER);
    let before = input.take(before.ok_or_else(|| input.wrong("what it repeats is too short"))?)?;
    Ok((written, Some(Part::read(commit, part, before)?), its))
}

/// The log: items that changed since the last commit, and how far it is.
#[derive(Default)]
pub(super) struct Log {
    changed: FxHashSet<Key>,
    /// Bytes of their records, at most nearly.
    bytes: u64,
    /// The number of the last commit.
    commit: u64,
    /// That of the last one of which all is in the array.
    complete: u64,
    /// Log pages since the last checkpoint.
    pages: u64,
    /// What the next page repeats: commit, part and records of the last one.
    repeats: Vec<u8>,
    /// The mark of the last checkpoint.
    base: u64,
    /// The page that the last complete commit that was read ends on, unless it was in what another repeats.
    last_page: Option<Addr>,
    /// When that was written; 0 if there is none.
    last_when: u64,
    /// Pages behind it that cannot be read, and that none repeats.
    unread: Vec<Addr>,
}

impl Log {
    /// An item changed; it takes so many bytes now.
    pub fn note(&mut self, key: Key, bytes: usize) {
        if self.changed.insert(key) || bytes > MOST_ITEMS {
            self.bytes += bytes.max(MOST_ITEMS) as u64;
        }
    }

    /// How many items changed.
    pub fn len(&self) -> usize {
        self.changed.len()
    }

    /// Bytes that the pages of the next commit take, at most nearly.
    pub fn waiting_bytes(&self) -> u64 {
        // Each page repeats the one before.
        self.bytes * 2
    }

    /// The number of the last commit.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// The number of the last commit of which all is in the array.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Log pages since the last checkpoint.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The mark of the last checkpoint.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The page that the last complete commit ends on that was read.
    pub fn last_page(&self) -> Option<Addr> {
        self.last_page
    }

    /// Pages that cannot be read, and behind which none can.
    pub fn unread(&self) -> &[Addr] {
        &self.unread
    }

    /// When the page was written that the last complete commit ends on that was read; 0 if there is none.
    pub fn last_when(&self) -> u64 {
        self.last_when
    }

    /// Commits go on after this one, which cannot be read.
    pub fn pass(&mut self, commit: u64) {
        self.commit = self.commit.max(commit);
        self.complete = self.commit;
    }

    /// Goes on after the checkpoint with a mark.
    pub fn set_base(&mut self, mark: u64) {
        self.base = mark;
    }

    /// A checkpoint says all that the log did.
    pub fn start_over(&mut self, mark: u64) {
        self.changed.clear();
        (self.bytes, self.pages, self.base, self.complete) = (0, 0, mark, self.commit);
    }

    /// Writes the changed items as the next commit.
    pub fn write(
        &mut self,
        media: &mut Media,
        tree: &mut Tree,
        stream: usize,
        numbers: &Record,
    ) -> Result<()> {
        self.commit += 1;
        let mut page = Output::default();
        numbers.write(&mut page);
        let mut keys: Vec<Key> = self.changed.drain().collect();
        self.bytes = 0;
        keys.sort_unstable();
        let (mut part, room) = (0, (media.flash.page_bytes() - LOG_HEADER - REPEATED_HEADER) / 2);
        for key in keys {
            let record = match tree.get(&mut media.flash, key) {
                Ok(Some(value)) => Record::Put(key, value),
                Ok(None) => Record::Delete(key),
                // What changed is in memory, unless it was removed with its leaf, and is beside one that cannot be read.
                Err(why) if is_damage(&why) => Record::Delete(key),
                Err(why) => return Err(why),
            };
            let before = page.0.len();
            record.write(&mut page);
            if page.0.len() > room {
                let next = page.0.split_off(before);
                self.append(media, stream, part, &page.0)?;
                (part, page.0) = (part + 1, next);
            }
        }
        if part > 0 {
            // Whoever finds the last part knows that a host has all of them.
            media.flash.written().keep()?;
        }
        self.append(media, stream, part | LAST, &page.0)?;
        self.complete = self.commit;
        Ok(())
    }

    fn append(&mut self, media: &mut Media, stream: usize, part: u32, records: &[u8]) -> Result<()> {
        let mut page = Output::default();
        page.u64(media.last_when());
        page.u64(self.base);
        page.u64(self.commit);
        page.u32(part);
        page.u32(records.len() as u32);
        page.u32(self.repeats.len() as u32);
        page.0.extend_from_slice(records);
        page.0.append(&mut self.repeats);
        media.append(stream, PageKind::Log, &page.0, &[])?;
        self.pages += 1;
        let mut repeats = Output::default();
        repeats.u64(self.commit);
        repeats.u32(part);
        repeats.0.extend_from_slice(records);
        self.repeats = repeats.0;
        Ok(())
    }

    /// The records of the commits after number `commit` that are complete, in order. What cannot be read is in what
    /// the page after it repeats; a page without one after it is a commit that did not happen.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: a part of a commit is missing, and others came after it.
    pub fn read(&mut self, media: &mut Media, commit: u64, pages: &[Addr]) -> Result<Vec<Record>> {
        self.commit = commit;
        self.read_on(media, pages, None)
    }

    /// As [`read`](Log::read), past what is missing: the records, and where some are.
    ///
    /// Where nobody knows which `commit` was before the first, they are those of the commits that follow one another up to
    /// the last.
    pub fn read_past(
        &mut self,
        media: &mut Media,
        commit: Option<u64>,
        pages: &[Addr],
    ) -> Result<(Vec<Record>, Vec<Gap>)> {
        // Any commit follows one that nobody knows, and nothing is missing before it.
        self.commit = commit.unwrap_or(0);
        let mut gaps = Vec::new();
        let mut records = self.read_on(media, pages, Some(&mut gaps))?;
        if commit.is_none() {
            records.drain(..gaps.last().map_or(0, |last| last.at));
            gaps.clear();
        }
        Ok((records, gaps))
    }

    fn read_on(
        &mut self,
        media: &mut Media,
        pages: &[Addr],
        mut gaps: Option<&mut Vec<Gap>>,
    ) -> Result<Vec<Record>> {
        let mut reader = Reader::default();
        (self.last_page, self.last_when) = (None, 0);
        self.unread.clear();
        for addr in pages {
            let page = match media.flash.read(*addr, PageKind::Log) {
                Err(why) if is_damage(&why) => {
                    tracing::warn!("osd: {why}");
                    self.unread.push(*addr);
                    continue;
                }
                page => page?,
            };
            // The next page repeats it, or shows that something is missing.
            self.unread.clear();
            let (written, mut before, its) = read_page(&page)?;
            if let Some(before) = before.take_if(|before| reader.expects(self.commit, before)) {
                reader.take(&mut self.commit, before);
            }
            if its.commit <= self.commit {
                continue;
            }
            if its.commit == self.commit.wrapping_add(1) && its.part == 0 {
                // A commit under this number that the power cut short may have been before it.
                reader.drop_unfinished();
            }
            if !reader.expects(self.commit, &its)
                && let Some(gaps) = &mut gaps
            {
                reader.drop_unfinished();
                // It goes on with the next commit that is there from its beginning.
                let begins = before.take_if(|before| before.part == 0 && before.commit > self.commit);
                let next = begins.as_ref().map_or(its.commit, |before| before.commit);
                let gap = Gap {
                    at: reader.records.len(),
                    commits: (self.commit, Some(next - 1)),
                    when: (self.last_when, written.when),
                };
                match gaps.last_mut().filter(|last| last.at == gap.at) {
                    Some(last) => (last.commits.1, last.when.1) = (gap.commits.1, gap.when.1),
                    None => gaps.push(gap),
                }
                match begins {
                    Some(before) => {
                        self.commit = before.commit - 1;
                        reader.take(&mut self.commit, before);
                    }
                    None if its.part > 0 => continue,
                    None => self.commit = its.commit - 1,
                }
            }
            if !reader.expects(self.commit, &its) {
                if gaps.is_none() && its.commit == self.commit.wrapping_add(1) && !its.last {
                    // Parts before the last one may be missing on a host that lost its cache: unless the last one is there, or
                    // another commit after it, the commit did not happen.
                    reader.drop_unfinished();
                    continue;
                }
                let (commit, part) = (self.commit.wrapping_add(1), reader.part);
                let why = format!(
                    "part {} of commit {} follows where part {part} of {commit} is due",
                    its.part, its.commit
                );
                return Err(Error::corrupt("the log of the object store", why, addr.0));
            }
            self.pages += 1;
            reader.take(&mut self.commit, its);
            if reader.part == 0 {
                (self.last_when, self.last_page) = (written.when, Some(*addr));
            }
        }
        reader.drop_unfinished();
        self.complete = self.commit;
        Ok(reader.records)
    }
}

/// Puts commits together from their parts.
#[derive(Default)]
struct Reader {
    records: Vec<Record>,
    /// Records of complete commits.
    whole: usize,
    /// The part that is due.
    part: u32,
}

impl Reader {
    fn expects(&self, commit: u64, part: &Part) -> bool {
        part.commit == commit.wrapping_add(1) && part.part == self.part
    }

    fn take(&mut self, commit: &mut u64, part: Part) {
        self.records.extend(part.records);
        self.part += 1;
        if part.last {
            (*commit, self.whole, self.part) = (part.commit, self.records.len(), 0);
        }
    }

    fn drop_unfinished(&mut self) {
        self.records.truncate(self.whole);
        self.part = 0;
    }
}

impl Store {
    /// Commits whatever there is to commit.
    pub(super) fn commit_now(&mut self) -> Result<()> {
        let committed = self.commit_all();
        self.or_fail(committed)
    }

    pub(super) fn commit_all(&mut self) -> Result<()> {
        self.write_out()?;
        self.commit_to_array()?;
        self.index.media.flash.sync()
    }

    /// Commits what was written out, which is to be all there is; the host need not keep the commit yet.
    pub(super) fn commit_to_array(&mut self) -> Result<()> {
        if self.index.log.len() > 0 {
            if !self.index.media.is_broken() {
                self.write_log()?;
            }
            // The chain may have broken in the middle of it, too.
            if self.index.media.is_broken() {
                return self.checkpoint(false);
            }
            self.index.media.counts.commits += 1;
            self.index.media.flash.set_committed();
        }
        // What died so far died with this commit or an earlier one.
        self.settle_commit();
        Ok(())
    }

    /// Writes what changed to the log, if anything did.
    pub(super) fn write_log(&mut self) -> Result<()> {
        self.index.settle_stored()?;
        if self.index.log.len() == 0 {
            return Ok(());
        }
        // A host may keep what was written last, and not what that leads to: neither the commit before, without which
        // this one is no log, nor the pages that take the place of what the commit before knows.
        self.index.media.flash.written().keep()?;
        let stream = self.placement.place(DataClass::Log);
        let numbers = Record::Numbers {
            next_object: self.next_object,
            next_access: self.access.next(),
            clock: self.index.media.clock,
        };
        let Index { media, tree, log, .. } = &mut self.index;
        // What changed is noted nowhere else from now on, however full the flash is.
        let written = log.write(media, tree, stream, &numbers);
        self.or_fail(written)
    }

    /// What was emptied is free, but for what a checkpoint must say.
    fn settle_commit(&mut self) {
        let Media { segments, flash, .. } = &mut self.index.media;
        segments.settle(flash, false);
    }

    /// Writes the access times that wait.
    pub(super) fn write_accesses(&mut self) -> Result<()> {
        let stream = self.placement.place(DataClass::Access);
        self.access.write(&mut self.index.media, stream)?;
        // Pages that the chain does not lead to would not be found again.
        if self.index.media.is_broken() && self.held == 0 { self.checkpoint(false) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Extent, Fork};

    #[test]
    fn records_come_back() {
        let key = Key::extent(9, Fork::Attributes, 77);
        let records = [
            Record::Numbers { next_object: 5, next_access: 1 << 40, clock: 3 },
            Record::Put(key, Value::Extent(Extent { len: 5, at: Extent::RESERVED })),
            Record::Put(Key::attributes(9), Value::Attributes(b"abc"[..].into())),
            Record::Delete(key),
        ];
        let mut out = Output::default();
        records.iter().for_each(|record| record.write(&mut out));
        let mut page = Output::default();
        page.u64(70);
        page.u64(60);
        page.u64(12);
        page.u32(3 | LAST);
        page.u32(out.0.len() as u32);
        page.u32((REPEATED_HEADER + out.0.len()) as u32);
        page.0.extend_from_slice(&out.0);
        page.u64(12);
        page.u32(2);
        page.0.extend_from_slice(&out.0);
        page.0.resize(2048, 0);
        let (written, before, its) = read_page(&page.0).unwrap();
        assert_eq!(written, Written { when: 70, base: 60 });
        let part = |part, last| Part { commit: 12, part, last, records: records.to_vec() };
        assert_eq!((before, its), (Some(part(2, false)), part(3, true)));
    }
}
