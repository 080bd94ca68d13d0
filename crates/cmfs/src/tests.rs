//! cmfs as a file system of the stack: the rules all share, and the simulated media below it.

use super::model::{Clock, ModelNand, ModelNvram};
use super::mounted::{CmfsFs, Memory, Options, Part};
use super::volume::{DEVICE, Plan, Volume, make};
use bimetal_media::nand::NandProfile;
use bimetal_media::profile;
use bimetal_vfs::{FileSystem, rules};
use cmfs_core::{Config, Fs, Kind, Layout, NewObject, ROOT};
use std::path::{Path, PathBuf};

fn nand_profile(pages: &str, bytes: u64) -> NandProfile {
    profile::load::<NandProfile>(pages).unwrap().ideal().resized(bytes, 8)
}

fn simulated(layout: Layout) -> Fs<Part, Memory> {
    let clock = Clock::default();
    let nand = ModelNand::new(nand_profile("slc-4k", 32 << 20), 1, clock.clone()).unwrap();
    let nvram = ModelNvram::new(profile::load("feram").unwrap(), 64 << 10, clock);
    let config = Config { layout, ..Config::default() };
    let (nand, nvram): (Part, Memory) = (Box::new(nand), Box::new(nvram));
    Fs::format(nand, Some(nvram), config, [1; 16], false).unwrap()
}

#[test]
fn it_does_what_every_file_system_here_does() {
    for layout in [Layout::Compact, Layout::Paper] {
        rules::check(|| {
            Box::new(CmfsFs::new(simulated(layout), Options { manual: true, ..Options::default() }).unwrap())
        });
    }
}

#[test]
fn operations_on_the_simulated_part_take_what_its_profile_says() {
    let clock = Clock::default();
    let mut nand = ModelNand::new(nand_profile("slc-2k", 1 << 20), 1, clock.clone()).unwrap();
    let (mut data, mut spare) = (vec![7; 2048], vec![0xff; 64]);
    cmfs_core::Nand::program(&mut nand, 0, &data, &spare).unwrap();
    assert_eq!(clock.now().0, 252_800);
    cmfs_core::Nand::read(&mut nand, 0, &mut data, &mut spare).unwrap();
    assert_eq!((clock.now().0, data[0]), (252_800 + 67_800, 7));
    cmfs_core::Nand::read_spare(&mut nand, 5, &mut spare).unwrap();
    assert_eq!((clock.now().0, spare[0]), (252_800 + 67_800 + 16_600, 0xff));
    cmfs_core::Nand::erase(&mut nand, 0).unwrap();
    assert_eq!(clock.now().0, 252_800 + 67_800 + 16_600 + 2_000_000);
    cmfs_core::Nand::read(&mut nand, 0, &mut data, &mut spare).unwrap();
    assert_eq!(data[0], 0xff, "erased");
}

#[test]
fn the_status_tells_how_it_was_mounted() {
    let fs = CmfsFs::new(simulated(Layout::Compact), Options { manual: true, ..Options::default() }).unwrap();
    let status: serde_json::Value =
        serde_json::from_slice(&fs.control_get(fs.root(), "bimetal.status").unwrap()).unwrap();
    assert_eq!((&status["type"], &status["mounted"]), (&"cmfs".into(), &"made".into()));
    assert!(status["nvram"]["used_bytes"].as_u64().unwrap() > 200);
}

/// Bytes where spare areas lie may look like the marks of bad blocks, whose contents would stay.
#[test]
fn nothing_is_left_of_what_a_volume_is_forced_over() {
    let home = tempfile::tempdir().unwrap();
    let nand = home.path().join("nand");
    std::fs::write(&nand, vec![0x53; (8 << 20) / 2048 * 2112]).unwrap();
    let plan = Plan {
        nand: nand.clone(),
        nvram: None,
        device: DEVICE.into(),
        size_bytes: None,
        nvram_bytes: None,
        layout: Layout::Compact,
        force: true,
    };
    make(&plan).unwrap();
    let bytes = std::fs::read(&nand).unwrap();
    assert!(!bytes.chunks(64).any(|chunk| chunk.iter().all(|byte| *byte == 0x53)));
}

/// A volume in a folder whose server was killed: a file of 5000 bytes that was synced and then cut, and one that
/// never got its header.
fn killed(home: &Path) -> [PathBuf; 2] {
    let paths = ["nand", "nvram"].map(|name| home.join(name));
    let plan = Plan {
        nand: paths[0].clone(),
        nvram: Some(paths[1].clone()),
        device: DEVICE.into(),
        size_bytes: Some(8 << 20),
        nvram_bytes: None,
        layout: Layout::Compact,
        force: false,
    };
    make(&plan).unwrap();
    let mut fs = volume(&paths).open(true).unwrap();
    let new = NewObject { kind: Kind::File, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: &[] };
    let file = fs.create(ROOT, b"f", &new).unwrap();
    fs.write(file, 0, &[7; 5000]).unwrap();
    fs.sync_object(file).unwrap();
    fs.truncate(file, 100).unwrap();
    let unborn = fs.create(ROOT, b"unborn", &new).unwrap();
    fs.write(unborn, 0, &[7; 5000]).unwrap();
    paths
}

fn volume(paths: &[PathBuf; 2]) -> Volume<'_> {
    let [nand, nvram] = paths;
    Volume { nand, nvram: Some(nvram), device: DEVICE, scan: false, checkpoint: None, plain: false }
}

fn bytes_of(paths: &[PathBuf; 2]) -> [Vec<u8>; 2] {
    paths.each_ref().map(|path| std::fs::read(path).unwrap())
}

