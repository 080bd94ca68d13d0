//! Walks: the power goes, the NVRAM is kept, lost, spoilt, or an older one is put back, the file system opens, works
//! on, and the power goes again, several rounds. After every step all there is is compared with a model.
//!
//! The first cut of a walk is one of the cuts of a fixed series, in turn, so that each point of it begins many walks;
//! the rest is by the walk's number alone. `WALKS` says how many are made, `KIND` of which kind alone (a shape, a layout and a
//! memory), `WALK` makes the one of that number, which is what a failure names.

use super::world::{Random, TestFs, World, small};
use super::{Config, Fs, Layout, MountKind};
use crate::ecc::Corrected;
use crate::error::Error;
use crate::media::{Geometry, Nand};
use crate::ram::{Power, RamNand, RamNvram, Torn};
use std::vec::Vec;
use std::{format, println};

/// A part in memory, with error correction by software or without.
trait Part: Nand + Clone {
    fn of(ram: RamNand) -> Self;
    fn ram(&mut self) -> &mut RamNand;

    fn copy_on(&self, power: &Power) -> Self {
        Self::of(self.clone().ram().copy_on(power.clone()))
    }
}

impl Part for RamNand {
    fn of(ram: RamNand) -> Self {
        ram
    }

    fn ram(&mut self) -> &mut RamNand {
        self
    }
}

impl Part for Corrected<RamNand> {
    fn of(ram: RamNand) -> Self {
        let part = Corrected::new(ram);
        assert!(part.is_on(), "its spare area has room for the codes");
        part
    }

    fn ram(&mut self) -> &mut RamNand {
        self.inner_mut()
    }
}

const SHAPES: [Geometry; 5] = [
    Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 16, blocks: 18 },
    Geometry { page_bytes: 4096, spare_bytes: 128, pages_per_block: 8, blocks: 32 },
    Geometry { page_bytes: 1024, spare_bytes: 32, pages_per_block: 32, blocks: 16 },
    Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 8, blocks: 32 },
    Geometry { page_bytes: 1024, spare_bytes: 64, pages_per_block: 16, blocks: 20 },
];
/// The last two of them are corrected by software.
const CODED: usize = 3;
/// On two of the others blocks are rewritten after few reads.
const REFRESHED: [usize; 2] = [0, 2];
/// On two of them objects are left in the NVRAM but for some, where its layout allows that.
const BOUNDED: [usize; 2] = [1, 4];
const BOUND_BYTES: usize = 10 << 10;
const MEMORIES: [usize; 2] = [2600, 12 << 10];
const KINDS: u64 = SHAPES.len() as u64 * 4;

/// The most pages of a file.
fn size_max(geometry: &Geometry) -> u64 {
    u64::from(geometry.page_bytes) * 6
}

/// Files on a part, and the work from a cut of which walks go out.
struct Base<P> {
    nand: P,
    nvram: RamNvram,
    world: World,
    config: Config,
    operations: u64,
    name: std::string::String,
}

impl<P: Part> Base<P> {
    fn new(kind: u64) -> Base<P> {
        let shape = kind as usize % SHAPES.len();
        let geometry = SHAPES[shape];
        let layout = [Layout::Compact, Layout::Paper][kind as usize / SHAPES.len() % 2];
        let memory = MEMORIES[kind as usize / SHAPES.len() / 2 % 2];
        let mut config = small(layout);
        if REFRESHED.contains(&shape) {
            (config.refresh_reads, config.refresh_copies) = (18, 4);
        }
        if BOUNDED.contains(&shape) && layout == Layout::Compact {
            config.memory_bytes = BOUND_BYTES;
        }
        let ram = RamNand::new(geometry);
        let nvram = RamNvram::new(memory, ram.power());
        let mut fs = Fs::format(P::of(ram), Some(nvram), config, [7; 16], true).expect("a new file system");
        let (mut world, mut random) = (World::default(), Random::new(kind));
        let target = fs.capacity_pages() * 4 / 10;
        for number in 0.. {
            if fs.used_pages() > target {
                break;
            }
            let len = 200 + random.below(size_max(&geometry)) as usize;
            world
                .write(&mut fs, &format!("d{}/cold{number}", number % 2), 0, &std::vec![number as u8; len])
                .expect("room");
        }
        for _ in 0..200 {
            world.step(&mut fs, &mut random, size_max(&geometry)).expect("room");
        }
        world.sync(&mut fs, true).expect("a sync");
        let (nand, nvram) = fs.into_media();
        let name = format!("shape {shape}, {layout:?}, NVRAM of {memory}");
        let mut base = Base { nand, nvram: nvram.expect("its NVRAM"), world, config, operations: 0, name };
        base.operations = base.count();
        base
    }

    /// Programs, erases and words of the work that is cut first.
    fn count(&self) -> u64 {
        let power = Power::default();
        let (nand, nvram) = (self.nand.copy_on(&power), self.nvram.copy_on(power.clone()));
        let mut fs = Fs::open(nand, Some(nvram), self.config).expect("it opens");
        let (mut world, mut random) = (self.world.clone(), Random::new(1));
        for _ in 0..STEPS {
            world.step(&mut fs, &mut random, size_max(&self.nand.geometry())).expect("room");
        }
        power.operations()
    }
}

