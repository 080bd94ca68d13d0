//! A replay that takes more steps than the run did is cut at each flush of the disk, and run again.

use super::misses::{Gate, Hold};
use super::promises::{between, exhaust, fives, free_every_other, noise, take_all};
use super::replayed::by_blocks;
use super::*;
use bimetal_media::{Completion, Request, filter::Filter};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps what the disk held before each flush.
struct Snaps {
    inner: Arc<Ram>,
    images: Mutex<Vec<Vec<u8>>>,
    on: AtomicBool,
}

impl Filter for Snaps {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn pass(&self, at: Time, request: Request) -> std::result::Result<(Time, Request), Completion> {
        if matches!(request, Request::Flush) && self.on.load(Ordering::Relaxed) {
            let (image, mut images) = (self.inner.image(), self.images.lock().unwrap());
            if images.last() != Some(&image) {
                images.push(image);
            }
        }
        Ok((at, request))
    }
}

/// A recovery is cut between two steps; the next one begins the operation anew. How many cuts there were, and what went wrong.
fn cut_zeroing(journal: &str, exhausted: Option<u64>, what: Fallocate) -> Option<(usize, Vec<String>)> {
    let options = ["-b", "4096", "-N", "3000", "-m", "0", "-J", journal];
    let config = ssd::Config { log_bytes: 16 << 20, ..ssd::Config::default() };
    let (disk, ssd) = halves_with(24, 64, &config, &options)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let old = create(&fs, "old", &noise(7, 120 * 4096));
    let fives = fives(&fs, 200);
    let apart = between(&fs, 300, 4096);
    fs.commit().unwrap();
    take_all(&fs, 0, 4096);
    free_every_other(&fs, &apart);
    let d1 = create(&fs, "d1", b"");
    let d2 = create(&fs, "d2", b"");
    let victim = create(&fs, "victim", b"");
    fs.commit().unwrap();
    by_blocks(&fs, d1, 130, 1000);
    by_blocks(&fs, old, 120, 2000);
    by_blocks(&fs, d2, 120, 3000);
    if let Some(leave) = exhausted {
        exhaust(&fs, &fives, leave);
        for ino in &fives {
            fs.fsync(*ino, false).unwrap().get().unwrap();
        }
    }
    fs.fallocate(victim, 0, 40 * 4096, what).unwrap();
    fs.fsync(victim, false).unwrap().get().unwrap();
    let names = ["old", "d1", "d2", "victim", "five0"];
    let all: Vec<Vec<u8>> = names.iter().map(|name| contents(&fs, name)).collect();
    let images = [disk.image(), ssd.image()];
    fs.abandon();
    let disk = Arc::new(Ram::from_bytes("half", images[0].clone()));
    let ssd = Arc::new(Ram::from_bytes("half", images[1].clone()));
    let snaps = Arc::new(Snaps { inner: disk, images: Mutex::default(), on: true.into() });
    let first = NfHybrid::open(snaps.clone(), Some(ssd.clone() as Arc<dyn BlockDevice>), manual());
    snaps.on.store(false, Ordering::Relaxed);
    match &first {
        Ok(fs) => println!("first: recovered {}, cycles {}", fs.recovered(), fs.status().counters.cycles),
        Err(error) => println!("the FIRST recovery fails: {error}"),
    }
    let mut bad: Vec<String> =
        first.as_ref().err().map(|error| format!("first: {error}")).into_iter().collect();
    drop(first);
    let cuts = std::mem::take(&mut *snaps.images.lock().unwrap());
    for (number, cut) in cuts.iter().enumerate() {
        let disk = Arc::new(Ram::from_bytes("half", cut.clone()));
        let ssd = Arc::new(Ram::from_bytes("half", images[1].clone()));
        match open(&disk, Some(&ssd), manual()) {
            Err(error) => bad.push(format!("cut {number}: {error}")),
            Ok(fs) => {
                let found: Vec<Vec<u8>> = names.iter().map(|name| contents(&fs, name)).collect();
                if found != all {
                    bad.push(format!("cut {number}: other contents"));
                }
                fs.shutdown().unwrap();
                full::check_disk(&disk);
            }
        }
    }
    Some((cuts.len(), bad))
}

