//! W-TinyLFU: a small window by recency before a segmented main part that admits only what was used more often.
//!
//! - A new page enters the window. What the window has no room for asks to be admitted to the main part: it is, if
//!   that has room or its estimated frequency is above that of the page that would leave; else it leaves itself.
//! - The main part is on probation first; a hit there takes the page to the protected part, whose least recently used
//!   page goes back on probation if there are too many. The oldest on probation is the next to leave.
//! - Frequencies are estimated by a count-min sketch of four rows of counters up to 15, of which an access raises only
//!   the lowest of its page's four. After `sample` accesses a page of the cache all counters are halved.
//!
//! Source: Einziger, Friedman, Manes, ACM Transactions on Storage 13(4), 2017, with a window of 1 % and 80 % of the
//! main part protected. Departures: the sketch has rows of 4 to 8 counters a page of the cache and no doorkeeper.
//! Cost: O(1) an access, and 8 to 16 bytes a page for the sketch.

use super::kit::*;

/// W-TinyLFU in the registry.
pub const ENTRY: Entry = Entry {
    name: "tinylfu",
    about: "a window, and a main part for what was used more often than what it replaces (W-TinyLFU)",
    options: &[
        OptionSpec::new("window", "0.01", "size of the window: a share of the cache"),
        OptionSpec::new("protected", "0.8", "protected pages of the main part: a share of it"),
        OptionSpec::new(
            "sample",
            "10",
            "accesses a page of the cache after which counters are halved, 1 to 1000",
        ),
    ],
    make: Make { source: "Einziger et al., ACM TOS 2017", dense: make::<Dense>, sparse: make::<Sparse> },
};

fn make<X: Index>(order: &BuildContext) -> Result<Box<dyn PageCache>> {
    let capacity = order.config().capacity;
    let window_max = order.share("window")?.max(1);
    let protected = order.fraction_to("protected", 1.0)?;
    let sample = order.number_within("sample", 1, 1000)?;
    order.cache::<X, _>(Needs::lists(3), |pages| TinyLfu {
        parts: [pages.list(0), pages.list(1), pages.list(2)],
        window_max,
        protected_max: (f64::from(capacity.saturating_sub(window_max)) * protected + 1e-9) as u32,
        sketch: Sketch::new(capacity, sample),
    })
}

/// A page's part, which is its tag.
const WINDOW: u32 = 0;
const PROBATION: u32 = 1;
const PROTECTED: u32 = 2;

struct TinyLfu {
    parts: [List; 3],
    window_max: u32,
    protected_max: u32,
    sketch: Sketch,
}

impl TinyLfu {
    fn oldest<X: Index>(&self, pages: &Pages<X>, part: u32) -> u32 {
        self.parts[part as usize].back(pages)
    }

    fn enter<X: Index>(&mut self, pages: &mut Pages<X>, node: u32, part: u32) {
        pages.set_tag(node, part);
        self.parts[part as usize].push_front(pages, node);
    }

    fn shift<X: Index>(&mut self, pages: &mut Pages<X>, node: u32, to: u32) {
        self.parts[pages.tag(node) as usize].remove(pages, node);
        self.enter(pages, node, to);
    }

    /// The next to leave the main part, or [`NIL`] if that is empty.
    fn main_victim<X: Index>(&self, pages: &Pages<X>) -> u32 {
        let victim = self.oldest(pages, PROBATION);
        if victim == NIL { self.oldest(pages, PROTECTED) } else { victim }
    }
}

impl<X: Index> Policy<X> for TinyLfu {
    fn hit(&mut self, pages: &mut Pages<X>, node: u32, _: Access, _: bool) {
        self.sketch.count(pages.page(node));
        let part = pages.tag(node);
        if part != PROBATION {
            return self.parts[part as usize].touch(pages, node);
        }
        self.shift(pages, node, PROTECTED);
        if self.parts[PROTECTED as usize].len() > self.protected_max {
            let oldest = self.oldest(pages, PROTECTED);
            self.shift(pages, oldest, PROBATION);
        }
    }

