//! `bimetal scrub`: are the copies on the SSD what they were when they were written?

use super::progress::Progress;
use super::status::read;
use crate::front::fuse::STATUS;
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::fs::FileSystem;
use crate::units::{parse_size, show_size};
use crate::{Error, Result};
use clap::Args;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  bimetal scrub /mnt                                       a mount, while it is used
  bimetal scrub --rate 200MiB/s --ssd ssd.img --disk disk.img
  0 3 * * 0  bimetal scrub --rate 20MiB/s /mnt             each Sunday, in a crontab
Ends with 0 when every copy is right, with 1 when some were wrong, or dropped before they could be verified: those
that the disk has are dropped.";

/// The attribute of the root that orders a step and tells what it found.
const SCRUB: &str = "bimetal.scrub";
/// Bytes of a step.
const STEP_BYTES: u64 = 1 << 20;
/// Who waits for the next step says so as often; the mount forgets who is silent for ten seconds.
const PAUSE: Duration = Duration::from_secs(1);
/// Room for what a step found.
const ROOM: usize = 64 << 10;
/// So many bad blocks are named.
const NAMED: usize = 100;

/// Verify the checksums of all copies on the SSD, and drop the bad ones that the disk has
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Scrub {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Read at most so much a second
    #[arg(long, value_name = "SIZE/s", default_value = "50MiB/s", value_parser = parse_rate)]
    rate: u64,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// The directory that is mounted on; without it the halves, which must not be mounted
    #[arg(conflicts_with_all = ["nand", "nvram"])]
    mountpoint: Option<PathBuf>,
}

/// `50MiB/s` or `50MiB`, bytes a second.
fn parse_rate(text: &str) -> Result<u64> {
    match parse_size(text.strip_suffix("/s").unwrap_or(text))? {
        0 => Err(Error::invalid("a rate of nothing never ends; write for example --rate 50MiB/s")),
        rate => Ok(rate),
    }
}

/// Whoever is asked for the steps.
enum Scrubbed<'a> {
    Mount(&'a Path),
    Volume(Box<dyn FileSystem>),
}

impl Scrubbed<'_> {
    fn order(&self, order: &str) -> Result<()> {
        match self {
            Scrubbed::Mount(place) => {
                let set = rustix::fs::setxattr(*place, SCRUB, order.as_bytes(), XattrFlags::empty());
                set.map_err(|why| refused(place, why))
            }
            Scrubbed::Volume(fs) => fs.control_set(fs.root(), SCRUB, order.as_bytes()),
        }
    }

    fn found(&self) -> Result<Value> {
        let text = match self {
            Scrubbed::Mount(place) => {
                let mut text = Vec::with_capacity(ROOM);
                rustix::fs::getxattr(*place, SCRUB, rustix::buffer::spare_capacity(&mut text))
                    .map_err(|why| refused(place, why))?;
                text
            }
            Scrubbed::Volume(fs) => fs.control_get(fs.root(), SCRUB)?,
        };
        serde_json::from_slice(&text).map_err(|why| Error::corrupt("what a scrub found", why, SCRUB))
    }
}

fn refused(place: &Path, why: Errno) -> Error {
    match why {
        Errno::NODATA | Errno::OPNOTSUPP => Error::invalid(format!(
            "{}: no nfhybrid is mounted here; only that has copies on an SSD",
            place.display()
        )),
        Errno::NOTCONN => super::status::dead(place),
        Errno::IO => match lost_ssd(place) {
            Some(why) => Error::invalid(format!("{}: nothing was verified: {why}", place.display())),
            None => Error::io(format!("scrubbing {}", place.display()), why.into()),
        },
        Errno::BUSY => Error::InUse(format!(
            "{}: it is being scrubbed; wait for the other one's end, or, if that was killed, ten seconds",
            place.display()
        )),
        why => Error::io(format!("scrubbing {}", place.display()), why.into()),
    }
}

/// Why a mount has no SSD whose copies could be verified, if it has none.
fn lost_ssd(place: &Path) -> Option<String> {
    let status = read(place).ok()?;
    match (status["ssd_lost"].as_str(), &status["ssd_half"]) {
        (Some(why), _) => Some(format!("the SSD is lost ({why})")),
        (None, Value::Null) => Some("it is mounted without its SSD half".into()),
        _ => None,
    }
}

/// What was found in all.
#[derive(Default)]
struct Sum {
    bytes: u64,
    bad: Vec<Value>,
    blocks: u64,
    left: u64,
    /// What was noticed when the volume was opened: copies that were dropped there were not verified.
    notes: Vec<String>,
}

impl Sum {
    /// Adds what a step found.
    fn add(&mut self, found: &Value) {
        self.bytes += found["bytes"].as_u64().unwrap_or(0);
        for bad in found["bad"].as_array().into_iter().flatten() {
            self.blocks += 1;
            self.left += u64::from(bad["dropped"] == false);
            if self.bad.len() < NAMED {
                self.bad.push(bad.clone());
            }
        }
    }
}

