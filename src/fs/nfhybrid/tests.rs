//! nfhybrid on devices in memory, without a mount.

use super::*;
use crate::fs::rules;
use crate::media::ram::Ram;
use std::process::Command;

/// A disk half and an SSD half that belong together, in memory; `None` where mke2fs is missing.
fn halves(disk_mib: u64, ssd_mib: u64) -> Option<(Arc<Ram>, Arc<Ram>)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(disk_mib << 20).unwrap();
    let made = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-t", "ext4", "-F", "-b", "4096"])
        .arg(file.path())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no mke2fs");
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", ssd_mib << 20));
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    Some((disk, ssd))
}

fn open(disk: &Arc<Ram>, ssd: Option<&Arc<Ram>>, options: Options) -> Result<NfHybrid> {
    let ssd = ssd.map(|ssd| ssd.clone() as Arc<dyn BlockDevice>);
    NfHybrid::open(disk.clone(), ssd, options)
}

#[test]
fn it_follows_the_rules_all_file_systems_follow() {
    if halves(64, 16).is_none() {
        return;
    }
    rules::check(|| {
        let (disk, ssd) = halves(64, 16).unwrap();
        let fs = open(&disk, Some(&ssd), Options::default()).unwrap();
        fs.rmdir(ROOT_INO, b"lost+found").unwrap();
        Box::new(fs)
    });
}

fn create(fs: &NfHybrid, name: &str, bytes: &[u8]) -> Ino {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), ROOT_INO, name.as_bytes(), &node).unwrap().ino;
    fs.write(ino, 0, bytes, false).unwrap().get().unwrap();
    ino
}

fn contents(fs: &NfHybrid, name: &str) -> Vec<u8> {
    let attr = fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
    fs.read(attr.ino, 0, attr.size as usize).unwrap().get().unwrap().concat()
}

fn manual() -> Options {
    Options { manual: true, ..Options::default() }
}

#[test]
fn an_ssd_of_another_disk_is_refused_and_nothing_changes() {
    let (Some((disk, _)), Some((_, other))) = (halves(16, 8), halves(16, 8)) else { return };
    let (disk_before, other_before) = (disk.image(), other.image());
    let error = open(&disk, Some(&other), manual()).err().unwrap();
    assert!(matches!(error, Error::Mismatch(_)), "{error}");
    assert!(error.to_string().contains("belongs to the disk"), "{error}");
    assert!(other.image() == other_before, "the SSD was written to");
    drop(disk_before);
}

#[test]
fn an_ssd_that_missed_something_is_recognised_and_its_log_never_applied() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "old", b"on the SSD only");
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.abandon();
    // Used from the disk alone meanwhile.
    let alone = open(&disk, None, manual()).unwrap();
    assert!(alone.notes().iter().any(|note| note.contains("without its SSD")), "{:?}", alone.notes());
    create(&alone, "new", b"disk");
    alone.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
    assert_eq!(contents(&fs, "new"), b"disk");
    assert!(matches!(fs.lookup(ROOT_INO, b"old"), Err(Error::NotFound)));
    fs.shutdown().unwrap();
}

#[test]
fn what_was_fsynced_comes_from_the_ssds_log_after_a_crash() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let small = create(&fs, "small", b"in the log itself");
    fs.fsync(small, false).unwrap().get().unwrap();
    let large = create(&fs, "large", &vec![7; 300_000]);
    fs.fsync(large, false).unwrap().get().unwrap();
    let before = disk.image();
    fs.abandon();
    assert!(disk.image() == before, "the disk was written to");
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.recovered() > 0);
    assert_eq!(contents(&fs, "small"), b"in the log itself");
    assert!(contents(&fs, "large") == vec![7; 300_000]);
    fs.shutdown().unwrap();
}

#[test]
fn a_small_fsync_is_one_write_to_the_ssd_and_none_to_the_disk() {
    use crate::media::counted::Counted;
    let Some((disk, ssd)) = halves(64, 32) else { return };
    let (disk, ssd) = (Arc::new(Counted::new(disk)), Arc::new(Counted::new(ssd)));
    let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), manual()).unwrap();
    let ino = create(&fs, "f", b"");
    fs.fsync(ino, false).unwrap().get().unwrap();
    let (disk_before, ssd_before) = (disk.counts(), ssd.counts());
    for record in 0..4096_u64 {
        fs.write(ino, record * 4096, &[record as u8; 4096], false).unwrap().get().unwrap();
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    let (disk_after, ssd_after) = (disk.counts(), ssd.counts());
    let writes = ssd_after.writes - ssd_before.writes;
    let flushes =
        ssd_after.flushes - ssd_before.flushes + ssd_after.durable_writes - ssd_before.durable_writes;
    let bytes = ssd_after.write_bytes - ssd_before.write_bytes;
    let disk_writes = disk_after.writes - disk_before.writes;
    println!(
        "4096 records: {writes} SSD writes, {flushes} flushes, {bytes} bytes; {disk_writes} disk writes"
    );
    let relogs = fs.status().counters.relogs;
    assert!(writes <= 4200, "{writes} writes");
    // One an fsync; starting the log anew takes a few.
    assert!(flushes <= 4096 + 4 * relogs, "{flushes} flushes, {relogs} relogs");
    // 8 KiB of log for each record, 4 KiB in its section.
    assert!(bytes <= 4096 * (12 << 10) + relogs * (64 << 10), "{bytes} bytes, {relogs} relogs");
    assert!(disk_writes < 200, "{disk_writes} disk writes");
    fs.shutdown().unwrap();
}

#[test]
fn a_lost_ssd_costs_nothing_and_never_comes_back_as_fresh() {
    use crate::media::faulty::Faulty;
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let faulty = Arc::new(Faulty::new(ssd.clone()));
    let fs = NfHybrid::open(disk.clone(), Some(faulty.clone()), manual()).unwrap();
    let ino = create(&fs, "before", b"one");
    fs.fsync(ino, false).unwrap().get().unwrap();
    faulty.vanish();
    let ino = create(&fs, "after", b"two");
    fs.fsync(ino, false).unwrap().get().unwrap();
    assert!(fs.status().ssd_lost.is_some());
    assert_eq!((contents(&fs, "before"), contents(&fs, "after")), (b"one".to_vec(), b"two".to_vec()));
    fs.abandon();
    faulty.come_back();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
    assert_eq!((contents(&fs, "before"), contents(&fs, "after")), (b"one".to_vec(), b"two".to_vec()));
    fs.shutdown().unwrap();
}

#[test]
fn a_read_from_the_disk_is_copied_to_the_ssd_and_read_from_there_next() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let alone = open(&disk, None, manual()).unwrap();
    let bytes: Vec<u8> = (0..500_000_u32).map(|at| (at / 13) as u8).collect();
    create(&alone, "f", &bytes);
    alone.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == bytes);
    fs.promote();
    assert_eq!(fs.status().counters.promoted_bytes, 123 * 4096);
    let attr = fs.lookup(ROOT_INO, b"f").unwrap();
    let residency = String::from_utf8(fs.control_get(attr.ino, "bimetal.residency").unwrap()).unwrap();
    assert!(residency.contains("\"ssd_active\":true") && residency.contains("\"11\""), "{residency}");
    assert!(contents(&fs, "f") == bytes);
    fs.shutdown().unwrap();
}
