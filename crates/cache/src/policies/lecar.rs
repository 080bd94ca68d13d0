//! LeCaR: two experts, the least recently and the least frequently used page, and a weight for each that learns.
//!
//! - Room: one of the two is asked by chance, as their weights say. What it names leaves and is remembered in its
//!   history, with the time and its frequency; if both name the same page, nothing is remembered.
//! - A page that comes back while a history remembers it says that this expert was wrong: its weight is multiplied by
//!   e^(-λ·d^t), where t is how many accesses ago the page left, and both are divided by their sum.
//! - The frequency of a page that is remembered goes on where it was. Of pages used equally often the one leaves that
//!   was used longest ago.
//!
//! Source: Vietri, Rodriguez, Martinez, Lyons, Liu, Rangaswami, Zhao, Narasimhan, HotStorage'18, with λ = 0.45 and
//! d = 0.005^(1/N) for N pages. Two things are as in its authors' program and not in the paper: a page that both name
//! is not remembered, and no weight leaves 0.01 to 0.99. The same seed gives the same choices. Cost: O(log f) an
//! access, for f frequencies that there are.

use super::kit::*;
use bimetal_base::random::Random;
use std::collections::BTreeMap;

/// LeCaR in the registry.
pub const ENTRY: Entry = Entry {
    name: "lecar",
    about: "by recency or by frequency, whichever was less often wrong",
    options: &[
        OptionSpec::new("rate", "0.45", "how much an error weighs, λ: up to 10"),
        OptionSpec::new(
            "forget",
            "0.005",
            "what is left of an error's weight after as many accesses as pages",
        ),
        OptionSpec::new("seed", "1", "of the choices"),
    ],
    make: Make { source: "Vietri et al., HotStorage 2018", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let capacity = order.config().capacity;
    let rate = order.fraction_to("rate", 10.0)?;
    let discount = order.fraction_to("forget", 1.0)?.powf(1.0 / f64::from(capacity));
    let random = Random::new(order.number("seed")?, ENTRY.name);
    let needs = Needs { ghosts: 2 * capacity + 1, lists: 3 };
    order.cache::<X, _>(needs, |pages| Lecar {
        recency: pages.list(0),
        frequency: Frequencies::new(pages.node_count()),
        histories: [Ghosts::new(pages.list(1), capacity), Ghosts::new(pages.list(2), capacity)],
        uses: vec![0; pages.node_count()],
        left: vec![0; pages.node_count()],
        recency_weight: 0.5,
        rate,
        discount,
        random,
        now: 0,
        history: None,
        returning: 0,
    })
}

const RECENCY: usize = 0;
const FREQUENCY: usize = 1;
const WEIGHT_MAX: f64 = 0.99;

struct Lecar {
    recency: List,
    frequency: Frequencies,
    /// What left as the least recently, and as the least frequently used. A ghost's tag says in which it is.
    histories: [Ghosts; 2],
    /// How often each node was used.
    uses: Vec<u32>,
    /// When each ghost left.
    left: Vec<u64>,
    /// The other weight is 1 less this.
    recency_weight: f64,
    rate: f64,
    discount: f64,
    random: Random,
    /// Accesses so far.
    now: u64,
    /// Where the page that is about to leave is remembered.
    history: Option<usize>,
    /// How often the page that is about to come in was used before.
    returning: u32,
}

impl Lecar {
    /// A page of `history` came back after `accesses`: that expert was wrong.
    fn blame(&mut self, history: usize, accesses: u64) {
        let factor = (-self.rate * self.discount.powf(accesses as f64)).exp();
        let mut weights = [self.recency_weight, 1.0 - self.recency_weight];
        weights[history] *= factor;
        let share = weights[RECENCY] / (weights[RECENCY] + weights[FREQUENCY]);
        self.recency_weight = share.clamp(1.0 - WEIGHT_MAX, WEIGHT_MAX);
    }
}

impl<X: Index> Policy<X> for Lecar {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        self.now += 1;
        self.recency.touch(pages, node);
        let uses = &mut self.uses[node as usize];
        self.frequency.leave(node, *uses);
        *uses = uses.saturating_add(1);
        self.frequency.enter(node, *uses);
    }

    fn miss(&mut self, pages: &mut Pages<X>, ghost: u32) {
        self.now += 1;
        self.returning = 0;
        if ghost != NIL {
            let history = pages.tag(ghost) as usize;
            self.returning = self.uses[ghost as usize];
            self.histories[history].recall(pages, ghost);
            self.blame(history, self.now - self.left[ghost as usize]);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let named = [self.recency.back(pages), self.frequency.least()];
        let expert = if self.random.chance(self.recency_weight) { RECENCY } else { FREQUENCY };
        self.history = (named[RECENCY] != named[FREQUENCY]).then_some(expert);
        Room::Drop(named[expert])
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        let uses = self.returning.saturating_add(1);
        self.uses[node as usize] = uses;
        self.recency.push_front(pages, node);
        self.frequency.enter(node, uses);
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, why: Leaving) -> Afterlife {
        self.recency.remove(pages, node);
        self.frequency.leave(node, self.uses[node as usize]);
        match self.history.take() {
            Some(history) => {
                self.left[node as usize] = self.now;
                pages.set_tag(node, history as u32);
                self.histories[history].remember(pages, node, why)
            }
            None => Afterlife::Gone,
        }
    }

    fn bytes(&self) -> usize {
        self.uses.len() * (size_of::<u32>() + size_of::<u64>()) + self.frequency.bytes()
    }
}

/// The pages by how often they were used, and those used equally often by when.
struct Frequencies {
    /// A list a frequency that there is; the latest at its front.
    lists: BTreeMap<u32, List>,
    links: Links,
    /// Sentinels of lists that are no more.
    spare: Vec<u32>,
}

impl Frequencies {
    fn new(nodes: usize) -> Frequencies {
        Frequencies { lists: BTreeMap::new(), links: Links::new(nodes), spare: Vec::new() }
    }

    fn enter(&mut self, node: u32, uses: u32) {
        let Frequencies { lists, links, spare } = self;
        let list = lists.entry(uses).or_insert_with(|| {
            let sentinel = spare.pop().unwrap_or_else(|| links.push());
            List::new(links, sentinel)
        });
        list.push_front(links, node);
    }

    fn leave(&mut self, node: u32, uses: u32) {
        let Some(list) = self.lists.get_mut(&uses) else { return };
        list.remove(&mut self.links, node);
        if list.is_empty() {
            self.spare.push(list.sentinel());
            self.lists.remove(&uses);
        }
    }

    /// The page used least often, of several the one used longest ago, or [`NIL`].
    fn least(&self) -> u32 {
        self.lists.first_key_value().map_or(NIL, |(_, list)| list.back(&self.links))
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
