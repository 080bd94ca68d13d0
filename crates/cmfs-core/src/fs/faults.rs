//! Single faults everywhere: each written page of a small part unreadable, or as if it was erased, each byte of its spare areas with a wrong bit, wrong
//! bits in its data, one at a time, and pairs by chance; opened from the NVRAM and by a scan.
//!
//! A fault may strike the object that the page's tags name, and nothing else: all other files are as they were, the
//! check names what was struck, files can be made and removed, and what was struck can be removed, too. `FAULTS=all`
//! tries every fault; a failure names the fault.

use super::check::Problem;
use super::world::{GEOMETRY, Random, TestFs, World, make, node, small};
use super::{Config, Fs, Layout};
use crate::error::Error;
use crate::media::{Geometry, Nand};
use crate::object::{Kind, ROOT};
use crate::ram::{RamNand, RamNvram};
use crate::tags::{PageKind, SpareState, TagPlace};
use alloc::collections::{BTreeMap, BTreeSet};
use std::string::String;
use std::vec::Vec;
use std::{format, println};

const PART: Geometry = Geometry { pages_per_block: 8, blocks: 18, ..GEOMETRY };

/// One thing that is wrong with the medium.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Unreadable(u32),
    /// It reads as erased.
    Blank(u32),
    /// A page, and a bit of it.
    Flipped(u32, usize),
}

impl Fault {
    fn page(self) -> u32 {
        match self {
            Fault::Unreadable(page) | Fault::Blank(page) | Fault::Flipped(page, _) => page,
        }
    }

    fn strike(self, nand: &mut RamNand) {
        match self {
            Fault::Unreadable(page) => nand.spoil(page),
            Fault::Blank(page) => nand.blank(page),
            Fault::Flipped(page, bit) => nand.flip(page, bit),
        }
    }
}

/// An object as it is to be: its contents, or nothing but its kind.
type Expected = (Kind, Vec<u8>);

/// A part, and what is on it.
struct Volume {
    nand: RamNand,
    nvram: RamNvram,
    config: Config,
    /// Directory, name, and what it stands for.
    entries: Vec<(u32, Vec<u8>, u32)>,
    objects: BTreeMap<u32, Expected>,
    /// The object that the tags of each page name.
    owners: BTreeMap<u32, u32>,
    /// The pages of format records.
    records: BTreeSet<u32>,
}

fn contents(fs: &mut TestFs, id: u32) -> crate::Result<Expected> {
    let attr = fs.attr(id)?;
    let mut bytes = Vec::new();
    match attr.kind {
        Kind::File => {
            bytes.resize(attr.size as usize, 0xee);
            fs.read(id, 0, &mut bytes)?;
        }
        Kind::Symlink => bytes = fs.read_link(id)?,
        _ => {}
    }
    Ok((attr.kind, bytes))
}

fn names(fs: &mut TestFs, dir: u32) -> crate::Result<Vec<(Vec<u8>, u32)>> {
    let mut found = Vec::new();
    fs.list(dir, 0, &mut |entry| {
        found.push((entry.name.to_vec(), entry.id));
        true
    })?;
    Ok(found)
}

impl Volume {
    /// One that was closed, or cut off with all of it synced and a part of that not told to the NVRAM.
    fn new(layout: Layout, seed: u64, closed: bool) -> Volume {
        let config = small(layout);
        let mut fs = make(PART, 8 << 10, config);
        let (mut world, mut random) = (World::default(), Random::new(seed));
        for _ in 0..60 {
            world.step(&mut fs, &mut random, 9000).expect("room");
        }
        world.sync(&mut fs, true).expect("a sync");
        for _ in 0..if closed { 0 } else { 8 } {
            world.step(&mut fs, &mut random, 9000).expect("room");
        }
        world.sync(&mut fs, closed).expect("a sync");
        let (mut entries, mut objects) = (Vec::new(), BTreeMap::new());
        for (name, dir) in names(&mut fs, ROOT).expect("a listing") {
            entries.push((ROOT, name, dir));
            for (name, id) in names(&mut fs, dir).expect("a listing") {
                entries.push((dir, name, id));
            }
        }
        for (_, _, id) in &entries {
            objects.insert(*id, contents(&mut fs, *id).expect("contents"));
        }
        let (mut nand, nvram) = if closed { fs.close().expect("a clean end") } else { fs.into_media() };
        let (mut owners, mut records) = (BTreeMap::new(), BTreeSet::new());
        let mut spare = std::vec![0; PART.spare_bytes as usize];
        for page in 0..PART.pages() as u32 {
            nand.read_spare(page, &mut spare).expect("a whole part");
            let SpareState::Tagged(tags) = TagPlace::MTD.read(&spare) else { continue };
            match tags.kind() {
                PageKind::Header { object, .. } | PageKind::Data { object, .. } => {
                    owners.insert(page, object);
                }
                PageKind::Format => {
                    records.insert(page);
                }
                _ => {}
            }
        }
        Volume { nand, nvram: nvram.expect("its NVRAM"), config, entries, objects, owners, records }
    }

