//! Access times as the mount options say.

use super::*;
use bimetal_base::time::Stamp;
use bimetal_vfs::SetTime;

const OLD: Stamp = Stamp { sec: 1_000_000_000, nsec: 5 };

/// Sets the access time of an inode, after a change of it or long before.
fn set_atime(fs: &NfHybrid, ino: Ino, atime: Stamp) {
    fs.setattr(ino, &SetAttr { atime: Some(SetTime::To(atime)), ..SetAttr::default() }).unwrap();
}

/// Which of a file, a link and a directory have their access time renewed by a read: first of an old one, then of
/// one that is later than all other times.
fn renewed(access_times: AccessTimes) -> Option<[[bool; 3]; 2]> {
    let (disk, ssd) = halves(16, 8)?;
    let fs = open(&disk, Some(&ssd), Options { access_times, ..manual() }).unwrap();
    let file = create(&fs, "file", b"contents");
    let node = NewNode { kind: Kind::Symlink, perm: 0o777, rdev: 0, target: b"file" };
    let link = fs.create(&Caller::default(), ROOT_INO, b"link", &node).unwrap().ino;
    let node = NewNode { kind: Kind::Dir, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"dir", &node).unwrap().ino;
    let later = Stamp { sec: fs.getattr(file).unwrap().ctime.sec + 3600, nsec: 0 };
    let answer = [OLD, later].map(|atime| {
        [file, link, dir].iter().for_each(|ino| set_atime(&fs, *ino, atime));
        fs.read(file, 0, 10).unwrap().get().unwrap();
        fs.readlink(link).unwrap();
        fs.readdir(dir, 0, &mut |_| true).unwrap();
        [file, link, dir].map(|ino| fs.getattr(ino).unwrap().atime != atime)
    });
    fs.shutdown().unwrap();
    Some(answer)
}

/// As the kernel's ext4: what is shown is what is stored, at once and not only after the next mount.
#[test]
fn a_time_beyond_what_an_inode_can_hold_is_shown_as_it_is_stored() {
    for (inode_bytes, last, nsec) in [("256", 0x3_7FFF_FFFF, 7), ("128", i64::from(i32::MAX), 0)] {
        let options = ["-b", "4096", "-I", inode_bytes];
        let Some((disk, ssd)) = halves_with(16, 8, &ssd::Config::default(), &options) else { return };
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let ino = create(&fs, "file", b"x");
        let to = |sec| Some(SetTime::To(Stamp { sec, nsec: 7 }));
        let set = SetAttr { atime: to(i64::MAX), mtime: to(5), ..SetAttr::default() };
        let shown = fs.setattr(ino, &set).unwrap();
        assert_eq!((shown.atime, shown.mtime), (Stamp { sec: last, nsec: 0 }, Stamp { sec: 5, nsec }));
        assert!(nsec > 0 || shown.ctime.nsec == 0, "{:?}", shown.ctime);
        fs.shutdown().unwrap();
        let fs = open(&disk, Some(&ssd), manual()).unwrap();
        let stored = fs.lookup(ROOT_INO, b"file").unwrap();
        assert_eq!((stored.atime, stored.mtime, stored.ctime), (shown.atime, shown.mtime, shown.ctime));
        fs.shutdown().unwrap();
    }
}

#[test]
fn reads_renew_access_times_as_the_options_say() {
    let with = |renew, dirs| renewed(AccessTimes { renew, dirs });
    let Some(relative) = with(Renew::Relative, true) else { return };
    assert_eq!(relative, [[true; 3], [false; 3]], "relatime");
    assert_eq!(with(Renew::Always, true).unwrap(), [[true; 3]; 2], "strictatime");
    assert_eq!(with(Renew::Never, true).unwrap(), [[false; 3]; 2], "noatime");
    assert_eq!(with(Renew::Always, false).unwrap(), [[true, true, false]; 2], "strictatime,nodiratime");
    assert_eq!(with(Renew::Relative, false).unwrap()[0], [true, true, false], "nodiratime");
}

#[test]
fn a_listing_with_attributes_renews_the_directorys_time_once() {
    let Some((disk, ssd)) = halves(16, 8) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    set_atime(&fs, ROOT_INO, OLD);
    fs.readdir_attrs(ROOT_INO, 0, &mut |_, _| true).unwrap();
    assert_ne!(fs.getattr(ROOT_INO).unwrap().atime, OLD);
    fs.shutdown().unwrap();
}
