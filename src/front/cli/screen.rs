//! The first screen of `bimetal status`: what one wants to know of a mount, in the order one asks.
//!
//! Is it well? How full are the halves? What would be lost with the SSD? What is where? What did it cost?
//! Everything comes from the status as the mount gives it; a part that a kind of file system does not have is left
//! out.

use crate::error::shown;
use crate::units::show_size;
use serde_json::Value;
use std::fmt::{self, Write};
use std::time::Duration;

const BAR: u64 = 20;

/// How full the mount is, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub used: u64,
    pub size: u64,
}

/// A screen with fewer columns than this has the sections' counts in lines of their own.
const WIDE: usize = 104;

/// The whole screen, in lines of at most so many columns.
pub(super) fn screen(place: &str, space: Space, status: &Value, columns: usize) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = head(&mut text, place, status)
        .and_then(|()| halves(&mut text, space, status))
        .and_then(|()| risk(&mut text, status))
        .and_then(|()| if columns < WIDE { narrow(&mut text, status) } else { sections(&mut text, status) })
        .and_then(|()| costs(&mut text, status));
    fit(&text, columns)
}

/// A text in lines of at most so many columns, one at least: longer ones go on below, further in, broken at blanks where there are
/// any. No more than half a line is blank for that.
pub(super) fn fit(text: &str, columns: usize) -> String {
    let columns = columns.max(1);
    let mut fitted = String::new();
    for line in text.lines() {
        let mut rest: Vec<char> = line.chars().collect();
        let blanks = rest.iter().take_while(|c| **c == ' ').count();
        let mut indent = 0;
        while rest.len() + indent > columns {
            let room = columns - indent;
            let first = rest.iter().position(|c| *c != ' ').unwrap_or(0);
            let blank = rest[..=room].iter().rposition(|c| *c == ' ').filter(|at| *at > first);
            let tail = rest.split_off(blank.unwrap_or(room));
            fitted += " ".repeat(indent).as_str();
            fitted += rest.iter().collect::<String>().trim_end();
            fitted.push('\n');
            rest = tail.into_iter().skip_while(|c| *c == ' ').collect();
            indent = (blanks + 4).min(12).min(columns / 2);
        }
        fitted += " ".repeat(indent).as_str();
        fitted.extend(rest);
        fitted.push('\n');
    }
    fitted
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn size(value: &Value) -> String {
    show_size(number(value))
}

/// `[#####...............]`; nothing at all looks empty, all of it full, and only that.
pub(super) fn bar(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
    let filled = match share {
        0.0 => 0,
        share => ((share * BAR as f64).round() as u64).clamp(1, BAR - u64::from(share < 1.0)),
    };
    format!("[{}{}]", "#".repeat(filled as usize), ".".repeat((BAR - filled) as usize))
}

fn bar_of(part: u64, whole: u64) -> String {
    let percent = if whole > 0 { part as f64 / whole as f64 * 100.0 } else { 0.0 };
    format!("{} {percent:3.0} %", bar(part as f64, whole as f64))
}

fn head(text: &mut String, place: &str, status: &Value) -> fmt::Result {
    let front = &status["front"];
    let since = humantime::format_duration(Duration::from_secs(number(&front["mounted_seconds"])));
    let version = front["version"].as_str().unwrap_or("?");
    let kind = status["type"].as_str().unwrap_or("nfhybrid");
    writeln!(
        text,
        "{kind} on {place}, mounted {since} (version {version}, process {})",
        number(&front["pid"])
    )?;
    let health = &status["health"];
    if let Some(state @ ("degraded" | "stopped")) = health["state"].as_str() {
        writeln!(text, "! {state}")?;
    }
    for list in [&health["why"], &status["notes"]] {
        for one in list.as_array().into_iter().flatten().filter_map(Value::as_str) {
            writeln!(text, "! {}", shown(one.as_bytes()))?;
        }
    }
    match number(&front["panics"]) {
        0 => Ok(()),
        count => writeln!(text, "! {count} requests met a bug and failed; the log says which"),
    }
}

fn halves(text: &mut String, space: Space, status: &Value) -> fmt::Result {
    writeln!(text)?;
    let mut row = |name: &str, bytes: u64, used: u64, path: &Value| {
        let path = shown(path.as_str().unwrap_or("").as_bytes());
        let row = format!("  {name:5} {:>10}  {}  {path}", show_size(bytes), bar_of(used, bytes));
        writeln!(text, "{}", row.trim_end())
    };
    if status["nand"].is_object() {
        row("flash", number(&status["capacity_bytes"]), number(&status["used_bytes"]), &Value::Null)?;
        let nvram = &status["nvram"];
        return match number(&nvram["size_bytes"]) {
            0 => Ok(()),
            bytes => row("nvram", bytes, number(&nvram["used_bytes"]), &Value::Null),
        };
    }
    if !status["disk"].is_string() {
        return row("space", space.size, space.used, &Value::Null);
    }
    row("disk", space.size, space.used, &status["disk"])?;
    if let Some(sections) = status["ssd_half"]["sections"].as_array() {
        let sum = |field: &str| sections.iter().map(|section| number(&section[field])).sum();
        row("ssd", sum("size_bytes"), sum("resident_bytes"), &status["ssd"])?;
    }
    Ok(())
}

fn risk(text: &mut String, status: &Value) -> fmt::Result {
    let risk = &status["at_risk"];
    if risk.is_null() {
        return Ok(());
    }
    let behind = number(&status["operations"][0]).saturating_sub(number(&status["operations"][1]));
    match behind {
        0 => writeln!(text, "\nThe disk alone has everything.")?,
        1 => writeln!(text, "\nThe disk alone lacks the last operation.")?,
        behind => writeln!(text, "\nThe disk alone lacks the last {behind} operations.")?,
    }
    let limit = risk["limit_seconds"].as_f64().unwrap_or(0.0);
    let bytes = bar(number(&risk["bytes"]) as f64, number(&risk["limit_bytes"]) as f64);
    let row = |name, now: String, bar, limit: String| format!("  {name:8} {now:>10}  {bar}  of {limit}");
    writeln!(text, "{}", row("at risk", size(&risk["bytes"]), bytes, size(&risk["limit_bytes"])))?;
    match risk["seconds"].as_f64() {
        Some(seconds) => {
            let behind =
                row("behind", format!("{seconds:.1} s"), bar(seconds, limit), format!("{limit:.1} s"));
            writeln!(text, "{behind}")
        }
        None => writeln!(text, "  behind   {:>10}  {BEHIND_UNKNOWN}", "unknown"),
    }
}

/// Why it is not known how far the disk half of a volume that is only looked at is behind.
pub(super) const BEHIND_UNKNOWN: &str = "a mount for writing brings it what the log holds";

fn sections(text: &mut String, status: &Value) -> fmt::Result {
    let half = &status["ssd_half"];
    let Some(sections) = half["sections"].as_array() else { return Ok(()) };
    writeln!(
        text,
        "\n{:12} {:>10} {:>10} {:>10}  {:27}  {:>8} {:>8} {:>8}",
        "Section", "size", "extents of", "resident", "", "files", "hits", "misses"
    )?;
    for section in sections {
        let bytes = number(&section["size_bytes"]);
        writeln!(
            text,
            "  {:10} {:>10} {:>10} {:>10}  {}  {:>8} {:>8} {:>8}",
            shown(section["name"].as_str().unwrap_or("?").as_bytes()),
            show_size(bytes),
            size(&section["extent_bytes"]),
            size(&section["resident_bytes"]),
            bar_of(number(&section["resident_bytes"]), bytes),
            number(&section["inodes"]),
            number(&section["hits"]),
            number(&section["misses"]),
        )?;
    }
    let (used, bytes) = (number(&half["log_used_bytes"]), number(&half["log_bytes"]));
    let (shown_size, shown_used) = (show_size(bytes), show_size(used));
    writeln!(text, "  {:10} {shown_size:>10} {:>10} {shown_used:>10}  {}", "(log)", "", bar_of(used, bytes))
}

/// [`sections`] for a narrow screen.
fn narrow(text: &mut String, status: &Value) -> fmt::Result {
    let half = &status["ssd_half"];
    let Some(sections) = half["sections"].as_array() else { return Ok(()) };
    let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 * 100.0 } else { 0.0 };
    writeln!(text, "\n{:12} {:>10} {:>10} {:>10}", "Section", "size", "extents of", "resident")?;
    for section in sections {
        let (bytes, resident) = (number(&section["size_bytes"]), number(&section["resident_bytes"]));
        writeln!(
            text,
            "  {:10} {:>10} {:>10} {:>10}  {:3.0} %",
            shown(section["name"].as_str().unwrap_or("?").as_bytes()),
            show_size(bytes),
            size(&section["extent_bytes"]),
            show_size(resident),
            share(resident, bytes),
        )?;
        let count = |name: &str| number(&section[name]);
        writeln!(text, "    {} files, {} hits, {} misses", count("inodes"), count("hits"), count("misses"))?;
    }
    let (used, bytes) = (number(&half["log_used_bytes"]), number(&half["log_bytes"]));
    let (size, resident) = (show_size(bytes), show_size(used));
    writeln!(text, "  {:10} {size:>10} {:>10} {resident:>10}  {:3.0} %", "(log)", "", share(used, bytes))
}

