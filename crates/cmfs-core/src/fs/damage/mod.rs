//! The rows of docs/damage.md: what becomes of the file system when one structure is stale, torn, unreadable, wrong,
//! missing or another's.

mod shortened;
mod torn;
mod unreadable;

use super::world::{self, GEOMETRY, Random, TestFs, World, make, node, small};
use super::{Config, Fs, Layout, MountKind, Names};
use crate::error::Error;
use crate::header::Header;
use crate::media::{Geometry, Nand};
use crate::object::{Kind, MAX_ID, NONE, ROOT};
use crate::ram::{Power, RamNand, RamNvram, Torn};
use crate::record::MAGIC;
use crate::tags::{Extra, Packed, TagPlace};
use std::format;

const LAYOUTS: [Layout; 2] = [Layout::Compact, Layout::Paper];

/// Spoils a page of a part.
type Spoil = fn(&mut RamNand, u32);

/// A few files, and the media they are on.
fn some_files(layout: Layout, seed: u64) -> (RamNand, RamNvram, World, Config) {
    let mut fs = make(GEOMETRY, 16 << 10, small(layout));
    let (mut world, mut random) = (World::default(), Random::new(seed));
    for _ in 0..80 {
        world.step(&mut fs, &mut random, 60_000).unwrap();
    }
    world.sync(&mut fs, true).unwrap();
    let config = *fs.config();
    let (nand, nvram) = fs.close().unwrap();
    (nand, nvram.unwrap(), world, config)
}

/// The pages that hold format records.
fn record_pages(nand: &mut RamNand) -> alloc::vec::Vec<u32> {
    let mut page = [0; 2048];
    let mut spare = [0; 64];
    let pages = nand.geometry().pages() as u32;
    let mut holds = |at: &u32| nand.read(*at, &mut page, &mut spare).is_ok() && page[..8] == MAGIC;
    (0..pages).filter(|at| holds(at)).collect()
}

fn refused(opened: Result<TestFs, Error>, what: &str) {
    match opened {
        Err(Error::Foreign(why)) => assert!(why.contains(what), "{why}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it mounts"),
    }
}

#[test]
fn a_part_that_is_not_ours_is_refused_by_name_and_not_written() {
    let config = small(Layout::Compact);
    for memory in [false, true] {
        let memory = |nand: &RamNand| memory.then(|| RamNvram::new(4096, nand.power()));
        let blank = RamNand::new(GEOMETRY);
        let power = blank.power();
        refused(Fs::open(blank.clone(), memory(&blank), config), "it is erased");
        refused(Fs::open_scanning(blank.clone(), memory(&blank), config), "it is erased");
        let mut other = blank;
        for page in 0..GEOMETRY.pages() as u32 {
            let noise = |at: usize| (at * 31 + page as usize * 7) as u8;
            let (data, spare): (std::vec::Vec<u8>, std::vec::Vec<u8>) =
                ((0..2048).map(noise).collect(), (3..67).map(noise).collect());
            other.program(page, &data, &spare).unwrap();
        }
        let before = other.dump();
        let operations = power.operations();
        refused(Fs::open(other.clone(), memory(&other), config), "something else");
        assert_eq!((power.operations(), other.dump() == before), (operations, true), "nothing was written");
    }
}

#[test]
fn a_plain_image_of_yaffs2_is_opened_where_it_is_asked_for_and_stays_plain() {
    let (mut nand, nvram, mut world, config) = some_files(Layout::Compact, 5);
    for block in [31, 30] {
        nand.erase(block).unwrap();
    }
    refused(Fs::open(nand.clone(), Some(nvram.clone()), config), "tags of YAFFS2");
    refused(Fs::open(nand.clone(), None, config), "tags of YAFFS2");
    let config = Config { plain: true, ..config };
    for round in 0..3 {
        let mut fs: TestFs = Fs::open(nand, Some(nvram.clone()), config).unwrap();
        assert_eq!((fs.report().kind, fs.session()), (MountKind::Scanned, 0));
        assert!(fs.nvram_used().is_none(), "nothing ties it to this NVRAM");
        world.check_all(&mut fs, "a plain image");
        world.write(&mut fs, "d0/plain", round * 5000, &[round as u8; 4000]).unwrap();
        world.sync(&mut fs, false).unwrap();
        (nand, _) = fs.close().unwrap();
    }
    assert_eq!(record_pages(&mut nand), [], "it stays plain");
}

