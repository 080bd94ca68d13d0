//! A walk over a whole tree: names, links, attributes, flags, extended attributes and contents, over generations of power cuts.
//!
//! Each generation mounts, with recovery cut now and then and e2fsck in between for a third of the seeds, and works on the tree.
//! Some steps are done in the middle of a commit, fsyncs among them. It ends with a cut in the work, in a commit or in an unmount,
//! or with an unmount. After each mount the tree is exactly that of one moment since the last promise, and each file has a size that it had
//! since it was last promised, with bytes that were at their places since. What flags forbid is refused, and nothing else is.
//! `TREES=from..to` says which seeds.

mod model;
mod steps;

use super::promises::{noise, write};
use super::*;
use crate::fixed::SETTABLE;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_ext4::flag;
use bimetal_media::crash::Power;
use bimetal_media::states::Survival;
use bimetal_media::{Completion, Request, filter::Filter};
use bimetal_vfs::{Fallocate, SetXattr};
use model::{Model, look};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use steps::When;

const GENERATIONS: u32 = 5;
/// So many seeds unless told otherwise.
const DEFAULT: u64 = 20;

struct Geometry {
    /// Of mke2fs.
    options: &'static [&'static str],
    disk_mib: u64,
    ssd_mib: u64,
    log_bytes: u64,
    bytes_per_slot: u64,
    block_bytes: u32,
    /// Nothing that is done in a commit finds too little room, and waits for it.
    is_roomy: bool,
}

const GEOMETRIES: [Geometry; 6] = [
    Geometry {
        options: &["-b", "4096", "-J", "size=8"],
        disk_mib: 48,
        ssd_mib: 8,
        log_bytes: 64 << 10,
        bytes_per_slot: 1 << 20,
        block_bytes: 4096,
        is_roomy: true,
    },
    Geometry {
        options: &["-b", "1024", "-J", "size=2"],
        disk_mib: 32,
        ssd_mib: 8,
        log_bytes: 64 << 10,
        bytes_per_slot: 256 << 10,
        block_bytes: 1024,
        is_roomy: true,
    },
    Geometry {
        options: &["-b", "4096", "-J", "size=4", "-m", "0"],
        disk_mib: 14,
        ssd_mib: 8,
        log_bytes: 128 << 10,
        bytes_per_slot: 16 << 10,
        block_bytes: 4096,
        is_roomy: false,
    },
    Geometry {
        options: &["-b", "1024", "-J", "size=1", "-N", "64", "-I", "128"],
        disk_mib: 16,
        ssd_mib: 4,
        log_bytes: 64 << 10,
        bytes_per_slot: 16 << 10,
        block_bytes: 1024,
        is_roomy: false,
    },
    Geometry {
        options: &["-b", "2048", "-J", "size=4", "-O", "^64bit"],
        disk_mib: 32,
        ssd_mib: 6,
        log_bytes: 256 << 10,
        bytes_per_slot: 512 << 10,
        block_bytes: 2048,
        is_roomy: true,
    },
    Geometry {
        options: &["-b", "4096"],
        disk_mib: 64,
        ssd_mib: 16,
        log_bytes: 4 << 20,
        bytes_per_slot: 1 << 20,
        block_bytes: 1024,
        is_roomy: true,
    },
];

impl Geometry {
    fn halves(&self) -> Option<(Arc<Ram>, Arc<Ram>)> {
        let config = ssd::Config {
            log_bytes: self.log_bytes,
            bytes_per_slot: self.bytes_per_slot,
            block_bytes: self.block_bytes,
            ..ssd::Config::default()
        };
        halves_with(self.disk_mib, self.ssd_mib, &config, self.options)
    }
}

/// What is to be done in a commit: before which of the requests that change something, or, where it ends with an fsync and then a cut
/// now and then, before which flush of the disk.
struct Plan {
    passes: usize,
    in_flush: bool,
    act: Box<dyn FnOnce() + Send>,
}

type Planned = Arc<Mutex<Option<Plan>>>;

