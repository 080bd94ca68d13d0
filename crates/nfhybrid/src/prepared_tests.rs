//! What a mount that is refused, or that nothing is changed through, leaves behind: both halves, byte for byte.

use super::recovery_tests::{crashed, fsync};
use super::tests::{contents, create, halves, manual, open};
use super::*;
use bimetal_media::ram::Ram;

type Halves = (Arc<Ram>, Arc<Ram>);

fn images((disk, ssd): &Halves) -> [Vec<u8>; 2] {
    [disk.image(), ssd.image()]
}

/// A volume left in order, with a file on both halves.
fn in_order() -> Option<Halves> {
    let (disk, ssd) = halves(16, 8)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "cached", &[7; 60_000]);
    fsync(&fs, ino);
    fs.shutdown().unwrap();
    Some((disk, ssd))
}

fn resident(fs: &NfHybrid) -> u64 {
    let half = fs.status().ssd_half.expect("an SSD half");
    half.sections.iter().map(|section| section.resident_bytes).sum()
}

#[test]
fn a_mount_that_is_prepared_and_not_begun_has_changed_no_byte_whatever_it_was_to_drop() {
    let Some(crashed) = crashed() else { return };
    let words = [
        manual(),
        Options { recover: Recover::Whole, ..manual() },
        Options { recover: Recover::Disk, ..manual() },
        Options { without_ssd: true, ..manual() },
    ];
    let both = crashed.halves();
    let before = images(&both);
    for options in words {
        let ssd = (!options.without_ssd).then(|| both.1.clone() as Arc<dyn BlockDevice>);
        let prepared = NfHybrid::prepare(both.0.clone(), ssd, options).unwrap();
        prepared.look().unwrap().shutdown().unwrap();
        drop(prepared);
        assert!(images(&both) == before, "{options:?}");
    }
    crashed.check_mount(both.0, both.1, "afterwards");
}

#[test]
fn a_disk_half_that_is_mounted_alone_and_only_read_costs_its_ssd_nothing() {
    let Some(both) = in_order() else { return };
    let before = images(&both);
    let fs = open(&both.0, None, manual()).unwrap();
    assert_eq!(contents(&fs, "cached"), vec![7; 60_000]);
    fs.readdir(ROOT_INO, 0, &mut |_| true).unwrap();
    let ino = fs.lookup(ROOT_INO, b"cached").unwrap().ino;
    fsync(&fs, ino);
    fs.sync().unwrap();
    fs.shutdown().unwrap();
    assert!(images(&both) == before, "it was written to");
    let fs = open(&both.0, Some(&both.1), manual()).unwrap();
    assert_eq!(fs.notes(), Vec::<String>::new());
    assert!(resident(&fs) >= 60_000);
}

#[test]
fn the_first_change_of_a_disk_half_that_is_mounted_alone_makes_its_ssd_stale() {
    for how in ["a commit", "an end"] {
        let Some(both) = in_order() else { return };
        let fs = open(&both.0, None, manual()).unwrap();
        create(&fs, "new", &[1; 5000]);
        match how {
            "a commit" => {
                fs.commit().unwrap();
                fs.abandon();
            }
            _ => fs.shutdown().unwrap(),
        }
        let fs = open(&both.0, Some(&both.1), manual()).unwrap();
        assert!(fs.notes().iter().any(|note| note.contains("stale")), "{how}: {:?}", fs.notes());
        assert_eq!(contents(&fs, "new"), vec![1; 5000], "{how}");
        assert_eq!(contents(&fs, "cached"), vec![7; 60_000], "{how}");
    }
}

/// A crash right after a mount, so that the disk's journal has no images of the bitmaps; one of these is damaged.
fn with_a_damaged_bitmap() -> Option<Halves> {
    let (disk, ssd) = in_order()?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "late", &[3; 50_000]);
    fsync(&fs, ino);
    fs.abandon();
    let mut bytes = disk.image();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    // The descriptors begin in block 1; the bitmap of blocks comes first in each.
    let bitmap = word(4096);
    bytes[bitmap * 4096 + 400] ^= 4;
    Some((Arc::new(Ram::from_bytes("disk", bytes)), ssd))
}

