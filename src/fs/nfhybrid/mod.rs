//! nfhybrid: one file system over a small SSD and a large disk (NF-hybrid, No & Kim 2012).
//!
//! The disk half is a real ext4; the SSD half holds a circular log of what the disk does not have yet and copies
//! of file data in sections of different extent sizes. `docs/DESIGN.md` derives the design; in reading order:
//!
//! - [`core`]: what is kept in memory, behind one lock;
//! - `names`, `attrs`, `write`, `read`: the operations;
//! - `durable`: fsync; `line`, `leader`, `relog`: who writes the SSD's log, and how; `cycle`: the commit cycle; `recover`: mounting;
//! - `policy`: which directory uses which section; `promote`: copies made by reads;
//! - `record`, `oplist`, `tie`, `frames`, `place`: the parts they share;
//! - [`ssd`]: the SSD half's format, allocation and log; `volume`: making and adopting.

mod attrs;
pub mod check;
mod control;
mod core;
mod cycle;
mod durable;
#[cfg(test)]
mod durable_tests;
mod frames;
mod leader;
mod line;
mod names;
mod oplist;
mod place;
mod policy;
mod promote;
mod read;
mod record;
mod recover;
mod relog;
mod room;
pub mod ssd;
mod status;
#[cfg(test)]
mod tests;
mod tie;
mod unlogged;
pub mod volume;
mod write;

pub use policy::Durability;
use status::Snapshot;
pub use status::Status;

pub use self::core::Counters;
use self::core::{Core, Dirty};
use crate::fs::ext4::{Ext4, OpenOptions, ROOT_INO, journal::Journal};
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
use bytes::Bytes;
use frames::{FRAME, Pool};
use line::Line;
use recover::Verdict;
use rustc_hash::FxHashMap;
use ssd::{DiskSide, DupInode, Ssd};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tie::Tie;

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
    /// Apply it.
    #[default]
    Log,
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
    /// Change nothing on either half (a log with operations the disk lacks is refused).
    pub read_only: bool,
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
    /// Blocks of a transaction at which writers wait.
    journal_limit: u64,
    /// Bytes one write may bring at once.
    write_limit: usize,
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
    committer: Mutex<Option<Task>>,
}

/// The SSD half at mount time.
struct Joined {
    ssd: Option<Ssd>,
    records: Vec<ssd::Record>,
    /// The log holds everything that was promised up to this operation.
    complete: u64,
    /// Cached contents may be old.
    drop_cached: bool,
    notes: Vec<String>,
    epoch: u64,
}

impl NfHybrid {
    /// Mounts a disk half with its SSD half, or alone, live. Replays what has to be.
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
        let opening =
            OpenOptions { read_only: options.read_only, now: clock.wall(), ..OpenOptions::default() };
        let ext4 = Ext4::open(disk.clone(), opening)?;
        let tie = ext4.tie().as_ref().and_then(Tie::decode);
        let joined = join(&ext4, tie, ssd_device.as_ref(), &disk.info().name, options)?;
        let shared = Arc::new(Shared::new(clock, disk, ssd_device, ext4, tie, &joined, options));
        shared.start(joined, options)?;
        let committer = (!options.read_only && !options.manual).then(|| {
            let shared = shared.clone();
            shared.clock.clone().spawn("commit", Box::new(move || shared.run_cycles()))
        });
        let committer = committer.transpose()?;
        Ok(NfHybrid { shared, committer: Mutex::new(committer) })
    }

    /// What was noticed while mounting: damage dropped, operations recovered.
    pub fn notes(&self) -> &[String] {
        &self.shared.notes
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

    /// Stops the committer without another cycle, as if the power were cut; for crash tests.
    pub fn abandon(self) {
        self.shared.core.lock().failure = Some("abandoned".into());
        self.stop_committer();
    }

    fn stop_committer(&self) {
        self.shared.core.lock().stop = true;
        self.shared.work.notify_all();
        let committer = self.committer.lock().take();
        if let Some(Err(error)) = committer.map(Task::join) {
            tracing::error!(%error, "a bug: the committer ended early");
        }
    }
}

impl Drop for NfHybrid {
    fn drop(&mut self) {
        self.stop_committer();
    }
}

