//! Files that are cut within their last page.

use super::*;

/// A file of so many sevens that is on flash.
fn synced_file(layout: Layout, size: usize) -> (TestFs, u32) {
    let mut fs = make(GEOMETRY, 16 << 10, small(layout));
    let file = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
    fs.write(file, 0, &alloc::vec![7; size]).unwrap();
    fs.sync_object(file).unwrap();
    (fs, file)
}

#[test]
fn a_cut_within_the_last_page_is_on_flash_when_it_returns() {
    for layout in LAYOUTS {
        for (size, left) in [(1000, 100), (10_000, 9000), (4096, 4095)] {
            for (updated, goes_on) in [(false, false), (true, false), (false, true), (true, true)] {
                let what = format!("{layout:?}, {size} to {left}, updated {updated}, going on {goes_on}");
                let (mut fs, file) = synced_file(layout, size);
                if updated {
                    fs.update().unwrap();
                }
                fs.truncate(file, left).unwrap();
                if goes_on {
                    // So much that the NVRAM is told, too.
                    let filler = fs.create(ROOT, b"filler", &node(Kind::File)).unwrap();
                    fs.write(filler, 0, &[8; 100 * 2048]).unwrap();
                }
                let config = *fs.config();
                let (nand, nvram) = fs.into_media();
                let mut recovered = Fs::open(nand.clone(), nvram, config).unwrap();
                assert_eq!(recovered.attr(file).unwrap().size, left, "{what}, recovered");
                recovered.sync_object(file).unwrap();
                let (later, _) = recovered.close().unwrap();
                for nand in [nand, later] {
                    let mut fs: TestFs = Fs::open(nand, None, config).unwrap();
                    assert_eq!(fs.attr(file).unwrap().size, left, "{what}, NVRAM lost");
                    fs.truncate(file, size as u64).unwrap();
                    let mut bytes = alloc::vec![1; size];
                    fs.read(file, 0, &mut bytes).unwrap();
                    let (kept, cut) = bytes.split_at(left as usize);
                    assert!(kept.iter().all(|byte| *byte == 7), "{what}");
                    assert!(cut.iter().all(|byte| *byte == 0), "{what}: what was cut off is back");
                }
            }
        }
    }
}

#[test]
fn a_hole_at_the_end_of_the_last_page_keeps_the_size_wherever_the_power_goes() {
    for layout in LAYOUTS {
        let (mut fs, file) = synced_file(layout, 3000);
        fs.punch(file, 2500, 3000).unwrap();
        fs.volume.commit(false).unwrap();
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        for memory in [nvram, None] {
            let mut fs = Fs::open(nand.clone(), memory, config).unwrap();
            assert_eq!(fs.attr(file).unwrap().size, 3000, "{layout:?}");
        }
    }
}

/// The page with the end of a cut file has what was cut off, until it is written again.
#[test]
fn what_was_cut_off_does_not_come_back_where_the_file_grew_behind_it() {
    type Grow = fn(&mut TestFs, u32);
    let ways: [(&str, Grow); 4] = [
        ("a page behind a gap", |fs, file| fs.write(file, 8192, &[8; 4096]).unwrap()),
        ("what follows", |fs, file| fs.write(file, 4500, &[8; 9000]).unwrap()),
        ("parts of pages", |fs, file| {
            for at in 0..9u64 {
                fs.write(file, 8192 + at * 4096, &[8; 10]).unwrap();
            }
        }),
        ("a longer size", |fs, file| fs.truncate(file, 20_000).unwrap()),
    ];
    for (layout, (way, grow)) in LAYOUTS.into_iter().flat_map(|layout| ways.map(|way| (layout, way))) {
        let what = format!("{layout:?}, {way}");
        let (mut fs, file) = synced_file(layout, 5000);
        fs.truncate(file, 4500).unwrap();
        grow(&mut fs, file);
        let config = *fs.config();
        let (nand, nvram) = fs.into_media();
        for memory in [nvram, None] {
            let mut fs: TestFs = Fs::open(nand.clone(), memory, config).unwrap();
            let mut bytes = alloc::vec![1; fs.attr(file).unwrap().size as usize];
            fs.read(file, 0, &mut bytes).unwrap();
            assert!(bytes[..4500].iter().all(|byte| *byte == 7), "{what}");
            assert!(bytes[4500..].iter().all(|byte| *byte != 7), "{what}: what was cut off is back");
        }
    }
}

