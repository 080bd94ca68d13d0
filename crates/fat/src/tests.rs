//! A volume's files, the order and number of its sector writes, and what a power cut leaves.

use super::check::{Usage, check};
use super::metadata::Metadata;
use super::*;
use bimetal_base::random::Random;
use bimetal_cache::nvram::{Admission, NvramCache};
use bimetal_media::nvram::Nvram;
use bimetal_media::profile;
use bimetal_media::ram::Ram;
use bimetal_media::recorded::{Event, Recorder};
use rustc_hash::FxHashMap;

const PAPER: Format = Format { width: Width::Fat16, cluster_bytes: 2048, root_entries: 512 };
const SMALL: Format = Format { width: Width::Fat12, cluster_bytes: 512, root_entries: 64 };

fn format(bytes: u64, format: &Format) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Ram::new("ram", bytes));
    Volume::format(&*device, Time::ZERO, format).unwrap();
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open(Arc::clone(device), Time::ZERO, Options::default()).unwrap()
}

/// What a check of a volume not in use finds.
fn usage(device: &Arc<dyn BlockDevice>) -> Result<Usage> {
    let layout = Layout::read(&device.read(0, 512)?, device.info().size_bytes)?;
    check(&mut Disk::new(Arc::clone(device), None, layout.clone(), Time::ZERO), &layout)
}

#[test]
fn the_papers_volume_is_laid_out_as_its_figures_say() {
    let volume = open(&format(32 << 20, &PAPER));
    let layout = volume.layout();
    assert_eq!((layout.fat.clone(), layout.root.clone(), layout.data), (1..65, 129..161, 161));
    assert_eq!((layout.clusters, layout.fats), (16_343, 2));
    assert_eq!(
        volume.space().unwrap(),
        Space { cluster_bytes: 2048, clusters: 16_343, free_clusters: 16_343 }
    );
}

/// Names short and long, in directories and out of them.
const NAMES: [&str; 6] = [
    "A.TXT",
    "a long name with blanks.jpeg",
    "Straße 東京 – photo.jpg",
    "dir/inside.bin",
    "dir/deeper/another one.dat",
    "dir/B",
];

#[test]
fn files_of_all_widths_hold_what_was_written() {
    let fat32 = Format { width: Width::Fat32, cluster_bytes: 512, root_entries: 512 };
    for (bytes, shape) in
        [(1 << 20, SMALL), (8 << 20, Format { cluster_bytes: 1024, ..PAPER }), (40 << 20, fat32)]
    {
        let device = format(bytes, &shape);
        let mut volume = open(&device);
        volume.make_dir("dir").unwrap();
        volume.make_dir("dir/deeper").unwrap();
        let mut random = Random::new(1, "files");
        let mut model: FxHashMap<&str, Vec<u8>> = FxHashMap::default();
        for round in 0..400u32 {
            let name = NAMES[random.below(6) as usize];
            match (random.below(12), model.get_mut(name)) {
                (0, Some(_)) => {
                    volume.remove(name).unwrap();
                    model.remove(name);
                }
                (1, Some(bytes)) => {
                    let len = random.below(bytes.len() as u64 + 1);
                    volume.open_file(name).unwrap().truncate(len).unwrap();
                    bytes.truncate(len as usize);
                }
                (2, _) => {
                    volume.close().unwrap();
                    volume = open(&device);
                }
                _ => {
                    let (at, len) = (random.below(9000) as usize, random.below(3000) as usize);
                    volume.create(name).unwrap().write_at(at as u64, &vec![round as u8; len]).unwrap();
                    let bytes = model.entry(name).or_default();
                    let end = bytes.len().max(at + len);
                    bytes.resize(end, 0);
                    bytes[at..at + len].fill(round as u8);
                }
            }
        }
        volume.close().unwrap();
        let volume = open(&device);
        for name in NAMES {
            match model.get(name) {
                Some(bytes) => assert_eq!(&volume.read(name).unwrap(), bytes, "{name} {:?}", shape.width),
                None => assert!(matches!(volume.read(name), Err(Error::NotFound)), "{name}"),
            }
        }
        let found = usage(&device).unwrap();
        assert_eq!((found.files, found.directories, found.lost_clusters), (model.len() as u64, 2, 0));
    }
}

