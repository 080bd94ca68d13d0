//! What recovery brings back: operations larger than a transaction, and what changed while a commit was under way.

use super::*;
use bimetal_media::held::Held;
use bimetal_vfs::Fallocate;

/// Contents that no file system has by chance.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = bimetal_base::random::Random::new(seed, "contents");
    (0..len).map(|_| random.next() as u8).collect()
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

#[test]
fn a_commit_amid_the_records_of_one_operation_loses_none_of_its_data() {
    // In the log itself, and pointed at by it.
    for (len, lag_bytes, least) in [(8_000, 16 << 10, 2), (60_001, 32 << 10, 3)] {
        let Some((disk, ssd)) = halves(32, 8) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let bytes = noise(1, len);
        let ino = create(&fs, "f", &bytes);
        fsync(&fs, ino);
        assert_eq!(fs.status().counters.fsync_ssd, 1);
        fs.abandon();
        // Recovery commits after each quarter of the lag: several times before the log says how long the file is.
        let lag = Lag { bytes: lag_bytes, ..Lag::default() };
        let fs = open(&disk, Some(&ssd), Options { lag, ..manual() }).unwrap();
        let cycles = fs.status().counters.cycles;
        assert!(cycles >= least, "{len} bytes: {cycles} commits");
        assert!(contents(&fs, "f") == bytes);
        fs.shutdown().unwrap();
    }
}

#[test]
fn an_overwrite_larger_than_a_transaction_is_recovered_in_parts() {
    const BYTES: usize = 3 << 20;
    // A transaction of this journal has 256 blocks of 1 KiB.
    let options = ["-b", "1024", "-J", "size=1"];
    let Some((disk, ssd)) = halves_with(32, 12, &ssd::Config::default(), &options) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &noise(1, BYTES));
    fs.commit().unwrap();
    let mut new = noise(2, BYTES);
    for at in (0..BYTES).step_by(64 << 10) {
        fs.write(ino, at as u64, &new[at..at + (64 << 10)], false).unwrap().get().unwrap();
    }
    fsync(&fs, ino);
    assert_eq!(fs.status().counters.fsync_ssd, 1);
    // What is left are stretches of 512 KiB: too short to be given new places, too long for a transaction.
    for at in (0..BYTES).step_by(512 << 10) {
        fs.fallocate(ino, at as u64, 4096, Fallocate::Punch).unwrap();
        new[at..at + 4096].fill(0);
    }
    fsync(&fs, ino);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.recovered() > 0 && contents(&fs, "f") == new);
    fs.shutdown().unwrap();
}

/// A file whose copy on the SSD is older than what a commit brings to the disk, changed once more while that commit is
/// under way; then the power goes. Nothing but the commit is durable.
fn changed_during_a_commit(change: impl FnOnce(&NfHybrid, Ino) + Send + 'static) {
    let Some((disk, ssd)) = halves(32, 8) else { return };
    let held = Held::new(disk.clone());
    let fs = Arc::new(NfHybrid::open(held.clone(), Some(ssd.clone()), manual()).unwrap());
    let mut bytes = noise(1, 40_960);
    let ino = create(&fs, "f", &bytes);
    fs.commit().unwrap();
    assert!(is_on_ssd(&fs, "f"));
    bytes[8192..20_480].copy_from_slice(&noise(2, 12_288));
    fs.write(ino, 8192, &bytes[8192..20_480], false).unwrap().get().unwrap();
    let other = fs.clone();
    held.before_write(|_, _| true, move || change(&other, ino));
    fs.commit().unwrap();
    let fs = Arc::into_inner(fs).unwrap();
    assert!(contents(&fs, "f") != bytes, "nothing was changed meanwhile");
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == bytes, "not what the disk has");
    fs.shutdown().unwrap();
}

#[test]
fn what_is_punched_while_a_commit_is_under_way_does_not_come_back_as_it_was_before_the_commit() {
    changed_during_a_commit(|fs, ino| fs.fallocate(ino, 8192, 12_288, Fallocate::Punch).unwrap());
}

#[test]
fn what_is_cut_off_while_a_commit_is_under_way_does_not_come_back_as_it_was_before_the_commit() {
    changed_during_a_commit(|fs, ino| {
        let set = SetAttr { size: Some(4096), ..SetAttr::default() };
        fs.setattr(ino, &set).unwrap();
    });
}

