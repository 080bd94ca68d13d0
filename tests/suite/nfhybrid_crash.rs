//! Power cuts of both halves at once, at every write, with what was not flushed kept, lost, reordered or torn.
//!
//! A seeded run of operations is recorded on two devices in memory; a model keeps the whole tree after each
//! operation. For every state a power cut can leave:
//!
//! - the disk half alone, after a plain journal replay, is exactly the model's tree after some operation N;
//! - both halves together hold every file as it was at its last fsync, or later;
//! - nothing fails, panics or differs the second time;
//! - the same holds for cuts inside recovery, at each of its writes, and inside the recovery after that, and where either
//!   half gives an error to any request of recovery: then the mount goes on or fails, and the next one has everything.

use bimetal::cache::Config;
use bimetal::cache::device::CachedDevice;
use bimetal::cache::registry::POLICIES;
use bimetal::fs::nfhybrid::{NfHybrid, Options, ssd, volume};
use bimetal::fs::{Caller, Fallocate, FileSystem, Kind, NewNode, Rename, SetAttr};
use bimetal::media::faulty::{Effect, Faulty, Kind as FaultKind, When};
use bimetal::media::overlay::Overlay;
use bimetal::media::ram::Ram;
use bimetal::media::recorded::Recorder;
use bimetal::media::states::{CrashState, Survival, crash_states};
use bimetal::media::{BlockDevice, file::FileDevice};
use bimetal::units::{Ino, show_size};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A tree: path to contents (`None` for a directory).
type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// What the run promised: at entry-log position `mark`, `path` had been made durable as of step `step`.
struct Promise {
    path: String,
    step: usize,
}

struct Run {
    fs: NfHybrid,
    recorder: Arc<Recorder>,
    random: u64,
    tree: Tree,
    /// The tree after each step, and the operation number then.
    history: Vec<(u64, Tree)>,
    promises: Vec<Promise>,
    next_name: u32,
    kind: Workload,
}

/// What a run does beside the usual.
#[derive(Clone, Copy, PartialEq)]
enum Workload {
    Plain,
    /// Some writes are longer than what gets a new place when it is overwritten.
    Long,
    /// A commit has more to bind than its small log has room for.
    Scattered,
}

const ROOT: Ino = Ino(2);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

