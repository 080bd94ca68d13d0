//! The phases of a volume's life, each from a volume prepared for it.

use super::Half;
use bimetal::Result;
use bimetal::front::crash::calls::{Call, Traced};
use bimetal::front::crash::explore::{FirstBytes, start_of};
use bimetal::front::crash::snapshot::Snapshot;
use bimetal::fs::nfhybrid::{Lag, NfHybrid, Options, ssd, volume};
use bimetal::fs::{Caller, FileSystem, Kind, NewNode, Rename, SetAttr, resolve};
use bimetal::media::BlockDevice;
use bimetal::media::counted::Counted;
use bimetal::media::faulty::Faulty;
use bimetal::media::overlay::Overlay;
use bimetal::media::ram::Ram;
use bimetal::media::recorded::Recorder;
use bimetal::units::Ino;
use std::process::Command;
use std::sync::{Arc, OnceLock};

const DISK_MIB: u64 = 16;
const SSD_MIB: u64 = 8;
/// Files of a prepared volume.
const FILES: u64 = 8;

/// A part of a volume's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Run,
    Fsync,
    Commit,
    Checkpoint,
    Recovery,
    Unmount,
    Adopt,
    Mkfs,
    Fsck,
    Repair,
}

impl Phase {
    pub const EVERY: [Phase; 10] = [
        Phase::Run,
        Phase::Fsync,
        Phase::Commit,
        Phase::Checkpoint,
        Phase::Recovery,
        Phase::Unmount,
        Phase::Adopt,
        Phase::Mkfs,
        Phase::Fsck,
        Phase::Repair,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Run => "run",
            Phase::Fsync => "fsync",
            Phase::Commit => "commit",
            Phase::Checkpoint => "checkpoint",
            Phase::Recovery => "recovery",
            Phase::Unmount => "unmount",
            Phase::Adopt => "adopt",
            Phase::Mkfs => "mkfs",
            Phase::Fsck => "fsck",
            Phase::Repair => "fsck --repair",
        }
    }
}

/// A volume and what is known of it.
pub struct Prepared {
    pub disk: Arc<dyn BlockDevice>,
    pub ssd: Arc<dyn BlockDevice>,
    pub start: Snapshot,
    pub first: FirstBytes,
    pub calls: Vec<Call>,
}

/// Two halves that can fail, over a prepared volume.
pub struct Rig {
    pub media: [Arc<Overlay>; 2],
    pub faulty: [Arc<Faulty>; 2],
    pub counted: [Arc<Counted>; 2],
}

impl Rig {
    pub fn over(volume: &Prepared) -> Rig {
        let media = [&volume.disk, &volume.ssd].map(|base| Arc::new(Overlay::new(base.clone())));
        let faulty = media.clone().map(|medium| Arc::new(Faulty::new(medium)));
        let counted = faulty.clone().map(|faulty| Arc::new(Counted::new(faulty)));
        Rig { media, faulty, counted }
    }

    pub fn of(&self, half: Half) -> (&Faulty, &Counted) {
        let place = usize::from(half == Half::Ssd);
        (&self.faulty[place], &self.counted[place])
    }

    pub fn devices(&self) -> [Arc<dyn BlockDevice>; 2] {
        self.counted.clone().map(|device| device as Arc<dyn BlockDevice>)
    }

    /// The media as a healthy machine would find them.
    pub fn found(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.media.iter().map(|medium| medium.clone() as Arc<dyn BlockDevice>).collect()
    }
}

/// What somebody saw who used the volume through a phase.
#[derive(Default)]
pub struct Story {
    pub calls: Vec<Call>,
    /// Calls that failed.
    pub errors: usize,
    /// Reads that gave other bytes than were written.
    pub misread: Vec<String>,
    /// The SSD was given up.
    pub given_up: bool,
    /// It was ended by an unmount that succeeded.
    pub ended_well: bool,
    /// The volume was made, or adopted.
    pub made: bool,
}

impl Story {
    fn tried<T>(&mut self, done: Result<T>) -> Option<T> {
        done.inspect_err(|_| self.errors += 1).ok()
    }
}

pub fn mke2fs_is_here() -> bool {
    Command::new("/usr/sbin/mke2fs").arg("-V").output().is_ok()
}

pub fn options() -> Options {
    Options { manual: true, lag: Lag { bytes: 4 << 20, ..Lag::default() }, ..Options::default() }
}

fn config() -> ssd::Config {
    let section = ssd::SectionConfig { name: "all".into(), extent_bytes: 16 << 10, size_bytes: None };
    ssd::Config { sections: vec![section], log_bytes: 256 << 10, ..ssd::Config::default() }
}

/// An ext4 with a journal of 1 MiB, and an SSD half of zeros.
fn blank() -> [Arc<Ram>; 2] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(DISK_MIB << 20).unwrap();
        let made = Command::new("/usr/sbin/mke2fs")
            .args(["-q", "-t", "ext4", "-b", "1024", "-N", "256", "-J", "size=1", "-F"])
            .arg(file.path())
            .status();
        assert!(made.unwrap().success());
        std::fs::read(file.path()).unwrap()
    });
    [Arc::new(Ram::from_bytes("disk", image.clone())), Arc::new(Ram::new("ssd", SSD_MIB << 20))]
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed as u8).wrapping_mul(31).wrapping_add((at / 113) as u8) | 1).collect()
}

