//! The journal on a disk in memory: requests, replay, damage, errors. What other programs make of the log is
//! tested in `tests/suite/ext4_journal.rs`.

use super::*;
use bimetal_media::ram::Ram;
use bimetal_media::{Completion, DeviceInfo, Ticket};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 1024;
const STAMP: Stamp = Stamp { sec: 1_700_000_000, nsec: 5 };
/// The journal's blocks come first on the disk, in two runs with a gap; homes follow.
const JOURNAL: u64 = 1024;
const DISK: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Write { offset: u64, len: usize, durable: bool },
    Flush,
}

/// Notes requests; fails the request with a given number.
struct Watched {
    ram: Ram,
    seen: Mutex<Vec<Seen>>,
    fail_at: AtomicU64,
    info: DeviceInfo,
}

impl Watched {
    fn new(image: Vec<u8>, atomic_bytes: u32) -> Arc<Watched> {
        let ram = Ram::from_bytes("test", image);
        let info = DeviceInfo { atomic_bytes, ..ram.info().clone() };
        Arc::new(Watched { ram, seen: Mutex::default(), fail_at: AtomicU64::new(u64::MAX), info })
    }

    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock())
    }
}

impl BlockDevice for Watched {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match &request {
            Request::Write { offset, data, durable } => {
                let len = data.iter().map(Bytes::len).sum();
                self.seen.lock().push(Seen::Write { offset: *offset, len, durable: *durable });
            }
            Request::Flush => self.seen.lock().push(Seen::Flush),
            _ => return self.ram.submit(at, request),
        }
        if self.fail_at.fetch_sub(1, Ordering::Relaxed) == 0 {
            let result = Err(Error::io("test", io::Error::other("the head fell off")));
            return Ticket::Done(Completion { at, result });
        }
        self.ram.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.ram.wait(ticket)
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

/// A disk with an empty journal of version 2.
fn formatted() -> Vec<u8> {
    let mut image = vec![0; DISK as usize * BLOCK];
    let fields =
        [(0, 0xC03B_3998), (4, 4), (12, BLOCK as u32), (16, JOURNAL as u32), (20, 1), (24, 1), (0x40, 1)];
    for (at, value) in fields {
        image[at..at + 4].copy_from_slice(&u32::to_be_bytes(value));
    }
    image[0x30..0x40].copy_from_slice(b"a journal's uuid");
    image
}

fn set(image: &mut [u8], at: usize, value: u32) {
    image[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Journal blocks in two runs: 0..600 at the start of the disk, the rest after a gap of 8.
fn layout() -> Vec<DiskBlock> {
    (0..JOURNAL).map(|k| DiskBlock(if k < 600 { k } else { k + 8 })).collect()
}

fn home(n: u64) -> DiskBlock {
    DiskBlock(2000 + n)
}

fn image(fill: u8) -> Bytes {
    vec![fill; BLOCK].into()
}

fn load(disk: &Arc<Watched>) -> Journal {
    Journal::load(disk.clone(), BLOCK as u32, layout()).unwrap()
}

fn put_all(homes: &[(u64, u8)]) -> Transaction {
    Transaction {
        metadata: homes.iter().map(|(n, fill)| (home(*n), image(*fill))).collect(),
        freed: Vec::new(),
        stamp: STAMP,
    }
}

fn at_home(image: &[u8], n: u64) -> u8 {
    image[home(n).0 as usize * BLOCK + 7]
}

/// Mounts what a crash would leave and returns the disk after the replay.
fn replay(image: Vec<u8>) -> (Recovery, Vec<u8>) {
    let disk = Watched::new(image, 512);
    let journal = load(&disk);
    let recovery = journal.recover().unwrap();
    assert!(!journal.needs_recovery() && !load(&disk).needs_recovery());
    (recovery, disk.ram.image())
}

#[test]
fn a_steady_commit_is_one_gathered_write_one_flush_and_one_durable_block() {
    let disk = Watched::new(formatted(), 4096);
    let journal = load(&disk);
    journal.choose_format(true, true).unwrap();
    let first = journal.commit(Time(5), put_all(&[(1, 1)])).unwrap();
    let durable = |block: usize| Seen::Write { offset: (block * BLOCK) as u64, len: BLOCK, durable: true };
    let log = |block: usize, len: usize| Seen::Write {
        offset: (block * BLOCK) as u64,
        len: len * BLOCK,
        durable: false,
    };
    assert_eq!(disk.take(), [durable(0), log(1, 2), Seen::Flush, durable(3)]);
    let second = journal.commit(Time(6), put_all(&[(1, 2), (9, 3), (4, 4)])).unwrap();
    assert_eq!(disk.take(), [log(4, 4), Seen::Flush, durable(8)]);
    assert_eq!(second, first + 1);
    journal.close(Time(7)).unwrap();
    let home_at = |n: u64| (home(n).0 as usize, 1);
    assert_eq!(
        disk.take(),
        [log(home_at(1).0, 1), log(home_at(4).0, 1), log(home_at(9).0, 1), Seen::Flush, durable(0)]
    );
    let stats = journal.stats();
    assert_eq!((stats.transactions, stats.blocks, stats.checkpoints, stats.home_blocks), (2, 4, 1, 3));
    assert!(!load(&disk).needs_recovery());
}

#[test]
fn a_closed_journal_can_be_used_again_and_keeps_an_earlier_abort() {
    let mut image = formatted();
    set(&mut image, 32, -5_i32 as u32);
    let disk = Watched::new(image, 512);
    let journal = load(&disk);
    for round in 1..=3 {
        journal.commit(Time(round), put_all(&[(1, round as u8)])).unwrap();
        assert!(load(&disk).needs_recovery());
        let (recovery, after) = replay(disk.ram.image());
        assert_eq!((recovery.transactions, at_home(&after, 1)), (1, round as u8));
        journal.close(Time(round)).unwrap();
        assert!(!load(&disk).needs_recovery() && load(&disk).was_aborted());
    }
    disk.take();
    journal.close(Time(9)).unwrap();
    journal.checkpoint(Time(9)).unwrap();
    assert!(disk.take().is_empty());
}

#[test]
fn look_ups_go_on_from_other_threads_while_one_commits() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    std::thread::scope(|scope| {
        let look = || {
            for _ in 0..2000 {
                if let Some(image) = journal.latest(home(1)) {
                    assert!(image.iter().all(|byte| *byte == image[0]));
                }
            }
        };
        let lookers = [scope.spawn(look), scope.spawn(look)];
        for round in 1..200 {
            journal.commit(Time(round), put_all(&[(1, round as u8)])).unwrap();
        }
        for looker in lookers {
            looker.join().unwrap();
        }
    });
    assert_eq!(journal.latest(home(1)), Some(image(199)));
}

#[test]
fn a_device_that_tears_blocks_gets_zeros_where_the_commit_block_will_be() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.commit(Time(5), put_all(&[(1, 1)])).unwrap();
    let seen = disk.take();
    assert_eq!(seen[1], Seen::Write { offset: BLOCK as u64, len: 3 * BLOCK, durable: false });
    assert_eq!(seen[3], Seen::Write { offset: 3 * BLOCK as u64, len: BLOCK, durable: true });
}

#[test]
fn the_newest_image_is_lent_until_it_is_home() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.commit(Time(1), put_all(&[(1, 1), (2, 1)])).unwrap();
    journal.commit(Time(2), put_all(&[(1, 2)])).unwrap();
    assert_eq!(journal.latest(home(1)), Some(image(2)));
    assert_eq!(journal.latest(home(2)), Some(image(1)));
    assert!(journal.holds(home(2)) && !journal.holds(home(3)));
    journal.checkpoint(Time(3)).unwrap();
    assert_eq!(journal.latest(home(1)), None);
    let disk = disk.ram.image();
    assert_eq!((at_home(&disk, 1), at_home(&disk, 2)), (2, 1));
}

