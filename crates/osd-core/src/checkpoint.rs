//! Checkpoints: the tree as it is, where everything lies, and the anchor that says so.
//!
//! A checkpoint writes, in this order: the nodes that changed; the parts of the node table that changed; its
//! own state (numbers, where the table lies, what is alive in each segment, pages of access times); and,
//! when all that is on the flash, an *anchor* page (`anchors`).
//!
//! **Two generations.** What the checkpoint before the newest names is kept, and so is the log from it to the newest,
//! which therefore begins with a commit of all that changed. Where the newest cannot be read the store goes on from
//! the one before, with the same contents. A page of the node table belongs to many checkpoints, so each is
//! written twice. When the next checkpoint is there, what only the oldest one named is dead.

use super::anchors::{Anchor, Anchors};
use super::append::{Media, Open};
use super::extents::Index;
use super::flash::{Addr, Flash};
use super::layout::{Input, Output, PageKind};
use super::node::By;
use super::placement::DataClass;
use super::recover::checked;
use super::segments::Segments;
use super::summary::{Entries, LogEntry};
use super::tree::{NOWHERE, ROOT, Tree};
use super::{Store, is_damage};
use bimetal_base::checksum::crc32c;
use bimetal_base::{Error, Result};
use rustc_hash::FxHashSet;

/// The state in a checkpoint.
#[derive(Debug, Default)]
pub(super) struct State {
    pub next_object: u64,
    pub next_access: u64,
    pub clock: u64,
    pub serial: u64,
    pub objects: u64,
    pub reserved_bytes: u64,
    pub placement: String,
    pub keep_bytes: bool,
    pub nodes: u32,
    pub tables: Vec<u32>,
    /// The second copies of the pages of the node table.
    pub twins: Vec<u32>,
    pub access_pages: Vec<Addr>,
    /// Pages that only the checkpoint before this one names, and segments with the log from it to this one.
    pub retired: Vec<Addr>,
    pub older_log: Vec<u32>,
    /// Live bytes, born, written, of each segment.
    pub segments: Vec<(u32, u64, u64)>,
    /// The open segments, after a clean end.
    pub open: Vec<Option<Open>>,
}

