//! Meta's traces of block storage, Tectonic, as CacheLib publishes them (2021 to 2023).
//!
//! Between blanks or commas under a header, whose columns may be in any order. Read are `op_time` (seconds), `block_id`,
//! `rs_shard_id` (where there is one), `io_offset`, `io_size` (bytes), `op_name` (`getChunkData…` reads, `putChunk…` writes)
//! and `op_count`, the number of such requests in that second. The unit is the block with its shard, numbered in the order
//! in which they come (`--fit compact` lays them side by side). Other operations move no data and are skipped.

use super::super::fields::Wrong;
use super::super::lines::{LineFormat, TextTrace};
use super::super::units::Units;
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::headed::{Columns, Headed, repeated};
use super::{Format, Head, Make};

static COLUMNS: Columns<7> = Columns {
    names: ["op_time", "block_id", "io_offset", "io_size", "op_name", "rs_shard_id", "op_count"],
    needed: 5,
};

/// Registry line.
pub const FORMAT: Format = Format {
    name: "tectonic",
    about: "Meta's Tectonic traces: op_time, block_id, rs_shard_id, io_offset, io_size, op_name, op_count; the unit is the block",
    options: &[],
    make: Make {
        detects: |head: &Head| COLUMNS.are_in(head),
        open: |input, _| Ok(TextTrace::open(input, Tectonic::new())),
    },
};

struct Tectonic {
    headed: Headed<7>,
    blocks: Units,
    zero: Zero,
    repeats: usize,
}

impl Tectonic {
    fn new() -> Tectonic {
        Tectonic {
            headed: Headed::new(&COLUMNS),
            blocks: Units::default(),
            zero: Zero::default(),
            repeats: 1,
        }
    }
}

impl LineFormat for Tectonic {
    const NAME: &'static str = "tectonic";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let Some(picked) = self.headed.line(line)? else { return Ok(None) };
        let op = match picked.text(4)? {
            name if name.starts_with(b"getChunk") => Op::Read,
            name if name.starts_with(b"putChunk") => Op::Write,
            _ => return Ok(None),
        };
        let shard = if picked.has(5) { picked.text(5)? } else { b"" };
        let unit = self.blocks.named_of(&[picked.text(1)?, b"/", shard].concat());
        self.repeats = repeated(&picked, 6)?;
        let (at, flags) = self.zero.since(picked.field(0)?.decimal(COLUMNS.names[0], 9)?, 1);
        Ok(Some(Record { unit, flags, ..Record::new(at, op, picked.u64(2)?, picked.u64(3)?) }))
    }

    fn repeats(&self) -> usize {
        self.repeats
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use bimetal_base::time::Time;

    #[test]
    fn a_block_with_its_shard_is_a_unit_and_a_count_is_as_many_requests() {
        let text = "op_time block_id block_id_size io_size io_offset user_name user_namespace op_name op_count host_name rs_shard_id\n\
            1666000000 77 40 131072 65536 u1 n1 getChunkData.NotInitialized 2 h1 5\n\
            1666000003 77 40 100 0 u1 n1 putChunk.Permanent 1 h1 6\n\
            1666000004 77 40 100 0 u1 n1 statChunk 1 h1 6\n\
            1666000005 77 40 7 0 u1 n1 getChunkData.Permanent 1 h2 5\n";
        let records = read("tectonic", text).unwrap();
        assert_eq!(records.len(), 4);
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Read, 65_536, 131_072));
        assert_eq!(records[1], records[0]);
        assert_eq!(records[2], Record { unit: 1, ..Record::new(Time(3_000_000_000), Op::Write, 0, 100) });
        assert_eq!((records[3].unit, records[3].len), (0, 7));
    }

    #[test]
    fn a_count_of_too_many_is_named() {
        let text = "op_time,block_id,io_offset,io_size,op_name,op_count\n1,2,3,4,getChunkData.x,99999999\n";
        let error = read("tectonic", text).unwrap_err().to_string();
        assert!(error.contains("field 6 (op_count) is 99999999"), "{error}");
    }
}
