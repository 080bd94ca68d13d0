//! `reproduce --live`: the papers' programs on real mounts over devices served in real time, and that nothing of it is left.

use crate::guard::{err, out, refused};
use crate::mounts::need_fuse;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn reproduce(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bimetal"));
    command.arg("reproduce").args(words);
    command
}

/// Loop devices, mounts and processes that name something in a folder.
fn left_of(folder: &Path) -> Vec<String> {
    let name = folder.to_str().unwrap();
    let mut left = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(name)).map(str::to_string));
    for entry in fs::read_dir("/sys/block").unwrap().flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        left.extend(backing.contains("bimetal-live-").then_some(backing));
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        left.extend(words.contains(name).then_some(words));
    }
    left
}

/// Waits until nothing is left.
fn nothing_left(folder: &Path) {
    let began = Instant::now();
    while !left_of(folder).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", left_of(folder));
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_program_on_real_mounts_is_measured_and_says_that_it_is_live() {
    need_fuse!();
    let folder = tempfile::tempdir().unwrap();
    let done = reproduce(&["nfh-fig9", "--live", "--json"]).env("TMPDIR", folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", err(&done));
    let found: Value = serde_json::from_str(out(&done).trim()).unwrap();
    if found["verdict"] == "not-done" {
        println!("{}", found["why"]);
        return;
    }
    let rows = found["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let of = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
        row["ours"].as_f64().unwrap()
    };
    for system in ["nfhybrid", "ext2 on the disk", "ext2 on the SSD", "xfs on the disk", "xfs on the SSD"] {
        assert!(of(&format!("live/ignored/{system}/read")) > 0.0);
    }
    assert!(of("virtual/ignored/nfhybrid/read") > 0.0);
    assert_eq!(found["live"], true);
    nothing_left(folder.path());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn whatever_ends_it_leaves_no_mount_no_loop_device_and_no_server() {
    need_fuse!();
    for signal in ["KILL", "TERM", "INT"] {
        let folder = tempfile::tempdir().unwrap();
        let mut running = reproduce(&["nfh-fig10", "--live"]);
        let running = running.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = running.spawn().unwrap();
        // Until something is served, or it ends as it cannot be done here.
        let began = Instant::now();
        let serves = || left_of(folder.path()).iter().any(|line| line.contains("export"));
        while !serves() && child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(60) {
            sleep(Duration::from_millis(50));
        }
        if child.try_wait().unwrap().is_some() {
            println!("{}", out(&child.wait_with_output().unwrap()));
            return;
        }
        sleep(Duration::from_millis(700));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        nothing_left(folder.path());
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert!(files == 0 || signal == "KILL", "{signal}: {files} left");
    }
}

#[test]
fn what_live_needs_and_is_not_here_is_a_sentence_and_no_failure() {
    need_fuse!();
    let program = env!("CARGO_BIN_EXE_bimetal");
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", program];
    let mut command = Command::new("setpriv");
    let done = command.args(nobody).args(["reproduce", "nfh-fig7", "nfh-fig9", "--live"]).output().unwrap();
    if err(&done).contains("ermission denied") {
        println!("skipped: nobody else reaches the program");
        return;
    }
    assert!(done.status.success(), "{}", err(&done));
    let said = out(&done);
    assert_eq!(
        said.matches("not done: skipped: real mounts and loop devices need root").count(),
        2,
        "{said}"
    );
}

#[test]
fn an_experiment_without_a_live_form_and_options_that_mean_nothing_there_are_refused() {
    refused(&reproduce(&["nfh-align", "--live"]).output().unwrap(), &["nfh-align", "--live", "nfh-fig7"]);
    let recorded = reproduce(&["nfh-fig7", "--live", "--record", "/tmp/none"]).output().unwrap();
    assert!(!recorded.status.success() && err(&recorded).contains("--record"), "{}", err(&recorded));
    refused(&reproduce(&["nfh-fig9"]).output().unwrap(), &["nfh-fig9"]);
}
