//! What an image can be when it is opened: crashed, made by Linux, in an old format, or not for us.

use super::model::{Model, listing};
use super::rig::{Mount, Rig, at, fsck, make, open, plain, run};
use bimetal::Error;
use bimetal::fs::ext4::{Create, Ext4, Mapping, PAIRING_BYTES, ROOT_INO};
use bimetal::fs::{Kind, Rename};
use bimetal::time::Time;
use bimetal::units::{DiskBlock, Ino};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

fn file(rig: &mut Rig, name: &str) -> Ino {
    rig.create(ROOT_INO, name.as_bytes(), Kind::File).expect("a file")
}

/// What the superblock says, by `dumpe2fs`.
fn header(image: &Path, field: &str) -> String {
    let shown = run("dumpe2fs", &["-h", image.to_str().expect("a path")]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(field));
    line.unwrap_or_else(|| panic!("no '{field}' in {text}"))
        .rsplit("  ")
        .next()
        .unwrap_or("")
        .trim()
        .to_string()
}

#[test]
fn the_medium_says_that_it_is_in_use_until_it_is_closed() {
    let (dir, image) = make(16 << 10, "-t ext4 -b 1024");
    let before = header(&image, "Mount count");
    let mut rig = Rig::of(dir, image);
    assert!(header(&rig.image, "Filesystem features").contains("needs_recovery"));
    assert_eq!(header(&rig.image, "Filesystem state"), "clean");
    let (found, now) = (rig.fs.identity_found(), rig.fs.identity());
    assert_eq!(Ext4::peek(&*rig.disk).unwrap(), now);
    // Mounts are counted by others: a change of the count shows that somebody else was here.
    assert_eq!((found.mount_count, now.mount_count), (0, 0));
    assert_eq!(found.mount_time, now.mount_time);
    assert_eq!(before, "0");
    file(&mut rig, "f");
    rig.close();
    assert!(!header(&rig.image, "Filesystem features").contains("needs_recovery"));
    assert_eq!(header(&rig.image, "Mount count"), "0");
    fsck(&rig.image);
    rig.reopen();
    assert_eq!(rig.fs.identity_found().mount_count, 0);
    assert_eq!(rig.fs.identity().uuid, found.uuid);
}

#[test]
fn the_callers_area_travels_with_each_transaction() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 4096", "-t ext4 -b 4096 -O ^metadata_csum"] {
        let mut rig = Rig::new(32 << 10, options);
        assert_eq!(rig.fs.pairing(), None);
        let pairing: [u8; PAIRING_BYTES] = std::array::from_fn(|i| i as u8 + 1);
        file(&mut rig, "f");
        let frozen = rig.fs.freeze(at(3), Some(&pairing)).unwrap();
        assert_eq!(rig.fs.pairing(), Some(pairing));
        rig.fs.journal().commit(Time::ZERO, frozen.transaction).unwrap();
        rig.fs.committed(frozen.tid);
        file(&mut rig, "after the last commit");
        rig.reopen();
        assert_eq!(rig.fs.pairing(), Some(pairing), "after a crash");
        assert_eq!(listing(&mut rig, ROOT_INO).len(), 2);
        rig.check();
        rig.reopen();
        assert_eq!(rig.fs.pairing(), Some(pairing), "after a clean end");
    }
}

#[test]
fn what_was_not_committed_is_gone_after_a_crash_and_the_rest_is_there() {
    let mut rig = Rig::new(32 << 10, "-t ext4 -b 1024");
    let dir = rig.create(ROOT_INO, b"dir", Kind::Dir).unwrap();
    let ino = rig.create(dir, b"kept", Kind::File).unwrap();
    rig.write(ino, 0, &[1; 5000]).unwrap();
    rig.commit();
    let model = Model::of(&mut rig);
    rig.write(ino, 100, &[2; 3000]).unwrap();
    rig.create(dir, b"lost", Kind::Dir).unwrap();
    rig.unlink(dir, b"kept").unwrap();
    rig.reopen();
    model.compare(&mut rig);
    rig.check();
}

