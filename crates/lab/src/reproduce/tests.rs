//! The command, the table of claims, and that every check of every claim can fail.

use super::claims::{Check, Relation, Seeds, Way};
use super::judge::{Verdict, crookedness, judge, one};
use super::measured::named;
use super::*;

mod breaking;

#[test]
fn ids_are_unique_and_unknown_ones_are_refused_with_the_list() {
    for mut ids in [EXPERIMENTS.names().collect::<Vec<_>>(), CLAIMS.names().collect()] {
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
    let chosen = choose(&["ftl-fig2".into(), "all".into()], &EXPERIMENTS).unwrap();
    assert_eq!((chosen.len(), chosen[0].id), (EXPERIMENTS.len(), "ftl-fig2"));
    let error = choose(&["fig99".into()], &EXPERIMENTS).err().unwrap().to_string();
    assert!(error.contains("fig99") && error.contains("ftl-fig2"), "{error}");
}

#[test]
fn an_experiment_without_its_traces_says_what_it_needs() {
    let setting = ExperimentContext::of_seed(1);
    let error = setting.trace("block/x").err().unwrap().to_string();
    assert!(["--traces", TRACES_VARIABLE, "block/x"].iter().all(|word| error.contains(word)), "{error}");
    // It is a row that says so.
    let experiment = EXPERIMENTS.find("trace-inventory").unwrap();
    let measured = experiment.measured(&setting).unwrap();
    let done = judged(experiment, Found { seeds: vec![(1, measured)] }, &Args::default()).unwrap();
    assert!(done.holds() && done.judgement.as_ref().unwrap().verdict == Verdict::NotDone);
    assert!(show::table(&done).contains("not done: needs recorded traces"), "{}", show::table(&done));
    // A trace that the program has is there without a folder.
    assert!(setting.trace_path("block/ext2-seq16.dev.csv.zst").unwrap().exists());
    let setting = ExperimentContext { traces: Some("/no/such".into()), ..setting };
    assert!(setting.trace("x").err().unwrap().to_string().contains("/no/such/x"));
    assert!(experiment.measured(&setting).is_err(), "a folder that is named is meant");
}

/// Every id of the list of what the papers claim.
const IDS: [&str; 33] = [
    "nfh-fig7",
    "nfh-fig8",
    "nfh-fig9",
    "nfh-fig10",
    "nfh-fig11",
    "nfh-fig12",
    "nfh-fig13",
    "nfh-fig14",
    "nfh-fig15",
    "nfh-fig16",
    "nfh-fig17",
    "nfh-fig18",
    "nfh-fig19",
    "nfh-fig20",
    "nfh-align",
    "cmfs-ratio",
    "cmfs-fig9",
    "cmfs-fig10",
    "cmfs-fig11",
    "cmfs-fig12",
    "cmfs-fig13",
    "cmfs-fig14",
    "cmfs-fig15",
    "cmfs-fig16",
    "cmfs-table2",
    "osd-fig2a",
    "osd-fig2b",
    "ftl-fig2",
    "ftl-table1",
    "csw-fig10",
    "csw-fig11",
    "csw-fig12",
    "csw-fig13",
];

#[test]
fn every_claim_of_the_papers_is_in_the_table_and_every_experiment_has_one() {
    for id in IDS {
        let claim = CLAIMS.find(id).unwrap();
        assert!(!claim.checks.is_empty() && !claim.ways.is_empty(), "{id}");
    }
    let own = CLAIMS.iter().filter(|claim| claim.paper == claims::Paper::Own).count();
    assert_eq!(CLAIMS.len(), IDS.len() + own);
    assert!(EXPERIMENTS.iter().all(|experiment| experiment.claim().is_some()));
}

#[test]
fn what_is_drawn_is_drawn_five_times_and_every_tolerance_has_a_reason() {
    for claim in CLAIMS {
        match claim.seeds {
            Seeds::Drawn(count) => assert!(count >= 5, "{}", claim.id),
            Seeds::Fixed(why) => assert!(why.len() > 10, "{}", claim.id),
        }
        for cells in claim_table::static_lines(claim) {
            assert!(cells[3].len() > 5, "{cells:?}");
        }
    }
}

#[test]
fn the_document_is_what_the_program_makes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/claims.md");
    let made = claim_table::document_of_source().unwrap();
    if std::env::var_os("WRITE_CLAIMS").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert!(written == made, "docs/claims.md is old; WRITE_CLAIMS=1 makes it again");
}

/// Any setting.
const SETTING: &str = "somewhere";

/// The figures that a check is about, as it wants them.
fn wanted(prefix: &str, check: &Check<'_>) -> Measured {
    wanted_in(SETTING, prefix, check)
}

