//! The volume: objects, and the log that says what they are. What has no place on flash yet, contents that wait and
//! promises, is above ([`Fs`](super::Fs)).
//!
//! Invariants: a page is live in the table of blocks exactly if an object points at it; what the log said last of an
//! object is what memory knows of it, or the object is dirty; what differs from the records in NVRAM is noted.

use super::clean::Cleaner;
use super::log::Log;
use super::{Config, Stats, UpdateReport};
use crate::dir::ENTRY_BYTES;
use crate::error::{Error, Result};
use crate::media::{Nand, Nvram};
use crate::object::{Census, GROUP, Kind, LOST_FOUND, NONE, Object, Objects, Orphan, ROOT, Time, UNLINKED};
use crate::tags::Packed;
use alloc::vec::Vec;

pub(super) struct Volume<N, V> {
    pub(super) log: Log<N, V>,
    pub(super) objects: Objects,
    pub(super) cleaner: Cleaner,
    pub(super) config: Config,
    /// What objects that are changed are stamped with.
    pub(super) now: Time,
    /// What is to end before anything else is written: see [`reap`](Volume::reap).
    to_reap: Vec<u32>,
}

impl<N: Nand, V: Nvram> Volume<N, V> {
    pub fn new(log: Log<N, V>, objects: Objects, config: Config) -> Self {
        let now = Time::default();
        Volume { log, objects, cleaner: Cleaner::default(), config, now, to_reap: Vec::new() }
    }

    pub fn into_log(self) -> Log<N, V> {
        self.log
    }

    /// Brings the rest of memory in line with objects and blocks, after a mount found them: live pages are counted,
    /// what has no directory goes to `lost+found`, a link to nothing loses its name, and directories know what is in
    /// them.
    pub fn finish_mount(&mut self) -> Result<()> {
        let geometry = self.log.flash.geometry();
        let mut live = alloc::vec![0u32; geometry.blocks as usize];
        let mut census = Census::default();
        self.log.memory.for_each(&self.objects, true, &mut |id, object| {
            census.add(id, object);
            for page in object.pages() {
                if let Some(count) = live.get_mut(geometry.block_of(page) as usize) {
                    *count += 1;
                }
            }
        })?;
        self.log.blocks.recount(&live);
        drop(live);
        let mut orphans = Vec::new();
        let objects = &self.objects;
        self.log.memory.for_each(objects, false, &mut |id, object| {
            // What has neither a header nor a name never got to flash as a whole: a link to it leads nowhere.
            let is_part = |object: &Object| object.header == NONE && object.parent == UNLINKED;
            let exists = |id| objects.exists(id) && !objects.get(id).is_some_and(is_part);
            let orphan = census.orphan(id, object, exists);
            orphans.extend(orphan.map(|orphan| (id, orphan)));
        })?;
        for (id, orphan) in orphans {
            self.hang_up(id, orphan, &mut census)?;
        }
        for target in census.into_targets() {
            self.objects.count_link(target);
        }
        self.objects.build_dirs();
        Ok(())
    }

    fn hang_up(&mut self, id: u32, orphan: Orphan, census: &mut Census) -> Result<()> {
        self.bring(id)?;
        self.objects.pin(id);
        let Some(object) = self.objects.get_mut(id) else { return Ok(()) };
        match orphan {
            Orphan::Unnamed => self.to_reap.push(id),
            Orphan::Dangling => {
                object.parent = UNLINKED;
                self.to_reap.push(id);
            }
            Orphan::Homeless => {
                object.parent = LOST_FOUND;
                self.log.memory.note_object(id);
            }
            Orphan::Unreadable => {
                object.kind = Kind::File;
                let object = self.objects.find(id)?;
                if let Some(orphan) = census.orphan(id, object, |_| true) {
                    self.hang_up(id, orphan, census)?;
                }
            }
        }
        Ok(())
    }

    /// Gets an object into memory, if there is one of this number.
    pub fn bring(&mut self, id: u32) -> Result<()> {
        if self.objects.is_stored(id) {
            self.log.memory.bring(&mut self.objects, id / GROUP, |other| other == id)?;
        } else {
            self.objects.use_now(id);
        }
        Ok(())
    }

