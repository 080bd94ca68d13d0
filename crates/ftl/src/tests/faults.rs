//! A fault at each single operation of a merge and of a static levelling: a program or an erase that fails, two in a
//! row, and a power cut.
//!
//! A stream is written to a small full device until a write merges, or moves cold pages, and all it programs and erases
//! is counted. Then the same is done anew for each of these operations, and that one goes wrong.

use super::*;

/// What a write is looked for that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Copies pages, to clean or to merge.
    Copies,
    /// Moves cold pages.
    Levels,
}

/// Writes looked at for one that does what is wanted.
const LOOKED_AT: usize = 3000;

/// A full device with a few spare blocks, and a stream of writes, most of them to a tenth of the pages.
fn begin(name: &'static str, settings: &str) -> (Checked, Vec<u64>) {
    let profile = small(|profile| profile.blocks = 24);
    let room = if settings.contains("over-provision") { "" } else { "over-provision=25" };
    let mut checked = Checked::new(name, &both(settings, room), new_nand(&profile));
    let pages = checked.last.len() as u64;
    (0..pages).for_each(|page| checked.write(page).unwrap());
    let mut random = Random::new(11, "faults");
    let mut page = || {
        let hot = random.chance(0.9);
        random.below(if hot { pages / 10 } else { pages })
    };
    (checked, (0..LOOKED_AT).map(|_| page()).collect())
}

/// Which write of the stream does the work first (after some others), and how many programs and erases it makes.
fn find(name: &'static str, settings: &str, work: Work) -> Option<(usize, u64)> {
    let (mut checked, stream) = begin(name, settings);
    for (number, page) in stream.iter().enumerate() {
        let before = report(&*checked.ftl, HostBytes::default());
        checked.write(*page).unwrap();
        let after = report(&*checked.ftl, HostBytes::default());
        let operations = |report: &Report| report.nand.programs + report.nand.erases;
        let done = match work {
            Work::Copies => after.nand.copies > before.nand.copies + 2,
            Work::Levels => after.ftl.wear_moves > before.ftl.wear_moves,
        };
        if done && number > 50 {
            return Some((number, operations(&after) - operations(&before)));
        }
    }
    None
}

/// Has the device go wrong at each operation of the work, and goes on for a while. Only if it `may_end` may there be no
/// blocks left for more writes.
fn go_wrong(
    name: &'static str,
    settings: &str,
    work: Work,
    may_end: bool,
    fault: impl Fn(&mut Nand, u64),
) -> u64 {
    // A reserve of two leaves one block for copies: if that one fails, nothing is left to copy to.
    let may_end = may_end || settings.contains("reserve=2");
    let Some((number, operations)) = find(name, settings, work) else { return 0 };
    for operation in 1..=operations {
        let (mut checked, stream) = begin(name, settings);
        stream[..number].iter().for_each(|page| checked.write(*page).unwrap());
        fault(checked.ftl.nand_mut(), operation);
        let written = checked.write(stream[number]);
        let cut = checked.ftl.nand().is_off();
        let told = format!("{name} {settings}, {work:?}, operation {operation}: {written:?}");
        assert!(written.is_ok() || cut || may_end && checked.ftl.is_read_only(), "{told}");
        if cut {
            let unsure = if written.is_err() { stream[number] as usize } else { usize::MAX };
            checked = checked.reopen(unsure);
        }
        checked.check();
        for page in stream[number + 1..].iter().take(150) {
            let written = checked.write(*page);
            assert!(written.is_ok() || may_end && checked.ftl.is_read_only(), "{told}, then {written:?}");
        }
        checked.check();
    }
    operations
}

/// All settings of all schemes, once as they are and once with static levelling; see [`go_wrong`].
fn everywhere(may_end: bool, fault: impl Fn(&mut Nand, u64)) {
    for scheme in SCHEMES {
        let (mut copied, mut levelled) = (0, 0);
        for settings in variants(scheme.name) {
            copied += go_wrong(scheme.name, settings, Work::Copies, may_end, &fault);
            let kept =
                settings.split(':').filter(|one| !one.starts_with("level=") && !one.starts_with("spread="));
            let settings = kept.chain(["level=static", "spread=2"]).collect::<Vec<_>>().join(":");
            levelled += go_wrong(scheme.name, &settings, Work::Levels, may_end, &fault);
        }
        assert!(copied > 10 && levelled > 10, "{}: {copied}, {levelled} operations went wrong", scheme.name);
    }
}

#[test]
fn a_program_or_erase_that_fails_at_any_point_of_a_merge_or_a_levelling_loses_nothing() {
    everywhere(false, |nand, operation| nand.fail_in(operation, 1));
}

#[test]
fn two_failures_in_a_row_at_any_point_of_a_merge_or_a_levelling_lose_nothing() {
    everywhere(true, |nand, operation| nand.fail_in(operation, 2));
}

#[test]
fn a_power_cut_at_any_point_of_a_merge_or_a_levelling_loses_nothing() {
    everywhere(false, |nand, operation| nand.cut_power_in(operation));
}
