//! One damaged page of an open log, wherever it is: what can be had is had, and what cannot is named.

use super::rescue::rescue;
use super::tests::{again, contents, create, halves, halves_as, manual, open};
use super::*;
use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
use bimetal_media::ram::Ram;
use bimetal_vfs::Attr;
use std::collections::BTreeMap;

/// Files on the disk, and files that are fsynced afterwards.
const OLD: usize = 6;
const MOST: usize = 1000;
/// Of those, after the log was started anew.
const AFTER: usize = 12;

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Contents of a file, none of them zeros.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

/// The halves after a crash whose log was started anew once, and the files that were fsynced.
fn crashed() -> Option<(Arc<Ram>, Arc<Ram>, Files)> {
    let (disk, ssd) = halves(32, 16)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut files = BTreeMap::new();
    let old: Vec<Ino> = (0..OLD).map(|n| create(&fs, &format!("old{n}"), &pattern(n, 30_000))).collect();
    (0..OLD).for_each(|n| _ = create(&fs, &format!("saved{n}"), &pattern(n, 700)));
    fs.commit().unwrap();
    let mut after = 0;
    for n in (0..).take_while(|n| *n < MOST) {
        let bytes = pattern(n + 20, [100, 3000, 8000, 9000, 8000][n % 5]);
        let ino = create(&fs, &format!("new{n}"), &bytes);
        fsync(&fs, ino);
        files.insert(format!("new{n}"), bytes);
        after += usize::from(fs.status().counters.relogs > 0);
        if after == AFTER {
            break;
        }
    }
    assert_eq!(after, AFTER, "the log was never started anew");
    for (n, &ino) in old.iter().enumerate() {
        let bytes = pattern(n + 90, 30_000);
        fs.write(ino, 0, &bytes, false).unwrap().get().unwrap();
        fsync(&fs, ino);
        files.insert(format!("old{n}"), bytes);
    }
    for n in 0..OLD {
        let bytes = pattern(n + 190, 5_000);
        let ino = create(&fs, "temporary", &bytes);
        fsync(&fs, ino);
        let name = format!("saved{n}");
        fs.rename(ROOT_INO, b"temporary", ROOT_INO, name.as_bytes(), Rename::Replace).unwrap();
        fsync(&fs, ino);
        files.insert(name, bytes);
    }
    fs.abandon();
    Some((disk, ssd, files))
}

/// Pages of the log that a mount needs.
fn log_pages(ssd: &Ram) -> Vec<usize> {
    let open = |ssd: &Ram| ssd::Ssd::open(ssd, ssd::DiskSide::default()).unwrap();
    let range = open(ssd).ssd.log_range();
    let pages = (range.start as usize..range.end as usize).step_by(4096);
    pages.filter(|&page| open(&flipped(ssd, page)).lost.is_some()).collect()
}

fn flipped(ssd: &Ram, page: usize) -> Arc<Ram> {
    let mut image = ssd.image();
    image[page + 100] ^= 1;
    Arc::new(Ram::from_bytes("ssd", image))
}

/// What rescue gets off an SSD half, and how many of the files are whole among it.
fn rescued_of(ssd: &[u8], files: &Files) -> (super::rescue::Rescued, usize) {
    let dir = tempfile::tempdir().unwrap();
    let (image, to) = (dir.path().join("ssd"), dir.path().join("to"));
    std::fs::write(&image, ssd).unwrap();
    let rescued = rescue(&image, &to, &|_| {}, &|| false).unwrap();
    let is_whole =
        |(name, bytes): &(&String, &Vec<u8>)| std::fs::read(to.join(name)).is_ok_and(|read| read == **bytes);
    (rescued, files.iter().filter(is_whole).count())
}

