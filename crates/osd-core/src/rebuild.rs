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

use super::anchors::{Anchors, Last};
use super::append::Media;
use super::checkpoint::{Checkpoints, State};
use super::extents::Index;
use super::flash::{Addr, Flash};
use super::found::Found;
use super::layout::{Extent, Fork, Key, OBJECT_BYTES_MAX, PageKind, Value};
use super::log::{self, Gap, Record};
use super::mend::{Lost, Mended};
use super::node::{self, By, Node};
use super::segments;
use super::summary::LogEntry;
use super::tree::{NOWHERE, ROOT, Tree};
use super::{Options, Store, access, is_damage};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::nand::Nand;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of uses of segments go on so much later than the greatest that was found.
const SERIAL_GAP: u64 = 1 << 20;
/// Greater ones are wrong bits.
const SERIAL_MAX: u64 = 1 << 43;

/// A page that a node was written to.
struct Version {
    id: u32,
    /// The use of its segment, and its page there: the order in which pages of the index and the log were written.
    place: (u64, u32),
    addr: Addr,
    /// None if it cannot be read, and only a summary says that it is there.
    read: Option<Seen>,
    /// The mark of what wrote it.
    mark: u64,
}

/// What a node says.
struct Seen {
    by: By,
    level: u8,
    children: Vec<u32>,
    /// Its first and last key.
    span: Option<(Key, Key)>,
}

/// A page of the node table.
struct Table {
    /// Which of its pages it is.
    number: u32,
    /// The mark of the checkpoint that wrote it.
    mark: u64,
    entries: Vec<u32>,
}

/// So many pages of the node table of one number are looked at, the newest: checkpoints that were given up wrote some, too.
const TABLES_KEPT: usize = 6;

/// Everything that a flash has of the index and the log.
#[derive(Default)]
struct Scan {
    versions: Vec<Version>,
    /// Pages of the log with the use of their segments, and what they say of themselves.
    log: Vec<((u64, Addr), log::Written)>,
    /// The last commit that a page of the log is of which can be read, and pages of it that cannot be read, with the use of
    /// their segments.
    logged: Option<((u64, Addr), u64)>,
    hidden: Vec<(u64, Addr)>,
    access: Vec<Addr>,
    /// Pages of the node table, the newest first, and where all of them were found that can be read or not.
    tables: Vec<Table>,
    tables_at: Vec<((u64, u32), Option<Addr>)>,
    /// The places of pages of which nobody can tell what they were.
    any_lost: Vec<(u64, u32)>,
    /// The marks of checkpoints that wrote a page of the node table of which no copy can be read, or a page of which nobody
    /// can tell what it was.
    tables_lost: Vec<u64>,
    /// The place of the last page that cannot be read and may have been a node, of which nothing says which.
    node_lost: Option<(u64, u32)>,
    /// The marks of checkpoints that were given up.
    given_up: FxHashSet<u64>,
    /// The greatest numbers of the use of a segment, of an object, of a commit that a checkpoint or an anchor speaks of, and of
    /// when data was written.
    serial: u64,
    object: u64,
    commit: u64,
    when: u64,
    /// Nothing can be read of the segment that the log goes on in as an anchor says.
    is_log_lost: bool,
    /// The last use of a segment of which there is a page that nobody can tell of what it was; 0 if there is none.
    unknown: u64,
    /// The marks of checkpoints that anchors speak of.
    anchored: BTreeSet<u64>,
    /// Pages of data that nothing names but perhaps the index: by segment.
    unnamed: BTreeMap<u32, u32>,
}

impl Scan {
    /// What is there, where anchors speak of a `last` commit and checkpoint.
    fn of(media: &mut Media, last: Last) -> Result<Scan> {
        let is_log_lost = media.is_chain_lost(&last.chains)?;
        let mut scan = Scan { commit: last.commit, anchored: last.marks, is_log_lost, ..Scan::default() };
        for segment in 0..media.segments.count() as u32 {
            if segment >= media.kept() {
                scan.look_at(media, segment)?;
            }
        }
        scan.versions.sort_by_key(|version| version.place);
        scan.log.sort_by_key(|page| page.0);
        scan.place_unreadable();
        scan.read_tables(media)?;
        Ok(scan)
    }

