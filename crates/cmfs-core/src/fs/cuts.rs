//! Power cuts: at every program, erase and NVRAM word of seeded work, in all the ways a cut can leave the medium,
//! on five shapes of parts, and for some again while the file system recovers. What was synced must be there, and
//! the file system must go on working.
//!
//! `CUTS` says how many cuts of each series are tried, evenly spread (`all`: every one). A failure names its
//! geometry, layout, seed and cut, which are all it depends on.

use super::world::{GEOMETRIES, Random, TestFs, World, make, small};
use super::{Config, Fs, Layout};
use crate::error::Error;
use crate::media::Geometry;
use crate::ram::{Power, RamNand, RamNvram, Torn};
use std::{format, println};

/// A part with files on it, from which each cut starts.
struct Base {
    nand: RamNand,
    nvram: RamNvram,
    world: World,
    config: Config,
}

impl Base {
    /// Full enough that the work to follow cleans.
    fn new(geometry: Geometry, layout: Layout, seed: u64) -> Base {
        let config = small(layout);
        let mut fs = make(geometry, 6 << 10, config);
        let (mut world, mut random) = (World::default(), Random::new(seed));
        let target = fs.capacity_pages() * 6 / 10;
        for number in 0.. {
            if fs.used_pages() > target {
                break;
            }
            let len = 500 + random.below(30_000) as usize;
            let path = format!("d{}/cold{number}", number % 2);
            world.write(&mut fs, &path, 0, &alloc::vec![number as u8; len]).expect("room");
        }
        for _ in 0..400 {
            world.step(&mut fs, &mut random, 30_000).expect("room");
        }
        world.sync(&mut fs, true).expect("a sync");
        let (nand, nvram) = fs.into_media();
        Base { nand, nvram: nvram.expect("its NVRAM"), world, config }
    }

    /// Works until the power goes in the `cut`-th operation; the media, and whether it went.
    fn work(&self, seed: u64, cut: u64, torn: Torn, luck: u64) -> (RamNand, RamNvram, World, bool, u64) {
        let power = Power::default();
        let (nand, nvram) = (self.nand.copy_on(power.clone()), self.nvram.copy_on(power.clone()));
        let mut fs = Fs::open(nand, Some(nvram), self.config).expect("it opens");
        let (mut world, mut random) = (self.world.clone(), Random::new(seed));
        if cut > 0 {
            power.cut_in(cut, torn);
            power.set_luck(luck);
        }
        let mut result = Ok(());
        for _ in 0..25 {
            result = world.step(&mut fs, &mut random, 30_000);
            if result.is_err() {
                break;
            }
        }
        let went = power.is_off();
        assert!(result.is_ok() != went, "{result:?} with the power {}", if went { "off" } else { "on" });
        assert!(result.is_ok() || result == Err(Error::Gone));
        let operations = power.operations();
        power.on();
        let (nand, nvram) = fs.into_media();
        (nand, nvram.expect("its NVRAM"), world, went, operations)
    }
}

/// The power goes once more while the file system opens, or makes durable what it found.
fn cut_again(base: &Base, nand: &mut RamNand, nvram: &mut RamNvram, cut: u64) {
    let power = nand.power();
    power.cut_in(1 + cut % 30, Torn::ALL[(cut / 7 % 4) as usize]);
    power.set_luck(cut);
    if let Ok(mut fs) = Fs::open(nand, Some(nvram), base.config) {
        let done = fs.update();
        assert!(done.is_ok() || done == Err(Error::Gone), "{done:?}");
    }
    power.on();
}

/// Opens after a cut, and goes on.
fn survive(base: &Base, media: (RamNand, RamNvram, World), seed: u64, again: Option<u64>, what: &str) {
    let (mut nand, mut nvram, mut world) = media;
    if let Some(cut) = again {
        cut_again(base, &mut nand, &mut nvram, cut);
    }
    let opened = Fs::open(nand, Some(nvram), base.config);
    let mut fs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let why = fs.report().why;
    assert!(base.config.layout == Layout::Paper || why.is_empty(), "{what}: scanned, since {why}");
    world.check_synced(&mut fs, what);
    world.check_gone(&mut fs, what);
    world.start_over(&mut fs);
    let mut random = Random::new(seed ^ 0xabcd);
    for _ in 0..6 {
        world.step(&mut fs, &mut random, 30_000).unwrap_or_else(|error| panic!("{what}, going on: {error}"));
    }
    world.sync(&mut fs, false).expect("a sync");
    let (nand, nvram) = fs.into_media();
    let mut fs = Fs::open(nand, nvram, base.config).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    world.check_all(&mut fs, &format!("{what}, going on"));
    lose_nvram(base, fs.into_media(), &mut world, &mut random, what);
}

