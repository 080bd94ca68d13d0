//! Files whose cut takes several transactions, and what comes to them meanwhile: other clients, power cuts, errors.

use super::promises::{of_block_maps, write};
use super::*;
use bimetal_base::time::{Stamp, Time};
use bimetal_media::faulty::{Effect, Faulty, Kind, When};
use bimetal_media::{Completion, Request, filter::Filter};
use bimetal_vfs::SetTime;

const KEPT: u64 = 4096;
const OLD: u64 = 18 << 20;

/// Halves with a file over many small groups, larger than the journal takes in one step.
fn pieces() -> Option<(Arc<Ram>, Arc<Ram>)> {
    of_size(OLD, 26, &["-g", "512", "-J", "size=1"])
}

fn of_size(size: u64, disk_mib: u64, options: &[&str]) -> Option<(Arc<Ram>, Arc<Ram>)> {
    let options = [&["-b", "1024", "-N", "200", "-m", "0", "-O", "^64bit"], options].concat();
    let (disk, ssd) = halves_with(disk_mib, 16, &ssd::Config::default(), &options)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", b"");
    for at in (0..size).step_by(1 << 17) {
        write(&fs, ino, at, &[0xAA; 124 << 10]).unwrap();
        fs.commit().unwrap();
    }
    fs.shutdown().unwrap();
    Some((disk, ssd))
}

/// The first step of a cut, as `setattr` makes it.
fn begin_cut(fs: &NfHybrid, ino: Ino) {
    let mut core = fs.shared.core.lock();
    let now = core.wall();
    assert!(!fs.shared.set_size(&mut core, ino, KEPT, now).unwrap(), "one step: nothing is shown");
}

/// What was cut reads as zeros up to the end of what was, where something new may be.
fn check(found: &[u8], what: &str) {
    assert_eq!(found.len() as u64, OLD + 3, "{what}");
    let (kept, rest) = found.split_at(KEPT as usize);
    assert!(kept.iter().all(|byte| *byte == 0xAA), "{what}");
    let old = rest[..(OLD - KEPT) as usize].iter().position(|byte| *byte != 0);
    assert_eq!(old, None, "{what}");
}

