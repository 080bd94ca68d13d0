//! The crash explorer finds what is planted, finds nothing where nothing is, and finds it again by name.

use crate::fsck::ended;
use crate::guard::{Volume, err, out, refused};
use crate::mounts::{bimetal, need_fuse, no_fuse, once_free, skip};
use bimetal::front::crash::again;
use bimetal::front::crash::explore::{Explorer, Plan, Tally};
use bimetal::front::crash::run::{Recording, Run};
use bimetal::front::crash::save;
use bimetal::front::crash::subject::Hybrid;
use bimetal::fs::nfhybrid::{NfHybrid, Options, ssd, volume};
use bimetal::fs::{Caller, FileSystem, NewNode};
use bimetal::media::BlockDevice;
use bimetal::media::faulty::{Effect, Faulty, Kind, When};
use bimetal::media::ram::Ram;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

const DISK_MIB: u64 = 24;
const SSD_MIB: u64 = 8;

fn halves() -> Option<Vec<Arc<dyn BlockDevice>>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(DISK_MIB << 20).unwrap();
    let made = Command::new("/usr/sbin/mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(file.path()).status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", SSD_MIB << 20));
    volume::join_devices(disk.clone(), ssd.clone(), &ssd::Config::default()).unwrap();
    Some(vec![disk, ssd])
}

fn manual() -> Options {
    Options { manual: true, ..Options::default() }
}

/// Some work of three seeds, recorded; `lie`: the SSD acknowledges the writes from the n-th on and does not do them.
fn recorded(lie: Option<u64>) -> Option<(Hybrid, Run)> {
    let subject = Hybrid { options: manual() };
    let open = |devices: &[Arc<dyn BlockDevice>]| -> bimetal::Result<Box<dyn FileSystem>> {
        // The lie is told above the recorder, so that the medium really lacks what it says it has.
        let ssd = Faulty::new(devices[1].clone());
        if let Some(n) = lie {
            ssd.plan(Kind::Write, When::FromNth(n), Effect::Lose);
        }
        Ok(Box::new(NfHybrid::open(devices[0].clone(), Some(Arc::new(ssd)), manual())?))
    };
    let recording = Recording::begin(&subject, halves()?, &open).unwrap();
    let fs = recording.fs();
    let before = Default::default();
    for seed in 1..=3 {
        again::work(&*fs, &before, seed).unwrap();
    }
    drop(fs);
    Some((subject, recording.run("work", &[])))
}

fn explore(subject: &Hybrid, run: &Run, states: usize) -> Tally {
    let plan = Plan { states, seed: 5, jobs: 2, examine: 100 };
    Explorer::new(subject, run).explore(&plan, &|_, _| {})
}

#[test]
fn a_healthy_volume_loses_nothing_in_any_state_and_every_sort_of_state_is_seen() {
    let Some((subject, run)) = recorded(None) else { return skip("mke2fs is not installed") };
    let tally = explore(&subject, &run, 250);
    println!("{tally:#?}");
    assert!(tally.failures.is_empty(), "{:#?}", tally.failures);
    for (count, least) in [
        (tally.cuts, 80),
        (tally.alone, 80),
        (tally.uneven, 10),
        (tally.recovery_cuts, 20),
        (tally.work_cuts, 5),
        (tally.examined, 1),
    ] {
        assert!(count >= least, "{count} of at least {least}: {tally:?}");
    }
}

#[test]
fn a_full_disk_and_writes_that_are_several_operations_break_no_promise() {
    let Some(halves) = halves() else { return skip("mke2fs is not installed") };
    let subject = Hybrid { options: manual() };
    let open = |devices: &[Arc<dyn BlockDevice>]| -> bimetal::Result<Box<dyn FileSystem>> {
        Ok(Box::new(NfHybrid::open(devices[0].clone(), Some(devices[1].clone()), manual())?))
    };
    let recording = Recording::begin(&subject, halves, &open).unwrap();
    let fs = recording.fs();
    let node = NewNode { kind: bimetal::fs::Kind::File, perm: 0o644, rdev: 0, target: b"" };
    let ino = fs.create(&Caller::default(), fs.root(), b"big", &node).unwrap().ino;
    let bytes: Vec<u8> = (0..3u64 << 20).map(|at| (at / 4096) as u8 | 1).collect();
    let mut at = 0;
    let full = loop {
        match fs.write(ino, at, &bytes, false).and_then(|written| written.get()) {
            Ok(written) => at += written as u64,
            Err(why) => break why,
        }
    };
    assert!(matches!(full, bimetal::Error::NoSpace(_)), "{full}");
    again::work(&*fs, &Default::default(), 1).unwrap();
    fs.fsync(ino, false).unwrap().get().unwrap();
    drop(fs);
    let tally = explore(&subject, &recording.run("a full disk", &[]), 120);
    println!("{tally:#?}");
    assert!(tally.failures.is_empty(), "{:#?}", tally.failures);
    assert!(tally.alone >= 20 && tally.work_cuts >= 2, "{tally:?}");
}

