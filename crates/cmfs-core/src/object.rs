//! Objects: files, directories, links, special files, as they are in memory.

use crate::dir::{Dir, key};
use crate::error::{Error, Result};
use crate::header::{Attribute, Header};
use crate::map::PageMap;
use crate::sorted::{self, Map, Set};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The root directory.
pub const ROOT: u32 = 1;
/// The directory of what a scan found no place for.
pub const LOST_FOUND: u32 = 2;
/// Parent of objects without a name that are still in use; never on flash itself.
pub(crate) const UNLINKED: u32 = 3;
/// Parent of objects that are gone; never on flash itself.
pub(crate) const DELETED: u32 = 4;
/// The first number of an ordinary object.
pub const FIRST_ID: u32 = 0x101;
/// The last one.
pub const MAX_ID: u32 = 0x3_ffff;
/// The most pages of a file: what the tags have bits for.
pub(crate) const PAGES_MAX: u64 = 1 << 28;
/// No page.
pub(crate) const NONE: u32 = u32::MAX;

/// An instant: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds, may be negative.
    pub sec: i64,
    /// Below 1 000 000 000.
    pub nsec: u32,
}

/// What an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing yet.
    #[default]
    Unknown,
    /// A file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory.
    Dir,
    /// Another name of an object.
    HardLink,
    /// A device, pipe or socket, by its mode.
    Special,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Unknown, Kind::File, Kind::Symlink, Kind::Dir, Kind::HardLink, Kind::Special];

    /// The number that stands for it on flash.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// What a number on flash stands for.
    pub fn from_code(code: u32) -> Option<Kind> {
        Kind::ALL.get(code as usize).copied()
    }
}

/// What a header says beyond what every operation needs; loaded when asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub name: Box<[u8]>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub crtime: Time,
    pub rdev: u32,
    /// What only the header page has.
    pub rest: Option<Rest>,
}

/// What is never in NVRAM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    pub alias: Box<[u8]>,
    pub attributes: Vec<Attribute>,
}

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub kind: Kind,
    /// The directory it is in; always as its header on flash says, if there is one.
    pub parent: u32,
    /// The page of its header, or [`NONE`].
    pub header: u32,
    /// Size of a file or of a link's target, bytes.
    pub size: u64,
    /// Size of a file as flash alone would tell it.
    pub flash_size: u64,
    /// What a hard link stands for.
    pub target: u32,
    /// How many hard links stand for it.
    pub links: u32,
    pub map: PageMap,
    pub dir: Option<Box<Dir>>,
    pub details: Option<Box<Details>>,
    /// Its size is to be read from its header.
    pub size_unknown: bool,
    /// Its header cannot be read: it goes by a made-up name, or the one in NVRAM, until it gets a new header.
    pub damaged: bool,
    /// Bytes it was last counted with, and the operation that used it last: see [`Objects`].
    counted: u32,
    used: u32,
}

impl Object {
    pub fn new(kind: Kind, parent: u32) -> Object {
        Object {
            kind,
            parent,
            header: NONE,
            size: 0,
            flash_size: 0,
            target: 0,
            links: 0,
            map: PageMap::default(),
            dir: (kind == Kind::Dir).then(Box::default),
            details: None,
            size_unknown: false,
            damaged: false,
            counted: 0,
            used: 0,
        }
    }

    /// Its pages, header and data.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        let header = (self.header != NONE).then_some(self.header);
        header.into_iter().chain(self.map.iter().map(|(_, page)| page))
    }

    /// Bytes of memory that it takes, with its place in the table.
    fn bytes(&self) -> usize {
        let text = |rest: &Rest| {
            let attributes = rest.attributes.iter().map(|(name, value)| 40 + name.len() + value.len());
            rest.alias.len() + attributes.sum::<usize>()
        };
        let details = self.details.as_deref().map_or(0, |details| {
            size_of::<Details>() + details.name.len() + details.rest.as_ref().map_or(0, text)
        });
        let dir = self.dir.as_deref().map_or(0, |dir| size_of::<Dir>() + dir.heap_bytes());
        size_of::<Object>() + self.map.heap_bytes() + details + dir
    }

    /// Whether it has a name, or had one when it was last seen.
    pub fn is_named(&self) -> bool {
        self.parent != UNLINKED && self.parent != DELETED
    }
}