#[test]
fn orphans_are_freed_by_whoever_mounts_next() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 4096 -O orphan_file", "-t ext4 -b 1024 -O ^metadata_csum"]
    {
        let mut rig = Rig::new(64 << 10, options);
        let free = rig.fs.statfs();
        let mut open_files = Vec::new();
        for i in 0..20 {
            let name = format!("f{i}");
            let ino = file(&mut rig, &name);
            rig.write(ino, 0, &vec![i; 20_000]).unwrap();
            let now = rig.now();
            let removed = rig.fs.unlink(ROOT_INO, name.as_bytes(), now).unwrap();
            assert!(removed.last);
            open_files.push(removed.ino);
        }
        let dir = rig.create(ROOT_INO, b"dir", Kind::Dir).unwrap();
        rig.fs.rmdir(ROOT_INO, b"dir", at(50)).unwrap();
        let unnamed = rig.create_orphan(at(51)).unwrap();
        rig.commit();
        assert_eq!(rig.contents(open_files[7]).unwrap(), vec![7; 20_000], "still readable");
        // From the head, from the end, from the middle.
        for ino in [unnamed, open_files[0], open_files[10], dir] {
            rig.release(ino).unwrap();
            assert!(matches!(rig.fs.inode(ino), Err(Error::Stale)));
        }
        rig.commit();
        let copy = rig.dir.path().join("copy.img");
        fs::copy(&rig.image, &copy).unwrap();
        let cleared = run("e2fsck", &["-fy", copy.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&cleared.stdout).into_owned();
        assert!(cleared.status.code() == Some(0) || cleared.status.code() == Some(1), "{text}");
        assert_eq!(text.matches("learing orphaned inode").count(), 18, "{text}");
        fsck(&copy);
        rig.reopen();
        assert!(matches!(rig.fs.inode(open_files[7]), Err(Error::Stale)));
        rig.commit();
        let after = rig.fs.statfs();
        assert_eq!((after.free, after.inodes_free), (free.free, free.inodes_free));
        rig.check();
    }
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let mut rig = Rig::new(32 << 10, "-t ext4 -b 4096");
    let first = rig.create_orphan(at(1)).unwrap();
    let second = rig.create_orphan(at(2)).unwrap();
    rig.write(first, 0, b"contents").unwrap();
    rig.fs.link(first, ROOT_INO, b"named", at(3)).unwrap();
    assert_eq!(rig.fs.inode(first).unwrap().nlink, 1);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.contents(first).unwrap(), b"contents");
    assert!(matches!(rig.fs.inode(second), Err(Error::Stale)));
    rig.check();
}

#[test]
fn a_cut_that_takes_several_transactions_survives_a_crash_between_them() {
    for (options, keep) in [
        ("-t ext4 -b 1024 -g 512 -J size=1 -O ^resize_inode,^flex_bg", 5),
        ("-t ext4 -b 1024 -g 512 -J size=1 -O ^resize_inode", 0),
    ] {
        let mut rig = Rig::new(64 << 10, options);
        let ino = file(&mut rig, "huge");
        let mut block = 0;
        while rig.preallocate(ino, block, 256).is_ok() {
            block += 256;
            rig.commit_if_large();
        }
        rig.fs.inode_mut(ino).unwrap().size = block * 1024;
        rig.write(ino, 0, &[7; 10_000]).unwrap();
        rig.commit();
        assert!(block > 30_000);
        let done = if keep > 0 {
            rig.fs.truncate(ino, keep * 1024, at(9)).unwrap()
        } else {
            assert!(rig.fs.unlink(ROOT_INO, b"huge", at(9)).unwrap().last);
            rig.fs.release(ino).unwrap()
        };
        assert!(!done, "the device has more groups than the journal blocks");
        rig.commit();
        if keep > 0 {
            // The last name may go meanwhile, and another come.
            rig.fs.link(ino, ROOT_INO, b"other", at(10)).unwrap();
            rig.fs.unlink(ROOT_INO, b"huge", at(11)).unwrap();
            assert!(rig.fs.unlink(ROOT_INO, b"other", at(12)).unwrap().last);
            rig.fs.link(ino, ROOT_INO, b"again", at(13)).unwrap();
            assert!(!rig.fs.truncate(ino, keep * 1024, at(14)).unwrap());
            rig.commit();
        }
        rig.reopen();
        if keep > 0 {
            assert_eq!(rig.contents(ino).unwrap(), vec![7; 1024 * keep as usize]);
            assert!(matches!(rig.fs.map(ino, keep, 10).unwrap(), Mapping::Hole { len: 10 }));
            assert_eq!(rig.fs.inode(ino).unwrap().blocks, keep * 2);
        }
        rig.commit();
        rig.check();
    }
}

