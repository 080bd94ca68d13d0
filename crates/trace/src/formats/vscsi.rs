//! What VMware's vscsiStats records of a virtual disk, as CloudPhysics' traces have it (Waldspurger and others: SHARDS,
//! FAST 2015), versions 1 and 2.
//!
//! Records of 32 or 40 bytes, little endian. Version 1: u32 serial number, u32 bytes, u32 pieces of memory, u16 SCSI
//! command, u16 version, u64 block of 512 bytes, u64 µs. Version 2: u16 command, u16 version, u32 serial number, u32 bytes,
//! u32 pieces, u64 block, u64 µs, u64 response time. The upper byte of the version is 1 or 2 in every record.

use super::super::lines::Confidence;
use super::super::zero::Zero;
use super::super::{Op, Record};
use super::cloudphysics::operation;
use super::fixed::{FixedFormat, FixedTrace, u16_at, u32_at, u64_at};
use super::{Format, Head, Make};

const BLOCK_BYTES: u64 = 512;

/// Where a version has its fields.
struct Layout {
    version: u8,
    bytes: usize,
    command: usize,
    version_at: usize,
    length: usize,
    block: usize,
    time: usize,
}

const LAYOUTS: [Layout; 2] = [
    Layout { version: 1, bytes: 32, command: 12, version_at: 14, length: 4, block: 16, time: 24 },
    Layout { version: 2, bytes: 40, command: 0, version_at: 2, length: 8, block: 16, time: 24 },
];

/// Registry line.
pub const FORMAT: Format = Format {
    name: "vscsi",
    about: "VMware vscsiStats binary, versions 1 and 2, as CloudPhysics' traces",
    options: &[],
    make: Make {
        detects: |head: &Head| Confidence::full_if(Layout::of(head.bytes, head.whole).is_some()),
        open: |mut input, _| {
            let head = input.peek(4096)?;
            let layout = Layout::of(&head, head.len() < 4096);
            FixedTrace::open(input, 0, |_| {
                let layout = layout.ok_or("its first records are of neither version 1 nor 2")?;
                Ok(Vscsi { layout, zero: Zero::default() })
            })
        },
    },
};

impl Layout {
    /// That of a file which begins so: all its records say the same version.
    fn of(bytes: &[u8], whole: bool) -> Option<&'static Layout> {
        LAYOUTS.iter().find(|layout| {
            let records = bytes.chunks_exact(layout.bytes);
            let complete = records.remainder().is_empty() || !whole;
            complete && records.len() > 0 && records.into_iter().all(|record| layout.is_said_by(record))
        })
    }

    fn is_said_by(&self, record: &[u8]) -> bool {
        u16_at(record, self.version_at) >> 8 == u16::from(self.version)
    }
}

struct Vscsi {
    layout: &'static Layout,
    zero: Zero,
}

impl FixedFormat for Vscsi {
    const NAME: &'static str = "vscsi";

    fn bytes(&self) -> usize {
        self.layout.bytes
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Record>, String> {
        let layout = self.layout;
        if !layout.is_said_by(bytes) {
            let other = u16_at(bytes, layout.version_at) >> 8;
            return Err(format!("is of version {other}, and those before are of {}", layout.version));
        }
        let op = u8::try_from(u16_at(bytes, layout.command)).ok().and_then(operation);
        let Some(op) = op else { return Ok(None) };
        let (block, len) = (u64_at(bytes, layout.block), u64::from(u32_at(bytes, layout.length)));
        let offset = block.checked_mul(BLOCK_BYTES).ok_or_else(|| format!("block {block} is too large"))?;
        let (at, flags) = self.zero.since(u64_at(bytes, layout.time), 1000);
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
        Ok(Some(Record { flags, ..Record::new(at, op, offset, len) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{open, read};
    use super::*;
    use bimetal_base::time::Time;

    fn record(layout: &Layout, command: u16, block: u64, len: u32, time: u64) -> Vec<u8> {
        let mut record = vec![0; layout.bytes];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(layout.command, &command.to_le_bytes());
        put(layout.version_at, &(u16::from(layout.version) << 8).to_le_bytes());
        put(layout.length, &len.to_le_bytes());
        put(layout.block, &block.to_le_bytes());
        put(layout.time, &time.to_le_bytes());
        record
    }

    #[test]
    fn both_versions_give_the_same_requests() {
        for layout in &LAYOUTS {
            let bytes = [
                record(layout, 0x2a, 100, 4096, 5_000_000),
                record(layout, 0x12, 0, 0, 5_000_001),
                record(layout, 0x28, 8, 512, 5_000_250),
            ];
            let records = read("vscsi", bytes.concat()).unwrap();
            assert_eq!(records.len(), 2, "an inquiry moves no data");
            assert_eq!(records[0], Record::new(Time::ZERO, Op::Write, 51_200, 4096));
            assert_eq!(records[1], Record::new(Time(250_000), Op::Read, 4096, 512));
        }
    }

    #[test]
    fn what_is_of_no_version_is_refused_with_its_place() {
        let [first, second] = &LAYOUTS;
        let good = record(first, 0x28, 8, 512, 1);
        let refused = |bytes: Vec<u8>| open("vscsi", bytes, &Default::default()).unwrap_err().to_string();
        assert!(refused(vec![9; 64]).contains("neither version 1 nor 2"));
        let mut many = good.repeat(200);
        many.extend(record(second, 0x28, 8, 512, 2));
        assert!(refused(many).contains("record 201"));
    }
}
