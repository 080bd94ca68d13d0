//! Long random sequences of operations on many kinds of ext4, against the model.

use super::model::{Model, Node};
use super::rig::{Mount, Rig, fsck, is_full, plain};
use bimetal::Error;
use bimetal::fs::ext4::{CacheLimits, Create, ROOT_INO};
use bimetal::fs::{Kind, Rename, SetXattr};
use bimetal::units::Ino;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The kinds of file systems every sequence runs on: size in KiB, options of `mke2fs`.
const KINDS: [(u64, &str); 18] = [
    (65_536, "-t ext4 -b 4096"),
    (32_768, "-t ext4 -b 1024"),
    (49_152, "-t ext4 -b 2048"),
    (65_536, "-t ext4 -b 4096 -O ^metadata_csum"),
    (32_768, "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg"),
    (32_768, "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^64bit"),
    (65_536, "-t ext4 -b 4096 -O ^64bit"),
    (65_536, "-t ext4 -b 4096 -O metadata_csum_seed,orphan_file"),
    (65_536, "-t ext4 -b 1024 -O metadata_csum_seed -g 2048"),
    (65_536, "-t ext4 -b 4096 -I 128"),
    (32_768, "-t ext4 -b 1024 -I 128 -O ^dir_index"),
    (65_536, "-t ext4 -b 4096 -I 512"),
    (65_536, "-t ext4 -b 4096 -I 1024 -O large_dir"),
    (65_536, "-t ext4 -b 1024 -E lazy_itable_init=0,lazy_journal_init=0"),
    (65_536, "-t ext4 -b 1024 -E lazy_itable_init=1 -O ^flex_bg -g 4096 -N 4096"),
    (2_097_152, "-t ext4 -b 4096 -E lazy_itable_init=1"),
    (32_768, "-t ext4 -b 1024 -O sparse_super2,^filetype -N 512"),
    (32_768, "-t ext4 -b 1024 -O ^resize_inode,meta_bg,^sparse_super -g 1024"),
];

/// A run: the file system, what it should hold, and chance.
pub struct Run {
    pub rig: Rig,
    pub model: Model,
    rng: SmallRng,
    done: usize,
}

impl Run {
    fn new(size_kib: u64, options: &str, seed: u64) -> Run {
        Run::on(Rig::new(size_kib, options), options, seed)
    }

    pub fn on(mut rig: Rig, options: &str, seed: u64) -> Run {
        let mut model = Model::of(&mut rig);
        model.coarse = options.contains("-I 128");
        Run { rig, model, rng: SmallRng::seed_from_u64(seed), done: 0 }
    }

    fn any(&mut self, kind: Option<Kind>) -> Option<Ino> {
        let fits = |node: &Node| kind.is_none_or(|kind| node.kind == kind);
        let all: Vec<Ino> = self.model.nodes.iter().filter(|(_, n)| fits(n)).map(|(ino, _)| *ino).collect();
        (!all.is_empty()).then(|| all[self.rng.random_range(0..all.len())])
    }

    fn dir(&mut self) -> Ino {
        self.any(Some(Kind::Dir)).unwrap_or(ROOT_INO)
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.rng.random_range(0..400);
        match number % 5 {
            0 => format!("a rather long name that fills directory blocks sooner {number:060}").into_bytes(),
            1 => vec![0x80 | number as u8; 1 + number as usize % 200],
            _ => format!("n{number}").into_bytes(),
        }
    }

    /// A name in some directory.
    fn entry(&mut self) -> Option<(Ino, Vec<u8>, Ino)> {
        let full = |(_, node): &(&Ino, &Node)| !node.names.is_empty();
        let dirs: Vec<Ino> = self.model.nodes.iter().filter(full).map(|(ino, _)| *ino).collect();
        let dir = *dirs.get(self.rng.random_range(0..dirs.len().max(1)))?;
        let names = &self.model.nodes[&dir].names;
        let (name, ino) = names.iter().nth(self.rng.random_range(0..names.len()))?;
        Some((dir, name.clone(), *ino))
    }

    fn data(&mut self, most: usize) -> Vec<u8> {
        let len = self.rng.random_range(1..=most);
        let first: u8 = self.rng.random();
        (0..len).map(|i| first.wrapping_add((i / 97) as u8) | 1).collect()
    }

