//! MSR Cambridge block traces (Narayanan, Donnelly, Rowstron: Write Off-Loading, FAST 2008; SNIA IOTTA).
//!
//! `filetime,host,disk,Read|Write,offset,length,response`: the first in units of 100 ns since 1601, the
//! others in bytes; the response time is the recorded machine's and is not read. The unit is the disk's number, and
//! 65536 more for each host after the first. Time counts from the first request; one earlier than it (there are some)
//! arrives at zero and counts as out of order.

use super::super::fields::{Fields, Wrong};
use super::super::lines::{LineFormat, TextTrace, reads_as};
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::{Format, Head, Make};

/// What a file may begin with.
const HEADER: &[u8] = b"timestamp,hostname,disknumber,type,offset,size,responsetime";
/// A host's disks have numbers below this.
const HOST_DISKS: u32 = 1 << 16;
const HOSTS_MAX: u32 = 1 << 15;

/// Registry line.
pub const FORMAT: Format = Format {
    name: "msr",
    about: "MSR Cambridge: filetime,host,disk,Read|Write,offset,bytes,response",
    options: &[],
    make: Make {
        detects: |head: &Head| reads_as(Msr::default(), head.bytes, head.whole),
        open: |input, _| Ok(TextTrace::open(input, Msr::default())),
    },
};

#[derive(Default)]
struct Msr {
    zero: Zero,
    /// The hosts so far, in the order in which they came.
    hosts: Vec<Vec<u8>>,
}

impl Msr {
    /// The number of a host; nearly always the first.
    fn host(&mut self, name: &[u8]) -> u32 {
        let known = self.hosts.iter().position(|host| host == name);
        known.unwrap_or_else(|| {
            self.hosts.push(name.to_vec());
            self.hosts.len() - 1
        }) as u32
    }
}

impl LineFormat for Msr {
    const NAME: &'static str = "msr";

    fn line(&mut self, line: &[u8]) -> Result<Option<Record>, Wrong> {
        if line.eq_ignore_ascii_case(HEADER) {
            return Ok(None);
        }
        let mut fields = Fields::<b','>::of(line);
        let ticks = fields.u64("time")?;
        let host = self.host(fields.text("host")?);
        let number = fields.number();
        let disk = fields.u32("disk")?;
        if disk >= HOST_DISKS || host >= HOSTS_MAX {
            return Err(Wrong::new(
                number,
                "disk",
                format!("is {disk}, or the trace has over {HOSTS_MAX} hosts"),
            ));
        }
        let unit = host * HOST_DISKS + disk;
        let number = fields.number();
        let op = match fields.text("type")? {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            other => {
                let why = format!("is '{}', neither Read nor Write", other.escape_ascii());
                return Err(Wrong::new(number, "type", why));
            }
        };
        let (offset, len) = (fields.u64("offset")?, fields.u64("length")?);
        let (at, flags) = self.zero.since(ticks, 100);
        Ok(Some(Record { unit, flags, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;
    use crate::Flags;
    use bimetal_base::time::Time;

    #[test]
    fn lines_of_the_published_traces_are_read() {
        let text = "128166385295514663,hm,0,Write,9056014336,2048,2833\n\
                    128166385295514878,hm,1,Read,11855351808,512,2617\n\
                    128166385295514600,hm,0,Read,0,512,1\n";
        let records = read("msr", text).unwrap();
        assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 9056014336, 2048));
        assert_eq!(records[1], Record { unit: 1, ..Record::new(Time(21_500), Op::Read, 11855351808, 512) });
        assert_eq!((records[2].at, records[2].flags), (Time::ZERO, Flags::EARLY));
        let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n";
        for begin in [header.to_string(), format!("\u{feff}{header}"), "\u{feff}".to_string()] {
            assert_eq!(read("msr", format!("{begin}{text}")).unwrap(), records);
        }
        let other = "128166385295514663,hm,1,Write,0,512,1\n128166385295514663,prn,1,Write,0,512,1\n";
        let units: Vec<_> = read("msr", other).unwrap().iter().map(|record| record.unit).collect();
        assert_eq!(units, [1, 65537], "disk 1 of two hosts");
    }

    #[test]
    fn wrong_fields_are_named() {
        let error = read("msr", "1,h,0,Trim,0,512,1\n").unwrap_err().to_string();
        assert!(error.contains("field 4 (type) is 'Trim'"), "{error}");
        let error = read("msr", "1,h,0,Read,0\n").unwrap_err().to_string();
        assert!(error.contains("field 6 (length) is missing"), "{error}");
    }
}
