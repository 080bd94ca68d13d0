//! Recovery under errors and cuts: whatever happens while both halves are brought together, both can be brought
//! together afterwards, and everything that was fsynced is there.

use super::tests::{contents, create, halves, manual, open};
use super::*;
use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
use bimetal_media::ram::Ram;
use bimetal_media::recorded::Recorder;
use bimetal_media::states::{CrashState, Survival, crash_states};

/// Both halves after a crash, and what was fsynced.
pub(super) struct Crashed {
    disk: Vec<u8>,
    ssd: Vec<u8>,
    files: Vec<(String, Vec<u8>)>,
}

impl Crashed {
    pub(super) fn halves(&self) -> (Arc<Ram>, Arc<Ram>) {
        let ram = |name, bytes: &Vec<u8>| Arc::new(Ram::from_bytes(name, bytes.clone()));
        (ram("disk", &self.disk), ram("ssd", &self.ssd))
    }

    fn check(&self, fs: &NfHybrid, what: &str) {
        for (name, bytes) in &self.files {
            let found =
                fs.lookup(ROOT_INO, name.as_bytes()).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
            assert_eq!(found.size, bytes.len() as u64, "{what}: {name}");
            assert!(contents(fs, name) == *bytes, "{what}: {name} is not what was fsynced");
        }
    }

    /// Both halves are mounted as they are and must have everything, twice.
    pub(super) fn check_mount(&self, disk: Arc<dyn BlockDevice>, ssd: Arc<dyn BlockDevice>, what: &str) {
        for round in 0..2 {
            let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), manual())
                .unwrap_or_else(|error| panic!("{what}, mount {round}: {error}"));
            self.check(&fs, &format!("{what}, mount {round}"));
            fs.shutdown().unwrap_or_else(|error| panic!("{what}, mount {round}: {error}"));
        }
    }
}

pub(super) fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

fn unlink(fs: &NfHybrid, name: &str, ino: Ino) {
    fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
    fs.forget(ino, 1);
}

/// Files that were committed, overwritten, removed, replaced, cut; new ones with their inode numbers, large enough for a
/// section, and small ones in the log itself.
pub(super) fn crashed() -> Option<Crashed> {
    let (disk, ssd) = halves(16, 8)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let name = |kind: &str, number: u8| format!("{kind}{number}");
    let old: Vec<Ino> = (0..6).map(|n| create(&fs, &name("old", n), &vec![n + 1; 90_000])).collect();
    let kept = create(&fs, "kept", &[9; 50_000]);
    create(&fs, "replaced", &[8; 20_000]);
    fs.commit().unwrap();
    let mut files = vec![("kept".to_string(), vec![9; 50_000])];
    files[0].1[4096..12_288].fill(10);
    fs.write(kept, 4096, &[10; 8192], false).unwrap().get().unwrap();
    fsync(&fs, kept);
    for (n, ino) in (0..).zip(old) {
        fsync(&fs, ino);
        unlink(&fs, &name("old", n), ino);
        let bytes = vec![100 + n; if n % 2 == 0 { 80_000 } else { 3_000 }];
        let new = create(&fs, &name("new", n), &bytes);
        fsync(&fs, new);
        files.push((name("new", n), bytes));
    }
    let over = create(&fs, "over", &[77; 30_000]);
    fs.rename(ROOT_INO, b"over", ROOT_INO, b"replaced", Rename::Replace).unwrap();
    fsync(&fs, over);
    files.push(("replaced".into(), vec![77; 30_000]));
    let cut = create(&fs, "cut", &[5; 100_000]);
    fsync(&fs, cut);
    fs.setattr(cut, &SetAttr { size: Some(10_000), ..SetAttr::default() }).unwrap();
    fsync(&fs, cut);
    files.push(("cut".into(), vec![5; 10_000]));
    fs.abandon();
    Some(Crashed { disk: disk.image(), ssd: ssd.image(), files })
}

