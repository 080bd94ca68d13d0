//! Group records: up to 64 objects with neighbouring numbers in one record, each in a few bits.
//!
//! A bitmap says which there are. Each object is said by what is different from the one before: kind, directory,
//! size, where its data begins and where its header is. Files that were written one after the other differ in
//! nothing and take less than a byte.

use super::entries_of;
use super::pages::{self, HOLE, Scale};
use crate::bits::{BitReader, BitWriter};
use crate::object::{GROUP, Kind, NONE, Object, Objects, ROOT};
use alloc::vec::Vec;

/// First segments longer than this have a record of their own, bits.
const INLINE_BITS_MAX: usize = 512;

/// What the next object is compared with.
struct Before {
    kind: Kind,
    parent: u32,
    size: u64,
    header: u32,
    /// Behind the last page of data, in log order.
    data_end: u32,
    /// How far behind that data began.
    data_step: i64,
    /// How far behind its data, or the last header, a header was.
    header_step: i64,
}

impl Before {
    fn new(id: u32) -> Before {
        // Most objects are files of directories just made.
        Before { kind: Kind::File, parent: id, size: 0, header: 0, data_end: 0, data_step: 1, header_step: 0 }
    }
}

/// A record being made or read needs to know these.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub scale: Scale,
    pub page_bytes: u32,
}

impl Context {
    pub fn pages_of(&self, size: u64) -> u32 {
        size.div_ceil(u64::from(self.page_bytes)).min(1 << 28) as u32
    }

    /// The entries of a segment in log order, as many as a file of this size has.
    pub fn entries(&self, object: &Object, segment: u32) -> Vec<u32> {
        let count = entries_of(self.pages_of(object.flash_size), segment) as usize;
        let mut entries = object.map.entries(segment, count);
        entries.iter_mut().for_each(|page| *page = self.scale.to_log(*page));
        entries
    }

    /// Entries in log order as pages; `None` if one is past the part's end.
    pub fn pages(self, entries: &[u32]) -> Option<Vec<u32>> {
        entries.iter().map(|log| self.scale.to_page(*log)).collect()
    }
}

/// Whether NVRAM speaks of an object: only of what flash knows, too. A file may have data there and no header
/// yet, which is said as the kind [`Kind::Unknown`].
fn is_recorded(object: &Object) -> bool {
    object.header != NONE || object.map.count() > 0
}

/// The kind as the record says it.
fn recorded_kind(object: &Object) -> Kind {
    if object.header == NONE { Kind::Unknown } else { object.kind }
}

/// The record of a group, and the objects whose first segment needs a record of its own. `stored` are those that are not in
/// memory, as the last record had them.
pub(super) fn write(
    objects: &Objects,
    stored: &[Read],
    group: u32,
    context: Context,
    named: &dyn Fn(u32) -> bool,
) -> (Vec<u8>, Vec<u32>) {
    let first = group * GROUP;
    let as_stored = |id: u32| stored.iter().find(|read| read.id == id);
    let is_there = |id: &u32| objects.get(*id).is_some_and(is_recorded) || as_stored(*id).is_some();
    let ids: Vec<u32> = (first..first + GROUP).filter(is_there).collect();
    let mut to = BitWriter::default();
    (first..first + GROUP).for_each(|id| to.bit(ids.contains(&id)));
    let mut before = Before::new(first);
    let mut external = Vec::new();
    for id in ids {
        to.bit(named(id));
        let is_external = match (objects.get(id), as_stored(id)) {
            (Some(object), _) => write_object(id, object, false, context, &mut before, &mut to),
            (None, Some(read)) => {
                write_object(id, &read.object, read.external, context, &mut before, &mut to)
            }
            (None, None) => false,
        };
        if is_external {
            external.push(id);
        }
    }
    (to.into_bytes(), external)
}

/// Whether its first segment is not in here; `elsewhere` says that it has a record of its own, which stays.
fn write_object(
    id: u32,
    object: &Object,
    elsewhere: bool,
    context: Context,
    before: &mut Before,
    to: &mut BitWriter,
) -> bool {
    let kind = recorded_kind(object);
    to.bit(kind == before.kind);
    if kind != before.kind {
        to.bits(u64::from(kind.code()), 3);
    }
    let parent = if id == ROOT { ROOT } else { object.parent };
    to.bit(parent == before.parent);
    if parent != before.parent {
        to.signed(i64::from(parent) - i64::from(before.parent), 4);
    }
    let size = if object.kind == Kind::File { object.flash_size } else { object.size };
    match object.kind {
        Kind::HardLink => to.golomb(u64::from(object.target), 8),
        Kind::File | Kind::Symlink => {
            to.bit(size == before.size);
            if size != before.size {
                to.golomb(size, 10);
            }
        }
        _ => {}
    }
    let external = match elsewhere {
        true => {
            to.bit(false);
            to.bit(true);
            before.data_step = 1;
            true
        }
        false => object.kind == Kind::File && write_first_segment(object, context, before, to),
    };
    before.kind = kind;
    before.parent = parent;
    if is_sized(kind) {
        before.size = size;
    }
    if kind == Kind::Unknown {
        return external;
    }
    let header = context.scale.to_log(object.header);
    let has_data = object.kind == Kind::File && size > 0;
    let near = if has_data { before.data_end } else { before.header.wrapping_add(1) };
    let step = i64::from(header) - i64::from(near);
    to.bit(step == before.header_step);
    if step != before.header_step {
        to.signed(step, 6);
    }
    (before.header, before.header_step) = (header, step);
    external
}