#[test]
fn committed_transactions_are_replayed_in_every_format() {
    for (checksums, bits64, chosen) in [
        (true, true, true),
        (true, false, true),
        (false, true, true),
        (false, false, true),
        (false, false, false),
    ] {
        let disk = Watched::new(formatted(), 512);
        let journal = load(&disk);
        if chosen {
            journal.choose_format(checksums, bits64).unwrap();
        }
        journal.commit(Time(1), put_all(&[(1, 1), (2, 1), (3, 1)])).unwrap();
        let magic: Bytes = [&0xC03B_3998_u32.to_be_bytes()[..], &[9; BLOCK - 4]].concat().into();
        let metadata = vec![(home(2), image(2)), (home(5), magic.clone())];
        journal.commit(Time(2), Transaction { metadata, freed: vec![(home(3), 1)], stamp: STAMP }).unwrap();
        let (recovery, after) = replay(disk.ram.image());
        assert_eq!(recovery, Recovery { transactions: 2, blocks: 3, revoked: 1 });
        assert_eq!([1, 2, 3].map(|n| at_home(&after, n)), [1, 2, 0]);
        let at = home(5).0 as usize * BLOCK;
        assert_eq!(after[at..at + BLOCK], magic);
    }
}

#[test]
fn a_long_run_goes_round_the_log_and_every_state_is_replayed() {
    for atomic in [512, 4096] {
        let disk = Watched::new(formatted(), atomic);
        let journal = load(&disk);
        journal.choose_format(true, true).unwrap();
        let mut model = [0_u8; 400];
        for round in 0..300_u64 {
            let homes: Vec<(u64, u8)> =
                (0..round * 7 % 61 + 1).map(|n| ((n * 31 + round) % 400, (round % 250) as u8 + 1)).collect();
            journal.commit(Time(round), put_all(&homes)).unwrap();
            homes.iter().for_each(|(n, fill)| model[*n as usize] = *fill);
            if round % 23 == 0 {
                let (recovery, after) = replay(disk.ram.image());
                assert!(recovery.transactions > 0 || round == 0);
                assert!((0..400).all(|n| at_home(&after, n) == model[n as usize]));
            }
        }
        let stats = journal.stats();
        assert!((10..200).contains(&stats.checkpoints), "{}", stats.checkpoints);
    }
}

