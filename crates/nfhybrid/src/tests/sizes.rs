//! One file beside a model of it: sizes up and down, space reserved past the end, holes, zeros, and power cuts after an fsync.

use super::promises::{noise, write};
use super::*;
use bimetal_media::{Completion, Request, filter::Filter};
use std::sync::Mutex;

#[test]
fn a_file_of_any_size_is_what_a_model_says() {
    for (seed, block) in (0..24_u64).flat_map(|seed| [(seed, "1024"), (seed, "4096")]) {
        let options = ["-b", block, "-N", "200", "-m", "0", "-J", "size=4"];
        let Some((mut disk, mut ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else {
            return;
        };
        let mut fs = open(&disk, Some(&ssd), manual()).unwrap();
        let mut random = bimetal_base::random::Random::new(seed, "model");
        let mut ino = create(&fs, "f", b"");
        let mut model: Vec<u8> = Vec::new();
        let mut trace = Vec::new();
        for step in 0..250_u64 {
            let pick = random.next() % 10;
            let at = random.next() % 60_000;
            let len = 1 + random.next() % 20_000;
            trace.push((pick, at, len));
            match pick {
                0..=1 => {
                    let bytes = noise(step, len as usize);
                    assert_eq!(write(&fs, ino, at, &bytes).unwrap(), bytes.len());
                    let end = (at + len) as usize;
                    if model.len() < end {
                        model.resize(end, 0)
                    }
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                2..=4 => {
                    fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                    model.resize(at as usize, 0);
                }
                5 => fs.fallocate(ino, at, len, Fallocate::Reserve { keep_size: true }).unwrap(),
                6 => {
                    let keep_size = step % 2 == 0;
                    fs.fallocate(ino, at, len, Fallocate::Zero { keep_size }).unwrap();
                    let end = (at + len) as usize;
                    if !keep_size && model.len() < end {
                        model.resize(end, 0)
                    }
                    let (from, to) = (model.len().min(at as usize), model.len().min(end));
                    model[from..to].fill(0);
                }
                7 => {
                    fs.fallocate(ino, at, len, Fallocate::Punch).unwrap();
                    let (from, to) = (model.len().min(at as usize), model.len().min((at + len) as usize));
                    model[from..to].fill(0);
                }
                8 => fs.commit().unwrap(),
                _ => {
                    fs.fsync(ino, false).unwrap().get().unwrap();
                    let images = [disk.image(), ssd.image()];
                    fs.abandon();
                    [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
                    fs = open(&disk, Some(&ssd), manual()).unwrap();
                    ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
                }
            }
            let found = contents(&fs, "f");
            assert!(
                found == model,
                "seed {seed}, blocks {block}, step {step}: {:?}",
                &trace[trace.len().saturating_sub(12)..]
            );
        }
        fs.shutdown().unwrap();
        full::check_disk(&disk);
    }
}

pub(super) type Images = Arc<Mutex<Vec<[Vec<u8>; 2]>>>;

/// Keeps what both halves hold before each flush of the disk, or with each part of a write to the SSD.
pub(super) struct Cuts {
    pub halves: [Arc<Ram>; 2],
    pub is_ssd: bool,
    pub images: Images,
}

impl Filter for Cuts {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.halves[usize::from(self.is_ssd)]
    }

    fn pass(&self, at: Time, request: Request) -> std::result::Result<(Time, Request), Completion> {
        let images = || [self.halves[0].image(), self.halves[1].image()];
        match &request {
            Request::Flush if !self.is_ssd => self.images.lock().unwrap().push(images()),
            Request::Write { offset, data, .. } if self.is_ssd => {
                let bytes = data.concat();
                for part in (4096..bytes.len()).step_by(4096) {
                    let mut images = images();
                    let from = *offset as usize;
                    images[1][from..from + part].copy_from_slice(&bytes[..part]);
                    self.images.lock().unwrap().push(images);
                }
            }
            _ => {}
        }
        Ok((at, request))
    }
}

/// The power goes in commits, when the SSD has its part and the disk has not, and after another file's fsync.
#[test]
fn a_file_that_was_not_synced_has_a_size_it_had() {
    for (seed, block) in (0..3_u64).flat_map(|seed| [(seed, "1024"), (seed, "4096")]) {
        let options = ["-b", block, "-N", "200", "-m", "0", "-J", "size=4"];
        let Some((disk, ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else { return };
        let images = Images::default();
        let [on_disk, on_ssd] = [false, true].map(|is_ssd| {
            let halves = [disk.clone(), ssd.clone()];
            Arc::new(Cuts { halves, is_ssd, images: images.clone() }) as Arc<dyn BlockDevice>
        });
        let fs = NfHybrid::open(on_disk, Some(on_ssd), manual()).unwrap();
        let mut random = bimetal_base::random::Random::new(seed, "sizes");
        let ino = create(&fs, "f", b"");
        let other = create(&fs, "other", b"");
        fs.commit().unwrap();
        let mut sizes = vec![0];
        let mut trace = Vec::new();
        for step in 0..60_u64 {
            let size = *sizes.last().unwrap();
            let (pick, at) = (random.next() % 12, random.next() % 200_000);
            let len = [1, 100, 4096, 20_000, 65_536][random.next() as usize % 5];
            trace.push((pick, at, len));
            images.lock().unwrap().clear();
            let after = match pick {
                0..=4 => {
                    write(&fs, ino, at, &noise(step, len as usize)).unwrap();
                    size.max(at + len)
                }
                5 => {
                    fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                    at
                }
                6 | 7 => {
                    let keep_size = random.next().is_multiple_of(3);
                    let what = match pick {
                        6 => Fallocate::Reserve { keep_size },
                        _ => Fallocate::Zero { keep_size },
                    };
                    fs.fallocate(ino, at, len, what).unwrap();
                    if keep_size { size } else { size.max(at + len) }
                }
                8 => {
                    fs.fallocate(ino, at, len, Fallocate::Punch).unwrap();
                    size
                }
                9 => {
                    write(&fs, other, 0, &noise(step, len as usize)).unwrap();
                    fs.fsync(other, false).unwrap().get().unwrap();
                    images.lock().unwrap().push([disk.image(), ssd.image()]);
                    size
                }
                _ => {
                    fs.commit().unwrap();
                    size
                }
            };
            sizes.push(after);
            for [disk, ssd] in std::mem::take(&mut *images.lock().unwrap()) {
                let [disk, ssd] = [disk, ssd].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
                let fs = open(&disk, Some(&ssd), manual()).unwrap();
                let found = fs.getattr(fs.lookup(ROOT_INO, b"f").unwrap().ino).unwrap().size;
                assert!(
                    sizes.contains(&found),
                    "seed {seed}, blocks {block}, step {step}: {found} of {sizes:?}: {trace:?}"
                );
                fs.abandon();
            }
            if pick > 9 {
                sizes = vec![after];
            }
        }
        fs.abandon();
    }
}

pub(super) type Act = Box<dyn FnOnce() + Send>;

/// Does something at the first request of a kind since it was told what.
pub(super) struct Meanwhile {
    pub inner: Arc<dyn BlockDevice>,
    pub act: Arc<Mutex<Option<Act>>>,
    pub is_it: fn(&Request) -> bool,
}

pub(super) fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

impl Filter for Meanwhile {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, at: Time, request: Request) -> std::result::Result<(Time, Request), Completion> {
        let act = if (self.is_it)(&request) { self.act.lock().unwrap().take() } else { None };
        act.into_iter().for_each(|act| act());
        Ok((at, request))
    }
}

/// What is done to a file: it is synced, gets a size, or space from its beginning, or data of a length at a place.
#[derive(Clone, Copy)]
enum Step {
    Sync,
    Size(u64),
    Space(u64),
    Data(u64, usize),
}

impl Step {
    /// What it makes of contents.
    fn after(self, contents: &[u8]) -> Vec<u8> {
        let mut contents = contents.to_vec();
        match self {
            Step::Sync => {}
            Step::Size(size) => contents.resize(size as usize, 0),
            Step::Space(size) => contents.resize(contents.len().max(size as usize), 0),
            Step::Data(at, len) => {
                let at = at as usize;
                contents.resize(contents.len().max(at + len), 0);
                contents[at..at + len].copy_from_slice(&noise(3, len));
            }
        }
        contents
    }

    fn run(self, fs: &NfHybrid, ino: Ino) {
        match self {
            Step::Sync => fs.fsync(ino, false).unwrap().get().unwrap(),
            Step::Size(size) => drop(fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })),
            Step::Space(size) => {
                fs.fallocate(ino, 0, size, Fallocate::Reserve { keep_size: false }).unwrap();
            }
            Step::Data(at, len) => assert_eq!(write(fs, ino, at, &noise(3, len)).unwrap(), len),
        }
    }
}

/// A file changes while a commit writes what it had before, another one's fsync says all so far, and the power goes.
#[test]
fn a_file_that_changes_while_a_commit_writes_it_has_a_size_it_had() {
    // What happens before the commit and in it.
    type Case = (&'static [Step], &'static [Step]);
    let cases: [Case; 13] = [
        (&[], &[Step::Size(42_497)]),
        (&[Step::Size(42_497)], &[]),
        (&[], &[Step::Size(15_466)]),
        (&[], &[Step::Size(15_466), Step::Size(42_497)]),
        (&[Step::Size(15_466), Step::Size(42_497)], &[]),
        (&[], &[Step::Data(40_000, 9000)]),
        (&[], &[Step::Size(9000), Step::Data(9000, 10)]),
        (&[], &[Step::Data(8192, 4096)]),
        (&[Step::Size(42_497)], &[Step::Space(42_497)]),
        (&[Step::Size(42_497)], &[Step::Space(50_000)]),
        (&[Step::Sync, Step::Size(0), Step::Data(0, 12_288)], &[Step::Data(0, 4096)]),
        (&[Step::Sync, Step::Size(5000), Step::Data(0, 30_000)], &[Step::Data(8192, 4096)]),
        (&[Step::Sync, Step::Data(0, 30_000)], &[Step::Data(8192, 4096)]),
    ];
    for (case, old) in (0..cases.len()).flat_map(|case| [(case, 0), (case, 5000)]) {
        let (before, during) = cases[case];
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let images = Images::default();
        let [on_disk, on_ssd] = [false, true].map(|is_ssd| {
            let halves = [disk.clone(), ssd.clone()];
            Arc::new(Cuts { halves, is_ssd, images: images.clone() }) as Arc<dyn BlockDevice>
        });
        let act = Arc::new(Mutex::new(None));
        let on_ssd = Arc::new(Meanwhile { inner: on_ssd, act: act.clone(), is_it: is_write });
        let fs = Arc::new(NfHybrid::open(on_disk, Some(on_ssd), manual()).unwrap());
        let ino = create(&fs, "f", &noise(1, old));
        let other = create(&fs, "other", b"");
        fs.commit().unwrap();
        let whole = [noise(1, old), noise(2, 20_466 - old)].concat();
        write(&fs, ino, old as u64, &whole[old..]).unwrap();
        before.iter().for_each(|step| step.run(&fs, ino));
        images.lock().unwrap().clear();
        let at = fs.clone();
        *act.lock().unwrap() = Some(Box::new(move || {
            during.iter().for_each(|step| step.run(&at, ino));
            write(&at, other, 0, b"synced").unwrap();
            at.fsync(other, false).unwrap().get().unwrap();
        }) as Act);
        fs.commit().unwrap();
        assert!(act.lock().unwrap().is_none(), "case {case}: the commit wrote nothing to the SSD");
        let mut versions = vec![noise(1, old), whole];
        for step in before.iter().chain(during) {
            let changed = step.after(versions.last().unwrap());
            versions.push(changed);
        }
        let mut seen = Vec::new();
        for images in std::mem::take(&mut *images.lock().unwrap()) {
            let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
            let fs = open(&disk, Some(&ssd), manual()).unwrap();
            let found = contents(&fs, "f");
            let known = versions.iter().any(|version| version.len() == found.len());
            assert!(known, "case {case}, {old}: {} bytes", found.len());
            let was = |(at, byte): (usize, &u8)| versions.iter().any(|version| version.get(at) == Some(byte));
            let wrong = found.iter().enumerate().position(|byte| !was(byte));
            assert!(wrong.is_none(), "case {case}, {old}: of {} bytes that at {wrong:?}", found.len());
            fs.abandon();
            seen.push(found.len());
        }
        println!("case {case}, {old}: {seen:?}");
        Arc::into_inner(fs).unwrap().abandon();
    }
}

/// A new file whose data was punched or cut off takes another's place: the old one or the new one is there, never an empty one.
#[test]
fn a_file_of_a_hole_that_takes_anothers_place_has_its_size() {
    let cut = |fs: &NfHybrid, ino, size| {
        fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    };
    type Change<'a> = (&'a dyn Fn(&NfHybrid, Ino), usize);
    let changes: [Change; 4] = [
        (&|fs, ino| fs.fallocate(ino, 4096, 4096, Fallocate::Punch).unwrap(), 8192),
        (&|fs, ino| cut(fs, ino, 4096), 4096),
        (&|fs, ino| cut(fs, ino, 4000), 4000),
        (&|fs, ino| (cut(fs, ino, 4096), cut(fs, ino, 9000)).1, 9000),
    ];
    for (change, size) in changes {
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        create(&fs, "g", b"old");
        fs.commit().unwrap();
        let new = create(&fs, "new", b"");
        write(&fs, new, 4096, &[7; 4096]).unwrap();
        change(&fs, new);
        fs.rename(ROOT_INO, b"new", ROOT_INO, b"g", Rename::Replace).unwrap();
        fs.fsync(ROOT_INO, false).unwrap().get().unwrap();
        let [disk, ssd] = again([&disk, &ssd]);
        fs.abandon();
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        assert!(contents(&fs, "g") == vec![0; size], "{size} bytes");
        fs.shutdown().unwrap();
    }
}

/// The log has a batch of several groups, of which the power leaves the first: nobody was promised what they hold.
#[test]
fn of_a_batch_that_is_torn_between_groups_no_operation_counts_without_its_data() {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    for (reused, len) in [(false, 2000), (false, 20_000), (true, 0), (true, 2000)] {
        let Some((disk, ssd)) = halves_as(32, 16, &config) else { return };
        let images = Images::default();
        let [on_disk, on_ssd] = [false, true].map(|is_ssd| {
            let halves = [disk.clone(), ssd.clone()];
            Arc::new(Cuts { halves, is_ssd, images: images.clone() }) as Arc<dyn BlockDevice>
        });
        let fs = NfHybrid::open(on_disk, Some(on_ssd), manual()).unwrap();
        let (old, gone, new) = (noise(1, 9000), noise(2, 7000), noise(3, len));
        create(&fs, "z", &old);
        let x = create(&fs, "x", &gone);
        let made = if reused { None } else { Some(create(&fs, "y", b"")) };
        fs.commit().unwrap();
        if reused {
            fs.unlink(ROOT_INO, b"x").unwrap();
            fs.forget(x, 1);
        }
        let y = made.unwrap_or_else(|| create(&fs, "y", b""));
        assert_eq!(y == x, reused);
        write(&fs, y, 0, &new).unwrap();
        fs.rename(ROOT_INO, b"y", ROOT_INO, b"z", Rename::Replace).unwrap();
        for number in 0..150 {
            create(&fs, &format!("one of many files, so that their names fill groups: {number}"), b"");
        }
        let other = create(&fs, "other", b"synced");
        images.lock().unwrap().clear();
        fs.fsync(other, false).unwrap().get().unwrap();
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 3, "{} states", images.len());
        for (state, images) in images.into_iter().enumerate() {
            let [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
            let fs = open(&disk, Some(&ssd), manual()).unwrap();
            let found = contents(&fs, "z");
            assert!(found == old || found == new, "{reused}, {len}, state {state}: {} bytes", found.len());
            if fs.lookup(ROOT_INO, b"x").is_ok() {
                assert!(contents(&fs, "x") == gone, "{reused}, {len}, state {state}");
            }
            fs.shutdown().unwrap();
        }
        fs.abandon();
    }
}

/// An fsync that has to say of many files how long they are: what the log has no room for goes to the disk.
#[test]
fn more_emptied_files_than_the_log_can_speak_of_do_not_cost_the_ssd() {
    let config = ssd::Config { log_bytes: 64 << 10, ..ssd::Config::default() };
    for files in (60..=420).step_by(40) {
        let options = ["-b", "4096", "-N", "700", "-J", "size=16"];
        let Some((disk, ssd)) = halves_with(64, 128, &config, &options) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let inos: Vec<Ino> = (0..files).map(|n| create(&fs, &format!("f{n}"), &[7; 100])).collect();
        fs.commit().unwrap();
        for &ino in &inos {
            fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        }
        let other = create(&fs, "other", b"synced");
        fs.fsync(other, false).unwrap().get().unwrap();
        let [at_the_cut, ssd_at_the_cut] = again([&disk, &ssd]);
        if fs.status().counters.fsync_disk == 0 {
            fs.commit().unwrap();
        }
        assert!(fs.status().ssd_lost.is_none(), "{files} files: {:?}", fs.status().ssd_lost);
        fs.abandon();
        let fs = open(&at_the_cut, Some(&ssd_at_the_cut), manual()).unwrap();
        assert_eq!(contents(&fs, "other"), b"synced", "{files} files");
        fs.shutdown().unwrap();
    }
}

/// A file that nobody synced, with changes after its data that say how long it is; another file's fsync takes those along.
#[test]
fn what_is_said_of_a_files_size_never_puts_zeros_where_its_data_did_not_arrive() {
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    type Change<'a> = (&'a str, &'a dyn Fn(&NfHybrid, Ino));
    let changes: [Change; 10] = [
        ("space", &|fs, ino| fs.fallocate(ino, 0, 9000, Fallocate::Reserve { keep_size: true }).unwrap()),
        ("space where data is", &|fs, ino| {
            fs.fallocate(ino, 0, 5, Fallocate::Reserve { keep_size: false }).unwrap();
        }),
        ("longer by space", &|fs, ino| {
            fs.fallocate(ino, 0, 9000, Fallocate::Reserve { keep_size: false }).unwrap();
        }),
        ("hole behind it", &|fs, ino| fs.fallocate(ino, 4096, 4096, Fallocate::Punch).unwrap()),
        ("zeros behind it", &|fs, ino| {
            fs.fallocate(ino, 4096, 4096, Fallocate::Zero { keep_size: true }).unwrap();
        }),
        ("all of it a hole", &|fs, ino| fs.fallocate(ino, 0, 4096, Fallocate::Punch).unwrap()),
        ("hole, then longer", &|fs, ino| {
            fs.fallocate(ino, 0, 4096, Fallocate::Punch).unwrap();
            fs.setattr(ino, &size(9000)).unwrap();
        }),
        ("same size", &|fs, ino| _ = fs.setattr(ino, &size(10)).unwrap()),
        ("longer", &|fs, ino| _ = fs.setattr(ino, &size(9000)).unwrap()),
        ("longer twice", &|fs, ino| {
            fs.setattr(ino, &size(100)).unwrap();
            fs.setattr(ino, &size(9000)).unwrap();
        }),
    ];
    for (what, change) in changes {
        for committed in [false, true] {
            let Some((disk, ssd)) = halves(32, 16) else { return };
            let fs = open(&disk, Some(&ssd), manual()).unwrap();
            let a = create(&fs, "a", b"");
            if committed {
                fs.commit().unwrap();
            }
            write(&fs, a, 0, &[7; 10]).unwrap();
            change(&fs, a);
            let now = contents(&fs, "a");
            let b = create(&fs, "b", b"synced");
            fs.fsync(b, false).unwrap().get().unwrap();
            let [disk, ssd] = again([&disk, &ssd]);
            let then = fs;
            let fs = open(&disk, Some(&ssd), manual()).unwrap();
            let found = contents(&fs, "a");
            assert!(found.is_empty() || found == now || found == [7; 10], "{what}: {found:?}");
            assert_eq!(contents(&fs, "b"), b"synced");
            fs.shutdown().unwrap();
            full::check_disk(&disk);
            then.abandon();
        }
    }
}