#[test]
fn directories_are_listed_renamed_and_removed_when_empty() {
    let device = format(1 << 20, &SMALL);
    let volume = open(&device);
    volume.make_dir("albums").unwrap();
    volume.create("albums/one.jpg").unwrap().write_at(0, &[1; 700]).unwrap();
    let told = |path: &str| {
        volume.list(path).unwrap().into_iter().map(|e| (e.name, e.is_dir, e.len)).collect::<Vec<_>>()
    };
    assert_eq!(told(""), [("albums".to_string(), true, 0)]);
    assert_eq!(told("albums"), [("one.jpg".to_string(), false, 700)]);
    assert!(matches!(volume.remove("albums"), Err(Error::NotEmpty)));
    assert!(matches!(volume.make_dir("albums"), Err(Error::Exists)));
    assert!(matches!(volume.open_file("albums"), Err(Error::IsDir)));
    assert!(matches!(volume.open_file("none/x"), Err(Error::NotFound)));
    volume.rename("albums/one.jpg", "two.jpg").unwrap();
    volume.make_dir("albums/old").unwrap();
    assert!(matches!(volume.rename("albums/old", "old"), Err(Error::NotSupported)));
    volume.rename("albums/old", "albums/older").unwrap();
    volume.remove("albums/older").unwrap();
    volume.remove("albums").unwrap();
    assert_eq!(told(""), [("two.jpg".to_string(), false, 700)]);
    assert_eq!(volume.read("two.jpg").unwrap(), vec![1; 700]);
    assert!(matches!(volume.remove("albums"), Err(Error::NotFound)));
}

#[test]
fn a_full_volume_and_a_full_directory_say_so_and_lose_nothing() {
    let device = format(256 << 10, &SMALL);
    let volume = open(&device);
    let mut big = volume.create("big").unwrap();
    let error = big.write_at(0, &vec![7; 300 << 10]).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    let len = big.len().unwrap();
    drop(big);
    assert!(len > 200 << 10 && volume.space().unwrap().free_clusters == 0);
    assert!(volume.read("big").unwrap().iter().all(|byte| *byte == 7));
    volume.remove("big").unwrap();
    let error = (0..).find_map(|number| volume.create(&format!("file {number}")).err()).unwrap();
    assert!(matches!(error, Error::NoSpace("in the directory")), "{error}");
    assert_eq!(volume.list("").unwrap().len(), 32, "two entries each of 64");
    volume.remove("file 3").unwrap();
    volume.create("file again").unwrap().write_at(0, &[1; 10]).unwrap();
    volume.close().unwrap();
    assert_eq!(usage(&device).unwrap().lost_clusters, 0);
}

#[test]
fn a_synchronous_write_writes_data_then_fats_then_directory() {
    let recorder = Recorder::new();
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.wrap(format(32 << 20, &PAPER)));
    let volume = open(&device);
    volume.create("one.jpg").unwrap();
    recorder.clear();
    let mut file = volume.open_file("one.jpg").unwrap();
    file.write_at(0, &[1; 2048 + 100]).unwrap();
    drop(file);
    volume.remove("one.jpg").unwrap();
    let log = recorder.log();
    let sectors: Vec<u64> = log
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Write { offset, durable: true, data } if data.concat().len() == 512 => Some(offset / 512),
            _ => None,
        })
        .collect();
    assert_eq!(sectors.len(), log.entries.len(), "durable writes of one sector");
    let (fat1, fat2, root) = (1, 65, 129);
    let expected = [
        &[161, fat1, fat2, root][..],
        &[162, root, 163, root, 164, root],
        &[165, fat1, fat2, root],
        &[root, fat2, fat1],
    ];
    assert_eq!(sectors, expected.concat());
}

