//! Every state that a power cut could leave, from a recorded log.
//!
//! A cut at position `p` means: the requests before entry `p` had been submitted, nothing after. What
//! was durable by then is there in every state; what was not is there by the [`Survival`] rule. All
//! devices of the log are cut at the same instant, each by itself.
//!
//! Cost: the log is indexed once (block → its versions); a state is a position in it plus the few blocks
//! that were not yet durable, so that walking all prefixes of a log costs about one pass for each rule.

use super::overlay::{Blocks, Overlay, each_block};
use super::recorded::{Event, Log, RecordedEvent};
use super::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What becomes of writes that no flush had made durable when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survival {
    /// All are there: the power went just after.
    All,
    /// None is: every volatile cache is lost.
    Durable,
    /// Some are: each write by itself, as drawn; so they seem reordered.
    Subset,
    /// As `Subset`, and half of them are torn: each atomic unit by itself, as drawn.
    Torn,
    /// All but one, which is drawn: the smallest reordering there is.
    Without,
    /// None but one, which is drawn: it went before all the others.
    Only,
}

impl Survival {
    /// The rules that between them reach every state.
    pub const EVERY: [Survival; 4] = [Survival::All, Survival::Durable, Survival::Subset, Survival::Torn];

    /// And those that reach the likeliest of them soonest.
    pub const EVERY_WAY: [Survival; 6] = [
        Survival::All,
        Survival::Durable,
        Survival::Subset,
        Survival::Torn,
        Survival::Without,
        Survival::Only,
    ];

    /// How each of `count` writes that were not durable survives.
    pub(super) fn draw(self, count: usize, random: &mut Random) -> Vec<Survives> {
        let chosen = random.clone().below(count as u64) as usize;
        let one = |index: usize| match self {
            Survival::All => Survives::Whole,
            Survival::Durable => Survives::Nothing,
            Survival::Torn if random.chance(0.5) => Survives::Some(random.split()),
            Survival::Subset | Survival::Torn if random.chance(0.5) => Survives::Whole,
            Survival::Subset | Survival::Torn => Survives::Nothing,
            Survival::Without if index != chosen => Survives::Whole,
            Survival::Only if index == chosen => Survives::Whole,
            Survival::Without | Survival::Only => Survives::Nothing,
        };
        (0..count).map(one).collect()
    }
}

/// The fate of one write.
pub(super) enum Survives {
    Whole,
    Nothing,
    /// Each unit with even chances.
    Some(Random),
}

impl Survives {
    /// Whether the next unit of the write is there.
    pub fn next_unit(&mut self) -> bool {
        match self {
            Survives::Whole => true,
            Survives::Nothing => false,
            Survives::Some(random) => random.chance(0.5),
        }
    }
}

/// What the devices hold after one power cut.
pub struct CrashState {
    /// The position of the cut: log entries before it had been submitted.
    pub cut: usize,
    /// The rule it was made by.
    pub survival: Survival,
    /// The notes made before the cut.
    pub marks: Vec<String>,
    /// The devices as they come up again, writable without harm to any other state.
    pub devices: Vec<Arc<Overlay>>,
}

/// Walks all states of `log`: every cut, from nothing submitted to everything, by each rule of `rules`.
/// `bases` are the devices' contents when recording began, in the log's order.
///
/// # Panics
/// If there are fewer bases than devices in the log.
pub fn crash_states(
    log: &Log,
    bases: &[Arc<dyn BlockDevice>],
    rules: &[Survival],
    seed: u64,
) -> impl Iterator<Item = CrashState> + use<> {
    let states = Arc::new(States::new(log, bases));
    let rules = rules.to_vec();
    (0..=log.entries.len()).flat_map(move |cut| {
        let states = Arc::clone(&states);
        rules.clone().into_iter().map(move |rule| states.at(cut, rule, seed))
    })
}

/// A log, indexed, from which any state can be made at once.
pub struct States {
    entries: Vec<RecordedEvent>,
    /// For each entry: the first cut at which it is durable.
    durable_from: Vec<usize>,
    histories: Vec<Arc<History>>,
    /// For each device and each cut: entries before this are all durable.
    settled: Vec<Vec<usize>>,
    atomic: Vec<u32>,
}

impl States {
    /// Indexes `log`; `bases` are the devices' contents when recording began, in the log's order.
    ///
    /// # Panics
    /// If there are fewer bases than devices in the log.
    pub fn new(log: &Log, bases: &[Arc<dyn BlockDevice>]) -> States {
        assert!(bases.len() >= log.devices.len(), "a base for every device of the log");
        let durable_from = durable_from(log);
        let devices = 0..log.devices.len();
        States {
            settled: devices.clone().map(|device| settled(log, device, &durable_from)).collect(),
            histories: devices.map(|device| Arc::new(History::new(log, device, &bases[device]))).collect(),
            atomic: log.devices.iter().map(|info| info.atomic_bytes).collect(),
            entries: log.entries.clone(),
            durable_from,
        }
    }

