//! Pages that cannot be read, or read as erased, and what becomes of them when their blocks are cleaned and scanned.

use super::*;
use crate::tags::{PageKind, SpareState};

/// What spoils a page of a part, by name.
const SPOILS: [(&str, Spoil); 3] = [
    ("unreadable", RamNand::spoil),
    ("read as erased", RamNand::blank),
    ("with wrong bits", |nand, page| (0..6).for_each(|bit| nand.flip(page, 999 + bit * 311))),
];

/// Six files in one full block, object by object; none of them is in the NVRAM by name.
fn files_in_a_block(layout: Layout) -> (RamNand, RamNvram, Config, std::vec::Vec<u32>) {
    let mut fs = make(GEOMETRY, 16 << 10, Config { names: Names::Off, ..small(layout) });
    let make_one = |number: u8| {
        let id = fs.create(ROOT, format!("f{number}").as_bytes(), &node(Kind::File)).unwrap();
        fs.write(id, 0, &alloc::vec![number; if number < 6 { 5000 } else { 100 * 2048 }]).unwrap();
        fs.sync_object(id).unwrap();
        id
    };
    let ids = (0..7).map(make_one).collect();
    let config = *fs.config();
    let (nand, nvram) = fs.close().unwrap();
    (nand, nvram.unwrap(), config, ids)
}

/// Moves all that is in a block; it is free then.
fn clean_block(fs: &mut TestFs, block: u32, what: &str) {
    fs.volume.log.leave(block);
    fs.volume.begin_cleaning(block).unwrap();
    while fs.volume.clean(64).unwrap() > 0 {
        if fs.volume.log.blocks.get(block).live == 0 {
            break;
        }
    }
    let entry = fs.volume.log.blocks.get(block);
    assert!(entry.live == 0 && entry.state == crate::blocks::BlockState::Emptied, "{what}: {entry:?}");
    fs.update().unwrap();
    while fs.volume.log.blocks.get(block).state != crate::blocks::BlockState::Erased {
        fs.volume.log.erase_one(&fs.volume.objects).unwrap();
    }
    fs.update().unwrap();
}

/// Of six files one has an error, to all who read it and to the check, and the others none.
fn one_has_an_error(fs: &mut TestFs, ids: &[u32], struck: u32, in_header: bool, what: &str) {
    let problems = fs.check(true).unwrap();
    assert!(problems.iter().any(|problem| problem.object == struck), "{what}: {problems:?}");
    assert!(problems.iter().all(|problem| problem.object == struck), "{what}: {problems:?}");
    let names = names_in(fs, ROOT);
    for (number, id) in (0u8..6).zip(ids.iter().copied()) {
        let mut bytes = [0xee; 5000];
        let read = fs.read(id, 0, &mut bytes);
        let name = names.iter().find(|(_, other)| *other == id).map(|(name, _)| name.clone());
        if id == struck && !in_header {
            assert!(matches!(read, Err(Error::Corrupt { .. })), "{what}: it reads as something: {read:?}");
        } else {
            assert!(read == Ok(5000) && bytes == [number; 5000], "{what}: file {number}: {read:?}");
        }
        let stand_in = id == struck && in_header;
        let expected = if stand_in { format!("damaged-{id}") } else { format!("f{number}") };
        assert_eq!(name.as_deref(), Some(expected.as_bytes()), "{what}: {names:?}");
    }
}

#[test]
fn what_cannot_be_read_stays_an_error_of_its_object_though_its_block_is_cleaned_and_erased() {
    for layout in LAYOUTS {
        let (nand, nvram, config, ids) = files_in_a_block(layout);
        for (how, spoil) in SPOILS {
            for (in_header, with_memory) in [(false, true), (false, false), (true, true), (true, false)] {
                let what = format!("{layout:?}, {how}, header {in_header}, NVRAM {with_memory}");
                let memory = |nvram: &RamNvram| with_memory.then(|| nvram.clone());
                let mut nand = nand.clone();
                let mut fs: TestFs = Fs::open(nand.clone(), memory(&nvram), config).unwrap();
                let page = if in_header {
                    fs.volume.objects.get(ids[2]).unwrap().header
                } else {
                    fs.pages(ids[2])[1]
                };
                spoil(&mut nand, page);
                let mut fs: TestFs = Fs::open(nand, memory(&nvram), config).unwrap();
                one_has_an_error(&mut fs, &ids, ids[2], in_header, &what);
                for round in 0..3 {
                    let object = fs.volume.objects.get(ids[2]).unwrap();
                    let page = if in_header { object.header } else { object.map.get(1).unwrap() };
                    clean_block(&mut fs, GEOMETRY.block_of(page), &format!("{what}, round {round}"));
                    one_has_an_error(&mut fs, &ids, ids[2], in_header, &format!("{what}, moved {round}"));
                    fs = world::reopen(fs, true);
                    one_has_an_error(&mut fs, &ids, ids[2], in_header, &format!("{what}, opened {round}"));
                    let (nand, _) = fs.into_media();
                    fs = Fs::open(nand, None, config).unwrap();
                    one_has_an_error(&mut fs, &ids, ids[2], in_header, &format!("{what}, scanned {round}"));
                }
                // It can be removed, and then nothing is wrong.
                let name = names_in(&mut fs, ROOT).into_iter().find(|(_, id)| *id == ids[2]).unwrap().0;
                fs.unlink(ROOT, &name, false).unwrap();
                assert_eq!(world::reopen(fs, true).check(true).unwrap(), [], "{what}, removed");
            }
        }
    }
}

