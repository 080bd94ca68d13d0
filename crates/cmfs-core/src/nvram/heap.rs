//! The space manager: records of varying size in NVRAM, found by key.
//!
//! From the heap's start to its end lies chunk after chunk. Each begins with one word: its length in words, what
//! it is (0: free), and its key. Since a word is never torn, the chain of chunks is whole at every instant: taking
//! a free chunk first writes the head of what will be left of it and the record's contents, both inside what is
//! still free, then the one word that makes it a record. Giving back is one word, too; neighbours that are free
//! are joined by writing the first one's length.
//!
//! Records of the compact layout carry their own checksums. Those of the paper have none, so there the head does:
//! the upper bits of the key, which its few numbers leave unused, are a CRC of 21 bits over head and record. It
//! finds every single wrong bit, and all but one in two million of other damage.

use crate::media::{Nvram, NvramError};
use crate::sorted::Map;
use alloc::vec::Vec;

const WORD: usize = 8;
/// Free chunks that are not worth joining.
const FREE_MAX: usize = 64;
const KIND_FREE: u8 = 0;
const WORDS_MAX: u64 = (1 << 20) - 1;
const KEY_BITS: u32 = 40;
/// Bits of a key that name the object.
const ID_BITS: u32 = 18;
/// Where the checksum of a head begins among the bits of its key.
const SUM_SHIFT: u32 = ID_BITS;

/// What a record is, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// 1 to 15.
    pub kind: u8,
    /// Below 2^40.
    pub of: u64,
}

impl Key {
    pub const GROUP: u8 = 1;
    pub const SEGMENT: u8 = 2;
    pub const BLOCKS: u8 = 3;
    pub const NAMES: u8 = 4;
    #[cfg_attr(not(feature = "paper"), expect(dead_code))]
    pub const DEVICE: u8 = 5;
    #[cfg_attr(not(feature = "paper"), expect(dead_code))]
    pub const OBJECT: u8 = 6;

    pub fn new(kind: u8, of: u32) -> Key {
        Key { kind, of: u64::from(of) }
    }

    pub fn segment(id: u32, segment: u32) -> Key {
        Key { kind: Key::SEGMENT, of: u64::from(segment) << ID_BITS | u64::from(id) }
    }

    /// As one number, in the order of kinds.
    pub fn packed(self) -> u64 {
        u64::from(self.kind) << KEY_BITS | self.of
    }

    fn unpack(packed: u64) -> Key {
        Key { kind: (packed >> KEY_BITS) as u8, of: packed & ((1 << KEY_BITS) - 1) }
    }

    /// Object and segment of a segment's key.
    pub fn id_and_segment(self) -> (u32, u32) {
        ((self.of & ((1 << ID_BITS) - 1)) as u32, (self.of >> ID_BITS) as u32)
    }
}

/// A chunk as the chain shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chunk {
    pub at: usize,
    pub words: usize,
    /// `None`: it is free.
    pub key: Option<Key>,
    /// Checksum of the record, if it has one.
    pub crc: u32,
}

/// Where a record is, in words, as the table of records has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: u32,
    words: u32,
    crc: u32,
}

impl Place {
    fn of(chunk: Chunk) -> Place {
        Place { at: (chunk.at / WORD) as u32, words: chunk.words as u32, crc: chunk.crc }
    }

    fn chunk(self, key: Key) -> Chunk {
        Chunk { at: self.at as usize * WORD, words: self.words as usize, key: Some(key), crc: self.crc }
    }
}

/// The checksum of a chunk that has none of its own: of its length, its key and, unless it is free, its contents.
fn sum(words: usize, key: Option<Key>, contents: &[u8]) -> u64 {
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_21_CAN_FD);
    let (kind, of) = key.map_or((KIND_FREE, 0), |key| (key.kind, key.of));
    let mut digest = CRC.digest();
    digest.update(&(words as u32).to_le_bytes());
    digest.update(&[kind]);
    digest.update(&of.to_le_bytes());
    digest.update(contents);
    u64::from(digest.finalize())
}

