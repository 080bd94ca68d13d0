//! `bimetal top`: mounts while they work, again and again.
//!
//! A sample is what lies between two looks at the status of a mount. On a terminal the screen is painted over; nothing of the
//! terminal's state is changed, so that whatever ends the command leaves it as it was. Cost to a mount: a status a second.

use super::sample::Look;
use super::screen::{BEHIND_UNKNOWN, bar};
use crate::error::shown;
use crate::units::show_size;
use crate::{Error, Result};
use clap::Args;
use console::{Term, measure_text_width, truncate_str};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal top /mnt                          until Ctrl-C
  bimetal top --every 5s /mnt /data
  bimetal top --once /mnt                   one sample as text
  bimetal top --json --every 10s /mnt | jq '.mounts[0].at_risk.bytes'
Rates are of the time between two looks, --every. The load of a device is how many requests were waited for at once,
on average; wear counts from the mount on, for flash from the part's first day.";

/// A screen that is not a terminal's has so many columns.
const COLUMNS: u16 = 120;
/// Columns of a row's name.
const INDENT: usize = 12;

/// Watch mounts: hits, what is at risk, load, evictions, wear, errors
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Top {
    /// Print one sample, and end
    #[arg(long)]
    once: bool,
    /// Print one sample as one JSON object, and end
    #[arg(long)]
    json: bool,
    /// Time between two samples: 1s, 500ms, 1m; at least 10ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    every: humantime::Duration,
    /// Columns of the screen; without it those of the terminal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    columns: Option<u16>,
    /// Directories that are mounted on
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
}

/// The time between two samples.
fn pause(text: &str) -> std::result::Result<humantime::Duration, String> {
    let pause: humantime::Duration = text.parse().map_err(|why| format!("{why}; write for example 5s"))?;
    match *pause < Duration::from_millis(10) {
        true => Err("too short; it takes at least 10ms".into()),
        false => Ok(pause),
    }
}

impl Top {
    pub fn run(&self) -> Result<ExitCode> {
        let every = Duration::from(self.every);
        let mut before = self.look().into_iter().collect::<Result<Vec<Look>>>()?;
        let term = Term::stdout();
        if !self.once && !self.json && term.is_term() {
            return self.watch(&term, every);
        }
        loop {
            thread::sleep(every);
            let now = self.look().into_iter().collect::<Result<Vec<Look>>>()?;
            let samples: Vec<Value> =
                now.iter().zip(&before).map(|(now, before)| now.since(before)).collect();
            let text = match self.json {
                true => super::as_line(&json!({ "every_seconds": every.as_secs_f64(), "mounts": samples })),
                false => screen(&samples, self.columns.unwrap_or(COLUMNS)).trim_end().to_string(),
            };
            if !super::heard(&text)? || self.once || self.json {
                return Ok(ExitCode::SUCCESS);
            }
            before = now;
        }
    }

    fn look(&self) -> Vec<Result<Look>> {
        self.mountpoints.iter().map(|place| Look::at(place)).collect()
    }

    /// Paints the screen over, until somebody ends it. A mount that goes away is said to be gone, and shown again when it is
    /// back.
    fn watch(&self, term: &Term, every: Duration) -> Result<ExitCode> {
        let failed = |why| Error::io("the terminal", why);
        let mut before = self.look();
        term.clear_screen().map_err(failed)?;
        loop {
            thread::sleep(every);
            let now = self.look();
            let samples = now.iter().zip(&before).map(|pair| match pair {
                (Ok(now), Ok(before)) => now.since(before),
                (Ok(now), Err(_)) => now.since(now),
                (Err(why), _) => json!({ "gone": why.to_string() }),
            });
            let samples: Vec<Value> = samples.collect();
            let (rows, columns) = term.size();
            let columns = self.columns.unwrap_or(columns);
            let head = format!("bimetal top, every {}; Ctrl-C ends", self.every);
            let text = format!("{}\n\n{}", cut(&head, columns.into()), screen(&samples, columns));
            term.move_cursor_to(0, 0).map_err(failed)?;
            for line in text.lines().take(usize::from(rows).saturating_sub(1)) {
                term.clear_line().map_err(failed)?;
                term.write_line(line).map_err(failed)?;
            }
            term.clear_to_end_of_screen().map_err(failed)?;
            before = now;
        }
    }
}

/// As much of a text as fits.
fn cut(text: &str, columns: usize) -> String {
    truncate_str(text, columns, "…").into_owned()
}

