//! Promises of blocks to data and to extent trees, where not one more could be given.

use super::*;

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = bimetal_base::random::Random::new(seed, "contents");
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

pub(super) fn write(fs: &NfHybrid, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize> {
    fs.write(ino, at, bytes, false)?.get()
}

pub(super) fn free(fs: &NfHybrid) -> u64 {
    fs.statfs().unwrap().free
}

/// Takes all that data may have but for so many blocks.
pub(super) fn take_all(fs: &NfHybrid, leave: u64, block: u64) {
    let ino = create(fs, "filler", b"");
    let mut at = 0;
    let mut most = 256;
    while let more @ 1.. = fs.statfs().unwrap().available.saturating_sub(leave) {
        let step = more.min(most) * block;
        match fs.fallocate(ino, at, step, Fallocate::Reserve { keep_size: true }) {
            Ok(()) => at += step,
            // Its own tree may need some of it.
            Err(Error::NoSpace(_)) if most > 1 => most /= 2,
            Err(_) => break,
        }
        fs.commit().unwrap();
    }
}

/// Files of five reserved blocks, each of which takes a node when two of its blocks are written.
pub(super) fn fives(fs: &NfHybrid, count: usize) -> Vec<Ino> {
    let make = |file| {
        let ino = create(fs, &format!("five{file}"), b"");
        fs.fallocate(ino, 0, 5 * 4096, Fallocate::Reserve { keep_size: false }).unwrap();
        ino
    };
    (0..count).map(make).collect()
}

/// Writes to them until only `leave` blocks are not promised.
pub(super) fn exhaust(fs: &NfHybrid, fives: &[Ino], leave: u64) {
    for ino in fives {
        if free(fs) <= leave {
            return;
        }
        for block in [1, 3] {
            assert_eq!(write(fs, *ino, block * 4096, &noise(block, 4096)).unwrap(), 4096);
        }
    }
    panic!("not enough files: {} left", free(fs));
}

/// Twice so many files of one block, one behind the other.
pub(super) fn between(fs: &NfHybrid, count: u64, block: usize) -> Vec<Ino> {
    (0..2 * count).map(|n| create(fs, &format!("s{n}"), &vec![1; block])).collect()
}

/// Removes every other one, so that what is free lies apart.
pub(super) fn free_every_other(fs: &NfHybrid, files: &[Ino]) {
    for (number, ino) in files.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
        fs.unlink(ROOT_INO, format!("s{number}").as_bytes()).unwrap();
        fs.forget(*ino, 1);
    }
}

/// A file system with blocks of 4 KiB, all of them data may have.
pub(super) fn large_blocks() -> Option<(NfHybrid, Arc<Ram>, Arc<Ram>)> {
    let options = ["-b", "4096", "-N", "2000", "-m", "0"];
    let (disk, ssd) = halves_with(24, 16, &ssd::Config::default(), &options)?;
    Some((open(&disk, Some(&ssd), manual()).unwrap(), disk, ssd))
}

/// Nothing is promised once all is on the disk, and nothing is wrong there.
pub(super) fn end(fs: NfHybrid, disk: &Ram) {
    fs.commit().unwrap();
    assert!(!fs.shared.core.lock().is_room_awaited(), "something stays promised");
    fs.shutdown().unwrap();
    full::check_disk(disk);
}

/// Three extents and a block that waits for its place fit the inode. The fourth extent that a hole makes does, too; with the
/// block that waits there are five.
#[test]
fn a_hole_is_promised_the_node_that_dirty_data_comes_to_need_with_it() {
    let Some((fs, disk, _ssd)) = large_blocks() else { return };
    let victim = create(&fs, "victim", &noise(1, 3 * 4096));
    for block in [10, 20] {
        write(&fs, victim, block * 4096, &noise(2, 4096)).unwrap();
    }
    let fives = fives(&fs, 300);
    fs.commit().unwrap();
    take_all(&fs, 1, 4096);
    assert_eq!(write(&fs, victim, 30 * 4096, &noise(3, 4096)).unwrap(), 4096);
    exhaust(&fs, &fives, 0);
    let before = contents(&fs, "victim");
    let punched = fs.fallocate(victim, 4096, 4096, Fallocate::Punch);
    let mut after = before.clone();
    after[4096..8192].fill(0);
    assert!(contents(&fs, "victim") == if punched.is_ok() { after } else { before });
    end(fs, &disk);
}

