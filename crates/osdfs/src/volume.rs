//! Object stores by the paths of their images: making and opening, with a file system or without.

use super::OsdFs;
use bimetal_base::runtime::Live;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::guard::{self, Claim, Role, Target};
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::profile;
use bimetal_osd_core::{Format, Mended, Options, Store};
use bimetal_vfs::Caller;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part that an image is of, unless another is named.
pub const DEVICE: &str = "slc-2k";
/// Units keep so many blocks, however small the image.
const BLOCKS_MIN: u32 = 32;

/// A store to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image of the NAND, made or overwritten.
    pub nand: PathBuf,
    /// Profile of the part.
    pub device: String,
    /// Bytes of the image's pages; `None`: as the profile says.
    pub size_bytes: Option<u64>,
    /// Segments and placement.
    pub format: Format,
    /// Without a file system: objects by their numbers only.
    pub bare: bool,
    /// Go ahead although the image is there.
    pub force: bool,
}

/// Makes a store; what objects can fill of it, bytes.
///
/// # Errors
/// The image cannot be made, or is there and `force` is not set; the part or the placement is none.
pub fn make(plan: &Plan, caller: &Caller) -> Result<u64> {
    let target = Target { make: true, ..Target::new("--nand", &plan.nand, Role::Overwritten) };
    let claim = guard::claim(&[target], plan.force)?.pop().ok_or(Error::BadArgument)?;
    // The file is made anew, however long it is.
    if !plan.force && claim.file().metadata().is_ok_and(|found| found.len() > 0) {
        return Err(Error::invalid(format!(
            "{} is there already; use --force to overwrite it",
            plan.nand.display()
        )));
    }
    let mut part: NandProfile = profile::load(&plan.device)?;
    if let Some(bytes) = plan.size_bytes {
        let least = u64::from(BLOCKS_MIN) * u64::from(part.pages) * part.page;
        if bytes < least {
            return Err(Error::invalid(format!(
                "an object store of {} is too small; of this part it takes {} or more",
                show_size(bytes),
                show_size(least)
            )));
        }
        part = part.resized(bytes, BLOCKS_MIN);
    }
    let part = part.modelled()?;
    // What refuses this format shows on a part in memory, while the image is what it was.
    Store::format(Nand::new(part.clone(), SEED, true, Payload::memory()), &plan.format, Options::default())?;
    let nand = Nand::make_image(claim, part, SEED)?;
    let mut store = Store::format(nand, &plan.format, Options::default())?;
    if !plan.bare {
        OsdFs::make(&mut store, caller)?;
    }
    let total = store.capacity().total;
    store.close()?;
    Ok(total)
}

/// Which blocks of a new image are bad.
const SEED: u64 = 1;

/// An image that is claimed, and its part: no path is asked for any more.
pub struct Claimed {
    image: Arc<Claim>,
    part: NandProfile,
}

/// Claims an image. Not `writable`, nothing in it is going to change.
///
/// # Errors
/// It is not there, or in use; there is no such part.
pub fn claim(nand: &Path, device: &str, writable: bool) -> Result<Claimed> {
    let image = guard::claim(&[Target::new("--nand", nand, Role::changed_if(writable))], false)?;
    let image = image.into_iter().next().ok_or(Error::BadArgument)?;
    Ok(Claimed { image, part: profile::load(device)? })
}

impl Claimed {
    /// The same for who changes nothing.
    ///
    /// # Errors
    /// This process may not open more files.
    pub fn to_read(&self) -> Result<Claimed> {
        Ok(Claimed { image: self.image.to_read()?, part: self.part.clone() })
    }

    /// Opens the file system on it.
    ///
    /// # Errors
    /// As [`open`]; there is no file system.
    pub fn mount(self) -> Result<OsdFs> {
        let read_only = self.image.role() == Role::Read;
        OsdFs::new(self.open()?, read_only)
    }

    fn open(self) -> Result<Store> {
        Store::open(Nand::over_image(self.image, self.part)?, Options::default())
    }
}

/// Opens a store. Not `writable`, nothing in the image changes.
///
/// # Errors
/// The image cannot be read, is in use or of another part; there is no store on it.
pub fn open(nand: &Path, device: &str, writable: bool) -> Result<Store> {
    claim(nand, device, writable)?.open()
}

/// Puts a store together again that does not open ([`Store::rebuild`]); what was done.
///
/// # Errors
/// As [`open`]; nothing is left of a store.
pub fn rebuild(nand: &Path, device: &str) -> Result<(Store, Vec<Mended>)> {
    let nand = Nand::open_image(nand, profile::load(device)?, true)?;
    Store::rebuild(nand, Options::default(), Live::wall_clock().into())
}

/// Opens the file system on a store.
///
/// # Errors
/// As [`open`]; there is no file system.
pub fn mount(nand: &Path, device: &str, writable: bool) -> Result<OsdFs> {
    claim(nand, device, writable)?.mount()
}
