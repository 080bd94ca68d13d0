//! cmfs: files on raw NAND, their metadata in NVRAM.

use super::options::{memory_max, no_option};
use super::probe::{Part, is_file};
use super::volume::{Access, CheckOptions, CheckReport, PART, Prepared, Problem, VolumeArgs};
use super::{Kind, LiesOn, Made, Make, Mkfs};
use crate::names::DEVICE;
use crate::replay::Args as ReplayArgs;
#[cfg(test)]
use crate::replay::files::Mirrored;
use crate::replay::files::{Subject, Tree, identifier, part};
use bimetal_base::error::shown;
use bimetal_base::options::OptionSpec;
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_cmfs::model::{Clock as MediaClock, ModelNand, ModelNvram};
use bimetal_cmfs::volume::{self, Volume};
use bimetal_cmfs::{CmfsFs, Options};
use bimetal_media::metered::Devices;
use bimetal_media::nvram::NvramProfile;
use bimetal_media::profile;
use bimetal_vfs::FileSystem;
use clap::{Args, FromArgMatches};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// See [`super`].
pub const KIND: Kind = Kind {
    name: "cmfs",
    about: "files on raw NAND, their metadata in a thousandth of NVRAM",
    options: &[
        OptionSpec {
            name: "scan",
            value: None,
            default: "off",
            help: "believe the NAND alone, and write the NVRAM anew",
        },
        OptionSpec {
            name: "checkpoint",
            value: Some("32|64"),
            default: "none",
            help: "leave a checkpoint for YAFFS2 when it is unmounted, as machines with pointers of so many bits read it",
        },
    ],
    access_times: false,
    lies_on: LiesOn::Nand { nvram: true },
    mkfs: Some(Mkfs {
        command: |command| {
            CmfsArgs::augment_args(command)
                .about("Make a file system on an image of a NAND part, its metadata in an image of NVRAM")
                .after_help(EXAMPLES)
        },
        parse: |matches| Ok(Box::new(CmfsArgs::from_arg_matches(matches)?)),
    }),
    open: Some(open),
    check: Some(check),
    probe: Some(probe),
    play: Some(play),
};

fn probe(path: &Path) -> Result<Option<Part>> {
    let found = if is_file(path) { volume::probe(path)? } else { None };
    Ok(found.map(|(role, identity)| {
        let volume = Some(Uuid::from_bytes(identity));
        Part { role, volume, uuid: volume, state: None }
    }))
}

const EXAMPLES: &str = "\
Example:
  A part of 128 MiB and the NVRAM beside it, mounted and unmounted:
    bimetal mkfs cmfs --device slc-2k --nand nand.img --nvram nvram.img
    bimetal mount --nand nand.img --nvram nvram.img /mnt
    bimetal umount /mnt";

/// What `mkfs cmfs` is told.
#[derive(Args, Clone, Debug)]
pub struct CmfsArgs {
    /// Profile of the part: a built-in name or a file
    #[arg(long, value_name = "PROFILE", default_value = PART, value_parser = DEVICE, hide_possible_values = true)]
    pub device: String,
    /// Image of the NAND, spare areas included, made if it is not there; or an MTD device
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NAND")]
    pub nand: PathBuf,
    /// NVRAM: a file, made of its size, or a device to map; without, every mount scans the NAND
    #[arg(long, value_name = "IMAGE", env = "BIMETAL_NVRAM")]
    pub nvram: Option<PathBuf>,
    /// Size of a NAND image to be made, spare areas not counted [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Size of the NVRAM [default: a thousandth of the NAND]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub nvram_size: Option<u64>,
    /// How metadata lies in NVRAM: compact or paper
    #[arg(long, value_name = "LAYOUT", default_value = "compact", value_parser = parse_layout)]
    pub layout: cmfs_core::Layout,
    /// Go ahead although the image holds something
    #[arg(long)]
    pub force: bool,
}

fn parse_layout(text: &str) -> Result<cmfs_core::Layout> {
    match text {
        "compact" => Ok(cmfs_core::Layout::Compact),
        "paper" => Ok(cmfs_core::Layout::Paper),
        _ => Err(Error::invalid(format!("layout '{text}': there are compact and paper"))),
    }
}

impl CmfsArgs {
    /// The volume that is to be made.
    ///
    /// # Errors
    /// More NVRAM than memory can hold.
    pub fn plan(&self) -> Result<volume::Plan> {
        if let Some(bytes) = self.nvram_size.filter(|bytes| *bytes > memory_max()) {
            return Err(Error::invalid(format!(
                "--nvram-size: {} is too much; it takes at most half of this machine's memory, {}; a thousandth of the NAND is usual",
                show_size(bytes),
                show_size(memory_max())
            )));
        }
        Ok(volume::Plan {
            nand: self.nand.clone(),
            nvram: self.nvram.clone(),
            device: self.device.clone(),
            size_bytes: self.size,
            nvram_bytes: self.nvram_size,
            layout: self.layout,
            force: self.force,
        })
    }

