//! Directories against a map, over block sizes, hashes and checksums; damaged ones; speed by hand.

use super::super::dirent::{le16, le32};
use super::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// A directory in memory.
struct Memory {
    params: DirParams,
    block_bytes: usize,
    blocks: Vec<Vec<u8>>,
    indexed: bool,
    blocks_max: usize,
}

impl Memory {
    fn new(params: DirParams, block_bytes: usize) -> Memory {
        let mut first = vec![0xAA; block_bytes];
        init(&mut first, 12, 2, &params);
        Memory { params, block_bytes, blocks: vec![first], indexed: false, blocks_max: usize::MAX }
    }
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
        if self.blocks.len() >= self.blocks_max {
            return Err(Error::NoSpace("the test's disk"));
        }
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

fn params(hash_version: u8, checksums: bool) -> DirParams {
    DirParams {
        hash_seed: [1, 2, 3, 4],
        hash_version,
        unsigned: hash_version == 1,
        checksums,
        indexed_allowed: true,
        filetype: true,
        large_dir: false,
    }
}

type Model = BTreeMap<Vec<u8>, u32>;

fn walk(d: &mut Memory, step: usize) -> Vec<(Vec<u8>, u32)> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let before = all.len();
        visit(d, from, &mut |seen| {
            all.push((seen.name.to_vec(), seen.ino));
            from = seen.next;
            all.len() - before < step
        })
        .unwrap();
        if all.len() - before < step {
            return all;
        }
    }
}

/// Every block of an index is pointed at once, and every name lies where its hash belongs.
fn check_tree(d: &Memory) {
    let mut seen = BTreeSet::from([0]);
    if d.indexed {
        let levels = usize::from(d.blocks[0][30]) + 1;
        check_node(d, 0, 32, levels, (0, u32::MAX), &mut seen);
        assert_eq!(seen.len(), d.blocks.len(), "blocks that nothing points at");
    }
    for block in &d.blocks {
        if d.params.checksums {
            let mut block = block.clone();
            let kind = block_kind(&block);
            seal(&mut block, kind, 77).unwrap();
            verify(&block, 77, "here").unwrap();
            block[12] ^= 1;
            assert!(verify(&block, 77, "here").is_err());
        }
    }
}

fn check_node(d: &Memory, n: u32, base: usize, levels: usize, range: (u32, u32), seen: &mut BTreeSet<u32>) {
    let block = &d.blocks[n as usize];
    let count = usize::from(le16(block, base + 2));
    for i in 0..count {
        let low = if i == 0 { range.0 } else { le32(block, base + i * 8) };
        let high = if i + 1 < count { le32(block, base + i * 8 + 8) } else { range.1 };
        assert!(range.0 <= low && low <= high && high <= range.1, "order of an index");
        let child = le32(block, base + i * 8 + 4);
        assert!(seen.insert(child), "block {child} is pointed at twice");
        if levels > 1 {
            check_node(d, child, 8, levels - 1, (low, high), seen);
            continue;
        }
        let hasher = Hasher::new(d.params.hash_version, d.params.unsigned, d.params.hash_seed).unwrap();
        let bytes = &d.blocks[child as usize];
        for record in shape(d).records(bytes).map(Result::unwrap).filter(|record| record.ino != 0) {
            let hash = hasher.hash(record.name(bytes)).major;
            assert!(low & !1 <= hash && hash <= high, "a name outside its leaf");
        }
    }
}

fn check_all(d: &mut Memory, model: &Model) {
    check_tree(d);
    for step in [usize::MAX, 7] {
        let mut all = walk(d, step);
        assert_eq!(all[0], (b".".to_vec(), 12));
        assert_eq!(all[1], (b"..".to_vec(), 2));
        all.drain(..2);
        if step != usize::MAX {
            all.dedup();
        }
        assert!(all.len() >= model.len() && (d.params.hash_version == 0 || all.len() == model.len()));
        let names: Model = all.into_iter().collect();
        assert_eq!(&names, model);
    }
    assert_eq!(is_empty(d).unwrap(), model.is_empty());
}

fn name(rng: &mut SmallRng, space: u32) -> Vec<u8> {
    let number = rng.random_range(0..space);
    let width = (number.wrapping_mul(2_654_435_761) >> 24) as usize;
    let width = if number % 50 == 0 { width } else { width % 40 };
    format!("ü{number:0>width$}").into_bytes().into_iter().take(NAME_MAX).collect()
}