    fn look_at(&mut self, media: &mut Media, segment: u32) -> Result<()> {
        let (mut serials, mut read) = (BTreeMap::<u64, u32>::new(), FxHashSet::default());
        let mut hidden = Vec::new();
        // Pages that cannot be read and are nodes, pages of the table, or may be one of these.
        let (mut nodes, mut tables, mut any, mut is_index) = (Vec::new(), Vec::new(), Vec::new(), false);
        for index in 0..media.flash.pages_per_segment() {
            let addr = media.flash.addr(segment, index);
            let tag = match media.flash.read_tag(addr) {
                Err(why) if is_damage(&why) => {
                    if media.flash.was_whole(addr) {
                        any.push(index);
                    }
                    None
                }
                tag => tag?,
            };
            let Some(tag) = tag else { continue };
            *serials.entry(tag.serial).or_default() += 1;
            is_index |= matches!(tag.kind, PageKind::Node | PageKind::Table | PageKind::Checkpoint);
            let place = (tag.serial, index);
            match tag.kind {
                PageKind::Node => {
                    let Some((id, seen)) = Seen::of(&mut media.flash, addr)? else {
                        nodes.push(index);
                        continue;
                    };
                    read.insert(index);
                    self.versions.push(Version { id, place, addr, mark: seen.by.mark, read: Some(seen) });
                }
                PageKind::Log => {
                    match media.flash.read(addr, PageKind::Log).and_then(|page| log::read_page(&page)) {
                        Ok((written, before, its)) => {
                            for record in before.iter().chain([&its]).flat_map(|part| &part.records) {
                                if let Record::Numbers { next_object, .. } = record {
                                    self.object = self.object.max(next_object.saturating_sub(1));
                                }
                            }
                            self.log.push(((tag.serial, addr), written));
                            self.logged = self.logged.max(Some(((tag.serial, addr), its.commit)));
                        }
                        Err(why) if is_damage(&why) => hidden.push(addr),
                        Err(why) => return Err(why),
                    }
                }
                PageKind::Access => self.access.push(addr),
                PageKind::Table => match media.flash.read(addr, PageKind::Table) {
                    Ok(_) => self.tables_at.push((place, Some(addr))),
                    Err(why) if is_damage(&why) => tables.push(index),
                    Err(why) => return Err(why),
                },
                _ => {}
            }
        }
        let most =
            serials.into_iter().filter(|(serial, _)| *serial < SERIAL_MAX).max_by_key(|(_, pages)| *pages);
        let Some((serial, _)) = most else {
            // Nobody can tell when it was written.
            if !any.is_empty() {
                self.node_lost = Some((u64::MAX, 0));
                self.any_lost.push((u64::MAX, 0));
                self.unknown = u64::MAX;
            }
            return Ok(());
        };
        self.tables_at.extend(tables.into_iter().map(|index| ((serial, index), None)));
        self.serial = self.serial.max(serial);
        // What they say of themselves may be wrong.
        self.hidden.extend(hidden.into_iter().map(|addr| (serial, addr)));
        let (entries, unnamed) = media.said(segment)?;
        if unnamed > 0 {
            self.unnamed.insert(segment, unnamed);
        }
        let named: FxHashSet<u32> = entries
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Node { index, .. } => Some(*index),
                LogEntry::Data { .. } => None,
            })
            .collect();
        if !any.is_empty() {
            self.unknown = self.unknown.max(serial);
        }
        any.retain(|index| is_index && !named.contains(index));
        nodes.retain(|index| !named.contains(index));
        self.node_lost = self.node_lost.max(nodes.iter().chain(&any).max().map(|index| (serial, *index)));
        self.any_lost.extend(any.into_iter().map(|index| (serial, index)));
        for entry in entries {
            match entry {
                LogEntry::Node { id, index }
                    if !read.contains(&index) && index < media.flash.pages_per_segment() =>
                {
                    let addr = media.flash.addr(segment, index);
                    self.versions.push(Version { id, place: (serial, index), addr, read: None, mark: 0 });
                }
                LogEntry::Node { .. } => {}
                LogEntry::Data { object, when, .. } => {
                    (self.object, self.when) = (self.object.max(object), self.when.max(when));
                }
            }
        }
        Ok(())
    }

    /// Finds out which checkpoints wrote the nodes that cannot be read: those that wrote what is beside them. What nobody
    /// can tell of is forgotten.
    fn place_unreadable(&mut self) {
        let mut before = None;
        for index in 0..self.versions.len() {
            match &self.versions[index].read {
                Some(seen) => before = Some(seen.by),
                None => {
                    let after = self.versions[index..].iter().find_map(|version| version.read.as_ref());
                    let its = before.filter(|by| by.which + 1 < by.count).or(after.map(|seen| seen.by));
                    self.versions[index].mark = its.map_or(u64::MAX, |by| by.mark);
                    before = its.map(|by| By { which: by.which + 1, ..by });
                }
            }
        }
        self.versions.retain(|version| version.mark != u64::MAX);
    }

    /// The mark of the checkpoint that wrote what is at a place in the stream of the index.
    fn mark_at(&self, place: (u64, u32)) -> u64 {
        let before = self.versions.partition_point(|version| version.place < place);
        before.checked_sub(1).map_or(0, |before| self.versions[before].mark)
    }

    /// Finds out which pages of the node table the pages of it are, and which checkpoints wrote them.
    fn read_tables(&mut self, media: &mut Media) -> Result<()> {
        self.tables_at.sort_unstable();
        // A page of the table is written twice, one copy behind the other.
        let mut by_mark = BTreeMap::<u64, Vec<bool>>::new();
        for (place, addr) in &self.tables_at {
            by_mark.entry(self.mark_at(*place)).or_default().push(addr.is_some());
        }
        let no_copy = |its: &[bool]| its.chunks(2).any(|pair| !pair.contains(&true));
        self.tables_lost = by_mark.into_iter().filter(|one| no_copy(&one.1)).map(|one| one.0).collect();
        let any_lost: Vec<u64> = self.any_lost.iter().map(|place| self.mark_at(*place)).collect();
        self.tables_lost.extend(any_lost);
        let read = self.versions.iter().filter(|version| version.read.is_some());
        let nodes: FxHashMap<u32, (u32, u64)> =
            read.map(|version| (version.addr.0, (version.id, version.mark))).collect();
        let per_table = media.flash.page_bytes() as u32 / 4;
        let is_one = nodes.values().all(|node| node.0 < per_table);
        let mut kept = FxHashMap::<u32, usize>::default();
        for (place, addr) in self.tables_at.iter().rev() {
            let Some(addr) = addr else { continue };
            let page = media.flash.read(*addr, PageKind::Table)?;
            let word = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            let entries: Vec<u32> = page.chunks_exact(4).map(word).collect();
            let (mut number, mut mark) = (is_one.then_some(0), self.mark_at(*place));
            let mut is_stale = false;
            for (index, entry) in (0..).zip(&entries).filter(|(_, entry)| **entry != NOWHERE) {
                match nodes.get(entry) {
                    Some((id, its)) => {
                        mark = mark.max(*its);
                        is_stale |= id % per_table != index
                            || *number.get_or_insert(id / per_table) != id / per_table;
                    }
                    None if media.flash.segment_of(Addr(*entry)) >= media.flash.segments() => is_stale = true,
                    None => {
                        // What cannot be read may say anything of itself.
                        let tag = media.flash.read_tag(Addr(*entry));
                        let tag = tag.ok().flatten().filter(|tag| tag.kind != PageKind::Node);
                        is_stale |= tag.is_some_and(|tag| media.flash.read(Addr(*entry), tag.kind).is_ok());
                    }
                }
            }
            let (Some(number), false) = (number, is_stale) else { continue };
            let kept = kept.entry(number).or_default();
            if *kept < TABLES_KEPT {
                *kept += 1;
                self.tables.push(Table { number, mark, entries });
            }
        }
        Ok(())
    }

    /// Checkpoints that something was written by, and that were complete, the newest first; all others were given up.
    fn checkpoints(&mut self) -> Vec<Complete> {
        // When something was written, and the base that it went on from.
        let mut bases: Vec<(u64, u64)> = self.log.iter().map(|page| (page.1.when, page.1.base)).collect();
        let mut all = BTreeMap::<u64, (By, BTreeSet<u32>)>::new();
        for Seen { by, .. } in self.versions.iter().filter_map(|version| version.read.as_ref()) {
            bases.push((by.mark - 1, by.base));
            all.entry(by.mark).or_insert_with(|| (*by, BTreeSet::new())).1.insert(by.which);
        }
        bases.sort_unstable();
        let mut complete = Vec::new();
        // The least base of what came later, and the greatest.
        let (mut least, mut greatest) = (u64::MAX, 0);
        for (mark, (by, which)) in all.into_iter().rev() {
            while let Some((_, base)) = bases.pop_if(|(when, _)| *when >= mark) {
                (least, greatest) = (least.min(base), greatest.max(base));
            }
            let given_up = least < mark;
            if !given_up {
                // Its log was there before any of its nodes.
                self.commit = self.commit.max(by.commit);
            }
            let is_whole = which.len() == by.count as usize;
            let is_named = greatest >= mark || self.anchored.contains(&mark);
            if given_up || !is_whole && !is_named {
                self.given_up.insert(mark);
                self.versions.retain(|version| version.mark != mark);
            } else {
                complete.push(Complete { mark, commit: by.commit, missing: by.count - which.len() as u32 });
            }
        }
        complete
    }

    /// Where each node lies for a checkpoint: as the node table has it where that can be read, and else on the last page that can.
    fn table(&self, mark: u64, per_table: u32) -> FxHashMap<u32, Known<'_>> {
        let counts = |its: u64| its <= mark && !self.given_up.contains(&its);
        let mut tables = FxHashMap::<u32, (&Table, bool)>::default();
        for table in self.tables.iter().filter(|table| counts(table.mark)) {
            let is_last = |its: &u64| *its <= table.mark || !counts(*its);
            tables.entry(table.number).or_insert_with(|| (table, self.tables_lost.iter().all(is_last)));
        }
        let (mut at, mut by_id) = (FxHashMap::default(), FxHashMap::default());
        for version in self.versions.iter().filter(|version| version.mark <= mark) {
            at.insert(version.addr.0, version);
            let table = tables.get_mut(&(version.id / per_table));
            if table.as_ref().is_some_and(|table| version.mark <= table.0.mark) {
                continue;
            }
            // It wrote a page of the table, too, or was cut off before that.
            let is_its = version.mark == mark;
            if let Some(table) = table {
                table.1 &= is_its;
            }
            let lost = self.node_lost.is_some_and(|lost| version.place < lost);
            by_id.insert(version.id, Known::of(version, is_its || !lost));
        }
        for (table, is_sure) in tables.into_values() {
            for (index, entry) in (0..).zip(&table.entries).filter(|(_, entry)| **entry != NOWHERE) {
                let id = table.number * per_table + index;
                let known = match at.get(entry) {
                    Some(version) => {
                        let lost = self.node_lost.is_some_and(|lost| version.place < lost);
                        Known::of(version, is_sure || !lost)
                    }
                    None => Known { addr: Addr(*entry), read: None, mark: table.mark, is_sure },
                };
                by_id.entry(id).or_insert(known);
            }
        }
        by_id
    }

    /// Pages of the log that were written after a checkpoint.
    fn log_after(&self, mark: u64) -> Vec<Addr> {
        self.log.iter().filter(|page| page.1.when >= mark).map(|page| page.0.1).collect()
    }

    /// What is missing behind the last commit that was read, which the log from a checkpoint on ends with: anchors or
    /// checkpoints speak of a later one, pages of the log behind it cannot be read, or data was written after it and there are
    /// pages that may have been of the log. Whether such data was committed nobody can tell then: what is promised is in it.
    fn missing_after(&self, last: u64, when: u64, base: Option<u64>, at: usize) -> Option<Gap> {
        let is_behind = |page: &&(u64, Addr)| self.logged.is_none_or(|logged| **page > logged.0);
        let behind = self.hidden.iter().filter(is_behind).count() as u64;
        // Those between the last page that can be read and the checkpoint are in its nodes.
        let logged = self.logged.map_or(0, |logged| logged.1);
        let known = base.map_or(0, |base| base.saturating_sub(logged));
        let is_unknown = self.unknown >= self.logged.map_or(1, |logged| logged.0.0);
        let is_written = is_unknown && self.when > when;
        let is_missing = self.commit > last || behind > known || self.is_log_lost || is_written;
        let commit = (self.commit > last).then_some(self.commit);
        is_missing.then_some(Gap { at, commits: (last, commit), when: (when, u64::MAX) })
    }
}

