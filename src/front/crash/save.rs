//! A run in a file.
//!
//! `BIMETCRS`, version (32 bits), CRC-32C of what is compressed (32), its length (64), all little-endian; then, with
//! zstd, a postcard of [`Saved`]. Every number that leads somewhere is checked when it is read.
//!
//! A run is written beside its place first, and takes that when it is whole: an older run there stays until then, and no link is
//! written through that leads nowhere.

use super::calls::{After, Call, CallRequest};
use super::run::Run;
use super::snapshot::{Contents, Seen, Shape, Snapshot};
use crate::checksum::crc32c;
use crate::media::guard;
use crate::media::recorded::{Event, Log, RecordedEvent};
use crate::media::sparse::Sparse;
use crate::media::{BlockDevice, DeviceInfo, Gather, Request, check};
use crate::units::Ino;
use crate::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

const MAGIC: &[u8; 8] = b"BIMETCRS";
const VERSION: u32 = 1;
const HEADER: usize = 24;
const LEVEL: i32 = 3;

/// What a file holds.
#[derive(Serialize, Deserialize)]
struct Saved {
    what: String,
    options: Vec<String>,
    devices: Vec<SavedDevice>,
    start: Vec<(ByteBuf, u64, Shape, u64)>,
    first: Vec<(u64, u64, ByteBuf)>,
    entries: Vec<SavedEntry>,
    calls: Vec<SavedCall>,
}

#[derive(Serialize, Deserialize)]
struct SavedDevice {
    name: String,
    size_bytes: u64,
    block_bytes: u32,
    atomic_bytes: u32,
    rotational: bool,
    chunks: Vec<(u64, ByteBuf)>,
}

#[derive(Serialize, Deserialize)]
struct SavedEntry {
    device: u32,
    event: SavedEvent,
    done: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum SavedEvent {
    Write { offset: u64, data: ByteBuf, durable: bool },
    Flush,
    Discard { offset: u64, len: u64 },
    Mark(String),
}

#[derive(Serialize, Deserialize)]
struct SavedCall {
    ask: SavedAsk,
    begun: u64,
    done: Option<u64>,
    after: Vec<(u64, Shape, u64)>,
}

#[derive(Serialize, Deserialize)]
enum SavedAsk {
    Create(u64, ByteBuf, u64),
    Link(u64, u64, ByteBuf),
    Remove(u64, ByteBuf),
    Rename { from: (u64, ByteBuf), to: (u64, ByteBuf), exchange: bool, whiteout: Option<u64> },
    Write(u64, u64, ByteBuf),
    Zero(u64, u64, u64),
    Attributes(u64),
    Sync(u64),
}

/// Makes a file beside its place, fills it, and has `place` put it there.
fn write_beside<T>(run: &Run, path: &Path, place: impl FnOnce(NamedTempFile) -> Result<T>) -> Result<T> {
    let packed = packed(run)?;
    let mut made = guard::beside(path)?;
    made.write_all(&packed).map_err(|why| Error::io(path.display(), why))?;
    place(made)
}

/// Writes a run to a new file, or in the place of an older run.
pub fn save(run: &Run, path: &Path) -> Result<()> {
    let place = checked(path)?;
    write_beside(run, &place, |made| guard::take_place(made, &place))
}

/// Writes a run to a file of the directory `dir` that is not there yet; which one.
pub fn save_new(run: &Run, dir: &Path) -> Result<PathBuf> {
    let failed = |path: &Path, why| Error::io(path.display(), why);
    let named = |number: u32| dir.join(format!("bimetal-{number}.crash"));
    write_beside(run, &named(1), |mut made| {
        for path in (1..).map(named) {
            match made.persist_noclobber(&path) {
                Ok(_) => return Ok(path),
                Err(why) if why.error.kind() == io::ErrorKind::AlreadyExists => made = why.file,
                Err(why) => return Err(failed(&path, why.error)),
            }
        }
        Err(Error::invalid(format!("{}: there is no free name for the recorded run", dir.display())))
    })
}

/// An error if a run cannot be written there: something else is in the way, or the directory takes no file.
pub fn check_place(path: &Path) -> Result<()> {
    guard::beside(&checked(path)?).map(drop)
}

fn packed(run: &Run) -> Result<Vec<u8>> {
    let saved = pack(run)?;
    let plain =
        postcard::to_allocvec(&saved).map_err(|why| Error::invalid(format!("a run to save: {why}")))?;
    let packed = zstd::encode_all(&plain[..], LEVEL).map_err(|why| Error::io("a run to save", why))?;
    let mut file = Vec::with_capacity(HEADER + packed.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&crc32c(&packed).to_le_bytes());
    file.extend_from_slice(&(packed.len() as u64).to_le_bytes());
    file.extend_from_slice(&packed);
    Ok(file)
}

/// Where a run goes that is to be saved at `path`. What a link leads to is replaced, and the
/// link stays. An error if something that is no run of ours is in the way.
fn checked(path: &Path) -> Result<PathBuf> {
    let (name, failed) = (path.display(), |why| Error::io(path.display(), why));
    let found = match fs::metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(path) {
                Ok(_) => Err(Error::invalid(format!(
                    "{name} is a link that leads nowhere; name a file for the recorded run"
                ))),
                Err(_) => Ok(path.into()),
            };
        }
        found => found.map_err(failed)?,
    };
    if !found.is_file() {
        let what = if found.file_type().is_fifo() { "a FIFO" } else { "no file" };
        return Err(Error::invalid(format!("{name} is {what}; name a file for the recorded run")));
    }
    let is_open =
        |fd| rustix::fs::fstat(fd).is_ok_and(|it| (it.st_dev, it.st_ino) == (found.dev(), found.ino()));
    if is_open(rustix::stdio::stdout()) || is_open(rustix::stdio::stderr()) {
        let text = format!("{name} is where the report goes; name another file for the recorded run");
        return Err(Error::invalid(text));
    }
    let mut head = Vec::new();
    File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head)).map_err(failed)?;
    if !head.is_empty() && head != MAGIC {
        return Err(Error::invalid(format!(
            "{name} holds something else than a recorded run; name another file"
        )));
    }
    fs::canonicalize(path).map_err(failed)
}

