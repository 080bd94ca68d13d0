//! Objects: files, directories, links, special files, as they are in memory.

use crate::header::{Attribute, Header};
use crate::map::PageMap;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hashbrown::HashTable;

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

/// The children of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    pub children: BTreeSet<u32>,
    /// How many of them are directories.
    pub subdirs: u32,
    /// By name, once all names are loaded.
    pub names: Option<HashTable<u32>>,
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
    /// The header on flash is out of date.
    pub dirty: bool,
    /// When it was last written to, in creations.
    pub touched: u64,
    /// Its size is to be read from its header.
    pub size_unknown: bool,
    /// Its header cannot be read: it goes by a made-up name, or the one in NVRAM, until it gets a new header.
    pub damaged: bool,
    /// Pages promised to it, from and to.
    pub reserved: Vec<(u32, u32)>,
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
            dirty: false,
            touched: 0,
            size_unknown: false,
            damaged: false,
            reserved: Vec::new(),
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

/// All objects, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    slots: Vec<Option<Box<Object>>>,
    count: u32,
    /// Where the search for a free number goes on.
    next: u32,
}

impl Objects {
    pub fn get(&self, id: u32) -> Option<&Object> {
        self.slots.get(id as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Object> {
        self.slots.get_mut(id as usize)?.as_deref_mut()
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
}
