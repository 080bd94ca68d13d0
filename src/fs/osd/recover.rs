//! Making a store, and opening one: the newest anchor, its checkpoint, and the log after it.
//!
//! 1. The anchor with the highest number that reads well says where the checkpoint is.
//! 2. The checkpoint says where the node table is and what is alive in each segment.
//! 3. Each chain is followed from where the anchor says, page after page, from a segment's summary to the next
//!    segment, to the first page that is not of it. Complete commits are applied in order.
//! 4. Access times that are not merged are taken up.
//!
//! Nothing is written before the first change; that one begins with a checkpoint, unless the store was closed.
//! Cost: the pages since the last checkpoint, one spare area each, and the checkpoint itself.

use super::append::read_summary;
use super::checkpoint::{Anchor, Anchors, ChainStart, State};
use super::flash::{Addr, Flash};
use super::layout::PageKind;
use super::log::{self, LogPage, Record};
use super::placement::{self, What};
use super::segments::{self, Segments};
use super::tree::{NOWHERE, Tree};
use super::{Access, Buffer, Counts, Format, Options, Store};
use crate::checksum::crc32c;
use crate::media::nand::Nand;
use crate::time::Time;
use crate::{Error, Result};
use rustc_hash::FxHashSet;

/// Smaller pages hold too little of an index.
const PAGE_BYTES_MIN: u64 = 2048;
/// After a power cut, numbers of uses of segments go on so much later, past any that were given out.
const SERIAL_GAP: u64 = 1 << 20;

impl Store {
    /// Makes an empty store on an array, whatever was on it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the array or a segment is too small, or the placement is none;
    /// [`Error::Unsupported`] for pages below 2 KiB or an array that keeps no sequence numbers.
    pub fn format(nand: Nand, format: &Format, options: Options) -> Result<Store> {
        check_array(&nand)?;
        if !(1..=64).contains(&format.segment_blocks) {
            return Err(Error::invalid("a segment has from 1 to 64 erase blocks"));
        }
        let mut flash = Flash::new(nand, 1);
        for block in 0..flash.segments().min(64) {
            if !flash.raw_is_bad(block) && !flash.is_erased(block) {
                flash.raw_erase(block)?;
            }
        }
        let anchors = Anchors::new(&mut flash, format.segment_blocks)?;
        let flash = flash.with_segments(format.segment_blocks);
        let state = State { next_object: 1, placement: format.placement.clone(), ..State::default() };
        let mut store = Store::with(flash, anchors, &state, options)?;
        if store.capacity().total == 0 {
            let segments = store.segments.count();
            return Err(Error::invalid(format!("{segments} segments are too few for an object store")));
        }
        store.checkpoint_now(false)?;
        store.counts = Counts::default();
        Ok(store)
    }

    /// Opens the store on an array.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Corrupt`] if it cannot be read;
    /// [`Error::Unsupported`] if it is of another version.
    pub fn open(nand: Nand, options: Options) -> Result<Store> {
        check_array(&nand)?;
        let mut flash = Flash::new(nand, 1);
        let (anchor, anchors) = Anchors::find(&mut flash)?;
        let mut flash = flash.with_segments(anchor.segment_blocks);
        let pages = read_lists(&mut flash, &anchor)?;
        let state = read_state(&mut flash, &anchor, &pages)?;
        if state.keep_bytes != options.keep_bytes {
            let how = if state.keep_bytes { "keeps" } else { "does not keep" };
            return Err(Error::invalid(format!("the object store {how} the bytes of its objects")));
        }
        let mut store = Store::with(flash, anchors, &state, options)?;
        store.checkpoint_pages = pages;
        store.restore(&anchor, state)?;
        store.counts = Counts::default();
        Ok(store)
    }