/// The contents of file `number` of a prepared volume: one block to many.
fn contents(number: u64) -> Vec<u8> {
    pattern(number, [700, 4096, 9000, 70_000][number as usize % 4])
}

fn file(fs: &dyn FileSystem, name: &str) -> Result<Ino> {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), fs.root(), name.as_bytes(), &node)?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn put(fs: &dyn FileSystem, ino: Ino, at: u64, data: &[u8]) -> Result<()> {
    fs.write(ino, at, data, false)?.get().map(drop)
}

fn sync(fs: &dyn FileSystem, ino: Ino) -> Result<()> {
    fs.fsync(ino, false)?.get()
}

/// A volume with files, left in order.
fn clean() -> Result<Prepared> {
    let [disk, ssd] = blank();
    volume::join_devices(disk.clone(), ssd.clone(), &config())?;
    let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), options())?;
    for number in 0..FILES {
        let ino = file(&fs, &format!("f{number}"))?;
        put(&fs, ino, 0, &contents(number))?;
    }
    fs.shutdown()?;
    drop(fs);
    let fs = NfHybrid::open(
        Arc::new(Overlay::new(disk.clone())),
        Some(Arc::new(Overlay::new(ssd.clone()))),
        options(),
    )?;
    let (start, first) = start_of(&fs)?;
    Ok(Prepared { disk, ssd, start, first, calls: Vec::new() })
}

/// The same after more work and a power cut: things in the log only, in the journal only, and in neither.
fn cut() -> Result<Prepared> {
    let volume = clean()?;
    let (disk, ssd) =
        (Arc::new(Overlay::new(volume.disk.clone())), Arc::new(Overlay::new(volume.ssd.clone())));
    let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), options())?;
    let traced = Traced::new(Arc::new(fs), Recorder::new());
    let mut story = Story::default();
    change(&traced, &mut story, 100);
    traced.sync()?;
    change(&traced, &mut story, 200);
    synced(&traced, &mut story);
    change(&traced, &mut story, 300);
    assert_eq!(story.errors, 0, "preparing");
    Ok(Prepared { disk, ssd, calls: traced.calls(), ..volume })
}

/// The volume a phase begins with.
pub fn prepared(phase: Phase) -> &'static Prepared {
    static CLEAN: OnceLock<Prepared> = OnceLock::new();
    static CUT: OnceLock<Prepared> = OnceLock::new();
    static BLANK: OnceLock<Prepared> = OnceLock::new();
    static FULL: OnceLock<Prepared> = OnceLock::new();
    match phase {
        Phase::Recovery | Phase::Fsck | Phase::Repair => CUT.get_or_init(|| cut().unwrap()),
        Phase::Mkfs => BLANK.get_or_init(|| {
            let [disk, ssd] = blank();
            alone(disk, ssd).unwrap()
        }),
        Phase::Adopt => FULL.get_or_init(|| {
            let volume = clean().unwrap();
            alone(volume.disk, Arc::new(Ram::new("ssd", SSD_MIB << 20))).unwrap()
        }),
        _ => CLEAN.get_or_init(|| clean().unwrap()),
    }
}

/// A disk half with an SSD that is none yet.
fn alone(disk: Arc<dyn BlockDevice>, ssd: Arc<dyn BlockDevice>) -> Result<Prepared> {
    let fs = NfHybrid::open(Arc::new(Overlay::new(disk.clone())), None, options())?;
    let (start, first) = start_of(&fs)?;
    Ok(Prepared { disk, ssd, start, first, calls: Vec::new() })
}

/// Reads every prepared file and looks at the bytes; those that were changed since are left out.
fn read_back(fs: &dyn FileSystem, story: &mut Story, skip: &[u64]) {
    for number in (0..FILES).filter(|number| !skip.contains(number)) {
        let name = format!("/f{number}");
        let expected = contents(number);
        let read = resolve(fs, &name).and_then(|attr| fs.read(attr.ino, 0, expected.len())?.get());
        if let Some(parts) = story.tried(read)
            && parts.concat() != expected
        {
            story.misread.push(name);
        }
    }
}

/// New files, overwrites, a rename over a file, a truncation, a removal; nothing made durable.
fn change(fs: &dyn FileSystem, story: &mut Story, seed: u64) {
    if let Some(ino) = story.tried(file(fs, &format!("n{seed}"))) {
        story.tried(put(fs, ino, 0, &pattern(seed, 5000)));
    }
    if let Some(attr) = story.tried(resolve(fs, "/f1")) {
        story.tried(put(fs, attr.ino, 1000, &pattern(seed + 1, 2000)));
    }
    if let Some(attr) = story.tried(resolve(fs, "/f2")) {
        story.tried(fs.setattr(attr.ino, &SetAttr { size: Some(3000 + seed), ..SetAttr::default() }));
    }
    let name = format!("r{seed}");
    if let Some(ino) = story.tried(file(fs, &name)) {
        story.tried(put(fs, ino, 0, &pattern(seed + 2, 12_000)));
        let moved = fs.rename(fs.root(), name.as_bytes(), fs.root(), b"renamed", Rename::Replace);
        story.tried(moved);
    }
    if story.tried(file(fs, "short-lived")).is_some() {
        story.tried(fs.unlink(fs.root(), b"short-lived"));
    }
}

