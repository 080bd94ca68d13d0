//! System calls as programs made them: by process, on paths, in the order of the trace.
//!
//! They come from a recording (`NAME.csv`, with its list of paths, as `bimetal record` writes it), from strace's output, or
//! from any trace of files, generated or not: then each unit is a file in the directory of its process. What a trace
//! uses without making it was there before ([`Workload::initial`]), as large as what is read of it. Calls that failed,
//! and those that ask nothing of a file system (`lseek`, `close`, `mmap`), are left out, and counted by name
//! ([`Workload::left_out`]). What is used after its name went is followed: a file that was moved to its new path, one that
//! was removed to a path that has no name ([`Deed::UnlinkOpen`]). Memory: 40 bytes a call.

use super::fields::{Fields, Wrong};
use super::formats::syscall::{HEADER, parse};
use super::input::Input;
use super::objects::each_line;
use super::source::list_of_paths;
use super::strace::{self, Strace};
use super::unlinked::{Gone, Unlinked};
use super::{Op, ReadOptions, Source};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A path of more directories is not played: some file systems look for each name from the root on.
const LEVELS_MAX: usize = 4096;
/// No file has a byte from here on: offsets are signed.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// More calls are not held in memory: 40 bytes each.
const CALLS_MAX: usize = 1 << 26;

/// What is asked of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Make a file.
    Create,
    /// Make a directory.
    Mkdir,
    /// Make a symbolic link of so many bytes.
    Symlink(u64),
    /// Read a range: first byte, bytes.
    Read(u64, u64),
    /// Write a range.
    Write(u64, u64),
    /// Make the file durable.
    Fsync,
    /// Cut or extend it to this size.
    Truncate(u64),
    /// Give a range space.
    Allocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The file does not become longer.
        keep_size: bool,
    },
    /// Give a range's space back.
    Punch(u64, u64),
    /// Make a range zeros that have space.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The file does not become longer.
        keep_size: bool,
    },
    /// Remove a name.
    Unlink,
    /// Remove a name; the file is used further, as this path, until the last call on it ([`Workload::last_uses`]).
    UnlinkOpen(u32),
    /// Remove a directory.
    Rmdir,
    /// Move the name to this path.
    Rename(u32),
    /// Give it this path, too.
    Link(u32),
    /// List a directory.
    List,
    /// Look it up.
    Stat,
    /// Change its mode, owner or times.
    SetAttributes,
    /// Where it points.
    Readlink,
}

impl Deed {
    /// The names of all, in the order of [`Deed::index`].
    pub const NAMES: [&str; 18] = [
        "create", "mkdir", "symlink", "read", "write", "fsync", "truncate", "allocate", "punch", "unlink",
        "rmdir", "rename", "link", "list", "stat", "setattr", "readlink", "zero",
    ];

    /// Which of the names it has.
    pub fn index(self) -> usize {
        match self {
            Deed::Create => 0,
            Deed::Mkdir => 1,
            Deed::Symlink(_) => 2,
            Deed::Read(..) => 3,
            Deed::Write(..) => 4,
            Deed::Fsync => 5,
            Deed::Truncate(_) => 6,
            Deed::Allocate { .. } => 7,
            Deed::Punch(..) => 8,
            Deed::Unlink | Deed::UnlinkOpen(_) => 9,
            Deed::Rmdir => 10,
            Deed::Rename(_) => 11,
            Deed::Link(_) => 12,
            Deed::List => 13,
            Deed::Stat => 14,
            Deed::SetAttributes => 15,
            Deed::Readlink => 16,
            Deed::Zero { .. } => 17,
        }
    }

    /// Whether it makes, moves or removes a name.
    pub fn changes_names(self) -> bool {
        use Deed::{Create, Link, Mkdir, Rename, Rmdir, Symlink, Unlink, UnlinkOpen};
        matches!(self, Create | Mkdir | Symlink(_) | Unlink | UnlinkOpen(_) | Rmdir | Rename(_) | Link(_))
    }

    /// Whether a program can ask it of what it has open, whatever became of the name.
    fn is_of_open(self) -> bool {
        use Deed::{Allocate, Fsync, Punch, Read, SetAttributes, Stat, Truncate, Write, Zero};
        matches!(
            self,
            Read(..)
                | Write(..)
                | Fsync
                | Truncate(_)
                | Allocate { .. }
                | Punch(..)
                | Zero { .. }
                | Stat
                | SetAttributes
        )
    }

