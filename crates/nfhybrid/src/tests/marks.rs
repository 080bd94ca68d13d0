//! What the log has past its last mark: nobody was promised it, and it neither counts nor hides what does.

use super::promises::{noise, write};
use super::sizes::{Act, Cuts, Images, Meanwhile, is_write};
use super::*;
use bimetal_media::Request;
use bimetal_media::held::Held;
use bimetal_vfs::Fallocate;
use std::sync::Mutex;

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

/// A file is renamed, and its size said, in a batch of the log of which the power leaves the first group; a commit had bound all
/// of it but a part that was written again.
#[test]
fn a_size_that_is_said_past_the_last_mark_makes_no_file_longer() {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_as(32, 16, &config) else { return };
    let images = Images::default();
    let acts: [Arc<Mutex<Option<Act>>>; 2] = Default::default();
    let is_it: [fn(&Request) -> bool; 2] = [|request| matches!(request, Request::Flush), is_write];
    let [on_disk, on_ssd] = [false, true].map(|is_ssd| {
        let inner = Arc::new(Cuts { halves: [disk.clone(), ssd.clone()], is_ssd, images: images.clone() });
        let at = usize::from(is_ssd);
        Arc::new(Meanwhile { inner, act: acts[at].clone(), is_it: is_it[at] }) as Arc<dyn BlockDevice>
    });
    let fs = Arc::new(NfHybrid::open(on_disk, Some(on_ssd), manual()).unwrap());
    create(&fs, "z", &noise(9, 9000));
    let f = create(&fs, "f", b"");
    let other = create(&fs, "other", b"");
    fs.commit().unwrap();
    let first = noise(2, 12_288);
    write(&fs, f, 0, &first).unwrap();
    let second = [&first[..4096], &noise(3, 4096), &first[8192..]].concat();
    let at = fs.clone();
    *acts[1].lock().unwrap() = Some(Box::new(move || {
        write(&at, f, 4096, &noise(3, 4096)).unwrap();
        write(&at, other, 0, b"synced").unwrap();
        fsync(&at, other);
    }));
    let (at, taken) = (fs.clone(), images.clone());
    let seen: Arc<Mutex<Vec<[Vec<u8>; 2]>>> = Images::default();
    let kept = seen.clone();
    *acts[0].lock().unwrap() = Some(Box::new(move || {
        at.rename(ROOT_INO, b"f", ROOT_INO, b"z", Rename::Replace).unwrap();
        for number in 0..150 {
            create(&at, &format!("one of many files, so that their names fill groups: {number}"), b"");
        }
        taken.lock().unwrap().clear();
        fsync(&at, other);
        *kept.lock().unwrap() = std::mem::take(&mut *taken.lock().unwrap());
    }));
    fs.commit().unwrap();
    let images = std::mem::take(&mut *seen.lock().unwrap());
    assert!(images.len() > 2, "{} states", images.len());
    for (state, images) in images.into_iter().enumerate() {
        for recover in [Recover::Log, Recover::Whole] {
            let [disk, ssd] = images.clone().map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
            let fs = open(&disk, Some(&ssd), Options { recover, ..manual() }).unwrap();
            assert_eq!(fs.notes(), Vec::<String>::new(), "state {state}, {recover:?}");
            let is_moved = fs.lookup(ROOT_INO, b"f").is_err();
            let found = contents(&fs, if is_moved { "z" } else { "f" });
            let zeros = found.iter().filter(|byte| **byte == 0).count();
            assert!(
                found.is_empty() && !is_moved || found == first || found == second,
                "state {state}, {recover:?}, moved {is_moved}: {} bytes, {zeros} zeros",
                found.len()
            );
            fs.abandon();
        }
    }
    Arc::into_inner(fs).unwrap().abandon();
}

