//! The scheduler: when the operations that a translation layer decided on are done, per channel, die and plane, in
//! virtual time.
//!
//! A translation layer decides where pages go, what is cleaned and what is moved, and its decisions take no time. What
//! they cost the array is a list of operations ([`Op`]), each with what it is done for. This orders them:
//!
//! - *An array* (a plane, or a die whose planes work together) does one command after the other; a channel carries one
//!   transfer at a time, in the first gap that holds it.
//! - *Reads for the host* go first ([`Ordering::Background`]). One that comes while an array programs or erases suspends
//!   that, where the part can, at most [`SUSPENDS_MAX`] times; it goes on when no read is left, or after [`READS_MAX`].
//! - *Programs for the host* come next, in order.
//! - *Cleaning and wear levelling* are a debt. Where nothing else waits it is paid (idle time); where programs wait, in
//!   equal parts of one page each between them, so that all is paid by the time that the host has written another block.
//! - *Order*: operations on one block are done in the order in which they were decided. So a page is programmed after the
//!   block was erased, and a block erased after its pages were copied; it is this that makes a host wait for cleaning
//!   when the debt is not paid in time.
//! - *Planes together* ([`NandProfile::planes_together`]): a command takes along what comes first on the die's other
//!   planes and is of the same kind and, if a program, of a page of the same type.
//!
//! - *Stripes* ([`Schedule::in_stripes`]): of a layer that writes superblocks a command takes along only the pages of the same
//!   number in blocks of the same number, and a copy is a read and then a program, wherever it goes.
//!
//! With [`Ordering::InOrder`] all of it is done in the order it was decided on, a unit's reads among the rest.
//!
//! Requests may be handed in behind what was done by then (by a caller that knows nothing of time to come): an array that
//! was idle then takes them from there. Invariants: no array does two commands at once, no channel two transfers; of
//! operations that wait, the one decided on first never waits for another. Cost: O(log arrays) an operation.

mod queue;
#[cfg(test)]
mod tests;

use super::clock::Timing;
use super::{Cause, Geometry, Lane, NandProfile, Op, OpKind, Ordering};
use crate::profile::us;
use bimetal_base::time::Time;
use queue::{Half, Plane, Queued, Which, is_behind};
use rustc_hash::FxHashMap;
use serde::Serialize;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How often one program or erase is suspended at most, so that it ends.
const SUSPENDS_MAX: u32 = 16;
/// How many reads go before a program or an erase that waits; then one is done that is not suspended.
const READS_MAX: u32 = 64;

/// The operations of one command: one of each plane that takes part.
type Ops = SmallVec<[Queued; 1]>;

/// What a scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScheduleStats {
    /// Programs and erases suspended for reads.
    pub suspends: u64,
    /// Commands that more than one plane took part in.
    pub multi_plane: u64,
}

impl ScheduleStats {
    /// What was done since `before`.
    pub fn since(&self, before: &ScheduleStats) -> ScheduleStats {
        ScheduleStats {
            suspends: self.suspends - before.suspends,
            multi_plane: self.multi_plane - before.multi_plane,
        }
    }
}

/// What an array does.
struct Command {
    ops: Ops,
    begin: u64,
    /// The array works from then on; only then it can be suspended.
    works_from: u64,
    end: u64,
    suspends: u32,
    /// An event looks at it when the array begins to work.
    is_watched: bool,
}

impl Command {
    fn kind(&self) -> OpKind {
        self.ops.first().map_or(OpKind::Read, Queued::kind)
    }
}

/// What the last command leaves for the next one to overlap with.
#[derive(Clone, Copy)]
struct Last {
    kind: OpKind,
    works_from: u64,
    end: u64,
}

/// A plane, or a die of planes that work together.
struct Array {
    /// Reads that go first, in order.
    reads: VecDeque<Queued>,
    planes: SmallVec<[Plane; 1]>,
    current: Option<Command>,
    suspended: Option<Command>,
    /// Reads that went before what waits.
    passed: u32,
    /// What it did until then is done.
    free: u64,
    /// Events of what it no longer does have another one.
    epoch: u32,
    last: Option<Last>,
}

