//! A log and a disk half that e2fsck repaired in between: what fits is brought to it, and what does not is named.

use super::full::check_disk;
use super::promises::{noise, write};
use super::sizes::{Cuts, Images};
use super::*;
use std::process::Command;
use std::time::Duration;

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

/// The disk half as a program leaves it that knows nothing of its log; e2fsck replays the journal first.
fn behind_its_back(disk: &Ram, program: &str) -> Arc<Ram> {
    let repair: &[&str] = &["/usr/sbin/e2fsck", "-fy"];
    // Others' writes are known by the superblock's times, which count seconds.
    std::thread::sleep(Duration::from_millis(1100));
    changed(&changed(disk, &[], &[repair]), &[], &[&["/usr/sbin/debugfs", "-w", "-R", program], repair])
}

/// What another file holds.
fn others() -> Vec<u8> {
    noise(4, 60_000)
}

/// The disk half with another file, `new`, made where `old` was removed.
fn with_another(disk: &Ram, old: &str, new: &str) -> Arc<Ram> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), others()).unwrap();
    let removed = behind_its_back(disk, &format!("rm {old}"));
    behind_its_back(&removed, &format!("write {} {new}", file.path().display()))
}

/// A mount of both is refused with these words, and changes nothing; `whole` mounts.
fn refused_then_whole(disk: &Arc<Ram>, ssd: &Arc<Ram>, words: &[&str]) -> NfHybrid {
    let before = [disk.image(), ssd.image()];
    let error = open(disk, Some(ssd), manual()).err().unwrap().to_string();
    for part in words.iter().chain(&["recover=whole", "bimetal rescue"]) {
        assert!(error.contains(part), "'{part}' in: {error}");
    }
    assert!([disk.image(), ssd.image()] == before, "it was changed");
    open(disk, Some(ssd), Options { recover: Recover::Whole, ..manual() }).unwrap()
}

#[test]
fn another_file_under_a_number_of_the_log_gets_nothing_of_it() {
    for in_place in [false, true] {
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let ino = create(&fs, "old", &noise(1, 20_000));
        fs.commit().unwrap();
        let other = create(&fs, "other", &noise(2, 9000));
        fsync(&fs, other);
        let (offset, len) = if in_place { (4096, 4096) } else { (20_000, 30_000) };
        assert_eq!(write(&fs, ino, offset, &noise(3, len)).unwrap(), len);
        fsync(&fs, ino);
        fs.abandon();
        let disk = with_another(&disk, "old", "foreign");
        let fs = refused_then_whole(&disk, &ssd, &["has another file under that number"]);
        assert_eq!(fs.lookup(ROOT_INO, b"foreign").unwrap().ino, ino, "the case that this is a test of");
        for round in ["", ", again"] {
            let (found, wanted) = (contents(&fs, "foreign"), others());
            let wrong = (0..60_000).find(|&at| found.get(at) != wanted.get(at));
            assert_eq!((found.len(), wrong), (60_000, None), "in place: {in_place}{round}: {:?}", fs.notes());
        }
        assert!(contents(&fs, "other") == noise(2, 9000), "in place: {in_place}");
        let notes = fs.notes().join("\n");
        assert!(notes.contains(&format!("inode {ino}")), "in place: {in_place}: {notes}");
        fs.shutdown().unwrap();
        check_disk(&disk);
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&fs, "foreign") == others(), "in place: {in_place}, mounted again");
        fs.shutdown().unwrap();
    }
}

