//! System calls as requests for objects: what an object-based file system passes on of them.
//!
//! A file's contents are an object, and so is a directory, with 64 bytes for each of its entries: making,
//! removing or moving a name writes the entry. A file that was there before the trace is an object from the
//! start, of the size it was first opened with. A read, a mapping, an execution, a listing or a `readlink`
//! is an access; `stat` and the like ask only for what is known. Calls that failed are left out.
//!
//! Calls come from a recording (`NAME.csv`, with its list of paths, as `bimetal record` writes it) or from strace's
//! output. In the latter nobody says how large files were: what is read before it is written was there.

use super::fields::{Fields, Wrong};
use super::formats::syscall::{Call, parse};
use super::input::Input;
pub use super::objects_made::Made;
use super::source::list_of_paths;
use super::strace::{self, Strace};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

/// What is asked of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOp {
    /// Make it, empty.
    Create,
    /// Remove it.
    Remove,
    /// Read a range.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Write a range.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Cut or extend it to this size.
    Truncate(u64),
    /// Change something else about it (mode, owner, times).
    SetAttributes,
    /// Note that it was accessed.
    Touch,
    /// Make it durable.
    Flush,
}

/// One request for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRequest {
    /// When, since the beginning.
    pub at: Time,
    /// Which object, from 0.
    pub object: u32,
    /// What.
    pub ask: ObjectOp,
}

/// A trace of object requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectTrace {
    /// Objects there at the start, with their sizes.
    pub initial: Vec<(u32, u64)>,
    /// The requests, in order.
    pub requests: Vec<ObjectRequest>,
    /// Objects in all; their numbers are below.
    pub objects: u32,
}

/// Bytes of a directory's entry.
const ENTRY_BYTES: u64 = 64;
/// The size of a directory that was there before.
const DIRECTORY_BYTES: u64 = 4096;

/// What is known of a path.
#[derive(Clone, Copy, Default)]
struct Known {
    parent: u32,
    size: u64,
    is_dir: bool,
}

#[derive(Default)]
struct Reader {
    trace: ObjectTrace,
    paths: Vec<Known>,
    /// The object a path stands for.
    named: FxHashMap<u32, u32>,
    /// Names beyond the first.
    further: FxHashMap<u32, u32>,
    /// The entry of a path in its directory, and how many a directory has.
    slots: FxHashMap<u32, u64>,
    used: FxHashMap<u32, u64>,
}

impl ObjectTrace {
    /// Reads the system-call trace at `path` (`NAME.csv.zst`) and the list of its paths beside it
    /// (`NAME.paths.csv.zst`), if there is one.
    ///
    /// # Errors
    /// A file cannot be read, or a line is not what it should be.
    pub fn of_calls(path: &Path) -> Result<ObjectTrace> {
        let mut reader = Reader::default();
        let first = Input::open(path, &Arc::default())?.peek(4096)?;
        if strace::is_strace(first.split(|byte| *byte == b'\n').next().unwrap_or_default()) {
            return Self::of_strace(path);
        }
        if let Some(list) = list_of_paths(path) {
            reader.read_paths(&list)?;
        }
        each_line(path, |line| match parse(line)? {
            Some(call) => reader.call(&call),
            None => Ok(()),
        })?;
        Ok(reader.trace)
    }

    fn of_strace(path: &Path) -> Result<ObjectTrace> {
        let (mut strace, mut calls) = (Strace::default(), Vec::new());
        each_line(path, |line| {
            calls.extend(strace.line(line)?);
            Ok(())
        })?;
        let mut reader = Reader::default();
        reader.take_paths(&strace, &calls);
        let began = calls.first().map_or(0, |call| call.at_ns);
        let mut known = vec![false; strace.paths.len()];
        for call in &calls {
            let there = std::mem::replace(&mut known[call.path as usize], true);
            let name = match call.name {
                // With O_CREAT: of what was never seen nobody knows whether it was there.
                "opencreate" if there => "open",
                "opencreate" => "create",
                name => name,
            };
            if matches!(name, "unlink" | "rmdir" | "rename") {
                known[call.path as usize] = false;
            }
            let at = Time(call.at_ns.saturating_sub(began));
            let (path, offset, len, result) = (call.path, call.offset, call.len, call.result);
            let call = Call { at, process: call.process, name: name.as_bytes(), path, offset, len, result };
            reader.call(&call).map_err(|why| Error::corrupt(path_name(&strace, path), why, "a call"))?;
            if name == "rename" || name == "link" {
                known[offset as usize] = true;
            }
        }
        Ok(reader.trace)
    }

