//! The file systems that calls can be played on, each made anew on simulated devices: one function a kind.
//!
//! What is random about a volume (its identifiers, its bad blocks) follows from the seed, and it is made at the
//! beginning of the simulation's wall clock, so that the same command makes the same bytes.

use super::fat::FatTree;
use super::report::DeviceReport;
use super::tree::{Target, Tree};
use crate::kinds::options::nfhybrid_options;
use crate::replay::args::Args;
use crate::stack::{Caching, Contents, Layers, Medium, Told};
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_cmfs::model::{Clock as MediaClock, ModelNand, ModelNvram};
use bimetal_cmfs::{CmfsFs, Options as CmfsOptions};
use bimetal_fat::{self as fat, Volume, layout::Width};
use bimetal_media::counted::{Counted, Counts};
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::nvram::NvramProfile;
use bimetal_media::ram::Ram;
use bimetal_media::timed::Timed;
use bimetal_media::{BlockDevice, profile};
use bimetal_nfhybrid::{NfHybrid, ssd, volume};
use bimetal_osd_core::{Format, Options as OsdOptions, Store};
use bimetal_osdfs::OsdFs;
use bimetal_vfs::Caller;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

/// Makes a file system.
type Make = fn(&Clock, &Args) -> Result<Subject>;

/// The kinds of file system, and how each is made.
pub const KINDS: [(&str, Make); 4] =
    [("nfhybrid", nfhybrid), ("cmfs", cmfs), ("osd", osd), ("fat", fat_volume)];

/// What a counted request to a device without pages is counted in, bytes.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a flash part, and of a FAT volume, of which nobody said the size.
pub(in crate::replay) const FLASH_BYTES: u64 = 512 << 20;
/// The part under cmfs and osd, and what is under FAT, where nobody says.
pub(in crate::replay) const PART: &str = "slc-2k";
pub(in crate::replay) const FAT_DEVICE: &str = "ssd-slc";
/// Blocks that every unit of a resized part keeps.
const BLOCKS_MIN: u32 = 32;
/// From this size on a FAT volume is FAT32.
const FAT32_BYTES: u64 = 300 << 20;

/// A file system that was made, and its devices.
pub struct Subject {
    pub(super) target: Arc<dyn Target>,
    devices: Vec<(&'static str, Device)>,
    /// What the block devices hold, for tests.
    #[cfg(test)]
    pub(super) images: Vec<Arc<Ram>>,
}

struct Device {
    profile: String,
    counted: Arc<Counted>,
    told: Told,
    image: Arc<Ram>,
}

impl Subject {
    /// Makes the file system that `args` ask for.
    ///
    /// # Errors
    /// There is no such kind; its devices cannot be, or are too small.
    pub fn make(clock: &Clock, args: &Args) -> Result<Subject> {
        let known = KINDS.map(|(name, _)| name).join(", ");
        let kind = KINDS.iter().find(|(name, _)| *name == args.fs_kind());
        let (_, make) = kind.ok_or_else(|| Error::invalid(format!("--fs: there are {known}")))?;
        make(clock, args)
    }

