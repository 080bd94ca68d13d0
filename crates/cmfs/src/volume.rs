//! Volumes by their paths: making, opening, checking.

use super::image::ImageNand;
use super::mounted::{CmfsFs, Memory, Options, Part};
use super::mtd::MtdNand;
use super::nvram::MappedNvram;
use super::{error, export};
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::guard::{self, Claim, Role, Target};
use bimetal_media::nand::NandProfile;
use bimetal_media::profile;
use cmfs_core::ecc::Corrected;
use cmfs_core::ram::{Power, RamNvram};
use cmfs_core::record::{MAGIC, Record};
use cmfs_core::{
    Config, Fs, Geometry, Layout, MountReport, Names, Nand, NandError, Nvram, Problem, ROOT, SetAttr,
};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part that an image is of, unless another is named.
pub const DEVICE: &str = "slc-2k";

/// Bytes at the end of an image in which format records are looked for where they should not be.
const RECORDS_BYTES: u64 = 48 << 20;
/// Bytes at the beginning of an NVRAM that tell whose it is.
const FRONT_BYTES: u64 = 512;

/// Which volume, and how.
#[derive(Clone, Debug)]
pub struct Volume<'a> {
    /// The image of the NAND, or an MTD device.
    pub nand: &'a Path,
    /// The NVRAM, a file or a device to map; without, every mount scans.
    pub nvram: Option<&'a Path>,
    /// Profile of the part, by name or path; an MTD device tells its shape itself.
    pub device: &'a str,
    /// Believe the NAND alone.
    pub scan: bool,
    /// Leave a checkpoint for YAFFS2 at the end, for machines with pointers of so many bytes.
    pub checkpoint: Option<usize>,
    /// Open a part without a format record, as YAFFS2 and image makers leave it.
    pub plain: bool,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image of the NAND, made if it is not there; or an MTD device.
    pub nand: PathBuf,
    /// That of the NVRAM.
    pub nvram: Option<PathBuf>,
    /// Profile of the part.
    pub device: String,
    /// Size of the NAND where the image is not there yet, bytes of data; `None`: as the profile says.
    pub size_bytes: Option<u64>,
    /// Size of the NVRAM, bytes; `None`: a thousandth of the NAND.
    pub nvram_bytes: Option<u64>,
    /// How metadata lies in NVRAM.
    pub layout: Layout,
    /// Go ahead although the image holds something.
    pub force: bool,
}

/// The shape of a part by its profile.
///
/// # Errors
/// There is no such profile, or the file system cannot be on such a part.
pub fn geometry_of(device: &str) -> Result<Geometry> {
    let profile: NandProfile = profile::load(device)?;
    let shape = profile.geometry();
    let geometry = Geometry {
        page_bytes: shape.page_bytes,
        spare_bytes: shape.spare_bytes,
        pages_per_block: shape.pages_per_block,
        blocks: shape.blocks(),
    };
    geometry.check().map_err(error)?;
    if profile.cell_bits > 1 {
        return Err(Error::invalid(format!(
            "--device {device}: its cells hold {} bits (MLC, TLC, QLC): a power cut while a page is programmed may destroy \
             the one it is paired with; cmfs is for parts with one, as {DEVICE}",
            profile.cell_bits
        )));
    }
    Ok(geometry)
}

fn config(layout: Layout) -> Config {
    Config { layout, names: Names::Auto, ..Config::default() }
}

/// The layout of an NVRAM: the paper's begins with two words that are 0 or 1, and a chunk of the heap.
fn layout_of(nvram: &Claim) -> Result<Layout> {
    let bytes = front_of(nvram, 16)?;
    let marker = matches!(bytes.get(..8), Some([0 | 1, 0, 0, 0, 0 | 1, 0, 0, 0]));
    let is_paper = marker && bytes.get(8..16).is_some_and(|head| head != [0; 8]);
    Ok(if is_paper { Layout::Paper } else { Layout::Compact })
}

/// The first bytes of what is claimed, at most so many.
fn front_of(claim: &Claim, bytes: u64) -> Result<Vec<u8>> {
    let mut file = claim.file();
    let mut front = Vec::new();
    let read = file.rewind().and_then(|()| file.take(bytes).read_to_end(&mut front));
    read.map_err(|why| Error::io(claim.name(), why))?;
    Ok(front)
}