    fn with(flash: Flash, anchors: Anchors, state: &State, options: Options) -> Result<Store> {
        let mut placement = placement::make(&state.placement)?;
        placement.size(u64::from(flash.segments()));
        let page_bytes = flash.page_bytes();
        let cache_bytes = options.cache_bytes as usize;
        let segments = Segments::new(&flash, anchors.kept);
        let bytes = u64::from(flash.segments()) * segments.segment_bytes();
        let streams = placement.streams();
        let mut chains = vec![placement.place(What::Log), placement.place(What::Access)];
        chains.dedup();
        Ok(Store {
            tree: Tree::new(page_bytes, cache_bytes),
            buffer: Buffer::default(),
            access: Access::from(state.next_access),
            journal: placement.journal_entries(),
            placement,
            placement_text: state.placement.clone(),
            buffer_max: options.buffer_bytes.min(bytes / 32).max(page_bytes as u64),
            options,
            open: (0..streams).map(|_| None).collect(),
            chains,
            serial: state.serial,
            changed: FxHashSet::default(),
            commit: 0,
            log_pages: 0,
            tables: state.tables.clone(),
            table_dirty: FxHashSet::default(),
            old_tables: Vec::new(),
            checkpoint_pages: Vec::new(),
            anchors,
            broken: true,
            next_object: state.next_object,
            objects: state.objects,
            reserved_bytes: state.reserved_bytes,
            clock: state.clock,
            held: 0,
            giving: 0,
            steps: super::Steps::default(),
            failed: None,
            counts: Counts::default(),
            #[cfg(test)]
            fails_in: None,
            flash,
            segments,
        })
    }

    /// Brings a store to the state of a checkpoint and what was committed since.
    fn restore(&mut self, anchor: &Anchor, state: State) -> Result<()> {
        self.commit = anchor.commit;
        let table = self.read_table(&state)?;
        let cache_bytes = self.options.cache_bytes as usize;
        self.tree = Tree::of(&table, self.flash.page_bytes(), cache_bytes);
        self.restore_segments(&state)?;
        let mut found = Vec::new();
        for chain in &anchor.chains {
            found.extend(self.follow(*chain)?);
        }
        for addr in &state.access_pages {
            let page = self.flash.read(*addr, PageKind::Access)?;
            self.add_access_page(*addr);
            self.restore_accesses(&page)?;
        }
        let logged: Vec<Addr> =
            found.iter().filter(|page| page.1 == PageKind::Log).map(|page| page.0).collect();
        self.apply_log(&logged)?;
        for (addr, _) in found.iter().filter(|page| page.1 == PageKind::Access) {
            let page = self.flash.read(*addr, PageKind::Access)?;
            self.add_access_page(*addr);
            self.restore_accesses(&page)?;
        }
        self.close_what_is_used();
        if found.is_empty() {
            self.go_on(anchor, state)?;
        }
        if self.broken {
            self.serial += SERIAL_GAP;
        }
        Ok(())
    }

