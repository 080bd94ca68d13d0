//! nfhybrid: one file system over a small SSD and a large disk (NF-hybrid, No & Kim 2012).
//!
//! The disk half is a real ext4; the SSD half holds a circular log of what the disk does not have yet and copies
//! of file data in sections of different extent sizes. `docs/DESIGN.md` derives the design; in reading order:
//!
//! - [`core`]: what is kept in memory, behind one lock;
//! - `credits`: what an operation takes before it begins, and who waits for it;
//! - `durable`: fsync; `line`, `leader`, `relog`: who writes the SSD's log, and how; `cycle`: the commit cycle;
//! - `state`: what a volume may become, and by whose word; `prepared`, `mount`: its beginning and end; `recover`: the log
//!   run again;
//! - `names`, `attrs`, `write`, `read`: the operations; `atime`: access times;
//! - `miss`: metadata that is not in memory, read without the lock;
//! - `policy`: which directory uses which section; `admission`, `promote`: copies made by reads;
//! - `record`, `oplist`, `tie`, `frames`, `place`: the parts they share;
//! - [`ssd`]: the SSD half's format, allocation and log; `volume`: making and adopting.

pub mod admission;
mod atime;
mod attrs;
pub mod check;
mod company;
mod control;
mod core;
mod credits;
mod cycle;
mod durable;
#[cfg(test)]
mod durable_tests;
mod fixed;
mod frames;
mod half;
mod leader;
mod line;
mod miss;
mod mount;
mod names;
mod oplist;
mod paths;
mod pause;
mod place;
mod policy;
mod prepared;
#[cfg(test)]
mod prepared_tests;
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
pub mod ssd;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod tie;
mod unlogged;
pub mod volume;
mod write;

pub use atime::{AccessTimes, Renew};
pub use policy::Durability;
pub use prepared::Prepared;
pub use scrub::{BadCopy, Scrubbed, Step};
use status::Snapshot;
pub use status::Status;

pub use self::core::Counters;
use self::core::{Core, Dirty};
use crate::fs::ext4::{Ext4, ROOT_INO, journal::Journal};
use crate::fs::{
    Attr, Caller, DirEntry, Fallocate, FileSystem, FsStat, Kind, Later, NewNode, Rename, Seek, SetAttr,
    SetXattr, VisitAttrs,
};
use crate::media::BlockDevice;
use crate::runtime::sync::{Condvar, Mutex};
use crate::runtime::{self, Clock, Task};
use crate::time::Time;
use crate::units::Ino;
use crate::{Error, Result};
use admission::{Budget, Promote};
use bytes::Bytes;
use frames::{FRAME, Pool};
use half::SsdHalf;
use line::Line;
use mount::Joined;
use promote::Promotions;
use rustc_hash::{FxHashMap, FxHashSet};
use ssd::{DupInode, Ssd};
use state::State;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How far the disk half may be behind.
#[derive(Clone, Copy, Debug)]
pub struct Lag {
    /// In time, from the first operation it lacks.
    pub time: Duration,
    /// In bytes of data it lacks.
    pub bytes: u64,
}

impl Default for Lag {
    fn default() -> Lag {
        Lag { time: Duration::from_secs(5), bytes: 64 << 20 }
    }
}

/// What to do with an SSD log whose operations the disk lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recover {
    /// Apply it; an error if a part of it is damaged.
    #[default]
    Log,
    /// Apply what is whole of it.
    Whole,
    /// Drop it: the disk alone counts.
    Disk,
}

/// Options of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How far the disk half may be behind.
    pub lag: Lag,
    /// What an fsync waits for where no directory says otherwise.
    pub durability: Durability,
    /// What to do with the SSD's log.
    pub recover: Recover,
    /// Go on without the SSD, and drop for ever what only its log holds. Without this word a disk half whose SSD's log is
    /// open is not mounted alone.
    pub without_ssd: bool,
    /// Change nothing on either half (a log with operations the disk lacks is refused).
    pub read_only: bool,
    /// Which access times are kept.
    pub access_times: AccessTimes,
    /// What reads bring to the SSD.
    pub promote: Promote,
    /// How much of that in a day; `None`: as much as the SSD half holds, see [`Budget::of`].
    pub promote_budget: Option<Budget>,
    /// No thread of its own: [`NfHybrid::commit`] runs each commit cycle, so that a run can be repeated.
    pub manual: bool,
    /// Bytes of memory that what is cached on the SSD may take, at least [`ssd::MEMORY_MIN`]; [`ssd::MEMORY_DEFAULT`]
    /// where none is said.
    pub memory: Option<u64>,
}