impl State {
    fn write(&self) -> Vec<u8> {
        let mut out = Output::default();
        for number in [
            self.next_object,
            self.next_access,
            self.clock,
            self.serial,
            self.objects,
            self.reserved_bytes,
            u64::from(self.keep_bytes),
            u64::from(self.nodes),
            self.tables.len() as u64,
            self.access_pages.len() as u64,
            self.segments.len() as u64,
            self.open.len() as u64,
            self.retired.len() as u64,
            self.older_log.len() as u64,
        ] {
            out.varint(number);
        }
        out.bytes(self.placement.as_bytes());
        debug_assert_eq!(self.tables.len(), self.twins.len());
        self.tables.iter().chain(&self.twins).for_each(|addr| out.u32(*addr));
        self.access_pages.iter().chain(&self.retired).for_each(|addr| out.u32(addr.0));
        self.older_log.iter().for_each(|segment| out.u32(*segment));
        for (live, born, written) in &self.segments {
            out.varint(u64::from(*live));
            out.varint(self.clock.saturating_sub(*born));
            out.varint(self.clock.saturating_sub(*written));
        }
        for open in &self.open {
            match open {
                None => out.byte(0),
                Some(open) => {
                    out.byte(1);
                    out.varint(u64::from(open.segment));
                    out.varint(open.serial);
                    out.varint(u64::from(open.next));
                    out.bytes(&open.entries.write());
                }
            }
        }
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<State> {
        let mut input = Input::new("a checkpoint of the object store", bytes);
        let mut numbers = [0; 14];
        for number in &mut numbers {
            *number = input.varint()?;
        }
        let [next_object, next_access, clock, serial, objects, reserved_bytes, keep, nodes, counts @ ..] =
            numbers;
        if counts.iter().any(|count| *count > bytes.len() as u64) || nodes >= u64::from(u32::MAX) {
            return Err(input.wrong("it lists more than it can hold"));
        }
        let placement = String::from_utf8_lossy(input.bytes()?).into_owned();
        let mut state = State {
            next_object,
            next_access,
            clock,
            serial,
            objects,
            reserved_bytes,
            placement,
            keep_bytes: keep != 0,
            nodes: nodes as u32,
            ..State::default()
        };
        for _ in 0..counts[0] {
            state.tables.push(input.u32()?);
        }
        for _ in 0..counts[0] {
            state.twins.push(input.u32()?);
        }
        for _ in 0..counts[1] {
            state.access_pages.push(Addr(input.u32()?));
        }
        for _ in 0..counts[4] {
            state.retired.push(Addr(input.u32()?));
        }
        for _ in 0..counts[5] {
            state.older_log.push(input.u32()?);
        }
        for _ in 0..counts[2] {
            let live = input.below(1 << 32, "live bytes")? as u32;
            let (born, written) = (input.varint()?, input.varint()?);
            state.segments.push((live, clock.saturating_sub(born), clock.saturating_sub(written)));
        }
        for _ in 0..counts[3] {
            state.open.push(Self::read_open(&mut input)?);
        }
        Ok(state)
    }

    fn read_open(input: &mut Input) -> Result<Option<Open>> {
        if input.byte()? == 0 {
            return Ok(None);
        }
        let segment = input.below(1 << 32, "a segment")? as u32;
        let serial = input.varint()?;
        let next = input.below(1 << 32, "a page")? as u32;
        Ok(Some(Open { segment, serial, next, entries: Entries::read(input.bytes()?)? }))
    }
}

/// Where the last checkpoint lies, and the node table that it names.
///
/// **Invariant.** Pages of the last checkpoint, and of the tables it names, are alive until the next one is there.
pub(super) struct Checkpoints {
    anchors: Anchors,
    /// Pages of the node table, their second copies, and those that differ from it.
    tables: Vec<u32>,
    twins: Vec<u32>,
    dirty: FxHashSet<u32>,
    /// Pages of the table that the next checkpoint replaces.
    old: Vec<Addr>,
    pages: Vec<Addr>,
    /// What the checkpoint before the last one named, and the last one does not.
    retired: Vec<Addr>,
}

/// Nodes that one page of the node table has places for.
fn nodes_per_table(media: &Media) -> u32 {
    (media.flash.page_bytes() / 4) as u32
}

impl Checkpoints {
    /// Those of a new store.
    pub fn new(anchors: Anchors) -> Checkpoints {
        Checkpoints {
            anchors,
            tables: Vec::new(),
            twins: Vec::new(),
            dirty: FxHashSet::default(),
            old: Vec::new(),
            pages: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Where a checkpoint was made of `state`, which lies on `pages`.
    pub fn of(mut anchors: Anchors, state: &State, pages: Vec<Addr>) -> Checkpoints {
        anchors.say(&state.placement, state.keep_bytes);
        Checkpoints {
            tables: state.tables.clone(),
            twins: state.twins.clone(),
            pages,
            retired: state.retired.clone(),
            ..Checkpoints::new(anchors)
        }
    }

    /// Pages that only the checkpoint before the last one names.
    pub fn retired(&self) -> &[Addr] {
        &self.retired
    }

    /// Segments at the beginning that hold anchors.
    pub fn kept(&self) -> u32 {
        self.anchors.kept()
    }

    /// Whether no block for anchors can be written any more.
    pub fn has_no_anchor_block(&self, flash: &Flash) -> bool {
        self.anchors.are_bad(flash)
    }

    /// The next checkpoint writes the whole node table, of so many nodes.
    pub fn renew_all(&mut self, nodes: usize, per_table: usize) {
        self.dirty.extend(0..nodes.div_ceil(per_table) as u32);
    }

    /// The pages of the last checkpoint.
    pub fn pages(&self) -> &[Addr] {
        &self.pages
    }

    /// The pages of the node table.
    pub fn tables(&self) -> impl Iterator<Item = Addr> {
        let both = self.tables.iter().chain(&self.twins);
        both.filter(|addr| **addr != NOWHERE).map(|addr| Addr(*addr))
    }

    /// The pages of the node table that lie in a segment are written again.
    pub fn renew_tables(&mut self, segments: &Segments, segment: u32) {
        let lies = |addr: u32| addr != NOWHERE && segments.of(Addr(addr)) == segment;
        for copies in [&self.tables, &self.twins] {
            let there = (0..).zip(copies).filter(|(_, addr)| lies(**addr)).map(|(number, _)| number);
            self.dirty.extend(there);
        }
    }

    /// The node table.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names a page of which neither copy can be read.
    pub fn read_table(&mut self, flash: &mut Flash, nodes: u32) -> Result<Vec<u32>> {
        let mut table = Vec::new();
        for (number, (addr, twin)) in (0..).zip(self.tables.iter().zip(&self.twins)) {
            let mut read = |addr: u32| flash.read(checked(flash, Addr(addr))?, PageKind::Table);
            // Both are looked at: the second is no help if nobody knows that it is gone.
            let page = match (read(*addr), read(*twin)) {
                (Ok(page), Ok(_)) => page,
                (Ok(page), Err(why)) | (Err(why), Ok(page)) if is_damage(&why) => {
                    tracing::warn!("osd: {why}; the other copy counts");
                    self.dirty.insert(number);
                    page
                }
                (Err(why), _) | (_, Err(why)) => return Err(why),
            };
            table.extend(
                page.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])),
            );
        }
        if table.len() < nodes as usize || nodes == 0 {
            return Err(Error::corrupt("the node table of the object store", "it is too short", nodes));
        }
        table.truncate(nodes as usize);
        for addr in table.iter().filter(|addr| **addr != NOWHERE) {
            checked(flash, Addr(*addr))?;
        }
        Ok(table)
    }

