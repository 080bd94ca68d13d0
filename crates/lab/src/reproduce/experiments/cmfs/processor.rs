//! A model of the paper's processor, a PXA320 of 806 MHz: what coding takes, by the bytes that are coded.
//!
//! Cycles a byte are assumed, of a core that issues one instruction a cycle in order: LZO as its author states for a Pentium of
//! 133 MHz (4 to 5 MB/s coded, 16 to 20 MB/s decoded), Huffman by single bits as the library that the paper names does it, four
//! to eight bits a byte at a dozen cycles. Nothing else that a kernel does is in it.

/// Cycles a second.
const HZ: f64 = 806e6;
/// Cycles a byte: Huffman coded, decoded; LZO coded, decoded.
const HUFFMAN: (f64, f64) = (100.0, 60.0);
const LZO: (f64, f64) = (30.0, 8.0);
/// Cycles to compare a block's number with the one that is known.
const COMPARE: f64 = 20.0;

/// Milliseconds of so many cycles.
fn ms(cycles: f64) -> f64 {
    cycles / HZ * 1e3
}

/// Bytes of the device record of so many blocks, as the paper lays it out.
fn device_record(blocks: u64) -> f64 {
    40.0 + 8.0 * blocks as f64
}

/// Milliseconds to decode object records of `record_bytes` and the device record.
pub fn decoding(record_bytes: u64, blocks: u64) -> f64 {
    ms(record_bytes as f64 * HUFFMAN.1 + device_record(blocks) * LZO.1)
}

/// Milliseconds to code them.
pub fn coding(record_bytes: u64, blocks: u64) -> f64 {
    ms(record_bytes as f64 * HUFFMAN.0 + device_record(blocks) * LZO.0)
}

/// Milliseconds to compare the numbers of all blocks.
pub fn comparing(blocks: u64) -> f64 {
    ms(blocks as f64 * COMPARE)
}

/// As `--json` tells it.
pub fn told() -> serde_json::Value {
    serde_json::json!({
        "hz": HZ, "huffman_cycles_a_byte": HUFFMAN, "lzo_cycles_a_byte": LZO, "compare_cycles_a_block": COMPARE,
    })
}
