//! POSIX access control lists: what they mean for mode bits, and the form extended attributes carry them in.
//!
//! The kernel checks permissions, also by access control lists; a file system has to keep mode and list in step. A
//! list has entries for the owner, named users, the owning group, named groups, a mask and the others, in this
//! order. The mask caps named users, the owning group and named groups; it must be there if anyone is named. An
//! *access* list belongs to any file and agrees with its mode bits: owner and others are the same in both, and the
//! mode's group bits are the mask's (or, without a mask, the owning group's). A *default* list belongs to a directory
//! and is what new files in it start from, in place of the umask. POSIX.1e draft 17, section 23; acl(5).
//!
//! To and from the kernel (`linux/posix_acl_xattr.h`, little-endian): version 2 as 32 bits, then entries of 8 bytes:
//! tag 16 bits, permission 16 bits, user or group id 32 bits.

use bimetal_base::{Error, Result};
use smallvec::SmallVec;

/// The attribute with the list that guards the file itself.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files in this directory start from.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const WIRE_VERSION: u32 = 2;
/// The id of entries that name nobody.
pub const NO_ID: u32 = u32::MAX;

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The owner.
    UserObj,
    /// The user with this id.
    User(u32),
    /// The owning group.
    GroupObj,
    /// The group with this id.
    Group(u32),
    /// The most that named users and all groups get.
    Mask,
    /// Everyone else.
    Other,
}

impl AclTag {
    /// From its number and, for named users and groups, their id.
    fn from_parts(tag: u16, id: u32) -> Option<AclTag> {
        Some(match tag {
            0x01 => AclTag::UserObj,
            0x02 if id != NO_ID => AclTag::User(id),
            0x04 => AclTag::GroupObj,
            0x08 if id != NO_ID => AclTag::Group(id),
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        })
    }

    /// Its number, the same on disks and in attributes.
    pub fn number(self) -> u16 {
        match self {
            AclTag::UserObj => 0x01,
            AclTag::User(_) => 0x02,
            AclTag::GroupObj => 0x04,
            AclTag::Group(_) => 0x08,
            AclTag::Mask => 0x10,
            AclTag::Other => 0x20,
        }
    }

    /// Who is named.
    pub fn id(self) -> Option<u32> {
        match self {
            AclTag::User(id) | AclTag::Group(id) => Some(id),
            _ => None,
        }
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// For whom.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub perm: u8,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: SmallVec<[AclEntry; 8]>,
}

/// What a new file gets from its parent's default list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its permission bits.
    pub perm: u16,
    /// Its access list, if it says more than the bits.
    pub access: Option<Acl>,
    /// Its default list, for a directory.
    pub default: Option<Acl>,
}

