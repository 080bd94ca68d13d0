//! Recorded traces that lie in the program, so that the experiments can be done where nothing else is.
//!
//! `packed/pack.py` makes them from the folder of all recordings and says what is left out of which and how they are packed: of requests the
//! times alone, of system calls what asks for nothing, and names. A trace is unpacked when it is asked for, into a folder
//! that goes with the last experiment.

use super::temporary::Temporary;
use bimetal_base::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

const ARCHIVE: &[u8] = include_bytes!("packed/traces.zst");
/// Columns of requests and of system calls.
const REQUEST_COLUMNS: usize = 2;
const CALL_COLUMNS: usize = 5;
const HEADER: &str = "#time_s,op,offset_bytes,length_bytes,flags\n";
const CALLS_HEADER: &str = "#time_s,pid,op,path_id,offset,length,result\n";

/// The traces of the program; nothing is unpacked by default.
#[derive(Debug, Default)]
pub(super) struct Packed(Mutex<Option<Unpacked>>);

/// An archive, and what was unpacked of it.
#[derive(Debug)]
struct Unpacked {
    entries: BTreeMap<String, Entry>,
    body: Vec<u8>,
    folder: Temporary,
}

/// A file of the archive.
#[derive(Clone, Debug)]
struct Entry {
    shape: Shape,
    /// The first byte of its columns.
    at: usize,
}

#[derive(Clone, Debug)]
enum Shape {
    Requests { count: usize, unit: i64, lag: usize, kinds: Vec<Kind> },
    Calls { count: usize, names: Vec<String> },
    Copy { bytes: usize },
}

/// What requests have beside their offset.
#[derive(Clone, Debug)]
struct Kind {
    op: String,
    len: i64,
    flags: String,
}

fn damaged(what: &str) -> Error {
    Error::corrupt("the traces in the program", what, "unpacking them")
}

impl Packed {
    /// A trace as a file of the name that it has in the folder of all; none if it is not here.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        let mut unpacked = self.0.lock();
        if unpacked.is_none() {
            *unpacked = Some(Unpacked::new()?);
        }
        let Some(unpacked) = &*unpacked else { return Ok(None) };
        // A list of paths is asked for beside its trace.
        let list = name.replacen(".csv", ".paths.csv", 1);
        if unpacked.entries.contains_key(&list) {
            unpacked.file(&list)?;
        }
        unpacked.file(name)
    }

    /// What a path is called that was unpacked.
    pub fn name<'p>(&self, path: &'p str) -> Option<&'p str> {
        let unpacked = self.0.lock();
        let folder = unpacked.as_ref()?.folder.path().to_str()?;
        path.strip_prefix(folder)?.strip_prefix('/')
    }
}

impl Unpacked {
    fn new() -> Result<Unpacked> {
        let mut bytes = Vec::new();
        let read = zstd::Decoder::new(ARCHIVE).and_then(|mut archive| {
            archive.window_log_max(27)?;
            archive.read_to_end(&mut bytes)
        });
        read.map_err(|why| Error::io("the traces in the program", why))?;
        let ends =
            bytes.windows(2).position(|two| two == b"\n\n").ok_or_else(|| damaged("there is no body"))?;
        let body = bytes.split_off(ends + 2);
        let head = String::from_utf8(bytes).map_err(|_| damaged("its head is no text"))?;
        let mut entries = BTreeMap::new();
        let (mut lines, mut at) = (head.lines(), 0);
        while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
            let (name, shape) = Shape::parse(line, &mut lines).ok_or_else(|| damaged(line))?;
            let end = at + shape.bytes(&body[at..])?;
            entries.insert(name, Entry { shape, at });
            at = end;
        }
        Ok(Unpacked { entries, body, folder: Temporary::new("bimetal-traces-")? })
    }

    fn file(&self, name: &str) -> Result<Option<PathBuf>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let path = self.folder.path().join(name);
        if path.exists() {
            return Ok(Some(path));
        }
        let failed = |why| Error::io(path.display(), why);
        fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).map_err(failed)?;
        fs::write(&path, entry.shape.unpack(&self.body[entry.at..])?).map_err(failed)?;
        Ok(Some(path))
    }
}

