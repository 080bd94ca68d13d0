//! Large directories, deep trees, full devices.

use super::model::{Model, listing};
use super::rig::{Mount, Rig, at, fsck, is_full, plain};
use bimetal::Error;
use bimetal::fs::ext4::{Create, Mapping, ROOT_INO};
use bimetal::fs::{Kind, SetXattr};
use bimetal::units::Ino;
use std::collections::BTreeSet;

fn file(rig: &mut Rig, name: &str) -> Ino {
    rig.create(ROOT_INO, name.as_bytes(), Kind::File).expect("a file")
}

#[test]
fn a_directory_of_50_000_names_grows_and_shrinks_back() {
    for options in ["-t ext4 -b 1024 -N 60000", "-t ext4 -b 4096 -O ^dir_index -N 60000"] {
        let count = if options.contains("^dir_index") { 3_000 } else { 50_000 };
        let mut rig = Rig::new(128 << 10, options);
        let dir = rig.create(ROOT_INO, b"large", Kind::Dir).unwrap();
        let name = |i: usize| format!("an entry of the large directory {i}").into_bytes();
        for i in 0..count {
            rig.create(dir, &name(i), Kind::Fifo).unwrap();
            rig.commit_if_large();
        }
        let all = listing(&mut rig, dir);
        assert_eq!(all.len(), count);
        rig.close();
        fsck(&rig.image);
        rig.reopen();
        for i in (0..count).filter(|i| i % 1000 != 7) {
            rig.unlink(dir, &name(i)).unwrap();
            rig.commit_if_large();
        }
        let left: BTreeSet<Vec<u8>> = listing(&mut rig, dir).into_keys().collect();
        assert_eq!(left, (0..count).filter(|i| i % 1000 == 7).map(name).collect());
        assert!(matches!(rig.rmdir(ROOT_INO, b"large"), Err(Error::NotEmpty)));
        rig.check();
        rig.reopen();
        for i in (0..count).filter(|i| i % 1000 == 7) {
            rig.unlink(dir, &name(i)).unwrap();
        }
        let free = rig.fs.statfs();
        rig.rmdir(ROOT_INO, b"large").unwrap();
        assert!(rig.fs.statfs().free > free.free);
        rig.check();
    }
}

#[test]
fn a_directory_counts_one_link_past_65_000_subdirectories() {
    let mut rig = Rig::new(256 << 10, "-t ext4 -b 1024 -N 70000");
    let parent = rig.create(ROOT_INO, b"many", Kind::Dir).unwrap();
    let name = |i: u32| format!("d{i}").into_bytes();
    for i in 0..65_200 {
        rig.create(parent, &name(i), Kind::Dir).unwrap();
        rig.commit_if_large();
        let expected = if i + 3 > 65_000 { 1 } else { i + 3 };
        assert_eq!(rig.fs.inode(parent).unwrap().nlink, expected, "after {i}");
    }
    rig.check();
    rig.reopen();
    for i in 0..300 {
        rig.rmdir(parent, &name(i)).unwrap();
        rig.commit_if_large();
    }
    assert_eq!(rig.fs.inode(parent).unwrap().nlink, 1);
    rig.check();

    let mut old = Rig::new(256 << 10, "-t ext4 -b 1024 -N 70000 -O ^dir_nlink");
    for i in 0..64_997 {
        old.create(ROOT_INO, &name(i), Kind::Dir).unwrap();
        old.commit_if_large();
    }
    let free = old.fs.statfs();
    let refused = old.create(ROOT_INO, b"one too many", Kind::Dir);
    assert!(matches!(refused, Err(Error::TooManyLinks)), "{refused:?}");
    assert_eq!(old.fs.statfs().inodes_free, free.inodes_free);
    old.check();
}

#[test]
fn a_file_can_have_65_000_names_and_no_more() {
    let mut rig = Rig::new(64 << 10, "-t ext4 -b 4096");
    let ino = file(&mut rig, "f0");
    for i in 1..65_000 {
        let now = rig.now();
        rig.fs.link(ino, ROOT_INO, format!("f{i}").as_bytes(), now).unwrap();
        rig.commit_if_large();
    }
    assert!(matches!(rig.fs.link(ino, ROOT_INO, b"more", at(9)), Err(Error::TooManyLinks)));
    rig.check();
}

