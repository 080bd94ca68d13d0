//! Mending the index: what `fsck` does where nodes of the tree cannot be read.
//!
//! 1. Every node that the table names is read. An inner node that cannot be read is made again from the nodes below
//!    it, which no other node names; nothing is lost by that, also where those above it cannot be read, either. A leaf is
//!    replaced by an empty one.
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
use super::found::{Found, Written};
use super::layout::{Extent, Fork, Key, OBJECT_BYTES_MAX, Onode, PageKind, Value};
use super::node::Node;
use super::recover::checked;
use super::summary::{LogEntry, bytes_beside};
use super::tree::{ROOT, Tree};
use super::{Store, is_damage};
use bimetal_base::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

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

/// The key after one.
fn after(key: Key) -> Key {
    Key { place: key.place.saturating_add(1), ..key }
}

/// What is known of a node.
struct Seen {
    level: u8,
    /// Its first and last key, of a leaf.
    span: Option<(Key, Key)>,
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

    /// Whether the items of a leaf are gone, or may be.
    fn loses(&self) -> bool {
        !self.plan().lost.is_empty()
    }

    /// What is to take the place of the nodes that cannot be read.
    ///
    /// Nodes that nothing names are put together by their levels and keys, those on the lowest level first: what has none of
    /// the level above beside it gets one that is made. Each of these stands for a node at least that cannot be read and that
    /// nothing names; what is left of those may have been leaves, which were between other leaves then.
    fn plan(&self) -> Plan {
        let (mut plan, mut taken) = (Plan::default(), BTreeSet::new());
        let is_unnamed = |id: &u32| *id != ROOT && !self.parents.contains_key(id);
        plan.unnamed = self.unreadable.iter().copied().filter(is_unnamed).collect();
        let mut named: Vec<(u8, u32)> =
            self.unreadable.iter().filter_map(|id| Some((self.level_of(*id)?, *id))).collect();
        named.sort_unstable();
        let (mut made, mut above) = (0, Vec::new());
        // Where what is made again begins, for what is above it.
        let mut begins = FxHashMap::default();
        for (level, id) in named {
            let bounds = self.bounds(id, level);
            let mut by_level: Vec<Vec<(Key, Built)>> = (0..level).map(|_| Vec::new()).collect();
            for (orphan, seen) in self.orphans().filter(|(_, seen)| seen.level < level) {
                match self.first_key(orphan, &begins) {
                    Some(key) if (bounds.0..bounds.1).contains(&key) && taken.insert(orphan) => {
                        by_level[usize::from(seen.level)].push((key, Built::There(orphan)));
                    }
                    None if seen.level == 0 => drop(plan.empty.insert(orphan)),
                    _ => {}
                }
            }
            let mut children = Vec::new();
            for mut nodes in by_level {
                let mut below = std::mem::take(&mut children);
                nodes.sort_by_key(|node| node.0);
                // What is below, and has none of these beside it, is below one that cannot be read.
                let mut run: Vec<(Key, Built)> = Vec::new();
                for node in nodes {
                    let rest = below.split_off(below.partition_point(|one: &(Key, Built)| one.0 < node.0));
                    run.append(&mut below);
                    below = rest;
                    if let Some(first) = run.first().map(|first| first.0) {
                        children.push((first, Built::Made(std::mem::take(&mut run))));
                        made += 1;
                    }
                    children.push(node);
                }
                if let Some(first) = below.first().map(|first| first.0) {
                    children.push((first, Built::Made(below)));
                    made += 1;
                }
            }
            if level == 0 {
                plan.lost.push(bounds);
            } else {
                above.push(bounds);
            }
            begins.insert(id, children.first().map_or(bounds.0, |first| first.0));
            plan.nodes.push(Planned { id, level, children });
        }
        if made < plan.unnamed.len() {
            plan.lost.extend(above.into_iter().flat_map(|bounds| self.gaps(bounds)));
        }
        plan
    }

