//! What recovery brings back: operations larger than a transaction, and what changed while a commit was under way.

use super::*;
use crate::fs::Fallocate;
use crate::media::held::Held;

/// Contents that no file system has by chance.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = crate::random::Random::new(seed, "contents");
    (0..len).map(|_| random.next() as u8).collect()
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

#[test]
fn a_commit_amid_the_records_of_one_operation_loses_none_of_its_data() {
    let Some((disk, ssd)) = halves(32, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let bytes = noise(1, 60_001);
    let ino = create(&fs, "f", &bytes);
    fsync(&fs, ino);
    assert_eq!(fs.status().counters.fsync_ssd, 1);
    fs.abandon();
    // Recovery commits after each quarter of the lag: several times before the log says how long the file is.
    let lag = Lag { bytes: 32 << 10, ..Lag::default() };
    let fs = open(&disk, Some(&ssd), Options { lag, ..manual() }).unwrap();
    assert!(fs.status().counters.cycles > 3, "{} commits", fs.status().counters.cycles);
    assert!(contents(&fs, "f") == bytes);
    fs.shutdown().unwrap();
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
    let new = noise(2, BYTES);
    for at in (0..BYTES).step_by(64 << 10) {
        fs.write(ino, at as u64, &new[at..at + (64 << 10)], false).unwrap().get().unwrap();
    }
    fsync(&fs, ino);
    assert_eq!(fs.status().counters.fsync_ssd, 1);
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