/// What all threads of a mount share.
pub(crate) struct Shared {
    clock: Clock,
    core: Mutex<Core>,
    /// Who may write the SSD's log: its gate is taken before `core`.
    line: Line,
    /// What a status last saw.
    seen: Mutex<Snapshot>,
    /// Tells the committer that there is something to do.
    work: Arc<Condvar>,
    /// Tells waiters that a cycle has moved on.
    progress: Condvar,
    disk: Arc<dyn BlockDevice>,
    ssd_device: Option<Arc<dyn BlockDevice>>,
    journal: Arc<Journal>,
    pool: Arc<Pool>,
    lag: Lag,
    disk_block_bytes: usize,
    ssd_block_bytes: usize,
    /// ext4 blocks in a frame.
    blocks_per_frame: u64,
    /// SSD blocks in a frame.
    ssd_blocks_per_frame: u64,
    /// Tells the checkpointer that images may go home.
    home_work: Condvar,
    /// Bytes of operation records that the disk may lack.
    records_limit: u64,
    /// Bytes of unlogged and logged operation records at which a cycle starts.
    ops_limit: usize,
    /// Bytes an fsync may put into the log at most.
    inline_limit: usize,
    ssd_uuid: [u8; 16],
    /// There is no committer thread.
    manual: bool,
    notes: Vec<String>,
}

/// A mounted nfhybrid.
pub struct NfHybrid {
    shared: Arc<Shared>,
    /// The committer and the checkpointer.
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
        self.shared.core.lock().recovered
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
        self.shared.map_directory(dir, rule)
    }

    /// Runs one commit cycle here and now.
    pub fn commit(&self) -> Result<()> {
        self.shared.cycle()
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

    fn start_tasks(&self) -> Result<()> {
        let (committing, checkpointing) = (self.shared.clone(), self.shared.clone());
        let clock = &self.shared.clock;
        let mut tasks = self.tasks.lock();
        tasks.push(clock.spawn("commit", Box::new(move || committing.run_cycles()))?);
        tasks.push(clock.spawn("checkpoint", Box::new(move || checkpointing.run_checkpoints()))?);
        Ok(())
    }

    fn stop_tasks(&self) {
        self.shared.core.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.home_work.notify_all();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for error in tasks.into_iter().filter_map(|task| task.join().err()) {
            tracing::error!(%error, "a bug: the committer or the checkpointer ended early");
        }
    }
}

impl Drop for NfHybrid {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}

impl Shared {
    fn new(
        clock: Clock,
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        ext4: Ext4,
        joined: &Joined,
        options: Options,
    ) -> Shared {
        let journal = ext4.journal();
        let disk_block_bytes = ext4.block_bytes() as usize;
        let config = joined.ssd.as_ref().map(|ssd| ssd.config());
        let ssd_block_bytes = config.as_ref().map_or(FRAME, |config| config.block_bytes as usize);
        let log_bytes = config.map_or(4 << 20, |config| config.log_bytes) as usize;
        let committed = joined.tie.map_or(0, |tie| tie.op);
        let keep = (options.lag.bytes / FRAME as u64) as usize;
        let work = Arc::new(Condvar::new());
        let core = new_core(clock.clone(), ext4, committed, joined, work.clone(), options);
        Shared {
            seen: Mutex::new(core.snapshot(clock.now())),
            core: Mutex::new(core),
            line: Line::new(clock.clone()),
            clock,
            work,
            progress: Condvar::new(),
            pool: Pool::new(keep, keep.min(4096)),
            lag: options.lag,
            blocks_per_frame: (FRAME / disk_block_bytes) as u64,
            ssd_blocks_per_frame: (FRAME / ssd_block_bytes) as u64,
            home_work: Condvar::new(),
            records_limit: log_bytes as u64 / 2,
            ops_limit: log_bytes / 4,
            inline_limit: log_bytes / 8,
            ssd_uuid: joined.ssd.as_ref().map_or(joined.tie.map_or([0; 16], |tie| tie.ssd), Ssd::uuid),
            manual: options.manual,
            disk,
            ssd_device: ssd_device.map(|device| Arc::new(SsdHalf(device)) as Arc<dyn BlockDevice>),
            journal,
            disk_block_bytes,
            ssd_block_bytes,
            notes: joined.notes.clone(),
        }
    }

