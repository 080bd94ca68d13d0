//! Power cuts at any request: the file system is then exactly as of its last commit.
//!
//! A run is recorded as the device saw it. A cut keeps what was flushed, and of what came after the last
//! flush a random choice of atomic units. The image must open as the state after the last commit that had
//! returned, or the one that was under way; and `e2fsck` must find nothing but the journal to replay.

use super::model::Model;
use super::random::Run;
use super::rig::{Rig, fsck, make, run};
use bimetal::media::ram::Ram;
use bimetal::media::{BlockDevice, Completion, DeviceInfo, Request, Ticket};
use bimetal::time::Time;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex};

/// What changes a device's contents.
#[derive(Clone)]
enum Event {
    Write { offset: usize, data: Vec<u8>, durable: bool },
    Flush,
}

/// A device in memory that remembers what was asked of it.
struct Recorder {
    ram: Ram,
    info: DeviceInfo,
    events: Mutex<Vec<Event>>,
}

impl BlockDevice for Recorder {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match &request {
            Request::Write { offset, data, durable } => {
                let (offset, data) = (*offset as usize, data.concat());
                self.events.lock().unwrap().push(Event::Write { offset, data, durable: *durable });
            }
            Request::Flush => self.events.lock().unwrap().push(Event::Flush),
            _ => {}
        }
        self.ram.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.ram.wait(ticket)
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

/// A recorded run.
struct Recording {
    start: Vec<u8>,
    events: Vec<Event>,
    /// What it should hold, from this event on.
    states: Vec<(usize, Model)>,
    atomic: usize,
}

fn record(size_kib: u64, options: &str, atomic: u32, seed: u64, steps: usize) -> Recording {
    let (dir, image) = make(size_kib, options);
    let start = std::fs::read(&image).expect("the image");
    let ram = Ram::from_bytes("recorded", start.clone());
    let info = DeviceInfo { atomic_bytes: atomic, ..ram.info().clone() };
    let recorder = Arc::new(Recorder { ram, info, events: Mutex::default() });
    let rig = Rig::over(Arc::clone(&recorder) as Arc<dyn BlockDevice>, dir, image).expect("an ext4");
    let mut run = Run::on(rig, options, seed);
    let count = |recorder: &Recorder| recorder.events.lock().unwrap().len();
    let mut states = vec![(0, run.model.clone())];
    for step in 0..steps {
        let before = run.rig.commits;
        run.step();
        assert!(run.rig.commits == before, "a commit in the middle of a step is no state to compare with");
        if step % 37 == 36 {
            run.rig.commit();
            states.push((count(&recorder), run.model.clone()));
        }
    }
    run.rig.close();
    states.push((count(&recorder), run.model.clone()));
    let events = recorder.events.lock().unwrap().clone();
    Recording { start, events, states, atomic: atomic as usize }
}

impl Recording {
    /// The device after a cut behind event `cut`.
    fn image(&self, cut: usize, rng: &mut SmallRng) -> Vec<u8> {
        let mut image = self.start.clone();
        let flushed = self.events[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
        for (index, event) in self.events[..cut].iter().enumerate() {
            let Event::Write { offset, data, durable } = event else { continue };
            let mut at = *offset;
            for unit in data.chunks(self.atomic) {
                // The last request may itself have been cut.
                let sure = index < flushed || *durable && index + 1 < cut;
                if sure || rng.random_bool(0.5) {
                    image[at..at + unit.len()].copy_from_slice(unit);
                }
                at += unit.len();
            }
        }
        image
    }

    /// Cuts behind event `cut` and checks what is left.
    fn cut(&self, cut: usize, rng: &mut SmallRng) {
        let image = self.image(cut, rng);
        let after = self.states.iter().rposition(|(at, _)| *at < cut).unwrap_or(0);
        let candidates = &self.states[after..(after + 2).min(self.states.len())];
        if rng.random_bool(0.2) {
            judge(&image);
        }
        let (dir, path) = (tempfile::tempdir().expect("a folder"), "none".into());
        let rig = Rig::over(Arc::new(Ram::from_bytes("cut", image)), dir, path);
        let mut rig = rig.unwrap_or_else(|error| panic!("after a cut at {cut}: {error}"));
        let found = Model::of(&mut rig);
        let same = candidates.iter().any(|(_, model)| model.is_like(&found));
        let words: Vec<String> = candidates.iter().map(|(_, model)| model.difference(&found)).collect();
        assert!(same, "a cut at {cut} of {} leaves no state from {after}: {words:?}", self.events.len());
        candidates.iter().find(|(_, model)| model.is_like(&found)).expect("one").1.compare(&mut rig);
    }
}

/// `e2fsck` replays the journal and then finds nothing else.
fn judge(image: &[u8]) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("cut.img");
    std::fs::write(&path, image).expect("a copy");
    let replayed = run("e2fsck", &["-p", path.to_str().expect("a path")]);
    let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert!(matches!(replayed.status.code(), Some(0 | 1)), "{text}");
    fsck(&path);
}

fn cuts(size_kib: u64, options: &str, atomic: u32, seed: u64, count: usize) {
    let recording = record(size_kib, options, atomic, seed, 700);
    assert!(recording.states.len() > 15);
    let mut rng = SmallRng::seed_from_u64(seed);
    let events = recording.events.len();
    for _ in 0..count {
        let cut = rng.random_range(0..=events);
        recording.cut(cut, &mut rng);
    }
    // The first and the last requests are those of opening and closing.
    for cut in (0..12).chain(events - 20..=events) {
        recording.cut(cut, &mut rng);
    }
}

#[test]
fn a_power_cut_leaves_the_last_commit_or_the_one_under_way() {
    cuts(32 << 10, "-t ext4 -b 4096", 4096, 1, 60);
    cuts(16 << 10, "-t ext4 -b 1024", 4096, 2, 60);
    cuts(16 << 10, "-t ext4 -b 1024 -O ^metadata_csum -I 128", 4096, 3, 60);
}

#[test]
fn a_power_cut_that_tears_blocks_does_no_harm_either() {
    cuts(32 << 10, "-t ext4 -b 4096", 512, 4, 60);
    cuts(16 << 10, "-t ext4 -b 2048 -O metadata_csum_seed,orphan_file", 512, 5, 60);
}
