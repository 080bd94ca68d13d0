//! The rules of every file system, names against a model under power cuts, and images.

mod full;
mod host;
mod lost;
mod readers;
mod repaired;

use super::*;
use bimetal_base::random::Random;
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::profile;
use bimetal_osd_core::{Format, Mended, Options};
use std::collections::BTreeMap;

const ROOT_USER: Caller = Caller { uid: 0, gid: 0, umask: 0 };

fn store(blocks: u32) -> Store {
    let mut part: NandProfile = profile::load("slc-2k").unwrap();
    (part.blocks, part.planes, part.factory_bad_percent) = (blocks, 1, 0.0);
    let nand = Nand::new(part, 1, true, Payload::memory());
    let options = Options { buffer_bytes: 64 << 10, ..Options::default() };
    let mut store = Store::format(nand, &Format::default(), options).unwrap();
    OsdFs::make(&mut store, &ROOT_USER).unwrap();
    store
}

fn reopened(store: Store) -> Store {
    let mut nand = store.into_nand();
    nand.power_on();
    Store::open(nand, Options { buffer_bytes: 64 << 10, ..Options::default() }).unwrap()
}

#[test]
fn it_keeps_the_rules_of_every_file_system() {
    bimetal_vfs::rules::check(|| Box::new(OsdFs::new(store(256), true).unwrap()));
}

/// What is wrong with names.
fn check(store: &mut Store) -> Result<Vec<String>> {
    crate::check(store).map(|checked| checked.problems)
}

/// What a repair did.
fn repair(store: &mut Store, lossy: bool) -> Result<Vec<Mended>> {
    let mut done = Vec::new();
    crate::repair(store, lossy, &mut done)?;
    Ok(done)
}

/// All files below a directory, by path, with their contents.
fn tree(fs: &OsdFs, dir: Ino, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino, entry.kind));
        true
    })
    .unwrap();
    for (name, ino, kind) in entries.into_iter().filter(|(name, ..)| name != "." && name != "..") {
        let path = format!("{path}/{name}");
        if kind == Kind::Dir {
            assert_eq!(fs.lookup(ino, b"..").unwrap().ino, dir, "{path}");
            fs.forget(dir, 1);
            found.insert(format!("{path}/"), Vec::new());
            tree(fs, ino, &path, found);
        } else {
            let bytes = fs.read(ino, 0, 1 << 20).unwrap().get().unwrap().concat();
            found.insert(path, bytes);
        }
    }
}

fn all(fs: &OsdFs) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    tree(fs, fs.root(), "", &mut found);
    found
}

/// One random operation on a few names in two directories; an error that is none of the media's is no matter.
fn step(fs: &OsdFs, random: &mut Random) -> Result<()> {
    let name = |random: &mut Random| format!("n{}", random.below(6)).into_bytes();
    let dir = |random: &mut Random| -> Result<Ino> {
        let fallback = fs.root();
        match fs.lookup(fs.root(), [&b"a"[..], b"b"][random.below(2) as usize]) {
            Ok(attr) => {
                fs.forget(attr.ino, 1);
                Ok(if random.chance(0.8) { attr.ino } else { fallback })
            }
            Err(Error::NotFound) => Ok(fallback),
            Err(why) => Err(why),
        }
    };
    let (at, one) = (dir(random)?, name(random));
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"there" };
    let done = match random.below(10) {
        0 => fs.create(&ROOT_USER, fs.root(), [&b"a"[..], b"b"][random.below(2) as usize], &node(Kind::Dir)),
        1..4 => fs.create(&ROOT_USER, at, &one, &node(Kind::File)).and_then(|attr| {
            fs.write(attr.ino, 0, &vec![random.next() as u8; 1 + random.below(3000) as usize], false)?;
            Ok(attr)
        }),
        4 => fs.unlink(at, &one).map(|()| fs.getattr(fs.root()).unwrap()),
        5 => fs.rmdir(fs.root(), &one).map(|()| fs.getattr(fs.root()).unwrap()),
        6..9 => {
            let (to, other) = (dir(random)?, name(random));
            let how = [Rename::Replace, Rename::Exchange, Rename::NoReplace][random.below(3) as usize];
            fs.rename(at, &one, to, &other, how).and_then(|()| fs.getattr(fs.root()))
        }
        _ => fs.lookup(at, &one).and_then(|attr| {
            let name = name(random);
            let linked = fs.link(attr.ino, at, &name);
            fs.forget(attr.ino, 1);
            linked
        }),
    };
    match done {
        Ok(attr) if attr.ino != fs.root() => fs.forget(attr.ino, 1),
        Err(why @ (Error::Gone { .. } | Error::Corrupt { .. } | Error::Io { .. })) => return Err(why),
        _ => {}
    }
    Ok(())
}