/// Makes a volume; the sizes of NAND and NVRAM, bytes.
///
/// # Errors
/// The images cannot be made, or hold something and `force` is not set.
pub fn make(plan: &Plan) -> Result<(u64, u64)> {
    let (mut fs, sizes) = format(plan, *uuid::Uuid::new_v4().as_bytes())?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if uid != 0 {
        // Whoever makes a volume may write to it.
        let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        fs.set_attr(ROOT, &owner).map_err(error)?;
    }
    fs.close().map_err(error)?;
    Ok(sizes)
}

/// Claims NAND and NVRAM of a volume that is to be made.
pub(super) fn claim(plan: &Plan) -> Result<Vec<Arc<Claim>>> {
    let made = |name, path| Target { make: true, ..Target::new(name, path, Role::Overwritten) };
    let nvram = plan.nvram.as_deref().map(|path| made("--nvram", path));
    let targets: Vec<Target> = [made("--nand", &plan.nand)].into_iter().chain(nvram).collect();
    guard::claim(&targets, plan.force)
}

/// An error if an image that is there and is to keep its length is of another part.
pub(super) fn check_length(plan: &Plan, image: &Arc<Claim>) -> Result<()> {
    let is_kept = plan.size_bytes.is_none() && image.file().metadata().is_ok_and(|found| found.len() > 0);
    if is_kept { ImageNand::over(image.clone(), image_shape(plan)?).map(drop) } else { Ok(()) }
}

/// Makes an empty volume and leaves it open; the sizes of NAND and NVRAM, bytes.
pub(super) fn format(plan: &Plan, identity: [u8; 16]) -> Result<(Fs<Part, Memory>, (u64, u64))> {
    let mut claims = claim(plan)?.into_iter();
    let (nand, memory) = (claims.next().ok_or(Error::BadArgument)?, claims.next());
    let is_device = is_device(&plan.nand);
    let shape = if is_device { open_device(plan, nand.clone())?.0 } else { image_shape(plan)? };
    let bytes = shape.pages() * u64::from(shape.page_bytes);
    let usual = usual_nvram_bytes(shape);
    let nvram_bytes = match &memory {
        Some(claim) if !claim.file().metadata().is_ok_and(|found| found.is_file()) => {
            Nvram::size_bytes(&MappedNvram::over(claim.clone())?) as u64
        }
        _ => plan.nvram_bytes.map_or(usual, |bytes| bytes / 8 * 8),
    };
    // What refuses this format shows on a part that keeps nothing, while the media are what they were.
    let trial = |memory| Fs::format(Blank(shape), memory, config(plan.layout), [1; 16], false);
    trial(None).map_err(error)?;
    if memory.is_some() {
        trial(Some(RamNvram::new(nvram_bytes as usize, Power::default()))).map_err(|_| {
            let (has, wants) = (show_size(nvram_bytes), show_size(usual));
            Error::invalid(format!(
                "--nvram: {has} are too little for this part; a thousandth of it, {wants}, is usual"
            ))
        })?;
    }
    let nand = if is_device { open_device(plan, nand)?.1 } else { make_image(plan, nand, shape)? };
    let nvram = memory.map(|claim| make_nvram(claim, nvram_bytes)).transpose()?;
    let nvram = nvram.map(|nvram| Box::new(nvram) as Memory);
    let fs = Fs::format(nand, nvram, config(plan.layout), identity, true).map_err(error)?;
    Ok((fs, (bytes, if plan.nvram.is_some() { nvram_bytes } else { 0 })))
}

/// An MTD device to make a file system on: its spare areas say whether it holds something, too.
fn open_device(plan: &Plan, claim: Arc<Claim>) -> Result<(Geometry, Part)> {
    if plan.size_bytes.is_some() {
        return Err(Error::invalid(format!("{}: a device has its size", plan.nand.display())));
    }
    let mut nand = MtdNand::over(claim)?;
    let shape = cmfs_core::Nand::geometry(&nand);
    let mut spare = vec![0; shape.spare_bytes as usize];
    for block in 0..shape.blocks {
        let read = cmfs_core::Nand::read_spare(&mut nand, shape.first_page(block), &mut spare);
        if !plan.force && read.is_ok() && spare.iter().any(|byte| *byte != 0xff) {
            return Err(Error::invalid(format!(
                "{} already holds something in its spare areas; use --force to overwrite it",
                plan.nand.display()
            )));
        }
    }
    Ok((shape, Box::new(nand)))
}