    /// The most bytes that all objects have at a time when the trace is run again and again, an object that is
    /// made again in place of its older self; and the part of the data requests that read.
    pub fn shape(&self) -> (u64, f64) {
        let mut sizes: FxHashMap<u32, u64> = self.initial.iter().copied().collect();
        let mut total: u64 = sizes.values().sum();
        let (mut most, mut reads, mut writes) = (total, 0u64, 0u64);
        for _ in 0..2 {
            for request in &self.requests {
                let size = sizes.entry(request.object).or_default();
                let before = *size;
                match request.ask {
                    ObjectOp::Create | ObjectOp::Remove => *size = 0,
                    ObjectOp::Write { offset, len } => *size = before.max(offset + len),
                    ObjectOp::Truncate(to) => *size = to,
                    _ => {}
                }
                reads += u64::from(matches!(request.ask, ObjectOp::Read { .. }));
                writes += u64::from(matches!(request.ask, ObjectOp::Write { .. }));
                total = total + *size - before;
                most = most.max(total);
            }
        }
        (most, reads as f64 / (reads + writes).max(1) as f64)
    }
}

fn path_name(strace: &Strace, path: u32) -> String {
    strace.paths.get(path as usize).cloned().unwrap_or_default()
}

/// Calls `take` with each line that is no comment.
pub(super) fn each_line(path: &Path, mut take: impl FnMut(&[u8]) -> Result<(), Wrong>) -> Result<()> {
    let input = Input::open(path, &Arc::default())?;
    let mut lines = BufReader::with_capacity(1 << 20, input.bytes);
    let (mut line, mut number) = (Vec::new(), 0u64);
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).map_err(|why| Error::io(path.display(), why))?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if text.is_empty() || text[0] == b'#' {
            continue;
        }
        take(text).map_err(|why| Error::corrupt(path.display(), why, format!("line {number}")))?;
    }
}

impl Reader {
    /// Reads `path_id,type,size_at_first_open,path` and finds each path's directory.
    fn read_paths(&mut self, path: &Path) -> Result<()> {
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let paths = &mut self.paths;
        each_line(path, |line| {
            let mut fields = Fields::<b','>::of(line);
            let number = fields.u32("path")?;
            if number as usize != texts.len() {
                return Err(Wrong::new(1, "path", format!("is {number}, not {}", texts.len())));
            }
            let is_dir = fields.text("type")? == b"d";
            let size = fields.text("size")?;
            let size = std::str::from_utf8(size).ok().and_then(|text| text.parse::<i64>().ok());
            let size = size.ok_or_else(|| Wrong::new(3, "size", "is not a number"))?;
            paths.push(Known { parent: 0, size: size.max(0) as u64, is_dir });
            let skip = line.iter().enumerate().filter(|(_, byte)| **byte == b',').nth(2);
            texts.push(skip.map_or(Vec::new(), |(at, _)| line[at + 1..].to_vec()));
            Ok(())
        })?;
        let mut numbers: FxHashMap<Vec<u8>, u32> = texts.iter().cloned().zip(0..).collect();
        for (number, text) in texts.iter().enumerate() {
            let end = text.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let parent = *numbers.entry(text[..end].to_vec()).or_insert_with(|| {
                paths.push(Known { is_dir: true, ..Known::default() });
                paths.len() as u32 - 1
            });
            paths[number].parent = parent;
        }
        Ok(())
    }

