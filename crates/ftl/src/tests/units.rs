//! Map units smaller than a page: that they are pages of a map by themselves, what they cost by theory, and that nothing is lost of
//! what was flushed, whatever the power does to pages that wait for their units.

use super::*;
use crate::device::FtlDevice;
use bimetal_media::nand::Ordering;
use bimetal_media::{BlockDevice, Gather, Request};
use std::collections::BTreeSet;

/// What holds of every page map of several units a page: host's pages hold what the host wrote and padding, and nothing else is
/// programmed but copies and padding.
pub(super) fn is_balanced(checked: &Checked, report: &Report) {
    let units = u64::from(checked.ftl.page_units());
    let (work, padded) = (report.work, report.host_bytes.padding / page_bytes(&*checked.ftl));
    assert_eq!(
        work.cleaning.programs + work.wear_levelling.programs,
        work.cleaning.copies + work.wear_levelling.copies
    );
    assert_eq!((work.host.copies, work.host.erases), (0, 0));
    assert!(work.cleaning.erases > 0 && (work.wear_levelling.erases > 0) == (report.ftl.wear_moves > 0));
    if !checked.settings.contains("streams=one") {
        let beside = work.host.programs * units - report.ftl.host_writes;
        assert!(
            beside <= padded,
            "{}: {beside} units of the host's pages, {padded} padded",
            checked.settings
        );
    }
}

/// A part of one unit with pages of 16 KiB.
fn large_pages(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    small(|part| {
        (part.page, part.spare, part.blocks, part.pages) = (16384, 1024, 256, 16);
        (part.ordering, part.ecc_bytes) = (Ordering::Off, 1024);
        change(part);
    })
}

#[test]
fn a_unit_of_a_page_counts_what_the_page_map_counts() {
    for stream in [streams::Stream::HotCold, streams::Stream::Runs] {
        let counted = ["", "map-unit=page", "map-unit=2KiB"].map(|settings| {
            let part = small(|part| (part.blocks, part.pages) = (512, 64));
            let mut ftl = open("page", new_nand(&part), &both("logical=51200KiB", settings)).unwrap();
            assert_eq!((ftl.logical_pages(), ftl.page_units()), (25_600, 1));
            for page in stream.pages(400, 64) {
                ftl.write(Time::ZERO, Lpn(page), &[]).unwrap();
            }
            (ftl.counts(), ftl.nand().counts(), ftl.nand().wear())
        });
        assert!(counted[0].1.copies > 1000);
        assert_eq!((&counted[1], &counted[2]), (&counted[0], &counted[0]));
    }
}

/// Bytes programmed for each byte of uniform random writes of 4 KiB, in the steady state; and the blocks read, a page.
fn amplification_of(settings: &str, over_provision: f64) -> f64 {
    let nand = Nand::new(large_pages(|_| ()), 1, false, Payload::None);
    let settings = both(&format!("over-provision={over_provision}"), settings);
    let device = FtlDevice::new(open("page", nand, &settings).unwrap());
    let slots = device.info().size_bytes / 4096;
    let mut random = Random::new(1, "uniform");
    let mut write = |slot: u64| {
        let data = Gather::absent(4096);
        device.run(Time::ZERO, Request::Write { offset: slot * 4096, data, durable: false }).result.unwrap();
    };
    (0..slots).for_each(&mut write);
    (0..3 * slots).for_each(|_| write(random.below(slots)));
    let before = device.report();
    (0..2 * slots).for_each(|_| write(random.below(slots)));
    let after = device.report();
    let programs = after.nand.since(&before.nand).programs;
    amplification(programs * after.page_bytes, after.host_bytes.since(&before.host_bytes).written).unwrap()
}

#[test]
fn units_cost_what_theory_says_of_blocks_of_so_many_units_and_whole_pages_four_times_that_of_theirs() {
    for over_provision in [12.5, 28.0] {
        let units = amplification_of("map-unit=4KiB", over_provision);
        let theory = theory::amplification(over_provision, 64.0);
        assert!((units / theory - 1.0).abs() < 0.03, "{over_provision} %: {units:.3}, theory {theory:.3}");
        // Each write of a quarter of a page programs the whole page.
        let pages = amplification_of("", over_provision);
        let theory = 4.0 * theory::amplification(over_provision, 16.0);
        assert!((pages / theory - 1.0).abs() < 0.03, "{over_provision} %: {pages:.3}, theory {theory:.3}");
    }
}