#[test]
fn what_is_written_and_not_synced_while_a_commit_is_under_way_does_not_hide_what_that_made_stale() {
    changed_during_a_commit(|fs, ino| {
        fs.write(ino, 12_288, &[7; 4096], false).unwrap().get().unwrap();
    });
}

/// A volume with files `a`, `b` and `g`; then `g` is written, names change, and `g` is fsynced: the records of its data and
/// the last change of names have one number. Recovery, which commits often, is cut before each of its writes to the
/// disk, and done again. What was not as it should be, by the write.
fn recovery_cut_amid_an_operation(change: fn(&NfHybrid), wanted: &[(&str, Option<&[u8]>)]) -> Vec<String> {
    let Some((disk, ssd)) = halves(16, 8) else { return Vec::new() };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    create(&fs, "a", b"A");
    create(&fs, "b", b"B");
    let ino = create(&fs, "g", b"old");
    fs.commit().unwrap();
    let bytes = noise(1, 60_001);
    fs.write(ino, 0, &bytes, false).unwrap().get().unwrap();
    change(&fs);
    fsync(&fs, ino);
    assert_eq!(fs.status().counters.fsync_ssd, 1);
    fs.abandon();
    let lag = Lag { bytes: 32 << 10, ..Lag::default() };
    let options = Options { lag, ..manual() };
    let states = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let held = Held::new(disk.clone());
    photograph(&held, &disk, &ssd, &states);
    NfHybrid::open(held, Some(ssd), options).unwrap().abandon();
    let states = std::mem::take(&mut *states.lock());
    assert!(states.len() > 5, "{} writes", states.len());
    let mut wrong = Vec::new();
    for (number, (disk, ssd)) in states.into_iter().enumerate() {
        let (disk, ssd) = (Arc::new(Ram::from_bytes("disk", disk)), Arc::new(Ram::from_bytes("ssd", ssd)));
        let fs = match open(&disk, Some(&ssd), options) {
            Ok(fs) => fs,
            Err(error) => {
                wrong.push(format!("cut before write {number}: {error}"));
                continue;
            }
        };
        if contents(&fs, "g") != bytes {
            wrong.push(format!("cut before write {number}: g"));
        }
        for (name, wanted) in wanted {
            let there = fs.lookup(ROOT_INO, name.as_bytes()).ok().map(|_| contents(&fs, name));
            if there.as_deref() != *wanted {
                wrong.push(format!("cut before write {number}: {name} is {there:?}"));
            }
        }
        fs.abandon();
    }
    wrong
}

type States = Arc<parking_lot::Mutex<Vec<(Vec<u8>, Vec<u8>)>>>;

/// Takes the images of both halves before each write to the disk.
fn photograph(held: &Arc<Held>, disk: &Arc<Ram>, ssd: &Arc<Ram>, states: &States) {
    let (again, disk, ssd, states) = (held.clone(), disk.clone(), ssd.clone(), states.clone());
    held.before_write(
        |_, _| true,
        move || {
            let mut all = states.lock();
            if all.len() < 30 {
                all.push((disk.image(), ssd.image()));
                drop(all);
                photograph(&again, &disk, &ssd, &states);
            }
        },
    );
}

