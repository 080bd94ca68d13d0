//! `bimetal record`: one recording of a mount at a time, which ends with its command and with the mount.

use crate::guard::{err, refused};
use crate::mounts::{Mounted, bimetal, need_fuse};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn record(mounted: &Mounted, rest: &[&str]) -> Command {
    let mut command = bimetal();
    command.arg("record").arg(mounted.path()).args(rest).stdin(Stdio::null());
    command
}

fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("{what}");
}

/// Starts a recording of a command that sleeps; the file in which that says its number.
fn sleeping(mounted: &Mounted, trace: &Path, name: &str) -> (Child, PathBuf) {
    let number = mounted.scratch().join(name);
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", number.display());
    let output = trace.to_str().unwrap();
    let child =
        record(mounted, &["-o", output, "--", "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
    until("the command runs", || number.exists());
    (child, number)
}

#[test]
fn a_mount_is_recorded_once_at_a_time_and_a_recording_ends_with_its_command() {
    need_fuse!();
    let mounted = Mounted::memfs("rw");
    let (trace, other) = (mounted.scratch().join("t.csv"), mounted.scratch().join("other.csv"));
    let second = || record(&mounted, &["-o", other.to_str().unwrap(), "--", "true"]).output().unwrap();
    let is_whole = |trace: &Path| {
        let list = trace.with_extension("paths.csv");
        fs::read_to_string(trace).unwrap().contains(",create,")
            && fs::read_to_string(list).unwrap().contains(",/f")
    };

    let (child, _) = sleeping(&mounted, &trace, "first");
    refused(&second(), &["it is being recorded into", "t.csv", "--stop"]);
    assert!(!other.exists());
    fs::write(mounted.path().join("f"), "x").unwrap();
    // Whoever ends the recording ends its command.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(128 + 15), "{}", err(&ended));
    assert!(is_whole(&trace));

    // One that was killed goes on in the server until somebody says otherwise.
    let (mut child, number) = sleeping(&mounted, &trace, "second");
    child.kill().unwrap();
    child.wait().unwrap();
    let left: i32 = fs::read_to_string(number).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
    refused(&second(), &["--stop"]);
    fs::write(mounted.path().join("f2"), "x").unwrap();
    assert!(record(&mounted, &["--stop"]).status().unwrap().success());
    assert!(is_whole(&trace));
    assert!(second().status.success() && other.exists());

    // The command heeds the signals that are held back for its recording.
    let said = mounted.scratch().join("said");
    let script = format!("grep SigBlk /proc/self/status > {}; kill -TERM $$; echo survived", said.display());
    let killed =
        record(&mounted, &["-o", other.to_str().unwrap(), "--", "sh", "-c", &script]).output().unwrap();
    assert_eq!(killed.status.code(), Some(128 + 15), "{}", err(&killed));
    let blocked = fs::read_to_string(&said).unwrap();
    let blocked = u64::from_str_radix(blocked.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(blocked & (1 | 1 << 1 | 1 << 14), 0, "{blocked:x}");

    // The list of paths, which nobody named, replaces no link's file; and is looked at before the command runs.
    let list = other.with_extension("paths.csv");
    fs::remove_file(&list).unwrap();
    fs::write(mounted.scratch().join("precious"), "mine").unwrap();
    std::os::unix::fs::symlink("precious", &list).unwrap();
    refused(&second(), &["other.paths.csv is a link"]);
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    refused(&second(), &["other.paths.csv is no file"]);
    fs::remove_dir(&list).unwrap();
    assert_eq!(fs::read_to_string(mounted.scratch().join("precious")).unwrap(), "mine");

    // A program that is not there costs no earlier recording.
    let before = fs::read(&other).unwrap();
    for program in ["no-such-program-of-bimetal", "./none", "/dev/null"] {
        let absent = record(&mounted, &["-o", other.to_str().unwrap(), "--", program]).output().unwrap();
        refused(&absent, &[program, "no such program"]);
    }
    assert!(fs::read(&other).unwrap() == before);
}

#[test]
fn a_recording_without_a_command_ends_with_the_mount() {
    need_fuse!();
    let mounted = Mounted::memfs("rw");
    let trace = mounted.scratch().join("t.csv");
    let child = record(&mounted, &["-o", trace.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    until("it begins", || fs::read(&trace).is_ok_and(|text| !text.is_empty()) || trace.exists());
    until("it is recorded", || {
        let mut name = [0; 4096];
        rustix::fs::getxattr(mounted.path(), "bimetal.record", &mut name[..]).is_ok()
    });
    fs::write(mounted.path().join("f"), "x").unwrap();
    assert!(mounted.unmount().status.success());
    refused(&child.wait_with_output().unwrap(), &["it is mounted no more"]);
    assert!(fs::read_to_string(&trace).unwrap().contains(",create,"));
}

/// What an output takes only in part is no success, also if all of it fits the buffer before it.
#[test]
fn what_cannot_be_printed_is_no_success() {
    let image = crate::guard::Volume::new();
    fs::write(image.at("abc"), "abc").unwrap();
    let (ssd, disk) = (image.at("ssd"), image.at("disk"));
    let halves = [("--ssd", &*ssd), ("--disk", &*disk)];
    let put = crate::guard::run(&["put"], &halves, &[image.at("abc").to_str().unwrap(), "/"]);
    assert!(put.status.success(), "{}", err(&put));
    for rest in [&["cat", "/abc"][..], &["get", "/abc", "-"]] {
        let mut command = bimetal();
        command.arg(rest[0]).arg("--ssd").arg(&ssd).arg("--disk").arg(&disk).args(&rest[1..]);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let done = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
        refused(&done, &["No space left"]);
    }
}