#[test]
fn repeated_operations_get_the_numbers_they_had() {
    let mut rig = Rig::new(64 << 10, "-t ext4 -b 1024 -g 2048");
    let wanted = Ino(3777);
    let spec = Create { name: b"exact", ino: Some(wanted), generation: Some(77), ..plain(at(1)) };
    assert_eq!(rig.fs.create(&spec).unwrap(), wanted);
    assert_eq!(rig.fs.inode(wanted).unwrap().generation, 77);
    let taken = Create { name: b"other", ..spec };
    assert!(matches!(rig.fs.create(&taken), Err(Error::Exists)));
    for bad in [1, 2, 7, 8, 1_000_000_000] {
        assert!(rig.fs.create(&Create { ino: Some(Ino(bad)), ..taken }).is_err());
    }
    let dir = Create { name: b"dir", kind: Kind::Dir, ino: Some(Ino(4000)), ..spec };
    assert_eq!(rig.fs.create(&dir).unwrap(), Ino(4000));
    rig.check();
    rig.reopen();
    assert_eq!(rig.fs.lookup(ROOT_INO, b"exact").unwrap(), Some((wanted, Kind::File)));
    rig.unlink(ROOT_INO, b"exact").unwrap();
    assert_eq!(rig.fs.create(&spec).unwrap(), wanted, "a freed number can be asked for at once");
    rig.check();
}

#[test]
fn names_follow_the_rules() {
    let mut rig = Rig::new(32 << 10, "-t ext4 -b 1024");
    let f = file(&mut rig, "f");
    let d = rig.create(ROOT_INO, b"d", Kind::Dir).unwrap();
    let e = rig.create(d, b"e", Kind::Dir).unwrap();
    let mut rename = |a: Ino, x: &[u8], b: Ino, y: &[u8], how| rig.fs.rename(a, x, b, y, how, at(5));
    assert!(matches!(rename(ROOT_INO, b"d", e, b"x", Rename::Replace), Err(Error::BadArgument)));
    assert!(matches!(rename(ROOT_INO, b"d", d, b"x", Rename::Replace), Err(Error::BadArgument)));
    assert!(matches!(rename(d, b"e", ROOT_INO, b"d", Rename::Exchange), Err(Error::BadArgument)));
    assert!(matches!(rename(ROOT_INO, b"f", ROOT_INO, b"d", Rename::Replace), Err(Error::IsDir)));
    assert!(matches!(rename(ROOT_INO, b"d", ROOT_INO, b"f", Rename::Replace), Err(Error::NotDir)));
    assert!(matches!(rename(ROOT_INO, b"none", ROOT_INO, b"f", Rename::Replace), Err(Error::NotFound)));
    assert!(matches!(rename(ROOT_INO, b".", ROOT_INO, b"x", Rename::Replace), Err(Error::BadArgument)));
    assert!(matches!(rename(f, b"a", ROOT_INO, b"x", Rename::Replace), Err(Error::NotDir)));
    assert!(matches!(rig.fs.unlink(ROOT_INO, b"d", at(5)), Err(Error::IsDir)));
    assert!(matches!(rig.fs.rmdir(ROOT_INO, b"f", at(5)), Err(Error::NotDir)));
    assert!(matches!(rig.fs.rmdir(ROOT_INO, b"d", at(5)), Err(Error::NotEmpty)));
    assert!(matches!(rig.fs.lookup(f, b"x"), Err(Error::NotDir)));
    assert!(matches!(rig.fs.lookup(ROOT_INO, &[b'x'; 256]), Err(Error::NameTooLong)));
    assert!(matches!(rig.fs.inode(Ino(500)), Err(Error::Stale)));
    assert!(matches!(rig.fs.inode(Ino(8)), Err(Error::Stale)));
    assert!(matches!(rig.fs.readlink(f), Err(Error::BadArgument)));
    assert_eq!(rig.fs.lookup(e, b"..").unwrap(), Some((d, Kind::Dir)));
    let removed = rig.fs.rmdir(d, b"e", at(6)).unwrap();
    assert!(rig.create(e, b"in a removed directory", Kind::File).is_err());
    rig.release(removed.ino).unwrap();
    rig.check();
}