/// Who waits for an operation.
#[derive(Default)]
struct Awaited {
    /// The one who handed it in.
    is_watched: bool,
    /// Reads that begin when it is done.
    reads: SmallVec<[Queued; 1]>,
    /// Arrays that cannot go on without it.
    arrays: SmallVec<[u32; 1]>,
}

/// A scheduler of one array of NAND.
pub struct Schedule {
    timing: Timing,
    geometry: Geometry,
    in_order: bool,
    cached_commands: bool,
    program_suspend: Option<u64>,
    erase_suspend: Option<u64>,
    /// Dies, where planes work together.
    dies: Option<u32>,
    /// Page types: of one word line.
    types: u32,
    /// Pages are programmed in stripes of superblocks.
    in_stripes: bool,
    arrays: Vec<Array>,
    channels: Vec<Lane>,
    /// When to look at an array again, if it still does what it does.
    events: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// Operations in the queues that are about a block: in front, and of the debt; not kept in order.
    queued: Vec<[u16; 2]>,
    /// Operations handed in so far.
    issued: u64,
    awaited: FxHashMap<u64, Awaited>,
    finished: VecDeque<(u64, Time)>,
    /// The programs of the stripe of copies that is being handed in.
    copied: Vec<Queued>,
    /// Arrays that were handed something.
    touched: Vec<u32>,
    stats: ScheduleStats,
}

impl Schedule {
    /// For an array as `profile` says, of so many units and blocks as `geometry`.
    pub fn new(profile: &NandProfile, geometry: Geometry) -> Schedule {
        let dies = profile.planes_together.then(|| geometry.units / profile.planes);
        let count = dies.unwrap_or(geometry.units);
        let planes = (geometry.units / count) as usize;
        let array = |_| Array {
            reads: VecDeque::new(),
            planes: (0..planes).map(|_| Plane::default()).collect(),
            current: None,
            suspended: None,
            passed: 0,
            free: 0,
            epoch: 0,
            last: None,
        };
        Schedule {
            timing: Timing::of(profile),
            geometry,
            in_order: profile.ordering == Ordering::InOrder,
            cached_commands: profile.cached_commands,
            program_suspend: profile.program_suspend_us.map(us),
            erase_suspend: profile.erase_suspend_us.map(us),
            dies,
            types: profile.program_us_by_type.len().max(1) as u32,
            in_stripes: false,
            arrays: (0..count).map(array).collect(),
            channels: (0..geometry.channels).map(|_| Lane::default()).collect(),
            events: BinaryHeap::new(),
            queued: vec![[0; 2]; geometry.blocks() as usize],
            issued: 0,
            awaited: FxHashMap::default(),
            finished: VecDeque::new(),
            copied: Vec::new(),
            touched: Vec::new(),
            stats: ScheduleStats::default(),
        }
    }

    /// The same of a layer that writes superblocks: what it decides on comes in stripes, pages of the same number on the
    /// planes of a die, and is programmed so.
    #[must_use]
    pub fn in_stripes(self) -> Schedule {
        Schedule { in_stripes: true, ..self }
    }

    /// What it did so far.
    pub fn stats(&self) -> ScheduleStats {
        self.stats
    }

    /// Has [`finished`](Self::finished) name the operation at a place, from 1 on, of the list that is handed in next: by what
    /// is given here.
    pub fn watch(&mut self, place: u64) -> u64 {
        let token = 2 * (self.issued + place);
        self.awaited.entry(token).or_default().is_watched = true;
        token
    }

    /// Takes over what was put down ([`Nand::take_ops`](super::Nand::take_ops)) at `at`, and leaves the list empty. The
    /// operation at the place `watched` of it (1: the first) is one that [`finished`](Self::finished) names: by what is
    /// given here. None if `watched` is 0.
    pub fn push(&mut self, at: Time, ops: &mut Vec<Op>, watched: u64) -> Option<u64> {
        let token = (watched > 0).then(|| self.watch(watched));
        let base = self.issued;
        self.issued += ops.len() as u64;
        for (number, op) in (base + 1..).zip(ops.drain(..)) {
            let after = match op.after {
                0 => 0,
                // What cleaning does waits for its blocks, not for the request that it was decided in.
                _ if !matches!(op.cause, Cause::Host | Cause::Map | Cause::Padding) => 0,
                place => 2 * (base + u64::from(place)),
            };
            self.place_in_stripes(Queued { number, after, at: at.0, op, half: None });
        }
        self.place_programs();
        while let Some(array) = self.touched.pop() {
            self.look_at(array, at.0);
        }
        token
    }