#[test]
fn a_look_at_a_volume_that_was_killed_writes_nothing_and_ends_well() {
    let home = tempfile::tempdir().unwrap();
    let paths = killed(home.path());
    let before = bytes_of(&paths);
    for nvram in [true, false] {
        let mut volume = volume(&paths);
        volume.nvram = volume.nvram.filter(|_| nvram);
        let fs = volume.mount(false).unwrap();
        let found = fs.lookup(fs.root(), b"f").unwrap();
        assert_eq!(found.size, 100);
        fs.sync().unwrap();
        fs.shutdown().unwrap();
        assert!(bytes_of(&paths) == before, "NVRAM {nvram}: it was written");
    }
}

#[test]
fn a_check_that_finds_nothing_wrong_writes_nothing_and_an_nvram_that_is_not_believed_is_told() {
    let home = tempfile::tempdir().unwrap();
    let paths = killed(home.path());
    for closes in [false, true] {
        if closes {
            volume(&paths).open(true).unwrap().close().unwrap();
        }
        let before = bytes_of(&paths);
        for lossy in [false, true] {
            let checked = volume(&paths).check(true, lossy).unwrap();
            assert!(checked.problems.is_empty() && !checked.renewed, "{checked:?}");
            assert!(bytes_of(&paths) == before, "closed {closes}, lossy {lossy}: it was written");
        }
    }
    let mut spoilt = bytes_of(&paths)[1].clone();
    spoilt[200..].fill(0x11);
    std::fs::write(&paths[1], spoilt).unwrap();
    let before = bytes_of(&paths);
    assert!(!volume(&paths).check(false, false).unwrap().renewed);
    assert!(bytes_of(&paths) == before);
    assert!(volume(&paths).check(true, false).unwrap().renewed);
    assert!(volume(&paths).check(true, false).unwrap().report.why.is_empty(), "it is believed");
}

/// Whatever became of its end: what it holds would be lost with a new file system.
#[test]
fn an_image_that_was_cut_off_or_added_to_is_refused_by_its_length() {
    let block = 64 * (2048 + 64);
    for (change, nvram) in [(-2, true), (-1, true), (1, true), (-2, false), (-1, false), (1, false)] {
        let home = tempfile::tempdir().unwrap();
        let paths = killed(home.path());
        let file = std::fs::OpenOptions::new().write(true).open(&paths[0]).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len.strict_add_signed(change * block)).unwrap();
        let mut volume = volume(&paths);
        volume.nvram = volume.nvram.filter(|_| nvram);
        let why = volume.open(false).err().unwrap().to_string();
        assert!(!why.contains("mkfs"), "{why}");
        // Without the records and the NVRAM nothing says the length.
        let is_known = nvram || change > 0;
        assert_eq!(
            why.contains(&format!("should be {len}")),
            is_known,
            "{change} blocks, NVRAM {nvram}: {why}"
        );
        assert!(why.contains("cut off"), "{why}");
    }
}

/// A command that was told an NVRAM may write it anew, and nothing that is none of this volume.
#[test]
fn what_is_named_as_the_nvram_and_is_not_this_volumes_is_refused_and_not_written() {
    let [home, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (paths, others) = (killed(home.path()), killed(other.path()));
    let (own, anothers) = (bytes_of(&paths), bytes_of(&others));
    let mut small = vec![0; 4096];
    small[0x438..0x43a].copy_from_slice(b"\x53\xef");
    let mut longer = anothers[1].clone();
    longer.extend([0; 4096]);
    let refused = [
        (b"the only copy of a text\n".repeat(400), "holds data"),
        (small, "holds an ext2/3/4 file system"),
        (anothers[0].clone(), "holds a NAND image of a cmfs"),
        (anothers[1].clone(), "identities differ"),
        (longer, "identities differ"),
    ];
    for (bytes, why) in refused {
        std::fs::write(&paths[1], &bytes).unwrap();
        for scan in [false, true] {
            let volume = Volume { scan, ..volume(&paths) };
            let said =
                |done: Option<bimetal_base::Error>| done.map(|why| why.to_string()).unwrap_or_default();
            for said in [
                said(volume.mount(true).err()),
                said(volume.check(true, true).err()),
                said(volume.check(false, false).err()),
            ] {
                assert!(said.contains(why), "{why}: {said}");
            }
        }
        assert!(std::fs::read(&paths[1]).unwrap() == bytes, "{why}: it was written");
        assert!(std::fs::read(&paths[0]).unwrap() == own[0], "{why}: the NAND was written");
    }
    let spoilt = |from: usize, to: usize| {
        let mut bytes = own[1].clone();
        bytes[from..to].fill(0x5a);
        bytes
    };
    // Its own, spoilt in one place or another, and empty ones.
    for bytes in
        [spoilt(0, 8), spoilt(90, 100), spoilt(0, 100), spoilt(200, 4096), vec![0; 8192], vec![0xff; 8192]]
    {
        std::fs::write(&paths[0], &own[0]).unwrap();
        std::fs::write(&paths[1], &bytes).unwrap();
        volume(&paths).open(true).unwrap().close().unwrap();
        assert!(volume(&paths).open(false).unwrap().report().why.is_empty(), "it is believed again");
    }
}

/// An image on a host that is full, or whose disk fails, is not "gone".
#[test]
fn what_the_host_says_of_an_image_is_the_error_of_the_operation() {
    let home = tempfile::tempdir().unwrap();
    let paths = killed(home.path());
    let fs = volume(&paths).mount(true).unwrap();
    let file = std::fs::File::options().write(true).open(&paths[0]).unwrap();
    file.set_len(0).unwrap();
    let why = fs.lookup(fs.root(), b"f").err().unwrap().to_string();
    assert!(why.contains("nand") && !why.contains("gone"), "{why}");
}