#[test]
fn damage_of_the_disk_half_is_named_as_such_before_a_byte_has_changed() {
    let Some(both) = with_a_damaged_bitmap() else { return };
    let before = images(&both);
    for recover in [Recover::Log, Recover::Whole] {
        let error = open(&both.0, Some(&both.1), Options { recover, ..manual() }).err().unwrap().to_string();
        for part in
            ["the disk half is corrupt", "bitmap", "e2fsck -f disk", "is not lost", "mount both halves"]
        {
            assert!(error.contains(part), "'{part}' in: {error}");
        }
        for no in ["recover=disk", "{", "SSD log"] {
            assert!(!error.contains(no), "'{no}' in: {error}");
        }
        assert!(images(&both) == before, "it was changed");
    }
}

#[test]
fn halves_given_the_wrong_way_round_are_said_to_be() {
    let Some((disk, ssd)) = in_order() else { return };
    let before = images(&(disk.clone(), ssd.clone()));
    let error = open(&ssd, Some(&disk), manual()).err().unwrap().to_string();
    assert!(error.contains("is an SSD half") && error.contains("--ssd ssd --disk disk"), "{error}");
    let error = open(&ssd, None, manual()).err().unwrap().to_string();
    assert!(error.contains("give it as --ssd ssd"), "{error}");
    assert!(images(&(disk, ssd)) == before);
}

/// Contents that do not shrink, no two blocks alike.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// More than goes into the log itself.
const FRAMES: usize = 200;
const LOST: Range<usize> = 5 * 4096..6 * 4096;

/// The SSD with a bit flipped where it holds this part of `noise`.
fn flip(ssd: &Arc<Ram>, bytes: &[u8]) -> Arc<Ram> {
    let mut image = ssd.image();
    let at = image.chunks(4096).position(|block| block == &bytes[LOST]).expect("its contents are on the SSD");
    image[at * 4096 + 1000] ^= 1;
    Arc::new(Ram::from_bytes("ssd", image))
}

/// A crash with a file in a directory of which only the SSD has the contents: too many for its log.
fn with_contents_on_the_ssd_alone() -> Option<Halves> {
    let (disk, ssd) = halves(16, 8)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let dir = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &dir).unwrap().ino;
    create(&fs, "big", &noise(FRAMES * 4096));
    fs.rename(ROOT_INO, b"big", dir, b"big", Rename::Replace).unwrap();
    let ino = fs.lookup(dir, b"big").unwrap().ino;
    fsync(&fs, ino);
    let small = create(&fs, "small", &[9; 300]);
    fsync(&fs, small);
    fs.abandon();
    Some((disk, ssd))
}

#[test]
fn a_flipped_bit_in_fsynced_data_refuses_the_mount_and_changes_no_byte() {
    let Some((disk, ssd)) = with_contents_on_the_ssd_alone() else { return };
    let both = (disk, flip(&ssd, &noise(FRAMES * 4096)));
    let before = images(&both);
    for _ in 0..2 {
        let error = open(&both.0, Some(&both.1), manual()).err().unwrap().to_string();
        assert!(error.contains("recover=whole"), "{error}");
        assert!(images(&both) == before, "it was changed");
    }
}

#[test]
fn of_a_file_with_a_damaged_frame_exactly_that_is_lost_and_named_by_the_files_path() {
    let Some((disk, ssd)) = with_contents_on_the_ssd_alone() else { return };
    let mut wanted = noise(FRAMES * 4096);
    let ssd = flip(&ssd, &wanted);
    wanted[LOST].fill(0);
    let fs = open(&disk, Some(&ssd), Options { recover: Recover::Whole, ..manual() }).unwrap();
    let read = |fs: &NfHybrid| {
        let dir = fs.lookup(ROOT_INO, b"dir").unwrap().ino;
        let file = fs.lookup(dir, b"big").unwrap();
        fs.read(file.ino, 0, file.size as usize).unwrap().get().unwrap().concat()
    };
    assert!(read(&fs) == wanted);
    assert_eq!(contents(&fs, "small"), vec![9; 300]);
    let notes: Vec<String> = fs.notes().into_iter().filter(|note| note.contains("is lost")).collect();
    let place = format!("bytes {} to {}", LOST.start, LOST.end);
    assert!(matches!(&notes[..], [one] if one.contains("/dir/big") && one.contains(&place)), "{notes:?}");
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(read(&fs) == wanted, "after the next mount");
}

