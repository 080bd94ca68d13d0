//! Anchors: where the newest checkpoint lies, in the first blocks of the flash.
//!
//! Anchors go one after the other into a few blocks at the beginning of the flash; when a block is full the next one is
//! erased and used, so the newest two anchors are always there. The first page of each of these blocks is a *format record*,
//! which says what has to be known before anything else can be found, should no anchor be left (`rebuild`).

use super::flash::{Addr, Flash};
use super::is_damage;
use super::layout::{Input, Output, PageKind, VERSION};
use bimetal_base::{Error, Result};
use std::collections::BTreeSet;

/// Tells an anchor of this format from anything else: "bimetalO".
const MAGIC: u64 = u64::from_le_bytes(*b"bimetalO");
/// The same of a format record: "bimetalF".
const FORMAT_MAGIC: u64 = u64::from_le_bytes(*b"bimetalF");
/// Lists of pages over one another: one of them has places for the checkpoint of any flash.
const LEVELS_MAX: u32 = 4;
/// Good blocks for anchors that a new store begins with.
const ANCHOR_BLOCKS: u32 = 4;
/// Anchors are looked for in so many blocks.
const ANCHOR_SEARCH: u32 = 64;

/// Where a chain goes on after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainStart {
    pub stream: u32,
    pub segment: u32,
    pub serial: u64,
    pub index: u32,
}

/// What an anchor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub number: u64,
    pub segment_blocks: u32,
    /// Segments at the beginning that hold anchors.
    pub kept: u32,
    pub commit: u64,
    /// The mark of its checkpoint, which the nodes that it wrote have.
    pub mark: u64,
    pub chains: Vec<ChainStart>,
    pub len: u32,
    pub sum: u32,
    /// Lists between the anchor and the pages of the checkpoint.
    pub levels: u32,
    /// The pages of the checkpoint, or of the list of those, and so on.
    pub pages: Vec<Addr>,
}

/// The blocks that anchors are written to.
#[derive(Clone, Debug)]
pub(super) struct Anchors {
    /// Blocks, counted across the units.
    count: u32,
    /// The one in use, and its next page.
    at: (u32, u32),
    number: u64,
    kept: u32,
    /// What is written to the first page of each block.
    record: FormatRecord,
}

/// Numbers of anchors go on so much later where the newest may not have been seen.
const NUMBER_GAP: u64 = 1 << 20;
impl Anchor {
    /// Bytes of one with so many chains and pages.
    pub fn bytes(chains: usize, pages: usize) -> usize {
        64 + 20 * chains + 4 * pages
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = Output::default();
        out.u64(MAGIC);
        out.u32(VERSION);
        out.u32(self.segment_blocks);
        out.u64(self.number);
        out.u64(self.commit);
        out.u64(self.mark);
        out.u32(self.kept);
        out.u32(self.len);
        out.u32(self.sum);
        out.u32(self.chains.len() as u32);
        out.u32(self.levels);
        out.u32(self.pages.len() as u32);
        for chain in &self.chains {
            out.u32(chain.stream);
            out.u32(chain.segment);
            out.u64(chain.serial);
            out.u32(chain.index);
        }
        self.pages.iter().for_each(|addr| out.u32(addr.0));
        out.0
    }

    pub fn read(page: &[u8]) -> Result<Anchor> {
        let mut input = Input::new("an anchor of the object store", page);
        check_version(&mut input, MAGIC)?;
        let (segment_blocks, number, commit) = (input.u32()?, input.u64()?, input.u64()?);
        let mark = input.u64()?;
        let (kept, len, sum) = (input.u32()?, input.u32()?, input.u32()?);
        let (chains, levels, pages) = (input.u32()? as usize, input.u32()?, input.u32()? as usize);
        let fit = chains.saturating_mul(20).saturating_add(pages.saturating_mul(4)) <= page.len();
        if !fit || levels > LEVELS_MAX || !(1..=64).contains(&segment_blocks) {
            return Err(input.wrong("it lists more than it can hold"));
        }
        let mut anchor = Anchor {
            number,
            segment_blocks,
            kept,
            commit,
            mark,
            chains: Vec::new(),
            len,
            sum,
            levels,
            pages: Vec::new(),
        };
        for _ in 0..chains {
            let (stream, segment, serial) = (input.u32()?, input.u32()?, input.u64()?);
            anchor.chains.push(ChainStart { stream, segment, serial, index: input.u32()? });
        }
        for _ in 0..pages {
            anchor.pages.push(Addr(input.u32()?));
        }
        Ok(anchor)
    }
}

