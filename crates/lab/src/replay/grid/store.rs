//! Where the rows of a grid are.
//!
//! ```text
//! FOLDER/grid.json      which grid this is: base configuration, values, version, CRC of each input
//!        runs/7.json    the row of run 7, while the grid is not done; written whole or not at all
//!        rows.jsonl     all rows in order, once it is done
//!        rows.parquet   the same
//!        times.jsonl    how long each run took, where and when: what rows must not depend on
//!        lock           held by whoever is at work: one grid, or any number of tasks
//!        lock.tasks     held by each task until its row is kept; alone, by the one that puts the rows together
//! ```
//!
//! A row counts as there if it can be read and is of the run's configuration, version and inputs; so a row that a
//! power cut tore, or that somebody put there, is made again. Another grid in the same folder is refused. Several tasks,
//! on several machines, may make runs of one grid at the same time: each writes files of its own.

use super::Run;
use super::row::{Row, cells_of};
use crate::kinds::nfhybrid::play;
use crate::kinds::{KINDS, LiesOn};
use crate::replay::parquet;
use crate::stack::file::{Setting, StackFile};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All rows, as JSON lines.
pub(super) const JSON: &str = "rows.jsonl";
/// All rows, as Parquet.
pub(super) const PARQUET: &str = "rows.parquet";
const MANIFEST: &str = "grid.json";
const RUNS: &str = "runs";
const TIMES: &str = "times.jsonl";
const LOCK: &str = "lock";
const TASKS: &str = "lock.tasks";

/// What a run gave: why it failed, if it did, and what was measured, as far as it came.
pub(super) type Given = (Option<String>, Value);

/// A folder of rows.
pub(super) struct Store<'a> {
    dir: PathBuf,
    runs: &'a [Run],
    manifest: Value,
    inputs: Inputs,
}

/// What the runs of a grid depend on beside their configurations.
pub(super) struct Inputs {
    /// The CRC-32C of each file that some run reads.
    files: BTreeMap<PathBuf, String>,
    /// The version of the program that makes the disk halves of nfhybrids, if there are some.
    maker: Option<String>,
}

impl Inputs {
    /// Reads the files, and asks for the version.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn of(runs: &[Run]) -> Result<Inputs> {
        let mut files = BTreeMap::new();
        for file in runs.iter().flat_map(|run| run.stack.inputs()) {
            if let std::collections::btree_map::Entry::Vacant(new) = files.entry(file) {
                let crc = crc_of(new.key())?;
                new.insert(crc);
            }
        }
        let maker = runs.iter().any(|run| is_of_halves(&run.stack)).then(play::maker).flatten();
        Ok(Inputs { files, maker })
    }

    /// Those that are `wanted`, by their paths as people read them.
    fn told(&self, wanted: impl Fn(&Path) -> bool) -> BTreeMap<String, String> {
        let inputs = self.files.iter().filter(|(path, _)| wanted(path));
        inputs.map(|(path, crc)| (path.display().to_string(), crc.clone())).collect()
    }

    /// The row of a run, number `run`, that gave this.
    pub fn row(&self, (run, of): (usize, &Run), (error, result): Given) -> Row {
        let (set, config) = of.config();
        let own = of.stack.inputs();
        let mut inputs = self.told(|path| own.iter().any(|own| own == path));
        let maker = self.maker.iter().filter(|_| is_of_halves(&of.stack));
        inputs.extend(maker.map(|version| (MAKER.to_string(), version.clone())));
        let version = env!("CARGO_PKG_VERSION").to_string();
        Row { run, set, config, inputs, seed: of.stack.seed, version, error, result }
    }
}

/// What that program is called among the inputs.
const MAKER: &str = "mke2fs";

impl<'a> Store<'a> {
    /// The folder `dir` for `runs`. Nothing is written yet.
    ///
    /// # Errors
    /// A file that a run reads cannot be read.
    pub fn new(dir: &Path, runs: &'a [Run], base: &Value, axes: &[Vec<Setting>]) -> Result<Store<'a>> {
        let inputs = Inputs::of(runs)?;
        let values = |axis: &Vec<Setting>| {
            let texts: Vec<String> = axis.iter().map(|setting| setting.text.clone()).collect();
            (axis.first().map(|setting| setting.key.clone()), texts)
        };
        let axes: Vec<_> = axes.iter().map(values).collect();
        let manifest = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "set": axes,
            "stack": base,
            "inputs": inputs.told(|_| true),
        });
        Ok(Store { dir: dir.to_path_buf(), runs, manifest, inputs })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn of_run(&self, run: usize) -> PathBuf {
        self.at(RUNS).join(format!("{run}.json"))
    }

