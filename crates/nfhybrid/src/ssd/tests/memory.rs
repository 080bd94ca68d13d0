//! What a large SSD costs in memory: on a device of a tebibyte of which next to nothing is there.

use super::*;
use bimetal_base::time::Time;
use bimetal_media::counted::Counted;
use bimetal_media::file::FileDevice;
use bimetal_media::overlay::Overlay;
use bimetal_media::{Completion, DeviceInfo, Request, Ticket};
use std::ops::Range;
use std::sync::Arc;

const TEBIBYTE: u64 = 1 << 40;

/// A device of zeros.
struct Zeros(DeviceInfo);

impl BlockDevice for Zeros {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let len = if let Request::Read { len, .. } = request { len } else { 0 };
        Ticket::Done(Completion { at, result: Ok(Bytes::from(vec![0; len])) })
    }
}

fn empty_device() -> Overlay {
    let name = "ssd".to_string();
    let info =
        DeviceInfo { name, size_bytes: TEBIBYTE, block_bytes: 4096, atomic_bytes: 512, rotational: false };
    Overlay::new(Arc::new(Zeros(info)))
}

#[test]
fn an_empty_ssd_of_a_tebibyte_takes_four_megabytes_and_reads_forty() {
    let device = Counted::new(Arc::new(empty_device()));
    Ssd::format(&device, &Config::default(), &Pairing::default()).unwrap();
    let before = device.counts();
    let start = std::time::Instant::now();
    let opened = Ssd::open(&device, DiskSide::default()).unwrap();
    println!("opened in {:?}", start.elapsed());
    let read = device.counts().read_bytes - before.read_bytes;
    let memory = opened.ssd.memory();
    assert!(memory.used_bytes < 4 << 20, "{memory:?}");
    assert!(read < 40 << 20, "{read} bytes read");
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
}

/// A tebibyte with one-block files, of which only the log and the bitmaps are kept: slots and checksums are computed
/// from the order in which files were made.
struct Made {
    rest: Arc<dyn BlockDevice>,
    layout: layout::Layout,
    seal: Seal,
    files: u32,
}

/// The inode of the file in a slot.
fn ino_in(slot: u32) -> u64 {
    u64::from(slot) * 3 + 12
}

/// The block of the file in a slot: five of them fill an extent of sixteen blocks.
fn block_in(layout: &layout::Layout, slot: u32) -> u32 {
    layout.first_block(&layout.sections[0]) + slot / 5 * 16 + [0, 1, 2, 4, 8][slot as usize % 5]
}

impl Made {
    /// Of an SSD that was formatted.
    fn of(rest: Arc<dyn BlockDevice>, files: u32) -> Made {
        let superblock = Superblock::read(rest.as_ref(), &mut Vec::new()).unwrap();
        Made { rest, seal: Seal::new(&superblock.uuid), layout: superblock.layout, files }
    }

    fn slots(&self) -> Range<u64> {
        self.layout.slots..self.layout.sections[0].sums
    }

    fn sums(&self) -> Range<u64> {
        self.layout.sections[0].sums..self.layout.sections[0].data
    }

    fn slot_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (index, bytes) in bytes.chunks_mut(256).enumerate() {
            let at = offset + index as u64 * 256;
            let number = ((at - self.layout.slots) / 256) as u32;
            if number >= self.files {
                continue;
            }
            let piece = Piece::new(0, block_in(&self.layout, number), 1, CopyState::Both, 0);
            let inode = slot::PackedInode::from(&DupInode { size: ino_in(number), ..DupInode::default() });
            let (ino, pieces) = (ino_in(number), &[piece]);
            let content = slot::Content { ino, inode: Some(&inode), section: 0, pieces };
            let first = self.layout.first_block(&self.layout.sections[0]);
            slot::write(bytes, at, &self.seal, &content, |at| (at - (at - first) % 16, (at - first) % 16));
        }
        bytes
    }

    fn sum_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![7; len];
        self.seal.close(offset, &mut bytes);
        bytes
    }
}