/// Reads a run.
pub fn load(path: &Path) -> Result<Run> {
    let mut file = Vec::new();
    guard::input(path)?.read_to_end(&mut file).map_err(|why| Error::io(path.display(), why))?;
    let corrupt = |why: &str| Error::corrupt("recorded run", why, path.display());
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| file[at + i]));
    if file.len() < HEADER || &file[..8] != MAGIC {
        return Err(Error::invalid(format!("{}: no run that bimetal crash --save wrote", path.display())));
    }
    if half(8) != VERSION {
        let why = format!("version {}; this program reads {VERSION}", half(8));
        return Err(Error::unsupported(format!("{}", path.display()), why));
    }
    let len = u64::from_le_bytes(std::array::from_fn(|i| file[16 + i]));
    if len != (file.len() - HEADER) as u64 || crc32c(&file[HEADER..]) != half(12) {
        return Err(corrupt("its checksum or length is wrong"));
    }
    let plain = zstd::decode_all(&file[HEADER..]).map_err(|why| corrupt(&why.to_string()))?;
    let saved = postcard::from_bytes(&plain).map_err(|why| corrupt(&why.to_string()))?;
    unpack(saved).map_err(|why| corrupt(&why.to_string()))
}

fn pack(run: &Run) -> Result<Saved> {
    let devices = run.bases.iter().map(|base| {
        let info = base.info().clone();
        let image = Sparse::copy_of(&**base)?;
        let chunks = image.chunks().iter().map(|(&number, bytes)| (number, buf(bytes))).collect();
        let DeviceInfo { name, size_bytes, block_bytes, atomic_bytes, rotational } = info;
        Ok(SavedDevice { name, size_bytes, block_bytes, atomic_bytes, rotational, chunks })
    });
    let start = run.start.objects.iter();
    Ok(Saved {
        what: run.what.clone(),
        options: run.options.clone(),
        devices: devices.collect::<Result<_>>()?,
        start: start
            .map(|(path, seen)| (buf(path), seen.ino.0, seen.shape.clone(), seen.contents.size))
            .collect(),
        first: run.first.iter().map(|(ino, at, bytes)| (ino.0, *at, buf(bytes))).collect(),
        entries: run.log.entries.iter().map(pack_entry).collect(),
        calls: run.calls.iter().map(pack_call).collect(),
    })
}

