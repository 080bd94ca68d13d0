//! A FAT volume that calls are made on. The library's volume cannot leave its thread, so it belongs to a task of its own:
//! one call at a time is laid before it, and whoever calls waits until the sectors are written.

use super::tree::{Contents, Target};
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::{Error, Result};
use bimetal_fat::{FILE_BYTES_MAX, Volume};
use bimetal_trace::calls::{Deed, Place, names_to};
use rustc_hash::FxHashSet;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most bytes read at once.
const READ_BYTES: u64 = 1 << 20;

/// The most bytes laid before the volume at once.
const WRITE_BYTES: u64 = 1 << 20;

/// What the volume is to do.
enum Job {
    /// A call on a path; another path and the bytes to write, where it has some.
    Call {
        path: String,
        to: String,
        deed: Deed,
        data: Vec<u8>,
    },
    Sync,
    Status,
    Close,
}

/// The bytes that were moved, or the counters.
type Answer = Result<(u64, Value)>;

/// Where jobs and answers change hands. Each condition has one who waits for it, but that of the turns, of which one is
/// woken for each turn that ends: so many processes cost no more switches each than few.
#[derive(Default)]
struct Desk {
    state: Mutex<OnDesk>,
    turn: Condvar,
    asked: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct OnDesk {
    /// Somebody has the turn.
    busy: bool,
    ended: bool,
    job: Option<Job>,
    answer: Option<Answer>,
}

/// The right to lay jobs before the volume, one after the other.
struct Turn<'d>(&'d Desk);

impl Desk {
    /// Waits until nobody else has the turn.
    fn turn(&self) -> Result<Turn<'_>> {
        let mut desk = self.state.lock();
        while desk.busy {
            self.turn.wait(&mut desk);
        }
        if desk.ended {
            self.turn.notify_one();
            return Err(Error::Stale);
        }
        desk.busy = true;
        Ok(Turn(self))
    }

    /// Lays one job before the volume, and waits for the answer.
    fn ask(&self, job: Job) -> Answer {
        self.turn()?.ask(job)
    }

    fn next_job(&self) -> Job {
        let mut desk = self.state.lock();
        loop {
            match desk.job.take() {
                Some(job) => return job,
                None => self.asked.wait(&mut desk),
            }
        }
    }

    fn answer(&self, answer: Answer, ended: bool) {
        let mut desk = self.state.lock();
        (desk.answer, desk.ended) = (Some(answer), ended);
        self.answered.notify_one();
    }
}

impl Turn<'_> {
    fn ask(&self, job: Job) -> Answer {
        let mut desk = self.0.state.lock();
        if desk.ended {
            return Err(Error::Stale);
        }
        desk.job = Some(job);
        self.0.asked.notify_one();
        loop {
            match desk.answer.take() {
                Some(answer) => return answer,
                None => self.0.answered.wait(&mut desk),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.turn.notify_one();
    }
}

/// A volume that a task has.
pub(crate) struct FatTree {
    desk: Arc<Desk>,
    /// Files that have no name for their callers and are open: on the volume they have one, as NFS gives it.
    open: parking_lot::Mutex<FxHashSet<u32>>,
}

impl FatTree {
    /// A path as the volume takes it; the root is empty.
    fn path(&self, places: &[Place], path: u32) -> String {
        if self.open.lock().contains(&path) {
            return name_of_open(path);
        }
        let names: Vec<_> = names_to(places, path).into_iter().map(String::from_utf8_lossy).collect();
        names.join("/")
    }

    /// Writes in parts, which no other call comes between.
    fn write(&self, path: &str, (offset, len): (u64, u64), contents: &Contents) -> Result<u64> {
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::TooLarge);
        }
        let turn = self.desk.turn()?;
        let mut done = 0;
        while done < len {
            let (at, most) = (offset + done, (len - done).min(WRITE_BYTES));
            let mut data = Vec::with_capacity(most as usize);
            while (data.len() as u64) < most {
                let had = data.len() as u64;
                data.extend_from_slice(contents(at + had, (most - had) as usize));
            }
            let (path, to, deed) = (path.to_string(), String::new(), Deed::Write(at, most));
            done += turn.ask(Job::Call { path, to, deed, data })?.0;
        }
        Ok(done)
    }

    /// Over the volume that `open` opens.
    ///
    /// # Errors
    /// As `open`'s.
    pub fn new(clock: &Clock, open: impl FnOnce() -> Result<Volume> + Send + 'static) -> Result<FatTree> {
        let desk = Arc::new(Desk::default());
        let (own, waits) = (desk.clone(), clock.clone());
        let body = move || {
            // The first job asks for the counters only.
            let first = own.next_job();
            match open() {
                Ok(volume) => serve_all(&own, &waits, volume, first),
                Err(why) => own.answer(Err(why), true),
            }
        };
        clock.spawn("fat", Box::new(body))?;
        desk.ask(Job::Status)?;
        Ok(FatTree { desk, open: parking_lot::Mutex::default() })
    }
}

