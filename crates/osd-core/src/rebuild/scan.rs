//! What a flash has of the index and the log, where no checkpoint can be read or the log has a gap: pages of nodes, of the node
//! table, of the log, and which checkpoints wrote them.

use super::super::anchors::Last;
use super::super::append::Media;
use super::super::flash::{Addr, Flash};
use super::super::is_damage;
use super::super::layout::{Key, PageKind};
use super::super::log::{self, Gap, Record};
use super::super::node::{self, By, Node};
use super::super::summary::LogEntry;
use super::super::tree::NOWHERE;
use bimetal_base::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Greater ones are wrong bits.
const SERIAL_MAX: u64 = 1 << 43;

/// A page that a node was written to.
pub(super) struct Version {
    pub id: u32,
    /// The use of its segment, and its page there: the order in which pages of the index and the log were written.
    pub place: (u64, u32),
    pub addr: Addr,
    /// None if it cannot be read, and only a summary says that it is there.
    pub read: Option<Seen>,
    /// The mark of what wrote it.
    pub mark: u64,
}

/// What a node says.
pub(super) struct Seen {
    pub by: By,
    pub level: u8,
    pub children: Vec<u32>,
    /// Its first and last key.
    pub span: Option<(Key, Key)>,
}

/// A page of the node table.
pub(super) struct Table {
    /// Which of its pages it is.
    pub number: u32,
    /// The mark of the checkpoint that wrote it.
    pub mark: u64,
    pub entries: Vec<u32>,
}

/// So many pages of the node table of one number are looked at, the newest: checkpoints that were given up wrote some, too.
const TABLES_KEPT: usize = 6;

/// Everything that a flash has of the index and the log.
#[derive(Default)]
pub(super) struct Scan {
    pub versions: Vec<Version>,
    /// Pages of the log with the use of their segments, and what they say of themselves.
    pub log: Vec<((u64, Addr), log::Written)>,
    /// The last commit that a page of the log is of which can be read, and pages of it that cannot be read, with the use of
    /// their segments.
    pub logged: Option<((u64, Addr), u64)>,
    pub hidden: Vec<(u64, Addr)>,
    pub access: Vec<Addr>,
    /// Pages of the node table, the newest first, and where all of them were found that can be read or not.
    pub tables: Vec<Table>,
    pub tables_at: Vec<((u64, u32), Option<Addr>)>,
    /// The places of pages of which nobody can tell what they were.
    pub any_lost: Vec<(u64, u32)>,
    /// The marks of checkpoints that wrote a page of the node table of which no copy can be read, or a page of which nobody
    /// can tell what it was.
    pub tables_lost: Vec<u64>,
    /// The place of the last page that cannot be read and may have been a node, of which nothing says which.
    pub node_lost: Option<(u64, u32)>,
    /// The marks of checkpoints that were given up.
    pub given_up: FxHashSet<u64>,
    /// The greatest numbers of the use of a segment, of an object, of a commit that a checkpoint or an anchor speaks of, and of
    /// when data was written.
    pub serial: u64,
    pub object: u64,
    pub commit: u64,
    pub when: u64,
    /// Nothing can be read of the segment that the log goes on in as an anchor says.
    pub is_log_lost: bool,
    /// The last use of a segment of which there is a page that nobody can tell of what it was; 0 if there is none.
    pub unknown: u64,
    /// The marks of checkpoints that anchors speak of.
    pub anchored: BTreeSet<u64>,
    /// Pages of data that nothing names but perhaps the index: by segment.
    pub unnamed: BTreeMap<u32, u32>,
}

impl Scan {
    /// What is there, where anchors speak of a `last` commit and checkpoint.
    pub fn of(media: &mut Media, last: Last) -> Result<Scan> {
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
    pub fn checkpoints(&mut self) -> Vec<Complete> {
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
    pub fn table(&self, mark: u64, per_table: u32) -> FxHashMap<u32, Known<'_>> {
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
    pub fn log_after(&self, mark: u64) -> Vec<Addr> {
        self.log.iter().filter(|page| page.1.when >= mark).map(|page| page.0.1).collect()
    }

    /// What is missing behind the last commit that was read, which the log from a checkpoint on ends with: anchors or
    /// checkpoints speak of a later one, pages of the log behind it cannot be read, or data was written after it and there are
    /// pages that may have been of the log. Whether such data was committed nobody can tell then: what is promised is in it.
    pub fn missing_after(&self, last: u64, when: u64, base: Option<u64>, at: usize) -> Option<Gap> {
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
pub(super) struct Known<'a> {
    pub addr: Addr,
    /// None if it cannot be read.
    pub read: Option<&'a Seen>,
    pub mark: u64,
    /// There is no page of it that was written later and counted.
    pub is_sure: bool,
}

impl Known<'_> {
    pub fn of(version: &Version, is_sure: bool) -> Known<'_> {
        Known { addr: version.addr, read: version.read.as_ref(), mark: version.mark, is_sure }
    }
}

impl Seen {
    /// The number of the node on a page, and what it says; none if it cannot be read.
    pub fn of(flash: &mut Flash, addr: Addr) -> Result<Option<(u32, Seen)>> {
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
pub(super) struct Complete {
    pub mark: u64,
    /// The last commit before it.
    pub commit: u64,
    /// Nodes that it wrote and that cannot be read.
    pub missing: u32,
}
