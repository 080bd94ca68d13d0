//! What all threads of a mount share: the core behind its lock, and what needs no lock because it never changes, or has
//! one of its own.
//!
//! Lock order: the line's gate, the core, then the locks of what is below (line, journal, pool, snapshot).

use super::core::Core;
use super::frames::{FRAME, Pool};
use super::half::SsdHalf;
use super::line::Line;
use super::mount::Joined;
use super::options::{Lag, Options};
use super::ssd::{DupInode, Ssd};
use super::status::Snapshot;
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::{Condvar, Mutex};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Ext4, journal::Journal};
use bimetal_media::BlockDevice;
use std::ops::Range;
use std::sync::Arc;

/// What all threads of a mount share.
pub(crate) struct Shared {
    pub(super) clock: Clock,
    pub(super) core: Mutex<Core>,
    /// Who may write the SSD's log: its gate is taken before `core`.
    pub(super) line: Line,
    /// What a status last saw.
    pub(super) seen: Mutex<Snapshot>,
    /// Tells the committer that there is something to do.
    pub(super) work: Arc<Condvar>,
    /// Tells waiters that a cycle has moved on.
    pub(super) progress: Condvar,
    pub(super) disk: Arc<dyn BlockDevice>,
    pub(super) ssd_device: Option<Arc<dyn BlockDevice>>,
    pub(super) journal: Arc<Journal>,
    pub(super) pool: Arc<Pool>,
    pub(super) lag: Lag,
    pub(super) disk_block_bytes: usize,
    pub(super) ssd_block_bytes: usize,
    /// ext4 blocks in a frame.
    pub(super) blocks_per_frame: u64,
    /// SSD blocks in a frame.
    pub(super) ssd_blocks_per_frame: u64,
    /// Tells the checkpointer that images may go home.
    pub(super) home_work: Condvar,
    /// Tells who discards that a commit is over.
    pub(super) clean_work: Condvar,
    /// Bytes of operation records that the disk may lack.
    pub(super) records_limit: u64,
    /// Bytes of unlogged and logged operation records at which a cycle starts.
    pub(super) ops_limit: usize,
    /// Bytes an fsync may put into the log at most.
    pub(super) inline_limit: usize,
    pub(super) ssd_uuid: [u8; 16],
    /// There is no committer thread.
    pub(super) manual: bool,
    pub(super) notes: Vec<String>,
}

impl Shared {
    pub(super) fn new(
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
        let keep = (options.lag.bytes / FRAME as u64) as usize;
        let work = Arc::new(Condvar::new());
        let core = Core::new(clock.clone(), ext4, joined, work.clone(), &options);
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
            clean_work: Condvar::new(),
            records_limit: log_bytes as u64 / 2,
            ops_limit: log_bytes / 4,
            inline_limit: log_bytes / 8,
            ssd_uuid: joined
                .ssd
                .as_ref()
                .map_or(joined.pairing.map_or([0; 16], |pairing| pairing.ssd), Ssd::uuid),
            manual: options.manual,
            disk,
            ssd_device: ssd_device.map(|device| SsdHalf::over(device, joined.ssd.as_ref())),
            journal,
            disk_block_bytes,
            ssd_block_bytes,
            notes: joined.notes.clone(),
        }
    }

    /// Runs an operation, once more after a commit if it found no room and a commit may give some back: blocks that
    /// were freed since the last one are not used before the next, and not all that was promised is taken.
    pub(super) fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        match operation() {
            Err(Error::NoSpace(_)) if self.regain_room()? => operation(),
            done => done,
        }
    }

    /// Waits for a commit if that gives room on the disk back; whether it does.
    fn regain_room(&self) -> Result<bool> {
        let core = self.core.lock();
        let (awaited, op) = (core.is_room_awaited(), core.ops.last());
        drop(core);
        if awaited {
            self.await_disk(op)?;
        }
        Ok(awaited)
    }

    /// Forgets the SSD's copies of frames.
    pub(super) fn unbind(&self, ssd: &mut Ssd, op: u64, ino: Ino, frames: Range<u64>) {
        let (from, len) = self.ssd_range(&frames);
        ssd.unbind(op, ino, from, len);
    }

    /// First file block and number of blocks of frames, as the SSD counts.
    pub(super) fn ssd_range(&self, frames: &Range<u64>) -> (u64, u64) {
        let unit = self.ssd_blocks_per_frame;
        let from = frames.start * unit;
        (from, frames.end.saturating_mul(unit).saturating_sub(from))
    }

    /// The copy of an inode that the SSD keeps.
    pub(super) fn dup_inode(&self, core: &mut Core, ino: Ino) -> Option<DupInode> {
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
