//! The engine: one policy and one index, compiled together, behind [`PageCache`].
//!
//! The order of what reaches the device is fixed: room is made before a page comes in, and a missed page is
//! fetched last. Within a plan, gaps are read first, then the writes go out together, then pages leave. A
//! request that misses therefore waits for the write-back it causes, as in a cache without a spare page.
//!
//! Batches ([`PageCache::run`]) look 32 accesses ahead: with each access that is served the index entry of a later one,
//! the node of one not so late, and the neighbours of the node of one still nearer are loaded, so that cache misses of
//! the processor overlap with the work between. A look-up so made early is only a hint; it is compared with the page
//! before it is believed.
//!
//! Cost: O(1) an access beside the policy's own; a sync sorts the dirty pages.

use super::index::{Index, NIL};
use super::pages::{PAGE_MAX, Pages};
use super::policy::{Access, Afterlife, Leaving, Needs, Outgoing, Plan, Policy, Room, Touches};
use super::{Below, Config, PageAccess, PageCache, PageRequest, Resident, Stats, View};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use std::mem;

/// How many accesses ahead the index is looked at.
const LOOK_AHEAD: usize = 32;

/// How many accesses ahead a node is loaded, and its neighbours.
const NODE_AHEAD: usize = 16;
const NEIGHBOURS_AHEAD: usize = 8;

/// The smallest read-ahead window, in pages.
const READ_AHEAD_MIN: u32 = 4;

/// A cache under policy `P`, indexed by `X`.
pub(super) struct Engine<P, X> {
    name: String,
    config: Config,
    pages: Pages<X>,
    policy: P,
    plan: Plan,
    stats: Stats,
    /// What is written now was asked for by a sync, or is old.
    syncing: bool,
    /// When pages that have been dirty for too long are looked for again.
    next_tick: Time,
    reader: Reader,
    /// Pages of the request being served that came in and are not fetched yet: first and count.
    unfetched: (u64, u32),
}

/// The one sequential reader that is followed.
#[derive(Default)]
struct Reader {
    next: u64,
    window: u32,
}

/// A page that is not resident and asked for.
#[derive(Clone, Copy)]
struct Miss {
    page: u64,
    /// The node of its ghost, or [`NIL`].
    ghost: u32,
    access: Access,
}

impl<P: Policy<X>, X: Index> Engine<P, X> {
    pub(super) fn new(
        name: String,
        config: &Config,
        needs: Needs,
        make: impl FnOnce(&mut Pages<X>) -> P,
    ) -> Engine<P, X> {
        let mut pages = Pages::new(config.capacity, needs.ghosts, needs.lists, config.space);
        let policy = make(&mut pages);
        Engine {
            name,
            config: config.clone(),
            pages,
            policy,
            plan: Plan::default(),
            stats: Stats::default(),
            syncing: false,
            next_tick: config.dirty_age.map_or(Time(u64::MAX), |_| Time::ZERO),
            reader: Reader::default(),
            unfetched: (0, 0),
        }
    }

    /// Serves a hit. Otherwise the node of the page's ghost, or [`NIL`] if it has none.
    #[inline(always)]
    fn try_hit(&mut self, at: Time, page: u64, access: Access, hint: u32) -> Result<(), u32> {
        let node = if self.pages.holds(hint, page) { hint } else { self.pages.find(page) };
        if !self.pages.is_resident(node) {
            return Err(node);
        }
        let was_dirty = match access {
            Access::Read => {
                self.stats.read_hits += 1;
                self.pages.is_dirty(node)
            }
            Access::Write => {
                self.stats.write_hits += 1;
                !self.pages.soil(node, at)
            }
        };
        self.policy.hit(&mut self.pages, node, access, was_dirty);
        Ok(())
    }

    /// Counts a miss and brings the page in, as far as the policy keeps it; its contents are not read.
    #[inline(never)]
    fn miss(&mut self, at: Time, miss: Miss, below: &mut dyn Below) -> Result<Time> {
        match miss.access {
            Access::Read => self.stats.read_misses += 1,
            Access::Write => self.stats.write_misses += 1,
        }
        if miss.access == Access::Read && !self.policy.keeps_reads() {
            return Ok(at);
        }
        self.bring_in(at, miss, below)
    }

    #[inline(always)]
    fn bring_in(&mut self, at: Time, miss: Miss, below: &mut dyn Below) -> Result<Time> {
        self.policy.miss(&mut self.pages, miss.ghost);
        let mut at = at;
        while self.pages.is_full() {
            match self.make_room(at, miss.page, below) {
                Ok(done) => at = done,
                Err(error) => {
                    self.pages.forget(miss.ghost);
                    return Err(error);
                }
            }
        }
        self.admit(at, miss);
        Ok(at)
    }

