//! The file system against a model: every way to open it, cleaning, wear, bad blocks, links and attributes.

use super::world::{GEOMETRIES, GEOMETRY, Random, World, make, node, reopen, small};
use super::{Config, Fs, Layout, MountKind, Names, Seek, SetAttr};
use crate::Geometry;
use crate::error::Error;
use crate::object::{Kind, LOST_FOUND, ROOT, Time};
use crate::ram::{Power, RamNand, RamNvram, Torn};
use alloc::vec::Vec;

#[test]
fn random_work_reads_back_after_every_way_to_open() {
    for (number, geometry) in GEOMETRIES.into_iter().enumerate() {
        for layout in [Layout::Compact, Layout::Paper] {
            let mut random = Random::new(number as u64 + 1);
            let mut fs = make(geometry, 16 << 10, small(layout));
            let mut world = World::default();
            for round in 0..12 {
                let what = std::format!("geometry {number}, {layout:?}, round {round}");
                for _ in 0..60 {
                    world
                        .step(&mut fs, &mut random, 40_000)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                world.check_all(&mut fs, &what);
                world.sync(&mut fs, round % 4 == 0).unwrap();
                let config = *fs.config();
                let (kind, mut again) = match round % 3 {
                    0 => (MountKind::Clean, reopen(fs, true)),
                    1 => (MountKind::Recovered, reopen(fs, false)),
                    _ => {
                        let (nand, nvram) = fs.into_media();
                        (MountKind::Scanned, Fs::open_scanning(nand, nvram, config).unwrap())
                    }
                };
                let report = again.report().clone();
                // Nothing may have been written since an update; and between two blocks the paper's marker is
                // not believed.
                let expected = report.kind == kind
                    || kind == MountKind::Recovered && report.kind == MountKind::Clean
                    || layout == Layout::Paper
                        && report.kind == MountKind::Recovered
                        && report.replayed_pages == 0;
                assert!(expected && !again.nvram_overflows(), "{what}: {report:?}");
                world.check_all(&mut again, &std::format!("{what}, {kind:?}"));
                fs = again;
            }
        }
    }
}

#[test]
fn the_nand_alone_is_the_whole_file_system() {
    let mut fs = make(GEOMETRY, 16 << 10, small(Layout::Compact));
    let (mut world, mut random) = (World::default(), Random::new(99));
    for _ in 0..400 {
        world.step(&mut fs, &mut random, 60_000).unwrap();
    }
    world.sync(&mut fs, false).unwrap();
    let config = *fs.config();
    let (nand, _) = fs.into_media();
    let mut fs: super::world::TestFs = Fs::open(nand, None, config).unwrap();
    assert_eq!((fs.report().kind, fs.report().why), (MountKind::Scanned, "there is no NVRAM"));
    world.check_all(&mut fs, "without NVRAM");
    for _ in 0..200 {
        world.step(&mut fs, &mut random, 60_000).unwrap();
    }
    world.check_all(&mut fs, "worked on without NVRAM");
}

#[test]
fn a_clean_mount_reads_seven_places_of_the_nand_and_the_first_write_erases_nothing() {
    let mut fs = make(GEOMETRY, 16 << 10, Config::default());
    let mut world = World::default();
    for number in 0..40 {
        world.write(&mut fs, &std::format!("d0/{number}"), 0, &[number; 10_000]).unwrap();
    }
    let mut fs = reopen(fs, true);
    let before = fs.nand().counts();
    assert_eq!(fs.report().kind, MountKind::Clean);
    let mut again = reopen(fs, true);
    let counts = again.nand().counts();
    assert_eq!((counts.reads - before.reads, counts.spare_reads - before.spare_reads), (1, 6));
    world.write(&mut again, "d0/1", 5000, &[1; 3000]).unwrap();
    world.sync(&mut again, false).unwrap();
    assert_eq!(again.nand().counts().erases, counts.erases);
    fs = again;
    let before = fs.nand().counts();
    let mut listed = 0;
    let dir = fs.lookup(ROOT, b"d0").unwrap();
    let mut fs = reopen(fs, true);
    let after_mount = fs.nand().counts();
    let mut ids = Vec::new();
    fs.list(dir, 0, &mut |entry| {
        ids.push(entry.id);
        listed += entry.name.len();
        true
    })
    .unwrap();
    ids.iter().for_each(|id| assert_eq!(fs.attr(*id).unwrap().mode, 0o100_644));
    let counts = fs.nand().counts();
    assert_eq!((counts.reads, counts.spare_reads), (after_mount.reads, after_mount.spare_reads), "a listing");
    assert!(listed > 0 && after_mount.reads > before.reads);
}

#[test]
fn after_a_crash_one_block_is_read_whatever_the_size_of_the_part() {
    for blocks in [32, 256] {
        let mut fs = make(crate::Geometry { blocks, ..GEOMETRY }, 64 << 10, Config::default());
        let mut world = World::default();
        for number in 0..200 {
            world.write(&mut fs, &std::format!("d0/{}", number % 7), 0, &[number; 20_000]).unwrap();
        }
        world.sync(&mut fs, false).unwrap();
        let before = fs.nand().counts();
        let mut fs = reopen(fs, false);
        let counts = fs.nand().counts();
        let (pages, spares) = (counts.reads - before.reads, counts.spare_reads - before.spare_reads);
        assert_eq!(fs.report().kind, MountKind::Recovered);
        assert!(pages <= 2 && spares <= 65, "{pages} pages and {spares} spare areas");
        world.check_all(&mut fs, "recovered");
    }
}

#[test]
fn a_full_part_refuses_and_goes_on_when_something_was_removed() {
    let mut fs = make(GEOMETRY, 16 << 10, small(Layout::Compact));
    let mut world = World::default();
    let mut last = 0;
    for number in 0..1000 {
        match world.write(&mut fs, &std::format!("d0/{number}"), 0, &[number as u8; 30_000]) {
            Ok(()) => last = number,
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                break;
            }
        }
    }
    assert!((90..130).contains(&last), "{last} files of 30 KB in 4 MiB");
    world.forget(&std::format!("d0/{}", last + 1));
    for number in 0..last {
        world.unlink(&mut fs, &std::format!("d0/{number}")).unwrap();
    }
    // What was begun when it was full.
    let dir = fs.lookup(ROOT, b"d0").unwrap();
    let _ = fs.unlink(dir, std::format!("{}", last + 1).as_bytes(), false);
    for number in 0..60 {
        world.write(&mut fs, &std::format!("d1/{number}"), 0, &[number as u8; 30_000]).unwrap();
    }
    let mut fs = reopen(fs, true);
    world.check_all(&mut fs, "after it was full");
}

