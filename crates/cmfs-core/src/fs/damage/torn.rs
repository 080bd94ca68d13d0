//! Pages of which a host that lost its cache kept the tags and not the data.

use super::*;
use crate::fs::Problem;
use crate::tags::{PageKind, SpareState};
use std::vec::Vec;

/// The pages that two states of a part differ in.
fn written(before: &mut RamNand, after: &mut RamNand) -> Vec<u32> {
    let mut differs = |page: &u32| {
        let (mut one, mut two) = ([0; 64], [0; 64]);
        before.read_spare(*page, &mut one).unwrap();
        after.read_spare(*page, &mut two).unwrap();
        one != two
    };
    (0..GEOMETRY.pages() as u32).filter(|page| differs(page)).collect()
}

/// Those of them in the block that was opened last.
fn unsynced(before: &mut RamNand, after: &mut RamNand) -> Vec<u32> {
    let mut found = Vec::new();
    for page in written(before, after) {
        let mut spare = [0; 64];
        after.read_spare(page, &mut spare).unwrap();
        if let SpareState::Tagged(tags) = TagPlace::for_spare(64).read(&spare)
            && matches!(tags.kind(), PageKind::Data { .. } | PageKind::Header { .. })
        {
            found.push((tags.sequence, page));
        }
    }
    let newest = found.iter().map(|(sequence, _)| *sequence).max();
    found.into_iter().filter(|(sequence, _)| Some(*sequence) == newest).map(|(_, page)| page).collect()
}

