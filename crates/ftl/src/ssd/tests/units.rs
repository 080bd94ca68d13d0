//! Map units smaller than a page behind a write cache: what is programmed together, what is not read, and what survives.

use super::*;

/// An SSD whose pages of 2 KiB hold four units.
fn units(change: impl FnOnce(&mut SsdProfile)) -> Ssd {
    ssd(|profile| {
        profile.settings = "map-unit=512B".into();
        change(profile);
    })
}

#[test]
fn units_that_make_up_a_page_are_programmed_by_one_command_wherever_they_belong() {
    let ssd = units(|_| ());
    for unit in [3, 100, 7] {
        write(&ssd, 0, unit * 512, 512, false);
    }
    assert_eq!(ssd.report().nand.programs, 0, "three wait for a fourth");
    let arrived = write(&ssd, 0, 41 * 512, 512, false);
    assert_eq!(ssd.report().nand.programs, 1);
    assert_eq!(flush(&ssd, arrived), arrived + PROGRAM);
    assert_eq!(read(&ssd, 1_000_000, 100 * 512, 512), 1_010_000 + READ + 512);
    assert_eq!((&ssd as &dyn BlockDevice).read(7 * 512, 512).unwrap(), vec![7; 512]);
}

#[test]
fn a_flush_pads_a_page_and_reads_nothing_to_complete_it() {
    let ssd = units(|_| ());
    let written = write(&ssd, 0, 0, 8192, false);
    let flushed = flush(&ssd, written);
    assert_eq!(flush(&ssd, flushed), flushed + 10_000, "whole pages");
    let arrived = write(&ssd, 2_000_000, 512, 512, false);
    let before = ssd.report();
    assert_eq!(flush(&ssd, arrived), arrived + 10_000 + PROGRAM, "it begins with the flush");
    let Report { nand, host_bytes, work, .. } = ssd.report();
    assert_eq!((nand.reads, nand.programs - before.nand.programs, work.padding.programs), (0, 1, 0));
    assert_eq!((host_bytes.padding, ssd.stats().completed_pages), (3 * 512, 0));
    assert_eq!(nand.programs * 2048, host_bytes.written + host_bytes.padding);
    // Three quarters of the first page and the padded one, each read once.
    read(&ssd, 3_000_000, 0, 2048);
    assert_eq!(ssd.report().nand.reads, 3, "the page, the other one, and the page again");
}

#[test]
fn a_durable_write_of_a_unit_is_done_when_its_padded_page_is_programmed() {
    let ssd = units(|_| ());
    assert_eq!(write(&ssd, 0, 4096, 512, true), 10_512 + PROGRAM);
    assert_eq!(ssd.report().host_bytes.padding, 3 * 512);
}

#[test]
fn every_byte_that_was_written_is_programmed_coalesced_or_waits() {
    let ssd = units(|profile| profile.protected = true);
    let mut random = Random::new(1, "bytes");
    for at in 0..3000u64 {
        let (offset, len) = (random.below(SIZE / 512 - 8) * 512, (1 + random.below(8)) as usize * 512);
        write(&ssd, at * 50_000, offset, len, random.chance(0.02));
        let Report { host_bytes, work, .. } = ssd.report();
        let HostBytes { written, padding, coalesced, waiting, .. } = host_bytes;
        assert_eq!(written + padding, work.host.programs * 2048 + coalesced + waiting, "{host_bytes:?}");
    }
    ssd.write_back(Time(1 << 40)).unwrap();
    let Report { host_bytes, nand, .. } = ssd.report();
    assert_eq!(host_bytes.waiting, 0);
    assert!(host_bytes.coalesced > 0 && nand.copies > 0, "{host_bytes:?} {nand:?}");
}

#[test]
fn random_writes_of_a_unit_cost_what_theory_says_of_units_and_four_times_that_without() {
    let amplification = |settings: &str| {
        let part = NandProfile { pages: 16, ..profile::load::<NandProfile>("slc-2k").unwrap().ideal() };
        let profile = profile_of(|profile| profile.settings = format!("over-provision=28:{settings}"));
        let ssd = Ssd::of_part(&profile, part, Data::Nowhere(8 << 20), 1).unwrap();
        let units = ssd.info().size_bytes / 512;
        let mut random = Random::new(1, "units");
        let put =
            |unit: u64| Request::Write { offset: unit * 512, data: Gather::absent(512), durable: false };
        let (filled, _) = keep_busy(&ssd, (0, 16), units, put);
        let (aged, _) = keep_busy(&ssd, (filled, 16), 2 * units, |_| put(random.below(units)));
        let before = ssd.report();
        keep_busy(&ssd, (aged, 16), 2 * units, |_| put(random.below(units)));
        let after = ssd.report();
        let programs = after.nand.since(&before.nand).programs;
        let written = after.host_bytes.since(&before.host_bytes).written;
        (programs * 2048) as f64 / written as f64
    };
    let (units, pages) = (amplification("map-unit=512B"), amplification("map-unit=page"));
    let theory = crate::theory::amplification(28.0, 64.0);
    assert!((units / theory - 1.0).abs() < 0.03, "{units:.3}, theory {theory:.3}");
    assert!((3.5..4.2).contains(&(pages / units)), "{pages:.3} without, {units:.3}");
}

#[test]
fn a_part_has_as_many_bytes_for_the_host_in_units_as_in_pages() {
    let profile = SsdProfile { settings: "map-unit=4KiB".into(), ..profile::load("ssd-tlc").unwrap() };
    let ssd = Ssd::new(&profile, Data::Nowhere(1 << 30), 1).unwrap();
    let model = ssd.model.lock();
    let ftl = model.flash.ftl();
    assert_eq!((ftl.page_units(), ftl.logical_pages()), (4, (1 << 30) / 4096));
    let flash = ftl.nand().geometry().bytes() as f64;
    assert!(flash < 1.2 * f64::from(1 << 30), "{flash}");
}

proptest! {
    #![proptest_config(crate::tests::cases(64))]

    /// After a cut each sector shows its last flushed version or one written since.
    #[test]
    fn what_was_flushed_in_units_survives_any_power_cut(ops in ops(), variant in 0..5usize) {
        let settings = [
            "map-unit=512B",
            "map-unit=1KiB",
            "map-unit=1KiB:handles=2:level=static",
            "map-unit=512B:streams=one:reserve=2",
            "map-unit=512B:superblock=die",
        ][variant];
        let ssd = self::ssd(|profile| {
            profile.settings = settings.into();
            if settings.contains("superblock") {
                profile.nand = "slc-4k-x8".into();
            }
        });
        survives(ssd, &ops)?;
    }
}
