//! Directories in real images: ours for e2fsck and the kernel, the kernel's for us.

use crate::ext4_image::{Image, run};
use bimetal::Result;
use bimetal::checksum::crc32c_raw;
use bimetal::fs::Kind;
use bimetal::fs::ext4::dir::{self, DirBlocks, DirParams};
use bimetal::fs::ext4::hash::Hasher;
use std::collections::BTreeSet;
use std::fs;

/// A directory's blocks in memory.
struct Memory {
    params: DirParams,
    block_bytes: usize,
    blocks: Vec<Vec<u8>>,
    indexed: bool,
}

impl DirBlocks for Memory {
    fn params(&self) -> DirParams {
        self.params
    }
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }
    fn count(&self) -> u32 {
        self.blocks.len() as u32
    }
    fn read(&mut self, n: u32) -> Result<&[u8]> {
        Ok(&self.blocks[n as usize])
    }
    fn edit(&mut self, n: u32) -> Result<&mut [u8]> {
        Ok(&mut self.blocks[n as usize])
    }
    fn append(&mut self) -> Result<u32> {
        self.blocks.push(vec![0x55; self.block_bytes]);
        Ok(self.blocks.len() as u32 - 1)
    }
    fn indexed(&self) -> bool {
        self.indexed
    }
    fn set_indexed(&mut self, on: bool) {
        self.indexed = on;
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// What the superblock says about directories, and the seed of all checksums.
fn superblock(image: &Image) -> (DirParams, u32) {
    let bytes = image.bytes();
    let block = &bytes[1024..2048];
    let (compat, incompat, ro_compat) = (word(block, 0x5C), word(block, 0x60), word(block, 0x64));
    let params = DirParams {
        hash_seed: [0, 1, 2, 3].map(|n| word(block, 0xEC + n * 4)),
        hash_version: block[0xFC],
        unsigned: word(block, 0x160) & 2 != 0,
        checksums: ro_compat & 0x400 != 0,
        indexed_allowed: compat & 0x20 != 0,
        filetype: incompat & 2 != 0,
        large_dir: incompat & 0x4000 != 0,
    };
    (params, crc32c_raw(!0, &block[0x68..0x78]))
}

/// A number that `debugfs` prints after a label.
fn number(text: &str, label: &str) -> u64 {
    let after = text.split(label).nth(1).unwrap_or_else(|| panic!("no {label} in {text}"));
    after.split_whitespace().next().unwrap().parse().unwrap()
}

/// Inode number and checksum seed of a file.
fn inode(image: &Image, file: &str, fs_seed: u32) -> (u32, u32) {
    let said = image.debugfs(&[&format!("stat {file}")]);
    let (ino, generation) = (number(&said, "Inode: ") as u32, number(&said, "Generation: ") as u32);
    (ino, crc32c_raw(crc32c_raw(fs_seed, &ino.to_le_bytes()), &generation.to_le_bytes()))
}

/// Puts a directory of these names into an image; all of them stand for one file.
fn plant(image: &Image, block_bytes: usize, names: &[Vec<u8>]) {
    let (params, fs_seed) = superblock(image);
    let build = |own: u32, target: u32| {
        let mut first = vec![0; block_bytes];
        dir::init(&mut first, own, 2, &params);
        let mut memory = Memory { params, block_bytes, blocks: vec![first], indexed: false };
        for name in names {
            dir::insert(&mut memory, name, target, Kind::File).unwrap();
        }
        // Some go and come back, so that blocks are not as freshly split.
        for name in names.iter().step_by(5) {
            dir::remove(&mut memory, name).unwrap();
        }
        for name in names.iter().step_by(5) {
            dir::insert(&mut memory, name, target, Kind::File).unwrap();
        }
        memory
    };
    let space = image.path().with_file_name("space");
    fs::write(&space, vec![1; build(1, 1).blocks.len() * block_bytes]).unwrap();
    let space = space.display();
    image.debugfs(&[&format!("write {space} d"), "write /etc/hostname target"]);
    let ((own, seed), (target, _)) = (inode(image, "d", fs_seed), inode(image, "target", fs_seed));
    let mut memory = build(own, target);
    let places = image.blocks_of("d");
    assert_eq!(places.len(), memory.blocks.len());
    assert_eq!(params.large_dir, memory.blocks[0][30] == 2, "three levels");
    for (place, block) in places.into_iter().zip(&mut memory.blocks) {
        if params.checksums {
            let kind = dir::block_kind(block);
            dir::seal(block, kind, seed).unwrap();
        }
        image.put_block(place, block);
    }
    let flags = if memory.indexed { 0x8_1000 } else { 0x8_0000 };
    let own_ino = format!("<{own}>");
    image.debugfs(&[
        &format!("sif {own_ino} mode 040755"),
        &format!("sif {own_ino} flags {flags:#x}"),
        &format!("sif {own_ino} links_count 2"),
        "unlink d",
        &format!("ln {own_ino} d"),
        "sif / links_count 4",
        &format!("sif target links_count {}", names.len() + 1),
        "set_bg 0 used_dirs_count 3",
        "set_bg 0 checksum calc",
    ]);
}

/// Reads a directory out of an image, with its checksums checked.
fn harvest(image: &Image, block_bytes: usize, file: &str) -> Memory {
    let (params, fs_seed) = superblock(image);
    let (_, seed) = inode(image, file, fs_seed);
    let said = image.debugfs(&[&format!("stat {file}")]);
    let flags = said.split("Flags: 0x").nth(1).unwrap().split_whitespace().next().unwrap();
    let indexed = u32::from_str_radix(flags, 16).unwrap() & 0x1000 != 0;
    let bytes = image.bytes();
    let count = number(&said, "Size: ") as usize / block_bytes;
    let places = image.blocks_of(file);
    let blocks: Vec<Vec<u8>> =
        places.iter().rev().take(count).rev().map(|place| image.block(&bytes, *place).to_vec()).collect();
    if params.checksums {
        blocks.iter().for_each(|block| dir::verify(block, seed, file).unwrap());
    }
    Memory { params, block_bytes, blocks, indexed }
}

fn names(count: u32, width: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("na\u{ef}ve name {n:0>width$}").into_bytes()).collect()
}

