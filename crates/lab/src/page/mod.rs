//! A page that needs nothing beside itself: tables to sort and filter, charts, stacks drawn.
//!
//! The pages of `replay` and `reproduce` are made of it. All is there without its script, which only sorts and filters; on a
//! narrow screen a line of a table is a card, and what is folded is open in print.

use crate::chart::{self, Chart};
use bimetal_base::Result;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page in the making.
pub(crate) struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title and a line below it.
    pub fn new(title: &str, below: &str) -> Page {
        let body = format!(
            "<h1>{}</h1>\n<p class=\"dim\">{} · bimetal {}</p>\n",
            // What is chosen by name and options may end a line after each.
            escaped(title).replace(':', ":<wbr>"),
            escaped(below),
            env!("CARGO_PKG_VERSION")
        );
        Page { title: title.into(), body }
    }

    /// A part of another page.
    pub fn part() -> Page {
        Page { title: String::new(), body: String::new() }
    }

    /// What a part holds.
    pub fn inside(self) -> String {
        self.body
    }

    /// The whole of it.
    pub fn finish(self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
             <style>{STYLE}</style></head>\n<body><main>\n{}</main>\n<script>{SCRIPT}</script>\n</body></html>\n",
            escaped(&self.title),
            self.body
        )
    }

    /// What is HTML already.
    pub fn raw(&mut self, html: &str) -> &mut Page {
        self.body += html;
        self.body.push('\n');
        self
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) -> &mut Page {
        self.raw(&format!("<h2>{}</h2>", escaped(text)))
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Page {
        self.raw(&format!("<p>{}</p>", escaped(text)))
    }

    /// A table to sort, and to filter by words and by what one of its columns has.
    pub fn table(&mut self, table: &Table) -> &mut Page {
        self.raw(&table.html())
    }

    /// Charts side by side, where there is room.
    pub fn charts(&mut self, charts: &[Chart]) -> Result<&mut Page> {
        if charts.is_empty() {
            return Ok(self);
        }
        let figures = charts.iter().map(figure).collect::<Result<String>>()?;
        Ok(self.raw(&format!("<div class=\"charts\">\n{figures}</div>")))
    }

    /// Something folded.
    pub fn folded(&mut self, summary: &str, html: &str) -> &mut Page {
        self.raw(&format!("<details><summary>{}</summary>{html}</details>", escaped(summary)))
    }

    /// A text as it is, folded.
    pub fn text(&mut self, summary: &str, text: &str) -> &mut Page {
        self.folded(summary, &format!("<pre>{}</pre>", escaped(text)))
    }
}

/// A chart in its element; a cloud of dots is shorter as a picture than as an SVG.
fn figure(chart: &Chart) -> Result<String> {
    let name = escaped(&chart.title);
    let drawn = match chart.body.is_dense() {
        true => {
            let bytes = base64(&chart::png(chart)?);
            format!("<img alt=\"{name}\" src=\"data:image/png;base64,{bytes}\">")
        }
        false => {
            chart::svg(chart)?.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{name}\" "), 1)
        }
    };
    Ok(format!("<figure>{drawn}</figure>\n"))
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    text: String,
    /// What it is sorted by, if not its text.
    key: Option<f64>,
    class: &'static str,
    /// Where it leads to, on this page.
    link: Option<String>,
}

impl Cell {
    /// A text.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A number, as it is written.
    pub fn number(text: impl Into<String>, key: Option<f64>) -> Cell {
        Cell { text: text.into(), key, class: "number", ..Cell::default() }
    }

    /// With a class of the style.
    pub fn class(self, class: &'static str) -> Cell {
        Cell { class, ..self }
    }

    /// Leads to a part of this page.
    pub fn link(self, id: &str) -> Cell {
        Cell { link: Some(id.into()), ..self }
    }

    fn html(&self, column: &str) -> String {
        let key = self.key.map_or_else(String::new, |key| format!(" data-key=\"{key}\""));
        let class = if self.class.is_empty() { String::new() } else { format!(" class=\"{}\"", self.class) };
        let text = escaped(&self.text);
        let text = match &self.link {
            Some(id) => format!("<a href=\"#{}\">{text}</a>", escaped(id)),
            None => text,
        };
        format!("<td data-label=\"{}\"{key}{class}>{text}</td>", escaped(column))
    }
}

/// A table.
pub(crate) struct Table {
    /// Its id on the page.
    pub id: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Lines of cells.
    pub rows: Vec<Vec<Cell>>,
    /// The column by whose values buttons filter.
    pub buttons: Option<usize>,
    /// Whether it is long enough to be filtered by words.
    pub tools: bool,
}