/// A half in whose requests something is done.
struct Meanwhile {
    inner: Arc<dyn BlockDevice>,
    is_disk: bool,
    planned: Planned,
}

impl Filter for Meanwhile {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> std::result::Result<(Time, Request), Completion> {
        let (changes, flushes) =
            (!matches!(request, Request::Read { .. }), matches!(request, Request::Flush));
        let due = self.planned.lock().unwrap().take_if(|plan| {
            let counts = if plan.in_flush { self.is_disk && flushes } else { changes };
            let is_due = counts && plan.passes == 0;
            plan.passes = plan.passes.saturating_sub(usize::from(counts));
            is_due
        });
        if let Some(plan) = due {
            (plan.act)();
        }
        Ok((at, request))
    }
}

/// What the walks came to.
#[derive(Debug, Default)]
struct Counts {
    steps: u64,
    mounts: u32,
    cuts: u32,
    cut_in_recovery: u32,
    /// By e2fsck.
    checks: u32,
    /// Commits with steps in their middle.
    in_commit: u32,
    synced_in_commit: u32,
    /// Calls that a flag forbids.
    refused: u32,
}

impl Counts {
    fn add(&mut self, more: &Counts) {
        self.steps += more.steps;
        self.mounts += more.mounts;
        self.cuts += more.cuts;
        self.cut_in_recovery += more.cut_in_recovery;
        self.checks += more.checks;
        self.in_commit += more.in_commit;
        self.synced_in_commit += more.synced_in_commit;
        self.refused += more.refused;
    }
}

/// One walk, but for the file system that is mounted.
struct Walk {
    seed: u64,
    random: Random,
    model: Model,
    power: Arc<Power>,
    /// Directories get rules. Of such files not every fsync can be done in a commit.
    has_rules: bool,
    log: Vec<String>,
    counts: Counts,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = Random::new(seed, "trees");
        let has_rules = random.chance(0.5);
        Walk {
            seed,
            random,
            model: Model::new(),
            power: Power::new(None, Survival::All, 0),
            has_rules,
            log: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }

    fn tell(&mut self, what: String) {
        self.log.push(format!("{}: {what}", self.counts.steps));
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("seed {}: {what}\n  {}", self.seed, self.log.join("\n  "))
    }
}

/// A mount, and what is planned for its next commit.
struct Mounted {
    fs: Arc<NfHybrid>,
    planned: Planned,
}

/// The halves, and what is done with them.
struct Volume {
    disk: Arc<Ram>,
    ssd: Arc<Ram>,
    is_roomy: bool,
    /// e2fsck gets at the disk between mounts.
    is_checked: bool,
    walk: Arc<Mutex<Walk>>,
}

impl Volume {
    fn wrap(&self, power: &Arc<Power>, planned: &Planned) -> [Arc<dyn BlockDevice>; 2] {
        [(true, &self.disk), (false, &self.ssd)].map(|(is_disk, half)| {
            let inner = Arc::new(power.wrap(half.clone()));
            Arc::new(Meanwhile { inner, is_disk, planned: planned.clone() }) as Arc<dyn BlockDevice>
        })
    }

    /// Mounts, with recovery cut now and then, until it stays mounted.
    fn mount(&mut self, generation: u32) -> Mounted {
        let walk = self.walk.clone();
        let mut walk = walk.lock().unwrap();
        for attempt in 0.. {
            if generation > 0 && self.is_checked && walk.random.chance(0.5) {
                self.check(&mut walk);
            }
            let is_cut = generation > 0 && attempt < 4 && walk.random.chance(0.33);
            let cut = match is_cut {
                true => Some(1 + walk.random.below(40)),
                false => (attempt < 4 && walk.random.chance(0.5)).then(|| 40 + walk.random.below(500)),
            };
            let rule = Survival::EVERY[walk.pick(4)];
            walk.power = Power::new(cut, rule, walk.random.next());
            let planned = Planned::default();
            let [disk, ssd] = self.wrap(&walk.power, &planned);
            match NfHybrid::open(disk, Some(ssd), options(is_cut)) {
                Ok(fs) if !is_cut => {
                    walk.tell(format!("mounted, {cut:?} {rule:?}: {:?}", fs.notes()));
                    walk.counts.mounts += 1;
                    return Mounted { fs: Arc::new(fs), planned };
                }
                Ok(fs) => fs.abandon(),
                Err(_) if walk.power.is_off() => {}
                Err(error) => walk.wrong(&format!("generation {generation}: mount: {error}")),
            }
            walk.power.cut().unwrap();
            walk.counts.cut_in_recovery += 1;
            walk.tell(format!("cut as it was mounted, {cut:?} {rule:?}"));
        }
        unreachable!("the fifth attempt is not cut")
    }

