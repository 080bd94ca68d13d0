//! The codes that the paper compares, and its own: how short each makes the page numbers of a file.
//!
//! Each takes page numbers as the paper's record has them, 16 bits (or 32 where the part is larger), and gives
//! them back. The code of the compact layout, which is chosen for each object, is the crate's own business.

pub mod huffman;
pub mod hybrid;
#[cfg(feature = "paper")]
pub mod lzo;
pub mod rice;
pub mod rle;
mod tree;

use alloc::vec::Vec;

/// A code for page numbers.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    /// Its name in the paper's figure 9.
    pub name: &'static str,
    /// Page numbers to bytes.
    pub encode: fn(&[u32]) -> Vec<u8>,
    /// Bytes to so many page numbers; `None` if they are not what `encode` made.
    pub decode: fn(&[u8], usize) -> Option<Vec<u32>>,
}

/// All codes of the paper's figure 9, the paper's own first.
pub const CODECS: &[Codec] = &[
    Codec {
        name: "hybrid",
        encode: |pages| hybrid::encode(pages, true),
        decode: |b, n| hybrid::decode(b, n, true),
    },
    Codec {
        name: "huffman",
        encode: |p| huffman::encode(&narrow(p)),
        decode: |b, n| wide(&huffman::decode(b, 2 * n)?),
    },
    Codec { name: "rice", encode: rice::encode, decode: rice::decode },
    Codec {
        name: "shannon-fano",
        encode: |pages| huffman::encode_shannon_fano(&narrow(pages)),
        decode: |bytes, count| wide(&huffman::decode(bytes, 2 * count)?),
    },
    Codec {
        name: "rle",
        encode: |pages| rle::encode(&narrow(pages)),
        decode: |b, n| wide(&rle::decode(b, 2 * n)?),
    },
    #[cfg(feature = "paper")]
    Codec {
        name: "lzo",
        encode: |pages| lzo::encode(&narrow(pages)),
        decode: |b, n| wide(&lzo::decode(b, 2 * n)?),
    },
];

/// Two bytes a page, as the paper's record lies in memory.
fn narrow(pages: &[u32]) -> Vec<u8> {
    pages.iter().flat_map(|page| (*page as u16).to_le_bytes()).collect()
}

fn wide(bytes: &[u8]) -> Option<Vec<u32>> {
    Some(bytes.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]]))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as a log leaves them: sequential, of two writers, and half overwritten.
    pub(crate) fn files() -> Vec<Vec<u32>> {
        let sequential: Vec<u32> = (1000..1050).collect();
        let interleaved: Vec<u32> = (0..512).map(|at| 300 + at / 4 * 8 + at % 4).collect();
        let mut seed = 9u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        let overwritten =
            (0..512).map(|at| if random().is_multiple_of(2) { 2000 + at } else { random() % 60_000 });
        alloc::vec![
            Vec::new(),
            alloc::vec![7],
            sequential,
            interleaved,
            overwritten.collect(),
            alloc::vec![9; 300]
        ]
    }

    #[test]
    fn every_code_gives_back_what_it_took_and_refuses_what_it_did_not_make() {
        for codec in CODECS {
            for pages in files() {
                let bytes = (codec.encode)(&pages);
                assert_eq!((codec.decode)(&bytes, pages.len()).as_ref(), Some(&pages), "{}", codec.name);
                for cut in [0, bytes.len() / 2, bytes.len().saturating_sub(1)] {
                    let short = (codec.decode)(&bytes[..cut], pages.len());
                    assert!(short.as_ref() != Some(&pages) || pages.len() < 2, "{} at {cut}", codec.name);
                }
                let _ = (codec.decode)(&[0xff; 40], pages.len());
                let _ = (codec.decode)(&[0x55; 40], pages.len());
            }
        }
    }

    #[test]
    fn hybrid_coding_beats_the_others_on_sequential_files_as_the_paper_says() {
        let pages: Vec<u32> = (1000..1050).collect();
        let sizes: Vec<usize> = CODECS.iter().map(|codec| (codec.encode)(&pages).len()).collect();
        assert!(sizes[1..].iter().all(|size| *size > sizes[0]), "{sizes:?}");
    }
}