    /// The keys between the leaves of a range that are not below one node which names all there is between them.
    fn gaps(&self, bounds: Lost) -> Vec<Lost> {
        let in_bounds = |(first, _): &(Key, Key)| (bounds.0..bounds.1).contains(first);
        let leaves = self.nodes.iter().filter_map(|(id, seen)| Some((seen.span.filter(in_bounds)?, *id)));
        let mut leaves: Vec<((Key, Key), u32)> = leaves.collect();
        leaves.sort_unstable();
        let (mut gaps, mut from, mut before) = (Vec::new(), bounds.0, None);
        for ((first, last), id) in leaves {
            let parent = self.parents.get(&id).map(|(parent, _)| *parent);
            if parent.is_none() || parent != before {
                gaps.push((from, first));
            }
            (from, before) = (after(last), parent);
        }
        gaps.push((from, bounds.1));
        gaps.retain(|(low, high)| low < high);
        gaps
    }

    /// The keys that belong to a node on a level: as far as what names it says, and else up to what other nodes have.
    fn bounds(&self, id: u32, level: u8) -> Lost {
        let (mut low, mut high, mut at, mut steps) = (None, None, id, 0);
        while let Some((parent, index)) = self.parents.get(&at)
            && steps < self.parents.len()
        {
            let children = &self.nodes[parent].children;
            low = low.or((*index > 0).then(|| children[*index].0));
            high = high.or_else(|| children.get(index + 1).map(|next| next.0));
            (at, steps) = (*parent, steps + 1);
        }
        let (least, most) = match self.parents.get(&id) {
            Some((parent, index)) if at != ROOT => {
                self.beside(id, level, self.nodes[parent].children[*index].0)
            }
            _ => (FIRST, END),
        };
        (low.unwrap_or(least), high.unwrap_or(most))
    }

    /// What other nodes leave of the keys around one that belongs to a node on a level: those that are not below it, since
    /// something on its level or above leads to them.
    fn beside(&self, id: u32, level: u8, its: Key) -> Lost {
        let (mut low, mut high) = (FIRST, END);
        let mut is_others = |key: Key| match key <= its {
            true => low = low.max(key),
            false => high = high.min(key),
        };
        for (_, seen) in self.nodes.iter().filter(|(number, _)| self.top_level(**number) >= level) {
            for key in seen.span.iter().flat_map(|(first, last)| [*first, after(*last)]) {
                is_others(key);
            }
            for (index, (key, child)) in seen.children.iter().enumerate() {
                // The key of a first child may be anywhere in it.
                if index > 0 || *child != id && !self.nodes.contains_key(child) {
                    is_others(*key);
                }
            }
        }
        (low, high)
    }

    /// The level of the topmost node that leads to one.
    fn top_level(&self, id: u32) -> u8 {
        let (mut at, mut steps) = (id, 0);
        while let Some((parent, _)) = self.parents.get(&at)
            && steps < self.parents.len()
        {
            (at, steps) = (*parent, steps + 1);
        }
        self.nodes.get(&at).map_or(0, |seen| seen.level)
    }

    /// Nodes that nothing names.
    fn orphans(&self) -> impl Iterator<Item = (u32, &Seen)> {
        let named = |id: &u32| *id == ROOT || self.parents.contains_key(id);
        self.nodes.iter().filter(move |node| !named(node.0)).map(|(id, seen)| (*id, seen))
    }

    /// The first key below a node, where those that are made again begin as is known so far.
    fn first_key(&self, id: u32, begins: &FxHashMap<u32, Key>) -> Option<Key> {
        let mut waiting = vec![(id, usize::from(u8::MAX))];
        while let Some((id, left)) = waiting.pop() {
            let Some(seen) = self.nodes.get(&id) else {
                match begins.get(&id) {
                    Some(begin) => return Some(*begin),
                    None => continue,
                }
            };
            if let Some((first, _)) = seen.span {
                return Some(first);
            }
            if left > 0 {
                waiting.extend(seen.children.iter().rev().map(|child| (child.1, left - 1)));
            }
        }
        // Of one whose leaves cannot be read, either.
        self.nodes.get(&id)?.children.first().map(|child| child.0)
    }
}

/// What is to be done about nodes that cannot be read.
#[derive(Default)]
struct Plan {
    nodes: Vec<Planned>,
    /// Those that nothing names: what is below them has other nodes above it.
    unnamed: BTreeSet<u32>,
    /// Leaves without anything, that nothing names.
    empty: BTreeSet<u32>,
    /// What may have been in leaves that cannot be read.
    lost: Vec<Lost>,
}

/// A node that is made again.
struct Planned {
    id: u32,
    level: u8,
    children: Vec<(Key, Built)>,
}

