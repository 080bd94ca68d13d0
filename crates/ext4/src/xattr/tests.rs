//! Attribute sets against a map; layouts at their limits; damage.

use super::*;
use bimetal_vfs::acl::{AclEntry, AclTag};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// What a 256-byte inode with the usual 32 extra bytes leaves.
const AREA: usize = 256 - 128 - 32;

fn stored(set: &XattrSet, area: usize, block: usize) -> Result<(XattrLayout, XattrSet)> {
    let layout = set.layout(area, block)?;
    let again = XattrSet::parse(&layout.inode, layout.block.as_deref(), "test")?;
    Ok((layout, again))
}

fn filled(attrs: &[(&str, usize)]) -> XattrSet {
    let mut set = XattrSet::default();
    for (name, size) in attrs {
        set.set(name.as_bytes(), &vec![b'v'; *size], SetXattr::Either).unwrap();
    }
    set
}

fn acl() -> Acl {
    let entries = [
        (AclTag::UserObj, 7),
        (AclTag::User(1000), 6),
        (AclTag::GroupObj, 5),
        (AclTag::Mask, 7),
        (AclTag::Other, 0),
    ];
    Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm })).unwrap()
}

#[test]
fn attributes_come_and_go_as_in_a_map_and_survive_being_stored() {
    let mut rng = SmallRng::seed_from_u64(1);
    for (area, block) in [(AREA, 4096), (0, 1024), (928, 1024), (AREA, 1024)] {
        let (mut set, mut model) = (XattrSet::default(), BTreeMap::new());
        for _ in 0..3000 {
            let prefix = ["user.", "trusted.", "security."][rng.random_range(0..3)];
            let name = format!("{prefix}{:x<1$}", rng.random_range(0..12), rng.random_range(1..30));
            let value = vec![rng.random(); rng.random_range(0..90)];
            if rng.random_bool(0.4) {
                assert_eq!(set.remove(name.as_bytes()).is_ok(), model.remove(&name).is_some());
            } else {
                let before = set.clone();
                set.set(name.as_bytes(), &value, SetXattr::Either).unwrap();
                match stored(&set, area, block) {
                    Ok(_) => drop(model.insert(name.clone(), value)),
                    Err(Error::NoSpace(_)) => set = before,
                    Err(error) => panic!("{error}"),
                }
            }
            let (_, again) = stored(&set, area, block).unwrap();
            assert_eq!(again, set);
            assert_eq!(set.get(name.as_bytes()).ok(), model.get(&name).cloned());
        }
        let mut names: Vec<Vec<u8>> = model.keys().map(|name| name.clone().into_bytes()).collect();
        let mut listed = set.list();
        names.sort();
        listed.sort();
        assert_eq!(listed, names);
    }
}

#[test]
fn small_sets_lie_in_the_inode_and_need_no_block() {
    let (layout, _) = stored(&filled(&[("user.a", 20), ("security.b", 0)]), AREA, 4096).unwrap();
    assert_eq!(layout.block, None);
    assert_eq!(layout.inode[..4], MAGIC.to_le_bytes());
    let empty = XattrSet::default().layout(AREA, 4096).unwrap();
    assert_eq!(empty, XattrLayout { inode: vec![0; AREA], block: None });
}

#[test]
fn the_inode_takes_the_subset_that_fills_it_best() {
    // Entries of 20 bytes and their values: 60, 44 and 40 for a room of 88. Taking the largest first would fill 60.
    let set = filled(&[("user.a", 40), ("user.b", 24), ("user.c", 20)]);
    let (layout, _) = stored(&set, AREA, 1024).unwrap();
    let inner = XattrSet::parse(&layout.inode, None, "test").unwrap();
    let outer = XattrSet::parse(&[], layout.block.as_deref(), "test").unwrap();
    let sum = |set: &XattrSet| set.attrs.iter().map(Attr::bytes).sum::<usize>();
    assert_eq!((sum(&inner), sum(&outer)), (84, 60));
}

#[test]
fn a_set_fits_exactly_or_not_at_all() {
    let room = 1024 - BLOCK_HEADER - END - ENTRY - 4;
    assert!(stored(&filled(&[("user.a", room)]), 0, 1024).is_ok());
    let over = filled(&[("user.a", room + 1)]).layout(0, 1024);
    assert!(matches!(over, Err(Error::NoSpace(_))));
    let room = AREA - INODE_HEADER - END - ENTRY - 4;
    assert_eq!(filled(&[("user.a", room)]).layout(AREA, 1024).unwrap().block, None);
    assert!(filled(&[("user.a", room + 1)]).layout(AREA, 1024).unwrap().block.is_some());
}

