//! What nobody has to wait for: data that is read while the lock is held, or read again for what others do.

use super::misses::{Gate, Hold, soon};
use super::*;
use bimetal_base::runtime::{Runtime, Sim};
use bimetal_media::Request;
use bimetal_media::counted::Counted;
use bimetal_media::faulty::{Effect, Faulty, When};
use std::time::Duration;

/// A volume with a cold file, only on the disk, and a warm one; reads of the disk can be held up, and are counted.
struct Cold {
    fs: Arc<NfHybrid>,
    gate: Arc<Gate>,
    disk: Arc<Counted>,
    cold: Ino,
    warm: Ino,
}

fn cold_file() -> Option<Cold> {
    let (disk, ssd) = halves(32, 16)?;
    let fs = open(&disk, None, manual()).unwrap();
    create(&fs, "cold", &[7; 128 << 10]);
    fs.shutdown().unwrap();
    let disk = Arc::new(Counted::new(disk));
    let gate = Arc::new(Gate::new(disk.clone()));
    let fs = Arc::new(NfHybrid::open(gate.clone(), Some(ssd), manual()).unwrap());
    let warm = create(&fs, "warm", b"in memory");
    let cold = fs.lookup(ROOT_INO, b"cold").unwrap().ino;
    // Its metadata are in memory, its data are not.
    fs.seek(cold, 0, Seek::Hole).unwrap();
    Some(Cold { fs, gate, disk, cold, warm })
}

#[test]
fn a_read_of_the_disk_is_made_once_however_often_the_log_is_written_meanwhile() {
    let Some(Cold { fs, gate, disk, cold, warm }) = cold_file() else { return };
    let before = disk.counts().reads;
    gate.set(Hold::Armed);
    let reader = fs.clone();
    let reading = std::thread::spawn(move || reader.read(cold, 0, 64 << 10).unwrap().get().unwrap().concat());
    gate.await_held();
    let other = fs.clone();
    soon("an fsync", move || {
        for number in 0..20_u8 {
            other.write(warm, 0, &[number; 100], false).unwrap().get().unwrap();
            other.fsync(warm, false).unwrap().get().unwrap();
        }
    });
    gate.set(Hold::Open);
    assert!(reading.join().unwrap() == [7; 64 << 10]);
    assert_eq!(disk.counts().reads - before, 1);
    assert_eq!(fs.status().counters.reads_locked, 0);
    fs.shutdown().unwrap();
}

#[test]
fn a_read_of_what_a_commit_moved_meanwhile_is_made_again() {
    let Some(Cold { fs, gate, cold, .. }) = cold_file() else { return };
    gate.set(Hold::Armed);
    let reader = fs.clone();
    let reading = std::thread::spawn(move || reader.read(cold, 0, 64 << 10).unwrap().get().unwrap().concat());
    gate.await_held();
    // All of a short file gets new places; what it had is another file's then.
    fs.write(cold, 0, &[8; 128 << 10], false).unwrap().get().unwrap();
    fs.commit().unwrap();
    create(&fs, "other", &vec![9; 8 << 20]);
    fs.commit().unwrap();
    gate.set(Hold::Open);
    let found = reading.join().unwrap();
    assert!(found == [8; 64 << 10] || found == [7; 64 << 10], "{}", found[0]);
    assert_eq!(fs.status().counters.reads_locked, 0);
    fs.shutdown().unwrap();
}

/// What a read found wrong is dropped only if it is still what is bound, and the disk has it, too: the copy that an fsync has
/// put in its place meanwhile is the only one.
#[test]
fn a_copy_that_an_fsync_has_just_made_is_not_dropped_for_what_a_read_found_before() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let faulty = Arc::new(Faulty::new(ssd.clone()));
    let reads = Arc::new(Gate::new(faulty.clone()));
    let flushes = Arc::new(Gate::of(reads.clone(), |request| matches!(request, Request::Flush)));
    let fs = Arc::new(NfHybrid::open(disk.clone(), Some(flushes.clone()), manual()).unwrap());
    let file = create(&fs, "file", &[7; 64 << 10]);
    let other = create(&fs, "other", b"other");
    fs.fsync(file, false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let before = fs.status().counters.bad_sums;

    reads.set(Hold::Armed);
    let reader = fs.clone();
    let reading = std::thread::spawn(move || reader.read(file, 0, 64 << 10).unwrap().get());
    reads.await_held();
    flushes.set(Hold::Armed);
    let writer = fs.clone();
    let writing = std::thread::spawn(move || {
        writer.write(file, 0, &[8; 64 << 10], false).unwrap().get().unwrap();
        writer.fsync(file, false).unwrap().get().unwrap();
    });
    flushes.await_held();
    faulty.plan(bimetal_media::faulty::Kind::Read, When::Always, Effect::Error(5));
    reads.set(Hold::Open);
    assert!(reading.join().unwrap().unwrap().concat() == [8; 64 << 10]);
    assert_eq!(fs.status().counters.bad_sums, before + 1, "the read has met the error");
    flushes.set(Hold::Open);
    writing.join().unwrap();
    faulty.forget();
    fs.write(other, 0, b"OTHER", false).unwrap().get().unwrap();
    fs.fsync(other, false).unwrap().get().unwrap();

    let [disk, ssd] = again([&disk, &ssd]);
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "file") == [8; 64 << 10], "what was fsynced is gone");
    assert_eq!(contents(&fs, "other"), b"OTHER");
    fs.shutdown().unwrap();
}