    /// A page comes in, for which there is room.
    #[inline(always)]
    fn admit(&mut self, at: Time, miss: Miss) {
        let node = self.pages.admit(miss.page, miss.ghost);
        if miss.access == Access::Write {
            self.pages.soil(node, at);
        }
        self.policy.insert(&mut self.pages, node, miss.access);
    }

    #[inline(always)]
    fn make_room(&mut self, at: Time, page: u64, below: &mut dyn Below) -> Result<Time> {
        match self.policy.make_room(&mut self.pages, page, &mut self.plan) {
            Room::Drop(node) => self.evict(at, node, below),
            Room::Planned => {
                let before = (self.pages.resident(), self.pages.dirty_count());
                let at = self.execute(at, below)?;
                let after = (self.pages.resident(), self.pages.dirty_count());
                assert!(after < before, "{}: a plan made no page leave or clean", self.name);
                Ok(at)
            }
        }
    }

    #[inline(always)]
    fn evict(&mut self, at: Time, node: u32, below: &mut dyn Below) -> Result<Time> {
        let mut done = at;
        if self.pages.is_dirty(node) {
            done = self.write_below(at, self.pages.page(node), 1, below)?;
            self.pages.clean(node);
            self.stats.dirty_evictions += 1;
        } else {
            self.stats.clean_evictions += 1;
        }
        self.leave(node, Leaving::Evicted, below);
        Ok(done)
    }

    #[inline(always)]
    fn leave(&mut self, node: u32, why: Leaving, below: &mut dyn Below) {
        let afterlife = self.policy.remove(&mut self.pages, node, why);
        below.dropped(Lpn(self.pages.page(node)));
        if self.pages.is_dirty(node) {
            self.pages.clean(node);
        }
        self.pages.retire(node);
        if afterlife == Afterlife::Gone {
            self.pages.release(node);
        }
    }

    fn fetch(&mut self, at: Time, first: u64, count: u32, below: &mut dyn Below) -> Result<Time> {
        let done = below.read(at, Lpn(first), count)?;
        self.stats.pages_read += u64::from(count);
        self.stats.read_commands += 1;
        Ok(done)
    }

    /// A page that a read missed came in, or will not be kept: it is fetched with its neighbours.
    fn fetch_later(&mut self, page: u64) {
        let (first, count) = self.unfetched;
        self.unfetched = if count == 0 { (page, 1) } else { (first, count + 1) };
    }

    /// Fetches what this request brought in; it leaves again if that fails.
    #[inline(always)]
    fn fetch_now(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        let (first, count) = self.unfetched;
        if count == 0 {
            return Ok(at);
        }
        let done = self.fetch(at, first, count, below).inspect_err(|_| self.abandon(below))?;
        self.unfetched.1 = 0;
        Ok(done)
    }

    /// Lets pages go that this request brought in and whose contents will not come.
    fn abandon(&mut self, below: &mut dyn Below) {
        let (first, count) = mem::take(&mut self.unfetched);
        for page in first..first + u64::from(count) {
            let node = self.pages.find_resident(page);
            if node != NIL {
                self.leave(node, Leaving::Discarded, below);
            }
        }
    }

    /// Whether a plan writes pages whose contents are not there yet.
    fn needs_unfetched(&self, write: &[Outgoing]) -> bool {
        let (first, count) = self.unfetched;
        let range = first..first + u64::from(count);
        count > 0 && write.iter().any(|out| out.node != NIL && range.contains(&out.page))
    }

    fn write_below(&mut self, at: Time, first: u64, count: u32, below: &mut dyn Below) -> Result<Time> {
        let done = below.write(at, Lpn(first), count)?;
        self.stats.pages_written += u64::from(count);
        self.stats.write_commands += 1;
        Ok(done)
    }

    /// Does what the plan says.
    fn execute(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        let plan = mem::take(&mut self.plan);
        let result = self.execute_plan(at, &plan, below);
        self.plan = plan;
        self.plan.clear();
        result
    }

    fn execute_plan(&mut self, at: Time, plan: &Plan, below: &mut dyn Below) -> Result<Time> {
        let all = |stats: &Stats| (stats.pages_written, stats.dirty_evictions);
        let before = all(&self.stats);
        let result = self.carry_out(at, plan, below);
        let after = all(&self.stats);
        if !self.syncing {
            self.stats.pages_beside += (after.0 - before.0) - (after.1 - before.1);
        }
        result
    }