#[test]
fn cleaning_pauses_are_bounded_and_wear_is_even_after_ten_device_writes() {
    // 64 blocks for the log, two for format records.
    let mut fs = make(
        crate::Geometry { blocks: 66, pages_per_block: 16, ..GEOMETRY },
        16 << 10,
        Config { wear_limit: 8, ..Config::default() },
    );
    let mut world = World::default();
    // Seven tenths of it are cold, then a few files take all writes.
    for number in 0..27 {
        world.write(&mut fs, &std::format!("d0/{number}"), 0, &[number; 51_200]).unwrap();
    }
    let mut random = Random::new(4);
    let writes = 10 * 64 * 16 / 2;
    for number in 0..writes {
        let at = random.below(60) as usize * 2048;
        world.write(&mut fs, "d1/hot", at, &[number as u8; 2048]).unwrap();
        world.sync(&mut fs, false).unwrap();
    }
    let (stats, wear) = (fs.stats(), fs.wear());
    assert!(stats.copies_in_a_pause <= 16, "{stats:?}");
    assert!(wear.max - wear.min <= 16 && stats.levelled > 0, "{wear:?} {stats:?}");
    world.check_all(&mut fs, "after ten device writes");
    let mut fs = reopen(fs, true);
    assert_eq!(fs.wear(), wear, "the NVRAM keeps the counts");
    world.check_all(&mut fs, "after it was opened again");
}