/// What a sample of each mount says, in lines of at most `columns`.
fn screen(samples: &[Value], columns: u16) -> String {
    let columns = usize::from(columns);
    let blocks: Vec<String> = samples.iter().map(|sample| block(sample, columns)).collect();
    blocks.join("\n")
}

/// The lines of one mount.
struct Lines {
    text: String,
    columns: usize,
}

impl Lines {
    fn line(&mut self, line: &str) {
        self.text.push_str(&cut(line.trim_end(), self.columns));
        self.text.push('\n');
    }

    /// A named row; parts that do not fit go on below each other.
    fn row(&mut self, name: &str, parts: &[String]) {
        let mut line = format!("  {name:<width$}", width = INDENT - 2);
        let mut used = INDENT;
        for part in parts {
            let wide = measure_text_width(part);
            if used > INDENT && used + 2 + wide > self.columns {
                self.line(&line);
                line = " ".repeat(INDENT);
                used = INDENT;
            }
            if used > INDENT {
                line.push_str("  ");
                used += 2;
            }
            line.push_str(part);
            used += wide;
        }
        self.line(&line);
    }
}

fn block(sample: &Value, columns: usize) -> String {
    let mut lines = Lines { text: String::new(), columns };
    if let Some(why) = sample["gone"].as_str() {
        lines.line(&format!("! {}", shown(why.as_bytes())));
        return lines.text;
    }
    title(&mut lines, sample);
    let space = &sample["space"];
    let (used, size) = (float(&space["used_bytes"]), float(&space["size_bytes"]));
    lines.row("space", &[format!("{:>10} {} of {}", bytes(used), bar(used, size), bytes(size))]);
    risk(&mut lines, &sample["at_risk"]);
    lines.row(
        "requests",
        &[
            format!("{:>8} /s", rate(&sample["requests_per_second"])),
            format!("programs wrote {:>10}/s", size_of(&sample["written_bytes_per_second"])),
        ],
    );
    reads(&mut lines, sample);
    for (name, device) in sample["devices"].as_object().into_iter().flatten() {
        lines.row(
            name,
            &[
                format!(
                    "reads {:>7} /s {:>10}/s",
                    rate(&device["reads_per_second"]),
                    size_of(&device["read_bytes_per_second"])
                ),
                format!(
                    "writes {:>7} /s {:>10}/s",
                    rate(&device["writes_per_second"]),
                    size_of(&device["written_bytes_per_second"])
                ),
                format!("flushes {:>6} /s", rate(&device["flushes_per_second"])),
                format!("load {:>6.2}", float(&device["load"])),
            ],
        );
    }
    flash(&mut lines, &sample["flash"]);
    if sample["evictions"].is_object() {
        let evictions = &sample["evictions"];
        let parts = [
            format!("{:>8} files/s", rate(&evictions["files_per_second"])),
            format!("{} files since the mount", evictions["files"]),
        ];
        lines.row("evictions", &parts);
    }
    wear(&mut lines, &sample["wear"]);
    let named =
        ["devices", "checksums", "flash", "bugs"].map(|of| (of, sample["errors"][of].as_u64().unwrap_or(0)));
    let some: Vec<String> =
        named.iter().filter(|(_, count)| *count > 0).map(|(of, count)| format!("{of} {count}")).collect();
    lines.row("errors", &if some.is_empty() { vec!["none since the mount".into()] } else { some });
    lines.text
}

/// Where, what, and whether it is well. Of a long name the end is what tells it apart.
fn title(lines: &mut Lines, sample: &Value) {
    let health = &sample["health"];
    let state = health["state"].as_str().unwrap_or("?");
    let rest = format!("  {}  {state}", sample["type"].as_str().unwrap_or("?"));
    let name = shown(sample["mount"].as_str().unwrap_or("?").as_bytes());
    let room = lines.columns.saturating_sub(rest.len());
    let mut end = name;
    while measure_text_width(&end) > room && !end.is_empty() {
        // The mark takes the place of what is cut.
        let mut left = end.chars();
        left.by_ref().take(2).for_each(drop);
        end = format!("…{}", left.as_str());
        if end.chars().count() <= 1 {
            break;
        }
    }
    lines.line(&format!("{end}{rest}"));
    for why in health["why"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lines.line(&format!("! {}", shown(why.as_bytes())));
    }
}

