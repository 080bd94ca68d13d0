//! nfhybrid on devices in memory, without a mount.

mod pressure;

use super::*;
use bimetal_media::ram::Ram;
use bimetal_vfs::rules;
use std::process::Command;

mod admission;
mod atime;
mod crowded;
mod cuts;
mod discarded;
mod explain;
mod full;
mod groups;
mod locks;
mod marks;
mod misses;
mod promises;
mod recovered;
mod recut;
mod replayed;
mod scrubbed;
mod sizes;
mod table;
mod trees;
mod unfit;

/// A disk half and an SSD half that belong together, in memory; `None` where mke2fs is missing.
pub(super) fn halves(disk_mib: u64, ssd_mib: u64) -> Option<(Arc<Ram>, Arc<Ram>)> {
    halves_as(disk_mib, ssd_mib, &ssd::Config::default())
}

pub(super) fn halves_as(disk_mib: u64, ssd_mib: u64, config: &ssd::Config) -> Option<(Arc<Ram>, Arc<Ram>)> {
    halves_with(disk_mib, ssd_mib, config, &["-b", "4096"])
}

/// The same with options of mke2fs.
fn halves_with(
    disk_mib: u64,
    ssd_mib: u64,
    config: &ssd::Config,
    options: &[&str],
) -> Option<(Arc<Ram>, Arc<Ram>)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(disk_mib << 20).unwrap();
    let made = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-t", "ext4", "-F"])
        .args(options)
        .arg(file.path())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no mke2fs");
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", ssd_mib << 20));
    volume::join_devices(disk.clone(), ssd.clone(), config).unwrap();
    Some((disk, ssd))
}

/// Copies of both halves as they are: what a power cut leaves.
pub(super) fn again(halves: [&Arc<Ram>; 2]) -> [Arc<Ram>; 2] {
    halves.map(|half| Arc::new(Ram::from_bytes("half", half.image())))
}

pub(super) fn open(disk: &Arc<Ram>, ssd: Option<&Arc<Ram>>, options: Options) -> Result<NfHybrid> {
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

pub(super) fn create(fs: &NfHybrid, name: &str, bytes: &[u8]) -> Ino {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), ROOT_INO, name.as_bytes(), &node).unwrap().ino;
    fs.write(ino, 0, bytes, false).unwrap().get().unwrap();
    ino
}

pub(super) fn contents(fs: &NfHybrid, name: &str) -> Vec<u8> {
    let attr = fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
    fs.read(attr.ino, 0, attr.size as usize).unwrap().get().unwrap().concat()
}

pub(super) fn manual() -> Options {
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
    assert!(disk.image() == disk_before, "the disk was written to");
}

#[test]
fn an_ssd_that_missed_something_is_recognised_and_its_log_never_applied() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "old", b"on the SSD only");
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.abandon();
    // Used from the disk alone meanwhile.
    let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
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
    use bimetal_media::counted::Counted;
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
    assert!(writes <= 4200, "{writes} writes");
    assert!(flushes <= 4100, "{flushes} flushes");
    // A page of log for each record, which shrinks, another in its section, and the tables.
    assert!(bytes <= 4096 * (8192 + 256), "{bytes} bytes");
    assert!(fs.status().counters.relogs > 4, "the log went round");
    assert!(disk_writes < 200, "{disk_writes} disk writes");
    fs.shutdown().unwrap();
}

#[test]
fn a_file_that_takes_the_place_of_another_is_there_whole_with_the_next_fsync() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let write = |ino: Ino, fill: u8| fs.write(ino, 0, &[fill; 9000], false).unwrap().get().unwrap();
    create(&fs, "config", &[1; 5000]);
    let cut = create(&fs, "cut", &[2; 5000]);
    fs.commit().unwrap();
    create(&fs, "new", &[3; 9000]);
    fs.rename(ROOT_INO, b"new", ROOT_INO, b"config", Rename::Replace).unwrap();
    fs.setattr(cut, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    write(cut, 4);
    // Somebody else's fsync makes the names durable.
    let other = create(&fs, "other", b"x");
    fs.fsync(other, false).unwrap().get().unwrap();
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!((contents(&fs, "config"), contents(&fs, "cut")), (vec![3; 9000], vec![4; 9000]));
    fs.shutdown().unwrap();
}

