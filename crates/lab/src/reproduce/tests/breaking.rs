//! Every verdict can be broken: by figures beyond what is allowed, by rows that change places, by one seed of several, and by what was
//! measured with another parameter or on another device. What is broken here is what was recorded last, of every claim that can be tested.

use super::super::claims::live;
use super::*;

/// What was recorded of every claim that can be tested.
fn recorded() -> Vec<(&'static Claim, Measured)> {
    let mut recorded = claim_table::recorded_figures().unwrap();
    let testable = CLAIMS.iter().filter(|claim| checks(claim).next().is_some());
    let all = testable.map(|claim| {
        let figures = recorded.remove(claim.id);
        (*claim, figures.unwrap_or_else(|| panic!("{}: nothing was recorded", claim.id)))
    });
    all.collect()
}

/// The checks that can be tested.
fn checks(claim: &Claim) -> impl Iterator<Item = &Check<'static>> {
    claim.checks.iter().filter(|check| check.relation.names().next().is_some())
}

fn verdict(claim: &Claim, seeds: Vec<Measured>) -> (Verdict, String) {
    let seeds = (1..).zip(seeds).collect();
    let judged = judge(claim, &Found { seeds }).unwrap();
    (judged.verdict, judged.why)
}

/// The same with every check of a claim that holds under some parameters broken under them, one after the other.
fn all_broken(claim: &Claim, check: &Check<'_>, measured: &Measured) -> Measured {
    claim.ways.iter().fold(measured.clone(), |bad, way| {
        if holds(way, check, &bad) { broken(way.prefix, check, &bad) } else { bad }
    })
}

/// Figures with those of others in their places.
fn with(measured: &Measured, others: Measured) -> Measured {
    let mut measured = measured.clone();
    measured.figures.retain(|figure| others.figures.iter().all(|other| other.name != figure.name));
    measured.figures.extend(others.figures);
    measured
}

#[test]
fn every_check_of_every_claim_can_hold_and_can_fail() {
    for claim in CLAIMS.iter().chain(live::LIVE.iter()) {
        for way in claim.ways {
            for check in checks(claim) {
                let good = wanted(way.prefix, check);
                assert!(holds(way, check, &good), "{}: {}", claim.id, check.what);
                let bad = broken(way.prefix, check, &good);
                assert!(!holds(way, check, &bad), "{}: {}", claim.id, check.what);
            }
        }
    }
}

#[test]
fn of_what_was_measured_every_check_that_holds_can_fail_and_every_one_that_fails_can_hold() {
    let (mut broke, mut mended) = (0, 0);
    for (claim, measured) in recorded() {
        for (way, check) in claim.ways.iter().flat_map(|way| checks(claim).map(move |check| (way, check))) {
            let what = format!("{}: {}{}", claim.id, way.prefix, check.what);
            if holds(way, check, &measured) {
                assert!(!holds(way, check, &broken(way.prefix, check, &measured)), "{what}");
                broke += 1;
            } else {
                // In every setting there is.
                let names = check.relation.names().map(|name| format!("{}{name}", way.prefix));
                let settings = names.map(|name| measured.settings(&name)).max_by_key(Vec::len).unwrap();
                let good = settings.iter().fold(measured.clone(), |good, setting| {
                    with(&good, wanted_in(setting, way.prefix, check))
                });
                assert!(holds(way, check, &good), "{what}");
                mended += 1;
            }
        }
    }
    assert!(broke >= 50 && mended >= 20, "{broke} broke, {mended} were mended");
}

#[test]
fn a_claim_that_holds_fails_when_any_of_its_checks_does() {
    let mut broke = 0;
    for (claim, measured) in recorded() {
        if !matches!(verdict(claim, vec![measured.clone()]).0, Verdict::Holds | Verdict::HoldsFitted) {
            continue;
        }
        for check in checks(claim) {
            let bad = all_broken(claim, check, &measured);
            assert_eq!(verdict(claim, vec![bad]).0, Verdict::Fails, "{}: {}", claim.id, check.what);
            broke += 1;
        }
    }
    assert!(broke >= 20, "only {broke} checks of recorded claims were broken");
}

