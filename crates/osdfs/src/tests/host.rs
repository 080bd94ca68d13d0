//! An image on a host that takes its time, or cannot keep what it was given.

use super::readers::{FILE_BYTES, image, image_of};
use super::*;
use bimetal_media::kept::{HostWrite, Stall};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// Nobody waits longer for what must come.
const LONG: Duration = Duration::from_secs(60);

struct Host {
    asked: Receiver<()>,
    answer: Sender<Option<i32>>,
}

/// The next question to the host is answered when the test says so.
fn stall(fs: &OsdFs) -> Host {
    let ((asked, is_asked), (answer, answered)) = (mpsc::channel(), mpsc::channel());
    fs.shared.state.lock().store.nand_mut().stall(Stall { asked, answer: answered });
    Host { asked: is_asked, answer }
}

fn mounted(files: usize) -> (tempfile::TempDir, Arc<OsdFs>, Vec<Ino>) {
    let (home, nand, files) = image(files);
    // Without its thread, which asks the host, too.
    let store = volume::open(&nand, volume::DEVICE, true).unwrap();
    (home, Arc::new(OsdFs::new(store, true).unwrap()), files)
}

/// Calls something beside the test; what it returned comes through the channel.
fn beside<T: Send + 'static>(
    fs: &Arc<OsdFs>,
    call: impl FnOnce(&OsdFs) -> T + Send + 'static,
) -> (JoinHandle<()>, Receiver<T>) {
    let (fs, (sender, receiver)) = (fs.clone(), mpsc::channel());
    (std::thread::spawn(move || sender.send(call(&fs)).unwrap()), receiver)
}

fn commits_of(fs: &OsdFs) -> u64 {
    fs.shared.state.lock().store.counts().commits
}

#[test]
fn others_work_while_an_fsync_waits_for_the_host() {
    let (_home, fs, files) = mounted(3);
    let host = stall(&fs);
    let file = files[0];
    fs.write(file, 0, b"one", false).unwrap();
    let (thread, done) = beside(&fs, move |fs| fs.fsync(file, false)?.get());
    host.asked.recv_timeout(LONG).unwrap();
    let (works, worked) = beside(&fs, |fs| {
        let file = fs.lookup(fs.root(), b"f1").unwrap().ino;
        fs.write(file, 0, b"two", false).unwrap();
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
        fs.create(&ROOT_USER, fs.root(), b"new", &node).unwrap();
        fs.getattr(file).unwrap();
        fs.read(file, 0, 3).unwrap().get().unwrap().concat()
    });
    assert_eq!(worked.recv_timeout(LONG).unwrap(), b"two");
    assert!(done.try_recv().is_err(), "the fsync waits for the host");
    host.answer.send(None).unwrap();
    done.recv_timeout(LONG).unwrap().unwrap();
    thread.join().unwrap();
    works.join().unwrap();
    fs.with(|state| state.store.close()).unwrap();
}

#[test]
fn a_commit_is_written_once_the_host_keeps_the_one_before() {
    let (_home, fs, files) = mounted(3);
    let host = stall(&fs);
    fs.write(files[0], 0, b"one", false).unwrap();
    let file = files[0];
    let first = beside(&fs, move |fs| fs.fsync(file, false)?.get());
    // It is asked for the data, and then for the commit.
    host.asked.recv_timeout(LONG).unwrap();
    let again = stall(&fs);
    host.answer.send(None).unwrap();
    again.asked.recv_timeout(LONG).unwrap();
    let commits = commits_of(&fs);
    let others: Vec<_> = [1, 2, 1, 2]
        .into_iter()
        .map(|which| {
            let file = files[which];
            fs.write(file, 0, b"two", false).unwrap();
            beside(&fs, move |fs| fs.fsync(file, false)?.get())
        })
        .collect();
    // Long enough for them to be where they wait; where they were slower, they wait later.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(commits_of(&fs), commits);
    assert!(others.iter().all(|(_, done)| done.try_recv().is_err()));
    again.answer.send(None).unwrap();
    for (thread, done) in others.into_iter().chain([first]) {
        done.recv_timeout(LONG).unwrap().unwrap();
        thread.join().unwrap();
    }
    let since = commits_of(&fs) - commits;
    assert!((1..=4).contains(&since), "{since} commits for four");
    fs.with(|state| state.store.close()).unwrap();
}

