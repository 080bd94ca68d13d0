//! One simulated client: a program that works in its directory, checks what it reads, and tells the oracle.

use super::oracle::Client as Story;
use bimetal::Error;
use bimetal::fs::{Caller, Fallocate, FileSystem, Kind, NewNode, Rename, SetAttr};
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
}

pub struct Client {
    pub number: usize,
    pub dir: Ino,
    pub world: Arc<World>,
    pub random: Random,
    /// Longest write, bytes.
    pub longest: u64,
}

type Done = Result<(), Error>;

impl Client {
    pub fn run(mut self, steps: usize) {
        self.work(steps);
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
        let (doing, step): (_, fn(&mut Client) -> Done) = match self.random.below(100) {
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

    fn story<T>(&self, work: impl FnOnce(&mut Story) -> T) -> T {
        work(&mut self.world.stories.lock()[self.number])
    }

    fn pick(&mut self) -> Option<(String, usize)> {
        let names = self.story(|story| story.names().clone());
        let count = names.len() as u64;
        names.into_iter().nth(self.random.below(count) as usize)
    }

    fn lookup(&self, name: &str) -> Result<Ino, Error> {
        self.world.fs.lookup(self.dir, name.as_bytes()).map(|attr| attr.ino)
    }

    fn with_file<T>(&self, name: &str, work: impl FnOnce(Ino) -> Result<T, Error>) -> Result<T, Error> {
        let ino = self.lookup(name)?;
        let done = work(ino);
        self.world.fs.forget(ino, 1);
        done
    }

    fn now(&self) -> bimetal::time::Time {
        self.world.clock.now()
    }

    fn fresh_name(&mut self) -> String {
        format!("f{}", self.random.below(12))
    }

    fn create(&mut self) -> Done {
        let name = self.fresh_name();
        let now = self.now();
        let free = self.story(|story| {
            let free = !story.names().contains_key(&name);
            if free {
                let file = story.new_file(now);
                story.begin_names(|names| {
                    names.insert(name.clone(), file);
                });
            }
            free
        });
        if !free {
            return Ok(());
        }
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let attr = self.world.fs.create(&CALLER, self.dir, name.as_bytes(), &node)?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        self.world.fs.forget(attr.ino, 1);
        Ok(())
    }

    fn write(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return self.create() };
        let len_now = self.story(|story| story.contents(file).len() as u64);
        let offset = match self.random.below(4) {
            0 => len_now,
            1 => self.random.below(len_now + 1),
            2 => self.random.below(len_now + 1) / 4096 * 4096,
            _ => self.random.below(30_000),
        };
        let len = match self.random.below(5) {
            0 => 1 + self.random.below(300),
            1 | 2 => 4096,
            3 => 1 + self.random.below(20_000),
            _ => 1 + self.random.below(self.longest),
        };
        if offset + len > 3 << 20 {
            return Ok(());
        }
        let data = self.story(|story| {
            let data = vec![story.next_tag(); len as usize];
            let mut contents = story.contents(file).to_vec();
            contents.resize(contents.len().max((offset + len) as usize), 0);
            contents[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            story.begin_contents(file, contents);
            data
        });
        self.with_file(&name, |ino| self.world.fs.write(ino, offset, &data, false)?.get())?;
        self.contents_done(file);
        Ok(())
    }

    fn contents_done(&self, file: usize) {
        let now = self.now();
        self.story(|story| story.contents_done(file, now));
    }

    fn fsync(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let (version, states) = self.promise_begun(Some(file));
        self.with_file(&name, |ino| self.world.fs.fsync(ino, false)?.get())?;
        self.promised(Some((file, version)), &states);
        Ok(())
    }

    fn fsync_dir(&mut self) -> Done {
        let (_, states) = self.promise_begun(None);
        self.world.fs.fsync(self.dir, false)?.get()?;
        self.promised(None, &states);
        Ok(())
    }

    /// What an fsync that begins now is to make durable: of the file, and the states of names that are done.
    fn promise_begun(&self, file: Option<usize>) -> (usize, Vec<usize>) {
        let stories = self.world.stories.lock();
        let version = file.map_or(0, |file| stories[self.number].version(file));
        (version, stories.iter().map(Story::last_done_state).collect())
    }

    fn promised(&self, file: Option<(usize, usize)>, states: &[usize]) {
        let mut stories = self.world.stories.lock();
        if let Some((file, version)) = file {
            stories[self.number].promise_contents(file, version);
        }
        stories.iter_mut().zip(states).for_each(|(story, state)| story.promise_names(*state));
    }

    fn read(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let expected = self.story(|story| story.contents(file).to_vec());
        let offset = self.random.below(expected.len() as u64 + 1);
        let len = 1 + self.random.below(100_000);
        let found =
            self.with_file(&name, |ino| self.world.fs.read(ino, offset, len as usize)?.get())?.concat();
        let end = (offset + len).min(expected.len() as u64);
        let part = &expected[offset as usize..end as usize];
        if found != part {
            let at = found.iter().zip(part).position(|(a, b)| a != b).unwrap_or(found.len().min(part.len()));
            let why = format!(
                "client {}: {name} (file {file}) read at {offset}: {} bytes for {}, byte {at} is {:?} and was {:?}",
                self.number,
                found.len(),
                part.len(),
                found.get(at),
                part.get(at)
            );
            self.world.errors.lock().push(why);
        }
        Ok(())
    }

    fn truncate(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let len = self.story(|story| story.contents(file).len() as u64);
        let size = if self.random.chance(0.3) { 0 } else { self.random.below(len * 5 / 4 + 10) };
        self.story(|story| {
            let mut contents = story.contents(file).to_vec();
            contents.resize(size as usize, 0);
            story.begin_contents(file, contents);
        });
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.with_file(&name, |ino| self.world.fs.setattr(ino, &set))?;
        self.contents_done(file);
        Ok(())
    }

    fn punch(&mut self) -> Done {
        let Some((name, file)) = self.pick() else { return Ok(()) };
        let len = self.story(|story| story.contents(file).len() as u64);
        let (offset, count) = (self.random.below(len + 1), 1 + self.random.below(30_000));
        self.story(|story| {
            let mut contents = story.contents(file).to_vec();
            let end = ((offset + count) as usize).min(contents.len());
            contents[offset as usize..end].fill(0);
            story.begin_contents(file, contents);
        });
        self.with_file(&name, |ino| self.world.fs.fallocate(ino, offset, count, Fallocate::Punch))?;
        self.contents_done(file);
        Ok(())
    }

    fn rename(&mut self) -> Done {
        let Some((from, file)) = self.pick() else { return Ok(()) };
        let to = self.fresh_name();
        if from == to {
            return Ok(());
        }
        self.story(|story| {
            let over = story.names().contains_key(&to);
            story.begin_names(|names| {
                names.remove(&from);
                names.insert(to.clone(), file);
            });
            if over {
                story.carry(file);
            }
        });
        self.world.fs.rename(self.dir, from.as_bytes(), self.dir, to.as_bytes(), Rename::Replace)?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        Ok(())
    }

    fn unlink(&mut self) -> Done {
        let Some((name, _)) = self.pick() else { return Ok(()) };
        self.unlink_name(&name)
    }

    fn unlink_name(&self, name: &str) -> Done {
        self.story(|story| {
            story.begin_names(|names| {
                names.remove(name);
            })
        });
        self.world.fs.unlink(self.dir, name.as_bytes())?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        Ok(())
    }

    fn chmod(&mut self) -> Done {
        let Some((name, _)) = self.pick() else { return Ok(()) };
        let set = SetAttr { perm: Some(0o600 + self.random.below(0o100) as u16), ..SetAttr::default() };
        self.with_file(&name, |ino| self.world.fs.setattr(ino, &set)).map(drop)
    }

    /// As editors save: a new file, written, perhaps synced, renamed over the old one.
    fn replace(&mut self) -> Done {
        let Some((to, _)) = self.pick() else { return Ok(()) };
        let from = "saved".to_string();
        if to == from {
            return Ok(());
        }
        if self.story(|story| story.names().contains_key(&from)) {
            // Left from before a cut.
            return self.unlink_name(&from);
        }
        let now = self.now();
        let (file, data) = self.story(|story| {
            let file = story.new_file(now);
            story.begin_names(|names| {
                names.insert(from.clone(), file);
            });
            (file, vec![story.next_tag(); 9_000])
        });
        let node = NewNode { kind: Kind::File, perm: 0o644, rdev: 0, target: b"" };
        let attr = self.world.fs.create(&CALLER, self.dir, from.as_bytes(), &node)?;
        let now = self.now();
        self.story(|story| {
            story.names_done(now);
            story.begin_contents(file, data.clone());
        });
        self.world.fs.write(attr.ino, 0, &data, false)?.get()?;
        self.contents_done(file);
        if self.random.chance(0.5) {
            let (version, states) = self.promise_begun(Some(file));
            self.world.fs.fsync(attr.ino, false)?.get()?;
            self.promised(Some((file, version)), &states);
        }
        self.world.fs.forget(attr.ino, 1);
        self.story(|story| {
            story.begin_names(|names| {
                names.remove(&from);
                names.insert(to.clone(), file);
            });
            story.carry(file);
        });
        self.world.fs.rename(self.dir, from.as_bytes(), self.dir, to.as_bytes(), Rename::Replace)?;
        let now = self.now();
        self.story(|story| story.names_done(now));
        Ok(())
    }
}
