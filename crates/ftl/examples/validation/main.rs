//! What the models of flash and disk are held against: theory, arithmetic, and their own figures.
//!
//! `make validation`, or `cargo run --release -p bimetal-ftl --example validation [-- NAME...]`: prints the tables of
//! docs/validation.md, each row with what it is compared with, and how far it may be from that. A row that is further
//! away is an error. The names are those of the tables: greedy, superblocks, scaling, disk, mqsim, tail; and `sizes`, `whole` (minutes
//! and half an hour) and `datasheet` (not met yet), which are only made when they are named.

mod datasheet;
mod disk;
mod greedy;
mod load;
mod mqsim;
mod scaling;
mod sizes;
mod tail;

use bimetal_base::Result;
use std::process::ExitCode;

/// One figure and what it should be.
pub struct Row {
    what: String,
    measured: f64,
    expected: Expected,
    unit: &'static str,
}

/// What a figure should be.
pub enum Expected {
    /// So much, and at most this part off.
    Near(f64, f64),
    /// No more.
    Below(f64),
    /// No less.
    Above(f64),
    /// Another model's figure, which is another for this reason.
    Beside(f64, &'static str),
    /// Whatever it is: it stands beside another one.
    Any,
}

impl Row {
    /// A figure, and what it should be.
    pub fn new(what: impl Into<String>, measured: f64, expected: Expected, unit: &'static str) -> Row {
        Row { what: what.into(), measured, expected, unit }
    }

    fn holds(&self) -> bool {
        match self.expected {
            Expected::Near(value, part) => (self.measured / value - 1.0).abs() <= part,
            Expected::Below(most) => self.measured <= most,
            Expected::Above(least) => self.measured >= least,
            Expected::Beside(..) | Expected::Any => true,
        }
    }

    fn told(&self) -> String {
        let expected = match self.expected {
            Expected::Near(value, part) => {
                let off = (self.measured / value - 1.0) * 100.0;
                format!("{value:.3} ({off:+.1} %, at most {:.0} %)", part * 100.0)
            }
            Expected::Below(most) => format!("at most {most}"),
            Expected::Above(least) => format!("at least {least}"),
            Expected::Beside(value, why) => {
                format!("{value:.3} ({:+.1} %: {why})", (self.measured / value - 1.0) * 100.0)
            }
            Expected::Any => String::new(),
        };
        let missed = if self.holds() { "" } else { "  MISSED" };
        format!("  {:<52} {:>12.3} {:<6} {expected}{missed}", self.what, self.measured, self.unit)
    }
}

/// Makes a table's rows.
type Table = fn() -> Result<Vec<Row>>;

/// The tables that are only made when they are named: they take long, or are not met yet.
const NAMED: [&str; 3] = ["sizes", "whole", "datasheet"];

const TABLES: [(&str, &str, Table); 9] = [
    (
        "greedy",
        "Write amplification of greedy cleaning, uniform writes, against Desnoyers (SYSTOR 2012)",
        greedy::rows,
    ),
    ("superblocks", "The same with superblocks over the planes of a die", greedy::superblocks),
    (
        "sizes",
        "Write amplification of ssd-tlc made smaller, random 16 KiB writes, against 4 GiB",
        sizes::rows,
    ),
    ("scaling", "Programs a second of dies and channels, against the times of the part", scaling::rows),
    ("disk", "The disk, against the figures of its profile", disk::rows),
    ("mqsim", "A part and streams of 8 KiB requests, against MQSim (FAST 2018)", mqsim::rows),
    ("datasheet", "An SSD of a maker, against its data sheet", datasheet::rows),
    ("whole", "The same of the whole part", sizes::whole),
    ("tail", "ssd-tlc, 70 % reads and 30 % writes of 4 KiB at random, 16 under way", tail::rows),
];

fn main() -> ExitCode {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = asked.iter().find(|name| TABLES.iter().all(|(table, ..)| table != name)) {
        eprintln!(
            "validation: there is no table '{unknown}'; there are greedy, superblocks, sizes, whole, scaling, disk, mqsim, datasheet and tail"
        );
        return ExitCode::FAILURE;
    }
    let mut holds = true;
    for (name, about, rows) in TABLES {
        let is_asked = asked.iter().any(|asked| asked == name);
        if !is_asked && (NAMED.contains(&name) || !asked.is_empty()) {
            continue;
        }
        println!("{name}: {about}");
        match rows() {
            Ok(rows) => {
                rows.iter().for_each(|row| println!("{}", row.told()));
                holds &= rows.iter().all(Row::holds);
            }
            Err(why) => {
                eprintln!("validation: {name}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
