//! The cache in use: under a FAT volume, and under the disk half of a real mount.

use super::traces::Random;
use crate::mounts::{Mounted, no_fuse, skip};
use crate::nfhybrid::{Volume, settled};
use bimetal::cache::Config;
use bimetal::cache::device::CachedDevice;
use bimetal::cache::registry::POLICIES;
use bimetal::fs::fat::{self, Format, Options, layout::Width};
use bimetal::media::BlockDevice;
use bimetal::media::ram::Ram;
use bimetal::time::Time;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Names and contents of the files of a volume.
type Files = BTreeMap<String, Vec<u8>>;

fn open(device: Arc<dyn BlockDevice>, lazy: bool) -> fat::Volume {
    fat::Volume::open(device, Time::ZERO, Options { lazy, ..Options::default() }).expect("a sound volume")
}

/// What an image holds that was taken below the cache, as after a power cut.
fn below(ram: &Ram) -> Files {
    let volume = open(Arc::new(Ram::from_bytes("image", ram.image())), false);
    let files = volume.list("").expect("a directory").into_iter();
    files.map(|entry| (entry.name.clone(), volume.read(&entry.name).expect("a file"))).collect()
}

/// One change of a volume and of the model of it.
fn change(volume: &fat::Volume, files: &mut Files, random: &mut Random) {
    let name = format!("file {}.bin", random.next() % 9);
    if random.one_in(6) && files.remove(&name).is_some() {
        return volume.remove(&name).expect("it is there");
    }
    let bytes = vec![random.next() as u8; 1 + (random.next() % 9000) as usize];
    let contents = files.entry(name.clone()).or_default();
    let at = random.next() as usize % (contents.len() + 1);
    contents.resize(contents.len().max(at + bytes.len()), 0);
    contents[at..at + bytes.len()].copy_from_slice(&bytes);
    volume.create(&name).and_then(|mut file| file.write_at(at as u64, &bytes)).expect("room for it");
}

#[test]
fn a_fat_volume_over_any_policy_loses_nothing_that_it_called_durable() {
    for (seed, entry) in (1..).zip(POLICIES) {
        for lazy in [false, true] {
            let ram = Arc::new(Ram::new("ram", 1 << 20));
            let format = Format { width: Width::Fat12, cluster_bytes: 512, root_entries: 64 };
            fat::Volume::format(&*ram, Time::ZERO, &format).expect("a volume");
            let config = Config::new([3, 20, 400][seed as usize % 3]).block_pages(8);
            let cached = CachedDevice::new(Arc::clone(&ram) as Arc<dyn BlockDevice>, entry.name, &config);
            let volume = open(Arc::new(cached.expect("a policy")), lazy);
            let (mut files, mut random) = (Files::new(), Random(seed));
            for round in 0..40 {
                change(&volume, &mut files, &mut random);
                let is_durable = !lazy || round % 8 == 7;
                if lazy && is_durable {
                    volume.sync().expect("a device that is well");
                }
                if is_durable && round % 4 == 3 {
                    assert!(below(&ram) == files, "{}, lazy {lazy}, round {round}", entry.name);
                }
            }
        }
    }
}

fn fill(dir: &Path, random: &mut Random) -> Files {
    let file = |at: u64| {
        let bytes: Vec<u8> = (0..1 + random.next() % 200_000).map(|byte| (byte * at) as u8).collect();
        (format!("f{at}"), bytes)
    };
    let files: Files = (1..=60).map(file).collect();
    for (name, bytes) in &files {
        fs::write(dir.join(name), bytes).expect("room on the volume");
    }
    files
}

fn check(dir: &Path, files: &Files, what: &str) {
    for (name, bytes) in files {
        assert!(fs::read(dir.join(name)).is_ok_and(|found| found == *bytes), "{what}: {name}");
    }
}

fn kill(mounted: &Mounted) {
    let pid = mounted.status()["front"]["pid"].as_i64().expect("the server's number");
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill -9");
}

#[test]
fn a_mount_over_a_cache_keeps_its_files_over_kills_and_says_how_often_it_hits() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let volume = Volume::new(32, 128, &[]);
    let mut random = Random(5);
    let mut files = Files::new();
    for (policy, size) in
        [("cswlru", "512MiB"), ("tide", "1MiB"), ("wow", "256KiB"), ("cflru:window=0.5", "64KiB")]
    {
        let mounted = volume.mount(&format!("lag=300ms,cache={policy},cache-size={size}"));
        check(mounted.path(), &files, policy);
        files = fill(mounted.path(), &mut random);
        let status = settled(&mounted);
        check(mounted.path(), &files, policy);
        let cache = &status["disk_cache"];
        assert_eq!(
            cache["policy"].as_str().and_then(|name| name.split(':').next()),
            policy.split(':').next()
        );
        assert_eq!(cache["dirty_bytes"], 0, "all is on the disk: {cache}");
        assert!(cache["resident_bytes"].as_u64() <= cache["capacity_bytes"].as_u64(), "{cache}");
        let counted =
            |names: [&str; 2]| names.iter().filter_map(|name| cache["counts"][name].as_f64()).sum::<f64>();
        let (hits, misses) = (counted(["read_hits", "write_hits"]), counted(["read_misses", "write_misses"]));
        assert!(hits > 0.0 && misses > 0.0, "{cache}");
        let ratio = cache["hit_ratio"].as_f64().unwrap();
        assert!((ratio - hits / (hits + misses)).abs() < 1e-9, "{cache}");
        assert!(cache["counts"]["pages_written"].as_u64() > Some(1000), "{cache}");
        kill(&mounted);
    }
    let mounted = volume.mount("lag=1s");
    check(mounted.path(), &files, "without a cache");
    assert!(mounted.status()["disk_cache"].is_null());
    assert!(mounted.unmount().status.success());
    volume.e2fsck();
}

#[test]
fn a_cache_that_makes_no_sense_is_refused_before_anything_is_mounted() {
    let volume = Volume::new(32, 64, &[]);
    let place = tempfile::tempdir().expect("a directory");
    for (options, told) in [
        ("cache=nonsense", "cflru"),
        ("cache-size=1MiB", "cache=POLICY"),
        ("cache=lru,cache-size=1KiB", "room for one page"),
        ("cache=lru,cache-size=much", "size"),
        ("cache=cflru:window=3", "fraction"),
    ] {
        let refused = volume.bimetal(&["mount", "-o", options], &[place.path().to_str().expect("text")]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(told), "{options}: {said}");
    }
}