/// One flush makes durable that contents are bound and, later, that the file was cut; the power leaves both, and not the contents.
#[test]
fn an_unbind_past_the_last_mark_hides_no_missing_data() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let held = Held::new(ssd.clone());
    let fs = Arc::new(NfHybrid::open(disk.clone(), Some(held.clone()), manual()).unwrap());
    let (old, new) = (noise(1, 100_000), noise(2, 100_000));
    let f = create(&fs, "f", &old);
    let other = create(&fs, "other", b"");
    fs.commit().unwrap();
    write(&fs, f, 0, &new).unwrap();
    write(&fs, other, 0, b"synced").unwrap();
    let before: Arc<Mutex<Vec<u8>>> = Arc::default();
    let thread = Arc::new(Mutex::new(None));
    let (at, keep, half, joins) = (fs.clone(), before.clone(), ssd.clone(), thread.clone());
    held.before_write(
        |_, _| true,
        move || {
            *keep.lock().unwrap() = half.image();
            let second = at.clone();
            *joins.lock().unwrap() = Some(std::thread::spawn(move || fsync(&second, f)));
            while at.shared.line.waiting() == 0 {
                std::thread::yield_now();
            }
            at.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        },
    );
    fsync(&fs, other);
    let second = thread.lock().unwrap().take().unwrap();
    second.join().unwrap();
    let log = fs.shared.core.lock().ssd.as_ref().unwrap().log_range();
    let log = log.start as usize..log.end as usize;
    let after = ssd.image();
    let mut torn = before.lock().unwrap().clone();
    torn[log.clone()].copy_from_slice(&after[log]);
    assert!(torn != after);
    for (what, image) in [("whole", after), ("torn", torn)] {
        let [disk, ssd] = [disk.image(), image].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let after = open(&disk, Some(&ssd), manual()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = contents(&after, "f");
        assert!(found == if what == "whole" { &new[..] } else { &old }, "{what}: {} bytes", found.len());
        after.abandon();
    }
    Arc::into_inner(fs).unwrap().abandon();
}

/// The inode table of a small SSD is full of what the disk lacks, and files are overwritten in places: what was promised of the
/// rest of them stays.
#[test]
fn a_full_inode_table_costs_nothing_that_was_promised() {
    let config = ssd::Config { bytes_per_slot: 1 << 20, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_as(32, 16, &config) else { return };
    // Only what cannot do without it commits.
    let lag = Lag { time: Duration::from_secs(3600), bytes: 1 << 30 };
    let fs = open(&disk, Some(&ssd), Options { lag, ..Options::default() }).unwrap();
    let mut whole = noise(1, 300 * 4096);
    let f = create(&fs, "f", &whole);
    fsync(&fs, f);
    let punched = noise(2, 100 * 4096);
    let g = create(&fs, "g", &punched);
    fsync(&fs, g);
    let has_slots = |fs: &NfHybrid| fs.shared.core.lock().ssd.as_ref().unwrap().has_slots(1);
    let mut others = 0;
    while has_slots(&fs) {
        let ino = create(&fs, &format!("other {others}"), &noise(others, 12_000));
        fsync(&fs, ino);
        others += 1;
    }
    for round in 0..4 {
        for frame in (round..whole.len() / 4096).step_by(7) {
            let bytes = noise(1000 * round as u64 + frame as u64, 4096);
            write(&fs, f, frame as u64 * 4096, &bytes).unwrap();
            whole[frame * 4096..][..4096].copy_from_slice(&bytes);
        }
        fsync(&fs, f);
        let [disk, ssd] = [disk.image(), ssd.image()].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let after = open(&disk, Some(&ssd), manual()).unwrap();
        let found = contents(&after, "f");
        let frames = found.chunks(4096).zip(whole.chunks(4096));
        let wrong = frames.filter(|(found, frame)| found != frame).count();
        println!("round {round}: {others} others, {}, {wrong} wrong", has_slots(&fs));
        assert!(wrong == 0 && found.len() == whole.len(), "round {round}: {wrong} frames");
        for other in 0..others {
            assert!(
                contents(&after, &format!("other {other}")) == noise(other, 12_000),
                "round {round}: {other}"
            );
        }
        after.abandon();
    }
    let mut hole = punched;
    for frame in (3..100).step_by(9) {
        fs.fallocate(g, frame * 4096, 4096, Fallocate::Punch).unwrap();
        hole[frame as usize * 4096..][..4096].fill(0);
        fsync(&fs, g);
        let [disk, ssd] = [disk.image(), ssd.image()].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let after = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&after, "g") == hole, "punched up to frame {frame}");
        after.abandon();
    }
    assert!(contents(&fs, "g") == hole && contents(&fs, "f") == whole);
    fs.abandon();
}