impl Run {
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) % limit
    }

    fn ino(&self, path: &str) -> Ino {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let attr = self.fs.lookup(at, name.as_bytes()).unwrap();
            self.fs.forget(attr.ino, 1);
            at = attr.ino;
        }
        at
    }

    fn parent_and_name(path: &str) -> (&str, &str) {
        path.rsplit_once('/').unwrap()
    }

    fn pick(&mut self, dir: bool) -> Option<String> {
        let found: Vec<String> =
            self.tree.iter().filter(|(_, c)| c.is_none() == dir).map(|(p, _)| p.clone()).collect();
        if found.is_empty() { None } else { Some(found[self.below(found.len() as u64) as usize].clone()) }
    }

    fn fresh_path(&mut self) -> String {
        let dirs: Vec<String> = std::iter::once(String::new())
            .chain(self.tree.iter().filter(|(_, c)| c.is_none()).map(|(p, _)| p.clone()))
            .collect();
        let dir = dirs[self.below(dirs.len() as u64) as usize].clone();
        self.next_name += 1;
        format!("{dir}/n{}", self.next_name)
    }

    fn step(&mut self) {
        match self.below(100) {
            _ if self.kind == Workload::Scattered && self.history.len() == 12 => self.scatter(),
            0..18 => self.create(Kind::File),
            18..22 => self.create(Kind::Dir),
            22..52 => self.write(),
            52..62 => self.fsync(),
            62..68 => self.truncate(),
            68..74 => self.unlink(),
            74..82 => self.rename(),
            82..86 => self.punch(),
            86..90 => self.link_and_unlink(),
            90..93 => self.rmdir(),
            _ => self.fs.commit().unwrap(),
        }
        let op = self.fs.status().operations.0;
        self.history.push((op, self.tree.clone()));
        self.recorder.mark(format!("step {}", self.history.len() - 1));
    }

    fn create(&mut self, kind: Kind) {
        let path = self.fresh_path();
        let (parent, name) = Run::parent_and_name(&path);
        let node = NewNode { kind, perm: 0o755, rdev: 0, target: b"" };
        let attr = self.fs.create(&CALLER, self.ino(parent), name.as_bytes(), &node).unwrap();
        self.fs.forget(attr.ino, 1);
        self.tree.insert(path, (kind == Kind::File).then(Vec::new));
    }

    fn write(&mut self) {
        let Some(mut path) = self.pick(false) else { return };
        // Long enough to get a new place when it is overwritten.
        let long = self.kind == Workload::Long && self.below(5) == 0;
        let is_long =
            |contents: &Option<Vec<u8>>| contents.as_ref().is_some_and(|bytes| bytes.len() > 1 << 20);
        if let Some((again, _)) = self.tree.iter().find(|(_, contents)| long && is_long(contents)) {
            path = again.clone();
        }
        let old = self.tree[&path].clone().unwrap();
        let offset = match self.below(3) {
            _ if long => 0,
            0 => old.len() as u64,
            1 => self.below(old.len() as u64 + 1),
            _ => self.below(40_000),
        };
        let len = match self.below(4) {
            _ if long => (1 << 20) + self.below(200_000),
            0 => 1 + self.below(200),
            1 => 4096,
            2 => 1 + self.below(20_000),
            _ => 1 + self.below(90_000),
        };
        let fill = self.below(255) as u8 + 1;
        let data: Vec<u8> = (0..len).map(|at| fill ^ (at / 512) as u8).collect();
        // A long one at once or in pieces.
        let piece = if long && fill.is_multiple_of(2) { 100_000 } else { data.len() };
        for (at, part) in data.chunks(piece).enumerate() {
            let from = offset + (at * piece) as u64;
            self.fs.write(self.ino(&path), from, part, false).unwrap().get().unwrap();
        }
        let contents = self.tree.get_mut(&path).unwrap().as_mut().unwrap();
        let end = (offset + len) as usize;
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[offset as usize..end].copy_from_slice(&data);
    }

    /// A new file of many short stretches, in one commit; the file stays in use.
    fn scatter(&mut self) {
        const STRETCHES: usize = 400;
        self.fs.commit().unwrap();
        let path = self.fresh_path();
        let (parent, name) = Run::parent_and_name(&path);
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let ino = self.fs.create(&CALLER, self.ino(parent), name.as_bytes(), &node).unwrap().ino;
        let mut contents = Vec::new();
        for stretch in 0..STRETCHES {
            contents.resize(stretch * 8192, 0);
            let data = [stretch as u8 | 1; 4096];
            self.fs.write(ino, contents.len() as u64, &data, false).unwrap().get().unwrap();
            contents.extend(data);
        }
        self.tree.insert(path, Some(contents));
        self.fs.commit().unwrap();
        assert!(self.fs.status().counters.bound_late > 0, "the log had room for all");
    }

    fn fsync(&mut self) {
        let Some(path) = self.pick(false) else { return };
        self.fs.fsync(self.ino(&path), false).unwrap().get().unwrap();
        let step = self.history.len();
        self.promises.push(Promise { path: path.clone(), step });
        self.recorder.mark(format!("promise {}", self.promises.len() - 1));
    }

    fn truncate(&mut self) {
        let Some(path) = self.pick(false) else { return };
        let len = self.tree[&path].as_ref().unwrap().len() as u64;
        let size = self.below(len * 5 / 4 + 10);
        self.fs.setattr(self.ino(&path), &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        self.tree.get_mut(&path).unwrap().as_mut().unwrap().resize(size as usize, 0);
    }

    fn punch(&mut self) {
        let Some(path) = self.pick(false) else { return };
        let len = self.tree[&path].as_ref().unwrap().len() as u64;
        let (offset, count) = (self.below(len + 1), 1 + self.below(30_000));
        self.fs.fallocate(self.ino(&path), offset, count, Fallocate::Punch).unwrap();
        let contents = self.tree.get_mut(&path).unwrap().as_mut().unwrap();
        let end = ((offset + count) as usize).min(contents.len());
        contents[offset as usize..end].fill(0);
    }

    fn unlink(&mut self) {
        let Some(path) = self.pick(false) else { return };
        let (parent, name) = Run::parent_and_name(&path);
        self.fs.unlink(self.ino(parent), name.as_bytes()).unwrap();
        self.tree.remove(&path);
    }

    fn rmdir(&mut self) {
        let Some(path) = self.pick(true) else { return };
        let below = format!("{path}/");
        if self.tree.keys().any(|other| other.starts_with(&below)) {
            return;
        }
        let (parent, name) = Run::parent_and_name(&path);
        self.fs.rmdir(self.ino(parent), name.as_bytes()).unwrap();
        self.tree.remove(&path);
    }

    fn rename(&mut self) {
        let Some(from) = self.pick(false) else { return };
        let to = if self.below(2) == 0 { self.fresh_path() } else { self.pick(false).unwrap() };
        if from == to {
            return;
        }
        let ((from_dir, from_name), (to_dir, to_name)) =
            (Run::parent_and_name(&from), Run::parent_and_name(&to));
        let (from_ino, to_ino) = (self.ino(from_dir), self.ino(to_dir));
        self.fs.rename(from_ino, from_name.as_bytes(), to_ino, to_name.as_bytes(), Rename::Replace).unwrap();
        let contents = self.tree.remove(&from).unwrap();
        self.tree.insert(to, contents);
    }

    /// A second name, and the first removed: the contents must come along.
    fn link_and_unlink(&mut self) {
        let Some(from) = self.pick(false) else { return };
        let to = self.fresh_path();
        let ((from_dir, from_name), (to_dir, to_name)) =
            (Run::parent_and_name(&from), Run::parent_and_name(&to));
        let ino = self.ino(&from);
        self.fs.link(ino, self.ino(to_dir), to_name.as_bytes()).unwrap();
        self.fs.forget(ino, 1);
        self.fs.unlink(self.ino(from_dir), from_name.as_bytes()).unwrap();
        let contents = self.tree.remove(&from).unwrap();
        self.tree.insert(to, contents);
    }
}

