//! The NAND model's rules, times and failures, by hand-computed cases.

use super::*;
use crate::profile;
use crate::ram::Ram;
use std::sync::Arc;

fn profile() -> NandProfile {
    profile::load::<NandProfile>("slc-2k").unwrap().ideal()
}

fn nand_of(change: impl FnOnce(&mut NandProfile)) -> Nand {
    let mut profile = profile();
    profile.blocks = 8;
    change(&mut profile);
    Nand::new(profile, 1, true, Payload::memory())
}

fn tag(owner: u32) -> Tag {
    Tag { owner, sequence: u64::from(owner) * 10 }
}

const PAGE: u64 = 2112 * 25;

#[test]
fn operations_take_what_the_data_sheet_says() {
    let mut nand = nand_of(|_| ());
    let programmed = nand.program(Time(0), 0, 0, tag(5), &[7; 2048]).unwrap();
    assert_eq!(programmed.0, PAGE + 200_000);
    let read = nand.read(Time(1_000_000), 0, 0).unwrap();
    assert_eq!(read.0, 1_000_000 + 15_000 + PAGE, "67.8 µs");
    let (page, spare) = nand.read_spare(Time(2_000_000), 0, 0).unwrap();
    assert_eq!((page, spare.0), (Page::Programmed(tag(5)), 2_000_000 + 15_000 + 1_600), "16.6 µs");
    assert_eq!(nand.erase(Time(3_000_000), 0).unwrap().0, 5_000_000);
    assert_eq!(nand.read(Time(3_000_001), 0, 0).err().map(|e| format!("{e:?}")), Some("Unreadable".into()));
}

#[test]
fn one_unit_does_one_thing_after_the_other() {
    let mut nand = nand_of(|_| ());
    nand.program(Time(0), 0, 0, tag(0), &[0; 2048]).unwrap();
    let second = nand.program(Time(0), 1, 0, tag(1), &[0; 2048]).unwrap();
    assert_eq!(second.0, 2 * (PAGE + 200_000));
    // A copy within the unit needs no bus: read, then program.
    let copied = nand.copy(Time(0), (1, 0), (2, 0), tag(1)).unwrap();
    assert_eq!(copied.0, second.0 + 15_000 + 200_000);
    assert_eq!(nand.page(2, 0), Page::Programmed(tag(1)));
}

#[test]
fn commands_take_their_turns_on_the_bus() {
    let mut nand = nand_of(|profile| {
        (profile.chips, profile.command_us, profile.bus_ns_per_byte) = (2, 1.0, 0.0);
    });
    let other = nand.geometry().blocks_per_unit;
    let ready = [0, other].map(|block| nand.program(Time(0), block, 0, tag(0), &[0; 2048]).unwrap().0);
    assert_eq!(ready, [201_000, 202_000]);
    let read = [0, other].map(|block| nand.read(Time(1_000_000), block, 0).unwrap().0 - 1_000_000);
    assert_eq!(read, [16_000, 17_000], "the second command after the first");
    let erased = [1, other + 1].map(|block| nand.erase(Time(2_000_000), block).unwrap().0 - 2_000_000);
    assert_eq!(erased, [2_001_000, 2_002_000]);
}

#[test]
fn two_dies_share_the_bus_but_not_the_array() {
    let mut nand = nand_of(|profile| profile.chips = 2);
    let other = nand.geometry().blocks_per_unit;
    let first = nand.program(Time(0), 0, 0, tag(0), &[0; 2048]).unwrap();
    let second = nand.program(Time(0), other, 0, tag(1), &[0; 2048]).unwrap();
    assert_eq!((first.0, second.0), (PAGE + 200_000, 2 * PAGE + 200_000));
    let mut nand = nand_of(|profile| profile.channels = 2);
    nand.program(Time(0), 0, 0, tag(0), &[0; 2048]).unwrap();
    let second = nand.program(Time(0), other, 0, tag(1), &[0; 2048]).unwrap();
    assert_eq!(second.0, PAGE + 200_000, "each channel by itself");
    // Across units a copy goes over the bus, twice.
    let copied = nand.copy(Time(1_000_000), (0, 0), (other, 1), tag(2)).unwrap();
    assert_eq!(copied.0, 1_000_000 + 15_000 + 2 * PAGE + 200_000);
}