#[test]
fn only_freed_blocks_that_the_log_has_are_revoked() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.choose_format(true, true).unwrap();
    journal.commit(Time(1), put_all(&[(1, 1), (2, 1), (300, 1)])).unwrap();
    let free = |first: u64, count: u32| vec![(home(first), count)];
    journal
        .commit(Time(2), Transaction { metadata: Vec::new(), freed: free(200, 50), stamp: STAMP })
        .unwrap();
    assert_eq!(journal.stats().revokes, 0);
    let metadata = vec![(home(2), image(2))];
    journal.commit(Time(3), Transaction { metadata, freed: free(0, 1_000_000), stamp: STAMP }).unwrap();
    assert_eq!(journal.stats().revokes, 2);
    assert!(!journal.holds(home(1)) && journal.holds(home(2)) && !journal.holds(home(300)));
    journal.close(Time(4)).unwrap();
    assert_eq!([1, 2, 300].map(|n| at_home(&disk.ram.image(), n)), [0, 2, 0]);
}

#[test]
fn a_block_that_was_revoked_and_written_again_is_replayed() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.commit(Time(1), put_all(&[(1, 1)])).unwrap();
    journal
        .commit(Time(2), Transaction { metadata: Vec::new(), freed: vec![(home(1), 1)], stamp: STAMP })
        .unwrap();
    journal.commit(Time(3), put_all(&[(1, 3)])).unwrap();
    let (recovery, after) = replay(disk.ram.image());
    assert_eq!((recovery.revoked, recovery.blocks, at_home(&after, 1)), (1, 1, 3));
}

/// Where the log begins, as the disk's superblock has it.
fn beginning(disk: &Watched) -> u32 {
    let image = disk.ram.image();
    u32::from_be_bytes([image[28], image[29], image[30], image[31]])
}

