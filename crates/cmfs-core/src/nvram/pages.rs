//! The code of a segment of a map, chosen for each: runs, a base run with exceptions, the paper's, or plain.
//!
//! Pages are numbered as the log fills them, so that a block's summary does not end a run. Two bits say which code;
//! what it needs of parameters follows. Sequential files are a run or two, interleaved writers make many short
//! runs, overwriting leaves a base run with exceptions, and what has no order at all costs its bits.

use crate::bits::{BitReader, BitWriter};
use crate::codec::hybrid;
use crate::media::Geometry;
use crate::object::NONE;
use crate::sorted::Map;
use alloc::vec::Vec;

/// Orders of Golomb code that can be chosen from.
const ORDERS: [u32; 4] = [0, 4, 8, 12];
/// A number of no page, in log order.
pub(super) const HOLE: u32 = u32::MAX;

/// Page numbers in log order and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pages_per_block: u32,
    usable: u32,
    /// Bits of a page number.
    pub width: u32,
    pages: u32,
}

impl Scale {
    pub fn new(geometry: &Geometry, usable: u32) -> Scale {
        let pages = geometry.blocks.saturating_mul(usable.max(1));
        let width = 32 - pages.leading_zeros();
        Scale { pages_per_block: geometry.pages_per_block, usable: usable.max(1), width, pages }
    }

    pub fn to_log(self, page: u32) -> u32 {
        match page {
            NONE => HOLE,
            page => page / self.pages_per_block * self.usable + page % self.pages_per_block,
        }
    }

    /// `None` if there is no such page.
    pub fn to_page(self, log: u32) -> Option<u32> {
        match log {
            HOLE => Some(NONE),
            log if log < self.pages => Some(log / self.usable * self.pages_per_block + log % self.usable),
            _ => None,
        }
    }
}

/// A run: holes before it, its first page, its length.
struct Run {
    gap: u32,
    first: u32,
    len: u32,
}

fn runs(entries: &[u32]) -> (Vec<Run>, u32) {
    let (mut found, mut gap): (Vec<Run>, u32) = (Vec::new(), 0);
    for &entry in entries {
        match found.last_mut() {
            _ if entry == HOLE => gap += 1,
            Some(run) if gap == 0 && run.first + run.len == entry => run.len += 1,
            _ => {
                found.push(Run { gap, first: entry, len: 1 });
                gap = 0;
            }
        }
    }
    (found, gap)
}

fn write_runs(entries: &[u32], cursor: u32, order: u32) -> BitWriter {
    let mut to = BitWriter::default();
    to.bits(u64::from(order), 2);
    let k = ORDERS[order as usize];
    let (runs, tail) = runs(entries);
    let mut at = cursor;
    for run in &runs {
        write_gap(&mut to, run.gap);
        to.signed(i64::from(run.first) - i64::from(at), k);
        to.golomb(u64::from(run.len - 1), 2);
        at = run.first + run.len;
    }
    if tail > 0 {
        write_gap(&mut to, tail);
    }
    to
}

fn write_gap(to: &mut BitWriter, gap: u32) {
    to.bit(gap > 0);
    if gap > 0 {
        to.golomb(u64::from(gap - 1), 2);
    }
}

fn read_runs(from: &mut BitReader, count: usize, cursor: u32) -> Option<Vec<u32>> {
    let k = ORDERS[from.bits(2)? as usize];
    let mut entries = Vec::with_capacity(count);
    let mut at = i64::from(cursor);
    while entries.len() < count {
        if from.bit()? {
            let gap = from.golomb(2)? as usize + 1;
            if gap > count - entries.len() {
                return None;
            }
            entries.resize(entries.len() + gap, HOLE);
            if entries.len() == count {
                break;
            }
        }
        let first = u32::try_from(at.checked_add(from.signed(k)?)?).ok()?;
        let len = from.golomb(2)?.checked_add(1)?;
        if len > (count - entries.len()) as u64 {
            return None;
        }
        let end = first.checked_add(len as u32)?;
        entries.extend(first..end);
        at = i64::from(end);
    }
    Some(entries)
}

/// What most entries have in common: page minus index.
fn base_of(entries: &[u32]) -> i64 {
    let mut counts: Map<i64, u32> = Map::new();
    for (entry, index) in entries.iter().zip(0i64..) {
        if *entry != HOLE {
            *counts.or_default(i64::from(*entry) - index) += 1;
        }
    }
    counts.iter().max_by_key(|(_, count)| **count).map_or(0, |(base, _)| *base)
}

