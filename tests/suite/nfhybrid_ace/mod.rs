//! Every workload of one operation, and every state a power cut can leave of it.
//!
//! A workload is recorded with the writes and flushes of both halves, from the mount through the operation, what
//! makes it durable, and one commit cycle, to the clean end. The file system's own tree after each call is what the
//! states are held against:
//!
//! - *both halves*: they open; what was made durable before the cut is there as it was; names, kinds, modes, links
//!   and attributes are those of one moment not before it; files can be made in every directory and everything can
//!   be removed;
//! - *the disk alone*: exactly the tree after some call;
//! - *one half older than the other* (an old copy put back, a device that lied about a flush): refused, or again the
//!   tree of some call as far as names go, and every file reads as it was at some call.
//!
//! `BIMETAL_ACE=all` takes every workload and cuts it where something was promised and in the middle, `every` cuts
//! it at every write; without it, one workload in ten is taken.

mod workloads;

use bimetal::fs::nfhybrid::{Lag, NfHybrid, Options, ssd, volume};
use bimetal::fs::{Attr, Caller, FileSystem, Kind, NewNode, Rename, SetAttr, SetXattr};
use bimetal::media::BlockDevice;
use bimetal::media::overlay::Overlay;
use bimetal::media::ram::Ram;
use bimetal::media::recorded::{Event, Log, Recorder};
use bimetal::media::states::{CrashState, Survival, crash_states};
use bimetal::units::Ino;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use workloads::{Op, Persist, Setting, Workload};

const ROOT: Ino = Ino(2);
const ATTRIBUTE: &[u8] = b"user.colour";
const DISK_MIB: u64 = 12;
const SSD_MIB: u64 = 8;

/// What can be seen of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: Kind,
    perm: u16,
    nlink: u32,
    attribute: Option<Vec<u8>>,
    /// Of a file or a symbolic link.
    contents: Vec<u8>,
}

impl Seen {
    /// All but the contents.
    fn shape(&self) -> (Kind, u16, u32, &Option<Vec<u8>>) {
        (self.kind, self.perm, self.nlink, &self.attribute)
    }
}

/// Everything by its path.
type Tree = BTreeMap<String, Seen>;

fn same_shape(a: &Tree, b: &Tree) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((p, seen), (q, other))| p == q && seen.shape() == other.shape())
}

fn look(fs: &dyn FileSystem, attr: &Attr) -> Result<Seen, bimetal::Error> {
    let contents = match attr.kind {
        Kind::File => fs.read(attr.ino, 0, attr.size as usize)?.get()?.concat(),
        Kind::Symlink => fs.readlink(attr.ino)?,
        _ => Vec::new(),
    };
    let attribute = fs.getxattr(attr.ino, ATTRIBUTE).ok();
    Ok(Seen { kind: attr.kind, perm: attr.perm, nlink: attr.nlink, attribute, contents })
}

/// All objects below the root but lost+found; `/` stands for the root, without its link count.
fn tree_of(fs: &dyn FileSystem) -> Result<Tree, bimetal::Error> {
    let mut tree = Tree::new();
    let mut todo = vec![(ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })?;
        for name in names.iter().filter(|name| !matches!(name.as_str(), "." | ".." | "lost+found")) {
            let attr = fs.lookup(dir, name.as_bytes())?;
            let path = format!("{path}/{name}");
            tree.insert(path.clone(), look(fs, &attr)?);
            if attr.kind == Kind::Dir {
                todo.push((attr.ino, path));
            }
            fs.forget(attr.ino, 1);
        }
    }
    Ok(tree)
}

fn ino(fs: &dyn FileSystem, path: &str) -> Ino {
    bimetal::fs::resolve(fs, path).expect("a path of the workload").ino
}

/// The directory and the name in it.
fn place<'a>(fs: &dyn FileSystem, path: &'a str) -> (Ino, &'a [u8]) {
    let (parent, name) = path.rsplit_once('/').expect("absolute paths");
    (ino(fs, parent), name.as_bytes())
}