#[test]
fn a_part_opened_in_another_shape_is_refused() {
    let (nand, _, _, config) = some_files(Layout::Compact, 6);
    // The same part with half of its blocks as large, as a wrong profile has it.
    struct Wrong(RamNand);
    impl Nand for Wrong {
        fn geometry(&self) -> Geometry {
            Geometry { pages_per_block: 32, blocks: 64, ..self.0.geometry() }
        }
        fn is_bad(&mut self, _: u32) -> Result<bool, crate::NandError> {
            Ok(false)
        }
        fn mark_bad(&mut self, _: u32) -> Result<(), crate::NandError> {
            panic!("it is written")
        }
        fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, crate::NandError> {
            self.0.read(page, data, spare)
        }
        fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, crate::NandError> {
            self.0.read_spare(page, spare)
        }
        fn program(&mut self, _: u32, _: &[u8], _: &[u8]) -> Result<(), crate::NandError> {
            panic!("it is written")
        }
        fn erase(&mut self, _: u32) -> Result<(), crate::NandError> {
            panic!("it is written")
        }
    }
    let opened: Result<Fs<Wrong, RamNvram>, Error> = Fs::open(Wrong(nand), None, config);
    assert!(matches!(opened.err(), Some(Error::Foreign(why)) if why.contains("another shape")));
}

#[test]
fn an_nvram_that_the_nand_was_written_without_is_never_believed() {
    for layout in LAYOUTS {
        for seed in 0..25u64 {
            let (mut nand, mut nvram, mut world, config) = some_files(layout, seed + 100);
            let mut random = Random::new(seed);
            for round in 0..4 {
                let what = format!("{layout:?}, seed {seed}, round {round}");
                let stale = nvram.clone();
                // Left out for one mount or several, for a little work or for so much that blocks are used again.
                for _ in 0..=random.below(3) {
                    let mut alone: TestFs = Fs::open(nand, None, config).unwrap();
                    for _ in 0..1 + random.below(if seed % 2 == 0 { 3 } else { 150 }) {
                        world.step(&mut alone, &mut random, 60_000).unwrap();
                    }
                    // Something is written for sure.
                    world.write(&mut alone, "d0/alone", 0, &[round as u8; 3000]).unwrap();
                    world.sync(&mut alone, false).unwrap();
                    (nand, _) = alone.close().unwrap();
                }
                let mut fs = Fs::open(nand, Some(stale), config).unwrap();
                assert_eq!(fs.report().why, "the NAND was written without this NVRAM", "{what}");
                world.check_all(&mut fs, &what);
                for _ in 0..random.below(40) {
                    world.step(&mut fs, &mut random, 60_000).unwrap();
                }
                world.sync(&mut fs, true).unwrap();
                let (closed, memory) = fs.close().unwrap();
                nvram = memory.unwrap();
                let mut again = Fs::open(closed, Some(nvram), config).unwrap();
                assert_ne!(again.report().kind, MountKind::Scanned, "{what}, caught up");
                world.check_all(&mut again, &what);
                let (closed, memory) = again.close().unwrap();
                (nand, nvram) = (closed, memory.unwrap());
            }
        }
    }
}

/// A copy of the part was put back, and what the NVRAM knows came later.
#[test]
fn an_nvram_that_knows_more_than_a_part_that_was_put_back_is_not_believed() {
    for layout in LAYOUTS {
        for sessions in 1..5u8 {
            for closes in [true, false] {
                let (nand, nvram, mut world, config) = some_files(layout, 60);
                let before = nand.clone();
                let mut later = world.clone();
                let mut media = (nand, Some(nvram));
                for number in 0..sessions {
                    let mut fs = Fs::open(media.0, media.1, config).unwrap();
                    for name in 0..20 {
                        later.write(&mut fs, &format!("d0/{number}-{name}"), 0, &[number; 9000]).unwrap();
                    }
                    later.sync(&mut fs, true).unwrap();
                    media = if closes { fs.close().unwrap() } else { fs.into_media() };
                }
                let what = format!("{layout:?}, {sessions} sessions, closed {closes}");
                let mut fs = Fs::open(before, media.1, config).unwrap();
                assert_eq!(fs.report().why, "the NAND was written without this NVRAM", "{what}");
                world.check_all(&mut fs, &what);
                world.write(&mut fs, "d0/on", 0, &[1; 9000]).unwrap();
                world.sync(&mut fs, true).unwrap();
                let (nand, _) = fs.close().unwrap();
                world.check_all(&mut Fs::<RamNand, RamNvram>::open(nand, None, config).unwrap(), &what);
            }
        }
    }
}

/// An NVRAM in whose place another one came, and which comes back.
#[test]
fn of_two_nvrams_only_the_one_last_written_with_is_believed() {
    for layout in LAYOUTS {
        let (mut nand, one, mut world, config) = some_files(layout, 9);
        let two = RamNvram::new(16 << 10, nand.power());
        let mut memories = [one, two];
        for round in 0..6 {
            let at = round % 2;
            let mut fs = Fs::open(nand, Some(memories[at].clone()), config).unwrap();
            assert_eq!(fs.report().kind == MountKind::Scanned, round > 0, "round {round}");
            world.check_all(&mut fs, &format!("{layout:?}, round {round}"));
            world.write(&mut fs, "d1/turns", round * 3000, &[round as u8; 3000]).unwrap();
            world.sync(&mut fs, true).unwrap();
            let (closed, memory) = fs.close().unwrap();
            (nand, memories[at]) = (closed, memory.unwrap());
        }
    }
}

