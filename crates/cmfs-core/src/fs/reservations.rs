//! Room promised to files, in this mount.
//!
//! Ranges of pages by file, each apart from the others of its file. A page that is there is promised no more room.

use crate::object::{Object, Objects};
use crate::sorted::Map;
use alloc::vec::Vec;

/// Ranges of pages, from and to.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    files: Map<u32, Vec<(u32, u32)>>,
}

impl Reservations {
    fn of(&self, id: u32) -> &[(u32, u32)] {
        self.files.get(&id).map_or(&[], |ranges| ranges)
    }

    pub fn contain(&self, id: u32, index: u32) -> bool {
        self.of(id).iter().any(|(from, to)| (*from..*to).contains(&index))
    }

    /// Promised pages of a file that are not there yet.
    pub fn pages_of(&self, id: u32, object: &Object) -> u64 {
        let there = |from: u32, to: u32| (from..to).filter(|index| object.map.get(*index).is_some()).count();
        self.of(id).iter().map(|&(from, to)| u64::from(to - from) - there(from, to) as u64).sum()
    }

    /// Promised pages that are not there yet.
    pub fn pages(&self, objects: &Objects) -> u64 {
        let files = self.files.keys().filter_map(|id| Some((*id, objects.get(*id)?)));
        files.map(|(id, object)| self.pages_of(id, object)).sum()
    }

    pub fn add(&mut self, id: u32, mut from: u32, mut to: u32) {
        let ranges = self.files.or_default(id);
        ranges.retain(|&(start, end)| {
            let touches = start <= to && from <= end;
            if touches {
                (from, to) = (from.min(start), to.max(end));
            }
            !touches
        });
        ranges.push((from, to));
    }

    /// Takes promises back.
    pub fn remove(&mut self, id: u32, from: u32, to: u32) {
        let Some(ranges) = self.files.get_mut(&id) else { return };
        let cut = |(start, end): (u32, u32)| [(start, end.min(from)), (start.max(to), end)];
        *ranges = ranges.iter().copied().flat_map(cut).filter(|range| range.0 < range.1).collect();
        if ranges.is_empty() {
            self.files.remove(&id);
        }
    }
}
