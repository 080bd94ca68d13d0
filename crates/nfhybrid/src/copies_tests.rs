//! Copies of halves that went on apart, backups that are put back, copies of the superblock: what is not known to belong
//! together is refused, and nothing is dropped without a word.

use super::pairing::{PAIRING_BYTES, Pairing, Saved};
use super::recovery_tests::fsync;
use super::tests::{contents, create, halves, manual, open};
use super::*;
use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
use bimetal_media::ram::Ram;
use std::process::Command;

fn copy(half: &Ram) -> Arc<Ram> {
    Arc::new(Ram::from_bytes("a copy", half.image()))
}

/// Makes and fsyncs `count` files, then ends well or by a cut.
fn used(disk: &Arc<Ram>, ssd: Option<&Arc<Ram>>, name: &str, count: usize, ends_well: bool) {
    let fs = open(disk, ssd, manual()).unwrap();
    for number in 0..count {
        let ino = create(&fs, &format!("{name}{number}"), &[number as u8 + 1; 9000]);
        fsync(&fs, ino);
    }
    if ends_well { fs.shutdown().unwrap() } else { fs.abandon() }
}

#[test]
fn the_open_log_of_a_copy_is_not_dropped_however_much_the_other_disk_did_alone() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    used(&disk, Some(&ssd), "old", 1, true);
    let (other_disk, other_ssd) = (copy(&disk), copy(&ssd));
    used(&other_disk, Some(&other_ssd), "precious", 2, false);
    for count in [1, 2, 5, 10, 40] {
        let alone = copy(&disk);
        used(&alone, None, "alone", count, true);
        let (before, half) = (alone.image(), copy(&other_ssd));
        let refused =
            open(&alone, Some(&half), manual()).err().unwrap_or_else(|| panic!("{count}: accepted"));
        assert!(refused.to_string().contains("nothing was changed"), "{refused}");
        assert!(alone.image() == before && half.image() == other_ssd.image(), "{count}: a half was changed");
    }
    let fs = open(&other_disk, Some(&other_ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "precious1"), [2; 9000]);
}

/// What a damaged group of a log held nobody knows.
#[test]
fn a_damaged_open_log_is_no_emptier_to_another_disk_than_a_whole_one() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    used(&disk, Some(&ssd), "old", 1, true);
    let (alone, before) = (copy(&disk), ssd.image());
    used(&disk, Some(&ssd), "precious", 6, false);
    used(&alone, None, "alone", 3, true);
    let after = ssd.image();
    let pages = |image: &[u8], page: usize| image[page * 4096..][..4096].to_vec();
    let groups = (0..after.len() / 4096).filter(|page| {
        pages(&after, *page).starts_with(b"BMLG") && pages(&after, *page) != pages(&before, *page)
    });
    let mut looked_at = 0;
    for page in groups {
        let mut image = after.clone();
        image[page * 4096 + 100] ^= 1;
        let (alone, half) = (copy(&alone), Arc::new(Ram::from_bytes("ssd", image)));
        let refused = open(&alone, Some(&half), manual()).err().unwrap_or_else(|| panic!("{page}: accepted"));
        assert!(refused.to_string().contains("nothing was changed"), "{refused}");
        looked_at += 1;
    }
    assert!(looked_at > 3, "{looked_at} groups");
}

#[test]
fn a_disk_half_put_back_as_it_was_before_the_mount_that_crashed_is_refused() {
    for bypassed in [true, false] {
        let Some((disk, ssd)) = halves(16, 8) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
        let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
        if bypassed {
            fs.map(dir, "bypass").unwrap();
        }
        fs.shutdown().unwrap();
        let backup = copy(&disk);
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let ino = fs.create(&Caller::default(), dir, b"precious", &node).unwrap().ino;
        fs.write(ino, 0, &[5; 9000], false).unwrap().get().unwrap();
        if bypassed {
            fsync(&fs, ino)
        } else {
            fs.sync().unwrap()
        }
        fs.abandon();
        let before = (backup.image(), ssd.image());
        let refused = open(&backup, Some(&ssd), manual()).err().expect("it is older than the SSD");
        assert!(refused.to_string().contains("nothing was changed"), "{refused}");
        assert!((backup.image(), ssd.image()) == before, "bypassed {bypassed}: a half was changed");
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let dir = fs.lookup(ROOT_INO, b"dir").unwrap().ino;
        assert_eq!(fs.lookup(dir, b"precious").unwrap().size, 9000, "bypassed {bypassed}");
    }
}

/// An ext4 with copies of its superblock in groups 1, 3, 5 and 7.
fn disk_of_many_groups() -> Option<Ram> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let mut mke2fs = Command::new("/usr/sbin/mke2fs");
    let made = mke2fs.args(["-q", "-t", "ext4", "-F", "-b", "1024"]).arg(file.path()).status();
    let done = made.is_ok_and(|status| status.success());
    if !done {
        println!("skipped: no mke2fs");
    }
    done.then(|| Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()))
}

