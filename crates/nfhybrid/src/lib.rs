//! nfhybrid: one file system over a small SSD and a large disk (NF-hybrid, No & Kim 2012).
//!
//! The disk half is a real ext4; the SSD half holds a circular log of what the disk does not have yet and copies
//! of file data in sections of different extent sizes. `docs/DESIGN.md` derives the design; in reading order:
//!
//! - [`core`]: what is kept in memory, behind one lock; its parts, each with an invariant of its own: `operations`, `nodes`,
//!   `node`, `dirty`, `frozen`, `promised`, `tables`, `aftermath`; `shared`: what all threads share;
//! - `credits`: what an operation takes before it begins, and who waits for it; `pace`: how many there are;
//! - `durable`: fsync; `line`, `leader`, `relog`: who writes the SSD's log, and how;
//! - `cycle`: the commit cycle, of `freeze`, `place`, `bind`; `committer`: when it runs;
//! - `state`: what a volume may become, and by whose word; `prepared`, `mount`: its beginning and end; `recover`: the log
//!   run again;
//! - `calls`: what fronts ask; `names`, `attrs`, `write`, `space`, `read`: the operations; `plan`, `fetch`,
//!   `partial`: where data comes from; `atime`: access times;
//! - `miss`: metadata that is not in memory, read without the lock;
//! - `policy`: which directory uses which section; `admission`, `promote`: copies made by reads; `explain`: where a file is,
//!   and why;
//! - `record`, `oplist`, `pairing`, `frames`, `place`: the parts they share;
//! - [`probe`]: which half a device is;
//! - [`ssd`]: the SSD half's format, allocation and log; `volume`: making and adopting.

pub mod admission;
mod aftermath;
mod atime;
mod attrs;
mod bind;
mod calls;
pub mod check;
mod committer;
mod company;
mod control;
#[cfg(test)]
mod copies_tests;
mod core;
mod credits;
mod cycle;
mod damage;
#[cfg(test)]
mod damage_tests;
mod dirty;
mod discard;
mod durable;
#[cfg(test)]
mod durable_tests;
mod explain;
mod fetch;
mod fill_out;
mod fixed;
mod frames;
mod freeze;
mod frozen;
mod half;
mod leader;
mod line;
mod miss;
mod mount;
mod names;
mod node;
mod nodes;
mod operations;
mod oplist;
mod options;
mod pace;
mod pairing;
mod partial;
mod paths;
mod pause;
mod place;
mod plan;
mod policy;
mod prepared;
#[cfg(test)]
mod prepared_tests;
pub mod probe;
mod promised;
mod promote;
mod read;
mod record;
mod recover;
#[cfg(test)]
mod recovery_tests;
mod relog;
pub mod rescue;
mod room;
mod scrub;
mod shared;
mod space;
pub mod ssd;
mod state;
mod status;
mod superseded;
mod tables;
#[cfg(test)]
mod tests;
mod unfit;
mod unlogged;
pub mod volume;
mod write;

pub use self::core::Counters;
pub use atime::{AccessTimes, Renew};
pub use half::{refuse_marked, refuse_reused_disk, refuse_reused_ssd, reused_for, role_of_ssd};
pub use options::{Lag, Options, Recover};
pub use policy::Durability;
pub use prepared::Prepared;
pub use scrub::{BadCopy, Scrubbed, Step};
pub use status::Status;

use bimetal_base::Result;
use bimetal_base::runtime::sync::Mutex;
use bimetal_base::runtime::{self, Clock, Task};
use bimetal_base::units::Ino;
use bimetal_media::BlockDevice;
use bimetal_vfs::Kind;
use rustc_hash::{FxHashMap, FxHashSet};
use shared::Shared;
use ssd::Ssd;
use std::sync::Arc;

#[cfg(test)]
use admission::Budget;
/// What the tests of this folder share, beside the above.
#[cfg(test)]
use bimetal_base::{Error, time::Time};
#[cfg(test)]
use bimetal_ext4::ROOT_INO;
#[cfg(test)]
use bimetal_vfs::{Caller, Deferred, Fallocate, FileSystem, NewNode, Rename, Seek, SetAttr, SetXattr};
#[cfg(test)]
use std::{ops::Range, time::Duration};