fn shown(memory: &mut Memory) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    dir::visit(memory, 0, &mut |one| {
        all.insert(one.name.to_vec());
        true
    })
    .unwrap();
    all
}

/// Plants a directory, has e2fsck check it, lets the kernel read and change it, and reads it again.
fn both_ways(block_bytes: usize, options: &[&str], hash: &str, names: &[Vec<u8>]) {
    let image = Image::make(64, block_bytes, options);
    let said = run("tune2fs", &["-E", &format!("hash_alg={hash}"), &image.path_text()]);
    assert_eq!(said.code, 0, "{}", said.text);
    plant(&image, block_bytes, names);
    let said = image.e2fsck(&["-fn"]);
    assert_eq!(said.code, 0, "{}", said.text);
    let mounted = match image.mount() {
        Ok(mounted) => mounted,
        Err(why) => return println!("skipped the kernel's part: {why}"),
    };
    use std::os::unix::ffi::OsStrExt;
    let path = |name: &[u8]| mounted.path().join("d").join(std::ffi::OsStr::from_bytes(name));
    assert!(names.iter().all(|name| fs::symlink_metadata(path(name)).is_ok()));
    assert_eq!(fs::read_dir(mounted.path().join("d")).unwrap().count(), names.len());
    let removed = names.len() / 10;
    names[..removed].iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    let added: Vec<Vec<u8>> = (0..500).map(|n| format!("the kernel's {n}").into_bytes()).collect();
    added.iter().for_each(|name| fs::write(path(name), "").unwrap());
    drop(mounted);
    let said = image.e2fsck(&["-fn"]);
    assert_eq!(said.code, 0, "{}", said.text);
    let mut memory = harvest(&image, block_bytes, "d");
    let mut expected: BTreeSet<Vec<u8>> = names[removed..].iter().chain(&added).cloned().collect();
    assert!(expected.iter().all(|name| dir::lookup(&mut memory, name).unwrap().is_some()));
    assert!(names[..removed].iter().all(|name| dir::lookup(&mut memory, name).unwrap().is_none()));
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    assert_eq!(shown(&mut memory), expected);
}

