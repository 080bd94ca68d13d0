//! Scans in bounded memory: with an NVRAM that was lost, that is being written when the power goes, or that is too small.

use super::world::{GEOMETRIES, Random, TestFs, World, make, small};
use super::{Config, Fs, Layout, MountKind, SetAttr};
use crate::error::Error;
use crate::object::ROOT;
use crate::ram::{Power, RamNand, RamNvram, Torn};
use std::{format, println};

/// Of the volumes below it holds two fifths and less.
const BOUND_BYTES: usize = 10 << 10;
const NVRAM_BYTES: usize = 16 << 10;

/// A part with small files on it, most of them in old blocks and half of those with headers in later ones.
fn volume(geometry: usize) -> (RamNand, World) {
    let mut fs = make(GEOMETRIES[geometry], NVRAM_BYTES, small(Layout::Compact));
    let (mut world, mut random) = (World::default(), Random::new(geometry as u64));
    let target = fs.capacity_pages() * 55 / 100;
    let mut made = 0;
    while fs.used_pages() < target {
        let len = 100 + random.below(1500) as usize;
        let path = format!("d{}/cold{made}", made % 2);
        world.write(&mut fs, &path, 0, &alloc::vec![made as u8; len]).expect("room");
        made += 1;
    }
    world.sync(&mut fs, true).expect("a sync");
    for number in (0..made).step_by(2) {
        let dir = fs.lookup(ROOT, format!("d{}", number % 2).as_bytes()).expect("a directory");
        let id = fs.lookup(dir, format!("cold{number}").as_bytes()).expect("a file");
        fs.set_attr(id, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).expect("room");
    }
    for pair in (0..made - 4).step_by(11) {
        let (one, two) = (format!("d{}/cold{pair}", pair % 2), format!("d1/cold{}", (pair + 3) | 1));
        world.exchange(&mut fs, &one, &two).expect("room");
    }
    for _ in 0..150 {
        world.step(&mut fs, &mut random, 6000).expect("room");
    }
    world.sync(&mut fs, false).expect("a sync");
    let all = fs.memory_bytes();
    assert!(all > 5 * BOUND_BYTES / 2, "{made} files in {all} bytes");
    (fs.into_media().0, world)
}

fn bounded(memory_bytes: usize) -> Config {
    Config { memory_bytes, ..small(Layout::Compact) }
}

fn open(nand: RamNand, nvram: RamNvram, config: Config) -> Result<TestFs, Error> {
    Fs::open(nand, Some(nvram), config)
}

#[test]
fn a_scan_finds_in_bounded_memory_what_there_is() {
    for geometry in [1, 2, 4] {
        let (nand, mut world) = volume(geometry);
        let nvram = RamNvram::new(NVRAM_BYTES, nand.power());
        let mut fs = open(nand, nvram, bounded(BOUND_BYTES)).expect("it opens");
        let what = format!("geometry {geometry}");
        assert_eq!(fs.report().kind, MountKind::Scanned, "{what}");
        assert!(fs.stats().fetched > 0 && fs.memory_bytes() <= BOUND_BYTES, "{what}: {}", fs.memory_bytes());
        world.check_all(&mut fs, &what);
        assert_eq!(fs.check(true).expect("a check"), [], "{what}");
        let (nand, nvram) = fs.into_media();
        // Names of a directory take more than the bound of these tests leaves for work.
        let config = bounded(2 * BOUND_BYTES);
        let mut fs = open(nand, nvram.expect("its NVRAM"), config).expect("it opens");
        assert_eq!(fs.report().kind, MountKind::Clean, "{what}");
        let mut random = Random::new(7);
        for _ in 0..60 {
            world.step(&mut fs, &mut random, 6000).expect("room");
        }
        world.sync(&mut fs, false).expect("a sync");
        world.check_all(&mut fs, &format!("{what}, worked on"));
        // A checkpoint of YAFFS2 says all at once, and is passed over.
        let (nand, nvram) = fs.into_media();
        let mut fs = open(nand, nvram.expect("its NVRAM"), small(Layout::Compact)).expect("it opens");
        assert_eq!(fs.checkpoint(8), Ok(true), "{what}");
        let (nand, _) = fs.into_media();
        let nvram = RamNvram::new(NVRAM_BYTES, nand.power());
        let mut fs = open(nand, nvram, bounded(BOUND_BYTES)).expect("it opens");
        assert_eq!(fs.report().kind, MountKind::Scanned, "{what}");
        world.check_all(&mut fs, &format!("{what}, with a checkpoint"));
    }
}

