//! What the protocol does not say about a caller and `/proc` does.

use bimetal_vfs::Attr;
use bimetal_vfs::acl::Acl;
use std::fs;

/// The permission to write, of the three bits of an entry.
const WRITES: u8 = 2;

/// `CAP_FSETID`, capabilities(7).
const CAP_FSETID: u64 = 1 << 4;

/// `CAP_SYS_ADMIN`, capabilities(7).
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// `CAP_FOWNER`, capabilities(7).
const CAP_FOWNER: u64 = 1 << 3;

/// Whether a caller may take the set-ID bits off a file: as its owner, or as somebody who may write it, whose writes do. Of a
/// caller that is gone the group of the request is known.
pub(super) fn may_take_set_id(caller: (u32, u32, u32), file: &Attr, list: &Acl) -> bool {
    let (pid, uid, gid) = caller;
    if uid == 0 || uid == file.uid {
        return true;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let in_group = |group: u32| group == gid || is_in_group(&status, group);
    list.grants(WRITES, uid, file.gid, in_group) || has(&status, CAP_FOWNER)
}

/// Whether a caller, who is root, may do what only the administrator of the machine may: in a container root may not, nor in a user
/// name space of its own, where it has all capabilities over what is in that. One that is gone may not.
pub(super) fn may_administer(pid: u32) -> bool {
    let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let own = space("self");
    own.is_some()
        && own == space(&pid.to_string())
        && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| has(&status, CAP_SYS_ADMIN))
}

fn has(status: &str, capability: u64) -> bool {
    let set = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set & capability != 0)
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Whether someone who sets an access control list on a file of group `file_gid` thereby loses its set-group-ID
/// bit: they are neither of that group nor privileged.
///
/// The kernel says so with `FUSE_SETXATTR_EXT`, which fuser 0.18 cannot agree to (it reads the short form of
/// SETXATTR only). Setting a list is rare enough to ask `/proc` instead. A caller that is gone loses the bit.
pub(super) fn loses_sgid(pid: u32, uid: u32, gid: u32, file_gid: u32) -> bool {
    if uid == 0 || gid == file_gid {
        return false;
    }
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => !may_keep_sgid(&status, file_gid),
        Err(_) => true,
    }
}

fn may_keep_sgid(status: &str, file_gid: u32) -> bool {
    is_in_group(status, file_gid) || has(status, CAP_FSETID)
}

fn is_in_group(status: &str, gid: u32) -> bool {
    field(status, "Groups:")
        .is_some_and(|groups| groups.split_ascii_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_members_and_the_privileged_keep_the_bit() {
        let status = "Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t0000000000000000\n";
        assert!(may_keep_sgid(status, 24));
        assert!(!may_keep_sgid(status, 25));
        assert!(may_keep_sgid("Groups:\t\nCapEff:\t000001ffffffffff\n", 25));
        assert!(!may_keep_sgid("", 25));
    }

    #[test]
    fn root_without_the_capability_may_not_administer() {
        assert!(has("CapEff:\t000001ffffffffff\n", CAP_SYS_ADMIN));
        assert!(!has("CapEff:\t00000000a80425fb\n", CAP_SYS_ADMIN), "what root has in a container");
        assert!(!may_administer(u32::MAX));
    }
}