#[test]
fn what_was_cut_off_and_never_durable_leaves_no_zeros() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &[1; 100]);
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.write(ino, 100, &[2; 9000], false).unwrap().get().unwrap();
    fs.setattr(ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
    let other = create(&fs, "other", b"x");
    fs.fsync(other, false).unwrap().get().unwrap();
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "f"), [1; 100]);
    fs.shutdown().unwrap();
}

#[test]
fn a_promise_outlives_the_log_that_held_it_even_if_it_was_overwritten_since() {
    let Some((disk, ssd)) = halves(16, 12) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let kept = create(&fs, "kept", &[1; 3000]);
    fs.fsync(kept, false).unwrap().get().unwrap();
    fs.write(kept, 0, &[2; 3000], false).unwrap().get().unwrap();
    let other = create(&fs, "other", b"");
    for record in 0..1200_u64 {
        fs.write(other, record * 4096, &[3; 4096], false).unwrap().get().unwrap();
        fs.fsync(other, false).unwrap().get().unwrap();
    }
    assert!(fs.status().counters.relogs > 0 && fs.status().counters.fsync_disk == 0);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let found = contents(&fs, "kept");
    assert!(found == [1; 3000] || found == [2; 3000], "{:?}", &found[..found.len().min(8)]);
    fs.shutdown().unwrap();
}