/// A file of the disk alone that loses its last name while it is open, before anything was committed.
fn unnamed_before_the_first_commit(name: &str) {
    let Some(both) = in_order() else { return };
    let fs = open(&both.0, None, manual()).unwrap();
    if name == "new" {
        create(&fs, "new", &[1; 5000]);
    } else {
        fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
    }
    create(&fs, "other", &[2; 5000]);
    fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
    let committed = fs.commit().map_err(|error| error.to_string());
    let failure = fs.status().failure;
    let made = fs.create(
        &Caller::default(),
        ROOT_INO,
        b"later",
        &NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" },
    );
    let made = made.map(drop).map_err(|error| error.to_string());
    fs.abandon();
    let again = open(&both.0, None, manual());
    let again = again.map(|fs| fs.notes()).map_err(|error| error.to_string());
    assert!(
        committed.is_ok() && failure.is_none() && made.is_ok() && again.is_ok(),
        "commit {committed:?}, failure {failure:?}, then {made:?}, the next mount {again:?}"
    );
}

#[test]
fn a_disk_alone_goes_on_though_a_new_file_is_removed_while_it_is_open() {
    unnamed_before_the_first_commit("new");
}

#[test]
fn a_disk_alone_goes_on_though_an_old_file_is_removed_while_it_is_open() {
    unnamed_before_the_first_commit("cached");
}

/// Another program changes a file of the disk half while the volume is not mounted, without a mount: the SSD's copies are old.
#[test]
fn what_another_program_wrote_to_the_disk_half_is_read_in_a_mount_for_reading_too() {
    use std::process::Command;
    let Some((disk, ssd)) = in_order() else { return };
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (image, new) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(image.path(), disk.image()).unwrap();
    std::fs::write(new.path(), [8; 60_000]).unwrap();
    for line in ["rm cached".to_string(), format!("write {} cached", new.path().display())] {
        let done = Command::new("/usr/sbin/debugfs").args(["-w", "-R", &line]).arg(image.path()).output();
        assert!(done.is_ok(), "{done:?}");
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(image.path()).unwrap()));
    let fs = open(&disk, Some(&ssd), Options { read_only: true, ..manual() }).unwrap();
    let (first, notes) = (contents(&fs, "cached")[0], fs.notes());
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "cached")[0], 8, "rw: {:?}", fs.notes());
    assert_eq!(first, 8, "ro, with these notes: {notes:?}");
}

#[test]
fn what_the_ssd_has_lost_without_a_trace_is_not_said_of_the_disk() {
    let Some(both) = in_order() else { return };
    let fs = open(&both.0, Some(&both.1), manual()).unwrap();
    let ino = create(&fs, "late", &[3; 50_000]);
    fsync(&fs, ino);
    // As if the table had lost it.
    fs.shared.core.lock().ssd.as_mut().unwrap().unbind_all(0, ino);
    let other = create(&fs, "other", &[4; 5_000]);
    fsync(&fs, other);
    fs.abandon();
    let before = images(&both);
    let error = open(&both.0, Some(&both.1), manual()).err().unwrap().to_string();
    assert!(error.starts_with("the SSD half is corrupt") && error.contains("/late among them"), "{error}");
    assert!(error.contains("recover=whole") && !error.contains("e2fsck"), "{error}");
    assert!(images(&both) == before, "it was changed");
    let whole = Options { recover: Recover::Whole, ..manual() };
    let fs = open(&both.0, Some(&both.1), whole).unwrap();
    assert_eq!(contents(&fs, "other"), vec![4; 5_000]);
    assert!(fs.notes().iter().any(|note| note.contains("/late")), "{:?}", fs.notes());
    fs.shutdown().unwrap();
}

