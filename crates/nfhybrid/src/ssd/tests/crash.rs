//! Power cuts: random use of the whole interface on a device that records what was written when.
//!
//! The recording is cut at every event. What was not durable by then is kept, lost or torn at 512 bytes,
//! at random; the result is opened and compared with a model. The log makes the answer exact: what is
//! bound, and the operations, are those at the end of one of the groups from the last that was reported
//! durable to the last that was submitted. Every bound block's data is what was written for it.

use super::*;
use bimetal_base::checksum::crc32c;
use bimetal_base::time::Time;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const BLOCK: usize = 1024;
const DEVICE_BYTES: u64 = 1280 << 10;

/// What a file block is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    at: u64,
    content: u64,
    op: u64,
    state: CopyState,
}

/// The truth at the end of a group of the log.
#[derive(Clone, Debug, Default, PartialEq)]
struct Truth {
    bound: BTreeMap<(u64, u32), Bound>,
    operations: BTreeMap<u64, Vec<u8>>,
}

impl Truth {
    /// As it is once the disk has everything up to `op`.
    fn trimmed(&self, op: u64) -> Truth {
        let mut after = self.clone();
        after.operations.retain(|number, _| *number > op);
        after
            .bound
            .values_mut()
            .filter(|bound| bound.op <= op)
            .for_each(|bound| bound.state = CopyState::Both);
        after
    }
}

#[derive(Clone)]
enum Event {
    /// A write arrives at the device.
    Submit { offset: u64, data: Bytes },
    /// The write submitted as event number `of` is complete and durable.
    Durable { of: usize },
    /// All writes so far are durable.
    Flush,
    /// A group of the log was sealed; after it, the truth is this. Not known when more of the same change
    /// goes into the next group.
    Sealed { truth: Option<Truth> },
    /// Groups up to this many sealed ones were reported durable.
    Acknowledged { groups: usize },
    /// The disk has everything up to this operation.
    Disk { op: u64 },
}

/// A group that was submitted and not reported durable.
struct UnderWay {
    event: usize,
    upto: Token,
    binds: bool,
    /// Everything up to this operation is in it or before it.
    op: u64,
}

struct Bench {
    random: SmallRng,
    /// What the device answers: everything submitted.
    device: Ram,
    ssd: Ssd,
    events: Vec<Event>,
    now: Truth,
    disk: u64,
    next_op: u64,
    next_content: u64,
    sealed: usize,
    acknowledged: usize,
    under_way: VecDeque<UnderWay>,
    /// Highest operation whose records are durable.
    durable_op: u64,
    clock: Time,
    /// Checkpoints that took something from the tables.
    merged: usize,
}

fn config(seed: u64) -> Config {
    Config {
        block_bytes: BLOCK as u32,
        log_bytes: if seed.is_multiple_of(2) { 64 << 10 } else { 128 << 10 },
        sections: vec![
            section("small", 8 << 10, Some(256 << 10)),
            section("large", 32 << 10, Some(512 << 10)),
        ],
        threshold_blocks: 8,
        wait: Duration::from_nanos(40),
        evict_below: 100,
        evict_to: 250,
        bytes_per_slot: if seed.is_multiple_of(3) { 1 << 20 } else { 6 << 10 },
        ..Config::default()
    }
}

fn block_of(content: u64) -> Vec<u8> {
    content.to_le_bytes().repeat(BLOCK / 8)
}

impl Bench {
    fn ino(&mut self) -> Ino {
        Ino(self.random.random_range(1..50))
    }

    fn submit(&mut self, offset: u64, data: Bytes) -> usize {
        (&self.device as &dyn BlockDevice).write(offset, data.clone()).unwrap();
        self.events.push(Event::Submit { offset, data });
        self.events.len() - 1
    }

    /// Submits one group; `false` when there is none, or no room.
    fn seal(&mut self) -> bool {
        match self.ssd.seal() {
            Ok(Some(group)) => {
                self.submit_group(group, self.ssd.log.waiting_bytes() == 0);
                true
            }
            _ => false,
        }
    }