#[test]
fn of_a_log_with_a_damaged_page_all_that_is_whole_comes_to_the_disk_and_the_rest_is_named() {
    let Some((disk, ssd, files)) = crashed() else { return };
    let pages = log_pages(&ssd);
    assert!(pages.len() > AFTER, "{pages:?}");
    for page in pages {
        let (disk, ssd) = (Arc::new(Ram::from_bytes("disk", disk.image())), flipped(&ssd, page));
        let before = (disk.image(), ssd.image());
        let error = open(&disk, Some(&ssd), manual()).err().unwrap().to_string();
        assert!(error.contains("recover=whole"), "{error}");
        assert!((disk.image(), ssd.image()) == before, "page {page}: a refused mount changed something");
        let options = Options { recover: Recover::Whole, ..manual() };
        let prepared = NfHybrid::prepare(disk.clone(), Some(ssd.clone()), options).unwrap();
        let told = prepared.notes();
        assert!(
            (disk.image(), ssd.image()) == before,
            "page {page}: what is lost is told before anything changes"
        );
        let fs = prepared.begin().unwrap();
        assert_eq!(fs.notes(), told, "page {page}");
        let notes = told.join("\n");
        let is_named = |name: &str| notes.contains(&format!("/{name} is lost"));
        let (mut wrong, mut unnamed) = (0, Vec::new());
        for (name, bytes) in &files {
            let found = fs.lookup(ROOT_INO, name.as_bytes()).ok();
            let read =
                |found: Attr| fs.read(found.ino, 0, found.size as usize).unwrap().get().unwrap().concat();
            let is_right = found.clone().is_some_and(|found| read(found) == *bytes);
            assert!(!is_right || !is_named(name), "page {page}: {name} is there: {notes}");
            wrong += usize::from(!is_right);
            if !is_right && !is_named(name) {
                assert!(found.is_none_or(|found| read(found)[0] != 0), "page {page}: {name}: zeros: {notes}");
                unnamed.push(name);
            }
        }
        // What the damaged group alone said nobody can say.
        assert!(unnamed.len() <= 1, "page {page}: {unnamed:?}: {notes}");
        let (rescued, right) = rescued_of(&before.1, &files);
        println!("page {page}: {wrong} of {} wrong, {right} rescued", files.len());
        assert!(rescued.damaged, "page {page}");
        // What the damaged page held is gone, and it held a part of one fsync, or of what was said anew.
        assert!(right + 2 * OLD + 1 >= files.len(), "page {page}: {right} rescued");
        assert!(wrong <= 2 * OLD + AFTER, "page {page}: {wrong} wrong: {notes}");
        fs.shutdown().unwrap();
        // The volume is in order, and stays as it was.
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(fs.lookup(ROOT_INO, b"old0").is_ok() && contents(&fs, "old0").len() == 30_000);
        fs.shutdown().unwrap();
    }
}

/// Blocks of the inode table that hold something of a head.
fn table_blocks(ssd: &Ram) -> Vec<usize> {
    let opened = ssd::Ssd::open(ssd, ssd::DiskSide::default()).unwrap();
    let range = opened.ssd.table_range();
    let image = ssd.image();
    let blocks = (range.start as usize..range.end as usize).step_by(4096);
    blocks.filter(|&block| image[block..block + 4096].iter().any(|byte| *byte != 0)).collect()
}

#[test]
fn a_page_of_the_inode_table_that_a_device_lost_is_not_taken_for_one_that_was_never_written() {
    let Some((disk, ssd, files)) = crashed() else { return };
    let blocks = table_blocks(&ssd);
    assert!(blocks.len() > 3, "{blocks:?}");
    let mut wrong = 0;
    for (block, bytes) in blocks.iter().flat_map(|block| [(*block, 4096), (*block + 1024, 512)]) {
        let mut image = ssd.image();
        image[block..block + bytes].fill(0);
        let (disk, ssd) =
            (Arc::new(Ram::from_bytes("disk", disk.image())), Arc::new(Ram::from_bytes("ssd", image)));
        let error =
            open(&disk, Some(&ssd), manual()).err().unwrap_or_else(|| panic!("block {block}")).to_string();
        assert!(error.contains("recover=whole") && error.contains("inode table"), "{error}");
        let fs = open(&disk, Some(&ssd), Options { recover: Recover::Whole, ..manual() }).unwrap();
        let notes = fs.notes().join("\n");
        for (name, bytes) in &files {
            let is_right = contents(&fs, name) == *bytes;
            assert!(
                is_right || notes.contains(&format!("/{name} is lost")),
                "block {block}: {name}: {notes}"
            );
            wrong += usize::from(!is_right);
        }
        fs.shutdown().unwrap();
    }
    assert!(wrong > 0, "none of the blocks held what only the SSD had");
}

