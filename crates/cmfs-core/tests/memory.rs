//! How much memory the file system takes: bytes asked of the allocator, per file where memory is not bounded, and at most where it
//! is. `--nocapture` shows the figures of docs/cmfs.md; what is checked is that they do not grow.

use cmfs_core::ram::{RamNand, RamNvram};
use cmfs_core::{
    Config, Error, Fs, Geometry, Kind, Layout as NvramLayout, MountKind, Nand, NandError, NewObject, Nvram,
    NvramError, ROOT, SetAttr,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

std::thread_local! {
    /// Bytes that this thread holds.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most it held since this was last set.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = held() + layout.size() as isize;
        HELD.with(|held| held.set(now));
        MOST.with(|most| most.set(most.get().max(now)));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.with(|held| held.set(held.get() - layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn held() -> isize {
    HELD.with(Cell::get)
}

const GEOMETRY: Geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 512 };

/// Bytes a file, rounded up, when the file system was opened clean, and when all was listed by name and attribute.
fn a_file(layout: NvramLayout, files: u32, file_bytes: usize, a_dir: u32) -> (isize, isize) {
    let config = Config { layout, ..Config::default() };
    let mut nand = RamNand::new(GEOMETRY);
    let mut nvram = RamNvram::new(256 << 10, nand.power());
    let node = |kind, mode| NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] };
    let make = |nand: &mut RamNand, nvram: &mut RamNvram, files: u32| {
        let mut fs = Fs::format(nand, Some(nvram), config, [1; 16], true).expect("a new one");
        let mut dir = ROOT;
        for number in 0..files {
            if number % a_dir == 0 {
                dir = fs
                    .create(ROOT, format!("dir{number}").as_bytes(), &node(Kind::Dir, 0o40_755))
                    .expect("room");
            }
            let name = format!("file{number:06}");
            let id = fs.create(dir, name.as_bytes(), &node(Kind::File, 0o100_644)).expect("room");
            fs.write(id, 0, &vec![1; file_bytes]).expect("room");
        }
        fs.update().expect("an update");
    };
    let measure = |nand: &mut RamNand, nvram: &mut RamNvram| {
        let before = held();
        let mut fs = Fs::open(nand, Some(nvram), config).expect("it opens");
        let opened = held() - before;
        let mut dirs = Vec::with_capacity(1 << 16);
        fs.list(ROOT, 0, &mut |entry| {
            dirs.push(entry.id);
            true
        })
        .expect("a listing");
        for dir in dirs.iter().copied() {
            let mut found = Vec::with_capacity(1 << 16);
            let _ = fs.list(dir, 0, &mut |entry| {
                found.push(entry.id);
                true
            });
            for id in found {
                fs.attr(id).expect("attributes");
            }
        }
        (opened, held() - before - (dirs.capacity() * 4) as isize)
    };
    make(&mut nand, &mut nvram, 0);
    let (opened, listed) = measure(&mut nand, &mut nvram);
    make(&mut nand, &mut nvram, files);
    let (opened_full, listed_full) = measure(&mut nand, &mut nvram);
    let files = files as isize;
    println!(
        "{files} files of {file_bytes} bytes: {opened} bytes opened empty, {opened_full} with them, {listed_full} listed"
    );
    ((opened_full - opened + files - 1) / files, (listed_full - listed + files - 1) / files)
}

#[test]
fn a_file_takes_no_more_memory_than_it_did() {
    for (files, file_bytes, most) in
        [(4000, 0, (160, 330)), (4000, 1000, (170, 340)), (500, 100_000, (420, 580))]
    {
        let (opened, listed) = a_file(NvramLayout::Compact, files, file_bytes, 100);
        println!("{file_bytes} bytes: {opened} bytes a file opened, {listed} listed");
        assert!(opened <= most.0 && listed <= most.1, "{file_bytes} bytes: {opened}, {listed}: {most:?}");
    }
}

#[test]
fn a_file_of_the_papers_layout_takes_its_tree_beside() {
    // Four leaves of 32 bytes and the node above them, and for 1 MB 31 and five.
    for (files, file_bytes, most) in [(500, 1000, 300), (500, 100_000, 440), (60, 1_000_000, 1900)] {
        let (opened, listed) = a_file(NvramLayout::Paper, files, file_bytes, 100);
        println!("{file_bytes} bytes, the paper's layout: {opened} bytes a file opened, {listed} listed");
        assert!(opened <= most, "{file_bytes} bytes: {opened} of {most}");
    }
}

/// A part, or an NVRAM, whose bytes are all there from the start.
struct Flat(Geometry, Vec<u8>);

impl Flat {
    fn nand(geometry: Geometry) -> Flat {
        let page = (geometry.page_bytes + geometry.spare_bytes) as usize;
        Flat(geometry, vec![0xff; geometry.pages() as usize * page])
    }

    fn page(&mut self, page: u32) -> &mut [u8] {
        let len = (self.0.page_bytes + self.0.spare_bytes) as usize;
        &mut self.1[page as usize * len..][..len]
    }
}

impl Nand for Flat {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn is_bad(&mut self, _: u32) -> Result<bool, NandError> {
        Ok(false)
    }

    fn mark_bad(&mut self, _: u32) -> Result<(), NandError> {
        Err(NandError::Failed)
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        let (from, behind) = self.page(page).split_at(data.len());
        data.copy_from_slice(from);
        spare.copy_from_slice(behind);
        Ok(0)
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        let at = self.0.page_bytes as usize;
        spare.copy_from_slice(&self.page(page)[at..]);
        Ok(0)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        let (to, behind) = self.page(page).split_at_mut(data.len());
        to.copy_from_slice(data);
        behind.copy_from_slice(spare);
        Ok(())
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        (self.0.first_page(block)..self.0.first_page(block + 1)).for_each(|page| self.page(page).fill(0xff));
        Ok(())
    }
}

impl Nvram for Flat {
    fn size_bytes(&self) -> usize {
        self.1.len()
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        bytes.copy_from_slice(self.1.get(offset..offset + bytes.len()).ok_or(NvramError)?);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.1.get_mut(offset..offset + bytes.len()).ok_or(NvramError)?.copy_from_slice(bytes);
        Ok(())
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        Ok(())
    }
}

/// The most that was held during `work`, beyond what was held before.
fn most<T>(work: impl FnOnce() -> T) -> (isize, T) {
    let before = held();
    MOST.with(|most| most.set(before));
    let done = work();
    (MOST.with(Cell::get) - before, done)
}

fn name_of(number: u32) -> String {
    format!("dir{}/file{number:06}", number / 60)
}

type Bounded<'a> = Fs<&'a mut Flat, &'a mut Flat>;

fn open<'a>(nand: &'a mut Flat, nvram: &'a mut Flat, config: Config) -> Bounded<'a> {
    Fs::open(nand, Some(nvram), config).expect("it opens")
}

fn lookup(fs: &mut Bounded, number: u32) -> Result<u32, Error> {
    let name = name_of(number);
    let (dir, name) = name.split_once('/').expect("a directory");
    let dir = fs.lookup(ROOT, dir.as_bytes())?;
    fs.lookup(dir, name.as_bytes())
}

fn contents(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32 ^ number) as u8).collect()
}