fn buf(bytes: &[u8]) -> ByteBuf {
    ByteBuf::from(bytes.to_vec())
}

fn pack_entry(entry: &RecordedEvent) -> SavedEntry {
    let event = match &entry.event {
        Event::Write { offset, durable, .. } => {
            SavedEvent::Write { offset: *offset, data: buf(&entry.event.data()), durable: *durable }
        }
        Event::Flush => SavedEvent::Flush,
        Event::Discard { offset, len } => SavedEvent::Discard { offset: *offset, len: *len },
        Event::Mark(note) => SavedEvent::Mark(note.clone()),
    };
    SavedEntry { device: entry.device as u32, event, done: entry.done.map(|done| done as u64) }
}

fn pack_call(call: &Call) -> SavedCall {
    let place = |(ino, name): &(Ino, Vec<u8>)| (ino.0, buf(name));
    let ask = match &call.ask {
        CallRequest::Create { parent, name, ino } => SavedAsk::Create(parent.0, buf(name), ino.0),
        CallRequest::Link { ino, parent, name } => SavedAsk::Link(ino.0, parent.0, buf(name)),
        CallRequest::Remove { parent, name } => SavedAsk::Remove(parent.0, buf(name)),
        CallRequest::Rename { from, to, exchange, whiteout } => SavedAsk::Rename {
            from: place(from),
            to: place(to),
            exchange: *exchange,
            whiteout: whiteout.map(|ino| ino.0),
        },
        CallRequest::Write { ino, offset, data } => SavedAsk::Write(ino.0, *offset, buf(data)),
        CallRequest::Zero { ino, offset, len } => SavedAsk::Zero(ino.0, *offset, *len),
        CallRequest::Attributes { ino } => SavedAsk::Attributes(ino.0),
        CallRequest::Sync { ino } => SavedAsk::Sync(ino.0),
    };
    let after = call.after.iter().map(|after| (after.ino.0, after.shape.clone(), after.size)).collect();
    SavedCall { ask, begun: call.begun as u64, done: call.done.map(|done| done as u64), after }
}

fn unpack(saved: Saved) -> Result<Run> {
    let infos: Vec<DeviceInfo> = saved.devices.iter().map(info).collect::<Result<_>>()?;
    let bases = saved.devices.into_iter().zip(&infos).map(|(device, info)| {
        let chunks = device.chunks.into_iter().map(|(number, bytes)| (number, Bytes::from(bytes.into_vec())));
        Ok(Arc::new(Sparse::from_chunks(info.clone(), chunks.collect())?) as Arc<dyn BlockDevice>)
    });
    let bases = bases.collect::<Result<_>>()?;
    let entries =
        saved.entries.into_iter().map(|entry| unpack_entry(entry, &infos)).collect::<Result<_>>()?;
    let calls = saved.calls.into_iter().map(unpack_call).collect::<Result<_>>()?;
    for (_, at, bytes) in &saved.first {
        end_of(*at, bytes)?;
    }
    let first = saved.first.into_iter();
    Ok(Run {
        what: saved.what,
        options: saved.options,
        bases,
        start: unpack_start(saved.start)?,
        first: first.map(|(ino, at, bytes)| (Ino(ino), at, Bytes::from(bytes.into_vec()))).collect(),
        log: Log { entries, devices: infos },
        calls,
    })
}

/// Where bytes of a file end.
fn end_of(offset: u64, bytes: &[u8]) -> Result<u64> {
    let end = offset.checked_add(bytes.len() as u64);
    end.ok_or_else(|| Error::invalid(format!("{} bytes at {offset} of a file", bytes.len())))
}