#[test]
fn a_step_writes_the_oldest_home_and_moves_the_beginning_past_what_is_done() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.choose_format(true, true).unwrap();
    journal.commit(Time(1), put_all(&[(1, 1), (2, 1), (3, 1)])).unwrap();
    journal.commit(Time(2), put_all(&[(2, 2), (4, 2), (5, 2)])).unwrap();
    journal.commit(Time(3), put_all(&[(6, 3)])).unwrap();
    let homes = || [1, 2, 3, 4, 5, 6].map(|n| at_home(&disk.ram.image(), n));
    let replayed = || [1, 2, 3, 4, 5, 6].map(|n| at_home(&replay(disk.ram.image()).1, n));
    // One block of the first transaction; the second has a newer image of its next one.
    assert_eq!((journal.step(Time(4), 1).unwrap(), homes(), beginning(&disk)), (1, [1, 0, 0, 0, 0, 0], 1));
    assert_eq!(replayed(), [1, 2, 1, 2, 2, 3]);
    assert_eq!((journal.step(Time(4), 1).unwrap(), homes(), beginning(&disk)), (1, [1, 0, 1, 0, 0, 0], 6));
    assert_eq!(replayed(), [1, 2, 1, 2, 2, 3]);
    assert_eq!((journal.step(Time(4), 2).unwrap(), homes(), beginning(&disk)), (2, [1, 2, 1, 2, 0, 0], 6));
    assert_eq!(journal.latest(home(5)), Some(image(2)));
    assert_eq!((journal.step(Time(4), 99).unwrap(), homes()), (2, [1, 2, 1, 2, 2, 3]));
    assert!(journal.latest(home(5)).is_none() && !journal.holds(home(5)));
    assert_eq!((journal.step(Time(4), 99).unwrap(), journal.room()), (0, JOURNAL as u32 - 2));
    assert_eq!(journal.stats().home_blocks, 6);
    assert_eq!(replayed(), [1, 2, 1, 2, 2, 3]);
}

#[test]
fn a_block_that_is_freed_after_it_went_home_is_revoked_while_the_log_has_it() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.commit(Time(1), put_all(&[(1, 1), (2, 1)])).unwrap();
    assert_eq!(journal.step(Time(2), 1).unwrap(), 1);
    assert!(journal.latest(home(1)).is_none() && journal.holds(home(1)));
    journal
        .commit(Time(3), Transaction { metadata: Vec::new(), freed: vec![(home(1), 1)], stamp: STAMP })
        .unwrap();
    assert_eq!(journal.stats().revokes, 1);
    // It is data now, written in place.
    (&*disk as &dyn BlockDevice).write(home(1).0 * BLOCK as u64, image(9)).unwrap();
    let (_, after) = replay(disk.ram.image());
    assert_eq!([1, 2].map(|n| at_home(&after, n)), [9, 1]);
}

#[test]
fn a_commit_makes_no_more_room_than_it_needs() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    let room = |journal: &Journal| u64::from(journal.room());
    let mut round = 0_u64;
    while room(&journal) >= journal.log_blocks(200) {
        journal
            .commit(Time(round), put_all(&(0..200).map(|n| (n, round as u8)).collect::<Vec<_>>()))
            .unwrap();
        round += 1;
    }
    assert_eq!(journal.stats().home_blocks, 0);
    let many: Vec<(u64, u8)> = (0..230).map(|n| (200 + n, 7)).collect();
    journal.commit(Time(9), put_all(&many)).unwrap();
    // All but the last transaction have nothing of their own to write.
    assert!(journal.stats().home_blocks <= 200, "{:?}", journal.stats());
    assert_eq!(at_home(&replay(disk.ram.image()).1, 300), 7);
}

