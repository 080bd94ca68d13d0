//! The bytes of the store's structures: varints, keys, items, page kinds. The page `docs/format-osd.md`
//! has them bit by bit.
//!
//! Everything read here may be damaged: a reader ([`Input`]) never goes past its end and says what it was
//! reading when it had to stop.

use bimetal_base::time::Stamp;
use bimetal_base::{Error, Result};

/// The version of the format.
pub(super) const VERSION: u32 = 5;

/// What a page holds. The numbers are on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PageKind {
    /// Bytes of one object.
    Data = 1,
    /// Changes of items since the last checkpoint.
    Log = 2,
    /// A node of the tree.
    Node = 3,
    /// A part of the node table.
    Table = 4,
    /// A part of a checkpoint.
    Checkpoint = 5,
    /// Access times not yet in onodes.
    Access = 6,
    /// What a segment holds, and which follows it.
    Summary = 7,
    /// Where the newest checkpoint is.
    Anchor = 8,
    /// Bytes of several objects, and whose they are.
    Pieces = 9,
    /// What the store is: what has to be known before anything of it can be found.
    Format = 10,
}

impl PageKind {
    pub fn from_number(number: u8) -> Option<PageKind> {
        use PageKind::*;
        let all = [Data, Log, Node, Table, Checkpoint, Access, Summary, Anchor, Pieces, Format];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Bytes that are being written.
#[derive(Default)]
pub(super) struct Output(pub Vec<u8>);

impl Output {
    pub fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Seven bits a byte, the lowest first, the eighth bit set on all but the last.
    pub fn varint(&mut self, value: u64) {
        self.wide(u128::from(value));
    }

    fn wide(&mut self, mut value: u128) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A signed number, its sign in the lowest bit.
    fn signed(&mut self, value: i128) {
        self.wide(((value << 1) ^ (value >> 127)) as u128);
    }

    pub fn bytes(&mut self, value: &[u8]) {
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }
}

/// Bytes of a varint.
pub(super) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// The varint that `bytes` begin with, if it has at most eight bytes, and how many: all its groups of seven bits
/// at once, since searches in the index decode little else.
#[inline]
fn short_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let word = match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    let ends = !word & 0x8080_8080_8080_8080;
    let len = ends.trailing_zeros() as usize / 8 + 1;
    if len > bytes.len().min(8) {
        return None;
    }
    let groups = word & 0x7f7f_7f7f_7f7f_7f7f & u64::MAX >> (64 - 8 * len);
    let pairs = groups & 0x007f_007f_007f_007f | (groups & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = pairs & 0x0000_3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    Some((fours & 0x0fff_ffff | (fours & 0x0fff_ffff_0000_0000) >> 4, len))
}

/// Bytes that are being read.
pub(super) struct Input<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes, what }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    pub fn wrong(&self, why: impl std::fmt::Display) -> Error {
        Error::corrupt(self.what, why, format_args!("{} bytes before its end", self.rest.len()))
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.wrong(format_args!("{len} more bytes were expected"))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn wide(&mut self) -> Result<u128> {
        if let Some((value, len)) = short_varint(self.rest) {
            self.rest = &self.rest[len..];
            return Ok(u128::from(value));
        }
        let mut value = 0u128;
        for shift in (0..126).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.wrong("a number does not end"))
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        if let Some((value, len)) = short_varint(self.rest) {
            self.rest = &self.rest[len..];
            return Ok(value);
        }
        u64::try_from(self.wide()?).map_err(|_| self.wrong("a number has more than 64 bits"))
    }

    /// A number that must be below `limit`.
    pub fn below(&mut self, limit: u64, name: &str) -> Result<u64> {
        let value = self.varint()?;
        if value < limit {
            Ok(value)
        } else {
            Err(self.wrong(format_args!("{name} is {value}, not below {limit}")))
        }
    }

    fn signed(&mut self) -> Result<i128> {
        let value = self.wide()?;
        Ok((value >> 1) as i128 ^ -((value & 1) as i128))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        let len = usize::try_from(len).map_err(|_| self.wrong("a length is out of range"))?;
        self.take(len)
    }
}

/// Largest offset of a byte of an object, plus one: 4 EiB.
pub(super) const OBJECT_BYTES_MAX: u64 = 1 << 62;

/// One of the two byte strings of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fork {
    /// Its contents.
    Data,
    /// Its attributes, where they are too long for the tree.
    Attributes,
}