fn make(fs: &dyn FileSystem, path: &str, kind: Kind) {
    let (parent, name) = place(fs, path);
    let target: &[u8] = if kind == Kind::Symlink { b"somewhere/else" } else { b"" };
    let node = NewNode { kind, perm: 0o755, rdev: 0, target };
    let attr = fs.create(&Caller { umask: 0o022, ..Caller::default() }, parent, name, &node).unwrap();
    fs.forget(attr.ino, 1);
}

fn rename(fs: &dyn FileSystem, from: &str, to: &str, how: Rename) {
    let ((dir, name), (new_dir, new_name)) = (place(fs, from), place(fs, to));
    fs.rename(dir, name, new_dir, new_name, how).unwrap();
}

/// Makes a call; `turn` makes the bytes it writes differ from those before.
fn call(fs: &dyn FileSystem, op: &Op, turn: u8) {
    match *op {
        Op::Creat(path) => make(fs, path, Kind::File),
        Op::Mkdir(path) => make(fs, path, Kind::Dir),
        Op::Mkfifo(path) => make(fs, path, Kind::Fifo),
        Op::Symlink(path) => make(fs, path, Kind::Symlink),
        Op::Link(from, to) => {
            let (dir, name) = place(fs, to);
            let attr = fs.link(ino(fs, from), dir, name).unwrap();
            fs.forget(attr.ino, 1);
        }
        Op::Rename(from, to) => rename(fs, from, to, Rename::Replace),
        Op::Exchange(from, to) => rename(fs, from, to, Rename::Exchange),
        Op::Unlink(path) => {
            let (dir, name) = place(fs, path);
            fs.unlink(dir, name).unwrap();
        }
        Op::Rmdir(path) => {
            let (dir, name) = place(fs, path);
            fs.rmdir(dir, name).unwrap();
        }
        Op::Write(path, at, len) => {
            let data: Vec<u8> = (at..at + len).map(|byte| turn ^ (byte / 7) as u8 | 1).collect();
            fs.write(ino(fs, path), at, &data, false).unwrap().get().unwrap();
        }
        Op::Falloc(path, kind, at, len) => fs.fallocate(ino(fs, path), at, len, kind).unwrap(),
        Op::Truncate(path, size) => {
            fs.setattr(ino(fs, path), &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop).unwrap();
        }
        Op::Chmod(path) => {
            fs.setattr(ino(fs, path), &SetAttr { perm: Some(0o640), ..SetAttr::default() })
                .map(drop)
                .unwrap();
        }
        Op::SetXattr(path) => {
            fs.setxattr(ino(fs, path), ATTRIBUTE, &[turn; 90], SetXattr::Either, false).unwrap();
        }
        Op::RemoveXattr(path) => fs.removexattr(ino(fs, path), ATTRIBUTE).unwrap(),
    }
}

/// Commits when told to; and with no more memory at hand than one operation needs, for it is opened very often.
fn manual() -> Options {
    let lag = Lag { bytes: 1 << 20, ..Lag::default() };
    Options { manual: true, lag, ..Options::default() }
}

/// Images of two halves that were just made, both empty.
fn fresh_halves() -> &'static (Vec<u8>, Vec<u8>) {
    static HALVES: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    HALVES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(DISK_MIB << 20).unwrap();
        let made = Command::new("/usr/sbin/mke2fs")
            .args(["-q", "-t", "ext4", "-b", "1024", "-N", "256", "-F"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(&path).unwrap()));
        let ssd = Arc::new(Ram::new("ssd", SSD_MIB << 20));
        let section = ssd::SectionConfig { name: "all".into(), extent_bytes: 16 << 10, size_bytes: None };
        let config = ssd::Config { sections: vec![section], log_bytes: 1 << 20, ..ssd::Config::default() };
        volume::join_devices(disk.clone(), ssd.clone(), &config).unwrap();
        (disk.image(), ssd.image())
    })
}

fn bases() -> Vec<Arc<dyn BlockDevice>> {
    let (disk, ssd) = fresh_halves();
    vec![Arc::new(Ram::from_bytes("disk", disk.clone())), Arc::new(Ram::from_bytes("ssd", ssd.clone()))]
}

