//! The model of a tree: each moment since the last promise, and what each file held since it was last promised.

use super::*;

/// A number that the model gives an inode, and to no other one.
pub type Id = usize;

/// The root.
pub const TOP: Id = 0;

/// What an inode is, but for its links and contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub ino: Ino,
    pub kind: Kind,
    pub perm: u16,
    pub owner: (u32, u32),
    /// Those of [`SETTABLE`].
    pub flags: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub target: String,
}

impl Inode {
    /// Whether any of these flags is set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Whether it is immutable or may only grow.
    pub fn is_fixed(&self) -> bool {
        self.has(flag::IMMUTABLE | flag::APPEND)
    }
}

/// The tree at one moment: whatever has a name.
#[derive(Clone)]
pub struct Moment {
    pub inodes: BTreeMap<Id, Inode>,
    /// By directory and name.
    pub names: BTreeMap<(Id, String), Id>,
}

impl Moment {
    pub fn named(&self, dir: Id, name: &str) -> Option<Id> {
        self.names.get(&(dir, name.to_string())).copied()
    }

    pub fn inode_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).unwrap()
    }

    fn children(&self, dir: Id) -> impl Iterator<Item = (&String, Id)> {
        let below = (dir, String::new())..(dir + 1, String::new());
        self.names.range(below).map(|((_, name), id)| (name, *id))
    }

    pub fn is_empty(&self, dir: Id) -> bool {
        self.children(dir).next().is_none()
    }

    /// Whether this is a directory or below it.
    pub fn is_below(&self, id: Id, dir: Id) -> bool {
        let above = |id| self.names.iter().find(|(_, child)| **child == id).map(|((dir, _), _)| *dir);
        std::iter::successors(Some(id), |id| above(*id)).any(|id| id == dir)
    }

    /// Takes a name away; the inode goes with its last one.
    pub fn remove(&mut self, dir: Id, name: &str) {
        let gone = self.names.remove(&(dir, name.to_string())).unwrap();
        self.forget(gone);
    }

    /// Gives a name to an inode, and takes it from the one that has it.
    pub fn set(&mut self, dir: Id, name: &str, id: Id) {
        if let Some(old) = self.names.insert((dir, name.to_string()), id) {
            self.forget(old);
        }
    }

    fn forget(&mut self, id: Id) {
        if self.names.values().all(|named| *named != id) {
            self.inodes.remove(&id);
        }
    }

    fn links(&self, id: Id) -> u32 {
        let is_dir = |id: Id| self.inodes[&id].kind == Kind::Dir;
        match is_dir(id) {
            true => 2 + self.children(id).filter(|(_, child)| is_dir(*child)).count() as u32,
            false => self.names.values().filter(|named| **named == id).count() as u32,
        }
    }

    /// Whatever has a name, by path.
    fn paths(&self) -> BTreeMap<String, Id> {
        let mut paths = BTreeMap::new();
        let mut dirs = vec![(TOP, String::new())];
        while let Some((dir, above)) = dirs.pop() {
            for (name, id) in self.children(dir) {
                let path = format!("{above}/{name}");
                if self.inodes[&id].kind == Kind::Dir {
                    dirs.push((id, path.clone()));
                }
                paths.insert(path, id);
            }
        }
        paths
    }
}

/// What a file held, from what was last promised of it on; each version has a number.
pub struct Contents {
    first: usize,
    versions: Vec<Vec<u8>>,
}

impl Contents {
    pub fn of(bytes: Vec<u8>) -> Contents {
        Contents { first: 0, versions: vec![bytes] }
    }

    pub fn now(&self) -> &Vec<u8> {
        self.versions.last().unwrap()
    }

    pub fn push(&mut self, bytes: Vec<u8>) {
        self.versions.push(bytes);
    }

    /// The number of the newest.
    fn number(&self) -> usize {
        self.first + self.versions.len() - 1
    }

    /// None before this is there any more.
    fn promise(&mut self, number: usize) {
        self.versions.drain(..number.saturating_sub(self.first));
        self.first = self.first.max(number);
    }

    /// Whether it may be this: a size that it had, and at each place a byte that was there.
    fn may_be(&self, found: &[u8]) -> bool {
        self.versions.iter().any(|version| version == found)
            || self.versions.iter().any(|version| version.len() == found.len())
                && (0..found.len()).all(|at| self.had(at, found[at]))
    }

    fn had(&self, at: usize, byte: u8) -> bool {
        self.versions.iter().any(|version| version.get(at) == Some(&byte))
    }

    /// How it differs from all that it may be.
    fn difference(&self, path: &str, found: &[u8]) -> String {
        let sizes: Vec<usize> = self.versions.iter().map(Vec::len).collect();
        let first = (0..found.len()).find(|at| !self.had(*at, found[*at]));
        format!("{path}: {} bytes for {sizes:?}, the first that it never had is {first:?}", found.len())
    }
}

/// How far everything was when something began.
pub struct Mark {
    moment: usize,
    contents: Vec<(Id, usize)>,
}

pub struct Model {
    pub moments: Vec<Moment>,
    /// None before this moment is there any more.
    promised: usize,
    pub contents: BTreeMap<Id, Contents>,
    next: Id,
}

impl Model {
    /// Of an empty tree.
    pub fn new() -> Model {
        let root = Inode {
            ino: ROOT_INO,
            kind: Kind::Dir,
            perm: 0o755,
            owner: (0, 0),
            flags: 0,
            xattrs: BTreeMap::new(),
            target: String::new(),
        };
        let first = Moment { inodes: BTreeMap::from([(TOP, root)]), names: BTreeMap::new() };
        Model { moments: vec![first], promised: 0, contents: BTreeMap::new(), next: TOP + 1 }
    }