#[test]
fn a_superblock_of_units_is_a_block_of_more_units() {
    let counts = |part: &NandProfile, settings: &str| {
        let mut checked = Checked::new("page", settings, new_nand(part));
        let pages = checked.last.len() as u64;
        let mut random = Random::new(5, "uniform");
        // Not flushed in between.
        let mut write = |page| checked.ftl.write(Time::ZERO, Lpn(page), &[]).map(drop).unwrap();
        (0..pages).for_each(&mut write);
        (0..8000).for_each(|_| write(random.below(pages)));
        (checked.ftl.nand().counts().programs, checked.ftl.nand().counts().erases)
    };
    let settings = "logical=1000KiB:ties=lowest:level=none:map-unit=512B";
    let planes = small(|profile| (profile.planes, profile.blocks, profile.pages) = (4, 24, 8));
    let one = small(|profile| (profile.blocks, profile.pages) = (24, 32));
    let (programs, erases) = counts(&one, settings);
    assert_eq!(counts(&planes, &both(settings, "superblock=die")), (programs, 4 * erases));
    assert!(programs > 4000, "{programs}");
}

#[test]
fn units_wait_for_each_other_and_what_a_flush_leaves_is_padded_and_counted_in_bytes() {
    let mut checked = Checked::new("page", "map-unit=512B", new_nand(&small(|_| ())));
    assert_eq!(checked.last.len() % 4, 0);
    (0..3).for_each(|page| checked.write(page).unwrap());
    assert_eq!((checked.ftl.nand().counts().programs, checked.shown(1)), (0, 2), "three wait, and are read");
    checked.write(3).unwrap();
    checked.write(4).unwrap();
    let Report { nand, work, host_bytes, .. } = report(&*checked.ftl, HostBytes::default());
    assert_eq!((nand.programs, work.host.programs, work.padding.programs), (2, 2, 0), "a flush after five");
    assert_eq!(host_bytes.padding, 3 * 512);
    checked.flush().unwrap();
    assert_eq!(checked.ftl.nand().counts().programs, 2, "nothing waits");
    checked.check();
    assert_eq!(checked.ftl.nand().counts().reads, 4 + 1, "of units that lie in the array");
}

#[test]
fn a_page_is_read_once_however_many_of_its_units_are_copied() {
    let mut checked =
        Checked::new("page", "map-unit=512B:level=none", new_nand(&small(|part| part.blocks = 32)));
    let units = checked.last.len() as u64;
    // Every other unit is given up: all blocks are half valid, and of each page two units.
    (0..units).for_each(|unit| checked.ftl.write(Time::ZERO, Lpn(unit), &[]).map(drop).unwrap());
    (0..units).step_by(2).for_each(|unit| checked.ftl.trim(Time::ZERO, Lpn(unit)).map(drop).unwrap());
    let before = checked.ftl.nand().work();
    (0..200).for_each(|unit| checked.ftl.write(Time::ZERO, Lpn(2 * unit), &[]).map(drop).unwrap());
    let work = checked.ftl.nand().work().since(&before).cleaning;
    assert!(work.erases > 2, "{work:?}");
    // A block of eight pages has sixteen valid units: eight reads, and four pages programmed but for what waits.
    assert_eq!(work.reads, 8 * (work.reads / 8));
    assert!(work.reads.abs_diff(2 * work.copies) <= 2, "{work:?}");
}

#[test]
fn a_device_reads_a_page_once_for_all_of_its_units_that_a_request_touches_and_alone_the_one_that_it_asks_for()
{
    let nand = Nand::new(large_pages(|_| ()), 1, false, Payload::None);
    let device = FtlDevice::new(open("page", nand, "map-unit=4KiB").unwrap());
    let run = |request| device.run(Time::ZERO, request).result.map(drop).unwrap();
    let write = |offset, len| run(Request::Write { offset, data: Gather::absent(len), durable: false });
    write(0, 65536);
    let reads = || device.report().nand.reads;
    for (offset, len, pages) in [(0, 65536, 4), (4096, 4096, 1), (12288, 8192, 2), (5000, 100, 1)] {
        let before = reads();
        run(Request::Read { offset, len });
        assert_eq!(reads() - before, pages, "{len} bytes at {offset}");
    }
    let before = device.report();
    // Whole units are not completed; a part of one is.
    write(20480, 4096);
    write(0, 512);
    let after = device.report();
    assert_eq!((after.nand.reads - before.nand.reads, after.nand.programs - before.nand.programs), (1, 0));
    assert_eq!(after.host_bytes.padding - before.host_bytes.padding, 3584);
    run(Request::Flush);
    let flushed = device.report();
    assert_eq!(flushed.nand.programs - before.nand.programs, 1);
    assert_eq!(flushed.host_bytes.padding - after.host_bytes.padding, 2 * 4096);
    run(Request::Write { offset: 40960, data: Gather::absent(4096), durable: true });
    assert_eq!(device.report().nand.programs - flushed.nand.programs, 1, "it is durable");
}