    /// Has e2fsck replay the journal, or repair; it finds nothing that it may not put in order by itself.
    fn check(&mut self, walk: &mut Walk) {
        let ways: [&[&str]; 4] = [&["-p"], &["-fy"], &["-p", "-f"], &["-E", "journal_only", "-p"]];
        let way = ways[walk.pick(4)];
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), self.disk.image()).unwrap();
        let done = Command::new("/usr/sbin/e2fsck").args(way).arg(file.path()).output().unwrap();
        walk.counts.checks += 1;
        walk.tell(format!("e2fsck {way:?}: {}, {}", done.status, String::from_utf8_lossy(&done.stdout)));
        if done.status.code().is_none_or(|code| code > 1) {
            walk.wrong("e2fsck finds something wrong");
        }
        self.disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    }

    /// What is found is of one moment, and what there is from now on.
    fn compare(&self, fs: &NfHybrid) {
        let mut walk = self.walk.lock().unwrap();
        if let Some(lost) = fs.status().ssd_lost {
            walk.wrong(&format!("the SSD is lost: {lost}"));
        }
        let found = look(fs).unwrap_or_else(|error| walk.wrong(&format!("a look at it: {error}")));
        let number = walk.model.moment_of(&found).unwrap_or_else(|why| walk.wrong(&why));
        let of = walk.model.moments.len();
        walk.tell(format!("moment {number} of {of} is found"));
        walk.model.go_on_from(number, &found);
    }

    /// Works until it is enough or the power goes.
    fn work(&self, mounted: &Mounted) {
        let steps = 20 + self.walk.lock().unwrap().pick(150);
        for _ in 0..steps {
            let commits = self.walk.lock().unwrap().pick(14) == 0;
            match commits {
                true => self.commit(mounted),
                false => self.walk.lock().unwrap().step(&mounted.fs, When::Between),
            }
            if self.walk.lock().unwrap().power.is_off() {
                return;
            }
        }
        let walk = self.walk.lock().unwrap();
        let status = mounted.fs.status();
        if let (lost, failure) = (status.ssd_lost, status.failure)
            && (lost.is_some() || failure.is_some())
            && !walk.power.is_off()
        {
            walk.wrong(&format!("given up: {lost:?}, {failure:?}"));
        }
    }

    /// A commit, with steps in its middle now and then.
    fn commit(&self, mounted: &Mounted) {
        let mut walk = self.walk.lock().unwrap();
        walk.tell("commit".into());
        let mark = walk.model.mark();
        if self.is_roomy && walk.random.chance(0.66) {
            *mounted.planned.lock().unwrap() = Some(self.plan(&mut walk, &mounted.fs));
        }
        drop(walk);
        let done = mounted.fs.commit();
        *mounted.planned.lock().unwrap() = None;
        let mut walk = self.walk.lock().unwrap();
        match done {
            Ok(()) => walk.model.promise(&mark),
            Err(_) if walk.power.is_off() => {}
            Err(error) => walk.wrong(&format!("commit: {error}")),
        }
    }

    /// What happens in the middle of the next commit.
    fn plan(&self, walk: &mut Walk, fs: &Arc<NfHybrid>) -> Plan {
        let in_flush = walk.random.chance(0.5);
        let passes = walk.pick(if in_flush { 3 } else { 12 });
        let steps = 1 + walk.pick(6);
        let (walk, fs) = (self.walk.clone(), fs.clone());
        let act = Box::new(move || {
            let mut walk = walk.lock().unwrap();
            walk.tell("in the commit:".into());
            walk.counts.in_commit += 1;
            (0..steps).for_each(|_| walk.step(&fs, When::InCommit));
            if in_flush {
                walk.fsync(&fs, When::InCommit);
                if walk.pick(3) == 0 {
                    walk.tell("cut in the commit".into());
                    walk.power.cut().unwrap();
                }
            }
        });
        Plan { passes, in_flush, act }
    }

    /// Unmounts, or has the power cut.
    fn leave(&self, mounted: Mounted) {
        let fs = Arc::into_inner(mounted.fs).unwrap();
        let mut walk = self.walk.lock().unwrap();
        let power = walk.power.clone();
        if walk.pick(6) == 0 && !power.is_off() {
            let done = fs.shutdown();
            drop(fs);
            match done {
                Ok(()) => walk.model.promise_all(),
                Err(_) if power.is_off() => {}
                Err(error) => walk.wrong(&format!("unmount: {error}")),
            }
            walk.tell("unmounted".into());
        } else {
            fs.abandon();
            power.cut().unwrap();
            walk.tell("cut".into());
        }
        walk.counts.cuts += u32::from(power.is_off());
    }

    /// Mounts once more, unmounts, and has e2fsck look.
    fn end(&mut self) {
        let mounted = self.mount(GENERATIONS);
        self.compare(&mounted.fs);
        let done = Arc::into_inner(mounted.fs).unwrap().shutdown();
        let walk = self.walk.lock().unwrap();
        match done {
            Ok(()) => full::check_disk(&self.disk),
            Err(_) if walk.power.is_off() => {}
            Err(error) => walk.wrong(&format!("the last unmount: {error}")),
        }
    }
}

