//! fsync and the SSD's log when several work at once, and when something fails on the way.

use super::tests::{contents, create, halves, halves_as, manual, next};
use super::*;
use bimetal_base::runtime::Sim;
use bimetal_media::faulty::{Effect, Faulty, Kind as Requests, When};
use bimetal_media::held::Held;
use bimetal_media::recorded::{Event, RecordedEvent, Recorder};
use bimetal_media::states::{Survival, crash_states};
use bimetal_media::timed::{Service, Timed};
use std::collections::BTreeMap;
use std::thread;

/// A volume with a small log.
fn small_log(kib: u64) -> Option<(Arc<dyn BlockDevice>, Arc<dyn BlockDevice>)> {
    let config = ssd::Config { log_bytes: kib << 10, ..ssd::Config::default() };
    let (disk, ssd) = halves_as(32, 16, &config)?;
    Some((disk, ssd))
}

/// Where a log of 256 KiB ends.
const LOG_END: u64 = 4096 + (256 << 10);

/// A frame that does not shrink.
fn noise(seed: u8) -> Vec<u8> {
    let mut random = bimetal_base::random::Random::new(seed.into(), "frame");
    (0..4096).map(|_| random.next() as u8).collect()
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

#[test]
fn a_file_that_goes_away_while_the_log_is_started_anew_does_not_cost_the_ssd() {
    let Some((disk, ssd)) = small_log(256) else { return };
    let ssd = Held::new(ssd);
    let fs = Arc::new(NfHybrid::open(disk, Some(ssd.clone()), manual()).unwrap());
    let gone = create(&fs, "gone", &noise(200));
    fsync(&fs, gone);
    let other = fs.clone();
    // The first that is written outside the log is the data of a restart, which has its list by then.
    ssd.before_write(
        |offset, _| offset >= LOG_END,
        move || {
            other.unlink(ROOT_INO, b"gone").unwrap();
            other.forget(gone, 1);
        },
    );
    for number in 0..60 {
        let ino = create(&fs, &format!("f{number}"), &noise(number));
        fsync(&fs, ino);
    }
    let status = fs.status();
    assert!(status.counters.relogs > 0, "the log was never started anew");
    assert!(fs.lookup(ROOT_INO, b"gone").is_err(), "nothing happened in between");
    assert_eq!(status.ssd_lost, None);
    for number in 0..60 {
        assert_eq!(contents(&fs, &format!("f{number}")), noise(number));
    }
    fs.shutdown().unwrap();
}

#[test]
fn clients_that_create_fsync_and_unlink_beside_each_other_keep_the_ssd() {
    let Some((disk, ssd)) = small_log(64) else { return };
    let fs = NfHybrid::open(disk, Some(ssd), Options::default()).unwrap();
    thread::scope(|scope| {
        for client in 0..3_u64 {
            let fs = &fs;
            scope.spawn(move || {
                let mut random = client + 1;
                for number in 0..400 {
                    let name = format!("{client}-{number}");
                    let bytes = vec![number as u8; 1 + next(&mut random) % 12_000];
                    let ino = create(fs, &name, &bytes);
                    fsync(fs, ino);
                    if !next(&mut random).is_multiple_of(4) {
                        fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
                    }
                    fs.forget(ino, 1);
                }
            });
        }
    });
    let status = fs.status();
    assert_eq!(status.ssd_lost, None);
    assert!(status.counters.relogs > 10, "{:?}", status.counters);
    fs.shutdown().unwrap();
}

#[test]
fn the_status_never_waits_for_a_device() {
    let Some((disk, ssd)) = small_log(64) else { return };
    let disk = Held::new(disk);
    let fs = NfHybrid::open(disk.clone(), Some(ssd), manual()).unwrap();
    create(&fs, "f", &[1; 4096]);
    disk.hold();
    thread::scope(|scope| {
        let commit = scope.spawn(|| fs.commit());
        disk.await_standing(1);
        // A commit stands in the middle of its first write to the disk.
        assert!(fs.status().at_risk.bytes > 0);
        disk.release();
        commit.join().unwrap().unwrap();
    });
    assert_eq!(fs.status().at_risk.bytes, 0);
    create(&fs, "g", &[1; 5000]);
    // Whoever holds the lock may be waiting for a device.
    let core = fs.shared.core.lock();
    assert_eq!(fs.status().at_risk.bytes, 0, "what was seen last");
    drop(core);
    assert_eq!(fs.status().at_risk.bytes, 5000);
    fs.shutdown().unwrap();
}

const CLIENTS: usize = 16;

/// A file for each client, with something to fsync.
fn files_to_fsync(fs: &NfHybrid) -> Vec<Ino> {
    (0..CLIENTS).map(|client| create(fs, &format!("f{client}"), &[client as u8; 4096])).collect()
}

/// Lets each client fsync its file in a thread of its own. The first one's write is held until all others wait, and then
/// `meanwhile` runs.
fn fsync_together(fs: &NfHybrid, ssd: &Held, files: &[Ino], meanwhile: impl FnOnce()) {
    ssd.hold();
    thread::scope(|scope| {
        for &ino in files {
            scope.spawn(move || fsync(fs, ino));
        }
        ssd.await_standing(1);
        while fs.shared.line.waiting() < files.len() - 1 {
            thread::yield_now();
        }
        meanwhile();
        ssd.release();
    });
}

#[test]
fn sixteen_fsyncs_at_once_are_two_writes_of_the_log_at_most() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let ssd_held = Held::new(ssd.clone());
    let fs = NfHybrid::open(disk.clone(), Some(ssd_held.clone()), manual()).unwrap();
    let files = files_to_fsync(&fs);
    let before = ssd_held.passed();
    fsync_together(&fs, &ssd_held, &files, || {});
    // One, if all had appended before the first of them wrote.
    let passed = ssd_held.passed() - before;
    assert!((1..=2).contains(&passed), "{passed} writes and flushes");
    assert_eq!(fs.status().counters.fsync_ssd, CLIENTS as u64);
    fs.abandon();
    let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap();
    for client in 0..CLIENTS {
        assert_eq!(contents(&fs, &format!("f{client}")), [client as u8; 4096]);
    }
    fs.shutdown().unwrap();
}