/// A workload that was run.
struct Run {
    what: String,
    log: Log,
    /// The tree after each call; marks `call N` in the log are numbers into it.
    history: Vec<Tree>,
    persist: Persist,
}

fn run(workload: &Workload) -> Run {
    let recorder = Recorder::new();
    let devices: Vec<Arc<dyn BlockDevice>> =
        bases().into_iter().map(|base| Arc::new(recorder.wrap(base)) as Arc<dyn BlockDevice>).collect();
    let fs = NfHybrid::open(devices[0].clone(), Some(devices[1].clone()), manual()).unwrap();
    let mut history = vec![Tree::new()];
    let mut note = |fs: &NfHybrid, what: &str| {
        history.push(tree_of(fs).unwrap());
        recorder.mark(format!("{what} {}", history.len() - 1));
    };
    for op in &workload.before {
        call(&fs, op, 0x40);
        note(&fs, "call");
    }
    match workload.setting {
        Setting::Fresh => {}
        Setting::Logged => tree_of(&fs).unwrap().keys().chain([&"/".to_string()]).for_each(|path| {
            fs.fsync(ino(&fs, path), false).unwrap().get().unwrap();
        }),
        Setting::Committed => fs.commit().unwrap(),
    }
    call(&fs, &workload.op, 0x80);
    note(&fs, "call");
    match workload.persist {
        Persist::Fsync(path) => fs.fsync(ino(&fs, path), false).unwrap().get().unwrap(),
        Persist::Fdatasync(path) => fs.fsync(ino(&fs, path), true).unwrap().get().unwrap(),
        Persist::Sync => fs.commit().unwrap(),
    }
    note(&fs, "durable");
    fs.commit().unwrap();
    note(&fs, "committed");
    fs.shutdown().unwrap();
    Run { what: format!("{workload:?}"), log: recorder.log(), history, persist: workload.persist }
}

/// What went wrong with a state, if something did.
type Verdict = Result<(), String>;

fn failed(what: &str) -> impl FnOnce(bimetal::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

impl Run {
    /// What both halves must show when the marks before a cut are these.
    fn check_promise(&self, marks: &[String], found: &Tree) -> Verdict {
        let number = |mark: &String| mark.rsplit_once(' ').and_then(|(_, number)| number.parse().ok());
        let kept = marks.iter().rev().find(|mark| !mark.starts_with("call")).and_then(number);
        let from: usize = kept.unwrap_or(0);
        if !self.history[from..].iter().any(|tree| same_shape(tree, found)) {
            return Err(format!("names or attributes are of no moment since call {from}: {}", shapes(found)));
        }
        let Some(promised) = kept.map(|kept: usize| &self.history[kept]) else { return Ok(()) };
        let all = self.persist == Persist::Sync || marks.iter().any(|mark| mark.starts_with("committed"));
        for (path, seen) in promised {
            let counts = match self.persist {
                Persist::Fsync(file) | Persist::Fdatasync(file) => all || file == path,
                Persist::Sync => true,
            };
            if counts && found.get(path) != Some(seen) {
                return Err(format!("{path} is not as it was made durable"));
            }
        }
        Ok(())
    }

    fn check_both(&self, state: &CrashState) -> Verdict {
        let [disk, ssd] = [&state.devices[0], &state.devices[1]].map(own);
        let fs = NfHybrid::open(disk.clone(), Some(ssd), manual()).map_err(failed("both halves"))?;
        let found = tree_of(&fs).map_err(failed("both halves"))?;
        self.check_promise(&state.marks, &found)?;
        use_and_empty(&fs, &found).map_err(failed("using it"))?;
        fs.shutdown().map_err(failed("the end"))?;
        drop(fs);
        let alone = NfHybrid::open(disk, None, manual()).map_err(failed("the disk afterwards"))?;
        let left = tree_of(&alone).map_err(failed("the disk afterwards"))?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("removed files are there again: {}", shapes(&left)))
        }
    }

    fn check_alone(&self, disk: Arc<dyn BlockDevice>) -> Verdict {
        let fs = NfHybrid::open(disk, None, Options { without_ssd: true, ..manual() })
            .map_err(failed("the disk alone"))?;
        let found = tree_of(&fs).map_err(failed("the disk alone"))?;
        match self.history.contains(&found) {
            true => Ok(()),
            false => Err(format!("the disk alone is of no moment: {}", shapes(&found))),
        }
    }

    /// One half older than the other: refused (`false`), or a tree that was.
    fn check_uneven(&self, disk: &Arc<Overlay>, ssd: &Arc<Overlay>) -> Result<bool, String> {
        let Ok(fs) = NfHybrid::open(own(disk), Some(own(ssd)), manual()) else { return Ok(false) };
        let found = tree_of(&fs).map_err(failed("uneven halves"))?;
        if !self.history.iter().any(|tree| same_shape(tree, &found)) {
            return Err(format!("uneven halves: names or attributes of no moment: {}", shapes(&found)));
        }
        for (path, seen) in &found {
            let was = |tree: &Tree| tree.get(path).is_some_and(|was| was.contents == seen.contents);
            if !self.history.iter().any(was) {
                return Err(format!("uneven halves: {path} was never so"));
            }
        }
        Ok(true)
    }
}