    /// Whether all bytes that it asks for can be of a file.
    fn is_within_a_file(self) -> bool {
        let end = match self {
            Deed::Read(offset, len) | Deed::Write(offset, len) | Deed::Punch(offset, len) => {
                offset.checked_add(len)
            }
            Deed::Allocate { offset, len, .. } | Deed::Zero { offset, len, .. } => offset.checked_add(len),
            Deed::Truncate(size) => Some(size),
            _ => Some(0),
        };
        end.is_some_and(|end| end <= FILE_BYTES_MAX)
    }

    fn makes(self) -> bool {
        matches!(self, Deed::Create | Deed::Mkdir | Deed::Symlink(_))
    }
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it was made, since the beginning.
    pub at: Time,
    /// By which process, from 0.
    pub process: u32,
    /// On which path.
    pub path: u32,
    /// What it asks.
    pub deed: Deed,
}

/// A name in a directory. Path 0 is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path of the directory.
    pub parent: u32,
    /// The name.
    pub name: Box<[u8]>,
}

/// What a path is that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// A file of so many bytes.
    File(u64),
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
}

/// The calls of one or several processes.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// All paths by number.
    pub places: Vec<Place>,
    /// What was there before, directories before what is in them.
    pub initial: Vec<(u32, Was)>,
    /// The calls.
    pub calls: Vec<Call>,
    /// How many processes make them.
    pub processes: u32,
    /// They are begun in this order; those of a generator's processes are not.
    pub ordered: bool,
    /// What the trace has and is not played: how often, by the name of the call, or `failed`, `unfinished`, `no request`.
    pub left_out: BTreeMap<String, u64>,
    /// The files without a name ([`Deed::UnlinkOpen`]), by the number of the last call on each.
    pub last_uses: FxHashMap<u32, u32>,
}

/// Paths by their names.
#[derive(Default)]
struct Paths {
    places: Vec<Place>,
    numbers: FxHashMap<(u32, Box<[u8]>), u32>,
    /// Paths with something below them.
    parents: FxHashSet<u32>,
}

impl Paths {
    fn new() -> Paths {
        Paths { places: vec![Place { parent: 0, name: Box::default() }], ..Paths::default() }
    }

    fn below(&mut self, parent: u32, name: &[u8]) -> u32 {
        let next = self.places.len() as u32;
        let name: Box<[u8]> = name.into();
        *self.numbers.entry((parent, name)).or_insert_with_key(|(parent, name)| {
            self.places.push(Place { parent: *parent, name: name.clone() });
            self.parents.insert(*parent);
            next
        })
    }

    fn of(&mut self, text: &[u8]) -> Result<u32, String> {
        let names = || text.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let levels = names().count();
        if levels > LEVELS_MAX {
            return Err(format!("has {levels} levels; {LEVELS_MAX} are played at most"));
        }
        let below = |parent, name: &[u8]| self.below(parent, &name[..name.len().min(bimetal_vfs::NAME_MAX)]);
        Ok(names().fold(0, below))
    }

    /// A path for what had this one, and has no name.
    fn without_name(&mut self, path: u32) -> u32 {
        let name = [&self.places[path as usize].name[..], b" (removed)"].concat();
        self.places.push(Place { parent: 0, name: name.into() });
        self.places.len() as u32 - 1
    }
}

impl Workload {
    /// The calls of what `text` names: a recording, strace's output, another trace of files, or a generator. Of the last
    /// two there are `processes`, each in a directory of its own; a generator's differ in their seed.
    ///
    /// # Errors
    /// A file cannot be read, or a line is not what it should be; a generator or a parameter that there is not.
    pub fn open(text: &str, options: &ReadOptions, processes: u32) -> Result<Workload> {
        if !text.starts_with("gen:") && options.format.is_none() {
            let first = Input::open(Path::new(text), &Arc::default())?.peek(4096)?;
            let is_strace = strace::is_strace(first.split(|byte| *byte == b'\n').next().unwrap_or_default());
            if is_strace || first.starts_with(HEADER) {
                if processes > 1 {
                    return Err(Error::invalid("--processes: a recording has its own processes"));
                }
                let path = Path::new(text);
                return if is_strace { Workload::of_strace(path) } else { Workload::recorded(path) };
            }
        }
        Workload::of_files(text, options, processes)
    }