    /// Claims the folder for this grid: alone, or `shared` with others who make single runs of it. A task waits while
    /// another one puts rows together.
    ///
    /// # Errors
    /// It holds another grid, or something else; a grid is made in it (or, if it is to be alone, a task of one); it cannot
    /// be written.
    pub fn claim(&self, shared: bool) -> Result<Claim<'_>> {
        let failed = |path: &Path, why| Error::io(path.display(), why);
        fs::create_dir_all(&self.dir).map_err(|why| failed(&self.dir, why))?;
        self.check_folder()?;
        let how = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let lock = self.lock(LOCK, how)?.ok_or_else(|| {
            Error::InUse(format!(
                "{}: another process is at work on this grid; wait for its end",
                self.dir.display()
            ))
        })?;
        let task = match shared {
            true => self.lock(TASKS, FlockOperation::LockShared)?,
            false => None,
        };
        self.check_manifest()?;
        fs::create_dir_all(self.at(RUNS)).map_err(|why| failed(&self.at(RUNS), why))?;
        Ok(Claim { store: self, _lock: lock, task })
    }

    /// Locks one of the folder's lock files; none if somebody has it who is not waited for.
    ///
    /// # Errors
    /// It cannot be opened, or the file system has no locks.
    fn lock(&self, name: &str, how: FlockOperation) -> Result<Option<File>> {
        let path = self.at(name);
        let failed = |why| Error::io(path.display(), why);
        // NFS locks alone only what is open for writing, and together only what is open for reading.
        let mut options = OpenOptions::new();
        // What a link of this name leads to is nobody's lock.
        options.create(true).read(true).append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(failed)?;
        match flock(&file, how) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(why) => Err(failed(why.into())),
        }
    }

    /// Refuses a folder that holds something that is no grid's: what a grid begins with alone is taken for one's, as long
    /// as no manifest says that all of it is.
    fn check_folder(&self) -> Result<()> {
        let listed = fs::read_dir(&self.dir).map_err(|why| Error::io(self.dir.display(), why))?;
        let names: Vec<_> = listed.flatten().map(|entry| entry.file_name()).collect();
        let begins = |name: &&OsString| {
            *name == LOCK || *name == TASKS || name.as_encoded_bytes().starts_with(MANIFEST.as_bytes())
        };
        let strange = names.iter().find(|name| !begins(name));
        let alone = !names.iter().any(|name| name == MANIFEST);
        match strange.filter(|_| alone) {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "--out {}: the folder holds something else ({}); name an empty or a new one",
                self.dir.display(),
                name.display()
            ))),
        }
    }

    /// Writes which grid this is, or sees whether it is this one.
    fn check_manifest(&self) -> Result<()> {
        let path = self.at(MANIFEST);
        let failed = |why| Error::io(path.display(), why);
        if !path.exists() {
            // By its name the others see that it belongs here.
            let named = tempfile::Builder::new().prefix(MANIFEST).tempfile_in(&self.dir);
            let mut file = named.map_err(failed)?;
            writeln!(file, "{:#}", self.manifest).map_err(failed)?;
            // Of several tasks that begin at once one writes it, and the others compare.
            let _ = file.persist_noclobber(&path);
        }
        let text = io::read_to_string(guard::input(&path)?).map_err(failed)?;
        let there: Value = serde_json::from_str(&text).unwrap_or_default();
        if there == self.manifest {
            return Ok(());
        }
        let (there, here) = (super::flatten(&there), super::flatten(&self.manifest));
        let shown = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
        let keys = here.keys().chain(there.keys());
        let differs = keys.into_iter().find(|key| here.get(*key) != there.get(*key));
        let differs = differs.map_or(String::new(), |key| {
            format!("{key} was {} and is {}", shown(there.get(key)), shown(here.get(key)))
        });
        Err(Error::Mismatch(format!(
            "--out {}: the folder holds the rows of another grid ({differs}); name another folder, or remove this one",
            self.dir.display()
        )))
    }

    /// The row that a run has if it fails in no way that has to do with it.
    fn row(&self, run: usize, given: Given) -> Row {
        self.inputs.row((run, &self.runs[run]), given)
    }

    /// Whether a row is of this run, as it is now.
    fn is_of(&self, row: &Row) -> bool {
        let expected = || Row {
            error: row.error.clone(),
            result: row.result.clone(),
            ..self.row(row.run, (None, Value::Null))
        };
        row.run < self.runs.len() && *row == expected()
    }

    /// The rows that are there, each with its line.
    fn rows(&self, of: Range<usize>) -> BTreeMap<usize, (Row, String)> {
        let mut rows = BTreeMap::new();
        let mut take = |line: String| {
            let row = serde_json::from_str::<Row>(&line)
                .ok()
                .filter(|row| of.contains(&row.run) && self.is_of(row));
            if let Some(row) = row {
                rows.insert(row.run, (row, line));
            }
        };
        if let Ok(file) = guard::input(&self.at(JSON)) {
            BufReader::new(file).lines().map_while(Result::ok).for_each(&mut take);
        }
        for run in of.clone() {
            let text = guard::input(&self.of_run(run)).ok().and_then(|file| io::read_to_string(file).ok());
            text.into_iter().for_each(|text| take(text.trim_end().to_string()));
        }
        rows
    }

    /// Those runs of a range that have no row.
    pub fn todo(&self, of: Range<usize>) -> Vec<usize> {
        let there = self.rows(of.clone());
        of.filter(|run| !there.contains_key(run)).collect()
    }

    /// Keeps the row of a run.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, run: usize, result: Given, took: Duration) -> Result<()> {
        let path = self.of_run(run);
        let failed = |why| Error::io(path.display(), why);
        let text = line(&self.row(run, result))?;
        guard::whole(&path, |file| file.write_all(text.as_bytes()).map_err(failed))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text =
            format!("{}\n", json!({ "run": run, "seconds": took.as_secs_f64(), "host": host, "ended": now }));
        let path = self.at(TIMES);
        guard::log(&path)?.write_all(text.as_bytes()).map_err(|why| Error::io(path.display(), why))
    }
}