    /// Writes the nodes that changed, with the mark of this checkpoint, and the parts of their table.
    pub fn write_index(&mut self, index: &mut Index, stream: usize, mark: u64) -> Result<()> {
        let Index { media, tree, log, .. } = index;
        let per_table = nodes_per_table(media);
        if tree.dirty() == 0 {
            // One node at least says what this checkpoint goes on from: what was given up before shows by that.
            match tree.rewrite(&mut media.flash, ROOT) {
                Err(why) if !is_damage(&why) => return Err(why),
                _ => {}
            }
        }
        let nodes = tree.dirty_nodes();
        let mut by = By { which: 0, count: nodes.len() as u32, mark, base: log.base(), commit: log.commit() };
        for id in nodes {
            let mut page = Output::default();
            tree.encode(id, &by, &mut page);
            by.which += 1;
            let addr =
                media.append_own(stream, PageKind::Node, &page.0, &[LogEntry::Node { id, index: 0 }])?;
            tree.wrote(id, addr);
            self.dirty.insert(id / per_table);
        }
        self.dirty.extend(tree.take_given_up().into_iter().map(|id| id / per_table));
        let count = (tree.table_len() as u32).div_ceil(per_table);
        self.tables.resize(count as usize, NOWHERE);
        self.twins.resize(count as usize, NOWHERE);
        let mut dirty: Vec<u32> = self.dirty.drain().filter(|number| *number < count).collect();
        dirty.sort_unstable();
        for number in dirty {
            let mut page = Output::default();
            for id in number * per_table..(number + 1) * per_table {
                page.u32(tree.addr(id));
            }
            for copies in [&mut self.tables, &mut self.twins] {
                let addr = media.append_own(stream, PageKind::Table, &page.0, &[])?;
                let old = std::mem::replace(&mut copies[number as usize], addr.0);
                if old != NOWHERE {
                    self.old.push(Addr(old));
                }
            }
        }
        Ok(())
    }

    /// Pages that the checkpoint to come does not name, and the last one does; those of the journal that were `merged`
    /// are among them.
    fn retiring(&self, tree: &Tree, merged: &[Addr]) -> Vec<Addr> {
        let replaced = self.pages.iter().copied().chain(self.old.iter().copied());
        replaced.chain(merged.iter().copied()).chain(tree.released()).collect()
    }

    /// Writes what a checkpoint says, and the anchor that names it; what only the one before the last named is dead,
    /// and what only the last one names, `retiring`, is so after the next.
    pub fn write(
        &mut self,
        index: &mut Index,
        stream: usize,
        mark: u64,
        bytes: &[u8],
        retiring: Vec<Addr>,
    ) -> Result<()> {
        let media = &mut index.media;
        let mut pages = write_pages(media, stream, bytes)?;
        let (mut first, mut levels) = (0, 0);
        // What the anchor has no room for is a list by itself, and the anchor names the list's pages.
        while Anchor::bytes(media.chains().len(), pages.len() - first) > media.flash.page_bytes() {
            let list: Vec<u8> = pages[first..].iter().flat_map(|addr| addr.0.to_le_bytes()).collect();
            first = pages.len();
            levels += 1;
            pages.extend(write_pages(media, stream, &list)?);
        }
        let anchor = Anchor {
            number: self.anchors.next_number(),
            segment_blocks: media.flash.segment_blocks(),
            kept: self.anchors.kept(),
            commit: index.log.commit(),
            mark,
            chains: media.chains(),
            len: bytes.len() as u32,
            sum: crc32c(bytes),
            levels,
            pages: pages[first..].to_vec(),
        };
        let page = anchor.write();
        assert!(page.len() <= media.flash.page_bytes(), "the lists were made so that it fits");
        media.counts.index_pages += 1;
        media.counts.checkpoints += 1;
        // What the anchor names must be there before it, and it before what it replaces is erased.
        media.flash.sync()?;
        self.anchors.write(&mut media.flash, &page)?;
        media.flash.sync()?;
        // The new checkpoint is there: nothing but it and the one before it is needed any more.
        self.pages = pages;
        self.old.clear();
        drop(index.tree.take_released());
        for addr in std::mem::replace(&mut self.retired, retiring) {
            media.segments.drop_page(media.segments.of(addr));
        }
        index.log.start_over(mark);
        media.settle_checkpoint();
        Ok(())
    }
}