#[test]
fn one_seed_of_all_that_fails_fails_every_claim_that_is_drawn() {
    let mut broke = 0;
    for (claim, measured) in recorded() {
        let Seeds::Drawn(count) = claim.seeds else { continue };
        let mut seeds = vec![measured.clone(); count as usize];
        if !matches!(verdict(claim, seeds.clone()).0, Verdict::Holds | Verdict::HoldsFitted) {
            continue;
        }
        for check in checks(claim) {
            // What is of the paper's draws is judged by the mean of ours.
            if matches!(check.relation, Relation::Draw { .. }) {
                continue;
            }
            *seeds.last_mut().unwrap() = all_broken(claim, check, &measured);
            let (verdict, why) = verdict(claim, seeds.clone());
            assert_eq!(verdict, Verdict::Fails, "{}: {}: {why}", claim.id, check.what);
            assert!(why.contains("not so in 1 of "), "{why}");
            broke += 1;
        }
    }
    assert!(broke >= 12, "only {broke} checks were broken by a seed");
}

/// The same with what a check compares in each other's places, if it compares rows that differ.
fn swapped(prefix: &str, check: &Check<'_>, measured: &Measured) -> Option<Measured> {
    let names: Vec<String> = check.relation.names().map(|name| format!("{prefix}{name}")).collect();
    let mut swapped = measured.clone();
    match check.relation {
        Relation::Straight { .. } => {
            let points = measured.curve(&names[0]);
            let values = points.iter().rev().map(|(_, value)| *value);
            for ((place, _), value) in points.iter().zip(values) {
                let of = format!("{}@{place}", names[0]);
                swapped
                    .figures
                    .iter_mut()
                    .filter(|figure| figure.name == of)
                    .for_each(|figure| figure.value = value);
            }
            Some(swapped)
        }
        Relation::Ratio { .. } | Relation::Ascending(_) | Relation::Least { .. } => {
            let (first, last) = (names.first()?, names.last()?);
            let mut differ = false;
            for setting in measured.settings(first) {
                let (a, b) = (named(first, &setting), named(last, &setting));
                let (Ok(one), Ok(other)) = (measured.get(&a), measured.get(&b)) else { continue };
                differ |= one != other;
                for figure in &mut swapped.figures {
                    figure.value = match &figure.name {
                        name if *name == a => other,
                        name if *name == b => one,
                        _ => figure.value,
                    };
                }
            }
            differ.then_some(swapped)
        }
        _ => None,
    }
}

#[test]
fn a_check_of_rows_that_differ_fails_when_they_change_places() {
    let (mut broke, mut stayed) = (0, Vec::new());
    for (claim, measured) in recorded() {
        for (way, check) in claim.ways.iter().flat_map(|way| checks(claim).map(move |check| (way, check))) {
            if !holds(way, check, &measured) {
                continue;
            }
            let Some(swapped) = swapped(way.prefix, check, &measured) else { continue };
            match holds(way, check, &swapped) {
                true => stayed.push(format!("{}: {}", claim.id, check.what)),
                false => broke += 1,
            }
        }
    }
    // Those that allow a little more, or less, than as much, and rows that are nearly alike.
    stayed.sort_unstable();
    assert_eq!(stayed, ["cmfs-fig16: in order", "nfh-fig18: 512 over 16 KiB"]);
    assert!(broke >= 25, "only {broke}");
}

#[test]
fn what_was_measured_with_another_parameter_is_another_verdict() {
    for (id, from, to) in [
        // One stream where each is to have a handle; a disk's figures where both are meant; a mount that scans.
        ("fdp-cachelib", "/one stream", "/a handle each"),
        ("nfh-fig12", "/xfs on the disk/", "/nfhybrid/"),
        ("cmfs-fig10", "YAFFS2 (measured peer)", "paper's layout"),
    ] {
        let (claim, measured) = recorded().into_iter().find(|(claim, _)| claim.id == id).unwrap();
        let there = measured.figures.iter().filter(|figure| figure.name.contains(from));
        let others =
            there.map(|figure| measured::Figure { name: figure.name.replace(from, to), ..figure.clone() });
        let others = Measured { figures: others.collect(), ..Measured::default() };
        assert!(!others.figures.is_empty(), "{id}: {from}");
        assert_eq!(verdict(claim, vec![measured.clone()]).0, Verdict::Holds, "{id}");
        let (after, why) = verdict(claim, vec![with(&measured, others)]);
        assert_eq!(after, Verdict::Fails, "{id}: {why}");
    }
}