fn base_disk(mib: u64, options: &[&str]) -> Arc<Ram> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    let status =
        Command::new("/usr/sbin/mke2fs").args(["-q", "-t", "ext4", "-F"]).args(options).arg(&path).status();
    assert!(status.unwrap().success());
    Arc::new(Ram::from_bytes("disk", std::fs::read(&path).unwrap()))
}

fn small_ssd(kind: Workload) -> ssd::Config {
    let section = |name: &str, extent: u64| ssd::SectionConfig {
        name: name.into(),
        extent_bytes: extent,
        size_bytes: None,
    };
    ssd::Config {
        sections: vec![section("small", 16 << 10), section("large", 64 << 10)],
        log_bytes: if kind == Workload::Scattered { 64 << 10 } else { ssd::Config::default().log_bytes },
        ..ssd::Config::default()
    }
}

fn manual() -> Options {
    Options { manual: true, ..Options::default() }
}

/// By the user's word: without the SSD, whatever its log holds.
fn alone() -> Options {
    Options { without_ssd: true, ..manual() }
}

/// What the disk half is put behind.
type Front<'a> = &'a dyn Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

/// Records a run of `steps` steps; the run, and the devices as they were when recording began.
fn record(
    seed: u64,
    steps: usize,
    disk: Arc<Ram>,
    kind: Workload,
    front: Front,
) -> (Run, Vec<Arc<dyn BlockDevice>>) {
    let ssd_ram = Arc::new(Ram::new("ssd", 16 << 20));
    volume::join_devices(disk.clone(), ssd_ram.clone(), &small_ssd(kind)).unwrap();
    let bases: Vec<Arc<dyn BlockDevice>> = vec![
        Arc::new(Ram::from_bytes("disk", disk.image())),
        Arc::new(Ram::from_bytes("ssd", ssd_ram.image())),
    ];
    let recorder = Recorder::new();
    let disk_device = front(Arc::new(recorder.wrap(disk)));
    let ssd_device = Arc::new(recorder.wrap(ssd_ram));
    let fs = NfHybrid::open(disk_device, Some(ssd_device), manual()).unwrap();
    let op = fs.status().operations.0;
    let mut run = Run {
        fs,
        recorder,
        random: seed,
        tree: Tree::new(),
        history: vec![(op, Tree::new())],
        promises: Vec::new(),
        next_name: 0,
        kind,
    };
    for _ in 0..steps {
        run.step();
    }
    (run, bases)
}

