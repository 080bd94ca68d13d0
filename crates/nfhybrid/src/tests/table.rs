//! A walk over an SSD whose inode table is full: what finds no slot there loses nothing.

use super::full::check_disk;
use super::promises::{noise, write};
use super::sizes::{Act, Cuts, Images, Meanwhile};
use super::*;
use bimetal_base::time::Time;
use bimetal_media::{Completion, Request, filter::Filter};
use bimetal_vfs::Fallocate;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file, and what it may be after a cut: what was last made durable, and all that it was since.
struct Walked {
    ino: Ino,
    /// Its name is durable.
    named: bool,
    versions: Vec<Vec<u8>>,
}

impl Walked {
    fn now(&self) -> &Vec<u8> {
        self.versions.last().unwrap()
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.now().clone();
        change(&mut bytes);
        self.versions.push(bytes);
    }

    fn write(&mut self, fs: &NfHybrid, at: u64, new: &[u8]) {
        assert_eq!(write(fs, self.ino, at, new).unwrap(), new.len());
        let range = at as usize..at as usize + new.len();
        self.change(|bytes| {
            bytes.resize(bytes.len().max(range.end), 0);
            bytes[range].copy_from_slice(new);
        });
    }

    fn is_durable(&mut self) {
        self.named = true;
        self.versions.drain(..self.versions.len() - 1);
    }

    /// Whether it may be this: a size that it had, and at each place a byte that was there.
    fn may_be(&self, found: &[u8]) -> bool {
        self.versions.iter().any(|version| version == found)
            || self.versions.iter().any(|version| version.len() == found.len())
                && (0..found.len())
                    .all(|at| self.versions.iter().any(|version| version.get(at) == Some(&found[at])))
    }
}

/// A half that keeps what a cut would leave, while it is asked to.
struct When {
    plain: Arc<Ram>,
    cuts: Cuts,
    keeps: Arc<AtomicBool>,
}

impl Filter for When {
    fn inner(&self) -> &dyn BlockDevice {
        if self.keeps.load(Ordering::Relaxed) { &self.cuts } else { &*self.plain }
    }

    fn pass(&self, at: Time, request: Request) -> std::result::Result<(Time, Request), Completion> {
        Ok((at, request))
    }
}

type Files = std::collections::BTreeMap<String, Walked>;

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

/// What halves hold that were cut off like this: every name that was promised, and of every file what it may be.
fn check_cut(images: [Vec<u8>; 2], files: &Files, at: &str) {
    let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
    for round in ["", ", mounted again"] {
        let fs = open(&disk, Some(&ssd), manual()).unwrap_or_else(|error| panic!("{at}{round}: {error}"));
        for (name, file) in files {
            if fs.lookup(ROOT_INO, name.as_bytes()).is_err() {
                assert!(!file.named, "{at}{round}: {name} is gone");
                continue;
            }
            let found = contents(&fs, name);
            assert!(file.may_be(&found), "{at}{round}: {name}, {} bytes", found.len());
        }
        fs.shutdown().unwrap();
    }
}

