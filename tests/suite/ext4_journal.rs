//! The journal in real images: every crash leaves a prefix of the transactions, whoever replays it.
//!
//! A run of transactions is recorded request by request. Then disks are put together as power cuts could have left
//! them: all requests up to some number, those after the last flush whole, torn at 512 bytes, or not there.

use crate::ext4_image::Image;
use bimetal::fs::ext4::journal::{Journal, Transaction};
use bimetal::media::file::FileDevice;
use bimetal::media::ram::Ram;
use bimetal::media::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal::time::Time;
use bimetal::units::DiskBlock;
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

const SECTOR: usize = 512;
const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();

#[derive(Clone, Debug)]
enum Event {
    Write { offset: usize, bytes: Bytes, durable: bool },
    Flush,
}

/// Keeps a list of the requests that change a disk.
struct Recorder {
    ram: Ram,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    fn new(image: Vec<u8>) -> Arc<Recorder> {
        Arc::new(Recorder { ram: Ram::from_bytes("recorded", image), events: Mutex::default() })
    }

    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

impl BlockDevice for Recorder {
    fn info(&self) -> &DeviceInfo {
        self.ram.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let event = match &request {
            Request::Write { offset, data, durable } => {
                let bytes = data.iter().fold(Vec::new(), |all, part| [&all[..], part].concat()).into();
                Some(Event::Write { offset: *offset as usize, bytes, durable: *durable })
            }
            Request::Flush => Some(Event::Flush),
            _ => None,
        };
        self.events.lock().unwrap().extend(event);
        self.ram.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.ram.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.ram.is_done(ticket)
    }
}

/// What a block may hold once so many transactions are committed: exactly this, or (`None`) anything.
type State = BTreeMap<u64, Option<Bytes>>;

/// A recorded run.
struct Run {
    base: Vec<u8>,
    events: Vec<Event>,
    /// For each transaction the number of the event that commits it.
    commits: Vec<usize>,
    /// `states[c]`: what `c` committed transactions leave.
    states: Vec<State>,
}

impl Run {
    /// The disk after the first `count` events; what no flush covers is kept in whole, in part or not, if there
    /// is a generator to decide.
    fn crash(&self, count: usize, mut rng: Option<&mut SmallRng>) -> Vec<u8> {
        let events = &self.events[..count];
        let flushed = events.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
        let mut disk = self.base.clone();
        for (index, event) in events.iter().enumerate() {
            let Event::Write { offset, bytes, durable } = event else { continue };
            let safe = index < flushed || (*durable && index + 1 < count);
            for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                let kept = safe || rng.as_deref_mut().is_none_or(|rng| rng.random_bool(0.6));
                if kept {
                    let at = offset + sector * SECTOR;
                    disk[at..at + SECTOR].copy_from_slice(part);
                }
            }
        }
        disk
    }

    /// How many transactions must be there after `count` events, and how many can be.
    fn committed(&self, count: usize) -> (usize, usize) {
        let at_least = self.commits.iter().filter(|commit| **commit + 1 < count).count();
        let at_most = self.commits.iter().filter(|commit| **commit < count).count();
        (at_least, at_most)
    }

    /// The state that a replayed disk is in.
    fn state_of(&self, image: &Image, disk: &[u8], range: (usize, usize)) -> Option<usize> {
        (range.0..=range.1).find(|committed| {
            self.states[*committed]
                .iter()
                .all(|(block, bytes)| bytes.as_ref().is_none_or(|bytes| image.block(disk, *block) == bytes))
        })
    }
}

fn contents(rng: &mut SmallRng, block_bytes: usize) -> Bytes {
    let mut bytes: Vec<u8> = (0..block_bytes).map(|_| rng.random()).collect();
    if rng.random_bool(0.2) {
        bytes[..4].copy_from_slice(&MAGIC);
    }
    bytes.into()
}

fn journal_blocks(image: &Image) -> Vec<DiskBlock> {
    image.blocks_of("<8>").into_iter().map(DiskBlock).collect()
}

fn open(disk: Arc<dyn BlockDevice>, block_bytes: usize, blocks: &[DiskBlock]) -> Journal {
    Journal::load(disk, block_bytes as u32, blocks.to_vec()).unwrap()
}