/// Everything under the root but lost+found, through the file system's own interface.
fn read_tree(fs: &dyn FileSystem) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        for name in names.iter().filter(|name| !matches!(name.as_str(), "." | ".." | "lost+found")) {
            let attr = fs.lookup(dir, name.as_bytes()).unwrap();
            let path = format!("{path}/{name}");
            if attr.kind == Kind::Dir {
                todo.push((attr.ino, path.clone()));
                tree.insert(path, None);
            } else {
                let parts = fs.read(attr.ino, 0, attr.size as usize).unwrap().get().unwrap();
                tree.insert(path, Some(parts.concat()));
            }
            fs.forget(attr.ino, 1);
        }
    }
    tree
}

fn describe(tree: &Tree) -> String {
    tree.iter()
        .map(|(path, contents)| match contents {
            None => format!("{path}/ "),
            Some(bytes) => format!("{path}:{}:{:08x} ", bytes.len(), bimetal::checksum::crc32c(bytes)),
        })
        .collect()
}

/// The disk half alone is the tree after some operation that a commit could have ended with.
fn check_disk_alone(run: &Run, disk: Arc<dyn BlockDevice>, what: &str) {
    let fs =
        NfHybrid::open(disk, None, alone()).unwrap_or_else(|error| panic!("{what}: disk alone: {error}"));
    let found = read_tree(&fs);
    let known = run.history.iter().any(|(_, tree)| *tree == found);
    assert!(known, "{what}: the disk alone is no state the file system ever had:\n{}", describe(&found));
}

/// Whether each byte of a file, and its size, is that of some version: what was written and not fsynced may be
/// there in part, with later changes of the inode around it.
fn is_mixture(found: Option<&Option<Vec<u8>>>, versions: &[Option<&Option<Vec<u8>>>]) -> bool {
    let Some(Some(found)) = found else { return false };
    let versions: Vec<&Vec<u8>> = versions.iter().filter_map(|version| version.as_ref()?.as_ref()).collect();
    let byte = |at: usize| versions.iter().any(|version| version.get(at).unwrap_or(&0) == &found[at]);
    versions.iter().any(|version| version.len() == found.len()) && (0..found.len()).all(byte)
}

/// Both halves hold every promise made before the cut.
fn check_together(run: &Run, state: &CrashState, what: &str) {
    let [disk, ssd] = halves_of(state);
    let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap_or_else(|error| panic!("{what}: {error}"));
    check_promises(run, &state.marks, &fs, what);
    fs.shutdown().unwrap_or_else(|error| panic!("{what}: shutdown after recovery: {error}"));
}

fn halves_of(state: &CrashState) -> [Arc<dyn BlockDevice>; 2] {
    [0, 1].map(|half: usize| state.devices[half].clone() as Arc<dyn BlockDevice>)
}

