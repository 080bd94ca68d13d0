//! Tide: what leaves is what a rising level of costs reaches first. Our own policy.
//!
//! **Problem.** Writing n dirty pages of an erase block to an SSD costs n page writes and, sooner or later, one merge
//! of that block, whatever n is. So dirty pages should leave by block, with as many neighbours as will still come, and
//! the memory for that is worth far more than the memory for clean pages, which cost one page read to get back. FAB
//! takes the fullest block and is stuck with old small ones; BPLRU and WOW go by age alone; CSWLRU keeps clean pages for
//! their position and clusters all dirty pages again and again.
//!
//! **Answer.** Everything that can leave has a height: the level at its last use plus what it costs to let go of each
//! of its pages. The lowest leaves, and the level rises to its height (GreedyDual, with an erase block as the thing that
//! is kept).
//!
//! - A clean page: level at its last read + `read`.
//! - A block with n dirty pages: level at its last write + `write` + `merge` / n. A fuller block is lower, an
//!   older one too.
//! - A block that was written in order from its first page to its last is complete: nothing more will join it. Its
//!   height is the level at that moment, and the last one completed goes first, so that of a stream larger than
//!   the cache a part stays.
//!
//! A block that leaves is written in one go, ascending; its pages, now clean, are the next to be dropped, oldest first,
//! unless they are used before their turn. A block that is at least `pad` full is filled up from the device first: at
//! three quarters the missing pages cost less than the merge they spare, where there are merges, and at most a third
//! more page writes where there are none.
//!
//! A flush writes all blocks in a sweep over the device, filled up in the same way. Where a file system writes the same
//! blocks before each of its flushes, sweeps in one direction are the worst order for a layer that gives the written
//! blocks a few log blocks and takes them away from those not written for longest: each block loses its log block just
//! before it is written again. So a sweep goes back the way the last one came, and begins with what is still in the log.
//! Blocks that follow each other without a gap keep their order, since a stream backwards is no stream. A sweep of no
//! more than `turn` blocks, which are in the log at once, ascends.
//!
//! A page read while dirty, or written while clean, is not worth more for it: only what a miss would cost counts.
//!
//! Cost: O(1) an access. The clean list, and the blocks with n dirty pages, are each in order by themselves, because the
//! level never falls; so the lowest is the lowest of their ends: one look for each n that occurs, at most the pages of
//! an erase block, for each block written. Source: GreedyDual is Young 1991, with sizes Cao and Irani 1997; completed
//! blocks are BPLRU's compensation (Kim and Ahn 2008).

use super::kit::*;
use super::plan_whole;

