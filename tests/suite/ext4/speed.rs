//! Where the time goes, warm, with no device in the way. By hand:
//! `cargo test --release --test suite ext4::speed -- --ignored --nocapture`

use super::rig::{at, make, plain};
use bimetal::fs::ext4::{Create, Ext4, OpenOptions, ROOT_INO};
use bimetal::fs::{Kind, Rename};
use bimetal::media::ram::Ram;
use bimetal::time::{Stamp, Time};
use bimetal::units::Ino;
use std::sync::Arc;
use std::time::Duration;

/// Processor time of this thread: other work on the machine does not count.
fn spent() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Files a round makes.
const FILES: usize = 20_000;
/// Files between commits.
const BATCH: usize = 500;

struct Bench {
    fs: Ext4,
    dirs: Vec<Ino>,
    names: Vec<Vec<u8>>,
    spent: Duration,
    frozen: Duration,
}

impl Bench {
    fn new(options: &str, dirs: usize) -> Bench {
        let (_dir, image) = make(512 << 10, options);
        let disk = Ram::from_bytes("ram", std::fs::read(image).expect("the image"));
        let mut fs = Ext4::open(Arc::new(disk), OpenOptions { now: at(0), ..OpenOptions::default() })
            .expect("an ext4");
        let mut make_dir = |number: usize| {
            let name = format!("dir{number}").into_bytes();
            let spec = Create { parent: ROOT_INO, name: &name, kind: Kind::Dir, ..plain(at(1)) };
            fs.create(&spec).expect("a directory")
        };
        let dirs = (0..dirs).map(&mut make_dir).collect();
        let names = (0..FILES).map(|number| format!("file-{number:06}").into_bytes()).collect();
        Bench { fs, dirs, names, spent: Duration::ZERO, frozen: Duration::ZERO }
    }

    fn commit(&mut self) {
        let start = spent();
        let frozen = self.fs.freeze(at(5), None).expect("a freeze");
        self.frozen += spent() - start;
        self.fs.journal().commit(Time::ZERO, frozen.transaction).expect("a commit");
        self.fs.committed(frozen.tid);
    }

    fn round(&mut self, what: &str, mut work: impl FnMut(&mut Ext4, Ino, &[u8], usize)) {
        (self.spent, self.frozen) = (Duration::ZERO, Duration::ZERO);
        for start in (0..FILES).step_by(BATCH) {
            let begin = spent();
            for number in start..start + BATCH {
                let dir = self.dirs[number % self.dirs.len()];
                work(&mut self.fs, dir, &self.names[number], number);
            }
            self.spent += spent() - begin;
            self.commit();
        }
        let each = |span: Duration| span.as_nanos() as f64 / FILES as f64;
        println!("  {what:28} {:7.0} ns, freeze {:6.0} ns an operation", each(self.spent), each(self.frozen));
    }
}

fn measure(options: &str, dirs: usize) {
    println!("mke2fs {options}, {dirs} directories, {FILES} files, a commit every {BATCH}");
    let mut bench = Bench::new(options, dirs);
    let now = Stamp { sec: 1_800_000_100, nsec: 5 };
    let mut inos = vec![Ino(0); FILES];
    for round in 0..2 {
        println!(" round {round}");
        bench.round("lookup of what is not there", |fs, dir, name, _| {
            assert!(fs.lookup(dir, name).unwrap().is_none());
        });
        bench.round("create", |fs, parent, name, number| {
            inos[number] = fs.create(&Create { parent, name, ..plain(now) }).unwrap();
        });
        bench.round("lookup", |fs, dir, name, _| assert!(fs.lookup(dir, name).unwrap().is_some()));
        bench.round("stat", |fs, _, _, number| assert_eq!(fs.inode(inos[number]).unwrap().nlink, 1));
        bench.round("place 4 KiB", |fs, _, _, number| {
            fs.reserve(1).unwrap();
            assert!(fs.place(inos[number], 0, 1).unwrap()[0].fresh);
            fs.unreserve(1);
            fs.inode_mut(inos[number]).unwrap().size = 4096;
        });
        bench.round("rename", |fs, dir, name, _| {
            let to = [b"x", name].concat();
            fs.rename(dir, name, dir, &to, Rename::Replace, now).unwrap();
        });
        bench.round("unlink and release", |fs, dir, name, _| {
            let removed = fs.unlink(dir, &[b"x", name].concat(), now).unwrap();
            assert!(removed.last && fs.release(removed.ino).unwrap());
        });
    }
    bench.round("create, unlink, release", |fs, parent, name, _| {
        fs.create(&Create { parent, name, ..plain(now) }).unwrap();
        let removed = fs.unlink(parent, name, now).unwrap();
        fs.release(removed.ino).unwrap();
    });
}

#[test]
#[ignore = "a measurement"]
fn operations_on_structures_in_memory_take_about_a_microsecond() {
    measure("-t ext4 -b 4096", 100);
    measure("-t ext4 -b 4096", 1);
    measure("-t ext4 -b 4096 -O ^metadata_csum", 100);
}