    /// Lets objects go that the operation under way did not use, until a quarter of the memory is free; whether it is.
    pub fn make_memory(&mut self) -> bool {
        let quarter = self.config.memory_bytes / 4;
        self.make_memory_of(quarter)
    }

    fn make_memory_of(&mut self, bytes: usize) -> bool {
        let memory = &self.log.memory;
        self.objects.make_room(bytes.saturating_add(memory.table_bytes()), |id| memory.is_told(id))
    }

    /// Gets the entries of a directory into memory.
    pub fn load_dir(&mut self, dir: u32) -> Result<()> {
        self.bring(dir)?;
        if self.objects.dir(dir)?.is_loaded() {
            return Ok(());
        }
        let mut entries = Vec::new();
        self.log.memory.for_each(&self.objects, false, &mut |id, object| {
            if object.parent == dir && id != ROOT {
                entries.push((id, object.kind == Kind::Dir && id != LOST_FOUND));
            }
        })?;
        if !self.make_memory_of(entries.len() * (ENTRY_BYTES + 8)) {
            return Err(Error::NoMemory);
        }
        self.objects.dir_mut(dir)?.load_entries(entries.into_iter());
        Ok(())
    }

    /// What an entry stands for.
    pub fn resolve(&mut self, entry: u32) -> Result<u32> {
        self.bring(entry)?;
        let object = self.objects.find(entry)?;
        let target = if object.kind == Kind::HardLink { object.target } else { entry };
        self.bring(target)?;
        Ok(target)
    }