#[test]
fn a_page_of_the_inode_table_whose_last_write_was_lost_leaves_no_new_file_as_zeros_without_a_word() {
    let Some((disk, ssd, files)) = crashed() else { return };
    let free = |block: usize| {
        // As it was when the table was new, and free: valid, and old.
        let seal = ssd::Ssd::open(ssd.as_ref(), ssd::DiskSide::default()).unwrap().ssd;
        let mut image = ssd.image();
        seal.free_slots(block as u64, &mut image[block..block + 4096]);
        Arc::new(Ram::from_bytes("ssd", image))
    };
    let mut refused = 0;
    for block in table_blocks(&ssd) {
        let (disk, ssd) = (Arc::new(Ram::from_bytes("disk", disk.image())), free(block));
        let before = (disk.image(), ssd.image());
        let fs = open(&disk, Some(&ssd), manual()).or_else(|error| {
            refused += 1;
            assert!(error.to_string().contains("rescue"), "{error}");
            assert!((disk.image(), ssd.image()) == before, "a refused mount changed something");
            open(&disk, Some(&ssd), Options { recover: Recover::Whole, ..manual() })
        });
        let fs = fs.unwrap();
        let notes = fs.notes().join("\n");
        for (name, wanted) in files.iter().filter(|(name, _)| name.starts_with("new")) {
            let is_right = contents(&fs, name) == *wanted;
            assert!(
                is_right || notes.contains(&format!("/{name} is lost")),
                "block {block}: {name}: {notes}"
            );
        }
        fs.shutdown().unwrap();
    }
    assert!(refused > 0);
}

#[test]
fn rescue_gives_no_file_what_another_one_was_that_had_its_inode_number() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let secret = create(&fs, "secret", &[0xAA; 3 * 4096]);
    fsync(&fs, secret);
    fs.unlink(ROOT_INO, b"secret").unwrap();
    fs.forget(secret, 1);
    let public = create(&fs, "public", b"");
    assert_eq!(public, secret);
    fs.write(public, 2 * 4096, &[1; 100], false).unwrap().get().unwrap();
    fsync(&fs, public);
    fs.abandon();
    let mut wanted = vec![0; 2 * 4096];
    wanted.extend([1; 100]);
    let (_, right) = rescued_of(&ssd.image(), &Files::from([("public".to_string(), wanted)]));
    assert_eq!(right, 1);
}

/// Files that a commit brought to both halves, whose names the SSD has in its log alone; one was fsynced when it was shorter.
#[test]
fn rescue_has_what_was_committed_under_the_names_that_only_the_log_has() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut files: Files = (0..20).map(|n| (format!("f{n}"), pattern(n, 300 + n * 2000))).collect();
    for (name, bytes) in &files {
        create(&fs, name, bytes);
    }
    let grown = create(&fs, "grown", &[1; 100]);
    fsync(&fs, grown);
    fs.write(grown, 100, &pattern(50, 50_000), false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let image = ssd.image();
    fs.abandon();
    files.insert("grown".into(), [vec![1; 100], pattern(50, 50_000)].concat());
    let (rescued, right) = rescued_of(&image, &files);
    assert_eq!((right, rescued.partial, rescued.nameless), (files.len(), 0, 0), "{rescued:?}");
}