/// A name that ends with a number. Formatting is 3 KB of code in firmware, which does none else.
pub fn numbered(name: &[u8], number: u32) -> Vec<u8> {
    let (mut digits, mut at, mut left) = ([b'0'; 10], 10, number);
    while at == 10 || left > 0 {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    [name, &digits[at..]].concat()
}

impl Details {
    /// In place of a header that cannot be read: a name that tells the object, nobody's but the owner of all.
    pub fn stand_in(id: u32, kind: Kind) -> Details {
        let mode = match kind {
            Kind::Dir if id == ROOT => 0o40_755,
            Kind::Dir => 0o40_700,
            Kind::Symlink => 0o120_777,
            Kind::Special => 0o10_000,
            Kind::File | Kind::HardLink | Kind::Unknown => 0o100_400,
        };
        let name = if id == ROOT { Vec::new() } else { numbered(b"damaged-", id) };
        Details { name: name.into(), mode, ..Details::default() }
    }

    pub fn from_header(header: Header) -> Details {
        Details {
            name: header.name,
            mode: header.mode,
            uid: header.uid,
            gid: header.gid,
            atime: header.atime,
            mtime: header.mtime,
            ctime: header.ctime,
            crtime: header.crtime,
            rdev: header.rdev,
            rest: Some(Rest { alias: header.alias, attributes: header.attributes }),
        }
    }
}

/// Objects of a group: neighbours by number, as the records of an NVRAM have them together.
pub(crate) const GROUP: u32 = 64;

/// A group of the table.
#[derive(Clone, Debug, Default)]
struct Slots {
    /// Which are in memory, a bit each; in order.
    here: u64,
    #[expect(clippy::vec_box, reason = "numbers come and go in the middle: pointers are moved, not objects")]
    objects: Vec<Box<Object>>,
    /// Which are in the NVRAM alone.
    stored: u64,
}

impl Slots {
    /// Where an object is, or would be.
    fn rank(&self, bit: u64) -> usize {
        (self.here & (bit - 1)).count_ones() as usize
    }
}

/// The numbers whose bits are set, of a group.
fn numbers(group: usize, bits: u64) -> impl Iterator<Item = u32> {
    (0..GROUP).filter(move |at| bits >> at & 1 == 1).map(move |at| group as u32 * GROUP + at)
}

/// The most numbers that are remembered as used since bytes were last counted.
const TOUCHED_MAX: usize = 256;

/// What memory may be taken.
#[derive(Clone, Debug, Default)]
struct Budget {
    /// Bytes; 0: any.
    most: usize,
    /// Bytes that objects were last counted with.
    bytes: usize,
    /// The operation under way: what it used stays.
    operation: u32,
    /// What may have grown since it was counted.
    touched: Vec<u32>,
    /// Links by what they stand for, of what is not here.
    links: Map<u32, u32>,
    /// What stays for another reason.
    pinned: Set<u32>,
    /// Objects that were put back.
    fetched: u64,
    /// A scan is under way: what has no header yet may go, too.
    scans: bool,
}

/// All objects, by number. Each is here, or, where memory is bounded, in the NVRAM alone: *stored*. What is dirty is
/// here; what is in a directory has it for its parent, and what is a link is counted by what it stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    slots: Vec<Slots>,
    count: u32,
    /// Where the search for a free number goes on.
    next: u32,
    /// Objects whose header on flash is out of date, and when they were last touched, in creations.
    dirty: Map<u32, u64>,
    /// Counts objects made: what was not touched between two of them is taken for finished.
    creations: u64,
    budget: Budget,
    /// Page tables of files are the paper's trees.
    #[cfg(feature = "paper")]
    trees: bool,
}

fn slot_of(id: u32) -> (usize, u64) {
    ((id / GROUP) as usize, 1 << (id % GROUP))
}

impl Objects {
    /// None yet, with so many bytes for them; 0: any.
    pub fn bounded(most: usize) -> Objects {
        Objects { budget: Budget { most, ..Budget::default() }, ..Objects::default() }
    }

    /// From now on the page table of a file that is put in is the paper's tree.
    #[cfg(feature = "paper")]
    pub fn with_trees(self, trees: bool) -> Objects {
        Objects { trees, ..self }
    }

