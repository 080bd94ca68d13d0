//! A replacement policy that comes from outside this package, as from a binding to another language.
//!
//! It is told of pages by their numbers and knows neither nodes nor lists, so that it can be written anywhere. What it
//! cannot break is what the engine keeps for every policy: a page that it names although it is not in the cache, or none,
//! is told back to it ([`OutsidePolicy::refused`]), and the page that came first leaves instead. So a cache goes on under
//! a policy that has failed, until whoever made it ends the run.
//!
//! Cost: a dynamic call an access, and a list of the pages in the order in which they came.

use super::engine::Engine;
use super::index::{DENSE_PAGES_MAX, Dense, Index, Sparse};
use super::links::List;
use super::pages::Pages;
use super::policy::{Access, Afterlife, Leaving, Needs, Plan, Policy, Room, Touches};
use super::registry::check_config;
use super::{Config, PageCache};
use bimetal_base::Result;
use std::fmt::Debug;

/// A policy that names pages by their numbers; see [`Policy`] for when each is called.
pub trait OutsidePolicy: Send {
    /// Whether a page that a read missed is kept. Write buffers say no.
    fn keeps_reads(&self) -> bool {
        true
    }

    /// A page in the cache is accessed. `was_dirty`: before this access.
    fn hit(&mut self, page: u64, access: Access, was_dirty: bool);

    /// A page came in; it is dirty already if it was written.
    fn insert(&mut self, page: u64, access: Access);

    /// The cache is full and `coming` is to come in: which page leaves. None is refused, as one that is not there.
    fn evict(&mut self, coming: u64) -> Option<u64>;

    /// A page leaves: the one that was named, or one whose contents are of no use any more.
    fn remove(&mut self, page: u64, why: Leaving);

    /// A dirty page was written and stays, now clean.
    fn cleaned(&mut self, page: u64);

    /// What [`evict`](Self::evict) named is not in the cache.
    fn refused(&mut self, named: Option<u64>);
}

/// What makes such a policy, once for each cache.
pub trait MakeOutside: Debug + Send + Sync {
    /// What reports call it.
    fn name(&self) -> String;

    /// Makes the policy of a cache.
    ///
    /// # Errors
    /// It cannot be made.
    fn make(&self, config: &Config) -> Result<Box<dyn OutsidePolicy>>;
}

/// Makes a cache under a policy from outside.
///
/// # Errors
/// As [`build`](super::build); the policy cannot be made.
pub fn build_outside(policy: &dyn MakeOutside, config: &Config) -> Result<Box<dyn PageCache>> {
    check_config(config)?;
    let (name, policy) = (policy.name(), policy.make(config)?);
    Ok(match config.space {
        Some(space) if space <= DENSE_PAGES_MAX => engine::<Dense>(name, config, policy),
        _ => engine::<Sparse>(name, config, policy),
    })
}

fn engine<X: Index>(name: String, config: &Config, policy: Box<dyn OutsidePolicy>) -> Box<dyn PageCache> {
    let make = |pages: &mut Pages<X>| Adapter { policy, came: pages.list(0) };
    Box::new(Engine::new(name, config, Needs::lists(1), make))
}

/// The policy as the engine calls it.
struct Adapter {
    policy: Box<dyn OutsidePolicy>,
    /// The pages in the order in which they came, the newest in front.
    came: List,
}

impl<X: Index> Policy<X> for Adapter {
    const TOUCHES: Touches = Touches::Node;

    fn keeps_reads(&self) -> bool {
        self.policy.keeps_reads()
    }

    fn hit(&mut self, pages: &mut Pages<X>, node: u32, access: Access, was_dirty: bool) {
        self.policy.hit(pages.page(node), access, was_dirty);
    }

    fn make_room(&mut self, pages: &mut Pages<X>, page: u64, _: &mut Plan) -> Room {
        let named = self.policy.evict(page);
        let node = named.map(|page| pages.find_resident(page)).filter(|node| *node != super::index::NIL);
        Room::Drop(node.unwrap_or_else(|| {
            self.policy.refused(named);
            self.came.back(pages)
        }))
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, access: Access) {
        self.came.push_front(pages, node);
        self.policy.insert(pages.page(node), access);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        self.came.remove(pages, node);
        self.policy.remove(pages.page(node), why);
        Afterlife::Gone
    }

    fn cleaned(&mut self, pages: &mut Pages<X>, node: u32) {
        self.policy.cleaned(pages.page(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Nothing, PageAccess, build};
    use bimetal_base::random::Random;
    use bimetal_base::runtime::sync::Mutex;
    use bimetal_base::time::Time;
    use bimetal_base::units::Lpn;
    use std::sync::Arc;

    /// LRU by a vector, the newest last; its refusals are counted.
    #[derive(Clone, Debug, Default)]
    struct Vector {
        pages: Vec<u64>,
        names_nonsense: bool,
        refused: Arc<Mutex<Vec<Option<u64>>>>,
    }

    impl Vector {
        fn leave(&mut self, page: u64) {
            self.pages.retain(|there| *there != page);
        }
    }

    impl OutsidePolicy for Vector {
        fn hit(&mut self, page: u64, _: Access, _: bool) {
            self.leave(page);
            self.pages.push(page);
        }
        fn insert(&mut self, page: u64, _: Access) {
            self.pages.push(page);
        }
        fn evict(&mut self, coming: u64) -> Option<u64> {
            if self.names_nonsense { Some(coming) } else { self.pages.first().copied() }
        }
        fn remove(&mut self, page: u64, _: Leaving) {
            self.leave(page);
        }
        fn cleaned(&mut self, _: u64) {}
        fn refused(&mut self, named: Option<u64>) {
            self.refused.lock().push(named);
        }
    }

    impl MakeOutside for Vector {
        fn name(&self) -> String {
            "vector".into()
        }
        fn make(&self, _: &Config) -> Result<Box<dyn OutsidePolicy>> {
            Ok(Box::new(self.clone()))
        }
    }

    fn accesses() -> Vec<PageAccess> {
        let mut random = Random::new(1, "outside");
        let access = |write| if write { Access::Write } else { Access::Read };
        (0..20_000).map(|_| PageAccess::new(Lpn(random.below(90)), access(random.below(3) == 0))).collect()
    }

    #[test]
    fn lru_from_outside_counts_as_the_one_within() {
        for space in [None, Some(1000)] {
            let config = Config { space, ..Config::new(40) };
            let mut caches =
                [build_outside(&Vector::default(), &config).unwrap(), build("lru", &config).unwrap()];
            for cache in &mut caches {
                cache.run(Time::ZERO, &accesses(), &mut Nothing).unwrap();
            }
            assert!(caches[0].view().stats.dirty_evictions > 0);
            assert_eq!(caches[0].view().stats, caches[1].view().stats);
        }
    }

    #[test]
    fn a_page_that_is_not_there_is_refused_and_the_one_that_came_first_leaves() {
        let policy = Vector { names_nonsense: true, ..Vector::default() };
        let mut cache = build_outside(&policy, &Config::new(2)).unwrap();
        let reads: Vec<PageAccess> = (0..3).map(|page| PageAccess::new(Lpn(page), Access::Read)).collect();
        cache.run(Time::ZERO, &reads, &mut Nothing).unwrap();
        assert_eq!(*policy.refused.lock(), [Some(2)]);
        assert_eq!([0, 1, 2].map(|page| cache.page(Lpn(page)).is_some()), [false, true, true]);
    }

    #[test]
    fn a_cache_of_no_pages_is_refused() {
        assert!(build_outside(&Vector::default(), &Config::new(0)).is_err());
    }
}
