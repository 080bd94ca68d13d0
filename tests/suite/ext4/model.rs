//! What a file system should hold, in memory; and the three ways to compare: through the driver, and
//! through a mount by the kernel.

use super::rig::{Mount, Rig};
use bimetal::fs::Kind;
use bimetal::fs::ext4::ROOT_INO;
use bimetal::time::Stamp;
use bimetal::units::Ino;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

pub type Name = Vec<u8>;

/// An inode of the model.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub mtime: Stamp,
    pub data: Vec<u8>,
    pub names: BTreeMap<Name, Ino>,
    pub attrs: BTreeMap<Name, Vec<u8>>,
}

impl Node {
    pub fn new(kind: Kind) -> Node {
        Node {
            kind,
            perm: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            mtime: Stamp::default(),
            data: Vec::new(),
            names: BTreeMap::new(),
            attrs: BTreeMap::new(),
        }
    }
}

/// All inodes by number, and the names in directories.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<Ino, Node>,
    /// Times are only kept to the second.
    pub coarse: bool,
}

impl Model {
    /// What a file system begins with, `lost+found` and what else is there included.
    pub fn of(rig: &mut Rig) -> Model {
        let mut model = Model { nodes: BTreeMap::new(), coarse: false };
        model.take_in(rig, ROOT_INO);
        model
    }

    fn take_in(&mut self, rig: &mut Rig, ino: Ino) {
        let inode = rig.fs.inode(ino).expect("an inode");
        let mut node = Node::new(inode.kind());
        (node.perm, node.uid, node.gid) = (inode.perm(), inode.uid, inode.gid);
        (node.rdev, node.mtime) = (inode.rdev, inode.mtime);
        match node.kind {
            Kind::Dir => node.names = listing(rig, ino),
            Kind::File => node.data = rig.contents(ino).expect("contents"),
            Kind::Symlink => node.data = rig.fs.readlink(ino).expect("a target"),
            _ => {}
        }
        for name in rig.fs.list_xattrs(ino).expect("attributes") {
            let value = rig.fs.get_xattr(ino, &name).expect("a value");
            node.attrs.insert(name, value);
        }
        let below: Vec<Ino> = node.names.values().copied().collect();
        self.nodes.insert(ino, node);
        for ino in below {
            if !self.nodes.contains_key(&ino) {
                self.take_in(rig, ino);
            }
        }
    }

