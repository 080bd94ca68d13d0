//! Full in every way: whatever fills a part, it can be emptied again, and takes as much as before.

use super::world::{GEOMETRIES, Random, TestFs, make, node, reopen, small};
use super::{Fs, Layout};
use crate::error::Error;
use crate::object::{Kind, ROOT};
use crate::ram::{Power, RamNand, RamNvram, Torn};
use alloc::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec::Vec;

/// How many volumes of each kind.
fn share() -> u64 {
    std::env::var("FULL").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Names of the files that are there.
type Names = BTreeSet<String>;

fn put(fs: &mut TestFs, names: &mut Names, name: String, bytes: usize) -> Result<(), Error> {
    let id = match names.contains(&name) {
        true => fs.lookup(ROOT, name.as_bytes())?,
        false => fs.create(ROOT, name.as_bytes(), &node(Kind::File))?,
    };
    names.insert(name);
    fs.truncate(id, 0)?;
    fs.write(id, 0, &std::vec![7; bytes])
}

/// Fills it with files, large ones first, then small ones; how many bytes it took.
fn fill(fs: &mut TestFs, names: &mut Names, what: &str) -> usize {
    let mut taken = 0;
    for bytes in [40_000, 1500] {
        for number in 0.. {
            match put(fs, names, format!("{what}{bytes}-{number}"), bytes) {
                Ok(()) => taken += bytes,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    taken
}

/// One change; whether there was no room for it.
fn change(fs: &mut TestFs, names: &mut Names, random: &mut Random, what: &str) -> bool {
    let all: Vec<&String> = names.iter().collect();
    let name =
        all.get(random.below(all.len() as u64) as usize).map_or_else(String::new, |name| (*name).clone());
    let done = match random.below(10) {
        _ if name.is_empty() => put(fs, names, "first".into(), 100),
        0..4 => {
            names.remove(&name);
            fs.unlink(ROOT, name.as_bytes(), false).unwrap_or_else(|error| panic!("{what}: {error}"));
            Ok(())
        }
        4..8 => put(fs, names, name, [3000, 20_000, 40_000][random.below(3) as usize]),
        8 => {
            let id = fs.lookup(ROOT, name.as_bytes()).unwrap();
            fs.truncate(id, random.below(30_000))
        }
        _ => {
            let id = fs.lookup(ROOT, name.as_bytes()).unwrap();
            let from = random.below(20_000);
            fs.punch(id, from, from + random.below(9000))
        }
    };
    match done {
        Ok(()) => false,
        Err(Error::NoSpace) => true,
        Err(error) => panic!("{what}: {error}"),
    }
}

fn remove_all(fs: &mut TestFs, names: &mut Names, what: &str) {
    for name in core::mem::take(names) {
        fs.unlink(ROOT, name.as_bytes(), false).unwrap_or_else(|error| panic!("{what}: rm {name}: {error}"));
    }
    fs.update().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn a_part_that_was_filled_and_changed_in_every_way_can_be_emptied_and_takes_as_much_again() {
    for (number, geometry) in GEOMETRIES.into_iter().enumerate() {
        for layout in [Layout::Compact, Layout::Paper] {
            for seed in 0..share() {
                let what = format!("shape {number}, {layout:?}, seed {seed}");
                let mut random = Random::new(seed * 10 + number as u64);
                let mut fs = make(geometry, 32 << 10, small(layout));
                let mut names = Names::new();
                let first = fill(&mut fs, &mut names, "a");
                for round in 0..6 {
                    let what = format!("{what}, round {round}");
                    for _ in 0..40 {
                        if change(&mut fs, &mut names, &mut random, &what)
                            && let Some(name) = names.pop_first()
                        {
                            let gone = fs.unlink(ROOT, name.as_bytes(), false);
                            gone.unwrap_or_else(|error| panic!("{what}: rm after no space: {error}"));
                        }
                        if random.below(4) == 0 {
                            fs.sync().unwrap_or_else(|error| panic!("{what}: sync: {error}"));
                        }
                    }
                    fs.sync().unwrap_or_else(|error| panic!("{what}: sync: {error}"));
                    fs = reopen(fs, random.below(3) > 0);
                    if random.below(2) == 0 {
                        fill(&mut fs, &mut names, "b");
                    }
                }
                remove_all(&mut fs, &mut names, &what);
                assert_eq!(fs.check(true), Ok(Vec::new()), "{what}");
                let again = fill(&mut fs, &mut names, "c");
                assert!(again * 100 >= first * 93, "{what}: {again} of {first} bytes");
                remove_all(&mut fs, &mut names, &what);
                let (config, (nand, _)) = (*fs.config(), fs.into_media());
                let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
                let mut left = 0;
                fs.list(ROOT, 0, &mut |_| {
                    left += 1;
                    true
                })
                .unwrap();
                assert_eq!(left, 0, "{what}: what was removed came back");
            }
        }
    }
}

/// A full part, and the names on it.
fn full(geometry: usize, layout: Layout, seed: u64, what: &str) -> (TestFs, Names) {
    let mut random = Random::new(seed);
    let mut fs = make(GEOMETRIES[geometry], 32 << 10, small(layout));
    let mut names = Names::new();
    fill(&mut fs, &mut names, "a");
    for _ in 0..60 {
        if change(&mut fs, &mut names, &mut random, what)
            && let Some(name) = names.pop_first()
        {
            fs.unlink(ROOT, name.as_bytes(), false).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    fill(&mut fs, &mut names, "b");
    fs.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
    (fs, names)
}

/// Writes some pages of a file until the power goes.
fn overwrite(fs: &mut Fs<&mut RamNand, &mut RamNvram>, name: &str, byte: u8, what: &str) {
    let Ok(id) = fs.lookup(ROOT, name.as_bytes()) else { return };
    for page in 0..6 {
        match fs.write(id, page * 4096, &[byte; 2000]).and_then(|()| fs.sync()) {
            Ok(()) => {}
            Err(Error::Gone | Error::NoSpace) => break,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn a_full_part_whose_power_goes_again_and_again_while_it_is_cleaned_can_be_emptied() {
    for geometry in 0..GEOMETRIES.len() {
        for layout in [Layout::Compact, Layout::Paper] {
            for seed in 0..share() * 3 {
                let what = format!("shape {geometry}, {layout:?}, seed {seed}");
                let (fs, names) = full(geometry, layout, seed, &what);
                let config = *fs.config();
                let (nand, nvram) = fs.into_media();
                let power = Power::default();
                let (mut nand, mut nvram) =
                    (nand.copy_on(power.clone()), nvram.map(|nvram| nvram.copy_on(power.clone())));
                let mut random = Random::new(seed + 7);
                let name = names.first().unwrap_or_else(|| panic!("{what}: no file"));
                for cut in 0..200u64 {
                    let what = format!("{what}, cut {cut}");
                    match seed % 3 {
                        0 => {}
                        1 => nvram = None,
                        _ if cut % 8 == 0 => nvram = Some(RamNvram::new(32 << 10, power.clone())),
                        _ => {}
                    }
                    power.cut_in(
                        1 + random.below([6, 30, 120][(cut / 9 % 3) as usize]),
                        Torn::ALL[random.below(4) as usize],
                    );
                    power.set_luck(random.below(4));
                    match Fs::open(&mut nand, nvram.as_mut(), config) {
                        Ok(mut fs) => overwrite(&mut fs, name, cut as u8, &what),
                        Err(Error::Gone) => {}
                        Err(error) => panic!("{what}: {error}"),
                    }
                    power.on();
                }
                let mut fs: TestFs =
                    Fs::open(nand, nvram, config).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut left = names.clone();
                remove_all(&mut fs, &mut left, &what);
                assert_eq!(
                    fs.check(true).map(|problems| problems.iter().any(|problem| problem.object != 0)),
                    Ok(false),
                    "{what}"
                );
            }
        }
    }
}
