//! One page with everything: the claims to sort and filter; of every experiment its figures, the stack it was measured on, all
//! that was measured, and its configuration.

use super::claim_table;
use super::claims::CLAIMS;
use super::judge::Verdict;
use super::measured::number;
use super::{Done, Row};
use crate::page::{Cell, Page, Table};
use crate::replay::grid::flatten;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::Path;

/// Writes the page of these experiments; the claims of others have the verdict that was recorded last.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, all: &[Done]) -> Result<()> {
    let page = page(all)?;
    guard::whole(path, |file| file.write_all(page.as_bytes()).map_err(|why| Error::io(path.display(), why)))
}

/// The class of the style for a verdict.
const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::HoldsFitted => "holds-fitted",
        Verdict::Fails => "fails",
        Verdict::NotTestable => "not-testable",
        Verdict::NotDone => "not-done",
        Verdict::Missing => "missing",
    }
}

fn page(all: &[Done]) -> Result<String> {
    let measured =
        format!("{} experiments measured for this page; a claim without one has its last verdict", all.len());
    let mut page = Page::new("What the papers claim, and what came of it", &measured);
    page.table(&claims(all)?);
    for done in all {
        page.raw(&experiment(done)?);
    }
    Ok(page.finish())
}

/// The table of all claims.
fn claims(all: &[Done]) -> Result<Table> {
    let recorded = claim_table::last()?;
    let row = |claim: &&super::Claim| {
        let done = all.iter().find(|done| done.id == claim.id);
        let (verdict, seeds, why) = match done.and_then(|done| Some((done, done.judgement.as_ref()?))) {
            Some((done, judged)) => (judged.verdict, done.found.seeds.len().to_string(), judged.why.clone()),
            None => claim_table::cells(claim, &recorded),
        };
        let id = Cell::text(claim.id);
        let count = seeds.split(',').next().and_then(|count| count.parse().ok());
        vec![
            if done.is_some() { id.link(claim.id) } else { id }.class("name"),
            Cell::text(format!("{}, {}", claim.paper.name(), claim.figure)).class("paper"),
            Cell::text(claim.says).class("says"),
            Cell::text(verdict.name()).class(class(verdict)),
            Cell::number(seeds, count),
            Cell::text(why).class("long"),
        ]
    };
    let columns = ["id", "paper", "claim", "verdict", "seeds", "why"].map(str::to_string).into();
    let rows = CLAIMS.iter().map(row).collect();
    Ok(Table { id: "claims".into(), columns, rows, buttons: Some(3), tools: true })
}

/// All of an experiment.
fn experiment(done: &Done) -> Result<String> {
    let rows = done.found.rows();
    let first = done.found.seeds.first().map(|(_, measured)| measured);
    let seeds: Vec<String> = done.found.seeds.iter().map(|(seed, _)| seed.to_string()).collect();
    let mut part = Page::part();
    part.heading(&done.id).paragraph(&done.about);
    if let Some(judged) = &done.judgement {
        let (name, class) = (judged.verdict.name(), class(judged.verdict));
        let why = crate::page::escaped(&judged.why);
        part.raw(&format!("<p><span class=\"{class}\">{name}</span>: {why}</p>"));
    }
    part.charts(&done.charts())?;
    if let Some(stack) = first.map(|measured| &measured.stack).filter(|stack| !stack.is_empty()) {
        part.raw("<h3>Measured on</h3>").raw(&stack.html());
    }
    let form = match (done.full, done.live) {
        (true, false) => "long form",
        (false, false) => "short form",
        (true, true) => "long form on real mounts",
        (false, true) => "short form on real mounts",
    };
    let summary = format!("{} figures, {form}, seeds {}", rows.len(), seeds.join(", "));
    part.folded(&summary, &figures(&done.id, &rows).html());
    if let Some(measured) = first {
        let config = serde_json::to_string_pretty(&measured.config);
        part.text("configuration", &config.map_err(|why| Error::invalid(why.to_string()))?);
        effective(&mut part, &done.id, &measured.runs);
    }
    let id = crate::page::escaped(&done.id);
    Ok(format!("<section id=\"{id}\">{}</section>", part.inside()))
}