    /// The state of a cut before log entry `cut`.
    ///
    /// # Panics
    /// If there are fewer entries.
    pub fn at(&self, cut: usize, survival: Survival, seed: u64) -> CrashState {
        let device = |number: usize| self.device_at(number, cut, survival, seed);
        let marks = self.entries[..cut].iter().filter_map(|entry| match &entry.event {
            Event::Mark(note) => Some(note.clone()),
            _ => None,
        });
        let devices = (0..self.histories.len()).map(device).collect();
        CrashState { cut, survival, marks: marks.collect(), devices }
    }

    /// What one device holds after a cut; the others may have been cut elsewhere.
    ///
    /// # Panics
    /// If there are fewer devices or entries.
    pub fn device_at(&self, number: usize, cut: usize, survival: Survival, seed: u64) -> Arc<Overlay> {
        let mut random = Random::new(seed, &format!("{survival:?} {number}"));
        let mut random = Random::new(random.next() ^ cut as u64, "cut");
        Arc::new(self.device(number, cut, survival, &mut random))
    }

    /// Whether a cut there could leave more than one state: something on some device was not yet durable.
    pub fn is_open(&self, cut: usize) -> bool {
        (0..self.histories.len()).any(|device| !self.pending(device, cut).is_empty())
    }

    /// The changes of a device before the cut that were not durable by then.
    fn pending(&self, device: usize, cut: usize) -> Vec<usize> {
        let is_change = |index: &usize| {
            let entry = &self.entries[*index];
            let changes = matches!(entry.event, Event::Write { .. } | Event::Discard { .. });
            entry.device == device && changes && self.durable_from[*index] > cut
        };
        (self.settled[device][cut]..cut).filter(is_change).collect()
    }

    /// One device after the cut: what is settled as its base, the rest drawn.
    fn device(&self, number: usize, cut: usize, survival: Survival, random: &mut Random) -> Overlay {
        let history = &self.histories[number];
        let settled = self.settled[number][cut];
        let mut blocks = Blocks::default();
        let mut fates = survival.draw(self.pending(number, cut).len(), random).into_iter();
        for index in settled..cut {
            let entry = &self.entries[index];
            let changes = matches!(entry.event, Event::Write { .. } | Event::Discard { .. });
            if entry.device != number || !changes {
                continue;
            }
            let mut fate = match self.durable_from[index] <= cut {
                true => Survives::Whole,
                false => fates.next().expect("a fate for each change that is not durable"),
            };
            let units = self.atomic[number] / history.info().block_bytes.max(1);
            let mut unit = (u64::MAX, true);
            history.blocks_of(&entry.event, |block, bytes| {
                let of = block / u64::from(units.max(1));
                if unit.0 != of {
                    unit = (of, fate.next_unit());
                }
                if unit.1 {
                    blocks.insert(block, bytes);
                }
            });
        }
        let base = SettledAt { history: Arc::clone(history), before: settled };
        Overlay::with_changes(Arc::new(base), blocks)
    }
}

/// For each entry, the first cut position at which it is durable (`usize::MAX`: never).
fn durable_from(log: &Log) -> Vec<usize> {
    // For each device: its flushes by place, each with the first cut at which that one or a later is done.
    let mut flushes: Vec<Vec<(usize, usize)>> = vec![Vec::new(); log.devices.len()];
    for (index, entry) in log.entries.iter().enumerate() {
        if let (Event::Flush, Some(done)) = (&entry.event, entry.done) {
            flushes[entry.device].push((index, done));
        }
    }
    for list in &mut flushes {
        let mut earliest = usize::MAX;
        for (_, done) in list.iter_mut().rev() {
            earliest = earliest.min(*done);
            *done = earliest;
        }
    }
    log.entries
        .iter()
        .map(|entry| {
            let Some(done) = entry.done else { return usize::MAX };
            match entry.event {
                Event::Write { durable: true, .. } | Event::Mark(_) | Event::Flush => done,
                Event::Write { .. } | Event::Discard { .. } => {
                    let list = &flushes[entry.device];
                    let covering = list.partition_point(|(index, _)| *index < done);
                    list.get(covering).map_or(usize::MAX, |(_, flushed)| *flushed)
                }
            }
        })
        .collect()
}

/// For each cut, the number of entries from the start that are all durable on `device` by then.
fn settled(log: &Log, device: usize, durable_from: &[usize]) -> Vec<usize> {
    let changes = |index: usize| {
        let entry = &log.entries[index];
        entry.device == device && matches!(entry.event, Event::Write { .. } | Event::Discard { .. })
    };
    let mut upto = 0;
    (0..=log.entries.len())
        .map(|cut| {
            while upto < cut && (!changes(upto) || durable_from[upto] <= cut) {
                upto += 1;
            }
            upto
        })
        .collect()
}