#[test]
#[should_panic(expected = "not erased")]
fn a_page_is_programmed_once() {
    let mut nand = nand_of(|profile| profile.page_order = PageOrder::Any);
    nand.program(Time(0), 0, 3, tag(0), &[0; 2048]).unwrap();
    let _ = nand.program(Time(0), 0, 3, tag(0), &[0; 2048]);
}

#[test]
#[should_panic(expected = "out of order")]
fn pages_are_programmed_in_order() {
    let mut nand = nand_of(|_| ());
    nand.program(Time(0), 0, 3, tag(0), &[0; 2048]).unwrap();
    let _ = nand.program(Time(0), 0, 2, tag(0), &[0; 2048]);
}

#[test]
fn bytes_are_kept_in_memory_or_in_a_sparse_file() {
    let profile = NandProfile { blocks: 8, ..profile() };
    let ram = Arc::new(Ram::new("payload", profile.geometry().bytes()));
    for payload in [Payload::memory(), Payload::Device(ram)] {
        let mut nand = Nand::new(profile.clone(), 1, true, payload);
        nand.program(Time(0), 3, 5, tag(9), &[9; 2048]).unwrap();
        nand.copy(Time(0), (3, 5), (4, 0), tag(9)).unwrap();
        nand.erase(Time(0), 3).unwrap();
        assert_eq!(nand.bytes(4, 0).unwrap(), vec![9; 2048]);
        assert_eq!(nand.page(3, 5), Page::Erased);
    }
}

#[test]
fn a_block_lasts_its_endurance_and_not_one_erase_more() {
    let mut nand = nand_of(|profile| profile.endurance = 3);
    for _ in 0..3 {
        nand.erase(Time(0), 0).unwrap();
    }
    assert!(matches!(nand.erase(Time(0), 0), Err(Failure::Erase)));
    assert!(nand.is_bad(0));
    let wear = nand.wear();
    assert_eq!((nand.erases(0), wear.max, wear.min, wear.bad_blocks), (3, 3, 0, 1));
}

#[test]
fn a_cut_program_leaves_a_torn_page_and_a_cut_erase_a_torn_block() {
    let mut nand = nand_of(|_| ());
    nand.program(Time(0), 0, 0, tag(0), &[0; 2048]).unwrap();
    nand.cut_power_in(2);
    nand.program(Time(0), 0, 1, tag(1), &[0; 2048]).unwrap();
    assert!(matches!(nand.program(Time(0), 0, 2, tag(2), &[0; 2048]), Err(Failure::PowerOff)));
    assert!(matches!(nand.read(Time(0), 0, 0), Err(Failure::PowerOff)));
    nand.power_on();
    let pages: Vec<Page> = (0..4).map(|page| nand.page(0, page)).collect();
    assert_eq!(pages, [Page::Programmed(tag(0)), Page::Programmed(tag(1)), Page::Torn, Page::Erased]);
    assert!(matches!(nand.read(Time(0), 0, 2), Err(Failure::Unreadable)));
    nand.cut_power_in(1);
    assert!(matches!(nand.erase(Time(0), 0), Err(Failure::PowerOff)));
    nand.power_on();
    assert_eq!(nand.page(0, 0), Page::Torn);
    nand.erase(Time(0), 0).unwrap();
    assert_eq!(nand.page(0, 0), Page::Erased);
}

#[test]
fn wrong_bits_grow_with_wear_until_pages_cannot_be_read() {
    let mut nand = nand_of(|profile| {
        profile.endurance = 100;
        profile.bit_errors_worn = 2e-4;
    });
    let mut unreadable = Vec::new();
    for age in [1, 50, 100] {
        while nand.erases(0) < age {
            nand.erase(Time(0), 0).unwrap();
        }
        nand.program(Time(0), 0, 0, tag(0), &[0; 2048]).unwrap();
        let failed = (0..10_000).filter(|_| nand.read(Time(0), 0, 0).is_err()).count();
        unreadable.push(failed);
    }
    // Worn: 16 384 bits · 2e-4 = 3.28 wrong bits in four words of which each may have one: a word is
    // readable with e^-0.82 · 1.82 = 0.80, all four with 0.413. At half of that age: 0.929.
    assert_eq!(unreadable[0], 0);
    assert!((640..780).contains(&unreadable[1]), "{unreadable:?}");
    assert!((5720..6020).contains(&unreadable[2]), "{unreadable:?}");
    assert!(nand.counts().corrected_bits > 0);
}

