//! Mending the index: what `fsck` does where nodes of the tree cannot be read.
//!
//! 1. Every node that the table names is read. An inner node that cannot be read is made again from the nodes below
//!    it, which no other node names; nothing is lost by that. A leaf is replaced by an empty one.
//! 2. Of what lay in such a leaf the segments' summaries say which bytes of which object were written where, and in
//!    which order. The newest of them fill whatever nothing else maps. An object whose onode was lost gets a new one,
//!    as long as its bytes reach; its times and attributes are gone.
//! 3. Everything is counted again.
//!
//! Bytes that had been cut off, in an object whose onode was lost, may come back: summaries do not say what was
//! freed. Of segments that were open when the power went there is no summary: what a lost leaf had there stays lost.
//!
//! Memory: the keys of the inner nodes, and the summaries of what the lost leaves may have mapped. Cost: all nodes, and all
//! summaries where a leaf was lost.

use super::extents::Index;
use super::flash::Flash;
use super::layout::{Extent, Fork, Key, OBJECT_BYTES_MAX, Onode, PageKind, Value};
use super::node::Node;
use super::recover::checked;
use super::summary::{LogEntry, bytes_beside};
use super::tree::{ROOT, Tree};
use super::{Store, is_damage};
use bimetal_base::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Where what lost leaves held is looked for.
#[derive(Default)]
pub(super) struct Found {
    /// Nothing is known of what is alive in which segment.
    pub everywhere: bool,
    /// Objects that are known to be gone.
    pub gone: FxHashSet<u64>,
}

/// Something that was damaged, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// In words.
    pub what: String,
    /// It is not all as it was.
    pub lost: bool,
}

impl Mended {
    /// It is right again.
    pub fn whole(what: String) -> Mended {
        Mended { what, lost: false }
    }

    /// Not all of it came back.
    pub fn less(what: String) -> Mended {
        Mended { what, lost: true }
    }
}

impl std::fmt::Display for Mended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Keys from the first up to, and without, the second.
pub(super) type Lost = (Key, Key);

const FIRST: Key = Key { object: 0, place: 0 };
const END: Key = Key { object: u64::MAX, place: u64::MAX };

/// What is known of a node.
struct Seen {
    level: u8,
    /// Its first key, of a leaf.
    first: Option<Key>,
    children: Vec<(Key, u32)>,
}

/// All nodes of a tree as they can be read.
#[derive(Default)]
struct Survey {
    nodes: BTreeMap<u32, Seen>,
    unreadable: BTreeSet<u32>,
    /// Who names a node, and as which of its children.
    parents: FxHashMap<u32, (u32, usize)>,
}

impl Survey {
    fn of(tree: &Tree, flash: &mut Flash) -> Result<Survey> {
        let mut survey = Survey::default();
        for id in tree.numbers() {
            let node = match tree.cached(id) {
                Some(node) => Ok(Seen::of(node)),
                None => tree.read(flash, id).map(|node| Seen::of(&node)),
            };
            match node {
                Ok(seen) => drop(survey.nodes.insert(id, seen)),
                Err(why) if is_damage(&why) => drop(survey.unreadable.insert(id)),
                Err(why) => return Err(why),
            }
        }
        for (id, seen) in &survey.nodes {
            for (index, (_, child)) in seen.children.iter().enumerate() {
                survey.parents.insert(*child, (*id, index));
            }
        }
        // What is named and is not there at all.
        let named = survey.parents.keys().copied().chain([ROOT]);
        survey.unreadable.extend(named.filter(|id| !survey.nodes.contains_key(id)));
        Ok(survey)
    }

    /// The level of a node that cannot be read; none if what named it cannot be read, either.
    fn level_of(&self, id: u32) -> Option<u8> {
        match self.parents.get(&id) {
            Some((parent, _)) => Some(self.nodes[parent].level.saturating_sub(1)),
            None if id == ROOT => Some(self.orphans().map(|(_, seen)| seen.level + 1).max().unwrap_or(0)),
            None => None,
        }
    }

