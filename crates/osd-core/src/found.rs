//! What of what segments say was written is still there, where a leaf of the index is lost and the log tells more of it.

use super::layout::Key;
use super::log::Record;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// Where what lost leaves held is looked for.
#[derive(Default)]
pub(super) struct Found {
    /// Nothing is known of what is alive in which segment.
    pub everywhere: bool,
    /// Objects that are known to be gone.
    pub gone: FxHashSet<u64>,
    /// Where the log says what begins there, or that nothing does any more: all that is left of what began there before is in
    /// the log, too.
    pub said: BTreeSet<Key>,
    /// The mark of the checkpoint that the log goes on from.
    mark: u64,
}

/// What a summary says was written for an object.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub when: u64,
    pub start: Key,
    /// Where what was lost ends.
    pub high: Key,
    pub len: u64,
    pub at: u64,
}

impl Written {
    fn end(&self) -> Key {
        Key { place: self.start.place + self.len, ..self.start }
    }
}

impl Found {
    /// What the log says after a checkpoint.
    pub fn of(records: &[Record], mark: u64) -> Found {
        let mut found = Found { mark, ..Found::default() };
        for record in records {
            match record {
                Record::Delete(key) if *key == Key::onode(key.object) => drop(found.gone.insert(key.object)),
                Record::Put(key, _) if *key == Key::onode(key.object) => drop(found.gone.remove(&key.object)),
                Record::Put(key, _) | Record::Delete(key) if key.fork().is_some() => {
                    found.said.insert(*key);
                }
                _ => {}
            }
        }
        found
    }

    /// What `all` says was written, the newest first, without what the log says is no more.
    pub fn left_of(&self, all: Vec<Written>) -> Vec<Written> {
        let mut by_object = FxHashMap::<u64, Vec<&Written>>::default();
        all.iter().for_each(|written| by_object.entry(written.start.object).or_default().push(written));
        // Where it was, and when it was written at the latest.
        let mut no_more = FxHashMap::<u64, Vec<(Key, Key, u64)>>::default();
        for key in &self.said {
            let Some(its) = by_object.get(&key.object) else { continue };
            // What the checkpoint knew, and what was written after it.
            for before in [self.mark, u64::MAX] {
                no_more.entry(key.object).or_default().extend(begins_at(*key, its, before));
            }
        }
        let mut left = Vec::new();
        for written in &all {
            let mut parts = vec![(written.start, written.end())];
            for (from, to, when) in no_more.get(&written.start.object).into_iter().flatten() {
                if written.when <= *when {
                    let cut = |(start, end): (Key, Key)| [(start, end.min(*from)), (start.max(*to), end)];
                    parts = parts.into_iter().flat_map(cut).filter(|(start, end)| start < end).collect();
                }
            }
            left.extend(parts.into_iter().map(|(start, end)| Written {
                start,
                len: end.place - start.place,
                at: written.at + (start.place - written.start.place),
                ..*written
            }));
        }
        left
    }
}

/// The extents that began at a key before some time, as what was written tells, the newest first, and when they were written:
/// one goes on in the next that lies behind it.
fn begins_at(key: Key, all: &[&Written], before: u64) -> Vec<(Key, Key, u64)> {
    let (mut found, mut from, mut due) = (Vec::new(), key, None);
    while let Some(its) = all.iter().find(|one| one.when < before && one.start <= from && from < one.end()) {
        let at = its.at + (from.place - its.start.place);
        if due.is_some_and(|due| due != at) {
            break;
        }
        // What was written over it since has keys of its own.
        let over = all.iter().filter(|one| (its.when + 1..before).contains(&one.when) && one.start > from);
        let to = over.map(|one| one.start).min().map_or(its.end(), |start| start.min(its.end()));
        found.push((from, to, its.when));
        (from, due) = (to, Some(at + (to.place - from.place)));
    }
    found
}