#[test]
fn the_log_may_begin_inside_a_transaction_and_the_rest_is_replayed() {
    for (checksums, bits64) in [(true, true), (true, false), (false, true), (false, false)] {
        let disk = Watched::new(formatted(), 512);
        let journal = load(&disk);
        journal.choose_format(checksums, bits64).unwrap();
        let all: Vec<(u64, u8)> = (0..250).map(|n| (n, 5)).collect();
        journal.commit(Time(1), put_all(&all)).unwrap();
        journal
            .commit(Time(2), Transaction { metadata: Vec::new(), freed: vec![(home(249), 1)], stamp: STAMP })
            .unwrap();
        let mut beginnings = vec![beginning(&disk)];
        while journal.step(Time(3), 10).unwrap() > 0 {
            let (recovery, after) = replay(disk.ram.image());
            assert!(recovery.transactions <= 2);
            assert!((0..249).all(|n| at_home(&after, n) == 5) && at_home(&after, 249) == 0);
            beginnings.push(beginning(&disk));
        }
        beginnings.dedup();
        assert!(beginnings.len() > 2, "{beginnings:?}");
    }
}

/// Holds back writes at an offset until it is told to go on, and notes when one was done.
struct Held {
    inner: Arc<Watched>,
    offset: u64,
    state: parking_lot::Mutex<(bool, Vec<&'static str>)>,
    changed: parking_lot::Condvar,
}

impl Held {
    fn note(&self, what: &'static str) {
        self.state.lock().1.push(what);
        self.changed.notify_all();
    }

    fn await_note(&self, what: &str) {
        let mut state = self.state.lock();
        while !state.1.contains(&what) {
            self.changed.wait(&mut state);
        }
    }

    fn release(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }
}

impl BlockDevice for Held {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        if let Request::Write { offset, durable, .. } = &request {
            if *offset == self.offset {
                self.note("on its way home");
                let mut state = self.state.lock();
                while !state.0 {
                    self.changed.wait(&mut state);
                }
                drop(state);
                self.note("home");
            } else if *durable {
                self.note("durable write");
            }
        }
        self.inner.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.inner.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.inner.is_done(ticket)
    }
}

#[test]
fn a_commit_that_frees_a_block_on_its_way_home_returns_when_it_is_there() {
    let offset = home(1).0 * BLOCK as u64;
    let inner = Watched::new(formatted(), 512);
    let state = parking_lot::Mutex::new((false, Vec::new()));
    let disk = Arc::new(Held { inner, offset, state, changed: Default::default() });
    let journal = Journal::load(disk.clone(), BLOCK as u32, layout()).unwrap();
    journal.commit(Time(1), put_all(&[(1, 1), (2, 1)])).unwrap();
    disk.state.lock().1.clear();
    std::thread::scope(|scope| {
        scope.spawn(|| journal.step(Time(2), 9).unwrap());
        disk.await_note("on its way home");
        // Others do not wait.
        journal.commit(Time(3), put_all(&[(3, 1)])).unwrap();
        disk.state.lock().1.clear();
        let freeing = scope.spawn(|| {
            let freed = vec![(home(1), 1)];
            journal.commit(Time(4), Transaction { metadata: Vec::new(), freed, stamp: STAMP }).unwrap();
            disk.note("freed");
        });
        disk.await_note("durable write");
        disk.release();
        freeing.join().unwrap();
    });
    let notes = std::mem::take(&mut disk.state.lock().1);
    let place = |what: &str| notes.iter().position(|note| *note == what).unwrap();
    assert!(place("home") < place("freed"), "{notes:?}");
}

#[test]
fn version_1_cannot_revoke_and_checkpoints_instead() {
    let mut image = formatted();
    set(&mut image, 4, 3);
    image[0x24..0x400].fill(0);
    let disk = Watched::new(image, 512);
    let journal = load(&disk);
    journal.commit(Time(1), put_all(&[(1, 1)])).unwrap();
    journal
        .commit(Time(2), Transaction { metadata: Vec::new(), freed: vec![(home(1), 1)], stamp: STAMP })
        .unwrap();
    let stats = journal.stats();
    assert_eq!((stats.revokes, stats.checkpoints), (0, 1));
    journal.commit(Time(3), put_all(&[(2, 2)])).unwrap();
    let (recovery, after) = replay(disk.ram.image());
    assert_eq!((recovery.transactions, at_home(&after, 2)), (1, 2));
}