/// Every promise made before these marks is kept.
fn check_promises(run: &Run, marks: &[String], fs: &NfHybrid, what: &str) {
    let found = read_tree(fs);
    let kept = marks.iter().filter_map(|mark| mark.strip_prefix("promise ")?.parse::<usize>().ok());
    let mut last = BTreeMap::new();
    for number in kept {
        let promise = &run.promises[number];
        last.insert(promise.path.clone(), promise.step);
    }
    for (path, step) in last {
        // The file as of the promise or any later step, under the name it had then; or gone, if a later
        // step removed or moved it. What gets the name after that was promised nothing.
        let steps = marks.iter().filter_map(|mark| mark.strip_prefix("step ")?.parse::<usize>().ok());
        let begun = (steps.max().unwrap_or(0) + 1).min(run.history.len() - 1);
        let later = &run.history[step..=begun.max(step)];
        if later.iter().any(|(_, tree)| !tree.contains_key(&path)) {
            continue;
        }
        let versions: Vec<_> = later.iter().map(|(_, tree)| tree.get(&path)).collect();
        let allowed = versions.contains(&found.get(&path)) || is_mixture(found.get(&path), &versions);
        let was: Vec<String> = (step..=begun)
            .map(|step| {
                let (op, tree) = &run.history[step];
                let one = tree.get(&path).map(|contents| Tree::from([(path.clone(), contents.clone())]));
                format!("step {step}, operation {op}: {}", one.map_or("-".into(), |one| describe(&one)))
            })
            .collect();
        assert!(
            allowed,
            "{what}: {path}, durable at step {step}, is lost or old:\n{}\n{}",
            describe(&found),
            was.join("\n")
        );
    }
}

/// The states a cut can leave while these halves are mounted, recovery and all.
fn states_of_recovery([disk, ssd]: [Arc<dyn BlockDevice>; 2], seed: u64) -> Vec<CrashState> {
    let recorder = Recorder::new();
    let over = |base: &Arc<dyn BlockDevice>| Arc::new(recorder.wrap(Arc::new(Overlay::new(base.clone()))));
    let (first, second) = (over(&disk), over(&ssd));
    NfHybrid::open(first, Some(second), manual()).unwrap().abandon();
    crash_states(&recorder.log(), &[disk, ssd], &Survival::EVERY, seed).collect()
}

/// How much of what there is to try is tried: every n-th.
#[derive(Clone, Copy)]
struct Strides {
    /// Of the states of the run.
    states: usize,
    /// Of the cuts of their recovery, and of the recovery after it.
    cuts: [usize; 2],
    /// Of the requests that fail.
    requests: usize,
}

