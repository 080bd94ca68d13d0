//! Rebuilding: what `fsck` does where no checkpoint can be read, or the log has a gap.
//!
//! 1. The format record, which each block of anchors begins with, says what is where. Without any, the summaries say how long
//!    a segment is.
//! 2. All spare areas are read, and every page of the index and of the log. A node says which checkpoint wrote it, by its
//!    *mark*, how many others that wrote, and which was the last one complete then (its *base*); a page of the log has a
//!    base, too. A checkpoint of which all nodes are there, or that an anchor or something later names as its base, was complete; one
//!    past which something later goes on from an older base was given up.
//!    Where the pages of a checkpoint's node table can be read they say which of a node's pages counted, whether that can be
//!    read or not; else the newest that can be read does, and objects that it has are named where a newer one may be lost.
//! 3. The newest complete checkpoint of which the whole tree can be read counts, or the one before it, whose nodes are all
//!    kept, with the log from there. Where neither is whole, the newest one's tree is mended (`mend`), from what the segments
//!    say was written: their summaries, those so far of segments that were open, and the directories of pages of pieces.
//! 4. Where commits are missing in the log, what the segments say was written meanwhile is put in their place.
//! 5. Everything is counted again, and two checkpoints are made of it.
//!
//! Nothing is written before the last step, and nothing that this stands on is erased before the first checkpoint is there: a
//! cut of the power leaves what can be rebuilt again.
//!
//! Memory: 48 bytes a page of the index, the newest pages of the node table, and what the mending takes. Cost: all spare areas, all pages of the index, the log
//! and summaries; with a gap in the log, all that objects hold.

mod scan;

use super::anchors::Anchors;
use super::append::Media;
use super::checkpoint::{Checkpoints, State};
use super::extents::Index;
use super::flash::{Addr, Flash};
use super::found::Found;
use super::layout::{Extent, Fork, Key, OBJECT_BYTES_MAX, PageKind, Value};
use super::log::{Gap, Record};
use super::mend::{Lost, Mended};
use super::segments;
use super::summary::LogEntry;
use super::tree::{NOWHERE, ROOT, Tree};
use super::{Options, Store, access, is_damage};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Nand;
use rustc_hash::{FxHashMap, FxHashSet};
use scan::{Complete, Known, Scan, Seen};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of uses of segments go on so much later than the greatest that was found.
const SERIAL_GAP: u64 = 1 << 20;

/// A tree as a checkpoint left it, as far as it is there.
struct Base {
    /// None if nothing is left of any.
    mark: u64,
    commit: Option<u64>,
    table: Vec<u32>,
    /// Nodes that are named and cannot be read, or are older than they should be.
    missing: u32,
    /// The keys of leaves of which a later page may be lost.
    doubtful: Vec<Lost>,
}

/// The nodes that the root leads to, and how many of them cannot be read.
fn reach(by_id: &FxHashMap<u32, Known>) -> (BTreeSet<u32>, u32) {
    let (mut reached, mut waiting, mut damaged) = (BTreeSet::new(), vec![(ROOT, None)], 0);
    while let Some((id, level)) = waiting.pop() {
        if !reached.insert(id) {
            continue;
        }
        match by_id.get(&id).and_then(|known| known.read) {
            Some(seen) if level.is_none_or(|level| level == seen.level) => {
                waiting.extend(seen.children.iter().map(|child| (*child, Some(seen.level - 1))));
            }
            _ => damaged += 1,
        }
    }
    (reached, damaged)
}

/// The keys that belong to leaves of which a later page may be lost.
fn doubtful(by_id: &FxHashMap<u32, Known>) -> Vec<Lost> {
    let span = |known: &Known| Some((known.read.filter(|seen| seen.level == 0)?.span?, known.is_sure));
    let mut leaves: Vec<((Key, Key), bool)> = by_id.values().filter_map(span).collect();
    leaves.sort_unstable();
    let mut ranges = Vec::<Lost>::new();
    for (index, ((first, _), _)) in leaves.iter().enumerate().filter(|(_, leaf)| !leaf.1) {
        let first = if index == 0 { Key::onode(0) } else { *first };
        let end = leaves.get(index + 1).map_or(Key { object: u64::MAX, place: u64::MAX }, |next| next.0.0);
        match ranges.last_mut().filter(|range| range.1 == first) {
            Some(range) => range.1 = end,
            None => ranges.push((first, end)),
        }
    }
    ranges
}