/// Mounts with faults planned on one half; the next mount, with healthy devices, must find everything.
fn mount_with(crashed: &Crashed, on_ssd: bool, plan: impl Fn(&Faulty), what: &str) -> bool {
    let (disk, ssd) = crashed.halves();
    let faulty = Arc::new(Faulty::new(if on_ssd { ssd.clone() } else { disk.clone() }));
    plan(&faulty);
    let devices: (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) =
        if on_ssd { (disk.clone(), faulty.clone()) } else { (faulty.clone(), ssd.clone()) };
    let mounted = NfHybrid::open(devices.0, Some(devices.1), manual());
    let struck = faulty.struck() > 0;
    match mounted {
        Ok(fs) => {
            if !on_ssd {
                // What was not read by now comes from the disk, and that is to work again.
                faulty.forget();
            }
            crashed.check(&fs, what);
            fs.abandon();
        }
        Err(error) => {
            let text = error.to_string();
            let remedy =
                ["try again", "mount both halves again", "needs"].iter().any(|word| text.contains(word));
            assert!(struck && (remedy || !on_ssd), "{what}: {text}");
        }
    }
    faulty.forget();
    crashed.check_mount(disk, ssd, &format!("{what}, then healthy"));
    struck
}

const KINDS: [Struck; 3] = [Struck::Read, Struck::Write, Struck::Flush];

#[test]
fn any_error_of_either_half_while_it_is_mounted_after_a_crash_costs_nothing() {
    let Some(crashed) = crashed() else { return };
    let mut struck = [0; 2];
    for (on_ssd, kind) in [true, false].into_iter().flat_map(|half| KINDS.map(|kind| (half, kind))) {
        for number in 1.. {
            let what = format!("{kind:?} {number} of the {}", if on_ssd { "SSD" } else { "disk" });
            let error = Effect::Error(libc::EIO);
            let once = |faulty: &Faulty| faulty.plan(kind, When::Nth(number), error);
            if !mount_with(&crashed, on_ssd, once, &what) {
                break;
            }
            struck[usize::from(on_ssd)] += 1;
        }
    }
    println!("errors: {} of the disk, {} of the SSD", struck[0], struck[1]);
    assert!(struck[0] > 20 && struck[1] > 20, "{struck:?}");
}

#[test]
fn a_half_that_fails_for_good_at_any_request_of_a_mount_costs_nothing() {
    let Some(crashed) = crashed() else { return };
    for (on_ssd, kind) in [true, false].into_iter().flat_map(|half| KINDS.map(|kind| (half, kind))) {
        for number in (1..).step_by(3) {
            let what =
                format!("{kind:?} {number} and all after of the {}", if on_ssd { "SSD" } else { "disk" });
            let on = |faulty: &Faulty| {
                (number..number + 300)
                    .for_each(|n| faulty.plan(kind, When::Nth(n), Effect::Error(libc::EIO)));
            };
            if !mount_with(&crashed, on_ssd, on, &what) {
                break;
            }
        }
    }
}

#[test]
fn an_ssd_that_only_reads_after_a_crash_gives_all_it_has_to_the_disk() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let before = ssd.image();
    let faulty = Arc::new(Faulty::new(ssd.clone()));
    faulty.plan(Struck::Write, When::Always, Effect::Error(libc::EIO));
    faulty.plan(Struck::Flush, When::Always, Effect::Error(libc::EIO));
    let fs = NfHybrid::open(disk.clone(), Some(faulty), manual()).unwrap();
    assert!(fs.status().ssd_lost.is_some_and(|why| why.contains("SSD")));
    crashed.check(&fs, "with it");
    fs.shutdown().unwrap();
    assert!(ssd.image() == before);
    let fs = open(&disk, None, manual()).unwrap();
    crashed.check(&fs, "the disk alone");
    fs.shutdown().unwrap();
    // It comes back, and nothing on it is taken for current.
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
    crashed.check(&fs, "joined again");
    fs.shutdown().unwrap();
}

