//! Counting models of three flash translation layers, for comparing caches: no contents, only merges, copies,
//! erases and time. The device starts full: every page has been written once, in order.
//!
//! Time is that of one flash chip doing one thing after the other: 25 µs a page read, 200 µs a page program,
//! 1500 µs an erase (the Microsoft extension of DiskSim).

use bimetal::Result;
use bimetal::cache::Below;
use bimetal::time::Time;
use bimetal::units::Lpn;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// What a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub host_reads: u64,
    pub host_writes: u64,
    pub copies: u64,
    pub erases: u64,
    pub switch_merges: u64,
    pub partial_merges: u64,
    pub full_merges: u64,
}

impl Done {
    /// Microseconds the chip was busy.
    pub fn busy_us(&self) -> u64 {
        25 * (self.host_reads + self.copies) + 200 * (self.host_writes + self.copies) + 1500 * self.erases
    }
}

/// How a layer takes the write of one page.
pub trait Layer {
    fn write(&mut self, page: u64, done: &mut Done);
}

/// A device: a layer and its counts.
pub struct Flash<L> {
    pub layer: L,
    pub done: Done,
}

impl<L: Layer> Flash<L> {
    pub fn new(layer: L) -> Flash<L> {
        Flash { layer, done: Done::default() }
    }

    fn timed(&mut self, at: Time, work: impl FnOnce(&mut Self)) -> Result<Time> {
        let before = self.done.busy_us();
        work(self);
        Ok(at + Duration::from_micros(self.done.busy_us() - before))
    }
}

impl<L: Layer> Below for Flash<L> {
    fn read(&mut self, at: Time, _: Lpn, count: u32) -> Result<Time> {
        self.timed(at, |flash| flash.done.host_reads += u64::from(count))
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32) -> Result<Time> {
        self.timed(at, |flash| {
            for page in first.0..first.0 + u64::from(count) {
                flash.done.host_writes += 1;
                flash.layer.write(page, &mut flash.done);
            }
        })
    }
}

/// BAST (Kim et al. 2002): each logical block that is being written has a log block of its own; the oldest of `logs`
/// is merged when another is needed, a full one at once.
pub struct Bast {
    block: u64,
    logs: usize,
    order: VecDeque<u64>,
    open: HashMap<u64, Vec<u64>>,
}

impl Bast {
    pub fn new(block: u64, logs: usize) -> Bast {
        Bast { block, logs, order: VecDeque::new(), open: HashMap::new() }
    }

    fn merge(&mut self, number: u64, done: &mut Done) {
        let log = self.open.remove(&number).expect("an open log");
        self.order.retain(|&other| other != number);
        let in_order = log.iter().enumerate().all(|(at, &offset)| offset == at as u64);
        if in_order && log.len() as u64 == self.block {
            done.switch_merges += 1;
            done.erases += 1;
        } else if in_order {
            done.partial_merges += 1;
            done.copies += self.block - log.len() as u64;
            done.erases += 1;
        } else {
            done.full_merges += 1;
            done.copies += self.block;
            done.erases += 2;
        }
    }
}

impl Layer for Bast {
    fn write(&mut self, page: u64, done: &mut Done) {
        let (number, offset) = (page / self.block, page % self.block);
        if !self.open.contains_key(&number) {
            if self.order.len() == self.logs {
                self.merge(self.order[0], done);
            }
            self.order.push_back(number);
        }
        let log = self.open.entry(number).or_default();
        log.push(offset);
        if log.len() as u64 == self.block {
            self.merge(number, done);
        }
    }
}

/// FAST (Lee et al. 2007): one log block for a sequential stream, `logs` - 1 shared by everything else.
pub struct Fast {
    block: u64,
    logs: usize,
    /// Owner and next offset of the sequential log block.
    stream: Option<(u64, u64)>,
    /// The random log blocks by age, each the pages written to it in order.
    random: VecDeque<(u64, Vec<u64>)>,
    /// The random log block that holds the newest copy of a page, by its serial number.
    newest: BTreeMap<u64, u64>,
    serial: u64,
}

impl Fast {
    pub fn new(block: u64, logs: usize) -> Fast {
        let (random, newest) = (VecDeque::new(), BTreeMap::new());
        Fast { block, logs, stream: None, random, newest, serial: 0 }
    }

    /// Takes the pages of block `number` from offset `from` on out of the random logs.
    fn forget(&mut self, number: u64, from: u64) {
        let range = number * self.block + from..(number + 1) * self.block;
        let pages: Vec<u64> = self.newest.range(range).map(|(&page, _)| page).collect();
        for page in pages {
            self.newest.remove(&page);
        }
    }

