//! Flash translation: what stands between logical pages and NAND, one scheme a file.
//!
//! A scheme ([`Ftl`]) owns its [`Nand`] and is opened on it, new or used: what the spare areas say is all
//! it needs, so that opening after a power cut is the same as opening at all. To add a scheme, write one
//! file with a [`Scheme`] constant and name it in [`SCHEMES`].
//!
//! Every page a scheme programs for the host carries a tag: its logical page, and its [`version`]. So a page
//! can be checked without its bytes, and of two versions the newer is known.

pub mod bast;
mod blockmap;
pub mod device;
pub mod dftl;
pub mod fast;
mod free;
pub mod nftl;
pub mod page;
mod scheduled;
pub mod settings;
pub mod ssd;
pub mod streams;
pub mod theory;

use bimetal_base::options::{self, Entry, Named, Registry};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Causes, Failure, Nand, NandCounts, Page, ScheduleStats, Tag, Wear};
use bytes::Bytes;
use serde::Serialize;
use settings::Settings;
use std::io;
use std::time::Duration;

/// Opens a scheme on an array, new or used.
pub type Open = fn(Nand, Settings) -> Result<Box<dyn Ftl>>;

/// A scheme: how to call it, what can be set, how to open it.
pub type Scheme = options::Entry<Open>;

/// All schemes, by name.
pub const SCHEMES: Registry<Entry<Open>> = Registry {
    what: "FTL",
    entries: &[&page::SCHEME, &bast::SCHEME, &fast::SCHEME, &nftl::SCHEME, &dftl::SCHEME],
};