fn write_pages(media: &mut Media, stream: usize, bytes: &[u8]) -> Result<Vec<Addr>> {
    let parts = bytes.chunks(media.flash.page_bytes());
    parts.map(|part| media.append_own(stream, PageKind::Checkpoint, part, &[])).collect()
}

impl Store {
    /// A checkpoint, after which nothing is to be recovered if it is `clean` and the last thing done.
    pub(super) fn checkpoint_now(&mut self, clean: bool) -> Result<()> {
        let done = self.checkpoint(clean);
        self.or_fail(done)
    }

    pub(super) fn checkpoint(&mut self, clean: bool) -> Result<()> {
        self.write_out()?;
        self.move_unsaid()?;
        // Whoever begins with the checkpoint before finds all of this one in the log.
        self.write_log()?;
        let merged = self.merge_if_due(clean)?;
        // Whoever has nothing of the index finds all of it in the segments.
        self.index.media.say_so_far()?;
        let stream = self.placement.place(DataClass::Index);
        let mark = self.index.media.when();
        self.checkpoints.write_index(&mut self.index, stream, mark)?;
        // The chains go on from where they are after the last page of this checkpoint.
        self.index.media.open_chains()?;
        let retiring = self.checkpoints.retiring(&self.index.tree, &merged);
        let bytes = self.state(clean, retiring.clone()).write();
        self.checkpoints.write(&mut self.index, stream, mark, &bytes, retiring)
    }

    /// Access pages that this checkpoint makes superfluous; none if it does not merge.
    fn merge_if_due(&mut self, clean: bool) -> Result<Vec<Addr>> {
        if !self.access.is_used() {
            return Ok(Vec::new());
        }
        // Nothing of the journal is waiting after a merge; half-way there is no hurry.
        let due = self.access.is_due() || clean && self.access.waiting() > 0;
        if due {
            self.access.merge(&mut self.index)?;
        } else if self.journal_is_crowded() {
            let stream = self.placement.place(DataClass::Access);
            return self.access.shorten(&mut self.index, stream);
        }
        Ok(self.access.take_merged())
    }

    fn state(&self, clean: bool, retired: Vec<Addr>) -> State {
        let media = &self.index.media;
        let segment = |number: u32| {
            let segment = media.segments.get(number);
            (segment.live_bytes, segment.born, segment.written)
        };
        State {
            next_object: self.next_object,
            next_access: self.access.next(),
            clock: media.clock,
            serial: media.serial(),
            objects: self.index.objects(),
            reserved_bytes: self.index.reserved_bytes(),
            placement: self.placement_text.clone(),
            keep_bytes: self.options.keep_bytes,
            nodes: self.index.tree.table_len() as u32,
            tables: self.checkpoints.tables.clone(),
            twins: self.checkpoints.twins.clone(),
            retired,
            older_log: media.segments.pinned_for_newest().collect(),
            access_pages: self.access.pages().to_vec(),
            segments: (0..media.segments.count() as u32).map(segment).collect(),
            open: if clean { media.open() } else { Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_state_comes_back() {
        let mut entries = Entries::default();
        entries.note(LogEntry::Node { id: 1, index: 2 });
        entries.are_said();
        let open = Open { segment: 3, serial: 9, next: 4, entries };
        let state = State {
            next_object: 5,
            clock: 1000,
            placement: "split,entries=3".into(),
            tables: vec![7, NOWHERE],
            twins: vec![8, NOWHERE],
            access_pages: vec![Addr(9)],
            retired: vec![Addr(5), Addr(6)],
            older_log: vec![3],
            segments: vec![(4096, 10, 990)],
            open: vec![None, Some(open)],
            ..State::default()
        };
        let back = State::read(&state.write()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{state:?}"));
    }

    proptest! {
        #[test]
        fn noise_is_an_error_or_a_value_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = State::read(&bytes);
        }
    }
}