/// Tags without error correction have no checksum, so that no copy could say that a page is lost.
#[test]
fn where_tags_have_no_checksum_a_block_with_a_page_that_cannot_be_read_is_kept() {
    let place = TagPlace { ecc: false, ..TagPlace::MTD };
    let extra = Extra { parent: ROOT, kind: Kind::File, size_or_target: 5000, shrink: false, shadows: false };
    let header =
        Header { kind: Kind::File, parent: ROOT, name: b"f"[..].into(), size: 5000, ..Header::default() };
    let mut nand = RamNand::new(GEOMETRY);
    for page in 0..4 {
        let (mut data, mut spare) = ([7; 2048], [0; 64]);
        let tags = match page {
            3 => Packed::header(0x1001, 0x101, &extra, 5000),
            index => Packed::data(0x1001, 0x101, index, if index < 2 { 2048 } else { 904 }),
        };
        if page == 3 {
            header.write(&mut data).unwrap();
        }
        place.write(&tags, &data, &mut spare);
        nand.program(page, &data, &spare).unwrap();
    }
    let config = Config { plain: true, ..small(Layout::Compact) };
    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
    fs.nand_mut().spoil(1);
    for _ in 0..2 {
        fs.volume.begin_cleaning(0).unwrap();
        while fs.volume.clean(64).unwrap() > 0 {}
        let entry = fs.volume.log.blocks.get(0);
        assert_eq!((entry.state, entry.live), (crate::blocks::BlockState::Full, 1));
        assert_ne!(fs.volume.log.blocks.cheapest(u64::MAX), Some(0), "it would be cleaned for ever");
        let mut bytes = [0; 5000];
        assert!(matches!(fs.read(0x101, 0, &mut bytes), Err(Error::Corrupt { .. })));
        assert_eq!((fs.read(0x101, 0, &mut bytes[..2048]), bytes[0]), (Ok(2048), 7));
    }
    fs.unlink(ROOT, b"f", false).unwrap();
    assert_eq!(fs.volume.log.blocks.get(0).live, 0, "it can be erased");
}

#[test]
fn a_page_that_reads_as_erased_hides_no_page_behind_it_from_a_scan() {
    let config = small(Layout::Compact);
    let mut nand = RamNand::new(GEOMETRY);
    let mut ids = std::vec::Vec::new();
    // Two sessions without NVRAM, each with a block that is not full.
    for session in 0..2 {
        let mut fs: TestFs = match session {
            0 => Fs::format(nand, None, config, [7; 16], true).unwrap(),
            _ => Fs::open(nand, None, config).unwrap(),
        };
        for number in 0..12 {
            let id = fs.create(ROOT, format!("f{session}-{number}").as_bytes(), &node(Kind::File)).unwrap();
            fs.write(id, 0, &[number; 3000]).unwrap();
            fs.sync_object(id).unwrap();
            ids.push(id);
        }
        (nand, _) = fs.close().unwrap();
    }
    let mut fs: TestFs = Fs::open(nand.clone(), None, config).unwrap();
    let all: std::vec::Vec<(u32, u32)> = ids
        .iter()
        .flat_map(|id| {
            let header = fs.volume.objects.get(*id).unwrap().header;
            fs.pages(*id).into_iter().chain([header]).map(|page| (*id, page)).collect::<std::vec::Vec<_>>()
        })
        .collect();
    let root = fs.volume.objects.get(ROOT).unwrap().header;
    let last = |page: u32| all.iter().all(|(_, other)| *other != page + 1);
    for (struck, page) in all.iter().copied().chain([(ROOT, root)]) {
        for run in [1, 2] {
            let what = format!("object {struck}, page {page}, {run} of them");
            let gone: std::vec::Vec<u32> = (page..page + run).collect();
            let mut nand = nand.clone();
            gone.iter().for_each(|page| nand.blank(*page));
            let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
            let is_torn = gone.iter().any(|page| last(*page));
            let problems = fs.check(true).unwrap();
            let told = gone.iter().all(|page| problems.iter().any(|problem| problem.at == *page));
            assert!(is_torn || told, "{what}: {problems:?}");
            // What is written later is no harm either.
            fs.create(ROOT, b"later", &node(Kind::File)).unwrap();
            let mut fs = world::reopen(fs, true);
            for (number, id) in ids.iter().enumerate() {
                if all.iter().any(|(owner, page)| owner == id && gone.contains(page)) {
                    continue;
                }
                let mut bytes = [0xee; 3000];
                assert_eq!(fs.read(*id, 0, &mut bytes), Ok(3000), "{what}: {id}");
                assert!(bytes == [number as u8 % 12; 3000], "{what}: {id}");
                let name = format!("f{}-{}", number / 12, number % 12);
                assert_eq!(fs.lookup(ROOT, name.as_bytes()), Ok(*id), "{what}");
            }
        }
    }
}