#[test]
fn small_directories_pass_to_and_from_the_kernel() {
    both_ways(1024, &[], "half_md4", &names(10, 3));
    both_ways(4096, &["-O", "^metadata_csum,^64bit"], "half_md4", &names(500, 3));
}

#[test]
fn indexed_directories_pass_to_and_from_the_kernel_with_every_hash() {
    for hash in ["legacy", "half_md4", "tea"] {
        both_ways(4096, &[], hash, &names(20_000, 60));
        both_ways(1024, &["-O", "^metadata_csum"], hash, &names(9_000, 40));
    }
}

#[test]
fn three_levels_pass_to_and_from_the_kernel() {
    both_ways(1024, &["-O", "large_dir"], "half_md4", &names(32_000, 240));
}

#[test]
fn names_with_one_hash_in_two_leaves_pass_to_and_from_the_kernel() {
    let hasher = Hasher::new(0, false, [0; 4]).unwrap();
    let name = |n: u32| format!("{n:0>60}").into_bytes();
    let mut hashed: Vec<(u32, u32)> = (0..2_000_000).map(|n| (hasher.hash(&name(n)).major, n)).collect();
    hashed.sort_unstable();
    let twins = hashed.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let twins: BTreeSet<u32> = twins.flat_map(|pair| [pair[0].1, pair[1].1]).collect();
    assert!(twins.len() > 1000, "{}", twins.len());
    both_ways(1024, &[], "legacy", &twins.into_iter().map(name).collect::<Vec<_>>());
}

#[test]
fn directories_without_an_index_pass_to_and_from_the_kernel() {
    both_ways(1024, &["-O", "^dir_index"], "half_md4", &names(2_000, 30));
}

#[test]
fn hashes_are_those_of_e2fsprogs() {
    let seed = "8f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let words: Vec<u8> = seed
        .replace('-', "")
        .as_bytes()
        .chunks(2)
        .map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap())
        .collect();
    let words = [0, 4, 8, 12].map(|at| word(&words, at));
    let names: Vec<String> = (0..200_u32)
        .map(|n| {
            (0..1 + n as usize)
                .map(|i| char::from_u32(0x61 + (n * 7 + i as u32 * 13) % 150).unwrap())
                .collect()
        })
        .map(|name: String| {
            name.chars().filter(|c| !c.is_control() && *c != '\u{ad}' && *c != '\u{a0}').collect::<String>()
        })
        .map(|name| name.chars().filter(|c| !"{|}~".contains(*c)).take(120).collect())
        .filter(|name: &String| !name.is_empty())
        .collect();
    let image = Image::make(8, 1024, &[]);
    for version in 0..6_u8 {
        let requests: Vec<String> =
            names.iter().map(|name| format!("dx_hash -h {version} -s {seed} {name}")).collect();
        let said = image.debugfs(&requests.iter().map(String::as_str).collect::<Vec<_>>());
        let hasher = Hasher::new(version, false, words).unwrap();
        let mut compared = 0;
        for line in said.lines().filter(|line| line.starts_with("Hash of ")) {
            let (name, rest) = line["Hash of ".len()..].split_once(" is 0x").unwrap();
            let (major, minor) = rest.trim_end_matches(')').split_once(" (minor 0x").unwrap();
            let hash = hasher.hash(name.as_bytes());
            let hex = |text: &str| u32::from_str_radix(text, 16).unwrap();
            assert_eq!((hash.major, hash.minor), (hex(major), hex(minor)), "{version} {name}");
            compared += 1;
        }
        assert!(compared == names.len(), "{compared} of {}: {said}", names.len());
    }
}