    /// When something happens next.
    pub fn next_event(&mut self) -> Option<Time> {
        while let Some(Reverse((at, array, epoch))) = self.events.peek() {
            if self.arrays[*array as usize].epoch == *epoch {
                return Some(Time(*at));
            }
            self.events.pop();
        }
        None
    }

    /// Has what happens next happen; whether there was something.
    pub fn step(&mut self) -> bool {
        if self.next_event().is_none() {
            return false;
        }
        let Some(Reverse((at, number, _))) = self.events.pop() else { return false };
        let array = &mut self.arrays[number as usize];
        if array.current.as_ref().is_some_and(|command| at < command.end) {
            self.suspend(number, at);
        } else if let Some(command) = array.current.take() {
            array.epoch = array.epoch.wrapping_add(1);
            array.free = command.end;
            for queued in &command.ops {
                self.finish(queued.key(), command.end);
            }
            self.begin_next(number, command.end);
        }
        while let Some(array) = self.touched.pop() {
            self.look_at(array, at);
        }
        true
    }

    /// A watched operation that is done, and when; each is named once.
    pub fn finished(&mut self) -> Option<(u64, Time)> {
        self.finished.pop_front()
    }

    /// The array of a unit, and which plane of it that is.
    fn array_of(&self, unit: u32) -> (u32, usize) {
        match self.dies {
            Some(dies) => (unit % dies, (unit / dies) as usize),
            None => (unit, 0),
        }
    }

    fn queue_of(&self, queued: &Queued) -> (u32, usize) {
        self.array_of(self.geometry.unit_of(queued.place().0))
    }

    /// Puts an operation where it waits. In stripes, all pages that are copied to one are read before the first of them is
    /// programmed.
    fn place_in_stripes(&mut self, queued: Queued) {
        let is_copy = self.in_stripes && queued.op.kind == OpKind::Copy;
        let word_line = self.timing.word_line_of(queued.cells());
        let is_beside = |last: &Queued| {
            let index = |queued: &Queued| queued.op.block % self.geometry.blocks_per_unit;
            is_copy && self.timing.word_line_of(last.cells()) == word_line && index(last) == index(&queued)
        };
        if !self.copied.last().is_none_or(is_beside) {
            self.place_programs();
        }
        if !is_copy {
            return self.place(queued);
        }
        let read = Queued { half: Some(Half::Read), ..queued };
        self.place(read);
        self.copied.push(Queued { half: Some(Half::Program), after: read.key(), ..queued });
    }

    /// Puts the programs of a stripe of copies where they wait, behind their reads.
    fn place_programs(&mut self) {
        let mut copied = std::mem::take(&mut self.copied);
        copied.drain(..).for_each(|program| self.place(program));
        self.copied = copied;
    }

    /// Puts an operation where it waits.
    fn place(&mut self, queued: Queued) {
        if queued.op.kind == OpKind::Copy && queued.half.is_none() {
            let from = self.array_of(self.geometry.unit_of(queued.op.from.0)).0;
            let to = self.array_of(self.geometry.unit_of(queued.op.block)).0;
            if from != to {
                let read = Queued { half: Some(Half::Read), ..queued };
                self.place(read);
                return self.place(Queued { half: Some(Half::Program), after: read.key(), ..queued });
            }
        }
        let (number, plane) = self.queue_of(&queued);
        let is_read = matches!(queued.kind(), OpKind::Read | OpKind::ReadSpare);
        if is_read && queued.is_urgent() && !self.in_order {
            match self.waits_for(queued.after) {
                Some(awaited) => awaited.reads.push(queued),
                None => {
                    self.arrays[number as usize].reads.push_back(queued);
                    self.touched.push(number);
                }
            }
            return;
        }
        if let Some(awaited) = self.waits_for(queued.after) {
            awaited.arrays.push(number);
        }
        let which = if queued.is_urgent() || self.in_order { Which::Front } else { Which::Debt };
        let block_pages = self.geometry.pages_per_block;
        let queues = &mut self.arrays[number as usize].planes[plane];
        match which {
            Which::Front => queues.front.push_back(queued),
            Which::Debt => queues.owe(queued, block_pages),
        }
        self.count(&queued, which, 1);
        self.touched.push(number);
    }