/// Where a node lies for a checkpoint.
struct Known<'a> {
    addr: Addr,
    /// None if it cannot be read.
    read: Option<&'a Seen>,
    mark: u64,
    /// There is no page of it that was written later and counted.
    is_sure: bool,
}

impl Known<'_> {
    fn of(version: &Version, is_sure: bool) -> Known<'_> {
        Known { addr: version.addr, read: version.read.as_ref(), mark: version.mark, is_sure }
    }
}

impl Seen {
    /// The number of the node on a page, and what it says; none if it cannot be read.
    fn of(flash: &mut Flash, addr: Addr) -> Result<Option<(u32, Seen)>> {
        let most = flash.segments().saturating_mul(flash.pages_per_segment());
        let read = flash.read(addr, PageKind::Node).and_then(|page| {
            let (id, by) = node::read_by(&page)?;
            Ok((id, by, Node::decode(id, &page)?))
        });
        let (id, by, node) = match read {
            Err(why) if is_damage(&why) => return Ok(None),
            read => read?,
        };
        let below = if node.is_leaf() { 0 } else { node.len() };
        let children: Vec<u32> = (0..below).map(|index| node.child(index)).collect();
        // No tree has more nodes than the flash has pages.
        if by.mark == 0 || children.iter().chain([&id]).any(|id| *id >= most) {
            return Ok(None);
        }
        let span = node.first_key().map(|first| (first, node.key(node.len() - 1)));
        Ok(Some((id, Seen { by, level: node.level, children, span })))
    }
}

/// A checkpoint that was complete.
struct Complete {
    mark: u64,
    /// The last commit before it.
    commit: u64,
    /// Nodes that it wrote and that cannot be read.
    missing: u32,
}

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