fn options(commits_often: bool) -> Options {
    let bytes = if commits_often { 32 << 10 } else { 4 << 20 };
    Options {
        memory: Some(ssd::MEMORY_MIN),
        promote: "first".parse().unwrap(),
        lag: Lag { bytes, time: Duration::from_secs(3600) },
        ..manual()
    }
}

fn walk(seed: u64) -> Option<Counts> {
    let geometry = &GEOMETRIES[seed as usize % GEOMETRIES.len()];
    let (disk, ssd) = geometry.halves()?;
    let is_checked = (seed / GEOMETRIES.len() as u64).is_multiple_of(3);
    let walk = Arc::new(Mutex::new(Walk::new(seed)));
    let mut volume = Volume { disk, ssd, is_roomy: geometry.is_roomy, is_checked, walk };
    for generation in 0..GENERATIONS {
        let mounted = volume.mount(generation);
        volume.compare(&mounted.fs);
        volume.work(&mounted);
        volume.leave(mounted);
    }
    volume.end();
    let walk = Arc::into_inner(volume.walk).unwrap().into_inner().unwrap();
    Some(walk.counts)
}

#[test]
fn whatever_is_done_to_a_tree_it_is_that_of_one_moment_after_each_cut() {
    let seeds = std::env::var("TREES").map_or(0..DEFAULT, |text| {
        let (from, to) = text.split_once("..").expect("TREES=from..to");
        from.parse().unwrap()..to.parse().unwrap()
    });
    let (count, start) = (seeds.end - seeds.start, std::time::Instant::now());
    let mut all = Counts::default();
    for seed in seeds {
        let Some(counts) = walk(seed) else { return };
        all.add(&counts);
    }
    println!("{count} seeds in {:?}: {all:?}", start.elapsed());
    if count >= DEFAULT {
        assert!(all.cuts > 0 && all.cut_in_recovery > 0 && all.checks > 0 && all.refused > 0);
        assert!(all.in_commit > 0 && all.synced_in_commit > 0);
    }
}