fn check_version(input: &mut Input, magic: u64) -> Result<()> {
    if input.u64()? != magic {
        return Err(input.wrong("its magic number is another's"));
    }
    match input.u32()? {
        VERSION => Ok(()),
        version => Err(Error::unsupported(
            format!("an object store of version {version}"),
            format!(
                "this program knows version {VERSION}; copy the objects with the program that made it, and make the store anew"
            ),
        )),
    }
}

/// The last commit that anchors speak of, the marks of checkpoints, and where chains go on after the last of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    pub commit: u64,
    pub marks: BTreeSet<u64>,
    pub chains: Vec<ChainStart>,
}

/// What has to be known of a store before anything of it can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormatRecord {
    pub segment_blocks: u32,
    /// Segments at the beginning that hold anchors.
    pub kept: u32,
    pub keep_bytes: bool,
    pub placement: String,
}

impl FormatRecord {
    fn write(&self) -> Vec<u8> {
        let mut out = Output::default();
        out.u64(FORMAT_MAGIC);
        out.u32(VERSION);
        out.u32(self.segment_blocks);
        out.u32(self.kept);
        out.u32(u32::from(self.keep_bytes));
        out.bytes(self.placement.as_bytes());
        out.0
    }

    pub fn read(page: &[u8]) -> Result<FormatRecord> {
        let mut input = Input::new("the format record of an object store", page);
        check_version(&mut input, FORMAT_MAGIC)?;
        let (segment_blocks, kept, keep) = (input.u32()?, input.u32()?, input.u32()?);
        if !(1..=64).contains(&segment_blocks) || kept > ANCHOR_SEARCH {
            return Err(input.wrong("it lists more than it can hold"));
        }
        let placement = String::from_utf8_lossy(input.bytes()?).into_owned();
        Ok(FormatRecord { segment_blocks, kept, keep_bytes: keep != 0, placement })
    }
}

impl Anchors {
    /// For a new store on `flash`, which is seen with one block a segment, and on which nothing is programmed.
    pub fn new(flash: &mut Flash, segment_blocks: u32, placement: &str, keep_bytes: bool) -> Result<Anchors> {
        let (count, kept) = Self::blocks(flash, segment_blocks)?;
        let record = FormatRecord { segment_blocks, kept, keep_bytes, placement: placement.into() };
        for block in (0..count).filter(|block| !flash.raw_is_bad(*block)).collect::<Vec<_>>() {
            flash.raw_program(block, 0, PageKind::Format, 0, &record.write())?;
        }
        // Not the first block, so that the first anchor erases it.
        Ok(Anchors { count, at: (count - 1, u32::MAX), number: 0, kept, record })
    }

    /// Blocks for the anchors of a new store, and segments.
    fn blocks(flash: &Flash, segment_blocks: u32) -> Result<(u32, u32)> {
        let good = |number: &u32| flash.good_pages(*number) > 0;
        let last = (0..flash.segments().min(ANCHOR_SEARCH)).filter(good).nth(ANCHOR_BLOCKS as usize - 1);
        let last = last.ok_or_else(|| Error::invalid("too few good blocks for an object store"))?;
        Ok((last + 1, (last + 1).div_ceil(segment_blocks)))
    }