/// All versions of all blocks of one device, over its first contents.
struct History {
    base: Arc<dyn BlockDevice>,
    /// Block → (entry, contents), in log order.
    versions: FxHashMap<u64, Vec<(usize, Bytes)>>,
    zeros: Bytes,
}

impl History {
    fn new(log: &Log, device: usize, base: &Arc<dyn BlockDevice>) -> History {
        let zeros = Bytes::from(vec![0; base.info().block_bytes as usize]);
        let mut history = History { base: Arc::clone(base), versions: FxHashMap::default(), zeros };
        let mut versions: FxHashMap<u64, Vec<(usize, Bytes)>> = FxHashMap::default();
        for (index, entry) in log.entries.iter().enumerate().filter(|(_, entry)| entry.device == device) {
            history.blocks_of(&entry.event, |block, bytes| {
                versions.entry(block).or_default().push((index, bytes));
            });
        }
        history.versions = versions;
        history
    }

    fn info(&self) -> &DeviceInfo {
        self.base.info()
    }

    /// The blocks an event changes; a discarded one reads as zeros.
    fn blocks_of(&self, event: &Event, mut visit: impl FnMut(u64, Bytes)) {
        let block_bytes = self.info().block_bytes;
        match event {
            Event::Write { offset, data, .. } => each_block(*offset, data.clone(), block_bytes, visit),
            Event::Discard { offset, len } => {
                let first = offset / u64::from(block_bytes);
                let count = len / u64::from(block_bytes);
                (first..first + count).for_each(|block| visit(block, self.zeros.clone()));
            }
            Event::Flush | Event::Mark(_) => {}
        }
    }

    /// What `block` held before entry `before`, if it had been written.
    fn version(&self, block: u64, before: usize) -> Option<&Bytes> {
        let versions = self.versions.get(&block)?;
        let count = versions.partition_point(|(index, _)| *index < before);
        count.checked_sub(1).map(|newest| &versions[newest].1)
    }
}

/// A device as all entries before one position left it; read-only below its overlay.
struct SettledAt {
    history: Arc<History>,
    before: usize,
}

impl SettledAt {
    fn read(&self, request: &Request) -> Result<Bytes> {
        check(self.info(), request)?;
        let Request::Read { offset, len } = *request else {
            unreachable!("the overlay above keeps every change");
        };
        let size = self.info().block_bytes as usize;
        let first = offset / size as u64;
        let mut whole = BytesMut::from(self.history.base.run(Time::ZERO, request.clone()).result?);
        for index in 0..len / size {
            if let Some(bytes) = self.history.version(first + index as u64, self.before) {
                whole[index * size..(index + 1) * size].copy_from_slice(bytes);
            }
        }
        Ok(whole.freeze())
    }
}