#[test]
fn blocks_that_fail_are_emptied_and_not_used_again() {
    let mut fs = make(GEOMETRY, 16 << 10, small(Layout::Compact));
    let (mut world, mut random) = (World::default(), Random::new(8));
    for round in 0..800u32 {
        if round % 50 == 0 {
            let block = round / 50 * 3 % 32;
            fs.nand_mut().fail_next(block);
        }
        world.step(&mut fs, &mut random, 120_000).unwrap();
    }
    assert!(fs.stats().failures > 2, "{:?}", fs.stats());
    world.check_all(&mut fs, "after failures");
    let mut fs = reopen(fs, true);
    world.check_all(&mut fs, "after failures, opened again");
}

#[test]
fn links_keep_an_object_alive_and_take_over_its_name() {
    let mut fs = make(GEOMETRY, 16 << 10, Config::default());
    let dir = fs.create(ROOT, b"dir", &node(Kind::Dir)).unwrap();
    let file = fs.create(ROOT, b"a", &node(Kind::File)).unwrap();
    fs.write(file, 0, b"contents").unwrap();
    fs.link(file, dir, b"b").unwrap();
    fs.link(file, dir, b"c").unwrap();
    assert_eq!(fs.attr(file).unwrap().links, 3);
    fs.unlink(ROOT, b"a", false).unwrap();
    for clean in [true, false, true] {
        fs.sync().unwrap();
        fs = reopen(fs, clean);
        assert_eq!((fs.lookup(dir, b"b").unwrap(), fs.attr(file).unwrap().links), (file, 2));
        assert_eq!(fs.check(true).unwrap(), []);
    }
    fs.rename(dir, b"c", dir, b"b", false).unwrap();
    assert_eq!(fs.attr(file).unwrap().links, 2, "two names of one object stay");
    fs.unlink(dir, b"b", false).unwrap();
    fs.unlink(dir, b"c", true).unwrap();
    assert_eq!(fs.attr(file).unwrap().links, 0);
    let mut bytes = [0; 8];
    fs.read(file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"contents");
    let mut fs = reopen(fs, false);
    fs.sync().unwrap();
    assert_eq!(fs.attr(file), Err(Error::Stale), "what nobody has open is gone after a mount");
}

/// Every cut of an exchange, and of a rename over a file that has another name, leaves all of it or nothing, with
/// the NVRAM and without.
#[test]
fn two_names_move_in_one_step_wherever_the_power_goes() {
    let mut tried = [0; 3];
    for (geometry, layout) in GEOMETRIES.into_iter().zip([Layout::Compact, Layout::Paper].into_iter().cycle())
    {
        for (filler, swaps) in (0..20).flat_map(|filler| [(filler, true), (filler, false)]) {
            let mut fs = make(geometry, 16 << 10, small(layout));
            let dirs = [b"x", b"y"].map(|name| fs.create(ROOT, name, &node(Kind::Dir)).unwrap());
            let [one, two] = [0, 1].map(|at| {
                let id = fs.create(dirs[at], b"name", &node(Kind::File)).unwrap();
                fs.write(id, 0, &[at as u8; 3000]).unwrap();
                id
            });
            if !swaps {
                fs.link(two, dirs[0], b"link").unwrap();
            }
            // The two headers come anywhere in a block.
            let rest = fs.create(ROOT, b"rest", &node(Kind::File)).unwrap();
            fs.write(rest, 0, &alloc::vec![1; filler * geometry.page_bytes as usize]).unwrap();
            fs.sync().unwrap();
            let config = *fs.config();
            let (nand, nvram) = fs.into_media();
            let nvram = nvram.unwrap();
            for cut in 1..60 {
                let power = Power::default();
                let mut fs =
                    Fs::open(nand.copy_on(power.clone()), Some(nvram.copy_on(power.clone())), config)
                        .unwrap();
                power.cut_in(cut, Torn::ALL[cut as usize % 4]);
                power.set_luck(cut + filler as u64);
                let done = match swaps {
                    true => fs.exchange(dirs[0], b"name", dirs[1], b"name"),
                    false => fs.rename(dirs[0], b"name", dirs[1], b"name", false),
                };
                let went = power.is_off();
                power.on();
                let (nand, nvram) = fs.into_media();
                let what = std::format!("{layout:?}, filler {filler}, swaps {swaps}, cut {cut}: {done:?}");
                for memory in [nvram, None] {
                    let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
                    let found = dirs.map(|dir| fs.lookup(dir, b"name"));
                    let link = fs.lookup(dirs[0], b"link");
                    let before = found == [Ok(one), Ok(two)]
                        && link == if swaps { Err(Error::NotFound) } else { Ok(two) };
                    let after = match swaps {
                        true => found == [Ok(two), Ok(one)],
                        false => found == [Err(Error::NotFound), Ok(one)] && link == Ok(two),
                    };
                    assert!(
                        if done.is_ok() { after } else { before || after },
                        "{what}: {found:?}, {link:?}"
                    );
                    tried[usize::from(after) + usize::from(done.is_ok())] += 1;
                    assert_eq!(fs.check(true).unwrap(), [], "{what}");
                    let mut fs = reopen(fs, true);
                    assert_eq!(dirs.map(|dir| fs.lookup(dir, b"name")), found, "{what}, opened again");
                    let (nand, _) = fs.into_media();
                    let mut alone: super::world::TestFs = Fs::open(nand, None, config).unwrap();
                    assert_eq!(dirs.map(|dir| alone.lookup(dir, b"name")), found, "{what}, scanned again");
                }
                if !went {
                    break;
                }
            }
        }
    }
    assert!(tried.iter().all(|count| *count > 50), "{tried:?}");
}

