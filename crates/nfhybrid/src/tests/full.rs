//! A disk without a free block: what has its blocks can be changed, and what fails has changed nothing.

use super::*;

/// Halves whose disk has blocks of 1 KiB, mounted.
fn small_blocks() -> Option<(NfHybrid, Arc<Ram>, Arc<Ram>)> {
    let (disk, ssd) = halves_with(16, 8, &ssd::Config::default(), &["-b", "1024", "-N", "1024", "-m", "0"])?;
    Some((open(&disk, Some(&ssd), manual()).unwrap(), disk, ssd))
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = bimetal_base::random::Random::new(seed, "contents");
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

fn write(fs: &NfHybrid, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize> {
    fs.write(ino, at, bytes, false)?.get()
}

/// Gives another file every block that is left.
fn fill(fs: &NfHybrid) {
    // Its name may need a block of the directory.
    let more = create(fs, "no more", b"");
    take_all(fs);
    assert!(matches!(write(fs, more, 0, b"x"), Err(Error::NoSpace(_))));
}

fn take_all(fs: &NfHybrid) {
    let ino = create(fs, "filler", b"");
    let (mut at, mut before) = (0, u64::MAX);
    // What was promised in case of need comes back with a commit.
    while at != before {
        before = at;
        for step in [1 << 20, 64 << 10, 1 << 10] {
            while fs.fallocate(ino, at, step, Fallocate::Reserve { keep_size: true }).is_ok() {
                at += step;
            }
        }
        fs.commit().unwrap();
    }
}

const ZERO: Fallocate = Fallocate::Zero { keep_size: false };

#[test]
fn what_has_its_blocks_is_overwritten_and_zeroed_though_none_is_free() {
    const LEN: usize = 300_000;
    let Some((fs, disk, ssd)) = small_blocks() else { return };
    let mut bytes = noise(1, LEN);
    let ino = create(&fs, "f", &bytes);
    fs.setattr(ino, &SetAttr { perm: Some(0o6755), ..SetAttr::default() }).unwrap();
    fs.commit().unwrap();
    fill(&fs);
    for (round, (at, len)) in
        [(299_500, 100), (299_008, 992), (290_000, 10_000), (0, LEN)].into_iter().enumerate()
    {
        let new = noise(round as u64 + 2, len);
        assert_eq!(write(&fs, ino, at as u64, &new).unwrap(), len, "at {at}");
        bytes[at..at + len].copy_from_slice(&new);
        fs.commit().unwrap();
        assert!(contents(&fs, "f") == bytes);
    }
    fs.fallocate(ino, 5_000, LEN as u64 - 5_000, ZERO).unwrap();
    bytes[5_000..].fill(0);
    assert!(contents(&fs, "f") == bytes);
    assert_eq!(fs.getattr(ino).unwrap().perm & 0o7777, 0o6755, "whose file it is may zero it as before");
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == bytes);
    fs.shutdown().unwrap();
}

#[test]
fn a_zeroing_that_lacks_a_block_anywhere_has_zeroed_nothing() {
    let Some((fs, disk, ssd)) = small_blocks() else { return };
    let mut bytes = noise(1, 300_000);
    let ino = create(&fs, "f", &bytes);
    fs.fallocate(ino, 200_704, 4096, Fallocate::Punch).unwrap();
    bytes[200_704..204_800].fill(0);
    fs.commit().unwrap();
    fill(&fs);
    for what in [ZERO, Fallocate::Zero { keep_size: true }] {
        let error = fs.fallocate(ino, 0, 300_000, what).unwrap_err();
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
        assert!(contents(&fs, "f") == bytes, "{what:?}");
    }
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == bytes);
    fs.shutdown().unwrap();
}

#[test]
fn what_was_reserved_is_zeroed_and_grows_into_though_none_is_free() {
    let Some((fs, ..)) = small_blocks() else { return };
    let ino = create(&fs, "f", b"");
    fs.fallocate(ino, 0, 100_000, Fallocate::Reserve { keep_size: true }).unwrap();
    fs.commit().unwrap();
    fill(&fs);
    fs.fallocate(ino, 0, 100_000, Fallocate::Zero { keep_size: true }).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 0);
    fs.fallocate(ino, 0, 100_000, ZERO).unwrap();
    assert!(contents(&fs, "f") == vec![0; 100_000]);
    fs.shutdown().unwrap();
}