/// The same in this setting.
fn wanted_in(setting: &str, prefix: &str, check: &Check<'_>) -> Measured {
    let mut measured = Measured::default();
    let mut add =
        |name: &str, value: f64| measured.add(named(&format!("{prefix}{name}"), setting), "", value);
    let middle = |limits: claims::Limits| match (limits.least.is_finite(), limits.most.is_finite()) {
        (true, true) => (limits.least + limits.most) / 2.0,
        (true, false) => limits.least + 1.0,
        // Below a limit that need not be above zero.
        _ => limits.most - limits.most.abs() / 2.0,
    };
    match check.relation {
        Relation::Is { figure, paper, .. } | Relation::Draw { figure, paper, .. } => add(figure, paper),
        Relation::Within { figure, limits } => add(figure, middle(limits)),
        Relation::Ratio { of, to, limits } => {
            add(of, 100.0 * middle(limits));
            add(to, 100.0);
        }
        Relation::Ascending(figures) => {
            figures.iter().zip(1..).for_each(|(name, value)| add(name, f64::from(value) * 100.0));
        }
        Relation::Alike { figures, .. } => figures.iter().for_each(|name| add(name, 100.0)),
        Relation::Least { of, others } => {
            add(of, 100.0);
            others.iter().for_each(|name| add(name, 150.0));
        }
        Relation::Straight { curve, .. } => {
            (1..=6).for_each(|place| add(&format!("{curve}@{place}"), f64::from(place) * 100.0));
        }
        Relation::Untestable(_) => {}
    }
    measured
}

/// The same figures as the check must not want them: rows that changed places, or a figure beyond what is allowed.
fn broken(prefix: &str, check: &Check<'_>, measured: &Measured) -> Measured {
    let mut broken = measured.clone();
    let patterns: Vec<String> = check.relation.names().map(|name| format!("{prefix}{name}")).collect();
    // In the first setting that is decided in.
    let settings = measured.settings(&patterns[0]);
    let there = |setting: &&String| patterns.iter().all(|name| measured.get(&named(name, setting)).is_ok());
    let setting = settings.iter().find(there).or(settings.first()).unwrap().clone();
    let names: Vec<String> = patterns.iter().map(|name| named(name, &setting)).collect();
    let value = |name: &str| measured.get(name).unwrap();
    let mut set = |name: &str, value: f64| {
        let of = broken.figures.iter_mut().filter(|figure| figure.name == name);
        of.for_each(|figure| figure.value = value);
    };
    let beyond = |limits: claims::Limits| match limits.most.is_finite() {
        true => limits.most + limits.most.abs() * 0.1 + 0.1,
        false => limits.least - limits.least.abs() * 0.1 - 0.1,
    };
    match check.relation {
        Relation::Is { paper, within, .. } => set(&names[0], paper + within.width.beside(paper) * 1.1),
        Relation::Draw { paper, sigma, .. } => set(&names[0], paper + sigma * 3.0),
        Relation::Within { limits, .. } => set(&names[0], beyond(limits)),
        Relation::Ratio { limits, .. } => set(&names[0], beyond(limits) * value(&names[1]).max(1e-9)),
        Relation::Ascending(_) => {
            let (first, last) = (&names[0], &names[names.len() - 1]);
            let (a, b) = (value(first), value(last));
            set(first, b);
            set(last, a);
        }
        Relation::Alike { within, .. } => {
            let most = names.iter().map(|name| value(name)).fold(f64::MIN, f64::max);
            set(&names[0], most * (1.0 + within.width.beside(1.0)) * 1.1);
        }
        Relation::Least { .. } => {
            let best = names[1..].iter().map(|name| value(name)).fold(f64::MAX, f64::min);
            set(&names[0], best * 1.01 + 1.0);
        }
        Relation::Straight { .. } => {
            let points = measured.curve(&names[0]);
            let (place, _) = points[points.len() / 2];
            let (_, top) = points[points.len() - 1];
            set(&format!("{}@{place}", names[0]), top * 2.0);
        }
        Relation::Untestable(_) => {}
    }
    broken
}

fn holds(way: &Way, check: &Check<'_>, measured: &Measured) -> bool {
    let found = Found { seeds: vec![(1, measured.clone())] };
    one(way, check, &found).unwrap_or_else(|why| panic!("{}: {why}", check.what)).holds()
}

#[test]
fn one_seed_of_five_that_fails_fails_the_claim() {
    let claim = CLAIMS.find("csw-fig11").unwrap();
    let way = &claim.ways[0];
    let mut good = wanted(way.prefix, &claim.checks[0]);
    good.figures.extend(wanted(way.prefix, &claim.checks[1]).figures);
    let bad = broken(way.prefix, &claim.checks[1], &good);
    let of = |seeds: Vec<(u64, Measured)>| judge(claim, &Found { seeds }).unwrap();
    let five =
        |last: Measured| (1..=4).map(|seed| (seed, good.clone())).chain([(5, last)]).collect::<Vec<_>>();
    assert_eq!(of(five(good.clone())).verdict, Verdict::Holds);
    let judged = of(five(bad));
    assert_eq!(judged.verdict, Verdict::Fails);
    assert!(judged.why.contains("not so in 1 of 5") && judged.why.contains("seed 5"), "{}", judged.why);
}