/// Opens the SSD half and judges it.
fn join(
    ext4: &Ext4,
    tie: Option<Tie>,
    device: Option<&Arc<dyn BlockDevice>>,
    disk_name: &str,
    options: Options,
) -> Result<Joined> {
    let epoch = tie.map_or(0, |tie| tie.epoch);
    let mut joined =
        Joined { ssd: None, records: Vec::new(), complete: 0, drop_cached: false, notes: Vec::new(), epoch };
    let Some(device) = device else {
        joined.epoch += 1;
        if tie.is_some_and(|tie| tie.log_open) {
            joined.notes.push("mounted without its SSD, whose log may hold the last operations".into());
        }
        return Ok(joined);
    };
    let known = tie.map_or_else(DiskSide::default, |tie| tie.disk_side());
    let opened = Ssd::open_within(device.as_ref(), known, options.memory.unwrap_or(ssd::MEMORY_DEFAULT))?;
    joined.notes = opened.notes;
    let mut ssd = opened.ssd;
    let verdict = recover::judge(&ssd, ext4, tie, opened.disk_had, (&device.info().name, disk_name))?;
    joined.records = opened.records;
    joined.complete = opened.complete;
    match verdict {
        Verdict::Current => {}
        Verdict::LogOnly(why) => {
            joined.notes.push(format!("the SSD's cached data is dropped: {why}"));
            joined.drop_cached = true;
        }
        Verdict::Stale(why) => {
            joined.notes.push(format!("the SSD is stale and its contents are dropped: {why}"));
            joined.records.clear();
            ssd.drop_all();
        }
    }
    if options.recover == Recover::Disk && !joined.records.is_empty() {
        joined.notes.push("the SSD's log is dropped, as asked".into());
        joined.records.clear();
        ssd.drop_all();
    }
    joined.ssd = Some(ssd);
    Ok(joined)
}

impl Shared {
    fn new(
        clock: Clock,
        disk: Arc<dyn BlockDevice>,
        ssd_device: Option<Arc<dyn BlockDevice>>,
        ext4: Ext4,
        tie: Option<Tie>,
        joined: &Joined,
        options: Options,
    ) -> Shared {
        let journal = ext4.journal();
        let disk_block_bytes = ext4.block_bytes() as usize;
        let config = joined.ssd.as_ref().map(|ssd| ssd.config());
        let ssd_block_bytes = config.as_ref().map_or(FRAME, |config| config.block_bytes as usize);
        let log_bytes = config.map_or(4 << 20, |config| config.log_bytes) as usize;
        let committed = tie.map_or(0, |tie| tie.op);
        let keep = (options.lag.bytes / FRAME as u64) as usize;
        let work = Arc::new(Condvar::new());
        let core = new_core(clock.clone(), ext4, committed, joined.epoch, work.clone(), options);
        Shared {
            seen: Mutex::new(core.snapshot(clock.now())),
            core: Mutex::new(core),
            clock,
            line: Line::default(),
            work,
            progress: Condvar::new(),
            pool: Pool::new(keep, keep.min(4096)),
            lag: options.lag,
            blocks_per_frame: (FRAME / disk_block_bytes) as u64,
            ssd_blocks_per_frame: (FRAME / ssd_block_bytes) as u64,
            journal_limit: u64::from(journal.capacity()) * 3 / 4,
            write_limit: ((journal.capacity() / 8) as usize * disk_block_bytes).max(FRAME),
            ops_limit: log_bytes / 4,
            inline_limit: log_bytes / 8,
            ssd_uuid: joined.ssd.as_ref().map_or(tie.map_or([0; 16], |tie| tie.ssd), Ssd::uuid),
            manual: options.manual,
            disk,
            ssd_device,
            journal,
            disk_block_bytes,
            ssd_block_bytes,
            notes: joined.notes.clone(),
        }
    }

    /// Recovery, and both halves marked as in use.
    fn start(&self, joined: Joined, options: Options) -> Result<()> {
        let Joined { ssd, records, complete, drop_cached, .. } = joined;
        let mut core = self.core.lock();
        core.ssd = ssd;
        let missing = records.iter().any(|record| record.op > core.committed);
        if options.read_only {
            return match missing {
                true => Err(Error::invalid(
                    "the SSD's log holds operations the disk does not have; mount read-write once, or without the SSD",
                )),
                false => Ok(()),
            };
        }
        core.recovering = true;
        drop(core);
        let applied = self.replay(&records, complete)?;
        let mut core = self.core.lock();
        core.begin();
        core.recovered = applied;
        drop(core);
        if applied > 0 {
            tracing::info!(applied, "operations recovered from the SSD's log");
        }
        self.cycle()?;
        let mut core = self.core.lock();
        core.recovering = false;
        if let (Some(ssd), true) = (&mut core.ssd, drop_cached) {
            ssd.drop_all();
        }
        drop(core);
        self.write_identity(false)
    }