/// `fsck --deep` that repairs, where the disk's side cannot be read: the copies are all there is.
#[test]
fn a_right_copy_of_what_the_disk_cannot_read_is_told_and_kept() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let faulty = Arc::new(Faulty::new(disk));
    let fs = NfHybrid::open(faulty.clone(), Some(ssd), manual()).unwrap();
    create(&fs, "f", &pattern(1, 40_000));
    fs.commit().unwrap();
    faulty.plan(Struck::Read, When::Always, Effect::Error(5));
    fs.scrub_start();
    let found = fs.scrub(&scrub::Step { bytes: u64::MAX, compare: true, heal: true }).unwrap();
    assert_eq!(found.bad.len(), 10, "{:?}", found.bad);
    assert!(
        found.bad.iter().all(|bad| !bad.dropped && !bad.on_disk && bad.why.contains("is right")),
        "{:?}",
        found.bad
    );
    assert!(contents(&fs, "f") == pattern(1, 40_000));
    faulty.forget();
    fs.shutdown().unwrap();
}

/// Where the SSD's blocks are smaller than a frame, what is dropped takes its frame along.
#[test]
fn a_right_copy_beside_a_bad_one_is_kept_where_the_disk_cannot_be_read() {
    for compare in [false, true] {
        let config = ssd::Config { block_bytes: 1024, ..ssd::Config::default() };
        let Some((disk, ssd)) = halves_as(32, 16, &config) else { return };
        let faulty = Arc::new(Faulty::new(disk));
        let fs = NfHybrid::open(faulty.clone(), Some(ssd.clone()), manual()).unwrap();
        let ino = create(&fs, "f", &pattern(1, 4096));
        fs.commit().unwrap();
        let resident = |block| fs.shared.core.lock().ssd.as_ref().unwrap().resident(ino, block);
        let (ssd, at) = (&*ssd as &dyn BlockDevice, resident(3).unwrap().at.0 * 1024);
        let mut page = ssd.read(at, 1024).unwrap().to_vec();
        page[5] ^= 1;
        ssd.write(at, page).unwrap();
        faulty.plan(Struck::Read, When::Always, Effect::Error(5));
        let step = scrub::Step { bytes: u64::MAX, compare, heal: true };
        fs.scrub_start();
        let found = fs.scrub(&step).unwrap();
        assert!(found.bad.iter().all(|bad| !bad.dropped && !bad.on_disk), "{:?}", found.bad);
        assert!((0..4).all(|block| resident(block).is_some()), "compare: {compare}");
        faulty.forget();
        fs.scrub_start();
        let found = fs.scrub(&step).unwrap();
        assert!(matches!(&found.bad[..], [bad] if bad.file_block == 3 && bad.dropped), "{:?}", found.bad);
        assert!(contents(&fs, "f") == pattern(1, 4096));
        fs.shutdown().unwrap();
    }
}

#[test]
fn a_disk_whose_root_is_blank_is_refused_and_named() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), disk.image()).unwrap();
    let tool = ["-w", "-R", "clri <2>"];
    assert!(
        std::process::Command::new("/usr/sbin/debugfs")
            .args(tool)
            .arg(file.path())
            .status()
            .unwrap()
            .success()
    );
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let before = disk.image();
    let error = open(&disk, Some(&ssd), manual()).err().unwrap().to_string();
    assert!(error.contains("the root directory") && error.contains("e2fsck"), "{error}");
    assert!(disk.image() == before, "a refused mount changed something");
}

/// `fsck --deep` after a crash with files that were unlinked and open: their copies are nobody's, and go with the mount.
#[test]
fn copies_of_files_that_were_unlinked_when_the_power_went_are_gone_with_them() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    for n in 0..5 {
        let ino = create(&fs, &format!("f{n}"), &pattern(n, 9_000));
        fsync(&fs, ino);
    }
    fs.commit().unwrap();
    let copies = |fs: &NfHybrid| fs.shared.core.lock().ssd.as_ref().map_or(0, |ssd| ssd.inodes().count());
    let before = copies(&fs);
    assert!(before >= 5, "{before} copies: nothing is shown");
    // Whoever has them open keeps them.
    (0..5).for_each(|n| fs.unlink(ROOT_INO, format!("f{n}").as_bytes()).unwrap());
    fs.commit().unwrap();
    let [disk, ssd] = again([&disk, &ssd]);
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(copies(&fs), before - 5);
    fs.scrub_start();
    let found = fs.scrub(&scrub::Step { bytes: u64::MAX, compare: true, heal: false }).unwrap();
    assert!(found.bad.is_empty(), "{:?}", found.bad);
    fs.shutdown().unwrap();
}

