//! Superblocks: where pages go, that they are blocks of more pages, and what becomes of one of which a block goes bad.

use super::*;

/// Two dies of four planes.
fn two_dies(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    small(|profile| {
        (profile.chips, profile.planes, profile.blocks, profile.pages) = (2, 4, 24, 8);
        change(profile);
    })
}

/// Unit and page of a logical page.
fn unit_and_page(checked: &Checked, page: u64) -> (u32, u32) {
    let (block, number) = checked.ftl.find(Lpn(page)).unwrap();
    (checked.ftl.nand().geometry().unit_of(block), number)
}

#[test]
fn pages_fill_a_stripe_of_a_die_and_then_one_of_the_next() {
    // Units 0, 2, 4, 6 are the planes of die 0.
    let places = |superblock: &str| {
        let mut checked =
            Checked::new("page", &format!("superblock={superblock}"), new_nand(&two_dies(|_| ())));
        (0..12).for_each(|page| checked.write(page).unwrap());
        (0..12).map(|page| unit_and_page(&checked, page)).collect::<Vec<_>>()
    };
    let of_dies =
        [(0, 0), (2, 0), (4, 0), (6, 0), (1, 0), (3, 0), (5, 0), (7, 0), (0, 1), (2, 1), (4, 1), (6, 1)];
    assert_eq!(places("die"), of_dies);
    let of_all: Vec<_> = (0..12).map(|page| (page % 8, page / 8)).collect();
    assert_eq!(places("device"), of_all);
    assert_eq!(places("channel"), of_all, "there is one");
    assert_eq!(places("none"), of_all, "unit after unit");
}

/// Copies, and erases of whole superblocks or blocks, of a stream.
fn counts(profile: &NandProfile, settings: &str) -> (u64, u64) {
    let mut checked = Checked::new("page", settings, new_nand(profile));
    let pages = checked.last.len() as u64;
    let mut random = Random::new(5, "uniform");
    (0..pages).for_each(|page| checked.write(page).unwrap());
    (0..8000).for_each(|_| checked.write(random.below(pages)).unwrap());
    checked.check();
    let counts = checked.ftl.nand().counts();
    (counts.copies, counts.erases)
}

#[test]
fn a_superblock_is_a_block_of_more_pages() {
    let settings = "logical=1000KiB:ties=lowest:level=none";
    let planes = small(|profile| (profile.planes, profile.blocks, profile.pages) = (4, 24, 8));
    let one = small(|profile| (profile.blocks, profile.pages) = (24, 32));
    let (copies, erases) = counts(&one, settings);
    assert_eq!(counts(&planes, &both(settings, "superblock=die")), (copies, 4 * erases));
    assert!(copies > 4000, "{copies}");
}

#[test]
fn a_block_that_goes_bad_leaves_its_superblock_narrower() {
    let profile = two_dies(|_| ());
    let mut checked = Checked::new("page", "superblock=die", new_nand(&profile));
    (0..8).for_each(|page| checked.write(page).unwrap());
    // The program of page 8, on plane 0 of die 0, fails: page 0 lies in the same block and is moved.
    checked.ftl.nand_mut().fail_in(1, 1);
    (8..14).for_each(|page| checked.write(page).unwrap());
    let report = report(&*checked.ftl, HostBytes::default());
    assert_eq!((report.nand.failures, report.wear.bad_blocks), (1, 1));
    assert_eq!((report.work.host.programs, report.work.cleaning.copies), (14, 1));
    assert_eq!(unit_and_page(&checked, 0), (0, 0), "the first page of another superblock of the die");
    let narrower = [(2, 1), (4, 1), (6, 1), (1, 1), (3, 1), (5, 1)];
    let places: Vec<_> = (8..14).map(|page| unit_and_page(&checked, page)).collect();
    assert_eq!(places, narrower, "the other three planes go on");
    checked.check();
}

#[test]
fn nothing_is_lost_of_the_good_blocks_beside_bad_ones() {
    for superblock in ["none", "die", "device"] {
        let profile = two_dies(|profile| profile.factory_bad_percent = 8.0);
        let mut checked = Checked::new("page", &format!("superblock={superblock}"), new_nand(&profile));
        assert!(checked.ftl.nand().wear().bad_blocks > 8);
        let pages = checked.last.len() as u64;
        let good = u64::from(checked.ftl.nand().good_when_new());
        // But for five blocks of each of the eight units, the reserve and open ones, which is more than the over-provision.
        assert_eq!(pages, (good - 8 * 5) * 8);
        let mut random = Random::new(2, "uniform");
        (0..pages).for_each(|page| checked.write(page).unwrap());
        (0..6000).for_each(|_| checked.write(random.below(pages)).unwrap());
        checked.check();
        let Report { nand, work, .. } = report(&*checked.ftl, HostBytes::default());
        assert_eq!(nand.programs, work.host.programs + work.cleaning.copies + work.wear_levelling.copies);
        let copies = nand.copies as f64 / 6000.0;
        assert!((0.5..8.0).contains(&copies), "{superblock}: {copies} copies a write");
    }
}

#[test]
fn an_array_is_read_whatever_superblocks_it_was_written_in() {
    let profile = two_dies(|_| ());
    let mut random = Random::new(9, "settings");
    let mut checked = Checked::new("page", "superblock=none", new_nand(&profile));
    let pages = checked.last.len() as u64;
    for superblock in ["die", "none", "device", "none", "channel", "none"] {
        if checked.settings.ends_with("none") {
            (0..3 * pages).for_each(|_| checked.write(random.below(pages)).unwrap());
        }
        let nand = checked.ftl.into_nand();
        let settings = format!("superblock={superblock}");
        checked = Checked { ftl: open("page", nand, &settings).unwrap(), settings, ..checked };
        checked.check();
    }
}

#[test]
fn a_cut_erase_tears_all_blocks_of_a_superblock() {
    let profile = two_dies(|_| ());
    let mut nand = new_nand(&profile);
    let blocks = [0, 48, 96];
    for block in blocks {
        nand.program(Time::ZERO, block, 0, bimetal_media::nand::Tag { owner: 1, sequence: 1 }, &[]).unwrap();
    }
    assert!(nand.erase_together(Time::ZERO, &blocks).unwrap().is_some());
    assert_eq!(nand.counts().erases, 3);
    nand.cut_power_in(2);
    assert!(matches!(nand.erase_together(Time::ZERO, &blocks), Err(Failure::PowerOff)));
    assert!(blocks.iter().all(|block| nand.page(*block, 0) == bimetal_media::nand::Page::Torn));
}