/// A page that was torn so that it reads as erased has nothing behind it: that is no damage.
#[test]
fn a_last_page_that_reads_as_erased_is_none() {
    for with_memory in [true, false] {
        let (nand, nvram, mut world, config) = some_files(Layout::Compact, 71);
        let power = Power::default();
        let memory = with_memory.then(|| nvram.copy_on(power.clone()));
        let mut fs = Fs::open(nand.copy_on(power.clone()), memory, config).unwrap();
        world.write(&mut fs, "d0/one", 0, &[1; 5000]).unwrap();
        world.sync(&mut fs, false).unwrap();
        power.cut_in(2, Torn::Nothing);
        assert!(world.write(&mut fs, "d0/two", 0, &[1; 9000]).is_err());
        power.on();
        let (nand, nvram) = fs.into_media();
        for memory in [nvram, None] {
            let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
            world.check_synced(&mut fs, "a torn page");
            assert_eq!(fs.report().lost, [], "nothing is lost");
        }
    }
}

/// A block that one mount began and another filled has a summary, too. Without, its last page looks like one that a power cut
/// tore.
#[test]
fn the_last_page_of_a_block_that_several_mounts_filled_is_an_error_of_its_object_alone() {
    let mut kinds = std::collections::BTreeSet::new();
    for layout in LAYOUTS {
        for (shift, spoil) in [0, 1, 2, 3].into_iter().flat_map(|shift| SPOILS.map(|spoil| (shift, spoil))) {
            let mut fs = make(GEOMETRY, 16 << 10, small(layout));
            for number in 0..60u8 {
                let id = fs.create(ROOT, format!("f{number}").as_bytes(), &node(Kind::File)).unwrap();
                fs.write(id, 0, &[number + 1; 5000][..if number < shift { 3000 } else { 5000 }]).unwrap();
                fs.sync_object(id).unwrap();
                if number == 5 {
                    fs = world::reopen(fs, true);
                }
            }
            let config = *fs.config();
            let (mut nand, _) = fs.close().unwrap();
            let mut spare = [0; 64];
            nand.read_spare(62, &mut spare).unwrap();
            let SpareState::Tagged(found) = TagPlace::MTD.read(&spare) else { panic!("no tags") };
            let (id, is_header) = match found.kind() {
                PageKind::Header { object, .. } => (object, true),
                PageKind::Data { object, .. } => (object, false),
                other => panic!("{other:?}"),
            };
            kinds.insert(is_header);
            spoil.1(&mut nand, 62);
            let what = format!("{layout:?}, shift {shift}, {}, header {is_header}", spoil.0);
            let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
            let problems = fs.check(true).unwrap();
            assert!(problems.iter().any(|problem| problem.object == id), "{what}: {problems:?}");
            let mut bytes = [0; 5000];
            assert_eq!(fs.read(id, 0, &mut bytes).is_ok(), is_header, "{what}");
            for number in 0..60u8 {
                let Ok(found) = fs.lookup(ROOT, format!("f{number}").as_bytes()) else {
                    assert!(is_header, "{what}: f{number}");
                    continue;
                };
                if found != id {
                    let len = fs.read(found, 0, &mut bytes).unwrap();
                    assert!(len >= 3000 && bytes[..len] == [number + 1; 5000][..len], "{what}: f{number}");
                }
            }
        }
    }
    assert_eq!(kinds.len(), 2, "a header, and a page of data");
}