/// A device for one look, so that the state stays as it is for the next.
fn own(device: &Arc<Overlay>) -> Arc<dyn BlockDevice> {
    Arc::new(Overlay::new(device.clone()))
}

fn shapes(tree: &Tree) -> String {
    tree.iter()
        .map(|(path, seen)| {
            format!("{path} {:?} {:o} {}x {}B; ", seen.kind, seen.perm, seen.nlink, seen.contents.len())
        })
        .collect()
}

/// A file in every directory, and then nothing any more.
fn use_and_empty(fs: &NfHybrid, tree: &Tree) -> Result<(), bimetal::Error> {
    let dirs = tree.iter().filter(|(_, seen)| seen.kind == Kind::Dir).map(|(path, _)| path.as_str());
    for dir in std::iter::once("").chain(dirs) {
        let (parent, name) = (ino(fs, dir), b"_dummy");
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let attr = fs.create(&Caller::default(), parent, name, &node)?;
        fs.write(attr.ino, 0, b"used", false)?.get()?;
        fs.forget(attr.ino, 1);
        fs.unlink(parent, name)?;
    }
    for (path, seen) in tree.iter().rev() {
        let (parent, name) = place(fs, path);
        if seen.kind == Kind::Dir { fs.rmdir(parent, name)? } else { fs.unlink(parent, name)? }
    }
    Ok(())
}

fn e2fsck(disk: &dyn BlockDevice, path: &Path) -> Verdict {
    let bytes = disk.read(0, (DISK_MIB << 20) as usize).map_err(failed("the disk"))?;
    std::fs::write(path, bytes).map_err(|why| why.to_string())?;
    for (argument, allowed) in [("-p", &[0, 1][..]), ("-fn", &[0])] {
        let run = Command::new("/usr/sbin/e2fsck").arg(argument).arg(path).output();
        let run = run.map_err(|why| why.to_string())?;
        if !run.status.code().is_some_and(|code| allowed.contains(&code)) {
            return Err(format!("e2fsck {argument}: {}", String::from_utf8_lossy(&run.stdout)));
        }
    }
    Ok(())
}

/// How many states of each sort were looked at, and what was wrong.
#[derive(Default)]
struct Tally {
    both: usize,
    alone: usize,
    checked: usize,
    older_disk: usize,
    older_ssd: usize,
    refused: usize,
    bad: Vec<String>,
}

/// Which states to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// Both halves cut at once, and the disk alone.
    Cut,
    /// A disk that is older than its SSD.
    OlderDisk,
    /// An SSD that is older than its disk.
    OlderSsd,
}

impl Tally {
    fn note(&mut self, run: &Run, where_: &str, verdict: Verdict) {
        if let Err(why) = verdict {
            self.bad.push(format!("{}, {where_}: {why}", run.what));
        }
    }