fn resized(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// It is written, made longer or given space between two steps: nothing comes back, after a power cut either.
#[test]
fn what_comes_to_a_file_that_is_being_cut_finds_nothing_of_what_was_cut() {
    let Some((disk, ssd)) = pieces() else { return };
    for what in ["write", "longer", "space"] {
        let [disk, ssd] = again([&disk, &ssd]);
        let fs = open(&disk, Some(&ssd), Options::default()).unwrap();
        let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
        begin_cut(&fs, ino);
        match what {
            "write" => assert_eq!(write(&fs, ino, OLD, b"new").unwrap(), 3),
            "longer" => _ = fs.setattr(ino, &resized(OLD + 3)).unwrap(),
            _ => fs.fallocate(ino, KEPT, OLD + 3 - KEPT, Fallocate::Reserve { keep_size: false }).unwrap(),
        }
        check(&contents(&fs, "f"), what);
        fs.fsync(ino, false).unwrap().get().unwrap();
        let [cut_disk, cut_ssd] = again([&disk, &ssd]);
        let after = open(&cut_disk, Some(&cut_ssd), manual()).unwrap();
        check(&contents(&after, "f"), &format!("{what}, after a power cut"));
        after.shutdown().unwrap();
        full::check_disk(&cut_disk);
        fs.shutdown().unwrap();
    }
}

/// A disk that takes its time for a flush.
struct Slow(Arc<Ram>);

impl Filter for Slow {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn pass(&self, at: Time, request: Request) -> Result<(Time, Request), Completion> {
        if matches!(request, Request::Flush) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok((at, request))
    }
}

/// Another client sees the new size, writes, and syncs, while the rest of the cut waits for the disk: that stays.
#[test]
fn what_was_synced_after_a_cut_was_seen_outlives_its_end() {
    // Here the journal takes the credits of a cut beside all else.
    let Some((disk, ssd)) = of_size(48 << 20, 72, &["-g", "256", "-J", "size=4"]) else { return };
    let fs = Arc::new(NfHybrid::open(Arc::new(Slow(disk.clone())), Some(ssd), Options::default()).unwrap());
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    let cutting = fs.clone();
    let cut = std::thread::spawn(move || cutting.setattr(ino, &resized(KEPT)).map(drop));
    while fs.getattr(ino).unwrap().size != KEPT && !cut.is_finished() {
        std::thread::yield_now();
    }
    let other = fs.clone();
    let writes = std::thread::spawn(move || {
        write(&other, ino, OLD, b"new").unwrap();
        other.fsync(ino, false).unwrap().get().unwrap();
    });
    writes.join().unwrap();
    cut.join().unwrap().unwrap();
    check(&contents(&fs, "f"), "once the cut returned");
    fs.shutdown().unwrap();
    full::check_disk(&disk);
}

/// Mounts again and again, each time with another read of the disk that fails while it does, until none is left to; a mount that is
/// refused for it is tried once more without. How many of both there were.
fn mounted_with_faults(halves: [&Arc<Ram>; 2], mut then: impl FnMut(NfHybrid, u64)) -> (u64, u64) {
    let (mut mounted, mut refused) = (0, 0);
    loop {
        let [disk, ssd] = again(halves);
        let faulty = Arc::new(Faulty::new(disk.clone()));
        faulty.plan(Kind::Read, When::Nth(mounted + refused + 1), Effect::Error(5));
        let opened = NfHybrid::open(faulty.clone(), Some(ssd.clone()), Options::default());
        faulty.forget();
        let fs = match opened {
            Ok(_) if faulty.struck() == 0 => return (mounted, refused),
            Ok(fs) => {
                mounted += 1;
                fs
            }
            Err(_) => {
                refused += 1;
                open(&disk, Some(&ssd), Options::default()).unwrap()
            }
        };
        then(fs, mounted + refused);
        full::check_disk(&disk);
    }
}

/// The power goes between two steps, and a read of the disk fails in the mount after it, which goes on: the cut is not forgotten.
#[test]
fn a_cut_that_an_error_at_mount_left_undone_is_done_before_anything_comes_to_the_file() {
    let Some((disk, ssd)) = pieces() else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    begin_cut(&fs, ino);
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let [disk, ssd] = again([&disk, &ssd]);
    fs.abandon();
    let mut undone = 0;
    let (mounted, refused) = mounted_with_faults([&disk, &ssd], |fs, read| {
        undone += u32::from(fs.shared.core.lock().ext4.is_being_cut(ino).unwrap());
        write(&fs, ino, OLD, b"new").unwrap();
        fs.fsync(ino, false).unwrap().get().unwrap();
        check(&contents(&fs, "f"), &format!("read {read}"));
        fs.shutdown().unwrap();
    });
    assert!(
        undone > 0 && refused > 0,
        "{undone} of {mounted} left undone, {refused} refused: nothing is shown"
    );
}

/// The same with data in the SSD's log that came after the cut: the replay finishes the cut first.
#[test]
fn a_cut_that_an_error_at_mount_left_undone_is_done_before_the_log_is_replayed() {
    let Some((disk, ssd)) = pieces() else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    begin_cut(&fs, ino);
    fs.commit().unwrap();
    let half_cut = Arc::new(Ram::from_bytes("disk", disk.image()));
    write(&fs, ino, OLD, b"new").unwrap();
    fs.fsync(ino, false).unwrap().get().unwrap();
    check(&contents(&fs, "f"), "run");
    let ssd = Arc::new(Ram::from_bytes("ssd", ssd.image()));
    fs.abandon();
    let (mounted, refused) = mounted_with_faults([&half_cut, &ssd], |fs, read| {
        check(&contents(&fs, "f"), &format!("read {read}"));
        fs.shutdown().unwrap();
    });
    assert!(mounted > 0 && refused > 0, "{mounted} mounted, {refused} refused: nothing is shown");
}

/// Who waits for a cut says nothing of the file's times.
#[test]
fn a_file_whose_cut_is_finished_by_another_keeps_its_times() {
    let Some((disk, ssd)) = pieces() else { return };
    let fs = open(&disk, Some(&ssd), Options::default()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    begin_cut(&fs, ino);
    let past = Stamp { sec: 1_000_000_000, nsec: 0 };
    let before = fs.setattr(ino, &SetAttr { mtime: Some(SetTime::To(past)), ..SetAttr::default() }).unwrap();
    fs.fallocate(ino, 0, 1 << 60, Fallocate::Reserve { keep_size: true }).unwrap_err();
    let after = fs.getattr(ino).unwrap();
    assert!(!fs.shared.core.lock().ext4.is_being_cut(ino).unwrap(), "nothing is shown");
    assert_eq!((after.ctime, after.mtime), (before.ctime, before.mtime));
    fs.shutdown().unwrap();
}

/// Data far behind what its map reaches, and an end that comes back before it has its place.
#[test]
fn a_file_with_a_block_map_never_has_a_size_that_it_does_not_reach() {
    for synced in [false, true] {
        let Some((disk, ssd)) = of_block_maps(2) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let ino = fs.lookup(ROOT_INO, b"m0").unwrap().ino;
        let most: u64 = (12 + 1024 + 1024 * 1024 + 1024 * 1024 * 1024) * 4096;
        write(&fs, ino, most + 100 * 4096, b"far").unwrap();
        if synced {
            fs.fsync(ino, false).unwrap().get().unwrap();
        }
        fs.setattr(ino, &resized(most + 50 * 4096)).unwrap();
        fs.fsync(ino, false).unwrap().get().unwrap();
        let [cut_disk, cut_ssd] = again([&disk, &ssd]);
        let after = open(&cut_disk, Some(&cut_ssd), manual()).unwrap();
        assert_eq!(after.getattr(ino).unwrap().size, most + 50 * 4096);
        after.shutdown().unwrap();
        full::check_disk(&cut_disk);
        fs.shutdown().unwrap();
        full::check_disk(&disk);
    }
}
