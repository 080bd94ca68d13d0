//! DFTL: a page map that lies in flash, with a part of it cached in little memory (Gupta, Kim, Urgaonkar:
//! DFTL: A Flash Translation Layer Employing Demand-based Selective Caching of Page-level Address Mappings,
//! ASPLOS 2009).
//!
//! Below is the page map ([`super::page`]) with its cleaning and wear levelling. Its map entries lie in
//! *translation pages*, pages of the layer's own in blocks of their own, of which a directory in memory says
//! where they are. A cache holds `cached` entries:
//!
//! 1. A request for a page whose entry is not cached reads its translation page first, and adds the entry.
//! 2. The entry used least recently makes room. If it was changed, its translation page is read and written
//!    again, with all changed entries of that page at once (*batch* update).
//! 3. Pages moved by cleaning: an entry that is cached is changed there (*lazy* update), the others in their
//!    translation pages, batched too. Those updates come after the cleaning and not within it, so that a
//!    cleaning never needs more room than it makes; until then they are kept in memory.
//!
//! After power loss the map is found from the tags of the pages, as a page map's, and all translation pages
//! are written anew: what was changed in the cache only is not lost. One that cannot be read any more is
//! made anew by reading all spare areas.
//!
//! The paper's cache is a segmented LRU of unnamed sizes; this one is an LRU. Invariant: of each page the
//! cache, then the late updates, then the translation page say where it lies, the first that has an entry.
//! Memory beyond the page map's: 4 bytes a logical page, which stand for the bytes of the translation pages.

mod cached;

use super::page::{BEGIN, CLEAN, PageMap, RESERVE, STREAMS, SUPERBLOCK, TIES};
use super::settings::{LEVEL, LOGICAL, OVER_PROVISION, SPREAD, Settings};
use super::{Found, Ftl, FtlCounts, Scheme, error_of, worn_out};
use bimetal_base::options::OptionSpec;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Nand;
use cached::Cached;
use std::collections::BTreeMap;

/// DFTL's entry in the list of schemes.
pub const SCHEME: Scheme = Scheme {
    name: "dftl",
    about: "DFTL: a page map in flash, of which the entries used last are cached",
    options: &[
        OptionSpec::of("cached", "1..", "4096", "map entries kept in memory"),
        OptionSpec::of(
            "entries",
            "1..",
            "a quarter of the page's bytes",
            "map entries in a translation page",
        ),
        CLEAN,
        STREAMS,
        RESERVE,
        BEGIN,
        TIES,
        SUPERBLOCK,
        LEVEL,
        SPREAD,
        OVER_PROVISION,
        LOGICAL,
    ],
    make: |nand, settings| Ok(Box::new(Dftl::open(nand, settings)?)),
};

/// Bytes of a map entry in flash.
const ENTRY_BYTES: u64 = 4;

/// Translation pages that a request writes at most beyond two writes of each.
const SETTLED_AGAIN: u32 = 64;

/// A page map in flash.
pub struct Dftl {
    pages: PageMap,
    /// What the translation pages in flash say.
    stored: Vec<u32>,
    cached: Cached,
    cached_max: usize,
    /// Entries of moved pages, by translation page, in the order they were moved.
    late: BTreeMap<u32, Vec<(u32, u32)>>,
    entries: u32,
    counts: FtlCounts,
}

impl Dftl {
    /// Opens DFTL on `nand`. Fails with [`Error::Invalid`] on wrong settings or too small an array.
    pub fn open(nand: Nand, mut settings: Settings) -> Result<Dftl> {
        let per_page = u64::from(nand.geometry().page_bytes) / ENTRY_BYTES;
        let cached_max = settings.number("cached", 1..=u64::from(u32::MAX), 4096)? as usize;
        let entries = settings.number("entries", 1..=per_page, per_page)?;
        let is_new = nand.is_new();
        let pages = PageMap::open(nand, &mut settings, Some(entries))?;
        settings.finish(SCHEME.options)?;
        let mut ftl = Dftl {
            stored: vec![0; pages.logical_pages() as usize],
            pages,
            cached: Cached::new(entries as u32),
            cached_max,
            late: BTreeMap::new(),
            entries: entries as u32,
            counts: FtlCounts::default(),
        };
        if !is_new {
            ftl.find_stored();
            ftl.settle(Time::ZERO)?;
        }
        Ok(ftl)
    }

