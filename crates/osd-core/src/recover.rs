//! Making a store, and opening one: the newest anchor, its checkpoint, and the log after it.
//!
//! 1. The anchor with the highest number that reads well says where the checkpoint is.
//! 2. The checkpoint says where the node table is and what is alive in each segment. Where it cannot be read, or the
//!    table it names, the checkpoint before it counts.
//! 3. Unless the store was closed and not used since, the pages of the log since the checkpoint are found by the
//!    numbers of use of their segments, and complete commits applied in order.
//! 4. Access times that are not merged are taken up.
//!
//! What was found damaged on the way is kept for [`Store::check`] to name.
//!
//! Nothing is written before the first change; that one begins with a checkpoint, unless the store was closed.
//! Cost: the checkpoint itself, and the spare areas of what is left of open segments; after a power cut two spare areas a segment, and
//! those of the pages since the checkpoint.

use super::anchors::{Anchor, Anchors};
use super::append::Media;
use super::checkpoint::{Checkpoints, State};
use super::extents::Index;
use super::flash::{Addr, Flash};
use super::found::Found;
use super::layout::{PageKind, Value};
use super::log::Record;
use super::mend::Mended;
use super::placement::{self, DataClass};
use super::tree::Tree;
use super::{Access, Buffer, Counts, Format, Options, Store, is_damage};
use bimetal_base::checksum::crc32c;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Nand;

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
        make_placement(&format.placement)?;
        let mut flash = Flash::new(nand, 1);
        // Nothing of what was on it is taken for this store's, should its index have to be put together from its segments.
        flash.erase_all()?;
        let anchors = Anchors::new(&mut flash, format.segment_blocks, &format.placement, options.keep_bytes)?;
        let flash = flash.with_segments(format.segment_blocks);
        let state = State { next_object: 1, placement: format.placement.clone(), ..State::default() };
        let mut store = Store::with(flash, Checkpoints::new(anchors), &state, options)?;
        if store.capacity().total == 0 {
            let segments = store.index.media.segments.count();
            return Err(Error::invalid(format!("{segments} segments are too few for an object store")));
        }
        store.checkpoint_now(false)?;
        store.index.media.counts = Counts::default();
        Ok(store)
    }

    /// Opens the store on an array.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Corrupt`] if it cannot be read;
    /// [`Error::Unsupported`] if it is of another version.
    pub fn open(nand: Nand, options: Options) -> Result<Store> {
        check_array(&nand)?;
        Store::open_on(Flash::new(nand, 1), options).map_err(|why| match why {
            Error::Corrupt { what, why, at } => {
                let why = format!(
                    "{why}; `bimetal fsck --yes` puts the store together again from what its segments say"
                );
                Error::Corrupt { what, why, at }
            }
            why => why,
        })
    }

    /// Opens the store on a flash that is seen with one block a segment.
    pub(super) fn open_on(flash: Flash, options: Options) -> Result<Store> {
        Store::open_in(&mut Some(flash), options)
    }

    /// As [`open_on`](Store::open_on); where the store does not open, its flash stays in its place.
    pub(super) fn open_in(place: &mut Option<Flash>, options: Options) -> Result<Store> {
        let none = || Error::invalid("there is no object store on this flash");
        let (found, newer, anchors) = Anchors::find(place.as_mut().ok_or_else(none)?)?;
        *place = place.take().map(|flash| flash.with_segments(found[0].segment_blocks));
        let (Generation { anchor, state, checkpoints, table }, passed) =
            Generation::newest(place.as_mut().ok_or_else(none)?, found, &anchors)?;
        check_kept(state.keep_bytes, options.keep_bytes)?;
        make_placement(&state.placement)?;
        let mut store = Store::with(place.take().ok_or_else(none)?, checkpoints, &state, options)?;
        store.damage.clone_from(&passed.damage);
        if let Err(why) = store.restore(&anchor, state, &table, newer, &passed) {
            *place = Some(store.index.media.flash);
            return Err(why);
        }
        store.index.media.counts = Counts::default();
        Ok(store)
    }

    pub(super) fn with(
        flash: Flash,
        checkpoints: Checkpoints,
        state: &State,
        options: Options,
    ) -> Result<Store> {
        let mut placement = make_placement(&state.placement)?;
        placement.size(u64::from(flash.segments()));
        let page_bytes = flash.page_bytes();
        let mut chains = vec![placement.place(DataClass::Log), placement.place(DataClass::Access)];
        chains.dedup();
        let mut media = Media::new(flash, checkpoints.kept(), placement.streams(), chains);
        media.set_clocks(state.clock, state.serial);
        let bytes = media.segments.count() as u64 * media.segment_bytes();
        let tree = Tree::new(page_bytes, options.cache_bytes as usize);
        let mut index = Index::new(media, tree, options.keep_bytes);
        index.set_counts(state.objects, state.reserved_bytes);
        Ok(Store {
            index,
            checkpoints,
            buffer: Buffer::new(page_bytes as u64),
            access: Access::new(state.next_access, placement.journal_entries()),
            placement,
            placement_text: state.placement.clone(),
            buffer_max: options.buffer_bytes.min(bytes / 32).max(page_bytes as u64),
            options,
            next_object: state.next_object,
            held: 0,
            giving: 0,
            mending: false,
            failed: None,
            unsaid: Vec::new(),
            damage: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Brings a store to the state of a checkpoint and what was committed since; there may have been a `newer` one, whose
    /// pages are no pages of the log.
    fn restore(
        &mut self,
        anchor: &Anchor,
        state: State,
        table: &[u32],
        newer: bool,
        passed: &Passed,
    ) -> Result<()> {
        let rolled_back = newer || !self.damage.is_empty();
        let page_bytes = self.index.media.flash.page_bytes();
        self.index.tree = Tree::of(table, page_bytes, self.options.cache_bytes as usize);
        self.restore_segments(&state)?;
        for addr in &state.access_pages {
            self.restore_accesses(*addr)?;
        }
        let media = &mut self.index.media;
        media.close_what_is_used();
        if !rolled_back {
            media.go_on(&anchor.chains, state.open, self.checkpoints.pages())?;
        }
        self.index.log.set_base(anchor.mark);
        let media = &mut self.index.media;
        let mut pages = Vec::new();
        let was_broken = media.is_broken();
        if was_broken {
            // The store was not closed, or was used since.
            pages = media.pages_after(&anchor.chains)?;
            media.abandon(!pages.is_empty());
        }
        let of_kind = |kind: PageKind| pages.iter().filter(move |page| page.1 == kind).map(|page| page.0);
        let logged: Vec<Addr> = of_kind(PageKind::Log).collect();
        let Index { media, log, .. } = &mut self.index;
        let mut lost = Vec::new();
        let records = log.read(media, anchor.commit, &logged)?;
        if was_broken {
            let newest = passed.anchors.first().unwrap_or(anchor);
            if rolled_back && log.commit() < newest.commit {
                let why = format!("commits after {} up to {} cannot be read", log.commit(), newest.commit);
                return Err(Error::corrupt("the log of the object store", why, newest.number));
            }
            if media.is_chain_lost(&newest.chains)? {
                let why = "nothing can be read of the segment that it goes on in";
                return Err(Error::corrupt("the log of the object store", why, newest.number));
            }
            let its_pages: Vec<Addr> =
                passed.anchors.iter().flat_map(|anchor| &anchor.pages).copied().collect();
            let mut hidden = media.hidden_after(&anchor.chains, log.last_page(), &its_pages)?;
            // All of it is in the nodes that the checkpoint wrote.
            if let (true, Some(addr)) = (rolled_back, hidden.first()) {
                let why =
                    "it cannot be read, may be of the log, and the checkpoint after it cannot be read either";
                return Err(Error::corrupt("a page of the object store", why, addr.0));
            }
            hidden.extend(
                log.unread().iter().filter(|addr| !hidden.contains(addr)).copied().collect::<Vec<_>>(),
            );
            // A cut tears the last one, and no commit is written before the host keeps the one before it.
            let mut damaged = hidden.iter().filter(|addr| media.flash.was_whole(**addr));
            if let (Some(addr), Some(next)) = (damaged.next(), damaged.next()) {
                let why = format!("it cannot be read, nor can page {}, and both may be of the log", next.0);
                return Err(Error::corrupt("a page of the object store", why, addr.0));
            }
            if let Some(addr) = hidden.first() {
                self.damage.push(Mended::less(format!(
                    "page {} may be of the log and cannot be read, and none repeats it: the last commit may be lost",
                    addr.0
                )));
            }
        }
        self.note_unsaid(&records)?;
        let found = Found::of(&records, anchor.mark);
        for record in records {
            match self.apply_record(&record) {
                Err(why) if is_damage(&why) => {
                    // The log says what the checkpoint will: it must find its place.
                    lost.extend(self.index.tree.mend(&mut self.index.media.flash)?.1);
                    self.damage.push(Mended::whole(format!("the index is mended: {why}")));
                    self.apply_record(&record)?;
                }
                done => done?,
            }
        }
        for addr in of_kind(PageKind::Access).filter(|addr| !state.access_pages.contains(addr)) {
            self.restore_accesses(addr)?;
        }
        let media = &mut self.index.media;
        media.close_what_is_used();
        media.skip_serials(SERIAL_GAP);
        self.fill_lost(&lost, &found)
    }

    /// Notes the segments of which only the log says what was written to them last: they were open when the power went.
    pub(super) fn note_unsaid(&mut self, records: &[Record]) -> Result<()> {
        let media = &mut self.index.media;
        let mut named = std::collections::BTreeSet::new();
        for record in records {
            if let Record::Put(_, Value::Extent(extent)) = record
                && !extent.is_reserved()
            {
                named.insert((extent.at / media.segment_bytes()) as u32);
            }
        }
        let count = media.segments.count();
        for segment in named.into_iter().filter(|segment| (*segment as usize) < count) {
            if media.summary(segment)?.is_none() {
                self.unsaid.push(segment);
            }
        }
        Ok(())
    }

    /// Takes up a page of access times; what cannot be read of them is as old as before.
    fn restore_accesses(&mut self, addr: Addr) -> Result<()> {
        match self.access.restore_page(&mut self.index, addr) {
            Err(why) if is_damage(&why) => {
                let what = format!("some objects' access times are older than they were: {why}");
                self.damage.push(Mended::whole(what));
                Ok(())
            }
            done => done,
        }
    }

    pub(super) fn apply_record(&mut self, record: &Record) -> Result<()> {
        match record.clone() {
            Record::Numbers { next_object, next_access, clock } => {
                self.next_object = self.next_object.max(next_object);
                self.access.pass(next_access);
                self.index.media.clock = self.index.media.clock.max(clock);
            }
            Record::Put(key, value) => drop(self.index.apply(key, Some(value))?),
            Record::Delete(key) => drop(self.index.apply(key, None)?),
        }
        Ok(())
    }

    fn restore_segments(&mut self, state: &State) -> Result<()> {
        if state.segments.len() != self.index.media.segments.count() {
            let why = format!(
                "it lists {} segments of {}",
                state.segments.len(),
                self.index.media.segments.count()
            );
            return Err(Error::corrupt("a checkpoint of the object store", why, "its segments"));
        }
        for (number, (live, born, written)) in (0..).zip(&state.segments) {
            self.index.media.segments.add_bytes(number, *live);
            self.index.media.segments.set_age(number, *born, *written);
        }
        let nodes: Vec<Addr> = self.index.tree.pages().map(|(_, addr)| addr).collect();
        let named = self.checkpoints.pages().iter().chain(self.checkpoints.retired()).copied();
        for addr in nodes.into_iter().chain(self.checkpoints.tables()).chain(named) {
            let media = &mut self.index.media;
            media.segments.add_page(media.segments.of(checked(&media.flash, addr)?));
        }
        let Media { segments, flash, .. } = &mut self.index.media;
        for number in state.older_log.iter().copied().filter(|number| *number < flash.segments()) {
            segments.set_used(flash, number, super::segments::State::Closed);
            segments.pin_for_older(number);
        }
        Ok(())
    }
}

/// A checkpoint that can be read, with the table of the nodes it names.
struct Generation {
    anchor: Anchor,
    state: State,
    checkpoints: Checkpoints,
    table: Vec<u32>,
}

/// Checkpoints that cannot be read.
#[derive(Default)]
struct Passed {
    /// What is damaged.
    damage: Vec<Mended>,
    /// Their anchors, the newest first.
    anchors: Vec<Anchor>,
}

impl Generation {
    fn read(flash: &mut Flash, anchor: Anchor, anchors: &Anchors) -> Result<Generation> {
        let pages = read_lists(flash, &anchor)?;
        let state = read_state(flash, &anchor, &pages)?;
        let mut checkpoints = Checkpoints::of(anchors.clone(), &state, pages);
        let table = checkpoints.read_table(flash, state.nodes)?;
        Ok(Generation { anchor, state, checkpoints, table })
    }

    /// The newest that can be read, and what is damaged of newer ones.
    fn newest(flash: &mut Flash, found: Vec<Anchor>, anchors: &Anchors) -> Result<(Generation, Passed)> {
        let (mut passed, mut newest) = (Passed::default(), None);
        for anchor in found {
            let number = anchor.number;
            match Generation::read(flash, anchor.clone(), anchors) {
                Ok(generation) => return Ok((generation, passed)),
                Err(why) if is_damage(&why) => {
                    passed.anchors.push(anchor);
                    let what = format!("checkpoint {number} cannot be read, the one before counts: {why}");
                    passed.damage.push(Mended::whole(what));
                    newest.get_or_insert(why);
                }
                Err(why) => return Err(why),
            }
        }
        Err(newest.unwrap_or_else(|| Error::invalid("there is no object store on this flash")))
    }
}

/// The placement that a store names; versions before wrote its settings with commas.
fn make_placement(text: &str) -> Result<Box<dyn placement::Placement>> {
    placement::make(&text.replace(',', ":"))
}

pub(super) fn check_array(nand: &Nand) -> Result<()> {
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

pub(super) fn check_kept(keeps: bool, wanted: bool) -> Result<()> {
    if keeps == wanted {
        return Ok(());
    }
    let how = if keeps { "keeps" } else { "does not keep" };
    Err(Error::invalid(format!("the object store {how} the bytes of its objects")))
}

pub(super) fn checked(flash: &Flash, addr: Addr) -> Result<Addr> {
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
