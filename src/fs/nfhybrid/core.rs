//! What nfhybrid keeps in memory, behind one lock: both halves, the nodes in use, and the account of what the
//! disk half does not have yet.

use super::atime::AccessTimes;
use super::credits::{Needs, Queue};
use super::cycle::Cycle;
use super::frames::Frames;
use super::mount::Touched;
use super::oplist::OpList;
use super::policy::{Durability, Policy};
use super::promote::Promotions;
use super::record::Record;
use super::state::State;
use crate::fs::ext4::Ext4;
use crate::fs::nfhybrid::ssd::Ssd;
use crate::runtime::Clock;
use crate::runtime::sync::Condvar;
use crate::time::Time;
use crate::units::Ino;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// An inode in use: the kernel knows it, or it has dirty data.
pub struct Node {
    /// References the kernel holds.
    pub lookups: u64,
    /// The directory it was last reached through, for inherited policy.
    pub parent: Ino,
    /// It has no name left; freed with the last reference.
    pub orphan: bool,
    /// Dirty data.
    pub frames: Frames,
    /// Disk blocks promised to them.
    pub reserved: u64,
    /// What freezing them takes of the journal.
    pub needs: Needs,
    /// All frames that the SSD's log may lack lie in this range.
    pub touched: Range<u64>,
    /// The frames that were last written one after the other.
    pub stretch: Range<u64>,
    /// It stands in [`Core::dirty_nodes`].
    pub listed: bool,
    /// Rises whenever contents change; a read in flight compares it.
    pub version: u64,
    /// The policy and the [`Core::policy_turn`] it was worked out in.
    pub policy: Option<(u32, Policy)>,
    /// A directory's default ACL, once looked for.
    pub default_acl: Option<Option<Box<[u8]>>>,
}

impl Node {
    fn new(parent: Ino, version: u64) -> Node {
        Node {
            lookups: 0,
            parent,
            orphan: false,
            frames: Frames::new(),
            reserved: 0,
            needs: Needs::default(),
            touched: 0..0,
            stretch: 0..0,
            listed: false,
            version,
            policy: None,
            default_acl: None,
        }
    }
}

impl Node {
    /// Frames in this range are about to change.
    pub fn touch(&mut self, frames: &Range<u64>) {
        self.touched = match self.touched.is_empty() {
            true => frames.clone(),
            false => self.touched.start.min(frames.start)..self.touched.end.max(frames.end),
        };
    }
}

/// What is dirty in memory and not yet in a commit cycle.
#[derive(Clone, Copy, Default)]
pub struct Dirty {
    /// Bytes written.
    pub bytes: u64,
    /// When the first of it happened.
    pub since: Option<Time>,
}

/// Counters of the file system itself.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
pub struct Counters {
    /// fsyncs answered from the SSD's log.
    pub fsync_ssd: u64,
    /// fsyncs that waited for the disk.
    pub fsync_disk: u64,
    /// Commit cycles.
    pub cycles: u64,
    /// Times all copies on the SSD were forgotten, as the log had no room to name those that were stale.
    pub forgotten: u64,
    /// Times the log was started anew before the disk had caught up.
    pub relogs: u64,
    /// Bytes read from memory, SSD and disk, in whole frames; holes count for nothing.
    pub read_bytes: [u64; 3],
    /// Bytes of overwritten data that got a new place on the disk, instead of going through its journal.
    pub relocated_bytes: u64,
    /// Bytes whose copies on the SSD had to wait for room in its log.
    pub bound_late: u64,
    /// Bytes copied to the SSD after a read.
    pub promoted_bytes: u64,
    /// Reads whose SSD copy had a wrong checksum.
    pub bad_sums: u64,
    /// Reads of metadata that was not in memory, made without the lock; each of up to 1 MiB.
    pub metadata_reads: u64,
    /// Operations that had to read metadata with the lock held.
    pub metadata_locked: u64,
    /// Operations that waited for credits.
    pub throttled: u64,
    /// Bytes on the SSD that a scrub compared with their checksums.
    pub scrubbed_bytes: u64,
    /// Blocks that a scrub found wrong or unreadable on the SSD.
    pub scrub_bad: u64,
}