    fn read_table(&mut self, state: &State) -> Result<Vec<u32>> {
        let mut table = Vec::with_capacity(state.nodes as usize);
        for addr in &state.tables {
            let page = self.flash.read(self.checked(Addr(*addr))?, PageKind::Table)?;
            table.extend(
                page.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])),
            );
        }
        if table.len() < state.nodes as usize || state.nodes == 0 {
            return Err(Error::corrupt("the node table of the object store", "it is too short", state.nodes));
        }
        table.truncate(state.nodes as usize);
        for addr in table.iter().filter(|addr| **addr != NOWHERE) {
            self.checked(Addr(*addr))?;
        }
        Ok(table)
    }

    fn checked(&self, addr: Addr) -> Result<Addr> {
        checked(&self.flash, addr)
    }

    fn restore_segments(&mut self, state: &State) -> Result<()> {
        if state.segments.len() != self.segments.count() {
            let why = format!("it lists {} segments of {}", state.segments.len(), self.segments.count());
            return Err(Error::corrupt("a checkpoint of the object store", why, "its segments"));
        }
        for (number, (live, born, written)) in (0..).zip(&state.segments) {
            self.segments.add_bytes(number, *live);
            self.segments.set_age(number, *born, *written);
        }
        let nodes: Vec<Addr> = self.tree.pages().map(|(_, addr)| addr).collect();
        let tables = state.tables.iter().filter(|addr| **addr != NOWHERE).map(|addr| Addr(*addr));
        for addr in nodes.into_iter().chain(tables).chain(self.checkpoint_pages.clone()) {
            self.segments.add_page(self.segments.of(self.checked(addr)?));
        }
        Ok(())
    }

    /// Follows a chain; its log and access pages in order.
    fn follow(&mut self, start: ChainStart) -> Result<Vec<(Addr, PageKind)>> {
        let mut found = Vec::new();
        let (mut segment, mut serial, mut index) = (start.segment, start.serial, start.index);
        loop {
            if segment as usize >= self.segments.count() {
                return Err(Error::corrupt("a chain of the object store", "it leads nowhere", segment));
            }
            self.serial = self.serial.max(serial);
            self.segments.set_used(&self.flash, segment, segments::State::Closed);
            self.segments.pin(segment);
            let mut next = None;
            while index < self.flash.pages_per_segment() {
                let addr = self.flash.addr(segment, index);
                index += 1;
                if self.flash.is_bad(addr) && self.flash.read_tag(addr)?.is_none() {
                    continue;
                }
                match self.flash.read_tag(addr)? {
                    Some(tag) if tag.serial == serial => match tag.kind {
                        PageKind::Log | PageKind::Access => found.push((addr, tag.kind)),
                        PageKind::Summary => {
                            let page = self.flash.read(addr, PageKind::Summary)?;
                            next = read_summary(&page)?.next;
                        }
                        _ => {}
                    },
                    _ => break,
                }
            }
            match next {
                // Each use of a segment has a later number than all before it: a chain that goes back would never end.
                Some((number, its)) if its <= serial => {
                    let why = format!(
                        "use {serial} of segment {segment} leads back to use {its} of segment {number}"
                    );
                    return Err(Error::corrupt(
                        "a chain of the object store",
                        why,
                        format!("segment {segment}"),
                    ));
                }
                Some((number, its)) => (segment, serial, index) = (number, its, 0),
                None => return Ok(found),
            }
        }
    }

    /// Applies the commits that are complete.
    fn apply_log(&mut self, pages: &[Addr]) -> Result<()> {
        let mut waiting: Vec<Record> = Vec::new();
        let mut part = 0;
        for addr in pages {
            let page = self.flash.read(*addr, PageKind::Log)?;
            let LogPage { commit, part: its, last, records } = log::read_page(&page)?;
            if commit != self.commit + 1 || its != part {
                let why = format!("part {its} of commit {commit} follows part {part} of {}", self.commit + 1);
                return Err(Error::corrupt("the log of the object store", why, addr.0));
            }
            self.log_pages += 1;
            part += 1;
            waiting.extend(records);
            if last {
                waiting.drain(..).try_for_each(|record| self.apply_record(record))?;
                self.commit = commit;
                part = 0;
            }
        }
        Ok(())
    }

    fn apply_record(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Numbers { next_object, next_access, clock } => {
                self.next_object = self.next_object.max(next_object);
                self.access.next = self.access.next.max(next_access);
                self.clock = self.clock.max(clock);
            }
            Record::Put(key, value) => drop(self.apply(key, Some(value))?),
            Record::Delete(key) => drop(self.apply(key, None)?),
        }
        Ok(())
    }

    fn close_what_is_used(&mut self) {
        for number in 0..self.segments.count() as u32 {
            let segment = self.segments.get(number);
            if segment.state == segments::State::Free && (segment.live_bytes > 0 || segment.live_pages > 0) {
                self.segments.set_used(&self.flash, number, segments::State::Closed);
            }
        }
    }

    /// After a clean end: goes on with the segments that were open, where nothing was written to them since.
    fn go_on(&mut self, anchor: &Anchor, state: State) -> Result<()> {
        for (stream, open) in state.open.into_iter().enumerate().take(self.open.len()) {
            let Some(mut open) = open else { continue };
            if open.segment as usize >= self.segments.count() {
                continue;
            }
            // The checkpoint itself came after what it says.
            for addr in &self.checkpoint_pages {
                if self.segments.of(*addr) == open.segment {
                    open.next = open.next.max(self.flash.index_of(*addr) + 1);
                }
            }
            let used = self.segments.get(open.segment).state;
            let ends = open.next >= self.flash.pages_per_segment();
            if used == segments::State::Bad || ends {
                continue;
            }
            if self.flash.is_blank(self.flash.addr(open.segment, open.next))? {
                self.segments.set_used(&self.flash, open.segment, segments::State::Open);
                self.open[stream] = Some(open);
            }
        }
        let at = |stream: usize| self.open[stream].as_ref().map(|open| (open.segment, open.next));
        let follows = |chain: &ChainStart| {
            self.open.len() > chain.stream as usize
                && at(chain.stream as usize) == Some((chain.segment, chain.index))
        };
        self.broken = anchor.chains.len() != self.chains.len() || !anchor.chains.iter().all(follows);
        if self.broken {
            self.abandon_open();
        }
        Ok(())
    }
}