/// Where an exception's value comes from: the next of the last one, a difference, or all of its bits.
fn write_exceptions(entries: &[u32], cursor: u32, scale: Scale, order: u32) -> BitWriter {
    let mut to = BitWriter::default();
    to.bits(u64::from(order), 2);
    let base = base_of(entries);
    to.signed(base - i64::from(cursor), 4);
    let is_other = |index: usize| i64::from(entries[index]) != base + index as i64;
    let others: Vec<usize> = (0..entries.len()).filter(|index| is_other(*index)).collect();
    to.golomb(others.len() as u64, 4);
    let (mut behind, mut last) = (0, i64::from(cursor));
    for index in others {
        to.golomb((index - behind) as u64, 0);
        behind = index + 1;
        let entry = entries[index];
        let follows = entry != HOLE && i64::from(entry) == last + 1;
        to.bit(follows);
        if !follows {
            write_value(&mut to, entry, last, scale, order);
        }
        if entry != HOLE {
            last = i64::from(entry);
        }
    }
    to
}

fn write_value(to: &mut BitWriter, entry: u32, last: i64, scale: Scale, order: u32) {
    // All ones are a hole: no page is numbered so.
    if order == 0 || entry == HOLE {
        to.bit(true);
        return to.bits(u64::from(entry), scale.width);
    }
    let delta = i64::from(entry) - last;
    let mut short = BitWriter::default();
    short.signed(delta, ORDERS[order as usize]);
    let far = short.len_bits() > scale.width as usize;
    to.bit(far);
    match far {
        true => to.bits(u64::from(entry), scale.width),
        false => to.append(&short),
    }
}

fn read_exceptions(from: &mut BitReader, count: usize, cursor: u32, scale: Scale) -> Option<Vec<u32>> {
    let order = from.bits(2)? as usize;
    let base = from.signed(4)?.checked_add(i64::from(cursor))?;
    let others = from.golomb(4)?;
    if others > count as u64 {
        return None;
    }
    let all_ones = (1u64 << scale.width) - 1;
    let mut exceptions = Map::new();
    let (mut behind, mut last) = (0u64, i64::from(cursor));
    for _ in 0..others {
        let index = behind.checked_add(from.golomb(0)?)?;
        behind = index.checked_add(1)?;
        let value = if from.bit()? {
            last.checked_add(1)?
        } else if from.bit()? {
            match from.bits(scale.width)? {
                ones if ones == all_ones => i64::from(HOLE),
                value => value as i64,
            }
        } else {
            last.checked_add(from.signed(ORDERS[order])?)?
        };
        if value != i64::from(HOLE) {
            last = value;
        }
        exceptions.insert(index, u32::try_from(value).ok()?);
    }
    let entry = |index: u64| match exceptions.get(&index) {
        Some(value) => Some(*value),
        None => u32::try_from(base.checked_add(index as i64)?).ok(),
    };
    (0..count as u64).map(entry).collect()
}

fn write_hybrid(entries: &[u32]) -> BitWriter {
    let mut to = BitWriter::default();
    entries.iter().for_each(|entry| to.bit(*entry != HOLE));
    let there: Vec<u32> = entries.iter().copied().filter(|entry| *entry != HOLE).collect();
    hybrid::write(&there, false, &mut to);
    to
}

fn read_hybrid(from: &mut BitReader, count: usize) -> Option<Vec<u32>> {
    let there: Vec<bool> = (0..count).map(|_| from.bit()).collect::<Option<_>>()?;
    let pages = hybrid::read(from, there.iter().filter(|there| **there).count(), false)?;
    let mut pages = pages.into_iter();
    there.into_iter().map(|there| if there { pages.next() } else { Some(HOLE) }).collect()
}

fn write_plain(entries: &[u32], scale: Scale) -> BitWriter {
    let mut to = BitWriter::default();
    entries.iter().for_each(|entry| to.bits(u64::from(*entry), scale.width));
    to
}

fn read_plain(from: &mut BitReader, count: usize, scale: Scale) -> Option<Vec<u32>> {
    let all_ones = (1u64 << scale.width) - 1;
    let entry = |value: u64| if value == all_ones { HOLE } else { value as u32 };
    (0..count).map(|_| from.bits(scale.width).map(entry)).collect()
}

