//! cmfs as a file system of the stack: the rules all share, and the simulated media below it.

use super::model::{Clock, ModelNand, ModelNvram};
use super::mounted::{CmfsFs, Memory, Options, Part};
use bimetal_media::nand::NandProfile;
use bimetal_media::profile;
use bimetal_vfs::{FileSystem, rules};
use cmfs_core::{Config, Fs, Layout};

fn nand_profile(pages: &str, bytes: u64) -> NandProfile {
    profile::load::<NandProfile>(pages).unwrap().ideal().resized(bytes, 8)
}

fn simulated(layout: Layout) -> Fs<Part, Memory> {
    let clock = Clock::default();
    let nand = ModelNand::new(nand_profile("slc-4k", 32 << 20), 1, clock.clone());
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
    let mut nand = ModelNand::new(nand_profile("slc-2k", 1 << 20), 1, clock.clone());
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
