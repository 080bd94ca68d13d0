//! One simulated client: a program that works in its directory, checks what it reads, and tells the oracle.

mod contents;
mod names;
mod rest;

use super::oracle::Client as Story;
use bimetal::Error;
use bimetal::fs::{Caller, Fallocate, FileSystem, Kind, NewNode, Rename, SetAttr, SetXattr, Trim};
use bimetal::random::Random;
use bimetal::runtime::{Clock, sync::Mutex};
use bimetal::units::Ino;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

/// The stories of all clients; nothing waits while it is locked.
pub type Stories = Arc<parking_lot::Mutex<Vec<Story>>>;

/// What a client may count on.
pub struct World {
    pub fs: Arc<dyn FileSystem>,
    pub hybrid: Arc<bimetal::fs::nfhybrid::NfHybrid>,
    pub clock: Clock,
    pub stories: Stories,
    /// The clients are to end.
    pub stop: AtomicBool,
    /// Something was made to fail: errors are not a surprise.
    pub excused: AtomicBool,
    /// What went wrong.
    pub errors: Mutex<Vec<String>>,
    /// What each client does; empty once it has ended.
    pub doing: parking_lot::Mutex<Vec<&'static str>>,
    /// Contents that do not pack.
    pub noise: bool,
    /// The volume may be full: operations may fail for it, and then have changed nothing.
    pub small: bool,
    /// An fsync is durable on both halves.
    pub both: bool,
}

/// What a tag looks like at an offset.
pub fn pattern(noise: bool, tag: u8, offset: u64, len: u64) -> Vec<u8> {
    if !noise {
        return vec![tag; len as usize];
    }
    let hash = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53) as u8;
    (offset..offset + len).map(|at| tag.wrapping_add(hash(at ^ (at >> 7)))).collect()
}

pub struct Client {
    pub number: usize,
    pub dir: Ino,
    /// Beside it, one of many files that nobody was promised.
    pub crowd: Option<Ino>,
    pub world: Arc<World>,
    pub random: Random,
    /// Longest write, bytes.
    pub longest: u64,
    /// Directories below the own one.
    pub dirs: Vec<Ino>,
    /// A file kept open, whatever becomes of its names.
    pub held: Option<(Ino, usize)>,
}

type Done = Result<(), Error>;

impl Client {
    pub fn run(mut self, steps: usize) {
        self.work(steps);
        if let Some((ino, _)) = self.held.take() {
            self.world.fs.forget(ino, 1);
        }
        self.world.doing.lock()[self.number] = "";
    }

    fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.world.stop.load(Relaxed) {
                return;
            }
            if self.random.chance(0.6) {
                let longest = if self.random.chance(0.1) { 300_000 } else { 6_000 };
                let pause = Duration::from_micros(self.random.below(longest));
                self.world.clock.sleep_until(self.world.clock.now() + pause);
            }
            if let Err(error) = self.step() {
                if !self.world.excused.load(Relaxed) && !self.world.stop.load(Relaxed) {
                    let why = format!("client {}: {error}", self.number);
                    self.world.errors.lock().push(why);
                }
                return;
            }
        }
    }

    fn step(&mut self) -> Done {
        let (doing, step): (_, fn(&mut Client) -> Done) = match self.random.below(164) {
            100..106 => ("link", Client::link),
            106..120 => ("held", Client::hold),
            120..128 => ("look at others", Client::read_other),
            128..134 => ("rewrite", Client::rewrite),
            134..140 => ("allocate", Client::allocate),
            140..144 => ("exchange", Client::exchange),
            144..148 => ("map", Client::map),
            148..150 => ("durability", Client::durability),
            150..154 => ("scrub", Client::scrub),
            154..156 => ("status", Client::status),
            156..160 => ("attributes", Client::attributes),
            160..162 => ("trim", Client::trim),
            162..164 => ("crowd", Client::crowd),
            0..12 => ("create", Client::create),
            12..42 => ("write", Client::write),
            42..62 => ("fsync", Client::fsync),
            62..70 => ("read", Client::read),
            70..76 => ("truncate", Client::truncate),
            76..84 => ("rename", Client::rename),
            84..91 => ("unlink", Client::unlink),
            91..94 => ("punch", Client::punch),
            94..96 => ("fsync of a directory", Client::fsync_dir),
            96..98 => ("chmod", Client::chmod),
            _ => ("replace", Client::replace),
        };
        self.world.doing.lock()[self.number] = doing;
        step(self)
    }

    pub(super) fn story<T>(&self, work: impl FnOnce(&mut Story) -> T) -> T {
        work(&mut self.world.stories.lock()[self.number])
    }

    pub(super) fn pick(&mut self) -> Option<(String, usize)> {
        let names = self.story(|story| story.names().clone());
        let count = names.len() as u64;
        names.into_iter().nth(self.random.below(count) as usize)
    }

    pub(super) fn place<'n>(&self, name: &'n str) -> (Ino, &'n [u8]) {
        match name.split_once('/') {
            Some((dir, leaf)) => (self.dirs[usize::from(dir.as_bytes()[1] - b'0')], leaf.as_bytes()),
            None => (self.dir, name.as_bytes()),
        }
    }

    pub(super) fn lookup(&self, name: &str) -> Result<Ino, Error> {
        let (dir, leaf) = self.place(name);
        self.world.fs.lookup(dir, leaf).map(|attr| attr.ino)
    }

    /// An error for want of space is none where that is to be expected; `undo` takes back what was told.
    pub(super) fn full<T>(
        &self,
        done: Result<T, Error>,
        undo: impl FnOnce(&mut Story),
    ) -> Result<Option<T>, Error> {
        match done {
            Err(Error::NoSpace(_)) if self.world.small => {
                self.story(undo);
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    pub(super) fn with_file<T>(
        &self,
        name: &str,
        work: impl FnOnce(Ino) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let ino = self.lookup(name)?;
        let done = work(ino);
        self.world.fs.forget(ino, 1);
        done
    }

    pub(super) fn now(&self) -> bimetal::time::Time {
        self.world.clock.now()
    }

    pub(super) fn fresh_name(&mut self) -> String {
        let leaf = format!("f{}", self.random.below(12));
        match self.dirs.len() as u64 {
            0 => leaf,
            dirs => match self.random.below(dirs + 2) {
                dir if dir < dirs => format!("d{dir}/{leaf}"),
                _ => leaf,
            },
        }
    }

    pub(super) fn complain(&self, what: String) {
        self.world.errors.lock().push(format!("client {}: {what}", self.number));
    }

    pub(super) fn fsync(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let (version, states) = self.promise_begun(Some(file));
        self.with_file(&name, |ino| self.world.fs.fsync(ino, false)?.get())?;
        self.promised(Some((file, version)), &states);
        Ok(())
    }

    pub(super) fn fsync_dir(&mut self) -> Done {
        let (_, states) = self.promise_begun(None);
        self.world.fs.fsync(self.dir, false)?.get()?;
        self.promised(None, &states);
        Ok(())
    }

    /// What an fsync that begins now is to make durable: of the file, and the states of names that are done.
    pub(super) fn promise_begun(&self, file: Option<usize>) -> (usize, Vec<usize>) {
        let stories = self.world.stories.lock();
        let version = file.map_or(0, |file| stories[self.number].version(file));
        (version, stories.iter().map(Story::last_done_state).collect())
    }

    pub(super) fn promised(&self, file: Option<(usize, usize)>, states: &[usize]) {
        let mut stories = self.world.stories.lock();
        if self.world.both {
            stories[self.number].promise_events();
        }
        if let Some((file, version)) = file {
            stories[self.number].promise_contents(file, version);
        }
        stories.iter_mut().zip(states).for_each(|(story, state)| story.promise_names(*state));
    }
}