#[test]
fn a_log_that_cannot_be_read_is_not_an_empty_one() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let faulty = Arc::new(Faulty::new(ssd.clone()));
    faulty.plan(Struck::Read, When::Touching(8192..12_288), Effect::Error(libc::EIO));
    let mount = |options| NfHybrid::open(disk.clone(), Some(faulty.clone()), options);
    let error = mount(manual()).err().unwrap().to_string();
    for word in ["ssd", "log", "try again", "--without-ssd", "recover=disk", "5s"] {
        assert!(error.contains(word), "'{word}' is missing in: {error}");
    }
    assert!(disk.image() == crashed.disk && ssd.image() == crashed.ssd, "a refused mount changed something");
    // The user's word drops the log, with the block as it is.
    let fs = mount(Options { recover: Recover::Disk, ..manual() }).unwrap();
    assert_eq!(fs.recovered(), 0);
    let ino = create(&fs, "after", &[3; 5000]);
    fsync(&fs, ino);
    fs.abandon();
    faulty.forget();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "after"), [3; 5000]);
    assert!(matches!(fs.lookup(ROOT_INO, b"new0"), Err(Error::NotFound)));
    fs.shutdown().unwrap();
}

#[test]
fn what_only_a_damaged_block_of_the_ssd_holds_is_never_dropped_silently() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    // All of the sections' data: fsynced contents that lie there, and nowhere else.
    let faulty = Arc::new(Faulty::new(ssd.clone()));
    faulty.plan(Struck::Read, When::Touching(5 << 20..(8 << 20) - 4096), Effect::Error(libc::EIO));
    let mount = |options| NfHybrid::open(disk.clone(), Some(faulty.clone()), options);
    let error = mount(manual()).err().unwrap().to_string();
    assert!(error.contains("only the SSD has") && error.contains("recover=whole"), "{error}");
    let fs = mount(Options { recover: Recover::Whole, ..manual() }).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("is lost")), "{:?}", fs.notes());
    // What lay in the log itself is there.
    assert!(contents(&fs, "new1") == vec![101; 3000]);
    fs.abandon();
}

#[test]
fn the_disk_half_alone_is_not_mounted_while_its_ssds_log_is_open_without_the_users_word() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let uuid = ssd::Ssd::open(ssd.as_ref(), ssd::DiskSide::default()).unwrap().ssd.uuid();
    let error = open(&disk, None, manual()).err().unwrap().to_string();
    for word in [&uuid::Uuid::from_bytes(uuid).to_string(), "--without-ssd", "5s before the crash"] {
        assert!(error.contains(word), "'{word}' is missing in: {error}");
    }
    assert!(disk.image() == crashed.disk, "a refused mount changed the disk");
    crashed.check_mount(disk, ssd, "after the refusal");

    let (disk, ssd) = crashed.halves();
    let word = Options { without_ssd: true, ..manual() };
    let error = open(&disk, Some(&ssd), word).err().unwrap();
    assert!(error.to_string().contains("leave --ssd out"), "{error}");
    let fs = open(&disk, None, word).unwrap();
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
    assert!(matches!(fs.lookup(ROOT_INO, b"new0"), Err(Error::NotFound)));
    fs.shutdown().unwrap();
}

#[test]
fn a_refused_mount_after_a_crash_changes_no_byte_of_either_half() {
    let (Some(crashed), Some((_, foreign))) = (crashed(), halves(16, 8)) else { return };
    let (_, ssd) = crashed.halves();
    let cut = Arc::new(Ram::from_bytes("cut", crashed.ssd[..5 << 20].to_vec()));
    let mut broken = crashed.ssd.clone();
    broken[..4096].fill(0);
    let end = broken.len() - 4096;
    broken[end..].fill(0);
    let broken = Arc::new(Ram::from_bytes("broken", broken));
    for (what, other) in [("foreign", foreign), ("cut", cut), ("broken", broken)] {
        let (disk, _) = crashed.halves();
        let before = other.image();
        let error =
            open(&disk, Some(&other), manual()).err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(disk.image() == crashed.disk, "{what}: the disk was changed: {error}");
        assert!(other.image() == before, "{what}: the SSD was changed: {error}");
        crashed.check_mount(disk, Arc::new(Ram::from_bytes("ssd", ssd.image())), what);
    }
    // A disk that is another than the SSD saw: an older copy of it, while the SSD's log is open.
    let (disk, ssd) = crashed.halves();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "later", &[1; 5000]);
    fsync(&fs, ino);
    fs.commit().unwrap();
    fs.abandon();
    let (old, before) = (crashed.halves().0, ssd.image());
    let error = open(&old, Some(&ssd), manual()).err().unwrap().to_string();
    assert!(error.contains("older") && error.contains("recover=disk"), "{error}");
    assert!(old.image() == crashed.disk && ssd.image() == before);
}

