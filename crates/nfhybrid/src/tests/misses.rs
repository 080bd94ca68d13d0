//! Metadata that is not in memory: who waits for the disk, and how often it is asked.

use super::*;
use bimetal_media::counted::Counted;
use bimetal_media::{Completion, DeviceInfo, Request, Ticket};
use parking_lot::{Condvar as Signal, Mutex as Lock};
use std::sync::mpsc;
use std::time::Duration;

/// A device that holds up one request of a kind, from when it is told to until it is told to let go.
pub(super) struct Gate {
    inner: Arc<dyn BlockDevice>,
    is_held: fn(&Request) -> bool,
    state: Lock<Hold>,
    changed: Signal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Open,
    /// The next request of the kind will be held.
    Armed,
    Holding,
}

impl Gate {
    /// One that holds a read.
    pub(super) fn new(inner: Arc<dyn BlockDevice>) -> Gate {
        Gate::of(inner, |request| matches!(request, Request::Read { .. }))
    }

    /// One that holds a request for which this is true.
    pub(super) fn of(inner: Arc<dyn BlockDevice>, is_held: fn(&Request) -> bool) -> Gate {
        Gate { inner, is_held, state: Lock::new(Hold::Open), changed: Signal::new() }
    }

    pub(super) fn set(&self, state: Hold) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    pub(super) fn await_held(&self) {
        let mut state = self.state.lock();
        while *state != Hold::Holding {
            self.changed.wait(&mut state);
        }
    }

    fn pass(&self, request: &Request) {
        let mut state = self.state.lock();
        if *state != Hold::Armed || !(self.is_held)(request) {
            return;
        }
        *state = Hold::Holding;
        self.changed.notify_all();
        while *state == Hold::Holding {
            self.changed.wait(&mut state);
        }
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.pass(&request);
        self.inner.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.inner.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.inner.is_done(ticket)
    }

    fn run(&self, at: Time, request: Request) -> Completion {
        self.pass(&request);
        self.inner.run(at, request)
    }
}

fn make_dir(fs: &NfHybrid, parent: Ino, name: &str) -> Ino {
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    fs.create(&Caller::default(), parent, name.as_bytes(), &node).unwrap().ino
}

fn make_file(fs: &NfHybrid, parent: Ino, name: &str) -> Ino {
    let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
    fs.create(&Caller::default(), parent, name.as_bytes(), &node).unwrap().ino
}

/// Runs work that must not depend on the read that is held up; if it does, the test fails instead of standing still.
pub(super) fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    answer.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} waits for the disk"))
}

type Cold = Box<dyn FnOnce(&NfHybrid) + Send>;

#[test]
fn while_one_looks_up_what_is_cold_all_others_are_served() {
    let cases: [(&str, Cold); 6] = [
        (
            "lookup",
            Box::new(|fs| {
                fs.lookup(ROOT_INO, b"cold").unwrap();
            }),
        ),
        ("listing", Box::new(|fs| fs.readdir_attrs(ROOT_INO, 0, &mut |_, _| true).unwrap())),
        ("names", Box::new(|fs| fs.readdir(ROOT_INO, 0, &mut |_| true).unwrap())),
        (
            "create",
            Box::new(|fs| {
                make_file(fs, ROOT_INO, "new");
            }),
        ),
        ("unlink", Box::new(|fs| fs.unlink(ROOT_INO, b"file").unwrap())),
        ("rename", Box::new(|fs| fs.rename(ROOT_INO, b"file", ROOT_INO, b"other", Rename::Replace).unwrap())),
    ];
    for (what, cold) in cases {
        let Some((disk, ssd)) = halves(32, 16) else { return };
        let fs = open(&disk, None, manual()).unwrap();
        let dir = make_dir(&fs, ROOT_INO, "warm");
        let ino = make_file(&fs, dir, "file");
        fs.setxattr(ino, b"user.k", b"v", SetXattr::Either, false).unwrap();
        make_dir(&fs, ROOT_INO, "cold");
        make_file(&fs, ROOT_INO, "file");
        // Names enough for a directory of several blocks.
        (0..300).for_each(|number| {
            make_file(&fs, ROOT_INO, &format!("a longer name, {number}"));
        });
        fs.shutdown().unwrap();
        let gate = Arc::new(Gate::new(disk));
        let fs = Arc::new(NfHybrid::open(gate.clone(), Some(ssd), manual()).unwrap());
        // Only these become warm; the root does not.
        fs.getattr(ino).unwrap();
        fs.getxattr(ino, b"user.k").unwrap();
        fs.write(ino, 0, b"in memory", false).unwrap().get().unwrap();
        gate.set(Hold::Armed);
        let other = fs.clone();
        let waiting = std::thread::spawn(move || cold(&other));
        gate.await_held();
        let warm = fs.clone();
        soon(what, move || {
            assert_eq!(warm.getattr(ino).unwrap().size, 9);
            assert_eq!(warm.getxattr(ino, b"user.k").unwrap(), b"v");
            assert_eq!(warm.read(ino, 0, 9).unwrap().get().unwrap().concat(), b"in memory");
            warm.write(ino, 0, b"IN", false).unwrap().get().unwrap();
            assert_eq!(warm.status().counters.metadata_locked, 0);
        });
        gate.set(Hold::Open);
        waiting.join().unwrap();
        assert_eq!(fs.read(ino, 0, 9).unwrap().get().unwrap().concat(), b"IN memory");
        assert_eq!(fs.status().counters.metadata_locked, 0, "{what}");
        fs.shutdown().unwrap();
    }
}

