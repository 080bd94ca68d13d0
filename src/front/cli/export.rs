//! `bimetal export`: a simulated device for the kernel and other programs, as a file or over NBD.

use crate::Result;
use crate::error::shown;
use crate::front::export::{Export, serve, simulated};
use crate::front::fuse::Unmount;
use crate::front::kinds::probe::{Given, misnamed};
use crate::front::names;
use crate::front::stack::Layers;
use crate::front::stack::args::StackArgs;
use crate::front::stack::file::Size;
use crate::front::{nbd, signals};
use crate::fs::cmfs::volume::{self, Volume};
use crate::media::file::{FileDevice, Options};
use crate::units::parse_size;
use crate::{Error, media};
use clap::Args;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use tempfile::TempPath;

const EXAMPLES: &str = "\
Examples:
  A disk that seeks and turns in real time, for the kernel's ext4:
    mkdir served
    bimetal export --profile hdd-7200 --size 4GiB disk.img --file served &
    LOOP=$(losetup -f --show --direct-io=on served/device)
    bimetal status served
    losetup -d $LOOP
    umount served
  Flash under FAST for any NBD client, as fast as it goes, only counted:
    bimetal export --ftl fast --profile slc-2k --size 64MiB ssd.img --nbd /tmp/nbd --no-latency &
    nbdcopy some.img 'nbd+unix:///?socket=/tmp/nbd'
    bimetal status /tmp/nbd
  The disk of a stack file, as replay and mount have it:
    bimetal export --stack hybrid.toml --half disk --file served
  What is in a cmfs, for unyaffs:
    bimetal export nand.img --nvram nvram.img --yaffs2-image files.yaffs2
`bimetal list device` and `bimetal list ftl` show what there is. The image holds the data; the flash is a model
that is new each time, and holds what was written since.";

/// The profile of what is served, unless another is named.
const PROFILE: &str = "ssd-tlc";

/// What a size is a multiple of.
const SECTOR_BYTES: u64 = 512;