#[test]
fn rescue_knows_what_was_punched_and_what_was_exchanged() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let punched = create(&fs, "punched", &[7; 4 * 4096]);
    fsync(&fs, punched);
    fs.fallocate(punched, 100, 8192, Fallocate::Punch).unwrap();
    fsync(&fs, punched);
    let (a, b) = (create(&fs, "a", &[1; 500]), create(&fs, "b", &[2; 600]));
    fsync(&fs, a);
    fsync(&fs, b);
    fs.rename(ROOT_INO, b"a", ROOT_INO, b"b", Rename::Exchange).unwrap();
    fsync(&fs, a);
    fs.abandon();
    let mut holed = vec![7; 4 * 4096];
    holed[100..8292].fill(0);
    let wanted = [("punched", holed), ("a", vec![2; 600]), ("b", vec![1; 500])];
    let wanted: Files = wanted.map(|(name, bytes)| (name.to_string(), bytes)).into();
    let (rescued, right) = rescued_of(&ssd.image(), &wanted);
    assert_eq!((right, rescued.partial, rescued.damaged), (3, 0, false), "{:?}", rescued.notes);
}

fn whole() -> Options {
    Options { recover: Recover::Whole, ..manual() }
}

#[test]
fn a_file_that_was_removed_and_made_again_behind_the_damage_is_named() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let old = create(&fs, "file", b"old");
    fs.commit().unwrap();
    let before = create(&fs, "before", &pattern(1, 3000));
    fsync(&fs, before);
    fs.unlink(ROOT_INO, b"file").unwrap();
    fs.forget(old, 1);
    let new = create(&fs, "file", b"new");
    fsync(&fs, new);
    fs.abandon();
    let mut named = 0;
    for page in log_pages(&ssd) {
        let (disk, ssd) = (Arc::new(Ram::from_bytes("disk", disk.image())), flipped(&ssd, page));
        let fs = open(&disk, Some(&ssd), whole()).unwrap();
        let notes = fs.notes().join("\n");
        let is_old = fs.lookup(ROOT_INO, b"file").is_ok_and(|_| contents(&fs, "file") == b"old");
        named += usize::from(is_old && notes.contains("/file is lost"));
        fs.shutdown().unwrap();
    }
    assert!(named > 0, "where the group before is damaged");
}

/// The log of a volume that was brought back from damage, with groups of the log as it was before in it still.
fn brought_back() -> Option<(Arc<Ram>, Arc<Ram>, NfHybrid)> {
    let (disk, ssd) = halves(32, 16)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let victim = create(&fs, "victim", &pattern(1, 3000));
    fsync(&fs, victim);
    let fill = create(&fs, "fill", &pattern(2, 3000));
    for round in 0..40 {
        fs.write(fill, 0, &pattern(round, 3000), false).unwrap().get().unwrap();
        fsync(&fs, fill);
    }
    fs.unlink(ROOT_INO, b"victim").unwrap();
    fs.forget(victim, 1);
    fsync(&fs, fill);
    fs.abandon();
    log_pages(&ssd).into_iter().find_map(|page| {
        let (disk, ssd) = (Arc::new(Ram::from_bytes("disk", disk.image())), flipped(&ssd, page));
        let fs = open(&disk, Some(&ssd), whole()).unwrap();
        match fs.lookup(ROOT_INO, b"victim") {
            Err(_) => Some((disk, ssd, fs)),
            Ok(_) => {
                fs.abandon();
                None
            }
        }
    })
}

