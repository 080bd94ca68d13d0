//! The circular log: groups of records, each written once, whole, and durably.
//!
//! Records gather in memory; [`Log::seal`] closes them into a *group*, one write of whole log blocks (the
//! superblock's log unit: 4 KiB, in older volumes the device's block from 512 bytes on) with a checksum over all of it. The group's header says where the log's tail was when it was sealed, so the log
//! needs no pointer elsewhere: the newest group leads to all that count.
//!
//! The tail is the first group with something alive in it. Operations die when the disk has them (`trim`)
//! or when a restart wrote them again; residency records die when a checkpoint brought the tables up to
//! date. A block is overwritten only when it lies before the tail *of a header that is durable*: a torn
//! write must not hit what the last good header counts on.
//!
//! One block is always kept back, so that a full log can still write an empty group that moves the tail.
//!
//! Numbers: a *batch* is what gathers between two seals, counted from 1; a group is a batch, or empty. Group
//! sequence numbers go up by one; the *incarnation* goes up with each mount, so that a group left from before
//! a power cut is never taken for the successor of one written after it.

use super::group::{GROUP_HEADER, GROUP_MAGIC, Group, LOG_VERSION, LogWrite, RawGroup, Token};
use super::packing::{LZ4, PACK_MAX, Packed, Packing};
use super::record::{Append, Body, RECORD_HEADER};
use crate::pause::Pause;
use bimetal_base::{Error, Result};
use bytes::BytesMut;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// The memory in which groups are made, one after the other.
const BUFFER_BYTES: usize = 256 << 10;

/// No log has its longest group shorter than this: a 4 KiB payload fits.
const GROUP_BYTES_MIN: usize = 8 << 10;

/// What a group keeps free for the move records of its last change, bytes.
const MOVES_BYTES: usize = 256;

/// A group under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sequence: u64,
    batch: u64,
    tail_block: u32,
}

/// Records that gather. Once closed, the buffer is padded to whole blocks and `bytes` is its length before.
#[derive(Debug, Default)]
struct Batch {
    buffer: BytesMut,
    bytes: usize,
    records: u32,
    op_max: u64,
    residency: bool,
    binds: bool,
    /// How its records are packed.
    packing: u16,
}

/// Where a log lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Device offset, bytes.
    pub(super) start: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// Bytes of a block of the ring.
    pub(super) unit: u32,
}

/// Where the log stands after a mount's scan.
#[derive(Clone, Debug)]
pub(super) struct Position {
    /// Groups from the tail on, oldest first; batches counted from 1.
    pub(super) groups: Vec<Group>,
    /// Of the groups to come.
    pub(super) incarnation: u32,
    /// Of the last group.
    pub(super) last_incarnation: u32,
    pub(super) trimmed: u64,
    pub(super) last_op: u64,
    /// The log is complete up to this operation.
    pub(super) complete: u64,
    /// Slots of the inode table below this were in a completed checkpoint.
    pub(super) slots_written: u32,
}

/// The log in memory.
#[derive(Debug)]
pub(super) struct Log {
    start: u64,
    /// Bytes of a block of the ring.
    unit: u32,
    blocks: u32,
    id: u64,
    incarnation: u32,
    next_sequence: u64,
    head: u32,
    /// From the tail on, oldest first.
    groups: VecDeque<Group>,
    /// Sealed and not reported durable, oldest first.
    flight: VecDeque<Flight>,
    /// Everything up to this group is durable.
    durable: u64,
    durable_incarnation: u32,
    durable_batch: u64,
    /// Block of the tail in the last durable header: what lies before it is free.
    durable_tail: u32,
    closed: VecDeque<Batch>,
    gathering: Batch,
    /// Number of the gathering batch.
    batch: u64,
    trimmed: u64,
    last_op: u64,
    slots_written: u32,
    /// Residency records of earlier batches are dead.
    residency_from: u64,
    /// Operations of earlier batches are dead.
    operations_from: u64,
    /// Marks of completeness that are not durable: batch and operation.
    completes: VecDeque<(u64, u64)>,
    /// The last mark of completeness that was appended and still counts.
    marked: u64,
    /// The log is durably complete up to this operation.
    complete: u64,
    /// A restart's first and last batch, until the last is durable.
    restart: Option<(u64, u64)>,
    pause: Pause,
}