    /// A path in words.
    pub fn shown(&self, path: u32) -> String {
        let shown = |name: &[u8]| format!("/{}", String::from_utf8_lossy(name));
        names_to(&self.places, path).into_iter().map(shown).collect()
    }

    fn recorded(path: &Path) -> Result<Workload> {
        let mut paths = Paths::new();
        let mut known = Vec::new();
        if let Some(list) = list_of_paths(path) {
            each_line(&list, |line| {
                let mut fields = Fields::<b','>::of(line);
                fields.u32("path")?;
                let kind = fields.text("type")?.first().copied();
                let size = fields.text("size")?;
                let size = std::str::from_utf8(size).ok().and_then(|text| text.parse::<i64>().ok());
                let skip = line.iter().enumerate().filter(|(_, byte)| **byte == b',').nth(2);
                let text = skip.map_or(&[][..], |(at, _)| &line[at + 1..]);
                let path = paths.of(text).map_err(|why| Wrong::new(4, "path", why))?;
                known.push((path, kind, size.map_or(0, |size| size.max(0) as u64)));
                Ok(())
            })?;
        }
        let mut reader = Reader::new(paths);
        let number = |reader: &mut Reader, path: u32| match known.get(path as usize) {
            Some((number, ..)) => *number,
            None => reader.paths.below(0, format!("path-{path}").as_bytes()),
        };
        for (number, kind, size) in &known {
            let was = match kind {
                Some(b'd') => Was::Dir,
                Some(b'l') => Was::Symlink,
                _ => Was::File(*size),
            };
            reader.told.insert(*number, was);
        }
        each_line(path, |line| {
            let Some(call) = parse(line)? else {
                reader.leave_out("failed", 1);
                return Ok(());
            };
            let path = number(&mut reader, call.path);
            let other = match call.name {
                b"rename" | b"link" => {
                    let other = u32::try_from(call.offset)
                        .map_err(|_| Wrong::new(5, "offset", "is not a path's number"))?;
                    number(&mut reader, other)
                }
                _ => 0,
            };
            let taken = reader.call(
                (call.at, call.process, path),
                &String::from_utf8_lossy(call.name),
                deed(call.name, other, call.offset, call.len, call.result),
            );
            taken.map_err(|why| Wrong::new(3, "op", why))
        })?;
        Ok(reader.done())
    }

    fn of_strace(path: &Path) -> Result<Workload> {
        let (mut strace, mut calls) = (Strace::default(), Vec::new());
        each_line(path, |line| {
            calls.extend(strace.line(line)?);
            Ok(())
        })?;
        let mut reader = Reader::new(Paths::new());
        strace.left_out().into_iter().for_each(|(name, count)| reader.leave_out(&name, count));
        let wrong = |why: String| Error::invalid(format!("{}: {why}", path.display()));
        let number = |text: &String| {
            let told = |why| wrong(format!("the path that begins with {:.40} {why}", text));
            reader.paths.of(text.as_bytes()).map_err(told)
        };
        let numbers: Vec<u32> = strace.paths.iter().map(number).collect::<Result<_>>()?;
        let began = calls.first().map_or(0, |call| call.at_ns);
        for call in &calls {
            let path = numbers[call.path as usize];
            let name = match call.name {
                // With O_CREAT: of what was never seen nobody knows whether it was there.
                "opencreate" if reader.there.get(&path).copied().unwrap_or(false) => "open",
                "opencreate" => "create",
                name => name,
            };
            let other = if matches!(name, "rename" | "link") { numbers[call.offset as usize] } else { 0 };
            let at = Time(call.at_ns.saturating_sub(began));
            let deed = deed(name.as_bytes(), other, call.offset, call.len, call.result);
            reader.call((at, call.process, path), name, deed).map_err(wrong)?;
        }
        Ok(reader.done())
    }

    fn of_files(text: &str, options: &ReadOptions, processes: u32) -> Result<Workload> {
        Workload::of_source(&Source::parse(text, options.clone())?, processes)
    }