/// Writes every second block of a file, so that no two blocks can share an extent.
fn fragment(rig: &mut Rig, ino: Ino, blocks: u64) {
    let bytes = u64::from(rig.fs.block_bytes());
    for i in 0..blocks {
        rig.write(ino, 2 * i * bytes, &i.to_le_bytes()).unwrap();
        rig.commit_if_large();
    }
}

#[test]
fn fragmented_files_have_trees_of_depth_two_and_lose_them_again() {
    for (size, options, extents) in [
        (64 << 10, "-t ext4 -b 1024", 3_000),
        (128 << 10, "-t ext4 -b 4096", 3_000),
        (64 << 10, "-t ext4 -b 1024 -O ^metadata_csum", 900),
    ] {
        let mut rig = Rig::new(size, options);
        let empty = rig.fs.statfs().free;
        let ino = file(&mut rig, "fragmented");
        fragment(&mut rig, ino, extents);
        let bytes = u64::from(rig.fs.block_bytes());
        let inode = rig.fs.inode(ino).unwrap();
        assert!(inode.blocks * 512 / bytes > extents + extents / 340, "there are nodes");
        let model = Model::of(&mut rig);
        rig.close();
        fsck(&rig.image);
        if let Some(mount) = Mount::new(&rig.image) {
            model.compare_mounted(&mount);
        }
        rig.reopen();
        model.compare(&mut rig);
        // Fill the gaps: neighbours on the disk, or not; then cut in the middle and at the end.
        for i in (0..extents / 2).rev() {
            rig.write(ino, (2 * i + 1) * bytes, &i.to_le_bytes()).unwrap();
            rig.commit_if_large();
        }
        rig.punch(ino, extents / 2, extents / 3).unwrap();
        rig.commit();
        rig.check();
        rig.reopen();
        rig.truncate(ino, 40 * bytes).unwrap();
        rig.check();
        rig.reopen();
        rig.truncate(ino, 3 * bytes).unwrap();
        assert_eq!(rig.fs.inode(ino).unwrap().blocks * 512 / bytes, 3, "no node is left");
        rig.check();
        rig.reopen();
        rig.unlink(ROOT_INO, b"fragmented").unwrap();
        rig.commit();
        assert_eq!(rig.fs.statfs().free, empty);
        rig.check();
    }
}

#[test]
fn a_large_file_lies_in_few_extents() {
    let mut rig = Rig::new(2 << 20, "-t ext4 -b 4096");
    let ino = file(&mut rig, "large");
    let blocks = 100_000;
    rig.fs.reserve(blocks).unwrap();
    let runs = rig.fs.place(ino, 0, blocks as u32).unwrap();
    rig.fs.unreserve(blocks);
    assert!(runs.len() <= 8, "{} runs", runs.len());
    assert!(runs.iter().all(|run| run.fresh));
    let size = blocks * 4096;
    rig.fs.inode_mut(ino).unwrap().size = size;
    rig.commit();
    assert!(matches!(rig.fs.map(ino, 50_000, 10).unwrap(), Mapping::Data { len: 10, .. }));
    assert!(matches!(rig.fs.map(ino, blocks, 1).unwrap(), Mapping::Hole { .. }));
    assert_eq!(rig.fs.next_data(ino, blocks).unwrap(), None);
    let runs = rig.fs.place(ino, 10, 10).unwrap();
    assert!(runs.iter().all(|run| !run.fresh), "live data is not fresh");
    rig.check();
}

#[test]
fn space_that_was_promised_is_there_and_a_full_device_says_so_in_time() {
    for options in
        ["-t ext4 -b 1024 -m 0", "-t ext4 -b 1024 -m 0 -O ^metadata_csum -I 128", "-t ext4 -b 4096 -m 0"]
    {
        let mut rig = Rig::new(24 << 10, options);
        let bytes = u64::from(rig.fs.block_bytes());
        // Promise all that can be promised, for data one block apart: the worst for the extent tree.
        let mut promised = 0;
        while rig.fs.reserve(1).is_ok() {
            promised += 1;
        }
        assert!(promised > 1000);
        assert!(rig.fs.statfs().free < promised / 10);
        let made = rig.create(ROOT_INO, b"no block needed", Kind::File).unwrap();
        assert!(rig.create(ROOT_INO, b"needs a block", Kind::Dir).is_err_and(|error| is_full(&error)));
        assert!(rig.preallocate(made, 0, 1).is_err_and(|error| is_full(&error)));
        for block in 0..promised {
            rig.fs.place(made, 2 * block, 1).unwrap_or_else(|error| panic!("block {block}: {error}"));
            rig.fs.unreserve(1);
            rig.commit_if_large();
        }
        rig.fs.inode_mut(made).unwrap().size = 2 * promised * bytes;
        rig.commit();
        assert!(rig.fs.reserve(1).is_err_and(|error| is_full(&error)));
        rig.check();
        rig.reopen();
        // What is freed comes back with the commit that frees it, not before.
        rig.truncate(made, 0).unwrap();
        assert!(rig.fs.is_room_awaited());
        assert!(rig.fs.reserve(promised).is_err_and(|error| is_full(&error)));
        rig.commit();
        assert!(!rig.fs.is_room_awaited());
        rig.fs.reserve(promised).unwrap();
        rig.fs.unreserve(promised);
        rig.check();
    }
}

