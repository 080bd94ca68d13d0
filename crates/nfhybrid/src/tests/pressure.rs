//! What happens when things get tight: journals, disks and time; files that may not change; races with a checkpoint.

use super::*;
use bimetal_base::runtime::Sim;
use bimetal_base::units::DiskBlock;
use bimetal_ext4::flag;
use bimetal_media::faulty::{Effect, Faulty, Kind as On, When};
use bimetal_media::held::Held;
use bimetal_media::timed::Timed;
use bimetal_media::{Completion, DeviceInfo, Request, Ticket};
use bimetal_vfs::{SetTime, SetXattr};

/// The smallest journal that mke2fs makes: 1024 blocks, 255 a transaction.
const TINY: [&str; 4] = ["-b", "4096", "-J", "size=4"];

fn tiny(disk_mib: u64, more: &[&str]) -> Option<(Arc<Ram>, Arc<Ram>)> {
    halves_with(disk_mib, 16, &ssd::Config::default(), &[&TINY[..], more].concat())
}

/// A transaction never has more than it may.
fn check_account(fs: &NfHybrid) {
    let (need, limit) = fs.journal_account();
    assert!(need <= limit, "{need} blocks of {limit}");
}

/// The kernel asks for that by itself, where the caller may not keep them.
#[test]
fn set_id_bits_stay_when_room_is_given_or_taken() {
    let Some((disk, ssd)) = tiny(32, &[]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "file", &[1; 8192]);
    fs.setattr(ino, &SetAttr { perm: Some(0o6755), ..SetAttr::default() }).unwrap();
    let zero = Fallocate::Zero { keep_size: true };
    for what in [Fallocate::Reserve { keep_size: false }, Fallocate::Punch, zero] {
        fs.fallocate(ino, 0, 16_384, what).unwrap();
        assert_eq!(fs.getattr(ino).unwrap().perm, 0o6755, "{what:?}");
    }
    fs.shutdown().unwrap();
}

/// What lacks blocks is refused, past the end of the file as well, as by the kernel's ext4; here nothing has changed then.
#[test]
fn a_range_is_zeroed_on_a_full_disk() {
    let Some((disk, ssd)) = tiny(32, &[]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "file", &[1; 4 << 20]);
    let hole = create(&fs, "hole", &[2; 4096]);
    let set = SetAttr { size: Some(4 << 20), ..SetAttr::default() };
    fs.setattr(hole, &set).unwrap();
    fs.sync().unwrap();
    let filler = create(&fs, "filler", b"");
    let mut at = 0;
    while let Ok(more @ 1..) = fs.write(filler, at, &[3; 65536], false).and_then(|answer| answer.get()) {
        at += more as u64;
    }
    fs.sync().unwrap();
    let zero = |ino, offset, len, keep_size| fs.fallocate(ino, offset, len, Fallocate::Zero { keep_size });
    zero(ino, 5, (3 << 20) - 10, false).unwrap();
    assert!(matches!(zero(ino, 3 << 20, 9 << 20, true), Err(Error::NoSpace(_))), "it would have more blocks");
    zero(ino, 3 << 20, 1 << 20, true).unwrap();
    assert!(matches!(zero(ino, 0, 5 << 20, false), Err(Error::NoSpace(_))), "it would grow");
    assert!(matches!(zero(hole, 0, 4 << 20, true), Err(Error::NoSpace(_))), "it has a hole");
    let check = |fs: &NfHybrid| {
        let found = contents(fs, "file");
        let kept = |at: usize| !(5..(3 << 20) - 5).contains(&at) && at < 3 << 20;
        assert_eq!(found.len(), 4 << 20);
        assert!((0..found.len()).all(|at| found[at] == u8::from(kept(at))));
        assert!(contents(fs, "hole")[..4096] == [2; 4096], "what failed changed something");
    };
    check(&fs);
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.abandon();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    check(&fs);
    fs.shutdown().unwrap();
}

