//! Run-length code of bytes: a marker, the byte that occurs least, stands before each run of four or more.

use alloc::vec::Vec;

const RUN_MIN: usize = 4;

/// Bytes to fewer, if there are runs.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut counts = [0usize; 256];
    bytes.iter().for_each(|byte| counts[*byte as usize] += 1);
    let marker = (0..=255u8).min_by_key(|byte| counts[*byte as usize]).unwrap_or(0);
    let mut out = alloc::vec![marker];
    let mut rest = bytes;
    while let Some(&byte) = rest.first() {
        let run = rest.iter().take(255).take_while(|other| **other == byte).count();
        if run >= RUN_MIN || byte == marker {
            out.extend([marker, run as u8, byte]);
        } else {
            out.resize(out.len() + run, byte);
        }
        rest = &rest[run..];
    }
    out
}

/// `count` bytes.
pub fn decode(bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    let (marker, mut rest) = bytes.split_first()?;
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        let (byte, behind) = rest.split_first()?;
        rest = behind;
        if byte != marker {
            out.push(*byte);
            continue;
        }
        let [run, value, behind @ ..] = rest else { return None };
        if *run == 0 {
            return None;
        }
        out.resize(out.len() + *run as usize, *value);
        rest = behind;
    }
    (out.len() == count).then_some(out)
}