#[test]
fn a_log_with_more_to_say_than_it_holds_waits_for_the_disk_and_keeps_the_ssd() {
    // A journal that takes all of it in one transaction.
    let options = ["-b", "4096", "-J", "size=16"];
    let Some((disk, ssd)) = halves_with(64, 6, &ssd::Config::default(), &options) else { return };
    // Nothing goes to the section: it is full of what the disk does not have.
    let fs = open(&disk, Some(&ssd), Options { lag: Lag { bytes: 1 << 30, ..Lag::default() }, ..manual() })
        .unwrap();
    for file in 0..600_u64 {
        let ino = create(&fs, &format!("f{file}"), &[file as u8; 30_000]);
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    let status = fs.status();
    assert!(status.ssd_lost.is_none() && status.counters.fsync_disk > 0, "{:?}", status.ssd_lost);
    assert_eq!(contents(&fs, "f7"), [7; 30_000]);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    (0..600_u64)
        .for_each(|file| assert_eq!(contents(&fs, &format!("f{file}")), [file as u8; 30_000], "{file}"));
    fs.shutdown().unwrap();
}

#[test]
fn a_log_without_room_to_name_what_is_stale_forgets_all_copies_and_keeps_the_ssd_and_all_promises() {
    const FILES: usize = 40;
    const FRAMES: u64 = 110;
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_as(130, 48, &config) else { return };
    let options = || Options { lag: Lag { bytes: 1 << 30, ..Lag::default() }, ..manual() };
    let fs = open(&disk, Some(&ssd), options()).unwrap();
    let mut files = Vec::new();
    for file in 0..FILES {
        files.push(create(&fs, &format!("f{file}"), &[1; FRAMES as usize * 4096]));
        fs.commit().unwrap();
    }
    let sections = fs.status().ssd_half.unwrap().sections;
    let resident: u64 = sections.iter().map(|section| section.resident_bytes).sum();
    assert!(resident > 10 << 20, "{resident} bytes on the SSD");
    let promised = create(&fs, "promised", &[3; 20_000]);
    fs.fsync(promised, false).unwrap().get().unwrap();
    for &ino in &files {
        for frame in (0..FRAMES).step_by(2) {
            fs.write(ino, frame * 4096, &[2; 4096], false).unwrap().get().unwrap();
        }
    }
    let halves_then = (disk.image(), ssd.image());
    fs.commit().unwrap();
    let status = fs.status();
    assert!(status.ssd_lost.is_none() && status.counters.forgotten > 0, "{:?}", status.counters);
    let again = create(&fs, "again", &[4; 20_000]);
    fs.fsync(again, false).unwrap().get().unwrap();
    fs.abandon();
    let striped: Vec<u8> = (0..FRAMES).flat_map(|frame| [2 - (frame % 2) as u8; 4096]).collect();
    // After it, and before it.
    let disk_then = Arc::new(Ram::from_bytes("disk", halves_then.0));
    let ssd_then = Arc::new(Ram::from_bytes("ssd", halves_then.1));
    for (disk, ssd, after) in [(&disk, &ssd, true), (&disk_then, &ssd_then, false)] {
        let fs = open(disk, Some(ssd), options()).unwrap();
        assert_eq!(contents(&fs, "promised"), [3; 20_000]);
        for file in 0..FILES {
            let found = contents(&fs, &format!("f{file}"));
            // A full journal may have made a commit in between.
            let pairs = found.chunks(4096).zip(striped.chunks(4096));
            assert_eq!(found.len(), striped.len());
            for (at, (found, new)) in pairs.enumerate() {
                assert!(found == new || !after && found == [1; 4096], "file {file}, frame {at}");
            }
        }
        if after {
            assert_eq!(contents(&fs, "again"), [4; 20_000]);
        }
        fs.shutdown().unwrap();
    }
}

#[test]
fn more_new_files_than_the_log_can_name_at_once_are_on_the_ssd_all_the_same() {
    const FILES: u64 = 250;
    const STRETCHES: u64 = 4;
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_as(64, 48, &config) else { return };
    let options = || Options { lag: Lag { bytes: 1 << 30, ..Lag::default() }, ..manual() };
    let fs = open(&disk, Some(&ssd), options()).unwrap();
    let resident = |fs: &NfHybrid| -> u64 {
        let sections = fs.status().ssd_half.unwrap().sections;
        sections.iter().map(|section| section.resident_bytes).sum()
    };
    let name = |file: u64| format!("f{file}");
    for file in 0..FILES {
        let ino = create(&fs, &name(file), &[file as u8; 4096]);
        for stretch in 1..STRETCHES {
            fs.write(ino, stretch * 8192, &[file as u8; 4096], false).unwrap().get().unwrap();
        }
    }
    fs.commit().unwrap();
    let status = fs.status();
    assert!(status.counters.bound_late > 1 << 20, "{:?}", status.counters);
    assert_eq!((resident(&fs), status.ssd_lost), (FILES * STRETCHES * 4096, None));
    // What was said last is in the log with the next fsync.
    let last = create(&fs, "last", b"last");
    fs.fsync(last, false).unwrap().get().unwrap();
    fs.abandon();
    let fs = open(&disk, Some(&ssd), options()).unwrap();
    assert!(resident(&fs) >= FILES * STRETCHES * 4096);
    for file in 0..FILES {
        let found = contents(&fs, &name(file));
        assert_eq!(found.len() as u64, (2 * STRETCHES - 1) * 4096);
        let stretches = found.chunks(4096).enumerate();
        stretches.for_each(|(at, part)| assert_eq!(part, [file as u8 * u8::from(at % 2 == 0); 4096]));
    }
    fs.shutdown().unwrap();
}

#[test]
fn the_disk_knows_how_far_the_log_of_the_ssd_went() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &[1; 8192]);
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let before = ssd.image();
    fs.write(ino, 0, &[2; 8192], false).unwrap().get().unwrap();
    fs.commit().unwrap();
    fs.abandon();
    // The SSD forgets all it was told since: its copy of the file is an old one.
    let forgetful = Arc::new(Ram::from_bytes("ssd", before));
    let halves_before = (disk.image(), forgetful.image());
    let error = open(&disk, Some(&forgetful), manual()).err().unwrap();
    assert!(error.to_string().contains("recover=whole"), "{error}");
    assert!((disk.image(), forgetful.image()) == halves_before, "a refused mount changed something");
    let fs = open(&disk, Some(&forgetful), Options { recover: Recover::Whole, ..manual() }).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("reached")), "{:?}", fs.notes());
    assert_eq!(contents(&fs, "f"), [2; 8192]);
    fs.shutdown().unwrap();
}

