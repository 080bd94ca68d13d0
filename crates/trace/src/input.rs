//! The bytes of a trace: a file or standard input, unpacked as needed, with the place kept for progress. A Parquet file is
//! read as the [CSV that it stands for](super::parquet), and has no progress.

use super::parquet::{self, ParquetText};
use bimetal_base::{Error, Result};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The name that stands for standard input.
pub(super) const STDIN: &str = "-";

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BZIP2_MAGIC: [u8; 3] = *b"BZh";

/// How far the reading of a file has come; shared with whoever draws it.
#[derive(Debug, Default)]
pub struct Progress {
    read: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Bytes of the file read so far, as they are in the file (compressed).
    pub fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    pub(super) fn add_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Relaxed);
    }

    pub(super) fn add_total(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    /// Bytes there are to read; 0 where nobody can know.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

/// An opened trace file.
pub struct Input {
    /// What messages call it.
    pub(super) name: String,
    /// Its bytes, unpacked.
    pub(super) bytes: Box<dyn Read + Send>,
    /// Further files of the same trace: blktrace writes one a CPU.
    pub(super) others: Vec<Input>,
}

/// Counts what is read of a file.
struct Counted<R> {
    inner: R,
    progress: Arc<Progress>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        self.progress.add_read(got as u64);
        Ok(got)
    }
}

impl Input {
    /// Opens `path` (`-`: standard input) and unpacks what is zstd, gzip or bzip2 by its first bytes.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(super) fn open(path: &Path, progress: &Arc<Progress>) -> Result<Input> {
        let name = path.display().to_string();
        let raw: Box<dyn Read + Send> = if name == STDIN {
            Box::new(io::stdin())
        } else {
            let file = File::open(path).map_err(|why| Error::io(&name, why))?;
            let about = file.metadata().map_err(|why| Error::io(&name, why))?;
            if about.is_dir() {
                return Err(Error::invalid(format!("{name} is a directory; name a trace file in it")));
            }
            let mut magic = [0; 4];
            if about.is_file()
                && file.read_at(&mut magic, 0).is_ok_and(|got| got == 4)
                && magic == parquet::MAGIC
            {
                let bytes = ParquetText::open(file).map_err(|why| Error::io(&name, why))?;
                return Ok(Input { name, bytes: Box::new(bytes), others: Vec::new() });
            }
            progress.add_total(about.len());
            Box::new(file)
        };
        let counted = Counted { inner: raw, progress: Arc::clone(progress) };
        let bytes = unpacked(counted).map_err(|why| Error::io(&name, why))?;
        Ok(Input { name, bytes, others: Vec::new() })
    }

    /// The bytes of `text`, called `name`; for tests.
    #[cfg(test)]
    pub(super) fn of(name: &str, text: impl Into<Vec<u8>>) -> Input {
        Input { name: name.to_string(), bytes: Box::new(io::Cursor::new(text.into())), others: Vec::new() }
    }

    /// Looks at the first `limit` bytes (fewer where there are fewer) without consuming them.
    pub(super) fn peek(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut head = Vec::with_capacity(limit);
        let failed = |why| Error::io(&self.name, why);
        self.bytes.by_ref().take(limit as u64).read_to_end(&mut head).map_err(failed)?;
        let rest = std::mem::replace(&mut self.bytes, Box::new(io::empty()));
        self.bytes = Box::new(io::Cursor::new(head.clone()).chain(rest));
        Ok(head)
    }
}

/// The contents behind up to three layers of packing (people do compress twice).
fn unpacked(raw: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut bytes: Box<dyn Read + Send> = Box::new(raw);
    for _ in 0..3 {
        let mut head = Vec::with_capacity(4);
        bytes.by_ref().take(4).read_to_end(&mut head)?;
        let packing = Packing::of(&head);
        let whole = io::Cursor::new(head).chain(bytes);
        bytes = match packing {
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(whole)?),
            Packing::Gzip => Box::new(MultiGzDecoder::new(whole)),
            Packing::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(whole)),
            Packing::Parquet => {
                let mut all = Vec::new();
                { whole }.read_to_end(&mut all)?;
                return Ok(Box::new(ParquetText::open(Bytes::from(all))?));
            }
            Packing::None => return Ok(Box::new(whole)),
        };
    }
    Ok(bytes)
}

#[derive(Clone, Copy)]
enum Packing {
    None,
    Zstd,
    Gzip,
    Bzip2,
    Parquet,
}

impl Packing {
    fn of(head: &[u8]) -> Packing {
        if head.starts_with(&ZSTD_MAGIC) {
            Packing::Zstd
        } else if head.starts_with(&GZIP_MAGIC) {
            Packing::Gzip
        } else if head.starts_with(&BZIP2_MAGIC) && head.get(3).is_some_and(u8::is_ascii_digit) {
            Packing::Bzip2
        } else if head.starts_with(&parquet::MAGIC) {
            Packing::Parquet
        } else {
            Packing::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const TEXT: &[u8] = b"0,R,0,512\n1,W,512,512\n";

    fn read(path: &Path) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut input = Input::open(path, &Arc::default())?;
        input.bytes.read_to_end(&mut text).map_err(|why| Error::io("test", why))?;
        Ok(text)
    }

    #[test]
    fn packed_files_read_like_plain_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(TEXT).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
        bzip2.write_all(TEXT).unwrap();
        let zstd = zstd::encode_all(TEXT, 3).unwrap();
        let twice = zstd::encode_all(&zstd[..], 3).unwrap();
        let packed = [TEXT.to_vec(), gzip.finish().unwrap(), bzip2.finish().unwrap(), zstd, twice];
        for (number, bytes) in packed.into_iter().enumerate() {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap(), TEXT, "{number}");
        }
    }

    #[test]
    fn frames_one_after_the_other_are_all_read_and_a_cut_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("two.zst");
        let frame = zstd::encode_all(TEXT, 3).unwrap();
        std::fs::write(&path, [&frame[..], &frame[..]].concat()).unwrap();
        assert_eq!(read(&path).unwrap(), [TEXT, TEXT].concat());
        std::fs::write(&path, &frame[..frame.len() - 6]).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn a_look_at_the_head_consumes_nothing() {
        let mut input = Input::of("test", TEXT);
        assert_eq!(input.peek(5).unwrap(), &TEXT[..5]);
        assert_eq!(input.peek(1000).unwrap(), TEXT);
        let mut all = Vec::new();
        input.bytes.read_to_end(&mut all).unwrap();
        assert_eq!(all, TEXT);
    }

    #[test]
    fn a_missing_file_and_a_directory_are_named() {
        let error = Input::open(Path::new("/no/such/trace"), &Arc::default()).err().unwrap().to_string();
        assert!(error.contains("/no/such/trace"), "{error}");
        let error = Input::open(Path::new("/"), &Arc::default()).err().unwrap().to_string();
        assert!(error.contains("directory"), "{error}");
    }
}