/// Two copies of one volume do as much in the same seconds: the clock of a simulation that is begun twice. What was
/// drawn there differs by its seed.
#[test]
fn halves_of_two_copies_that_went_on_are_told_apart() {
    use bimetal_base::runtime::Sim;
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let went_on = |seed: u64, ends_well: bool| {
        let (disk, ssd) = (Ram::from_bytes("disk", disk.image()), Ram::from_bytes("ssd", ssd.image()));
        let (disk, ssd) = (Arc::new(disk), Arc::new(ssd));
        let over: (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) = (disk.clone(), ssd.clone());
        let sim = Sim::new(seed);
        let clock = Arc::new(sim.clone());
        sim.run(move || {
            let fs = NfHybrid::open_on(clock, over.0, Some(over.1), manual()).unwrap();
            for number in 0..5 {
                let ino = create(&fs, &format!("file{number}"), &vec![seed as u8; 9000]);
                fsync(&fs, ino);
                if number == 2 {
                    fs.commit().unwrap();
                }
            }
            if ends_well { fs.shutdown().unwrap() } else { fs.abandon() }
        });
        (disk, ssd)
    };
    let is_from =
        |fs: &NfHybrid, seed: u8| (0..3).all(|n| contents(fs, &format!("file{n}")) == vec![seed; 9000]);
    for (first_ends_well, second_ends_well) in [(false, false), (false, true), (true, false), (true, true)] {
        // Only what the disk has everything of goes on with an SSD that has nothing for anybody.
        let is_taken = first_ends_well && second_ends_well;
        let what = format!("the disk's ended well: {first_ends_well}, the SSD's: {second_ends_well}");
        let ((disk, own), (_, ssd)) = (went_on(1, first_ends_well), went_on(2, second_ends_well));
        let before = (disk.image(), ssd.image());
        match open(&disk, Some(&ssd), manual()) {
            Err(error) => {
                assert!(!is_taken, "{what}: {error}");
                assert!(error.to_string().contains("of a copy of the volume"), "{what}: {error}");
                assert!((disk.image(), ssd.image()) == before, "{what}: a refused mount changed something");
                // The right one still counts.
                let fs = open(&disk, Some(&own), manual()).unwrap();
                assert!(is_from(&fs, 1), "{what}");
                assert!(contents(&fs, "file4") == vec![1; 9000], "{what}");
                fs.shutdown().unwrap();
            }
            Ok(fs) => {
                assert!(is_taken, "{what}");
                assert!(fs.notes().iter().any(|note| note.contains("stale")), "{what}: {:?}", fs.notes());
                assert!(is_from(&fs, 1), "{what}");
                fs.shutdown().unwrap();
            }
        }
    }
}

/// A copy of each half.
fn copy_of((disk, ssd): &(Arc<Ram>, Arc<Ram>)) -> (Arc<Ram>, Arc<Ram>) {
    (Arc::new(Ram::from_bytes("disk", disk.image())), Arc::new(Ram::from_bytes("ssd", ssd.image())))
}

/// Mounts, makes and fsyncs files of these names and contents, and ends.
fn used(both: (&Arc<Ram>, Option<&Arc<Ram>>), names: &[&str], byte: u8, ends_well: bool) {
    let fs = open(both.0, both.1, manual()).unwrap();
    for name in names {
        let ino = match fs.lookup(ROOT_INO, name.as_bytes()) {
            Ok(found) => {
                fs.write(found.ino, 0, &[byte; 9000], false).unwrap().get().unwrap();
                found.ino
            }
            Err(_) => create(&fs, name, &[byte; 9000]),
        };
        fsync(&fs, ino);
    }
    if ends_well { fs.shutdown().unwrap() } else { fs.abandon() }
}