/// A part with all kinds of files, ended with a checkpoint.
fn with_checkpoint(layout: Layout, pointer: usize) -> (RamNand, Option<RamNvram>, World, Config) {
    let mut fs = make(Geometry { blocks: 64, ..GEOMETRY }, 16 << 10, small(layout));
    let (mut world, mut random) = (World::default(), Random::new(pointer as u64));
    for _ in 0..500 {
        world.step(&mut fs, &mut random, 60_000).unwrap();
    }
    world.sync(&mut fs, true).unwrap();
    let config = *fs.config();
    assert!(fs.checkpoint(pointer).unwrap());
    let (nand, nvram) = fs.into_media();
    (nand, nvram, world, config)
}

#[test]
fn one_image_mounts_from_nvram_from_a_checkpoint_and_by_a_scan() {
    for (layout, pointer) in [(Layout::Compact, 4), (Layout::Paper, 8)] {
        let (nand, nvram, world, config) = with_checkpoint(layout, pointer);
        let open = |nvram: Option<RamNvram>, all: bool| -> super::world::TestFs {
            let before = nand.counts();
            let opened = match all {
                true => Fs::open_scanning(nand.clone(), nvram, config),
                false => Fs::open(nand.clone(), nvram, config),
            };
            let fs = opened.unwrap();
            let reads =
                fs.nand().counts().reads + fs.nand().counts().spare_reads - before.reads - before.spare_reads;
            std::println!("{layout:?}, {:?}: {reads} reads", fs.report().kind);
            fs
        };
        for (memory, all, kind) in [
            (nvram.clone(), false, MountKind::Clean),
            (None, false, MountKind::Checkpoint),
            (None, true, MountKind::Scanned),
        ] {
            let mut fs = open(memory, all);
            let what = std::format!("{layout:?}, {kind:?}");
            // Between two blocks the paper's marker is not believed.
            assert!(
                fs.report().kind == kind
                    || layout == Layout::Paper && fs.report().kind == MountKind::Recovered
            );
            let mut world = world.clone();
            world.check_all(&mut fs, &what);
            // The first write ends the checkpoint; a crash after it finds what was written.
            world.write(&mut fs, "d1/after", 0, &[9; 5000]).unwrap();
            world.sync(&mut fs, false).unwrap();
            let (nand, _) = fs.into_media();
            let mut fs: super::world::TestFs = Fs::open(nand, None, config).unwrap();
            assert_eq!(fs.report().kind, MountKind::Scanned, "{what}");
            world.check_all(&mut fs, &std::format!("{what}, written to"));
            // After a scan no block is known to be erased; a checkpoint finds its place all the same.
            assert!(fs.checkpoint(pointer).unwrap(), "{what}");
            let mut fs: super::world::TestFs = Fs::open(fs.into_media().0, None, config).unwrap();
            assert_eq!(fs.report().kind, MountKind::Checkpoint, "{what}");
            world.check_all(&mut fs, &std::format!("{what}, with a new checkpoint"));
        }
    }
}

