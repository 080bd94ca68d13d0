//! Objects: files, directories, links, special files, as they are in memory.

use crate::dir::{Dir, key};
use crate::error::{Error, Result};
use crate::header::{Attribute, Header};
use crate::map::PageMap;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
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
        }
    }

    /// Whether it has a name, or had one when it was last seen.
    pub fn is_named(&self) -> bool {
        self.parent != UNLINKED && self.parent != DELETED
    }
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
        let name = if id == ROOT { alloc::string::String::new() } else { alloc::format!("damaged-{id}") };
        Details { name: name.into_bytes().into(), mode, ..Details::default() }
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

/// All objects, by number. What is dirty is there; what is in a directory has it for its parent, and what is a link
/// is counted by what it stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    slots: Vec<Option<Box<Object>>>,
    count: u32,
    /// Where the search for a free number goes on.
    next: u32,
    /// Objects whose header on flash is out of date, and when they were last touched, in creations.
    dirty: BTreeMap<u32, u64>,
    /// Counts objects made: what was not touched between two of them is taken for finished.
    creations: u64,
}

impl Objects {
    pub fn get(&self, id: u32) -> Option<&Object> {
        self.slots.get(id as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Object> {
        self.slots.get_mut(id as usize)?.as_deref_mut()
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
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        if self.slots[at].replace(Box::new(object)).is_none() {
            self.count += 1;
        }
        if id >= FIRST_ID {
            self.next = self.next.max(id + 1);
        }
    }

    pub fn remove(&mut self, id: u32) -> Option<Object> {
        let object = self.slots.get_mut(id as usize)?.take()?;
        self.count -= 1;
        self.dirty.remove(&id);
        Some(*object)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.slots.iter().enumerate().filter_map(|(id, slot)| Some((id as u32, slot.as_deref()?)))
    }

    /// The numbers in use, in order.
    pub fn ids(&self) -> Vec<u32> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// A free number; numbers are used again as late as possible.
    pub fn free_id(&mut self) -> Option<u32> {
        let start = if (FIRST_ID..=MAX_ID).contains(&self.next) { self.next } else { FIRST_ID };
        let id = (start..=MAX_ID).chain(FIRST_ID..start).find(|id| self.get(*id).is_none())?;
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
        waiting.sort_unstable();
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

    /// The entry of a name in a directory whose names are loaded.
    pub fn entry(&self, dir: u32, name: &[u8]) -> Result<Option<u32>> {
        Ok(self.dir(dir)?.find(key(name), |id| self.name_of(id) == name))
    }

    /// What an entry stands for.
    pub fn resolve(&self, entry: u32) -> Result<u32> {
        let object = self.find(entry)?;
        Ok(if object.kind == Kind::HardLink { object.target } else { entry })
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

    /// One of the links that stand for an object.
    pub fn link_of(&self, id: u32) -> Result<u32> {
        let is_link =
            |object: &Object| object.kind == Kind::HardLink && object.target == id && object.is_named();
        let link = self.iter().find(|(_, object)| is_link(object)).map(|(link, _)| link);
        link.ok_or(Error::Corrupt { what: "object", why: "its links are gone", at: u64::from(id) })
    }

    /// Whether a directory is an ancestor of another, or the same.
    pub fn is_below(&self, mut dir: u32, ancestor: u32) -> bool {
        // No chain is longer than there are objects.
        for _ in 0..=self.count {
            if dir == ancestor {
                return true;
            }
            match self.get(dir) {
                Some(object) if dir != ROOT => dir = object.parent,
                _ => return false,
            }
        }
        false
    }

    /// The pages of all objects, headers and data.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.iter().flat_map(|(_, object)| {
            let header = (object.header != NONE).then_some(object.header);
            header.into_iter().chain(object.map.iter().map(|(_, page)| page))
        })
    }

    /// After objects were found by number: what has no directory goes to `lost+found`, a link to nothing loses its name.
    /// Returns what has none: flash has to say that it is gone before its number is given to another.
    pub fn hang_up_orphans(&mut self) -> Vec<u32> {
        let mut unnamed = Vec::new();
        for id in self.ids() {
            let Some(object) = self.get(id) else { continue };
            let (parent, target, damaged) = (object.parent, object.target, object.damaged);
            if object.kind == Kind::HardLink && self.get(target).is_none_or(|o| o.kind == Kind::HardLink) {
                let Some(object) = self.get_mut(id) else { continue };
                match damaged {
                    // What it stood for cannot be read: the name stays, to be seen and removed.
                    true => object.kind = Kind::File,
                    false => object.parent = UNLINKED,
                }
            }
            if !self.get(id).is_some_and(Object::is_named) {
                unnamed.push(id);
                continue;
            }
            let has_dir = self.get(parent).is_some_and(|dir| dir.kind == Kind::Dir);
            if id != ROOT
                && id != LOST_FOUND
                && (!has_dir || parent == id)
                && let Some(object) = self.get_mut(id)
            {
                object.parent = LOST_FOUND;
            }
        }
        unnamed
    }

    /// After objects were found by number: directories know what is in them, and what has links how many.
    pub fn build_dirs(&mut self) {
        for id in self.ids() {
            let Some(object) = self.get(id) else { continue };
            let (kind, parent, target) = (object.kind, object.parent, object.target);
            if id != ROOT
                && let Some(dir) = self.get_mut(parent).and_then(|object| object.dir.as_deref_mut())
            {
                dir.insert(id, 0, kind == Kind::Dir && id != LOST_FOUND);
            }
            if kind == Kind::HardLink
                && parent != UNLINKED
                && let Some(object) = self.get_mut(target)
            {
                object.links += 1;
            }
        }
    }
}