    /// Paths, and sizes from what is read of them before they are written.
    fn take_paths(&mut self, strace: &Strace, calls: &[strace::Traced]) {
        let mut sizes = vec![0u64; strace.paths.len()];
        let mut written = vec![false; strace.paths.len()];
        let mut dirs = vec![false; strace.paths.len()];
        for call in calls {
            let path = call.path as usize;
            match call.name {
                "read" if !written[path] => sizes[path] = sizes[path].max(call.offset + call.result),
                "getdents" | "mkdir" | "rmdir" => dirs[path] = true,
                "write" | "truncate" | "opentrunc" | "create" => written[path] = true,
                _ => {}
            }
        }
        let mut numbers: FxHashMap<&str, u32> = strace.paths.iter().map(String::as_str).zip(0..).collect();
        let mut paths: Vec<Known> = sizes
            .iter()
            .zip(&dirs)
            .map(|(size, is_dir)| Known { parent: 0, size: *size, is_dir: *is_dir })
            .collect();
        for (number, text) in strace.paths.iter().enumerate() {
            let parent = *numbers.entry(&text[..text.rfind('/').unwrap_or(0)]).or_insert_with(|| {
                paths.push(Known { is_dir: true, ..Known::default() });
                paths.len() as u32 - 1
            });
            paths[number].parent = parent;
            paths[parent as usize].is_dir = true;
        }
        self.paths = paths;
    }

    fn known(&mut self, path: u32) -> Known {
        if self.paths.len() <= path as usize {
            // A trace without its paths: one directory for all.
            let directory = Known { parent: u32::MAX, size: 0, is_dir: false };
            self.paths.resize(path as usize + 1, directory);
        }
        self.paths[path as usize]
    }

    fn new_object(&mut self, path: u32) -> u32 {
        let object = self.trace.objects;
        self.trace.objects += 1;
        self.named.insert(path, object);
        object
    }

    /// The object of a path; one that was not made in the trace was there before.
    fn object(&mut self, path: u32) -> u32 {
        if let Some(object) = self.named.get(&path) {
            return *object;
        }
        let known = self.known(path);
        let object = self.new_object(path);
        let size = if known.is_dir { known.size.max(DIRECTORY_BYTES) } else { known.size };
        self.trace.initial.push((object, size));
        object
    }

    fn ask(&mut self, at: Time, object: u32, ask: ObjectOp) {
        self.trace.requests.push(ObjectRequest { at, object, ask });
    }

    /// Writes the entry of a path in its directory.
    fn enter(&mut self, at: Time, path: u32) {
        let parent = self.known(path).parent;
        if parent == u32::MAX || parent == path {
            return;
        }
        let directory = self.object(parent);
        let used = self.used.entry(parent).or_default();
        let slot = *self.slots.entry(path).or_insert_with(|| {
            *used += 1;
            *used - 1
        });
        self.ask(at, directory, ObjectOp::Write { offset: slot * ENTRY_BYTES, len: ENTRY_BYTES });
    }

    /// A path names nothing any more; its object goes with its last name.
    fn leave(&mut self, at: Time, path: u32) {
        let object = self.object(path);
        self.named.remove(&path);
        match self.further.get_mut(&object) {
            Some(names) if *names > 0 => *names -= 1,
            _ => self.ask(at, object, ObjectOp::Remove),
        }
    }

    fn create(&mut self, call: &Call) -> u32 {
        if self.named.contains_key(&call.path) {
            self.leave(call.at, call.path);
        }
        let object = self.new_object(call.path);
        self.ask(call.at, object, ObjectOp::Create);
        self.enter(call.at, call.path);
        object
    }

    fn call(&mut self, call: &Call) -> Result<(), Wrong> {
        let (at, path) = (call.at, call.path);
        let on = |reader: &mut Reader, ask| {
            let object = reader.object(path);
            reader.ask(at, object, ask);
        };
        match call.name {
            b"read" if call.result > 0 => on(self, ObjectOp::Read { offset: call.offset, len: call.result }),
            b"write" if call.result > 0 => {
                on(self, ObjectOp::Write { offset: call.offset, len: call.result })
            }
            b"fsync" | b"fdatasync" => on(self, ObjectOp::Flush),
            b"create" | b"mkdir" => drop(self.create(call)),
            b"symlink" => {
                let object = self.create(call);
                self.ask(at, object, ObjectOp::Write { offset: 0, len: call.len.max(1) });
            }
            b"opentrunc" => on(self, ObjectOp::Truncate(0)),
            b"truncate" => on(self, ObjectOp::Truncate(call.len)),
            b"unlink" | b"rmdir" => {
                self.leave(at, path);
                self.enter(at, path);
            }
            b"rename" => self.rename(call, true)?,
            b"link" => self.rename(call, false)?,
            b"setattr" => on(self, ObjectOp::SetAttributes),
            b"exec" | b"mmap" | b"mmapw" | b"readlink" => on(self, ObjectOp::Touch),
            b"getdents" if call.result > 0 => on(self, ObjectOp::Touch),
            _ => {}
        }
        Ok(())
    }