/// What mke2fs fills an image with has generation 0, and so has what debugfs puts in its place.
#[test]
fn another_file_without_a_generation_is_known_by_when_it_was_changed() {
    let Some((disk, _)) = halves(32, 16) else { return };
    let plain = tempfile::tempdir().unwrap();
    std::fs::write(plain.path().join("old"), noise(1, 20_000)).unwrap();
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(disk.info().size_bytes).unwrap();
    let made = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"])
        .args([plain.path(), image.path()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(image.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", 16 << 20));
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"old").unwrap().ino;
    assert_eq!(write(&fs, ino, 4096, &noise(3, 4096)).unwrap(), 4096);
    fsync(&fs, ino);
    fs.abandon();
    // A repair alone changes nothing.
    let [repaired, own] = [changed(&disk, &[], &[&["/usr/sbin/e2fsck", "-fy"]]), ssd.clone()];
    let own = Arc::new(Ram::from_bytes("ssd", own.image()));
    let fs = open(&repaired, Some(&own), manual()).unwrap();
    assert!(contents(&fs, "old")[4096..8192] == noise(3, 4096));
    fs.shutdown().unwrap();
    let disk = with_another(&disk, "old", "foreign");
    let fs = refused_then_whole(&disk, &ssd, &["has another file under that number"]);
    assert_eq!(fs.lookup(ROOT_INO, b"foreign").unwrap().ino, ino, "the case that this is a test of");
    assert!(contents(&fs, "foreign") == others());
    fs.shutdown().unwrap();
    check_disk(&disk);
}

/// Somebody had a file open that had no name: e2fsck between a crash and the mount is no reason to refuse anything.
#[test]
fn a_volume_that_e2fsck_looked_at_after_a_crash_is_whole() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let [file, scratch] = ["file", "scratch"].map(|name| create(&fs, name, &noise(1, 20_000)));
    fs.unlink(ROOT_INO, b"scratch").unwrap();
    fs.commit().unwrap();
    fs.setattr(scratch, &SetAttr { size: Some(100_000), ..SetAttr::default() }).unwrap();
    fs.fallocate(scratch, 0, 8192, Fallocate::Punch).unwrap();
    assert_eq!(write(&fs, file, 4096, &noise(2, 4096)).unwrap(), 4096);
    fs.rename(ROOT_INO, b"file", ROOT_INO, b"new", Rename::Replace).unwrap();
    fsync(&fs, file);
    fs.abandon();
    std::thread::sleep(Duration::from_millis(1100));
    let disk = changed(&disk, &[], &[&["/usr/sbin/e2fsck", "-fy"]]);
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "new")[4096..8192] == noise(2, 4096));
    fs.shutdown().unwrap();
    check_disk(&disk);
}

/// The halves after a crash, where the log alone has what was done to `name`.
fn name_taken_away(case: &str) -> Option<(Arc<Ram>, Arc<Ram>)> {
    let (disk, ssd) = halves(32, 16)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let [_, other] = ["name", "other"].map(|name| create(&fs, name, &noise(1, 20_000)));
    fs.commit().unwrap();
    let rename = |from: &[u8], to: &[u8]| fs.rename(ROOT_INO, from, ROOT_INO, to, Rename::Replace).unwrap();
    match case {
        "remove" => fs.unlink(ROOT_INO, b"name").unwrap(),
        "replace" => rename(b"other", b"name"),
        "move" => rename(b"name", b"new"),
        _ => {
            fs.unlink(ROOT_INO, b"name").unwrap();
            rename(b"other", b"name");
        }
    }
    fsync(&fs, other);
    fs.fsync(ROOT_INO, false).unwrap().get().unwrap();
    fs.abandon();
    Some((disk, ssd))
}

#[test]
fn a_name_that_is_anothers_now_is_neither_removed_nor_replaced() {
    for case in ["remove", "replace", "move", "move onto"] {
        let Some((disk, ssd)) = name_taken_away(case) else { return };
        let disk = with_another(&disk, "name", "name");
        let fs = refused_then_whole(&disk, &ssd, &["has another file under that name", "'name'"]);
        assert!(contents(&fs, "name") == others(), "{case}");
        fs.shutdown().unwrap();
        check_disk(&disk);
    }
}

/// As of one that was changed while the clock was ahead, and removed when it was right again.
#[test]
fn a_file_changed_after_all_that_the_log_has_loses_the_name_that_was_to_go() {
    for (case, wanted) in
        [("remove", [false, true, false]), ("replace", [true, false, false]), ("move", [false, true, true])]
    {
        let Some((disk, ssd)) = name_taken_away(case) else { return };
        let disk = behind_its_back(&disk, "set_inode_field name ctime now");
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let there = ["name", "other", "new"].map(|name| fs.lookup(ROOT_INO, name.as_bytes()).is_ok());
        assert_eq!(there, wanted, "{case}");
        fs.shutdown().unwrap();
        check_disk(&disk);
    }
}

