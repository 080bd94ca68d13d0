//! What a check and a repair make of lost inodes: of a whole small file system, of objects whose attributes cannot be read, and of
//! stores that never had any.

use super::repaired::{DIR, fill, is_right, make};
use super::*;
use bimetal_vfs::SetXattr;

/// A store without a file system.
fn bare() -> Store {
    let mut part: NandProfile = profile::load("slc-2k").unwrap();
    (part.blocks, part.planes, part.factory_bad_percent) = (64, 1, 0.0);
    let nand = Nand::new(part, 1, true, Payload::memory());
    Store::format(nand, &Format::default(), Options::default()).unwrap()
}

/// A closed store with so many files in the root, of which the only node of the index is damaged; what was there.
fn without_its_leaf(files: u64) -> (Store, BTreeMap<String, Vec<u8>>) {
    let fs = OsdFs::new(store(64), true).unwrap();
    (0..files).for_each(|number| fill(&fs, fs.root(), &format!("file{number}")));
    let before = all(&fs);
    let mut store = fs.into_store();
    store.close().unwrap();
    assert!(store.spoil_index(0) && !store.spoil_index(1), "{files} files take one node");
    (reopened(store), before)
}

#[test]
fn a_file_system_in_one_leaf_is_one_after_that_leaf_was_lost() {
    for files in [0, 1, 3, 10] {
        let (mut store, before) = without_its_leaf(files);
        assert_ne!(check(&mut store).unwrap(), [""; 0], "{files} files");
        assert_eq!(repair(&mut store, false).unwrap(), [], "{files} files");
        let reports = repair(&mut store, true).unwrap();
        assert!(reports.iter().any(|report| report.what.contains("directory 1:")), "{reports:?}");
        assert_eq!(is_right(store, &format!("{files} files")), before, "{reports:?}");
    }
}

#[test]
fn a_repair_of_a_file_system_without_its_leaf_may_be_cut_off_anywhere() {
    for files in [0, 3] {
        for cut in 1.. {
            let (mut store, before) = without_its_leaf(files);
            store.nand_mut().cut_power_in(cut);
            let done = repair(&mut store, true).and_then(|_| store.close());
            let mut store = reopened(store);
            repair(&mut store, true).unwrap();
            assert_eq!(is_right(store, &format!("{files} files, cut {cut}")), before);
            if done.is_ok() {
                assert!(cut > 3, "{cut}");
                break;
            }
        }
    }
}

#[test]
fn directories_without_any_inode_are_told_from_objects_of_users() {
    let entry = |object: u64, name: &str| {
        let mut bytes = object.to_le_bytes().to_vec();
        bytes.extend([4, name.len() as u8]);
        bytes.extend(name.as_bytes());
        bytes
    };
    let mut random = Random::new(1, "users");
    let noise: Vec<u8> = (0..9000).map(|_| (random.next() % 5) as u8).collect();
    let text = b"3 files: a, b, c".repeat(300);
    let numbers: Vec<u8> = (0..900u64).flat_map(u64::to_le_bytes).collect();
    let root = [entry(3, "one"), entry(0, "gone"), entry(4, "two")].concat();
    let within = [vec![7; 500], root.clone(), vec![0; 500]].concat();
    // What the first two objects hold, and whether that is a file system's.
    let cases = [
        (root.clone(), vec![], true),
        (root.clone(), entry(4, "4"), true),
        (root.clone(), entry(4, "four"), false),
        (root.clone(), text.clone(), false),
        (entry(77, "nothing"), vec![], false),
        (vec![], vec![], false),
        (vec![0; 9000], vec![0; 9000], false),
        (noise.clone(), vec![], false),
        (noise, text.clone(), false),
        (text, vec![], false),
        (numbers, vec![], false),
        (within, vec![], false),
    ];
    for (number, (first, second, has_files)) in cases.into_iter().enumerate() {
        let mut store = bare();
        for bytes in [&first[..], &second, b"third", b"fourth"] {
            let id = store.create(0).unwrap();
            store.write(id, 0, Content::Bytes(bytes)).unwrap();
        }
        store.close().unwrap();
        for damaged in [false, true] {
            if damaged {
                // Empty objects are gone with it.
                assert!(store.spoil_index(0));
            }
            store = reopened(store);
            let reports = repair(&mut store, true).unwrap();
            assert_eq!(check(&mut store).unwrap(), [""; 0], "case {number}: {reports:?}");
            let ids = store.readable_objects().unwrap();
            let named = ids.into_iter().filter(|id| !store.list_attributes(*id).unwrap().is_empty()).count();
            assert_eq!(named > 0, has_files, "case {number}: {reports:?}");
            if !has_files {
                assert_eq!(reports.is_empty(), !damaged, "case {number}");
                assert_eq!(store.read(ObjectId(1), 0, 20_000).unwrap_or_default(), first, "case {number}");
            }
            store.close().unwrap();
        }
        if has_files {
            let found: Vec<String> = all(&OsdFs::new(store, true).unwrap()).into_keys().collect();
            assert_eq!(found, ["/one", "/two"], "case {number}");
        } else {
            let why = OsdFs::new(store, true).err().unwrap().to_string();
            assert!(why.contains("there is no file system on the object store"), "case {number}: {why}");
        }
    }
}