/// The power goes while a checkpoint is erased before a write, and while the next one is written.
#[test]
fn checkpoints_come_and_go_wherever_the_power_does() {
    for layout in [Layout::Compact, Layout::Paper] {
        let (nand, nvram, base, config) = with_checkpoint(layout, 4);
        let nvram = nvram.unwrap();
        let cut_all = |cut: u64| -> bool {
            let (power, mut world) = (Power::default(), base.clone());
            let media = (nand.copy_on(power.clone()), nvram.copy_on(power.clone()));
            let mut fs = Fs::open(media.0, Some(media.1), config).unwrap();
            power.cut_in(cut, Torn::ALL[cut as usize % 4]);
            power.set_luck(cut * 31);
            let done = world
                .write(&mut fs, "d0/late", 0, &[3; 9000])
                .and_then(|()| world.sync(&mut fs, false))
                .and_then(|()| fs.checkpoint(8));
            let went = power.is_off();
            assert!(went || done == Ok(true), "{done:?}");
            power.on();
            let (nand, nvram) = fs.into_media();
            for memory in [nvram, None] {
                let what = std::format!("{layout:?}, cut {cut}, NVRAM {}", memory.is_some());
                let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
                let mut world = world.clone();
                world.check_synced(&mut fs, &what);
                world.start_over(&mut fs);
                world.write(&mut fs, "d1/on", 0, &[4; 5000]).unwrap();
                world.sync(&mut fs, false).unwrap();
                world.check_all(&mut fs, &what);
                let mut fs = reopen(fs, false);
                world.check_all(&mut fs, &what);
            }
            went
        };
        let cuts = (1..3000).find(|cut| !cut_all(*cut)).expect("it ends");
        assert!(cuts > 20, "{cuts} operations");
    }
}

#[test]
fn a_spoilt_checkpoint_costs_a_scan_and_no_file() {
    let (nand, _, world, config) = with_checkpoint(Layout::Compact, 4);
    let mut opened: super::world::TestFs = Fs::open(nand.clone(), None, config).unwrap();
    let pages = opened.volume.log.checkpoint_pages();
    assert!(!pages.is_empty() && opened.report().kind == MountKind::Checkpoint);
    for number in 0..60usize {
        let mut nand = nand.clone();
        let page = pages[number % pages.len()];
        match number {
            0..5 => nand.spoil(page),
            _ => nand.flip(page, number * 2711 % (2048 * 8)),
        }
        let mut fs: super::world::TestFs = Fs::open(nand, None, config).unwrap();
        assert_eq!(fs.report().kind, MountKind::Scanned, "page {page}, {number}");
        world.check_all(&mut fs, &std::format!("page {page} of the checkpoint spoilt, {number}"));
    }
}

#[test]
fn attributes_links_and_special_files_read_back() {
    let mut fs = make(GEOMETRY, 16 << 10, Config { names: Names::Off, ..Config::default() });
    fs.set_now(Time { sec: 1_000_000, nsec: 5 });
    let link = fs.create(ROOT, b"link", &node(Kind::Symlink)).unwrap();
    let pipe = fs.create(ROOT, b"pipe", &node(Kind::Special)).unwrap();
    fs.set_attribute(pipe, b"user.color", Some(b"blue")).unwrap();
    fs.set_attribute(pipe, b"user.size", Some(&[1; 900])).unwrap();
    assert_eq!(fs.set_attribute(pipe, b"user.more", Some(&[1; 900])), Err(Error::AttributesFull));
    fs.set_attr(
        pipe,
        &SetAttr { perm: Some(0o600), atime: Some(Time { sec: -5, nsec: 3 }), ..SetAttr::default() },
    )
    .unwrap();
    for clean in [true, false] {
        fs.sync().unwrap();
        fs = reopen(fs, clean);
        assert_eq!(
            (fs.read_link(link).unwrap(), fs.attr(link).unwrap().size),
            (b"somewhere/else".to_vec(), 14)
        );
        assert_eq!(fs.attribute(pipe, b"user.color").unwrap(), b"blue");
        assert_eq!(fs.attributes(pipe).unwrap().len(), 2);
        let attr = fs.attr(pipe).unwrap();
        assert_eq!((attr.mode, attr.atime, attr.mtime.nsec), (0o10_600, Time { sec: -5, nsec: 3 }, 5));
    }
    fs.set_attribute(pipe, b"user.size", None).unwrap();
    assert_eq!(fs.attribute(pipe, b"user.size"), Err(Error::NoAttribute));
}