fn info(device: &SavedDevice) -> Result<DeviceInfo> {
    let block = device.block_bytes;
    let fits = block.is_power_of_two() && (512..=65_536).contains(&block);
    let atomic = device.atomic_bytes;
    if !fits
        || atomic == 0
        || !atomic.is_multiple_of(block)
        || !device.size_bytes.is_multiple_of(block.into())
    {
        return Err(Error::invalid(format!("device {}: blocks of {block} bytes", device.name)));
    }
    Ok(DeviceInfo {
        name: device.name.clone(),
        size_bytes: device.size_bytes,
        block_bytes: block,
        atomic_bytes: atomic,
        rotational: device.rotational,
    })
}

fn unpack_entry(entry: SavedEntry, devices: &[DeviceInfo]) -> Result<RecordedEvent> {
    let device = entry.device as usize;
    let info = devices.get(device).ok_or_else(|| Error::invalid(format!("there is no device {device}")))?;
    let event = match entry.event {
        SavedEvent::Write { offset, data, durable } => {
            let data = Gather::from_iter([Bytes::from(data.into_vec())]);
            check(info, &Request::Write { offset, data: data.clone(), durable })?;
            Event::Write { offset, data, durable }
        }
        SavedEvent::Discard { offset, len } => {
            check(info, &Request::Discard { offset, len })?;
            Event::Discard { offset, len }
        }
        SavedEvent::Flush => Event::Flush,
        SavedEvent::Mark(note) => Event::Mark(note),
    };
    Ok(RecordedEvent { device, event, done: entry.done.map(|done| done as usize) })
}

fn unpack_start(start: Vec<(ByteBuf, u64, Shape, u64)>) -> Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    for (path, ino, shape, size) in start {
        let contents = Contents { size, digest: 0 };
        snapshot.objects.insert(path.into_vec(), Seen { ino: Ino(ino), shape, contents });
    }
    let parent = |path: &[u8]| path.iter().rposition(|&byte| byte == b'/').map(|cut| path[..cut].to_vec());
    let known = |path: &Vec<u8>| {
        path.is_empty() || parent(path).is_some_and(|parent| snapshot.objects.contains_key(&parent))
    };
    match snapshot.objects.contains_key(&Vec::new()) && snapshot.objects.keys().all(known) {
        true => Ok(snapshot),
        false => Err(Error::invalid("a path without the directory above it")),
    }
}

fn unpack_call(call: SavedCall) -> Result<Call> {
    let place = |(ino, name): (u64, ByteBuf)| (Ino(ino), name.into_vec());
    let ask = match call.ask {
        SavedAsk::Create(parent, name, ino) => {
            CallRequest::Create { parent: Ino(parent), name: name.into_vec(), ino: Ino(ino) }
        }
        SavedAsk::Link(ino, parent, name) => {
            CallRequest::Link { ino: Ino(ino), parent: Ino(parent), name: name.into_vec() }
        }
        SavedAsk::Remove(parent, name) => CallRequest::Remove { parent: Ino(parent), name: name.into_vec() },
        SavedAsk::Rename { from, to, exchange, whiteout } => {
            CallRequest::Rename { from: place(from), to: place(to), exchange, whiteout: whiteout.map(Ino) }
        }
        SavedAsk::Write(ino, offset, data) => {
            end_of(offset, &data)?;
            CallRequest::Write { ino: Ino(ino), offset, data: Bytes::from(data.into_vec()) }
        }
        SavedAsk::Zero(ino, offset, len) => CallRequest::Zero { ino: Ino(ino), offset, len },
        SavedAsk::Attributes(ino) => CallRequest::Attributes { ino: Ino(ino) },
        SavedAsk::Sync(ino) => CallRequest::Sync { ino: Ino(ino) },
    };
    let after = call.after.into_iter().map(|(ino, shape, size)| After { ino: Ino(ino), shape, size });
    Ok(Call {
        ask,
        begun: call.begun as usize,
        done: call.done.map(|done| done as usize),
        after: after.collect(),
    })
}
