//! Meta's traces of key-value caches, as CacheLib publishes them (2022 and 2024).
//!
//! Comma-separated under a header, whose columns may be in any order. Read are `key`, `op` (GET…: a read, SET…: a write,
//! DELETE: a discard), `op_count`, the number of such requests in that second, and `op_time` (seconds; the older traces have
//! none, and all their requests are of one instant). A key is a [page](super::keys).

use super::super::fields::Wrong;
use super::super::lines::{LineFormat, TextTrace};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::headed::{Columns, Headed, repeated};
use super::keys::{object_of, of_object};
use super::{Format, Head, Make};

static COLUMNS: Columns<5> = Columns { names: ["key", "op", "key_size", "op_count", "op_time"], needed: 3 };

/// Registry line.
pub const FORMAT: Format = Format {
    name: "kvcache",
    about: "Meta's key-value cache CSV: key, op, op_count, op_time; keys, one page of 4 KiB each",
    options: &[],
    make: Make {
        detects: |head: &Head| COLUMNS.are_in(head),
        open: |input, _| Ok(TextTrace::open(input, KvCache::new())),
    },
};

struct KvCache {
    headed: Headed<5>,
    zero: Zero,
    repeats: usize,
}

impl KvCache {
    fn new() -> KvCache {
        KvCache { headed: Headed::new(&COLUMNS), zero: Zero::default(), repeats: 1 }
    }
}

impl LineFormat for KvCache {
    const NAME: &'static str = "kvcache";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let Some(picked) = self.headed.line(line)? else { return Ok(None) };
        let op = match picked.text(1)? {
            op if op.starts_with(b"GET") => Op::Read,
            op if op.starts_with(b"SET") => Op::Write,
            b"DELETE" => Op::Discard,
            other => {
                return Err(picked.wrong(1, format!("is '{}', no GET, SET or DELETE", other.escape_ascii())));
            }
        };
        self.repeats = repeated(&picked, 3)?;
        let time = if picked.has(4) { picked.field(4)?.decimal(COLUMNS.names[4], 9)? } else { 0 };
        Ok(Some(of_object(self.zero.since(time, 1), op, object_of(picked.text(0)?))))
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
    fn both_publications_are_read() {
        let records =
            read("kvcache", "key,op,size,op_count,key_size\n77,GET,0,2,40\nab,SET,99,1,40\n").unwrap();
        assert_eq!(records.len(), 3);
        assert_eq!(records[1], Record::new(Time::ZERO, Op::Read, 77 * 4096, 4096));
        assert_eq!((records[2].op, records[2].offset % 4096), (Op::Write, 0));
        let text = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n\
            100,5,20,GET_LEASE,1,10,1,0,u,s\n107,5,20,DELETE,1,0,0,0,u,s\n";
        let records = read("kvcache", text).unwrap();
        assert_eq!(records[1], Record::new(Time(7_000_000_000), Op::Discard, 5 * 4096, 4096));
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("kvcache", "key,op,key_size\n1,PUT,2\n").unwrap_err().to_string();
        assert!(error.contains("field 2 (op) is 'PUT'"), "{error}");
    }
}