    /// Counts an operation that is put into a queue (1) or taken out of it (−1). In order there is but one.
    fn count(&mut self, queued: &Queued, which: Which, change: i16) {
        if !self.in_order {
            for block in queued.blocks() {
                let count = &mut self.queued[block as usize][which as usize];
                *count = count.wrapping_add_signed(change);
            }
        }
    }

    /// Who waits for an operation; it is of the same list, and so not done.
    fn waits_for(&mut self, after: u64) -> Option<&mut Awaited> {
        (after > 0).then(|| self.awaited.entry(after).or_default())
    }

    /// Looks whether an array that was handed something has to do something about it.
    fn look_at(&mut self, number: u32, at: u64) {
        let array = &self.arrays[number as usize];
        match &array.current {
            None => self.begin_next(number, at),
            Some(_) if !array.reads.is_empty() => self.suspend(number, at),
            Some(_) => {}
        }
    }

    /// Suspends what an array does, for a read that waits, if it can be.
    fn suspend(&mut self, number: u32, at: u64) {
        let array = &mut self.arrays[number as usize];
        let Some(command) = array.current.as_mut().filter(|_| !array.reads.is_empty()) else { return };
        let kind = command.kind();
        if matches!(kind, OpKind::Read | OpKind::ReadSpare) {
            return;
        }
        if at < command.begin && command.suspends == 0 {
            return self.give_way(number, at);
        }
        let takes = if kind == OpKind::Erase { self.erase_suspend } else { self.program_suspend };
        let Some(takes) = takes.filter(|_| command.suspends < SUSPENDS_MAX) else { return };
        if at < command.works_from {
            if !std::mem::replace(&mut command.is_watched, true) {
                self.events.push(Reverse((command.works_from, number, array.epoch)));
            }
            return;
        }
        // What is about to end is not worth it.
        if command.end.saturating_sub(at) <= takes {
            return;
        }
        array.epoch = array.epoch.wrapping_add(1);
        array.free = at + takes;
        array.suspended = array.current.take().map(|command| Command {
            works_from: at,
            suspends: command.suspends + 1,
            ..command
        });
        self.stats.suspends += 1;
        self.begin_next(number, at + takes);
    }

    /// Puts back what has not begun, for a read that comes before it.
    fn give_way(&mut self, number: u32, at: u64) {
        let array = &mut self.arrays[number as usize];
        let Some(command) = array.current.take() else { return };
        array.epoch = array.epoch.wrapping_add(1);
        for queued in command.ops.into_iter().rev() {
            let plane = self.array_of(self.geometry.unit_of(queued.place().0)).1;
            let which = if queued.is_urgent() || self.in_order { Which::Front } else { Which::Debt };
            self.arrays[number as usize].planes[plane].queue(which).push_front(queued);
            self.count(&queued, which, 1);
        }
        self.begin_next(number, at);
    }

    /// Has an idle array begin what is to be done next, if there is something, not before `at`.
    fn begin_next(&mut self, number: u32, at: u64) {
        let at = at.max(self.arrays[number as usize].free);
        let array = &mut self.arrays[number as usize];
        if array.current.is_some() {
            return;
        }
        let is_due = array.passed >= READS_MAX;
        if !array.reads.is_empty() && !is_due {
            array.passed += 1;
            let ops = self.take_reads(number);
            return self.begin(number, at, ops);
        }
        array.passed = 0;
        let spent = if is_due { SUSPENDS_MAX } else { 0 };
        if let Some(suspended) = array.suspended.take() {
            let left = suspended.end - suspended.works_from;
            array.epoch = array.epoch.wrapping_add(1);
            let (end, suspends) = (at + left, suspended.suspends.max(spent));
            self.events.push(Reverse((end, number, array.epoch)));
            array.current =
                Some(Command { begin: at, works_from: at, end, suspends, is_watched: false, ..suspended });
            return;
        }
        let ops = self.take_ops(number);
        if !ops.is_empty() {
            self.begin(number, at, ops);
            if let Some(command) = &mut self.arrays[number as usize].current {
                command.suspends = spent;
            }
        } else if is_due && !self.arrays[number as usize].reads.is_empty() {
            // Nothing waited for them.
            self.begin_next(number, at);
        }
    }