#[test]
fn metadata_goes_to_the_cache_and_the_device_sees_data_alone() {
    let below = format(32 << 20, &PAPER);
    let recorder = Recorder::new();
    let nvram = Nvram::new(profile::load("feram").unwrap(), 128 << 10);
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.wrap(below));
    let cache = Arc::new(NvramCache::open(Arc::clone(&device), nvram, Admission::Told).unwrap());
    let options = Options { lazy: false, cache: Some(Arc::clone(&cache)) };
    let volume = Volume::open(Arc::clone(&cache) as Arc<dyn BlockDevice>, Time::ZERO, options).unwrap();
    volume.make_dir("dir").unwrap();
    for number in 0..20u8 {
        let mut file = volume.create(&format!("dir/{number}")).unwrap();
        file.write_at(0, &vec![number; 5000]).unwrap();
    }
    let data_from = volume.layout().data;
    let counts = volume.counts();
    drop(volume);
    let offsets: Vec<u64> = recorder
        .log()
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Write { offset, .. } => Some(offset / 512),
            _ => None,
        })
        .collect();
    assert_eq!(offsets.len() as u64, counts.data);
    assert!(offsets.iter().all(|sector| *sector >= data_from));
    assert_eq!(counts.fat + counts.directory + counts.reserved, cache.counts().absorbed);
    // Power lost: the device alone is an old volume, with the memory it is all there.
    let (below, nvram) = Arc::into_inner(cache).unwrap().into_parts();
    assert!(open(&below).list("").unwrap().is_empty());
    let again: Arc<dyn BlockDevice> = Arc::new(NvramCache::open(below, nvram, Admission::Told).unwrap());
    let volume = open(&again);
    assert!((0..20).all(|number| volume.read(&format!("dir/{number}")).unwrap() == vec![number; 5000]));
    assert_eq!(usage(&again).unwrap().lost_clusters, 0);
}

#[test]
fn a_cache_below_the_file_system_finds_old_and_new_directories_by_itself() {
    for (width, size) in [(Width::Fat12, 2 << 20), (Width::Fat16, 8 << 20), (Width::Fat32, 64 << 20)] {
        let below = format(size, &Format { width, cluster_bytes: 512, root_entries: 512 });
        let old = open(&below);
        old.make_dir("old").unwrap();
        old.make_dir("old/deep").unwrap();
        drop(old);
        let nvram = Nvram::new(profile::load("feram").unwrap(), 256 << 10);
        let metadata = Metadata::read(Arc::clone(&below)).unwrap();
        // Directories of one sector each; FAT32's root is one.
        let roots = usize::from(width == Width::Fat32);
        assert_eq!(metadata.ranges().len(), 1 + 2 + roots, "FATs (and root), old, old/deep");
        let cache = NvramCache::open(below, nvram, Admission::Selected(Box::new(metadata))).unwrap();
        let cache = Arc::new(cache);
        let volume = open(&(Arc::clone(&cache) as Arc<dyn BlockDevice>));
        volume.make_dir("new").unwrap();
        // So many that directories grow by clusters.
        for number in 0..40u8 {
            for dir in ["old/deep", "new"] {
                let mut file = volume.create(&format!("{dir}/a file with a long name {number}")).unwrap();
                file.write_at(0, &[number; 1000]).unwrap();
            }
        }
        let (counts, absorbed) = (volume.counts(), cache.counts().absorbed);
        let metadata = counts.fat + counts.directory;
        // The first writes to a new cluster may come before it is known to be a directory's.
        let clusters = 2 * 40 * 4 / 16 + 1;
        assert!((metadata - clusters..=metadata).contains(&absorbed), "{width:?}: {absorbed}, {counts:?}");
        // What was a directory's is not for ever.
        for number in 0..40u8 {
            volume.remove(&format!("new/a file with a long name {number}")).unwrap();
        }
        volume.remove("new").unwrap();
        let (before, passed) = (volume.counts(), cache.counts().passed);
        volume.create("large").unwrap().write_at(0, &[1; 200_000]).unwrap();
        let data = volume.counts().data - before.data;
        let passed = cache.counts().passed - passed;
        // Sectors that are in the memory from before stay there; the rest is the boot sector or FS info.
        assert!((data - clusters..=data + 8).contains(&passed), "{width:?}: {passed} of {data}");
    }
}