#[test]
fn no_page_of_format_records_that_rots_costs_the_volume() {
    let (mut nand, mut nvram, mut world, config) = some_files(Layout::Compact, 3);
    // As many sessions as it takes to fill a block of records and begin the other.
    for round in 0..70u8 {
        let mut fs = Fs::open(nand, Some(nvram), config).unwrap();
        assert_eq!(fs.report().kind, MountKind::Clean, "round {round}");
        world.write(&mut fs, "d0/round", 0, &[round; 100]).unwrap();
        world.sync(&mut fs, true).unwrap();
        let (closed, memory) = fs.close().unwrap();
        (nand, nvram) = (closed, memory.unwrap());
        if round % 23 != 1 && round < 60 {
            continue;
        }
        let pages = record_pages(&mut nand);
        let mut session_of = |page: u32| {
            let (mut bytes, mut spare) = ([0; 2048], [0; 64]);
            nand.read(page, &mut bytes, &mut spare).unwrap();
            u32::from_le_bytes([bytes[44], bytes[45], bytes[46], bytes[47]])
        };
        let sessions: std::vec::Vec<u32> = pages.iter().map(|page| session_of(*page)).collect();
        let newest = sessions.iter().max().copied().unwrap_or(0);
        let has_copy = sessions.iter().filter(|session| **session == newest).count() > 1;
        let all = pages.iter().zip(&sessions);
        for (page, session, is_blank) in
            all.flat_map(|(page, own)| [(*page, *own, false), (*page, *own, true)])
        {
            // Of a part without its last record nothing says that it is not an older one, put back.
            let looks_older = is_blank && !has_copy && session == newest;
            let spoil: Spoil = if is_blank { RamNand::blank } else { RamNand::spoil };
            let mut spoilt = nand.clone();
            spoil(&mut spoilt, page);
            for memory in [Some(nvram.clone()), None] {
                let mut fs: TestFs = Fs::open(spoilt.clone(), memory.clone(), config).unwrap();
                let is_believed = memory.is_some() && !looks_older;
                let expected = if is_believed { MountKind::Clean } else { MountKind::Scanned };
                assert_eq!(fs.report().kind, expected, "round {round}, page {page}");
                world.check_all(&mut fs, "a spoilt record");
                let root = fs.lookup(ROOT, b"d0").unwrap();
                fs.unlink(root, b"round", false).unwrap();
                fs.close().unwrap();
            }
        }
    }
}

#[test]
fn a_block_of_records_that_fails_is_replaced() {
    for (failing, memory) in [(31, true), (30, true), (31, false), (30, false)] {
        let (mut nand, nvram, mut world, config) = some_files(Layout::Compact, 4);
        let mut nvram = Some(nvram);
        for round in 0..4u8 {
            if round > 0 {
                nand.fail_next(failing);
            }
            let memory = nvram.take().filter(|_| memory);
            let mut fs = Fs::open(nand, memory, config).unwrap();
            let what = format!("block {failing}, {round}");
            world.write(&mut fs, "d0/round", 0, &[round; 100]).unwrap();
            world.sync(&mut fs, true).unwrap();
            world.check_all(&mut fs, &what);
            (nand, nvram) = fs.close().unwrap();
            let mut fs: TestFs = Fs::open(nand.clone(), None, config).unwrap();
            world.check_all(&mut fs, &format!("{what}, scanned"));
        }
    }
}

/// Writes so much that every block is used several times.
fn churn(fs: &mut TestFs, world: &mut World, random: &mut Random) {
    let pages = fs.nand().geometry().pages() as usize * 3;
    for number in 0..pages / 4 {
        let at = random.below(12) as usize * 2048;
        world.write(fs, "d1/hot", at, &[number as u8; 2048 * 4]).unwrap();
        if number % 16 == 0 {
            world.sync(fs, false).unwrap();
        }
    }
    world.sync(fs, true).unwrap();
}

