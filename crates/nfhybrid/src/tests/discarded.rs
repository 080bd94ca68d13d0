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
    fs.forget(ino, 1);
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

#[test]
fn a_discard_that_fails_leaves_what_comes_after_it_to_be_discarded() {
    for number in [libc::EINTR, libc::EBUSY, libc::EIO] {
        let Some((disk, ssd)) = halves(64, 32) else { return };
        let counted = Arc::new(Counted::new(ssd));
        let faulty = Arc::new(Faulty::new(counted.clone()));
        let fs = NfHybrid::open(disk, Some(faulty.clone()), manual()).unwrap();
        in_use(&fs);
        let before = counted.counts();
        let all = trimmed(&fs, ALL).unwrap();
        let steps = counted.counts().discards - before.discards;
        assert!(steps > 1, "the case that this is a test of: {steps} steps");
        faulty.plan(Struck::Discard, When::Nth(1), Effect::Error(number));
        let before = counted.counts();
        assert!(trimmed(&fs, ALL).is_err(), "what failed is told");
        let told = counted.counts() - before;
        assert_eq!((told.discards, faulty.struck()), (steps - 1, 1), "error {number}");
        assert!(told.discard_bytes < all);
        // One that fails all the time is not asked for each.
        faulty.plan(Struck::Discard, When::Always, Effect::Error(number));
        assert!(trimmed(&fs, ALL).is_err());
        assert!(faulty.struck() <= 1 + steps.min(3), "{}", faulty.struck());
        faulty.forget();
        assert_eq!(trimmed(&fs, ALL).unwrap(), all);
        are_there(&fs);
        fs.shutdown().unwrap();
    }
}

/// Discards as the task does until nothing is due; the bytes.
fn told(fs: &NfHybrid, counted: &Counted) -> u64 {
    let before = counted.counts().discard_bytes;
    while fs.shared.discard_step().unwrap() {}
    counted.counts().discard_bytes - before
}

#[test]
fn with_the_option_the_device_is_told_once_of_what_becomes_clean() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let counted = Arc::new(Counted::new(ssd.clone()));
    let fs = NfHybrid::open(disk.clone(), Some(counted.clone()), manual()).unwrap();
    assert_eq!(told(&fs, &counted), 0, "nobody asked for it");
    fs.shared.core.lock().ssd.as_mut().unwrap().tell_of_clean();
    let all = told(&fs, &counted);
    assert!(all > 8 * MIB as u64, "{all}");
    assert_eq!(told(&fs, &counted), 0, "it knows");
    for round in 0..3 {
        in_use(&fs);
        let more = told(&fs, &counted);
        // What the removed file had, and what the log's end freed with it.
        assert!((3 * MIB as u64..8 * MIB as u64).contains(&more), "round {round}: {more}");
        assert_eq!(told(&fs, &counted), 0);
        are_there(&fs);
        for name in ["both", "ssd"] {
            let ino = fs.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
            fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
            // Twice looked up.
            fs.forget(ino, 2);
        }
        let mut more = 0;
        for _ in 0..4 {
            fs.commit().unwrap();
            more += told(&fs, &counted);
        }
        assert!((MIB as u64..4 * MIB as u64).contains(&more), "round {round}: {more}");
    }
    assert_eq!(ssd.image().chunks(4096).filter(|block| **block == [2; 4096]).count(), 0);
    // All of it is room as before.
    let room = trimmed(&fs, ALL).unwrap();
    assert!(room >= all, "{room} of {all}: {:?}", fs.status().ssd_half.unwrap().sections);
    fs.shutdown().unwrap();
}

#[test]
fn a_mount_with_the_option_discards_by_itself_and_loses_nothing() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let counted = Arc::new(Counted::new(ssd.clone()));
    let options = Options { discard: true, ..Options::default() };
    let fs = NfHybrid::open(disk.clone(), Some(counted.clone()), options).unwrap();
    in_use(&fs);
    let twos = || ssd.image().chunks(4096).filter(|block| **block == [2; 4096]).count();
    for _ in 0..600 {
        if twos() == 0 && counted.counts().discard_bytes > 8 * MIB as u64 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        fs.commit().unwrap();
    }
    assert_eq!(twos(), 0);
    are_there(&fs);
    fs.shutdown().unwrap();
    let [disk, ssd] = again([&disk, &ssd]);
    let after = open(&disk, Some(&ssd), manual()).unwrap();
    are_there(&after);
    after.shutdown().unwrap();
}

#[test]
fn a_device_that_takes_no_discards_is_left_alone() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let counted = Arc::new(Counted::new(ssd));
    let faulty = Arc::new(Faulty::new(counted.clone()));
    faulty.plan(Struck::Discard, When::Always, Effect::Error(95));
    let lag = Lag { time: Duration::from_millis(50), ..Lag::default() };
    let options = Options { discard: true, lag, ..Options::default() };
    let fs = NfHybrid::open(disk, Some(faulty.clone()), options).unwrap();
    in_use(&fs);
    for _ in 0..400 {
        if faulty.struck() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(300));
    are_there(&fs);
    assert_eq!(fs.status().ssd_lost, None);
    let why = trimmed(&fs, ALL).unwrap_err();
    assert!(matches!(why, Error::Unsupported { .. }), "{why}");
    fs.shutdown().unwrap();
    assert_eq!(counted.counts().discard_bytes, 0);
    assert_eq!(faulty.struck(), 2, "once by itself, once for the one who asked");
}

#[test]
fn a_discard_that_fails_once_is_tried_again_and_harms_nothing() {
    for number in [libc::EINTR, libc::EBUSY, libc::EIO] {
        let Some((disk, ssd)) = halves(64, 16) else { return };
        let counted = Arc::new(Counted::new(ssd));
        let faulty = Arc::new(Faulty::new(counted.clone()));
        faulty.plan(Struck::Discard, When::Nth(1), Effect::Error(number));
        let lag = Lag { time: Duration::from_millis(50), ..Lag::default() };
        let options = Options { discard: true, lag, ..Options::default() };
        let fs = NfHybrid::open(disk, Some(faulty.clone()), options).unwrap();
        in_use(&fs);
        for _ in 0..400 {
            if counted.counts().discard_bytes > 8 * MIB as u64 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(faulty.struck(), 1);
        assert!(counted.counts().discard_bytes > 8 * MIB as u64, "error {number}: {:?}", counted.counts());
        assert_eq!(fs.status().ssd_lost, None);
        are_there(&fs);
        fs.shutdown().unwrap();
    }
}
