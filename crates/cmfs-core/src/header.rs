//! The object header of YAFFS2: the first 512 bytes of a header page, and the attributes behind it.
//!
//! Little endian. Fields that an object does not use stay all ones, as its own driver leaves them. Extended
//! attributes follow as records: length (4 bytes), name, NUL, value; a length that cannot be ends them. What the
//! layout has no field for (fractions of a second, time of creation) travels in an attribute of ours, which other
//! drivers show as such.

use crate::object::{Kind, Time};
use crate::{Error, Result};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 512;
/// The longest name.
pub const NAME_MAX: usize = 255;
/// The longest target of a symbolic link.
pub const ALIAS_MAX: usize = 159;
/// What the layout has no field for: nanoseconds of access, change and status change, then the creation.
const TIMES_ATTRIBUTE: &[u8] = b"trusted.cmfs.times";

const NAME_AT: usize = 10;
const ALIAS_AT: usize = 300;
const UNUSED: u32 = u32::MAX;

/// Two names that change in one step: the other of them. Its object (4 bytes), directory (4 bytes), name.
const TOGETHER_ATTRIBUTE: &[u8] = b"trusted.cmfs.together";

/// Name and value of an extended attribute.
pub type Attribute = (Box<[u8]>, Box<[u8]>);

/// The other half of a step that moves two names: each of the two headers says what the other one makes of its
/// object, so that a power cut between them leaves enough to finish the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// The other object.
    pub object: u32,
    /// The directory it is in from then on.
    pub parent: u32,
    /// Its name there.
    pub name: Box<[u8]>,
}

/// What a header page says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What the object is.
    pub kind: Kind,
    /// The directory it is in.
    pub parent: u32,
    /// Its name.
    pub name: Box<[u8]>,
    /// Type and permission bits, as `stat` has them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of the object.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Size of a file.
    pub size: u64,
    /// What a hard link stands for.
    pub target: u32,
    /// What a symbolic link points at.
    pub alias: Box<[u8]>,
    /// Device number.
    pub rdev: u32,
    /// The object it replaces; 0 for none.
    pub shadows: u32,
    /// What lies behind the size in older pages is dead.
    pub shrink: bool,
    /// What is moved in the same step; true until the other object has a later header.
    pub together: Option<Together>,
    /// Extended attributes.
    pub attributes: Vec<Attribute>,
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// A string field of `room` bytes, filled up with zeros.
    fn text(&mut self, at: usize, room: usize, text: &[u8]) {
        let text = &text[..text.len().min(room - 1)];
        self.0[at..at + room].fill(0);
        self.0[at..at + text.len()].copy_from_slice(text);
    }

    /// A time as 32 bits, and as 64 where the newer drivers look for it.
    fn time(&mut self, at: usize, wide_at: usize, time: Time) {
        self.word(at, time.sec as u32);
        self.word(wide_at, time.sec as u32);
        self.word(wide_at + 4, (time.sec >> 32) as u32);
    }
}

impl Header {
    /// Fills a header page.
    ///
    /// # Errors
    /// [`Error::AttributesFull`] if the attributes do not fit.
    pub fn write(&self, page: &mut [u8]) -> Result<()> {
        page.fill(0xff);
        let mut to = Writer(page);
        to.word(0, self.kind.code());
        to.word(4, self.parent);
        to.text(NAME_AT, 256, &self.name);
        to.word(268, self.mode);
        to.word(272, self.uid);
        to.word(276, self.gid);
        to.time(280, 472, self.atime);
        to.time(284, 480, self.mtime);
        to.time(288, 464, self.ctime);
        match self.kind {
            Kind::File => {
                to.word(292, self.size as u32);
                to.word(496, (self.size >> 32) as u32);
            }
            Kind::HardLink => to.word(296, self.target),
            Kind::Symlink => to.text(ALIAS_AT, 160, &self.alias),
            Kind::Special => to.word(460, self.rdev),
            Kind::Unknown | Kind::Dir => {}
        }
        to.word(504, self.shadows);
        to.word(508, u32::from(self.shrink));
        self.write_attributes(&mut to.0[HEADER_BYTES..])
    }

