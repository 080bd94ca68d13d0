//! Reading the log at a mount.
//!
//! The whole log is read. A block that carries a group's header with the right log id, its own number
//! and a checksum that fits the whole group is a candidate. The newest candidate (by incarnation, then
//! sequence) names the tail; from there candidates are followed one sequence number at a time, each lying
//! where its predecessor ends or at the log's start, its incarnation not lower.
//!
//! A missing group ends the log if nobody was ever told that it was durable: a later header says up to
//! where the log was when it was sealed. Then the scan is done again without what lies beyond the gap.
//! If it *was* durable, the log is damaged: what comes before the gap counts. What whole groups behind it say is given
//! beside that ([`Scanned::beyond`]): it tells what is lost, and whoever takes what can be had takes it, too.
//!
//! Groups at the end that nothing vouches for count only if the data they bind is there (`backing`).

use super::DiskSide;
use super::backing::Backing;
use super::group::{
    CHECKSUM_AT, GROUP_HEADER, GROUP_MAGIC, Group, LOG_VERSION, LOG_VERSION_READ, RawGroup, group_checksum,
};
use super::log::Position;
use super::packing::{LZ4, PLAIN, unpack};
use super::record::{self, Body, Limits};
use bimetal_base::{Error, Result};
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// How it is said that the log ends before where it is known to have been.
pub const LOG_ENDS: &str = "the log ends";

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scanned {
    /// Residency records that count, in the order of the log.
    pub(super) residency: Vec<record::Read>,
    /// Some others do not, as far as these limits say.
    pub(super) undone: Option<Limits>,
    /// The caller's operations that count, in the order of the log.
    pub(super) operations: Vec<(u64, Bytes)>,
    pub(super) position: Position,
    /// Slots of the inode table that were ever used are below this.
    pub(super) slots_high: u32,
    /// What durable records are missing: unbinds may be among them.
    pub(super) lost: Option<String>,
    /// What whole groups behind a gap say.
    pub(super) beyond: Beyond,
    /// Whole groups at the end whose data is not there were left out, with so many operations.
    pub(super) unbacked: Option<u64>,
}

/// The records of whole groups behind a gap, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    records: Vec<(u64, record::Read)>,
}

impl Beyond {
    /// The operations among them, each once, by their numbers.
    pub(super) fn operations(&self) -> Vec<(u64, Bytes)> {
        let operations = self.records.iter().filter_map(|(op, body)| match body {
            Body::Operation(payload) | Body::OperationAgain(payload) => Some((*op, payload.clone())),
            _ => None,
        });
        each_once(operations.collect())
    }
}

/// Operations by their numbers, those with one number in the order given, what is said twice once.
fn each_once(mut operations: Vec<(u64, Bytes)>) -> Vec<(u64, Bytes)> {
    operations.sort_by_key(|(op, _)| *op);
    let mut seen = FxHashSet::default();
    operations.retain(|one| seen.insert(one.clone()));
    operations
}

/// How far ahead of what can be read the incarnation of a log begins whose groups count no more: one that could not be
/// read must not seem to be newer.
const INCARNATIONS_AHEAD: u32 = 1 << 10;

impl Scanned {
    /// What whole groups behind a gap say counts, too, whatever the gap had to say.
    pub(super) fn take_beyond(&mut self) {
        let beyond = std::mem::take(&mut self.beyond);
        self.operations.extend(beyond.operations());
        self.operations = each_once(std::mem::take(&mut self.operations));
        let is_residency = |body: &record::Read| {
            !matches!(
                body,
                Body::Operation(_)
                    | Body::OperationAgain(_)
                    | Body::RestartBegin
                    | Body::RestartEnd
                    | Body::Complete
                    | Body::Undone { .. }
            )
        };
        self.residency.extend(beyond.records.into_iter().map(|(_, body)| body).filter(is_residency));
    }

    /// Where in the log the groups that count end, bytes.
    pub(super) fn end(&self, unit: u32) -> u64 {
        self.position.groups.last().map_or(0, |last| u64::from(last.block + last.blocks) * u64::from(unit))
    }

    /// How far it leads: the number of the last group that counts.
    pub(super) fn reached(&self) -> u64 {
        self.position.groups.last().map_or(0, |last| last.sequence)
    }