fn le16(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Acl {
    /// A list of these entries.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if they are not in order, if one of owner, owning group and others is missing or
    /// there twice, if someone is named and there is no mask, or if a permission is not 0 to 7.
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Acl> {
        let entries: SmallVec<[AclEntry; 8]> = entries.into_iter().collect();
        if is_valid(&entries) { Ok(Acl { entries }) } else { Err(Error::BadArgument) }
    }

    /// Reads what the kernel passes; `None` for a list without entries, which means "remove it".
    ///
    /// # Errors
    /// [`Error::BadArgument`] as in [`Self::new`] or for a length that cannot be, [`Error::NotSupported`] for
    /// another version.
    pub fn from_wire(wire: &[u8]) -> Result<Option<Acl>> {
        let Some((version, entries)) = wire.split_at_checked(4) else { return Err(Error::BadArgument) };
        if le32(version) != WIRE_VERSION {
            return Err(Error::NotSupported);
        }
        let chunks = entries.chunks_exact(8);
        if !chunks.remainder().is_empty() {
            return Err(Error::BadArgument);
        }
        let parsed: Option<SmallVec<[AclEntry; 8]>> =
            chunks.map(|entry| read_entry(le16(entry), le16(&entry[2..]), le32(&entry[4..]))).collect();
        match parsed {
            None => Err(Error::BadArgument),
            Some(entries) if entries.is_empty() => Ok(None),
            Some(entries) => Acl::new(entries).map(Some),
        }
    }

    /// What the kernel is told.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = WIRE_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            wire.extend(entry.tag.number().to_le_bytes());
            wire.extend(u16::from(entry.perm).to_le_bytes());
            wire.extend(entry.tag.id().unwrap_or(NO_ID).to_le_bytes());
        }
        wire
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Whether the list says no more than mode bits can.
    pub fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// The permission bits (0 to 0o777) that agree with this access list.
    pub fn mode(&self) -> u16 {
        self.entries.iter().fold(0, |mode, entry| {
            let perm = u16::from(entry.perm);
            match entry.tag {
                AclTag::UserObj => mode | perm << 6,
                AclTag::GroupObj => mode | perm << 3,
                AclTag::Mask => mode & !0o070 | perm << 3,
                AclTag::Other => mode | perm,
                AclTag::User(_) | AclTag::Group(_) => mode,
            }
        })
    }

    /// The access list that says what mode bits say.
    pub fn of_mode(mode: u16) -> Acl {
        let entry = |tag, shift: u16| AclEntry { tag, perm: (mode >> shift) as u8 & 7 };
        let entries = [entry(AclTag::UserObj, 6), entry(AclTag::GroupObj, 3), entry(AclTag::Other, 0)];
        Acl { entries: SmallVec::from_slice(&entries) }
    }

    /// Whether this access list of a file of group `file_gid` gives the permissions `wanted` to a user who is not the file's
    /// owner, and is in the groups that `in_group` says.
    pub fn grants(&self, wanted: u8, uid: u32, file_gid: u32, in_group: impl Fn(u32) -> bool) -> bool {
        let has = |perm: u8| perm & wanted == wanted;
        let mask = self.entries.iter().find(|entry| entry.tag == AclTag::Mask).map_or(7, |entry| entry.perm);
        let user = self.entries.iter().find(|entry| entry.tag == AclTag::User(uid));
        if let Some(entry) = user {
            return has(entry.perm & mask);
        }
        let is_of = |entry: &&AclEntry| match entry.tag {
            AclTag::GroupObj => in_group(file_gid),
            AclTag::Group(gid) => in_group(gid),
            _ => false,
        };
        let mut groups = self.entries.iter().filter(is_of).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| has(entry.perm & mask));
        }
        self.entries.iter().any(|entry| entry.tag == AclTag::Other && has(entry.perm))
    }

    /// Sets this access list on a file with mode bits `perm` (0 to 0o7777): the bits it then has, and the list
    /// if it must be stored.
    pub fn set_on(self, perm: u16) -> (u16, Option<Acl>) {
        let perm = perm & !0o777 | self.mode();
        (perm, (!self.is_mode()).then_some(self))
    }

    /// This access list after the file's permission bits were set to `perm` (chmod).
    pub fn with_mode(mut self, perm: u16) -> Acl {
        self.agree(|_, wanted| wanted, perm);
        self
    }

    /// What a new file gets in a directory with this default list, when `perm` (0 to 0o7777) was asked for; the
    /// umask plays no part.
    pub fn inherit(&self, perm: u16, is_dir: bool) -> Inherited {
        let mut access = self.clone();
        access.agree(|entry, wanted| entry & wanted, perm);
        let (perm, access) = access.set_on(perm);
        Inherited { perm, access, default: is_dir.then(|| self.clone()) }
    }

    /// Brings the three entries that mode bits speak of together with `perm`.
    fn agree(&mut self, merge: fn(u8, u8) -> u8, perm: u16) {
        let masked = self.entries.iter().any(|entry| entry.tag == AclTag::Mask);
        for entry in &mut self.entries {
            let shift = match entry.tag {
                AclTag::UserObj => 6,
                AclTag::Mask => 3,
                AclTag::GroupObj if !masked => 3,
                AclTag::Other => 0,
                _ => continue,
            };
            entry.perm = merge(entry.perm, (perm >> shift) as u8 & 7);
        }
    }
}

/// An entry from its three numbers, if they mean something.
pub fn read_entry(tag: u16, perm: u16, id: u32) -> Option<AclEntry> {
    let perm = u8::try_from(perm).ok()?;
    AclTag::from_parts(tag, id).map(|tag| AclEntry { tag, perm })
}