impl BlockDevice for SettledAt {
    fn info(&self) -> &DeviceInfo {
        self.history.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(Completion { at, result: self.read(&request) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;
    use crate::recorded::Recorder;

    const SECTORS: usize = 8;

    fn ram(name: &str) -> Arc<dyn BlockDevice> {
        Arc::new(Ram::new(name, SECTORS as u64 * 512))
    }

    /// The first byte of every sector.
    fn contents(device: &Arc<Overlay>) -> [u8; SECTORS] {
        let device: &dyn BlockDevice = &**device;
        let whole = device.read(0, SECTORS * 512).unwrap();
        std::array::from_fn(|sector| whole[sector * 512])
    }

    /// 1 → sectors 0–1; flush; 2 → sector 1, 3 → sectors 4–7 not flushed; on a second device 9 → 0 durable.
    fn example() -> (Log, Vec<Arc<dyn BlockDevice>>) {
        let recorder = Recorder::new();
        let [a, b] = ["a", "b"].map(|name| recorder.wrap(ram(name)));
        let (a, b): (&dyn BlockDevice, &dyn BlockDevice) = (&a, &b);
        a.write(0, vec![1; 1024]).unwrap();
        a.flush().unwrap();
        recorder.mark("one");
        a.write(512, vec![2; 512]).unwrap();
        a.write(2048, vec![3; 2048]).unwrap();
        let data = [Bytes::from(vec![9; 512])].into_iter().collect();
        b.run(Time::ZERO, Request::Write { offset: 0, data, durable: true }).result.unwrap();
        (recorder.log(), vec![ram("a"), ram("b")])
    }

    #[test]
    fn a_prefix_holds_everything_and_a_lost_cache_only_what_was_flushed() {
        let (log, bases) = example();
        let states: Vec<CrashState> =
            crash_states(&log, &bases, &[Survival::All, Survival::Durable], 1).collect();
        let told: Vec<_> = states
            .iter()
            .map(|s| (s.cut, s.survival, contents(&s.devices[0]), contents(&s.devices[1])[0], s.marks.len()))
            .collect();
        use Survival::{All, Durable};
        let expected = [
            (0, All, [0, 0, 0, 0, 0, 0, 0, 0], 0, 0),
            (0, Durable, [0, 0, 0, 0, 0, 0, 0, 0], 0, 0),
            (1, All, [1, 1, 0, 0, 0, 0, 0, 0], 0, 0),
            (1, Durable, [0, 0, 0, 0, 0, 0, 0, 0], 0, 0),
            (2, All, [1, 1, 0, 0, 0, 0, 0, 0], 0, 0),
            (2, Durable, [1, 1, 0, 0, 0, 0, 0, 0], 0, 0),
            (3, All, [1, 1, 0, 0, 0, 0, 0, 0], 0, 1),
            (3, Durable, [1, 1, 0, 0, 0, 0, 0, 0], 0, 1),
            (4, All, [1, 2, 0, 0, 0, 0, 0, 0], 0, 1),
            (4, Durable, [1, 1, 0, 0, 0, 0, 0, 0], 0, 1),
            (5, All, [1, 2, 0, 0, 3, 3, 3, 3], 0, 1),
            (5, Durable, [1, 1, 0, 0, 0, 0, 0, 0], 0, 1),
            (6, All, [1, 2, 0, 0, 3, 3, 3, 3], 9, 1),
            (6, Durable, [1, 1, 0, 0, 0, 0, 0, 0], 9, 1),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn subsets_keep_writes_whole_and_torn_ones_do_not() {
        let (log, bases) = example();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..256 {
            for state in crash_states(&log, &bases, &[Survival::Subset, Survival::Torn], seed) {
                let bytes = contents(&state.devices[0]);
                assert!(state.cut < 2 || bytes[0] == 1 && bytes[1] >= 1, "what was flushed is there");
                assert!(bytes[2..4] == [0, 0]);
                assert!(state.cut < 6 || contents(&state.devices[1])[0] == 9, "so is what was durable");
                if state.cut == 6 {
                    seen.insert((format!("{:?}", state.survival), bytes[1], bytes[4..].to_vec()));
                }
            }
        }
        let of = |survival: &str| seen.iter().filter(|state| state.0 == survival).count();
        assert_eq!(of("Subset"), 4, "two writes, each there or not");
        assert!(of("Torn") > 20, "of 2 × 16");
    }

    #[test]
    fn one_write_is_missing_or_alone_and_any_of_them_may_be_it() {
        let (log, bases) = example();
        let states = States::new(&log, &bases);
        assert!(!states.is_open(3) && states.is_open(5));
        let seen = |survival| -> std::collections::BTreeSet<[u8; SECTORS]> {
            (0..32).map(|seed| contents(&states.at(5, survival, seed).devices[0])).collect()
        };
        let either = std::collections::BTreeSet::from([[1, 2, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 3, 3, 3, 3]]);
        assert_eq!(seen(Survival::Without), either, "of two writes one is missing");
        assert_eq!(seen(Survival::Only), either, "or one is there");
    }

    #[test]
    fn the_same_seed_gives_the_same_states() {
        let (log, bases) = example();
        let run = |seed| -> Vec<_> {
            crash_states(&log, &bases, &Survival::EVERY, seed).map(|s| contents(&s.devices[0])).collect()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn a_write_on_a_crash_state_leaves_the_others_alone() {
        let (log, bases) = example();
        let states: Vec<CrashState> = crash_states(&log, &bases, &[Survival::All], 1).collect();
        (&*states[6].devices[0] as &dyn BlockDevice).write(0, vec![7; 4096]).unwrap();
        assert_eq!(contents(&states[5].devices[0]), [1, 2, 0, 0, 3, 3, 3, 3]);
    }

    #[test]
    fn a_flush_covers_only_what_was_done_before_it() {
        let data = |byte: u8| Gather::from_iter([Bytes::from(vec![byte; 512])]);
        use crate::Gather;
        let entry = |event, done| RecordedEvent { device: 0, event, done };
        let write = |offset, byte| Event::Write { offset, data: data(byte), durable: false };
        let entries = vec![
            entry(write(0, 1), Some(3)),
            entry(write(512, 2), Some(2)),
            entry(Event::Flush, Some(4)),
            entry(write(1024, 3), None),
        ];
        let log = Log { entries, devices: vec![ram("a").info().clone()] };
        let states: Vec<[u8; SECTORS]> = crash_states(&log, &[ram("a")], &[Survival::Durable], 1)
            .map(|s| contents(&s.devices[0]))
            .collect();
        assert_eq!(states[3][..3], [0, 0, 0], "the flush was not done yet");
        assert_eq!(states[4][..3], [0, 2, 0], "the first write was under way when it began");
    }
}