    /// Nothing of it counts.
    pub(super) fn drop_all(&mut self) {
        self.residency.clear();
        self.operations.clear();
        self.undone = None;
        self.unbacked = None;
        self.beyond = Beyond::default();
        self.position.incarnation += INCARNATIONS_AHEAD;
        self.lost = Some("its log is dropped".into());
    }
}

/// A valid group.
#[derive(Clone)]
struct Candidate {
    header: RawGroup,
    blocks: u32,
    payload: Bytes,
}

impl Candidate {
    fn sequence(&self) -> u64 {
        self.header.sequence.get()
    }

    fn age(&self) -> (u32, u64) {
        (self.header.incarnation.get(), self.sequence())
    }

    /// Its records with the numbers of their operations, up to one that is not known.
    fn records(&self) -> impl Iterator<Item = (u64, record::Read)> + use<> {
        let mut payload = self.payload.clone();
        std::iter::from_fn(move || record::read(&mut payload)).take(self.header.records.get() as usize)
    }
}

/// Candidates by sequence number.
type Candidates = BTreeMap<u64, Vec<Candidate>>;

/// Answers which of some groups binds what is not there; see [`Backing::first_missing`].
pub(super) type Missing<'a> = &'a mut dyn FnMut(Backing) -> Result<Option<u64>>;

/// Scans `log`, the bytes of the whole log in blocks of `unit` bytes. `known` is what the disk, or the superblock,
/// says of it.
pub(super) fn scan(log: &Bytes, unit: u32, id: u64, known: DiskSide, missing: Missing) -> Result<Scanned> {
    let (unit, at_least) = (unit as usize, known.reached);
    let mut candidates = find_candidates(log, unit, id);
    let newest = |candidates: &Candidates| candidates.values().flatten().max_by_key(|one| one.age()).cloned();
    let last = newest(&candidates).map_or(0, |one| one.age().0).max(at_least.0);
    if last >= u32::MAX - INCARNATIONS_AHEAD {
        // No mount in a billion years gets there.
        let why = "it says that it was begun anew more often than can be";
        return Err(Error::corrupt("the log", why, format!("incarnation {last}")));
    }
    let incarnation = last + 1;
    let last_op = candidates.values().flatten().map(|one| one.header.last_op.get()).max().unwrap_or(0);
    let (mut lost, mut unbacked, mut durable) = (None, None, 0);
    let (mut beyond, mut trimmed, mut alive) = (Beyond::default(), 0, 0);
    let chain = loop {
        let Some(newest) = newest(&candidates) else { break Vec::new() };
        durable = newest.header.durable.get().max(durable);
        let chain = follow(&candidates, &newest, log.len() / unit);
        let reached = chain.last().map_or(newest.header.tail_sequence.get() - 1, Candidate::sequence);
        if reached >= newest.sequence() {
            let vouched = |one: &&Candidate| one.sequence() <= durable || one.age() <= at_least;
            let unvouched = chain.iter().skip_while(vouched);
            let records =
                unvouched.flat_map(|one| one.records().map(|(op, body)| (one.sequence(), op, body)));
            let records: Vec<_> = records.collect();
            if records.is_empty() {
                break chain;
            }
            let limits = Limits { kept: last_mark(&chain).max(known.op), disk: known.op };
            let Some(first) = missing(Backing::of(records, limits))? else { break chain };
            unbacked = unbacked.max(Some(newest.header.last_op.get()));
            candidates.retain(|sequence, _| *sequence < first);
            continue;
        }
        if reached < newest.header.durable.get() {
            let before = chain.last().map_or(newest.header.trimmed.get(), |one| one.header.last_op.get());
            lost = Some(format!(
                "group {} of the log was durable and is damaged; it and those after it are lost, {} groups with up to {} operations",
                reached + 1,
                newest.sequence() - reached,
                newest.header.last_op.get().saturating_sub(before)
            ));
            beyond = behind(&candidates, reached, &newest);
            trimmed = newest.header.trimmed.get();
            alive = newest.header.tail_sequence.get();
            break before_gap(&candidates, chain, &newest, log.len() / unit);
        }
        // Only groups up to the gap count; start again from the newest of them.
        candidates.retain(|sequence, _| *sequence <= reached);
    };
    let reached = chain.last().map_or((0, 0), Candidate::age);
    if lost.is_none() && reached < at_least {
        lost = Some(format!(
            "{LOG_ENDS} at group {}, but reached {} before: this is an older copy of the SSD half, or its last groups are gone",
            reached.1, at_least.1
        ));
    }
    let damaged = lost.is_some();
    let counted = chain.last().map_or(0, |one| one.header.last_op.get());
    let unbacked = unbacked.map(|last| last.saturating_sub(counted));
    let mut scanned = Scanned { unbacked, beyond, ..collect(chain, alive, (incarnation, known.op), lost) };
    if damaged {
        // The tables may be from after the gap.
        scanned.position.last_op = last_op.max(scanned.position.last_op);
        scanned.position.trimmed = trimmed.max(scanned.position.trimmed);
    }
    Ok(scanned)
}