#[test]
fn files_have_holes_and_grow_to_the_size_of_the_part() {
    let mut fs = make(GEOMETRY, 16 << 10, Config::default());
    let file = fs.create(ROOT, b"sparse", &node(Kind::File)).unwrap();
    fs.write(file, 3 << 30, b"end").unwrap();
    fs.write(file, 5000, &[1; 9000]).unwrap();
    assert_eq!(fs.seek(file, 0, Seek::Data), Ok(4096));
    fs.punch(file, 6000, 13_000).unwrap();
    assert_eq!((fs.seek(file, 4096, Seek::Hole), fs.seek(file, 8192, Seek::Data)), (Ok(6144), Ok(12_288)));
    fs.sync().unwrap();
    let config = *fs.config();
    for way in 0..3 {
        fs = match way {
            0 => reopen(fs, true),
            1 => reopen(fs, false),
            _ => {
                let (nand, nvram) = fs.into_media();
                Fs::open_scanning(nand, nvram, config).unwrap()
            }
        };
        let mut bytes = [9; 9000];
        fs.read(file, 5000, &mut bytes).unwrap();
        assert!(bytes[..1000].iter().all(|b| *b == 1) && bytes[1000..8000].iter().all(|b| *b == 0));
        assert!(bytes[8000..].iter().all(|b| *b == 1), "way {way}");
        assert_eq!(fs.attr(file).unwrap().size, (3 << 30) + 3);
        assert_eq!(fs.check(true).unwrap(), []);
    }
    let page = [5; 2048];
    let whole = fs.create(ROOT, b"whole", &node(Kind::File)).unwrap();
    let mut at = 0;
    while fs.write(whole, at, &page).is_ok() {
        at += 2048;
    }
    // Two blocks hold format records.
    assert!(at > 30 * 64 * 2048 * 8 / 10, "{at} bytes of 4 MiB");
    fs.unlink(ROOT, b"whole", false).unwrap();
    assert_eq!(fs.attr(whole), Err(Error::Stale));
}

#[test]
fn nvram_of_another_part_is_refused_and_one_that_fell_behind_is_not_believed() {
    let mut fs = make(GEOMETRY, 16 << 10, Config::default());
    let mut world = World::default();
    world.write(&mut fs, "d0/f", 0, &[1; 50_000]).unwrap();
    let config = *fs.config();
    let (nand, nvram) = fs.close().unwrap();
    let other_nand = RamNand::new(GEOMETRY);
    let other = Fs::format(other_nand, nvram.clone(), config, [8; 16], true).unwrap();
    let (_, others) = other.close().unwrap();
    assert!(matches!(Fs::open(nand.clone(), others, config), Err(Error::Mismatch(_))));
    // Written without its NVRAM, which then comes back.
    let mut alone: super::world::TestFs = Fs::open(nand, None, config).unwrap();
    world.write(&mut alone, "d0/f", 10_000, &[2; 500]).unwrap();
    alone.sync().unwrap();
    let (nand, _) = alone.into_media();
    let mut fs = Fs::open(nand, nvram, config).unwrap();
    assert_eq!(fs.report().why, "the NAND was written without this NVRAM");
    world.check_all(&mut fs, "with a stale NVRAM");
    let mut fs = reopen(fs, true);
    assert_eq!(fs.report().kind, MountKind::Clean);
    world.check_all(&mut fs, "after it caught up");
}

