//! One page with everything about the runs: table, plots, and of each run its stack, its flash and its figures.

use super::report::RunReport;
use super::rows::{notes, show_summary, table};
use super::{Summary, plot};
use crate::page::{Cell, Page, Table};
use crate::stack::layers::Layers;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use std::io::Write;
use std::path::Path;

/// Of more runs than this each is folded.
const OPEN_MOST: usize = 4;

/// Writes the page.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, trace: &str, summary: Option<&Summary>, runs: &[RunReport]) -> Result<()> {
    let page = page(trace, summary, runs)?;
    guard::whole(path, |file| file.write_all(page.as_bytes()).map_err(|why| Error::io(path.display(), why)))
}

fn page(trace: &str, summary: Option<&Summary>, runs: &[RunReport]) -> Result<String> {
    let plural = if runs.len() == 1 { "" } else { "s" };
    let mut page = Page::new(&format!("Replay of {trace}"), &format!("{} run{plural}", runs.len()));
    page.table(&runs_table(runs));
    for note in notes(runs).lines() {
        page.paragraph(note);
    }
    page.charts(&plot::all(runs))?;
    if let Some(summary) = summary {
        page.text("the trace", &show_summary(trace, summary));
    }
    page.heading("Each run");
    for run in runs {
        let json = serde_json::to_string_pretty(run).map_err(|why| Error::invalid(why.to_string()))?;
        let mut one = Page::part();
        one.raw(&Layers::of_run(&run.config).html())
            .charts(&run.charts())?
            .text("figures and configuration", &json);
        match runs.len() > OPEN_MOST {
            true => page.folded(&run.config.run, &one.inside()),
            false => page.heading(&run.config.run).raw(&one.inside()),
        };
    }
    Ok(page.finish())
}

/// The table that people read, a run a line.
fn runs_table(runs: &[RunReport]) -> Table {
    let mut lines = table(runs).into_iter();
    let columns = lines.next().unwrap_or_default();
    let cell = |(at, text): (usize, String)| match at {
        0 => Cell::text(text).class("name"),
        _ => {
            let key = sortable(&text);
            Cell::number(text, key)
        }
    };
    let rows = lines.map(|line| line.into_iter().enumerate().map(cell).collect());
    Table { id: "runs".into(), columns, rows: rows.collect(), buttons: None, tools: runs.len() > 1 }
}

/// What a cell is sorted by: its first number, spans by their length.
fn sortable(text: &str) -> Option<f64> {
    let number: f64 = text.split([' ', '/']).next()?.parse().ok()?;
    let unit = match text.split(' ').nth(1) {
        None => 1.0,
        Some("ns") => 1e-9,
        Some("µs") => 1e-6,
        Some("ms") => 1e-3,
        Some("s") => 1.0,
        Some(_) => return None,
    };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::super::{Args, replay};
    use super::*;
    use crate::page::loads_nothing;

    #[test]
    fn spans_are_sorted_by_their_length_and_words_by_none() {
        let keys = ["999 ns", "15.4 µs", "25.0 ms", "1.5 s"].map(|text| sortable(text).unwrap());
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!([sortable("1/2/3"), sortable("-"), sortable("12 pages")], [Some(1.0), None, None]);
    }

    #[test]
    fn a_page_has_a_line_a_run_its_plots_and_of_each_its_stack_and_flash() {
        let line = "gen:iometer:size=8MiB:requests=3000:read=50 --cache lru,fab --cache-size 64KiB --ftl page,bast \
                    --device slc-2k --device-size 10MiB --precondition fill";
        for (line, stacks) in [(line.to_string(), 4), (line.replace("lru,fab", "lru,fab,cflru"), 6)] {
            let runs = replay(&Args::parse(&line).unwrap()).unwrap();
            let page = page("gen:<iometer>", None, &runs).unwrap();
            loads_nothing(&page);
            let table = &page[page.find("<tbody>").unwrap()..page.find("</tbody>").unwrap()];
            assert_eq!(table.matches("<tr>").count(), stacks);
            assert_eq!(page.matches("<ol class=\"stack\">").count(), stacks);
            assert_eq!(page.matches("<figure").count(), plot::all(&runs).len() + 2 * stacks);
            assert_eq!(page.matches("<figure").count(), page.matches("<svg").count());
            assert!(page.contains("Replay of gen:<wbr>&lt;iometer&gt;") && !page.contains("<iometer"));
        }
    }

    /// Does what `bimetal replay` does with the words of a variable, for when only this package was built.
    #[test]
    #[ignore = "a run: REPLAY='gen:iometer --ftl page,bast --html page.html' cargo test -p bimetal-lab --lib replay_as_told -- --ignored --nocapture"]
    fn replay_as_told() {
        super::super::run(&Args::parse(&std::env::var("REPLAY").unwrap()).unwrap()).unwrap();
    }
}