    fn new(target: Arc<dyn Target>, devices: Vec<(&'static str, Device)>) -> Subject {
        Subject {
            target,
            #[cfg(test)]
            images: devices.iter().map(|(_, device)| device.image.clone()).collect(),
            devices,
        }
    }

    /// What its devices were asked for so far.
    pub fn counts(&self) -> Vec<Counts> {
        self.devices.iter().map(|(_, device)| device.counted.counts()).collect()
    }

    /// What they were asked for since, and what they did.
    pub fn devices(&self, before: &[Counts]) -> BTreeMap<&'static str, DeviceReport> {
        let report = |((name, device), before): (&(&'static str, Device), &Counts)| {
            let report = DeviceReport {
                profile: device.profile.clone(),
                size_bytes: device.image.info().size_bytes,
                requests: device.counted.counts() - *before,
                model: device.told.model.status(),
            };
            (*name, report)
        };
        self.devices.iter().zip(before).map(report).collect()
    }
}

/// A simulated device over memory that holds `image`, with the layers asked for.
fn device(
    profile: &str,
    (ftl, caching): (Option<&str>, Option<Caching>),
    image: Arc<Ram>,
    seed: u64,
) -> Result<Device> {
    let medium = Medium::framed(profile, ftl)?;
    let stack = medium.build(Contents::On(image.clone()), None, PAGE_BYTES, seed)?;
    let stack = stack.with(&Layers { cache: caching, ..Layers::default() })?;
    let counted = Arc::new(Counted::new(stack.device));
    Ok(Device { profile: profile.to_string(), counted, told: stack.told, image })
}

/// The page cache that the command line asks for, if it does.
fn caching(args: &Args) -> Result<Option<Caching>> {
    match (&args.cache[..], &args.cache_size[..]) {
        ([], _) => Ok(None),
        ([policy], [bytes]) => {
            let (policy, bytes) = (policy.clone(), *bytes);
            Ok(Some(Caching { policy, bytes, page_bytes: PAGE_BYTES, durable_syncs: false }))
        }
        _ => Err(Error::invalid("--fs: one --cache of one --cache-size, or none")),
    }
}

/// The one translation layer that the command line asks for, if it does.
fn ftl(args: &Args) -> Result<Option<&str>> {
    match &args.ftl[..] {
        [] => Ok(None),
        [ftl] => Ok(Some(ftl)),
        _ => Err(Error::invalid("--fs: one --ftl, or none")),
    }
}

fn refuse_layers(args: &Args) -> Result<()> {
    match args.cache.is_empty() && args.ftl.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid("--fs cmfs and osd drive flash themselves: no --cache, no --ftl")),
    }
}

fn refuse_options(args: &Args) -> Result<()> {
    match args.options.first() {
        None => Ok(()),
        Some(option) => {
            Err(Error::invalid(format!("mount option {option}: only --fs nfhybrid takes some here")))
        }
    }
}

fn nfhybrid(clock: &Clock, args: &Args) -> Result<Subject> {
    if let Some(device) = &args.device {
        let why = format!("--device {device}: nfhybrid has two, --ssd and --disk");
        return Err(Error::invalid(why));
    }
    if let Some(option) = args.options.iter().find(|option| option.starts_with("cache")) {
        return Err(Error::invalid(format!("mount option {option}: here it is --cache and --cache-size")));
    }
    let mut random = Random::new(args.seed, "volume");
    let disk = Arc::new(Ram::from_bytes("disk", ext4_image(args.disk_size, &mut random)?));
    let ssd = Arc::new(Ram::new("ssd", args.ssd_size));
    let born = volume::Birth { now: clock.wall(), identity: identifier(&mut random) };
    volume::join_devices_as(disk.clone(), ssd.clone(), &ssd::Config::default(), &born)?;
    let disk = device(&args.disk, (None, caching(args)?), disk, args.seed)?;
    let ssd = device(&args.ssd, (ftl(args)?, None), ssd, args.seed)?;
    let timed = |device: &Device| -> Arc<dyn BlockDevice> {
        Arc::new(Timed::model(clock.clone(), device.counted.clone()))
    };
    let options = nfhybrid_options(&args.options)?;
    let fs = NfHybrid::open_on(clock.clone(), timed(&disk), Some(timed(&ssd)), options)?;
    Ok(Subject::new(Arc::new(Tree::new(Arc::new(fs), || ())), vec![("disk", disk), ("ssd", ssd)]))
}

fn identifier(random: &mut Random) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.next().to_le_bytes());
    bytes[8..].copy_from_slice(&random.next().to_le_bytes());
    *uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes()
}

/// An empty ext4 of `bytes`, as mke2fs makes it.
fn ext4_image(bytes: u64, random: &mut Random) -> Result<Vec<u8>> {
    let failed = |why| Error::io("an image for mke2fs", why);
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.as_file().set_len(bytes).map_err(failed)?;
    let [name, hash] = [(); 2].map(|()| uuid::Uuid::from_bytes(identifier(random)).to_string());
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let extended = format!("lazy_itable_init=1,lazy_journal_init=1,hash_seed={hash}");
    let output = Command::new("mke2fs")
        .env("PATH", path)
        .env("E2FSPROGS_FAKE_TIME", "1767225600")
        .args(["-q", "-t", "ext4", "-F", "-m", "0", "-U", &name, "-E", &extended])
        .arg(file.path())
        .output()
        .map_err(|why| Error::io("mke2fs (from e2fsprogs) makes the disk half and could not be run", why))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::invalid(format!("--disk-size {}: mke2fs: {}", show_size(bytes), said.trim())));
    }
    read_sparse(file.as_file(), bytes).map_err(failed)
}

