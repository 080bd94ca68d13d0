//! A non-volatile write cache between the requests of a trace and the device: the one that
//! [`cache::nvram`](crate::cache::nvram) is, with its records, its times and its making room.
//!
//! What it takes: a range of addresses; blocks written again and again; or the FATs and the directories of a FAT
//! volume, found by walking the tree in an image of it. What it still holds at the end stays there: it is safe.
//! Contents are zeros: traces have none, so that directories made during a trace are not noticed.

use super::report::Measured;
use super::stack::{Io, Layer, zeros};
use crate::cache::nvram::{Choice, NvramCache};
use crate::fs::fat::metadata::Metadata;
use crate::media::file::{FileDevice, Options};
use crate::media::nvram::{Nvram, NvramProfile};
use crate::media::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, profile};
use crate::time::Time;
use crate::units::parse_size;
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The memory it is made of.
const MEMORY: &str = "feram";
/// What the cache takes or leaves.
const BLOCK_BYTES: u32 = 512;
/// Heat unless said otherwise: three writes within as many as the paper's metadata takes to come round.
const HEAT: (u32, u64) = (3, 1000);

/// Which writes the cache takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Those to these bytes.
    Range(Range<u64>),
    /// Those to blocks written so often within so many block writes.
    Heat(u32, u64),
    /// Those to the FATs and the directories of the volume in this image, which begins where the device does.
    Fat(PathBuf),
}

impl FromStr for Takes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Takes> {
        let wrong = || {
            let why = "is none of FROM-END as 0-82KiB, heat, heat:WRITES/WITHIN, fat:IMAGE";
            Error::invalid(format!("'{text}' {why}"))
        };
        if let Some(image) = text.strip_prefix("fat:").filter(|image| !image.is_empty()) {
            return Ok(Takes::Fat(image.into()));
        }
        let Some(heat) = text.strip_prefix("heat") else {
            return super::args::parse_range(text).map(Takes::Range).map_err(|_| wrong());
        };
        if heat.is_empty() {
            return Ok(Takes::Heat(HEAT.0, HEAT.1));
        }
        let (writes, within) =
            heat.strip_prefix(':').and_then(|heat| heat.split_once('/')).ok_or_else(wrong)?;
        let (writes, within) = (writes.parse().ok(), parse_size(within).ok());
        let heat =
            writes.zip(within).filter(|(writes, within)| *writes > 0 && *within > 0).ok_or_else(wrong)?;
        Ok(Takes::Heat(heat.0, heat.1))
    }
}

impl std::fmt::Display for Takes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Takes::Range(range) => write!(f, "{}-{}", range.start, range.end),
            Takes::Heat(writes, within) => write!(f, "heat:{writes}/{within}"),
            Takes::Fat(image) => write!(f, "fat:{}", image.display()),
        }
    }
}

impl Takes {
    fn choice(&self) -> Result<Choice> {
        Ok(match self {
            Takes::Range(range) => Choice::Ranges(std::iter::once(range.clone()).collect()),
            Takes::Heat(writes, within) => Choice::Heat { writes: *writes, within: *within },
            Takes::Fat(image) => Choice::Ranges(metadata_of(image)?),
        })
    }
}

/// The bytes of the FATs and all directories of the volume in `image`.
pub(super) fn metadata_of(image: &Path) -> Result<Vec<Range<u64>>> {
    let device = FileDevice::open_with(image, &Options::default())?;
    Ok(Metadata::read(Arc::new(device))?.ranges())
}

/// The cache above a layer.
pub(super) struct NvramLayer {
    cache: NvramCache,
    below: Arc<Below>,
}

impl NvramLayer {
    /// A cache of `bytes` that takes what `takes` says from `below`.
    ///
    /// Fails as [`NvramCache::open`], and if there is no FAT volume where one was named.
    pub fn new(below: Box<dyn Layer>, takes: &Takes, bytes: u64) -> Result<NvramLayer> {
        let all = u64::MAX / 2 / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        let info = DeviceInfo {
            name: "the device".into(),
            size_bytes: below.size_bytes().unwrap_or(all),
            block_bytes: BLOCK_BYTES,
            atomic_bytes: BLOCK_BYTES,
            rotational: false,
        };
        let below = Arc::new(Below { info, layer: Mutex::new(below) });
        let bytes = usize::try_from(bytes).map_err(|_| Error::invalid("--nvram-size: more than memory"))?;
        let memory = Nvram::new(profile::load::<NvramProfile>(MEMORY)?, bytes);
        let device: Arc<dyn BlockDevice> = Arc::<Below>::clone(&below);
        Ok(NvramLayer { cache: NvramCache::open(device, memory, takes.choice()?)?, below })
    }
}