#[test]
fn reserved_space_is_promised_the_node_that_dirty_data_comes_to_need_with_it() {
    let Some((fs, disk, _ssd)) = large_blocks() else { return };
    let victim = create(&fs, "victim", b"");
    let fives = fives(&fs, 300);
    fs.commit().unwrap();
    take_all(&fs, 5, 4096);
    for block in [10, 20, 30, 40] {
        assert_eq!(write(&fs, victim, block * 4096, &noise(3, 4096)).unwrap(), 4096);
    }
    exhaust(&fs, &fives, 1);
    let before = contents(&fs, "victim");
    match fs.fallocate(victim, 0, 4096, Fallocate::Reserve { keep_size: true }) {
        Ok(()) | Err(Error::NoSpace(_)) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(contents(&fs, "victim") == before);
    end(fs, &disk);
}

/// A disk with some of its blocks free: a long file is overwritten and grows into them. What stays where it is at first may move
/// when it is written again after a crash, but not into the room of what has no place.
#[test]
fn what_is_replayed_finds_the_room_it_had_whatever_could_move() {
    const HOLES: usize = 20;
    let options = ["-b", "4096", "-N", "2000", "-m", "0", "-J", "size=32"];
    let Some((disk, ssd)) = halves_with(96, 64, &ssd::Config::default(), &options) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let part = fs.shared.part_bytes() / 4096;
    let victim = create(&fs, "victim", &noise(1, (2 * part - HOLES) * 4096));
    fs.commit().unwrap();
    take_all(&fs, HOLES as u64, 4096);
    let new = noise(2, 2 * part * 4096);
    let mut done = 0;
    while done < new.len() {
        let to = new.len().min(done + (256 << 10));
        done += write(&fs, victim, done as u64, &new[done..to]).unwrap();
    }
    fs.fsync(victim, false).unwrap().get().unwrap();
    assert!(fs.status().counters.fsync_ssd > 0);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.recovered() > 0 && contents(&fs, "victim") == new);
    end(fs, &disk);
}

/// Files whose first block of 1 KiB is a hole and whose next three are not: no hole needs a place for a change beside it.
#[test]
fn blocks_beside_a_hole_can_be_changed_though_none_is_free() {
    let Some((disk, ssd)) = halves_with(16, 16, &ssd::Config::default(), &["-b", "1024", "-m", "0"]) else {
        return;
    };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let bytes = noise(1, 3072);
    let files: Vec<Ino> = (0..4).map(|file| create(&fs, &format!("f{file}"), b"")).collect();
    for ino in &files {
        assert_eq!(write(&fs, *ino, 1024, &bytes).unwrap(), bytes.len());
    }
    fs.commit().unwrap();
    assert!(files.iter().all(|ino| fs.getattr(*ino).unwrap().blocks == 6));
    take_all(&fs, 0, 1024);
    assert!(matches!(write(&fs, files[0], 0, b"x"), Err(Error::NoSpace(_))));
    assert_eq!(write(&fs, files[0], 2048, &noise(5, 100)).unwrap(), 100);
    fs.setattr(files[1], &SetAttr { size: Some(3000), ..SetAttr::default() }).unwrap();
    fs.fallocate(files[2], 2048, 100, Fallocate::Punch).unwrap();
    fs.fallocate(files[3], 2048, 1024, Fallocate::Zero { keep_size: true }).unwrap();
    let mut all = vec![[vec![0; 1024], bytes].concat(); 4];
    all[0][2048..2148].copy_from_slice(&noise(5, 100));
    all[1].truncate(3000);
    all[2][2048..2148].fill(0);
    all[3][2048..3072].fill(0);
    let check = |fs: &NfHybrid| {
        assert!((0..4).all(|file| contents(fs, &format!("f{file}")) == all[file]));
    };
    check(&fs);
    files.iter().for_each(|ino| fs.fsync(*ino, false).unwrap().get().unwrap());
    let images = [disk.image(), ssd.image()];
    check(&fs);
    end(fs, &disk);
    let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    check(&fs);
    end(fs, &disk);
}

