//! The access-time journal: when objects were last read, until their onodes say so.
//!
//! Entries are numbered. They gather in a page's worth of memory; a full page goes to the flash. Who asks for
//! an access time looks here first. After so many entries they are merged: the onodes get the times, and
//! with the checkpoint that follows the pages are dead. An onode whose access time was set by its user names
//! the first entry that counts for it, so that no older one undoes that. A journal that takes too much room before
//! that is *renewed*: a checkpoint writes the newest time of each object to it again, and the pages before are dead.
//! That costs a page for some hundreds of objects, where merging costs a leaf of the index for some ten.
//!
//! After a power cut every access time is right but those whose entries were still in memory: of at most as
//! many objects as a page has entries.

use super::append::Media;
use super::extents::Index;
use super::flash::Addr;
use super::layout::{Input, Key, Output, PageKind, Value, read_stamp, write_stamp};
use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;

/// One entry as it is read back: object, time, number.
pub(super) type AccessTime = (u64, Stamp, u64);

/// The journal.
#[derive(Default)]
pub(super) struct Access {
    /// The newest time of each object that is not merged.
    latest: FxHashMap<u64, Stamp>,
    /// Entries that are not on the flash.
    waiting: Vec<(u64, Stamp)>,
    /// Where an object's entry waits, if one entry an object is enough.
    places: FxHashMap<u64, usize>,
    waiting_bytes: usize,
    /// Pages that are not merged.
    pages: Vec<Addr>,
    /// Number of the next entry.
    next: u64,
    /// Entries written since the last merge.
    unmerged: u32,
    /// So many entries are merged; none: access times are not journaled.
    limit: Option<u32>,
}

/// Bytes of a page before its entries, with the longest first time.
const HEADER_BYTES: usize = 32;
/// The most an entry can take: 10 for the object, 19 for the time.
const ENTRY_BYTES_MAX: usize = 29;

impl Access {
    /// A journal whose next entry has number `next`, and which is merged after so many; none: there is no journal.
    pub fn new(next: u64, limit: Option<u32>) -> Access {
        Access { next, limit, ..Access::default() }
    }

