//! POSIX access control lists, in the form extended attributes carry them.
//!
//! The kernel checks permissions, also by access control lists; a file system has to keep mode and list in
//! step. That is the three rules here, as POSIX.1e draft 17 section 23 and `acl(5)` give them: a list set
//! changes the mode ([`Acl::mode`]), a mode set changes the list ([`Acl::chmod`]), and a directory's default
//! list shapes what is made in it ([`Acl::inherit`]), in place of the umask.
//!
//! The format (`linux/posix_acl_xattr.h`, little endian): version 2 as 32 bits, then entries of 8 bytes: tag
//! 16 bits, permission 16 bits, user or group id 32 bits. Order: owner, users, group, groups, mask, others.

use crate::{Error, Result};
use smallvec::SmallVec;

/// The attribute with the list that guards the file itself.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files in this directory start from.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// An access control list that is valid: its entries in order, each required one there once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: SmallVec<[Entry; 8]>,
}

impl Acl {
    /// Reads the value of an attribute; anything that is not a valid list is a [`Error::BadArgument`].
    pub fn parse(value: &[u8]) -> Result<Acl> {
        let (version, rest) = value.split_at_checked(4).ok_or(Error::BadArgument)?;
        if version != VERSION.to_le_bytes() || rest.is_empty() || rest.len() % 8 != 0 {
            return Err(Error::BadArgument);
        }
        let entries = rest
            .chunks_exact(8)
            .map(|raw| Entry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                perm: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            })
            .collect();
        let acl = Acl { entries };
        if acl.is_valid() { Ok(acl) } else { Err(Error::BadArgument) }
    }

    /// The value of the attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(4 + 8 * self.entries.len());
        value.extend(VERSION.to_le_bytes());
        for entry in &self.entries {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// The nine permission bits this list stands for, and whether they say all it says (then it need not be
    /// kept).
    pub fn mode(&self) -> (u16, bool) {
        let class = |tag| self.entry(tag).map_or(0, |entry| entry.perm);
        let group = self.entry(MASK).map_or_else(|| class(OWNING_GROUP), |mask| mask.perm);
        (class(OWNER) << 6 | group << 3 | class(OTHERS), self.entries.len() == 3)
    }

    /// Follows a change of the mode: owner and others directly, the group bits into the mask if there is one.
    pub fn chmod(&mut self, perm: u16) {
        let group_tag = if self.entry(MASK).is_some() { MASK } else { OWNING_GROUP };
        for entry in &mut self.entries {
            match entry.tag {
                OWNER => entry.perm = perm >> 6 & 7,
                OTHERS => entry.perm = perm & 7,
                tag if tag == group_tag => entry.perm = perm >> 3 & 7,
                _ => {}
            }
        }
    }

    /// What a new object in a directory with this default list starts with: its permission bits (of the asked
    /// `perm`, all 12), and its own access list if the bits do not say it all.
    pub fn inherit(&self, perm: u16) -> (u16, Option<Acl>) {
        let mut access = self.clone();
        let group_tag = if self.entry(MASK).is_some() { MASK } else { OWNING_GROUP };
        for entry in &mut access.entries {
            match entry.tag {
                OWNER => entry.perm &= perm >> 6 & 7,
                OTHERS => entry.perm &= perm & 7,
                tag if tag == group_tag => entry.perm &= perm >> 3 & 7,
                _ => {}
            }
        }
        let (mode, says_all) = access.mode();
        (perm & !0o777 | mode, (!says_all).then_some(access))
    }

    fn entry(&self, tag: u16) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    fn count(&self, tag: u16) -> usize {
        self.entries.iter().filter(|entry| entry.tag == tag).count()
    }

    fn is_valid(&self) -> bool {
        let named = self.count(USER) + self.count(GROUP);
        let known = self.entries.iter().all(|entry| {
            entry.perm <= 7 && matches!(entry.tag, OWNER | USER | OWNING_GROUP | GROUP | MASK | OTHERS)
        });
        let ordered = self.entries.windows(2).all(|pair| {
            let repeats = matches!(pair[0].tag, USER | GROUP);
            pair[0].tag < pair[1].tag || (repeats && pair[0].tag == pair[1].tag)
        });
        known
            && ordered
            && [OWNER, OWNING_GROUP, OTHERS].iter().all(|tag| self.count(*tag) == 1)
            && (named == 0 || self.count(MASK) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entries = entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect();
        Acl { entries }
    }

    fn full() -> Acl {
        acl(&[
            (OWNER, 7, NONE),
            (USER, 6, 1000),
            (OWNING_GROUP, 5, NONE),
            (GROUP, 4, 50),
            (MASK, 7, NONE),
            (OTHERS, 1, NONE),
        ])
    }

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        assert_eq!(Acl::parse(&full().to_bytes()).unwrap(), full());
        let minimal = acl(&[(OWNER, 6, NONE), (OWNING_GROUP, 4, NONE), (OTHERS, 0, NONE)]);
        assert_eq!(Acl::parse(&minimal.to_bytes()).unwrap(), minimal);
    }

    #[test]
    fn values_that_are_no_list_are_refused() {
        let no_mask = acl(&[(OWNER, 7, NONE), (USER, 6, 1000), (OWNING_GROUP, 5, NONE), (OTHERS, 1, NONE)]);
        let no_others = acl(&[(OWNER, 7, NONE), (OWNING_GROUP, 5, NONE)]);
        let disordered = acl(&[(OWNING_GROUP, 5, NONE), (OWNER, 7, NONE), (OTHERS, 1, NONE)]);
        let too_much = acl(&[(OWNER, 8, NONE), (OWNING_GROUP, 5, NONE), (OTHERS, 1, NONE)]);
        for wrong in [no_mask, no_others, disordered, too_much] {
            assert!(Acl::parse(&wrong.to_bytes()).is_err(), "{wrong:?}");
        }
        let mut cut = full().to_bytes();
        cut.pop();
        for wrong in [&cut[..], &cut[..4], &[], &[9; 12]] {
            assert!(Acl::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_mode_shows_the_mask_where_there_is_one() {
        assert_eq!(full().mode(), (0o771, false));
        assert_eq!(
            acl(&[(OWNER, 6, NONE), (OWNING_GROUP, 4, NONE), (OTHERS, 0, NONE)]).mode(),
            (0o640, true)
        );
    }

    #[test]
    fn a_new_mode_goes_into_the_mask_and_leaves_named_entries() {
        let mut list = full();
        list.chmod(0o640);
        assert_eq!(list.mode().0, 0o640);
        assert_eq!(list.entry(USER).unwrap().perm, 6);
        assert_eq!(list.entry(OWNING_GROUP).unwrap().perm, 5);
    }

    #[test]
    fn a_default_list_replaces_the_umask_and_keeps_high_bits() {
        let (perm, access) = full().inherit(0o2664);
        assert_eq!(perm, 0o2660);
        assert_eq!(access.unwrap().entry(MASK).unwrap().perm, 6);
        let minimal = acl(&[(OWNER, 7, NONE), (OWNING_GROUP, 5, NONE), (OTHERS, 0, NONE)]);
        assert_eq!(minimal.inherit(0o666), (0o640, None));
    }
}