/// What `d0/to` holds, and how many names there are in `d0`.
fn what_is_there(fs: &mut TestFs) -> (u8, usize) {
    let dir = fs.lookup(ROOT, b"d0").unwrap();
    let id = fs.lookup(dir, b"to").unwrap();
    let mut byte = [0];
    assert_eq!(fs.read(id, 100, &mut byte).unwrap(), 1);
    let mut names = 0;
    fs.list(dir, 0, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    (byte[0], names)
}

#[test]
fn what_a_rename_replaced_does_not_come_back_wherever_the_power_went() {
    let geometry = Geometry { pages_per_block: 16, blocks: 24, ..GEOMETRY };
    for (layout, linked) in [(Layout::Compact, false), (Layout::Compact, true), (Layout::Paper, false)] {
        let config = small(layout);
        let mut fs = make(geometry, 8 << 10, config);
        let mut world = World::default();
        world.write(&mut fs, "d0/to", 0, &[1; 5000]).unwrap();
        world.write(&mut fs, "d0/from", 0, &[2; 5000]).unwrap();
        if linked {
            // What is replaced is another name of a third file.
            world.unlink(&mut fs, "d0/to").unwrap();
            world.write(&mut fs, "d0/third", 0, &[1; 5000]).unwrap();
            world.link(&mut fs, "d0/third", "d0/to").unwrap();
        }
        world.sync(&mut fs, true).unwrap();
        let (nand, nvram) = fs.into_media();
        let nvram = nvram.unwrap();
        for cut in 1..40 {
            let power = Power::default();
            let media = (nand.copy_on(power.clone()), nvram.copy_on(power.clone()));
            let mut fs = Fs::open(media.0, Some(media.1), config).unwrap();
            let dir = fs.lookup(ROOT, b"d0").unwrap();
            power.cut_in(cut, Torn::ALL[cut as usize % 4]);
            power.set_luck(u64::MAX);
            let done = fs.rename(dir, b"from", dir, b"to", false);
            power.on();
            let (nand, nvram) = fs.into_media();
            for memory in [nvram, None] {
                let what = format!("{layout:?}, linked {linked}, cut {cut}, NVRAM {}", memory.is_some());
                let mut world = world.clone();
                let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
                let found = what_is_there(&mut fs);
                assert!(done.is_err() || found.0 == 2, "{what}");
                world.forget("d0/to");
                churn(&mut fs, &mut world, &mut Random::new(cut));
                // The header that named what it replaced is replaced itself.
                let to = fs.lookup(dir, b"to").unwrap();
                fs.set_attribute(to, b"user.later", Some(b"1")).unwrap();
                fs.update().unwrap();
                churn(&mut fs, &mut world, &mut Random::new(cut + 1));
                assert_eq!(what_is_there(&mut fs), found, "{what}, worked on");
                let (nand, _) = fs.into_media();
                let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
                assert_eq!(what_is_there(&mut fs), found, "{what}, worked on and scanned");
                assert_eq!(fs.check(true).unwrap(), [], "{what}");
            }
        }
    }
}

#[test]
fn two_entries_of_one_name_are_a_problem_to_a_check() {
    let mut fs = make(GEOMETRY, 16 << 10, Config::default());
    let mut world = World::default();
    world.write(&mut fs, "d0/one", 0, &[1; 5000]).unwrap();
    world.write(&mut fs, "d0/two", 0, &[1; 5000]).unwrap();
    assert_eq!(fs.check(true).unwrap(), []);
    let dir = fs.lookup(ROOT, b"d0").unwrap();
    let two = fs.lookup(dir, b"two").unwrap();
    fs.volume.details(two).unwrap().name = b"one"[..].into();
    let problems = fs.check(true).unwrap();
    assert!(problems.iter().any(|problem| problem.why.contains("has its name")), "{problems:?}");
}

/// All names in a directory, with what they stand for.
fn names_in(fs: &mut TestFs, dir: u32) -> std::vec::Vec<(std::vec::Vec<u8>, u32)> {
    let mut names = std::vec::Vec::new();
    fs.list(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.id));
        true
    })
    .expect("a listing");
    names
}

#[test]
fn a_header_that_cannot_be_read_is_the_error_of_its_object_alone() {
    for names in [Names::Off, Names::Auto] {
        for layout in LAYOUTS {
            let mut fs = make(GEOMETRY, 16 << 10, Config { names, ..small(layout) });
            let mut world = World::default();
            for number in 0..6u8 {
                world.write(&mut fs, &format!("d{}/f{number}", number % 2), 0, &[number; 5000]).unwrap();
            }
            let dirs = [b"d0", b"d1"].map(|name| fs.lookup(ROOT, name).unwrap());
            fs.create(dirs[0], b"link", &node(Kind::Symlink)).unwrap();
            world.sync(&mut fs, true).unwrap();
            let ids = fs.volume.objects.ids();
            let headers: std::vec::Vec<(u32, u32)> =
                ids.into_iter().map(|id| (id, fs.volume.objects.get(id).unwrap().header)).collect();
            let config = *fs.config();
            let (nand, nvram) = fs.close().unwrap();
            for (id, header) in headers.into_iter().filter(|(_, header)| *header != NONE) {
                for repair in [false, true] {
                    let what = format!("{names:?}, {layout:?}, object {id}, repaired {repair}");
                    let mut nand = nand.clone();
                    nand.spoil(header);
                    let mut fs = Fs::open(nand, nvram.clone(), config).unwrap();
                    let bad = fs.check(true).unwrap();
                    assert!(bad.iter().all(|problem| problem.object == id), "{what}: {bad:?}");
                    assert_eq!(bad.len(), 1, "{what}");
                    if repair {
                        assert_eq!(fs.repair().unwrap(), 1, "{what}");
                        assert_eq!(fs.check(true).unwrap(), [], "{what}");
                        fs = world::reopen(fs, true);
                        assert_eq!(fs.check(true).unwrap(), [], "{what}, opened again");
                    }
                    use_around(&mut fs, dirs, id, &what);
                    let problems = fs.check(true).unwrap();
                    let left = problems.iter().all(|problem| problem.object == id && id <= dirs[1]);
                    assert!(left && (!repair || problems.is_empty()), "{what}: {problems:?}");
                    fs.close().expect("a clean end");
                }
            }
        }
    }
}