/// Tide in the registry.
pub const ENTRY: Entry = Entry {
    name: "tide",
    about: "erase blocks and clean pages leave as a rising level of costs reaches them",
    options: &[
        OptionSpec::new("read", "1", "cost of a page read"),
        OptionSpec::new("write", "8", "cost of a page write"),
        OptionSpec::new("merge", "auto", "cost of a merge; auto: a read and a write a page of a block"),
        OptionSpec::new(
            "pad",
            "3/4",
            "how full a block must be (0 to 1) to be filled up from the device, or no",
        ),
        OptionSpec::new(
            "turn",
            "8",
            "a sync of more blocks than this goes the other way than the last such one",
        ),
    ],
    make: Make { source: "bimetal", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let config = order.config();
    let (read, write) = (order.fraction("read")?, order.fraction("write")?);
    let merge = match order.text("merge") {
        "auto" => f64::from(config.block_pages) * (read + write),
        _ => order.fraction("merge")?,
    };
    let pad = match order.text("pad") {
        "no" => None,
        _ => Some((f64::from(config.block_pages) * order.fraction_to("pad", 1.0)?).ceil() as u32),
    };
    let turn = order.number::<u32>("turn")?;
    let counts = config.block_pages + 1;
    let mut blocks = Blocks::<X>::new(config, counts + 1);
    let by_count = (0..counts).map(|count| blocks.list(count)).collect();
    let complete = blocks.list(counts);
    order.cache::<X, _>(Needs::lists(2), |pages| Tide {
        level: 0.0,
        costs: Costs { read, write, merge },
        clean: pages.list(0),
        leaving: pages.list(1),
        page_levels: vec![0.0; pages.node_count()],
        block_levels: vec![0.0; blocks.node_count()],
        occupied: vec![0; counts.div_ceil(64) as usize],
        blocks,
        by_count,
        complete,
        written: None,
        pad,
        turn: turn as usize,
        descends: true,
        end: config.space.unwrap_or(u64::MAX),
    })
}

/// Where a page is: its tag.
const CLEAN: u32 = 0;
const LEAVING: u32 = 1;
const DIRTY: u32 = 2;

/// Tag of a block that was written whole and in order. Other tags are the offset that goes on in order.
const COMPLETE: u32 = u32::MAX;
/// Tag of a block that was written out of order.
const OUT_OF_ORDER: u32 = COMPLETE - 1;

/// Costs, in any one unit.
struct Costs {
    read: f64,
    write: f64,
    merge: f64,
}

struct Tide<X> {
    level: f64,
    costs: Costs,
    /// Clean pages by their last use.
    clean: List,
    /// Pages of blocks that were written to make room; dropped next.
    leaving: List,
    /// The level at the last use of a clean page.
    page_levels: Vec<f64>,
    /// The level at the last write to a block.
    block_levels: Vec<f64>,
    /// The dirty pages.
    blocks: Blocks<X>,
    /// The blocks with so many dirty pages, by their last write.
    by_count: Vec<List>,
    /// A bit for each list of `by_count` that is not empty.
    occupied: Vec<u64>,
    /// The complete blocks.
    complete: List,
    /// The block that is being written to make room.
    written: Option<u64>,
    pad: Option<u32>,
    /// The most blocks of a sweep that always ascends.
    turn: usize,
    /// Whether the last of the other sweeps descended; true before the first, so that it ascends.
    descends: bool,
    /// The device's size in pages.
    end: u64,
}

impl<X: Index> Tide<X> {
    /// Takes a block off its list.
    fn unlist(&mut self, block: u32) {
        if self.blocks.tag(block) == COMPLETE {
            return self.complete.remove(&mut self.blocks, block);
        }
        let count = self.blocks.members(block) as usize;
        self.by_count[count].remove(&mut self.blocks, block);
        if self.by_count[count].is_empty() {
            self.occupied[count / 64] &= !(1 << (count % 64));
        }
    }

    /// Puts a block that was just written on its list.
    fn list_front(&mut self, block: u32) {
        self.block_levels[block as usize] = self.level;
        if self.blocks.tag(block) == COMPLETE {
            return self.complete.push_front(&mut self.blocks, block);
        }
        let count = self.blocks.members(block) as usize;
        self.by_count[count].push_front(&mut self.blocks, block);
        self.occupied[count / 64] |= 1 << (count % 64);
    }

    /// Puts a block that lost a page on its list, as one of those to leave first.
    fn list_back(&mut self, block: u32) {
        let count = self.blocks.members(block) as usize;
        self.by_count[count].push_back(&mut self.blocks, block);
        self.occupied[count / 64] |= 1 << (count % 64);
    }

    /// Follows whether a block is being written in order.
    fn follow(&mut self, block: u32, page: u64) {
        let geometry = self.blocks.geometry();
        let offset = geometry.offset(page);
        let next = match self.blocks.tag(block) {
            _ if offset == 0 => 1,
            next if next == offset => offset + 1,
            _ => OUT_OF_ORDER,
        };
        let is_complete = next == geometry.pages() && self.blocks.members(block) == next;
        self.blocks.set_tag(block, if is_complete { COMPLETE } else { next });
    }

    /// A page becomes dirty: it joins its block.
    fn join(&mut self, pages: &mut Pages<X>, node: u32) {
        pages.set_tag(node, DIRTY);
        let page = pages.page(node);
        let known = self.blocks.find_page(page);
        if known != NIL {
            self.unlist(known);
        }
        let (block, is_new) = self.blocks.enter(page);
        if is_new && block as usize >= self.block_levels.len() {
            self.block_levels.resize(self.blocks.node_count(), 0.0);
        }
        self.follow(block, page);
        self.list_front(block);
    }

    /// A page is dirty no more: it leaves its block.
    fn part(&mut self, page: u64) {
        let block = self.blocks.find_page(page);
        self.unlist(block);
        let (_, left) = self.blocks.exit(page);
        if left == 0 {
            return self.blocks.free(block);
        }
        self.blocks.set_tag(block, OUT_OF_ORDER);
        self.list_back(block);
    }

    fn enter_clean(&mut self, pages: &mut Pages<X>, node: u32) {
        pages.set_tag(node, CLEAN);
        self.page_levels[node as usize] = self.level;
        self.clean.push_front(pages, node);
    }

    /// The lowest dirty block and its height.
    fn lowest_block(&self) -> Option<(u32, f64)> {
        let complete = self.complete.front(&self.blocks);
        let mut lowest = (complete != NIL).then(|| (complete, self.block_levels[complete as usize]));
        for (word, &bits) in self.occupied.iter().enumerate() {
            let mut rest = bits;
            while rest != 0 {
                let count = word * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let block = self.by_count[count].back(&self.blocks);
                let cost = self.costs.write + self.costs.merge / count as f64;
                let height = self.block_levels[block as usize] + cost;
                if lowest.is_none_or(|(_, low)| height < low) {
                    lowest = Some((block, height));
                }
            }
        }
        lowest
    }

    /// Whether dirty pages go on from the end of one block into another.
    fn goes_on(&self, block: u32, next: u32) -> bool {
        let geometry = self.blocks.geometry();
        let border = geometry.first(self.blocks.number(next));
        geometry.first(self.blocks.number(block)) + u64::from(geometry.pages()) == border
            && self.blocks.has(border - 1)
            && self.blocks.has(border)
    }

    /// All dirty blocks in the order of this sweep.
    fn sweep(&mut self) -> Vec<u32> {
        let lists = self.by_count.iter().chain([&self.complete]);
        let mut blocks: Vec<u32> = lists.flat_map(|list| list.nodes(&self.blocks)).collect();
        blocks.sort_unstable_by_key(|&block| self.blocks.number(block));
        if blocks.len() <= self.turn {
            return blocks;
        }
        self.descends = !self.descends;
        match self.descends {
            true => blocks.chunk_by(|&a, &b| self.goes_on(a, b)).rev().flatten().copied().collect(),
            false => blocks,
        }
    }

    /// Plans the writing of a block, filled up if it is full enough.
    fn plan_block(&self, pages: &Pages<X>, block: u32, plan: &mut Plan) {
        let geometry = self.blocks.geometry();
        let number = self.blocks.number(block);
        if self.pad.is_some_and(|from| self.blocks.members(block) >= from) {
            let first = geometry.first(number);
            plan_whole(pages, plan, first..(first + u64::from(geometry.pages())).min(self.end));
        } else {
            for page in self.blocks.pages(block) {
                plan.write_page(pages, pages.find(page));
            }
        }
    }
}

impl<X: Index> Policy<X> for Tide<X> {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, _: bool) {
        match (pages.tag(node), access) {
            (DIRTY, Access::Read) => return,
            (DIRTY, Access::Write) => {
                let page = pages.page(node);
                let block = self.blocks.find_page(page);
                self.unlist(block);
                self.follow(block, page);
                return self.list_front(block);
            }
            (CLEAN, _) => self.clean.remove(pages, node),
            _ => self.leaving.remove(pages, node),
        }
        match access {
            Access::Read => self.enter_clean(pages, node),
            Access::Write => self.join(pages, node),
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, plan: &mut Plan) -> Room {
        self.written = None;
        let next = self.leaving.back(pages);
        if next != NIL {
            return Room::Drop(next);
        }
        let clean = self.clean.back(pages);
        let clean_height = match clean {
            NIL => f64::INFINITY,
            _ => self.page_levels[clean as usize] + self.costs.read,
        };
        match self.lowest_block() {
            Some((block, height)) if height < clean_height => {
                self.level = self.level.max(height);
                self.written = Some(self.blocks.number(block));
                self.plan_block(pages, block, plan);
                Room::Planned
            }
            _ => {
                self.level = self.level.max(clean_height);
                Room::Drop(clean)
            }
        }
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, access: Access) {
        match access {
            Access::Read => self.enter_clean(pages, node),
            Access::Write => self.join(pages, node),
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        match pages.tag(node) {
            CLEAN => self.clean.remove(pages, node),
            LEAVING => self.leaving.remove(pages, node),
            _ => self.part(pages.page(node)),
        }
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        let page = pages.page(node);
        self.part(page);
        if self.written == Some(self.blocks.geometry().block(page)) {
            pages.set_tag(node, LEAVING);
            self.leaving.push_front(pages, node);
        } else {
            self.enter_clean(pages, node);
        }
    }

    fn write_back(&mut self, pages: &mut Pages<X>, plan: &mut Plan) -> bool {
        self.written = None;
        for block in self.sweep() {
            self.plan_block(pages, block, plan);
        }
        true
    }

    fn bytes(&self) -> usize {
        self.blocks.bytes() + (self.page_levels.len() + self.block_levels.len()) * size_of::<f64>()
    }
}