/// The last operation up to which everything that was promised is in these groups, or on the disk.
fn last_mark(chain: &[Candidate]) -> u64 {
    let records = chain.iter().flat_map(Candidate::records);
    records.filter(|(_, body)| matches!(body, Body::Complete)).map(|(op, _)| op).max().unwrap_or(0)
}

/// The chain up to the gap from as far back as it has to say all that counted there. What was said anew since then may be
/// gone, and the groups that said it first be there still.
fn before_gap(
    candidates: &Candidates,
    chain: Vec<Candidate>,
    newest: &Candidate,
    ring: usize,
) -> Vec<Candidate> {
    let tail = (newest.header.tail_sequence.get(), newest.header.tail_block.get());
    let ends_at_tail = |one: &&Candidate| match tail.1 {
        0 => one.age().0 == newest.age().0,
        block => one.header.block.get() + one.blocks == block,
    };
    let before = || {
        let same = candidates.get(&(tail.0 - 1)).into_iter().flatten();
        same.filter(|one| one.age() <= newest.age()).filter(ends_at_tail).max_by_key(|one| one.age()).cloned()
    };
    let Some(last) = chain.last().cloned().or_else(before) else { return chain };
    let longer = follow(candidates, &last, ring);
    if longer.last().map(Candidate::age) == Some(last.age()) { longer } else { chain }
}

/// What the groups say that lie behind the gap and are whole, back from the newest: each ends where its successor begins, or,
/// where that is missing too, is of the same incarnation as the one after it. What an earlier branch of the log left is neither.
fn behind(candidates: &Candidates, reached: u64, newest: &Candidate) -> Beyond {
    let (mut groups, mut after, mut adjoins) = (vec![newest], newest, true);
    for sequence in (reached + 2..newest.sequence()).rev() {
        let fits = |one: &&Candidate| match adjoins {
            true => {
                let ends = one.header.block.get() + one.blocks;
                one.age().0 <= after.age().0 && [ends, 0].contains(&after.header.block.get())
            }
            false => one.age().0 == after.age().0,
        };
        let same = candidates.get(&sequence).into_iter().flatten();
        let found = same.filter(fits).max_by_key(|one| one.age());
        adjoins = found.is_some();
        after = found.unwrap_or(after);
        groups.extend(found);
    }
    Beyond { records: groups.into_iter().rev().flat_map(Candidate::records).collect() }
}

fn find_candidates(log: &Bytes, unit: usize, id: u64) -> Candidates {
    let mut found = Candidates::new();
    for block in 0..log.len() / unit {
        if let Some(candidate) = candidate(log, unit, id, block) {
            found.entry(candidate.sequence()).or_default().push(candidate);
        }
    }
    found
}

fn candidate(log: &Bytes, unit: usize, id: u64, block: usize) -> Option<Candidate> {
    let (header, _) = RawGroup::read_from_prefix(&log[block * unit..]).ok()?;
    let bytes = header.bytes.get() as usize;
    let blocks = bytes.div_ceil(unit);
    let known = header.magic.get() == GROUP_MAGIC
        && (LOG_VERSION_READ..=LOG_VERSION).contains(&header.version.get())
        && header.log_id.get() == id
        && header.block.get() as usize == block;
    let fits = bytes >= GROUP_HEADER && block + blocks <= log.len() / unit;
    let ordered = header.tail_sequence.get() >= 1 && header.tail_sequence.get() <= header.sequence.get();
    if !(known && fits && ordered) {
        return None;
    }
    let group = log.slice(block * unit..(block + blocks) * unit);
    if group[CHECKSUM_AT..CHECKSUM_AT + 4] != group_checksum(&group).to_le_bytes() {
        return None;
    }
    let stored = group.slice(GROUP_HEADER..bytes);
    let payload = match header.packing.get() {
        PLAIN => stored,
        LZ4 => unpack(&stored, log.len())?,
        _ => return None,
    };
    Some(Candidate { header, blocks: blocks as u32, payload })
}