/// Everything works but with the object itself, which can be read and removed.
fn use_around(fs: &mut TestFs, dirs: [u32; 2], damaged: u32, what: &str) {
    let at_root = names_in(fs, ROOT);
    assert!(dirs.iter().all(|dir| at_root.iter().any(|(_, id)| id == dir)), "{what}: {at_root:?}");
    for (dir, count) in dirs.into_iter().zip([4, 3]) {
        let names = names_in(fs, dir);
        assert_eq!(names.len(), count, "{what}: {names:?}");
        for (name, id) in names {
            assert_eq!(fs.lookup(dir, &name).unwrap(), id, "{what}");
            let attr = fs.attr(id).unwrap_or_else(|error| panic!("{what}: {error}"));
            if attr.kind == Kind::File {
                let mut bytes = [0xee; 5000];
                assert_eq!(fs.read(id, 0, &mut bytes).unwrap(), 5000, "{what}");
                assert!(bytes.iter().all(|byte| *byte == bytes[0]) && bytes[0] < 6, "{what}");
            }
            if id == damaged {
                fs.unlink(dir, &name, false).unwrap_or_else(|error| panic!("{what}, removing: {error}"));
            }
        }
        for number in 0..5 {
            let name = format!("new{number}");
            let new = fs
                .create(dir, name.as_bytes(), &node(Kind::File))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            fs.write(new, 0, &[1; 3000]).unwrap();
            fs.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    assert!(fs.volume.objects.find(damaged).is_err() || damaged <= dirs[1], "{what}: it is still there");
}

#[test]
fn what_was_synced_is_there_after_the_host_of_an_image_lost_its_cache() {
    for layout in LAYOUTS {
        for seed in 0..40u64 {
            for memory in [true, false] {
                let (nand, nvram, mut world, config) = some_files(layout, seed % 4 + 200);
                let power = Power::default();
                let mut nand = nand.copy_on(power.clone());
                nand.write_back();
                let nvram = memory.then(|| nvram.copy_on(power.clone()));
                let mut fs = Fs::open(nand, nvram, config).unwrap();
                let mut random = Random::new(seed);
                power.cut_in(20 + seed * 37, Torn::Half);
                power.set_luck(seed);
                while world.step(&mut fs, &mut random, 40_000).is_ok() {}
                assert!(power.is_off(), "the power went");
                power.on();
                let (nand, nvram) = fs.into_media();
                for nvram in [nvram, None] {
                    let what = format!("{layout:?}, seed {seed}, NVRAM {memory}, {}", nvram.is_some());
                    let mut world = world.clone();
                    let mut fs = Fs::open(nand.clone(), nvram, config).unwrap();
                    world.check_synced(&mut fs, &what);
                    world.start_over(&mut fs);
                    world.write(&mut fs, "d0/on", 0, &[4; 5000]).unwrap();
                    world.sync(&mut fs, true).unwrap();
                    world.check_all(&mut fs, &what);
                }
            }
        }
    }
}

/// A host may keep the part of a page that has its tags, and not the one that has its data.
#[test]
fn of_pages_whose_tags_alone_a_host_kept_an_older_state_that_was_synced_counts() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 16 << 10, small(layout));
        for number in 0..12u8 {
            let id = fs.create(ROOT, format!("f{number}").as_bytes(), &node(Kind::File)).unwrap();
            fs.write(id, 0, &[number + 1; 3000]).unwrap();
            fs.sync_object(id).unwrap();
        }
        let config = *fs.config();
        let mut before = fs.nand().clone();
        for number in 0..12u8 {
            let name = format!("f{number}");
            let id = fs.lookup(ROOT, name.as_bytes()).unwrap();
            match number % 3 {
                0 => fs.rename(ROOT, name.as_bytes(), ROOT, format!("g{number}").as_bytes(), false).unwrap(),
                1 => fs.truncate(id, 2999).unwrap(),
                _ => fs.write(id, 0, &[number + 101; 2048]).unwrap(),
            }
        }
        let (mut after, nvram) = fs.into_media();
        let mut written = |page: &u32| {
            let (mut one, mut two) = ([0; 64], [0; 64]);
            before.read_spare(*page, &mut one).unwrap();
            after.read_spare(*page, &mut two).unwrap();
            one != two
        };
        let pages: std::vec::Vec<u32> = (0..GEOMETRY.pages() as u32).filter(|page| written(page)).collect();
        assert!(pages.len() >= 12);
        for torn in pages {
            for memory in [true, false] {
                let what = format!("{layout:?}, page {torn}, NVRAM {memory}");
                let mut nand = after.clone();
                nand.write_back();
                nand.tear(torn);
                let nvram = nvram.clone().filter(|_| memory);
                let mut fs: TestFs = Fs::open(nand, nvram, config).unwrap();
                check_old_or_new(&mut fs, &what);
                // Another block is opened, and the torn page is in none that is read whole.
                for number in 0..70 {
                    let id = fs.create(ROOT, format!("more{number}").as_bytes(), &node(Kind::File)).unwrap();
                    fs.write(id, 0, &[1; 3000]).unwrap();
                }
                fs.sync().unwrap();
                let (nand, _) = fs.into_media();
                let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
                check_old_or_new(&mut fs, &format!("{what}, scanned later"));
            }
        }
    }
}

