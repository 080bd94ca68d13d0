//! One builder of devices: a medium as a profile describes it, and the layers over it.
//!
//! ```text
//! page cache · NVRAM write cache · what is absorbed · software's time · placement handles     Layers
//! translation layer on NAND | SSD | disk | nothing but counting                               Medium
//! ```
//!
//! Every layer is a [`BlockDevice`] over another one, and so is what comes out. A replay, an experiment, a simulated
//! mount and `export` differ in what they ask for and where the data lies ([`Contents`]), not in the stack.

pub mod admission_rule;
pub mod args;
pub mod file;
pub mod filters;
pub(crate) mod layers;
pub mod model;
pub mod placement;
pub(crate) mod profiles;

use admission_rule::AdmissionRule;
use bimetal_base::memory::check_room;
use bimetal_base::time::Time;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_cache::{self as cache, device::CachedDevice, nvram::NvramCache, outside::MakeOutside};
use bimetal_ftl::device::FtlDevice;
use bimetal_ftl::ssd::{Data, Ssd, SsdProfile, SsdStats};
use bimetal_ftl::{self as ftl, Ftl};
use bimetal_media::disk::{Disk, DiskProfile, DiskStats};
use bimetal_media::nand::{Nand, NandProfile, Ordering, Payload};
use bimetal_media::nvram::{Nvram, NvramProfile};
use bimetal_media::profile::{self, Described};
use bimetal_media::{BlockDevice, void::Void};
use filters::{Absorbing, CountedPages, Delayed};
use placement::PlacementDevice;
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The medium that only counts.
pub const NONE: &str = "none";
/// Bytes of a medium without an end, as good as any.
const ENDLESS_BYTES: u64 = 1 << 62;
/// What policies group by where there is no flash below.
pub const ERASE_BLOCK_BYTES: u64 = 512 << 10;
/// The profile of the electronics that a bare flash part is put behind where it must have some.
const FRAME: &str = "ssd-tlc";
/// Memory of a page in a cache that keeps no contents, with as many ghosts: node, state, links, instant, index.
const CACHED_PAGE_BYTES: u64 = 96;
/// The memory that an NVRAM write cache is made of.
const NVRAM: &str = "feram";
/// Blocks that every unit of a resized flash part keeps, so that any scheme has its spares.
const BLOCKS_MIN: u32 = 16;
/// The largest disk: beyond, the time to stream over it is more than an instant can say.
const DISK_BYTES_MAX: u64 = 1 << 57;
/// How often a flash part may be enlarged until enough fits.
const ENLARGE_MAX: u32 = 16;

/// What is at the bottom.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Nothing: requests are counted and done at once.
    None,
    /// A disk.
    Disk(Box<DiskProfile>),
    /// An SSD.
    Ssd(Box<SsdProfile>),
    /// A translation layer, by name and settings, on bare flash.
    Flash(Box<NandProfile>, String, String),
}

/// Where what is written lies.
pub enum Contents {
    /// Nowhere: a medium of so many bytes whose contents nobody asks for. Of bare flash no size is that of its profile.
    Nowhere(Option<u64>),
    /// On a device, whose size is the medium's.
    On(Arc<dyn BlockDevice>),
}

impl Medium {
    /// The medium that the profile called `name` (built in, or a path) describes, with the translation layer `ftl`, as
    /// `fast:logs=8`, instead of its own; bare flash has the page map if nothing else is said.
    ///
    /// # Errors
    /// [`Error::Invalid`] on a profile of something else, or a translation layer on what has no flash.
    pub fn named(name: &str, ftl: Option<&str>) -> Result<Medium> {
        ftl.map_or(Ok(()), |ftl| ftl::check(&ftl.parse()?))?;
        let no_flash = |what| {
            Err(Error::invalid(format!("{name} is {what}, which has no FTL; --ftl needs a flash device")))
        };
        if name == NONE {
            return if ftl.is_some() { no_flash("no device") } else { Ok(Medium::None) };
        }
        let ftl = ftl.map(ftl::scheme_and_settings);
        match profile::kind_of(name)?.as_str() {
            DiskProfile::KIND if ftl.is_some() => no_flash("a disk"),
            DiskProfile::KIND => Ok(Medium::Disk(Box::new(profile::load(name)?))),
            SsdProfile::KIND => {
                let mut ssd: SsdProfile = profile::load(name)?;
                if let Some((scheme, settings)) = ftl {
                    (ssd.ftl, ssd.settings) = (scheme, settings);
                }
                Ok(Medium::Ssd(Box::new(ssd)))
            }
            NandProfile::KIND => {
                let (scheme, settings) = ftl.unwrap_or_else(|| ("page".into(), String::new()));
                Ok(Medium::Flash(Box::new(profile::load(name)?), scheme, settings))
            }
            other => Err(Error::invalid(format!(
                "profile {name} describes a {other}, which is not a device by itself: choose a disk, an ssd or a nand"
            ))),
        }
    }