/// There is room beside it.
#[test]
fn a_replayed_zeroing_can_be_cut_anywhere() {
    let Some((cuts, bad)) = cut_zeroing("size=4", None, Fallocate::Zero { keep_size: false }) else { return };
    assert!(cuts > 4, "the test shows nothing: {cuts}");
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Just as many blocks are left as it takes.
#[test]
fn a_replayed_zeroing_can_be_cut_anywhere_on_a_full_disk() {
    let mut all = Vec::new();
    for (journal, leave) in [("size=7", 43), ("size=7", 46)] {
        let Some((cuts, bad)) = cut_zeroing(journal, Some(leave), Fallocate::Zero { keep_size: false })
        else {
            continue;
        };
        assert!(cuts > 4, "the test shows nothing: {cuts}");
        all.extend(bad.into_iter().map(|b| format!("{leave} left: {b}")));
    }
    assert!(all.is_empty(), "{all:#?}");
}

/// The same.
#[test]
fn a_replayed_reservation_can_be_cut_anywhere_on_a_full_disk() {
    let mut all = Vec::new();
    for (journal, leave) in [("size=7", 43), ("size=7", 46)] {
        let Some((cuts, bad)) = cut_zeroing(journal, Some(leave), Fallocate::Reserve { keep_size: false })
        else {
            continue;
        };
        assert!(cuts > 4, "the test shows nothing: {cuts}");
        all.extend(bad.into_iter().map(|b| format!("{leave} left: {b}")));
    }
    assert!(all.is_empty(), "{all:#?}");
}

/// A recovery commits in between where much is to be brought. The disk alone shows no file then with zeros where it was
/// overwritten later: the log has only the newer contents of these blocks, and they come with a later operation.
#[test]
fn no_commit_of_a_recovery_leaves_holes_where_contents_were_overwritten_since() {
    let Some((disk, ssd)) = halves(64, 32) else { return };
    let small = || Options { lag: Lag { bytes: 2 << 20, ..manual().lag }, ..manual() };
    let fs = open(&disk, Some(&ssd), small()).unwrap();
    let before = fs.status().counters.cycles;
    let fsync = |ino| fs.fsync(ino, false).unwrap().get().unwrap();
    let file = create(&fs, "file", &[1; 600 << 10]);
    fsync(file);
    fsync(create(&fs, "other", &[2; 600 << 10]));
    fs.write(file, 12_288, &[3; 16 << 10], false).unwrap().get().unwrap();
    fsync(file);
    fsync(create(&fs, "third", &[4; 300 << 10]));
    assert_eq!(fs.status().counters.cycles, before, "the disk has nothing of it yet");
    let [disk, ssd] = again([&disk, &ssd]);
    fs.abandon();

    let snaps = Arc::new(Snaps { inner: disk, images: Mutex::default(), on: true.into() });
    let fs = NfHybrid::open(snaps.clone(), Some(ssd as Arc<dyn BlockDevice>), small()).unwrap();
    snaps.on.store(false, Ordering::Relaxed);
    assert!(fs.status().counters.cycles > 1, "the test shows nothing: all was one commit");
    let mut had = 0;
    for cut in std::mem::take(&mut *snaps.images.lock().unwrap()) {
        let disk = Arc::new(Ram::from_bytes("half", cut));
        let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
        for name in ["file", "other", "third"] {
            let Ok(found) = alone.lookup(ROOT_INO, name.as_bytes()) else { continue };
            let zeros = contents(&alone, name).iter().position(|&byte| byte == 0);
            assert_eq!(zeros, None, "{name} of {} bytes", found.size);
            had += found.size;
        }
        alone.shutdown().unwrap();
    }
    assert!(had > 0, "the test shows nothing: no cut has a file");
    assert!(contents(&fs, "file")[12_288..28_672] == [3; 16 << 10]);
    fs.shutdown().unwrap();
}

/// What a commit takes to both halves has a number of its own: where a recovery commits in the middle of that, it runs the rest of that
/// number again, and not the operation before.
#[test]
fn a_recovery_that_commits_in_the_middle_of_what_a_commit_took_along_can_be_cut_there() {
    let config = ssd::Config { log_bytes: 2 << 20, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_with(32, 16, &config, &["-b", "1024", "-J", "size=2"]) else { return };
    let flushes = Arc::new(Gate::of(disk.clone(), |request| matches!(request, Request::Flush)));
    let lag = Lag { time: Duration::from_secs(3600), ..manual().lag };
    let options = Options { lag, ..manual() };
    let fs = Arc::new(NfHybrid::open(flushes.clone(), Some(ssd.clone()), options).unwrap());
    let file = create(&fs, "file", &[1; 400 << 10]);
    let other = create(&fs, "other", b"other");
    fs.commit().unwrap();
    fs.write(file, 0, &[2; 400 << 10], false).unwrap().get().unwrap();
    fs.rename(ROOT_INO, b"other", ROOT_INO, b"renamed", Rename::Replace).unwrap();
    flushes.set(Hold::Armed);
    let committer = fs.clone();
    let committing = std::thread::spawn(move || committer.commit().unwrap());
    flushes.await_held();
    fs.fsync(other, false).unwrap().get().unwrap();
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), disk.image()).unwrap();
    let [_, ssd] = again([&disk, &ssd]);
    flushes.set(Hold::Open);
    committing.join().unwrap();
    Arc::into_inner(fs).unwrap().abandon();
    // The journal is smaller by the time of the recovery: a transaction takes less than that commit took.
    let commands = [
        &["e2fsck", "-y", "-E", "journal_only"][..],
        &["tune2fs", "-O", "^has_journal"],
        &["tune2fs", "-J", "size=1"],
    ];
    for command in commands {
        let done =
            Command::new(format!("/usr/sbin/{}", command[0])).args(&command[1..]).arg(image.path()).output();
        let done = done.unwrap();
        assert!(done.status.code().is_some_and(|code| code <= 1), "{command:?}: {done:?}");
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(image.path()).unwrap()));

    let look = |fs: &NfHybrid| {
        assert_eq!(contents(fs, "renamed"), b"other");
        assert!(contents(fs, "file") == [2; 400 << 10]);
    };
    let before = ssd.image();
    let snaps = Arc::new(Snaps { inner: disk, images: Mutex::default(), on: true.into() });
    let fs = NfHybrid::open(snaps.clone(), Some(ssd as Arc<dyn BlockDevice>), manual()).unwrap();
    snaps.on.store(false, Ordering::Relaxed);
    assert!(fs.status().counters.cycles > 1, "the test shows nothing: all was one commit");
    look(&fs);
    fs.shutdown().unwrap();
    for cut in std::mem::take(&mut *snaps.images.lock().unwrap()) {
        let halves = [cut, before.clone()].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        match open(&halves[0], Some(&halves[1]), manual()) {
            Ok(fs) => {
                look(&fs);
                fs.shutdown().unwrap();
            }
            // The recovery had ended by then, and has told the SSD.
            Err(error) => assert!(error.to_string().contains("stale"), "{error}"),
        }
    }
}