fn costs(text: &mut String, status: &Value) -> fmt::Result {
    let written = number(&status["front"]["written_bytes"]);
    writeln!(text, "\nSince then programs wrote {}.", show_size(written))?;
    for name in ["ssd", "disk"] {
        if let Some(device) = status["devices"].get(name) {
            device_cost(text, name, written, device)?;
        }
    }
    if status["nand"].is_object() {
        return flash_cost(text, written, status);
    }
    let counters = &status["counters"];
    if counters.is_null() {
        return Ok(());
    }
    let (ssd, disk) = (number(&counters["fsync_ssd"]), number(&counters["fsync_disk"]));
    writeln!(text, "  fsync  {ssd} done by the SSD's log, {disk} by the disk")?;
    let read = |source: usize| size(&counters["read_bytes"][source]);
    writeln!(text, "  reads  {} from memory, {} from the SSD, {} from the disk", read(0), read(1), read(2))?;
    copies(text, &status["promotion"])
}

/// What became of the reads that only the disk could serve.
fn copies(text: &mut String, promotion: &Value) -> fmt::Result {
    if number(&promotion["offered_bytes"]) == 0 {
        return Ok(());
    }
    let part = |name: &str| size(&promotion[name]);
    writeln!(
        text,
        "  copies {} of those to the SSD; not {} read for the first time, {} of streams and sweeps, {} over the budget",
        part("admitted_bytes"),
        part("refused_first_bytes"),
        part("refused_swept_bytes"),
        part("refused_budget_bytes")
    )
}

