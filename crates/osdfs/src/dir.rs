//! A directory: an object whose contents are its entries, one after the other.
//!
//! An entry: object `u64` little-endian (0: free), kind `u8`, length of the name `u8`, the name. A removed entry is
//! free; one with a name of the same length takes its place, and free ones at the end are cut off. So an entry stays
//! where it is for as long as it lives, and its place is what a listing goes on by.
//!
//! A directory that is used is in memory whole. Cost: O(1) a look-up, one small write a change.

use super::inode::{kind_of, number_of};
use super::{NAMELESS, ROOT, names};
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Content, ObjectId, Store};
use bimetal_vfs::Kind;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Bytes of an entry before its name.
pub(super) const HEADER: usize = 10;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub object: u64,
    pub kind: Kind,
}

impl Target {
    /// Whether an entry under this name in the directory of what has no name can be right: it is the number of an object that
    /// had a name.
    pub fn can_be_nameless(&self, name: &[u8]) -> bool {
        ![ROOT, NAMELESS].contains(&self.object) && name == self.object.to_string().as_bytes()
    }
}

/// A directory in memory.
#[derive(Default)]
pub(super) struct Dir {
    /// Entries by place.
    entries: BTreeMap<u64, (Box<[u8]>, Target)>,
    places: FxHashMap<Box<[u8]>, u64>,
    /// Places of free entries by the length of the name, the last one to be used first.
    free: FxHashMap<u8, Vec<u64>>,
    /// Bytes of the object.
    end: u64,
}

impl Dir {
    /// Reads the directory in an object.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if its contents make no sense.
    pub fn read(store: &mut Store, object: u64) -> Result<Dir> {
        let id = ObjectId(object);
        let size = store.stat(id)?.size;
        let corrupt = |why: &str, at: u64| {
            Error::corrupt(format!("directory, object {object}"), why, format!("byte {at}"))
        };
        // Every byte of it was written, to a part that has room for it.
        let mut written = 0;
        store.stored(id, 0, &mut |from, to| {
            let follows = from <= written;
            written = if follows { to.max(written) } else { written };
            follows
        })?;
        if size > written || size > store.nand().geometry().bytes() {
            return Err(corrupt("not all that it should hold was written", written));
        }
        let bytes = store.peek(id, 0, size as usize)?;
        let mut dir = Dir { end: size, ..Dir::default() };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let at = size - rest.len() as u64;
            let len = HEADER + usize::from(*rest.get(9).ok_or_else(|| corrupt("an entry is cut off", at))?);
            let entry = rest.get(..len).ok_or_else(|| corrupt("an entry is cut off", at))?;
            rest = &rest[len..];
            let target = u64::from_le_bytes(entry[..8].try_into().unwrap_or_default());
            if target == 0 {
                dir.free.entry(entry[9]).or_default().push(at);
                continue;
            }
            let kind = kind_of(entry[8]).ok_or_else(|| corrupt("an entry is of no kind", at))?;
            let name: Box<[u8]> = entry[HEADER..].into();
            names::check(&name).map_err(|_| corrupt("an entry's name can be none", at))?;
            if dir.places.insert(name.clone(), at).is_some() {
                return Err(corrupt("two entries have the same name", at));
            }
            dir.entries.insert(at, (name, Target { object: target, kind }));
        }
        Ok(dir)
    }

    pub fn get(&self, name: &[u8]) -> Option<Target> {
        self.places.get(name).and_then(|at| self.entries.get(at)).map(|(_, target)| *target)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries from place `from` on: name, what it stands for, the place to go on from.
    pub fn after(&self, from: u64) -> impl Iterator<Item = (&[u8], Target, u64)> {
        self.entries.range(from..).map(|(at, (name, target))| (&name[..], *target, at + 1))
    }

    /// Adds an entry, or gives a name to something else.
    pub fn set(&mut self, store: &mut Store, object: u64, name: &[u8], target: Target) -> Result<()> {
        let old = self.places.get(name).copied();
        let len = name.len() as u8;
        let at = old.or_else(|| self.free.get(&len)?.last().copied()).unwrap_or(self.end);
        let mut bytes = target.object.to_le_bytes().to_vec();
        bytes.extend([number_of(target.kind), len]);
        bytes.extend(name);
        store.write(ObjectId(object), at, Content::Bytes(&bytes))?;
        if old.is_none() && at < self.end {
            self.free.get_mut(&len).map(Vec::pop);
        }
        self.end = self.end.max(at + bytes.len() as u64);
        self.places.insert(name.into(), at);
        self.entries.insert(at, (name.into(), target));
        Ok(())
    }

    /// Takes an entry away.
    pub fn remove(&mut self, store: &mut Store, object: u64, name: &[u8]) -> Result<()> {
        let at = *self.places.get(name).ok_or(Error::NotFound)?;
        let last_end = self.entries.range(..at).next_back().map_or(0, |(at, (name, _))| end_of(*at, name));
        if self.entries.range(at + 1..).next().is_none() {
            store.truncate(ObjectId(object), last_end)?;
            self.end = last_end;
            self.free.values_mut().for_each(|places| places.retain(|place| *place < last_end));
        } else {
            store.write(ObjectId(object), at, Content::Bytes(&0u64.to_le_bytes()))?;
            self.free.entry(name.len() as u8).or_default().push(at);
        }
        self.places.remove(name);
        self.entries.remove(&at);
        Ok(())
    }
}

fn end_of(at: u64, name: &[u8]) -> u64 {
    at + (HEADER + name.len()) as u64
}