#[test]
fn names_are_as_they_were_at_an_instant_since_the_last_fsync_whatever_cuts_the_power() {
    let mut cut = 1;
    loop {
        let mut store = store(64);
        store.nand_mut().cut_power_in(cut);
        let fs = OsdFs::new(store, true).unwrap();
        let mut random = Random::new(cut % 5, "names");
        let mut states = vec![all(&fs)];
        let mut was_cut = false;
        for _ in 0..100 {
            // A new file and its contents are two operations: the state between counts, too.
            let before = states.last().cloned().unwrap();
            was_cut = step(&fs, &mut random).is_err();
            if was_cut {
                break;
            }
            let after = all(&fs);
            let fresh = after.iter().filter(|(path, _)| !before.contains_key(*path));
            let mut between = after.clone();
            fresh.for_each(|(path, _)| drop(between.insert(path.clone(), Vec::new())));
            states.extend([between, after]);
            if random.chance(0.4) {
                was_cut = fs.fsync(fs.root(), false).map(drop).is_err();
                if was_cut {
                    break;
                }
                states = vec![states.pop().unwrap()];
            }
        }
        let mut store = reopened(fs.into_store());
        let checked = store.check(true).unwrap();
        assert!(checked.problems.is_empty(), "cut {cut}: {:?}", checked.problems);
        assert_eq!(check(&mut store).unwrap(), [""; 0], "cut {cut}");
        let fs = OsdFs::new(store, false).unwrap();
        let found = all(&fs);
        // What was under way may have happened, too; its state is not known, so at most one step is missing.
        let known =
            states.contains(&found) || was_cut && states.last().is_some_and(|last| near(last, &found));
        assert!(known, "cut {cut}: {found:?}");
        fs.shutdown().unwrap();
        if !was_cut {
            break;
        }
        cut += 2;
    }
    assert!(cut > 40, "the power went {cut} times");
}

/// Whether two trees differ in no more than the names one operation touches.
fn near(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>) -> bool {
    let differ = |x: &BTreeMap<String, Vec<u8>>, y: &BTreeMap<String, Vec<u8>>| {
        x.iter().filter(|(path, bytes)| y.get(*path) != Some(bytes)).count()
    };
    differ(a, b).max(differ(b, a)) <= 2
}

#[test]
fn what_was_held_without_a_name_is_gone_after_a_crash() {
    let fs = OsdFs::new(store(64), true).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let held = fs.create(&ROOT_USER, fs.root(), b"f", &node).unwrap().ino;
    fs.write(held, 0, &[1; 5000], false).unwrap();
    fs.unlink(fs.root(), b"f").unwrap();
    fs.fsync(held, false).unwrap();
    assert_eq!(fs.read(held, 0, 9).unwrap().get().unwrap().concat(), [1; 9]);
    let mut store = reopened(fs.into_store());
    assert_eq!(store.capacity().objects, 3);
    let fs = OsdFs::new(store, false).unwrap();
    assert!(matches!(fs.getattr(held), Err(Error::Stale)));
    store = fs.into_store();
    assert_eq!(store.capacity().objects, 2);
}

