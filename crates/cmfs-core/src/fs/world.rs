//! What the tests of the file system share: small parts, a model of what files should hold, and seeded work.

use super::{Config, Fs, Layout, NewObject};
use crate::error::Error;
use crate::media::{Geometry, Nand, Nvram};
use crate::object::{Kind, ROOT};
use crate::ram::{RamNand, RamNvram};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use std::format;
use std::string::String;

pub(super) type TestFs<N = RamNand, V = RamNvram> = Fs<N, V>;

pub(super) const GEOMETRY: Geometry =
    Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 32 };

/// Shapes of parts: the usual, small blocks, small pages, large pages, many small blocks.
pub(super) const GEOMETRIES: [Geometry; 5] = [
    Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 16 },
    Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 16, blocks: 24 },
    Geometry { page_bytes: 1024, spare_bytes: 32, pages_per_block: 32, blocks: 24 },
    Geometry { page_bytes: 4096, spare_bytes: 128, pages_per_block: 64, blocks: 14 },
    Geometry { page_bytes: 2048, spare_bytes: 128, pages_per_block: 8, blocks: 64 },
];

/// Numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

pub(super) fn node(kind: Kind) -> NewObject<'static> {
    let mode = match kind {
        Kind::Dir => 0o40_755,
        Kind::Symlink => 0o120_777,
        Kind::Special => 0o10_644,
        _ => 0o100_644,
    };
    NewObject { kind, mode, uid: 1, gid: 2, rdev: 0, target: b"somewhere/else" }
}

pub(super) fn make(geometry: Geometry, nvram_bytes: usize, config: Config) -> TestFs {
    let nand = RamNand::new(geometry);
    let nvram = RamNvram::new(nvram_bytes, nand.power());
    Fs::format(nand, Some(nvram), config, [7; 16], true).expect("a new file system")
}

pub(super) fn small(layout: Layout) -> Config {
    Config { layout, cache_pages: 4, reserve_blocks: 4, wear_limit: 8, ..Config::default() }
}

/// Closes and opens, however it ends.
pub(super) fn reopen(fs: TestFs, clean: bool) -> TestFs {
    let config = *fs.config();
    let (nand, nvram) = if clean { fs.close().expect("a clean end") } else { fs.into_media() };
    Fs::open(nand, nvram, config).expect("it opens")
}

/// What a name stands for.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Thing {
    /// Of a file its contents, of a symbolic link its target.
    pub contents: Vec<u8>,
    pub is_link: bool,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A step that is all or nothing: two names, and the objects they stood for (the second was replaced, or swapped).
#[derive(Clone)]
struct Atomic {
    names: [String; 2],
    ids: [u32; 2],
    swaps: bool,
}

/// The model: things by path (`dir/name`), several paths a thing, as they are and as they were at the last sync.
#[derive(Clone, Default)]
pub(super) struct World {
    pub names: BTreeMap<String, u32>,
    pub things: BTreeMap<u32, Thing>,
    next: u32,
    synced_names: BTreeMap<String, u32>,
    synced_things: BTreeMap<u32, Thing>,
    /// Names that were changed since the last sync.
    touched: BTreeSet<String>,
    /// Things that were.
    changed: BTreeSet<u32>,
    /// Names that were removed or moved away since, and not made again.
    gone: BTreeSet<String>,
    /// Under way.
    atomic: Option<Atomic>,
}

/// Seeded bytes.
fn noise(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_add(random.below(255) as u8)).collect()
}

impl World {
    fn dir<N: Nand, V: Nvram>(fs: &mut TestFs<N, V>, path: &str) -> Result<u32, Error> {
        let (dir, _) = path.split_once('/').unwrap_or(("", path));
        match fs.lookup(ROOT, dir.as_bytes()) {
            Err(Error::NotFound) => fs.create(ROOT, dir.as_bytes(), &node(Kind::Dir)),
            found => found,
        }
    }