/// Small and large writes made durable, and a name.
fn synced(fs: &dyn FileSystem, story: &mut Story) {
    for (number, len) in [(0, 300), (1, 4096), (2, 120_000), (3, 50)] {
        let name = format!("s{number}");
        let found = resolve(fs, &format!("/{name}")).map(|attr| attr.ino);
        let made = found.or_else(|_| file(fs, &name));
        let done =
            made.and_then(|ino| put(fs, ino, 0, &pattern(40 + number, len)).and_then(|()| sync(fs, ino)));
        story.tried(done);
    }
    if let Some(attr) = story.tried(resolve(fs, "/f0")) {
        story.tried(put(fs, attr.ino, 100, b"overwritten").and_then(|()| sync(fs, attr.ino)));
    }
    let moved = fs.rename(fs.root(), b"s3", fs.root(), b"s4", Rename::Replace);
    story.tried(moved.and_then(|()| sync(fs, fs.root())));
}

/// So many overwrites and commits that the journal is written home.
fn wear(fs: &dyn FileSystem, story: &mut Story) {
    for turn in 0..14 {
        for number in 0..FILES {
            if let Some(attr) = story.tried(resolve(fs, &format!("/f{number}"))) {
                story.tried(put(fs, attr.ino, 0, &pattern(turn + number, contents(number).len())));
            }
        }
        story.tried(fs.sync());
    }
}

/// Goes through a phase; `arm` is called where it begins.
pub fn live_through(phase: Phase, rig: &Rig, unmount: bool, arm: &mut dyn FnMut(bool)) -> Story {
    match phase {
        Phase::Adopt | Phase::Mkfs => joined(rig, arm),
        Phase::Recovery => opened(rig.devices(), unmount, arm),
        Phase::Repair => opened(rig.devices(), true, arm),
        Phase::Fsck => {
            let devices = rig.devices().map(|device| Arc::new(Overlay::new(device)) as Arc<dyn BlockDevice>);
            opened(devices, true, arm)
        }
        _ => mounted(phase, rig, unmount, arm),
    }
}

fn joined(rig: &Rig, arm: &mut dyn FnMut(bool)) -> Story {
    let mut story = Story::default();
    let [disk, ssd] = rig.devices();
    arm(true);
    let joined = volume::join_devices(disk, ssd, &config());
    story.made = story.tried(joined).is_some();
    arm(false);
    story
}

/// A mount that has to recover, looked through.
fn opened(devices: [Arc<dyn BlockDevice>; 2], unmount: bool, arm: &mut dyn FnMut(bool)) -> Story {
    let mut story = Story::default();
    let [disk, ssd] = devices;
    arm(true);
    if let Some(fs) = story.tried(NfHybrid::open(disk, Some(ssd), options())) {
        story.tried(Snapshot::of(&fs));
        read_back(&fs, &mut story, &[0, 1, 2]);
        story.given_up = fs.status().ssd_lost.is_some();
        if unmount {
            story.ended_well = story.tried(fs.shutdown()).is_some();
        }
    }
    arm(false);
    story
}

fn mounted(phase: Phase, rig: &Rig, unmount: bool, arm: &mut dyn FnMut(bool)) -> Story {
    let mut story = Story::default();
    let [disk, ssd] = rig.devices();
    let fs = Arc::new(NfHybrid::open(disk, Some(ssd), options()).expect("healthy devices"));
    let traced = Traced::new(fs.clone(), Recorder::new());
    if matches!(phase, Phase::Commit | Phase::Unmount) {
        synced(&traced, &mut story);
        change(&traced, &mut story, 10);
    }
    arm(true);
    match phase {
        Phase::Run => {
            read_back(&traced, &mut story, &[]);
            change(&traced, &mut story, 10);
            read_back(&traced, &mut story, &[1, 2]);
        }
        Phase::Fsync => {
            change(&traced, &mut story, 10);
            synced(&traced, &mut story);
        }
        Phase::Commit => drop(story.tried(traced.sync())),
        Phase::Checkpoint => wear(&traced, &mut story),
        _ => {}
    }
    // What goes on after a fault is made durable like anything else.
    if phase != Phase::Unmount {
        synced(&traced, &mut story);
    }
    story.given_up = fs.status().ssd_lost.is_some();
    if unmount || phase == Phase::Unmount {
        story.ended_well = story.tried(traced.shutdown()).is_some();
    }
    arm(false);
    story.calls = traced.calls();
    story
}