impl Log {
    /// The log of a layout, going on from what a scan found.
    pub(super) fn new(place: Place, id: u64, position: Position) -> Log {
        let last = position.groups.last().copied();
        let Place { start, bytes, unit } = place;
        let blocks = (bytes / u64::from(unit)) as u32;
        let batch = last.map_or(0, |group| group.batch) + 1;
        Log {
            start,
            unit,
            blocks,
            id,
            incarnation: position.incarnation,
            next_sequence: last.map_or(1, |group| group.sequence + 1),
            head: last.map_or(0, |group| (group.block + group.blocks) % blocks),
            durable: last.map_or(0, |group| group.sequence),
            durable_incarnation: position.last_incarnation,
            durable_batch: batch - 1,
            durable_tail: last.map_or(0, |group| group.tail.1),
            groups: position.groups.into(),
            flight: VecDeque::new(),
            closed: VecDeque::new(),
            gathering: Batch::default(),
            batch,
            trimmed: position.trimmed,
            last_op: position.last_op,
            slots_written: position.slots_written,
            residency_from: 0,
            operations_from: 0,
            completes: VecDeque::new(),
            marked: 0,
            complete: position.complete,
            restart: None,
            pause: Pause::default(),
        }
    }

    /// The longest record, bytes with its header.
    pub(super) fn record_max(&self) -> usize {
        self.group_max() - GROUP_HEADER - MOVES_BYTES
    }

    /// The longest group, bytes.
    pub(super) fn group_max(&self) -> usize {
        (self.blocks as usize * self.unit as usize / 16).max(GROUP_BYTES_MIN)
    }

    /// Appends a record of at most [`record_max`](Log::record_max) bytes to the gathering batch.
    pub(super) fn append(&mut self, op: u64, record: &Append) {
        let bytes = record.bytes();
        assert!(bytes <= self.record_max(), "a log record of {bytes} bytes");
        let have = self.gathering.buffer.len();
        // A move record belongs to the change before it, and the two should share their fate; so should the mark that follows
        // the end of a restart, for what was said anew is past the last mark before it.
        let slack = match record {
            Body::Move { .. } => 0,
            Body::RestartEnd => MOVES_BYTES + RECORD_HEADER,
            _ => MOVES_BYTES,
        };
        if have > 0 && have + bytes + slack > self.group_max() {
            self.close();
        }
        let batch = &mut self.gathering;
        if batch.buffer.is_empty() {
            if batch.buffer.capacity() < BUFFER_BYTES / 16 {
                batch.buffer = BytesMut::with_capacity(BUFFER_BYTES);
            }
            batch.buffer.resize(GROUP_HEADER, 0);
        }
        record.write(op, &mut batch.buffer);
        batch.records += 1;
        match record {
            Body::Operation(_) | Body::OperationAgain(_) => batch.op_max = batch.op_max.max(op),
            Body::Complete => {
                batch.op_max = batch.op_max.max(op);
                self.marked = op;
                self.completes.push_back((self.batch, op));
            }
            Body::RestartBegin | Body::RestartEnd => {}
            Body::Bind { .. } => (batch.binds, batch.residency) = (true, true),
            _ => batch.residency = true,
        }
        self.last_op = self.last_op.max(op);
    }

    /// Ends the gathering batch.
    fn close(&mut self) {
        let mut batch = std::mem::take(&mut self.gathering);
        batch.bytes = batch.buffer.len();
        batch.buffer.resize(batch.bytes.next_multiple_of(self.unit as usize), 0);
        // What is left of the buffer's allocation serves the next batch.
        self.gathering.buffer = batch.buffer.split_off(batch.buffer.len());
        self.closed.push_back(batch);
        self.batch += 1;
    }

    /// What gathered, closed, to be packed before it is sealed; `None` where that would gain nothing.
    pub(super) fn begin_packing(&mut self) -> Option<Packing> {
        let unit = self.unit as usize;
        let bytes = self.gathering.buffer.len();
        let alone = self.closed.is_empty() && self.gathering.records > 0;
        if !alone || bytes <= unit || bytes > PACK_MAX || !self.pause.is_over() {
            return None;
        }
        self.close();
        let plain = self.closed.front()?.buffer[GROUP_HEADER..bytes].to_vec();
        let limit = bytes.next_multiple_of(unit) - unit - GROUP_HEADER;
        Some(Packing { batch: self.batch - 1, plain, limit })
    }