    /// `whole`: nothing of the same change is in a later group.
    fn submit_group(&mut self, group: LogWrite, whole: bool) {
        self.events.push(Event::Sealed { truth: whole.then(|| self.now.clone()) });
        self.sealed += 1;
        let event = self.submit(group.offset, group.clone().close());
        let op = if whole { self.next_op - 1 } else { 0 };
        self.under_way.push_back(UnderWay { event, upto: group.upto, binds: group.binds, op });
    }

    /// Completes the first `count` groups under way, in any order, and reports them.
    fn acknowledge(&mut self, count: usize) {
        let done: Vec<UnderWay> = self.under_way.drain(..count.min(self.under_way.len())).collect();
        let mut order: Vec<usize> = done.iter().map(|one| one.event).collect();
        order.shuffle(&mut self.random);
        match done.iter().any(|one| one.binds) {
            true => self.events.push(Event::Flush),
            false => self.events.extend(order.into_iter().map(|of| Event::Durable { of })),
        }
        self.acknowledged += done.len();
        self.events.push(Event::Acknowledged { groups: self.acknowledged });
        if let Some(last) = done.last() {
            self.ssd.sealed(last.upto);
            self.durable_op = self.durable_op.max(done.iter().map(|one| one.op).max().unwrap_or(0));
        }
    }

    /// Everything appended is durable after it, if the log has room.
    fn sync(&mut self) -> bool {
        while self.seal() {}
        self.acknowledge(usize::MAX);
        while self.seal() {
            self.acknowledge(usize::MAX);
        }
        self.ssd.is_durable()
    }

    /// The truth changes with everything appended since the last seal, all in one group.
    fn sync_model(&mut self) {
        let contents: BTreeMap<u64, (u64, u64)> =
            self.now.bound.values().map(|bound| (bound.at, (bound.content, bound.op))).collect();
        self.now.bound = everything(&self.ssd)
            .into_iter()
            .map(|(key, (at, state))| {
                let (content, op) = contents[&at];
                (key, Bound { at, content, op, state })
            })
            .collect();
    }

    fn write_file(&mut self) {
        let section = self.random.random_range(0..2usize);
        let longest = if self.random.random_range(0..8) == 0 { 70 } else { 9 };
        let blocks = self.random.random_range(1..longest);
        let Some(runs) = self.ssd.allocate(section, blocks, self.clock) else {
            self.ssd.evict(section, 1 + blocks / 8, |ino| ino.0 % 5 == 0);
            self.sync_model();
            return;
        };
        let ino = self.ino();
        let mut file_block = self.random.random_range(0..60u32);
        let state = if self.random.random() { CopyState::Ssd } else { CopyState::Both };
        let op = self.next_op;
        self.next_op += 1;
        for run in runs {
            if self.random.random_range(0..12) == 0 {
                self.ssd.release(run);
                continue;
            }
            self.write_run(op, ino, file_block, run, state);
            file_block += run.len;
        }
    }

    fn write_run(&mut self, op: u64, ino: Ino, file_block: u32, run: Run, state: CopyState) {
        let first = self.next_content;
        self.next_content += u64::from(run.len);
        let blocks: Vec<Vec<u8>> = (first..self.next_content).map(block_of).collect();
        self.submit(run.at.0 * BLOCK as u64, blocks.concat().into());
        let sums: Vec<u32> = blocks.iter().map(|block| crc32c(block)).collect();
        let inode = DupInode { size: op, ..DupInode::default() };
        let binding = Binding { file_block, run, sums: &sums, state, inode: &inode };
        let bound = self.ssd.bind(op, ino, &binding).is_ok();
        for i in 0..run.len {
            self.now.bound.remove(&(ino.0, file_block + i));
            if bound {
                let (at, content) = (run.at.0 + u64::from(i), first + u64::from(i));
                self.now.bound.insert((ino.0, file_block + i), Bound { at, content, op, state });
            }
        }
        // A full inode table may take a remainder of the old binding with it.
        self.sync_model();
    }

    fn unbind(&mut self) {
        let ino = self.ino();
        let op = self.next_op;
        self.next_op += 1;
        if self.random.random_range(0..3) == 0 {
            self.ssd.unbind_all(op, ino);
        } else {
            let from = self.random.random_range(0..70);
            let len =
                if self.random.random_range(0..4) == 0 { u64::MAX } else { self.random.random_range(1..9) };
            self.ssd.unbind(op, ino, from, len);
        }
        self.sync_model();
    }

