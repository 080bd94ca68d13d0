//! Twitter's traces of in-memory caches (Yang, Yue, Rashmi: A large scale analysis of hundreds of in-memory cache clusters
//! at Twitter, OSDI 2020).
//!
//! `seconds,key,key size,value size,client,operation,time to live`: get and gets read, delete discards, the others (set, add,
//! replace, cas, append, prepend, incr, decr) write. A key is a [page](super::keys); it may have commas in it, so that the
//! line is read from both ends.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::keys::{object_of, of_object};
use super::{Format, Head, Make};

/// Fields behind the key.
const BEHIND: usize = 5;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "twitter",
    about: "Twitter's cache CSV: seconds,key,key size,value size,client,operation,ttl; keys, one page of 4 KiB each",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Twitter::default(), head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Twitter::default())),
    },
};

#[derive(Default)]
struct Twitter {
    zero: Zero,
}

impl LineFormat for Twitter {
    const NAME: &'static str = "twitter";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        let mut fields = Fields::<b','>::of(line);
        let seconds = fields.u64("time")?;
        let behind = line.iter().enumerate().rev().filter(|(_, byte)| **byte == b',').nth(BEHIND - 1);
        let key = line.iter().position(|byte| *byte == b',').map_or(0, |comma| comma + 1);
        let Some((behind, _)) = behind.filter(|(behind, _)| *behind >= key) else {
            return Err(Wrong::new(7, "ttl", "is missing"));
        };
        let mut fields = Fields::<b','>::of(&line[behind + 1..]).from(3);
        for name in ["key size", "value size", "client"] {
            fields.u64(name)?;
        }
        let op = match fields.text("operation")? {
            b"get" | b"gets" => Op::Read,
            b"delete" => Op::Discard,
            b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => Op::Write,
            other => {
                let why = format!("is '{}', none of a cache", other.escape_ascii());
                return Err(Wrong::new(6, "operation", why));
            }
        };
        fields.u64("ttl")?;
        Ok(Some(of_object(self.zero.since(seconds, 1_000_000_000), op, object_of(&line[key..behind]))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{open, read};
    use super::*;
    use bimetal_base::time::Time;

    #[test]
    fn a_key_is_a_page_whatever_is_in_it() {
        let text = "5,nz:u:eeW5,12,1000,4,get,0\n6,a,b,3,10,4,set,3600\n6,nz:u:eeW5,12,1000,9,delete,0\n";
        let records = read("twitter", text).unwrap();
        assert_eq!((records[0].at, records[0].op, records[0].len), (Time::ZERO, Op::Read, 4096));
        assert_eq!((records[1].at, records[1].op), (Time(1_000_000_000), Op::Write));
        assert_eq!((records[2].op, records[2].offset), (Op::Discard, records[0].offset));
        assert_ne!(records[1].offset, records[0].offset);
    }

    #[test]
    fn wrong_fields_are_named() {
        let error =
            open("twitter", "5,key,12,1000,4,fetch,0\n", &Default::default()).unwrap_err().to_string();
        assert!(error.contains("field 6 (operation) is 'fetch'"), "{error}");
        let error = open("twitter", "5,key,12\n", &Default::default()).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
    }
}