impl Layer for NvramLayer {
    fn serve(&mut self, at: Time, io: Io) -> Result<Time> {
        let block = u64::from(BLOCK_BYTES);
        let around = |range: Range<u64>| (range.start * block, (range.end - range.start) * block);
        let request = match io {
            Io::Read(piece) => {
                let (offset, len) = around(piece.units(block));
                let len = usize::try_from(len).map_err(|_| Error::invalid("a read larger than memory"))?;
                Request::Read { offset, len }
            }
            Io::Write(piece) => {
                let (offset, len) = around(piece.units(block));
                Request::Write { offset, data: zeros(len), durable: piece.durable }
            }
            Io::Discard(piece) if piece.whole_units(block).is_empty() => return Ok(at),
            Io::Discard(piece) => {
                let (offset, len) = around(piece.whole_units(block));
                Request::Discard { offset, len }
            }
            Io::Flush => Request::Flush,
        };
        let Completion { at, result } = self.cache.run(at, request);
        result.map(|_| at)
    }

    fn finish(&mut self, at: Time) -> Result<Time> {
        self.below.layer.lock().finish(at)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.below.layer.lock().size_bytes()
    }

    fn page_bytes(&self) -> u64 {
        self.below.layer.lock().page_bytes()
    }

    fn erase_block_bytes(&self) -> Option<u64> {
        self.below.layer.lock().erase_block_bytes()
    }

    fn measure(&self, into: &mut Measured) {
        self.below.layer.lock().measure(into);
        into.nvram = Some(self.cache.counts());
    }
}

/// A layer as a block device without contents.
struct Below {
    info: DeviceInfo,
    layer: Mutex<Box<dyn Layer>>,
}

impl BlockDevice for Below {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        let piece = |offset, len, durable| super::stack::Piece { offset, len, durable, handle: 0 };
        let (io, read) = match request {
            Request::Read { offset, len } => (Io::Read(piece(offset, len as u64, false)), len),
            Request::Write { offset, data, durable } => {
                let len = data.iter().map(Bytes::len).sum::<usize>() as u64;
                (Io::Write(piece(offset, len, durable)), 0)
            }
            Request::Discard { offset, len } => (Io::Discard(piece(offset, len, false)), 0),
            Request::Flush => (Io::Flush, 0),
        };
        Ticket::Done(match self.layer.lock().serve(at, io) {
            Ok(done) => Completion { at: done, result: Ok(contents(read)) },
            Err(error) => Completion { at, result: Err(error) },
        })
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        ticket.done()
    }

    fn is_done(&self, _: &Ticket) -> bool {
        true
    }
}

/// What a read gives.
fn contents(len: usize) -> Bytes {
    let zeros: Gather = zeros(len as u64);
    match &zeros[..] {
        [one] => one.clone(),
        parts => parts.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stack::{Counting, Piece};
    use super::*;

    #[test]
    fn choices_are_read_and_nonsense_is_refused_with_a_right_one() {
        for (text, takes) in [
            ("0-82KiB", Takes::Range(0..83_968)),
            ("heat", Takes::Heat(3, 1000)),
            ("heat:2/50", Takes::Heat(2, 50)),
            ("fat:a.img", Takes::Fat("a.img".into())),
        ] {
            assert_eq!(text.parse::<Takes>().unwrap(), takes);
        }
        for text in ["", "4KiB", "heat:", "heat:0/5", "heat:1", "fat:", "cold"] {
            let error = text.parse::<Takes>().unwrap_err().to_string();
            assert!(error.contains("heat:WRITES/WITHIN"), "{error}");
        }
        let error = Takes::Fat("/no/such".into()).choice().err().unwrap().to_string();
        assert!(error.contains("/no/such"), "{error}");
    }

    #[test]
    fn writes_to_the_range_end_in_memory_until_it_is_full() {
        // Room for four blocks, of which one stays unused.
        let bytes = 4 * (512 + 24);
        let below = Box::new(Counting::new(512));
        let mut layer = NvramLayer::new(below, &Takes::Range(0..4096), bytes).unwrap();
        let piece = |offset, len| Piece { offset, len, durable: false, handle: 0 };
        for offset in [0, 512, 0, 8192, 100] {
            layer.serve(Time::ZERO, Io::Write(piece(offset, 512))).unwrap();
        }
        layer.serve(Time::ZERO, Io::Read(piece(0, 1024))).unwrap();
        let mut measured = Measured::default();
        layer.measure(&mut measured);
        let counts = measured.nvram.unwrap();
        assert_eq!((counts.absorbed, counts.overwritten, counts.passed), (5, 3, 1));
        assert_eq!((measured.pages_written, measured.pages_read), (1, 0));
        for offset in [1024, 1536, 2048] {
            layer.serve(Time::ZERO, Io::Write(piece(offset, 512))).unwrap();
        }
        layer.measure(&mut measured);
        assert_eq!(measured.nvram.unwrap().written_back, 2);
        assert_eq!(measured.pages_written, 3);
    }
}