/// A log with room for far more changes than memory has for their tables.
#[test]
fn tables_are_written_before_what_changed_takes_more_memory_than_it_may() {
    let config = ssd::Config { log_bytes: 128 << 20, bytes_per_slot: 4096, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_with(512, 384, &config, &["-b", "4096", "-N", "40000"]) else { return };
    let fs = open(&disk, Some(&ssd), Options { memory: Some(ssd::MEMORY_MIN), ..manual() }).unwrap();
    let (mut was_filled, mut times) = (false, 0);
    for file in 0..30_000 {
        let ino = create(&fs, &format!("f{file}"), b"a block");
        fs.forget(ino, 1);
        if file % 1000 == 999 {
            fs.commit().unwrap();
            let core = fs.shared.core.lock();
            let ssd = core.ssd.as_ref().unwrap();
            let filled = ssd.changes_fill_memory();
            // Tables under way count until the next flush.
            assert!(!(filled && was_filled), "{file} files");
            (was_filled, times) = (filled, times + u32::from(filled));
            assert!(ssd.used() < ssd.capacity() / 2, "the log would have asked for it");
        }
    }
    assert!(times > 0, "what changed never filled memory: the test shows nothing");
    fs.shutdown().unwrap();
}

#[test]
fn reads_of_more_files_than_a_transaction_has_table_blocks_for_leave_the_mount_alive() {
    let Some((disk, ssd)) = tiny(64, &["-N", "9000"]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    for file in 0..6000 {
        create(&fs, &format!("f{file}"), b"");
    }
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut stored = 0;
    for file in 0..6000 {
        let attr = fs.lookup(ROOT_INO, format!("f{file}").as_bytes()).unwrap();
        fs.read(attr.ino, 0, 10).unwrap().get().unwrap();
        stored += u32::from(fs.getattr(attr.ino).unwrap().atime > attr.atime);
        fs.forget(attr.ino, 1);
        check_account(&fs);
    }
    assert!(stored > 1000, "{stored} access times");
    fs.commit().unwrap();
    create(&fs, "after", b"alive");
    fs.shutdown().unwrap();
}

#[test]
fn many_overwriters_at_once_wait_for_the_journal_and_none_stops_the_mount() {
    const WRITERS: u64 = 48;
    const BLOCKS: u64 = 32;
    let Some((disk, ssd)) = tiny(64, &[]) else { return };
    let options =
        Options { lag: Lag { time: Duration::from_millis(200), bytes: 64 << 20 }, ..Options::default() };
    let fs = open(&disk, Some(&ssd), options).unwrap();
    let files: Vec<Ino> =
        (0..WRITERS).map(|file| create(&fs, &format!("f{file}"), &[1; (BLOCKS * 4096) as usize])).collect();
    fs.sync().unwrap();
    let write = |ino: Ino, number: u64| {
        for round in 0..BLOCKS * 4 {
            let block = (round * 7 + number) % BLOCKS;
            fs.write(ino, block * 4096, &[2; 4096], false).unwrap().get().unwrap();
        }
    };
    std::thread::scope(|scope| {
        for (number, &ino) in files.iter().enumerate() {
            scope.spawn(move || write(ino, number as u64));
        }
    });
    check_account(&fs);
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    (0..WRITERS)
        .for_each(|file| assert!(contents(&fs, &format!("f{file}")) == [2; (BLOCKS * 4096) as usize]));
    fs.shutdown().unwrap();
}

#[test]
fn an_overwrite_larger_than_a_transaction_goes_in_parts() {
    let Some((disk, ssd)) = tiny(64, &[]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &vec![1; 8 << 20]);
    fs.commit().unwrap();
    // Every other block: none of it a long stretch.
    for block in (0..2048).step_by(2) {
        fs.write(ino, block * 4096, &[2; 4096], false).unwrap().get().unwrap();
        check_account(&fs);
    }
    overwrite(&fs, ino, &vec![3; 8 << 20]);
    check_account(&fs);
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == vec![3; 8 << 20]);
    fs.shutdown().unwrap();
}

#[test]
fn a_hole_punched_through_thousands_of_pieces_is_made_in_steps() {
    let Some((disk, ssd)) = tiny(64, &[]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "comb", b"");
    for block in 0..4000_u64 {
        fs.write(ino, block * 2 * 4096, &[1; 4096], false).unwrap().get().unwrap();
    }
    fs.commit().unwrap();
    let before = fs.getattr(ino).unwrap().blocks;
    fs.fallocate(ino, 4096, 7990 * 4096, Fallocate::Punch).unwrap();
    check_account(&fs);
    assert!(fs.getattr(ino).unwrap().blocks < before / 100);
    fs.fallocate(ino, 0, 8000 * 4096, Fallocate::Zero { keep_size: false }).unwrap();
    check_account(&fs);
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "comb").iter().all(|byte| *byte == 0));
    fs.shutdown().unwrap();
}

