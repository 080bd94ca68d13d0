//! The work that is measured. Each run has a directory of its own, removed afterwards.

use crate::measure::{Samples, Stopwatch};
use crate::targets::Target;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FILES: usize = 5000;
const RECORD: usize = 4096;
/// What the NF-hybrid paper writes at once.
const LARGE_RECORD: usize = 16 << 10;
const RECORDS: u64 = 2000;
/// A slow device may take this long for its records.
const RECORDS_MAX: Duration = Duration::from_secs(3);
const MIB: usize = 1 << 20;
const STREAM_MIB: u64 = 128;

type Done = std::io::Result<()>;

struct Run<'a> {
    target: &'a Target,
    dir: PathBuf,
    samples: &'a mut Samples,
}

/// Does the work called `name` once.
pub fn run(name: &str, target: &Target, round: u32, samples: &mut Samples) -> Result<(), String> {
    let dir = target.path.join(format!("{name}-{round}"));
    rustix::fs::sync();
    fs::create_dir(&dir).map_err(|why| why.to_string())?;
    let mut run = Run { target, dir, samples };
    let done = match name {
        "metadata" => run.metadata(),
        "postmark" => run.postmark(),
        "fsync" => run.fsync(),
        "stream" => run.stream(),
        _ => return Err("there is no such work".into()),
    };
    done.map_err(|why| why.to_string())?;
    fs::remove_dir_all(&run.dir).map_err(|why| why.to_string())
}

impl Run<'_> {
    fn measure(&mut self, name: &'static str, operations: u64, work: impl FnOnce(&Path) -> Done) -> Done {
        let watch = Stopwatch::start(self.target);
        work(&self.dir)?;
        self.samples.add(name, &self.target.name, watch.stop(operations));
        Ok(())
    }

    fn metadata(&mut self) -> Done {
        // Relative names, so that walking the path to them is not what is measured.
        std::env::set_current_dir(&self.dir)?;
        let names: Vec<PathBuf> = (0..FILES).map(|number| format!("file-{number:06}").into()).collect();
        let moved: Vec<PathBuf> = (0..FILES).map(|number| format!("moved-{number:06}").into()).collect();
        let count = FILES as u64;
        let each =
            |names: &[PathBuf], work: &dyn Fn(&Path) -> Done| names.iter().try_for_each(|name| work(name));
        self.measure("create+close", count, |_| each(&names, &|name| File::create_new(name).map(drop)))?;
        self.measure("stat", count, |_| each(&names, &|name| fs::symlink_metadata(name).map(drop)))?;
        self.measure("open+close", count, |_| each(&names, &|name| File::open(name).map(drop)))?;
        self.measure("readdir", count, |dir| fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop)))?;
        let renames = || names.iter().zip(&moved).try_for_each(|(name, moved)| fs::rename(name, moved));
        self.measure("rename", count, |_| renames())?;
        self.measure("unlink", count, |_| each(&moved, &|name| fs::remove_file(name)))?;
        std::env::set_current_dir("/")
    }

    /// 20 000 files of 500 to 10 000 bytes, 20 000 transactions; the program's own time included.
    fn postmark(&mut self) -> Done {
        let script = format!(
            "set location {}\nset number 20000\nset transactions 20000\nset size 500 10000\nset bias read 5\nrun\nquit\n",
            self.dir.display()
        );
        self.measure("postmark 20000", 1, |_| {
            let child = Command::new("postmark").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            let mut child = child?;
            if let Some(mut input) = child.stdin.take() {
                input.write_all(script.as_bytes())?;
            }
            match child.wait()?.success() {
                true => Ok(()),
                false => Err(std::io::Error::other("postmark failed")),
            }
        })
    }

    fn fsync(&mut self) -> Done {
        let record = [0x5a; RECORD];
        let file = File::create(self.dir.join("records"))?;
        file.sync_all()?;
        let done = self.records("append 4k+fsync", |number| {
            file.write_all_at(&record, number * RECORD as u64)?;
            file.sync_all()
        })?;
        let mut random = StdRng::seed_from_u64(3);
        self.records("overwrite 4k+fsync", |_| {
            file.write_all_at(&record, random.random_range(0..done) * RECORD as u64)?;
            file.sync_all()
        })?;
        let (file, record) = (File::create(self.dir.join("large"))?, [0x5a; LARGE_RECORD]);
        file.sync_all()?;
        self.records("append 16k+fsync", |number| {
            file.write_all_at(&record, number * LARGE_RECORD as u64)?;
            file.sync_all()
        })?;
        Ok(())
    }

    fn records(&mut self, name: &'static str, mut record: impl FnMut(u64) -> Done) -> std::io::Result<u64> {
        let (watch, start) = (Stopwatch::start(self.target), Instant::now());
        let mut done = 0;
        while done < RECORDS && start.elapsed() < RECORDS_MAX {
            record(done)?;
            done += 1;
        }
        self.samples.add(name, &self.target.name, watch.stop(done));
        Ok(done)
    }

    fn stream(&mut self) -> Done {
        let piece = vec![0x5a; MIB];
        let path = self.dir.join("stream");
        let write = |path: &Path| {
            let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
            (0..STREAM_MIB).try_for_each(|_| file.write_all(&piece))?;
            file.sync_all()
        };
        self.measure("1M write+fsync", STREAM_MIB, |_| write(&path))?;
        self.measure("1M overwrite+fsync", STREAM_MIB, |_| write(&path))?;
        let mut buffer = vec![0; MIB];
        fs::write("/proc/sys/vm/drop_caches", "3")?;
        self.measure("1M read cold", STREAM_MIB, |_| read_all(&path, &mut buffer))?;
        self.measure("1M read warm", STREAM_MIB, |_| read_all(&path, &mut buffer))
    }
}

fn read_all(path: &Path, buffer: &mut [u8]) -> Done {
    let mut file = File::open(path)?;
    while file.read(buffer)? > 0 {}
    Ok(())
}