/// Everything under the lock.
pub struct Core {
    /// What time it is.
    pub clock: Clock,
    /// The disk half.
    pub ext4: Ext4,
    /// The SSD half, while there is one.
    pub ssd: Option<Ssd>,
    /// What the volume is doing, and may become.
    pub state: State,
    /// What recovery changed on the disk; the SSD is to be told.
    pub touched: Vec<Touched>,
    /// What was noticed since both halves were looked at.
    pub late_notes: Vec<String>,
    /// Contents that recovery could not bring to the disk: the file, and why.
    pub lost: Vec<(Ino, String)>,
    /// Inodes in use.
    pub nodes: FxHashMap<Ino, Node>,
    /// Unnamed inodes too large to be freed in one transaction.
    pub releasing: Vec<Ino>,
    /// Inodes with dirty frames, each once.
    pub dirty_nodes: Vec<Ino>,
    /// Operations the disk lacks.
    pub ops: OpList,
    /// Number of the last operation.
    pub op: u64,
    /// The last operation the disk has.
    pub committed: u64,
    /// Dirty data and operations since the last freeze.
    pub dirty: Dirty,
    /// What freezing all dirty data takes of the journal.
    pub needs: Needs,
    /// Who waits for credits.
    pub queue: Queue,
    /// Bytes a second that commit cycles bring to the disk, once that is known.
    pub pace: Option<u64>,
    /// The commit cycle under way.
    pub cycle: Option<Cycle>,
    /// What an fsync waits for where no directory says otherwise.
    pub default_durability: Durability,
    /// Rises when any directory's mapping changes.
    pub policy_turn: u32,
    /// Rises whenever freed space becomes reusable; a read in flight compares it.
    pub reuse: u64,
    /// Operations that only the SSD's log held at the mount.
    pub recovered: u64,
    /// Nodes made so far.
    pub nodes_made: u64,
    /// Wakes the committer.
    pub work: Arc<Condvar>,
    /// A commit must cover this operation.
    pub wanted: u64,
    /// The committer is to end.
    pub stop: bool,
    /// Nothing may change.
    pub read_only: bool,
    /// Which access times are kept.
    pub access_times: AccessTimes,
    /// What reads brought from the disk and the SSD may have.
    pub promotions: Promotions,
    /// When waiting promotions go without more company.
    pub promote_at: Time,
    /// Files of which the log holds promised contents that the disk lacks, and the operation of the last promise.
    pub in_log: FxHashMap<Ino, u64>,
    /// Inodes whose data must be in the log with the operations so far; see [`Core::carry`].
    pub carried: Vec<Ino>,
    /// The log was started anew: its residency records are to go to the tables.
    pub tables_due: bool,
    /// The log is filled, and has no room for what it lacks before the tables may be written: nothing is changed until
    /// the disk has everything, since then it lacks nothing.
    pub log_full: bool,
    /// Tables were written and are not known to be durable.
    pub tables_wait: bool,
    /// Room to encode records in.
    pub scratch: Vec<u8>,
    /// Counters.
    pub counters: Counters,
    /// How far a scrub has come.
    pub scrub: super::scrub::Scrub,
}

impl Core {
    /// The node of an inode, made if need be.
    pub fn node(&mut self, ino: Ino, parent: Ino) -> &mut Node {
        self.nodes.entry(ino).or_insert_with(|| {
            // A node made anew must never repeat a version that an earlier one of the inode had.
            self.nodes_made += 1;
            Node::new(parent, self.nodes_made << 32)
        })
    }

    /// The node of an inode that is already in use, or one without a known parent.
    pub fn node_of(&mut self, ino: Ino) -> &mut Node {
        self.node(ino, Ino(0))
    }

    /// Counts a reference.
    pub fn reference(&mut self, ino: Ino, parent: Ino) {
        let node = self.node(ino, parent);
        node.lookups += 1;
        if node.parent != parent {
            node.parent = parent;
            node.policy = None;
        }
    }

    /// How far the SSD's log is durable.
    pub fn log_reached(&self) -> (u32, u64) {
        self.ssd.as_ref().map_or((0, 0), Ssd::reached)
    }

    /// Tables that were written are durable.
    pub fn tables_durable(&mut self) {
        self.tables_wait = false;
        if let Some(ssd) = &mut self.ssd {
            ssd.checkpoint_end();
        }
    }

    /// A number of their own for contents that go to the SSD's log: recovery may commit between two records of one
    /// number, and runs all of them again, which contents stand and a rename does not.
    pub fn number_contents(&mut self) -> u64 {
        self.op += 1;
        self.op
    }

    /// Begins a changing operation: its number.
    pub fn begin(&mut self) -> u64 {
        self.op += 1;
        if self.dirty.since.is_none() {
            self.dirty.since = Some(self.clock.now());
            // Its clock is ticking now.
            self.work.notify_one();
        }
        self.op
    }

    /// Begins a changing operation and lists its record for the log.
    pub fn record(&mut self, record: &Record) -> u64 {
        let op = self.begin();
        if self.ssd.is_some() {
            self.ops.push(op, record);
        }
        op
    }

    /// Puts an inode on the list of those with dirty frames.
    pub fn list_dirty(&mut self, ino: Ino) {
        let node = self.node_of(ino);
        if !node.listed {
            node.listed = true;
            self.dirty_nodes.push(ino);
        }
    }

    /// Drops a node nobody needs any more.
    pub fn drop_if_idle(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get(&ino)
            && node.lookups == 0
            && node.frames.is_empty()
            && !node.orphan
        {
            self.nodes.remove(&ino);
        }
    }

    /// Bytes of operations and data the disk half does not have yet.
    pub fn at_risk_bytes(&self) -> u64 {
        self.dirty.bytes + self.cycle.as_ref().map_or(0, |cycle| cycle.bytes)
    }

    /// When the oldest operation that the disk half does not have was done.
    pub fn at_risk_since(&self) -> Option<Time> {
        self.cycle.as_ref().and_then(|cycle| cycle.since).or(self.dirty.since)
    }
}
