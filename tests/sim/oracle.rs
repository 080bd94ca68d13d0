//! What each client did, and so what a file system may hold after a cut of the power.
//!
//! Each client has a directory of its own. Of it the oracle keeps every tree of names there was, and of each file every
//! contents, each with the instants it was begun and done. A cut may leave:
//!
//! - of the names the tree after some operation that had begun, none older than what a finished fsync (anyone's:
//!   the log holds all operations so far) or the lag covers;
//! - of a file's bytes, each one that this byte had, since the contents that were promised last; a size it had since then.
//!   A file that was renamed over another has the contents it had then, or later ones, if the rename is there.

use bimetal::time::Time;
use std::collections::BTreeMap;

/// A file, whatever its name.
pub type FileId = usize;
/// The names of a client's directory.
pub type Names = BTreeMap<String, FileId>;

#[derive(Clone, Debug)]
struct At<T> {
    what: T,
    /// `None` while the operation is under way, or ended with an error.
    done: Option<Time>,
}

#[derive(Clone, Debug)]
struct File {
    versions: Vec<At<Vec<u8>>>,
    /// The oldest version it may have.
    floor: usize,
    /// If the names are those of state `.0` or later, the version is at least `.1`.
    carried: Vec<(usize, usize)>,
}

/// What one client did.
#[derive(Clone, Debug)]
pub struct Client {
    states: Vec<At<Names>>,
    floor: usize,
    files: Vec<File>,
    tag: u8,
    /// What was done, in order: after each the state of names, and which file got which version.
    events: Vec<Event>,
    /// So many of them are on the disk for sure.
    events_floor: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Names(usize),
    Contents(FileId, usize),
}

impl Client {
    pub fn new() -> Client {
        Client {
            states: vec![At { what: Names::new(), done: Some(Time::ZERO) }],
            floor: 0,
            files: Vec::new(),
            tag: 0,
            events: Vec::new(),
            events_floor: 0,
        }
    }

    pub fn names(&self) -> &Names {
        &self.states[self.states.len() - 1].what
    }

    pub fn contents(&self, file: FileId) -> &[u8] {
        let versions = &self.files[file].versions;
        &versions[versions.len() - 1].what
    }

    /// A byte that the last writes did not use.
    pub fn next_tag(&mut self) -> u8 {
        self.tag = self.tag % 251 + 1;
        self.tag
    }

    /// A change of names begins.
    pub fn begin_names(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names().clone();
        change(&mut names);
        self.states.push(At { what: names, done: None });
        self.events.push(Event::Names(self.states.len() - 1));
    }

    /// The change of names that was begun last did not happen.
    pub fn undo_names(&mut self) {
        self.states.pop();
        let gone = self.states.len();
        self.files.iter_mut().for_each(|file| file.carried.retain(|(state, _)| *state < gone));
        self.events.pop();
    }

    /// The change of contents that was begun last did not happen.
    pub fn undo_contents(&mut self, file: FileId) {
        self.files[file].versions.pop();
        self.events.pop();
    }

    pub fn states(&self) -> usize {
        self.states.len()
    }

    pub fn last_done_version(&self, file: FileId) -> usize {
        self.files[file].versions.iter().rposition(|version| version.done.is_some()).unwrap_or(0)
    }

    /// All that was done is durable on both halves.
    pub fn promise_events(&mut self) {
        let done = |event: &Event| match *event {
            Event::Names(state) => self.states[state].done.is_some(),
            Event::Contents(file, version) => self.files[file].versions[version].done.is_some(),
        };
        self.events_floor = self.events.iter().rposition(done).map_or(0, |at| at + 1);
    }

    /// Everything that was done is promised.
    pub fn promise_all(&mut self) {
        self.floor = self.last_done_state();
        for at in 0..self.files.len() {
            self.files[at].floor = self.last_done_version(at);
        }
        self.promise_events();
    }