    /// Whether the items of a leaf are gone.
    fn loses(&self) -> bool {
        self.unreadable.iter().any(|id| self.level_of(*id).is_none_or(|level| level == 0))
    }

    /// The keys that belong to a node, as far as what names it says.
    fn bounds(&self, id: u32) -> Lost {
        let (mut low, mut high, mut at, mut steps) = (None, None, id, 0);
        while let Some((parent, index)) = self.parents.get(&at)
            && steps < self.parents.len()
        {
            let children = &self.nodes[parent].children;
            low = low.or((*index > 0).then(|| children[*index].0));
            high = high.or_else(|| children.get(index + 1).map(|next| next.0));
            (at, steps) = (*parent, steps + 1);
        }
        (low.unwrap_or(FIRST), high.unwrap_or(END))
    }

    /// Nodes that nothing names.
    fn orphans(&self) -> impl Iterator<Item = (u32, &Seen)> {
        let named = |id: &u32| *id == ROOT || self.parents.contains_key(id);
        self.nodes.iter().filter(move |node| !named(node.0)).map(|(id, seen)| (*id, seen))
    }

    /// The first key below a node.
    fn first_key(&self, id: u32) -> Option<Key> {
        let mut waiting = vec![(id, usize::from(u8::MAX))];
        while let Some((id, left)) = waiting.pop() {
            let Some(seen) = self.nodes.get(&id) else { continue };
            if seen.first.is_some() {
                return seen.first;
            }
            if left > 0 {
                waiting.extend(seen.children.iter().rev().map(|child| (child.1, left - 1)));
            }
        }
        None
    }
}

impl Seen {
    fn of(node: &Node) -> Seen {
        let children = match node.is_leaf() {
            true => Vec::new(),
            false => (0..node.len()).map(|index| (node.key(index), node.child(index))).collect(),
        };
        let first = if node.is_leaf() { node.first_key() } else { None };
        Seen { level: node.level, first, children }
    }
}

impl Tree {
    fn read(&self, flash: &mut Flash, id: u32) -> Result<Node> {
        let addr = checked(flash, super::flash::Addr(self.addr(id)))?;
        let page = flash.read(addr, PageKind::Node)?;
        Node::decode(id, &page)
    }

    /// Puts readable nodes in the place of those that are not; how many, and the keys that are lost by it.
    pub fn mend(&mut self, flash: &mut Flash) -> Result<(usize, Vec<Lost>)> {
        let mut survey = Survey::of(self, flash)?;
        // No tree has more nodes than the flash has pages.
        let most = flash.segments().saturating_mul(flash.pages_per_segment());
        survey.unreadable.retain(|id| *id < most);
        let mut lost = Vec::new();
        for id in survey.unreadable.iter().copied() {
            self.claim(id);
        }
        for id in survey.unreadable.iter().copied() {
            let Some(level) = survey.level_of(id) else {
                self.give_up_lost(id);
                continue;
            };
            let bounds = survey.bounds(id);
            let mut children = Vec::new();
            for (orphan, seen) in survey.orphans().filter(|(_, seen)| seen.level + 1 == level) {
                match survey.first_key(orphan) {
                    Some(key) if (bounds.0..bounds.1).contains(&key) => children.push((key, orphan)),
                    None if seen.level == 0 => self.give_up_lost(orphan),
                    _ => {}
                }
            }
            children.sort_unstable();
            // Below an inner node that cannot be read there may be leaves that cannot, either.
            let leaves =
                survey.unreadable.iter().any(|other| !survey.parents.contains_key(other) && *other != id);
            if level == 0 || leaves {
                lost.push(bounds);
            }
            self.replace(id, level, &children);
        }
        Ok((survey.unreadable.len(), lost))
    }