/// The name of a scheme that papers call otherwise.
fn known_as(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Refuses a scheme or a setting that there is not.
///
/// # Errors
/// [`Error::Invalid`] with the nearest name that there is.
pub fn check(named: &Named) -> Result<()> {
    SCHEMES.look_up(&Named { name: known_as(&named.name).to_string(), ..named.clone() }).map(drop)
}

/// Opens scheme `name` on `nand` with `settings` such as `clean=greedy:over-provision=10`.
pub fn open(name: &str, nand: Nand, settings: &str) -> Result<Box<dyn Ftl>> {
    let scheme = SCHEMES.find(name)?;
    if nand.profile().one_shot && scheme.name != page::SCHEME.name {
        return Err(Error::invalid(format!(
            "{name}: {} programs whole word lines in one shot, which this layer does not: choose {}",
            nand.profile().model,
            page::SCHEME.name
        )));
    }
    (scheme.make)(nand, Settings::parse(name, settings)?)
}

/// Other names of schemes, and those that they stand for: what the papers call them.
pub const ALIASES: [(&str, &str); 3] = [("log", "bast"), ("log-block", "bast"), ("replacement", "nftl")];

/// A scheme and its settings, from `page:clean=greedy:level=static`, as command lines say them.
pub fn scheme_and_settings(text: &str) -> (String, String) {
    let (scheme, settings) = text.split_once(':').unwrap_or((text, ""));
    (known_as(scheme).to_string(), settings.to_string())
}

/// A translation layer over the array it owns.
///
/// It decides, and its decisions take effect at once. What they take is the array's business: every call says when it
/// arrives, and what it returns says when it is done, in what its array understands by that: instants, places in a list
/// of operations ([`Nand::record`]), or nothing.
pub trait Ftl: Send {
    /// Pages the host can address: 0 up to this.
    fn logical_pages(&self) -> u64;

    /// Where a page lies, without an operation.
    fn find(&self, page: Lpn) -> Option<(u32, u32)>;

    /// Finds and reads a page.
    ///
    /// Fails with [`Error::Corrupt`] if its bits cannot be corrected, with [`Error::Gone`] without power.
    fn read(&mut self, at: Time, page: Lpn) -> Result<Found>;

    /// Writes a page; `data` is a whole page, or empty where the array keeps no bytes. When it is done
    /// it survives power loss.
    ///
    /// Fails with [`Error::Io`] (`EROFS`) once the flash is worn out, with [`Error::Gone`] without power.
    fn write(&mut self, at: Time, page: Lpn, data: &[u8]) -> Result<Time>;

    /// As [`write`](Ftl::write), of a page whose contents live about as long as those of other pages written with
    /// the same placement handle: what a host says of a write with NVMe streams or flexible data placement.
    ///
    /// Provided: the handle is of no interest.
    fn write_placed(&mut self, at: Time, page: Lpn, data: &[u8], _handle: u8) -> Result<Time> {
        self.write(at, page, data)
    }

    /// How many placement handles it keeps apart, 0 among them.
    fn handles(&self) -> u8 {
        1
    }

    /// Logical pages that a page of the array holds: the units of a map that are smaller. 1: they are the same.
    ///
    /// With more, what is written waits in the layer's memory until a page is whole, or for [`pad`](Self::pad): a write that is
    /// done survives power loss from then on.
    fn page_units(&self) -> u32 {
        1
    }

    /// Bytes programmed beside what the host wrote in pages that hold some of it, since they were padded.
    fn padding_bytes(&self) -> u64 {
        0
    }

    /// Logical pages that waited for others and were programmed since this was last asked, each with what to wait for. Nothing
    /// is noted before it is first asked.
    fn take_programmed(&mut self) -> Vec<(Lpn, Time)> {
        Vec::new()
    }

    /// Logical pages that the host wrote and that wait for others.
    fn waiting_pages(&self) -> u64 {
        0
    }

    /// The tag of the newest version of a page, without an operation.
    fn tag(&self, page: Lpn) -> Option<Tag> {
        let (block, number) = self.find(page)?;
        match self.nand().page(block, number) {
            Page::Programmed(tag) => Some(tag),
            _ => None,
        }
    }

    /// The bytes of the newest version of a page, without an operation; none if it was never written.
    ///
    /// # Errors
    /// They could not be fetched.
    fn bytes(&self, page: Lpn) -> Result<Option<Bytes>> {
        let bytes = self.find(page).map(|(block, number)| self.nand().bytes(block, number));
        bytes.transpose().map_err(|failure| error_of(self.nand(), failure, page))
    }

    /// Logical pages that are programmed together, as a stripe of a superblock; 1: each by itself.
    fn stripe_pages(&self) -> u32 {
        1
    }

    /// How many pages the next writes with a placement handle fill a stripe with.
    fn next_stripe(&mut self, _handle: u8) -> u32 {
        1
    }

    /// Completes what is programmed together with pages without contents, so that all that was written is programmed.
    fn pad(&mut self, _at: Time) -> Result<()> {
        Ok(())
    }

    /// How long the array has to have nothing to do before the layer [works](Self::work_when_idle) by itself; none: it never
    /// does.
    fn idle_after(&self) -> Option<Duration> {
        None
    }

    /// Does a part of what can wait until there is nothing else to do; whether there was something.
    fn work_when_idle(&mut self, _at: Time) -> Result<bool> {
        Ok(false)
    }

    /// Forgets a page: it reads as never written. Not remembered over power loss: then it may read as
    /// any of its earlier versions.
    fn trim(&mut self, at: Time, page: Lpn) -> Result<Time>;

    /// What it did beyond what the array counts.
    fn counts(&self) -> FtlCounts;

    /// Whether it takes no more writes because the flash is worn out.
    fn is_read_only(&self) -> bool;

    /// The array.
    fn nand(&self) -> &Nand;

    /// The array, to plan a power cut or turn the power on.
    fn nand_mut(&mut self) -> &mut Nand;

    /// Gives up everything but the array, as power loss does.
    fn into_nand(self: Box<Self>) -> Nand;
}

/// The bits of a version that count copies.
const COPY_BITS: u32 = 16;

/// A page's version as its tag holds it: the number of the write it comes from (the n-th write since the
/// array was new has number n) and, below, how often it was copied since.
pub fn version(write: u64) -> u64 {
    write << COPY_BITS
}

/// The number of the write that a version comes from.
pub fn write_of(version: u64) -> u64 {
    version >> COPY_BITS
}

/// The version of one more copy.
pub(crate) fn copied(version: u64) -> u64 {
    let copies = (1 << COPY_BITS) - 1;
    if version & copies == copies { version } else { version + 1 }
}

/// Marks the owner of a page that stands for contents lost to bit errors, so that no older version of
/// them ever comes back.
pub(crate) const LOST: u32 = 1 << 31;

/// Whether version `a` is to be used rather than `b`. Of two copies of one write the original: a cut that
/// interrupts a cleaning then leaves its target with nothing valid, and so the room to begin again.
fn newer(a: u64, b: u64) -> bool {
    match write_of(a).cmp(&write_of(b)) {
        std::cmp::Ordering::Equal => a < b,
        order => order.is_gt(),
    }
}

/// Reads the newest version of `page`, which lies at `place`; when that is done.
fn read_page(nand: &mut Nand, at: Time, place: (u32, u32), page: Lpn) -> Result<Time> {
    let mut reads = 1;
    loop {
        match nand.read(at, place.0, place.1) {
            Ok(done) => return Ok(done),
            Err(Failure::Unreadable) if reads < nand.attempts() => reads += 1,
            Err(failure) => return Err(error_of(nand, failure, page)),
        }
    }
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// When it was done.
    pub at: Time,
    /// The block and page it lies in until the next request; none for a page never written.
    pub place: Option<(u32, u32)>,
}

/// What a scheme did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FtlCounts {
    /// Pages the host read.
    pub host_reads: u64,
    /// Pages the host wrote.
    pub host_writes: u64,
    /// Pages the host gave up.
    pub host_trims: u64,
    /// Log blocks that became data blocks as they were.
    pub switch_merges: u64,
    /// Log blocks that became data blocks after the rest was copied to them.
    pub partial_merges: u64,
    /// Data blocks gathered from several blocks.
    pub full_merges: u64,
    /// Pages of the mapping read from flash.
    pub map_reads: u64,
    /// Pages of the mapping written to flash.
    pub map_writes: u64,
    /// Blocks moved only to spread wear.
    pub wear_moves: u64,
    /// Pages whose contents were lost to bit errors.
    pub lost_pages: u64,
    /// Blocks emptied since reads and time had brought what was in them into danger.
    pub refreshed_blocks: u64,
}