    /// Writes what the SSD should see when it next meets the disk.
    fn write_identity(&self, clean: bool) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        let _gate = self.line.claim();
        if let Err(error) = self.flush_tables() {
            self.lose_ssd(&error);
            return Ok(());
        }
        let mut core = self.core.lock();
        let identity = core.ext4.identity();
        let epoch = core.epoch;
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        let tie = volume::tie_to(identity, epoch);
        let writes = if clean { ssd.mark_clean(tie) } else { ssd.set_tie(tie) };
        drop(core);
        let written = writes.into_iter().try_for_each(|(offset, bytes)| {
            device.write(offset, bytes)?;
            device.flush()
        });
        if let Err(error) = written {
            self.lose_ssd(&error);
        }
        Ok(())
    }

    /// Runs an operation, once more after a commit if it found no room and a commit gives some back: blocks that
    /// were freed since the last one are not used before the next.
    fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        match operation() {
            Err(Error::NoSpace(_)) if self.regain_room()? => operation(),
            done => done,
        }
    }

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
    epoch: u64,
    work: Arc<Condvar>,
    options: Options,
) -> Core {
    Core {
        clock,
        ext4,
        ssd: None,
        ssd_lost: None,
        nodes: FxHashMap::default(),
        releasing: Vec::new(),
        dirty_nodes: Vec::new(),
        ops: Default::default(),
        op: committed,
        committed,
        dirty: Dirty::default(),
        cycle: None,
        failure: None,
        default_durability: options.durability,
        policy_turn: 0,
        epoch,
        reuse: 0,
        recovered: 0,
        recovering: false,
        nodes_made: 0,
        work,
        wanted: 0,
        stop: false,
        read_only: options.read_only,
        promotions: Default::default(),
        promote_at: Time::ZERO,
        in_log: FxHashMap::default(),
        carried: Vec::new(),
        tables_due: false,
        tables_wait: false,
        scratch: Vec::new(),
        counters: Counters::default(),
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
        self.shared.core.lock().attr(ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.shared.with_room(|| self.shared.setattr(ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.shared.core.lock().ext4.readlink(ino)
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

    fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<Later<()>> {
        self.shared.with_room(|| self.shared.write(ino, offset, data, kill_suid))
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<Later<()>> {
        self.shared.fsync(ino)
    }

    fn readdir(&self, ino: Ino, from: u64, visit: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.shared.core.lock().ext4.readdir(ino, from, visit)
    }

    fn readdir_attrs(&self, ino: Ino, from: u64, visit: &mut VisitAttrs) -> Result<()> {
        self.shared.readdir_attrs(ino, from, visit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.shared.core.lock().ext4.get_xattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, kill_sgid: bool) -> Result<()> {
        self.shared.with_room(|| self.shared.setxattr(ino, name, value, how, kill_sgid))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.shared.core.lock().ext4.list_xattrs(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.shared.removexattr(ino, name)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        self.shared.with_room(|| self.shared.fallocate(ino, offset, len, what))
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
        self.stop_committer();
        let core = self.shared.core.lock();
        core.alive()?;
        if core.read_only {
            return Ok(());
        }
        drop(core);
        self.shared.finish()
    }
}

impl Shared {
    /// The clean end: everything on the disk, the journal empty, both halves marked clean.
    fn finish(&self) -> Result<()> {
        let orphans: Vec<Ino> = {
            let core = self.core.lock();
            core.nodes.iter().filter(|(_, node)| node.orphan).map(|(&ino, _)| ino).collect()
        };
        for ino in orphans {
            let mut core = self.core.lock();
            self.release(&mut core, ino)?;
        }
        let now = self.clock.wall();
        self.core.lock().begin();
        self.cycle()?;
        let close = self.core.lock().ext4.close(now);
        close?;
        self.write_identity(true)?;
        self.core.lock().failure = Some("unmounted".into());
        Ok(())
    }
}