/// Whether all pages of the node table are there that a checkpoint wrote: they name its nodes that cannot be read.
fn hidden_is_known(scan: &Scan, complete: &Complete) -> bool {
    let wrote_some = scan.tables.iter().any(|table| table.mark == complete.mark);
    wrote_some && !scan.tables_lost.contains(&complete.mark)
}

impl Base {
    fn of(scan: &Scan, complete: &Complete, per_table: u32) -> Base {
        let mut by_id = scan.table(complete.mark, per_table);
        // Inner nodes of which a later page may be lost are made again from those below them.
        let is_doubtful = |known: &Known| !known.is_sure && known.read.is_some_and(|seen| seen.level > 0);
        let before = by_id.len();
        by_id.retain(|_, known| !is_doubtful(known));
        let mut without = before - by_id.len();
        // All that the root leads to.
        let (mut reached, mut damaged) = reach(&by_id);
        let mark_of = |id: &u32| by_id.get(id).filter(|known| known.read.is_some_and(|seen| seen.level > 0));
        let last = reached.iter().filter_map(mark_of).map(|known| known.mark).max();
        let last = last.max(by_id.get(&ROOT).map(|root| root.mark)).unwrap_or(0);
        let is_later = |(id, known): (&u32, &Known)| known.mark > last && !reached.contains(id);
        if damaged == 0 && by_id.iter().any(is_later) {
            // What gave that up, or leads to it, was written later, too.
            by_id.remove(&ROOT);
            without += 1;
            (reached, damaged) = reach(&by_id);
        }
        match damaged + without as u32 {
            0 => by_id.retain(|id, _| reached.contains(id)),
            // What names them may be what cannot be read.
            _ => forget_stale(&mut by_id, &reached),
        }
        // What this checkpoint wrote and nobody can read is known where a summary or the node table names it.
        let named = by_id.values().filter(|known| known.read.is_none() && known.mark == complete.mark);
        let hidden = complete.missing.saturating_sub(named.count() as u32);
        let is_known = by_id.values().all(|known| known.is_sure) && hidden_is_known(scan, complete);
        let missing = damaged + without as u32 + if is_known { 0 } else { hidden };
        let last = reached.iter().chain(by_id.keys()).max().copied().unwrap_or(ROOT);
        let mut table = vec![NOWHERE; last as usize + 1];
        by_id.iter().for_each(|(id, known)| table[*id as usize] = known.addr.0);
        let doubtful = doubtful(&by_id);
        Base { mark: complete.mark, commit: Some(complete.commit), table, missing, doubtful }
    }

    fn nothing() -> Base {
        Base { mark: 0, commit: None, table: vec![NOWHERE], missing: 1, doubtful: Vec::new() }
    }
}

/// Takes out of a tree that is not whole the nodes that had been given up: those that no node leads to, of which another on
/// their level that was written later has the keys.
fn forget_stale(by_id: &mut FxHashMap<u32, Known>, reached: &BTreeSet<u32>) {
    let mut all: Vec<(u32, u64, &Seen)> =
        by_id.iter().filter_map(|(id, known)| Some((*id, known.mark, known.read?))).collect();
    all.sort_by_key(|(id, mark, _)| (std::cmp::Reverse(*mark), *id));
    let mut covered: FxHashMap<u8, BTreeMap<Key, Key>> = FxHashMap::default();
    for (id, _, seen) in all {
        let Seen { level, span: Some((first, last)), .. } = seen else { continue };
        let spans = covered.entry(*level).or_default();
        let later = spans.range(..=*first).next_back().is_some_and(|(_, end)| end >= first);
        if later && !reached.contains(&id) {
            by_id.remove(&id);
        } else {
            spans.insert(*first, *last);
        }
    }
}

impl Store {
    /// Puts a store together again that does not open, and makes checkpoints of it; what was done, which names each object of
    /// which not all came back as it was. It is done at `now`, which the times of objects are that have no others left.
    ///
    /// # Errors
    /// [`Error::Invalid`] if nothing of a store is there; [`Error::Unsupported`] if it is of another version; those of the
    /// flash. Nothing is lost by them.
    pub fn rebuild(nand: Nand, options: Options, now: Time) -> Result<(Store, Vec<Mended>)> {
        super::recover::check_array(&nand)?;
        let mut flash = Flash::new(nand, 1);
        flash.now = now;
        Store::rebuild_on(flash, options)
    }

    /// The same on a flash that is seen with one block a segment.
    pub(super) fn rebuild_on(flash: Flash, options: Options) -> Result<(Store, Vec<Mended>)> {
        let (mut store, done) = Store::begin_rebuild(flash, options)?;
        // Two, so that the one before the newest is of this store, too.
        store.checkpoint_now(false)?;
        store.checkpoint_now(false)?;
        Ok((store, done))
    }

