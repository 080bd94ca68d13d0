//! A mount that is decided, and tried, but has written nothing yet.
//!
//! Whoever opens a volume for a purpose that may fail for reasons of its own (a mount point, a file that is not there)
//! prepares it, settles the rest, and begins only then. What can refuse a mount shows here: both halves are looked at
//! and judged (`mount`), then the disk's journal and the SSD's log are run once over the disk half as it is, with all
//! changes kept in memory. So damage of the disk that recovery would meet half-way is met before a byte has changed.
//! Cost: a mount after a crash does its recovery twice, once without a write: `lag`'s bytes of memory, and the reads.
//!
//! A disk that is mounted alone, with nothing to recover, is not written by [`Prepared::begin`] either, but by the first
//! change: to look into a disk half does not cost its SSD's copies.

use super::mount::{self, Joined, SsdPart, damaged_disk, stopped};
use super::state::Phase;
use super::{NfHybrid, Options, Shared};
use bimetal_base::Result;
use bimetal_base::runtime::sync::Mutex;
use bimetal_base::runtime::{self, Clock};
use bimetal_ext4::{Ext4, OpenOptions};
use bimetal_media::{BlockDevice, overlay::Overlay};
use std::sync::Arc;

/// A volume that may be mounted, with neither half changed so far.
pub struct Prepared {
    clock: Clock,
    disk: Arc<dyn BlockDevice>,
    ssd_device: Option<Arc<dyn BlockDevice>>,
    options: Options,
    joined: Joined,
    /// What the rehearsal could not bring to the disk.
    lost: Vec<String>,
}

impl NfHybrid {
    /// Looks at a disk half and its SSD half (or none), decides what a mount may do, and tries its recovery in memory.
    /// Writes nothing.
    ///
    /// # Errors
    /// Of halves that may not be mounted so, or whose recovery would fail, in words that say what to do.
    pub fn prepare(
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        options: Options,
    ) -> Result<Prepared> {
        NfHybrid::prepare_on(runtime::live(), disk, ssd_device, options)
    }

    /// The same on a runtime.
    pub fn prepare_on(
        clock: Clock,
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        options: Options,
    ) -> Result<Prepared> {
        let joined = mount::join(
            &disk,
            ssd_device.as_ref(),
            options,
            clock.random(&format!("epoch at {:?}", clock.now())).next() as u32,
        )?;
        let is_left_out = ssd_device.is_some() && joined.ssd.is_none();
        let options = Options { without_ssd: options.without_ssd || is_left_out, ..options };
        let ssd_device = ssd_device.filter(|_| !is_left_out);
        let mut prepared = Prepared { clock, disk, ssd_device, options, joined, lost: Vec::new() };
        if !options.read_only {
            prepared.rehearse()?;
        }
        Ok(prepared)
    }
}

impl Prepared {
    /// What was noticed so far: damage, and what the mount cannot bring to the disk. Once it has begun nothing on either half
    /// says the latter any more: whoever asked for it is told before. What it drops is told by [`NfHybrid::notes`], once
    /// it has.
    pub fn notes(&self) -> Vec<String> {
        let drops = &self.joined.plan.notes;
        let found = self.joined.notes.iter().filter(|note| !drops.contains(note));
        found.chain(&self.lost).cloned().collect()
    }

    /// The volume as mounting it would show it, over both halves as they are: what changes stays in memory.
    ///
    /// # Errors
    /// As [`NfHybrid::open`]'s.
    pub fn look(&self) -> Result<NfHybrid> {
        let over =
            |base: &Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> { Arc::new(Overlay::new(base.clone())) };
        let options = Options { manual: true, over_copies: true, ..self.options };
        NfHybrid::open_on(self.clock.clone(), over(&self.disk), self.ssd_device.as_ref().map(over), options)
    }

    /// Mounts it: brings to the disk what only the SSD's log holds, and marks both halves as in use.
    ///
    /// # Errors
    /// Of the devices; recovery can be run again.
    pub fn begin(self) -> Result<NfHybrid> {
        let Prepared { clock, disk, ssd_device, options, joined, .. } = self;
        let part = SsdPart::of(ssd_device.is_some(), &joined);
        let ext4 = Ext4::open(disk.clone(), opening(&clock, &joined, options))
            .map_err(|error| stopped(error, &disk, joined.pairing, part))?;
        let shared = Arc::new(Shared::new(clock, disk, ssd_device, ext4, &joined, options));
        shared.start(joined, options)?;
        let fs = NfHybrid { shared, tasks: Mutex::new(Vec::new()) };
        if !options.read_only && !options.manual {
            fs.start_tasks(options.discard)?;
        }
        Ok(fs)
    }

    /// Recovery over a disk whose changes stay in memory. The SSD is only read by it, and lent meanwhile.
    fn rehearse(&mut self) -> Result<()> {
        let disk: Arc<dyn BlockDevice> = Arc::new(Overlay::new(self.disk.clone()));
        let pairing = self.joined.pairing;
        let ext4 = Ext4::open(disk.clone(), opening(&self.clock, &self.joined, self.options))
            .map_err(|error| damaged_disk(error, &self.disk, pairing))?;
        if self.joined.plan.phase != Phase::Replaying {
            return Ok(());
        }
        let device = self.ssd_device.clone();
        let shared = Shared::new(self.clock.clone(), disk, device, ext4, &self.joined, self.options);
        shared.core.lock().ssd = self.joined.ssd.take();
        let tried = shared.bring_to_disk(&self.joined.recovery(self.options));
        let tried = tried.map(drop).map_err(|error| stopped(error, &self.disk, pairing, SsdPart::Joined));
        let mut core = shared.core.lock();
        core.note_lost();
        self.lost = core.aftermath.notes().to_vec();
        self.joined.ssd = core.ssd.take();
        tried
    }
}

/// How the disk half is opened.
fn opening(clock: &Clock, joined: &Joined, options: Options) -> OpenOptions {
    OpenOptions {
        read_only: options.read_only,
        lazily: joined.ssd.is_none(),
        now: clock.wall(),
        journal_end: joined.journal_end,
        ..OpenOptions::default()
    }
}