    pub fn get(&self, id: u32) -> Option<&Object> {
        let (at, bit) = slot_of(id);
        let slots = self.slots.get(at)?;
        if slots.here & bit == 0 { None } else { slots.objects.get(slots.rank(bit)).map(|object| &**object) }
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Object> {
        let (at, bit) = slot_of(id);
        let slots = self.slots.get_mut(at)?;
        if slots.here & bit == 0 {
            return None;
        }
        let rank = slots.rank(bit);
        let object = slots.objects.get_mut(rank)?;
        self.budget.touch(id, object);
        Some(object)
    }

    /// As [`get`](Objects::get), of one that may be gone.
    pub fn find(&self, id: u32) -> Result<&Object> {
        self.get(id).ok_or(Error::Stale)
    }

    pub fn find_mut(&mut self, id: u32) -> Result<&mut Object> {
        self.get_mut(id).ok_or(Error::Stale)
    }

    /// Puts an object under a number up to [`MAX_ID`].
    pub fn insert(&mut self, id: u32, object: Object) {
        let mut object = Box::new(object);
        #[cfg(feature = "paper")]
        if self.trees && object.kind == Kind::File {
            object.map.become_tree();
        }
        self.budget.touch(id, &mut object);
        let slots = self.slots_of(id);
        let (_, bit) = slot_of(id);
        let (rank, is_new) = (slots.rank(bit), (slots.here | slots.stored) & bit == 0);
        slots.stored &= !bit;
        if slots.here & bit == 0 {
            slots.here |= bit;
            slots.objects.insert(rank, object);
        } else {
            let old = core::mem::replace(&mut slots.objects[rank], object);
            self.budget.bytes -= old.counted as usize;
        }
        self.count += u32::from(is_new);
        self.used(id);
    }

    fn slots_of(&mut self, id: u32) -> &mut Slots {
        let (at, _) = slot_of(id);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Slots::default);
        }
        &mut self.slots[at]
    }

    /// The number is in use.
    fn used(&mut self, id: u32) {
        if id >= FIRST_ID {
            self.next = self.next.max(id + 1);
        }
    }

    pub fn remove(&mut self, id: u32) -> Option<Object> {
        let object = self.take(id)?;
        self.count -= 1;
        self.dirty.remove(&id);
        self.budget.pinned.remove(&id);
        Some(*object)
    }

    fn take(&mut self, id: u32) -> Option<Box<Object>> {
        let (at, bit) = slot_of(id);
        let slots = self.slots.get_mut(at).filter(|slots| slots.here & bit != 0)?;
        let object = slots.objects.remove(slots.rank(bit));
        slots.here &= !bit;
        sorted::give_back(&mut slots.objects);
        self.budget.bytes -= object.counted as usize;
        Some(object)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Those in memory, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        let of_group = |(at, slots): (usize, &Slots)| numbers(at, slots.here);
        let ids = self.slots.iter().enumerate().flat_map(of_group);
        ids.zip(self.slots.iter().flat_map(|slots| slots.objects.iter().map(|object| &**object)))
    }

    /// The numbers in memory, in order.
    pub fn ids(&self) -> Vec<u32> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// The numbers in use, in order, in memory or not.
    pub fn all_ids(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().enumerate().flat_map(|(at, slots)| numbers(at, slots.here | slots.stored))
    }

    /// Groups of the table, used or not.
    pub fn groups(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether an object is in the NVRAM alone.
    pub fn is_stored(&self, id: u32) -> bool {
        let (at, bit) = slot_of(id);
        self.slots.get(at).is_some_and(|slots| slots.stored & bit != 0)
    }

    /// Whether some of a group are.
    pub fn has_stored_of(&self, group: u32) -> bool {
        self.slots.get(group as usize).is_some_and(|slots| slots.stored != 0)
    }

    /// Whether some are.
    pub fn has_stored(&self) -> bool {
        self.slots.iter().any(|slots| slots.stored != 0)
    }

    /// Whether there is an object of this number.
    pub fn exists(&self, id: u32) -> bool {
        self.is_stored(id) || self.get(id).is_some()
    }

    /// An object is in the NVRAM: what is not here is fetched when it is asked for.
    pub fn store(&mut self, id: u32) {
        let (_, bit) = slot_of(id);
        self.slots_of(id).stored |= bit;
        self.count += 1;
        self.used(id);
    }

    /// An object that was stored is here now.
    pub fn put_back(&mut self, id: u32, mut object: Object) {
        self.budget.fetched += 1;
        object.links = self.budget.links.remove(&id).unwrap_or(0);
        if let Some(dir) = object.dir.as_deref_mut() {
            dir.unload();
        }
        // As a replay has it: what has contents and no header, and a name, is kept in `lost+found`.
        object.damaged |= object.header == NONE && object.parent == LOST_FOUND;
        self.insert(id, object);
    }

    /// A link stands for an object, wherever that is.
    pub fn count_link(&mut self, target: u32) {
        if self.is_stored(target) {
            *self.budget.links.or_default(target) += 1;
        } else if let Some(object) = self.get_mut(target) {
            object.links += 1;
        }
    }

    /// An object is in memory until the file system is closed.
    pub fn pin(&mut self, id: u32) {
        self.budget.pinned.add(id);
    }

    /// A scan is under way, or is not any more. While it is, all that is known of an object without a header is what
    /// its record says.
    pub fn set_scanning(&mut self, scans: bool) {
        self.budget.scans = scans;
    }

    /// Whether memory is bounded.
    pub fn is_bounded(&self) -> bool {
        self.budget.most > 0
    }

    /// The operation under way uses an object.
    pub fn use_now(&mut self, id: u32) {
        if self.is_bounded() {
            self.get_mut(id);
        }
    }

    /// Whether the operation under way uses an object that is in memory.
    pub fn is_used(&self, id: u32) -> bool {
        self.get(id).is_some_and(|object| object.used == self.budget.operation)
    }

    /// It does so no more.
    pub fn unuse(&mut self, id: u32) {
        let before = self.budget.operation.wrapping_sub(1);
        if let Some(object) = self.get_mut(id) {
            object.used = before;
        }
    }

    /// Another operation begins: what the last one used may go.
    pub fn begin(&mut self) {
        self.budget.operation = self.budget.operation.wrapping_add(1);
    }

    /// Bytes that may be taken; 0: any.
    pub fn bound_bytes(&self) -> usize {
        self.budget.most
    }

    /// Bytes that may be taken, less those that are.
    pub fn room(&mut self) -> usize {
        match self.budget.most {
            0 => usize::MAX,
            most => most.saturating_sub(self.bytes()),
        }
    }

    /// Fails where all that may be taken is.
    pub fn check_room(&mut self) -> Result<()> {
        if self.room() == 0 { Err(Error::NoMemory) } else { Ok(()) }
    }

    /// Bytes that are taken.
    pub fn bytes(&mut self) -> usize {
        if self.budget.most == 0 {
            return self.iter().map(|(_, object)| object.bytes()).sum::<usize>() + self.table_bytes();
        }
        for id in core::mem::take(&mut self.budget.touched) {
            self.recount(id);
        }
        self.budget.bytes + self.table_bytes()
    }

    fn table_bytes(&self) -> usize {
        let pointers: usize =
            self.slots.iter().map(|slots| slots.objects.capacity() * size_of::<usize>()).sum();
        self.slots.capacity() * size_of::<Slots>()
            + pointers
            + self.dirty.heap_bytes()
            + self.budget.links.heap_bytes()
    }

    /// Objects that were put back.
    pub fn fetched(&self) -> u64 {
        self.budget.fetched
    }

    fn recount(&mut self, id: u32) {
        let (at, bit) = slot_of(id);
        let Some(slots) = self.slots.get_mut(at).filter(|slots| slots.here & bit != 0) else { return };
        let rank = slots.rank(bit);
        let object = &mut slots.objects[rank];
        let bytes = object.bytes();
        self.budget.bytes = self.budget.bytes - object.counted as usize + bytes;
        object.counted = bytes as u32;
    }

    /// Makes room for so many bytes, as far as can be: the contents of directories go, and of what the NVRAM was
    /// told of all; what was not used for longest first, and nothing that the operation under way used.
    pub fn make_room(&mut self, bytes: usize, is_told: impl Fn(u32) -> bool) -> bool {
        if self.room() >= bytes {
            return true;
        }
        // A quarter more, so that it is not done for each object.
        let wanted = bytes.saturating_add(self.budget.most / 4);
        let operation = self.budget.operation;
        let mut idle: Vec<(u32, u32)> = Vec::new();
        for (id, object) in self.iter() {
            let age = operation.wrapping_sub(object.used);
            let stays = age == 0 || self.dirty.contains_key(&id);
            if !stays {
                idle.push((age, id));
            }
        }
        sorted::sort(&mut idle);
        for (_, id) in idle.into_iter().rev() {
            if self.room() >= wanted {
                break;
            }
            self.let_go(id, &is_told);
        }
        self.room() >= bytes
    }

    fn let_go(&mut self, id: u32, is_told: &impl Fn(u32) -> bool) {
        let Some(object) = self.get(id) else { return };
        let is_told_without = self.budget.scans && object.map.count() > 0;
        let stays = id <= LOST_FOUND
            || object.header == NONE && !is_told_without
            || object.damaged
            || object.size_unknown
            || object.kind == Kind::File && object.size != object.flash_size
            || self.budget.pinned.contains_key(&id);
        if !stays && is_told(id) {
            let Some(object) = self.take(id) else { return };
            self.slots_of(id).stored |= slot_of(id).1;
            if object.links > 0 {
                self.budget.links.insert(id, object.links);
            }
        } else if let Some(object) = self.get_mut(id) {
            if object.header != NONE && !object.damaged {
                object.details = None;
            }
            if let Some(dir) = object.dir.as_deref_mut() {
                dir.unload();
            }
            let used = object.used;
            self.recount(id);
            // It was not used.
            if let Some(object) = self.get_mut(id) {
                object.used = used;
            }
        }
    }

    /// A free number; numbers are used again as late as possible.
    pub fn free_id(&mut self) -> Option<u32> {
        let start = if (FIRST_ID..=MAX_ID).contains(&self.next) { self.next } else { FIRST_ID };
        let id = (start..=MAX_ID).chain(FIRST_ID..start).find(|id| !self.exists(*id))?;
        self.next = id + 1;
        Some(id)
    }

    /// The header of an object that is there is out of date.
    pub fn touch(&mut self, id: u32) {
        self.dirty.insert(id, self.creations);
    }

    /// The header was written.
    pub fn written(&mut self, id: u32) {
        self.dirty.remove(&id);
    }

    /// The header that was written says less than memory knows.
    pub fn still_dirty(&mut self, id: u32, touched: u64) {
        self.dirty.insert(id, touched);
    }

    pub fn is_dirty(&self, id: u32) -> bool {
        self.dirty.contains_key(&id)
    }

    /// When it was touched, if it is dirty.
    pub fn touched(&self, id: u32) -> Option<u64> {
        self.dirty.get(&id).copied()
    }

    /// The numbers from `from` on that are dirty, in order.
    pub fn dirty_from(&self, from: u32) -> impl Iterator<Item = u32> {
        self.dirty.range(from..).map(|(id, _)| *id)
    }

    /// Another object is about to be made: those that were not touched since one before the last was are finished, most
    /// likely. These, and the oldest of those that are more than `most`, the oldest first.
    pub fn idle(&mut self, most: usize) -> Vec<u32> {
        let before = self.creations;
        self.creations += 1;
        let mut waiting: Vec<(u64, u32)> = self.dirty.iter().map(|(id, touched)| (*touched, *id)).collect();
        sorted::sort(&mut waiting);
        let too_many = waiting.len().saturating_sub(most);
        let idle = |(number, (touched, id)): (usize, (u64, u32))| {
            (touched < before || number < too_many).then_some(id)
        };
        waiting.into_iter().enumerate().filter_map(idle).collect()
    }

    pub fn dir(&self, id: u32) -> Result<&Dir> {
        self.find(id)?.dir.as_deref().ok_or(Error::NotDir)
    }

    pub fn dir_mut(&mut self, id: u32) -> Result<&mut Dir> {
        self.find_mut(id)?.dir.as_deref_mut().ok_or(Error::NotDir)
    }

    /// A directory that takes new names.
    pub fn living_dir(&self, id: u32) -> Result<()> {
        self.dir(id)?;
        if id != ROOT && !self.find(id)?.is_named() {
            return Err(Error::NotFound);
        }
        Ok(())
    }

    /// The name of an object whose details are in memory.
    pub fn name_of(&self, id: u32) -> &[u8] {
        self.get(id).and_then(|object| object.details.as_deref()).map_or(&[], |details| &details.name)
    }

    /// Directories know what is in them; where memory is bounded, when they are asked.
    pub fn build_dirs(&mut self) {
        for id in self.ids() {
            let is_bounded = self.is_bounded();
            let Some(object) = self.get_mut(id) else { continue };
            let (kind, parent) = (object.kind, object.parent);
            if is_bounded {
                object.dir.iter_mut().for_each(|dir| dir.unload());
            } else if id != ROOT
                && let Some(dir) = self.get_mut(parent).and_then(|object| object.dir.as_deref_mut())
            {
                dir.insert(id, 0, kind == Kind::Dir && id != LOST_FOUND);
            }
        }
    }

    pub fn add_entry(&mut self, dir: u32, entry: u32) -> Result<()> {
        let (is_dir, key) = (self.find(entry)?.kind == Kind::Dir, key(self.name_of(entry)));
        self.dir_mut(dir)?.insert(entry, key, is_dir);
        Ok(())
    }

    pub fn remove_entry(&mut self, dir: u32, entry: u32) -> Result<()> {
        let (is_dir, key) = (self.find(entry)?.kind == Kind::Dir, key(self.name_of(entry)));
        self.dir_mut(dir)?.remove(entry, key, is_dir);
        Ok(())
    }
}