#[test]
fn create_and_replace_are_kept_apart() {
    let mut set = filled(&[("user.a", 1)]);
    assert!(matches!(set.set(b"user.a", b"x", SetXattr::Create), Err(Error::Exists)));
    assert!(matches!(set.set(b"user.b", b"x", SetXattr::Replace), Err(Error::NoAttribute)));
    set.set(b"user.b", b"x", SetXattr::Create).unwrap();
    set.set(b"user.a", b"y", SetXattr::Replace).unwrap();
    assert_eq!(set.get(b"user.a").unwrap(), b"y");
    assert!(matches!(set.get(b"user.c"), Err(Error::NoAttribute)));
    assert!(matches!(set.remove(b"user.c"), Err(Error::NoAttribute)));
}

#[test]
fn names_of_unknown_kinds_are_refused_and_stored_ones_kept() {
    let mut set = filled(&[("user.a", 1)]);
    for name in ["system.richacl", "gnu.translator", "plain", "system.data"] {
        assert!(
            matches!(set.set(name.as_bytes(), b"x", SetXattr::Either), Err(Error::NotSupported)),
            "{name}"
        );
    }
    assert!(matches!(set.set(b"user.", b"x", SetXattr::Either), Err(Error::BadArgument)));
    assert!(matches!(set.get(&[b"user.".as_slice(), &[b'n'; 256]].concat()), Err(Error::NameTooLong)));
    set.put(8, b"", Some(vec![1, 2, 3]));
    let (_, again) = stored(&set, AREA, 1024).unwrap();
    assert_eq!(again, set);
    assert_eq!(again.list(), [b"user.a"]);
}

#[test]
fn access_control_lists_are_stored_in_their_own_form() {
    let mut set = XattrSet::default();
    set.set(b"system.posix_acl_access", &acl().to_wire(), SetXattr::Either).unwrap();
    assert_eq!(set.attrs[0].value, acl::to_disk(&acl()));
    let (_, set) = stored(&set, AREA, 1024).unwrap();
    assert_eq!(set.get(b"system.posix_acl_access").unwrap(), acl().to_wire());
    assert_eq!(set.acl(AclKind::Access).unwrap(), Some(acl()));
    assert_eq!(set.acl(AclKind::Default).unwrap(), None);
    assert_eq!(set.list(), [b"system.posix_acl_access"]);
    let mut set = set;
    assert!(matches!(
        set.set(b"system.posix_acl_default", b"nonsense", SetXattr::Either),
        Err(Error::NotSupported)
    ));
    set.set(b"system.posix_acl_access", &[2, 0, 0, 0], SetXattr::Either).unwrap();
    assert!(set.is_empty());
    set.set_acl(AclKind::Default, Some(&acl()));
    assert_eq!(set.acl(AclKind::Default).unwrap(), Some(acl()));
}

/// Where an attribute block has the hash by which the kernel finds equal ones.
const HASH: std::ops::Range<usize> = 12..16;

#[test]
fn blocks_carry_hash_references_and_checksum() {
    let mut block = filled(&[("user.a", 9), ("security.x", 30)]).layout(0, 1024).unwrap().block.unwrap();
    let other = filled(&[("user.a", 8), ("security.x", 30)]).layout(0, 1024).unwrap().block.unwrap();
    assert_ne!(block[HASH], [0; 4]);
    assert_ne!(block[HASH], other[HASH]);
    let copy = block.clone();
    assert_eq!(block_refs(&block), 1);
    set_block_refs(&mut block, 7);
    assert!(block_refs(&block) == 7 && block[BLOCK_HEADER..] == copy[BLOCK_HEADER..]);
    seal_block(&mut block, 5, 1234);
    verify_block(&block, 5, 1234).unwrap();
    assert!(verify_block(&block, 5, 1235).is_err());
    block[800] ^= 1;
    assert!(matches!(verify_block(&block, 5, 1234), Err(Error::Corrupt { .. })));
}

#[test]
fn damaged_attributes_are_errors_and_never_panics() {
    let set = filled(&[("user.one", 30), ("user.two", 200), ("trusted.three", 3), ("security.four", 0)]);
    let layout = set.layout(AREA, 1024).unwrap();
    let mut rng = SmallRng::seed_from_u64(2);
    let mut errors = 0;
    for _ in 0..20_000 {
        let (mut inode, mut block) = (layout.inode.clone(), layout.block.clone().unwrap());
        for bytes in [&mut inode, &mut block] {
            let at = rng.random_range(0..bytes.len().min(120));
            bytes[at] = rng.random();
        }
        match XattrSet::parse(&inode, Some(&block), "test") {
            Ok(set) => drop(set.layout(AREA, 1024)),
            Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(errors > 5000, "{errors}");
}
