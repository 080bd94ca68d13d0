//! Operations at random: none adds more to a transaction than its credits said.

use super::*;
use crate::{Create, OpenOptions, ROOT_INO};
use bimetal_base::Error;
use bimetal_base::time::Stamp;
use bimetal_media::ram::Ram;
use bimetal_vfs::{Rename, SetXattr};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::process::Command;
use std::sync::Arc;

/// `None` where mke2fs is missing.
fn made(size_mib: u64, options: &[&str]) -> Option<Ext4> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size_mib << 20).unwrap();
    let status = Command::new("/usr/sbin/mke2fs").args(["-q", "-F"]).args(options).arg(file.path()).status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: no mke2fs");
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    Some(Ext4::open(disk, OpenOptions::default()).unwrap())
}

struct Run {
    fs: Ext4,
    rng: SmallRng,
    dirs: Vec<Ino>,
    /// Directory, name and inode.
    files: Vec<(Ino, Vec<u8>, Ino)>,
    /// Unnamed, to be freed.
    unnamed: Vec<Ino>,
    made: u64,
    /// The largest share of its credits that an operation of a kind took, in percent.
    shares: std::collections::BTreeMap<&'static str, u64>,
}

const NOW: Stamp = Stamp { sec: 1_700_000_000, nsec: 0 };

impl Run {
    fn new(fs: Ext4, seed: u64) -> Run {
        let rng = SmallRng::seed_from_u64(seed);
        let (files, unnamed, shares) = (Vec::new(), Vec::new(), Default::default());
        Run { fs, rng, dirs: vec![ROOT_INO], files, unnamed, made: 0, shares }
    }