/// The shape of the part in the image that is to be made.
fn image_shape(plan: &Plan) -> Result<Geometry> {
    let mut geometry = geometry_of(&plan.device)?;
    if let Some(bytes) = plan.size_bytes {
        let block = u64::from(geometry.page_bytes) * u64::from(geometry.pages_per_block);
        geometry.blocks = u32::try_from(bytes / block).unwrap_or(u32::MAX);
        geometry.check().map_err(error)?;
    }
    Ok(geometry)
}

/// A part on which everything succeeds and nothing stays.
struct Blank(Geometry);

impl cmfs_core::Nand for Blank {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn is_bad(&mut self, _: u32) -> std::result::Result<bool, NandError> {
        Ok(false)
    }

    fn mark_bad(&mut self, _: u32) -> std::result::Result<(), NandError> {
        Ok(())
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> std::result::Result<u32, NandError> {
        data.fill(0xff);
        self.read_spare(page, spare)
    }

    fn read_spare(&mut self, _: u32, spare: &mut [u8]) -> std::result::Result<u32, NandError> {
        spare.fill(0xff);
        Ok(0)
    }

    fn program(&mut self, _: u32, _: &[u8], _: &[u8]) -> std::result::Result<(), NandError> {
        Ok(())
    }

    fn erase(&mut self, _: u32) -> std::result::Result<(), NandError> {
        Ok(())
    }
}

/// An image to make a file system in; an empty one gets its length.
fn make_image(plan: &Plan, claim: Arc<Claim>, geometry: Geometry) -> Result<Part> {
    let is_empty = claim.file().metadata().is_ok_and(|found| found.len() == 0);
    // What was something else has no marks of bad blocks; what looks like one would stay as it was.
    let is_other = || record_in(claim.file()).is_none();
    if is_empty || plan.force && (plan.size_bytes.is_some() || is_other()) {
        ImageNand::make(&claim, &geometry)?;
    }
    Ok(Box::new(Corrected::new(ImageNand::over(claim, geometry)?)))
}

/// A character device is MTD, or nothing that can be a NAND part.
fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_char_device())
}

/// A file is emptied and made of this size, a device has its own.
fn make_nvram(claim: Arc<Claim>, bytes: u64) -> Result<MappedNvram> {
    if claim.file().metadata().is_ok_and(|found| found.is_file()) {
        let resized = claim.file().set_len(0).and_then(|()| claim.file().set_len(bytes));
        resized.map_err(|why| Error::io(claim.name(), why))?;
    }
    MappedNvram::over(claim)
}

