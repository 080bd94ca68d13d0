//! Real devices: loop devices over image files, as root.

use bimetal::media::file::{FileDevice, Options};
use bimetal::media::{BlockDevice, Request};
use bimetal::time::Time;
use std::path::PathBuf;
use std::process::Command;
use tempfile::NamedTempFile;

/// A loop device, detached when dropped.
struct Loop {
    path: PathBuf,
    image: NamedTempFile,
}

impl Loop {
    /// Attaches an image of `bytes`; none (and the reason printed) where that is not allowed.
    fn attach(bytes: u64, arguments: &[&str]) -> Option<Loop> {
        let image = NamedTempFile::new().unwrap();
        image.as_file().set_len(bytes).unwrap();
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(arguments).arg(image.path()).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Some(Loop { path, image })
            }
            _ => {
                println!("skipped: no loop device to be had (needs root)");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

const WRITABLE: Options = Options { writable: true, direct: false, exclusive: true, queued: true };

#[test]
fn a_block_device_tells_its_size_and_sectors() {
    let Some(attached) = Loop::attach(8 << 20, &["--sector-size", "4096"]) else { return };
    for direct in [false, true] {
        let device = FileDevice::open_with(&attached.path, &Options { direct, ..WRITABLE }).unwrap();
        assert_eq!(device.info().size_bytes, 8 << 20);
        assert_eq!(device.info().block_bytes, 4096);
        let refused = device.run(Time::ZERO, Request::Read { offset: 512, len: 512 }).result.unwrap_err();
        assert!(refused.to_string().contains("whole blocks of 4096"), "{refused}");
    }
}

#[test]
fn a_block_device_keeps_what_is_written_and_drops_what_is_discarded() {
    let Some(attached) = Loop::attach(8 << 20, &[]) else { return };
    for (direct, queued) in [(false, false), (false, true), (true, false), (true, true)] {
        let options = Options { direct, queued, ..WRITABLE };
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
fn animage_under_a_loop_device_is_refused_by_that_devices_name() {
    let Some(attached) = Loop::attach(1 << 20, &[]) else { return };
    let error = FileDevice::open_with(attached.image.path(), &WRITABLE).err().unwrap().to_string();
    assert!(error.contains(&*attached.path.to_string_lossy()), "{error}");
    let shared = Options { exclusive: false, ..WRITABLE };
    FileDevice::open_with(attached.image.path(), &shared).unwrap();
}

#[test]
fn a_mounted_block_device_is_refused() {
    let Some(attached) = Loop::attach(16 << 20, &[]) else { return };
    let made = Command::new("mke2fs").args(["-q", "-F"]).arg(&attached.path).status();
    let dir = tempfile::tempdir().unwrap();
    let mount = || Command::new("mount").arg(&attached.path).arg(dir.path()).status();
    if !made.is_ok_and(|status| status.success()) || !mount().is_ok_and(|status| status.success()) {
        return println!("skipped: no mke2fs or mount");
    }
    let opened = FileDevice::open_with(&attached.path, &WRITABLE).map(drop);
    assert!(Command::new("umount").arg(dir.path()).status().unwrap().success());
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("in use by another program (is it mounted?"), "{error}");
    FileDevice::open_with(&attached.path, &WRITABLE).unwrap();
}