#[test]
fn a_large_directory_keeps_its_room_and_its_places() {
    let fs = OsdFs::new(store(128), true).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let make = |number: u32| {
        let name = format!("file {number:05}");
        let attr = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node).unwrap();
        fs.forget(attr.ino, 1);
    };
    (0..3000).for_each(make);
    let size = fs.getattr(fs.root()).unwrap().size;
    for number in (0..3000).step_by(3) {
        fs.unlink(fs.root(), format!("file {number:05}").as_bytes()).unwrap();
    }
    (5000..6000).for_each(make);
    assert_eq!(fs.getattr(fs.root()).unwrap().size, size);
    assert_eq!(all(&fs).len(), 3000);
    let store = fs.into_store();
    let fs = OsdFs::new(store, true).unwrap();
    assert_eq!(all(&fs).len(), 3000);
    for (path, _) in all(&fs) {
        fs.unlink(fs.root(), &path.as_bytes()[1..]).unwrap();
    }
    assert_eq!(fs.getattr(fs.root()).unwrap().size, 0);
}

#[test]
fn an_image_is_made_written_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let nand = dir.path().join("nand");
    let plan = volume::Plan {
        nand: nand.clone(),
        device: "slc-2k".into(),
        size_bytes: Some(32 << 20),
        format: Format::default(),
        bare: false,
        force: false,
    };
    volume::make(&plan, &ROOT_USER).unwrap();
    assert!(volume::make(&plan, &ROOT_USER).unwrap_err().to_string().contains("--force"));
    let fs = volume::mount(&nand, "slc-2k", true).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let file = fs.create(&ROOT_USER, fs.root(), b"f", &node).unwrap().ino;
    fs.write(file, 0, &vec![3; 100_000], false).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    for writable in [false, true] {
        let fs = volume::mount(&nand, "slc-2k", writable).unwrap();
        assert_eq!(all(&fs)["/f"], vec![3; 100_000]);
        fs.shutdown().unwrap();
    }
    let mut store = volume::open(&nand, "slc-2k", false).unwrap();
    assert!(store.check(true).unwrap().problems.is_empty());
}

#[test]
fn an_error_stays_with_its_file_and_the_file_can_be_removed() {
    let fs = OsdFs::new(store(128), false).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let make = |name: &[u8]| fs.create(&ROOT_USER, fs.root(), name, &node).unwrap().ino;
    let (rotten, healthy, closed) = (make(b"rotten"), make(b"healthy"), make(b"closed"));
    // A page of its own.
    fs.write(rotten, 0, &[1; 2048], false).unwrap();
    fs.fsync(rotten, false).unwrap();
    fs.setxattr(closed, b"user.long", &[9; 3000], SetXattr::Either, false).unwrap();
    fs.sync().unwrap();
    fs.shared.state.lock().store.spoil(ObjectId(rotten.0), 0);
    fs.shared.state.lock().store.spoil_attributes(ObjectId(closed.0));
    fs.write(healthy, 0, &[2; 5000], false).unwrap();
    fs.write(rotten, 300, &[3; 100], false).unwrap();
    assert_eq!(fs.read(rotten, 300, 100).unwrap().get().unwrap().concat(), [3; 100], "it waits in memory");
    for ino in [rotten, healthy, closed] {
        fs.fsync(ino, false).unwrap();
    }
    assert!(matches!(fs.read(rotten, 0, 9), Err(Error::Corrupt { .. })));
    assert_eq!(fs.read(rotten, 300, 100).unwrap().get().unwrap().concat(), [3; 100]);
    assert!(matches!(fs.lookup(fs.root(), b"closed"), Err(Error::Corrupt { .. })));
    let mut names = Vec::new();
    fs.readdir_attrs(fs.root(), 2, &mut |entry, attr| {
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), attr.is_some()));
        true
    })
    .unwrap();
    names.sort();
    assert_eq!(names, [("closed".into(), false), ("healthy".into(), true), ("rotten".into(), true)]);
    for (ino, name) in [(rotten, &b"rotten"[..]), (closed, b"closed")] {
        fs.unlink(fs.root(), name).unwrap();
        fs.forget(ino, 9);
    }
    fs.shutdown().unwrap();
    let mut store = reopened(fs.into_store());
    assert!(store.check(true).unwrap().problems.is_empty());
    assert_eq!(check(&mut store).unwrap(), [""; 0]);
    let fs = OsdFs::new(store, true).unwrap();
    assert_eq!(all(&fs)["/healthy"], [2; 5000]);
}

