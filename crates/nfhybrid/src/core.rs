//! What nfhybrid keeps in memory, behind one lock: both halves, and what is known of the work between them. Each part has
//! an owner with an invariant of its own; this is where they meet.
//!
//! | part | whose invariant it is |
//! |---|---|
//! | `ext4`, `ssd` | the halves' own |
//! | `state` | what the volume is doing, and may become (`state`) |
//! | `ops` | numbers and records of operations, and how many the disk has (`operations`) |
//! | `nodes` | inodes in use, their references and dirty frames (`nodes`, `node`) |
//! | `dirty`, `cycle` | what the disk lacks: not frozen (`dirty`), on its way (`frozen`) |
//! | `queue`, `pace` | who waits for credits (`credits`), how many there are (`pace`) |
//! | `promised`, `tables` | what the SSD's log must go on to say (`promised`), and when it may stop (`tables`) |
//! | `rules` | which directory uses which section (`policy`) |
//! | `promotions`, `scrub` | work that nobody waits for |
//! | `aftermath` | what a recovery leaves to be said |
//!
//! The invariants that span parts are here: whatever takes a number starts the clock of `lag`; a file with dirty frames is
//! listed; what files need of the journal adds up to what all do; a read in flight learns that space was freed.

use super::aftermath::Aftermath;
use super::atime::AccessTimes;
use super::credits::Queue;
use super::dirty::{Dirty, Needs};
use super::frozen::Cycle;
use super::mount::Joined;
use super::node::Node;
use super::nodes::Nodes;
use super::operations::Operations;
use super::options::Options;
use super::pace::Pace;
use super::policy::Rules;
use super::promised::Promised;
use super::promote::Promotions;
use super::record::Record;
use super::scrub::Scrub;
use super::ssd::Ssd;
use super::state::State;
use super::tables::Tables;
use bimetal_base::runtime::Clock;
use bimetal_base::runtime::sync::Condvar;
use bimetal_base::time::{Stamp, Time};
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Ext4, TreeChange};
use std::sync::Arc;

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
    /// Operations that had to read a file's data with the lock held.
    pub reads_locked: u64,
    /// Operations that waited for credits.
    pub throttled: u64,
    /// Bytes on the SSD that a scrub compared with their checksums.
    pub scrubbed_bytes: u64,
    /// Blocks that a scrub found wrong or unreadable on the SSD.
    pub scrub_bad: u64,
}

/// Everything under the lock.
pub struct Core {
    pub(super) ext4: Ext4,
    /// While there is one.
    pub(super) ssd: Option<Ssd>,
    pub(super) state: State,
    pub(super) ops: Operations,
    pub(super) nodes: Nodes,
    pub(super) dirty: Dirty,
    /// The commit cycle under way.
    pub(super) cycle: Option<Cycle>,
    pub(super) queue: Queue,
    pub(super) pace: Pace,
    pub(super) promised: Promised,
    pub(super) tables: Tables,
    pub(super) rules: Rules,
    pub(super) promotions: Promotions,
    pub(super) scrub: Scrub,
    pub(super) aftermath: Aftermath,
    pub(super) counters: Counters,
    clock: Clock,
    /// Wakes the committer.
    work: Arc<Condvar>,
    /// The committer is to end.
    stop: bool,
    /// Rises whenever freed space becomes reusable.
    reuse: u64,
    read_only: bool,
    /// The last operation that the disk half has, where what recovery does is not kept.
    disk_has: Option<u64>,
    access_times: AccessTimes,
    /// Room to encode records in.
    scratch: Vec<u8>,
}

impl Core {
    /// A volume whose halves were looked at, before its SSD half is given to it.
    pub(super) fn new(
        clock: Clock,
        ext4: Ext4,
        joined: &Joined,
        work: Arc<Condvar>,
        options: &Options,
    ) -> Core {
        let capacity = joined.ssd.as_ref().map_or(0, Ssd::data_bytes);
        Core {
            ext4,
            ssd: None,
            state: State::new(&joined.plan),
            ops: Operations::new(joined.pairing.map_or(0, |pairing| pairing.op)),
            nodes: Nodes::default(),
            dirty: Dirty::default(),
            cycle: None,
            queue: Queue::default(),
            pace: Pace::default(),
            promised: Promised::default(),
            tables: Tables::default(),
            rules: Rules::new(options.durability),
            promotions: Promotions::new(options.promote, options.promote_budget, capacity),
            scrub: Scrub::default(),
            aftermath: Aftermath::default(),
            counters: Counters::default(),
            clock,
            work,
            stop: false,
            reuse: 0,
            read_only: options.read_only,
            disk_has: options.over_copies.then(|| joined.pairing.map_or(0, |pairing| pairing.op)),
            access_times: options.access_times,
            scratch: Vec::new(),
        }
    }