/// Where an item of the tree stands: by object, then onode, attributes, contents, long attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub object: u64,
    pub place: u64,
}

/// Place of the onode, of attributes within the tree, and of the first byte of each fork.
const ONODE: u64 = 0;
const ATTRIBUTES: u64 = 1;
const FIRST: [u64; 2] = [2, 1 << 63];

impl Key {
    pub fn onode(object: u64) -> Key {
        Key { object, place: ONODE }
    }

    pub fn attributes(object: u64) -> Key {
        Key { object, place: ATTRIBUTES }
    }

    pub fn extent(object: u64, fork: Fork, offset: u64) -> Key {
        Key { object, place: FIRST[fork as usize] + offset }
    }

    /// The first key of the next object; the last of all if there is none.
    pub fn after_object(object: u64) -> Key {
        match object.checked_add(1) {
            Some(next) => Key::onode(next),
            None => Key { object: u64::MAX, place: u64::MAX },
        }
    }

    /// The fork and offset of an extent's key.
    pub fn fork(self) -> Option<(Fork, u64)> {
        if self.place >= FIRST[1] {
            Some((Fork::Attributes, self.place - FIRST[1]))
        } else if self.place >= FIRST[0] {
            Some((Fork::Data, self.place - FIRST[0]))
        } else {
            None
        }
    }

    /// Bytes in an encoded item.
    pub fn encoded_len(self) -> usize {
        varint_len(self.object) + varint_len(self.place)
    }

    pub fn write(self, out: &mut Output) {
        out.varint(self.object);
        out.varint(self.place);
    }

    #[inline]
    pub fn read(input: &mut Input) -> Result<Key> {
        Ok(Key { object: input.varint()?, place: input.varint()? })
    }
}

/// The state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Onode {
    pub size: u64,
    /// Bytes of its extents, those that are only reserved included.
    pub stored: u64,
    /// Bytes of attributes that lie in the attribute fork; 0: they are in the tree, or there are none.
    pub attribute_bytes: u32,
    /// What the owner said about the lifetime of its bytes.
    pub hint: u8,
    /// Entries of the access journal before this one say nothing about this object.
    pub access_from: u64,
    pub created: Stamp,
    pub modified: Stamp,
    pub changed: Stamp,
    pub accessed: Stamp,
}

/// Bytes of an object that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub len: u32,
    /// Byte of the flash where they begin, or [`Extent::RESERVED`].
    pub at: u64,
}

impl Extent {
    /// Stands for space that is kept for bytes to come; it reads as zeros.
    pub const RESERVED: u64 = u64::MAX;

    pub fn is_reserved(self) -> bool {
        self.at == Self::RESERVED
    }

    /// Its part from `skip` on, `len` bytes long.
    pub fn part(self, skip: u64, len: u64) -> Extent {
        let at = if self.is_reserved() { self.at } else { self.at + skip };
        Extent { len: len as u32, at }
    }
}

/// What the tree holds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Onode(Onode),
    Attributes(Box<[u8]>),
    Extent(Extent),
}

fn nanos(stamp: Stamp) -> i128 {
    i128::from(stamp.sec) * 1_000_000_000 + i128::from(stamp.nsec)
}

fn stamp(nanos: i128) -> Option<Stamp> {
    // Divisions of 128 bits are slow, and hardly any time needs one.
    if let Ok(nanos) = i64::try_from(nanos) {
        let nsec = nanos.rem_euclid(1_000_000_000) as u32;
        return Some(Stamp { sec: nanos.div_euclid(1_000_000_000), nsec });
    }
    let sec = i64::try_from(nanos.div_euclid(1_000_000_000)).ok()?;
    Some(Stamp { sec, nsec: nanos.rem_euclid(1_000_000_000) as u32 })
}

/// A time stamp by itself, as the access journal has it.
pub(super) fn write_stamp(out: &mut Output, value: Stamp) {
    out.signed(nanos(value));
}

pub(super) fn read_stamp(input: &mut Input) -> Result<Stamp> {
    let value = input.signed()?;
    stamp(value).ok_or_else(|| input.wrong("a time is out of range"))
}

impl Onode {
    /// The three times after the first, as differences from it.
    fn differences(&self) -> [i128; 3] {
        [self.modified, self.changed, self.accessed].map(|time| nanos(time) - nanos(self.created))
    }