#[test]
fn inodes_that_may_not_change_do_not() {
    use bimetal::fs::ext4::flag;
    let mut rig = Rig::new(32 << 10, "-t ext4 -b 1024");
    let f = file(&mut rig, "f");
    rig.fs.inode_mut(f).unwrap().flags |= flag::IMMUTABLE;
    let d = rig.create(ROOT_INO, b"d", Kind::Dir).unwrap();
    rig.create(d, b"in", Kind::File).unwrap();
    rig.fs.inode_mut(d).unwrap().flags |= flag::APPEND;
    assert!(matches!(rig.fs.unlink(ROOT_INO, b"f", at(5)), Err(Error::NotPermitted)));
    assert!(matches!(rig.fs.link(f, ROOT_INO, b"g", at(5)), Err(Error::NotPermitted)));
    assert!(matches!(rig.fs.unlink(d, b"in", at(5)), Err(Error::NotPermitted)));
    assert!(rig.create(d, b"more", Kind::File).is_ok());
    rig.fs.inode_mut(d).unwrap().flags |= flag::IMMUTABLE;
    assert!(matches!(rig.create(d, b"even more", Kind::File), Err(Error::NotPermitted)));
    rig.check();
}

#[test]
fn what_is_not_driven_is_refused_by_name() {
    for (options, name) in [
        ("-t ext4 -b 4096 -O inline_data", "inline_data"),
        ("-t ext4 -b 4096 -O bigalloc", "bigalloc"),
        ("-t ext4 -b 4096 -O quota", "quota"),
        ("-t ext4 -b 4096 -O mmp", "mmp"),
        ("-t ext4 -b 4096 -O ea_inode", "ea_inode"),
        ("-t ext4 -b 4096 -O encrypt", "encrypt"),
        ("-t ext4 -b 4096 -O verity", "verity"),
        ("-t ext4 -b 4096 -O casefold", "casefold"),
        ("-t ext4 -b 4096 -O project,quota", "quota"),
        ("-t ext4 -b 4096 -O fast_commit", "fast_commit"),
        ("-t ext4 -b 4096 -O ^has_journal", "journal"),
        ("-t ext4 -b 65536", "2^16"),
        ("-t ext4 -b 4096 -I 2048", "inode size"),
        ("-t ext3 -b 4096", "extent"),
        ("-O journal_dev -b 4096", "journal_dev"),
    ] {
        let (_dir, image) = make(64 << 10, options);
        let error = open(&image, false, at(0)).err().unwrap_or_else(|| panic!("{options} was opened"));
        assert!(error.to_string().contains(name), "{options}: {error}");
    }
}

#[test]
fn a_file_system_with_errors_or_without_a_journal_is_not_opened() {
    let (_dir, image) = make(16 << 10, "-t ext4 -b 1024");
    run("debugfs", &["-w", "-R", "ssv state 3", image.to_str().unwrap()]);
    let error = open(&image, false, at(0)).err().expect("a refusal");
    assert!(error.to_string().contains("e2fsck"), "{error}");
    let (_dir, image) = make(16 << 10, "-t ext2 -b 1024");
    run("debugfs", &["-w", "-R", "ssv state 0", image.to_str().unwrap()]);
    let error = open(&image, true, at(0)).err().expect("a refusal");
    assert!(error.to_string().contains("e2fsck"), "{error}");
}