/// The groups from the tail `newest` names, as far as they lead.
fn follow(candidates: &Candidates, newest: &Candidate, ring: usize) -> Vec<Candidate> {
    let mut chain: Vec<Candidate> = Vec::new();
    let mut places = [newest.header.tail_block.get(), newest.header.tail_block.get()];
    let mut incarnation = 0;
    for sequence in newest.header.tail_sequence.get()..=newest.sequence() {
        let here = candidates.get(&sequence).into_iter().flatten();
        let fitting = here.filter(|one| {
            places.contains(&one.header.block.get())
                && one.age().0 >= incarnation
                && one.age() <= newest.age()
        });
        let Some(next) = fitting.max_by_key(|one| one.age().0) else { break };
        incarnation = next.age().0;
        places = [(next.header.block.get() + next.blocks) % ring.max(1) as u32, 0];
        chain.push(next.clone());
    }
    chain
}

/// Reads the records of the chain and settles which operations count. Of groups before `alive` what they say of what is
/// bound is in the tables.
fn collect(
    chain: Vec<Candidate>,
    alive: u64,
    (incarnation, disk): (u32, u64),
    mut lost: Option<String>,
) -> Scanned {
    let dead = chain.iter().take_while(|one| one.sequence() < alive).count();
    let mut records: Vec<(usize, u64, record::Read)> = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    'groups: for (index, one) in chain.iter().enumerate() {
        groups.push(Group {
            sequence: one.sequence(),
            block: one.header.block.get(),
            blocks: one.blocks,
            batch: (index + 1).saturating_sub(dead) as u64,
            op_max: 0,
            residency: false,
            tail: (one.header.tail_sequence.get(), one.header.tail_block.get()),
        });
        let mut payload = one.payload.clone();
        for _ in 0..one.header.records.get() {
            let Some((op, body)) = record::read(&mut payload) else {
                lost = Some(format!("group {} of the log holds an unknown record", one.sequence()));
                break 'groups;
            };
            records.push((index, op, body));
        }
    }
    let last = chain.last().map(|one| one.header);
    let trimmed = last.map_or(0, |header| header.trimmed.get());
    let (mut operations, mut again, mut complete) = (Vec::new(), Vec::new(), 0);
    let mut residency: Vec<(u64, record::Read)> = Vec::new();
    for (group, op, body) in records {
        match body {
            Body::Operation(payload) => operations.push((group, op, payload)),
            Body::OperationAgain(payload) => again.push((group, op, payload)),
            Body::RestartBegin => again.clear(),
            Body::RestartEnd => operations = std::mem::take(&mut again),
            Body::Complete => {
                complete = complete.max(op);
                groups[group].op_max = groups[group].op_max.max(if op > trimmed { op } else { 0 });
            }
            Body::Undone { limits } if group >= dead => {
                groups[group].residency = true;
                residency.retain(|(op, body)| body.counts(*op, limits));
            }
            _ if group < dead => {}
            body => {
                groups[group].residency = true;
                residency.push((op, body));
            }
        }
    }
    operations.retain(|(_, op, _)| *op > trimmed);
    let limits = Limits { kept: complete.max(disk), disk };
    let all = residency.len();
    residency.retain(|(op, body)| body.counts(*op, limits));
    operations.iter().for_each(|(group, op, _)| groups[*group].op_max = groups[*group].op_max.max(*op));
    let position = Position {
        groups: groups.split_off(dead.min(groups.len())),
        incarnation,
        last_incarnation: last.map_or(0, |header| header.incarnation.get()),
        trimmed,
        last_op: last.map_or(0, |header| header.last_op.get()),
        complete,
        slots_written: last.map_or(0, |header| header.slots_written.get()),
    };
    Scanned {
        undone: (residency.len() < all).then_some(limits),
        residency: residency.into_iter().map(|(_, body)| body).collect(),
        operations: operations.into_iter().map(|(_, op, payload)| (op, payload)).collect(),
        position,
        slots_high: last.map_or(0, |header| header.slots_high.get()),
        lost,
        beyond: Beyond::default(),
        unbacked: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::LogWrite;
    use super::super::log::{Log, Place};
    use super::*;

    const ID: u64 = 5;
    const RING: usize = 64 << 10;
    const UNIT: u32 = 512;
    const PLACE: Place = Place { start: 0, bytes: RING as u64, unit: UNIT };

    /// A ring in memory, and the log that writes it.
    struct Bench {
        ring: Vec<u8>,
        log: Log,
    }

    impl Bench {
        fn new() -> Bench {
            let position = Position {
                groups: Vec::new(),
                incarnation: 1,
                last_incarnation: 0,
                trimmed: 0,
                last_op: 0,
                complete: 0,
                slots_written: 0,
            };
            Bench { ring: vec![0; RING], log: Log::new(PLACE, ID, position) }
        }

        fn seal(&mut self, op: u64) -> LogWrite {
            self.log.append(op, &Body::Operation(&op.to_le_bytes()));
            self.log.seal(0).unwrap().unwrap()
        }

        fn put(&mut self, group: &LogWrite) {
            let data = group.clone().close();
            self.ring[group.offset as usize..group.offset as usize + data.len()].copy_from_slice(&data);
        }

        fn append(&mut self, op: u64) {
            let group = self.seal(op);
            self.put(&group);
            self.log.sealed(group.upto);
        }

        fn scan(&self) -> Scanned {
            self.scan_from(ID, (1, 1))
        }

        fn scan_from(&self, id: u64, at_least: (u32, u64)) -> Scanned {
            let known = DiskSide { reached: at_least, ..DiskSide::default() };
            scan(&Bytes::from(self.ring.clone()), UNIT, id, known, &mut |_| Ok(None)).unwrap()
        }

        /// Whether a log is refused that the disk, or the superblock, says has come so far.
        fn is_refused_at(&self, incarnation: u32) -> bool {
            let known = DiskSide { reached: (incarnation, 1), ..DiskSide::default() };
            scan(&Bytes::from(self.ring.clone()), UNIT, ID, known, &mut |_| Ok(None)).is_err()
        }

        fn found(&self) -> (Vec<u64>, bool) {
            let scanned = self.scan();
            (scanned.operations.iter().map(|(op, _)| *op).collect(), scanned.lost.is_some())
        }

        /// What is on the ring, as a new mount goes on from it.
        fn mount(self) -> Bench {
            let log = Log::new(PLACE, ID, self.scan().position);
            Bench { ring: self.ring, log }
        }

        fn wipe(&mut self, group: &LogWrite) {
            let start = group.offset as usize;
            self.ring[start..start + UNIT as usize].fill(0);
        }
    }

    #[test]
    fn the_mark_behind_a_restart_is_in_the_group_of_its_end() {
        for rest in 0..700 {
            let mut log = Bench::new().log;
            log.append(0, &Body::RestartBegin);
            while log.waiting_bytes() + 1700 < log.group_max() as u64 {
                log.append(1, &Body::OperationAgain(&[0; 1000]));
            }
            log.append(1, &Body::OperationAgain(&vec![0; rest]));
            log.append(0, &Body::RestartEnd);
            let batch = log.batch();
            log.append(1, &Body::Complete);
            assert_eq!(log.batch(), batch, "{rest}");
        }
    }

    #[test]
    fn a_log_without_any_group_is_lost() {
        assert_eq!(Bench::new().found(), (vec![], true));
    }

    #[test]
    fn a_group_left_from_before_a_cut_is_not_the_successor_of_one_written_after_it() {
        let mut bench = Bench::new();
        bench.append(1);
        let (lost, late) = (bench.seal(2), bench.seal(3));
        bench.put(&late);
        drop(lost);
        let mut bench = bench.mount();
        assert_eq!(bench.found(), (vec![1], false));
        // The new groups 2 and 3 lie where the old ones did; the new 3 never arrives, a 4 does.
        bench.append(12);
        let (lost, late) = (bench.seal(13), bench.seal(14));
        bench.put(&late);
        drop(lost);
        assert_eq!(bench.found(), (vec![1, 12], false), "the old group 3 is still there");
    }

    #[test]
    fn the_tail_of_a_group_behind_a_gap_does_not_count() {
        let mut bench = Bench::new();
        (1..=3).for_each(|op| bench.append(op));
        // Everything dies; a group that says so is lost, one after it names a tail behind the gap.
        bench.log.trim(4);
        bench.log.checkpointed(9, 0);
        let (lost, late) = (bench.seal(5), bench.seal(6));
        bench.put(&late);
        drop(lost);
        assert_eq!(bench.found(), (vec![1, 2, 3], false));
    }

    #[test]
    fn of_groups_under_way_together_those_before_the_first_that_is_not_whole_count_and_no_other_ever() {
        const GROUPS: u32 = 4;
        // Each of them is there, torn, or not there: whatever the device made of them within one flush.
        for state in 0..3_u32.pow(GROUPS) {
            let mut bench = Bench::new();
            bench.append(1);
            let mut whole = true;
            let mut expected = vec![1];
            for number in 0..GROUPS {
                let op = u64::from(number) + 2;
                bench.log.append(op, &Body::Operation(&[op as u8; 1500]));
                let group = bench.log.seal(0).unwrap().unwrap();
                let fate = state / 3_u32.pow(number) % 3;
                if fate > 0 {
                    bench.put(&group);
                }
                if fate == 1 {
                    let last = group.end() as usize - UNIT as usize;
                    bench.ring[last..last + UNIT as usize].fill(0);
                }
                whole &= fate == 2;
                expected.extend(whole.then_some(op));
            }
            assert_eq!(bench.found(), (expected.clone(), false), "state {state}");
            // What is written next may end where one that does not count begins.
            let mut bench = bench.mount();
            for op in 10..14 {
                bench.log.append(op, &Body::Operation(&[op as u8; 1500]));
                let group = bench.log.seal(0).unwrap().unwrap();
                bench.put(&group);
                bench.log.sealed(group.upto);
                expected.push(op);
                assert_eq!(bench.found(), (expected.clone(), false), "state {state}, then {op}");
            }
        }
    }

    #[test]
    fn damage_where_the_log_was_durable_is_told_from_a_torn_end() {
        let mut bench = Bench::new();
        bench.append(1);
        let second = bench.seal(2);
        bench.put(&second);
        bench.log.sealed(second.upto);
        let torn = bench.seal(3);
        bench.put(&torn);
        bench.wipe(&torn);
        assert_eq!(bench.found(), (vec![1, 2], false), "never reported durable");
        bench.put(&torn);
        bench.wipe(&second);
        assert_eq!(bench.found(), (vec![1], true), "the third says that the second was durable");
        assert!(bench.scan_from(ID, (1, 2)).lost.is_some());
    }

    #[test]
    fn after_damage_the_log_goes_on_and_is_whole_again() {
        let mut bench = Bench::new();
        bench.append(1);
        let second = bench.seal(2);
        bench.put(&second);
        bench.log.sealed(second.upto);
        bench.append(3);
        bench.wipe(&second);
        let mut bench = bench.mount();
        bench.append(4);
        assert_eq!(bench.found(), (vec![1, 4], false));
    }

    #[test]
    fn a_log_that_can_hardly_be_begun_anew_is_refused() {
        let log = Bench::new();
        assert!(log.is_refused_at(u32::MAX) && log.is_refused_at(u32::MAX - INCARNATIONS_AHEAD));
        assert!(!log.is_refused_at(u32::MAX - INCARNATIONS_AHEAD - 1));
    }

    #[test]
    fn the_superblock_knows_of_a_log_that_was_longer() {
        let mut bench = Bench::new();
        bench.append(1);
        let old = bench.ring.clone();
        bench.append(2);
        let reached = bench.log.durable();
        assert_eq!(reached, (1, 2));
        bench.ring = old;
        assert!(bench.scan_from(ID, reached).lost.is_some());
    }

    #[test]
    fn groups_of_another_log_and_nonsense_are_not_candidates() {
        let mut bench = Bench::new();
        (1..=4).for_each(|op| bench.append(op));
        assert!(bench.scan_from(ID + 1, (0, 0)).operations.is_empty());
        // The first group copied to another block is not believed.
        let copy = bench.ring[..512].to_vec();
        bench.ring[8 * 512..9 * 512].copy_from_slice(&copy);
        assert_eq!(bench.found().0, [1, 2, 3, 4]);
        let whole = bench.ring.clone();
        for bit in 0..5 * 512 * 8 {
            bench.ring[bit / 8] ^= 1 << (bit % 8);
            let (operations, lost) = bench.found();
            assert!(operations.iter().eq((1..=4u64).take(operations.len()).collect::<Vec<_>>().iter()));
            assert!(lost || operations.len() >= 3, "bit {bit}");
            bench.ring.copy_from_slice(&whole);
        }
    }
}
