//! Several clients on an nfhybrid in virtual time, with eviction, faults and power cuts, recovery cut again.
//!
//! A seed is a whole story: the halves' geometry, how long each request takes, what the clients do and how they
//! interleave, what fails, when the power goes and what survives of what was not durable. After each cut the volume is
//! mounted again (cut or failed there, too, and then again), everything promised is looked for, and the clients go
//! on. `SEEDS=from..to` says which; one is re-run by `SEEDS=n..n+1`.

mod client;
mod oracle;

use bimetal::Error;
use bimetal::fs::nfhybrid::{Lag, NfHybrid, Options, ssd, volume};
use bimetal::fs::{Caller, FileSystem, Kind, NewNode};
use bimetal::media::BlockDevice;
use bimetal::media::crash::Power;
use bimetal::media::faulty::{Effect, Faulty, Kind as Request, When};
use bimetal::media::overlay::Overlay;
use bimetal::media::ram::Ram;
use bimetal::media::states::Survival;
use bimetal::media::timed::{Service, Timed};
use bimetal::random::Random;
use bimetal::runtime::{Clock, Runtime, Sim, Task, sync::Mutex};
use bimetal::time::Time;
use bimetal::units::Ino;
use client::{Client, Stories, World};
use oracle::Client as Story;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const ROOT: Ino = Ino(2);

/// Virtual time in which clients and file system must have come to an end.
const PATIENCE: Duration = Duration::from_secs(600);

/// The halves as they are before the first mount.
struct Base {
    disk: Arc<dyn BlockDevice>,
    ssd: Arc<dyn BlockDevice>,
}

/// Geometries: options of mke2fs, and of the SSD half its log and size in KiB.
const GEOMETRIES: [(&[&str], u64, u64); 3] = [
    (&["-b", "4096"], 128, 6 << 10),
    (&["-b", "1024", "-J", "size=2"], 256, 4 << 10),
    (&["-b", "4096"], 1024, 12 << 10),
];

fn bases() -> &'static Option<Vec<Base>> {
    static BASES: OnceLock<Option<Vec<Base>>> = OnceLock::new();
    BASES.get_or_init(|| GEOMETRIES.iter().map(|(options, log, ssd)| base(options, *log, *ssd)).collect())
}

/// `None` where mke2fs is missing.
fn base(options: &[&str], log_kib: u64, ssd_kib: u64) -> Option<Base> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(32 << 20).unwrap();
    let fixed = ["-q", "-t", "ext4", "-F", "-U", "01234567-89ab-cdef-0123-456789abcdef", "-E"];
    let hash = "hash_seed=01234567-89ab-cdef-0123-456789abcdef";
    let made = Command::new("/usr/sbin/mke2fs").args(fixed).arg(hash).args(options).arg(file.path()).status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", ssd_kib << 10));
    let section =
        |name: &str, extent_bytes| ssd::SectionConfig { name: name.into(), extent_bytes, size_bytes: None };
    let config = ssd::Config {
        sections: vec![section("small", 16 << 10), section("large", 64 << 10)],
        log_bytes: log_kib << 10,
        ..ssd::Config::default()
    };
    volume::join_devices(disk.clone(), ssd.clone(), &config).unwrap();
    Some(Base { disk, ssd })
}

/// The halves of one story, and what goes on around them.
struct Halves {
    disk: Arc<Overlay>,
    ssd: Arc<Overlay>,
}

/// A mount's devices.
struct Rig {
    power: Arc<Power>,
    disk: Arc<Faulty>,
    ssd: Arc<Faulty>,
    timed: [Arc<dyn BlockDevice>; 2],
}

impl Halves {
    fn rig(&self, clock: &Clock, random: &mut Random, cut_after: Option<u64>) -> Rig {
        let rule = Survival::EVERY[random.below(4) as usize];
        let power = Power::new(cut_after, rule, random.next());
        let disk = Arc::new(Faulty::new(Arc::new(power.wrap(self.disk.clone()))));
        let ssd = Arc::new(Faulty::new(Arc::new(power.wrap(self.ssd.clone()))));
        let name = |half: &str, random: &mut Random| format!("{half} {}", random.next());
        let timed: [Arc<dyn BlockDevice>; 2] = [
            Arc::new(Timed::drawn(clock.clone(), disk.clone(), Service::DISK, &name("disk", random))),
            Arc::new(Timed::drawn(clock.clone(), ssd.clone(), Service::SSD, &name("ssd", random))),
        ];
        Rig { power, disk, ssd, timed }
    }
}