    /// A store as it will be, in memory; nothing is written.
    fn begin_rebuild(mut flash: Flash, options: Options) -> Result<(Store, Vec<Mended>)> {
        let (anchors, guessed, last) = Anchors::again(&mut flash, options.keep_bytes)?;
        let mut done: Vec<Mended> = guessed.into_iter().map(Mended::less).collect();
        let record = anchors.record().clone();
        super::recover::check_kept(record.keep_bytes, options.keep_bytes)?;
        let flash = flash.with_segments(record.segment_blocks);
        let state = State {
            next_object: 1,
            placement: record.placement,
            keep_bytes: record.keep_bytes,
            ..State::default()
        };
        let mut store = Store::with(flash, Checkpoints::new(anchors), &state, options)?;
        let mut scan = Scan::of(&mut store.index.media, last)?;
        let (base, log) = store.choose(&mut scan)?;
        done.push(Mended::whole(format!(
            "the index was put together from {} nodes and {} pages of the log",
            base.table.iter().filter(|addr| **addr != NOWHERE).count(),
            log.len()
        )));
        store.restore_from(&scan, &base, &log)?;
        done.append(&mut store.damage);
        Ok((store, done))
    }

    /// What is left of a flash after a rebuilding that does not end.
    #[cfg(test)]
    pub(super) fn rebuild_then(flash: Flash, options: Options) -> Flash {
        Store::begin_rebuild(flash, options).map_or_else(
            |why| panic!("{why}"),
            |(mut store, _)| {
                let _ = store.checkpoint_now(false).and_then(|()| store.checkpoint_now(false));
                store.index.media.flash.with_segments(1)
            },
        )
    }

    /// The newest checkpoint that is whole, with the log that goes on from it; else what is left of the newest.
    fn choose(&mut self, scan: &mut Scan) -> Result<(Base, Vec<Addr>)> {
        let newest: Vec<Complete> = scan.checkpoints().into_iter().take(2).collect();
        let per_table = self.index.media.flash.page_bytes() as u32 / 4;
        let mut left = None;
        for (number, complete) in newest.iter().enumerate() {
            let (base, log) = (Base::of(scan, complete, per_table), scan.log_after(complete.mark));
            let (_, gaps) = self.index.log.read_past(&mut self.index.media, base.commit, &log)?;
            // An older one is no help where the log does not lead on from it.
            let leads_on = gaps.is_empty() && self.index.log.commit() >= newest[0].commit;
            if base.missing == 0 && (number == 0 || leads_on) {
                self.note_cut_off(scan, &newest[number..])?;
                return Ok((base, log));
            }
            left.get_or_insert((base, log));
        }
        Ok(left.unwrap_or_else(|| (Base::nothing(), scan.log_after(0))))
    }

    /// Notes that the newest checkpoint may be that of a rebuilding that was cut off before its anchor was there, where
    /// commits are missing before it.
    fn note_cut_off(&mut self, scan: &Scan, newest: &[Complete]) -> Result<()> {
        let [newest, older, ..] = newest else { return Ok(()) };
        if scan.anchored.last().is_some_and(|last| newest.mark <= *last) {
            return Ok(());
        }
        let log = scan.log_after(older.mark);
        let (_, gaps) = self.index.log.read_past(&mut self.index.media, Some(older.commit), &log)?;
        for (after, last) in gaps.into_iter().filter_map(|gap| Some((gap.commits.0, gap.commits.1?))) {
            if last <= newest.commit {
                self.damage.push(Mended::less(format!(
                    "commits after {after} up to {last} cannot be read, and no anchor names the checkpoint after them: if that is of a repair which was cut off, what it gave up is not known"
                )));
            }
        }
        Ok(())
    }