/// A device with something to do between the reading of a place and the answer.
struct Between {
    inner: Arc<Ram>,
    hook: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
    offset: std::sync::atomic::AtomicU64,
}

impl BlockDevice for Between {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let wanted = self.offset.load(std::sync::atomic::Ordering::Relaxed);
        let here = matches!(&request, Request::Read { offset, len } if (*offset..*offset + *len as u64).contains(&wanted));
        let ticket = self.inner.submit(at, request);
        let hook = if here { self.hook.lock().take() } else { None };
        hook.into_iter().for_each(|hook| hook());
        ticket
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.inner.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.inner.is_done(ticket)
    }
}

#[test]
fn a_read_beside_a_checkpoint_never_sees_or_brings_back_what_was_there_before() {
    let Some((ram, _)) = halves(64, 16) else { return };
    let hook = parking_lot::Mutex::new(None);
    let disk = Arc::new(Between { inner: ram, hook, offset: u64::MAX.into() });
    let fs = NfHybrid::open(disk.clone(), None, manual()).unwrap();
    let ino = create(&fs, "f", &[1; 256 << 10]);
    fs.commit().unwrap();
    for (block, partly) in [(5_u64, false), (9, true)] {
        fs.write(ino, block * 4096, &[2; 4096], false).unwrap().get().unwrap();
        fs.shared.cycle().unwrap();
        let mapping = fs.shared.core.lock().ext4.map(ino, block, 1).unwrap();
        let bimetal_ext4::Mapping::Data { at: DiskBlock(at), .. } = mapping else { panic!("no data") };
        assert!(fs.shared.journal.latest(DiskBlock(at)).is_some(), "it is in the journal, not home");
        let journal = fs.shared.journal.clone();
        *disk.hook.lock() = Some(Box::new(move || journal.checkpoint(Time::ZERO).unwrap()));
        disk.offset.store(at * 4096, std::sync::atomic::Ordering::Relaxed);
        let mut expected = vec![2; 4096];
        if partly {
            fs.write(ino, block * 4096 + 7, &[3; 10], false).unwrap().get().unwrap();
            expected[7..17].fill(3);
        }
        let found = fs.read(ino, block * 4096, 4096).unwrap().get().unwrap().concat();
        assert!(disk.hook.lock().is_none(), "the checkpoint came in between");
        assert!(found == expected, "block {block}: {} {} {}", found[0], found[7], found[100]);
    }
    fs.shutdown().unwrap();
}

/// Fills the disk with one file; its number of 4 KiB blocks.
fn fill(fs: &NfHybrid, name: &str) -> u64 {
    let ino = create(fs, name, b"");
    let mut blocks = 0;
    loop {
        match fs.write(ino, blocks * 4096, &[9; 4096], false).and_then(Deferred::get) {
            Ok(_) => blocks += 1,
            Err(Error::NoSpace(_)) => return blocks,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_has_its_blocks_can_be_overwritten_on_a_full_disk() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &[1; 80 * 4096]);
    fs.commit().unwrap();
    assert!(fill(&fs, "hog") > 100);
    fs.commit().unwrap();
    for round in 2..5 {
        for block in 0..80 {
            fs.write(ino, block * 4096, &[round; 4096], false).unwrap().get().unwrap();
        }
        fs.commit().unwrap();
    }
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == [4; 80 * 4096]);
    fs.shutdown().unwrap();
}

#[test]
fn a_write_that_fills_the_disk_says_how_much_of_it_was_written() {
    let Some((disk, ssd)) = tiny(16, &["-m", "0"]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", b"");
    let hog = create(&fs, "hog", b"");
    let blocks = fill(&fs, "rest");
    assert!(fs.write(hog, 0, &[1; 4096], false).and_then(Deferred::get).is_err());
    fs.setattr(
        fs.lookup(ROOT_INO, b"rest").unwrap().ino,
        &SetAttr { size: Some((blocks - 63) * 4096), ..SetAttr::default() },
    )
    .unwrap();
    fs.commit().unwrap();
    let written = fs.write(ino, 0, &[5; 74 * 4096], false).unwrap().get().unwrap();
    assert!((40 * 4096..74 * 4096).contains(&written), "{written}");
    assert_eq!(fs.getattr(ino).unwrap().size, written as u64);
    let more = fs.write(ino, written as u64, &[6; 4096], false).and_then(Deferred::get);
    assert!(matches!(more, Err(Error::NoSpace(_))));
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "f") == vec![5; written]);
    fs.shutdown().unwrap();
}