    fn write_attributes(&self, room: &mut [u8]) -> Result<()> {
        let mut at = 0;
        let times = self.extra_times();
        // Where pages are as small as headers there is no room for fractions either.
        let own = (room.len() > 64 && self.kind != Kind::HardLink).then_some((TIMES_ATTRIBUTE, &times[..]));
        let together = self.together.as_ref().map(Together::to_bytes);
        let together = together.as_ref().map(|bytes| (TOGETHER_ATTRIBUTE, &bytes[..]));
        let all = self.attributes.iter().map(|(name, value)| (&name[..], &value[..]));
        for (name, value) in all.chain(together).chain(own) {
            let len = 4 + name.len() + 1 + value.len();
            let place = room.get_mut(at..at + len).ok_or(Error::AttributesFull)?;
            place[..4].copy_from_slice(&(len as u32).to_le_bytes());
            place[4..4 + name.len()].copy_from_slice(name);
            place[4 + name.len()] = 0;
            place[len - value.len()..].copy_from_slice(value);
            at += len;
        }
        Ok(())
    }

    fn extra_times(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let parts = [self.atime.nsec, self.mtime.nsec, self.ctime.nsec, self.crtime.nsec];
        for (place, part) in bytes.chunks_exact_mut(4).zip(parts) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.crtime.sec.to_le_bytes());
        bytes
    }

    /// Reads a header page; `at` is its number, for messages.
    pub fn read(page: &[u8], at: u64) -> Result<Header> {
        let corrupt = |why| Error::Corrupt { what: "object header", why, at };
        if page.len() < HEADER_BYTES {
            return Err(corrupt("the page is too short"));
        }
        let word = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        let used = |at: usize| Some(word(at)).filter(|value| *value != UNUSED);
        let time = |at: usize, wide_at: usize| match word(wide_at + 4) {
            UNUSED => Time { sec: i64::from(word(at) as i32), nsec: 0 },
            high => Time { sec: (u64::from(high) << 32 | u64::from(word(wide_at))) as i64, nsec: 0 },
        };
        let kind = Kind::from_code(word(0)).ok_or_else(|| corrupt("there is no such type"))?;
        let mut header = Header {
            kind,
            parent: word(4),
            name: text(&page[NAME_AT..NAME_AT + 256]),
            mode: word(268),
            uid: word(272),
            gid: word(276),
            atime: time(280, 472),
            mtime: time(284, 480),
            ctime: time(288, 464),
            crtime: time(288, 464),
            size: 0,
            target: 0,
            alias: Box::default(),
            rdev: 0,
            shadows: used(504).unwrap_or(0),
            shrink: used(508).is_some_and(|value| value != 0),
            together: None,
            attributes: read_attributes(&page[HEADER_BYTES..]),
        };
        match kind {
            Kind::File => {
                header.size = u64::from(used(292).unwrap_or(0)) | u64::from(used(496).unwrap_or(0)) << 32;
            }
            Kind::HardLink => header.target = word(296),
            Kind::Symlink => header.alias = text(&page[ALIAS_AT..ALIAS_AT + 160]),
            Kind::Special => header.rdev = word(460),
            Kind::Unknown | Kind::Dir => {}
        }
        header.take_extra_times();
        header.take_together();
        Ok(header)
    }

    fn take_together(&mut self) {
        if let Some(at) = self.attributes.iter().position(|(name, _)| **name == *TOGETHER_ATTRIBUTE) {
            let (_, value) = self.attributes.swap_remove(at);
            self.together = Together::from_bytes(&value);
        }
    }

    fn take_extra_times(&mut self) {
        let Some(at) = self.attributes.iter().position(|(name, _)| **name == *TIMES_ATTRIBUTE) else {
            return;
        };
        let (_, value) = self.attributes.swap_remove(at);
        let Ok(bytes) = <[u8; 24]>::try_from(&value[..]) else { return };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let times = [&mut self.atime, &mut self.mtime, &mut self.ctime, &mut self.crtime];
        for (index, time) in times.into_iter().enumerate() {
            time.nsec = word(index * 4).min(999_999_999);
        }
        self.crtime.sec = (u64::from(word(16)) | u64::from(word(20)) << 32) as i64;
    }
}