    fn workload(&mut self, run: &Run, sorts: &[Sort], every: bool, image: Option<&Path>) {
        let marks = run
            .log
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| matches!(&entry.event, Event::Mark(note) if !note.starts_with("call")));
        let promised: Vec<usize> = marks.map(|(at, _)| at + 1).collect();
        let first = promised.first().copied().unwrap_or(0);
        // Where something was promised, in the middle of the operation, in the middle of the commit cycle.
        let last = run.log.entries.len();
        let cuts = [promised.clone(), vec![first.saturating_sub(2), (first + last) / 2, last - 3]].concat();
        let states: Vec<CrashState> = crash_states(&run.log, &bases(), &Survival::EVERY, 7)
            .filter(|state| every || cuts.contains(&state.cut))
            .collect();
        for sort in sorts {
            match sort {
                Sort::Cut => self.cut_at_once(run, &states),
                uneven => self.uneven(run, &states, *uneven),
            }
        }
        if let (Some(path), Some(state)) = (image, states.iter().find(|state| state.cut == first)) {
            self.note(run, "e2fsck", e2fsck(&*state.devices[0], path));
            self.checked += 1;
        }
    }

    fn cut_at_once(&mut self, run: &Run, states: &[CrashState]) {
        for state in states {
            let cut = format!("cut {} of {}, {:?}", state.cut, run.log.entries.len(), state.survival);
            self.note(run, &cut, run.check_both(state));
            self.note(run, &cut, run.check_alone(own(&state.devices[0])));
            (self.both, self.alone) = (self.both + 1, self.alone + 1);
        }
    }

    /// Every state of one half beside the newest of the other.
    fn uneven(&mut self, run: &Run, states: &[CrashState], sort: Sort) {
        let whole: Vec<&CrashState> = states.iter().filter(|state| state.survival == Survival::All).collect();
        let Some(newest) = whole.last() else { return };
        for old in &whole {
            let (disk, ssd, count) = match sort {
                Sort::OlderDisk => (&old.devices[0], &newest.devices[1], &mut self.older_disk),
                _ => (&newest.devices[0], &old.devices[1], &mut self.older_ssd),
            };
            *count += 1;
            match run.check_uneven(disk, ssd) {
                Ok(opened) => self.refused += usize::from(!opened),
                Err(why) => self.note(run, &format!("cut {} beside the end", old.cut), Err(why)),
            }
        }
    }
}

fn check_all(sorts: &[Sort]) {
    let asked = std::env::var("BIMETAL_ACE").unwrap_or_default();
    let (every, stride) = (asked == "every", if asked.is_empty() { 10 } else { 1 });
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk");
    let workloads: Vec<Workload> = workloads::all().into_iter().step_by(stride).collect();
    let mut tally = Tally::default();
    for (number, workload) in workloads.iter().enumerate() {
        let image = ((every || number % 8 == 0) && sorts.contains(&Sort::Cut)).then_some(image.as_path());
        tally.workload(&run(workload), sorts, every, image);
    }
    println!(
        "{} workloads: {} states of both halves, {} of the disk alone ({} through e2fsck), {} of an older disk, {} of \
         an older SSD ({} refused): {} bad",
        workloads.len(),
        tally.both,
        tally.alone,
        tally.checked,
        tally.older_disk,
        tally.older_ssd,
        tally.refused,
        tally.bad.len()
    );
    let shown: Vec<&String> = tally.bad.iter().take(20).collect();
    assert!(tally.bad.is_empty(), "{} bad states, the first:\n{shown:#?}", tally.bad.len());
}

#[test]
fn no_power_cut_after_any_one_operation_leaves_a_bad_state() {
    check_all(&[Sort::Cut]);
}

#[test]
fn a_disk_that_is_older_than_its_ssd_gives_no_mixture() {
    check_all(&[Sort::OlderDisk]);
}

#[test]
fn an_ssd_that_is_older_than_its_disk_gives_no_mixture() {
    check_all(&[Sort::OlderSsd]);
}