impl Rig {
    fn mount(&self, clock: &Clock, options: Options) -> Result<NfHybrid, Error> {
        NfHybrid::open_on(clock.clone(), self.timed[0].clone(), Some(self.timed[1].clone()), options)
    }

    /// One error of one request of a kind that comes.
    fn break_something(&self, random: &mut Random) {
        let device = if random.chance(0.6) { &self.ssd } else { &self.disk };
        let kind = [Request::Read, Request::Write, Request::Flush, Request::Any][random.below(4) as usize];
        let effect = match random.below(5) {
            0 => Effect::TornError(libc::EIO),
            1 if Arc::ptr_eq(device, &self.ssd) => Effect::Vanish,
            _ => Effect::Error(libc::EIO),
        };
        device.plan(kind, When::Nth(1 + random.below(60)), effect);
    }
}

/// One story.
struct Tale {
    seed: u64,
    sim: Sim,
    clock: Clock,
    random: Random,
    halves: Halves,
    stories: Stories,
    options: Options,
    clients: usize,
    log: Vec<String>,
    /// When the power last went.
    cut_at: Time,
}

/// What a story came to, to be compared.
#[derive(Debug, PartialEq, Eq, Default)]
struct Outcome {
    cuts: u32,
    recoveries_cut: u32,
    recovered: u64,
    evicted: bool,
    faults: u64,
    bytes: u32,
    virtual_ms: u64,
    switches: u64,
}

/// A clean end, or what was wrong.
type Verdict = Result<Outcome, String>;

fn tell(seed: u64) -> Option<Verdict> {
    let bases = bases().as_ref()?;
    let sim = Sim::new(seed);
    let clock: Clock = Arc::new(sim.clone());
    let mut random = clock.random("story");
    let base = &bases[random.below(bases.len() as u64) as usize];
    let halves = Halves {
        disk: Arc::new(Overlay::new(base.disk.clone())),
        ssd: Arc::new(Overlay::new(base.ssd.clone())),
    };
    let clients = 1 + random.below(4) as usize;
    let lag = Lag {
        time: Duration::from_millis(500 + random.below(4_500)),
        bytes: [1 << 20, 4 << 20, 16 << 20][random.below(3) as usize],
    };
    let stories = Arc::new(parking_lot::Mutex::new(vec![Story::new(); clients]));
    let options = Options { lag, ..Options::default() };
    let story = Tale {
        seed,
        sim: sim.clone(),
        clock,
        random,
        halves,
        stories,
        options,
        clients,
        log: Vec::new(),
        cut_at: Time::ZERO,
    };
    Some(sim.run(move || story.tell()))
}

impl Tale {
    fn tell(mut self) -> Verdict {
        let mut outcome = Outcome::default();
        let generations = 2 + self.random.below(3);
        for generation in 0..generations {
            let rig = self.mounted(generation > 0, &mut outcome)?;
            let (rig, fs) = rig;
            outcome.recovered += fs.recovered();
            let fs = Arc::new(fs);
            self.look(&fs, "after a mount")?;
            let last = generation + 1 == generations;
            let cut = self.work(&rig, &fs)?;
            let evicted = |fs: &NfHybrid| {
                fs.status().ssd_half.is_some_and(|ssd| ssd.sections.iter().any(|s| s.evicted_inodes > 0))
            };
            outcome.evicted |= evicted(&fs);
            match cut {
                true => {
                    outcome.cuts += 1;
                    Arc::into_inner(fs).ok_or("a client still holds the file system")?.abandon();
                    if rig.disk.struck() == 0 {
                        self.look_at_disk_alone()?;
                    }
                }
                false => match fs.shutdown() {
                    Ok(()) => {}
                    // What was made to fail: whoever unmounts is told, and the power goes.
                    Err(_) if rig.disk.struck() + rig.ssd.struck() > 0 => {
                        rig.power.cut().map_err(|error| error.to_string())?;
                        self.log.push(format!("{:?} unmount failed", self.clock.now()));
                    }
                    Err(error) => return Err(self.wrong(format!("unmount: {error}"))),
                },
            }
            outcome.faults += rig.disk.struck() + rig.ssd.struck();
            if last {
                let (_, fs) = self.mounted(true, &mut outcome)?;
                self.look(&fs, "at the end")?;
                fs.shutdown().map_err(|error| self.wrong(format!("last unmount: {error}")))?;
                drop(fs);
            }
        }
        if self.seed.is_multiple_of(100) {
            self.e2fsck()?;
        }
        outcome.bytes = self.digest();
        outcome.virtual_ms = self.clock.now().0 / 1_000_000;
        outcome.switches = self.sim.switches();
        Ok(outcome)
    }