#[test]
fn a_frame_has_blocks_where_data_was_written() {
    let Some((fs, disk, ssd)) = small_blocks() else { return };
    // What is written, how long the file is then, and how many blocks of 1 KiB it has after a commit.
    type Step = (&'static [(u64, usize)], Option<u64>, u64);
    let cases: [Step; 5] = [
        (&[(0, 100)], None, 1),
        (&[(0, 100)], Some(4_000), 1),
        (&[(0, 100), (2_500, 100)], None, 1 + 1),
        (&[(0, 100), (5_000, 100)], None, 1 + 1),
        (&[(3_000, 3_000)], Some(8_192), 4),
    ];
    for (number, (writes, size, blocks)) in cases.into_iter().enumerate() {
        let name = format!("f{number}");
        let ino = create(&fs, &name, b"");
        let mut expected = Vec::new();
        for &(at, len) in writes {
            let new = noise(at, len);
            write(&fs, ino, at, &new).unwrap();
            expected.resize(expected.len().max(at as usize + len), 0);
            expected[at as usize..at as usize + len].copy_from_slice(&new);
        }
        if let Some(size) = size {
            fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
            expected.resize(size as usize, 0);
        }
        // What the log alone says must not take more.
        fs.fsync(ino, false).unwrap().get().unwrap();
        assert!(contents(&fs, &name) == expected, "{name}");
        fs.commit().unwrap();
        assert_eq!(fs.getattr(ino).unwrap().blocks, 2 * blocks, "{name}");
        assert!(contents(&fs, &name) == expected, "{name}");
    }
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "f4").len(), 8_192);
    fs.shutdown().unwrap();
}

#[test]
fn what_was_fsynced_on_a_full_disk_is_recovered_there() {
    let Some((fs, disk, ssd)) = small_blocks() else { return };
    let bytes = noise(1, 10_100);
    let ino = create(&fs, "f", &bytes);
    let tail = create(&fs, "tail", &noise(2, 700));
    fs.commit().unwrap();
    fill(&fs);
    fs.commit().unwrap();
    let (new, short) = (noise(3, 10_100), noise(4, 700));
    write(&fs, ino, 0, &new).unwrap();
    write(&fs, tail, 0, &short).unwrap();
    for ino in [ino, tail] {
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    assert!(fs.status().counters.fsync_ssd >= 2);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.recovered() > 0 && contents(&fs, "f") == new && contents(&fs, "tail") == short);
    fs.shutdown().unwrap();
}

/// Files of five blocks reserved ahead, of which the second and the fourth are written when the disk is full: each would be
/// five extents, one more than an inode holds.
#[test]
fn what_was_reserved_can_be_written_though_no_block_is_left_for_a_tree() {
    const FILES: usize = 400;
    let Some((disk, ssd)) =
        halves_with(48, 16, &ssd::Config::default(), &["-b", "4096", "-N", "2000", "-m", "0"])
    else {
        return;
    };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let files: Vec<Ino> = (0..FILES)
        .map(|file| {
            let ino = create(&fs, &format!("f{file}"), b"");
            fs.fallocate(ino, 0, 5 * 4096, Fallocate::Reserve { keep_size: false }).unwrap();
            ino
        })
        .collect();
    fs.commit().unwrap();
    fill(&fs);
    let mut expected = vec![0; 5 * 4096];
    for block in [1, 3] {
        expected[block * 4096..][..4096].copy_from_slice(&noise(block as u64, 4096));
        for &ino in &files {
            let at = block * 4096;
            assert_eq!(write(&fs, ino, at as u64, &expected[at..at + 4096]).unwrap(), 4096);
        }
    }
    files.iter().for_each(|ino| fs.fsync(*ino, false).unwrap().get().unwrap());
    let check = |fs: &NfHybrid| {
        assert!((0..FILES).all(|file| contents(fs, &format!("f{file}")) == expected));
    };
    check(&fs);
    let images = [disk.image(), ssd.image()];
    fs.commit().unwrap();
    check(&fs);
    fs.shutdown().unwrap();
    check_disk(&disk);
    let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    check(&fs);
    fs.shutdown().unwrap();
    check_disk(&disk);
}