    fn carry_out(&mut self, at: Time, plan: &Plan, below: &mut dyn Below) -> Result<Time> {
        let at = if self.needs_unfetched(&plan.write) { self.fetch_now(at, below)? } else { at };
        // A gap that cannot be read must not keep back what is to be written: then the gaps stay.
        let padded = self.read_padding(at, &plan.write, below);
        let fills_gaps = padded.is_ok();
        let at = padded.unwrap_or(at);
        let dirty_leaving = plan.drop.iter().filter(|&&node| self.pages.is_dirty(node)).count() as u64;
        let mut at = self.write_runs(at, &plan.write, fills_gaps, below)?;
        let forgotten = plan.drop.iter().filter(|&&node| self.pages.is_dirty(node)).count() as u64;
        self.stats.dirty_evictions += dirty_leaving - forgotten;
        self.stats.clean_evictions += plan.drop.len() as u64 - dirty_leaving;
        for &node in &plan.drop {
            if self.pages.is_dirty(node) {
                at = self.evict(at, node, below)?;
            } else {
                self.leave(node, Leaving::Evicted, below);
            }
        }
        if fills_gaps { self.keep_fetched(at, plan, below) } else { Ok(at) }
    }

    fn read_padding(&mut self, at: Time, write: &[Outgoing], below: &mut dyn Below) -> Result<Time> {
        let mut done = at;
        for run in runs(write, |out| out.node == NIL) {
            done = done.max(self.fetch(at, run[0].page, run.len() as u32, below)?);
            self.stats.pages_padded += run.len() as u64;
        }
        Ok(done)
    }

    /// Writes what is to be written; the pages that were read to fill gaps only if `fills_gaps`.
    fn write_runs(
        &mut self,
        at: Time,
        write: &[Outgoing],
        fills_gaps: bool,
        below: &mut dyn Below,
    ) -> Result<Time> {
        let mut done = at;
        for run in runs(write, |out| fills_gaps || out.node != NIL) {
            done = done.max(self.write_below(at, run[0].page, run.len() as u32, below)?);
            for out in run {
                if self.pages.is_dirty(out.node) {
                    self.pages.clean(out.node);
                    self.policy.cleaned(&mut self.pages, out.node);
                }
            }
        }
        Ok(done)
    }

    fn keep_fetched(&mut self, at: Time, plan: &Plan, below: &mut dyn Below) -> Result<Time> {
        let mut done = at;
        for &page in &plan.fetch {
            if self.pages.is_full() || self.pages.find_resident(page) != NIL {
                continue;
            }
            if !plan.write.iter().any(|out| out.node == NIL && out.page == page) {
                done = done.max(self.fetch(at, page, 1, below)?);
            }
            let miss = Miss { page, ghost: self.pages.find(page), access: Access::Read };
            self.policy.miss(&mut self.pages, miss.ghost);
            self.admit(at, miss);
        }
        Ok(done)
    }

    /// Writes the dirty pages in `self.plan`, which are in any order.
    fn write_sorted(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        self.plan.write.sort_unstable_by_key(|out| out.page);
        self.execute(at, below)
    }

    fn write_everything(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        let mut at = at;
        loop {
            let before = self.pages.dirty_count();
            if before == 0 || !self.policy.write_back(&mut self.pages, &mut self.plan) {
                break;
            }
            at = self.execute(at, below)?;
            if self.pages.dirty_count() >= before {
                break;
            }
        }
        let mut node = self.pages.oldest_dirty();
        while node != NIL {
            self.plan.write_page(&self.pages, node);
            node = self.pages.next_dirty(node);
        }
        self.write_sorted(at, below)
    }

    /// Writes what has been dirty for too long.
    fn write_aged(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        let Some(age) = self.config.dirty_age else { return Ok(at) };
        self.next_tick = at + self.config.tick;
        let mut node = self.pages.oldest_dirty();
        while node != NIL && self.pages.dirty_since(node) + age <= at {
            self.plan.write_page(&self.pages, node);
            node = self.pages.next_dirty(node);
        }
        self.synced(|cache| cache.write_sorted(at, below))
    }

    /// Counts what `write` writes as asked for by a sync.
    fn synced(&mut self, write: impl FnOnce(&mut Self) -> Result<Time>) -> Result<Time> {
        let written = self.stats.pages_written;
        self.syncing = true;
        let result = write(self);
        self.syncing = false;
        self.stats.pages_synced += self.stats.pages_written - written;
        result
    }

