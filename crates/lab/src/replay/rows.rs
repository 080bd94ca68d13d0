//! A run as one row: what the table, the CSV and the Parquet file show.

use super::ending::Ending;
use super::flash::ByCause;
use super::parquet;
use super::report::{Latency, RunConfig, RunReport};
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_ftl::HostBytes;
use bimetal_media::guard;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

/// One cell of a table; all of a column are of one kind, and what a row does not have is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
    Text(Option<String>),
    /// A whole number.
    Count(Option<u64>),
    /// A number.
    Number(Option<f64>),
    /// Yes or no.
    Yes(Option<bool>),
}

impl Cell {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        matches!(self, Cell::Text(None) | Cell::Count(None) | Cell::Number(None) | Cell::Yes(None))
    }
}

/// The columns of a run, in order: name and value. The names are the JSON's, nested ones joined by `_`; those of the
/// flash say whose work they are.
pub(super) fn row(run: &RunReport) -> Vec<(&'static str, Cell)> {
    let text = |text: &Option<String>| Cell::Text(text.clone());
    let count = |count| Cell::Count(Some(count));
    let bytes = |of: fn(&HostBytes) -> u64| Cell::Count(run.flash.map(|flash| of(&flash.host_bytes)));
    let work = |of: fn(&ByCause) -> u64| Cell::Count(run.flash.map(|flash| of(&flash.done)));
    let past = |of: fn(&ByCause) -> u64| Cell::Count(run.flash.map(|flash| of(&flash.preconditioning)));
    let (merges, wear, latency, config) = (run.merges, run.wear, &run.latency_ns, &run.config);
    vec![
        ("trace", Cell::Text(Some(config.trace.clone()))),
        ("cache", text(&config.cache)),
        ("cache_bytes", Cell::Count(config.cache_bytes)),
        ("ftl", text(&config.ftl)),
        ("device", Cell::Text(Some(config.device.clone()))),
        ("device_bytes", Cell::Count(config.device_bytes)),
        ("device_lacks", text(&config.device_lacks)),
        ("ended", Cell::Text(Some(run.ended.how.to_string()))),
        ("ended_request", Cell::Count(run.ended.request)),
        ("ended_why", text(&run.ended.why)),
        ("requests", count(run.requests)),
        ("bytes_read", count(run.bytes_read)),
        ("bytes_written", count(run.bytes_written)),
        ("page_bytes", count(run.page_bytes)),
        ("pages_read", count(run.pages_read)),
        ("pages_written", count(run.pages_written)),
        ("pages_programmed", Cell::Count(run.pages_programmed)),
        ("pages_copied", Cell::Count(run.pages_copied)),
        ("erases", Cell::Count(run.erases)),
        ("merges_switch", Cell::Count(merges.map(|merges| merges.switch))),
        ("merges_partial", Cell::Count(merges.map(|merges| merges.partial))),
        ("merges_full", Cell::Count(merges.map(|merges| merges.full))),
        ("write_amplification", Cell::Number(run.write_amplification)),
        ("host_bytes_read", bytes(|host| host.read)),
        ("host_bytes_written", bytes(|host| host.written)),
        ("host_bytes_padding", bytes(|host| host.padding)),
        ("host_bytes_coalesced", bytes(|host| host.coalesced)),
        ("host_bytes_waiting", bytes(|host| host.waiting)),
        ("flash_bytes_read", work(|done| done.total.read_bytes)),
        ("flash_bytes_programmed", work(|done| done.total.programmed_bytes)),
        ("host_reads", work(|done| done.host.work.reads)),
        ("host_programs", work(|done| done.host.work.programs)),
        ("cleaning_reads", work(|done| done.cleaning.work.reads)),
        ("cleaning_programs", work(|done| done.cleaning.work.programs)),
        ("cleaning_erases", work(|done| done.cleaning.work.erases)),
        ("map_reads", work(|done| done.map.work.reads)),
        ("map_programs", work(|done| done.map.work.programs)),
        ("wear_levelling_programs", work(|done| done.wear_levelling.work.programs)),
        ("wear_levelling_erases", work(|done| done.wear_levelling.work.erases)),
        ("refresh_programs", work(|done| done.refresh.work.programs)),
        ("refresh_erases", work(|done| done.refresh.work.erases)),
        ("corrected_bits", Cell::Count(run.flash.map(|flash| flash.corrected_bits))),
        ("unreadable_reads", Cell::Count(run.flash.map(|flash| flash.unreadable))),
        ("read_retries", Cell::Count(run.flash.map(|flash| flash.read_retries))),
        ("lost_pages", Cell::Count(run.flash.map(|flash| flash.ftl.lost_pages))),
        ("preconditioning_programs", past(|done| done.total.work.programs)),
        ("preconditioning_erases", past(|done| done.total.work.erases)),
        ("hit_ratio", Cell::Number(run.hit_ratio)),
        ("sim_time_ns", count(run.sim_time_ns)),
        ("latency_min_ns", count(latency.min)),
        ("latency_mean_ns", Cell::Number(Some(latency.mean))),
        ("latency_p50_ns", count(latency.p50)),
        ("latency_p90_ns", count(latency.p90)),
        ("latency_p95_ns", count(latency.p95)),
        ("latency_p99_ns", count(latency.p99)),
        ("latency_p99_9_ns", count(latency.p99_9)),
        ("latency_p99_99_ns", count(latency.p99_99)),
        ("latency_max_ns", count(latency.max)),
        ("wear_min", Cell::Count(wear.map(|wear| wear.min.into()))),
        ("wear_mean", Cell::Number(wear.map(|wear| wear.mean))),
        ("wear_max", Cell::Count(wear.map(|wear| wear.max.into()))),
        ("wear_sd", Cell::Number(wear.map(|wear| wear.sd))),
        ("seed", count(config.seed)),
    ]
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(Some(text)) if text.contains([',', '"', '\n']) => {
                write!(f, "\"{}\"", text.replace('"', "\"\""))
            }
            Cell::Text(Some(text)) => f.write_str(text),
            Cell::Count(Some(count)) => write!(f, "{count}"),
            Cell::Number(Some(number)) => write!(f, "{number}"),
            Cell::Yes(Some(yes)) => write!(f, "{yes}"),
            Cell::Text(None) | Cell::Count(None) | Cell::Number(None) | Cell::Yes(None) => Ok(()),
        }
    }
}