    /// For a store of which no anchor, or nothing that one names, can be read, on `flash`, which is seen with one block a
    /// segment; what it had to guess, in words, and the last commit and the last checkpoint that an anchor speaks of. New
    /// anchors count before any that may still be there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if nothing is left of a store; [`Error::Unsupported`] if it is of another version.
    pub fn again(flash: &mut Flash, keep_bytes: bool) -> Result<(Anchors, Vec<String>, Last)> {
        let (mut found, mut guessed, mut last) = (None, Vec::new(), Last::default());
        let (mut newest, mut at) = (0, None);
        let mut first_other = None;
        for block in 0..flash.segments().min(ANCHOR_SEARCH) {
            for page in 0..flash.pages_per_segment() {
                let addr = flash.addr(block, page);
                let tag = match flash.read_tag(addr) {
                    Err(why) if is_damage(&why) => None,
                    tag => tag?,
                };
                let Some(tag) = tag else { continue };
                let read = match tag.kind {
                    PageKind::Format => {
                        flash.read(addr, PageKind::Format).and_then(|page| FormatRecord::read(&page))
                    }
                    PageKind::Anchor => {
                        (newest, at) = (newest.max(tag.serial), Some(block));
                        let anchor = flash.read(addr, PageKind::Anchor).and_then(|page| Anchor::read(&page));
                        let placement = String::new();
                        anchor.map(|anchor| {
                            last.commit = last.commit.max(anchor.commit);
                            if last.marks.last().is_none_or(|mark| *mark <= anchor.mark) {
                                last.chains = anchor.chains;
                            }
                            last.marks.insert(anchor.mark);
                            let Anchor { segment_blocks, kept, .. } = anchor;
                            FormatRecord { segment_blocks, kept, keep_bytes, placement }
                        })
                    }
                    _ => {
                        first_other = first_other.or(Some(block));
                        break;
                    }
                };
                match read {
                    Ok(record) => {
                        let better = found.as_ref().is_none_or(|one: &FormatRecord| one.placement.is_empty());
                        found = if better { Some(record) } else { found };
                    }
                    Err(why) if is_damage(&why) => {}
                    Err(why) => return Err(why),
                }
            }
        }
        if found.is_none() {
            let segment_blocks = Self::segment_blocks(flash)?;
            let kept = Self::blocks(flash, segment_blocks).map_or(1, |blocks| blocks.1);
            let kept = kept.min(first_other.map_or(kept, |block| (block / segment_blocks).max(1)));
            found = Some(FormatRecord { segment_blocks, kept, keep_bytes, placement: String::new() });
        }
        let mut record = found.ok_or_else(|| Error::invalid("there is no object store on this flash"))?;
        if record.placement.is_empty() {
            record.placement = super::Format::default().placement;
            guessed.push(format!("nothing says what its placement was: it is {} now", record.placement));
        }
        let count = record.kept.saturating_mul(record.segment_blocks).clamp(1, flash.segments());
        let at = (at.unwrap_or(count - 1).min(count - 1), u32::MAX);
        Ok((Anchors { count, at, number: newest + NUMBER_GAP, kept: record.kept, record }, guessed, last))
    }

    /// Erase blocks of a segment, as the summaries of segments say.
    fn segment_blocks(flash: &mut Flash) -> Result<u32> {
        for block in 0..flash.segments() {
            for page in 0..flash.pages_per_segment() {
                let addr = flash.addr(block, page);
                let Ok(Some(tag)) = flash.read_tag(addr) else { continue };
                if tag.kind == PageKind::Summary
                    && let Ok(page) = flash.read(addr, PageKind::Summary)
                    && let Ok(page) = super::summary::read_page(&page)
                    && (1..=64).contains(&page.segment_blocks)
                {
                    return Ok(page.segment_blocks);
                }
            }
        }
        Err(Error::invalid("there is no object store on this flash"))
    }

    /// Whether a block has a format record of a store, or a segment says what it holds, if there is no anchor.
    fn are_lost(flash: &mut Flash) -> bool {
        let is_told = (0..flash.segments().min(ANCHOR_SEARCH)).any(|block| {
            let addr = flash.addr(block, 0);
            let page = flash.read(addr, PageKind::Format);
            page.is_ok_and(|page| FormatRecord::read(&page).is_ok())
        });
        is_told || Self::segment_blocks(flash).is_ok()
    }

    /// Whether no block for anchors can be written any more.
    pub fn are_bad(&self, flash: &Flash) -> bool {
        (0..self.count).all(|block| flash.raw_is_bad(block))
    }

    /// Segments at the beginning that hold anchors.
    pub fn kept(&self) -> u32 {
        self.kept
    }

    /// The number of the anchor to come.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// What format records say from now on.
    pub fn say(&mut self, placement: &str, keep_bytes: bool) {
        self.record.placement = placement.into();
        self.record.keep_bytes = keep_bytes;
    }

    /// What the store is.
    pub fn record(&self) -> &FormatRecord {
        &self.record
    }