    pub fn step(&mut self) {
        let result = match self.rng.random_range(0..100) {
            0..28 => self.create(),
            28..46 => self.write(),
            46..51 => self.truncate(),
            51..54 => self.punch(),
            54..57 => self.preallocate(),
            57..62 => self.link(),
            62..72 => self.remove(),
            72..82 => self.rename(),
            82..90 => self.set_xattr(),
            90..92 => self.remove_xattr(),
            _ => self.set_attr(),
        };
        match result {
            Ok(()) => self.done += 1,
            Err(error) if is_full(&error) => {}
            Err(error) => panic!("after {} operations: {error:?}", self.done),
        }
        self.rig.commit_if_large();
    }

    fn create(&mut self) -> Result<(), Error> {
        let (parent, name, now) = (self.dir(), self.name(), self.rig.now());
        let kinds = [Kind::File, Kind::File, Kind::File, Kind::Dir, Kind::Dir, Kind::Symlink, Kind::Fifo];
        let more = [Kind::CharDevice, Kind::BlockDevice, Kind::Socket];
        let pick = self.rng.random_range(0..20);
        let kind =
            *kinds.iter().cycle().chain(&more).nth(pick).filter(|_| pick < 17).unwrap_or(&more[pick % 3]);
        let target = if kind == Kind::Symlink { self.data(300) } else { Vec::new() };
        let device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        let rdev = if device { self.rng.random_range(1..0xF_FFFF) } else { 0 };
        let (perm, uid) = (self.rng.random_range(0..0o10000), self.rng.random_range(0..100_000));
        let spec = Create {
            parent,
            name: &name,
            kind,
            perm,
            uid,
            gid: uid / 2,
            rdev,
            target: &target,
            ..plain(now)
        };
        let made = self.rig.fs.create(&spec);
        if self.model.nodes[&parent].names.contains_key(&name) {
            assert!(matches!(made, Err(Error::Exists | Error::NoSpace(_))), "{made:?}");
            return Ok(());
        }
        let ino = made?;
        let node = Node { perm, uid, gid: uid / 2, rdev, mtime: now, data: target, ..Node::new(kind) };
        assert!(self.model.nodes.insert(ino, node).is_none(), "inode {ino} is in use");
        let parent = self.model.node(parent);
        parent.names.insert(name, ino);
        parent.mtime = now;
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        let Some(ino) = self.any(Some(Kind::File)) else { return Ok(()) };
        let len = self.model.nodes[&ino].data.len();
        let offset = match self.rng.random_range(0..3) {
            0 => len,
            1 => self.rng.random_range(0..=len),
            _ => self.rng.random_range(0..200_000),
        };
        let data = self.data(30_000);
        self.rig.write(ino, offset as u64, &data)?;
        let mtime = super::rig::at(self.rig.clock);
        let node = self.model.node(ino);
        node.data.resize(len.max(offset + data.len()), 0);
        node.data[offset..offset + data.len()].copy_from_slice(&data);
        node.mtime = mtime;
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), Error> {
        let Some(ino) = self.any(Some(Kind::File)) else { return Ok(()) };
        let size = self.rng.random_range(0..100_000);
        self.rig.truncate(ino, size as u64)?;
        let mtime = super::rig::at(self.rig.clock);
        let node = self.model.node(ino);
        node.data.resize(size, 0);
        node.mtime = mtime;
        Ok(())
    }

    fn punch(&mut self) -> Result<(), Error> {
        let Some(ino) = self.any(Some(Kind::File)) else { return Ok(()) };
        let bytes = self.rig.fs.block_bytes() as usize;
        let (block, len) = (self.rng.random_range(0..60), self.rng.random_range(1..30));
        self.rig.punch(ino, block as u64, len as u64)?;
        let data = &mut self.model.node(ino).data;
        let (from, to) = ((block * bytes).min(data.len()), ((block + len) * bytes).min(data.len()));
        data[from..to].fill(0);
        Ok(())
    }

    fn preallocate(&mut self) -> Result<(), Error> {
        let Some(ino) = self.any(Some(Kind::File)) else { return Ok(()) };
        let (block, len) = (self.rng.random_range(0..100), self.rng.random_range(1..50));
        self.rig.preallocate(ino, block, len)
    }