    fn wrong(&self, what: String) -> String {
        format!("seed {}: {what}\n  {}", self.seed, self.log.join("\n  "))
    }

    /// Mounts, with recovery cut or failing now and then, until it succeeds.
    fn mounted(&mut self, again: bool, outcome: &mut Outcome) -> Result<(Rig, NfHybrid), String> {
        for attempt in 0..6 {
            let hostile = again && attempt < 5 && self.random.chance(0.45);
            let cut = (hostile && self.random.chance(0.6)).then(|| 1 + self.random.below(50));
            let rig = self.halves.rig(&self.clock, &mut self.random, cut);
            if hostile && cut.is_none() {
                rig.break_something(&mut self.random);
            }
            let mounted = rig.mount(&self.clock, self.options);
            self.log.push(format!(
                "{:?} mount (cut after {cut:?}, hostile {hostile}): {}",
                self.clock.now(),
                mounted.as_ref().map_or_else(|e| e.to_string(), |fs| format!("{:?}", fs.notes()))
            ));
            match mounted {
                Ok(fs) if hostile => {
                    // It came through; the power goes at once.
                    fs.abandon();
                    rig.power.cut().map_err(|error| error.to_string())?;
                    outcome.recoveries_cut += u32::from(cut.is_some());
                }
                Ok(fs) => return Ok((rig, fs)),
                Err(error) if !hostile => return Err(self.wrong(format!("mount: {error}"))),
                Err(_) => {
                    outcome.recoveries_cut += u32::from(rig.power.is_off());
                    rig.power.cut().map_err(|error| error.to_string())?;
                }
            }
        }
        unreachable!("the last attempt is not hostile")
    }

    /// The clients at work; whether it ended with a cut.
    fn work(&mut self, rig: &Rig, fs: &Arc<NfHybrid>) -> Result<bool, String> {
        let cut = self.random.chance(0.85);
        let faults = self.random.chance(0.3);
        let world = Arc::new(World {
            fs: fs.clone(),
            clock: self.clock.clone(),
            stories: self.stories.clone(),
            stop: AtomicBool::new(false),
            excused: AtomicBool::new(faults),
            errors: Mutex::default(),
            doing: parking_lot::Mutex::new(vec!["begins"; self.clients]),
        });
        let steps = 10 + self.random.below(120) as usize;
        let longest = if self.random.chance(0.1) { 1_400_000 } else { 60_000 };
        let mut tasks = Vec::new();
        for number in 0..self.clients {
            let dir = self.directory(fs, number)?;
            let random = self.random.split();
            let client = Client { number, dir, world: world.clone(), random, longest };
            tasks.push(self.spawn(&format!("client {number}"), move || client.run(steps))?);
        }
        if faults {
            rig.break_something(&mut self.random);
        }
        let lags = self.watch(&world)?;
        if cut {
            self.sim.sleep(Duration::from_millis(1 + self.random.below(4_000)));
            world.stop.store(true, Relaxed);
            rig.power.cut().map_err(|error| error.to_string())?;
            self.cut_at = self.clock.now();
            self.log.push(format!("{:?} cut", self.clock.now()));
        }
        tasks.into_iter().try_for_each(Task::join).map_err(|error| error.to_string())?;
        world.stop.store(true, Relaxed);
        lags.join().map_err(|error| error.to_string())?;
        let errors = std::mem::take(&mut *world.errors.lock());
        if !errors.is_empty() {
            return Err(self.wrong(errors.join("; ")));
        }
        // A volume that lost its disk cannot be unmounted cleanly: the power goes.
        if !cut && fs.status().failure.is_some() {
            rig.power.cut().map_err(|error| error.to_string())?;
            self.cut_at = self.clock.now();
            return Ok(true);
        }
        Ok(cut)
    }

