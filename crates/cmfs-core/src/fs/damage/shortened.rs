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