/// The last format record of an image, wherever in its end it lies.
fn record_in(mut file: &File) -> Option<Record> {
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(RECORDS_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.take(RECORDS_BYTES).read_to_end(&mut bytes).ok()?;
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    starts.filter_map(|(at, _)| Record::from_bytes(&bytes[at..]).ok()).max_by_key(|record| record.session)
}

/// The shape of the part that an NVRAM is of, where it says it.
fn nvram_shape(nvram: &Claim) -> Option<Geometry> {
    cmfs_core::geometry_of_nvram(&front_of(nvram, FRONT_BYTES).ok()?)
}

/// Bytes of the image of a part.
fn image_bytes(shape: Geometry) -> u64 {
    shape.pages() * u64::from(shape.page_bytes + shape.spare_bytes)
}

/// An error if what is named as the NVRAM of a part holds something else: whoever opens the part may write it anew. The NVRAM of
/// another part is refused as that is opened.
fn refuse_contents(claim: &Claim, nand: &mut Part) -> Result<()> {
    let mut front = front_of(claim, FRONT_BYTES)?;
    front.resize(FRONT_BYTES as usize, 0);
    if cmfs_core::identity_of_nvram(&front).is_some() {
        return Ok(());
    }
    // A part that cannot be opened is refused as such.
    let Ok(Some(identity)) = cmfs_core::identity_of_nand(nand) else { return Ok(()) };
    match guard::contents(claim)? {
        Some(what) if !cmfs_core::nvram_is_of(&front, &identity) => Err(Error::invalid(format!(
            "{} holds {what}, and is not the NVRAM of this NAND; name that, or an empty one: `truncate -s {} NEW` makes it",
            claim.name(),
            usual_nvram_bytes(nand.geometry())
        ))),
        _ => Ok(()),
    }
}

/// The size of an NVRAM unless another is asked for.
fn usual_nvram_bytes(shape: Geometry) -> u64 {
    (shape.pages() * u64::from(shape.page_bytes) / 1000).max(4096) / 8 * 8
}

/// What an image is to a cmfs, and the identity of that.
///
/// # Errors
/// As [`guard::input`]'s.
pub fn probe(image: &Path) -> Result<Option<(&'static str, [u8; 16])>> {
    let mut front = Vec::new();
    let file = guard::input(image)?;
    (&file).take(FRONT_BYTES).read_to_end(&mut front).map_err(|why| Error::io(image.display(), why))?;
    if let Some(identity) = cmfs_core::identity_of_nvram(&front) {
        return Ok(Some(("nvram", identity)));
    }
    Ok(record_in(&file).map(|record| ("nand", record.identity)))
}

/// A volume whose NAND and NVRAM are claimed: no path is asked for any more.
pub struct Claimed {
    nand: Arc<Claim>,
    nvram: Option<Arc<Claim>>,
    /// The shape of the part by its profile; none of an MTD device, which tells it itself.
    shape: Option<Geometry>,
    device: String,
    scan: bool,
    checkpoint: Option<usize>,
    plain: bool,
}

impl Claimed {
    /// The same for who changes nothing.
    ///
    /// # Errors
    /// This process may not open more files.
    pub fn to_read(&self) -> Result<Claimed> {
        let nvram = self.nvram.as_ref().map(|claim| claim.to_read()).transpose()?;
        let (nand, device) = (self.nand.to_read()?, self.device.clone());
        Ok(Claimed { nand, nvram, device, ..*self })
    }

    /// Opens it as a file system.
    ///
    /// # Errors
    /// As [`Volume::open`]'s.
    pub fn mount(&self) -> Result<CmfsFs> {
        let read_only = self.nand.role() == Role::Read;
        let checkpoint = self.checkpoint.filter(|_| !read_only);
        let fs = self.open()?;
        if self.nvram.is_some() && !fs.report().why.is_empty() {
            tracing::warn!("cmfs: the NVRAM was not used and the NAND was scanned: {}", fs.report().why);
        }
        CmfsFs::new(fs, Options { read_only, checkpoint, scrub_pages: 1, manual: false })
    }

    fn open(&self) -> Result<Fs<Part, Memory>> {
        let mut nand: Part = match self.shape {
            None => Box::new(MtdNand::over(self.nand.clone())?),
            Some(shape) => Box::new(Corrected::new(ImageNand::over(self.nand.clone(), shape)?)),
        };
        if let Some(claim) = self.nvram.as_ref().filter(|_| !self.plain) {
            refuse_contents(claim, &mut nand)?;
        }
        let nvram = self.nvram.clone().map(MappedNvram::over).transpose()?;
        let nvram = nvram.map(|memory| Box::new(memory) as Memory);
        let layout = self.nvram.as_deref().map_or(Ok(Layout::Compact), layout_of)?;
        let config = Config { plain: self.plain, ..config(layout) };
        let opened = match self.scan {
            true => Fs::open_scanning(nand, nvram, config),
            false => Fs::open(nand, nvram, config),
        };
        opened.map_err(|why| match why {
            cmfs_core::Error::Foreign(_) => self.foreign(why),
            why => error(why),
        })
    }

    /// The error for a part that is not ours, with the shape that a format record in its image names, or its NVRAM.
    fn foreign(&self, why: cmfs_core::Error) -> Error {
        let path = self.nand.name();
        let shape = self.shape.and_then(|_| record_in(self.nand.file())).map(|record| record.geometry);
        let wanted = shape.or_else(|| nvram_shape(self.nvram.as_deref()?)).map(image_bytes);
        let len = self.nand.file().metadata().map_or(0, |found| found.len());
        let is_same_but_blocks = |shape: Geometry| {
            self.shape.is_some_and(|device| Geometry { blocks: shape.blocks, ..device } == shape)
        };
        match shape {
            _ if self.shape.is_some()
                && wanted.is_some_and(|bytes| bytes != len)
                && shape.is_none_or(is_same_but_blocks) =>
            {
                Error::invalid(format!(
                    "{path}: it is {len} bytes long and should be {}: it was cut off, or something was added to it; take a copy of the right length, or cut off what was added",
                    wanted.unwrap_or(0)
                ))
            }
            Some(shape) => Error::invalid(format!(
                "{path}: it is a cmfs on a part of {} blocks of {} pages of {} + {} bytes, which --device {} is not; name that part",
                shape.blocks, shape.pages_per_block, shape.page_bytes, shape.spare_bytes, self.device
            )),
            None => error(why).explained(path),
        }
    }
}

impl Volume<'_> {
    /// Claims NAND and NVRAM. Not `writable`, nothing on them is going to change.
    ///
    /// # Errors
    /// One is not there, or in use; there is no such part.
    pub fn claim(&self, writable: bool) -> Result<Claimed> {
        let role = Role::changed_if(writable);
        let nvram = self.nvram.map(|path| Target::new("--nvram", path, role));
        let targets: Vec<Target> =
            [Target::new("--nand", self.nand, role)].into_iter().chain(nvram).collect();
        let mut claims = guard::claim(&targets, false)?.into_iter();
        let nand = claims.next().ok_or(Error::BadArgument)?;
        let shape = if is_device(self.nand) { None } else { Some(geometry_of(self.device)?) };
        let (device, nvram) = (self.device.into(), claims.next());
        let (scan, checkpoint, plain) = (self.scan, self.checkpoint, self.plain);
        Ok(Claimed { nand, nvram, shape, device, scan, checkpoint, plain })
    }

    /// Opens the core. Read-only, nothing on the media changes.
    ///
    /// # Errors
    /// The images cannot be opened, or do not belong together.
    pub fn open(&self, writable: bool) -> Result<Fs<Part, Memory>> {
        self.claim(writable)?.open()
    }

    /// Opens it as a file system.
    ///
    /// # Errors
    /// As [`open`](Volume::open)'s.
    pub fn mount(&self, writable: bool) -> Result<CmfsFs> {
        self.claim(writable)?.mount()
    }

    /// Checks the volume; how it was opened, what is wrong, and how many objects there are. With `repair` what the
    /// NVRAM says wrong is written anew from a scan of the NAND, as long as no page is lost that only it speaks of; `lossy`, that is
    /// done then, too, and what has lost its header gets a new one. Of two entries of one name the older one gets another.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn check(&self, repair: bool, lossy: bool) -> Result<Checked> {
        let mut fs = self.open(false)?;
        let problems = fs.check(true).map_err(error)?;
        let (report, objects) = (fs.report().clone(), fs.object_count());
        drop(fs);
        let renews = repair && self.nvram.is_some() && !report.why.is_empty();
        let checked = |problems: Vec<Problem>, left: Vec<Problem>| Checked {
            report,
            problems,
            left,
            objects,
            renewed: renews,
        };
        // What is clean is not written to.
        if !repair || problems.is_empty() && !renews {
            return Ok(checked(problems.clone(), problems));
        }
        let mut fs = self.open(true)?;
        let mut left = problems.clone();
        if problems.iter().any(Problem::is_of_a_name) {
            fs.tell_apart().map_err(error)?;
            left = fs.check(true).map_err(error)?;
        }
        if lossy && problems.iter().any(Problem::is_of_a_header) {
            fs.repair().map_err(error)?;
            left = fs.check(true).map_err(error)?;
        }
        let speaks_alone = left.iter().any(Problem::is_of_a_lost_page);
        if left.iter().all(Problem::is_of_a_lost_page) || speaks_alone && !lossy {
            fs.close().map_err(error)?;
            return Ok(checked(problems, left));
        }
        drop(fs);
        let mut fs = Volume { scan: true, ..self.clone() }.open(true)?;
        let left = fs.check(true).map_err(error)?;
        fs.close().map_err(error)?;
        Ok(checked(problems, left))
    }

    /// Writes an image that image makers' tools read; how many objects are in it.
    ///
    /// # Errors
    /// The volume cannot be read, or the image not be written.
    pub fn export(&self, image: &Path) -> Result<u32> {
        let mut fs = self.open(false)?;
        export::write_image(&mut fs, image)
    }
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// How the volume was opened.
    pub report: MountReport,
    /// What was wrong.
    pub problems: Vec<Problem>,
    /// What is wrong now.
    pub left: Vec<Problem>,
    /// Objects looked at.
    pub objects: u32,
    /// The NVRAM, which was not believed, was written anew.
    pub renewed: bool,
}