/// A host keeps the deletion of what was replaced only with the header that replaced it.
#[test]
fn a_rename_over_is_on_the_hosts_disk_before_what_it_replaced_is_gone() {
    for layout in LAYOUTS {
        let power = Power::default();
        let mut nand = RamNand::new(GEOMETRY).copy_on(power.clone());
        nand.write_back();
        let mut fs: TestFs = Fs::format(nand, None, small(layout), [7; 16], true).unwrap();
        for (name, byte) in [(&b"file"[..], 1), (b"new", 2)] {
            let id = fs.create(ROOT, name, &node(Kind::File)).unwrap();
            fs.write(id, 0, &[byte; 3000]).unwrap();
            fs.sync_object(id).unwrap();
        }
        fs.sync().unwrap();
        fs.rename(ROOT, b"new", ROOT, b"file", false).unwrap();
        // Of what comes after it nothing is kept.
        power.cut_in(1, Torn::Nothing);
        assert_eq!(fs.create(ROOT, b"more", &node(Kind::File)).and_then(|_| fs.sync()), Err(Error::Gone));
        power.on();
        let config = *fs.config();
        let (nand, _) = fs.into_media();
        let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
        let id = fs.lookup(ROOT, b"file").unwrap();
        let mut bytes = [0; 3000];
        assert_eq!((fs.read(id, 0, &mut bytes), bytes), (Ok(3000), [2; 3000]), "{layout:?}: it was synced");
        assert_eq!(fs.lookup(ROOT, b"new"), Err(Error::NotFound));
    }
}

fn check_old_or_new(fs: &mut TestFs, what: &str) {
    for number in 0..12u8 {
        let id =
            ["f", "g"].iter().find_map(|start| fs.lookup(ROOT, format!("{start}{number}").as_bytes()).ok());
        let id = id.unwrap_or_else(|| panic!("{what}: {number} has no name"));
        let mut bytes = [0; 3000];
        let len = fs.read(id, 0, &mut bytes).unwrap_or_else(|error| panic!("{what}: {number}: {error}"));
        let (old, mut new) = ([number + 1; 3000], [number + 1; 3000]);
        new[..2048].fill(number + 101);
        let is_one = bytes[..len] == old[..len] && len >= 2999 || len == 3000 && bytes == new;
        assert!(is_one, "{what}: {number}: {len} bytes, {:?}", &bytes[..4]);
    }
}

#[test]
fn tags_with_an_object_that_cannot_be_take_no_memory_and_cost_nothing() {
    let (nand, _, world, config) = some_files(Layout::Compact, 21);
    let fs: TestFs = Fs::open(nand, None, config).unwrap();
    let block = fs.volume.log.blocks.next_erasable(0).unwrap();
    let place = fs.volume.log.flash.place();
    let (mut nand, _) = fs.into_media();
    nand.erase(block).unwrap();
    let extra = Extra { parent: ROOT, kind: Kind::File, size_or_target: 9, shrink: false, shadows: false };
    let crafted = [
        Packed::data(0x2000, 0x0fff_ffff, 0, 2048),
        Packed::data(0x2000, u32::MAX, 3, 2048),
        Packed::data(0x2000, 0x101, 0x7fff_0000, 2048),
        Packed::header(0x2000, 0x0fff_fff0, &extra, 9),
    ];
    for (page, tags) in (GEOMETRY.first_page(block)..).zip(crafted) {
        let mut spare = [0; 64];
        place.write(&tags, &[1; 2048], &mut spare);
        nand.program(page, &[1; 2048], &spare).unwrap();
    }
    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
    assert!(fs.volume.objects.ids().iter().all(|id| *id <= MAX_ID));
    world.check_all(&mut fs, "crafted tags");
}