    /// The same with electronics around bare flash: the part called `name` behind those of `ssd-tlc`.
    ///
    /// # Errors
    /// As [`Medium::named`].
    pub fn framed(name: &str, ftl: Option<&str>) -> Result<Medium> {
        let Medium::Flash(part, ..) = Medium::named(name, ftl)? else { return Medium::named(name, ftl) };
        let mut ssd = SsdProfile { model: part.model, nand: name.into(), ..profile::load(FRAME)? };
        if let Some((scheme, settings)) = ftl.map(ftl::scheme_and_settings) {
            (ssd.ftl, ssd.settings) = (scheme, settings);
        }
        Ok(Medium::Ssd(Box::new(ssd)))
    }

    /// The same with another order of the operations of its flash than the part's profile says.
    ///
    /// # Errors
    /// [`Error::Invalid`] on what is not bare flash.
    pub fn ordered(self, ordering: Ordering) -> Result<Medium> {
        match self {
            Medium::Flash(part, scheme, settings) => {
                Ok(Medium::Flash(Box::new(NandProfile { ordering, ..*part }), scheme, settings))
            }
            _ => Err(Error::invalid(
                "--timing is of bare flash; an SSD has that of its part's profile, and other devices have none",
            )),
        }
    }

    /// The translation layer as the command line writes it, where there is one.
    pub fn ftl(&self) -> Option<String> {
        let (scheme, settings) = match self {
            Medium::None | Medium::Disk(_) => return None,
            Medium::Ssd(profile) => (&profile.ftl, &profile.settings),
            Medium::Flash(_, scheme, settings) => (scheme, settings),
        };
        Some(match settings.as_str() {
            "" => scheme.clone(),
            settings => format!("{scheme}:{settings}"),
        })
    }

    /// Builds it. Bare flash is at least so large that the host has `needed` bytes; pages of `page_bytes` are counted
    /// on what has none of its own.
    ///
    /// # Errors
    /// A translation layer refuses its settings, or has less room than is needed.
    pub fn build(
        &self,
        contents: Contents,
        needed: Option<u64>,
        page_bytes: u64,
        seed: u64,
    ) -> Result<Stack> {
        let storage = |name: &str, bytes: u64| -> Arc<dyn BlockDevice> {
            Arc::new(Void::new(name, bytes, if name == NONE { 1 } else { 512 }))
        };
        let mut lacks = None;
        let (model, device, page_bytes) = match (self, contents) {
            (Medium::None, _) => (Model::None, storage(NONE, ENDLESS_BYTES), page_bytes),
            (Medium::Disk(profile), contents) => {
                let data = match contents {
                    Contents::On(device) => device,
                    Contents::Nowhere(bytes) => storage(&profile.model, disk_bytes(bytes.unwrap_or(0))?),
                };
                let disk = Arc::new(Disk::new(profile, data));
                (Model::Disk(disk.clone()), disk as Arc<dyn BlockDevice>, page_bytes)
            }
            (Medium::Ssd(profile), contents) => {
                let data = match contents {
                    Contents::On(device) => Data::Storage(device),
                    Contents::Nowhere(bytes) => Data::Nowhere(bytes.unwrap_or(0)),
                };
                let ssd = Arc::new(Ssd::new(profile, data, seed)?);
                lacks = ssd.lacks();
                let page_bytes = profile::load::<NandProfile>(&profile.nand)?.page;
                (Model::Ssd(ssd.clone()), ssd as Arc<dyn BlockDevice>, page_bytes)
            }
            (Medium::Flash(profile, scheme, settings), Contents::Nowhere(bytes)) => {
                let part = match bytes {
                    Some(bytes) => NandProfile::clone(profile).resized(bytes, BLOCKS_MIN),
                    None => NandProfile::clone(profile),
                };
                let flash = open_flash(part, (scheme, settings), needed, seed)?;
                lacks = flash.nand().profile().lacks_of(profile);
                let flash = Arc::new(FtlDevice::new(flash));
                (Model::Flash(flash.clone()), flash.clone() as Arc<dyn BlockDevice>, flash.page_bytes())
            }
            (Medium::Flash(..), Contents::On(_)) => {
                return Err(Error::invalid(
                    "bare flash keeps no contents: it needs the electronics of an SSD",
                ));
            }
        };
        let pages = Arc::new(CountedPages::new(device, page_bytes));
        let device = match &model {
            Model::Flash(flash) => flash.clone() as Arc<dyn BlockDevice>,
            _ => pages.clone(),
        };
        let erase_block_bytes = model.erase_block_bytes();
        let told = Told { model, pages, erase_block_bytes, lacks, absorbed: None, nvram: None, cache: None };
        Ok(Stack { device, told })
    }
}