impl Shape {
    /// What a line describes, and those after it that belong to it.
    fn parse<'l>(line: &str, lines: &mut impl Iterator<Item = &'l str>) -> Option<(String, Shape)> {
        let words: Vec<&str> = line.split(' ').collect();
        let (what, name) = (*words.first()?, (*words.get(1)?).to_string());
        let number = |at: usize| words.get(at)?.parse::<usize>().ok();
        let shape = match what {
            "REQUESTS" => {
                let kinds = (0..number(5)?).map(|_| Kind::parse(lines.next()?)).collect::<Option<_>>()?;
                Shape::Requests {
                    count: number(2)?,
                    unit: number(3)?.try_into().ok()?,
                    lag: number(4)?,
                    kinds,
                }
            }
            "CALLS" => {
                let names =
                    (0..number(3)?).map(|_| Some(lines.next()?.to_string())).collect::<Option<_>>()?;
                Shape::Calls { count: number(2)?, names }
            }
            "COPY" => Shape::Copy { bytes: number(2)? },
            _ => return None,
        };
        Some((name, shape))
    }

    /// Bytes of the columns that `body` begins with.
    fn bytes(&self, body: &[u8]) -> Result<usize> {
        let mut reader = Reader(body);
        match self {
            Shape::Requests { count, kinds, .. } => {
                let mut with_offset = 0;
                for _ in 0..*count {
                    let kind = reader.kind(kinds)?;
                    with_offset += usize::from(kind.has_offset());
                }
                reader.skip(with_offset * (REQUEST_COLUMNS - 1))?;
            }
            Shape::Calls { count, .. } => reader.skip(count * CALL_COLUMNS)?,
            Shape::Copy { bytes } => return Ok(*bytes),
        }
        Ok(body.len() - reader.0.len())
    }

    /// The file.
    fn unpack(&self, body: &[u8]) -> Result<Vec<u8>> {
        match self {
            Shape::Requests { count, unit, lag, kinds } => requests(body, *count, *unit, *lag, kinds),
            Shape::Calls { count, names } => calls(body, *count, names),
            Shape::Copy { bytes } => {
                body.get(..*bytes).map(<[u8]>::to_vec).ok_or_else(|| damaged("a file is cut off"))
            }
        }
    }
}

impl Kind {
    fn parse(line: &str) -> Option<Kind> {
        let mut parts = line.split(',');
        let (op, len) = (parts.next()?.to_string(), parts.next()?.parse().ok()?);
        Some(Kind { op, len, flags: parts.next()?.to_string() })
    }

    /// A flush has none.
    fn has_offset(&self) -> bool {
        self.op != "F"
    }
}

fn requests(body: &[u8], count: usize, unit: i64, lag: usize, kinds: &[Kind]) -> Result<Vec<u8>> {
    let mut chosen = Reader(body);
    let mut offsets = Reader(body);
    offsets.skip(count)?;
    let mut text = String::from(HEADER);
    let mut seen: Vec<Vec<i64>> = vec![Vec::new(); kinds.len()];
    let mut end = 0;
    for _ in 0..count {
        let number = chosen.number(kinds.len())?;
        let kind = &kinds[number];
        let mut offset = 0;
        if kind.has_offset() {
            let of_kind = &mut seen[number];
            let expected = match lag {
                0 => end,
                _ => of_kind.len().checked_sub(lag).map_or(0, |at| of_kind[at]),
            };
            offset = offsets.signed()?.wrapping_add(expected);
            of_kind.push(offset);
            end = offset.wrapping_add(kind.len / unit.max(1));
        }
        line(
            &mut text,
            format_args!("0,{},{},{},{}\n", kind.op, offset.wrapping_mul(unit), kind.len, kind.flags),
        );
    }
    Ok(text.into_bytes())
}

fn calls(body: &[u8], count: usize, names: &[String]) -> Result<Vec<u8>> {
    let mut columns = [Reader(body); CALL_COLUMNS];
    for at in 1..CALL_COLUMNS {
        columns[at] = columns[at - 1];
        columns[at].skip(count)?;
    }
    let [times, called, paths, offsets, lengths] = &mut columns;
    let mut text = String::from(CALLS_HEADER);
    let mut at_of = BTreeMap::new();
    let (mut time, mut path) = (0i64, 0i64);
    for _ in 0..count {
        time = time.wrapping_add(times.signed()?);
        let name = &names[called.number(names.len())?];
        path = path.wrapping_add(paths.signed()?);
        let ended = at_of.entry(path).or_insert(0i64);
        let offset = ended.wrapping_add(offsets.signed()?);
        let length = lengths.signed()?;
        *ended = offset.wrapping_add(length);
        let (seconds, hundredths) = (time / 100, time % 100);
        line(
            &mut text,
            format_args!("{seconds}.{hundredths:02},0,{name},{path},{offset},{length},{length}\n"),
        );
    }
    Ok(text.into_bytes())
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(line);
}

