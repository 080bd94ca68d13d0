//! Word lines that are programmed in one shot, and an SLC cache: by counts, and that nothing is lost whatever happens.

use super::*;

/// One unit or several of a part with three bits a cell, which can be used with one.
fn tlc(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    small(|profile| {
        (profile.cell_bits, profile.blocks, profile.pages) = (3, 20, 9);
        (profile.slc_read_us, profile.slc_program_us) = (Some(10.0), Some(100.0));
        change(profile);
    })
}

/// The settings that both are tried with.
const VARIANTS: [&str; 10] = [
    "",
    "streams=one:reserve=2",
    "superblock=die:level=static:spread=4",
    "slc=static:slc-size=12KiB",
    "slc=static:slc-size=40KiB:superblock=die:clean=cost-benefit",
    "slc=dynamic:slc-size=24KiB:level=static:spread=4",
    "slc=dynamic:slc-size=48KiB:superblock=device:over-provision=30",
    "map-unit=512B:level=static:spread=4",
    "map-unit=1KiB:slc=static:slc-size=12KiB:superblock=die",
    "map-unit=512B:slc=dynamic:slc-size=24KiB",
];

/// Does what a device does with its layer, now and then.
fn now_and_then(checked: &mut Checked, random: &mut Random) {
    match random.below(12) {
        0 => drop(checked.ftl.pad(Time::ZERO)),
        1 => drop(checked.ftl.work_when_idle(Time::ZERO)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn any_stream_reads_back_from_word_lines_and_the_cache(
        ops in ops(), profile in geometries(), seed in any::<u64>(), one_shot in any::<bool>(), failing in any::<bool>()
    ) {
        let profile = NandProfile { one_shot, pages: 3 * (1 + profile.pages / 3), blocks: profile.blocks + 8, ..profile };
        let profile = tlc(|tlc| *tlc = NandProfile {
            cell_bits: 3,
            slc_read_us: tlc.slc_read_us,
            slc_program_us: tlc.slc_program_us,
            grown_bad_per_million: if failing { 2000.0 } else { 0.0 },
            ..profile
        });
        for settings in VARIANTS {
            let mut random = Random::new(seed, "cuts");
            let nand = Nand::new(profile.clone(), seed, true, Payload::None);
            let Ok(ftl) = open("page", nand, settings) else { continue };
            let mut checked = Checked::new("page", settings, ftl.into_nand());
            let pages = checked.last.len() as u64;
            for op in &ops {
                match *op {
                    Op::Write(page) => {
                        let written = checked.write(page % pages);
                        prop_assert!(written.is_ok() || failing && checked.ftl.is_read_only(), "{settings}: {written:?}");
                    }
                    Op::Trim(page) => checked.trim(page % pages),
                    Op::Cut(after) => checked = checked.cut(after, &mut random),
                }
                now_and_then(&mut checked, &mut random);
            }
            checked.check();
        }
    }
}

#[test]
fn what_is_left_of_a_word_line_is_padded_and_counted() {
    let mut checked = Checked::new("page", "", new_nand(&tlc(|part| part.one_shot = true)));
    assert_eq!((checked.ftl.stripe_pages(), checked.ftl.next_stripe(0)), (3, 3));
    checked.write(0).unwrap();
    assert_eq!(checked.ftl.next_stripe(0), 2);
    checked.ftl.pad(Time::ZERO).unwrap();
    checked.ftl.pad(Time::ZERO).unwrap();
    (1..4).for_each(|page| checked.write(page).unwrap());
    checked.ftl.pad(Time::ZERO).unwrap();
    let work = checked.ftl.nand().work();
    assert_eq!((work.host.programs, work.padding.programs), (4, 2));
    let place = |page| checked.ftl.find(Lpn(page)).unwrap();
    assert_eq!([0, 1, 2, 3].map(|page| place(page).1), [0, 3, 4, 5]);
    checked.check();
}

#[test]
fn layers_that_program_single_pages_refuse_one_shot_parts() {
    for scheme in ["bast", "fast", "nftl", "dftl"] {
        let told = open(scheme, new_nand(&tlc(|part| part.one_shot = true)), "").err().unwrap().to_string();
        assert!(told.contains("one shot") && told.contains("choose page"), "{told}");
    }
}

/// Pages that lie in blocks with one bit a cell.
fn cached(checked: &Checked) -> usize {
    let place = |page| checked.ftl.find(Lpn(page));
    let is_slc = |place: &(u32, u32)| checked.ftl.nand().is_slc(place.0);
    (0..checked.last.len() as u64).filter_map(place).filter(is_slc).count()
}

#[test]
fn a_static_cache_is_filled_first_and_folded_when_there_is_nothing_to_do() {
    // Four blocks of three pages: 24 KiB.
    let settings = "slc=static:slc-size=24KiB";
    let mut checked = Checked::new("page", settings, new_nand(&tlc(|part| part.one_shot = true)));
    let without = Checked::new("page", "", new_nand(&tlc(|part| part.one_shot = true)));
    assert!(checked.last.len() + 4 * 9 <= without.last.len() + 9, "its blocks are not the host's");
    (0..30).for_each(|page| checked.write(page).unwrap());
    assert_eq!(cached(&checked), 12, "the rest went on to blocks of three bits");
    // One block at a time, of each unit.
    let mut folds = 0;
    while checked.ftl.work_when_idle(Time::ZERO).unwrap() {
        folds += 1;
    }
    let work = checked.ftl.nand().work();
    assert_eq!((folds, cached(&checked)), (4, 0));
    assert_eq!((work.folding.copies, work.folding.erases, work.cleaning.copies), (12, 4, 0));
    assert_eq!((work.host.programs, checked.ftl.counts().host_writes), (30, 30));
    (0..12).for_each(|page| checked.write(page).unwrap());
    assert_eq!(cached(&checked), 12, "it is free again");
    checked.check();
}

#[test]
fn what_is_overwritten_in_the_cache_is_not_folded() {
    let mut checked = Checked::new("page", "slc=static:slc-size=24KiB", new_nand(&tlc(|_| ())));
    (0..12).for_each(|round| checked.write(round % 2).unwrap());
    while checked.ftl.work_when_idle(Time::ZERO).unwrap() {}
    let folding = checked.ftl.nand().work().folding;
    assert_eq!((folding.copies, folding.erases), (2, 4));
}

#[test]
fn a_dynamic_cache_gives_its_blocks_back_as_the_device_fills() {
    let mut checked = Checked::new("page", "slc=dynamic:slc-size=72KiB", new_nand(&tlc(|_| ())));
    let without = Checked::new("page", "", new_nand(&tlc(|_| ())));
    assert_eq!(checked.last.len(), without.last.len(), "the host sees as much as without it");
    let pages = checked.last.len() as u64;
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let filled = checked.ftl.nand().work();
    assert!(filled.folding.copies > 20 && cached(&checked) < 36, "{filled:?} {}", cached(&checked));
    let mut random = Random::new(3, "writes");
    (0..2000).for_each(|_| checked.write(random.below(pages)).unwrap());
    while checked.ftl.work_when_idle(Time::ZERO).unwrap() {}
    assert_eq!(cached(&checked), 0, "a full device has no free blocks for it");
    checked.check();
}

#[test]
fn a_cache_that_cannot_be_is_refused_with_the_remedy() {
    let told = |settings: &str, part: &NandProfile| {
        open("page", new_nand(part), settings).err().unwrap().to_string()
    };
    assert!(told("slc=static", &tlc(|_| ())).contains("slc-size"));
    assert!(told("slc-size=1MiB", &tlc(|_| ())).contains("slc=static"));
    assert!(told("slc=static:slc-size=1GiB", &tlc(|_| ())).contains("smaller slc-size"));
    assert!(told("slc=dynamic:slc-size=6KiB:handles=2", &tlc(|_| ())).contains("handles=1"));
    assert!(told("slc=dynamic:slc-size=6KiB", &small(|_| ())).contains("slc_program_us"));
    assert!(told("slc=quick", &tlc(|_| ())).contains("none or static or dynamic"));
}