/// A name that was nobody's when a file got it, and that another has now.
#[test]
fn a_name_that_was_free_is_not_taken_from_another() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "name", &noise(1, 20_000));
    fs.commit().unwrap();
    fs.rename(ROOT_INO, b"name", ROOT_INO, b"new", Rename::Replace).unwrap();
    fsync(&fs, ino);
    fs.abandon();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), others()).unwrap();
    let disk = behind_its_back(&disk, &format!("write {} new", file.path().display()));
    // Its time does not tell.
    let disk = behind_its_back(&disk, "set_inode_field new ctime 20200101");
    let fs = refused_then_whole(&disk, &ssd, &["has another file under that name", "'new'"]);
    assert!(contents(&fs, "new") == others() && contents(&fs, "name") == noise(1, 20_000));
    fs.shutdown().unwrap();
    check_disk(&disk);
}

/// e2fsck took a file away, or resize2fs gave it another number: what the log has of it belongs nowhere.
#[test]
fn what_the_log_has_of_a_file_that_the_disk_half_lost_is_refused_and_left_out_by_name() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let [gone, stays] = ["gone", "stays"].map(|name| create(&fs, name, &noise(1, 20_000)));
    let [unlinked, scratch] = ["unlinked", "scratch"].map(|name| create(&fs, name, &noise(5, 5000)));
    fs.unlink(ROOT_INO, b"scratch").unwrap();
    fs.commit().unwrap();
    // Nobody can miss what a file without a name is given, and nobody synced it.
    fs.setattr(scratch, &SetAttr { size: Some(9000), ..SetAttr::default() }).unwrap();
    // Of one that is open without a name nothing is missed when it is freed.
    fs.unlink(ROOT_INO, b"unlinked").unwrap();
    for ino in [gone, stays, unlinked] {
        assert_eq!(write(&fs, ino, 4000, &noise(2, 3000)).unwrap(), 3000);
        assert_eq!(write(&fs, ino, 20_000, &noise(3, 40_000)).unwrap(), 40_000);
        fsync(&fs, ino);
    }
    fs.forget(unlinked, 1);
    fs.fsync(ROOT_INO, false).unwrap().get().unwrap();
    fs.abandon();
    let repair: &[&str] = &["/usr/sbin/e2fsck", "-fy"];
    std::thread::sleep(Duration::from_millis(1100));
    let disk = changed(&changed(&disk, &[], &[repair]), &[gone], &[repair]);
    let fs =
        refused_then_whole(&disk, &ssd, &["no file under that number any more", &format!("inode {gone}")]);
    let notes = fs.notes().join("\n");
    assert!(notes.contains(&format!("inode {gone}")) && notes.contains("left out"), "{notes}");
    assert!(!notes.contains(&format!("inode {unlinked}")), "{notes}");
    assert!(notes.contains(&format!("of 1 inodes ({scratch} the first) were dropped")), "{notes}");
    let mut wanted = [noise(1, 20_000), noise(3, 40_000)].concat();
    wanted[4000..7000].copy_from_slice(&noise(2, 3000));
    assert!(contents(&fs, "stays") == wanted);
    fs.shutdown().unwrap();
    check_disk(&disk);
}