    /// What is wrong with a read that began when `first` was the file's version.
    pub fn objection_to_read(
        &self,
        file: FileId,
        first: usize,
        offset: u64,
        len: u64,
        found: &[u8],
    ) -> Option<String> {
        let legal = &self.files[file].versions[first..];
        let ends =
            |version: &At<Vec<u8>>| (version.what.len() as u64).saturating_sub(offset).min(len) as usize;
        let (least, most) =
            (legal.iter().map(ends).min().unwrap_or(0), legal.iter().map(ends).max().unwrap_or(0));
        if found.len() < least || found.len() > most {
            return Some(format!("{} bytes, not {least} to {most}", found.len()));
        }
        let byte_of = |version: &At<Vec<u8>>, at: usize| version.what.get(at).copied().unwrap_or(0);
        let wrong = (0..found.len())
            .find(|&at| legal.iter().all(|version| byte_of(version, at + offset as usize) != found[at]))?;
        let may: Vec<u8> = legal.iter().map(|version| byte_of(version, wrong + offset as usize)).collect();
        Some(format!("byte {wrong} of {} is {}, may be {may:?}", found.len(), found[wrong]))
    }

    /// The disk alone is exactly what it was after some operation, none before what it must have.
    pub fn objection_to_moment(&self, found: &BTreeMap<String, Vec<u8>>, covered: Time) -> Option<String> {
        let last_due = self.events.iter().rposition(|event| {
            let done = match *event {
                Event::Names(state) => self.states[state].done,
                Event::Contents(file, version) => self.files[file].versions[version].done,
            };
            done.is_some_and(|done| done <= covered)
        });
        let floor = last_due.map_or(0, |at| at + 1).max(self.events_floor);
        let mut closest = None;
        for count in (0..=self.events.len()).rev() {
            let (mut state, mut versions) = (0, BTreeMap::new());
            for event in &self.events[..count] {
                match *event {
                    Event::Names(now) => state = now,
                    Event::Contents(file, version) => drop(versions.insert(file, version)),
                }
            }
            let names = &self.states[state].what;
            if !names.keys().eq(found.keys()) {
                continue;
            }
            let wrong = names.iter().find(|(name, file)| {
                let version = versions.get(*file).copied().unwrap_or(0);
                self.files[**file].versions[version].what != found[*name]
            });
            match wrong {
                None if count >= floor => return None,
                None => {
                    return Some(format!(
                        "it is as of event {count}, must be {floor} of {}",
                        self.events.len()
                    ));
                }
                Some((name, file)) => {
                    let version = versions.get(file).copied().unwrap_or(0);
                    closest.get_or_insert_with(|| {
                        let was = &self.files[*file].versions[version].what;
                        let at = was.iter().zip(&found[name]).position(|(a, b)| a != b);
                        format!(
                            "event {count}: {name} (file {file}) version {version}: {} bytes, found {}, differ at {at:?}",
                            was.len(),
                            found[name].len()
                        )
                    });
                }
            }
        }
        Some(format!("no moment of {} fits (floor {floor}); {closest:?}", self.events.len()))
    }

    pub fn names_done(&mut self, now: Time) {
        self.states.last_mut().unwrap().done = Some(now);
    }

    /// A new, empty file, to be named.
    pub fn new_file(&mut self, now: Time) -> FileId {
        self.files.push(File {
            versions: vec![At { what: Vec::new(), done: Some(now) }],
            floor: 0,
            carried: Vec::new(),
        });
        self.files.len() - 1
    }

    pub fn begin_contents(&mut self, file: FileId, contents: Vec<u8>) {
        self.files[file].versions.push(At { what: contents, done: None });
        let version = self.files[file].versions.len() - 1;
        self.events.push(Event::Contents(file, version));
    }

    pub fn contents_done(&mut self, file: FileId, now: Time) {
        self.files[file].versions.last_mut().unwrap().done = Some(now);
    }

    /// The file goes over another's name with the change of names that has just begun: old or new, nothing between.
    pub fn carry(&mut self, file: FileId) {
        let state = self.states.len() - 1;
        let version = self.files[file].versions.len() - 1;
        self.files[file].carried.push((state, version));
    }

    pub fn version(&self, file: FileId) -> usize {
        self.files[file].versions.len() - 1
    }

    /// The last state of names whose operation is done.
    pub fn last_done_state(&self) -> usize {
        self.states.iter().rposition(|state| state.done.is_some()).unwrap_or(0)
    }

    pub fn promise_contents(&mut self, file: FileId, version: usize) {
        let floor = &mut self.files[file].floor;
        *floor = (*floor).max(version);
    }