impl Drop for FatTree {
    fn drop(&mut self) {
        // Closed already, or given up with what it was for.
        let _ = self.desk.ask(Job::Close);
    }
}

fn serve_all(desk: &Desk, clock: &Clock, volume: Volume, first: Job) {
    let mut job = first;
    loop {
        volume.wait_until(clock.now());
        if matches!(job, Job::Close) {
            let closed = volume.close();
            if let Ok(at) = &closed {
                clock.sleep_until(*at);
            }
            return desk.answer(closed.map(|_| (0, Value::Null)), true);
        }
        let answer = serve(&volume, job);
        clock.sleep_until(volume.now());
        desk.answer(answer, false);
        job = desk.next_job();
    }
}

fn serve(volume: &Volume, job: Job) -> Answer {
    match job {
        Job::Call { path, to, deed, data } => {
            call(volume, (&path, &to), deed, &data).map(|n| (n, Value::Null))
        }
        Job::Status => {
            let (counts, space) = (volume.counts(), volume.space()?);
            let clusters =
                json!({ "bytes": space.cluster_bytes, "all": space.clusters, "free": space.free_clusters });
            Ok((0, json!({ "type": "fat", "counts": counts, "clusters": clusters })))
        }
        Job::Sync | Job::Close => volume.sync().map(|()| (0, Value::Null)),
    }
}

fn call(volume: &Volume, (path, to): (&str, &str), deed: Deed, data: &[u8]) -> Result<u64> {
    match deed {
        Deed::Create => drop(volume.create(path)?),
        Deed::Mkdir => volume.make_dir(path)?,
        Deed::Read(offset, len) => return read(volume, path, offset, len),
        Deed::Write(offset, _) => {
            volume.open_file(path)?.write_at(offset, data)?;
            return Ok(data.len() as u64);
        }
        Deed::Fsync => volume.sync()?,
        Deed::Truncate(size) => volume.open_file(path)?.truncate(size)?,
        Deed::Unlink | Deed::Rmdir => volume.remove(path)?,
        Deed::UnlinkOpen(_) => volume.rename(path, to)?,
        // A name that is taken is replaced, as rename(2) does.
        Deed::Rename(_) => match volume.rename(path, to) {
            Err(Error::Exists) => {
                volume.remove(to)?;
                volume.rename(path, to)?;
            }
            done => done?,
        },
        Deed::List => drop(volume.list(path)?),
        Deed::Stat | Deed::SetAttributes if path.is_empty() => {}
        Deed::Stat | Deed::SetAttributes => match volume.open_file(path) {
            Err(Error::IsDir) => {}
            file => drop(file?.len()?),
        },
        Deed::Symlink(_)
        | Deed::Allocate { .. }
        | Deed::Punch(..)
        | Deed::Zero { .. }
        | Deed::Link(_)
        | Deed::Readlink => return Err(Error::NotSupported),
    }
    Ok(0)
}

fn read(volume: &Volume, path: &str, offset: u64, len: u64) -> Result<u64> {
    let mut file = volume.open_file(path)?;
    let mut buffer = vec![0; len.min(READ_BYTES) as usize];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(READ_BYTES) as usize;
        match file.read_at(offset + done, &mut buffer[..part])? {
            0 => break,
            read => done += read as u64,
        }
    }
    Ok(done)
}

/// What a file without a name is called on the volume.
fn name_of_open(path: u32) -> String {
    format!("~open{path}.tmp")
}

impl Target for FatTree {
    fn call(&self, places: &[Place], path: u32, deed: Deed, contents: &Contents) -> Result<u64> {
        let to = match deed {
            Deed::Rename(to) => self.path(places, to),
            Deed::UnlinkOpen(open) => name_of_open(open),
            _ => String::new(),
        };
        let path = self.path(places, path);
        if let Deed::Write(offset, len) = deed {
            return self.write(&path, (offset, len), contents);
        }
        let (bytes, _) = self.desk.ask(Job::Call { path, to, deed, data: Vec::new() })?;
        if let Deed::UnlinkOpen(open) = deed {
            self.open.lock().insert(open);
        }
        Ok(bytes)
    }

    fn release(&self, path: u32) -> Result<()> {
        if !self.open.lock().remove(&path) {
            return Ok(());
        }
        let (path, to) = (name_of_open(path), String::new());
        self.desk.ask(Job::Call { path, to, deed: Deed::Unlink, data: Vec::new() }).map(drop)
    }

    fn settle(&self) {}

    fn sync(&self) -> Result<()> {
        self.desk.ask(Job::Sync).map(drop)
    }

    fn close(&self) -> Result<()> {
        self.desk.ask(Job::Close).map(drop)
    }

    fn status(&self) -> Result<Value> {
        self.desk.ask(Job::Status).map(|(_, status)| status)
    }
}