#[test]
fn a_shutdown_that_could_not_write_everything_says_so() {
    let fs = OsdFs::new(store(128), false).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let file = fs.create(&ROOT_USER, fs.root(), b"f", &node).unwrap().ino;
    fs.write(file, 0, &[1; 300], false).unwrap();
    fs.shared.state.lock().store.nand_mut().cut_power_in(1);
    assert!(fs.shutdown().is_err());
}

#[test]
fn an_operation_that_fails_at_any_of_its_changes_has_changed_nothing() {
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"there" };
    type Operation = fn(&OsdFs, Ino, Ino) -> Result<()>;
    let operations: [(&str, Operation); 10] = [
        ("create", |fs, a, _| {
            let node = NewNode { kind: Kind::File, perm: 0o755, rdev: 0, target: &[] };
            fs.create(&ROOT_USER, a, b"new", &node).map(drop)
        }),
        ("mkdir", |fs, a, _| {
            let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: &[] };
            fs.create(&ROOT_USER, a, b"new", &node).map(drop)
        }),
        ("symlink", |fs, a, _| {
            let node = NewNode { kind: Kind::Symlink, perm: 0o755, rdev: 0, target: b"there" };
            fs.create(&ROOT_USER, a, b"new", &node).map(drop)
        }),
        ("unlink", |fs, a, _| fs.unlink(a, b"one")),
        ("rmdir", |fs, a, _| fs.rmdir(a, b"dir")),
        ("rename", |fs, a, b| fs.rename(a, b"one", b, b"else", Rename::Replace)),
        ("rename over", |fs, a, b| fs.rename(a, b"one", b, b"two", Rename::Replace)),
        ("rename of a directory", |fs, a, b| fs.rename(a, b"dir", b, b"else", Rename::Replace)),
        ("exchange", |fs, a, b| fs.rename(a, b"dir", b, b"two", Rename::Exchange)),
        ("link", |fs, a, b| {
            let one = fs.lookup(a, b"one")?.ino;
            let linked = fs.link(one, b, b"else").map(drop);
            fs.forget(one, if linked.is_ok() { 2 } else { 1 });
            linked
        }),
    ];
    for (name, operation) in operations {
        for flushes in [false, true] {
            let fs = OsdFs::new(store(64), true).unwrap();
            let make = |dir, name: &[u8], kind| fs.create(&ROOT_USER, dir, name, &node(kind)).unwrap().ino;
            let (a, b) = (make(fs.root(), b"a", Kind::Dir), make(fs.root(), b"b", Kind::Dir));
            for (dir, name) in [(a, &b"one"[..]), (a, b"last"), (b, b"two"), (b, b"last")] {
                let ino = make(dir, name, Kind::File);
                fs.write(ino, 0, name, false).unwrap();
                fs.forget(ino, 1);
            }
            let dir = make(a, b"dir", Kind::Dir);
            fs.forget(dir, 1);
            if flushes {
                fs.sync().unwrap();
            }
            let before = all(&fs);
            let attrs = |fs: &OsdFs| {
                let seen = |ino| fs.getattr(ino).map(|attr| (attr.size, attr.nlink, attr.mtime, attr.ctime));
                (seen(a).unwrap(), seen(b).unwrap(), fs.statfs().unwrap().inodes_free)
            };
            let seen = attrs(&fs);
            let mut changes = 0;
            loop {
                changes += 1;
                fs.shared.state.lock().store.fail_in(changes);
                let done = operation(&fs, a, b);
                let failed = !fs.shared.state.lock().store.has_not_failed();
                if !failed {
                    done.unwrap();
                    break;
                }
                assert!(done.is_err(), "{name}, change {changes}");
                assert_eq!((all(&fs), attrs(&fs)), (before.clone(), seen), "{name}, change {changes}");
                if flushes {
                    fs.sync().unwrap();
                }
            }
            assert!(changes > 1 && all(&fs) != before, "{name}: {changes}");
            let mut store = fs.into_store();
            store.sync().unwrap();
            let mut store = reopened(store);
            assert!(store.check(true).unwrap().problems.is_empty(), "{name}");
            assert_eq!(check(&mut store).unwrap(), [""; 0], "{name}");
        }
    }
}

