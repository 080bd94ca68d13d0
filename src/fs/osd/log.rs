//! Commits: the log of changed items, and access times on their way to the flash.
//!
//! A commit is a run of log pages with one number. Each page says which part it is and whether it is the
//! last; a commit whose last page is missing never happened. The records say what an item is now, not how
//! it changed: applying them in order gives the state after the commit, however often it is done.

use super::access;
use super::layout::{Input, Key, Output, PageKind, Value};
use super::placement::What;
use super::{Addr, Store};
use crate::Result;

/// Bytes of a log page before its records.
pub(super) const LOG_HEADER: usize = 20;
const LAST: u32 = 1 << 31;

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

/// A log page as it is read back.
pub(super) struct LogPage {
    pub commit: u64,
    pub part: u32,
    pub last: bool,
    pub records: Vec<Record>,
}

pub(super) fn read_page(page: &[u8]) -> Result<LogPage> {
    let mut input = Input::new("a log page of the object store", page);
    let (commit, part, len) = (input.u64()?, input.u32()?, input.u32()?);
    input.u32()?;
    let mut body = Input::new("a log page of the object store", input.take(len as usize)?);
    let mut records = Vec::new();
    while !body.is_empty() {
        records.push(Record::read(&mut body)?);
    }
    Ok(LogPage { commit, part: part & !LAST, last: part & LAST != 0, records })
}

impl Store {
    /// Commits whatever there is to commit.
    pub(super) fn commit_now(&mut self) -> Result<()> {
        let committed = self.commit_all();
        self.or_fail(committed)
    }

    pub(super) fn commit_all(&mut self) -> Result<()> {
        self.write_out()?;
        if self.changed.is_empty() {
            // What died so far died with an earlier commit.
            self.segments.settle(&self.flash, false);
            return Ok(());
        }
        if self.broken {
            return self.checkpoint(false);
        }
        self.write_log()?;
        // The chain may have broken in the middle of it.
        if self.broken {
            return self.checkpoint(false);
        }
        self.counts.commits += 1;
        self.flash.sync()?;
        self.segments.settle(&self.flash, false);
        Ok(())
    }

    /// Writes the changed items as the next commit.
    fn write_log(&mut self) -> Result<()> {
        self.commit += 1;
        let numbers = Record::Numbers {
            next_object: self.next_object,
            next_access: self.access.next,
            clock: self.clock,
        };
        let mut page = Output::default();
        numbers.write(&mut page);
        let mut keys: Vec<Key> = self.changed.drain().collect();
        keys.sort_unstable();
        let (mut part, room) = (0, self.flash.page_bytes() - LOG_HEADER);
        for key in keys {
            let record = match self.tree.get(&mut self.flash, key)? {
                Some(value) => Record::Put(key, value),
                None => Record::Delete(key),
            };
            let before = page.0.len();
            record.write(&mut page);
            if page.0.len() > room {
                let next = page.0.split_off(before);
                self.append_log(part, &page.0)?;
                (part, page.0) = (part + 1, next);
            }
        }
        self.append_log(part | LAST, &page.0)
    }

    fn append_log(&mut self, part: u32, records: &[u8]) -> Result<()> {
        let mut page = Output::default();
        page.u64(self.commit);
        page.u32(part);
        page.u32(records.len() as u32);
        page.u32(0);
        page.0.extend_from_slice(records);
        let stream = self.placement.place(What::Log);
        self.append(stream, PageKind::Log, &page.0, &[])?;
        self.log_pages += 1;
        Ok(())
    }

    /// Writes the access times that wait.
    pub(super) fn write_accesses(&mut self) -> Result<()> {
        let stream = self.placement.place(What::Access);
        for page in self.access.take_pages(self.flash.page_bytes()) {
            let addr = self.append(stream, PageKind::Access, &page, &[])?;
            self.add_access_page(addr);
        }
        // Pages that the chain does not lead to would not be found again.
        if self.broken && self.held == 0 { self.checkpoint(false) } else { Ok(()) }
    }

    /// Takes up an access page that is on the flash.
    pub(super) fn add_access_page(&mut self, addr: Addr) {
        self.segments.add_page(self.segments.of(addr));
        self.access.pages.push(addr);
    }

    /// Puts the journaled access times into their onodes. The log does not say so: until the checkpoint that
    /// must follow is there, the journal's pages do.
    pub(super) fn merge_accesses(&mut self) -> Result<()> {
        for (object, at) in self.access.take_latest() {
            if let Ok(mut onode) = self.onode(object) {
                onode.accessed = at;
                self.apply(Key::onode(object), Some(Value::Onode(onode)))?;
            }
        }
        self.counts.merges += 1;
        Ok(())
    }

    /// Writes the newest time of each object to the journal again, so that its pages before are superfluous after the
    /// checkpoint that must follow: those. Merges where that would save less than half of them.
    pub(super) fn renew_accesses(&mut self) -> Result<Vec<Addr>> {
        let old = std::mem::take(&mut self.access.pages);
        if self.access.renews_to_half() {
            self.access.renew();
            let stream = self.placement.place(What::Access);
            for page in self.access.take_pages(self.flash.page_bytes()) {
                let addr = self.append(stream, PageKind::Access, &page, &[])?;
                self.add_access_page(addr);
            }
        } else {
            self.merge_accesses()?;
        }
        Ok(old)
    }

    /// Takes the journal's entries of a page found on the flash.
    pub(super) fn restore_accesses(&mut self, page: &[u8]) -> Result<()> {
        for entry in access::read_page(page)? {
            let Ok(onode) = self.onode(entry.0) else { continue };
            if entry.2 >= onode.access_from {
                self.access.restore(entry);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::osd::layout::{Extent, Fork};

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
        page.u64(12);
        page.u32(3 | LAST);
        page.u32(out.0.len() as u32);
        page.u32(0);
        page.0.extend_from_slice(&out.0);
        page.0.resize(2048, 0);
        let read = read_page(&page.0).unwrap();
        assert_eq!((read.commit, read.part, read.last), (12, 3, true));
        assert_eq!(read.records, records);
    }
}
