//! Extended attributes and access control lists in real images: the kernel's for us, ours for e2fsck and the kernel.

use crate::ext4_image::{Image, Mounted, run};
use bimetal::checksum::crc32c_raw;
use bimetal::fs::SetXattr;
use bimetal::fs::acl::{Acl, AclEntry, AclTag};
use bimetal::fs::ext4::xattr::{AclKind, XattrSet, block_refs, seal_block, verify_block};
use std::fs;
use std::path::Path;

const BLOCK: usize = 1024;

/// Where an inode lies in an image, in bytes, and how long it is.
struct Place {
    inode: usize,
    inode_bytes: usize,
    seed: u32,
    checksums: bool,
}

impl Place {
    fn find(image: &Image, file: &str) -> Place {
        let said = image.debugfs(&[&format!("imap {file}")]);
        let number = |label: &str| {
            let after = said.split(label).nth(1).unwrap_or_else(|| panic!("{said}"));
            after.trim_start().split([',', '\n']).next().unwrap().trim().to_string()
        };
        let block: usize = number("located at block").parse().unwrap();
        let offset = usize::from_str_radix(number("offset").trim_start_matches("0x"), 16).unwrap();
        let superblock = &image.bytes()[1024..2048];
        let half = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
        Place {
            inode: block * BLOCK + offset,
            inode_bytes: half(0x58).into(),
            seed: crc32c_raw(!0, &superblock[0x68..0x78]),
            checksums: half(0x64) & 0x400 != 0,
        }
    }

    /// The part of the inode that attributes may use.
    fn area(&self, disk: &[u8]) -> std::ops::Range<usize> {
        let end = self.inode + self.inode_bytes;
        if self.inode_bytes == 128 {
            return end..end;
        }
        let extra = u16::from_le_bytes([disk[self.inode + 128], disk[self.inode + 129]]);
        self.inode + 128 + usize::from(extra)..end
    }

    /// The attribute block, 0 for none.
    fn block(&self, disk: &[u8]) -> u64 {
        let at = self.inode + 0x68;
        u32::from_le_bytes(disk[at..at + 4].try_into().unwrap()).into()
    }

    fn read(&self, image: &Image) -> (XattrSet, Option<Vec<u8>>) {
        let disk = image.bytes();
        let number = self.block(&disk);
        let block = (number != 0).then(|| image.block(&disk, number).to_vec());
        if let (Some(block), true) = (&block, self.checksums) {
            verify_block(block, self.seed, number).unwrap();
        }
        (XattrSet::parse(&disk[self.area(&disk)], block.as_deref(), "test").unwrap(), block)
    }