fn check_array(nand: &Nand) -> Result<()> {
    let geometry = nand.geometry();
    if u64::from(geometry.page_bytes) < PAGE_BYTES_MIN {
        return Err(Error::unsupported(
            format!("an object store on pages of {} bytes", geometry.page_bytes),
            format!("it needs pages of {PAGE_BYTES_MIN} bytes or more"),
        ));
    }
    if !nand.keeps_sequences() || !nand.keeps_bytes() {
        return Err(Error::unsupported(
            "an object store on an array without sequence numbers or bytes",
            "make it with them",
        ));
    }
    Ok(())
}

fn checked(flash: &Flash, addr: Addr) -> Result<Addr> {
    if flash.segment_of(addr) < flash.segments() {
        return Ok(addr);
    }
    Err(Error::corrupt("a checkpoint of the object store", "a page past the end of the flash", addr.0))
}

/// All pages of a checkpoint and of the lists of them, those of the checkpoint first.
fn read_lists(flash: &mut Flash, anchor: &Anchor) -> Result<Vec<Addr>> {
    let mut wanted = (0..anchor.levels).map(|_| 0).collect::<Vec<usize>>();
    // How many pages each list names, from the checkpoint's length up.
    let mut count = (anchor.len as usize).div_ceil(flash.page_bytes());
    for names in &mut wanted {
        *names = count;
        count = (count * 4).div_ceil(flash.page_bytes());
    }
    if anchor.pages.len() != count {
        let why = format!("it lists {} pages of {count}", anchor.pages.len());
        return Err(Error::corrupt("an anchor of the object store", why, anchor.number));
    }
    let (mut list, mut above) = (anchor.pages.clone(), Vec::new());
    for names in wanted.into_iter().rev() {
        let mut below = Vec::new();
        for addr in &list {
            let page = flash.read(checked(flash, *addr)?, PageKind::Checkpoint)?;
            let number = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            below.extend(page.chunks_exact(4).map(|four| Addr(number(four))));
        }
        below.truncate(names);
        above.append(&mut list);
        list = below;
    }
    list.append(&mut above);
    Ok(list)
}

fn read_state(flash: &mut Flash, anchor: &Anchor, pages: &[Addr]) -> Result<State> {
    let mut bytes = Vec::new();
    for addr in &pages[..(anchor.len as usize).div_ceil(flash.page_bytes()).min(pages.len())] {
        let addr = checked(flash, *addr)?;
        bytes.extend_from_slice(&flash.read(addr, PageKind::Checkpoint)?);
    }
    bytes.truncate(anchor.len as usize);
    if bytes.len() != anchor.len as usize || crc32c(&bytes) != anchor.sum {
        return Err(Error::corrupt(
            "a checkpoint of the object store",
            "its checksum is wrong",
            anchor.number,
        ));
    }
    flash.now = Time::ZERO;
    State::read(&bytes)
}