#[test]
fn a_truncation_is_not_undone_by_cleaning_and_a_cut() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 16 << 10, small(layout));
        let file = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
        fs.write(file, 0, &[7; 3 * 2048]).unwrap();
        fs.update().unwrap();
        let page = fs.pages(file)[1];
        let filler = fs.create(ROOT, b"filler", &node(Kind::File)).unwrap();
        fs.write(filler, 0, &[8; 100 * 2048]).unwrap();
        fs.update().unwrap();
        fs.truncate(file, 3000).unwrap();
        fs.volume.begin_cleaning(GEOMETRY.block_of(page)).unwrap();
        while fs.volume.clean(64).unwrap() > 0 && fs.pages(file)[1] == page {}
        assert_ne!(fs.pages(file)[1], page, "it was moved");
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        for memory in [nvram, None] {
            let what = format!("{layout:?}, NVRAM {}", memory.is_some());
            let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
            assert_eq!(fs.attr(file).unwrap().size, 3000, "{what}");
        }
    }
}

#[test]
fn a_full_nvram_is_not_written_with_every_block() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 700, small(layout));
        let mut world = World::default();
        for number in 0..300 {
            world.write(&mut fs, &format!("d0/n{number}"), number * 1000, &[1; 100]).unwrap();
        }
        world.sync(&mut fs, true).unwrap();
        assert!(fs.nvram_overflows());
        let before = fs.nvram_mut().unwrap().written_bytes;
        for number in 0..12 {
            world.write(&mut fs, "d1/hot", 0, &[number; 64 * 2048]).unwrap();
            world.sync(&mut fs, false).unwrap();
        }
        assert_eq!(fs.nvram_mut().unwrap().written_bytes, before, "{layout:?}");
        let mut fs = world::reopen(fs, true);
        assert_eq!(fs.report().kind, MountKind::Scanned);
        world.check_all(&mut fs, "after an overflow");
    }
}

#[test]
fn a_wrong_bit_in_the_checksum_of_a_page_costs_nothing() {
    let (nand, nvram, world, config) = some_files(Layout::Compact, 31);
    let mut fs = Fs::open(nand.clone(), Some(nvram.clone()), config).unwrap();
    let pages: std::vec::Vec<u32> = fs.volume.objects.ids().into_iter().flat_map(|id| fs.pages(id)).collect();
    assert!(pages.len() > 32);
    fs.check(true).unwrap();
    for bit in 0..32 {
        let mut wrong = nand.clone();
        pages.iter().skip(bit % 7).for_each(|page| wrong.flip(*page, (2048 + 30) * 8 + bit));
        for memory in [Some(nvram.clone()), None] {
            let mut fs: TestFs = Fs::open(wrong.clone(), memory, config).unwrap();
            world.check_all(&mut fs, &format!("bit {bit} of the checksums is wrong"));
        }
    }
    // Of the data every bit counts.
    let mut wrong = nand;
    wrong.flip(pages[3], 12345);
    let mut fs = Fs::open(wrong, Some(nvram), config).unwrap();
    assert_eq!(fs.check(true).unwrap().len(), 1);
}

#[test]
fn an_older_nvram_is_not_believed_though_it_is_the_parts_own() {
    for layout in LAYOUTS {
        let (mut nand, mut nvram, mut world, config) = some_files(layout, 51);
        let mut older = std::vec::Vec::new();
        for round in 0..4u8 {
            let mut fs = Fs::open(nand, Some(nvram), config).unwrap();
            world.write(&mut fs, "d0/round", 0, &[round; 100]).unwrap();
            world.sync(&mut fs, round % 2 == 0).unwrap();
            let media = fs.into_media();
            (nand, nvram) = (media.0, media.1.unwrap());
            older.push(nvram.clone());
        }
        older.pop();
        for (session, older) in older.into_iter().enumerate() {
            let mut fs = Fs::open(nand.clone(), Some(older), config).unwrap();
            assert_eq!(fs.report().kind, MountKind::Scanned, "{layout:?}, {session}");
            world.check_all(&mut fs, "with an older NVRAM");
        }
    }
}

/// Goes on after a cut until numbers that are free are given again: in each mount they are given from the first on.
fn until_numbers_are_given_again(fs: TestFs) -> TestFs {
    let mut fs = world::reopen(fs, false);
    fs.create(ROOT, b"other", &node(Kind::File)).unwrap();
    let mut fs = world::reopen(fs, true);
    fs.unlink(ROOT, b"other", false).unwrap();
    world::reopen(fs, true)
}

