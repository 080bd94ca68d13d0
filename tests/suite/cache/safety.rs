//! No write is lost: every policy of the registry in front of a device that fails, fills up and loses power.

use super::traces::Random;
use bimetal::cache::Config;
use bimetal::cache::device::{CachedDevice, PAGE_BYTES};
use bimetal::cache::registry::POLICIES;
use bimetal::media::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket};
use bimetal::time::Time;
use bimetal::{Error, Result};
use bytes::Bytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGES: u64 = 200;
const SECTOR: u64 = 512;

/// A device that can be told to fail, and whose power can be cut.
struct Fickle {
    info: DeviceInfo,
    inner: Mutex<Inner>,
}

struct Inner {
    now: Vec<u8>,
    durable: Vec<u8>,
    random: Random,
    /// Of 100 requests of each kind so many fail: reads, writes, flushes.
    failing: [u64; 3],
    /// No page at or above this one can be written.
    full_from: u64,
}

impl Fickle {
    fn new(seed: u64) -> Fickle {
        let size_bytes = PAGES * PAGE_BYTES;
        let (block_bytes, atomic_bytes) = (SECTOR as u32, PAGE_BYTES as u32);
        let info =
            DeviceInfo { name: "fickle".into(), size_bytes, block_bytes, atomic_bytes, rotational: false };
        let image = vec![0; size_bytes as usize];
        let inner = Inner {
            now: image.clone(),
            durable: image,
            random: Random(seed),
            failing: [0; 3],
            full_from: PAGES,
        };
        Fickle { info, inner: Mutex::new(inner) }
    }

    fn set(&self, failing: [u64; 3], full_from: u64) {
        let mut inner = self.inner.lock().unwrap();
        (inner.failing, inner.full_from) = (failing, full_from);
    }

    fn is_well(&self) -> bool {
        let inner = self.inner.lock().unwrap();
        inner.failing == [0; 3] && inner.full_from >= PAGES
    }

    /// What is there after a power cut: each unflushed page is old or new.
    fn after_cut(&self) -> Vec<u8> {
        let mut inner = self.inner.lock().unwrap();
        let mut image = inner.durable.clone();
        for page in 0..PAGES {
            let range = (page * PAGE_BYTES) as usize..((page + 1) * PAGE_BYTES) as usize;
            if inner.random.one_in(2) {
                image[range.clone()].copy_from_slice(&inner.now[range]);
            }
        }
        image
    }
}

impl Inner {
    fn serve(&mut self, request: Request) -> Result<Bytes> {
        let kind = match request {
            Request::Read { .. } => 0,
            Request::Write { .. } => 1,
            _ => 2,
        };
        if self.random.next() % 100 < self.failing[kind] {
            return Err(Error::io("fickle", std::io::Error::from_raw_os_error(5)));
        }
        match request {
            Request::Read { offset, len } => {
                return Ok(Bytes::copy_from_slice(&self.now[offset as usize..offset as usize + len]));
            }
            Request::Write { offset, data, .. } => {
                let whole: Vec<u8> = data.iter().flatten().copied().collect();
                if (offset + whole.len() as u64).div_ceil(PAGE_BYTES) > self.full_from {
                    return Err(Error::NoSpace("fickle is full"));
                }
                self.now[offset as usize..offset as usize + whole.len()].copy_from_slice(&whole);
            }
            Request::Flush => self.durable.clone_from(&self.now),
            Request::Discard { .. } => {}
        }
        Ok(Bytes::new())
    }
}

impl BlockDevice for Fickle {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: Time, request: Request) -> Ticket {
        let result = self.inner.lock().unwrap().serve(request);
        Ticket::Done(Completion { at: at + Duration::from_micros(100), result })
    }
    fn wait(&self, ticket: Ticket) -> Completion {
        let Ticket::Done(completion) = ticket else { panic!("not ours") };
        completion
    }
    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

/// The test's own idea of the contents: what each page holds now, and every content it had since the last flush.
struct Expected {
    now: Vec<Vec<u8>>,
    since_flush: Vec<Vec<Vec<u8>>>,
}

