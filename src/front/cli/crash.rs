//! `bimetal crash`: cuts the power under any command, at every moment.

use super::mount::joined_lists;
use super::progress::Progress;
use super::say;
use crate::front::crash::explore::{Explorer, Plan, Tally};
use crate::front::crash::run::{self, Run};
use crate::front::crash::save;
use crate::front::crash::state::StateId;
use crate::front::crash::subject::Hybrid;
use crate::front::fuse::MountOptions;
use crate::front::kinds::nfhybrid::{halves_to_read, options::nfhybrid_options};
use crate::fs::nfhybrid::{ssd, volume};
use crate::media::BlockDevice;
use crate::media::file::FileDevice;
use crate::units::parse_size;
use crate::{Error, Result};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  bimetal crash -- sh -c 'cp -r /etc $MNT/ && sync $MNT/etc/*'
  bimetal crash --states 5000 --save git.crash -- sh -c 'cd $MNT && git init r && cd r && date > d && git add d && git commit -m d'
  bimetal crash -o durability=both --bypass /db -- sqlite3 ...          fsync waits for the disk; /db off the SSD
  bimetal crash --ssd ssd.img --disk disk.img -- make -C /src install   on copies in memory of a volume
  bimetal crash --replay git.crash                                      the same again, without the command
  bimetal crash --replay git.crash --state 412-torn-7                   one state
Names of states are explained in docs/reliability.md.";

/// How many failures are shown.
const SHOWN: usize = 12;
/// Of so many cuts one goes through e2fsck, too.
const EXAMINE: usize = 64;

/// Cut the power under a command, at every moment
///
/// Makes both halves in memory (or copies yours: they are read, never changed), mounts them at a directory that the
/// command finds in $MNT, and records what it does and what it makes durable. Then takes the states that power cuts
/// could have left: with what was not flushed there, lost, reordered or torn, one half older than the other, a
/// recovery cut short, work that went on after one. Each is mounted and compared with what had been promised. Ends
/// with 1 if anything was lost, and says how to make that state again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Crash {
    /// SSD half to copy [default: a new one]
    #[arg(long, value_name = "DEVICE", requires = "disk")]
    ssd: Option<PathBuf>,
    /// Disk half to copy [default: a new one]
    #[arg(long, value_name = "DEVICE", requires = "ssd")]
    disk: Option<PathBuf>,
    /// Size of a new SSD half
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32MiB")]
    ssd_size: u64,
    /// Size of a new disk half
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128MiB")]
    disk_size: u64,
    /// Directories of a new volume whose files stay off the SSD
    #[arg(long = "bypass", value_name = "/DIR", value_delimiter = ',')]
    bypasses: Vec<String>,
    /// Mount options
    #[arg(short = 'o', long = "options", value_name = "OPTION[=VALUE]", value_delimiter = ',')]
    options: Vec<String>,
    /// How many states to look at; a run that has fewer is looked at in full
    #[arg(long, value_name = "N", default_value = "1000")]
    states: NonZeroUsize,
    /// Which states are drawn, and how they are torn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Keep what was recorded; without it, it is kept only if something was lost
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    save: Option<PathBuf>,
    /// Take a recorded run instead of a command
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ssd", "disk", "bypasses", "options", "command"])]
    replay: Option<PathBuf>,
    /// Look at this state only
    #[arg(long, value_name = "ID", requires = "replay")]
    state: Option<StateId>,
    /// Say it in JSON
    #[arg(long)]
    json: bool,
    /// What to run
    #[arg(last = true, required_unless_present = "replay")]
    command: Vec<OsString>,
}

impl Crash {
    pub fn run(&self) -> Result<ExitCode> {
        // Before the command, which may take long.
        self.save.iter().try_for_each(|path| save::check_place(path))?;
        let (run, subject, exit) = match &self.replay {
            Some(path) => {
                let run = save::load(path)?;
                let subject = Hybrid { options: nfhybrid_options(&run.options)? };
                if run.bases.len() != 2 {
                    return Err(Error::invalid(format!("{}: no run of an nfhybrid", path.display())));
                }
                (run, subject, None)
            }
            None => self.record()?,
        };
        if let Some(path) = &self.save {
            save::save(&run, path)?;
        }
        let began = Instant::now();
        let explorer = Explorer::new(&subject, &run);
        let tally = match &self.state {
            Some(state) if state.is_beyond(run.log.entries.len()) => {
                return Err(Error::invalid(format!(
                    "state {state}: there are only {} requests in {}",
                    run.log.entries.len(),
                    self.replay.as_deref().unwrap_or(Path::new("the run")).display()
                )));
            }
            Some(state) => explorer.look(state),
            None => self.explore(&explorer),
        };
        let file = self.file_of(&run, &tally);
        let seconds = began.elapsed().as_secs_f64();
        let history = explorer.history();
        let counts = Counts {
            calls: history.calls().len(),
            syncs: history.syncs(),
            requests: run.log.entries.len(),
            all: explorer.all_states().len(),
        };
        match self.json {
            true => say(&counts.json(&run, exit, &tally, seconds, file.as_deref()).to_string())?,
            false => counts.tell(&run, exit, &tally, seconds, file.as_deref())?,
        }
        Ok(if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn record(&self) -> Result<(Run, Hybrid, Option<i32>)> {
        let mut front = MountOptions::for_me();
        front.fsname = "bimetal-crash".into();
        let mut own = Vec::new();
        for option in joined_lists(&self.options) {
            if !front.apply(&option)? {
                own.push(option);
            }
        }
        let subject = Hybrid { options: nfhybrid_options(&own)? };
        let bases = match (&self.ssd, &self.disk) {
            (Some(ssd), Some(disk)) => run::settled(&subject, &halves_to_read(disk, ssd)?)?,
            _ => self.make()?,
        };
        let (run, ended) = run::record(&subject, bases, &front, &own, &self.command)?;
        let ended = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0));
        Ok((run, subject, Some(ended)))
    }

