//! What users do with objects.

use super::extents::Index;
use super::layout::{Extent, Fork, Key, OBJECT_BYTES_MAX, Onode, Value};
use super::undo::Step;
use super::write_out::SHORTEST;
use super::{Content, ObjectId, SetTimes, Stat, Store};
use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};

/// Numbers of one's choice are below this one, so that there are always some behind them for objects to come.
pub(super) const CHOSEN_END: u64 = 1 << 63;
/// Objects to come do not go on behind numbers from this one on: what versions before let be chosen.
pub(super) const NUMBERS_END: u64 = u64::MAX - (1 << 32);
/// Bytes of a reservation that are one item of the tree.
const RESERVATION_BYTES: u64 = 1 << 31;

impl Store {
    /// Whether there is such an object.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn exists(&mut self, id: ObjectId) -> Result<bool> {
        Ok(self.index.tree.get(&mut self.index.media.flash, Key::onode(id.0))?.is_some())
    }

    /// Makes an empty object under the next number that was never used.
    ///
    /// `hint` is what the owner knows of the lifetime of its bytes: 0 nothing, else 1 (shortest) to 255.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of the flash.
    pub fn create(&mut self, hint: u8) -> Result<ObjectId> {
        let id = ObjectId(self.next_object);
        if id.0 == u64::MAX {
            return Err(Error::invalid(
                "the object store has no number left for a new object; `bimetal fsck --yes` finds some",
            ));
        }
        self.make_as(id, hint)?;
        Ok(id)
    }

    /// Makes an empty object under a number of one's choice, below 2⁶³.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for other numbers; as [`create`](Store::create).
    pub fn create_as(&mut self, id: ObjectId, hint: u8) -> Result<()> {
        if id.0 >= CHOSEN_END {
            let last = CHOSEN_END - 1;
            return Err(Error::invalid(format!(
                "an object cannot be given number {id}: those from 0 to {last} can be chosen"
            )));
        }
        self.make_as(id, hint)
    }

    fn make_as(&mut self, id: ObjectId, hint: u8) -> Result<()> {
        self.begin(64)?;
        if self.exists(id)? {
            return Err(Error::Exists);
        }
        let now = self.now();
        let onode = Onode {
            size: 0,
            stored: self.index.still_to_lose(id.0),
            attribute_bytes: 0,
            hint,
            access_from: self.access.next(),
            created: now,
            modified: now,
            changed: now,
            accessed: now,
        };
        self.next_object = self.next_object.max(id.0 + 1);
        self.index.set_onode(id.0, onode)
    }

    /// The least number for the next object: one that no object has, nor any before it.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn least_number(&mut self) -> Result<u64> {
        let mut last = u64::MAX - 1;
        let Index { tree, media, .. } = &mut self.index;
        loop {
            let found = tree.last_to(&mut media.flash, Key { object: last, place: u64::MAX })?;
            match found.map_or(0, |(key, _)| key.object) {
                object if object < NUMBERS_END => return Ok(object + 1),
                _ => last = NUMBERS_END - 1,
            }
        }
    }

    /// Sees to it that objects to come get numbers that none has; whether they would not have.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn number_objects(&mut self) -> Result<bool> {
        let least = self.least_number()?;
        let is_wrong = !(least..NUMBERS_END).contains(&self.next_object);
        if is_wrong {
            self.next_object = least;
        }
        Ok(is_wrong)
    }

    /// Removes an object with all it has.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of the flash.
    pub fn remove(&mut self, id: ObjectId) -> Result<()> {
        self.begin_giving()?;
        self.index.onode(id.0)?;
        self.whole(|store| {
            for fork in [Fork::Data, Fork::Attributes] {
                store.keep_waiting(id.0, fork, 0, u64::MAX);
                store.buffer.drop_fork(id.0, fork);
                store.index.unmap(id.0, fork, 0, OBJECT_BYTES_MAX)?;
            }
            store.index.set(Key::attributes(id.0), None)?;
            store.index.set(Key::onode(id.0), None)?;
            store.forget_access(id.0);
            Ok(())
        })
    }

    fn forget_access(&mut self, object: u64) {
        if let Some(at) = self.access.get(object) {
            self.index.steps.keep(|| Step::Accessed(object, at));
        }
        self.access.forget(object);
    }

    /// Begins an operation that gives room back: it works on a full store, too.
    fn begin_giving(&mut self) -> Result<()> {
        self.giving += 1;
        let begun = self.begin(0);
        self.giving -= 1;
        begun
    }

    /// The size as its user sees it, what waits in memory included.
    pub(super) fn size_of(&self, object: u64, onode: &Onode) -> u64 {
        onode.size.max(self.buffer.get(object, Fork::Data).map_or(0, |dirty| dirty.end))
    }

    /// The state of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the index cannot be read.
    pub fn stat(&mut self, id: ObjectId) -> Result<Stat> {
        let onode = self.index.onode(id.0)?;
        let stored = self.index.stored(id.0, onode.stored);
        let waiting = self.buffer.get(id.0, Fork::Data);
        let waits: u64 = waiting.iter().flat_map(|dirty| &dirty.pieces).map(|piece| piece.len).sum();
        let newest = waiting.and_then(|dirty| dirty.modified);
        Ok(Stat {
            size: self.size_of(id.0, &onode),
            stored: stored + waits,
            hint: onode.hint,
            created: onode.created,
            modified: newest.unwrap_or(onode.modified),
            changed: newest.unwrap_or(onode.changed),
            accessed: self.access.get(id.0).unwrap_or(onode.accessed),
        })
    }

    /// Sets times.
    ///
    /// # Errors
    /// As [`create`](Store::create); [`Error::NotFound`].
    pub fn set_times(&mut self, id: ObjectId, times: &SetTimes) -> Result<()> {
        self.begin(0)?;
        self.whole(|store| {
            store.settle_times(id.0)?;
            let mut onode = store.index.onode(id.0)?;
            onode.created = times.created.unwrap_or(onode.created);
            onode.modified = times.modified.unwrap_or(onode.modified);
            onode.changed = times.changed.unwrap_or(onode.changed);
            if let Some(accessed) = times.accessed {
                onode.accessed = accessed;
                onode.access_from = store.access.next();
                store.forget_access(id.0);
            }
            store.index.set_onode(id.0, onode)
        })
    }

    /// Writes the times of buffered writes into the onode, before they are set otherwise.
    fn settle_times(&mut self, object: u64) -> Result<()> {
        let waiting = self.buffer.get(object, Fork::Data);
        let Some(modified) = waiting.and_then(|dirty| dirty.modified) else { return Ok(()) };
        let mut onode = self.index.onode(object)?;
        (onode.modified, onode.changed) = (modified, modified);
        self.index.set_onode(object, onode)?;
        self.keep_waiting(object, Fork::Data, 0, 0);
        self.buffer.forget_times(object);
        Ok(())
    }

    /// Notes that an object was read, now.
    ///
    /// # Errors
    /// As [`create`](Store::create); [`Error::NotFound`].
    pub fn touch(&mut self, id: ObjectId) -> Result<()> {
        self.begin(0)?;
        let now = self.now();
        let mut onode = self.index.onode(id.0)?;
        if !self.access.is_used() {
            onode.accessed = now;
            return self.index.set_onode(id.0, onode);
        }
        self.note_access(id.0, now)
    }

    /// Notes that an object was read, now, if that can be noted: a store that is full, or takes no more changes, can
    /// still be read.
    pub fn touch_if_possible(&mut self, id: ObjectId) {
        if self.failed.is_none()
            && let Err(why) = self.touch(id)
        {
            tracing::debug!("osd: object {id} was read, but its access time could not be noted: {why}");
        }
    }

    fn note_access(&mut self, object: u64, now: Stamp) -> Result<()> {
        self.access.note(object, now, self.placement.journals_once());
        if self.access.is_full(self.index.media.flash.page_bytes()) {
            let written = self.write_accesses();
            return self.or_fail(written);
        }
        Ok(())
    }

    /// Reads up to `len` bytes at `offset`, fewer only at the end; notes the access if accesses are noted.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] if the bytes cannot be read.
    pub fn read(&mut self, id: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.begin_read(id, offset, len)?.end()
    }

    /// As [`read`](Store::read), and notes no access.
    ///
    /// # Errors
    /// As [`read`](Store::read).
    pub fn peek(&mut self, id: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>> {
        let onode = self.index.onode(id.0)?;
        let len = self.size_of(id.0, &onode).saturating_sub(offset).min(len as u64);
        self.read_fork(id.0, Fork::Data, offset, len)
    }

    /// Reads a range of a fork that is within it.
    pub(super) fn read_fork(&mut self, object: u64, fork: Fork, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.look_up(object, fork, offset, len)?.end()
    }

    /// Writes at `offset`; what is between the end and it reads as zeros.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoSpace`], [`Error::TooLarge`] past 2⁶² bytes; those of the flash.
    pub fn write(&mut self, id: ObjectId, offset: u64, content: Content) -> Result<()> {
        let end = offset.checked_add(content.len()).filter(|end| *end <= OBJECT_BYTES_MAX);
        end.ok_or(Error::TooLarge)?;
        let whole = self.index.onode(id.0)?.hint == SHORTEST;
        let mut done = 0;
        while done < content.len() {
            let part = (content.len() - done).min(self.buffer_max);
            self.begin(part)?;
            self.put(id.0, Fork::Data, offset + done, content.part(done, part))?;
            if whole {
                self.buffer.keep_whole(id.0, Fork::Data);
            }
            done += part;
        }
        Ok(())
    }

    /// Puts bytes into the buffer, and writes it out when it is full.
    pub(super) fn put(&mut self, object: u64, fork: Fork, offset: u64, content: Content) -> Result<()> {
        let content = if self.options.keep_bytes { content } else { Content::Count(content.len()) };
        let now = self.now();
        self.keep_waiting(object, fork, offset, offset + content.len());
        self.buffer.put(object, fork, offset, content, now);
        if self.buffer.cost() >= self.buffer_max && self.held == 0 && !self.index.steps.are_kept() {
            let written = self.write_out();
            self.or_fail(written)?;
        }
        Ok(())
    }

    /// Writes behind the end; where that was.
    ///
    /// # Errors
    /// As [`write`](Store::write).
    pub fn append_to(&mut self, id: ObjectId, content: Content) -> Result<u64> {
        let onode = self.index.onode(id.0)?;
        let offset = self.size_of(id.0, &onode);
        self.write(id, offset, content)?;
        Ok(offset)
    }

    /// Cuts an object, or makes it longer with zeros.
    ///
    /// # Errors
    /// As [`write`](Store::write).
    pub fn truncate(&mut self, id: ObjectId, size: u64) -> Result<()> {
        if size > OBJECT_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.begin_giving()?;
        let mut onode = self.index.onode(id.0)?;
        self.whole(|store| {
            store.keep_waiting(id.0, Fork::Data, size, u64::MAX);
            if size < store.size_of(id.0, &onode) {
                store.buffer.truncate(id.0, Fork::Data, size);
                store.index.unmap(id.0, Fork::Data, size, OBJECT_BYTES_MAX)?;
            }
            let now = store.now();
            (onode.size, onode.modified, onode.changed) = (size, now, now);
            store.buffer.forget_times(id.0);
            store.index.set_onode(id.0, onode)
        })
    }

    /// Frees a range: it reads as zeros, the size stays.
    ///
    /// # Errors
    /// As [`write`](Store::write).
    pub fn punch(&mut self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        self.begin_giving()?;
        let mut onode = self.index.onode(id.0)?;
        let end = offset.saturating_add(len).min(OBJECT_BYTES_MAX);
        self.whole(|store| {
            store.keep_waiting(id.0, Fork::Data, offset, end.max(offset));
            if offset < end {
                store.buffer.cut(id.0, Fork::Data, offset, end);
                store.index.unmap(id.0, Fork::Data, offset, end)?;
            }
            let now = store.now();
            // What waits may have made it longer: that stays.
            onode.size = store.size_of(id.0, &onode);
            (onode.modified, onode.changed) = (now, now);
            store.buffer.forget_times(id.0);
            store.index.set_onode(id.0, onode)
        })
    }

    /// Keeps space for what of a range has none; the size stays.
    ///
    /// # Errors
    /// As [`write`](Store::write).
    pub fn reserve_range(&mut self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= OBJECT_BYTES_MAX).ok_or(Error::TooLarge)?;
        self.begin(0)?;
        self.index.onode(id.0)?;
        let mut gaps = Vec::new();
        let mut at = offset;
        for (from, extent) in self.index.overlapping(id.0, Fork::Data, offset, end)? {
            if from > at {
                gaps.push((at, from));
            }
            at = at.max(from + u64::from(extent.len));
        }
        if at < end {
            gaps.push((at, end));
        }
        let capacity = self.capacity();
        let wanted = gaps.iter().map(|(from, to)| to - from).sum::<u64>();
        if capacity.used.saturating_add(wanted) > capacity.total {
            return Err(Error::NoSpace("the object store is full"));
        }
        self.whole(|store| {
            for (mut from, to) in gaps {
                while from < to {
                    let len = (to - from).min(RESERVATION_BYTES);
                    let extent = Extent { len: len as u32, at: Extent::RESERVED };
                    store.index.map(id.0, Fork::Data, from, extent)?;
                    from += len;
                }
            }
            Ok(())
        })
    }

    /// The stretches of an object that may hold something, from `offset` on until `visit` says false.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the index cannot be read.
    pub fn stored(
        &mut self,
        id: ObjectId,
        offset: u64,
        visit: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let onode = self.index.onode(id.0)?;
        let size = self.size_of(id.0, &onode);
        let extents = self.index.overlapping(id.0, Fork::Data, offset, size)?;
        let extents = extents.into_iter().filter(|(_, extent)| !extent.is_reserved());
        let mut all: Vec<(u64, u64)> =
            extents.map(|(from, extent)| (from, from + u64::from(extent.len))).collect();
        if let Some(dirty) = self.buffer.get(id.0, Fork::Data) {
            all.extend(
                dirty.pieces.iter().map(|piece| (piece.offset, piece.end())).filter(|(_, end)| *end > offset),
            );
        }
        all.sort_unstable();
        for (from, to) in all {
            if !visit(from, to) {
                break;
            }
        }
        Ok(())
    }

    /// All objects whose state can be read, in the order of their numbers: as [`list`](Store::list), past what of the index
    /// cannot be read, which [`check`](Store::check) names.
    ///
    /// # Errors
    /// Those of the flash, but for what cannot be read.
    pub fn readable_objects(&mut self) -> Result<Vec<ObjectId>> {
        let (mut objects, all) = (Vec::new(), (Key::onode(0), Key::after_object(u64::MAX - 1)));
        self.index.tree.range_past(
            &mut self.index.media.flash,
            all,
            |_, _| (),
            |key, value| {
                if matches!(value, Value::Onode(_)) {
                    objects.push(ObjectId(key.object));
                }
            },
        )?;
        Ok(objects)
    }

    /// Shows the objects from `from` on, in the order of their numbers, until `visit` says false.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn list(&mut self, from: ObjectId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        let mut at = Some(Key::onode(from.0));
        let last = Key { object: u64::MAX, place: u64::MAX };
        while let Some(start) = at.take() {
            // An object's extents are passed over.
            self.index.tree.range(&mut self.index.media.flash, start, last, |key, _| {
                if key != Key::onode(key.object) {
                    at = Some(Key::after_object(key.object));
                    return false;
                }
                visit(ObjectId(key.object))
            })?;
        }
        Ok(())
    }
}
