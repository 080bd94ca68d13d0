//! `bimetal osd`: objects of a store in an image, by their numbers.

use super::progress::Progress;
use crate::front::kinds::probe::{Given, misnamed};
use crate::front::objects::{Setup, measure};
use crate::front::trace::objects::{Made, ObjectTrace};
use crate::fs::osd::{Cleaning, Content, ObjectId, Stat, Store};
use crate::fs::osdfs::{has_root, is_a_file, volume};
use crate::media::guard;
use crate::media::nand::NandProfile;
use crate::media::profile;
use crate::runtime;
use crate::time::Stamp;
use crate::{Error, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  A store, an object from a stream, and back:
    bimetal mkfs osd --bare --nand nand.img --size 256MiB
    tar c ~/photos | bimetal osd put --nand nand.img -     (prints the object's number)
    bimetal osd get --nand nand.img 1 | tar t
  What is there:
    bimetal osd ls -l --nand nand.img
    bimetal osd stat --nand nand.img 1
  How much cleaning a trace costs, by placement:
    strace -f -y -ttt -s 0 -o make.strace make
    bimetal osd replay make.strace --placement combined,lifetime";

const PUT: &str = "\
Examples:
  bimetal osd put --nand nand.img a.txt                        a new object; its number is printed
  date | bimetal osd put --nand nand.img --id 9 -              of this number, from a stream
  bimetal osd put --nand nand.img --id 9 --append a.txt        behind its end";
const GET: &str = "\
Examples:
  bimetal osd get --nand nand.img 3
  bimetal osd get --nand nand.img 3 -o copy.txt";
const LS: &str = "\
Examples:
  bimetal osd ls --nand nand.img
  bimetal osd ls -l --nand nand.img                            with sizes and times";
const STAT: &str = "\
Examples:
  bimetal osd stat --nand nand.img                             of the store
  bimetal osd stat --json --nand nand.img 3";
const RM: &str = "\
Example:
  bimetal osd rm --nand nand.img 3";
const REPLAY: &str = "\
Examples:
  bimetal osd replay made:objects=200,requests=2000 --placement combined,lifetime
  bimetal osd replay make.strace --json";

/// Objects of an object store by their numbers
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Osd {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Args, Debug)]
struct Image {
    /// Image of the NAND
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    nand: PathBuf,
    /// Profile of the NAND part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = volume::DEVICE)]
    device: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write a file or standard input into an object, and print the object's number
    #[command(after_help = PUT)]
    Put {
        #[command(flatten)]
        image: Image,
        /// The object's number: its contents are replaced, or it is made [default: a new one]
        #[arg(long, value_name = "ID")]
        id: Option<u64>,
        /// Write behind the end of the object
        #[arg(long, requires = "id")]
        append: bool,
        /// What is known of the lifetime of its bytes: 0 nothing, else 1 (shortest) to 255; from 128 on, the placement
        /// lifetime puts them with what outlived a cleaning
        #[arg(long, default_value_t = 0)]
        hint: u8,
        /// Also a new object beside the files of a file system on the store; it has no name there, and `fsck` takes it for lost
        #[arg(long)]
        force: bool,
        /// The number as JSON
        #[arg(long)]
        json: bool,
        /// What to write; `-` is standard input
        file: PathBuf,
    },
    /// Write an object's contents to standard output or a file
    #[command(after_help = GET)]
    Get {
        #[command(flatten)]
        image: Image,
        /// The object's number
        id: u64,
        /// Where to [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List the numbers of all objects
    #[command(after_help = LS)]
    Ls {
        #[command(flatten)]
        image: Image,
        /// With size, space taken and time of the last change
        #[arg(short)]
        long: bool,
        /// As JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Show an object's state and attributes, or the store's
    #[command(after_help = STAT)]
    Stat {
        #[command(flatten)]
        image: Image,
        /// The object's number; without it the store's space
        id: Option<u64>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove objects
    #[command(after_help = RM)]
    Rm {
        #[command(flatten)]
        image: Image,
        /// Which were removed, as JSON
        #[arg(long)]
        json: bool,
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<u64>,
        /// Also what is a file of a file system on the store
        #[arg(long)]
        force: bool,
    },
    /// Run a trace on stores in memory until they are in a steady state, and show what cleaning costs
    #[command(after_help = REPLAY)]
    Replay(Replay),
}

#[derive(Args, Debug)]
struct Replay {
    /// strace's output, a recording of `bimetal record`, a system-call trace, or made:KEY=VALUE,… (objects size
    /// requests read seed)
    trace: String,
    /// Placements to compare
    #[arg(long, value_delimiter = ',', default_value = "combined,split,split-atime,lifetime")]
    placement: Vec<String>,
    /// The most that objects fill of the flash, percent
    #[arg(long, default_value_t = 80.0)]
    utilisation: f64,
    /// Erase blocks of a segment
    #[arg(long, default_value_t = 1)]
    segment: u32,
    /// Profile of the NAND part
    #[arg(long, value_name = "PROFILE", default_value = "slc-4k")]
    device: String,
    /// Number that everything random follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// As JSON, one object a placement and line
    #[arg(long)]
    json: bool,
}

/// Bytes moved at a time.
const CHUNK: usize = 1 << 20;

impl Image {
    fn open(&self, writable: bool) -> Result<Store> {
        let given = Given { role: "nand", of: &["osd"], path: &self.nand };
        let store = volume::open(&self.nand, &self.device, writable);
        let mut store = store.map_err(|why| misnamed(why, &[given]))?;
        store.arrive(runtime::Live::wall_clock().into());
        Ok(store)
    }

    /// The refusal of a new object that would have no name.
    fn has_a_file_system(&self) -> Error {
        let nand = self.nand.display();
        Error::invalid(format!(
            "{nand}: there is a file system on this store, in which a new object would have no name: bimetal put --nand {nand} makes a \
             file; a store of objects alone is made with mkfs osd --bare; osd put --force makes the object all the same"
        ))
    }
}

impl Osd {
    pub fn run(&self) -> Result<ExitCode> {
        match &self.verb {
            Verb::Put { image, id, append, hint, force, json, file } => {
                let mut store = image.open(true)?;
                if !force && !id.map_or(Ok(false), |id| store.exists(ObjectId(id)))? && has_root(&mut store) {
                    return Err(image.has_a_file_system());
                }
                let progress = Progress::spinner("writing the object");
                let put = put(&mut store, id.map(ObjectId), *append, *hint, file);
                let closed = store.close();
                progress.done();
                let id = put?;
                super::say(&if *json { json!({ "id": id.0 }).to_string() } else { id.to_string() })?;
                closed?;
            }
            Verb::Get { image, id, output } => get(&mut image.open(false)?, *id, output.as_deref())?,
            Verb::Ls { image, long, json } => list(&mut image.open(false)?, *long, *json)?,
            Verb::Stat { image, id, json } => stat(&mut image.open(false)?, *id, *json)?,
            Verb::Rm { image, ids, json, force } => {
                remove(image.open(true)?, ids, *force)?;
                if *json {
                    super::say(&json!({ "removed": ids }).to_string())?;
                }
            }
            Verb::Replay(replay) => replay.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn named(id: ObjectId, why: Error) -> Error {
    match why {
        Error::NotFound => Error::invalid(format!("object {id}: there is none")),
        why => why,
    }
}

/// Refuses what a file system on the store would miss.
fn check_free(store: &mut Store, id: ObjectId) -> Result<()> {
    match is_a_file(store, id)? {
        true => Err(Error::invalid(format!(
            "object {id} is a file of the file system on this store; use bimetal put and mount, or rm --force"
        ))),
        false => Ok(()),
    }
}

/// Writes an object. One that cannot be written whole is not there, one that cannot be made longer is as it was. Nothing changes
/// before something could be read.
fn put(store: &mut Store, id: Option<ObjectId>, append: bool, hint: u8, from: &Path) -> Result<ObjectId> {
    let mut input: Box<dyn Read> = match from.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(guard::input(from).map_err(|why| match why {
            Error::Invalid(why) => Error::invalid(format!("{why}, or - and give it to standard input")),
            why => why,
        })?),
    };
    let first = read_chunk(&mut input, from)?;
    let (id, before) = match id {
        None => (store.create(hint)?, None),
        Some(id) if !store.exists(id)? => {
            store.create_as(id, hint)?;
            (id, None)
        }
        Some(id) => {
            check_free(store, id)?;
            if !append {
                store.truncate(id, 0)?;
            }
            (id, Some(store.stat(id)?.size))
        }
    };
    let Err(why) = pour(store, id, first, input, from) else { return Ok(id) };
    let undone = match before {
        None => store.remove(id),
        Some(size) => store.truncate(id, size),
    };
    Err(match (undone, append || before.is_none()) {
        (Ok(()), true) => why,
        (Ok(()), false) => {
            Error::invalid(format!("{why}; object {id}, which was to be replaced, is empty now"))
        }
        (Err(second), _) => Error::invalid(format!("{why}; object {id} holds a part of it: {second}")),
    })
}

/// Appends what an input gives to an object, after the first chunk of it.
fn pour(store: &mut Store, id: ObjectId, first: Vec<u8>, mut input: impl Read, from: &Path) -> Result<()> {
    let mut chunk = first;
    while !chunk.is_empty() {
        store.append_to(id, Content::Bytes(&chunk))?;
        chunk = read_chunk(&mut input, from)?;
    }
    Ok(())
}

/// The next bytes that an input gives; none at its end.
fn read_chunk(input: &mut dyn Read, from: &Path) -> Result<Vec<u8>> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match input.read(&mut chunk) {
            Ok(len) => {
                chunk.truncate(len);
                return Ok(chunk);
            }
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(Error::io(from.display(), why)),
        }
    }
}

fn get(store: &mut Store, id: u64, to: Option<&Path>) -> Result<()> {
    let id = ObjectId(id);
    match to {
        None => match copy(store, id, &mut io::stdout().lock(), "standard output") {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done,
        },
        Some(path) => {
            crate::front::signals::end_whole(|| ())?;
            guard::whole(path, |file| copy(store, id, file, &path.display().to_string()))
        }
    }
}

/// Writes an object's bytes to an output that messages call `name`.
fn copy(store: &mut Store, id: ObjectId, output: &mut dyn Write, name: &str) -> Result<()> {
    let size = store.stat(id).map_err(|why| named(id, why))?.size;
    let failed = |why| Error::io(name, why);
    let mut at = 0;
    while at < size {
        let bytes = store.peek(id, at, CHUNK)?;
        output.write_all(&bytes).map_err(failed)?;
        at += bytes.len() as u64;
    }
    output.flush().map_err(failed)
}

fn shown(stamp: Stamp) -> String {
    let since = Duration::new(u64::try_from(stamp.sec).unwrap_or(0), stamp.nsec);
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

fn as_json(id: ObjectId, stat: &Stat) -> Value {
    json!({
        "id": id, "size": stat.size, "stored": stat.stored, "hint": stat.hint,
        "created": shown(stat.created), "modified": shown(stat.modified),
        "changed": shown(stat.changed), "accessed": shown(stat.accessed),
    })
}

fn list(store: &mut Store, long: bool, json: bool) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut next = ObjectId(0);
    if long && !json {
        super::said(writeln!(out, "{:>10} {:>12} {:>12} modified", "object", "bytes", "stored"))?;
    }
    // In pieces, so that a store of many objects needs no memory for its list.
    loop {
        let mut ids = Vec::new();
        store.list(next, &mut |id| {
            ids.push(id);
            ids.len() < 1024
        })?;
        let Some(last) = ids.last().copied() else { break };
        for id in ids {
            let line = match (json, long) {
                (false, false) => id.to_string(),
                (true, _) => as_json(id, &store.stat(id)?).to_string(),
                (false, true) => {
                    let stat = store.stat(id)?;
                    format!("{id:>10} {:>12} {:>12} {}", stat.size, stat.stored, shown(stat.modified))
                }
            };
            super::said(writeln!(out, "{line}"))?;
        }
        next = ObjectId(last.0 + 1);
    }
    super::said(out.flush())
}

fn stat(store: &mut Store, id: Option<u64>, json: bool) -> Result<()> {
    let status = match id.map(ObjectId) {
        Some(id) => {
            let mut status = as_json(id, &store.stat(id).map_err(|why| named(id, why))?);
            let mut attributes = json!({});
            for name in store.list_attributes(id)? {
                super::set_name(
                    &mut attributes,
                    &String::from_utf8_lossy(&name),
                    &store.get_attribute(id, &name)?,
                );
            }
            status["attributes"] = attributes;
            status
        }
        None => json!({ "placement": store.placement(), "space": store.capacity() }),
    };
    let text =
        if json { status.to_string() } else { serde_json::to_string_pretty(&status).unwrap_or_default() };
    super::say(&text)
}

fn remove(mut store: Store, ids: &[u64], force: bool) -> Result<()> {
    let removed = ids.iter().map(|id| ObjectId(*id)).try_for_each(|id| {
        if !force {
            check_free(&mut store, id)?;
        }
        store.remove(id).map_err(|why| named(id, why))
    });
    let closed = store.close();
    removed?;
    closed
}

impl Replay {
    fn run(&self) -> Result<()> {
        let trace = match self.trace.strip_prefix("made:").or((self.trace == "made").then_some("")) {
            Some(text) => text.parse::<Made>()?.trace(),
            None => ObjectTrace::of_calls(Path::new(&self.trace))?,
        };
        if !(10.0..=95.0).contains(&self.utilisation) {
            return Err(Error::invalid("--utilisation is from 10 to 95 percent"));
        }
        let part: NandProfile = profile::load(&self.device)?;
        if !self.json {
            super::say(&format!(
                "{:<12} {:>9} {:>10} {:>10} {:>12} {:>8}",
                "placement", "requests", "segments", "empty", "copied", "written"
            ))?;
        }
        for placement in &self.placement {
            let setup = Setup {
                placement: placement.clone(),
                segment_blocks: self.segment,
                utilisation: self.utilisation / 100.0,
                cleaning: Cleaning::CostBenefit,
                commit_every: Duration::from_secs(5),
            };
            let measured = measure(&trace, &part, &setup, self.seed)?;
            if self.json {
                super::say(&json!({ "placement": placement, "measured": measured }).to_string())?;
                continue;
            }
            let (counts, passes) = (measured.counts, f64::from(measured.passes.1));
            let written = counts.pages() as f64 * part.page as f64 / counts.data_bytes.max(1) as f64;
            super::say(&format!(
                "{placement:<12} {:>9} {:>10.1} {:>10.1} {:>12.0} {written:>8.3}",
                measured.requests,
                counts.segments_cleaned as f64 / passes,
                counts.empty_segments as f64 / passes,
                counts.bytes_copied() as f64 / passes,
            ))?;
        }
        Ok(())
    }
}