    fn append(&mut self) {
        let len = if self.random.random_range(0..6) == 0 { 4096 } else { self.random.random_range(0..300) };
        let payload: Vec<u8> = (0..len).map(|_| self.random.random()).collect();
        self.ssd.append(self.next_op, &payload).unwrap();
        self.now.operations.insert(self.next_op, payload);
        self.next_op += 1;
    }

    fn set_state(&mut self) {
        let (ino, from) = (self.ino(), self.random.random_range(0..70));
        self.ssd.set_state(0, ino, from, self.random.random_range(1..20), CopyState::Both);
        self.sync_model();
    }

    fn trim(&mut self) {
        if self.durable_op > self.disk {
            self.disk = self.random.random_range(self.disk + 1..=self.durable_op);
            self.events.push(Event::Disk { op: self.disk });
            self.ssd.trim(self.disk);
            self.now = self.now.trimmed(self.disk);
        }
    }

    fn checkpoint(&mut self) {
        if !self.sync() {
            return;
        }
        let Ok(mut checkpoint) = self.ssd.checkpoint_begin() else { return };
        assert!(checkpoint.log.is_empty(), "all is durable");
        self.merged += usize::from(checkpoint.needs_merge());
        checkpoint.merge(&self.device).unwrap();
        for (offset, bytes) in checkpoint.tables {
            self.submit(offset, bytes);
        }
        // Sometimes it is given up, and begun anew later.
        if self.random.random_range(0..5) > 0 {
            self.events.push(Event::Flush);
            self.ssd.checkpoint_end();
        }
    }

    /// A restart changes nothing, however many of its groups are durable.
    fn restart(&mut self) {
        if !self.sync() {
            return;
        }
        let live: Vec<(u64, Vec<u8>)> = self.now.operations.clone().into_iter().collect();
        self.ssd.restart(live).unwrap();
        while let Ok(Some(group)) = self.ssd.seal() {
            self.submit_group(group, true);
            if self.random.random() {
                self.acknowledge(1);
            }
        }
    }

    fn superblocks(&mut self) {
        let pairing = Pairing { epoch: self.random.random(), ..Pairing::default() };
        let clean = self.random.random();
        let writes = if clean { self.ssd.mark_clean(pairing) } else { self.ssd.set_pairing(pairing) };
        for (offset, bytes) in writes {
            self.submit(offset, bytes);
            self.events.push(Event::Flush);
        }
    }

    fn step(&mut self) {
        self.clock = Time(self.clock.0 + 1);
        match self.random.random_range(0..100) {
            0..40 => self.write_file(),
            40..52 => self.append(),
            52..62 => self.unbind(),
            62..64 => self.set_state(),
            64..66 => {
                self.ssd.evict(self.clock.0 as usize % 2, 0, |ino| ino.0 % 5 == 0);
                self.sync_model();
            }
            66..76 => drop(self.seal()),
            76..84 => {
                let count = self.random.random_range(1..4);
                self.acknowledge(count);
            }
            84..90 => self.trim(),
            90..95 => self.checkpoint(),
            95..98 => self.restart(),
            98 => self.superblocks(),
            _ => self.ssd.touch(Ino(self.clock.0 % 50)),
        }
        if self.ssd.log.waiting_bytes() > 2 << 10 {
            self.seal();
        }
        // The log has room again only when something makes some.
        let hurry = if self.ssd.log.waiting_bytes() > 4 << 10 { 100 } else { 3 };
        if self.ssd.needs_restart() && self.random.random_range(0..100) < hurry {
            self.acknowledge(usize::MAX);
            self.trim();
            self.checkpoint();
            self.restart();
        }
    }
}