/// A page map whose pages keep bytes, and what they may hold: the versions written since the last flush, and that of then.
struct Contents {
    settings: &'static str,
    ftl: Box<dyn Ftl>,
    may: Vec<BTreeSet<u8>>,
    last: Vec<u8>,
}

impl Contents {
    fn new(part: &NandProfile, seed: u64, settings: &'static str) -> Contents {
        let nand = Nand::new(part.clone(), seed, true, Payload::memory());
        let ftl = open("page", nand, settings).unwrap();
        let pages = ftl.logical_pages() as usize;
        Contents { settings, ftl, may: vec![BTreeSet::from([0]); pages], last: vec![0; pages] }
    }

    fn bytes(&self, page: u64) -> u8 {
        let bytes = self.ftl.bytes(Lpn(page)).unwrap().unwrap_or_default();
        let first = bytes.first().copied().unwrap_or(0);
        let unit = page_bytes(&*self.ftl) as usize;
        assert!(bytes.is_empty() || bytes.len() == unit && bytes.iter().all(|byte| *byte == first));
        first
    }

    fn write(&mut self, page: u64, byte: u8) -> Result<()> {
        self.may[page as usize].insert(byte);
        let data = vec![byte; page_bytes(&*self.ftl) as usize];
        self.ftl.write(Time::ZERO, Lpn(page), &data)?;
        self.last[page as usize] = byte;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.ftl.pad(Time::ZERO)?;
        self.keep();
        Ok(())
    }

    fn keep(&mut self) {
        for (may, last) in self.may.iter_mut().zip(&self.last) {
            *may = BTreeSet::from([*last]);
        }
    }

    fn check(&mut self) {
        for page in 0..self.last.len() as u64 {
            self.ftl.read(Time::ZERO, Lpn(page)).unwrap();
            assert_eq!(self.bytes(page), self.last[page as usize], "{} {page}", self.settings);
        }
    }

    /// Loses its power and is opened again.
    fn restarted(self) -> Contents {
        let mut nand = self.ftl.into_nand();
        nand.power_on();
        let mut opened = Contents { ftl: open("page", nand, self.settings).unwrap(), ..self };
        for page in 0..opened.last.len() {
            let has = opened.bytes(page as u64);
            assert!(
                opened.may[page].contains(&has),
                "{} {page}: {has}, not of {:?}",
                opened.settings,
                opened.may[page]
            );
            opened.last[page] = has;
        }
        // What was in memory is not any more; what is shown is in the array.
        opened.keep();
        opened
    }
}

const CONTENTS: [&str; 6] = [
    "map-unit=512B",
    "map-unit=1KiB:reserve=2:level=none",
    "map-unit=512B:streams=one:level=static:spread=3",
    "map-unit=512B:superblock=device:handles=2",
    "map-unit=1KiB:superblock=die:clean=cost-benefit",
    "map-unit=2KiB",
];

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn what_was_flushed_reads_back_byte_by_byte_whatever_the_power_does(
        ops in ops(), profile in geometries(), seed in any::<u64>(), failing in any::<bool>()
    ) {
        let grown_bad_per_million = if failing { 2000.0 } else { 0.0 };
        let profile = NandProfile { grown_bad_per_million, blocks: profile.blocks + 4, ..profile };
        for settings in CONTENTS {
            let mut random = Random::new(seed, "contents");
            let mut device = Contents::new(&profile, seed, settings);
            let pages = device.last.len() as u64;
            // Filled, so that it is cleaned.
            for page in 0..pages {
                let written = device.write(page, 1 + random.below(255) as u8);
                prop_assert!(written.is_ok() || device.ftl.is_read_only());
            }
            for op in &ops {
                let done = match *op {
                    Op::Write(page) => device.write(page % pages, 1 + random.below(255) as u8),
                    Op::Trim(_) => device.flush(),
                    Op::Cut(after) => {
                        device.ftl.nand_mut().cut_power_in(after);
                        while device.write(random.below(pages), 1 + random.below(255) as u8).is_ok() {}
                        device = device.restarted();
                        Ok(())
                    }
                };
                prop_assert!(done.is_ok() || failing && device.ftl.is_read_only(), "{settings}: {done:?}");
            }
            device.check();
            device.restarted().check();
        }
    }
}