    /// The batch that was closed to be packed, packed or not.
    pub(super) fn end_packing(&mut self, packed: Packed) {
        self.pause.tried(packed.payload.is_some());
        let is_next = self.batch - self.closed.len() as u64 == packed.batch;
        let (Some(payload), Some(batch)) = (packed.payload, self.closed.front_mut().filter(|_| is_next))
        else {
            return;
        };
        batch.buffer.truncate(GROUP_HEADER);
        batch.buffer.extend_from_slice(&payload);
        batch.bytes = batch.buffer.len();
        batch.buffer.resize(batch.bytes.next_multiple_of(self.unit as usize), 0);
        batch.packing = LZ4;
    }

    /// The next group to write; `None` when nothing waits. `slots_high` goes into its header.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the log has no room for it.
    pub(super) fn seal(&mut self, slots_high: u32) -> Result<Option<LogWrite>> {
        if self.closed.is_empty() {
            if self.gathering.records == 0 {
                return Ok(None);
            }
            self.close();
        }
        let Some(batch) = self.closed.front() else { return Ok(None) };
        let blocks = (batch.buffer.len() / self.unit as usize) as u32;
        let next = self.batch - self.closed.len() as u64;
        self.drop_dead();
        let tail = self.groups.front().map(|group| group.block);
        if let Some(at) = fit(self.head, self.durable_tail, self.blocks, blocks, 1) {
            return Ok(self.closed.pop_front().map(|batch| self.group(batch, at, blocks, next, slots_high)));
        }
        // An empty group moves the tail; it is worth its block only if the batch fits afterwards.
        match fit(self.head, self.durable_tail, self.blocks, 1, 0) {
            Some(at) if fit((at + 1) % self.blocks, tail.unwrap_or(at), self.blocks, blocks, 1).is_some() => {
                Ok(Some(self.group(Batch::default(), at, 1, next - 1, slots_high)))
            }
            _ => Err(Error::NoSpace("the SSD's log")),
        }
    }

    /// An empty group that moves the tail past what is dead; `None` where that gains nothing.
    pub(super) fn advance(&mut self, slots_high: u32) -> Option<LogWrite> {
        self.drop_dead();
        let tail = self.groups.front().map(|group| group.block);
        if self.closed.is_empty() && tail != Some(self.durable_tail) {
            let at = fit(self.head, self.durable_tail, self.blocks, 1, 0)?;
            return Some(self.group(Batch::default(), at, 1, self.batch - 1, slots_high));
        }
        None
    }

    /// Makes the group of a batch and accounts for it.
    fn group(&mut self, batch: Batch, block: u32, blocks: u32, number: u64, slots_high: u32) -> LogWrite {
        let sequence = self.next_sequence;
        let first = self.groups.front().map(|group| (group.sequence, group.block));
        let tail = first.unwrap_or((sequence, block));
        let mut buffer = batch.buffer;
        buffer.resize(blocks as usize * self.unit as usize, 0);
        let header = RawGroup {
            magic: GROUP_MAGIC.into(),
            version: LOG_VERSION.into(),
            packing: batch.packing.into(),
            log_id: self.id.into(),
            sequence: sequence.into(),
            tail_sequence: tail.0.into(),
            tail_block: tail.1.into(),
            block: block.into(),
            bytes: (batch.bytes.max(GROUP_HEADER) as u32).into(),
            records: batch.records.into(),
            trimmed: self.trimmed.into(),
            last_op: self.last_op.into(),
            durable: self.durable.into(),
            slots_high: slots_high.into(),
            incarnation: self.incarnation.into(),
            checksum: 0.into(),
            slots_written: self.slots_written.into(),
        };
        buffer[..GROUP_HEADER].copy_from_slice(header.as_bytes());
        self.groups.push_back(Group {
            sequence,
            block,
            blocks,
            batch: number,
            op_max: batch.op_max,
            residency: batch.residency,
            tail,
        });
        self.flight.push_back(Flight { sequence, batch: number, tail_block: tail.1 });
        self.next_sequence += 1;
        self.head = (block + blocks) % self.blocks;
        LogWrite {
            offset: self.start + u64::from(block) * u64::from(self.unit),
            open: buffer,
            upto: Token(sequence),
            binds: batch.binds,
        }
    }

    /// Drops the groups at the tail in which nothing is alive.
    fn drop_dead(&mut self) {
        while let Some(group) = self.groups.front() {
            let operations = group.op_max > self.trimmed && group.batch >= self.operations_from;
            if operations || group.residency && group.batch >= self.residency_from {
                return;
            }
            self.groups.pop_front();
        }
    }