impl Together {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.object.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.parent.to_le_bytes());
        bytes.extend_from_slice(&self.name);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Together> {
        let (object, rest) = bytes.split_first_chunk::<4>()?;
        let (parent, name) = rest.split_first_chunk::<4>()?;
        let usable = (1..=NAME_MAX).contains(&name.len()) && !name.contains(&0) && !name.contains(&b'/');
        usable.then(|| Together {
            object: u32::from_le_bytes(*object),
            parent: u32::from_le_bytes(*parent),
            name: name.into(),
        })
    }
}

/// A field up to its first zero.
fn text(field: &[u8]) -> Box<[u8]> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len() - 1);
    field[..len].into()
}

fn read_attributes(mut room: &[u8]) -> Vec<Attribute> {
    let mut found = Vec::new();
    while let Some((len, _)) = room.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let Some(record) = room.get(4..len) else { break };
        let Some(end) = record.iter().position(|byte| *byte == 0) else { break };
        found.push((record[..end].into(), record[end + 1..].into()));
        room = &room[len..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let time = |sec, nsec| Time { sec, nsec };
        Header {
            kind: Kind::File,
            parent: 0x101,
            name: b"name"[..].into(),
            mode: 0o100644,
            uid: 7,
            gid: 8,
            atime: time(-5, 3),
            mtime: time(1 << 33, 999_999_999),
            ctime: time(5, 0),
            crtime: time(6, 1),
            size: 5_000_000_000,
            shrink: true,
            attributes: alloc::vec![(b"user.a"[..].into(), b"1"[..].into())],
            ..Header::default()
        }
    }

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let mut page = [0; 2048];
        header().write(&mut page).unwrap();
        assert_eq!(Header::read(&page, 0).unwrap(), header());
        let link = Header { kind: Kind::Symlink, alias: b"../x"[..].into(), size: 0, ..header() };
        link.write(&mut page).unwrap();
        assert_eq!(Header::read(&page, 0).unwrap(), link);
        let other = Together { object: 0x102, parent: 1, name: b"other"[..].into() };
        let swapped = Header { together: Some(other), ..header() };
        swapped.write(&mut page).unwrap();
        assert_eq!(Header::read(&page, 0).unwrap(), swapped);
    }

    #[test]
    fn the_fields_lie_where_yaffs2_has_them() {
        let mut page = [0; 2048];
        header().write(&mut page).unwrap();
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(268), word(292), word(496)), (1, 0x101, 0o100644, 705_032_704, 1));
        assert_eq!(
            (&page[8..10], &page[10..15], word(504), word(508)),
            (&[0xff; 2][..], &b"name\0"[..], 0, 1)
        );
        assert_eq!((word(280), word(296)), (-5i32 as u32, u32::MAX));
    }

    #[test]
    fn attributes_that_do_not_fit_are_refused_and_broken_ones_end_the_list() {
        let mut page = [0; 2048];
        let value: Box<[u8]> = alloc::vec![1; 1500].into();
        let full = Header { attributes: alloc::vec![(b"user.big"[..].into(), value)], ..header() };
        assert_eq!(full.write(&mut page), Err(Error::AttributesFull));
        header().write(&mut page).unwrap();
        page[512..516].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Header::read(&page, 0).unwrap().attributes, []);
        page[0] = 9;
        assert!(matches!(Header::read(&page, 3), Err(Error::Corrupt { at: 3, .. })));
    }
}