    /// The read whose turn it is, and those of other planes that can be done with it.
    fn take_reads(&mut self, number: u32) -> Ops {
        let together = self.dies.is_some();
        let mut ops = Ops::new();
        let reads = &mut self.arrays[number as usize].reads;
        ops.extend(reads.pop_front());
        if !together {
            return ops;
        }
        let geometry = &self.geometry;
        let unit = |queued: &Queued| geometry.unit_of(queued.place().0);
        let mut index = 0;
        while let Some(read) = reads.get(index) {
            let joins = ops.iter().all(|op| unit(op) != unit(read) && op.kind() == read.kind());
            match joins {
                true => ops.extend(reads.remove(index)),
                false => index += 1,
            }
        }
        ops
    }

    /// Whether the first operation of a queue may begin.
    fn may_begin(&self, plane: &Plane, which: Which) -> bool {
        let (queue, other, index) = match which {
            Which::Front => (&plane.front, &plane.debt, Which::Debt as usize),
            Which::Debt => (&plane.debt, &plane.front, Which::Front as usize),
        };
        queue.front().is_some_and(|queued| {
            let is_met = queued.after == 0 || !self.awaited.contains_key(&queued.after);
            is_met
                && (queued.blocks().iter().all(|block| self.queued[*block as usize][index] == 0)
                    || !is_behind(queued, other))
        })
    }

    /// What an array does next, reads for the host apart: of what may begin on its planes what was decided on first, and
    /// what can be done with it.
    fn take_ops(&mut self, number: u32) -> Ops {
        if self.in_stripes && self.dies.is_some() && !self.in_order {
            return self.take_stripe(number);
        }
        let array = &self.arrays[number as usize];
        let which_turn = |plane: &Plane| {
            plane.turn(self.may_begin(plane, Which::Front), self.may_begin(plane, Which::Debt))
        };
        if let [plane] = &array.planes[..] {
            return match which_turn(plane) {
                Some(which) => self.take(number, [(0, which)]),
                None => Ops::new(),
            };
        }
        let turn = |plane: &Plane| {
            let which = which_turn(plane);
            which.and_then(|which| Some((which, *plane.first(which)?)))
        };
        let turns: SmallVec<[Option<(Which, Queued)>; 4]> = array.planes.iter().map(turn).collect();
        let lead = turns.iter().flatten().map(|(_, queued)| *queued).min_by_key(|queued| queued.number);
        let Some(lead) = lead else { return Ops::new() };
        let joins = |queued: &Queued| {
            let same_type = |(a, b): (u32, u32)| a % self.types == b % self.types;
            queued.kind() == lead.kind()
                && (lead.kind() == OpKind::Erase || same_type((queued.place().1, lead.place().1)))
        };
        // What has its turn on a plane, else what else may begin there.
        let joining = |(plane, turn): (&Plane, &Option<(Which, Queued)>)| {
            let (which, queued) = turn.as_ref()?;
            if joins(queued) {
                return Some(*which);
            }
            let other = if *which == Which::Front { Which::Debt } else { Which::Front };
            let may_join = plane.first(other).is_some_and(joins) && self.may_begin(plane, other);
            may_join.then_some(other)
        };
        let taken: SmallVec<[(usize, Which); 4]> = (0..)
            .zip(array.planes.iter().zip(&turns))
            .filter_map(|(plane, turn)| Some((plane, joining(turn)?)))
            .collect();
        self.take(number, taken)
    }