#[test]
fn a_spoilt_nvram_costs_a_scan_and_no_file() {
    for layout in [Layout::Compact, Layout::Paper] {
        let mut fs = make(GEOMETRY, 4 << 10, small(layout));
        let (mut world, mut random) = (World::default(), Random::new(3));
        for _ in 0..60 {
            world.step(&mut fs, &mut random, 30_000).unwrap();
        }
        world.sync(&mut fs, true).unwrap();
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        let nvram = nvram.unwrap();
        let mut found = 0;
        for at in (0..4096).step_by(13).chain(0..16) {
            for damage in [1u8 << (at % 8), 0xff] {
                let mut spoilt = nvram.clone();
                let to = if damage == 0xff { (at + 24).min(4096) } else { at + 1 };
                spoilt.bytes_mut()[at..to].iter_mut().for_each(|byte| *byte ^= damage);
                let what = std::format!("{layout:?}, bytes {at} to {to} spoilt");
                let mut fs = Fs::open(nand.clone(), Some(spoilt), config)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                found += u32::from(fs.report().kind == MountKind::Scanned);
                world.check_all(&mut fs, &what);
            }
        }
        assert!(found > 50, "{layout:?}: {found} found");
    }
}

/// A record whose head says that it is of something else is missed, though nothing that is looked for is spoilt.
#[test]
fn a_wrong_bit_in_what_a_record_is_of_costs_a_scan_and_no_file() {
    for layout in [Layout::Compact, Layout::Paper] {
        let mut fs = make(GEOMETRY, 4 << 10, small(layout));
        let (mut world, mut random) = (World::default(), Random::new(3));
        for _ in 0..60 {
            world.step(&mut fs, &mut random, 30_000).unwrap();
        }
        world.write(&mut fs, "d0/long", 600 * 2048, &[3; 2048]).unwrap();
        world.sync(&mut fs, true).unwrap();
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        let nvram = nvram.unwrap();
        for word in 0..512 {
            // Kind, and the number of what it is of, with that of the piece.
            for bit in [20, 21, 22, 23, 24, 26, 28, 32, 42, 43] {
                let mut spoilt = nvram.clone();
                spoilt.bytes_mut()[word * 8 + bit / 8] ^= 1 << (bit % 8);
                let what = std::format!("{layout:?}, bit {bit} of word {word}");
                let mut fs = Fs::open(nand.clone(), Some(spoilt), config)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                world.check_all(&mut fs, &what);
            }
        }
    }
}

/// A marker that says by mistake that nothing was written since the update is found out, too.
#[test]
fn a_marker_of_the_papers_layout_that_lies_costs_a_scan_and_no_file() {
    for steps in 1..40 {
        let mut fs = make(GEOMETRY, 8 << 10, small(Layout::Paper));
        let (mut world, mut random) = (World::default(), Random::new(11));
        for _ in 0..steps {
            world.step(&mut fs, &mut random, 20_000).unwrap();
        }
        world.sync(&mut fs, true).unwrap();
        for number in 0..steps % 4 {
            world.write(&mut fs, "d0/late", number * 3000, &[7; 2500]).unwrap();
            world.sync(&mut fs, false).unwrap();
        }
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        let mut nvram = nvram.unwrap();
        nvram.bytes_mut()[4] = 1;
        let mut fs = Fs::open(nand, Some(nvram), config).unwrap();
        assert!(steps % 4 == 0 || fs.report().kind != MountKind::Clean, "{steps} steps");
        world.check_all(&mut fs, &std::format!("{steps} steps"));
    }
}

#[test]
fn too_small_an_nvram_is_said_and_the_file_system_goes_on() {
    let mut fs = make(GEOMETRY, 700, small(Layout::Compact));
    let (mut world, mut random) = (World::default(), Random::new(3));
    for _ in 0..150 {
        world.step(&mut fs, &mut random, 60_000).unwrap();
    }
    for number in 0..200 {
        world.write(&mut fs, &std::format!("d0/n{number}"), number * 1000, &[1; 100]).unwrap();
        world.write(&mut fs, &std::format!("d0/n{}", number / 2), number * 500, &[2; 10]).unwrap();
    }
    world.sync(&mut fs, true).unwrap();
    assert!(fs.nvram_overflows());
    let mut fs = reopen(fs, true);
    assert_eq!(fs.report().kind, MountKind::Scanned);
    world.check_all(&mut fs, "after an overflow");
    assert!(fs.lookup(ROOT, b"lost+found").is_err() || fs.attr(LOST_FOUND).is_ok());
}