#[test]
fn a_copy_of_a_disk_used_alone_does_not_meet_the_ssd_that_the_other_copy_took_back() {
    let Some(both) = halves(16, 8) else { return };
    used((&both.0, Some(&both.1)), &["x", "y"], 1, true);
    used((&both.0, None), &["alone"], 2, true);
    let old = copy_of(&both).0;
    used((&both.0, Some(&both.1)), &["x", "y", "new"], 3, true);
    for ends_well in [true, false] {
        let old = copy_of(&(old.clone(), both.1.clone())).0;
        let many: Vec<String> = (0..40).map(|number| format!("d{number}")).collect();
        used((&old, None), &many.iter().map(String::as_str).chain(["x"]).collect::<Vec<_>>(), 4, ends_well);
        let ssd = copy_of(&both).1;
        let fs = open(&old, Some(&ssd), manual()).unwrap();
        assert!(fs.notes().iter().any(|note| note.contains("stale")), "{:?}", fs.notes());
        let first = |name| contents(&fs, name)[0];
        assert_eq!((first("x"), first("y")), (4, 1), "{ends_well}");
        assert!(matches!(fs.lookup(ROOT_INO, b"new"), Err(Error::NotFound)));
        fs.shutdown().unwrap();
    }
}

#[test]
fn the_open_log_of_a_copy_is_not_dropped_by_a_disk_that_gave_up_another() {
    let Some(a) = halves(16, 8) else { return };
    used((&a.0, Some(&a.1)), &["x"], 1, true);
    let b = copy_of(&a);
    used((&b.0, Some(&b.1)), &["precious1", "precious2"], 2, false);
    used((&a.0, None), &["z"], 3, true);
    let refused = |disk: &Arc<Ram>, what: &str| {
        let (disk, ssd) = copy_of(&(disk.clone(), b.1.clone()));
        let before = (disk.image(), ssd.image());
        let error = open(&disk, Some(&ssd), manual()).err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(error.to_string().contains("bimetal rescue"), "{what}: {error}");
        assert!((disk.image(), ssd.image()) == before, "{what}: a refused mount changed something");
    };
    refused(&a.0, "a disk used alone");
    used((&a.0, Some(&a.1)), &["w"], 4, true);
    refused(&a.0, "one that has its SSD again");
    let fs = open(&b.0, Some(&b.1), manual()).unwrap();
    assert!(["precious1", "precious2"].iter().all(|name| contents(&fs, name) == [2; 9000]));
    fs.shutdown().unwrap();
}

/// Records a mount of these halves up to its end (`true`) or the end of its recovery; the states a cut can leave.
fn states_of_mount(disk: Arc<dyn BlockDevice>, ssd: Arc<dyn BlockDevice>, seed: u64) -> Vec<CrashState> {
    use bimetal_media::overlay::Overlay;
    let recorder = Recorder::new();
    let over = |base: &Arc<dyn BlockDevice>| Arc::new(Overlay::new(base.clone()));
    let devices = [recorder.wrap(over(&disk)), recorder.wrap(over(&ssd))].map(Arc::new);
    let [first, second] = devices;
    NfHybrid::open(first, Some(second), manual()).unwrap().abandon();
    let log = recorder.log();
    crash_states(&log, &[disk, ssd], &Survival::EVERY, seed).collect()
}