/// Appends blocks to a file, each fsynced, until one needs a commit to find room, or none does; how many found it at once.
fn append(fs: &NfHybrid, ino: Ino, blocks: u64) -> u64 {
    let from = fs.getattr(ino).unwrap().size / 4096;
    let cycles = fs.status().counters.cycles;
    let put = |block: u64| fs.write(ino, block * 4096, &[7; 4096], false).and_then(Deferred::get).is_ok();
    (from..from + blocks)
        .take_while(|block| {
            put(*block)
                && fs.fsync(ino, false).unwrap().get().is_ok()
                && fs.status().counters.cycles == cycles
        })
        .count() as u64
}

/// Files of five blocks: each could come to need a node for its extents.
const FIVES: u64 = 300;

/// A file system on a full disk, but for some blocks: most of them are promised to short files, and to the trees of these more
/// than what is kept for trees; the others not yet.
struct NearlyFull {
    fs: NfHybrid,
    held: Arc<Held>,
    disk: Arc<Ram>,
    ssd: Arc<Ram>,
    /// An empty file.
    b: Ino,
}

fn nearly_full() -> Option<NearlyFull> {
    let (disk, ssd) = halves_with(48, 32, &ssd::Config::default(), &["-b", "4096", "-J", "size=16"])?;
    let held = Held::new(disk.clone());
    let fs = NfHybrid::open(held.clone(), Some(ssd.clone()), manual()).unwrap();
    let blocks = fill(&fs, "hog");
    let hog = fs.lookup(ROOT_INO, b"hog").unwrap().ino;
    let b = create(&fs, "b", b"");
    let size = Some((blocks - 2000) * 4096);
    fs.setattr(hog, &SetAttr { size, ..SetAttr::default() }).unwrap();
    fs.commit().unwrap();
    for file in 0..FIVES {
        let ino = create(&fs, &format!("c{file}"), &[5; 5 * 4096]);
        fs.fsync(ino, false).unwrap().get().unwrap();
    }
    Some(NearlyFull { fs, held, disk, ssd, b })
}

/// A commit gives room back that was promised for nodes of extent trees and not needed; not before the disk has it, for the
/// replay of the log may need it.
#[test]
fn what_a_commit_on_a_full_disk_gives_back_is_there_once_the_disk_has_it() {
    let Some(NearlyFull { fs, b, .. }) = nearly_full() else { return };
    let at_once = append(&fs, b, 1600);
    assert!(at_once > 50, "{at_once}");
    fs.abandon();
    let Some(NearlyFull { fs, held, disk, ssd, b }) = nearly_full() else { return };
    assert_eq!(append(&fs, b, at_once), at_once);
    held.hold();
    let (is_tied, images) = std::thread::scope(|scope| {
        let commit = scope.spawn(|| fs.commit());
        held.await_standing(1);
        let is_tied = fs.shared.core.lock().ext4.reserve(1).is_err();
        let images = (disk.image(), ssd.image());
        held.release();
        commit.join().unwrap().unwrap();
        (is_tied, images)
    });
    assert!(is_tied, "the replay may need it");
    assert_eq!(append(&fs, b, 2), 2);
    fs.abandon();
    let [disk, ssd] = [images.0, images.1].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert!(contents(&fs, "b") == vec![7; at_once as usize * 4096]);
    assert!((0..FIVES).all(|file| contents(&fs, &format!("c{file}")) == [5; 5 * 4096]));
    fs.shutdown().unwrap();
}

#[test]
fn what_is_preallocated_where_data_waits_for_its_place_is_counted_once() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let blocks = fill(&fs, "hog");
    let hog = fs.lookup(ROOT_INO, b"hog").unwrap().ino;
    fs.setattr(hog, &SetAttr { size: Some((blocks - 80) * 4096), ..SetAttr::default() }).unwrap();
    let (a, b) = (create(&fs, "a", b""), create(&fs, "b", b""));
    fs.commit().unwrap();
    fs.write(a, 0, &[1; 60 * 4096], false).unwrap().get().unwrap();
    let before = fs.status().counters.cycles;
    fs.fallocate(a, 0, 60 * 4096, Fallocate::Reserve { keep_size: false }).unwrap();
    fs.write(b, 0, &[2; 15 * 4096], false).unwrap().get().unwrap();
    assert_eq!(fs.status().counters.cycles, before, "no commit was needed for it");
    assert_eq!(fs.getattr(a).unwrap().blocks, 60 * 8);
    fs.commit().unwrap();
    assert!(contents(&fs, "a") == [1; 60 * 4096] && contents(&fs, "b") == [2; 15 * 4096]);
    fs.shutdown().unwrap();
}