#[test]
fn the_status_of_a_volume_that_is_only_looked_at_says_what_the_disk_lacks() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let looked = NfHybrid::prepare(disk.clone(), Some(ssd.clone()), manual()).unwrap().look().unwrap();
    let (last, on_disk) = looked.status().operations;
    assert!(last > on_disk + 1, "{last} and {on_disk}");
    // All that was written since the commit: what was cut off or replaced meanwhile need not count.
    let at_risk = looked.status().at_risk;
    let lacks = 8192 + 3 * (80_000 + 3_000) + 30_000 + 10_000;
    assert!((lacks..2 * lacks).contains(&at_risk.bytes), "{at_risk:?} for {lacks}");
    assert_eq!(at_risk.seconds, None, "nobody knows when it was done");
    looked.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let (last, on_disk) = fs.status().operations;
    assert_eq!(last, on_disk);
    assert_eq!((fs.status().at_risk.bytes, fs.status().at_risk.seconds), (0, Some(0.0)));
    fs.shutdown().unwrap();
    // Of a volume that was left in order it lacks nothing.
    let looked = NfHybrid::prepare(disk, Some(ssd), manual()).unwrap().look().unwrap();
    let (last, on_disk) = looked.status().operations;
    assert_eq!(last, on_disk);
    assert_eq!((looked.status().at_risk.bytes, looked.status().at_risk.seconds), (0, Some(0.0)));
}

#[test]
fn what_only_the_ssd_half_has_is_not_explained_as_the_disks_in_a_volume_that_is_only_looked_at() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let looked = NfHybrid::prepare(disk.clone(), Some(ssd), manual()).unwrap().look().unwrap();
    let explained = |name: &str| {
        let ino = looked.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
        let said = looked.control_get(ino, "bimetal.explain").unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        assert!(said["lag_seconds"].is_null(), "{said}");
        said["extents"].as_array().unwrap().clone()
    };
    for new in ["new0", "new1", "replaced", "cut"] {
        let extents = explained(new);
        assert!(!extents.is_empty());
        for extent in extents {
            let state = extent["state"].as_str().unwrap();
            assert!(["ssd", "log"].contains(&state) && extent["disk"].is_null(), "{new}: {extent}");
            assert_eq!(extent["ssd"].is_null(), state == "log", "{new}: {extent}");
            assert!(extent["why"].as_str().unwrap().contains("mounted for writing"), "{new}: {extent}");
        }
    }
    // Of a file that the disk has, what was overwritten since.
    let kept = explained("kept");
    let lacking = kept.iter().filter(|extent| ["ssd", "log"].contains(&extent["state"].as_str().unwrap()));
    assert_eq!(lacking.map(|extent| extent["bytes"].as_u64().unwrap()).sum::<u64>(), 8192, "{kept:?}");
    assert!(kept[0]["state"] == "both" && !kept[0]["disk"].is_null(), "{kept:?}");
}

#[test]
fn a_recovery_for_which_the_host_has_no_room_says_so_and_is_run_again() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    for at in 1..5 {
        let full = Arc::new(Faulty::new(disk.clone()));
        full.plan(Struck::Write, When::FromNth(at), Effect::Error(libc::ENOSPC));
        let refused = NfHybrid::open(full, Some(ssd.clone()), manual());
        let Some(why) = refused.err().map(|why| why.to_string()) else { break };
        assert!(why.contains("has no room") && why.contains("nothing is lost"), "{at}: {why}");
    }
    crashed.check_mount(disk, ssd, "afterwards");
}

