//! What the fuzz targets in `fuzz/` call; the same, over changes by chance, is a test.
//!
//! What is given is an error or a value, never a panic, and memory is taken for what the part has room for, not for what
//! the bytes claim: the targets are run with a limit.

use crate::codec::{huffman, hybrid, lzo, rice, rle};
use crate::header::Header;
use crate::media::{Geometry, Nand, Nvram};
use crate::object::{Kind, ROOT};
use crate::ram::{Power, RamNand, RamNvram};
use crate::record::Record;
use crate::tags::{Packed, TagPlace};
use crate::{Config, Fs, Layout, NewObject, summary};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::cell::RefCell;

const GEOMETRY: Geometry = Geometry { page_bytes: 2048, spare_bytes: 64, pages_per_block: 8, blocks: 24 };
const NVRAM_BYTES: usize = 6 << 10;
const IDENTITY: [u8; 16] = [7; 16];
/// More pages than a segment of a map has.
const COUNT_MAX: usize = 1024;

/// Gives bytes to the parser that the first of them names.
pub fn parse(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let count = bytes.first_chunk().map_or(0, |count| usize::from(u16::from_le_bytes(*count)) % COUNT_MAX);
    match which % 16 {
        0 => drop(Record::from_bytes(bytes)),
        1 => drop(Header::read(bytes, 0)),
        2 => drop(TagPlace::MTD.read(bytes)),
        3 => drop(TagPlace { ecc: false, ..TagPlace::IMAGE }.read(bytes)),
        4 => drop(summary::decode(bytes, 0x1001, 7)),
        5 => drop(crate::checkpoint::read(bytes, &GEOMETRY, 7)),
        6 => drop(huffman::decode(bytes, count)),
        7 => drop(hybrid::decode(bytes, count, which & 64 == 0)),
        8 => drop(rice::decode(bytes, count)),
        9 => drop(rle::decode(bytes, count)),
        10 => drop(lzo::decode(bytes, count)),
        _ => crate::nvram::parse(bytes, &GEOMETRY),
    }
}

fn config(layout: Layout) -> Config {
    Config { layout, cache_pages: 4, reserve_blocks: 4, ..Config::default() }
}

/// Memory is bounded, where the layout allows it.
fn bounded(config: Config, is_bounded: bool) -> Config {
    let memory_bytes = if is_bounded && config.layout == Layout::Compact { Config::MEMORY_MIN } else { 0 };
    Config { memory_bytes, ..config }
}

/// A small volume with something of each kind of page.
fn make(layout: Layout, ends: u8) -> Option<(RamNand, RamNvram)> {
    let nand = RamNand::new(GEOMETRY);
    let nvram = RamNvram::new(NVRAM_BYTES, nand.power());
    let mut fs = Fs::format(nand, Some(nvram), config(layout), IDENTITY, false).ok()?;
    let node = |kind, mode| NewObject { kind, mode, uid: 1, gid: 2, rdev: 0, target: b"somewhere" };
    let dir = fs.create(ROOT, b"dir", &node(Kind::Dir, 0o40_755)).ok()?;
    for n in 0..10u8 {
        let id = fs
            .create(if n % 2 == 0 { dir } else { ROOT }, &[b'f', b'0' + n], &node(Kind::File, 0o100_644))
            .ok()?;
        fs.write(id, u64::from(n) * 1000, &[n; 5000]).ok()?;
        fs.set_attribute(id, b"user.a", Some(&[n; 20])).ok()?;
        if n == 4 {
            fs.link(id, ROOT, b"link").ok()?;
            fs.create(ROOT, b"symlink", &node(Kind::Symlink, 0o120_777)).ok()?;
            fs.update().ok()?;
        }
    }
    fs.rename(dir, b"f0", ROOT, b"f1", false).ok()?;
    fs.exchange(dir, b"f2", ROOT, b"f3").ok()?;
    match ends {
        0 => drop(fs.update().ok()?),
        1 => drop(fs.checkpoint(8).ok()?),
        _ => fs.sync().ok()?,
    }
    let (nand, nvram) = fs.into_media();
    Some((nand, nvram?))
}