/// An access list with so many users, as the kernel passes it.
fn acl(users: u32) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let mut value = 2_u32.to_le_bytes().to_vec();
    value.extend(entry(1, 7, u32::MAX));
    (0..users).for_each(|user| value.extend(entry(2, 6, 1000 + user)));
    [(4, 5), (0x10, 7), (0x20, 5)]
        .into_iter()
        .for_each(|(tag, perm)| value.extend(entry(tag, perm, u32::MAX)));
    value
}

#[test]
fn a_create_that_finds_no_room_for_its_access_list_leaves_nothing() {
    let Some((disk, ssd)) = tiny(16, &["-m", "0"]) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node(Kind::Dir)).unwrap().ino;
    fs.setxattr(dir, b"system.posix_acl_default", &acl(60), SetXattr::Either, false).unwrap();
    fs.commit().unwrap();
    // What is promised to trees comes back with a commit.
    let mut hogs = 0..;
    while hogs.next().is_some_and(|hog| fill(&fs, &format!("hog{hog}")) > 0) {
        fs.commit().unwrap();
    }
    let before = (fs.statfs().unwrap().inodes_free, fs.getattr(dir).unwrap().nlink);
    for kind in [Kind::File, Kind::Dir] {
        let made = fs.create(&Caller::default(), dir, b"new", &node(kind));
        assert!(matches!(made, Err(Error::NoSpace(_))), "{:?}", made.err());
        assert!(matches!(fs.lookup(dir, b"new"), Err(Error::NotFound)));
    }
    assert_eq!(before, (fs.statfs().unwrap().inodes_free, fs.getattr(dir).unwrap().nlink));
    fs.shutdown().unwrap();
}

/// Sets flags of an inode as `chattr` does before an adoption.
fn chattr(fs: &NfHybrid, ino: Ino, flags: u32) {
    fs.shared.core.lock().ext4.inode_mut(ino).unwrap().flags |= flags;
}

#[test]
fn what_chattr_made_immutable_or_append_only_stays_so() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let (fixed, grows) = (create(&fs, "fixed", &[1; 5000]), create(&fs, "grows", &[1; 5000]));
    fs.setxattr(fixed, b"user.a", b"1", SetXattr::Either, false).unwrap();
    chattr(&fs, fixed, flag::IMMUTABLE);
    chattr(&fs, grows, flag::APPEND);
    let refused = |result: Result<()>, what: &str| {
        assert!(matches!(result, Err(Error::NotPermitted)), "{what}: {result:?}");
    };
    let set = |ino, set: SetAttr| fs.setattr(ino, &set).map(drop);
    let now = Some(SetTime::Now);
    for (ino, name) in [(fixed, &b"fixed"[..]), (grows, b"grows")] {
        refused(fs.write(ino, 0, b"x", false).map(drop), "write");
        refused(set(ino, SetAttr { size: Some(1), ..SetAttr::default() }), "truncate");
        refused(set(ino, SetAttr { perm: Some(0o600), ..SetAttr::default() }), "chmod");
        refused(set(ino, SetAttr { uid: Some(7), ..SetAttr::default() }), "chown");
        refused(
            set(ino, SetAttr { mtime: Some(SetTime::To(Default::default())), ..SetAttr::default() }),
            "utimes",
        );
        refused(fs.setxattr(ino, b"user.b", b"2", SetXattr::Either, false), "setxattr");
        refused(fs.removexattr(ino, b"user.a"), "removexattr");
        refused(fs.fallocate(ino, 0, 4096, Fallocate::Punch), "punch");
        refused(fs.unlink(ROOT_INO, name), "unlink");
        refused(fs.rename(ROOT_INO, name, ROOT_INO, b"other", Rename::Replace), "rename");
        refused(fs.link(ino, ROOT_INO, b"link").map(drop), "link");
    }
    refused(fs.write(fixed, 5000, b"x", false).map(drop), "append to what is immutable");
    refused(set(fixed, SetAttr { mtime: now, ..SetAttr::default() }), "touch");
    refused(fs.fallocate(fixed, 0, 9000, Fallocate::Reserve { keep_size: false }), "fallocate");
    fs.write(grows, 5000, b"more", false).unwrap().get().unwrap();
    set(grows, SetAttr { mtime: now, ..SetAttr::default() }).unwrap();
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    assert_eq!(contents(&fs, "fixed"), [1; 5000]);
    assert_eq!(contents(&fs, "grows"), [&[1; 5000][..], b"more"].concat());
    fs.shutdown().unwrap();
}