    /// Runs an operation, once more after a commit if it found no room and a commit gives some back: blocks that
    /// were freed since the last one are not used before the next.
    fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        match operation() {
            Err(Error::NoSpace(_)) if self.regain_room()? => operation(),
            done => done,
        }
    }

    /// Waits for a commit if that gives room on the disk back; whether it does.
    fn regain_room(&self) -> Result<bool> {
        let core = self.core.lock();
        let (held, op) = (core.ext4.held_blocks(), core.op);
        drop(core);
        if held > 0 {
            self.await_disk(op)?;
        }
        Ok(held > 0)
    }

    /// Forgets the SSD's copies of frames.
    fn unbind(&self, ssd: &mut Ssd, op: u64, ino: Ino, frames: Range<u64>) {
        let (from, len) = self.ssd_range(&frames);
        ssd.unbind(op, ino, from, len);
    }

    /// First file block and number of blocks of frames, as the SSD counts.
    fn ssd_range(&self, frames: &Range<u64>) -> (u64, u64) {
        let unit = self.ssd_blocks_per_frame;
        let from = frames.start * unit;
        (from, frames.end.saturating_mul(unit).saturating_sub(from))
    }

    /// The copy of an inode that the SSD keeps.
    fn dup_inode(&self, core: &mut Core, ino: Ino) -> Option<DupInode> {
        let inode = core.ext4.inode(ino).ok()?;
        Some(DupInode {
            size: inode.size,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: inode.nlink,
            generation: inode.generation,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
        })
    }
}

fn new_core(
    clock: Clock,
    ext4: Ext4,
    committed: u64,
    joined: &Joined,
    work: Arc<Condvar>,
    options: Options,
) -> Core {
    let capacity = joined.ssd.as_ref().map_or(0, Ssd::data_bytes);
    let budget = options.promote_budget.unwrap_or_else(|| Budget::of(capacity));
    Core {
        clock,
        ext4,
        ssd: None,
        state: State::new(&joined.plan),
        touched: Vec::new(),
        late_notes: Vec::new(),
        lost: Vec::new(),
        nodes: FxHashMap::default(),
        releasing: Vec::new(),
        dirty_nodes: Vec::new(),
        ops: Default::default(),
        op: committed,
        committed,
        dirty: Dirty::default(),
        needs: Default::default(),
        queue: Default::default(),
        pace: None,
        cycle: None,
        default_durability: options.durability,
        policy_turn: 0,
        reuse: 0,
        recovered: 0,
        nodes_made: 0,
        work,
        wanted: 0,
        stop: false,
        read_only: options.read_only,
        access_times: options.access_times,
        promotions: Promotions::new(options.promote, budget, capacity),
        promote_at: Time::ZERO,
        in_log: FxHashMap::default(),
        carried: Vec::new(),
        tables_due: false,
        log_full: false,
        tables_wait: false,
        scratch: Vec::new(),
        counters: Counters::default(),
        scrub: scrub::Scrub::default(),
    }
}

impl FileSystem for NfHybrid {
    fn root(&self) -> Ino {
        ROOT_INO
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.shared.lookup(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.shared.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.shared.look(|core| core.attr(ino)).map(|(_, attr)| attr)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.shared.with_room(|| self.shared.setattr(ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let (mut core, target) = self.shared.look(|core| {
            let target = core.ext4.readlink(ino)?;
            self.shared.note_access(core, ino).map(|()| target)
        })?;
        self.shared.wake_if_due(&mut core);
        Ok(target)
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.shared.with_room(|| self.shared.create(caller, parent, name, node))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.shared.remove(parent, name, false)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.shared.remove(parent, name, true)
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        self.shared.with_room(|| self.shared.rename(parent, name, new_parent, new_name, how))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.shared.with_room(|| self.shared.link(ino, parent, name))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Later<Vec<Bytes>>> {
        self.shared.read(ino, offset, len)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Later<usize>> {
        self.shared.write(ino, offset, data, kill_suid)
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Later<()>> {
        self.shared.fsync(ino)
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.shared.readdir(ino, from, visit)
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        self.shared.readdir_attrs(ino, from, visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.shared.look(|core| core.ext4.get_xattr(ino, name)).map(|(_, value)| value)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.shared.with_room(|| self.shared.setxattr(ino, name, value, how, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.shared.look(|core| core.ext4.list_xattrs(ino)).map(|(_, names)| names)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.shared.with_room(|| self.shared.removexattr(ino, name))
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.shared.fallocate(ino, offset, len, what)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.shared.seek(ino, offset, what)
    }

    fn statfs(&self) -> Result<FsStat> {
        Ok(self.shared.core.lock().ext4.statfs())
    }

    fn control_get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.shared.control_get(ino, name)
    }

    fn control_set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        self.shared.control_set(ino, name, value)
    }

    fn sync(&self) -> Result<()> {
        let op = self.shared.core.lock().op;
        self.shared.await_disk(op)
    }

    fn shutdown(&self) -> Result<()> {
        self.stop_tasks();
        let core = self.shared.core.lock();
        core.state.check_running()?;
        if core.read_only {
            return Ok(());
        }
        drop(core);
        self.shared.finish()
    }
}