/// The bytes of a disk, if there can be one of them.
fn disk_bytes(bytes: u64) -> Result<u64> {
    match bytes <= DISK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Error::invalid(format!(
            "a disk of {}: there are none above {}; choose a smaller size",
            show_size(bytes),
            show_size(DISK_BYTES_MAX)
        ))),
    }
}

/// Opens a scheme on flash at least so large that it has `needed` bytes for the host.
fn open_flash(
    mut profile: NandProfile,
    (scheme, settings): (&str, &str),
    needed: Option<u64>,
    seed: u64,
) -> Result<Box<dyn Ftl>> {
    let mut last = None;
    for _ in 0..ENLARGE_MAX {
        profile = profile.modelled()?;
        let bytes = profile.geometry().bytes();
        let nand = Nand::new(profile.clone(), seed, false, Payload::None);
        let ftl = ftl::open(scheme, nand, settings)?;
        let logical = ftl.logical_pages() * ftl::page_bytes(&*ftl);
        match needed {
            // As large as its settings let it be.
            Some(needed) if logical < needed && last == Some(logical) => break,
            Some(needed) if logical < needed => {
                last = Some(logical);
                let larger = bytes as f64 * (needed as f64 / logical.max(1) as f64) * 1.01;
                profile = profile.resized((larger as u64).max(bytes + 1), BLOCKS_MIN);
            }
            _ => return Ok(ftl),
        }
    }
    Err(Error::invalid(format!(
        "the trace does not fit on {}; say --device-size or --fit wrap",
        profile.model
    )))
}

/// What stands over a medium.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Which writes carry placement handle 1, if not those that come with one.
    pub place: Option<AdmissionRule>,
    /// Software's time for each request.
    pub overhead: Duration,
    /// A range of bytes that never reaches what is below.
    pub absorb: Option<Range<u64>>,
    /// What a non-volatile write cache takes, and its bytes.
    pub nvram: Option<(AdmissionRule, u64)>,
    /// A page cache.
    pub cache: Option<Caching>,
}

/// A page cache to be.
#[derive(Clone, Debug)]
pub struct Caching {
    /// Its policy, with options.
    pub policy: String,
    /// One that comes from outside the registry, instead.
    pub outside: Option<Arc<dyn MakeOutside>>,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// See [`cache::Config::durable_syncs`].
    pub durable_syncs: bool,
    /// See [`cache::Config::read_ahead`].
    pub read_ahead: u32,
    /// See [`cache::Config::dirty_age`].
    pub dirty_age: Option<Duration>,
}

impl Caching {
    /// A cache that writes as its policy says, and reads what it is asked for.
    pub fn new(policy: &str, bytes: u64, page_bytes: u64) -> Caching {
        let policy = policy.to_string();
        Caching {
            policy,
            outside: None,
            bytes,
            page_bytes,
            durable_syncs: false,
            read_ahead: 0,
            dirty_age: None,
        }
    }

    /// The cache over `device`, whose erase blocks have `block_bytes`.
    ///
    /// # Errors
    /// There is no such policy, or the cache is too large or too small.
    pub fn over(&self, device: Arc<dyn BlockDevice>, block_bytes: u64) -> Result<Arc<CachedDevice>> {
        let pages = self.bytes / self.page_bytes;
        let capacity = u32::try_from(pages)
            .map_err(|_| Error::invalid(format!("a cache of {} is too large", show_size(self.bytes))))?;
        let what = format_args!("a cache of {} in pages of {}", show_size(self.bytes), self.page_bytes);
        check_room(what, pages * CACHED_PAGE_BYTES)?;
        let block_pages = (block_bytes / self.page_bytes).max(1) as u32;
        let config = cache::Config {
            page_bytes: self.page_bytes,
            durable_syncs: self.durable_syncs,
            read_ahead: self.read_ahead,
            dirty_age: self.dirty_age,
            ..cache::Config::new(capacity).block_pages(block_pages)
        };
        let device = match &self.outside {
            Some(policy) => CachedDevice::under(device, policy.as_ref(), &config),
            None => CachedDevice::new(device, &self.policy, &config),
        };
        device.map(Arc::new)
    }
}

/// A device, and what its layers can tell.
pub struct Stack {
    /// The top.
    pub device: Arc<dyn BlockDevice>,
    /// What there is to tell.
    pub told: Told,
}

/// The layers of a stack, to be asked what they did.
pub struct Told {
    /// What times requests.
    pub model: Model,
    /// What reached it.
    pub pages: Arc<CountedPages>,
    /// Bytes of an erase block, if there is flash below.
    pub erase_block_bytes: Option<u64>,
    /// What the flash, made for a size, has less of than its profile says, in words.
    pub lacks: Option<String>,
    /// What was absorbed.
    pub absorbed: Option<Arc<Absorbing>>,
    /// The write cache.
    pub nvram: Option<Arc<NvramCache>>,
    /// The page cache.
    pub cache: Option<Arc<CachedDevice>>,
}