    /// The group and all before it are durable; the last batch that is.
    pub(super) fn sealed(&mut self, upto: Token) -> u64 {
        while let Some(group) = self.flight.front().copied().filter(|group| group.sequence <= upto.0) {
            self.flight.pop_front();
            self.durable = group.sequence;
            self.durable_incarnation = self.incarnation;
            self.durable_batch = group.batch;
            self.durable_tail = group.tail_block;
        }
        while let Some(&(_, op)) = self.completes.front().filter(|(batch, _)| *batch <= self.durable_batch) {
            self.completes.pop_front();
            self.complete = self.complete.max(op);
        }
        if let Some((first, last)) = self.restart
            && last <= self.durable_batch
        {
            self.operations_from = self.operations_from.max(first);
            self.restart = None;
        }
        self.durable_batch
    }

    /// Whether the log says that it is complete up to `op`.
    pub(super) fn is_marked(&self, op: u64) -> bool {
        op <= self.marked
    }

    /// Whether a change that operation `op` made (0: none did) holds whatever happens; `on_disk`: only once the
    /// disk has the operation.
    pub(super) fn is_settled(&self, op: u64, on_disk: bool) -> bool {
        op <= self.trimmed || !on_disk && op <= self.complete
    }

    /// The disk has all operations up to `op`.
    pub(super) fn trim(&mut self, op: u64) {
        self.trimmed = self.trimmed.max(op);
    }

    /// Operations the disk is known to have.
    pub(super) fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// Slots of the inode table below this were in a completed checkpoint.
    pub(super) fn slots_written(&self) -> u32 {
        self.slots_written
    }

    /// The highest operation number ever appended.
    pub(super) fn last_op(&self) -> u64 {
        self.last_op
    }

    /// Incarnation and sequence number of the last durable group.
    pub(super) fn durable(&self) -> (u32, u64) {
        (self.durable_incarnation, self.durable)
    }

    /// The batch that gathers now.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// The last batch that something was appended to.
    pub(super) fn last_batch(&self) -> u64 {
        if self.gathering.records > 0 { self.batch } else { self.batch - 1 }
    }

    /// Everything up to this batch is durable.
    pub(super) fn durable_batch(&self) -> u64 {
        self.durable_batch
    }

    /// The tables hold what the records before this batch say, in slots below `slots_high`.
    pub(super) fn checkpointed(&mut self, batch: u64, slots_high: u32) {
        self.slots_written = self.slots_written.max(slots_high);
        self.residency_from = self.residency_from.max(batch);
    }

    /// The caller's operations were appended again, in batches `first` to the gathering one.
    pub(super) fn restarted(&mut self, first: u64) {
        self.marked = 0;
        self.restart = Some((first, self.batch));
    }

    /// Bytes between the durable tail and the head, with what waits to be sealed.
    pub(super) fn used(&self) -> u64 {
        let on_media = (self.head + self.blocks - self.durable_tail) % self.blocks;
        u64::from(on_media) * u64::from(self.unit) + self.waiting_bytes()
    }

    /// Bytes that wait to be sealed.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let closed: usize = self.closed.iter().map(|batch| batch.buffer.len()).sum();
        (closed + self.gathering.buffer.len()) as u64
    }

    /// Bytes from the first group with a live residency record on.
    pub(super) fn residency_bytes(&self) -> u64 {
        let dead = |group: &&Group| !group.residency || group.batch < self.residency_from;
        let held = self.groups.iter().skip_while(dead);
        held.map(|group| u64::from(group.blocks)).sum::<u64>() * u64::from(self.unit)
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.unit)
    }
}

/// Where `blocks` blocks fit in a ring of `ring` blocks between `head` and `tail`, in one piece, with
/// `keep` blocks left free. The ring is never quite full, so `head == tail` means it is empty.
fn fit(head: u32, tail: u32, ring: u32, blocks: u32, keep: u32) -> Option<u32> {
    let free_after = |end: u32| (tail + ring - end % ring - 1) % ring;
    if head >= tail {
        let end = head + blocks;
        if end <= ring && end % ring != tail && free_after(end) >= keep {
            return Some(head);
        }
        return (blocks < tail && free_after(blocks) >= keep).then_some(0);
    }
    (head + blocks < tail && free_after(head + blocks) >= keep).then_some(head)
}

/// The first group of a new log, written by format: it shows that the log was never anything but empty.
pub(super) fn first_group(log: &mut Log) -> Result<Option<LogWrite>> {
    log.append(0, &Body::Forget);
    log.seal(0)
}