/// Commits come between the pieces of a write that finds the disk full.
#[test]
fn a_write_that_ends_short_on_a_full_disk_may_have_been_done_in_pieces() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let fill = "! dd if=/dev/urandom of=$MNT/a bs=1M count=40 2>/dev/null; sleep .5";
    let mut crash = bimetal();
    crash.current_dir(home.path()).args(["crash", "--jobs", "1", "--states", "100", "-o", "lag=100ms"]);
    crash.args(["--ssd-size", "8MiB", "--disk-size", "24MiB", "--", "sh", "-c", fill]);
    let done = crash.output().unwrap();
    assert!(done.status.success(), "{}{}", out(&done), err(&done));
}

#[test]
fn an_ssd_that_only_says_that_it_wrote_is_found_and_found_again_by_the_name_of_the_state_from_a_saved_run() {
    let Some((subject, run)) = recorded(Some(6)) else { return skip("mke2fs is not installed") };
    let tally = explore(&subject, &run, 120);
    let cut = tally
        .failures
        .iter()
        .find(|failure| !failure.state.contains('+'))
        .expect("a lost fsync was not found");
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run.crash");
    save::save(&run, &path).unwrap();
    let again = save::load(&path).unwrap();
    let found = Explorer::new(&subject, &again).look(&cut.state.parse().unwrap());
    assert_eq!(found.failures.len(), 1, "{}", cut.state);
    assert_eq!(found.failures[0].why, cut.why);
    // The same plan finds the same, from the file too.
    let told = |tally: &Tally| serde_json::to_string(tally).unwrap();
    assert_eq!(told(&explore(&subject, &again, 120)), told(&tally));
}

#[test]
fn a_saved_run_that_is_damaged_is_refused_and_other_files_are_not_overwritten() {
    let Some((_, run)) = recorded(None) else { return skip("mke2fs is not installed") };
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run.crash");
    save::save(&run, &path).unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in [0, 8, 12, 16, 24, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, bad).unwrap();
        let why = save::load(&path).err().expect("a damaged run").to_string();
        assert!(why.contains("run.crash"), "{why}");
    }
    std::fs::write(&path, &good[..good.len() - 3]).unwrap();
    assert!(save::load(&path).is_err());
    std::fs::write(&path, "my letters").unwrap();
    assert!(save::save(&run, &path).unwrap_err().to_string().contains("something else"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "my letters");
}