/// A child of one.
enum Built {
    There(u32),
    /// It is made, too, over these.
    Made(Vec<(Key, Built)>),
}

impl Seen {
    fn of(node: &Node) -> Seen {
        let children = match node.is_leaf() {
            true => Vec::new(),
            false => (0..node.len()).map(|index| (node.key(index), node.child(index))).collect(),
        };
        let first = node.first_key().filter(|_| node.is_leaf());
        let span = first.map(|first| (first, node.key(node.len() - 1)));
        Seen { level: node.level, span, children }
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
        for id in survey.unreadable.iter().copied() {
            self.claim(id);
        }
        let plan = survey.plan();
        plan.unnamed.iter().chain(&plan.empty).for_each(|id| self.give_up_lost(*id));
        for Planned { id, level, children } in plan.nodes {
            self.replace(id, level, children);
        }
        Ok((survey.unreadable.len(), plan.lost))
    }

    /// Puts a node over `children`, or an empty one, in the place of one that cannot be read.
    fn replace(&mut self, id: u32, mut level: u8, children: Vec<(Key, Built)>) {
        if level == 0 {
            return self.put_node(id, Node::empty_leaf());
        }
        let mut children = self.place(level, children);
        if children.is_empty() {
            let below = self.add(Node::empty_leaf());
            let top = (1..level).fold(below, |below, level| self.add(Node::inner(level, &[(FIRST, below)])));
            children.push((FIRST, top));
        }
        loop {
            let mut nodes = self.pack(level, &children);
            if nodes.len() == 1 {
                return nodes.into_iter().for_each(|(_, node)| self.put_node(id, node));
            }
            // There are more of them than one node has places for.
            children = nodes.drain(..).map(|(key, node)| (key, self.add(node))).collect();
            level += 1;
        }
    }

    /// Makes what is not there of the children of a node on a level.
    fn place(&mut self, level: u8, children: Vec<(Key, Built)>) -> Vec<(Key, u32)> {
        let mut placed = Vec::new();
        for (key, child) in children {
            match child {
                Built::There(id) => placed.push((key, id)),
                Built::Made(below) => {
                    let below = self.place(level - 1, below);
                    let nodes = self.pack(level - 1, &below);
                    placed.extend(nodes.into_iter().map(|(key, node)| (key, self.add(node))));
                }
            }
        }
        placed
    }

