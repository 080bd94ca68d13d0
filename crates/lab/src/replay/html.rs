//! One page with everything about the runs: table, plots, configuration. It needs nothing beside itself.

use super::report::RunReport;
use super::rows::{table, write_whole};
use super::{Summary, plot};
use bimetal_base::{Error, Result};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}\
td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child{text-align:left}\
figure{margin:1rem 0}svg{max-width:100%;height:auto}pre{background:#f6f6f6;padding:1rem;overflow-x:auto}";

/// Writes the page.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, trace: &str, summary: Option<&Summary>, runs: &[RunReport]) -> Result<()> {
    let mut page = String::new();
    let title = escaped(trace);
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>replay of {title}</title>\
         <style>{STYLE}</style></head>\n<body>\n<h1>Replay of {title}</h1>\n"
    );
    if let Some(summary) = summary {
        let _ = writeln!(page, "<pre>{}</pre>", escaped(&super::rows::show_summary(trace, summary)));
    }
    page += &html_table(&table(runs));
    for (kind, svg) in plot::all_svg(runs)? {
        let _ = writeln!(page, "<figure id=\"{kind:?}\">{svg}</figure>");
    }
    page += "<h2>Everything</h2>\n";
    for run in runs {
        let json = serde_json::to_string_pretty(run).map_err(|why| Error::invalid(why.to_string()))?;
        let label = escaped(&run.config.run);
        let _ = writeln!(page, "<details><summary>{label}</summary><pre>{}</pre></details>", escaped(&json));
    }
    page += "</body></html>\n";
    write_whole(path, |file| file.write_all(page.as_bytes()).map_err(|why| Error::io(path.display(), why)))
}

fn html_table(lines: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>, tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = lines.first().map(|cells| row(cells, "th")).unwrap_or_default();
    let body: String = lines.iter().skip(1).map(|cells| row(cells, "td")).collect();
    format!("<table>\n{head}{body}</table>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_page() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
        let table = html_table(&[vec!["run".into()], vec!["<x>".into()]]);
        assert_eq!(table, "<table>\n<tr><th>run</th></tr>\n<tr><td>&lt;x&gt;</td></tr>\n</table>\n");
    }
}
