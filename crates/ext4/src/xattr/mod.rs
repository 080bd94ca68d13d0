//! Extended attributes: where an inode keeps them, and how they are packed there.
//!
//! There are two places, both in the same form: entries from the front, values from the back.
//!
//! ```text
//! in the inode    magic                                · entry, entry, … 0000 … value, value
//! in one block    magic, references, 1, hash, checksum · entry, entry, … 0000 … value, value
//! entry           name length u8, name index u8, value offset u16, value inode u32, value size u32, hash u32, name
//! ```
//!
//! The *name index* stands for the part of a name up to its first dot; the rest is stored. Entries of a block
//! are sorted (by index, then length, then bytes) and hashed, so that the kernel can share one block among
//! inodes with the same attributes: its reference count then is above 1, and whoever changes one inode's
//! attributes makes a copy first.
//!
//! [`XattrSet`] holds all attributes of an inode and says how to lay them out: as many bytes as possible in
//! the inode (an exact subset sum, so whatever can fit does fit), the rest in one block. Attributes of kinds
//! not known here (richacl, encryption, inline data) are kept as they are and not shown.

use super::acl::{self, Acl};
use bimetal_base::checksum::crc32c_raw;
use bimetal_base::{Error, Result};
use bimetal_vfs::{NAME_MAX, SetXattr};

const MAGIC: u32 = 0xEA02_0000;
const INODE_HEADER: usize = 4;
const BLOCK_HEADER: usize = 32;
const ENTRY: usize = 16;
/// The zero word behind the last entry.
const END: usize = 4;
const CHECKSUM: usize = 16;

const USER: u8 = 1;
const ACL_ACCESS: u8 = 2;
const ACL_DEFAULT: u8 = 3;
const TRUSTED: u8 = 4;
const SECURITY: u8 = 6;

const WHOLE: [(&[u8], u8); 2] =
    [(b"system.posix_acl_access", ACL_ACCESS), (b"system.posix_acl_default", ACL_DEFAULT)];
const PREFIXES: [(&[u8], u8); 3] = [(b"user.", USER), (b"trusted.", TRUSTED), (b"security.", SECURITY)];

/// Which of a directory's two access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The one that guards the file itself.
    Access,
    /// The one that new files in the directory start from.
    Default,
}

impl AclKind {
    fn index(self) -> u8 {
        match self {
            AclKind::Access => ACL_ACCESS,
            AclKind::Default => ACL_DEFAULT,
        }
    }
}

/// One attribute as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attr {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Attr {
    /// The order of entries in a block.
    fn key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }

    fn entry_bytes(&self) -> usize {
        ENTRY + pad(self.name.len())
    }

    fn bytes(&self) -> usize {
        self.entry_bytes() + pad(self.value.len())
    }

    /// The hash of an entry in a block: over the name's bytes, then over the value's words.
    fn hash(&self) -> u32 {
        let name = self.name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// How an inode's attributes are to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrLayout {
    /// The inode's area, as long as it was said to be; zeros if nothing is in it.
    pub inode: Vec<u8>,
    /// The block, with one reference and without a checksum ([`seal_block`]); `None` if none is needed.
    pub block: Option<Vec<u8>>,
}

/// All extended attributes of one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrSet {
    /// In the order of a block.
    attrs: Vec<Attr>,
}

fn pad(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

fn le16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// A full name as index and stored rest.
fn split(name: &[u8]) -> Result<(u8, &[u8])> {
    if let Some((_, index)) = WHOLE.iter().find(|(whole, _)| *whole == name) {
        return Ok((*index, &[]));
    }
    for (prefix, index) in PREFIXES {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Error::BadArgument),
            Some(rest) if rest.len() > NAME_MAX => return Err(Error::NameTooLong),
            Some(rest) => return Ok((index, rest)),
            None => {}
        }
    }
    Err(Error::NotSupported)
}

