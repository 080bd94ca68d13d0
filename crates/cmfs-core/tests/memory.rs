//! How much memory a file takes while the file system is open: bytes asked of the allocator, per file. `--nocapture` shows
//! the figures of docs/cmfs.md; what is checked is that they do not grow.

use cmfs_core::ram::{RamNand, RamNvram};
use cmfs_core::{Config, Fs, Geometry, Kind, NewObject, ROOT};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

std::thread_local! {
    /// Bytes that this thread holds.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.with(|held| held.set(held.get() + layout.size() as isize));
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
fn a_file(files: u32, file_bytes: usize, a_dir: u32) -> (isize, isize) {
    let mut nand = RamNand::new(GEOMETRY);
    let mut nvram = RamNvram::new(256 << 10, nand.power());
    let node = |kind, mode| NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] };
    let make = |nand: &mut RamNand, nvram: &mut RamNvram, files: u32| {
        let mut fs = Fs::format(nand, Some(nvram), Config::default(), [1; 16], true).expect("a new one");
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
        let mut fs = Fs::open(nand, Some(nvram), Config::default()).expect("it opens");
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
        let (opened, listed) = a_file(files, file_bytes, 100);
        println!("{file_bytes} bytes: {opened} bytes a file opened, {listed} listed");
        assert!(opened <= most.0 && listed <= most.1, "{file_bytes} bytes: {opened}, {listed}: {most:?}");
    }
}
