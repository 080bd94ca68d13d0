//! What the flash below a run did, in operations and bytes, by what it was done for; and before the run.

use bimetal_ftl::{self as ftl, HostBytes};
use bimetal_media::nand::{Causes, ScheduleStats, Work};
use serde::Serialize;

/// Operations, and the bytes of the pages they move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Pages read, programmed and copied, blocks erased.
    #[serde(flatten)]
    pub work: Work,
    /// Bytes of the pages read.
    pub read_bytes: u64,
    /// Bytes of the pages programmed.
    pub programmed_bytes: u64,
}

impl Moved {
    fn of(work: Work, page_bytes: u64) -> Moved {
        Moved { work, read_bytes: work.reads * page_bytes, programmed_bytes: work.programs * page_bytes }
    }
}

/// What was done for each cause, and in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByCause {
    /// In all.
    pub total: Moved,
    /// Pages that the host read or wrote.
    pub host: Moved,
    /// Cleaning and merges.
    pub cleaning: Moved,
    /// The map.
    pub map: Moved,
    /// Wear levelling.
    pub wear_levelling: Moved,
    /// Folding of an SLC cache.
    pub folding: Moved,
    /// Pages without contents, which word lines of what the host wrote were completed with.
    pub padding: Moved,
    /// Moves of what reads and time had brought into danger.
    pub refresh: Moved,
}

impl ByCause {
    fn of(work: &Causes, page_bytes: u64) -> ByCause {
        let of = |work| Moved::of(work, page_bytes);
        ByCause {
            total: of(work.total()),
            host: of(work.host),
            cleaning: of(work.cleaning),
            map: of(work.map),
            wear_levelling: of(work.wear_levelling),
            folding: of(work.folding),
            padding: of(work.padding),
            refresh: of(work.refresh),
        }
    }
}

/// What the flash did in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlashReport {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// What the host asked for, bytes.
    pub host_bytes: HostBytes,
    /// What was done, by what it was done for.
    pub done: ByCause,
    /// Spare areas read alone.
    pub spare_reads: u64,
    /// Programs and erases that failed.
    pub failures: u64,
    /// Bits corrected.
    pub corrected_bits: u64,
    /// Reads with more wrong bits than can be corrected.
    pub unreadable: u64,
    /// Reads of a page again, right after such a one.
    pub read_retries: u64,
    /// What the translation layer counted, pages.
    pub ftl: ftl::FtlCounts,
    /// How operations were ordered in time.
    pub schedule: ScheduleStats,
    /// What was done before the run, to give the flash a past: in nothing above.
    pub preconditioning: ByCause,
}

impl FlashReport {
    /// Between two reports of one device.
    pub(super) fn between(before: &ftl::Report, after: &ftl::Report) -> FlashReport {
        let (page_bytes, nand) = (after.page_bytes, after.nand.since(&before.nand));
        FlashReport {
            page_bytes,
            host_bytes: after.host_bytes.since(&before.host_bytes),
            done: ByCause::of(&after.work.since(&before.work), page_bytes),
            spare_reads: nand.spare_reads,
            failures: nand.failures,
            corrected_bits: nand.corrected_bits,
            unreadable: nand.unreadable,
            read_retries: nand.retries,
            ftl: after.ftl.since(&before.ftl),
            schedule: after.schedule.since(&before.schedule),
            preconditioning: ByCause::of(&before.work, page_bytes),
        }
    }

    /// Bytes programmed for each byte the host wrote; none before the first.
    pub fn write_amplification(&self) -> Option<f64> {
        ftl::amplification(self.done.total.programmed_bytes, self.host_bytes.written)
    }
}