impl Budget {
    /// An object may grow, by the operation under way.
    fn touch(&mut self, id: u32, object: &mut Object) {
        if self.most == 0 {
            return;
        }
        object.used = self.operation;
        if self.touched.iter().rev().take(4).all(|other| *other != id) {
            if self.touched.len() >= TOUCHED_MAX {
                sorted::sort(&mut self.touched);
                self.touched.dedup();
            }
            self.touched.push(id);
        }
    }
}

/// What is found out of all objects after a mount, each looked at once; see [`Census::add`].
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Directories, and links, a bit each by number.
    dirs: Vec<u64>,
    links: Vec<u64>,
    /// What a link with a name stands for: several times what has several.
    targets: Vec<u32>,
}

fn set_bit(bits: &mut Vec<u64>, id: u32) {
    let (at, bit) = slot_of(id);
    if bits.len() <= at {
        bits.resize(at + 1, 0);
    }
    bits[at] |= bit;
}

fn bit(bits: &[u64], id: u32) -> bool {
    let (at, bit) = slot_of(id);
    bits.get(at).is_some_and(|bits| bits & bit != 0)
}

/// What is to become of an object that has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// It has no name: flash has to say that it is gone before its number is given to another.
    Unnamed,
    /// What it is in is not there: it goes to `lost+found`.
    Homeless,
    /// A link to nothing: it loses its name.
    Dangling,
    /// What it stood for cannot be read: the name stays, to be seen and removed.
    Unreadable,
}

impl Census {
    pub fn add(&mut self, id: u32, object: &Object) {
        match object.kind {
            Kind::Dir => set_bit(&mut self.dirs, id),
            Kind::HardLink => set_bit(&mut self.links, id),
            _ => {}
        }
    }

    /// What is wrong with an object, now that all were looked at. Links with a name are counted.
    pub fn orphan(&mut self, id: u32, object: &Object, exists: impl Fn(u32) -> bool) -> Option<Orphan> {
        if object.kind == Kind::HardLink {
            if !exists(object.target) || bit(&self.links, object.target) {
                return Some(if object.damaged { Orphan::Unreadable } else { Orphan::Dangling });
            }
            if object.parent != UNLINKED {
                self.targets.push(object.target);
            }
        }
        let is_root = id == ROOT || id == LOST_FOUND;
        let has_dir = bit(&self.dirs, object.parent) && object.parent != id;
        match object.is_named() {
            false => Some(Orphan::Unnamed),
            true if !is_root && !has_dir => Some(Orphan::Homeless),
            true => None,
        }
    }

    /// What links with a name stand for.
    pub fn into_targets(self) -> Vec<u32> {
        self.targets
    }
}
