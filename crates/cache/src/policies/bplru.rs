//! BPLRU: a write buffer of whole erase blocks, written out complete.
//!
//! - Reads are served from the buffer or the device and change nothing.
//! - A write makes its block the most recent one. A block whose pages have just been written in order from the
//!   first to the last is taken for a sequential stream and becomes the least recent one (LRU compensation).
//! - Room: the least recent block leaves. Its missing pages are read (page padding) and the whole block is
//!   written in one command, which a log-block translation layer turns into a switch merge.
//!
//! Source: Kim and Ahn, FAST'08. `padding=no` writes only what is dirty. Cost: O(1) an access, O(1) a page
//! written.

use super::kit::*;
use super::plan_whole;

/// BPLRU in the registry.
pub const ENTRY: Entry = Entry {
    name: "bplru",
    about: "a write buffer of erase blocks, padded to whole ones",
    options: &[OptionSpec::new("padding", "yes", "no: write only the dirty pages")],
    make: Make { source: "Kim and Ahn, FAST 2008", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let pads = order.flag("padding")?;
    let end = order.config().space.unwrap_or(u64::MAX);
    let mut blocks = Blocks::<X>::new(order.config(), 1);
    let list = blocks.list(0);
    order.cache::<X, _>(Needs::lists(0), |_| Bplru { blocks, list, pads, end })
}

/// Tag of a block that was not written in order.
const OUT_OF_ORDER: u32 = u32::MAX;

struct Bplru<X> {
    /// A block's tag is the offset that goes on in order.
    blocks: Blocks<X>,
    list: List,
    pads: bool,
    /// The device's size in pages.
    end: u64,
}

impl<X: Index> Bplru<X> {
    fn written(&mut self, block: u32, page: u64) {
        let geometry = self.blocks.geometry();
        let offset = geometry.offset(page);
        let next = match self.blocks.tag(block) {
            _ if offset == 0 => 1,
            next if next == offset => offset + 1,
            _ => OUT_OF_ORDER,
        };
        self.blocks.set_tag(block, next);
        if next == geometry.pages() {
            self.list.demote(&mut self.blocks, block);
        } else {
            self.list.touch(&mut self.blocks, block);
        }
    }
}

impl<X: Index> Policy<X> for Bplru<X> {
    fn keeps_reads(&self) -> bool {
        false
    }

    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, _: bool) {
        if access == Access::Write {
            let page = pages.page(node);
            self.written(self.blocks.find_page(page), page);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, plan: &mut Plan) -> Room {
        let block = self.list.back(&self.blocks);
        plan.drop.extend(self.blocks.pages(block).map(|page| pages.find(page)));
        let any_dirty = plan.drop.iter().any(|&node| pages.is_dirty(node));
        if any_dirty && self.pads {
            let geometry = self.blocks.geometry();
            let first = geometry.first(self.blocks.number(block));
            let last = (first + u64::from(geometry.pages())).min(self.end);
            plan_whole(pages, plan, first..last);
        } else {
            let dirty = plan.drop.iter().filter(|&&node| pages.is_dirty(node));
            plan.write.extend(dirty.map(|&node| Outgoing { page: pages.page(node), node }));
        }
        Room::Planned
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        let page = pages.page(node);
        let (block, is_new) = self.blocks.enter(page);
        if is_new {
            self.list.push_front(&mut self.blocks, block);
        }
        self.written(block, page);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        let (block, left) = self.blocks.exit(pages.page(node));
        if left == 0 {
            self.list.remove(&mut self.blocks, block);
            self.blocks.free(block);
        }
        Afterlife::Gone
    }

    fn bytes(&self) -> usize {
        self.blocks.bytes()
    }
}