std::thread_local! {
    /// Volumes that were made already: making one takes longer than what is done with it.
    static MADE: RefCell<BTreeMap<(bool, u8), (RamNand, RamNvram)>> = const { RefCell::new(BTreeMap::new()) };
}

/// A copy of a small volume that [`make`] made.
fn small(layout: Layout, ends: u8) -> Option<(RamNand, RamNvram)> {
    MADE.with_borrow_mut(|made| {
        let (nand, nvram) = match made.entry((layout == Layout::Compact, ends)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => room.insert(make(layout, ends)?),
        };
        let power = Power::default();
        Some((nand.copy_on(power.clone()), nvram.copy_on(power)))
    })
}

/// Changes a page, and makes its checksums right again: what tags say, a record's, the page's.
fn forge(nand: &mut RamNand, page: u32, place: usize, value: u8) {
    let mut data = alloc::vec![0; GEOMETRY.page_bytes as usize];
    let mut spare = alloc::vec![0; GEOMETRY.spare_bytes as usize];
    if nand.read(page, &mut data, &mut spare).is_err() || spare.iter().all(|byte| *byte == 0xff) {
        return;
    }
    let tags: Option<&[u8; 16]> = spare.get(2..).and_then(|tags| tags.first_chunk());
    let mut tags = tags.copied().unwrap_or_default();
    match place.checked_sub(data.len()) {
        Some(at) => tags[at % tags.len()] = value,
        None => data[place] = value,
    }
    let end = crate::record::RECORD_BYTES - 4;
    if data[..8] == crate::record::MAGIC {
        let crc = crate::crc32c(&data[..end]);
        data[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
    TagPlace::MTD.write(&Packed::from_bytes(&tags), &data, &mut spare);
    nand.put(page, &data, &spare);
}

/// Changes pages and NVRAM of a small volume as `bytes` say (page, place, value, five bytes a change), opens it with the
/// NVRAM, without, or as one of YAFFS2, and uses it.
pub fn image(bytes: &[u8]) {
    let Some((first, changes)) = bytes.split_first() else { return };
    let layout = if first & 1 == 0 { Layout::Compact } else { Layout::Paper };
    let Some((mut nand, mut nvram)) = small(layout, first >> 1 & 3) else { return };
    for change in changes.chunks_exact(5).take(16) {
        let at = u32::from(u16::from_le_bytes([change[0], change[1]]));
        let place = usize::from(u16::from_le_bytes([change[2], change[3]]));
        match u64::from(at) < GEOMETRY.pages() {
            true => forge(&mut nand, at, place % (2048 + 16), change[4]),
            false => nvram.bytes_mut()[place % NVRAM_BYTES] = change[4],
        }
    }
    let config = Config { plain: first & 8 != 0, ..bounded(config(layout), first & 32 != 0) };
    let nvram = (first & 16 == 0).then_some(nvram);
    if let Ok(mut fs) = Fs::open(nand, nvram, config) {
        work(&mut fs);
    }
}

/// An NVRAM changed by these bytes beside a part that is whole; its checksums may be made right again.
pub fn nvram(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let layout = if first & 1 == 0 { Layout::Compact } else { Layout::Paper };
    let Some((nand, mut nvram)) = small(layout, first >> 1 & 3) else { return };
    for (to, from) in nvram.bytes_mut().iter_mut().zip(bytes) {
        *to ^= from;
    }
    if first & 8 != 0 && layout == Layout::Compact {
        nvram = crate::nvram::reseal(nvram, &GEOMETRY);
    }
    if let Ok(mut fs) = Fs::open(nand, Some(nvram), bounded(config(layout), first & 32 != 0)) {
        work(&mut fs);
    }
}

fn list<N: Nand, V: Nvram>(fs: &mut Fs<N, V>, dir: u32) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    let _ = fs.list(dir, 0, &mut |entry| {
        found.push((entry.id, entry.name.to_vec()));
        found.len() < 100
    });
    found
}

fn work<N: Nand, V: Nvram>(fs: &mut Fs<N, V>) {
    let _ = fs.check(true);
    let mut entries: Vec<(u32, u32, Vec<u8>)> = Vec::new();
    for (id, name) in list(fs, ROOT) {
        entries.extend(list(fs, id).into_iter().map(|(child, name)| (id, child, name)));
        entries.push((ROOT, id, name));
    }
    let mut buffer = [0; 3000];
    for (_, id, _) in &entries {
        let size = fs.attr(*id).map_or(0, |attr| attr.size);
        let _ = fs.read(*id, 0, &mut buffer);
        let _ = fs.read(*id, size.saturating_sub(100), &mut buffer);
        let _ = fs.read_link(*id);
        let _ = fs.attributes(*id);
        let _ = fs.attribute(*id, b"user.a");
    }
    for (number, (dir, id, name)) in entries.iter().enumerate() {
        let _ = match number % 5 {
            0 => fs.write(*id, 300, &buffer[..900]).map(drop),
            1 => fs.truncate(*id, 100),
            2 => fs.unlink(*dir, name, false).map(drop),
            3 => fs.rename(*dir, name, ROOT, b"moved", false),
            _ => fs.set_attribute(*id, b"user.b", Some(&[1; 10])),
        };
    }
    let _ = fs.repair();
    let _ = fs.scrub(400);
    let _ = fs.update();
    let _ = fs.check(true);
    let _ = fs.checkpoint(4);
    let _ = fs.update();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from a seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn forged() -> u64 {
        std::env::var("FORGED").ok().and_then(|text| text.parse().ok()).unwrap_or(1200)
    }

    #[test]
    fn a_record_that_names_blocks_behind_the_end_is_none() {
        // Byte 56 of the records' pages: the second block that holds some.
        image(&[6, 184, 0, 56, 0, 255, 185, 0, 56, 0, 255]);
    }

    #[test]
    fn forged_volumes_are_errors_or_file_systems_and_never_a_panic() {
        for layout in [Layout::Compact, Layout::Paper] {
            assert!((0..3).all(|ends| small(layout, ends).is_some()));
        }
        for number in 0..forged() {
            let mut random = Random(number);
            let mut bytes = alloc::vec![random.below(64) as u8];
            for _ in 0..1 + random.below(6) {
                // The NVRAM, format records, any page.
                let page = match random.below(8) {
                    0 | 1 => 500,
                    2 => GEOMETRY.pages() - 8 + random.below(3),
                    _ => random.below(GEOMETRY.pages() / 2),
                };
                // Tags, headers and what lies first in them are where it matters.
                let place = match random.below(3) {
                    0 => 2048 + random.below(16),
                    1 => random.below(64),
                    _ => random.below(2048),
                };
                bytes.extend((page as u16).to_le_bytes());
                bytes.extend((place as u16).to_le_bytes());
                bytes.push([random.below(256), 255, 0, 1][random.below(4) as usize] as u8);
            }
            let done = std::panic::catch_unwind(|| image(&bytes));
            assert!(done.is_ok(), "volume {number}: {bytes:?}");
        }
    }

    #[test]
    fn forged_nvrams_are_not_believed_or_error_and_never_a_panic() {
        for number in 0..forged() {
            let mut random = Random(number ^ 1 << 40);
            let mut bytes = alloc::vec![0; 1 + NVRAM_BYTES];
            bytes[0] = random.below(64) as u8;
            for _ in 0..1 + random.below(8) {
                let most = if random.below(2) == 0 { 100 } else { NVRAM_BYTES as u64 };
                bytes[1 + random.below(most) as usize] = random.below(256) as u8;
            }
            let done = std::panic::catch_unwind(|| nvram(&bytes));
            assert!(done.is_ok(), "NVRAM {number}");
        }
    }

    #[test]
    fn forged_bytes_are_errors_or_values_and_never_a_panic() {
        for number in 0..forged() * 10 {
            let mut random = Random(number ^ 1 << 41);
            let len = random.below(300);
            let narrow = [256, 4][random.below(2) as usize];
            let mut bytes: Vec<u8> = (0..len).map(|_| random.below(narrow) as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = random.below(256) as u8;
            }
            let done = std::panic::catch_unwind(|| parse(&bytes));
            assert!(done.is_ok(), "bytes {number}: {bytes:?}");
        }
    }
}