/// Writes entries in log order, in the shortest of the codes. `cursor` is the page they most likely begin with.
pub(super) fn write(entries: &[u32], cursor: u32, scale: Scale, to: &mut BitWriter) {
    let run_count = runs(entries).0.len();
    let mut best = (0, write_runs(entries, cursor, 0));
    let mut consider = |code: u64, coded: BitWriter| {
        if coded.len_bits() < best.1.len_bits() {
            best = (code, coded);
        }
    };
    // One run cannot be said shorter.
    if run_count > 0 {
        (1..4).for_each(|order| consider(0, write_runs(entries, cursor, order)));
    }
    if run_count > 1 {
        (0..4).for_each(|order| consider(1, write_exceptions(entries, cursor, scale, order)));
        consider(2, write_hybrid(entries));
        consider(3, write_plain(entries, scale));
    }
    to.bits(best.0, 2);
    to.append(&best.1);
}

/// What [`write`] wrote, in log order.
pub(super) fn read(from: &mut BitReader, count: usize, cursor: u32, scale: Scale) -> Option<Vec<u32>> {
    match from.bits(2)? {
        0 => read_runs(from, count, cursor),
        1 => read_exceptions(from, count, cursor, scale),
        2 => read_hybrid(from, count),
        _ => read_plain(from, count, scale),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale() -> Scale {
        let geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 64, blocks: 1024 };
        Scale::new(&geometry, 63)
    }

    fn random(seed: &mut u32) -> u32 {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *seed >> 16
    }

    #[test]
    fn every_kind_of_file_reads_back_in_few_bits() {
        let mut seed = 5;
        let mut half =
            || -> Vec<u32> {
                (0..512)
                    .map(|at| {
                        if random(&mut seed).is_multiple_of(2) {
                            9000 + at
                        } else {
                            random(&mut seed) % 64_000
                        }
                    })
                    .collect()
            };
        let interleaved = (0..512).map(|at| 700 + at / 3 * 24 + at % 3).collect();
        let files: [(Vec<u32>, f64); 7] = [
            ((5000..5050).collect(), 0.09),
            ((0..512).collect(), 0.02),
            (interleaved, 0.8),
            (half(), 1.35),
            (alloc::vec![HOLE; 512], 0.05),
            ([HOLE, 5, 6, HOLE, HOLE, 7, HOLE].into(), 2.0),
            ((0..512).map(|at| at * 7919 % 64_511).collect(), 2.1),
        ];
        for (entries, bytes_a_page) in files {
            let mut to = BitWriter::default();
            write(&entries, 4990, scale(), &mut to);
            let bits = to.len_bits();
            let bytes = to.into_bytes();
            assert_eq!(
                read(&mut BitReader::new(&bytes), entries.len(), 4990, scale()),
                Some(entries.clone())
            );
            let each = bits as f64 / 8.0 / entries.len() as f64;
            assert!(each <= bytes_a_page, "{each} bytes a page, first {:?}", &entries[..3]);
        }
    }

    #[test]
    fn each_code_reads_back_what_it_wrote() {
        let mut seed = 77;
        for round in 0..200 {
            let entries: Vec<u32> = (0..random(&mut seed) % 60)
                .map(|at| match random(&mut seed) % 4 {
                    0 => HOLE,
                    1 => random(&mut seed) % 64_000,
                    _ => 100 * round + at,
                })
                .collect();
            let read_back = |to: BitWriter, read: &dyn Fn(&mut BitReader) -> Option<Vec<u32>>| {
                assert_eq!(read(&mut BitReader::new(&to.into_bytes())), Some(entries.clone()));
            };
            for order in 0..4 {
                read_back(write_runs(&entries, 50, order), &|from| read_runs(from, entries.len(), 50));
                read_back(write_exceptions(&entries, 50, scale(), order), &|from| {
                    read_exceptions(from, entries.len(), 50, scale())
                });
            }
            read_back(write_hybrid(&entries), &|from| read_hybrid(from, entries.len()));
            read_back(write_plain(&entries, scale()), &|from| read_plain(from, entries.len(), scale()));
        }
    }

    #[test]
    fn nonsense_is_refused_and_never_panics() {
        let mut seed = 3;
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..24).map(|_| random(&mut seed) as u8).collect();
            if let Some(entries) = read(&mut BitReader::new(&bytes), 512, 9, scale()) {
                assert_eq!(entries.len(), 512);
                entries.iter().for_each(|entry| {
                    scale().to_page(*entry);
                });
            }
        }
    }

    #[test]
    fn log_order_leaves_summaries_out() {
        assert_eq!([62, 64, 65].map(|page| scale().to_log(page)), [62, 63, 64]);
        assert_eq!([62, 63, 64].map(|log| scale().to_page(log)), [Some(62), Some(64), Some(65)]);
        assert_eq!(scale().to_page(63 * 1024), None);
    }
}