    /// The same of a die that works in stripes: it either does what the host waits for or pays the debt. Of the debt
    /// copies are read first, as far as they come before what is to be programmed on their planes, so that stripes become
    /// whole. Only pages of the same number in blocks of the same number are programmed, or erased, together.
    fn take_stripe(&mut self, number: u32) -> Ops {
        let (which, firsts) = self.firsts(number);
        let lead =
            firsts.iter().flatten().min_by_key(|queued| (queued.kind() != OpKind::Read, queued.number));
        let Some(lead) = lead else { return Ops::new() };
        let index = |queued: &Queued| queued.place().0 % self.geometry.blocks_per_unit;
        let joins = |queued: &Queued| {
            let word_line = |queued: &Queued| self.timing.word_line_of(queued.cells());
            let is_beside = word_line(queued) == word_line(lead) && index(queued) == index(lead);
            queued.kind() == lead.kind() && (lead.kind() == OpKind::Read || is_beside)
        };
        let joining = |(plane, queued): (usize, &Option<Queued>)| {
            queued.as_ref().filter(|queued| joins(queued)).map(|_| (plane, which))
        };
        let taken: SmallVec<[(usize, Which); 4]> = (0..).zip(&firsts).filter_map(joining).collect();
        self.take(number, taken)
    }

    /// The queue that a die's planes take from next, all of them the same, and what may begin of it on each.
    fn firsts(&self, number: u32) -> (Which, SmallVec<[Option<Queued>; 8]>) {
        let planes = &self.arrays[number as usize].planes;
        let any = |which| planes.iter().any(|plane| self.may_begin(plane, which));
        let is_due = planes.iter().any(|plane| plane.is_due() && self.may_begin(plane, Which::Debt));
        let pays = is_due || !any(Which::Front) && any(Which::Debt);
        let which = if pays { Which::Debt } else { Which::Front };
        let first = |plane: &Plane| plane.first(which).copied().filter(|_| self.may_begin(plane, which));
        (which, planes.iter().map(first).collect())
    }

    /// Takes the first operations of some planes' queues.
    fn take(&mut self, number: u32, taken: impl IntoIterator<Item = (usize, Which)>) -> Ops {
        let (mut ops, mut together) = (Ops::new(), 0);
        for (plane, which) in taken {
            together += 1;
            while let Some(taken) = self.arrays[number as usize].planes[plane].take(which) {
                self.count(&taken, which, -1);
                ops.push(taken);
                if !self.goes_on(number, plane, which, &taken) {
                    break;
                }
            }
        }
        self.stats.multi_plane += u64::from(together > 1);
        ops
    }

    /// Whether what comes next on a plane is programmed by the same command, as a page of the same word line.
    fn goes_on(&self, number: u32, plane: usize, which: Which, taken: &Queued) -> bool {
        let plane = &self.arrays[number as usize].planes[plane];
        let is_next = |next: &Queued| {
            next.kind() == taken.kind()
                && next.place().0 == taken.place().0
                && self.timing.word_line_of(next.cells()) == self.timing.word_line_of(taken.cells())
        };
        let programs = matches!(taken.kind(), OpKind::Program | OpKind::Copy);
        programs
            && self.timing.word_line > 1
            && plane.first(which).is_some_and(is_next)
            && self.may_begin(plane, which)
    }

    /// Takes the channel of an array for `len` ns, not before `from`; the end of that.
    fn transfer(&mut self, array: u32, from: u64, len: u64) -> u64 {
        if len == 0 {
            return from;
        }
        let channel = array as usize % self.channels.len();
        self.channels[channel].take(from, len) + len
    }

    /// Begins a command at `at`, when the array is free.
    fn begin(&mut self, number: u32, at: u64, ops: Ops) {
        let kind = ops.first().map_or(OpKind::Read, Queued::kind);
        let overlap = self.overlap(number, at, kind, &ops);
        let (begin, works_from, end) = match kind {
            OpKind::Read => self.time_read(number, (at, overlap), &ops, self.timing.page_transfer),
            OpKind::ReadSpare => self.time_read(number, (at, overlap), &ops, self.timing.spare_transfer),
            OpKind::Program => self.time_program(number, (at, overlap), &ops),
            OpKind::Erase => {
                let told = ops.iter().fold(at, |told, _| self.transfer(number, told, self.timing.command));
                (at, told, told + self.timing.erase)
            }
            OpKind::Copy => self.time_copy(number, at, &ops),
        };
        let array = &mut self.arrays[number as usize];
        array.epoch = array.epoch.wrapping_add(1);
        array.last = Some(Last { kind, works_from, end });
        self.events.push(Reverse((end, number, array.epoch)));
        array.current = Some(Command { ops, begin, works_from, end, suspends: 0, is_watched: false });
    }