    fn close_stream(&mut self, done: &mut Done) {
        let Some((owner, next)) = self.stream.take() else { return };
        done.erases += 1;
        if next == self.block {
            done.switch_merges += 1;
        } else {
            // Newer copies of the pages before `next` stay in the random logs.
            done.partial_merges += 1;
            done.copies += self.block - next;
            self.forget(owner, next);
        }
    }

    /// Gathers all newest copies of block `number` in a fresh block.
    fn merge_block(&mut self, number: u64, done: &mut Done) {
        done.full_merges += 1;
        done.copies += self.block;
        done.erases += 1;
        self.forget(number, 0);
        if self.stream.is_some_and(|(owner, _)| owner == number) {
            self.stream = None;
            done.erases += 1;
        }
    }

    fn write_random(&mut self, page: u64, done: &mut Done) {
        let full = self.random.back().is_none_or(|(_, pages)| pages.len() as u64 == self.block);
        if full {
            if self.random.len() == self.logs - 1 {
                let (serial, pages) = self.random.pop_front().expect("a log block");
                let valid = pages.iter().filter(|page| self.newest.get(page) == Some(&serial));
                let numbers: BTreeSet<u64> = valid.map(|page| page / self.block).collect();
                for number in numbers {
                    self.merge_block(number, done);
                }
                done.erases += 1;
            }
            self.serial += 1;
            self.random.push_back((self.serial, Vec::new()));
        }
        self.newest.insert(page, self.serial);
        self.random.back_mut().expect("just made").1.push(page);
    }
}

impl Layer for Fast {
    fn write(&mut self, page: u64, done: &mut Done) {
        let (number, offset) = (page / self.block, page % self.block);
        let goes_on = self.stream == Some((number, offset));
        if offset == 0 {
            self.close_stream(done);
        } else if !goes_on {
            return self.write_random(page, done);
        }
        self.newest.remove(&page);
        self.stream = Some((number, offset + 1));
        if offset + 1 == self.block {
            self.close_stream(done);
        }
    }
}

/// A page map with greedy cleaning and `spare` blocks beyond the logical ones.
pub struct PageMap {
    block: u64,
    place: Vec<u32>,
    valid: Vec<u32>,
    owner: Vec<u64>,
    by_valid: BTreeSet<(u32, u32)>,
    free: Vec<u32>,
    open: Option<u32>,
    next: u64,
}

const NOWHERE: u32 = u32::MAX;

impl PageMap {
    pub fn new(block: u64, logical: u64, spare: u64) -> PageMap {
        let blocks = logical + spare;
        let mut map = PageMap {
            block,
            place: vec![NOWHERE; (logical * block) as usize],
            valid: vec![0; blocks as usize],
            owner: vec![u64::MAX; (blocks * block) as usize],
            by_valid: BTreeSet::new(),
            free: (0..blocks as u32).rev().collect(),
            open: None,
            next: block,
        };
        let mut ignored = Done::default();
        for page in 0..logical * block {
            map.write(page, &mut ignored);
        }
        map
    }

    fn append(&mut self, page: u64) {
        if self.next == self.block {
            if let Some(full) = self.open {
                self.by_valid.insert((self.valid[full as usize], full));
            }
            self.open = self.free.pop();
            self.next = 0;
        }
        let open = self.open.expect("cleaning keeps a block free");
        let at = u64::from(open) * self.block + self.next;
        self.next += 1;
        self.owner[at as usize] = page;
        self.place[page as usize] = at as u32;
        self.valid[open as usize] += 1;
    }

    fn invalidate(&mut self, page: u64) {
        let old = self.place[page as usize];
        if old == NOWHERE {
            return;
        }
        let block = (u64::from(old) / self.block) as u32;
        let was = self.valid[block as usize];
        self.valid[block as usize] -= 1;
        if self.by_valid.remove(&(was, block)) {
            self.by_valid.insert((was - 1, block));
        }
        self.owner[old as usize] = u64::MAX;
    }

    fn clean(&mut self, done: &mut Done) {
        let (valid, victim) = self.by_valid.pop_first().expect("a block to clean");
        let start = u64::from(victim) * self.block;
        let pages: Vec<u64> = (start..start + self.block)
            .map(|at| self.owner[at as usize])
            .filter(|&page| page != u64::MAX)
            .collect();
        assert_eq!(pages.len() as u32, valid);
        self.valid[victim as usize] = 0;
        for page in pages {
            done.copies += 1;
            self.append(page);
        }
        self.owner[start as usize..(start + self.block) as usize].fill(u64::MAX);
        done.erases += 1;
        self.free.push(victim);
    }
}

impl Layer for PageMap {
    fn write(&mut self, page: u64, done: &mut Done) {
        while self.next == self.block && self.free.len() < 2 {
            self.clean(done);
        }
        self.invalidate(page);
        self.append(page);
    }
}