/// The image after a cut behind `events`, and what may be found on it.
fn cut(
    random: &mut SmallRng,
    image: &[u8],
    start: &Truth,
    events: &[Event],
) -> (Vec<u8>, Vec<Option<Truth>>, u64) {
    let mut image = image.to_vec();
    let mut pending: Vec<(usize, u64, Bytes)> = Vec::new();
    let mut truths = vec![Some(start.clone())];
    let (mut acknowledged, mut disk) = (0, 0);
    let put = |image: &mut Vec<u8>, offset: u64, data: &[u8]| {
        image[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    };
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::Submit { offset, data } => pending.push((index, *offset, data.clone())),
            Event::Durable { of } => {
                if let Some(at) = pending.iter().position(|(index, ..)| index == of) {
                    let (_, offset, data) = pending.remove(at);
                    put(&mut image, offset, &data);
                }
            }
            Event::Flush => pending.drain(..).for_each(|(_, offset, data)| put(&mut image, offset, &data)),
            Event::Sealed { truth } => truths.push(truth.clone()),
            Event::Acknowledged { groups } => acknowledged = *groups,
            Event::Disk { op } => disk = *op,
        }
    }
    for (_, offset, data) in pending {
        let fate = random.random_range(0..3);
        for (index, sector) in data.chunks(512).enumerate() {
            if fate == 0 || fate == 1 && random.random() {
                put(&mut image, offset + index as u64 * 512, sector);
            }
        }
    }
    (image, truths.split_off(acknowledged), disk)
}

/// Opens an image and finds which of the allowed truths it holds; `None` if it may be one that is not known.
fn verify(
    image: &[u8],
    allowed: &[Option<Truth>],
    disk: u64,
    name: &str,
    cache: usize,
) -> Option<(Ssd, Truth)> {
    let device = Ram::from_bytes("ssd", image.to_vec());
    let open = || Ssd::open_limited(&device, DiskSide::default(), MEMORY_DEFAULT, cache);
    let opened = open().unwrap_or_else(|error| panic!("{name}: {error}"));
    let lost = opened.notes.iter().find(|note| note.contains("dropped") || note.contains("made anew"));
    assert!(lost.is_none(), "{name}: {lost:?}");
    let mut ssd = opened.ssd;
    check(&ssd);
    let fresh = |record: &Record| matches!(record.body, RecordBody::Fresh { .. });
    let blocks: u64 = opened
        .records
        .iter()
        .map(|record| match record.body {
            RecordBody::Fresh { run, .. } => run.len.into(),
            RecordBody::Operation(_) => 0,
        })
        .sum();
    let in_ssd = everything(&ssd).values().filter(|(_, state)| *state == CopyState::Ssd).count();
    assert_eq!(blocks, in_ssd as u64, "{name}: every block in state 10 is in the records");
    assert!(opened.records.is_sorted_by_key(|record| record.op));
    let operations: BTreeMap<u64, Vec<u8>> = opened
        .records
        .iter()
        .filter(|record| !fresh(record) && record.op > disk)
        .map(|record| match &record.body {
            RecordBody::Operation(payload) => (record.op, payload.to_vec()),
            RecordBody::Fresh { .. } => unreachable!("filtered"),
        })
        .collect();
    ssd.trim(disk);
    let found = everything(&ssd);
    let fits = |truth: &&Truth| {
        let bound: BTreeMap<_, _> = truth.bound.iter().map(|(key, b)| (*key, (b.at, b.state))).collect();
        bound == found && truth.operations == operations
    };
    let unknown = allowed.iter().any(Option::is_none);
    let allowed: Vec<Truth> = allowed.iter().flatten().map(|truth| truth.trimmed(disk)).collect();
    let Some(truth) = allowed.iter().find(fits) else {
        if unknown {
            return None;
        }
        let last = allowed.last().unwrap();
        let bound: BTreeMap<_, _> = last.bound.iter().map(|(key, b)| (*key, (b.at, b.state))).collect();
        let only_found: Vec<_> = found.iter().filter(|(key, value)| bound.get(key) != Some(value)).collect();
        let only_truth: Vec<_> = bound.iter().filter(|(key, value)| found.get(key) != Some(value)).collect();
        panic!(
            "{name}: none of {} states; beside the last: found {only_found:?}, missing {only_truth:?}, \
             operations {:?} for {:?}, notes {:?}",
            allowed.len(),
            operations.keys(),
            last.operations.keys(),
            opened.notes
        );
    };
    for ((ino, file_block), bound) in &truth.bound {
        let data = (&device as &dyn BlockDevice).read(bound.at * BLOCK as u64, BLOCK).unwrap();
        assert_eq!(data, block_of(bound.content), "{name}: data of block {file_block} of inode {ino}");
        let mut sums = ssd.sums(SsdBlock(bound.at), 1);
        assert_eq!(sums.read(&device).unwrap(), [crc32c(&data)], "{name}");
        if bound.content % 3 == 0 {
            ssd.learn(&sums);
        }
        let inode = ssd.read_dup_inode(&device, Ino(*ino)).unwrap();
        assert!(inode.is_some_and(|inode| inode.size > 0), "{name}: inode {ino}");
    }
    let again = open().unwrap();
    assert_eq!(again.records, opened.records, "{name}: opening is repeatable");
    Some((ssd, truth.clone()))
}