impl Expected {
    fn new() -> Expected {
        let now = vec![vec![0; PAGE_BYTES as usize]; PAGES as usize];
        Expected { since_flush: now.iter().map(|page| vec![page.clone()]).collect(), now }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, &byte) in data.iter().enumerate() {
            let at = offset as usize + at;
            self.now[at / PAGE_BYTES as usize][at % PAGE_BYTES as usize] = byte;
        }
        for page in offset / PAGE_BYTES..(offset + data.len() as u64).div_ceil(PAGE_BYTES) {
            self.since_flush[page as usize].push(self.now[page as usize].clone());
        }
    }

    fn flushed(&mut self) {
        self.since_flush = self.now.iter().map(|page| vec![page.clone()]).collect();
    }

    /// A power cut must leave each page as one of its contents since the last flush.
    fn check_cut(&self, image: &[u8], what: &str) {
        for (page, contents) in image.chunks(PAGE_BYTES as usize).enumerate() {
            let found = self.since_flush[page].iter().any(|old| old == contents);
            assert!(found, "{what}: page {page} is older than the last flush");
        }
    }
}

struct Run {
    what: String,
    device: Arc<Fickle>,
    cached: CachedDevice,
    expected: Expected,
    random: Random,
    at: Time,
    capacity: u32,
}

impl Run {
    fn new(policy: &str, seed: u64) -> Run {
        let device = Arc::new(Fickle::new(seed));
        let capacity = [1, 7, 24, 60][seed as usize % 4];
        let config = Config {
            read_ahead: if seed.is_multiple_of(2) { 8 } else { 0 },
            dirty_age: (seed.is_multiple_of(3)).then_some(Duration::from_millis(20)),
            tick: Duration::from_millis(5),
            ..Config::new(capacity).block_pages([4, 8, 16][seed as usize % 3])
        };
        let cached = CachedDevice::new(Arc::clone(&device) as Arc<dyn BlockDevice>, policy, &config).unwrap();
        let what = format!("{policy}, seed {seed}");
        Run {
            what,
            device,
            cached,
            expected: Expected::new(),
            random: Random(seed),
            at: Time::ZERO,
            capacity,
        }
    }

    fn ask(&mut self, request: Request) -> Result<Bytes> {
        let ticket = self.cached.submit(self.at, request);
        let done = self.cached.wait(ticket);
        self.at = done.at + Duration::from_micros(self.random.next() % 3000);
        assert!(self.cached.held().0 <= self.capacity, "{}: too many pages", self.what);
        done.result
    }

    fn range(&mut self) -> (u64, u64) {
        let sectors = PAGES * PAGE_BYTES / SECTOR;
        let whole_pages = !self.random.one_in(3);
        let start = self.random.next() % sectors / if self.random.one_in(2) { 1 } else { 8 };
        let len = 1 + self.random.next() % 80;
        let (start, len) = if whole_pages { (start / 8 * 8, len.div_ceil(8) * 8) } else { (start, len) };
        (start * SECTOR, len.min(sectors - start) * SECTOR)
    }

