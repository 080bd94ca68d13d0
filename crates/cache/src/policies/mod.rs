//! The replacement policies, one a file. What each is, its source and its options stand in its `ENTRY`,
//! which [`POLICIES`] lists.

pub mod arc;
pub mod bplru;
pub mod casa;
pub mod cfdc;
pub mod cflru;
pub mod clock;
pub mod cswlru;
pub mod fab;
pub mod lecar;
pub mod lirs;
pub mod lru;
pub mod lru_wsr;
pub mod s3fifo;
pub mod sieve;
pub mod tide;
pub mod tiny_lfu;
pub mod two_q;
pub mod wow;

/// Every policy, in the order in which they are listed.
pub const POLICIES: Registry<Entry> = Registry {
    what: "cache policy",
    entries: &[
        &lru::ENTRY,
        &clock::ENTRY,
        &sieve::ENTRY,
        &s3fifo::ENTRY,
        &arc::ENTRY,
        &lirs::ENTRY,
        &two_q::ENTRY,
        &lecar::ENTRY,
        &tiny_lfu::ENTRY,
        &cflru::ENTRY,
        &lru_wsr::ENTRY,
        &casa::ENTRY,
        &fab::ENTRY,
        &bplru::ENTRY,
        &cfdc::ENTRY,
        &wow::ENTRY,
        &cswlru::ENTRY,
        &tide::ENTRY,
    ],
};

/// What every policy is written with.
mod kit {
    pub use crate::PageCache;
    pub use crate::blocks::Blocks;
    pub use crate::ghosts::Ghosts;
    pub use crate::index::{Dense, Index, NIL, Sparse};
    pub use crate::links::{Link, Links, List, Slab};
    pub use crate::ordered::Ordered;
    pub use crate::pages::Pages;
    pub use crate::policy::{Access, Afterlife, Leaving, Needs, Outgoing, Plan, Policy, Room, Touches};
    pub use crate::recency::Recency;
    pub use crate::registry::{BuildContext, Entry, Make};
    pub use bimetal_base::Result;
    pub use bimetal_base::options::OptionSpec;
}

use crate::registry::Entry;
use bimetal_base::options::Registry;
use kit::{Index, Pages, Plan};
use std::ops::Range;

/// Plans the pages of `range` as one write; those that are not resident are read for it.
fn plan_whole<X: Index>(pages: &Pages<X>, plan: &mut Plan, range: Range<u64>) {
    for page in range {
        let node = pages.find_resident(page);
        plan.write.push(kit::Outgoing { page, node });
    }
}
