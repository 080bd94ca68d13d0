//! Access control lists as ext4 stores them: version 1 as 32 bits, then entries of 4 bytes (tag and permission, 16
//! bits each), or 8 with the id of a named user or group. Little-endian. What a list means is in [`bimetal_vfs::acl`].

use crate::le::{get16, get32};
use bimetal_base::{Error, Result};
pub use bimetal_vfs::acl::Acl;
use bimetal_vfs::acl::{AclEntry, NO_ID, read_entry};
use smallvec::SmallVec;

const VERSION: u32 = 1;

/// Reads what lies on the disk; `None` for a list without entries.
///
/// # Errors
/// [`Error::Corrupt`], with `place`, if it is not a valid list.
pub fn from_disk(disk: &[u8], place: &str) -> Result<Option<Acl>> {
    let bad = |why: &str| Error::corrupt("an access control list", why, place);
    let (version, mut rest) = disk.split_at_checked(4).ok_or_else(|| bad("it is too short"))?;
    if get32(version, 0) != VERSION {
        return Err(bad("its version is unknown"));
    }
    let mut entries = SmallVec::<[AclEntry; 8]>::new();
    while !rest.is_empty() {
        let named = rest.len() >= 2 && matches!(get16(rest, 0), 0x02 | 0x08);
        let (entry, after) =
            rest.split_at_checked(if named { 8 } else { 4 }).ok_or_else(|| bad("an entry is cut off"))?;
        let id = if named { get32(entry, 4) } else { NO_ID };
        let entry = read_entry(get16(entry, 0), get16(entry, 2), id);
        entries.push(entry.ok_or_else(|| bad("an entry means nothing"))?);
        rest = after;
    }
    match entries.is_empty() {
        true => Ok(None),
        false => Acl::new(entries).map(Some).map_err(|_| bad("its entries make no list")),
    }
}

/// What goes to the disk of a list.
pub fn to_disk(list: &Acl) -> Vec<u8> {
    let mut disk = VERSION.to_le_bytes().to_vec();
    for entry in list.entries() {
        disk.extend(entry.tag.number().to_le_bytes());
        disk.extend(u16::from(entry.perm).to_le_bytes());
        disk.extend(entry.tag.id().map(u32::to_le_bytes).iter().flatten());
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_vfs::acl::AclTag::*;

    fn acl(entries: &[(bimetal_vfs::acl::AclTag, u8)]) -> Acl {
        Acl::new(entries.iter().map(|(tag, perm)| AclEntry { tag: *tag, perm: *perm })).unwrap()
    }

    fn named() -> Acl {
        acl(&[(UserObj, 7), (User(1000), 6), (GroupObj, 5), (Group(7), 7), (Mask, 6), (Other, 1)])
    }

    #[test]
    fn a_list_reads_back_from_the_disk_as_it_was_written() {
        for list in [named(), acl(&[(UserObj, 7), (GroupObj, 5), (Other, 0)])] {
            assert_eq!(from_disk(&to_disk(&list), "").unwrap(), Some(list));
        }
        assert_eq!(to_disk(&named()).len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(from_disk(&[1, 0, 0, 0], "").unwrap(), None);
    }

    #[test]
    fn a_list_that_is_cut_off_is_corrupt() {
        let disk = to_disk(&named());
        for cut in [2, 5, 9, 13, disk.len() - 1] {
            assert!(matches!(from_disk(&disk[..cut], "here"), Err(Error::Corrupt { .. })), "{cut}");
        }
    }
}