#[test]
fn room_that_was_just_freed_can_be_used_at_once() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let part = vec![7; 64 << 10];
    let fill = |ino: Ino| {
        let written = |at: &u64| match fs.write(ino, at * part.len() as u64, &part, false) {
            Ok(later) => later.get().is_ok(),
            Err(Error::NoSpace(_)) => false,
            Err(other) => panic!("{other}"),
        };
        (0..).take_while(written).count()
    };
    let first = create(&fs, "first", b"");
    let all = fill(first);
    assert!(all > 40, "{all} parts of 64 KiB");
    let second = create(&fs, "second", b"");
    fs.unlink(ROOT_INO, b"first").unwrap();
    fs.forget(first, 1);
    let again = fill(second);
    fs.shutdown().unwrap();
    assert!(again + 1 >= all, "{again} of {all} parts after the first file is gone");
}

#[test]
fn what_is_added_to_many_short_files_goes_to_the_disk_in_a_few_places_whatever_holes_there_are() {
    const FILES: u64 = 400;
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let disk = Arc::new(bimetal_media::counted::Counted::new(disk));
    let fs = NfHybrid::open(disk.clone(), Some(ssd), manual()).unwrap();
    let files: Vec<Ino> = (0..FILES)
        .map(|number| {
            let ino = create(&fs, &format!("kept {number}"), &[1; 4096]);
            let gone = create(&fs, &format!("gone {number}"), &[2; 4096]);
            fs.forget(gone, 1);
            // In order of their numbers, so that a hole is left behind each.
            fs.commit().unwrap();
            ino
        })
        .collect();
    (0..FILES).for_each(|number| fs.unlink(ROOT_INO, format!("gone {number}").as_bytes()).unwrap());
    fs.commit().unwrap();
    let before = disk.counts().writes;
    files.iter().for_each(|&ino| {
        fs.write(ino, 4096, &[3; 4096], false).unwrap().get().unwrap();
    });
    fs.commit().unwrap();
    let writes = disk.counts().writes - before;
    assert!(writes < 40, "{writes} writes to the disk for a block more of each of {FILES} files");
    for number in 0..FILES {
        assert!(contents(&fs, &format!("kept {number}")) == [[1; 4096], [3; 4096]].concat());
    }
    fs.shutdown().unwrap();
}

/// Overwrites the first bytes of a file in pieces of 100 000.
fn overwrite(fs: &NfHybrid, ino: Ino, bytes: &[u8]) {
    for (at, piece) in bytes.chunks(100_000).enumerate() {
        fs.write(ino, at as u64 * 100_000, piece, false).unwrap().get().unwrap();
    }
}

#[test]
fn a_long_stretch_written_in_pieces_gets_new_places_and_counts_nothing_towards_the_journal() {
    let Some((disk, ssd)) = halves(192, 64) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &vec![1; 48 << 20]);
    fs.commit().unwrap();
    let before = fs.status().counters;
    overwrite(&fs, ino, &vec![2; 48 << 20]);
    assert_eq!(fs.status().counters.cycles, before.cycles, "the journal was full");
    fs.commit().unwrap();
    assert_eq!(fs.status().counters.relocated_bytes - before.relocated_bytes, 48 << 20);
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == vec![2; 48 << 20]);
    fs.shutdown().unwrap();
}

#[test]
fn a_long_stretch_moves_into_whatever_holes_there_are_or_goes_through_the_journal() {
    const PIECE: usize = 64 << 10;
    let Some((disk, ssd)) = halves(128, 64) else { return };
    for punched in [true, false] {
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let (file, comb) = (format!("file {punched}"), format!("comb {punched}"));
        let ino = create(&fs, &file, &vec![1; 4 << 20]);
        let teeth = create(&fs, &comb, b"");
        let fill =
            |at: &u64| fs.write(teeth, at * PIECE as u64, &[7; PIECE], false).is_ok_and(|l| l.get().is_ok());
        let pieces = (0..).take_while(fill).count() as u64;
        fs.commit().unwrap();
        let holes = (0..pieces).filter(|at| punched && at % 2 == 0);
        holes.for_each(|at| fs.fallocate(teeth, at * PIECE as u64, PIECE as u64, Fallocate::Punch).unwrap());
        fs.commit().unwrap();
        let before = fs.status().counters.relocated_bytes;
        overwrite(&fs, ino, &vec![2; 4 << 20]);
        fs.commit().unwrap();
        let moved = fs.status().counters.relocated_bytes - before;
        assert_eq!(moved, if punched { 4 << 20 } else { 0 }, "{pieces} pieces");
        fs.shutdown().unwrap();
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&fs, &file) == vec![2; 4 << 20]);
        fs.shutdown().unwrap();
    }
}