#[test]
fn a_change_of_a_part_of_a_cold_frame_reads_it_without_the_lock() {
    type Change = fn(&NfHybrid, Ino);
    type Expect = fn(&mut Vec<u8>);
    let cases: [(&str, Change, Expect); 3] = [
        (
            "a write",
            |fs, ino| assert_eq!(fs.write(ino, 5000, b"part", false).unwrap().get().unwrap(), 4),
            |bytes| bytes[5000..5004].copy_from_slice(b"part"),
        ),
        (
            "a truncation",
            |fs, ino| {
                fs.setattr(ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
            },
            |bytes| bytes.truncate(5000),
        ),
        (
            "a hole",
            |fs, ino| fs.fallocate(ino, 5000, 100, Fallocate::Punch).unwrap(),
            |bytes| bytes[5000..5100].fill(0),
        ),
    ];
    for (what, change, expect) in cases {
        let Some(Cold { fs, gate, cold, warm, .. }) = cold_file() else { return };
        gate.set(Hold::Armed);
        let changer = fs.clone();
        let changing = std::thread::spawn(move || change(&changer, cold));
        gate.await_held();
        let other = fs.clone();
        soon(what, move || {
            assert_eq!(other.getattr(warm).unwrap().size, 9);
            other.write(warm, 0, b"IN", false).unwrap().get().unwrap();
            assert_eq!(other.read(warm, 0, 9).unwrap().get().unwrap().concat(), b"IN memory");
        });
        gate.set(Hold::Open);
        changing.join().unwrap();
        let mut expected = vec![7; 128 << 10];
        expect(&mut expected);
        assert!(contents(&fs, "cold") == expected, "{what}");
        assert_eq!(fs.status().counters.reads_locked, 0, "{what}");
        fs.shutdown().unwrap();
    }
}

#[test]
fn a_status_waits_ten_milliseconds_at_most_for_whoever_has_the_lock() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let sim = Sim::new(9);
    let inner = sim.clone();
    let (took, age) = sim.run(move || {
        let clock = Arc::new(inner.clone());
        let fs = Arc::new(NfHybrid::open_on(clock, disk, Some(ssd), manual()).unwrap());
        let (other, sim) = (fs.clone(), inner.clone());
        let holder = inner.spawn(
            "holder",
            Box::new(move || {
                let _core = other.shared.core.lock();
                sim.sleep(Duration::from_secs(2));
            }),
        );
        inner.sleep(Duration::from_secs(1));
        let began = inner.now();
        let age = fs.status().seconds_old;
        let took = inner.now().since(began);
        holder.unwrap().join().unwrap();
        fs.shutdown().unwrap();
        (took, age)
    });
    assert!(took <= Duration::from_millis(10), "{took:?}");
    assert!(age > 0.5, "{age} s old: nobody had the lock");
}

/// What an fsync puts on the SSD while a commit takes the same data to the disk is the SSD's alone until a commit has its number:
/// one follows, though nothing changes any more.
#[test]
fn a_copy_made_while_a_commit_is_under_way_becomes_one_of_both_halves_by_itself() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let faulty = Arc::new(Faulty::new(ssd));
    let flushes = Arc::new(Gate::of(disk, |request| matches!(request, Request::Flush)));
    let fs = Arc::new(NfHybrid::open(flushes.clone(), Some(faulty.clone()), manual()).unwrap());
    let file = create(&fs, "file", &[7; 96 << 10]);
    flushes.set(Hold::Armed);
    let committer = fs.clone();
    let committing = std::thread::spawn(move || committer.commit().unwrap());
    flushes.await_held();
    fs.fsync(file, false).unwrap().get().unwrap();
    flushes.set(Hold::Open);
    committing.join().unwrap();

    let ahead = |fs: &NfHybrid| {
        let core = fs.shared.core.lock();
        (core.ops.last() > core.ops.committed(), core.at_risk_since().is_some())
    };
    assert_eq!(ahead(&fs), (true, true));
    fs.commit().unwrap();
    assert_eq!(ahead(&fs), (false, false));
    faulty.plan(bimetal_media::faulty::Kind::Read, When::Always, Effect::Error(5));
    assert!(fs.read(file, 0, 96 << 10).unwrap().get().unwrap().concat() == [7; 96 << 10]);
    faulty.forget();
    fs.shutdown().unwrap();
}
