//! Metadata read without the lock, and read ahead: what comes late must not undo what happened meanwhile.

use super::rig::{self, Rig, at, plain};
use bimetal::fs::ext4::{CacheLimits, Create, Ext4, OpenOptions, ROOT_INO, Wanted};
use bimetal::media::BlockDevice;
use bimetal::media::counted::Counted;
use bimetal::media::file::FileDevice;
use bimetal::time::Time;
use bimetal::units::Ino;
use bytes::Bytes;
use std::sync::Arc;

/// An image with `files` files `f0`, `f1`, … in the root.
fn image(files: u64) -> (tempfile::TempDir, std::path::PathBuf) {
    let (dir, path) = rig::make(65_536, "-t ext4 -b 4096 -N 8192");
    let mut rig = Rig::of(dir, path);
    for number in 0..files {
        let name = format!("f{number}");
        let now = rig.now();
        rig.fs.create(&spec(name.as_bytes(), now)).expect("a file");
        if number % 100 == 99 {
            rig.commit();
        }
    }
    rig.commit();
    let now = rig.now();
    rig.fs.close(now).expect("a clean end");
    (rig.dir, rig.image)
}

fn spec(name: &[u8], now: bimetal::time::Stamp) -> Create<'_> {
    Create { name, ..plain(now) }
}

/// Opens it with so little memory that everything is dropped soon.
fn open_small(path: &std::path::Path) -> (Arc<Counted>, Ext4) {
    let disk = Arc::new(Counted::new(Arc::new(FileDevice::open(path, true).expect("the image"))));
    let cache = CacheLimits { buffer_bytes: 16 * 4096, inodes: 4, groups: 1 };
    let options = OpenOptions { now: at(1000), cache, ..OpenOptions::default() };
    (disk.clone(), Ext4::open(disk, options).expect("a file system that opens"))
}

fn commit(fs: &mut Ext4) {
    let frozen = fs.freeze(at(2000), None).expect("a freeze");
    fs.journal().commit(Time::ZERO, frozen.transaction).expect("a commit");
    fs.committed(frozen.tid);
}

fn read(disk: &Counted, wanted: &Wanted) -> Vec<Bytes> {
    let disk: &dyn BlockDevice = disk;
    wanted.reads().map(|at| disk.read(at.start, (at.end - at.start) as usize).expect("a read")).collect()
}

fn supply(fs: &mut Ext4, wanted: &Wanted, read: &[Bytes]) {
    read.iter().enumerate().for_each(|(number, bytes)| fs.supply(wanted, number, bytes));
}

/// The inode numbers of the files, and nothing of them in memory.
fn numbers(fs: &mut Ext4, files: u64) -> Vec<Ino> {
    let found = (0..files).map(|number| fs.lookup(ROOT_INO, format!("f{number}").as_bytes()));
    found.map(|entry| entry.expect("a look-up").expect("the file").0).collect()
}

#[test]
fn what_was_read_before_a_change_that_is_home_and_out_of_memory_again_is_not_taken() {
    let (_dir, path) = image(1000);
    let (disk, mut fs) = open_small(&path);
    let inos = numbers(&mut fs, 1000);
    let victim = inos[0];
    // Push it out of memory, then miss it, and read what it is now.
    inos[500..].iter().for_each(|ino| assert_eq!(fs.inode(*ino).expect("an inode").ino(), *ino));
    fs.shun_reads();
    assert!(fs.inode(victim).is_err());
    let wanted = fs.missed().expect("something was missing");
    let old = read(&disk, &wanted);
    // Meanwhile it changes, goes home, and is dropped again.
    fs.inode_mut(victim).expect("the inode").uid = 77;
    commit(&mut fs);
    fs.journal().checkpoint(Time::ZERO).expect("everything home");
    for _ in 0..4 {
        inos[500..].iter().for_each(|ino| assert_eq!(fs.inode(*ino).expect("an inode").ino(), *ino));
    }
    supply(&mut fs, &wanted, &old);
    assert_eq!(fs.inode(victim).expect("the inode").uid, 77);
}