#[test]
fn bounded_memory_holds_any_number_of_files_and_no_more_than_it_may() {
    let node = |kind, mode| NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] };
    for (memory_bytes, files, file_bytes) in
        [(32 << 10, 2000, 900), (64 << 10, 2000, 900), (32 << 10, 200, 150_000)]
    {
        let config = Config { memory_bytes, cache_pages: 4, ..Config::default() };
        let allowed = (memory_bytes + config.fixed_bytes(&GEOMETRY)) as isize;
        let (mut nand, mut nvram) = (Flat::nand(GEOMETRY), Flat(GEOMETRY, vec![0; 128 << 10]));
        let bytes = contents(0, file_bytes);
        let (made, fetched) = most(|| {
            let mut fs = Fs::format(&mut nand, Some(&mut nvram), config, [1; 16], true).expect("a new one");
            let mut dir = ROOT;
            for number in 0..files {
                let name = name_of(number);
                let (parent, name) = name.split_once('/').expect("a directory");
                if number % 60 == 0 {
                    dir = fs.create(ROOT, parent.as_bytes(), &node(Kind::Dir, 0o40_755)).expect("room");
                }
                let id = fs.create(dir, name.as_bytes(), &node(Kind::File, 0o100_644)).expect("room");
                fs.write(id, 0, &bytes).expect("room");
            }
            fs.update().expect("an update");
            assert!(fs.memory_bytes() <= memory_bytes, "{}", fs.memory_bytes());
            fs.stats().fetched
        });
        let (opened, ()) = most(|| {
            let fs = open(&mut nand, &mut nvram, config);
            assert_eq!(fs.report().kind, MountKind::Clean);
            assert_eq!(fs.object_count(), files + files.div_ceil(60) + 2);
        });
        let mut buffer = vec![0; file_bytes + 1];
        let (used, ()) = most(|| {
            let mut fs = open(&mut nand, &mut nvram, config);
            for step in 0..files / 4 {
                let number = step * 7919 % files;
                let id = lookup(&mut fs, number).expect("a file");
                assert_eq!(fs.read(id, 0, &mut buffer), Ok(file_bytes));
                assert!(buffer[..file_bytes] == bytes, "file {number}");
                if step % 5 == 0 {
                    fs.write(id, 100, &bytes[100..200]).expect("room");
                }
            }
            fs.update().expect("an update");
        });
        println!(
            "{files} files of {file_bytes} bytes in {memory_bytes}: allowed {allowed}; made with {made}, {fetched} fetched; \
             opened with {opened}, used with {used}"
        );
        assert!(made <= allowed && opened <= allowed && used <= allowed);
    }
}