    /// What time it is for files.
    pub(super) fn wall(&self) -> Stamp {
        self.ext4.representable(self.clock.wall())
    }

    /// Nothing of what this mount does is kept.
    pub(super) fn is_over_copies(&self) -> bool {
        self.disk_has.is_some()
    }

    /// What recovery brought to the disk half is in memory alone.
    pub(super) fn is_recovered_in_memory(&self) -> bool {
        self.is_over_copies() && self.aftermath.recovered() > 0
    }

    /// The last operation that the disk half has once this mount is gone.
    pub(super) fn disk_has(&self) -> u64 {
        let copied = self.disk_has.filter(|_| self.is_recovered_in_memory());
        copied.unwrap_or_else(|| self.ops.committed())
    }

    /// Nothing may change.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Which access times are kept.
    pub(super) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// The committer is to end.
    pub(super) fn stop(&mut self) {
        self.stop = true;
    }

    /// Whether the committer is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop
    }

    /// Freed space may be used again: a read in flight has to look whether it was its own.
    pub(super) fn space_freed(&mut self) {
        self.reuse += 1;
    }

    /// Rises whenever freed space becomes reusable; a read in flight compares it.
    pub(super) fn reuse(&self) -> u64 {
        self.reuse
    }

    /// Room to encode records in, to be [kept](Core::keep_scratch) for the next time.
    pub(super) fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    pub(super) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// The node of an inode that is already in use, or one without a known parent.
    pub(super) fn node_of(&mut self, ino: Ino) -> &mut Node {
        self.nodes.of(ino, Ino(0))
    }

    /// Counts a reference to an inode that was reached through `parent`.
    pub(super) fn reference(&mut self, ino: Ino, parent: Ino) {
        let node = self.nodes.of(ino, parent);
        node.refer();
        node.moved_to(parent);
    }

    /// How far the SSD's log is durable.
    pub(super) fn log_reached(&self) -> (u32, u64) {
        self.ssd.as_ref().map_or((0, 0), Ssd::reached)
    }

    /// Tables that were written are durable.
    pub(super) fn tables_durable(&mut self) {
        self.tables.durable();
        if let Some(ssd) = &mut self.ssd {
            ssd.checkpoint_end();
        }
    }

    /// A number of their own for contents that go to the SSD's log: recovery may commit between two records of one
    /// number, and runs all of them again, which contents stand and a rename does not.
    pub(super) fn number_contents(&mut self) -> u64 {
        self.ops.begin()
    }

    /// Has a cycle follow the one of `op` where contents got a later number while it went on and nothing else will begin one: what
    /// it took along to the disk counts as the SSD's alone until a cycle has that number.
    pub(super) fn begin_if_behind(&mut self, op: u64) {
        if self.ops.last() > op {
            self.start_clock();
        }
    }

    /// What changes has to be on the disk within the lag from now on, unless something else already has.
    fn start_clock(&mut self) {
        if self.dirty.since().is_none() {
            self.dirty.begin(self.clock.now());
            self.work.notify_one();
        }
    }

    /// Begins a changing operation: its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.start_clock();
        self.ops.begin()
    }

    /// Begins a changing operation and lists its record for the log.
    pub(super) fn record(&mut self, record: &Record) -> u64 {
        let op = self.begin();
        if self.ssd.is_some() {
            self.ops.list(op, record);
        }
        op
    }

    /// Puts an inode on the list of those with dirty frames.
    pub(super) fn list_dirty(&mut self, ino: Ino) {
        if self.node_of(ino).list() {
            self.dirty.list(ino);
        }
    }

    /// Notes what a file's dirty data will need now, and promises to its tree what that can come to take of the disk. Of `data`
    /// counts what is written, not what follows from it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is not so much, as [`bimetal_ext4::Ext4::inode`]; what was noted stays then.
    pub(super) fn set_needs(&mut self, ino: Ino, data: Needs) -> Result<()> {
        let needs = self.needs_of(ino, data)?;
        let old = self.node_of(ino).needs();
        if needs.nodes > old.nodes {
            self.ext4.reserve_nodes(needs.nodes - old.nodes)?;
        } else {
            self.ext4.unreserve_nodes(old.nodes - needs.nodes);
        }
        self.replace_needs(ino, needs);
        Ok(())
    }

    fn replace_needs(&mut self, ino: Ino, needs: Needs) {
        let old = self.node_of(ino).set_needs(needs);
        self.dirty.replace_needs(&old, &needs);
    }

    /// What so much dirty data of a file needs.
    pub(super) fn needs_of(&mut self, ino: Ino, data: Needs) -> Result<Needs> {
        let Needs { overwrites, placing, moving, filled, growth, extents, .. } = data;
        let nodes = self.ext4.nodes_to_place(ino, placing, extents, moving)?.max(growth);
        let tree = match overwrites + placing + filled {
            0 => TreeChange::default(),
            _ => self.ext4.tree_change(ino, placing + filled)?,
        };
        Ok(Needs { tree, nodes, ..data })
    }

    /// Runs an operation that gives a file's tree up to `extents` more, for which it is promised what these and the dirty data
    /// after them can come to take of the disk. For its replay, which may find worse places, this stays promised until the disk
    /// has the operation.
    ///
    /// # Errors
    /// As [`set_needs`](Core::set_needs), before anything has changed; what the operation says.
    pub(super) fn grown<T>(
        &mut self,
        ino: Ino,
        extents: usize,
        operation: impl FnOnce(&mut Core) -> Result<T>,
    ) -> Result<T> {
        let growth = self.nodes_to_grow(ino, extents)?;
        let needs = self.node_of(ino).needs();
        self.set_needs(ino, Needs { growth, ..needs })?;
        let done = operation(self);
        let needs = self.node_of(ino).needs();
        // What failed is in no log, and brings no commit about.
        let tied = if done.is_ok() && !self.state.is_mounting() { extents } else { 0 };
        let needs = Needs { growth: 0, extents: needs.extents + tied, ..needs };
        match self.set_needs(ino, needs) {
            // All that was promised stays so; the operation is done.
            Err(Error::NoSpace(_)) => self.replace_needs(ino, needs),
            settled => settled?,
        }
        if tied > 0 {
            self.list_dirty(ino);
        }
        done
    }

    /// Promises to a file's tree what up to `extents` more can come to take of the disk, and its dirty data after them, beside
    /// all that was promised to it so far: some of that may be used up.
    ///
    /// # Errors
    /// As there.
    pub(super) fn promise_growth(&mut self, ino: Ino, extents: usize) -> Result<()> {
        let nodes = self.nodes_to_grow(ino, extents)?;
        self.ext4.reserve_nodes(nodes)?;
        let needs = self.node_of(ino).needs();
        self.replace_needs(ino, Needs { nodes: needs.nodes + nodes, ..needs });
        Ok(())
    }

    /// Nodes that so many extents more take, and those that dirty data and replayed operations can take of the tree with them.
    fn nodes_to_grow(&mut self, ino: Ino, extents: usize) -> Result<u64> {
        let Needs { placing, extents: tied, .. } = self.node_of(ino).needs();
        let own = self.ext4.nodes_to_place(ino, 0, extents, false)?;
        match placing + tied as u64 {
            0 => Ok(own),
            _ => Ok(own + self.ext4.nodes_to_place(ino, placing, tied + 2 * extents, true)?),
        }
    }

    /// A file has no dirty data any more.
    pub(super) fn forget_needs(&mut self, ino: Ino) {
        let old = self.clear_needs(ino);
        self.ext4.unreserve_nodes(old.nodes);
    }

    /// A file's dirty data has its places. What was promised to its tree for the worst of them stays tied until the disk has
    /// them: a replay may find worse ones.
    pub(super) fn tie_needs(&mut self, ino: Ino) {
        let old = self.clear_needs(ino);
        match &mut self.cycle {
            Some(cycle) if !self.state.is_mounting() => cycle.tie_nodes(old.nodes),
            _ => self.ext4.unreserve_nodes(old.nodes),
        }
    }

    fn clear_needs(&mut self, ino: Ino) -> Needs {
        let none = Needs::default();
        let old = self.nodes.get_mut(ino).map(|node| node.set_needs(none)).unwrap_or_default();
        self.dirty.replace_needs(&old, &none);
        old
    }

    /// Whether a commit may give room on the disk back, or make it possible to use it.
    pub(super) fn is_room_awaited(&self) -> bool {
        self.ext4.is_room_awaited() || self.dirty.needs().filled > 0
    }

    /// Whether what found the disk full may find room after one more commit, when the last that was made for its sake found so
    /// many blocks free; `None` if there was none.
    pub(super) fn may_have_room_after(&self, last: Option<u64>) -> bool {
        let gains = self.nodes.has_half_freed() && last.is_none_or(|last| self.ext4.statfs().free > last);
        gains || last.is_none() && self.is_room_awaited()
    }

    /// Bytes of operations and data the disk half does not have yet.
    pub(super) fn at_risk_bytes(&self) -> u64 {
        self.dirty.bytes() + self.cycle.as_ref().map_or(0, Cycle::bytes)
    }

    /// When the oldest operation that the disk half does not have was done.
    pub(super) fn at_risk_since(&self) -> Option<Time> {
        self.cycle.as_ref().and_then(Cycle::since).or(self.dirty.since())
    }
}