#[test]
fn opened_for_reading_nothing_changes() {
    let mut rig = Rig::new(16 << 10, "-t ext4 -b 1024");
    let ino = file(&mut rig, "f");
    rig.commit();
    let crashed = fs::read(&rig.image).unwrap();
    let refused = open(&rig.image, true, at(9)).err().expect("a journal to replay");
    assert!(refused.to_string().contains("replay"), "{refused}");
    assert_eq!(crashed, fs::read(&rig.image).unwrap());
    rig.reopen();
    rig.close();
    let before = fs::read(&rig.image).unwrap();
    let (_disk, mut fs) = open(&rig.image, true, at(9)).unwrap();
    assert_eq!(fs.lookup(ROOT_INO, b"f").unwrap(), Some((ino, Kind::File)));
    assert!(matches!(fs.inode_mut(ino), Err(Error::ReadOnly)));
    assert!(matches!(fs.create(&Create { name: b"g", ..plain(at(1)) }), Err(Error::ReadOnly)));
    assert!(matches!(fs.unlink(ROOT_INO, b"f", at(1)), Err(Error::ReadOnly)));
    assert!(matches!(fs.reserve(1), Err(Error::ReadOnly)));
    assert!(matches!(fs.truncate(ino, 0, at(1)), Err(Error::ReadOnly)));
    fs.close(at(2)).unwrap();
    assert_eq!(before, std::fs::read(&rig.image).unwrap());
}

#[test]
fn a_torn_superblock_is_healed_by_the_journal() {
    let mut rig = Rig::new(16 << 10, "-t ext4 -b 4096");
    file(&mut rig, "f");
    rig.commit();
    let image = fs::OpenOptions::new().write(true).open(&rig.image).unwrap();
    // The write time of one state, the checksum of another.
    image.write_all_at(&[1, 2, 3, 4], 1024 + 0x30).unwrap();
    rig.reopen();
    assert!(rig.fs.lookup(ROOT_INO, b"f").unwrap().is_some());
    rig.check();
    image.write_all_at(&[1, 2, 3, 4], 1024 + 0x30).unwrap();
    let error = open(&rig.image, false, at(0)).err().expect("a wrong checksum and nothing to heal it with");
    assert!(error.to_string().contains("checksum"), "{error}");
}