    /// Takes the map found from the tags for that of the translation pages, which are to be written anew.
    fn find_stored(&mut self) {
        for page in 0..self.stored.len() as u32 {
            let entry = self.pages.entry_of(page);
            self.stored[page as usize] = entry;
            if entry != 0 {
                self.late.entry(page / self.entries).or_default();
            }
        }
    }

    /// The number among all pages of a translation page.
    fn own_page(&self, translation: u32) -> u32 {
        self.stored.len() as u32 + translation
    }

    /// Where a page lies, as the map has it: cached, late, or stored.
    fn entry(&self, page: u32) -> u32 {
        let late = || self.late.get(&(page / self.entries));
        let late_entry = || late()?.iter().rev().find(|(moved, _)| *moved == page).map(|(_, entry)| *entry);
        self.cached.peek(page).or_else(late_entry).unwrap_or(self.stored[page as usize])
    }

    fn check(&self, page: Lpn) -> Result<u32> {
        if page.0 < self.stored.len() as u64 {
            return Ok(page.0 as u32);
        }
        let (pages, model) = (self.stored.len(), &self.nand().profile().model);
        Err(Error::invalid(format!("page {page} is past the {pages} pages of {model}")))
    }

    /// Brings the entry of a page into the cache; when it is there.
    fn load(&mut self, at: Time, page: u32) -> Result<Time> {
        if self.cached.touch(page) {
            return Ok(at);
        }
        let entry = self.entry(page);
        let at = self.read_translation(at, page / self.entries)?;
        self.cached.put(page, entry);
        Ok(at)
    }

    /// Reads a translation page, if there is one; when that is done.
    fn read_translation(&mut self, at: Time, translation: u32) -> Result<Time> {
        let own = self.own_page(translation);
        if self.pages.entry_of(own) == 0 {
            return Ok(at);
        }
        self.counts.map_reads += 1;
        match self.pages.read_own(at, own) {
            Err(Error::Corrupt { .. }) => {
                self.late.entry(translation).or_default();
                self.scan(at)
            }
            other => other,
        }
    }

    /// Reads all spare areas, as is needed to know the map without its pages.
    fn scan(&mut self, at: Time) -> Result<Time> {
        let nand = self.pages.nand_mut();
        let (geometry, mut end) = (*nand.geometry(), at);
        for block in 0..geometry.blocks() {
            for page in 0..geometry.pages_per_block {
                let read = nand.read_spare(at, block, page);
                end = end.max(read.map_err(|failure| error_of(nand, failure, Lpn(0)))?.1);
            }
        }
        Ok(end)
    }

    /// Writes a translation page with all that was changed of it.
    fn write_translation(&mut self, at: Time, translation: u32) -> Result<()> {
        let at = self.read_translation(at, translation)?;
        self.pages.write_own(at, self.own_page(translation))?;
        self.counts.map_writes += 1;
        for (page, entry) in self.late.remove(&translation).unwrap_or_default() {
            self.stored[page as usize] = entry;
        }
        for (page, entry) in self.cached.clean(translation) {
            self.stored[page as usize] = entry;
        }
        Ok(())
    }

    /// Notes where cleaning moved pages.
    fn note_moved(&mut self) {
        let moved = self.pages.take_moved();
        for page in moved.into_iter().filter(|page| (*page as usize) < self.stored.len()) {
            let entry = self.pages.entry_of(page);
            if !self.cached.change(page, entry) {
                self.late.entry(page / self.entries).or_default().push((page, entry));
            }
        }
    }

    /// Writes late updates, and what no longer fits into the cache, until there are none.
    ///
    /// On a nearly full device of many translation pages each write may have cleaning move more pages than it settles.
    /// After so many writes as should do, all are written once more in turn; what is late then waits in memory for
    /// the next request.
    fn settle(&mut self, at: Time) -> Result<()> {
        let translations = self.stored.len() as u32 / self.entries + 1;
        let (mut next, mut written) = (0, 0);
        while written < 2 * translations + SETTLED_AGAIN {
            self.note_moved();
            let excess = self.cached.len() > self.cached_max;
            let late = self.late.range(next..).next().or_else(|| self.late.first_key_value());
            let translation = match late {
                Some((translation, _)) => *translation,
                None if excess => match self.cached.drop_oldest() {
                    Ok(()) => continue,
                    Err(page) => page / self.entries,
                },
                None => return Ok(()),
            };
            match self.write_translation(at, translation) {
                // Worn out: what is in memory stays there.
                Err(_) if self.pages.is_read_only() => return Ok(()),
                other => other?,
            }
            written += 1;
            next = if written < translations + SETTLED_AGAIN { 0 } else { translation + 1 };
        }
        self.note_moved();
        Ok(())
    }
}