/// How many times what programs wrote a device was written.
fn times(bytes: u64, written: u64) -> String {
    match written {
        0 => String::new(),
        written => format!(", {:.2} times that", bytes as f64 / written as f64),
    }
}

/// What a file system did to the flash and the NVRAM that it lies on.
fn flash_cost(text: &mut String, written: u64, status: &Value) -> fmt::Result {
    let (nand, nvram, wear) = (&status["nand"], &status["nvram"], &status["wear"]);
    let bytes = number(&nand["programs"]) * number(&nand["page_bytes"]);
    writeln!(
        text,
        "  flash  {} written{}; {} pages copied, {} blocks erased (each so far {} to {} times)",
        show_size(bytes),
        times(bytes, written),
        number(&nand["copies"]),
        number(&nand["erases"]),
        number(&wear["min"]),
        number(&wear["max"])
    )?;
    match nvram.is_object() {
        true => {
            writeln!(
                text,
                "  nvram  {} written, {} updates",
                size(&nvram["written_bytes"]),
                number(&nvram["updates"])
            )
        }
        false => Ok(()),
    }
}

fn device_cost(text: &mut String, name: &str, written: u64, device: &Value) -> fmt::Result {
    let requests = &device["requests"];
    let bytes = number(&requests["write_bytes"]);
    let times = times(bytes, written);
    let flushes = number(&requests["flushes"]) + number(&requests["durable_writes"]);
    let waited: u64 = device["waits"].as_object().into_iter().flatten().map(|(_, ns)| number(ns)).sum();
    writeln!(
        text,
        "  {name:5}  {} written{times}; {} writes, {} reads, {flushes} flushes; waited for {:.1} s",
        show_size(bytes),
        number(&requests["writes"]),
        number(&requests["reads"]),
        waited as f64 / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        json!({
            "disk": "/dev/sda", "ssd": "/dev/nvme0n1p3", "ssd_lost": null, "failure": null, "notes": [],
            "operations": [17, 1],
            "at_risk": {"bytes": 5242880, "limit_bytes": 67108864, "seconds": 0.26, "limit_seconds": 5.0},
            "ssd_half": {
                "log_bytes": 4194304, "log_used_bytes": 8192,
                "sections": [{"name": "small", "size_bytes": 61849600, "extent_bytes": 16384,
                    "resident_bytes": 5242880, "inodes": 1, "hits": 3, "misses": 4}],
            },
            "promotion": {"policy": "second", "offered_bytes": 2048, "admitted_bytes": 512,
                "refused_first_bytes": 1536, "refused_swept_bytes": 0, "refused_budget_bytes": 0},
            "counters": {"fsync_ssd": 9, "fsync_disk": 1, "read_bytes": [1024, 0, 2048]},
            "devices": {
                "ssd": {"requests": {"write_bytes": 7864320, "writes": 6, "reads": 5, "flushes": 2,
                    "durable_writes": 1}, "waits": {"write_ns": 1000000000, "durable_ns": 500000000}},
            },
            "front": {"version": "1.2.3", "pid": 77, "mounted_seconds": 3723, "panics": 0,
                "written_bytes": 5242880},
        })
    }

    #[test]
    fn the_screen_answers_what_one_asks() {
        let text = screen("/mnt", Space { used: 1 << 30, size: 4 << 30 }, &status(), usize::MAX);
        let expected = "\
nfhybrid on /mnt, mounted 1h 2m 3s (version 1.2.3, process 77)

  disk     4.0 GiB  [#####...............]  25 %  /dev/sda
  ssd     59.0 MiB  [##..................]   8 %  /dev/nvme0n1p3

The disk alone lacks the last 16 operations.
  at risk     5.0 MiB  [##..................]  of 64.0 MiB
  behind        0.3 s  [#...................]  of 5.0 s

Section            size extents of   resident                                  files     hits   misses
  small        59.0 MiB   16.0 KiB    5.0 MiB  [##..................]   8 %         1        3        4
  (log)         4.0 MiB               8.0 KiB  [#...................]   0 %

Since then programs wrote 5.0 MiB.
  ssd    7.5 MiB written, 1.50 times that; 6 writes, 5 reads, 3 flushes; waited for 1.5 s
  fsync  9 done by the SSD's log, 1 by the disk
  reads  1.0 KiB from memory, 0 B from the SSD, 2.0 KiB from the disk
  copies 512 B of those to the SSD; not 1.5 KiB read for the first time, 0 B of streams and sweeps, 0 B over the budget
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_file_system_on_flash_shows_the_flash_and_what_it_did_to_it() {
        let status = json!({
            "type": "cmfs", "capacity_bytes": 4194304, "used_bytes": 1048576,
            "nvram": {"size_bytes": 65536, "used_bytes": 1024, "updates": 12, "written_bytes": 3072},
            "nand": {"page_bytes": 2048, "programs": 1024, "erases": 7, "copies": 5},
            "wear": {"min": 0, "max": 3},
            "front": {"version": "1.2.3", "pid": 77, "mounted_seconds": 3, "panics": 0,
                "written_bytes": 1048576},
        });
        let expected = "\
cmfs on /mnt, mounted 3s (version 1.2.3, process 77)

  flash    4.0 MiB  [#####...............]  25 %
  nvram   64.0 KiB  [#...................]   2 %

Since then programs wrote 1.0 MiB.
  flash  2.0 MiB written, 2.00 times that; 5 pages copied, 7 blocks erased (each so far 0 to 3 times)
  nvram  3.0 KiB written, 12 updates
";
        let text = screen("/mnt", Space { used: 9, size: 99 }, &status, usize::MAX);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn how_far_the_disk_is_behind_is_not_said_where_it_is_not_known() {
        let mut status = status();
        status["at_risk"]["seconds"] = Value::Null;
        let text = screen("/mnt", Space { used: 0, size: 0 }, &status, 80);
        let line = text.lines().find(|line| line.starts_with("  behind")).unwrap();
        assert_eq!(line, "  behind      unknown  a mount for writing brings it what the log holds");
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let mut status = status();
        let why = "the SSD is lost: /dev/nvme0n1p3: write: Input/output error";
        status["health"] = json!({"state": "degraded", "why": [why]});
        status["notes"] = json!(["the SSD is stale"]);
        status["ssd_half"] = Value::Null;
        let text = screen("/mnt", Space { used: 0, size: 0 }, &status, usize::MAX);
        let lines: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(
            lines[1..],
            [
                "! degraded",
                "! the SSD is lost: /dev/nvme0n1p3: write: Input/output error",
                "! the SSD is stale"
            ]
        );
        assert!(!text.contains("Section"));
    }

    #[test]
    fn a_narrow_screen_has_the_same_in_shorter_lines() {
        let mut status = status();
        status["ssd_half"]["sections"][0]["name"] = json!("a-section-with-a-name-as-long-as-may-be");
        status["notes"] = json!(["x".repeat(130)]);
        let space = Space { used: 1 << 30, size: 4 << 30 };
        let place = "/somewhere/far/away/below/many/directories/with/long/names/mnt";
        for columns in [40, 60, 80, 103] {
            let text = screen(place, space, &status, columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            for part in ["1 files, 3 hits, 4 misses", "0 B over the budget", place, &"x".repeat(130)] {
                assert!(letters(&text).contains(&letters(part)), "{part} in {columns}:\n{text}");
            }
        }
        let fitted = fit("  two words and more\nshort\n", 12);
        assert_eq!(fitted, "  two words\n      and\n      more\nshort\n");
    }

    #[test]
    fn a_text_fits_any_number_of_columns_and_loses_nothing() {
        let text = "  two words and more, and aVeryLongWordOfMany\n             far in\nshort\n\n";
        let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        for columns in 0..40 {
            let fitted = fit(text, columns);
            assert_eq!(letters(&fitted), letters(text), "{columns}");
            assert!(
                fitted.lines().all(|line| line.chars().count() <= columns.max(1)),
                "{columns}: {fitted:?}"
            );
        }
    }

    #[test]
    fn a_bar_is_empty_or_full_only_when_it_is() {
        assert_eq!(bar(0.0, 5.0), "[....................]");
        assert_eq!(bar(0.001, 5.0), "[#...................]");
        assert_eq!(bar(4.999, 5.0), "[###################.]");
        assert_eq!(bar(6.0, 5.0), "[####################]");
    }
}