fn risk(lines: &mut Lines, risk: &Value) {
    if !risk.is_object() {
        return;
    }
    let (now, limit) = (float(&risk["bytes"]), float(&risk["limit_bytes"]));
    lines.row("at risk", &[format!("{:>10} {} of {}", bytes(now), bar(now, limit), bytes(limit))]);
    let limit = float(&risk["limit_seconds"]);
    let shown = match risk["seconds"].as_f64() {
        Some(now) => format!("{:>10} {} of {limit:.1} s", format!("{now:.1} s"), bar(now, limit)),
        None => format!("{:>10} {BEHIND_UNKNOWN}", "unknown"),
    };
    lines.row("behind", &[shown]);
}

fn reads(lines: &mut Lines, sample: &Value) {
    let read = &sample["read_bytes_per_second"];
    if read.is_object() {
        let part = |from: &str, said: &str| format!("{said} {:>10}/s", size_of(&read[from]));
        lines.row("read from", &[part("memory", "memory"), part("ssd", "SSD"), part("disk", "disk")]);
    }
    let hits = &sample["hits"];
    if hits.is_object() {
        let ratio = match hits["ratio"].as_f64() {
            Some(ratio) => format!("{:>7.1} %", ratio * 100.0),
            None => "no reads".into(),
        };
        let parts = [
            ratio,
            format!("hits {:>7} /s", rate(&hits["hits_per_second"])),
            format!("misses {:>7} /s", rate(&hits["misses_per_second"])),
        ];
        lines.row("hits", &parts);
    }
    let fsyncs = &sample["fsyncs_per_second"];
    if fsyncs.is_object() {
        let part = |by: &str, said: &str| format!("by the {said} {:>7} /s", rate(&fsyncs[by]));
        lines.row("fsyncs", &[part("ssd", "SSD's log"), part("disk", "disk")]);
    }
}

fn flash(lines: &mut Lines, flash: &Value) {
    if flash.is_object() {
        let parts = [
            format!("programmed {:>10}/s", size_of(&flash["programmed_bytes_per_second"])),
            format!("copied {:>7} pages/s", rate(&flash["copied_pages_per_second"])),
            format!("erased {:>7} blocks/s", rate(&flash["erases_per_second"])),
        ];
        lines.row("flash", &parts);
    }
}

