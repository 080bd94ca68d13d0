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

type Images = Arc<Mutex<Vec<[Vec<u8>; 2]>>>;

/// Keeps what both halves hold before each flush of the disk, or with each part of a write to the SSD.
struct Cuts {
    halves: [Arc<Ram>; 2],
    is_ssd: bool,
    images: Images,
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

/// A file whose cut takes several transactions, and another client that writes, reserves or makes it longer between two of
/// them: what was cut never comes back, at no power cut either.
#[test]
fn what_comes_to_a_file_that_is_being_cut_finds_nothing_of_what_was_cut() {
    let options = ["-b", "1024", "-g", "512", "-N", "200", "-m", "0", "-J", "size=1", "-O", "^64bit"];
    for round in 0..3 {
        let Some((disk, ssd)) = halves_with(26, 16, &ssd::Config::default(), &options) else { return };
        let fs = Arc::new(open(&disk, Some(&ssd), manual()).unwrap());
        let ino = create(&fs, "f", b"");
        const KEPT: u64 = 4096;
        const OLD: u64 = 18 << 20;
        for at in (0..OLD).step_by(1 << 16) {
            write(&fs, ino, at, &[0xAA; 60 << 10]).unwrap();
            fs.commit().unwrap();
        }
        let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (other, stop) = (fs.clone(), ends.clone());
        let committing = std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                other.commit().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        // The first step of a cut, as `setattr` makes it.
        {
            let mut core = fs.shared.core.lock();
            let now = core.wall();
            assert!(!fs.shared.set_size(&mut core, ino, KEPT, now).unwrap(), "one step: nothing is shown");
        }
        match round {
            0 => assert_eq!(write(&fs, ino, OLD, b"new").unwrap(), 3),
            1 => drop(fs.setattr(ino, &SetAttr { size: Some(OLD + 3), ..SetAttr::default() }).unwrap()),
            _ => fs.fallocate(ino, KEPT, OLD + 3 - KEPT, Fallocate::Reserve { keep_size: false }).unwrap(),
        }
        let check = |found: &[u8], what: &str| {
            assert_eq!(found.len() as u64, OLD + 3, "round {round}, {what}");
            let (kept, rest) = found.split_at(KEPT as usize);
            assert!(kept.iter().all(|byte| *byte == 0xAA), "round {round}, {what}");
            let old = rest[..(OLD - KEPT) as usize].iter().position(|byte| *byte != 0);
            assert_eq!(old, None, "round {round}, {what}");
        };
        check(&contents(&fs, "f"), "now");
        fs.fsync(ino, false).unwrap().get().unwrap();
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        committing.join().unwrap();
        let [disk, ssd] = [disk.image(), ssd.image()].map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
        let again = open(&disk, Some(&ssd), manual()).unwrap();
        check(&contents(&again, "f"), "after a cut");
        again.shutdown().unwrap();
        full::check_disk(&disk);
        fs.shutdown().unwrap();
    }
}