#[test]
fn a_small_fsync_writes_whole_pages_one_if_the_data_shrinks_and_two_if_not() {
    for (noise, most) in [(false, 1), (true, 2)] {
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let recorder = Recorder::new();
        let fs = NfHybrid::open(disk, Some(Arc::new(recorder.wrap(ssd))), manual()).unwrap();
        let ino = create(&fs, "f", &[1; 256 << 10]);
        fs.commit().unwrap();
        let mut random = 1;
        for _ in 0..100 {
            let page: Vec<u8> = (0..4096).map(|_| if noise { next(&mut random) as u8 } else { 7 }).collect();
            fs.write(ino, (next(&mut random) % 64 * 4096) as u64, &page, false).unwrap().get().unwrap();
            recorder.clear();
            fsync(&fs, ino);
            let written: Vec<(u64, usize)> = recorder.log().entries.iter().map(write_of).collect();
            let [(offset, bytes)] = written[..] else { panic!("{written:?}") };
            assert!(offset % 4096 == 0 && bytes % 4096 == 0 && bytes <= most * 4096, "{bytes} at {offset}");
        }
        assert_eq!(fs.status().counters.relogs, 0, "the log was to be large enough");
        fs.shutdown().unwrap();
    }
}

fn write_of(entry: &RecordedEvent) -> (u64, usize) {
    match &entry.event {
        Event::Write { offset, durable: true, .. } => (*offset, entry.event.data().len()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn when_the_write_of_a_group_fails_none_of_it_counts_before_the_disk_has_it() {
    let Some((disk, ssd)) = halves(32, 16) else { return };
    let faulty = Arc::new(Faulty::new(ssd));
    let ssd = Held::new(faulty.clone());
    let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), manual()).unwrap();
    let files = files_to_fsync(&fs);
    // Only the first write fails: the next would go through.
    fsync_together(&fs, &ssd, &files, || faulty.plan(Requests::Write, When::Nth(1), Effect::Error(5)));
    let status = fs.status();
    assert!(status.ssd_lost.is_some());
    assert_eq!((status.counters.fsync_ssd, status.counters.fsync_disk), (0, CLIENTS as u64));
    fs.abandon();
    let fs = NfHybrid::open(disk, None, manual()).unwrap();
    for client in 0..CLIENTS {
        assert_eq!(contents(&fs, &format!("f{client}")), [client as u8; 4096]);
    }
    fs.shutdown().unwrap();
}

/// What clients were promised: the version of each file, which all its bytes are.
type Promises = BTreeMap<String, u8>;

/// Hears of each promise right after it was made.
type Note = Arc<dyn Fn(&str, u8) + Send + Sync>;

/// Several clients, each a task with files of its own: overwrites, fsyncs, files that come and go, renames over others.
fn work(fs: &Arc<NfHybrid>, clients: u64, steps: u64, seed: u64, note: &Note) {
    let clock = fs.shared.clock.clone();
    let tasks: Vec<Task> = (0..clients)
        .map(|number| {
            let (fs, note) = (fs.clone(), note.clone());
            let client = move || client(&fs, number, steps, seed * 100 + number, &note);
            clock.spawn("client", Box::new(client)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

fn client(fs: &NfHybrid, number: u64, steps: u64, seed: u64, note: &Note) {
    let mut random = seed;
    let kept: Vec<Ino> = (0..3).map(|file| create(fs, &format!("{number}-{file}"), &[1; 6000])).collect();
    let over = format!("{number}-over");
    fsync(fs, create(fs, &over, &[1; 6000]));
    note(&over, 1);
    for step in 0..steps {
        let version = step as u8 + 2;
        let file = next(&mut random) % 3;
        match next(&mut random) % 8 {
            0 => {
                let ino = create(fs, &format!("{number}-gone"), &[7; 9000]);
                fsync(fs, ino);
                fs.unlink(ROOT_INO, format!("{number}-gone").as_bytes()).unwrap();
                fs.forget(ino, 1);
            }
            1 => {
                let new = format!("{number}-new");
                let ino = create(fs, &new, &[version; 6000]);
                fs.rename(ROOT_INO, new.as_bytes(), ROOT_INO, over.as_bytes(), Rename::Replace).unwrap();
                fs.forget(ino, 1);
            }
            _ => {
                let len = if next(&mut random).is_multiple_of(5) { 100_000 } else { 6000 };
                fs.write(kept[file], 0, &vec![version; len], false).unwrap().get().unwrap();
                fsync(fs, kept[file]);
                note(&format!("{number}-{file}"), version);
            }
        }
    }
}

/// Each promised file is there as it was, or newer; one that others were renamed over is one of them, whole.
fn keeps(fs: &NfHybrid, promises: &Promises, context: &str) {
    for (name, &version) in promises {
        let found = contents(fs, name);
        let now = found.first().copied().unwrap_or(0);
        assert!(now >= version && found.len() >= 6000, "{context}: {name}: {now}, promised {version}");
    }
    for name in promises.keys().filter(|name| name.ends_with("-over")) {
        let found = contents(fs, name);
        assert!(
            found.len() == 6000 && found.iter().all(|byte| *byte == found[0]),
            "{context}: {name} is torn"
        );
    }
}

#[test]
fn whatever_an_fsync_returned_for_is_in_every_state_a_power_cut_leaves() {
    let seeds = std::env::var("FSYNC_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let from = std::env::var("FSYNC_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in from..=seeds {
        let Some((disk, ssd)) = small_log([64, 128, 256][seed as usize % 3]) else { return };
        let recorder = Recorder::new();
        let bases: Vec<Arc<dyn BlockDevice>> = vec![disk.clone(), ssd.clone()];
        let bases: Vec<Arc<dyn BlockDevice>> = bases.iter().map(|base| copy(base)).collect();
        let (sim, record) = (Sim::new(seed), recorder.clone());
        let clock: Clock = Arc::new(sim.clone());
        let counters = sim.run(move || {
            let timed = |device, service, name| Arc::new(Timed::drawn(clock.clone(), device, service, name));
            let disk = timed(Arc::new(record.wrap(disk)), Service::DISK, "disk");
            let ssd = timed(Arc::new(record.wrap(ssd)), Service::SSD, "ssd");
            let lag = Lag { bytes: 1 << 20, ..Lag::default() };
            let options = Options { lag, ..Options::default() };
            let fs = Arc::new(NfHybrid::open_on(clock.clone(), disk, Some(ssd), options).unwrap());
            let note: Note = Arc::new(move |name, version| record.mark(format!("{name} {version}")));
            work(&fs, 4, 40, seed, &note);
            let counters = fs.status().counters;
            assert_eq!(fs.status().ssd_lost, None);
            drop(note);
            Arc::into_inner(fs).unwrap().abandon();
            counters
        });
        println!("{counters:?}");
        assert!(counters.relogs > 3 && counters.fsync_ssd > 20, "{counters:?}");
        let states = crash_states(&recorder.log(), &bases, &Survival::EVERY, seed);
        for state in states.skip(seed as usize).step_by(31) {
            let mut promises = Promises::new();
            for (name, version) in state.marks.iter().filter_map(|mark| mark.split_once(' ')) {
                promises.insert(name.to_string(), version.parse().unwrap());
            }
            let context = format!("seed {seed}, cut {}, {:?}", state.cut, state.survival);
            let [disk, ssd] = [0, 1].map(|half| state.devices[half].clone());
            let fs =
                NfHybrid::open(disk, Some(ssd), manual()).unwrap_or_else(|why| panic!("{context}: {why}"));
            keeps(&fs, &promises, &context);
        }
    }
}

/// A device in memory with the same contents.
fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let bytes = device.read(0, device.info().size_bytes as usize).unwrap();
    Arc::new(bimetal_media::ram::Ram::from_bytes(&device.info().name, bytes.to_vec()))
}

#[test]
fn an_error_of_the_ssd_in_the_middle_of_fsyncs_breaks_no_promise() {
    let mut lost = 0;
    for seed in 1..25_u64 {
        let Some((disk, ssd)) = small_log(64) else { return };
        let faulty = Arc::new(Faulty::new(ssd.clone()));
        let fs = Arc::new(NfHybrid::open(disk.clone(), Some(faulty.clone()), Options::default()).unwrap());
        let kind = [Requests::Write, Requests::Flush, Requests::Any][seed as usize % 3];
        faulty.plan(kind, When::Nth(5 + seed * 2), Effect::Error(5));
        let promises = Arc::new(parking_lot::Mutex::new(Promises::new()));
        let noted = promises.clone();
        let note: Note = Arc::new(move |name, version| {
            noted.lock().insert(name.into(), version);
        });
        work(&fs, 3, 25, seed, &note);
        lost += u32::from(fs.status().ssd_lost.is_some());
        keeps(&fs, &promises.lock(), &format!("seed {seed}, live"));
        Arc::into_inner(fs).unwrap().abandon();
        let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap();
        keeps(&fs, &promises.lock(), &format!("seed {seed}, after a crash"));
    }
    assert!(lost > 12, "{lost} faults struck");
}

#[test]
fn a_file_renamed_over_another_in_a_bypassed_directory_is_old_or_new_after_a_crash() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = NfHybrid::open(disk.clone(), Some(ssd.clone()), manual()).unwrap();
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
    fs.map(dir, "bypass").unwrap();
    let file = |name: &str, fill: u8| {
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let ino = fs.create(&Caller::default(), dir, name.as_bytes(), &node).unwrap().ino;
        fs.write(ino, 0, &[fill; 9000], false).unwrap().get().unwrap();
    };
    file("config", 1);
    fs.commit().unwrap();
    file("new", 2);
    fs.rename(dir, b"new", dir, b"config", Rename::Replace).unwrap();
    // Somebody else's fsync makes the names durable.
    let other = create(&fs, "other", b"x");
    fsync(&fs, other);
    fs.abandon();
    let fs = NfHybrid::open(disk, Some(ssd), manual()).unwrap();
    let dir = fs.lookup(ROOT_INO, b"dir").unwrap().ino;
    let config = fs.lookup(dir, b"config").unwrap();
    assert_eq!(fs.read(config.ino, 0, 9000).unwrap().get().unwrap().concat(), [2; 9000]);
    fs.shutdown().unwrap();
}

/// Writes to a block device since it was made and 512-byte sectors in them, as its driver counts.
fn driver_counts(device: &str) -> (u64, u64) {
    let stat =
        std::fs::read_to_string(format!("/sys/block/{}/stat", device.trim_start_matches("/dev/"))).unwrap();
    let numbers: Vec<u64> = stat.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (numbers[4], numbers[6])
}

#[test]
#[ignore = "a measurement; needs root and a loop device"]
fn cost_of_small_fsyncs_as_a_loop_driver_counts_it() {
    const RECORDS: u64 = 4096;
    let run = |args: &[&str]| {
        let output = std::process::Command::new(args[0]).args(&args[1..]).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    for (noise, overwrite) in [(false, false), (false, true), (true, false), (true, true)] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 << 20).unwrap();
        let name = run(&["losetup", "--sector-size", "4096", "-f", "--show", image.path().to_str().unwrap()]);
        let ssd = bimetal_media::file::FileDevice::open(std::path::Path::new(&name), true).unwrap();
        let ssd = Arc::new(bimetal_media::counted::Counted::new(Arc::new(ssd)));
        let (disk, _) = halves(64, 16).unwrap();
        volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
        let fs = NfHybrid::open(disk, Some(ssd.clone()), Options::default()).unwrap();
        let ino = create(&fs, "f", &vec![1; if overwrite { RECORDS as usize * 4096 } else { 0 }]);
        fs.commit().unwrap();
        let (mut random, before, asked) = (1, driver_counts(&name), ssd.counts());
        let start = std::time::Instant::now();
        for number in 0..RECORDS {
            let page: Vec<u8> = (0..4096).map(|_| if noise { next(&mut random) as u8 } else { 7 }).collect();
            let at = if overwrite { next(&mut random) as u64 % RECORDS } else { number };
            fs.write(ino, at * 4096, &page, false).unwrap().get().unwrap();
            fsync(&fs, ino);
        }
        let each = start.elapsed() / RECORDS as u32;
        let after = driver_counts(&name);
        let kib = (after.1 - before.1) as f64 / 2.0 / RECORDS as f64;
        println!(
            "noise {noise}, overwrite {overwrite}: {} writes, {kib:.1} KiB a record, {each:?}",
            after.0 - before.0
        );
        println!("  asked for: {:?}\n  {:?}", ssd.counts() - asked, fs.status().counters);
        fs.shutdown().unwrap();
        drop(ssd);
        run(&["losetup", "-d", &name]);
    }
}