fn contents(fs: &mut TestFs, name: &[u8], what: &str) -> Vec<u8> {
    let id = fs.lookup(ROOT, name).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut bytes = std::vec![0; 300_000];
    let len = fs.read(id, 0, &mut bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    bytes.truncate(len);
    bytes
}

/// What a check finds, but for the pages without their data that this mount met.
fn problems(fs: &mut TestFs) -> Vec<Problem> {
    fs.check(true).unwrap().into_iter().filter(|problem| !problem.is_of_a_log_page()).collect()
}

fn pages(first: u8) -> Vec<u8> {
    (0..12u8).flat_map(|page| [first + page; 2048]).collect()
}

/// Another mount of a part, which has begun a session and synced what it wrote.
fn in_a_later_mount(fs: TestFs) -> TestFs {
    let mut fs = world::reopen(fs, true);
    let other = fs.create(ROOT, b"other", &node(Kind::File)).unwrap();
    fs.write(other, 0, &[1; 3000]).unwrap();
    fs.sync().unwrap();
    fs
}

/// A file that was synced, and was overwritten by a later mount: all that this one wrote is torn.
fn overwritten(layout: Layout) -> (RamNand, RamNvram, Config) {
    let mut fs = make(GEOMETRY, 16 << 10, small(layout));
    let id = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
    fs.write(id, 0, &pages(65)).unwrap();
    fs.sync().unwrap();
    let mut fs = in_a_later_mount(fs);
    let mut before = fs.nand().clone();
    fs.write(id, 0, &pages(97)).unwrap();
    let config = *fs.config();
    let (mut nand, nvram) = fs.into_media();
    let torn = written(&mut before, &mut nand);
    assert!(torn.len() >= 8, "{torn:?}");
    torn.into_iter().for_each(|page| nand.tear(page));
    nand.write_to_host();
    (nand, nvram.unwrap(), config)
}

#[test]
fn what_was_synced_is_there_though_the_first_write_after_the_host_lost_its_cache_was_cut_off_too() {
    for layout in LAYOUTS {
        let (base, memory, config) = overwritten(layout);
        for has_memory in [true, false] {
            for cut in 1..60 {
                let what = format!("{layout:?}, NVRAM {has_memory}, cut {cut}");
                let power = Power::default();
                let nand = base.copy_on(power.clone());
                let nvram = has_memory.then(|| memory.copy_on(power.clone()));
                power.cut_in(cut, Torn::All);
                power.set_luck(u64::MAX);
                let media = match Fs::open(nand, nvram, config) {
                    Ok(mut fs) => {
                        let done = fs.create(ROOT, b"more", &node(Kind::File)).and_then(|id| {
                            fs.write(id, 0, &[5; 30_000])?;
                            fs.sync()
                        });
                        assert!(matches!(done, Ok(()) | Err(Error::Gone)), "{what}: {done:?}");
                        fs.into_media()
                    }
                    Err(Error::Gone) => continue,
                    Err(error) => panic!("{what}: {error}"),
                };
                power.on();
                for nvram in [media.1, None] {
                    let mut fs: TestFs = Fs::open(media.0.clone(), nvram, config).unwrap();
                    assert!(contents(&mut fs, b"file", &what) == pages(65), "{what}");
                    assert_eq!(problems(&mut fs), [], "{what}");
                }
            }
        }
    }
}

/// Once more and once more: every list goes on with those before it, until their blocks are erased.
#[test]
fn what_was_synced_is_there_however_often_the_host_loses_its_cache() {
    for layout in LAYOUTS {
        let (mut nand, nvram, config) = overwritten(layout);
        let mut nvram = Some(nvram);
        for round in 0..150 {
            let what = format!("{layout:?}, round {round}");
            let mut fs: TestFs = Fs::open(nand, nvram, config).unwrap();
            assert!(contents(&mut fs, b"file", &what) == pages(65), "{what}");
            assert_eq!(problems(&mut fs), [], "{what}");
            if round % 4 == 1 {
                // What the NVRAM was told is what the next mount finds.
                let objects = fs.object_count();
                fs.sync().unwrap();
                fs = world::reopen(fs, true);
                assert_ne!(fs.report().kind, MountKind::Scanned, "{what}: {}", fs.report().why);
                assert_eq!(fs.object_count(), objects, "{what}");
                assert!(contents(&mut fs, b"file", &what) == pages(65), "{what}");
            }
            let mut before = fs.nand().clone();
            let id = fs.lookup(ROOT, b"file").unwrap();
            fs.write(id, 0, &pages(97)).unwrap_or_else(|error| panic!("{what}: {error}"));
            (nand, nvram) = fs.into_media();
            unsynced(&mut before, &mut nand).into_iter().for_each(|page| nand.tear(page));
            nvram = nvram.filter(|_| round % 3 > 0);
            if nvram.is_none() {
                nvram = Some(RamNvram::new(16 << 10, nand.power()));
            }
        }
    }
}

/// The header that cut a file is torn: whatever the next mount shows stays, and what a later cut took away, too.
#[test]
fn what_was_cut_off_does_not_come_back_though_the_header_that_cut_it_was_torn() {
    for layout in LAYOUTS {
        for memory in [true, false] {
            let what = format!("{layout:?}, NVRAM {memory}");
            let mut fs = make(GEOMETRY, 16 << 10, small(layout));
            let one = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
            let two = fs.create(ROOT, b"other", &node(Kind::File)).unwrap();
            for page in 0..98u64 {
                fs.write(one, page * 2048, &[b'S'; 2048]).unwrap();
                fs.write(two, page * 2048, &[b'g'; 2048]).unwrap();
            }
            let fill = fs.create(ROOT, b"fill", &node(Kind::File)).unwrap();
            fs.write(fill, 0, &[1; 300_000]).unwrap();
            let mut fs = world::reopen(fs, true);
            fs.write(fill, 0, &[2; 250_000]).unwrap();
            fs.sync().unwrap();
            let mut before = fs.nand().clone();
            let id = fs.lookup(ROOT, b"file").unwrap();
            fs.truncate(id, 4096).unwrap();
            let mut cut = fs.nand().clone();
            fs.write(fill, 0, &[3; 20_000]).unwrap();
            let config = *fs.config();
            let (mut nand, nvram) = fs.into_media();
            let mut blocks: Vec<u32> = written(&mut before, &mut nand).iter().map(|page| page / 64).collect();
            blocks.dedup();
            assert_eq!(blocks.len(), 1, "{what}: another block was opened, which syncs");
            written(&mut before, &mut cut).into_iter().for_each(|page| nand.tear(page));
            nand.write_to_host();
            let mut fs: TestFs = Fs::open(nand, nvram.filter(|_| memory), config).unwrap();
            fs.sync_object(id).unwrap();
            fs.write(fill, 0, &[4; 300_000]).unwrap();
            fs.sync().unwrap();
            fs.truncate(id, 200_000).unwrap();
            fs.sync().unwrap();
            let is = contents(&mut fs, b"file", &what);
            for round in 0..60u8 {
                fs.write(fill, 0, &[round; 300_000]).unwrap();
                fs.sync().unwrap();
            }
            let (nand, _) = fs.into_media();
            let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
            assert!(contents(&mut fs, b"file", &what) == is, "{what}: it is not what was synced");
        }
    }
}

/// Nearly full, so that the first write after the host lost its cache has to clean.
#[test]
fn a_full_part_whose_host_lost_its_cache_can_be_emptied() {
    for layout in LAYOUTS {
        for changes in 1..40u64 {
            let what = format!("{layout:?}, {changes} changes");
            let mut fs = make(GEOMETRY, 16 << 10, small(layout));
            let mut count = 0u64;
            loop {
                let made = fs.create(ROOT, format!("f{count}").as_bytes(), &node(Kind::File));
                match made.and_then(|id| fs.write(id, 0, &[count as u8; 30_000])) {
                    Ok(()) => count += 1,
                    Err(Error::NoSpace) => break,
                    Err(error) => panic!("{what}: {error}"),
                }
            }
            fs.sync().unwrap();
            let change = |fs: &mut TestFs, number: u64| {
                let id = fs.lookup(ROOT, format!("f{}", number % count).as_bytes()).unwrap();
                fs.write(id, number % 7 * 4096, &[200; 4096])
            };
            for number in 0..changes {
                assert!(matches!(change(&mut fs, number * 31), Ok(()) | Err(Error::NoSpace)), "{what}");
                fs.sync().unwrap();
            }
            let mut before = fs.nand().clone();
            for number in 0..4 {
                assert!(matches!(change(&mut fs, number * 17), Ok(()) | Err(Error::NoSpace)), "{what}");
            }
            let config = *fs.config();
            let (mut nand, nvram) = fs.into_media();
            unsynced(&mut before, &mut nand).into_iter().take(2).for_each(|page| nand.tear(page));
            nand.write_to_host();
            let mut fs: TestFs = Fs::open(nand, nvram, config).unwrap();
            for number in 0..count {
                let gone = fs.unlink(ROOT, format!("f{number}").as_bytes(), false);
                gone.unwrap_or_else(|error| panic!("{what}: f{number}: {error}"));
            }
            fs.update().unwrap();
        }
    }
}

/// `mv a b; mv z a`, and the host loses its cache with the data of the first header: the older state of `a` counts, so that two
/// entries have one name. A repair gives the older one another.
#[test]
fn of_two_entries_of_one_name_a_repair_gives_the_older_one_another() {
    for layout in LAYOUTS {
        for has_memory in [true, false] {
            let what = format!("{layout:?}, NVRAM {has_memory}");
            let mut fs = make(GEOMETRY, 16 << 10, small(layout));
            let a = fs.create(ROOT, b"a", &node(Kind::File)).unwrap();
            fs.write(a, 0, &pages(65)).unwrap();
            let z = fs.create(ROOT, b"z", &node(Kind::File)).unwrap();
            fs.write(z, 0, &pages(97)).unwrap();
            fs.sync().unwrap();
            let mut fs = in_a_later_mount(fs);
            let mut before = fs.nand().clone();
            fs.rename(ROOT, b"a", ROOT, b"b", false).unwrap();
            let torn = written(&mut before, &mut fs.nand().clone());
            assert!(!torn.is_empty(), "{what}");
            fs.rename(ROOT, b"z", ROOT, b"a", false).unwrap();
            let config = *fs.config();
            let (mut nand, nvram) = fs.into_media();
            torn.into_iter().for_each(|page| nand.tear(page));
            nand.write_to_host();
            let mut fs: TestFs = Fs::open(nand, nvram.filter(|_| has_memory), config).unwrap();
            let named = |fs: &mut TestFs| {
                let problems = fs.check(true).unwrap();
                problems
                    .iter()
                    .filter(|problem| problem.is_of_a_name())
                    .map(|problem| problem.object)
                    .collect::<Vec<_>>()
            };
            assert_eq!(named(&mut fs), [a], "{what}");
            assert_eq!(fs.tell_apart(), Ok(1), "{what}");
            assert_eq!(fs.tell_apart(), Ok(0), "{what}");
            let new = format!("a~{a}");
            for nvram in [true, false] {
                fs.update().unwrap();
                let (nand, memory) = fs.into_media();
                fs = Fs::open(nand, memory.filter(|_| nvram), config).unwrap();
                assert_eq!(named(&mut fs), [0; 0], "{what}");
                assert!(contents(&mut fs, b"a", &what) == pages(97), "{what}");
                assert!(contents(&mut fs, new.as_bytes(), &what) == pages(65), "{what}");
                assert_eq!(fs.lookup(ROOT, b"z"), Err(Error::NotFound), "{what}");
            }
        }
    }
}

/// One page more that rots, and be it the one with the newest list of torn pages.
#[test]
fn the_list_of_torn_pages_has_a_copy() {
    for layout in LAYOUTS {
        for has_memory in [true, false] {
            let (nand, nvram, config) = overwritten(layout);
            let mut fs: TestFs = Fs::open(nand, Some(nvram), config).unwrap();
            let other = fs.create(ROOT, b"third", &node(Kind::File)).unwrap();
            fs.write(other, 0, &[7; 30_000]).unwrap();
            let (mut nand, nvram) = fs.close().unwrap();
            for page in record_pages(&mut nand) {
                for spoil in [RamNand::spoil as Spoil, RamNand::blank] {
                    let what = format!("{layout:?}, NVRAM {has_memory}, page {page}");
                    let mut nand = nand.clone();
                    spoil(&mut nand, page);
                    let mut nvram = nvram.clone().filter(|_| has_memory);
                    for mount in 0..3 {
                        let what = format!("{what}, mount {mount}");
                        let mut fs: TestFs = Fs::open(nand, nvram, config).unwrap();
                        assert!(contents(&mut fs, b"file", &what) == pages(65), "{what}");
                        assert!(contents(&mut fs, b"third", &what) == [7; 30_000], "{what}");
                        fs.create(ROOT, format!("m{mount}").as_bytes(), &node(Kind::File)).unwrap();
                        (nand, nvram) = fs.close().unwrap();
                        nvram = nvram.filter(|_| mount > 0);
                    }
                }
            }
        }
    }
}