#[test]
fn what_is_in_memory_or_in_the_journal_is_newer_than_what_is_handed_in() {
    for home in [false, true] {
        let (_dir, path) = image(1000);
        let (disk, mut fs) = open_small(&path);
        let inos = numbers(&mut fs, 1000);
        inos[500..].iter().for_each(|ino| assert_eq!(fs.inode(*ino).expect("an inode").ino(), *ino));
        fs.shun_reads();
        assert!(fs.inode(inos[0]).is_err());
        let wanted = fs.missed().expect("something was missing");
        let old = read(&disk, &wanted);
        fs.inode_mut(inos[0]).expect("the inode").uid = 77;
        if home {
            commit(&mut fs);
        }
        supply(&mut fs, &wanted, &old);
        commit(&mut fs);
        fs.journal().checkpoint(Time::ZERO).expect("everything home");
        fs.close(at(3000)).expect("a clean end");
        let (_, mut fs) = open_small(&path);
        assert_eq!(fs.inode(inos[0]).expect("the inode").uid, 77, "home: {home}");
    }
}

#[test]
fn a_look_up_that_is_handed_what_it_misses_needs_no_read_of_its_own() {
    let (_dir, path) = image(1000);
    let disk = Arc::new(Counted::new(Arc::new(FileDevice::open(&path, true).expect("the image"))));
    let mut fs =
        Ext4::open(disk.clone(), OpenOptions { now: at(1000), ..OpenOptions::default() }).expect("open");
    let mut rounds = 0;
    let ino = loop {
        let before = disk.counts().reads;
        fs.shun_reads();
        let found = fs.lookup(ROOT_INO, b"f700");
        assert_eq!(disk.counts().reads, before, "it read");
        let Some(wanted) = fs.missed() else { break found.expect("an answer").expect("the file").0 };
        supply(&mut fs, &wanted, &read(&disk, &wanted));
        rounds += 1;
        assert!(rounds < 8, "what is handed in is not taken");
    };
    assert!(rounds >= 2, "{rounds} rounds");
    fs.shun_reads();
    let known = fs.inode(ino).map(|inode| inode.uid);
    assert!(fs.missed().is_some() || known.is_ok());
}

#[test]
fn a_neighbour_that_cannot_be_read_is_no_reason_to_fail() {
    use bimetal::media::faulty::{Effect, Faulty, Kind, When};
    let (_dir, path) = image(1000);
    let inos = numbers(&mut open_small(&path).1, 1000);
    let faulty = Arc::new(Faulty::new(Arc::new(FileDevice::open(&path, true).expect("the image"))));
    let mut fs =
        Ext4::open(faulty.clone(), OpenOptions { now: at(1000), ..OpenOptions::default() }).expect("open");
    // The table block of one that is far from the root's; the next one fails.
    let far = inos[600];
    fs.shun_reads();
    assert!(fs.inode(far).is_err());
    let wanted = fs.missed().expect("it is not in memory");
    let read = wanted.reads().next().expect("a read");
    assert!(read.end - read.start > 4096, "no neighbours are read");
    let bad = read.end - 4096;
    faulty.plan(Kind::Read, When::Touching(bad..bad + 4096), Effect::Error(5));
    assert!(fs.inode(far).is_ok());
}

#[test]
fn a_listing_of_a_cold_directory_takes_a_few_long_reads() {
    let (_dir, path) = image(8000);
    let disk = Arc::new(Counted::new(Arc::new(FileDevice::open(&path, true).expect("the image"))));
    let mut fs =
        Ext4::open(disk.clone(), OpenOptions { now: at(1000), ..OpenOptions::default() }).expect("open");
    let before = disk.counts().reads;
    let mut inos = Vec::new();
    fs.readdir(ROOT_INO, 0, &mut |entry| {
        inos.push(entry.ino);
        true
    })
    .expect("a listing");
    let listed = disk.counts().reads - before;
    for batch in inos.chunks(64) {
        batch.iter().for_each(|ino| fs.hint_inode(*ino));
        batch.iter().for_each(|ino| assert_eq!(fs.inode(*ino).expect("an inode").ino(), *ino));
    }
    let all = disk.counts().reads - before;
    println!(
        "8000 names in the order of their hashes: {listed} reads for the names, {all} with their inodes"
    );
    // 500 table blocks are 2 MiB, the names some 50 blocks.
    assert!(listed <= 8 && all <= 16, "{listed} reads for the names, {all} with their inodes");
}