#[test]
fn what_lies_beyond_4_tib_does_not_wrap_around_to_the_beginning_of_the_ssds_copy() {
    let config = ssd::Config { block_bytes: 1024, ..ssd::Config::default() };
    let Some((disk, ssd)) = halves_as(32, 16, &config) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let far = 4 << 40;
    let ino = create(&fs, "f", b"");
    let check = |fs: &NfHybrid, ino| {
        for (offset, byte) in [(8192, 1), (far + 8192, 2)] {
            let found = fs.read(ino, offset, 4096).unwrap().get().unwrap().concat();
            assert!(found == [byte; 4096], "{offset}: {}", found[0]);
        }
    };
    for (offset, byte) in [(8192, 1), (far + 8192, 2)] {
        fs.write(ino, offset, &[byte; 4096], false).unwrap().get().unwrap();
        fs.fsync(ino, false).unwrap().get().unwrap();
        fs.commit().unwrap();
    }
    check(&fs, ino);
    fs.promote();
    check(&fs, ino);
    fs.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    check(&fs, fs.lookup(ROOT_INO, b"f").unwrap().ino);
    fs.shutdown().unwrap();
}

#[test]
fn an_error_of_the_disk_while_reading_fails_that_read_alone() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let alone = open(&disk, None, manual()).unwrap();
    create(&alone, "f", &[1; 50_000]);
    alone.shutdown().unwrap();
    let faulty = Arc::new(Faulty::new(disk.clone()));
    let fs = NfHybrid::open(faulty.clone(), Some(ssd.clone()), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    let read = |fs: &NfHybrid| fs.read(ino, 0, 50_000).and_then(Deferred::get).map(|parts| parts.concat());
    faulty.plan(On::Read, When::Nth(1), Effect::Error(libc::EIO));
    assert!(matches!(read(&fs), Err(Error::Io { .. })));
    assert!(read(&fs).unwrap() == [1; 50_000]);
    faulty.plan(On::Read, When::Nth(1), Effect::Error(libc::EIO));
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let made = fs.create(&Caller::default(), ROOT_INO, b"first", &node);
    assert!(matches!(made, Err(Error::Io { .. })), "a bitmap was not read");
    create(&fs, "new", &[2; 5000]);
    fs.commit().unwrap();
    assert!(read(&fs).unwrap() == [1; 50_000] && contents(&fs, "new") == [2; 5000]);
    fs.shutdown().unwrap();
}

/// A mount in virtual time, on a simulated disk of 7200 rpm and an SSD that takes no time.
fn timed(sim: &Sim, disk: &Arc<Ram>, ssd: &Arc<Ram>, options: Options) -> NfHybrid {
    let clock: Clock = Arc::new(sim.clone());
    let profile = bimetal_media::profile::load("hdd-7200").unwrap();
    let disk = bimetal_media::disk::Disk::new(&profile, disk.clone());
    NfHybrid::open_on(
        clock.clone(),
        Arc::new(Timed::model(clock, Arc::new(disk))),
        Some(ssd.clone()),
        options,
    )
    .unwrap()
}

/// Writes at random places of a file for so long; the longest write, and how many there were.
fn overwrite_for(
    fs: &NfHybrid,
    sim: &Sim,
    ino: Ino,
    blocks: u64,
    span: Duration,
    seed: u64,
) -> (Duration, u64) {
    use bimetal_base::runtime::Runtime;
    let (mut longest, mut count, mut random) =
        (Duration::ZERO, 0, bimetal_base::random::Random::new(seed, "overwrites"));
    let end = sim.now() + span;
    while sim.now() < end {
        let began = sim.now();
        fs.write(ino, random.below(blocks) * 4096, &[count as u8; 4096], false).unwrap().get().unwrap();
        longest = longest.max(sim.now().since(began));
        count += 1;
        sim.sleep(Duration::from_micros(50));
    }
    (longest, count)
}

