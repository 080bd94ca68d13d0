//! The formats of recorded traces: one file and one line of [`FORMATS`] each.
//!
//! A format states how it is recognised and how it is opened. Text formats are recognised by their own
//! reader: the first lines must all make sense to it, or, if they do so to none, more of them than to any
//! other (so that reading it then says which line is wrong). Where two could read a file, the earlier line
//! wins; the order below puts the stricter ones first.

pub mod alibaba;
pub mod blkparse;
pub mod blktrace;
pub mod cloudphysics;
pub mod csv;
pub mod disksim;
pub mod fio;
mod fixed;
mod headed;
mod keys;
pub mod kvcache;
pub mod lcs;
pub mod mqsim;
pub mod msr;
pub mod oracle;
pub mod spc;
pub mod syscall;
pub mod tectonic;
pub mod tencent;
pub mod thesios;
pub mod twitter;
pub mod vscsi;

pub use blktrace::Event;
pub use csv::Columns;

use super::input::Input;
use super::lines::Confidence;
use super::{ReadOptions, Records};
use bimetal_base::options::{Entry, Registry};
use bimetal_base::{Error, Result};

/// One format of recorded traces.
pub type Format = Entry<Make>;

/// How a format is told and read.
pub struct Make {
    /// How much a file that begins so looks like one.
    pub(super) detects: fn(&Head) -> Confidence,
    /// Begins to read one.
    pub(super) open: fn(Input, &ReadOptions) -> Result<Box<dyn Records>>,
}

/// The first bytes of a file, unpacked.
pub(super) struct Head<'a> {
    /// They.
    pub bytes: &'a [u8],
    /// The file is no longer.
    pub whole: bool,
}

impl<'a> Head<'a> {
    /// The first line, without what an editor puts before it.
    pub fn first_line(&self) -> &'a [u8] {
        let line = self.bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        super::lines::bare(line, true)
    }
}

/// All formats, in the order in which they are tried.
pub const FORMATS: Registry<Entry<Make>> = Registry {
    what: "trace format",
    entries: &[
        &blktrace::FORMAT,
        &lcs::FORMAT,
        &fio::FORMAT,
        &syscall::FORMAT,
        // Before CSV with a header of its own, which these may have, too.
        &msr::FORMAT,
        &alibaba::FORMAT,
        &thesios::FORMAT,
        &tectonic::FORMAT,
        &kvcache::FORMAT,
        &csv::FORMAT,
        &cloudphysics::FORMAT,
        &spc::FORMAT,
        &tencent::FORMAT,
        &mqsim::FORMAT,
        &disksim::FORMAT,
        &blkparse::FORMAT,
        &twitter::FORMAT,
        &vscsi::FORMAT,
        &oracle::FORMAT,
    ],
};