impl Ftl for Dftl {
    fn logical_pages(&self) -> u64 {
        self.stored.len() as u64
    }

    fn find(&self, page: Lpn) -> Option<(u32, u32)> {
        let page = self.check(page).ok()?;
        self.pages.place_at(self.entry(page))
    }

    fn read(&mut self, at: Time, page: Lpn) -> Result<Found> {
        let at = self.load(at, self.check(page)?)?;
        // First, since it may move the page.
        self.pages.refresh(at)?;
        self.settle(at)?;
        self.pages.read_where_it_is(at, page)
    }

    fn write(&mut self, at: Time, page: Lpn, data: &[u8]) -> Result<Time> {
        let number = self.check(page)?;
        if self.is_read_only() {
            return Err(worn_out(self.nand()));
        }
        let at = self.load(at, number)?;
        let done = self.pages.write(at, page, data);
        // Cleaning may have moved pages even if there was no room in the end.
        self.note_moved();
        self.cached.change(number, self.pages.entry_of(number));
        let done = done?;
        self.settle(at)?;
        Ok(done)
    }

    fn stripe_pages(&self) -> u32 {
        self.pages.stripe_pages()
    }

    fn next_stripe(&mut self, handle: u8) -> u32 {
        self.pages.next_stripe(handle)
    }

    fn trim(&mut self, at: Time, page: Lpn) -> Result<Time> {
        let number = self.check(page)?;
        let at = self.load(at, number)?;
        let done = self.pages.trim(at, page)?;
        self.cached.change(number, 0);
        self.settle(at)?;
        Ok(done)
    }

    fn counts(&self) -> FtlCounts {
        let FtlCounts { map_reads, map_writes, .. } = self.counts;
        FtlCounts { map_reads, map_writes, ..self.pages.counts() }
    }

    fn is_read_only(&self) -> bool {
        self.pages.is_read_only()
    }

    fn nand(&self) -> &Nand {
        self.pages.nand()
    }

    fn nand_mut(&mut self) -> &mut Nand {
        self.pages.nand_mut()
    }

    fn into_nand(self: Box<Self>) -> Nand {
        Box::new(self.pages).into_nand()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_media::nand::{NandProfile, Payload};
    use bimetal_media::profile;

    #[test]
    fn entries_are_fetched_when_needed_and_written_back_together() {
        let part: NandProfile = profile::load("slc-2k").unwrap();
        let nand = Nand::new(NandProfile { blocks: 32, pages: 8, ..part.ideal() }, 1, true, Payload::None);
        let mut ftl = Dftl::open(nand, Settings::parse("dftl", "cached=3:entries=8").unwrap()).unwrap();
        let mut asked = |page: u64, write: bool| {
            match write {
                true => drop(ftl.write(Time::ZERO, Lpn(page), &[]).unwrap()),
                false => drop(ftl.read(Time::ZERO, Lpn(page)).unwrap()),
            }
            (ftl.counts().map_reads, ftl.counts().map_writes)
        };
        // There are no translation pages yet to read.
        assert_eq!([0, 1, 9].map(|page| asked(page, true)), [(0, 0); 3]);
        assert_eq!(asked(2, true), (0, 1), "page 0 makes room: pages 0, 1 and 2 are stored together");
        assert_eq!(asked(1, false), (0, 1), "cached");
        assert_eq!(asked(3, false), (1, 2), "fetched; page 9 makes room");
        assert_eq!(asked(4, false), (2, 2), "fetched; page 2 makes room, stored already");
        assert_eq!(
            [(4, true), (5, false), (6, false)].map(|(page, write)| asked(page, write)).last(),
            Some(&(4, 2))
        );
        assert_eq!(
            asked(7, false),
            (6, 3),
            "fetched; page 4 makes room: its translation page is read and written"
        );
    }
}
