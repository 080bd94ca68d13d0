//! The page map against a model of greedy cleaning that shares nothing with it, and both against the counts of
//! another program.
//!
//! What the literature leaves open, and what that program chose: copies go to the host's open block
//! (`streams=one`), free blocks are used in the order they became free (`level=none`), of the blocks with the
//! fewest valid pages the lowest number is cleaned (`ties=lowest`), and it begins before any write at which fewer than two
//! blocks are free (`begin=short:reserve=2`), even if the open block has room.
//!
//! The last decides on `HotSequential`, where all victims tie at half a block. Cleaning at each write ends as
//! soon as one block is won, and the host goes on in the block that the copies half filled: cold and hot pages
//! share blocks. Cleaning at a full block ends when two victims have filled a block with copies alone.

use super::counts::run;
use super::*;
use std::collections::VecDeque;
use streams::Stream;

const BLOCKS: usize = 512;
const PAGES: usize = 64;
/// A logical page without a place, and a place without a logical page.
const NOTHING: usize = usize::MAX;

/// What the model is told to do.
#[derive(Clone, Copy)]
struct Choices {
    one_stream: bool,
    begins_short: bool,
    reserve: usize,
}

impl Choices {
    fn settings(self) -> String {
        let streams = if self.one_stream { "one" } else { "two" };
        let begin = if self.begins_short { "short" } else { "full" };
        format!("level=none:ties=lowest:streams={streams}:begin={begin}:reserve={}", self.reserve)
    }
}

/// Greedy cleaning by the book: a place is block × 64 + page.
struct Model {
    choices: Choices,
    places: Vec<usize>,
    owners: Vec<usize>,
    valid: Vec<usize>,
    free: VecDeque<usize>,
    /// The open blocks and how much of them is written: the host's, and that for copies.
    open: [Option<(usize, usize)>; 2],
    copies: u64,
    erases: u64,
}

impl Model {
    fn new(choices: Choices) -> Model {
        Model {
            choices,
            places: vec![NOTHING; 400 * PAGES],
            owners: vec![NOTHING; BLOCKS * PAGES],
            valid: vec![0; BLOCKS],
            free: (0..BLOCKS).collect(),
            open: [None; 2],
            copies: 0,
            erases: 0,
        }
    }

    fn write(&mut self, page: usize) {
        if self.choices.begins_short || self.open[0].is_none() {
            while self.free.len() < self.choices.reserve {
                self.clean();
            }
        }
        self.append(page, 0);
    }

    fn append(&mut self, page: usize, stream: usize) {
        let (block, next) =
            self.open[stream].unwrap_or_else(|| (self.free.pop_front().expect("a free block"), 0));
        self.open[stream] = (next + 1 < PAGES).then_some((block, next + 1));
        let old = std::mem::replace(&mut self.places[page], block * PAGES + next);
        if old != NOTHING {
            self.valid[old / PAGES] -= 1;
        }
        self.valid[block] += 1;
        self.owners[block * PAGES + next] = page;
    }

    fn clean(&mut self) {
        let is_open = |block| self.open.iter().flatten().any(|(open, _)| *open == block);
        let closed = (0..BLOCKS).filter(|block| !is_open(*block) && !self.free.contains(block));
        let victim = closed.min_by_key(|block| self.valid[*block]).expect("a closed block");
        for place in victim * PAGES..(victim + 1) * PAGES {
            let page = self.owners[place];
            if page != NOTHING && self.places[page] == place {
                self.append(page, if self.choices.one_stream { 0 } else { 1 });
                self.copies += 1;
            }
        }
        self.owners[victim * PAGES..(victim + 1) * PAGES].fill(NOTHING);
        self.free.push_back(victim);
        self.erases += 1;
    }
}

/// Copies and erases of the model.
fn model(choices: Choices, stream: Stream) -> (u64, u64) {
    let mut model = Model::new(choices);
    stream.pages(400, 64).iter().for_each(|page| model.write(*page as usize));
    (model.copies, model.erases)
}

/// Copies and erases of the page map.
fn page_map(settings: &str, stream: Stream) -> (u64, u64) {
    let (copies, erases, _) = run("page", settings, stream, PageOrder::Ascending);
    (copies, erases)
}

#[test]
fn the_page_map_has_the_counts_of_the_reference_with_its_choices() {
    let choices = Choices { one_stream: true, begins_short: true, reserve: 2 };
    let published = [
        (Stream::Sequential, (0, 1490)),
        (Stream::Uniform, (134_416, 3553)),
        (Stream::HotSequential, (111_175, 3190)),
        (Stream::WholeBlocks, (0, 1890)),
    ];
    for (stream, expected) in published {
        assert_eq!(page_map(&choices.settings(), stream), expected, "{stream:?}");
        assert_eq!(model(choices, stream), expected, "the model on {stream:?}");
    }
}

#[test]
fn the_page_map_has_the_counts_of_the_model_with_any_choices() {
    for (one_stream, begins_short, reserve) in
        [(true, false, 2), (true, true, 3), (false, false, 2), (false, false, 3), (false, true, 2)]
    {
        let choices = Choices { one_stream, begins_short, reserve };
        for stream in [Stream::HotSequential, Stream::Runs] {
            let settings = choices.settings();
            assert_eq!(page_map(&settings, stream), model(choices, stream), "{settings} {stream:?}");
        }
    }
}

/// Write amplification of a page map with default settings under uniform writes, on units of so many blocks.
fn amplification_of(units: u32, blocks: u32, over_provision: u32) -> f64 {
    let part = small(|part| {
        (part.channels, part.blocks, part.pages) = (units, blocks, 64);
        part.factory_bad_percent = 0.0;
    });
    let nand = Nand::new(part, 1, false, Payload::None);
    let mut ftl = crate::open("page", nand, &format!("over-provision={over_provision}")).unwrap();
    let pages = ftl.logical_pages();
    let mut random = Random::new(1, "uniform");
    let write = |ftl: &mut Box<dyn crate::Ftl>, page| {
        ftl.write(Time::ZERO, Lpn(page), &[]).unwrap();
    };
    (0..pages).for_each(|page| write(&mut ftl, page));
    (0..4 * pages).for_each(|_| write(&mut ftl, random.below(pages)));
    let before = ftl.nand().counts().programs;
    (0..4 * pages).for_each(|_| write(&mut ftl, random.below(pages)));
    (ftl.nand().counts().programs - before) as f64 / (4 * pages) as f64
}

#[test]
fn a_part_has_its_over_provision_however_large_and_however_divided_it_is() {
    for over_provision in [7, 12, 28] {
        let whole = amplification_of(1, 1024, over_provision);
        for (units, blocks) in [(16, 64), (4, 128), (1, 512)] {
            let part = amplification_of(units, blocks, over_provision);
            assert!(
                (part / whole - 1.0).abs() < 0.03,
                "{over_provision} %: {units} x {blocks}: {part} {whole}"
            );
        }
    }
}