    /// Steps the wall clock back and forth while the clients work, and looks at the lag.
    fn watch(&mut self, world: &Arc<World>) -> Result<Task, String> {
        let (world, sim, mut random) = (world.clone(), self.sim.clone(), self.random.split());
        let begun = sim.now();
        self.spawn("watch", move || {
            while !world.stop.load(Relaxed) {
                sim.sleep(Duration::from_millis(20 + random.below(60)));
                let doing = world.doing.lock().clone();
                assert!(
                    sim.now().since(begun) < PATIENCE,
                    "clients do not end: {doing:?}, {:?}",
                    world
                        .fs
                        .control_get(ROOT, "bimetal.status")
                        .map(|json| String::from_utf8_lossy(&json).into_owned())
                );
                if random.chance(0.02) {
                    sim.step_wall(if random.chance(0.5) { 3600 } else { -3600 });
                }
            }
        })
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<Task, String> {
        self.clock.spawn(name, Box::new(body)).map_err(|error| error.to_string())
    }

    /// A client's directory, made durable when it is new.
    fn directory(&self, fs: &NfHybrid, number: usize) -> Result<Ino, String> {
        let name = format!("client{number}");
        let made = || -> Result<Ino, Error> {
            match fs.lookup(ROOT, name.as_bytes()) {
                Ok(attr) => Ok(attr.ino),
                Err(Error::NotFound) => {
                    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
                    let attr = fs.create(&Caller::default(), ROOT, name.as_bytes(), &node)?;
                    if number % 4 == 2 {
                        fs.map(attr.ino, "bypass")?;
                    }
                    fs.sync()?;
                    Ok(attr.ino)
                }
                Err(error) => Err(error),
            }
        };
        made().map_err(|error| self.wrong(format!("{name}: {error}")))
    }

    /// Everything of each client, against its story; which then goes on from there.
    fn look(&mut self, fs: &NfHybrid, when: &str) -> Result<(), String> {
        let stories = self.stories.lock().clone();
        for (number, story) in stories.iter().enumerate() {
            let found = match contents_of(fs, number) {
                Ok(found) => found,
                Err(error) => return Err(self.wrong(format!("{when}, client {number}: {error}"))),
            };
            if let Some(objection) = story.objection(&found) {
                return Err(self.wrong(format!("{when}, client {number}: {objection}")));
            }
            self.stories.lock()[number].go_on_from(&found, self.clock.now());
        }
        Ok(())
    }

    /// The disk half without its SSD: all that is older than the lag is there.
    fn look_at_disk_alone(&mut self) -> Result<(), String> {
        if !self.random.chance(0.25) {
            return Ok(());
        }
        let alone: Arc<dyn BlockDevice> = Arc::new(Overlay::new(self.halves.disk.clone()));
        let options = Options { manual: true, without_ssd: true, ..self.options };
        let fs = NfHybrid::open_on(self.clock.clone(), alone, None, options)
            .map_err(|error| self.wrong(format!("the disk alone: {error}")))?;
        let covered = Time(self.cut_at.0.saturating_sub(self.options.lag.time.as_nanos() as u64));
        let mut stories = self.stories.lock().clone();
        for (number, story) in stories.iter_mut().enumerate() {
            let found =
                contents_of(&fs, number).map_err(|error| self.wrong(format!("disk alone: {error}")))?;
            *story = story.as_of_the_disk();
            story.promise_until(covered);
            if let Some(objection) = story.objection(&found) {
                return Err(self.wrong(format!("the disk alone, client {number}: {objection}")));
            }
        }
        fs.abandon();
        Ok(())
    }

    fn e2fsck(&self) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let image = (&*self.halves.disk as &dyn BlockDevice).read(0, 32 << 20).unwrap();
        std::fs::write(file.path(), image).unwrap();
        let output = Command::new("/usr/sbin/e2fsck").arg("-fn").arg(file.path()).output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(self.wrong(String::from_utf8_lossy(&output.stdout).into_owned())),
        }
    }

    /// A checksum of both halves.
    fn digest(&self) -> u32 {
        let halves: [&dyn BlockDevice; 2] = [&*self.halves.disk, &*self.halves.ssd];
        halves.iter().fold(0, |sum, half| {
            let bytes = half.read(0, half.info().size_bytes as usize).unwrap();
            bimetal::checksum::crc32c_raw(sum, &bytes)
        })
    }
}