#[test]
fn a_lost_ssd_costs_nothing_and_never_comes_back_as_fresh() {
    use bimetal_media::faulty::Faulty;
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
    let at_first = Options { promote: "first".parse().unwrap(), ..manual() };
    let alone = open(&disk, None, manual()).unwrap();
    let bytes: Vec<u8> = (0..500_000_u32).map(|at| (at / 13) as u8).collect();
    create(&alone, "f", &bytes);
    alone.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), at_first).unwrap();
    assert!(contents(&fs, "f") == bytes);
    fs.promote();
    assert_eq!(fs.status().counters.promoted_bytes, 123 * 4096);
    let attr = fs.lookup(ROOT_INO, b"f").unwrap();
    let residency = String::from_utf8(fs.control_get(attr.ino, "bimetal.residency").unwrap()).unwrap();
    assert!(residency.contains("\"ssd_active\":true") && residency.contains("\"11\""), "{residency}");
    assert!(contents(&fs, "f") == bytes);
    assert_eq!(fs.status().counters.read_bytes, [0, 123 * 4096, 123 * 4096]);
    create(&fs, "new", b"only in memory so far");
    assert_eq!(contents(&fs, "new"), b"only in memory so far");
    assert_eq!(fs.status().counters.read_bytes, [4096, 123 * 4096, 123 * 4096]);
    let section = &fs.status().ssd_half.unwrap().sections[0];
    assert_eq!((section.hits, section.misses), (1, 1), "one read each from the disk and the SSD");
    fs.shutdown().unwrap();
}

fn is_on_ssd(fs: &NfHybrid, name: &str) -> bool {
    let attr = fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
    let residency = String::from_utf8(fs.control_get(attr.ino, "bimetal.residency").unwrap()).unwrap();
    residency.contains("\"ssd_active\":true")
}

#[test]
fn more_small_files_than_the_ssd_has_inodes_for_leave_the_newest_on_it() {
    let Some((disk, ssd)) = halves(64, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let slots = fs.status().ssd_half.unwrap().slots;
    let files = u64::from(slots) * 2;
    for number in 0..files {
        create(&fs, &format!("{number}"), &[7; 100]);
        if number % 50 == 0 {
            fs.commit().unwrap();
        }
    }
    fs.commit().unwrap();
    let newest = (files - 20..files).filter(|number| is_on_ssd(&fs, &format!("{number}"))).count();
    assert_eq!(newest, 20, "{:?}", fs.status().ssd_half);
    fs.shutdown().unwrap();
}

#[test]
fn reads_alone_bring_the_newest_to_an_ssd_that_is_full() {
    let Some((disk, ssd)) = halves(64, 8) else { return };
    let alone = open(&disk, None, manual()).unwrap();
    for number in 0..30 {
        create(&alone, &format!("{number}"), &vec![number; 1 << 20]);
    }
    alone.shutdown().unwrap();
    let at_first = Options { promote: "first".parse().unwrap(), ..manual() };
    let fs = open(&disk, Some(&ssd), at_first).unwrap();
    let cycles = fs.status().counters.cycles;
    for number in 0..30 {
        let attr = fs.lookup(ROOT_INO, format!("{number}").as_bytes()).unwrap();
        fs.read(attr.ino, 0, 1 << 20).unwrap().get().unwrap();
        fs.promote();
    }
    assert!(is_on_ssd(&fs, "29"), "{:?}", fs.status().ssd_half);
    assert_eq!(contents(&fs, "29"), vec![29; 1 << 20]);
    assert_eq!(fs.status().counters.cycles, cycles, "no commit made the room");
    fs.shutdown().unwrap();
}

/// Names and contents of files.
type Files = Vec<(String, Vec<u8>)>;

/// A volume with files, closed cleanly; its halves' images and what the files hold.
fn filled() -> Option<(Vec<u8>, Vec<u8>, Files)> {
    let (disk, ssd) = halves(16, 8)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut files = Vec::new();
    for number in 0..40_u32 {
        let bytes: Vec<u8> = (0..number * 2000 + 10).map(|at| (at / 7 + number) as u8).collect();
        create(&fs, &format!("f{number}"), &bytes);
        files.push((format!("f{number}"), bytes));
    }
    fs.shutdown().unwrap();
    Some((disk.image(), ssd.image(), files))
}

pub(super) fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*random >> 33) as usize
}