/// Rows, all of the same columns, as CSV, the header first.
fn csv(rows: &[Vec<(&'static str, Cell)>]) -> String {
    let mut text = String::new();
    if let Some(first) = rows.first() {
        let names: Vec<_> = first.iter().map(|(name, _)| *name).collect();
        text = names.join(",") + "\n";
    }
    for row in rows {
        let cells: Vec<_> = row.iter().map(|(_, cell)| cell.to_string()).collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

/// Writes rows, all of the same columns, as CSV.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_csv(path: &Path, rows: &[Vec<(&'static str, Cell)>]) -> Result<()> {
    let text = csv(rows);
    guard::whole(path, |file| file.write_all(text.as_bytes()).map_err(|why| Error::io(path.display(), why)))
}

/// Writes rows, all of the same columns: Parquet if the name ends so, else CSV.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, rows: &[Vec<(&'static str, Cell)>]) -> Result<()> {
    match path.extension().is_some_and(|extension| extension == "parquet") {
        true => parquet::write_rows(path, rows),
        false => write_csv(path, rows),
    }
}

/// The columns of latencies that a span of a run has.
pub(super) fn latencies(latency: &Latency) -> [(&'static str, Cell); 5] {
    let count = |count| Cell::Count(Some(count));
    [
        ("latency_mean_ns", Cell::Number(Some(latency.mean))),
        ("latency_p50_ns", count(latency.p50)),
        ("latency_p99_ns", count(latency.p99)),
        ("latency_p99_9_ns", count(latency.p99_9)),
        ("latency_max_ns", count(latency.max)),
    ]
}

/// A span as people read it.
pub(super) fn show_ns(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// The table people read: the columns that say something, one line a run.
pub(super) fn table(runs: &[RunReport]) -> Vec<Vec<String>> {
    let dash = || "-".to_string();
    let optional = |count: Option<u64>| count.map_or_else(dash, |count| count.to_string());
    let header = [
        "run",
        "ended",
        "requests",
        "hits %",
        "pages read",
        "pages written",
        "programmed",
        "WA",
        "erases",
        "switch/partial/full",
        "p50",
        "p99",
        "p99.9",
        "max",
        "time",
    ];
    let line = |run: &RunReport| {
        let merges = run.merges.map_or_else(dash, |m| format!("{}/{}/{}", m.switch, m.partial, m.full));
        vec![
            run.config.run.clone(),
            if run.ended.how == Ending::Complete { dash() } else { run.ended.how.to_string() },
            run.requests.to_string(),
            run.hit_ratio.map_or_else(dash, |ratio| format!("{:.2}", ratio * 100.0)),
            run.pages_read.to_string(),
            run.pages_written.to_string(),
            optional(run.pages_programmed),
            run.write_amplification.map_or_else(dash, |wa| format!("{wa:.3}")),
            optional(run.erases),
            merges,
            show_ns(run.latency_ns.p50),
            show_ns(run.latency_ns.p99),
            show_ns(run.latency_ns.p99_9),
            show_ns(run.latency_ns.max),
            show_ns(run.sim_time_ns),
        ]
    };
    let mut lines = vec![header.map(str::to_string).to_vec()];
    lines.extend(runs.iter().map(line));
    drop_silent_columns(lines)
}

/// What is to be said below the table: devices that are less than their profiles.
pub(super) fn notes(runs: &[RunReport]) -> String {
    let note = |run: &RunReport| {
        let RunConfig { device, device_bytes, device_lacks, .. } = &run.config;
        let (lacks, size) = (device_lacks.as_ref()?, show_size((*device_bytes)?));
        Some(format!("{device} with {size} has {lacks}\n"))
    };
    let notes: BTreeSet<String> = runs.iter().filter_map(note).collect();
    notes.into_iter().collect()
}

/// Leaves out columns in which every run has nothing.
pub(super) fn drop_silent_columns(lines: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let columns = lines.first().map_or(0, Vec::len);
    let speaks: Vec<bool> = (0..columns).map(|at| lines.iter().skip(1).any(|line| line[at] != "-")).collect();
    let keep = |line: Vec<String>| {
        line.into_iter().zip(&speaks).filter(|(_, speaks)| **speaks).map(|(cell, _)| cell).collect()
    };
    lines.into_iter().map(keep).collect()
}

/// Lines in columns, the first left and the others right aligned.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (at, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[at] - cell.chars().count());
            // Writing to a string cannot fail.
            let _ = if at == 0 { write!(text, "{cell}{gap}") } else { write!(text, "  {gap}{cell}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// What a trace holds, for people.
pub(super) fn show_summary(name: &str, summary: &bimetal_trace::Summary) -> String {
    let s = summary;
    let rows = [
        ("trace", name.to_string()),
        ("requests", s.requests.to_string()),
        ("reads", format!("{} ({})", s.reads, show_size(s.read_bytes))),
        ("writes", format!("{} ({})", s.writes, show_size(s.written_bytes))),
        ("flushes", s.flushes.to_string()),
        ("discards", s.discards.to_string()),
        ("file operations", s.file_ops.to_string()),
        ("footprint", show_size(s.footprint_bytes)),
        ("last byte", show_size(s.end_bytes)),
        ("not sequential", format!("{:.1} %", s.non_sequential * 100.0)),
        ("duration", show_ns(s.duration_ns)),
        ("devices or files", s.units.to_string()),
        ("lines read", format!("{} ({} without a request)", s.tally.lines, s.tally.skipped)),
    ];
    rows.into_iter().map(|(name, value)| format!("{name:17} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_csv_needs_it() {
        assert_eq!(Cell::Text(Some("gen:a:b=1,c=2".into())).to_string(), "\"gen:a:b=1,c=2\"");
        assert_eq!(Cell::Text(Some("say \"x\"".into())).to_string(), "\"say \"\"x\"\"\"");
        assert_eq!(Cell::Count(None).to_string(), "");
        assert_eq!(Cell::Number(Some(1.5)).to_string(), "1.5");
    }

    #[test]
    fn columns_line_up_and_silent_ones_are_left_out() {
        let lines = [["run", "hits", "erases"], ["a", "-", "10"], ["long", "-", "7"]];
        let lines = lines.map(|line| line.map(str::to_string).to_vec()).to_vec();
        assert_eq!(aligned(&drop_silent_columns(lines)), "run   erases\na         10\nlong       7\n");
    }

    #[test]
    fn spans_have_the_unit_that_suits_them() {
        let shown = [999, 15_400, 25_000_000, 90_000_000_000].map(show_ns);
        assert_eq!(shown, ["999 ns", "15.4 µs", "25.0 ms", "90.00 s"]);
    }
}