fn churn(d: &mut Memory, operations: u32, space: u32, seed: u64) -> Model {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model = Model::new();
    for operation in 0..operations {
        let name = name(&mut rng, space);
        let ino = operation + 100;
        let known = model.get(&name).copied();
        match rng.random_range(0..10) {
            0..6 => match insert(d, &name, ino, Kind::File) {
                Ok(()) => assert_eq!(model.insert(name, ino), None),
                Err(Error::Exists) => assert!(known.is_some()),
                Err(error) => panic!("{error}"),
            },
            6..8 => match remove(d, &name) {
                Ok(entry) => assert_eq!(model.remove(&name), Some(entry.ino)),
                Err(Error::NotFound) => assert_eq!(known, None),
                Err(error) => panic!("{error}"),
            },
            8 => match replace(d, &name, ino, Kind::Symlink) {
                Ok(entry) => assert_eq!(model.insert(name, ino), Some(entry.ino)),
                Err(Error::NotFound) => assert_eq!(known, None),
                Err(error) => panic!("{error}"),
            },
            _ => assert_eq!(lookup(d, &name).unwrap().map(|entry| entry.ino), known),
        }
    }
    model
}

#[test]
fn names_come_and_go_as_in_a_map_for_every_hash_and_block_size() {
    for block_bytes in [1024, 2048, 4096] {
        for checksums in [false, true] {
            for version in 0..3 {
                let mut d = Memory::new(params(version, checksums), block_bytes);
                let model = churn(&mut d, 12_000, 5_000, 9);
                assert!(d.indexed);
                check_all(&mut d, &model);
                for name in model.keys() {
                    remove(&mut d, name).unwrap();
                }
                check_all(&mut d, &Model::new());
            }
        }
    }
}

#[test]
fn blocks_of_64_kib_have_records_whose_length_does_not_fit_the_field() {
    for checksums in [false, true] {
        let mut d = Memory::new(params(1, checksums), 65536);
        let model = churn(&mut d, 15_000, 9_000, 2);
        assert!(d.indexed);
        check_all(&mut d, &model);
        for name in model.keys() {
            remove(&mut d, name).unwrap();
        }
        check_all(&mut d, &Model::new());
    }
}

#[test]
fn fifty_thousand_names_take_two_index_levels() {
    for (version, checksums, block_bytes) in
        [(1, true, 4096), (1, false, 1024), (2, true, 1024), (0, true, 1024)]
    {
        let mut d = Memory::new(params(version, checksums), block_bytes);
        let mut model = Model::new();
        for number in 0..50_000_u32 {
            let name = format!("a name of some length {number}").into_bytes();
            insert(&mut d, &name, number + 11, Kind::File).unwrap();
            model.insert(name, number + 11);
        }
        assert_eq!(d.blocks[0][30], 1, "indirect levels");
        check_all(&mut d, &model);
        for (name, ino) in &model {
            assert_eq!(lookup(&mut d, name).unwrap(), Some(Entry { ino: *ino, kind: Some(Kind::File) }));
        }
        assert_eq!(lookup(&mut d, b"not there").unwrap(), None);
    }
}

#[test]
fn names_with_one_hash_go_on_in_the_next_leaf() {
    let mut d = Memory::new(params(0, true), 1024);
    let hasher = Hasher::new(0, false, d.params.hash_seed).unwrap();
    let name = |n: u32| format!("{n:0>60}").into_bytes();
    let mut hashed: Vec<(u32, u32)> = (0..2_000_000).map(|n| (hasher.hash(&name(n)).major, n)).collect();
    hashed.sort_unstable();
    let mut model = Model::new();
    for pair in hashed.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        for number in [pair[0].1, pair[1].1] {
            match insert(&mut d, &name(number), number + 1, Kind::File) {
                Ok(()) => assert_eq!(model.insert(name(number), number + 1), None),
                Err(Error::Exists) => assert!(model.contains_key(&name(number))),
                Err(error) => panic!("{error}"),
            }
        }
    }
    let nodes = d.blocks.iter().enumerate().filter(|(_, block)| block_kind(block) == BlockKind::Index);
    let marked = |(n, block): (usize, &Vec<u8>)| {
        let base = if n == 0 { 32 } else { 8 };
        (1..usize::from(le16(block, base + 2))).filter(|i| le32(block, base + i * 8) & 1 == 1).count()
    };
    let marked: usize = nodes.map(marked).sum();
    assert!(model.len() > 1000 && marked > 10, "{} names, {marked} marks", model.len());
    check_all(&mut d, &model);
    for (name, ino) in &model {
        assert_eq!(lookup(&mut d, name).unwrap().map(|entry| entry.ino), Some(*ino));
        assert!(matches!(insert(&mut d, name, 1, Kind::File), Err(Error::Exists)));
    }
    for name in model.keys() {
        remove(&mut d, name).unwrap();
    }
    check_all(&mut d, &Model::new());
}