fn is_sized(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Symlink | Kind::Unknown)
}

fn write_first_segment(object: &Object, context: Context, before: &mut Before, to: &mut BitWriter) -> bool {
    let entries = context.entries(object, 0);
    let Some((&start, &last)) = entries.first().zip(entries.last()) else { return false };
    let is_run = start != HOLE && entries.iter().zip(start..).all(|(entry, expected)| *entry == expected);
    let step = i64::from(start) - i64::from(before.data_end);
    if is_run && step == before.data_step {
        to.bit(true);
        before.data_end = last + 1;
        return false;
    }
    to.bit(false);
    let cursor = before.data_end;
    let mut coded = BitWriter::default();
    pages::write(&entries, cursor, context.scale, &mut coded);
    let external = coded.len_bits() > INLINE_BITS_MAX;
    to.bit(external);
    if !external {
        to.append(&coded);
    }
    if start != HOLE {
        before.data_step = step;
    }
    // A reader that has the segment elsewhere does not know where it ends.
    before.data_end = if external || last == HOLE { cursor } else { last + 1 };
    if external {
        before.data_step = 1;
    }
    external
}

/// An object of a group record.
pub(super) struct Read {
    pub id: u32,
    pub object: Object,
    /// Its first segment has a record of its own.
    pub external: bool,
    /// The names record is true of it.
    pub named: bool,
}

/// Visits the objects of a record, in order; `None` if it is no such record.
pub(super) fn read(
    bytes: &[u8],
    group: u32,
    context: Context,
    visit: &mut dyn FnMut(Read) -> Option<()>,
) -> Option<()> {
    let mut from = BitReader::new(bytes);
    let first = group.checked_mul(GROUP)?;
    let mut ids = Vec::new();
    for id in first..first + GROUP {
        if from.bit()? {
            ids.push(id);
        }
    }
    let mut before = Before::new(first);
    ids.into_iter().try_for_each(|id| visit(read_object(id, context, &mut before, &mut from)?))
}

fn read_object(id: u32, context: Context, before: &mut Before, from: &mut BitReader) -> Option<Read> {
    let named = from.bit()?;
    let kind = if from.bit()? { before.kind } else { Kind::from_code(from.bits(3)? as u32)? };
    let parent = match from.bit()? {
        true => before.parent,
        false => u32::try_from(i64::from(before.parent).checked_add(from.signed(4)?)?).ok()?,
    };
    let mut object = Object::new(if kind == Kind::Unknown { Kind::File } else { kind }, parent);
    match kind {
        Kind::HardLink => object.target = u32::try_from(from.golomb(8)?).ok()?,
        Kind::File | Kind::Symlink | Kind::Unknown => {
            object.size = if from.bit()? { before.size } else { from.golomb(10)? };
            before.size = object.size;
        }
        _ => {}
    }
    let mut external = false;
    if object.kind == Kind::File {
        object.flash_size = object.size;
        external = read_first_segment(&mut object, context, before, from)?;
    }
    (before.kind, before.parent) = (kind, parent);
    if kind == Kind::Unknown {
        return Some(Read { id, object, external, named });
    }
    let has_data = kind == Kind::File && object.size > 0;
    let near = if has_data { before.data_end } else { before.header.wrapping_add(1) };
    let step = if from.bit()? { before.header_step } else { from.signed(6)? };
    let header = u32::try_from(i64::from(near).checked_add(step)?).ok()?;
    object.header = context.scale.to_page(header).filter(|page| *page != NONE)?;
    (before.header, before.header_step) = (header, step);
    Some(Read { id, object, external, named })
}