#[test]
fn units_of_a_page_that_fails_to_program_are_written_elsewhere_from_memory() {
    let mut device = Contents::new(&small(|_| ()), 1, "map-unit=512B");
    (0..8).for_each(|page| device.write(page, 10 + page as u8).unwrap());
    device.ftl.nand_mut().fail_in(1, 1);
    (0..4).for_each(|page| device.write(page, 20 + page as u8).unwrap());
    let report = report(&*device.ftl, HostBytes::default());
    assert_eq!((report.nand.failures, report.wear.bad_blocks), (1, 1));
    device.check();
    device.flush().unwrap();
    device.restarted().check();
}

#[test]
fn a_block_with_the_version_before_of_a_unit_that_waits_is_not_erased() {
    // Cut in every operation after one unit of a full device was written and not flushed.
    for after in 1..200 {
        let mut device = Contents::new(&small(|part| part.blocks = 10), 1, "map-unit=512B:handles=2");
        let pages = device.last.len() as u64;
        (0..pages).for_each(|page| device.write(page, 1).unwrap());
        device.flush().unwrap();
        // It waits alone in a block of its own handle.
        device.may[7].insert(2);
        let unit = vec![2; 512];
        device.ftl.write_placed(Time::ZERO, Lpn(7), &unit, 1).unwrap();
        device.last[7] = 2;
        device.ftl.nand_mut().cut_power_in(after);
        let mut random = Random::new(after, "writes");
        while device.write(random.below(pages), 3).is_ok() {}
        device.restarted().check();
    }
}

#[test]
fn a_map_takes_four_bytes_a_unit_and_its_tags_four_or_twelve_more() {
    let part = large_pages(|_| ());
    let units = |settings: &str| {
        let mut settings = settings::Settings::parse("page", settings).unwrap();
        let map = page::PageMap::open(new_nand(&part), &mut settings, None).unwrap();
        (map.map_bytes(), map.logical_pages())
    };
    let ((pages_bytes, pages), (units_bytes, units)) = (units(""), units("map-unit=4KiB"));
    assert_eq!((pages_bytes, units_bytes), (4 * pages, 4 * units));
    assert!(units.abs_diff(4 * pages) < 4, "{units} units, {pages} pages");
    let tags = |keeps: bool, units: u32| {
        let mut nand = Nand::new(part.clone(), 1, keeps, Payload::None);
        nand.divide(units).unwrap();
        nand.tag_bytes() / u64::from(256 * 16u32)
    };
    assert_eq!(
        [tags(false, 1), tags(true, 1), tags(false, 4), tags(true, 4)],
        [4, 12, 4 + 4 * 4, 12 + 4 * 12]
    );
}

#[test]
fn a_unit_that_cannot_be_is_refused_by_name() {
    let told = |settings: &str| open("page", new_nand(&small(|_| ())), settings).err().unwrap().to_string();
    for wrong in ["256B", "3KiB", "4KiB", "0"] {
        let told = told(&format!("map-unit={wrong}"));
        assert!(told.contains("map-unit=") && told.contains("2 KiB"), "{told}");
    }
    assert!(told("map-unit=sector").contains("map-unit=sector must be page or a size"));
    let other = open("dftl", new_nand(&small(|_| ())), "map-unit=512B").err().unwrap().to_string();
    assert!(other.contains("no option 'map-unit'"), "{other}");
    let mut used = open("page", new_nand(&small(|_| ())), "map-unit=512B").unwrap();
    used.write(Time::ZERO, Lpn(0), &[]).unwrap();
    used.pad(Time::ZERO).unwrap();
    let other = open("page", used.into_nand(), "").err().unwrap().to_string();
    assert!(other.contains("map-unit") && other.contains("units of 512 bytes"), "{other}");
}