#[test]
fn a_power_cut_after_any_sector_leaves_a_sound_volume_with_what_was_done() {
    let recorder = Recorder::new();
    let fresh = || format(256 << 10, &SMALL);
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.wrap(fresh()));
    let volume = open(&device);
    let steps: [&dyn Fn(); 5] = [
        &|| volume.create("first").unwrap().write_at(0, &[1; 1700]).unwrap(),
        &|| volume.make_dir("dir").unwrap(),
        &|| volume.create("dir/a second one").unwrap().write_at(0, &[2; 3000]).unwrap(),
        &|| volume.remove("first").unwrap(),
        &|| volume.create("third").unwrap().write_at(100, &[3; 2000]).unwrap(),
    ];
    let mut done_at = Vec::new();
    for step in steps {
        step();
        done_at.push(recorder.log().entries.len());
    }
    let log = recorder.log();
    for cut in 0..=log.entries.len() {
        let device = fresh();
        for entry in &log.entries[..cut] {
            let Event::Write { offset, data, .. } = &entry.event else { continue };
            device.write(*offset, data.concat()).unwrap();
        }
        usage(&device).unwrap_or_else(|error| panic!("after {cut} sectors: {error}"));
        let volume = open(&device);
        let done = done_at.iter().filter(|at| **at <= cut).count();
        if (1..4).contains(&done) {
            assert_eq!(volume.read("first").ok().filter(|_| done < 3), (done < 3).then(|| vec![1; 1700]));
        }
        if done >= 3 {
            assert_eq!(volume.read("dir/a second one").unwrap(), vec![2; 3000]);
        }
        if done >= 5 {
            assert_eq!(volume.read("third").unwrap()[100..], [3; 2000]);
        }
    }
}