/// Transactions that overwrite free blocks of an image, free some of them, and write into freed ones in place, with
/// steps of a checkpoint in between.
fn record(image: &Image, block_bytes: usize, format: Option<(bool, bool)>, rounds: u64, seed: u64) -> Run {
    let mut rng = SmallRng::seed_from_u64(seed);
    image.debugfs(&["feature needs_recovery"]);
    let blocks = journal_blocks(image);
    let mut base = image.bytes();
    for block in &blocks[1..] {
        // The log need not be zeros before it is used.
        let at = block.0 as usize * block_bytes;
        rng.fill(&mut base[at..at + block_bytes]);
    }
    let homes = image.free_blocks(90, 5000.min(base.len() as u64 / block_bytes as u64 / 2));
    let disk = Recorder::new(base.clone());
    let journal = open(disk.clone(), block_bytes, &blocks);
    if let Some((checksums, bits64)) = format {
        journal.choose_format(checksums, bits64).unwrap();
    }
    let mut state: State =
        homes.iter().map(|home| (*home, Some(Bytes::copy_from_slice(image.block(&base, *home))))).collect();
    let (mut states, mut commits, mut freed) = (vec![state.clone()], Vec::new(), BTreeSet::new());
    for round in 0..rounds {
        for block in std::mem::take(&mut freed) {
            let bytes = contents(&mut rng, block_bytes);
            (&*disk as &dyn BlockDevice).write(block * block_bytes as u64, bytes.clone()).unwrap();
            state.insert(block, Some(bytes));
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..rng.random_range(1..if round % 5 == 4 { 200 } else { 20 }) {
            metadata.insert(homes[rng.random_range(0..homes.len())], contents(&mut rng, block_bytes));
        }
        state.extend(metadata.iter().map(|(block, bytes)| (*block, Some(bytes.clone()))));
        for _ in 0..rng.random_range(0..4) {
            let block = homes[rng.random_range(0..homes.len())];
            if !metadata.contains_key(&block) {
                freed.insert(block);
                state.insert(block, None);
            }
        }
        let transaction = Transaction {
            metadata: metadata.into_iter().map(|(block, bytes)| (DiskBlock(block), bytes)).collect(),
            freed: freed.iter().map(|block| (DiskBlock(*block), 1)).collect(),
            stamp: bimetal::time::Stamp::default(),
        };
        journal.commit(Time(round), transaction).unwrap();
        commits.push(disk.count() - 1);
        states.push(state.clone());
        if rng.random_bool(0.5) {
            journal.step(Time(round), rng.random_range(1..40)).unwrap();
        }
    }
    journal.close(Time(rounds)).unwrap();
    assert!(rounds < 40 || journal.stats().checkpoints > 2, "the log is gone round");
    let events = disk.events.lock().unwrap().clone();
    Run { base, events, commits, states }
}

/// Replays a disk with our own code.
fn replayed(disk: Vec<u8>, block_bytes: usize, blocks: &[DiskBlock]) -> Vec<u8> {
    let ram = Arc::new(Ram::from_bytes("crashed", disk));
    open(ram.clone(), block_bytes, blocks).recover().unwrap();
    ram.image()
}

/// The journal's superblock says empty; the number of the next transaction.
fn next_number(image: &Image, disk: &[u8], blocks: &[DiskBlock]) -> u32 {
    let superblock = image.block(disk, blocks[0].0);
    let word = |at: usize| u32::from_be_bytes(superblock[at..at + 4].try_into().unwrap());
    assert_eq!(word(28), 0, "the log is empty");
    word(24)
}

fn each_crash_leaves_a_prefix(
    block_bytes: usize,
    options: &[&str],
    format: Option<(bool, bool)>,
    rounds: u64,
) {
    let image = Image::make((block_bytes / 256) as u32, block_bytes, options);
    let run = record(&image, block_bytes, format, rounds, 7);
    let blocks = journal_blocks(&image);
    let mut rng = SmallRng::seed_from_u64(8);
    let mut seen = BTreeSet::new();
    for count in 0..=run.events.len() {
        for torn in [false, true] {
            let disk = run.crash(count, torn.then_some(&mut rng));
            let ours = replayed(disk.clone(), block_bytes, &blocks);
            let state = run.state_of(&image, &ours, run.committed(count));
            assert!(state.is_some(), "{count} requests, torn {torn}: no prefix");
            seen.extend(state);
            if count % 7 == 0 {
                let other = image.with(&disk);
                let said = other.e2fsck(&["-fy"]);
                assert!(said.code <= 1 && !said.text.contains("orrupt"), "{count}: {}", said.text);
                let theirs = other.bytes();
                for block in run.states[0].keys() {
                    assert!(
                        image.block(&theirs, *block) == image.block(&ours, *block),
                        "{count} {torn} {block}"
                    );
                }
                let numbers = [&ours, &theirs].map(|disk| next_number(&image, disk, &blocks));
                // Of a log that is empty already, e2fsck skips one number.
                let skipped = u32::from(disk == ours);
                assert_eq!(numbers[0] + skipped, numbers[1]);
            }
        }
    }
    assert_eq!(seen.len(), run.states.len(), "every prefix was seen");
}

#[test]
fn a_crash_at_any_request_leaves_a_prefix_with_checksums_and_64_bits() {
    each_crash_leaves_a_prefix(1024, &["-J", "size=1"], Some((true, true)), 60);
}

#[test]
fn a_crash_at_any_request_leaves_a_prefix_with_4_kib_blocks() {
    each_crash_leaves_a_prefix(4096, &["-J", "size=4"], Some((true, true)), 10);
}

#[test]
fn a_crash_at_any_request_leaves_a_prefix_without_checksums() {
    each_crash_leaves_a_prefix(1024, &["-J", "size=1", "-O", "^metadata_csum,^64bit"], None, 60);
}

#[test]
fn the_kernel_replays_our_log() {
    let image = Image::make(16, 1024, &["-J", "size=1"]);
    if let Err(why) = image.with(&image.bytes()).mount() {
        return println!("skipped: {why}");
    }
    let run = record(&image, 1024, Some((true, true)), 30, 11);
    let blocks = journal_blocks(&image);
    let mut rng = SmallRng::seed_from_u64(12);
    for count in (10..run.events.len()).step_by(run.events.len() / 8) {
        let disk = run.crash(count, Some(&mut rng));
        let ours = replayed(disk.clone(), 1024, &blocks);
        let other = image.with(&disk);
        drop(other.mount().unwrap());
        let theirs = other.bytes();
        for block in run.states[0].keys() {
            assert!(image.block(&theirs, *block) == image.block(&ours, *block), "{count} {block}");
        }
    }
}

/// Ends a mounted ext4 as a power cut would: its log stays as it is on the device, and nothing is written any more.
///
/// A copy of a file system that goes on working is no such state: blocks that were copied early are older than the log
/// that was copied late, and what e2fsck makes of that is not defined.
fn shut_down(root: &Path) -> Result<(), String> {
    /// `EXT4_IOC_SHUTDOWN` of `fs/ext4/ext4.h`, and its flag that drops what is not in the log yet.
    const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    const WITHOUT_LOG: u32 = 2;
    let dir = fs::File::open(root).unwrap();
    // SAFETY: the request reads the one word that the pointer names, which outlives the call.
    match unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &WITHOUT_LOG) } {
        0 => Ok(()),
        _ => Err(format!("ext4 cannot be shut down here: {}", std::io::Error::last_os_error())),
    }
}