/// Makes a file, which is given this number again, and looks that a scan finds nothing but holes in it.
fn a_new_file_has_holes_only(mut fs: TestFs, number: u32, layout: Layout) {
    let file = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
    assert_eq!(file, number, "{layout:?}: the number is given again");
    fs.truncate(file, 4 * 2048).unwrap();
    fs.sync().unwrap();
    let config = *fs.config();
    let (nand, _) = fs.into_media();
    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
    let mut bytes = [1; 4 * 2048];
    assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 0), "{layout:?}: it has pages of another file");
}

#[test]
fn pages_of_a_file_that_never_got_a_name_are_not_in_the_holes_of_a_later_one() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 16 << 10, small(layout));
        let unborn = fs.create(ROOT, b"unborn", &node(Kind::File)).unwrap();
        fs.write(unborn, 0, &[7; 4 * 2048]).unwrap();
        assert_eq!(fs.volume.objects.get(unborn).unwrap().header, NONE);
        let fs = until_numbers_are_given_again(fs);
        a_new_file_has_holes_only(fs, unborn, layout);
    }
}

#[test]
fn a_link_to_a_file_that_never_got_a_name_is_gone_on_flash_before_its_number_is_given_again() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 16 << 10, small(layout));
        let unborn = fs.create(ROOT, b"unborn", &node(Kind::File)).unwrap();
        fs.link(unborn, ROOT, b"link").unwrap();
        let link = fs.volume.link_of(unborn).unwrap().0;
        fs.volume.write_header(link, false, 0).unwrap();
        let mut fs = until_numbers_are_given_again(fs);
        let given: [u32; 2] =
            [b"a", b"b"].map(|name| fs.create(ROOT, name, &node(Kind::File)).expect("a file"));
        assert!(given.contains(&link), "{layout:?}: the number is given again");
        for id in given {
            fs.write(id, 0, &[5; 3000]).unwrap();
        }
        fs.sync().unwrap();
        let config = *fs.config();
        let (nand, _) = fs.into_media();
        let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
        for id in given {
            let mut bytes = [1; 3000];
            assert_eq!(fs.read(id, 0, &mut bytes).unwrap(), bytes.len());
            assert!(bytes == [5; 3000], "{layout:?}: its pages are lost in a scan");
        }
    }
}

#[test]
fn pages_of_a_replaced_file_that_never_got_a_name_are_not_in_the_holes_of_a_later_one() {
    for layout in LAYOUTS {
        let mut fs = make(GEOMETRY, 16 << 10, small(layout));
        let moved = fs.create(ROOT, b"moved", &node(Kind::File)).unwrap();
        let filler = fs.create(ROOT, b"filler", &node(Kind::File)).unwrap();
        fs.sync().unwrap();
        let unborn = fs.create(ROOT, b"unborn", &node(Kind::File)).unwrap();
        fs.write(unborn, 0, &[7; 4 * 2048]).unwrap();
        fs.write(filler, 0, &[1; 64 * 2048]).unwrap();
        assert_eq!(fs.volume.objects.get(unborn).unwrap().header, NONE);
        // The power goes between the header that replaces and the deletion.
        fs.volume.objects.remove_entry(ROOT, unborn).unwrap();
        fs.volume.move_entry(moved, ROOT, ROOT, b"unborn", unborn).unwrap();
        let mut fs = until_numbers_are_given_again(fs);
        // The header that replaces is moved, and replaces nothing any more; what was in its block is erased.
        let block = GEOMETRY.block_of(fs.volume.objects.get(moved).unwrap().header);
        fs.write(filler, 64 * 2048, &[1; 64 * 2048]).unwrap();
        fs.volume.begin_cleaning(block).unwrap();
        fs.volume.clean(64).unwrap();
        assert_eq!(fs.volume.log.blocks.get(block).live, 0);
        fs.update().unwrap();
        while fs.volume.log.blocks.get(block).state != crate::blocks::BlockState::Erased {
            fs.volume.log.erase_one(&fs.volume.objects).unwrap();
        }
        a_new_file_has_holes_only(fs, unborn, layout);
    }
}

#[test]
fn a_checkpoint_whose_block_could_not_be_erased_is_not_believed() {
    let (nand, _, mut world, config) = some_files(Layout::Compact, 61);
    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
    world.sync(&mut fs, true).unwrap();
    assert!(fs.checkpoint(8).unwrap());
    let block = GEOMETRY.block_of(fs.volume.log.checkpoint_pages()[0]);
    fs.nand_mut().fail_next(block);
    world.write(&mut fs, "d0/later", 0, &[3; 5000]).unwrap();
    world.sync(&mut fs, true).unwrap();
    let (nand, _) = fs.into_media();
    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
    assert_eq!(fs.report().kind, MountKind::Scanned);
    world.check_all(&mut fs, "after a checkpoint that stayed");
}
