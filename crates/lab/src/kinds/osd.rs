//! osd: an object store on raw NAND, with a file system above it.

use super::probe::{Part, is_file};
use super::volume::{Access, CheckOptions, CheckReport, PART, Prepared, Problem, VolumeArgs, me};
use super::{Kind, LiesOn, Made, Make, Mkfs};
use crate::names::{DEVICE, PLACEMENT};
use crate::replay::Args as ReplayArgs;
use crate::replay::files::{Subject, Tree, part};
use bimetal_base::error::shown;
use bimetal_base::runtime::Clock;
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_media::metered::Devices;
use bimetal_media::nand::{Nand, Payload};
use bimetal_osd_core::{Format, Mended, Options, Store};
use bimetal_osdfs::{OsdFs, volume};
use bimetal_vfs::{Caller, FileSystem};
use clap::{Args, FromArgMatches};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See [`super`].
pub const KIND: Kind = Kind {
    name: "osd",
    about: "an object store on raw NAND, one translation layer, with names above it",
    options: &[],
    access_times: false,
    lies_on: LiesOn::Nand { nvram: false },
    mkfs: Some(Mkfs {
        command: |command| {
            OsdArgs::augment_args(command)
                .about("Make an object store on an image of a NAND part, with a file system on it")
                .after_help(EXAMPLES)
        },
        parse: |matches| Ok(Box::new(OsdArgs::from_arg_matches(matches)?)),
    }),
    open: Some(open),
    check: Some(check),
    probe: Some(probe),
    play: Some(play),
};

fn probe(path: &Path) -> Result<Option<Part>> {
    let is_one = is_file(path) && Nand::is_image(path);
    Ok(is_one.then_some(Part { role: "nand", volume: None, uuid: None, state: None }))
}

const EXAMPLES: &str = "\
Example:
  An object store of 256 MiB with a file system on it, mounted and unmounted:
    bimetal mkfs osd --nand nand.img --size 256MiB
    bimetal mount -t osd --nand nand.img /mnt
    bimetal umount /mnt";

/// What `mkfs osd` is told.
#[derive(Args, Clone, Debug)]
pub struct OsdArgs {
    /// Profile of the part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = PART, value_parser = DEVICE, hide_possible_values = true)]
    pub device: String,
    /// Image of the NAND, made or overwritten
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: PathBuf,
    /// Size of the image's pages [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Where bytes go: combined, split, split-atime or lifetime, with settings as split-atime:entries=4096
    #[arg(long, value_name = "NAME", default_value = "lifetime", value_parser = PLACEMENT, hide_possible_values = true)]
    pub placement: String,
    /// Erase blocks of a segment
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub segment: u32,
    /// Without a file system: objects by their numbers only
    #[arg(long)]
    pub bare: bool,
    /// Go ahead although the image holds something
    #[arg(long)]
    pub force: bool,
}

impl Make for OsdArgs {
    fn make(&self) -> Result<Made> {
        let plan = volume::Plan {
            nand: self.nand.clone(),
            device: self.device.clone(),
            size_bytes: self.size,
            format: Format { segment_blocks: self.segment, placement: self.placement.clone() },
            bare: self.bare,
            force: self.force,
        };
        let bytes = volume::make(&plan, &me())?;
        let told = json!({ "type": KIND.name, "bytes": bytes, "has_files": !self.bare });
        let total = show_size(bytes);
        let named = if self.device == PART { String::new() } else { format!(" --device {}", self.device) };
        let nand = shown(self.nand.as_os_str().as_bytes());
        let text = match self.bare {
            true => format!(
                "made an object store of {total}; put objects into it with:\n  bimetal osd put --nand {nand}{named} FILE"
            ),
            false => format!(
                "made an object store of {total} with a file system; mount it with:\n  bimetal mount -t osd --nand {nand}{named} MOUNTPOINT"
            ),
        };
        Ok(Made { text, told })
    }
}

fn open<'a>(args: &'a VolumeArgs, access: Access, _: &[String]) -> Result<Box<dyn Prepared + 'a>> {
    Ok(Box::new(volume::claim(args.nand()?, &args.device, access == Access::Write)?))
}

