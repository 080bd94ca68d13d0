//! Items of the tree and what hangs on them: live bytes of segments, the list of changes.

use super::append::Media;
use super::layout::{Extent, Fork, Key, Onode, Value};
use super::log::Log;
use super::summary::bytes_beside;
use super::tree::Tree;
use super::undo::{Step, Steps};
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;

/// The tree, what hangs on its items, and what of it the log does not say yet.
///
/// **Invariant.** The counts of live bytes, reserved bytes and objects are the sums over the items; whatever changed
/// is noted for the next commit, and while an operation is under way in its steps.
pub(super) struct Index {
    pub(super) media: Media,
    pub(super) tree: Tree,
    pub(super) log: Log,
    /// What operations under way replaced.
    pub(super) steps: Steps,
    objects: u64,
    reserved_bytes: u64,
    /// How many bytes more (or less) objects have than their onodes say; the next commit makes them say it.
    grown: FxHashMap<u64, i64>,
    pub(super) keep_bytes: bool,
    /// Little room is left: pages are filled to the end.
    pub(super) tight: bool,
    /// The change of an item from now that fails (1: the next).
    #[cfg(any(test, feature = "testing"))]
    pub(super) fails_in: Option<u32>,
}

/// Bytes that an item says an object has.
fn stored(value: &Value) -> i64 {
    match value {
        Value::Extent(extent) => i64::from(extent.len),
        Value::Onode(_) | Value::Attributes(_) => 0,
    }
}

/// What is damaged, as the error of the object whose bytes from `key` on it should hold.
pub(super) fn of_object(error: Error, key: Key) -> Error {
    let Error::Corrupt { why, at, .. } = error else { return error };
    let what = match key.fork() {
        Some((Fork::Attributes, offset)) => format!("its attributes from byte {offset} on"),
        Some((Fork::Data, offset)) => format!("what it holds from byte {offset} on"),
        None => "it".into(),
    };
    Error::corrupt(format!("object {}", key.object), format!("{what} cannot be read: {why}"), at)
}

impl Index {
    /// An empty one.
    pub(super) fn new(media: Media, tree: Tree, keep_bytes: bool) -> Index {
        Index {
            media,
            tree,
            log: Log::default(),
            steps: Steps::default(),
            objects: 0,
            reserved_bytes: 0,
            grown: FxHashMap::default(),
            keep_bytes,
            tight: false,
            #[cfg(any(test, feature = "testing"))]
            fails_in: None,
        }
    }

    /// Takes the counts of a checkpoint.
    pub(super) fn set_counts(&mut self, objects: u64, reserved_bytes: u64) {
        (self.objects, self.reserved_bytes) = (objects, reserved_bytes);
    }

    /// How many objects there are.
    pub(super) fn objects(&self) -> u64 {
        self.objects
    }

