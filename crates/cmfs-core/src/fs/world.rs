//! What the tests of the file system share: small parts, a model of what files should hold, and seeded work.

use super::{Config, Fs, Layout, NewObject};
use crate::error::Error;
use crate::media::Geometry;
use crate::object::{Kind, ROOT};
use crate::ram::{RamNand, RamNvram};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use std::format;
use std::string::String;

pub(super) type TestFs = Fs<RamNand, RamNvram>;

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

/// The model: contents by path (`dir/name`), as they are and as they were at the last sync.
#[derive(Clone, Default)]
pub(super) struct World {
    pub files: BTreeMap<String, Vec<u8>>,
    pub synced: BTreeMap<String, Vec<u8>>,
    /// Paths that were changed since the last sync.
    pub touched: BTreeSet<String>,
}

impl World {
    fn dir(fs: &mut TestFs, path: &str) -> Result<u32, Error> {
        let (dir, _) = path.split_once('/').unwrap_or(("", path));
        match fs.lookup(ROOT, dir.as_bytes()) {
            Err(Error::NotFound) => fs.create(ROOT, dir.as_bytes(), &node(Kind::Dir)),
            found => found,
        }
    }

    fn name(path: &str) -> &[u8] {
        path.split_once('/').map_or(path, |(_, name)| name).as_bytes()
    }

    fn open(fs: &mut TestFs, path: &str) -> Result<u32, Error> {
        let dir = World::dir(fs, path)?;
        match fs.lookup(dir, World::name(path)) {
            Err(Error::NotFound) => fs.create(dir, World::name(path), &node(Kind::File)),
            found => found,
        }
    }

    pub fn write(&mut self, fs: &mut TestFs, path: &str, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.touched.insert(path.into());
        let id = World::open(fs, path)?;
        let contents = self.files.entry(path.into()).or_default();
        if data.is_empty() {
            return Ok(());
        }
        fs.write(id, offset as u64, data)?;
        if contents.len() < offset + data.len() {
            contents.resize(offset + data.len(), 0);
        }
        contents[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    pub fn truncate(&mut self, fs: &mut TestFs, path: &str, size: usize) -> Result<(), Error> {
        self.touched.insert(path.into());
        let id = World::open(fs, path)?;
        let contents = self.files.entry(path.into()).or_default();
        fs.truncate(id, size as u64)?;
        contents.resize(size, 0);
        Ok(())
    }

    pub fn punch(&mut self, fs: &mut TestFs, path: &str, from: usize, to: usize) -> Result<(), Error> {
        self.touched.insert(path.into());
        let id = World::open(fs, path)?;
        let contents = self.files.entry(path.into()).or_default();
        fs.punch(id, from as u64, to as u64)?;
        let end = to.min(contents.len());
        if from < end {
            contents[from..end].fill(0);
        }
        Ok(())
    }

    pub fn unlink(&mut self, fs: &mut TestFs, path: &str) -> Result<(), Error> {
        if !self.files.contains_key(path) {
            return Ok(());
        }
        self.touched.insert(path.into());
        let dir = World::dir(fs, path)?;
        fs.unlink(dir, World::name(path), false)?;
        self.files.remove(path);
        Ok(())
    }

    pub fn rename(&mut self, fs: &mut TestFs, path: &str, to: &str) -> Result<(), Error> {
        if !self.files.contains_key(path) || path == to {
            return Ok(());
        }
        self.touched.extend([path.into(), to.into()]);
        let (dir, new_dir) = (World::dir(fs, path)?, World::dir(fs, to)?);
        fs.rename(dir, World::name(path), new_dir, World::name(to), false)?;
        if let Some(contents) = self.files.remove(path) {
            self.files.insert(to.into(), contents);
        }
        Ok(())
    }

    pub fn sync(&mut self, fs: &mut TestFs, update: bool) -> Result<(), Error> {
        match update {
            true => fs.update().map(drop)?,
            false => fs.sync()?,
        }
        self.synced = self.files.clone();
        self.touched.clear();
        Ok(())
    }

    /// One of everything, at random.
    pub fn step(&mut self, fs: &mut TestFs, random: &mut Random, size_max: u64) -> Result<(), Error> {
        let any = |random: &mut Random| format!("d{}/f{}", random.below(2), random.below(6));
        let path = any(random);
        let offset = random.below(size_max) as usize;
        match random.below(20) {
            0..=9 => {
                let len = match random.below(3) {
                    0 => random.below(300),
                    1 => random.below(5000),
                    _ => random.below(size_max / 4),
                };
                let data: Vec<u8> =
                    (0..len).map(|at| (at as u8).wrapping_add(random.below(255) as u8)).collect();
                self.write(fs, &path, offset, &data)
            }
            10 => self.truncate(fs, &path, offset),
            11 => self.punch(fs, &path, offset / 2, offset),
            12 | 13 => self.unlink(fs, &path),
            14 | 15 => {
                let to = any(random);
                self.rename(fs, &path, &to)
            }
            16 => self.sync(fs, true),
            _ => self.sync(fs, false),
        }
    }

    fn read(fs: &mut TestFs, path: &str) -> Result<Vec<u8>, Error> {
        let (dir, name) = path.split_once('/').unwrap_or(("", path));
        let dir = fs.lookup(ROOT, dir.as_bytes())?;
        let id = fs.lookup(dir, name.as_bytes())?;
        let size = fs.attr(id)?.size as usize;
        let mut contents = alloc::vec![0xee; size];
        assert_eq!(fs.read(id, 0, &mut contents)?, size);
        Ok(contents)
    }

    /// Everything is as the model says.
    pub fn check_all(&self, fs: &mut TestFs, what: &str) {
        for (path, contents) in &self.files {
            let found = World::read(fs, path).unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
            assert_eq!(found.len(), contents.len(), "{what}: size of {path}");
            let wrong = found.iter().zip(contents).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{what}: {path} differs");
        }
        let mut found = 0;
        for dir in ["d0", "d1"] {
            if let Ok(dir) = fs.lookup(ROOT, dir.as_bytes()) {
                fs.list(dir, 0, &mut |_| {
                    found += 1;
                    true
                })
                .expect("a listing");
            }
        }
        assert_eq!(found, self.files.len(), "{what}: there are as many names");
        assert_eq!(fs.check(true).expect("a check"), [], "{what}");
    }

    /// What was synced and not touched since is there, and nothing that is there cannot be read.
    pub fn check_synced(&self, fs: &mut TestFs, what: &str) {
        for (path, contents) in &self.synced {
            if !self.touched.contains(path) {
                let found = World::read(fs, path).unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
                assert!(found == *contents, "{what}: {path} differs");
            }
        }
        for path in self.touched.iter().chain(self.files.keys()) {
            match World::read(fs, path) {
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => panic!("{what}: {path}: {error}"),
            }
        }
        assert_eq!(fs.check(true).expect("a check"), [], "{what}");
    }
}
