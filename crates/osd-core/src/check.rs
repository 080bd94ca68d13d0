//! A check of the whole store: everything counted again and compared.

use super::Store;
use super::layout::{Extent, Key, Value};
use super::mend::Lost;
use super::objects::NUMBERS_END;
use super::segments::State;
use super::summary::bytes_beside;
use bimetal_base::{Error, Result};
use serde::Serialize;

/// What a check counted and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Objects.
    pub objects: u64,
    /// Extents.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

impl Store {
    /// Walks over everything and compares it with what the store believes; reads every node, and with `contents`
    /// every byte of every object.
    ///
    /// What cannot be read is a problem, in [`Checked::problems`] as the others.
    ///
    /// # Errors
    /// The flash is gone.
    pub fn check(&mut self, contents: bool) -> Result<Checked> {
        let mut checked =
            Checked { problems: self.damage.iter().map(ToString::to_string).collect(), ..Checked::default() };
        let mut extents: Vec<(Key, Extent)> = Vec::new();
        let all = (Key { object: 0, place: 0 }, Key { object: u64::MAX, place: u64::MAX });
        let (mut object, mut sizes) = (None, Vec::new());
        let (mut says, mut has) = (Vec::new(), std::collections::BTreeMap::<u64, u64>::new());
        let (mut lost, mut orphans) = (Vec::<(Lost, Error)>::new(), Vec::new());
        self.index.tree.range_past(
            &mut self.index.media.flash,
            all,
            |range, why| lost.push((range, why)),
            |key, value| {
                if let Value::Onode(onode) = &value {
                    object = Some(key.object);
                    sizes.push((key.object, onode.size));
                    says.push((key.object, onode.stored));
                } else if object != Some(key.object) {
                    object = Some(key.object);
                    orphans.push(key.object);
                }
                if let Value::Extent(extent) = value {
                    *has.entry(key.object).or_default() += u64::from(extent.len);
                    extents.push((key, extent));
                }
            },
        )?;
        checked.objects = sizes.len() as u64;
        checked.extents = extents.len() as u64;
        checked.nodes = self.index.tree.pages().count() as u64;
        // With a part of the index the counts say nothing.
        let whole = lost.is_empty();
        for (range, why) in &lost {
            let (first, last) = self.objects_in(range);
            checked.problems.push(format!(
                "objects {first} to {last}: a part of the index with what is theirs cannot be read: {why}"
            ));
        }
        let is_lost =
            |object: &u64| lost.iter().any(|(range, _)| (range.0..range.1).contains(&Key::onode(*object)));
        let orphans = orphans.iter().filter(|object| !is_lost(object));
        checked.problems.extend(orphans.map(|object| format!("object {object} has items but no onode")));
        if whole && self.index.objects() != checked.objects {
            checked.problems.push(format!(
                "{} objects are counted, {} are there",
                self.index.objects(),
                checked.objects
            ));
        }
        self.check_blocks(&mut checked);
        self.check_extents(&extents, &mut checked);
        if whole {
            for (object, said) in says {
                let (said, has) = (self.index.stored(object, said), has.get(&object).copied().unwrap_or(0));
                if said != has {
                    checked
                        .problems
                        .push(format!("object {object}: it says that it has {said} bytes, and has {has}"));
                }
            }
            self.check_segments(&extents, &mut checked);
            let unled = self.index.tree.unled(&mut self.index.media.flash)?.len();
            if unled > 0 {
                checked.problems.push(format!("{unled} nodes are kept that the index does not lead to"));
            }
            let free = self.least_number()?..NUMBERS_END;
            if !free.contains(&self.next_object) {
                checked.problems.push(format!(
                    "the next object would be number {}, and those from {} on are free",
                    self.next_object, free.start
                ));
            }
        }
        if contents {
            for (key, extent) in extents {
                let mut bytes = vec![0; extent.len as usize];
                if !extent.is_reserved()
                    && let Err(why) = self.index.read_bytes(key, extent.at, u64::from(extent.len), &mut bytes)
                {
                    checked.problems.push(why.to_string());
                }
            }
        }
        Ok(checked)
    }

    /// Checks that enough blocks are good for the next change.
    fn check_blocks(&self, checked: &mut Checked) {
        let media = &self.index.media;
        if self.checkpoints.has_no_anchor_block(&media.flash) {
            let why = "all blocks for anchors are bad: what it holds can be read, and no change can be kept";
            checked.problems.push(why.into());
        }
        let (all, segments) = (media.kept()..media.segments.count() as u32, &media.segments);
        let (bad, good): (Vec<u32>, Vec<u32>) =
            all.clone().partition(|number| segments.get(*number).state == State::Bad);
        let is_empty = |number: &&u32| segments.alive_in(**number) == 0;
        // Looking for room takes one before it is given up.
        if !bad.is_empty() && good.iter().filter(is_empty).count() <= self.least_segments() + 1 {
            checked.problems.push(format!(
                "{} of {} segments are in bad blocks, and too few are left: what it holds can be read, and no change can be kept",
                bad.len(),
                all.len()
            ));
        }
    }

    fn check_extents(&self, extents: &[(Key, Extent)], checked: &mut Checked) {
        let span = |key: Key, extent: Extent| {
            key.fork().map(|(fork, from)| (key.object, fork, from, from + u64::from(extent.len)))
        };
        for pair in extents.windows(2) {
            let [first, second] = [span(pair[0].0, pair[0].1), span(pair[1].0, pair[1].1)];
            let (Some(first), Some(second)) = (first, second) else { continue };
            if (first.0, first.1 as u8) == (second.0, second.1 as u8) && first.3 > second.2 {
                checked
                    .problems
                    .push(format!("object {}: two extents overlap at byte {}", first.0, second.2));
            }
        }
        let mut places: Vec<(u64, u64)> = extents
            .iter()
            .filter(|(_, e)| !e.is_reserved())
            .map(|(_, e)| (e.at, e.at + u64::from(e.len)))
            .collect();
        places.sort_unstable();
        checked.bytes = places.iter().map(|(from, to)| to - from).sum();
        for pair in places.windows(2).filter(|pair| pair[0].1 > pair[1].0) {
            checked.problems.push(format!("byte {} of the flash belongs to two extents", pair[1].0));
        }
    }

    fn check_segments(&self, extents: &[(Key, Extent)], checked: &mut Checked) {
        let mut live = vec![(0u64, 0u32); self.index.media.segments.count()];
        for (key, extent) in extents.iter().filter(|(_, extent)| !extent.is_reserved()) {
            let bytes = extent.len + bytes_beside(*key, extent.len);
            live[self.index.media.segments.of_byte(extent.at) as usize].0 += u64::from(bytes);
        }
        let nodes = self.index.tree.pages().map(|(_, addr)| addr);
        let named = self.checkpoints.pages().iter().chain(self.checkpoints.retired()).copied();
        let pages = nodes.chain(self.checkpoints.tables()).chain(named);
        for addr in pages.chain(self.access.pages().iter().copied()).chain(self.index.tree.released()) {
            live[self.index.media.segments.of(addr) as usize].1 += 1;
        }
        for (number, (bytes, pages)) in (0..).zip(live) {
            let segment = self.index.media.segments.get(number);
            if u64::from(segment.live_bytes) != bytes || segment.live_pages != pages {
                checked.problems.push(format!(
                    "segment {number}: {} bytes and {} pages are counted, {bytes} and {pages} are alive",
                    segment.live_bytes, segment.live_pages
                ));
            }
            if segment.state == State::Free && (bytes > 0 || pages > 0) {
                checked.problems.push(format!("segment {number} is free but holds something"));
            }
        }
    }
}
