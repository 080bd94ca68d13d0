//! One story: mounts, clients at work, cuts, what is found afterwards.

use super::client::{Client, Stories, World};
use super::oracle::Client as Story;
use super::volume::{GEOMETRIES, Halves, LAG_HELD, Rig, bases};
use bimetal::Error;
use bimetal::fs::nfhybrid::{Durability, Lag, NfHybrid, Options, ssd};
use bimetal::fs::{Caller, FileSystem, Kind, NewNode};
use bimetal::media::BlockDevice;
use bimetal::media::overlay::Overlay;
use bimetal::random::Random;
use bimetal::runtime::{Clock, Runtime, Sim, Task, sync::Mutex};
use bimetal::time::Time;
use bimetal::units::Ino;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const ROOT: Ino = Ino(2);

/// Virtual time in which clients and file system must have come to an end.
const PATIENCE: Duration = Duration::from_secs(600);

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
    /// See [`client::World`].
    noise: bool,
    small: bool,
    /// The disk is slow to flush: no lag is held.
    slow: bool,
    /// Writes are of one part.
    short: bool,
    /// The disk half has everything, or went on alone: it may be mounted without its SSD.
    may_be_alone: bool,
}

/// What a story came to, to be compared.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    pub cuts: u32,
    pub recoveries_cut: u32,
    pub recovered: u64,
    pub evicted: bool,
    pub faults: u64,
    pub bytes: u32,
    pub virtual_ms: u64,
    pub switches: u64,
}

/// A clean end, or what was wrong.
pub type Verdict = Result<Outcome, String>;