/// What a file holds; only what is not a hole is read.
fn read_sparse(file: &File, bytes: u64) -> std::io::Result<Vec<u8>> {
    use rustix::fs::{SeekFrom, seek};
    let mut image = vec![0; bytes as usize];
    let mut at = 0;
    while let Ok(from) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(from))?;
        file.read_exact_at(&mut image[from as usize..at as usize], from)?;
    }
    if at == 0 {
        // A file system that does not tell holes apart.
        let mut file = file;
        file.read_exact(&mut image)?;
    }
    Ok(image)
}

/// The part that `args` name, as large as they say.
fn part(args: &Args) -> Result<NandProfile> {
    refuse_layers(args)?;
    refuse_options(args)?;
    let name = args.device.as_deref().unwrap_or(PART);
    let part: NandProfile = profile::load(name)?;
    Ok(part.resized(args.device_size.unwrap_or(FLASH_BYTES), BLOCKS_MIN))
}

fn cmfs(clock: &Clock, args: &Args) -> Result<Subject> {
    let part = part(args)?;
    let nvram_bytes = (part.geometry().bytes() / 1000).max(4096) / 8 * 8;
    let media = MediaClock::on(clock.clone());
    let nand: Box<dyn cmfs_core::Nand + Send> = Box::new(ModelNand::new(part, args.seed, media.clone()));
    let memory: NvramProfile = profile::load("feram")?;
    let nvram: Box<dyn cmfs_core::Nvram + Send> =
        Box::new(ModelNvram::new(memory, nvram_bytes as usize, media.clone()));
    let identity = identifier(&mut Random::new(args.seed, "volume"));
    let fs = cmfs_core::Fs::format(nand, Some(nvram), cmfs_core::Config::default(), identity, false)
        .map_err(|why| Error::invalid(format!("cmfs: {why}")))?;
    let fs = CmfsFs::new_on(clock.clone(), fs, CmfsOptions::default())?;
    let waits = clock.clone();
    let tree = Tree::new(Arc::new(fs), move || waits.sleep_until(media.now()));
    Ok(Subject::new(Arc::new(tree), Vec::new()))
}

fn osd(clock: &Clock, args: &Args) -> Result<Subject> {
    let nand = Nand::new(part(args)?, args.seed, true, Payload::memory());
    let mut store = Store::format(nand, &Format::default(), OsdOptions::default())?;
    OsdFs::make_at(&mut store, &Caller::default(), clock.wall())?;
    let fs = Arc::new(OsdFs::new_on(clock.clone(), store, false)?);
    let (waits, told) = (clock.clone(), fs.clone());
    let tree = Tree::new(fs, move || waits.sleep_until(waits.now() + told.busy_for()));
    Ok(Subject::new(Arc::new(tree), Vec::new()))
}

fn fat_volume(clock: &Clock, args: &Args) -> Result<Subject> {
    refuse_options(args)?;
    let bytes = args.device_size.unwrap_or(FLASH_BYTES);
    let profile = args.device.as_deref().unwrap_or(FAT_DEVICE);
    let image = Arc::new(Ram::new("volume", bytes));
    let device = device(profile, (ftl(args)?, caching(args)?), image, args.seed)?;
    let format = match bytes >= FAT32_BYTES {
        true => fat::Format { width: Width::Fat32, cluster_bytes: 4096, root_entries: 512 },
        false => {
            let cluster = (bytes / 60_000).next_power_of_two().clamp(512, 32_768) as u32;
            fat::Format { width: Width::Fat16, cluster_bytes: cluster, root_entries: 512 }
        }
    };
    let (now, medium) = (clock.now(), device.counted.clone());
    let open = move || {
        let formatted = Volume::format(&*medium, now, &format)?;
        Volume::open(medium, formatted, fat::Options::default())
    };
    Ok(Subject::new(Arc::new(FatTree::new(clock, open)?), vec![("device", device)]))
}