fn read_first_segment(
    object: &mut Object,
    context: Context,
    before: &mut Before,
    from: &mut BitReader,
) -> Option<bool> {
    let count = entries_of(context.pages_of(object.size), 0);
    if count == 0 {
        return Some(false);
    }
    if from.bit()? {
        let start = u32::try_from(i64::from(before.data_end).checked_add(before.data_step)?).ok()?;
        let end = start.checked_add(count)?;
        let entries: Vec<u32> = (start..end).collect();
        object.map.put_segment(0, &context.pages(&entries)?);
        before.data_end = end;
        return Some(false);
    }
    if from.bit()? {
        before.data_step = 1;
        return Some(true);
    }
    let entries = pages::read(from, count as usize, before.data_end, context.scale)?;
    object.map.put_segment(0, &context.pages(&entries)?);
    let (start, last) = (*entries.first()?, *entries.last()?);
    if start != HOLE {
        before.data_step = i64::from(start) - i64::from(before.data_end);
    }
    if last != HOLE {
        before.data_end = last.checked_add(1)?;
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Geometry;

    fn context() -> Context {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 1024 };
        Context { scale: Scale::new(&geometry, 63), page_bytes: 2048 }
    }

    fn file(parent: u32, size: u64, pages: &[u32], header: u32) -> Object {
        let mut object = Object::new(Kind::File, parent);
        (object.size, object.flash_size, object.header) = (size, size, header);
        for (index, page) in (0..).zip(pages) {
            object.map.set(index, *page);
        }
        object
    }

    fn read_all(bytes: &[u8], group: u32) -> Option<Vec<Read>> {
        let mut all = Vec::new();
        let mut keep = |read| {
            all.push(read);
            Some(())
        };
        read(bytes, group, context(), &mut keep)?;
        Some(all)
    }

    fn round_trip(objects: &Objects, group: u32) -> (usize, Vec<u32>) {
        let (bytes, external) = write(objects, &[], group, context(), &|id| id % 3 == 0);
        let read = read_all(&bytes, group).expect("what was written");
        // What is not in memory is written as it was read: any part of the group.
        for left in 0..8 {
            let (mut part, stored) = (Objects::default(), read_all(&bytes, group).expect("again"));
            for (id, object) in objects.iter().filter(|(id, _)| id % 8 != left) {
                part.insert(id, object.clone());
            }
            let stored: Vec<Read> = stored.into_iter().filter(|read| read.id % 8 == left).collect();
            let again = write(&part, &stored, group, context(), &|id| id % 3 == 0);
            assert!(again == (bytes.clone(), external.clone()), "without those that leave {left}");
        }
        for Read { id, object, external: elsewhere, named } in read {
            assert_eq!(named, id % 3 == 0);
            let original = objects.get(id).expect("an object that was written");
            assert_eq!(elsewhere, external.contains(&id));
            assert_eq!(
                (object.kind, object.parent, object.header),
                (original.kind, original.parent, original.header)
            );
            assert_eq!((object.size, object.target), (original.size, original.target), "object {id}");
            let same = object.map.iter().eq(original.map.iter());
            assert!(same || elsewhere, "{:?} {:?}", object.map, original.map);
        }
        (bytes.len(), external)
    }

    #[test]
    fn small_files_one_after_the_other_take_less_than_a_byte() {
        let mut objects = Objects::default();
        for id in 0x140..0x180 {
            let page = context().scale.to_page((id - 0x140) * 2).unwrap();
            let header = context().scale.to_page((id - 0x140) * 2 + 1).unwrap();
            objects.insert(id, file(0x101, 1024, &[page], header));
        }
        let (bytes, external) = round_trip(&objects, 5);
        assert!(bytes < 64 && external.is_empty(), "{bytes}");
    }

    #[test]
    fn objects_of_all_kinds_read_back() {
        let mut objects = Objects::default();
        let mut dir = Object::new(Kind::Dir, ROOT);
        dir.header = 4000;
        objects.insert(0x102, dir);
        objects.insert(0x104, file(0x102, 5000, &[7, 9, 200], 4001));
        let mut link = Object::new(Kind::HardLink, 0x102);
        (link.header, link.target) = (12, 0x104);
        objects.insert(0x105, link);
        let mut symlink = Object::new(Kind::Symlink, 0x102);
        (symlink.header, symlink.size) = (65_000, 13);
        objects.insert(0x106, symlink);
        objects.insert(0x107, file(0x102, 0, &[], 3));
        let scattered: Vec<u32> = (0..300).map(|at| at * 7919 % 64_000 / 64 * 64 + 3).collect();
        objects.insert(0x108, file(0x102, 300 * 2048, &scattered, 65_001));
        objects.insert(0x109, file(0x102, 4096, &[90, 91], 92));
        // Flash does not know these yet, or only their data.
        objects.insert(0x10a, file(0x102, 0, &[], NONE));
        objects.insert(0x10b, file(0x102, 4096, &[800, 900], NONE));
        objects.insert(0x10c, file(0x102, 4096, &[93, 94], 95));
        let (_, external) = round_trip(&objects, 4);
        assert_eq!(external, [0x108]);
    }

    #[test]
    fn nonsense_is_refused_and_never_panics() {
        let mut seed = 1u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..60)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            let _ = read_all(&bytes, 4);
        }
    }
}