    /// `path` becomes, or is now also, the path whose number stands in the offset.
    fn rename(&mut self, call: &Call, moved: bool) -> Result<(), Wrong> {
        let new =
            u32::try_from(call.offset).map_err(|_| Wrong::new(5, "offset", "is not a path's number"))?;
        if new == call.path {
            return Ok(());
        }
        if self.named.contains_key(&new) {
            self.leave(call.at, new);
        }
        let object = self.object(call.path);
        self.named.insert(new, object);
        if moved {
            self.named.remove(&call.path);
            self.enter(call.at, call.path);
        } else {
            *self.further.entry(object).or_default() += 1;
            self.ask(call.at, object, ObjectOp::SetAttributes);
        }
        self.enter(call.at, new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "#time_s,pid,op,path_id,offset,length,result\n";
    const PATHS: &str =
        "#path_id,type,size_at_first_open,path\n0,d,-1,/d\n1,f,100,/d/a\n2,f,0,/d/b\n3,f,0,/d/c\n";

    fn read(calls: &str, paths: Option<&str>) -> Result<ObjectTrace> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t.csv"), format!("{HEAD}{calls}")).unwrap();
        if let Some(paths) = paths {
            std::fs::write(dir.path().join("t.paths.csv"), paths).unwrap();
        }
        ObjectTrace::of_calls(&dir.path().join("t.csv"))
    }

    fn asks(trace: &ObjectTrace) -> Vec<(u32, ObjectOp)> {
        trace.requests.iter().map(|request| (request.object, request.ask)).collect()
    }

    #[test]
    fn files_and_directories_are_objects() {
        let calls = "0,0,open,1,0,0,0\n0,0,read,1,0,60,60\n0,0,create,2,0,1,0\n0,0,write,2,0,9,9\n\
                     0,0,rename,2,3,0,0\n0,0,fsync,3,0,0,0\n0,0,stat,1,0,0,0\n0,0,unlink,1,0,0,0\n0,0,read,3,0,5,-5\n";
        let trace = read(calls, Some(PATHS)).unwrap();
        assert_eq!(trace.initial, [(0, 100), (2, DIRECTORY_BYTES)]);
        let entry = |slot: u64| ObjectOp::Write { offset: slot * 64, len: 64 };
        let expected = [
            (0, ObjectOp::Read { offset: 0, len: 60 }),
            (1, ObjectOp::Create),
            (2, entry(0)),
            (1, ObjectOp::Write { offset: 0, len: 9 }),
            (2, entry(0)),
            (2, entry(1)),
            (1, ObjectOp::Flush),
            (0, ObjectOp::Remove),
            (2, entry(2)),
        ];
        assert_eq!(asks(&trace), expected);
        assert_eq!(trace.shape(), (100 + 4096 + 9, 1.0 / 6.0));
    }

    #[test]
    fn contents_with_two_names_end_with_the_last() {
        let calls = "0,0,create,1,0,1,0\n0,0,link,1,2,0,0\n0,0,unlink,1,0,0,0\n0,0,unlink,2,0,0,0\n";
        let trace = read(calls, None).unwrap();
        assert_eq!(
            asks(&trace),
            [(0, ObjectOp::Create), (0, ObjectOp::SetAttributes), (0, ObjectOp::Remove)]
        );
    }

    #[test]
    fn wrong_lines_are_placed() {
        let error = read("0,0,read,x,0,0,0\n", None).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("field 4"), "{error}");
    }
}