    /// The objects whose contents or names are not as they were.
    fn affected(&self, fs: &mut TestFs) -> BTreeSet<u32> {
        let mut affected = BTreeSet::new();
        for (id, expected) in &self.objects {
            if contents(fs, *id).ok().as_ref() != Some(expected) {
                affected.insert(*id);
            }
        }
        for (dir, name, id) in &self.entries {
            if fs.lookup(*dir, name) != Ok(*id) {
                affected.insert(*id);
            }
        }
        affected
    }

    /// What faults may strike: the objects of their pages; of a link what it stands for; what is in a directory may be
    /// elsewhere, but is whole.
    fn may_be_struck(&self, faults: &[Fault], healthy: &mut TestFs) -> BTreeSet<u32> {
        let mut struck = BTreeSet::new();
        for fault in faults {
            let Some(owner) = self.owners.get(&fault.page()).copied() else { continue };
            struck.insert(owner);
            let target = healthy.volume.objects.get(owner).map(|object| object.target);
            struck.extend(target.filter(|target| *target != 0));
        }
        struck
    }

    /// Opens with faults, and looks at everything; how many objects were struck.
    fn suffer(&self, faults: &[Fault], memory: bool, what: &str) -> usize {
        let (mut nand, nvram) = (self.nand.clone(), memory.then(|| self.nvram.clone()));
        let mut healthy: TestFs =
            Fs::open(nand.clone(), Some(self.nvram.clone()), self.config).expect("whole");
        faults.iter().for_each(|fault| fault.strike(&mut nand));
        let opened = Fs::open(nand, nvram, self.config);
        // Of a volume that was mounted once there is one record, and a copy.
        if self.records.iter().all(|page| faults.iter().any(|fault| fault.page() == *page))
            && let Err(Error::Foreign(_)) = opened
        {
            return 0;
        }
        let mut fs: TestFs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        let problems = fs.check(true).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (may, affected) = (self.may_be_struck(faults, &mut healthy), self.affected(&mut fs));
        for id in &affected {
            // What was in a directory that is gone goes by its name in `lost+found`, whole.
            let moved = self.entries.iter().any(|(dir, _, other)| other == id && may.contains(dir))
                && contents(&mut fs, *id).ok().as_ref() == self.objects.get(id);
            assert!(may.contains(id) || moved, "{what}: {id} is affected, not only {may:?}: {problems:?}");
        }
        // To a scan the last page of a block that rotted looks like one that a power cut tore.
        let tears = |fault: &Fault| match fault {
            Fault::Blank(page) => self.is_last(*page),
            fault => self.is_last(fault.page()) && fs.report().unreadable_pages > 0,
        };
        let torn = faults.iter().any(tears);
        let named = affected.is_empty() || torn || reported(&problems, &may, faults);
        assert!(named, "{what}: {affected:?}: {problems:?}");
        for problem in &problems {
            assert!(problem.object == 0 || may.contains(&problem.object), "{what}: {problem:?}");
        }
        self.work_on(&mut fs, &may, what);
        affected.len()
    }

    fn is_written(&self, page: u32) -> bool {
        let mut spare = std::vec![0; PART.spare_bytes as usize];
        self.nand.clone().read_spare(page, &mut spare).is_ok() && spare.iter().any(|byte| *byte != 0xff)
    }

    /// Whether nothing is written behind a page in its block.
    fn is_last(&self, page: u32) -> bool {
        !(page + 1).is_multiple_of(PART.pages_per_block) && !self.is_written(page + 1)
    }