/// The heap.
#[derive(Debug)]
pub(super) struct Heap<V> {
    device: V,
    start: usize,
    end: usize,
    /// Heads carry checksums.
    sums: bool,
    /// Free chunks: words by place.
    free: Map<usize, usize>,
    /// Where each record is.
    places: Map<u64, Place>,
    /// To be given back after the next update.
    retired: Vec<usize>,
    used_words: usize,
    /// What keys stood for before they changed in this update, in order.
    undo: Vec<(Key, Option<Chunk>)>,
    /// Bytes written so far.
    pub written_bytes: u64,
}

impl<V: Nvram> Heap<V> {
    /// The heap from byte `start` to the device's end; with `sums` heads carry checksums.
    pub fn new(device: V, start: usize, sums: bool) -> Heap<V> {
        let end = start + device.size_bytes().saturating_sub(start) / WORD * WORD;
        Heap {
            device,
            start,
            end,
            sums,
            free: Map::new(),
            places: Map::new(),
            retired: Vec::new(),
            used_words: 0,
            undo: Vec::new(),
            written_bytes: 0,
        }
    }

    pub fn device_mut(&mut self) -> &mut V {
        &mut self.device
    }

    pub fn into_device(self) -> V {
        self.device
    }

    pub fn size_bytes(&self) -> usize {
        self.device.size_bytes()
    }

    /// Bytes that records take, with what stands before them.
    pub fn used_bytes(&self) -> usize {
        self.start + self.used_words * WORD
    }

    /// Words that are free, in however many pieces.
    pub fn free_words(&self) -> usize {
        self.free.values().sum()
    }