    /// Puts a node over `children`, or an empty one, in the place of one that cannot be read.
    fn replace(&mut self, id: u32, level: u8, children: &[(Key, u32)]) {
        let node = match (level, children) {
            (0, _) => Node::empty_leaf(),
            (_, []) => {
                let below = self.add(Node::empty_leaf());
                let top =
                    (1..level).fold(below, |below, level| self.add(Node::inner(level, &[(FIRST, below)])));
                Node::inner(level, &[(FIRST, top)])
            }
            _ => Node::inner(level, children),
        };
        self.put_node(id, node);
    }
}

/// What a summary says was written for an object.
struct Written {
    when: u64,
    start: Key,
    /// Where what was lost ends.
    high: Key,
    len: u64,
    at: u64,
}

impl Index {
    /// Everything that segments with something alive say was written under the keys in `lost`, the newest first.
    fn written(&mut self, lost: &[Lost], everywhere: bool) -> Result<Vec<Written>> {
        let mut all = Vec::new();
        for number in 0..self.media.segments.count() as u32 {
            let is_used = self.media.segments.get(number).live_bytes > 0;
            if number < self.media.kept() || !is_used && !everywhere {
                continue;
            }
            let entries = self.media.entries_of(number)?;
            let first = u64::from(number) * self.media.segment_bytes();
            for entry in entries {
                let LogEntry::Data { object, fork, offset, len, at, when } = entry else { continue };
                let (start, end) =
                    (Key::extent(object, fork, offset), Key::extent(object, fork, offset + u64::from(len)));
                for (low, high) in lost {
                    // An item before `high` may reach past it.
                    let from = start.max(*low);
                    if from < end.min(*high) {
                        let skip = from.place - start.place;
                        let at = first + u64::from(at) + skip;
                        let len = end.place - from.place;
                        all.push(Written { when, start: from, high: *high, len, at });
                    }
                }
            }
        }
        all.sort_unstable_by_key(|written| std::cmp::Reverse(written.when));
        Ok(all)
    }

    /// Maps what of a range nothing maps, up to `end`; whether there was anything.
    fn fill(&mut self, written: &Written, end: u64) -> Result<bool> {
        let Some((fork, offset)) = written.start.fork() else { return Ok(false) };
        let object = written.start.object;
        let (mut at, to) = (offset, (offset + written.len).min(end));
        let mut gaps = Vec::new();
        for (from, extent) in self.overlapping(object, fork, offset, to)? {
            if from > at {
                gaps.push((at, from));
            }
            at = at.max(from + u64::from(extent.len));
        }
        if at < to {
            gaps.push((at, to));
        }
        gaps.retain(|(from, _)| Key::extent(object, fork, *from) < written.high);
        for (from, to) in &gaps {
            let extent = Extent { len: (to - from) as u32, at: written.at + (from - offset) };
            self.map(object, fork, *from, extent)?;
        }
        Ok(!gaps.is_empty())
    }

    /// Counts all that is alive again.
    pub(super) fn count_again(&mut self) -> Result<()> {
        let mut live = vec![0u64; self.media.segments.count()];
        let (mut objects, mut reserved) = (0, 0);
        // What objects have, and what their onodes say of that.
        let (mut has, mut says): (FxHashMap<u64, u64>, FxHashMap<u64, u64>) = Default::default();
        let segment_bytes = self.media.segments.segment_bytes();
        self.tree.range_past(
            &mut self.media.flash,
            (FIRST, END),
            |_, _| (),
            |key, value| match value {
                Value::Onode(onode) => {
                    objects += 1;
                    says.insert(key.object, onode.stored);
                }
                Value::Extent(extent) if extent.is_reserved() => {
                    reserved += u64::from(extent.len);
                    *has.entry(key.object).or_default() += u64::from(extent.len);
                }
                Value::Extent(extent) => {
                    *has.entry(key.object).or_default() += u64::from(extent.len);
                    if let Some(live) = live.get_mut((extent.at / segment_bytes) as usize) {
                        *live += u64::from(extent.len + bytes_beside(key, extent.len));
                    }
                }
                Value::Attributes(_) => {}
            },
        )?;
        self.set_counts(objects, reserved);
        for (number, bytes) in (0..).zip(live) {
            self.media.segments.set_bytes(number, bytes as u32);
        }
        for (object, said) in says {
            let stored = has.remove(&object).unwrap_or(0);
            if said != stored {
                let mut onode = self.onode(object)?;
                onode.stored = stored;
                self.set_onode(object, onode)?;
            }
        }
        self.is_settled();
        Ok(())
    }
}