    /// The volume stays usable, and what was struck can be removed.
    fn work_on(&self, fs: &mut TestFs, may: &BTreeSet<u32>, what: &str) {
        let fail = |error: crate::Error, doing: &str| -> ! { panic!("{what}, {doing}: {error}") };
        for dir in [ROOT, self.entries[0].2] {
            if dir != ROOT && may.contains(&dir) {
                continue;
            }
            let new = fs.create(dir, b"new", &node(Kind::File)).unwrap_or_else(|error| fail(error, "create"));
            fs.write(new, 0, &[5; 5000]).unwrap_or_else(|error| fail(error, "write"));
            fs.sync().unwrap_or_else(|error| fail(error, "sync"));
            fs.unlink(dir, b"new", false).unwrap_or_else(|error| fail(error, "unlink"));
        }
        let dirs: Vec<u32> = names(fs, ROOT).expect("a listing").into_iter().map(|(_, id)| id).collect();
        for dir in dirs {
            for (name, id) in names(fs, dir).unwrap_or_default() {
                if may.contains(&id) {
                    fs.unlink(dir, &name, false).unwrap_or_else(|error| fail(error, "removing it"));
                }
            }
        }
        fs.update().unwrap_or_else(|error| fail(error, "update"));
        for (id, expected) in &self.objects {
            let whole = may.contains(id) || contents(fs, *id).ok().as_ref() == Some(expected);
            assert!(whole, "{what}: {id} was affected by work after the fault");
        }
    }
}

/// The check names what was struck, or the page where it cannot know whose it was.
fn reported(problems: &[Problem], may: &BTreeSet<u32>, faults: &[Fault]) -> bool {
    problems.iter().any(|problem| match problem.object {
        0 => faults.iter().any(|fault| fault.page() == problem.at),
        object => may.contains(&object),
    })
}

/// All single faults of a page.
fn faults_of(page: u32) -> impl Iterator<Item = Fault> {
    let data = (0..6).map(move |bit| (page as usize * 97 + bit * 2731) % (2048 * 8));
    let spare = (0..64).map(move |byte| (2048 + byte) * 8 + (byte + page as usize) % 8);
    [Fault::Unreadable(page), Fault::Blank(page)]
        .into_iter()
        .chain(data.chain(spare).map(move |bit| Fault::Flipped(page, bit)))
}

#[test]
fn a_fault_strikes_the_object_it_hit_and_nothing_else() {
    let all = std::env::var("FAULTS").is_ok_and(|asked| asked == "all");
    let (mut singles, mut pairs, mut struck) = (0, 0, 0);
    for (layout, seed, closed) in [
        (Layout::Compact, 1, true),
        (Layout::Paper, 2, true),
        (Layout::Compact, 3, true),
        (Layout::Paper, 4, true),
        (Layout::Compact, 5, false),
        (Layout::Paper, 6, false),
        (Layout::Compact, 7, false),
        (Layout::Paper, 8, false),
    ] {
        let volume = Volume::new(layout, seed, closed);
        let written: Vec<u32> = (0..PART.pages() as u32).filter(|page| volume.is_written(*page)).collect();
        let faults: Vec<Fault> = written.into_iter().flat_map(faults_of).collect();
        let step = if all { 1 } else { 7 };
        for (number, fault) in faults.iter().enumerate() {
            let chosen = number % step == 0 || matches!(fault, Fault::Unreadable(_) | Fault::Blank(_));
            for memory in [true, false].into_iter().filter(|_| chosen) {
                let what = format!("{layout:?}, seed {seed}, closed {closed}, {fault:?}, NVRAM {memory}");
                struck += volume.suffer(&[*fault], memory, &what);
                singles += 1;
            }
        }
        let mut random = Random::new(seed);
        for _ in 0..if all { 5000 } else { 50 } {
            let pair = [(); 2].map(|()| faults[random.below(faults.len() as u64) as usize]);
            for memory in [true, false] {
                let what: String =
                    format!("{layout:?}, seed {seed}, closed {closed}, {pair:?}, NVRAM {memory}");
                struck += volume.suffer(&pair, memory, &what);
                pairs += 1;
            }
        }
    }
    println!("{singles} single faults, {pairs} pairs: {struck} objects struck, nothing else");
}