/// Steps of work in a round, at most.
const STEPS: u64 = 14;

/// A walk under way.
struct Walk<'a, P> {
    base: &'a Base<P>,
    what: std::string::String,
    random: Random,
    power: Power,
    nand: P,
    memory: Option<RamNvram>,
    /// Older NVRAMs, each with the session that was under way when it was taken.
    older: Vec<(RamNvram, u32)>,
    world: World,
    /// The session that was under way at last.
    session: u32,
    /// The NVRAM is of a session that is over.
    stale: bool,
    tally: Tally,
}

/// What walks came to.
#[derive(Clone, Copy, Default)]
struct Tally {
    walks: u64,
    cuts: u64,
    mounts: u64,
    scans: u64,
    comparisons: u64,
    refreshed: u64,
    fetched: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.walks += other.walks;
        self.cuts += other.cuts;
        self.mounts += other.mounts;
        self.scans += other.scans;
        self.comparisons += other.comparisons;
        self.refreshed += other.refreshed;
        self.fetched += other.fetched;
    }
}

impl<'a, P: Part> Walk<'a, P> {
    fn new(base: &'a Base<P>, number: u64) -> Walk<'a, P> {
        let power = Power::default();
        Walk {
            base,
            what: format!("WALK={number} ({})", base.name),
            random: Random::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d)),
            nand: base.nand.copy_on(&power),
            memory: Some(base.nvram.copy_on(power.clone())),
            older: Vec::new(),
            power,
            world: base.world.clone(),
            session: 0,
            stale: false,
            tally: Tally { walks: 1, ..Tally::default() },
        }
    }

    /// Without NVRAM all objects are in memory.
    fn config(&self) -> Config {
        let memory_bytes = if self.memory.is_some() { self.base.config.memory_bytes } else { 0 };
        Config { memory_bytes, ..self.base.config }
    }

    fn plan_cut(&mut self, within: u64) {
        let cut = 1 + self.random.below(within);
        self.plan_cut_at(cut);
    }

    fn plan_cut_at(&mut self, cut: u64) {
        let torn = Torn::ALL[self.random.below(4) as usize];
        self.power.cut_in(cut, torn);
        let luck = self.random.below(1 << 30);
        self.power.set_luck([0, u64::MAX, luck | 1][luck as usize % 3]);
    }

    /// Opens after whatever was, as often as the power lets it, and compares.
    fn recover(&mut self, round: u64) {
        for attempt in 0.. {
            let what = format!("{}, round {round}, mount {attempt}", self.what);
            if attempt < 3 && self.random.below(3) == 0 {
                self.plan_cut(30);
            }
            self.tally.mounts += 1;
            let config = self.config();
            let opened = Fs::open(&mut self.nand, self.memory.as_mut(), config);
            if self.power.is_off() {
                assert!(opened.as_ref().err().is_none_or(|error| *error == Error::Gone), "{what}");
                drop(opened);
                self.tally.cuts += 1;
                self.power.on();
                continue;
            }
            let mut fs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            self.power.on();
            let kind = fs.report().kind;
            assert!(
                !self.stale || kind == MountKind::Scanned || kind == MountKind::Checkpoint,
                "{what}: believed"
            );
            self.tally.scans += u64::from(kind == MountKind::Scanned);
            self.tally.comparisons += 2;
            self.world.check_synced(&mut fs, &what);
            self.world.check_gone(&mut fs, &what);
            self.world.start_over(&mut fs);
            self.world.sync(&mut fs, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            self.world.check_all(&mut fs, &format!("{what}, started over"));
            self.session = fs.session();
            self.stale = false;
            return;
        }
    }

    /// Opens, and works until the power goes, or the walker goes away.
    fn work(&mut self, round: u64, cut: Option<u64>) {
        let what = format!("{}, round {round}", self.what);
        if self.random.below(8) == 0 {
            let block = self.random.below(u64::from(self.nand.geometry().blocks)) as u32;
            self.nand.ram().fail_next(block);
        }
        match cut {
            Some(cut) => self.plan_cut_at(cut),
            None if self.random.below(6) > 0 => self.plan_cut(self.base.operations),
            None => {}
        }
        let steps = if cut.is_some() { STEPS } else { 1 + self.random.below(STEPS) };
        let (size_max, seed) = (size_max(&self.nand.geometry()), self.random.below(1 << 30));
        let mut random = Random::new(if cut.is_some() { 1 } else { seed });
        let ending = self.random.below(6);
        let config = self.config();
        let opened = Fs::open(&mut self.nand, self.memory.as_mut(), config);
        let mut fs = match opened {
            Ok(fs) => fs,
            Err(error) => {
                assert!(error == Error::Gone && self.power.is_off(), "{what}: {error}");
                self.tally.cuts += 1;
                self.power.on();
                return;
            }
        };
        for step in 0..steps {
            let refreshed = if self.base.config.refresh_reads < 100 { fs.refresh() } else { Ok(0) };
            match refreshed.and_then(|_| self.world.step(&mut fs, &mut random, size_max)) {
                // The last thing it did may be of no account.
                Ok(()) if self.power.is_off() => break,
                Ok(()) => self.world.check_all(&mut fs, &format!("{what}, step {step}")),
                Err(error) => {
                    assert!(error == Error::Gone && self.power.is_off(), "{what}, step {step}: {error}");
                    break;
                }
            }
            self.tally.comparisons += 1;
        }
        self.tally.refreshed += fs.stats().refreshed;
        self.tally.fetched += fs.stats().fetched;
        if !self.power.is_off() {
            let _ = end(&mut fs, &mut self.world, ending);
        }
        self.session = fs.session();
        drop(fs);
        self.tally.cuts += u64::from(self.power.is_off());
        self.power.on();
    }

    /// What becomes of the NVRAM while the power is off.
    fn swap_memory(&mut self) {
        if let Some(memory) = &self.memory {
            self.older.push((memory.clone(), self.session));
        }
        let size = self.base.nvram.clone().bytes_mut().len();
        match self.random.below(8) {
            0 | 1 => self.memory = None,
            2 | 3 => {
                let which = self.random.below(self.older.len() as u64 + 1) as usize;
                let older = self.older.get(which).filter(|(_, session)| *session < self.session);
                if let Some((memory, _)) = older {
                    self.memory = Some(memory.clone());
                    self.stale = true;
                }
            }
            4 if self.random.below(2) == 0 => {
                self.memory = Some(RamNvram::new(size, self.power.clone()));
            }
            4 => {
                let at = self.random.below(size as u64 * 8) as usize;
                if let Some(memory) = &mut self.memory {
                    memory.bytes_mut()[at / 8] ^= 1 << (at % 8);
                }
            }
            _ => {}
        }
    }
}

