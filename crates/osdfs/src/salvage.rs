//! What is left of a directory that cannot be read.
//!
//! An entry stays where it is for as long as it lives, and what it leads to has a number that nothing else ever has. So an entry
//! is believed wherever its bytes are, if they can be read and lead to an object of the kind that they say; of two with one name
//! the first, as a directory that was cut off and written again has its new entries first. Everything between is made free
//! entries, what is behind the last is cut off, and the directory is as any other. An entry beside which there is no room for a
//! free one is put elsewhere.
//!
//! One change of the store: a power cut leaves the directory as it was or mended. Memory: the directory, and what is made free.

use super::dir::{Dir, HEADER, Target};
use super::inode::{Inode, kind_of};
use super::{NAMELESS, ROOT, names};
use bimetal_base::{Error, Result};
use bimetal_osd_core::{Content, ObjectId, Store};
use rustc_hash::FxHashSet;

/// So much of the beginning of an object says whether it is a directory.
const CHUNK: u64 = 64 << 10;

/// What became of a directory that could not be read.
pub(super) struct Salvaged {
    pub dir: Dir,
    /// Bytes that were, or may have been, of entries that are gone.
    pub lost_bytes: u64,
}

/// A name, and what it leads to.
type Entry = (Box<[u8]>, Target);

/// Bytes of a directory that stay as they are.
struct Kept {
    from: usize,
    to: usize,
    /// None for a free entry.
    entry: Option<Entry>,
}

/// A directory's contents, as far as they can be read.
struct Contents {
    bytes: Vec<u8>,
    /// Ranges that cannot be read, or that nobody wrote, in order.
    bad: Vec<(usize, usize)>,
}

impl Contents {
    fn of(store: &mut Store, id: ObjectId, size: u64) -> Result<Contents> {
        // No part holds more than it has pages for.
        let pieces = store.peek_past(id, size.min(store.nand().geometry().bytes()))?;
        let mut contents = Contents { bytes: Vec::new(), bad: Vec::new() };
        for (from, bytes) in pieces {
            let (at, from) = (contents.bytes.len(), from as usize);
            if from > at {
                contents.bad.push((at, from));
                contents.bytes.resize(from, 0);
            }
            contents.bytes.extend(bytes);
        }
        Ok(contents)
    }

    /// The bytes of what may be an entry, free or not.
    fn at(&self, from: usize) -> Option<&[u8]> {
        let to = from + HEADER + usize::from(*self.bytes.get(from + HEADER - 1)?);
        let next = self.bad.partition_point(|range| range.1 <= from);
        let is_readable = self.bad.get(next).is_none_or(|range| range.0 >= to);
        self.bytes.get(from..to).filter(|_| is_readable)
    }

    /// The entry that begins at a byte, if what is there is one.
    fn entry(&self, store: &mut Store, from: usize) -> Result<Option<Entry>> {
        let Some(bytes) = self.at(from) else { return Ok(None) };
        let (head, name) = bytes.split_at(HEADER);
        let object = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
        let Some(kind) = kind_of(head[8]) else { return Ok(None) };
        if names::check(name).is_err() || [0, ROOT, NAMELESS].contains(&object) {
            return Ok(None);
        }
        let leads = match Inode::read(store, object) {
            Ok(inode) => inode.mode.kind == kind,
            Err(Error::Stale) => false,
            // What it was cannot be read; that it is there can.
            Err(Error::Corrupt { .. }) => true,
            Err(why) => return Err(why),
        };
        Ok(leads.then(|| (name.into(), Target { object, kind })))
    }

