//! Logs of more than one transaction of the disk's journal, as a disk that is slow to commit leaves them: a recovery commits in
//! between, wherever the transaction has no room for the next operation.

use super::misses::{Gate, Hold};
use super::*;
use bimetal_media::Request;

const DATA: usize = 100 << 10;

/// Both halves as a power cut leaves them while the commit of a transaction that is nearly full stands still, and the next one is nearly
/// full, too. A file was made before all that; `middle` comes when the second one is filled up to `share` of 16, `end`
/// after it, and what is done is fsynced.
fn cut_while_the_disk_is_slow(
    share: u64,
    middle: impl FnOnce(&NfHybrid),
    end: impl FnOnce(&NfHybrid, Ino),
) -> Option<([Arc<Ram>; 2], usize)> {
    let config = ssd::Config { log_bytes: 2 << 20, ..ssd::Config::default() };
    let (disk, ssd) = halves_with(32, 16, &config, &["-b", "1024", "-J", "size=1"])?;
    let flushes = Arc::new(Gate::of(disk.clone(), |request| matches!(request, Request::Flush)));
    let lag = Lag { time: Duration::from_secs(3600), ..manual().lag };
    let fs =
        Arc::new(NfHybrid::open(flushes.clone(), Some(ssd.clone()), Options { lag, ..manual() }).unwrap());
    let file = create(&fs, "file", &[1; DATA]);
    let mut dirs = 0;
    let mut fill = |share: u64, kept: u64| {
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
        let has_room = || {
            let (need, limit) = fs.journal_account();
            need + kept < limit * share / 16
        };
        while has_room() {
            fs.create(&Caller::default(), ROOT_INO, format!("dir{dirs}").as_bytes(), &node).unwrap();
            dirs += 1;
        }
    };
    let removed = create(&fs, "removed", &[2; DATA]);
    for ino in [file, removed] {
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    fill(16, 50);
    flushes.set(Hold::Armed);
    let committer = fs.clone();
    let committing = std::thread::spawn(move || committer.commit().unwrap());
    flushes.await_held();
    fill(share, 120);
    middle(&fs);
    fill(16, 120);
    end(&fs, file);
    fs.fsync(ROOT_INO, false).unwrap().get().unwrap();
    let halves = again([&disk, &ssd]);
    flushes.set(Hold::Open);
    committing.join().unwrap();
    Arc::into_inner(fs).unwrap().abandon();
    Some((halves, dirs))
}

fn dirs_of(fs: &NfHybrid) -> usize {
    let mut count = 0;
    fs.readdir(ROOT_INO, 0, &mut |entry| {
        count += usize::from(entry.name.starts_with(b"dir"));
        true
    })
    .unwrap();
    count
}

/// Recovers, looks, and looks again at the disk alone.
fn recovered([disk, ssd]: [Arc<Ram>; 2], look: impl Fn(&NfHybrid)) {
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.status().counters.cycles > 1, "the test shows nothing: all was one commit");
    look(&fs);
    fs.shutdown().unwrap();
    let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
    look(&alone);
    alone.shutdown().unwrap();
}

#[test]
fn a_file_that_was_overwritten_after_them_is_brought_with_operations_of_more_than_a_transaction() {
    let overwrite = |fs: &NfHybrid, file| {
        fs.write(file, 12_288, &[3; 4096], false).unwrap().get().unwrap();
        fs.fsync(file, false).unwrap().get().unwrap();
    };
    let Some((halves, dirs)) = cut_while_the_disk_is_slow(16, |_| (), overwrite) else { return };
    recovered(halves, |fs| {
        assert_eq!(dirs_of(fs), dirs);
        let bytes = contents(fs, "file");
        assert!(
            bytes.len() == DATA
                && bytes[12_288..16_384] == [3; 4096]
                && bytes[16_384..] == [1; DATA - 16_384]
        );
    });
}

#[test]
fn so_is_one_that_was_removed() {
    let unlink = |fs: &NfHybrid, _| fs.unlink(ROOT_INO, b"file").unwrap();
    let Some((halves, dirs)) = cut_while_the_disk_is_slow(16, |_| (), unlink) else { return };
    recovered(halves, |fs| {
        assert_eq!(dirs_of(fs), dirs);
        assert!(matches!(fs.lookup(ROOT_INO, b"file"), Err(Error::NotFound)));
    });
}

/// What frees an inode takes room, too, and its number is the next file's.
#[test]
fn a_number_that_was_used_again_is_free_by_then() {
    let mut reused = 0;
    for share in [6, 9, 12, 14, 16] {
        let old = std::cell::Cell::new(Ino(0));
        let new = std::cell::Cell::new(Ino(0));
        let middle = |fs: &NfHybrid| {
            old.set(fs.lookup(ROOT_INO, b"removed").unwrap().ino);
            fs.forget(old.get(), u64::MAX);
            fs.unlink(ROOT_INO, b"removed").unwrap();
            new.set(create(fs, "new", &[5; 9000]));
            fs.fsync(new.get(), false).unwrap().get().unwrap();
        };
        let unlink = |fs: &NfHybrid, _| fs.unlink(ROOT_INO, b"file").unwrap();
        let Some((halves, dirs)) = cut_while_the_disk_is_slow(share, middle, unlink) else { return };
        reused += usize::from(old == new);
        recovered(halves, |fs| {
            assert_eq!(dirs_of(fs), dirs);
            assert!(contents(fs, "new") == [5; 9000], "share {share}");
            assert!(matches!(fs.lookup(ROOT_INO, b"removed"), Err(Error::NotFound)));
        });
    }
    assert!(reused > 0, "the test shows nothing: no number was used again");
}