    /// Writes; a failed write is made again once the device has recovered, as a file system would have to.
    fn write(&mut self) {
        let (offset, len) = self.range();
        let data: Vec<u8> =
            (0..len / SECTOR).flat_map(|_| [self.random.next() as u8; SECTOR as usize]).collect();
        let durable = self.random.one_in(20);
        let write = |data: &[u8]| {
            let data = Gather::from_iter([Bytes::copy_from_slice(data)]);
            Request::Write { offset, data, durable }
        };
        // Whether it fails or not, from now on these contents may be there after a power cut.
        self.expected.write(offset, &data);
        if self.ask(write(&data)).is_err() {
            self.device.set([0; 3], PAGES);
            self.ask(write(&data)).expect("the device has recovered");
        }
        if durable {
            for page in offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES) {
                self.expected.since_flush[page as usize] = vec![self.expected.now[page as usize].clone()];
            }
        }
    }

    fn read(&mut self) {
        let (offset, len) = self.range();
        let bytes = match self.ask(Request::Read { offset, len: len as usize }) {
            Ok(bytes) => bytes,
            Err(_) if !self.device.is_well() => return,
            Err(error) => panic!("{}: {error} from a device that is well", self.what),
        };
        let whole: Vec<u8> = self.expected.now.concat();
        let same = bytes[..] == whole[offset as usize..(offset + len) as usize];
        assert!(same, "{}: {len} bytes at {offset} are not what was written", self.what);
    }

    fn flush(&mut self) {
        if self.ask(Request::Flush).is_ok() {
            self.expected.flushed();
            assert_eq!(self.cached.held().1, 0, "{}: dirty after a flush", self.what);
        }
    }

    fn step(&mut self) {
        match self.random.next() % 100 {
            0..45 => self.write(),
            45..80 => self.read(),
            80..86 => self.flush(),
            86..90 => {
                // A failure of the background is not the caller's; the pages stay dirty.
                let _ = self.cached.tick(self.at);
            }
            90..94 => {
                let failing = [self.random.next() % 30, self.random.next() % 60, self.random.next() % 60];
                let full_from = self.random.next() % (2 * PAGES);
                self.device.set(failing, full_from);
            }
            _ => self.device.set([0; 3], PAGES),
        }
    }
}

#[test]
fn under_every_policy_what_was_written_is_read_and_what_was_flushed_survives() {
    for entry in POLICIES {
        for seed in 0..8 {
            let mut run = Run::new(entry.name, seed);
            for _ in 0..300 {
                run.step();
                if run.random.one_in(30) {
                    let image = run.device.after_cut();
                    run.expected.check_cut(&image, &run.what);
                }
            }
            run.device.set([0; 3], PAGES);
            run.ask(Request::Flush).expect("the device has recovered");
            let whole = run.expected.now.concat();
            assert!(run.device.inner.lock().unwrap().durable == whole, "{}: at the end", run.what);
        }
    }
}

#[test]
fn a_device_that_stays_full_costs_no_page_that_was_accepted() {
    for entry in POLICIES {
        let device = Arc::new(Fickle::new(1));
        let config = Config::new(16).block_pages(4);
        let below = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let cached = CachedDevice::new(below, entry.name, &config).unwrap();
        device.set([0; 3], 0);
        let mut accepted = Vec::new();
        for page in 0..40u64 {
            let data = Gather::from_iter([Bytes::from(vec![page as u8 + 1; PAGE_BYTES as usize])]);
            let write = Request::Write { offset: page * PAGE_BYTES, data, durable: false };
            let ticket = cached.submit(Time::ZERO, write);
            if cached.wait(ticket).result.is_ok() {
                accepted.push(page);
            }
        }
        assert_eq!(accepted.len(), 16, "{}: the cache takes what it has room for", entry.name);
        device.set([0; 3], PAGES);
        (&cached as &dyn BlockDevice).flush().unwrap();
        for page in accepted {
            let at = (page * PAGE_BYTES) as usize;
            assert_eq!(
                device.inner.lock().unwrap().durable[at],
                page as u8 + 1,
                "{}: page {page}",
                entry.name
            );
        }
    }
}

#[test]
fn a_gap_that_cannot_be_read_keeps_nothing_from_being_written() {
    for entry in POLICIES {
        let device = Arc::new(Fickle::new(1));
        let below = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let cached = CachedDevice::new(below, entry.name, &Config::new(16).block_pages(8)).unwrap();
        device.set([100, 0, 0], PAGES);
        let written = || (0..PAGES).filter(|page| page % 8 != 3);
        for page in written() {
            let data = Gather::from_iter([Bytes::from(vec![page as u8 + 1; PAGE_BYTES as usize])]);
            let write = Request::Write { offset: page * PAGE_BYTES, data, durable: false };
            cached.run(Time::ZERO, write).result.unwrap_or_else(|why| panic!("{}: {why}", entry.name));
        }
        (&cached as &dyn BlockDevice).flush().unwrap();
        for page in written() {
            let found = device.inner.lock().unwrap().durable[(page * PAGE_BYTES) as usize];
            assert_eq!(found, page as u8 + 1, "{}: page {page}", entry.name);
        }
    }
}