#[test]
fn recovery_is_cut_after_a_commit_amid_an_operation_that_made_a_name() {
    let change = |fs: &NfHybrid| _ = create(fs, "f", b"");
    let wrong = recovery_cut_amid_an_operation(change, &[("f", Some(b"")), ("a", Some(b"A"))]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recovery_is_cut_after_a_commit_amid_an_operation_that_removed_a_name() {
    let change = |fs: &NfHybrid| fs.unlink(ROOT_INO, b"a").unwrap();
    let wrong = recovery_cut_amid_an_operation(change, &[("a", None), ("b", Some(b"B"))]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recovery_is_cut_after_a_commit_amid_an_operation_that_exchanged_names() {
    let change = |fs: &NfHybrid| fs.rename(ROOT_INO, b"a", ROOT_INO, b"b", Rename::Exchange).unwrap();
    let wrong = recovery_cut_amid_an_operation(change, &[("a", Some(b"B")), ("b", Some(b"A"))]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recovery_is_cut_after_a_commit_amid_an_operation_that_renamed() {
    let change = |fs: &NfHybrid| fs.rename(ROOT_INO, b"a", ROOT_INO, b"c", Rename::Replace).unwrap();
    let wrong = recovery_cut_amid_an_operation(change, &[("a", None), ("c", Some(b"A"))]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The SSD fails while a commit is under way, and the power goes when that commit is done: what was fsynced meanwhile is in
/// the SSD's log alone, which can be read.
#[test]
fn what_was_fsynced_during_a_commit_outlives_the_ssds_failure_in_that_commit() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    let Some((disk, ssd)) = halves(32, 8) else { return };
    let (held, faulty) = (Held::new(disk.clone()), Arc::new(Faulty::new(ssd.clone())));
    let fs = Arc::new(NfHybrid::open(held.clone(), Some(faulty.clone()), manual()).unwrap());
    create(&fs, "a", &noise(1, 60_000));
    let (other, breaks) = (fs.clone(), faulty.clone());
    held.before_write(
        |_, _| true,
        move || {
            let ino = create(&other, "b", b"fsynced");
            fsync(&other, ino);
            assert_eq!(other.status().counters.fsync_ssd, 1);
            breaks.plan(Struck::Write, When::Nth(1), Effect::Error(libc::EIO));
        },
    );
    fs.commit().unwrap();
    assert!(fs.status().ssd_lost.is_some());
    Arc::into_inner(fs).unwrap().abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let notes = fs.notes();
    assert!(fs.lookup(ROOT_INO, b"b").is_ok(), "b is gone: {notes:?}");
    assert_eq!(contents(&fs, "b"), b"fsynced");
}

#[test]
fn a_disk_half_put_back_from_a_backup_and_used_is_not_taken_for_the_one_the_ssd_knows() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    create(&fs, "file", b"as it was backed up");
    fs.shutdown().unwrap();
    let backup = disk.image();
    // Used alone once, then with its SSD.
    let fs = open(&disk, None, manual()).unwrap();
    create(&fs, "alone", b"");
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"file").unwrap().ino;
    fs.write(ino, 0, b"with the SSD, later", false).unwrap().get().unwrap();
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.shutdown().unwrap();
    // The backup, used alone as well.
    let disk = Arc::new(Ram::from_bytes("disk", backup));
    let fs = open(&disk, None, manual()).unwrap();
    fs.write(ino, 0, b"on the backup again", false).unwrap().get().unwrap();
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
    assert_eq!(contents(&fs, "file"), b"on the backup again");
    fs.shutdown().unwrap();
}

/// A file was fsynced and removed, and something else has its inode number now.
#[test]
fn what_has_the_number_of_a_file_that_was_fsynced_and_removed_is_not_taken_for_it() {
    let long = [b'x'; 200];
    let kinds = [Kind::Symlink, Kind::File, Kind::Dir, Kind::Fifo];
    let kinds = kinds.map(|kind| (kind, &b"target"[..])).into_iter().chain([(Kind::Symlink, &long[..])]);
    for ((kind, target), len) in kinds.flat_map(|kind| [0, 1, 5000, 20_000, 100_000].map(|len| (kind, len))) {
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let kept = create(&fs, "kept", &noise(1, 20_000));
        let f = create(&fs, "f", &noise(2, len));
        fsync(&fs, kept);
        fsync(&fs, f);
        fs.unlink(ROOT_INO, b"f").unwrap();
        fs.forget(f, 1);
        let target = if kind == Kind::Symlink { target } else { b"" };
        let node = NewNode { kind, perm: 0o755, rdev: 5, target };
        let made = fs.create(&Caller::default(), ROOT_INO, b"made", &node).unwrap().ino;
        assert_eq!(made, f, "its number is used again");
        fsync(&fs, ROOT_INO);
        fs.abandon();
        for _ in 0..2 {
            let fs = open(&disk, Some(&ssd), manual()).unwrap_or_else(|why| panic!("{kind:?}, {len}: {why}"));
            assert!(contents(&fs, "kept") == noise(1, 20_000), "{kind:?}, {len}");
            assert_eq!(fs.lookup(ROOT_INO, b"made").unwrap().kind, kind, "{len}");
            assert!(fs.lookup(ROOT_INO, b"f").is_err());
            fs.shutdown().unwrap();
        }
    }
}

#[test]
fn an_error_of_recovery_that_nobody_foresaw_says_what_to_do() {
    let disk: Arc<dyn BlockDevice> = Arc::new(Ram::new("disk", 1 << 20));
    for error in [Error::BadArgument, Error::Stale, Error::Exists, Error::NotFound] {
        let said = crate::mount::stopped(error, &disk, None, crate::mount::SsdPart::Joined).to_string();
        assert!(said.contains("bimetal rescue") && said.contains("recover=disk"), "{said}");
    }
}