#[test]
fn no_write_among_random_overwrites_of_a_disk_waits_longer_than_twice_the_lag() {
    use bimetal_base::runtime::Runtime;
    let Some((disk, ssd)) = halves(256, 64) else { return };
    let seconds =
        std::env::var("BIMETAL_OVERWRITE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let sim = Sim::new(4);
    let inner = sim.clone();
    let (longest, count, behind, stats) = sim.run(move || {
        let fs = Arc::new(timed(&inner, &disk, &ssd, Options::default()));
        let lag = Options::default().lag;
        let ino = create(&fs, "f", b"");
        for at in 0..150 {
            fs.write(ino, at << 20, &vec![1; 1 << 20], false).unwrap().get().unwrap();
        }
        fs.sync().unwrap();
        let (watched, watching) = (fs.clone(), inner.clone());
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stop = over.clone();
        let watch = Arc::new(parking_lot::Mutex::new(Duration::ZERO));
        let seen = watch.clone();
        let watcher = inner.spawn(
            "watch",
            Box::new(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let core = watched.shared.core.lock();
                    let behind =
                        core.at_risk_since().map_or(Duration::ZERO, |since| watching.now().since(since));
                    assert!(core.at_risk_bytes() <= lag.bytes, "{} bytes behind", core.at_risk_bytes());
                    drop(core);
                    let mut most = seen.lock();
                    *most = most.max(behind);
                    drop(most);
                    watching.sleep(Duration::from_millis(20));
                }
            }),
        );
        let (longest, count) = overwrite_for(&fs, &inner, ino, 150 << 8, Duration::from_secs(seconds), 7);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        watcher.unwrap().join().unwrap();
        let stats = fs.shared.journal.stats();
        fs.shutdown().unwrap();
        let behind = *watch.lock();
        (longest, count, behind, stats)
    });
    println!("{seconds} s: {count} writes, the longest {longest:?}; at most {behind:?} behind; {stats:?}");
    assert!(stats.checkpoints > 3 && stats.home_blocks > 300, "{stats:?}");
    assert!(longest <= Duration::from_secs(10), "{longest:?}");
    assert!(behind <= Options::default().lag.time, "{behind:?} behind");
}

#[test]
fn a_small_write_does_not_queue_behind_streams() {
    use bimetal_base::runtime::Runtime;
    let Some((disk, ssd)) = halves(512, 64) else { return };
    let sim = Sim::new(5);
    let inner = sim.clone();
    let (slowest, streamed, throttled) = sim.run(move || {
        let fs = Arc::new(timed(
            &inner,
            &disk,
            &ssd,
            Options { lag: Lag { bytes: 8 << 20, ..Lag::default() }, ..Options::default() },
        ));
        let small = create(&fs, "small", &[1; 4096]);
        let end = inner.now() + Duration::from_secs(8);
        let streams: Vec<_> = (0..3)
            .map(|stream| {
                let (fs, sim) = (fs.clone(), inner.clone());
                let ino = create(&fs, &format!("stream{stream}"), b"");
                let work = move || {
                    for at in (0..).take_while(|_| sim.now() < end) {
                        fs.write(ino, (at % 60) << 20, &vec![2; 1 << 20], false).unwrap().get().unwrap();
                    }
                };
                inner.spawn("stream", Box::new(work)).unwrap()
            })
            .collect();
        let mut took = Vec::new();
        while inner.now() < end {
            inner.sleep(Duration::from_millis(10));
            let began = inner.now();
            fs.write(small, 0, &[3; 100], false).unwrap().get().unwrap();
            took.push(inner.now().since(began));
        }
        streams.into_iter().for_each(|stream| stream.join().unwrap());
        let throttled = fs.status().counters.throttled;
        let streamed = fs.status().journal.transactions;
        fs.shutdown().unwrap();
        took.sort_unstable();
        (took[took.len() * 99 / 100], streamed, throttled)
    });
    assert!(throttled > 10 && streamed > 3, "{throttled} waited, {streamed} commits");
    assert!(slowest <= Duration::from_millis(20), "{slowest:?}");
}
