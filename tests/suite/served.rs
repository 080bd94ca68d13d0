//! What `export --file` does to the directory that it serves in: nothing but to mount there and to take its own away.

use crate::guard::{Volume, err, refused, run};
use crate::mounts::{bimetal, need_fuse, once_free, skip};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server of an image in a directory.
struct Server(Child);

impl Server {
    fn new(image: &Path, place: &Path) -> Server {
        let mut server = bimetal()
            .args(["export", "--profile", "hdd-7200", "--no-latency"])
            .arg(image)
            .arg("--file")
            .arg(place)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("device"), "{line}");
        Server(server)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits for its end, which has to come.
    fn ended(&mut self) {
        for _ in 0..500 {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("it goes on");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process, and so what it starts, ignores a signal.
fn is_ignored(signal: rustix::process::Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

/// Something of another kind, mounted on a directory; taken away at the end.
struct Before<'p>(&'p Path);

impl Before<'_> {
    fn mount(place: &Path) -> Option<Before<'_>> {
        let done = Command::new("mount").args(["-t", "tmpfs", "before"]).arg(place).status();
        done.is_ok_and(|status| status.success()).then_some(Before(place))
    }
}

impl Drop for Before<'_> {
    fn drop(&mut self) {
        while Command::new("umount").args(["-q", "-l"]).arg(self.0).status().is_ok_and(|done| done.success())
        {
        }
    }
}

/// How a server is ended, in words and done.
type Ending<'e> = (&'e str, &'e dyn Fn(&Server));

#[test]
fn an_export_takes_away_its_own_mount_once_and_none_before_it() {
    need_fuse!();
    use rustix::process::Signal;
    let volume = Volume::images();
    let (image, place) = (volume.at("disk"), volume.at("place"));
    fs::create_dir(&place).unwrap();
    let Some(before) = Before::mount(&place) else { return skip("no tmpfs can be mounted") };
    let device = fs::metadata(&place).unwrap().dev();
    let is_there = || fs::metadata(&place).unwrap().dev() == device;
    let endings: [Ending; 6] = [
        ("TERM", &|server| server.signal(Signal::TERM)),
        // A shell has its background programs ignore it, and all that they start.
        ("INT", &|server| server.signal(if is_ignored(Signal::INT) { Signal::TERM } else { Signal::INT })),
        ("umount", &|_| assert!(once_free(Command::new("umount").arg(&place)).status.success())),
        ("bimetal umount", &|_| {
            let ended = once_free(bimetal().arg("umount").arg(&place));
            assert!(ended.status.success(), "{}", err(&ended));
        }),
        ("TERM, in use", &|server| {
            let open = File::open(place.join("device")).unwrap();
            server.signal(Signal::TERM);
            while !is_there() {
                std::thread::yield_now();
            }
            // Again, while another mount is at its place.
            server.signal(Signal::TERM);
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(open);
        }),
        ("umount -l, in use, TERM", &|server| {
            let open = File::open(place.join("device")).unwrap();
            assert!(Command::new("umount").arg("-l").arg(&place).status().unwrap().success());
            server.signal(Signal::TERM);
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(open);
        }),
    ];
    for (how, end) in endings {
        let mut server = Server::new(&image, &place);
        assert!(!is_there(), "{how}: it is served");
        end(&server);
        server.ended();
        assert!(is_there(), "{how}: what was mounted before is gone");
    }
    drop(before);
}

#[test]
fn an_export_is_served_in_an_empty_directory_only() {
    need_fuse!();
    let volume = Volume::images();
    let (image, full, file) = (volume.at("disk"), volume.at("full"), volume.at("file"));
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), "x").unwrap();
    fs::write(&file, "dear all").unwrap();
    let none = volume.at("none");
    for (place, why) in [(&full, "is not empty"), (&file, "not a directory"), (&none, "mkdir")] {
        let image = image.to_str().unwrap();
        let serve = &["export", "--profile", "ssd-tlc", "--no-latency", image];
        // Were it served, it would go on.
        let served = Command::new("timeout")
            .args(["-s", "TERM", "10"])
            .arg(bimetal().get_program())
            .args(serve)
            .arg("--file")
            .arg(place)
            .output()
            .unwrap();
        refused(&served, &[why, place.to_str().unwrap()]);
    }
    assert_eq!(fs::read(full.join("x")).unwrap(), b"x");
    assert_eq!(fs::read(&file).unwrap(), b"dear all");
    // An image that is made for it is gone with the refusal.
    let new = volume.at("new");
    let made = run(
        &["export", "--profile", "ssd-tlc", "--size", "64MiB", new.to_str().unwrap()],
        &[("--file", &full)],
        &[],
    );
    refused(&made, &["is not empty"]);
    assert!(!new.exists());
}