/// Random use from an image for some steps, with the cuts to try after it.
/// The number of cuts, and of checkpoints that took something from the tables. `cache`: bytes for what they have.
fn run(
    seed: u64,
    rounds: usize,
    steps: usize,
    cache: usize,
    cuts: impl Fn(usize) -> Vec<usize>,
) -> (usize, usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let ram = Ram::new("ssd", DEVICE_BYTES);
    Ssd::format(&ram, &config(seed), &Pairing::default()).unwrap();
    let (mut image, mut truth, mut disk, mut tried) = (ram.image(), Truth::default(), 0, 0);
    let mut merged = 0;
    let (mut next_op, mut next_content) = (1, 1);
    for round in 0..rounds {
        let name = format!("seed {seed} round {round}");
        let (ssd, _) = verify(&image, &[Some(truth.clone())], disk, &name, cache).expect("one truth");
        let mut bench = Bench {
            random: SmallRng::seed_from_u64(random.random()),
            device: Ram::from_bytes("ssd", image.clone()),
            merged: 0,
            ssd,
            events: vec![Event::Disk { op: disk }],
            now: truth.trimmed(disk),
            disk,
            next_op,
            next_content,
            sealed: 0,
            acknowledged: 0,
            under_way: VecDeque::new(),
            durable_op: disk,
            clock: Time(1),
        };
        let start = bench.now.clone();
        for _ in 0..steps {
            bench.step();
            check(&bench.ssd);
        }
        (next_op, next_content) = (bench.next_op, bench.next_content);
        merged += bench.merged;
        for end in cuts(bench.events.len()) {
            let name = format!("seed {seed} round {round} cut {end}");
            let (image, allowed, disk) = cut(&mut random, &image, &start, &bench.events[..end]);
            tried += usize::from(verify(&image, &allowed, disk, &name, cache).is_some());
        }
        let end = random.random_range(1..=bench.events.len());
        let (after, allowed, disk_after) = cut(&mut random, &image, &start, &bench.events[..end]);
        let name = format!("seed {seed} round {round} end {end}");
        if let Some((_, found)) = verify(&after, &allowed, disk_after, &name, cache) {
            (truth, image, disk) = (found, after, disk_after);
        }
    }
    (tried, merged)
}

#[test]
fn after_a_cut_at_every_event_the_state_is_that_of_a_group_of_the_log() {
    let (tried, merged) = run(1, 6, 150, usize::MAX, |events| (1..=events).collect());
    assert!(tried > 1000 && merged == 0, "{tried} cuts, {merged} merges");
}

#[test]
fn the_same_holds_when_memory_keeps_nothing_that_the_tables_have() {
    let (tried, merged) = run(2, 6, 150, 0, |events| (1..=events).step_by(2).collect());
    assert!(tried > 500 && merged > 10, "{tried} cuts, {merged} merges");
    let merged: usize = (200..206).map(|seed| run(seed, 12, 60, 20_000, |_| Vec::new()).1).sum();
    assert!(merged > 10, "{merged} merges");
}

#[test]
fn many_cuts_one_after_the_other_leave_no_trace_of_what_was_lost() {
    for seed in 100..112 {
        run(seed, 12, 60, usize::MAX, |_| Vec::new());
    }
}

/// For long runs by hand: `CUTS=20000 cargo test --release -- --ignored many_more_cuts`.
#[test]
#[ignore = "takes minutes"]
fn many_more_cuts() {
    let rounds: u64 = std::env::var("CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let mut tried = 0;
    let mut seed = 10_000u64;
    while tried < rounds as usize {
        let cache = if seed.is_multiple_of(2) { usize::MAX } else { 0 };
        tried += run(seed, 8, 150, cache, |events| (1..=events).step_by(7).collect()).0;
        seed += 1;
    }
    println!("{tried} cuts");
}