impl Table {
    /// As HTML.
    pub fn html(&self) -> String {
        let mut html = String::new();
        if self.tools {
            html += &self.tools();
        }
        let head = |(at, name): (usize, &String)| {
            let numbers =
                self.rows.first().is_some_and(|row| row.get(at).is_some_and(|cell| cell.class == "number"));
            format!(
                "<th scope=\"col\"{}>{}</th>",
                if numbers { " class=\"number\"" } else { "" },
                escaped(name)
            )
        };
        let row = |cells: &Vec<Cell>| {
            let cells = cells.iter().zip(&self.columns).map(|(cell, column)| cell.html(column));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        // Writing to a string cannot fail.
        let _ = write!(
            html,
            "<div class=\"wide\"><table class=\"sorted{}\" id=\"{}\"><thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>",
            if self.tools { " cards" } else { "" },
            escaped(&self.id),
            self.columns.iter().enumerate().map(head).collect::<String>(),
            self.rows.iter().map(row).collect::<String>()
        );
        html
    }

    /// What filters and, where no column heads are seen, sorts it.
    fn tools(&self) -> String {
        let options = self.columns.iter().map(|name| format!("<option>{}</option>", escaped(name)));
        let mut values: Vec<(&str, &'static str, usize)> = Vec::new();
        for cell in self.buttons.iter().flat_map(|at| self.rows.iter().filter_map(|row| row.get(*at))) {
            match values.iter_mut().find(|(text, ..)| *text == cell.text) {
                Some((.., count)) => *count += 1,
                None => values.push((&cell.text, cell.class, 1)),
            }
        }
        let button = |(text, _, count): &(&str, &str, usize)| {
            let text = escaped(text);
            format!(
                "<button type=\"button\" data-value=\"{text}\" aria-pressed=\"false\">{text} {count}</button>"
            )
        };
        format!(
            "<div class=\"tools\" data-for=\"{}\"{}><input type=\"search\" placeholder=\"Filter\" aria-label=\"Filter\">\
             <label class=\"narrow\">Sort by <select aria-label=\"Sort by\">{}</select></label>{}</div>\n",
            escaped(&self.id),
            self.buttons.map_or_else(String::new, |at| format!(" data-column=\"{at}\"")),
            options.collect::<String>(),
            values.iter().map(button).collect::<String>()
        )
    }
}

/// A text as HTML shows it.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= three.len() { DIGITS[value as usize] as char } else { '=' });
        }
    }
    text
}

/// Asserts that a page asks for nothing beside itself.
#[cfg(test)]
pub(crate) fn loads_nothing(page: &str) {
    for (at, _) in page.match_indices("src=\"") {
        assert!(page[at..].starts_with("src=\"data:"), "{}", &page[at..at + 80]);
    }
    for (at, _) in page.match_indices("href=\"") {
        assert!(page[at..].starts_with("href=\"#"), "{}", &page[at..at + 80]);
    }
    for loading in ["<link", "@import", "url(", "fetch(", "XMLHttpRequest", "<iframe", "import("] {
        assert!(!page.contains(loading), "{loading}");
    }
    // The one address of an SVG is the name of its language.
    assert_eq!(page.matches("http").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_the_page() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
        let rows = vec![vec![Cell::text("</table><b>").link("\"x"), Cell::number("1.5", Some(1.5))]];
        let table = Table {
            id: "t".into(),
            columns: vec!["run".into(), "time".into()],
            rows,
            buttons: Some(0),
            tools: true,
        };
        let html = table.html();
        assert!(
            !html.contains("<b>") && html.contains("href=\"#&quot;x\"") && html.contains("data-key=\"1.5\"")
        );
        assert_eq!((html.matches("</table>").count(), html.matches("<tr>").count()), (1, 2));
        assert!(html.contains("<button type=\"button\" data-value=\"&lt;/table&gt;&lt;b&gt;\""), "{html}");
    }

    #[test]
    fn bytes_are_written_as_everyone_writes_them() {
        let of = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(of, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn a_page_loads_nothing_and_has_all_of_its_parts() {
        let mut page = Page::new("a & b", "what it is");
        page.heading("h").paragraph("p < q").text("all", "{\"a\": 1}");
        let text = page.finish();
        assert!(text.contains("<title>a &amp; b</title>") && text.contains("p &lt; q"));
        loads_nothing(&text);
    }
}