impl Store {
    /// Replaces what cannot be read of the index, puts together what the segments' summaries say of it, and makes a
    /// checkpoint of that; what was done. Nothing is written where nothing is damaged.
    ///
    /// # Errors
    /// Those of the flash, and of making room.
    pub fn repair(&mut self) -> Result<Vec<Mended>> {
        self.check_writable()?;
        let (mended, lost) = self.index.tree.mend(&mut self.index.media.flash)?;
        let filled = self.fill_lost(&lost, &Found::default());
        self.or_fail(filled)?;
        if mended > 0 && lost.is_empty() {
            let what = format!("{mended} nodes of the index were made again from those below them");
            self.damage.push(Mended::whole(what));
        }
        let done = std::mem::take(&mut self.damage);
        if !done.is_empty() {
            self.checkpoint_now(false)?;
        }
        Ok(done)
    }

    /// Whether a repair would make inner nodes of the index again, and nothing else of it is damaged: nothing is lost by that.
    ///
    /// # Errors
    /// Those of the flash.
    pub fn is_mended_by_repair(&mut self) -> Result<bool> {
        let survey = Survey::of(&self.index.tree, &mut self.index.media.flash)?;
        Ok(!survey.unreadable.is_empty() && !survey.loses())
    }

    /// Whether a repair would give something up, or opening has: a leaf of the index cannot be read.
    ///
    /// # Errors
    /// Those of the flash.
    pub fn loses_by_repair(&mut self) -> Result<bool> {
        let has_lost = self.damage.iter().any(|mended| mended.lost);
        Ok(has_lost || Survey::of(&self.index.tree, &mut self.index.media.flash)?.loses())
    }

    /// The first and the last object that may have something under a range of keys.
    pub(super) fn objects_in(&self, (low, high): &Lost) -> (u64, u64) {
        let last = if high.place == 0 { high.object.saturating_sub(1) } else { high.object };
        (low.object, last.min(self.next_object.saturating_sub(1)).max(low.object))
    }