/// What a volume noticed when it was opened.
fn notes_of(fs: &dyn FileSystem) -> Vec<String> {
    let status = fs.control_get(fs.root(), STATUS).unwrap_or_default();
    let status: Value = serde_json::from_slice(&status).unwrap_or_default();
    let notes = status["notes"].as_array().into_iter().flatten();
    notes.filter_map(|note| note.as_str().map(String::from)).collect()
}

impl Scrub {
    pub fn run(&self) -> Result<ExitCode> {
        if self.mountpoint.is_none() && self.volume.ssd.is_none() {
            return Err(Error::invalid(
                "scrub verifies the copies on an SSD half, and none is named: give --ssd and --disk, or the directory that \
                 is mounted on",
            ));
        }
        let progress = Progress::spinner("scrubbing");
        let scrubbed = match &self.mountpoint {
            Some(place) => Scrubbed::Mount(place),
            None => Scrubbed::Volume(volume::open(&self.volume, Access::Write, &[])?),
        };
        let mut sum = Sum::default();
        let ended = self.all(&scrubbed, &progress, &mut sum);
        if let Scrubbed::Volume(fs) = &scrubbed {
            sum.notes = notes_of(&**fs);
        }
        progress.done();
        let shut = match &scrubbed {
            Scrubbed::Volume(fs) => fs.shutdown(),
            Scrubbed::Mount(_) => Ok(()),
        };
        if let Err(why) = ended.and(shut) {
            // What was found until then is told by nobody else.
            if sum.blocks > 0 || !sum.notes.is_empty() {
                self.tell(&sum, false)?;
            }
            return Err(why);
        }
        self.tell(&sum, true)?;
        Ok(if sum.blocks == 0 && sum.notes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn all(&self, scrubbed: &Scrubbed, progress: &Progress, sum: &mut Sum) -> Result<()> {
        // By this the mount tells this scrub from another one; two containers may have the same process number.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{}-{}", std::process::id(), since.as_nanos());
        let (step, wait) = (format!("{} {name}", STEP_BYTES.min(self.rate)), format!("wait {name}"));
        scrubbed.order(&format!("start {name}"))?;
        let done = self.steps(scrubbed, progress, sum, (&step, &wait));
        // Until then nobody else's results take the place of these, nor does anybody begin.
        let ended = scrubbed.order(&format!("end {name}"));
        done.and(ended)
    }

    fn steps(
        &self,
        scrubbed: &Scrubbed,
        progress: &Progress,
        sum: &mut Sum,
        (step, wait): (&str, &str),
    ) -> Result<()> {
        let began = Instant::now();
        loop {
            let done = scrubbed.order(step);
            // A step that failed has found something before.
            let found = match (&done, scrubbed.found()) {
                (Err(Error::InUse(_)), _) | (Err(_), Err(_)) => Value::Null,
                (_, found) => found?,
            };
            sum.add(&found);
            done?;
            if found["done"] == true {
                return Ok(());
            }
            progress.now(format!("scrubbing, {} so far", show_size(sum.bytes)));
            let due = Duration::from_secs_f64(sum.bytes as f64 / self.rate as f64);
            while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
                thread::sleep(left.min(PAUSE));
                if left > PAUSE {
                    scrubbed.order(wait)?;
                }
            }
        }
    }

    /// Says what was found; of a scrub that did not come to its end that it is not all.
    fn tell(&self, sum: &Sum, is_all: bool) -> Result<()> {
        if self.json {
            let all = json!({
                "bytes": sum.bytes,
                "bad_blocks": sum.blocks,
                "not_healed": sum.left,
                "bad": sum.bad,
                "notes": sum.notes,
                "complete": is_all,
            });
            return super::say(&super::as_text(&all));
        }
        for bad in &sum.bad {
            let fate = match (bad["dropped"] == true, bad["on_disk"] == true) {
                (true, _) => "dropped; the disk has it",
                (false, true) => "the disk has it",
                (false, false) => "the disk lacks it",
            };
            let why = bad["why"].as_str().unwrap_or("");
            super::say(&format!("Block {} of inode {}: {why}; {fate}.", bad["file_block"], bad["ino"]))?;
        }
        for note in &sum.notes {
            super::say(&format!("When the volume was opened: {note}."))?;
        }
        if !is_all {
            let read = show_size(sum.bytes);
            return super::say(&format!(
                "It ended early: {} bad blocks in {read}; {} of them remain.",
                sum.blocks, sum.left
            ));
        }
        super::say(&match (sum.blocks, sum.left) {
            (0, _) if !sum.notes.is_empty() => {
                format!("What is left of the copies on the SSD is right; {} were read.", show_size(sum.bytes))
            }
            (0, _) => format!("Every copy on the SSD is right; {} were read.", show_size(sum.bytes)),
            (bad, 0) => format!("{bad} bad blocks in {} are dropped.", show_size(sum.bytes)),
            (bad, left) => format!("{bad} bad blocks in {}; {left} of them remain.", show_size(sum.bytes)),
        })
    }
}