/// Damages a place: a flipped bit, zeros or noise over a sector or a block.
fn damage(image: &mut [u8], random: &mut u64) {
    let at = next(random) % image.len();
    let block = at & !4095;
    match next(random) % 4 {
        0 => image[at] ^= 1 << (next(random) % 8),
        1 => image[at & !511..][..512].fill(0),
        2 => image[block..block + 4096].fill(0),
        _ => image[block..block + 4096].fill_with(|| next(random) as u8),
    }
}

#[test]
fn a_damaged_ssd_half_costs_nothing_that_is_on_the_disk() {
    let Some((disk, ssd, files)) = filled() else { return };
    let mut random = 7;
    let (mut opened, mut refused) = (0, 0);
    for round in 0..150 {
        let mut bad = ssd.clone();
        // The first megabytes hold everything but data; damage them as often as the rest.
        let reach = if round % 2 == 0 { bad.len() } else { 5 << 20 };
        for _ in 0..1 + round % 3 {
            damage(&mut bad[..reach], &mut random);
        }
        let disk = Arc::new(Ram::from_bytes("disk", disk.clone()));
        let bad = Arc::new(Ram::from_bytes("ssd", bad));
        match open(&disk, Some(&bad), manual()) {
            Err(Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Mismatch(_)) => refused += 1,
            Err(error) => panic!("round {round}: {error}"),
            Ok(fs) => {
                for (name, bytes) in &files {
                    assert!(contents(&fs, name) == *bytes, "round {round}: {name}");
                }
                fs.shutdown().unwrap();
                opened += 1;
            }
        }
    }
    assert!(opened > 100, "{opened} opened, {refused} refused");
}

#[test]
fn a_damaged_disk_half_gives_errors_and_never_a_panic() {
    let Some((disk, ssd, files)) = filled() else { return };
    let mut random = 11;
    let mut wrong = 0;
    for _ in 0..150 {
        let mut bad = disk.clone();
        damage(&mut bad[..1 << 20], &mut random);
        let bad = Arc::new(Ram::from_bytes("disk", bad));
        let ssd = Arc::new(Ram::from_bytes("ssd", ssd.clone()));
        let Ok(fs) = open(&bad, Some(&ssd), manual()) else {
            wrong += 1;
            continue;
        };
        for (name, bytes) in &files {
            let found = fs.lookup(ROOT_INO, name.as_bytes());
            let read = found.and_then(|attr| fs.read(attr.ino, 0, attr.size as usize)?.get());
            match read {
                Ok(parts) => assert!(parts.concat() == *bytes, "{name} reads wrong without an error"),
                Err(Error::Corrupt { .. }) => wrong += 1,
                Err(error) => panic!("{name}: {error}"),
            }
        }
        let _ = fs.shutdown();
    }
    assert!(wrong > 0, "no damage was noticed");
}

#[test]
fn swapped_cut_and_foreign_halves_are_refused_with_what_and_where() {
    let Some((disk, ssd, _)) = filled() else { return };
    let ram = |bytes: &[u8]| Arc::new(Ram::from_bytes("half", bytes.to_vec()));
    let cases: [(&str, Vec<u8>, Vec<u8>); 5] = [
        ("swapped", ssd.clone(), disk.clone()),
        ("disk zeroed", vec![0; disk.len()], ssd.clone()),
        ("SSD zeroed", disk.clone(), vec![0; ssd.len()]),
        ("disk cut", disk[..disk.len() / 2].to_vec(), ssd.clone()),
        ("SSD cut", disk.clone(), ssd[..ssd.len() / 2].to_vec()),
    ];
    for (what, disk, ssd) in cases {
        let (disk, ssd) = (ram(&disk), ram(&ssd));
        let (before, ssd_before) = (disk.image(), ssd.image());
        let error = open(&disk, Some(&ssd), manual()).err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(error.to_string().len() > 20, "{what}: {error}");
        assert!(ssd.image() == ssd_before, "{what}: the SSD half was changed");
        assert!(disk.image() == before, "{what}: the disk half was changed");
    }
}