const OTHER_COPIES: [u64; 3] = [3, 5, 7];

fn place_of(group: u64) -> u64 {
    (1 + group * 8192) * 1024
}

fn marks(disk: &Ram) -> Vec<Option<(Saved, u64)>> {
    let image = disk.image();
    let mark = |group: u64| {
        let at = place_of(group) as usize + 0x3C4;
        let area: &[u8; PAIRING_BYTES] = image[at..][..PAIRING_BYTES].try_into().unwrap();
        Pairing::decode(Some(area)).ok().map(|pairing| (pairing.state, pairing.op))
    };
    OTHER_COPIES.map(mark).to_vec()
}

/// Runs a program of e2fsprogs over an image.
fn changed_by(disk: &Ram, program: &str, arguments: &[&str]) -> Arc<Ram> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), disk.image()).unwrap();
    let done = Command::new(program).args(arguments).arg(file.path()).output().unwrap();
    assert!(done.status.code() < Some(4), "{program}: {done:?}");
    Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()))
}

#[test]
fn copies_of_the_superblock_are_marked_again_after_an_error_amid_that() {
    let Some(disk) = disk_of_many_groups() else { return };
    let (disk, ssd) = (Arc::new(disk), Arc::new(Ram::new("ssd", 8 << 20)));
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    used(&disk, Some(&ssd), "old", 3, true);
    for group in OTHER_COPIES {
        // It writes what the primary says, left in order, over all copies.
        let disk = changed_by(&disk, "/usr/sbin/tune2fs", &["-L", "label"]);
        let ssd = copy(&ssd);
        assert!(marks(&disk).iter().all(|mark| mark.is_some_and(|(state, _)| state == Saved::Clean)));
        let faulty = Arc::new(Faulty::new(disk.clone()));
        let at = place_of(group);
        faulty.plan(Struck::Write, When::Touching(at..at + 1024), Effect::Error(libc::EIO));
        let failed = NfHybrid::open(faulty.clone(), Some(ssd.clone()), manual()).err().expect("an error");
        assert!(failed.to_string().contains("nothing is lost"), "{failed}");
        faulty.forget();
        used(&disk, Some(&ssd), "precious", 3, false);
        assert_eq!(marks(&disk), [Some((Saved::LogOpen, 0)); 3], "an error at the copy in group {group}");
    }
}

#[test]
fn an_ext4_that_never_had_an_ssd_gets_no_mark_of_one() {
    let Some(disk) = disk_of_many_groups() else { return };
    // As the kernel leaves it in a crash.
    let disk = changed_by(&disk, "/usr/sbin/debugfs", &["-w", "-R", "feature needs_recovery"]);
    let fs = open(&disk, None, manual()).unwrap();
    create(&fs, "new", &[1; 100]);
    fs.shutdown().unwrap();
    assert_eq!(marks(&disk), [None; 3]);
    let disk = changed_by(&disk, "/usr/sbin/e2fsck", &["-fy", "-b", "24577", "-B", "1024"]);
    open(&disk, None, manual()).unwrap();
}

#[test]
fn a_word_that_drops_a_log_is_kept_though_nothing_changes() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    used(&disk, Some(&ssd), "old", 1, true);
    used(&disk, Some(&ssd), "dropped", 1, false);
    // The journal is clean, so nothing else has the mount write.
    let disk = changed_by(&disk, "/usr/sbin/e2fsck", &["-fp"]);
    assert!(open(&disk, None, manual()).is_err(), "its log is open");
    open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap().shutdown().unwrap();
    open(&disk, None, manual()).unwrap().shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(fs.lookup(ROOT_INO, b"dropped0").is_err(), "what was dropped for ever is back");
}

/// An SSD that is stale, is to be used again and cannot be written is stale again, whichever of its writes fails first.
#[test]
fn a_stale_ssd_that_cannot_be_told_is_taken_when_it_can() {
    for nth in 1..40 {
        let Some((disk, ssd)) = halves(16, 8) else { return };
        used(&disk, Some(&ssd), "old", 2, true);
        used(&disk, Some(&ssd), "logged", 2, false);
        open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap().shutdown().unwrap();
        let faulty = Arc::new(Faulty::new(ssd.clone()));
        faulty.plan(Struck::Write, When::FromNth(nth), Effect::Error(libc::EIO));
        let fs = NfHybrid::open(disk.clone(), Some(faulty.clone()), manual()).unwrap();
        let ino = create(&fs, "new", &[7; 9000]);
        fsync(&fs, ino);
        fs.abandon();
        let struck = faulty.struck() > 0;
        let fs = open(&disk, Some(&ssd), manual()).unwrap_or_else(|why| panic!("write {nth}: {why}"));
        assert_eq!(contents(&fs, "new"), [7; 9000], "write {nth}");
        assert!(fs.lookup(ROOT_INO, b"logged0").is_err(), "write {nth}");
        fs.shutdown().unwrap();
        if !struck {
            return;
        }
    }
    panic!("a mount that writes forty times");
}