#[test]
fn a_scan_takes_no_more_than_it_may_however_many_files_there_are() {
    let node = |kind, mode| NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] };
    // Files of which each header follows its data; and ones whose headers are all behind all data.
    for (memory_bytes, files, file_bytes, moved) in
        [(32 << 10, 2000, 900, false), (32 << 10, 2000, 900, true), (24 << 10, 200, 150_000, true)]
    {
        let config = Config { memory_bytes, cache_pages: 4, ..Config::default() };
        let allowed = (memory_bytes + config.fixed_bytes(&GEOMETRY)) as isize;
        let (mut nand, mut nvram) = (Flat::nand(GEOMETRY), Flat(GEOMETRY, vec![0; 128 << 10]));
        let mut fs = Fs::format(&mut nand, Some(&mut nvram), config, [1; 16], true).expect("a new one");
        let (mut dir, mut ids) = (ROOT, Vec::new());
        for number in 0..files {
            let name = name_of(number);
            let (parent, name) = name.split_once('/').expect("a directory");
            if number % 60 == 0 {
                dir = fs.create(ROOT, parent.as_bytes(), &node(Kind::Dir, 0o40_755)).expect("room");
            }
            let id = fs.create(dir, name.as_bytes(), &node(Kind::File, 0o100_644)).expect("room");
            fs.write(id, 0, &contents(number, file_bytes)).expect("room");
            ids.push(id);
        }
        for id in ids.iter().filter(|_| moved) {
            fs.set_attr(*id, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).expect("room");
        }
        fs.update().expect("an update");
        drop(fs);
        let mut scan = |nvram: &mut Flat| {
            let (scanned, used) = most(|| {
                let fs = open(&mut nand, nvram, config);
                assert_eq!(fs.report().kind, MountKind::Scanned);
                assert_eq!(fs.object_count(), files + files.div_ceil(60) + 2);
                assert!(!fs.nvram_overflows());
                fs.nvram_used().map_or(0, |(used, _)| used)
            });
            println!(
                "{files} files of {file_bytes} bytes in {memory_bytes}: allowed {allowed}; scanned with {scanned}, \
                 {used} of {} bytes of NVRAM",
                nvram.1.len()
            );
            assert!(scanned <= allowed, "{scanned} of {allowed}");
            used
        };
        let used = scan(&mut Flat(GEOMETRY, vec![0; 128 << 10]));
        // What is written several times takes little more room than what is written once.
        let mut nvram = Flat(GEOMETRY, vec![0; used.next_multiple_of(8) * 5 / 4]);
        scan(&mut nvram);
        let mut fs = open(&mut nand, &mut nvram, config);
        assert_eq!(fs.report().kind, MountKind::Clean);
        let mut buffer = vec![0; file_bytes + 1];
        for number in (0..files).step_by(7) {
            let id = lookup(&mut fs, number).expect("a file");
            assert_eq!(fs.read(id, 0, &mut buffer), Ok(file_bytes));
            assert!(buffer[..file_bytes] == contents(number, file_bytes), "file {number}");
        }
    }
}