#[test]
fn a_log_that_finds_no_room_on_a_disk_half_that_was_filled_is_refused_and_nothing_is_changed() {
    let Some((disk, ssd)) = halves(16, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    create(&fs, "filler", b"");
    let old = create(&fs, "large", &noise(1, 3000));
    fs.commit().unwrap();
    // What takes the place of a file must not be zeros.
    let large = create(&fs, "new", &noise(2, 2 << 20));
    fsync(&fs, large);
    fs.rename(ROOT_INO, b"new", ROOT_INO, b"large", Rename::Replace).unwrap();
    fs.fsync(ROOT_INO, false).unwrap().get().unwrap();
    let filled = fs.statfs().unwrap();
    let blocks = filled.free + (1 << 20) / u64::from(filled.block_bytes);
    assert!(fs.lookup(ROOT_INO, b"large").unwrap().ino != old);
    fs.abandon();
    let disk = behind_its_back(&disk, &format!("fallocate filler 0 {blocks}"));
    let before = [disk.image(), ssd.image()];
    for recover in [Recover::default(), Recover::Whole] {
        let error = open(&disk, Some(&ssd), Options { recover, ..manual() }).err().unwrap().to_string();
        for part in ["which is full", "larger device", "bimetal rescue"] {
            assert!(error.contains(part), "'{part}' in: {error}");
        }
        assert!([disk.image(), ssd.image()] == before, "it was changed");
    }
    let fs = open(&disk, Some(&ssd), Options { recover: Recover::Disk, ..manual() }).unwrap();
    assert!(contents(&fs, "large") == noise(1, 3000));
    fs.shutdown().unwrap();
    check_disk(&disk);
}

#[test]
fn every_name_of_a_file_that_was_left_out_is_told() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
    fs.commit().unwrap();
    let file = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), dir, b"first", &file).unwrap().ino;
    assert_eq!(write(&fs, ino, 0, &noise(1, 5000)).unwrap(), 5000);
    fs.link(ino, ROOT_INO, b"second").unwrap();
    fs.link(ino, ROOT_INO, b"third").unwrap();
    fs.rename(ROOT_INO, b"third", ROOT_INO, b"fourth", Rename::Replace).unwrap();
    fsync(&fs, ino);
    fs.abandon();
    let repair: &[&str] = &["/usr/sbin/e2fsck", "-fy"];
    let disk = changed(&changed(&disk, &[], &[repair]), &[dir], &[repair]);
    let fs = refused_then_whole(&disk, &ssd, &["does not fit"]);
    let notes = fs.notes().join("\n");
    for name in ["first", "second", "fourth"] {
        let lost = |note: &&str| note.contains(name) && note.contains("is lost");
        assert!(notes.lines().any(|line| lost(&line)), "{name} in: {notes}");
    }
    assert!(!notes.lines().any(|line| line.contains("third") && line.contains("is lost")), "{notes}");
    fs.shutdown().unwrap();
    check_disk(&disk);
}

/// What an fsync brings along of a file made since the last one is written before the record that makes it: where the power goes in
/// between, the log tells of contents under a number that is another file's still.
#[test]
fn contents_of_a_file_whose_making_did_not_arrive_are_no_reason_to_refuse_the_file_that_had_its_number() {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let options = ["-b", "4096", "-N", "3000", "-J", "size=4"];
    let Some((disk, ssd)) = halves_with(32, 16, &config, &options) else { return };
    let images = Images::default();
    let cuts = Cuts { halves: [disk.clone(), ssd.clone()], is_ssd: true, images: images.clone() };
    let fs = NfHybrid::open(disk.clone(), Some(Arc::new(cuts)), manual()).unwrap();
    let old = create(&fs, "old", b"old");
    create(&fs, "target", b"target");
    let other = create(&fs, "other", b"other");
    fs.commit().unwrap();
    fs.setattr(old, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(write(&fs, other, 0, b"more!").unwrap(), 5);
    fsync(&fs, other);
    for number in 0..120 {
        create(&fs, &format!("n{number}"), b"");
    }
    fs.unlink(ROOT_INO, b"old").unwrap();
    fs.forget(old, 1);
    let new = create(&fs, "new", &noise(1, 3000));
    assert_eq!(new, old, "the case that this is a test of");
    fs.rename(ROOT_INO, b"new", ROOT_INO, b"target", Rename::Replace).unwrap();
    images.lock().unwrap().clear();
    fsync(&fs, other);
    fs.abandon();
    let states = std::mem::take(&mut *images.lock().unwrap());
    let mut kept = 0;
    for (cut, images) in states.into_iter().enumerate() {
        let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let fs = open(&disk, Some(&ssd), manual()).unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        assert!(contents(&fs, "other") == b"more!", "cut {cut}");
        match fs.lookup(ROOT_INO, b"old") {
            Ok(attr) => {
                assert_eq!(attr.perm, 0o600, "cut {cut}");
                assert!(contents(&fs, "target") == b"target", "cut {cut}");
                kept += 1;
            }
            Err(_) => assert!(contents(&fs, "target") == noise(1, 3000), "cut {cut}"),
        }
        fs.shutdown().unwrap();
    }
    assert!(kept > 0, "no cut came between");
}