/// Integers of variable length.
#[derive(Clone, Copy)]
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn signed(&mut self) -> Result<i64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or_else(|| damaged("a column is cut off"))?;
            self.0 = rest;
            value |= u64::from(first & 127) << shift;
            if *first < 128 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(damaged("a number is too long"))
    }

    /// A number below `below`.
    fn number(&mut self, below: usize) -> Result<usize> {
        let number = usize::try_from(self.signed()?).ok().filter(|number| *number < below);
        number.ok_or_else(|| damaged("a kind is none"))
    }

    fn kind<'k>(&mut self, kinds: &'k [Kind]) -> Result<&'k Kind> {
        Ok(&kinds[self.number(kinds.len())?])
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.signed().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::TRACES_VARIABLE;
    use bimetal_trace::objects::ObjectTrace;
    use bimetal_trace::{ReadOptions, Source};

    /// The most that the repository is to hold of them.
    const ARCHIVE_MOST: usize = 5 << 19;

    #[test]
    fn traces_are_unpacked_once_as_files_that_are_read_and_go_with_the_last_experiment() {
        assert!(ARCHIVE.len() < ARCHIVE_MOST, "{}", ARCHIVE.len());
        let packed = Packed::default();
        let path = packed.path("block/ext2-seq16.dev.csv.zst").unwrap().unwrap();
        let source = Source::file(&path);
        let records = source.open().unwrap().collect::<Result<Vec<_>>>().unwrap();
        // As the table of the recordings has it: 7 reads, 12 284 writes and 4096 flushes.
        assert_eq!(records.len(), 16_387);
        assert_eq!(packed.name(path.to_str().unwrap()), Some("block/ext2-seq16.dev.csv.zst"));
        assert!(packed.path("block/none").unwrap().is_none() && packed.name("/etc/hosts").is_none());
        let calls = packed.path("syscall/readheavy.csv.zst").unwrap().unwrap();
        assert!(calls.with_file_name("readheavy.paths.csv.zst").exists());
        // Of the data calls 98.8 % read in the whole recording.
        let (most_bytes, read_share) = ObjectTrace::of_calls(&calls).unwrap().shape();
        assert!(most_bytes > 10 << 20 && read_share > 0.97, "{most_bytes} {read_share}");
        fs::write(&path, "as it was").unwrap();
        assert_eq!(
            fs::read(packed.path("block/ext2-seq16.dev.csv.zst").unwrap().unwrap()).unwrap(),
            b"as it was"
        );
        drop(packed);
        assert!(!path.exists() && !calls.parent().unwrap().exists());
    }

    #[test]
    fn all_but_what_the_rule_leaves_out_is_as_it_was_recorded() {
        let Some(folder) = std::env::var_os(TRACES_VARIABLE).map(PathBuf::from) else {
            println!("skipped: {TRACES_VARIABLE} does not name the folder of recorded traces");
            return;
        };
        let packed = Packed::default();
        packed.path("").unwrap();
        let all = packed.0.lock().as_ref().unwrap().entries.clone();
        assert!(all.len() > 35, "{}", all.len());
        for (name, entry) in all {
            let (here, there) = (packed.path(&name).unwrap().unwrap(), folder.join(&name));
            match entry.shape {
                Shape::Requests { .. } => {
                    let read = |path: &Path| {
                        let source = Source::parse(path.to_str().unwrap(), ReadOptions::default()).unwrap();
                        let records = source.open().unwrap().collect::<Result<Vec<_>>>().unwrap();
                        let timeless = records
                            .into_iter()
                            .map(|record| (record.op, record.offset, record.len, record.flags));
                        timeless.collect::<Vec<_>>()
                    };
                    assert!(read(&here) == read(&there), "{name}");
                }
                Shape::Calls { .. } => {
                    // All that they ask objects for, but for the time of the day.
                    let asked = |path: &Path| {
                        let trace = ObjectTrace::of_calls(path).unwrap();
                        let all = trace.requests.iter().map(|request| (request.object, request.ask));
                        (all.collect::<Vec<_>>(), trace.shape())
                    };
                    assert!(asked(&here) == asked(&there), "{name}");
                }
                // Names are left out of it; what it is for is compared with its calls.
                Shape::Copy { .. } if name.contains(".paths") => {}
                _ => assert!(fs::read(&here).unwrap() == unpacked(&there), "{name}"),
            }
        }
    }

    /// What is in a file that may be packed.
    fn unpacked(path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        match zstd::Decoder::new(fs::File::open(path).unwrap()).unwrap().read_to_end(&mut bytes) {
            Ok(_) => bytes,
            Err(_) => fs::read(path).unwrap(),
        }
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let kinds = [Kind { op: "W".into(), len: 512, flags: "-".into() }];
        // A column that ends, a kind that is none, a number without end.
        for body in [&[0u8][..], &[2, 0], &[255; 12]] {
            assert!(requests(body, 1, 512, 0, &kinds).is_err(), "{body:?}");
        }
        assert_eq!(
            requests(&[0, 4], 1, 512, 0, &kinds).unwrap(),
            format!("{HEADER}0,W,1024,512,-\n").into_bytes()
        );
        assert!(calls(&[0; 4], 1, &["open".into()]).is_err());
        assert!(Shape::parse("REQUESTS a 1 512 0 1", &mut [].into_iter()).is_none());
        assert!(Shape::parse("OTHER a", &mut [].into_iter()).is_none());
    }
}
