//! FAB: the erase block with the most cached pages leaves as a whole.
//!
//! Pages are grouped by erase block; a touch makes a block the most recent one. Room: of the blocks with the
//! most pages the least recently used one goes; its dirty pages are written in ascending order, neighbours in
//! one command, its clean ones dropped.
//!
//! Blocks with n pages form list n, most recent first. A block enters a list only when it was just touched, so
//! that the lists stay in order by themselves.
//!
//! Source: Jo, Kang, Park, Kim, Lee, IEEE TCE 52(2), 2006. Options: `reads=no` buffers writes only (as
//! SimpleSSDsim does), `spare-current=yes` never takes the block that is being accessed.
//! Cost: O(1) an access and O(1) a page that leaves; finding the fullest list is amortised by the arrivals.

use super::kit::*;

/// FAB in the registry.
pub const ENTRY: Entry = Entry {
    name: "fab",
    about: "the erase block with the most cached pages leaves as a whole",
    options: &[
        OptionSpec::new("reads", "yes", "no: pages that are read are not kept"),
        OptionSpec::new("spare-current", "no", "yes: not the block being accessed"),
    ],
    make: Make { source: "Jo et al., IEEE TCE 2006", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let keeps_reads = order.flag("reads")?;
    let spares_current = order.flag("spare-current")?;
    let lists = order.config().block_pages + 1;
    let mut blocks = Blocks::<X>::new(order.config(), lists);
    let by_count = (0..lists).map(|count| blocks.list(count)).collect();
    order.cache::<X, _>(Needs::lists(0), |_| Fab {
        blocks,
        by_count,
        fullest: 0,
        keeps_reads,
        spares_current,
    })
}

struct Fab<X> {
    blocks: Blocks<X>,
    /// The blocks with so many pages, most recent first.
    by_count: Vec<List>,
    /// No block has more pages than this.
    fullest: u32,
    keeps_reads: bool,
    spares_current: bool,
}

impl<X: Index> Fab<X> {
    /// The block to leave, if possible not that of `page`.
    fn victim(&mut self, page: u64) -> u32 {
        while self.by_count[self.fullest as usize].is_empty() {
            self.fullest -= 1;
        }
        let first = self.by_count[self.fullest as usize].back(&self.blocks);
        if !self.spares_current || first != self.blocks.find_page(page) {
            return first;
        }
        let lists = self.by_count[..=self.fullest as usize].iter().rev();
        let other = lists.map(|list| {
            let back = list.back(&self.blocks);
            if back == first { list.before(&self.blocks, back) } else { back }
        });
        other.into_iter().find(|&block| block != NIL).unwrap_or(first)
    }
}

impl<X: Index> Policy<X> for Fab<X> {
    fn keeps_reads(&self) -> bool {
        self.keeps_reads
    }

    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        let block = self.blocks.find_page(pages.page(node));
        let count = self.blocks.members(block) as usize;
        self.by_count[count].touch(&mut self.blocks, block);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, page: u64, plan: &mut Plan) -> Room {
        let block = self.victim(page);
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
        let (block, is_new) = self.blocks.enter(pages.page(node));
        let count = self.blocks.members(block);
        if !is_new {
            self.by_count[count as usize - 1].remove(&mut self.blocks, block);
        }
        self.by_count[count as usize].push_front(&mut self.blocks, block);
        self.fullest = self.fullest.max(count);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        let (block, left) = self.blocks.exit(pages.page(node));
        self.by_count[left as usize + 1].remove(&mut self.blocks, block);
        if left == 0 {
            self.blocks.free(block);
        } else {
            self.by_count[left as usize].push_front(&mut self.blocks, block);
        }
        Afterlife::Gone
    }

    fn bytes(&self) -> usize {
        self.blocks.bytes()
    }
}
