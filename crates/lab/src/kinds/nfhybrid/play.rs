//! An nfhybrid on simulated devices, for a replay.

use super::mkfs::with_sections;
use super::options::options_within;
use crate::kinds::options::MemoryLimit;
use crate::replay::Args;
use crate::replay::files::{Device, Subject, Tree, caching, device, ftl, identifier};
use bimetal_base::memory::check_room;
use bimetal_base::random::Random;
use bimetal_base::runtime::Clock;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bimetal_media::part::Part;
use bimetal_media::ram::Ram;
use bimetal_media::timed::Timed;
use bimetal_nfhybrid::{NfHybrid, ssd, volume};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

/// The SSD half where nobody says, and its bytes.
pub(crate) const SSD: &str = "ssd-slc";
pub(crate) const SSD_BYTES: u64 = 256 << 20;
/// The disk half where nobody says, and its bytes.
pub(crate) const DISK: &str = "hdd-7200";
pub(crate) const DISK_BYTES: u64 = 4 << 30;
/// With less mke2fs makes no journal: it wants 2048 blocks of 1 KiB.
const DISK_BYTES_MIN: u64 = 2 << 20;

pub(super) fn play(clock: &Clock, args: &Args) -> Result<Subject> {
    play_laid_out(clock, args, &SsdHalf { config: with_sections(&args.sections), begins_at: 0 })
}

/// How the SSD half is laid out.
#[derive(Clone, Debug)]
pub(crate) struct SsdHalf {
    /// Its sections and tables.
    pub config: ssd::Config,
    /// The byte of the SSD at which it begins, as a partition does.
    pub begins_at: u64,
}

/// The same with another SSD half.
///
/// # Errors
/// Options that it does not have; a half that is too small.
pub(crate) fn play_laid_out(clock: &Clock, args: &Args, half: &SsdHalf) -> Result<Subject> {
    if let Some(option) = args.options.iter().find(|option| option.starts_with("cache")) {
        return Err(Error::invalid(format!("mount option {option}: here it is --cache and --cache-size")));
    }
    let (disk_bytes, ssd_bytes) = (args.disk_size.unwrap_or(DISK_BYTES), args.ssd_size.unwrap_or(SSD_BYTES));
    if disk_bytes < DISK_BYTES_MIN {
        return Err(Error::invalid(format!(
            "--disk-size: {} is too small for an ext4 with a journal; it takes {} at least",
            show_size(disk_bytes),
            show_size(DISK_BYTES_MIN)
        )));
    }
    check_room("the contents of the disk half", disk_bytes)?;
    check_room("the contents of the SSD half", ssd_bytes)?;
    let mut random = Random::new(args.seed, "volume");
    let disk = Arc::new(Ram::from_bytes("disk", ext4_image(disk_bytes, &mut random)?));
    let ssd = Arc::new(Ram::new("ssd", ssd_bytes));
    let born = volume::Birth { now: clock.wall(), identity: identifier(&mut random) };
    let partition = |device: Arc<dyn BlockDevice>| -> Result<Arc<dyn BlockDevice>> {
        let end = device.info().size_bytes;
        Ok(if half.begins_at == 0 { device } else { Arc::new(Part::new(device, half.begins_at..end)?) })
    };
    volume::join_devices_as(disk.clone(), partition(ssd.clone())?, &half.config, &born)?;
    let disk = device(args.disk.as_deref().unwrap_or(DISK), (None, caching(args)?), disk, args.seed)?;
    let ssd = device(args.ssd.as_deref().unwrap_or(SSD), (ftl(args)?, None), ssd, args.seed)?;
    let timed =
        |device: &Device| -> Arc<dyn BlockDevice> { Arc::new(Timed::model(clock.clone(), device.counted())) };
    let options = options_within(MemoryLimit::SIMULATED, &args.options)?;
    let fs = NfHybrid::open_on(clock.clone(), timed(&disk), Some(partition(timed(&ssd))?), options)?;
    Ok(Subject::new(Arc::new(Tree::new(Arc::new(fs), || ())), vec![("disk", disk), ("ssd", ssd)]))
}

/// What mke2fs makes here, whatever the machine's own configuration says: that of e2fsprogs 1.47.
const MKE2FS_CONFIG: &str = "\
[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    enable_periodic_fsck = 0
    blocksize = 4096
    inode_size = 256
    inode_ratio = 16384
[fs_types]
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
    floppy = {
        blocksize = 1024
        inode_ratio = 8192
    }
    small = {
        blocksize = 1024
        inode_ratio = 4096
    }
    big = {
        inode_ratio = 32768
    }
    huge = {
        inode_ratio = 65536
    }
";

/// mke2fs, with nothing of this machine's environment but where programs are.
fn mke2fs() -> Command {
    let mut command = Command::new("mke2fs");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    command.env_clear().env("PATH", path).env("LC_ALL", "C");
    command
}

/// The version of the program that makes disk halves, which decides where all of an empty one lies; none if it is not here.
pub(crate) fn maker() -> Option<String> {
    let told = mke2fs().arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&told.stderr);
    let line = text.lines().next()?.trim();
    Some(line.strip_prefix("mke2fs ").unwrap_or(line).to_string())
}

/// An empty ext4 of `bytes`, as mke2fs makes it.
fn ext4_image(bytes: u64, random: &mut Random) -> Result<Vec<u8>> {
    let failed = |why| Error::io("an image for mke2fs", why);
    let (file, config) =
        (tempfile::NamedTempFile::new().map_err(failed)?, tempfile::NamedTempFile::new().map_err(failed)?);
    file.as_file().set_len(bytes).map_err(failed)?;
    config.as_file().write_all_at(MKE2FS_CONFIG.as_bytes(), 0).map_err(failed)?;
    let [name, hash] = [(); 2].map(|()| uuid::Uuid::from_bytes(identifier(random)).to_string());
    let extended = format!("lazy_itable_init=1,lazy_journal_init=1,hash_seed={hash}");
    let output = mke2fs()
        .env("MKE2FS_CONFIG", config.path())
        .env("E2FSPROGS_FAKE_TIME", "1767225600")
        .args(["-q", "-t", "ext4", "-F", "-m", "0", "-U", &name, "-E", &extended])
        .arg(file.path())
        .output()
        .map_err(|why| Error::io("mke2fs (from e2fsprogs) makes the disk half and could not be run", why))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.replace(&file.path().display().to_string(), "the image");
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