#[test]
fn what_the_host_cannot_keep_is_an_error_of_all_who_wait_and_of_all_who_come() {
    let (_home, fs, files) = mounted(3);
    let host = stall(&fs);
    let waiting: Vec<_> = files
        .iter()
        .map(|file| {
            fs.write(*file, 0, b"one", false).unwrap();
            let file = *file;
            beside(&fs, move |fs| fs.fsync(file, false)?.get())
        })
        .collect();
    host.asked.recv_timeout(LONG).unwrap();
    host.answer.send(Some(libc::EIO)).unwrap();
    for (thread, done) in waiting {
        assert!(done.recv_timeout(LONG).unwrap().is_err());
        thread.join().unwrap();
    }
    // The host says so once, and would answer well now.
    assert!(fs.fsync(files[0], false).and_then(Deferred::get).is_err());
    assert!(fs.sync().is_err());
    let why = fs.write(files[1], 0, b"two", false).err().unwrap().to_string();
    assert!(why.contains("takes no more changes"), "{why}");
    assert_eq!(fs.read(files[0], 0, 3).unwrap().get().unwrap().concat(), b"one");
    assert!(fs.with(|state| state.store.close()).is_err());
}

#[test]
fn nothing_is_erased_before_the_host_keeps_what_gave_it_up() {
    let (_home, fs, files) = mounted(20);
    let write =
        |byte: u8| files.iter().try_for_each(|file| fs.write(*file, 0, &[byte; 16 << 10], false).map(drop));
    write(1).unwrap();
    // Nobody waits for this commit.
    let waits = fs.with(|state| {
        let commit = state.store.begin_flush()?;
        state.store.flush_on(commit, false)?.expect("the data is not kept").keep()?;
        let commit = state.store.flush_on(commit, false)?.expect("the commit is not kept");
        Ok(!commit.is_kept())
    });
    assert!(waits.unwrap());
    let host = stall(&fs);
    host.answer.send(Some(libc::EIO)).unwrap();
    let erases = |fs: &OsdFs| fs.shared.state.lock().store.nand().counts().erases;
    let before = erases(&fs);
    let failed = (2..100).find_map(|round| write(round).err()).expect("the store fills, and is cleaned");
    assert!(
        failed.to_string().contains("Input/output") || failed.to_string().contains("no more"),
        "{failed}"
    );
    assert_eq!(erases(&fs), before);
    assert_eq!(host.asked.try_iter().count(), 1);
}

/// A file after a power cut of its host: what was kept, and of each page of the host's cache what some moment since then
/// had in it.
fn cut(image: &[u8], writes: &[HostWrite], random: &mut Random) -> Vec<u8> {
    const CACHED: u64 = 4096;
    let done: Vec<&HostWrite> = writes.iter().filter(|write| !matches!(write, HostWrite::Kept(_))).collect();
    let kept = writes.iter().rev().find_map(|write| match write {
        HostWrite::Kept(count) => Some(*count),
        _ => None,
    });
    let (kept, all) = (kept.unwrap_or(0) as u64, done.len() as u64);
    // Most pages are written at once or late.
    let moments: Vec<u64> = (0..(image.len() as u64).div_ceil(CACHED))
        .map(|_| match random.below(3) {
            0 => kept,
            1 => all,
            _ => kept + random.below(all - kept + 1),
        })
        .collect();
    let mut image = image.to_vec();
    for (number, write) in (0u64..).zip(done) {
        let (at, bytes) = match write {
            HostWrite::Bytes(at, bytes) => (*at, bytes.to_vec()),
            HostWrite::Hole(at, len) => (*at, vec![0; *len as usize]),
            HostWrite::Kept(_) => continue,
        };
        for (byte, at) in bytes.into_iter().zip(at..) {
            if number < moments[(at / CACHED) as usize] {
                image[at as usize] = byte;
            }
        }
    }
    image
}