pub fn tell(seed: u64) -> Option<Verdict> {
    let bases = bases().as_ref()?;
    let sim = Sim::new(seed);
    let clock: Clock = Arc::new(sim.clone());
    let mut random = clock.random("story");
    let geometry = random.below(bases.len() as u64) as usize;
    let base = &bases[geometry];
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
    let mut options = Options { lag, ..Options::default() };
    let noise = random.chance(0.5);
    let small = GEOMETRIES[geometry].is_small();
    if random.chance(0.2) {
        options.durability = Durability::Both;
    }
    options.promote = ["first", "second", "never"][random.below(3) as usize].parse().unwrap();
    options.memory = random.chance(0.5).then_some(ssd::MEMORY_MIN);
    if random.chance(0.2) {
        options.lag.bytes = 256 << 10;
    }
    if random.chance(0.2) {
        options.lag.time = Duration::from_millis(100);
    }
    options.discard = clock.random("discard").chance(0.3);
    let slow = random.chance(0.25);
    let told = format!(
        "geometry {geometry}, slow {slow}, {clients} clients, noise {noise}, lag {:?}, {:?}, {:?}, discard {}",
        options.lag, options.durability, options.promote, options.discard
    );
    let story = Tale {
        noise,
        small,
        slow,
        short: true,
        may_be_alone: false,
        seed,
        sim: sim.clone(),
        clock,
        random,
        halves,
        stories,
        options,
        clients,
        log: vec![told],
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
                    Ok(()) => {
                        self.stories.lock().iter_mut().for_each(Story::promise_all);
                        self.may_be_alone = true;
                    }
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
        if self.seed.is_multiple_of(10) {
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
        let alone = self.may_be_alone && self.random.chance(0.4);
        for attempt in 0..6 {
            let hostile = again && attempt < 5 && self.random.chance(0.45);
            let most = if self.random.chance(0.5) { 50 } else { 300 };
            let cut = (hostile && self.random.chance(0.6)).then(|| 1 + self.random.below(most));
            let rig = self.halves.rig(&self.clock, &mut self.random, cut, self.slow);
            if hostile && cut.is_none() {
                rig.break_something(&mut self.random);
            }
            let mut options = self.options;
            if hostile && self.random.chance(0.5) {
                // Recovery commits often.
                options.lag.bytes = 32 << 10;
            }
            let mounted = match alone {
                true => NfHybrid::open_on(self.clock.clone(), rig.timed[0].clone(), None, options),
                false => rig.mount(&self.clock, options),
            };
            self.may_be_alone = alone;
            self.log.push(format!(
                "{:?} mount (alone {alone}, cut after {cut:?}, hostile {hostile}): {}",
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
            hybrid: fs.clone(),
            clock: self.clock.clone(),
            stories: self.stories.clone(),
            stop: AtomicBool::new(false),
            excused: AtomicBool::new(faults),
            errors: Mutex::default(),
            doing: parking_lot::Mutex::new(vec!["begins"; self.clients]),
            noise: self.noise,
            small: self.small,
            both: self.options.durability == Durability::Both,
        });
        let steps = 10 + self.random.below(120) as usize;
        let longest = if self.random.chance(0.1) { 1_400_000 } else { 60_000 };
        self.short = longest < 100_000 && self.options.lag.bytes >= 1 << 20;
        let mut tasks = Vec::new();
        for number in 0..self.clients {
            let dir = self.directory(fs, ROOT, &format!("client{number}"), number % 4 == 2)?;
            let dirs = ["d0", "d1"].map(|name| self.directory(fs, dir, name, false));
            let dirs = match dirs.into_iter().collect::<Result<_, _>>() {
                // Others have filled it: this one waits until there is room.
                Err(why) if self.small && why.contains("no space") => continue,
                dirs => dirs?,
            };
            let random = self.random.split();
            let crowd = match self.directory(fs, ROOT, &format!("crowd{number}"), false) {
                // There is no room for one.
                Err(why) if self.small && why.contains("no space") => None,
                crowd => Some(crowd?),
            };
            let client =
                Client { crowd, number, dir, world: world.clone(), random, longest, dirs, held: None };
            tasks.push(self.spawn(&format!("client {number}"), move || client.run(steps))?);
        }
        if faults {
            rig.break_something(&mut self.random);
        }
        let lags = self.watch(&world)?;
        if cut {
            self.sim.sleep(Duration::from_millis(1 + self.random.below(4_000)));
            world.stop.store(true, Relaxed);
            self.look_at_health(rig, fs)?;
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
        if !cut {
            self.look_at_health(rig, fs)?;
        }
        // A volume that lost its disk cannot be unmounted cleanly: the power goes.
        if !cut && fs.status().failure.is_some() {
            rig.power.cut().map_err(|error| error.to_string())?;
            self.cut_at = self.clock.now();
            return Ok(true);
        }
        Ok(cut)
    }

    /// Without a fault nothing is given up.
    fn look_at_health(&self, rig: &Rig, fs: &NfHybrid) -> Result<(), String> {
        if rig.disk.struck() + rig.ssd.struck() > 0 {
            return Ok(());
        }
        let status = fs.status();
        let bad = status.counters.bad_sums + status.counters.scrub_bad;
        match (&status.ssd_lost, &status.failure, bad) {
            (None, None, 0) => Ok(()),
            lost => Err(self.wrong(format!("without a fault: {lost:?}"))),
        }
    }

    /// Steps the wall clock back and forth while the clients work, and looks at the lag.
    fn watch(&mut self, world: &Arc<World>) -> Result<Task, String> {
        let (world, sim, mut random) = (world.clone(), self.sim.clone(), self.random.split());
        let begun = sim.now();
        let (fs, lag) = (world.hybrid.clone(), self.options.lag);
        let (excused, slow) = (world.excused.load(Relaxed), self.slow);
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
                if !excused && !world.stop.load(Relaxed) {
                    let status = fs.status();
                    let at_risk = status.at_risk;
                    // No disk commits in less.
                    let bounded = lag.time >= LAG_HELD && !slow;
                    if bounded
                        && status.seconds_old < 1e-9
                        && status.failure.is_none()
                        && (at_risk.bytes > lag.bytes
                            || at_risk.seconds.is_none_or(|seconds| seconds > lag.time.as_secs_f64()))
                    {
                        let why = format!("lag: {at_risk:?} at {:?}", sim.now());
                        world.errors.lock().push(why);
                        world.stop.store(true, Relaxed);
                    }
                }
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
    fn directory(&self, fs: &NfHybrid, parent: Ino, name: &str, bypass: bool) -> Result<Ino, String> {
        let made = || -> Result<Ino, Error> {
            match fs.lookup(parent, name.as_bytes()) {
                Ok(attr) => Ok(attr.ino),
                Err(Error::NotFound) => {
                    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
                    let attr = fs.create(&Caller::default(), parent, name.as_bytes(), &node)?;
                    if bypass {
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
            let (found, inodes) = match contents_of(fs, number) {
                Ok(found) => found,
                Err(error) => return Err(self.wrong(format!("{when}, client {number}: {error}"))),
            };
            if let Some(objection) = story.objection(&found) {
                return Err(self.wrong(format!("{when}, client {number}: {objection}")));
            }
            self.stories.lock()[number].go_on_from(&found, &inodes, self.clock.now());
        }
        Ok(())
    }

    /// The disk half without its SSD: all that is older than the lag is there.
    fn look_at_disk_alone(&mut self) -> Result<(), String> {
        if !self.random.chance(0.25) || self.slow {
            return Ok(());
        }
        let alone: Arc<dyn BlockDevice> = Arc::new(Overlay::new(self.halves.disk.clone()));
        let options = Options { manual: true, without_ssd: true, ..self.options };
        let fs = NfHybrid::open_on(self.clock.clone(), alone, None, options)
            .map_err(|error| self.wrong(format!("the disk alone: {error}")))?;
        let held = self.options.lag.time.max(LAG_HELD);
        let covered = Time(self.cut_at.0.saturating_sub(held.as_nanos() as u64));
        let mut stories = self.stories.lock().clone();
        for (number, story) in stories.iter_mut().enumerate() {
            let (found, _) =
                contents_of(&fs, number).map_err(|error| self.wrong(format!("disk alone: {error}")))?;
            *story = story.as_of_the_disk();
            story.promise_until(covered);
            if self.short
                && !self.small
                && let Some(objection) = story.objection_to_moment(&found, covered)
            {
                return Err(self.wrong(format!("the disk alone, client {number}: {objection}")));
            }
            if let Some(objection) = story.objection(&found) {
                return Err(self.wrong(format!("the disk alone, client {number}: {objection}")));
            }
        }
        fs.abandon();
        Ok(())
    }

    fn e2fsck(&self) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let image = (&*self.halves.disk as &dyn BlockDevice)
            .read(0, self.halves.disk.info().size_bytes as usize)
            .unwrap();
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

type Found = (BTreeMap<String, Vec<u8>>, BTreeMap<String, u64>);

fn contents_of(fs: &NfHybrid, number: usize) -> Result<Found, Error> {
    let mut found = Found::default();
    match fs.lookup(ROOT, format!("client{number}").as_bytes()) {
        Err(Error::NotFound) => {}
        dir => contents_below(fs, dir?.ino, "", &mut found)?,
    }
    Ok(found)
}

fn contents_below(fs: &NfHybrid, dir: Ino, path: &str, found: &mut Found) -> Result<(), Error> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })?;
    for name in names.into_iter().filter(|name| name != "." && name != "..") {
        let attr = fs.lookup(dir, name.as_bytes())?;
        if attr.kind == Kind::Dir {
            contents_below(fs, attr.ino, &format!("{path}{name}/"), found)?;
            continue;
        }
        let bytes = fs.read(attr.ino, 0, attr.size as usize)?.get()?.concat();
        fs.forget(attr.ino, 1);
        found.0.insert(format!("{path}{name}"), bytes);
        found.1.insert(format!("{path}{name}"), attr.ino.0);
    }
    fs.forget(dir, 1);
    Ok(())
}