#[test]
fn a_repair_leaves_every_name_and_what_it_can_of_every_file_wherever_the_index_is_damaged() {
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"there" };
    let made = || {
        let fs = OsdFs::new(store(128), true).unwrap();
        for dir in 0..8 {
            let name = format!("d{dir}");
            let dir = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node(Kind::Dir)).unwrap().ino;
            for file in 0..60u8 {
                let name = format!("f{file}");
                let ino = fs.create(&ROOT_USER, dir, name.as_bytes(), &node(Kind::File)).unwrap().ino;
                fs.write(ino, 0, &vec![file; 40 * usize::from(file) + 1], false).unwrap();
                fs.forget(ino, 1);
            }
            fs.forget(dir, 1);
        }
        let before = all(&fs);
        let mut store = fs.into_store();
        store.close().unwrap();
        (store, before)
    };
    let mut damaged = 0;
    for number in 0.. {
        let (mut store, before) = made();
        if !store.spoil_index(number) {
            break;
        }
        damaged += 1;
        let mut store = reopened(store);
        let reports = repair(&mut store, true).unwrap();
        assert!(!reports.is_empty(), "node {number}");
        let mut store = reopened(store);
        assert!(store.check(true).unwrap().problems.is_empty(), "node {number}");
        assert_eq!(check(&mut store).unwrap(), [""; 0], "node {number}: {reports:?}");
        assert_eq!(repair(&mut store, true).unwrap(), [], "node {number}");
        let fs = OsdFs::new(store, true).unwrap();
        assert_eq!(all(&fs), before, "node {number}: {reports:?}");
    }
    assert!(damaged > 10, "{damaged}");
}

#[test]
fn files_and_names_are_as_they_were_after_every_checkpoint_was_damaged() {
    for ends in [false, true] {
        let fs = OsdFs::new(store(128), true).unwrap();
        for number in 0..300u32 {
            let (dir, kept) = match number % 3 {
                0 => (fs.root(), None),
                _ => {
                    let name = format!("dir{}", number % 7);
                    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: &[] };
                    let made = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node);
                    let dir = made.or_else(|_| fs.lookup(fs.root(), name.as_bytes())).unwrap().ino;
                    (dir, Some(dir))
                }
            };
            let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
            let file = fs.create(&ROOT_USER, dir, format!("file{number}").as_bytes(), &node).unwrap().ino;
            let bytes = vec![number as u8; 10 + number as usize * 37];
            fs.write(file, 0, &bytes, false).unwrap();
            fs.forget(file, 1);
            if number % 5 == 4 {
                fs.unlink(dir, format!("file{number}").as_bytes()).unwrap();
            }
            kept.into_iter().for_each(|dir| fs.forget(dir, 1));
            if number % 40 == 39 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        let before = all(&fs);
        let mut store = fs.into_store();
        if ends {
            store.close().unwrap();
        }
        let options = || Options { buffer_bytes: 64 << 10, ..Options::default() };
        store.spoil_checkpoints();
        let mut nand = store.into_nand();
        nand.power_on();
        let (mut store, reports) = Store::rebuild(nand, options(), Live::wall_clock().into()).unwrap();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(repair(&mut store, true).unwrap(), []);
        let mut store = reopened(store);
        assert_eq!(check(&mut store).unwrap(), [""; 0]);
        assert!(store.check(true).unwrap().problems.is_empty());
        assert_eq!(all(&OsdFs::new(store, true).unwrap()), before, "ends {ends}");
    }
}