    pub fn now(&self) -> &Moment {
        self.moments.last().unwrap()
    }

    pub fn change(&mut self, change: impl FnOnce(&mut Moment)) {
        let mut moment = self.now().clone();
        change(&mut moment);
        self.moments.push(moment);
    }

    pub fn make(&mut self, dir: Id, name: &str, inode: Inode) {
        let id = self.next;
        self.next += 1;
        if inode.kind == Kind::File {
            self.contents.insert(id, Contents::of(Vec::new()));
        }
        self.change(|moment| {
            moment.inodes.insert(id, inode);
            moment.set(dir, name, id);
        });
    }

    pub fn contents_mut(&mut self, id: Id) -> &mut Contents {
        self.contents.get_mut(&id).unwrap()
    }

    pub fn mark(&self) -> Mark {
        let contents = self.contents.iter().map(|(id, contents)| (*id, contents.number())).collect();
        Mark { moment: self.moments.len() - 1, contents }
    }

    /// All that there was by then is promised.
    pub fn promise(&mut self, mark: &Mark) {
        self.promised = self.promised.max(mark.moment);
        for (id, number) in &mark.contents {
            self.contents_mut(*id).promise(*number);
        }
    }

    pub fn promise_all(&mut self) {
        self.promise(&self.mark());
    }

    /// What an fsync promises: all changes of the tree, and what is in this file.
    pub fn promise_file(&mut self, id: Id) {
        self.promised = self.moments.len() - 1;
        if let Some(contents) = self.contents.get_mut(&id) {
            contents.promise(contents.number());
        }
    }

    /// The newest moment that what was found may be of.
    ///
    /// # Errors
    /// How it differs from the moment it is most like.
    pub fn moment_of(&self, found: &Found) -> std::result::Result<usize, String> {
        let (mut least, mut why) = (usize::MAX, String::new());
        for number in (self.promised..self.moments.len()).rev() {
            let differences = self.differences(&self.moments[number], found);
            if differences.is_empty() {
                return Ok(number);
            }
            if differences.len() < least {
                least = differences.len();
                why = format!("moment {number}: {differences:#?}");
            }
        }
        Err(format!("none of the moments {}..{} is found; {why}", self.promised, self.moments.len()))
    }

    fn differences(&self, moment: &Moment, found: &Found) -> Vec<String> {
        let paths = moment.paths();
        let mut differences: Vec<String> = found
            .keys()
            .filter(|path| !paths.contains_key(*path))
            .map(|path| format!("{path} is there"))
            .collect();
        for (path, id) in &paths {
            let Some(entry) = found.get(path) else {
                differences.push(format!("{path} is gone"));
                continue;
            };
            let (inode, links) = (&moment.inodes[id], moment.links(*id));
            if entry.inode != *inode || entry.links != links {
                let found = format!("{:?}, {} links", entry.inode, entry.links);
                differences.push(format!("{path}: {found} for {inode:?}, {links} links"));
            }
            if let Some(contents) = self.contents.get(id)
                && !contents.may_be(&entry.contents)
            {
                differences.push(contents.difference(path, &entry.contents));
            }
        }
        differences
    }

    /// What was found at a moment is all that there is from now on.
    pub fn go_on_from(&mut self, number: usize, found: &Found) {
        let moment = self.moments.swap_remove(number);
        let is_file = |(path, id): (String, Id)| {
            let is_file = self.contents.contains_key(&id);
            is_file.then(|| (id, Contents::of(found[&path].contents.clone())))
        };
        self.contents = moment.paths().into_iter().filter_map(is_file).collect();
        self.moments = vec![moment];
        self.promised = 0;
    }
}

/// What is found under a path.
pub struct Entry {
    inode: Inode,
    links: u32,
    contents: Vec<u8>,
}

/// All that a mount shows, by path.
pub type Found = BTreeMap<String, Entry>;

pub fn look(fs: &NfHybrid) -> Result<Found> {
    let mut found = Found::new();
    let mut dirs = vec![(ROOT_INO, String::new())];
    while let Some((dir, above)) = dirs.pop() {
        for name in names(fs, dir)? {
            let entry = look_at(fs, dir, &name)?;
            let path = format!("{above}/{name}");
            if entry.inode.kind == Kind::Dir {
                dirs.push((entry.inode.ino, path.clone()));
            }
            found.insert(path, entry);
        }
    }
    Ok(found)
}

fn names(fs: &NfHybrid, dir: Ino) -> Result<Vec<String>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })?;
    names.retain(|name| !matches!(&name[..], "." | ".." | "lost+found"));
    Ok(names)
}

fn look_at(fs: &NfHybrid, dir: Ino, name: &str) -> Result<Entry> {
    let attr = fs.lookup(dir, name.as_bytes())?;
    let mut xattrs = BTreeMap::new();
    // Rules are kept in others.
    for name in fs.listxattr(attr.ino)?.into_iter().filter(|name| name.starts_with(b"user.")) {
        let value = fs.getxattr(attr.ino, &name)?;
        xattrs.insert(name, value);
    }
    let target = match attr.kind {
        Kind::Symlink => String::from_utf8_lossy(&fs.readlink(attr.ino)?).into_owned(),
        _ => String::new(),
    };
    let contents = match attr.kind {
        Kind::File => fs.read(attr.ino, 0, attr.size as usize)?.get()?.concat(),
        _ => Vec::new(),
    };
    let inode = Inode {
        ino: attr.ino,
        kind: attr.kind,
        perm: attr.perm,
        owner: (attr.uid, attr.gid),
        flags: fs.flags(attr.ino)? & SETTABLE,
        xattrs,
        target,
    };
    fs.forget(attr.ino, 1);
    Ok(Entry { inode, links: attr.nlink, contents })
}