    /// Inner nodes over `children`, in order, each as full as it can be.
    fn pack(&self, level: u8, children: &[(Key, u32)]) -> Vec<(Key, Node)> {
        let mut nodes = Vec::<(Key, Node)>::new();
        for (key, child) in children {
            if let Some((_, last)) = nodes.last_mut() {
                last.insert_child(last.len(), *key, *child);
                if last.bytes() <= self.node_bytes_max() {
                    continue;
                }
                last.remove(last.len() - 1);
            }
            nodes.push((*key, Node::inner(level, &[(*key, *child)])));
        }
        nodes
    }
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
        let unled = self.index.tree.give_up_unled(&mut self.index.media.flash)?;
        if unled > 0 {
            self.damage
                .push(Mended::whole(format!("{unled} nodes that the index does not lead to are given up")));
        }
        if self.number_objects()? {
            let what = "objects to come had no numbers that are free, and have some now";
            self.damage.push(Mended::whole(what.into()));
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
        for written in found.left_of(self.index.written(lost, found.everywhere)?) {
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
        // What was never committed may be among it, past any number that is known to be given out.
        self.number_objects()?;
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
                false => Mended::less(format!("object {object}: a part of it was put together from what the segments say was written; what had been cut off of it may be there again")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::Addr;
    use crate::node::By;
    use bimetal_base::random::Random;
    use bimetal_media::nand::{Nand, NandProfile, Payload};
    use bimetal_media::profile;

    /// Long ones, of which few go into a node.
    fn key(number: u64) -> Key {
        Key::extent((1 << 60) + number / 8, Fork::Data, (number % 8) << 40)
    }

    fn value(number: u64) -> Value {
        Value::Extent(Extent { len: 1 + (number % 1000) as u32, at: number << 12 })
    }

    /// A tree of four levels and more, of small nodes, in which items came and went; all of it is on the flash.
    fn tall(random: &mut Random) -> (Tree, Flash, BTreeMap<Key, Value>) {
        let profile = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
        let nand = Nand::new(NandProfile { blocks: 128, ..profile }, 1, true, Payload::memory());
        let (mut flash, mut tree) = (Flash::new(nand, 1), Tree::new(240, 1 << 30));
        let mut model = BTreeMap::new();
        for step in 0..150 {
            let (from, run) = (random.below(6000), 1 + random.below(100));
            for number in from..from + run {
                if step < 90 {
                    tree.put(&mut flash, key(number), &value(number)).unwrap();
                    model.insert(key(number), value(number));
                } else if step % 3 > 0 {
                    tree.delete(&mut flash, key(number)).unwrap();
                    model.remove(&key(number));
                }
            }
        }
        for (page, id) in (0..).zip(tree.dirty_nodes()) {
            let mut out = crate::layout::Output::default();
            tree.encode(id, &By::default(), &mut out);
            assert!(flash.program(Addr(page), PageKind::Node, 1, &out.0).unwrap());
            tree.wrote(id, Addr(page));
        }
        let table: Vec<u32> = (0..tree.table_len() as u32).map(|id| tree.addr(id)).collect();
        (Tree::of(&table, 240, 1 << 30), flash, model)
    }

    #[test]
    fn whatever_nodes_cannot_be_read_all_other_leaves_keep_their_items_and_the_keys_around_theirs() {
        let (mut inner, mut leaves, mut tall_ones) = (0, 0, 0);
        for seed in 0..400 {
            let mut random = Random::new(seed, "mend");
            let (mut tree, mut flash, mut model) = tall(&mut random);
            let survey = Survey::of(&tree, &mut flash).unwrap();
            let all = survey.nodes.iter().map(|(id, seen)| (*id, seen.level, seen.span));
            let all: Vec<_> = all.collect();
            tall_ones += u32::from(survey.nodes[&ROOT].level > 2);
            // The root mostly, and some of any level, those on the higher ones more likely.
            let mut damaged = BTreeSet::new();
            if random.chance(0.8) {
                damaged.insert(ROOT);
            }
            for _ in 0..1 + random.below(5) {
                let level = random.below(3) as u8;
                let its: Vec<u32> = all.iter().filter(|node| node.1 == level).map(|node| node.0).collect();
                damaged.insert(its[random.below(its.len() as u64) as usize]);
            }
            for id in &damaged {
                flash.turn_bit(Addr(tree.addr(*id)), 99);
            }
            let gone: Vec<(Key, Key)> =
                all.iter().filter(|node| damaged.contains(&node.0)).filter_map(|node| node.2).collect();
            let at = format!("seed {seed}, nodes {damaged:?}");
            let lost = tree.mend(&mut flash).unwrap().1;
            (inner, leaves) = (inner + damaged.len() - gone.len(), leaves + gone.len());
            let is_gone = |key: &Key| gone.iter().any(|(first, last)| (first..=last).contains(&key));
            for (key, value) in &model {
                let is_lost = lost.iter().any(|(low, high)| (low..high).contains(&key));
                assert_eq!(is_lost, is_gone(key), "{at}: {key:?} of {lost:?}");
                let found = tree.get(&mut flash, *key).unwrap();
                assert_eq!(found.as_ref(), (!is_gone(key)).then_some(value), "{at}: {key:?}");
            }
            model.retain(|key, _| !is_gone(key));
            // It is a tree like any other.
            for _ in 0..400 {
                let number = random.below(6100);
                match random.chance(0.5) {
                    true => {
                        tree.put(&mut flash, key(number), &value(number)).unwrap();
                        model.insert(key(number), value(number));
                    }
                    false => {
                        tree.delete(&mut flash, key(number)).unwrap();
                        model.remove(&key(number));
                    }
                }
            }
            let mut found = BTreeMap::new();
            let visit = |key, value| drop(found.insert(key, value));
            tree.range_past(&mut flash, (FIRST, END), |_, why| panic!("{at}: {why}"), visit).unwrap();
            assert!(found == model, "{at}: {} of {}", found.len(), model.len());
        }
        eprintln!("{inner} inner nodes, {leaves} leaves");
        assert!(inner > 400 && leaves > 100 && tall_ones > 300, "{inner}, {leaves}, {tall_ones}");
    }
}