    fn restore_from(&mut self, scan: &Scan, base: &Base, log: &[Addr]) -> Result<()> {
        let Index { media, log: commits, tree, .. } = &mut self.index;
        media.set_clocks(0, scan.serial);
        media.skip_serials(SERIAL_GAP);
        let page_bytes = media.flash.page_bytes();
        *tree = Tree::of(&base.table, page_bytes, self.options.cache_bytes as usize);
        for (_, addr) in tree.pages().collect::<Vec<_>>() {
            media.segments.add_page(media.segments.of(addr));
        }
        log.iter().for_each(|addr| media.keep_for_reading(*addr));
        let (records, mut gaps) = commits.read_past(media, base.commit, log)?;
        commits.set_base(base.mark);
        // What a checkpoint says is not written again.
        gaps.iter_mut().for_each(|gap| gap.when.0 = gap.when.0.max(base.mark));
        let last_when = commits.last_when().max(base.mark);
        // Without any of them all that segments say is looked for as it is.
        if let Some(end) = scan.missing_after(commits.commit(), last_when, base.commit, records.len())
            && last_when > 0
        {
            match gaps.last_mut().filter(|last| last.at == end.at) {
                Some(last) => (last.commits.1, last.when.1) = (end.commits.1, end.when.1),
                None => gaps.push(end),
            }
            // A number is left out where none is known to be lost: should this be cut off before its checkpoint is there, its
            // own commit does not pass for the one that follows what can be read.
            commits.pass(scan.commit.max(commits.commit() + 1));
        }
        self.note_unsaid(&records)?;
        let Index { media, tree, .. } = &mut self.index;
        let mut lost = match base.missing {
            0 => Vec::new(),
            _ => tree.mend(&mut media.flash)?.1,
        };
        if base.missing > 0 {
            tree.give_up_unled(&mut media.flash)?;
        }
        if base.missing > 0 && lost.is_empty() {
            self.damage.push(Mended::less(format!(
                "{} nodes of the index cannot be read, and what they held is not known: objects may be as they were before",
                base.missing
            )));
        }
        self.next_object = self.next_object.max(scan.object.saturating_add(1));
        // What the log replaces has to be counted before.
        self.index.count_again()?;
        let mut found = Found::of(&records, base.mark);
        found.everywhere = true;
        if !gaps.is_empty() {
            // What is left of it may be in commits that are lost.
            found.said.clear();
        }
        self.apply_past(&records, &gaps, &found.gone, &mut lost)?;
        self.index.media.close_what_is_used();
        // What is lost is named up to the last object that is there.
        self.number_objects()?;
        self.fill_lost(&lost, &found)?;
        if !gaps.is_empty() {
            self.complete_objects(&found.gone)?;
        }
        self.index.count_again()?;
        self.index.media.close_what_is_used();
        self.take_accesses(&scan.access)?;
        self.number_objects()?;
        for range in &base.doubtful {
            let (first, last) = self.objects_in(range);
            self.damage.push(Mended::less(format!(
                "objects {first} to {last} may be as they were before: what the index said of them later may be in a node that cannot be read"
            )));
        }
        if !lost.is_empty() || !gaps.is_empty() {
            for (segment, pages) in &scan.unnamed {
                self.damage.push(Mended::less(format!(
                    "segment {segment}: nothing but the index and the log says whose {pages} of its pages of data are"
                )));
            }
        }
        if !gaps.is_empty() {
            self.name_unreadable()?;
        }
        let per_table = self.index.media.flash.page_bytes() / 4;
        self.checkpoints.renew_all(self.index.tree.table_len(), per_table);
        Ok(())
    }

    /// Applies what the log says, and where some of it is missing what segments say was written meanwhile; `gone` are the
    /// objects that are so as far as it says.
    fn apply_past(
        &mut self,
        records: &[Record],
        gaps: &[Gap],
        gone: &FxHashSet<u64>,
        lost: &mut Vec<Lost>,
    ) -> Result<()> {
        let (mut gaps, mut is_careful) = (gaps.iter().peekable(), false);
        // Objects of which something came after commits that are lost.
        let (mut bridged, mut later) = (BTreeSet::new(), BTreeSet::new());
        for (number, record) in records.iter().enumerate() {
            while let Some(gap) = gaps.next_if(|gap| gap.at == number) {
                self.bridge(gap, &mut bridged)?;
                is_careful = true;
            }
            if let (true, Record::Put(key, _) | Record::Delete(key)) = (is_careful, record) {
                later.insert(key.object);
            }
            let mut done = self.apply_careful(record, is_careful);
            if done.as_ref().is_err_and(is_damage) {
                lost.extend(self.index.tree.mend(&mut self.index.media.flash)?.1);
                done = self.apply_careful(record, is_careful);
            }
            match done {
                Err(why) if is_damage(&why) => {
                    self.damage.push(Mended::less(format!("the log says what cannot be: {why}")))
                }
                done => done?,
            }
        }
        for gap in gaps {
            self.bridge(gap, &mut bridged)?;
        }
        self.damage.extend(bridged.iter().map(|object| {
            Mended::less(format!(
                "object {object}: what was written to it meanwhile was put together from what the segments say; what was cut off of it may be there again"
            ))
        }));
        let mixed = later.into_iter().filter(|object| !bridged.contains(object) && !gone.contains(object));
        self.damage.extend(mixed.map(|object| {
            Mended::less(format!(
                "object {object}: a part of it may be as it was before the commits that are lost"
            ))
        }));
        Ok(())
    }

