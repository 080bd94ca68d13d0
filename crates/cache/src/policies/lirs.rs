//! LIRS: pages are kept by the distance between their last two uses, not by the last use alone.
//!
//! Stack S holds, most recent first, the LIR pages (short distance, always resident) and the HIR pages used
//! since the oldest LIR page, resident or not. Queue Q holds the resident HIR pages, a small share of the cache.
//!
//! - Hit on a LIR page: to the top of S. On a HIR page in S: it becomes LIR, and the LIR page at the bottom of
//!   S becomes HIR at the end of Q. On a HIR page that is only in Q: to the top of S and the end of Q.
//! - Room: the oldest page of Q leaves; if it is in S it stays there as a ghost.
//! - A page that comes in becomes LIR if its ghost is in S (or the LIR set is not full), else HIR in S and Q.
//! - After each change the HIR pages at the bottom of S are pruned, so that a LIR page is at the bottom.
//!
//! Ghosts are bounded: beyond `history` times the cache's size the oldest is forgotten.
//!
//! Source: Jiang and Zhang, SIGMETRICS'02. Departures: the bound, which the paper suggests without a number.
//! libCacheSim's LIRS moves a LIR page out on a hit in Q too, so counts differ. Cost: O(1), amortised.

use super::kit::*;

/// LIRS in the registry.
pub const ENTRY: Entry = Entry {
    name: "lirs",
    about: "by reuse distance: a stack and a small queue",
    options: &[
        OptionSpec::new("hir", "0.01", "resident pages of long distance: a share of the cache"),
        OptionSpec::new("history", "1", "ghosts remembered, as a multiple of the cache, to 8"),
    ],
    make: Make { source: "Jiang and Zhang, SIGMETRICS 2002", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let capacity = order.config().capacity;
    let hir_max = order.share("hir")?.max(1);
    let ghosts_max = (f64::from(capacity) * order.fraction_to("history", 8.0)?) as u32;
    let needs = Needs { ghosts: ghosts_max + 1, lists: 1 };
    order.cache::<X, _>(needs, |pages| {
        let nodes = pages.node_count();
        let mut links = Links::new(nodes + 2);
        Lirs {
            stack: pages.list(0),
            queue: List::new(&mut links, nodes as u32),
            ghosts: List::new(&mut links, nodes as u32 + 1),
            links,
            lir: 0,
            lir_max: capacity.saturating_sub(hir_max),
            ghosts_max,
            remembered: false,
        }
    })
}

const LIR: u32 = 1;
const IN_STACK: u32 = 2;

struct Lirs {
    stack: List,
    /// Resident HIR pages; the oldest at the back.
    queue: List,
    /// HIR pages in the stack that are not resident.
    ghosts: List,
    /// Links of the queue and of the ghosts: a page is in one of them at most.
    links: Links,
    lir: u32,
    lir_max: u32,
    ghosts_max: u32,
    remembered: bool,
}

impl Lirs {
    fn raise<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        let tag = pages.tag(node);
        if tag & IN_STACK != 0 {
            self.stack.touch(pages, node);
        } else {
            self.stack.push_front(pages, node);
            pages.set_tag(node, tag | IN_STACK);
        }
    }

    fn out_of_stack<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        self.stack.remove(pages, node);
        pages.set_tag(node, pages.tag(node) & !IN_STACK);
    }

    fn forget_ghost<X: Index>(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.ghosts.remove(&mut self.links, ghost);
        self.out_of_stack(pages, ghost);
        pages.forget(ghost);
    }

    /// Takes HIR pages off the bottom of the stack.
    fn prune<X: Index>(&mut self, pages: &mut Pages<X>) {
        loop {
            let node = self.stack.back(pages);
            if node == NIL || pages.tag(node) & LIR != 0 {
                return;
            }
            if pages.is_resident(node) {
                self.out_of_stack(pages, node);
            } else {
                self.forget_ghost(pages, node);
            }
        }
    }

    /// Makes `node`, at the top of the stack and not in the queue, LIR; LIR pages too many become HIR.
    fn promote<X: Index>(&mut self, pages: &mut Pages<X>, node: u32) {
        pages.set_tag(node, pages.tag(node) | LIR);
        self.lir += 1;
        self.prune(pages);
        while self.lir > self.lir_max {
            let bottom = self.stack.back(pages);
            self.stack.remove(pages, bottom);
            pages.set_tag(bottom, 0);
            self.queue.push_front(&mut self.links, bottom);
            self.lir -= 1;
            self.prune(pages);
        }
    }
}

impl<X: Index> Policy<X> for Lirs {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        let tag = pages.tag(node);
        if tag & LIR != 0 {
            let was_bottom = self.stack.back(pages) == node;
            self.stack.touch(pages, node);
            if was_bottom {
                self.prune(pages);
            }
        } else if tag & IN_STACK != 0 {
            self.queue.remove(&mut self.links, node);
            self.stack.touch(pages, node);
            self.promote(pages, node);
        } else {
            self.raise(pages, node);
            self.queue.touch(&mut self.links, node);
        }
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.remembered = ghost != NIL;
        if self.remembered {
            self.ghosts.remove(&mut self.links, ghost);
            self.out_of_stack(pages, ghost);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let oldest = self.queue.back(&self.links);
        Room::Drop(if oldest == NIL { self.stack.back(pages) } else { oldest })
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.raise(pages, node);
        if self.remembered || self.lir < self.lir_max {
            self.promote(pages, node);
        } else {
            self.queue.push_front(&mut self.links, node);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        let tag = pages.tag(node);
        if tag & LIR != 0 {
            self.lir -= 1;
            self.out_of_stack(pages, node);
            self.prune(pages);
            return Afterlife::Gone;
        }
        self.queue.remove(&mut self.links, node);
        if tag & IN_STACK == 0 {
            return Afterlife::Gone;
        }
        if why == Leaving::Discarded || self.ghosts_max == 0 {
            self.out_of_stack(pages, node);
            return Afterlife::Gone;
        }
        if self.ghosts.len() == self.ghosts_max {
            let oldest = self.ghosts.back(&self.links);
            self.forget_ghost(pages, oldest);
        }
        self.ghosts.push_front(&mut self.links, node);
        Afterlife::Ghost
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