    /// Stores a set where the inode keeps its attributes; it needs a block exactly if there is one.
    fn write(&self, image: &Image, set: &XattrSet) {
        let mut disk = image.bytes();
        let (area, number) = (self.area(&disk), self.block(&disk));
        let layout = set.layout(area.len(), BLOCK).unwrap();
        disk[area].copy_from_slice(&layout.inode);
        let mut block = layout.block.unwrap();
        if self.checksums {
            seal_block(&mut block, self.seed, number);
        }
        let at = number as usize * BLOCK;
        disk[at..at + BLOCK].copy_from_slice(&block);
        fs::write(image.path(), disk).unwrap();
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> String {
    let said = run(program, arguments);
    assert_eq!(said.code, 0, "{program} {arguments:?}: {}", said.text);
    said.text
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Attributes of all kinds on a file, more than an inode holds, and lists on a directory.
fn decorate(mounted: &Mounted) {
    let (file, dir) = (mounted.path().join("file"), mounted.path().join("dir"));
    fs::write(&file, "contents").unwrap();
    fs::create_dir(&dir).unwrap();
    for (name, value) in values() {
        succeeds("setfattr", &["-n", &name, "-v", &value, text(&file)]);
    }
    succeeds("setfacl", &["-m", "u:1000:rw,g:7:r,m::rw", text(&file)]);
    succeeds("setfacl", &["-d", "-m", "u:1000:rwx,g:7:rx", text(&dir)]);
    succeeds("setfattr", &["-n", "user.big", "-v", &"b".repeat(300), text(&dir)]);
}

fn values() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        (1..=9).map(|n| (format!("user.{}", "n".repeat(n)), "value ".repeat(n))).collect();
    all.push(("trusted.t".to_string(), "trusted".to_string()));
    all.push(("security.s".to_string(), "s".to_string()));
    all
}

fn list(entries: &[(AclTag, u8)]) -> Acl {
    Acl::new(entries.iter().map(|(tag, perm)| AclEntry { tag: *tag, perm: *perm })).unwrap()
}

fn both_ways(options: &[&str]) {
    let image = Image::make(8, BLOCK, options);
    match image.mount() {
        Ok(mounted) => decorate(&mounted),
        Err(why) => return println!("skipped: {why}"),
    }
    let (file, dir) = (Place::find(&image, "file"), Place::find(&image, "dir"));
    let (mut set, block) = file.read(&image);
    for (name, value) in values() {
        assert_eq!(set.get(name.as_bytes()).unwrap(), value.as_bytes(), "{name}");
    }
    let expected = list(&[
        (AclTag::UserObj, 6),
        (AclTag::User(1000), 6),
        (AclTag::GroupObj, 4),
        (AclTag::Group(7), 4),
        (AclTag::Mask, 6),
        (AclTag::Other, 4),
    ]);
    assert_eq!(set.acl(AclKind::Access).unwrap(), Some(expected));
    assert!(dir.read(&image).0.acl(AclKind::Default).unwrap().is_some());
    let block = block.expect("more than the inode holds");
    assert_eq!(block_refs(&block), 1);
    let outer = XattrSet::parse(&[], Some(&block), "test").unwrap().layout(0, BLOCK).unwrap().block.unwrap();
    assert_eq!(outer[12..16], block[12..16], "the kernel's hash");

    set.set(b"user.nnn", b"another value", SetXattr::Replace).unwrap();
    set.remove(b"user.nnnnn").unwrap();
    set.set("user.größe".as_bytes(), &[7; 90], SetXattr::Create).unwrap();
    let acl = set.acl(AclKind::Access).unwrap().unwrap().with_mode(0o664);
    set.set_acl(AclKind::Access, Some(&acl));
    file.write(&image, &set);
    let said = image.e2fsck(&["-fn"]);
    assert_eq!(said.code, 0, "{}", said.text);
    let mounted = image.mount().unwrap();
    let path = mounted.path().join("file");
    let shown = succeeds("getfattr", &["-d", "-m", "-", "--absolute-names", text(&path)]);
    assert!(shown.contains("user.nnn=\"another value\""), "{shown}");
    assert!(shown.contains("user.gr") && !shown.contains("user.nnnnn="), "{shown}");
    assert!(shown.contains("trusted.t=\"trusted\"") && shown.contains("security.s=\"s\""), "{shown}");
    let shown = succeeds("getfacl", &["-n", "--absolute-names", text(&path)]);
    assert!(shown.contains("user:1000:rw-") && shown.contains("mask::rw-"), "{shown}");
}

#[test]
fn attributes_in_the_inode_and_a_block_pass_to_and_from_the_kernel() {
    both_ways(&["-I", "256", "-O", "^metadata_csum,^64bit"]);
}

#[test]
fn attributes_in_a_block_with_a_checksum_pass_to_and_from_the_kernel() {
    both_ways(&["-I", "128", "-O", "metadata_csum"]);
}

#[test]
fn files_with_equal_attributes_share_a_block_that_the_kernel_counts() {
    let image = Image::make(8, BLOCK, &["-I", "128"]);
    match image.mount() {
        Ok(mounted) => {
            for name in ["one", "two", "three"] {
                let path = mounted.path().join(name);
                fs::write(&path, "").unwrap();
                succeeds("setfattr", &["-n", "user.same", "-v", "the same", text(&path)]);
            }
        }
        Err(why) => return println!("skipped: {why}"),
    }
    let (set, block) = Place::find(&image, "two").read(&image);
    let block = block.unwrap();
    assert_eq!(block_refs(&block), 3);
    let ours = set.layout(0, BLOCK).unwrap().block.unwrap();
    assert!(ours[12..16] != [0; 4] && block[12..16] == ours[12..16] && block[32..] == ours[32..]);
}

#[test]
fn new_files_inherit_what_the_kernel_would_give_them() {
    let image = Image::make(8, BLOCK, &[]);
    let mounted = match image.mount() {
        Ok(mounted) => mounted,
        Err(why) => return println!("skipped: {why}"),
    };
    let defaults = ["u:1000:rwx,g:7:rx,o:rx", "u::rwx,g::rx,o::---", "u:5:r,m::r"];
    for (number, default) in defaults.iter().enumerate() {
        let dir = mounted.path().join(format!("dir{number}"));
        fs::create_dir(&dir).unwrap();
        succeeds("setfacl", &["-d", "-m", default, text(&dir)]);
        let script = format!("cd {0} && umask 077 && touch file && mkdir sub", text(&dir));
        succeeds("sh", &["-c", &script]);
    }
    let modes: Vec<Vec<u16>> = (0..defaults.len())
        .map(|number| {
            let mode = |name: &str| {
                let path = mounted.path().join(format!("dir{number}/{name}"));
                u16::from_str_radix(succeeds("stat", &["-c", "%a", text(&path)]).trim(), 8).unwrap()
            };
            vec![mode("file"), mode("sub")]
        })
        .collect();
    drop(mounted);
    for (number, modes) in modes.iter().enumerate() {
        let set = |name: &str| Place::find(&image, name).read(&image).0;
        let default = set(&format!("dir{number}")).acl(AclKind::Default).unwrap().unwrap();
        for (name, asked, is_dir, mode) in [("file", 0o666, false, modes[0]), ("sub", 0o777, true, modes[1])]
        {
            let inherited = default.inherit(asked, is_dir);
            let own = set(&format!("dir{number}/{name}"));
            assert_eq!(inherited.perm, mode, "{number} {name}");
            assert_eq!(inherited.access, own.acl(AclKind::Access).unwrap(), "{number} {name}");
            assert_eq!(inherited.default, own.acl(AclKind::Default).unwrap(), "{number} {name}");
        }
    }
}