    /// Applies a record; where commits are missing before it, what it maps may be mapped in other extents than it was.
    fn apply_careful(&mut self, record: &Record, is_careful: bool) -> Result<()> {
        if let Record::Put(key, Value::Extent(extent)) = record
            && let Some((fork, from)) = key.fork()
            && is_careful
        {
            self.index.apply(*key, None)?;
            self.index.unmap(key.object, fork, from, from + u64::from(extent.len))?;
        }
        self.apply_record(record)
    }

    /// Puts in the place of commits that cannot be read what the segments say was written meanwhile, and to what.
    fn bridge(&mut self, gap: &Gap, named: &mut BTreeSet<u64>) -> Result<()> {
        let which = match gap.commits {
            (after, Some(last)) => format!("commits after {after} up to {last}"),
            (after, None) => format!("commits after {after}, if there were any,"),
        };
        self.damage.push(Mended::less(format!(
            "{which} cannot be read: what they removed, cut off or said of objects is lost"
        )));
        let mut written = Vec::new();
        for segment in self.index.media.kept()..self.index.media.segments.count() as u32 {
            let first = u64::from(segment) * self.index.media.segment_bytes();
            for entry in self.index.media.said(segment)?.0 {
                if let LogEntry::Data { object, fork, offset, len, at, when } = entry
                    && gap.when.0 < when
                    && when <= gap.when.1
                {
                    written.push((when, object, fork, offset, Extent { len, at: first + u64::from(at) }));
                }
            }
        }
        written.sort_unstable_by_key(|one| one.0);
        for (_, object, fork, offset, extent) in written {
            let onode = match self.index.onode(object) {
                Err(Error::NotFound) => {
                    self.index.set_onode(object, self.blank_onode())?;
                    self.index.onode(object)
                }
                onode => onode,
            };
            let mut onode = match onode {
                Err(why) if is_damage(&why) => continue,
                onode => onode?,
            };
            let end = offset + u64::from(extent.len);
            if fork == Fork::Attributes && end > u64::from(onode.attribute_bytes) || end > OBJECT_BYTES_MAX {
                continue;
            }
            self.index.map(object, fork, offset, extent)?;
            if fork == Fork::Data && end > onode.size {
                onode.size = end;
                self.index.set_onode(object, onode)?;
            }
            named.insert(object);
        }
        Ok(())
    }

    /// Puts access times into onodes, those that they do not know.
    fn take_accesses(&mut self, pages: &[Addr]) -> Result<()> {
        let mut entries = Vec::new();
        for addr in pages {
            match self
                .index
                .media
                .flash
                .read(*addr, PageKind::Access)
                .and_then(|page| access::read_page(&page))
            {
                Ok(page) => entries.extend(page),
                Err(why) if is_damage(&why) => {}
                Err(why) => return Err(why),
            }
        }
        entries.sort_unstable_by_key(|entry| entry.2);
        let mut newest = FxHashMap::default();
        for (object, at, number) in entries {
            self.access.pass(number.saturating_add(1));
            newest.insert(object, (at, number));
        }
        let mut newest: Vec<_> = newest.into_iter().collect();
        newest.sort_unstable_by_key(|entry| entry.0);
        for (object, (at, number)) in newest {
            let Ok(mut onode) = self.index.onode(object) else { continue };
            if number >= onode.access_from {
                onode.accessed = at;
                self.index.set_onode(object, onode)?;
            }
        }
        Ok(())
    }

    /// Names the objects of which something is mapped that is not theirs any more.
    fn name_unreadable(&mut self) -> Result<()> {
        let checked = self.check(true)?;
        let about = |problem: &String| problem.starts_with("object") && !problem.starts_with("object store");
        let mut named = BTreeSet::new();
        // What was found so far is told already.
        for problem in checked.problems.iter().skip(self.damage.len()).filter(|problem| about(problem)) {
            if named.insert(problem.split(':').next().unwrap_or_default().to_string()) {
                self.damage.push(Mended::less(problem.clone()));
            }
        }
        Ok(())
    }
}

impl Media {
    /// A page of the log is read again after a power cut, until the next checkpoint is there.
    fn keep_for_reading(&mut self, addr: Addr) {
        let segment = self.segments.of(addr);
        self.segments.set_used(&self.flash, segment, segments::State::Closed);
        self.segments.pin(segment);
    }
}