#[test]
fn a_hole_to_the_end_of_a_file_keeps_its_size_wherever_the_power_goes() {
    for layout in LAYOUTS {
        for (size, from) in [(100_000, 50_000), (100_000, 0), (400_000, 1000), (400_000, 0)] {
            let (mut fs, file) = synced_file(layout, size);
            fs.punch(file, from, size as u64).unwrap();
            let config = *fs.config();
            let (nand, nvram) = fs.into_media();
            for memory in [nvram, None] {
                let what = format!("{layout:?}, {size} from {from}, NVRAM {}", memory.is_some());
                let mut fs: TestFs = Fs::open(nand.clone(), memory, config).unwrap();
                let mut bytes = alloc::vec![1; size];
                assert_eq!(fs.read(file, 0, &mut bytes), Ok(size), "{what}");
                let (kept, gone) = bytes.split_at(from as usize);
                assert!(kept.iter().all(|byte| *byte == 7), "{what}");
                // Bytes of a page of which a part is left may be there until the next sync.
                assert!(gone.iter().skip(2048).all(|byte| *byte == 0), "{what}");
                assert_eq!(fs.check(true), Ok(std::vec::Vec::new()), "{what}");
            }
        }
    }
}

/// A file grows within its last page, and the power fails before it is synced: what the mount after it shows stays, although no
/// header says it, and also where the file was cut after the page was written.
#[test]
fn what_a_replay_says_is_the_end_of_a_file_stays_its_end() {
    let mut grown = 0;
    for layout in LAYOUTS {
        for (grows, cut) in [(2048, None), (1000, None), (2048, Some(700)), (2048, Some(60))] {
            for written in [true, false] {
                let what = format!("{layout:?}, {grows} bytes, cut {cut:?}, written {written}");
                let mut fs = make(GEOMETRY, 16 << 10, small(layout));
                let id = fs.create(ROOT, b"file", &node(Kind::File)).unwrap();
                fs.write(id, 0, &[b'a'; 100]).unwrap();
                fs.sync().unwrap();
                let mut fs = world::reopen(fs, true);
                fs.write(id, 0, &std::vec![b'b'; grows]).unwrap();
                let other = fs.create(ROOT, b"other", &node(Kind::File)).unwrap();
                // The cache has no room for it, and the page goes to the log.
                for round in 0..3 {
                    fs.write(other, round * 200_000, &[1; 200_000]).unwrap();
                }
                if let Some(size) = cut {
                    fs.truncate(id, size).unwrap();
                }
                let config = *fs.config();
                let (nand, nvram) = fs.into_media();
                let mut fs: TestFs = Fs::open(nand, nvram, config).unwrap();
                let shown = fs.attr(id).unwrap().size;
                grown += u32::from(shown == grows as u64);
                if written {
                    let third = fs.create(ROOT, b"third", &node(Kind::File)).unwrap();
                    fs.write(third, 0, &[2; 2048]).unwrap();
                }
                fs.sync().unwrap();
                let (nand, nvram) = fs.close().unwrap();
                for nvram in [nvram, None] {
                    let mut fs: TestFs = Fs::open(nand.clone(), nvram, config).unwrap();
                    assert_eq!(fs.attr(id).unwrap().size, shown, "{what}");
                }
            }
        }
    }
    assert!(grown > 0, "no page was written before the power failed");
}