/// What the runs of an experiment were, with all that they had by default: what is the same in all of them, and a table of what
/// is not.
fn effective(part: &mut Page, id: &str, runs: &[Value]) {
    let mut all: Vec<Map<String, Value>> = Vec::new();
    for run in runs.iter().map(flatten) {
        if !all.contains(&run) {
            all.push(run);
        }
    }
    let Some(first) = all.first() else { return };
    let mut keys: Vec<&String> = all.iter().flat_map(Map::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let (same, differ): (Vec<&String>, Vec<&String>) =
        keys.into_iter().partition(|key| all.iter().all(|run| run.get(*key) == first.get(*key)));
    let shown = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "–".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let lines: String = same.iter().map(|key| format!("{key} = {}\n", shown(first.get(*key)))).collect();
    let mut inside = Page::part();
    inside.raw(&format!("<pre>{}</pre>", crate::page::escaped(&lines)));
    if !differ.is_empty() {
        let row = |run: &Map<String, Value>| {
            let cell =
                |key: &&String| Cell::number(shown(run.get(*key)), run.get(*key).and_then(Value::as_f64));
            differ.iter().map(cell).collect()
        };
        inside.table(&Table {
            id: format!("runs-{id}"),
            columns: differ.iter().map(|key| (*key).clone()).collect(),
            rows: all.iter().map(row).collect(),
            buttons: None,
            tools: false,
        });
    }
    let what = if all.len() == 1 { "one".to_string() } else { all.len().to_string() };
    part.folded(&format!("effective configuration, {what} of them"), &inside.inside());
}

/// All that was measured, a figure a line.
fn figures(id: &str, rows: &[Row]) -> Table {
    let row = |row: &Row| {
        let cell = |value: Option<f64>| Cell::number(value.map_or("–".into(), number), value);
        let values = [row.paper, Some(row.ours), Some(row.least), Some(row.most)].map(cell);
        [Cell::text(&*row.name), Cell::text(&*row.unit)].into_iter().chain(values).collect()
    };
    let columns = ["figure", "unit", "paper", "mean", "least", "most"].map(str::to_string).into();
    Table {
        id: format!("figures-{id}"),
        columns,
        rows: rows.iter().map(row).collect(),
        buttons: None,
        tools: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Args, EXPERIMENTS, ExperimentContext, Found, Measured};
    use super::*;
    use crate::page::loads_nothing;
    use bimetal_base::options::Registered;
    use serde_json::json;

    /// The rows of a table's body.
    fn lines<'p>(page: &'p str, id: &str) -> &'p str {
        let table = &page[page.find(&format!("id=\"{id}\"><thead>")).unwrap()..];
        &table[table.find("<tbody>").unwrap()..table.find("</tbody>").unwrap()]
    }

    #[test]
    fn the_page_has_every_claim_and_needs_nothing_else_and_no_name_breaks_it() {
        let mut measured = Measured::default();
        measured.add("</script><b>/here/erases", "", 3.0);
        let found = Found { seeds: vec![(1, measured)] };
        let done = Done {
            id: "\"<i>".into(),
            about: "</script><b>".into(),
            found,
            judgement: None,
            full: false,
            live: false,
        };
        let page = page(&[done]).unwrap();
        loads_nothing(&page);
        assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (1, 1));
        assert!(!page.contains("<b>") && !page.contains("<i>"));
        let rows = lines(&page, "claims");
        assert_eq!(rows.matches("<tr>").count(), CLAIMS.len());
        assert!(CLAIMS.iter().all(|claim| rows.contains(&format!(">{}</td>", claim.id))));
    }

    #[test]
    fn the_page_has_every_figure_stack_and_row_of_what_was_measured() {
        // Quick ones of each kind: curves, bars, dots and the flash of runs.
        let done: Vec<Done> = ["cmfs-fig14", "cmfs-fig15", "ftl-fig2", "ftl-table1"]
            .map(|id| {
                let experiment = EXPERIMENTS.find(id).unwrap();
                let measured = experiment.measured(&ExperimentContext::of_seed(1)).unwrap();
                let found = Found { seeds: vec![(1, measured)] };
                super::super::judged(experiment, found, &Args::default())
            })
            .into_iter()
            .map(|done| done.unwrap())
            .collect();
        let page = page(&done).unwrap();
        loads_nothing(&page);
        let charts: usize = done.iter().map(|done| done.charts().len()).sum();
        assert!(charts > 12, "{charts}");
        assert_eq!(page.matches("<figure>").count(), charts);
        assert_eq!(page.matches("<svg").count() + page.matches("<img").count(), charts);
        assert_eq!(page.matches("<section id=").count(), done.len());
        assert_eq!(page.matches("<ol class=\"stack\">").count(), done.len());
        for done in &done {
            let rows = lines(&page, &format!("figures-{}", done.id));
            assert_eq!(rows.matches("<tr>").count(), done.found.rows().len(), "{}", done.id);
            assert!(lines(&page, "claims").contains(&format!("href=\"#{}\"", done.id)));
            assert!(page.contains(done.about.as_str()) || page.contains(&crate::page::escaped(&done.about)));
        }
        assert!(page.contains("Erase map of nftl") && page.contains("Merges, copies and erases of nftl"));
    }

    #[test]
    fn what_all_runs_have_by_default_is_told_once_and_what_differs_is_a_table() {
        let experiment = EXPERIMENTS.find("nfh-fig14").unwrap();
        let measured = experiment.measured(&ExperimentContext::of_seed(1)).unwrap();
        // Four sizes of extents, a large and a small file: mount options and devices are the same.
        assert_eq!(measured.runs.len(), 8);
        let runs = [json!({"a": {"b": 1, "c": "<x>"}}), json!({"a": {"b": 2, "c": "<x>"}})];
        let of = |runs: &[Value]| {
            let mut part = Page::part();
            effective(&mut part, "it", runs);
            part.inside()
        };
        assert_eq!(of(&[]), "");
        let page = of(&[runs[0].clone(), runs[0].clone(), runs[1].clone()]);
        assert!(page.contains("2 of them") && page.contains("&lt;x&gt;"), "{page}");
        assert_eq!(lines(&page, "runs-it").matches("<tr>").count(), 2, "{page}");
        let one = of(&runs[..1]);
        assert!(one.contains("one of them") && !one.contains("<table"), "{one}");
        let second = ExperimentContext { first: false, ..ExperimentContext::of_seed(2) };
        assert!(experiment.measured(&second).unwrap().runs.is_empty());
    }

    #[test]
    fn every_verdict_has_a_class_of_the_style() {
        let style = include_str!("../page/page.css");
        for claim in CLAIMS {
            let (verdict, ..) = claim_table::cells(claim, &claim_table::last().unwrap());
            assert!(
                style.contains(&format!(".{}{{color", class(verdict)))
                    || style.contains(&format!(".{},", class(verdict))),
                "{}",
                claim.name()
            );
        }
    }
}