    fn make_room(&mut self, pages: &mut Pages<X>, _: u64, _: &mut Plan) -> Room {
        let (candidate, victim) = (self.oldest(pages, WINDOW), self.main_victim(pages));
        if victim == NIL {
            return Room::Drop(candidate);
        }
        if self.parts[WINDOW as usize].len() < self.window_max {
            return Room::Drop(victim);
        }
        if self.sketch.estimate(pages.page(candidate)) <= self.sketch.estimate(pages.page(victim)) {
            return Room::Drop(candidate);
        }
        self.shift(pages, candidate, PROBATION);
        Room::Drop(victim)
    }

    fn insert(&mut self, pages: &mut Pages<X>, node: u32, _: Access) {
        self.sketch.count(pages.page(node));
        self.enter(pages, node, WINDOW);
        // Only before the cache is full: room was made for it otherwise.
        if self.parts[WINDOW as usize].len() > self.window_max {
            let oldest = self.oldest(pages, WINDOW);
            self.shift(pages, oldest, PROBATION);
        }
    }

    fn remove(&mut self, pages: &mut Pages<X>, node: u32, _: Leaving) -> Afterlife {
        self.parts[pages.tag(node) as usize].remove(pages, node);
        Afterlife::Gone
    }

    fn bytes(&self) -> usize {
        self.sketch.words.len() * size_of::<u64>()
    }
}

const ROWS: u64 = 4;
const COUNTERS_A_WORD: u64 = 16;
const COUNTER_MAX: u64 = 15;
/// Every counter of a word but its highest bit: what is left of a neighbour's lowest after a shift goes.
const HALVES: u64 = 0x7777_7777_7777_7777;

/// A count-min sketch with counters of four bits.
struct Sketch {
    words: Vec<u64>,
    /// Counters of a row, a power of two.
    row: u64,
    /// Accesses since the counters were halved, with half of those before.
    counted: u64,
    sample: u64,
}

impl Sketch {
    fn new(capacity: u32, sample: u32) -> Sketch {
        let row = (4 * u64::from(capacity)).next_power_of_two().max(COUNTERS_A_WORD);
        let words = vec![0; (ROWS * row / COUNTERS_A_WORD) as usize];
        Sketch { words, row, counted: 0, sample: u64::from(capacity) * u64::from(sample) }
    }

    /// The place of `page`'s counter in each row: its word, and by how many bits it is shifted there.
    fn places(&self, page: u64) -> [(usize, u32); ROWS as usize] {
        let first = page.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let second = (first ^ (first >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1;
        std::array::from_fn(|row| {
            let hash = (first ^ (first >> 29)).wrapping_add(second.wrapping_mul(row as u64));
            let counter = row as u64 * self.row + ((hash ^ (hash >> 32)) & (self.row - 1));
            ((counter / COUNTERS_A_WORD) as usize, (counter % COUNTERS_A_WORD) as u32 * 4)
        })
    }

    fn at(&self, (word, shift): (usize, u32)) -> u64 {
        self.words[word] >> shift & COUNTER_MAX
    }

    fn estimate(&self, page: u64) -> u64 {
        let places = self.places(page);
        places.into_iter().fold(COUNTER_MAX, |least, place| least.min(self.at(place)))
    }

    fn count(&mut self, page: u64) {
        let places = self.places(page);
        let least = places.into_iter().fold(COUNTER_MAX, |least, place| least.min(self.at(place)));
        if least < COUNTER_MAX {
            for (word, shift) in places {
                // Rows are apart, so that no place is raised twice.
                self.words[word] += u64::from(self.at((word, shift)) == least) << shift;
            }
        }
        self.counted += 1;
        if self.counted >= self.sample {
            self.words.iter_mut().for_each(|word| *word = *word >> 1 & HALVES);
            self.counted /= 2;
        }
    }
}