    /// Puts together what lost leaves of the index held.
    pub(super) fn fill_lost(&mut self, lost: &[Lost], found: &Found) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        for range in lost {
            let (first, last) = self.objects_in(range);
            self.damage.push(Mended::less(format!(
                "a leaf of the index with objects {first} to {last} cannot be read"
            )));
        }
        let is_lost = |key: Key| lost.iter().any(|(low, high)| (*low..*high).contains(&key));
        let mut again = BTreeMap::new();
        for written in self.index.written(lost, found.everywhere)? {
            let object = written.start.object;
            if found.gone.contains(&object) {
                continue;
            }
            let known = self.index.tree.get(&mut self.index.media.flash, Key::onode(object))?;
            let fork = written.start.fork().map(|(fork, _)| fork);
            let end = match (known, fork) {
                (Some(Value::Onode(onode)), Some(Fork::Data)) if !again.contains_key(&object) => onode.size,
                (Some(Value::Onode(onode)), Some(Fork::Attributes)) => onode.attribute_bytes.into(),
                (Some(_), _) => u64::MAX,
                // An object that is not there, and should not be.
                (None, _) if !is_lost(Key::onode(object)) => continue,
                (None, Some(Fork::Data)) => {
                    self.index.set_onode(object, self.blank_onode())?;
                    again.insert(object, true);
                    u64::MAX
                }
                // Attributes of which nobody knows how long they were.
                (None, _) => continue,
            };
            if self.index.fill(&written, end)? {
                again.entry(object).or_insert(false);
            }
        }
        // What the log says of an object, and what goes on in a leaf that is there, may have lost its onode, too.
        for (low, high) in lost {
            let range = (Key::onode(low.object), Key::after_object(high.object));
            self.give_onodes(range, &found.gone, &mut again)?;
        }
        self.name_again(again)?;
        self.index.count_again()
    }

    /// Gives objects that have items but no onode one, if they are not known to be `gone`.
    fn give_onodes(
        &mut self,
        range: (Key, Key),
        gone: &FxHashSet<u64>,
        again: &mut BTreeMap<u64, bool>,
    ) -> Result<()> {
        let mut there = BTreeMap::new();
        let visit = |key: Key, value| {
            *there.entry(key.object).or_insert(false) |= matches!(value, Value::Onode(_));
        };
        self.index.tree.range_past(&mut self.index.media.flash, range, |_, _| (), visit)?;
        for object in there.into_iter().filter(|(_, has_onode)| !has_onode).map(|(object, _)| object) {
            if gone.contains(&object) {
                for fork in [Fork::Data, Fork::Attributes] {
                    self.index.unmap(object, fork, 0, OBJECT_BYTES_MAX)?;
                }
                self.index.set(Key::attributes(object), None)?;
            } else {
                self.index.set_onode(object, self.blank_onode())?;
                again.insert(object, true);
            }
        }
        Ok(())
    }

    /// Gives all objects onodes, and takes what lies past their ends from them; those that had none are named.
    pub(super) fn complete_objects(&mut self, gone: &FxHashSet<u64>) -> Result<()> {
        let mut again = BTreeMap::new();
        self.give_onodes((FIRST, END), gone, &mut again)?;
        self.name_again(again)?;
        let (mut ends, mut past) = ((0, 0, 0), Vec::new());
        let visit = |key: Key, value| match (value, key.fork()) {
            (Value::Onode(onode), _) => ends = (key.object, onode.size, onode.attribute_bytes.into()),
            (Value::Extent(extent), Some((fork, from))) if !extent.is_reserved() && ends.0 == key.object => {
                let end = if fork == Fork::Data { ends.1 } else { ends.2 };
                if from + u64::from(extent.len) > end {
                    past.push((key.object, fork, from.max(end), from + u64::from(extent.len)));
                }
            }
            _ => {}
        };
        self.index.tree.range_past(&mut self.index.media.flash, (FIRST, END), |_, _| (), visit)?;
        past.into_iter().try_for_each(|(object, fork, from, to)| self.index.unmap(object, fork, from, to))
    }

    /// Names objects that were put together, and makes those that had no onode as long as they reach.
    fn name_again(&mut self, again: BTreeMap<u64, bool>) -> Result<()> {
        for (object, is_new) in again {
            if is_new {
                self.reach(object)?;
            }
            self.damage.push(match is_new {
                true => Mended::less(format!("object {object}: its size, times and attributes are lost; its contents were put together from what the segments say was written")),
                false => Mended::whole(format!("object {object}: a part of it was put together from what the segments say was written")),
            });
        }
        Ok(())
    }

    pub(super) fn blank_onode(&self) -> Onode {
        let now = self.now();
        let (created, modified, changed, accessed) = (now, now, now, now);
        let access_from = self.access.next();
        Onode {
            size: 0,
            stored: 0,
            attribute_bytes: 0,
            hint: 0,
            access_from,
            created,
            modified,
            changed,
            accessed,
        }
    }

    /// Makes an object as long as what is mapped of it.
    fn reach(&mut self, object: u64) -> Result<()> {
        let extents = self.index.overlapping(object, Fork::Data, 0, OBJECT_BYTES_MAX)?;
        let end = extents.last().map_or(0, |(from, extent)| from + u64::from(extent.len));
        let mut onode = self.index.onode(object)?;
        onode.size = end;
        self.index.set_onode(object, onode)
    }
}