#[test]
fn what_a_cut_freed_inside_a_frame_is_promised_anew() {
    for preallocated in [false, true] {
        // One transaction takes more files than what is kept for trees would do for.
        let options = ["-b", "1024", "-m", "0", "-J", "size=20"];
        let Some((disk, ssd)) = halves_with(50, 24, &ssd::Config::default(), &options) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let bytes = noise(1, 4096);
        let files: Vec<Ino> = (0..600).map(|file| create(&fs, &format!("f{file}"), b"")).collect();
        for &ino in &files {
            write(&fs, ino, 0, &bytes).unwrap();
            if preallocated {
                fs.fallocate(ino, 0, 4096, Fallocate::Reserve { keep_size: false }).unwrap();
            } else {
                fs.commit().unwrap();
            }
        }
        fill(&fs);
        let mut whole = Vec::new();
        for (file, &ino) in files.iter().enumerate() {
            fs.setattr(ino, &SetAttr { size: Some(1), ..SetAttr::default() }).unwrap();
            match write(&fs, ino, 1, &bytes[1..]) {
                Ok(4095) => whole.push(file),
                Ok(_) | Err(Error::NoSpace(_)) => {}
                Err(error) => panic!("{error}"),
            }
            fs.fsync(ino, false).unwrap().get().unwrap();
        }
        assert!(whole.len() > 100, "what cuts freed is there after a commit: {}", whole.len());
        let images = [disk.image(), ssd.image()];
        fs.commit().unwrap();
        fs.shutdown().unwrap();
        check_disk(&disk);
        let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        for file in 0..files.len() {
            let found = contents(&fs, &format!("f{file}"));
            assert!(found == bytes || !whole.contains(&file) && found[0] == bytes[0], "{file}");
        }
        fs.shutdown().unwrap();
    }
}