impl FtlCounts {
    /// What was done since `before`.
    pub fn since(&self, before: &FtlCounts) -> FtlCounts {
        FtlCounts {
            host_reads: self.host_reads - before.host_reads,
            host_writes: self.host_writes - before.host_writes,
            host_trims: self.host_trims - before.host_trims,
            switch_merges: self.switch_merges - before.switch_merges,
            partial_merges: self.partial_merges - before.partial_merges,
            full_merges: self.full_merges - before.full_merges,
            map_reads: self.map_reads - before.map_reads,
            map_writes: self.map_writes - before.map_writes,
            wear_moves: self.wear_moves - before.wear_moves,
            lost_pages: self.lost_pages - before.lost_pages,
            refreshed_blocks: self.refreshed_blocks - before.refreshed_blocks,
        }
    }
}

/// What the host asked of a device of flash, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostBytes {
    /// Bytes it read.
    pub read: u64,
    /// Bytes it wrote.
    pub written: u64,
    /// Bytes it gave up.
    pub discarded: u64,
    /// Bytes programmed beside those it wrote, since they share a page with them.
    pub padding: u64,
    /// Bytes it wrote that were written again, or given up, before they reached the flash.
    pub coalesced: u64,
    /// Bytes it wrote that are in memory alone now: a state, not a sum.
    pub waiting: u64,
}

impl HostBytes {
    /// What was asked since `before`.
    pub fn since(&self, before: &HostBytes) -> HostBytes {
        HostBytes {
            read: self.read - before.read,
            written: self.written - before.written,
            discarded: self.discarded - before.discarded,
            padding: self.padding - before.padding,
            coalesced: self.coalesced - before.coalesced,
            waiting: self.waiting,
        }
    }
}

/// Everything there is to tell about a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report {
    /// What the scheme did.
    #[serde(flatten)]
    pub ftl: FtlCounts,
    /// What the array did.
    pub nand: NandCounts,
    /// The same by what it was done for.
    pub work: Causes,
    /// What the host asked for.
    pub host_bytes: HostBytes,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// How its operations were ordered.
    pub schedule: ScheduleStats,
    /// How erases are spread.
    pub wear: Wear,
    /// Bytes programmed for each byte the host wrote; 0 before the first.
    pub write_amplification: f64,
}

/// Bytes of a logical page of a layer.
pub fn page_bytes(ftl: &dyn Ftl) -> u64 {
    u64::from(ftl.nand().geometry().page_bytes / ftl.page_units())
}

/// The report so far of a scheme whose host asked for `host_bytes`.
pub fn report(ftl: &dyn Ftl, host_bytes: HostBytes) -> Report {
    let (nand, page_bytes) = (ftl.nand().counts(), u64::from(ftl.nand().geometry().page_bytes));
    let write_amplification = amplification(nand.programs * page_bytes, host_bytes.written).unwrap_or(0.0);
    let padding = host_bytes.padding + ftl.padding_bytes();
    let host_bytes = HostBytes { padding, ..host_bytes };
    let (ftl, work, wear) = (ftl.counts(), ftl.nand().work(), ftl.nand().wear());
    let schedule = ScheduleStats::default();
    Report { ftl, nand, work, host_bytes, page_bytes, schedule, wear, write_amplification }
}

/// Bytes programmed for each byte the host wrote; none before the first.
pub fn amplification(programmed: u64, written: u64) -> Option<f64> {
    (written > 0).then(|| programmed as f64 / written as f64)
}

/// The error of a device whose flash takes no more writes.
pub(crate) fn worn_out(nand: &Nand) -> Error {
    let what = format!("{}: the flash is worn out and takes no more writes", nand.profile().model);
    Error::io(what, io::Error::from_raw_os_error(libc::EROFS))
}

/// A failure of the array that no scheme can do anything about, as an error.
pub(crate) fn error_of(nand: &Nand, failure: Failure, page: Lpn) -> Error {
    let device = nand.profile().model.clone();
    match failure {
        Failure::PowerOff => Error::Gone { device },
        Failure::Storage(error) => *error,
        Failure::Unreadable => {
            Error::corrupt(device, "more bits are wrong than can be corrected", format_args!("page {page}"))
        }
        Failure::Program | Failure::Erase => worn_out(nand),
    }
}

#[cfg(test)]
mod tests;