    pub fn read(&mut self, at: usize, len: usize) -> Result<Vec<u8>, NvramError> {
        let mut bytes = alloc::vec![0; len];
        self.device.read(at, &mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.written_bytes += bytes.len() as u64;
        self.device.write(at, bytes)
    }

    pub fn persist(&mut self) -> Result<(), NvramError> {
        self.device.persist()
    }

    /// The first word of a chunk; `key` is `None` for a free one.
    fn head(&self, words: usize, key: Option<Key>, contents: &[u8]) -> [u8; WORD] {
        let (kind, of) = key.map_or((KIND_FREE, 0), |key| (key.kind, key.of));
        let sum = if self.sums { sum(words, key, contents) << SUM_SHIFT } else { 0 };
        debug_assert!(of < 1 << if self.sums { ID_BITS } else { KEY_BITS });
        (words as u64 & WORDS_MAX | u64::from(kind) << 20 | (of | sum) << 24).to_le_bytes()
    }

    /// Everything is free.
    pub fn clear(&mut self) -> Result<(), NvramError> {
        self.free.clear();
        self.places.clear();
        self.retired.clear();
        self.undo.clear();
        self.used_words = 0;
        let mut at = self.start;
        while at < self.end {
            let words = ((self.end - at) / WORD).min(WORDS_MAX as usize);
            self.write(at, &self.head(words, None, &[]))?;
            self.free.insert(at, words);
            at += words * WORD;
        }
        self.device.persist()
    }

    /// Follows the chain; `None` if it is broken. The heap knows nothing of the records before
    /// [`adopt`](Heap::adopt).
    pub fn walk(&mut self) -> Result<Option<Vec<Chunk>>, NvramError> {
        let mut chunks = Vec::new();
        let mut at = self.start;
        let mut word = [0; WORD];
        while at < self.end {
            self.device.read(at, &mut word)?;
            let value = u64::from_le_bytes(word);
            let words = (value & WORDS_MAX) as usize;
            if words == 0 || words > (self.end - at) / WORD {
                return Ok(None);
            }
            let (kind, of) = ((value >> 20 & 0xf) as u8, value >> 24);
            let (of, own_sum) =
                if self.sums { (of & ((1 << ID_BITS) - 1), of >> SUM_SHIFT) } else { (of, 0) };
            let key = (kind != KIND_FREE).then_some(Key { kind, of });
            if self.sums && key.is_none() && (own_sum != sum(words, None, &[]) || of != 0) {
                return Ok(None);
            }
            chunks.push(Chunk { at, words, key, crc: own_sum as u32 });
            at += words * WORD;
        }
        Ok(Some(chunks))
    }

    /// Takes a chunk of the chain for what it says.
    pub fn adopt(&mut self, chunk: Chunk) {
        match chunk.key {
            None => drop(self.free.insert(chunk.at, chunk.words)),
            Some(key) => {
                self.used_words += chunk.words;
                self.places.insert(key.packed(), Place::of(chunk));
            }
        }
    }

    /// Makes a chunk of the chain that is of no use free.
    pub fn discard(&mut self, chunk: Chunk) -> Result<(), NvramError> {
        self.write(chunk.at, &self.head(chunk.words, None, &[]))?;
        self.free.insert(chunk.at, chunk.words);
        Ok(())
    }

    pub fn place(&self, key: Key) -> Option<Chunk> {
        self.places.get(&key.packed()).map(|place| place.chunk(key))
    }

    /// How many records there are, and the sum of their checksums: what a superblock holds against them.
    pub fn digest(&self) -> [u32; 2] {
        // Ends of records come and go between updates.
        let records = || self.places.values().filter(|chunk| chunk.words > 2);
        [records().count() as u32, records().fold(0u32, |sum, chunk| sum.wrapping_add(chunk.crc))]
    }

    /// Segments of an object from one on that have a record.
    pub fn segments_of(&self, id: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        let range = Key::segment(0, from).packed()..Key::new(Key::SEGMENT + 1, 0).packed();
        self.places.range(range).filter_map(move |(key, _)| {
            let (own, segment) = Key::unpack(*key).id_and_segment();
            (own == id).then_some(segment)
        })
    }

    pub fn keys(&self, kind: u8) -> Vec<Key> {
        let range = Key::new(kind, 0).packed()..Key::new(kind + 1, 0).packed();
        self.places.range(range).map(|(key, _)| Key::unpack(*key)).collect()
    }

    pub fn all_keys(&self) -> Vec<Key> {
        self.places.keys().map(|key| Key::unpack(*key)).collect()
    }

    /// The contents of a record, all words of it; `None` if it is not there, or spoilt by its head's checksum.
    pub fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, NvramError> {
        let Some(chunk) = self.place(key) else { return Ok(None) };
        let contents = self.read(chunk.at + WORD, (chunk.words - 1) * WORD)?;
        let whole = !self.sums || u64::from(chunk.crc) == sum(chunk.words, Some(key), &contents);
        Ok(whole.then_some(contents))
    }

    /// Writes a record; false if there is no room. What was there under the key stays until
    /// [`release`](Heap::release). `crc` is what [`digest`](Heap::digest) is to count for it.
    pub fn put(&mut self, key: Key, crc: u32, contents: &[u8]) -> Result<bool, NvramError> {
        let words = 1 + contents.len().div_ceil(WORD);
        let Some((at, have)) = self.find(words)? else { return Ok(false) };
        if have > words {
            self.write(at + words * WORD, &self.head(have - words, None, &[]))?;
        }
        let mut padded = contents.to_vec();
        padded.resize((words - 1) * WORD, 0);
        self.write(at + WORD, &padded)?;
        self.device.persist()?;
        self.write(at, &self.head(words, Some(key), &padded))?;
        self.free.remove(&at);
        if have > words {
            self.free.insert(at + words * WORD, have - words);
        }
        self.used_words += words;
        let crc = if self.sums { sum(words, Some(key), &padded) as u32 } else { crc };
        let place = Place::of(Chunk { at, words, key: Some(key), crc });
        let old = self.places.insert(key.packed(), place).map(|old| old.chunk(key));
        self.undo.push((key, old));
        self.retired.extend(old.map(|old| old.at));
        Ok(true)
    }

    /// Forgets a record; it stays until [`release`](Heap::release).
    pub fn remove(&mut self, key: Key) {
        if let Some(old) = self.places.remove(&key.packed()).map(|old| old.chunk(key)) {
            self.undo.push((key, Some(old)));
            self.retired.push(old.at);
        }
    }

    /// An update begins, which may be [rolled back](Heap::roll_back) until [`release`](Heap::release).
    pub fn begin(&mut self) {
        self.undo.clear();
    }

    /// Gives back what was put since [`begin`](Heap::begin): keys stand for what they stood for.
    pub fn roll_back(&mut self) -> Result<(), NvramError> {
        for (key, old) in core::mem::take(&mut self.undo).into_iter().rev() {
            let new = self.place(key).filter(|new| old.is_none_or(|old| old.at != new.at));
            if let Some(new) = new {
                self.discard(new)?;
                self.used_words = self.used_words.saturating_sub(new.words);
            }
            match old {
                Some(old) => drop(self.places.insert(key.packed(), Place::of(old))),
                None => drop(self.places.remove(&key.packed())),
            }
        }
        self.retired.clear();
        self.device.persist()
    }

    /// Bytes of memory that the table of records takes.
    pub fn table_bytes(&self) -> usize {
        self.places.heap_bytes() + self.free.heap_bytes()
    }

    /// Gives back what was replaced and removed.
    pub fn release(&mut self) -> Result<(), NvramError> {
        self.undo = Vec::new();
        for at in core::mem::take(&mut self.retired) {
            let mut word = [0; WORD];
            self.device.read(at, &mut word)?;
            let words = (u64::from_le_bytes(word) & WORDS_MAX) as usize;
            self.write(at, &self.head(words, None, &[]))?;
            self.free.insert(at, words);
            self.used_words = self.used_words.saturating_sub(words);
        }
        // Neighbours are one chunk to the table, too, when there are many.
        if self.free.len() > FREE_MAX.max(self.places.len() / 4) { self.join() } else { Ok(()) }
    }

    /// The smallest free chunk that is large enough; neighbours are joined when none is.
    fn find(&mut self, words: usize) -> Result<Option<(usize, usize)>, NvramError> {
        let fits = |free: &Map<usize, usize>| {
            let large = free.iter().filter(|(_, have)| **have >= words);
            large.min_by_key(|(_, have)| **have).map(|(at, have)| (*at, *have))
        };
        if let Some(found) = fits(&self.free) {
            return Ok(Some(found));
        }
        self.join()?;
        Ok(fits(&self.free))
    }

    fn join(&mut self) -> Result<(), NvramError> {
        let mut grown = Vec::new();
        let mut last = (0, 0);
        for (at, words) in core::mem::take(&mut self.free) {
            if last.0 + last.1 * WORD == at && last.1 > 0 && last.1 + words <= WORDS_MAX as usize {
                last.1 += words;
                grown.push(last.0);
            } else {
                last = (at, words);
            }
            self.free.insert(last.0, last.1);
        }
        grown.dedup();
        for at in grown {
            let words = self.free.get(&at).copied().unwrap_or(1);
            self.write(at, &self.head(words, None, &[]))?;
        }
        self.device.persist()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::{Power, RamNvram, Torn};

    #[test]
    fn the_chain_is_whole_wherever_the_power_goes() {
        for cut in 1..400 {
            let power = Power::default();
            let mut heap = Heap::new(RamNvram::new(1024, power.clone()), 64, cut % 2 == 0);
            heap.clear().unwrap();
            power.cut_in(cut, Torn::All);
            power.set_luck(cut * 77);
            let mut done = Ok(true);
            for step in 0..60u32 {
                let contents = alloc::vec![step as u8; (step * 37 % 150) as usize];
                done = heap.put(Key::new(Key::GROUP, step % 7), 0, &contents);
                done = done.and_then(|fits| heap.release().map(|()| fits));
                if done.is_err() {
                    break;
                }
            }
            assert!(done.is_err() || cut > 300, "cut {cut} came to nothing");
            power.on();
            let mut again = Heap::new(heap.into_device(), 64, cut % 2 == 0);
            let chunks = again.walk().unwrap().expect("a whole chain");
            assert_eq!(chunks.iter().map(|chunk| chunk.words * WORD).sum::<usize>(), 1024 - 64, "cut {cut}");
        }
    }

    #[test]
    fn room_in_pieces_is_joined() {
        let mut heap = Heap::new(RamNvram::new(64 + 80 * WORD, Power::default()), 64, false);
        heap.clear().unwrap();
        for key in 0..10 {
            assert!(heap.put(Key::new(1, key), 0, &[key as u8; 56]).unwrap());
        }
        assert!(!heap.put(Key::new(1, 99), 0, &[1]).unwrap());
        for key in 3..6 {
            heap.remove(Key::new(1, key));
        }
        heap.release().unwrap();
        assert_eq!(heap.free_words(), 24);
        assert!(heap.put(Key::new(1, 11), 0, &[7; 170]).unwrap());
        assert_eq!(heap.get(Key::new(1, 9)).unwrap().unwrap(), [9; 56]);
    }
}
