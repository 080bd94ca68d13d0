//! fsyncs of many clients on a simulated SSD, in virtual time: how many a second, against what the device could do.

use super::*;
use bimetal_base::runtime::{Runtime, Sim};
use bimetal_ftl::ssd::{Data, Ssd as Model};
use bimetal_media::overlay::Overlay;
use bimetal_media::sparse::Sparse;
use bimetal_media::timed::Timed;
use bimetal_media::{DeviceInfo, Gather, Request, profile};

/// The profile is of a whole SSD: a small one would have one die, and do one thing at a time.
const SSD_BYTES: u64 = 64 << 30;

/// Blocks that a client overwrites.
const BLOCKS: u64 = 64;

/// A device in memory of any size.
fn empty(size_bytes: u64) -> Arc<dyn BlockDevice> {
    let name = "ssd".into();
    let info = DeviceInfo { name, size_bytes, block_bytes: 512, atomic_bytes: 512, rotational: false };
    Arc::new(Overlay::new(Arc::new(Sparse::from_chunks(info, Default::default()).unwrap())))
}

fn model(storage: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(Model::new(&profile::load("ssd-tlc").unwrap(), Data::Storage(storage), 1).unwrap())
}

/// A mount in virtual time on the profiles as users get them, with default options; the disk's journal is that of 16 GiB.
fn mounted(sim: &Sim) -> Option<NfHybrid> {
    let clock: Clock = Arc::new(sim.clone());
    let (disk, _) = halves_with(256, 16, &ssd::Config::default(), &["-b", "4096", "-J", "size=64"])?;
    let ssd = empty(SSD_BYTES);
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    let disk = bimetal_media::disk::Disk::new(&profile::load("hdd-7200").unwrap(), disk);
    let timed = |device| Arc::new(Timed::model(clock.clone(), device)) as Arc<dyn BlockDevice>;
    let fs =
        NfHybrid::open_on(clock.clone(), timed(Arc::new(disk)), Some(timed(model(ssd))), Options::default());
    Some(fs.unwrap())
}

/// What a client does until `end`: it overwrites a block of its file at random with what does not shrink, fsyncs, and
/// comes back after `think`. How long each fsync took.
fn client(fs: &NfHybrid, sim: &Sim, ino: Ino, think: Duration, end: Time) -> Vec<Duration> {
    let mut random = bimetal_base::random::Random::new(ino.0, "client");
    let mut took = Vec::new();
    while sim.now() < end {
        let bytes: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
        fs.write(ino, random.below(BLOCKS) * 4096, &bytes, false).unwrap().get().unwrap();
        let began = sim.now();
        fs.fsync(ino, false).unwrap().get().unwrap();
        took.push(sim.now().since(began));
        sim.sleep(think);
    }
    took
}

/// fsyncs a second that so many clients come to in six seconds, commit cycles, restarts of the log and tables included.
fn a_second(clients: usize, think: Duration) -> Option<f64> {
    const SECONDS: u64 = 6;
    let sim = Sim::new(1);
    let inner = sim.clone();
    let mut took = sim.run(move || {
        let fs = Arc::new(mounted(&inner)?);
        let file = |number| create(&fs, &format!("f{number}"), &[1; (BLOCKS * 4096) as usize]);
        let files: Vec<Ino> = (0..clients).map(file).collect();
        fs.sync().unwrap();
        let end = inner.now() + Duration::from_secs(SECONDS);
        let all = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tasks: Vec<_> = files
            .into_iter()
            .map(|ino| {
                let (fs, sim, all) = (fs.clone(), inner.clone(), all.clone());
                let work = move || {
                    let took = client(&fs, &sim, ino, think, end);
                    all.lock().extend(took);
                };
                inner.spawn("client", Box::new(work)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        let counters = fs.status().counters;
        // A log that is full while a cycle holds it sends a round to the disk; that is rare.
        assert!(counters.fsync_disk * 1000 <= counters.fsync_ssd, "{counters:?}");
        fs.shutdown().unwrap();
        let took = std::mem::take(&mut *all.lock());
        Some(took)
    })?;
    took.sort_unstable();
    let rate = took.len() as f64 / SECONDS as f64;
    let p99 = took[took.len() * 99 / 100];
    println!("{clients} clients, back after {think:?}: {rate:.0} fsyncs a second, p99 {p99:?}");
    Some(rate)
}

/// What the device could do: one durable write after the other, each of what so many clients fsync, as the log lays it
/// out. A page of it is read, completed and programmed.
fn limit(clients: u64) -> f64 {
    const LOG: u64 = 4 << 20;
    let device = model(empty(SSD_BYTES));
    // A record's headers and the mark of completeness are 100 bytes or less, a group's are 88.
    let bytes = (clients * (4096 + 100) + 88).next_multiple_of(4096);
    let (mut now, mut at, mut fsyncs) = (Time::ZERO, 0, 0);
    while now < Time(1_000_000_000) {
        at = if at + bytes > LOG { 0 } else { at };
        let data = Gather::from_iter([vec![1; bytes as usize].into()]);
        now = device.run(now, Request::Write { offset: 4096 + at, data, durable: true }).at;
        at += bytes;
        fsyncs += clients;
    }
    println!("{clients} clients: {fsyncs} a second could be");
    fsyncs as f64
}

#[test]
fn four_clients_fsync_three_times_and_sixteen_eight_times_as_often_as_one() {
    let Some(one) = a_second(1, Duration::ZERO) else { return };
    assert!(one > 0.95 * limit(1), "{one}");
    // A program does something between two fsyncs; ours does nothing at all, or something for a while.
    for think in [0, 100] {
        let [four, sixteen] = [4, 16].map(|clients| a_second(clients, Duration::from_micros(think)).unwrap());
        assert!(four >= 3.0 * one && sixteen >= 8.0 * one, "{one}, {four}, {sixteen}");
    }
    assert!(a_second(4, Duration::ZERO).unwrap() > 0.9 * limit(4));
    assert!(a_second(16, Duration::ZERO).unwrap() > 0.6 * limit(16));
}
