//! What reads bring to the SSD, counted at the devices.

use super::*;
use bimetal_media::counted::Counted;

/// Two halves whose writes are counted, with a tree on the disk that the SSD knows nothing of: directories `a` and
/// `b` with the same `files` files of `bytes` bytes each.
fn cold_tree(disk_mib: u64, ssd_mib: u64, files: u32, bytes: usize) -> Option<(Arc<Ram>, Arc<Counted>)> {
    let (disk, ssd) = halves(disk_mib, ssd_mib)?;
    let alone = open(&disk, None, manual()).unwrap();
    for dir in ["a", "b"] {
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
        let dir = alone.create(&Caller::default(), ROOT_INO, dir.as_bytes(), &node).unwrap().ino;
        for number in 0..files {
            let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
            let name = format!("{number:05}");
            let ino = alone.create(&Caller::default(), dir, name.as_bytes(), &node).unwrap().ino;
            alone.write(ino, 0, &vec![number as u8; bytes], false).unwrap().get().unwrap();
        }
    }
    alone.shutdown().unwrap();
    Some((disk, Arc::new(Counted::new(ssd))))
}

/// Reads a file of a directory as the kernel does, 128 KiB at a time, and lets the copies be made.
fn read_file(fs: &NfHybrid, dir: &str, name: &str) -> Vec<u8> {
    let dir = fs.lookup(ROOT_INO, dir.as_bytes()).unwrap().ino;
    let attr = fs.lookup(dir, name.as_bytes()).unwrap();
    let starts = (0..attr.size).step_by(128 << 10);
    let parts = starts.map(|at| fs.read(attr.ino, at, 128 << 10).unwrap().get().unwrap().concat());
    let bytes = parts.collect::<Vec<_>>().concat();
    fs.promote();
    bytes
}

/// `diff -r a b`.
fn diff(fs: &NfHybrid, files: u32) {
    for number in 0..files {
        let name = format!("{number:05}");
        assert!(read_file(fs, "a", &name) == read_file(fs, "b", &name), "{name}");
    }
}

#[test]
fn a_diff_of_a_cold_tree_writes_less_than_a_20th_of_it_to_the_ssd() {
    const FILES: u32 = 300;
    const BYTES: usize = 60_000;
    let Some((disk, ssd)) = cold_tree(128, 32, FILES, BYTES) else { return };
    let written = |promote: &str| {
        let options = Options { promote: promote.parse().unwrap(), ..manual() };
        let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), options).unwrap();
        let before = ssd.counts().write_bytes;
        diff(&fs, FILES);
        fs.commit().unwrap();
        let bytes = ssd.counts().write_bytes - before;
        let tally = fs.status().promotion.tally;
        fs.abandon();
        (bytes, tally)
    };
    let tree = 2 * u64::from(FILES) * BYTES as u64;
    let (second, tally) = written("second");
    assert!(second < tree / 20, "{second} of {tree} bytes");
    assert_eq!(tally.offered_bytes, tally.refused_first_bytes + tally.refused_swept_bytes, "{tally:?}");
    assert!(tally.offered_bytes >= tree, "{tally:?}");
    // The paper's way, for comparison: all of it.
    let (first, _) = written("first");
    println!("diff of {tree} bytes: {second} bytes written to the SSD; {first} when all is copied");
    assert!(first > tree * 9 / 10, "{first} of {tree} bytes");
}

#[test]
fn what_is_read_again_and_again_is_on_the_ssd_at_its_third_reading() {
    const FILES: u32 = 40;
    const BYTES: usize = 100_000;
    let Some((disk, ssd)) = cold_tree(64, 32, FILES, BYTES) else { return };
    let fs = NfHybrid::open(disk.clone(), Some(ssd), manual()).unwrap();
    let mut from_disk = Vec::new();
    for _ in 0..4 {
        let before = fs.status().counters.read_bytes[2];
        (0..FILES).for_each(|number| {
            let bytes = read_file(&fs, "a", &format!("{number:05}"));
            assert!(bytes == vec![number as u8; BYTES]);
        });
        from_disk.push(fs.status().counters.read_bytes[2] - before);
    }
    let all = u64::from(FILES) * BYTES.next_multiple_of(4096) as u64;
    assert_eq!(from_disk, [all, all, 0, 0]);
    assert_eq!(fs.status().counters.promoted_bytes, all);
    fs.shutdown().unwrap();
}

#[test]
fn a_day_brings_no_more_to_the_ssd_than_its_budget() {
    let Some((disk, ssd)) = cold_tree(64, 32, 40, 100_000) else { return };
    let budget = Some(Budget::new(Some(1_000_000)));
    let options = Options { promote: "first".parse().unwrap(), promote_budget: budget, ..manual() };
    let fs = NfHybrid::open(disk.clone(), Some(ssd), options).unwrap();
    diff(&fs, 40);
    let status = fs.status();
    let tally = status.promotion.tally;
    assert!((900_000..=1_000_000).contains(&tally.admitted_bytes), "{tally:?}");
    assert_eq!(status.counters.promoted_bytes, tally.admitted_bytes);
    assert_eq!(tally.offered_bytes, tally.admitted_bytes + tally.refused_budget_bytes, "{tally:?}");
    fs.shutdown().unwrap();
}