#[test]
fn a_disk_half_by_itself_that_cannot_be_mounted_is_not_told_of_a_log_of_its_ssd() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    for what in ["without an SSD half", "with its SSD left out"] {
        let drops = what == "with its SSD left out";
        let Some((disk, ssd)) = in_order() else { return };
        let fs = open(&disk, drops.then_some(&ssd), manual()).unwrap();
        let ino = create(&fs, "late", &[3; 50_000]);
        fsync(&fs, ino);
        if drops {
            fs.commit().unwrap();
        }
        fs.abandon();
        let options = Options { without_ssd: drops, ..manual() };
        for (number, words) in [(libc::ENOSPC, "make room"), (libc::EIO, "ddrescue")] {
            for at in 1..6 {
                let copy = Arc::new(Ram::from_bytes("disk", disk.image()));
                let faulty = Arc::new(Faulty::new(copy.clone()));
                faulty.plan(Struck::Write, When::FromNth(at), Effect::Error(number));
                let refused = NfHybrid::open(faulty, None, options);
                let Some(why) = refused.err().map(|why| why.to_string()) else {
                    assert!(at > 1, "{what}: nothing was written");
                    break;
                };
                assert!(why.contains(words) && why.contains("mount it again"), "{what}, {at}: {why}");
                assert_eq!(why.contains("the SSD half was not written to"), drops, "{what}, {at}: {why}");
                for no in ["both halves", "log"] {
                    assert!(!why.contains(no), "{what}, {at}: {no} in {why}");
                }
                let fs = open(&copy, None, options).unwrap_or_else(|why| panic!("{what}, {at}: {why}"));
                assert!(contents(&fs, "late") == [3; 50_000], "{what}, {at}");
                fs.abandon();
            }
        }
    }
}

#[test]
fn a_mount_that_drops_the_log_and_fails_does_not_say_that_the_log_holds_anything() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    let Some(crashed) = crashed() else { return };
    let options = Options { recover: Recover::Disk, ..manual() };
    for (number, words) in [(libc::ENOSPC, "make room"), (libc::EIO, "ddrescue")] {
        let mut refusals = 0;
        for at in 1..20 {
            let (disk, ssd) = crashed.halves();
            let faulty = Arc::new(Faulty::new(disk.clone()));
            faulty.plan(Struck::Write, When::FromNth(at), Effect::Error(number));
            let refused = NfHybrid::open(faulty, Some(ssd.clone()), options);
            let Some(why) = refused.err().map(|why| why.to_string()) else { break };
            assert!(why.contains(words) && why.contains("mount it again"), "{at}: {why}");
            assert!(why.contains("dropped, as asked") && why.contains("recover=disk"), "{at}: {why}");
            for no in ["both halves", "nothing is lost", "log holds"] {
                assert!(!why.contains(no), "{at}: {no} in {why}");
            }
            NfHybrid::open(disk, Some(ssd), options).unwrap().abandon();
            refusals += 1;
        }
        assert!(refusals > 1, "of a mount that writes");
    }
    // An SSD half that the disk went on without: nothing on it counts.
    let (disk, ssd) = crashed.halves();
    NfHybrid::open(disk.clone(), None, Options { without_ssd: true, ..manual() })
        .unwrap()
        .shutdown()
        .unwrap();
    let faulty = Arc::new(Faulty::new(disk));
    faulty.plan(Struck::Write, When::FromNth(1), Effect::Error(libc::ENOSPC));
    let why = NfHybrid::open(faulty, Some(ssd), manual()).err().unwrap().to_string();
    assert!(why.contains("the disk half's own journal") && !why.contains("log holds"), "{why}");
}

#[test]
fn a_disk_half_that_cannot_be_read_is_told_with_a_remedy() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let mut refusals = 0;
    for at in 1..30 {
        let faulty = Arc::new(Faulty::new(disk.clone()));
        faulty.plan(Struck::Read, When::FromNth(at), Effect::Error(libc::EIO));
        for ssd in [Some(ssd.clone()), None] {
            let options = Options { without_ssd: ssd.is_none(), ..manual() };
            let ssd = ssd.map(|ssd| -> Arc<dyn BlockDevice> { ssd });
            let refused = NfHybrid::prepare(faulty.clone(), ssd, options).err();
            let Some(why) = refused.map(|why| why.to_string()) else { continue };
            assert!(why.contains("ddrescue") && why.contains("disk half"), "{at}: {why}");
            refusals += 1;
        }
    }
    assert!(refusals > 4, "of a mount that reads");
}

#[test]
fn what_a_mount_drops_is_no_note_before_it_has() {
    let Some(crashed) = crashed() else { return };
    let (disk, _) = crashed.halves();
    let prepared = NfHybrid::prepare(disk, None, Options { without_ssd: true, ..manual() }).unwrap();
    assert_eq!(prepared.notes(), Vec::<String>::new());
    let fs = prepared.begin().unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("dropped is")), "{:?}", fs.notes());
    fs.abandon();
}