/// The four features of the paper's table 2, which no other hybrid file system there has together.
#[test]
fn metadata_is_in_memory_compressed_brought_up_to_date_and_recovered() {
    for layout in [Layout::Compact, Layout::Paper] {
        let config = Config { layout, ..Config::default() };
        let mut fs = make(GEOMETRY, 16 << 10, config);
        let mut world = World::default();
        for number in 0..30 {
            world.write(&mut fs, &std::format!("d0/{number}"), 0, &[number; 40_000]).unwrap();
        }
        // In memory: what was read once is not read again.
        let mut fs = reopen(fs, true);
        let dir = fs.lookup(ROOT, b"d0").unwrap();
        fs.lookup(dir, b"7").unwrap();
        let (nand, nvram) = (fs.nand().counts(), fs.nvram_mut().unwrap().read_bytes);
        let file = fs.lookup(dir, b"8").unwrap();
        fs.attr(file).unwrap();
        assert_eq!((fs.nand().counts(), fs.nvram_mut().unwrap().read_bytes), (nand, nvram));
        // Compressed: less than the paper's own records, 24 bytes and 36 for every 16 pages.
        let raw = 40 + 8 * 32 + 30 * (24 + 36 * 2);
        let (used, _) = fs.nvram_used().unwrap();
        assert!(used < raw, "{layout:?}: {used} of {raw} bytes");
        // Brought up to date: every five seconds, if something changed.
        fs.update_if_due(10_000).unwrap();
        world.write(&mut fs, "d0/7", 100, &[1; 50]).unwrap();
        assert_eq!(fs.update_if_due(14_999).unwrap(), None);
        assert!(fs.update_if_due(15_000).unwrap().is_some());
        assert_eq!(fs.update_if_due(20_000).unwrap(), None, "nothing changed since");
        // Recovered: what came after the update is found without reading all of the NAND.
        world.write(&mut fs, "d0/8", 9000, &[2; 5000]).unwrap();
        world.sync(&mut fs, false).unwrap();
        let before = fs.nand().counts();
        let mut fs = reopen(fs, false);
        assert_eq!(fs.report().kind, MountKind::Recovered);
        let spares = fs.nand().counts().spare_reads - before.spare_reads;
        assert!(spares <= 32 + 3 * 64, "{layout:?}: {spares} spare areas of 2048");
        world.check_all(&mut fs, "recovered");
    }
}

#[test]
fn a_volume_with_summaries_is_whole_without_them_and_the_other_way_round() {
    let with = small(Layout::Compact);
    for (first, second) in [(true, false), (false, true)] {
        let (mut world, mut random) = (World::default(), Random::new(5));
        let mut fs = make(GEOMETRY, 8192, Config { summaries: first, ..with });
        for round in 0..6 {
            for _ in 0..60 {
                world.step(&mut fs, &mut random, 9000).unwrap();
            }
            world.sync(&mut fs, true).unwrap();
            let summaries = if round % 2 == 0 { second } else { first };
            let (nand, nvram) = fs.close().unwrap();
            fs = Fs::open(nand, nvram, Config { summaries, ..with }).unwrap();
            world.check_all(&mut fs, "with summaries otherwise");
            assert_eq!(fs.check(true), Ok(Vec::new()));
        }
    }
}

#[test]
fn the_fsync_of_a_directory_keeps_what_was_made_in_it() {
    for layout in [Layout::Compact, Layout::Paper] {
        for memory in [true, false] {
            let mut fs = make(GEOMETRY, 16 << 10, small(layout));
            let dir = fs.create(ROOT, b"dir", &node(Kind::Dir)).unwrap();
            fs.sync().unwrap();
            let names = [(&b"file"[..], Kind::File), (b"sub", Kind::Dir), (b"link", Kind::Symlink)];
            for (name, kind) in names {
                fs.create(dir, name, &node(kind)).unwrap();
            }
            fs.sync_object(dir).unwrap();
            let config = *fs.config();
            let (nand, nvram) = fs.into_media();
            let mut fs = Fs::open(nand, nvram.filter(|_| memory), config).unwrap();
            for (name, kind) in names {
                let id = fs.lookup(dir, name).unwrap_or_else(|error| panic!("{layout:?}, {kind:?}: {error}"));
                assert_eq!(fs.attr(id).unwrap().kind, kind);
            }
        }
    }
}
