//! A FAT volume that calls are made on. The library's volume cannot leave its thread, so it belongs to a task of its own:
//! one call at a time is laid before it, and whoever calls waits until the sectors are written.

use super::tree::{Contents, Target};
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::{Error, Result};
use bimetal_fat::Volume;
use bimetal_trace::calls::{Deed, Place};
use serde_json::{Value, json};
use std::sync::Arc;

/// The most bytes read at once.
const READ_BYTES: u64 = 1 << 20;

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

/// Where jobs and answers change hands.
#[derive(Default)]
struct Desk {
    state: Mutex<OnDesk>,
    changed: Condvar,
}

#[derive(Default)]
struct OnDesk {
    /// Somebody's job is being done.
    busy: bool,
    ended: bool,
    job: Option<Job>,
    answer: Option<Answer>,
}

impl Desk {
    /// Lays a job before the volume when it is this caller's turn, and waits for the answer.
    fn ask(&self, job: Job) -> Answer {
        let mut desk = self.state.lock();
        while desk.busy {
            self.changed.wait(&mut desk);
        }
        if desk.ended {
            return Err(Error::Stale);
        }
        (desk.busy, desk.job) = (true, Some(job));
        self.changed.notify_all();
        loop {
            if let Some(answer) = desk.answer.take() {
                desk.busy = false;
                self.changed.notify_all();
                return answer;
            }
            self.changed.wait(&mut desk);
        }
    }

    fn next_job(&self) -> Job {
        let mut desk = self.state.lock();
        loop {
            match desk.job.take() {
                Some(job) => return job,
                None => self.changed.wait(&mut desk),
            }
        }
    }

    fn answer(&self, answer: Answer, ended: bool) {
        let mut desk = self.state.lock();
        (desk.answer, desk.ended) = (Some(answer), ended);
        self.changed.notify_all();
    }
}

/// A volume that a task has.
pub(crate) struct FatTree {
    desk: Arc<Desk>,
}

impl FatTree {
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
        Ok(FatTree { desk })
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
        // A name that is taken is replaced, as rename(2) does.
        Deed::Rename(_) => match volume.rename(path, to) {
            Err(Error::Exists) => {
                volume.remove(to)?;
                volume.rename(path, to)?;
            }
            done => done?,
        },
        Deed::List => drop(volume.list(path)?),
        Deed::Stat | Deed::SetAttributes => drop(volume.open_file(path)?.len()?),
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

/// A path as the volume takes it; the root is empty.
fn path_of(places: &[Place], path: u32) -> String {
    let (mut names, mut at) = (Vec::new(), path);
    while at != 0 {
        names.push(String::from_utf8_lossy(&places[at as usize].name));
        at = places[at as usize].parent;
    }
    names.reverse();
    names.join("/")
}

impl Target for FatTree {
    fn call(&self, places: &[Place], path: u32, deed: Deed, contents: &Contents) -> Result<u64> {
        let to = match deed {
            Deed::Rename(to) => path_of(places, to),
            _ => String::new(),
        };
        let mut data = Vec::new();
        if let Deed::Write(offset, len) = deed {
            while (data.len() as u64) < len {
                let done = data.len() as u64;
                data.extend_from_slice(contents(offset + done, (len - done) as usize));
            }
        }
        self.desk.ask(Job::Call { path: path_of(places, path), to, deed, data }).map(|(bytes, _)| bytes)
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