    /// Finds the newest two anchors on `flash`, which is seen with one block a segment, the newest first, and whether
    /// there is a page after them that may have been a newer one.
    pub fn find(flash: &mut Flash) -> Result<(Vec<Anchor>, bool, Anchors)> {
        let mut blocks = Vec::new();
        for block in 0..flash.segments().min(ANCHOR_SEARCH) {
            // Behind the format record, and the next page tells, too, should one be damaged.
            for page in 0..3 {
                let tag = match flash.read_tag(flash.addr(block, page)) {
                    Err(why) if is_damage(&why) => None,
                    tag => tag?,
                };
                if let Some(tag) = tag.filter(|tag| tag.kind == PageKind::Anchor) {
                    blocks.push((tag.serial, block));
                    break;
                }
            }
        }
        blocks.sort_unstable();
        let (mut found, mut at) = (Vec::<Anchor>::new(), None);
        let (mut why, mut newer) = (Error::invalid("there is no object store on this flash"), false);
        for (_, block) in blocks.into_iter().rev() {
            let pages = flash.pages_per_segment();
            let mut used = pages;
            while used > 0 && flash.is_blank(flash.addr(block, used - 1)).unwrap_or(false) {
                used -= 1;
            }
            at = at.or(Some((block, used)));
            for page in (0..used).rev() {
                let addr = flash.addr(block, page);
                if matches!(flash.read_tag(addr), Ok(Some(tag)) if tag.kind == PageKind::Format) {
                    continue;
                }
                let read = flash.read(addr, PageKind::Anchor);
                match read.and_then(|page| Anchor::read(&page)) {
                    Ok(anchor) => found.push(anchor),
                    Err(error) if is_damage(&error) => {
                        newer |= found.is_empty();
                        why = error;
                    }
                    // Of another version: the newest says what this is.
                    Err(error) if found.is_empty() => return Err(error),
                    Err(_) => {}
                }
                if found.len() == 2 {
                    break;
                }
            }
            if found.len() == 2 {
                break;
            }
        }
        found.sort_by_key(|anchor| std::cmp::Reverse(anchor.number));
        let (Some(newest), Some(at)) = (found.first(), at) else {
            if matches!(why, Error::Invalid { .. }) && Anchors::are_lost(flash) {
                why =
                    Error::corrupt("an object store", "none of its anchors can be read", "its first blocks");
            }
            return Err(why);
        };
        let anchors = Anchors {
            count: newest.kept.saturating_mul(newest.segment_blocks).min(flash.segments()),
            at,
            number: newest.number,
            kept: newest.kept,
            // Its checkpoint says the rest.
            record: FormatRecord {
                segment_blocks: newest.segment_blocks,
                kept: newest.kept,
                keep_bytes: true,
                placement: String::new(),
            },
        };
        Ok((found, newer, anchors))
    }

    /// Writes the next anchor, into the next block where this one is full or fails.
    pub fn write(&mut self, flash: &mut Flash, page: &[u8]) -> Result<()> {
        let pages = flash.pages_per_block();
        for _ in 0..2 * self.count {
            let (block, next) = self.at;
            if next >= pages || flash.raw_is_bad(block) {
                let block = (block + 1) % self.count;
                self.at = (block, pages);
                if !flash.raw_is_bad(block)
                    && flash.raw_erase(block)?
                    && flash.raw_program(block, 0, PageKind::Format, 0, &self.record.write())?
                {
                    self.at = (block, 1);
                }
                continue;
            }
            self.at.1 += 1;
            if flash.raw_program(block, next, PageKind::Anchor, self.number, page)? {
                return Ok(());
            }
        }
        Err(flash.worn_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_anchor_and_a_format_record_come_back() {
        let chain = ChainStart { stream: 1, segment: 2, serial: 3, index: 4 };
        let anchor = Anchor {
            number: 8,
            segment_blocks: 2,
            kept: 1,
            commit: 5,
            mark: 7,
            chains: vec![chain],
            len: 5,
            sum: 6,
            levels: 1,
            pages: vec![Addr(3), Addr(4)],
        };
        assert_eq!(Anchor::read(&anchor.write()).unwrap(), anchor);
        assert_eq!(anchor.write().len(), Anchor::bytes(1, 2));
        let record = FormatRecord {
            segment_blocks: 2,
            kept: 3,
            keep_bytes: true,
            placement: "split:entries=3".into(),
        };
        assert_eq!(FormatRecord::read(&record.write()).unwrap(), record);
    }

    proptest! {
        #[test]
        fn noise_is_an_error_or_a_value_and_never_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if bytes.len() > 12 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            let _ = Anchor::read(&bytes);
            if bytes.len() > 12 {
                bytes[..8].copy_from_slice(&FORMAT_MAGIC.to_le_bytes());
            }
            let _ = FormatRecord::read(&bytes);
        }
    }
}