    /// The requests of a trace, each unit of which is a file, made by as many processes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_source(source: &Source, processes: u32) -> Result<Workload> {
        let mut reader = Reader::new(Paths::new());
        // A unit that is gone has no descriptor: what comes after is of a new file.
        reader.has_descriptors = false;
        for process in 0..processes {
            let source = source.clone().of_process(process)?;
            let dir = reader.paths.below(0, format!("p{process}").as_bytes());
            reader.told.insert(dir, Was::Dir);
            let mut trace = source.open()?;
            for record in &mut trace {
                let record = record?;
                let path = reader.paths.below(dir, format!("f{}", record.unit).as_bytes());
                let deed = match record.op {
                    Op::Read => Deed::Read(record.offset, record.len),
                    Op::Write => Deed::Write(record.offset, record.len),
                    Op::Flush => Deed::Fsync,
                    Op::Discard => Deed::Punch(record.offset, record.len),
                    Op::Allocate => {
                        Deed::Allocate { offset: record.offset, len: record.len, keep_size: false }
                    }
                    Op::Truncate => Deed::Truncate(record.offset),
                    Op::Create => Deed::Create,
                    Op::Delete => Deed::Unlink,
                };
                let taken = reader.call((record.at, process, path), record.op.name(), Some(deed));
                taken.map_err(|why| Error::invalid(format!("{}: {why}", source.name())))?;
            }
            reader.leave_out("no request", trace.tally().skipped);
        }
        Ok(Workload { ordered: false, ..reader.done() })
    }
}

/// The names that lead to a path from the root.
pub fn names_to(places: &[Place], path: u32) -> Vec<&[u8]> {
    let above = std::iter::successors(Some(path), |path| Some(places[*path as usize].parent));
    let mut names: Vec<&[u8]> =
        above.take_while(|path| *path != 0).map(|path| &*places[path as usize].name).collect();
    names.reverse();
    names
}

/// What a call of a trace asks, if it is one that is played.
fn deed(name: &[u8], other: u32, offset: u64, len: u64, result: u64) -> Option<Deed> {
    Some(match name {
        b"read" if result > 0 => Deed::Read(offset, result),
        b"write" if result > 0 => Deed::Write(offset, result),
        b"fsync" | b"fdatasync" => Deed::Fsync,
        b"create" => Deed::Create,
        b"mkdir" => Deed::Mkdir,
        b"symlink" => Deed::Symlink(len.clamp(1, 4095)),
        b"opentrunc" => Deed::Truncate(0),
        b"truncate" => Deed::Truncate(len),
        b"fallocate" => Deed::Allocate { offset, len, keep_size: false },
        b"fallocate-keep" => Deed::Allocate { offset, len, keep_size: true },
        b"punch" => Deed::Punch(offset, len),
        b"zero" => Deed::Zero { offset, len, keep_size: false },
        b"zero-keep" => Deed::Zero { offset, len, keep_size: true },
        b"unlink" => Deed::Unlink,
        b"rmdir" => Deed::Rmdir,
        b"rename" => Deed::Rename(other),
        b"link" => Deed::Link(other),
        b"setattr" => Deed::SetAttributes,
        b"readlink" => Deed::Readlink,
        b"getdents" | b"opendir" => Deed::List,
        b"open" | b"stat" | b"fstat" | b"access" => Deed::Stat,
        _ => return None,
    })
}

/// Gathers calls, and finds out what was there before them.
struct Reader {
    paths: Paths,
    calls: Vec<Call>,
    /// Processes by the number the trace gives them.
    processes: FxHashMap<u32, u32>,
    /// Whether a path is there now; none: nothing was said yet.
    there: FxHashMap<u32, bool>,
    /// What the trace's list of paths says a path was.
    told: FxHashMap<u32, Was>,
    initial: FxHashMap<u32, Was>,
    left_out: BTreeMap<String, u64>,
    /// What names stood for that are there no more.
    unlinked: Unlinked,
    /// The calls are of programs, which use what they have open.
    has_descriptors: bool,
}

