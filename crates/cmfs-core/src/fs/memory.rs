//! The NVRAM, if there is one: without it nothing is noted and nothing is said.
//!
//! What differs from the records in NVRAM is noted before the next [`commit`](Memory::commit), which writes it; the
//! NAND is not written after a commit before the NVRAM says that it may be ([`announce`](Memory::announce)).

use super::{Layout, Stats, UpdateReport};
use crate::error::{Error, Result};
use crate::map::SEGMENT;
use crate::media::Nvram;
use crate::nvram::{Snapshot, Store};
use crate::object::{Details, Object, Objects};
use alloc::vec::Vec;

pub(super) struct Memory<V> {
    store: Option<Store<V>>,
    layout: Layout,
    commits: u64,
    commit_bytes: u64,
}

impl<V: Nvram> Memory<V> {
    /// None; one that is there will have this layout.
    pub fn none(layout: Layout) -> Memory<V> {
        Memory { store: None, layout, commits: 0, commit_bytes: 0 }
    }

    pub fn set(&mut self, store: Option<Store<V>>) {
        self.store = store;
    }

    pub fn store(&self) -> Option<&Store<V>> {
        self.store.as_ref()
    }

    pub fn device_mut(&mut self) -> Option<&mut V> {
        self.store.as_mut().map(Store::device_mut)
    }

    /// Takes the NVRAM out: from now on there is none.
    pub fn take_device(&mut self) -> Option<V> {
        self.store.take().map(Store::into_device)
    }

    pub fn into_device(self) -> Option<V> {
        self.store.map(Store::into_device)
    }

    pub fn count(&self, stats: &mut Stats) {
        (stats.commits, stats.commit_bytes) = (self.commits, self.commit_bytes);
    }

    /// The number by which it is known; 0 without.
    pub fn number(&self) -> u32 {
        self.store.as_ref().map_or(0, Store::memory)
    }

    /// Whether there is something to say.
    pub fn is_modified(&self) -> bool {
        self.store.as_ref().is_some_and(Store::is_modified)
    }

    /// Whether it is brought up to date whenever a block is opened.
    pub fn commits_per_block(&self) -> bool {
        self.store.is_some() && self.layout == Layout::Compact
    }

    fn note(&mut self, note: impl FnOnce(&mut Store<V>)) {
        if let Some(store) = &mut self.store {
            note(store);
        }
    }

    /// The object's record is out of date.
    pub fn note_object(&mut self, id: u32) {
        self.note(|store| store.note_object(id));
    }

    /// Its header was written anew.
    pub fn note_header(&mut self, id: u32) {
        self.note(|store| store.note_header(id));
    }

    /// The record of one segment of its map is out of date.
    pub fn note_page(&mut self, id: u32, index: u32) {
        self.note(|store| store.note_segment(id, index / SEGMENT));
    }

    /// The records of all segments of its map from the one of a page on are out of date.
    pub fn note_pages_from(&mut self, id: u32, index: u32) {
        self.note(|store| store.note_segments_from(id, index / SEGMENT));
    }

    /// The object is gone, with its map.
    pub fn note_gone(&mut self, id: u32) {
        self.note_pages_from(id, 0);
        self.note_object(id);
    }

    /// A session is about to begin, whose record will be on this page.
    pub fn begin_session(&mut self, session: u32, page: u32) -> Result<()> {
        self.store.as_mut().map_or(Ok(()), |store| store.begin_session(session, page))
    }

    /// From now on a commit writes down what a scan found so far.
    pub fn begin_scan(&mut self) {
        self.note(Store::begin_scan);
    }

    /// The scan found all there is.
    pub fn end_scan(&mut self) {
        self.note(Store::end_scan);
    }

    /// Before the NAND changes for the first time after an update, the NVRAM says so.
    pub fn announce(&mut self) -> Result<()> {
        self.store.as_mut().map_or(Ok(()), Store::announce)
    }

    /// Writes what changed since the last time.
    pub fn commit(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        let Some(store) = &mut self.store else { return Ok(UpdateReport::default()) };
        let report = store.commit(snapshot)?;
        self.commits += 1;
        self.commit_bytes += report.bytes;
        Ok(report)
    }

    /// Whether the NVRAM says all there is to say of an object.
    pub fn is_told(&self, id: u32) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_told(id))
    }

    /// Bytes of memory that what is known of the records takes.
    pub fn table_bytes(&self) -> usize {
        self.store.as_ref().map_or(0, Store::table_bytes)
    }

    /// Whether there is room in the NVRAM for what is new. What is in it alone cannot be written anew in one piece, so an eighth
    /// is left for what removes things.
    pub fn has_room(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.free_bytes() >= store.size_bytes() / 8)
    }

    /// Fetches those objects of a group that are stored and wanted.
    pub fn bring(&mut self, objects: &mut Objects, group: u32, wanted: impl Fn(u32) -> bool) -> Result<()> {
        let mut found = Vec::new();
        let is_wanted = |id: u32| objects.is_stored(id) && wanted(id);
        self.visit(group, true, &is_wanted, &mut |id, object| found.push((id, object)))?;
        found.into_iter().for_each(|(id, object)| objects.put_back(id, object));
        Ok(())
    }

    /// Fetches all that is stored.
    pub fn bring_all(&mut self, objects: &mut Objects) -> Result<()> {
        for group in 0..objects.groups() {
            if objects.has_stored_of(group) {
                self.bring(objects, group, |_| true)?;
                objects.check_room()?;
            }
        }
        Ok(())
    }

    fn visit(
        &mut self,
        group: u32,
        pages: bool,
        wanted: &dyn Fn(u32) -> bool,
        visit: &mut dyn FnMut(u32, Object),
    ) -> Result<()> {
        self.store.as_mut().map_or(Err(Error::Gone), |store| store.fetch(group, pages, wanted, visit))
    }

    /// Looks at every object, those in memory first; at the pages of others only where `pages` asks for them.
    pub fn for_each(
        &mut self,
        objects: &Objects,
        pages: bool,
        visit: &mut dyn FnMut(u32, &Object),
    ) -> Result<()> {
        objects.iter().for_each(|(id, object)| visit(id, object));
        for group in (0..objects.groups()).filter(|group| objects.has_stored_of(*group)) {
            let is_stored = |id: u32| objects.is_stored(id);
            self.visit(group, pages, &is_stored, &mut |id, object| visit(id, &object))?;
        }
        Ok(())
    }

    /// Name and attributes of an object and its neighbours, if they are there.
    pub fn details(&mut self, id: u32) -> Result<Option<Vec<(u32, Details)>>> {
        self.store.as_mut().map_or(Ok(None), |store| store.names(id))
    }
}
