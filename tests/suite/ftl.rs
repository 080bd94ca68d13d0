//! Real programs on translation layers and FAT volumes of ours.

use crate::media::{ext4_lives_on, run};
use bimetal::front::export::{Export, serve};
use bimetal::front::nbd;
use bimetal::fs::fat::layout::Width;
use bimetal::fs::fat::{Format, Options, Volume};
use bimetal::ftl::SCHEMES;
use bimetal::ftl::ssd::{Data, Ssd, SsdProfile};
use bimetal::media::BlockDevice;
use bimetal::media::file::{FileDevice, Options as FileOptions};
use bimetal::media::profile;
use bimetal::time::Time;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// With the data in the modelled pages, so that a page misplaced is data lost.
#[test]
fn the_kernels_ext4_lives_on_every_translation_layer() {
    for scheme in SCHEMES {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.nand, profile.ftl, profile.settings) = ("slc-2k".into(), scheme.name.into(), String::new());
        let ssd = Arc::new(Ssd::new(&profile, Data::Pages(64 << 20), 1).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let export =
            Export { device: Arc::clone(&ssd) as Arc<dyn BlockDevice>, real_time: false, model: None };
        let served = match serve(export, dir.path()) {
            Ok(served) => served,
            Err(error) => return println!("skipped: {error}"),
        };
        ext4_lives_on(&served);
        let report = ssd.report();
        assert!(report.ftl.host_writes > 0 && report.ftl.lost_pages == 0, "{}: {report:?}", scheme.name);
        served.unmount().unwrap();
    }
}

/// A volume of `bytes` in a file, to write to.
fn image(path: &Path, bytes: u64) -> Arc<dyn BlockDevice> {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
    open_image(path)
}

fn open_image(path: &Path) -> Arc<dyn BlockDevice> {
    let options = FileOptions { writable: true, direct: false, exclusive: true, queued: false };
    Arc::new(FileDevice::open_with(path, &options).unwrap())
}

/// Whether a program is to be had.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--help").output().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

const LONG: &str = "A photo with a long name.jpeg";

#[test]
fn other_programs_find_no_fault_in_our_volumes_and_read_them() {
    if !is_installed("fsck.fat") || !is_installed("mcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (width, bytes, cluster_bytes) in
        [(Width::Fat12, 2 << 20, 1024), (Width::Fat16, 32 << 20, 2048), (Width::Fat32, 64 << 20, 512)]
    {
        let path = dir.path().join(format!("{width:?}"));
        let device = image(&path, bytes);
        let format = Format { width, cluster_bytes, root_entries: 512 };
        Volume::format(&*device, Time::ZERO, &format).unwrap();
        let volume = Volume::open(device, Time::ZERO, Options::default()).unwrap();
        volume.make_dir("dir").unwrap();
        let contents: Vec<u8> = (0..200_000u32).map(|at| (at / 7) as u8).collect();
        for name in ["A.TXT", LONG, "dir/another.bin"] {
            volume.create(name).unwrap().write_at(0, &contents).unwrap();
        }
        volume.remove("A.TXT").unwrap();
        volume.make_dir("dir/deeper").unwrap();
        for number in 0..40 {
            volume.create(&format!("dir/deeper/file with a number {number}")).unwrap();
        }
        volume.rename("dir/deeper", "dir/other").unwrap();
        volume.rename("dir/other/file with a number 7", "seven").unwrap();
        volume.close().unwrap();
        assert!(run("fsck.fat", &["-n"], &path), "{width:?}");
        let copy = dir.path().join("copy");
        let image = path.to_string_lossy().into_owned();
        for name in [format!("::{LONG}"), "::dir/another.bin".to_string()] {
            assert!(run("mcopy", &["-n", "-o", "-i", &image, &name], &copy));
            assert_eq!(fs::read(&copy).unwrap(), contents, "{width:?} {name}");
        }
    }
}

#[test]
fn volumes_of_other_programs_are_read_and_written() {
    if !is_installed("mkfs.fat") || !is_installed("mcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (width, bytes) in [("12", 2u64 << 20), ("16", 32 << 20), ("32", 64 << 20)] {
        let path = dir.path().join(width);
        drop(image(&path, bytes));
        assert!(run("mkfs.fat", &["-F", width, "-s", "1"], &path));
        let (theirs, name) = (dir.path().join(LONG), path.to_string_lossy().into_owned());
        fs::write(&theirs, vec![7; 70_000]).unwrap();
        assert!(run("mcopy", &["-i", &name, &theirs.to_string_lossy()], Path::new("::")));
        let volume = Volume::open(open_image(&path), Time::ZERO, Options::default()).unwrap();
        assert_eq!(volume.read(LONG).unwrap(), vec![7; 70_000], "FAT{width}");
        volume.remove(LONG).unwrap();
        volume.create("Ours.bin").unwrap().write_at(0, &[9; 5000]).unwrap();
        volume.close().unwrap();
        assert!(run("fsck.fat", &["-n"], &path), "FAT{width}");
    }
}

#[test]
fn nbd_clients_read_and_write_every_translation_layer() {
    if !is_installed("nbdcopy") || !is_installed("nbdinfo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image: Vec<u8> = (0..8u32 << 20).map(|at| (at / 3000) as u8).collect();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, &image).unwrap();
    for scheme in SCHEMES {
        let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
        (profile.nand, profile.ftl, profile.settings) = ("slc-2k".into(), scheme.name.into(), String::new());
        let device = Arc::new(Ssd::new(&profile, Data::Pages(8 << 20), 1).unwrap());
        let export = Export { device, real_time: scheme.name == "page", model: None };
        let served = nbd::serve(export, &dir.path().join("socket")).unwrap();
        assert!(run("nbdinfo", &[], Path::new(&served.uri())));
        for _ in 0..2 {
            assert!(run("nbdcopy", &["--flush", &from.to_string_lossy()], Path::new(&served.uri())));
        }
        assert!(run("nbdcopy", &[&served.uri()], &to));
        assert!(fs::read(&to).unwrap() == image, "{}", scheme.name);
        assert!(served.counts().flushes > 0);
    }
}
