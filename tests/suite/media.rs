//! Real devices: loop devices over image files, as root; and simulated ones served as files.

use crate::mounts::once_free;
use bimetal::front::export::{Export, STATS, Served, serve, simulated};
use bimetal::front::stack::Layers;
use bimetal::media::file::{Cached, FileDevice, Options};
use bimetal::media::ram::Ram;
use bimetal::media::{BlockDevice, Request};
use bimetal::time::Time;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::{NamedTempFile, TempDir};

/// A loop device, detached when dropped.
pub struct Loop {
    /// Its path under /dev.
    pub path: PathBuf,
}

impl Loop {
    /// Attaches `image`; none (and the reason printed) where that is not allowed.
    pub fn attach(image: &Path, arguments: &[&str]) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).args(arguments).arg(image).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Loop { path: PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()) })
            }
            _ => {
                println!("skipped: no loop device to be had (needs root)");
                None
            }
        }
    }
}

fn image(bytes: u64) -> NamedTempFile {
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(bytes).unwrap();
    image
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

const WRITABLE: Options = Options { writable: true, cached: Cached::All, exclusive: true, queued: true };

#[test]
fn a_block_device_tells_its_size_and_sectors() {
    let image = image(8 << 20);
    let Some(attached) = Loop::attach(image.path(), &["--sector-size", "4096"]) else { return };
    for cached in [Cached::All, Cached::Files, Cached::Nothing] {
        let device = FileDevice::open_with(&attached.path, &Options { cached, ..WRITABLE }).unwrap();
        assert_eq!(device.info().size_bytes, 8 << 20);
        assert_eq!(device.info().block_bytes, 4096);
        let refused = device.run(Time::ZERO, Request::Read { offset: 512, len: 512 }).result.unwrap_err();
        assert!(refused.to_string().contains("whole blocks of 4096"), "{refused}");
    }
}

#[test]
fn a_block_device_keeps_what_is_written_and_drops_what_is_discarded() {
    let image = image(8 << 20);
    let Some(attached) = Loop::attach(image.path(), &[]) else { return };
    let ways = [Cached::All, Cached::Files, Cached::Nothing];
    for (cached, queued) in ways.into_iter().flat_map(|cached| [false, true].map(|queued| (cached, queued))) {
        let options = Options { cached, queued, ..WRITABLE };
        let device = FileDevice::open_with(&attached.path, &options).unwrap();
        let device: &dyn BlockDevice = &device;
        for durable in [false, true] {
            let data = vec![if durable { 7 } else { 9 }; 8192];
            let request = Request::Write {
                offset: 1 << 20,
                data: [data.clone().into()].into_iter().collect(),
                durable,
            };
            device.wait(device.submit(Time::ZERO, request.clone())).result.unwrap();
            device.run(Time::ZERO, request).result.unwrap();
            assert_eq!(&device.read(1 << 20, 8192).unwrap()[..], &data[..], "{options:?}");
        }
        device.run(Time::ZERO, Request::Discard { offset: 1 << 20, len: 4096 }).result.unwrap();
        assert!(device.read(1 << 20, 4096).unwrap().iter().all(|&byte| byte == 0), "{options:?}");
        assert_eq!(device.read((1 << 20) + 4096, 4096).unwrap()[0], 7);
    }
}

#[test]
fn an_error_of_the_device_names_it_the_operation_and_the_place() {
    let image = image(8 << 20);
    let Some(attached) = Loop::attach(image.path(), &["--direct-io=on"]) else { return };
    for queued in [false, true] {
        let options = Options { cached: Cached::Nothing, queued, ..WRITABLE };
        let device = FileDevice::open_with(&attached.path, &options).unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let read = || Request::Read { offset: 2 << 20, len: 4096 };
        for completion in [device.run(Time::ZERO, read()), device.wait(device.submit(Time::ZERO, read()))] {
            let error = completion.result.unwrap_err().to_string();
            let expected = format!("{}: read of 4096 bytes at 2097152", attached.path.display());
            assert!(error.starts_with(&expected), "{error}");
        }
        image.as_file().set_len(8 << 20).unwrap();
    }
}

#[test]
fn an_image_under_a_loop_device_is_refused_by_that_devices_name() {
    let image = image(1 << 20);
    let Some(attached) = Loop::attach(image.path(), &[]) else { return };
    let error = FileDevice::open_with(image.path(), &WRITABLE).err().unwrap().to_string();
    assert!(error.contains(&*attached.path.to_string_lossy()), "{error}");
    let shared = Options { exclusive: false, ..WRITABLE };
    FileDevice::open_with(image.path(), &shared).unwrap();
}

#[test]
fn a_mounted_block_device_is_refused() {
    let image = image(16 << 20);
    let Some(attached) = Loop::attach(image.path(), &[]) else { return };
    let made = Command::new("mke2fs").args(["-q", "-F"]).arg(&attached.path).status();
    let dir = tempfile::tempdir().unwrap();
    let mount = || Command::new("mount").arg(&attached.path).arg(dir.path()).status();
    if !made.is_ok_and(|status| status.success()) || !mount().is_ok_and(|status| status.success()) {
        return println!("skipped: no mke2fs or mount");
    }
    let opened = FileDevice::open_with(&attached.path, &WRITABLE).map(drop);
    assert!(once_free(Command::new("umount").arg(dir.path())).status.success());
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("in use by the kernel: it is mounted on"), "{error}");
    FileDevice::open_with(&attached.path, &WRITABLE).unwrap();
}

