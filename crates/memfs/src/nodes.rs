//! The inodes of memfs: what one holds, and the vector they lie in.

use super::data::Data;
use super::dir::Dir;
use super::{Id, ROOT, SIZE_MAX};
use bimetal_base::runtime::Live;
use bimetal_base::time::Stamp;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_vfs::adapter::Mode;
use bimetal_vfs::{Attr, Kind};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// The present, as inodes keep it.
pub(super) fn now() -> Stamp {
    Live::wall_clock()
}

/// What an inode holds besides its attributes.
#[derive(Debug)]
pub(super) enum Body {
    File(Data),
    Dir(Box<Dir>),
    Link(Box<[u8]>),
    /// A device (with its number), pipe or socket (zero).
    Device(u32),
}

type Xattr = (Box<[u8]>, Box<[u8]>);

/// An inode.
#[derive(Debug)]
pub(super) struct Node {
    pub body: Body,
    pub mode: Mode,
    pub nlink: u32,
    pub generation: u32,
    /// References given out by `lookup`, `create` and `link`.
    pub refs: u64,
    /// Of a directory: where `..` leads.
    pub parent: Id,
    pub size: u64,
    pub atime: Stamp,
    pub mtime: Stamp,
    pub ctime: Stamp,
    crtime: Stamp,
    xattrs: Vec<Xattr>,
}

impl Node {
    /// A node with one name (a directory: also its own `.`), made now.
    pub fn new(parent: Id, mode: Mode, body: Body) -> Node {
        let time = now();
        let size = match &body {
            Body::Link(target) => target.len() as u64,
            _ => 0,
        };
        Node {
            body,
            mode,
            nlink: if mode.kind == Kind::Dir { 2 } else { 1 },
            generation: 0,
            refs: 0,
            parent,
            size,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            xattrs: Vec::new(),
        }
    }

    pub fn attr(&self, id: Id) -> Attr {
        let size = match &self.body {
            Body::Dir(dir) => 64 * (dir.len() as u64 + 2),
            _ => self.size,
        };
        let Mode { kind, perm, uid, gid } = self.mode;
        Attr {
            ino: id.into(),
            generation: self.generation,
            size,
            blocks: self.pages() * 8,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
            kind,
            perm,
            nlink: self.nlink,
            uid,
            gid,
            rdev: if let Body::Device(number) = self.body { number } else { 0 },
            blksize: 4096,
        }
    }

    /// Space taken, in pages.
    pub fn pages(&self) -> u64 {
        if let Body::File(data) = &self.body { data.pages() } else { 0 }
    }

    pub fn data(&self) -> Result<&Data> {
        match &self.body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Error::IsDir),
            _ => Err(Error::BadArgument),
        }
    }

    pub fn data_mut(&mut self) -> Result<&mut Data> {
        match &mut self.body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Error::IsDir),
            _ => Err(Error::BadArgument),
        }
    }

    /// Notes an access the way `relatime` does: once after each change, and once a day.
    pub fn accessed(&mut self) {
        let time = now();
        if self.atime <= self.mtime || self.atime <= self.ctime || time.sec - self.atime.sec >= DAY_SECONDS {
            self.atime = time;
        }
    }

    /// Cuts or extends the contents.
    pub fn resize(&mut self, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Error::TooLarge);
        }
        let shorter = size < self.size;
        let data = self.data_mut()?;
        if shorter {
            data.truncate(size);
        }
        self.size = size;
        Ok(())
    }

    /// Notes a change of contents, or of the names in a directory.
    pub fn changed(&mut self) {
        self.mtime = now();
        self.ctime = self.mtime;
    }

    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.iter().find(|(own, _)| **own == *name).map(|(_, value)| &value[..])
    }

    pub fn xattr_names(&self) -> impl Iterator<Item = &[u8]> {
        self.xattrs.iter().map(|(name, _)| &name[..])
    }

    pub fn set_xattr(&mut self, name: &[u8], value: &[u8]) {
        match self.xattrs.iter_mut().find(|(own, _)| **own == *name) {
            Some((_, old)) => *old = value.into(),
            None => self.xattrs.push((name.into(), value.into())),
        }
    }

    /// `false` if it was not there.
    pub fn remove_xattr(&mut self, name: &[u8]) -> bool {
        let before = self.xattrs.len();
        self.xattrs.retain(|(own, _)| **own != *name);
        self.xattrs.len() < before
    }
}

/// How many inodes lie together; a vector of all would be copied as it grows.
const BLOCK: usize = 256;

/// All inodes.
pub(super) struct Nodes {
    blocks: Vec<Vec<Option<Node>>>,
    free: Vec<Id>,
    live: u64,
    /// Generation of the next inode; grows with every reuse of a place.
    generation: u32,
}

impl Nodes {
    pub fn new(root: Node) -> Nodes {
        let mut nodes = Nodes { blocks: Vec::new(), free: Vec::new(), live: 0, generation: 1 };
        nodes.add_block();
        nodes.add(root).expect("an empty vector has room");
        nodes
    }

    fn place(&self, id: Id) -> Option<&Node> {
        let index = id.0 as usize;
        self.blocks.get(index / BLOCK)?[index % BLOCK].as_ref()
    }

    /// The place of an inode number that means something.
    pub fn id(&self, ino: Ino) -> Result<Id> {
        let place = ino.0.checked_sub(1).and_then(|place| u32::try_from(place).ok()).map(Id);
        place.filter(|id| self.place(*id).is_some()).ok_or(Error::Stale)
    }

    pub fn get(&self, id: Id) -> &Node {
        self.place(id).expect("an inode that a name or a number stands for")
    }

    pub fn get_mut(&mut self, id: Id) -> &mut Node {
        let index = id.0 as usize;
        self.blocks[index / BLOCK][index % BLOCK]
            .as_mut()
            .expect("an inode that a name or a number stands for")
    }

    pub fn add(&mut self, mut node: Node) -> Result<Id> {
        if self.free.is_empty() {
            if self.blocks.len() >= u32::MAX as usize / BLOCK {
                return Err(Error::NoSpace("all inode numbers are used"));
            }
            self.add_block();
        }
        let id = self.free.pop().ok_or(Error::NoSpace("all inode numbers are used"))?;
        node.generation = self.generation;
        self.blocks[id.0 as usize / BLOCK][id.0 as usize % BLOCK] = Some(node);
        self.live += 1;
        Ok(id)
    }

    fn add_block(&mut self) {
        let first = (self.blocks.len() * BLOCK) as u32;
        self.blocks.push((0..BLOCK).map(|_| None).collect());
        self.free.extend((first..first + BLOCK as u32).rev().map(Id));
    }

    pub fn free(&mut self, id: Id) {
        debug_assert_ne!(id, ROOT);
        self.blocks[id.0 as usize / BLOCK][id.0 as usize % BLOCK] = None;
        self.free.push(id);
        self.live -= 1;
        self.generation = self.generation.wrapping_add(1);
    }

    /// How many inodes there are.
    pub fn live(&self) -> u64 {
        self.live
    }

    pub fn iter(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.blocks.iter().flatten().zip(0..).filter_map(|(node, place)| Some((Id(place), node.as_ref()?)))
    }
}