    fn write(&self, out: &mut Output) {
        out.varint(self.size);
        out.varint(self.stored);
        out.varint(u64::from(self.attribute_bytes));
        out.byte(self.hint);
        out.varint(self.access_from);
        out.signed(nanos(self.created));
        self.differences().into_iter().for_each(|difference| out.signed(difference));
    }

    fn read(input: &mut Input) -> Result<Onode> {
        let size = input.below(OBJECT_BYTES_MAX + 1, "an object's size")?;
        let stored = input.varint()?;
        let attribute_bytes = input.below(u64::from(u32::MAX), "the length of attributes")? as u32;
        let (hint, access_from) = (input.byte()?, input.varint()?);
        let created = input.signed()?;
        let time = |difference: i128, input: &Input| {
            let sum = created.checked_add(difference).and_then(stamp);
            sum.ok_or_else(|| input.wrong("a time is out of range"))
        };
        let created = time(0, input)?;
        let mut next = || input.signed().and_then(|difference| time(difference, input));
        let (modified, changed, accessed) = (next()?, next()?, next()?);
        Ok(Onode { size, stored, attribute_bytes, hint, access_from, created, modified, changed, accessed })
    }
}

impl Value {
    /// The most bytes of it, with a key, but for what few have.
    pub fn bytes_most(&self) -> usize {
        match self {
            Value::Onode(_) | Value::Extent(_) => 40,
            Value::Attributes(bytes) => bytes.len() + 24,
        }
    }

    pub fn write(&self, out: &mut Output) {
        match self {
            Value::Onode(onode) => onode.write(out),
            Value::Attributes(bytes) => out.bytes(bytes),
            Value::Extent(extent) => {
                out.varint(u64::from(extent.len));
                // A reservation is 0.
                out.varint(extent.at.wrapping_add(1));
            }
        }
    }

    /// Reads the value of an item at `key`.
    pub fn read(key: Key, input: &mut Input) -> Result<Value> {
        match key.place {
            ONODE => Onode::read(input).map(Value::Onode),
            ATTRIBUTES => Ok(Value::Attributes(input.bytes()?.into())),
            _ => {
                let len = input.below(1 << 32, "an extent's length")? as u32;
                let at = input.varint()?.wrapping_sub(1);
                if len == 0 {
                    return Err(input.wrong("an extent is empty"));
                }
                Ok(Value::Extent(Extent { len, at }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamps() -> impl Strategy<Value = Stamp> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(sec, nsec)| Stamp { sec, nsec })
    }

    proptest! {
        #[test]
        fn an_onode_comes_back_as_it_was(
            size in 0..=OBJECT_BYTES_MAX, stored: u64, hint: u8, access_from: u64, times in prop::array::uniform4(stamps()),
        ) {
            let [created, modified, changed, accessed] = times;
            let onode = Onode { size, stored, attribute_bytes: 7, hint, access_from, created, modified, changed, accessed };
            let value = Value::Onode(onode);
            let mut out = Output::default();
            value.write(&mut out);
            let mut input = Input::new("an onode", &out.0);
            prop_assert_eq!(Value::read(Key::onode(1), &mut input).unwrap(), value);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn a_number_comes_back_and_a_cut_one_is_an_error(bits in 0u32..=64, value: u64, after: Vec<u8>) {
            let value = if bits == 0 { 0 } else { value >> (64 - bits) };
            let mut out = Output::default();
            out.varint(value);
            let cut = &out.0[..out.0.len() - 1];
            prop_assert!(Input::new("a number", cut).varint().is_err());
            out.0.extend(&after);
            let mut input = Input::new("a number", &out.0);
            prop_assert_eq!((input.varint().unwrap(), input.len()), (value, after.len()));
        }

        #[test]
        fn noise_is_an_error_or_a_value_and_never_a_panic(bytes: Vec<u8>, place: u64) {
            let _ = Value::read(Key { object: 1, place }, &mut Input::new("noise", &bytes));
        }

        #[test]
        fn keys_sort_by_object_then_fork_then_offset(a: u64, offset in 0..OBJECT_BYTES_MAX) {
            let data = Key::extent(a, Fork::Data, offset);
            prop_assert!(Key::onode(a) < Key::attributes(a) && Key::attributes(a) < data);
            prop_assert!(data < Key::extent(a, Fork::Attributes, 0));
            prop_assert_eq!(data.fork(), Some((Fork::Data, offset)));
            let mut out = Output::default();
            data.write(&mut out);
            prop_assert_eq!(out.0.len(), data.encoded_len());
        }
    }
}