impl Reader {
    fn new(paths: Paths) -> Reader {
        Reader {
            paths,
            calls: Vec::new(),
            processes: FxHashMap::default(),
            there: FxHashMap::from_iter([(0, true)]),
            told: FxHashMap::default(),
            initial: FxHashMap::default(),
            left_out: BTreeMap::new(),
            unlinked: Unlinked::default(),
            has_descriptors: true,
        }
    }

    /// A path is used that nobody made: it was there, and so were its directories. In a directory that the trace made it
    /// cannot have been; then somebody makes it now, unseen. So it is where the trace removed what was there.
    fn was(&mut self, who: (Time, u32), path: u32, as_what: Was) {
        let mut unknown = Vec::new();
        let (mut at, mut as_what) = (path, as_what);
        while self.there.get(&at) != Some(&true) {
            let again = self.there.insert(at, true).is_some();
            unknown.push((at, as_what, again));
            (at, as_what) = (self.paths.places[at as usize].parent, Was::Dir);
        }
        for (path, as_what, again) in unknown.into_iter().rev() {
            self.appears(who, path, as_what, again);
        }
    }

    /// What is at a path that is used, in a directory that is there; `again`: the trace removed something there.
    fn appears(&mut self, (at, process): (Time, u32), path: u32, as_what: Was, again: bool) {
        let was = match (as_what, self.told.get(&path).copied()) {
            (Was::Dir, _) => Was::Dir,
            (Was::File(end), Some(Was::File(size))) => Was::File(size.max(end)),
            (_, Some(told)) => told,
            (was, None) => was,
        };
        self.unlinked.is_named(path);
        let parent = self.paths.places[path as usize].parent;
        if !again && (parent == 0 || self.initial.contains_key(&parent)) {
            self.initial.insert(path, was);
            return;
        }
        let deed = match was {
            Was::File(_) => Deed::Create,
            Was::Dir => Deed::Mkdir,
            Was::Symlink => Deed::Symlink(1),
        };
        self.calls.push(Call { at, process, path, deed });
    }

    /// The path of what is asked by the path it had, where the name went and a program may have it open; none: it is nowhere.
    fn opened(&mut self, path: u32, deed: Deed, name: &str) -> Option<u32> {
        let by_name = matches!(name, "open" | "opentrunc" | "access");
        if !self.has_descriptors || !deed.is_of_open() || by_name {
            return Some(path);
        }
        let mut path = path;
        while self.there.get(&path) == Some(&false) {
            match self.unlinked.of(path) {
                Some(Gone::Moved(to)) => path = to,
                Some(Gone::Removed(call)) => return Some(self.without_name(path, call)),
                Some(Gone::Directory) => return None,
                None => break,
            }
        }
        Some(path)
    }

    /// The path that stands for the file of which `call` removed the name.
    fn without_name(&mut self, path: u32, call: usize) -> u32 {
        if let Some(path) = self.unlinked.stand_in(path) {
            return path;
        }
        let new = self.paths.without_name(path);
        self.unlinked.stands_for(path, new);
        self.there.insert(new, true);
        self.calls[call].deed = Deed::UnlinkOpen(new);
        new
    }