#[test]
fn a_scan_that_writes_the_nvram_may_be_cut_anywhere() {
    let every = if std::env::var("CUTS").is_ok_and(|cuts| cuts == "all") { 1 } else { 41 };
    let (nand, world) = volume(4);
    let (mut cuts, mut scanned) = (0, 0);
    for cut in (1..).step_by(every) {
        let power = Power::default();
        let (nand, nvram) = (nand.copy_on(power.clone()), RamNvram::new(NVRAM_BYTES, power.clone()));
        let (mut nand, mut nvram) = (nand, nvram);
        power.cut_in(cut, Torn::ALL[cut as usize / every % 4]);
        power.set_luck(cut * 77);
        let opened = Fs::open(&mut nand, Some(&mut nvram), bounded(BOUND_BYTES));
        let went = power.is_off();
        assert!(went || opened.is_ok(), "cut {cut}");
        drop(opened);
        power.on();
        let mut fs = open(nand, nvram, bounded(BOUND_BYTES)).expect("it opens");
        scanned += u64::from(fs.report().kind == MountKind::Scanned);
        world.check_all(&mut fs, &format!("cut {cut}"));
        if !went {
            assert_eq!(fs.report().kind, MountKind::Clean);
            break;
        }
        cuts += 1;
    }
    println!("{cuts} cuts, {scanned} of them with another scan");
    assert!(cuts > 20 && scanned > 0, "{cuts}, {scanned}");
}

#[test]
fn a_scan_with_an_nvram_that_is_too_small_needs_memory_for_all() {
    let (nand, world) = volume(1);
    for nvram_bytes in [400, 700, 850, 1000, 1200] {
        let (mut refused, mut overflowed, mut opened) = (0, 0, 0);
        for memory_bytes in (BOUND_BYTES / 2..BOUND_BYTES * 5).step_by(1536) {
            let what = format!("{memory_bytes} bytes of memory, {nvram_bytes} of NVRAM");
            let power = Power::default();
            let (nand, nvram) = (nand.copy_on(power.clone()), RamNvram::new(nvram_bytes, power.clone()));
            let before = nand.counts().programs;
            let fs = match open(nand, nvram, bounded(memory_bytes)) {
                Err(error) => {
                    assert_eq!((error, overflowed + opened), (Error::NoMemory, 0), "{what}");
                    refused += 1;
                    continue;
                }
                Ok(fs) => fs,
            };
            let overflows = fs.nvram_overflows();
            overflowed += u32::from(overflows);
            opened += u32::from(!overflows);
            let (nand, nvram) = fs.into_media();
            assert!(nand.counts().programs <= before + 2, "{what}");
            let nvram = nvram.expect("its NVRAM");
            let mut fs = open(nand, nvram, small(Layout::Compact)).expect("it opens");
            let expected = if overflows { MountKind::Scanned } else { MountKind::Clean };
            assert_eq!(fs.report().kind, expected, "{what}");
            world.check_all(&mut fs, &what);
        }
        println!("{nvram_bytes}: {refused} refused, {overflowed} without the NVRAM, {opened} with it");
        let is_small = nvram_bytes < 500;
        assert!(opened == 0 || !is_small, "{nvram_bytes}");
        assert!(overflowed > 0 && refused > 0 || !is_small, "{nvram_bytes}");
    }
}