/// Free blocks lie apart, so that what is zeroed gets an extent for each; the hole that is made first gives back what dirty
/// data had been promised.
#[test]
fn zeroing_keeps_the_promise_to_the_tree_until_it_is_done() {
    let Some((fs, disk, _ssd)) = large_blocks() else { return };
    let slack = 24 * 256 / 50;
    let victim = create(&fs, "victim", &noise(1, 10 * 4096));
    for block in [20, 30, 40] {
        write(&fs, victim, block * 4096, &noise(2, 4096)).unwrap();
    }
    let fives = fives(&fs, 200);
    let apart = between(&fs, slack + 20, 4096);
    fs.commit().unwrap();
    take_all(&fs, 0, 4096);
    free_every_other(&fs, &apart);
    fs.commit().unwrap();
    // The long run that is left first.
    let filler = fs.lookup(ROOT_INO, b"filler").unwrap().ino;
    fs.fallocate(filler, 1 << 30, slack * 4096, Fallocate::Reserve { keep_size: true }).unwrap();
    fs.commit().unwrap();
    exhaust(&fs, &fives, 10);
    let mut expected = contents(&fs, "victim");
    fs.fallocate(victim, 0, 10 * 4096, Fallocate::Zero { keep_size: true }).unwrap();
    expected[..10 * 4096].fill(0);
    assert!(contents(&fs, "victim") == expected);
    end(fs, &disk);
}