    /// New halves, in memory.
    fn make(&self) -> Result<Vec<Arc<dyn BlockDevice>>> {
        // A signal is heard once the command runs: the images of the halves have gone then.
        crate::front::signals::hold()?;
        let home = tempfile::tempdir().map_err(|why| Error::io("a directory for the halves", why))?;
        let [ssd, disk] = [("ssd", self.ssd_size), ("disk", self.disk_size)].map(|(name, size)| {
            let path = home.path().join(name);
            let made = std::fs::File::create_new(&path).and_then(|file| file.set_len(size / 4096 * 4096));
            made.map(|()| path).map_err(|why| Error::io(format!("the {name} half"), why))
        });
        let (ssd, disk) = (ssd?, disk?);
        let rule = |dir: &String| volume::Rule { dir: dir.clone(), section: "bypass".into() };
        let rules = self.bypasses.iter().map(rule).collect();
        let mut config = ssd::Config::default();
        config.sections[0].extent_bytes = 16 << 10;
        volume::make(&volume::Plan { disk: &disk, ssd: &ssd, config, rules, force: false })?;
        [disk, ssd].iter().map(|path| run::frozen(&*open(path)?)).collect()
    }

    fn explore(&self, explorer: &Explorer) -> Tally {
        let jobs = std::thread::available_parallelism().map_or(1, |count| count.get());
        let plan = Plan {
            states: self.states.get(),
            seed: self.seed,
            jobs: self.jobs.unwrap_or(jobs),
            examine: EXAMINE,
        };
        let progress = Progress::counting("states");
        let tally = explorer.explore(&plan, &|done, of| progress.at(done as u64, of as u64));
        progress.done();
        tally
    }

    /// The file that a failure can be made again from.
    fn file_of(&self, run: &Run, tally: &Tally) -> Option<PathBuf> {
        match (&self.replay, &self.save) {
            (Some(path), _) | (_, Some(path)) => Some(path.clone()),
            _ if tally.failures.is_empty() => None,
            // What was found is told whether or not it can be kept.
            _ => save::save_new(run, Path::new(""))
                .inspect_err(|why| super::complain(&format!("what was recorded is not kept: {why}")))
                .ok(),
        }
    }
}

fn open(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(FileDevice::open(path, false)?))
}

/// How large a run was.
struct Counts {
    calls: usize,
    syncs: usize,
    requests: usize,
    all: usize,
}

impl Counts {
    fn json(
        &self,
        run: &Run,
        exit: Option<i32>,
        tally: &Tally,
        seconds: f64,
        file: Option<&Path>,
    ) -> serde_json::Value {
        json!({
            "command": run.what,
            "options": run.options,
            "exit": exit,
            "calls": self.calls,
            "synced": self.syncs,
            "requests": self.requests,
            "states_of_one_cut": self.all,
            "states": tally.states(),
            "found": tally,
            "seconds": seconds,
            "saved": file,
        })
    }

    fn tell(
        &self,
        run: &Run,
        exit: Option<i32>,
        tally: &Tally,
        seconds: f64,
        file: Option<&Path>,
    ) -> Result<()> {
        if let Some(code) = exit.filter(|code| *code != 0) {
            super::complain(&format!("{} ended with {code}; what it did until then counts", run.what));
        }
        say(&format!(
            "{}: {} calls, {} of them fsyncs, {} requests to the halves",
            run.what, self.calls, self.syncs, self.requests
        ))?;
        say(&format!(
            "{} states in {seconds:.0} s ({} there are of one cut): {} of both halves, {} of the disk alone ({} through \
             e2fsck),\n  {} of halves of different age ({} refused), {} cuts inside recovery, {} after going on",
            tally.states(),
            self.all,
            tally.cuts,
            tally.alone,
            tally.examined,
            tally.uneven,
            tally.refused,
            tally.recovery_cuts,
            tally.work_cuts
        ))?;
        if tally.failures.is_empty() {
            return say("nothing was lost");
        }
        say(&format!("{} states break a promise:", tally.failures.len()))?;
        let file = file.map_or("FILE".into(), |path| path.display().to_string());
        for failure in tally.failures.iter().take(SHOWN) {
            say(&format!("  {}\n    bimetal crash --replay {file} --state {}", failure.why, failure.state))?;
        }
        match tally.failures.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => say(&format!("  and {more} more; --json shows all")),
        }
    }
}