    /// The command that mounts it.
    pub fn mount_command(&self) -> String {
        let beside = self
            .nvram
            .as_deref()
            .map(|path| format!(" --nvram {}", shown(path.as_os_str().as_bytes())))
            .unwrap_or_default();
        let named = if self.device == PART { String::new() } else { format!(" --device {}", self.device) };
        format!("bimetal mount --nand {}{beside}{named} MOUNTPOINT", shown(self.nand.as_os_str().as_bytes()))
    }
}

impl Make for CmfsArgs {
    fn make(&self) -> Result<Made> {
        let (nand, nvram) = volume::make(&self.plan()?)?;
        let told = json!({ "type": KIND.name, "nand_bytes": nand, "nvram_bytes": nvram });
        let text = format!(
            "made a cmfs on {} of NAND with {} of NVRAM; mount it with:\n  {}",
            show_size(nand),
            show_size(nvram),
            self.mount_command()
        );
        Ok(Made { text, told })
    }
}

/// The volume that the command line names.
fn named<'a>(args: &'a VolumeArgs, options: &[String]) -> Result<Volume<'a>> {
    let (scan, checkpoint) = said(options)?;
    Ok(Volume {
        nand: args.nand()?,
        nvram: args.nvram.as_deref(),
        device: &args.device,
        scan,
        checkpoint,
        plain: args.yaffs2,
    })
}

/// What mount options say: whether it is to be scanned, and for pointers of how many bytes a checkpoint is left.
fn said(options: &[String]) -> Result<(bool, Option<usize>)> {
    let (mut scan, mut checkpoint) = (false, None);
    for option in options {
        match option.as_str() {
            "scan" => scan = true,
            "checkpoint=32" => checkpoint = Some(4),
            "checkpoint=64" => checkpoint = Some(8),
            _ => return Err(no_option(KIND.name, option, KIND.options)),
        }
    }
    Ok((scan, checkpoint))
}

fn open<'a>(args: &'a VolumeArgs, access: Access, options: &[String]) -> Result<Box<dyn Prepared + 'a>> {
    Ok(Box::new(named(args, options)?.claim(access == Access::Write)?))
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
    let checked = named(args, &[])?.check(options.repair, options.lossy)?;
    let problem = |problem: &cmfs_core::Problem| {
        let is_over = !checked.left.contains(problem);
        let lost = is_over && problem.is_of_a_header();
        Problem {
            what: match problem.object {
                0 if problem.is_of_a_log_page() => format!("page {}", problem.at),
                0 => format!("block {}", problem.at),
                object => format!("object {object}, page {}", problem.at),
            },
            why: format!("{}.", problem.why),
            count: 1,
            repaired: is_over && !lost,
            lost,
        }
    };
    let new = checked.left.iter().filter(|one| !checked.problems.contains(one));
    let problems: Vec<Problem> = checked.problems.iter().chain(new).map(problem).collect();
    let changed = problems.iter().any(|one| one.repaired || one.lost);
    let mut report = CheckReport { problems, changed, ..CheckReport::default() };
    if !options.lossy && checked.left.iter().any(cmfs_core::Problem::is_of_a_header) {
        report.notes.push(
            "`fsck --yes` gives what has lost its header a new one, under the name it goes by, and gives up what only the old one said."
                .into(),
        );
    }
    report.count("objects", checked.objects);
    report.count("mount", format!("{:?}", checked.report.kind).to_lowercase());
    report.count("pages_replayed", checked.report.replayed_pages);
    report.count("pages_unreadable", checked.report.unreadable_pages);
    if !checked.report.why.is_empty() {
        report.count("scanned_because", checked.report.why);
    }
    if checked.renewed {
        report.count("nvram", "written anew");
    }
    Ok(report)
}

fn play(clock: &Clock, args: &ReplayArgs) -> Result<Subject> {
    // They are of mounting and unmounting: what is played on is new, and is not unmounted.
    said(&args.options)?;
    let part = part(args)?;
    let nvram_bytes = (part.geometry().bytes() / 1000).max(4096) / 8 * 8;
    let media = MediaClock::on(clock.clone());
    #[cfg(test)]
    let profile = part.clone();
    let nand: Box<dyn cmfs_core::Nand + Send> = Box::new(ModelNand::new(part, args.seed, media.clone())?);
    #[cfg(test)]
    let (nand, image): (Box<dyn cmfs_core::Nand + Send>, _) = {
        let (nand, image) = Mirrored::new(nand, &profile);
        (Box::new(nand), image)
    };
    let memory: NvramProfile = profile::load("feram")?;
    let nvram: Box<dyn cmfs_core::Nvram + Send> =
        Box::new(ModelNvram::new(memory, nvram_bytes as usize, media.clone()));
    let identity = identifier(&mut Random::new(args.seed, "volume"));
    let fs = cmfs_core::Fs::format(nand, Some(nvram), cmfs_core::Config::default(), identity, false)
        .map_err(|why| Error::invalid(format!("cmfs: {why}")))?;
    let fs = CmfsFs::new_on(clock.clone(), fs, Options::default())?;
    let waits = clock.clone();
    let tree = Tree::new(Arc::new(fs), move || waits.sleep_until(media.now()));
    let subject = Subject::new(Arc::new(tree), Vec::new());
    #[cfg(test)]
    let subject = subject.with_image(image);
    Ok(subject)
}