/// A simulated device over memory, served without its latency; none where FUSE is not to be had.
fn served(profile: &str, bytes: u64) -> Option<(TempDir, Served)> {
    let (device, model) =
        simulated((profile, None), Arc::new(Ram::new("ram", bytes)), &Layers::default(), 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    match serve(Export { device, real_time: false, model: Some(model) }, dir.path()) {
        Ok(served) => Some((dir, served)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Runs a program on a path; what it says is printed if it fails.
pub fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    let output = Command::new(program).args(arguments).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    if !output.status.success() {
        println!("{program}: {}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }
    output.status.success()
}

#[test]
fn a_served_device_is_a_file_of_its_size_that_keeps_bytes_at_any_offset() {
    let Some((dir, served)) = served("hdd-7200", 4 << 20) else { return };
    let file = OpenOptions::new().read(true).write(true).open(served.device()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    let text = b"neither here nor there in whole sectors";
    file.write_all_at(text, 1000).unwrap();
    file.write_all_at(&[7; 100_000], (4 << 20) - 100_000).unwrap();
    let mut read = vec![0; 1100];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read[1000..1000 + text.len()], text);
    assert!(read[..1000].iter().chain(&read[1000 + text.len()..]).all(|&byte| byte == 0));
    let error = file.write_at(b"x", 4 << 20).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.set_len(100).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.read_at(&mut read, 4 << 20).unwrap(), 0);
    file.sync_all().unwrap();
    drop(file);
    let stats: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join(STATS)).unwrap()).unwrap();
    assert_eq!(stats["requests"]["flushes"], 1);
    assert_eq!(stats["model"]["dirty_flushes"], 1);
    assert_eq!(stats["requests"]["writes"], served.counts().writes);
    end(served, dir.path());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Unmounts a served device, which programs that other tests start may hold for the moment between fork and exec.
pub fn end(served: Served, dir: &Path) {
    assert!(once_free(Command::new("umount").arg(dir)).status.success());
    served.wait().unwrap();
}

/// Makes an ext4 on the served device, fills it, checks it and reads it back, all by the kernel.
pub fn ext4_lives_on(served: &Served) {
    let Some(attached) = Loop::attach(&served.device(), &["--direct-io=on"]) else { return };
    assert!(run("mke2fs", &["-q", "-t", "ext4"], &attached.path));
    let mounted = tempfile::tempdir().unwrap();
    let path = attached.path.to_string_lossy().into_owned();
    let mount = || run("mount", &[&path], mounted.path());
    if !mount() {
        return println!("skipped: no ext4 to mount");
    }
    let contents = |index: usize| vec![index as u8; index * 1000];
    for index in 0..200 {
        fs::write(mounted.path().join(format!("file{index}")), contents(index)).unwrap();
    }
    for index in 100..200 {
        fs::remove_file(mounted.path().join(format!("file{index}"))).unwrap();
    }
    assert!(run("fstrim", &[], mounted.path()) || served.counts().discards == 0);
    assert!(once_free(Command::new("umount").arg(mounted.path())).status.success());
    assert!(run("e2fsck", &["-fn"], &attached.path));
    assert!(mount());
    for index in 0..100 {
        assert_eq!(fs::read(mounted.path().join(format!("file{index}"))).unwrap(), contents(index));
    }
    assert!(once_free(Command::new("umount").arg(mounted.path())).status.success());
    assert!(served.counts().flushes > 0, "the journal's barriers reach the device");
}

#[test]
fn the_kernels_ext4_lives_on_a_served_disk() {
    let Some((_dir, served)) = served("hdd-7200", 64 << 20) else { return };
    ext4_lives_on(&served);
    assert_eq!(served.counts().discards, 0, "a disk has none");
}

#[test]
fn the_kernels_ext4_lives_on_a_served_ssd() {
    for profile in ["ssd-tlc", "ssd-slc"] {
        let Some((dir, served)) = served(profile, 64 << 20) else { return };
        ext4_lives_on(&served);
        assert!(served.counts().discards > 0, "what was deleted is given up");
        let stats = fs::read_to_string(dir.path().join(STATS)).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        assert!(stats["model"]["flash"]["host_trims"].as_u64() > Some(0), "{stats}");
    }
}

#[test]
fn our_own_devices_open_a_served_one() {
    let Some((_dir, served)) = served("hdd-7200", 1 << 20) else { return };
    for cached in [Cached::All, Cached::Files, Cached::Nothing] {
        let device = FileDevice::open_with(&served.device(), &Options { cached, ..WRITABLE }).unwrap();
        let device: &dyn BlockDevice = &device;
        let before = served.counts();
        device.write(8192, vec![5; 4096]).unwrap();
        device.flush().unwrap();
        assert_eq!(device.read(8192, 4096).unwrap(), vec![5; 4096]);
        let counts = served.counts() - before;
        assert_eq!((counts.writes, counts.write_bytes, counts.flushes), (1, 4096, 1), "{cached:?}");
    }
}
