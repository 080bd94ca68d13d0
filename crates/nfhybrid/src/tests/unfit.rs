//! A log and a disk half that e2fsck repaired in between: what fits is brought to it, and what does not is named.

use super::full::check_disk;
use super::promises::noise;
use super::sizes::{Cuts, Images};
use super::*;
use std::process::Command;

const FILES: usize = 30;

/// What one file holds.
fn bytes(number: usize) -> Vec<u8> {
    noise(number as u64, 3000 + number * 700)
}

/// The same disk half after programs that change it: its file is the last argument of each.
fn changed(disk: &Ram, zeroed: &[Ino], programs: &[&[&str]]) -> Arc<Ram> {
    let mut image = disk.image();
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    // The descriptors begin in block 1; the table of inodes is named at 8.
    let table = word(4096 + 8) * 4096;
    for ino in zeroed {
        image[table + (ino.0 as usize - 1) * 256..][..256].fill(0);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image).unwrap();
    for program in programs {
        let done = Command::new(program[0]).args(&program[1..]).arg(file.path()).output().unwrap();
        assert!(done.status.code().is_some_and(|code| code <= 1), "{program:?}: {done:?}");
    }
    Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()))
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

fn name(number: usize) -> String {
    format!("n{number}")
}

/// A volume after a crash, with files that only the log has; those of a number that three divides are in a directory on the disk.
fn crashed() -> Option<(Arc<Ram>, Arc<Ram>, Ino)> {
    let (disk, ssd) = halves(32, 16)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
    fs.commit().unwrap();
    for number in 0..FILES {
        let ino = create(&fs, &name(number), &bytes(number));
        if number % 3 == 0 {
            fs.rename(ROOT_INO, name(number).as_bytes(), dir, b"moved", Rename::Replace).unwrap();
            fs.rename(dir, b"moved", dir, name(number).as_bytes(), Rename::Replace).unwrap();
        }
        fsync(&fs, ino);
    }
    fs.abandon();
    Some((disk, ssd, dir))
}

#[test]
fn what_e2fsck_makes_for_what_it_finds_makes_way_for_a_file_of_the_log() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    for number in 0..FILES {
        let ino = create(&fs, &name(number), &bytes(number));
        fsync(&fs, ino);
    }
    let first = fs.lookup(ROOT_INO, b"n0").unwrap().ino;
    fs.abandon();
    let disk = changed(&disk, &[ROOT_INO], &[&["/usr/sbin/e2fsck", "-fy"]]);
    let alone = open(
        &Arc::new(Ram::from_bytes("disk", disk.image())),
        None,
        Options { without_ssd: true, ..manual() },
    );
    let found = alone.unwrap().lookup(ROOT_INO, b"lost+found").unwrap().ino;
    assert_eq!(found, first, "the case that this is a test of");
    for round in ["", ", again"] {
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(!fs.notes().iter().any(|note| note.contains("lost")), "{:?}", fs.notes());
        for number in 0..FILES {
            assert!(contents(&fs, &name(number)) == bytes(number), "{number}{round}");
        }
        let found = fs.lookup(ROOT_INO, b"lost+found").unwrap().ino;
        assert!(fs.lookup(found, b"#11").is_ok(), "what had no name{round}");
        fs.shutdown().unwrap();
    }
    check_disk(&disk);
}

#[test]
fn what_does_not_fit_a_repaired_disk_half_is_left_out_and_named_if_the_user_wants_the_rest() {
    let Some((disk, ssd, dir)) = crashed() else { return };
    for (case, zeroed, programs) in [
        ("a directory is gone", vec![dir], vec![&["/usr/sbin/e2fsck", "-fy"][..]]),
        (
            "a number is taken",
            vec![],
            vec![&["/usr/sbin/debugfs", "-w", "-R", "write /etc/hostname foreign"][..]],
        ),
    ] {
        // e2fsck replays the journal, debugfs does not.
        let repair: &[&str] = &["/usr/sbin/e2fsck", "-fy"];
        let programs = [vec![repair], programs].concat();
        let disk = changed(&changed(&disk, &[], &[repair]), &zeroed, &programs);
        let before = [disk.image(), ssd.image()];
        let halves = || before.clone().map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let [disk, ssd] = halves();
        let error = open(&disk, Some(&ssd), manual()).err().unwrap().to_string();
        for part in ["does not fit the disk half", "recover=whole", "bimetal rescue"] {
            assert!(error.contains(part), "{case}: '{part}' in: {error}");
        }
        assert!([disk.image(), ssd.image()] == before, "{case}: it was changed");
        // The power goes in it, too.
        let [disk, ssd] = halves();
        let images = Images::default();
        let cuts = Cuts { halves: [disk.clone(), ssd.clone()], is_ssd: false, images: images.clone() };
        let lag = Lag { bytes: 20_000, ..manual().lag };
        let whole = Options { recover: Recover::Whole, lag, ..manual() };
        NfHybrid::open(Arc::new(cuts), Some(ssd.clone()), whole).unwrap().abandon();
        let mut states = std::mem::take(&mut *images.lock().unwrap());
        assert!(states.len() > 4, "{case}: {} states", states.len());
        states.insert(0, before.clone());
        let every = states.len().div_ceil(6);
        for (cut, images) in states.into_iter().enumerate().step_by(every) {
            let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
            let case = format!("{case}, cut {cut}");
            let fs = open(&disk, Some(&ssd), whole).unwrap_or_else(|error| panic!("{case}: {error}"));
            let notes = fs.notes().join("\n");
            for number in 0..FILES {
                let is_moved = number % 3 == 0;
                let lost = if case.starts_with("a directory is gone") { is_moved } else { number == 0 };
                let parent =
                    if is_moved { fs.lookup(ROOT_INO, b"dir").map(|attr| attr.ino) } else { Ok(ROOT_INO) };
                let found = parent.and_then(|parent| fs.lookup(parent, name(number).as_bytes()));
                if lost {
                    assert!(found.is_err(), "{case}: {number}");
                    if case.starts_with("a directory") {
                        // It could not be moved, and is where it was made.
                        assert!(contents(&fs, &name(number)) == bytes(number), "{case}: {number}");
                        assert!(!notes.contains("is lost"), "{case}: {notes}");
                    } else {
                        let is_told = fs.recovered() == 0 || notes.contains(&name(number));
                        assert!(is_told, "{case}: {number} in {notes}");
                    }
                    continue;
                }
                let attr = found.unwrap_or_else(|error| panic!("{case}: {number}: {error}; {notes}"));
                let all = fs.read(attr.ino, 0, 1 << 20).unwrap().get().unwrap().concat();
                assert!(all == bytes(number), "{case}: {number}");
            }
            if case.starts_with("a number") {
                let foreign = std::fs::read("/etc/hostname").unwrap();
                assert_eq!(contents(&fs, "foreign"), foreign);
            }
            fs.shutdown().unwrap();
            check_disk(&disk);
            open(&disk, Some(&ssd), manual()).unwrap().shutdown().unwrap();
        }
    }
}