/// Fills a mounted file system with what a Linux user might have.
fn populate(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    for i in 0..400 {
        fs::write(root.join(format!("a/file with a longer name {i}")), vec![i as u8; i * 37]).unwrap();
    }
    for i in (0..400).step_by(3) {
        fs::remove_file(root.join(format!("a/file with a longer name {i}"))).unwrap();
    }
    symlink("short", root.join("a/b/fast")).unwrap();
    symlink("long/".repeat(40), root.join("a/b/slow")).unwrap();
    fs::hard_link(root.join("a/file with a longer name 1"), root.join("a/b/second name")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for i in 0..700_u64 {
        sparse.write_all_at(&i.to_le_bytes(), i * 8192 + 77).unwrap();
    }
    sparse.sync_all().unwrap();
    let mut holes = fs::File::create(root.join("preallocated")).unwrap();
    // SAFETY: a call on an open descriptor.
    unsafe { libc::fallocate(holes.as_raw_fd(), 0, 0, 200_000) };
    holes.seek(SeekFrom::Start(50_000)).unwrap();
    holes.write_all(&[9; 10_000]).unwrap();
    fs::write(root.join("large"), vec![3; 3_000_000]).unwrap();
    for (name, value) in [("user.small", "v".to_string()), ("user.large", "w".repeat(700))] {
        for path in ["sparse", "a/b", "large"] {
            let path = root.join(path);
            let set = run("setfattr", &["-n", name, "-v", &value, path.to_str().unwrap()]);
            assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
        }
    }
    run("mkfifo", &[root.join("fifo").to_str().unwrap()]);
    run("mknod", &[root.join("device").to_str().unwrap(), "b", "300", "70000"]);
}

/// Changes a bit of everything in a file system that was adopted.
fn work_on(rig: &mut Rig) {
    let (a, _) = rig.fs.lookup(ROOT_INO, b"a").unwrap().unwrap();
    for i in 1..200 {
        let name = format!("file with a longer name {i}");
        match i % 3 {
            1 => rig.unlink(a, name.as_bytes()).unwrap(),
            2 => {
                let now = rig.now();
                rig.fs
                    .rename(a, name.as_bytes(), ROOT_INO, name.as_bytes(), Rename::Replace, now)
                    .map(drop)
                    .unwrap();
            }
            _ => drop(rig.create(a, name.as_bytes(), Kind::File).unwrap()),
        }
        rig.commit_if_large();
    }
    for name in [&b"sparse"[..], b"large", b"preallocated"] {
        let (ino, _) = rig.fs.lookup(ROOT_INO, name).unwrap().unwrap();
        rig.write(ino, 60_000, &[5; 30_000]).unwrap();
        rig.commit();
        rig.punch(ino, 3, 4).unwrap();
        rig.fs.set_xattr(ino, b"user.large", b"changed", bimetal::fs::SetXattr::Either, at(70)).unwrap();
    }
    let (sparse, _) = rig.fs.lookup(ROOT_INO, b"sparse").unwrap().unwrap();
    rig.truncate(sparse, 2_000_000).unwrap();
    rig.commit();
}

#[test]
fn a_file_system_that_linux_filled_is_read_and_changed() {
    for options in [
        "-t ext4 -b 4096",
        "-t ext4 -b 1024 -I 128",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 2048 -O orphan_file,metadata_csum_seed",
        "-t ext4 -b 1024 -O ^64bit,^flex_bg -E lazy_itable_init=1",
    ] {
        println!("{options}");
        let (dir, image) = make(128 << 10, options);
        let Some(mount) = Mount::with(&image, "loop") else { return };
        populate(mount.path());
        drop(mount);
        let mut rig = Rig::of(dir, image);
        let mut model = Model::of(&mut rig);
        model.coarse = options.contains("-I 128");
        rig.close();
        if let Some(mount) = Mount::new(&rig.image) {
            model.compare_mounted(&mount);
        }
        rig.reopen();
        work_on(&mut rig);
        let model = Model { coarse: model.coarse, ..Model::of(&mut rig) };
        rig.check();
        if let Some(mount) = Mount::new(&rig.image) {
            model.compare_mounted(&mount);
        }
        // And back to Linux for writing.
        if let Some(mount) = Mount::with(&rig.image, "loop") {
            fs::write(mount.path().join("by linux"), b"again").unwrap();
            fs::remove_file(mount.path().join("large")).unwrap();
        }
        fsck(&rig.image);
    }
}

#[test]
fn a_crashed_linux_mount_is_recovered_with_its_orphans() {
    for options in ["-t ext4 -b 4096", "-t ext4 -b 4096 -O orphan_file", "-t ext4 -b 1024 -O ^metadata_csum"]
    {
        let (dir, image) = make(128 << 10, options);
        let Some(mount) = Mount::with(&image, "loop") else { return };
        populate(mount.path());
        run("sync", &["-f", mount.path().to_str().unwrap()]);
        let held = fs::File::open(mount.path().join("large")).unwrap();
        let removed = fs::File::open(mount.path().join("sparse")).unwrap();
        fs::remove_file(mount.path().join("large")).unwrap();
        fs::remove_file(mount.path().join("sparse")).unwrap();
        fs::File::open(mount.path()).unwrap().sync_all().unwrap();
        let copy = dir.path().join("crashed.img");
        fs::copy(&image, &copy).unwrap();
        drop((held, removed));
        drop(mount);
        assert!(header(&copy, "Filesystem features").contains("needs_recovery"));
        let mut rig = Rig::of(dir, copy);
        assert_eq!(rig.fs.lookup(ROOT_INO, b"large").unwrap(), None);
        let (a, _) = rig.fs.lookup(ROOT_INO, b"a").unwrap().unwrap();
        assert!(listing(&mut rig, a).len() > 200);
        rig.check();
        rig.reopen();
        let model = Model::of(&mut rig);
        rig.check();
        if let Some(mount) = Mount::new(&rig.image) {
            model.compare_mounted(&mount);
        }
    }
}

#[test]
fn files_of_ext3_are_read_and_get_extents_when_they_change() {
    let (dir, image) = make(128 << 10, "-t ext3 -b 1024 -O dir_index");
    let Some(mount) = Mount::with(&image, "loop") else { return };
    fs::create_dir(mount.path().join("a")).unwrap();
    for i in 1..400 {
        fs::write(mount.path().join(format!("a/file with a longer name {i}")), vec![i as u8; i * 37])
            .unwrap();
    }
    for i in (3..400).step_by(3) {
        fs::remove_file(mount.path().join(format!("a/file with a longer name {i}"))).unwrap();
    }
    for (name, step) in [("sparse", 300_000), ("large", 1024), ("preallocated", 2048)] {
        let file = fs::File::create(mount.path().join(name)).unwrap();
        for i in 0..400_u64 {
            file.write_all_at(&i.to_le_bytes(), i * step).unwrap();
        }
    }
    drop(mount);
    let (_disk, mut read) = open(&image, true, at(0)).unwrap();
    let (large, _) = read.lookup(ROOT_INO, b"large").unwrap().unwrap();
    assert!(matches!(read.map(large, 0, 12).unwrap(), Mapping::Data { .. }));
    let tuned = run("tune2fs", &["-O", "extents", image.to_str().unwrap()]);
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
    let mut rig = Rig::of(dir, image);
    let model = Model::of(&mut rig);
    rig.close();
    if let Some(mount) = Mount::new(&rig.image) {
        model.compare_mounted(&mount);
    }
    rig.reopen();
    work_on(&mut rig);
    let model = Model::of(&mut rig);
    rig.check();
    if let Some(mount) = Mount::new(&rig.image) {
        model.compare_mounted(&mount);
    }
    rig.reopen();
    for name in [&b"sparse"[..], b"large", b"preallocated"] {
        rig.unlink(ROOT_INO, name).unwrap();
    }
    rig.check();
}

#[test]
fn blocks_taken_and_freed_in_one_transaction_leave_no_trace_in_it() {
    let mut rig = Rig::new(32 << 10, "-t ext4 -b 1024");
    let keep = file(&mut rig, "keep");
    rig.commit();
    let ino = file(&mut rig, "gone");
    // Longer than a short file, which would get its place behind the last one.
    let placed = rig.fs.place(ino, 0, 100).unwrap();
    rig.unlink(ROOT_INO, b"gone").unwrap();
    assert!(!rig.fs.is_room_awaited());
    let again = rig.fs.place(keep, 0, 100).unwrap();
    assert_eq!(placed[0].at, again[0].at, "the same blocks at once");
    assert!(again[0].fresh);
    let frozen = rig.fs.freeze(at(4), None).unwrap();
    assert!(frozen.transaction.freed.is_empty());
    let first: DiskBlock = again[0].at;
    rig.fs.journal().commit(Time::ZERO, frozen.transaction).unwrap();
    // Not committed as far as the file system knows: nothing of it may be handed out again.
    rig.punch(keep, 0, 100).unwrap();
    let other = file(&mut rig, "other");
    assert_ne!(rig.fs.place(other, 0, 1).unwrap()[0].at, first);
    assert!(rig.fs.is_room_awaited());
    rig.fs.committed(frozen.tid);
    assert!(rig.fs.is_room_awaited());
    rig.commit();
    assert!(!rig.fs.is_room_awaited());
    rig.check();
}