/// The full name of a stored one; `None` for kinds that are not shown.
fn join(attr: &Attr) -> Option<Vec<u8>> {
    let prefix = WHOLE.iter().chain(&PREFIXES).find(|(_, index)| *index == attr.index)?.0;
    Some([prefix, &attr.name].concat())
}

impl XattrSet {
    /// Reads an inode's attributes: `area` is what follows the inode's extra fields (empty if nothing does), `block`
    /// its attribute block, if it has one, already verified. `place` names the inode in messages.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for entries that are not, [`Error::Unsupported`] for values in inodes of their own.
    pub fn parse(area: &[u8], block: Option<&[u8]>, place: &str) -> Result<XattrSet> {
        let mut set = XattrSet::default();
        if area.len() >= INODE_HEADER + END && le32(area, 0) == MAGIC {
            set.take_in(&area[INODE_HEADER..], 0, place)?;
        }
        if let Some(block) = block {
            if block.len() < BLOCK_HEADER + END || le32(block, 0) != MAGIC || le32(block, 8) != 1 {
                return Err(bad("the block's header is not one", place));
            }
            set.take_in(block, BLOCK_HEADER, place)?;
        }
        set.attrs.sort_by(|a, b| a.key().cmp(&b.key()));
        // The inode's come first and win, as in the kernel's look-up.
        set.attrs.dedup_by(|later, earlier| later.key() == earlier.key());
        Ok(set)
    }

    /// Reads entries from `at`; their values' offsets count from the start of `bytes`.
    fn take_in(&mut self, bytes: &[u8], mut at: usize, place: &str) -> Result<()> {
        let first_new = self.attrs.len();
        let mut values = Vec::new();
        loop {
            if at + END > bytes.len() {
                return Err(bad("the entries have no end", place));
            }
            if le32(bytes, at) == 0 {
                break;
            }
            let name_at = at + ENTRY;
            let name_end = name_at + usize::from(bytes[at]);
            let name = bytes.get(name_at..name_end).ok_or_else(|| bad("a name is cut off", place))?;
            if le32(bytes, at + 4) != 0 {
                return Err(Error::unsupported("an attribute in an inode of its own (ea_inode)", place));
            }
            self.attrs.push(Attr { index: bytes[at + 1], name: name.to_vec(), value: Vec::new() });
            values.push((le16(bytes, at + 2), le32(bytes, at + 8) as usize));
            at = pad(name_end);
        }
        for (attr, (offset, size)) in self.attrs[first_new..].iter_mut().zip(values) {
            if size == 0 {
                continue;
            }
            let value = offset.checked_add(size).and_then(|end| bytes.get(offset..end));
            match value {
                Some(value) if offset >= at + END => attr.value = value.to_vec(),
                _ => return Err(bad("a value lies outside the space for values", place)),
            }
        }
        Ok(())
    }

    /// Whether there are none, of any kind.
    pub fn is_empty(&self) -> bool {
        self.attrs.is_empty()
    }

    fn search(&self, index: u8, name: &[u8]) -> Result<usize, usize> {
        self.attrs.binary_search_by(|attr| attr.key().cmp(&(index, name.len(), name)))
    }