    /// Counts what is not played.
    fn leave_out(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.left_out.entry(name.to_string()).or_default() += count;
        }
    }

    /// Takes a call, which the trace calls `name`; `deed` is what it asks, if it is one that is played.
    ///
    /// # Errors
    /// It asks for bytes that no file has, or there are too many calls.
    fn call(
        &mut self,
        (at, process, path): (Time, u32, u32),
        name: &str,
        deed: Option<Deed>,
    ) -> Result<(), String> {
        let Some(deed) = deed.filter(|deed| path != 0 || !deed.changes_names()) else {
            self.leave_out(name, 1);
            return Ok(());
        };
        if !deed.is_within_a_file() {
            return Err(format!("{name} asks for bytes past the last one a file can have, 2^63 - 1"));
        }
        if self.calls.len() >= CALLS_MAX {
            return Err(format!(
                "there are more than {CALLS_MAX} calls, which are held in memory; play a part"
            ));
        }
        let Some(path) = self.opened(path, deed, name) else {
            self.leave_out(name, 1);
            return Ok(());
        };
        let next = self.processes.len() as u32;
        let process = *self.processes.entry(process).or_insert(next);
        self.before((at, process), path, deed);
        self.unlinked.is_used(path, self.calls.len());
        self.after(path, deed);
        self.calls.push(Call { at, process, path, deed });
        Ok(())
    }

    /// What must have been there for a call to succeed.
    fn before(&mut self, who: (Time, u32), path: u32, deed: Deed) {
        let parent = |reader: &Reader, path: u32| reader.paths.places[path as usize].parent;
        match deed {
            deed if deed.makes() => self.was(who, parent(self, path), Was::Dir),
            Deed::List | Deed::Rmdir => self.was(who, path, Was::Dir),
            Deed::Readlink => self.was(who, path, Was::Symlink),
            Deed::Read(offset, len) => self.was(who, path, Was::File(offset + len)),
            _ => self.was(who, path, Was::File(0)),
        }
        if let Deed::Rename(to) | Deed::Link(to) = deed {
            self.was(who, parent(self, to), Was::Dir);
        }
    }

    /// What is there when a call, the next to be kept, was made.
    fn after(&mut self, path: u32, deed: Deed) {
        match deed {
            deed if deed.makes() => self.is_there(path),
            Deed::Unlink => self.is_gone(path, Gone::Removed(self.calls.len())),
            Deed::Rmdir => self.is_gone(path, Gone::Directory),
            Deed::Link(to) => self.is_there(to),
            Deed::Rename(to) if to != path => {
                self.is_there(to);
                self.is_gone(path, Gone::Moved(to));
                self.moved(path, to);
            }
            // What is read of a file that was there tells how large it was, until it is written.
            Deed::Read(offset, len) => {
                if let Some(Was::File(size)) = self.initial.get_mut(&path) {
                    *size = (*size).max(offset + len);
                }
            }
            _ => {}
        }
    }

    fn is_there(&mut self, path: u32) {
        self.there.insert(path, true);
        self.unlinked.is_named(path);
    }

    fn is_gone(&mut self, path: u32, gone: Gone) {
        self.there.insert(path, false);
        self.unlinked.goes(path, gone);
    }

    /// What was in a directory is in another one now.
    fn moved(&mut self, from: u32, to: u32) {
        if !self.paths.parents.contains(&from) {
            return;
        }
        let mut moved = FxHashMap::from_iter([(from, to)]);
        for path in from + 1..self.paths.places.len() as u32 {
            let place = self.paths.places[path as usize].clone();
            let Some(parent) = moved.get(&place.parent).copied() else { continue };
            if self.there.get(&path) == Some(&true) {
                let new = self.paths.below(parent, &place.name);
                moved.insert(path, new);
                self.is_there(new);
                self.is_gone(path, Gone::Moved(new));
            }
        }
    }

    fn done(self) -> Workload {
        let mut initial: Vec<(u32, Was)> = self.initial.into_iter().collect();
        // A directory has a lower number than what is in it.
        initial.sort_unstable_by_key(|(path, _)| *path);
        let processes = self.processes.len().max(1) as u32;
        let (places, calls, left_out) = (self.paths.places, self.calls, self.left_out);
        let last_uses = self.unlinked.last_uses();
        Workload { places, initial, calls, processes, ordered: true, left_out, last_uses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "#time_s,pid,op,path_id,offset,length,result\n";

    #[test]
    fn a_recording_has_its_paths_its_processes_and_what_was_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        let calls = "0,7,read,1,100,50,50\n0,8,create,2,0,0,0\n0,8,write,2,0,9,9\n0,8,rename,2,1,0,0\n\
                     0,7,lseek,1,0,0,0\n0,7,rmdir,0,0,0,-39\n0,8,unlink,3,0,0,0\n0,8,wrte,2,0,9,9\n";
        std::fs::write(&path, format!("{HEAD}{calls}")).unwrap();
        let list = "#path_id,type,size_at_first_open,path\n0,d,-1,/d\n1,f,120,/d/a\n2,f,0,/d/b\n3,l,0,/l\n";
        std::fs::write(dir.path().join("t.paths.csv"), list).unwrap();
        let options = ReadOptions::default();
        let workload = Workload::open(path.to_str().unwrap(), &options, 1).unwrap();
        let calls: Vec<_> = workload
            .calls
            .iter()
            .map(|call| (call.process, workload.shown(call.path), Deed::NAMES[call.deed.index()]))
            .collect();
        let expected = [
            (0, "/d/a".to_string(), "read"),
            (1, "/d/b".into(), "create"),
            (1, "/d/b".into(), "write"),
            (1, "/d/b".into(), "rename"),
            (1, "/l".into(), "unlink"),
        ];
        assert_eq!(calls, expected);
        let initial: Vec<_> =
            workload.initial.iter().map(|(path, was)| (workload.shown(*path), *was)).collect();
        let expected =
            [("/d".to_string(), Was::Dir), ("/d/a".into(), Was::File(150)), ("/l".into(), Was::Symlink)];
        assert_eq!(initial, expected);
        assert_eq!((workload.processes, workload.ordered), (2, true));
        let left_out =
            [("failed", 1), ("lseek", 1), ("wrte", 1)].map(|(name, count)| (name.to_string(), count));
        assert_eq!(workload.left_out, BTreeMap::from(left_out));
        assert!(Workload::open(path.to_str().unwrap(), &options, 2).is_err());
    }

    #[test]
    fn calls_of_strace_that_are_not_played_are_counted_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strace.out");
        let text = r#"7 1.000001 openat(AT_FDCWD</w>, "f", O_RDWR|O_CREAT, 0666) = 3</w/f>
7 1.100000 fallocate(3</w/f>, 0, 100, 50) = 0
7 1.200000 fallocate(3</w/f>, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 100, 20) = 0
7 1.300000 fallocate(3</w/f>, FALLOC_FL_ZERO_RANGE, 200, 20) = 0
7 1.400000 getpid() = 7
7 1.500000 write(1<pipe:[55]>, ""..., 5) = 5
7 1.600000 unlink("/w/gone") = -1 ENOENT (No such file or directory)
8 1.650000 <... read resumed>""..., 5) = 5
7 1.700000 write(3</w/f>, ""..., 5 <unfinished ...>
7 1.800000 +++ killed by SIGKILL +++"#;
        std::fs::write(&path, text).unwrap();
        let workload = Workload::open(path.to_str().unwrap(), &ReadOptions::default(), 1).unwrap();
        let deeds: Vec<Deed> = workload.calls.iter().map(|call| call.deed).collect();
        let expected = [
            Deed::Create,
            Deed::Allocate { offset: 100, len: 50, keep_size: false },
            Deed::Punch(100, 20),
            Deed::Zero { offset: 200, len: 20, keep_size: false },
        ];
        assert_eq!(deeds, expected);
        let left_out = [("failed", 1), ("getpid", 1), ("unfinished", 2), ("write", 1)];
        assert_eq!(workload.left_out, left_out.map(|(name, count)| (name.to_string(), count)).into());
    }

    #[test]
    fn what_moves_with_its_directory_or_is_made_unseen_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        let calls =
            "0,1,mkdir,0,0,0,0\n0,1,create,1,0,0,0\n0,1,rename,0,2,0,0\n0,1,read,3,0,5,5\n0,1,read,4,0,7,7\n";
        std::fs::write(&path, format!("{HEAD}{calls}")).unwrap();
        let list = "#path_id,type,size_at_first_open,path\n0,d,-1,/a\n1,f,0,/a/x\n2,d,0,/b\n3,f,0,/b/x\n4,f,9,/b/y\n";
        std::fs::write(dir.path().join("t.paths.csv"), list).unwrap();
        let workload = Workload::open(path.to_str().unwrap(), &ReadOptions::default(), 1).unwrap();
        let calls: Vec<_> =
            workload.calls.iter().map(|c| (Deed::NAMES[c.deed.index()], workload.shown(c.path))).collect();
        let expected = [
            ("mkdir", "/a"),
            ("create", "/a/x"),
            ("rename", "/a"),
            ("read", "/b/x"),
            ("create", "/b/y"),
            ("read", "/b/y"),
        ];
        assert_eq!(calls, expected.map(|(name, path)| (name, path.to_string())));
        assert!(workload.initial.is_empty());
    }

    /// The calls of a recording of these lines on these paths, with the paths they are on.
    fn recorded(calls: &str, paths: &[&str]) -> Result<(Workload, Vec<(&'static str, String)>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, format!("{HEAD}{calls}")).unwrap();
        let list = paths.iter().zip(0..).map(|(path, at)| format!("{at},f,0,{path}\n")).collect::<String>();
        let list = format!("#path_id,type,size_at_first_open,path\n{list}");
        std::fs::write(dir.path().join("t.paths.csv"), list).unwrap();
        let workload = Workload::open(path.to_str().unwrap(), &ReadOptions::default(), 1)?;
        let calls = workload.calls.iter();
        let calls = calls.map(|c| (Deed::NAMES[c.deed.index()], workload.shown(c.path))).collect();
        Ok((workload, calls))
    }

    #[test]
    fn what_is_used_after_its_name_went_is_followed() {
        let calls = "0,1,create,0,0,0,0\n0,1,unlink,0,0,0,0\n0,1,write,0,0,9,9\n0,1,fsync,0,0,0,0\n\
                     0,1,create,0,0,0,0\n0,1,rename,0,1,0,0\n0,1,write,0,0,7,7\n0,1,open,0,0,0,0\n";
        let (workload, calls) = recorded(calls, &["/t", "/u"]).unwrap();
        let expected = [
            ("create", "/t"),
            ("unlink", "/t"),
            ("write", "/t (removed)"),
            ("fsync", "/t (removed)"),
            ("create", "/t"),
            ("rename", "/t"),
            ("write", "/u"),
            // It is opened by a name that went: somebody made it anew.
            ("create", "/t"),
            ("stat", "/t"),
        ];
        assert_eq!(calls, expected.map(|(name, path)| (name, path.to_string())));
        let stand_in = workload.calls[2].path;
        assert_eq!(workload.calls[1].deed, Deed::UnlinkOpen(stand_in));
        assert_eq!(workload.last_uses, FxHashMap::from_iter([(3, stand_in)]));
    }

    #[test]
    fn paths_of_many_levels_are_read_to_a_limit_that_is_told() {
        let deep = |levels: usize| "/a".repeat(levels);
        let (workload, _) = recorded("0,1,stat,0,0,0,0\n", &[&deep(LEVELS_MAX)]).unwrap();
        assert_eq!(workload.initial.len(), LEVELS_MAX);
        let why = recorded("0,1,stat,0,0,0,0\n", &[&deep(200_000)]).map(drop).unwrap_err().to_string();
        assert!(why.contains("200000 levels") && why.contains("4096") && why.contains("line 2"), "{why}");
    }

    #[test]
    fn bytes_that_no_file_has_are_refused_with_their_line() {
        for call in ["read,0,18446744073709551600,50,50", "write,0,9223372036854775807,1,1"] {
            let why = recorded(&format!("0,1,{call}\n"), &["/t"]).map(drop).unwrap_err().to_string();
            assert!(why.contains("line 2") && why.contains("2^63 - 1"), "{why}");
        }
    }

    #[test]
    fn a_recording_finds_its_paths_whatever_its_folder_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a.csv.d");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("w.csv"), format!("{HEAD}0,1,read,0,0,9,9\n")).unwrap();
        std::fs::write(folder.join("w.paths.csv"), "0,f,9,/name\n").unwrap();
        let path = folder.join("w.csv");
        let workload = Workload::open(path.to_str().unwrap(), &ReadOptions::default(), 1).unwrap();
        assert_eq!(workload.shown(workload.calls[0].path), "/name");
        let files = crate::files_of(path.to_str().unwrap());
        assert_eq!(files, [path, folder.join("w.paths.csv")]);
    }

    #[test]
    fn a_generators_processes_have_directories_and_seeds_of_their_own() {
        let recipe = "gen:postmark:files=20:transactions=50";
        let workload = Workload::open(recipe, &ReadOptions::default(), 3).unwrap();
        assert_eq!((workload.processes, workload.initial.len()), (3, 3));
        let of = |process: u32| {
            let own = workload.calls.iter().filter(move |call| call.process == process);
            own.map(|call| (call.deed, workload.places[call.path as usize].name.clone())).collect::<Vec<_>>()
        };
        assert_ne!(of(0), of(1));
        let one = Workload::open(recipe, &ReadOptions::default(), 1).unwrap();
        assert_eq!(one.calls.len(), of(0).len());
    }
}
