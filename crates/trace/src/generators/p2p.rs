//! A peer-to-peer download of one file: pieces in random order, several at a time, in small blocks.
//!
//! `peers` peers each send one piece at a time, block after block; each has a rate of its own (between half
//! and one and a half times the mean), so that the pieces under way fill at different speeds. A delivery
//! carries one or more blocks in a row (`burst` of them in the mean): what a connection's window brings at
//! once. A full piece is read back whole for its hash, in blocks, and the peer takes another of the missing
//! ones at random (rarest first, when all peers have all, is random). At the end nothing is missing.
//!
//! The defaults are fitted to a recorded download of 739 MiB (aria2, 30 seeds and 12 partial peers without
//! a disk cache: trace p2p/G4): 29 distinct pieces in 100 writes, 67 % of the writes not sequential.

use super::{Generator, OptionSpec, SEED, Values, steps};
use crate::{Op, Record, Records};
use bimetal_base::Result;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// More pieces than this are not kept account of: 8 bytes each.
const PIECES_MAX: u64 = 1 << 24;
/// More blocks than this are no piece: a whole one is laid out in memory, 32 bytes a block.
const BLOCKS_MAX: u64 = 1 << 20;

/// Registry line.
pub(super) const GENERATOR: Generator = Generator {
    name: "p2p",
    about: "a peer-to-peer download: pieces out of order, several at a time, each read back once",
    options: &[
        OptionSpec::new("size", "774897664", "bytes of the file"),
        OptionSpec::new("piece", "512KiB", "bytes of a piece"),
        OptionSpec::new("block", "16KiB", "bytes of one write"),
        OptionSpec::new("peers", "30", "pieces under way"),
        OptionSpec::new("burst", "1.52", "blocks a peer delivers at once, in the mean"),
        OptionSpec::new("speed", "1500KiB", "bytes a second, all peers together"),
        OptionSpec::new("check", "yes", "yes: each piece is read back when it is whole"),
        SEED,
    ],
    make: begin,
};

fn begin(values: &Values) -> Result<Box<dyn Records>> {
    let burst = values.number("burst")?;
    if burst < 1.0 {
        return Err(values.wrong("burst", "1 or more"));
    }
    let shape = Shape {
        size: values.some_size("size")?,
        piece: values.some_size("piece")?,
        block: values.some_size("block")?,
        stop: 1.0 / burst,
        check: values.yes("check")?,
    };
    if shape.size.div_ceil(shape.piece) > PIECES_MAX {
        return Err(values.wrong("size", "at most 16777216 pieces; choose a larger piece"));
    }
    if shape.piece.min(shape.size).div_ceil(shape.block) > BLOCKS_MAX {
        return Err(values.wrong("piece", "at most 1048576 blocks; choose a larger block"));
    }
    let peers = values.count("peers")?;
    if peers == 0 || peers > 1 << 16 {
        return Err(values.wrong("peers", "from 1 to 65536"));
    }
    let mean_gap_ns = 1e9 * peers as f64 * shape.block as f64 / values.some_size("speed")? as f64;
    let mut download = Download::new(shape, peers, mean_gap_ns, values.count("seed")?);
    Ok(steps(move || {
        while download.calls.is_empty() {
            download.deliver()?;
        }
        download.calls.pop_front()
    }))
}

struct Shape {
    size: u64,
    piece: u64,
    block: u64,
    /// The chance that a delivery ends after a block.
    stop: f64,
    check: bool,
}

/// What a peer sends.
struct Peer {
    /// Time a block, ns.
    gap_ns: u64,
    piece: u64,
    /// Bytes of the piece that are there.
    have: u64,
}

struct Download {
    shape: Shape,
    random: Random,
    missing: Vec<u64>,
    peers: Vec<Peer>,
    /// When which peer delivers next.
    next: BinaryHeap<Reverse<(Time, usize)>>,
    calls: VecDeque<Record>,
}

