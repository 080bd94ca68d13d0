//! What a large SSD costs in memory: on a device of a tebibyte of which next to nothing is there.

use super::*;
use crate::media::counted::Counted;
use crate::media::file::FileDevice;
use crate::media::overlay::Overlay;
use crate::media::{Completion, DeviceInfo, Request, Ticket};
use crate::time::Time;
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

    fn wait(&self, ticket: Ticket) -> Completion {
        ticket.done()
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
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
    Ssd::format(&device, &Config::default(), &Tie::default()).unwrap();
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
            let piece = Piece::new(0, block_in(&self.layout, number), 1, WrDone::Both, 0);
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

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Makes `files` one-block files on an SSD of a tebibyte within `limit`, and opens it again.
fn make_and_open(rest: Arc<dyn BlockDevice>, files: u32, limit: u64) -> (Memory, Memory) {
    Ssd::format(rest.as_ref(), &Config::default(), &Tie::default()).unwrap();
    let mut ssd = Ssd::open_within(rest.as_ref(), DiskSide::default(), limit).unwrap().ssd;
    let layout = ssd.superblock.layout.clone();
    let device = Made { rest, layout, seal: ssd.seal.clone(), files };
    let start = resident_bytes();
    for number in 0..files {
        let op = u64::from(number) + 1;
        let run = ssd.allocate(0, 1, Time(1)).unwrap()[0];
        assert_eq!(run.at.0, u64::from(block_in(&device.layout, number)), "file {number}");
        let inode = DupInode { size: ino_in(number), ..DupInode::default() };
        let binding = Binding { file_block: 0, run, sums: &[0x0707_0707], state: WrDone::Ssd, inode: &inode };
        ssd.bind(op, Ino(ino_in(number)), &binding).unwrap();
        if number % 1000 == 999 || number + 1 == files {
            seal_all(&mut ssd, &device);
            ssd.trim(op);
        }
        if ssd.needs_checkpoint() || number + 1 == files {
            checkpoint(&mut ssd, &device);
            ssd.append(op, b"").unwrap();
            seal_all(&mut ssd, &device);
            ssd.trim(op);
        }
    }
    let (made, grown) = (ssd.memory(), resident_bytes().saturating_sub(start));
    println!("made: {made:?}, resident set grown by {} MiB", grown >> 20);
    drop(ssd);
    let start = resident_bytes();
    let clock = std::time::Instant::now();
    let opened = Ssd::open_within(&device, DiskSide::default(), limit).unwrap();
    let (found, grown) = (opened.ssd.memory(), resident_bytes().saturating_sub(start));
    println!("opened in {:?}: {found:?}, resident set grown by {} MiB", clock.elapsed(), grown >> 20);
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    let ssd = opened.ssd;
    assert_eq!(ssd.residency.len() as u32, files);
    for number in (0..files).step_by(files as usize / 1000) {
        let found = ssd.resident(Ino(ino_in(number)), 0).unwrap();
        assert_eq!(found.at.0, u64::from(block_in(&device.layout, number)));
        assert_eq!(ssd.sums(found.at, 1).read(&device).unwrap(), [0x0707_0707]);
        let inode = ssd.read_dup_inode(&device, Ino(ino_in(number))).unwrap();
        assert_eq!(inode.map(|inode| inode.size), Some(ino_in(number)));
    }
    (made, found)
}

#[test]
fn a_one_block_file_costs_less_than_27_bytes() {
    const FILES: u32 = 100_000;
    for memory in <[Memory; 2]>::from(make_and_open(Arc::new(empty_device()), FILES, 8 << 20)) {
        assert!(memory.used_bytes <= 8 << 20, "{memory:?}");
        let each = (memory.map_bytes + memory.queue_bytes + memory.allocator_bytes) as f64;
        let each = (each - (3 << 20) as f64) / f64::from(FILES);
        assert!(each < 27.0, "{each} bytes a file: {memory:?}");
    }
}

/// Minutes in a debug build: `cargo test --release --lib ten_million -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn ten_million_one_block_files_take_less_than_256_mib() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(TEBIBYTE).unwrap();
    let device = Arc::new(FileDevice::open(file.path(), true).unwrap());
    for memory in <[Memory; 2]>::from(make_and_open(device, 10_000_000, 256 << 20)) {
        assert!(memory.used_bytes <= 256 << 20, "{memory:?}");
    }
}

#[test]
fn what_memory_has_no_room_for_is_evicted_or_finds_none() {
    let (device, mut ssd) = formatted(64 << 20, &Config { bytes_per_slot: 4096, ..Config::default() });
    ssd.set_memory_limit(0);
    let inode = DupInode::default();
    let run = ssd.allocate(0, 1, Time(1)).unwrap()[0];
    let binding = Binding { file_block: 0, run, sums: &[1], state: WrDone::Both, inode: &inode };
    let error = ssd.bind(1, Ino(1), &binding).unwrap_err();
    assert!(matches!(error, crate::Error::NoSpace(_)), "{error}");
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
