//! Google's synthesized traces of storage servers (Phothilimthana and others: Thesios, ASPLOS 2024).
//!
//! Comma-separated under a header, whose columns may be in any order. Read are `filename`, `file_offset`, `op_type` (READ or
//! WRITE), `request_io_size_bytes` and `start_time`, in seconds since 1970. The unit is the file, numbered in the order in
//! which files come (`--fit compact` lays them side by side). Time counts from the first request.

use super::super::fields::Wrong;
use super::super::lines::{LineFormat, TextTrace};
use super::super::units::Units;
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::headed::{Columns, Headed};
use super::{Format, Head, Make};

static COLUMNS: Columns<5> = Columns {
    names: ["filename", "file_offset", "op_type", "request_io_size_bytes", "start_time"],
    needed: 5,
};

/// Registry line.
pub const FORMAT: Format = Format {
    name: "thesios",
    about: "Google's Thesios CSV: filename, file_offset, op_type, request_io_size_bytes, start_time; the unit is the file",
    options: &[],
    make: Make {
        detects: |head: &Head| COLUMNS.are_in(head),
        open: |input, _| Ok(TextTrace::open(input, Thesios::new())),
    },
};

struct Thesios {
    headed: Headed<5>,
    files: Units,
    zero: Zero,
}

impl Thesios {
    fn new() -> Thesios {
        Thesios { headed: Headed::new(&COLUMNS), files: Units::default(), zero: Zero::default() }
    }
}

impl LineFormat for Thesios {
    const NAME: &'static str = "thesios";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let Some(picked) = self.headed.line(line)? else { return Ok(None) };
        let unit = self.files.named_of(picked.text(0)?);
        let offset = picked.u64(1)?;
        let op = match picked.text(2)? {
            b"READ" => Op::Read,
            b"WRITE" => Op::Write,
            other => {
                return Err(picked.wrong(2, format!("is '{}', neither READ nor WRITE", other.escape_ascii())));
            }
        };
        let len = picked.u64(3)?;
        let (at, flags) = self.zero.since(picked.field(4)?.decimal(COLUMNS.names[4], 9)?, 1);
        Ok(Some(Record { unit, flags, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use bimetal_base::time::Time;

    const HEAD: &str = "filename,file_offset,application,c_time,io_zone,redundancy_type,op_type,service_class,\
        from_flash_cache,cache_hit,request_io_size_bytes,disk_io_size_bytes,response_io_size_bytes,start_time,disk_time,\
        simulated_disk_start_time,simulated_latency\n";

    #[test]
    fn files_are_units_and_columns_are_found_by_name() {
        let text = format!(
            "{HEAD}8f3,1048576,bigtable,1705000000,WARM,REPLICATED,READ,OTHER,0,0,4096,4096,4096,1705276800.250000,0.01,0,0.02\n\
             123,0,spanner,1705000000,COLD,ERASURE_CODED,WRITE,OTHER,0,-1,131072,0,0,1705276801.5,0,0,0.001\n\
             8f3,0,bigtable,1705000000,WARM,REPLICATED,READ,OTHER,0,1,512,0,512,1705276802,0,0,0.001\n"
        );
        let records = read("thesios", text).unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Read, 1_048_576, 4096));
        assert_eq!(records[1], Record { unit: 1, ..Record::new(Time(1_250_000_000), Op::Write, 0, 131_072) });
        assert_eq!((records[2].unit, records[2].at), (0, Time(1_750_000_000)));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("thesios", format!("{HEAD}a,x,,,,,READ,,,,4096,,,17,,,\n")).unwrap_err().to_string();
        assert!(error.contains("field 2 (file_offset) is 'x'") && error.contains("line 2"), "{error}");
        let error = read("thesios", format!("{HEAD}a,0\n")).unwrap_err().to_string();
        assert!(error.contains("(op_type) is missing"), "{error}");
    }
}
