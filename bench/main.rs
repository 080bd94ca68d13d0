//! Paired measurements of mounted file systems: the same work on each, in random order, round after round.
//!
//! `make bench`, or `cargo bench --bench paired -- --help`. Needs root and FUSE. Wall time is what a user waits;
//! CPU time (client and server together, without the kernel's own threads) repeats within a few per cent even
//! on a busy machine. Each figure is shown as the best and the median round, beside its ratio to ext4 and to
//! the limit: an empty file system in memory behind the same front, which no file system behind it can beat.

mod measure;
mod media;
mod meter;
mod report;
mod targets;
mod work;

use clap::Parser;
use measure::Samples;
use media::DiskKind;
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use targets::{Homes, Target};
use tempfile::TempDir;

/// Paired measurements of mounted file systems
#[derive(Debug, Parser)]
struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// What the disk is: of nfhybrid, and of the targets with `-disk`
    #[arg(long, value_enum, default_value = "hdd")]
    disk: DiskKind,
    /// File systems to measure: memfs nfhybrid ext2 ext4 xfs on an SSD image; ext2-disk ext4-disk xfs-disk
    ///
    /// memfs-root and nfhybrid-root serve root alone and check no permissions; each is compared with its like.
    #[arg(long, value_delimiter = ',', default_value = targets::ALL)]
    targets: Vec<String>,
    /// Also measure what is mounted at this directory
    #[arg(long, value_name = "NAME=DIR")]
    mounted: Vec<String>,
    /// More options to mount nfhybrid with
    #[arg(long, value_name = "OPTIONS")]
    nfhybrid_options: Option<String>,
    /// Work to do: metadata postmark fsync stream
    #[arg(long, value_delimiter = ',', default_value = "metadata,postmark,fsync,stream")]
    work: Vec<String>,
    /// The processor on which the work is done, or `any`
    ///
    /// On a machine with an idle processor the scheduler moves a program that waits for a server back and forth between
    /// the two, which doubles what a request costs and scatters it; kernel file systems know nothing of that.
    #[arg(long, default_value = "0", value_parser = processor)]
    processor: Processor,
    /// Where image files and mount points are made
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Where the images of simulated disks are made: in memory, so that their time is that of the model alone
    #[arg(long, default_value = "/dev/shm")]
    disk_dir: PathBuf,
    /// Also write everything measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// The order of the targets in each round is drawn from this
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Given by `cargo bench`; without meaning
    #[arg(long, hide = true)]
    bench: bool,
}

/// Where the work is done.
#[derive(Clone, Copy, Debug)]
struct Processor(Option<usize>);

fn processor(text: &str) -> Result<Processor, String> {
    if text == "any" {
        return Ok(Processor(None));
    }
    let number = text.parse().map_err(|_| "neither a number nor 'any'".to_string())?;
    Ok(Processor(Some(number)))
}

impl std::fmt::Display for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("any"),
        }
    }
}

impl Processor {
    /// Keeps this thread, and the programs it starts from now on, there.
    fn stay(self) -> Result<(), String> {
        let Some(number) = self.0 else { return Ok(()) };
        let mut only = rustix::thread::CpuSet::new();
        if number < rustix::thread::CpuSet::MAX_CPU {
            only.set(number);
        }
        rustix::thread::sched_setaffinity(None, &only).map_err(|why| format!("processor {number}: {why}"))
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A directory for images, which goes with what it returns.
fn home(dir: &Path) -> Result<TempDir, String> {
    let home = tempfile::Builder::new().prefix("bimetal-bench-").tempdir_in(dir);
    home.map_err(|why| format!("{}: {why}", dir.display()))
}

fn run(options: &Options) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting images and dropping caches needs root".into());
    }
    let all = home(&options.dir)?;
    let disks = match options.disk {
        DiskKind::Image => None,
        _ => Some(home(&options.disk_dir)?),
    };
    let homes = Homes { all: all.path(), disks: disks.as_ref().unwrap_or(&all).path() };
    let mut targets = Vec::new();
    for name in &options.targets {
        match Target::set_up(name, homes, options) {
            Ok(target) => targets.push(target),
            Err(why) => eprintln!("{name}: left out: {why}"),
        }
    }
    for text in &options.mounted {
        targets.push(Target::mounted(text)?);
    }
    options.processor.stay()?;
    let mut samples = Samples::of_targets(&targets);
    let begin = std::time::Instant::now();
    let mut random = StdRng::seed_from_u64(options.seed);
    for round in 0..options.rounds {
        let mut order: Vec<&Target> = targets.iter().collect();
        order.shuffle(&mut random);
        for target in order {
            eprintln!("round {} of {}: {}", round + 1, options.rounds, target.name);
            for work in &options.work {
                target.settle();
                work::run(work, target, round, &mut samples)
                    .map_err(|why| format!("{} on {}: {why}", work, target.name))?;
            }
        }
    }
    print!("{}", report::table(options, begin.elapsed(), &samples));
    if let Some(path) = &options.json {
        std::fs::write(path, report::json(options, &samples))
            .map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}