/// Serve a simulated disk, SSD or flash part, its data in an image: as a file in a directory, or over NBD
///
/// Prints where it is served, then the `bimetal status` command that shows its requests, merges, erases and wear. Stays
/// in the foreground until the directory is unmounted or a signal asks it to end; a device that is in use then is served
/// until nobody has it open.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub(super) struct ExportVerb {
    /// Profile of the device: a built-in name or a file; flash parts are put behind the electronics of ssd-tlc
    /// [default: ssd-tlc; of a cmfs, slc-2k]
    #[arg(long, visible_alias = "device", value_parser = names::DEVICE, hide_possible_values = true)]
    profile: Option<String>,
    /// Flash translation layer, as fast or fast:logs=8:level=static [the profile's]
    #[arg(long, value_name = "SCHEME", value_parser = names::FTL, hide_possible_values = true)]
    ftl: Option<String>,
    /// Where its data is; of a cmfs, the image of its NAND
    #[arg(value_name = "IMAGE", required_unless_present = "stack")]
    image: Option<PathBuf>,
    #[command(flatten)]
    stack: StackArgs,
    /// Which device of the stack file: device, ssd or disk
    #[arg(long, value_name = "NAME", requires = "stack", default_value = "device", value_parser = ["device", "ssd", "disk"])]
    half: String,
    /// Make the image, of this size, if it is not there
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Serve it as the file 'device' in this empty directory
    #[arg(long, value_name = "DIRECTORY", group = "where")]
    file: Option<PathBuf>,
    /// Serve it over NBD on this unix socket
    #[arg(long, value_name = "SOCKET", group = "where")]
    nbd: Option<PathBuf>,
    /// Serve nothing: write what is in a cmfs to this file, as an image that tools for YAFFS2 unpack
    #[arg(long, value_name = "FILE", group = "where", conflicts_with_all = ["ftl", "size", "no_latency", "seed"])]
    yaffs2_image: Option<PathBuf>,
    /// The image of the cmfs' NVRAM
    #[arg(long, value_name = "IMAGE", requires = "yaffs2_image")]
    nvram: Option<PathBuf>,
    /// Answer at once instead of when the model says
    #[arg(long)]
    no_latency: bool,
    /// What the model's chances are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl ExportVerb {
    pub fn run(mut self) -> Result<ExitCode> {
        let mut layers = Layers::default();
        if let Some(stack) = self.stack.one()? {
            let (device, over) = super::stack::to_export(&stack, &self.half)?;
            layers = over;
            self.profile = device.profile.clone().or(self.profile);
            self.ftl = device.ftl.as_ref().map(ToString::to_string).or(self.ftl);
            self.size = device.size.map(|Size(bytes)| bytes).or(self.size);
            self.image = self.image.or(device.image.clone());
            self.seed = stack.seed;
        }
        if let Some(image) = &self.yaffs2_image {
            signals::end_whole(|| ())?;
            return self.write_yaffs2(image);
        }
        let signals = signals::hold()?;
        let made = self.make_image()?;
        let export = self.export(&layers)?;
        match (&self.file, &self.nbd) {
            (Some(place), _) => as_file(export, place, signals, made)?,
            (None, Some(socket)) => over_nbd(export, socket, signals, made)?,
            (None, None) => return Err(Error::BadArgument),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn image(&self) -> Result<&Path> {
        let image = self.image.as_deref();
        image.ok_or_else(|| {
            Error::invalid(format!("{}.image: say where its bytes are kept, or name an IMAGE", self.half))
        })
    }

    /// Makes the image if that is asked for and there is none. It goes again if nobody is served, for it is empty then.
    fn make_image(&self) -> Result<Option<TempPath>> {
        let image = self.image()?;
        if let Some(size) = self.size
            && (size == 0 || !size.is_multiple_of(SECTOR_BYTES))
        {
            return Err(Error::invalid(format!(
                "--size: a device of {size} bytes is none of whole sectors; it takes a multiple of {SECTOR_BYTES} bytes, and 4KiB or more \
                 to be of use"
            )));
        }
        let Some(size) = self.size.filter(|_| !image.exists()) else { return Ok(None) };
        let failed = |why| Error::io(image.display(), why);
        let file = OpenOptions::new().write(true).create_new(true).open(image).map_err(failed)?;
        let made = TempPath::try_from_path(image).map_err(failed)?;
        file.set_len(size).map_err(failed)?;
        Ok(Some(made))
    }

    fn export(&self, layers: &Layers) -> Result<Export> {
        let options = Options { writable: true, exclusive: true, ..Options::default() };
        let storage: Arc<dyn media::BlockDevice> = Arc::new(FileDevice::open_with(self.image()?, &options)?);
        let profile = self.profile.as_deref().unwrap_or(PROFILE);
        let held = storage.info().size_bytes;
        let (device, model) = simulated((profile, self.ftl.as_deref()), storage, layers, self.seed)?;
        if device.info().size_bytes == 0 {
            return Err(Error::invalid(format!(
                "{}: its {held} bytes are too few for a sector of the device; name a larger image, or one that is not there, with --size",
                self.image()?.display()
            )));
        }
        Ok(Export { device, real_time: !self.no_latency, model: Some(model) })
    }

    /// Writes the image for YAFFS2's tools.
    fn write_yaffs2(&self, to: &Path) -> Result<ExitCode> {
        let device = self.profile.as_deref().unwrap_or(volume::DEVICE);
        let (scan, checkpoint, plain) = (false, None, false);
        let cmfs =
            Volume { nand: self.image()?, nvram: self.nvram.as_deref(), device, scan, checkpoint, plain };
        let given = Given { role: "nand", of: &["cmfs"], path: cmfs.nand };
        let count = cmfs.export(to).map_err(|why| misnamed(why, &[given]))?;
        super::say(&format!("{count} objects in {}", super::place(to)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Says how to look at what is served at `place`.
fn tell_of_status(place: &Path) -> Result<()> {
    super::say(&format!("bimetal status {}", super::place(place)))
}

/// An image that was made stays once somebody may write to it.
fn stays(made: Option<TempPath>) -> Result<()> {
    let kept = made.map(TempPath::keep).transpose();
    kept.map(drop).map_err(|why| Error::io(why.path.display(), why.error))
}

/// Serves it as a file until it is unmounted.
fn as_file(export: Export, place: &Path, signals: signals::Held, made: Option<TempPath>) -> Result<()> {
    let served = serve(export, place)?;
    stays(made)?;
    super::say(&super::place(&served.device()))?;
    tell_of_status(place)?;
    let unmounter = served.unmounter();
    signals.watch(move |signal| {
        let place = unmounter.mountpoint().display();
        tracing::info!("{signal}: unmounting {place}");
        if unmounter.unmount(Unmount::IfIdle).is_ok() {
            return;
        }
        // A signal is an order, not a question: nobody asks again once the device is free.
        tracing::warn!("{place}: in use; it is served until nobody has it open");
        if let Err(why) = unmounter.unmount(Unmount::Lazily) {
            tracing::warn!("{why}");
        }
    })?;
    served.wait()
}

/// Serves it over NBD until a signal asks for the end.
fn over_nbd(export: Export, socket: &Path, signals: signals::Held, made: Option<TempPath>) -> Result<()> {
    let served = nbd::serve(export, socket)?;
    stays(made)?;
    let (heard, ended) = mpsc::channel();
    signals.watch(move |signal| {
        tracing::info!("{signal}: the end");
        // The second signal finds nobody who waits.
        let _ = heard.send(());
    })?;
    super::say(&shown(served.uri().as_bytes()))?;
    tell_of_status(socket)?;
    // The sender lives as long as the process.
    let _ = ended.recv();
    Ok(())
}