    fn name(path: &str) -> &[u8] {
        path.split_once('/').map_or(path, |(_, name)| name).as_bytes()
    }

    /// The object of a path, and the thing it is in the model; a file is made where nothing is.
    fn open<N: Nand, V: Nvram>(&mut self, fs: &mut TestFs<N, V>, path: &str) -> Result<(u32, u32), Error> {
        let dir = World::dir(fs, path)?;
        if let Some(thing) = self.names.get(path) {
            return Ok((fs.lookup(dir, World::name(path))?, *thing));
        }
        self.touch(path);
        let id = fs.create(dir, World::name(path), &node(Kind::File))?;
        Ok((id, self.adopt(path, Thing::default())))
    }

    /// What becomes of a name is open until the next sync.
    fn touch(&mut self, path: &str) {
        self.touched.insert(path.into());
        self.gone.remove(path);
    }

    fn adopt(&mut self, path: &str, thing: Thing) -> u32 {
        self.next += 1;
        self.things.insert(self.next, thing);
        self.names.insert(path.into(), self.next);
        self.next
    }

    fn is_link(&self, path: &str) -> bool {
        self.names.get(path).is_some_and(|thing| self.things[thing].is_link)
    }

    /// A file, and the model's contents of it; both are about to change.
    fn change<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
    ) -> Result<(u32, &mut Thing), Error> {
        let (id, thing) = self.open(fs, path)?;
        self.changed.insert(thing);
        Ok((id, self.things.get_mut(&thing).expect("a thing")))
    }

    pub fn write<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        offset: usize,
        data: &[u8],
    ) -> Result<(), Error> {
        if self.is_link(path) {
            return Ok(());
        }
        let (id, thing) = self.change(fs, path)?;
        if data.is_empty() {
            return Ok(());
        }
        fs.write(id, offset as u64, data)?;
        let contents = &mut thing.contents;
        if contents.len() < offset + data.len() {
            contents.resize(offset + data.len(), 0);
        }
        contents[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn truncate<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        size: usize,
    ) -> Result<(), Error> {
        if self.is_link(path) {
            return Ok(());
        }
        let (id, thing) = self.change(fs, path)?;
        fs.truncate(id, size as u64)?;
        thing.contents.resize(size, 0);
        Ok(())
    }

    fn punch<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        from: usize,
        to: usize,
    ) -> Result<(), Error> {
        if self.is_link(path) {
            return Ok(());
        }
        let (id, thing) = self.change(fs, path)?;
        fs.punch(id, from as u64, to as u64)?;
        let end = to.min(thing.contents.len());
        if from < end {
            thing.contents[from..end].fill(0);
        }
        Ok(())
    }

    fn set_attribute<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Error> {
        let (id, thing) = self.change(fs, path)?;
        match value {
            Some(value) => {
                fs.set_attribute(id, name, Some(value))?;
                thing.attributes.insert(name.to_vec(), value.to_vec());
            }
            None if thing.attributes.contains_key(name) => {
                fs.set_attribute(id, name, None)?;
                thing.attributes.remove(name);
            }
            None => {}
        }
        Ok(())
    }

    fn symlink<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        target: &[u8],
    ) -> Result<(), Error> {
        if self.names.contains_key(path) {
            return Ok(());
        }
        self.touch(path);
        let dir = World::dir(fs, path)?;
        fs.create(dir, World::name(path), &NewObject { target, ..node(Kind::Symlink) })?;
        let thing = Thing { contents: target.to_vec(), is_link: true, ..Thing::default() };
        let thing = self.adopt(path, thing);
        self.changed.insert(thing);
        Ok(())
    }

    pub fn link<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        to: &str,
    ) -> Result<(), Error> {
        let Some(thing) = self.names.get(path).copied().filter(|_| !self.names.contains_key(to)) else {
            return Ok(());
        };
        self.touch(to);
        let (dir, new_dir) = (World::dir(fs, path)?, World::dir(fs, to)?);
        let id = fs.lookup(dir, World::name(path))?;
        fs.link(id, new_dir, World::name(to))?;
        self.names.insert(to.into(), thing);
        Ok(())
    }

    pub fn unlink<N: Nand, V: Nvram>(&mut self, fs: &mut TestFs<N, V>, path: &str) -> Result<(), Error> {
        if !self.names.contains_key(path) {
            return Ok(());
        }
        self.touch(path);
        let dir = World::dir(fs, path)?;
        fs.unlink(dir, World::name(path), false)?;
        self.names.remove(path);
        self.gone.insert(path.into());
        Ok(())
    }

    /// Takes down what a step is about to do, if both names were there at the last sync and since.
    fn begin<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        to: &str,
        swaps: bool,
    ) -> Result<(), Error> {
        let same = self.names.get(path) == self.names.get(to);
        if same || [path, to].iter().any(|n| self.touched.contains(*n) || !self.synced_names.contains_key(*n))
        {
            return Ok(());
        }
        let mut ids = [0; 2];
        for (id, path) in ids.iter_mut().zip([path, to]) {
            let dir = World::dir(fs, path)?;
            *id = fs.lookup(dir, World::name(path))?;
        }
        self.atomic = Some(Atomic { names: [path.into(), to.into()], ids, swaps });
        Ok(())
    }

    fn rename<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        to: &str,
    ) -> Result<(), Error> {
        let Some(thing) = self.names.get(path).copied().filter(|_| path != to) else { return Ok(()) };
        self.begin(fs, path, to, false)?;
        [path, to].into_iter().for_each(|path| self.touch(path));
        let (dir, new_dir) = (World::dir(fs, path)?, World::dir(fs, to)?);
        fs.rename(dir, World::name(path), new_dir, World::name(to), false)?;
        self.atomic = None;
        // Two names of one object stay.
        if self.names.get(to) != Some(&thing) {
            self.names.remove(path);
            self.names.insert(to.into(), thing);
            self.gone.insert(path.into());
        }
        Ok(())
    }

    pub fn exchange<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        path: &str,
        to: &str,
    ) -> Result<(), Error> {
        let (Some(one), Some(two)) = (self.names.get(path).copied(), self.names.get(to).copied()) else {
            return Ok(());
        };
        self.begin(fs, path, to, true)?;
        [path, to].into_iter().for_each(|path| self.touch(path));
        let (dir, new_dir) = (World::dir(fs, path)?, World::dir(fs, to)?);
        fs.exchange(dir, World::name(path), new_dir, World::name(to))?;
        self.atomic = None;
        self.names.insert(path.into(), two);
        self.names.insert(to.into(), one);
        Ok(())
    }

    pub fn sync<N: Nand, V: Nvram>(&mut self, fs: &mut TestFs<N, V>, update: bool) -> Result<(), Error> {
        match update {
            true => fs.update().map(drop)?,
            false => fs.sync()?,
        }
        self.synced_names = self.names.clone();
        self.things.retain(|thing, _| self.names.values().any(|other| other == thing));
        self.synced_things = self.things.clone();
        self.touched.clear();
        self.changed.clear();
        self.gone.clear();
        Ok(())
    }

    /// Makes one thing durable, with all its names.
    fn sync_one<N: Nand, V: Nvram>(&mut self, fs: &mut TestFs<N, V>, path: &str) -> Result<(), Error> {
        let Some(thing) = self.names.get(path).copied() else { return Ok(()) };
        let dir = World::dir(fs, path)?;
        let id = fs.lookup(dir, World::name(path))?;
        fs.sync_object(id)?;
        for (path, _) in self.names.iter().filter(|(_, other)| **other == thing) {
            self.synced_names.insert(path.clone(), thing);
            self.touched.remove(path);
        }
        self.synced_things.insert(thing, self.things[&thing].clone());
        self.changed.remove(&thing);
        Ok(())
    }

    /// One of everything, at random.
    pub fn step<N: Nand, V: Nvram>(
        &mut self,
        fs: &mut TestFs<N, V>,
        random: &mut Random,
        size_max: u64,
    ) -> Result<(), Error> {
        let any = |random: &mut Random| format!("d{}/f{}", random.below(2), random.below(6));
        let path = any(random);
        let to = any(random);
        let offset = random.below(size_max) as usize;
        match random.below(30) {
            0..=9 => {
                let len = match random.below(3) {
                    0 => random.below(300),
                    1 => random.below(5000),
                    _ => random.below(size_max / 4),
                };
                let data = noise(random, len);
                self.write(fs, &path, offset, &data)
            }
            10 => self.truncate(fs, &path, offset),
            11 | 12 => self.punch(fs, &path, offset / 2, offset),
            13 | 14 => self.unlink(fs, &path),
            15 | 16 => self.rename(fs, &path, &to),
            17 | 18 => self.exchange(fs, &path, &to),
            19 | 20 => self.link(fs, &path, &to),
            21 => {
                let len = 1 + random.below(100);
                let target: Vec<u8> = noise(random, len).into_iter().map(|byte| byte.max(1)).collect();
                self.symlink(fs, &path, &target)
            }
            22 | 23 => {
                let name = format!("user.{}", random.below(3));
                let len = random.below(40);
                let value = (random.below(4) > 0).then(|| noise(random, len));
                self.set_attribute(fs, &path, name.as_bytes(), value.as_deref())
            }
            24 => self.sync(fs, true),
            25 | 26 => self.sync_one(fs, &path),
            _ => self.sync(fs, false),
        }
    }

    fn read<N: Nand, V: Nvram>(fs: &mut TestFs<N, V>, path: &str) -> Result<(u32, Thing), Error> {
        let (dir, name) = path.split_once('/').unwrap_or(("", path));
        let dir = fs.lookup(ROOT, dir.as_bytes())?;
        let id = fs.lookup(dir, name.as_bytes())?;
        let attr = fs.attr(id)?;
        let mut thing = Thing { is_link: attr.kind == Kind::Symlink, ..Thing::default() };
        if thing.is_link {
            thing.contents = fs.read_link(id)?;
        } else {
            thing.contents = alloc::vec![0xee; attr.size as usize];
            assert_eq!(fs.read(id, 0, &mut thing.contents)?, attr.size as usize);
        }
        for name in fs.attributes(id)? {
            let value = fs.attribute(id, &name)?;
            thing.attributes.insert(name, value);
        }
        Ok((id, thing))
    }

    /// A name stands for this thing.
    fn check_one<N: Nand, V: Nvram>(fs: &mut TestFs<N, V>, path: &str, expected: &Thing, what: &str) -> u32 {
        let (id, found) = World::read(fs, path).unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
        assert_eq!(found.is_link, expected.is_link, "{what}: kind of {path}");
        assert_eq!(found.contents.len(), expected.contents.len(), "{what}: size of {path}");
        let wrong = found.contents.iter().zip(&expected.contents).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{what}: {path} differs");
        assert!(found.attributes == expected.attributes, "{what}: attributes of {path}");
        id
    }

    /// All names, in order.
    fn list<N: Nand, V: Nvram>(fs: &mut TestFs<N, V>) -> Vec<String> {
        let mut found = Vec::new();
        for dir in ["d0", "d1"] {
            if let Ok(id) = fs.lookup(ROOT, dir.as_bytes()) {
                fs.list(id, 0, &mut |entry| {
                    found.push(format!("{dir}/{}", String::from_utf8_lossy(entry.name)));
                    true
                })
                .expect("a listing");
            }
        }
        found.sort_unstable();
        found
    }

    /// Everything is as the model says.
    pub fn check_all<N: Nand, V: Nvram>(&self, fs: &mut TestFs<N, V>, what: &str) {
        let mut ids = BTreeMap::new();
        for (path, thing) in &self.names {
            let id = World::check_one(fs, path, &self.things[thing], what);
            assert_eq!(*ids.entry(*thing).or_insert(id), id, "{what}: what {path} is linked to");
        }
        for (thing, id) in ids {
            let names = self.names.values().filter(|other| **other == thing).count();
            assert_eq!(fs.attr(id).expect("attributes").links as usize, names, "{what}: links of {id}");
        }
        let found = World::list(fs);
        let expected: Vec<String> = self.names.keys().cloned().collect();
        assert_eq!(found, expected, "{what}: there are these names");
        assert_eq!(fs.check(true).expect("a check"), [], "{what}");
    }

    /// What was synced and not touched since is there, what was to be done in one step is done or not, and nothing
    /// that is there cannot be read.
    pub fn check_synced<N: Nand, V: Nvram>(&self, fs: &mut TestFs<N, V>, what: &str) {
        for (path, thing) in &self.synced_names {
            if self.touched.contains(path) {
                continue;
            }
            match self.changed.contains(thing) {
                true => drop(World::read(fs, path).unwrap_or_else(|error| panic!("{what}: {path}: {error}"))),
                false => drop(World::check_one(fs, path, &self.synced_things[thing], what)),
            }
        }
        for path in self.touched.iter().chain(self.names.keys()) {
            match World::read(fs, path) {
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => panic!("{what}: {path}: {error}"),
            }
        }
        let found = World::list(fs);
        for (number, path) in found.iter().enumerate() {
            let known = self.synced_names.contains_key(path) || self.touched.contains(path);
            assert!(known, "{what}: {path} came back");
            assert!(number == 0 || found[number - 1] != *path, "{what}: {path} is there twice");
        }
        self.check_atomic(fs, what);
        assert_eq!(fs.check(true).expect("a check"), [], "{what}");
    }

    /// What was removed or moved away is gone at once, where the part keeps what it was given.
    pub fn check_gone<N: Nand, V: Nvram>(&self, fs: &mut TestFs<N, V>, what: &str) {
        let found = World::list(fs);
        for path in &self.gone {
            assert!(!found.contains(path), "{what}: {path}, which was removed, came back");
        }
    }

    fn check_atomic<N: Nand, V: Nvram>(&self, fs: &mut TestFs<N, V>, what: &str) {
        let Some(atomic) = &self.atomic else { return };
        let found = atomic.names.each_ref().map(|path| World::read(fs, path).map(|(id, _)| id));
        let [one, two] = atomic.ids;
        let before = [Ok(one), Ok(two)];
        let after = if atomic.swaps { [Ok(two), Ok(one)] } else { [Err(Error::NotFound), Ok(one)] };
        assert!(found == before || found == after, "{what}: {:?} of {one}, {two}: {found:?}", atomic.names);
    }

    /// After a cut: what became of changed names and things is open. They are removed, and the work goes on.
    pub fn start_over<N: Nand, V: Nvram>(&mut self, fs: &mut TestFs<N, V>) {
        let is_open = |(path, thing): (&String, &u32)| {
            (self.touched.contains(path) || self.changed.contains(thing)).then(|| path.clone())
        };
        let mut open: BTreeSet<String> = self.synced_names.iter().filter_map(is_open).collect();
        open.extend(self.touched.iter().cloned());
        self.names = self.synced_names.clone();
        self.things = self.synced_things.clone();
        for path in open {
            self.names.remove(&path);
            if let Ok(dir) = World::dir(fs, &path) {
                // What never got to flash is not there.
                let gone = fs.unlink(dir, World::name(&path), false);
                assert!(matches!(gone, Ok(_) | Err(Error::NotFound)), "{path}: {gone:?}");
            }
        }
        (self.touched, self.changed, self.atomic) = (BTreeSet::new(), BTreeSet::new(), None);
        self.gone.clear();
    }

    /// A name that is not to be there.
    pub fn forget(&mut self, path: &str) {
        self.names.remove(path);
    }
}