#[test]
fn a_cut_at_any_write_of_recovery_and_of_the_recovery_after_it_costs_nothing() {
    let Some(crashed) = crashed() else { return };
    let (disk, ssd) = crashed.halves();
    let (mut first, mut second) = (0, 0);
    for state in states_of_mount(disk, ssd, 1) {
        let what = format!("cut {} of recovery, {:?}", state.cut, state.survival);
        let [disk, ssd] = [0, 1].map(|half: usize| state.devices[half].clone() as Arc<dyn BlockDevice>);
        if state.cut % 5 == 0 {
            let again = states_of_mount(disk.clone(), ssd.clone(), state.cut as u64);
            for deeper in again.into_iter().filter(|deeper| (deeper.cut + state.cut) % 7 == 0) {
                let what = format!("{what}, then cut {}, {:?}", deeper.cut, deeper.survival);
                crashed.check_mount(deeper.devices[0].clone(), deeper.devices[1].clone(), &what);
                second += 1;
            }
        }
        crashed.check_mount(disk, ssd, &what);
        first += 1;
    }
    println!("{first} states of a recovery, {second} of the recovery after it");
    assert!(first > 100 && second > 50, "{first}, {second}");
}

#[test]
fn a_file_renamed_over_another_where_the_ssd_is_bypassed_is_whole_after_a_crash() {
    for (bytes, by_log) in [(9_000, true), (700_000, true), (3_400_000, false)] {
        let Some((disk, ssd)) = halves(32, 8) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        fs.map(ROOT_INO, "bypass").unwrap();
        create(&fs, "config", &[1; 5000]);
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
        let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
        fs.commit().unwrap();
        create(&fs, "new", &vec![3; bytes]);
        fs.rename(ROOT_INO, b"new", ROOT_INO, b"config", Rename::Replace).unwrap();
        // A directory's fsync goes to the log, and makes the names durable.
        fsync(&fs, dir);
        assert_eq!(fs.status().counters.fsync_ssd, u64::from(by_log), "{bytes} bytes");
        fs.abandon();
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&fs, "config") == vec![3; bytes], "{bytes} bytes");
        fs.shutdown().unwrap();
    }
}

#[test]
fn a_new_file_has_nothing_of_the_one_that_was_open_without_a_name_at_the_crash() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let old = create(&fs, "old", &[1; 60_000]);
    fs.commit().unwrap();
    // It is still in use: its number is not free before the next mount.
    fs.unlink(ROOT_INO, b"old").unwrap();
    fs.commit().unwrap();
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let new = create(&fs, "new", b"");
    assert_eq!(new, old, "the number was not used again");
    fs.write(new, 50_000, &[2; 10], false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let found = contents(&fs, "new");
    assert!(found[..50_000].iter().all(|&byte| byte == 0) && found[50_000..] == [2; 10]);
    fs.shutdown().unwrap();
}

#[test]
fn a_disk_that_failed_can_be_read_and_what_is_fsynced_then_is_kept_by_the_ssd() {
    for kind in [Struck::Write, Struck::Flush] {
        let Some((disk, ssd)) = halves(16, 8) else { return };
        let faulty = Arc::new(Faulty::new(disk.clone()));
        let fs = NfHybrid::open(faulty.clone(), Some(ssd.clone()), manual()).unwrap();
        create(&fs, "committed", &[1; 200_000]);
        fs.commit().unwrap();
        let fsynced = create(&fs, "fsynced", &[2; 5000]);
        fsync(&fs, fsynced);
        let dirty = create(&fs, "dirty", &[3; 90_000]);
        faulty.plan(kind, When::Nth(1), Effect::Error(libc::EIO));
        fs.sync().unwrap_err();
        for (name, bytes) in
            [("committed", vec![1; 200_000]), ("fsynced", vec![2; 5000]), ("dirty", vec![3; 90_000])]
        {
            assert!(contents(&fs, name) == bytes, "{name} after a failed {kind:?}");
        }
        let mut names = 0;
        fs.readdir(ROOT_INO, 0, &mut |_| {
            names += 1;
            true
        })
        .unwrap();
        assert_eq!(names, 6);
        assert!(fs.status().failure.is_some_and(|why| why.contains("disk")));
        let refused = [
            fs.write(dirty, 0, &[4; 10], false).map(drop),
            fs.unlink(ROOT_INO, b"dirty"),
            fs.fallocate(dirty, 0, 9, Fallocate::Punch),
            fs.setattr(dirty, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop),
        ];
        for error in refused.map(|done| done.unwrap_err()) {
            let Error::Io { what, source } = &error else { panic!("{error}") };
            assert!(
                what.contains("the disk half failed") && source.raw_os_error() == Some(libc::EROFS),
                "{error}"
            );
        }
        fsync(&fs, dirty);
        fs.shutdown().unwrap_err();
        drop(fs);
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&fs, "fsynced") == [2; 5000] && contents(&fs, "dirty") == vec![3; 90_000]);
        fs.shutdown().unwrap();
    }
}