impl Prepared for volume::Claimed {
    fn look(&self) -> Result<Box<dyn FileSystem>> {
        Ok(Box::new(self.to_read()?.mount()?))
    }

    fn begin(self: Box<Self>) -> Result<(Box<dyn FileSystem>, Devices)> {
        Ok((Box::new(self.mount()?), Devices::new()))
    }
}

fn check(args: &VolumeArgs, options: CheckOptions, _: &dyn Fn(&'static str)) -> Result<CheckReport> {
    let (mut store, mut mended) = match volume::open(args.nand()?, &args.device, options.repair) {
        // No checkpoint can be read, or the log has a gap.
        Err(Error::Corrupt { .. } | Error::Invalid(_)) if options.repair && options.lossy => {
            volume::rebuild(args.nand()?, &args.device)?
        }
        opened => (opened?, Vec::new()),
    };
    let mut failed = Vec::new();
    if options.repair {
        failed.extend(bimetal_osdfs::repair(&mut store, options.lossy, &mut mended).err());
    }
    let changed = !mended.is_empty();
    if changed {
        failed.extend(store.close().err());
    }
    let looked = store.check(true).and_then(|checked| Ok((checked, bimetal_osdfs::check(&mut store)?)));
    let (checked, above) = looked.unwrap_or_else(|why| {
        failed.push(why);
        Default::default()
    });
    if !changed && !failed.is_empty() {
        return Err(failed.swap_remove(0));
    }
    let problem = |why: String, repaired, lost| Problem {
        what: args.source(),
        why: why + ".",
        count: 1,
        repaired,
        lost,
    };
    let mended = mended.into_iter().map(|Mended { what, lost }| problem(what, !lost, lost));
    // What was done is kept and told, whatever came after it.
    let failed = failed.iter().map(ToString::to_string);
    let left = checked.problems.into_iter().chain(above.problems).chain(failed);
    let left = left.map(|why| problem(why, false, false));
    let problems = mended.chain(left).collect();
    let mut report = CheckReport { problems, changed, ..CheckReport::default() };
    if !options.lossy && store.loses_by_repair().unwrap_or(false) {
        report.notes.push(
            "`fsck --yes` puts together what can be of what the index cannot tell any more, and gives the rest up.".into(),
        );
    }
    if !options.repair && store.is_mended_by_repair().unwrap_or(false) {
        report.notes.push(
            "`fsck` makes inner nodes of the index again from those below them; nothing is lost.".into(),
        );
    }
    if !options.lossy && above.is_lost {
        report.notes.push(
            "`fsck --yes` gives what has no attributes that can be read new ones, of the kind its name says, and takes away names of what is gone.".into(),
        );
    }
    if !options.lossy && above.is_closed {
        report.notes.push(
            "`fsck --yes` keeps what can be read of a directory, and puts what has no name then into the root.".into(),
        );
    }
    report.count("objects", checked.objects);
    report.count("extents", checked.extents);
    report.count("bytes", checked.bytes);
    Ok(report)
}

fn play(clock: &Clock, args: &ReplayArgs) -> Result<Subject> {
    let (part, payload) = (part(args)?, Payload::memory());
    #[cfg(test)]
    let image = Arc::new(bimetal_media::ram::Ram::new("flash", part.geometry().bytes()));
    #[cfg(test)]
    let payload = match payload {
        Payload::Memory(_) => Payload::Device(image.clone()),
        payload => payload,
    };
    let nand = Nand::new(part, args.seed, true, payload);
    let mut store = Store::format(nand, &Format::default(), Options::default())?;
    OsdFs::make_at(&mut store, &Caller::default(), clock.wall())?;
    let fs = Arc::new(OsdFs::new_on(clock.clone(), store, false)?);
    let (waits, told) = (clock.clone(), fs.clone());
    let tree = Tree::new(fs, move || waits.sleep_until(waits.now() + told.busy_for()));
    let subject = Subject::new(Arc::new(tree), Vec::new());
    #[cfg(test)]
    let subject = subject.with_image(image);
    Ok(subject)
}
