//! The server killed at random moments under load: after the next mount everything that was fsynced is there, and
//! the disk half by itself, once e2fsck has replayed its journal, has no further error.
//!
//! Moments are drawn from a seed; `BIMETAL_KILLS` says how many (the long tests take 50).

use crate::mounts::{Mounted, no_fuse, skip};
use crate::nfhybrid::Volume;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What was promised: a file's name and its contents. Contents that were being changed when the server died may
/// be there in their old or their new form.
type Promises = BTreeMap<String, Vec<Vec<u8>>>;

fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *random >> 33
}

fn pattern(random: &mut u64, len: u64) -> Vec<u8> {
    let seed = next(random) as u8;
    (0..len).map(|at| seed.wrapping_add((at / 97) as u8)).collect()
}

/// One change with an fsync; until it returns both forms are allowed.
fn change(dir: &Path, promises: &mut Promises, name: &str, random: &mut u64) -> io::Result<()> {
    let old = promises.get(name).and_then(|forms| forms.last()).cloned().unwrap_or_default();
    let mut new = old.clone();
    let path = dir.join(name);
    let len = 1 + next(random) % [300, 5000, 70_000][(next(random) % 3) as usize];
    let bytes = pattern(random, len);
    match next(random) % 3 {
        0 => {
            new.extend_from_slice(&bytes);
            promises.insert(name.into(), vec![old.clone(), new.clone()]);
            let file = File::options().create(true).append(true).open(&path)?;
            (&file).write_all(&bytes)?;
            file.sync_all()?;
        }
        1 => {
            // Replaced as a whole, the careful way.
            new = bytes;
            promises.insert(name.into(), vec![old, new.clone()]);
            let temporary = dir.join(format!("{name}.new"));
            fs::write(&temporary, &new)?;
            File::open(&temporary)?.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(dir)?.sync_all()?;
        }
        _ => {
            let at = next(random) % (old.len() as u64 + 1);
            new.resize(new.len().max((at + len) as usize), 0);
            new[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            // An overwrite is not atomic for the one who makes it: any mixture of blocks may be there.
            promises.insert(name.into(), vec![]);
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.write_all_at(&bytes, at)?;
            file.sync_all()?;
        }
    }
    promises.insert(name.into(), vec![new]);
    Ok(())
}

/// Works until the server is gone. Also makes noise nobody promises.
fn work(dir: &Path, promises: &mut Promises, random: &mut u64) {
    for step in 0_u64.. {
        let name = format!("f{}", next(random) % 40);
        let noise = dir.join(format!("noise{}", step % 7));
        let changed = change(dir, promises, &name, random).and_then(|()| match step % 5 {
            0 => fs::write(&noise, pattern(random, 300_000)),
            3 => fs::remove_file(&noise).or(Ok(())),
            _ => Ok(()),
        });
        if changed.is_err() {
            return;
        }
    }
}

fn check_promises(dir: &Path, promises: &Promises, what: &str) {
    for (name, forms) in promises.iter().filter(|(_, forms)| !forms.is_empty()) {
        let found = fs::read(dir.join(name)).unwrap_or_default();
        let right = forms.contains(&found);
        assert!(right, "{what}: {name} has {} bytes, promised {:?}", found.len(), forms.last().map(Vec::len));
    }
}

fn check_disk_alone(volume: &Volume, what: &str) {
    let copy = volume.disk.with_extension("copy");
    let copied = Command::new("cp").arg("--sparse=always").args([&volume.disk, &copy]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    for (arguments, allowed) in [("-p", [0, 1]), ("-fn", [0, 0])] {
        let run = Command::new("/usr/sbin/e2fsck").arg(arguments).arg(&copy).output().expect("e2fsck");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.code().is_some_and(|code| allowed.contains(&code)), "{what}: {arguments}: {said}");
    }
}

fn kill(mounted: &Mounted) {
    let pid = mounted.status()["front"]["pid"].as_i64().expect("the server's number");
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill -9");
}

#[test]
fn whatever_was_fsynced_survives_kill_minus_nine() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let kills = std::env::var("BIMETAL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let volume = Volume::new(64, 512, &[]);
    let (mut random, mut promises) = (20_261_121, Promises::new());
    for round in 0..kills {
        let what = format!("kill {round}");
        let mounted = volume.mount("lag=300ms");
        check_promises(mounted.path(), &promises, &what);
        settle(mounted.path(), &mut promises);
        let wait = Duration::from_millis(100 + next(&mut random) % 900);
        std::thread::scope(|scope| {
            let (dir, promises, random) = (mounted.path(), &mut promises, &mut random);
            scope.spawn(move || work(dir, promises, random));
            std::thread::sleep(wait);
            kill(&mounted);
        });
        drop(mounted);
        check_disk_alone(&volume, &what);
    }
    let mounted = volume.mount("lag=300ms");
    check_promises(mounted.path(), &promises, "the end");
    assert!(mounted.unmount().status.success());
    volume.e2fsck();
    println!("{kills} kills, {} files", promises.len());
}

/// The contents as they are now are what counts from here on.
fn settle(dir: &Path, promises: &mut Promises) {
    for index in 0..40 {
        let name = format!("f{index}");
        match fs::read(dir.join(&name)) {
            Ok(found) => drop(promises.insert(name, vec![found])),
            Err(_) => drop(promises.remove(&name)),
        }
    }
}