    fn link(&mut self) -> Result<(), Error> {
        let (Some(ino), parent, name) = (self.any(None), self.dir(), self.name()) else { return Ok(()) };
        let now = self.rig.now();
        let linked = self.rig.fs.link(ino, parent, &name, now);
        match self.model.nodes[&ino].kind {
            Kind::Dir => {
                assert!(matches!(linked, Err(Error::NotPermitted)), "{linked:?}");
                return Ok(());
            }
            _ if self.model.nodes[&parent].names.contains_key(&name) => {
                assert!(matches!(linked, Err(Error::Exists)), "{linked:?}");
                return Ok(());
            }
            _ => linked?,
        }
        let parent = self.model.node(parent);
        parent.names.insert(name, ino);
        parent.mtime = now;
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        let Some((dir, name, ino)) = self.entry() else { return Ok(()) };
        let node = &self.model.nodes[&ino];
        if node.kind != Kind::Dir {
            let last = self.model.nlink(ino) == 1;
            self.rig.unlink(dir, &name)?;
            if last {
                self.model.nodes.remove(&ino);
            }
        } else if node.names.is_empty() {
            self.rig.rmdir(dir, &name)?;
            self.model.nodes.remove(&ino);
        } else {
            let refused = self.rig.rmdir(dir, &name);
            assert!(matches!(refused, Err(Error::NotEmpty)), "{refused:?}");
            return Ok(());
        }
        let mtime = super::rig::at(self.rig.clock);
        let dir = self.model.node(dir);
        dir.names.remove(&name);
        dir.mtime = mtime;
        Ok(())
    }

    fn is_below(&self, ino: Ino, top: Ino) -> bool {
        ino == top
            || self.model.nodes[&top]
                .names
                .values()
                .any(|child| self.model.nodes[child].kind == Kind::Dir && self.is_below(ino, *child))
    }

    fn rename(&mut self) -> Result<(), Error> {
        let Some((from, name, ino)) = self.entry() else { return Ok(()) };
        let (mut to, mut new_name) = (self.dir(), self.name());
        if self.rng.random_bool(0.3) {
            (to, new_name, _) = self.entry().expect("an entry");
        }
        let hows = [Rename::Replace, Rename::Replace, Rename::NoReplace, Rename::Exchange, Rename::Whiteout];
        let how = hows[self.rng.random_range(0..hows.len())];
        let now = self.rig.now();
        let result = self.rig.fs.rename(from, &name, to, &new_name, how, now);
        let target = self.model.nodes[&to].names.get(&new_name).copied();
        if let Err(error) = &result
            && is_full(error)
        {
            return Ok(());
        }
        let inside = |run: &Run, moved: Ino, into: Ino| {
            run.model.nodes[&moved].kind == Kind::Dir && run.is_below(into, moved)
        };
        let kind = |ino: Ino| self.model.nodes[&ino].kind;
        let (is_dir, exchange) = (kind(ino) == Kind::Dir, how == Rename::Exchange);
        match (how, target) {
            (Rename::NoReplace, Some(_)) => return expect(&result, |e| matches!(e, Error::Exists)),
            (Rename::Exchange, None) => return expect(&result, |e| matches!(e, Error::NotFound)),
            (_, Some(target)) if target == ino => return result.map(|removed| assert!(removed.is_none())),
            (_, Some(target)) if !exchange && (kind(target) == Kind::Dir) != is_dir => {
                return expect(&result, |e| matches!(e, Error::IsDir | Error::NotDir));
            }
            (_, Some(target)) if !exchange && !self.model.nodes[&target].names.is_empty() => {
                return expect(&result, |e| matches!(e, Error::NotEmpty | Error::BadArgument));
            }
            _ => {}
        }
        if inside(self, ino, to) || exchange && inside(self, target.expect("a target"), from) {
            return expect(&result, |e| matches!(e, Error::BadArgument));
        }
        let removed = result?;
        self.model.node(from).names.remove(&name);
        self.model.node(to).names.insert(new_name.clone(), ino);
        (self.model.node(from).mtime, self.model.node(to).mtime) = (now, now);
        match (how, target) {
            (Rename::Exchange, Some(target)) => drop(self.model.node(from).names.insert(name, target)),
            (Rename::Whiteout, _) => {
                let (white, kind) = self.rig.fs.lookup(from, &name)?.expect("a whiteout");
                assert_eq!(kind, Kind::CharDevice);
                let (uid, gid) = (self.model.nodes[&ino].uid, self.model.nodes[&ino].gid);
                let node = Node { perm: 0, uid, gid, mtime: now, ..Node::new(kind) };
                self.model.nodes.insert(white, node);
                self.model.node(from).names.insert(name, white);
            }
            _ => {}
        }
        let removed = removed.filter(|removed| removed.last);
        if let Some(removed) = removed {
            assert_eq!(Some(removed.ino), target);
            self.model.nodes.remove(&removed.ino);
            self.rig.release(removed.ino)?;
        }
        Ok(())
    }