/// Makes a log by working in a file system that the kernel has mounted, as a power cut would leave it.
fn kernel_log(options: &[&str]) -> Result<Image, String> {
    let image = Image::make(64, 4096, options);
    let mounted = image.mount()?;
    let root = mounted.path().to_path_buf();
    for number in 0..300 {
        let dir = root.join(format!("dir{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        let mut file = fs::File::create(dir.join(format!("file{number}"))).unwrap();
        file.write_all(&vec![number as u8; 1000 + number * 37]).unwrap();
        if number % 3 == 0 {
            fs::remove_file(root.join(format!("dir{}/file{}", number / 2 % 7, number / 2))).ok();
        }
        if number % 10 == 0 {
            file.sync_all().unwrap();
        }
        if number % 60 == 0 {
            fs::remove_dir_all(root.join(format!("dir{}", (number + 3) % 7))).ok();
        }
    }
    fs::File::open(&root).unwrap().sync_all().unwrap();
    shut_down(&root)?;
    drop(mounted);
    Ok(image)
}

#[test]
fn a_log_that_the_kernel_wrote_is_replayed_as_e2fsck_does() {
    for options in [&["-J", "size=4"][..], &["-J", "size=4", "-O", "^metadata_csum,^64bit"]] {
        // Where much else is written, the kernel brings a log's blocks home early, and little is left in it.
        let mut tries = 0;
        let (disk, ours, theirs, blocks, recovery) = loop {
            let crashed = match kernel_log(options) {
                Ok(crashed) => crashed,
                Err(why) => return println!("skipped: {why}"),
            };
            // Both start from the same bytes: where another process holds a mount namespace from before the unmount, the
            // kernel writes this image for a while after it.
            let disk = crashed.bytes();
            let (ours, theirs) = (crashed.with(&disk), crashed.with(&disk));
            let device = Arc::new(FileDevice::open(&ours.path(), true).unwrap());
            let blocks = journal_blocks(&ours);
            let journal = open(device, 4096, &blocks);
            assert!(journal.needs_recovery());
            let recovery = journal.recover().unwrap();
            // A process that another test forked meanwhile can hold a directory open that is removed here: it stays an
            // orphan, which e2fsck releases after the log, as a mount of ours would, and a replay alone does not.
            let orphan = u32::from_le_bytes(ours.bytes()[1024 + 0xE8..][..4].try_into().unwrap());
            if recovery.transactions > 3 && recovery.blocks > 20 && orphan == 0 {
                break (disk, ours, theirs, blocks, recovery);
            }
            tries += 1;
            assert!(tries < 5, "{recovery:?}, first orphan {orphan}");
        };
        let said = theirs.e2fsck(&["-y", "-E", "journal_only"]);
        assert!(said.code <= 1, "{}", said.text);
        let after = [ours.bytes(), theirs.bytes()];
        for (block, (ours, theirs)) in after[0].chunks(4096).zip(after[1].chunks(4096)).enumerate() {
            // e2fsck notes in the file system's superblock that it was there.
            let Some(at) = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs && block > 0)
            else {
                continue;
            };
            let part = at..(at + 16).min(4096);
            let log = blocks.iter().position(|&of_log| of_log == DiskBlock(block as u64));
            let was = &disk[block * 4096..][part.clone()];
            panic!(
                "block {block} (of the log: {log:?}) at {at}: {was:x?} became {:x?}, by e2fsck {:x?}; {recovery:?}",
                &ours[part.clone()],
                &theirs[part]
            );
        }
        let said = ours.e2fsck(&["-fn"]);
        assert_eq!(said.code, 0, "{}", said.text);
    }
}

#[test]
fn logs_that_debugfs_wrote_in_every_checksum_version_are_replayed() {
    let image = Image::make(8, 1024, &["-J", "size=1"]);
    let homes = image.free_blocks(60, 5000);
    let data = image.path().with_file_name("data");
    for version in ["", "-c -v 1", "-c -v 2", "-c -v 3"] {
        let copy = image.with(&image.bytes());
        let mut requests = Vec::new();
        for round in 0..3_u8 {
            let own = data.with_extension(round.to_string());
            let bytes: Vec<u8> = (0..60_u8).flat_map(|n| vec![round * 60 + n + 1; 1024]).collect();
            fs::write(&own, bytes).unwrap();
            let list: Vec<String> = homes.iter().skip(round.into()).map(u64::to_string).collect();
            requests.push(format!("jo {version}"));
            requests.push(format!("jw -b {} {}", list.join(","), own.display()));
            if round == 1 {
                requests.push(format!("jw -r {}", homes[1]));
            }
            requests.push("jc".to_string());
        }
        let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
        let said = copy.debugfs(&requests);
        assert!(!said.contains("rror") && !said.contains("rong"), "{said}");
        let (crashed, blocks) = (copy.bytes(), journal_blocks(&copy));
        assert!(copy.e2fsck(&["-fy"]).code <= 1);
        let (ours, theirs) = (replayed(crashed.clone(), 1024, &blocks), copy.bytes());
        for home in &homes {
            assert!(image.block(&ours, *home) == image.block(&theirs, *home), "{version} {home}");
        }
        assert_eq!(next_number(&image, &ours, &blocks), next_number(&image, &theirs, &blocks));
        assert_eq!(image.block(&ours, homes[5])[0], 120 + 5 - 2 + 1, "{version}");
    }
}
