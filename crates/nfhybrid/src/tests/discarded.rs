//! Discarding what the SSD need not keep: only that, and over cuts and errors.

use super::*;
use bimetal_media::counted::Counted;
use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
use bimetal_vfs::Trim;

const ALL: Trim = Trim { offset: 0, len: u64::MAX, least: 0 };
const MIB: usize = 1 << 20;

fn trimmed(fs: &NfHybrid, trim: Trim) -> Result<u64> {
    fs.trim(trim)?.get()
}

/// A file on both halves, one of which the SSD alone has the contents, and room that a third left.
fn in_use(fs: &NfHybrid) {
    for (name, bytes) in [("both", vec![1; MIB]), ("gone", vec![2; 4 * MIB])] {
        let ino = create(fs, name, &bytes);
        fs.fsync(ino, false).unwrap().get().unwrap();
        fs.forget(ino, 1);
    }
    fs.commit().unwrap();
    fs.unlink(ROOT_INO, b"gone").unwrap();
    fs.commit().unwrap();
    fs.commit().unwrap();
    let ino = create(fs, "ssd", &[3; MIB]);
    fs.fsync(ino, false).unwrap().get().unwrap();
}

fn are_there(fs: &NfHybrid) {
    assert!(contents(fs, "both") == [1; MIB] && contents(fs, "ssd") == [3; MIB]);
}

#[test]
fn what_is_clean_is_discarded_and_nothing_else_and_a_cut_right_after_it_costs_nothing() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let counted = Arc::new(Counted::new(ssd.clone()));
    let fs = NfHybrid::open(disk.clone(), Some(counted.clone()), manual()).unwrap();
    in_use(&fs);
    let twos = |ssd: &Ram| ssd.image().chunks(4096).filter(|block| **block == [2; 4096]).count() * 4096;
    assert!(twos(&ssd) >= 2 * MIB, "{}", twos(&ssd));
    let bytes = trimmed(&fs, ALL).unwrap();
    let sections = fs.status().ssd_half.unwrap().sections;
    let clean: u64 =
        sections.iter().map(|section| u64::from(section.extents_clean) * section.extent_bytes).sum();
    assert!(bytes == clean && bytes > 4 * MIB as u64, "{bytes} of {clean}");
    assert_eq!(counted.counts().discard_bytes, bytes);
    assert_eq!(twos(&ssd), 0, "bytes of a removed file");
    are_there(&fs);
    assert_eq!(trimmed(&fs, ALL).unwrap(), bytes, "it was all given back");
    assert_eq!(trimmed(&fs, Trim { least: 1 << 40, ..ALL }).unwrap(), 0, "too short for that");
    let part = Trim { offset: 8 << 20, len: 4 << 20, least: 0 };
    assert!(trimmed(&fs, part).unwrap() <= 4 << 20);
    assert_eq!(trimmed(&fs, Trim { offset: u64::MAX, len: u64::MAX, least: 0 }).unwrap(), 0);
    let [disk, ssd] = again([&disk, &ssd]);
    let after = open(&disk, Some(&ssd), manual()).unwrap();
    are_there(&after);
    // Its room is room as before.
    let ino = create(&after, "more", &[4; 8 * MIB]);
    after.fsync(ino, false).unwrap().get().unwrap();
    after.commit().unwrap();
    assert!(contents(&after, "more") == [4; 8 * MIB]);
    are_there(&after);
    after.shutdown().unwrap();
    fs.shutdown().unwrap();
}

#[test]
fn an_error_of_a_discard_is_its_own_and_the_room_is_given_back() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let faulty = Arc::new(Faulty::new(ssd));
    let fs = NfHybrid::open(disk.clone(), Some(faulty.clone()), manual()).unwrap();
    in_use(&fs);
    let bytes = trimmed(&fs, ALL).unwrap();
    faulty.plan(Struck::Discard, When::Always, Effect::Error(5));
    let why = trimmed(&fs, ALL).unwrap_err().to_string();
    assert!(why.contains("os error 5"), "{why}");
    assert_eq!(fs.status().ssd_lost, None);
    faulty.forget();
    assert_eq!(trimmed(&fs, ALL).unwrap(), bytes);
    are_there(&fs);
    fs.shutdown().unwrap();
    let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
    assert!(trimmed(&alone, ALL).unwrap_err().to_string().contains("no SSD"));
    alone.shutdown().unwrap();
}