    fn set_xattr(&mut self) -> Result<(), Error> {
        let (Some(ino), now) = (self.any(None), self.rig.now()) else { return Ok(()) };
        let name = format!("user.key{}", self.rng.random_range(0..6)).into_bytes();
        let most = if self.rng.random_bool(0.2) { 900 } else { 40 };
        let value = self.data(most);
        if matches!(self.model.nodes[&ino].kind, Kind::File | Kind::Dir) {
            self.rig.fs.set_xattr(ino, &name, &value, SetXattr::Either, now)?;
            self.model.node(ino).attrs.insert(name, value);
        }
        Ok(())
    }

    fn remove_xattr(&mut self) -> Result<(), Error> {
        let (Some(ino), now) = (self.any(None), self.rig.now()) else { return Ok(()) };
        let Some(name) = self.model.nodes[&ino].attrs.keys().next().cloned() else { return Ok(()) };
        self.rig.fs.remove_xattr(ino, &name, now)?;
        self.model.node(ino).attrs.remove(&name);
        Ok(())
    }

    fn set_attr(&mut self) -> Result<(), Error> {
        let (Some(ino), now) = (self.any(None), self.rig.now()) else { return Ok(()) };
        let (perm, sec) = (self.rng.random_range(0..0o10000), self.rng.random_range(-(1 << 31)..1 << 31));
        let inode = self.rig.fs.inode_mut(ino)?;
        inode.mode = inode.mode & 0xF000 | perm;
        inode.mtime.sec = sec;
        inode.ctime = now;
        let mtime = inode.mtime;
        let node = self.model.node(ino);
        (node.perm, node.mtime) = (perm, mtime);
        Ok(())
    }
}

fn expect<T: std::fmt::Debug>(result: &Result<T, Error>, right: fn(&Error) -> bool) -> Result<(), Error> {
    match result {
        Err(error) if right(error) => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn run_on(size_kib: u64, options: &str, seed: u64, steps: usize) {
    println!("mke2fs {options}, {size_kib} KiB, seed {seed}");
    let mut run = Run::new(size_kib, options, seed);
    run.rig.lag = seed as usize % 3;
    for step in 0..steps {
        run.step();
        if step % 97 == 96 {
            run.rig.commit();
        }
        if step % 401 == 400 {
            run.model.compare(&mut run.rig);
            if step % 802 == 400 {
                run.rig.close();
            } else {
                run.rig.commit();
                run.rig.commit_waiting();
            }
            // With next to no memory every operation reads again what it needs.
            let tiny = CacheLimits { buffer_bytes: 1, inodes: 4, groups: 2 };
            run.rig.reopen_with(if step % 802 == 400 { tiny } else { CacheLimits::default() });
            run.model.compare(&mut run.rig);
        }
    }
    assert!(run.done > steps / 3, "only {} of {steps} operations did something", run.done);
    assert!(run.rig.relocated > 0, "no data got new blocks");
    run.rig.close();
    fsck(&run.rig.image);
    if let Some(mount) = Mount::new(&run.rig.image) {
        run.model.compare_mounted(&mount);
    }
}

#[test]
fn random_operations_agree_with_the_model_e2fsck_and_the_kernel() {
    for (number, (size_kib, options)) in KINDS.iter().enumerate() {
        run_on(*size_kib, options, 100 + number as u64, 1500);
    }
}

#[test]
fn tiny_file_systems_that_are_always_full_stay_consistent() {
    for (seed, options) in [
        "-t ext4 -b 1024 -J size=1",
        "-t ext4 -b 1024 -N 64 -J size=1",
        "-t ext4 -b 1024 -m 0 -O ^metadata_csum -J size=1",
        "-t ext4 -b 2048 -m 0 -J size=2",
    ]
    .iter()
    .enumerate()
    {
        let size = if options.contains("2048") { 8192 } else { 4096 };
        run_on(size, options, seed as u64, 2500);
    }
}