#[test]
fn damage_in_the_last_transaction_ends_the_log_and_damage_before_it_is_an_error() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.choose_format(true, true).unwrap();
    for round in 1..=3 {
        journal.commit(Time(round), put_all(&[(1, round as u8), (1 + round, round as u8)])).unwrap();
    }
    // Each transaction: descriptor, two images, commit block.
    for (block, what) in [(9, "descriptor"), (11, "image"), (12, "commit block")] {
        let mut last = disk.ram.image();
        last[block * BLOCK + 900] ^= 1;
        let (recovery, after) = replay(last);
        assert_eq!((recovery.transactions, at_home(&after, 1)), (2, 2), "{what}");
        let mut middle = disk.ram.image();
        middle[(block - 4) * BLOCK + 900] ^= 1;
        let damaged = Watched::new(middle.clone(), 512);
        let journal = load(&damaged);
        assert!(matches!(journal.recover(), Err(Error::Corrupt { .. })), "{what}");
        assert_eq!(damaged.ram.image(), middle, "nothing is written");
        assert!(matches!(journal.commit(Time(9), put_all(&[(1, 1)])), Err(Error::Invalid(_))));
    }
    // An image that a newer one takes the place of is not needed.
    let mut needless = disk.ram.image();
    needless[6 * BLOCK + 900] ^= 1;
    let (recovery, after) = replay(needless);
    assert_eq!((recovery.transactions, at_home(&after, 1), at_home(&after, 3)), (3, 3, 2));
}

#[test]
fn what_other_writers_leave_to_replay_is_refused_by_name() {
    for (feature, text) in [(4, "async_commit"), (32, "fast commits")] {
        let mut image = formatted();
        set(&mut image, 0x28, feature);
        set(&mut image, 0x54, 8);
        set(&mut image, 16, JOURNAL as u32);
        if feature == 32 {
            // The log must be long enough without the fast commit area.
            assert!(Journal::load(Watched::new(image.clone(), 512), BLOCK as u32, layout()).is_err());
            set(&mut image, 16, JOURNAL as u32 + 16);
        }
        let blocks: Vec<DiskBlock> = (0..JOURNAL + 16).map(DiskBlock).collect();
        let disk = Watched::new(image, 512);
        let journal = Journal::load(disk.clone(), BLOCK as u32, blocks.clone()).unwrap();
        assert_eq!(journal.recover().unwrap(), Recovery::default());
        let tid = journal.commit(Time(1), put_all(&[(1, 1)])).unwrap();
        let mut image = disk.ram.image();
        let first_fast = (JOURNAL as usize + 16 - 8 + 1) * BLOCK;
        image[first_fast..first_fast + 4].copy_from_slice(&[9, 0, 8, 0]);
        image[first_fast + 8..first_fast + 12].copy_from_slice(&(tid + 1).to_le_bytes());
        let after = Journal::load(Watched::new(image.clone(), 512), BLOCK as u32, blocks.clone()).unwrap();
        let error = after.recover().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(text), "{error}");
        if feature == 32 {
            image[first_fast + 8] ^= 1;
            let after = Journal::load(Watched::new(image, 512), BLOCK as u32, blocks).unwrap();
            assert_eq!(after.recover().unwrap().transactions, 1);
        }
    }
}