/// The ways in which work ends that no cut ends.
fn end<N: Nand, V: crate::media::Nvram>(
    fs: &mut TestFs<N, V>,
    world: &mut World,
    ending: u64,
) -> Result<(), Error> {
    match ending {
        0 | 1 => world.sync(fs, true),
        2 => {
            world.sync(fs, true)?;
            fs.checkpoint(8).map(drop)
        }
        3 => world.sync(fs, false),
        _ => Ok(()),
    }
}

/// Says which walk it was, if it fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("again: WALK={} cargo test --release -p cmfs-core walks", self.0);
        }
    }
}

fn walk<P: Part>(base: &Base<P>, number: u64) -> Tally {
    let _named = Named(number);
    let mut walk = Walk::new(base, number);
    walk.work(0, Some(1 + number / KINDS % base.operations));
    let rounds = 2 + walk.random.below(3);
    for round in 1..=rounds {
        walk.swap_memory();
        walk.recover(round);
        if round < rounds {
            walk.work(round, None);
        }
    }
    walk.tally
}

fn walks_of<P: Part>(kind: u64, numbers: impl Iterator<Item = u64>) -> Tally {
    let base = Base::<P>::new(kind);
    let mut tally = Tally::default();
    numbers.for_each(|number| tally.add(walk(&base, number)));
    println!(
        "{}: {} operations, {} walks, {} objects fetched",
        base.name, base.operations, tally.walks, tally.fetched
    );
    tally
}

fn walks(kind: u64, numbers: impl Iterator<Item = u64>) -> Tally {
    match kind as usize % SHAPES.len() {
        0..CODED => walks_of::<RamNand>(kind, numbers),
        _ => walks_of::<Corrected<RamNand>>(kind, numbers),
    }
}

/// A number from the environment.
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn what_was_synced_survives_walks_of_cuts_and_lost_and_older_nvrams() {
    let mut tally = Tally::default();
    if let Some(number) = asked("WALK") {
        walks(number % KINDS, [number].into_iter());
        return;
    }
    // An older NVRAM, after the block of its record had failed and the other was erased; a cut after the first page of one
    // that takes the place of such a block; a link to a file that never got a name, whose number is given again; a wrong
    // bit that made of a record one of another kind; half of a step of two moves, out of a directory that was in the NVRAM alone; a
    // link to a file without a header, moved over what was synced; the NVRAM's newest slot lost, after the NAND was written to;
    // the last block to be erased that fails; an older NVRAM, after the other block of records had failed.
    for number in [9729, 91, 11118, 15220, 45471, 45101, 24283, 36685, 25147, 7937] {
        tally.add(walks(number % KINDS, [number].into_iter()));
    }
    let count = asked("WALKS").unwrap_or(200);
    for kind in asked("KIND").map_or(0..KINDS, |kind| kind..kind + 1) {
        // A stride spreads few walks over all points of the series.
        let spread = if count < 20_000 { 7 * KINDS } else { KINDS };
        tally.add(walks(kind, (0..count / KINDS).map(|walk| kind + walk * spread)));
    }
    println!(
        "{} walks, {} cuts, {} mounts ({} by a scan), {} comparisons, {} blocks refreshed, {} objects fetched: nothing lost",
        tally.walks, tally.cuts, tally.mounts, tally.scans, tally.comparisons, tally.refreshed, tally.fetched
    );
}
