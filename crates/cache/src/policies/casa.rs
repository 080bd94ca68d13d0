//! CASA: a list of clean and a list of dirty pages, whose sizes follow the cost of reads and writes.
//!
//! τ is how many clean pages there should be; Cr + Cw = 1 are the costs of a read and a write, r = Cw/Cr.
//! A read hit on a clean page raises τ by Cr·|dirty|/|clean|; a write hit on a dirty page lowers it by
//! Cw·|clean|/|dirty|; τ stays within 0 and the cache's size. A page is in the list of what it is, and moves
//! over when it is written. Room: the oldest clean page while there are more than τ, else the oldest dirty one.
//!
//! Source: Ou and Härder, IDEAS'10. Readings: r from a typical device (write 200 µs, read 25 µs: 8), τ
//! starts at 0, "more than τ" is strict. A page cleaned by a sync joins the clean list at its MRU end.
//! Cost: O(1) an access.

use super::kit::*;

/// CASA in the registry.
pub const ENTRY: Entry = Entry {
    name: "casa",
    about: "clean and dirty lists, sized by the costs of reads and writes",
    options: &[
        OptionSpec::new("ratio", "8", "cost of a page write over that of a page read"),
        OptionSpec::new("start", "0", "clean pages wanted at first: a share of the cache"),
    ],
    make: Make { source: "Ou and Haerder, IDEAS 2010", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let ratio = order.fraction("ratio")?;
    let wanted = f64::from(order.share("start")?);
    order.cache::<X, _>(Needs::lists(2), |pages| Casa {
        clean: pages.list(0),
        dirty: pages.list(1),
        wanted,
        read_cost: 1.0 / (1.0 + ratio),
        write_cost: ratio / (1.0 + ratio),
    })
}

/// Tag of pages in the dirty list.
const IN_DIRTY: u32 = 1;

struct Casa {
    clean: List,
    dirty: List,
    /// τ: how many clean pages there should be.
    wanted: f64,
    read_cost: f64,
    write_cost: f64,
}

impl Casa {
    fn list_of<X: Index>(&mut self, pages: &Pages<X>, node: u32) -> &mut List {
        if pages.tag(node) == IN_DIRTY { &mut self.dirty } else { &mut self.clean }
    }
}

impl<X: Index> Policy<X> for Casa {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, was_dirty: bool) {
        let (clean, dirty) = (f64::from(self.clean.len()), f64::from(self.dirty.len()));
        match (access, was_dirty) {
            (Access::Read, false) => {
                self.wanted = (self.wanted + self.read_cost * dirty / clean).min(f64::from(pages.capacity()));
            }
            (Access::Write, true) => {
                self.wanted = (self.wanted - self.write_cost * clean / dirty).max(0.0);
            }
            (Access::Write, false) => {
                self.clean.remove(pages, node);
                self.dirty.push_front(pages, node);
                pages.set_tag(node, IN_DIRTY);
                return;
            }
            (Access::Read, true) => {}
        }
        self.list_of(pages, node).touch(pages, node);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let take_clean = f64::from(self.clean.len()) > self.wanted || self.dirty.is_empty();
        let list = if take_clean && !self.clean.is_empty() { self.clean } else { self.dirty };
        Room::Drop(list.back(pages))
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, access: Access) {
        if access == Access::Write {
            pages.set_tag(node, IN_DIRTY);
        }
        self.list_of(pages, node).push_front(pages, node);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.list_of(pages, node).remove(pages, node);
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        self.dirty.remove(pages, node);
        self.clean.push_front(pages, node);
        pages.set_tag(node, 0);
    }
}