    /// Runs an operation and compares what it added with its credits.
    fn within<T>(
        &mut self,
        what: &'static str,
        credits: u64,
        work: impl FnOnce(&mut Ext4) -> bimetal_base::Result<T>,
    ) -> Option<T> {
        if self.fs.dirty_blocks() as u64 + credits > self.fs.capacity as u64 {
            self.fs.commit_here().unwrap();
        }
        let before = self.fs.dirty_blocks() as u64;
        let done = work(&mut self.fs);
        let added = self.fs.dirty_blocks() as u64 - before.min(self.fs.dirty_blocks() as u64);
        assert!(added <= credits, "{what}: {added} blocks, {credits} credits");
        let share = self.shares.entry(what).or_default();
        *share = (*share).max(added * 100 / credits.max(1));
        match done {
            Ok(done) => Some(done),
            Err(
                Error::NoSpace(_)
                | Error::TooManyLinks
                | Error::BadArgument
                | Error::Exists
                | Error::NotEmpty,
            ) => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    fn dir(&mut self) -> Ino {
        self.dirs[self.rng.random_range(0..self.dirs.len())]
    }

    fn name(&mut self) -> Vec<u8> {
        self.made += 1;
        let long = self.rng.random_range(1..200);
        format!("{:0long$}", self.made).into_bytes()
    }

    fn create(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let kind = match self.rng.random_range(0..10) {
            0 if self.dirs.len() < 20 => Kind::Dir,
            1 => Kind::Symlink,
            _ => Kind::File,
        };
        let target = vec![b'x'; self.rng.random_range(1..900)];
        let credits = self.fs.credits_for_create(dir).unwrap();
        let (parent, ino, generation) = (dir, None, None);
        let acl = self.rng.random_bool(0.2);
        let named = name.clone();
        let made = self.within("create", credits, |fs| {
            let spec = Create {
                parent,
                name: &named,
                kind,
                perm: 0o755,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: &target,
                now: NOW,
                ino,
                generation,
            };
            let ino = fs.create(&spec)?;
            if acl {
                fs.set_xattr(ino, b"user.inherited", &[7; 600], SetXattr::Either, NOW)?;
            }
            Ok(ino)
        });
        match made {
            Some(ino) if kind == Kind::Dir => self.dirs.push(ino),
            Some(ino) => self.files.push((dir, name, ino)),
            None => {}
        }
    }

    fn some(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.rng.random_range(0..self.files.len()))
    }

    fn some_file(&mut self) -> Option<Ino> {
        let at = self.some()?;
        let ino = self.files[at].2;
        (self.fs.inode(ino).unwrap().kind() == Kind::File).then_some(ino)
    }

    fn unlink(&mut self) {
        let Some(at) = self.some() else { return };
        let (dir, name, ino) = self.files.swap_remove(at);
        let credits = self.fs.credits_for_remove(dir, &name).unwrap();
        let freed = self.within("unlink", credits, |fs| {
            let removed = fs.unlink(dir, &name, NOW)?;
            if removed.last { fs.release(ino) } else { Ok(true) }
        });
        if freed == Some(false) {
            self.unnamed.push(ino);
        }
    }

    fn free(&mut self) {
        let Some(ino) = self.unnamed.pop() else { return };
        let credits = self.fs.credits_to_free(ino).unwrap();
        if self.within("release", credits, |fs| fs.release(ino)) == Some(false) {
            self.unnamed.push(ino);
        }
    }

    fn link_or_move(&mut self) {
        let Some(at) = self.some() else { return };
        let (from, name, ino) = self.files[at].clone();
        let (to, new_name) = (self.dir(), self.name());
        let replaced =
            if self.rng.random_bool(0.4) { self.some().filter(|other| *other != at) } else { None };
        if self.rng.random_bool(0.3) {
            let credits = self.fs.credits_for_link(to).unwrap();
            if self.within("link", credits, |fs| fs.link(ino, to, &new_name, NOW)).is_some() {
                self.files.push((to, new_name, ino));
            }
            return;
        }
        let (to, new_name) =
            replaced.map_or((to, new_name), |other| (self.files[other].0, self.files[other].1.clone()));
        let credits = self.fs.credits_for_rename(to, &new_name).unwrap();
        let done = self.within("rename", credits, |fs| {
            let removed = fs.rename(from, &name, to, &new_name, Rename::Replace, NOW)?;
            match removed.filter(|removed| removed.last) {
                Some(removed) => Ok((Some(removed.ino), fs.release(removed.ino)?)),
                None => Ok((None, true)),
            }
        });
        let Some((gone, freed)) = done else { return };
        if self.fs.lookup(from, &name).unwrap().is_some() {
            return; // Two names of one inode.
        }
        self.files[at] = (to, new_name, ino);
        if let Some(other) = replaced {
            self.files.swap_remove(other);
        }
        self.unnamed.extend(gone.filter(|_| !freed));
    }

    fn place(&mut self) {
        let Some(ino) = self.some_file() else { return };
        let blocks = [1, 1, 1, 7, 40][self.rng.random_range(0..5)];
        let at = self.rng.random_range(0..3000);
        let change = self.fs.tree_change(ino, blocks).unwrap();
        let credits = change.nodes + self.fs.group_blocks(change.places) + self.fs.credits_for_attributes();
        let moves = self.rng.random_bool(0.5);
        let extents = 2 * blocks as usize;
        self.within("place", credits, |fs| {
            // Room for all of it, twice if it moves, and for its tree.
            let room = 2 * blocks + fs.nodes_to_place(ino, blocks, extents, true)?;
            fs.reserve(room)?;
            fs.unreserve(room);
            let inode = fs.inode_mut(ino)?;
            inode.size = inode.size.max((at + blocks) << 10);
            let placed = fs.place(ino, at, blocks as u32)?;
            if moves && placed.iter().all(|run| !run.fresh) {
                fs.relocate_promised(ino, at, blocks as u32)?;
            }
            Ok(())
        });
    }

    fn space(&mut self) {
        let Some(ino) = self.some_file() else { return };
        let (at, len) = (self.rng.random_range(0..3000), self.rng.random_range(1..2000));
        match self.rng.random_range(0..3) {
            0 => {
                let credits = self.fs.credits_to_free(ino).unwrap();
                self.within("truncate", credits, |fs| fs.truncate(ino, at << 10, NOW));
            }
            1 => {
                let credits = self.fs.credits_to_free(ino).unwrap();
                self.within("punch", credits, |fs| fs.punch(ino, at, len, 1));
            }
            _ => {
                let credits = self.fs.credits_to_preallocate(ino).unwrap();
                self.within("preallocate", credits, |fs| fs.preallocate(ino, at, len, 0));
            }
        }
    }

    fn attributes(&mut self) {
        let Some(ino) = self.some_file() else { return };
        let credits = self.fs.credits_for_attributes();
        self.within("attributes", credits, |fs| fs.inode_mut(ino).map(|inode| inode.uid += 1));
        let credits = self.fs.credits_for_xattrs();
        let value = vec![1; [3, 300, 700][self.rng.random_range(0..3)]];
        self.within("xattr", credits, |fs| fs.set_xattr(ino, b"user.a", &value, SetXattr::Either, NOW));
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => self.create(),
            25..33 => self.unlink(),
            33..40 => self.free(),
            40..50 => self.link_or_move(),
            50..80 => self.place(),
            80..90 => self.space(),
            90..97 => self.attributes(),
            _ => self.fs.commit_here().unwrap(),
        }
    }
}

#[test]
fn no_operation_adds_more_to_a_transaction_than_its_credits_said() {
    for (seed, options) in [
        (1, &["-t", "ext4", "-b", "1024", "-J", "size=4", "-g", "512"][..]),
        (2, &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
        (3, &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "^flex_bg,^64bit"]),
        (4, &["-t", "ext4", "-b", "1024", "-g", "256", "-J", "size=1"]),
        (5, &["-t", "ext4", "-b", "1024", "-g", "256", "-J", "size=1", "-O", "^flex_bg"]),
    ] {
        let Some(fs) = made(24, options) else { return };
        let mut run = Run::new(fs, seed);
        (0..6000).for_each(|_| run.step());
        run.fs.commit_here().unwrap();
        println!("{options:?}: at most, of its credits in percent: {:?}", run.shares);
        // They are bounds that mean something, too.
        assert!(run.shares.values().any(|share| *share >= 40), "{:?}", run.shares);
    }
}