impl Told {
    /// Whether what was written may be in memory alone until a flush: of a page cache, or of an SSD.
    pub fn holds_writes(&self) -> bool {
        self.cache.is_some() || matches!(self.model, Model::Ssd(_))
    }

    /// Bytes of a page, in which what reaches the medium is counted.
    pub fn page_bytes(&self) -> u64 {
        self.pages.page_bytes()
    }
}

/// A medium that was built.
pub enum Model {
    /// Nothing.
    None,
    /// A disk.
    Disk(Arc<Disk>),
    /// An SSD.
    Ssd(Arc<Ssd>),
    /// A translation layer on bare flash.
    Flash(Arc<FtlDevice>),
}

impl Model {
    /// What the flash did, where there is some.
    pub fn flash(&self) -> Option<ftl::Report> {
        match self {
            Model::None | Model::Disk(_) => None,
            Model::Ssd(ssd) => Some(ssd.report()),
            Model::Flash(flash) => Some(flash.report()),
        }
    }

    /// Erases of each block so far, where there is flash.
    pub fn erases_by_block(&self) -> Vec<u32> {
        match self {
            Model::None | Model::Disk(_) => Vec::new(),
            Model::Ssd(ssd) => ssd.erases_by_block(),
            Model::Flash(flash) => flash.erases_by_block(),
        }
    }

    /// Bytes of an erase block, if there is flash.
    fn erase_block_bytes(&self) -> Option<u64> {
        match self {
            Model::None | Model::Disk(_) => None,
            Model::Ssd(ssd) => Some(ssd.erase_block_bytes()),
            Model::Flash(flash) => Some(flash.erase_block_bytes()),
        }
    }

    /// Programs what an SSD has in memory although no flush waits for it: memory that survives power loss, or one that lies. Returns
    /// when that is done.
    ///
    /// # Errors
    /// The flash refuses a page.
    pub fn write_back(&self, at: Time) -> Result<Time> {
        match self {
            Model::Ssd(ssd) => ssd.write_back(at),
            Model::None | Model::Disk(_) | Model::Flash(_) => Ok(at),
        }
    }

    /// What an SSD did beside its flash.
    pub fn ssd(&self) -> Option<SsdStats> {
        match self {
            Model::Ssd(ssd) => Some(ssd.stats()),
            _ => None,
        }
    }

    /// What a disk did.
    pub fn disk(&self) -> Option<DiskStats> {
        match self {
            Model::Disk(disk) => Some(disk.stats()),
            _ => None,
        }
    }

    /// All it can tell about itself, for a status.
    pub fn status(&self) -> Value {
        match self {
            Model::None => Value::Null,
            Model::Disk(disk) => json!(disk.stats()),
            Model::Ssd(ssd) => json!({ "memory": ssd.stats(), "flash": ssd.report() }),
            Model::Flash(flash) => json!({ "flash": flash.report() }),
        }
    }
}

impl Stack {
    /// Bytes that can be addressed; none: any.
    pub fn size_bytes(&self) -> Option<u64> {
        match self.told.model {
            Model::None => None,
            _ => Some(self.device.info().size_bytes),
        }
    }

    /// Puts layers over it.
    ///
    /// # Errors
    /// A policy or a choice that does not exist, a cache that is too large or too small.
    pub fn with(mut self, layers: &Layers) -> Result<Stack> {
        let (size_bytes, told) = (self.size_bytes(), &mut self.told);
        let mut top = self.device;
        if let Some(takes) = &layers.place {
            top = Arc::new(PlacementDevice::new(top, takes)?);
        }
        if !layers.overhead.is_zero() {
            top = Arc::new(Delayed::new(top, layers.overhead));
        }
        if let Some(range) = &layers.absorb {
            if top.keeps_contents() {
                return Err(Error::invalid("what is absorbed is lost: only a device without contents may"));
            }
            top = told.absorbed.insert(Arc::new(Absorbing::new(top, range.clone()))).clone();
        }
        if let Some((takes, bytes)) = &layers.nvram {
            check_room("the write cache in NVRAM", *bytes)?;
            let memory = Nvram::new(profile::load::<NvramProfile>(NVRAM)?, *bytes as usize);
            top = told.nvram.insert(Arc::new(NvramCache::open(top, memory, takes.choice()?)?)).clone();
        }
        if let Some(caching) = &layers.cache {
            let block = told.erase_block_bytes.unwrap_or(ERASE_BLOCK_BYTES);
            top = told.cache.insert(caching.over(top, block)?).clone();
        }
        debug_assert!(size_bytes.is_none_or(|size| top.info().size_bytes <= size));
        self.device = top;
        Ok(self)
    }
}