/// A store of 16 GiB as `mkfs osd --size 16GiB` makes it: its checkpoint is longer than an anchor can name.
#[test]
#[ignore = "takes ten seconds and 300 MB of memory; make test-long"]
fn a_large_object_and_many_small_ones_on_an_image_of_16_gib_are_there_after_each_opening() {
    let folder = tempfile::tempdir().unwrap();
    let nand = folder.path().join("nand.img");
    let plan = volume::Plan {
        nand: nand.clone(),
        device: volume::DEVICE.into(),
        size_bytes: Some(16 << 30),
        format: Format::default(),
        bare: false,
        force: false,
    };
    let total = volume::make(&plan, &ROOT_USER).unwrap();
    assert!(total > 15 << 30, "{total}");
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: &[] };
    let chunk = |n: u64| (0..1u64 << 20).map(|at| (at.wrapping_mul(n + 1) >> 5) as u8).collect::<Vec<u8>>();
    let small = |n: u64| (0..1 + n % 3000).map(|at| (at * 7 + n) as u8).collect::<Vec<u8>>();
    let mut files = Vec::new();
    {
        let fs = volume::mount(&nand, volume::DEVICE, true).unwrap();
        let large = fs.create(&ROOT_USER, fs.root(), b"large", &node(Kind::File)).unwrap().ino;
        for n in 0..100 {
            fs.write(large, n << 20, &chunk(n), false).unwrap();
        }
        for n in 0..20_000u64 {
            let dir = format!("d{}", n / 500);
            let dir = match n % 500 {
                0 => fs.create(&ROOT_USER, fs.root(), dir.as_bytes(), &node(Kind::Dir)),
                _ => fs.lookup(fs.root(), dir.as_bytes()),
            };
            let dir = dir.unwrap().ino;
            let name = format!("f{n}");
            let file = fs.create(&ROOT_USER, dir, name.as_bytes(), &node(Kind::File)).unwrap().ino;
            fs.write(file, 0, &small(n), false).unwrap();
            files.push((file, n));
            fs.forget(dir, 1);
        }
        fs.sync().unwrap();
        files.push((large, u64::MAX));
        files.iter().for_each(|(file, _)| fs.forget(*file, 1));
        fs.shutdown().unwrap();
    }
    let compare = |store: Store| {
        let fs = OsdFs::new(store, true).unwrap();
        for (file, n) in &files {
            if *n < u64::MAX {
                let read = fs.read(*file, 0, 4000).unwrap().get().unwrap().concat();
                assert_eq!(read, small(*n), "file {n}");
                continue;
            }
            for n in 0..100 {
                let read = fs.read(*file, n << 20, 1 << 20).unwrap().get().unwrap().concat();
                assert!(read == chunk(n), "MiB {n}");
            }
        }
        fs.into_store()
    };
    let mut store = compare(volume::open(&nand, volume::DEVICE, true).unwrap());
    assert_eq!(check(&mut store).unwrap(), [""; 0]);
    assert!(store.check(false).unwrap().problems.is_empty());
    // Every checkpoint damaged, and put together again.
    store.spoil_checkpoints();
    drop(store);
    let why = volume::open(&nand, volume::DEVICE, true).err().unwrap().to_string();
    assert!(why.contains("fsck --yes"), "{why}");
    let began = std::time::Instant::now();
    let (store, reports) = volume::rebuild(&nand, volume::DEVICE).unwrap();
    eprintln!("put together in {:.1} s: {reports:?}", began.elapsed().as_secs_f64());
    assert_eq!(reports.len(), 1, "{reports:?}");
    drop(compare(store));
    drop(compare(volume::open(&nand, volume::DEVICE, true).unwrap()));
}

#[test]
fn directories_that_lead_back_to_themselves_are_an_error_of_theirs() {
    let fs = OsdFs::new(store(64), true).unwrap();
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: &[] };
    let make = |dir, name: &[u8]| fs.create(&ROOT_USER, dir, name, &node).unwrap().ino;
    let one = make(fs.root(), b"one");
    let (two, other) = (make(one, b"two"), make(fs.root(), b"other"));
    {
        let store = &mut fs.shared.state.lock().store;
        let mut inode = Inode::read(store, one.0).unwrap();
        inode.parent = two.0;
        inode.write(store, one.0).unwrap();
    }
    let moved = fs.rename(fs.root(), b"other", two, b"other", Rename::Replace);
    let error = moved.unwrap_err().to_string();
    assert!(error.contains(&format!("object {}", two.0)), "{error}");
    fs.rename(fs.root(), b"other", fs.root(), b"else", Rename::Replace).unwrap();
    fs.forget(other, 1);
    let mut store = fs.into_store();
    let problems = check(&mut store).unwrap();
    assert!(problems.iter().any(|why| why.starts_with(&format!("directory {}:", one.0))), "{problems:?}");
}
