//! A disk without a free block: what has its blocks can be changed, and what fails has changed nothing.

use super::*;

/// Halves whose disk has blocks of 1 KiB, mounted.
fn small_blocks() -> Option<(NfHybrid, Arc<Ram>, Arc<Ram>)> {
    let (disk, ssd) = halves_with(16, 8, &ssd::Config::default(), &["-b", "1024"])?;
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
    let ino = create(fs, "filler", b"");
    let mut at = 0;
    for step in [1 << 20, 64 << 10, 1 << 10] {
        while fs.fallocate(ino, at, step, Fallocate::Reserve { keep_size: true }).is_ok() {
            at += step;
        }
        fs.commit().unwrap();
    }
    while fs.fallocate(ino, at, 1 << 10, Fallocate::Reserve { keep_size: true }).is_ok() {
        at += 1 << 10;
    }
    assert!(matches!(write(fs, create(fs, "no more", b""), 0, b"x"), Err(Error::NoSpace(_))));
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
fn a_frame_has_blocks_as_far_as_data_reaches_into_it() {
    let Some((fs, disk, ssd)) = small_blocks() else { return };
    // What is written, how long the file is then, and how many blocks of 1 KiB it has after a commit.
    type Step = (&'static [(u64, usize)], Option<u64>, u64);
    let cases: [Step; 5] = [
        (&[(0, 100)], None, 1),
        (&[(0, 100)], Some(4_000), 1),
        (&[(0, 100), (2_500, 100)], None, 3),
        (&[(0, 100), (5_000, 100)], None, 1 + 1),
        (&[(3_000, 3_000)], Some(8_192), 6),
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