#[test]
fn what_an_earlier_branch_of_the_log_said_is_no_part_of_what_lies_behind_a_damage() {
    let Some((disk, ssd, fs)) = brought_back() else { return };
    let mut files = Files::new();
    for (name, bytes) in [("keeper", 60_000), ("a", 3000), ("b", 3000), ("c", 3000), ("d", 3000)] {
        let bytes = pattern(bytes + name.len(), bytes);
        let ino = create(&fs, name, &bytes);
        fsync(&fs, ino);
        files.insert(name.into(), bytes);
    }
    fs.abandon();
    let pages = log_pages(&ssd);
    let damaged = flipped(&ssd, pages[pages.len() - 3]);
    let (_, right) = rescued_of(&damaged.image(), &files);
    assert!(right + 1 >= files.len(), "{right} of {} rescued", files.len());
    let fs = open(&disk, Some(&damaged), whole()).unwrap();
    for (name, bytes) in &files {
        let is_right = fs.lookup(ROOT_INO, name.as_bytes()).is_ok() && contents(&fs, name) == *bytes;
        let notes = fs.notes().join("\n");
        assert!(!is_right || !notes.contains(&format!("/{name} is lost")), "{name} is there: {notes}");
    }
    fs.shutdown().unwrap();
}

/// A volume whose last fsync is in the SSD's log alone when the power fails, with its contents in a section: the disk, the
/// SSD, and those contents.
fn with_a_last_fsync() -> Option<(Arc<Ram>, Arc<Ram>, Vec<u8>)> {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    let (disk, ssd) = super::tests::halves_as(16, 8, &config)?;
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7 / 3) as u8).collect();
    for (name, bytes) in [("first", &b"x"[..]), ("last", &bytes)] {
        let ino = create(&fs, name, bytes);
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    fs.abandon();
    Some((disk, ssd, bytes))
}

/// The medium is right, and one bit of one answer is not.
#[test]
fn a_bit_that_flips_on_the_way_at_a_mount_costs_not_even_the_last_fsync() {
    use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};
    let Some((disk, ssd, bytes)) = with_a_last_fsync() else { return };
    let (mut struck, mut refused) = (0, 0);
    for read in 1..20 {
        for seed in 0..8 {
            let copy = |half: &Ram| Arc::new(Ram::from_bytes("a copy", half.image()));
            let (disk, ssd) = (copy(&disk), copy(&ssd));
            let faulty = Arc::new(Faulty::new(ssd.clone()));
            faulty.plan(Struck::Read, When::Nth(read), Effect::FlipBit(seed));
            let first = NfHybrid::open(disk.clone(), Some(faulty.clone()), manual());
            struck += faulty.struck();
            let notes = first.as_ref().map(|fs| fs.notes()).unwrap_or_default();
            let fs = first.or_else(|why| {
                refused += 1;
                assert!(why.to_string().contains("nothing"), "{why}");
                open(&disk, Some(&ssd), manual())
            });
            let fs = fs.unwrap();
            assert!(fs.lookup(ROOT_INO, b"last").is_ok(), "read {read}, bit {seed}: {notes:?}");
            assert_eq!(contents(&fs, "last"), bytes, "read {read}, bit {seed}");
        }
    }
    println!("{struck} bits flipped, {refused} mounts refused at first");
    assert!(struck > 100, "{struck}");
}

/// As after a cut before the fsync returned, which nobody can tell it from.
#[test]
fn a_last_fsync_whose_contents_are_damaged_is_left_out_with_a_word_and_offered_by_rescue() {
    let Some((disk, ssd, bytes)) = with_a_last_fsync() else { return };
    let mut image = ssd.image();
    let at = image.windows(64).position(|here| *here == bytes[8192..8256]).expect("in a section");
    image[at] ^= 1;
    let (rescued, whole) = rescued_of(&image, &Files::from([("last".into(), bytes)]));
    assert!(rescued.whole == 1 && rescued.partial == 1 && rescued.bad_bytes == 4096 && whole == 0);
    let damaged = Arc::new(Ram::from_bytes("ssd", image));
    let fs = open(&disk, Some(&damaged), manual()).unwrap();
    assert!(fs.lookup(ROOT_INO, b"first").is_ok() && fs.lookup(ROOT_INO, b"last").is_err());
    let notes = fs.notes().join(";");
    assert!(notes.contains("do not count") && notes.contains("bimetal rescue"), "{notes}");
}