#[test]
fn an_ssd_is_given_up_for_its_own_errors_only() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let own = || std::io::Error::from_raw_os_error(libc::EIO);
    for error in
        [Error::NoSpace("the SSD's log"), Error::Stale, Error::invalid("x"), Error::io("disk", own())]
    {
        assert!(!fs.shared.ssd_failed(&error) && fs.status().ssd_lost.is_none(), "{error}");
    }
    assert!(fs.shared.ssd_failed(&Error::of_ssd(Error::io("ssd", own()))));
    assert!(fs.status().ssd_lost.is_some());
    fs.shutdown().unwrap();
}

#[test]
fn a_mount_cut_at_any_write_after_a_clean_end_keeps_what_the_ssd_caches() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    create(&fs, "f", &vec![7; 300_000]);
    fs.shutdown().unwrap();
    let mut states = 0;
    for state in states_of_mount(disk, ssd, 3) {
        let what = format!("cut {}, {:?}", state.cut, state.survival);
        let [disk, ssd] = [0, 1].map(|half: usize| state.devices[half].clone() as Arc<dyn BlockDevice>);
        let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap();
        assert!(contents(&fs, "f") == vec![7; 300_000], "{what}");
        assert_eq!(fs.status().counters.read_bytes[2], 0, "{what}: read from the disk; {:?}", fs.notes());
        fs.shutdown().unwrap();
        states += 1;
    }
    assert!(states > 20, "{states} states");
}

#[test]
fn a_check_that_finds_nothing_wrong_leaves_what_the_ssd_caches() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    create(&fs, "f", &vec![7; 300_000]);
    fs.shutdown().unwrap();
    drop(fs);
    let dir = tempfile::tempdir().unwrap();
    let paths = ["disk", "ssd"].map(|name| dir.path().join(name));
    std::fs::write(&paths[0], disk.image()).unwrap();
    std::fs::write(&paths[1], ssd.image()).unwrap();
    // As if the disk half had been mounted by a kernel before it was adopted: a check counts mounts from 0 again.
    let tuned =
        std::process::Command::new("/usr/sbin/tune2fs").args(["-C", "5"]).arg(&paths[0]).output().unwrap();
    assert!(tuned.status.success());
    let device = |path: &std::path::Path| -> Arc<dyn BlockDevice> {
        Arc::new(bimetal_media::file::FileDevice::open(path, true).unwrap())
    };
    let cached = |when: &str| {
        let fs = NfHybrid::open(device(&paths[0]), Some(device(&paths[1])), manual()).unwrap();
        assert!(contents(&fs, "f") == vec![7; 300_000], "{when}");
        let read = fs.status().counters.read_bytes;
        // Reads bring to the SSD what is read twice.
        contents(&fs, "f");
        fs.promote();
        fs.commit().unwrap();
        fs.shutdown().unwrap();
        read[2] == 0
    };
    // Somebody wrote to it meanwhile: nothing is taken for current. From then on the two go together.
    assert!(!cached("tuned") && cached("again"));
    let plan = check::Plan {
        disk: &paths[0],
        ssd: Some(&paths[1]),
        without_ssd: false,
        repair: true,
        lossy: false,
        deep: false,
    };
    let findings = check::check(&plan, &|_| ()).unwrap();
    assert!(findings.problems.is_empty() && !findings.e2fsck.is_empty(), "{findings:?}");
    assert!(cached("checked"), "the check dropped the cache");
    // The checker by itself says no more than that it wrote.
    let checked = std::process::Command::new("/usr/sbin/e2fsck").arg("-fp").arg(&paths[0]).status().unwrap();
    assert!(checked.success());
    assert!(!cached("checked by others"));
}
