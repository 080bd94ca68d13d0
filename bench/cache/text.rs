//! How fast traces in text become records.

use super::{best, cpu_seconds, median};
use bimetal::front::trace::{ReadOptions, Source};
use std::fmt::Write;
use std::path::Path;

/// The line of a format that says: request `at`, a write or not, to this byte, so many bytes long.
type Line = fn(&mut String, at: u64, is_write: bool, offset: u64, len: u64) -> std::fmt::Result;

const FORMATS: &[(&str, Line)] = &[
    ("csv", |text, at, write, offset, len| {
        writeln!(
            text,
            "{}.{:06},{},{offset},{len},-",
            at / 1000,
            at % 1000 * 1000,
            if write { "W" } else { "R" }
        )
    }),
    ("msr", |text, at, write, offset, len| {
        let kind = if write { "Write" } else { "Read" };
        writeln!(text, "{},hm,0,{kind},{offset},{len},2833", 128_166_385_295_514_663 + at * 10_000)
    }),
    ("spc", |text, at, write, offset, len| {
        writeln!(
            text,
            "0,{},{len},{},{}.{:06}",
            offset / 512,
            if write { "w" } else { "r" },
            at / 1000,
            at % 1000
        )
    }),
    ("alibaba", |text, at, write, offset, len| {
        let kind = if write { "W" } else { "R" };
        writeln!(text, "419,{kind},{offset},{len},{}", 1_577_808_000_000_047 + at * 1000)
    }),
    ("blkparse", |text, at, write, offset, len| {
        let kind = if write { "WS" } else { "R" };
        let (sector, sectors) = (offset / 512, len / 512);
        writeln!(
            text,
            "  8,0    1 {at:8} {:5}.{:09}   697  D  {kind} {sector} + {sectors} [fio]",
            at / 1000,
            at % 1000 * 1_000_000
        )
    }),
];

fn sample(line: Line, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 200);
    let mut random = 1u64;
    for at in 0.. {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (offset, len) = ((random >> 33) % (1 << 26) * 4096, 4096 << (random >> 60 & 3));
        // Writing to a string cannot fail.
        let _ = line(&mut text, at, random >> 40 & 1 == 1, offset, len);
        if text.len() >= bytes {
            break;
        }
    }
    text
}

/// Writes a file of `megabytes` in each format into `dir` and reads it back `rounds` times; a table.
pub fn measure(dir: &Path, megabytes: usize, rounds: u32) -> Result<String, super::Failure> {
    let mut table = format!("\n{:<12}{:>16}{:>16}\n", "text traces", "MB a second", "M rows a second");
    for (name, line) in FORMATS {
        let path = dir.join(name);
        std::fs::write(&path, sample(*line, megabytes * 1_000_000))?;
        let options = ReadOptions { format: Some(name.to_string()), ..ReadOptions::default() };
        let source = Source::parse(&path.to_string_lossy(), options)?;
        let (mut speed, mut rows) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = cpu_seconds();
            let mut bytes = 0u64;
            let mut records = 0u64;
            for record in source.open()? {
                bytes = bytes.wrapping_add(record?.len);
                records += 1;
            }
            std::hint::black_box(bytes);
            let seconds = cpu_seconds() - start;
            speed.push(std::fs::metadata(&path)?.len() as f64 / seconds / 1e6);
            rows.push(records as f64 / seconds / 1e6);
        }
        writeln!(
            table,
            "{name:<12}{:>16}{:>16.1}",
            format!("{:.0} ({:.0})", median(speed.clone()), best(&speed)),
            median(rows)
        )?;
        std::fs::remove_file(&path)?;
    }
    Ok(table)
}