    /// The instant from which on the transfer of a command can overlap with the work of the one before; `at` if it can
    /// not.
    fn overlap(&self, number: u32, at: u64, kind: OpKind, ops: &Ops) -> u64 {
        let last = self.arrays[number as usize].last;
        let overlaps = |last: &Last| {
            self.cached_commands
                && last.kind == kind
                && last.end == at
                && ops.iter().all(|queued| queued.at <= last.works_from)
        };
        last.filter(overlaps).map_or(at, |last| last.works_from)
    }

    /// Command, array to register, then the bus: of planes together all at once, and one after the other on the bus.
    fn time_read(&mut self, number: u32, (at, overlap): (u64, u64), ops: &Ops, bus: u64) -> (u64, u64, u64) {
        let (mut told, mut sensed) = (overlap, overlap);
        for queued in ops {
            told = self.transfer(number, told, self.timing.command);
            sensed = sensed.max(told + self.timing.read(queued.cells()));
        }
        let end = ops.iter().fold(sensed.max(at), |end, _| self.transfer(number, end, bus));
        (at, sensed, end)
    }

    /// The bus, then the array.
    fn time_program(&mut self, number: u32, (at, overlap): (u64, u64), ops: &Ops) -> (u64, u64, u64) {
        let bus = self.timing.command + self.timing.page_transfer;
        let mut begin = None;
        let mut told = overlap;
        for _ in ops {
            told = self.transfer(number, told, bus);
            begin.get_or_insert(told - bus);
        }
        let works_from = told.max(at);
        let longest = ops.iter().map(|queued| self.timing.program(queued.cells())).max().unwrap_or(0);
        (begin.unwrap_or(at).max(at), works_from, works_from + longest)
    }

    fn time_copy(&mut self, number: u32, at: u64, ops: &Ops) -> (u64, u64, u64) {
        let unit = |block| self.geometry.unit_of(block);
        let is_within = |queued: &Queued| unit(queued.op.from.0) == unit(queued.op.block);
        let program = ops.iter().map(|queued| self.timing.program(queued.cells())).max().unwrap_or(0);
        // A plane reads one page after the other.
        let on_plane = |plane| {
            let read_there = ops.iter().filter(move |queued| unit(queued.op.from.0) == plane);
            read_there.map(|queued| self.timing.read(queued.source_cells())).sum::<u64>()
        };
        let read = ops.iter().map(|queued| on_plane(unit(queued.op.from.0))).max().unwrap_or(0);
        if ops.iter().all(is_within) && self.timing.copies_back() {
            let works_from = at + 2 * self.timing.command + read;
            let before = ops.first().map_or(0, |queued| u64::from(queued.op.pages) - 1);
            return (at, works_from, works_from + program + before * (works_from + program - at));
        }
        let bus = self.timing.command + self.timing.page_transfer;
        let told = ops.iter().fold(at, |told, _| self.transfer(number, told, self.timing.command));
        let out =
            ops.iter().fold(told + read, |out, _| self.transfer(number, out, self.timing.page_transfer));
        let works_from = ops.iter().fold(out, |into, _| self.transfer(number, into, bus));
        (at, works_from, works_from + program)
    }

    /// An operation is done: those who wait for it go on.
    fn finish(&mut self, key: u64, at: u64) {
        if self.awaited.is_empty() {
            return;
        }
        let Some(awaited) = self.awaited.remove(&key) else { return };
        if awaited.is_watched {
            self.finished.push_back((key, Time(at)));
        }
        for queued in awaited.reads {
            self.place(Queued { after: 0, at, ..queued });
        }
        self.touched.extend(awaited.arrays);
    }
}