#[test]
fn a_small_file_is_replaced_and_cut_with_the_smallest_journal_however_many_groups_there_are() {
    let options = ["-t", "ext4", "-b", "1024", "-g", "1024", "-J", "size=1"];
    let Some(mut fs) = made(256, &options) else { return };
    let capacity = fs.capacity as u64;
    let mut run = Run::new(fs, 1);
    let spec = |name| Create {
        parent: ROOT_INO,
        name,
        kind: Kind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: &[],
        now: NOW,
        ino: None,
        generation: None,
    };
    // One of a block, and one of as many as a small database has.
    for (name, blocks) in [(&b"small"[..], 1), (b"database", 2400)] {
        let ino = run.fs.create(&spec(name)).unwrap();
        run.fs.reserve(3 * blocks).unwrap();
        run.fs.unreserve(3 * blocks);
        run.fs.inode_mut(ino).unwrap().size = blocks << 10;
        for at in (0..blocks).step_by(100) {
            run.fs.place(ino, at, 100.min(blocks - at) as u32).unwrap();
            run.fs.commit_here().unwrap();
        }
        let rename = run.fs.credits_for_rename(ROOT_INO, name).unwrap();
        let cut = run.fs.credits_to_resize(ino, 100).unwrap();
        println!("{blocks} blocks: {rename} to replace, {cut} to cut, of {capacity}");
        assert!(rename * 10 < capacity * 9 && cut * 10 < capacity * 9);
    }
    fs = run.fs;
    fs.commit_here().unwrap();
}

/// A disk of files with block maps: their blocks, and of how many how many are data.
fn maps(size_mib: u64, options: &[&str], files: &[(u64, u64, u64)]) -> Option<Ext4> {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let (image, source) = (folder.path().join("image"), folder.path().join("source"));
    std::fs::File::create(&image).unwrap().set_len(size_mib << 20).unwrap();
    let run = |program: &str, args: &[&str]| Command::new(program).args(args).arg(&image).output().unwrap();
    run("/usr/sbin/mke2fs", &[&["-q", "-F", "-t", "ext4", "-b", "1024", "-m", "0"], options].concat());
    let mut script = String::new();
    for (number, (end, every, run)) in files.iter().enumerate() {
        let path = source.with_extension(number.to_string());
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(end << 10).unwrap();
        for at in (0..*end).filter(|at| at % every < *run) {
            file.write_all_at(&[7; 1024], at << 10).unwrap();
        }
        script += &format!("write {} v{number}\n", path.display());
    }
    let path = folder.path().join("script");
    std::fs::write(&path, script).unwrap();
    run("/usr/sbin/debugfs", &["-w", "-f", path.to_str().unwrap()]);
    run("/usr/sbin/tune2fs", &["-O", "extents"]);
    run("/usr/sbin/e2fsck", &["-fy"]);
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(&image).unwrap()));
    Some(Ext4::open(disk, OpenOptions::default()).unwrap())
}

#[test]
fn block_maps_stay_within_their_credits() {
    let shapes = [
        (3000, 1, 1),
        (3000, 2, 1),
        (3000, 7, 3),
        (70_000, 997, 2),
        (70_000, 300, 1),
        (300, 2, 1),
        (20, 2, 1),
        (2000, 256, 1),
    ];
    for (seed, options) in [
        (1_u64, &["-J", "size=1", "-g", "256", "-O", "^extents,^64bit", "-N", "3000"][..]),
        (2, &["-J", "size=4", "-g", "512", "-O", "^extents,^64bit", "-N", "3000"]),
        (3, &["-J", "size=1", "-g", "256", "-O", "^extents,^64bit,^flex_bg", "-N", "3000"]),
        (4, &["-J", "size=1", "-O", "^extents,^64bit", "-N", "3000"]),
    ] {
        for more in 0..2 {
            let files: Vec<_> = (0..24).map(|n| shapes[n % shapes.len()]).collect();
            let Some(fs) = maps(48, options, &files) else { return };
            let mut run = Run::new(fs, seed * 100 + more);
            for number in 0..files.len() {
                let name = format!("v{number}").into_bytes();
                if let Some((ino, _)) = run.fs.lookup(ROOT_INO, &name).unwrap() {
                    assert!(!run.fs.inode(ino).unwrap().has(flag::EXTENTS));
                    run.files.push((ROOT_INO, name, ino));
                }
            }
            let there = run.files.len();
            for step in 0..400 {
                match run.rng.random_range(0..12) {
                    0..4 => {
                        let Some(ino) = run.some_file() else { continue };
                        let size = run.fs.inode(ino).unwrap().size;
                        let to = run.rng.random_range(0..=size);
                        let credits = run.fs.credits_to_free(ino).unwrap();
                        run.within("truncate", credits, |fs| fs.truncate(ino, to, NOW));
                    }
                    4 => run.unlink(),
                    5..7 => run.free(),
                    7 => run.space(),
                    8 => run.place(),
                    9 if step % 5 == 0 => run.fs.commit_here().unwrap(),
                    _ => run.step(),
                }
            }
            run.fs.commit_here().unwrap();
            println!("{options:?}, {there} maps: {:?}", run.shares);
        }
    }
}