/// The NVRAM is lost, and work goes on without it; then it comes back.
fn lose_nvram(
    base: &Base,
    media: (RamNand, Option<RamNvram>),
    world: &mut World,
    random: &mut Random,
    what: &str,
) {
    let (nand, nvram) = media;
    let mut fs: TestFs =
        Fs::open(nand, None, base.config).unwrap_or_else(|error| panic!("{what}, alone: {error}"));
    world.check_all(&mut fs, &format!("{what}, NVRAM lost"));
    for _ in 0..4 {
        world.step(&mut fs, random, 30_000).unwrap_or_else(|error| panic!("{what}, alone: {error}"));
    }
    world.write(&mut fs, "d0/f0", 0, &[1; 100]).unwrap_or_else(|error| panic!("{what}, alone: {error}"));
    world.sync(&mut fs, false).expect("a sync");
    let (nand, _) = fs.into_media();
    let mut fs = Fs::open(nand, nvram, base.config).unwrap_or_else(|error| panic!("{what}, back: {error}"));
    assert_eq!(fs.report().kind, super::MountKind::Scanned, "{what}: a stale NVRAM is believed");
    world.check_all(&mut fs, &format!("{what}, NVRAM back"));
}

/// Every cut of one series, or as many as asked for.
fn series(geometry: usize, layout: Layout, seed: u64) -> u64 {
    let asked = std::env::var("CUTS").unwrap_or_else(|_| "12".into());
    let base = Base::new(GEOMETRIES[geometry], layout, seed);
    let (_, _, _, _, operations) = base.work(seed, 0, Torn::All, 0);
    let count = if asked == "all" { operations } else { asked.parse().unwrap_or(12).min(operations) };
    let mut tried = 0;
    for number in 0..count {
        let cut = number * operations / count + 1;
        let torn = Torn::ALL[(cut % 4) as usize];
        // Of words that were not persisted none got there, or all, or any: these twice where there are several.
        let mut lucks = std::vec![[0, u64::MAX][(cut / 4 % 2) as usize]];
        while let Some(luck) = lucks.pop() {
            let what =
                format!("geometry {geometry}, {layout:?}, seed {seed}, cut {cut} {torn:?}, luck {luck}");
            let (nand, nvram, world, went, _) = base.work(seed, cut, torn, luck);
            assert!(went, "{what}: the power stayed on");
            if nvram.unpersisted() > 1 && matches!(luck, 0 | u64::MAX) {
                lucks = std::vec![seed << 32 ^ cut, seed << 48 ^ cut];
            }
            survive(&base, (nand, nvram, world), seed, (cut % 3 == 0).then_some(cut ^ luck), &what);
            tried += 1;
        }
    }
    println!("geometry {geometry}, {layout:?}, seed {seed}: {count} cuts of {operations}, {tried} states");
    tried
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_operation() {
    let mut cuts = 0;
    for geometry in 0..GEOMETRIES.len() {
        for seed in 1..=3 {
            cuts += series(geometry, Layout::Compact, seed);
        }
        cuts += series(geometry, Layout::Paper, 4);
    }
    println!("{cuts} power cuts survived");
}

#[test]
fn what_was_synced_survives_the_loss_of_power_and_nvram_together() {
    for (number, geometry) in GEOMETRIES.into_iter().enumerate() {
        let base = Base::new(geometry, Layout::Compact, 6);
        let (_, _, _, _, operations) = base.work(6, 0, Torn::All, 0);
        for cut in (1..operations).step_by(operations as usize / 12 + 1) {
            let torn = Torn::ALL[(cut % 4) as usize];
            let what = format!("geometry {number}, cut {cut} {torn:?}, NVRAM lost");
            let (nand, _, world, _, _) = base.work(6, cut, torn, cut);
            let mut fs: TestFs = Fs::open(nand, None, base.config).expect("a scan");
            world.check_synced(&mut fs, &what);
        }
    }
}
