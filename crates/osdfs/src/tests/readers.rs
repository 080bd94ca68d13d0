//! Reads beside each other, beside a writer and the cleaner.

use super::*;
use bimetal_base::runtime::Sim;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) const FILE_BYTES: usize = 8 << 10;

/// An image of a small store with so many files, each of one byte many times: 0.
pub(super) fn image(files: usize) -> (tempfile::TempDir, PathBuf, Vec<Ino>) {
    image_of(6 << 20, files)
}

/// The same of so many bytes.
pub(super) fn image_of(bytes: u64, files: usize) -> (tempfile::TempDir, PathBuf, Vec<Ino>) {
    let home = tempfile::tempdir().unwrap();
    let nand = home.path().join("nand");
    let plan = volume::Plan {
        nand: nand.clone(),
        device: volume::DEVICE.into(),
        size_bytes: Some(bytes),
        format: Format { placement: "combined".into(), ..Format::default() },
        bare: false,
        force: false,
    };
    volume::make(&plan, &ROOT_USER).unwrap();
    let fs = volume::mount(&nand, volume::DEVICE, true).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let made = (0..files).map(|number| {
        let file = fs.create(&ROOT_USER, fs.root(), format!("f{number}").as_bytes(), &node).unwrap().ino;
        fs.write(file, 0, &[0; FILE_BYTES], false).unwrap();
        file
    });
    let made = made.collect();
    fs.sync().unwrap();
    fs.shutdown().unwrap();
    (home, nand, made)
}

#[test]
fn what_was_looked_up_is_as_it_was_or_an_error_once_its_block_was_used_again() {
    let (_home, nand, files) = image(20);
    let fs = volume::mount(&nand, volume::DEVICE, true).unwrap();
    let (mut same, mut gone) = (0, 0);
    for round in 1..=60u8 {
        let object = ObjectId(files[0].0);
        let reading = fs.with(|state| state.store.begin_read(object, 0, FILE_BYTES)).unwrap();
        // Everything is written again and again, but for every tenth round.
        for _ in 0..if round % 10 == 0 { 1 } else { 25 } {
            files.iter().for_each(|file| drop(fs.write(*file, 0, &[round; FILE_BYTES], false).unwrap()));
            fs.sync().unwrap();
        }
        match reading.end() {
            Ok(bytes) => {
                assert!(bytes == [round - 1; FILE_BYTES], "round {round}: {:?}", &bytes[..8]);
                same += 1;
            }
            Err(Error::Corrupt { .. }) => gone += 1,
            Err(why) => panic!("{why}"),
        }
        let now = fs.read(files[0], 0, FILE_BYTES).unwrap().get().unwrap().concat();
        assert!(now == [round; FILE_BYTES], "round {round}");
    }
    assert!(same >= 6 && gone >= 10, "{same} as they were, {gone} gone");
}

#[test]
fn readers_beside_a_writer_and_the_cleaner_see_whole_writes_that_never_go_back() {
    let (_home, nand, files) = image(20);
    let fs = Arc::new(volume::mount(&nand, volume::DEVICE, true).unwrap());
    let (ends, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reader = |seed: u64| {
        let (fs, files, ends, reads) = (fs.clone(), files.clone(), ends.clone(), reads.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(seed, "reader");
            let mut seen = vec![0u8; files.len()];
            while !ends.load(Ordering::Relaxed) {
                let which = random.below(files.len() as u64) as usize;
                let bytes = fs.read(files[which], 0, FILE_BYTES).unwrap().get().unwrap().concat();
                assert_eq!(bytes.len(), FILE_BYTES);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a part of file {which} is another's");
                assert!(bytes[0] >= seen[which], "file {which}: {} after {}", bytes[0], seen[which]);
                seen[which] = bytes[0];
                reads.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let readers: Vec<_> = (0..3).map(reader).collect();
    let mut random = Random::new(9, "writer");
    for round in 1..=200u8 {
        for file in &files {
            fs.write(*file, 0, &[round; FILE_BYTES], false).unwrap();
            if random.chance(0.1) {
                fs.fsync(*file, false).unwrap();
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let state = fs.shared.state.lock();
    let (reads, again) = (reads.load(Ordering::Relaxed), state.reads_again);
    let cleaned = state.store.counts().segments_cleaned;
    eprintln!("{reads} reads, {again} again, {cleaned} segments cleaned");
    assert!(reads > 500 && cleaned > 100, "{reads} reads, {cleaned} segments cleaned");
    drop(state);
    fs.sync().unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let fs = volume::mount(&nand, volume::DEVICE, false).unwrap();
    for file in files {
        assert!(fs.read(file, 0, FILE_BYTES).unwrap().get().unwrap().concat() == [200; FILE_BYTES]);
    }
}

/// Reads pages of files for so many clients at once, in virtual time; how long all of them took.
fn read_by(clients: usize) -> Duration {
    let sim = Sim::new(1);
    let clock: Clock = Arc::new(sim.clone());
    sim.run(move || {
        let mut part: NandProfile = profile::load("slc-2k").unwrap();
        (part.blocks, part.planes, part.channels, part.factory_bad_percent) = (64, 1, 2, 0.0);
        let nand = Nand::new(part, 1, true, Payload::memory());
        let mut store = Store::format(nand, &Format::default(), Options::default()).unwrap();
        OsdFs::make_at(&mut store, &ROOT_USER, clock.wall()).unwrap();
        let fs = Arc::new(OsdFs::new_on(clock.clone(), store, true).unwrap());
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
        // A segment each: they lie on the two channels in turn.
        let make = |number| {
            let name = format!("f{number}");
            let file = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node).unwrap().ino;
            fs.write(file, 0, &vec![7; 1 << 20], false).unwrap();
            fs.sync().unwrap();
            file
        };
        let files: Vec<Ino> = (0..2).map(make).collect();
        clock.sleep_until(clock.now() + fs.busy_for());
        let began = clock.now();
        let tasks: Vec<_> = (0..clients)
            .map(|client| {
                let (fs, clock, file) = (fs.clone(), clock.clone(), files[client]);
                let client_clock = clock.clone();
                let work = move || {
                    for page in 0..200u64 {
                        // They begin apart, so that they are not on one channel all the time.
                        let at = (page + 64 * client as u64) % 512 * 2048;
                        fs.read(file, at, 2048).unwrap();
                        client_clock.sleep_until(client_clock.now() + fs.busy_for());
                    }
                };
                clock.spawn("client", Box::new(work)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        clock.now().since(began)
    })
}

#[test]
fn two_clients_that_read_different_files_take_their_time_together() {
    let (one, two) = (read_by(1), read_by(2));
    eprintln!("one client {one:?}, two {two:?}");
    // One after the other they would take twice as long.
    assert!(two < one * 3 / 2, "{one:?} {two:?}");
}