    /// Whether access times are journaled.
    pub fn is_used(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether it is as long as it may be.
    pub fn is_due(&self) -> bool {
        self.limit.is_some_and(|entries| self.unmerged >= entries)
    }

    /// Number of the next entry.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Entries are numbered from `next` on, at least.
    pub fn pass(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Pages that are not merged.
    pub fn pages(&self) -> &[Addr] {
        &self.pages
    }

    /// Entries written since the last merge.
    #[cfg(test)]
    pub fn unmerged(&self) -> u32 {
        self.unmerged
    }

    /// Writes the entries that wait.
    pub fn write(&mut self, media: &mut Media, stream: usize) -> Result<()> {
        for page in self.take_pages(media.flash.page_bytes()) {
            self.pages.push(media.append_own(stream, PageKind::Access, &page, &[])?);
        }
        Ok(())
    }

    /// Puts the times into their onodes. The log does not say so: until the checkpoint that must follow is there, the
    /// journal's pages do.
    pub fn merge(&mut self, index: &mut Index) -> Result<()> {
        for (object, at) in self.take_latest() {
            let mut onode = match index.onode(object) {
                Ok(onode) => onode,
                Err(Error::NotFound | Error::Corrupt { .. }) => continue,
                Err(why) => return Err(why),
            };
            onode.accessed = at;
            // Whoever finds an entry that is merged, in a page that nothing names any more, sees that it is.
            onode.access_from = self.next;
            index.apply(Key::onode(object), Some(Value::Onode(onode)))?;
        }
        index.media.counts.merges += 1;
        Ok(())
    }

    /// Writes the newest time of each object again, so that the pages before are superfluous after the checkpoint that
    /// must follow. Merges where that would save less than half of them.
    pub fn shorten(&mut self, index: &mut Index, stream: usize) -> Result<Vec<Addr>> {
        let old = std::mem::take(&mut self.pages);
        if self.renews_to_half() {
            self.renew();
            self.write(&mut index.media, stream)?;
        } else {
            self.merge(index)?;
        }
        Ok(old)
    }

    /// Pages that a checkpoint makes superfluous, after a merge.
    pub fn take_merged(&mut self) -> Vec<Addr> {
        if self.unmerged == 0 { std::mem::take(&mut self.pages) } else { Vec::new() }
    }

    /// Takes up a page found on the flash.
    pub fn restore_page(&mut self, index: &mut Index, addr: Addr) -> Result<()> {
        let page = index.media.flash.read(addr, PageKind::Access)?;
        index.media.segments.add_page(index.media.segments.of(addr));
        self.pages.push(addr);
        for entry in read_page(&page)? {
            // Also of objects that are gone: another with the same number must not take it for its own.
            self.pass(entry.2.saturating_add(1));
            let onode = match index.onode(entry.0) {
                Ok(onode) => onode,
                Err(Error::NotFound | Error::Corrupt { .. }) => continue,
                Err(why) => return Err(why),
            };
            if entry.2 >= onode.access_from {
                self.restore(entry);
            }
        }
        Ok(())
    }

    /// The newest access time that is not merged.
    pub fn get(&self, object: u64) -> Option<Stamp> {
        self.latest.get(&object).copied()
    }

    /// Notes an access; one entry an object and page, if `once`.
    pub fn note(&mut self, object: u64, at: Stamp, once: bool) {
        self.latest.insert(object, at);
        if once && let Some(place) = self.places.get(&object) {
            self.waiting[*place].1 = at;
            return;
        }
        if once {
            self.places.insert(object, self.waiting.len());
        }
        let base = self.waiting.first().map_or(at, |first| first.1);
        self.waiting_bytes += entry_len(object, at, base);
        self.waiting.push((object, at));
        self.next += 1;
        self.unmerged += 1;
    }

    /// Puts back what [`forget`](Access::forget) took.
    pub fn remember(&mut self, object: u64, at: Stamp) {
        self.latest.insert(object, at);
    }

    /// Forgets an object.
    pub fn forget(&mut self, object: u64) {
        self.latest.remove(&object);
    }

    /// Whether the entries that wait fill a page.
    pub fn is_full(&self, page_bytes: usize) -> bool {
        // Times that are set again may have become longer: room for that is kept.
        HEADER_BYTES + self.waiting_bytes + 8 * self.places.len() + ENTRY_BYTES_MAX > page_bytes
    }

    /// Entries that a power cut now would lose.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the entries that wait, as pages.
    fn take_pages(&mut self, page_bytes: usize) -> Vec<Vec<u8>> {
        self.waiting_bytes = 0;
        self.places.clear();
        let mut number = self.next - self.waiting.len() as u64;
        let mut pages = Vec::new();
        let mut rest = &std::mem::take(&mut self.waiting)[..];
        while let Some(first) = rest.first() {
            let mut body = Output::default();
            let mut count = 0;
            for (object, at) in rest {
                if HEADER_BYTES + body.0.len() + ENTRY_BYTES_MAX > page_bytes {
                    break;
                }
                body.varint(*object);
                write_difference(&mut body, *at, first.1);
                count += 1;
            }
            let mut page = Output::default();
            page.u64(number);
            page.u32(count as u32);
            write_stamp(&mut page, first.1);
            page.0.extend_from_slice(&body.0);
            pages.push(page.0);
            number += count as u64;
            rest = &rest[count..];
        }
        pages
    }

    /// Takes all times that are not merged, by object; nothing is unmerged after it.
    fn take_latest(&mut self) -> Vec<(u64, Stamp)> {
        let mut all: Vec<_> = self.latest.drain().collect();
        all.sort_unstable_by_key(|entry| entry.0);
        self.waiting.clear();
        self.places.clear();
        self.waiting_bytes = 0;
        self.unmerged = 0;
        all
    }

    /// Whether the newest time of each object takes less than half of the entries.
    fn renews_to_half(&self) -> bool {
        self.latest.len() * 2 <= self.unmerged as usize
    }

    /// What [`renew`](Access::renew) would write, roughly.
    pub fn renewed_bytes(&self) -> u64 {
        self.latest.len() as u64 * 12
    }

    /// The newest time of each object waits to be written again, under a new number; no other entry is needed any more.
    fn renew(&mut self) {
        self.waiting = self.latest.iter().map(|(object, at)| (*object, *at)).collect();
        self.waiting.sort_unstable_by_key(|entry| entry.0);
        self.places.clear();
        self.next += self.waiting.len() as u64;
        self.unmerged = self.waiting.len() as u32;
    }

    /// Takes up an entry found on the flash.
    fn restore(&mut self, (object, at, number): AccessTime) {
        self.latest.insert(object, at);
        self.next = self.next.max(number + 1);
        self.unmerged += 1;
    }

    /// Bytes of memory, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.latest.capacity() * 28 + self.waiting.capacity() * 24 + self.places.capacity() * 20
    }
}

fn difference(at: Stamp, base: Stamp) -> Stamp {
    let nanos = |stamp: Stamp| i128::from(stamp.sec) * 1_000_000_000 + i128::from(stamp.nsec);
    let difference = nanos(at) - nanos(base);
    Stamp {
        sec: difference.div_euclid(1_000_000_000).clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        nsec: difference.rem_euclid(1_000_000_000) as u32,
    }
}

fn write_difference(out: &mut Output, at: Stamp, base: Stamp) {
    write_stamp(out, difference(at, base));
}

fn entry_len(object: u64, at: Stamp, base: Stamp) -> usize {
    let mut out = Output::default();
    out.varint(object);
    write_difference(&mut out, at, base);
    out.0.len()
}

/// Reads an access page.
pub(super) fn read_page(page: &[u8]) -> Result<Vec<AccessTime>> {
    let mut input = Input::new("a page of access times", page);
    let (first, count) = (input.u64()?, input.u32()?);
    if count as usize > page.len() || first.checked_add(u64::from(count)).is_none() {
        return Err(input.wrong("more entries than a page can have"));
    }
    let base = read_stamp(&mut input)?;
    let mut entries = Vec::with_capacity(count as usize);
    for number in 0..u64::from(count) {
        let object = input.varint()?;
        let past = read_stamp(&mut input)?;
        let nsec = base.nsec + past.nsec;
        let sec =
            base.sec.checked_add(past.sec).and_then(|sec| sec.checked_add(i64::from(nsec / 1_000_000_000)));
        let sec = sec.ok_or_else(|| input.wrong("a time is out of range"))?;
        entries.push((object, Stamp { sec, nsec: nsec % 1_000_000_000 }, first + number));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(n: i64) -> Stamp {
        Stamp { sec: 1_700_000_000 - n * 3, nsec: (n as u32 * 77) % 1_000_000_000 }
    }

    #[test]
    fn entries_come_back_from_their_pages_with_their_numbers() {
        let mut access = Access { next: 100, ..Access::default() };
        for n in 0..1000 {
            access.note(n * 1_000_003, stamp(n as i64), false);
        }
        let pages = access.take_pages(2048);
        assert!(pages.len() > 1 && pages.iter().all(|page| page.len() <= 2048));
        let entries: Vec<_> = pages.iter().flat_map(|page| read_page(page).unwrap()).collect();
        let expected = (0..1000).map(|n| (n * 1_000_003, stamp(n as i64), 100 + n));
        assert_eq!(entries, expected.collect::<Vec<_>>());
        assert_eq!((access.waiting(), access.unmerged), (0, 1000));
    }

    #[test]
    fn once_an_object_and_page_keeps_the_newest() {
        let mut access = Access::default();
        for n in 0..50_000 {
            assert!(!access.is_full(2048));
            access.note(n % 20, stamp(n as i64), true);
        }
        assert_eq!(access.waiting(), 20);
        let entries: Vec<_> =
            access.take_pages(2048).iter().flat_map(|page| read_page(page).unwrap()).collect();
        assert_eq!((entries.len(), entries[19].1), (20, stamp(49_999)));
    }

    #[test]
    fn a_renewed_journal_has_the_newest_time_of_each_object_under_later_numbers() {
        let mut access = Access::default();
        (0..3000).for_each(|n| access.note(n % 20, stamp(n as i64), false));
        access.take_pages(2048);
        assert!(access.renews_to_half());
        access.renew();
        let pages = access.take_pages(2048);
        let entries: Vec<_> = pages.iter().flat_map(|page| read_page(page).unwrap()).collect();
        let expected = (0..20).map(|n| (n, stamp(2980 + n as i64), 3000 + n));
        assert_eq!(entries, expected.collect::<Vec<_>>());
        assert_eq!((access.unmerged, access.next, access.renews_to_half()), (20, 3020, false));
    }

    #[test]
    fn a_full_journal_fits_into_one_page() {
        let mut access = Access::default();
        let mut n = 0;
        while !access.is_full(2048) {
            access.note(u64::MAX - n, Stamp { sec: n as i64 * 1_000_000_007, nsec: 999_999_999 }, n % 2 == 0);
            n += 1;
        }
        assert_eq!(access.take_pages(2048).len(), 1);
        assert!(n > 60, "{n}");
    }

    #[test]
    fn noise_is_an_error_and_never_a_panic() {
        let mut random = bimetal_base::random::Random::new(1, "noise");
        for _ in 0..3000 {
            let mut page: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
            if page.len() > 12 {
                page[9..12].fill(0);
            }
            let _ = read_page(&page);
        }
    }
}