    /// The background's turn: nobody waits for it, and its failures are nobody's: what it could not write stays dirty
    /// for the next flush to report.
    #[inline]
    fn background(&mut self, at: Time, below: &mut dyn Below) {
        if at >= self.next_tick {
            let _ = self.write_aged(at, below);
        }
    }

    /// Reads ahead of a reader that has just missed where it was expected. A failure is nobody's: the pages leave again.
    fn read_ahead(&mut self, at: Time, end: u64, below: &mut dyn Below) -> Time {
        let limit = self.config.read_ahead.min(self.pages.capacity() / 2);
        self.reader.window = (self.reader.window * 2).max(READ_AHEAD_MIN).min(limit);
        let stop =
            end.saturating_add(u64::from(self.reader.window)).min(self.config.space.unwrap_or(PAGE_MAX));
        let mut at = at;
        let mut page = end;
        while page < stop && self.pages.find_resident(page) == NIL {
            let miss = Miss { page, ghost: self.pages.find(page), access: Access::Read };
            match self.bring_in(at, miss, below) {
                Ok(done) => at = done,
                Err(_) => break,
            }
            self.fetch_later(page);
            page += 1;
        }
        let read = self.stats.pages_read;
        at = self.fetch_now(at, below).unwrap_or(at);
        self.stats.pages_read_ahead += self.stats.pages_read - read;
        at
    }

    /// Follows a read of `first` to `end` that missed or not; reads ahead if it goes on from the last one.
    fn follow(&mut self, at: Time, first: u64, end: u64, missed: bool, below: &mut dyn Below) -> Time {
        let goes_on = first == self.reader.next;
        self.reader.next = end;
        if !goes_on {
            self.reader.window = 0;
            return at;
        }
        if missed && self.policy.keeps_reads() { self.read_ahead(at, end, below) } else { at }
    }

    fn run_one(&mut self, at: Time, access: PageAccess, below: &mut dyn Below) -> Result<Time> {
        match access.access() {
            Access::Read => self.read(at, access.page(), 1, below),
            Access::Write => self.write(at, access.page(), 1, below),
        }
    }
}

/// The nodes that the next accesses of a batch may have.
struct Ahead {
    hints: [u32; LOOK_AHEAD],
    /// Made of everything that was loaded ahead: without a use, the compiler would leave the loads out.
    loaded: u64,
}

impl Ahead {
    fn new<X: Index>(pages: &Pages<X>, accesses: &[PageAccess]) -> Ahead {
        let mut hints = [NIL; LOOK_AHEAD];
        for (hint, access) in hints.iter_mut().zip(accesses) {
            *hint = pages.hint(access.page().0);
        }
        Ahead { hints, loaded: 0 }
    }

    /// The hint for the access at `place`; looks at those after it.
    #[inline(always)]
    fn step<P: Policy<X>, X: Index>(
        &mut self,
        pages: &Pages<X>,
        accesses: &[PageAccess],
        place: usize,
    ) -> u32 {
        let hint = self.hints[place % LOOK_AHEAD];
        if let Some(later) = accesses.get(place + LOOK_AHEAD) {
            self.hints[place % LOOK_AHEAD] = pages.hint(later.page().0);
        }
        self.loaded ^= pages.preload(self.hints[(place + NODE_AHEAD) % LOOK_AHEAD], P::TOUCHES);
        if P::TOUCHES == Touches::Neighbours {
            self.loaded ^= pages.preload_neighbours(self.hints[(place + NEIGHBOURS_AHEAD) % LOOK_AHEAD]);
        }
        hint
    }
}

/// Splits pages to write into runs of neighbours for which `takes` holds; the others are left out.
fn runs(write: &[Outgoing], takes: impl Fn(&Outgoing) -> bool + Copy) -> impl Iterator<Item = &[Outgoing]> {
    write.chunk_by(move |a, b| a.page + 1 == b.page && takes(a) == takes(b)).filter(move |run| takes(&run[0]))
}

fn check_range(first: Lpn, count: u32) -> Result<u64> {
    match first.0.checked_add(u64::from(count)) {
        Some(end) if end <= PAGE_MAX => Ok(end),
        _ => Err(Error::invalid(format!("pages {first} to {count} more are past the last page"))),
    }
}