/// Whether e2fsck finds nothing wrong.
pub(super) fn check_disk(disk: &Ram) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), disk.image()).unwrap();
    let checked = Command::new("/usr/sbin/e2fsck").arg("-fn").arg(file.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// One file of a walk, and what it holds.
struct Walked {
    name: String,
    ino: Ino,
    bytes: Vec<u8>,
}

/// A disk that is full or nearly so, changed at random: a call is done or says that there is no space, and has changed
/// nothing then; no commit fails; and what was synced is there after a power cut, though nothing was free then.
fn walk(seed: u64) {
    let mut random = bimetal_base::random::Random::new(seed, "full");
    let mut pick = |below: u64| random.next() % below;
    let kind = pick(3) as usize;
    let block = [1024, 2048, 4096][kind];
    let (mib, journal) = [(6, "size=1"), (10, "size=2"), (16, "size=4")][kind];
    let blocks = block.to_string();
    let options = ["-b", &blocks, "-J", journal, "-N", "400", "-m", "0"];
    let Some((mut disk, mut ssd)) = halves_with(mib, 16, &ssd::Config::default(), &options) else { return };
    let mut fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut files: Vec<Walked> = Vec::new();
    // What is kept for trees is used up, in part or whole, by files of many extents.
    for file in 0..pick(120) {
        let (name, mut bytes) = (format!("p{file}"), vec![0; 11 * block as usize]);
        let ino = create(&fs, &name, b"");
        fs.fallocate(ino, 0, 11 * block, Fallocate::Reserve { keep_size: false }).unwrap();
        for at in (1..11).step_by(2) {
            bytes[at * block as usize..][..block as usize].fill(at as u8);
        }
        files.push(Walked { name, ino, bytes });
    }
    fs.commit().unwrap();
    take_all(&fs);
    for file in &files {
        for at in (1..11).step_by(2) {
            let part = &file.bytes[at * block as usize..][..block as usize];
            assert_eq!(write(&fs, file.ino, at as u64 * block, part).unwrap(), part.len(), "seed {seed}");
        }
        if pick(8) == 0 {
            fs.commit().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    files.truncate(4 + pick(30) as usize);
    let mut made = 0;
    let unit = if pick(2) == 0 { 4096 } else { 512 };
    for step in 0..300 {
        let index = pick(files.len().max(1) as u64) as usize;
        let at = pick(40) * unit;
        let long = pick(8) == 0;
        let len = (1 + pick(if long { 200 } else { 6 })) * unit;
        let fresh = |len: u64| noise(step, len as usize);
        let done: Result<()> = match pick(24) {
            _ if files.len() < 4 => {
                made += 1;
                let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
                let name = format!("f{made}");
                fs.create(&Caller::default(), ROOT_INO, name.as_bytes(), &node)
                    .map(|attr| files.push(Walked { name, ino: attr.ino, bytes: Vec::new() }))
            }
            0 | 1 => {
                made += 1;
                let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
                let name = format!("f{made}");
                fs.create(&Caller::default(), ROOT_INO, name.as_bytes(), &node)
                    .map(|attr| files.push(Walked { name, ino: attr.ino, bytes: Vec::new() }))
            }
            2 => {
                let file = files.swap_remove(index);
                fs.unlink(ROOT_INO, file.name.as_bytes()).map(|()| fs.forget(file.ino, 1))
            }
            3..5 => {
                let (odd, more) = (pick(2), pick(unit));
                let size = at + odd * more;
                let file = &mut files[index];
                fs.setattr(file.ino, &SetAttr { size: Some(size), ..SetAttr::default() })
                    .map(|_| file.bytes.resize(size as usize, 0))
            }
            5..9 => {
                let file = &mut files[index];
                let keep_size = pick(3) == 0;
                fs.fallocate(file.ino, at, len, Fallocate::Reserve { keep_size }).map(|()| {
                    if !keep_size {
                        file.bytes.resize(file.bytes.len().max((at + len) as usize), 0);
                    }
                })
            }
            9 => {
                let file = &mut files[index];
                fs.fallocate(file.ino, at, len, Fallocate::Punch).map(|()| {
                    let size = file.bytes.len();
                    file.bytes[(at as usize).min(size)..((at + len) as usize).min(size)].fill(0);
                })
            }
            10 => {
                let file = &mut files[index];
                fs.fallocate(file.ino, at, len, ZERO).map(|()| {
                    file.bytes.resize(file.bytes.len().max((at + len) as usize), 0);
                    file.bytes[at as usize..(at + len) as usize].fill(0);
                })
            }
            11 => fs.fsync(files[index].ino, false).unwrap().get(),
            12 => fs.commit(),
            13 if pick(6) == 0 => {
                files.iter().for_each(|file| fs.fsync(file.ino, false).unwrap().get().unwrap());
                fs.abandon();
                if pick(2) == 0 {
                    [disk, ssd] =
                        [disk.image(), ssd.image()].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
                }
                fs = open(&disk, Some(&ssd), manual()).unwrap();
                for file in &mut files {
                    file.ino = fs.lookup(ROOT_INO, file.name.as_bytes()).unwrap().ino;
                }
                Ok(())
            }
            14 => {
                // What is left.
                let file = &mut files[index];
                let mut at = file.bytes.len() as u64 + 4 * unit;
                for step in [1 << 20, 64 << 10, block] {
                    while fs.fallocate(file.ino, at, step, Fallocate::Reserve { keep_size: true }).is_ok() {
                        at += step;
                    }
                }
                Ok(())
            }
            _ => {
                let file = &mut files[index];
                let new = fresh(len);
                let mut done = 0;
                let result = loop {
                    match write(&fs, file.ino, at + done, &new[done as usize..]) {
                        Ok(0) => panic!("nothing was written"),
                        Ok(more) => done += more as u64,
                        Err(error) => break Err(error),
                    }
                    if done == len {
                        break Ok(());
                    }
                };
                if done > 0 {
                    file.bytes.resize(file.bytes.len().max((at + done) as usize), 0);
                    file.bytes[at as usize..(at + done) as usize].copy_from_slice(&new[..done as usize]);
                }
                result
            }
        };
        match done {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(error) => panic!("seed {seed}, step {step}: {error}"),
        }
        if step % 8 == 0 {
            let file = &files[pick(files.len() as u64) as usize];
            assert!(contents(&fs, &file.name) == file.bytes, "seed {seed}, step {step}, {}", file.name);
        }
    }
    for file in &files {
        assert!(contents(&fs, &file.name) == file.bytes, "seed {seed}, at the end, {}", file.name);
    }
    fs.shutdown().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    check_disk(&disk);
}

#[test]
fn whatever_is_done_to_a_full_disk_no_commit_fails_and_what_was_synced_is_there() {
    let seeds = std::env::var("FULL").map_or(0..60, |text| {
        let (from, to) = text.split_once("..").expect("FULL=from..to");
        from.parse().unwrap()..to.parse().unwrap()
    });
    seeds.for_each(walk);
}
