//! WOW: a write cache emptied in the order of addresses, sparing what was written again meanwhile.
//!
//! Written pages form groups (erase blocks here) on a ring sorted by address, each with a recency bit. A new
//! group's bit is clear; a write to a group that is there sets it, unless it goes on sequentially from the write
//! before. Room: the hand clears the bits it finds set and moves on; the first group with a clear bit is
//! written whole and leaves. Reads are served from the cache or the device and change nothing.
//!
//! Source: Gill and Modha, FAST'05 (their figure 4). `bits=no` ignores the bits: CSCAN. The paper destages
//! in the background between watermarks; here a group leaves when room is needed.
//! Cost: O(1) amortised with dense numbers, O(log n) with sparse ones.

use super::kit::*;

/// WOW in the registry.
pub const ENTRY: Entry = Entry {
    name: "wow",
    about: "a write cache emptied by address, with a recency bit a block",
    options: &[OptionSpec::new("bits", "yes", "no: ignore the recency bits (CSCAN)")],
    make: Make { source: "Gill and Modha, FAST 2005", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let uses_bits = order.flag("bits")?;
    let blocks = Blocks::<X>::new(order.config(), 0);
    order.cache::<X, _>(Needs::lists(0), |_| Wow {
        blocks,
        ring: X::Ordered::default(),
        hand: 0,
        last_written: u64::MAX,
        uses_bits,
    })
}

/// Tag of a group that was written again.
const RECENT: u32 = 1;

struct Wow<X: Index> {
    blocks: Blocks<X>,
    ring: X::Ordered,
    /// The next group to look at is the first from here on.
    hand: u64,
    last_written: u64,
    uses_bits: bool,
}

impl<X: Index> Wow<X> {
    /// The first group from the hand on whose bit is clear; the hand moves past it.
    fn victim(&mut self) -> u32 {
        loop {
            let number = self.ring.at_or_above(self.hand).or_else(|| self.ring.at_or_above(0));
            let number = number.expect("a full cache has a group");
            self.hand = number + 1;
            let block = self.blocks.find(number);
            if !self.uses_bits || self.blocks.tag(block) != RECENT {
                return block;
            }
            self.blocks.set_tag(block, 0);
        }
    }

    fn written(&mut self, block: u32, page: u64) {
        if page != self.last_written.wrapping_add(1) {
            self.blocks.set_tag(block, RECENT);
        }
    }
}

impl<X: Index> Policy<X> for Wow<X> {
    fn keeps_reads(&self) -> bool {
        false
    }

    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, _: bool) {
        if access == Access::Write {
            let page = pages.page(node);
            self.written(self.blocks.find_page(page), page);
            self.last_written = page;
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, plan: &mut Plan) -> Room {
        let block = self.victim();
        for page in self.blocks.pages(block) {
            let node = pages.find(page);
            if pages.is_dirty(node) {
                plan.write_page(pages, node);
            }
            plan.drop.push(node);
        }
        Room::Planned
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        let page = pages.page(node);
        let (block, is_new) = self.blocks.enter(page);
        if is_new {
            self.ring.add(self.blocks.number(block));
        } else {
            self.written(block, page);
        }
        self.last_written = page;
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        let (block, left) = self.blocks.exit(pages.page(node));
        if left == 0 {
            self.ring.take(self.blocks.number(block));
            self.blocks.free(block);
        }
        Afterlife::Gone
    }

    fn bytes(&self) -> usize {
        self.blocks.bytes()
    }
}