fn wear(lines: &mut Lines, wear: &Value) {
    if wear["erases_max"].is_u64() {
        let range = format!("each block erased {} to {} times", wear["erases_min"], wear["erases_max"]);
        return lines.row("wear", &[range]);
    }
    if !wear.is_object() {
        return;
    }
    let mut parts = vec![format!("{:>10} to the SSD", size_of(&wear["ssd_written_bytes"]))];
    if let Some(times) = wear["times_what_programs_wrote"].as_f64() {
        parts.push(format!("{times:.2} times what programs wrote"));
    }
    if let Some(times) = wear["times_its_size"].as_f64() {
        parts.push(format!("{times:.2} times its size"));
    }
    lines.row("wear", &parts);
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn bytes(count: f64) -> String {
    show_size(count as u64)
}

fn size_of(value: &Value) -> String {
    bytes(float(value))
}

/// A few digits are enough.
fn rate(value: &Value) -> String {
    match float(value) {
        few if few > 0.0 && few < 9.95 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mount: &str) -> Value {
        json!({
            "mount": mount, "type": "nfhybrid", "interval_seconds": 1.0,
            "health": {"state": "degraded", "why": ["the SSD is lost: /dev/nvme0n1p3: write: Input/output error (os error 5)"]},
            "space": {"size_bytes": 1_073_741_824_u64, "used_bytes": 134_217_728},
            "requests_per_second": 1234.4, "written_bytes_per_second": 12_582_912.0,
            "at_risk": {"bytes": 13_946_061, "limit_bytes": 67_108_864, "seconds": 0.94, "limit_seconds": 5.0},
            "hits": {"hits_per_second": 930.0, "misses_per_second": 70.2, "ratio": 0.93},
            "read_bytes_per_second": {"memory": 0.0, "ssd": 3_809_280.0, "disk": 287_539.0},
            "fsyncs_per_second": {"ssd": 40.2, "disk": 0.0},
            "devices": {
                "disk": {"reads_per_second": 70.2, "writes_per_second": 16.0, "flushes_per_second": 2.4,
                    "read_bytes_per_second": 287_539.0, "written_bytes_per_second": 9_437_184.0, "load": 0.834},
                "ssd": {"reads_per_second": 930.0, "writes_per_second": 41.0, "flushes_per_second": 41.0,
                    "read_bytes_per_second": 3_809_280.0, "written_bytes_per_second": 12_800_000.0, "load": 0.21},
            },
            "flash": null,
            "evictions": {"files_per_second": 3.25, "files": 120},
            "wear": {"ssd_written_bytes": 92_274_688, "times_what_programs_wrote": 0.84, "times_its_size": 1.375},
            "errors": {"devices": 1, "checksums": 0, "flash": 0, "bugs": 0},
        })
    }

    #[test]
    fn a_wide_screen_has_a_row_for_each_thing_asked() {
        let expected = "\
/mnt  nfhybrid  degraded
! the SSD is lost: /dev/nvme0n1p3: write: Input/output error (os error 5)
  space      128.0 MiB [###.................] of 1.0 GiB
  at risk     13.3 MiB [####................] of 64.0 MiB
  behind         0.9 s [####................] of 5.0 s
  requests      1234 /s  programs wrote   12.0 MiB/s
  read from memory        0 B/s  SSD    3.6 MiB/s  disk  280.8 KiB/s
  hits         93.0 %  hits     930 /s  misses      70 /s
  fsyncs    by the SSD's log      40 /s  by the disk       0 /s
  disk      reads      70 /s  280.8 KiB/s  writes      16 /s    9.0 MiB/s  flushes    2.4 /s  load   0.83
  ssd       reads     930 /s    3.6 MiB/s  writes      41 /s   12.2 MiB/s  flushes     41 /s  load   0.21
  evictions      3.2 files/s  120 files since the mount
  wear        88.0 MiB to the SSD  0.84 times what programs wrote  1.38 times its size
  errors    devices 1
";
        let text = screen(&[sample("/mnt")], 120);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn nothing_is_wider_than_the_screen_and_no_number_is_cut_off() {
        let long = format!("/a/{}/end", "very-long-name-".repeat(20));
        for columns in [40, 60, 80, 120, 200] {
            let text = screen(
                &[sample(&long), sample("/名前/名前/名前/名前/名前/名前/名前/名前/名前/名前/名前/名前")],
                columns,
            );
            for line in text.lines() {
                assert!(measure_text_width(line) <= columns.into(), "{columns}: {line}");
            }
            if columns >= 60 {
                for part in [
                    "13.3 MiB [####................] of 64.0 MiB",
                    "280.8 KiB/s",
                    "load   0.83",
                    "/end  nfhybrid  degraded",
                ] {
                    assert!(text.contains(part), "{part} in {columns} columns of\n{text}");
                }
                // What is wrong is a sentence; all the rest fits.
                let cut = text.lines().filter(|line| line.ends_with('…')).count();
                assert!(cut <= 2, "{text}");
            }
        }
    }

    #[test]
    fn nothing_that_a_mount_or_its_name_says_moves_the_terminal() {
        let mut odd = sample("/mnt");
        odd["health"]["why"] = json!(["a\u{1b}[31m\nb"]);
        for one in [odd, json!({"gone": "/g\u{1b}[31m\n\u{202e}: nothing of bimetal is mounted here"})] {
            let text = screen(std::slice::from_ref(&one), 120);
            assert!(!text.chars().any(|c| c != '\n' && crate::error::acts(c)), "{text:?}");
            assert!(text.lines().any(|line| line.starts_with("! ") && line.contains("[31m")), "{text:?}");
        }
    }

    #[test]
    fn flash_shows_its_erases_and_a_mount_that_is_gone_says_why() {
        let flash = json!({
            "mount": "/mnt", "type": "cmfs", "health": {"state": "ok", "why": []},
            "space": {"size_bytes": 4_194_304, "used_bytes": 1_048_576},
            "requests_per_second": 0.0, "written_bytes_per_second": 0.0, "devices": {},
            "flash": {"programmed_bytes_per_second": 2048.0, "copied_pages_per_second": 0.5, "erases_per_second": 0.0},
            "wear": {"erases_min": 0, "erases_max": 3}, "errors": {"devices": 0},
        });
        let text = screen(&[flash, json!({"gone": "/data: nothing of bimetal is mounted here"})], 60);
        for part in [
            "/mnt  cmfs  ok",
            "programmed    2.0 KiB/s",
            "copied     0.5 pages/s",
            "erased 0 to 3 times",
            "none since",
            "! /data: nothing",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("at risk") && !text.contains("hits"));
    }
}