#[test]
fn an_error_of_the_device_makes_the_volume_read_only() {
    use bimetal_media::faulty::{Effect, Faulty, Kind, When};
    let faulty = Arc::new(Faulty::new(format(256 << 10, &SMALL)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&faulty) as Arc<dyn BlockDevice>;
    let volume = open(&device);
    volume.create("kept").unwrap().write_at(0, &[1; 600]).unwrap();
    faulty.plan(Kind::Write, When::Nth(1), Effect::Error(libc::EIO));
    let mut file = volume.create("kept").unwrap();
    assert!(matches!(file.write_at(600, &[2; 600]), Err(Error::Io { .. })));
    assert!(matches!(file.write_at(600, &[2; 600]), Err(Error::ReadOnly)));
    drop(file);
    assert!(matches!(volume.remove("kept"), Err(Error::ReadOnly)));
    drop(volume);
    assert_eq!(open(&device).read("kept").unwrap(), vec![1; 600]);
}

#[test]
fn corrupt_volumes_are_refused_with_the_place() {
    let good = format(256 << 10, &SMALL);
    let volume = open(&good);
    volume.create("one").unwrap().write_at(0, &[1; 1500]).unwrap();
    volume.create("two").unwrap().write_at(0, &[1; 1500]).unwrap();
    volume.close().unwrap();
    let layout = Layout::read(&good.read(0, 512).unwrap(), 256 << 10).unwrap();
    let fat = layout.fat.start * 512;
    let root = layout.root.start * 512;
    // FAT12: clusters 2 and 3 share bytes 3 to 5 of the FAT; entries 1 and 3 of the root are short names.
    for (at, bytes, told) in [
        (fat + 3, [0x02, 0x40], "meets another one, or itself"),
        (fat + 3, [0x00, 0x40], "not in use"),
        (fat + 3, [0xF0, 0x4E], "does not exist"),
        (root + 32 + 26, [5, 0], "meets another one, or itself"),
        (root + 32 + 26, [0xFF, 0xFF], "does not exist"),
        (root + 32 + 28, [0xFF, 0xFF], "65535 bytes and clusters for 1536"),
        (510, [0, 0], "signature"),
    ] {
        let device: Arc<dyn BlockDevice> =
            Arc::new(Ram::from_bytes("ram", good.read(0, 256 << 10).unwrap().to_vec()));
        let mut sector = device.read(at / 512 * 512, 512).unwrap().to_vec();
        sector[(at % 512) as usize..][..2].copy_from_slice(&bytes);
        device.write(at / 512 * 512, sector).unwrap();
        let refused = Volume::open(device, Time::ZERO, Options::default()).err().map(|e| e.to_string());
        assert!(refused.as_ref().is_some_and(|error| error.contains(told)), "{told}: {refused:?}");
    }
}

#[test]
fn a_lazy_volume_writes_when_it_is_synced() {
    let recorder = Recorder::new();
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.wrap(format(256 << 10, &SMALL)));
    let options = Options { lazy: true, cache: None };
    let volume = Volume::open(Arc::clone(&device), Time::ZERO, options).unwrap();
    (0..5).for_each(|number| {
        volume.create(&format!("{number}")).unwrap().write_at(0, &[number; 600]).unwrap();
    });
    assert!(recorder.log().entries.is_empty());
    volume.sync().unwrap();
    assert_eq!(recorder.log().entries.len(), 10 + 1 + 2 + 1, "data, boot sector, FATs, root");
    assert_eq!(open(&device).read("3").unwrap(), vec![3; 600]);
}

#[test]
fn the_camera_writes_what_the_paper_says() {
    let device = format(32 << 20, &PAPER);
    let volume = open(&device);
    let report = camera::run(&volume, camera::SEED).unwrap();
    assert_eq!((report.taken, report.deleted, report.sectors.data), (200, 160, 163_227));
    for (step, photo) in (1..=200).map(|photo| (camera::name(photo), photo)) {
        let Ok(bytes) = volume.read(&step) else { continue };
        assert!((300 << 10..=500 << 10).contains(&bytes.len()));
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == camera::byte(photo, at as u64)));
    }
    let found = usage(&device).unwrap();
    assert_eq!((found.files, found.lost_clusters), (41, 0));
}

#[test]
fn a_path_of_many_levels_needs_no_stack_and_a_file_grows_by_zeros() {
    let device = format(8 << 20, &PAPER);
    let volume = open(&device);
    let deep = "/a".repeat(500);
    let above = |levels: usize| &deep[..2 * levels];
    // A stack as small as a task's in simulated time.
    std::thread::scope(|scope| {
        let on_small_stack = std::thread::Builder::new().stack_size(128 << 10);
        let found = on_small_stack.spawn_scoped(scope, || {
            let volume = open(&format(8 << 20, &PAPER));
            for levels in 1..500 {
                volume.make_dir(above(levels)).unwrap();
            }
            volume.create(&deep).unwrap().truncate(3000).unwrap();
            volume.rename(&deep, "/moved").unwrap();
            volume.remove(above(499)).unwrap();
            (volume.list(above(498)).unwrap().len(), volume.read("moved").unwrap())
        });
        assert_eq!(found.unwrap().join().unwrap(), (0, vec![0; 3000]));
    });
    let mut file = volume.create("f").unwrap();
    file.write_at(0, &[7; 100]).unwrap();
    file.truncate(1000).unwrap();
    assert_eq!(volume.read("f").unwrap(), [vec![7; 100], vec![0; 900]].concat());
    assert!(matches!(file.truncate(1 << 32), Err(Error::TooLarge)));
}