#[test]
fn blocks_kept_for_root_are_kept() {
    let mut rig = Rig::new(64 << 10, "-t ext4 -b 4096 -m 20");
    let stat = rig.fs.statfs();
    assert!(stat.available < stat.free - stat.blocks / 6);
    rig.fs.reserve(stat.available).unwrap();
    assert!(rig.fs.reserve(16).is_err_and(|error| is_full(&error)));
    rig.fs.reserve_as_root(16).unwrap();
    rig.fs.unreserve(stat.available + 16);
    assert_eq!(rig.fs.statfs().free, stat.free);
}

#[test]
fn without_free_inodes_nothing_is_made_and_nothing_is_lost() {
    let mut rig = Rig::new(16 << 10, "-t ext4 -b 1024 -N 128");
    let mut count = 0;
    let error = loop {
        match rig.create(ROOT_INO, format!("f{count}").as_bytes(), Kind::File) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error), "{error}");
    assert_eq!(rig.fs.statfs().inodes_free, 0);
    assert!(rig.create(ROOT_INO, b"dir", Kind::Dir).is_err_and(|error| is_full(&error)));
    assert_eq!(listing(&mut rig, ROOT_INO).len(), count + 1);
    rig.unlink(ROOT_INO, b"f3").unwrap();
    file(&mut rig, "another");
    rig.check();
}

#[test]
fn a_full_device_refuses_every_kind_of_growth_and_stays_consistent() {
    let mut rig = Rig::new(8 << 10, "-t ext4 -b 1024 -m 0 -J size=1");
    let hog = file(&mut rig, "hog");
    let dir = rig.create(ROOT_INO, b"dir", Kind::Dir).unwrap();
    let mut blocks = 0;
    for step in [512, 64, 8, 1] {
        while rig.preallocate(hog, blocks, step).is_ok() {
            blocks += step;
        }
    }
    let empty = rig.fs.statfs();
    let mut made = 0;
    let error = loop {
        match rig.create(
            dir,
            format!("a long name to fill the directory's only block {made}").as_bytes(),
            Kind::File,
        ) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error) && made > 5, "{error} after {made}");
    assert_eq!(rig.fs.statfs().inodes_free, empty.inodes_free - made);
    let long = [b'x'; 200];
    let link = Create { kind: Kind::Symlink, name: b"link", target: &long, ..plain(at(5)) };
    assert!(rig.fs.create(&link).is_err_and(|error| is_full(&error)));
    let value = [7; 600];
    let set = rig.fs.set_xattr(hog, b"user.large", &value, SetXattr::Either, at(5));
    assert!(set.is_err_and(|error| is_full(&error)));
    rig.fs.set_xattr(hog, b"user.small", b"fits the inode", SetXattr::Either, at(5)).unwrap();
    assert!(rig.create(dir, b"sub", Kind::Dir).is_err_and(|error| is_full(&error)));
    let now = rig.now();
    let moved = rig.fs.rename(ROOT_INO, b"hog", dir, &long, bimetal::fs::Rename::Whiteout, now);
    assert!(moved.is_err_and(|error| is_full(&error)));
    assert_eq!(rig.fs.statfs().free, empty.free);
    assert_eq!(rig.fs.statfs().inodes_free, empty.inodes_free - made);
    rig.unlink(ROOT_INO, b"hog").unwrap();
    rig.commit();
    rig.create(dir, b"sub", Kind::Dir).unwrap();
    rig.check();
}