impl BlockDevice for Made {
    fn info(&self) -> &DeviceInfo {
        self.rest.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let done = |bytes: Vec<u8>| Ticket::Done(Completion { at, result: Ok(Bytes::from(bytes)) });
        match request {
            Request::Read { offset, len } if self.slots().contains(&offset) => {
                done(self.slot_bytes(offset, len))
            }
            Request::Read { offset, len } if self.sums().contains(&offset) => {
                done(self.sum_bytes(offset, len))
            }
            Request::Write { offset, .. }
                if self.slots().contains(&offset) || self.sums().contains(&offset) =>
            {
                done(Vec::new())
            }
            other => self.rest.submit(at, other),
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.rest.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.rest.is_done(ticket)
    }
}

/// The most this process ever had resident, in bytes.
fn resident_peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Forgets what was resident before.
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// What an SSD says it holds, and by how much the process grew at most.
type Grown = (Memory, u64);

/// What `run` left, and by how much this process grew at most meanwhile.
fn watched<T>(what: &str, run: impl FnOnce() -> (T, Memory)) -> (T, Grown) {
    forget_peak();
    let (start, clock) = (resident_peak(), std::time::Instant::now());
    let (left, memory) = run();
    let grown = resident_peak() - start;
    println!("{what} in {:?}: {memory:?}, grown by {:.1} MiB", clock.elapsed(), grown as f64 / 1048576.0);
    (left, (memory, grown))
}

/// Makes one-block files on a formatted SSD of a tebibyte.
fn make(device: &Made, limit: u64) -> Memory {
    let files = device.files;
    let mut ssd = Ssd::open_within(device.rest.as_ref(), DiskSide::default(), limit).unwrap().ssd;
    for number in 0..files {
        let op = u64::from(number) + 1;
        let run = ssd.allocate(0, 1, Time(1)).unwrap()[0];
        assert_eq!(run.at.0, u64::from(block_in(&device.layout, number)), "file {number}");
        let inode = DupInode { size: ino_in(number), ..DupInode::default() };
        let binding =
            Binding { file_block: 0, run, sums: &[0x0707_0707], state: CopyState::Ssd, inode: &inode };
        ssd.bind(op, Ino(ino_in(number)), &binding).unwrap();
        if number % 1000 == 999 || number + 1 == files {
            seal_all(&mut ssd, device);
            ssd.trim(op);
        }
        if ssd.needs_checkpoint() || number + 1 == files {
            checkpoint(&mut ssd, device);
            ssd.append(op, b"").unwrap();
            seal_all(&mut ssd, device);
            ssd.trim(op);
        }
    }
    ssd.memory()
}

/// Opens it again.
fn open_again(device: &Made, limit: u64) -> (Opened, Memory) {
    let opened = Ssd::open_within(device, DiskSide::default(), limit).unwrap();
    let memory = opened.ssd.memory();
    (opened, memory)
}

/// Looks at a thousand files of it.
fn look(device: &Made, opened: Opened) {
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    let ssd = opened.ssd;
    assert_eq!(ssd.residency.len() as u32, device.files);
    for number in (0..device.files).step_by(device.files as usize / 1000) {
        let found = ssd.resident(Ino(ino_in(number)), 0).unwrap();
        assert_eq!(found.at.0, u64::from(block_in(&device.layout, number)));
        assert_eq!(ssd.sums(found.at, 1).read(device).unwrap(), [0x0707_0707]);
        let inode = ssd.read_dup_inode(device, Ino(ino_in(number))).unwrap();
        assert_eq!(inode.map(|inode| inode.size), Some(ino_in(number)));
    }
}

#[test]
fn a_one_block_file_costs_less_than_27_bytes() {
    const FILES: u32 = 100_000;
    let rest: Arc<dyn BlockDevice> = Arc::new(empty_device());
    Ssd::format(rest.as_ref(), &Config::default(), &Pairing::default()).unwrap();
    let device = Made::of(rest, FILES);
    let made = make(&device, 8 << 20);
    let (opened, found) = open_again(&device, 8 << 20);
    look(&device, opened);
    for memory in [made, found] {
        assert!(memory.used_bytes <= 8 << 20, "{memory:?}");
        let each = (memory.map_bytes + memory.queue_bytes + memory.allocator_bytes) as f64;
        let each = (each - (3 << 20) as f64) / f64::from(FILES);
        assert!(each < 27.0, "{each} bytes a file: {memory:?}");
    }
}

/// Says in a process that a test starts of itself what it is to do there, and with which SSD.
const TASK: &str = "BIMETAL_MEMORY_TASK";

/// Makes `files` one-block files on an SSD of a tebibyte in one process, and opens it in another: neither may grow by more
/// than `limit`. `test` is the name of the test that calls this; it is started anew, alone in a process of its own.
fn made_and_opened_within(test: &str, files: u32, limit: u64) {
    if let Ok(task) = std::env::var(TASK) {
        return work(&task, files, limit);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(TEBIBYTE).unwrap();
    let device = FileDevice::open(file.path(), true).unwrap();
    Ssd::format(&device, &Config::default(), &Pairing::default()).unwrap();
    drop(device);
    for task in ["make", "open"] {
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &name, "--include-ignored", "--nocapture"]);
        let output = child.env(TASK, format!("{task} {}", file.path().display())).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        said.lines().filter(|line| line.contains("grown by")).for_each(|line| println!("{line}"));
        let ran = output.status.success() && said.contains("1 passed");
        assert!(ran, "{task}: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn work(task: &str, files: u32, limit: u64) {
    let (task, path) = task.split_once(' ').unwrap();
    let device = Made::of(Arc::new(FileDevice::open(path.as_ref(), true).unwrap()), files);
    let (memory, grown) = if task == "make" {
        watched("made", || ((), make(&device, limit))).1
    } else {
        let (opened, grown) = watched("opened", || open_again(&device, limit));
        look(&device, opened);
        grown
    };
    assert!(memory.used_bytes <= limit, "{memory:?}");
    assert!(grown <= limit, "grown by {grown} bytes of {limit}: {memory:?}");
}

#[test]
fn a_million_one_block_files_grow_no_process_by_more_than_48_mib() {
    let name = "a_million_one_block_files_grow_no_process_by_more_than_48_mib";
    made_and_opened_within(name, 1_000_000, 48 << 20);
}

/// Part of `make test-long`.
#[test]
#[ignore = "takes a minute"]
fn ten_million_one_block_files_grow_no_process_by_more_than_256_mib() {
    let name = "ten_million_one_block_files_grow_no_process_by_more_than_256_mib";
    made_and_opened_within(name, 10_000_000, 256 << 20);
}

#[test]
fn what_memory_has_no_room_for_is_evicted_or_finds_none() {
    let (device, mut ssd) = formatted(64 << 20, &Config { bytes_per_slot: 4096, ..Config::default() });
    ssd.set_memory_limit(0);
    let inode = DupInode::default();
    let run = ssd.allocate(0, 1, Time(1)).unwrap()[0];
    let binding = Binding { file_block: 0, run, sums: &[1], state: CopyState::Both, inode: &inode };
    let error = ssd.bind(1, Ino(1), &binding).unwrap_err();
    assert!(matches!(error, bimetal_base::Error::NoSpace(_)), "{error}");
    assert!(!ssd.has_slots(1));
    ssd.set_memory_limit(1 << 20);
    let mut made = 0;
    while ssd.has_slots(1) {
        made += 1;
        let run = ssd.allocate(0, 1, Time(made)).unwrap()[0];
        let binding = Binding { file_block: 0, run, ..binding };
        ssd.bind(made, Ino(made), &binding).unwrap();
        if made % 100 == 0 {
            checkpoint(&mut ssd, &device);
        }
    }
    assert!(made > 1000, "{made} files");
    let evicted = ssd.evict_for_slots(1, |_| false);
    assert!(evicted > 0 && ssd.has_slots(1), "{evicted} evicted");
    check(&ssd);
}