fn cuts_of_recovery(run: &Run, state: &CrashState, strides: Strides, what: &str) -> [usize; 2] {
    let mut counts = [0; 2];
    let check = |cut: &CrashState, what: &str| {
        let [disk, ssd] = halves_of(cut);
        let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap_or_else(|error| panic!("{what}: {error}"));
        check_promises(run, &state.marks, &fs, what);
        fs.shutdown().unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    for (at, cut) in states_of_recovery(halves_of(state), state.cut as u64).into_iter().enumerate() {
        if at % strides.cuts[0] != 0 {
            continue;
        }
        let what = format!("{what}, then cut {} of recovery, {:?}", cut.cut, cut.survival);
        if counts[0] % 8 == 0 {
            let deeper = states_of_recovery(halves_of(&cut), at as u64);
            for deeper in deeper.iter().step_by(strides.cuts[1]) {
                check(deeper, &format!("{what}, then cut {}, {:?}", deeper.cut, deeper.survival));
                counts[1] += 1;
            }
        }
        check(&cut, &what);
        counts[0] += 1;
    }
    counts
}

fn faults_of_recovery(run: &Run, state: &CrashState, strides: Strides, what: &str) -> usize {
    let mut count = 0;
    let kinds = [FaultKind::Read, FaultKind::Write, FaultKind::Flush];
    for (half, kind, lasting) in [0, 1]
        .into_iter()
        .flat_map(|half| kinds.map(|kind| [(half, kind, false), (half, kind, true)]))
        .flatten()
    {
        for number in (1..).step_by(strides.requests) {
            let what = format!("{what}, {kind:?} {number} of half {half} fails, for good: {lasting}");
            let devices = halves_of(state).map(|half| Arc::new(Overlay::new(half)) as Arc<dyn BlockDevice>);
            let faulty = Arc::new(Faulty::new(devices[half].clone()));
            let last = if lasting { number + 400 } else { number };
            (number..=last).for_each(|n| faulty.plan(kind, When::Nth(n), Effect::Error(5)));
            let mut used = devices.clone();
            used[half] = faulty.clone();
            let [disk, ssd] = used;
            match NfHybrid::open(disk, Some(ssd), manual()) {
                Ok(fs) => {
                    // What did not strike the mount is not to strike those who look at it.
                    faulty.forget();
                    check_promises(run, &state.marks, &fs, &what);
                    fs.abandon();
                }
                Err(error) => assert!(faulty.struck() > 0, "{what}: {error}"),
            }
            let [disk, ssd] = devices;
            let fs = NfHybrid::open(disk, Some(ssd), manual())
                .unwrap_or_else(|error| panic!("{what}, then healthy: {error}"));
            check_promises(run, &state.marks, &fs, &format!("{what}, then healthy"));
            fs.shutdown().unwrap_or_else(|error| panic!("{what}: {error}"));
            if faulty.struck() == 0 {
                break;
            }
            count += 1;
        }
    }
    count
}

/// Cuts and errors inside the recovery of the states of a run, and inside the recovery after it.
fn recovery_everywhere(seed: u64, steps: usize, disk: Arc<Ram>, kind: Workload, strides: Strides) {
    let (run, bases) = record(seed, steps, disk, kind, &|disk| disk);
    let log = run.recorder.log();
    let (mut cuts, mut faults) = ([0; 2], 0);
    let states = crash_states(&log, &bases, &[Survival::All, Survival::Torn], seed);
    for (at, state) in states.enumerate() {
        if at % strides.states != strides.states / 2 {
            continue;
        }
        let what = format!("seed {seed}, cut {} of {}, {:?}", state.cut, log.entries.len(), state.survival);
        let more = cuts_of_recovery(&run, &state, strides, &what);
        cuts = [cuts[0] + more[0], cuts[1] + more[1]];
        faults += faults_of_recovery(&run, &state, strides, &what);
    }
    println!("seed {seed}: {} cuts of recovery, {} of the one after, {faults} faults", cuts[0], cuts[1]);
    assert!(cuts[0] > 0 && cuts[1] > 0 && faults > 0, "{cuts:?}, {faults}");
}

fn crash_everywhere(
    seed: u64,
    steps: usize,
    disk: Arc<Ram>,
    stride: usize,
    kind: Workload,
    front: Front,
) -> u64 {
    let (run, bases) = record(seed, steps, disk, kind, front);
    assert_eq!(run.fs.status().ssd_lost, None);
    let log = run.recorder.log();
    let mut states = 0;
    for state in crash_states(&log, &bases, &Survival::EVERY, seed) {
        if state.cut % stride != 0 {
            continue;
        }
        let what = format!("seed {seed}, cut {} of {}, {:?}", state.cut, log.entries.len(), state.survival);
        let alone: Arc<dyn BlockDevice> = Arc::new(Overlay::new(state.devices[0].clone()));
        check_disk_alone(&run, alone, &what);
        check_together(&run, &state, &what);
        states += 1;
    }
    assert!(states > 50, "only {states} states");
    let relocated = run.fs.status().counters.relocated_bytes;
    println!(
        "seed {seed}: {states} states of {} log entries, {} promises, {} moved on the disk",
        log.entries.len(),
        run.promises.len(),
        show_size(relocated)
    );
    relocated
}

#[test]
fn every_power_cut_leaves_a_past_state_on_the_disk_and_every_promise_on_both() {
    for seed in 1..=3 {
        crash_everywhere(seed, 120, base_disk(32, &["-b", "4096"]), 7, Workload::Plain, &|disk| disk);
    }
}

#[test]
fn cuts_and_errors_inside_recovery_and_the_recovery_after_it_cost_nothing() {
    let strides = Strides { states: 97, cuts: [5, 11], requests: 11 };
    for seed in 31..34 {
        recovery_everywhere(seed, 90, base_disk(24, &["-b", "4096"]), Workload::Plain, strides);
    }
    recovery_everywhere(34, 60, base_disk(24, &["-b", "1024"]), Workload::Plain, strides);
}

#[test]
#[ignore = "takes minutes"]
fn many_more_cuts_and_errors_inside_recovery() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
    for seed in 201..201 + seeds {
        let block = ["4096", "1024"][seed as usize % 2];
        let kind = if seed % 5 == 4 { Workload::Scattered } else { Workload::Plain };
        let disk = base_disk(if seed % 5 == 4 { 48 } else { 24 }, &["-b", block]);
        let strides = Strides { states: 97, cuts: [5, 11], requests: 3 };
        recovery_everywhere(seed, 60, disk, kind, strides);
    }
}