/// Owner, named users, owning group, named groups, mask, others: in this order, and the mask if anyone is named.
fn is_valid(entries: &[AclEntry]) -> bool {
    let mut expected = 0;
    let (mut named, mut masked) = (false, false);
    for entry in entries {
        let (from, to) = match entry.tag {
            AclTag::UserObj => (0..=0, 1),
            AclTag::User(_) => (1..=1, 1),
            AclTag::GroupObj => (1..=1, 2),
            AclTag::Group(_) => (2..=2, 2),
            AclTag::Mask => (2..=2, 3),
            AclTag::Other => (2..=3, 4),
        };
        if !from.contains(&expected) || entry.perm > 7 {
            return false;
        }
        named |= entry.tag.id().is_some();
        masked |= entry.tag == AclTag::Mask;
        expected = to;
    }
    expected == 4 && (masked || !named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use AclTag::*;

    fn acl(entries: &[(AclTag, u8)]) -> Acl {
        Acl::new(entries.iter().map(|(tag, perm)| AclEntry { tag: *tag, perm: *perm })).unwrap()
    }

    fn named() -> Acl {
        acl(&[(UserObj, 7), (User(1000), 6), (GroupObj, 5), (Group(7), 7), (Mask, 6), (Other, 1)])
    }

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        for list in [named(), acl(&[(UserObj, 7), (GroupObj, 5), (Other, 0)])] {
            assert_eq!(Acl::from_wire(&list.to_wire()).unwrap(), Some(list));
        }
        assert_eq!(named().to_wire().len(), 4 + 6 * 8);
    }

    #[test]
    fn a_list_without_entries_is_none() {
        assert_eq!(Acl::from_wire(&[2, 0, 0, 0]).unwrap(), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let entry = |tag, perm| AclEntry { tag, perm };
        let (user, group, other) = (entry(UserObj, 7), entry(GroupObj, 5), entry(Other, 5));
        for wrong in [
            vec![],
            vec![user, group],
            vec![group, user, other],
            vec![user, group, other, other],
            vec![user, user, group, other],
            vec![user, entry(User(5), 7), group, other],
            vec![user, group, entry(Mask, 7), entry(Group(5), 7), other],
            vec![user, group, entry(Other, 8)],
        ] {
            assert!(matches!(Acl::new(wrong.clone()), Err(Error::BadArgument)), "{wrong:?}");
        }
        let wire = named().to_wire();
        assert!(matches!(Acl::from_wire(&wire[..11]), Err(Error::BadArgument)));
        assert!(matches!(Acl::from_wire(&wire[..3]), Err(Error::BadArgument)));
        assert!(matches!(Acl::from_wire(&[&[9, 0, 0, 0], &wire[4..]].concat()), Err(Error::NotSupported)));
    }

    #[test]
    fn mode_bits_follow_the_mask_where_there_is_one() {
        assert_eq!(named().mode(), 0o761);
        assert_eq!(acl(&[(UserObj, 6), (GroupObj, 4), (Other, 0)]).mode(), 0o640);
        assert_eq!(named().set_on(0o4000).0, 0o4761);
        assert_eq!(acl(&[(UserObj, 6), (GroupObj, 4), (Other, 0)]).set_on(0o1777), (0o1640, None));
    }

    #[test]
    fn a_list_grants_what_the_first_kind_of_entry_that_is_about_somebody_grants() {
        let grants = |list: &Acl, uid, groups: &[u32]| list.grants(2, uid, 5, |gid| groups.contains(&gid));
        let list = acl(&[
            (UserObj, 7),
            (User(1), 4),
            (User(2), 6),
            (GroupObj, 4),
            (Group(7), 6),
            (Mask, 6),
            (Other, 2),
        ]);
        assert!(!grants(&list, 1, &[7]), "one who is named, whatever groups may");
        assert!(grants(&list, 2, &[]));
        assert!(!grants(&list, 3, &[5]) && grants(&list, 3, &[5, 7]), "any group that may");
        assert!(grants(&list, 3, &[]), "others, who are not masked");
        let masked = acl(&[(UserObj, 7), (User(2), 6), (GroupObj, 6), (Mask, 4), (Other, 0)]);
        assert!(!grants(&masked, 2, &[]) && !grants(&masked, 3, &[5]) && !grants(&masked, 3, &[]));
        assert!(grants(&Acl::of_mode(0o4620), 3, &[5]) && !grants(&Acl::of_mode(0o702), 3, &[5]));
        assert!(grants(&Acl::of_mode(0o702), 3, &[]));
    }

    #[test]
    fn chmod_changes_the_mask_and_leaves_the_owning_group() {
        let changed = named().with_mode(0o4705);
        assert_eq!(
            changed,
            acl(&[(UserObj, 7), (User(1000), 6), (GroupObj, 5), (Group(7), 7), (Mask, 0), (Other, 5)])
        );
        let plain = acl(&[(UserObj, 7), (GroupObj, 7), (Other, 7)]).with_mode(0o640);
        assert_eq!(plain, acl(&[(UserObj, 6), (GroupObj, 4), (Other, 0)]));
    }

    #[test]
    fn a_new_file_gets_the_default_list_cut_to_what_was_asked_for() {
        let file = named().inherit(0o640, false);
        assert_eq!(file.perm, 0o640);
        assert_eq!(file.default, None);
        assert_eq!(
            file.access.unwrap(),
            acl(&[(UserObj, 6), (User(1000), 6), (GroupObj, 5), (Group(7), 7), (Mask, 4), (Other, 0)])
        );
        let dir = named().inherit(0o2777, true);
        assert_eq!((dir.perm, &dir.default, &dir.access), (0o2761, &Some(named()), &Some(named())));
        let plain = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 0)]).inherit(0o666, false);
        assert_eq!((plain.perm, plain.access), (0o640, None));
    }
}