impl<P: Policy<X>, X: Index> Engine<P, X> {
    fn read(&mut self, at: Time, first: Lpn, count: u32, below: &mut dyn Below) -> Result<Time> {
        let end = check_range(first, count)?;
        self.background(at, below);
        let mut at = at;
        let mut missed = false;
        for page in first.0..end {
            match self.try_hit(at, page, Access::Read, NIL) {
                Ok(()) => at = self.fetch_now(at, below)?,
                Err(ghost) => {
                    let room = self.miss(at, Miss { page, ghost, access: Access::Read }, below);
                    at = room.inspect_err(|_| self.abandon(below))?;
                    self.fetch_later(page);
                    missed = true;
                }
            }
        }
        at = self.fetch_now(at, below)?;
        if self.config.read_ahead > 0 {
            at = self.follow(at, first.0, end, missed, below);
        }
        Ok(at)
    }

    fn write(&mut self, at: Time, first: Lpn, count: u32, below: &mut dyn Below) -> Result<Time> {
        let end = check_range(first, count)?;
        self.background(at, below);
        let mut at = at;
        for page in first.0..end {
            if let Err(ghost) = self.try_hit(at, page, Access::Write, NIL) {
                at = self.miss(at, Miss { page, ghost, access: Access::Write }, below)?;
            }
        }
        Ok(at)
    }

    fn modify(&mut self, at: Time, page: Lpn, below: &mut dyn Below) -> Result<Time> {
        check_range(page, 1)?;
        self.background(at, below);
        let Err(ghost) = self.try_hit(at, page.0, Access::Write, NIL) else { return Ok(at) };
        let at = self.miss(at, Miss { page: page.0, ghost, access: Access::Write }, below)?;
        self.fetch_later(page.0);
        self.fetch_now(at, below)
    }

    fn write_out(&mut self, at: Time, first: Lpn, count: u32, below: &mut dyn Below) -> Result<Time> {
        let end = check_range(first, count)?;
        for node in self.pages.resident_within(first.0, end) {
            if self.pages.is_dirty(node) {
                self.plan.write_page(&self.pages, node);
            }
        }
        self.synced(|cache| cache.write_sorted(at, below))
    }

    fn sync(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        self.synced(|cache| cache.write_everything(at, below))
    }

    fn flush(&mut self, at: Time, below: &mut dyn Below) -> Result<Time> {
        let at = self.sync(at, below)?;
        self.stats.flushes += 1;
        below.flush(at)
    }

    fn discard(&mut self, at: Time, first: Lpn, count: u32, below: &mut dyn Below) -> Result<Time> {
        let end = check_range(first, count)?;
        for node in self.pages.resident_within(first.0, end) {
            self.leave(node, Leaving::Discarded, below);
        }
        below.discard(at, first, count)
    }
}

impl<P: Policy<X>, X: Index> PageCache for Engine<P, X> {
    fn serve(&mut self, at: Time, request: PageRequest, below: &mut dyn Below) -> Result<Time> {
        match request {
            PageRequest::Read(first, count) => self.read(at, first, count, below),
            PageRequest::Write(first, count) => self.write(at, first, count, below),
            PageRequest::Modify(page) => self.modify(at, page, below),
            PageRequest::WriteOut(first, count) => self.write_out(at, first, count, below),
            PageRequest::Discard(first, count) => self.discard(at, first, count, below),
            PageRequest::Sync => self.sync(at, below),
            PageRequest::Flush => self.flush(at, below),
            PageRequest::Tick => self.write_aged(at, below),
        }
    }

    fn run(&mut self, at: Time, accesses: &[PageAccess], below: &mut dyn Below) -> Result<Time> {
        let mut at = at;
        if self.config.read_ahead > 0 {
            for &access in accesses {
                at = self.run_one(at, access, below)?;
            }
            return Ok(at);
        }
        let mut ahead = Ahead::new(&self.pages, accesses);
        for (place, access) in accesses.iter().enumerate() {
            let hint = ahead.step::<P, X>(&self.pages, accesses, place);
            self.background(at, below);
            let (page, access) = (access.page().0, access.access());
            if let Err(ghost) = self.try_hit(at, page, access, hint) {
                at = self.miss(at, Miss { page, ghost, access }, below)?;
                if access == Access::Read {
                    self.unfetched = (page, 1);
                    at = self.fetch_now(at, below)?;
                }
            }
        }
        std::hint::black_box(ahead.loaded);
        Ok(at)
    }

    fn page(&self, page: Lpn) -> Option<Resident> {
        let node = self.pages.find_resident(page.0);
        (node != NIL).then(|| if self.pages.is_dirty(node) { Resident::Dirty } else { Resident::Clean })
    }

    fn view(&self) -> View<'_> {
        View {
            name: &self.name,
            capacity: self.pages.capacity(),
            resident: self.pages.resident(),
            dirty: self.pages.dirty_count(),
            stats: &self.stats,
            overhead_bytes: self.pages.bytes() + self.policy.bytes(),
        }
    }
}