#[test]
fn searched_parameters_never_do_better_than_fitted_and_given_ones_decide() {
    let claim = CLAIMS.find("ftl-table1").unwrap();
    let good = |prefix: &str| {
        claim.checks.iter().flat_map(|check| wanted(prefix, check).figures).collect::<Vec<_>>()
    };
    let of = |figures: Vec<measured::Figure>| {
        let seeds = vec![(1, Measured { figures, ..Measured::default() })];
        judge(claim, &Found { seeds }).unwrap()
    };
    // The orders' examples have the figures that the gains and the likeness are about, too: these come last and are not asked.
    let [given, searched] = ["data sheet/", "fitted/"].map(good);
    let off = |figures: &[measured::Figure]| {
        let zero = |figure: &measured::Figure| measured::Figure { value: 1.0, ..figure.clone() };
        figures.iter().map(zero).collect::<Vec<_>>()
    };
    let fitted = of([off(&given), searched.clone()].concat());
    assert_ne!(fitted.verdict, Verdict::Holds, "{}", fitted.why);
    assert_eq!(of([off(&given), off(&searched)].concat()).verdict, Verdict::Fails);
}

#[test]
fn a_figure_that_was_not_measured_is_an_error_and_no_verdict() {
    let claim = CLAIMS.find("csw-fig10").unwrap();
    let why = judge(claim, &Found { seeds: vec![(1, Measured::default())] }).unwrap_err().to_string();
    assert!(why.contains("nothing was measured") && why.contains("*/cswlru/page writes"), "{why}");
    let mut one = Measured::default();
    one.add("here/cswlru/page writes", "", 1.0);
    let why = judge(claim, &Found { seeds: vec![(1, one)] }).unwrap_err().to_string();
    assert!(why.contains("not measured: here/lru/page writes"), "{why}");
}

#[test]
fn a_line_is_straight_if_its_points_are_near_it_and_it_rises() {
    assert!(crookedness(&[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]) < 1e-12);
    assert!((crookedness(&[(0.0, 0.0), (1.0, 1.3), (2.0, 2.0)]) - 0.1).abs() < 1e-9);
    assert_eq!(crookedness(&[(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)]), f64::INFINITY);
    assert_eq!(crookedness(&[(0.0, 3.0), (1.0, 3.0), (2.0, 3.0)]), f64::INFINITY);
}

#[test]
fn findings_are_printed_with_the_stated_fields() {
    let claim = CLAIMS.find("cmfs-ratio").unwrap();
    let figures = claim.checks.iter().flat_map(|check| wanted("", check).figures).collect();
    let found =
        Found { seeds: vec![(13, Measured { figures, ..Measured::with(serde_json::json!({"a": 1})) })] };
    let experiment = EXPERIMENTS.find("cmfs-ratio").unwrap();
    let done = judged(experiment, found, &Args::default()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&show::json(&done).unwrap()).unwrap();
    for field in
        ["id", "about", "rows", "verdict", "holds", "why", "checks", "seeds", "full", "config", "version"]
    {
        assert!(value.get(field).is_some(), "{field}");
    }
    assert_eq!((&value["verdict"], &value["seeds"][0]), (&"holds".into(), &13.into()));
    assert!(
        show::table(&done).contains("holds: the paper's layout: bytes of NAND"),
        "{}",
        show::table(&done)
    );
}

#[test]
fn what_one_program_measured_is_kept_and_not_taken_for_anothers() {
    let folder = tempfile::tempdir().unwrap();
    let args = Args { ids: vec!["cmfs-fig14".into()], out: Some(folder.path().into()), ..Args::default() };
    let chosen = choose(&args.ids, &EXPERIMENTS).unwrap();
    let measured = || {
        let mut found = None;
        runner::run_each(&args, &chosen, |_, one| {
            found = Some(one?);
            Ok(())
        })
        .unwrap();
        found.unwrap()
    };
    let first = measured();
    let path = folder.path().join("cmfs-fig14-1-short.json");
    let kept = std::fs::read_to_string(&path).unwrap();
    // What is kept is taken: a figure that nobody could measure.
    std::fs::write(&path, kept.replacen("\"value\":", "\"value\":1e9, \"was\":", 1)).unwrap();
    assert_ne!(measured(), first);
    // What another program kept, or what was cut off, is measured again.
    std::fs::write(&path, kept.replacen("\"program\":", "\"program\":1, \"was\":", 1)).unwrap();
    assert_eq!(measured(), first);
    std::fs::write(&path, &kept[..kept.len() / 2]).unwrap();
    assert_eq!(measured(), first);
}

/// Does what `bimetal reproduce` does with the words of a variable, for when only this package was built.
#[test]
#[ignore = "a run: REPRODUCE='all --out results' cargo test -p bimetal-lab --lib reproduce_as_told -- --ignored --nocapture"]
fn reproduce_as_told() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = std::env::var("REPRODUCE").unwrap();
    let words = ["reproduce"].into_iter().chain(words.split_whitespace());
    run(&<Line as clap::Parser>::parse_from(words).args).unwrap();
}