fn contents_of(fs: &NfHybrid, number: usize) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let mut found = BTreeMap::new();
    let dir = match fs.lookup(ROOT, format!("client{number}").as_bytes()) {
        Err(Error::NotFound) => return Ok(found),
        dir => dir?.ino,
    };
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })?;
    for name in names.into_iter().filter(|name| name != "." && name != "..") {
        let attr = fs.lookup(dir, name.as_bytes())?;
        let bytes = fs.read(attr.ino, 0, attr.size as usize)?.get()?.concat();
        fs.forget(attr.ino, 1);
        found.insert(name, bytes);
    }
    fs.forget(dir, 1);
    Ok(found)
}

/// Tells the stories of these seeds on all processors; the outcomes, by seed.
fn tell_all(seeds: std::ops::Range<u64>) -> Option<Vec<Outcome>> {
    bases().as_ref()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let parts: Vec<Vec<(u64, Verdict)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let own = seeds.filter(|seed| seed % threads == first);
                    own.filter_map(|seed| match std::panic::catch_unwind(|| tell(seed)) {
                        Ok(verdict) => Some((seed, verdict?)),
                        Err(_) => Some((seed, Err(format!("seed {seed}: a panic")))),
                    })
                    .collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut all: Vec<_> = parts.into_iter().flatten().collect();
    all.sort_by_key(|(seed, _)| *seed);
    let (good, bad): (Vec<Verdict>, Vec<Verdict>) =
        all.into_iter().map(|(_, verdict)| verdict).partition(Result::is_ok);
    let bad: Vec<String> = bad.into_iter().filter_map(Result::err).collect();
    assert!(bad.is_empty(), "{} of {} seeds failed:\n{}", bad.len(), bad.len() + good.len(), bad.join("\n"));
    Some(good.into_iter().filter_map(Result::ok).collect())
}

/// `SEEDS=from..to`, or `default`.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return default };
    let (from, to) = text.split_once("..").expect("SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn no_seed_loses_what_was_promised() {
    let seeds = seeds(0..400);
    let start = std::time::Instant::now();
    let Some(outcomes) = tell_all(seeds.clone()) else { return println!("skipped: no mke2fs") };
    let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
    println!(
        "{} seeds in {:?}: {} cuts, {} in recovery, {} operations recovered, {} with eviction, {} faults, {} s of virtual time, {} switches",
        outcomes.len(),
        start.elapsed(),
        sum(|o| o.cuts.into()),
        sum(|o| o.recoveries_cut.into()),
        sum(|o| o.recovered),
        sum(|o| o.evicted.into()),
        sum(|o| o.faults),
        sum(|o| o.virtual_ms) / 1000,
        sum(|o| o.switches),
    );
    if outcomes.len() >= 100 {
        assert!(
            sum(|o| o.cuts.into()) > 0 && sum(|o| o.recoveries_cut.into()) > 0 && sum(|o| o.recovered) > 0
        );
        assert!(sum(|o| o.evicted.into()) > 0 && sum(|o| o.faults) > 0);
    }
}

#[test]
fn the_same_seed_twice_gives_the_same_bytes_and_another_others() {
    let Some(first) = tell_all(1_000..1_010) else { return println!("skipped: no mke2fs") };
    assert_eq!(Some(&first), tell_all(1_000..1_010).as_ref());
    assert!(first.windows(2).all(|pair| pair[0].bytes != pair[1].bytes));
}