#[test]
fn a_full_index_is_no_space_unless_large_directories_are_allowed() {
    let long = |number: u32| format!("{number:0>250}").into_bytes();
    let mut d = Memory::new(params(1, true), 1024);
    let mut number = 0;
    let refused = loop {
        match insert(&mut d, &long(number), 11, Kind::File) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(number > 15_000, "{number}");
    check_tree(&d);
    assert_eq!(lookup(&mut d, &long(number)).unwrap(), None);
    d.params.large_dir = true;
    for more in number..number + 1000 {
        insert(&mut d, &long(more), 11, Kind::File).unwrap();
    }
    assert_eq!(d.blocks[0][30], 2);
    check_tree(&d);
    assert!((0..number + 1000).all(|n| lookup(&mut d, &long(n)).unwrap().is_some()));
}

#[test]
fn without_an_index_blocks_follow_one_another() {
    for checksums in [false, true] {
        let mut d = Memory::new(DirParams { indexed_allowed: false, ..params(1, checksums) }, 1024);
        let model = churn(&mut d, 6_000, 1_000, 3);
        assert!(!d.indexed && d.blocks.len() > 10);
        check_all(&mut d, &model);
    }
}

#[test]
fn an_index_that_is_no_longer_allowed_is_given_up_and_its_names_stay() {
    for checksums in [false, true] {
        let mut d = Memory::new(params(1, checksums), 1024);
        let mut model = churn(&mut d, 6_000, 3_000, 4);
        d.params.indexed_allowed = false;
        for number in 0..200_u32 {
            let name = format!("new {number}").into_bytes();
            insert(&mut d, &name, 11, Kind::File).unwrap();
            model.insert(name, 11);
        }
        assert!(!d.indexed);
        check_all(&mut d, &model);
    }
}

#[test]
fn a_walk_over_a_directory_that_changes_misses_and_repeats_nothing_that_stays() {
    for block_bytes in [1024, 4096] {
        let mut d = Memory::new(params(1, true), block_bytes);
        let name = |number: u32| format!("stays {number}").into_bytes();
        for number in 0..40 {
            insert(&mut d, &name(number), 11, Kind::File).unwrap();
        }
        let (mut seen, mut from, mut extra) = (Vec::new(), 0, 0_u32);
        loop {
            let before = seen.len();
            visit(&mut d, from, &mut |one| {
                seen.push(one.name.to_vec());
                from = one.next;
                false
            })
            .unwrap();
            if seen.len() == before {
                break;
            }
            for _ in 0..if extra < 2000 { 30 } else { 0 } {
                extra += 1;
                insert(&mut d, format!("passes {extra}").as_bytes(), 11, Kind::File).unwrap();
                if extra % 3 == 0 {
                    remove(&mut d, format!("passes {}", extra / 2).as_bytes()).unwrap();
                    insert(&mut d, format!("passes {}", extra / 2).as_bytes(), 12, Kind::File).unwrap();
                }
            }
        }
        assert!(d.indexed);
        for number in 0..40 {
            assert_eq!(seen.iter().filter(|seen| **seen == name(number)).count(), 1, "{number}");
        }
    }
}

#[test]
fn a_split_that_finds_no_space_leaves_a_valid_directory() {
    let mut d = Memory::new(params(1, true), 1024);
    d.blocks_max = 40;
    let mut model = Model::new();
    let refused = (0..5000_u32).find_map(|number| {
        let name = format!("{number:0>90}").into_bytes();
        let result = insert(&mut d, &name, 11, Kind::File);
        result.is_ok().then(|| model.insert(name, 11));
        result.err()
    });
    assert!(matches!(refused, Some(Error::NoSpace(_))));
    check_all(&mut d, &model);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let mut d = Memory::new(params(1, true), 1024);
    assert!(matches!(insert(&mut d, &[b'x'; 256], 11, Kind::File), Err(Error::NameTooLong)));
    assert!(matches!(lookup(&mut d, b""), Err(Error::BadArgument)));
    assert!(matches!(insert(&mut d, b"..", 11, Kind::File), Err(Error::Exists)));
    assert!(matches!(remove(&mut d, b"."), Err(Error::BadArgument)));
    insert(&mut d, &[b'x'; 255], 11, Kind::Fifo).unwrap();
    assert_eq!(lookup(&mut d, &[b'x'; 255]).unwrap(), Some(Entry { ino: 11, kind: Some(Kind::Fifo) }));
    set_parent(&mut d, 99).unwrap();
    assert_eq!(lookup(&mut d, b"..").unwrap().unwrap().ino, 99);
    assert_eq!(lookup(&mut d, b".").unwrap().unwrap().ino, 12);
}

#[test]
fn without_types_in_the_records_no_kind_is_told() {
    let mut d = Memory::new(DirParams { filetype: false, ..params(1, false) }, 1024);
    insert(&mut d, b"name", 11, Kind::Dir).unwrap();
    assert_eq!(lookup(&mut d, b"name").unwrap(), Some(Entry { ino: 11, kind: None }));
}

#[test]
fn damaged_blocks_are_errors_or_harmless_and_never_loops() {
    let mut rng = SmallRng::seed_from_u64(5);
    let mut good = Memory::new(params(1, true), 1024);
    churn(&mut good, 4000, 3000, 6);
    let mut errors = 0;
    for round in 0..4000 {
        let mut d = Memory { blocks: good.blocks.clone(), ..good };
        for _ in 0..3 {
            let n = if round % 2 == 0 { 0 } else { rng.random_range(0..d.blocks.len()) };
            let at = rng.random_range(0..1024) & !3;
            let value = if rng.random_bool(0.5) { rng.random() } else { rng.random_range(0..2000_u32) };
            d.blocks[n][at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let name = name(&mut rng, 3000);
        let mut left = 1_000_000;
        let results = [
            lookup(&mut d, &name).map(drop),
            visit(&mut d, 0, &mut |_| {
                left -= 1;
                left > 0
            }),
            remove(&mut d, &name).map(drop),
            insert(&mut d, &name, 11, Kind::File),
            is_empty(&mut d).map(drop),
        ];
        assert!(left > 0, "a walk without end");
        for result in results {
            match result {
                Ok(()) | Err(Error::Exists | Error::NotFound | Error::NoSpace(_)) => {}
                Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(errors > 1000, "{errors}");
}

/// Every record is found by its name whatever stands around it, in the last bytes of a block too; what is not there is not.
#[test]
fn a_name_is_found_wherever_it_stands_in_a_block() {
    let mut rng = SmallRng::seed_from_u64(5);
    let mut at_the_end = 0;
    for round in 0..400 {
        let params = params(1, round % 2 == 0);
        let shape = super::shape(&Memory::new(params, 1024));
        let mut block = vec![0xAA; 1024];
        init(&mut block, 12, 2, &params);
        let mut names = BTreeSet::new();
        for number in 0..200_u32 {
            let stem = rng.random_range(1..12);
            let mut name: Vec<u8> = (0..stem).map(|_| rng.random_range(b'a'..b'd')).collect();
            name.extend(if rng.random_bool(0.5) { format!("-{number:03}") } else { String::new() }.bytes());
            name.extend([&b""[..], b".c", b".txt", b".jpeg"][rng.random_range(0..4)]);
            if let Room::At(at) = shape.room(&block, &name).unwrap() {
                shape.place(&mut block, at, &name, number + 12, 1).unwrap();
                names.insert(name);
            }
        }
        let records: Vec<_> = shape.records(&block).map(|record| record.unwrap()).collect();
        at_the_end +=
            usize::from(records.last().unwrap().used() == records.last().unwrap().len && round % 2 == 1);
        for record in records.iter().filter(|record| record.ino != 0) {
            let hit = shape.find(&block, record.name(&block)).unwrap().expect("it is there");
            assert_eq!(hit.record.at, record.at);
        }
        for name in &names {
            for absent in [&[name, &b"x"[..]].concat(), &name[1..].to_vec()] {
                let there =
                    names.contains(absent) || [&b"."[..], b".."].contains(&&absent[..]) || absent.is_empty();
                assert!(there || shape.find(&block, absent).unwrap().is_none());
            }
        }
    }
    assert!(at_the_end > 5, "{at_the_end} blocks were full to their last byte");
}
