//! What holds for every scheme: each page reads as its last acknowledged version, whatever the stream, the
//! geometry and the power do; no block is erased beyond its endurance; wear stays level.

mod cells;
mod counts;
mod faults;
mod greedy;
mod stress;
mod superblocks;
mod units;

use super::*;
use bimetal_base::random::Random;
use bimetal_media::nand::{NandProfile, PageOrder, Payload};
use bimetal_media::profile;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;

/// A small array without faults.
fn small(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    let mut profile = profile::load::<NandProfile>("slc-2k").unwrap().ideal();
    (profile.blocks, profile.pages) = (16, 8);
    change(&mut profile);
    profile
}

fn new_nand(profile: &NandProfile) -> Nand {
    Nand::new(profile.clone(), 1, true, Payload::None)
}

/// Settings and more settings, either of which may be none.
fn both(settings: &str, more: &str) -> String {
    [settings, more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(":")
}

/// A scheme with what each page must read as.
struct Checked {
    name: &'static str,
    settings: String,
    ftl: Box<dyn Ftl>,
    writes: u64,
    /// The write that each page must show; 0: none.
    last: Vec<u64>,
    /// Pages trimmed and not written since: after power loss they may show any version.
    trimmed: Vec<bool>,
    /// Where what is written may wait in memory: what pages showed when nothing did, and the writes of each since. After power
    /// loss a page may show any of these.
    waiting: BTreeMap<u64, Vec<u64>>,
}

/// Where what is written may wait, it is flushed after so many writes.
const FLUSH_EVERY: u64 = 5;

impl Checked {
    fn new(name: &'static str, settings: &str, nand: Nand) -> Checked {
        let ftl = open(name, nand, settings).unwrap();
        let pages = ftl.logical_pages() as usize;
        Checked {
            name,
            settings: settings.to_string(),
            ftl,
            writes: 0,
            last: vec![0; pages],
            trimmed: vec![false; pages],
            waiting: BTreeMap::new(),
        }
    }

    fn write(&mut self, page: u64) -> Result<()> {
        // Not by the page alone, so that versions of a page lie under different handles.
        let handle = (page ^ self.writes >> 2) % 5;
        let before = self.last[page as usize];
        let gathers = self.ftl.page_units() > 1;
        if gathers {
            self.waiting.entry(page).or_insert_with(|| vec![before]);
        }
        self.ftl.write_placed(Time::ZERO, Lpn(page), &[], handle as u8)?;
        self.writes += 1;
        if gathers {
            self.waiting.entry(page).or_default().push(self.writes);
        }
        self.last[page as usize] = self.writes;
        // What was given up is not any more once that survives power loss.
        self.trimmed[page as usize] &= gathers;
        if gathers && self.writes.is_multiple_of(FLUSH_EVERY) { self.flush() } else { Ok(()) }
    }

    /// Has nothing wait in memory any more.
    fn flush(&mut self) -> Result<()> {
        self.ftl.pad(Time::ZERO)?;
        for page in std::mem::take(&mut self.waiting).into_keys() {
            self.trimmed[page as usize] = false;
        }
        Ok(())
    }

    fn trim(&mut self, page: u64) {
        self.ftl.trim(Time::ZERO, Lpn(page)).unwrap();
        self.last[page as usize] = 0;
        self.trimmed[page as usize] = true;
        self.waiting.remove(&page);
    }

    /// The number of the write that `page` shows.
    fn shown(&mut self, page: u64) -> u64 {
        let found = self.ftl.read(Time::ZERO, Lpn(page)).unwrap();
        let Some((block, number)) = found.place else { return 0 };
        let here = match self.ftl.page_units() {
            1 => self.ftl.nand().page(block, number),
            _ => self.ftl.tag(Lpn(page)).map_or(Page::Torn, Page::Programmed),
        };
        match here {
            Page::Programmed(tag) => {
                assert_eq!(u64::from(tag.owner), page);
                write_of(tag.sequence)
            }
            other => panic!("{} {}: page {page} lies on an {other:?} page", self.name, self.settings),
        }
    }

    fn check(&mut self) {
        for page in 0..self.last.len() as u64 {
            let shown = self.shown(page);
            assert_eq!(shown, self.last[page as usize], "{} {} page {page}", self.name, self.settings);
        }
    }

    /// Writes until the power is cut off in the `after`-th program or erase, or the flash is worn out; then
    /// opens it again and checks.
    fn cut(mut self, after: u64, random: &mut Random) -> Checked {
        self.ftl.nand_mut().cut_power_in(after);
        let unsure = loop {
            let page = random.below(self.last.len() as u64);
            match self.write(page) {
                Ok(()) => {}
                Err(Error::Gone { .. }) => break page as usize,
                Err(_) if self.ftl.is_read_only() => break usize::MAX,
                Err(other) => panic!("{other}"),
            }
        };
        self.reopen(unsure)
    }

    /// Turns the power on again after a cut during a write to page `unsure`, opens it and checks.
    fn reopen(self, unsure: usize) -> Checked {
        let mut nand = self.ftl.into_nand();
        nand.power_on();
        let mut opened = Checked { ftl: open(self.name, nand, &self.settings).unwrap(), ..self };
        for page in 0..opened.last.len() {
            let shown = opened.shown(page as u64);
            let last = opened.last[page];
            // The page under way may show the write that was cut off; a trimmed one any version.
            let waited = opened.waiting.get(&(page as u64)).is_some_and(|writes| writes.contains(&shown));
            let may =
                shown == last || opened.trimmed[page] || waited || page == unsure && shown > opened.writes;
            let (name, settings) = (opened.name, &opened.settings);
            assert!(may, "{name} {settings}: page {page} shows write {shown}, not {last}");
            opened.last[page] = shown;
        }
        opened.waiting.clear();
        // The numbers of writes of which nothing is left may be used again.
        if opened.write(0).is_ok() {
            opened.writes = opened.shown(0);
            opened.last[0] = opened.writes;
        }
        opened
    }
}

/// Settings each scheme is tried with.
fn variants(name: &str) -> &'static [&'static str] {
    match name {
        "page" => &[
            "",
            "clean=cost-benefit:level=none",
            "level=static:spread=4",
            "streams=one:reserve=2",
            "streams=one:reserve=2:begin=short:level=none",
            "reserve=2:begin=short:ties=lowest",
            "over-provision=50:level=none",
            "handles=4:level=none",
            "handles=3:streams=one:reserve=2",
            "superblock=die",
            "superblock=channel:streams=one:reserve=2",
            "superblock=device:handles=3:clean=cost-benefit:level=static:spread=4",
            "map-unit=512B",
            "map-unit=1KiB:streams=one:reserve=2:level=none",
            "map-unit=512B:handles=3:clean=cost-benefit:level=static:spread=4",
            "map-unit=1KiB:begin=short:ties=lowest",
            "map-unit=512B:superblock=device:handles=2",
        ],
        "bast" => &[
            "",
            "victim=lru:merge=lazy:partial=no:first=log:level=none",
            "logs=5:level=static:spread=2",
            "logs=1:victim=lru",
        ],
        "fast" => &[
            "",
            "merge=stale:close=any:partial=no:level=none",
            "logs=5:close=owner:level=static:spread=2",
            "logs=3:close=owner:partial=no",
            "logs=4:partial=whole",
        ],
        "nftl" => &["", "victim=lru:fold=new:level=none", "logs=5:victim=cheapest:level=static:spread=2"],
        "dftl" => &[
            "",
            "cached=4:entries=8",
            "cached=1:entries=16:clean=cost-benefit:level=static:spread=4",
            "cached=20:entries=4:streams=one:reserve=2:level=none",
            "cached=8:entries=8:streams=one:reserve=2:begin=short",
            "cached=4:entries=8:superblock=device",
        ],
        other => panic!("{other} has no settings to be tried with"),
    }
}