    pub fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("an inode of the model")
    }

    /// Names and subdirectories as `st_nlink` counts them.
    pub fn nlink(&self, ino: Ino) -> u32 {
        let dirs = |node: &Node| {
            node.names.values().filter(|child| self.nodes[child].kind == Kind::Dir).count() as u32
        };
        let node = &self.nodes[&ino];
        match node.kind {
            Kind::Dir => 2 + dirs(node),
            _ => {
                let named = |node: &Node| node.names.values().filter(|child| **child == ino).count();
                self.nodes.values().map(named).sum::<usize>() as u32
            }
        }
    }

    fn time(&self, stamp: Stamp) -> Stamp {
        if self.coarse { Stamp { nsec: 0, ..stamp } } else { stamp }
    }

    /// Whether another model holds the same names and contents.
    pub fn is_like(&self, other: &Model) -> bool {
        let look = |model: &Model| -> Vec<_> {
            let part = |(ino, node): (&Ino, &Node)| (*ino, node.data.clone(), node.names.clone(), node.perm);
            model.nodes.iter().map(part).collect()
        };
        look(self) == look(other)
    }

    /// Where it differs from another model, in a few words.
    pub fn difference(&self, other: &Model) -> String {
        for (ino, node) in &self.nodes {
            let Some(found) = other.nodes.get(ino) else {
                return format!("inode {ino} is missing: {node:.0?}");
            };
            if node.names != found.names {
                return format!("directory {ino} differs");
            }
            if node.data != found.data {
                let at = node.data.iter().zip(&found.data).position(|(a, b)| a != b);
                return format!(
                    "inode {ino}: {} and {} bytes, differ at {at:?}",
                    node.data.len(),
                    found.data.len()
                );
            }
            if node.perm != found.perm {
                return format!("inode {ino}: {:o} and {:o}", node.perm, found.perm);
            }
        }
        format!("{} inodes and {}", self.nodes.len(), other.nodes.len())
    }

    /// Compares with what the driver shows.
    pub fn compare(&self, rig: &mut Rig) {
        for (ino, node) in &self.nodes {
            let inode = rig.fs.inode(*ino).unwrap_or_else(|error| panic!("inode {ino}: {error}")).clone();
            assert_eq!(inode.kind(), node.kind, "inode {ino}");
            assert_eq!((inode.perm(), inode.uid, inode.gid), (node.perm, node.uid, node.gid), "inode {ino}");
            assert_eq!(inode.rdev, node.rdev, "inode {ino}");
            assert_eq!(inode.nlink, self.nlink(*ino), "inode {ino}");
            assert_eq!(self.time(inode.mtime), self.time(node.mtime), "inode {ino}");
            match node.kind {
                Kind::Dir => assert_eq!(listing(rig, *ino), node.names, "directory {ino}"),
                Kind::File => {
                    assert_eq!(inode.size, node.data.len() as u64, "inode {ino}");
                    let data = rig.contents(*ino).expect("contents");
                    assert!(data == node.data, "contents of inode {ino} differ");
                }
                Kind::Symlink => assert_eq!(rig.fs.readlink(*ino).expect("a target"), node.data),
                _ => {}
            }
            let names = rig.fs.list_xattrs(*ino).expect("attributes");
            let value = |name: Name| {
                let value = rig.fs.get_xattr(*ino, &name).expect("a value");
                (name, value)
            };
            let attrs: BTreeMap<Name, Vec<u8>> = names.into_iter().map(value).collect();
            assert_eq!(attrs, node.attrs, "attributes of inode {ino}");
        }
    }

    /// Compares with what the kernel shows under `mount`.
    pub fn compare_mounted(&self, mount: &Mount) {
        self.compare_path(mount.path(), ROOT_INO);
    }

    fn compare_path(&self, path: &Path, ino: Ino) {
        let node = &self.nodes[&ino];
        let meta =
            std::fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let shown = path.display();
        assert_eq!(meta.ino(), ino.0, "{shown}");
        assert_eq!(meta.mode() & 0o7777, u32::from(node.perm), "{shown}");
        assert_eq!((meta.uid(), meta.gid()), (node.uid, node.gid), "{shown}");
        assert_eq!(meta.nlink(), u64::from(self.nlink(ino)), "{shown}");
        let mtime = Stamp { sec: meta.mtime(), nsec: meta.mtime_nsec() as u32 };
        assert_eq!(self.time(mtime), self.time(node.mtime), "{shown}");
        match node.kind {
            Kind::Dir => {
                let mut names = BTreeMap::new();
                for entry in std::fs::read_dir(path).expect("a listing").flatten() {
                    let name = entry.file_name().as_bytes().to_vec();
                    let child = node.names.get(&name).copied();
                    let child = child.unwrap_or_else(|| panic!("{shown} has {:?}", entry.file_name()));
                    self.compare_path(&entry.path(), child);
                    names.insert(name, child);
                }
                assert_eq!(names.len(), node.names.len(), "{shown}");
            }
            Kind::File => assert!(std::fs::read(path).expect("contents") == node.data, "{shown} differs"),
            Kind::Symlink => {
                assert_eq!(std::fs::read_link(path).expect("a link").as_os_str().as_bytes(), node.data);
            }
            Kind::CharDevice | Kind::BlockDevice => {
                let rdev = meta.rdev();
                let (major, minor) = (libc::major(rdev), libc::minor(rdev));
                assert_eq!(minor & 0xFF | major << 8 | (minor & !0xFF) << 12, node.rdev, "{shown}");
                assert_eq!(meta.file_type().is_char_device(), node.kind == Kind::CharDevice);
            }
            Kind::Fifo => assert!(meta.file_type().is_fifo()),
            Kind::Socket => assert!(meta.file_type().is_socket()),
        }
        for (name, value) in &node.attrs {
            assert_eq!(xattr(path, name).as_ref(), Some(value), "{shown} {}", String::from_utf8_lossy(name));
        }
    }
}

/// A directory's names but `.` and `..`, each once.
pub fn listing(rig: &mut Rig, ino: Ino) -> BTreeMap<Name, Ino> {
    let mut names = BTreeMap::new();
    let mut from = 0;
    loop {
        let (start, mut count) = (from, 0);
        let mut visit = |entry: bimetal::fs::DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                assert!(names.insert(entry.name.to_vec(), entry.ino).is_none(), "a name twice");
            }
            from = entry.next;
            count += 1;
            count < 97
        };
        rig.fs.readdir(ino, start, &mut visit).expect("a listing");
        if count < 97 {
            return names;
        }
    }
}

fn xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let name = CString::new(name).expect("no NUL");
    let mut value = vec![0_u8; 65_536];
    // SAFETY: both strings end with NUL, and the buffer is as long as said.
    let len =
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let len = usize::try_from(len).ok()?;
    value.truncate(len);
    Some(value)
}
