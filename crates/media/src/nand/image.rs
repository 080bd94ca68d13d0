//! An array in a file: its state, its tags and its bytes, so that it is there again after the program has ended.
//!
//! All numbers are little-endian. From the beginning: the header (magic `bimetalN`, version, then pages of a block,
//! bytes of a page, bytes of its spare area, channels, units, blocks of a unit, each `u32`) · 8 bytes for each block
//! (erases `u32`, next page `u16`, bad `u8`: 1 when new, 2 since, 0) · 12 bytes for each page (owner `u32`: 0 erased,
//! 1 torn, else owner + 2; sequence `u64`) · from the next multiple of 64 KiB on the pages. The file is sparse: an
//! erased block is a hole. A program writes the tag first and then the bytes; whoever is ended between the two finds a
//! page whose checksum is wrong, as after a power
//! cut.
//!
//! Read-only, nothing is written to the file: what is programmed lies in memory.

use super::payload::{Place, Stored};
use super::profile::Geometry;
use crate::guard::{self, Claim, Role};
use crate::kept::{Unsynced, Writes};
use bimetal_base::{Error, Result};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"bimetalN";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 8;
const TAG_BYTES: u64 = 12;
const ALIGN: u64 = 64 << 10;

/// What the file says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockState {
    pub erases: u32,
    pub next_page: u16,
    pub bad: BadBlock,
}

/// Whether a block is bad, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadBlock {
    No,
    /// It was when the part was new.
    Factory,
    /// A program or an erase failed.
    Grown,
}

/// The file of an array.
pub(super) struct Image {
    /// The file, and who keeps others away from it.
    claim: Arc<Claim>,
    geometry: Geometry,
    /// Where the pages begin.
    pages_at: u64,
    /// Bytes of pages programmed and erased since a read-only image was opened; none: erased.
    apart: Option<FxHashMap<u64, Option<Box<[u8]>>>>,
    writes: Arc<Writes>,
}

fn numbers(geometry: &Geometry) -> [u32; 6] {
    let Geometry { pages_per_block, page_bytes, channels, units, blocks_per_unit, spare_bytes } = *geometry;
    [pages_per_block, page_bytes, spare_bytes, channels, units, blocks_per_unit]
}

fn header(geometry: &Geometry) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(numbers(geometry).iter().flat_map(|number| number.to_le_bytes()));
    bytes
}

impl Image {
    /// Makes the array's file anew, in what was claimed for that.
    pub fn make(claim: Arc<Claim>, geometry: Geometry) -> Result<Image> {
        let failed = |why| Error::io(claim.name(), why);
        let image = Image::of(claim.clone(), geometry);
        image.file().set_len(0).map_err(failed)?;
        image.file().set_len(image.pages_at + geometry.bytes()).map_err(failed)?;
        image.file().write_all_at(&header(&geometry), 0).map_err(failed)?;
        Ok(image)
    }

    /// Opens the file of an array; how many units and blocks there are the file knows.
    pub fn open(claim: Arc<Claim>, mut geometry: Geometry) -> Result<Image> {
        let (file, name) = (claim.file(), claim.name());
        let failed = |why| Error::io(&name, why);
        let mut bytes = vec![0; header(&geometry).len()];
        let wrong = |why: &str| Error::invalid(format!("{name}: {why}"));
        file.read_exact_at(&mut bytes, 0).map_err(|_| wrong("it is no image of a NAND array"))?;
        if !bytes.starts_with(MAGIC) {
            return Err(wrong("it is no image of a NAND array that bimetal made"));
        }
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        if number(8) != VERSION {
            return Err(Error::unsupported(&name, format!("it is of version {}", number(8))));
        }
        let (channels, units, blocks) = (number(24), number(28), number(32));
        (geometry.channels, geometry.units, geometry.blocks_per_unit) = (channels, units, blocks);
        if bytes != header(&geometry) || units == 0 || blocks == 0 || units.checked_mul(blocks).is_none() {
            return Err(wrong(
                "it is of another NAND part; name that with --device. If its header is damaged, put that of a new image of the same part and size there: its first 4096 bytes",
            ));
        }
        if !(1..=units).contains(&channels) {
            let why = format!("it says that it has {channels} channels for {units} units");
            return Err(Error::corrupt(&name, why, "its header"));
        }
        let image = Image::of(claim.clone(), geometry);
        let len = image.file().metadata().map_err(failed)?.len();
        let whole =
            u128::from(image.pages_at) + u128::from(geometry.pages()) * u128::from(geometry.page_bytes);
        if whole != u128::from(len) {
            let why = format!(
                "it is {len} bytes long, and with {units} units of {blocks} blocks, as its header has it, {whole} would be right"
            );
            return Err(Error::corrupt(&name, why, "its length"));
        }
        Ok(image)
    }