    /// Whether a free entry begins at a byte where an entry is due. No name has the zeros that an entry begins with: where one
    /// is within it, it is none.
    fn is_free(&self, store: &mut Store, from: usize) -> Result<bool> {
        let Some(len) = self.at(from).filter(|bytes| bytes[..8] == [0; 8]).map(<[u8]>::len) else {
            return Ok(false);
        };
        for at in from + 1..from + len {
            if self.entry(store, at)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What stays.
    fn kept(&self, store: &mut Store) -> Result<Vec<Kept>> {
        let (mut kept, mut taken, mut at, mut due) = (Vec::new(), FxHashSet::default(), 0, true);
        while at < self.bytes.len() {
            let next = self.bad.partition_point(|range| range.1 <= at);
            if let Some((_, to)) = self.bad.get(next).filter(|range| range.0 <= at) {
                (at, due) = (*to, false);
                continue;
            }
            let entry = self.entry(store, at)?.filter(|(name, _)| taken.insert(name.clone()));
            if entry.is_some() || due && self.is_free(store, at)? {
                let to = at + self.at(at).map_or(1, <[u8]>::len);
                kept.push(Kept { from: at, to, entry });
                (at, due) = (to, true);
            } else {
                (at, due) = (at + 1, false);
            }
        }
        Ok(kept)
    }
}

/// Free entries that take so many bytes, [`HEADER`] at least.
fn free_entries(mut len: usize) -> Vec<u8> {
    let most = HEADER + usize::from(u8::MAX);
    let mut bytes = Vec::with_capacity(len);
    while len > 0 {
        let one = match len {
            _ if len <= most => len,
            // What is left must be one, too.
            _ => most.min(len - HEADER),
        };
        let start = bytes.len();
        bytes.resize(start + one, 0);
        bytes[start + HEADER - 1] = (one - HEADER) as u8;
        len -= one;
    }
    bytes
}

/// What the beginning of an object holds: whether most of it is entries of a directory one behind the other, from the first byte
/// on; and those that lead to an object.
fn entries_of(store: &mut Store, object: u64) -> Result<(bool, Vec<Entry>)> {
    let size = match store.stat(ObjectId(object)) {
        Err(Error::NotFound | Error::Corrupt { .. }) => 0,
        stat => stat?.size,
    };
    let contents = match Contents::of(store, ObjectId(object), size.min(CHUNK)) {
        Err(Error::NotFound | Error::Corrupt { .. }) => return Ok((true, Vec::new())),
        contents => contents?,
    };
    let (mut end, mut entries) = (0, Vec::new());
    for one in contents.kept(store)? {
        if one.from == end {
            end = one.to;
            entries.extend(one.entry);
        }
    }
    Ok((end * 2 >= contents.bytes.len(), entries))
}

/// Whether two objects of a store hold what the first two directories of a file system do: entries, and numbers in decimal.
///
/// # Errors
/// Those of the store, but for what cannot be read.
pub(super) fn are_those_of_a_file_system(store: &mut Store) -> Result<bool> {
    let (is_dir, entries) = entries_of(store, ROOT)?;
    let (are_numbers, nameless) = entries_of(store, NAMELESS)?;
    let is_number = |(name, target): &Entry| **name == *target.object.to_string().as_bytes();
    Ok(is_dir && !entries.is_empty() && are_numbers && nameless.iter().all(is_number))
}

/// Makes a directory readable again.
///
/// # Errors
/// Those of the store; [`Error::Corrupt`] if the index of the object cannot be read.
pub(super) fn mend(store: &mut Store, object: u64) -> Result<Salvaged> {
    store.hold_giving()?;
    let mended = mend_now(store, object);
    match mended {
        Ok(_) => store.release(),
        Err(_) => drop(store.take_back()),
    }
    mended
}

fn mend_now(store: &mut Store, object: u64) -> Result<Salvaged> {
    let id = ObjectId(object);
    let size = store.stat(id)?.size;
    let contents = Contents::of(store, id, size)?;
    let (mut stay, mut made_free, mut elsewhere) = (Vec::<Kept>::new(), Vec::new(), Vec::new());
    let (mut end, mut lost_bytes) = (0, 0);
    for one in contents.kept(store)? {
        let gap = one.from - end;
        lost_bytes += gap as u64;
        end = one.to;
        if gap == 0 || gap >= HEADER {
            if gap > 0 {
                made_free.push((one.from - gap, one.from));
            }
            stay.push(one);
            continue;
        }
        // Too little for a free entry: its neighbour moves.
        match stay.pop() {
            Some(before) => {
                made_free.push((before.from, one.from));
                elsewhere.extend(before.entry);
                stay.push(one);
            }
            None => {
                made_free.push((one.from - gap, one.to));
                elsewhere.extend(one.entry);
            }
        }
    }
    lost_bytes += size - end as u64;
    for (from, to) in made_free {
        store.write(id, from as u64, Content::Bytes(&free_entries(to - from)))?;
    }
    if (end as u64) < size {
        store.truncate(id, end as u64)?;
    }
    let mut dir = Dir::read(store, object)?;
    for (name, target) in elsewhere {
        dir.set(store, object, &name, target)?;
    }
    Ok(Salvaged { dir, lost_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_room_from_a_header_on_is_filled_with_free_entries() {
        for len in HEADER..2000 {
            let bytes = free_entries(len);
            assert_eq!(bytes.len(), len);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                assert_eq!(rest[..HEADER - 1], [0; HEADER - 1], "{len}");
                rest = &rest[HEADER + usize::from(rest[HEADER - 1])..];
            }
        }
    }
}