fn walk(seed: u64) {
    let mut random = bimetal_base::random::Random::new(seed, "table");
    let mut pick = |below: u64| random.next() % below;
    let config = ssd::Config { bytes_per_slot: 1 << 20, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_with(64, 16, &config, &["-b", "4096", "-J", "size=16"]) else { return };
    let images = Images::default();
    let act: Arc<Mutex<Option<Act>>> = Arc::default();
    let keeps: Arc<AtomicBool> = Arc::default();
    let cuts = Cuts { halves: [disk.clone(), ssd.clone()], is_ssd: false, images: images.clone() };
    let on_disk = Arc::new(When { plain: disk.clone(), cuts, keeps: keeps.clone() });
    let is_it: fn(&Request) -> bool = |request| matches!(request, Request::Flush);
    let on_disk = Arc::new(Meanwhile { inner: on_disk, act: act.clone(), is_it });
    let fs = Arc::new(NfHybrid::open(on_disk, Some(ssd.clone()), manual()).unwrap());
    let (mut files, mut made, mut full) = (Files::new(), 0, 0);
    for step in 0..200 {
        let chosen = files.keys().nth(pick(files.len().max(1) as u64) as usize).cloned();
        let at = if pick(2) == 0 { 0 } else { pick(60) * 4096 };
        let len = (1 + pick(3)) * 4096;
        let has_slots = fs.shared.core.lock().ssd.as_ref().unwrap().has_slots(1);
        full += usize::from(!has_slots);
        match (pick(if has_slots { 240 } else { 24 }), chosen) {
            (0..8, Some(name)) => {
                let file = files.get_mut(&name).unwrap();
                let new = noise(seed * 1000 + step, len as usize);
                file.write(&fs, at, &new);
                fsync(&fs, file.ino);
                file.is_durable();
                files.values_mut().for_each(|file| file.named = true);
                if pick(2) == 0 {
                    check_cut([disk.image(), ssd.image()], &files, &format!("seed {seed}, fsync {step}"));
                }
            }
            (8 | 9, Some(name)) => {
                let file = files.get_mut(&name).unwrap();
                fs.fallocate(file.ino, at, len, Fallocate::Punch).unwrap();
                file.change(|bytes| {
                    let size = bytes.len();
                    bytes[(at as usize).min(size)..((at + len) as usize).min(size)].fill(0);
                });
            }
            (10, Some(name)) => {
                let file = files.get_mut(&name).unwrap();
                fs.setattr(file.ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                file.change(|bytes| bytes.resize(at as usize, 0));
            }
            (11, Some(name)) if files.len() > 4 => {
                let file = files.remove(&name).unwrap();
                fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
                fs.forget(file.ino, 1);
            }
            (12..16, Some(name)) => {
                let file = files.get_mut(&name).unwrap();
                let new = noise(seed * 1000 + step, len as usize);
                file.write(&fs, at, &new);
            }
            (16..19, _) => {
                // Another file is made and fsynced while the disk takes what the commit has.
                let (name, bytes) = (format!("m{step}"), noise(seed * 1000 + step, 12_000));
                let (at_fs, new, halves) =
                    (fs.clone(), (name.clone(), bytes.clone()), [disk.clone(), ssd.clone()]);
                let during = Images::default();
                let seen = during.clone();
                *act.lock().unwrap() = Some(Box::new(move || {
                    let ino = create(&at_fs, &new.0, &new.1);
                    fsync(&at_fs, ino);
                    seen.lock().unwrap().push(halves.map(|half| half.image()));
                }));
                keeps.store(true, Ordering::Relaxed);
                fs.commit().unwrap();
                keeps.store(false, Ordering::Relaxed);
                let cuts = std::mem::take(&mut *images.lock().unwrap());
                if act.lock().unwrap().take().is_none() {
                    let ino = fs.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
                    files.insert(name.clone(), Walked { ino, named: false, versions: vec![vec![], bytes] });
                    let every = cuts.len().div_ceil(3).max(1);
                    for images in cuts.into_iter().skip(pick(every as u64) as usize).step_by(every) {
                        check_cut(images, &files, &format!("seed {seed}, a cut in commit {step}"));
                    }
                    let file = files.get_mut(&name).unwrap();
                    file.is_durable();
                    for images in std::mem::take(&mut *during.lock().unwrap()) {
                        check_cut(images, &files, &format!("seed {seed}, an fsync in commit {step}"));
                    }
                }
                files.values_mut().for_each(Walked::is_durable);
            }
            (19, Some(name)) => {
                // Read twice, for a copy.
                (0..2).for_each(|_| {
                    assert!(contents(&fs, &name) == *files[&name].now(), "seed {seed}, {step}")
                });
            }
            _ => {
                made += 1;
                let name = format!("f{made}");
                let bytes = noise(seed * 1000 + step, if made % 9 == 1 { 240_000 } else { 12_000 });
                let ino = create(&fs, &name, &bytes);
                fsync(&fs, ino);
                files.insert(name, Walked { ino, named: true, versions: vec![bytes] });
            }
        }
    }
    for (name, file) in &files {
        assert!(contents(&fs, name) == *file.now(), "seed {seed}, at the end: {name}");
    }
    check_cut([disk.image(), ssd.image()], &files, &format!("seed {seed}, at the end"));
    assert!(full > 2, "seed {seed}: the table was full at {full} steps");
    Arc::into_inner(fs).unwrap().shutdown().unwrap();
    check_disk(&disk);
}

/// A part of a file that only the SSD has is punched, or cut off, and nobody syncs that. A commit makes room in the inode table,
/// and the power goes in it: what was cut off is there again, and is what was fsynced.
#[test]
fn eviction_forgets_nothing_that_a_crash_brings_back() {
    for cut in [Some(Fallocate::Punch), None] {
        let config = ssd::Config { bytes_per_slot: 1 << 30, ..ssd::Config::default() };
        let Some((disk, ssd)) = halves_with(48, 16, &config, &["-b", "4096", "-J", "size=8"]) else { return };
        let (images, keeps) = (Images::default(), Arc::<AtomicBool>::default());
        let cuts = Cuts { halves: [disk.clone(), ssd.clone()], is_ssd: false, images: images.clone() };
        let on_disk = Arc::new(When { plain: disk.clone(), cuts, keeps: keeps.clone() });
        let fs = NfHybrid::open(on_disk, Some(ssd.clone()), manual()).unwrap();
        let (old, new) = (noise(1, 200 * 4096), noise(2, 100 * 4096));
        let file = create(&fs, "file", &old);
        fs.commit().unwrap();
        assert_eq!(write(&fs, file, 50 * 4096, &new).unwrap(), new.len());
        fsync(&fs, file);
        while fs.shared.core.lock().ssd.as_ref().unwrap().has_slots(1) {
            let (number, _) = fs.status().operations;
            let ino = create(&fs, &format!("one more {number}"), &noise(number, 12_000));
            fsync(&fs, ino);
        }
        match cut {
            Some(how) => fs.fallocate(file, 50 * 4096, 100 * 4096, how).unwrap(),
            None => drop(fs.setattr(file, &SetAttr { size: Some(50 * 4096), ..SetAttr::default() }).unwrap()),
        }
        let now = contents(&fs, "file");
        keeps.store(true, Ordering::Relaxed);
        fs.commit().unwrap();
        fs.abandon();
        let synced = [&old[..50 * 4096], &new, &old[150 * 4096..]].concat();
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(!images.is_empty());
        for (number, images) in images.into_iter().enumerate() {
            let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
            let fs = open(&disk, Some(&ssd), manual()).unwrap();
            let found = contents(&fs, "file");
            assert!(found == synced || found == now, "{cut:?}, cut {number}: {} bytes", found.len());
            fs.abandon();
        }
    }
}

/// A commit under way has bound new contents of a stretch that was fsynced before it. An fsync overwrites the middle of that, and the
/// slot of the file is full: the rest moves to another. The power goes when the log has that and not the end of the fsync.
#[test]
fn what_moved_is_there_only_if_what_bound_it_is() {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let options = ["-b", "4096", "-N", "3000", "-J", "size=8"];
    let Some((disk, ssd)) = halves_with(48, 16, &config, &options) else { return };
    let (images, act) = (Images::default(), Arc::<Mutex<Option<Act>>>::default());
    let keeps: Arc<AtomicBool> = Arc::default();
    let cuts = Cuts { halves: [disk.clone(), ssd.clone()], is_ssd: true, images: images.clone() };
    let on_ssd = Arc::new(When { plain: ssd.clone(), cuts, keeps: keeps.clone() });
    let is_it: fn(&Request) -> bool = |request| matches!(request, Request::Flush);
    let on_disk = Arc::new(Meanwhile { inner: disk.clone(), act: act.clone(), is_it });
    let fs = Arc::new(NfHybrid::open(on_disk, Some(on_ssd), manual()).unwrap());
    let mut file = Walked { ino: create(&fs, "file", b""), named: true, versions: vec![noise(1, 60 * 4096)] };
    assert_eq!(write(&fs, file.ino, 0, &noise(1, 60 * 4096)).unwrap(), 60 * 4096);
    fs.commit().unwrap();
    for hole in [2, 4, 6, 8, 10] {
        fs.fallocate(file.ino, hole * 4096, 4096, Fallocate::Punch).unwrap();
        file.change(|bytes| bytes[hole as usize * 4096..][..4096].fill(0));
    }
    fs.commit().unwrap();
    file.write(&fs, 20 * 4096, &noise(2, 20 * 4096));
    fsync(&fs, file.ino);
    file.is_durable();
    file.write(&fs, 20 * 4096, &noise(3, 20 * 4096));
    let (at_fs, ino, keep) = (fs.clone(), file.ino, keeps.clone());
    *act.lock().unwrap() = Some(Box::new(move || {
        assert_eq!(write(&at_fs, ino, 28 * 4096, &noise(4, 4 * 4096)).unwrap(), 4 * 4096);
        for number in 0..200 {
            create(&at_fs, &format!("n{number}"), b"");
        }
        keep.store(true, Ordering::Relaxed);
        fsync(&at_fs, ino);
        keep.store(false, Ordering::Relaxed);
    }));
    fs.commit().unwrap();
    file.change(|bytes| bytes[28 * 4096..32 * 4096].copy_from_slice(&noise(4, 4 * 4096)));
    assert!(act.lock().unwrap().is_none(), "nothing was done in the commit");
    let files = Files::from([("file".to_string(), file)]);
    let cuts = std::mem::take(&mut *images.lock().unwrap());
    assert!(cuts.len() > 4, "{}", cuts.len());
    for (number, images) in cuts.into_iter().enumerate() {
        check_cut(images, &files, &format!("cut {number}"));
    }
    Arc::into_inner(fs).unwrap().shutdown().unwrap();
    check_disk(&disk);
}

#[test]
fn whatever_is_done_to_an_ssd_whose_inode_table_is_full_what_was_promised_is_there() {
    let seeds = std::env::var("TABLE").map_or(0..8, |text| {
        let (from, to) = text.split_once("..").expect("TABLE=from..to");
        from.parse().unwrap()..to.parse().unwrap()
    });
    seeds.for_each(walk);
}