/// A file system with something in a directory in the root.
fn made() -> OsdFs {
    let fs = OsdFs::new(store(64), true).unwrap();
    let dir = make(&fs, fs.root(), "dir", &DIR);
    let below = make(&fs, dir, "below", &DIR);
    for at in [fs.root(), dir, below] {
        (0..5).for_each(|number| fill(&fs, at, &format!("file{number}")));
    }
    make(&fs, below, "link", &NewNode { kind: Kind::Symlink, perm: 0o777, rdev: 0, target: b"eight by" });
    fs
}

/// The object at a path.
fn at(fs: &OsdFs, path: &str) -> Ino {
    path.split('/').filter(|name| !name.is_empty()).fold(fs.root(), |dir, name| {
        let found = fs.lookup(dir, name.as_bytes()).unwrap().ino;
        fs.forget(found, 1);
        found
    })
}

const LONG: &[u8] = b"user.long";

#[test]
fn what_has_attributes_that_cannot_be_read_is_given_new_ones_and_keeps_all_else() {
    for path in ["/", "/dir", "/dir/below", "/file3", "/dir/below/file2", "/dir/below/link"] {
        let fs = made();
        let ino = at(&fs, path);
        fs.setxattr(ino, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
        fs.sync().unwrap();
        let before = all(&fs);
        let kind = fs.getattr(ino).unwrap().kind;
        let mut store = fs.into_store();
        store.close().unwrap();
        store.spoil_attributes(ObjectId(ino.0));
        let mut store = reopened(store);
        let checked = crate::check(&mut store).unwrap();
        assert!(checked.is_lost && !checked.is_closed, "{path}: {checked:?}");
        assert_eq!(checked.problems.len(), 1, "{path}: {checked:?}");
        assert!(checked.problems[0].contains(&format!("object {ino}")), "{path}: {checked:?}");
        if path == "/" {
            let why = OsdFs::new(reopened(store), true).err().unwrap().to_string();
            assert!(why.contains("bimetal fsck --yes"), "{why}");
            store = {
                let fs = made();
                fs.setxattr(ino, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
                let mut store = fs.into_store();
                store.close().unwrap();
                store.spoil_attributes(ObjectId(ino.0));
                reopened(store)
            };
        }
        assert_eq!(
            repair(&mut store, false).unwrap(),
            [],
            "{path}: what costs something is not done unasked"
        );
        let reports = repair(&mut store, true).unwrap();
        let says = |report: &Mended| {
            report.lost && report.what.contains(&format!(" {ino}:")) && report.what.contains("attributes")
        };
        assert!(reports.iter().any(says), "{path}: {reports:?}");
        store.close().unwrap();
        let fs = OsdFs::new(reopened(store), true).unwrap();
        assert_eq!(fs.getattr(ino).unwrap().kind, kind, "{path}");
        assert!(matches!(fs.getxattr(ino, LONG), Err(Error::NoAttribute)), "{path}");
        assert_eq!(is_right(fs.into_store(), path), before, "{path}: {reports:?}");
    }
}

#[test]
fn an_error_of_one_object_ends_neither_a_check_nor_a_repair_of_the_others() {
    let fs = made();
    let (closed, gone) = (at(&fs, "/dir/file1"), at(&fs, "/file4"));
    fs.setxattr(closed, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
    fs.sync().unwrap();
    let mut store = fs.into_store();
    // Something that is mended for nothing, and something that is lost.
    let wrong = Inode::read(&mut store, gone.0).unwrap();
    Inode { nlink: 7, ..wrong }.write(&mut store, gone.0).unwrap();
    store.close().unwrap();
    store.spoil_attributes(ObjectId(closed.0));
    let mut store = reopened(store);
    let problems = check(&mut store).unwrap();
    let says = |object: Ino| problems.iter().any(|why| why.contains(&format!("object {object}:")));
    assert!(says(closed) && says(gone), "{problems:?}");
    assert!(repair(&mut store, true).unwrap().iter().any(|report| report.what.contains("attributes")));
    is_right(store, "two wrongs");
}

#[test]
fn an_empty_directory_without_readable_attributes_can_be_removed() {
    let fs = made();
    let dir = make(&fs, fs.root(), "empty", &DIR);
    fs.setxattr(dir, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
    fs.sync().unwrap();
    fs.shared.state.lock().store.spoil_attributes(ObjectId(dir.0));
    fs.rmdir(fs.root(), b"empty").unwrap();
    let full = at(&fs, "/dir");
    fs.setxattr(full, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
    fs.sync().unwrap();
    fs.shared.state.lock().store.spoil_attributes(ObjectId(full.0));
    fs.shared.state.lock().dirs.clear();
    assert!(matches!(fs.rmdir(fs.root(), b"dir"), Err(Error::NotEmpty)));
}

#[test]
fn what_is_in_a_leaf_that_cannot_be_read_is_named_and_the_rest_checked() {
    let mut leaves = 0;
    for number in 0.. {
        let fs = made();
        let dir = at(&fs, "/dir");
        (0..200).for_each(|number| fill(&fs, dir, &format!("more{number}")));
        let mut store = fs.into_store();
        store.close().unwrap();
        if !store.spoil_index(number) {
            break;
        }
        let mut store = reopened(store);
        let loses = store.loses_by_repair().unwrap();
        assert_eq!(store.is_mended_by_repair().unwrap(), !loses);
        leaves += usize::from(loses);
        let problems = store.check(true).unwrap().problems;
        assert!(problems.iter().any(|why| why.starts_with("objects ")), "node {number}: {problems:?}");
        assert_ne!(check(&mut store).unwrap(), [""; 0], "node {number}");
        assert_eq!(repair(&mut store, false).unwrap().is_empty(), loses, "node {number}");
        if loses {
            assert_ne!(check(&mut store).unwrap(), [""; 0], "node {number}");
            assert_ne!(repair(&mut store, true).unwrap(), [], "node {number}");
        }
        is_right(store, &format!("node {number}"));
    }
    assert!(leaves > 3, "{leaves}");
}

#[test]
fn names_of_what_was_removed_by_another_name_can_be_removed_and_replaced() {
    let fs = made();
    let file = at(&fs, "/dir/file1");
    for name in [&b"second"[..], b"third", b"fourth"] {
        fs.link(file, fs.root(), name).unwrap();
    }
    fs.setxattr(file, LONG, &[9; 3000], SetXattr::Either, false).unwrap();
    fs.forget(file, 3);
    fs.sync().unwrap();
    fs.shared.state.lock().store.spoil_attributes(ObjectId(file.0));
    fs.unlink(at(&fs, "/dir"), b"file1").unwrap();
    for name in [&b"second"[..], b"third", b"fourth"] {
        let found = fs.lookup(fs.root(), name);
        assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
        assert_eq!(fs.lookup_damaged(fs.root(), name).unwrap(), Some((file, Kind::File)));
        fs.forget(file, 1);
    }
    fs.unlink(fs.root(), b"second").unwrap();
    fs.rename(fs.root(), b"file0", fs.root(), b"third", Rename::Replace).unwrap();
    // What is left of it is named, and goes with a repair.
    let mut store = fs.into_store();
    store.flush().unwrap();
    assert!(check(&mut store).unwrap()[0].contains("'fourth'"));
    repair(&mut store, true).unwrap();
    let found = is_right(store, "removed by another name");
    assert!(found.contains_key("/third") && !found.contains_key("/fourth"), "{found:?}");
}

#[test]
fn what_a_repair_gives_new_times_has_those_of_the_repair() {
    let (mut store, before) = without_its_leaf(3);
    let now = Live::wall_clock().sec;
    repair(&mut store, true).unwrap();
    let objects = store.readable_objects().unwrap();
    assert_eq!(objects.len(), before.len() + 2);
    for id in objects {
        let stat = store.stat(id).unwrap();
        assert!(stat.created.sec >= now && stat.changed.sec >= now, "object {id}: {stat:?}");
    }
}
