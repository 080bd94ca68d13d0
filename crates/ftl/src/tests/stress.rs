//! Read disturb, retention, read retry and refresh below every scheme: a page reads as its last version or as an error, one
//! seed gives one run, and what is refreshed in time is not lost.

use super::*;
use bimetal_media::nand::Causes;

const DAY: u64 = 86_400_000_000_000;

/// A part that reads and time wear on: half of the eight bits of 512 bytes that can be corrected are wrong on average after
/// 244 reads of a block, or 24 days.
fn stressed(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    small(|part| {
        (part.blocks, part.ecc_bits) = (32, 8);
        (part.read_disturb_errors, part.retention_errors_per_day) = (4e-6, 4e-5);
        (part.read_retry, part.refresh_percent) = (vec![0.8, 0.5, 0.25], Some(50.0));
        change(part);
    })
}

impl Checked {
    /// Reads a page, whose contents may be lost; whether they are not.
    fn reads(&mut self, page: u64) -> bool {
        match self.ftl.read(Time::ZERO, Lpn(page)) {
            Ok(found) => {
                assert!(found.place.is_some());
                let tag = self.ftl.tag(Lpn(page)).unwrap();
                let shown = (u64::from(tag.owner), write_of(tag.sequence));
                assert_eq!(shown, (page, self.last[page as usize]), "{} {}", self.name, self.settings);
                true
            }
            Err(Error::Corrupt { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A full device that is mostly read, some pages more often than others, for so many days; how often a read failed.
fn live(name: &'static str, settings: &str, part: &NandProfile, seed: u64, days: u64) -> (Checked, u64) {
    let nand = Nand::new(part.clone(), seed, true, Payload::None);
    let mut checked = Checked::new(name, settings, nand);
    let pages = checked.last.len() as u64;
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let (mut random, mut failed) = (Random::new(seed, "stress"), 0);
    for step in 0..200 * days {
        checked.ftl.nand_mut().see(Time(step * DAY / 200));
        let is_hot = random.chance(0.8);
        let page = random.below(if is_hot { pages.div_ceil(10) } else { pages });
        if random.chance(0.05) {
            checked.write(page).unwrap();
        } else {
            failed += u64::from(!checked.reads(page));
        }
    }
    (checked, failed)
}

fn counts(checked: &Checked) -> (FtlCounts, bimetal_media::nand::NandCounts, Causes) {
    let nand = checked.ftl.nand();
    (checked.ftl.counts(), nand.counts(), nand.work())
}

#[test]
fn what_is_refreshed_in_time_is_not_lost_and_what_is_not_is_an_error() {
    for scheme in SCHEMES {
        let (mut failures, mut refreshed_blocks, mut moved) = (0, 0, 0);
        for settings in variants(scheme.name) {
            let (refreshed, failed) = live(scheme.name, settings, &stressed(|_| ()), 3, 60);
            let (ftl, nand, work) = counts(&refreshed);
            let (name, blocks) = (scheme.name, ftl.refreshed_blocks);
            assert_eq!((failed, ftl.lost_pages), (0, 0), "{name} {settings}");
            // A block whose copies wait for others is erased with these.
            let later = u64::from(refreshed.ftl.page_units() > 1);
            let erased = work.refresh.erases + later >= blocks;
            assert!(erased && nand.corrected_bits > 0, "{name} {settings}: {work:?}");
            (refreshed_blocks, moved) = (refreshed_blocks + blocks, moved + work.refresh.copies);
            // Without it, and without thresholds that help.
            let part = stressed(|part| (part.refresh_percent, part.read_retry) = (None, Vec::new()));
            let (left, failed) = live(scheme.name, settings, &part, 3, 60);
            let (ftl, nand, work) = counts(&left);
            assert_eq!((ftl.refreshed_blocks, work.refresh), (0, Default::default()), "{name} {settings}");
            assert!(nand.unreadable >= nand.retries, "{name} {settings}: {nand:?}");
            failures += failed;
        }
        // Levelling and merges may have moved all in time.
        assert!(failures > 0 && refreshed_blocks > 0 && moved > 0, "{}", scheme.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn one_seed_is_one_run_and_contents_never_differ(
        seed in 0u64..1000,
        scheme in 0usize..5,
        variant in 0usize..20,
        (disturb, retention) in (0.0f64..4e-5, 0.0f64..8e-4),
        retry in prop::collection::vec(0.0f64..1.0, 0..4),
        refresh in prop::option::of(5.0f64..100.0),
        dies in 1u32..4,
    ) {
        let scheme = SCHEMES.into_iter().nth(scheme).unwrap();
        let settings = variants(scheme.name);
        let settings = settings[variant % settings.len()];
        let part = stressed(|part| {
            (part.read_disturb_errors, part.retention_errors_per_day) = (disturb, retention);
            (part.read_retry, part.refresh_percent, part.dies) = (retry, refresh, dies);
        });
        let (mut one, failed) = live(scheme.name, settings, &part, seed, 10);
        let (other, failed_too) = live(scheme.name, settings, &part, seed, 10);
        prop_assert_eq!((counts(&one), failed), (counts(&other), failed_too));
        one.flush().unwrap();
        let mut nand = one.ftl.into_nand();
        nand.power_on();
        let pages = one.last.len() as u64;
        let mut again = Checked { ftl: open(one.name, nand, &one.settings).unwrap(), ..one };
        for page in 0..pages {
            again.reads(page);
        }
    }
}

#[test]
fn a_power_cut_in_a_refresh_loses_nothing() {
    for scheme in SCHEMES {
        let mut cuts = 0;
        for after in 1..60 {
            let part = stressed(|_| ());
            let (mut checked, failed) = live(scheme.name, "", &part, 5, 1);
            assert_eq!(failed, 0);
            let before = checked.ftl.counts().refreshed_blocks;
            let is_due = |checked: &Checked| checked.ftl.nand().has_due();
            let mut page = 0;
            while !is_due(&checked) {
                assert!(checked.reads(page % 4));
                page += 1;
            }
            checked.ftl.nand_mut().cut_power_in(after);
            match checked.ftl.read(Time::ZERO, Lpn(0)) {
                Err(Error::Gone { .. }) => cuts += 1,
                Ok(_) => assert!(checked.ftl.counts().refreshed_blocks >= before),
                Err(other) => panic!("{other}"),
            }
            checked.reopen(usize::MAX);
        }
        assert!(cuts > 0, "{}: a refresh has programs", scheme.name);
    }
}