    /// Bytes promised to objects.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    pub(super) fn onode(&mut self, object: u64) -> Result<Onode> {
        match self.tree.get(&mut self.media.flash, Key::onode(object))? {
            Some(Value::Onode(onode)) => Ok(onode),
            _ => Err(Error::NotFound),
        }
    }

    pub(super) fn set_onode(&mut self, object: u64, onode: Onode) -> Result<()> {
        self.set(Key::onode(object), Some(Value::Onode(onode))).map(drop)
    }

    /// Checks an extent that was read from the flash.
    fn check_extent(&self, key: Key, extent: Extent) -> Result<()> {
        if extent.is_reserved() {
            return Ok(());
        }
        let end = extent.at.checked_add(u64::from(extent.len) - 1);
        let segment_bytes = self.media.segments.segment_bytes();
        let inside = |end: u64| {
            end / segment_bytes < self.media.segments.count() as u64
                && end / segment_bytes == extent.at / segment_bytes
        };
        if end.is_some_and(inside) {
            return Ok(());
        }
        let why = format!("an extent lies at byte {} of the flash, {} bytes long", extent.at, extent.len);
        Err(Error::corrupt("the index of the object store", why, format!("object {}", key.object)))
    }

    fn account(&mut self, key: Key, value: &Value, more: bool) {
        match value {
            Value::Onode(_) if more => self.objects += 1,
            Value::Onode(_) => self.objects = self.objects.saturating_sub(1),
            Value::Attributes(_) => {}
            Value::Extent(extent) => {
                if !more && self.check_extent(key, *extent).is_err() {
                    // It never counted: it was damaged when it was read.
                    return;
                }
                match (extent.is_reserved(), more) {
                    (true, true) => self.reserved_bytes += u64::from(extent.len),
                    (true, false) => {
                        self.reserved_bytes = self.reserved_bytes.saturating_sub(u64::from(extent.len));
                    }
                    (false, more) => {
                        let segment = self.media.segments.of_byte(extent.at);
                        let bytes = extent.len + bytes_beside(key, extent.len);
                        match more {
                            true => self.media.segments.add_bytes(segment, bytes),
                            false => self.media.segments.drop_bytes(segment, bytes),
                        }
                    }
                }
            }
        }
    }

    /// Sets or removes an item and keeps the counts; it is not noted for the log.
    pub(super) fn apply(&mut self, key: Key, value: Option<Value>) -> Result<Option<Value>> {
        if let Some(Value::Extent(extent)) = &value {
            self.check_extent(key, *extent)?;
        }
        // Nothing is counted before the tree has it: a leaf that cannot be read changes nothing.
        let old = match &value {
            Some(value) => self.tree.put(&mut self.media.flash, key, value)?,
            None => self.tree.delete(&mut self.media.flash, key)?,
        };
        if let Some(value) = &value {
            self.account(key, value, true);
        }
        if let Some(old) = &old {
            self.account(key, old, false);
        }
        Ok(old)
    }

    /// Sets or removes an item; the next commit says so.
    pub(super) fn set(&mut self, key: Key, value: Option<Value>) -> Result<Option<Value>> {
        #[cfg(any(test, feature = "testing"))]
        self.fail_as_planned()?;
        let is_there = value.is_some();
        let bytes = value.as_ref().map_or(0, Value::bytes_most);
        let more = value.as_ref().map_or(0, stored);
        let old = self.apply(key, value)?;
        self.grow(key.object, more - old.as_ref().map_or(0, stored));
        if is_there || old.is_some() {
            self.log.note(key, bytes);
            self.steps.keep(|| Step::Item(key, old.clone()));
        }
        Ok(old)
    }

    /// Sets or removes an item to what it was; the next commit says so.
    pub(super) fn put_back(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        self.log.note(key, value.as_ref().map_or(0, Value::bytes_most));
        let more = value.as_ref().map_or(0, stored);
        let old = self.apply(key, value)?;
        self.grow(key.object, more - old.as_ref().map_or(0, stored));
        Ok(())
    }

    fn grow(&mut self, object: u64, bytes: i64) {
        if bytes != 0 {
            let grown = self.grown.entry(object).or_default();
            *grown += bytes;
            if *grown == 0 {
                self.grown.remove(&object);
            }
        }
    }

    /// Bytes of an object's extents, of which its onode says `stored`.
    pub(super) fn stored(&self, object: u64, stored: u64) -> u64 {
        stored.saturating_add_signed(self.grown.get(&object).copied().unwrap_or(0))
    }

    /// Bytes that extents of an object that is gone had, and the next commit will take off from one with the same number.
    pub(super) fn still_to_lose(&self, object: u64) -> u64 {
        self.grown.get(&object).map_or(0, |grown| grown.min(&0).unsigned_abs())
    }

    /// All onodes say how many bytes their objects have.
    pub(super) fn is_settled(&mut self) {
        self.grown.clear();
    }

    /// Has onodes say how many bytes their objects have.
    pub(super) fn settle_stored(&mut self) -> Result<()> {
        let mut all: Vec<(u64, i64)> = self.grown.drain().collect();
        all.sort_unstable();
        for (object, bytes) in all {
            let set = self.onode(object).and_then(|mut onode| {
                onode.stored = onode.stored.saturating_add_signed(bytes);
                self.set_onode(object, onode)
            });
            match set {
                // It is gone, or cannot be read: it is that object's.
                Ok(()) | Err(Error::NotFound | Error::Corrupt { .. }) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// The extents of a fork that overlap the range, in order.
    pub(super) fn overlapping(
        &mut self,
        object: u64,
        fork: Fork,
        from: u64,
        to: u64,
    ) -> Result<Vec<(u64, Extent)>> {
        let mut found = Vec::new();
        self.each_overlapping(object, fork, from, to, &mut |offset, extent| {
            found.push((offset, extent));
            true
        })?;
        Ok(found)
    }

    /// Shows the extents of a fork that overlap the range, in order, until `visit` says false.
    pub(super) fn each_overlapping(
        &mut self,
        object: u64,
        fork: Fork,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let start = Key::extent(object, fork, from);
        // One that begins before the range may reach into it.
        if let Some((key, Value::Extent(extent))) = self.tree.last_to(&mut self.media.flash, start)?
            && key.object == object
            && let Some((its, offset)) = key.fork()
            && its == fork
            && offset < from
            && offset + u64::from(extent.len) > from
            && !visit(offset, extent)
        {
            return Ok(());
        }
        let end = Key::extent(object, fork, to);
        self.tree.range(&mut self.media.flash, start, end, |key, value| match (key.fork(), value) {
            (Some((_, offset)), Value::Extent(extent)) => visit(offset, extent),
            _ => true,
        })
    }

    /// Drops what the range maps to.
    pub(super) fn unmap(&mut self, object: u64, fork: Fork, from: u64, to: u64) -> Result<()> {
        for (offset, extent) in self.overlapping(object, fork, from, to)? {
            let end = offset + u64::from(extent.len);
            if offset < from {
                let kept = extent.part(0, from - offset);
                self.set(Key::extent(object, fork, offset), Some(Value::Extent(kept)))?;
            } else {
                self.set(Key::extent(object, fork, offset), None)?;
            }
            if end > to {
                let kept = extent.part(to - offset, end - to);
                self.set(Key::extent(object, fork, to), Some(Value::Extent(kept)))?;
            }
        }
        Ok(())
    }

    /// Maps `len` bytes of a fork to `at`; what was there before dies.
    pub(super) fn map(&mut self, object: u64, fork: Fork, offset: u64, extent: Extent) -> Result<()> {
        let len = u64::from(extent.len);
        self.unmap(object, fork, offset, offset + len)?;
        if let Some((before, left)) = self.left_of(object, fork, offset)?
            && left.is_reserved() == extent.is_reserved()
            && self.continues(left, extent)
        {
            let whole = Extent { len: left.len + extent.len, at: left.at };
            self.set(Key::extent(object, fork, before), Some(Value::Extent(whole)))?;
            return Ok(());
        }
        self.set(Key::extent(object, fork, offset), Some(Value::Extent(extent)))?;
        Ok(())
    }

    /// The extent that ends at `offset`.
    fn left_of(&mut self, object: u64, fork: Fork, offset: u64) -> Result<Option<(u64, Extent)>> {
        let Some(before) = offset.checked_sub(1) else { return Ok(None) };
        let found = self.tree.last_to(&mut self.media.flash, Key::extent(object, fork, before))?;
        let Some((key, Value::Extent(extent))) = found else { return Ok(None) };
        let ends = key.fork().filter(|(its, from)| *its == fork && from + u64::from(extent.len) == offset);
        Ok(ends.filter(|_| key.object == object).map(|(_, from)| (from, extent)))
    }

    /// Whether `extent` lies right behind `left`, so that the two can be one.
    fn continues(&self, left: Extent, extent: Extent) -> bool {
        if left.len.checked_add(extent.len).is_none() {
            return false;
        }
        extent.is_reserved()
            || left.at + u64::from(left.len) == extent.at
                && self.media.segments.of_byte(left.at) == self.media.segments.of_byte(extent.at)
    }

    /// The change that is planned to fail does.
    #[cfg(any(test, feature = "testing"))]
    fn fail_as_planned(&mut self) -> Result<()> {
        match &mut self.fails_in {
            Some(1) => {
                self.fails_in = None;
                Err(Error::corrupt("a leaf", "it was planned so", "a test"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Reads `len` bytes of the flash at `at`, which are an object's from `key` on, into `into`; where no bytes are
    /// kept, only the time passes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the object and the first byte of it that cannot be read, or is another's.
    pub(super) fn read_bytes(&mut self, key: Key, at: u64, len: u64, into: &mut [u8]) -> Result<()> {
        let page_bytes = self.media.flash.page_bytes() as u64;
        let mut done = 0;
        while done < len {
            let (page, skip) = ((at + done) / page_bytes, (at + done) % page_bytes);
            let part = (page_bytes - skip).min(len - done);
            let addr = super::flash::Addr(page as u32);
            if self.keep_bytes {
                let place = key.place + done;
                let first = Key { object: key.object, place: place.wrapping_sub(skip) };
                let bytes = self.media.flash.read_data(addr, first, skip, part);
                let bytes = bytes.map_err(|why| of_object(why, Key { object: key.object, place }))?;
                let from = skip as usize;
                into[done as usize..(done + part) as usize]
                    .copy_from_slice(&bytes[from..from + part as usize]);
            } else {
                self.media.flash.sense(addr)?;
            }
            done += part;
        }
        Ok(())
    }
}