#[test]
#[ignore = "takes minutes"]
fn many_more_power_cuts() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    for seed in 101..101 + seeds {
        let block = ["4096", "1024"][seed as usize % 2];
        crash_everywhere(seed, 50, base_disk(24, &["-b", block]), 5, Workload::Plain, &|disk| disk);
    }
}

#[test]
fn the_same_holds_for_small_blocks() {
    crash_everywhere(11, 90, base_disk(24, &["-b", "1024"]), 11, Workload::Plain, &|disk| disk);
}

#[test]
fn the_same_holds_for_stretches_that_get_a_new_place() {
    let disk = base_disk(96, &["-b", "4096", "-J", "size=16"]);
    let relocated = crash_everywhere(5, 120, disk, 7, Workload::Long, &|disk| disk);
    assert!(relocated > 0, "no stretch of data was written to a new place");
}

#[test]
fn the_same_holds_where_a_commit_binds_more_than_the_log_has_room_for() {
    for seed in 21..24 {
        crash_everywhere(seed, 60, base_disk(48, &["-b", "4096"]), 3, Workload::Scattered, &|disk| disk);
    }
}

#[test]
fn the_same_holds_with_a_page_cache_of_any_policy_under_the_disk_half() {
    for (at, entry) in POLICIES.iter().enumerate() {
        let pages = [6, 40, 3000][at % 3];
        let front = |disk: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
            let config = Config { read_ahead: 8, ..Config::new(pages).block_pages(16) };
            Arc::new(CachedDevice::new(disk, entry.name, &config).unwrap())
        };
        let seed = 101 + at as u64;
        let block = ["4096", "1024"][seed as usize % 2];
        crash_everywhere(seed, 50, base_disk(24, &["-b", block]), 5, Workload::Plain, &front);
    }
}

fn write_image(device: &dyn BlockDevice, path: &Path) {
    let size = device.info().size_bytes;
    let mut image = Vec::with_capacity(size as usize);
    let step = 1 << 20;
    for at in (0..size).step_by(step) {
        let len = (step as u64).min(size - at) as usize;
        image.extend_from_slice(&device.read(at, len).unwrap());
    }
    std::fs::write(path, image).unwrap();
}

#[test]
fn e2fsck_replays_the_journal_and_finds_nothing_else() {
    let (run, bases) = record(21, 120, base_disk(32, &["-b", "4096"]), Workload::Plain, &|disk| disk);
    let log = run.recorder.log();
    let dir = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for state in crash_states(&log, &bases, &[Survival::Durable, Survival::Torn], 21) {
        if state.cut % 23 != 0 {
            continue;
        }
        let what = format!("cut {}, {:?}", state.cut, state.survival);
        let path = dir.path().join("disk");
        write_image(state.devices[0].as_ref(), &path);
        let repair = Command::new("/usr/sbin/e2fsck").args(["-p"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&repair.stdout).into_owned();
        assert!(matches!(repair.status.code(), Some(0 | 1)), "{what}: {said}");
        let check = Command::new("/usr/sbin/e2fsck").args(["-fn"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert_eq!(check.status.code(), Some(0), "{what}: {said}");
        let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&path, true).unwrap());
        check_disk_alone(&run, disk, &what);
        checked += 1;
    }
    assert!(checked > 10, "only {checked} states");
}