/// A mounted nfhybrid.
pub struct NfHybrid {
    shared: Arc<Shared>,
    /// The committer, the checkpointer, and who discards.
    tasks: Mutex<Vec<Task>>,
}

impl NfHybrid {
    /// Mounts a disk half with its SSD half, or alone, live. Replays what has to be.
    ///
    /// # Errors
    /// Of halves that may not be mounted so, with neither changed; of recovery, which can be run again: both in words that
    /// say what to do.
    pub fn open(
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        options: Options,
    ) -> Result<NfHybrid> {
        NfHybrid::open_on(runtime::live(), disk, ssd_device, options)
    }

    /// The same on a runtime: what waits, waits there, and it says what time it is.
    pub fn open_on(
        clock: Clock,
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        options: Options,
    ) -> Result<NfHybrid> {
        NfHybrid::prepare_on(clock, disk, ssd_device, options)?.begin()
    }

    /// What was noticed while mounting: damage dropped, operations recovered.
    pub fn notes(&self) -> Vec<String> {
        self.shared.all_notes()
    }

    /// Operations that only the SSD's log held when this was mounted.
    pub fn recovered(&self) -> u64 {
        self.shared.core.lock().aftermath.recovered()
    }

    /// Whether the disk half had been closed cleanly before this mount.
    pub fn was_clean(&self) -> bool {
        !self.shared.core.lock().ext4.identity_found().in_use
    }

    /// Reads an inode's whole block mapping; an error if it is damaged.
    pub fn check_mapping(&self, ino: Ino) -> Result<()> {
        let mut core = self.shared.core.lock();
        let inode = core.ext4.inode(ino)?;
        if matches!(inode.kind(), Kind::File | Kind::Dir) {
            core.ext4.next_data(ino, 0)?;
        }
        Ok(())
    }

    /// A path of each of these inodes that has one.
    pub fn paths_of(&self, inodes: &FxHashSet<Ino>) -> FxHashMap<Ino, String> {
        self.shared.core.lock().paths_of(inodes)
    }

    /// Numbers of the running mount.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Maps a directory to a section (`inherit` and `bypass` are names too). Moves no data.
    pub fn map(&self, dir: Ino, rule: &str) -> Result<()> {
        self.shared.with_room(|| self.shared.map_directory(dir, rule))
    }

    /// Runs one commit cycle here and now.
    ///
    /// # Errors
    /// Of the disk half, which cannot be changed from then on.
    pub fn commit(&self) -> Result<()> {
        self.shared.cycle().inspect_err(|error| self.shared.stop_with(error))
    }

    /// Copies to the SSD what reads brought from the disk, here and now.
    pub fn promote(&self) {
        self.shared.promote();
    }

    /// Begins a scrub anew.
    pub fn scrub_start(&self) {
        self.shared.core.lock().scrub = scrub::Scrub::default();
    }

    /// Verifies the next copies on the SSD, see [`Step`].
    pub fn scrub(&self, step: &Step) -> Result<Scrubbed> {
        self.shared.scrub(step)
    }

    /// Stops the committer without another cycle, as if the power were cut; for crash tests.
    pub fn abandon(self) {
        self.shared.core.lock().state.ended("abandoned");
        self.stop_tasks();
    }

    fn start_tasks(&self, discard: bool) -> Result<()> {
        let (committing, checkpointing) = (self.shared.clone(), self.shared.clone());
        let clock = &self.shared.clock;
        let mut tasks = self.tasks.lock();
        tasks.push(clock.spawn("commit", Box::new(move || committing.run_cycles()))?);
        tasks.push(clock.spawn("checkpoint", Box::new(move || checkpointing.run_checkpoints()))?);
        if discard {
            self.shared.core.lock().ssd.iter_mut().for_each(Ssd::tell_of_clean);
            let discarding = self.shared.clone();
            tasks.push(clock.spawn("discard", Box::new(move || discarding.run_discards()))?);
        }
        Ok(())
    }

    fn stop_tasks(&self) {
        self.shared.core.lock().stop();
        self.shared.work.notify_all();
        self.shared.home_work.notify_all();
        self.shared.clean_work.notify_all();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for error in tasks.into_iter().filter_map(|task| task.join().err()) {
            tracing::error!(%error, "a bug: a task of the volume ended early");
        }
    }
}

impl Drop for NfHybrid {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}