#[test]
fn what_was_fsynced_is_there_after_the_host_of_an_image_lost_its_cache() {
    let seeds = std::env::var("CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (mut newer, mut opened) = (0, 0);
    for seed in 0..seeds {
        let (home, nand, files) = image(12);
        let before = std::fs::read(&nand).unwrap();
        let mut store = volume::open(&nand, volume::DEVICE, true).unwrap();
        store.nand_mut().host_writes();
        let fs = OsdFs::new(store, true).unwrap();
        let mut random = Random::new(seed, "host");
        let (mut versions, mut synced) = (vec![0u8; files.len()], Vec::new());
        for _ in 0..300 {
            let which = random.below(files.len() as u64) as usize;
            versions[which] += 1;
            fs.write(files[which], 0, &[versions[which]; FILE_BYTES], false).unwrap();
            match random.below(20) {
                0 => fs.sync().unwrap(),
                1..6 => fs.fsync(files[which], false).unwrap().get().unwrap(),
                _ => continue,
            }
            let recorded = fs.shared.state.lock().store.nand_mut().host_writes().len();
            synced.push((recorded, versions.clone()));
        }
        let writes = fs.shared.state.lock().store.nand_mut().host_writes();
        drop(fs);
        for _ in 0..25 {
            let until = random.below(writes.len() as u64 + 1) as usize;
            let path = home.path().join("cut");
            std::fs::write(&path, cut(&before, &writes[..until], &mut random)).unwrap();
            let none = (0, vec![0; files.len()]);
            let (_, least) = synced.iter().rev().find(|(recorded, _)| *recorded <= until).unwrap_or(&none);
            let fs = volume::mount(&path, volume::DEVICE, true)
                .unwrap_or_else(|why| panic!("seed {seed}, {until} writes: {why}"));
            opened += 1;
            for (which, file) in files.iter().enumerate() {
                let bytes = fs.read(*file, 0, FILE_BYTES).and_then(Deferred::get);
                let bytes = bytes
                    .unwrap_or_else(|why| panic!("seed {seed}, {until} writes, file {which}: {why}"))
                    .concat();
                let there = bytes[0];
                assert!(bytes == [there; FILE_BYTES], "seed {seed}, {until} writes, file {which}");
                assert!(
                    there >= least[which] && there <= versions[which],
                    "seed {seed}, {until} writes, file {which}: {there}, {}",
                    least[which]
                );
                newer += usize::from(there > least[which]);
            }
            // It goes on.
            fs.write(files[0], 0, &[251; FILE_BYTES], false).unwrap();
            fs.sync().unwrap();
            fs.shutdown().unwrap();
        }
    }
    eprintln!("{opened} cuts, {newer} files newer than was asked");
}

/// The pages of a large commit, and states and tags of a large part, are in the host's cache apart from each other.
#[test]
fn names_that_were_made_durable_together_are_there_together() {
    let cuts = std::env::var("CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(4) * 5;
    let (home, nand, _) = image_of(80 << 20, 0);
    let before = std::fs::read(&nand).unwrap();
    let mut store = volume::open(&nand, volume::DEVICE, true).unwrap();
    store.nand_mut().host_writes();
    let fs = OsdFs::new(store, true).unwrap();
    let recorded = |fs: &OsdFs| fs.shared.state.lock().store.nand_mut().host_writes();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let mut synced = vec![0];
    for round in 0..4 {
        for number in 0..150 {
            let name = format!("r{round}n{number}");
            let file = fs.create(&ROOT_USER, fs.root(), name.as_bytes(), &node).unwrap().ino;
            fs.write(file, 0, &[round; 500], false).unwrap();
        }
        fs.fsync(fs.root(), false).unwrap().get().unwrap();
        synced.push(recorded(&fs).len());
    }
    let writes = recorded(&fs);
    drop(fs);
    let mut random = Random::new(7, "host");
    for _ in 0..cuts {
        let until = random.below(writes.len() as u64 + 1) as usize;
        let path = home.path().join("cut");
        std::fs::write(&path, cut(&before, &writes[..until], &mut random)).unwrap();
        let fs = volume::mount(&path, volume::DEVICE, true)
            .unwrap_or_else(|why| panic!("{until} of {synced:?} writes: {why}"));
        let least = synced.iter().filter(|at| **at <= until).count() - 1;
        for round in 0..least {
            for number in 0..150 {
                let found = fs.lookup(fs.root(), format!("r{round}n{number}").as_bytes());
                let file =
                    found.unwrap_or_else(|why| panic!("{until} of {synced:?}, r{round}n{number}: {why}")).ino;
                assert!(fs.read(file, 0, 500).unwrap().get().unwrap().concat() == [round as u8; 500]);
            }
        }
        // It goes on, and all that is there then is there again.
        let file = fs.create(&ROOT_USER, fs.root(), b"later", &node).unwrap().ino;
        fs.write(file, 0, b"later", false).unwrap();
        fs.fsync(file, false).unwrap().get().unwrap();
        let there = all(&fs);
        assert!(there["/later"] == b"later");
        drop(fs);
        let fs = volume::mount(&path, volume::DEVICE, false).unwrap();
        assert!(all(&fs) == there, "{until} of {synced:?}");
    }
}

#[test]
fn who_waits_for_a_commit_that_failed_in_another_s_hands_is_told() {
    let (_home, fs, files) = mounted(3);
    fs.write(files[0], 0, b"one", false).unwrap();
    let told = fs.with(|state| {
        let first = state.store.begin_flush()?;
        state.store.flush_on(first, false)?.expect("the data is not kept").keep()?;
        let second = state.store.begin_flush()?;
        assert_eq!(first, second);
        state.store.nand_mut().cut_power_in(1);
        assert!(state.store.flush_on(second, false).is_err());
        Ok(state.store.flush_on(first, false).is_err())
    });
    assert!(told.unwrap());
}

#[test]
fn a_commit_is_of_one_instant_whatever_others_did_while_the_host_wrote() {
    let (home, fs, files) = mounted(3);
    let before = fs.shared.state.lock().store.nand().counts().programs;
    let host = stall(&fs);
    let file = files[0];
    fs.write(file, 0, b"one", false).unwrap();
    let (thread, done) = beside(&fs, move |fs| fs.fsync(file, false)?.get());
    host.asked.recv_timeout(LONG).unwrap();
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: &[] };
    let new = fs.create(&ROOT_USER, fs.root(), b"tmp", &node).unwrap().ino;
    fs.write(new, 0, &[9; FILE_BYTES], false).unwrap();
    fs.rename(fs.root(), b"tmp", fs.root(), b"f1", Rename::Replace).unwrap();
    fs.forget(files[1], u64::MAX);
    fs.unlink(fs.root(), b"f2").unwrap();
    fs.forget(files[2], u64::MAX);
    host.answer.send(None).unwrap();
    done.recv_timeout(LONG).unwrap().unwrap();
    thread.join().unwrap();
    assert!(fs.shared.state.lock().store.nand().counts().programs > before);
    let killed = home.path().join("killed");
    std::fs::copy(home.path().join("nand"), &killed).unwrap();
    let mut store = volume::open(&killed, volume::DEVICE, false).unwrap();
    assert_eq!(check(&mut store).unwrap(), [""; 0]);
    drop(store);
    let fs = volume::mount(&killed, volume::DEVICE, false).unwrap();
    let there = all(&fs);
    assert!(there["/f0"].starts_with(b"one"));
    assert!([[0; FILE_BYTES], [9; FILE_BYTES]].iter().any(|whole| there["/f1"] == whole));
}