#[test]
fn factory_bad_blocks_are_the_same_for_the_same_seed() {
    let bad = |seed| -> Vec<bool> {
        let profile = profile::load::<NandProfile>("slc-512").unwrap();
        let nand = Nand::new(profile, seed, false, Payload::None);
        (0..4096).map(|block| nand.is_bad(block)).collect()
    };
    assert_eq!(bad(1), bad(1));
    assert_ne!(bad(1), bad(2));
    let count = bad(1).iter().filter(|bad| **bad).count();
    assert!((15..60).contains(&count), "0.85 % of 4096: {count}");
}

#[test]
fn copies_at_once_are_the_same_as_one_after_the_other() {
    let prepared = |payload| {
        let mut nand = Nand::new(NandProfile { blocks: 8, ..profile() }, 1, true, payload);
        for (block, page) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
            nand.program(Time(0), block, page, tag(block * 10 + page), &[1; 2048]).unwrap();
        }
        nand
    };
    // The first page lies in the target already, the second in block 1, the third nowhere.
    let sources = [2 * 64 + 1, 64 + 2, 0, 1];
    let (mut at_once, mut single) = (prepared(Payload::None), prepared(Payload::None));
    assert!(at_once.copy_many(Time(7), &sources, (2, 0), |sequence| sequence + 1));
    for (from, to) in [((1, 1), (2, 1)), ((0, 0), (2, 3))] {
        let Page::Programmed(old) = single.page(from.0, from.1) else { panic!("programmed above") };
        single.copy(Time(7), from, to, Tag { sequence: old.sequence + 1, ..old }).unwrap();
    }
    let told = |nand: &Nand| {
        let pages: Vec<Page> = (0..8)
            .flat_map(|block| (0..64).map(move |page| (block, page)))
            .map(|(block, page)| nand.page(block, page))
            .collect();
        (pages, nand.counts(), nand.free_at(0), nand.next_page(2))
    };
    assert_eq!(told(&at_once), told(&single));
    assert!(!prepared(Payload::memory()).copy_many(Time(7), &sources, (2, 0), |sequence| sequence));
}

#[test]
fn each_unit_of_a_page_has_a_tag_of_its_own_until_the_block_is_erased() {
    let mut nand = nand_of(|_| ());
    nand.divide(4).unwrap();
    let tags = [9, 2, 7, 2].map(tag);
    let done = nand.program_units(Time(0), (1, 0), &tags, &[3; 2048], false).unwrap();
    assert_eq!(done.0, PAGE + 200_000, "the page is one program");
    assert_eq!([0, 1, 2, 3].map(|unit| nand.unit(1, 0, unit)), tags.map(Page::Programmed));
    assert_eq!([nand.unit(1, 1, 3), nand.unit(0, 0, 0)], [Page::Erased; 2]);
    nand.program_units(Time(0), (1, 1), &tags, &[3; 2048], true).unwrap();
    assert_eq!((nand.counts().programs, nand.counts().copies), (2, 1));
    assert!(nand.divide(2).unwrap_err().to_string().contains("units of 512 bytes"));
    nand.divide(4).unwrap();
    nand.erase(Time(0), 1).unwrap();
    assert_eq!(nand.unit(1, 0, 2), Page::Erased);
}

#[test]
fn a_page_of_units_that_is_cut_off_holds_none_of_them() {
    let mut nand = nand_of(|_| ());
    nand.divide(2).unwrap();
    nand.cut_power_in(1);
    let tags = [1, 2].map(tag);
    assert!(matches!(nand.program_units(Time(0), (0, 0), &tags, &[], false), Err(Failure::PowerOff)));
    assert_eq!([0, 1].map(|unit| nand.unit(0, 0, unit)), [Page::Torn; 2]);
}