#[test]
fn a_superblock_that_is_wrong_is_refused() {
    let wrong: [(usize, u32, &str); 10] = [
        (0, 1, "magic"),
        (4, 7, "version"),
        (12, 4096, "block size"),
        (16, 9999, "more blocks"),
        (16, 100, "too short"),
        (20, 0, "too short"),
        (20, 1000, "too short"),
        (28, 1024, "outside the log"),
        (0x28, 1 << 9, "0x200"),
        (0x28, 8 | 16, "more than one kind"),
    ];
    for (at, value, text) in wrong {
        let mut image = formatted();
        set(&mut image, at, value);
        let error =
            Journal::load(Watched::new(image, 512), BLOCK as u32, layout()).err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.choose_format(true, false).unwrap();
    journal.commit(Time(1), put_all(&[(1, 1)])).unwrap();
    let mut image = disk.ram.image();
    image[0x60] ^= 1;
    let error = Journal::load(Watched::new(image, 512), BLOCK as u32, layout()).err().unwrap();
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn after_a_failed_write_every_call_fails_and_what_was_committed_stays() {
    for fail_at in 0..8 {
        let disk = Watched::new(formatted(), 512);
        let journal = load(&disk);
        disk.fail_at.store(fail_at, Ordering::Relaxed);
        let results: Vec<bool> =
            (1..=3).map(|round| journal.commit(Time(round), put_all(&[(1, round as u8)])).is_ok()).collect();
        let committed = results.iter().take_while(|ok| **ok).count();
        assert!(results[committed..].iter().all(|ok| !ok), "{results:?}");
        if committed < 3 {
            assert!(journal.checkpoint(Time(9)).is_err() && journal.close(Time(9)).is_err());
        }
        let (_, after) = replay(disk.ram.image());
        let at = usize::from(at_home(&after, 1));
        assert!(at == committed, "{at} {committed}");
    }
}

#[test]
fn a_transaction_that_does_not_fit_is_refused_before_anything_is_written() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    let many = Transaction {
        metadata: (0..=u64::from(journal.capacity())).map(|n| (home(n), image(1))).collect(),
        freed: Vec::new(),
        stamp: STAMP,
    };
    assert!(matches!(journal.commit(Time(1), many), Err(Error::Invalid(_))));
    let far = Transaction { metadata: vec![(DiskBlock(1 << 33), image(1))], freed: Vec::new(), stamp: STAMP };
    assert!(matches!(journal.commit(Time(1), far), Err(Error::Invalid(_))));
    let short = Transaction {
        metadata: vec![(home(1), Bytes::from_static(&[1; 8]))],
        freed: Vec::new(),
        stamp: STAMP,
    };
    assert!(matches!(journal.commit(Time(1), short), Err(Error::Invalid(_))));
    assert!(disk.take().is_empty());
    journal.commit(Time(1), Transaction::default()).unwrap();
    assert_eq!(disk.take(), [Seen::Flush]);
}

#[test]
fn damaged_journals_are_errors_or_replayed_and_never_panics() {
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut errors, mut replays) = (0, 0);
    for (checksums, bits64) in [(true, true), (false, true), (false, false)] {
        let disk = Watched::new(formatted(), 512);
        let journal = load(&disk);
        journal.choose_format(checksums, bits64).unwrap();
        for round in 1..=6 {
            let freed = vec![(home(round), 2)];
            let metadata = (10..10 + round * 9).map(|n| (home(n), image(round as u8))).collect();
            journal.commit(Time(round), Transaction { metadata, freed, stamp: STAMP }).unwrap();
        }
        let good = disk.ram.image();
        for round in 0..1500 {
            let mut bad = good.clone();
            for _ in 0..rng.random_range(1..4) {
                let reach = if round % 3 == 0 { 256 } else { 230 * BLOCK };
                let at = rng.random_range(0..reach);
                bad[at] =
                    if rng.random_bool(0.5) { rng.random() } else { bad[at] ^ 1 << rng.random_range(0..8) };
            }
            let disk = Watched::new(bad, 512);
            let recovered = Journal::load(disk.clone(), BLOCK as u32, layout()).and_then(|journal| {
                let recovery = journal.recover()?;
                journal.commit(Time(9), put_all(&[(1, 1)]))?;
                Ok(recovery)
            });
            match recovered {
                Ok(_) => replays += 1,
                Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(errors > 500 && replays > 500, "{errors} {replays}");
}

#[test]
fn a_log_that_runs_in_a_circle_is_an_error() {
    let disk = Watched::new(formatted(), 512);
    let journal = load(&disk);
    journal.commit(Time(1), put_all(&[(1, 1)])).unwrap();
    let mut image = disk.ram.image();
    // Every block of the log a descriptor of the transaction, none a commit block.
    let descriptor = image[BLOCK..2 * BLOCK].to_vec();
    for place in layout().iter().skip(1) {
        let at = place.0 as usize * BLOCK;
        image[at..at + BLOCK].copy_from_slice(&descriptor);
    }
    let error = load(&Watched::new(image, 512)).recover().unwrap_err();
    assert!(error.to_string().contains("circle"), "{error}");
}