/// Directories `top` times `dirs`, with `files` files of one block each; the blocks are there and hold nothing.
fn plant(disk: &Arc<dyn BlockDevice>, top: u32, dirs: u32, files: u32) {
    let fs = NfHybrid::open(disk.clone(), None, manual()).unwrap();
    for number in 0..top * dirs {
        if number % dirs == 0 {
            make_dir(&fs, ROOT_INO, &format!("top{}", number / dirs));
        }
        let above = fs.lookup(ROOT_INO, format!("top{}", number / dirs).as_bytes()).unwrap().ino;
        let dir = make_dir(&fs, above, &format!("dir{number:05}"));
        let made: Vec<Ino> =
            (0..files).map(|file| make_file(&fs, dir, &format!("some-file-{file:06}"))).collect();
        // Names first, then blocks, as when data waits in memory for its place.
        for ino in made {
            fs.fallocate(ino, 0, 4096, Fallocate::Reserve { keep_size: false }).unwrap();
            fs.forget(ino, 1);
        }
        fs.commit().unwrap();
    }
    fs.shutdown().unwrap();
}

/// `find`: every directory listed with attributes, every file asked for its own.
fn find(fs: &NfHybrid, dir: Ino) -> u64 {
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    let (mut from, mut more) = (0, true);
    while more {
        more = false;
        // As many names as an answer to the kernel holds.
        let mut room = 120;
        fs.readdir_attrs(dir, from, &mut |entry, attr| {
            if attr.is_some() {
                let list = if entry.kind == Kind::Dir { &mut dirs } else { &mut files };
                list.push(entry.ino);
            }
            from = entry.next;
            more = true;
            room -= 1;
            room > 0
        })
        .unwrap();
        files.iter().for_each(|ino| {
            fs.getattr(*ino).unwrap();
        });
    }
    files.iter().for_each(|ino| fs.forget(*ino, 1));
    let below: u64 = dirs.iter().map(|ino| find(fs, *ino)).sum();
    dirs.iter().for_each(|ino| fs.forget(*ino, 1));
    files.len() as u64 + below
}

/// Finds everything on a cold disk; files found and reads of the disk.
fn cold_find(disk: Arc<dyn BlockDevice>) -> (u64, u64) {
    let disk = Arc::new(Counted::new(disk));
    let fs = NfHybrid::open(disk.clone(), None, manual()).unwrap();
    let before = disk.counts().reads;
    let found = find(&fs, ROOT_INO);
    let reads = disk.counts().reads - before;
    println!(
        "find of {found} cold files: {reads} reads; {} with the lock",
        fs.status().counters.metadata_locked
    );
    fs.shutdown().unwrap();
    (found, reads)
}

#[test]
fn a_find_of_12000_cold_files_reads_the_disk_30_times() {
    let Some((disk, _)) = halves(128, 16) else { return };
    let disk = disk as Arc<dyn BlockDevice>;
    plant(&disk, 1, 8, 1500);
    let (found, reads) = cold_find(disk);
    assert_eq!(found, 12_000);
    // Streams begin small: 25 here, 805 for 600 000 files.
    assert!(reads <= 30, "{reads} reads");
}

#[test]
#[ignore = "makes 600 000 files; part of make test-long"]
fn a_find_of_600000_cold_files_reads_the_disk_1000_times() {
    use bimetal_media::file::FileDevice;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8 << 30).unwrap();
    let made = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-t", "ext4", "-F", "-b", "4096", "-N", "700000"])
        .arg(file.path())
        .status();
    assert!(made.unwrap().success());
    let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(file.path(), true).unwrap());
    plant(&disk, 6, 100, 1000);
    let (found, reads) = cold_find(disk);
    assert_eq!(found, 600_000);
    assert!(reads <= 1000, "{reads} reads");
}