/// The format that `head` looks most like; of several the first.
pub(super) fn detect(name: &str, head: &Head) -> Result<&'static Format> {
    if head.bytes.is_empty() {
        return Err(Error::invalid(format!("{name} is empty")));
    }
    let mut best = (Confidence::None, None);
    for format in FORMATS {
        let confidence = (format.make.detects)(head);
        if confidence > best.0 {
            best = (confidence, Some(format));
        }
    }
    best.1.ok_or_else(|| {
        Error::invalid(format!(
            "{name} is in none of the formats known ({}); name one with --format to see the first line that \
             does not fit, or describe the columns of a CSV with --columns",
            FORMATS.names().collect::<Vec<_>>().join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record, Trace};
    use bimetal_base::random::Random;

    /// The records of `text` read by the format called `name`, which must also be the one detected.
    pub(super) fn read(name: &str, text: impl Into<Vec<u8>>) -> Result<Vec<Record>> {
        let text = text.into();
        if let Ok(found) = detect("mine", &Head { bytes: &text, whole: true }) {
            assert_eq!(found.name, name, "detected");
        }
        open(name, text, &ReadOptions::default())
    }

    pub(super) fn open(name: &str, text: impl Into<Vec<u8>>, options: &ReadOptions) -> Result<Vec<Record>> {
        let records = (FORMATS.find(name)?.make.open)(Input::of("mine", text), options)?;
        Trace::new("mine".to_string(), records).collect()
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused_with_the_list() {
        let mut names: Vec<_> = FORMATS.iter().map(|format| format.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FORMATS.len());
        let error = FORMATS.find("xml").err().unwrap().to_string();
        assert!(error.contains("xml") && error.contains("blktrace"), "{error}");
    }

    #[test]
    fn what_is_no_trace_is_no_format() {
        for text in ["hello world\n", "\u{1}\u{2}\u{3}\n", "1\n2\n", "{\"a\": 1}\n"] {
            let found = detect("mine", &Head { bytes: text.as_bytes(), whole: true });
            assert!(found.is_err(), "{text}: {}", found.unwrap().name);
        }
        assert!(
            detect("mine", &Head { bytes: b"", whole: true }).err().unwrap().to_string().contains("empty")
        );
    }

    /// Some lines of every text format, and a few binary records.
    const SAMPLES: [(&str, &str); 15] = [
        ("fio", "fio version 3 iolog\n17 f add\n126 f read 0 4096\n300 g write 32768 4096\n301 f sync 0 0\n"),
        (
            "syscall",
            "#time_s,pid,op,path_id,offset,length,result\n0.1,0,read,2,0,100,60\n0.2,0,rename,2,3,0,0\n",
        ),
        ("csv", "#time_s,op,offset_bytes,length_bytes,flags\n0.5,W,67584,512,PS\n0.6,F,0,0,-\n1,T,9,0,-\n"),
        ("cloudphysics", "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633899,28,6656,10\n"),
        (
            "msr",
            "128166385295514663,hm,0,Write,9056014336,2048,2833\n128166385295514878,hm,1,Read,0,512,2617\n",
        ),
        ("spc", "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214,7\n"),
        ("alibaba", "419,W,5869752320,12288,1577808000000047\n419,R,0,4096,1577808000000050\n"),
        ("tencent", "1538323199,4247200,128,1,1058\n1538323200,13896880,8,0,1063\n"),
        ("mqsim", "938513000 4 264719034 16 0\n938828000 3 197570570 8 1\n"),
        ("disksim", "13.191135\t30\t0\t5\t1\n17.829285\t20\t576560\t6\tA\n"),
        (
            "blkparse",
            "  8,0 1 5 0.000011000 697 D R 223490 + 8 [x]\n  8,0 0 6 0.000012 0 D FWFSM 0 + 1 [y]\n",
        ),
        (
            "thesios",
            "filename,file_offset,op_type,request_io_size_bytes,start_time\nf1,4096,READ,512,1705276800.25\n\
             f2,0,WRITE,1000,1705276801\n",
        ),
        (
            "tectonic",
            "op_time block_id rs_shard_id io_offset io_size op_name op_count\n\
             1000 7 1 0 4096 getChunkData.Permanent 2\n1001 8 1 65536 100 putChunk.Permanent 1\n",
        ),
        ("kvcache", "key,op,size,op_count,key_size\n77,GET,100,3,20\n78,SET,9,1,20\n"),
        ("twitter", "0,nz:u:eeW511W3,12,1000,4,get,0\n1,q:1,3,10,4,set,3600\n"),
    ];

    #[test]
    fn damaged_traces_are_errors_never_panics() {
        let mut random = Random::new(1, "damaged traces");
        let digits = *b"0918446744073709551615,. \t\n-RWxF";
        for (name, text) in SAMPLES {
            assert!(read(name, text).is_ok(), "{name}");
            for _ in 0..3000 {
                let mut bytes = text.as_bytes().to_vec();
                for _ in 0..=random.below(3) {
                    let at = random.below(bytes.len() as u64) as usize;
                    let byte = digits[random.below(digits.len() as u64) as usize];
                    match random.below(4) {
                        0 => bytes[at] = byte,
                        1 => bytes.insert(at, byte),
                        2 => bytes.splice(at..at, *b"9999999999999").for_each(drop),
                        _ => bytes.truncate(at.max(1)),
                    }
                }
                // Whatever comes of it, it comes as a value.
                let _ = detect("mine", &Head { bytes: &bytes, whole: true });
                let _ = open(name, bytes, &ReadOptions::default());
            }
        }
    }

    #[test]
    fn noise_in_binary_formats_is_an_error_never_a_panic() {
        let mut random = Random::new(2, "noise");
        for _ in 0..3000 {
            let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
            if random.chance(0.7) && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&0x6561_7407u32.to_le_bytes());
            }
            let _ = open("blktrace", bytes.clone(), &ReadOptions::default());
            for name in ["oracle", "lcs", "vscsi"] {
                let _ = open(name, bytes.clone(), &ReadOptions::default());
            }
        }
    }

    #[test]
    fn a_damaged_beginning_is_still_told_by_its_line() {
        let text = "0,R,0,512,-\n0,W,512,512,-\n0,W,x,512,-\n0,W,512,512,-\n";
        let found = detect("mine", &Head { bytes: text.as_bytes(), whole: true }).unwrap();
        assert_eq!(found.name, "csv");
        let error = open(found.name, text, &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("field 3 (offset) is 'x'"), "{error}");
    }

    #[test]
    fn a_header_tells_the_format_whatever_is_wrong_with_the_first_line() {
        let head = "#time_s,op,offset_bytes,length_bytes,flags\n";
        for (line, part) in [
            ("nan,R,0,512,-\n", "field 1 (time)"),
            ("0,R,-1,512,-\n", "field 3 (offset)"),
            ("0,R,0,1e18,-\n", "field 4 (length)"),
        ] {
            for head in [head.to_string(), format!("# made by hand\n{}", &head[1..])] {
                let text = format!("{head}{line}");
                let found = detect("mine", &Head { bytes: text.as_bytes(), whole: true }).unwrap();
                let error = open(found.name, text.clone(), &ReadOptions::default()).unwrap_err().to_string();
                assert!(found.name == "csv" && error.contains(part), "{text}: {error}");
            }
        }
        let long = format!("{head}{}", "1".repeat(1 << 20));
        let found = detect("mine", &Head { bytes: &long.as_bytes()[..64 << 10], whole: false }).unwrap();
        let error = open(found.name, long.clone(), &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("longer than"), "{error}");
        assert!(read("csv", head).unwrap().is_empty(), "no line is no error of the format");
    }

    #[test]
    fn impossible_requests_are_placed_by_their_line() {
        let error = read("csv", "0,R,0,512\n0,R,0,4294967296\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("4 GiB"), "{error}");
        let error = read("csv", "9999999999,R,0,512\n").unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("hundred years"), "{error}");
    }
}