#[test]
fn a_request_to_a_full_dftl_writes_every_translation_page_twice_and_a_few_more_at_most() {
    let profile = small(|profile| (profile.blocks, profile.pages) = (512, 8));
    let mut checked = Checked::new("dftl", "cached=4:entries=4:over-provision=0", new_nand(&profile));
    let pages = checked.last.len() as u64;
    let mut random = Random::new(3, "dftl");
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let mut most = 0;
    for _ in 0..3000 {
        let before = checked.ftl.counts().map_writes;
        checked.write(random.below(pages)).unwrap();
        most = most.max(checked.ftl.counts().map_writes - before);
    }
    assert!(most > pages / 8 && most <= pages / 4 * 2 + 70, "{most} for {pages} pages");
    checked.check();
}

#[test]
fn every_page_reads_as_last_written_through_cleaning() {
    for scheme in SCHEMES {
        for settings in variants(scheme.name) {
            let mut random = Random::new(7, "writes");
            let mut checked = Checked::new(scheme.name, settings, new_nand(&small(|_| ())));
            let pages = checked.last.len() as u64;
            (0..pages).for_each(|page| checked.write(page).unwrap());
            for _ in 0..5000 {
                let hot = random.chance(0.7);
                checked.write(random.below(if hot { pages / 4 } else { pages })).unwrap();
            }
            checked.check();
            let counts = checked.ftl.counts();
            let written = counts.host_writes * page_bytes(&*checked.ftl);
            let report = report(&*checked.ftl, HostBytes { written, ..HostBytes::default() });
            assert!(report.nand.erases > 300 && report.write_amplification > 1.0, "{report:?}");
            let Report { nand, work, .. } = report;
            let total = work.total();
            assert_eq!(
                (total.reads, total.programs, total.copies, total.erases),
                (nand.reads, nand.programs, nand.copies, nand.erases)
            );
            // Nothing fails on this part: what is done for whom is what it is called.
            if checked.ftl.page_units() > 1 {
                units::is_balanced(&checked, &report);
                continue;
            }
            assert_eq!((work.host.programs, work.host.reads), (counts.host_writes, counts.host_reads));
            assert_eq!((work.host.copies, work.host.erases, work.map.copies), (0, 0, 0));
            assert_eq!((work.map.programs, work.map.reads), (counts.map_writes, counts.map_reads));
            assert_eq!(work.cleaning.programs, work.cleaning.copies);
            assert!(work.cleaning.erases > 0 && (work.wear_levelling.erases > 0) == (counts.wear_moves > 0));
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64),
    Trim(u64),
    Cut(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        30 => any::<u64>().prop_map(Op::Write),
        3 => any::<u64>().prop_map(Op::Trim),
        1 => (1u64..60).prop_map(Op::Cut),
    ];
    proptest::collection::vec(op, 1..400)
}

fn geometries() -> impl Strategy<Value = NandProfile> {
    (1u32..3, 1u32..3, 1u32..3, 12u32..20, 2u32..10, any::<bool>()).prop_map(
        |(channels, chips, planes, blocks, pages, any_order)| {
            small(|profile| {
                (profile.channels, profile.chips, profile.planes) = (channels, chips, planes);
                (profile.blocks, profile.pages) = (blocks, pages);
                profile.page_order = if any_order { PageOrder::Any } else { PageOrder::Ascending };
            })
        },
    )
}

/// How many cases the property tests run: `usual`, the same every time, or as many as `FTL_CASES` says, new ones.
pub(super) fn cases(usual: u32) -> ProptestConfig {
    match std::env::var("FTL_CASES").ok().and_then(|text| text.parse().ok()) {
        Some(asked) => ProptestConfig::with_cases(asked),
        None => ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(usual) },
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_stream_of_writes_trims_and_cuts_reads_back(
        ops in ops(), profile in geometries(), seed in any::<u64>()
    ) {
        for scheme in SCHEMES {
            for settings in variants(scheme.name) {
                let mut random = Random::new(seed, "cuts");
                let mut checked = Checked::new(scheme.name, settings, new_nand(&profile));
                let pages = checked.last.len() as u64;
                for op in &ops {
                    match *op {
                        Op::Write(page) => checked
                            .write(page % pages)
                            .unwrap_or_else(|why| panic!("{} {settings}: {why}", scheme.name)),
                        Op::Trim(page) => checked.trim(page % pages),
                        Op::Cut(after) => checked = checked.cut(after, &mut random),
                    }
                }
                checked.check();
            }
        }
    }

    #[test]
    fn any_stream_on_failing_flash_reads_back_and_ends_read_only(
        ops in ops(), profile in geometries(), seed in any::<u64>(), endurance in 2u32..30, failing in any::<bool>()
    ) {
        let (grown_bad_per_million, factory_bad_percent) = if failing { (3000.0, 5.0) } else { (0.0, 0.0) };
        let profile = NandProfile { endurance, grown_bad_per_million, factory_bad_percent, ..profile };
        for scheme in SCHEMES {
            for settings in variants(scheme.name) {
                let mut random = Random::new(seed, "cuts");
                let nand = Nand::new(profile.clone(), seed, true, Payload::None);
                let mut checked = Checked::new(scheme.name, settings, nand);
                let pages = checked.last.len() as u64;
                for op in &ops {
                    match *op {
                        Op::Write(page) => {
                            let written = checked.write(page % pages);
                            prop_assert!(written.is_ok() || checked.ftl.is_read_only());
                        }
                        Op::Trim(page) => checked.trim(page % pages),
                        Op::Cut(after) => checked = checked.cut(after, &mut random),
                    }
                }
                checked.check();
                prop_assert!(checked.ftl.nand().wear().max <= endurance);
            }
        }
    }
}

#[test]
fn a_worn_out_device_takes_no_more_writes_and_keeps_what_it_has() {
    for scheme in SCHEMES {
        for settings in variants(scheme.name) {
            let nand = new_nand(&small(|profile| profile.endurance = 20));
            let mut checked = Checked::new(scheme.name, settings, nand);
            let pages = checked.last.len() as u64;
            let mut random = Random::new(3, "wear");
            let error = loop {
                if let Err(error) = checked.write(random.below(pages)) {
                    break error.to_string();
                }
            };
            assert!(error.contains("worn out"), "{error}");
            assert!(checked.ftl.is_read_only());
            let wear = checked.ftl.nand().wear();
            assert!(wear.max <= 20 && wear.bad_blocks > 0, "{wear:?}");
            let (erases, most) = (checked.ftl.nand().counts().erases, 16 * 20);
            assert!(erases > most / 2, "{} {settings}: {erases} of {most} erases", scheme.name);
            checked.check();
        }
    }
}

#[test]
fn failing_programs_and_erases_lose_nothing() {
    for scheme in SCHEMES {
        for settings in variants(scheme.name) {
            let profile = small(|profile| {
                profile.blocks = 64;
                profile.grown_bad_per_million = 4000.0;
                profile.factory_bad_percent = 5.0;
            });
            let mut checked = Checked::new(scheme.name, settings, new_nand(&profile));
            let pages = checked.last.len() as u64 / 2;
            let mut random = Random::new(3, "failures");
            for _ in 0..4000 {
                if checked.write(random.below(pages)).is_err() {
                    break;
                }
            }
            assert!(checked.ftl.nand().counts().failures > 2);
            checked.check();
        }
    }
}

#[test]
fn bit_errors_are_errors_and_never_wrong_pages() {
    for scheme in SCHEMES {
        let profile = small(|profile| {
            profile.blocks = 32;
            profile.endurance = 400;
            profile.bit_errors_worn = 2e-4;
        });
        let mut checked = Checked::new(scheme.name, "", new_nand(&profile));
        let pages = checked.last.len() as u64;
        let mut random = Random::new(3, "bits");
        while checked.ftl.counts().lost_pages < 5 && checked.write(random.below(pages)).is_ok() {}
        assert!(checked.ftl.counts().lost_pages > 0, "worn enough to lose some");
        let mut nand = checked.ftl.into_nand();
        nand.power_on();
        let mut again = Checked { ftl: open(checked.name, nand, "").unwrap(), ..checked };
        let mut lost = 0;
        for page in 0..pages {
            match again.ftl.read(Time::ZERO, Lpn(page)) {
                Ok(_) => assert_eq!(again.shown_or(page), again.last[page as usize]),
                Err(Error::Corrupt { .. }) => lost += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(lost > 0);
    }
}

impl Checked {
    /// What a page shows; its last version if its bits are wrong this time.
    fn shown_or(&mut self, page: u64) -> u64 {
        match self.ftl.read(Time::ZERO, Lpn(page)) {
            Ok(_) => self.shown(page),
            Err(_) => self.last[page as usize],
        }
    }
}

/// The greatest spread of wear while 60,000 writes go to `hot` percent of the pages of a full device, and the
/// erases of the block most worn in the end.
fn spread_of_wear(name: &'static str, settings: &str, hot: u64) -> (u32, u32, Checked) {
    let nand = new_nand(&small(|profile| profile.blocks = 64));
    let mut checked = Checked::new(name, settings, nand);
    let pages = checked.last.len() as u64;
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let mut random = Random::new(5, "hot");
    let mut worst = 0;
    for _ in 0..60_000 {
        checked.write(random.below(pages * hot / 100)).unwrap();
        let wear = checked.ftl.nand().wear();
        worst = worst.max(wear.max - wear.min);
    }
    let most = checked.ftl.nand().wear().max;
    (worst, most, checked)
}

#[test]
fn static_levelling_bounds_the_spread_of_wear() {
    for scheme in SCHEMES {
        let (worst, _, mut checked) = spread_of_wear(scheme.name, "level=static:spread=8", 10);
        assert!(worst <= 2 * 8, "{}: {worst}", scheme.name);
        assert!(checked.ftl.counts().wear_moves > 0);
        checked.check();
    }
}

#[test]
fn dynamic_levelling_bounds_the_spread_of_wear_where_all_pages_are_rewritten() {
    for scheme in SCHEMES {
        let (with, most, mut checked) = spread_of_wear(scheme.name, "level=dynamic", 100);
        let (without, _, _) = spread_of_wear(scheme.name, "level=none", 100);
        println!("{}: {with} of {most} erases, {without} without levelling", scheme.name);
        assert!(with <= 40 && with <= without, "{}: {with} of {most}, {without}", scheme.name);
        assert_eq!(checked.ftl.counts().wear_moves, 0);
        checked.check();
    }
}

/// A while of writing: so many writes to so many percent of the pages, from a page on.
type Phase = (u64, u64, u64);

fn phases() -> impl Strategy<Value = Vec<Phase>> {
    proptest::collection::vec((any::<u64>(), 0u64..=100, 100u64..6000), 1..5)
}

/// The greatest spread of wear seen while a full device is written to in `phases`.
fn spread_over(checked: &mut Checked, phases: &[Phase], random: &mut Random) -> u32 {
    let pages = checked.last.len() as u64;
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let mut worst = 0;
    for (start, percent, writes) in phases {
        for number in 0..*writes {
            let page = start % pages + random.below((pages * percent / 100).max(1));
            checked.write(page % pages).unwrap();
            if number % 8 == 0 {
                let wear = checked.ftl.nand().wear();
                worst = worst.max(wear.max - wear.min);
            }
        }
    }
    worst
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn static_levelling_bounds_the_spread_of_wear_under_any_stream_and_geometry(
        phases in phases(), profile in geometries(), seed in any::<u64>()
    ) {
        const SPREAD: u32 = 8;
        let nand = new_nand(&profile);
        // Within a unit, and between units, which are levelled more loosely.
        let bound = SPREAD * if nand.geometry().units == 1 { 3 } else { 6 };
        for scheme in SCHEMES {
            for settings in variants(scheme.name) {
                let kept = settings.split(':').filter(|one| !one.starts_with("level=") && !one.starts_with("spread="));
                let settings: Vec<&str> = kept.chain(["level=static", "spread=8"]).collect();
                let settings = settings.join(":");
                let mut checked = Checked::new(scheme.name, &settings, new_nand(&profile));
                let worst = spread_over(&mut checked, &phases, &mut Random::new(seed, "wear"));
                prop_assert!(worst <= bound, "{} {settings}: {worst} of {bound}", scheme.name);
                checked.check();
            }
        }
    }
}

#[test]
fn units_wear_alike_where_translation_pages_follow_the_hosts_one_by_one() {
    let nand = new_nand(&small(|profile| (profile.channels, profile.blocks, profile.pages) = (2, 17, 6)));
    let mut checked = Checked::new("dftl", "cached=4:entries=8:level=static:spread=8", nand);
    let phases = [(126, 27, 5919), (88, 20, 1677), (123, 56, 3868), (131, 96, 4921)];
    let worst = spread_over(&mut checked, &phases, &mut Random::new(24, "wear"));
    assert!(worst <= 3 * 8, "{worst}");
    checked.check();
}

/// One unit of so few blocks of so few pages, or several.
fn tiny(channels: u32, dies: u32, blocks: u32, pages: u32) -> NandProfile {
    small(|profile| {
        (profile.channels, profile.dies) = (channels, dies);
        (profile.blocks, profile.pages, profile.page_order) = (blocks, pages, PageOrder::Any);
    })
}

#[test]
fn a_worn_block_is_not_always_the_one_that_is_erased_next() {
    let cases: [(&str, &str, NandProfile, &[Phase], u64); 4] = [
        // The cheapest chain to fold, again and again: of all blocks the most worn one got what is warm.
        (
            "nftl",
            "logs=5:victim=cheapest",
            tiny(1, 1, 13, 5),
            &[(14_136_848_027_707_421_801, 40, 4019), (6_317_936_484_423_765_011, 100, 3339)],
            12_127_190_733_292_356_931,
        ),
        // The only unit with room for the host stayed the only one.
        (
            "page",
            "reserve=2:begin=short:ties=lowest",
            tiny(2, 2, 12, 2),
            &[(2_844_071_043_943_387_575, 100, 1027), (5_555_361_709_895_529_475, 2, 4495)],
            1_964_930_937_402_175_074,
        ),
        (
            "page",
            "streams=one:reserve=2",
            tiny(2, 1, 12, 2),
            &[(1_403_911_493_516_460_304, 96, 4043), (5_191_833_601_460_804_021, 5, 2357)],
            15_513_084_621_204_736_882,
        ),
        // Nothing is cold, but an eighth of the device is one page.
        (
            "fast",
            "logs=5:close=owner",
            tiny(1, 1, 12, 2),
            &[(4_678_535_087_624_329_811, 63, 258), (4_545_458_554_469_258_936, 92, 4487)],
            930_381_262_536_583_587,
        ),
    ];
    for (name, settings, profile, phases, seed) in cases {
        let settings = format!("{settings}:level=static:spread=8");
        let mut checked = Checked::new(name, &settings, new_nand(&profile));
        let worst = spread_over(&mut checked, phases, &mut Random::new(seed, "wear"));
        assert!(worst <= 3 * 8, "{name} {settings}: {worst}");
        checked.check();
    }
}

#[test]
fn a_scheme_that_does_not_exist_or_fit_is_refused_by_name() {
    let told = |name: &str, settings: &str, profile: &NandProfile| {
        open(name, new_nand(profile), settings).err().unwrap().to_string()
    };
    assert!(told("pages", "", &small(|_| ())).contains("there are page"));
    assert!(told("page", "lean=greedy", &small(|_| ())).contains("no option 'lean'"));
    assert!(told("page", "logical=1GiB", &small(|_| ())).contains("blocks are needed"));
    assert!(told("page", "", &small(|profile| profile.blocks = 4)).contains("4 good blocks"));
}