/// Whether a file system of two halves is made.
fn is_of_halves(stack: &StackFile) -> bool {
    let kind = stack.fs.as_ref().and_then(|fs| KINDS.find(&fs.kind).ok());
    kind.is_some_and(|kind| kind.lies_on == LiesOn::Halves)
}

fn line(row: &Row) -> Result<String> {
    serde_json::to_string(row).map(|text| text + "\n").map_err(Error::invalid)
}

/// The CRC-32C of a file's bytes.
fn crc_of(path: &Path) -> Result<String> {
    let failed = |why| Error::io(path.display(), why);
    let mut file = File::open(path).map_err(failed)?;
    let (mut piece, mut crc) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut piece).map_err(failed)? {
            0 => return Ok(format!("{crc:08x}")),
            got => crc = crc32c::crc32c_append(crc, &piece[..got]),
        }
    }
}

/// The right to work in a folder.
pub(super) struct Claim<'a> {
    store: &'a Store<'a>,
    /// Keeps the folder for this grid as long as the claim lives.
    _lock: File,
    /// Of a task: keeps the rows from being put together before its own is kept.
    task: Option<File>,
}

impl Claim<'_> {
    /// If all rows are there, puts them together and says how many tell of a failure; of several tasks that shared the
    /// folder the last one does.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn finish(self) -> Result<Option<usize>> {
        let store = self.store;
        let Some(task) = self.task else { return store.put_together() };
        // Each task kept its row before it gives this up, so that the last to do so finds all rows, and finds itself alone.
        drop(task);
        match store.lock(TASKS, FlockOperation::NonBlockingLockExclusive)? {
            Some(_alone) => store.put_together(),
            None => Ok(None),
        }
    }
}

impl Store<'_> {
    /// Puts the rows together if all are there, and says how many tell of a failure. Nobody else may write rows.
    fn put_together(&self) -> Result<Option<usize>> {
        let rows = self.rows(0..self.runs.len());
        if rows.len() < self.runs.len() {
            return Ok(None);
        }
        let mut text = String::new();
        rows.values().for_each(|(_, line)| text.extend([line, "\n"]));
        let rows: Vec<Row> = rows.into_values().map(|(row, _)| row).collect();
        let path = self.at(JSON);
        guard::whole(&path, |file| {
            file.write_all(text.as_bytes()).map_err(|why| Error::io(path.display(), why))
        })?;
        parquet::write_rows(&self.at(PARQUET), &cells_of(&rows).map_err(Error::invalid)?)?;
        self.remove_runs()?;
        Ok(Some(rows.iter().filter(|row| row.error.is_some()).count()))
    }

    /// Takes the rows of single runs away, and their folder if nobody put something else there.
    fn remove_runs(&self) -> Result<()> {
        let runs = self.at(RUNS);
        let failed = |why| Error::io(runs.display(), why);
        let is_own = |name: &OsStr| {
            let name = name.to_string_lossy();
            let number = name.strip_suffix(".json").and_then(|number| number.parse::<usize>().ok());
            number.is_some() || name.starts_with(guard::BESIDE)
        };
        for entry in fs::read_dir(&runs).map_err(failed)?.flatten().filter(|entry| is_own(&entry.file_name()))
        {
            fs::remove_file(entry.path()).map_err(|why| Error::io(entry.path().display(), why))?;
        }
        match fs::remove_dir(&runs) {
            Err(why) if why.kind() != ErrorKind::DirectoryNotEmpty => Err(failed(why)),
            _ => Ok(()),
        }
    }
}