    /// Whether a file begins as one of these does.
    pub fn is_one(path: &Path) -> bool {
        let mut magic = [0; MAGIC.len()];
        guard::input(path).is_ok_and(|file| file.read_exact_at(&mut magic, 0).is_ok()) && magic == *MAGIC
    }

    fn of(claim: Arc<Claim>, geometry: Geometry) -> Image {
        let tags = u64::from(geometry.blocks()) * BLOCK_BYTES + geometry.pages() * TAG_BYTES;
        let pages_at = (HEADER_BYTES + tags).div_ceil(ALIGN) * ALIGN;
        let apart = (claim.role() == Role::Read).then(FxHashMap::default);
        Image { writes: Writes::new(claim.clone()), claim, geometry, pages_at, apart }
    }

    fn file(&self) -> &File {
        self.claim.file()
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn failed(&self, why: std::io::Error) -> Error {
        Error::io(self.claim.name(), why)
    }

    fn tags_at(&self) -> u64 {
        HEADER_BYTES + u64::from(self.geometry.blocks()) * BLOCK_BYTES
    }

    /// The states of all blocks, and owners and sequences of all pages.
    pub fn load(&self) -> Result<(Vec<BlockState>, Vec<u32>, Vec<u64>)> {
        let mut bytes = vec![0; self.geometry.blocks() as usize * BLOCK_BYTES as usize];
        self.file().read_exact_at(&mut bytes, HEADER_BYTES).map_err(|why| self.failed(why))?;
        let block = |raw: &[u8]| BlockState {
            erases: u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]),
            next_page: u16::from_le_bytes([raw[4], raw[5]]),
            bad: match raw[6] {
                0 => BadBlock::No,
                1 => BadBlock::Factory,
                _ => BadBlock::Grown,
            },
        };
        let blocks: Vec<BlockState> = bytes.chunks_exact(BLOCK_BYTES as usize).map(block).collect();
        let pages = self.geometry.pages() as usize;
        let (mut owners, mut sequences) = (Vec::with_capacity(pages), Vec::with_capacity(pages));
        let mut chunk = vec![0; TAG_BYTES as usize * self.geometry.pages_per_block as usize];
        for block in 0..u64::from(self.geometry.blocks()) {
            let at = self.tags_at() + block * chunk.len() as u64;
            self.file().read_exact_at(&mut chunk, at).map_err(|why| self.failed(why))?;
            for raw in chunk.chunks_exact(TAG_BYTES as usize) {
                owners.push(u32::from_le_bytes(raw[..4].try_into().unwrap_or_default()));
                sequences.push(u64::from_le_bytes(raw[4..].try_into().unwrap_or_default()));
            }
        }
        Ok((blocks, owners, sequences))
    }

    /// Notes the state of a block.
    pub fn put_block(&mut self, number: u32, state: BlockState) -> Result<()> {
        if self.apart.is_some() {
            return Ok(());
        }
        let mut raw = [0; BLOCK_BYTES as usize];
        raw[..4].copy_from_slice(&state.erases.to_le_bytes());
        raw[4..6].copy_from_slice(&state.next_page.to_le_bytes());
        raw[6] = state.bad as u8;
        self.writes.write(&raw, HEADER_BYTES + u64::from(number) * BLOCK_BYTES)
    }

    /// Notes the tags of pages that follow one another, from the one with this index on.
    pub fn put_tags(&mut self, first: usize, tags: impl Iterator<Item = (u32, u64)>) -> Result<()> {
        if self.apart.is_some() {
            return Ok(());
        }
        let raw: Vec<u8> = tags
            .flat_map(|(owner, sequence)| owner.to_le_bytes().into_iter().chain(sequence.to_le_bytes()))
            .collect();
        self.writes.write(&raw, self.tags_at() + first as u64 * TAG_BYTES)
    }

    /// Keeps the bytes of a page.
    pub fn put(&mut self, place: Place, data: &[u8]) -> Result<()> {
        let offset = place.offset();
        if let Some(apart) = &mut self.apart {
            apart.insert(offset, Some(data.into()));
            return Ok(());
        }
        self.writes.write(data, self.pages_at + offset)
    }

    /// Where the bytes of a page are.
    pub fn find(&self, place: Place) -> Stored {
        let (offset, len) = (place.offset(), place.page_bytes as usize);
        match self.apart.as_ref().and_then(|apart| apart.get(&offset)) {
            Some(Some(bytes)) => Bytes::copy_from_slice(bytes).into(),
            Some(None) => Bytes::from(vec![0; len]).into(),
            None => Stored::in_file(self.claim.clone(), self.pages_at + offset, len),
        }
    }

    /// Forgets the bytes of a block.
    pub fn erase(&mut self, place: Place) -> Result<()> {
        let page = u64::from(place.page_bytes);
        let (first, pages) = (place.offset(), u64::from(place.pages_per_block));
        if let Some(apart) = &mut self.apart {
            apart.extend((0..pages).map(|index| (first + index * page, None)));
            return Ok(());
        }
        // Where the file system has no holes the old bytes stay: no tag leads to them.
        self.writes.punch(self.pages_at + first, pages * page);
        Ok(())
    }

    /// What was written to the file so far, to have the host keep it.
    pub fn written(&self) -> Unsynced {
        self.writes.so_far()
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn host_writes(&self) -> Vec<crate::kept::HostWrite> {
        self.writes.record()
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn stall(&self, stall: crate::kept::Stall) {
        self.writes.stall(stall);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Nand, NandProfile, Page, Tag};
    use crate::guard::{self, Claim, Role, Target};
    use crate::profile;
    use bimetal_base::time::Time;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Arc;

    fn claim(path: &Path) -> Arc<Claim> {
        let target = Target { make: true, ..Target::new("--nand", path, Role::Overwritten) };
        guard::claim(&[target], true).unwrap().remove(0)
    }

    fn part() -> NandProfile {
        let mut part: NandProfile = profile::load("slc-2k").unwrap();
        part.blocks = 8;
        part.factory_bad_percent = 20.0;
        part
    }

    fn tag(owner: u32) -> Tag {
        Tag { owner, sequence: u64::from(owner) << 20 }
    }

    #[test]
    fn an_array_in_a_file_is_the_same_when_it_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let mut nand = Nand::make_image(claim(&path), part(), 3).unwrap();
        let good = (0..8).find(|block| !nand.is_bad(*block)).unwrap();
        let page = |byte: u8| vec![byte; 2048];
        nand.program(Time::ZERO, good, 0, tag(7), &page(7)).unwrap();
        nand.erase(Time::ZERO, good).unwrap();
        nand.program(Time::ZERO, good, 0, tag(8), &page(8)).unwrap();
        nand.program(Time::ZERO, good, 1, tag(9), &page(9)).unwrap();
        nand.cut_power_in(1);
        nand.program(Time::ZERO, good, 2, tag(10), &page(10)).unwrap_err();
        let bad: Vec<bool> = (0..8).map(|block| nand.is_bad(block)).collect();
        drop(nand);
        for writable in [false, true] {
            let mut nand = Nand::open_image(&path, part(), writable).unwrap();
            assert_eq!((0..8).map(|block| nand.is_bad(block)).collect::<Vec<_>>(), bad);
            assert_eq!((nand.erases(good), nand.next_page(good)), (1, 3));
            assert_eq!(nand.page(good, 0), Page::Programmed(tag(8)));
            assert_eq!((nand.page(good, 2), nand.page(good, 3)), (Page::Torn, Page::Erased));
            assert_eq!(nand.bytes(good, 1).unwrap(), page(9));
            nand.program(Time::ZERO, good, 3, tag(11), &page(11)).unwrap();
            assert_eq!(nand.bytes(good, 3).unwrap(), page(11));
        }
        let nand = Nand::open_image(&path, part(), false).unwrap();
        assert_eq!(nand.bytes(good, 3).unwrap(), page(11), "only the second one wrote");
    }

    #[test]
    fn states_and_tags_of_different_moments_are_brought_to_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let mut nand = Nand::make_image(claim(&path), part(), 3).unwrap();
        let good: Vec<u32> = (0..8).filter(|block| !nand.is_bad(*block)).collect();
        for block in &good[..3] {
            for page in 0..3 {
                nand.program(Time::ZERO, *block, page, tag(9), &[9; 2048]).unwrap();
            }
        }
        drop(nand);
        // A state from before the programs; a state with one page more; a tag that was lost.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let state = |block: u32| super::HEADER_BYTES + u64::from(block) * super::BLOCK_BYTES + 4;
        file.write_all_at(&[0, 0], state(good[0])).unwrap();
        file.write_all_at(&[4, 0], state(good[1])).unwrap();
        let tags = super::HEADER_BYTES + 8 * super::BLOCK_BYTES;
        let lost = tags + (u64::from(good[2]) * u64::from(part().pages) + 1) * super::TAG_BYTES;
        file.write_all_at(&[0; super::TAG_BYTES as usize], lost).unwrap();
        let mut nand = Nand::open_image(&path, part(), true).unwrap();
        let next = |nand: &Nand| good[..3].iter().map(|block| nand.next_page(*block)).collect::<Vec<_>>();
        assert_eq!(next(&nand), [3, 4, 3]);
        assert_eq!((nand.page(good[1], 3), nand.page(good[2], 1)), (Page::Torn, Page::Torn));
        for (block, page) in [(good[0], 3), (good[1], 4), (good[2], 3)] {
            nand.program(Time::ZERO, block, page, tag(7), &[7; 2048]).unwrap();
        }
    }

    /// Turns each bit of a range of a file's bytes in turn; `look` sees the file with it.
    fn with_each_bit_turned(path: &Path, range: std::ops::Range<u64>, mut look: impl FnMut(u64, u8)) {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        for (at, bit) in range.flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            look(at, bit);
            file.write_all_at(&byte, at).unwrap();
        }
    }

    #[test]
    fn a_header_with_a_wrong_bit_is_refused_in_words_or_right() {
        for units in [1, 4] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("nand");
            let part = NandProfile { planes: units, channels: 1, factory_bad_percent: 0.0, ..part() };
            let mut nand = Nand::make_image(claim(&path), part.clone(), 3).unwrap();
            nand.program(Time::ZERO, 0, 0, tag(7), &[7; 2048]).unwrap();
            drop(nand);
            let (mut refused, mut right) = (0, 0);
            with_each_bit_turned(&path, 0..36, |at, bit| {
                match Nand::open_image(&path, part.clone(), false) {
                    Ok(nand) => {
                        assert_eq!(nand.bytes(0, 0).unwrap(), vec![7; 2048], "byte {at}, bit {bit}");
                        right += 1;
                    }
                    Err(why) => {
                        let why = why.to_string();
                        let words = ["no image", "of version", "another NAND part", "channels", "bytes long"];
                        assert!(words.iter().any(|word| why.contains(word)), "byte {at}, bit {bit}: {why}");
                        refused += 1;
                    }
                }
            });
            // More channels, but no more than units, change times alone.
            assert_eq!((refused, right), if units == 1 { (288, 0) } else { (287, 1) });
        }
    }

    #[test]
    fn a_state_of_a_block_with_a_wrong_bit_closes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let part = NandProfile { factory_bad_percent: 0.0, ..part() };
        let mut nand = Nand::make_image(claim(&path), part.clone(), 3).unwrap();
        for page in 0..3 {
            nand.program(Time::ZERO, 1, page, tag(page + 7), &[page as u8; 2048]).unwrap();
        }
        drop(nand);
        let state = super::HEADER_BYTES..super::HEADER_BYTES + 2 * super::BLOCK_BYTES;
        with_each_bit_turned(&path, state, |at, bit| {
            let nand = Nand::open_image(&path, part.clone(), false).unwrap();
            for page in 0..3 {
                assert_eq!(nand.page(1, page), Page::Programmed(tag(page + 7)), "byte {at}, bit {bit}");
                assert_eq!(nand.bytes(1, page).unwrap(), vec![page as u8; 2048], "byte {at}, bit {bit}");
            }
            for block in 0..8 {
                assert!(nand.next_page(block) <= part.pages, "byte {at}, bit {bit}");
                assert!(nand.erases(block) <= 16 * part.endurance, "byte {at}, bit {bit}");
            }
        });
    }

    #[test]
    fn other_files_parts_and_users_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nand");
        let refused = |part| Nand::open_image(&path, part, true).err().unwrap().to_string();
        std::fs::write(&path, vec![1; 5000]).unwrap();
        assert!(refused(part()).contains("no image"));
        let nand = Nand::make_image(claim(&path), part(), 1).unwrap();
        assert!(refused(part()).contains("in use"));
        drop(nand);
        assert!(refused(profile::load("slc-4k").unwrap()).contains("another NAND part"));
        let whole = std::fs::metadata(&path).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
        let why = refused(part());
        assert!(
            why.contains("100000 bytes long") && why.contains(&format!("{whole} would be right")),
            "{why}"
        );
    }
}