#[test]
fn the_command_records_a_program_through_fuse_and_loses_nothing_of_it() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let home = tempfile::tempdir().unwrap();
    let script = "echo begun; cd $MNT && mkdir d && for i in 1 2 3; do echo $i > d/t && sync d/t && mv d/t d/$i && sync d; done";
    let run = bimetal()
        .current_dir(home.path())
        .args([
            "crash",
            "--json",
            "--states",
            "120",
            "--save",
            "run.crash",
            "-o",
            "lag=100ms",
            "--",
            "sh",
            "-c",
            script,
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let told: serde_json::Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|why| panic!("{why}: {said}"));
    assert!(run.status.success(), "{told:#}\n{said}");
    assert!(told["synced"].as_u64() >= Some(6) && told["states"].as_u64() >= Some(100), "{told:#}");
    assert_eq!(told["exit"], 0);
    // What the program prints is not the report's.
    assert!(said.contains("begun"), "{said}");
    let one = bimetal()
        .current_dir(home.path())
        .args(["crash", "--replay", "run.crash", "--state", "9-torn-3+r4-durable-1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(one.status.success() && text.contains("nothing was lost"), "{text}");
    let wrong = bimetal().args(["crash", "--replay", "none.crash"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
}

/// What a long hole costs is nothing, and what lies behind it counts.
#[test]
fn a_tree_with_a_terabyte_of_hole_is_seen_without_its_zeros() {
    use bimetal::front::crash::explore::start_of;
    use bimetal::fs::memfs::MemFs;
    let fs = MemFs::new(64 << 20, &Caller::default());
    let node = NewNode { kind: bimetal::fs::Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let ino = fs.create(&Caller::default(), fs.root(), b"long", &node).unwrap().ino;
    let at = 1 << 40;
    fs.write(ino, 12_345, b"front", false).unwrap().get().unwrap();
    fs.write(ino, at, b"back", false).unwrap().get().unwrap();
    let (before, first) = start_of(&fs).unwrap();
    let kept: usize = first.iter().map(|(_, _, bytes)| bytes.len()).sum();
    assert!((9..=4 << 20).contains(&kept), "{kept} bytes");
    assert_eq!(before.objects[&b"/long"[..]].contents.size, at + 4);
    fs.write(ino, at, b"BACK", false).unwrap().get().unwrap();
    let (after, _) = start_of(&fs).unwrap();
    assert_ne!(before.fingerprint().whole, after.fingerprint().whole);
}

/// `bimetal crash` with few states, in a directory, with options and a shell's command.
fn crash(home: &Path, options: &[&str], command: &str) -> Output {
    let mut crash = bimetal();
    crash.current_dir(home).args(["crash", "--states", "2"]).args(options).args(["--", "sh", "-c", command]);
    crash.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_run_that_cannot_be_written_leaves_the_older_one_and_is_refused_before_its_command_where_that_can_be_known()
 {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    // Nothing is there to write to: the command is not run.
    refused(&crash(home.path(), &["--save", "none/x.crash"], "touch ran"), &["none/x.crash"]);
    symlink("elsewhere", at("link.crash")).unwrap();
    let through = crash(home.path(), &["--save", "link.crash"], "touch ran");
    refused(&through, &["link.crash is a link that leads nowhere"]);
    refused(&crash(home.path(), &["--save", "/dev/null"], "touch ran"), &["/dev/null is no file"]);
    assert!(!at("ran").exists() && fs::symlink_metadata(at("elsewhere")).is_err());
    // A link to a run stays one, and the run is replaced.
    let save = |name: &str| crash(home.path(), &["--save", name], "touch $MNT/f");
    assert!(save("run.crash").status.success());
    symlink("run.crash", at("to-run.crash")).unwrap();
    fs::write(at("run.crash"), b"BIMETCRS of before").unwrap();
    let done = save("to-run.crash");
    assert!(done.status.success(), "{}", err(&done));
    assert!(fs::symlink_metadata(at("to-run.crash")).unwrap().is_symlink());
    assert!(fs::metadata(at("run.crash")).unwrap().len() > 1000);
    // A full file system.
    fs::create_dir(at("small")).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(at("small")).output();
    if !mounted.is_ok_and(|done| done.status.success()) {
        return skip("no tmpfs can be mounted");
    }
    fs::write(at("small/old.crash"), b"BIMETCRS of before").unwrap();
    let mut filler = fs::File::create(at("small/filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);
    let full = save("small/old.crash");
    let left = fs::read(at("small/old.crash")).unwrap();
    let names = fs::read_dir(at("small")).unwrap().count();
    assert!(once_free(Command::new("umount").arg(at("small"))).status.success());
    refused(&full, &["small/old.crash"]);
    assert!(left == b"BIMETCRS of before" && names == 2, "{left:?}, {names} files");
}

#[test]
fn the_command_heeds_signals_and_what_it_leaves_behind_ends_by_the_first() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let script = "grep SigBlk /proc/self/status > mask; \
                  sh -c 'trap \"echo heard > heard; exit\" TERM; echo ready > ready; while :; do sleep 0.1; done' & \
                  while ! test -e ready; do sleep 0.05; done; touch $MNT/f";
    let done = crash(home.path(), &[], script);
    assert!(done.status.success(), "{}", err(&done));
    let mask = fs::read_to_string(home.path().join("mask")).unwrap();
    let mask = u64::from_str_radix(mask.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(mask & (1 | 1 << 1 | 1 << 14), 0, "{mask:x}");
    assert!(home.path().join("heard").exists(), "SIGTERM was not heard");
}

#[test]
fn a_signal_ends_the_command_and_all_it_started_and_is_what_crash_ends_with() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let script = "sleep 300 & echo $! > pid; echo $MNT > place; mv place mounted; wait; sleep 300";
    let mut crash = bimetal();
    crash.current_dir(home.path()).args(["crash", "--", "sh", "-c", script]).stdin(Stdio::null());
    let mut crash = crash.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !home.path().join("mounted").exists() {
        assert!(crash.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    kill_process(Pid::from_raw(crash.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(crash.wait().unwrap().code(), Some(143));
    let pid = fs::read_to_string(home.path().join("pid")).unwrap();
    let runs =
        fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|told| !told.contains(") Z "));
    if runs {
        let _ = kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), Signal::KILL);
    }
    assert!(!runs, "what the command started runs on");
    let place = fs::read_to_string(home.path().join("mounted")).unwrap();
    assert!(!Path::new(place.trim()).exists(), "{place}");
}

#[test]
fn a_directory_that_is_in_itself_is_an_error_and_no_endless_walk() {
    need_fuse!();
    let volume = Volume::new();
    let mounted = volume.mount(&[]);
    fs::create_dir_all(mounted.path().join("t/d/e")).unwrap();
    assert!(mounted.unmount().status.success());
    drop(mounted);
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let linked = Command::new("/usr/sbin/debugfs").args(["-w", "-R", "ln t/d t/d/e/a"]).arg(&disk).output();
    if !linked.is_ok_and(|done| done.status.success()) {
        return skip("debugfs is not installed");
    }
    let mut crash = Command::new("timeout");
    crash
        .args(["-s", "KILL", "60", "sh", "-c", "ulimit -v 8000000; exec \"$@\"", "sh"])
        .arg(bimetal().get_program());
    crash.args(["crash", "--states", "1", "--ssd"]).arg(ssd).arg("--disk").arg(disk).args(["--", "true"]);
    let ended = crash.stdin(Stdio::null()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}{}", out(&ended), err(&ended));
    refused(&ended, &["/t/d/e/a", "is in itself", "bimetal fsck"]);
}

#[test]
fn a_recording_that_says_what_no_file_system_does_is_refused_or_looked_at_and_never_a_panic() {
    use bimetal::front::crash::calls::{After, Call, CallRequest};
    let Some((_, mut run)) = recorded(None) else { return skip("mke2fs is not installed") };
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run.crash");
    let root = run.start.objects[&Vec::new()].ino;
    let shape = run.start.objects[&Vec::new()].shape.clone();
    let call = |ask| Call { ask, begun: 0, done: Some(0), after: Vec::new() };
    let mut told = |calls: Vec<Call>| {
        let before = std::mem::replace(&mut run.calls, calls);
        save::save(&run, &path).unwrap();
        run.calls = before;
        let look = bimetal().args(["crash", "--state", "1-all-0", "--replay"]).arg(&path).output().unwrap();
        assert!(matches!(look.status.code(), Some(0 | 1)), "{:?}: {}", look.status, err(&look));
        assert!(!err(&look).contains("panicked"), "{}", err(&look));
        err(&look)
    };
    let far = CallRequest::Write { ino: root, offset: u64::MAX, data: vec![1; 4096].into() };
    assert!(told(vec![call(far)]).contains("4096 bytes at 18446744073709551615"));
    let make = |parent, name: &[u8], ino| {
        let after = vec![After { ino, shape: shape.clone(), size: 0 }];
        Call { after, ..call(CallRequest::Create { parent, name: name.to_vec(), ino }) }
    };
    let [d, e] = [5_000_001, 5_000_002].map(bimetal::units::Ino);
    let moved = CallRequest::Rename {
        from: (root, b"d".to_vec()),
        to: (e, b"x".to_vec()),
        exchange: false,
        whiteout: None,
    };
    told(vec![make(root, b"d", d), make(d, b"e", e), call(moved)]);
    let link = |ino, parent| call(CallRequest::Link { ino, parent, name: b"again".to_vec() });
    told(vec![make(root, b"d", d), make(d, b"e", e), link(d, e), link(root, e), link(e, root)]);
    let deep = (1..20_000)
        .map(|at| make(bimetal::units::Ino(6_000_000 + at), b"d", bimetal::units::Ino(6_000_001 + at)));
    told([make(root, b"d", bimetal::units::Ino(6_000_001))].into_iter().chain(deep.take(3000)).collect());
}

/// A command may take the mount away itself, and what it leaves at work ends with it.
#[test]
fn a_command_that_unmounts_or_leaves_something_behind_hangs_nothing() {
    need_fuse!();
    let program = bimetal().get_program().to_owned();
    for script in ["echo x > $MNT/f; $0 umount $MNT", "(exec sleep 1000 > $MNT/f) & echo x > $MNT/g"] {
        let mut command = Command::new("timeout");
        command
            .arg("60")
            .arg(&program)
            .args(["crash", "--states", "5", "--", "sh", "-c", script])
            .arg(&program);
        let done = command.output().unwrap();
        ended(&done, 0, &["nothing was lost"]);
    }
}