    pub fn promise_names(&mut self, state: usize) {
        self.floor = self.floor.max(state);
    }

    /// Everything that was done by `instant` is promised: it is on the disk.
    pub fn promise_until(&mut self, instant: Time) {
        let last =
            |list: &[Option<Time>]| list.iter().rposition(|done| done.is_some_and(|done| done <= instant));
        let states: Vec<_> = self.states.iter().map(|state| state.done).collect();
        self.floor = self.floor.max(last(&states).unwrap_or(0));
        for file in &mut self.files {
            let versions: Vec<_> = file.versions.iter().map(|version| version.done).collect();
            file.floor = file.floor.max(last(&versions).unwrap_or(0));
        }
    }

    /// The same story without what only the SSD's log promised.
    pub fn as_of_the_disk(&self) -> Client {
        let mut story = self.clone();
        story.floor = 0;
        for file in &mut story.files {
            file.floor = 0;
        }
        story
    }

    /// What is wrong with what was found; `None` if it may be so.
    pub fn objection(&self, found: &BTreeMap<String, Vec<u8>>) -> Option<String> {
        let mut why = String::from("no tree of names fits");
        for state in (self.floor..self.states.len()).rev() {
            let names = &self.states[state].what;
            if !names.keys().eq(found.keys()) {
                continue;
            }
            let wrong = names.iter().find_map(|(name, &file)| {
                self.objection_to(state, file, &found[name]).map(|why| format!("{name} (file {file}): {why}"))
            });
            match wrong {
                None => return None,
                Some(wrong) => why = format!("names as of state {state}; {wrong}"),
            }
        }
        let (first, last) = (&self.states[self.floor].what, self.names());
        let found: Vec<_> = found.keys().collect();
        Some(format!(
            "{why}\n  promised state {}: {:?}\n  last state {}: {:?}\n  found: {found:?}",
            self.floor,
            first.keys().collect::<Vec<_>>(),
            self.states.len() - 1,
            last.keys().collect::<Vec<_>>()
        ))
    }

    fn objection_to(&self, state: usize, file: FileId, found: &[u8]) -> Option<String> {
        let file = &self.files[file];
        let carried =
            file.carried.iter().filter(|(from, _)| state >= *from).map(|(_, version)| *version).max();
        let floor = file.floor.max(carried.unwrap_or(0));
        let legal = &file.versions[floor..];
        let lens = legal.iter().map(|version| version.what.len());
        let (least, most) = (lens.clone().min().unwrap(), lens.max().unwrap());
        if found.len() < least || found.len() > most {
            return Some(format!("{} bytes, not {least} to {most} (version {floor} on)", found.len()));
        }
        if legal.len() == 1 {
            let wrong = (0..found.len()).find(|&at| found[at] != legal[0].what[at]);
            return wrong.map(|at| {
                format!(
                    "byte {at} of {} is {}, was promised as {}",
                    found.len(),
                    found[at],
                    legal[0].what[at]
                )
            });
        }
        let byte_of = |version: &At<Vec<u8>>, at: usize| version.what.get(at).copied().unwrap_or(0);
        let wrong =
            (0..found.len()).find(|&at| legal.iter().all(|version| byte_of(version, at) != found[at]));
        wrong.map(|at| {
            let may: Vec<u8> = legal.iter().map(|version| byte_of(version, at)).collect();
            format!("byte {at} of {} is {}, may be {may:?} (version {floor} on)", found.len(), found[at])
        })
    }

    /// Goes on from what was found after a mount: that is on the disk now.
    pub fn go_on_from(
        &mut self,
        found: &BTreeMap<String, Vec<u8>>,
        inodes: &BTreeMap<String, u64>,
        now: Time,
    ) {
        let tag = self.tag;
        *self = Client::new();
        self.tag = tag;
        let mut names = Names::new();
        let mut known = BTreeMap::new();
        for (name, contents) in found {
            let file = *known.entry(inodes[name]).or_insert_with(|| {
                let file = self.new_file(now);
                self.files[file].versions[0].what = contents.clone();
                file
            });
            names.insert(name.clone(), file);
        }
        self.states[0] = At { what: names, done: Some(now) };
    }
}