    /// Whether a directory is an ancestor of another, or the same.
    pub fn is_below(&mut self, mut dir: u32, ancestor: u32) -> Result<bool> {
        // No chain is longer than there are objects.
        for _ in 0..=self.objects.count() {
            if dir == ancestor {
                return Ok(true);
            }
            self.bring(dir)?;
            match self.objects.get(dir) {
                Some(object) if dir != ROOT => dir = object.parent,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.log.flash.count(&mut stats);
        self.log.memory.count(&mut stats);
        self.cleaner.count(&mut stats);
        stats
    }

    /// Writes to NVRAM what changed since the last time. `clean` says that flash and memory agree.
    pub fn commit(&mut self, clean: bool) -> Result<UpdateReport> {
        self.log.commit(&self.objects, clean)
    }

    /// As [`commit`](Volume::commit), the first time after a scan: where there is no room for it beside what the scan wrote
    /// down, all is brought into memory, if it fits, and written anew.
    pub fn commit_scan(&mut self) -> Result<()> {
        let mut done = self.commit(false);
        if done == Err(Error::NoSpace) && self.objects.has_stored() {
            self.log.memory.bring_all(&mut self.objects)?;
            done = self.commit(false);
        }
        done.map(drop)
    }

    /// Writes a page to the log and counts it live; where it went.
    pub fn append(&mut self, tags: Packed, data: &[u8]) -> Result<u32> {
        self.reap()?;
        self.log.append(&self.objects, tags, data)
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        u64::from(self.log.flash.geometry().page_bytes)
    }

    /// How many pages `size` bytes take.
    pub fn pages_of(&self, size: u64) -> u32 {
        self.log.flash.geometry().pages_of(size)
    }

    /// How many bytes of a file's page are not behind its end.
    pub fn valid_bytes(&self, size: u64, index: u32) -> u32 {
        size.saturating_sub(u64::from(index) * self.page_bytes()).min(self.page_bytes()) as u32
    }

    /// Writes a page of a file to the log.
    pub fn put_page(&mut self, id: u32, index: u32, bytes: u32, data: &[u8]) -> Result<()> {
        let page = self.append(Packed::data(0, id, index, bytes), data)?;
        self.take_page(id, index, bytes, page)
    }

    /// A page of a file is on another page now.
    pub fn take_page(&mut self, id: u32, index: u32, bytes: u32, page: u32) -> Result<()> {
        let end = u64::from(index) * self.page_bytes() + u64::from(bytes);
        let object = self.objects.find_mut(id)?;
        let old = object.map.set(index, page);
        let grows = end > object.flash_size;
        object.flash_size = object.flash_size.max(end);
        self.log.release(old.unwrap_or(NONE));
        self.log.memory.note_page(id, index);
        if grows {
            self.log.memory.note_object(id);
        }
        Ok(())
    }

    /// Makes a hole where a page of a file is. A page of no valid bytes tells a scan that older pages of this index are
    /// dead; to other drivers it is a page of zeros.
    pub fn mark_hole(&mut self, id: u32, index: u32) -> Result<()> {
        if self.objects.find(id)?.map.get(index).is_none() {
            return Ok(());
        }
        self.make_room()?;
        let zeros = alloc::vec![0; self.page_bytes() as usize];
        let page = self.append(Packed::data(0, id, index, 0), &zeros)?;
        self.log.blocks.guard(self.log.flash.geometry().block_of(page));
        self.log.release(page);
        let old = self.objects.find_mut(id)?.map.clear(index);
        self.log.release(old.unwrap_or(NONE));
        self.log.memory.note_page(id, index);
        Ok(())
    }

    /// A file was cut: its header says so on flash before its pages behind the end are dropped, and also where only a part
    /// of its last page is behind it, since a scan has the size from nowhere else.
    pub fn cut(&mut self, id: u32) -> Result<()> {
        let object = self.objects.find(id)?;
        let index = self.pages_of(object.size);
        let drops = object.map.end() > index;
        if !drops && (object.header == NONE || object.flash_size <= object.size) {
            return Ok(());
        }
        self.make_room()?;
        self.ensure_parent(id)?;
        self.write_header(id, drops, 0)?;
        let gone = self.objects.find_mut(id)?.map.truncate(index);
        gone.into_iter().for_each(|page| self.log.release(page));
        self.log.memory.note_pages_from(id, index);
        Ok(())
    }

    /// The header of an object is out of date.
    pub fn touch(&mut self, id: u32) -> Result<()> {
        if !self.objects.find(id)?.damaged {
            self.objects.touch(id);
            self.log.memory.note_object(id);
        }
        Ok(())
    }

    /// The object changed, but not what it holds.
    pub fn touch_status(&mut self, id: u32) -> Result<()> {
        let now = self.now;
        self.details(id)?.ctime = now;
        self.touch(id)
    }

    /// What the object holds changed.
    pub fn touch_contents(&mut self, id: u32) -> Result<()> {
        let now = self.now;
        let details = self.details(id)?;
        (details.mtime, details.ctime) = (now, now);
        self.touch(id)
    }

    /// Removes an object that has no entry any more: first on flash, then in memory.
    pub fn remove_object(&mut self, id: u32) -> Result<()> {
        let object = self.objects.find(id)?;
        if object.header != NONE || object.map.count() > 0 {
            self.write_deletion(id)?;
        }
        let Some(object) = self.objects.remove(id) else { return Ok(()) };
        self.log.release(object.header);
        object.map.iter().for_each(|(_, page)| self.log.release(page));
        self.log.memory.note_gone(id);
        Ok(())
    }

    /// Rewrites pages of tired blocks, as many as are allowed at once, and the format record if its block is; how many.
    pub fn refresh(&mut self) -> Result<u32> {
        let mut copies = 0;
        if self.next_tired().is_some() {
            self.make_room()?;
            copies = self.rewrite_tired(self.config.refresh_copies)?;
        }
        Ok(copies + u32::from(self.log.renew_session()?))
    }

    /// Ends the life of what an earlier mount kept without a name, or replaced without saying so any more: before
    /// anything else is written, so that flash never says less of it than now.
    pub fn reap(&mut self) -> Result<()> {
        let mut left = core::mem::take(&mut self.to_reap);
        while let Some(id) = left.pop() {
            self.bring(id)?;
            if self.objects.get(id).is_none_or(Object::is_named) {
                continue;
            }
            // Cleaning, which writes other things first, is for a part that has no room to be cleaned after it.
            let done = self.keep_room(1).and_then(|_| self.remove_object(id));
            if let Err(error) = done {
                left.push(id);
                self.to_reap = left;
                return Err(error);
            }
        }
        Ok(())
    }
}