impl Download {
    fn new(shape: Shape, peers: u64, mean_gap_ns: f64, seed: u64) -> Download {
        let mut random = Random::new(seed, "p2p");
        let missing = (0..shape.size.div_ceil(shape.piece)).collect();
        let speed = |random: &mut Random| 0.5 + random.below(1001) as f64 / 1000.0;
        let gaps: Vec<u64> = (0..peers).map(|_| (mean_gap_ns / speed(&mut random)) as u64).collect();
        let mut download = Download {
            shape,
            random,
            missing,
            peers: Vec::new(),
            next: BinaryHeap::new(),
            calls: VecDeque::new(),
        };
        for gap_ns in gaps {
            if let Some(piece) = download.choose() {
                let first = Time(download.random.below(gap_ns.max(1)));
                download.next.push(Reverse((first, download.peers.len())));
                download.peers.push(Peer { gap_ns, piece, have: 0 });
            }
        }
        download
    }

    /// One of the missing pieces that nobody sends.
    fn choose(&mut self) -> Option<u64> {
        if self.missing.is_empty() {
            return None;
        }
        let which = self.random.below(self.missing.len() as u64) as usize;
        Some(self.missing.swap_remove(which))
    }

    /// The next delivery. `None`: the file is whole.
    fn deliver(&mut self) -> Option<()> {
        let Reverse((at, who)) = self.next.pop()?;
        let (shape, peer) = (&self.shape, &mut self.peers[who]);
        let start = peer.piece * shape.piece;
        let piece_len = shape.piece.min(shape.size - start);
        let mut blocks = 0;
        loop {
            let len = shape.block.min(piece_len - peer.have);
            self.calls.push_back(Record::new(at, Op::Write, start + peer.have, len));
            peer.have += len;
            blocks += 1;
            if peer.have == piece_len || self.random.chance(shape.stop) {
                break;
            }
        }
        let due = Time(at.0.saturating_add(peer.gap_ns.saturating_mul(blocks)));
        if peer.have < piece_len {
            self.next.push(Reverse((due, who)));
            return Some(());
        }
        if shape.check {
            for offset in (0..piece_len).step_by(usize::try_from(shape.block).unwrap_or(usize::MAX)) {
                let len = shape.block.min(piece_len - offset);
                self.calls.push_back(Record::new(at, Op::Read, start + offset, len));
            }
        }
        if let Some(piece) = self.choose() {
            let gap_ns = self.peers[who].gap_ns;
            self.peers[who] = Peer { gap_ns, piece, have: 0 };
            self.next.push(Reverse((due, who)));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;
    use rustc_hash::FxHashSet;

    #[test]
    fn every_byte_arrives_once_and_is_read_back_after() {
        let records = generate("p2p:size=10000000:piece=256KiB");
        let mut written = FxHashSet::default();
        let mut bytes = 0;
        for record in &records {
            match record.op {
                Op::Write => {
                    assert!(written.insert(record.offset));
                    bytes += record.len;
                }
                _ => assert!(written.contains(&record.offset)),
            }
        }
        assert_eq!(bytes, 10_000_000);
        assert_eq!(records.len(), written.len() * 2);
    }

    #[test]
    fn the_defaults_are_as_scattered_as_the_recorded_download() {
        let writes: Vec<_> = generate("p2p").into_iter().filter(|record| record.op == Op::Write).collect();
        assert_eq!(writes.len(), 47_296);
        let apart = writes.windows(2).filter(|pair| pair[1].offset != pair[0].end()).count();
        let apart = apart as f64 / writes.len() as f64;
        assert!((apart - 0.67).abs() < 0.02, "{apart}");
        let distinct =
            |window: &[Record]| window.iter().map(|w| w.offset >> 19).collect::<FxHashSet<_>>().len();
        let windows = writes.chunks_exact(100);
        let count = windows.len();
        let pieces = windows.map(distinct).sum::<usize>() as f64 / count as f64;
        assert!((pieces - 29.0).abs() < 1.5, "{pieces}");
        let seconds = writes.last().unwrap().at.0 as f64 / 1e9;
        assert!((400.0..900.0).contains(&seconds), "{seconds}");
    }
}