    /// The value of an attribute, by its full name; access control lists as the kernel passes them.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotSupported`] for a kind of name that is not known; [`Error::Corrupt`]
    /// for a stored list that is none.
    pub fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        let (index, rest) = split(name)?;
        let at = self.search(index, rest).map_err(|_| Error::NoAttribute)?;
        let value = &self.attrs[at].value;
        if index == ACL_ACCESS || index == ACL_DEFAULT {
            let acl = acl::from_disk(value, "an inode's attributes")?;
            return acl.map(|acl| acl.to_wire()).ok_or(Error::NoAttribute);
        }
        Ok(value.clone())
    }

    /// Sets an attribute by its full name. Access control lists come as the kernel passes them, and an empty one
    /// removes; the mode bits that go with an access list are the caller's ([`Acl::set_on`]).
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::NoAttribute`] as `how` asks; [`Error::NotSupported`],
    /// [`Error::NameTooLong`], [`Error::BadArgument`] for names and lists that cannot be. Whether it fits
    /// is known only to [`Self::layout`].
    pub fn set(&mut self, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let (index, rest) = split(name)?;
        let value = match index {
            ACL_ACCESS | ACL_DEFAULT => Acl::from_wire(value)?.map(|list| acl::to_disk(&list)),
            _ => Some(value.to_vec()),
        };
        match (self.search(index, rest), how) {
            (Ok(_), SetXattr::Create) => return Err(Error::Exists),
            (Err(_), SetXattr::Replace) => return Err(Error::NoAttribute),
            _ => {}
        }
        self.put(index, rest, value);
        Ok(())
    }

    /// Makes, replaces or (without a value) removes an attribute.
    fn put(&mut self, index: u8, name: &[u8], value: Option<Vec<u8>>) {
        match (self.search(index, name), value) {
            (Ok(at), Some(value)) => self.attrs[at].value = value,
            (Ok(at), None) => drop(self.attrs.remove(at)),
            (Err(at), Some(value)) => self.attrs.insert(at, Attr { index, name: name.to_vec(), value }),
            (Err(_), None) => {}
        }
    }

    /// Removes an attribute by its full name.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotSupported`] for a kind of name that is not known.
    pub fn remove(&mut self, name: &[u8]) -> Result<()> {
        let (index, rest) = split(name)?;
        let at = self.search(index, rest).map_err(|_| Error::NoAttribute)?;
        self.attrs.remove(at);
        Ok(())
    }

    /// The full names of all attributes of known kinds.
    pub fn list(&self) -> Vec<Vec<u8>> {
        self.attrs.iter().filter_map(join).collect()
    }

    /// An access control list.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none.
    pub fn acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        match self.search(kind.index(), &[]) {
            Ok(at) => acl::from_disk(&self.attrs[at].value, "an inode's attributes"),
            Err(_) => Ok(None),
        }
    }

    /// Sets or removes an access control list.
    pub fn set_acl(&mut self, kind: AclKind, acl: Option<&Acl>) {
        self.put(kind.index(), &[], acl.map(acl::to_disk));
    }

    /// How to store the attributes, given the inode's area and the file system's block size in bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they fit the inode and one block in no way.
    pub fn layout(&self, area_bytes: usize, block_bytes: usize) -> Result<XattrLayout> {
        let room = area_bytes.saturating_sub(INODE_HEADER + END);
        let (inner, outer): (Vec<_>, Vec<_>) =
            self.attrs.iter().zip(self.choose(room)).partition(|(_, chosen)| *chosen);
        let inner: Vec<&Attr> = inner.into_iter().map(|(attr, _)| attr).collect();
        let outer: Vec<&Attr> = outer.into_iter().map(|(attr, _)| attr).collect();
        let outer_bytes: usize = outer.iter().map(|attr| attr.bytes()).sum();
        if outer_bytes + BLOCK_HEADER + END > block_bytes && !outer.is_empty() {
            return Err(Error::NoSpace("extended attributes fill the inode and a block"));
        }
        let mut inode = vec![0; area_bytes];
        if !inner.is_empty() {
            put(&mut inode, 0, MAGIC);
            write_entries(&mut inode[INODE_HEADER..], 0, &inner, false);
        }
        let block = (!outer.is_empty()).then(|| block(&outer, block_bytes));
        Ok(XattrLayout { inode, block })
    }

    /// The attributes that go into the inode: those whose sizes add up to the most that fits `room`.
    fn choose(&self, room: usize) -> Vec<bool> {
        let sizes: Vec<usize> = self.attrs.iter().map(|attr| attr.bytes() / 4).collect();
        let room = room / 4;
        if sizes.iter().sum::<usize>() <= room {
            return vec![true; sizes.len()];
        }
        // reached[sum]: the attribute with which the sum was first reached; all before it are settled.
        let mut reached: Vec<Option<usize>> = vec![None; room + 1];
        for (index, size) in sizes.iter().enumerate() {
            for sum in (*size..=room).rev() {
                let before = sum - size;
                if reached[sum].is_none() && (before == 0 || reached[before].is_some_and(|last| last < index))
                {
                    reached[sum] = Some(index);
                }
            }
        }
        let mut chosen = vec![false; sizes.len()];
        let mut sum = (1..=room).rev().find(|sum| reached[*sum].is_some()).unwrap_or(0);
        while let Some(index) = reached[sum].filter(|_| sum > 0) {
            chosen[index] = true;
            sum -= sizes[index];
        }
        chosen
    }
}