/// Block 1 of the file is a hole in the frame of block 0, which is dirty, beside an extent that becomes data as a whole.
#[test]
fn what_becomes_data_as_a_whole_takes_no_hole_beside_it_along() {
    let options = ["-b", "1024", "-N", "1000", "-m", "0", "-J", "size=4"];
    let Some((disk, ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let victim = create(&fs, "victim", b"");
    fs.fallocate(victim, 2048, 10 * 1024, Fallocate::Reserve { keep_size: false }).unwrap();
    write(&fs, victim, 20 * 1024, &noise(1, 1024)).unwrap();
    let fives = fives(&fs, 400);
    fs.commit().unwrap();
    take_all(&fs, 1, 1024);
    assert_eq!(write(&fs, victim, 0, &noise(5, 100)).unwrap(), 100);
    for ino in &fives {
        if free(&fs) == 0 {
            break;
        }
        for block in [1, 3, 5, 7] {
            write(&fs, *ino, block * 1024, &noise(block, 1024)).unwrap();
        }
    }
    let mut expected = contents(&fs, "victim");
    assert_eq!(write(&fs, victim, 5 * 1024, &noise(6, 1024)).unwrap(), 1024);
    assert!(fs.shared.core.lock().dirty.needs().filled > 0, "a node was left: the test shows nothing");
    expected[5 * 1024..6 * 1024].copy_from_slice(&noise(6, 1024));
    assert!(contents(&fs, "victim") == expected);
    fs.commit().unwrap();
    assert!(contents(&fs, "victim") == expected);
    end(fs, &disk);
}

/// An extent of reserved space begins and ends inside frames that hold data beside it and are not dirty.
#[test]
fn what_becomes_data_as_a_whole_keeps_the_data_beside_it() {
    let options = ["-b", "1024", "-N", "1000", "-m", "0", "-J", "size=4"];
    let Some((disk, ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let victim = create(&fs, "victim", b"");
    for block in [0, 1, 11, 13, 15] {
        write(&fs, victim, block * 1024, &noise(block, 1024)).unwrap();
    }
    fs.commit().unwrap();
    fs.fallocate(victim, 2048, 9 * 1024, Fallocate::Reserve { keep_size: false }).unwrap();
    let fives = fives(&fs, 400);
    fs.commit().unwrap();
    take_all(&fs, 0, 1024);
    for ino in &fives {
        if free(&fs) == 0 {
            break;
        }
        for block in [1, 3, 5, 7] {
            write(&fs, *ino, block * 1024, &noise(block, 1024)).unwrap();
        }
    }
    let mut expected = contents(&fs, "victim");
    assert_eq!(write(&fs, victim, 5 * 1024, &noise(6, 1024)).unwrap(), 1024);
    assert!(fs.shared.core.lock().dirty.needs().filled > 0, "a node was left: the test shows nothing");
    expected[5 * 1024..6 * 1024].copy_from_slice(&noise(6, 1024));
    assert!(contents(&fs, "victim") == expected);
    fs.fsync(victim, false).unwrap().get().unwrap();
    let images = [disk.image(), ssd.image()];
    fs.commit().unwrap();
    assert!(contents(&fs, "victim") == expected);
    end(fs, &disk);
    let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "victim") == expected);
    end(fs, &disk);
}

/// Punching the hole takes a node, and of the blocks that data may have just as many are left as are to be zeroed.
#[test]
fn a_zeroing_whose_hole_takes_a_node_has_its_blocks_set_aside() {
    let options = ["-b", "1024", "-N", "1000", "-m", "0", "-J", "size=4"];
    for left in 0..8 {
        let Some((disk, ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let victim = create(&fs, "victim", b"");
        for block in [0, 20, 40, 60] {
            write(&fs, victim, block * 1024, &noise(block, 12 * 1024)).unwrap();
        }
        fs.commit().unwrap();
        take_all(&fs, left, 1024);
        let mut expected = contents(&fs, "victim");
        let zeroed = fs.fallocate(victim, 24 * 1024, 4096, Fallocate::Zero { keep_size: true });
        if zeroed.is_ok() {
            expected[24 * 1024..28 * 1024].fill(0);
        }
        assert!(contents(&fs, "victim") == expected, "{left} left: {zeroed:?}");
        end(fs, &disk);
    }
}

/// An ext4 whose files were written when it had no extents, adopted.
pub(super) fn of_block_maps(files: usize) -> Option<(Arc<Ram>, Arc<Ram>)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(40 << 20).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).arg(file.path()).output().ok()?;
        assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
        Some(())
    };
    let options = ["-q", "-t", "ext4", "-F", "-b", "4096", "-O", "^extents,^64bit", "-N", "1000", "-m", "0"];
    let Some(()) = run("/usr/sbin/mke2fs", &options) else {
        println!("skipped: no mke2fs");
        return None;
    };
    let source = folder.path().join("source");
    let sparse = std::fs::File::create(&source).unwrap();
    for block in (0..12).step_by(2) {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(block, 4096), block * 4096).unwrap();
    }
    let script = folder.path().join("script");
    let commands: String = (0..files).map(|file| format!("write {} m{file}\n", source.display())).collect();
    std::fs::write(&script, commands).unwrap();
    run("/usr/sbin/debugfs", &["-w", "-f", script.to_str().unwrap()]);
    run("/usr/sbin/tune2fs", &["-O", "extents"]);
    // It mends what tune2fs leaves, and ends with 1 for it.
    Command::new("/usr/sbin/e2fsck").arg("-fy").arg(file.path()).output().unwrap();
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", 16 << 20));
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    Some((disk, ssd))
}

/// An overwrite changes no block map of ext2; what makes an extent tree of it needs blocks of the journal that the data alone does
/// not.
#[test]
fn a_block_map_that_becomes_a_tree_is_in_the_journals_account() {
    let Some((disk, ssd)) = of_block_maps(300) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    for file in 0..300 {
        let ino = fs.lookup(ROOT_INO, format!("m{file}").as_bytes()).unwrap().ino;
        let at = if file % 2 == 0 { 8192 } else { 4096 };
        assert_eq!(write(&fs, ino, at, &noise(99, 4096)).unwrap(), 4096);
        let (need, limit) = fs.journal_account();
        assert!(need <= limit, "{need} blocks of {limit}");
    }
    assert!(fs.status().counters.cycles > 0, "all fitted one transaction: the test shows nothing");
    fs.sync().unwrap();
    let found = [contents(&fs, "m6"), contents(&fs, "m7")];
    assert!(found[0][8192..12_288] == noise(99, 4096) && found[0][..4096] == noise(0, 4096));
    assert!(found[1][4096..8192] == noise(99, 4096) && found[1][8192..12_288] == noise(2, 4096));
    end(fs, &disk);
}