fn bad(why: &str, place: &str) -> Error {
    Error::corrupt("extended attributes", why, place)
}

/// Writes entries from `at` and values from the end; offsets count from the start of `bytes`.
fn write_entries(bytes: &mut [u8], mut at: usize, attrs: &[&Attr], hashed: bool) {
    let mut value_at = bytes.len() & !3;
    for attr in attrs {
        bytes[at] = attr.name.len() as u8;
        bytes[at + 1] = attr.index;
        if !attr.value.is_empty() {
            value_at -= pad(attr.value.len());
            bytes[at + 2..at + 4].copy_from_slice(&(value_at as u16).to_le_bytes());
            bytes[value_at..value_at + attr.value.len()].copy_from_slice(&attr.value);
        }
        put(bytes, at + 8, attr.value.len() as u32);
        put(bytes, at + 12, if hashed { attr.hash() } else { 0 });
        bytes[at + ENTRY..at + ENTRY + attr.name.len()].copy_from_slice(&attr.name);
        at += attr.entry_bytes();
    }
}

/// A block of attributes, with one reference.
fn block(attrs: &[&Attr], block_bytes: usize) -> Vec<u8> {
    let mut block = vec![0; block_bytes];
    put(&mut block, 0, MAGIC);
    put(&mut block, 4, 1);
    put(&mut block, 8, 1);
    let hashes: Vec<u32> = attrs.iter().map(|attr| attr.hash()).collect();
    // A block with an entry whose hash is 0 is not shared, and says so with 0.
    let hash = hashes.iter().fold(0_u32, |all, hash| all.rotate_left(16) ^ hash);
    put(&mut block, 12, if hashes.contains(&0) { 0 } else { hash });
    write_entries(&mut block, BLOCK_HEADER, attrs, true);
    block
}

/// How many inodes use an attribute block.
pub fn block_refs(block: &[u8]) -> u32 {
    le32(block, 4)
}

/// Sets how many inodes use an attribute block; the checksum is then to be renewed.
pub fn set_block_refs(block: &mut [u8], refs: u32) {
    put(block, 4, refs);
}

fn block_sum(block: &[u8], seed: u32, disk_block: u64) -> u32 {
    let sum = crc32c_raw(seed, &disk_block.to_le_bytes());
    let sum = crc32c_raw(crc32c_raw(sum, &block[..CHECKSUM]), &[0; 4]);
    crc32c_raw(sum, &block[CHECKSUM + 4..])
}

/// Writes an attribute block's checksum (`metadata_csum`); `seed` is the file system's.
pub fn seal_block(block: &mut [u8], seed: u32, disk_block: u64) {
    let sum = block_sum(block, seed, disk_block);
    put(block, CHECKSUM, sum);
}

/// Checks an attribute block's checksum (`metadata_csum`); `seed` is the file system's.
///
/// # Errors
/// [`Error::Corrupt`] if it does not match.
pub fn verify_block(block: &[u8], seed: u32, disk_block: u64) -> Result<()> {
    if le32(block, CHECKSUM) == block_sum(block, seed, disk_block) {
        return Ok(());
    }
    Err(Error::corrupt(
        "an attribute block",
        "its checksum does not match",
        format_args!("block {disk_block}"),
    ))
}

#[cfg(test)]
mod tests;
